package notary_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
)

// BenchmarkCost measures what the notary costs an event: the journal's throughput
// without it and with it, from 32 callers, both on the same disk in turns. With it
// counts until the last event is signed.
func BenchmarkCost(b *testing.B) {
	const rounds, events, callers = 5, 6000, 32
	if b.N > 1 {
		return // one pass is the whole measurement
	}
	load := func(s *sqlite.Store, n *notary.Notary) time.Duration {
		began := time.Now()
		var group sync.WaitGroup
		for c := range callers {
			group.Go(func() {
				for range events / callers {
					if err := s.Update(context.Background(), func(tx journal.Tx) error {
						return tx.Append(fmt.Sprint("call/", c), journal.Any, "call.received", make([]byte, 300))
					}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		group.Wait()
		if n != nil {
			checkpoint(b, n)
		}
		return time.Since(began)
	}
	plainDir, signedDir := b.TempDir(), b.TempDir()
	plain, signed := openStore(b, plainDir), openStore(b, signedDir)
	n, err := notary.Open(b.Context(), notary.Config{Store: signed, Folder: filepath.Join(signedDir, "audit"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close(context.Background())
	var without, with time.Duration
	for r := range rounds + 1 {
		p, s := load(plain, nil), load(signed, n)
		if r > 0 { // the first warms up
			without, with = without+p, with+s
		}
	}
	b.ReportMetric(without.Seconds()/with.Seconds(), "x-throughput")
	b.ReportMetric((with-without).Seconds()*1e6/(rounds*events), "µs/event")
	b.ReportMetric(0, "ns/op")
}
