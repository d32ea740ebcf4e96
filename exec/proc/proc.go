package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Spec says what to run and within which bounds.
type Spec struct {
	// Argv is the program, an absolute and clean path, and its words. They are
	// handed over as they are.
	Argv []string
	// Path is the program, if that is not Argv[0]: then Argv[0] is any word.
	Path string
	// Env is the whole environment, as NAME=value. Empty is an empty one.
	Env []string
	// Stdin is what the process reads; nil is /dev/null, unless StdinFile is set.
	Stdin []byte
	// StdinFile, if set, is the process's standard input itself. Run does not close it.
	StdinFile *os.File
	// Files are the process's descriptors from 3 on. Run does not close them.
	Files []*os.File
	// Folder, if set, is the working folder, which is there and stays: an absolute path,
	// clean and without links. Then no private folder is made, and Scratch, Owner's part
	// in it, Keep and Ahead are not used. Confine gets it in the private folder's place.
	Folder string
	// Scratch is the folder in which the private folder is made. Empty is $TMPDIR if
	// that is set; else /dev/shm if it is in memory and has 1 GiB free, for on a disk
	// making and removing a folder costs a tenth of a short run; else /tmp.
	Scratch string
	// Owner is to whom the private folder and the process's ends of its pipes are
	// given, for a process that Confine makes another user's; nil is the gateway. Every
	// folder above Scratch, and Scratch, must let that user pass.
	Owner *Owner
	// Timeout is the time from the start to SIGTERM. It must be positive.
	Timeout time.Duration
	// Grace is the time from SIGTERM to SIGKILL, DefaultGrace if 0.
	Grace time.Duration
	// OutputMax is how many bytes of stdout and stderr together are kept. It must
	// be positive; a run holds at most twice as much in memory.
	OutputMax int64
	// Confine, if set, confines the calling thread, which starts the process and then
	// ends. It is called last, with the private folder; the process inherits what it
	// does. Its error is a StartError.
	Confine func(folder string) error
	// Ahead, if set, has launches made ahead of runs that follow each other.
	Ahead *Ahead
	// Aside, if set, is called on the thread that Confine confined once that has started
	// the process: before Limit, or without one while the process runs already. Its error
	// is a StartError, and the process is killed.
	Aside func() error
	// Limit, if set, is called with the pid of the process, stopped before its first
	// instruction, on a thread that Confine did not confine. Its error is a StartError:
	// the process is killed as it stands.
	Limit func(pid int) error
	// Begin, if set, is called with the process, stopped before its first instruction,
	// after Limit: whoever must know of it before it does anything is told here. With
	// Inside it is the init, with which the kernel ends all that is inside. It is called
	// on a thread that is not confined. Its error is a StartError: nothing has run.
	Begin func(p Process) error
	// Output, if set, gets all that the process writes, as it comes, beside what is kept
	// of it. It must not keep the piece. It is called on the run's thread, which Confine
	// has confined, so it opens nothing; and the process is not watched meanwhile, so it
	// does not wait long.
	Output func(stderr bool, piece []byte)
	// Inside, if set, has the process run in namespaces of its own. Then Confine, Aside
	// and Limit are nil: what they would do is done inside, by the Hooks of Init.
	Inside *Inside
	// Keep, if set, is called once, before the private folder is removed, with that
	// folder and what is known of the run; it is not called when nothing ran. The tree
	// is gone by then unless Result.Unknown or Survivors says otherwise. What the
	// process has made there is anybody's: links, pipes, a mode that says no.
	Keep func(folder *os.Root, r Result)

	try bool // there is no process in Inside
}

// Owner is a user and a group.
type Owner struct{ UID, GID uint32 }

// DefaultGrace is the time a process gets between SIGTERM and SIGKILL.
const DefaultGrace = 500 * time.Millisecond

// giveUp is how long Run waits for a tree that has been sent SIGKILL. Only a
// process stuck in the kernel takes longer.
const giveUp = 5 * time.Second

// Stop says why Run ended a process that had not ended by itself.
type Stop string

// The reasons to stop a process.
const (
	NotStopped Stop = ""          // it ended by itself
	Deadline   Stop = "deadline"  // Spec.Timeout passed
	Cancelled  Stop = "cancelled" // the context of Run ended
)

// Result is what is known of a run that was started.
type Result struct {
	Started, Ended time.Time
	// Exit is the exit code, -1 when a signal ended the process or the end is
	// not known.
	Exit int
	// Signal is what ended the process, 0 if it exited.
	Signal syscall.Signal
	// Stopped says whether, and why, the process was told to end.
	Stopped Stop
	// Unknown is set when the process was started and how it ended could not be
	// learnt; Why says what stood in the way.
	Unknown bool
	Why     string

	Stdout, Stderr Output
	// LeftBehind names the processes, at most 8, that were alive when the process
	// ended by itself. They were killed.
	LeftBehind []string
	// Survivors counts the processes of the tree that SIGKILL did not end in time, or
	// is 1 if it could not be learnt whether there are any.
	Survivors int
	// Alive names them, as far as they are known, at most 64.
	Alive []Process
	// Fenced reports that the tree was held together by the fence, not the sweep.
	Fenced bool
	// Folder is the error of removing the private folder, nil if it is gone.
	Folder error
}

// Truncated reports whether output was dropped.
func (r *Result) Truncated() bool { return r.Stdout.Dropped+r.Stderr.Dropped > 0 }

// StartError says that the process was not started, and why: nothing ran.
type StartError struct {
	Path string
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("start %q: %v", e.Path, e.Err) }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Run starts spec.Argv, waits for its end or for that of ctx or of the timeout,
// ends whatever is left of its tree, and returns what is known.
//
// The only error is a *StartError: nothing ran. A context that has already ended
// is one too.
func Run(ctx context.Context, spec Spec) (Result, error) {
	if spec.Path == "" && len(spec.Argv) > 0 {
		spec.Path = spec.Argv[0]
	}
	path := spec.Path
	if err := spec.check(); err != nil {
		return Result{}, &StartError{path, err}
	}
	if err := context.Cause(ctx); err != nil {
		return Result{}, &StartError{path, err}
	}
	if spec.Grace == 0 {
		spec.Grace = DefaultGrace
	}
	res, err := run(ctx, spec)
	if err != nil {
		return Result{}, &StartError{path, err}
	}
	return res, nil
}

func (s *Spec) check() error {
	if len(s.Argv) == 0 {
		return errors.New("argv is empty")
	}
	if !filepath.IsAbs(s.Path) || filepath.Clean(s.Path) != s.Path {
		return errors.New("the program is not a clean absolute path")
	}
	for _, w := range s.Argv {
		if strings.ContainsRune(w, 0) {
			return errors.New("a word of argv holds a NUL")
		}
	}
	for _, v := range s.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.ContainsRune(v, 0) {
			return errors.New("a variable of the environment is not NAME=value, or holds a NUL")
		}
	}
	if s.Inside != nil && (s.Confine != nil || s.Aside != nil || s.Limit != nil) {
		return errors.New("what is inside of namespaces is confined from there")
	}
	if s.Folder != "" {
		if !filepath.IsAbs(s.Folder) || filepath.Clean(s.Folder) != s.Folder {
			return errors.New("the working folder is not a clean absolute path")
		}
		if s.Keep != nil || s.Ahead != nil {
			return errors.New("what is not private is neither kept nor made ahead")
		}
	}
	if s.Timeout <= 0 {
		return errors.New("no time limit")
	}
	if s.Grace < 0 {
		return errors.New("the grace is negative")
	}
	if s.OutputMax <= 0 {
		return errors.New("no bound on the output")
	}
	return nil
}
