// Package access says who somebody is and what they may do.
//
// Identities are stable ids with a role that never changes. A caller proves one
// with a bearer token; the store keeps only the token's SHA-256, so that a copy of
// it opens nothing. Revoking an identity ends its tokens at once: every request
// asks the store, and nothing is cached. Its calls that have not begun do not begin
// any more; those that run are left to end, and operators may cancel them.
//
// [Decide] is the one place where permission is decided, for every entrance. It is
// a pure function of a [Request]; what it does not allow is refused. Its rule is
// fixed: operators may do everything; an agent runs ops without side effects and
// dm.send, hands in its own replies and sees its own calls and threads; a bridge
// does for the agents that it is enrolled for what they could do through a reply,
// and sees what they see.
package access
