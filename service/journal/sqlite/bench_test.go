package sqlite_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inband/service/journal/sqlite"
)

const callers = 32

// load writes n durable events with their projections from 32 callers.
func load(b *testing.B, s *sqlite.Store, round string, n int) time.Duration {
	b.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	body := make([]byte, 200)
	began := time.Now()
	for range callers {
		group.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				if err := record(s, fmt.Sprint(round, "/", i), body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

func benchStore(b *testing.B, batch int) *sqlite.Store {
	c := config(filepath.Join(b.TempDir(), "journal.db"))
	c.MaxBatch = batch
	return open(b, c)
}

func BenchmarkUpdate(b *testing.B) {
	for name, batch := range map[string]int{"group": 0, "single": 1} {
		b.Run(name, func(b *testing.B) {
			s := benchStore(b, batch)
			b.ResetTimer()
			load(b, s, "b", b.N)
		})
	}
}

// BenchmarkBars prints the bar of group commit: how many times as many durable events
// with projections a second as one commit each, both on the same disk in the same
// run, in turns.
func BenchmarkBars(b *testing.B) {
	const rounds, grouped, single, bar = 5, 6000, 600, 5.0
	if b.N > 1 {
		return // one pass is the whole measurement
	}
	group, alone := benchStore(b, 0), benchStore(b, 1)
	var inGroup, byOne time.Duration
	for r := range rounds + 1 {
		g, a := load(b, group, fmt.Sprint(r), grouped), load(b, alone, fmt.Sprint(r), single)
		if r > 0 { // the first warms up
			inGroup, byOne = inGroup+g, byOne+a
		}
	}
	per := func(d time.Duration, n int) float64 { return float64(rounds*n) / d.Seconds() }
	ratio := per(inGroup, grouped) / per(byOne, single)
	verdict := "ok"
	if ratio < bar {
		verdict = "short"
	}
	b.ReportMetric(per(inGroup, grouped), "grouped/s")
	b.ReportMetric(per(byOne, single), "single/s")
	fmt.Printf("\nbar journal-group-commit %.1fx >=%gx %s\n", ratio, bar, verdict)
}
