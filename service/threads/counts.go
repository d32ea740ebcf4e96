package threads

import (
	"cmp"
	"slices"
	"sync"
)

// Count is how often something has happened since the gateway started.
type Count struct {
	What  string // in the words of docs/operations.md, "Metrics"
	Label string // which kind of it, "" where there is one kind
	N     int64
}

// counts holds the counts of a Threads. Labels come from closed sets, so it stays small.
type counts struct {
	mu sync.Mutex
	n  map[[2]string]int64
}

func (c *counts) add(what, label string, n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[[2]string]int64)
	}
	c.n[[2]string{what, label}] += int64(n)
}

// Counts returns what has been counted, in order of its words.
func (t *Threads) Counts() []Count {
	t.counts.mu.Lock()
	defer t.counts.mu.Unlock()
	list := make([]Count, 0, len(t.counts.n))
	for k, n := range t.counts.n {
		list = append(list, Count{k[0], k[1], n})
	}
	slices.SortFunc(list, func(a, b Count) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Label, b.Label)) })
	return list
}
