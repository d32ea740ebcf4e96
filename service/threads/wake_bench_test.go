package threads

import (
	"fmt"
	"path/filepath"
	"testing"

	"inband/ops"
	"inband/service/journal"
)

// BenchmarkRaise is a wake of an agent with 771 ops about, a hundred in a transaction.
func BenchmarkRaise(b *testing.B) {
	bound := make([]ops.Bound, 771)
	for i := range bound {
		bound[i] = echo(ops.OpName(fmt.Sprintf("t.op%d", i)), "x")
	}
	h := openHouse(b, filepath.Join(b.TempDir(), "journal.db"), bound...)
	defer h.store.Close()
	h.people()
	for i := 0; b.Loop(); i++ {
		h.update(func(tx journal.Tx) error {
			for range 100 {
				if _, err := h.threads.Raise(tx, errand(scout, "")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/100, "µs/wake")
}
