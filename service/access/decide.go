package access

import (
	"fmt"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"inband/ops"
)

// Action is a kind of thing that one may or may not do.
type Action string

// The actions.
const (
	Run     Action = "run"     // run an op
	Ask     Action = "ask"     // have a call that one may not run wait for an approval
	See     Action = "see"     // read a call, a thread or an identity that belongs to Owner
	Output  Action = "output"  // read the result of a call of Owner
	Cancel  Action = "cancel"  // cancel a call of Owner
	Reply   Action = "reply"   // hand in a reply of Owner
	Approve Action = "approve" // approve or deny a call of Owner that waits
	Manage  Action = "manage"  // make and revoke identities, reload files, read the whole gateway
)

// Request is a question to Decide. Its fields are all that a decision may rest on:
// never the parameters of a call, in which a null or a fraction has no Cedar form and
// an object could pose as an entity.
type Request struct {
	By     ops.Identity
	Action Action

	// For Run and Ask.
	Op            ops.OpName // resolved
	Provider      string     // who owns the op
	SideEffecting bool       // what the op's definition says
	Entrance      string     // where the order came in: the first part of Origin.Source
	WakeDeclared  bool       // the wake whose key it carries was raised for this op
	Evidence      ops.Evidence

	// For See, Output, Cancel, Reply and Approve.
	Owner    ops.IdentityID // whose thing it is; empty is nobody's
	Enrolled bool           // By is a bridge that Owner is enrolled with
}

// Decision is the answer, with the rule that gave it.
type Decision struct {
	Allowed bool
	Rule    string // for operators and logs: the @id of a policy, or its line, or why there is none
}

// Roles and things as Cedar entities.
var (
	roles      = []types.EntityType{"Agent", "Operator", "Bridge", "Worker", "Verifier"}
	principals = map[ops.Role]types.EntityType{
		ops.Agent: "Agent", ops.Operator: "Operator", ops.Bridge: "Bridge", ops.Worker: "Worker", ops.Verifier: "Verifier",
	}
	gateway = types.NewEntityUID("Gateway", "gateway")
	nobodys = types.NewEntityUID("Identity", "")
)

// Decide answers r. It is the only place that does, and a pure function of p and r.
// What no policy permits is refused, and so is everything for which a policy cannot be
// evaluated: the library by itself would pass over a forbid that fails.
func (p *Policy) Decide(r Request) Decision {
	principal, ok := principals[r.By.Role]
	if !ok {
		return Decision{Rule: "there is no such role"}
	}
	resource, context, ok := r.about()
	if !ok {
		return Decision{Rule: "there is no such action"}
	}
	allowed, why := cedar.Authorize(p.rules, nil, cedar.Request{
		Principal: types.NewEntityUID(principal, types.String(r.By.ID)),
		Action:    types.NewEntityUID("Action", types.String(r.Action)),
		Resource:  resource,
		Context:   context,
	})
	if len(why.Errors) > 0 {
		e := why.Errors[0]
		return Decision{Rule: fmt.Sprintf("the policy at line %d cannot be evaluated: %s", e.Position.Line, e.Message)}
	}
	if len(why.Reasons) == 0 {
		return Decision{Rule: "nothing in the policy permits it"}
	}
	return Decision{Allowed: bool(allowed), Rule: string(why.Reasons[0].PolicyID)}
}

// about is the resource and the context of r, false if its action is none.
func (r Request) about() (types.EntityUID, types.Record, bool) {
	switch r.Action {
	case Run, Ask:
		return types.NewEntityUID("Op", types.String(r.Op)), types.NewRecord(types.RecordMap{
			"op":             types.String(r.Op),
			"provider":       types.String(r.Provider),
			"side_effecting": types.Boolean(r.SideEffecting),
			"entrance":       types.String(r.Entrance),
			"wake_declared":  types.Boolean(r.WakeDeclared),
			"evidence_key":   types.Long(r.Evidence.Key),
			"evidence_echo":  types.Long(r.Evidence.Echo),
			"clean":          types.Boolean(r.Evidence.Clean),
			"fresh":          types.Boolean(r.Evidence.Fresh),
		}), true
	case See, Output, Cancel, Reply, Approve:
		return types.NewEntityUID("Identity", types.String(r.Owner)), types.NewRecord(types.RecordMap{
			"owner":    types.String(r.Owner),
			"own":      types.Boolean(r.Owner != "" && r.Owner == r.By.ID),
			"enrolled": types.Boolean(r.Enrolled),
		}), true
	case Manage:
		return gateway, types.Record{}, true
	}
	return types.EntityUID{}, types.Record{}, false
}

// Entrance is the part of an origin's source that says where the order came in.
func Entrance(o ops.Origin) string {
	entrance, _, _ := strings.Cut(o.Source, "/")
	return entrance
}
