package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/ops"
)

// canaryName is the name that a canary runs under.
const canaryName = "inband-canary"

// runningProgram is the program that runs, which another user may execute wherever it
// stands, also below folders that are closed to that user.
const runningProgram = "/proc/self/exe"

// canaryTime bounds one canary.
const canaryTime = 10 * time.Second

// aim is what a canary tries to do what is forbidden to.
type aim struct {
	PID     int             `json:"pid"`  // the gateway
	File    string          `json:"file"` // outside its policy
	Network sandbox.Network `json:"network"`
	// Metadata says that modes and the like may be changed.
	Metadata bool            `json:"metadata"`
	Limits   []sandbox.Limit `json:"limits"`
	// Folder says that it may write to its private folder.
	Folder bool          `json:"folder"`
	RunAs  sandbox.RunAs `json:"run_as"`
	// Namespaces are those that it has for itself, and which ones the gateway is in.
	Namespaces map[string]string `json:"namespaces"`
}

// kept is what a canary prints to which everything was refused that should be.
const kept = "kept"

// Canary must be the first thing that main calls. In a process that [Prove] started it
// tries what its sandbox forbids, says what it could do, and exits; else it returns.
func Canary() {
	if len(os.Args) != 2 || os.Args[0] != canaryName {
		return
	}
	var a aim
	if err := json.Unmarshal([]byte(os.Args[1]), &a); err != nil {
		fmt.Println("it does not know what to try:", err)
		os.Exit(1)
	}
	if could := a.try(); len(could) > 0 {
		fmt.Println("it could " + strings.Join(could, ", "))
		os.Exit(1)
	}
	fmt.Println(kept)
	os.Exit(0)
}

// Prove starts this program as a canary in the sandbox of each kind that the ops of
// bound have, and disables the ops whose sandbox does not hold, or cannot be proved to:
// their calls are SANDBOX_UNAVAILABLE. Kinds differ in their layers; the paths of an op
// are rules within one. Before that it disables those with a path that another one of
// bound could bend. It returns what did not hold. It must be done before any of the ops
// is executed, and main must call [Canary].
func Prove(ctx context.Context, bound []ops.Bound) error {
	errs := disentangle(bound)
	var kinds [][]*executor
	index := map[string]int{}
	for _, b := range bound {
		e, ok := b.Executor.(*executor)
		if !ok || e.broken != nil || e.op.Command.Unconfined {
			continue
		}
		layers, err := json.Marshal(e.box.Layers())
		if err != nil {
			return err
		}
		i, known := index[string(layers)]
		if !known {
			i = len(kinds)
			index[string(layers)], kinds = i, append(kinds, nil)
		}
		kinds[i] = append(kinds[i], e)
	}
	for i, why := range proveEach(ctx, bound, kinds) {
		for _, e := range kinds[i] {
			if e.broken = why; why != nil {
				errs = append(errs, fmt.Errorf("op %s is disabled: %w", e.op.Name, why))
			}
		}
	}
	return errors.Join(errs...)
}

// proveEach sends a canary for each of kinds, several at once since a gateway waits for
// them to start, and returns what is wrong with each.
func proveEach(ctx context.Context, bound []ops.Bound, kinds [][]*executor) []error {
	wrong := make([]error, len(kinds))
	self, file, remove, err := bait(bound)
	defer remove()
	if err != nil {
		for i := range wrong {
			wrong[i] = fmt.Errorf("its sandbox cannot be proved: %w", err)
		}
		return wrong
	}
	var canaries sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for i, k := range kinds {
		slots <- struct{}{}
		canaries.Go(func() {
			defer func() { <-slots }()
			l := k[0].box.Layers()
			err := k[0].prove(ctx, self, aim{PID: os.Getpid(), File: file, Network: l.Network, Metadata: l.Metadata, RunAs: l.RunAs})
			if err != nil {
				wrong[i] = fmt.Errorf("its sandbox does not hold: %w", err)
			}
		})
	}
	canaries.Wait()
	return wrong
}

// bait finds what canaries are, which is this program, and makes a file that they must
// not get to.
func bait(bound []ops.Bound) (self, file string, remove func(), err error) {
	remove = func() {}
	if self, err = os.Executable(); err != nil {
		return "", "", remove, fmt.Errorf("find this program for the canary: %w", err)
	}
	parent := ""
	for _, b := range bound {
		if e, ok := b.Executor.(*executor); ok && e.scratch != "" {
			parent = e.scratch
		}
	}
	dir, err := os.MkdirTemp(parent, "inband-canary-")
	if err != nil {
		return "", "", remove, fmt.Errorf("a folder for the canary: %w", err)
	}
	remove = func() { os.RemoveAll(dir) }
	file = filepath.Join(dir, "file")
	// Open to everybody, so that nothing but the sandbox keeps whichever user from it.
	if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Chmod(file, 0o666), os.Chmod(dir, 0o777)); err != nil {
		return "", "", remove, fmt.Errorf("a file for the canary: %w", err)
	}
	return self, file, remove, nil
}

// The least that a canary needs to say what it found. That lower limits are set as these
// are is not in doubt: it is one system call with another number.
const (
	canaryFiles     = 32
	canaryMemory    = 4 << 30 // of addresses, which a Go program reserves freely
	canaryProcesses = 4096    // what else runs as the same user counts
)

// ProvePolicy starts this program as a canary in a sandbox like that of p, without its
// paths, and returns what does not hold. Main must call [Canary] and [Helper].
func ProvePolicy(ctx context.Context, p sandbox.Policy) error {
	box, err := newSandbox(p)
	if err != nil {
		return err
	}
	self, file, remove, err := bait(nil)
	defer remove()
	if err != nil {
		return fmt.Errorf("the sandbox cannot be proved: %w", err)
	}
	l := box.Layers()
	e := &executor{confine: newSandbox, user: p.User, scratch: shared}
	return e.send(ctx, p, self, aim{PID: os.Getpid(), File: file, Network: l.Network, Metadata: l.Metadata, RunAs: l.RunAs})
}

// prove runs one canary in a sandbox like e's.
func (e *executor) prove(ctx context.Context, self string, a aim) error {
	return e.send(ctx, policy(&e.op, e.user), self, a)
}

// send runs one canary in a sandbox like that of p that holds no paths but the program's.
func (e *executor) send(ctx context.Context, p sandbox.Policy, self string, a aim) error {
	p.Program, p.Read, p.Write, p.Exec = self, nil, nil, nil
	p.Limits.NoFile = atLeast(p.Limits.NoFile, canaryFiles)
	p.Limits.Memory = atLeast(p.Limits.Memory, canaryMemory)
	p.Limits.Processes = atLeast(p.Limits.Processes, canaryProcesses)
	box, err := e.confine(p)
	if err != nil {
		return err
	}
	if a.Namespaces, err = outside(box.Layers().Namespaces); err != nil {
		return err
	}
	a.Limits, a.Folder = box.Layers().Limits, p.Limits.FSize == nil || *p.Limits.FSize > 0
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	spec := proc.Spec{Argv: []string{canaryName, string(raw)}, Path: runningProgram, Env: standardEnvironment,
		Timeout: canaryTime, OutputMax: 4 << 10, Owner: owned(e.user), Scratch: e.scratch}
	if err := confine(&spec, box, nil); err != nil {
		return err
	}
	res, err := proc.Run(ctx, spec)
	if err != nil {
		return err
	}
	said := strings.TrimSpace(string(res.Stdout.Head))
	if res.Exit != 0 || said != kept {
		return fmt.Errorf("the canary ended with exit code %d, signal %d: %s%s", res.Exit, res.Signal, said, lastLine(res.Stderr))
	}
	return nil
}

// atLeast raises a limit to least; 0, which is none or the usual one, stays.
func atLeast(limit, least uint64) uint64 {
	if limit == 0 {
		return 0
	}
	return max(limit, least)
}
