package adaptortest

import (
	"context"
	"testing"
	"time"

	"inband/ops"
	"inband/service/threads"
)

// Harness puts an adaptor and a real server of its platform into the suite's hands.
type Harness interface {
	// Start starts a fresh platform that has rooms and people of these names; what it
	// started ends with t.
	Start(t *testing.T, s Setting) Platform
}

// Setting is what a platform is started with.
type Setting struct {
	Rooms  []string // ids of rooms
	People []Person // those whom the adaptor's configuration knows
}

// Person is a user of the platform who is an identity of the gateway.
type Person struct {
	User string // the platform's stable id
	Name string // its display name
	Is   ops.Identity
	Home string // id of the room in which it is written to
}

// Intake is where an adaptor puts what it receives. [threads.Threads] is the real one.
type Intake interface {
	Receive(ctx context.Context, in threads.Inbound) (threads.Heard, error)
	Known(ctx context.Context, in threads.Inbound) (bool, error)
	Cursor(ctx context.Context, adaptor string) (value string, ok bool, err error)
	SetCursor(ctx context.Context, adaptor, value string) error
}

var _ Intake = (*threads.Threads)(nil)

// Adaptor is an adaptor as a gateway runs it.
type Adaptor interface {
	// Chat is what the gateway writes by. It is a Finder and an Editor where the platform
	// can do that.
	Chat() threads.Chat
	// Run receives until ctx ends, and catches up first from the cursor in intake.
	Run(ctx context.Context, intake Intake) error
}

// Platform is a running server of a platform, with its own store of messages, which
// outlives adaptors. Its methods fail the test when the platform does not do them.
type Platform interface {
	// Adaptor makes an adaptor on this platform, as a gateway that starts makes it.
	// There is one at a time; a test that restarts its gateway makes another.
	Adaptor(t *testing.T) Adaptor

	// Say has somebody write m and returns the platform's id of it. The platform tells
	// the adaptor, unless m is Quiet.
	Say(t *testing.T, m Message) (id string)
	// Change has the author of a message change its text. With preview, the platform
	// itself adds a preview of a link, and the text stays.
	Change(t *testing.T, id, text string, preview bool)
	// Remove removes a message, with its thread when it is a root.
	Remove(t *testing.T, id string)
	// Tell tells the adaptor of messages, in this order, each as a new event about the
	// same message; of several at once with atOnce.
	Tell(t *testing.T, atOnce bool, ids ...string)
	// Sever cuts the connection: the adaptor hears of nothing and reaches nobody until
	// Mend. What is said meanwhile is there to be caught up, where the platform can.
	Sever(t *testing.T)
	Mend(t *testing.T)

	// Room returns what stands in a room, in its order.
	Room(t *testing.T, room string) []Standing
	// Fail makes posts, edits and reading back fail as f says, in place of what was set
	// before. Fail() ends all faults.
	Fail(t *testing.T, f ...Fault)
	// Seen returns the requests that the adaptor has made so far, the oldest first.
	Seen(t *testing.T) []Request
}

// Message is what somebody writes.
type Message struct {
	Room  string
	Under string // id of a message of the thread that it stands in, root or not; "" begins one
	User  string // the platform's id of the author; of one who is not in the Setting, a stranger
	Name  string // its display name
	Text  string // as the author means it: the platform escapes it its own way
	Kind  Kind
	At    time.Time // when it was written, zero for now
	Quiet bool      // the adaptor is not told of it
}

// Kind is what kind of message somebody writes.
type Kind string

// The kinds of messages.
const (
	Plain   Kind = ""        // a person or an enrolled agent
	Program Kind = "program" // the platform marks it as a program's
	Notice  Kind = "notice"  // a join, a topic
	Own     Kind = "own"     // by the gateway's own account; User is not looked at
)

// Standing is a message that stands on a platform.
type Standing struct {
	ID       string
	Root     string // id of the thread's root; its own for a root
	User     string
	Own      bool
	Text     string // as people see it, mark and all
	File     string // text of the attachment
	Edits    int
	Notified []string // the users whom it has notified
	Fetches  int      // previews and images that the platform has fetched for it
}

// FaultKind is how the platform misbehaves.
type FaultKind string

// The kinds of faults.
const (
	Drop    FaultKind = "drop"       // it takes the post, and the connection breaks before the answer
	Cut     FaultKind = "cut"        // it takes the post, and the answer breaks off in its body
	Hang    FaultKind = "hang"       // it takes the post and does not answer
	Error   FaultKind = "error"      // 503, and nothing is taken
	TooMany FaultKind = "too_many"   // 429 with Retry-After, and nothing is taken
	Inside  FaultKind = "inside"     // 200 with "rate limited" inside, and nothing is taken
	Refuse  FaultKind = "refuse"     // 400, as for markup that it cannot read
	Gone    FaultKind = "root_gone"  // the thread's root is gone
	Locked  FaultKind = "closed"     // the thread is closed
	EditCap FaultKind = "edit_limit" // it takes no further edit of the message
	NoRead  FaultKind = "no_read"    // reading back fails with 503
)

// Fault is how requests fail.
type Fault struct {
	Kind  FaultKind
	Of    string        // post, edit or find; "" is post
	Room  string        // only those of this room, "" for all
	Times int           // so often, 0 for as long as it is set
	After time.Duration // TooMany: Retry-After, whole seconds
}

// Request is one request of the adaptor to write or read back.
type Request struct {
	Of     string // post, edit, find
	Room   string
	Root   string // as the adaptor named it, "" for a new thread
	Mark   string
	Key    string // the platform's idempotency key
	Status int    // what it was answered with, 0 for nothing
	At     time.Time
	Units  int // of the text as the platform counts it
}
