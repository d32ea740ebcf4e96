package service

import (
	"slices"
	"strings"

	"inband/ops"
	"inband/service/access"
)

// Agents are talked into things by what they read, so what an agent writes is only an
// order when there is reason to believe that it is no quotation. The rules below say how
// far an order may get at most; how far it gets is for the policy. They have the numbers
// of the specification of threads, and are about trust: what is an order by its syntax
// has been found out before.
//
// They are about text only. Whoever calls the API shows a token, and there is no text
// around the order, so the policy alone decides there. What does not say that it came in
// by the API counts as text.

// reach is how far an order may get.
type reach uint8

const (
	allTheWay reach = iota // as far as the policy lets it
	atMostAsk              // somebody has to approve it
	nowhere
)

// rule is one row of the table. The first row that holds decides, so what an order may
// not get past stands before what it may be asked for.
type rule struct {
	name  string // on record where it decides; its first word is the label of counts
	to    reach
	code  ops.Code // of the fault, for nowhere
	says  string
	holds func(access.Request) bool
}

// rules is the table. Evidence with a value that means nothing counts as the worst.
var rules = []rule{
	{"R1 author", allTheWay, "", "", func(r access.Request) bool { return r.By.Role != ops.Agent }},
	{"R3 tier", allTheWay, "", "", func(r access.Request) bool { return !r.SideEffecting }},
	{"API", allTheWay, "", "", func(r access.Request) bool { return r.Entrance == "api" }},
	{"R4 key wrong", nowhere, ops.WrongKey, "this order carries a key that is not, or no longer, the one of a wake of yours in this thread; nothing ran",
		func(r access.Request) bool { return r.Evidence.Key != ops.KeyMissing && r.Evidence.Key != ops.KeyGood }},
	{"R5 echo", nowhere, ops.Quotation, "the same order stood in words of others that you were shown in this thread, so it counts as quoted; nothing ran; if it is meant, a person has to order it",
		func(r access.Request) bool {
			return r.Evidence.Echo != ops.EchoUnknown && r.Evidence.Echo != ops.EchoNone
		}},
	{"R2 curl", nowhere, ops.Quotation, "a curl command that has side effects and does not carry the key of your wake counts as quoted; nothing ran; write a directive that carries it",
		func(r access.Request) bool { return r.Evidence.Curl && r.Evidence.Key != ops.KeyGood }},
	{"R4 key missing", atMostAsk, "", "", func(r access.Request) bool { return r.Evidence.Key != ops.KeyGood }},
	{"late order", atMostAsk, "", "", func(r access.Request) bool { return !r.Evidence.Fresh }},
	{"R5 echo unknown", atMostAsk, "", "", func(r access.Request) bool { return r.Evidence.Echo != ops.EchoNone }},
	{"R6 untrusted text", atMostAsk, "", "", func(r access.Request) bool { return !r.Evidence.Clean && !r.WakeDeclared }},
}

// judge returns the row of table that says how far r may get, the zero value if none
// does.
func judge(table []rule, r access.Request) rule {
	for _, row := range table {
		if row.holds(r) {
			return row
		}
	}
	return rule{}
}

// verdict is what becomes of an order, and the rule that says so: the name of a row of
// the table, or "policy: " and the name of a rule of the policy.
type verdict struct {
	fault *ops.Fault // it is refused
	ask   bool       // it is to be approved
	rule  string
}

// decide is the verdict on an order that is r, by the table and then by the policy.
func decide(table []rule, policy *access.Policy, r access.Request) verdict {
	row := judge(table, r)
	if row.to == nowhere {
		return verdict{fault: ops.Faultf(row.code, "%s", row.says), rule: row.name}
	}
	r.Action = access.Run
	run := policy.Decide(r)
	if run.Allowed && row.to == allTheWay {
		return verdict{rule: byPolicy(run)}
	}
	v := verdict{ask: true, rule: row.name}
	if run.Allowed {
		return v
	}
	r.Action = access.Ask
	ask := policy.Decide(r)
	switch {
	case !ask.Allowed:
		return verdict{fault: ops.Faultf(ops.NotPermitted, "%s may not run %s: %s", r.By, r.Op, run.Rule), rule: byPolicy(run)}
	case row.to == allTheWay:
		v.rule = byPolicy(ask)
	}
	return v
}

func byPolicy(d access.Decision) string { return "policy: " + d.Rule }

// ofText is the question whether call may run entry, for decide.
func ofText(call ops.Call, entry *ops.Entry) access.Request {
	r := runRequest(call.By, entry)
	r.Entrance, r.Evidence = access.Entrance(call.From), call.Evidence
	// Declared ops are those of the errand that the key belongs to. Without the key
	// nobody knows that the order is of that errand.
	r.WakeDeclared = call.Evidence.Key == ops.KeyGood && slices.Contains(call.From.Declared, entry.Name)
	return r
}

// What decides where neither the table nor the policy is asked, as it stands on record.
const (
	ruleUnknownOp = "registry: unknown op"
	ruleParams    = "parameters"
	ruleKeyLength = "idempotency key"
	ruleIdentity  = "identity: not live"
	ruleRate      = "rate"
	ruleWaiting   = "approval: too many wait"
	ruleBinding   = "approval: what it rests on cannot be read"
	ruleLoop      = "R8 loop limit"
)

// looped reports whether an op has refused what it was to do because of the caps on loops
// (rule R8), which it alone can tell.
func looped(o ops.Outcome) bool { return o.Fault != nil && o.Fault.Code == ops.LoopLimit }

// label is the short form of a rule, for counts: its first word.
func label(rule string) string {
	first, _, _ := strings.Cut(rule, " ")
	return strings.TrimSuffix(first, ":")
}
