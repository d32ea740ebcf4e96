// Package envelope writes what an agent or a person reads as text, and reads the one
// thing that an agent answers to it besides its orders.
//
// It writes the envelope of a wake (Wrap), what came of a call (Outcome), remarks of
// the gateway (Note, Parked), and words of others that a post repeats (Neutral, Words),
// and cuts into parts what a platform does not take whole (Split). It reads the object of a
// [RESULT {…}] (ReadResult).
//
// # The law
//
// Nothing that it writes is an order (rule R9 of the specification of threads).
// Harvesting any of its texts, any part of one, or what a bridge has made of it that decodes
// character references once, normalises compatibility forms, drops characters without
// width, cuts or joins, yields no directive and no result. So what an op returns, which is a
// stranger's text, cannot order anything by being shown, and an agent that repeats what it was
// told orders nothing either.
//
// A text of others is put into a fence that it cannot close, its directive openers are
// broken visibly (⟦TOOL), what would call people or be fetched by a platform is broken
// so that it reads the same, and what could hide or reorder the line is written as an
// escape. An order that a person dictates in an errand is shown in the same way: the envelope
// says that ⟦ stands for [.
//
// # Words
//
// A wake is an errand for an agent. Its envelope is the message that tells the agent of it:
// the frame, in at most MaxFrame bytes, and the payload, which is the errand, in words of
// somebody who is trusted, and what is shown, in words of anybody else. A hint names one op.
//
// The package refuses to keep anything: it has no state, and who was shown what, which
// keys are valid and where a text goes are matters of service/threads.
package envelope
