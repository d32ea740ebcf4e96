package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"inband/exec/command"
	"inband/exec/proc"
	"inband/exec/sandbox"
)

// Config is what a worker lets its commands have. The zero value lets them have nothing
// beyond their own folders and the programs of the system.
type Config struct {
	// Repository is a git repository from which revisions are exported, "" for none.
	Repository string
	// Read, Write and Exec are further paths, absolute and clean.
	Read, Write, Exec []string
	// Network is sandbox.NoNetwork if empty.
	Network sandbox.Network
	// Metadata lets commands change the modes, owners and times of files, of which no path
	// bounds it (sandbox.Policy): git and installers want it. Give the command a user of
	// its own with it.
	Metadata bool
	// User is who commands run as, nil for the worker's own user; another needs a worker
	// that is root.
	User *sandbox.User
	// Unconfined runs commands without Landlock and filter: they may do what the worker's
	// user may. Then there are no namespaces either.
	Unconfined bool
	// CPU and Memory limit each process of a command (sandbox.Limits); 0 is unlimited.
	CPU    time.Duration
	Memory int64
	// Disk bounds what a run's folder holds, and one file, in bytes; DefaultDisk if 0.
	Disk int64
	// Log bounds the log file, in bytes; DefaultLog if 0.
	Log int64
	// Grace is the time from SIGTERM to SIGKILL, DefaultGrace if 0.
	Grace time.Duration
	// Source are the bounds of a source, DefaultBounds if zero.
	Source Bounds
	// Every is how often progress is looked at, DefaultEvery if 0.
	Every time.Duration
	// Enclosure is the cgroup that the worker is in with all that it starts, nil for none.
	Enclosure *proc.Enclosure
	// Slog gets what goes wrong beside a run.
	Slog *slog.Logger
}

// The defaults of a Config.
const (
	DefaultDisk  = 16 << 30
	DefaultLog   = 64 << 20
	DefaultGrace = 5 * time.Second
	DefaultEvery = time.Second
)

// Bounds that a Config does not change.
const (
	minLog       = 4 << 10
	maxProcesses = 8192 // of a user that is not root, with all else that he runs
	maxFiles     = 4096 // open, of a process
	kept         = 2    // bytes of output that package proc keeps; the log has it all
	diskEvery    = 5    // looks at the disk are as many times rarer than those at progress
	diskShare    = 20   // and one is as many times longer ago as it took
)

// DefaultPath is the PATH by which the worker's own programs are found.
const DefaultPath = "/usr/local/bin:/usr/bin:/bin"

// System is what every command may execute and read beside its own: the programs of the
// system and what they commonly look at. None of it is a secret of anybody's.
var System = struct{ Exec, Read []string }{
	Exec: []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"},
	Read: []string{"/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/etc/alternatives", "/etc/ssl", "/etc/pki", "/etc/ca-certificates",
		"/etc/ca-certificates.conf", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/os-release", "/etc/mime.types",
		"/etc/protocols", "/etc/services"},
}

// named is what programs read to find others by name.
var named = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/run/systemd/resolve"}

// Runner runs commands. It may be used by several goroutines at once.
type Runner struct {
	config     Config
	namespaces bool
	missing    []string
	layers     sandbox.Layers

	mu   sync.Mutex
	runs map[string]bool // the folders of the runs under way
}

// New returns a Runner. The error says what is wrong with config, which layers of the
// sandbox cannot be had here (*sandbox.MissingError), or what a process could do that it
// keeps: one is started to try. Main must call command.Canary and command.Helper.
func New(ctx context.Context, config Config) (*Runner, error) {
	for _, d := range []struct {
		to *int64
		or int64
	}{{&config.Disk, DefaultDisk}, {&config.Log, DefaultLog}} {
		if *d.to = cmp.Or(*d.to, d.or); *d.to < minLog {
			return nil, fmt.Errorf("a bound of %d bytes is too small: want at least %d", *d.to, minLog)
		}
	}
	config.Grace, config.Every = cmp.Or(config.Grace, DefaultGrace), cmp.Or(config.Every, DefaultEvery)
	config.Source = cmp.Or(config.Source, DefaultBounds)
	if config.Grace < 0 || config.Every < 0 || config.CPU < 0 || config.Memory < 0 || config.Source.Bytes < 0 || config.Source.Entries < 0 || config.Source.Depth < 0 {
		return nil, errors.New("a bound is negative")
	}
	config.Slog = cmp.Or(config.Slog, slog.New(slog.DiscardHandler))
	for _, paths := range [][]string{config.Read, config.Write, config.Exec} {
		for _, path := range paths {
			if _, err := os.Stat(path); err != nil {
				return nil, fmt.Errorf("what commands may have: %w", err) // to the sandbox it would give nothing
			}
		}
	}
	if config.Repository != "" {
		if !filepath.IsAbs(config.Repository) {
			return nil, fmt.Errorf("the repository %q is no absolute path", config.Repository)
		}
		real, err := filepath.EvalSymlinks(config.Repository)
		if err != nil {
			return nil, fmt.Errorf("the repository: %w", err)
		}
		config.Repository = real
	}
	r := &Runner{config: config, runs: map[string]bool{}}
	if config.Unconfined {
		if config.User != nil {
			return nil, errors.New("without a sandbox a command runs as the worker's own user: name none")
		}
		r.missing = []string{"the sandbox is off: a command may do what this user may"}
		return r, nil
	}
	if err := r.prove(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// prove finds out which layers there are, and whether they hold, on a sandbox like those of
// the commands.
func (r *Runner) prove(ctx context.Context) error {
	_, err := proc.Namespaces(r.config.Network == sandbox.NoNetwork || r.config.Network == "")
	if r.namespaces = err == nil; err != nil {
		r.missing = append(r.missing, fmt.Sprintf("namespaces: %v", err))
	}
	if e := r.config.Enclosure; e == nil || e.Cgroup == "" {
		why := "it is switched off"
		if e != nil {
			why = e.Why.Error()
		}
		r.missing = append(r.missing, "cgroup: "+why)
	}
	if r.config.User == nil && os.Geteuid() == 0 {
		r.missing = append(r.missing, "run_as: commands run as root, without its capabilities")
	}
	policy := r.policy(&Spec{}, "/bin/sh")
	var spec proc.Spec
	if r.layers, err = command.Confine(&spec, policy); err != nil {
		return err
	}
	if err := command.ProvePolicy(ctx, policy); err != nil {
		return fmt.Errorf("the sandbox does not hold: %w", err)
	}
	return nil
}

// Layers is what confines commands; it is the zero value without a sandbox.
func (r *Runner) Layers() sandbox.Layers { return r.layers }

// Missing says which layers that are of use cannot be had here, and why.
func (r *Runner) Missing() []string { return slices.Clone(r.missing) }

// owner is whose the folders of a run are, nil for the worker.
func (r *Runner) owner() *proc.Owner {
	if u := r.config.User; u != nil {
		return &proc.Owner{UID: u.UID, GID: u.GID}
	}
	return nil
}

// Spec says what to run.
type Spec struct {
	// Folder is the run's: an absolute path without links, the worker's own.
	Folder string
	// Work is the working folder, and Read and Write are further folders of the run, all
	// below Folder. They are there.
	Work        string
	Read, Write []string
	// Argv is the program and its words. A program without a slash is looked for in the
	// PATH of Env, a relative one is below Work.
	Argv []string
	// Env is the environment, as NAME=value, but for HOME, TMPDIR and
	// CREDENTIALS_DIRECTORY.
	Env []string
	// Secrets are given as files of CREDENTIALS_DIRECTORY, named as their references are
	// behind the colon, and taken out of the log and the tail.
	Secrets []Secret
	// Archive is a source that is unpacked into Work before the command begins, nil for
	// none; Revision is one that is exported from the worker's repository. Work is empty
	// then, but for what an earlier Run of this folder has unpacked: that stays as it is.
	Archive  func() (*os.File, error)
	Revision string
	// Digest is that of the source, "" if any will do.
	Digest string
	// Overlay, if set, is a folder of the run whose files are copied over those of Work
	// before the command begins.
	Overlay string
	// Deadline is when the command is ended.
	Deadline time.Time
	// Progress is a file, below one of Write, whose changes count as progress; "" for none.
	Progress string
}

// Report is what is told of a command while it runs; either may be nil. Both are called
// by goroutines of Run, which waits for them.
type Report struct {
	// Started is called before the command's first instruction; its error means that
	// it does not begin. The record is written by then.
	Started func(proc.Process) error
	// Progress gets the number of bytes of output and of changes of the progress file,
	// together, when it has grown.
	Progress func(n int64)
}

// Stop says why Run ended a command.
type Stop string

// The reasons to end a command.
const (
	NotStopped Stop = ""          // it ended by itself
	Deadline   Stop = "deadline"  // Spec.Deadline
	Cancelled  Stop = "cancelled" // the context of Run ended
	Full       Stop = "full"      // the run's folder holds more than Config.Disk
)

// Outcome is what is known of a command that was started.
type Outcome struct {
	Started, Ended time.Time
	Exit           int    // -1 when a signal ended it or the end is not known
	Signal         string // what ended it, as SIGKILL, "" if it exited
	Stopped        Stop
	Unknown        string // why it is not known how it ended, "" if it is
	Tail           string // the end of both streams, at most 4 KiB, without secrets; untrusted
	Output         int64  // bytes that it wrote
	LeftBehind     []string
	// Survivors are those of the tree that could not be ended, as far as they are known by
	// name. Checks is how often, in a row, nothing of it was found alive at the end: 0 if
	// something was, or if it could not be told.
	Survivors []proc.Process
	Checks    int
	// Worktree is the digest of the source, "" if there was none.
	Worktree string
	// Log says what of the log is missing, and why; nil if all that it should hold is there.
	Log error
}

var errFull = errors.New("the run's folder is full")

// Run runs a command and returns when nothing of it is alive, or when that cannot be
// reached: then Outcome.Checks is 0. An error means for certain that nothing ran; it is a
// *SourceError if the source was refused.
func (r *Runner) Run(ctx context.Context, spec Spec, report Report) (Outcome, error) {
	if err := spec.check(); err != nil {
		return Outcome{}, err
	}
	if err := r.enter(spec.Folder); err != nil {
		return Outcome{}, err
	}
	defer r.leave(spec.Folder)
	root, err := os.OpenRoot(spec.Folder)
	if err != nil {
		return Outcome{}, fmt.Errorf("the run's folder: %w", err)
	}
	defer root.Close()
	return r.run(ctx, root, spec, report)
}

func (r *Runner) run(ctx context.Context, root *os.Root, spec Spec, report Report) (out Outcome, err error) {
	rec, err := readRecord(root)
	if err != nil {
		return Outcome{}, err
	}
	if rec.Process.PID != 0 {
		if rec.Process.Lives() {
			return Outcome{}, fmt.Errorf("process %d of an earlier start in this folder lives; end it first", rec.Process.PID)
		}
	}
	if err := r.prepare(root, &spec); err != nil {
		return Outcome{}, err
	}
	if err := r.source(ctx, root, &spec, rec); err != nil {
		return Outcome{}, err
	}
	if err := r.lay(ctx, root, &spec); err != nil {
		return Outcome{}, err
	}
	program, err := lookup(spec.Argv[0], variable(spec.Env, "PATH"), spec.Work)
	if err != nil {
		return Outcome{}, err
	}
	secrets, err := keepSecrets(spec.Folder, spec.Secrets, r.owner())
	if err != nil {
		return Outcome{}, err
	}
	defer func() {
		if gone := dropSecrets(spec.Folder); gone != nil {
			r.config.Slog.Error("secrets of a run stay in memory", "folder", secretsFolder(spec.Folder), "err", gone)
		}
	}()
	log, err := newOutput(root, r.config.Log, spec.Secrets)
	if err != nil {
		return Outcome{}, err
	}
	ps := proc.Spec{
		Argv: spec.Argv, Path: program, Env: spec.environment(secrets), Folder: spec.Work, Output: log.take,
		Timeout: time.Until(spec.Deadline), Grace: r.config.Grace, OutputMax: kept,
		Begin: func(p proc.Process) error {
			rec.begins(p, r, spec.Folder)
			if err := rec.write(root); err != nil {
				return err
			}
			r.yield(p.PID)
			if report.Started == nil {
				return nil
			}
			return report.Started(p)
		},
	}
	if !r.config.Unconfined {
		policy := r.policy(&spec, program)
		if secrets != "" {
			policy.Read = append(policy.Read, secrets)
		}
		if _, err := command.Confine(&ps, policy); err != nil {
			return Outcome{}, errors.Join(err, log.close())
		}
	}
	ended, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watch sync.WaitGroup
	over := make(chan struct{})
	watch.Go(func() { r.watch(root, &spec, log, report.Progress, stop, over) })
	res, err := proc.Run(ended, ps)
	close(over)
	watch.Wait()
	logged := log.close()
	if err != nil {
		rec.never(root) // what did not begin has left nothing
		return Outcome{}, err
	}
	out = Outcome{Started: res.Started, Ended: res.Ended, Exit: res.Exit, Stopped: Stop(res.Stopped), Unknown: res.Why,
		Tail: strings.ToValidUTF8(string(log.tail), ""), Output: log.bytes.Load(), LeftBehind: res.LeftBehind, Worktree: rec.Worktree, Log: logged}
	if res.Signal != 0 {
		out.Signal = signalName(res.Signal)
	}
	if out.Stopped == Cancelled && errors.Is(context.Cause(ended), errFull) {
		out.Stopped = Full
	}
	if r.account(&out, res, spec.Folder, rec); out.Checks > 1 {
		rec.over(root)
	}
	return out, nil
}

// account looks, after package proc has, whether anything of a run is alive.
func (r *Runner) account(out *Outcome, res proc.Result, folder string, rec *record) {
	again := r.again(folder, rec)
	out.Survivors, out.Checks = again.Alive, again.looks
	for _, p := range res.Alive {
		if p.Lives() && !slices.Contains(out.Survivors, p) {
			out.Survivors = append(out.Survivors, p)
		}
	}
	out.LeftBehind = append(out.LeftBehind, again.Ended...)
	if len(out.Survivors) > 0 || res.Survivors > len(res.Alive) {
		out.Checks = 0
	}
}

// check says why s is no Spec.
func (s *Spec) check() error {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return errors.New("there is no command")
	}
	if real, err := filepath.EvalSymlinks(s.Folder); err != nil || real != s.Folder || !filepath.IsAbs(real) {
		return fmt.Errorf("the run's folder %q: want an absolute path without links", s.Folder)
	}
	folders := slices.Concat([]string{s.Work}, s.Read, s.Write)
	if s.Overlay != "" {
		folders = append(folders, s.Overlay)
	}
	for _, folder := range folders {
		if rest, ok := strings.CutPrefix(folder, s.Folder+"/"); !ok || !filepath.IsLocal(rest) || filepath.Clean(folder) != folder {
			return fmt.Errorf("%q is not below the run's folder", folder)
		}
		if info, err := os.Lstat(folder); err != nil || !info.IsDir() {
			return fmt.Errorf("%q is no folder", folder)
		}
	}
	if s.Archive != nil && s.Revision != "" {
		return errors.New("there are two sources")
	}
	if !time.Now().Before(s.Deadline) {
		return errors.New("the deadline has passed")
	}
	return nil
}

// enter notes that a run is under way in folder.
func (r *Runner) enter(folder string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[folder] {
		return fmt.Errorf("a run is under way in %s", folder)
	}
	r.runs[folder] = true
	return nil
}

func (r *Runner) leave(folder string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, folder)
}

// The folders that a command gets beside those of its Spec, below the run's folder.
const (
	homeFolder = "home"
	tmpFolder  = "tmp"
)

// prepare makes those, and gives what is the command's to its user.
func (r *Runner) prepare(root *os.Root, spec *Spec) error {
	for _, name := range []string{homeFolder, tmpFolder} {
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("the run's folder: %w", err)
		}
		spec.Write = append(slices.Clip(spec.Write), filepath.Join(spec.Folder, name))
	}
	if r.config.User == nil {
		return nil
	}
	if err := root.Chmod(".", 0o711); err != nil {
		return fmt.Errorf("the run's folder: %w", err)
	}
	if passes, err := command.Passes(r.config.User, spec.Folder); err != nil || !passes {
		return fmt.Errorf("the user %s cannot get to %s: put the runs where every folder above lets him pass (%v)", r.config.User.Name, spec.Folder, err)
	}
	for _, folder := range slices.Concat([]string{spec.Work}, spec.Read, spec.Write) {
		if err := r.give(root, strings.TrimPrefix(folder, spec.Folder+"/")); err != nil {
			return fmt.Errorf("the run's folder: %w", err)
		}
	}
	return nil
}

// lookup finds a program: without a slash in path, else below work.
func lookup(name, path, work string) (string, error) {
	if filepath.IsAbs(name) {
		return filepath.Clean(name), nil
	}
	if strings.Contains(name, "/") {
		return filepath.Join(work, name), nil
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // it would hang on the worker's own working folder
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no program %s in PATH=%s", name, path)
}

// variable returns the value of a variable, "" if it is not set.
func variable(env []string, name string) (value string) {
	for _, v := range env {
		if v, ok := strings.CutPrefix(v, name+"="); ok {
			value = v
		}
	}
	return value
}

// environment is the whole environment.
func (s *Spec) environment(secrets string) []string {
	const credentials = "CREDENTIALS_DIRECTORY"
	env := slices.DeleteFunc(slices.Clone(s.Env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "HOME" || name == "TMPDIR" || name == credentials
	})
	env = append(env, "HOME="+filepath.Join(s.Folder, homeFolder), "TMPDIR="+filepath.Join(s.Folder, tmpFolder))
	if secrets != "" {
		env = append(env, credentials+"="+secrets)
	}
	return env
}

// policy is what the sandbox keeps a command to.
func (r *Runner) policy(spec *Spec, program string) sandbox.Policy {
	c := &r.config
	size := uint64(c.Disk)
	p := sandbox.Policy{
		Program: program, Network: c.Network, Metadata: c.Metadata, User: c.User,
		Read:   slices.Concat(System.Read, c.Read, spec.Read),
		Write:  slices.Concat(c.Write, spec.Write),
		Exec:   slices.Concat(System.Exec, c.Exec, spec.Write),
		Limits: sandbox.Limits{NoFile: maxFiles, FSize: &size, CPU: c.CPU, Memory: uint64(c.Memory)},
	}
	if spec.Work != "" {
		p.Exec = append(p.Exec, spec.Work)
	}
	if c.Network == sandbox.AnyNetwork {
		p.Read = append(p.Read, named...)
	}
	if r.uid() != 0 {
		p.Limits.Processes = maxProcesses
	}
	if r.namespaces {
		p.Require = []string{sandbox.LayerNamespaces}
		p.Read = append(p.Read, "/proc") // which shows its own processes alone
	}
	return p
}

// uid is the user of commands.
func (r *Runner) uid() int {
	if u := r.config.User; u != nil {
		return int(u.UID)
	}
	return os.Geteuid()
}

// lay lays over the source what is laid over it.
func (r *Runner) lay(ctx context.Context, root *os.Root, spec *Spec) error {
	if spec.Overlay == "" {
		return nil
	}
	var both [2]*os.Root
	for i, folder := range []string{spec.Work, spec.Overlay} {
		var err error
		if both[i], err = root.OpenRoot(strings.TrimPrefix(folder, spec.Folder+"/")); err != nil {
			return fmt.Errorf("what is laid over the source: %w", err)
		}
		defer both[i].Close()
	}
	return overlay(ctx, both[0], both[1], r.config.Source, r.owner())
}

// source puts the source into the working folder, unless an earlier run has.
func (r *Runner) source(ctx context.Context, root *os.Root, spec *Spec, rec *record) error {
	if spec.Archive == nil && spec.Revision == "" || rec.Unpacked {
		return nil
	}
	work, err := root.OpenRoot(strings.TrimPrefix(spec.Work, spec.Folder+"/"))
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	defer work.Close()
	// What a crash has left of an earlier attempt to unpack.
	if err := emptied(work); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if spec.Archive != nil {
		archive, err := spec.Archive()
		if err != nil {
			return fmt.Errorf("source: %w", err)
		}
		defer archive.Close()
		rec.Worktree, err = Unpack(ctx, work, archive, r.config.Source, r.owner())
		if err != nil {
			return err
		}
	} else if rec.Worktree, err = r.export(ctx, work, spec.Revision, time.Until(spec.Deadline)); err != nil {
		return err
	}
	if spec.Digest != "" && spec.Digest != rec.Worktree {
		return refuse("the digest of its tree is %s; want %s", rec.Worktree, spec.Digest)
	}
	rec.Unpacked = true
	return rec.write(root)
}

// emptied removes all that is in root.
func emptied(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		err = errors.Join(err, root.RemoveAll(name))
	}
	return err
}
