// Package threads takes agents' replies in and puts results out.
//
// A reply is taken once for each message id. Its directives are found by the
// harvester, and the reply, its post and the intents of its calls are one commit:
// a reply that was acknowledged is not lost, and its calls are neither. When a call
// settles, what is posted of it is written into the outbox in the same transaction,
// and the outbox delivers it to the thread that the reply stood in, once and
// nowhere else.
//
// # Orders and quotations
//
// What an agent writes is weighed before it becomes a call: whether it carries the key of
// a wake of that agent in that thread (rule R4), whether the same order stood in what
// others have written there (R5), whether anything untrusted stood there (R6), whether it
// is fresh. This package looks that up and keeps what is needed for it, keys and material;
// the door decides by it. A key that is wrong, a quotation and an order too many are
// refused and answered in the thread; an order without a key waits for a person.
//
// # Wakes
//
// A wake is the only thing that makes an agent begin: a timer, a message that is addressed
// to it, or a delegation raises one. What agents write to a thread wakes nobody. A wake
// inherits its root cause, and counts how many agents stand between it and a person; both
// are bounded (R8). It ends by a [RESULT {…}] of its agent in its thread, or at its
// deadline as unanswered; nothing else makes one done.
//
// # Rooms and chats
//
// A room is a name under which threads are kept in the journal; it exists from its
// first thread on. Whoever writes in a thread, or is written to, takes part in it
// and may see it. This package is the adaptor of the built-in rooms: their address is the
// id of the thread, and a delivery is a row, so that "posted" and "delivered" are
// one commit. A thread of a [Chat] stands on its platform, and here is the record of it:
// the outbox sends what is posted, and Receive takes what is written there.
//
// # Words
//
//   - Reply: one message of one agent, as it was handed in.
//   - Post: what stands in a thread: a reply, a result, a note of the gateway, a message
//     that dm.send wrote, an envelope, or what was heard in a chat.
//   - Message id: the sender's own name for a reply. Its scope is adaptor, room and
//     agent, so that one agent cannot use up the ids of another.
//   - Ordinal: the place of a directive in its reply, from 1.
//   - Wake: an errand for one agent in one thread, with a deadline and a verdict.
//   - Key: what an order shows to be one. It is bound to agent, thread and wake, and good
//     while the wake is open.
//   - Material: what others wrote in a thread, as far as it looks like an order.
//   - Held: raised or ordered while its thread is stopped, and waiting for START.
package threads
