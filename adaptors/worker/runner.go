package worker

import (
	"context"
	"path/filepath"
	"time"

	"inband/ops"
	"inband/service/plane/wire"
)

// Runner runs the command of a task. There is one for a worker, used by as many runs at
// once as it has slots.
type Runner interface {
	// Run runs t's command and returns when nothing of it is alive, or when that cannot
	// be reached. When ctx ends it ends the whole tree first, however it was forked, and
	// looks at least twice that nothing is left. An error means for certain that nothing
	// ran. Whatever t.Folder holds afterwards is read by the worker.
	Run(ctx context.Context, t Task, r Report) (Outcome, error)
	// Alive reports whether p, which a Run has reported, lives: this very process, and
	// not another one that has got its pid.
	Alive(p wire.Process) bool
	// End ends what is left of a run of an earlier life of the worker, or what Run could
	// not end: p and everything that descends from it or works in folder. It looks at
	// least twice and returns what is still alive; nil means that nothing is. An error
	// means that it cannot tell.
	End(ctx context.Context, folder string, p wire.Process) (live []wire.Process, err error)
}

// The folders of a run, below Task.Folder. The worker makes them, with mode 0700; a
// Runner that runs the command as another user gives it what that user needs.
const (
	TaskFolder    = "task"    // what the command is told; it may read it and not write it
	WorkFolder    = "work"    // the scratch worktree, the command's working folder
	OutFolder     = "out"     // what is to be returned, by name
	ControlFolder = "control" // what the command tells the worker: question.txt, mutations.jsonl, progress
)

// SourceArchive is the tar archive of the source, below Task.Folder, if the grant's
// source is one. The Runner unpacks it into WorkFolder before the command begins and
// refuses it, without running anything, if the tree's digest is not Source.Worktree.
const SourceArchive = "source.tar"

// Files of the folders above.
const (
	InstructionFile  = "instruction.json"   // in task: wire.Instruction
	GrantFile        = "grant.json"         // in task: the grant without what is secret
	AnswerFile       = "answer.txt"         // in task: what a person has answered
	EarlierFolder    = "earlier"            // in task: files checkpointed by earlier attempts
	AcknowledgedFile = "acknowledged.jsonl" // in task: answers to mutations.jsonl
	ReturnedFolder   = "returned"           // in task, of a verification: the files that are to be judged
	QuestionFile     = "question.txt"       // in control
	MutationsFile    = "mutations.jsonl"    // in control
	ProgressFile     = "progress"           // in control: a decimal number that never falls
)

// ExitAsk is the exit code of a command that waits for a person: it has written its
// question to control/question.txt (EX_TEMPFAIL of sysexits).
const ExitAsk = 75

// Task is one run, or one verification, as a Runner gets it.
type Task struct {
	// Folder is the run's own folder, an absolute path. It is the worker's, with the
	// folders above; the command may read TaskFolder, and read and write WorkFolder,
	// OutFolder and ControlFolder. Nothing else of the machine is this run's to write.
	Folder string
	// Argv is the program and its words. A program without a slash is looked for by the
	// Runner; a relative one is below WorkFolder.
	Argv []string
	// Overlay, if it is not empty, is a folder below Folder whose files are copied over
	// WorkFolder once the source has been unpacked: what a verifier judges.
	Overlay string
	// Env is the whole environment, as NAME=value, but for HOME, TMPDIR and
	// CREDENTIALS_DIRECTORY, which are the Runner's. Nothing of the worker's own is in it.
	Env []string
	// Secrets are the credentials of the grant, resolved. The Runner gives them as files
	// in memory, named as their references are behind the colon, in a folder that
	// CREDENTIALS_DIRECTORY names; and takes them out of Outcome.Tail. It keeps none.
	Secrets []Secret
	// Grant is the lease, as it was signed.
	Grant wire.Grant
	// Deadline is when the command is ended if it has not ended by itself.
	Deadline time.Time
}

// Secret is the value of a credential.
type Secret struct {
	Ref   ops.CredentialRef
	Value []byte
}

// String names the secret and does not tell it.
func (s Secret) String() string { return "[secret " + string(s.Ref) + "]" }

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// Path is where a file of the task's folder stands.
func (t Task) Path(elem ...string) string {
	return filepath.Join(append([]string{t.Folder}, elem...)...)
}

// Report is what a Runner tells of a command while it runs. Its methods may be called
// from any goroutine until Run returns; they do not wait for the network.
type Report interface {
	// Started says which process the command is, before its first instruction. It is
	// durable when Started returns; an error means that the command must not begin.
	Started(p wire.Process) error
	// Progress says how far the command is. What n counts is the Runner's: bytes of
	// output or ticks of the processor. A smaller one than before is ignored.
	Progress(n int64)
}

// Outcome is what is known of a command that was started.
type Outcome struct {
	Exit   int    // -1 when a signal ended it or the end is not known
	Signal string // what ended it, "" if it exited
	// Stopped is why the Runner ended it: "", "deadline" or "cancelled". A command that
	// ended by itself just before it was to be stopped has "".
	Stopped string
	// Unknown says why it is not known how the command ended; "" if it is.
	Unknown string
	// Tail is the end of what it wrote, at most MaxTail bytes, untrusted.
	Tail string
	// Survivors are the processes of the tree that could not be ended.
	Survivors []wire.Process
	// Checks is how often the Runner has looked at the end and found nothing alive.
	Checks int
	// Worktree is the digest of WorkFolder before the command began, "" if there was no
	// source.
	Worktree string
}

// MaxTail bounds what is kept of a command's output for the result's summary, in bytes.
const MaxTail = 4 << 10
