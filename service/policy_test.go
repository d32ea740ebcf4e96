package service

import (
	"context"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/access"
)

// Whatever the policy says, the door does, from the next call on.
func TestDoorObeysThePolicy(t *testing.T) {
	h := newHouse(t, read("r", fine), write("w", fine))
	swap := func(text string) {
		t.Helper()
		p, err := access.ParsePolicy("test", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		h.door.policy.Swap(p)
	}
	run := func(by ops.Identity, op ops.OpName, change func(*ops.Call)) (ops.Code, string) {
		t.Helper()
		c := call(by, op)
		if change != nil {
			change(&c)
		}
		_, outcome := h.run(c)
		if outcome.Fault == nil {
			return "", ""
		}
		return outcome.Fault.Code, outcome.Fault.Message
	}
	for _, tc := range []struct {
		policy string
		by     ops.Identity
		op     ops.OpName
		change func(*ops.Call)
		want   ops.Code
		says   string
	}{
		{`@id("closed") forbid (principal, action, resource);`, ada, "r", nil, ops.NotPermitted, "closed"},
		{`permit (principal is Agent, action == Action::"run", resource == Op::"w");`, scout, "w", nil, "", ""},
		{`permit (principal is Agent, action == Action::"run", resource == Op::"w");`, scout, "r", nil, ops.NotPermitted, "nothing in the policy permits it"},
		{`permit (principal is Agent, action == Action::"run", resource) when { context.side_effecting };`, scout, "r", nil, ops.NotPermitted, ""},
		{`permit (principal is Agent, action == Action::"run", resource) when { context.entrance == "rooms" };`, scout, "r",
			func(c *ops.Call) { c.From.Source = "rooms/lobby/m-1#1" }, "", ""},
		{`permit (principal is Agent, action == Action::"run", resource) when { context.entrance == "rooms" };`, scout, "r",
			func(c *ops.Call) { c.From.Source = "api/q-1" }, ops.NotPermitted, ""},
		{`permit (principal is Agent, action == Action::"run", resource) when { context.evidence_key > 1 && context.clean };`, scout, "r",
			func(c *ops.Call) { c.Evidence = ops.Evidence{Key: 2, Clean: true} }, "", ""},
		{`permit (principal is Agent, action == Action::"run", resource) when { context.evidence_key > 1 && context.clean };`, scout, "r",
			func(c *ops.Call) { c.Evidence = ops.Evidence{Key: 2} }, ops.NotPermitted, ""},
	} {
		swap(tc.policy)
		if code, says := run(tc.by, tc.op, tc.change); code != tc.want || !strings.Contains(says, tc.says) {
			t.Errorf("%s runs %s under %s: got %q %q, want %q %q", tc.by, tc.op, tc.policy, code, says, tc.want, tc.says)
		}
	}
}

// Who may see a call and not its output gets neither the result nor what a fault tells.
func TestOutputIsWithheld(t *testing.T) {
	h := newHouse(t, read("r", func(context.Context, ops.Call) (ops.Outcome, error) {
		return ops.Success(ops.NewResult("the secret", "")), nil
	}), read("f", func(context.Context, ops.Call) (ops.Outcome, error) {
		return ops.Failure(ops.Faultf(ops.OpFailed, "it said the secret").With("stderr", "the secret")), nil
	}))
	good, _ := h.run(call(scout, "r"))
	bad, _ := h.run(call(scout, "f"))
	show := func(ticket Ticket) CallShowing {
		t.Helper()
		v, err := h.door.showCall(t.Context(), scout, Query{Arg: string(ticket.Call)})
		if err != nil {
			t.Fatal(err)
		}
		return v.(CallShowing)
	}
	if s := show(good); s.Withheld || string(s.Result) != `"the secret"` {
		t.Errorf("by the default policy: %+v", s)
	}
	p, err := access.ParsePolicy("test", []byte(`permit (principal is Agent, action == Action::"see", resource) when { context.own };`))
	if err != nil {
		t.Fatal(err)
	}
	h.door.policy.Swap(p)
	if s := show(good); !s.Withheld || s.Result != nil || s.State != ops.Succeeded {
		t.Errorf("a result that is withheld: %+v", s)
	}
	if s := show(bad); !s.Withheld || s.Fault == nil || s.Fault.Code != ops.OpFailed || strings.Contains(s.Fault.Message, "secret") || s.Fault.Details != nil {
		t.Errorf("a fault that is withheld: %+v", s)
	}
}
