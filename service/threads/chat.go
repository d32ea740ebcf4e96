package threads

import (
	"context"
	"fmt"
	"time"

	"inband/ops"
)

// Chat is a chat platform as this package writes to it. Package adaptortest has the suite
// that every implementation passes. Methods may be called from several goroutines, but
// posts of one thread come one after another.
//
// An address is the adaptor's own text: it is made by the adaptor, always names the root
// message of a thread or the room in which a thread is to begin, and is read by nobody
// else.
type Chat interface {
	// Name is the adaptor's name in addresses, sources and routes:
	// [a-z][a-z0-9-]{0,31}, and not the name of the built-in rooms.
	Name() string
	// Limits bound one post.
	Limits() PostLimits
	// Open returns the address at which a new thread with room or user begins: room "#ID" or
	// person "@ID", by the platform's stable ids. NotFound for what the adaptor's
	// configuration does not hold.
	Open(target string) (address string, err error)
	// Who returns the identity that a platform's user is, false for a stranger. Display
	// names never matter.
	Who(user string) (ops.IdentityID, bool)
	// Home returns where an identity is written to, false if it is not on this platform.
	Home(id ops.IdentityID) (h Home, ok bool)
	// Post writes p into the thread at address. An error is a *PostError, or counts as
	// one of the kind Unsure. ctx has a deadline.
	Post(ctx context.Context, address string, p Outgoing) (Posted, error)
}

// Finder is a Chat that can read a thread back.
type Finder interface {
	// Find looks for a post of our own with mark in the thread at address.
	Find(ctx context.Context, address, mark string) (p Posted, found bool, err error)
}

// Editor is a Chat that can change a post of our own.
type Editor interface {
	Edit(ctx context.Context, address, id string, p Outgoing) error
}

// Home is where an identity is on a platform.
type Home struct {
	Target string // as Open takes it
	User   string // the platform's id of the identity, "" if it has none
}

// Outgoing is one post.
type Outgoing struct {
	Mark    string // "r-…", which the adaptor writes below the text; unique to this post
	Key     string // the platform's idempotency key, bound to the content
	Text    string // within PostLimits, already neutral
	Mention string // the platform's id of the one user whom it addresses, "" for nobody
	// File is text that belongs to the post as an attachment, "" for none. It is only
	// given to a Chat whose limits have Files.
	File string
}

// Posted is a post as the platform has it.
type Posted struct {
	ID      string // the platform's id of it
	Address string // of the thread that it stands in, with its root
}

// Unit is what a platform counts the length of a post in.
type Unit string

// The units.
const (
	Bytes Unit = "bytes"
	Runes Unit = "runes"
	UTF16 Unit = "utf16" // code units
)

// PostLimits bound one post of a platform. The mark, its line break included, counts.
type PostLimits struct {
	Unit  Unit
	Post  int  // units of a post, at least 500
	Edit  int  // units of a post that is edited, 0 for none
	Parts int  // posts of one result; what is longer is cut short. 0 is 8
	Files bool // a long text may be an attachment
	Keys  bool // a second post with the same Outgoing.Key is the first one, so sending it again is safe
}

// Failure says what is known of a post that failed.
type Failure string

// The kinds of failures.
const (
	Unsure      Failure = "unsure"       // it may stand there: it is looked for before it is sent again
	Unsent      Failure = "unsent"       // it certainly does not stand there, and may be sent again
	RateLimit   Failure = "rate_limited" // as Unsent, and After says when
	RefusedPost Failure = "refused"      // it never will be taken
	RootGone    Failure = "root_gone"    // its thread is gone
	Closed      Failure = "closed"       // its thread takes no posts
)

// PostError is why a post failed.
type PostError struct {
	Kind  Failure
	After time.Duration // RateLimit: how long to wait
	Wide  bool          // RateLimit: it is about all posts, not about this thread's
	Err   error         // for operators
}

// Error says what failed.
func (e *PostError) Error() string { return fmt.Sprintf("%s: %v", e.Kind, e.Err) }

// Unwrap returns the cause.
func (e *PostError) Unwrap() error { return e.Err }

// InboundKind is what an event of a platform is about.
type InboundKind string

// The kinds of inbound events.
const (
	Message InboundKind = "message"
	Edit    InboundKind = "edit"   // a message that is known has another text now, or a preview
	System  InboundKind = "system" // a join, a topic, a notice: never read
)

// Inbound is one message of a platform, its transport escaping undone and nothing else.
type Inbound struct {
	Adaptor   string
	Workspace string // the platform's id, "" where there is none
	Room      string // the platform's id
	Message   string // the platform's id of the message itself, never that of the event
	Address   string // of the thread that it stands in, or begins
	Kind      InboundKind
	User      string // the platform's stable id of who wrote it
	Name      string // its display name, which decides nothing
	Self      bool   // we wrote it
	Bot       bool   // the platform says that a program wrote it
	Mentions  []string
	Text      string // valid UTF-8 without U+0000, at most MaxText bytes
	Beside    string // what the platform shows and Text has not, such as labels of links and attachments; it is never read
	WrittenAt time.Time
	CatchUp   bool // it was fetched after a disconnect
	History   bool // it is older than all that this gateway answers for: remembered, never run
}

// Heard says what became of an Inbound.
type Heard struct {
	Status string `json:"status"` // taken, duplicate, edited, ignored
	Reason string `json:"reason,omitempty"`
	Thread string `json:"thread,omitempty"`
	Reply  *Ack   `json:"reply,omitempty"` // when an agent wrote it
}
