// Package plane hands work to workers and believes nobody: durable dispatch, leases with
// fencing tokens, signed callbacks, attested artifacts, and a delegation that completes only
// when somebody else than its worker has verified it.
//
// An order (swarm.spawn, through the door) makes a delegation with its first run. A worker
// that polls gets a lease on a run, says under its fence what becomes of it, and returns a
// result. A verifier, another identity, judges the result by what was attested. What it
// comes to settles the call, in the same transaction.
//
// [Step] is the pure heart: every transition of a run and of its delegation, with its
// guards. [Plane] is the shell around it, which loads a snapshot, steps, and writes what
// came of it with a compare-and-set on the row's version, in one transaction with the events
// and with whatever follows: a new run, a verification, the outcome of the call. Nothing is
// true because a process remembers it; two planes over one store do no harm.
//
// # What it refuses
//
// To call work done because its worker says so, or because a file is there: a verdict counts
// from the holder of a live lease on the verification, never from who did the work. To obey
// whoever had a lease: what is said under an old fence, boot or term, or too late, is kept as
// evidence and decides nothing. To call a run cancelled, or to begin another one in its
// place, while something of it may be alive, without proof or before the budget of its class
// and the time to recover allow it. To run again while a change outside is unproven, or to
// take the key of such a change twice. To judge by time while nobody knows how much of it has
// passed. To hand out anything before an operator has switched it on.
//
// # Words
//
//   - delegation: work handed over, the outcome of one call
//   - run: one attempt at it; dispatch: the message that offers the run
//   - lease: a worker's right to a run until a time; fence: the number that a lease is known
//     by, which only ever grows; term: its upper half, which a restored store begins anew
//   - boot: one life of a worker's process
//   - callback: what a worker says of its run, signed; evidence: what was said and has no
//     authority
//   - tombstone: a worker's signed word that nothing of a run is alive
//   - verification: the judgement of another identity, asked for once a run has succeeded
//   - mutation: a change outside, with the key that the outside knows it by
//
// # Place
//
// Above the journal, beside threads and timers. Orders come in through package service's
// door, and outcomes go out through it. What workers and verifiers say arrives over
// adaptors/httpapi, in the messages of service/plane/wire; adaptors/worker is their side of
// it. The bytes of runs are package artifacts'. Whoever has ordered work is told through
// [Notices], which package threads is.
//
// # Where to look first
//
// docs/plane.md shows the states as one diagram and walks through a delegation. Then:
//
//   - state.go, step.go, step_rules.go, step_guard.go: what there is and what may happen;
//     step_worker.go, step_recover.go and step_verdict.go do it
//   - plane.go, write.go: the shell, from a row to a step and back
//   - spawn.go, offer.go, callback.go, sweep.go: the way of a run, in its order
//   - verify.go, verdict.go, settle.go: what becomes of its result
//   - cancel.go, resolve.go, mutation.go: what people decide, and what is not known
//   - enrol.go, boot.go, upload.go: who workers are, their lives and their files
//   - switch.go, reads.go, showing.go, roster.go, counts.go: what operators turn and see
package plane
