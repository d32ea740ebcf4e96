package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"inband/ops"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// says appends a line to the run's mutations and waits for its answer, as a command does.
func says(ctx context.Context, k Task, n int, line string) (ok bool, why string, err error) {
	f, err := os.OpenFile(k.Path(ControlFolder, MutationsFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return false, "", err
	}
	// In two pieces: a line counts once it is whole.
	_, err = f.WriteString(line[:len(line)/2])
	if err == nil {
		err = sleep(ctx, 3*lookEvery)
	}
	if err == nil {
		_, err = f.WriteString(line[len(line)/2:] + "\n")
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, "", err
	}
	for {
		if err := sleep(ctx, lookEvery); err != nil {
			return false, "", err
		}
		answers, err := os.Open(k.Path(TaskFolder, AcknowledgedFile))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(answers)
		for lines.Scan() {
			var a struct {
				Line  int
				OK    bool
				Error string
			}
			if json.Unmarshal(lines.Bytes(), &a) == nil && a.Line == n {
				answers.Close()
				return a.OK, a.Error, nil
			}
		}
		answers.Close()
	}
}

// A change outside is durable at the plane before the command hears that it may be tried.
func TestMutations(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			for n, c := range []struct {
				line string
				ok   bool
				want string
			}{
				{`{"intend": "pay-1", "action": "pay the bill"}`, true, ""},
				{`{"intend": "pay-1", "action": "pay it again"}`, false, ""},
				{`{"intend": "pay-2"}`, false, "want"},
				{`nonsense`, false, "not a line"},
				{`{"prove": "pay-1", "done": true, "proof": "receipt 7"}`, true, ""},
				{`{"prove": "pay-9", "done": true, "proof": "receipt 8"}`, false, ""},
				{`{"prove": "pay-1", "done": true, "proof": "x", "more": 1}`, false, "not a line"},
			} {
				ok, why, err := says(ctx, k, n+1, c.line)
				if err != nil {
					return Outcome{}, err
				}
				if ok != c.ok || !strings.Contains(why, c.want) {
					t.Errorf("%s: %v, %q; want %v, %q", c.line, ok, why, c.ok, c.want)
				}
				if n == 0 {
					if got := h.text(`SELECT state FROM mutation WHERE external = 'pay-1'`); got != "INTENDED" {
						t.Errorf("the command may pay, and the plane has %q", got)
					}
				}
			}
			return leaves(0, "report.md=x")(ctx, k, r)
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "SUCCEEDED", func() string { return h.run(d) })
		if got := h.text(`SELECT state FROM mutation WHERE external = 'pay-1'`); got != "DONE" {
			t.Errorf("the plane has %q of a change that was proved", got)
		}
	})
}

// A command that ends without a proof of what it meant to change outside has not
// succeeded, and nothing is run again before somebody knows.
func TestUnprovenMutation(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(_ context.Context, k Task, _ Report) (Outcome, error) {
			line := `{"intend": "pay-1", "action": "pay the bill"}` + "\n"
			return Outcome{Checks: 2}, os.WriteFile(k.Path(ControlFolder, MutationsFile), []byte(line), 0o600)
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(`{"task": "t", "retries": {"unknown_external": 3, "worker_lost": 3, "task_failed": 3}}`)
		h.await("the mutation", "INTENDED", func() string { return h.text(`SELECT state FROM mutation WHERE external = 'pay-1'`) })
		time.Sleep(10 * time.Minute)
		if k.runs() != 1 {
			t.Errorf("the command ran %d times", k.runs())
		}
		if got := h.run(d); got == "SUCCEEDED" || got == "RUNNING" {
			t.Errorf("the run is %s", got)
		}
	})
}

// A question that comes after a cancel is refused, and what can be proved is said: that
// nothing of the run is alive.
func TestHumanWaitAfterCancel(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		spawned := make(chan string, 1)
		h.start(h.member("smith", ops.Worker, &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			h.cancel(<-spawned)
			if err := os.WriteFile(k.Path(ControlFolder, QuestionFile), []byte("red or blue?\n"), 0o600); err != nil {
				return Outcome{}, err
			}
			return leaves(ExitAsk)(ctx, k, r)
		}}))
		d := h.spawn(job)
		spawned <- d
		h.await("the delegation", "CANCELLED", func() string { return h.delegation(d) })
		if got := h.text(`SELECT proof FROM dispatch WHERE delegation = $1`, d); got != "tombstone" {
			t.Errorf("proof %q, want the tombstone", got)
		}
	})
}

// A command that needs a person writes its question and exits with 75. The answer comes
// with the same run, and so does what was checkpointed.
func TestHumanWait(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			answer, err := os.ReadFile(k.Path(TaskFolder, AnswerFile))
			if err == nil {
				draft, err := os.ReadFile(k.Path(TaskFolder, EarlierFolder, "report.md"))
				if err != nil || string(draft) != "draft" {
					return Outcome{Exit: 1, Tail: fmt.Sprint(string(draft), err)}, nil
				}
				return leaves(0, "report.md="+string(answer))(ctx, k, r)
			}
			err = os.WriteFile(k.Path(ControlFolder, QuestionFile), []byte("red or blue?\n"), 0o600)
			if err != nil {
				return Outcome{}, err
			}
			return leaves(ExitAsk, "report.md=draft")(ctx, k, r)
		}}
		cfg := h.member("smith", ops.Worker, k)
		cfg.Checkpoints = []string{"report.md"}
		h.start(cfg)
		d := h.spawn(job)
		h.await("the run", "WAITING_HUMAN", func() string { return h.run(d) })
		if got := h.text(`SELECT question FROM dispatch WHERE delegation = $1`, d); got != "red or blue?" {
			t.Errorf("the question is %q", got)
		}
		if _, err := h.plane.Resolve(t.Context(), boss, d, plane.ResolveRequest{Resolution: plane.Resume, Answer: "blue"}); err != nil {
			t.Fatal(err)
		}
		h.await("the run", "SUCCEEDED", func() string { return h.run(d) })
		if n := h.number(`SELECT attempts FROM delegation WHERE id = $1`, d); n != 1 {
			t.Errorf("%d attempts, want the same run", n)
		}
	})
	// Exit code 75 without a question is a failure like others.
	bubble(t, func(t *testing.T, h *house) {
		h.start(h.member("smith", ops.Worker, &hands{do: leaves(ExitAsk)}))
		d := h.spawn(`{"task": "t"}`)
		h.await("the delegation", "EXHAUSTED", func() string { return h.delegation(d) })
	})
}

// Files that were asked for are stored when they have changed, and the next attempt finds
// them, also on another worker.
func TestCheckpoints(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		var second atomic.Bool
		k := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			if second.Load() {
				b, err := os.ReadFile(k.Path(TaskFolder, EarlierFolder, "notes.txt"))
				if err != nil || string(b) != "two" {
					return Outcome{Exit: 1, Tail: fmt.Sprint(string(b), err)}, nil
				}
				return leaves(0, "report.md=x")(ctx, k, r)
			}
			for _, text := range []string{"one", "one", "two"} {
				if err := os.WriteFile(k.Path(OutFolder, "notes.txt"), []byte(text), 0o600); err != nil {
					return Outcome{}, err
				}
				if sleep(ctx, 23*time.Second) != nil { // never at a tick, where half a file could be found
					break
				}
			}
			<-ctx.Done()
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
		}}
		cfg := h.member("smith", ops.Worker, k)
		cfg.Checkpoints = []string{"notes.txt"}
		a := h.start(cfg)
		d := h.spawn(job)
		h.await("the checkpoints", "2", func() string { return fmt.Sprint(h.number(`SELECT count(*) FROM callback WHERE kind = 'checkpoint'`)) })
		time.Sleep(time.Minute)
		if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'checkpoint'`); n != 2 {
			t.Errorf("%d checkpoints of two contents", n)
		}
		second.Store(true)
		a.drain()
		close(a.abandon)
		<-a.done
		other := h.member("miller", ops.Worker, k)
		h.start(other)
		h.await("the delegation", "VERIFYING", func() string { return h.delegation(d) })
	})
}

// Credentials come by reference and go to the command only; what the plane gets of the
// command's words has them taken out.
func TestCredentials(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		const value = "correct horse battery"
		k := &hands{do: func(_ context.Context, k Task, _ Report) (Outcome, error) {
			if len(k.Secrets) != 1 || string(k.Secrets[0].Value) != value || strings.Contains(fmt.Sprintf("%v %+v %#v", k.Secrets[0], k.Secrets[0], k.Secrets[0]), value) {
				t.Errorf("the command gets %v", k.Secrets)
			}
			for _, v := range k.Env {
				if strings.Contains(v, value) {
					t.Errorf("the environment has %q", v)
				}
			}
			return Outcome{Exit: 1, Tail: "I used " + value}, nil
		}}
		cfg := h.member("smith", ops.Worker, k)
		cfg.Secret = func(ref ops.CredentialRef) ([]byte, error) {
			if ref != "file:pass" {
				return nil, errors.New("there is none")
			}
			return []byte(value), nil
		}
		h.start(cfg)
		d := h.spawn(`{"task": "t", "credentials": ["file:pass"]}`)
		h.await("the delegation", "EXHAUSTED", func() string { return h.delegation(d) })
		if got := h.text(`SELECT summary FROM dispatch WHERE delegation = $1`, d); strings.Contains(got, value) || !strings.Contains(got, "[secret file:pass]") {
			t.Errorf("the summary is %q", got)
		}
		begun := k.runs()
		d = h.spawn(`{"task": "t", "credentials": ["file:other"]}`)
		h.await("the delegation", "EXHAUSTED", func() string { return h.delegation(d) })
		if k.runs() != begun {
			t.Error("a command was begun without its credential")
		}
	})
}

// The environment of a command is what it is told, and nothing of ours.
func TestEnvironment(t *testing.T) {
	t.Setenv("AMBIENT_SECRET", "leak")
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			have := map[string]string{}
			for _, v := range k.Env {
				name, value, _ := strings.Cut(v, "=")
				have[name] = value
			}
			if _, ok := have["AMBIENT_SECRET"]; ok {
				t.Error("the command inherits the worker's environment")
			}
			if have["COLOUR"] != "blue" || have["INBAND_OUT"] != k.Path(OutFolder) || have["INBAND_RUN"] == "" || have["INBAND_ATTEMPT"] != "1" || have["INBAND_IDEMPOTENCY_KEY"] == "" {
				t.Errorf("the environment is %q", k.Env)
			}
			return leaves(0, "report.md=x")(ctx, k, r)
		}}
		cfg := h.member("smith", ops.Worker, k)
		cfg.Env = []string{"COLOUR=blue"}
		h.start(cfg)
		d := h.spawn(job)
		h.await("the run", "SUCCEEDED", func() string { return h.run(d) })
	})
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name, job, want string
		dry             bool
		command         []string
		do              func(context.Context, Task, Report) (Outcome, error)
		runs            int
	}{
		{name: "test passes", job: job, want: "COMPLETED", do: leaves(0), runs: 1},
		{name: "test fails", job: `{"task": "t", "artifacts": ["report.md"], "verify": {"command": ["false"]}, "retries": {"invalid_result": 0}}`, want: "VERIFICATION_FAILED", do: leaves(1), runs: 1},
		{name: "test cannot be begun", job: job, want: "EVIDENCE_MISSING", do: func(context.Context, Task, Report) (Outcome, error) { return Outcome{}, errors.New("no program") }, runs: 1},
		{name: "no test, no command", job: `{"task": "t", "artifacts": ["report.md"]}`, want: "COMPLETED"},
		{name: "no test, a command", job: `{"task": "t", "artifacts": ["report.md"], "retries": {"invalid_result": 0}}`, command: []string{"review"}, want: "VERIFICATION_FAILED", do: leaves(3), runs: 1},
		{name: "dry run of a test", job: job, dry: true, want: "EVIDENCE_MISSING"},
		{name: "dry run of files", job: `{"task": "t", "artifacts": ["report.md"]}`, dry: true, want: "COMPLETED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *house) {
				h.start(h.member("smith", ops.Worker, &hands{do: leaves(0, "report.md=x")}))
				judge := &hands{do: c.do}
				cfg := h.member("judge", ops.Verifier, judge)
				if c.dry {
					cfg.Runner, cfg.DryRun = nil, true
				}
				cfg.Command = c.command
				h.start(cfg)
				d := h.spawn(c.job)
				h.await("the delegation", c.want, func() string { return h.delegation(d) })
				if judge.runs() != c.runs {
					t.Errorf("the verifier ran %d commands, want %d", judge.runs(), c.runs)
				}
			})
		})
	}
}

// Bytes that are not what their digest says are no evidence.
func TestVerifierComparesBytes(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		h.start(h.member("smith", ops.Worker, &hands{do: leaves(0, "report.md=all is well")}))
		d := h.spawn(job)
		h.await("the delegation", "VERIFYING", func() string { return h.delegation(d) })
		cfg := h.member("judge", ops.Verifier, &hands{do: leaves(0)})
		cfg.Client = NewClient("https://gateway.example", roundTripper(func(r *httpRequest) (*httpResponse, error) {
			resp, err := h.net.RoundTrip(r)
			if err == nil && strings.HasPrefix(r.URL.Path, "/v1/plane/artifacts/") {
				resp.Body = bodyOf("all is lost")
			}
			return resp, err
		}))
		h.start(cfg)
		h.await("the delegation", "EVIDENCE_MISSING", func() string { return h.delegation(d) })
	})
}

func TestKeep(t *testing.T) {
	dir, copies := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"plain": "text", "empty": "", "deep/er": "x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(outside, []byte("secret"), 0o600), os.Symlink(outside, filepath.Join(dir, "out")), os.Symlink("plain", filepath.Join(dir, "in")),
		os.Symlink(filepath.Dir(outside), filepath.Join(dir, "folder")), fifo(filepath.Join(dir, "pipe")), os.Mkdir(filepath.Join(dir, "dir"), 0o700)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"out", "in", "folder/secret", "pipe", "dir", "none", "../x", "/etc/passwd", "a\nb", "plain/", ""} {
		if l, err := keep(root, name, copies); err == nil {
			t.Errorf("%q is taken: %+v", name, l)
		} else if strings.Contains(err.Error(), dir) {
			t.Errorf("%q: the fault tells the worker's paths: %v", name, err)
		}
	}
	for name, text := range map[string]string{"plain": "text", "empty": "", "deep/er": "x"} {
		l, err := keep(root, name, copies)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		b, err := os.ReadFile(l.copy)
		if err != nil || string(b) != text || l.file.Bytes != int64(len(text)) || l.file.Digest != wire.Digest(b) {
			t.Errorf("%q is kept as %q, %+v, %v", name, b, l.file, err)
		}
	}
	names, cut, err := listed(root, []string{"plain"})
	if err != nil || cut || fmt.Sprint(names) != "[plain deep/er empty]" {
		t.Errorf("listed: %q, %v, %v; want the wanted first, and no link", names, cut, err)
	}
}
