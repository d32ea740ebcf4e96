package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"inband/ops"
	"inband/service/journal"
)

// app is one invocation of box: its streams, its environment, and the flags that
// several commands share.
type app struct {
	in     io.Reader
	out    io.Writer // data
	errs   io.Writer // notices and faults
	getenv func(string) string

	state     string // --state
	gateway   string // --gateway
	ca        string // --ca
	tokenFile string // --token-file
	patience  time.Duration

	json, jsonl bool

	answered bool // the fault has been printed as a document already
	began    bool // a command's own code has been entered; errors before that are usage
}

func newApp(in io.Reader, out, errs io.Writer, getenv func(string) string) *app {
	return &app{in: in, out: out, errs: errs, getenv: getenv}
}

// run executes the command line args and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ops.ExitDone
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ctx.Err())) {
		return ops.ExitInterrupted
	}
	return a.report(cmd, err)
}

// exitPipe is the exit code of a process that SIGPIPE has ended, as shells see it. box
// gives it itself where it has something to tidy up first.
const exitPipe = 128 + int(syscall.SIGPIPE)

// usageError is a command line that cannot be meant: exit code 2, with a hint.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// exitError is an error with an exit code of its own. hint says what to do.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// report prints err and returns its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	var (
		usage *usageError
		exit  *exitError
		fault *ops.Fault
		files ops.FileErrors
		owned *journal.OwnedError
	)
	switch {
	case errors.Is(err, syscall.EPIPE):
		return exitPipe // whoever read has seen enough
	case errors.As(err, &usage), !a.began:
		a.fault(err.Error())
		a.notice("see %s --help", cmd.CommandPath())
		return ops.ExitUsage
	case errors.As(err, &exit):
		if exit.err != nil && exit.Error() != "" {
			a.fault(exit.Error())
		}
		if exit.hint != "" {
			a.notice("%s", exit.hint)
		}
		return exit.code
	case errors.As(err, &fault):
		if (a.json || a.jsonl) && !a.answered {
			a.document(map[string]any{"ok": false, "fault": fault})
		}
		a.fault(fmt.Sprintf("%s (%s)", fault.Message, fault.Code))
		for _, name := range []string{"stdout", "stderr"} { // what a failed op said
			if s, ok := fault.Details[name].(string); ok && s != "" && !a.json && !a.jsonl {
				fmt.Fprint(a.errs, indent(cleanText(s)))
			}
		}
		return fault.Code.Info().Exit
	case errors.As(err, &files):
		for _, f := range files {
			fmt.Fprintln(a.errs, clean(f.Error()))
		}
		what := "the op files do not load"
		if errors.As(err, new(*policyError)) {
			what = "the policy does not load"
		}
		a.fault(what)
		return ops.ExitUsage
	case errors.As(err, &owned):
		a.fault(owned.Error())
		a.notice("one gateway serves one state folder; stop that process, or choose another folder with --state")
		return ops.ExitConflict
	case errors.Is(err, os.ErrNotExist):
		a.fault(err.Error())
		return ops.ExitNotFound
	case errors.Is(err, os.ErrPermission):
		a.fault(err.Error())
		return ops.ExitNotAllowed
	case errors.Is(err, context.DeadlineExceeded):
		a.fault("gave up after " + a.patience.String())
		return ops.ExitUnreachable
	}
	a.fault(err.Error())
	return ops.ExitFailed
}

// fault prints what went wrong.
func (a *app) fault(message string) {
	fmt.Fprintf(a.errs, "box: %s\n", clean(strings.TrimSpace(message)))
}

// notice prints a line for the person in front of the terminal.
func (a *app) notice(format string, args ...any) {
	fmt.Fprintf(a.errs, "box: %s\n", clean(fmt.Sprintf(format, args...)))
}

// root is the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "box",
		Short: "Run an Inband gateway and speak to one",
		Long: `box runs an Inband gateway and speaks to one.

A gateway reads what chat agents write, finds the orders in it, runs each through
an allowlist of ops, and posts the result into the thread that it came from.

box finds the gateway of this machine, its certificate authority and the
operator's token in the state folder: --state, or INBAND_STATE, or
$XDG_STATE_HOME/inband, or ~/.local/state/inband. For another gateway give
--gateway or INBAND_GATEWAY, --ca or INBAND_CA, --token-file or INBAND_TOKEN.

Data goes to standard output, notices to standard error. People get aligned
tables; --json prints one document, --jsonl one object a line.

Exit codes: 0 done, 1 the op failed, 2 usage, 3 not found, 4 not allowed,
5 waiting for an approval, 6 conflict, 7 unreachable or timed out, 130 interrupted.`,
		Example: `  box demo                       # see it work, in seconds
  box serve                      # run a gateway
  box exec disk.usage folder=/   # run an op
  box harvest reply.txt          # see which orders a text holds`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              a.subcommandOnly,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	root.SetHelpCommand(&cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command",
		Long:    "Show the help of a command. box COMMAND --help shows the same.",
		Example: "  box help exec",
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			if err != nil || target == nil || len(rest) > 0 {
				return usagef("there is no command %q", strings.Join(args, " "))
			}
			return target.Help()
		},
	})
	root.PersistentFlags().StringVar(&a.state, "state", "", "state folder (default $INBAND_STATE, else the user's state directory)")
	if err := root.MarkPersistentFlagDirname("state"); err != nil {
		panic(err) // the flag is defined above
	}
	root.AddCommand(
		a.initCommand(), a.serveCommand(), a.demoCommand(),
		a.statusCommand(), a.execCommand(), a.opsCommand(), a.harvestCommand(),
		a.replyCommand(), a.threadsCommand(), a.outboxCommand(), a.callsCommand(), a.approvalsCommand(), a.agentsCommand(), a.policyCommand(), a.dmCommand(), a.stopCommand(), a.startCommand(), a.envelopeCommand(), a.auditCommand(),
		a.versionCommand(), a.completionCommand(),
		a.artifactsCommand(), a.adaptorsCommand(), a.timersCommand(), a.wakesCommand(),
		a.backupCommand(), a.restoreCommand(), a.migrateCommand(),
		a.delegationsCommand(), a.workersCommand(), a.planeCommand(), a.workerCommand(), a.verifierCommand(),
	)
	a.entered(root)
	return root
}

// entered notes when the code of cmd or of a command below it begins.
func (a *app) entered(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.began = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.entered(sub)
	}
}

// subcommandOnly refuses arguments where only a subcommand can stand, with the
// nearest names.
func (a *app) subcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0])
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef("%s", message)
}

// exactly wants n arguments, named for the message.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s is missing", names[len(args)])
		}
		if len(args) > len(names) {
			return usagef("one argument too many: %q", args[len(names)])
		}
		return nil
	}
}

// atMost wants up to n arguments.
func atMost(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("one argument too many: %q", args[n])
		}
		return nil
	}
}

// speaks gives cmd the flags of a command that asks a gateway.
func (a *app) speaks(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringVar(&a.gateway, "gateway", "", "URL of the gateway (default $INBAND_GATEWAY, else the one of the state folder)")
	f.StringVar(&a.ca, "ca", "", "file with the certificate authority to trust (default $INBAND_CA, else the state folder's)")
	f.StringVar(&a.tokenFile, "token-file", "", "file with the token (default $INBAND_TOKEN, else the state folder's operator.token)")
	f.DurationVar(&a.patience, "timeout", 0, "give up after this long, for example 30s (default: wait)")
	return a.prints(cmd)
}

// prints gives cmd the flags of a command that prints data.
func (a *app) prints(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.BoolVar(&a.json, "json", false, "print one JSON document")
	f.BoolVar(&a.jsonl, "jsonl", false, "print one JSON object a line")
	return oneOf(cmd, "json", "jsonl")
}

// oneOf says of flags of cmd that at most one of them may be given.
func oneOf(cmd *cobra.Command, names ...string) *cobra.Command {
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		var given []string
		for _, name := range names {
			if changed(cmd.Flags(), name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return usagef("%s exclude each other", strings.Join(given, " and "))
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
	return cmd
}

// asking is the RunE of a command that only asks a gateway.
func (a *app) asking(f func(ctx context.Context, c *client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.patient(cmd.Context())
		defer cancel()
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.close()
		return f(ctx, c, args)
	}
}

// patient bounds ctx by --timeout.
func (a *app) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.patience > 0 {
		return context.WithTimeout(ctx, a.patience)
	}
	return context.WithCancel(ctx)
}

// changed reports whether the caller gave the flag.
func changed(f *pflag.FlagSet, name string) bool { return f.Lookup(name) != nil && f.Changed(name) }
