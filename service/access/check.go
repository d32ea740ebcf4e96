package access

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	cedarschema "github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"inband/ops"
)

//go:embed policy/policy.cedarschema
var policySchema []byte

// PolicySchema returns the Cedar schema that policies are checked against.
func PolicySchema() string { return string(policySchema) }

// vocabulary is what a policy may name.
var vocabulary = func() *resolved.Schema {
	var s cedarschema.Schema
	if err := s.UnmarshalCedar(policySchema); err != nil {
		panic(fmt.Sprintf("access: policy.cedarschema: %v", err)) // embedded
	}
	r, err := s.Resolve()
	if err != nil {
		panic(fmt.Sprintf("access: policy.cedarschema: %v", err))
	}
	return r
}()

var validator = validate.New(vocabulary)

// complaint is one thing that is wrong with a policy.
type complaint struct {
	name    string // as it stands in the policy, "" if there is none to look for
	message string // what is wrong, and what to do
}

// checkID checks the annotations of a policy. ids is where each id stands.
func checkID(p *cedar.Policy, ids map[string]int) (found []complaint) {
	for key, value := range p.Annotations() {
		if key != "id" {
			found = append(found, complaint{"@" + string(key), fmt.Sprintf("the annotation @%s; only @id is read, write the rest as a comment", key)})
			continue
		}
		id, at := string(value), p.Position().Line
		switch before, taken := ids[id]; {
		case strings.TrimSpace(id) == "" || len(id) > maxID || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }):
			found = append(found, complaint{"@id", fmt.Sprintf("the @id is what a refusal is told with; want 1 to %d bytes that can be seen, on one line", maxID)})
		case taken:
			found = append(found, complaint{"@id", fmt.Sprintf("the @id %q stands at line %d already; give this one another", id, before)})
		default:
			ids[id] = at
		}
	}
	return found
}

// maxID bounds the @id of a policy, in bytes.
const maxID = 128

// check holds p against the schema. The library's validator finds what is wrong by
// type. It passes over names in what can never be evaluated, as in
// "context has typo && context.typo", so those are looked up here.
func check(p *cedar.Policy) []complaint {
	var found []complaint
	tree := (*ast.Policy)(p.AST())
	for _, c := range tree.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			if c := checkNode(n); c != nil {
				found = append(found, *c)
			}
			return true
		})
	}
	for _, uid := range scopeEntities(tree) {
		if c := checkEntity(uid); c != nil {
			found = append(found, *c)
		}
	}
	for _, err := range flatten(validator.Policy("", tree)) {
		c := advise(err.Error())
		if c.name == "" || !slices.ContainsFunc(found, func(f complaint) bool { return f.name == c.name }) {
			found = append(found, c)
		}
	}
	return found
}

// checkNode looks up the names in one node of a condition.
func checkNode(n ast.IsNode) *complaint {
	switch n := n.(type) {
	case ast.NodeTypeHas:
		return checkAttribute(n.Arg, string(n.Value))
	case ast.NodeTypeAccess:
		return checkAttribute(n.Arg, string(n.Value))
	case ast.NodeTypeIs:
		return checkIs(n)
	case ast.NodeTypeIsIn:
		return checkIs(n.NodeTypeIs)
	case ast.NodeValue:
		if uid, ok := n.Value.(types.EntityUID); ok {
			return checkEntity(uid)
		}
	case ast.NodeTypeHasTag, ast.NodeTypeGetTag:
		return &complaint{"Tag(", "there are no tags; take it out"}
	}
	for _, name := range comparedOps(n) {
		if c := checkOp(name, `"`+string(name)+`"`); c != nil {
			return c
		}
	}
	return nil
}

// comparedOps returns the names that n compares the context's op with. A rule about one
// that cannot be would never apply, just as with Op::"NAME".
func comparedOps(n ast.IsNode) (names []ops.OpName) {
	var sides []ast.IsNode
	switch n := n.(type) {
	case ast.NodeTypeEquals:
		sides = []ast.IsNode{n.Left, n.Right}
	case ast.NodeTypeNotEquals:
		sides = []ast.IsNode{n.Left, n.Right}
	case ast.NodeTypeContains:
		set, ok := n.Left.(ast.NodeTypeSet)
		if !ok {
			return nil
		}
		sides = append(slices.Clone(set.Elements), n.Right)
	}
	if !slices.ContainsFunc(sides, isOp) {
		return nil
	}
	for _, side := range sides {
		if v, ok := side.(ast.NodeValue); ok {
			if s, ok := v.Value.(types.String); ok {
				names = append(names, ops.OpName(s))
			}
		}
	}
	return names
}

// isOp reports whether n is context.op.
func isOp(n ast.IsNode) bool {
	access, ok := n.(ast.NodeTypeAccess)
	if !ok || access.Value != "op" {
		return false
	}
	v, ok := access.Arg.(ast.NodeTypeVariable)
	return ok && v.Name == "context"
}

// checkOp refuses the name of an op that cannot be. name is how it stands in the policy.
func checkOp(op ops.OpName, name string) *complaint {
	if !op.Valid() {
		return &complaint{name, fmt.Sprintf("no op can be called %q", op)}
	}
	for _, native := range ops.Natives() {
		if slices.Contains(native.Aliases, op) {
			return &complaint{name, fmt.Sprintf("%q is an alias, which no decision is asked about; write %q", op, native.Name)}
		}
	}
	return nil
}

func checkAttribute(of ast.IsNode, name string) *complaint {
	if v, ok := of.(ast.NodeTypeVariable); ok && v.Name == "context" {
		for _, a := range vocabulary.Actions {
			if a.AppliesTo == nil {
				continue
			}
			if _, ok := a.AppliesTo.Context[types.String(name)]; ok {
				return nil
			}
		}
	}
	return &complaint{name, fmt.Sprintf("there is no attribute %q here; %s", name, contextHelp)}
}

func checkIs(n ast.NodeTypeIs) *complaint {
	variable, _ := n.Left.(ast.NodeTypeVariable)
	name := string(n.EntityType)
	principal := slices.Contains(roles, n.EntityType)
	switch _, known := vocabulary.Entities[n.EntityType]; {
	case !known:
		return &complaint{name, fmt.Sprintf("there is no type %s; %s", name, typeHelp)}
	case variable.Name == "principal" && !principal, variable.Name == "resource" && principal:
		return &complaint{name, fmt.Sprintf("the %s is never %s; %s", variable.Name, name, typeHelp)}
	}
	return nil
}

// checkEntity refuses entities that cannot be: a rule about one would never apply, and
// nobody would notice.
func checkEntity(uid types.EntityUID) *complaint {
	name, id := uid.String(), string(uid.ID)
	_, known := vocabulary.Entities[uid.Type]
	switch {
	case uid.Type == "Action":
		if _, ok := vocabulary.Actions[uid]; !ok {
			return &complaint{name, fmt.Sprintf("there is no action %s; %s", name, actionHelp)}
		}
	case !known:
		return &complaint{string(uid.Type), fmt.Sprintf("there is no type %s; %s", uid.Type, typeHelp)}
	case uid.Type == "Op":
		return checkOp(ops.OpName(id), name)
	case uid.Type == "Gateway" && uid != gateway:
		return &complaint{name, fmt.Sprintf("there is one gateway, %s", gateway)}
	case uid.Type != "Gateway" && !ops.IdentityID(id).Valid() && uid != nobodys:
		return &complaint{name, fmt.Sprintf("no identity can be called %q", id)}
	}
	return nil
}

// scopeEntities returns the entities in the head of a policy.
func scopeEntities(p *ast.Policy) (uids []types.EntityUID) {
	for _, s := range []ast.IsScopeNode{p.Principal, p.Action, p.Resource} {
		switch s := s.(type) {
		case ast.ScopeTypeEq:
			uids = append(uids, s.Entity)
		case ast.ScopeTypeIn:
			uids = append(uids, s.Entity)
		case ast.ScopeTypeIsIn:
			uids = append(uids, s.Entity)
		case ast.ScopeTypeInSet:
			uids = append(uids, s.Entities...)
		}
	}
	return uids
}

// Ops returns the ops that p names, as Op::"NAME" or as what context.op is compared with,
// in order, each once. Whether they
// exist is for the registry to say: an op file may come later.
func (p *Policy) Ops() []ops.OpName {
	var names []ops.OpName
	add := func(uid types.EntityUID) {
		if uid.Type == "Op" {
			names = append(names, ops.OpName(uid.ID))
		}
	}
	for _, r := range p.rules {
		tree := (*ast.Policy)(r.policy.AST())
		for _, uid := range scopeEntities(tree) {
			add(uid)
		}
		for _, c := range tree.Conditions {
			ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
				if v, ok := n.(ast.NodeValue); ok {
					if uid, ok := v.Value.(types.EntityUID); ok {
						add(uid)
					}
				}
				names = append(names, comparedOps(n)...)
				return true
			})
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// What to do, told with a complaint.
const (
	actionHelp  = "the actions are run, ask, see, output, cancel, reply, approve and manage"
	typeHelp    = "principals are Agent, Operator, Bridge, Worker or Verifier; resources are Op, Identity or Gateway"
	contextHelp = "run and ask have op, provider, side_effecting, entrance, wake_declared, evidence_key, evidence_echo and clean in their context; " +
		"see, output, cancel, reply and approve have owner, own and enrolled; manage has none; name the actions in the head of the policy"
)

// advise adds what to do to what the validator says.
func advise(says string) complaint {
	c := complaint{message: says}
	if _, rest, ok := strings.Cut(says, "`"); ok {
		c.name, _, _ = strings.Cut(rest, "`")
	}
	switch {
	case strings.HasPrefix(says, "unrecognized action"):
		c.message = fmt.Sprintf("there is no action %s; %s", c.name, actionHelp)
	case strings.HasPrefix(says, "unrecognized entity type"):
		c.message = fmt.Sprintf("there is no type %s; %s", c.name, typeHelp)
	case strings.HasPrefix(says, "attribute"):
		if _, action, ok := strings.Cut(strings.TrimSuffix(says, " not found"), " in context for "); ok {
			c.message = fmt.Sprintf("%s has no attribute %q in its context", action, c.name)
		}
		c.message += "; " + contextHelp
	case strings.HasPrefix(says, "unable to find an applicable action"):
		c.message = "no action fits this head; run and ask are about an Op, manage is about the Gateway, the others about an Identity"
	default:
		c.message += "; docs/security.md says which types the attributes have"
	}
	return c
}

// flatten is the single errors in err, in an order of their own: the validator goes
// through the actions in none.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	slices.SortFunc(all, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return all
}
