package threads

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

// until is a schema as it was when its last migration was named last.
func until(t *testing.T, s journal.Schema, last string) journal.Schema {
	t.Helper()
	files, err := fs.Glob(s.FS, "sqlite/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	old, found := fstest.MapFS{}, false
	for _, name := range files {
		if base := filepath.Base(name); base <= last {
			body, err := fs.ReadFile(s.FS, name)
			if err != nil {
				t.Fatal(err)
			}
			old[name] = &fstest.MapFile{Data: body}
			found = found || base == last
		}
	}
	if !found || len(old) == len(files) {
		t.Fatalf("schema %s: %s is not there, or nothing is newer", s.Name, last)
	}
	return journal.Schema{Name: s.Name, FS: old}
}

// A journal that was written before there were chats and wakes: everything in it stays, and
// what had not been delivered is.
func TestUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Schemas: []journal.Schema{
		access.Schema(), until(t, service.Schema(), "00002_approvals.sql"), until(t, Schema(), "00001_threads.sql"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, store: store, directory: access.NewDirectory(store)}
	h.people()
	const (
		thread, gone = "t-00000000000000000000000001", "t-00000000000000000000000009"
		ack          = `{"reply":"r-1","room":"lobby","thread":"` + thread + `","message":"m1","duplicate":false,"broken":0,"over_limit":0,` +
			`"calls":[{"call":"c-1","op":"echo","form":"tool","ordinal":1,"state":"received","start":0,"end":9},{"call":"c-2","op":"echo","form":"tool","ordinal":2,"state":"received","start":9,"end":18}]}`
		text   = "[TOOL echo {}][TOOL echo {}]"
		origin = `{"source":"rooms/lobby/m1#%d","answer":{"adaptor":"rooms","opaque":"` + thread + `"}}`
	)
	call := func(n int, state string, outcome any) []any {
		settled := outcome
		if settled != nil {
			settled = int64(4)
		}
		return []any{fmt.Sprintf("c-%d", n), state, fmt.Sprintf("rooms/lobby/m1#%d", n), fmt.Sprintf(origin, n), outcome, settled}
	}
	const addCall = `INSERT INTO call (id, by_id, by_role, op, provider, effect, definition, params, body_hash, idem_key, source, origin, evidence,
			state, owner, outcome, received_at, settled_at)
		VALUES ($1, 'scout', 'agent', 'echo', 'native', 'outside', 'd', '{}', 'h', $3, $3, $4, '{"key":0,"echo":0,"clean":false}', $2, 'boot', $5, 1, $6)`
	const addPost = `INSERT INTO post (thread, seq, id, kind, author_id, author_role, body, posted_at, call, message) VALUES ('` + thread + `', $1, $2, $3, $4, $5, $6, $1, $7, $8)`
	const addDelivery = `INSERT INTO outbox (id, adaptor, address, kind, about, body, state, attempts, queued_at, delivered_at, fault)
		VALUES ($1, 'rooms', $2, $3, $4, $5, $6, 1, 3, $7, $8)`
	old := []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO room (name, opened_at) VALUES ('lobby', 1)`, nil},
		{`INSERT INTO thread (id, room, opened_at, last_seq, last_at) VALUES ('` + thread + `', 'lobby', 1, 4, 4)`, nil},
		{`INSERT INTO participant (thread, identity) VALUES ('` + thread + `', 'scout')`, nil},
		{addCall, call(1, "succeeded", `{"state":"succeeded","result":{"value":{"said":"one"}}}`)},
		{addCall, call(2, "succeeded", `{"state":"succeeded","result":{"value":{"said":"two"}}}`)},
		{addCall, call(3, "parked", nil)},
		{`INSERT INTO approval (id, call, by_id, state, summary, side_effecting, bound, hash, policy, requested_at, expires_at)
			VALUES ('a-3', 'c-3', 'scout', 'pending', 'echo', 1, '{}', 'h', 'p', 4, 9000000000000000)`, nil},
		{addPost, []any{int64(1), "r-1", "reply", "scout", "agent", text, nil, "m1"}},
		{addPost, []any{int64(2), "r-2", "result", nil, nil, "one", "c-1", nil}},
		{addPost, []any{int64(3), "r-3", "note", nil, nil, "noted", nil, nil}},
		{addPost, []any{int64(4), "r-4", "message", "ada", "operator", "hello", nil, nil}},
		{`INSERT INTO reply (adaptor, room, agent, message, thread, text_hash, ack) VALUES ('rooms', 'lobby', 'scout', 'm1', '` + thread + `', $1, $2)`,
			[]any{textHash(text), ack}},
		{addDelivery, []any{"o-1", thread, "result", "c-1", "one", "delivered", int64(2), nil}},
		{addDelivery, []any{"o-2", thread, "result", "c-2", "two", "queued", nil, nil}},
		{addDelivery, []any{"o-3", thread, "note", "r-1", "three", "queued", nil, nil}},
		{addDelivery, []any{"o-4", gone, "note", "r-9", "lost", "set_aside", nil, "there is no such thread"}},
	}
	for _, row := range old {
		if err := store.Update(t.Context(), func(tx journal.Tx) error {
			_, err := tx.Exec(row.sql, row.args...)
			return err
		}); err != nil {
			t.Fatalf("%s: %v", row.sql, err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	h = openHouse(t, path, echo("echo", `{"said":"here"}`))
	h.start()
	t.Cleanup(h.close)
	posts := h.posts(thread, 6)
	type line struct{ ID, Kind, Text string }
	want := []line{{"r-1", "reply", text}, {"r-2", "result", "one"}, {"r-3", "note", "noted"}, {"r-4", "message", "hello"}, {"", "result", "two"}, {"", "note", "three"}}
	for i, p := range posts {
		got := line{p.ID, p.Kind, p.Text}
		if i >= 4 { // delivered now
			if got.ID == "" {
				t.Errorf("post %d has no id", i)
			}
			got.ID = ""
		}
		if got != want[i] {
			t.Errorf("post %d: got %v, want %v", i, got, want[i])
		}
	}
	var delivery []string
	for _, c := range posts[0].Calls {
		delivery = append(delivery, c.Delivery)
	}
	if got := fmt.Sprint(delivery); got != "[delivered delivered]" {
		t.Errorf("deliveries of the calls of the old reply: %s", got)
	}
	if again := h.take(scout, Reply{Agent: scout.ID, Room: "lobby", Message: "m1", Text: text}); !again.Duplicate || again.Edited || len(again.Calls) != 2 || again.Reply != "r-1" {
		t.Errorf("the old reply, handed in again: %+v", again)
	}
	outbox, err := h.threads.listOutbox(t.Context(), ada, service.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if left := outbox.(OutboxPage).Outbox; len(left) != 1 || left[0].ID != "o-4" || left[0].Fault != "there is no such thread" {
		t.Errorf("left in the outbox: %+v", left)
	}
	broken := 0
	if err := h.store.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT count(*) FROM pragma_foreign_key_check`, func(scan func(...any) error) error { return scan(&broken) })
	}); err != nil || broken != 0 {
		t.Errorf("rows that refer to nothing: %d, %v", broken, err)
	}
	for _, sql := range []string{
		`INSERT INTO post (thread, seq, id, kind, body, posted_at) VALUES ('` + gone + `', 1, 'r-99', 'heard', '', 1)`,
		`INSERT INTO approval (id, call, by_id, state, summary, side_effecting, bound, hash, policy, requested_at, expires_at)
			VALUES ('a-9', 'c-9', 'scout', 'pending', '', 0, '', '', '', 1, 1)`,
	} {
		err := h.store.Update(context.Background(), func(tx journal.Tx) error {
			_, err := tx.Exec(sql)
			return err
		})
		if err == nil {
			t.Errorf("%s: a row that refers to nothing was taken", sql)
		}
	}
	if _, err := h.threads.Take(t.Context(), scout, Reply{Agent: scout.ID, Thread: thread, Message: "m2", Text: "[TOOL echo {}]"}); err != nil {
		t.Errorf("a reply in the old thread: %v", err)
	}
	var stands service.CallBrief
	if err := h.store.View(t.Context(), func(tx journal.Tx) (err error) {
		stands, err = h.door.Brief(tx, "c-3")
		return err
	}); err != nil || stands.State != ops.Parked || stands.Approval != "a-3" || stands.Rule != "" {
		t.Errorf("the parked call: %+v, %v", stands, err)
	}
}
