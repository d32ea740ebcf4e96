package threads

import (
	"time"

	"inband/ops"
	"inband/service/journal"
)

// WakeID identifies a wake for good: "w-" and a lower-case ULID.
type WakeID string

// Cause is what raised a wake.
type Cause string

// The causes.
const (
	ByTimer      Cause = "timer"
	ByMessage    Cause = "message"
	ByDelegation Cause = "delegation"
)

// Verdict is what came of a wake.
type Verdict string

// The verdicts. An agent gives the first four by [RESULT {…}]; a wake without one at its
// deadline is unanswered, never done.
const (
	Done       Verdict = "done"
	Failed     Verdict = "failed"
	Blocked    Verdict = "blocked"
	Waiting    Verdict = "waiting" // the wake stays open until its deadline
	Unanswered Verdict = "unanswered"
)

// Errand is what an agent is to be woken for.
type Errand struct {
	Agent  ops.IdentityID `json:"agent"`
	Cause  Cause          `json:"cause"`
	Source string         `json:"source"`       // "timer/tm-…#3", or the source of the call that raised it
	By     ops.Identity   `json:"by,omitzero"`  // who raised it, zero for a stranger
	Name   string         `json:"name"`         // who or what raised it, in a few words, for people
	Thread string         `json:"thread"`       // where the envelope goes; empty is a new thread in the agent's home
	Text   string         `json:"text"`         // the errand in the words of someone who is trusted, or empty
	Shown  string         `json:"shown"`        // untrusted words that belong to it, or empty
	Ops    []ops.OpName   `json:"ops"`          // declared: what it may run unasked
	Root   string         `json:"root"`         // root cause; empty begins a new one
	Hops   int            `json:"hops"`         // agents between a person and this
	Limit  time.Duration  `json:"limit"`        // until the deadline; 0 is an hour
	Key    string         `json:"key,omitzero"` // empty is a fresh one, as it is but in case files
}

// Bounds of wakes (rule R8).
const (
	MaxHops         = 6  // agents between a person and a wake
	MaxWakesOfRoot  = 20 // wakes of one root cause
	StandardErrand  = time.Hour
	LateAfter       = 15 * time.Minute // an order that arrives later than this is parked
	keyAlphabet     = "abcdefghjkmnpqrstuvwxyz23456789"
	keyGroups       = 3 // of four, 59 bits in all
	maxOpenOfThread = 64
)

// Wake is a wake that was raised.
type Wake struct {
	ID       WakeID
	Thread   string
	Post     string // of the envelope, "" while the thread is stopped
	Deadline time.Time
	Held     bool // its thread is stopped: the envelope is posted when it is started again
}

// Raise wakes an agent in tx: it writes the wake, and its envelope into the outbox or the
// thread. It is a LoopLimit when the errand stands too many agents away from a person, or
// its root cause has woken agents too often; NotFound when there is no such agent.
func (t *Threads) Raise(tx journal.Tx, e Errand) (Wake, error) {
	return Wake{}, ops.Faultf(ops.Internal, "wakes are being built")
}

// EndOverdue gives the wakes whose deadline has passed the verdict unanswered, at most n
// of them, and returns when the next one is due, the zero time if there is none.
func (t *Threads) EndOverdue(tx journal.Tx, n int) (next time.Time, err error) {
	return time.Time{}, nil
}
