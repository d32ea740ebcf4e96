package plane

import (
	"maps"
	"slices"
	"time"

	"inband/ops"
)

// Step says what event does to a run and its delegation: the snapshot afterwards and
// what else must be done with it, in the same transaction. It is pure; times are the
// store's. A fault means that the event is refused: the snapshot is returned as it was,
// and what remains of the event is Keep, if anything.
//
// The rules stand in step_rules.go, one for each event and the states that it is for;
// the guards, by name, in step_guard.go.
func Step(s Snapshot, e Event, now time.Time) (Snapshot, []Effect, *ops.Fault) {
	return step(s, e, now, "")
}

// step is Step without one guard. That is for the checker of the tests, which shows of
// every guard what happens when it is not there.
func step(s Snapshot, e Event, now time.Time, without guard) (Snapshot, []Effect, *ops.Fault) {
	t := &turn{Snapshot: s, e: e, now: now, without: without}
	t.Delegation.Used = maps.Clone(s.Delegation.Used)
	fault := t.take()
	if fault != nil {
		return s, slices.DeleteFunc(t.effects, func(f Effect) bool { return f.Do != Keep }), fault
	}
	if e.Kind.Callback() {
		t.Run.Seq, t.Run.Prev = e.Seq, e.Digest
	}
	if s.Run.State.HasLease() && !t.Run.State.HasLease() {
		t.Run.LeaseUntil, t.Run.CancelDeadline = time.Time{}, time.Time{}
		t.add(Effect{Do: LeaseEnded})
	}
	return t.Snapshot, append([]Effect{{Do: Record}}, t.effects...), nil
}

// turn is one step on its way.
type turn struct {
	Snapshot
	e       Event
	now     time.Time
	without guard
	effects []Effect
}

// take finds the rule and follows it.
func (t *turn) take() *ops.Fault {
	if t.e.Kind.Callback() {
		if f := t.check(sameWorker, sameBoot, sameFence, liveLease, inSequence, inChain); f != nil {
			return f
		}
	}
	for _, r := range rules {
		if r.on != t.e.Kind || !slices.Contains(r.in, t.Run.State) {
			continue
		}
		if f := t.check(r.need...); f != nil {
			return f
		}
		return r.do(t)
	}
	return ops.Faultf(ops.Conflict, "the run is %s, in which there is no %s", t.Run.State, t.e.Kind).With("state", t.Run.State)
}

func (t *turn) add(e Effect) { t.effects = append(t.effects, e) }

func (t *turn) alert(what string) { t.add(Effect{Do: Alert, Reason: what}) }

// left is how many new runs may still follow failures of class c. None may follow in a
// delegation that is to end as cancelled.
func (t *turn) left(c Class) int {
	if t.ending() {
		return 0
	}
	return t.Delegation.Budget[c] - t.Delegation.Used[c]
}

// ending reports whether somebody has cancelled the delegation.
func (t *turn) ending() bool { return !t.holds(notCancelled, !t.Delegation.Cancel) }

// enough is how many times an owner must have looked, and found nothing alive, for its
// tombstone to count. Between two looks a process cannot have been born unseen.
const enough = 2

// Due says what the plane itself must tell Step of next, and when: the earliest of what
// the snapshot waits for. stall is how long a run may show no progress, 0: for ever. A
// zero time means that only somebody else can move it on.
func Due(s Snapshot, stall time.Duration) (at time.Time, kind EventKind) {
	r := s.Run
	if s.Delegation.Closed {
		return time.Time{}, ""
	}
	if r.State.HasLease() && (r.LeaseUntil.IsZero() || r.Fence == 0 || r.Worker == "" || r.Boot == "") {
		return time.Unix(0, 0).UTC(), OnLeaseMissing
	}
	earlier := func(t time.Time, k EventKind) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at, kind = t, k
		}
	}
	switch r.State {
	case Dispatched:
		earlier(r.Deadline, OnDeadlinePassed)
	case Leased, Running, Checkpointed:
		// A lease that reaches the deadline was capped there; it has not lapsed.
		earlier(r.Deadline, OnDeadlinePassed)
		earlier(r.LeaseUntil, OnLeaseExpired)
		if stall > 0 {
			earlier(r.ProgressAt.Add(stall), OnStalled)
		}
	case CancelRequested:
		earlier(r.CancelDeadline, OnCancelDeadline)
		earlier(r.LeaseUntil, OnLeaseExpired)
	case Unknown:
		earlier(r.RecoverAt, OnRecoveryStarted)
	case Recovering:
		at, kind = r.RecoverAt, OnReconciled
		if at.IsZero() {
			at = time.Unix(0, 0).UTC()
		}
	}
	return at, kind
}
