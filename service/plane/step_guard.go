package plane

import (
	"time"

	"inband/ops"
)

// guard names a condition that Step insists on. Each has a mutant in the tests, a Step
// that goes on without it, and the checker shows what that leads to.
type guard string

// The guards of worker events, in the order in which they are looked at.
const (
	sameWorker guard = "owner"    // the run's worker
	sameBoot   guard = "boot"     // in the life that it took the lease in
	sameFence  guard = "fence"    // under the fence of the lease
	liveLease  guard = "lease"    // which is live, at the store's clock
	inSequence guard = "sequence" // the message after the last one
	inChain    guard = "chain"    // which names it
)

// The guards of rules.
const (
	stillOpen       guard = "open"        // the delegation is not closed
	latestRun       guard = "current"     // the run is its latest
	timeHasCome     guard = "due"         // its time has come
	ableWorker      guard = "capable"     // the worker may and can
	timeAhead       guard = "ahead"       // there is time before the deadline
	filesStored     guard = "stored"      // what it names is durable and attested
	allProven       guard = "proven"      // no change outside is left of which nobody knows
	nobodyLeft      guard = "nobody_left" // the proof names nothing alive
	anotherIdentity guard = "other"       // the verdict is somebody else's than the producer's
)

// The conditions that Step looks at on its way.
const (
	cappedLease    guard = "capped"        // no lease outlives the deadline
	greaterFence   guard = "minted"        // a fence is greater than every one before it
	notBegun       guard = "begun"         // a run that has begun did not never start
	provenDead     guard = "dead"          // CANCELLED has a proof
	waitedFor      guard = "patient"       // without a proof nothing is recovered before its time
	inBudget       guard = "in_budget"     // a new run is one of the budget of its class
	usedUp         guard = "used_up"       // EXHAUSTED has no new run left
	verifierPassed guard = "verified"      // COMPLETED has a verifier's passed
	notCancelled   guard = "not_cancelled" // nothing is begun again that is to end
	noneUnproven   guard = "unproven"      // no new run while anything outside is unproven
)

// guards lists them all.
func guards() []guard {
	return []guard{sameWorker, sameBoot, sameFence, liveLease, inSequence, inChain, stillOpen, latestRun, timeHasCome, ableWorker, timeAhead, filesStored, allProven, nobodyLeft, anotherIdentity,
		cappedLease, greaterFence, notBegun, provenDead, waitedFor, inBudget, usedUp, verifierPassed, notCancelled, noneUnproven}
}

// holds reports whether g holds: ok, or it is the one that is left out.
func (t *turn) holds(g guard, ok bool) bool { return ok || g == t.without }

// check looks at guards, in order, and returns the fault of the first that does not hold.
func (t *turn) check(gs ...guard) *ops.Fault {
	for _, g := range gs {
		if g == t.without {
			continue
		}
		if f := checks[g](t); f != nil {
			return f
		}
	}
	return nil
}

var checks = map[guard]func(*turn) *ops.Fault{
	sameWorker: func(t *turn) *ops.Fault {
		if t.e.Worker == "" || t.e.Worker != t.Run.Worker {
			return t.stale("wrong_worker", "the run is not this worker's")
		}
		return nil
	},
	sameBoot: func(t *turn) *ops.Fault {
		if t.e.Boot == "" || t.e.Boot != t.Run.Boot {
			return t.stale("stale_boot", "the run was leased to another boot of this worker")
		}
		return nil
	},
	sameFence: func(t *turn) *ops.Fault {
		if t.e.Fence != t.Run.Fence {
			return t.stale("stale_fence", "the fence of the run is %d", t.Run.Fence)
		}
		return nil
	},
	liveLease: func(t *turn) *ops.Fault {
		if t.e.Kind == OnArtifactAttested && t.Run.State == Succeeded && !t.Delegation.Closed {
			return nil // An attestation decides nothing, and may be what the verifier lacks.
		}
		if !t.Run.State.HasLease() {
			return t.stale("no_lease", "the run is %s, its lease is over", t.Run.State)
		}
		if !t.now.Before(t.Run.LeaseUntil) {
			return t.stale("lease_expired", "the lease has lapsed")
		}
		return nil
	},
	inSequence: func(t *turn) *ops.Fault {
		switch next := t.Run.Seq + 1; {
		case t.e.Seq > next:
			return ops.Faultf(ops.OutOfSequence, "message %d comes before message %d", next, t.e.Seq).With("expected", next)
		case t.e.Seq < next:
			t.add(Effect{Do: Keep, Reason: "other_message"})
			return ops.Faultf(ops.OutOfSequence, "message %d was another one", t.e.Seq).With("expected", next).With("final", true)
		}
		return nil
	},
	inChain: func(t *turn) *ops.Fault {
		if t.e.Prev != t.Run.Prev {
			t.add(Effect{Do: Keep, Reason: "other_chain"})
			return ops.Faultf(ops.OutOfSequence, "message %d does not follow the one that was accepted before it", t.e.Seq).
				With("expected", t.Run.Seq+1).With("final", true)
		}
		return nil
	},
	stillOpen: func(t *turn) *ops.Fault {
		if t.Delegation.Closed {
			return ops.Faultf(ops.Conflict, "the delegation is closed as %s", t.Delegation.State).With("state", t.Delegation.State)
		}
		return nil
	},
	latestRun: func(t *turn) *ops.Fault {
		if t.Run.Attempt != t.Delegation.Attempts {
			return ops.Faultf(ops.Conflict, "run %d is not the latest of the delegation, which is %d", t.Run.Attempt, t.Delegation.Attempts)
		}
		return nil
	},
	timeHasCome: func(t *turn) *ops.Fault {
		if at := t.dueAt(); at.IsZero() || t.now.Before(at) {
			return ops.Faultf(ops.Conflict, "it is not time for %s", t.e.Kind)
		}
		return nil
	},
	ableWorker: func(t *turn) *ops.Fault {
		if !t.e.Capable || t.e.Worker == "" || t.e.Boot == "" || t.e.Lease <= 0 {
			return ops.Faultf(ops.Conflict, "this worker cannot have the run")
		}
		return nil
	},
	timeAhead: func(t *turn) *ops.Fault {
		if !t.now.Before(t.Run.Deadline) {
			return ops.Faultf(ops.Conflict, "the deadline of the run has passed; nobody can take it any more")
		}
		return nil
	},
	filesStored: func(t *turn) *ops.Fault {
		if !t.e.Stored {
			return ops.Faultf(ops.NoEvidence, "a file that is named is not uploaded and attested; do that, then say this again")
		}
		return nil
	},
	allProven: func(t *turn) *ops.Fault {
		if t.Unproven > 0 {
			return ops.Faultf(ops.Unproven, "nobody knows what became of %d changes outside; prove them first", t.Unproven)
		}
		return nil
	},
	nobodyLeft: func(t *turn) *ops.Fault {
		if t.e.Live > 0 {
			return ops.Faultf(ops.Unproven, "%d processes are alive, so this proves nothing; end them, then say this again", t.e.Live)
		}
		if t.e.Checks < enough {
			return ops.Faultf(ops.Unproven, "look at least %d times and find nothing, then say this again", enough)
		}
		return nil
	},
	anotherIdentity: func(t *turn) *ops.Fault {
		if t.e.Verdict == Lacking && t.e.Worker == "" {
			return nil // The plane itself sees that a declared file is not there.
		}
		if t.e.Worker == "" || t.e.Worker == t.Run.Worker {
			return ops.Faultf(ops.NotPermitted, "a run is verified by somebody else than its worker")
		}
		return nil
	},
}

// stale refuses a callback that has no authority; it is kept.
func (t *turn) stale(reason, format string, args ...any) *ops.Fault {
	t.add(Effect{Do: Keep, Reason: reason})
	return ops.Faultf(ops.StaleFence, format+"; stop", args...).With("reason", reason).With("final", true)
}

// dueAt is when the plane's own event may come, zero: never in this state.
func (t *turn) dueAt() time.Time {
	r := t.Run
	switch t.e.Kind {
	case OnLeaseExpired:
		return r.LeaseUntil
	case OnCancelDeadline:
		return r.CancelDeadline
	case OnDeadlinePassed:
		if r.State != Dispatched && r.LeaseUntil.Before(r.Deadline) {
			return time.Time{} // The lease lapsed before, and that comes first.
		}
		return r.Deadline
	case OnStalled:
		return r.ProgressAt.Add(t.e.Stall)
	}
	return time.Time{}
}
