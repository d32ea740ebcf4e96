// Package wire is what the plane, its workers and its verifiers say to each other: the
// messages, and the envelopes that they are signed in.
//
// Every message is a DSSE envelope with one Ed25519 signature and a payload type of its
// kind, so that no signature over one kind can pass for another. Seal makes one, Open
// reads one and refuses whatever is not exactly that: another algorithm, a second
// signature, an unknown member, a member twice.
//
// # Words
//
//   - message: what a worker or verifier says of one run or verification, bound to it
//     by its Header
//   - sequence, previous: a message's place in the chain of its run's messages; each
//     names the digest of the payload before it
//   - grant: the plane's word that a worker has a lease
//   - boot: one life of a worker process; the plane makes no difference between two
//     processes of one boot, so there must not be two
//
// The package imports nothing of ours but the vocabulary.
package wire
