package service

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service/journal"
)

// stage is an executor whose calls begin when the door lets them and end when the test
// does.
type stage struct {
	mu      sync.Mutex
	begun   []string // what has begun, in order
	running map[ops.OpName]int
	most    map[ops.OpName]int
	gates   map[string]chan struct{}
}

func newStage() *stage {
	return &stage{running: map[ops.OpName]int{}, most: map[ops.OpName]int{}, gates: map[string]chan struct{}{}}
}

func (s *stage) gate(source string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[source] == nil {
		s.gates[source] = make(chan struct{})
	}
	return s.gates[source]
}

func (s *stage) end(source string) { close(s.gate(source)) }

func (s *stage) run(ctx context.Context, c ops.Call) (ops.Outcome, error) {
	s.mu.Lock()
	s.begun = append(s.begun, c.From.Source)
	s.running[c.Op]++
	s.most[c.Op] = max(s.most[c.Op], s.running[c.Op])
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.running[c.Op]--; s.mu.Unlock() }()
	select {
	case <-s.gate(c.From.Source):
		return fine(ctx, c)
	case <-ctx.Done():
		return ops.Outcome{}, ctx.Err()
	}
}

// has returns what has begun once nothing moves any more.
func (s *stage) has() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.begun)
}

// want checks which have begun; those that begin side by side do so in any order.
func (s *stage) want(t *testing.T, want ...string) {
	t.Helper()
	if got := slices.Sorted(slices.Values(s.has())); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("begun: %q, want %q", got, want)
	}
}

func bounded1(b ops.Bound, concurrency int) ops.Bound {
	b.Op.Concurrency = concurrency
	return b
}

// orderTo submits a call whose source is its name.
func (h *house) orderTo(by ops.Identity, op ops.OpName, source string) Ticket {
	h.t.Helper()
	c := call(by, op)
	c.From.Source, c.Evidence = source, sure
	ticket, err := h.door.Submit(context.Background(), c)
	if err != nil {
		h.t.Fatalf("%s: %v", source, err)
	}
	return ticket
}

// reply admits calls together, as those of one reply, and runs them.
func (h *house) reply(by ops.Identity, names ...ops.OpName) []Ticket {
	h.t.Helper()
	var orders []Order
	for i, n := range names {
		c := call(by, n)
		c.From.Source, c.Evidence = fmt.Sprint(n, i+1), sure
		orders = append(orders, h.door.Prepare(c))
	}
	var tickets []Ticket
	if err := h.store.Update(context.Background(), func(tx journal.Tx) (err error) {
		tickets, err = h.door.Admit(tx, orders...)
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	h.door.Run(tickets...)
	return tickets
}

// inBubble runs f on a house whose door lets at most 8 run, 4 of one agent.
func inBubble(t *testing.T, f func(*testing.T, *house), bound ...ops.Bound) {
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		h := openHouse(t, path, bound...)
		h.people()
		h.start()
		defer h.close()
		f(t, h)
	})
}

func TestConcurrencyOfAnOp(t *testing.T) {
	s := newStage()
	inBubble(t, func(t *testing.T, h *house) {
		for _, by := range []struct {
			who    ops.Identity
			source string
		}{{scout, "a"}, {ada, "b"}, {ada, "c"}, {scout, "d"}, {scout, "e"}} {
			h.orderTo(by.who, "two", by.source)
		}
		s.want(t, "a", "b")
		// It holds up no other op, of the same identity or another one.
		h.orderTo(scout, "any", "f")
		h.orderTo(ada, "any", "g")
		s.want(t, "a", "b", "f", "g")
		for i, next := range []string{"c", "d", "e"} { // first come, first served
			s.end([]string{"a", "b", "c"}[i])
			if got := s.has(); got[len(got)-1] != next || len(got) != 5+i {
				t.Errorf("begun: %q, want %s now", got, next)
			}
		}
		for _, source := range []string{"d", "e", "f", "g"} {
			s.end(source)
		}
		synctest.Wait()
		if s.most["two"] != 2 || len(h.door.inOp) != 0 || h.door.running != 0 || len(h.door.line) != 0 || len(h.door.shares) != 0 {
			t.Errorf("most %v; left: %v in ops, %d running, %d in line, %d shares", s.most, h.door.inOp, h.door.running, len(h.door.line), len(h.door.shares))
		}
	}, bounded1(read("two", s.run), 2), read("any", s.run))
}

// One identity cannot keep an op from the others by waiting for room of its own.
func TestAFullShareHoldsUpNoOtherIdentity(t *testing.T) {
	s := newStage()
	inBubble(t, func(t *testing.T, h *house) {
		for i := range 4 {
			h.orderTo(scout, "any", fmt.Sprint("any", i))
		}
		h.orderTo(scout, "one", "scout's")
		h.orderTo(ada, "one", "ada's")
		s.want(t, "any0", "any1", "any2", "any3", "ada's")
		s.end("any0") // one is busy, and the room of scout is kept for the call that waits for it
		h.orderTo(scout, "any", "later")
		s.want(t, "any0", "any1", "any2", "any3", "ada's")
		s.end("any1")
		s.want(t, "any0", "any1", "any2", "any3", "ada's", "later")
		s.end("ada's")
		s.want(t, "any0", "any1", "any2", "any3", "ada's", "later", "scout's")
		for _, source := range []string{"any2", "any3", "later", "scout's"} {
			s.end(source)
		}
	}, bounded1(read("one", s.run), 1), read("any", s.run))
}

// In one reply a read that waits for its op holds up no read beside it, and a write
// waits for both.
func TestConcurrencyWithinAReply(t *testing.T) {
	s := newStage()
	inBubble(t, func(t *testing.T, h *house) {
		h.orderTo(ada, "one", "first")
		h.reply(ada, "one", "any", "w", "any")
		s.want(t, "first", "any2")
		s.end("any2")
		s.want(t, "first", "any2")
		s.end("first")
		s.want(t, "first", "any2", "one1")
		s.end("one1")
		s.want(t, "first", "any2", "one1", "w3")
		s.end("w3")
		s.want(t, "first", "any2", "one1", "w3", "any4")
		s.end("any4")
	}, bounded1(read("one", s.run), 1), read("any", s.run), write("w", s.run))
}

// Whatever a call waits for, it can be cancelled while it does, at once.
func TestCancelBeforeItsTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		ops   []ops.OpName // of one reply
		wait  int          // the one that is cancelled
		begun []string     // before that, and after it
		end   []string     // then these end
		then  []string
	}{
		"behind a write of its reply": {[]ops.OpName{"w", "any", "any"}, 1, []string{"w1"}, []string{"w1"}, []string{"w1", "any3"}},
		"a write behind reads":        {[]ops.OpName{"any", "w", "any"}, 1, []string{"any1"}, []string{"any1"}, []string{"any1", "any3"}},
		"two groups behind":           {[]ops.OpName{"w", "w", "any", "w"}, 2, []string{"w1"}, []string{"w1", "w2"}, []string{"w1", "w2", "w4"}},
		"behind the bound of its op":  {[]ops.OpName{"one", "one", "one"}, 1, []string{"one1"}, []string{"one1"}, []string{"one1", "one3"}},
		"the last of its reply":       {[]ops.OpName{"w", "w"}, 1, []string{"w1"}, []string{"w1"}, []string{"w1"}},
		"behind all that one may run": {[]ops.OpName{"any", "any", "any", "any", "any"}, 4, []string{"any1", "any2", "any3", "any4"}, nil, []string{"any1", "any2", "any3", "any4"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			inBubble(t, func(t *testing.T, h *house) {
				by := ada
				if !slices.Contains(tc.ops, "w") {
					by = scout // who may only read
				}
				tickets := h.reply(by, tc.ops...)
				s.want(t, tc.begun...)
				begun := time.Now()
				state, err := h.door.Cancel(t.Context(), by, tickets[tc.wait].Call)
				if err != nil || state != ops.Cancelled || time.Since(begun) != 0 {
					t.Errorf("cancel: %s, %v after %s; want cancelled at once", state, err, time.Since(begun))
				}
				o, err := h.door.Await(t.Context(), tickets[tc.wait].Call)
				if err != nil || o.State != ops.Cancelled || o.Fault.Details["started"] != false {
					t.Errorf("outcome: %+v, %v; want cancelled, not started", o, err)
				}
				if kinds := h.kinds(tickets[tc.wait].Call); slices.Contains(kinds, "call.running") {
					t.Errorf("it began: %q", kinds)
				}
				s.want(t, tc.begun...)
				for _, source := range tc.end {
					s.end(source)
					synctest.Wait()
				}
				s.want(t, tc.then...)
				for i, n := range tc.ops {
					if source := fmt.Sprint(n, i+1); !slices.Contains(tc.end, source) {
						s.end(source)
					}
				}
				synctest.Wait()
				if h.door.running != 0 || len(h.door.line) != 0 || len(h.door.tasks) != 0 {
					t.Errorf("left: %d running, %d in line, %d tasks", h.door.running, len(h.door.line), len(h.door.tasks))
				}
			}, read("any", s.run), bounded1(read("one", s.run), 1), write("w", s.run))
		})
	}
}

// What waits when the gateway stops is neither run nor settled: it stays received.
func TestCloseLeavesWhatWaits(t *testing.T) {
	s := newStage()
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		h := openHouse(t, path, bounded1(read("one", s.run), 1), write("w", s.run))
		h.people()
		h.start()
		tickets := h.reply(ada, "one", "one", "w")
		s.want(t, "one1")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = h.door.Close(ctx)
		s.want(t, "one1")
		for i, want := range []ops.State{ops.Failed, ops.Received, ops.Received} {
			c, err := h.door.read(t.Context(), tickets[i].Call)
			if err != nil || c.State != want {
				t.Errorf("%s %d is %s, %v; want %s", tickets[i].Op, i+1, c.State, err, want)
			}
		}
		if err := h.store.Close(); err != nil {
			t.Error(err)
		}
	})
}
