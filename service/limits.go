package service

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"inband/ops"
	"inband/service/journal"
)

// DefaultRate is how often an identity may order when Config.RatePerIdentity does not
// say.
var DefaultRate = ops.Rate{Count: 600, Per: time.Minute}

// rates counts what has been had of the rates of ops and identities. A rate of Count a
// Per lets Count through at once and comes back evenly, Count in Per.
//
// Bounded: what nobody has had anything of lately is as good as new and is forgotten, so
// that what is kept is what was used within its Per. Only monotonic time counts, so that
// setting the clock gives nothing and takes nothing.
type rates struct {
	mu    sync.Mutex
	had   map[rated]*rate.Limiter
	sweep int // forget what is as good as new when had has grown to this
}

// rated is one thing that has a rate: an op, by name, or an identity. The rate belongs
// to it: another one begins anew, and the same one goes on over a reload.
type rated struct {
	op   ops.OpName
	by   ops.IdentityID
	rate ops.Rate
}

func (r rated) String() string {
	whose := fmt.Sprintf("identity %s", r.by)
	if r.op != "" {
		whose = fmt.Sprintf("op %s", r.op)
	}
	return fmt.Sprintf("the rate of %s, %d in %s, is used up", whose, r.rate.Count, r.rate.Per)
}

// take takes one of each of things, or nothing: then it says which of those that have
// none is the last to have one, and how long until then.
func (r *rates) take(things []rated) (dry *rated, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now() // with mu held, so that it never runs backwards
	for _, t := range things {
		if tokens := r.of(t, now).TokensAt(now); tokens < 1 {
			limit := float64(t.rate.Count) / t.rate.Per.Seconds()
			if w := time.Duration((1 - tokens) / limit * float64(time.Second)); dry == nil || w > wait {
				dry, wait = &t, w
			}
		}
	}
	if dry != nil {
		return dry, wait
	}
	for _, t := range things {
		r.of(t, now).ReserveN(now, 1)
	}
	return nil, 0
}

// give gives back what take took.
func (r *rates) give(things []rated) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, t := range things {
		// Reservations can be cancelled only before they begin. A negative one is kept
		// to the burst like what comes back by itself.
		r.of(t, now).ReserveN(now, -1)
	}
}

// of returns the limiter of t. The caller holds mu.
func (r *rates) of(t rated, now time.Time) *rate.Limiter {
	l := r.had[t]
	if l != nil {
		return l
	}
	if len(r.had) >= r.sweep {
		for t, l := range r.had {
			if l.TokensAt(now) >= float64(t.rate.Count) {
				delete(r.had, t)
			}
		}
		r.sweep = max(64, 2*len(r.had))
	}
	l = rate.NewLimiter(rate.Limit(float64(t.rate.Count)/t.rate.Per.Seconds()), t.rate.Count)
	if r.had == nil {
		r.had = make(map[rated]*rate.Limiter)
	}
	r.had[t] = l
	return l
}

// held is what an order has had of the rates, so that it takes once, however often the
// transaction that writes it runs. Whoever has the order has it alone.
type held struct{ things []rated }

// take takes what o needs of the rates, once, and is RATE_LIMITED if it cannot be had.
// A call that is refused for another reason runs nothing, but is written: it counts for
// its identity only.
func (d *Door) take(o Order) *ops.Fault {
	if o.held.things != nil {
		return nil
	}
	things := make([]rated, 0, 2)
	if by := o.call.By; by.Role != ops.Operator {
		things = append(things, rated{by: by.ID, rate: d.ratePerIdentity})
	}
	if o.fault == nil && o.entry.Rate.Count > 0 {
		things = append(things, rated{op: o.entry.Name, rate: o.entry.Rate})
	}
	if dry, wait := d.rates.take(things); dry != nil {
		seconds := max(1, int64(math.Ceil(wait.Seconds())))
		return ops.Faultf(ops.RateLimited, "%s; nothing was taken, try again in %d s", dry, seconds).With("retry_after", seconds)
	}
	o.held.things = things
	return nil
}

// giveBack gives back what o has had of the rates: it is not written after all.
func (d *Door) giveBack(o Order) {
	d.rates.give(o.held.things)
	o.held.things = nil
}

// tooOften is RATE_LIMITED for an order that one of its rates keeps from being written.
// A replay runs nothing and is let through. Nothing is written either way: who orders too
// often must not fill the journal with refusals.
func (d *Door) tooOften(ctx context.Context, o Order) error {
	fault := d.take(o)
	if fault == nil {
		return nil
	}
	known := false
	if o.fault == nil && (o.call.Key != "" || o.once()) {
		if err := d.store.View(ctx, func(tx journal.Tx) (err error) {
			_, known, err = before(tx, o)
			return err
		}); err != nil {
			return err
		}
	}
	if known {
		return nil
	}
	return fault
}

// Forget says that orders which Admit has seen were not committed: what they had of the
// rates is given back.
func (d *Door) Forget(orders ...Order) {
	for _, o := range orders {
		d.giveBack(o)
	}
}
