package timers

import (
	"context"
	"time"

	"inband/ops"
	"inband/service/journal"
)

// Pause has the timer id be due no more until it is resumed. What was queued waits as
// well. One that is paused stays so; one that has ended is a Conflict.
func (t *Timers) Pause(ctx context.Context, by ops.Identity, id string) (TimerShowing, error) {
	return t.change(ctx, by, id, func(tx journal.Tx, f *firing) error {
		if f.tm.state == "paused" {
			return nil
		}
		f.tm.state, f.tm.due, f.tm.next = "paused", time.Time{}, time.Time{}
		if err := f.tm.keep(tx); err != nil {
			return err
		}
		return event(tx, id, "timer.paused", map[string]any{"timer": id, "by": by})
	})
}

// Resume has the timer id be due again from now on. What was due while it was paused is
// not missed: nobody wanted it. One that is active stays so; one that has ended is a
// Conflict.
func (t *Timers) Resume(ctx context.Context, by ops.Identity, id string) (TimerShowing, error) {
	return t.change(ctx, by, id, func(tx journal.Tx, f *firing) error {
		if f.tm.state == "active" {
			return nil
		}
		s, fault := f.tm.read()
		if fault != nil {
			return fault
		}
		f.tm.state = "active"
		f.tm.due, f.tm.next = f.tm.after(s, tx.Now())
		if err := event(tx, id, "timer.resumed", map[string]any{"timer": id, "by": by}); err != nil {
			return err
		}
		return f.done()
	})
}

// RunNow has the timer id wake its agent at once, beside its schedule, paused or not. It
// counts as a run. While the last one's wake is open it is queued or allowed as the timer
// says, and where that is "skip" it is a Conflict; so is a timer that has ended.
func (t *Timers) RunNow(ctx context.Context, by ops.Identity, id string) (TimerShowing, error) {
	return t.change(ctx, by, id, func(tx journal.Tx, f *firing) error {
		open, held, err := f.open()
		if err != nil {
			return err
		}
		if held {
			return ops.Faultf(ops.Conflict, "its agent is stopped, and the wake of its last run, %s, waits for a start", f.tm.lastWake).With("wake", f.tm.lastWake)
		}
		if open && f.tm.overlap == "skip" {
			return ops.Faultf(ops.Conflict, "the wake of its last run, %s, is still open, and the timer lets no two run at a time", f.tm.lastWake).With("wake", f.tm.lastWake)
		}
		if f.tm.queued >= MaxQueue && f.tm.overlap == "queue" {
			return ops.Faultf(ops.Busy, "%d runs of it wait already", f.tm.queued).With("max", MaxQueue)
		}
		if f.spent() {
			return ops.Faultf(ops.Conflict, "it runs %d times at most, and the last of them waits already", f.tm.maxRuns)
		}
		now := tx.Now()
		if err := f.occur(run{now, now}, by.ID); err != nil {
			return err
		}
		return f.done()
	})
}

// change has an operator do something to a timer that has not ended, and returns the
// timer as it is then. For others it does not exist unless they may see it.
func (t *Timers) change(ctx context.Context, by ops.Identity, id string, do func(journal.Tx, *firing) error) (TimerShowing, error) {
	var told tally
	var s TimerShowing
	err := t.store.Update(ctx, func(tx journal.Tx) error {
		told = tally{}
		f, err := t.firing(tx, id, &told)
		if err != nil {
			return err
		}
		if !t.manages(by) {
			if sees, err := t.sees(tx, by, f.tm); err != nil || !sees {
				return orUnknown(err, id)
			}
			return ops.Faultf(ops.NotPermitted, "%s may not pause, resume or run timers; operators may", by)
		}
		if f.tm.state == "ended" {
			return ops.Faultf(ops.Conflict, "timer %s has ended: %s", id, f.tm.reason)
		}
		if err := do(tx, f); err != nil {
			return err
		}
		s, err = show(tx, id)
		return err
	})
	if err != nil {
		return TimerShowing{}, err
	}
	t.counts.add(told)
	return s, nil
}

func orUnknown(err error, id string) error {
	if err != nil {
		return err
	}
	return unknownTimer(id)
}
