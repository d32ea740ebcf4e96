package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ada   = ops.Identity{ID: "ada", Role: ops.Operator}
	scout = ops.Identity{ID: "scout", Role: ops.Agent}
)

// house is a door over a real store, with a few ops whose behaviour a test sets.
type house struct {
	t         *testing.T
	path      string
	store     *sqlite.Store
	directory *access.Directory
	door      *Door
	logs      *strings.Builder
}

func openHouse(t *testing.T, path string, bound ...ops.Bound) *house {
	t.Helper()
	h := &house{t: t, path: path, logs: new(strings.Builder)}
	log := slog.New(slog.NewTextHandler(&locked{w: h.logs}, nil))
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Schemas: []journal.Schema{access.Schema(), Schema()}, Logger: log})
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	h.store = store
	h.directory = access.NewDirectory(store)
	registry, err := ops.New(bound...)
	if err != nil {
		t.Fatal(err)
	}
	h.door, err = New(Config{Store: store, Registry: ops.NewLive(registry), Log: log, MaxRunning: 8, MaxWaiting: 32, ShareWaiting: 24})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// newHouse opens a house with ada and scout in it and starts its door.
func newHouse(t *testing.T, bound ...ops.Bound) *house {
	t.Helper()
	h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), bound...)
	h.people()
	h.start()
	t.Cleanup(h.close)
	return h
}

func (h *house) people() {
	h.t.Helper()
	for _, who := range []ops.Identity{ada, scout} {
		if _, err := h.directory.Add(context.Background(), who); err != nil {
			h.t.Fatalf("add %s: %v", who, err)
		}
	}
}

func (h *house) start() {
	h.t.Helper()
	if err := h.door.Start(context.Background()); err != nil {
		h.t.Fatalf("start: %v", err)
	}
}

func (h *house) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := h.door.Close(ctx); err != nil {
		h.t.Errorf("close the door: %v", err)
	}
	if err := h.store.Close(); err != nil {
		h.t.Errorf("close the store: %v", err)
	}
}

// run submits a call and returns its outcome.
func (h *house) run(c ops.Call) (Ticket, ops.Outcome) {
	h.t.Helper()
	ticket, err := h.door.Submit(h.t.Context(), c)
	if err != nil {
		h.t.Fatalf("submit %s: %v", c.Op, err)
	}
	if ticket.Outcome != nil {
		return ticket, *ticket.Outcome
	}
	o, err := h.door.Await(h.t.Context(), ticket.Call)
	if err != nil {
		h.t.Fatalf("await %s: %v", c.Op, err)
	}
	return ticket, o
}

// kinds returns the kinds of the events of a call, in order.
func (h *house) kinds(id ops.CallID) []string {
	h.t.Helper()
	var kinds []string
	if err := h.store.Stream(h.t.Context(), stream(id), 0, func(e journal.Event) error {
		kinds = append(kinds, e.Kind)
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	return kinds
}

// calls returns how many rows the call table holds.
func (h *house) calls() (n int) {
	h.t.Helper()
	if err := h.store.View(h.t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT count(*) FROM call`, func(scan func(...any) error) error { return scan(&n) })
	}); err != nil {
		h.t.Fatal(err)
	}
	return n
}

type locked struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func read(name ops.OpName, f ops.ExecutorFunc) ops.Bound {
	return ops.Bound{Op: ops.Op{Name: name, Provider: "test", Summary: "A read.",
		Params: ops.Params{{Name: "n", Type: ops.Int, Min: 0, Max: 99, Optional: true}}}, Executor: f}
}

func write(name ops.OpName, f ops.ExecutorFunc) ops.Bound {
	b := read(name, f)
	b.Op.SideEffecting = true
	return b
}

func fine(_ context.Context, c ops.Call) (ops.Outcome, error) {
	return ops.Success(ops.NewResult(string(c.Op), "")), nil
}

func call(by ops.Identity, op ops.OpName) ops.Call {
	return ops.Call{Op: op, By: by, Params: json.RawMessage(`{}`), From: ops.Origin{Source: "api/test"}}
}

func TestRefusals(t *testing.T) {
	ran := new(atomic.Int64)
	counted := func(ctx context.Context, c ops.Call) (ops.Outcome, error) { ran.Add(1); return fine(ctx, c) }
	h := newHouse(t, read("t.read", counted), write("t.write", counted))
	gone := ops.Identity{ID: "gone", Role: ops.Agent}
	if _, err := h.directory.Add(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if _, err := h.directory.Revoke(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	params := func(c ops.Call, p string) ops.Call { c.Params = json.RawMessage(p); return c }
	for _, tc := range []struct {
		name string
		call ops.Call
		code ops.Code
		says string
	}{
		{"unknown op", call(scout, "t.nothing"), ops.UnknownOp, "t.nothing"},
		{"misspelt op", call(scout, "t.raed"), ops.UnknownOp, "t.read"},
		{"write by a bridge", call(ops.Identity{ID: "relay", Role: ops.Bridge}, "t.write"), ops.NotPermitted, "bridge/relay"},
		{"nobody", call(ops.Identity{}, "t.read"), ops.NotPermitted, "nobody"},
		{"an identity that does not exist", call(ops.Identity{ID: "eve", Role: ops.Operator}, "t.read"), ops.NotPermitted, "eve"},
		{"another role than on record", call(ops.Identity{ID: "scout", Role: ops.Operator}, "t.write"), ops.NotPermitted, "scout"},
		{"revoked", call(gone, "t.read"), ops.NotPermitted, "revoked"},
		{"a bridge runs nothing", call(ops.Identity{ID: "ada", Role: ops.Bridge}, "t.read"), ops.NotPermitted, "bridge"},
		{"unknown parameter", params(call(scout, "t.read"), `{"m":1}`), ops.InvalidParams, "/m"},
		{"wrong type", params(call(scout, "t.read"), `{"n":"1"}`), ops.InvalidParams, "/n"},
		{"out of range", params(call(scout, "t.read"), `{"n":100}`), ops.InvalidParams, "0 to 99"},
		{"no whole number", params(call(scout, "t.read"), `{"n":1.5}`), ops.InvalidParams, "/n"},
		{"beyond 2^53", params(call(scout, "t.read"), `{"n":9007199254740993}`), ops.IntegerOutOfRange, "2^53"},
		{"a name twice", params(call(scout, "t.read"), `{"n":1,"n":2}`), ops.InvalidParams, "byte"},
		{"no object", params(call(scout, "t.read"), `[]`), ops.InvalidParams, "object"},
		{"no JSON", params(call(scout, "t.read"), `{"n":`), ops.InvalidParams, "JSON"},
		{"two values", params(call(scout, "t.read"), `{} {}`), ops.InvalidParams, "follows"},
		{"invalid UTF-8", params(call(scout, "t.read"), "{\"n\":\"\xff\"}"), ops.InvalidParams, "UTF-8"},
		{"NUL", params(call(scout, "t.read"), "\x00"), ops.InvalidParams, "JSON"},
		{"a key too long", ops.Call{Op: "t.read", By: scout, Key: strings.Repeat("k", ops.MaxKeyLen+1)}, ops.BadRequest, "key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := h.calls()
			ticket, o := h.run(tc.call)
			if o.State != ops.Refused || o.Fault == nil || o.Fault.Code != tc.code {
				t.Fatalf("got %+v, want refused with %s", o, tc.code)
			}
			if said, _ := json.Marshal(o.Fault); !strings.Contains(string(said), tc.says) {
				t.Errorf("the fault is %s, want %q in it", said, tc.says)
			}
			if h.calls() != before+1 {
				t.Errorf("the refusal is not on record")
			}
			if got := h.kinds(ticket.Call); !slices.Equal(got, []string{"call.settled"}) {
				t.Errorf("events %q, want only call.settled", got)
			}
		})
	}
	if ran.Load() != 0 {
		t.Errorf("%d refused calls ran", ran.Load())
	}
}

// What is refused never makes the row unreadable, whatever bytes it held.
func TestRefusedBytesCanBeShown(t *testing.T) {
	h := newHouse(t, read("t.read", fine))
	for _, p := range []string{"\xff\xfe", "\x00", strings.Repeat("[", 5000), `"` + strings.Repeat("x", 10000), strings.Repeat("é", 4000)} {
		c := call(scout, "t.read")
		c.Params = json.RawMessage(p)
		ticket, _ := h.run(c)
		shown, err := h.door.showCall(t.Context(), scout, Query{Arg: string(ticket.Call)})
		if err != nil {
			t.Fatalf("params %.10q: %v", p, err)
		}
		if b, err := json.Marshal(shown); err != nil || len(b) > 3*maxKept {
			t.Errorf("params %.10q: shown in %d bytes, err %v", p, len(b), err)
		}
	}
}

func TestOpNameThatNoStoreKeeps(t *testing.T) {
	h := newHouse(t)
	for _, name := range []ops.OpName{"a\x00b", "\x00", "a\xffb", ops.OpName(strings.Repeat("é\x00", ops.MaxNameLen))} {
		ticket, o := h.run(call(scout, name))
		if o.State != ops.Refused || o.Fault.Code != ops.UnknownOp {
			t.Errorf("op %q: got %+v, want refused as UNKNOWN_OP", name, o)
		}
		if c, err := h.door.read(t.Context(), ticket.Call); err != nil || c.State != ops.Refused {
			t.Errorf("op %q is on record as %+v, %v", name, c, err)
		}
	}
}

func TestLifeOfACall(t *testing.T) {
	var h *house
	state := make(chan string, 1)
	spy := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		stored, err := h.door.read(ctx, c.ID)
		state <- string(stored.State)
		if err != nil {
			return ops.Outcome{}, err
		}
		return fine(ctx, c)
	}
	h = newHouse(t, read("t.read", spy), write("t.write", spy))
	for _, tc := range []struct {
		op     ops.OpName
		inside string
		kinds  []string
	}{
		{"t.read", "received", []string{"call.received", "call.settled"}},
		{"t.write", "running", []string{"call.received", "call.running", "call.settled"}},
	} {
		ticket, o := h.run(call(ada, tc.op))
		if o.State != ops.Succeeded {
			t.Fatalf("%s: %+v", tc.op, o)
		}
		if got := <-state; got != tc.inside {
			t.Errorf("%s: on record as %s while it ran, want %s", tc.op, got, tc.inside)
		}
		if got := h.kinds(ticket.Call); !slices.Equal(got, tc.kinds) {
			t.Errorf("%s: events %q, want %q", tc.op, got, tc.kinds)
		}
	}
}

func TestWhatAnExecutorSays(t *testing.T) {
	boom := func(context.Context, ops.Call) (ops.Outcome, error) { panic("boom") }
	lost := func(context.Context, ops.Call) (ops.Outcome, error) { return ops.Outcome{}, errors.New("line lost") }
	mute := func(context.Context, ops.Call) (ops.Outcome, error) { return ops.Outcome{}, nil }
	lies := func(context.Context, ops.Call) (ops.Outcome, error) { return ops.Outcome{State: ops.Succeeded}, nil }
	says := func(context.Context, ops.Call) (ops.Outcome, error) {
		return ops.Failure(ops.Faultf(ops.OpFailed, "exit 1")), nil
	}
	slow := func(ctx context.Context, _ ops.Call) (ops.Outcome, error) {
		<-ctx.Done()
		return ops.Outcome{}, ctx.Err()
	}
	hasty := func(b ops.Bound) ops.Bound { b.Op.Timeout = time.Millisecond; return b }
	h := newHouse(t,
		read("r.boom", boom), write("w.boom", boom), read("r.lost", lost), write("w.lost", lost), read("r.mute", mute), write("w.mute", mute),
		read("r.lies", lies), write("w.lies", lies), read("r.says", says), write("w.says", says), hasty(read("r.slow", slow)), hasty(write("w.slow", slow)))
	for op, want := range map[ops.OpName]string{
		"r.boom": "failed INTERNAL", "w.boom": "outcome_unknown OUTCOME_UNKNOWN",
		"r.lost": "failed INTERNAL", "w.lost": "outcome_unknown OUTCOME_UNKNOWN",
		"r.mute": "failed INTERNAL", "w.mute": "outcome_unknown OUTCOME_UNKNOWN",
		"r.lies": "failed INTERNAL", "w.lies": "outcome_unknown OUTCOME_UNKNOWN",
		"r.says": "failed OP_FAILED", "w.says": "failed OP_FAILED",
		"r.slow": "failed TIMED_OUT", "w.slow": "outcome_unknown OUTCOME_UNKNOWN",
	} {
		_, o := h.run(call(ada, op))
		if got := fmt.Sprintf("%s %s", o.State, o.Fault.Code); got != want {
			t.Errorf("%s: got %s, want %s", op, got, want)
		}
		if strings.Contains(o.Fault.Message, "line lost") || strings.Contains(o.Fault.Message, "boom") {
			t.Errorf("%s: a stranger reads %q", op, o.Fault.Message)
		}
	}
}

func TestIdempotency(t *testing.T) {
	gate, ran := make(chan struct{}), new(atomic.Int64)
	gated := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		ran.Add(1)
		select {
		case <-gate:
			return fine(ctx, c)
		case <-ctx.Done():
			return ops.Outcome{}, ctx.Err()
		}
	}
	h := newHouse(t, write("t.write", gated), read("t.read", fine))
	keyed := func(by ops.Identity, op ops.OpName, params string) ops.Call {
		return ops.Call{Op: op, By: by, Key: "k", Params: json.RawMessage(params), From: ops.Origin{Source: "api/test"}}
	}
	first, err := h.door.Submit(t.Context(), keyed(ada, "t.write", `{"n":1}`))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(c ops.Call, code ops.Code) {
		t.Helper()
		ticket, err := h.door.Submit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if ticket.Outcome == nil || ticket.Outcome.Fault == nil || ticket.Outcome.Fault.Code != code || ticket.Call != first.Call || ticket.Outcome.Fault.Details["call"] != first.Call {
			t.Errorf("got %+v, want %s that names %s", ticket, code, first.Call)
		}
	}
	refused(keyed(ada, "t.write", `{"n":1}`), ops.InProgress)
	refused(keyed(ada, "t.write", `{"n":2}`), ops.KeyReused)
	refused(keyed(ada, "t.read", `{"n":1}`), ops.KeyReused)
	close(gate)
	want, err := h.door.Await(t.Context(), first.Call)
	if err != nil {
		t.Fatal(err)
	}
	again, o := h.run(keyed(ada, "t.write", "{ \"n\" : 1.0 }"))
	if !again.Replayed || again.Call != first.Call || !cmp.Equal(o, want) {
		t.Errorf("got %+v %+v, want the replay of %+v", again, o, want)
	}
	refused(keyed(ada, "t.write", `{"n":2}`), ops.KeyReused)
	if ran.Load() != 1 {
		t.Errorf("ran %d times, want once", ran.Load())
	}
	// The scope is the identity, and a refused call does not use up its key.
	if ticket, o := h.run(keyed(scout, "t.write", `{"n":-1}`)); ticket.Replayed || o.Fault.Code != ops.InvalidParams {
		t.Errorf("another identity got %+v", o)
	}
	if ticket, o := h.run(keyed(scout, "t.read", `{}`)); ticket.Replayed || o.State != ops.Succeeded {
		t.Errorf("a key that a refusal left free gave %+v", o)
	}
}

func TestSameKeyAtOnceRunsOnce(t *testing.T) {
	ran := new(atomic.Int64)
	h := newHouse(t, write("t.write", func(ctx context.Context, c ops.Call) (ops.Outcome, error) { ran.Add(1); return fine(ctx, c) }))
	var callers sync.WaitGroup
	for range 24 {
		callers.Go(func() {
			c := call(ada, "t.write")
			c.Key = "one"
			if _, err := h.door.Submit(context.Background(), c); err != nil {
				t.Errorf("submit: %v", err)
			}
		})
	}
	callers.Wait()
	h.run(call(ada, "t.write")) // behind the others
	if ran.Load() != 2 {
		t.Errorf("ran %d times, want once for the key and once without", ran.Load())
	}
}

// Calls of one reply begin in order; reads run side by side, a write alone.
func TestOrderOfAReply(t *testing.T) {
	var mu sync.Mutex
	var log []string
	note := func(s string) { mu.Lock(); log = append(log, s); mu.Unlock() }
	both := make(chan struct{}, 2)
	together := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		both <- struct{}{}
		for len(both) < 2 { // both reads are inside at once, or the test ends by its deadline
			select {
			case <-ctx.Done():
				return ops.Outcome{}, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		note("read")
		return fine(ctx, c)
	}
	h := newHouse(t, read("r", together), write("w", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		note("write")
		return fine(ctx, c)
	}), read("last", func(ctx context.Context, c ops.Call) (ops.Outcome, error) { note("last"); return fine(ctx, c) }))
	var tickets []Ticket
	var orders []Order
	for _, op := range []ops.OpName{"r", "r", "w", "w", "last"} {
		orders = append(orders, h.door.Prepare(call(ada, op)))
	}
	if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) { tickets, err = h.door.Admit(tx, orders...); return err }); err != nil {
		t.Fatal(err)
	}
	h.door.Run(tickets...)
	h.door.Run(tickets...) // a second time changes nothing
	for _, ticket := range tickets {
		if _, err := h.door.Await(t.Context(), ticket.Call); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"read", "read", "write", "write", "last"}; !slices.Equal(log, want) {
		t.Errorf("ran %q, want %q", log, want)
	}
}

func TestCancel(t *testing.T) {
	inside := make(chan struct{}, 8)
	wait := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		inside <- struct{}{}
		<-ctx.Done()
		return ops.Outcome{}, ctx.Err()
	}
	h := newHouse(t, read("r", wait), write("w", wait), read("quick", fine))
	for op, want := range map[ops.OpName]ops.State{"r": ops.Cancelled, "w": ops.Unknown} {
		ticket, err := h.door.Submit(t.Context(), call(ada, op))
		if err != nil {
			t.Fatal(err)
		}
		<-inside
		if _, err := h.door.Cancel(t.Context(), scout, ticket.Call); AsFault(err) == nil || AsFault(err).Code != ops.NotFound {
			t.Errorf("another's call: got %v, want NOT_FOUND", err)
		}
		state, err := h.door.Cancel(t.Context(), ada, ticket.Call)
		if err != nil || state != want {
			t.Errorf("%s: got %s, %v, want %s", op, state, err, want)
		}
		if _, err := h.door.Cancel(t.Context(), ada, ticket.Call); AsFault(err) == nil || AsFault(err).Code != ops.Conflict {
			t.Errorf("a second time: got %v, want CONFLICT", err)
		}
	}
	if _, err := h.door.Cancel(t.Context(), ada, "c-nothing"); AsFault(err) == nil || AsFault(err).Code != ops.NotFound {
		t.Errorf("no such call: got %v, want NOT_FOUND", err)
	}

	// One that waits behind another has not begun.
	orders := []Order{h.door.Prepare(call(ada, "w")), h.door.Prepare(call(ada, "w"))}
	var tickets []Ticket
	if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) { tickets, err = h.door.Admit(tx, orders...); return err }); err != nil {
		t.Fatal(err)
	}
	h.door.Run(tickets...)
	<-inside
	done := make(chan error, 1)
	go func() { _, err := h.door.Cancel(context.Background(), ada, tickets[1].Call); done <- err }()
	// It settles once its turn comes: let the first one go.
	for c, err := h.door.read(t.Context(), tickets[1].Call); ; c, err = h.door.read(t.Context(), tickets[1].Call) {
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(h.kinds(c.ID), "call.cancel_requested") {
			break
		}
	}
	if _, err := h.door.Cancel(t.Context(), ada, tickets[0].Call); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	o, err := h.door.Await(t.Context(), tickets[1].Call)
	if err != nil || o.State != ops.Cancelled || o.Fault.Details["started"] != false {
		t.Errorf("got %+v, %v, want cancelled and not started", o, err)
	}
	if got := h.kinds(tickets[1].Call); slices.Contains(got, "call.running") {
		t.Errorf("it began: %q", got)
	}
}

func TestOnSettleIsOneCommit(t *testing.T) {
	h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), read("r", fine))
	h.people()
	h.door.OnSettle(func(tx journal.Tx, c ops.Call, o ops.Outcome) error {
		return tx.Append("seen/"+string(c.ID), 0, "seen", []byte(o.State))
	})
	h.start()
	t.Cleanup(h.close)
	for op, want := range map[ops.OpName]string{"r": "succeeded", "no": "refused"} {
		ticket, _ := h.run(call(scout, op))
		var got []string
		if err := h.store.Stream(t.Context(), "seen/"+string(ticket.Call), 0, func(e journal.Event) error { got = append(got, string(e.Body)); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: OnSettle wrote %q, want %q once", op, got, want)
		}
	}
}

func TestAcceptedIsSettledLater(t *testing.T) {
	h := newHouse(t, write("w", func(context.Context, ops.Call) (ops.Outcome, error) { return ops.Outcome{State: ops.Accepted}, nil }), read("r", fine))
	ticket, err := h.door.Submit(t.Context(), call(ada, "w"))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan ops.Outcome, 1)
	go func() {
		o, err := h.door.Await(context.Background(), ticket.Call)
		if err != nil {
			t.Errorf("await: %v", err)
		}
		got <- o
	}()
	settle := func(id ops.CallID, o ops.Outcome) error {
		return h.store.Update(t.Context(), func(tx journal.Tx) error { return h.door.Settle(tx, id, o) })
	}
	for { // accepted is written by another goroutine
		c, err := h.door.read(t.Context(), ticket.Call)
		if err != nil {
			t.Fatal(err)
		}
		if c.State == ops.Accepted {
			break
		}
	}
	if err := settle(ticket.Call, ops.Outcome{State: ops.Running}); err == nil {
		t.Error("an outcome that is not final was taken")
	}
	want := ops.Success(ops.NewResult("late", ""))
	if err := settle(ticket.Call, want); err != nil {
		t.Fatal(err)
	}
	if o := <-got; !cmp.Equal(o, want) {
		t.Errorf("awaited %+v, want %+v", o, want)
	}
	if err := settle(ticket.Call, want); AsFault(err) == nil || AsFault(err).Code != ops.Conflict {
		t.Errorf("settled twice: %v", err)
	}
}

// delegating is a Transactional op whose work goes on elsewhere.
type delegating struct{ ledger }

func (g delegating) ExecuteTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	return ops.Outcome{State: ops.Accepted}, tx.Append("ledger", journal.Any, "entry", []byte(c.ID))
}

// accept has ada order op and waits until the call is accepted.
func (h *house) accept(op ops.OpName) ops.CallID {
	h.t.Helper()
	ticket, err := h.door.Submit(h.t.Context(), call(ada, op))
	if err != nil {
		h.t.Fatal(err)
	}
	for {
		c, err := h.door.read(h.t.Context(), ticket.Call)
		if err != nil || c.outcome != nil {
			h.t.Fatalf("%s: %+v, %v", op, c.outcome, err)
		}
		if c.State == ops.Accepted {
			return ticket.Call
		}
	}
}

// An accepted call is cancelled by whoever has its work, in the transaction that records
// that somebody asked; without anybody it cannot be.
func TestCancelOfAnAcceptedCall(t *testing.T) {
	away := write("away", nil)
	away.Executor = delegating{}
	other := write("other", func(context.Context, ops.Call) (ops.Outcome, error) { return ops.Outcome{State: ops.Accepted}, nil })
	h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), away, other)
	h.people()
	gone := ops.Outcome{State: ops.Cancelled, Fault: ops.Faultf(ops.CallCancelled, "it has stopped")}
	refuse := errors.New("the store is in a mood")
	var later, broken atomic.Bool
	h.door.OnCancel(func(tx journal.Tx, by ops.Identity, c ops.Call) (bool, error) {
		switch {
		case c.Op != "away":
			return false, nil
		case broken.Load():
			return true, refuse
		case later.Load():
			return true, tx.Append("asked/"+string(c.ID), journal.Any, "asked", []byte(by.ID))
		}
		return true, h.door.Settle(tx, c.ID, gone)
	})
	h.door.OnCancel(func(journal.Tx, ops.Identity, ops.Call) (bool, error) {
		if later.Load() {
			t.Error("asked although another has it")
		}
		return false, nil
	})
	h.start()
	t.Cleanup(h.close)

	id := h.accept("away")
	if _, err := h.door.Cancel(t.Context(), scout, id); AsFault(err) == nil || AsFault(err).Code != ops.NotFound {
		t.Errorf("another's call: %v, want NOT_FOUND", err)
	}
	if state, err := h.door.Cancel(t.Context(), ada, id); err != nil || state != ops.Cancelled {
		t.Errorf("got %s, %v, want cancelled", state, err)
	}
	if o, err := h.door.Await(t.Context(), id); err != nil || !cmp.Equal(o, gone) {
		t.Errorf("awaited %+v, %v", o, err)
	}
	if _, err := h.door.Cancel(t.Context(), ada, id); AsFault(err) == nil || AsFault(err).Code != ops.Conflict {
		t.Errorf("a second time: %v, want CONFLICT", err)
	}

	id = h.accept("other") // nobody's
	if state, err := h.door.Cancel(t.Context(), ada, id); AsFault(err) == nil || AsFault(err).Code != ops.Conflict || state != ops.Accepted {
		t.Errorf("a call that nobody has: %s, %v, want CONFLICT", state, err)
	}

	later.Store(true)
	broken.Store(true)
	id = h.accept("away")
	if _, err := h.door.Cancel(t.Context(), ada, id); !errors.Is(err, refuse) {
		t.Errorf("got %v, want the function's error", err)
	}
	if got := h.kinds(id); slices.Contains(got, "call.cancel_requested") {
		t.Errorf("the events are %q although nothing was asked", got)
	}
	broken.Store(false)
	// It takes its time: who cancels waits until they lose patience.
	ctx, lose := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := h.door.Cancel(ctx, ada, id); done <- err }()
	for !slices.Contains(h.kinds(id), "call.cancel_requested") {
	}
	lose()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the caller's own end", err)
	}
	asked := ""
	if err := h.store.Stream(t.Context(), "asked/"+string(id), 0, func(e journal.Event) error { asked += string(e.Body); return nil }); err != nil || asked != "ada" {
		t.Errorf("asked for %q, %v", asked, err)
	}
	if c, err := h.door.read(t.Context(), id); err != nil || c.State != ops.Accepted {
		t.Errorf("the call is %s, %v", c.State, err)
	}
}

// An accepted call outlives the gateway: recovery leaves it alone, it is neither run again
// nor unknown, and who waits for it in the next life hears of it.
func TestAcceptedOutlivesARestart(t *testing.T) {
	away := write("away", nil)
	away.Executor = delegating{}
	path := filepath.Join(t.TempDir(), "journal.db")
	h := openHouse(t, path, away)
	h.people()
	h.start()
	id := h.accept("away")
	before := h.kinds(id)
	h.close()

	h = openHouse(t, path, away)
	h.start()
	t.Cleanup(h.close)
	if c, err := h.door.read(t.Context(), id); err != nil || c.State != ops.Accepted || !slices.Equal(h.kinds(id), before) || h.entries() != 1 {
		t.Fatalf("after a restart the call is %s, %v, its events %q, run %d times", c.State, err, h.kinds(id), h.entries())
	}
	got := make(chan ops.Outcome, 1)
	go func() {
		o, err := h.door.Await(context.Background(), id)
		if err != nil {
			t.Errorf("await: %v", err)
		}
		got <- o
	}()
	want := ops.Success(ops.NewResult("done elsewhere", ""))
	if err := h.store.Update(t.Context(), func(tx journal.Tx) error { return h.door.Settle(tx, id, want) }); err != nil {
		t.Fatal(err)
	}
	if o := <-got; !cmp.Equal(o, want) {
		t.Errorf("awaited %+v, want %+v", o, want)
	}
}

// ledger is a Transactional op that counts in the journal.
type ledger struct {
	fail func(tx journal.Tx) error
}

func (ledger) Execute(context.Context, ops.Call) (ops.Outcome, error) {
	return ops.Outcome{}, errors.New("not in a transaction")
}

func (l ledger) ExecuteTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	if err := tx.Append("ledger", journal.Any, "entry", []byte(c.ID)); err != nil {
		return ops.Outcome{}, err
	}
	if l.fail != nil {
		if err := l.fail(tx); err != nil {
			return ops.Outcome{}, err
		}
	}
	return ops.Success(ops.NewResult("entered", "")), nil
}

func (h *house) entries() (n int) {
	h.t.Helper()
	if err := h.store.Stream(context.Background(), "ledger", 0, func(journal.Event) error { n++; return nil }); err != nil {
		h.t.Fatal(err)
	}
	return n
}

func TestTransactional(t *testing.T) {
	entry := func(name ops.OpName, fail func(journal.Tx) error) ops.Bound {
		b := write(name, nil)
		b.Executor = ledger{fail}
		return b
	}
	h := newHouse(t, entry("fine", nil),
		entry("fault", func(journal.Tx) error { return ops.Faultf(ops.NotFound, "no such room") }),
		entry("bug", func(journal.Tx) error { return errors.New("bug") }),
		entry("panic", func(journal.Tx) error { panic("bug") }),
		entry("constraint", func(tx journal.Tx) error {
			_, err := tx.Exec(`INSERT INTO identity (id, role, created_at) VALUES ('ada', 'agent', 0)`)
			return err
		}))
	for op, want := range map[ops.OpName]string{"fault": "NOT_FOUND", "bug": "INTERNAL", "panic": "INTERNAL", "constraint": "INTERNAL"} {
		_, o := h.run(call(ada, op))
		if o.State != ops.Failed || string(o.Fault.Code) != want {
			t.Errorf("%s: got %+v, want failed %s", op, o, want)
		}
		if broke := strings.Contains(h.logs.String(), "op="+string(op)+" "); broke != (op != "fault") {
			t.Errorf("%s: that it broke is logged: %t", op, broke)
		}
	}
	if n := h.entries(); n != 0 {
		t.Errorf("ops that failed left %d entries", n)
	}
	ticket, o := h.run(call(ada, "fine"))
	if o.State != ops.Succeeded || h.entries() != 1 {
		t.Errorf("got %+v and %d entries, want 1", o, h.entries())
	}
	if got := h.kinds(ticket.Call); !slices.Equal(got, []string{"call.received", "call.settled"}) {
		t.Errorf("events %q", got)
	}
}

func TestRecovery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	ran := new(sync.Map)
	note := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		n, _ := ran.LoadOrStore(c.ID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		return fine(ctx, c)
	}
	tx := write("tx", nil)
	tx.Executor = ledger{}
	before := []ops.Bound{read("r", note), write("w", note), tx, read("changed", note), read("dropped", note)}
	changed := read("changed", note)
	changed.Op.SideEffecting = true
	after := []ops.Bound{read("r", note), write("w", note), tx, changed}

	// A gateway that dies between the intent and its execution: nothing is run.
	h := openHouse(t, path, before...)
	h.people()
	var tickets []Ticket
	admit := func(op ops.OpName) Ticket {
		order := h.door.Prepare(call(ada, op))
		if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) { tickets, err = h.door.Admit(tx, order); return err }); err != nil {
			t.Fatal(err)
		}
		return tickets[0]
	}
	want := map[ops.CallID]string{
		admit("r").Call: "succeeded", admit("w").Call: "failed NOT_STARTED", admit("tx").Call: "succeeded",
		admit("changed").Call: "failed NOT_STARTED", admit("dropped").Call: "failed NOT_STARTED",
	}
	begun := admit("w")
	begun.task.ctx = t.Context()
	if fault, err := h.door.begin(begun.task); err != nil || fault != nil {
		t.Fatal(fault, err)
	}
	want[begun.Call] = "outcome_unknown OUTCOME_UNKNOWN"
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}

	for range 2 { // and a second restart changes nothing
		h = openHouse(t, path, after...)
		h.start()
		for id, want := range want {
			o, err := h.door.Await(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			got := string(o.State)
			if o.Fault != nil {
				got += " " + string(o.Fault.Code)
			}
			if got != want {
				t.Errorf("call %s: got %s, want %s", id, got, want)
			}
		}
		if n := h.entries(); n != 1 {
			t.Errorf("the ledger has %d entries, want 1", n)
		}
		h.close()
	}
	ran.Range(func(id, n any) bool {
		if n := n.(*atomic.Int64).Load(); n != 1 {
			t.Errorf("call %v ran %d times", id, n)
		}
		return true
	})
	if _, ok := ran.Load(begun.Call); ok {
		t.Errorf("the call that had begun ran again")
	}
}

func TestRevokedBeforeItBegan(t *testing.T) {
	inside, gate := make(chan struct{}), make(chan struct{})
	var ran atomic.Int64
	note := func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		ran.Add(1)
		return fine(ctx, c)
	}
	tx := write("tx", nil)
	tx.Executor = ledger{}
	bound := []ops.Bound{read("r", note), write("w", note), tx, write("runs", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		close(inside)
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return fine(ctx, c)
	})}
	path := filepath.Join(t.TempDir(), "journal.db")
	h := openHouse(t, path, bound...)
	h.people()
	h.start()
	bea := ops.Identity{ID: "bea", Role: ops.Operator}
	if _, err := h.directory.Add(t.Context(), bea); err != nil {
		t.Fatal(err)
	}
	var tickets, left []Ticket
	orders := func(names ...ops.OpName) (o []Order) {
		for _, n := range names {
			o = append(o, h.door.Prepare(call(bea, n)))
		}
		return o
	}
	waiting, abandoned := orders("runs", "r", "w", "tx"), orders("r", "tx")
	if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) {
		if tickets, err = h.door.Admit(tx, waiting...); err != nil {
			return err
		}
		left, err = h.door.Admit(tx, abandoned...) // of a gateway that dies now
		return err
	}); err != nil {
		t.Fatal(err)
	}
	h.door.Run(tickets...)
	<-inside
	if _, err := h.directory.Revoke(t.Context(), bea.ID); err != nil {
		t.Fatal(err)
	}
	close(gate)
	check := func(ticket Ticket, state ops.State) {
		t.Helper()
		o, err := h.door.Await(t.Context(), ticket.Call)
		if err != nil || o.State != state || state == ops.Failed && o.Fault.Code != ops.NotPermitted {
			t.Errorf("%s: got %+v, %v, want %s", ticket.Op, o, err, state)
		}
	}
	check(tickets[0], ops.Succeeded) // it had begun
	for _, ticket := range tickets[1:] {
		check(ticket, ops.Failed)
	}
	h.close()
	h = openHouse(t, path, bound...)
	h.start()
	defer h.close()
	for _, ticket := range left {
		check(ticket, ops.Failed)
	}
	if ran.Load() != 0 || h.entries() != 0 {
		t.Errorf("%d calls ran and %d wrote after the revocation", ran.Load(), h.entries())
	}
}

// flaky is a store whose Tail breaks off after each event, as one whose disk cannot
// be read for a moment.
type flaky struct {
	journal.Store
	broke atomic.Int64
}

func (f *flaky) Tail(ctx context.Context, after int64, each func(journal.Event) error) error {
	errBroken := errors.New("disk I/O error")
	return f.Store.Tail(ctx, after, func(e journal.Event) error {
		if err := each(e); err != nil {
			return err
		}
		f.broke.Add(1)
		return errBroken
	})
}

func TestFollowGoesOnAfterAnError(t *testing.T) {
	h := newHouse(t, read("r", fine))
	for range 3 {
		h.run(call(scout, "r"))
	}
	head, err := h.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store := &flaky{Store: h.store}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	last := int64(0)
	Follow(ctx, store, 0, slog.New(slog.DiscardHandler), func(e journal.Event) {
		if e.Position != last+1 {
			t.Errorf("position %d follows %d", e.Position, last)
		}
		if last = e.Position; last == head {
			cancel()
		}
	})
	if last != head || store.broke.Load() != head {
		t.Errorf("followed to %d of %d, with %d breaks", last, head, store.broke.Load())
	}
}

// deaf is a store that takes no more writes once it is told so, as after a commit
// whose outcome is unknown.
type deaf struct {
	journal.Store
	writes atomic.Int64 // that are still taken
}

func (s *deaf) Update(ctx context.Context, f func(journal.Tx) error) error {
	if s.writes.Add(-1) < 0 {
		return journal.ErrClosed
	}
	return s.Store.Update(ctx, f)
}

func TestAwaitIsToldWhenNoOutcomeWillCome(t *testing.T) {
	for writes, op := range map[int64]ops.OpName{1: "r", 2: "w"} { // the intent; and the start
		h := newHouse(t)
		store := &deaf{Store: h.store}
		store.writes.Store(writes)
		registry, err := ops.New(read("r", fine), write("w", fine))
		if err != nil {
			t.Fatal(err)
		}
		door, err := New(Config{Store: store, Registry: ops.NewLive(registry), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		order := door.Prepare(call(ada, op))
		var tickets []Ticket
		if err := store.Update(t.Context(), func(tx journal.Tx) (err error) { tickets, err = door.Admit(tx, order); return err }); err != nil {
			t.Fatal(err)
		}
		tickets[0].task.entry.Executor = ops.ExecutorFunc(func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
			<-gate
			return fine(ctx, c)
		})
		door.Run(tickets...)
		told := make(chan error, 1)
		go func() {
			_, err := door.Await(t.Context(), tickets[0].Call)
			told <- err
		}()
		for { // it waits
			door.mu.Lock()
			waits := door.waiters[tickets[0].Call] != nil
			door.mu.Unlock()
			if waits {
				break
			}
		}
		close(gate)
		if f := AsFault(<-told); f == nil || f.Code != ops.Unavailable {
			t.Errorf("%s: got %v, want UNAVAILABLE", op, f)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = door.Close(ended)
	}
}

func TestBusyTakesNothing(t *testing.T) {
	gate := make(chan struct{})
	h := newHouse(t, read("r", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return fine(ctx, c)
	}))
	busy := func(by ops.Identity, of int) {
		t.Helper()
		for range of {
			if _, err := h.door.Submit(t.Context(), call(by, "r")); err != nil {
				t.Fatal(err)
			}
		}
		_, err := h.door.Submit(t.Context(), call(by, "r"))
		if f := AsFault(err); f == nil || f.Code != ops.Busy || !f.Retryable || f.Details["waiting"] != f.Details["max"] || f.Details["max"] == nil {
			t.Errorf("one more of %s: got %v, want BUSY with the numbers", by, err)
		}
	}
	busy(scout, 24)  // its share
	busy(ada, 32-24) // all the rest
	if n := h.calls(); n != 32 {
		t.Errorf("%d calls on record, want 32", n)
	}
	close(gate)
}

func TestOneIdentityLeavesRoomForOthers(t *testing.T) {
	gate := make(chan struct{})
	var running, most atomic.Int64
	h := newHouse(t, read("slow", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return fine(ctx, c)
	}), read("quick", fine))
	var tickets []Ticket
	for range 24 { // three times what may run
		ticket, err := h.door.Submit(t.Context(), call(scout, "slow"))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	if _, o := h.run(call(ada, "quick")); o.State != ops.Succeeded {
		t.Errorf("got %+v beside another one's calls", o)
	}
	// One that waits for a slot can be cancelled, and is then not run.
	if state, err := h.door.Cancel(t.Context(), scout, tickets[23].Call); err != nil || state != ops.Cancelled {
		t.Errorf("cancel: %s, %v", state, err)
	}
	close(gate)
	for _, ticket := range tickets[:23] {
		if o, err := h.door.Await(t.Context(), ticket.Call); err != nil || o.State != ops.Succeeded {
			t.Errorf("got %+v, %v", o, err)
		}
	}
	if n := most.Load(); n > 4 {
		t.Errorf("%d calls of one agent ran at once, want at most 4 of 8", n)
	}
}

func TestCloseFinishesWhatRuns(t *testing.T) {
	inside, gate := make(chan struct{}), make(chan struct{})
	h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), write("w", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		close(inside)
		<-gate
		return fine(ctx, c)
	}), write("stuck", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		<-ctx.Done()
		return ops.Outcome{}, ctx.Err()
	}))
	h.people()
	h.start()
	w, err := h.door.Submit(t.Context(), call(ada, "w"))
	if err != nil {
		t.Fatal(err)
	}
	<-inside
	stuck, err := h.door.Submit(t.Context(), call(ada, "stuck"))
	if err != nil {
		t.Fatal(err)
	}
	for { // stuck has begun
		if slices.Contains(h.kinds(stuck.Call), "call.running") {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- h.door.Close(ctx) }()
	for !h.door.isClosing() {
		time.Sleep(time.Millisecond)
	}
	if _, err := h.door.Submit(t.Context(), call(ada, "w")); AsFault(err) == nil || AsFault(err).Code != ops.Unavailable {
		t.Errorf("a call after closing: %v, want UNAVAILABLE", err)
	}
	close(gate)
	if o, err := h.door.Await(t.Context(), w.Call); err != nil || o.State != ops.Succeeded {
		t.Errorf("got %+v, %v, want success", o, err)
	}
	cancel()
	if err := <-closed; !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v, want the context's error", err)
	}
	if c, err := h.door.read(t.Context(), stuck.Call); err != nil || c.State != ops.Unknown {
		t.Errorf("stuck is %s, %v, want outcome_unknown", c.State, err)
	}
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAwaitEnds(t *testing.T) {
	h := newHouse(t, read("r", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		<-ctx.Done()
		return ops.Outcome{}, ctx.Err()
	}))
	if _, err := h.door.Await(t.Context(), "c-none"); AsFault(err) == nil || AsFault(err).Code != ops.NotFound {
		t.Errorf("no such call: %v", err)
	}
	ticket, err := h.door.Submit(t.Context(), call(scout, "r"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.door.Await(ctx, ticket.Call); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if len(h.door.waiters) != 0 {
		t.Errorf("%d waiters are left behind", len(h.door.waiters))
	}
	if _, err := h.door.Cancel(t.Context(), scout, ticket.Call); err != nil {
		t.Fatal(err)
	}
}

func TestReads(t *testing.T) {
	h := newHouse(t, read("r", fine), write("w", fine))
	reads := NewReads(h.door, h.directory, About{Version: "v0", StartedAt: time.Now(), Config: map[string]int{}, Adaptors: []string{"rooms"}, Missing: func() []string { return nil }})
	relay := ops.Identity{ID: "relay", Role: ops.Bridge}
	if _, err := h.directory.Add(t.Context(), relay, scout.ID); err != nil {
		t.Fatal(err)
	}
	mine, _ := h.run(call(scout, "r"))
	theirs, _ := h.run(call(ada, "w"))
	code := func(by ops.Identity, name, arg string) ops.Code {
		_, err := reads.Do(t.Context(), by, name, Query{Arg: arg})
		if f := AsFault(err); f != nil {
			return f.Code
		}
		return ""
	}
	for _, tc := range []struct {
		by        ops.Identity
		name, arg string
		want      ops.Code
	}{
		{scout, "status", "", ""}, {scout, "health", "", ""}, {scout, "ops", "", ""}, {scout, "op", "w", ""}, {scout, "op", "x", ops.UnknownOp},
		{scout, "calls", "", ""}, {scout, "call", string(mine.Call), ""}, {scout, "call", string(theirs.Call), ops.NotFound},
		{relay, "call", string(mine.Call), ""}, {relay, "call", string(theirs.Call), ops.NotFound},
		{relay, "agent", "scout", ""}, {relay, "agent", "relay", ""}, {relay, "agent", "ada", ops.NotFound}, {ada, "call", string(mine.Call), ""}, {scout, "config", "", ops.NotPermitted}, {scout, "agents", "", ops.NotPermitted},
		{scout, "agent", "scout", ""}, {scout, "agent", "ada", ops.NotFound}, {ada, "agents", "", ""}, {ada, "agent", "none", ops.NotFound},
		{ada, "op", "", ops.BadRequest}, {ada, "ops", "x", ops.BadRequest}, {ada, "timers", "", ops.NotFound},
	} {
		if got := code(tc.by, tc.name, tc.arg); got != tc.want {
			t.Errorf("%s reads %s %s: got %q, want %q", tc.by, tc.name, tc.arg, got, tc.want)
		}
	}
	l := h.door.List(scout)
	if l.Total != 2 || !l.Ops[0].Permitted || l.Ops[1].Permitted || !l.Ops[1].SideEffecting {
		t.Errorf("tools.list for an agent: %+v", l)
	}
	if err := reads.Add(Read{Name: "weather"}); err == nil {
		t.Error("a read that nobody documents was added")
	}
}

func TestCallsArePaged(t *testing.T) {
	h := newHouse(t, read("r", fine))
	var want []ops.CallID
	for range 7 {
		ticket, _ := h.run(call(scout, "r"))
		want = append(want, ticket.Call)
	}
	slices.Reverse(want)
	var got []ops.CallID
	for after := ""; ; {
		v, err := h.door.listCalls(t.Context(), scout, Query{Limit: 3, After: after})
		if err != nil {
			t.Fatal(err)
		}
		var page struct {
			Calls []struct{ Call ops.CallID }
			Next  string
		}
		b, _ := json.Marshal(v)
		if err := json.Unmarshal(b, &page); err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Calls {
			got = append(got, c.Call)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages hold %q, want %q", got, want)
	}
}

// The outcome of a call is what its key leads to for good, so a replay does not send
// anybody for another one.
func TestReplayIsNotRetryable(t *testing.T) {
	var ran atomic.Int32
	h := newHouse(t, write("t.write", func(context.Context, ops.Call) (ops.Outcome, error) {
		ran.Add(1)
		return ops.Failure(ops.Faultf(ops.Busy, "no room for a process; nothing ran")), nil
	}))
	c := ops.Call{Op: "t.write", By: ada, Key: "k", Params: json.RawMessage(`{"n":1}`), From: ops.Origin{Source: "test"}}
	first, o := h.run(c)
	if first.Replayed || o.Fault == nil || !o.Fault.Retryable {
		t.Fatalf("got %+v %+v, want a retryable fault", first, o)
	}
	again, o := h.run(c)
	if !again.Replayed || again.Call != first.Call || o.Fault == nil || o.Fault.Code != ops.Busy || o.Fault.Retryable || ran.Load() != 1 {
		t.Errorf("got %+v %+v after %d runs, want the replay, not retryable", again, o, ran.Load())
	}
	c.Key = "another"
	if again, _ := h.run(c); again.Replayed || ran.Load() != 2 {
		t.Errorf("got %+v after %d runs, want another run", again, ran.Load())
	}
}
