// Package threads takes agents' replies in and puts results out.
//
// A reply is taken once for each message id. Its directives are found by the
// harvester, and the reply, its post and the intents of its calls are one commit:
// a reply that was acknowledged is not lost, and its calls are neither. When a call
// settles, what is posted of it is written into the outbox in the same transaction,
// and the outbox delivers it to the thread that the reply stood in, once and
// nowhere else.
//
// # The built-in rooms
//
// A room is a name under which threads are kept in the journal; it exists from its
// first thread on. Whoever writes in a thread, or is written to, takes part in it
// and may see it. This package is the adaptor of these rooms: their address is the
// id of the thread, and a delivery is a row, so that "posted" and "delivered" are
// one commit.
//
// # Words
//
//   - Reply: one message of one agent, as it was handed in.
//   - Post: what stands in a thread: a reply, a result, a note of the gateway, or a
//     message that dm.send wrote.
//   - Message id: the sender's own name for a reply. Its scope is adaptor, room and
//     agent, so that one agent cannot use up the ids of another.
//   - Ordinal: the place of a directive in its reply, from 1.
package threads
