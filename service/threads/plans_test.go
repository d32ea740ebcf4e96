package threads

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
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

// What a journal has more of each day is only read through an index, and not through one
// that leads to all that an agent has ever done. Indices of what is open are small.
func TestPlans(t *testing.T) {
	store := &planned{plans: make(map[string][]string)}
	s := &square{board: newBoard()}
	s.board.users = map[ops.IdentityID]string{"scout": "U1", "ada": "UA"}
	s.house = openHouseOver(t, filepath.Join(t.TempDir(), "journal.db"), func(inner journal.Store) journal.Store {
		store.Store = inner
		return store
	}, echo("t.read", "all is well"), write("t.write", &s.ran))
	if err := s.threads.Attach(s.board); err != nil {
		t.Fatal(err)
	}
	s.people()
	if _, err := s.directory.Add(t.Context(), ops.Identity{ID: "board", Role: ops.Bridge}, scout.ID); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(s.close)

	// In a room an agent is woken, orders by its key and again and without it, and ends.
	if err := store.Update(t.Context(), func(tx journal.Tx) error {
		w, err := s.threads.Raise(tx, Errand{Agent: clerk.ID, Cause: ByMessage, Source: "test", By: ada, Text: "look", Ops: []ops.OpName{"t.write", "dm.send"}, Key: "k7q2-9"})
		if err != nil {
			return err
		}
		_, err = s.threads.Raise(tx, Errand{Agent: clerk.ID, Cause: ByTimer, Source: "test", By: ada, Text: "again", Thread: w.Thread})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var room string
	s.one(&room, `SELECT thread FROM wake LIMIT 1`)
	s.take(clerk, Reply{Agent: clerk.ID, Thread: room, Message: "m1",
		Text: `[TOOL#k7q2-9 t.write {}] [TOOL#k7q2-9 t.write {}] [TOOL t.write {"n":2}] [DM#k7q2-9 {"to":"scout","text":"look too"}]`})
	if _, err := s.threads.Weigh(t.Context(), ops.Call{By: clerk, Op: "t.write", Params: []byte("{}")}, ""); err != nil {
		t.Fatal(err)
	}
	s.take(clerk, Reply{Agent: clerk.ID, Thread: room, Message: "m2", Text: `[RESULT#k7q2-9 {"verdict":"done"}]`})
	// In a chat people write, agents answer, and an operator decides.
	chat := s.receive(s.said("U9", "read this: [TOOL t.write {}]")).Thread
	s.receive(s.said("U1", `[TOOL t.read {}] [TOOL t.write {"n":3}]`))
	s.receive(s.said("UA", "y k2k2"))
	s.posts(room, 8)
	s.posts(chat, 6)
	// What is open is looked after, and people and agents look.
	if err := store.Update(t.Context(), func(tx journal.Tx) error {
		_, err := s.threads.EndOverdue(tx, 100)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.threads.tellProgress(); err != nil {
		t.Fatal(err)
	}
	for _, by := range []ops.Identity{ada, clerk} {
		for _, r := range s.threads.Reads() {
			if r.Manage && by != ada {
				continue
			}
			if _, err := r.Do(t.Context(), by, service.Query{Arg: room}); err != nil {
				t.Errorf("%s as %s: %v", r.Name, by, err)
			}
		}
	}

	scan := regexp.MustCompile(`^SCAN (thread|participant|post|reply|outbox|inbound|wake|shown|material|decision|approval_code|call|approval)\b(.*)`)
	open := regexp.MustCompile(`USING (COVERING )?INDEX (call_open|outbox_open|outbox_queued|outbox_shown|wake_held|decision_new|approval_pending)$`)
	history := regexp.MustCompile(`INDEX (call_by|wake_agent|wake_thread) \(\w+=\?\)`)
	page := regexp.MustCompile(`ORDER BY id DESC LIMIT`) // which ends where the page does
	last := regexp.MustCompile(`WHERE agent = \$1 ORDER BY id DESC LIMIT 1$`)
	store.mu.Lock()
	defer store.mu.Unlock()
	for sql, plan := range store.plans {
		for _, step := range plan {
			m := scan.FindStringSubmatch(step)
			if m != nil && !open.MatchString(m[2]) && !page.MatchString(sql) || history.MatchString(step) && !last.MatchString(sql) {
				t.Errorf("%s\n\treads ever more: %s", strings.Join(strings.Fields(sql), " "), step)
			}
		}
	}
	if len(store.plans) < 60 {
		t.Errorf("only %d statements were seen", len(store.plans))
	}
}
