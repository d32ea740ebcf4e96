package service

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

//go:embed schema
var schema embed.FS

// Schema returns the tables of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "calls", FS: sub}
}

// Transactional is an executor whose whole effect is in the journal. The door runs
// it in the transaction that writes the outcome: both hold, or neither does. It may
// run again, like every function of a transaction.
type Transactional interface {
	ops.Executor
	ExecuteTx(journal.Tx, ops.Call) (ops.Outcome, error)
}

// Config is what a Door needs.
type Config struct {
	Store    journal.Store // with Schema and access.Schema
	Registry *ops.Live
	Policy   *access.LivePolicy // nil: the default policy, for good
	Log      *slog.Logger

	// MaxRunning bounds the executions at one time; 0 means 64.
	MaxRunning int
	// MaxWaiting bounds the admitted calls that have not settled; a call beyond it
	// is refused as Busy before anything is written. Calls count from their commit
	// on, so those of one group commit may together exceed it. 0 means 4096.
	MaxWaiting int

	// ShareRunning and ShareWaiting are the part of both that one identity other
	// than an operator may take, so that it cannot shut out the others, and least
	// those who could stop it. 0 means a half of MaxRunning and a sixteenth of
	// MaxWaiting.
	ShareRunning, ShareWaiting int

	// RatePerIdentity is how many calls one identity other than an operator may order
	// in a time, those that are refused included; the ops' own rates are beside it. The
	// zero value means DefaultRate.
	RatePerIdentity ops.Rate

	Approvals ApprovalLimits // the zero value is the standard ones
}

// SettleFunc adds to the transaction in which a call settles. It may run again. An
// error keeps the call from settling, so it is returned for faults of the store only.
type SettleFunc func(journal.Tx, ops.Call, ops.Outcome) error

// CancelFunc asks, in tx, for the work of call to be stopped, on behalf of by, who may
// cancel it. It is asked of accepted calls only, whose work goes on outside the door, and
// reports whether the work is its own: whoever has it settles the call once it has stopped,
// which may be in tx or long after. It may run again.
type CancelFunc func(tx journal.Tx, by ops.Identity, call ops.Call) (handled bool, err error)

// Door is the one way to an executor. Make it with New, then Start it; Close it
// before its store.
type Door struct {
	store    journal.Store
	registry *ops.Live
	policy   *access.LivePolicy
	rules    []rule
	log      *slog.Logger
	onSettle []SettleFunc
	onCancel []CancelFunc

	maxRunning   int
	maxWaiting   int
	shareRunning int
	shareWaiting int

	rates           rates
	ratePerIdentity ops.Rate

	approvals approvals
	counts    counts

	life context.Context // ends when Close has waited long enough
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	closing bool
	tasks   map[ops.CallID]*task // handed to Run and not settled yet
	shares  map[ops.IdentityID]*share
	line    []*task         // that wait for room, first come first
	onHold  []*task         // that stand aside, first come first
	holds   map[string]bool // by scope, as they were last read
	running int             // tasks that have room
	inOp    map[ops.OpName]int
	waiters map[ops.CallID]*waiter

	reading sync.Mutex // one reading of the holds at a time

	deaf   chan struct{} // closed by deafen: the store takes no writes, for good
	deafen func()
}

// New returns a door over cfg. OnSettle and OnCancel functions are added before Start.
func New(cfg Config) (*Door, error) {
	if cfg.Store == nil || cfg.Registry == nil || cfg.Log == nil {
		return nil, errors.New("service: a door needs a store, a registry and a log")
	}
	if cfg.Policy == nil {
		cfg.Policy = access.NewLivePolicy(access.DefaultPolicy())
	}
	if cfg.MaxRunning == 0 {
		cfg.MaxRunning = 64
	}
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = 4096
	}
	if cfg.ShareRunning == 0 {
		cfg.ShareRunning = (cfg.MaxRunning + 1) / 2
	}
	if cfg.ShareWaiting == 0 {
		cfg.ShareWaiting = (cfg.MaxWaiting + 15) / 16
	}
	if cfg.RatePerIdentity == (ops.Rate{}) {
		cfg.RatePerIdentity = DefaultRate
	}
	if cfg.RatePerIdentity.Count < 1 || cfg.RatePerIdentity.Per < time.Second {
		return nil, fmt.Errorf("service: a rate of %d calls in %s: want at least 1, in at least 1s", cfg.RatePerIdentity.Count, cfg.RatePerIdentity.Per)
	}
	if min(cfg.MaxRunning, cfg.MaxWaiting, cfg.ShareRunning, cfg.ShareWaiting) < 1 {
		return nil, fmt.Errorf("service: MaxRunning %d, MaxWaiting %d and shares of %d and %d: want at least 1",
			cfg.MaxRunning, cfg.MaxWaiting, cfg.ShareRunning, cfg.ShareWaiting)
	}
	limits, err := cfg.Approvals.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Door{
		store:    cfg.Store,
		registry: cfg.Registry,
		policy:   cfg.Policy,
		rules:    rules,
		log:      cfg.Log,
		tasks:    make(map[ops.CallID]*task),
		shares:   make(map[ops.IdentityID]*share),
		inOp:     make(map[ops.OpName]int),
		waiters:  make(map[ops.CallID]*waiter),
		deaf:     make(chan struct{}),

		maxRunning:   cfg.MaxRunning,
		maxWaiting:   cfg.MaxWaiting,
		shareRunning: cfg.ShareRunning,
		shareWaiting: cfg.ShareWaiting,

		ratePerIdentity: cfg.RatePerIdentity,

		approvals: approvals{limits: limits, attention: make(chan struct{}, 1)},
	}
	d.deafen = sync.OnceFunc(func() { close(d.deaf) })
	d.life, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// Policy returns the policy in force. Whoever decides something about what the door
// has asks it, so that no entrance decides by another.
func (d *Door) Policy() *access.Policy { return d.policy.Current() }

// OnSettle has f called in every transaction that settles a call, refusals
// included, in the order of the OnSettle calls. It must not be called after Start.
func (d *Door) OnSettle(f SettleFunc) { d.onSettle = append(d.onSettle, f) }

// OnCancel has f asked, in the order of the OnCancel calls until one has handled it, when
// an accepted call is to be cancelled. It must not be called after Start.
func (d *Door) OnCancel(f CancelFunc) { d.onCancel = append(d.onCancel, f) }

// Start recovers the calls that an earlier owner of the store left open, and opens
// the door. ctx bounds the recovery's own reads and writes, not the calls that it
// runs again.
func (d *Door) Start(ctx context.Context) error {
	head, err := d.store.Head(ctx)
	if err != nil {
		return fmt.Errorf("open the door: %w", err)
	}
	d.work.Go(func() { d.follow(head) })
	err = d.readHolds(ctx) // before anything runs
	if err == nil {
		err = d.recover(ctx)
	}
	if err != nil {
		d.stop()
		d.work.Wait()
		return fmt.Errorf("recover open calls: %w", err)
	}
	d.work.Go(d.expire)
	return nil
}

// Close lets nothing new in, waits for what runs until ctx ends, then stops it and
// waits until each outcome is written. Calls that have not begun stay received, for
// the next start to deal with; those that are held do so at once.
func (d *Door) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closing = true
	var left []*task
	for _, t := range d.tasks {
		left = append(left, t)
	}
	for _, t := range d.onHold {
		d.forgo(t)
	}
	d.onHold = nil
	d.mu.Unlock()

	err := error(nil)
	for _, t := range left {
		select {
		case <-t.done:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	d.stop()
	d.work.Wait()
	return err
}
