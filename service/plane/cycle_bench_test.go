package plane

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
	"inband/tests/riverpeer"
)

// BenchmarkCycle has 32 callers order work, take it, begin it, keep it alive and return it,
// and the same number of jobs go through River on SQLite, on the same disk, in turns. It
// reports the cycles of both in a second, and their ratio.
func BenchmarkCycle(b *testing.B) {
	const callers = 32
	y := newYard(b, nil)
	defer y.close()
	y.start()
	var hands []*hand
	for i := range callers {
		hands = append(hands, y.hire(ops.IdentityID(fmt.Sprint("w", i)), ops.Worker))
	}
	peer, err := riverpeer.Open(b.Context(), b.TempDir(), callers)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := peer.Close(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	payload := json.RawMessage(`{"task":"Count the files.","retries":{"task_failed":0}}`)
	ours := func(h *hand) {
		if err := y.store.Update(b.Context(), func(tx journal.Tx) error {
			_, err := y.plane.spawn(tx, ops.Call{ID: ops.NewCallID(), By: ada, Params: payload})
			return err
		}); err != nil {
			b.Error(err)
			return
		}
		g, err := h.tryPoll(10 * time.Second)
		if err != nil || g == nil {
			b.Errorf("granted %v, %v", g, err)
			return
		}
		for _, m := range []struct {
			kind wire.Kind
			body any
		}{{wire.KindStarted, wire.Started{}}, {wire.KindHeartbeat, alive(1)}, {wire.KindResult, done}} {
			if _, err := g.try(m.kind, m.body); err != nil {
				b.Error(err)
				return
			}
		}
	}
	round := func(n int, cycle func(caller int)) time.Duration {
		var left atomic.Int64
		left.Store(int64(n))
		start := time.Now()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for left.Add(-1) >= 0 {
					cycle(i)
				}
			})
		}
		all.Wait()
		return time.Since(start)
	}
	var mine, its time.Duration
	n := 0
	for b.Loop() {
		const cycles = 320
		n += cycles
		mine += round(cycles, func(i int) { ours(hands[i]) })
		its += round(cycles, func(int) {
			if _, err := peer.Cycle(b.Context(), string(payload)); err != nil {
				b.Error(err)
			}
		})
	}
	b.ReportMetric(float64(n)/mine.Seconds(), "cycles/s")
	b.ReportMetric(float64(n)/its.Seconds(), "river/s")
	b.ReportMetric(its.Seconds()/mine.Seconds(), "ratio")
}
