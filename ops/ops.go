package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// OpName names an op or an alias: [A-Za-z_][A-Za-z0-9_.:/-]*, at most
// MaxNameLen bytes (the directive grammar's op name).
type OpName string

// MaxNameLen is the longest op name, in bytes.
const MaxNameLen = 128

// lazily returns what compiles expr when it is first asked for: counted repetitions
// take a while, for which no start of the program need wait, nor of its canaries.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var opName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.:/-]*$`)

// Valid reports whether n has the form of an op name. It says nothing about
// whether such an op exists.
func (n OpName) Valid() bool { return len(n) <= MaxNameLen && opName.MatchString(string(n)) }

// CallID identifies one call for good. Ids sort by the time they were made.
type CallID string

// NewCallID returns a fresh id, "c-" and a lower-case ULID.
func NewCallID() CallID { return CallID(newID("c-")) }

// IdentityID is the stable id of an identity, never a display name:
// [a-z0-9][a-z0-9._-]*, at most 64 bytes.
type IdentityID string

var identityID = lazily(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// Valid reports whether id has the form of an identity id.
func (id IdentityID) Valid() bool { return identityID().MatchString(string(id)) }

// Role says what kind of identity one is. A role is given when the identity is
// made and never changes.
type Role string

// The roles. Worker and verifier belong to the execution plane.
const (
	Agent    Role = "agent"    // writes replies; its directives become calls
	Operator Role = "operator" // a person or a script that runs the gateway
	Bridge   Role = "bridge"   // hands in replies of the agents it is enrolled for
	Worker   Role = "worker"   // holds leases on delegated work
	Verifier Role = "verifier" // judges what workers return
)

// Identity is who stands behind a call. The zero value is nobody, and nobody may
// do anything.
type Identity struct {
	ID   IdentityID `json:"id"`
	Role Role       `json:"role"`
}

// String returns "role/id", or "nobody" for the zero value.
func (i Identity) String() string {
	if i == (Identity{}) {
		return "nobody"
	}
	return string(i.Role) + "/" + string(i.ID)
}

// Address is where to answer in a chat. Only the adaptor that made it reads
// Opaque; everybody else carries it.
type Address struct {
	Adaptor string `json:"adaptor"`
	Opaque  string `json:"opaque"`
}

// Origin is where a call came from and where its answer goes.
type Origin struct {
	// Source is the place in words that an operator can follow, for example
	// "rooms/lobby/m-17#2" (adaptor, room, message id, ordinal) or "api".
	Source string `json:"source"`
	// Answer is the thread that the outcome is posted to. Nil means that the
	// caller waits for it, or does not care.
	Answer *Address `json:"answer,omitempty"`
	// Wake is the errand under which an agent ordered this, if any: the one whose key it
	// carries, or the last one of that agent in that thread.
	Wake string `json:"wake,omitempty"`
	// Thread is where that wake was raised, for a call that answers in no thread: what
	// stops the thread stops it too.
	Thread string `json:"thread,omitempty"`
	// Declared are the ops that the wake was raised for.
	Declared []OpName `json:"declared,omitempty"`
	// Grant is what that wake, or an approved plan, may do unasked.
	Grant string `json:"grant,omitempty"`
	// Root is the root cause, which loop caps count by.
	Root string `json:"root,omitempty"`
	// Hops counts agents between a person and this call.
	Hops int `json:"hops,omitempty"`
}

// Evidence says how sure we are that a call was ordered and not quoted. The zero
// value is the worst evidence there is.
type Evidence struct {
	Key   uint8 `json:"key"`            // how well the directive's key matched a wake's: KeyWrong to KeyGood
	Echo  uint8 `json:"echo"`           // how well it was told apart from shown material: EchoFound to EchoNone
	Clean bool  `json:"clean"`          // no untrusted material stood in the thread before it
	Fresh bool  `json:"fresh"`          // it arrived within 15 minutes of being written
	Curl  bool  `json:"curl,omitempty"` // it was written as a curl command, which counts for reads unless it carries the key (rule R2)
}

// What Evidence.Key says (rule R4).
const (
	KeyWrong   uint8 = 0 // it carries a key that no wake of this agent in this thread has now
	KeyMissing uint8 = 1
	KeyGood    uint8 = 2
)

// What Evidence.Echo says (rule R5).
const (
	EchoFound   uint8 = 0 // the same order stood in untrusted material that the agent was shown
	EchoUnknown uint8 = 1 // it could not be looked up
	EchoNone    uint8 = 2
)

// Call is one op with parameters, on its way through the door. It is a value:
// no stage changes another's copy.
type Call struct {
	ID  CallID   `json:"id"`
	Op  OpName   `json:"op"` // as resolved by the door, never an alias beyond it
	By  Identity `json:"by"`
	Key string   `json:"key,omitempty"` // idempotency key; scope is the identity. At most MaxKeyLen bytes.
	// Params is one JSON object. Beyond the door it is in RFC 8785 form and has
	// passed the op's validation.
	Params   json.RawMessage `json:"params"`
	From     Origin          `json:"from"`
	Evidence Evidence        `json:"evidence"`
}

// MaxKeyLen is the longest idempotency key, in bytes.
const MaxKeyLen = 512

// State is a station in the life of a call.
type State string

// The states of a call. A call is received, parked or refused. A parked one is
// received when it is approved and fails or is cancelled when it is not. A received
// one runs, then succeeds, fails, is cancelled, or is left unknown by a crash.
// Accepted means that the work goes on elsewhere and is settled later.
const (
	Received  State = "received"
	Parked    State = "parked" // waits for somebody's approval
	Refused   State = "refused"
	Running   State = "running"
	Accepted  State = "accepted"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
	Unknown   State = "outcome_unknown"
)

// Settled reports whether s is final.
func (s State) Settled() bool {
	switch s {
	case Refused, Succeeded, Failed, Cancelled, Unknown:
		return true
	}
	return false
}

// Result is what a successful call returned.
type Result struct {
	// Value is the whole answer, one JSON value.
	Value json.RawMessage `json:"value"`
	// Show is a JSON Pointer to the string in Value that a person wants to read, a member
	// of it such as "/stdout". Empty means all of Value.
	Show string `json:"show,omitempty"`
}

// Shown returns the string that Show points to, false if there is none: what is to be
// read is then all of Value.
func (r *Result) Shown() (string, bool) {
	if r.Show == "" {
		return "", false
	}
	var object map[string]any
	if json.Unmarshal(r.Value, &object) != nil {
		return "", false
	}
	s, ok := object[strings.TrimPrefix(r.Show, "/")].(string)
	return s, ok
}

// NewResult returns v as a result. It panics if v is not a JSON value, which is
// a mistake in the op and not in the call.
func NewResult(v any, show string) *Result {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("ops: a result that is no JSON value: %v", err))
	}
	return &Result{Value: b, Show: show}
}

// Outcome is what came of a call. Result is set when State is Succeeded, Fault
// when it is Refused, Failed, Cancelled or Unknown.
type Outcome struct {
	State  State   `json:"state"`
	Result *Result `json:"result,omitempty"`
	Fault  *Fault  `json:"fault,omitempty"`
	// Receipt is the executor's account of what it did, one JSON object, for those who
	// may read the call whole. It never holds a secret. Nil if there is none.
	Receipt json.RawMessage `json:"receipt,omitempty"`
	// Published are files of a call that succeeded, whose bytes are kept durably already.
	// They are a member of their own, and nothing is read out of Result, because what a
	// result holds may be anybody's words: whoever has a row for bytes may read them.
	Published []Published `json:"published,omitempty"`
}

// Published is one file that a call has left to be kept.
type Published struct {
	File   string `json:"file"`
	Kind   string `json:"kind"`   // media type
	Digest string `json:"digest"` // "sha256:" and 64 lower-case hex digits
	Bytes  int64  `json:"bytes"`
}

// Success returns the outcome of a call that did what it was for.
func Success(r *Result) Outcome { return Outcome{State: Succeeded, Result: r} }

// Failure returns the outcome of a call that ran and did not do what it was for.
func Failure(f *Fault) Outcome { return Outcome{State: Failed, Fault: f} }

// Executor runs the calls of one op or of several.
//
// Execute gets a call that has passed the door: the op is resolved, the caller
// permitted, the parameters valid and canonical. It returns what came of it; an
// error means that it does not know, and a side-effecting call then ends as
// Unknown. It obeys ctx: when ctx ends it stops what it started and returns.
type Executor interface {
	Execute(ctx context.Context, call Call) (Outcome, error)
}

// ExecutorFunc is a function as an Executor.
type ExecutorFunc func(ctx context.Context, call Call) (Outcome, error)

// Execute calls f.
func (f ExecutorFunc) Execute(ctx context.Context, call Call) (Outcome, error) { return f(ctx, call) }

// Binder is an executor whose calls depend on more than their definition and
// parameters: on files that could be others later. Bind returns what a call would rest
// on now, a digest by the name of each thing. An approval binds it and holds only while
// it stays the same.
type Binder interface {
	Bind(call Call) (map[string]string, error)
}

// Op is the definition of one operation. It is data: what it says is what
// tools.list shows, what validation enforces and what its digest covers.
type Op struct {
	Name          OpName
	Aliases       []OpName
	Provider      string // the group that owns it: "box" for native ops, else the op file's
	Summary       string // one sentence, no line break
	SideEffecting bool   // changes something outside its own call
	Params        Params
	Timeout       time.Duration // bound on one execution; 0 means DefaultTimeout
	Command       *Command      // how a command op runs; nil for a native op
	Concurrency   int           // executions at one time; 0 is no bound of its own
	Rate          Rate          // calls admitted in a time; the zero value is no bound of its own
	Catalog       *Catalog      // how discovery presents it; nil means uncurated
	Examples      Examples
}

// Rate is Count at once, coming back evenly, Count in each Per. Per is at least a second.
type Rate struct {
	Count int
	Per   time.Duration
}

// DefaultTimeout bounds an execution whose op names no timeout.
const DefaultTimeout = 30 * time.Second

// Command says how a command op becomes a process. Package exec/command alone
// acts on it.
type Command struct {
	Argv      []Arg
	OutputMax int64  // bytes kept of stdout and stderr together
	Kind      string // media type of the output, "text/plain" if empty
	// FS are the files that the process may use beyond its program and the system's
	// libraries. The zero value is none.
	FS Paths
	// Network is which sockets the process may make, none if empty.
	Network Network
	Limits  Limits
	// SHA256 is what the program's file must hash to, in lower-case hex; empty is
	// whatever stands there.
	SHA256 string
	// Env is the environment beside LANG, in the order of the op file; one that is called
	// LANG is instead of it.
	Env []EnvVar
	// RunAs is the name of the user that the process runs as. Empty is the gateway's
	// own user, or "nobody" where that is root.
	RunAs string
	// Unconfined is "sandbox: none": the op asks to run outside the sandbox, which the
	// gateway's configuration must allow.
	Unconfined bool
	// Require are the layers without which the op is disabled, beyond those that every
	// op needs: landlock, seccomp, limits, capabilities, run_as, cgroup, namespaces.
	Require []string
	// Checks must all hold for a run to count as a success. None is: exit code 0. Where
	// there are any, one of them is of the exit code.
	Checks []Check
	// Publish are files of the private folder that are kept as artifacts.
	Publish []Publish
}

// EnvVar is one variable of a process's environment. Exactly one of Value and
// Credential is meant: Credential if it is not empty.
type EnvVar struct {
	Name       string
	Value      string
	Credential CredentialRef
}

// CredentialRef names a secret and never is one: "file:NAME" is a file of the
// credentials folder, "env:NAME" a variable that the gateway's configuration names,
// "systemd:NAME" a credential of the service manager. It is resolved when a process is
// launched, and the value is written nowhere.
type CredentialRef string

var credentialRef = lazily(`^(file|env|systemd):[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

// Valid reports whether r has the form of a reference. It says nothing about whether
// there is such a credential.
func (r CredentialRef) Valid() bool { return credentialRef().MatchString(string(r)) }

// Check is one condition on a run. Exactly one of its members is set.
type Check struct {
	Exit   []int  // the exit codes that are a success
	Stdout string // an RE2 expression that matches somewhere in what was kept of stdout
}

// Publish is one file of the private folder that is kept.
type Publish struct {
	File string // a clean relative path
	Kind string // media type
}

// Paths are absolute, clean paths; a folder stands for all below it.
type Paths struct {
	Read  []string
	Write []string // reading included; none in an op without side effects
	Exec  []string // reading included
	// Metadata lets the program change the modes, owners, times and attributes of files,
	// of all that its user may, also outside of Write; not in an op without side effects.
	Metadata bool
}

// Network says which sockets a process may make.
type Network string

// The networks of op files.
const (
	NetworkNone    Network = "none"    // no socket at all
	NetworkNetlink Network = "netlink" // those that ask the kernel, as ip and ss do
	NetworkUnix    Network = "unix"    // those of this machine's services; not in an op without side effects
	NetworkAny     Network = "any"     // IPv4, IPv6 and netlink; not in an op without side effects
)

// Limits bound one process; what it starts counts for itself. 0 means the default.
type Limits struct {
	NoFile int64         // open files
	FSize  *int64        // bytes of the largest file it may write; nil is no limit
	CPU    time.Duration // processor time; 0 is no limit but the op's timeout
	Memory int64         // bytes of address space; 0 is no limit
	// Processes is how many processes and threads the op's user may have when one of
	// this op makes another; 0 is no limit.
	Processes int64
}

// Arg is one place in an argv. Exactly one of the two is set: a fixed word, or
// the name of a parameter whose value becomes one whole word (for a bool: the
// words it selects). A value never becomes part of another word.
type Arg struct {
	Word  string
	Param string
}

// Catalog is how progressive discovery presents an op.
type Catalog struct {
	Label    string   `json:"label,omitempty"`
	Group    string   `json:"group,omitempty"`
	Domains  []string `json:"domains,omitempty"`
	Keywords []string `json:"keywords,omitempty"`
	Input    string   `json:"input,omitempty"`  // declared kind, empty is unknown
	Output   string   `json:"output,omitempty"` // declared kind, empty is unknown
}

// Examples are parameter objects that the op must accept and must refuse. They
// are proved when an op file is loaded.
type Examples struct {
	Accept []json.RawMessage
	Reject []json.RawMessage
}

func newID(prefix string) string { return prefix + strings.ToLower(ulid.Make().String()) }

// Stamp writes a moment as every answer does: RFC 3339, UTC, milliseconds.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
