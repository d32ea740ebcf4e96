package plane

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// worker speaks for the run of d, under the lease that it has when this is called.
func (c *court) worker(d string) *speech {
	h := c.held(d)
	return &speech{Grant: wire.Grant{Header: wire.Header{Delegation: d, Run: h.run.run, Dispatch: h.run.dispatch, Implementation: h.run.implementation,
		Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence}}, seq: h.run.seq, prev: h.run.prev}
}

// say hands the next message of s to the plane.
func (c *court) say(s *speech, k wire.Kind, body any) (ack wire.Ack, fault *ops.Fault) {
	c.t.Helper()
	m := s.message(c.t, k, body, false)
	c.must(func(tx journal.Tx) (err error) {
		ack, fault, err = c.plane.callback(tx, m, c.who(tx, m.Header.Worker))
		return err
	})
	if fault == nil {
		s.seq, s.prev = m.Header.Seq, m.Digest
	}
	return ack, fault
}

func (c *court) cancelled(d string, by ops.Identity, r CancelRequest) DelegationShowing {
	c.t.Helper()
	shows, err := c.plane.CancelDelegation(c.t.Context(), by, d, r)
	if err != nil {
		c.t.Fatalf("cancel %s: %v", d, err)
	}
	return shows
}

// A delegation that nobody has begun is cancelled at once, is offered to nobody, and a lease
// that is asked for afterwards is refused (pb-023).
func TestCancelDispatched(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	shows := c.cancelled(d, boss, CancelRequest{Reason: "not needed"})
	if !shows.Closed || shows.State != DelegationCancelled || shows.RunState != Cancelled || shows.Runs[0].Proof != NeverStarted || shows.CancelBy != "boss" || shows.CancelReason != "not needed" {
		t.Errorf("shown %+v", shows)
	}
	o := c.outcome(d)
	if o.State != ops.Cancelled || o.Fault.Code != ops.CallCancelled || o.Fault.Details["started"] != false || o.Fault.Details["proof"] != "never_started" {
		t.Errorf("outcome %+v", o.Fault)
	}
	for range 20 {
		c.must(func(tx journal.Tx) error {
			found, err := c.plane.find(tx, c.who(tx, "smith"))
			if len(found) > 0 {
				t.Errorf("offered: %q", found)
			}
			return err
		})
	}
	c.must(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		fault, err := c.plane.apply(tx, h, Event{Kind: OnLeaseGranted, Worker: "smith", Boot: "smith-1", Capable: true, Term: 1, Lease: time.Minute})
		if fault == nil {
			t.Error("it was leased after it was cancelled")
		}
		return err
	})
	if again := c.cancelled(d, boss, CancelRequest{}); !again.Closed {
		t.Errorf("cancelled again: %+v", again)
	}
	if len(c.told.closed) != 1 {
		t.Errorf("told %+v", c.told.closed)
	}
}

// A cancel ends the wait for the next attempt; nothing comes of it when its time is there
// (pb-046).
func TestCancelInBackoff(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x","retries":{"task_failed":3}}`)
	c.step(d, append(slices.Clone(begin), Event{Kind: OnResult, Stored: true, Class: TaskFailed})...)
	if h := c.held(d); h.run.state != Dispatched || h.run.attempt != 2 || !h.run.notBefore.After(c.clock()) {
		t.Fatalf("run %+v", h.run)
	}
	c.cancelled(d, boss, CancelRequest{})
	c.is(d, Cancelled, DelegationCancelled)
	c.pass(time.Hour)
	if _, err := c.plane.sweep(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	h := c.held(d)
	if h.run.attempt != 2 || h.delegation.attempts != 2 {
		t.Errorf("another run: %+v", h.run)
	}
	c.is(d, Cancelled, DelegationCancelled)
}

// A run that is to stop hears of it with every answer, and nothing makes it run again; only a
// proof that names nothing alive ends it (pb-005, pb-026).
func TestCancelRunning(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.step(d, begin...)
	s := c.worker(d)
	shows := c.cancelled(d, boss, CancelRequest{Grace: 20 * time.Second})
	if shows.Closed || shows.State != Open || !shows.Cancel || shows.RunState != CancelRequested || !strings.Contains(shows.Waits, "prove") {
		t.Fatalf("shown %+v", shows)
	}
	for _, m := range []struct {
		kind wire.Kind
		body any
	}{
		{wire.KindHeartbeat, wire.Heartbeat{Alive: true}}, {wire.KindCheckpoint, wire.Checkpoint{Progress: 3}}, {wire.KindCancelAck, wire.CancelAck{}},
		{wire.KindHeartbeat, wire.Heartbeat{Alive: true}}, {wire.KindCancelFailed, wire.CancelFailed{Reason: "it ignores the signal"}},
	} {
		ack, fault := c.say(s, m.kind, m.body)
		if fault != nil || !ack.Cancel || ack.State != string(CancelRequested) || ack.Reason != "cancelled" || ack.CancelMS <= 0 || ack.CancelMS > 20_000 {
			t.Errorf("%s: %+v %v", m.kind, ack, fault)
		}
	}
	for name, proof := range map[string]wire.CancelProof{
		"one lives":     {Live: []wire.Process{{PID: 7, Start: "9"}}, Checks: 5},
		"looked once":   {Checks: 1},
		"looked at all": {},
	} {
		if _, fault := c.say(s, wire.KindCancelProof, proof); fault == nil {
			t.Errorf("%s: taken as a proof", name)
		}
		c.is(d, CancelRequested, Open)
	}
	ack, fault := c.say(s, wire.KindCancelProof, wire.CancelProof{Checks: 2})
	if fault != nil || !ack.Final || ack.State != string(Cancelled) {
		t.Fatalf("proof: %+v %v", ack, fault)
	}
	c.is(d, Cancelled, DelegationCancelled)
	o := c.outcome(d)
	if o.State != ops.Cancelled || o.Fault.Details["started"] != true || o.Fault.Details["proof"] != "tombstone" {
		t.Errorf("outcome %+v", o.Fault)
	}
	if len(c.told.notes) != 1 || !strings.Contains(c.told.notes[0], "cancel_failed") {
		t.Errorf("told %q", c.told.notes)
	}
}

// A result that races a cancel is recorded, and the delegation still ends as cancelled;
// nobody is asked to verify it.
func TestCancelRacesResult(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.step(d, begin...)
	s := c.worker(d)
	c.cancelled(d, boss, CancelRequest{})
	if _, fault := c.say(s, wire.KindResult, wire.Result{Succeeded: true, Summary: "done"}); fault != nil {
		t.Fatal(fault)
	}
	c.is(d, Succeeded, DelegationCancelled)
	if o := c.outcome(d); o.State != ops.Cancelled || !strings.Contains(o.Fault.Message, "counts for nothing") {
		t.Errorf("outcome %+v", o.Fault)
	}
	if g := c.grant("judge"); g != nil {
		t.Error("a verifier was asked")
	}
}

// A run that does not prove in time that it has stopped is UNKNOWN, with an alert, and the
// delegation stays open; a person is asked, and CANCELLED needs a proof to the last
// (pb-022).
func TestCancelUnproven(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.step(d, begin...)
	s := c.worker(d)
	c.cancelled(d, boss, CancelRequest{Grace: 5 * time.Second})
	c.pass(6 * time.Second)
	if _, err := c.plane.sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.is(d, Unknown, Open)
	if !slices.Contains(c.events(d), "delegation.alert") {
		t.Errorf("events %q", c.events(d))
	}
	c.pass(c.plane.Recover + c.plane.TTL)
	for range 3 {
		if _, err := c.plane.sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	c.is(d, WaitingHuman, Open)
	// A person gives it up: it has not been proved to be cancelled, and is not said to be.
	if _, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Resolution: Fail}); err != nil {
		t.Fatal(err)
	}
	c.is(d, Exhausted, DelegationExhausted)
	if o := c.outcome(d); o.State != ops.Failed || o.Fault.Code != ops.Exhausted || !strings.Contains(o.Fault.Message, "nothing proves") {
		t.Errorf("outcome %+v", o.Fault)
	}
	if _, fault := c.say(s, wire.KindCancelProof, wire.CancelProof{Checks: 2}); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("a proof after the end: %v", fault)
	}
	c.is(d, Exhausted, DelegationExhausted)
}

// The lease ends with the deadline, whatever heartbeats; then the worker is told to stop, and
// what it does not prove is UNKNOWN. Its share is free once (pb-006).
func TestDeadlineOfRun(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x","deadline":"90s"}`)
	c.step(d, begin...)
	s := c.worker(d)
	for i := range 8 {
		c.pass(10 * time.Second)
		if ack, fault := c.say(s, wire.KindHeartbeat, wire.Heartbeat{Alive: true}); fault != nil || ack.Cancel || ack.LeaseMS > (90-10*int64(i+1))*1000 {
			t.Fatalf("heartbeat %d: %+v %v", i, ack, fault)
		}
	}
	c.pass(10 * time.Second)
	ack, fault := c.say(s, wire.KindHeartbeat, wire.Heartbeat{Alive: true})
	if fault != nil || !ack.Cancel || ack.Reason != "deadline_exceeded" {
		t.Fatalf("after the deadline: %+v %v", ack, fault)
	}
	c.is(d, CancelRequested, Open)
	c.pass(c.plane.CancelGrace + time.Second)
	if _, err := c.plane.sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.is(d, Unknown, Open)
	shows, err := c.plane.Worker(t.Context(), "smith")
	if err != nil || shows.Leases != 0 || len(shows.Holds) != 0 {
		t.Errorf("worker %+v %v", shows, err)
	}
	if _, fault := c.say(s, wire.KindHeartbeat, wire.Heartbeat{Alive: true}); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("a heartbeat of the lost run: %v", fault)
	}
}

// What the worker of an earlier attempt says counts for no later one (pb-035).
func TestEarlierAttemptSpeaks(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.step(d, begin...)
	s := c.worker(d)
	c.lose(d)
	c.is(d, Dispatched, Open)
	c.pass(10 * time.Second)
	c.step(d, begin...)
	second := c.held(d)
	for _, m := range []struct {
		kind wire.Kind
		body any
	}{{wire.KindResult, wire.Result{Succeeded: true}}, {wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 5}}} {
		if _, fault := c.say(s, m.kind, m.body); fault == nil || fault.Code != ops.StaleFence || fault.Details["final"] != true {
			t.Errorf("%s: %v, want STALE_FENCE, final", m.kind, fault)
		}
	}
	if h := c.held(d); h.run.run != second.run.run || h.run.state != Running || h.run.version != second.run.version || h.run.seq != second.run.seq {
		t.Errorf("the second run became %+v", h.run)
	}
	if got := c.evidence(d); len(got) != 2 {
		t.Errorf("evidence %q", got)
	}
	if v := c.grant("judge"); v != nil {
		t.Error("the result of the first attempt is verified")
	}
}

// A cancelled delegation is verified no longer; the verdict of who had it is evidence.
func TestCancelVerifying(t *testing.T) {
	c := newCourt(t)
	waits, held := c.returned(declared, "report.md"), c.returned(declared, "report.md")
	c.cancelled(waits, boss, CancelRequest{})
	c.is(waits, Succeeded, DelegationCancelled)
	g := c.grant("judge")
	if g == nil || g.Delegation != held {
		t.Fatalf("grant %+v", g)
	}
	c.cancelled(held, boss, CancelRequest{})
	s := speaking(g)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), true), "judge"); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("a verdict on what is cancelled: %v", fault)
	}
	c.is(held, Succeeded, DelegationCancelled)
	if v := c.verification(held); v.state != Dropped {
		t.Errorf("verification %+v", v)
	}
	lacks := c.returned(declared)
	c.cancelled(lacks, boss, CancelRequest{})
	c.is(lacks, Succeeded, DelegationCancelled)
	c.pass(48 * time.Hour)
	c.sweep()
	c.is(lacks, Succeeded, DelegationCancelled)
}

// Who waits for a person, or is UNKNOWN, can be cancelled: at once with a proof, else when
// there is one.
func TestCancelWaiting(t *testing.T) {
	c := newCourt(t)
	asks := c.spawn(`{"task":"x"}`)
	c.step(asks, append(slices.Clone(begin), Event{Kind: OnHumanWait})...)
	c.cancelled(asks, boss, CancelRequest{})
	c.is(asks, Cancelled, DelegationCancelled)

	lost := c.spawn(`{"task":"x","retries":{"worker_lost":0}}`)
	c.step(lost, begin...)
	c.pass(time.Minute)
	c.step(lost, Event{Kind: OnLeaseExpired, Recover: c.plane.Recover})
	shows := c.cancelled(lost, boss, CancelRequest{})
	if shows.Closed || shows.RunState != Unknown || !shows.Cancel {
		t.Fatalf("shown %+v", shows)
	}
	// Its worker's next boot proves that nothing is left.
	c.step(lost, Event{Kind: OnWorkerRebooted, Worker: "smith", Boot: "smith-2", Reported: true, Recover: c.plane.Recover}, Event{Kind: OnRecoveryStarted}, Event{Kind: OnReconciled})
	c.is(lost, Cancelled, DelegationCancelled)
	if o := c.outcome(lost); o.Fault.Details["proof"] != "new_boot" {
		t.Errorf("outcome %+v", o.Fault)
	}
}

// Who may cancel, and what.
func TestCancelRefused(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.by(d, asker)
	done := c.returned(`{"task":"y"}`)
	g := c.grant("judge")
	s := speaking(g)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), true), "judge"); fault != nil {
		t.Fatal(fault)
	}
	for name, tt := range map[string]struct {
		by   ops.Identity
		id   string
		r    CancelRequest
		code ops.Code
	}{
		"no such":      {boss, "d-none", CancelRequest{}, ops.NotFound},
		"a stranger's": {nosy, d, CancelRequest{}, ops.NotFound},
		"a bridge":     {herald, d, CancelRequest{}, ops.NotPermitted},
		"a worker":     {ops.Identity{ID: "smith", Role: ops.Worker}, d, CancelRequest{}, ops.NotFound},
		"nobody":       {ops.Identity{}, d, CancelRequest{}, ops.NotFound},
		"ended":        {boss, done, CancelRequest{}, ops.Conflict},
		"no grace":     {boss, d, CancelRequest{Grace: -1}, ops.BadRequest},
		"long grace":   {boss, d, CancelRequest{Grace: MaxGrace + 1}, ops.BadRequest},
		"long reason":  {boss, d, CancelRequest{Reason: strings.Repeat("x", maxReason+1)}, ops.BadRequest},
		"controls":     {boss, d, CancelRequest{Reason: "a\x00b"}, ops.BadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.plane.CancelDelegation(t.Context(), tt.by, tt.id, tt.r)
			wantCode(t, err, tt.code)
		})
	}
	c.is(d, Dispatched, Open)
	if shows := c.cancelled(d, asker, CancelRequest{}); !shows.Closed || shows.CancelBy != "asker" {
		t.Errorf("its owner's cancel: %+v", shows)
	}
}

// swarm.cancel is the same, as a call through the door; and cancelling the call that ordered
// the work cancels the work.
func TestCancelThroughDoor(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	run := func(params string) ops.Outcome {
		t.Helper()
		ticket, err := c.door.Submit(t.Context(), ops.Call{Op: "swarm.cancel", By: boss, Params: json.RawMessage(params), From: ops.Origin{Source: "api"}})
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.door.Await(t.Context(), ticket.Call)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := run(`{"delegation":"d-00000000000000000000000000"}`); o.Fault == nil || o.Fault.Code != ops.NotFound {
		t.Errorf("of none: %+v", o)
	}
	c.step(d, begin...)
	o := run(fmt.Sprintf(`{"delegation":%q,"grace":"7s"}`, d))
	if o.State != ops.Succeeded || !strings.Contains(string(o.Result.Value), `"run_state":"CANCEL_REQUESTED"`) || !strings.Contains(string(o.Result.Value), `"closed":false`) {
		t.Errorf("outcome %+v %s", o.Fault, o.Result.Value)
	}
	h := c.held(d)
	if left := h.run.cancelDeadline.Sub(c.clock()); left <= 0 || left > 7*time.Second {
		t.Errorf("%v to prove it, want at most 7s", left)
	}
	if _, fault := c.say(c.worker(d), wire.KindCancelProof, wire.CancelProof{Checks: 2}); fault != nil {
		t.Fatal(fault)
	}
	c.is(d, Cancelled, DelegationCancelled)

	other := c.spawn(`{"task":"y"}`)
	state, err := c.door.Cancel(t.Context(), boss, c.held(other).delegation.call)
	if err != nil || state != ops.Cancelled {
		t.Errorf("cancel of the call: %s %v", state, err)
	}
	c.is(other, Cancelled, DelegationCancelled)
	if o := c.outcome(other); o.State != ops.Cancelled {
		t.Errorf("outcome %+v", o)
	}
}

// Cancelling may be kept from everybody by the policy, and it is asked each time.
func TestCancelByPolicy(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.by(d, asker)
	strict, err := access.ParsePolicy("strict.cedar", []byte(`permit (principal is Operator, action, resource);
permit (principal is Agent, action == Action::"see", resource) when { context.own };`))
	if err != nil {
		t.Fatal(err)
	}
	c.plane.policy.Swap(strict)
	_, err = c.plane.CancelDelegation(t.Context(), asker, d, CancelRequest{})
	wantCode(t, err, ops.NotPermitted)
	if shows, err := c.plane.Delegation(t.Context(), asker, d); err != nil || !shows.Withheld {
		t.Errorf("seen without the permission output: %+v %v", shows, err)
	}
}

// What is not known of the outside is said at the end, and may be proved afterwards, which
// changes nothing of the end.
func TestEndWithUnprovenMutation(t *testing.T) {
	c := newCourt(t)
	stopped, given := c.spawn(`{"task":"x"}`), c.spawn(`{"task":"y"}`)
	for i, d := range []string{stopped, given} {
		c.step(d, begin...)
		if f := c.intended(d, fmt.Sprint("K", i)); f != nil {
			t.Fatal(f)
		}
	}
	c.cancelled(stopped, boss, CancelRequest{})
	if _, fault := c.say(c.worker(stopped), wire.KindCancelProof, wire.CancelProof{Checks: 2}); fault != nil {
		t.Fatal(fault)
	}
	c.is(stopped, Cancelled, DelegationCancelled)
	c.lose(given)
	c.is(given, WaitingHuman, Open)
	if _, err := c.plane.Resolve(t.Context(), boss, given, ResolveRequest{Resolution: Fail}); err != nil {
		t.Fatal(err)
	}
	c.is(given, Exhausted, DelegationExhausted)
	for i, d := range []string{stopped, given} {
		o := c.outcome(d)
		if fmt.Sprint(o.Fault.Details["mutations"]) != fmt.Sprintf("[K%d]", i) || !strings.Contains(o.Fault.Message, "may or may not have happened") {
			t.Errorf("outcome %+v", o.Fault)
		}
		yes := true
		shows, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Mutation: fmt.Sprint("K", i), Done: &yes, Proof: "it is there"})
		if err != nil || shows.Mutations[0].State != Done || !shows.Closed {
			t.Errorf("proved afterwards: %+v %v", shows.Mutations, err)
		}
		no := false
		_, err = c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Mutation: fmt.Sprint("K", i), Done: &no, Proof: "it is not"})
		wantCode(t, err, ops.Conflict)
	}
	if o := c.outcome(given); o.Fault.Details["class"] != string(UnknownExternal) {
		t.Errorf("outcome %+v", o.Fault)
	}
	c.is(stopped, Cancelled, DelegationCancelled)
	c.is(given, Exhausted, DelegationExhausted)
}
