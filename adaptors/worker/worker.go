package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/failpoint"
	"inband/ops"
	"inband/service/artifacts"
	"inband/service/plane/wire"
)

// MaxSlots bounds how many runs a worker serves at once.
const MaxSlots = 64

// ErrSuperseded says that the plane does not know this boot any more: the worker was
// revoked, or another process has begun with its key. What ran has been ended.
var ErrSuperseded = errors.New("the plane has ended this boot: the worker was revoked, or another process has begun with its key")

// Config is what a worker or verifier is made of. State, Client, Log and, but for a dry
// run, Runner are required.
type Config struct {
	State  *State
	Client *Client
	Runner Runner
	// Role is ops.Worker or ops.Verifier, as the invitation said.
	Role ops.Role
	// Implementations are those that this process serves, just those of its invitation.
	Implementations []string
	// Token is the one-time token; it is not looked at once the worker is enrolled.
	Token string
	// Command is the argv of every run; of a verifier, of verifications that declare no
	// test. A verifier may have none.
	Command []string
	// Env is what a command gets besides its task's own variables, as NAME=value.
	Env []string
	// Slots is how many runs there are at once, 1 to MaxSlots; 0 is 1.
	Slots int
	// Checkpoints are names of files in OutFolder that are stored whenever they have
	// changed since the last heartbeat.
	Checkpoints []string
	// DryRun makes a verifier that compares digests, sizes and attestations, runs
	// nothing, and says so.
	DryRun bool
	// Grace bounds how long runs go on once the worker drains; 0 is as long as they take.
	Grace time.Duration
	// Abandon, when it is closed, has the runs ended and given up at once.
	Abandon <-chan struct{}
	// Secret resolves a credential; nil has none.
	Secret func(ops.CredentialRef) ([]byte, error)
	// Version is what the plane shows of this program.
	Version string
	Log     *slog.Logger
}

// Worker is one process that serves a plane. Make one with New and put it to work with
// Run, once.
type Worker struct {
	cfg     Config
	log     *slog.Logger
	session *session
}

// New checks cfg.
func New(cfg Config) (*Worker, error) {
	switch {
	case cfg.State == nil || cfg.Client == nil || cfg.Log == nil:
		return nil, errors.New("worker: State, Client and Log are required")
	case cfg.Role != ops.Worker && cfg.Role != ops.Verifier:
		return nil, fmt.Errorf("worker: role %q, want %s or %s", cfg.Role, ops.Worker, ops.Verifier)
	case cfg.Role == ops.Worker && (cfg.DryRun || len(cfg.Command) == 0):
		return nil, errors.New("worker: a worker needs a command; only a verifier has a dry run")
	case cfg.Runner == nil && !cfg.DryRun:
		return nil, errors.New("worker: without a Runner there is only the dry run of a verifier")
	case len(cfg.Implementations) == 0 && cfg.Role == ops.Worker:
		return nil, errors.New("worker: no implementation to serve")
	case cfg.Slots < 0 || cfg.Slots > MaxSlots:
		return nil, fmt.Errorf("worker: %d slots, want 1 to %d", cfg.Slots, MaxSlots)
	case cfg.Grace < 0:
		return nil, errors.New("worker: the grace is negative")
	case len(cfg.Checkpoints) > MaxFiles:
		return nil, fmt.Errorf("worker: %d files to checkpoint, of %d at most", len(cfg.Checkpoints), MaxFiles)
	}
	for _, name := range cfg.Checkpoints {
		if err := artifacts.CheckName(name); err != nil {
			return nil, fmt.Errorf("worker: checkpoint: %w", err)
		}
	}
	cfg.Slots = max(cfg.Slots, 1)
	if cfg.Abandon == nil {
		cfg.Abandon = make(chan struct{})
	}
	return &Worker{cfg: cfg, log: cfg.Log}, nil
}

// Run enrols the worker if that has not been done, ends what earlier lives have left,
// begins a boot, and serves grants until ctx ends. Then it drains: it takes nothing new,
// and what runs goes on, with its heartbeats, until it has ended or the grace is over. A
// run that is not finished by then is ended and given up with a signed word.
//
// The error is nil after a drain, a *RefusedError, ErrSuperseded, or one of the state
// folder. Nothing is running when Run returns but what the Runner could not end.
func (w *Worker) Run(ctx context.Context) error {
	e, err := enrol(ctx, w.cfg.Client, w.cfg.State, w.cfg.Token, w.log)
	if err != nil {
		return drained(ctx, err)
	}
	if e.Worker.Role != w.cfg.Role {
		return refused("this key is enrolled as a %s and not as a %s; each needs a folder of its own", e.Worker.Role, w.cfg.Role)
	}
	if w.cfg.Role == ops.Worker {
		if err := serves(e.Implementations, w.cfg.Implementations); err != nil {
			return err
		}
	}
	found, gone, err := w.clear(ctx)
	if err != nil {
		return drained(ctx, err)
	}
	failpoint.Here("worker.before-boot")
	w.session, err = begin(ctx, w.cfg.Client, w.cfg.State, e, w.cfg.Version, found, w.log)
	if err != nil {
		return drained(ctx, err)
	}
	failpoint.Here("worker.booted")
	for _, l := range gone { // the plane knows now
		if err := w.cfg.State.forget(l.Subject, l.Folder); err != nil {
			w.log.Warn("what an ended run has left cannot be removed", "subject", l.Subject, "err", err)
		}
	}
	w.log.Info("ready", "worker", e.Worker.ID, "role", e.Worker.Role, "boot", w.session.boot, "slots", w.cfg.Slots,
		"implementations", e.Implementations, "earlier_runs", len(found))
	return w.serve(ctx)
}

// drained is err, or nil if it only says that ctx has ended.
func drained(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// clear ends what earlier lives of this worker have left and says what it found of each
// run. A run of which it cannot tell whether it lives is left out, and stays written
// down for the next boot. gone are those of which nothing is alive.
func (w *Worker) clear(ctx context.Context) (found []wire.BootRun, gone []lease, err error) {
	all, err := w.cfg.State.leases()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range all {
		live := []wire.Process{}
		if w.cfg.Runner != nil {
			var p wire.Process
			if l.Process != nil {
				p = *l.Process
			}
			still, err := w.cfg.Runner.End(ctx, l.Folder, p)
			if err != nil {
				w.log.Error("nobody can tell whether an earlier run is alive; it is tried again at the next start", "subject", l.Subject, "err", err)
				continue
			}
			live = append(live, still...)
		} else if l.Process != nil {
			w.log.Error("an earlier run had a command, which a dry run cannot end; start the verifier as it was", "subject", l.Subject)
			continue
		}
		if l.Verification == "" {
			found = append(found, wire.BootRun{Run: l.Run, Live: live})
		}
		if len(live) == 0 {
			gone = append(gone, l)
		} else {
			w.log.Error("processes of an earlier run cannot be ended", "subject", l.Subject, "live", live)
		}
	}
	return found, gone, nil
}

// serve polls and runs until ctx ends, and waits for what runs.
func (w *Worker) serve(ctx context.Context) error {
	// Runs outlive ctx: life ends when they are to be given up.
	life, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	polling, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	slots := make(chan struct{}, w.cfg.Slots)
	var runs sync.WaitGroup
	over := func() { // this boot's: no further grant, and nothing of it may go on
		stop(ErrSuperseded)
		abandon(ErrSuperseded)
	}
	err := w.polls(polling, slots, func(g granted) {
		runs.Go(func() {
			defer func() { <-slots }()
			w.run(life, g, over)
		})
	})
	if errors.Is(err, ErrSuperseded) || errors.Is(context.Cause(polling), ErrSuperseded) {
		over()
	}

	ended := make(chan struct{})
	go func() { runs.Wait(); close(ended) }()
	if err == nil {
		w.log.Info("draining", "grace", w.cfg.Grace.String())
	}
	var grace <-chan time.Time
	if w.cfg.Grace > 0 {
		t := time.NewTimer(w.cfg.Grace)
		defer t.Stop()
		grace = t.C
	}
	select {
	case <-ended:
	case <-grace:
		abandon(errors.New("the worker's grace is over"))
	case <-w.cfg.Abandon:
		abandon(errors.New("the worker was told to end"))
	}
	<-ended
	if errors.Is(context.Cause(life), ErrSuperseded) {
		return ErrSuperseded
	}
	return err
}

// polls asks for grants, one poll at a time and none without a free slot, and gives each
// to serve, which gives the slot back. It returns nil once ctx has ended, and an error
// when the plane has nothing for this boot any more.
func (w *Worker) polls(ctx context.Context, slots chan struct{}, serve func(granted)) error {
	wait := &backoff{first: 200 * time.Millisecond, most: 10 * time.Second}
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return superseded(ctx)
		}
		g, err := w.next(ctx, wait)
		if err != nil {
			<-slots
			if ctx.Err() != nil {
				return superseded(ctx)
			}
			return err
		}
		serve(g)
	}
}

func superseded(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrSuperseded) {
		return ErrSuperseded
	}
	return nil
}

// next polls until there is a grant. A poll whose answer was lost is asked again with its
// own nonce, which gets the same answer for as long as the lease lives; a while later it
// could only hide what there is now. The lease counts from when the attempt was sent that
// was answered.
func (w *Worker) next(ctx context.Context, wait *backoff) (granted, error) {
	s := w.session
	var nonce string
	var first time.Time
	for {
		sent := s.now()
		if nonce == "" || sent.Sub(first) > pollWait+s.ttl {
			nonce, first = ulid.Make().String(), sent
		}
		envelope, err := s.poll(ctx, nonce, pollWait)
		switch {
		case err == nil && envelope == nil:
			nonce = ""
			wait.reset()
			if s.now().Sub(sent) < time.Second { // a plane that does not wait is not asked in a circle
				err = errNothing
			}
		case err == nil:
			var g granted
			if g, err = s.open(envelope, nonce, sent); err == nil {
				wait.reset()
				return g, nil
			}
			nonce = ""
			w.log.Error("a grant was not taken", "err", err)
		case has(err, ops.Unauthenticated, ops.StaleFence):
			return granted{}, ErrSuperseded
		case has(err, ops.PlaneOff):
			nonce = "" // off or draining: later
		case !Again(err):
			return granted{}, refused("the plane does not take this worker's polls: %v", err)
		}
		if ctx.Err() != nil {
			return granted{}, context.Cause(ctx)
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, errNothing) {
			w.log.Warn("no grant", "err", err)
		}
		if err := wait.wait(ctx, err); err != nil {
			return granted{}, err
		}
	}
}

// errNothing is a poll that was answered at once and with nothing.
var errNothing = errors.New("nothing to do")
