package envelope

import (
	"time"

	"inband/ops"
)

// MaxFrame bounds what Wrap writes beside the payload, in bytes.
const MaxFrame = 1200

// MaxHints is how many ops a wake's envelope names.
const MaxHints = 9

// Wake is what an envelope tells an agent. Its payload is Errand and Shown; all else
// counts against MaxFrame.
type Wake struct {
	ID       string // w-…
	Cause    string // timer, message, delegation
	Name     string // who or what raised it, for people
	Key      string
	Deadline time.Time
	Errand   string // words of someone who is trusted
	Shown    string // words of anybody else
	From     string // whose words Shown is
	Hints    []Hint // more than MaxHints are cut, and Total says how many there are
	Total    int    // ops there are, for the line that says how to list them
	Terminal string // where the worker's terminal can be seen, "" for none
}

// Hint is one op as an envelope names it, in about 80 bytes.
type Hint struct {
	Op            ops.OpName
	SideEffecting bool
	Declared      bool     // the wake may run it unasked
	Params        []string // names; an optional one ends in "?"
	Summary       string
}

// Span is a range of an envelope's bytes: from Start up to End.
type Span struct{ Start, End int }

// Result is what an agent says of its wake in [RESULT {…}].
type Result struct {
	Verdict string   // done, failed, blocked or waiting
	Summary string   // at most 2000 bytes
	Refs    []string // at most 20, of at most 500 bytes
}
