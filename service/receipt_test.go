package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"testing"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// The receipt of a call is shown with the position of the event that holds its digest, to
// those who may read what the call said.
func TestReceiptIsInTheLog(t *testing.T) {
	h := newHouse(t, read("r", func(context.Context, ops.Call) (ops.Outcome, error) {
		o := ops.Failure(ops.Faultf(ops.OpFailed, "no"))
		o.Receipt = json.RawMessage(`{"b": "<&>", "a": 1.0}`)
		return o, nil
	}), read("plain", fine))
	ticket, _ := h.run(call(scout, "r"))
	show := func(ticket Ticket) CallShowing {
		t.Helper()
		v, err := h.door.showCall(t.Context(), scout, Query{Arg: string(ticket.Call)})
		if err != nil {
			t.Fatal(err)
		}
		return v.(CallShowing)
	}
	s := show(ticket)
	canonical, fault := ops.Canonical(s.Receipt)
	if fault != nil || string(canonical) != `{"a":1,"b":"<&>"}` {
		t.Fatalf("receipt %s: %v", s.Receipt, fault)
	}
	sum := sha256.Sum256(canonical)
	found := false
	if err := h.store.Stream(t.Context(), stream(ticket.Call), 0, func(e journal.Event) error {
		if e.Position == s.AuditPosition {
			found = true
			if !bytes.Contains(e.Body, []byte(`"receipt":"sha256:`+hex.EncodeToString(sum[:])+`"`)) || e.Kind != "call.settled" {
				t.Errorf("the event at %d is %s %s", e.Position, e.Kind, e.Body)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Errorf("no event of the call is at %d", s.AuditPosition)
	}
	plain, _ := h.run(call(scout, "plain"))
	if s := show(plain); s.Receipt != nil || s.AuditPosition == 0 {
		t.Errorf("an op without receipts: %+v", s)
	}
	policy, err := access.ParsePolicy("test", []byte(`permit (principal is Agent, action == Action::"see", resource) when { context.own };`))
	if err != nil {
		t.Fatal(err)
	}
	h.door.policy.Swap(policy)
	if s := show(ticket); s.Receipt != nil || !s.Withheld {
		t.Errorf("withheld: %+v", s)
	}
}
