package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"inband/adaptors/worker"
	"inband/ops"
)

// memberFlags are the flags of the processes that serve a plane: workers and verifiers.
type memberFlags struct {
	implementations []string
	name            string
	token           string
	tokenFile       string
	slots           int
	checkpoints     []string
	env             []string
	credentials     []string
	grace           time.Duration
	dryRun          bool
	fake            string
	verbose         bool
	scratch         string
	task            taskRunnerConfig
}

// memberHelp is what holds for both.
const memberHelp = `
The first start enrols: it makes a key in the folder of this process and presents it with
the one-time token of an invitation (box workers invite). The folder is
STATE/workers/NAME or STATE/verifiers/NAME; one process can have it at a time. Secrets
that work refers to as file:NAME are files of its folder credentials/; systemd:NAME and
env:NAME are as for box serve. A command gets what its task names, and nothing else of
this process's environment.

On SIGTERM or SIGINT it drains: it takes nothing new, and what runs goes on with its
heartbeats until it has ended. A second signal, or --grace, ends what runs and gives it
up with a signed word. After kill -9 the next start ends what was left first.`

func (a *app) workerCommand() *cobra.Command {
	var m memberFlags
	cmd := &cobra.Command{
		Use:   "worker [flags] -- COMMAND [WORD...]",
		Short: "Serve a gateway's execution plane: run a command for each piece of work",
		Long: `Take work from a gateway's execution plane and run a command for each piece of it, in a
sandbox, under a lease that is kept by heartbeats. Any command can be it, such as an
agent's: it finds its folders in its environment.

  $INBAND_TASK     what is to be done, read-only: instruction.json with the task and
                   where each part of it comes from, grant.json, answer.txt if a person
                   has answered, earlier/ with what earlier attempts have left
  $INBAND_WORK     its working folder: the source, if the work names one
  $INBAND_OUT      files left here are returned under their names; exit code 0 says that
                   the work is done, any other that it failed
  $INBAND_CONTROL  progress, a number that grows; question.txt, for a person: write it
                   and exit with 75; mutations.jsonl, before anything outside is changed

A line {"intend": KEY, "action": TEXT} of mutations.jsonl is answered with a line
{"line": N, "ok": true} in $INBAND_TASK/acknowledged.jsonl. Only then may the change be
tried. Afterwards {"prove": KEY, "done": true or false, "proof": TEXT} says what became
of it; what is not proved is not run again by anybody.

With --fake a script is played instead of a command, for tests; box worker --fake help
describes it.
` + memberHelp,
		Example: `  box worker --token-file builder.invitation --implementation default -- ./agent.sh
  box worker --gateway https://box.example.org:8787 --ca ca.pem --slots 4 -- agent --run
  box worker --token-file fake.invitation --fake script.txt`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.member(cmd, args, ops.Worker, &m) },
	}
	a.memberFlags(cmd, &m)
	f := cmd.Flags()
	f.StringArrayVar(&m.implementations, "implementation", []string{"default"}, "what this worker is, just as in its invitation (may be repeated)")
	f.StringArrayVar(&m.checkpoints, "checkpoint", nil, "a file in $INBAND_OUT that is stored whenever it has changed (may be repeated)")
	return cmd
}

// memberFlags gives cmd the flags that workers and verifiers share.
func (a *app) memberFlags(cmd *cobra.Command, m *memberFlags) {
	f := cmd.Flags()
	f.StringVar(&a.gateway, "gateway", "", "URL of the gateway (default $INBAND_GATEWAY, else the one of the state folder)")
	f.StringVar(&a.ca, "ca", "", "file with the certificate authority to trust (default $INBAND_CA, else the state folder's)")
	f.StringVar(&m.name, "name", "", "which of several in one state folder this is (default: its implementation, of a verifier \"default\")")
	f.StringVar(&m.token, "token", "", "one-time token of the invitation; others on this machine can read it, so prefer --token-file")
	f.StringVar(&m.tokenFile, "token-file", "", "file with the one-time token of the invitation; - is standard input")
	f.IntVar(&m.slots, "slots", 1, "how many runs at once")
	f.StringArrayVar(&m.env, "env", nil, "a variable for the command, NAME=VALUE (may be repeated)")
	f.StringArrayVar(&m.credentials, "credential-env", nil, "a variable of the environment that work may refer to as env:NAME (may be repeated)")
	f.DurationVar(&m.grace, "grace", 0, "how long what runs may go on after SIGTERM (default: until it has ended)")
	f.StringVar(&m.fake, "fake", "", "play this script and run nothing; - is standard input, help describes scripts")
	f.StringVar(&m.scratch, "scratch", "", "a folder for the folders of runs, which whoever a command runs as may pass (default: in the worker's own)")
	f.BoolVar(&m.verbose, "verbose", false, "log debug messages too")
	oneOf(cmd, "token", "token-file")
	m.task.flags(cmd)
}

// member runs a worker or a verifier.
func (a *app) member(cmd *cobra.Command, args []string, role ops.Role, m *memberFlags) (err error) {
	if m.fake == "help" {
		_, err := fmt.Fprintln(a.out, worker.FakeHelp)
		return err
	}
	if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
		return usagef("%q: the command and its words stand behind --", args[0])
	}
	switch {
	case m.fake != "" && len(args) > 0:
		return usagef("--fake plays a script, so it runs no command")
	case m.fake == "" && len(args) == 0 && role == ops.Worker:
		return usagef("the command is missing; it stands behind --")
	case m.dryRun && len(args) > 0:
		return usagef("--dry-run runs no command")
	case m.slots < 1 || m.slots > worker.MaxSlots:
		return usagef("--slots %d: want 1 to %d", m.slots, worker.MaxSlots)
	case m.grace < 0:
		return usagef("--grace %s: want more than nothing", m.grace)
	}
	for _, v := range m.env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.HasPrefix(name, "INBAND_") {
			return usagef("--env %q: want NAME=VALUE, and a name that does not begin with INBAND_", v)
		}
	}
	level := slog.LevelInfo
	if m.verbose {
		level = slog.LevelDebug
	}
	log := a.logger(level)
	var script []worker.Step
	if m.fake != "" {
		if script, err = a.fakeScript(m.fake); err != nil {
			return err
		}
	}
	token, err := a.oneTimeToken(m)
	if err != nil {
		return err
	}
	credentials, err := takeCredentials(m.credentials, log)
	if err != nil {
		return err
	}
	folder, err := a.folder()
	if err != nil {
		return err
	}
	base, local, err := a.findGateway(folder)
	if err != nil {
		return err
	}
	pool, err := a.findCA(folder, local)
	if err != nil {
		return err
	}
	at, err := m.folder(folder, role)
	if err != nil {
		return err
	}
	state, err := worker.OpenState(at)
	var locked *worker.LockedError
	if errors.As(err, &locked) {
		return &exitError{code: ops.ExitConflict, err: err, hint: "stop that process, or give this one another --name"}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	credentials.Folder = state.Credentials()
	cfg := worker.Config{
		State: state, Client: worker.NewClient(base.String(), newClient(base, "", pool).http.Transport), Role: role, Implementations: m.implementations,
		Token: token, Command: args, Env: m.env, Slots: m.slots, Checkpoints: m.checkpoints, DryRun: m.dryRun, Grace: m.grace,
		Secret: credentials.Value, Version: shortVersion(), Log: log,
	}
	defer cfg.Client.Close()
	if script != nil {
		return memberFault(worker.Fake(cmd.Context(), cfg, script, a.out))
	}
	if m.scratch != "" {
		if err := state.PutRuns(m.scratch); err != nil {
			return err
		}
	}
	if !m.dryRun {
		m.task.Scratch, m.task.Log, m.task.Enclose = state.Runs(), log, true
		runner, err := newTaskRunner(cmd.Context(), m.task)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, runner.Close()) }()
		cfg.Runner = runner
	}
	signal.Ignore(syscall.SIGPIPE) // a reader of the log that goes must not end the worker
	var still func()
	cfg.Abandon, still = secondSignal(cmd.Context())
	defer still()
	w, err := worker.New(cfg)
	if err != nil {
		return usagef("%s", strings.TrimPrefix(err.Error(), "worker: "))
	}
	return memberFault(w.Run(cmd.Context()))
}

// memberFault gives the errors of workers their exit codes.
func memberFault(err error) error {
	var refused *worker.RefusedError
	var must *worker.MustError
	switch {
	case errors.As(err, &refused):
		return &exitError{code: ops.ExitNotAllowed, err: err}
	case errors.As(err, &must):
		return &exitError{code: ops.ExitFailed, err: err}
	case errors.Is(err, worker.ErrSuperseded):
		return &exitError{code: ops.ExitConflict, err: err, hint: "if the worker was not revoked, look for another process with a copy of its folder"}
	}
	return err
}

// secondSignal returns what is closed when, after the signal that ended ctx, another one
// comes. The second result gives the signals back.
func secondSignal(ctx context.Context) (<-chan struct{}, func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	second, done, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; {
			select {
			case <-signals:
				if n++; n == 2 {
					close(second)
					return
				}
			case <-done:
				return
			}
		}
	}()
	return second, func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}

// folder is that of one worker or verifier of a state folder.
func (m *memberFlags) folder(state stateFolder, role ops.Role) (string, error) {
	name := m.name
	if name == "" {
		name = strings.Join(m.implementations, "+")
	}
	if name == "" {
		name = "default"
	}
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") || len(name) > 128 {
		return "", usagef("--name %q: want a name for a folder", name)
	}
	parent := filepath.Join(string(state), string(role)+"s")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", fmt.Errorf("folder of the %s: %w", role, err)
	}
	return filepath.Join(parent, name), nil
}

// oneTimeToken reads the token of the invitation, "" if none was given.
func (a *app) oneTimeToken(m *memberFlags) (string, error) {
	switch {
	case m.token != "":
		return m.token, nil
	case m.tokenFile == "-":
		b, err := io.ReadAll(io.LimitReader(a.in, 4096))
		if err != nil {
			return "", fmt.Errorf("read token: %w", err)
		}
		token, _, _ := strings.Cut(string(b), "\n")
		return strings.TrimSpace(token), nil
	case m.tokenFile != "":
		return readToken(m.tokenFile)
	}
	return "", nil
}

// fakeScript reads the script of a fake worker.
func (a *app) fakeScript(path string) ([]worker.Step, error) {
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	script, err := worker.ReadScript(in)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return script, nil
}

// shortVersion is what the plane shows of this program.
func shortVersion() string {
	v := readBuild().String()
	return v[:min(len(v), 64)]
}
