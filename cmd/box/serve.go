package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"inband/exec/command"
	"inband/ops"
	"inband/service"
	"inband/service/artifacts"
	"inband/service/plane"
)

func (a *app) serveCommand() *cobra.Command {
	var listen string
	var hosts, credentials, unconfined []string
	var rootOps bool
	var grace, approvals, lease, heartbeat time.Duration
	rate := rateFlag(service.DefaultRate)
	kept := sizeFlag(artifacts.DefaultQuota)
	var verbose bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a gateway",
		Long: `Run a gateway on a state folder until SIGTERM or SIGINT. The first start makes what is
missing, as box init does. One state folder is served by one gateway; a second one is
refused (exit code 6).

On SIGTERM or SIGINT nothing new begins, what runs has the grace to finish and is
stopped then, and each outcome is written; a second signal ends the process at once.
A side-effecting call that is cut off so is shown as outcome_unknown after the next
start and never run again by itself. On SIGHUP the op files, the policy and the secrets
of adaptors are read again; if one does not load, what is in force stays and the log
says why.

The log goes to standard error: for people on a terminal, as JSON lines otherwise. It
never holds replies, parameters or tokens.

Ops refer to secrets by name: file:NAME is a file of credentials in the state folder,
systemd:NAME a credential of the unit, env:NAME a variable that --credential-env names,
which is taken out of the environment of the gateway. Ops of a gateway that is root run
as nobody unless their op file names another user; --allow-root-ops lets that be root.`,
		Example: `  box serve
  box serve --state /var/lib/inband --listen 127.0.0.1:9000
  box serve --listen 0.0.0.0:8787 --host box.example.org`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := a.folder()
			if err != nil {
				return err
			}
			if grace <= 0 {
				return usagef("--grace %s: want more than nothing", grace)
			}
			if approvals < service.MinApprovalTTL || approvals > service.MaxApprovalTTL {
				return usagef("--approval-ttl %s: want %s to %s", approvals, service.MinApprovalTTL, service.MaxApprovalTTL)
			}
			if heartbeat < minHeartbeat || lease > maxLease || lease < 3*heartbeat {
				return usagef("--lease %s, --heartbeat %s: want a heartbeat of at least %s and a lease of at least three heartbeats and at most %s", lease, heartbeat, minHeartbeat, maxLease)
			}
			signal.Ignore(syscall.SIGPIPE) // a reader of the log that goes must not end the gateway
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, syscall.SIGHUP)
			defer signal.Stop(hangups)
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			log := a.logger(level)
			allowed := command.Config{AllowRoot: rootOps}
			for _, name := range unconfined {
				allowed.AllowUnconfined = append(allowed.AllowUnconfined, ops.OpName(name))
			}
			if allowed.Credentials, err = takeCredentials(credentials, log); err != nil {
				return err
			}
			g, err := openGateway(cmd.Context(), gatewayConfig{
				Folder: folder, Listen: listen, Hosts: hosts, Rate: ops.Rate(rate), Artifacts: int64(kept), Approvals: approvals, Grace: grace, Lease: lease, Heartbeat: heartbeat, Ops: allowed, Version: readBuild().String(), Log: log, Enclose: true,
			})
			if err != nil {
				return err
			}
			done := make(chan struct{})
			ctx, cancel := context.WithCancel(cmd.Context())
			go func() {
				defer close(done)
				for {
					select {
					case <-hangups:
						_, _ = g.Reload(ctx) // it logs what it does
					case <-ctx.Done():
						return
					}
				}
			}()
			err = g.Run(cmd.Context())
			cancel()
			<-done
			return err
		},
	}
	f := cmd.Flags()
	f.Var(&kept, "artifacts", "how much the files that calls publish may take together")
	f.DurationVar(&approvals, "approval-ttl", time.Hour, "how long a call waits for an approval")
	f.StringVar(&listen, "listen", "127.0.0.1:8787", "address to listen on, HOST:PORT")
	f.StringArrayVar(&hosts, "host", nil, "a further name of this gateway (may be repeated)")
	f.DurationVar(&grace, "grace", 10*time.Second, "how long what runs may go on after SIGTERM")
	f.DurationVar(&lease, "lease", plane.StandardTTL, "how long a worker has its work without being heard")
	f.DurationVar(&heartbeat, "heartbeat", plane.StandardHeartbeat, "how often a worker must be heard, at least three times in a lease")
	f.Var(&rate, "rate", "how many calls an identity other than an operator may order in a second, a minute or an hour")
	f.StringArrayVar(&credentials, "credential-env", nil, "a variable of the environment that ops may refer to as env:NAME (may be repeated)")
	f.BoolVar(&rootOps, "allow-root-ops", false, "let ops run as root whose op file says run_as: root")
	f.StringArrayVar(&unconfined, "allow-unconfined", nil, "an op that may run without a sandbox if its op file says sandbox: none (may be repeated)")
	f.BoolVar(&verbose, "verbose", false, "log debug messages too")
	return cmd
}

// Bounds of leases. A shorter heartbeat is a burden and no help; a longer lease keeps work
// from whoever could do it.
const (
	minHeartbeat = 100 * time.Millisecond
	maxLease     = time.Hour
)

// rateFlag is a rate as op files write it: COUNT/s, COUNT/m or COUNT/h.
type rateFlag ops.Rate

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

func (r *rateFlag) Set(s string) error {
	count, unit, _ := strings.Cut(s, "/")
	n, err := strconv.Atoi(count)
	if per, ok := rateUnits[unit]; ok && err == nil && n >= 1 && n <= maxRate {
		*r = rateFlag{Count: n, Per: per}
		return nil
	}
	return fmt.Errorf("want a number of 1 to %d in a second, a minute or an hour, such as 600/m", maxRate)
}

// maxRate is the largest count of a rate, as in op files.
const maxRate = 999_999

func (r *rateFlag) String() string { return fmt.Sprintf("%d/%s", r.Count, inUnits(r.Per.Seconds())) }

func (*rateFlag) Type() string { return "rate" }

// inUnits is the time of a rate as it is written.
func inUnits(seconds float64) string {
	for unit, per := range rateUnits {
		if per.Seconds() == seconds {
			return unit
		}
	}
	return fmt.Sprintf("%gs", seconds)
}

// logger writes to standard error: for people on a terminal, else as JSON lines.
func (a *app) logger(level slog.Level) *slog.Logger {
	if _, tty := terminal(a.errs); tty {
		return slog.New(tint.NewTextHandler(a.errs, &tint.Options{Level: level, TimeFormat: time.TimeOnly, NoColor: !a.colour()}))
	}
	return jsonLogger(a.errs, level)
}

func jsonLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}
