package service

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service/journal"
)

const (
	here  = "t-00000000000000000000000001"
	there = "t-00000000000000000000000002"
)

// inThread is a call of scout whose answer goes to a thread.
func inThread(op ops.OpName, thread, source string) ops.Call {
	return ordered(op, func(c *ops.Call) {
		c.From.Source, c.From.Wake = source, source
		c.From.Answer = &ops.Address{Adaptor: "rooms", Opaque: thread}
	})
}

func (h *house) submit(c ops.Call) Ticket {
	h.t.Helper()
	ticket, err := h.door.Submit(context.Background(), c)
	if err != nil {
		h.t.Fatalf("%s: %v", c.From.Source, err)
	}
	return ticket
}

func (h *house) stopAndStart(f func(journal.Tx, ops.Identity, string) error, scope string) {
	h.t.Helper()
	if err := h.store.Update(context.Background(), func(tx journal.Tx) error { return f(tx, ada, scope) }); err != nil {
		h.t.Fatalf("scope %s: %v", scope, err)
	}
}

func (h *house) hold(scope string)    { h.t.Helper(); h.stopAndStart(h.door.Hold, scope) }
func (h *house) release(scope string) { h.t.Helper(); h.stopAndStart(h.door.Release, scope) }

// shown is the state that a call is listed with, and "held" behind it if it is.
func (h *house) shown(id ops.CallID) string {
	h.t.Helper()
	v, err := h.door.showCall(context.Background(), ada, Query{Arg: string(id)})
	if err != nil {
		h.t.Fatal(err)
	}
	s := string(v.(CallShowing).State)
	if v.(CallShowing).Held {
		s += " held"
	}
	return s
}

// What is stopped does not begin, what is not goes on, and a release lets all begin in
// their order.
func TestHold(t *testing.T) {
	s := newStage()
	ledgered := write("tx", nil)
	ledgered.Executor = ledger{}
	inBubble(t, func(t *testing.T, h *house) {
		h.policy(anything)
		running := h.submit(inThread("w", here, "running"))
		s.want(t, "running")
		h.hold(here)
		h.hold(here) // once more is the same
		synctest.Wait()
		held := []Ticket{h.submit(inThread("w", here, "w1")), h.submit(inThread("r", here, "r1")), h.submit(inThread("tx", here, "tx1")), h.submit(inThread("w", here, "w2"))}
		h.submit(inThread("w", there, "other"))
		c := call(scout, "r")
		c.From.Source = "api/1"
		h.submit(c)
		s.want(t, "running", "other", "api/1")
		for _, ticket := range held {
			if got := h.shown(ticket.Call); got != "received held" {
				t.Errorf("%s is shown as %s", ticket.Op, got)
			}
		}
		if got := h.shown(running.Call); got != "running" {
			t.Errorf("what had begun is %s", got)
		}
		s.end("running") // what had begun ends as it would
		if o := h.await(running.Call); o.State != ops.Succeeded {
			t.Errorf("what had begun: %+v", o)
		}
		h.hold(Everything)
		synctest.Wait()
		c.From.Source = "api/2"
		api := h.submit(c)
		op := call(ada, "w")
		op.From.Source = "api/ada"
		op.From.Answer = &ops.Address{Adaptor: "rooms", Opaque: here}
		h.submit(op)
		s.want(t, "running", "other", "api/1", "api/ada")
		h.release(here) // everything is held still
		s.want(t, "running", "other", "api/1", "api/ada")
		if n := h.entries(); n != 0 {
			t.Errorf("%d entries while everything is stopped", n)
		}
		list, err := h.door.Holds(t.Context())
		if err != nil || len(list) != 1 || list[0].Scope != Everything || list[0].By != ada || list[0].SetAt == "" {
			t.Errorf("stopped: %+v, %v", list, err)
		}
		for _, source := range []string{"other", "api/1", "api/ada"} {
			s.end(source)
		}
		h.release(Everything)
		h.release(Everything)
		s.want(t, "running", "other", "api/1", "api/ada", "w1", "r1", "w2", "api/2")
		for _, source := range []string{"w1", "r1", "w2", "api/2"} {
			s.end(source)
		}
		for _, ticket := range append(held, api) {
			if o := h.await(ticket.Call); o.State != ops.Succeeded {
				t.Errorf("%s: %+v", ticket.Op, o)
			}
		}
		var kinds []string
		for _, scope := range []string{here, Everything} {
			if err := h.store.Stream(t.Context(), "hold/"+scope, 0, func(e journal.Event) error {
				kinds = append(kinds, e.Kind+" "+string(e.Body))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		body := func(scope string) string {
			return fmt.Sprintf(` {"scope":%q,"by":{"id":"ada","role":"operator"}}`, scope)
		}
		if want := []string{"hold.set" + body(here), "hold.released" + body(here), "hold.set" + body(Everything), "hold.released" + body(Everything)}; !slices.Equal(kinds, want) {
			t.Errorf("events %q, want %q", kinds, want)
		}
	}, read("r", s.run), write("w", s.run), ledgered)
}

// However many are held, others find room.
func TestHeldCallsTakeNobodysTurn(t *testing.T) {
	s := newStage()
	inBubble(t, func(t *testing.T, h *house) {
		h.policy(anything)
		h.hold(here)
		synctest.Wait()
		for i := range 20 {
			h.submit(inThread("one", here, fmt.Sprint("held", i)))
		}
		h.submit(inThread("one", there, "a"))
		h.submit(inThread("one", there, "b"))
		s.want(t, "a")
		s.end("a")
		s.want(t, "a", "b")
		s.end("b")
		h.release(here)
		want := []string{"a", "b"}
		for i := range 20 {
			s.end(fmt.Sprint("held", i))
			want = append(want, fmt.Sprint("held", i))
		}
		if got := s.has(); !slices.Equal(got, want) {
			t.Errorf("began %q, want %q", got, want)
		}
	}, bounded1(write("one", s.run), 1))
}

// The record decides, not the memory: a call that is handed to an executor before the
// memory knows of a hold does not begin either.
func TestHoldBeforeTheMemoryKnows(t *testing.T) {
	ran := new(atomic.Int64)
	counted := func(ctx context.Context, c ops.Call) (ops.Outcome, error) { ran.Add(1); return fine(ctx, c) }
	ledgered := write("tx", nil)
	ledgered.Executor = ledger{}
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		h := openHouse(t, path, read("r", counted), write("w", counted), ledgered)
		h.people()
		h.policy(anything)
		// The door is not started, so that nobody follows the record.
		var tickets []Ticket
		orders := []Order{h.door.Prepare(inThread("r", here, "1")), h.door.Prepare(inThread("w", here, "2")), h.door.Prepare(inThread("tx", here, "3"))}
		if err := h.store.Update(context.Background(), func(tx journal.Tx) (err error) { tickets, err = h.door.Admit(tx, orders...); return err }); err != nil {
			t.Fatal(err)
		}
		h.hold(here)
		for _, ticket := range tickets {
			h.door.Run(ticket)
		}
		synctest.Wait()
		for _, ticket := range tickets {
			if got := h.shown(ticket.Call); got != "received held" {
				t.Errorf("%s is %s", ticket.Op, got)
			}
		}
		if ran.Load() != 0 || h.entries() != 0 {
			t.Errorf("%d ran and %d wrote", ran.Load(), h.entries())
		}
		if h.door.running != 0 || len(h.door.inOp) != 0 {
			t.Errorf("they take the room of %d, %v", h.door.running, h.door.inOp)
		}
		h.release(here)
		if err := h.door.readHolds(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if ran.Load() != 2 || h.entries() != 1 {
			t.Errorf("after the release %d ran and %d wrote", ran.Load(), h.entries())
		}
		h.close()
	})
}

// A gateway that stops does not wait for what is held, and the next one holds it on.
func TestHoldOverARestart(t *testing.T) {
	s := newStage()
	ledgered := write("tx", nil)
	ledgered.Executor = ledger{}
	bound := []ops.Bound{read("r", s.run), write("w", s.run), ledgered}
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		h := openHouse(t, path, bound...)
		h.people()
		h.start()
		h.policy(anything)
		h.hold(here)
		synctest.Wait()
		// A reply, whose later calls stand behind the earlier ones.
		var orders []Order
		for i, op := range []ops.OpName{"w", "r", "tx", "w"} {
			orders = append(orders, h.door.Prepare(inThread(op, here, fmt.Sprintf("rooms/lobby/m#%d", i+1))))
		}
		var tickets []Ticket
		if err := h.store.Update(context.Background(), func(tx journal.Tx) (err error) { tickets, err = h.door.Admit(tx, orders...); return err }); err != nil {
			t.Fatal(err)
		}
		h.door.Run(tickets...)
		synctest.Wait()
		for range 2 { // a second restart changes nothing
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			if err := h.door.Close(ctx); err != nil || time.Since(began) > 0 {
				t.Errorf("closed after %s, %v", time.Since(began), err)
			}
			cancel()
			if err := h.store.Close(); err != nil {
				t.Fatal(err)
			}
			h = openHouse(t, path, bound...)
			h.start()
			s.want(t)
			if got := h.shown(tickets[0].Call); got != "received held" {
				t.Errorf("after the restart it is %s", got)
			}
			for _, ticket := range tickets {
				if c, err := h.door.read(context.Background(), ticket.Call); err != nil || c.State != ops.Received {
					t.Errorf("%s is %s, %v", ticket.Op, c.State, err)
				}
			}
		}
		h.release(here)
		s.want(t, "rooms/lobby/m#1")
		for i := range 4 {
			s.end(fmt.Sprintf("rooms/lobby/m#%d", i+1))
		}
		for _, ticket := range tickets {
			if o := h.await(ticket.Call); o.State != ops.Succeeded {
				t.Errorf("%s: %+v", ticket.Op, o)
			}
		}
		if got, want := s.has(), []string{"rooms/lobby/m#1", "rooms/lobby/m#2", "rooms/lobby/m#4"}; !slices.Equal(got, want) || h.entries() != 1 {
			t.Errorf("began %q with %d entries, want %q and 1", got, h.entries(), want)
		}
		h.close()
	})
}

func TestCancelOfAHeldCall(t *testing.T) {
	s := newStage()
	inBubble(t, func(t *testing.T, h *house) {
		h.policy(anything)
		h.hold(Everything)
		synctest.Wait()
		for _, op := range []ops.OpName{"r", "w"} {
			ticket := h.submit(inThread(op, here, "x"+string(op)))
			if state, err := h.door.Cancel(t.Context(), scout, ticket.Call); err != nil || state != ops.Cancelled {
				t.Errorf("%s: got %s, %v, want it cancelled", op, state, err)
			}
			if o := h.await(ticket.Call); o.Fault == nil || o.Fault.Details["started"] != false {
				t.Errorf("%s: %+v", op, o)
			}
		}
		h.release(Everything)
		s.want(t)
	}, read("r", s.run), write("w", s.run))
}

// What is approved while it is held waits for the release.
func TestApprovalOfAHeldCall(t *testing.T) {
	s := newStage()
	inBubble(t, func(t *testing.T, h *house) {
		ticket := h.submit(inThread("other", here, "x"))
		if ticket.State != ops.Parked {
			t.Fatalf("got %+v", ticket)
		}
		h.hold(here)
		synctest.Wait()
		if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); err != nil {
			t.Fatal(err)
		}
		s.want(t)
		if got := h.shown(ticket.Call); got != "received held" {
			t.Errorf("it is %s", got)
		}
		h.release(here)
		s.want(t, "x")
		s.end("x")
		if o := h.await(ticket.Call); o.State != ops.Succeeded {
			t.Errorf("%+v", o)
		}
	}, write("other", s.run))
}

func TestWhoMayHold(t *testing.T) {
	h := newHouse(t)
	relay, gone := h.add(ops.Identity{ID: "relay", Role: ops.Bridge}, "scout"), h.add(ops.Identity{ID: "gone", Role: ops.Operator})
	if _, err := h.directory.Revoke(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		by    ops.Identity
		scope string
		want  ops.Code
	}{
		{ada, here, ""},
		{ada, Everything, ""},
		{scout, here, ops.NotPermitted},
		{scout, Everything, ops.NotPermitted},
		{relay, here, ops.NotPermitted},
		{gone, here, ops.NotPermitted},
		{ops.Identity{}, here, ops.NotPermitted},
		{ops.Identity{ID: "scout", Role: ops.Operator}, here, ops.NotPermitted},
		{ada, "", ops.BadRequest},
		{ada, "**", ops.BadRequest},
		{ada, "lobby", ops.BadRequest},
		{ada, here + "\n", ops.BadRequest},
		{ada, strings.ToUpper(here), ops.BadRequest},
	} {
		for i, f := range []func(journal.Tx, ops.Identity, string) error{h.door.Hold, h.door.Release} {
			err := h.store.Update(t.Context(), func(tx journal.Tx) error { return f(tx, tc.by, tc.scope) })
			if codeOf(err) != tc.want {
				t.Errorf("%s by %s of %q: got %v, want %q", []string{"hold", "release"}[i], tc.by, tc.scope, err, tc.want)
			}
		}
	}
	if err := h.store.Update(t.Context(), func(tx journal.Tx) error {
		for _, want := range []bool{false, true} {
			if held, err := h.door.Held(tx, here); err != nil || held != want {
				t.Errorf("held %v, %v, want %v", held, err, want)
			}
			if err := h.door.Hold(tx, ada, Everything); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// By the journal, nothing has begun between a hold and its release, whatever raced.
func TestNothingBeginsWhileItIsHeld(t *testing.T) {
	ran := new(sync.Map)
	note := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		if _, twice := ran.LoadOrStore(c.ID, true); twice {
			t.Errorf("call %s ran twice", c.ID)
		}
		return fine(ctx, c)
	}
	ledgered := write("tx", nil)
	ledgered.Executor = ledger{}
	h := newHouse(t, write("w", note), ledgered)
	h.policy(anything)
	var work sync.WaitGroup
	var mu sync.Mutex
	var calls []ops.CallID
	for n := range 4 {
		work.Go(func() {
			var open []ops.CallID
			for i := range 40 {
				if len(open) == 3 { // or there would be too many that wait
					for _, id := range open {
						h.await(id)
					}
					open = nil
				}
				op := []ops.OpName{"w", "tx"}[i%2]
				ticket, err := h.door.Submit(context.Background(), inThread(op, []string{here, there}[i/2%2], fmt.Sprint(n, "/", i)))
				if err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				open = append(open, ticket.Call)
				mu.Lock()
				calls = append(calls, ticket.Call)
				mu.Unlock()
			}
		})
	}
	for _, scope := range []string{here, Everything} {
		work.Go(func() {
			for range 20 {
				h.hold(scope)
				h.release(scope)
			}
		})
	}
	work.Wait()
	threadOf := map[ops.CallID]string{}
	for _, id := range calls {
		if o := h.await(id); o.State != ops.Succeeded {
			t.Errorf("call %s: %+v", id, o)
		}
		c, err := h.door.read(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		threadOf[id] = c.From.Answer.Opaque
	}
	head, err := h.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, done := context.WithCancel(t.Context())
	held := map[string]bool{}
	begun := 0
	err = h.store.Tail(ctx, 0, func(e journal.Event) error {
		id := ops.CallID(strings.TrimPrefix(e.Stream, streamPrefix))
		var body struct {
			Scope string
			Op    ops.OpName
		}
		if err := json.Unmarshal(e.Body, &body); err != nil && e.Stream != "ledger" {
			return err
		}
		switch {
		case e.Kind == "hold.set":
			held[body.Scope] = true
		case e.Kind == "hold.released":
			held[body.Scope] = false
		case e.Kind == "call.running", e.Kind == "call.settled" && body.Op == "tx":
			if begun++; held[Everything] || held[threadOf[id]] {
				t.Errorf("call %s began at %d while it was held by %v", id, e.Position, held)
			}
		}
		if e.Position == head {
			done()
		}
		return nil
	})
	if begun != len(calls) || len(calls) != 160 {
		t.Errorf("%d of %d calls began, %v", begun, len(calls), err)
	}
}
