package plane

import (
	"time"

	"inband/ops"
)

// lose makes a run UNKNOWN: its lease is over, and nobody knows whether it runs.
//
// It is recovered at once if it is proved that it does not. Without a proof it is
// recovered by itself only where something follows from that (a new run that it has a
// budget for, the question to a person), and not before its worker has had the time to
// stop by itself: decision 0015. Otherwise it stays UNKNOWN until there is contact.
func (t *turn) lose(reason string) {
	r := &t.Run
	if r.Class == "" && !t.now.Before(r.Deadline) {
		r.Class = Window
	}
	lapses := t.now
	if r.LeaseUntil.After(lapses) {
		lapses = r.LeaseUntil
	}
	r.State, r.Reason, r.RecoverAt = Unknown, reason, time.Time{}
	switch {
	case r.Proof != NoProof:
		r.RecoverAt = t.now
	case t.Delegation.Cancel || t.Unproven > 0 || t.left(t.lostAs()) > 0:
		r.RecoverAt = lapses.Add(t.e.Recover)
	default:
		t.alert("unknown")
	}
}

// lostAs is the class that a lost run fails as: why it was told to stop, else that it
// was lost.
func (t *turn) lostAs() Class {
	if c := t.Run.Class; c != "" {
		return c
	}
	return WorkerLost
}

// neverBegun is the proof that lies in a start that was never acknowledged.
func (t *turn) neverBegun() {
	if t.Run.Proof == NoProof && t.holds(notBegun, !t.Run.Started) {
		t.Run.Proof = NeverStarted
	}
}

func (t *turn) expired() *ops.Fault {
	t.neverBegun()
	t.lose("lease_expired")
	return nil
}

// missing is for a row that says it is leased and has no lease: something has broken the
// store's rules, so nothing else that the row says proves anything.
func (t *turn) missing() *ops.Fault {
	r := t.Run
	if !r.LeaseUntil.IsZero() && r.Fence != 0 && r.Worker != "" && r.Boot != "" {
		return ops.Faultf(ops.Conflict, "the run has its lease")
	}
	t.lose("lease_missing")
	t.alert("lease_missing")
	return nil
}

// rebooted ends the leases of a worker's earlier boot. Nothing is waited for: the boot
// is over, whatever it may have left.
func (t *turn) rebooted() *ops.Fault {
	if f := t.newer(); f != nil {
		return f
	}
	t.vouched()
	if !t.e.Reported || t.e.Live == 0 {
		t.neverBegun()
	}
	t.lose("worker_rebooted")
	return nil
}

// reported is a later boot's word of a run that is lost already.
func (t *turn) reported() *ops.Fault {
	if f := t.newer(); f != nil {
		return f
	}
	t.vouched()
	return t.contact()
}

// newer checks that a boot is a later one of the run's worker.
func (t *turn) newer() *ops.Fault {
	if t.e.Worker != t.Run.Worker || t.e.Boot == "" || t.e.Boot == t.Run.Boot {
		return ops.Faultf(ops.Conflict, "this is no later boot of the run's worker")
	}
	return nil
}

// vouched takes a later boot's word that nothing of the run is alive.
func (t *turn) vouched() {
	switch {
	case t.e.Reported && t.holds(nobodyLeft, t.e.Live == 0):
		t.Run.Proof = NewBoot
	case t.e.Reported:
		t.alert("left_alive")
	}
}

// restored is for leases of a store that has been set back, or whose term has. The
// worker may have been told things that the store does not know, its start included, so
// that it never started is not proved by the row. It may count on its lease for as long
// as a lease is.
func (t *turn) restored() *ops.Fault {
	if until := t.now.Add(t.e.Lease); until.After(t.Run.LeaseUntil) {
		t.Run.LeaseUntil = until
	}
	t.lose("restored")
	return nil
}

// stop tells the worker to stop and gives it time to prove that it has.
func (t *turn) stop(grace time.Duration, reason string) {
	r := &t.Run
	if grace <= 0 {
		grace = t.Delegation.Grace
	}
	r.State, r.Reason, r.CancelDeadline = CancelRequested, reason, t.now.Add(grace)
	if r.LeaseUntil.After(r.CancelDeadline) {
		r.LeaseUntil = r.CancelDeadline
	}
}

// stalled stops a run that shows life and no progress, be it only towards its start.
func (t *turn) stalled() *ops.Fault {
	t.Run.Class = WorkerLost
	t.stop(t.e.Grace, "stalled")
	t.alert("stalled")
	return nil
}

// deadline stops a run whose time is used up. Its lease, which ended with that, goes on
// for as long as it may take to stop.
func (t *turn) deadline() *ops.Fault {
	t.Run.Class = Window
	t.stop(t.e.Grace, "deadline_exceeded")
	t.Run.LeaseUntil = t.Run.CancelDeadline
	return nil
}

func (t *turn) nobodyCame() *ops.Fault {
	if t.Run.Proof == NoProof {
		t.Run.Proof = NeverStarted
	}
	t.fail(Window, "deadline_exceeded")
	return nil
}

func (t *turn) unacknowledged() *ops.Fault {
	t.neverBegun()
	t.lose("cancel_deadline_passed")
	t.alert("cancel_deadline_passed")
	return nil
}

// cancel makes the delegation end as cancelled, for good. What its run does about it
// depends on who has it.
func (t *turn) cancel() *ops.Fault {
	d, r := &t.Delegation, &t.Run
	d.Cancel = true
	if t.e.Grace > 0 {
		d.Grace = t.e.Grace
	}
	switch {
	case r.State == Dispatched:
		if r.Proof == NoProof {
			r.Proof = NeverStarted
		}
		return t.cancelled()
	case r.State == CancelRequested:
		if sooner := t.now.Add(d.Grace); sooner.Before(r.CancelDeadline) {
			r.CancelDeadline = sooner
			if r.LeaseUntil.After(sooner) {
				r.LeaseUntil = sooner
			}
		}
	case r.State.HasLease():
		t.stop(0, "cancelled")
	case r.State == Unknown:
		if r.RecoverAt.IsZero() {
			r.RecoverAt = t.now.Add(t.e.Recover)
		}
	case r.State == WaitingHuman:
		if r.Proof != NoProof {
			return t.cancelled()
		}
	case r.State != Recovering:
		t.endCancelled()
	}
	return nil
}

// recover begins to put together what is known: once its time has come, or when a person
// wants it.
func (t *turn) recover() *ops.Fault {
	r := &t.Run
	waited := !r.RecoverAt.IsZero() && !t.now.Before(r.RecoverAt)
	if !t.holds(waitedFor, waited || t.e.Person) {
		return ops.Faultf(ops.Conflict, "the worker may still be there; nothing is recovered before %s", r.RecoverAt)
	}
	r.State = Recovering
	return nil
}

// reconcile decides what became of a lost run. What its owner has said too late may be
// adopted; nothing follows by itself while anything outside is unproven, and nothing is
// CANCELLED without a proof: then a person is asked.
func (t *turn) reconcile() *ops.Fault {
	r := &t.Run
	if !t.holds(waitedFor, r.Proof != NoProof || !t.now.Before(r.RecoverAt)) {
		return ops.Faultf(ops.Conflict, "the worker may still be there; nothing is decided before %s", r.RecoverAt)
	}
	switch {
	case t.e.Adopt && r.LateResult == 0:
		return ops.Faultf(ops.Conflict, "there is no late result to adopt")
	case t.Delegation.Cancel && !t.holds(provenDead, r.Proof != NoProof):
		t.wait("cancel_unproven")
	case t.Delegation.Cancel && !t.e.Adopt:
		return t.cancelled()
	case !t.holds(noneUnproven, t.Unproven == 0):
		r.Class = UnknownExternal
		t.wait("unproven")
	case t.e.Adopt:
		return t.adopt()
	default:
		t.fail(t.lostAs(), r.Reason)
	}
	return nil
}

// adopt lets the late result of the run's own worker count.
func (t *turn) adopt() *ops.Fault {
	if t.Run.LateSucceeded {
		t.succeed()
		return nil
	}
	class, f := failure(t.e.Class)
	if f != nil { // Nobody could have told its worker.
		class = TaskFailed
	}
	t.fail(class, "worker_failed")
	return nil
}

// evidence takes notice of a callback that came too late and was kept. Nothing that it
// says counts by itself; but that its own worker speaks of a lost run is contact, and a
// tombstone is a proof whenever it comes.
func (t *turn) evidence() *ops.Fault {
	r := &t.Run
	own := t.e.Worker == r.Worker && t.e.Boot == r.Boot && t.e.Fence == r.Fence
	if !own || r.State != Unknown && r.State != Recovering && r.State != WaitingHuman {
		return nil
	}
	switch {
	case t.e.Of == OnResult:
		r.LateResult, r.LateSucceeded = t.e.Evidence, t.e.Succeeded
		r.Proof = Ended
	case t.e.Of == OnCancelProof && t.holds(nobodyLeft, t.e.Live == 0 && t.e.Checks >= enough):
		r.Proof = Tombstone
	case (t.e.Of == OnAbandoning || t.e.Of == OnHumanWait) && t.e.Live == 0:
		r.Proof = Ended
	}
	return t.contact()
}

// contact goes on with a lost run that has been proved to be over.
func (t *turn) contact() *ops.Fault {
	r := &t.Run
	switch {
	case r.Proof == NoProof:
	case r.State == Unknown || r.State == Recovering:
		r.RecoverAt = t.now
	case r.State == WaitingHuman && t.Delegation.Cancel:
		return t.cancelled()
	}
	return nil
}

// wait lets a person say how it goes on.
func (t *turn) wait(why string) {
	t.Run.State, t.Run.Reason = WaitingHuman, why
	t.add(Effect{Do: Ask, Reason: why})
}

// resolve is a person's word on a run that waits for it.
func (t *turn) resolve() *ops.Fault {
	r := &t.Run
	switch t.e.Resolution {
	case Resume:
		if f := t.check(allProven, timeAhead); f != nil {
			return f
		}
		if t.Delegation.Cancel {
			return ops.Faultf(ops.Conflict, "the delegation is to end as cancelled; its run can only fail")
		}
		r.State, r.Class, r.Reason = Dispatched, "", "resumed"
	case Fail:
		t.fail(HumanBlocker, "given_up")
	case Adopt:
		if f := t.check(allProven); f != nil {
			return f
		}
		if r.LateResult == 0 {
			return ops.Faultf(ops.Conflict, "there is no late result to adopt")
		}
		return t.adopt()
	default:
		return ops.Faultf(ops.InvalidParams, "a run that waits is resolved by %s, %s or %s", Resume, Fail, Adopt)
	}
	return nil
}

// mutationResolved takes a person's word on a change outside. What waited for the last
// one goes on.
func (t *turn) mutationResolved() *ops.Fault {
	if t.Unproven == 0 {
		return ops.Faultf(ops.Conflict, "no change outside of this run is unproven")
	}
	if t.Unproven--; t.Unproven > 0 || t.Delegation.Closed || t.Run.Attempt != t.Delegation.Attempts {
		return nil
	}
	switch r := &t.Run; {
	case r.State == WaitingHuman && r.Reason == "unproven":
		r.State, r.Class, r.RecoverAt = Recovering, "", t.now
	case r.State == Failed || r.State == Cancelled:
		t.follow(r.Class)
	}
	return nil
}
