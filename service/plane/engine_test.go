package plane

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// bulk makes n delegations whose first runs w holds, RUNNING, under leases until until.
// The calls that ordered them are made up, so they must not close.
func (y *yard) bulk(n int, w *hand, until time.Time, implementations ...string) {
	y.t.Helper()
	y.do(func(tx journal.Tx) error {
		now := tx.Now()
		deadline := now.Add(24 * time.Hour)
		if _, err := tx.Exec(`INSERT INTO instruction (digest, body) VALUES ('sha256:bulk', '{"original":"","task":"many"}') ON CONFLICT DO NOTHING`); err != nil {
			return err
		}
		budget := Budget{WorkerLost: 2}
		for i := range n {
			d := delegationRow{id: newID("d-"), call: ops.NewCallID(), by: ada, implementation: implementations[i%len(implementations)], instruction: "sha256:bulk",
				retries: budget, deadline: deadline, createdAt: now, grace: time.Minute}
			if err := d.insert(tx); err != nil {
				return err
			}
			fence := int64(1)<<32 | 1
			r := runRow{delegation: d.id, attempt: 1, implementation: d.implementation, notBefore: now, deadline: deadline}
			if err := y.plane.insertRun(tx, &r, now); err != nil {
				return err
			}
			if _, err := tx.Exec(`UPDATE dispatch SET state = 'RUNNING', fence = $1, worker = $2, boot = $3, lease_until = $4, due_at = $4, leased_at = $5, started_at = $5, progress_at = $5 WHERE id = $6`,
				fence, string(w.who.ID), w.boot, until.UnixMilli(), now.UnixMilli(), r.dispatch); err != nil {
				return err
			}
			if _, err := tx.Exec(`UPDATE delegation SET last_fence = $1 WHERE id = $2`, fence, d.id); err != nil {
				return err
			}
		}
		return nil
	})
}

// due is what the sweep finds, without telling anybody.
func (y *yard) due(p *Plane) (list []overdue) {
	y.t.Helper()
	if err := y.store.View(y.t.Context(), func(tx journal.Tx) error {
		runs, err := texts(tx, `SELECT run FROM dispatch WHERE due_at <= $1 ORDER BY due_at, id`, tx.Now().UnixMilli())
		if err != nil {
			return err
		}
		for _, run := range runs {
			h, err := p.load(tx, "", run)
			if err != nil {
				return err
			}
			if o, _ := p.dueOf(h, tx.Now(), time.Time{}); o.kind != "" {
				list = append(list, o)
			}
		}
		return nil
	}); err != nil {
		y.t.Fatal(err)
	}
	return list
}

// pb-001
func TestALeaseThatIsMissingIsFoundByTheState(t *testing.T) {
	without := `UPDATE dispatch SET lease_until = NULL, due_at = NULL WHERE delegation = $1`
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		smith.must(0).started()
		if err := y.store.Update(t.Context(), func(tx journal.Tx) error { _, err := tx.Exec(without, d); return err }); !errors.Is(err, journal.ErrConstraint) {
			t.Errorf("a lease was deleted with %v, want the constraint to refuse it", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		y := &yard{t: t, path: filepath.Join(t.TempDir(), "journal.db"), schema: lawless(t)}
		y.begin()
		defer y.close()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		smith.must(0).started()
		y.exec(without, d)
		y.start()
		synctest.Wait()
		if n := y.events("run.lease_missing", d); n != 1 {
			t.Errorf("%d events lease_missing, want one", n)
		}
		y.wants(d, Unknown, Open)
		y.pass(y.plane.Recover + look)
		if h := y.held(d); h.run.attempt != 2 || y.number(`SELECT count(*) FROM dispatch WHERE delegation = $1 AND state = 'FAILED' AND class = 'worker_lost'`, d) != 1 {
			t.Errorf("run %d is %s", h.run.attempt, h.run.state)
		}
	})
}

// lawless is the schema without the constraint that a leased run has a lease.
func lawless(t *testing.T) journal.Schema {
	b, err := schema.ReadFile("schema/sqlite/00001_plane.sql")
	if err != nil {
		t.Fatal(err)
	}
	law := regexp.MustCompile(`(?s)CHECK \(\(fence IS NOT NULL AND worker IS NOT NULL.*?state <> 'CANCEL_REQUESTED'\)\),\s*CHECK`)
	bent := law.ReplaceAll(b, []byte("CHECK"))
	if bytes.Equal(bent, b) {
		t.Fatal("the constraint was not found")
	}
	return journal.Schema{Name: "plane", FS: fstest.MapFS{"sqlite/00001_plane.sql": {Data: bent}}}
}

// pb-002
func TestTwoSweepersMoveALeaseOnOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		const repeats = 1000
		smith := y.hire("smith", ops.Worker)
		y.bulk(repeats, smith, time.Now().Add(-time.Second), StandardImplementation)
		a, b := y.plane, y.another()
		list := y.due(a)
		if len(list) != repeats {
			t.Fatalf("%d runs are due, want %d", len(list), repeats)
		}
		for i, o := range list {
			var did [2]int
			var errs [2]error
			var both sync.WaitGroup
			for j, p := range []*Plane{a, b} {
				both.Go(func() { did[j], errs[j] = p.tellAll(t.Context(), []overdue{o}) })
			}
			both.Wait()
			if err := errors.Join(errs[:]...); err != nil || did[0]+did[1] != 1 {
				t.Fatalf("repeat %d: %v were told, with %v; want one", i, did, err)
			}
		}
		if n := y.events("run.lease_expired", ""); n != repeats {
			t.Errorf("%d events lease_expired, want %d", n, repeats)
		}
		if n := y.number(`SELECT count(*) FROM dispatch WHERE attempt > 1`); n != 0 {
			t.Errorf("%d new runs, want none yet", n)
		}
	})
}

// pb-003, pb-018
func TestAHeartbeatThatCannotBeWrittenIsNotAcknowledged(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		until := y.run(d).leaseUntil
		y.broken.Store(true)
		for range 2 {
			y.pass(y.plane.Heartbeat / 2)
			_, err := g.try(wire.KindHeartbeat, alive(1))
			if f := wantFault(t, err, ops.Unavailable, false); !f.Retryable {
				t.Errorf("%v cannot be tried again", f)
			}
			if got := y.run(d).leaseUntil; !got.Equal(until) {
				t.Errorf("the lease ends at %s, want %s", got, until)
			}
		}
		y.broken.Store(false)
		if ack := g.beat(1); ack.LeaseMS != y.plane.TTL.Milliseconds() {
			t.Errorf("after half a lease: %+v", ack)
		}
		y.broken.Store(true)
		y.pass(2 * y.plane.TTL)
		y.broken.Store(false)
		_, err := g.try(wire.KindHeartbeat, alive(2))
		wantFault(t, err, ops.StaleFence, true)
		y.pass(lastRetry)
		if n := y.events("run.lease_expired", d); n != 1 {
			t.Errorf("%d events lease_expired, want one", n)
		}
	})
}

// pb-004, pb-020
func TestALostWorkerIsReplacedWithinItsOwnBudget(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"24h","retries":{"task_failed":0,"worker_lost":2}}`)
		for attempt := 1; attempt <= 3; attempt++ {
			g := smith.must(time.Minute)
			if g.Attempt != attempt {
				t.Fatalf("attempt %d, want %d", g.Attempt, attempt)
			}
			g.started()
			y.wants(d, Running, Open)
			y.pass(y.plane.TTL)
			if attempt < 3 {
				y.wants(d, Unknown, Open)
				y.pass(y.plane.Recover)
				if h := y.held(d); h.run.attempt != attempt+1 || h.run.state != Dispatched || h.delegation.used[WorkerLost] != attempt || len(h.delegation.used) != 1 {
					t.Fatalf("run %d is %s, used %v", h.run.attempt, h.run.state, h.delegation.used)
				}
			}
		}
		// The budget is used up: nothing follows from deciding, so it stays to be seen.
		y.wants(d, Unknown, Open)
		smith.reboot(wire.BootRun{Run: y.run(d).run, Live: []wire.Process{}})
		y.pass(time.Second)
		y.wants(d, Exhausted, DelegationExhausted)
		if n := y.number(`SELECT count(*) FROM dispatch WHERE delegation = $1`, d); n != 3 {
			t.Errorf("%d runs, want 3", n)
		}
	})
}

// pb-005, pb-011
func TestACancelledRunStaysSoAndIsToldEachTime(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{Reason: "not needed"}); err != nil {
			t.Fatal(err)
		}
		for i, say := range []func() wire.Ack{
			func() wire.Ack { return g.beat(1) },
			func() wire.Ack { return g.say(wire.KindCheckpoint, wire.Checkpoint{Progress: 2, Files: []wire.File{}}) },
			func() wire.Ack { return g.beat(3) },
		} {
			if ack := say(); !ack.Cancel || ack.Reason != "cancelled" || ack.CancelMS <= 0 {
				t.Errorf("message %d answered %+v", i, ack)
			}
			y.wants(d, CancelRequested, Open)
		}
		_, err := g.try(wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{{PID: 9, Start: "s9"}}, Checks: 2})
		wantFault(t, err, ops.Unproven, false) // pb-026
		y.wants(d, CancelRequested, Open)
		g.say(wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{}, Checks: 2})
		y.wants(d, Cancelled, DelegationCancelled)
	})
}

// pb-006
func TestALeaseEndsWithTheDeadlineHoweverItIsKeptAlive(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"65s"}`)
		g := smith.must(0)
		g.started()
		deadline := y.run(d).deadline
		for range 6 {
			y.pass(10 * time.Second)
			if g.beat(1).Cancel {
				t.Fatal("told to stop before the deadline")
			}
			if until := y.run(d).leaseUntil; until.After(deadline) {
				t.Fatalf("the lease ends at %s, after the deadline %s", until, deadline)
			}
		}
		y.pass(10 * time.Second)
		if ack := g.beat(1); !ack.Cancel || ack.Reason != "deadline_exceeded" {
			t.Errorf("after the deadline: %+v", ack)
		}
		y.wants(d, CancelRequested, Open)
		for range 3 {
			y.pass(10 * time.Second)
			_, _ = g.try(wire.KindHeartbeat, alive(1))
		}
		y.pass(10 * time.Second)
		if r := y.run(d); r.state.HasLease() || r.reason != "cancel_deadline_passed" {
			t.Errorf("the run is %s: %s", r.state, r.reason)
		}
		if n := y.events("run.deadline_passed", d) + y.events("run.cancel_deadline_passed", d) + y.events("run.lease_expired", d); n != 2 {
			t.Errorf("the lease was ended by %d events, want two", n)
		}
	})
}

// pb-007
func TestNothingRunsAgainWhileAMutationIsUnproven(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","retries":{"worker_lost":2,"unknown_external":1}}`)
		g := smith.must(0)
		g.started()
		g.say(wire.KindMutationIntended, wire.MutationIntended{Key: g.IdemKey, Action: "pay"})
		y.pass(10 * time.Minute)
		y.wants(d, WaitingHuman, Open)
		if n := y.number(`SELECT count(*) FROM dispatch WHERE delegation = $1`, d); n != 1 {
			t.Fatalf("%d runs, want one", n)
		}
		no := false
		if _, err := y.plane.Resolve(t.Context(), ada, d, ResolveRequest{Mutation: g.IdemKey, Done: &no, Proof: "the bank says so"}); err != nil {
			t.Fatal(err)
		}
		again := smith.must(time.Minute)
		if again.IdemKey == g.IdemKey || again.Attempt != 2 {
			t.Errorf("attempt %d has the key %s, as the first", again.Attempt, again.IdemKey)
		}
		again.started()
		_, err := again.try(wire.KindMutationIntended, wire.MutationIntended{Key: g.IdemKey, Action: "pay"})
		if err == nil {
			t.Error("a key was used again")
		}
	})
}

// pb-008
func TestASweeperThatComesLateChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		r := y.run(d)
		late := overdue{r.run, r.version, OnLeaseExpired}
		g.beat(1)
		g.say(wire.KindResult, done)
		time.Sleep(2 * y.plane.TTL)
		if did, err := y.plane.tellAll(t.Context(), []overdue{late}); did != 0 || err != nil {
			t.Errorf("%d were told with %v, want none", did, err)
		}
		// And in the statement itself, were the reading skipped.
		h := y.held(d)
		h.run.version--
		if err := y.store.Update(t.Context(), func(tx journal.Tx) error { return y.plane.writeRun(tx, h) }); !errors.Is(err, ErrStaleRow) {
			t.Errorf("an old row was written with %v", err)
		}
		y.wants(d, Succeeded, Verifying)
		if n := y.events("run.lease_expired", d); n != 0 {
			t.Errorf("%d events lease_expired", n)
		}
	})
}

// pb-009
func TestFiveThousandLostRunsAreAllFound(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		implementations := []string{"a", "b", "c", "d", "e", "f", "g"}
		const n = 5000
		y.bulk(n, smith, time.Now().Add(y.plane.TTL), implementations...)
		y.pass(y.plane.TTL + look)
		if left := y.number(`SELECT count(*) FROM dispatch WHERE state = 'RUNNING'`); left != 0 {
			t.Errorf("%d runs are RUNNING still", left)
		}
		if got := y.events("run.lease_expired", ""); got != n {
			t.Errorf("%d events lease_expired, want %d", got, n)
		}
		g, err := y.plane.Gauges(t.Context())
		if err != nil || g.OldestRunning != 0 || g.LiveLeases != 0 || g.Unknown != n {
			t.Errorf("gauges %+v, %v", g, err)
		}
	})
}

// pb-012
func TestRowsThatAreNotEligibleHideNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		smith := y.hire("smith", ops.Worker)
		y.bulk(sweepPage, smith, time.Now().Add(-time.Hour), StandardImplementation)
		y.exec(`UPDATE dispatch SET state = 'WAITING_HUMAN', proof = 'ended'`)
		time.Sleep(time.Second)
		y.bulk(1, smith, time.Now().Add(-time.Minute), StandardImplementation)
		if _, did, err := y.plane.sweepRuns(t.Context()); err != nil || !did {
			t.Fatalf("the sweep did something: %t, %v", did, err)
		}
		if n := y.number(`SELECT count(*) FROM dispatch WHERE state = 'UNKNOWN'`); n != 1 {
			t.Errorf("%d runs were moved on, want one", n)
		}
	})
}

// pb-014, pb-033
func TestALeaseIsJudgedByWhatIsStored(t *testing.T) {
	for _, c := range []struct {
		ttl, heartbeat time.Duration
		ok             bool
	}{{10 * time.Second, 10 * time.Second, false}, {29 * time.Second, 10 * time.Second, false}, {30 * time.Second, 10 * time.Second, true}} {
		y := Config{TTL: c.ttl, Heartbeat: c.heartbeat}
		synctest.Test(t, func(t *testing.T) {
			whole := newYard(t, nil)
			defer whole.close()
			y.Store, y.Door, y.Directory, y.Policy, y.Log, y.Key = whole.store, whole.door, access.NewDirectory(whole.store), access.NewLivePolicy(access.DefaultPolicy()), slog.New(slog.DiscardHandler), whole.plane.Key
			if p, err := New(y); (err == nil) != c.ok {
				t.Errorf("a lease of %s with heartbeats each %s: %v, want ok %t", c.ttl, c.heartbeat, err, c.ok)
			} else if err != nil && !strings.Contains(err.Error(), "three heartbeats") {
				t.Errorf("it is refused with %v, which does not say what would be right", err)
			} else if p != nil {
				p.Close()
			}
		})
	}
	inYard(t, nil, func(t *testing.T, y *yard) {
		config := y.config
		y.config = func(c *Config) { c.TTL, c.Heartbeat = 9*time.Second, 3*time.Second }
		short := y.another()
		y.config = config
		if err := short.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer short.Close()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		for range 10 { // one heartbeat of two is lost, and each comes late
			y.pass(20*time.Second + 500*time.Millisecond)
			g.beat(1)
		}
		y.wants(d, Running, Open)
		if n := y.events("run.lease_expired", d); n != 0 {
			t.Errorf("%d leases expired", n)
		}
	})
}

// pb-015, pb-043 case A
func TestAResultThatComesTooLateIsEvidenceUntilItIsAdopted(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","retries":{"worker_lost":0}}`)
		g := smith.must(0)
		g.started()
		y.pass(y.plane.TTL + time.Second)
		y.wants(d, Unknown, Open)
		_, err := g.try(wire.KindResult, done)
		wantFault(t, err, ops.StaleFence, true)
		if n := y.number(`SELECT count(*) FROM evidence WHERE subject = $1 AND kind = 'result'`, g.Run); n != 1 {
			t.Errorf("%d rows of evidence, want one", n)
		}
		if g, err := y.plane.Gauges(t.Context()); err != nil || g.LiveLeases != 0 {
			t.Errorf("gauges %+v, %v", g, err)
		}
		y.pass(time.Second)
		y.wants(d, Succeeded, Verifying)
		if n := y.events("run.reconciled", d); n != 1 {
			t.Errorf("it was adopted by %d events reconciled, want one", n)
		}
		if r := y.run(d); r.result == nil || r.summary != done.Summary {
			t.Errorf("result %v, summary %q", r.result, r.summary)
		}
	})
}

// A late success whose declared files are not there could not be verified: a new run comes
// of it where one may, and otherwise it is known what is missing.
func TestALateResultWithoutItsFilesLeavesRoomForANewRun(t *testing.T) {
	for name, tt := range map[string]struct {
		retries    int
		attempts   int
		run        State
		delegation DelegationState
	}{
		"a new run may follow":  {1, 2, Dispatched, Open},
		"no new run may follow": {0, 1, Succeeded, EvidenceMissing},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, nil, func(t *testing.T, y *yard) {
				smith := y.hire("smith", ops.Worker)
				d := y.spawn(fmt.Sprintf(`{"task":"x","artifacts":["report.md"],"retries":{"worker_lost":%d}}`, tt.retries))
				g := smith.must(0)
				g.started()
				y.pass(y.plane.TTL + time.Second)
				_, err := g.try(wire.KindResult, done)
				wantFault(t, err, ops.StaleFence, true)
				y.pass(time.Second)
				y.wants(d, tt.run, tt.delegation)
				if h := y.held(d); h.delegation.attempts != tt.attempts {
					t.Errorf("%d attempts, want %d", h.delegation.attempts, tt.attempts)
				}
			})
		})
	}
}

// A success that came too late and whose declared files did not come at all can complete
// nothing: where a new run may follow, one does.
func TestALateSuccessWithoutItsFilesIsDoneAgainWhereItMayBe(t *testing.T) {
	for _, tc := range []struct {
		lost  string
		run   State
		state DelegationState
	}{{"1", Dispatched, Open}, {"0", Succeeded, EvidenceMissing}} {
		inYard(t, nil, func(t *testing.T, y *yard) {
			smith := y.hire("smith", ops.Worker)
			d := y.spawn(`{"task":"x","artifacts":["report"],"retries":{"worker_lost":` + tc.lost + `}}`)
			g := smith.must(0)
			g.started()
			y.pass(y.plane.TTL + time.Second)
			y.wants(d, Unknown, Open)
			_, err := g.try(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{}})
			wantFault(t, err, ops.StaleFence, true)
			y.pass(time.Second)
			y.wants(d, tc.run, tc.state)
		})
	}
}

// pb-016, pb-048, principle: one more lease time at start
func TestAPlaneThatComesBackLeavesLeasesTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer func() { y.close() }()
		y.start()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		for range 6 {
			y.pass(10 * time.Second)
			g.beat(1)
		}
		y.reopen()
		time.Sleep(60 * time.Second)
		y.start()
		y.pass(y.plane.TTL - time.Second)
		g.beat(2)
		y.wants(d, Running, Open)
		y.pass(y.plane.TTL + time.Second)
		y.wants(d, Unknown, Open)
		// A second plane that starts leaves fresh leases alone.
		other := y.spawn("")
		fresh := smith.must(0)
		fresh.started()
		y.pass(3 * time.Second)
		second := y.another()
		if err := second.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		synctest.Wait()
		y.wants(other, Running, Open)
		if r := y.run(other); r.fence != fresh.Fence || r.attempt != 1 {
			t.Errorf("the lease is %d of attempt %d", r.fence, r.attempt)
		}
		fresh.beat(1)
	})
}

// pb-017, the part of the plane
func TestAWorkerThatDrainsKeepsWhatItHas(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		if _, err := y.plane.DrainWorker(t.Context(), ada, "smith", true); err != nil {
			t.Fatal(err)
		}
		y.spawn("")
		if smith.poll(time.Second) != nil {
			t.Error("a worker that drains was granted something")
		}
		for range 9 {
			y.pass(10 * time.Second)
			if ack := g.beat(1); !ack.Drain || ack.LeaseMS == 0 {
				t.Fatalf("heartbeat answered %+v", ack)
			}
		}
		g.say(wire.KindResult, done)
		y.wants(d, Succeeded, Verifying)
		if _, err := y.plane.DrainWorker(t.Context(), ada, "smith", false); err != nil {
			t.Fatal(err)
		}
		smith.must(0)
	})
}

// pb-019, pb-021, pb-035
func TestWhoHasLostItsLeaseChangesNothing(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		a, b := y.hire("a", ops.Worker), y.hire("b", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"24h"}`)
		first := a.must(0)
		first.started()
		y.pass(2*y.plane.TTL + time.Second)
		second := b.must(time.Minute)
		if second.Attempt != 2 || second.Fence != first.Fence+1 {
			t.Fatalf("attempt %d under fence %d, want 2 and %d", second.Attempt, second.Fence, first.Fence+1)
		}
		second.started()
		before := y.held(d)
		for _, m := range []struct {
			kind wire.Kind
			body any
		}{{wire.KindCheckpoint, wire.Checkpoint{Progress: 5, Files: []wire.File{}}}, {wire.KindResult, done}, {wire.KindHeartbeat, alive(9)}} {
			_, err := first.try(m.kind, m.body)
			wantFault(t, err, ops.StaleFence, true)
		}
		// And under the other's fence, should it guess it.
		guess := *first
		guess.Grant.Header = second.Header
		guess.Worker, guess.seq, guess.prev = "a", second.seq, second.prev
		_, err := guess.try(wire.KindResult, done)
		wantFault(t, err, ops.StaleFence, true)
		if after := y.held(d); after.run.version != before.run.version || after.delegation.version != before.delegation.version {
			t.Error("the second run has changed")
		}
		if n := y.number(`SELECT count(*) FROM evidence WHERE worker = 'a'`); n != 4 {
			t.Errorf("%d rows of evidence, want 4", n)
		}
		never := *first
		never.Run = "r-01jzzzzzzzzzzzzzzzzzzzzzzz"
		_, err = never.try(wire.KindResult, done)
		wantFault(t, err, ops.NotFound, true)
		if n := y.number(`SELECT count(*) FROM evidence`); n != 4 {
			t.Errorf("%d rows of evidence, want 4", n)
		}
		second.say(wire.KindResult, done)
		y.wants(d, Succeeded, Verifying)
	})
}

// pb-022
func TestACancelThatCannotBeProvedIsNoCancel(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{Grace: 20 * time.Second}); err != nil {
			t.Fatal(err)
		}
		g.say(wire.KindCancelAck, wire.CancelAck{})
		g.say(wire.KindCancelFailed, wire.CancelFailed{Reason: "it ignores SIGKILL"})
		y.wants(d, CancelRequested, Open)
		y.pass(25 * time.Second)
		y.wants(d, Unknown, Open)
		y.pass(y.plane.Recover)
		y.wants(d, WaitingHuman, Open)
		if n := y.events("run.recovery_started", d); n != 1 {
			t.Errorf("%d events recovery_started, want one", n)
		}
	})
}

// pb-023
func TestACancelledDispatchIsOfferedToNobody(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		var workers []*hand
		for i := range 20 {
			workers = append(workers, y.hire(ops.IdentityID(fmt.Sprint("w", i)), ops.Worker))
		}
		poll := func() (granted *atomic.Int64, wait func()) {
			granted = new(atomic.Int64)
			var all sync.WaitGroup
			for _, w := range workers {
				all.Go(func() {
					g, err := w.tryPoll(5 * time.Second)
					if err != nil {
						t.Error(err)
					}
					if g != nil {
						granted.Add(1)
					}
				})
			}
			return granted, all.Wait
		}
		// It is cancelled while they wait and it is held back, then nothing is.
		y.do(func(tx journal.Tx) error { return y.door.Hold(tx, ada, service.Everything) })
		d := y.spawn("")
		y.exec(`UPDATE delegation SET by_role = 'agent' WHERE id = $1`, d)
		granted, wait := poll()
		synctest.Wait()
		if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{}); err != nil {
			t.Fatal(err)
		}
		y.do(func(tx journal.Tx) error { return y.door.Release(tx, ada, service.Everything) })
		wait()
		y.wants(d, Cancelled, DelegationCancelled)
		if n := y.events("run.lease_granted", d); n != 0 || granted.Load() != 0 {
			t.Errorf("it was offered %d times, and granted %d", n, granted.Load())
		}
		// And in a race with them: either nobody has it, or one, who is told to stop.
		for range 20 {
			d := y.spawn("")
			granted, wait := poll()
			if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{}); err != nil {
				t.Fatal(err)
			}
			wait()
			want := Cancelled
			if granted.Load() > 0 {
				want = CancelRequested
			}
			if r := y.run(d); granted.Load() > 1 || want == Cancelled && r.state != want {
				t.Errorf("%d have it, and the run is %s", granted.Load(), r.state)
			}
		}
	})
}

// pb-024
func TestLifeWithoutProgressIsNotEnough(t *testing.T) {
	inYard(t, func(c *Config) { c.Stall = time.Minute }, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		for range 5 {
			y.pass(10 * time.Second)
			if g.beat(1).Cancel {
				t.Fatal("stopped too early")
			}
		}
		y.pass(25 * time.Second)
		if n := y.events("run.stalled", d); n != 1 {
			t.Errorf("%d events stalled, want one", n)
		}
		if ack := g.beat(1); !ack.Cancel || ack.Reason != "stalled" {
			t.Errorf("heartbeat answered %+v", ack)
		}
	})
}

// pb-027, pb-029, pb-043 case B
func TestABootEndsTheOneBefore(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"24h"}`)
		g := smith.must(0)
		g.started()
		y.pass(2 * time.Second)
		before := *smith
		smith.reboot()
		y.wants(d, Unknown, Open)
		if r := y.run(d); r.reason != "worker_rebooted" {
			t.Errorf("it is UNKNOWN because of %s", r.reason)
		}
		_, err := g.try(wire.KindHeartbeat, alive(1))
		wantFault(t, err, ops.StaleFence, true)
		as := *g // the new boot may not speak for the old one's lease
		as.Grant.Boot = smith.boot
		_, err = as.try(wire.KindHeartbeat, alive(1))
		wantFault(t, err, ops.StaleFence, true)
		_, err = before.tryPoll(0)
		wantFault(t, err, ops.StaleFence, true)
		if err := before.begin(before.boot); err == nil {
			t.Error("a boot that has ended began again")
		}
		// A later boot that has looked proves what became of it.
		y.wants(d, Unknown, Open)
		smith.reboot(wire.BootRun{Run: g.Run, Live: []wire.Process{}})
		y.pass(time.Second)
		if proof := y.text(`SELECT proof FROM dispatch WHERE run = $1`, g.Run); proof != string(NewBoot) {
			t.Errorf("the proof is %q", proof)
		}
		if again := smith.must(time.Minute); again.Attempt != 2 {
			t.Errorf("attempt %d, want 2", again.Attempt)
		}
	})
}

// pb-028
func TestAStartAdoptsNothingThatIsBegunMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.start()
		smith := y.hire("smith", ops.Worker)
		const repeats = 500
		for i := range repeats {
			var d string
			var g *tenure
			var err error
			second := y.another()
			var both sync.WaitGroup
			both.Go(func() {
				d = y.spawn("")
				g, err = smith.tryPoll(time.Second)
			})
			both.Go(func() {
				if err := second.Start(t.Context()); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			if err != nil || g == nil {
				t.Fatalf("repeat %d: granted %v, %v", i, g, err)
			}
			g.started()
			second.Close()
			if r := y.run(d); r.state != Running || r.fence != g.Fence || r.attempt != 1 {
				t.Fatalf("repeat %d: run %d is %s under %d, granted under %d", i, r.attempt, r.state, r.fence, g.Fence)
			}
			g.say(wire.KindResult, failed)
		}
		if n := y.events("run.lease_granted", ""); n != repeats {
			t.Errorf("%d leases were granted, want %d", n, repeats)
		}
	})
}

// pb-030
func TestForgedCallbacksAreRefusedForGood(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, other := y.hire("smith", ops.Worker), y.hire("other", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		before := y.held(d)
		good, _ := g.seal(wire.KindHeartbeat, alive(1))
		type signature struct {
			KeyID string `json:"keyid"`
			Sig   string `json:"sig"`
		}
		type envelope struct {
			PayloadType string      `json:"payloadType"`
			Payload     string      `json:"payload"`
			Signatures  []signature `json:"signatures"`
		}
		bent := func(bend func(*envelope)) []byte {
			var e envelope
			if err := json.Unmarshal(good, &e); err != nil {
				t.Fatal(err)
			}
			bend(&e)
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		strip := func(e *envelope) {
			payload, _ := base64.StdEncoding.DecodeString(e.Payload)
			e.Payload = base64.StdEncoding.EncodeToString([]byte(strings.Replace(string(payload), `"seq":2`, `"seq":9`, 1)))
		}
		cases := []struct {
			name     string
			envelope []byte
			by       ops.Identity
			code     ops.Code
		}{
			{"truncated", good[:len(good)/2], smith.who, ops.BadRequest},
			{"nothing", nil, smith.who, ops.BadRequest},
			{"random signature", bent(func(e *envelope) { e.Signatures[0].Sig = base64.StdEncoding.EncodeToString(make([]byte, 64)) }), smith.who, ops.BadSignature},
			{"unknown key", bent(func(e *envelope) { e.Signatures[0].KeyID = wire.KeyID(make(ed25519.PublicKey, 32)) }), smith.who, ops.BadSignature},
			{"another kind", bent(func(e *envelope) { e.PayloadType = wire.KindResult.PayloadType() }), smith.who, ops.BadSignature},
			{"no kind", bent(func(e *envelope) { e.PayloadType = "application/jwt" }), smith.who, ops.BadRequest},
			{"two signatures", bent(func(e *envelope) { e.Signatures = append(e.Signatures, e.Signatures[0]) }), smith.who, ops.BadRequest},
			{"changed sequence", bent(strip), smith.who, ops.BadSignature},
			{"another's token", good, other.who, ops.BadSignature},
		}
		rejected := func() (n int64) {
			for _, c := range y.plane.Counts() {
				if c.What == "auth_rejected" {
					n = c.N
				}
			}
			return n
		}
		for i, c := range cases {
			_, err := y.plane.Callback(t.Context(), c.by, c.envelope)
			t.Log(c.name)
			wantFault(t, err, c.code, true)
			if n := rejected(); n != int64(i+1) {
				t.Errorf("%s: the counter is at %d, want %d", c.name, n, i+1)
			}
		}
		if after := y.held(d); after.run.version != before.run.version || y.number(`SELECT count(*) FROM evidence`) != 0 {
			t.Error("a forged message has left something")
		}
		if _, err := y.plane.Callback(t.Context(), smith.who, good); err != nil {
			t.Errorf("the true one: %v", err)
		}
	})
}

// pb-032
func TestAWorkersClockDecidesNothing(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
			smith.off = off
			d := y.spawn("")
			g := smith.must(0)
			g.started()
			y.pass(10 * time.Second)
			g.beat(1)
			if s, err := y.plane.Gauges(t.Context()); err != nil || s.Skew != 10*time.Minute {
				t.Errorf("the skew is shown as %s, %v", s.Skew, err)
			}
			smith.off = 0 // it is set back in the middle
			y.pass(10 * time.Second)
			g.beat(2)
			g.say(wire.KindResult, done)
			y.wants(d, Succeeded, Verifying)
			if n := y.number(`SELECT sent_at - at FROM callback WHERE subject = $1 AND seq = 1`, g.Run); n != off.Milliseconds() {
				t.Errorf("the skew of the first message is kept as %d ms", n)
			}
		}
	})
}

// pb-036
func TestEveryAttemptFailsAndThereAreAsManyAsMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer func() { y.close() }()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"24h","retries":{"worker_lost":4}}`)
		for attempt := 1; attempt <= 5; attempt++ {
			y.start()
			g := smith.must(time.Minute)
			if g.Attempt != attempt {
				t.Fatalf("attempt %d, want %d", g.Attempt, attempt)
			}
			g.started()
			smith.reboot(wire.BootRun{Run: g.Run, Live: []wire.Process{}}) // killed, and begun again
			y.pass(time.Second)
			y.reopen()
		}
		y.start()
		y.pass(time.Hour)
		y.wants(d, Exhausted, DelegationExhausted)
		if n := y.number(`SELECT count(*) FROM dispatch WHERE delegation = $1`, d); n != 5 {
			t.Errorf("%d runs, want 5", n)
		}
		y.spawn("")
		smith.must(0) // and the worker works
	})
}

// pb-040
func TestALeaseThatLapsedBeforeItWasHeardOfIsNone(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		y.pass(y.plane.TTL + time.Millisecond)
		_, err := g.try(wire.KindStarted, wire.Started{})
		f := wantFault(t, err, ops.StaleFence, true)
		if reason := f.Details["reason"]; reason != "lease_expired" && reason != "no_lease" {
			t.Errorf("refused as %v", reason)
		}
		if proof := y.text(`SELECT proof FROM dispatch WHERE run = $1`, g.Run); proof != string(NeverStarted) {
			t.Errorf("the proof is %q, want %s", proof, NeverStarted)
		}
		y.pass(time.Second)
		if h := y.held(d); h.run.attempt != 2 {
			t.Errorf("run %d is %s", h.run.attempt, h.run.state)
		}
	})
}

// pb-041
func TestACommandThatIsDeadKeepsNoLease(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		if r := y.run(d); r.pid != 7 || r.pidStart != "s7" {
			t.Errorf("the process is %d %s", r.pid, r.pidStart)
		}
		ack := g.say(wire.KindHeartbeat, wire.Heartbeat{Process: &wire.Process{PID: 7, Start: "s7"}, Alive: false, Progress: 1})
		if ack.LeaseMS != 0 || !ack.Final {
			t.Errorf("answered %+v", ack)
		}
		y.wants(d, Unknown, Open)
	})
}

// pb-042
func TestANetworkThatFlapsStartsNothingTwice(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		a, b := y.hire("a", ops.Worker), y.hire("b", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"160h","retries":{"worker_lost":2}}`)
		var have []*tenure
		grants := 0
		for i := range 100 {
			wait := y.plane.TTL - 200*time.Millisecond
			if i%2 == 1 {
				wait = y.plane.TTL + 200*time.Millisecond
			}
			y.pass(wait)
			for _, w := range []*hand{a, b} {
				if g := w.poll(0); g != nil {
					grants++
					g.started()
					have = append(have, g)
				}
			}
			live := 0
			for _, g := range have {
				if _, err := g.try(wire.KindHeartbeat, alive(int64(i))); err == nil {
					live++
				}
			}
			if live > 1 {
				t.Fatalf("cycle %d: %d runs have authority", i, live)
			}
		}
		if grants > 3 {
			t.Errorf("%d runs were begun, want at most 3", grants)
		}
		y.held(d)
	})
}

// pb-044, the part of the plane
func TestWhatFollowsAResultIsInItsCommit(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		envelope, _ := g.seal(wire.KindResult, done)
		broken := errors.New("cut")
		m, err := y.plane.heardFrom(t.Context(), smith.who, envelope)
		if err != nil {
			t.Fatal(err)
		}
		if err := y.store.Update(t.Context(), func(tx journal.Tx) error {
			who, _, err := y.plane.principal(tx, "smith")
			if err != nil {
				return err
			}
			if _, fault, err := y.plane.callback(tx, m, who); fault != nil || err != nil {
				return fmt.Errorf("%v, %w", fault, err)
			}
			var open int
			if err := tx.Query(`SELECT count(*) FROM verification WHERE run = $1 AND state = 'WAITING'`, func(scan func(...any) error) error { return scan(&open) }, g.Run); err != nil || open != 1 {
				return fmt.Errorf("%d verifications in the commit, %w", open, err)
			}
			return broken
		}); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		y.wants(d, Running, Open) // nothing of it, then all of it
		if _, err := y.plane.Callback(t.Context(), smith.who, envelope); err != nil {
			t.Fatal(err)
		}
		if ack, err := y.plane.Callback(t.Context(), smith.who, envelope); err != nil || !ack.Replayed {
			t.Errorf("said again: %+v, %v", ack, err)
		}
		if n := y.number(`SELECT count(*) FROM verification WHERE delegation = $1`, d); n != 1 {
			t.Errorf("%d verifications, want one", n)
		}
	})
}

// pb-046
func TestACancelDuringTheWaitForANewRunHoldsAtOnce(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","retries":{"task_failed":9}}`)
		for range 5 { // until the wait is long
			g := smith.must(time.Minute)
			g.started()
			g.say(wire.KindResult, failed)
		}
		if r := y.run(d); !r.notBefore.After(time.Now().Add(time.Second)) {
			t.Fatalf("it waits until %s only", r.notBefore)
		}
		if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{}); err != nil {
			t.Fatal(err)
		}
		y.wants(d, Cancelled, DelegationCancelled)
		if smith.poll(time.Minute) != nil {
			t.Error("it was offered all the same")
		}
		y.wants(d, Cancelled, DelegationCancelled)
	})
}

// pb-047
func TestAKeyLeadsToOneDelegation(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		call := ops.Call{Op: "swarm.spawn", By: ada, Key: "K", Params: json.RawMessage(`{"task":"x","deadline":"100h"}`), From: ops.Origin{Source: "api"}}
		d := y.order(call)
		y.pass(25 * time.Hour)
		if again := y.order(call); again != d {
			t.Errorf("the same key made %s beside %s", again, d)
		}
		call.Params = json.RawMessage(`{"task":"y"}`)
		ticket, err := y.door.Submit(t.Context(), call)
		if err == nil && ticket.Outcome != nil && ticket.Outcome.Fault != nil {
			err = ticket.Outcome.Fault
		}
		wantFault(t, err, ops.KeyReused, false)
		if n := y.number(`SELECT count(*) FROM dispatch`); n != 1 {
			t.Errorf("%d dispatches, want one", n)
		}
	})
}

// pb-052
func TestWorkThatNobodyCanDoUsesNoAttempt(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		old := y.hire("old", ops.Worker)
		d := y.spawn(`{"task":"x","capabilities":["v2"]}`)
		for range 2*page + 9 {
			y.spawn(`{"task":"x","capabilities":["v2"]}`)
		}
		plain := y.spawn("")
		if g := old.must(0); g.Delegation != plain {
			t.Fatalf("%s was granted, want %s behind all that it cannot do", g.Delegation, plain)
		} else {
			g.started()
			g.say(wire.KindResult, done)
		}
		for range 5 {
			if old.poll(10*time.Second) != nil {
				t.Fatal("it was granted what it cannot do")
			}
		}
		if h := y.held(d); h.delegation.attempts != 1 || h.delegation.lastFence != 0 || h.run.state != Dispatched {
			t.Errorf("attempts %d, fence %d, %s", h.delegation.attempts, h.delegation.lastFence, h.run.state)
		}
		g, err := y.plane.Gauges(t.Context())
		if err != nil || g.NoAbleWorker != 2*page+10 || g.Waiting != g.NoAbleWorker {
			t.Errorf("gauges %+v, %v", g, err)
		}
		able := y.hire("new", ops.Worker, StandardImplementation, "v2")
		if got := able.must(0); got.Delegation != d {
			t.Errorf("%s was granted, want the first, %s", got.Delegation, d)
		}
	})
}

// pb-053
func TestAReplayIsAnsweredAsItWasAndChangesNothing(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		envelope, digest := g.seal(wire.KindHeartbeat, alive(4))
		first, err := y.plane.Callback(t.Context(), smith.who, envelope)
		if err != nil {
			t.Fatal(err)
		}
		g.seq, g.prev = g.seq+1, digest
		head, before := y.number(`SELECT count(*) FROM callback`), y.run(d)
		again, err := y.plane.Callback(t.Context(), smith.who, envelope)
		if first.Replayed = true; err != nil || again != first {
			t.Errorf("said again: %+v, %v, want %+v", again, err, first)
		}
		if after := y.run(d); after.version != before.version || y.number(`SELECT count(*) FROM callback`) != head || y.events("run.heartbeat", d) != 1 {
			t.Error("a replay has changed something")
		}
		// The same number with another body, then one that leaves a gap.
		other := *g
		other.seq, other.prev = 1, ""
		_, err = other.try(wire.KindHeartbeat, alive(5))
		wantFault(t, err, ops.OutOfSequence, true)
		gap := *g
		gap.seq += 3
		_, err = gap.try(wire.KindHeartbeat, alive(6))
		if f := wantFault(t, err, ops.OutOfSequence, false); f.Details["expected"] != int64(3) {
			t.Errorf("expected is %v, want 3", f.Details["expected"])
		}
		if n := y.number(`SELECT count(*) FROM evidence WHERE subject = $1`, g.Run); n != 1 {
			t.Errorf("%d rows of evidence, want one", n)
		}
		late, _ := g.seal(wire.KindHeartbeat, alive(7))
		y.pass(y.plane.TTL + time.Second)
		if again, err = y.plane.Callback(t.Context(), smith.who, envelope); err != nil || again != first {
			t.Errorf("after the lease: %+v, %v", again, err)
		}
		for range 2 {
			_, err = y.plane.Callback(t.Context(), smith.who, late)
			wantFault(t, err, ops.StaleFence, true)
		}
		if n := y.number(`SELECT count(*) FROM evidence WHERE subject = $1`, g.Run); n != 2 {
			t.Errorf("%d rows of evidence, want two", n)
		}
	})
}

// pb-054
func TestWhatFellAtOnceDoesNotComeBackAtOnce(t *testing.T) {
	inYard(t, func(c *Config) { c.StartsPerSecond = 100 }, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		const n = 2000
		y.bulk(n, smith, time.Now().Add(y.plane.TTL), StandardImplementation)
		y.pass(y.plane.TTL + y.plane.Recover + time.Second)
		if got := y.number(`SELECT count(*) FROM dispatch WHERE attempt = 2 AND state = 'DISPATCHED'`); got != n {
			t.Fatalf("%d new runs, want %d", got, n)
		}
		if most := y.number(`SELECT max(n) FROM (SELECT count(*) AS n FROM dispatch WHERE attempt = 2 GROUP BY not_before / 1000)`); most > 100 {
			t.Errorf("%d new runs begin in one second, want at most 100", most)
		}
		if spread := y.number(`SELECT count(DISTINCT not_before) FROM dispatch WHERE attempt = 2`); spread < n/4 {
			t.Errorf("they begin at %d moments only", spread)
		}
		if odd := y.number(`SELECT count(*) FROM delegation WHERE attempts <> 2`); odd != 0 {
			t.Errorf("%d delegations have not two attempts", odd)
		}
	})
}

// pb-055
func TestAWorkerThatAbandonsItsRunsFreesThemAtOnce(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith := y.hire("smith", ops.Worker)
		var have []*tenure
		for range 9 {
			y.spawn("")
			g := smith.must(0)
			g.started()
			have = append(have, g)
		}
		for _, g := range have {
			if ack := g.say(wire.KindAbandoning, wire.Abandoning{Reason: "the deployment rolls", Live: []wire.Process{}}); !ack.Final {
				t.Errorf("answered %+v", ack)
			}
		}
		if g, err := y.plane.Gauges(t.Context()); err != nil || g.LiveLeases != 0 {
			t.Errorf("gauges %+v, %v", g, err)
		}
		y.pass(time.Second)
		if n := y.number(`SELECT count(*) FROM dispatch WHERE attempt = 2 AND state = 'DISPATCHED'`); n != 9 {
			t.Errorf("%d new runs, want 9", n)
		}
	})
}

// pb-051: the first schema there is. What comes later adds its fixture here.
func TestRowsOfEveryStateOutliveAnUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer func() { y.close() }()
		smith := y.hire("smith", ops.Worker)
		y.bulk(len(States()), smith, time.Now().Add(time.Hour), StandardImplementation)
		runs := make(map[State]string)
		y.do(func(tx journal.Tx) error {
			list, err := texts(tx, `SELECT run FROM dispatch ORDER BY id`)
			if err != nil {
				return err
			}
			for i, s := range States() {
				runs[s] = list[i]
				if _, err := tx.Exec(`UPDATE dispatch SET state = $1, proof = CASE WHEN $1 = 'CANCELLED' THEN 'ended' ELSE '' END WHERE run = $2`, string(s), list[i]); err != nil {
					return err
				}
			}
			_, err = tx.Exec(`UPDATE dispatch SET recover_at = $1, due_at = $1 WHERE state IN ('UNKNOWN', 'RECOVERING')`, tx.Now().UnixMilli())
			return err
		})
		y.reopen()
		y.start()
		y.pass(y.plane.TTL + look)
		for s, run := range runs {
			got := State(y.text(`SELECT state FROM dispatch WHERE run = $1`, run))
			want := s
			switch s {
			case Unknown, Recovering:
				want = Failed // recovered, with a new run after it
			}
			if got != want {
				t.Errorf("a run that was %s is %s, want %s", s, got, want)
			}
		}
		if g := smith.poll(0); g == nil {
			t.Error("nothing is offered")
		}
	})
}
