package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// errNotOpen says that a call does not exist or is settled.
var errNotOpen = errors.New("call is not open")

// MaxResult bounds the value of a result that is kept, in bytes. A larger one is
// replaced by a note of its size: what the call did stands, but its answer is not
// cut into something that looks whole.
const MaxResult = 2 << 20

// Settle writes the outcome of a call that was accepted, in tx, together with what
// the OnSettle functions add. It is for work that goes on outside the door; calls
// that Run executes are settled by it. A call that is not open is a Conflict.
func (d *Door) Settle(tx journal.Tx, id ops.CallID, o ops.Outcome) error {
	c, err := load(tx, id)
	if err != nil {
		return err
	}
	if c.State != ops.Accepted {
		return ops.Faultf(ops.Conflict, "call %s is %s and waits for no outcome", id, c.State)
	}
	if !wellFormed(o) || o.State == ops.Accepted {
		return fmt.Errorf("settle call %s: the state %q is not final or says nothing", id, o.State)
	}
	return d.settleTx(tx, c.call(), o)
}

// settleTx writes outcome o of call and what it leads to. An accepted call stays
// open.
func (d *Door) settleTx(tx journal.Tx, call ops.Call, o ops.Outcome) error {
	if o.State == ops.Accepted {
		n, err := tx.Exec(`UPDATE call SET state = 'accepted' WHERE id = $1 AND outcome IS NULL`, string(call.ID))
		if err != nil {
			return err
		}
		if n != 1 {
			return errNotOpen
		}
		return record(tx, call, "call.accepted", nil, "")
	}
	o = bounded(o)
	stored, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("outcome of call %s: %w", call.ID, err)
	}
	n, err := tx.Exec(`UPDATE call SET state = $1, outcome = $2, settled_at = $3 WHERE id = $4 AND outcome IS NULL`,
		string(o.State), string(stored), tx.Now().UnixMilli(), string(call.ID))
	if err != nil {
		return err
	}
	if n != 1 {
		return errNotOpen
	}
	rule := ""
	if looped(o) {
		rule = ruleLoop
		if _, err := tx.Exec(`UPDATE call SET rule = $1 WHERE id = $2`, rule, string(call.ID)); err != nil {
			return err
		}
	}
	return d.settled(tx, call, o, rule)
}

// settled records that call has outcome o, by a rule if one refused it, and calls the
// OnSettle functions.
func (d *Door) settled(tx journal.Tx, call ops.Call, o ops.Outcome, rule string) error {
	if err := record(tx, call, "call.settled", &o, rule); err != nil {
		return err
	}
	for _, f := range d.onSettle {
		if err := f(tx, call, o); err != nil {
			return fmt.Errorf("after call %s: %w", call.ID, err)
		}
	}
	return nil
}

// bounded returns o with a result that can be kept.
func bounded(o ops.Outcome) ops.Outcome {
	if o.Result != nil && len(o.Result.Value) > MaxResult {
		o.Result = ops.NewResult(map[string]any{"left_out": true, "bytes": len(o.Result.Value), "max": MaxResult}, "")
	}
	return o
}

// record appends the event kind to the call's stream. Events carry what happened,
// not what was said: neither parameters nor results.
func record(tx journal.Tx, call ops.Call, kind string, o *ops.Outcome, rule string) error {
	body := struct {
		Call   ops.CallID   `json:"call"`
		Op     ops.OpName   `json:"op"`
		By     ops.Identity `json:"by"`
		Source string       `json:"source,omitempty"`
		State  ops.State    `json:"state,omitempty"`
		Code   ops.Code     `json:"code,omitempty"`
		Rule   string       `json:"rule,omitempty"` // that let it run or refused it
		// Receipt is the digest of the outcome's, so that the signed log covers it.
		Receipt string `json:"receipt,omitempty"`
	}{Call: call.ID, Op: call.Op, By: call.By, Source: call.From.Source, Rule: rule}
	if o != nil {
		body.State = o.State
		if o.Fault != nil {
			body.Code = o.Fault.Code
		}
		if o.Receipt != nil {
			canonical, fault := ops.Canonical(o.Receipt)
			if fault != nil {
				canonical = o.Receipt // the outcome must be written, whatever an op says of it
			}
			sum := sha256.Sum256(canonical)
			body.Receipt = "sha256:" + hex.EncodeToString(sum[:])
		}
	}
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append(stream(call.ID), journal.Any, kind, b)
}

const streamPrefix = "call/"

func stream(id ops.CallID) string { return streamPrefix + string(id) }

// waiter lets any number of callers wait for one call.
type waiter struct {
	settled chan struct{}
	callers int
}

// Await returns the outcome of call id once it is settled, however it came to be.
// It returns ctx's error when ctx ends first, NotFound for a call that does not
// exist, and Unavailable when the gateway stops, or its store takes no more writes,
// before the outcome is on record.
func (d *Door) Await(ctx context.Context, id ops.CallID) (ops.Outcome, error) {
	w := d.join(id)
	defer d.leave(id, w)
	deaf := d.deaf
	for stopping, givenUp := false, false; ; {
		c, err := d.read(ctx, id)
		switch {
		case err != nil:
			return ops.Outcome{}, err
		case c.outcome != nil:
			return *c.outcome, nil
		case stopping, givenUp && c.State != ops.Accepted:
			return ops.Outcome{}, ops.Faultf(ops.Unavailable, "the gateway stops, or its store takes no writes, and call %s is not settled; ask for it later", id).With("call", id)
		}
		select {
		case <-w.settled:
		case <-deaf: // nobody can write its outcome any more, unless others settle it elsewhere
			deaf, givenUp = nil, true
		case <-d.life.Done():
			stopping = true
		case <-ctx.Done():
			return ops.Outcome{}, ctx.Err()
		}
	}
}

func (d *Door) join(id ops.CallID) *waiter {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.waiters[id]
	if w == nil {
		w = &waiter{settled: make(chan struct{})}
		d.waiters[id] = w
	}
	w.callers++
	return w
}

func (d *Door) leave(id ops.CallID, w *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.callers--; w.callers == 0 && d.waiters[id] == w {
		delete(d.waiters, id)
	}
}

// follow wakes the callers of Await as outcomes are committed, whoever wrote them.
func (d *Door) follow(after int64) {
	Follow(d.life, d.store, after, d.log, func(e journal.Event) {
		switch e.Kind {
		case "call.settled":
		case "approval.requested", "agent.revoked":
			d.wake()
			return
		case "hold.set", "hold.released":
			d.followHolds()
			return
		default:
			return
		}
		id := ops.CallID(strings.TrimPrefix(e.Stream, streamPrefix))
		d.mu.Lock()
		defer d.mu.Unlock()
		if w := d.waiters[id]; w != nil {
			close(w.settled)
			delete(d.waiters, id)
		}
	})
}

// Follow calls f with every event after a position until ctx ends or the store is
// closed. When the store cannot be read for a while, it goes on where it was: whoever
// follows would otherwise be deaf for the rest of the gateway's life.
func Follow(ctx context.Context, store journal.Store, after int64, log *slog.Logger, f func(journal.Event)) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := store.Tail(ctx, after, func(e journal.Event) error {
			f(e)
			after, wait = e.Position, firstRetry
			return nil
		})
		if ctx.Err() != nil || errors.Is(err, journal.ErrClosed) {
			return
		}
		log.Error("events not read; trying again", "after", after, "err", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// cancelWait bounds how long Cancel waits for the call to stop.
const cancelWait = 5 * time.Second

// Cancel asks for call id to be stopped and waits shortly for that. It returns the
// state that the call then has: Cancelled, or what it came to first, or a state that
// is still open when it does not stop at once.
//
// by may cancel its own calls; operators any. A call that does not exist, or that by
// may not see, is NotFound; one that is settled is a Conflict. An accepted call is stopped
// by an OnCancel function, and by nobody else: without one it is a Conflict as well.
func (d *Door) Cancel(ctx context.Context, by ops.Identity, id ops.CallID) (ops.State, error) {
	c, err := d.read(ctx, id)
	if err != nil {
		return "", err
	}
	if !d.Policy().Decide(access.Request{By: by, Action: access.Cancel, Owner: c.By.ID}).Allowed {
		return "", unknownCall(id)
	}
	if c.outcome != nil {
		return c.State, ops.Faultf(ops.Conflict, "call %s is %s already", id, c.State).With("state", c.State)
	}
	parked, handled := false, false
	err = d.store.Update(ctx, func(tx journal.Tx) error {
		err := tx.Append(stream(id), journal.Any, "call.cancel_requested", fmt.Appendf(nil, `{"call":%q,"by":{"id":%q,"role":%q}}`, id, by.ID, by.Role))
		if err != nil {
			return err
		}
		if parked, err = d.unask(tx, by, c.call()); err != nil || parked {
			return err
		}
		handled, err = d.cancelAccepted(tx, by, id)
		return err
	})
	switch {
	case err != nil:
		return "", err
	case parked:
		return ops.Cancelled, nil
	case handled:
		wait, cancel := context.WithTimeout(ctx, cancelWait)
		defer cancel()
		if o, err := d.Await(wait, id); err == nil {
			return o.State, nil
		}
		c, err = d.read(ctx, id)
		return c.State, err
	}
	t := d.task(id)
	if t == nil && c.State != ops.Received {
		return c.State, ops.Faultf(ops.Conflict, "call %s is %s and cannot be cancelled here", id, c.State).With("state", c.State)
	}
	if t != nil {
		d.callOff(t)
		wait, cancel := context.WithTimeout(ctx, cancelWait)
		defer cancel()
		select {
		case <-t.done:
		case <-wait.Done():
		}
	}
	c, err = d.read(ctx, id)
	return c.State, err
}

// cancelAccepted asks whoever has the work of call id to stop it, if the call is accepted,
// and reports whether anybody had it.
func (d *Door) cancelAccepted(tx journal.Tx, by ops.Identity, id ops.CallID) (handled bool, err error) {
	c, err := load(tx, id) // anew: it may have been accepted meanwhile
	if err != nil || c.State != ops.Accepted {
		return false, err
	}
	for _, f := range d.onCancel {
		if handled, err = f(tx, by, c.call()); handled || err != nil {
			return handled, err
		}
	}
	return false, nil
}

// clip bounds a caller's words, in bytes, and makes them valid UTF-8.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
