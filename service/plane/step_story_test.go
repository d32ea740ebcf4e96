package plane

import (
	"slices"
	"testing"
	"time"

	"inband/ops"
)

// story is a delegation, told step by step.
type story struct {
	t *testing.T
	Snapshot
	now     time.Time
	effects []Effect
}

const (
	ttl   = 30 * time.Second
	grace = 20 * time.Second
	wait  = 25 * time.Second
)

// spawned is a delegation of which nobody has taken the run yet; its deadline is in an
// hour.
func spawned(t *testing.T, b Budget) *story {
	t.Helper()
	return &story{t: t, now: epoch, Snapshot: Snapshot{Delegation: Delegation{State: Open, Attempts: 1, Budget: b, Grace: grace},
		Run: Run{Attempt: 1, State: Dispatched, Deadline: epoch.Add(time.Hour)}}}
}

// running is one whose run worker a has begun.
func running(t *testing.T, b Budget) *story {
	t.Helper()
	return spawned(t, b).does(grantedTo("a", "b1")).says(OnStarted)
}

func grantedTo(to ops.IdentityID, boot string) Event {
	return Event{Kind: OnLeaseGranted, Worker: to, Boot: boot, Lease: ttl, Capable: true, Term: 1}
}

// after lets time pass.
func (s *story) after(d time.Duration) *story {
	s.now = s.now.Add(d)
	return s
}

// does is an event that is accepted. A new run that follows takes the old one's place.
func (s *story) does(e Event) *story {
	s.t.Helper()
	if e.Recover == 0 {
		e.Recover = wait
	}
	after, effects, fault := Step(s.Snapshot, e, s.now)
	if fault != nil {
		s.t.Fatalf("%s of a run %s: %s", e.Kind, s.Run.State, fault)
	}
	s.Snapshot, s.effects = after, effects
	if f, ok := s.effect(NewRun); ok {
		s.Run = Run{Attempt: f.Attempt, State: Dispatched, Deadline: s.now.Add(time.Hour)}
	}
	return s
}

// word is what the run's own worker says next.
func (s *story) word(k EventKind, with ...func(*Event)) Event {
	e := Event{Kind: k, Worker: s.Run.Worker, Boot: s.Run.Boot, Fence: s.Run.Fence, Seq: s.Run.Seq + 1, Prev: s.Run.Prev, Digest: "sha256:" + string(k),
		Lease: ttl, Recover: wait, Alive: true, Stored: true, Checks: enough}
	for _, f := range with {
		f(&e)
	}
	return e
}

func (s *story) says(k EventKind, with ...func(*Event)) *story {
	s.t.Helper()
	return s.does(s.word(k, with...))
}

func succeeded(e *Event) { e.Succeeded = true }

// refused is an event that changes nothing; the fault is returned.
func (s *story) refused(e Event, code ops.Code) *ops.Fault {
	s.t.Helper()
	after, effects, fault := Step(s.Snapshot, e, s.now)
	if fault == nil {
		s.t.Fatalf("%s of a run %s was accepted, and it is %s", e.Kind, s.Run.State, after.Run.State)
	}
	if fault.Code != code {
		s.t.Fatalf("%s of a run %s: %s, want %s", e.Kind, s.Run.State, fault, code)
	}
	if after.Run != s.Run {
		s.t.Fatalf("%s was refused and has changed the run: %+v, was %+v", e.Kind, after.Run, s.Run)
	}
	if slices.ContainsFunc(effects, func(f Effect) bool { return f.Do != Keep }) {
		s.t.Fatalf("%s was refused and has effects: %v", e.Kind, effects)
	}
	s.effects = effects
	return fault
}

// late is a callback that comes too late: refused, kept, and taken notice of.
func (s *story) late(e Event) *story {
	s.t.Helper()
	if f := s.refused(e, ops.StaleFence); f.Details["final"] != true {
		s.t.Fatalf("%s is stale and not final: %v", e.Kind, f.Details)
	}
	if _, kept := s.effect(Keep); !kept {
		s.t.Fatalf("%s is stale and is not kept", e.Kind)
	}
	return s.does(Event{Kind: OnEvidenceRecorded, Of: e.Kind, Evidence: 7, Worker: e.Worker, Boot: e.Boot, Fence: e.Fence, Succeeded: e.Succeeded, Live: e.Live, Checks: e.Checks})
}

func (s *story) effect(do Do) (Effect, bool) {
	i := slices.IndexFunc(s.effects, func(f Effect) bool { return f.Do == do })
	if i < 0 {
		return Effect{}, false
	}
	return s.effects[i], true
}

// is checks where the run and its delegation stand.
func (s *story) is(run State, d DelegationState) *story {
	s.t.Helper()
	if s.Run.State != run || s.Delegation.State != d {
		s.t.Fatalf("the run is %s (%s) in a delegation %s, want %s in %s", s.Run.State, s.Run.Reason, s.Delegation.State, run, d)
	}
	return s
}

// has checks that the last step has an effect.
func (s *story) has(do Do) *story {
	s.t.Helper()
	if _, ok := s.effect(do); !ok {
		s.t.Fatalf("no effect %s in %v", do, s.effects)
	}
	return s
}

func (s *story) hasNo(do Do) *story {
	s.t.Helper()
	if f, ok := s.effect(do); ok {
		s.t.Fatalf("the effect %v", f)
	}
	return s
}

// recovered is a run that is lost without a word, and taken up when its time has come.
func (s *story) recovered() *story {
	s.t.Helper()
	s.now = s.Run.LeaseUntil
	s.does(Event{Kind: OnLeaseExpired}).is(Unknown, Open)
	s.now = s.Run.RecoverAt
	return s.does(Event{Kind: OnRecoveryStarted}).is(Recovering, Open).does(Event{Kind: OnReconciled, Adopt: s.Run.LateResult != 0})
}
