package service

import (
	"context"
	"strings"

	"inband/ops"
	"inband/service/journal"
)

// recover deals with the calls that an earlier owner of the store left open. The
// store has one owner at a time, so whoever wrote them is gone.
//
// Calls that may run again are put in line; the others are settled by what is
// certain: one with side effects that had not begun has failed, one that had may
// have acted. One that waits for an approval goes on waiting, and one that is held, which
// has certainly not begun, until it is released.
func (d *Door) recover(ctx context.Context) error {
	var open []storedCall
	err := d.store.View(ctx, func(tx journal.Tx) (err error) {
		open, err = selectCalls(tx, `WHERE outcome IS NULL AND state NOT IN ('accepted', 'parked') AND owner <> $1 ORDER BY id`, string(d.store.Boot()))
		return err
	})
	if err != nil {
		return err
	}
	var replies []string // in the order of their first call
	again := make(map[string][]Ticket)
	count := make(map[string]int)
	for _, c := range open {
		outcome, rerun := d.left(c)
		if rerun != nil {
			reply := string(c.By.ID) + " " + c.From.Source
			if i := strings.LastIndexByte(reply, '#'); i >= 0 { // message ids may hold one too
				reply = reply[:i]
			}
			if again[reply] == nil {
				replies = append(replies, reply)
			}
			again[reply] = append(again[reply], Ticket{Call: c.ID, Op: c.Op, State: c.State, task: rerun})
			count["run again"]++
			continue
		}
		if err := d.store.Update(ctx, func(tx journal.Tx) error { return d.settleTx(tx, c.call(), outcome) }); err != nil {
			return err
		}
		count[string(outcome.Fault.Code)]++
	}
	if len(open) > 0 {
		d.log.Info("dealt with the calls that were open", "calls", len(open), "as", count)
	}
	for _, reply := range replies {
		d.Run(again[reply]...)
	}
	return nil
}

// left says what becomes of a call that was left open: an outcome, or a task that
// runs it again.
func (d *Door) left(c storedCall) (ops.Outcome, *task) {
	switch {
	case c.effect == "outside" && c.State == ops.Running:
		return ops.Outcome{State: ops.Unknown, Fault: unknownFault()}, nil
	case c.effect == "outside" && !d.held(c):
		return ops.Failure(ops.Faultf(ops.NotStarted, "the gateway stopped before this call began; nothing ran; order it again")), nil
	}
	// The op may have changed since: what runs again must still be what was
	// ordered, and have no more effect than it had.
	entry, ok := d.registry.Current().Lookup(c.Op)
	if !ok || entry.Digest != c.definition || effect(entry) != c.effect {
		return ops.Failure(ops.Faultf(ops.NotStarted, "the gateway stopped before this call finished, and its op has changed since; order it again")), nil
	}
	return ops.Outcome{}, newTask(c.call(), entry)
}

// held reports whether a hold is over c, by what is in memory.
func (d *Door) held(c storedCall) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holdsOver(c.call())
}
