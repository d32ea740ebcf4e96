package plane

import (
	"testing"
	"time"

	"inband/ops"
	"inband/service/plane/wire"
)

// What comes wakes one of those who wait. Somebody who gets nothing new would keep it from
// those behind.
func TestWhoIsDrainedKeepsNoWorkFromThoseBehind(t *testing.T) {
	for name, drained := range map[string]func(y *yard, h *hand, wait chan<- *tenure){
		"before it waits": func(y *yard, h *hand, wait chan<- *tenure) {
			y.drain(h)
			go func() { wait <- h.poll(30 * time.Second) }()
			y.pass(time.Second)
		},
		"while it waits": func(y *yard, h *hand, wait chan<- *tenure) {
			go func() { wait <- h.poll(30 * time.Second) }()
			y.pass(time.Second)
			y.drain(h)
			y.pass(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, nil, func(t *testing.T, y *yard) {
				idle, smith := y.hire("idle", ops.Worker), y.hire("smith", ops.Worker)
				lazy, judge := y.hire("lazy", ops.Verifier), y.hire("judge", ops.Verifier)
				nothing, work, verdict := make(chan *tenure, 2), make(chan *tenure, 1), make(chan *tenure, 1)
				drained(y, idle, nothing)
				drained(y, lazy, nothing)
				begun := time.Now()
				go func() { work <- smith.poll(20 * time.Second) }()
				go func() { verdict <- judge.poll(20 * time.Second) }()
				y.pass(time.Second)
				y.spawn(`{"task":"Count the files.","verify":{"command":["true"]}}`)
				g := <-work
				if g == nil || time.Since(begun) > 2*time.Second {
					t.Fatalf("the worker behind was granted %v after %s", g, time.Since(begun))
				}
				g.started()
				g.say(wire.KindResult, done)
				if v := <-verdict; v == nil || time.Since(begun) > 2*time.Second {
					t.Fatalf("the verifier behind was granted %v after %s", v, time.Since(begun))
				}
				if a, b := <-nothing, <-nothing; a != nil || b != nil {
					t.Errorf("those who are drained were granted %v and %v", a, b)
				}
			})
		})
	}
}

// drain drains a worker or verifier.
func (y *yard) drain(h *hand) {
	y.t.Helper()
	if _, err := y.plane.DrainWorker(y.t.Context(), ada, string(h.who.ID), true); err != nil {
		y.t.Fatal(err)
	}
}
