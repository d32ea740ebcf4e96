package tests

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"inband/adaptors/webhook"
	"inband/tests/bridge/bridgetest"
)

// BenchmarkChatWake measures how long it takes from the moment that an operator orders
// dm.send until the envelope has come to the bridge, and compares that with one signed
// post on its way there. Both ends are processes with stores that are durable. It asserts
// nothing about time.
func BenchmarkChatWake(b *testing.B) {
	const warm, n = 20, 200
	c := newChat(b)
	secret, err := webhook.NewSecret([]byte(bridgetest.Secret))
	if err != nil {
		b.Fatal(err)
	}
	arrived := func(mark string) (at time.Time) {
		until(b, "the post has come to the bridge", func() bool {
			var all []struct {
				Mark string
				At   time.Time
			}
			c.bridge.Do(b, "seen", nil, &all)
			for _, s := range slices.Backward(all) {
				if s.Mark == mark {
					at = s.At
					return true
				}
			}
			return false
		})
		return at
	}
	var raw, woken []time.Duration
	for i := range warm + n {
		mark := fmt.Sprint("raw-", i)
		body, err := json.Marshal(map[string]any{"room": "C1", "mark": mark, "text": fmt.Sprintf("%01200d", i), "unfurl": false})
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		r, err := http.NewRequest(http.MethodPost, c.bridge.URL+"/post", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		secret.Sign(r.Header, rand.Text(), time.Now(), body)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			b.Fatalf("a raw post: %d", resp.StatusCode)
		}
		direct := arrived(mark).Sub(begin)

		var sent struct{ Result struct{ Post string } }
		begin = time.Now()
		if err := c.g.do(http.MethodPost, "/exec", map[string]any{"op": "dm.send", "params": map[string]string{"to": "ada", "text": "Look at the disks."}}, &sent); err != nil {
			b.Fatal(err)
		}
		took := arrived(sent.Result.Post).Sub(begin)
		if i >= warm {
			raw, woken = append(raw, direct), append(woken, took)
		}
	}
	slices.Sort(raw)
	slices.Sort(woken)
	at := func(d []time.Duration, p int) float64 { return ms(d[len(d)*p/100]) }
	fmt.Printf("a wake, ordered to envelope at the bridge: p50 %.2f ms, p99 %.2f ms; one raw post on its way there: p50 %.2f ms, p99 %.2f ms; ratio %.1f and %.1f; %d of each\n",
		at(woken, 50), at(woken, 99), at(raw, 50), at(raw, 99), at(woken, 50)/at(raw, 50), at(woken, 99)/at(raw, 99), n)
	b.ReportMetric(at(woken, 50), "p50-ms")
	b.ReportMetric(at(woken, 50)/at(raw, 50), "x-raw")
	for b.Loop() { // the figures above are the benchmark
		_ = woken
	}
}

// BenchmarkCrowd has one gateway keep 10,000 threads and fire 1,000 timers that are due in
// the same minute, all at its beginning, each into a thread of its own. It prints what
// memory that takes and how late the timers are: when the wake was raised, and when its
// envelope stood in the thread. It asserts nothing about time.
func BenchmarkCrowd(b *testing.B) {
	const many, timers, agents = 10_000, 1000, 40 // at most 32 timers an agent
	box, state := build(b, ""), filepath.Join(b.TempDir(), "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		b.Fatalf("init: %v\n%s", err, out)
	}
	g := serveAlive(b, box, state)
	tokens := make([]string, agents)
	for i := range tokens {
		tokens[i] = g.agent(b, fmt.Sprint("agent", i))
	}
	begun := residentMB(b, g.cmd.Process.Pid)

	atOnce(b, many, func(i int) error {
		return g.as(tokens[i%agents], http.MethodPost, "/v1/replies", map[string]string{"room": fmt.Sprint("room", i%100), "message": fmt.Sprint("m", i), "text": "A thread begins."}, nil)
	})
	crowded := residentMB(b, g.cmd.Process.Pid)

	due := time.Now().Add(40 * time.Second).Truncate(time.Minute)
	if time.Until(due) < 20*time.Second {
		due = due.Add(time.Minute)
	}
	atOnce(b, timers, func(i int) error {
		return g.do(http.MethodPost, "/exec", map[string]any{"op": "cron.create", "params": map[string]any{
			"name": fmt.Sprint("watch", i), "agent": fmt.Sprint("agent", i%agents), "prompt": "Look at the disks.", "zone": "UTC", "max_runs": 1,
			"schedule": due.UTC().Format("4 15 2 1 *"),
		}}, nil)
	})
	if time.Now().After(due) {
		b.Fatal("the timers were not made in time")
	}
	armed := residentMB(b, g.cmd.Process.Pid)

	type wake struct {
		Wake, Thread, Post string
		RaisedAt           time.Time `json:"raised_at"`
	}
	var wakes []wake
	time.Sleep(time.Until(due)) // nothing happens until then
	until(b, "all timers have fired", func() bool {
		wakes = wakes[:0]
		for after := ""; ; {
			var page struct {
				Wakes []wake
				Next  string
			}
			path := "/v1/wakes?limit=200"
			if after != "" {
				path += "&after=" + after
			}
			if err := g.get(path, &page); err != nil {
				b.Fatal(err)
			}
			wakes = append(wakes, page.Wakes...)
			if after = page.Next; after == "" {
				return len(wakes) >= timers
			}
		}
	})
	raised, posted := make([]time.Duration, timers), make([]time.Duration, timers)
	for i, w := range wakes[:timers] {
		raised[i] = w.RaisedAt.Sub(due)
		until(b, "an envelope stands in its thread", func() bool {
			posts, err := g.posts(w.Thread)
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range posts {
				if p.ID == w.Post {
					at, err := time.Parse(time.RFC3339Nano, p.At)
					if err != nil {
						b.Fatal(err)
					}
					posted[i] = at.Sub(due)
					return true
				}
			}
			return false
		})
	}
	fired := residentMB(b, g.cmd.Process.Pid)
	mean := func(d []time.Duration) (mean, most float64) {
		sum := time.Duration(0)
		for _, late := range d {
			sum += late
		}
		return ms(sum / time.Duration(len(d))), ms(slices.Max(d))
	}
	raisedMean, raisedMost := mean(raised)
	postedMean, postedMost := mean(posted)
	fmt.Printf("resident memory, MB: started %.1f, with %d threads %.1f, with %d timers %.1f, when they have fired %.1f\n", begun, many, crowded, timers, armed, fired)
	fmt.Printf("%d timers due at one moment: wakes raised mean %.0f ms late, at most %.0f ms; envelopes in their threads mean %.0f ms, at most %.0f ms\n",
		timers, raisedMean, raisedMost, postedMean, postedMost)
	b.ReportMetric(fired, "MB")
	b.ReportMetric(postedMost, "ms-late")
	for b.Loop() { // the figures above are the benchmark
		_ = wakes
	}
}

// atOnce does f for each of n, 32 at one time.
func atOnce(b *testing.B, n int, f func(i int) error) {
	b.Helper()
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	next := make(chan int)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		b.Fatal(err)
	}
}
