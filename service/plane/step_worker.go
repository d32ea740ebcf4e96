package plane

import (
	"slices"
	"time"

	"inband/ops"
)

// grant gives the run to a worker, under a fence that no lease of the delegation has had.
func (t *turn) grant() *ops.Fault {
	if t.ending() {
		return ops.Faultf(ops.Conflict, "the delegation is to end as cancelled")
	}
	r := &t.Run
	r.Fence = t.mint()
	t.Delegation.LastFence = r.Fence
	r.State, r.Worker, r.Boot = Leased, t.e.Worker, t.e.Boot
	r.Started, r.CancelAcked, r.Proof, r.Class, r.Reason = false, false, NoProof, "", ""
	r.CancelDeadline, r.RecoverAt, r.LateResult, r.LateSucceeded = time.Time{}, time.Time{}, 0, false
	r.LeaseUntil, r.ProgressAt = time.Time{}, t.now
	t.extend()
	return nil
}

// termBits is where the term of a fence begins: term << 32 | counter.
const termBits = 32

// mint is the next fence: the first of the term, or the one after the last.
func (t *turn) mint() int64 {
	next := t.e.Term<<termBits | 1
	if last := t.Delegation.LastFence; !t.holds(greaterFence, next > last) {
		next = last + 1
	}
	return next
}

// extend lengthens the lease; it never shortens it. A lease ends with the deadline, and
// that of a run that is to stop with the wait for its proof.
func (t *turn) extend() {
	until, end := t.now.Add(t.e.Lease), t.Run.Deadline
	if t.Run.State == CancelRequested {
		end = t.Run.CancelDeadline
	}
	if !t.holds(cappedLease, !until.After(end)) {
		until = end
	}
	if until.After(t.Run.LeaseUntil) {
		t.Run.LeaseUntil = until
	}
}

// started lets the worker begin, once it hears of it. So of a run that is LEASED nothing
// has begun.
func (t *turn) started() *ops.Fault {
	t.Run.State, t.Run.Started, t.Run.ProgressAt = Running, true, t.now
	t.extend()
	return nil
}

// heartbeat extends the lease of a worker whose command lives. The lease of a command
// that is dead ends: a keeper that outlives it keeps nobody else waiting.
func (t *turn) heartbeat() *ops.Fault {
	t.progress()
	if t.e.Alive || t.Run.State == Leased {
		t.extend()
	} else if t.Run.State != CancelRequested {
		t.lose("command_dead")
	}
	return nil
}

func (t *turn) progress() {
	if t.e.Progress > t.Run.Progress {
		t.Run.Progress, t.Run.ProgressAt = t.e.Progress, t.now
	}
}

func (t *turn) checkpoint() *ops.Fault {
	t.Run.State = Checkpointed
	t.progress()
	t.extend()
	return nil
}

// tooLate keeps what a worker says that has been told to stop.
func (t *turn) tooLate() *ops.Fault {
	t.add(Effect{Do: Keep, Reason: "cancel_requested"})
	return nil
}

// result takes the worker's result. That it succeeded is its claim and opens a
// verification; while anything that it did outside is unproven it cannot claim it.
func (t *turn) result() *ops.Fault {
	if t.e.Succeeded {
		if f := t.check(allProven); f != nil {
			return f
		}
		t.Run.Proof = Ended
		t.succeed()
		return nil
	}
	class, f := failure(t.e.Class)
	if f != nil {
		return f
	}
	if t.Run.Class != "" { // It was told to stop, and failed of that.
		class = t.Run.Class
	}
	t.Run.Proof = Ended
	t.fail(class, "worker_failed")
	return nil
}

// failure is the class that a worker may give its failure, task_failed if it gives none.
func failure(c Class) (Class, *ops.Fault) {
	if c == "" {
		return TaskFailed, nil
	}
	if c == InvalidResult || !slices.Contains(Classes(), c) {
		return "", ops.Faultf(ops.InvalidParams, "a worker's run cannot fail as %q", c).With("final", true)
	}
	return c, nil
}

// humanWait ends the lease of a run that cannot go on without a person. Its worker has
// ended the command before it says so.
func (t *turn) humanWait() *ops.Fault {
	t.Run.Proof = Ended
	t.wait("human_wait")
	return nil
}

func (t *turn) cancelAck() *ops.Fault {
	t.Run.CancelAcked = true
	return nil
}

// cancelFailed is no proof and no end: the run is UNKNOWN at the cancel deadline.
func (t *turn) cancelFailed() *ops.Fault {
	t.alert("cancel_failed")
	return nil
}

// cancelProof is the owner's tombstone.
func (t *turn) cancelProof() *ops.Fault {
	t.Run.Proof = Tombstone
	return t.cancelled()
}

// abandoning is the last word of a worker that ends before its run.
func (t *turn) abandoning() *ops.Fault {
	if t.e.Live == 0 {
		t.Run.Proof = Ended
	}
	t.lose("abandoned")
	return nil
}

// intended counts a change outside that is about to be tried. The row with its key is
// written in the same transaction, and is unique for good.
func (t *turn) intended() *ops.Fault {
	t.Unproven++
	return nil
}

func (t *turn) proved() *ops.Fault {
	if t.Unproven == 0 {
		return ops.Faultf(ops.Conflict, "no change outside of this run is unproven")
	}
	t.Unproven--
	return nil
}

// attestedLate looks again at a result that lacked evidence.
func (t *turn) attestedLate() *ops.Fault {
	if t.Delegation.State == EvidenceMissing {
		t.judge()
	}
	return nil
}
