package plane

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// intended has the latest run of d intend a mutation.
func (c *court) intended(d, key string) *ops.Fault {
	c.t.Helper()
	var fault *ops.Fault
	err := c.do(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		fault, err = c.plane.apply(tx, h, Event{Kind: OnMutationIntended, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: h.run.seq + 1, Prev: h.run.prev, Digest: "sha256:i" + key})
		if err != nil || fault != nil {
			return err
		}
		if fault, err = c.plane.intend(tx, h, wire.MutationIntended{Key: key, Action: "post a message"}); err == nil && fault != nil {
			return fault // as the callback does it: nothing of it holds
		}
		return err
	})
	if err != nil && fault == nil {
		c.t.Fatal(err)
	}
	return fault
}

// proved has the latest run of d prove a mutation.
func (c *court) proved(d, key string, done bool) *ops.Fault {
	c.t.Helper()
	var fault *ops.Fault
	err := c.do(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		fault, err = c.plane.apply(tx, h, Event{Kind: OnMutationProved, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: h.run.seq + 1, Prev: h.run.prev, Digest: "sha256:p" + key})
		if err != nil || fault != nil {
			return err
		}
		if fault, err = c.plane.prove(tx, h, wire.MutationProved{Key: key, Done: done, Proof: "asked the provider"}); err == nil && fault != nil {
			return fault
		}
		return err
	})
	if err != nil && fault == nil {
		c.t.Fatal(err)
	}
	return fault
}

// lose lets the lease of d's run lapse and has what is known put together.
func (c *court) lose(d string) {
	c.t.Helper()
	c.pass(time.Minute)
	c.step(d, Event{Kind: OnLeaseExpired, Recover: c.plane.Recover})
	c.pass(c.plane.Recover)
	c.step(d, Event{Kind: OnRecoveryStarted}, Event{Kind: OnReconciled})
}

// intend and prove: what a key may be, that none comes twice, and who may say what became
// of it.
func TestMutations(t *testing.T) {
	c := newCourt(t)
	one, two := c.spawn(`{"task":"x"}`), c.spawn(`{"task":"y"}`)
	c.step(one, begin...)
	c.step(two, begin...)
	for _, bad := range []wire.MutationIntended{
		{Key: "", Action: "x"}, {Key: strings.Repeat("k", maxMutationKey+1), Action: "x"}, {Key: "two\nlines", Action: "x"}, {Key: "\u202ek", Action: "x"}, {Key: "\xff", Action: "x"},
		{Key: "k", Action: " "}, {Key: "k", Action: strings.Repeat("a", maxAction+1)}, {Key: "k", Action: "bell\a"},
	} {
		c.must(func(tx journal.Tx) error {
			fault, err := c.plane.intend(tx, c.held(one), bad)
			if fault == nil || fault.Code != ops.InvalidParams || fault.Details["final"] != true {
				t.Errorf("intend %+v: got %v, want INVALID_PARAMS, final", bad, fault)
			}
			return err
		})
	}
	if f := c.intended(one, "K1"); f != nil {
		t.Fatal(f)
	}
	for _, d := range []string{one, two} {
		if f := c.intended(d, "K1"); f == nil || f.Code != ops.KeyReused || f.Details["final"] != true {
			t.Errorf("the same key again: %v", f)
		}
	}
	if h := c.held(one); h.snap.Unproven != 1 || h.run.seq != 2 {
		t.Errorf("unproven %d, sequence %d", h.snap.Unproven, h.run.seq)
	}
	if f := c.proved(two, "K1", true); f == nil || f.Code != ops.Conflict {
		t.Errorf("another run's mutation: %v", f)
	}
	if f := c.intended(two, "K2"); f != nil {
		t.Fatal(f)
	}
	if f := c.proved(two, "K1", true); f == nil || f.Code != ops.NotFound {
		t.Errorf("another run's mutation: %v", f)
	}
	if f := c.proved(one, "K1", false); f != nil {
		t.Fatal(f)
	}
	if f := c.intended(one, "K1"); f == nil || f.Code != ops.KeyReused {
		t.Errorf("the key of one that is proved: %v", f)
	}
	if f := c.intended(one, "K3"); f != nil {
		t.Fatal(f)
	}
	if f := c.proved(one, "K1", true); f == nil || f.Code != ops.Conflict {
		t.Errorf("proved to be otherwise: %v", f)
	}
	if n := c.held(one).snap.Unproven; n != 1 {
		t.Errorf("%d unproven, want 1", n)
	}
	shows, err := c.plane.Delegation(t.Context(), boss, one)
	if err != nil || len(shows.Mutations) != 2 {
		t.Fatalf("shown %+v %v", shows.Mutations, err)
	}
}

// While a mutation is unproven no second run starts by itself; once a person has proved that
// it has not happened, the next run has another key (pb-007).
func TestUnprovenMutationHoldsRetry(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"send it","retries":{"worker_lost":3,"unknown_external":1}}`)
	c.step(d, begin...)
	if f := c.intended(d, "K"); f != nil {
		t.Fatal(f)
	}
	first := c.held(d).run
	c.lose(d)
	c.is(d, WaitingHuman, Open)
	if len(c.told.notes) != 1 || !strings.Contains(c.told.notes[0], "\nK") {
		t.Errorf("asked %q", c.told.notes)
	}
	for _, r := range []ResolveRequest{{Resolution: Resume}, {Resolution: Adopt}} {
		_, err := c.plane.Resolve(t.Context(), boss, d, r)
		f := wantCode(t, err, ops.Unproven)
		if fmt.Sprint(f.Details["mutations"]) != "[K]" {
			t.Errorf("%s: details %v", r.Resolution, f.Details)
		}
	}
	_, err := c.plane.Retry(t.Context(), boss, d)
	wantCode(t, err, ops.Unproven)
	c.is(d, WaitingHuman, Open)
	no := false
	shows, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Mutation: "K", Done: &no, Proof: "the provider has no such message"})
	if err != nil {
		t.Fatal(err)
	}
	if m := shows.Mutations[0]; m.State != Absent || !strings.HasPrefix(m.Proof, "boss: ") {
		t.Errorf("mutation %+v", m)
	}
	c.is(d, Recovering, Open)
	c.step(d, Event{Kind: OnReconciled})
	h := c.held(d)
	if h.run.state != Dispatched || h.run.attempt != 2 || h.run.idemKey == first.idemKey {
		t.Fatalf("run %+v", h.run)
	}
	c.pass(10 * time.Second)
	c.step(d, begin...)
	if f := c.intended(d, "K"); f == nil || f.Code != ops.KeyReused {
		t.Errorf("the key again: %v", f)
	}
	if f := c.intended(d, "K-2"); f != nil {
		t.Error(f)
	}
}

// What is asked of Resolve, and who may.
func TestResolveRefused(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.by(d, asker)
	yes := true
	for name, r := range map[string]ResolveRequest{
		"nothing":           {},
		"no such":           {Resolution: "again"},
		"answer to nobody":  {Resolution: Fail, Answer: "x"},
		"long answer":       {Resolution: Resume, Answer: strings.Repeat("x", MaxAnswer+1)},
		"controls":          {Resolution: Resume, Answer: "a\x1bb"},
		"done of what":      {Resolution: Fail, Done: &yes},
		"proof of what":     {Resolution: Fail, Proof: "x"},
		"done or not":       {Mutation: "K", Proof: "x"},
		"no proof":          {Mutation: "K", Done: &yes, Proof: "  "},
		"a very long proof": {Mutation: "K", Done: &yes, Proof: strings.Repeat("x", maxProof+1)},
	} {
		if _, err := c.plane.Resolve(t.Context(), boss, d, r); err == nil {
			t.Errorf("%s: taken", name)
		} else if f := wantCode(t, err, ops.BadRequest); f.Details["pointer"] == nil {
			t.Errorf("%s: %v says not where", name, f)
		}
	}
	fail := ResolveRequest{Resolution: Fail}
	for _, tt := range []struct {
		by   ops.Identity
		id   string
		code ops.Code
	}{
		{boss, "d-none", ops.NotFound}, {nosy, d, ops.NotFound}, {asker, d, ops.NotPermitted}, {herald, d, ops.NotPermitted},
		{ops.Identity{ID: "smith", Role: ops.Worker}, d, ops.NotFound}, {ops.Identity{}, d, ops.NotFound}, {boss, d, ops.Conflict},
	} {
		_, err := c.plane.Resolve(t.Context(), tt.by, tt.id, fail)
		wantCode(t, err, tt.code)
		_, err = c.plane.Retry(t.Context(), tt.by, tt.id)
		wantCode(t, err, tt.code)
	}
	_, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Mutation: "K", Done: &yes, Proof: "x"})
	wantCode(t, err, ops.NotFound)
	c.is(d, Dispatched, Open)
}

// A worker asks, a person answers, the same run goes on under the next fence with the
// answer.
func TestResume(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	c.step(d, begin...)
	before := c.held(d).run
	c.must(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		h.said = &wire.Message{Kind: wire.KindHumanWait, Body: json.RawMessage(`{"question":"Which of the two?"}`)}
		fault, err := c.plane.apply(tx, h, Event{Kind: OnHumanWait, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: h.run.seq + 1, Prev: h.run.prev, Digest: "sha256:q"})
		return orFault(fault, err)
	})
	c.is(d, WaitingHuman, Open)
	if len(c.told.notes) != 1 || !strings.Contains(c.told.notes[0], "Which of the two?") || !strings.Contains(c.told.notes[0], "box delegations resolve "+d) {
		t.Errorf("asked %q", c.told.notes)
	}
	if shows, err := c.plane.Delegation(t.Context(), boss, d); err != nil || shows.Question != "Which of the two?" || !strings.Contains(shows.Waits, "person") {
		t.Errorf("shown %+v %v", shows, err)
	}
	_, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Resolution: Adopt})
	wantCode(t, err, ops.Conflict)
	shows, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Resolution: Resume, Answer: "The first."})
	if err != nil || shows.Answer != "The first." || shows.RunState != Dispatched || shows.Question != "" {
		t.Fatalf("resumed: %+v %v", shows, err)
	}
	c.step(d, Event{Kind: OnLeaseGranted})
	h := c.held(d)
	if h.run.run != before.run || h.run.fence <= before.fence || h.delegation.answer != "The first." {
		t.Errorf("run %+v", h.run)
	}
}

// A run that is lost for good is given up by a person; a result that came too late is
// adopted, and verified like any other.
func TestResolveUnknown(t *testing.T) {
	c := newCourt(t)
	gone, late := c.spawn(`{"task":"x","retries":{"worker_lost":0}}`), c.spawn(`{"task":"y","retries":{"worker_lost":0}}`)
	for _, d := range []string{gone, late} {
		c.step(d, begin...)
	}
	c.pass(time.Minute)
	for _, d := range []string{gone, late} {
		c.step(d, Event{Kind: OnLeaseExpired, Recover: c.plane.Recover})
		c.is(d, Unknown, Open)
	}
	_, err := c.plane.Resolve(t.Context(), boss, gone, ResolveRequest{Resolution: Resume})
	wantCode(t, err, ops.Conflict)
	_, err = c.plane.Resolve(t.Context(), boss, gone, ResolveRequest{Resolution: Adopt})
	wantCode(t, err, ops.Conflict)
	c.is(gone, Unknown, Open)
	if _, err := c.plane.Resolve(t.Context(), boss, gone, ResolveRequest{Resolution: Fail}); err != nil {
		t.Fatal(err)
	}
	c.is(gone, Exhausted, DelegationExhausted)
	o := c.outcome(gone)
	if o.Fault == nil || o.Fault.Code != ops.Exhausted || o.Fault.Details["class"] != string(WorkerLost) {
		t.Errorf("outcome %+v", o.Fault)
	}

	body, _ := json.Marshal(wire.Result{Succeeded: true, Summary: "late, but done"})
	c.must(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, late, "")
		if err != nil {
			return err
		}
		m := wire.Message{Kind: wire.KindResult, Header: wire.Header{Delegation: late, Run: h.run.run, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: h.run.seq + 1}, Body: body, Digest: "sha256:late"}
		h.said = &m
		fault, err := c.plane.apply(tx, h, Event{Kind: OnResult, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: h.run.seq + 1, Prev: h.run.prev, Digest: m.Digest, Succeeded: true, Stored: true})
		if err == nil && (fault == nil || fault.Code != ops.StaleFence) {
			t.Errorf("a late result: %v", fault)
		}
		return err
	})
	if c.held(late).run.state != Unknown {
		t.Fatalf("a late result moved the run to %s", c.held(late).run.state)
	}
	if _, err := c.plane.Resolve(t.Context(), boss, late, ResolveRequest{Resolution: Adopt}); err != nil {
		t.Fatal(err)
	}
	c.is(late, Succeeded, Verifying)
	g := c.grant("judge")
	if g == nil || g.Result.Summary != "late, but done" {
		t.Fatalf("grant %+v", g)
	}
	s := speaking(g)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), true), "judge"); fault != nil {
		t.Fatal(fault)
	}
	c.is(late, Succeeded, Completed)
}

// A person gives up what asked: the budget of the class human decides what follows.
func TestFail(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x","retries":{"human":1}}`)
	for attempt := 1; attempt <= 2; attempt++ {
		c.pass(10 * time.Minute)
		c.step(d, append(slices.Clone(begin), Event{Kind: OnHumanWait})...)
		if _, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Resolution: Fail}); err != nil {
			t.Fatal(err)
		}
		if h := c.held(d); attempt == 1 && (h.run.state != Dispatched || h.run.attempt != 2) {
			t.Fatalf("run %+v", h.run)
		}
	}
	c.is(d, Exhausted, DelegationExhausted)
	for _, err := range []error{
		func() error { _, err := c.plane.Retry(t.Context(), boss, d); return err }(),
		func() error {
			_, err := c.plane.Resolve(t.Context(), boss, d, ResolveRequest{Resolution: Fail})
			return err
		}(),
		func() error { _, err := c.plane.CancelDelegation(t.Context(), boss, d, CancelRequest{}); return err }(),
	} {
		if f := wantCode(t, err, ops.Conflict); f.Details["state"] != DelegationExhausted {
			t.Errorf("details %v", f.Details)
		}
	}
}

// A person tries again: at once what waits for its time, beyond the budget what waits for a
// person or has not returned what was declared.
func TestRetry(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x","retries":{"task_failed":1}}`)
	c.step(d, append(slices.Clone(begin), Event{Kind: OnResult, Stored: true, Class: TaskFailed})...)
	if !c.held(d).run.notBefore.After(c.clock()) {
		t.Fatal("the next attempt waits for nothing")
	}
	shows, err := c.plane.Retry(t.Context(), boss, d)
	if err != nil || c.held(d).run.notBefore.After(c.clock()) || shows.Attempts != 2 {
		t.Fatalf("retry: %+v %v", shows, err)
	}
	_, err = c.plane.Retry(t.Context(), boss, d)
	wantCode(t, err, ops.Conflict)
	c.step(d, append(slices.Clone(begin), Event{Kind: OnHumanWait})...)
	if shows, err = c.plane.Retry(t.Context(), boss, d); err != nil || shows.Attempts != 3 || shows.RunState != Dispatched {
		t.Fatalf("retry of what waits: %+v %v", shows, err)
	}
	lacks := c.returned(declared)
	if shows, err = c.plane.Retry(t.Context(), boss, lacks); err != nil || shows.State != Open || shows.Attempts != 2 || shows.RunState != Dispatched {
		t.Fatalf("retry of what lacks a declared file: %+v %v", shows, err)
	}
	nobody := c.returned(declared, "report.md")
	c.pass(c.plane.VerifyWithin)
	c.sweep()
	if shows, err = c.plane.Retry(t.Context(), boss, nobody); err != nil || shows.State != Verifying || len(shows.Verifications) != 2 || shows.Verifications[1].State != Dropped {
		t.Fatalf("retry of what nobody judged: %+v %v", shows, err)
	}
}
