package plane

import (
	"context"
	"errors"
	"sync"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/journal"
)

const (
	sweepPage = 100              // runs that are read, and dealt with, at a time
	look      = 10 * time.Second // how long the sweeper sleeps at most; a sixth of a lease if that is less
	scanEvery = time.Minute      // how often every run that should have a lease is looked at
	// Bounds of the wait after the store has failed.
	firstRetry, lastRetry = 100 * time.Millisecond, 10 * time.Second
)

// errJumped ends a transaction in which the wall clock is found to have been set.
var errJumped = errors.New("the clock was set")

// watch notices a wall clock that is set, by the monotonic one, and a process that was
// stopped, by the sweeper; and it knows when the sweeper means to wake.
type watch struct {
	mu         sync.Mutex
	wall, mono time.Time
	tick       time.Time // when the sweeper was last seen awake, zero if it is not started
	next       time.Time // zero: it is awake
}

// awake notes that the sweeper is.
func (w *watch) awake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick = time.Now()
}

// asleep is for how long nobody has seen the sweeper awake.
func (w *watch) asleep() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tick.IsZero() {
		return 0
	}
	return time.Since(w.tick)
}

// reset begins to measure anew.
func (w *watch) reset(wall time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wall, w.mono = wall.Round(0), time.Now()
}

// follow measures from now on, unless the clocks are apart by most or more: what they drift
// by themselves does not add up.
func (w *watch) follow(wall time.Time, most time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if (wall.Round(0).Sub(w.wall) - time.Since(w.mono)).Abs() < most {
		w.wall, w.mono = wall.Round(0), time.Now()
	}
}

// apart is how much further the wall clock has gone than the monotonic one.
func (w *watch) apart(wall time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return wall.Round(0).Sub(w.wall) - time.Since(w.mono)
}

// sooner wakes the sweeper for what is due at t, if it would sleep longer by what it knows.
func (p *Plane) sooner(t time.Time) {
	p.watch.mu.Lock()
	next := p.watch.next
	p.watch.mu.Unlock()
	if next.IsZero() { // It is awake, may have looked already, and will not sleep longer than this.
		next = p.Clock().Add(p.look())
	}
	if t.Before(next) {
		signal(p.attention)
	}
}

// look is how long the sweeper sleeps at most.
func (p *Plane) look() time.Duration { return min(look, p.TTL/6) }

// jumped reports whether the wall clock and the monotonic one are apart by more than half a
// lease, or the whole process has stood still for a third of one, so that nobody could be
// heard. Then nothing may be judged by the time before settleClock has run.
func (p *Plane) jumped() bool {
	return p.watch.apart(p.Clock()).Abs() > p.TTL/2 || p.watch.asleep() > p.look()+p.TTL/3
}

// settleClock writes a clock_jump, if there was one, and gives every lease one more time:
// nobody knows how long it has really been, or could have extended it.
func (p *Plane) settleClock(ctx context.Context) error {
	if !p.jumped() {
		return nil
	}
	p.settling.Lock() // so that one jump is one event, whoever notices it
	defer p.settling.Unlock()
	by, stopped := p.watch.apart(p.Clock()), p.watch.asleep()
	if !p.jumped() {
		return nil // another has dealt with it
	}
	err := p.store.Update(ctx, func(tx journal.Tx) error {
		if err := p.grace(tx); err != nil {
			return err
		}
		return event(tx, "plane", "plane.clock_jump", map[string]any{"by_ms": by.Milliseconds(), "stopped_ms": stopped.Milliseconds()})
	})
	if err != nil {
		return err
	}
	p.watch.reset(p.Clock())
	if stopped > 0 {
		p.watch.awake()
	}
	p.counts.add("clock_jumps", "", 1)
	p.log.Warn("the clock was set, or the process stood still; leases are given one more time", "by", by, "still", stopped)
	return nil
}

// loop does what is due, and sleeps until something is.
func (p *Plane) loop() {
	retry := firstRetry
	scan := time.Time{}
	for p.life.Err() == nil {
		p.watch.mu.Lock()
		p.watch.next = time.Time{}
		p.watch.mu.Unlock()
		whole := time.Since(scan) >= scanEvery
		next, err := p.sweep(p.life, whole)
		p.watch.awake()
		if err != nil {
			if p.life.Err() != nil || errors.Is(err, journal.ErrClosed) {
				return
			}
			p.log.Error("the plane waits for the store", "err", err, "wait", retry)
			p.sleep(retry)
			retry = min(2*retry, lastRetry)
			continue
		}
		if whole {
			scan = time.Now()
		}
		retry = firstRetry
		p.until(next)
	}
}

// until waits until the clock says next, something changes, or the plane is closed.
func (p *Plane) until(next time.Time) {
	now := p.Clock()
	wait := p.look()
	if !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	p.watch.mu.Lock()
	p.watch.next = now.Add(wait)
	p.watch.mu.Unlock()
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.attention:
	case <-p.life.Done():
	}
}

// sleep waits for d, after an error.
func (p *Plane) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.life.Done():
	}
}

// overdue is a run that is due, as it was read: what is done about it holds only while the
// row is still that one.
type overdue struct {
	run     string
	version int64
	kind    EventKind
}

// sweep does all that is due now, and returns when there is more to do: the zero time if
// nothing is known of. With whole it also looks at every run in a state that has a lease,
// whatever the index of what is due says.
func (p *Plane) sweep(ctx context.Context, whole bool) (next time.Time, err error) {
	if err := p.settleClock(ctx); err != nil {
		return time.Time{}, err
	}
	p.watch.awake()
	p.watch.follow(p.Clock(), p.TTL/4)
	if whole {
		if err := p.scan(ctx); err != nil {
			return time.Time{}, err
		}
	}
	for again := true; again; {
		if next, again, err = p.sweepRuns(ctx); err != nil {
			return time.Time{}, err
		}
	}
	more, err := p.sweepOthers(ctx)
	return earlier(next, more), err
}

// sweepRuns goes once through the runs that are due, in pages of the index, and reports
// whether something was done: more may be due because of it.
func (p *Plane) sweepRuns(ctx context.Context) (next time.Time, did bool, err error) {
	after, last := int64(-1), ""
	for {
		var list []overdue
		n := 0
		var upcoming time.Time
		if err := p.store.View(ctx, func(tx journal.Tx) error {
			list, n, upcoming = nil, 0, time.Time{}
			var runs []string
			hold, err := heldUntil(tx)
			if err != nil {
				return err
			}
			now := tx.Now()
			if err := tx.Query(`SELECT run, due_at, id FROM dispatch WHERE due_at <= $1 AND (due_at, id) > ($2, $3) ORDER BY due_at, id LIMIT $4`,
				func(scan func(...any) error) error {
					var run string
					err := scan(&run, &after, &last)
					runs = append(runs, run)
					return err
				}, now.UnixMilli(), after, last, int64(sweepPage)); err != nil {
				return err
			}
			n = len(runs)
			for _, run := range runs {
				h, err := p.load(tx, "", run)
				if err != nil {
					return err
				}
				o, at := p.dueOf(h, now, hold)
				if o.kind != "" {
					list = append(list, o)
				} else {
					upcoming = earlier(upcoming, at)
				}
			}
			if n < sweepPage {
				var at *int64
				err := tx.Query(`SELECT min(due_at) FROM dispatch WHERE due_at > $1`, func(scan func(...any) error) error { return scan(&at) }, now.UnixMilli())
				upcoming = earlier(upcoming, fromMilli(at))
				return err
			}
			return nil
		}); err != nil {
			return time.Time{}, false, err
		}
		next = earlier(next, upcoming)
		p.watch.awake()
		done, err := p.tell(ctx, list)
		if err != nil {
			return time.Time{}, false, err
		}
		did = did || done > 0
		if n < sweepPage {
			return next, did, nil
		}
	}
}

// dueOf is what the plane must tell a run now, or when it will have to.
func (p *Plane) dueOf(h *held, now, hold time.Time) (o overdue, at time.Time) {
	at, kind := Due(h.snap, p.Stall)
	if kind == "" {
		return overdue{}, time.Time{}
	}
	// What is judged by time that has passed waits while nobody knows how much has.
	judged := kind == OnLeaseExpired || kind == OnStalled || kind == OnRecoveryStarted && h.run.proof == NoProof
	if judged && at.Before(hold) {
		at = hold
	}
	if at.After(now) {
		return overdue{}, at
	}
	return overdue{h.run.run, h.run.version, kind}, at
}

// tell tells runs what is due, in one transaction, or each in one of its own when one of
// them breaks it. It returns how many were told.
func (p *Plane) tell(ctx context.Context, list []overdue) (did int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	did, err = p.tellAll(ctx, list)
	if err == nil || ofStore(err) || len(list) == 1 && !errors.Is(err, ErrStaleRow) && !errors.Is(err, errJumped) {
		if err != nil && !ofStore(err) {
			p.log.Error("a run cannot be moved on", "run", list[0].run, "event", list[0].kind, "err", err)
			return 0, nil
		}
		return did, err
	}
	if errors.Is(err, errJumped) {
		return 0, nil // the next sweep begins with that
	}
	for _, o := range list {
		n, err := p.tellAll(ctx, []overdue{o})
		switch {
		case ofStore(err):
			return did, err
		case err != nil && !errors.Is(err, ErrStaleRow):
			p.log.Error("a run cannot be moved on", "run", o.run, "event", o.kind, "err", err)
		case err == nil:
			did += n
		}
	}
	return did, nil
}

// ofStore reports whether err is about the store, so that another run would meet it too.
func ofStore(err error) bool {
	for _, e := range []error{journal.ErrFull, journal.ErrClosed, journal.ErrUnknownCommit, journal.ErrCorrupt, journal.ErrScarce, journal.ErrBusy, journal.ErrTooLong, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (p *Plane) tellAll(ctx context.Context, list []overdue) (did int, err error) {
	told := make(map[EventKind]int)
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		did = 0
		clear(told)
		if p.jumped() {
			return errJumped
		}
		hold, err := heldUntil(tx)
		if err != nil {
			return err
		}
		for _, o := range list {
			h, err := p.load(tx, "", o.run)
			if err != nil {
				return err
			}
			if h.run.version != o.version {
				continue // it has moved on
			}
			if now, _ := p.dueOf(h, tx.Now(), hold); now.kind != o.kind {
				continue
			}
			e := p.own(h, o.kind)
			if e.Adopt {
				if e.Adopt, err = worthAdopting(tx, h); err != nil {
					return err
				}
			}
			fault, err := p.apply(tx, h, e)
			if err != nil {
				return err
			}
			if fault != nil {
				p.log.Error("a run cannot be moved on", "run", o.run, "event", o.kind, "err", fault)
				continue
			}
			told[o.kind]++
			did++
		}
		return nil
	})
	if err == nil {
		failpoint.Here("plane.swept")
		for kind, n := range told {
			p.counts.add("swept", string(kind), n)
		}
	}
	return did, err
}

// own is an event of the plane's own about h.
func (p *Plane) own(h *held, kind EventKind) Event {
	e := Event{Kind: kind, Recover: p.Recover, Stall: p.Stall}
	switch kind {
	case OnReconciled:
		if e.Adopt = h.run.lateResult != 0; e.Adopt && h.run.late != nil {
			e.Class = Class(h.run.late.Class)
		}
	}
	return e
}

// worthAdopting reports whether the late result of h's run should count. One that claims
// success without the declared files cannot be verified, so while a new run may follow the
// loss of this one's worker, that is what comes of it.
func worthAdopting(tx journal.Tx, h *held) (bool, error) {
	d := &h.snap.Delegation
	if h.run.late == nil || !h.run.late.Succeeded || d.Cancel || d.Budget[WorkerLost] <= d.Used[WorkerLost] {
		return true, nil
	}
	as := *h
	as.run.result = h.run.late
	_, missing, err := returned(tx, &as)
	return len(missing) == 0, err
}

// scan looks at every run in a state that has a lease, by the state, and moves on those
// that the index of what is due does not lead to: a lease that is not there is an invariant
// that somebody has broken.
func (p *Plane) scan(ctx context.Context) error {
	last := ""
	for {
		var list []overdue
		n := 0
		if err := p.store.View(ctx, func(tx journal.Tx) error {
			list, n = nil, 0
			now := tx.Now()
			hold, err := heldUntil(tx)
			if err != nil {
				return err
			}
			var runs []string
			if err := tx.Query(`SELECT run, id FROM dispatch WHERE state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED', 'RECOVERING') AND id > $1
					AND (due_at IS NULL OR lease_until IS NULL OR worker IS NULL OR fence IS NULL OR boot IS NULL OR due_at > lease_until) ORDER BY id LIMIT $2`,
				func(scan func(...any) error) error {
					var run string
					err := scan(&run, &last)
					runs = append(runs, run)
					return err
				}, last, int64(sweepPage)); err != nil {
				return err
			}
			n = len(runs)
			for _, run := range runs {
				h, err := p.load(tx, "", run)
				if err != nil {
					return err
				}
				if o, _ := p.dueOf(h, now, hold); o.kind != "" {
					list = append(list, o)
				}
			}
			return nil
		}); err != nil {
			return err
		}
		p.watch.awake()
		if _, err := p.tell(ctx, list); err != nil {
			return err
		}
		if n < sweepPage {
			return p.forget(ctx)
		}
	}
}

// forget deletes the seconds that have passed of those in which runs begin.
func (p *Plane) forget(ctx context.Context) error {
	passed, any := p.Clock().Add(-time.Minute).Unix(), false
	if err := p.store.View(ctx, func(tx journal.Tx) (err error) {
		any, err = exists(tx, `SELECT count(*) FROM start_slot WHERE second < $1`, passed)
		return err
	}); err != nil || !any {
		return err
	}
	return p.store.Update(ctx, func(tx journal.Tx) error {
		_, err := tx.Exec(`DELETE FROM start_slot WHERE second < $1`, passed)
		return err
	})
}

// sweepOthers looks after verifications, wakes workers for runs whose time to begin has
// come, and returns when there is more of either.
func (p *Plane) sweepOthers(ctx context.Context) (next time.Time, err error) {
	waiting := p.offers.implementations()
	type offer struct {
		implementation string
		capabilities   []string
	}
	var ready []offer
	var due, verifications, everything bool
	if err := p.store.View(ctx, func(tx journal.Tx) error {
		ready, next = nil, time.Time{}
		now := tx.Now().UnixMilli()
		var verification *int64
		if err := tx.Query(`SELECT min(due_at) FROM verification WHERE due_at IS NOT NULL`, func(scan func(...any) error) error { return scan(&verification) }); err != nil {
			return err
		}
		at := fromMilli(verification)
		due = !at.IsZero() && at.UnixMilli() <= now
		if !due {
			next = at
		}
		// Those that have become due since the last look, and where the next ones are.
		since := now - (look + time.Second).Milliseconds()
		var offered, later, grants *int64
		if err := tx.Query(`SELECT (SELECT grants_at FROM plane WHERE id = 1), (SELECT max(not_before) FROM verification WHERE state = 'WAITING' AND not_before <= $1 AND not_before > $2),
				(SELECT min(not_before) FROM verification WHERE state = 'WAITING' AND not_before > $1)`,
			func(scan func(...any) error) error { return scan(&grants, &offered, &later) }, now, since); err != nil {
			return err
		}
		verifications, next = offered != nil, earlier(next, fromMilli(later))
		if begins := fromMilli(grants); begins.UnixMilli() > now {
			next = earlier(next, begins)
		} else {
			everything = begins.UnixMilli() > since
		}
		for _, implementation := range waiting {
			var begins *int64
			if err := tx.Query(`SELECT min(not_before) FROM dispatch WHERE state = 'DISPATCHED' AND implementation = $1 AND not_before > $2`,
				func(scan func(...any) error) error { return scan(&begins) }, implementation, now); err != nil {
				return err
			}
			next = earlier(next, fromMilli(begins))
			if err := tx.Query(`SELECT x.implementation, d.capabilities FROM dispatch x JOIN delegation d ON d.id = x.delegation
					WHERE x.state = 'DISPATCHED' AND x.implementation = $1 AND x.not_before <= $2 AND x.not_before > $3 AND x.attempt > 1 ORDER BY x.not_before, x.id LIMIT $4`,
				func(scan func(...any) error) error {
					var o offer
					var capabilities string
					if err := scan(&o.implementation, &capabilities); err != nil {
						return err
					}
					var err error
					o.capabilities, err = listed(capabilities)
					ready = append(ready, o)
					return err
				}, implementation, now, since, int64(sweepPage)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return time.Time{}, err
	}
	switch {
	case everything:
		p.offers.all("")
	case verifications:
		p.offers.all(ops.Verifier)
	}
	for _, o := range ready {
		p.offers.work(o.implementation, o.capabilities)
	}
	if !due {
		return next, nil
	}
	n := 0
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		n, err = p.sweepVerifications(tx, tx.Now())
		return err
	})
	if n > 0 {
		next = p.Clock() // there may be more
	}
	if f := (*ops.Fault)(nil); errors.As(err, &f) {
		p.log.Error("verifications cannot be moved on", "err", err)
		err = nil
	}
	return next, err
}
