package plane

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// Nothing that a worker says names bytes that its runs have not left, in whatever state it
// says so. What a run names can be fetched, is kept, and is given to the next attempt.
func TestNobodyNamesBytesOfOthers(t *testing.T) {
	secret := "the secret of another one"
	for _, tc := range []struct {
		name string
		say  func(*yard, *tenure, wire.File) error
	}{
		{"checkpoint", func(_ *yard, g *tenure, f wire.File) error {
			_, err := g.try(wire.KindCheckpoint, wire.Checkpoint{Files: []wire.File{f}})
			return err
		}},
		{"result", func(_ *yard, g *tenure, f wire.File) error {
			_, err := g.try(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{f}})
			return err
		}},
		{"failed result", func(_ *yard, g *tenure, f wire.File) error {
			_, err := g.try(wire.KindResult, wire.Result{Class: string(TaskFailed), Files: []wire.File{f}})
			return err
		}},
		{"checkpoint of a run that is to stop", func(y *yard, g *tenure, f wire.File) error {
			if _, err := y.plane.CancelDelegation(y.t.Context(), ada, g.Delegation, CancelRequest{}); err != nil {
				return err
			}
			_, err := g.try(wire.KindCheckpoint, wire.Checkpoint{Files: []wire.File{f}})
			return err
		}},
		{"late result that is adopted", func(y *yard, g *tenure, f wire.File) error {
			y.pass(y.plane.TTL + time.Second)
			_, err := g.try(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{f}})
			y.pass(2 * y.plane.TTL)
			return err
		}},
		{"attestation", func(_ *yard, g *tenure, f wire.File) error {
			_, err := g.try(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: g.hand.sealed(g.statement(f))})
			return err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inYard(t, nil, func(t *testing.T, y *yard) {
				d, size, err := y.files.Put(t.Context(), strings.NewReader(secret), 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				y.do(func(tx journal.Tx) error {
					return artifacts.Add(tx, artifacts.Artifact{Digest: d, Name: "secret", Kind: "text/plain", Bytes: size, Owner: ops.Identity{ID: "other", Role: ops.Agent}})
				})
				smith, jones, judge := y.hire("smith", ops.Worker), y.hire("jones", ops.Worker), y.hire("judge", ops.Verifier)
				y.spawn(`{"task":"Read what is not yours.","retries":{"task_failed":1}}`)
				g := smith.must(0)
				g.started()
				_ = tc.say(y, g, wire.File{Name: "secret", Digest: string(d), Bytes: size}) // refused or not
				for _, h := range []*hand{smith, jones, judge} {
					if other := h.poll(0); other != nil && len(other.Earlier) > 0 {
						t.Errorf("%s is told of %+v", h.who, other.Earlier)
					}
					if got, err := h.fetched(string(d)); codeOf(err) != ops.NotFound {
						t.Errorf("%s fetches %q, %v", h.who, got, err)
					}
				}
				if n := y.number(`SELECT count(*) FROM run_file`); n != 0 {
					t.Errorf("%d files of runs are named", n)
				}
			})
		})
	}
}

// Whatever a verifier is told of, it can fetch: also what was attested only after the
// result, and what a result named that came too late and was adopted.
func TestAVerifierFetchesAllThatItIsToldOf(t *testing.T) {
	attested := func(g *tenure, f wire.File) {
		g.say(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: g.hand.sealed(g.statement(f))})
	}
	for _, tc := range []struct {
		name string
		end  func(*yard, *tenure)
	}{
		{"returned", func(y *yard, g *tenure) {
			f := g.upload("report", "all is well")
			attested(g, f)
			g.say(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{f}})
		}},
		{"attested after the result", func(y *yard, g *tenure) {
			g.say(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{}})
			attested(g, g.upload("report", "all is well"))
		}},
		{"adopted", func(y *yard, g *tenure) {
			f := g.upload("report", "all is well")
			attested(g, f)
			y.pass(y.plane.TTL + time.Second)
			_, err := g.try(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{f}})
			wantFault(y.t, err, ops.StaleFence, true)
			y.pass(2 * y.plane.TTL)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inYard(t, nil, func(t *testing.T, y *yard) {
				smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)
				d := y.spawn(`{"task":"Report.","artifacts":["report"]}`)
				g := smith.must(0)
				g.started()
				tc.end(y, g)
				y.wants(d, Succeeded, Verifying)
				v := judge.must(0)
				if len(v.Result.Files) != 1 {
					t.Fatalf("told of %+v", v.Result.Files)
				}
				if got, err := judge.fetched(v.Result.Files[0].Digest); err != nil || got != "all is well" {
					t.Errorf("fetched %q, %v", got, err)
				}
			})
		})
	}
}

// What does not count is kept within a bound, whoever says it and however often, and opens
// neither the journal nor the thread to a flood. Who has said nothing yet is still heard.
func TestEvidenceIsBounded(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, eve := y.hire("smith", ops.Worker), y.hire("eve", ops.Worker)
		d := y.spawn(`{"task":"x","retries":{"worker_lost":0}}`)
		g := smith.must(0)
		g.started()
		forged := *g // of another worker, with all of the run's ids
		forged.hand, forged.Worker, forged.Boot = eve, eve.who.ID, eve.boot
		for i := range 3 * MaxEvidence {
			_, err := forged.try(wire.KindHeartbeat, alive(int64(i)))
			wantFault(t, err, ops.StaleFence, true)
		}
		count := func(by ops.IdentityID) int64 {
			return y.number(`SELECT count(*) FROM evidence WHERE worker = $1`, string(by))
		}
		if n := count("eve"); n != MaxEvidence {
			t.Errorf("%d rows of evidence of one who has no lease, want %d", n, MaxEvidence)
		}
		if n := y.events("run.evidence_recorded", d); n != MaxEvidence {
			t.Errorf("%d events, want %d", n, MaxEvidence)
		}
		y.pass(y.plane.TTL + time.Second)
		y.wants(d, Unknown, Open)
		_, err := g.try(wire.KindResult, done) // which counts for something, and is not crowded out
		wantFault(t, err, ops.StaleFence, true)
		if n := count("smith"); n != 1 {
			t.Errorf("%d rows of evidence of the run's own worker, want one", n)
		}
		y.pass(time.Second)
		y.wants(d, Succeeded, Verifying)
	})
}

// Whoever gives cause for an alert again and again is told of once.
func TestAnAlertIsToldOnce(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	first := speaking(c.grant("judge"))
	c.pass(c.plane.TTL)
	c.sweep()
	c.pass(time.Second)
	second := c.grant("umpire")
	if _, fault := c.hear(speaking(second).message(t, wire.KindVerdict, passed(second), true), "umpire"); fault != nil {
		t.Fatal(fault)
	}
	for i := range 20 {
		first.seq = int64(i)
		m := first.message(t, wire.KindVerdict, wire.Verdict{Verdict: Refused, Reason: strings.Repeat("no", i+1)}, false)
		for range 2 {
			c.hear(m, "judge")
		}
	}
	alerts := 0
	for _, kind := range c.events(d) {
		if kind == "delegation.alert" || kind == "verification.disagreement" {
			alerts++
		}
	}
	if len(c.told.notes) != 1 || alerts != 2 {
		t.Errorf("the thread was told %d times (%q), and the journal %d", len(c.told.notes), c.told.notes, alerts)
	}
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			g.say(wire.KindCancelFailed, wire.CancelFailed{Reason: "it will not die"})
		}
		for range 10 {
			smith.reboot(wire.BootRun{Run: g.Run, Live: []wire.Process{{PID: 7, Start: "s7"}}})
		}
		if n := y.events("delegation.alert", d); n != 2 {
			t.Errorf("%d alerts, want that it could not be ended and that it was left alive", n)
		}
	})
}

// A worker writes no more than its work can need, however fast it speaks, and is heard
// again in time; its last word is taken at once.
func TestMessagesAreBounded(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		said := func(n int64) { // as if there had been n messages
			y.exec(`UPDATE dispatch SET seq = $1 WHERE delegation = $2`, n, d)
			g.seq = n
		}
		said(manyMessages - 1)
		g.beat(1)
		_, err := g.try(wire.KindHeartbeat, alive(2))
		f := wantFault(t, err, ops.RateLimited, false)
		if !f.Retryable || f.Details["retry_after"] == nil {
			t.Errorf("fault %+v", f)
		}
		y.pass(y.plane.Heartbeat)
		for range paceMessages {
			g.beat(3)
		}
		_, err = g.try(wire.KindHeartbeat, alive(4))
		wantFault(t, err, ops.RateLimited, false)
		g.say(wire.KindResult, done)
		v := judge.must(0)
		v.say(wire.KindStarted, wire.Started{})
		for range manyJudging - 1 {
			v.say(wire.KindHeartbeat, wire.Heartbeat{Alive: true})
		}
		_, err = v.try(wire.KindHeartbeat, wire.Heartbeat{Alive: true})
		wantFault(t, err, ops.RateLimited, false)
		v.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}})
		y.wants(d, Succeeded, Completed)
	})
}

// An agent that spawns whatever it is woken by comes to an end; what closes makes room, and
// people and others are not held up by it.
func TestOpenDelegationsAreBounded(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		bot, other := ops.Identity{ID: "bot", Role: ops.Agent}, ops.Identity{ID: "other", Role: ops.Agent}
		spawn := func(by ops.Identity) error {
			return y.store.Update(t.Context(), func(tx journal.Tx) error {
				_, err := y.plane.spawn(tx, ops.Call{ID: ops.NewCallID(), By: by, Params: json.RawMessage(`{"task":"Again."}`)})
				return err
			})
		}
		for range MaxOpen {
			if err := spawn(bot); err != nil {
				t.Fatal(err)
			}
		}
		wantFault(t, spawn(bot), ops.OverLimit, false)
		for _, by := range []ops.Identity{other, ada} {
			if err := spawn(by); err != nil {
				t.Errorf("%s: %v", by, err)
			}
		}
		y.exec(`UPDATE delegation SET state = 'CANCELLED', closed_at = created_at WHERE id = (SELECT min(id) FROM delegation)`)
		if err := spawn(bot); err != nil {
			t.Errorf("one is closed: %v", err)
		}
	})
}

// The next attempt is told of the latest file of each name, and of nothing that could not
// stand in one folder with it.
func TestTheNextAttemptGetsTheLatestOfEachFile(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		y.spawn(`{"task":"Write.","retries":{"task_failed":1}}`)
		g := smith.must(0)
		g.started()
		keep := func(files map[string]string) {
			c := wire.Checkpoint{}
			for name, content := range files {
				f := g.upload(name, content)
				g.say(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: smith.sealed(g.statement(f))})
				c.Files = append(c.Files, f)
			}
			g.say(wire.KindCheckpoint, c)
			y.pass(time.Second)
		}
		for i := range 40 {
			keep(map[string]string{"state": fmt.Sprint("state ", i)})
		}
		keep(map[string]string{"out": "a file", "draft": "one"})
		keep(map[string]string{"out/report": "a folder now", "draft": "two"})
		keep(map[string]string{"draft": "one"}) // as it was before
		keep(map[string]string{"state": "the last"})
		g.say(wire.KindResult, failed)
		g = smith.must(10 * time.Second)
		got := make(map[string]string)
		for _, f := range g.Earlier {
			if got[f.Name] != "" {
				t.Errorf("%s comes twice", f.Name)
			}
			got[f.Name] = f.Digest
		}
		want := map[string]string{"state": wire.Digest([]byte("the last")), "draft": wire.Digest([]byte("one")), "out/report": wire.Digest([]byte("a folder now"))}
		if !maps.Equal(got, want) {
			t.Errorf("earlier files %v, want %v", got, want)
		}
	})
}

// A worker that begins again and again is slowed down, and begins when it waits.
func TestBootsAreBounded(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, jones := y.hire("smith", ops.Worker), y.hire("jones", ops.Worker)
		for range MaxBoots - 1 {
			smith.reboot()
		}
		f := wantFault(t, smith.begin(ulid.Make().String()), ops.RateLimited, false)
		if !f.Retryable {
			t.Error("it may not try again")
		}
		if smith.poll(0) != nil { // its last boot lasts
			t.Error("granted something")
		}
		jones.reboot()
		y.pass(time.Minute)
		smith.reboot()
	})
}

// The invitations of a backup are over when it is restored: somebody may have used them
// since, and others may have seen their tokens then.
func TestARestoreEndsInvitations(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		invited, err := y.plane.Invite(t.Context(), ada, Invitation{Name: "smith", Role: ops.Worker, Implementations: []string{StandardImplementation}})
		if err != nil {
			t.Fatal(err)
		}
		y.do(y.plane.Restored)
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		envelope, _, err := wire.Seal(private, wire.KindEnrol, wire.Enrol{Token: invited.Token, PublicKey: public})
		if err != nil {
			t.Fatal(err)
		}
		_, err = y.plane.Enrol(t.Context(), envelope)
		wantFault(t, err, ops.Unauthenticated, true)
		y.hire("smith", ops.Worker) // and is invited again
	})
}
