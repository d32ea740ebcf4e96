// Package ops is the vocabulary of Inband: what an operation is, how it is
// called, and what comes of it. Every other package may import it; it imports
// none of them.
//
// An [Op] is a named operation with typed parameters, a flag that says whether
// it has side effects, and a provider that owns it. A [Call] is one op with
// parameters, an identity, an origin, the evidence of how it was ordered, and an
// idempotency key, on its way through the one door (package service). An
// [Outcome] is what came of it: a [Result], a [Fault], or the state [Accepted],
// which is settled later.
//
// A [Registry] holds the ops that exist, each with the [Executor] that runs it.
// It never changes once built; a reload builds another and swaps it in. What is
// not in the registry cannot run: there is no default op and no fallback.
//
// Ops come from two places: the table of native ops in native.go, whose logic is
// Go, and op files, which operators write in YAML and whose ops run one command
// each. The package reads and checks op files but runs nothing; package
// exec/command does.
//
// # Words
//
//   - Op, alias: a name that can be ordered, and another name for it.
//   - Parameter: one member of the params object of a call. Every op declares
//     all of its parameters; an undeclared one is refused.
//   - Pointer: an RFC 6901 JSON Pointer into the params object; faults carry one.
//   - Definition digest: SHA-256 over the RFC 8785 form of an op's definition,
//     by which a receipt or an approval is bound to what the op was.
package ops
