// Package threads takes agents' replies in and puts results out, wakes agents, and keeps
// what has to be known to tell an order from a quotation.
//
// A reply is taken once for each message id. Its directives are found by the
// harvester, and the reply, its post and the intents of its calls are one commit:
// a reply that was acknowledged is not lost, and its calls are neither. When a call
// settles, what is posted of it is written into the outbox in the same transaction,
// and the outbox delivers it to the thread that the reply stood in, once and
// nowhere else.
//
// # Chats
//
// An adaptor hands messages in by Receive and posts as a Chat. Who wrote a message is
// what the adaptor's configuration makes of the platform's stable id, never of a name. An
// agent's message is a reply. An operator's is trusted, and STOP, START, y CODE and
// n CODE are words to the gateway. Anybody's mention of an agent wakes it. Edits, history,
// programs that are nobody and the gateway's own posts lead to nothing.
//
// A post into a chat is claimed in the journal, made, and marked as made, in order within
// its thread. After a post of which nobody knows whether it stands there, the thread is
// read back for its mark before it is made again; what waiting cannot mend is set aside, in
// sight of operators (decision 0012).
//
// # The built-in rooms
//
// A room is a name under which threads are kept in the journal; it exists from its
// first thread on. Whoever writes in a thread, or is written to, takes part in it
// and may see it. This package is the adaptor of these rooms: their address is the
// id of the thread, and a delivery is a row, so that "posted" and "delivered" are
// one commit.
//
// # Wakes
//
// A wake is all that makes an agent begin: a timer, a message that is addressed to it, or
// a delegation raises one. What agents merely write in a thread wakes nobody. A wake
// inherits its root cause, and counts how many agents stand between it and a person; both
// are bounded (rule R8). Its key is bound to agent, thread and wake, and good while it is
// open. It ends by a [RESULT {…}] of its agent in its thread, or at its deadline as
// unanswered: nothing else makes one done.
//
// # Order or quotation
//
// The door decides by evidence, and this package gathers it. The key in a directive is
// compared with those of the agent's open wakes in the thread. The order is looked up
// among those that have stood in material, which are kept as digests of their canonical
// form: the alias resolved, RFC 8785, every string in compatibility form and without what
// is not seen. Material is read far more liberally than a reply, in quotes, code, JSON
// strings and HTML too, and over the borders of messages, because a reader would put
// right what a harvester must not. The work is linear and bounded; where the bound is
// met, nothing is certain, and orders with side effects wait for a person.
//
// # Words
//
//   - Reply: one message of one agent, as it was handed in.
//   - Post: what stands in a thread: a reply, a result, a note of the gateway, a message
//     that dm.send wrote, the envelope of a wake, or what somebody else said in a chat.
//   - Message id: the sender's own name for a reply. Its scope is adaptor, room and
//     agent, so that one agent cannot use up the ids of another.
//   - Ordinal: the place of a directive in its reply, from 1.
//   - Wake: an errand for an agent in one thread, with a key, a deadline and a verdict.
//   - Material: words that an agent was shown in a thread and that are neither its own nor
//     an operator's nor the gateway's: those of strangers and other agents, and results.
//   - Fold: to write a text as everything that looks like it is written.
package threads
