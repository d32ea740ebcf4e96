package access

import "inband/ops"

// Action is a kind of thing that one may or may not do.
type Action string

// The actions.
const (
	Run    Action = "run"    // run an op
	See    Action = "see"    // read a call, a thread or an identity that belongs to Owner
	Cancel Action = "cancel" // cancel a call of Owner
	Reply  Action = "reply"  // hand in a reply of Owner
	Manage Action = "manage" // make and revoke identities, reload op files, read the whole gateway
)

// Request is a question to Decide. Its fields are all that a decision may rest on.
type Request struct {
	By            ops.Identity
	Action        Action
	Op            ops.OpName     // Run: the op, resolved
	SideEffecting bool           // Run: what the op's definition says
	Owner         ops.IdentityID // See, Cancel, Reply: whose thing it is; empty is nobody's
	Enrolled      bool           // By is a bridge that Owner is enrolled with
}

// Decision is the answer, with the rule that gave it.
type Decision struct {
	Allowed bool
	Rule    string // for operators and logs, one of a fixed few
}

// Decide answers r. It is the only place that does.
func Decide(r Request) Decision {
	allow := func(rule string) Decision { return Decision{Allowed: true, Rule: rule} }
	own := r.Owner != "" && r.Owner == r.By.ID
	switch r.By.Role {
	case ops.Operator:
		return allow("operators may do everything")
	case ops.Agent:
		switch r.Action {
		case Run:
			if !r.SideEffecting {
				return allow("agents run ops without side effects")
			}
			if r.Op == ops.DMSend().Name {
				return allow("agents send messages")
			}
			return Decision{Rule: "agents run no other op with side effects"}
		case See, Cancel, Reply:
			if own {
				return allow("agents see, cancel and hand in what is their own")
			}
		}
	case ops.Bridge:
		switch r.Action {
		case See, Reply:
			if own || r.Enrolled {
				return allow("bridges see and hand in what belongs to their agents")
			}
		}
	}
	return Decision{Rule: "nothing allows it"}
}
