package plane

import (
	"context"
	"slices"
	"testing"

	"inband/service/journal"
	"inband/service/plane/wire"
)

// marking is a store that says which Updates came as urgent.
type marking struct {
	journal.Store
	urgent []bool
}

func (m *marking) Update(ctx context.Context, f func(journal.Tx) error) error {
	m.urgent = append(m.urgent, journal.IsUrgent(ctx))
	return m.Store.Update(ctx, f)
}

// Case pb-049: heartbeats, cancels and what proves an end go before others into the store,
// and nothing else does.
func TestWhatPressesGoesFirst(t *testing.T) {
	var m *marking
	inYard(t, func(c *Config) {
		m = &marking{Store: c.Store}
		c.Store = m
	}, func(t *testing.T, y *yard) {
		smith := y.hire("smith", "worker")
		d := y.spawn("")
		g := smith.must(0)
		for _, step := range []struct {
			name string
			want bool
			do   func()
		}{
			{"started", false, func() { g.started() }},
			{"heartbeat", true, func() { g.beat(1) }},
			{"checkpoint", false, func() { g.say(wire.KindCheckpoint, wire.Checkpoint{Files: []wire.File{}}) }},
			{"cancel", true, func() {
				if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{}); err != nil {
					t.Fatal(err)
				}
			}},
			{"cancel_ack", true, func() { g.say(wire.KindCancelAck, wire.CancelAck{}) }},
			{"cancel_proof", true, func() { g.say(wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{}, Checks: 2}) }},
		} {
			m.urgent = nil
			step.do()
			if len(m.urgent) == 0 || slices.Contains(m.urgent, !step.want) {
				t.Errorf("%s: its writes were urgent: %v, want %t", step.name, m.urgent, step.want)
			}
		}
	})
}
