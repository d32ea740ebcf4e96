// Package plane hands work to workers and believes nobody: durable dispatch, leases with
// fencing tokens, signed callbacks, attested artifacts, and a delegation that completes
// only when somebody else than its worker has verified it.
//
// Step is the pure heart: every transition of a run and of its delegation, with its
// guards. Plane is the shell around it, which loads a snapshot, steps, and writes what
// came of it with a compare-and-set on the row's version, in one transaction with the
// events and with whatever follows (a new run, a verification, the outcome of the call).
//
// # Words
//
//   - delegation: work handed over, the outcome of one call
//   - run: one attempt at it; dispatch: the message that offers the run
//   - lease: a worker's right to a run until a time; fence: the number that a lease is
//     known by, which only ever grows
//   - callback: what a worker says of its run, signed; evidence: what was said and has
//     no authority
//   - verification: the judgement of another identity
//   - mutation: a change outside, with the key that the outside knows it by
package plane
