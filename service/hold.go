package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// Everything is the scope of a hold over all that agents order.
const Everything = "*"

// Hold is something that is stopped (rule R8).
type Hold struct {
	Scope string       `json:"scope"` // the id of a thread, or Everything
	By    ops.Identity `json:"by"`    // who stopped it first
	SetAt string       `json:"set_at"`
}

var threadID = regexp.MustCompile(`^t-[0-9a-z]{26}$`)

// Hold stops, in tx, what scope names: a thread, by its id, whose calls are those that
// answer in it or are of a wake that was raised there, or Everything. Calls of agents that have not begun do not begin any more,
// from the commit on; they stay in line, over a restart too, until somebody cancels or
// Release releases them. What runs goes on. Calls of operators are never held.
//
// by needs the permission to manage; NotPermitted otherwise. What is stopped already stays
// so. A scope that names neither is BadRequest; whether there is such a thread is for the
// caller to know.
func (d *Door) Hold(tx journal.Tx, by ops.Identity, scope string) error {
	if err := d.mayHold(tx, by, scope); err != nil {
		return err
	}
	n, err := tx.Exec(`INSERT INTO hold (scope, by_id, by_role, set_at) VALUES ($1, $2, $3, $4) ON CONFLICT (scope) DO NOTHING`,
		scope, string(by.ID), string(by.Role), tx.Now().UnixMilli())
	if err != nil || n == 0 {
		return err
	}
	return recordHold(tx, "hold.set", by, scope)
}

// Release takes back, in tx, the hold over scope. Calls that no other hold is over go on
// when it has committed, before those that have come since. Who may is as for Hold; what
// is not stopped stays so.
func (d *Door) Release(tx journal.Tx, by ops.Identity, scope string) error {
	if err := d.mayHold(tx, by, scope); err != nil {
		return err
	}
	n, err := tx.Exec(`DELETE FROM hold WHERE scope = $1`, scope)
	if err != nil || n == 0 {
		return err
	}
	return recordHold(tx, "hold.released", by, scope)
}

// Spread puts, in tx, the hold over the thread from over the thread to as well, which has
// turned out to be the same: whoever stopped the one meant both. Nothing happens when from
// is not stopped.
func (d *Door) Spread(tx journal.Tx, from, to string) error {
	var by ops.Identity
	if err := tx.Query(`SELECT by_id, by_role FROM hold WHERE scope = $1`, func(scan func(...any) error) error {
		return scan((*string)(&by.ID), (*string)(&by.Role))
	}, from); err != nil || by.ID == "" {
		return err
	}
	n, err := tx.Exec(`INSERT INTO hold (scope, by_id, by_role, set_at) SELECT $2, by_id, by_role, set_at FROM hold WHERE scope = $1
			ON CONFLICT (scope) DO NOTHING`, from, to)
	if err != nil || n == 0 {
		return err
	}
	return recordHold(tx, "hold.set", by, to)
}

func (d *Door) mayHold(tx journal.Tx, by ops.Identity, scope string) error {
	if scope != Everything && !threadID.MatchString(scope) {
		return ops.Faultf(ops.BadRequest, "scope: want the id of a thread, or %s for all that agents order", Everything)
	}
	live, known, err := access.Live(tx, by.ID)
	if err != nil {
		return err
	}
	if decision := d.Policy().Decide(access.Request{By: by, Action: access.Manage}); !known || live != by || !decision.Allowed {
		return ops.Faultf(ops.NotPermitted, "%s may neither stop nor start anything", by)
	}
	return nil
}

func recordHold(tx journal.Tx, kind string, by ops.Identity, scope string) error {
	b, err := json.Marshal(struct {
		Scope string       `json:"scope"`
		By    ops.Identity `json:"by"`
	}{scope, by})
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append("hold/"+scope, journal.Any, kind, b)
}

// Held reports whether a thread is stopped, by itself or with everything.
func (d *Door) Held(tx journal.Tx, thread string) (bool, error) {
	held := false
	err := tx.Query(`SELECT 1 FROM hold WHERE scope IN ($1, $2) LIMIT 1`, func(scan func(...any) error) error {
		held = true
		var one int
		return scan(&one)
	}, Everything, thread)
	return held, err
}

// Holds returns what is stopped, what was stopped first first.
func (d *Door) Holds(ctx context.Context) (list []Hold, err error) {
	err = d.store.View(ctx, func(tx journal.Tx) error {
		list = []Hold{}
		return tx.Query(`SELECT scope, by_id, by_role, set_at FROM hold ORDER BY set_at, scope`, func(scan func(...any) error) error {
			var h Hold
			var at int64
			if err := scan(&h.Scope, (*string)(&h.By.ID), (*string)(&h.By.Role), &at); err != nil {
				return err
			}
			h.SetAt = ops.Stamp(moment(at))
			list = append(list, h)
			return nil
		})
	})
	return list, err
}

// holdable is the thread whose hold would be over call, and whether any hold can be.
func holdable(call ops.Call) (thread string, ok bool) {
	if thread = call.From.Thread; call.From.Answer != nil {
		thread = call.From.Answer.Opaque
	}
	return thread, call.By.Role != ops.Operator
}

// stopped reports whether a hold is over call by what is on record. It is asked in the
// transaction in which call would begin.
func (d *Door) stopped(tx journal.Tx, call ops.Call) (bool, error) {
	thread, ok := holdable(call)
	if !ok {
		return false, nil
	}
	return d.Held(tx, thread)
}

// holdsOver is the same by what is in memory, which follows the record. It keeps held
// calls from being tried in vain, and is no proof. The caller holds mu.
func (d *Door) holdsOver(call ops.Call) bool {
	if len(d.holds) == 0 {
		return false
	}
	thread, ok := holdable(call)
	return ok && (d.holds[Everything] || d.holds[thread])
}

// readHolds brings the memory up to the record, and the line up to the memory. Readings
// come one after another, so that an older one never undoes a newer.
func (d *Door) readHolds(ctx context.Context) error {
	d.reading.Lock()
	defer d.reading.Unlock()
	list, err := d.Holds(ctx)
	if err != nil {
		return err
	}
	holds := make(map[string]bool, len(list))
	for _, h := range list {
		holds[h.Scope] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds = holds
	was := slices.Concat(d.onHold, d.line) // those on hold have waited longer
	d.onHold, d.line = nil, nil
	for _, t := range was {
		d.enqueue(t)
	}
	d.dispatch()
	return nil
}

// followHolds reads the holds because they have changed. While they cannot be read
// nothing that is held begins, since the record is asked each time; but what was released
// would wait for ever, so it tries until it can, or the gateway stops.
func (d *Door) followHolds() {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := d.readHolds(d.life)
		if err == nil || d.life.Err() != nil || errors.Is(err, journal.ErrClosed) {
			return
		}
		d.log.Error("holds not read; trying again", "err", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-d.life.Done():
		}
		timer.Stop()
	}
}

// errHeld says that a call does not begin because a hold is over it.
var errHeld = errors.New("the call is held")

// putBack has t, which did not begin because a hold is over it, wait until that is
// released. It blocks until the memory knows of the hold, so that nobody tries t in vain.
func (d *Door) putBack(t *task) {
	d.followHolds()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.giveRoom(t)
	t.started = false
	if t.ctx.Err() != nil { // somebody cancelled it meanwhile
		d.start(t)
	} else {
		d.enqueue(t)
	}
	d.dispatch()
}

// forgo leaves t received, for the next start to deal with, and so all that stands behind
// it in its reply. The caller holds mu.
func (d *Door) forgo(t *task) {
	t.group.forgone = true
	t.cancel(errStopping)
	d.start(t)
}

// errStopping is the cause of a task's end when the gateway stops while it is held.
var errStopping = errors.New("the gateway stops")
