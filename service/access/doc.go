// Package access says who somebody is and what they may do.
//
// Identities are stable ids with a role that never changes. A caller proves one
// with a bearer token; the store keeps only the token's SHA-256, so that a copy of
// it opens nothing. Revoking an identity ends its tokens at once: every request
// asks the store, and nothing is cached. Its calls that have not begun do not begin
// any more; those that run are left to end, and operators may cancel them.
//
// A token can be rotated: the new one is shown once and the others end.
//
// [Policy.Decide] is the one place where permission is decided, for every entrance. It
// is a pure function of a policy and a [Request], and what no policy permits is refused;
// so is what a policy fails to decide. A [Policy] is read from a file in the language
// Cedar and checked against a schema (policy/policy.cedarschema) before it can decide
// anything: a name that does not exist is an error with a line, never a rule that
// silently does not apply. [LivePolicy] holds the one in force, which a reload swaps.
// The default one (policy/default.cedar): operators may do everything; an agent runs
// ops without side effects and those that its wake declared, asks for the others, hands in
// its own replies and sees its own calls and threads; a bridge does for the agents that it
// is enrolled for what they could do through a reply, and sees what they see.
//
// Its words: an action is a kind of thing that one may do; a principal is who, with the
// role as its type; a resource is what it is done to, an op, what belongs to an
// identity, or the gateway; the context is all else that a decision may rest on, a
// closed list of strings, numbers and truth values, without the parameters of a call.
package access
