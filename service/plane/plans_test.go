package plane

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// planned is a store that asks for the plan of each statement before it is carried out.
type planned struct {
	journal.Store
	mu    sync.Mutex
	plans map[string][]string // by statement
}

func (p *planned) Update(ctx context.Context, f func(journal.Tx) error) error {
	return p.Store.Update(ctx, func(tx journal.Tx) error { return f(plannedTx{tx, p}) })
}

func (p *planned) View(ctx context.Context, f func(journal.Tx) error) error {
	return p.Store.View(ctx, func(tx journal.Tx) error { return f(plannedTx{tx, p}) })
}

type plannedTx struct {
	journal.Tx
	to *planned
}

func (t plannedTx) Exec(sql string, args ...any) (int64, error) {
	if err := t.explain(sql, args); err != nil {
		return 0, err
	}
	return t.Tx.Exec(sql, args...)
}

func (t plannedTx) Query(sql string, row func(scan func(...any) error) error, args ...any) error {
	if err := t.explain(sql, args); err != nil {
		return err
	}
	return t.Tx.Query(sql, row, args...)
}

func (t plannedTx) explain(sql string, args []any) error {
	t.to.mu.Lock()
	defer t.to.mu.Unlock()
	if _, known := t.to.plans[sql]; known {
		return nil
	}
	plan := []string{}
	err := t.Tx.Query("EXPLAIN QUERY PLAN "+sql, func(scan func(...any) error) error {
		var id, parent, unused int64
		var detail string
		err := scan(&id, &parent, &unused, &detail)
		plan = append(plan, detail)
		return err
	}, args...)
	t.to.plans[sql] = plan
	return err
}

// What a plane has more of each day is only read through an index, and every index is there
// for a statement.
func TestPlans(t *testing.T) {
	store := &planned{plans: make(map[string][]string)}
	y := newYard(t, func(c *Config) {
		store.Store = c.Store
		c.Store = store
	})
	defer y.close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sweep := func(ahead time.Duration) {
		t.Helper()
		y.skew.Add(int64(ahead))
		y.plane.watch.reset(y.clock())
		_, err := y.plane.sweep(ctx, true)
		must(err)
	}
	must(y.plane.begin(ctx))
	smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)

	// One that goes its whole way, with all that a run can leave.
	whole := y.spawn(`{"task":"x","artifacts":["out.txt"],"verify":{"command":["true"]}}`)
	g := smith.must(0)
	if again, err := smith.pollAs(g.Nonce, 0); err != nil || again == nil {
		t.Fatalf("the same poll again: %v, %v", again, err)
	}
	g.started()
	g.beat(1)
	file := g.upload("out.txt", "all is well")
	g.say(wire.KindAttest, wire.Attest{Name: file.Name, Digest: file.Digest, Envelope: smith.sealed(g.statement(file))})
	g.say(wire.KindCheckpoint, wire.Checkpoint{Progress: 2, Files: []wire.File{file}})
	g.say(wire.KindMutationIntended, wire.MutationIntended{Key: "k1", Action: "send it"})
	g.say(wire.KindMutationProved, wire.MutationProved{Key: "k1", Done: true, Proof: "it answered"})
	if _, err := smith.fetched(file.Digest); err != nil {
		t.Error(err)
	}
	result := done
	result.Files = []wire.File{file}
	envelope, _ := g.seal(wire.KindResult, result)
	for range 2 { // the second is answered as the first was
		_, err := y.plane.Callback(ctx, smith.who, envelope)
		must(err)
	}
	v := judge.must(0)
	if again, err := judge.pollAs(v.Nonce, 0); err != nil || again == nil {
		t.Fatalf("the same poll again: %v, %v", again, err)
	}
	v.say(wire.KindStarted, wire.Started{})
	if _, err := judge.fetched(file.Digest); err != nil {
		t.Error(err)
	}
	v.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Command: []string{"true"}, Checked: []wire.File{file}})
	y.wants(whole, Succeeded, Completed)

	// One that fails and is done again, whose verifier goes, and that is closed for want of evidence.
	lacking := y.spawn(`{"task":"x","artifacts":["out.txt"],"deadline":"24h","retries":{"task_failed":3}}`)
	g = smith.must(0)
	g.started()
	g.say(wire.KindResult, failed)
	y.plane.offers.join(&waiter{role: ops.Worker, skills: skills{implementations: []string{StandardImplementation}}, ready: make(chan struct{}, 1)})
	sweep(time.Minute)
	g = smith.must(0)
	g.started()
	g.say(wire.KindResult, done)
	y.wants(lacking, Succeeded, EvidenceMissing)
	late := g.upload("out.txt", "all is well, late")
	g.say(wire.KindAttest, wire.Attest{Name: late.Name, Digest: late.Digest, Envelope: smith.sealed(g.statement(late))})
	y.wants(lacking, Succeeded, Verifying)
	judge.must(0)
	judge.reboot()
	sweep(2 * StandardVerify)
	_, err := y.plane.Retry(ctx, ada, lacking)
	must(err)
	sweep(3 * waitsForVerifier)

	// One whose worker is lost, speaks too late, comes back, and asks.
	unknown := y.spawn(`{"task":"x","deadline":"24h"}`)
	g = smith.must(0)
	g.started()
	g.say(wire.KindMutationIntended, wire.MutationIntended{Key: "k2", Action: "send it"})
	sweep(2 * StandardTTL)
	if _, err := g.try(wire.KindHeartbeat, alive(1)); err == nil {
		t.Error("a heartbeat of a lost lease is taken")
	}
	smith.reboot(wire.BootRun{Run: g.Run, Live: []wire.Process{}})
	sweep(2 * StandardTTL)
	y.wants(unknown, WaitingHuman, Open)
	happened := false
	_, err = y.plane.Resolve(ctx, ada, unknown, ResolveRequest{Mutation: "k2", Done: &happened, Proof: "asked them"})
	must(err)

	// Some that are cancelled, each in another way.
	_, err = y.plane.CancelDelegation(ctx, ada, unknown, CancelRequest{})
	must(err)
	params, _ := json.Marshal(map[string]any{"task": "x"})
	must(store.Update(ctx, func(tx journal.Tx) error {
		call := ops.Call{ID: "c-plans", By: ops.Identity{ID: "scout", Role: ops.Agent}, Params: params}
		if _, err := y.plane.spawn(tx, call); err != nil {
			return err
		}
		_, err := y.plane.CancelCall(tx, ada, call)
		return err
	}))

	// All who look, and all that is managed.
	agent := ops.Identity{ID: "scout", Role: ops.Agent}
	must(store.Update(ctx, func(tx journal.Tx) error {
		_, err := y.plane.spawn(tx, ops.Call{ID: "c-agent", By: agent, Params: params})
		return err
	}))
	for _, by := range []ops.Identity{ada, agent} {
		for _, r := range y.plane.Reads() {
			if r.Manage && by != ada {
				continue
			}
			for _, filter := range []map[string]string{nil, {"state": "OPEN"}, {"by": "ada"}, {"implementation": "default"}, {"thread": "t-1"}, {"state": "OPEN", "thread": "t-1"}} {
				if r.Name == "workers" && filter != nil {
					continue
				}
				arg := map[string]string{"delegation": whole, "worker": "smith"}[r.Name]
				if _, err := r.Do(ctx, by, service.Query{Arg: arg, Filter: filter}); err != nil && (by == ada || codeOf(err) != ops.NotFound) {
					t.Errorf("%s as %s: %v", r.Name, by, err)
				}
			}
		}
	}
	_, err = y.plane.Gauges(ctx)
	must(err)
	must(store.View(ctx, func(tx journal.Tx) error {
		_, err := Referenced(tx, []artifacts.Digest{artifacts.Digest(file.Digest)})
		return err
	}))
	_, err = y.plane.DrainWorker(ctx, ada, "smith", true)
	must(err)
	_, err = y.plane.Revoke(ctx, ada, "smith")
	must(err)
	_, err = y.plane.BumpTerm(ctx, ada)
	must(err)
	must(y.plane.settleClock(ctx))

	var indexes []string
	y.do(func(tx journal.Tx) (err error) {
		indexes, err = texts(tx, `SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL
			AND tbl_name IN ('plane', 'principal', 'invitation', 'start_slot', 'boot', 'instruction', 'delegation', 'dispatch', 'verification', 'callback', 'evidence', 'mutation', 'run_file')`)
		return err
	})
	used := map[string]bool{"dispatch_live": true, "verification_live": true} // which hold a law
	named := regexp.MustCompile(`INDEX (\w+)`)
	history := regexp.MustCompile(`INDEX (delegation_by|delegation_thread) `)
	scan := regexp.MustCompile(`^SCAN (.*)`)
	// Rows of the plane's own counting, who is enrolled, what is open, and a page that ends where it is full.
	small := regexp.MustCompile(`^(CONSTANT ROW|mine|principal|upload)\b`)
	open := regexp.MustCompile(`USING (COVERING )?INDEX (verification_offer|verification_leased|verification_live)$`)
	page := regexp.MustCompile(`ORDER BY (d\.id DESC|p\.id) LIMIT`)
	store.mu.Lock()
	defer store.mu.Unlock()
	for sql, plan := range store.plans {
		for _, step := range plan {
			if m := named.FindStringSubmatch(step); m != nil {
				used[m[1]] = true
			}
			if history.MatchString(step) && strings.Contains(sql, "count(") {
				t.Errorf("%s\n\tcounts all that one has ever ordered: %s", strings.Join(strings.Fields(sql), " "), step)
			}
			m := scan.FindStringSubmatch(step)
			if m == nil || open.MatchString(m[1]) || page.MatchString(sql) || small.MatchString(m[1]) {
				continue
			}
			t.Errorf("%s\n\treads ever more: %s", strings.Join(strings.Fields(sql), " "), step)
		}
	}
	for _, index := range indexes {
		if !used[index] {
			t.Errorf("no statement uses the index %s", index)
		}
	}
	if len(store.plans) < 100 {
		t.Errorf("only %d statements were seen", len(store.plans))
	}
}
