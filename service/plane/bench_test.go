package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
	"inband/tests/riverpeer"
)

// The benchmarks measure once and print; they assert nothing about time. Whatever is
// compared takes turns, so that both meet the machine as it is.

// callers is how many order work, and how many workers take it, at a time.
const callers = 32

// order is what they order.
const order = `{"task":"Count the files."}`

// bench is a started plane with workers, each with somebody who orders work beside it.
type bench struct {
	*yard
	workers   []*hand
	verifiers []*hand
}

// newBench returns one with a number of workers. batch is how many transactions the store
// commits together, 0 for its own number.
func newBench(b *testing.B, workers, batch int, config func(*Config)) *bench {
	b.Helper()
	x := &bench{yard: &yard{t: b, path: filepath.Join(b.TempDir(), "journal.db"), config: config, schema: Schema(), batch: batch}}
	x.begin()
	x.start()
	b.Cleanup(x.close)
	for i := range workers {
		x.workers = append(x.workers, x.hire(ops.IdentityID(fmt.Sprint("w", i)), ops.Worker))
	}
	return x
}

// dispatch orders work through the plane's own spawn, in one transaction.
func (x *bench) dispatch(ctx context.Context) error {
	return x.store.Update(ctx, func(tx journal.Tx) error {
		_, err := x.plane.spawn(tx, ops.Call{ID: ops.NewCallID(), By: ada, Params: json.RawMessage(order)})
		return err
	})
}

// submit orders work through the door, which records and executes the call.
func (x *bench) submit(ctx context.Context) error {
	_, err := x.door.Submit(ctx, ops.Call{Op: "swarm.spawn", By: ada, Params: json.RawMessage(order), From: ops.Origin{Source: "api"}})
	return err
}

// work takes what waits, begins it, keeps it alive once and returns it. Each of them is
// durable before the next.
func (x *bench) work(worker int) error {
	g, err := x.take(worker)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		kind wire.Kind
		body any
	}{{wire.KindStarted, wire.Started{}}, {wire.KindHeartbeat, alive(1)}, {wire.KindResult, done}} {
		if _, err := g.try(m.kind, m.body); err != nil {
			return fmt.Errorf("%s: %w", m.kind, err)
		}
	}
	return nil
}

// take polls until a worker is granted something.
func (x *bench) take(worker int) (*tenure, error) { return takes(x.workers[worker]) }

func takes(h *hand) (*tenure, error) {
	g, err := h.tryPoll(30 * time.Second)
	if err == nil && g == nil {
		err = errors.New("nothing was granted")
	}
	return g, err
}

// verify takes a result that waits for it, and passes it.
func (x *bench) verify(verifier int) error {
	g, err := takes(x.verifiers[verifier])
	if err != nil {
		return err
	}
	for _, m := range []struct {
		kind wire.Kind
		body any
	}{{wire.KindStarted, wire.Started{}}, {wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}}}} {
		if _, err := g.try(m.kind, m.body); err != nil {
			return fmt.Errorf("%s by a verifier: %w", m.kind, err)
		}
	}
	return nil
}

// cycle orders work and has it done.
func (x *bench) cycle(ctx context.Context, caller int) error {
	return errors.Join(x.dispatch(ctx), x.work(caller))
}

// together has all callers do n cycles, and returns how long that takes.
func together(b *testing.B, n int, cycle func(caller int) error) time.Duration {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	start := time.Now()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for left.Add(-1) >= 0 && !b.Failed() {
				if err := cycle(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return time.Since(start)
}

// river is the peer in a folder. It looks for jobs every millisecond while it is open, so
// it is only while it is measured.
type river struct {
	b      *testing.B
	folder string
}

// open lets f use the peer, warm. cycle returns how long the job waited until it began.
func (r river) open(f func(cycle func() (start time.Duration, err error))) {
	r.b.Helper()
	peer, err := riverpeer.Open(r.b.Context(), r.folder, callers)
	if err != nil {
		r.b.Fatal(err)
	}
	defer func() {
		if err := peer.Close(context.Background()); err != nil {
			r.b.Error(err)
		}
	}()
	cycle := func() (time.Duration, error) { return peer.Cycle(r.b.Context(), order) }
	together(r.b, callers, func(int) error { _, err := cycle(); return err })
	f(cycle)
}

// rounds that are measured, of cycles each, after one that warms up.
const benchRounds, benchCycles = 5, 4 * callers

// BenchmarkBars has callers order work and workers do it, and the same number of jobs go
// through River on SQLite, on the same disk. It prints the bar of the design, and what a
// cycle costs that comes by the door or is verified.
func BenchmarkBars(b *testing.B) {
	if b.N > 1 {
		return
	}
	x, peer := newBench(b, callers, 0, nil), river{b, b.TempDir()}
	ours := func(i int) error { return x.cycle(b.Context(), i) }
	together(b, callers, ours)
	var mine, peers time.Duration
	for range benchRounds {
		mine += together(b, benchCycles, ours)
		peer.open(func(cycle func() (time.Duration, error)) {
			peers += together(b, benchCycles, func(int) error { _, err := cycle(); return err })
		})
	}
	rate := func(d time.Duration, rounds int) float64 { return float64(rounds*benchCycles) / d.Seconds() }
	ratio := peers.Seconds() / mine.Seconds()
	verdict := "ok"
	if ratio < 2 {
		verdict = "short"
	}
	fmt.Printf("bar plane-cycles-vs-river %.2fx >=2x %s\n", ratio, verdict)

	byDoor := together(b, benchCycles, func(i int) error { return errors.Join(x.submit(b.Context()), x.work(i)) })

	judged := newBench(b, callers, 0, nil)
	for i := range callers {
		judged.verifiers = append(judged.verifiers, judged.hire(ops.IdentityID(fmt.Sprint("v", i)), ops.Verifier))
	}
	verified := together(b, benchCycles, func(i int) error { return errors.Join(judged.submit(b.Context()), judged.work(i), judged.verify(i)) })
	fmt.Printf("cycles a second, %d callers and workers: %.0f, River %.0f; ordered through the door %.0f; and verified and settled %.0f\n",
		callers, rate(mine, benchRounds), rate(peers, benchRounds), rate(byDoor, 1), rate(verified, 1))
	b.ReportMetric(ratio, "x-river")
}

// BenchmarkStart measures from the order to the acknowledged start of the work, by a worker
// that waits in a long poll, and from River's insert to the start of its work.
func BenchmarkStart(b *testing.B) {
	if b.N > 1 {
		return
	}
	const turns, each = 5, 20
	x, peer := newBench(b, callers, 0, nil), river{b, b.TempDir()}
	began := make(chan time.Time)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, h := range x.workers {
		all.Go(func() {
			for ctx.Err() == nil {
				g, err := h.pollUntil(ctx)
				if err != nil || g == nil {
					if ctx.Err() == nil {
						b.Errorf("granted %v, %v", g, err)
						cancel()
					}
					return
				}
				if _, err := g.try(wire.KindStarted, wire.Started{}); err != nil {
					b.Error(err)
					cancel()
				}
				select {
				case began <- time.Now():
				case <-ctx.Done():
					return
				}
				if _, err := g.try(wire.KindResult, done); err != nil {
					b.Error(err)
					cancel()
				}
				select {
				case ended <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	one := func() time.Duration {
		start := time.Now()
		if err := x.dispatch(b.Context()); err != nil {
			b.Fatal(err)
		}
		var at time.Time
		select {
		case at = <-began:
		case <-ctx.Done():
			b.Fatal("the work was not begun")
		}
		select {
		case <-ended:
		case <-ctx.Done():
			b.Fatal("the work was not ended")
		}
		return at.Sub(start)
	}
	for range each { // warm
		one()
	}
	var mine, its []time.Duration
	for range turns {
		for range each {
			mine = append(mine, one())
		}
		peer.open(func(cycle func() (time.Duration, error)) {
			for range each {
				start, err := cycle()
				if err != nil {
					b.Fatal(err)
				}
				its = append(its, start)
			}
		})
	}
	fmt.Printf("order to acknowledged start: p50 %s, p99 %s; River's insert to start: p50 %s, p99 %s; ratio of p50 %.2f, of p99 %.2f; %d of each\n",
		quantile(mine, 50), quantile(mine, 99), quantile(its, 50), quantile(its, 99),
		over(mine, its, 50), over(mine, its, 99), turns*each)
	b.ReportMetric(over(mine, its, 50), "x-river")
}

// pollUntil waits for work as long as a poll can, or until ctx ends.
func (h *hand) pollUntil(ctx context.Context) (*tenure, error) {
	h.polls++
	envelope, err := h.y.plane.Poll(ctx, h.who, wire.Poll{Boot: h.boot, Nonce: fmt.Sprint("n", h.polls), WaitMS: MaxWait.Milliseconds()})
	return h.granted(envelope, err)
}

// BenchmarkHeartbeat measures heartbeats while 1,000 leases live and 10,000 dispatches
// wait, and while 32 live and none waits. A hundred come in a second, as those of 1,000
// runs do, at their time whether the ones before are answered or not.
func BenchmarkHeartbeat(b *testing.B) {
	if b.N > 1 {
		return
	}
	const leases, waiting, few = 1000, 10_000, 32
	const each = 10 // leases of one worker in the crowd
	const slices, beats, apart = 4, 125, 10 * time.Millisecond
	patient := func(c *Config) { c.TTL, c.Stall = time.Hour, time.Hour } // none ends while all are made
	crowd, quiet := newBench(b, 0, 0, patient), newBench(b, 0, 0, patient)
	held := map[*bench][]*tenure{crowd: make([]*tenure, leases), quiet: make([]*tenure, few)}
	for x, list := range held {
		mine := 1
		if x == crowd {
			mine = each
		}
		for i := range len(list) / mine {
			x.workers = append(x.workers, x.hire(ops.IdentityID(fmt.Sprint("w", i)), ops.Worker))
		}
		orders := len(list)
		if x == crowd {
			orders += waiting
		}
		const page = 250 // in a transaction
		for done := 0; done < orders; done += page {
			if err := x.store.Update(b.Context(), func(tx journal.Tx) error {
				for range min(page, orders-done) {
					if _, err := x.plane.spawn(tx, ops.Call{ID: ops.NewCallID(), By: ada, Params: json.RawMessage(order)}); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
		}
		var next atomic.Int64
		together(b, len(x.workers), func(int) error {
			worker := int(next.Add(1)) - 1
			for i := range mine {
				g, err := x.take(worker)
				if err != nil {
					return err
				}
				list[worker*mine+i] = g
				if _, err := g.try(wire.KindStarted, wire.Started{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if n := crowd.number(`SELECT count(*) FROM dispatch WHERE state = 'DISPATCHED'`); n != waiting {
		b.Fatalf("%d dispatches wait, want %d", n, waiting)
	}
	took := map[*bench][]time.Duration{}
	for slice := range slices + 1 { // the first one warms up
		for _, x := range []*bench{crowd, quiet} {
			list, spans := held[x], make([]time.Duration, beats)
			tick := time.NewTicker(apart)
			var all sync.WaitGroup
			busy := make([]sync.Mutex, len(list)) // a run's messages are one after the other
			for i := range beats {
				due := <-tick.C
				n := (slice*beats + i) % len(list)
				all.Go(func() {
					busy[n].Lock()
					defer busy[n].Unlock()
					if _, err := list[n].try(wire.KindHeartbeat, alive(int64(slice*beats+i))); err != nil {
						b.Error(err)
					}
					spans[i] = time.Since(due)
				})
			}
			tick.Stop()
			all.Wait()
			if b.Failed() {
				b.FailNow()
			}
			if slice > 0 {
				took[x] = append(took[x], spans...)
			}
		}
	}
	fmt.Printf("heartbeat, %d leases and %d dispatches waiting: p50 %s, p99 %s; %d leases and none waiting: p50 %s, p99 %s; ratio of p50 %.2f, of p99 %.2f; %d of each\n",
		leases, waiting, quantile(took[crowd], 50), quantile(took[crowd], 99), few, quantile(took[quiet], 50), quantile(took[quiet], 99),
		over(took[crowd], took[quiet], 50), over(took[crowd], took[quiet], 99), slices*beats)
	b.ReportMetric(over(took[crowd], took[quiet], 99), "x-quiet")
}

// BenchmarkCommit measures cycles with the store's group commit and with a commit for each
// transaction.
func BenchmarkCommit(b *testing.B) {
	if b.N > 1 {
		return
	}
	const rounds = 3
	group, alone := newBench(b, callers, 0, nil), newBench(b, callers, 1, nil)
	took := map[*bench]time.Duration{}
	for round := range rounds + 1 {
		for _, x := range []*bench{group, alone} {
			d := together(b, benchCycles, func(i int) error { return x.cycle(b.Context(), i) })
			if round > 0 { // the first one warms up
				took[x] += d
			}
		}
	}
	ratio := took[alone].Seconds() / took[group].Seconds()
	fmt.Printf("cycles with group commit: %.2fx those with a commit for each transaction, %d callers\n", ratio, callers)
	b.ReportMetric(ratio, "x-alone")
}

// quantile is the pth of a hundred, rounded.
func quantile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)*p/100].Round(10 * time.Microsecond)
}

// over is how often the pth of b goes into that of a.
func over(a, b []time.Duration, p int) float64 {
	return quantile(a, p).Seconds() / quantile(b, p).Seconds()
}
