package sqlite_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/journal/storetest"
)

func TestStore(t *testing.T) {
	for name, batch := range map[string]int{"groups": 0, "one by one": 1} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			storetest.Run(t, func(t *testing.T, clock *storetest.Clock) journal.Store {
				s, err := sqlite.Open(t.Context(), sqlite.Config{
					Path: filepath.Join(t.TempDir(), "journal.db"), Schemas: []journal.Schema{storetest.Schema()},
					Clock: clock.Now, MaxBatch: batch,
				})
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
}
