package worker

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/plane/wire"
)

// FakeHelp describes the script of a fake worker, a line a step.
const FakeHelp = `poll [D]            wait for a grant, at most D (default: until one comes)
start               say that the run begins
run [D]             start, then sleep D
sleep D             wait, with heartbeats
slow D              wait without a word
beat [N]            a heartbeat, with progress N
gone                a heartbeat that says that the command is gone
checkpoint F...     store files, attest them, and say that they would remain
return F...         store files, attest them, and say that the run has succeeded
lie F...            say that the run has succeeded, with files that were never stored
fail [CLASS]        say that it has failed (default: task_failed)
wait-human TEXT     ask a person
mutate KEY TEXT     say that something outside will be changed
prove KEY done|absent TEXT
await-cancel [D]    heartbeats until the plane wants the run stopped
ack-cancel          acknowledge that
stop                acknowledge it, and prove that nothing is alive
stop-alive PID      a proof that names a living process
cancel-failed TEXT  say that something cannot be ended
abandon             say that the worker gives the run up
verdict V [TEXT]    of a verifier: passed, failed or evidence_missing
repeat [N]          the last message N times more, byte for byte
forge               a heartbeat signed with another key
gap [N]             a heartbeat N numbers too far on
stale               a heartbeat under the fence before
reboot              begin a new boot, which reports the run as ended
vanish              end at once, without a word (exit code 0)
return-late F...    return, once a message of this lease is refused as stale
must OK|CODE        end with exit code 1 unless that was the last answer
again               go on at the first line

F is NAME=TEXT. Words with spaces are quoted as in Go: "two words". # begins a comment.
Of each step one line of JSON is printed: its line, what it does, and the plane's answer.`

// Step is one line of a script.
type Step struct {
	Line int
	Do   string
	Args []string
}

// fakeArgs is how many arguments a step may have, at least and at most (-1: any number).
var fakeArgs = map[string][2]int{
	"poll": {0, 1}, "start": {0, 0}, "run": {0, 1}, "sleep": {1, 1}, "slow": {1, 1}, "beat": {0, 1}, "gone": {0, 0},
	"checkpoint": {0, MaxFiles}, "return": {0, MaxFiles}, "return-late": {0, MaxFiles}, "lie": {1, MaxFiles}, "fail": {0, 1},
	"wait-human": {1, 1}, "mutate": {2, 2}, "prove": {3, 3}, "await-cancel": {0, 1}, "ack-cancel": {0, 0}, "stop": {0, 0},
	"stop-alive": {1, 1}, "cancel-failed": {1, 1}, "abandon": {0, 0}, "verdict": {1, 2}, "repeat": {0, 1}, "forge": {0, 0},
	"gap": {0, 1}, "stale": {0, 0}, "reboot": {0, 0}, "vanish": {0, 0}, "must": {1, 1}, "again": {0, 0},
}

// maxScript bounds a script, in bytes.
const maxScript = 64 << 10

// ReadScript reads the script of a fake worker. The error names the line.
func ReadScript(r io.Reader) ([]Step, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxScript+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxScript {
		return nil, fmt.Errorf("script: more than %d bytes", maxScript)
	}
	var steps []Step
	for i, line := range strings.Split(string(b), "\n") {
		words, err := splitWords(line)
		if err == nil && len(words) > 0 {
			s := Step{i + 1, words[0], words[1:]}
			if err = s.check(); err == nil {
				steps = append(steps, s)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("script, line %d: %w", i+1, err)
		}
	}
	if len(steps) == 0 {
		return nil, errors.New("script: there is no step in it")
	}
	return steps, nil
}

// splitWords splits a line at spaces; a part in quotes keeps its own.
func splitWords(line string) (words []string, err error) {
	for {
		line = strings.TrimLeft(line, " \t\r")
		if line == "" || line[0] == '#' {
			return words, nil
		}
		var word strings.Builder
		for line != "" && !strings.ContainsRune(" \t\r", rune(line[0])) {
			if line[0] != '"' {
				word.WriteByte(line[0])
				line = line[1:]
				continue
			}
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, errors.New("a quotation that does not end, or is none of Go")
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, err
			}
			word.WriteString(text)
			line = line[len(quoted):]
		}
		words = append(words, word.String())
	}
}

func (s Step) check() error {
	n, ok := fakeArgs[s.Do]
	if !ok {
		return fmt.Errorf("there is no step %q", s.Do)
	}
	if len(s.Args) < n[0] || len(s.Args) > n[1] {
		return fmt.Errorf("%s: %d words behind it, want %d to %d", s.Do, len(s.Args), n[0], n[1])
	}
	switch s.Do {
	case "poll", "run", "sleep", "slow", "await-cancel":
		for _, a := range s.Args {
			if d, err := time.ParseDuration(a); err != nil || d <= 0 {
				return fmt.Errorf("%s %q: want a duration, such as 2s", s.Do, a)
			}
		}
	case "beat", "repeat", "gap", "stop-alive":
		for _, a := range s.Args {
			if n, err := strconv.ParseInt(a, 10, 32); err != nil || n < 0 {
				return fmt.Errorf("%s %q: want a number", s.Do, a)
			}
		}
	case "checkpoint", "return", "return-late", "lie":
		for _, a := range s.Args {
			if name, _, ok := strings.Cut(a, "="); !ok || artifacts.CheckName(name) != nil {
				return fmt.Errorf("%s %q: want NAME=TEXT", s.Do, a)
			}
		}
	case "prove":
		if s.Args[1] != "done" && s.Args[1] != "absent" {
			return fmt.Errorf("prove %s %q: want done or absent", s.Args[0], s.Args[1])
		}
	case "verdict":
		if !slices.Contains([]string{passed, failed, evidenceMissing}, s.Args[0]) {
			return fmt.Errorf("verdict %q: want %s, %s or %s", s.Args[0], passed, failed, evidenceMissing)
		}
	}
	return nil
}

// MustError says that a script's must was not met.
type MustError struct {
	Line      int
	Want, Got string
}

func (e *MustError) Error() string {
	return fmt.Sprintf("script, line %d: the last answer was %s, and must be %s", e.Line, e.Got, e.Want)
}

// Fake plays a script as the worker or verifier of cfg, whose Runner, Command and Slots
// it does not need. It does what it is told, also what a worker must not do; the same
// script and the same answers make the same messages but for times and ids. Each step
// writes a line of JSON to out. The error is a *MustError, a *RefusedError, or of the
// folder; the end of ctx ends it with nil.
func Fake(ctx context.Context, cfg Config, script []Step, out io.Writer) error {
	f := &fake{cfg: cfg, out: json.NewEncoder(out)}
	var err error
	if f.enrolled, err = enrol(ctx, cfg.Client, cfg.State, cfg.Token, cfg.Log); err != nil {
		return drained(ctx, err)
	}
	if f.session, err = begin(ctx, cfg.Client, cfg.State, f.enrolled, cfg.Version, nil, cfg.Log); err != nil {
		return drained(ctx, err)
	}
	if f.folder, err = os.MkdirTemp(cfg.State.path("kept"), "fake-"); err != nil {
		return err
	}
	defer os.RemoveAll(f.folder)
	for i := 0; i < len(script); i++ {
		s := script[i]
		switch s.Do {
		case "vanish":
			return f.tell(s, nil, nil)
		case "again":
			if ctx.Err() != nil {
				return nil
			}
			i = -1
			continue
		case "must":
			if got := f.last(); !strings.EqualFold(got, s.Args[0]) {
				return &MustError{s.Line, s.Args[0], got}
			}
			continue
		}
		answer, err := f.step(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		f.fault = err
		if err := f.tell(s, answer, err); err != nil {
			return err
		}
		var not *RefusedError
		var fault *ops.Fault
		if err != nil && (errors.As(err, &not) || !errors.As(err, &fault)) {
			return err // of this machine, or of a script that cannot be played
		}
	}
	return nil
}

// fake is a script that is played.
type fake struct {
	cfg      Config
	out      *json.Encoder
	enrolled wire.Enrolled
	session  *session
	folder   string

	g        *granted
	header   wire.Header // of the last message that was acknowledged
	envelope []byte      // of the last message that was sent
	cancel   bool
	progress int64
	fault    error // of the last step
}

// told is what is printed of a step.
type told struct {
	Line  int        `json:"line"`
	Do    string     `json:"do"`
	OK    bool       `json:"ok"`
	Code  ops.Code   `json:"code,omitempty"`
	Error string     `json:"error,omitempty"`
	Fault *ops.Fault `json:"fault,omitempty"`
	// Answer is an Ack, or what else the plane said.
	Answer any `json:"answer,omitempty"`
}

func (f *fake) tell(s Step, answer any, err error) error {
	t := told{Line: s.Line, Do: s.Do, OK: err == nil, Answer: answer}
	if err != nil {
		t.Error = err.Error()
		if errors.As(err, &t.Fault) {
			t.Code = t.Fault.Code
		}
	}
	return f.out.Encode(t)
}

// last is how the last step ended: OK, or the code of its fault.
func (f *fake) last() string {
	var fault *ops.Fault
	switch {
	case f.fault == nil:
		return "OK"
	case errors.As(f.fault, &fault):
		return string(fault.Code)
	}
	return f.fault.Error()
}

// step does one step and returns what the plane answered.
func (f *fake) step(ctx context.Context, s Step) (any, error) {
	if f.g == nil && s.Do != "poll" && s.Do != "reboot" && s.Do != "slow" {
		var err error
		if f.g, err = f.poll(ctx, 0); err != nil {
			return nil, err
		}
	}
	first := ""
	if len(s.Args) > 0 {
		first = s.Args[0]
	}
	n, _ := strconv.ParseInt(first, 10, 64)
	d, _ := time.ParseDuration(first)
	switch s.Do {
	case "poll":
		g, err := f.poll(ctx, d)
		if err != nil {
			return nil, err
		}
		f.g = g
		return map[string]any{"delegation": g.Delegation, "run": g.Run, "verification": g.Verification, "attempt": g.Attempt, "fence": g.Fence, "answer": g.Answer}, nil
	case "start":
		return f.say(ctx, wire.KindStarted, wire.Started{})
	case "run":
		ack, err := f.say(ctx, wire.KindStarted, wire.Started{})
		if err != nil || d == 0 {
			return ack, err
		}
		return f.beats(ctx, d, false)
	case "sleep":
		return f.beats(ctx, d, false)
	case "await-cancel":
		return f.beats(ctx, d, true)
	case "slow":
		return nil, sleep(ctx, d)
	case "beat":
		if first != "" {
			f.progress = n
		}
		return f.beat(ctx, true)
	case "gone":
		return f.beat(ctx, false)
	case "checkpoint":
		files, err := f.store(ctx, s.Args)
		if err != nil {
			return nil, err
		}
		f.progress++
		return f.say(ctx, wire.KindCheckpoint, wire.Checkpoint{Progress: f.progress, Files: files})
	case "return":
		files, err := f.store(ctx, s.Args)
		if err != nil {
			return nil, err
		}
		return f.say(ctx, wire.KindResult, wire.Result{Succeeded: true, Summary: "done", Files: files})
	case "return-late":
		for f.fault == nil {
			if _, err := f.beat(ctx, true); has(err, ops.StaleFence) {
				break
			} else if err != nil {
				return nil, err
			}
			if err := sleep(ctx, f.session.beat); err != nil {
				return nil, err
			}
		}
		return f.say(ctx, wire.KindResult, wire.Result{Succeeded: true, Summary: "done, late", Files: invented(s.Args)})
	case "lie":
		return f.say(ctx, wire.KindResult, wire.Result{Succeeded: true, Summary: "done", Files: invented(s.Args)})
	case "fail":
		class := classTaskFailed
		if first != "" {
			class = first
		}
		return f.say(ctx, wire.KindResult, wire.Result{Class: class, Exit: 1, Summary: "it failed", Files: []wire.File{}})
	case "wait-human":
		return f.say(ctx, wire.KindHumanWait, wire.HumanWait{Question: first})
	case "mutate":
		return f.say(ctx, wire.KindMutationIntended, wire.MutationIntended{Key: first, Action: s.Args[1]})
	case "prove":
		return f.say(ctx, wire.KindMutationProved, wire.MutationProved{Key: first, Done: s.Args[1] == "done", Proof: s.Args[2]})
	case "ack-cancel":
		return f.say(ctx, wire.KindCancelAck, wire.CancelAck{})
	case "stop":
		if ack, err := f.say(ctx, wire.KindCancelAck, wire.CancelAck{}); err != nil {
			return ack, err
		}
		return f.say(ctx, wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{}, Checks: 2})
	case "stop-alive":
		return f.say(ctx, wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{{PID: int(n), Start: "1"}}, Checks: 2})
	case "cancel-failed":
		return f.say(ctx, wire.KindCancelFailed, wire.CancelFailed{Reason: first})
	case "abandon":
		return f.say(ctx, wire.KindAbandoning, wire.Abandoning{Reason: "the script says so", Live: []wire.Process{}})
	case "verdict":
		return f.verdict(ctx, s)
	case "repeat":
		return f.repeat(ctx, max(n, 1))
	case "forge":
		_, stranger, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		return f.send(ctx, stranger, wire.KindHeartbeat, f.next(1), wire.Heartbeat{Alive: true}, false)
	case "gap":
		return f.send(ctx, f.session.key, wire.KindHeartbeat, f.next(1+max(n, 1)), wire.Heartbeat{Alive: true}, false)
	case "stale":
		h := f.next(1)
		h.Fence--
		return f.send(ctx, f.session.key, wire.KindHeartbeat, h, wire.Heartbeat{Alive: true}, false)
	case "reboot":
		var runs []wire.BootRun
		if f.g != nil && f.g.Verification == "" {
			runs = []wire.BootRun{{Run: f.g.Run, Live: []wire.Process{}}}
		}
		session, err := begin(ctx, f.cfg.Client, f.cfg.State, f.enrolled, f.cfg.Version, runs, f.cfg.Log)
		if err != nil {
			return nil, err
		}
		f.session, f.g = session, nil
		return map[string]any{"boot": session.boot}, nil
	}
	return nil, fmt.Errorf("step %q", s.Do)
}

// poll asks until there is a grant, or for d if that is not 0. It takes what comes, also
// when its lease has lapsed; only a grant that is not the plane's ends the script.
func (f *fake) poll(ctx context.Context, d time.Duration) (*granted, error) {
	s := f.session
	until := s.now().Add(d)
	wait := &backoff{first: 50 * time.Millisecond, most: time.Second}
	for {
		left := pollWait
		if d > 0 {
			if left = min(left, until.Sub(s.now())); left <= 0 {
				return nil, ops.Faultf(ops.TimedOut, "no grant came in %s", d)
			}
		}
		nonce, sent := ulid.Make().String(), s.now()
		envelope, err := s.poll(ctx, nonce, left)
		if err == nil && envelope != nil {
			g, err := s.open(envelope, nonce, sent)
			if err != nil {
				return nil, err
			}
			f.header, f.cancel, f.progress = g.Header, false, 0
			return &g, nil
		}
		if err != nil && !Again(err) && !has(err, ops.PlaneOff) {
			return nil, err
		}
		if err := wait.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

// next is the header of the message n numbers on.
func (f *fake) next(n int64) wire.Header {
	h := f.header
	h.Seq += n
	h.SentAt = f.session.now().UTC()
	return h
}

// say sends the next message.
func (f *fake) say(ctx context.Context, k wire.Kind, body any) (any, error) {
	return f.send(ctx, f.session.key, k, f.next(1), body, true)
}

// send sends a message until it is answered. If counts is set it is the one that the next
// follows.
func (f *fake) send(ctx context.Context, key ed25519.PrivateKey, k wire.Kind, h wire.Header, body any, counts bool) (any, error) {
	envelope, digest, err := wire.SealCallback(key, k, h, body)
	if err != nil {
		return nil, err
	}
	f.envelope = envelope
	ack, err := f.deliver(ctx, envelope)
	if err != nil {
		return nil, err
	}
	if counts {
		f.header.Seq, f.header.Prev = h.Seq, digest
	}
	return ack, nil
}

func (f *fake) deliver(ctx context.Context, envelope []byte) (wire.Ack, error) {
	for wait := retry(); ; {
		ack, err := f.cfg.Client.Callback(ctx, envelope)
		if err == nil {
			f.cancel = f.cancel || ack.Cancel
			return ack, nil
		}
		if !Again(err) {
			return ack, err
		}
		if err := wait.wait(ctx, err); err != nil {
			return ack, err
		}
	}
}

// repeat sends the last message again.
func (f *fake) repeat(ctx context.Context, n int64) (any, error) {
	if f.envelope == nil {
		return nil, errors.New("there is no message to repeat")
	}
	var ack wire.Ack
	var err error
	for ; n > 0 && err == nil; n-- {
		ack, err = f.deliver(ctx, f.envelope)
	}
	return ack, err
}

func (f *fake) beat(ctx context.Context, alive bool) (any, error) {
	return f.say(ctx, wire.KindHeartbeat, wire.Heartbeat{Alive: alive, Progress: f.progress})
}

// beats sends heartbeats for d (0: without end), or until the plane wants a cancel. It
// returns the last answer.
func (f *fake) beats(ctx context.Context, d time.Duration, forCancel bool) (last any, err error) {
	until := f.session.now().Add(d)
	for !forCancel || !f.cancel {
		left := f.session.beat
		if d > 0 {
			if left = min(left, until.Sub(f.session.now())); left <= 0 {
				if forCancel {
					return last, ops.Faultf(ops.TimedOut, "nobody cancelled the run in %s", d)
				}
				return last, nil
			}
		}
		if err := sleep(ctx, left); err != nil {
			return last, err
		}
		f.progress++
		if last, err = f.beat(ctx, true); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// store has files stored and attested.
func (f *fake) store(ctx context.Context, args []string) ([]wire.File, error) {
	files := []wire.File{}
	for i, file := range invented(args) {
		_, text, _ := strings.Cut(args[i], "=")
		path := filepath.Join(f.folder, strconv.Itoa(i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
		l := left{file, path}
		if err := f.session.upload(ctx, f.g.Run, l); err != nil {
			return nil, err
		}
		a, err := f.session.attestation(f.g.Grant, "", l, f.session.now())
		if err != nil {
			return nil, err
		}
		if _, err := f.say(ctx, wire.KindAttest, a); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// invented describes files without storing them.
func invented(args []string) []wire.File {
	files := []wire.File{}
	for _, a := range args {
		name, text, _ := strings.Cut(a, "=")
		h := sha256.New()
		h.Write([]byte(text))
		files = append(files, wire.File{Name: name, Digest: digestOf(h), Bytes: int64(len(text))})
	}
	return files
}

// verdict judges as it is told, having looked at nothing.
func (f *fake) verdict(ctx context.Context, s Step) (any, error) {
	v := wire.Verdict{Verdict: s.Args[0], Checked: []wire.File{}, Reason: "the script says so"}
	if len(s.Args) > 1 {
		v.Reason = s.Args[1]
	}
	if f.g.Result != nil && v.Verdict != evidenceMissing {
		v.Checked = append(v.Checked, f.g.Result.Files...)
		v.Command = f.g.Verify
	}
	if v.Verdict == failed {
		v.Exit = 1
	}
	return f.say(ctx, wire.KindVerdict, v)
}
