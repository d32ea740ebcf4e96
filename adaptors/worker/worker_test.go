package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service/plane/wire"
)

// leaves is a command that writes files and ends with exit.
func leaves(exit int, files ...string) func(context.Context, Task, Report) (Outcome, error) {
	return func(_ context.Context, t Task, _ Report) (Outcome, error) {
		for _, f := range files {
			name, text, _ := strings.Cut(f, "=")
			if err := os.WriteFile(t.Path(OutFolder, name), []byte(text), 0o600); err != nil {
				return Outcome{}, err
			}
		}
		return Outcome{Exit: exit, Checks: 2, Tail: "said"}, nil
	}
}

// lasts is a command that takes d, and then does what next does.
func lasts(d time.Duration, next func(context.Context, Task, Report) (Outcome, error)) func(context.Context, Task, Report) (Outcome, error) {
	return func(ctx context.Context, t Task, r Report) (Outcome, error) {
		for n, end := int64(1), time.Now().Add(d); time.Now().Before(end); n++ {
			if sleep(ctx, min(time.Second, time.Until(end))) != nil {
				return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
			}
			r.Progress(n)
		}
		return next(ctx, t, r)
	}
}

// bubble runs f in a bubble of synctest with a house.
func bubble(t *testing.T, f func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newHouse(t)) })
}

const job = `{"task": "write the report", "artifacts": ["report.md"], "verify": {"command": ["true"]}}`

func TestWorkIsDoneAndVerified(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		var told wire.Instruction
		worker := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			b, err := os.ReadFile(k.Path(TaskFolder, InstructionFile))
			if err != nil {
				return Outcome{}, err
			}
			if err := wire.Strict(b, &told); err != nil {
				return Outcome{}, err
			}
			return leaves(0, "report.md=all is well", "log.txt=line")(ctx, k, r)
		}}
		judge := &hands{do: func(_ context.Context, k Task, _ Report) (Outcome, error) {
			b, err := os.ReadFile(k.Path(TaskFolder, ReturnedFolder, "report.md"))
			if err != nil || string(b) != "all is well" || len(k.Argv) != 1 || k.Argv[0] != "true" {
				return Outcome{Exit: 1, Tail: fmt.Sprint(k.Argv, err)}, nil
			}
			return Outcome{Checks: 2}, nil
		}}
		h.start(h.member("smith", ops.Worker, worker))
		h.start(h.member("judge", ops.Verifier, judge))
		d := h.spawn(job)
		h.await("the delegation", "COMPLETED", func() string { return h.delegation(d) })
		if told.Task != "write the report" {
			t.Errorf("the command was told %+v", told)
		}
		if n := h.number(`SELECT count(*) FROM run_file WHERE name IN ('report.md', 'log.txt')`); n != 2 {
			t.Errorf("%d files were returned, want both", n)
		}
		if left, err := os.ReadDir(h.dir + "/smith/leases"); err != nil || len(left) != 0 {
			t.Errorf("the worker still has %v written down, %v", left, err)
		}
	})
}

// A failing command is a failure of its task, whatever it has left; one that leaves out
// what must be returned is one too, though it ends well.
func TestResults(t *testing.T) {
	for _, c := range []struct {
		name, class string
		do          func(context.Context, Task, Report) (Outcome, error)
	}{
		{"exit 1", "task_failed", leaves(1, "report.md=x")},
		{"without its file", "task_failed", leaves(0, "other=x")},
		{"a link for a file", "task_failed", func(_ context.Context, k Task, _ Report) (Outcome, error) {
			return Outcome{Checks: 2}, os.Symlink("/etc/passwd", k.Path(OutFolder, "report.md"))
		}},
		{"never begun", "task_failed", func(context.Context, Task, Report) (Outcome, error) { return Outcome{}, errors.New("no sandbox") }},
		{"killed from outside", "worker_lost", func(context.Context, Task, Report) (Outcome, error) {
			return Outcome{Exit: -1, Signal: "SIGKILL", Checks: 2}, nil
		}},
		{"an end that nobody knows", "worker_lost", func(context.Context, Task, Report) (Outcome, error) {
			return Outcome{Exit: -1, Unknown: "its init died", Checks: 2}, nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *house) {
				h.start(h.member("smith", ops.Worker, &hands{do: c.do}))
				d := h.spawn(`{"task": "t", "artifacts": ["report.md"], "retries": {"worker_lost": 0}}`)
				h.await("the delegation", "EXHAUSTED", func() string { return h.delegation(d) })
				if got := h.text(`SELECT class FROM dispatch WHERE delegation = $1`, d); got != c.class {
					t.Errorf("class %q, want %q", got, c.class)
				}
			})
		})
	}
}

// What a cancel asks for is acknowledged, done and proved, in this order.
func TestCancel(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			<-ctx.Done()
			time.Sleep(5 * time.Second) // it takes its time to end
			if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'cancel-ack'`); n != 1 {
				t.Errorf("%d acknowledgements while the command is being ended, want 1", n)
			}
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		h.cancel(d)
		h.await("the delegation", "CANCELLED", func() string { return h.delegation(d) })
		if got := h.text(`SELECT proof FROM dispatch WHERE delegation = $1`, d); got != "tombstone" {
			t.Errorf("proof %q, want the tombstone", got)
		}
		if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'cancel-ack'`); n != 1 {
			t.Errorf("%d acknowledgements of the cancel, want 1", n)
		}
	})
}

// A worker that learns of a cancel and cannot be heard until its lease is over still says
// that nothing is alive: nobody else can.
func TestCancelThatIsAcknowledgedTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			<-ctx.Done()
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		h.cancel(d)
		var callbacks int
		heals := time.Now().Add(3 * time.Minute)
		h.net.is(func(path string) fate {
			if path != "/v1/plane/callbacks" {
				return pass
			}
			if callbacks++; callbacks > 1 && time.Now().Before(heals) { // the first is told of the cancel
				return dropped
			}
			return pass
		})
		h.await("the delegation", "CANCELLED", func() string { return h.delegation(d) })
		if got := h.text(`SELECT proof FROM dispatch WHERE delegation = $1`, d); got != "tombstone" {
			t.Errorf("proof %q, want the tombstone", got)
		}
	})
}

// pb-022: what outlives SIGKILL is said, and never a proof.
func TestPB022WhatCannotBeKilledIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		stuck := []wire.Process{{PID: 4711, Start: "1"}}
		k := &hands{live: stuck, do: func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			<-ctx.Done()
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Survivors: stuck}, nil
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(`{"task": "t", "retries": {"worker_lost": 0}}`)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		h.cancel(d)
		h.await("the report", "1", func() string {
			return fmt.Sprint(h.number(`SELECT count(*) FROM callback WHERE kind = 'cancel-failed'`))
		})
		time.Sleep(10 * time.Minute)
		if got := h.run(d); got == "CANCELLED" {
			t.Error("the run counts as cancelled while a process of it is alive")
		}
		if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'cancel-proof'`); n != 0 {
			t.Errorf("%d proofs that nothing is alive", n)
		}
	})
}

// pb-026: the proof is said only when a look has found nothing, however often that takes.
func TestPB026ProofWaitsForTheLastProcess(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{live: []wire.Process{{PID: 1, Start: "1"}}}
		k.do = func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			<-ctx.Done()
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Survivors: k.live}, nil
		}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		h.cancel(d)
		h.await("the report", "1", func() string {
			return fmt.Sprint(h.number(`SELECT count(*) FROM callback WHERE kind = 'cancel-failed'`))
		})
		if got := h.run(d); got != "CANCEL_REQUESTED" {
			t.Errorf("the run is %s while something is alive", got)
		}
		k.set(func(k *hands) { k.live = nil })
		h.await("the delegation", "CANCELLED", func() string { return h.delegation(d) })
	})
}

// pb-015: the worker's network is gone for longer than its lease while its command ends.
// The late result is evidence, and frees the slot.
func TestPB015LateResultIsEvidence(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		finish := make(chan struct{})
		k := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			<-finish
			return leaves(0, "report.md=late")(ctx, k, r)
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(`{"task": "t", "artifacts": ["report.md"], "retries": {"worker_lost": 0}}`)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		h.net.cut(true)
		time.Sleep(5 * time.Second)
		close(finish) // it ends while its lease lives, and nobody can be told
		h.await("the run", "UNKNOWN", func() string { return h.run(d) })
		h.net.cut(false)
		h.await("the evidence", "1", func() string {
			return fmt.Sprint(h.number(`SELECT count(*) FROM evidence WHERE kind = 'result'`))
		})
		time.Sleep(time.Minute)
		if n := h.number(`SELECT count(*) FROM evidence WHERE kind = 'result'`); n != 1 {
			t.Errorf("%d late results, want one", n)
		}
		h.await("what the worker has written down", "[]", func() string {
			left, err := os.ReadDir(h.dir + "/smith/leases")
			return fmt.Sprint(left, map[bool]string{true: "", false: "?"}[err == nil])[:2]
		})
		// Its slot is free: it takes the next work.
		k.set(func(k *hands) { k.do = leaves(0, "report.md=x") })
		next := h.spawn(job)
		h.await("the next delegation", "VERIFYING", func() string { return h.delegation(next) })
	})
}

// pb-015, the other half: a command that goes on is ended when its lease has lapsed by
// the worker's own clock, without being told.
func TestLapsedLeaseEndsTheCommand(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		ended := make(chan time.Duration, 1)
		k := &hands{do: func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			began := time.Now()
			<-ctx.Done()
			ended <- time.Since(began)
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(`{"task": "t", "retries": {"worker_lost": 0}}`)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		h.net.cut(true)
		if after := <-ended; after > 30*time.Second {
			t.Errorf("the command was ended after %s, of a lease of 30s", after)
		}
		if got := h.run(d); got != "RUNNING" && got != "UNKNOWN" {
			t.Errorf("the run is %s", got)
		}
		h.net.cut(false)
		h.await("the run", "EXHAUSTED", func() string { return h.run(d) })
	})
}

// pb-017, pb-055: SIGTERM lets what runs end, with its heartbeats, and takes nothing new.
func TestPB017DrainKeepsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: lasts(3*30*time.Second, leaves(0, "report.md=x"))}
		a := h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		a.drain()
		other := h.spawn(job)
		<-a.done
		if a.err != nil {
			t.Errorf("the worker ended with %v", a.err)
		}
		if got := h.run(d); got != "SUCCEEDED" {
			t.Errorf("the run is %s, want it done", got)
		}
		if got := h.run(other); got != "DISPATCHED" {
			t.Errorf("a draining worker was given work: it is %s", got)
		}
		if n := h.events("run.lease_expired"); n != 0 {
			t.Errorf("the lease expired %d times", n)
		}
	})
}

// pb-055: a second SIGTERM, or the end of the grace, gives each run up with a signed word.
func TestPB055AbandoningIsSaid(t *testing.T) {
	for _, how := range []string{"second signal", "grace"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *house) {
				cfg := h.member("smith", ops.Worker, &hands{do: lasts(time.Hour, leaves(0))})
				cfg.Slots = 3
				if how == "grace" {
					cfg.Grace = time.Minute
				}
				a := h.start(cfg)
				var all []string
				for range 3 {
					all = append(all, h.spawn(`{"task": "t", "retries": {"worker_lost": 0}}`))
				}
				for _, d := range all {
					h.await("the run", "RUNNING", func() string { return h.run(d) })
				}
				a.drain()
				if how == "second signal" {
					close(a.abandon)
				}
				<-a.done
				if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'abandoning'`); n != 3 {
					t.Errorf("%d runs were given up with a word, want 3", n)
				}
				if n := h.number(`SELECT count(*) FROM dispatch WHERE state IN ('LEASED', 'RUNNING')`); n != 0 {
					t.Errorf("%d runs still count as running", n)
				}
			})
		})
	}
}

// pb-018: two heartbeats are answered with 503 and none is lost after that.
func TestPB018HeartbeatsComeBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		h.start(h.member("smith", ops.Worker, &hands{do: lasts(3*time.Minute, leaves(0, "report.md=x"))}))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		time.Sleep(9 * time.Second)
		h.net.is(func(path string) fate {
			if path == "/v1/plane/callbacks" {
				return broken
			}
			return pass
		})
		time.Sleep(15 * time.Second)
		h.net.is(nil)
		before := h.number(`SELECT count(*) FROM callback WHERE kind = 'heartbeat'`)
		time.Sleep(10 * time.Second)
		if after := h.number(`SELECT count(*) FROM callback WHERE kind = 'heartbeat'`); after <= before {
			t.Errorf("no heartbeat in the interval after the network came back: %d, then %d", before, after)
		}
		h.await("the run", "SUCCEEDED", func() string { return h.run(d) })
	})
}

// A gateway that ends and comes back finds its workers where they were.
func TestGatewayRestarts(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: lasts(2*time.Minute, leaves(0, "report.md=x"))}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		for range 3 {
			time.Sleep(7 * time.Second)
			h.restart()
		}
		h.await("the run", "SUCCEEDED", func() string { return h.run(d) })
		if k.runs() != 1 {
			t.Errorf("the command ran %d times", k.runs())
		}
	})
}

// Whatever the network does to each kind of request, one at a time or by turns, the work
// is done once and the chain of messages has no gap.
func TestNetwork(t *testing.T) {
	for _, path := range []string{"/v1/plane/enrol", "/v1/plane/challenge", "/v1/plane/boots", "/v1/plane/poll", "/v1/plane/callbacks", "/v1/plane/uploads"} {
		for f, name := range []string{dropped: "dropped", unheard: "unheard", repeated: "repeated", slow: "slow", broken: "broken"} {
			if name == "" {
				continue
			}
			t.Run(path[len("/v1/plane/"):]+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, h *house) {
					k := &hands{do: lasts(25*time.Second, leaves(0, "report.md=x", "b=y"))}
					cfg, judge := h.member("smith", ops.Worker, k), h.member("judge", ops.Verifier, &hands{do: leaves(0)})
					turn := 0
					h.net.is(func(at string) fate {
						if at != path && !strings.HasPrefix(at, path+"/") {
							return pass
						}
						if turn++; turn%3 == 0 {
							return pass
						}
						return fate(f)
					})
					h.start(cfg)
					h.start(judge)
					d := h.spawn(job)
					h.await("the delegation", "COMPLETED", func() string { return h.delegation(d) })
					if runs, attempts := k.runs(), h.number(`SELECT attempts FROM delegation WHERE id = $1`, d); runs != 1 || attempts > 2 {
						t.Errorf("the command ran %d times in %d attempts", runs, attempts)
					}
					h.view(`SELECT subject, count(*), min(seq), max(seq) FROM callback GROUP BY subject`, func(scan func(...any) error) error {
						var subject string
						var n, least, most int64
						err := scan(&subject, &n, &least, &most)
						if n != most || least != 1 {
							t.Errorf("the chain of %s has %d messages from %d to %d", subject, n, least, most)
						}
						return err
					})
				})
			})
		}
	}
}

// pb-021: what is final is said once. A run that the plane does not know any more ends.
func TestPB021FinalAnswersAreNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		cfg := h.member("smith", ops.Worker, nil)
		s := h.begun(cfg)
		g := wire.Grant{Header: wire.Header{Delegation: "d-none", Run: "r-none", Dispatch: "x-none", Implementation: "default", Worker: s.id, Boot: s.boot, Fence: 1}, TTLMS: 30_000}
		c := newChain(cfg.Client, s.key, g, time.Now(), time.Now, func(wire.Ack) {})
		for range 3 {
			if err := c.lastWord(t.Context(), wire.KindResult, wire.Result{Files: []wire.File{}}); err == nil {
				t.Error("a result of a run that never was is taken")
			}
		}
		if n := h.net.count("/v1/plane/callbacks"); n != 1 {
			t.Errorf("%d requests, want one", n)
		}
	})
}

// pb-027: a worker that was killed and comes back says what became of its runs, and they
// go on elsewhere at once.
func TestPB027RestartedWorkerReportsItsRuns(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: lasts(20*time.Second, leaves(0, "report.md=x"))}
		cfg := h.member("smith", ops.Worker, k)
		time.Sleep(time.Minute) // a plane that has just started recovers nothing for a while
		// The life before: it leased, wrote down what it runs, and was killed.
		s := h.begun(cfg)
		d := h.spawn(job)
		g, c := h.leased(cfg, s)
		if err := cfg.State.keepLease(lease{Subject: g.Run, Run: g.Run, Delegation: d, Fence: g.Fence, Boot: s.boot, Folder: cfg.State.path("runs", g.Run), Process: &wire.Process{PID: 9, Start: "9"}}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		h.start(cfg)
		h.await("the delegation", "VERIFYING", func() string { return h.delegation(d) })
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("it took %s until the work was done anew, of a command of 20s", took)
		}
		if got := h.text(`SELECT proof FROM dispatch WHERE delegation = $1 AND attempt = 1`, d); got != "new_boot" {
			t.Errorf("proof %q of the run before, want new_boot", got)
		}
		if len(k.ended) == 0 || k.ended[0] != g.Run {
			t.Errorf("ended %v, want %s first", k.ended, g.Run)
		}
		// And the old boot may say nothing any more.
		if _, err := c.say(t.Context(), wire.KindHeartbeat, wire.Heartbeat{Alive: true}); Again(err) {
			t.Errorf("a message of the old boot: %v, want a final answer", err)
		}
	})
}

// pb-029: of two processes with one key the older one ends, and takes nothing more.
func TestPB029OlderProcessEnds(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: lasts(time.Hour, leaves(0))}
		cfg := h.member("smith", ops.Worker, k)
		a := h.start(cfg)
		d := h.spawn(`{"task": "t", "retries": {"worker_lost": 0}}`)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		// A copy of the folder, elsewhere.
		e, err := enrol(t.Context(), cfg.Client, cfg.State, "", h.log)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := begin(t.Context(), NewClient("https://gateway.example", h.net), cfg.State, e, "test", nil, h.log); err != nil {
			t.Fatal(err)
		}
		<-a.done
		if !errors.Is(a.err, ErrSuperseded) {
			t.Errorf("the older process ended with %v, want %v", a.err, ErrSuperseded)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir() + "/smith"
		s, err := OpenState(dir)
		if err != nil {
			t.Fatal(err)
		}
		var locked *LockedError
		if _, err := OpenState(dir); !errors.As(err, &locked) {
			t.Errorf("a second process opens the folder: %v", err)
		}
		s.Close()
		again, err := OpenState(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !again.Public().Equal(s.Public()) {
			t.Error("the key has changed")
		}
		again.Close()
	})
}

// A worker that is revoked ends its command and itself.
func TestRevoked(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		ended := make(chan struct{})
		a := h.start(h.member("smith", ops.Worker, &hands{do: func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			<-ctx.Done()
			close(ended)
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
		}}))
		d := h.spawn(`{"task": "t", "retries": {"worker_lost": 0}}`)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		if _, err := h.plane.Revoke(t.Context(), boss, "smith"); err != nil {
			t.Fatal(err)
		}
		<-ended
		<-a.done
		if !errors.Is(a.err, ErrSuperseded) {
			t.Errorf("the worker ended with %v", a.err)
		}
	})
}

// pb-032: a worker whose clock is wrong does its work, and what it says counts.
func TestPB032WrongClocks(t *testing.T) {
	for name, off := range map[string]time.Duration{"slow": -10 * time.Minute, "fast": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *house) {
				cfg := h.member("smith", ops.Worker, nil)
				s := h.begun(cfg)
				shift := off
				s.now = func() time.Time { return time.Now().Add(shift) }
				d := h.spawn(`{"task": "t"}`)
				_, c := h.leased(cfg, s)
				shift -= 5 * time.Minute // back, in the middle of the run
				if _, err := c.say(t.Context(), wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{}}); err != nil {
					t.Errorf("the result is refused: %v", err)
				}
				if got := h.run(d); got != "SUCCEEDED" {
					t.Errorf("the run is %s", got)
				}
				if n := h.number(`SELECT skew_ms FROM principal WHERE id = 'smith'`); n == 0 {
					t.Error("nobody sees that the clock is wrong")
				}
			})
		})
	}
}

// pb-040: a grant whose answer took longer than its lease is not begun.
func TestPB040LateGrantIsNotBegun(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: leaves(0, "report.md=x")}
		cfg := h.member("smith", ops.Worker, k)
		held := false
		transport := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := h.net.RoundTrip(req)
			if err == nil && req.URL.Path == "/v1/plane/poll" && resp.StatusCode == 200 && !held {
				held = true
				time.Sleep(31 * time.Second)
				if k.runs() != 0 {
					t.Error("it has begun before the answer came")
				}
			}
			return resp, err
		})
		cfg.Client = NewClient("https://gateway.example", transport)
		h.start(cfg)
		d := h.spawn(job)
		h.await("the delegation", "VERIFYING", func() string { return h.delegation(d) })
		if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'started'`); n != 1 {
			t.Errorf("%d starts, want only that of the second grant", n)
		}
		if k.runs() != 1 {
			t.Errorf("the command ran %d times", k.runs())
		}
	})
}

// pb-041: a lease is not kept for a process that is gone, though its Runner waits on.
func TestPB041DeadChildKeepsNoLease(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		k := &hands{do: func(ctx context.Context, _ Task, _ Report) (Outcome, error) {
			<-ctx.Done() // it does not notice by itself
			return Outcome{Exit: -1, Stopped: stoppedCancelled, Checks: 2}, nil
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(`{"task": "t", "retries": {"worker_lost": 0}}`)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		k.set(func(k *hands) { k.dead = true })
		died := time.Now()
		h.await("the delegation", "EXHAUSTED", func() string { return h.delegation(d) })
		if took := time.Since(died); took > 11*time.Second {
			t.Errorf("it took %s until that was known, of one interval of 10s", took)
		}
		if got := h.text(`SELECT class FROM dispatch WHERE delegation = $1`, d); got != "worker_lost" {
			t.Errorf("class %q, want worker_lost", got)
		}
	})
}

// pb-025: a command that keeps its Runner busy keeps no heartbeat back: the two share
// nothing that one could hold.
func TestPB025HeartbeatsGoOnBesideTheCommand(t *testing.T) {
	bubble(t, func(t *testing.T, h *house) {
		release := make(chan struct{})
		k := &hands{do: func(ctx context.Context, k Task, r Report) (Outcome, error) {
			<-release // without a look at its context, and without a word
			return leaves(0, "report.md=x")(ctx, k, r)
		}}
		h.start(h.member("smith", ops.Worker, k))
		d := h.spawn(job)
		h.await("the run", "RUNNING", func() string { return h.run(d) })
		time.Sleep(3 * 30 * time.Second)
		if n := h.number(`SELECT count(*) FROM callback WHERE kind = 'heartbeat'`); n < 8 {
			t.Errorf("%d heartbeats in 90s, want one each 10s", n)
		}
		close(release)
		h.await("the run", "SUCCEEDED", func() string { return h.run(d) })
	})
}

// cancel has an operator cancel d.
func (h *house) cancel(d string) {
	h.t.Helper()
	if _, err := h.plane.CancelDelegation(h.t.Context(), boss, d, planeCancel); err != nil {
		h.t.Fatal(err)
	}
}
