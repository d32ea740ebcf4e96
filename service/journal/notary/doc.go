// Package notary keeps a transparency log over all events of a store, so that a
// change of what has happened shows.
//
// The notary follows the committed events by position, hashes each into a Merkle tree
// (RFC 6962) and signs checkpoints: how many events there are, and the tree's hash
// over them. Anybody with the events, a checkpoint and the public key can compute the
// same and see whether an event was changed, removed, inserted, moved or cut off.
//
// # What it does not show
//
// That an event is true: it is signed as it was written. That nobody signed anew: who
// has the private key and the store can forge both, and who has the store can go back
// to an older copy. A checkpoint that was kept elsewhere ([Verify] takes it) shows
// these two. An event that no checkpoint covers yet, at most a moment's worth while
// the notary runs, is protected by nothing.
//
// # The record of an event
//
// The tree's leaf n (from 0) is the event at position n+1. Its data are, with all
// integers big-endian:
//
//	"inband/event/v1\n"       16 bytes
//	position                  8 bytes
//	at, Unix milliseconds     8 bytes, two's complement
//	version                   8 bytes
//	length of stream, stream  4 bytes, then that many
//	length of kind, kind      4 bytes, then that many
//	length of body, body      4 bytes, then that many
//
// The leaf's hash is SHA-256 over a zero byte and these data, an inner node's SHA-256
// over a one byte and the hashes of its two halves.
//
// # The checkpoint
//
// A signed note (golang.org/x/mod/sumdb/note) whose text has three lines: the key's
// name, the number of events, the tree's hash in base64.
//
// # Its place
//
// One notary a store, in the process that owns it. It writes batches of hashes with
// their checkpoint into a table of its own, through the same queue as everybody else,
// and no events, so it never feeds itself. A writer never waits for it. [Verify] and
// [Export] need a [Source] only: a running store, or a closed one opened for reading.
package notary
