package httpapi

import (
	"context"
	"testing"

	"inband/ops"
	"inband/service/journal"
	"inband/service/threads"
)

// setAside puts a delivery into the outbox that is set aside, and returns its id.
func (g *gateway) setAside() string {
	g.t.Helper()
	const id = "o-aside"
	if err := g.store.Update(context.Background(), func(tx journal.Tx) error {
		_, err := tx.Exec(`INSERT INTO outbox (id, adaptor, address, seq, kind, about, body, state, attempts, queued_at, reason, fault)
				VALUES ($1, 'chat', 't-aside', 1, 'note', 'x', 'text', 'set_aside', 1, 1, 'unknown_fate', 'cut off')`, id)
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
	return id
}

func TestOutboxRoutes(t *testing.T) {
	g := open(t)
	id := g.setAside()
	var page threads.OutboxPage
	g.get("ada", "/v1/outbox", &page)
	if len(page.Outbox) != 1 || page.Outbox[0].ID != id || page.Outbox[0].Reason != "unknown_fate" || page.Outbox[0].Fault != "cut off" || page.Outbox[0].Adaptor != "chat" {
		t.Errorf("the outbox: %+v", page)
	}
	retry := func(as ops.IdentityID, id, body string) request {
		return request{method: "POST", path: "/v1/outbox/" + id + "/retry", as: as, body: body}
	}
	for _, tc := range []struct {
		as       ops.IdentityID
		id, body string
		want     ops.Code
	}{
		{"scout", id, `{"again":true}`, ops.NotPermitted}, {"", id, `{"again":true}`, ops.Unauthenticated},
		{"ada", "o-none", `{}`, ops.NotFound}, {"ada", id, `{}`, ops.Conflict}, {"ada", id, `{"again":"yes"}`, ops.BadRequest},
	} {
		if a := g.do(retry(tc.as, tc.id, tc.body)); a.fault.Code != tc.want {
			t.Errorf("%q retries %s with %s: %s, want %s", tc.as, tc.id, tc.body, a, tc.want)
		}
	}
	var e threads.OutboxEntry
	g.ok(200, retry("ada", id, `{"again":true}`), &e)
	if e.ID != id || e.State != "queued" || e.Reason != "" {
		t.Errorf("retried: %+v", e)
	}
	if a := g.do(retry("ada", id, `{"again":true}`)); a.fault.Code != ops.Conflict {
		t.Errorf("again: %s, want CONFLICT", a)
	}
}
