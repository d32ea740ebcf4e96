package timers

import (
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/threads"
)

// BenchmarkDue fires a thousand timers that are due at once, each into a thread of its
// own with an envelope, and prints how long the last one had to wait and what the heap
// has grown by.
func BenchmarkDue(b *testing.B) {
	const n = 1000
	for b.Loop() {
		b.StopTimer()
		store, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "journal.db"),
			Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), Schema()}})
		if err != nil {
			b.Fatal(err)
		}
		log, live, policy := slog.New(slog.DiscardHandler), ops.NewLive(nil), access.NewLivePolicy(access.DefaultPolicy())
		door, err := service.New(service.Config{Store: store, Registry: live, Policy: policy, Log: log})
		if err != nil {
			b.Fatal(err)
		}
		rooms, err := threads.New(threads.Config{Store: store, Door: door, Registry: live, Log: log})
		if err != nil {
			b.Fatal(err)
		}
		t, err := New(Config{Store: store, Wakes: rooms, Registry: live, Policy: policy, Log: log})
		if err != nil {
			b.Fatal(err)
		}
		registry, err := ops.New(append(t.Ops(), rooms.DMSend())...)
		if err != nil {
			b.Fatal(err)
		}
		live.Swap(registry)
		if _, err := access.NewDirectory(store).Add(b.Context(), scout); err != nil {
			b.Fatal(err)
		}
		if err := store.Update(b.Context(), func(tx journal.Tx) error {
			tm := timer{id: newTimerID(), name: "watch", schedule: "@yearly", zone: "UTC", agent: scout.ID, prompt: "Look at the disks.", trusted: true, overlap: "skip", missed: "once",
				deadline: time.Hour, by: ada, source: "api", created: tx.Now(), due: tx.Now(), next: tx.Now()}
			if err := tm.insert(tx); err != nil {
				return err
			}
			return copies(tx, tm.id, n-1)
		}); err != nil {
			b.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		passes := 0
		for t.Lateness().Count < n {
			if _, err := t.pass(false); err != nil {
				b.Fatal(err)
			}
			passes++
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(passes), "transactions")
		b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/1024, "KiB/heap")
		b.ReportMetric(t.Lateness().Sum/n*1000, "ms/late")
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
