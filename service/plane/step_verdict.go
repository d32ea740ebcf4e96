package plane

import "inband/ops"

// succeed takes a result. The delegation goes on with a verification, or ends as
// cancelled if that came first.
func (t *turn) succeed() {
	r := &t.Run
	r.State, r.Class, r.Reason = Succeeded, "", ""
	if t.Delegation.Cancel {
		r.Reason = "cancelled"
		t.endCancelled()
		return
	}
	t.judge()
}

// judge completes the delegation if a verifier has said passed, and asks for that if
// nobody has said anything.
func (t *turn) judge() {
	d := &t.Delegation
	if t.holds(verifierPassed, t.e.Kind == OnVerdict && t.e.Verdict == Passed) {
		t.close(Completed, "verified")
		return
	}
	d.State = Verifying
	d.Verifications++
	t.add(Effect{Do: Verify})
}

// fail ends a run that came to nothing.
func (t *turn) fail(c Class, reason string) {
	if t.Unproven > 0 {
		c = UnknownExternal
	}
	t.Run.State, t.Run.Class, t.Run.Reason = Failed, c, reason
	t.follow(c)
}

// follow is what comes after a run without a result that counts: a new run if its class
// has one left, else the end. While anything outside is unproven the new run waits.
func (t *turn) follow(c Class) {
	switch {
	case t.ending():
		t.endCancelled()
	case t.holds(usedUp, !t.holds(inBudget, t.left(c) > 0)):
		t.exhaust(c)
	case !t.holds(noneUnproven, t.Unproven == 0):
		t.add(Effect{Do: Ask, Reason: "unproven"})
	default:
		t.next(c)
	}
}

// next opens a new run under the same delegation.
func (t *turn) next(c Class) {
	d := &t.Delegation
	if d.Used == nil {
		d.Used = Budget{}
	}
	d.Used[c]++
	t.begin(c)
}

func (t *turn) begin(c Class) {
	d := &t.Delegation
	d.State = Open
	d.Attempts++
	t.add(Effect{Do: NewRun, Class: c, Attempt: d.Attempts})
}

// exhaust ends a delegation that may have no further run.
func (t *turn) exhaust(c Class) {
	if c == InvalidResult {
		t.close(VerificationFailed, string(c))
		return
	}
	if t.Run.State == Failed {
		t.Run.State = Exhausted
	}
	t.close(DelegationExhausted, string(c))
}

// cancelled ends a run that is proved to have stopped.
func (t *turn) cancelled() *ops.Fault {
	if !t.holds(provenDead, t.Run.Proof != NoProof) {
		return ops.Faultf(ops.Unproven, "nothing proves that the run has stopped")
	}
	t.Run.State = Cancelled
	t.follow(t.lostAs()) // The plane stopped it, and nobody has cancelled the work.
	return nil
}

// endCancelled closes a delegation that somebody has cancelled. A run that nobody has
// proved to have stopped cannot end as cancelled; when a person gives it up, it has
// failed, and no other follows.
func (t *turn) endCancelled() {
	if t.holds(provenDead, t.Run.Proof != NoProof) {
		t.close(DelegationCancelled, "cancelled")
		return
	}
	if t.Run.State == Failed {
		t.Run.State = Exhausted
	}
	t.close(DelegationExhausted, "cancel_unproven")
}

// close ends the delegation. A verification that is still open is dropped.
func (t *turn) close(as DelegationState, reason string) {
	d := &t.Delegation
	if d.State != Open && t.e.Kind != OnVerdict {
		t.add(Effect{Do: DropVerify, Reason: reason})
	}
	if t.Unproven > 0 {
		t.alert("unproven")
	}
	d.State, d.Closed, d.Reason = as, true, reason
	t.add(Effect{Do: Close, Close: as, Class: t.Run.Class, Reason: reason})
}

// verdict is a verifier's word.
func (t *turn) verdict() *ops.Fault {
	d := &t.Delegation
	if d.State != Verifying && d.State != VerifierUnavailable {
		return t.notNow()
	}
	switch t.e.Verdict {
	case Passed:
		t.judge()
	case Refused:
		t.follow(InvalidResult)
	case Lacking:
		d.State, d.Reason = EvidenceMissing, t.e.Reason
	default:
		return ops.Faultf(ops.InvalidParams, "a verdict is %s, %s or %s", Passed, Refused, Lacking).With("final", true)
	}
	return nil
}

// absent says that no verifier came in time. The verification is offered on.
func (t *turn) absent() *ops.Fault {
	if t.Delegation.State != Verifying {
		return t.notNow()
	}
	t.Delegation.State, t.Delegation.Reason = VerifierUnavailable, "nobody_came"
	t.alert("verifier_absent")
	return nil
}

// again asks for another verification of the same result.
func (t *turn) again() *ops.Fault {
	switch t.Delegation.State {
	case EvidenceMissing:
	case VerifierUnavailable:
		t.add(Effect{Do: DropVerify, Reason: "again"})
	default:
		return t.notNow()
	}
	t.judge()
	return nil
}

// giveUp closes a delegation that has waited long enough, as what it waited for.
func (t *turn) giveUp() *ops.Fault {
	d := t.Delegation
	if d.State != EvidenceMissing && d.State != VerifierUnavailable {
		return t.notNow()
	}
	t.close(d.State, d.Reason)
	return nil
}

// retry is a person's order to try again, beyond every budget.
func (t *turn) retry() *ops.Fault {
	d, r := &t.Delegation, &t.Run
	if t.ending() {
		return ops.Faultf(ops.Conflict, "the delegation is to end as cancelled")
	}
	switch {
	case r.State == WaitingHuman:
		r.State, r.Class, r.Reason = Failed, HumanBlocker, "retry_demanded"
	case d.State == EvidenceMissing:
	case d.State == VerifierUnavailable:
		t.add(Effect{Do: DropVerify, Reason: "retry_demanded"})
	default:
		return t.notNow()
	}
	t.begin(HumanBlocker)
	return nil
}

func (t *turn) notNow() *ops.Fault {
	return ops.Faultf(ops.Conflict, "the delegation is %s, in which there is no %s", t.Delegation.State, t.e.Kind).With("state", t.Delegation.State)
}
