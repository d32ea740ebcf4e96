package plane

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// ids are the delegations of a page.
func ids(page DelegationPage) (list []string) {
	for _, d := range page.Delegations {
		list = append(list, d.Delegation)
	}
	return list
}

// Who sees which delegations, by filters and pages, newest first.
func TestDelegations(t *testing.T) {
	c := newCourt(t)
	mine, done, other := c.spawn(`{"task":"a"}`), c.spawn(`{"task":"b","implementation":"default"}`), c.spawn(`{"task":"c","implementation":"elsewhere"}`)
	c.by(mine, asker)
	c.by(done, asker)
	c.by(other, nosy)
	c.must(func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE delegation SET thread = 't-other' WHERE id = $1`, other)
		return err
	})
	c.cancelled(done, asker, CancelRequest{})
	for name, tt := range map[string]struct {
		by   ops.Identity
		q    service.Query
		want []string
	}{
		"operator":          {boss, service.Query{}, []string{other, done, mine}},
		"owner":             {asker, service.Query{}, []string{done, mine}},
		"bridge":            {herald, service.Query{}, []string{done, mine}},
		"other owner":       {nosy, service.Query{}, []string{other}},
		"worker":            {ops.Identity{ID: "smith", Role: ops.Worker}, service.Query{}, nil},
		"nobody":            {ops.Identity{}, service.Query{}, nil},
		"state":             {boss, service.Query{Filter: map[string]string{"state": "CANCELLED"}}, []string{done}},
		"by":                {boss, service.Query{Filter: map[string]string{"by": "nosy"}}, []string{other}},
		"by, of a stranger": {asker, service.Query{Filter: map[string]string{"by": "nosy"}}, nil},
		"implementation":    {boss, service.Query{Filter: map[string]string{"implementation": "elsewhere"}}, []string{other}},
		"thread":            {boss, service.Query{Filter: map[string]string{"thread": "t-lobby", "state": "OPEN"}}, []string{mine}},
		"after":             {boss, service.Query{After: done}, []string{mine}},
	} {
		page, err := c.plane.Delegations(t.Context(), tt.by, tt.q)
		if err != nil || !slices.Equal(ids(page), tt.want) || page.Next != "" {
			t.Errorf("%s: got %q, next %q, %v; want %q", name, ids(page), page.Next, err, tt.want)
		}
	}
	page, err := c.plane.Delegations(t.Context(), boss, service.Query{Limit: 2})
	if err != nil || page.Next != done || len(page.Delegations) != 2 {
		t.Errorf("a page of two: %+v %v", page, err)
	}
	for _, q := range []service.Query{{Filter: map[string]string{"state": "open"}}, {Limit: -1}, {Limit: maxPage + 1}} {
		_, err := c.plane.Delegations(t.Context(), boss, q)
		wantCode(t, err, ops.BadRequest)
	}
}

// A delegation is shown whole to its owner and to operators; a bridge of the owner sees it
// too, and nobody else that there is one.
func TestDelegation(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"write the report","instruction":{"original":"please write it"},"artifacts":["report.md"],"verify":{"command":["true"]},"deadline":"2h","capabilities":[],"source":{"revision":"main"}}`)
	c.by(d, asker)
	c.step(d, begin...)
	c.leave(d, "report.md", "x", true)
	s := c.worker(d)
	if _, fault := c.say(s, wire.KindCheckpoint, wire.Checkpoint{Progress: 7, Files: []wire.File{{Name: "report.md", Digest: wire.Digest([]byte("x")), Bytes: 1, Kind: "text/plain"}}}); fault != nil {
		t.Fatal(fault)
	}
	old := *s
	old.Fence--
	for range shownDoubts + 5 {
		old.seq++
		if _, fault := c.say(&old, wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: old.seq}); fault == nil {
			t.Fatal("an old fence was taken")
		}
	}
	for _, who := range []ops.Identity{boss, asker, herald} {
		got, err := c.plane.Delegation(t.Context(), who, d)
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		r := got.Runs[0]
		switch {
		case got.Instruction.Task != "write the report", got.Instruction.Original != "please write it", got.Source.Revision != "main", got.By != asker, got.Closed,
			!slices.Equal(got.Outputs, []string{"report.md"}), !slices.Equal(got.Verify, []string{"true"}), got.Capabilities == nil, got.Credentials == nil:
			t.Errorf("%s: shown %+v", who, got)
		case got.Run != s.Run, got.RunState != Checkpointed, got.Progress != 7, got.Worker != "smith", got.Attempts != 1, r.Fence != s.Fence, r.LeaseUntil == "", r.StartedAt == "":
			t.Errorf("%s: run %+v", who, r)
		case len(got.Files) != 1, got.Files[0].Name != "report.md", len(got.Evidence) != shownDoubts, got.Evidence[0].Reason != "stale_fence":
			t.Errorf("%s: files %+v, %d evidence", who, got.Files, len(got.Evidence))
		case got.Waits != "worker smith":
			t.Errorf("%s: waits for %q", who, got.Waits)
		}
		b, err := json.Marshal(got)
		if err != nil || strings.Contains(string(b), "null") {
			t.Errorf("as JSON: %s %v", b, err)
		}
	}
	for _, who := range []ops.Identity{nosy, {ID: "smith", Role: ops.Worker}, {}} {
		_, err := c.plane.Delegation(t.Context(), who, d)
		wantCode(t, err, ops.NotFound)
	}
	_, err := c.plane.Delegation(t.Context(), boss, "d-none")
	wantCode(t, err, ops.NotFound)
}

// What an open delegation waits for can be read in each state that it can be in.
func TestWaits(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(declared)
	want := func(words string) {
		t.Helper()
		got, err := c.plane.Delegation(t.Context(), boss, d)
		if err != nil || !strings.Contains(got.Waits, words) {
			t.Errorf("waits for %q, want %q: %v", got.Waits, words, err)
		}
	}
	want("a worker for default")
	c.step(d, begin...)
	want("worker smith")
	c.pass(time.Minute)
	c.step(d, Event{Kind: OnLeaseExpired, Recover: c.plane.Recover})
	want("contact with worker smith")
	c.pass(c.plane.Recover)
	c.step(d, Event{Kind: OnRecoveryStarted})
	want("put together")
	c.step(d, Event{Kind: OnReconciled})
	want("next attempt")
	c.pass(time.Minute)
	c.step(d, begin...)
	c.succeed(d)
	want("files that are declared")
	c.leave(d, "report.md", "x", true)
	c.must(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		return c.plane.lookAgain(tx, h)
	})
	want("a verifier for default")
	c.grant("judge")
	want("the verdict of verifier judge")
	c.cancelled(d, boss, CancelRequest{})
	want("")
}

// Workers are listed by name with what they hold, and the plane with what it has.
func TestWorkersAndPlane(t *testing.T) {
	c := newCourt(t)
	running, waiting := c.spawn(`{"task":"a"}`), c.spawn(`{"task":"b","implementation":"elsewhere"}`)
	c.step(running, begin...)
	c.returned(declared, "report.md")
	g := c.grant("judge")
	page, err := c.plane.Workers(t.Context(), service.Query{})
	if err != nil || len(page.Workers) != 3 || page.Workers[0].Worker != "judge" || page.Workers[0].Leases != 1 || page.Workers[0].State != "ready" || page.Workers[1].Role != ops.Worker {
		t.Errorf("workers %+v %v", page, err)
	}
	if page, err = c.plane.Workers(t.Context(), service.Query{Limit: 1, After: "judge", Filter: map[string]string{"role": "verifier"}}); err != nil || len(page.Workers) != 1 || page.Workers[0].Worker != "umpire" || page.Next != "" {
		t.Errorf("a page of verifiers: %+v %v", page, err)
	}
	for _, q := range []service.Query{{Filter: map[string]string{"role": "agent"}}, {Filter: map[string]string{"state": "alive"}}, {Limit: 1000}} {
		_, err := c.plane.Workers(t.Context(), q)
		wantCode(t, err, ops.BadRequest)
	}
	w, err := c.plane.Worker(t.Context(), "judge")
	if err != nil || len(w.Holds) != 1 || w.Holds[0].Subject != g.Verification || w.Holds[0].Fence != g.Fence {
		t.Errorf("worker %+v %v", w, err)
	}
	_, err = c.plane.Worker(t.Context(), "ghost")
	wantCode(t, err, ops.NotFound)
	c.must(func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE principal SET revoked_at = 1 WHERE id = 'umpire'`)
		return err
	})
	if page, err = c.plane.Workers(t.Context(), service.Query{Filter: map[string]string{"state": "revoked"}}); err != nil || len(page.Workers) != 1 || page.Workers[0].State != "revoked" {
		t.Errorf("revoked: %+v %v", page, err)
	}
	c.pass(5 * time.Second)
	s, err := c.plane.Status(t.Context())
	if err != nil || s.State != On || s.Term != 1 || s.Delegations["OPEN"] != 2 || s.Delegations["VERIFYING"] != 1 || s.Runs["RUNNING"] != 1 || s.Runs["DISPATCHED"] != 1 ||
		s.Verifications["LEASED"] != 1 || s.Workers["verifier"] != 1 || s.Unable != 1 || s.OldestOffer < 5 {
		t.Errorf("plane %+v %v (%s waits)", s, err, waiting)
	}
}

// The reads have the names that box.exec knows, and workers are for who may manage.
func TestReads(t *testing.T) {
	c := newCourt(t)
	reads := service.NewReads(c.door, nil, service.About{})
	if err := reads.Add(c.plane.Reads()...); err != nil {
		t.Fatal(err)
	}
	d := c.spawn(`{"task":"a"}`)
	for name, arg := range map[string]string{"delegations": "", "delegation": d, "workers": "", "worker": "smith", "plane": ""} {
		if _, err := reads.Do(t.Context(), boss, name, service.Query{Arg: arg}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err := reads.Do(t.Context(), nosy, name, service.Query{Arg: arg})
		switch name {
		case "workers", "worker":
			wantCode(t, err, ops.NotPermitted)
		case "delegation":
			wantCode(t, err, ops.NotFound)
		default:
			if err != nil {
				t.Errorf("%s for an agent: %v", name, err)
			}
		}
	}
}

// cutTx is a transaction that fails at its nth write.
type cutTx struct {
	journal.Tx
	left int
}

var errBroken = errors.New("the disk is gone")

func (b *cutTx) spend() error {
	if b.left--; b.left < 0 {
		return errBroken
	}
	return nil
}

func (b *cutTx) Exec(sql string, args ...any) (int64, error) {
	if err := b.spend(); err != nil {
		return 0, err
	}
	return b.Tx.Exec(sql, args...)
}

func (b *cutTx) Append(stream string, expect int64, kind string, body []byte) error {
	if err := b.spend(); err != nil {
		return err
	}
	return b.Tx.Append(stream, expect, kind, body)
}

// A result and the verification that it asks for are one commit, and so are a verdict, the
// end of the delegation and the outcome of its call: wherever it breaks, neither or both
// are there (pb-044).
func TestWhatFollowsIsOfTheSameCommit(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(declared)
	c.step(d, begin...)
	file := c.leave(d, "report.md", "x", true)
	s := c.worker(d)
	result := s.message(t, wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{file}}, true)
	// tries runs f with one more write each time, until nothing breaks it.
	tries := func(f func(journal.Tx) (*ops.Fault, error), before func() error) {
		t.Helper()
		for n := 0; ; n++ {
			err := c.do(func(tx journal.Tx) error { return errors.Join(orFault(f(&cutTx{tx, n}))) })
			if err == nil {
				if n < 5 {
					t.Errorf("only %d writes", n)
				}
				return
			}
			if !errors.Is(err, errBroken) {
				t.Fatalf("broken at %d: %v", n, err)
			}
			if err := before(); err != nil {
				t.Fatalf("broken at %d: %v", n, err)
			}
		}
	}
	tries(func(tx journal.Tx) (*ops.Fault, error) {
		_, fault, err := c.plane.callback(tx, result, c.who(tx, "smith"))
		return fault, err
	}, func() error {
		if h := c.held(d); h.run.state != Running || h.delegation.state != Open {
			return fmt.Errorf("the run is %s, the delegation %s", h.run.state, h.delegation.state)
		}
		return nil
	})
	c.is(d, Succeeded, Verifying)
	if v := c.verification(d); v.state != AwaitsVerifier {
		t.Fatalf("verification %+v", v)
	}
	g := c.grant("judge")
	verdict := speaking(g).message(t, wire.KindVerdict, passed(g), true)
	tries(func(tx journal.Tx) (*ops.Fault, error) {
		_, fault, err := c.plane.verifierCallback(tx, verdict, c.who(tx, "judge"))
		return fault, err
	}, func() error {
		if h := c.held(d); h.delegation.state != Verifying || c.verification(d).state != WithVerifier {
			return fmt.Errorf("the delegation is %s", h.delegation.state)
		}
		return nil
	})
	c.is(d, Succeeded, Completed)
	if o := c.outcome(d); o.State != ops.Succeeded {
		t.Errorf("outcome %+v", o)
	}
}
