package timers

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/threads"
)

//go:embed schema
var schema embed.FS

// Schema returns the tables of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "timers", FS: sub}
}

// Bounds of timers.
const (
	// Grace is how much later than it is due an occurrence may run without counting as
	// missed.
	Grace = time.Minute
	// MaxOfAgent is how many timers that have not ended may wake one agent.
	MaxOfAgent = 32
	// MaxTimers is how many timers that have not ended there may be.
	MaxTimers = 10_000
	// MaxQueue is how many occurrences of one timer may wait for its last wake to end.
	// More are skipped.
	MaxQueue = MaxCatchUp
)

const (
	// batch is how many timers, or overdue wakes, one transaction deals with.
	batch = 32
	// look is how long the loop sleeps at most. A clock that is set is noticed within it.
	look = time.Minute
	// Bounds of the wait after the store has failed.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Waker wakes agents, and ends what they have not answered. *threads.Threads is one.
type Waker interface {
	// Raise writes a wake in tx. After a fault nothing of it has been written.
	Raise(journal.Tx, threads.Errand) (threads.Wake, error)
	// EndOverdue ends up to n wakes whose deadline has passed, and returns when it has to
	// be called again, the zero time if nothing is open.
	EndOverdue(tx journal.Tx, n int) (next time.Time, err error)
}

var _ Waker = (*threads.Threads)(nil)

// Config is what Timers needs.
type Config struct {
	Store    journal.Store // with Schema, threads.Schema and access.Schema
	Wakes    Waker
	Registry *ops.Live          // that timers' ops must be in
	Policy   *access.LivePolicy // the door's
	Log      *slog.Logger
	// Clock is the wall clock that the store goes by; nil is time.Now. It says when to
	// look. What is due, and everything that is written, goes by the time of a
	// transaction.
	Clock func() time.Time
}

// Timers is the timers of a store. Make it with New, then Start it; Close it before the
// store.
type Timers struct {
	store    journal.Store
	wakes    Waker
	registry *ops.Live
	policy   *access.LivePolicy
	log      *slog.Logger
	clock    func() time.Time
	counts   counts
	look     time.Duration // look, but in tests that have a year to wait
	most     int64         // MaxTimers, but in tests

	life      context.Context
	stop      context.CancelFunc
	work      sync.WaitGroup
	attention chan struct{} // something has changed that the loop may have to look at
	stopped   chan struct{} // something has been stopped or started
}

// New returns the timers over c.
func New(c Config) (*Timers, error) {
	if c.Store == nil || c.Wakes == nil || c.Registry == nil || c.Policy == nil || c.Log == nil {
		return nil, errors.New("timers: want a store, wakes, a registry, a policy and a log")
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	t := &Timers{store: c.Store, wakes: c.Wakes, registry: c.Registry, policy: c.Policy, log: c.Log, clock: c.Clock, look: look, most: MaxTimers,
		attention: make(chan struct{}, 1), stopped: make(chan struct{}, 1)}
	t.life, t.stop = context.WithCancel(context.Background())
	return t, nil
}

// Start begins to fire timers and to end overdue wakes, those first that came due while
// nobody did. ctx bounds the start only.
func (t *Timers) Start(ctx context.Context) error {
	head, err := t.store.Head(ctx)
	if err != nil {
		return fmt.Errorf("start the timers: %w", err)
	}
	t.work.Go(func() { t.follow(head) })
	t.work.Go(t.loop)
	return nil
}

// Close ends both after the transaction under way, and waits for them.
func (t *Timers) Close() {
	t.stop()
	t.work.Wait()
}

// follow notices what others write: timers that are made or resumed, wakes that are
// raised or end. Whoever wrote it, this gateway or another one.
func (t *Timers) follow(after int64) {
	for {
		err := t.store.Tail(t.life, after, func(e journal.Event) error {
			after = e.Position
			switch {
			case strings.HasPrefix(e.Kind, "hold"), strings.HasPrefix(e.Kind, "start"):
				signal(t.stopped)
			case strings.HasPrefix(e.Kind, "wake."), e.Kind == "timer.created", e.Kind == "timer.resumed":
				signal(t.attention)
			}
			return nil
		})
		if t.life.Err() != nil || errors.Is(err, journal.ErrClosed) {
			return
		}
		t.log.Error("timers cannot follow the journal", "err", err, "wait", lastRetry)
		t.sleep(lastRetry)
	}
}

// signal wakes whoever waits on c, or will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake already
	}
}

// loop does what is due, and sleeps until something is.
func (t *Timers) loop() {
	overdue := true // whether wakes have to be looked at whatever their deadlines are
	retry := firstRetry
	for t.life.Err() == nil {
		next, err := t.pass(overdue)
		if err != nil {
			if t.life.Err() != nil || errors.Is(err, journal.ErrClosed) {
				return
			}
			t.log.Error("timers wait for the store", "err", err, "wait", retry)
			t.sleep(retry)
			retry = min(2*retry, lastRetry)
			continue
		}
		overdue, retry = t.until(next), firstRetry
	}
}

// until waits until the clock says next, something changes, or the timers are closed. A
// next in the zero time is never. It reports whether something has been stopped or
// started.
func (t *Timers) until(next time.Time) (stopped bool) {
	for {
		wait := t.look
		if !next.IsZero() {
			wait = min(wait, next.Sub(t.clock()))
		}
		if wait <= 0 {
			return false
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			continue
		case <-t.attention:
			timer.Stop()
			return false
		case <-t.stopped:
			timer.Stop()
			return true
		case <-t.life.Done():
			timer.Stop()
			return false
		}
	}
}

// sleep waits for d, after an error.
func (t *Timers) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.life.Done():
	}
}

func newTimerID() string { return "tm-" + strings.ToLower(ulid.Make().String()) }

// milli is a moment as a column holds it.
func milli(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// fromMilli is what a column says.
func fromMilli(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}
