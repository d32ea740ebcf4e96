package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service/journal"
)

func rateOf(b ops.Bound, count int, per time.Duration) ops.Bound {
	b.Op.Rate = ops.Rate{Count: count, Per: per}
	return b
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rates
		op := []rated{{op: "x", rate: ops.Rate{Count: 3, Per: 6 * time.Second}}}
		take := func(things []rated, want time.Duration) {
			t.Helper()
			if _, wait := r.take(things); wait != want {
				t.Errorf("wait %s, want %s", wait, want)
			}
		}
		for range 3 {
			take(op, 0)
		}
		take(op, 2*time.Second)
		take(op, 2*time.Second) // asking takes nothing
		time.Sleep(500 * time.Millisecond)
		take(op, 1500*time.Millisecond)
		time.Sleep(1500 * time.Millisecond)
		take(op, 0)
		take(op, 2*time.Second)
		r.give(op)
		take(op, 0)
		take(op, 2*time.Second)
		// Of two, neither is taken unless both can be had.
		other := rated{by: "scout", rate: ops.Rate{Count: 1, Per: time.Hour}}
		take([]rated{other, op[0]}, 2*time.Second)
		take([]rated{other}, 0)
		take([]rated{other}, time.Hour)
		// When several are used up, the wait is for all of them.
		take([]rated{op[0], other}, time.Hour)
		take([]rated{other, op[0]}, time.Hour)
		// Another rate begins anew; the same one goes on.
		take([]rated{{op: "x", rate: ops.Rate{Count: 1, Per: 6 * time.Second}}}, 0)
		take(op, 2*time.Second)
		// Giving back never makes it more than it was.
		time.Sleep(time.Minute)
		take(op, 0)
		r.give(op)
		r.give(op)
		for range 3 {
			take(op, 0)
		}
		take(op, 2*time.Second)
	})
}

// However callers come, a rate lets through no more than its count at once and its
// count again in each Per; and who comes after what it was told to wait is let through.
func TestRatesHold(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			var r rates
			thing := []rated{{op: "x", rate: ops.Rate{Count: 1 + random.IntN(50), Per: time.Duration(1+random.IntN(100)) * time.Second}}}
			begun, passed := time.Now(), 0
			for range 2000 {
				time.Sleep(time.Duration(random.ExpFloat64() * float64(thing[0].rate.Per) / float64(thing[0].rate.Count) / 2))
				dry, wait := r.take(thing)
				if dry == nil {
					passed++
				} else if random.IntN(10) == 0 {
					time.Sleep(wait + time.Nanosecond)
					if dry, wait := r.take(thing); dry != nil {
						t.Fatalf("seed %d: after the wait, another one of %s", seed, wait)
					}
					passed++
				}
				if most := float64(thing[0].rate.Count)*(1+time.Since(begun).Seconds()/thing[0].rate.Per.Seconds()) + 1e-6; float64(passed) > most {
					t.Fatalf("seed %d: %d passed, want at most %f", seed, passed, most)
				}
			}
		})
	}
}

func TestRatesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rates
		for i := range 10_000 {
			r.take([]rated{{by: ops.IdentityID(fmt.Sprint("a", i)), rate: ops.Rate{Count: 60, Per: time.Minute}}})
			time.Sleep(100 * time.Millisecond) // one is as good as new a second later
		}
		if n := len(r.had); n > 64 {
			t.Errorf("%d are kept, want at most 64", n)
		}
	})
}

func TestRateOfAnOp(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		keyed := func(by ops.Identity, op ops.OpName, key string) ops.Call {
			c := call(by, op)
			c.Key = key
			return c
		}
		limited := func(c ops.Call, seconds int64) {
			t.Helper()
			before, calls := len(h.door.rates.had), h.calls()
			_, err := h.door.Submit(t.Context(), c)
			f := AsFault(err)
			if f == nil || f.Code != ops.RateLimited || !f.Retryable || f.Details["retry_after"] != seconds {
				t.Errorf("%s by %s: got %+v, want RATE_LIMITED for %d s", c.Op, c.By, err, seconds)
			}
			if h.calls() != calls || len(h.door.rates.had) != before {
				t.Errorf("the refusal was written")
			}
		}
		first, _ := h.run(keyed(ada, "twice", "k"))
		if again, o := h.run(keyed(ada, "twice", "k")); !again.Replayed || o.State != ops.Succeeded {
			t.Errorf("got %+v %+v, want a replay", again, o)
		}
		h.run(call(scout, "twice"))
		limited(call(ada, "twice"), 30) // of all identities together, operators too
		limited(call(scout, "twice"), 30)
		limited(keyed(ada, "twice", "new"), 30)
		limited(keyed(scout, "twice", "k"), 30) // another's key
		if again, o := h.run(keyed(ada, "twice", "k")); !again.Replayed || again.Call != first.Call || o.State != ops.Succeeded {
			t.Errorf("got %+v %+v, want a replay", again, o)
		}
		bad := call(ada, "twice")
		bad.Params = json.RawMessage(`{"x":1}`)
		if _, o := h.run(bad); o.Fault == nil || o.Fault.Code != ops.InvalidParams {
			t.Errorf("got %+v, want INVALID_PARAMS", o)
		}
		h.run(call(ada, "any"))
		time.Sleep(29500 * time.Millisecond)
		limited(call(ada, "twice"), 1) // never less than a second
		time.Sleep(500 * time.Millisecond)
		h.run(call(ada, "twice"))
		limited(call(ada, "twice"), 30)

		// A reload keeps what was had, unless the rate is another one.
		reload := func(bound ops.Bound) {
			t.Helper()
			registry, err := ops.New(bound)
			if err != nil {
				t.Fatal(err)
			}
			h.door.registry.Swap(registry)
		}
		reload(rateOf(read("twice", fine), 2, time.Minute))
		limited(call(ada, "twice"), 30)
		reload(rateOf(read("twice", fine), 3, time.Minute))
		h.run(call(ada, "twice"))
	}, rateOf(read("twice", fine), 2, time.Minute), read("any", fine))
}

func TestRateOfAnIdentity(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		if h.door.ratePerIdentity != DefaultRate {
			t.Errorf("the standard rate is %+v", h.door.ratePerIdentity)
		}
		h.door.ratePerIdentity = ops.Rate{Count: 3, Per: time.Minute}
		h.run(call(scout, "r"))
		if _, o := h.run(call(scout, "no")); o.Fault == nil || o.Fault.Code != ops.UnknownOp { // refused, but written
			t.Errorf("got %+v", o)
		}
		h.run(call(scout, "r"))
		for _, op := range []ops.OpName{"r", "no"} {
			_, err := h.door.Submit(t.Context(), call(scout, op))
			if f := AsFault(err); f == nil || f.Code != ops.RateLimited || f.Details["retry_after"] != int64(20) {
				t.Errorf("%s: got %v, want RATE_LIMITED for 20 s", op, err)
			}
		}
		other := ops.Identity{ID: "other", Role: ops.Agent}
		if _, err := h.directory.Add(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		h.run(call(other, "r"))
		for range 10 {
			h.run(call(ada, "r")) // an operator has none
		}
	}, read("r", fine))
}

// The directives of a reply that are too many for a rate are refused each, on record;
// the others run.
func TestRateWithinAReply(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		var codes []ops.Code
		for _, ticket := range h.reply(ada, "twice", "any", "twice", "twice", "any") {
			code := ops.Code("")
			if o, err := h.door.Await(t.Context(), ticket.Call); err != nil {
				t.Fatal(err)
			} else if o.Fault != nil {
				code = o.Fault.Code
			}
			codes = append(codes, code)
		}
		if got, want := fmt.Sprint(codes), fmt.Sprint([]ops.Code{"", "", "", ops.RateLimited, ""}); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if n := h.calls(); n != 5 {
			t.Errorf("%d calls on record, want 5", n)
		}
	}, rateOf(read("twice", fine), 2, time.Minute), read("any", fine))
}

// An order takes once however often its transaction runs, and nothing if it is not
// committed.
func TestRateIsTakenOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, h *house) {
		order := h.door.Prepare(call(ada, "once"))
		for range 3 {
			if err := h.store.Update(t.Context(), func(tx journal.Tx) error {
				tickets, err := h.door.Admit(tx, order)
				if err == nil && tickets[0].Outcome != nil {
					t.Errorf("got %+v", tickets[0].Outcome)
				}
				return errors.Join(err, errors.New("not now"))
			}); err == nil {
				t.Error("it was committed")
			}
		}
		h.door.Forget(order)
		h.run(call(ada, "once"))
		// One that was refused for want of room, or of a store, took nothing.
		time.Sleep(time.Hour)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.door.Submit(ended, call(ada, "once")); err == nil {
			t.Error("it was written after its caller had gone")
		}
		h.run(call(ada, "once"))
	}, rateOf(read("once", fine), 1, time.Hour))
}
