package plane

import (
	"reflect"
	"testing"
	"time"

	"inband/ops"
)

// The principles of plane.md, as far as Step decides them.

func TestPrinciple1_NothingIsClaimedThatIsNotRecorded(t *testing.T) {
	s := running(t, DefaultBudget())
	if s.effects[0].Do != Record {
		t.Errorf("the first effect of a step is %v", s.effects[0])
	}
	used := Budget{WorkerLost: 1}
	s.Delegation.Used = used
	s.recovered().has(NewRun).has(Record)
	if used[WorkerLost] != 1 {
		t.Error("a step has changed what it was given")
	}
	s.refused(s.word(OnStarted), ops.StaleFence)
}

func TestPrinciple2_ADispatchIsGrantedOnItsTerms(t *testing.T) {
	s := spawned(t, nil)
	e := grantedTo("a", "b1")
	e.Capable = false
	s.refused(e, ops.Conflict)
	s.after(time.Hour).refused(grantedTo("a", "b1"), ops.Conflict)
	s.now = epoch
	s.does(grantedTo("a", "b1")).is(Leased, Open)
	if s.Run.Fence != 1<<32|1 || s.Delegation.LastFence != s.Run.Fence {
		t.Errorf("the first fence of term 1 is %d, and the delegation's last %d", s.Run.Fence, s.Delegation.LastFence)
	}
	s.refused(grantedTo("b", "b1"), ops.Conflict)
}

func TestPrinciple3_ALeaseIsARowWithAFence(t *testing.T) {
	s := running(t, nil).after(10 * time.Second)
	for what, wrong := range map[string]func(*Event){
		"worker": func(e *Event) { e.Worker = "b" },
		"boot":   func(e *Event) { e.Boot = "b2" },
		"fence":  func(e *Event) { e.Fence-- },
	} {
		if f := s.refused(s.word(OnHeartbeat, wrong), ops.StaleFence); f.Details["final"] != true {
			t.Errorf("another %s: %v", what, f)
		}
		s.has(Keep)
	}
	s.says(OnHeartbeat)
	if want := s.now.Add(ttl); !s.Run.LeaseUntil.Equal(want) {
		t.Errorf("the lease ends at %s, want %s", s.Run.LeaseUntil, want)
	}
	s.now = s.Run.LeaseUntil
	for _, k := range []EventKind{OnHeartbeat, OnCheckpoint, OnResult, OnCancelProof} {
		s.late(s.word(k)).is(Running, Open) // The sweep has not been there; the lease has lapsed all the same.
	}
}

func TestPrinciple4_CallbacksAreAChain(t *testing.T) {
	s := running(t, nil).says(OnHeartbeat)
	if f := s.refused(s.word(OnHeartbeat, func(e *Event) { e.Seq++ }), ops.OutOfSequence); f.Details["expected"] != s.Run.Seq+1 || f.Details["final"] != nil {
		t.Errorf("behind a gap: %v", f.Details)
	}
	s.hasNo(Keep)
	if f := s.refused(s.word(OnHeartbeat, func(e *Event) { e.Seq-- }), ops.OutOfSequence); f.Details["final"] != true {
		t.Errorf("another message of the last number: %v", f.Details)
	}
	s.has(Keep)
	s.refused(s.word(OnHeartbeat, func(e *Event) { e.Prev = "elsewhere" }), ops.OutOfSequence)
	s.has(Keep)
	s.says(OnHeartbeat)
}

func TestPrinciple5_WithoutAttestationNothingIsEvidence(t *testing.T) {
	s := running(t, nil)
	missing := func(e *Event) { e.Stored = false }
	s.refused(s.word(OnCheckpoint, missing), ops.NoEvidence)
	s.refused(s.word(OnResult, succeeded, missing), ops.NoEvidence)
	s.says(OnCheckpoint).is(Checkpointed, Open).says(OnResult, succeeded).is(Succeeded, Verifying)
	// What the verifier lacks may still be attested, and is then looked at again.
	s.does(Event{Kind: OnVerdict, Verdict: Lacking}).is(Succeeded, EvidenceMissing)
	s.says(OnArtifactAttested).is(Succeeded, Verifying).has(Verify)
}

func TestPrinciple6_CancelledIsProved(t *testing.T) {
	cancel := Event{Kind: OnCancelRequested}
	t.Run("tombstone", func(t *testing.T) {
		s := running(t, DefaultBudget()).does(cancel).is(CancelRequested, Open)
		s.says(OnCancelAck).says(OnCheckpoint).is(CancelRequested, Open)
		s.refused(s.word(OnCancelProof, func(e *Event) { e.Live = 1 }), ops.Unproven)
		s.refused(s.word(OnCancelProof, func(e *Event) { e.Checks = 1 }), ops.Unproven)
		s.says(OnCancelProof).is(Cancelled, DelegationCancelled).has(Close).has(LeaseEnded)
	})
	t.Run("no word", func(t *testing.T) {
		s := running(t, DefaultBudget()).does(cancel)
		s.now = s.Run.CancelDeadline
		s.does(Event{Kind: OnCancelDeadline}).is(Unknown, Open).has(Alert)
		s.now = s.Run.RecoverAt
		s.does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled}).is(WaitingHuman, Open).has(Ask)
		// A person can end it, but not as cancelled.
		other := *s
		other.does(Event{Kind: OnHumanResolved, Resolution: Fail}).is(Exhausted, DelegationExhausted)
		// A proof is one whenever it comes.
		s.late(s.word(OnCancelProof)).is(Cancelled, DelegationCancelled)
	})
	t.Run("new boot", func(t *testing.T) {
		s := running(t, DefaultBudget()).does(cancel)
		s.does(Event{Kind: OnWorkerRebooted, Worker: "a", Boot: "b2", Reported: true}).is(Unknown, Open)
		s.does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled}).is(Cancelled, DelegationCancelled)
		if s.Run.Proof != NewBoot {
			t.Errorf("the proof is %q", s.Run.Proof)
		}
	})
	t.Run("raced by a result", func(t *testing.T) {
		running(t, DefaultBudget()).does(cancel).says(OnResult, succeeded).is(Succeeded, DelegationCancelled).hasNo(Verify)
		running(t, DefaultBudget()).does(cancel).says(OnResult).is(Failed, DelegationCancelled).hasNo(NewRun)
		running(t, DefaultBudget()).says(OnResult, succeeded).does(cancel).is(Succeeded, DelegationCancelled).has(DropVerify)
	})
}

func TestPrinciple7_RetriesFollowTheClass(t *testing.T) {
	for _, c := range Classes() {
		t.Run(string(c), func(t *testing.T) {
			s := fails(t, Budget{c: 1}, c).is(Dispatched, Open)
			if s.Run.Attempt != 2 || s.Delegation.Used[c] != 1 {
				t.Errorf("run %d, used %v", s.Run.Attempt, s.Delegation.Used)
			}
			end, run := DelegationExhausted, Exhausted
			switch c {
			case InvalidResult:
				end, run = VerificationFailed, Succeeded
			case Window:
				run = Cancelled
			}
			all := Budget{}
			for _, other := range Classes() {
				all[other] = MaxRetries
			}
			all[c] = 0 // The budgets of the others are not for it.
			if s := fails(t, all, c); c == WorkerLost {
				s.is(Unknown, Open).has(Alert) // Nothing would follow, so nothing is decided without contact.
			} else {
				s.is(run, end).hasNo(NewRun)
			}
		})
	}
	t.Run("unproven", func(t *testing.T) {
		s := running(t, Budget{WorkerLost: 2, UnknownExternal: 2, TaskFailed: 2}).says(OnMutationIntended).says(OnResult).is(Failed, Open).has(Ask).hasNo(NewRun)
		s.does(Event{Kind: OnMutationResolved}).is(Dispatched, Open)
	})
}

// fails is a delegation whose first run has failed as c, in the way that runs do.
func fails(t *testing.T, b Budget, c Class) *story {
	t.Helper()
	s := running(t, b)
	switch c {
	case WorkerLost:
		s.now = s.Run.LeaseUntil
		if s.does(Event{Kind: OnLeaseExpired}); s.Run.RecoverAt.IsZero() {
			return s
		}
		s.now = s.Run.RecoverAt
		return s.does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled})
	case Window:
		s.Run.LeaseUntil, s.now = s.Run.Deadline, s.Run.Deadline
		return s.does(Event{Kind: OnDeadlinePassed}).is(CancelRequested, Open).says(OnCancelProof)
	case HumanBlocker:
		return s.says(OnHumanWait).is(WaitingHuman, Open).does(Event{Kind: OnHumanResolved, Resolution: Fail})
	case InvalidResult:
		return s.says(OnResult, succeeded).does(Event{Kind: OnVerdict, Worker: "v", Verdict: Refused})
	case UnknownExternal:
		s.says(OnMutationIntended).says(OnResult)
		if s.Delegation.Closed {
			return s
		}
		return s.does(Event{Kind: OnMutationResolved})
	default:
		return s.says(OnResult)
	}
}

func TestPrinciple8_OnlyAVerifierCompletes(t *testing.T) {
	s := running(t, DefaultBudget()).says(OnResult, succeeded).is(Succeeded, Verifying).has(Verify)
	passed := Event{Kind: OnVerdict, Worker: "a", Verdict: Passed}
	s.refused(passed, ops.NotPermitted)
	passed.Worker = ""
	s.refused(passed, ops.NotPermitted)
	passed.Worker = "v"
	tell := func(es ...Event) *story {
		one := *s
		for _, e := range es {
			one.does(e)
		}
		return &one
	}
	tell(passed).is(Succeeded, Completed).has(Close)
	tell(Event{Kind: OnVerdict, Worker: "v", Verdict: Refused}).is(Dispatched, Open)
	tell(Event{Kind: OnVerdict, Worker: "v", Verdict: Lacking}).is(Succeeded, EvidenceMissing).hasNo(Close)
	tell(Event{Kind: OnVerifierAbsent}).is(Succeeded, VerifierUnavailable).hasNo(Close)
	tell(Event{Kind: OnVerifierAbsent}, passed).is(Succeeded, Completed)
	tell(Event{Kind: OnVerifierAbsent}, Event{Kind: OnVerifyClosed}).is(Succeeded, VerifierUnavailable).has(Close)
	tell(Event{Kind: OnVerdict, Verdict: Lacking}, Event{Kind: OnVerifyClosed}).is(Succeeded, EvidenceMissing).has(Close)
	tell(Event{Kind: OnVerdict, Verdict: Lacking}, Event{Kind: OnVerifyAgain}).is(Succeeded, Verifying).has(Verify)
}

func TestPrinciple9_StepSeesNoSecrets(t *testing.T) {
	for _, v := range []any{Event{}, Run{}, Delegation{}, Effect{}, Snapshot{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if f.Type == reflect.TypeFor[ops.CredentialRef]() || f.Type == reflect.TypeFor[[]byte]() {
				t.Errorf("%T has %s, which could hold what nobody may read", v, f.Name)
			}
		}
	}
}

func TestPrinciple10_WhatHasNoLeaseIsNotResumed(t *testing.T) {
	s := running(t, DefaultBudget())
	s.Run.LeaseUntil = time.Time{}
	if _, kind := Due(s.Snapshot, 0); kind != OnLeaseMissing {
		t.Errorf("what is due of a run without a lease is %q", kind)
	}
	s.does(Event{Kind: OnLeaseMissing}).is(Unknown, Open).has(Alert)
	// While the plane is off, nobody's lease is extended.
	s = running(t, DefaultBudget()).after(time.Second)
	until := s.Run.LeaseUntil
	if s.says(OnHeartbeat, func(e *Event) { e.Lease = 0 }); !s.Run.LeaseUntil.Equal(until) {
		t.Errorf("the lease was moved from %s to %s", until, s.Run.LeaseUntil)
	}
}
