package plane

import (
	"testing"
	"time"

	"inband/ops"
)

// TestStepCases tells the cases of the plane (testdata/plane-cases.json) as far as Step
// decides them.
func TestStepCases(t *testing.T) {
	for id, tell := range map[string]func(*testing.T){
		"pb-001 a run without a lease": func(t *testing.T) {
			s := running(t, DefaultBudget())
			s.refused(Event{Kind: OnLeaseMissing}, ops.Conflict)
			s.Run.LeaseUntil = time.Time{}
			s.does(Event{Kind: OnLeaseMissing, Recover: wait}).is(Unknown, Open).after(wait).does(Event{Kind: OnRecoveryStarted}).is(Recovering, Open)
		},
		"pb-004 a lost worker spends its own budget": func(t *testing.T) {
			s := running(t, Budget{WorkerLost: 2, TaskFailed: 0}).recovered().is(Dispatched, Open).has(NewRun)
			if s.Delegation.Used[WorkerLost] != 1 || s.Delegation.Used[TaskFailed] != 0 || s.Run.Attempt != 2 {
				t.Errorf("run %d, used %v", s.Run.Attempt, s.Delegation.Used)
			}
		},
		"pb-005 nothing runs again after cancel": func(t *testing.T) {
			s := running(t, nil).does(Event{Kind: OnCancelRequested})
			for _, k := range []EventKind{OnHeartbeat, OnCheckpoint, OnHeartbeat} {
				s.says(k).is(CancelRequested, Open)
			}
			s.refused(s.word(OnHumanWait), ops.Conflict)
			s.refused(s.word(OnMutationIntended), ops.Conflict)
		},
		"pb-006 heartbeats do not outlive the deadline": func(t *testing.T) {
			s := running(t, nil)
			for s.now.Add(10 * time.Second).Before(s.Run.Deadline) {
				s.after(10 * time.Second).says(OnHeartbeat)
			}
			if !s.Run.LeaseUntil.Equal(s.Run.Deadline) {
				t.Errorf("the lease ends at %s, and the deadline is %s", s.Run.LeaseUntil, s.Run.Deadline)
			}
			if at, kind := Due(s.Snapshot, 0); kind != OnDeadlinePassed || !at.Equal(s.Run.Deadline) {
				t.Errorf("due is %s at %s", kind, at)
			}
			s.now = s.Run.Deadline
			s.does(Event{Kind: OnDeadlinePassed}).is(CancelRequested, Open).hasNo(LeaseEnded).after(time.Second).says(OnHeartbeat)
			if s.Run.Reason != "deadline_exceeded" || s.Run.LeaseUntil.After(s.Run.CancelDeadline) {
				t.Errorf("it is to stop for %q, and its lease ends %s after the wait for that", s.Run.Reason, s.Run.LeaseUntil.Sub(s.Run.CancelDeadline))
			}
			s.now = s.Run.CancelDeadline
			s.does(Event{Kind: OnCancelDeadline}).is(Unknown, Open).has(LeaseEnded)
			s.refused(Event{Kind: OnLeaseExpired}, ops.Conflict)
		},
		"pb-007 nothing is run again while the outside is unproven": func(t *testing.T) {
			s := running(t, DefaultBudget()).says(OnMutationIntended).recovered().is(WaitingHuman, Open).has(Ask).hasNo(NewRun)
			s.refused(Event{Kind: OnHumanResolved, Resolution: Resume}, ops.Unproven)
			s.refused(Event{Kind: OnRetryDemanded}, ops.Unproven)
			s.does(Event{Kind: OnMutationResolved}).is(Recovering, Open).does(Event{Kind: OnReconciled}).is(Dispatched, Open).has(NewRun)
		},
		"pb-015 a result that comes too late is adopted by reconciliation only": func(t *testing.T) {
			s := running(t, DefaultBudget())
			result := s.word(OnResult, succeeded)
			s.now = s.Run.LeaseUntil
			s.does(Event{Kind: OnLeaseExpired}).has(LeaseEnded).late(result).is(Unknown, Open)
			s.does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled, Adopt: true}).is(Succeeded, Verifying).hasNo(LeaseEnded)
		},
		"pb-020 exhausted means used up": func(t *testing.T) {
			s := running(t, Budget{WorkerLost: 3})
			for n := range 3 {
				s.recovered().is(Dispatched, Open)
				if s.Run.Attempt != n+2 {
					t.Errorf("run %d follows %d", s.Run.Attempt, n+1)
				}
				s.does(grantedTo("a", "b1")).says(OnStarted)
			}
			s.says(OnAbandoning).does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled}).is(Exhausted, DelegationExhausted)
		},
		"pb-022 a kill that fails is no cancellation": func(t *testing.T) {
			s := running(t, nil).does(Event{Kind: OnCancelRequested}).says(OnCancelFailed).is(CancelRequested, Open).has(Alert)
			s.now = s.Run.CancelDeadline
			s.does(Event{Kind: OnCancelDeadline}).is(Unknown, Open).has(Alert)
			s.now = s.Run.RecoverAt
			s.does(Event{Kind: OnRecoveryStarted}).is(Recovering, Open)
		},
		"pb-023 what nobody has is cancelled at once": func(t *testing.T) {
			s := spawned(t, nil).does(Event{Kind: OnCancelRequested}).is(Cancelled, DelegationCancelled)
			s.refused(grantedTo("a", "b1"), ops.Conflict)
		},
		"pb-024 life without progress": func(t *testing.T) {
			s := running(t, DefaultBudget())
			stalled := Event{Kind: OnStalled, Stall: time.Minute}
			for range 5 {
				s.after(10*time.Second).says(OnHeartbeat, func(e *Event) { e.Progress = 0 })
			}
			s.refused(stalled, ops.Conflict)
			s.after(10 * time.Second).says(OnHeartbeat)
			if at, kind := Due(s.Snapshot, time.Minute); kind != OnStalled || at.After(s.now) {
				t.Errorf("due is %s at %s", kind, at)
			}
			s.does(stalled).is(CancelRequested, Open).has(Alert)
		},
		"pb-026 a proof that names a process is none": func(t *testing.T) {
			s := running(t, nil).does(Event{Kind: OnCancelRequested})
			s.refused(s.word(OnCancelProof, func(e *Event) { e.Live = 1 }), ops.Unproven)
			s.is(CancelRequested, Open).says(OnCancelProof).is(Cancelled, DelegationCancelled)
		},
		"pb-027 another boot": func(t *testing.T) {
			s := running(t, DefaultBudget()).does(Event{Kind: OnWorkerRebooted, Worker: "a", Boot: "b2"}).is(Unknown, Open).has(LeaseEnded)
			s.refused(s.word(OnHeartbeat, func(e *Event) { e.Boot = "b2" }), ops.StaleFence)
		},
		"pb-035 an old lease says nothing of a new one": func(t *testing.T) {
			s := running(t, DefaultBudget())
			old := s.word(OnResult, succeeded)
			s.recovered().does(grantedTo("b", "b1")).says(OnStarted)
			s.refused(old, ops.StaleFence)
			s.is(Running, Open)
		},
		"pb-036 as many runs as the budget has": func(t *testing.T) {
			s := running(t, Budget{WorkerLost: 4})
			for s.Run.Attempt < 5 {
				s.recovered().does(grantedTo("a", "b1")).says(OnStarted)
			}
			s.does(Event{Kind: OnWorkerRebooted, Worker: "a", Boot: "b2", Reported: true}).does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled})
			s.is(Exhausted, DelegationExhausted)
			if s.Delegation.Attempts != 5 {
				t.Errorf("%d runs", s.Delegation.Attempts)
			}
		},
		"pb-040 a lease that lapsed before its worker heard of it": func(t *testing.T) {
			s := spawned(t, nil).does(grantedTo("a", "b1")).after(ttl)
			if f := s.refused(s.word(OnStarted), ops.StaleFence); f.Details["reason"] != "lease_expired" {
				t.Errorf("the reason is %v", f.Details["reason"])
			}
			s.does(Event{Kind: OnLeaseExpired})
			if s.Run.Proof != NeverStarted {
				t.Errorf("the proof is %q", s.Run.Proof)
			}
		},
		"pb-041 a keeper whose command is dead": func(t *testing.T) {
			running(t, DefaultBudget()).says(OnHeartbeat, func(e *Event) { e.Alive = false }).is(Unknown, Open).has(LeaseEnded)
		},
		"pb-043 a partition and a reboot": func(t *testing.T) {
			s := running(t, Budget{}) // Nothing would follow by itself.
			s.now = s.Run.LeaseUntil
			s.does(Event{Kind: OnLeaseExpired}).is(Unknown, Open)
			if at, kind := Due(s.Snapshot, 0); !at.IsZero() {
				t.Errorf("%s is due at %s", kind, at)
			}
			s.after(24*time.Hour).refused(Event{Kind: OnRecoveryStarted}, ops.Conflict)
			s.does(Event{Kind: OnWorkerRebooted, Worker: "a", Boot: "b2", Reported: true}).does(Event{Kind: OnRecoveryStarted}).is(Recovering, Open)
			if s.Run.Proof != NewBoot {
				t.Errorf("the proof is %q", s.Run.Proof)
			}
		},
		"pb-046 cancel before the next run begins": func(t *testing.T) {
			running(t, DefaultBudget()).recovered().is(Dispatched, Open).does(Event{Kind: OnCancelRequested}).is(Cancelled, DelegationCancelled).hasNo(NewRun)
		},
		"pb-055 a worker that leaves says so": func(t *testing.T) {
			s := running(t, DefaultBudget()).says(OnAbandoning).is(Unknown, Open).has(LeaseEnded)
			s.does(Event{Kind: OnRecoveryStarted}).does(Event{Kind: OnReconciled}).is(Dispatched, Open)
			s = running(t, DefaultBudget()).says(OnAbandoning, func(e *Event) { e.Live = 2 }).is(Unknown, Open)
			s.refused(Event{Kind: OnRecoveryStarted}, ops.Conflict)
		},
	} {
		t.Run(id, tell)
	}
}
