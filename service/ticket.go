package service

import "inband/ops"

// Ticket is the door's receipt for one call.
type Ticket struct {
	Call  ops.CallID
	Op    ops.OpName // resolved if it could be
	State ops.State
	// Replayed says that this key and body were known: Outcome is the stored one,
	// and nothing ran.
	Replayed bool
	// Rule is what let the call run, had it parked or refused it: a rule of the
	// specification of threads ("R4 key missing"), "policy: " and the name of a rule of the
	// policy, or what else was wrong. Its first word says which kind.
	Rule string
	// Approval is what a parked call waits for. Such a ticket has no Outcome, and
	// nothing is under way.
	Approval ApprovalID
	// Outcome is set when there is nothing to wait for: the call is settled, or this
	// request was refused on account of an earlier call, which Call and State then
	// describe (IN_PROGRESS, KEY_REUSED).
	Outcome *ops.Outcome

	task *task // what Run has to do, nil if nothing
}

// Query narrows a read.
type Query struct {
	Arg    string            // the id of one thing, for reads of one
	Limit  int               // most rows, 0 for the read's default
	After  string            // where the last page ended
	Filter map[string]string // by name of a column that the read documents
}
