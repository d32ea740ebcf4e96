package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service/plane/wire"
)

// play plays a script as a new worker or verifier and returns what it printed.
func (h *house) play(name string, role ops.Role, script string) ([]told, error) {
	h.t.Helper()
	cfg := h.member(name, role, nil)
	steps, err := ReadScript(strings.NewReader(script))
	if err != nil {
		h.t.Fatal(err)
	}
	var out bytes.Buffer
	err = Fake(h.t.Context(), cfg, steps, &out)
	var all []told
	for line := range bytes.Lines(out.Bytes()) {
		var l told
		if err := json.Unmarshal(line, &l); err != nil {
			h.t.Fatalf("%s: %v", line, err)
		}
		all = append(all, l)
	}
	return all, err
}

// The fake worker can say all that a worker says, and all that it must not, and the plane
// takes the one and refuses the other.
func TestFake(t *testing.T) {
	for _, c := range []struct{ name, script, run, delegation string }{
		{"does it", "run 25s\nmust OK\ncheckpoint notes=one\nmust OK\nreturn report.md=text\nmust OK", "SUCCEEDED", "VERIFYING"},
		{"repeats itself", "start\nbeat 3\nrepeat 2\nmust OK\nreturn report.md=text\nrepeat\nmust OK", "SUCCEEDED", "VERIFYING"},
		{"fails", "start\nfail", "EXHAUSTED", "EXHAUSTED"},
		{"lies", "start\nlie report.md=text\nmust EVIDENCE_MISSING", "RUNNING", "OPEN"},
		{"forges", "start\nforge\nmust BAD_SIGNATURE\nbeat 1\nmust OK", "RUNNING", "OPEN"},
		{"leaves a gap", "start\ngap\nmust OUT_OF_SEQUENCE\nbeat 1\nmust OK", "RUNNING", "OPEN"},
		{"is of a fence before", "start\nstale\nmust STALE_FENCE\nbeat 1\nmust OK", "RUNNING", "OPEN"},
		{"vanishes", "start\nvanish\nfail", "RUNNING", "OPEN"},
		{"is slow and comes too late", "start\nslow 45s\nbeat\nmust STALE_FENCE\nreturn-late report.md=text\nmust STALE_FENCE", "UNKNOWN", "OPEN"},
		{"returns after a reboot", "start\nreboot\nslow 20s\npoll\nmust OK\nstart\nreturn report.md=text\nmust OK", "SUCCEEDED", "VERIFYING"},
		{"waits for a person", "start\nwait-human \"red or blue?\"\nmust OK", "WAITING_HUMAN", "OPEN"},
		{"changes something outside", "start\nmutate k1 \"pay it\"\nmust OK\nreturn report.md=x\nmust UNPROVEN\nprove k1 done \"receipt 7\"\nmust OK\nreturn report.md=x\nmust OK", "SUCCEEDED", "VERIFYING"},
		{"gives up", "start\nabandon\nmust OK", "DISPATCHED", "OPEN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *house) {
				time.Sleep(time.Minute) // past the hold of the start
				d := h.spawn(`{"task": "t", "artifacts": ["report.md"]}`)
				lines, err := h.play("smith", ops.Worker, c.script)
				if err != nil {
					t.Errorf("%v; of %+v", err, lines)
				}
				h.await("the run", c.run, func() string { return h.run(d) })
				if got := h.delegation(d); got != c.delegation {
					t.Errorf("the delegation is %s, want %s", got, c.delegation)
				}
			})
		})
	}
}

// A fake verifier judges as it is told, and a must that is not met ends with an error.
func TestFakeVerifier(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		d := h.spawn(`{"task": "t", "artifacts": ["report.md"], "verify": {"command": ["true"]}}`)
		if _, err := h.play("smith", ops.Worker, "start\nreturn report.md=text"); err != nil {
			t.Fatal(err)
		}
		lines, err := h.play("judge", ops.Verifier, "start\nverdict passed\nmust OK")
		if err != nil {
			t.Errorf("%v; of %+v", err, lines)
		}
		if got := h.delegation(d); got != "COMPLETED" {
			t.Errorf("the delegation is %s", got)
		}
		h.spawn(`{"task": "t"}`)
		var must *MustError
		if _, err := h.play("miller", ops.Worker, "start\nstale\nmust OK\nvanish"); !errors.As(err, &must) || must.Line != 3 || must.Got != "STALE_FENCE" {
			t.Errorf("a must that is not met: %v", err)
		}
	})
}

// pb-019: a worker that was stopped for two leases says a checkpoint and a result of a run
// that another one has by then. Both are evidence, and the other run goes on.
func TestPB019StoppedWorkerChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		time.Sleep(time.Minute)
		d := h.spawn(job)
		done := make(chan error)
		go func() {
			_, err := h.play("zombie", ops.Worker, "start\nslow 100s\nbeat\nmust STALE_FENCE\nreturn-late report.md=old\nmust STALE_FENCE")
			done <- err
		}()
		h.await("the first run", "RUNNING", func() string { return h.run(d) })
		k := &hands{do: lasts(2*time.Minute, leaves(0, "report.md=new"))}
		h.start(h.member("smith", ops.Worker, k))
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := h.run(d); got != "RUNNING" {
			t.Errorf("the second run is %s after the first worker came back", got)
		}
		h.await("the delegation", "VERIFYING", func() string { return h.delegation(d) })
		if got := h.text(`SELECT f.digest FROM run_file f JOIN dispatch x ON x.run = f.run WHERE x.delegation = $1 AND x.attempt = 2`, d); got != wire.Digest([]byte("new")) {
			t.Errorf("the second run has returned %s", got)
		}
	})
}

// pb-030: what is no message, or nobody's, is refused at once and not sent again.
func TestPB030ForgedCallbacks(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		cfg := h.member("smith", ops.Worker, nil)
		s := h.begun(cfg)
		good, _, err := wire.SealCallback(s.key, wire.KindHeartbeat, wire.Header{Run: "r-1", Worker: s.id, Boot: s.boot, Seq: 1}, wire.Heartbeat{})
		if err != nil {
			t.Fatal(err)
		}
		for name, envelope := range map[string][]byte{
			"truncated":       good[:len(good)/2],
			"random":          []byte("\x00\x01\x02"),
			"empty":           {},
			"unknown key":     bytes.Replace(good, []byte(wire.KeyID(s.key.Public().(pub))), []byte(wire.Digest(nil)), 1),
			"other signature": bytes.Replace(good, []byte(`"sig":"`), []byte(`"sig":"AAAA`), 1),
			"other type":      bytes.Replace(good, []byte("inband.heartbeat"), []byte("inband.result"), 1),
		} {
			_, err := cfg.Client.Callback(t.Context(), envelope)
			if err == nil || Again(err) {
				t.Errorf("%s: %v, want a final refusal", name, err)
			}
		}
		if n := h.number(`SELECT count(*) FROM callback`); n != 0 {
			t.Errorf("%d of them were taken", n)
		}
	})
}

func TestReadScript(t *testing.T) {
	good := "# a comment\n\n  poll 5s # of it\nreturn \"a b.txt\"=\"two words\" c=\"\\n\"\nwait-human \"red, or blue?\"\n"
	steps, err := ReadScript(strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if got := written(steps); got != `3 ["poll" "5s"], 4 ["return" "a b.txt=two words" "c=\n"], 5 ["wait-human" "red, or blue?"], ` {
		t.Errorf("read as %s", got)
	}
	for script, want := range map[string]string{
		"": "no step", "# x": "no step", "dance": "no step \"dance\"", "poll\nsleep": "line 2", "sleep soon": "duration", "sleep -1s": "duration", "gap many": "number",
		"return x": "NAME=TEXT", "return ../x=y": "NAME=TEXT", "prove k maybe why": "done or absent", "verdict fine": "passed", "wait-human \"open": "quotation", "start now": "1 words",
		strings.Repeat("#", maxScript+1): "bytes",
	} {
		if _, err := ReadScript(strings.NewReader(script)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q in it", script, err, want)
		}
	}
}

func written(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%d %q, ", s.Line, append([]string{s.Do}, s.Args...))
	}
	return b.String()
}

// FuzzReadScript: a script that is read says the same when its words are quoted, line by
// line, and each step of it is one that there is.
func FuzzReadScript(f *testing.F) {
	for _, s := range []string{"poll 5s\nreturn a=\"b c\" # x", "start\r\nagain", "wait-human \"a\\tb\"", "mutate k \"x\"y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		steps, err := ReadScript(strings.NewReader(s))
		if err != nil {
			return
		}
		var quoted strings.Builder
		line := 1
		for _, step := range steps {
			for ; line < step.Line; line++ {
				quoted.WriteByte('\n')
			}
			for _, w := range append([]string{step.Do}, step.Args...) {
				fmt.Fprintf(&quoted, "%q ", w)
			}
		}
		if quoted.Len() > maxScript {
			return
		}
		again, err := ReadScript(strings.NewReader(quoted.String()))
		if err != nil {
			t.Fatalf("%q, quoted: %v", s, err)
		}
		if a, b := written(steps), written(again); a != b {
			t.Fatalf("read as %s, and quoted as %s", a, b)
		}
	})
}

func TestState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	s, err := OpenState(dir)
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{"": 0o700, "key": 0o600, "leases": 0o700, "credentials": 0o700} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: %v, %v; want mode %o", path, info.Mode(), err, mode)
		}
	}
	l := lease{Subject: "r-1", Run: "r-1", Delegation: "d-1", Fence: 1, Boot: "b", Folder: filepath.Join(dir, "runs", "r-1"), Process: &wire.Process{PID: 1, Start: "2"}}
	locked := filepath.Join(dir, "runs", "r-1", "locked")
	if err := errors.Join(s.keepLease(l), os.MkdirAll(filepath.Join(locked, "deep"), 0o700), os.Chmod(locked, 0)); err != nil {
		t.Fatal(err)
	}
	all, err := s.leases()
	if err != nil || len(all) != 1 || all[0].Process == nil || *all[0].Process != *l.Process {
		t.Errorf("leases %+v, %v", all, err)
	}
	for _, bad := range []string{"../key", "", ".", "a/b"} {
		if err := s.forget(bad, ""); err == nil {
			t.Errorf("forget %q", bad)
		}
	}
	if err := s.forget("r-1", dir); err == nil {
		t.Error("forgets a run with the folder of the worker")
	}
	if err := s.forget("r-1", l.Folder); err != nil {
		t.Errorf("forget: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "runs", "r-1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "leases", "r-2.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.leases(); err == nil || !strings.Contains(err.Error(), "r-2.json") {
		t.Errorf("a lease that cannot be read: %v", err)
	}
	defer unix.Umask(unix.Umask(0o077))
	elsewhere := filepath.Join(t.TempDir(), "scratch")
	if err := s.PutRuns(elsewhere); err != nil || !strings.HasPrefix(s.Runs(), elsewhere+"/inband-") {
		t.Errorf("the runs stand in %s, %v", s.Runs(), err)
	}
	if info, err := os.Stat(s.Runs()); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%s: %v, %v; want a folder that others may pass and not read", s.Runs(), info.Mode(), err)
	}
	if err := errors.Join(s.PutRuns(elsewhere), os.Chmod(s.Runs(), 0o733)); err != nil {
		t.Error(err)
	}
	if err := s.PutRuns(elsewhere); err == nil {
		t.Error("runs in a folder that others may write to")
	}
	s.Close()
	for what, spoil := range map[string]func() error{
		"key that others may read": func() error { return os.Chmod(filepath.Join(dir, "key"), 0o644) },
		"key that is cut off": func() error {
			return errors.Join(os.Chmod(filepath.Join(dir, "key"), 0o600), os.Truncate(filepath.Join(dir, "key"), 7))
		},
		"folder that others may use": func() error { return os.Chmod(dir, 0o750) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if s, err := OpenState(dir); err == nil {
			s.Close()
			t.Errorf("a %s is taken", what)
		}
	}
}

// A grant that is not this worker's now is not taken.
func TestGrants(t *testing.T) {
	_, planeKey, _ := newKey()
	s := &session{id: "smith", role: ops.Worker, boot: "b1", plane: planeKey.Public().(pub), now: time.Now}
	good := func() wire.Grant {
		g := wire.Grant{Header: wire.Header{Delegation: "d-1", Run: "r-1", Dispatch: "x-1", Implementation: "default", Worker: "smith", Boot: "b1", Fence: 5},
			Nonce: "n1", Attempt: 1, TTLMS: 30_000, HeartbeatMS: 10_000, RemainingMS: 60_000, Instruction: wire.Instruction{Task: "t", Original: "<b> & é"}}
		g.Digest, _ = instructionDigest(g.Instruction)
		return g
	}
	open := func(g wire.Grant, sent time.Time) error {
		envelope, _, err := wire.Seal(planeKey, wire.KindGrant, g)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.open(envelope, "n1", sent)
		return err
	}
	if err := open(good(), time.Now()); err != nil {
		t.Fatalf("a good grant: %v", err)
	}
	for name, spoil := range map[string]func(*wire.Grant){
		"other worker": func(g *wire.Grant) { g.Worker = "miller" }, "other boot": func(g *wire.Grant) { g.Boot = "b0" }, "other poll": func(g *wire.Grant) { g.Nonce = "n0" },
		"other instruction": func(g *wire.Grant) { g.Instruction.Task = "something else" }, "no fence": func(g *wire.Grant) { g.Fence = 0 }, "no time": func(g *wire.Grant) { g.TTLMS = 0 },
		"a path for a run": func(g *wire.Grant) { g.Run = "../../key" }, "a verification": func(g *wire.Grant) { g.Verification = "v-1"; g.Result = &wire.Result{} }, "past its deadline": func(g *wire.Grant) { g.RemainingMS = 0 },
	} {
		g := good()
		spoil(&g)
		if err := open(g, time.Now()); !errors.Is(err, errGrant) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := open(good(), time.Now().Add(-31*time.Second)); !errors.Is(err, errGrant) {
		t.Errorf("a lease that has lapsed: %v", err)
	}
	_, other, _ := newKey()
	envelope, _, err := wire.Seal(other, wire.KindGrant, good())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(envelope, "n1", time.Now()); !errors.Is(err, errGrant) {
		t.Errorf("signed by another key: %v", err)
	}
}

// What a worker is told to serve must be what it is enrolled for.
func TestServes(t *testing.T) {
	for _, c := range []struct {
		enrolled, served []string
		ok               bool
	}{{[]string{"a", "b"}, []string{"b", "a"}, true}, {[]string{"a", "b"}, []string{"a"}, false}, {[]string{"a"}, []string{"a", "b"}, false}} {
		if err := serves(c.enrolled, c.served); (err == nil) != c.ok {
			t.Errorf("%v, %v: %v", c.enrolled, c.served, err)
		}
	}
}

// Whoever has no invitation, or a wrong one, hears what to do; so does the worker of
// another gateway.
func TestEnrolmentIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		for _, token := range []string{"", "ibe_wrong"} {
			cfg := h.member("smith"+fmt.Sprint(len(token)), ops.Worker, &hands{})
			cfg.Token = token
			a := h.start(cfg)
			<-a.done
			var refused *RefusedError
			if !errors.As(a.err, &refused) || !strings.Contains(a.err.Error(), "box workers invite") {
				t.Errorf("token %q: %v", token, a.err)
			}
		}
		cfg := h.member("miller", ops.Worker, &hands{})
		cfg.Implementations = []string{"other"}
		a := h.start(cfg)
		<-a.done
		if a.err == nil || !strings.Contains(a.err.Error(), "default") {
			t.Errorf("another implementation: %v", a.err)
		}
		cfg.Implementations = []string{"default"}
		e, _, err := cfg.State.enrolment()
		if err != nil {
			t.Fatal(err)
		}
		_, other, _ := newKey()
		e.PlaneKey = other.Public().(pub)
		if err := cfg.State.keepEnrolment(e); err != nil {
			t.Fatal(err)
		}
		a = h.start(cfg)
		<-a.done
		if a.err == nil || !strings.Contains(a.err.Error(), "another gateway") {
			t.Errorf("another plane: %v", a.err)
		}
	})
}

// Every step is described, in the help and in the documentation, and no other.
func TestFakeIsDocumented(t *testing.T) {
	described := map[string]bool{}
	table, _, _ := strings.Cut(FakeHelp, "\n\n")
	for line := range strings.Lines(table) {
		if line[0] != ' ' {
			described[strings.Fields(line)[0]] = true
		}
	}
	for step := range fakeArgs {
		if !described[step] {
			t.Errorf("%s is not described", step)
		}
		delete(described, step)
	}
	for step := range described {
		t.Errorf("%s is described, and there is no such step", step)
	}
	doc, err := os.ReadFile("../../docs/plane.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "## The fake worker\n") || !strings.Contains(string(doc), FakeHelp) {
		t.Error("docs/plane.md has another description of scripts than --fake help")
	}
}
