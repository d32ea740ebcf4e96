package plane

import (
	"slices"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/journal"
)

func (s *said) Begun(_ journal.Tx, _ ops.Call, delegation string) error {
	s.begun = append(s.begun, delegation)
	return nil
}

// What is accepted is told once; what is offered and would not be granted says what it
// waits for.
func TestWhatAnOfferWaitsFor(t *testing.T) {
	c := newCourt(t)
	d := c.spawn(`{"task":"x"}`)
	if !slices.Equal(c.told.begun, []string{d}) {
		t.Errorf("told %q of what has begun, want %s", c.told.begun, d)
	}
	waits := func(want string) {
		t.Helper()
		if s, err := c.plane.Delegation(t.Context(), boss, d); err != nil || !strings.HasPrefix(s.Waits, want) {
			t.Errorf("%v: waits for %q, want %q", err, s.Waits, want)
		}
	}
	c.by(d, asker)
	waits("a worker for default")
	c.must(func(tx journal.Tx) error { return c.door.Hold(tx, boss, "*") })
	waits("a START")
	if _, err := c.plane.Switch(t.Context(), boss, Drain); err != nil {
		t.Fatal(err)
	}
	waits("box plane on: dispatch is drain")
	if _, err := c.plane.Switch(t.Context(), boss, On); err != nil {
		t.Fatal(err)
	}
	c.by(d, boss) // whose work nobody holds
	waits("a worker for default")
	c.by(d, asker)
	waits("a START")
	c.must(func(tx journal.Tx) error { return c.door.Release(tx, boss, "*") })
	waits("a worker for default")
	c.step(d, Event{Kind: OnLeaseGranted})
	c.must(func(tx journal.Tx) error { return c.door.Hold(tx, boss, "*") })
	waits("worker ") // what has begun goes on
}
