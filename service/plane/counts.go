package plane

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"inband/service/journal"
)

// Count is how often something has happened since the gateway started.
type Count struct {
	What  string // in the words of docs/operations.md, "Metrics"
	Label string // which kind of it, "" where there is one kind
	N     int64
}

// counts holds the counts of a Plane. Labels come from closed sets, so it stays small.
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

// Counts returns what has been counted, in order of its words: grants, polls by what they
// came to, callbacks by kind, callbacks that were refused by code (auth_rejected beside
// them), transitions by event, clock jumps.
func (p *Plane) Counts() []Count {
	p.counts.mu.Lock()
	defer p.counts.mu.Unlock()
	list := make([]Count, 0, len(p.counts.n))
	for k, n := range p.counts.n {
		list = append(list, Count{k[0], k[1], n})
	}
	slices.SortFunc(list, func(a, b Count) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Label, b.Label)) })
	return list
}

// Gauges is how the plane stands now, by its rows.
type Gauges struct {
	State         string        // on, off, drain
	OldestRunning time.Duration // age of the oldest run that has begun and is known to have a lease; 0: none
	LiveLeases    int64         // runs that a worker has a lease on
	Waiting       int64         // dispatches that wait for a worker
	NoAbleWorker  int64         // of those, the ones that no worker who is enrolled can serve
	Unknown       int64         // runs of which nobody knows whether they run
	WaitingHuman  int64
	Verifications int64         // that wait for a verifier
	Skew          time.Duration // the largest difference of a worker's clock to the store's, as last seen
}

// Gauges reads how the plane stands.
func (p *Plane) Gauges(ctx context.Context) (g Gauges, err error) {
	err = p.store.View(ctx, func(tx journal.Tx) error {
		g = Gauges{}
		now := tx.Now().UnixMilli()
		var oldest *int64
		var skew int64
		if err := tx.Query(`SELECT (SELECT state FROM plane WHERE id = 1),
				(SELECT min(started_at) FROM dispatch WHERE state IN ('RUNNING', 'CHECKPOINTED')),
				(SELECT count(*) FROM dispatch WHERE state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED')),
				(SELECT count(*) FROM dispatch WHERE state = 'DISPATCHED'),
				(SELECT count(*) FROM dispatch WHERE state = 'UNKNOWN'),
				(SELECT count(*) FROM dispatch WHERE state = 'WAITING_HUMAN'),
				(SELECT count(*) FROM verification WHERE state = 'WAITING'),
				(SELECT COALESCE(max(abs(skew_ms)), 0) FROM principal WHERE revoked_at IS NULL)`,
			func(scan func(...any) error) error {
				return scan(&g.State, &oldest, &g.LiveLeases, &g.Waiting, &g.Unknown, &g.WaitingHuman, &g.Verifications, &skew)
			}); err != nil {
			return err
		}
		if oldest != nil {
			g.OldestRunning = time.Duration(now-*oldest) * time.Millisecond
		}
		g.Skew = time.Duration(skew) * time.Millisecond
		g.NoAbleWorker, err = unserved(tx)
		return err
	})
	return g, err
}

// unserved counts the dispatches that wait and that no worker who is enrolled can serve.
func unserved(tx journal.Tx) (n int64, err error) {
	var able []skills
	if err := tx.Query(`SELECT implementations, capabilities FROM principal WHERE role = 'worker' AND revoked_at IS NULL AND draining = 0`,
		func(scan func(...any) error) error {
			var s skills
			err := s.scan(scan)
			able = append(able, s)
			return err
		}); err != nil {
		return 0, err
	}
	err = tx.Query(`SELECT x.implementation, d.capabilities, count(*) FROM dispatch x JOIN delegation d ON d.id = x.delegation
			WHERE x.state = 'DISPATCHED' GROUP BY x.implementation, d.capabilities`,
		func(scan func(...any) error) error {
			var implementation, capabilities string
			var waiting int64
			if err := scan(&implementation, &capabilities, &waiting); err != nil {
				return err
			}
			want, err := listed(capabilities)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(able, func(s skills) bool { return s.serve(implementation, want) }) {
				n += waiting
			}
			return nil
		})
	return n, err
}
