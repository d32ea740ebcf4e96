package sqlite

import (
	"sync"
	"time"
)

// clock is the wall clock, held at the latest time it has told. Every commit stores
// that time, and the next boot begins there. A View's reading that no commit follows
// is the one thing a crash forgets.
type clock struct {
	wall func() time.Time

	mu   sync.Mutex
	last int64 // milliseconds since 1970
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, c.wall().UnixMilli())
	return time.UnixMilli(c.last).UTC()
}

// highWater is the latest time told.
func (c *clock) highWater() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}
