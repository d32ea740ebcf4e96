package riverpeer

import (
	"context"
	"sync"
	"testing"
	"time"
)

// The peer works what it is given, from many callers at once.
func TestCycle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	q, err := Open(ctx, t.TempDir(), 8)
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 10 {
				if start, err := q.Cycle(ctx, "payload"); err != nil || start <= 0 {
					t.Errorf("a cycle began after %s and ended with %v", start, err)
				}
			}
		})
	}
	callers.Wait()
	if err := q.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
