package timers

import (
	"slices"
	"sync"
	"time"

	"inband/service/threads"
)

// Histogram is how often something was at most as large as each of some bounds, in the
// form that Prometheus has for it.
type Histogram struct {
	Bounds []float64 // upper bounds, seconds
	Counts []int64   // cumulative, one for each bound
	Count  int64     // of all, those above the last bound too
	Sum    float64   // seconds
}

// lateBounds are the bounds of lateness, seconds.
var lateBounds = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, 3600}

// tally is what one transaction has done, for the counts once it has committed.
type tally struct {
	outcomes map[string]int64
	late     []time.Duration
}

func (t *tally) add(outcome string, n int64) {
	if t.outcomes == nil {
		t.outcomes = make(map[string]int64)
	}
	t.outcomes[outcome] += n
}

// counts is what has happened since the start.
type counts struct {
	mu       sync.Mutex
	outcomes map[string]int64
	late     Histogram
}

func (c *counts) add(t tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outcomes == nil {
		c.outcomes = make(map[string]int64)
		c.late = Histogram{Bounds: lateBounds, Counts: make([]int64, len(lateBounds))}
	}
	for outcome, n := range t.outcomes {
		c.outcomes[outcome] += n
	}
	for _, d := range t.late {
		s := max(0, d.Seconds())
		for i, b := range lateBounds {
			if s <= b {
				c.late.Counts[i]++
			}
		}
		c.late.Count++
		c.late.Sum += s
	}
}

// Counts returns how many occurrences have come to what since the start. One that has
// waited in a queue is counted as queued and again as what it came to.
func (t *Timers) Counts() []threads.Count {
	t.counts.mu.Lock()
	defer t.counts.mu.Unlock()
	var list []threads.Count
	for _, outcome := range []string{missed, queued, refused, skipped, woken} {
		list = append(list, threads.Count{What: "occurrences", Label: outcome, N: t.counts.outcomes[outcome]})
	}
	return list
}

// Lateness returns how much later than they were due, jitter included, occurrences have
// woken agents since the start. Those that waited in a queue or were asked for are not
// among them.
func (t *Timers) Lateness() Histogram {
	t.counts.mu.Lock()
	defer t.counts.mu.Unlock()
	h := t.counts.late
	if h.Counts == nil {
		h.Counts = make([]int64, len(lateBounds))
	}
	h.Bounds, h.Counts = slices.Clone(lateBounds), slices.Clone(h.Counts)
	return h
}
