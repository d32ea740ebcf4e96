package plane

import (
	"time"

	"inband/ops"
)

// Step says what event does to a run and its delegation: the snapshot afterwards and
// what else must be done with it, in the same transaction. It is pure; times are the
// store's. A fault means that the event is refused: the snapshot is returned as it was,
// and what remains of the event is Keep, if anything.
func Step(s Snapshot, e Event, now time.Time) (Snapshot, []Effect, *ops.Fault) {
	return s, nil, ops.Faultf(ops.Internal, "no transition for %s", e.Kind)
}
