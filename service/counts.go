package service

import (
	"cmp"
	"slices"
	"sync"

	"inband/ops"
)

// Count is how often something has happened since the gateway started.
type Count struct {
	What  string // "refused", "parked" or "replayed"
	Label string // of "refused" and "parked" the first word of the rule, as in Ticket.Rule
	N     int64
}

// counts holds the counts of a door. Labels come from the table of rules and a few words
// more, so it stays small.
type counts struct {
	mu sync.Mutex
	n  map[[2]string]int64
}

func (c *counts) add(what, label string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[[2]string]int64)
	}
	c.n[[2]string{what, label}]++
}

// ticket counts what became of an order that has been committed.
func (c *counts) ticket(t Ticket) {
	switch {
	case t.Replayed:
		c.add("replayed", "")
	case t.State == ops.Refused:
		c.add("refused", label(t.Rule))
	case t.State == ops.Parked:
		c.add("parked", label(t.Rule))
	}
}

// Counts returns what has been counted, in order of its words.
func (d *Door) Counts() []Count {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	list := make([]Count, 0, len(d.counts.n))
	for k, n := range d.counts.n {
		list = append(list, Count{k[0], k[1], n})
	}
	slices.SortFunc(list, func(a, b Count) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Label, b.Label)) })
	return list
}
