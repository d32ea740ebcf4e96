package command

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/ops"
)

// Output is the value of a command op's result.
type Output struct {
	ExitCode int `json:"exit_code"`
	// Stdout and Stderr are text. Where bytes were dropped between the beginning
	// and the end, a line says how many; what is not UTF-8 reads U+FFFD.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// StdoutBase64 and StderrBase64 are the bytes that were kept, for a stream
	// that is not UTF-8.
	StdoutBase64 string `json:"stdout_base64,omitempty"`
	StderrBase64 string `json:"stderr_base64,omitempty"`
	Truncated    bool   `json:"truncated"`
	DroppedBytes int64  `json:"dropped_bytes"`
	DurationMS   int64  `json:"duration_ms"`
	// LeftBehind names processes, at most 8, that outlived the program and were
	// killed.
	LeftBehind []string `json:"left_behind,omitempty"`
	// Survivors counts the processes that could not be killed.
	Survivors int `json:"survivors,omitempty"`
	// Published are the files that were kept, in the order of the op file.
	Published []ops.Published `json:"published,omitempty"`
	// Layers is what confined the program.
	Layers sandbox.Layers `json:"layers"`
}

// maxDetail bounds each stream in the details of a fault, in bytes: its end.
const maxDetail = 4 << 10

// Config is what the gateway lets its command ops have. The zero value lets them have
// nothing beyond their op files.
type Config struct {
	// Credentials are the secrets that ops may refer to.
	Credentials Credentials
	// AllowRoot lets ops run as root that say so (run_as: root).
	AllowRoot bool
	// AllowUnconfined are the ops that may say sandbox: none.
	AllowUnconfined []ops.OpName
	// Keeper keeps what ops publish. Without one, an op that publishes files does not run.
	Keeper Keeper
	// Closed are the gateway's own folders, without links. No call is handed a file of
	// theirs, whatever the roots of its paths.
	Closed []string
}

type executor struct {
	op     ops.Op
	config Config
	digest string // of the definition
	// definition is where op stands, for Disabled; its file is empty for New.
	definition ops.Definition
	// user is who the program runs as, nil for the gateway's own user.
	user *sandbox.User
	// scratch is where its private folders are made.
	scratch string
	// box confines each run; broken says why there is none, and nothing runs then.
	box    confiner
	broken error
	// confine makes box and that of the canary; sandbox.New but in tests.
	confine func(sandbox.Policy) (confiner, error)
	// ahead has the launches of calls that follow each other made ahead; nil if box does
	// not say what they rest on.
	ahead *proc.Ahead
	// checks are those of the op, with their expressions.
	checks []check
	// known is the program, and digests are those of the files that the op names.
	known   knownProgram
	digests digests
}

// confiner is a prepared sandbox.
type confiner interface {
	Confine(folder string) error
	Aside() error
	Limit(pid int) error
	Layers() sandbox.Layers
}

var _ ops.Executor = (*executor)(nil)

// New returns what runs op, a command op. An error means that op cannot be run
// as things are and names the reason.
func New(op ops.Op, config Config) (ops.Executor, error) {
	e, err := prepare(op, config)
	if err != nil {
		return nil, err
	}
	if err := e.problem(); err != nil {
		return nil, err
	}
	return e, nil
}

// problem says why a call would not run now.
func (e *executor) problem() error {
	_, err := e.examine(e.op.Command.Argv[0].Word, e.op.Command.SHA256)
	return errors.Join(err, e.broken)
}

// prepare makes the executor of an op whose program has not been looked at.
func prepare(op ops.Op, config Config) (*executor, error) {
	op.Params = slices.Clone(op.Params)
	e := &executor{config: config, confine: newSandbox}
	registry, err := ops.New(ops.Bound{Op: op, Executor: e}) // which checks it and takes its digest
	if err != nil {
		return nil, err
	}
	entry, _ := registry.Lookup(op.Name)
	e.op, e.digest = entry.Op, entry.Digest
	if err := e.check(); err != nil {
		return nil, err
	}
	if e.user, e.broken = config.user(&e.op); e.broken == nil {
		e.scratch = scratch(&e.op, e.user)
		e.box, e.broken = e.sandbox()
	}
	if e.broken == nil && !e.op.Command.Unconfined {
		e.broken = e.straight()
	}
	if b, ok := e.box.(interface{ Stamp() string }); ok {
		e.ahead = &proc.Ahead{Stamp: b.Stamp}
	}
	return e, nil
}

// check says why op could never be run, and completes what it leaves to defaults.
func (e *executor) check() (err error) {
	op := &e.op
	if op.Command == nil || len(op.Command.Argv) == 0 || op.Command.Argv[0].Word == "" {
		return errors.New("it names no program")
	}
	if op.Command.OutputMax < 1 || op.Command.OutputMax > ops.MaxOutput {
		return fmt.Errorf("it keeps %d bytes of output; want 1 to %d", op.Command.OutputMax, ops.MaxOutput)
	}
	if op.Timeout == 0 {
		op.Timeout = ops.DefaultTimeout
	}
	if op.Timeout < ops.MinTimeout || op.Timeout > ops.MaxTimeout {
		return fmt.Errorf("its timeout is %s; want %s to %s", op.Timeout, ops.MinTimeout, ops.MaxTimeout)
	}
	if err := checkParams(op); err != nil {
		return err
	}
	if err := disguised(op); err != nil {
		return err
	}
	e.checks, err = compileChecks(op.Command.Checks)
	return err
}

func newSandbox(p sandbox.Policy) (confiner, error) {
	if err := namespaced(&p); err != nil {
		return nil, err
	}
	s, err := sandbox.New(p)
	if err != nil {
		return nil, err // and not a confiner that holds nothing
	}
	return s, nil
}

// policy is what the sandbox keeps op's program to.
func policy(op *ops.Op, user *sandbox.User) sandbox.Policy {
	c := op.Command
	p := sandbox.Policy{
		Program: c.Argv[0].Word, Read: c.FS.Read, Write: c.FS.Write, Exec: c.FS.Exec, Network: sandbox.Network(c.Network),
		Reads: !op.SideEffecting, Metadata: c.FS.Metadata, User: user, Require: c.Require,
		Limits: sandbox.Limits{NoFile: uint64(c.Limits.NoFile), CPU: c.Limits.CPU, Memory: uint64(c.Limits.Memory), Processes: uint64(c.Limits.Processes)},
	}
	if c.Limits.FSize != nil {
		size := uint64(*c.Limits.FSize)
		p.Limits.FSize = &size
	} else if p.Reads {
		size := uint64(ops.DefaultFSize)
		p.Limits.FSize = &size
	}
	return p
}

// Problem is an op that cannot be run as things are, and why.
type Problem struct {
	Op   ops.OpName
	File string
	Line int
	Err  error
}

// Error returns "FILE:LINE: op NAME: why".
func (p Problem) Error() string { return fmt.Sprintf("%s:%d: op %s: %v", p.File, p.Line, p.Op, p.Err) }

// Unwrap returns the reason.
func (p Problem) Unwrap() error { return p.Err }

// Bind returns every op of a file with what runs it. An op whose program is
// missing or must not be started is bound too, so that it is listed and its calls
// say what is the matter, and it is among the problems. An op that could never be
// run is a problem and is not bound.
func Bind(file ops.File, config Config) ([]ops.Bound, []Problem) {
	var bound []ops.Bound
	var problems []Problem
	for _, d := range file.Ops {
		e, err := prepare(d.Op, config)
		if err == nil {
			e.definition = d
			bound = append(bound, ops.Bound{Op: d.Op, Executor: e})
			err = e.problem()
		}
		if err != nil {
			problems = append(problems, Problem{d.Name, d.File, d.Line, err})
		}
	}
	return bound, problems
}

// Disabled returns a problem for each op of bound that no call runs as long as the
// gateway is what it is: its sandbox cannot be had here or does not hold, or the
// gateway's configuration forbids it. A program that is missing disables nothing, since
// it may be installed at any time. It is for readiness, and may be called at any time
// after Prove.
func Disabled(bound []ops.Bound) []Problem {
	var problems []Problem
	for _, b := range bound {
		if e, ok := b.Executor.(*executor); ok && e.broken != nil {
			problems = append(problems, Problem{e.op.Name, e.definition.File, e.definition.Line, e.broken})
		}
	}
	return problems
}

// Execute runs the program once. Its outcome carries a Receipt, unless the parameters
// were refused. It returns no error: a run of which nobody can know how it ended is
// Unknown, or for an op without side effects a failure.
func (e *executor) Execute(ctx context.Context, call ops.Call) (ops.Outcome, error) {
	values, _, fault := e.op.Params.Parse(call.Params)
	if fault != nil {
		return ops.Failure(fault), nil
	}
	r := e.receipt()
	return r.attach(e.execute(ctx, values, r)), nil
}

func (e *executor) execute(ctx context.Context, values ops.Values, r *Receipt) ops.Outcome {
	if e.broken != nil {
		return ops.Failure(e.disabled())
	}
	if len(e.op.Command.Publish) > 0 && e.config.Keeper == nil {
		return ops.Failure(notRun(ops.Unavailable, "op %s publishes files, and nobody here keeps any; nothing ran", e.op.Name))
	}
	program, err := e.examine(e.op.Command.Argv[0].Word, e.op.Command.SHA256)
	if fault := e.scarce(err); fault != nil {
		return ops.Failure(fault)
	}
	if err != nil {
		return ops.Failure(notRun(ops.Unavailable, "op %s cannot be run here: %v", e.op.Name, err))
	}
	r.Program.File, r.Program.SHA256 = program.files[0].real, program.sha256
	l, fault := e.launch(values)
	r.Argv = l.argv
	for _, s := range l.secrets {
		r.Credentials = append(r.Credentials, s.ref)
	}
	if fault != nil {
		return ops.Failure(fault)
	}
	defer l.close()
	spec := proc.Spec{
		Argv: l.argv, Stdin: l.stdin, StdinFile: l.in, Files: l.files, Env: l.env,
		Timeout: e.op.Timeout, OutputMax: e.op.Command.OutputMax,
		Owner: owned(e.user), Scratch: e.scratch,
	}
	if err := confine(&spec, e.box, program); err != nil {
		return ops.Failure(notRun(ops.Internal, "op %s: %v; nothing ran", e.op.Name, err))
	}
	if spec.Inside == nil { // there, nothing is confined before the process is known
		spec.Ahead = e.ahead
	}
	p := e.publish(ctx, l.secrets)
	if p != nil {
		spec.Keep = p.keep
	}
	res, err := proc.Run(ctx, spec)
	if err != nil {
		return e.notStarted(ctx, err)
	}
	layers := e.box.Layers()
	r.Layers = &layers
	return e.outcome(ctx, e.account(r, res, l), r, p)
}

// account takes the secrets out of what is known of a run, and writes the receipt.
func (e *executor) account(r *Receipt, res proc.Result, l *launch) proc.Result {
	passed := e.try(res)
	b := newBlotter(l.secrets)
	out, errs := b.output(res.Stdout), b.output(res.Stderr)
	for i, name := range res.LeftBehind {
		res.LeftBehind[i] = plain(strings.ToValidUTF8(string(b.text([]byte(name))), "\uFFFD"))
	}
	r.ended(res, b.count, b.count == 0 && (len(l.secrets) == 0 || !res.Truncated()))
	res.Stdout, res.Stderr = out, errs
	r.Checks = passed
	return res
}

// disabled is the fault of an op that no call runs.
func (e *executor) disabled() *ops.Fault {
	f := notRun(ops.NoSandbox, "op %s is disabled: %v", e.op.Name, e.broken)
	var missing *sandbox.MissingError
	if errors.As(e.broken, &missing) {
		f = f.With("missing", missing.Layers)
	}
	return f
}

func notRun(code ops.Code, format string, args ...any) *ops.Fault {
	return ops.Faultf(code, format, args...).With("started", false)
}

// scarce is BUSY for an error of a machine that has no room for another process now, nil
// for any other.
func (e *executor) scarce(err error) *ops.Fault {
	for _, scarce := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM} {
		if errors.Is(err, scarce) {
			return notRun(ops.Busy, "op %s: the machine has no room for another process now (%v); nothing ran", e.op.Name, scarce)
		}
	}
	return nil
}

// notStarted says why nothing ran.
func (e *executor) notStarted(ctx context.Context, err error) ops.Outcome {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return ops.Failure(notRun(ops.TimedOut, "the time for op %s had passed before it began; nothing ran", e.op.Name))
	case ctx.Err() != nil:
		return ops.Outcome{State: ops.Cancelled, Fault: notRun(ops.CallCancelled, "op %s was cancelled before it began; nothing ran", e.op.Name)}
	}
	if fault := e.scarce(err); fault != nil {
		return ops.Failure(fault)
	}
	return ops.Failure(notRun(ops.Unavailable, "op %s could not be started: %v; nothing ran", e.op.Name, err))
}

// outcome says what came of a run.
func (e *executor) outcome(ctx context.Context, res proc.Result, r *Receipt, p *publishing) ops.Outcome {
	deadline := res.Stopped == proc.Deadline || res.Stopped == proc.Cancelled && errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case res.Unknown && e.op.SideEffecting:
		return ops.Outcome{State: ops.Unknown, Fault: e.detail(res, ops.Faultf(ops.OutcomeUnknown,
			"op %s was started and nobody can know how it ended: %s; it may have acted, wholly or in part", e.op.Name, res.Why))}
	case deadline:
		return ops.Failure(e.detail(res, ops.Faultf(ops.TimedOut, "op %s was stopped at its deadline after %s", e.op.Name, took(res))))
	case res.Stopped == proc.Cancelled:
		return ops.Outcome{State: ops.Cancelled, Fault: e.detail(res, ops.Faultf(ops.CallCancelled,
			"op %s was cancelled while it ran and has been stopped; what it had done by then stands", e.op.Name))}
	case res.Unknown:
		return ops.Failure(e.detail(res, ops.Faultf(ops.Internal, "op %s was started and nobody can know how it ended: %s", e.op.Name, res.Why)))
	case res.Signal != 0:
		return ops.Failure(e.detail(res, ops.Faultf(ops.OpFailed, "op %s was ended by a signal: %v%s",
			e.op.Name, res.Signal, lastLine(res.Stderr))))
	}
	for _, c := range r.Checks {
		if !c.Held {
			return ops.Failure(e.detail(res, failedCheck(e.op.Name, c.Check, res)))
		}
	}
	published, fault := p.result(res)
	if fault != nil {
		return ops.Failure(fault)
	}
	r.Published = published
	out := Output{
		ExitCode: res.Exit, Truncated: res.Truncated(), DroppedBytes: res.Stdout.Dropped + res.Stderr.Dropped,
		DurationMS: r.DurationMS, LeftBehind: res.LeftBehind, Survivors: res.Survivors,
		Published: published, Layers: e.box.Layers(),
	}
	out.Stdout, out.StdoutBase64 = render(res.Stdout)
	out.Stderr, out.StderrBase64 = render(res.Stderr)
	show := "/stdout"
	if out.Stdout == "" && out.Stderr != "" {
		show = "/stderr"
	}
	o := ops.Success(ops.NewResult(out, show))
	o.Published = published
	return o
}

// detail adds to f what is known of the run.
func (e *executor) detail(res proc.Result, f *ops.Fault) *ops.Fault {
	f = f.With("started", true).With("duration_ms", res.Ended.Sub(res.Started).Milliseconds()).
		With("stdout", end(res.Stdout)).With("stderr", end(res.Stderr)).With("layers", e.box.Layers())
	switch {
	case res.Unknown:
	case res.Signal != 0:
		f = f.With("signal", res.Signal.String())
	default:
		f = f.With("exit_code", res.Exit)
	}
	if res.LeftBehind != nil {
		f = f.With("left_behind", res.LeftBehind)
	}
	if res.Survivors > 0 {
		f = f.With("survivors", res.Survivors)
	}
	return f
}

// render returns a stream as text, and its bytes in base64 if it is not UTF-8.
func render(o proc.Output) (text, b64 string) {
	head, tail := string(o.Head), string(o.Tail)
	text = head + tail
	if o.Dropped > 0 {
		text = fmt.Sprintf("%s\n… %d bytes dropped …\n%s", head, o.Dropped, tail)
	}
	if valid := strings.ToValidUTF8(text, "\uFFFD"); valid != text {
		return valid, base64.StdEncoding.EncodeToString(append(slices.Clone(o.Head), o.Tail...))
	}
	return text, ""
}

// end returns the last bytes of a stream as text.
func end(o proc.Output) string {
	text, _ := render(o)
	if len(text) <= maxDetail {
		return text
	}
	// The cut may fall into a character, whose rest is left out.
	return "… " + strings.ToValidUTF8(text[len(text)-maxDetail:], "")
}

// lastLine returns ": " and the last line of a stream for a message, or "".
func lastLine(o proc.Output) string {
	const most = 200
	text := strings.TrimRightFunc(end(o), unicode.IsSpace)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if text = plain(text); text == "" {
		return ""
	}
	return ": " + text
}

// plain puts a space for each character that does not print.
func plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
}
