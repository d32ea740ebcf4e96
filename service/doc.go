// Package service holds the one door and the life of a call.
//
// Every entrance (the API, a reply's directives, timers, workers) makes an
// [ops.Call] and hands it to the [Door]. The door resolves the alias, weighs the
// evidence that it is an order and no quotation, decides permission, validates the
// parameters, takes the idempotency key and writes the intent; then it executes, and
// writes the outcome together with whatever its OnSettle functions add; only then does
// anybody hear of it. There is no other way to an executor.
//
// # The life of a call
//
//	  parked ──── cancelled, failed              not approved
//	     │     ┌─ refused
//	received ──┼─ cancelled, failed              before it began
//	           └─ running ─┬─ succeeded, failed, cancelled
//	                       ├─ accepted ── Settle ── succeeded, failed, …
//	                       └─ outcome_unknown       a crash, or an executor that cannot say
//
// A call without side effects is not written as running: it may always be run
// again. One with side effects is, before its executor is entered. So after a crash
// a side-effecting call that is still received has certainly not begun (it fails as
// NOT_STARTED, unless it is held), and one that is running may have acted (it becomes
// outcome_unknown, and is never run again by itself).
//
// A call that its identity may ask for and not run is parked. Somebody who may approve
// it lets it be received, once, or ends it (see [Door.Approve]); it waits for that over
// restarts, and not for ever. What was approved is what runs: an [ops.Binder] says what
// a call rests on, and an approval holds only while that stays the same.
//
// An op whose whole effect is in the journal implements [Transactional]: its effect
// and its outcome are one commit, so its outcome is never unknown.
//
// Operators stop a thread, or all agents, and start them again (see [Door.Hold]). What is
// held stays received, over restarts, and begins when it is released.
//
// # Idempotency
//
// The scope of a key is the identity. The same key with the same op and parameters
// gives the approval while the call is parked, IN_PROGRESS while it runs and its stored
// outcome afterwards; with others, KEY_REUSED. A refused call does not use up its key.
//
// An order with side effects that carries the key of a wake is had by that wake once: the
// same op with the same parameters is answered in the same way, whatever message it stands
// in, but for one that did not run and says to order it again.
//
// # Bounds
//
// Ops and identities have rates. They are weighed before anything is written; what is
// too much is RATE_LIMITED, and of a reply each directive by itself. A call takes once,
// a replay nothing. What may run stands in one line for room among all executions,
// those of its identity and those of its op, first come first served among those that
// there is room for; a call that waits is cancelled at once. Calls that are not
// finished are bounded, of all and of each identity: one too many is BUSY.
package service
