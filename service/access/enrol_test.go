package access

import (
	"context"
	"errors"
	"testing"

	"inband/ops"
	"inband/service/journal"
)

func TestEnrol(t *testing.T) {
	d, _ := open(t)
	ctx := context.Background()
	for id, role := range map[ops.IdentityID]ops.Role{"ada": ops.Agent, "bob": ops.Agent, "gone": ops.Agent, "root": ops.Operator, "chat": ops.Bridge, "old": ops.Bridge} {
		if _, err := d.Add(ctx, ops.Identity{ID: id, Role: role}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []ops.IdentityID{"gone", "old"} {
		if _, err := d.Revoke(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	enrolled := func(agent ops.IdentityID) (is bool) {
		t.Helper()
		if err := d.store.View(ctx, func(tx journal.Tx) (err error) { is, err = Enrolled(tx, "chat", agent); return err }); err != nil {
			t.Fatal(err)
		}
		return is
	}
	for _, tc := range []struct {
		bridge ops.IdentityID
		agents []ops.IdentityID
		code   ops.Code
	}{
		{"none", []ops.IdentityID{"ada"}, ops.NotFound},
		{"old", []ops.IdentityID{"ada"}, ops.NotFound},
		{"ada", []ops.IdentityID{"bob"}, ops.BadRequest},
		{"chat", []ops.IdentityID{"ada", "none"}, ops.BadRequest},
		{"chat", []ops.IdentityID{"ada", "gone"}, ops.BadRequest},
		{"chat", []ops.IdentityID{"ada", "root"}, ops.BadRequest},
	} {
		var fault *ops.Fault
		if err := d.Enrol(ctx, tc.bridge, tc.agents...); !errors.As(err, &fault) || fault.Code != tc.code {
			t.Errorf("enrol %v with %s: %v, want %s", tc.agents, tc.bridge, err, tc.code)
		}
		if enrolled("ada") {
			t.Fatalf("enrol %v with %s has enrolled ada", tc.agents, tc.bridge)
		}
	}
	for range 2 {
		if err := d.Enrol(ctx, "chat", "ada", "bob"); err != nil || !enrolled("ada") || !enrolled("bob") {
			t.Errorf("enrol: %v, ada %v, bob %v", err, enrolled("ada"), enrolled("bob"))
		}
	}
	n := 0
	if err := d.store.View(ctx, func(tx journal.Tx) error {
		return tx.Query(`SELECT count(*) FROM journal_events WHERE kind = 'agent.enrolled'`, func(scan func(...any) error) error { return scan(&n) })
	}); err != nil || n != 1 {
		t.Errorf("%d events, %v; want one", n, err)
	}
}
