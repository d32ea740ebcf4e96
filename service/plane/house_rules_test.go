package plane

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane/wire"
)

func TestATokenEnrolsOneKeyOnce(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		_, err := y.plane.Invite(t.Context(), ops.Identity{ID: "scout", Role: ops.Agent}, Invitation{Name: "w", Implementations: []string{"default"}})
		wantFault(t, err, ops.NotPermitted, false)
		for _, i := range []Invitation{
			{Name: "W", Implementations: []string{"default"}},
			{Name: "w", Role: ops.Agent, Implementations: []string{"default"}},
			{Name: "w"},
			{Name: "w", Implementations: []string{"de fault"}},
			{Name: "w", Implementations: []string{"default"}, Capabilities: make([]string, MaxSkills+1)},
			{Name: "w", Implementations: []string{"default"}, TTL: MaxInvitation + 1},
			{Name: "ada", Implementations: []string{"default"}, TTL: time.Hour},
		} {
			if _, err := y.plane.Invite(t.Context(), ada, i); err == nil {
				t.Errorf("%+v was taken", i)
			}
		}
		invited := func(name ops.IdentityID, ttl time.Duration) string {
			i, err := y.plane.Invite(t.Context(), ada, Invitation{Name: name, Implementations: []string{"default"}, TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			return i.Token
		}
		key, other := ed25519.NewKeyFromSeed(append(make([]byte, 31), 1)), ed25519.NewKeyFromSeed(append(make([]byte, 31), 2))
		enrol := func(token string, signer, shown ed25519.PrivateKey) (wire.Enrolled, error) {
			envelope, _, err := wire.Seal(signer, wire.KindEnrol, wire.Enrol{Token: token, PublicKey: shown.Public().(ed25519.PublicKey)})
			if err != nil {
				t.Fatal(err)
			}
			return y.plane.Enrol(t.Context(), envelope)
		}
		token := invited("w", 0)
		_, err = enrol(token, other, key)
		wantFault(t, err, ops.BadSignature, true)
		_, err = enrol("ibe_none", key, key)
		wantFault(t, err, ops.Unauthenticated, true)
		first, err := enrol(token, key, key)
		if err != nil || first.Worker != (ops.Identity{ID: "w", Role: ops.Worker}) || wire.KeyID(first.PlaneKey) != wire.KeyID(y.plane.Key.Public().(ed25519.PublicKey)) {
			t.Fatalf("%+v, %v", first, err)
		}
		if again, err := enrol(token, key, key); err != nil || again.Worker != first.Worker {
			t.Errorf("the same again: %+v, %v", again, err)
		}
		_, err = enrol(token, other, other)
		wantFault(t, err, ops.Unauthenticated, true)
		_, err = enrol(invited("v", 0), key, key)
		wantFault(t, err, ops.Conflict, true)
		short := invited("u", time.Minute)
		y.pass(time.Minute)
		_, err = enrol(short, other, other)
		wantFault(t, err, ops.Unauthenticated, true)
	})
}

func TestABootSignsAFreshChallenge(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, other := y.hire("smith", ops.Worker), y.hire("other", ops.Worker)
		challenge := func(of ops.IdentityID) string {
			c, err := y.plane.Challenge(t.Context(), string(of))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		begin := func(c string, key ed25519.PrivateKey, boot string) (wire.Session, error) {
			envelope, _, err := wire.Seal(key, wire.KindBoot, wire.Boot{Worker: "smith", Boot: boot, Challenge: c, Runs: []wire.BootRun{}})
			if err != nil {
				t.Fatal(err)
			}
			return y.plane.Begin(t.Context(), envelope)
		}
		boot := ulid.Make().String()
		_, err := begin(challenge("smith"), other.key, boot)
		wantFault(t, err, ops.BadSignature, true)
		_, err = begin(challenge("other"), smith.key, boot)
		wantFault(t, err, ops.BadRequest, false)
		_, err = begin("", smith.key, boot)
		wantFault(t, err, ops.BadRequest, false)
		old := challenge("smith")
		y.pass(challengeFor + time.Second)
		_, err = begin(old, smith.key, boot)
		wantFault(t, err, ops.BadRequest, false)

		c := challenge("smith")
		directory := access.NewDirectory(y.store)
		first, err := begin(c, smith.key, boot)
		if err != nil {
			t.Fatal(err)
		}
		again, err := begin(c, smith.key, boot) // its answer was lost
		if err != nil {
			t.Fatal(err)
		}
		if _, err := directory.Authenticate(t.Context(), first.Token); err == nil {
			t.Error("two tokens of one worker are good")
		}
		if who, err := directory.Authenticate(t.Context(), again.Token); err != nil || who != smith.who {
			t.Errorf("the token is %v's, %v", who, err)
		}
		if n := y.events("worker.booted", ""); n != 3 { // two were hired, and one began again
			t.Errorf("%d boots, want 3: the same one again is no other", n)
		}
	})
}

func TestRevocationHoldsAtOnce(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		var polled error
		var waiting sync.WaitGroup
		waiting.Go(func() { _, polled = smith.tryPoll(30 * time.Second) })
		synctest.Wait()
		if w, err := y.plane.Revoke(t.Context(), ada, "smith"); err != nil || w.RevokedAt == "" {
			t.Fatalf("%+v, %v", w, err)
		}
		waiting.Wait()
		wantFault(t, polled, ops.Unauthenticated, true)
		_, err := g.try(wire.KindHeartbeat, alive(1))
		wantFault(t, err, ops.Unauthenticated, true)
		err = smith.begin(ulid.Make().String())
		wantFault(t, err, ops.Unauthenticated, true)
		y.wants(d, Unknown, Open)
		if reason := y.text(`SELECT reason FROM dispatch WHERE run = $1`, g.Run); reason == "" {
			t.Error("nothing says why")
		}
		_, err = y.plane.Revoke(t.Context(), ada, "nobody")
		wantFault(t, err, ops.NotFound, false)
	})
}

func TestTheSwitch(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)
		d, waits := y.spawn(""), y.spawn("")
		g := smith.must(0)
		g.started()
		turn := func(to string) {
			if s, err := y.plane.Switch(t.Context(), ada, to); err != nil || s.State != to {
				t.Fatalf("%s: %+v, %v", to, s, err)
			}
		}
		_, err := y.plane.Switch(t.Context(), ada, "pause")
		wantFault(t, err, ops.BadRequest, false)
		turn(Drain)
		if smith.poll(time.Second) != nil {
			t.Error("something was granted while the plane drains")
		}
		y.pass(20 * time.Second)
		if ack := g.beat(1); ack.LeaseMS != y.plane.TTL.Milliseconds() || !ack.Drain {
			t.Errorf("a lease is not extended while the plane drains: %+v", ack)
		}
		var o ops.Outcome
		if err := y.store.Update(t.Context(), func(tx journal.Tx) (err error) {
			o, err = y.plane.spawn(tx, ops.Call{ID: "c-1", By: ada, Params: json.RawMessage(`{"task":"x"}`)})
			return err
		}); err == nil {
			t.Errorf("work was taken: %+v", o)
		} else {
			wantFault(t, err, ops.PlaneOff, false)
		}
		turn(Off)
		y.pass(10 * time.Second)
		if ack := g.beat(2); ack.LeaseMS != (y.plane.TTL - 10*time.Second).Milliseconds() {
			t.Errorf("a lease is extended while the plane is off: %+v", ack)
		}
		turn(Drain)
		g.say(wire.KindResult, done)
		v := judge.must(time.Second)
		v.say(wire.KindStarted, wire.Started{})
		v.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}})
		y.wants(d, Succeeded, Completed)
		// Whoever waits is told that it is on.
		var next *tenure
		var waiting sync.WaitGroup
		waiting.Go(func() { next, err = smith.tryPoll(30 * time.Second) })
		synctest.Wait()
		turn(On)
		waiting.Wait()
		if err != nil || next == nil || next.Delegation != waits {
			t.Errorf("granted %v, %v; want %s", next, err, waits)
		}
	})
}

func TestAPollIsAnsweredAgainByItsNonce(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		first, second := y.spawn(""), y.spawn("")
		g, err := smith.pollAs("a", 0)
		if err != nil || g == nil || g.Delegation != first {
			t.Fatalf("granted %v, %v", g, err)
		}
		y.pass(5 * time.Second)
		again, err := smith.pollAs("a", 0)
		if err != nil || again == nil || again.Run != g.Run || again.Fence != g.Fence || again.IdemKey != g.IdemKey {
			t.Fatalf("granted %+v, %v; want the same lease", again, err)
		}
		if want := (y.plane.TTL - 5*time.Second).Milliseconds(); again.TTLMS != want {
			t.Errorf("the lease is told to last %d ms, want the %d that are left", again.TTLMS, want)
		}
		if other, err := smith.pollAs("b", 0); err != nil || other == nil || other.Delegation != second {
			t.Errorf("granted %v, %v; want %s", other, err, second)
		}
		if n := y.events("run.lease_granted", ""); n != 2 {
			t.Errorf("%d leases, want two", n)
		}
		_, err = smith.pollAs("", 0)
		wantFault(t, err, ops.BadRequest, true)
		_, err = smith.pollAs("c", MaxWait+time.Millisecond)
		wantFault(t, err, ops.BadRequest, true)
	})
}

func TestALongPollIsWokenForWorkAndCostsNothingOfTheLease(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		workers := []*hand{y.hire("a", ops.Worker), y.hire("b", ops.Worker), y.hire("c", ops.Worker, "other")}
		got := make([]*tenure, len(workers))
		var waiting sync.WaitGroup
		for i, w := range workers {
			waiting.Go(func() { got[i], _ = w.tryPoll(20 * time.Second) })
			synctest.Wait()
		}
		y.pass(15 * time.Second)
		at := time.Now()
		d := y.spawn("")
		synctest.Wait()
		if !time.Now().Equal(at) {
			t.Error("time has passed")
		}
		if r := y.run(d); r.state != Leased || r.worker != "a" || !r.leaseUntil.Equal(at.Add(y.plane.TTL)) {
			t.Errorf("the run is %s by %s until %s", r.state, r.worker, r.leaseUntil)
		}
		waiting.Wait()
		if got[0] == nil || got[1] != nil || got[2] != nil {
			t.Fatalf("granted %v", got)
		}
		if want := (y.plane.TTL + 15*time.Second).Milliseconds(); got[0].TTLMS != want {
			t.Errorf("the lease lasts %d ms from when the poll was sent, want %d", got[0].TTLMS, want)
		}
		counts := map[string]int64{}
		for _, c := range y.plane.Counts() {
			counts[c.What+" "+c.Label] = c.N
		}
		if counts["polls granted"] != 1 || counts["polls empty"] != 2 {
			t.Errorf("counts %v", counts)
		}
	})
}

func TestWhoIsWokenForNothingWakesTheNext(t *testing.T) {
	o := &offers{}
	a := &waiter{role: ops.Worker, skills: skills{implementations: []string{"x"}}, ready: make(chan struct{}, 1)}
	b := &waiter{role: ops.Worker, skills: skills{implementations: []string{"x"}, capabilities: []string{"gpu"}}, ready: make(chan struct{}, 1)}
	o.join(a)
	o.join(b)
	awake := func(w *waiter) bool {
		select {
		case <-w.ready:
			return true
		default:
			return false
		}
	}
	o.work("x", []string{"gpu"})
	if awake(a) || !awake(b) {
		t.Fatal("the one was woken who cannot do it")
	}
	o.again(b)
	o.work("x", nil)
	o.work("y", nil)
	if !awake(a) || awake(b) {
		t.Fatal("want the first in line, and one only")
	}
	o.leave(a) // without having looked
	if !awake(b) {
		t.Error("the work waits, and so does the next")
	}
	o.leave(b)
	if len(o.waiting) != 0 {
		t.Errorf("%d are left in line", len(o.waiting))
	}
}

func TestAHoldKeepsWorkOfItsThreadBack(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		thread := "t-01jzzzzzzzzzzzzzzzzzzzzzzz"
		held, persons := y.spawn(""), y.spawn("")
		y.exec(`UPDATE delegation SET by_id = 'scout', by_role = 'agent', thread = $1 WHERE id = $2`, thread, held)
		y.exec(`UPDATE delegation SET thread = $1 WHERE id = $2`, thread, persons)
		y.do(func(tx journal.Tx) error { return y.door.Hold(tx, ada, thread) })
		if g := smith.must(0); g.Delegation != persons {
			t.Fatalf("%s was granted, which is held", g.Delegation)
		}
		var g *tenure
		var err error
		var waiting sync.WaitGroup
		waiting.Go(func() { g, err = smith.tryPoll(20 * time.Second) })
		synctest.Wait()
		if n := y.events("run.lease_granted", held); n != 0 {
			t.Fatal("it was granted while it is held")
		}
		y.do(func(tx journal.Tx) error { return y.door.Release(tx, ada, thread) })
		waiting.Wait()
		if err != nil || g == nil || g.Delegation != held {
			t.Errorf("granted %v, %v; want %s", g, err, held)
		}
		y.do(func(tx journal.Tx) error { return y.door.Hold(tx, ada, service.Everything) })
		next := y.spawn("")
		y.exec(`UPDATE delegation SET by_role = 'agent' WHERE id = $1`, next)
		if smith.poll(time.Second) != nil {
			t.Error("granted under a hold over everything")
		}
	})
}

func TestAClockThatIsSetExpiresNothing(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		inYard(t, nil, func(t *testing.T, y *yard) {
			smith := y.hire("smith", ops.Worker)
			d := y.spawn(`{"task":"x","deadline":"100h"}`)
			g := smith.must(0)
			g.started()
			y.pass(10 * time.Second)
			y.skew.Store(int64(by))
			if ack := g.beat(1); ack.LeaseMS <= 0 || ack.LeaseMS > 2*y.plane.TTL.Milliseconds() {
				t.Errorf("by %s: answered %+v", by, ack)
			}
			for range 5 {
				y.pass(10 * time.Second)
				g.beat(1)
			}
			y.wants(d, Running, Open)
			if n := y.number(`SELECT count(*) FROM dispatch WHERE attempt > 1`); n != 0 {
				t.Errorf("by %s: %d new runs", by, n)
			}
			jumps := int64(0)
			for _, c := range y.plane.Counts() {
				if c.What == "clock_jumps" {
					jumps = c.N
				}
			}
			if jumps != 1 {
				t.Errorf("by %s: %d clock jumps, want one", by, jumps)
			}
		})
	}
	// A jump that only the sweeper can notice gives one more lease, and no more.
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		smith.must(0).started()
		y.skew.Store(int64(10 * time.Minute))
		y.pass(y.plane.TTL - 2*time.Second)
		y.wants(d, Running, Open)
		y.pass(y.plane.TTL)
		y.wants(d, Unknown, Open)
	})
}

func TestAProcessThatStoodStillExpiresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil) // its sweeper is not started: nothing moves but time
		defer y.close()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		y.plane.watch.awake()
		time.Sleep(2 * y.plane.TTL)
		g.beat(1)
		y.wants(d, Running, Open)
		if n := y.number(`SELECT hold_until FROM plane`); n != time.Now().Add(y.plane.TTL).UnixMilli() {
			t.Errorf("expiry is held until %s", time.UnixMilli(n))
		}
		time.Sleep(y.plane.TTL / 3) // which a heartbeat may take
		g.beat(2)
		if r := y.run(d); !r.leaseUntil.Equal(time.Now().Add(y.plane.TTL)) {
			t.Errorf("the lease ends at %s", r.leaseUntil)
		}
	})
}

func TestANewTermEndsEveryLease(t *testing.T) {
	for name, bump := range map[string]func(*yard) error{
		"by hand":  func(y *yard) error { _, err := y.plane.BumpTerm(y.t.Context(), ada); return err },
		"restored": func(y *yard) error { return y.store.Update(y.t.Context(), y.plane.Restored) },
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, nil, func(t *testing.T, y *yard) {
				smith := y.hire("smith", ops.Worker)
				d, waits := y.spawn(`{"task":"x","deadline":"24h"}`), y.spawn(`{"task":"y","deadline":"24h"}`)
				g := smith.must(0)
				g.started()
				if err := bump(y); err != nil {
					t.Fatal(err)
				}
				y.wants(d, Unknown, Open)
				_, err := g.try(wire.KindHeartbeat, alive(1))
				wantFault(t, err, ops.StaleFence, true)
				if smith.poll(y.plane.TTL) != nil {
					t.Error("granted while a lease that is not known of may live")
				}
				y.pass(y.plane.Recover)
				next := smith.must(time.Minute)
				if next.Delegation != waits || next.Fence != 2<<32|1 {
					t.Errorf("%s was granted under %d, want %s under %d", next.Delegation, next.Fence, waits, int64(2<<32|1))
				}
				if again := smith.must(time.Minute); again.Delegation != d || again.Fence != 2<<32|1 || again.Fence <= g.Fence {
					t.Errorf("%s was granted under %d", again.Delegation, again.Fence)
				}
			})
		})
	}
}

func TestAPersonsAnswerGoesOnWithTheRun(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"24h"}`)
		g := smith.must(0)
		g.started()
		if ack := g.say(wire.KindHumanWait, wire.HumanWait{Question: "Which folder?"}); !ack.Final || ack.LeaseMS != 0 {
			t.Errorf("answered %+v", ack)
		}
		y.wants(d, WaitingHuman, Open)
		if q := y.run(d).question; q != "Which folder?" {
			t.Errorf("the question is %q", q)
		}
		y.pass(time.Hour)
		var next *tenure
		var err error
		var waiting sync.WaitGroup
		waiting.Go(func() { next, err = smith.tryPoll(20 * time.Second) })
		synctest.Wait()
		if _, err := y.plane.Resolve(t.Context(), ada, d, ResolveRequest{Resolution: Resume, Answer: "The second."}); err != nil {
			t.Fatal(err)
		}
		waiting.Wait()
		if err != nil || next == nil || next.Run != g.Run || next.Fence != g.Fence+1 || next.Answer != "The second." || next.Seq != g.seq {
			t.Fatalf("granted %+v, %v", next, err)
		}
		next.started()
		next.say(wire.KindResult, done)
		y.wants(d, Succeeded, Verifying)
	})
}

func TestABodyThatCannotBeIsRefusedBeforeItCounts(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		before := y.run(d)
		digest := wire.Digest(nil)
		for _, c := range []struct {
			kind wire.Kind
			body any
		}{
			{wire.KindHeartbeat, map[string]any{"alive": true, "progress": 1, "more": 1}},
			{wire.KindHeartbeat, map[string]any{"alive": "yes"}},
			{wire.KindHeartbeat, wire.Heartbeat{Alive: true, Note: string(make([]byte, maxWords+1))}},
			{wire.KindHumanWait, wire.HumanWait{Question: "  "}},
			{wire.KindResult, wire.Result{Class: "invalid_result", Files: []wire.File{}}},
			{wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: "../a", Digest: digest}}}},
			{wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: "a", Digest: "sha1:00"}}}},
			{wire.KindCheckpoint, wire.Checkpoint{Files: []wire.File{{Name: "a", Digest: digest}, {Name: "a", Digest: digest}}}},
			{wire.KindCheckpoint, wire.Checkpoint{Files: []wire.File{{Name: "a", Digest: digest, Bytes: -1}}}},
			{wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}}},
			{wire.KindHeartbeat, wire.Heartbeat{Alive: true, Process: &wire.Process{PID: 7, Start: strings.Repeat("s", 4096)}}},
			{wire.KindHeartbeat, wire.Heartbeat{Alive: true, Process: &wire.Process{PID: 7, Start: "\x1b[2J"}}},
			{wire.KindHeartbeat, wire.Heartbeat{Alive: true, Process: &wire.Process{PID: -1}}},
			{wire.KindAbandoning, wire.Abandoning{Live: make([]wire.Process, maxAlive+1)}},
			{wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{{PID: 7, Start: "a\nb"}}, Checks: 2}},
			{wire.KindResult, wire.Result{Succeeded: true, Class: "fine", Files: []wire.File{}}},
			{wire.KindResult, wire.Result{Succeeded: true, Worktree: strings.Repeat("h", 4096), Files: []wire.File{}}},
			{wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: "report\u202etxt.exe", Digest: digest}}}},
			{wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: "a\x07", Digest: digest}}}},
			{wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: `a\b`, Digest: digest}}}},
			{wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: "a", Digest: digest, Kind: "text/\u202eplain"}}}},
		} {
			_, err := g.try(c.kind, c.body)
			t.Log(c.kind, err)
			wantFault(t, err, ops.BadRequest, true)
		}
		if after := y.run(d); after.version != before.version {
			t.Error("the run has changed")
		}
		// What is not there yet can be brought, and the same said again.
		_, err := g.try(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{{Name: "a", Digest: digest}}})
		wantFault(t, err, ops.NoEvidence, false)
		g.say(wire.KindResult, done)
	})
}

func TestSpawnRefusesWhatCannotBeDone(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		for _, params := range []string{`{"task":" "}`, `{"task":"x","artifacts":["../out"]}`, `{"task":"x","artifacts":["/out"]}`, `{"task":"x","artifacts":["a\\b"]}`,
			`{"task":"x","artifacts":["."]}`, `{"task":"x","artifacts":["a\u202egpj.exe"]}`, `{"task":"x","verify":{"command":[""]}}`, `{"task":"x","verify":{"command":["a","b\u0000"]}}`} {
			err := y.store.Update(t.Context(), func(tx journal.Tx) error {
				_, err := y.plane.spawn(tx, ops.Call{ID: ops.NewCallID(), By: ada, Params: json.RawMessage(params)})
				return err
			})
			var f *ops.Fault
			if !errors.As(err, &f) || f.Code != ops.InvalidParams || f.Details["pointer"] == nil || f.Details["want"] == nil {
				t.Errorf("%s: %v", params, err)
			}
		}
		if n := y.number(`SELECT count(*) FROM delegation`); n != 0 {
			t.Errorf("%d delegations", n)
		}
		d := y.held(y.spawn(`{"task":"x","retries":{"window":3,"worker_lost":0}}`)).delegation
		if d.retries[Window] != 3 || d.retries[WorkerLost] != 0 || d.retries[InvalidResult] != DefaultBudget()[InvalidResult] {
			t.Errorf("the budget is %v", d.retries)
		}
	})
}

func TestAWindowThatIsUsedUpIsGivenAnew(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		d := y.spawn(`{"task":"x","deadline":"1m","retries":{"window":1}}`)
		y.pass(time.Minute + time.Second)
		h := y.held(d)
		if h.run.attempt != 2 || h.run.state != Dispatched || h.run.deadline.Sub(h.run.createdAt) != time.Minute {
			t.Fatalf("run %d is %s until %s", h.run.attempt, h.run.state, h.run.deadline)
		}
		y.pass(2 * time.Minute)
		y.wants(d, Exhausted, DelegationExhausted)
	})
}
