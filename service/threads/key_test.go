package threads

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"inband/harvester"
	"inband/ops"
	"inband/service/journal"
)

func TestNewKey(t *testing.T) {
	if bits := 4 * keyGroups * math.Log2(float64(len(keyAlphabet))); bits < 59 {
		t.Errorf("a key has %.1f bits, want 59", bits)
	}
	seen := make(map[string]bool)
	count := make(map[rune]int)
	const n = 2000
	for range n {
		key := newKey()
		if seen[key] || !keyForm.MatchString(key) {
			t.Fatalf("key %q, seen before: %v", key, seen[key])
		}
		seen[key] = true
		found, _ := harvester.All([]byte("[TOOL#"+key+" t.read {}]"), harvester.Config{})
		if len(found) != 1 || found[0].Key != key {
			t.Fatalf("the harvester reads key %q as %+v", key, found)
		}
		for _, r := range key {
			count[r]++
		}
	}
	// Each character stands in about n·12/31 places; six deviations are never passed.
	mean := float64(n*4*keyGroups) / float64(len(keyAlphabet))
	for _, r := range keyAlphabet {
		if d := math.Abs(float64(count[r]) - mean); d > 6*math.Sqrt(mean) {
			t.Errorf("%q stands %d times in %d keys, want about %.0f", r, count[r], n, mean)
		}
	}
}

// errand is one of ada for who, that declares t.write.
func errand(who ops.Identity, thread string) Errand {
	return Errand{Agent: who.ID, Cause: ByMessage, Source: "test", By: ada, Name: "ada", Thread: thread, Text: "Write.", Ops: []ops.OpName{"t.write"}}
}

// key is the key of a wake.
func (h *house) key(id WakeID) (key string) {
	h.t.Helper()
	if err := h.store.View(h.t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT key FROM wake WHERE id = $1`, func(scan func(...any) error) error { return scan(&key) }, string(id))
	}); err != nil || key == "" {
		h.t.Fatalf("key of wake %s: %q, %v", id, key, err)
	}
	return key
}

// verdict is what has become of a wake: its state and its verdict.
func (h *house) verdict(id WakeID) string {
	h.t.Helper()
	var state string
	var verdict *string
	if err := h.store.View(h.t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT state, verdict FROM wake WHERE id = $1`, func(scan func(...any) error) error { return scan(&state, &verdict) }, string(id))
	}); err != nil {
		h.t.Fatal(err)
	}
	if verdict != nil {
		state += " " + *verdict
	}
	return state
}

func (h *house) update(f func(journal.Tx) error) {
	h.t.Helper()
	if err := h.store.Update(h.t.Context(), f); err != nil {
		h.t.Fatal(err)
	}
}

// overdue ends what is overdue and returns when the next one is.
func (h *house) overdue() (next time.Time) {
	h.t.Helper()
	h.update(func(tx journal.Tx) (err error) {
		next, err = h.threads.EndOverdue(tx, 100)
		return err
	})
	return next
}

// A key is good for its agent, in its thread, while its wake is open and its deadline has
// not passed. Whatever else has a key is refused, and what has none waits.
func TestKeys(t *testing.T) {
	const good, missing, wrong = "good", "missing", "wrong"
	for _, tc := range []struct {
		name string
		want string
		// make returns who writes where, with which key, in front of which words.
		make func(h *house, w Wake) (who ops.Identity, thread, key, after string)
	}{
		{"its own", good, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"none", missing, func(h *house, w Wake) (ops.Identity, string, string, string) { return scout, w.Thread, "", "" }},
		{"another", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, w.Thread, "aaaa-bbbb-cccc", ""
		}},
		{"cut", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, w.Thread, h.key(w.ID)[:13], ""
		}},
		{"longer", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, w.Thread, h.key(w.ID) + "a", ""
		}},
		{"of another agent in the thread", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			h.raise(errand(clerk, w.Thread))
			return clerk, w.Thread, h.key(w.ID), ""
		}},
		{"in another thread of the agent", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, h.raise(errand(scout, "")).Thread, h.key(w.ID), ""
		}},
		{"in a thread without wakes", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, h.take(scout, Reply{Agent: "scout", Room: "lobby", Message: "m0", Text: "hi"}).Thread, h.key(w.ID), ""
		}},
		{"with another wake behind it", good, func(h *house, w Wake) (ops.Identity, string, string, string) {
			h.raise(errand(scout, w.Thread))
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"at the end of its time", good, func(h *house, w Wake) (ops.Identity, string, string, string) {
			time.Sleep(time.Until(w.Deadline) - time.Millisecond)
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"expired", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			time.Sleep(time.Until(w.Deadline))
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"of a wake that is overdue", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			time.Sleep(time.Until(w.Deadline) + time.Second)
			h.overdue()
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"after done", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			h.take(scout, Reply{Agent: "scout", Thread: w.Thread, Message: "m0", Text: `[RESULT {"verdict":"done"}]`})
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"after blocked", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			h.take(scout, Reply{Agent: "scout", Thread: w.Thread, Message: "m0", Text: `[RESULT {"verdict":"blocked"}]`})
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"after waiting", good, func(h *house, w Wake) (ops.Identity, string, string, string) {
			h.take(scout, Reply{Agent: "scout", Thread: w.Thread, Message: "m0", Text: `[RESULT {"verdict":"waiting"}]`})
			return scout, w.Thread, h.key(w.ID), ""
		}},
		{"beside the end", good, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, w.Thread, h.key(w.ID), `[RESULT {"verdict":"done"}]` + "\n"
		}},
		{"of a wake that is held", wrong, func(h *house, w Wake) (ops.Identity, string, string, string) {
			h.update(func(tx journal.Tx) error { return h.door.Hold(tx, ada, w.Thread) })
			held := h.raise(errand(scout, w.Thread))
			return scout, w.Thread, h.key(held.ID), ""
		}},
		{"without one, at no wake at all", missing, func(h *house, w Wake) (ops.Identity, string, string, string) {
			return scout, h.take(scout, Reply{Agent: "scout", Room: "lobby", Message: "m0", Text: "hi"}).Thread, "", ""
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ran := new(atomic.Int64)
				h := newHouse(t, write("t.write", ran))
				who, thread, key, after := tc.make(h, h.raise(errand(scout, "")))
				mark := ""
				if key != "" {
					mark = "#" + key
				}
				ack := h.take(who, Reply{Agent: who.ID, Thread: thread, Message: "m1", Text: after + "[TOOL" + mark + " t.write {}]"})
				synctest.Wait()
				c, got := ack.Calls[0], good
				switch {
				case c.State == ops.Parked && c.Rule == "R4 key missing":
					got = missing
				case c.State == ops.Refused && c.Fault.Code == ops.WrongKey && c.Rule == "R4 key wrong":
					got = wrong
				case c.State != ops.Received:
					got = fmt.Sprintf("%+v", c)
				}
				if runs := ran.Load() == 1; got != tc.want || runs != (got == good) {
					t.Errorf("the key is %s and the call ran: %v; want %s", got, runs, tc.want)
				}
			})
		})
	}
}

// A directive is of the wake whose key it has, and without one of the agent's last wake in
// the thread, whatever has become of that.
func TestRootAndHopsAreInherited(t *testing.T) {
	h := newHouse(t, echo("t.read", "x"))
	e := errand(scout, "")
	e.Root, e.Hops = "the cause", 3
	first := h.raise(e)
	later := errand(scout, first.Thread)
	later.Root, later.Hops = "a later cause", 5
	second := h.raise(later)
	for i, tc := range []struct {
		text string
		want ops.Origin
	}{
		{"[TOOL#" + h.key(first.ID) + " t.read {}]", ops.Origin{Wake: string(first.ID), Root: "the cause", Hops: 3}},
		{"[TOOL t.read {}]", ops.Origin{Wake: string(second.ID), Root: "a later cause", Hops: 5}},
		{"[TOOL#zzzz t.read {}]", ops.Origin{Wake: string(second.ID), Root: "a later cause", Hops: 5}},
		{"[TOOL#" + h.key(second.ID) + ` t.read {}] [RESULT {"verdict":"done"}]`, ops.Origin{Wake: string(second.ID), Root: "a later cause", Hops: 5}},
		{"[TOOL t.read {}]", ops.Origin{Wake: string(second.ID), Root: "a later cause", Hops: 5}},
	} {
		ack := h.take(scout, Reply{Agent: "scout", Thread: first.Thread, Message: fmt.Sprintf("m%d", i), Text: tc.text})
		if from := h.origin(ack.Calls[0].Call); from.Wake != tc.want.Wake || from.Root != tc.want.Root || from.Hops != tc.want.Hops {
			t.Errorf("%s comes from %+v, want %+v", tc.text, from, tc.want)
		}
	}
	// Without any wake a call is its own cause.
	ack := h.take(scout, Reply{Agent: "scout", Room: "lobby", Message: "m", Text: "[TOOL t.read {}]"})
	if from := h.origin(ack.Calls[0].Call); from.Wake != "" || from.Root != from.Source || from.Hops != 0 || from.Declared != nil {
		t.Errorf("a call of no wake comes from %+v", from)
	}
}

// origin is where a call came from.
func (h *house) origin(id ops.CallID) (from ops.Origin) {
	h.t.Helper()
	if err := h.store.View(h.t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT origin FROM call WHERE id = $1`, func(scan func(...any) error) error { return scanJSON(scan, &from) }, string(id))
	}); err != nil {
		h.t.Fatal(err)
	}
	return from
}

// Of replies that come at once and all end the wake, one does, and only its orders count.
func TestOneOfManyEndsTheWake(t *testing.T) {
	ran := new(atomic.Int64)
	h := newHouse(t, write("t.write", ran))
	w := h.raise(errand(scout, ""))
	key := h.key(w.ID)
	var callers sync.WaitGroup
	var done, refused atomic.Int64
	const n = 16
	for i := range n {
		callers.Go(func() {
			ack, err := h.threads.Take(context.Background(), scout, Reply{Agent: "scout", Thread: w.Thread, Message: fmt.Sprintf("m%d", i),
				Text: fmt.Sprintf("[TOOL#%s t.write {\"n\":%d}]\n[RESULT {\"verdict\":\"done\"}]", key, i)})
			switch {
			case err != nil:
				t.Error(err)
			case ack.Verdict == Done && ack.Wake == w.ID && ack.Calls[0].State == ops.Received:
				done.Add(1)
			case ack.Verdict == "" && ack.Calls[0].Fault != nil && ack.Calls[0].Fault.Code == ops.WrongKey:
				refused.Add(1)
			default:
				t.Errorf("ack %+v", ack)
			}
		})
	}
	callers.Wait()
	h.settled()
	if done.Load() != 1 || refused.Load() != n-1 || ran.Load() != 1 {
		t.Errorf("%d replies ended the wake, %d were refused, %d orders ran; want 1, %d, 1", done.Load(), refused.Load(), ran.Load(), n-1)
	}
}

// An order that is repeated under a wake is answered with what came of it, and runs once.
func TestRepeatedOrders(t *testing.T) {
	ran := new(atomic.Int64)
	hold := make(chan struct{})
	slow := write("t.slow", ran)
	slow.Op.Params = nil
	slow.Executor = ops.ExecutorFunc(func(ctx context.Context, _ ops.Call) (ops.Outcome, error) {
		ran.Add(1)
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return ops.Success(ops.NewResult("slow", "")), nil
	})
	h := newHouse(t, write("t.write", ran), slow)
	e := errand(scout, "")
	e.Ops = append(e.Ops, "t.slow")
	w := h.raise(e)
	key := h.key(w.ID)
	order := func(message, text string) AckCall {
		ack := h.take(scout, Reply{Agent: "scout", Thread: w.Thread, Message: message, Text: text})
		return ack.Calls[0]
	}
	first := order("m1", "[TOOL#"+key+` t.write {"n":1}]`)
	posts := h.posts(w.Thread, 3)
	if posts[2].Kind != "result" || posts[2].Call != first.Call {
		t.Fatalf("posts %+v", posts)
	}
	again := order("m2", "[TOOL#"+key+` t.write {"n":1}]`)
	posts = h.posts(w.Thread, 5)
	if p := posts[4]; again.Call != first.Call || p.Kind != "result" || p.Call != first.Call || ran.Load() != 1 {
		t.Errorf("the order again: %+v, answered with %+v; it ran %d times", again, p, ran.Load())
	}
	under := order("m3", "[TOOL#"+key+" t.slow {}]")
	repeated := order("m4", "[TOOL#"+key+" t.slow {}]")
	posts = h.posts(w.Thread, 8)
	if p := posts[7]; repeated.Call != under.Call || p.Kind != "note" || p.Call != under.Call {
		t.Errorf("the order again while it runs: %+v, answered with %+v", repeated, p)
	}
	close(hold)
	h.posts(w.Thread, 9)
	if ran.Load() != 2 {
		t.Errorf("%d executions, want 2", ran.Load())
	}
	// Another wake is another order.
	other := h.raise(errand(scout, w.Thread))
	if c := order("m5", "[TOOL#"+h.key(other.ID)+` t.write {"n":1}]`); c.Call == first.Call {
		t.Error("an order under another wake counts as repeated")
	}
}

func TestWeigh(t *testing.T) {
	h := newHouse(t, write("t.write", new(atomic.Int64)), echo("t.read", "x"))
	near := errand(scout, "")
	near.Root, near.Hops = "near", 1
	far := errand(scout, "")
	far.Root, far.Hops, far.Shown, far.By = "far", 4, `[TOOL t.write {"n":7}]`, clerk
	first, second := h.raise(near), h.raise(far)
	ended := h.raise(errand(scout, ""))
	h.take(scout, Reply{Agent: "scout", Thread: ended.Thread, Message: "m", Text: `[RESULT {"verdict":"failed"}]`})
	for _, tc := range []struct {
		name   string
		by     ops.Identity
		op     ops.OpName
		params string
		key    string
		want   ops.Evidence
		from   ops.Origin
	}{
		{"with a key", scout, "t.write", "{}", h.key(first.ID), ops.Evidence{Key: ops.KeyGood, Echo: ops.EchoNone, Clean: true, Fresh: true},
			ops.Origin{Wake: string(first.ID), Thread: first.Thread, Root: "near", Hops: 1, Declared: []ops.OpName{"t.write"}}},
		{"what was shown", scout, "t.write", `{"n":7}`, h.key(second.ID), ops.Evidence{Key: ops.KeyGood, Echo: ops.EchoFound, Fresh: true},
			ops.Origin{Wake: string(second.ID), Thread: second.Thread, Root: "far", Hops: 4, Declared: []ops.OpName{"t.write"}}},
		{"a read with a key", scout, "t.read", "{}", h.key(first.ID), ops.Evidence{Key: ops.KeyGood, Echo: ops.EchoUnknown, Fresh: true},
			ops.Origin{Wake: string(first.ID), Thread: first.Thread, Root: "near", Hops: 1, Declared: []ops.OpName{"t.write"}}},
		{"without", scout, "t.write", "{}", "", ops.Evidence{Key: ops.KeyMissing, Echo: ops.EchoUnknown, Fresh: true}, ops.Origin{Root: "far", Hops: 4}},
		{"a read without", scout, "t.read", "{}", "", ops.Evidence{Key: ops.KeyMissing, Echo: ops.EchoUnknown, Fresh: true}, ops.Origin{}},
		{"of an ended wake", scout, "t.write", "{}", h.key(ended.ID), ops.Evidence{Key: ops.KeyWrong, Echo: ops.EchoUnknown, Fresh: true}, ops.Origin{}},
		{"another agent's", clerk, "t.write", "{}", h.key(first.ID), ops.Evidence{Key: ops.KeyWrong, Echo: ops.EchoUnknown, Fresh: true}, ops.Origin{}},
		{"an operator's", ada, "t.write", "{}", h.key(first.ID), ops.Evidence{Key: ops.KeyWrong, Echo: ops.EchoUnknown, Fresh: true}, ops.Origin{}},
		{"of an agent without wakes", clerk, "t.write", "{}", "", ops.Evidence{Key: ops.KeyMissing, Echo: ops.EchoUnknown, Fresh: true}, ops.Origin{}},
	} {
		c, err := h.threads.Weigh(t.Context(), ops.Call{Op: tc.op, By: tc.by, Params: []byte(tc.params)}, tc.key)
		if err != nil || c.Evidence != tc.want || fmt.Sprint(c.From) != fmt.Sprint(tc.from) {
			t.Errorf("%s: %+v from %+v, %v; want %+v from %+v", tc.name, c.Evidence, c.From, err, tc.want, tc.from)
		}
	}
}

// between has something happen before each transaction that writes under a context of its
// own.
type between struct{ journal.Store }

type happens struct{}

func (b between) Update(ctx context.Context, f func(journal.Tx) error) error {
	if happen, ok := ctx.Value(happens{}).(func()); ok {
		happen()
	}
	return b.Store.Update(ctx, f)
}

// What changes between the weighing of a reply and its taking counts.
func TestAReplyIsWeighedByWhatIsSoWhenItIsTaken(t *testing.T) {
	for _, tc := range []struct {
		name   string
		happen func(h *house, w Wake, n int)
		want   ops.Code // of the order, or of the whole reply
		taken  bool
	}{
		{"nothing", func(*house, Wake, int) {}, "", true},
		{"the wake ends", func(h *house, w Wake, n int) {
			if n == 1 {
				h.update(func(tx journal.Tx) error { return h.threads.end(tx, w.ID, scout.ID, w.Thread, Unanswered, "test") })
			}
		}, ops.WrongKey, true},
		{"a stranger writes the same order", func(h *house, w Wake, n int) {
			if n == 1 {
				h.update(func(tx journal.Tx) error {
					return keepMaterial(tx, w.Thread, "", h.threads.materialOf("[TOOL t.write {\"n\":1}]"))
				})
			}
		}, ops.Quotation, true},
		{"it changes each time", func(h *house, w Wake, _ int) { h.raise(errand(scout, w.Thread)) }, ops.Busy, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ran := new(atomic.Int64)
			h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), write("t.write", ran))
			defer h.close()
			h.threads.store = between{h.store}
			h.people()
			h.start()
			w := h.raise(errand(scout, ""))
			n := 0
			ctx := context.WithValue(t.Context(), happens{}, func() { n++; tc.happen(h, w, n) })
			ack, err := h.threads.Take(ctx, scout, Reply{Agent: "scout", Thread: w.Thread, Message: "m", Text: "[TOOL#" + h.key(w.ID) + " t.write {\"n\":1}]"})
			if !tc.taken {
				if code(err) != tc.want || h.number(`SELECT count(*) FROM post WHERE kind = 'reply'`) != 0 {
					t.Errorf("got %v, want %s and nothing taken", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ops.Code("")
			if f := ack.Calls[0].Fault; f != nil {
				got = f.Code
			}
			h.settled()
			if got != tc.want || (ran.Load() == 1) != (tc.want == "") {
				t.Errorf("the order is %+v and ran %d times, want %q", ack.Calls[0], ran.Load(), tc.want)
			}
		})
	}
}
