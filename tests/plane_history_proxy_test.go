package tests

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// badWay is what lies between clients and a gateway: it loses requests and answers, sends
// requests twice, holds them back so that later ones overtake them, and delivers copies
// long after they were answered, by seeded dice.
type badWay struct {
	to   atomic.Pointer[gateway]
	calm atomic.Bool // nothing is lost any more
	late sync.WaitGroup

	mu     sync.Mutex
	random *rand.Rand
	held   int // copies that are still under way
	counts map[string]int
}

// maxHeld bounds the copies that are under way at a time.
const maxHeld = 32

func newBadWay(seed uint64) *badWay {
	return &badWay{random: rand.New(rand.NewPCG(seed, 2)), counts: map[string]int{}}
}

// roll returns what happens to the next request, and for how long it is held back.
func (w *badWay) roll() (fate string, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts["requests"]++
	if w.calm.Load() {
		return "", 0
	}
	wait = time.Duration(w.random.IntN(400)) * time.Millisecond
	switch n := w.random.IntN(100); {
	case n < 6:
		fate = "request dropped"
	case n < 14:
		fate = "answer dropped"
	case n < 20:
		fate = "request repeated"
	case n < 28:
		fate = "request delayed"
	case n < 34:
		fate = "copy delivered late"
		if w.held == maxHeld {
			fate = "request repeated"
		} else {
			w.held++
		}
	default:
		return "", 0
	}
	w.counts[fate]++
	return fate, wait
}

// ServeHTTP passes a request on, or does what the dice say.
func (w *badWay) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fate, wait := w.roll()
	switch fate {
	case "request dropped":
		panic(http.ErrAbortHandler)
	case "request delayed":
		pause(r.Context(), wait)
	case "copy delivered late":
		w.late.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			pause(ctx, 4*wait)
			_, _, _, _ = w.pass(ctx, r, body)
			w.mu.Lock()
			w.held--
			w.mu.Unlock()
		})
	case "request repeated":
		_, _, _, _ = w.pass(r.Context(), r, body)
	}
	status, kind, answer, err := w.pass(r.Context(), r, body)
	if err != nil || fate == "answer dropped" {
		panic(http.ErrAbortHandler) // to the client: a connection that ends without an answer
	}
	rw.Header().Set("Content-Type", kind)
	rw.WriteHeader(status)
	_, _ = rw.Write(answer)
}

// pass sends a request to the gateway that there is now.
func (w *badWay) pass(ctx context.Context, r *http.Request, body []byte) (status int, kind string, answer []byte, err error) {
	g := w.to.Load()
	req, err := http.NewRequestWithContext(ctx, r.Method, g.url+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return 0, "", nil, err
	}
	for _, name := range []string{"Authorization", "Content-Type", "Prefer"} {
		if v := r.Header.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	res, err := g.client.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, 4<<20))
	return res.StatusCode, res.Header.Get("Content-Type"), answer, err
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
