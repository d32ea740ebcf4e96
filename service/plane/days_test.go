package plane

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service/plane/wire"
)

// Days of heartbeats (plane.md, How it is proved, 2): a run that takes days keeps its lease
// over a network that loses messages and answers, never two in a row, and over restarts
// of the gateway; one whose worker falls silent at the end of them is lost within a lease.
// INBAND_DAYS is how many days, at most six, one without it.
func TestDaysOfHeartbeats(t *testing.T) {
	length := 24 * time.Hour
	if n, err := strconv.Atoi(os.Getenv("INBAND_DAYS")); err == nil {
		length *= time.Duration(n)
	} else if testing.Short() {
		length /= 12
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		dice := rand.New(rand.NewPCG(seed, 0))
		y := newYard(t, nil)
		defer func() { y.close() }()
		y.start()
		smith := y.hire("smith", ops.Worker)
		d := y.spawn(`{"task":"x","deadline":"167h","retries":{"worker_lost":0}}`)
		g := smith.must(0)
		g.started()
		began, restarts, lost, unheard := time.Now(), 0, 0, 0
		inRow := 0
		for n := int64(1); time.Since(began) < length; n++ {
			y.pass(y.plane.Heartbeat)
			if restarts < int(time.Since(began)/(2*time.Hour)) {
				restarts++
				y.reopen()
				time.Sleep(time.Duration(dice.IntN(40)) * time.Second)
				y.start()
			}
			fate := dice.IntN(20)
			switch {
			case fate < 2 && inRow == 0: // it does not arrive
				inRow++
				lost++
				continue
			case fate < 4 && inRow == 0: // it arrives, its answer does not, and it is sent again
				unheard++
				envelope, digest := g.seal(wire.KindHeartbeat, alive(n))
				for again := range 2 {
					ack, err := y.plane.Callback(t.Context(), smith.who, envelope)
					if err != nil || ack.Replayed != (again == 1) {
						t.Fatalf("heartbeat %d, sent for the %d. time: %+v, %v", n, again+1, ack, err)
					}
				}
				g.seq, g.prev = g.seq+1, digest
			default:
				g.beat(n)
			}
			inRow = 0
		}
		y.wants(d, Running, Open)
		if r := y.run(d); r.attempt != 1 || r.fence != g.Fence {
			t.Errorf("attempt %d under fence %d, want the first under %d", r.attempt, r.fence, g.Fence)
		}
		for _, kind := range []string{"run.lease_expired", "run.stalled", "run.recovery_started"} {
			if n := y.events(kind, d); n != 0 {
				t.Errorf("%d events %s", n, kind)
			}
		}
		t.Logf("%s: %d messages, %d lost, %d answers lost, %d restarts", length, g.seq, lost, unheard, restarts)
		y.pass(y.plane.TTL + time.Second)
		y.wants(d, Unknown, Open)
	})
}
