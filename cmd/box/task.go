package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/adaptors/worker"
	"inband/exec/command"
	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/exec/task"
	"inband/service/plane/wire"
)

// taskRunnerConfig says what a worker or verifier lets its commands have.
type taskRunnerConfig struct {
	// Scratch is the folder that the folders of the runs are in, the worker's own.
	Scratch string
	Log     *slog.Logger
	// Enclose puts this process into a cgroup, once: what an earlier one of the same
	// Scratch has left in it is ended.
	Enclose bool

	Unconfined        bool
	Repository        string
	Read, Write, Exec []string
	Network           string
	Metadata          bool
	RunAs             string
	Memory, Disk      sizeFlag
	LogMax            sizeFlag
	CPU               time.Duration
}

// flags adds the flags of all but Scratch, Log and Enclose.
func (c *taskRunnerConfig) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.Disk, c.LogMax = task.DefaultDisk, task.DefaultLog
	f.StringVar(&c.Repository, "repository", "", "a git repository of this machine from which revisions are taken")
	f.StringArrayVar(&c.Read, "read", nil, "a file or folder that the command may read (may be repeated)")
	f.StringArrayVar(&c.Write, "write", nil, "a file or folder that the command may write to, beside those of its run (may be repeated)")
	f.StringArrayVar(&c.Exec, "exec", nil, "a file or folder that the command may execute, beside the programs of the system (may be repeated)")
	f.StringVar(&c.Network, "network", string(sandbox.NoNetwork), "the network that it gets: none, unix or any")
	f.BoolVar(&c.Metadata, "fs-metadata", false, "let it change modes, owners and times of files, which no path bounds: use it with --run-as")
	f.StringVar(&c.RunAs, "run-as", "", "the user that it runs as (default: this one, or nobody if this one is root)")
	f.Var(&c.Memory, "memory", "how much memory each of its processes may have, such as 4GiB (default: no limit)")
	f.Lookup("memory").DefValue = ""
	f.Var(&c.Disk, "disk", "how much the folder of a run may hold")
	f.Var(&c.LogMax, "log-max", "how much of its output is kept, the beginning and the end")
	f.DurationVar(&c.CPU, "cpu", 0, "how much processor time each of its processes may have (default: no limit)")
	f.BoolVar(&c.Unconfined, "unconfined", false, "run it without a sandbox: it may do what this user may")
}

// taskRunner runs the commands of a worker by package task.
type taskRunner struct {
	runner    *task.Runner
	enclosure *proc.Enclosure
	log       *slog.Logger
}

var (
	_ worker.Runner = (*taskRunner)(nil)
	_ io.Closer     = (*taskRunner)(nil)
)

// newTaskRunner makes what runs a worker's commands, and says in the log what of the
// sandbox there is and what cannot be had. Close it when nothing runs any more.
func newTaskRunner(ctx context.Context, cfg taskRunnerConfig) (r *taskRunner, err error) {
	switch n := sandbox.Network(cfg.Network); n {
	case "", sandbox.NoNetwork, sandbox.UnixNetwork, sandbox.AnyNetwork:
	default:
		return nil, usagef("--network %s: want none, unix or any", n)
	}
	scratch, err := filepath.EvalSymlinks(cfg.Scratch)
	if err == nil {
		scratch, err = filepath.Abs(scratch)
	}
	if err != nil {
		return nil, fmt.Errorf("the folder of the runs: %w", err)
	}
	c := task.Config{Network: sandbox.Network(cfg.Network), Metadata: cfg.Metadata, Unconfined: cfg.Unconfined, CPU: cfg.CPU,
		Memory: int64(cfg.Memory), Disk: int64(cfg.Disk), Log: int64(cfg.LogMax), Slog: cfg.Log}
	for _, list := range []struct {
		to   *[]string
		from []string
	}{{&c.Read, cfg.Read}, {&c.Write, cfg.Write}, {&c.Exec, cfg.Exec}} {
		for _, path := range list.from {
			if path, err = filepath.Abs(path); err != nil {
				return nil, err
			}
			*list.to = append(*list.to, path)
		}
	}
	if cfg.Repository != "" {
		if c.Repository, err = filepath.Abs(cfg.Repository); err != nil {
			return nil, err
		}
	}
	if c.User, err = cfg.user(scratch); err != nil {
		return nil, err
	}
	r = &taskRunner{log: cfg.Log}
	if cfg.Enclose {
		sum := sha256.Sum256([]byte(scratch))
		if r.enclosure, err = proc.Enclose(hex.EncodeToString(sum[:8])); err != nil {
			return nil, err
		}
		if e := r.enclosure; len(e.Ended) > 0 || e.Survivors > 0 {
			cfg.Log.Warn("ended what an earlier process had left running", "processes", e.Ended, "survivors", e.Survivors)
		}
		c.Enclosure = r.enclosure
	}
	if r.runner, err = task.New(ctx, c); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	for _, m := range r.runner.Missing() {
		cfg.Log.Warn("not everything that can confine commands is there", "missing", m)
	}
	cfg.Log.Info("commands are confined", "layers", r.runner.Layers())
	return r, nil
}

// user is who commands run as, nil for this process's own user, who may get to scratch.
func (c *taskRunnerConfig) user(scratch string) (*sandbox.User, error) {
	name := c.RunAs
	if name == "" {
		if os.Geteuid() != 0 || c.Unconfined {
			return nil, nil
		}
		name = "nobody"
	}
	u, err := command.LookupUser(name)
	if err != nil {
		return nil, err
	}
	if int(u.UID) == os.Geteuid() && int(u.GID) == os.Getegid() {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, usagef("--run-as %s: only root may run commands as another user", name)
	}
	if passes, err := command.Passes(u, scratch); err != nil {
		return nil, fmt.Errorf("--run-as %s: %w", name, err)
	} else if !passes {
		return nil, usagef("the user %s, whom commands run as, cannot get to %s: have the runs in a folder that everybody may pass (--scratch), "+
			"or name another user; with --run-as root they run as root, without its capabilities", name, scratch)
	}
	return u, nil
}

// Close leaves the cgroup.
func (r *taskRunner) Close() error {
	if r.enclosure == nil {
		return nil
	}
	e := r.enclosure
	r.enclosure = nil
	return e.Close()
}

// Run implements worker.Runner.
func (r *taskRunner) Run(ctx context.Context, t worker.Task, report worker.Report) (worker.Outcome, error) {
	spec, err := newTaskSpec(t)
	if err != nil {
		return worker.Outcome{}, err
	}
	out, err := r.runner.Run(ctx, spec, task.Report{
		Started:  func(p proc.Process) error { return report.Started(wire.Process(p)) },
		Progress: report.Progress,
	})
	if err != nil {
		return worker.Outcome{}, err
	}
	if out.Log != nil {
		r.log.Warn("not all output of a command could be kept", "run", t.Grant.Run, "err", out.Log)
	}
	if len(out.LeftBehind) > 0 {
		r.log.Info("ended what a command had left running", "run", t.Grant.Run, "processes", out.LeftBehind)
	}
	o := worker.Outcome{Exit: out.Exit, Signal: out.Signal, Stopped: string(out.Stopped), Unknown: out.Unknown, Tail: out.Tail, Checks: out.Checks, Worktree: out.Worktree}
	if out.Stopped == task.Full {
		o.Tail = within("the command was ended, for the folder of its run held too much\n", o.Tail)
	}
	for _, p := range out.Survivors {
		o.Survivors = append(o.Survivors, wire.Process(p))
	}
	if out.Checks == 0 && o.Unknown == "" {
		o.Unknown = "whether anything of it is still alive cannot be told"
	}
	return o, nil
}

// within puts a note before the end of a text, within the bound of a tail.
func within(note, tail string) string {
	if drop := len(note) + len(tail) - worker.MaxTail; drop > 0 {
		tail = strings.ToValidUTF8(tail[drop:], "")
	}
	return note + tail
}

// newTaskSpec is the command of a task.
func newTaskSpec(t worker.Task) (task.Spec, error) {
	folder, err := filepath.EvalSymlinks(t.Folder)
	if err != nil {
		return task.Spec{}, err
	}
	in := func(name ...string) string { return filepath.Join(append([]string{folder}, name...)...) }
	spec := task.Spec{Folder: folder, Work: in(worker.WorkFolder), Read: []string{in(worker.TaskFolder)}, Write: []string{in(worker.OutFolder), in(worker.ControlFolder)},
		Argv: t.Argv, Env: t.Env, Digest: t.Grant.Source.Worktree, Deadline: t.Deadline, Progress: in(worker.ControlFolder, worker.ProgressFile)}
	for _, s := range t.Secrets {
		spec.Secrets = append(spec.Secrets, task.Secret{Ref: s.Ref, Value: s.Value})
	}
	if t.Overlay != "" {
		spec.Overlay = in(filepath.FromSlash(t.Overlay))
		if _, err := os.Lstat(spec.Overlay); errors.Is(err, fs.ErrNotExist) {
			spec.Overlay = "" // nothing was returned
		}
	}
	switch revision := t.Grant.Source.Revision; {
	case revision == "":
	case strings.HasPrefix(revision, "sha256:"):
		spec.Archive = func() (*os.File, error) { return os.Open(in(worker.SourceArchive)) }
	default:
		spec.Revision = revision
	}
	if err := os.WriteFile(in(worker.TaskFolder, instructionText), instruction(t.Grant), 0o600); err != nil {
		return task.Spec{}, err
	}
	return spec, nil
}

// instructionText is the instruction as people and agents read it, beside instruction.json.
const instructionText = "instruction.md"

// lineEnds makes every end of a line one that Split knows.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// instruction writes the parts of an instruction under headings, each with whose words it
// is. Every line of a part is quoted, so that no part can pass for another.
func instruction(g wire.Grant) []byte {
	var b strings.Builder
	in := g.Instruction
	for _, part := range []struct{ heading, text string }{
		{"The task", in.Task},
		{"In the words of the person who asked", in.Original},
		{"The goal, as the agent that ordered it understood it", in.Inferred},
		{"What that agent added", in.Context},
		{"How the result will be verified", in.Verification},
		{"What a person answered", g.Answer},
	} {
		if strings.TrimSpace(part.text) == "" {
			continue
		}
		fmt.Fprintf(&b, "# %s\n\n", part.heading)
		for line := range strings.SplitSeq(strings.TrimRight(lineEnds.Replace(part.text), "\n"), "\n") {
			b.WriteString(strings.TrimRight("> "+line, " ") + "\n")
		}
		b.WriteString("\n")
	}
	if len(g.Outputs) > 0 {
		fmt.Fprintf(&b, "# Files to be returned, in the folder that INBAND_OUT names\n\n")
		for _, name := range g.Outputs {
			fmt.Fprintf(&b, "- %s\n", name)
		}
	}
	return []byte(b.String())
}

// Alive implements worker.Runner.
func (r *taskRunner) Alive(p wire.Process) bool { return proc.Process(p).Lives() }

// End implements worker.Runner. A run whose folder is gone cannot be judged but by its
// process, which is no proof unless there was none.
func (r *taskRunner) End(ctx context.Context, folder string, p wire.Process) ([]wire.Process, error) {
	real, err := filepath.EvalSymlinks(folder)
	if errors.Is(err, fs.ErrNotExist) && p.PID == 0 {
		return nil, nil // it was not so far that anything could have begun
	} else if err != nil {
		return nil, fmt.Errorf("what is left of a run: %w", err)
	}
	g, err := r.runner.Gone(ctx, real)
	if err != nil {
		return nil, err
	}
	r.log.Info("looked for what a run has left", "folder", filepath.Base(folder), "ended", g.Ended, "alive", g.Alive, "proof", g.Proof)
	var live []wire.Process
	for _, one := range g.Alive {
		live = append(live, wire.Process(one))
	}
	return live, nil
}
