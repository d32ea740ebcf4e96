package service

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// sure is the evidence of an order that nobody has to doubt.
var sure = ops.Evidence{Key: ops.KeyGood, Echo: ops.EchoNone, Clean: true, Fresh: true}

// ordered is a call of an agent that came in text, with what is certain about it.
func ordered(op ops.OpName, change func(*ops.Call)) ops.Call {
	c := ops.Call{Op: op, By: scout, Params: json.RawMessage(`{}`), Evidence: sure,
		From: ops.Origin{Source: "rooms/lobby/m-1#1", Wake: "w-1", Declared: []ops.OpName{"t.write"}}}
	if change != nil {
		change(&c)
	}
	return c
}

// ruleCase is one order.
type ruleCase struct {
	name string
	call ops.Call
	want string // "run", "ask", or the code of the fault
	rule string
}

// ruleCases say what becomes of an order and by which rule. The policy permits agents
// everything, so that what is not run is the doing of the rules, but for "t.never", which
// nobody may run, and "t.ask", which one may only ask for.
var ruleCases = []ruleCase{
	{"an honest order", ordered("t.write", nil), "run", "policy: all"},
	{"a read needs no key", ordered("t.read", func(c *ops.Call) { c.Evidence = ops.Evidence{} }), "run", "policy: all"},
	{"a read with an old key", ordered("t.read", func(c *ops.Call) { c.Evidence = ops.Evidence{Key: ops.KeyWrong, Echo: ops.EchoNone} }), "run", "policy: all"},
	{"a read by curl", ordered("t.read", func(c *ops.Call) { c.Evidence = ops.Evidence{Key: ops.KeyMissing, Curl: true} }), "run", "policy: all"},
	{"an operator", ordered("t.write", func(c *ops.Call) { c.By, c.Evidence = ada, ops.Evidence{} }), "run", "policy: all"},
	{"the API", ordered("t.write", func(c *ops.Call) { c.From.Source, c.Evidence = "api/q-1", ops.Evidence{} }), "run", "policy: all"},
	{"what begins like the API", ordered("t.write", func(c *ops.Call) { c.From.Source, c.Evidence = "apis/q-1", ops.Evidence{} }), "WRONG_KEY", "R4 key wrong"},
	{"from nowhere", ordered("t.write", func(c *ops.Call) { c.From.Source, c.Evidence = "", ops.Evidence{} }), "WRONG_KEY", "R4 key wrong"},
	{"no evidence", ordered("t.write", func(c *ops.Call) { c.Evidence = ops.Evidence{} }), "WRONG_KEY", "R4 key wrong"},
	{"a wrong key", ordered("t.write", func(c *ops.Call) { c.Evidence.Key = ops.KeyWrong }), "WRONG_KEY", "R4 key wrong"},
	{"a key that means nothing", ordered("t.write", func(c *ops.Call) { c.Evidence.Key = 255 }), "WRONG_KEY", "R4 key wrong"},
	{"an echo with the key", ordered("t.write", func(c *ops.Call) { c.Evidence.Echo = ops.EchoFound }), "QUOTATION", "R5 echo"},
	{"an echo without it", ordered("t.write", func(c *ops.Call) { c.Evidence.Echo, c.Evidence.Key = ops.EchoFound, ops.KeyMissing }), "QUOTATION", "R5 echo"},
	{"an echo that means nothing", ordered("t.write", func(c *ops.Call) { c.Evidence.Echo = 3 }), "QUOTATION", "R5 echo"},
	{"a curl without the key", ordered("t.write", func(c *ops.Call) { c.Evidence.Curl, c.Evidence.Key = true, ops.KeyMissing }), "QUOTATION", "R2 curl"},
	{"a curl with it", ordered("t.write", func(c *ops.Call) { c.Evidence.Curl = true }), "run", "policy: all"},
	{"no key", ordered("t.write", func(c *ops.Call) { c.Evidence.Key = ops.KeyMissing }), "ask", "R4 key missing"},
	{"late", ordered("t.write", func(c *ops.Call) { c.Evidence.Fresh = false }), "ask", "late order"},
	{"an echo that could not be looked up", ordered("t.write", func(c *ops.Call) { c.Evidence.Echo = ops.EchoUnknown }), "ask", "R5 echo unknown"},
	{"strangers, and a declared op", ordered("t.write", func(c *ops.Call) { c.Evidence.Clean = false }), "run", "policy: all"},
	{"strangers, and another op", ordered("t.other", func(c *ops.Call) { c.Evidence.Clean = false }), "ask", "R6 untrusted text"},
	{"no strangers, and another op", ordered("t.other", nil), "run", "policy: all"},
	{"strangers, and an op declared by another name", ordered("t.other", func(c *ops.Call) {
		c.Evidence.Clean, c.From.Declared = false, []ops.OpName{"other"}
	}), "ask", "R6 untrusted text"},
	{"by an alias", ordered("w", func(c *ops.Call) { c.Evidence.Key = ops.KeyMissing }), "ask", "R4 key missing"},
	{"what one may only ask for", ordered("t.ask", nil), "ask", "policy: asking"},
	{"what one may only ask for, without the key", ordered("t.ask", func(c *ops.Call) { c.Evidence.Key = ops.KeyMissing }), "ask", "R4 key missing"},
	{"what nobody may", ordered("t.never", func(c *ops.Call) { c.Evidence.Key = ops.KeyMissing }), "NOT_PERMITTED", "policy: never"},
	{"what nobody may, quoted", ordered("t.never", func(c *ops.Call) { c.Evidence.Echo = ops.EchoFound }), "QUOTATION", "R5 echo"},
	{"what does not exist", ordered("t.wriet", func(c *ops.Call) { c.Evidence = ops.Evidence{} }), "UNKNOWN_OP", "registry: unknown op"},
	{"wrong parameters", ordered("t.write", func(c *ops.Call) { c.Params = json.RawMessage(`{"n":"x"}`) }), "INVALID_PARAMS", "parameters"},
	{"wrong parameters without the key", ordered("t.write", func(c *ops.Call) {
		c.Params, c.Evidence.Key = json.RawMessage(`{"n":"x"}`), ops.KeyMissing
	}), "INVALID_PARAMS", "parameters"},
}

const rulePolicy = `@id("all") permit (principal, action == Action::"run", resource) unless { context.op == "t.ask" };
@id("asking") permit (principal, action == Action::"ask", resource == Op::"t.ask");
@id("never") forbid (principal, action in [Action::"run", Action::"ask"], resource == Op::"t.never");
@id("operators") permit (principal is Operator, action, resource);`

func newRuleHouse(t *testing.T) *house {
	aliased := write("t.write", fine)
	aliased.Op.Aliases = []ops.OpName{"w"}
	other := write("t.other", fine)
	other.Op.Aliases = []ops.OpName{"other"}
	h := newHouse(t, read("t.read", fine), aliased, other, write("t.ask", fine), write("t.never", fine))
	h.policy(rulePolicy)
	return h
}

// outcome is what an order is prepared to be, in the words of ruleCases.
func (o Order) outcome() string {
	switch {
	case o.fault != nil:
		return string(o.fault.Code)
	case o.asking != nil:
		return "ask"
	}
	return "run"
}

func TestRules(t *testing.T) {
	h := newRuleHouse(t)
	for _, tc := range ruleCases {
		o := h.door.Prepare(tc.call)
		if o.outcome() != tc.want || o.rule != tc.rule {
			t.Errorf("%s: got %s by %q, want %s by %q", tc.name, o.outcome(), o.rule, tc.want, tc.rule)
		}
	}
}

// Each rule is missed: without it, some order gets further or less far than it may.
func TestRulesMutations(t *testing.T) {
	h := newRuleHouse(t)
	for i, r := range rules {
		h.door.rules = slices.Delete(slices.Clone(rules), i, i+1)
		noticed := 0
		for _, tc := range ruleCases {
			if h.door.Prepare(tc.call).outcome() != tc.want {
				noticed++
			}
		}
		if noticed == 0 {
			t.Errorf("nobody would notice that the rule %q is gone", r.name)
		}
		// A rule that is there and says another thing is noticed too.
		for _, to := range []reach{allTheWay, atMostAsk, nowhere} {
			if to == r.to {
				continue
			}
			h.door.rules = slices.Clone(rules)
			h.door.rules[i].to = to
			if !slices.ContainsFunc(ruleCases, func(tc ruleCase) bool {
				return h.door.Prepare(tc.call).outcome() != tc.want
			}) {
				t.Errorf("nobody would notice that the rule %q lets an order get to %d instead of %d", r.name, to, r.to)
			}
		}
	}
}

// Over all evidence there is: what runs from text has the key, is fresh, stood nowhere,
// and was declared or given without strangers; and nothing is refused that an honest
// agent could write but for a wrong key, an echo or a curl.
func TestRulesOverAllEvidence(t *testing.T) {
	policy, err := access.ParsePolicy("test", []byte(`permit (principal, action in [Action::"run", Action::"ask"], resource);`))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for key := range uint8(5) {
		for echo := range uint8(5) {
			for bits := range 1 << 4 {
				r := access.Request{By: scout, Op: "t.write", SideEffecting: true, Entrance: "rooms", WakeDeclared: bits&1 > 0,
					Evidence: ops.Evidence{Key: key, Echo: echo, Clean: bits&2 > 0, Fresh: bits&4 > 0, Curl: bits&8 > 0}}
				v := decide(rules, policy, r)
				e := r.Evidence
				runs := v.fault == nil && !v.ask
				if want := e.Key == ops.KeyGood && e.Echo == ops.EchoNone && e.Fresh && (e.Clean || r.WakeDeclared); runs != want {
					t.Errorf("%+v: runs %v, want %v", r, runs, want)
				}
				bad := e.Key != ops.KeyGood && e.Key != ops.KeyMissing || e.Echo != ops.EchoNone && e.Echo != ops.EchoUnknown || e.Curl && e.Key != ops.KeyGood
				if refused := v.fault != nil; refused != bad {
					t.Errorf("%+v: refused %v, want %v", r, refused, bad)
				}
				if v.rule == "" || label(v.rule) == "" {
					t.Errorf("%+v: no rule decided", r)
				}
				n++
			}
		}
	}
	if n != 400 {
		t.Errorf("looked at %d", n)
	}
}

// What decided stands on record, for what ran, waits and was refused alike.
func TestRuleIsOnRecord(t *testing.T) {
	h := newRuleHouse(t)
	for _, tc := range ruleCases {
		tc.call.From.Wake += tc.name // or it would be the same order as the one before
		ticket, err := h.door.Submit(t.Context(), tc.call)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if ticket.Outcome == nil && ticket.Approval == "" {
			h.await(ticket.Call)
		}
		said := ""
		if err := h.store.Stream(t.Context(), stream(ticket.Call), 0, func(e journal.Event) error {
			var body struct{ Rule string }
			err := json.Unmarshal(e.Body, &body)
			said += body.Rule
			return err
		}); err != nil || said != tc.rule {
			t.Errorf("%s: the events say %q, %v, want %q once", tc.name, said, err, tc.rule)
		}
		if ticket.Rule != tc.rule {
			t.Errorf("%s: the ticket says %q, want %q", tc.name, ticket.Rule, tc.rule)
		}
		v, err := h.door.showCall(t.Context(), ada, Query{Arg: string(ticket.Call)})
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := v.(CallShowing).Rule; got != tc.rule {
			t.Errorf("%s: shown with the rule %q, want %q", tc.name, got, tc.rule)
		}
		if ticket.Approval != "" {
			a, err := h.door.Approval(t.Context(), ada, ticket.Approval)
			if err != nil || a.Rule != tc.rule {
				t.Errorf("%s: the approval says %q, %v, want %q", tc.name, a.Rule, err, tc.rule)
			}
		}
	}
	page, err := h.door.listCalls(t.Context(), ada, Query{Limit: maxPage})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(page)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Calls []CallListing }
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, c := range list.Calls {
		got = append(got, c.Rule)
	}
	for _, tc := range ruleCases {
		want = append(want, tc.rule)
	}
	slices.Reverse(want)
	if !slices.Equal(got, want) {
		t.Errorf("listed with %q, want %q", got, want)
	}
}

func TestCounts(t *testing.T) {
	h := newRuleHouse(t)
	if got := h.door.Counts(); len(got) != 0 {
		t.Errorf("at first: %+v", got)
	}
	want := map[[2]string]int64{{"replayed", ""}: 1}
	for _, tc := range ruleCases {
		tc.call.From.Wake += tc.name
		if _, err := h.door.Submit(t.Context(), tc.call); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		switch tc.want {
		case "run":
		case "ask":
			want[[2]string{"parked", label(tc.rule)}]++
		default:
			want[[2]string{"refused", label(tc.rule)}]++
		}
	}
	honest := ruleCases[0].call
	for range 2 {
		h.run(honest)
	}
	got := map[[2]string]int64{}
	for _, c := range h.door.Counts() {
		got[[2]string{c.What, c.Label}] = c.N
	}
	if !cmp.Equal(got, want) {
		t.Errorf("(-got +want)\n%s", cmp.Diff(got, want))
	}
}

// What only the op can tell, that a loop has gone far enough, is on record as a rule too.
func TestLoopLimitIsOnRecord(t *testing.T) {
	looping := write("t.write", nil)
	looping.Executor = ledger{func(journal.Tx) error { return ops.Faultf(ops.LoopLimit, "enough") }}
	h := newHouse(t, looping)
	h.policy(anything)
	ticket, o := h.run(ordered("t.write", nil))
	if o.Fault == nil || o.Fault.Code != ops.LoopLimit {
		t.Fatalf("got %+v", o)
	}
	if c, err := h.door.read(t.Context(), ticket.Call); err != nil || c.rule != "R8 loop limit" {
		t.Errorf("on record by %q, %v", c.rule, err)
	}
	synced := func() bool {
		return slices.Contains(h.door.Counts(), Count{"refused", "R8", 1})
	}
	for !synced() { // counted just after the commit
		if t.Context().Err() != nil {
			t.Fatal("never counted")
		}
		runtime.Gosched()
	}
}

func TestLabel(t *testing.T) {
	for rule, want := range map[string]string{"R4 key missing": "R4", "policy: agents run ops": "policy", "late order": "late", "rate": "rate", "": ""} {
		if got := label(rule); got != want {
			t.Errorf("%q: got %q, want %q", rule, got, want)
		}
	}
}

// The cost of preparing an order that the rules weigh, against one that they do not.
func BenchmarkPrepare(b *testing.B) {
	registry, err := ops.New(read("t.read", fine), write("t.write", fine))
	if err != nil {
		b.Fatal(err)
	}
	d := &Door{registry: ops.NewLive(registry), policy: access.NewLivePolicy(access.DefaultPolicy()), rules: rules}
	for _, op := range []ops.OpName{"t.read", "t.write"} {
		b.Run(fmt.Sprint(op), func(b *testing.B) {
			c := ordered(op, nil)
			b.ReportAllocs()
			for b.Loop() {
				if o := d.Prepare(c); o.fault != nil {
					b.Fatal(o.fault)
				}
			}
		})
	}
}
