package plane

import (
	"context"
	"time"

	"inband/ops"
	"inband/service/journal"
)

// The positions of the switch.
const (
	Off   = "off"   // nothing is granted, no lease is extended
	On    = "on"    // work is handed out
	Drain = "drain" // nothing new is granted; leases go on, and what they return is verified
)

// Switch puts the plane to off, on or drain; what it is already it stays. It starts off.
func (p *Plane) Switch(ctx context.Context, by ops.Identity, to string) (shows Showing, err error) {
	if err := p.manages(by); err != nil {
		return Showing{}, err
	}
	if to != Off && to != On && to != Drain {
		return Showing{}, ops.Faultf(ops.BadRequest, "the state %s: want on, off or drain", shown(to))
	}
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		n, err := tx.Exec(`UPDATE plane SET state = $1, changed_at = $2 WHERE id = 1 AND state <> $1`, to, tx.Now().UnixMilli())
		if err != nil {
			return err
		}
		if n == 1 {
			if err := event(tx, "plane", "plane.switched", map[string]any{"to": to, "by": by}); err != nil {
				return err
			}
		}
		shows, err = showPlane(tx)
		return err
	})
	return shows, stored(err)
}

// BumpTerm begins a new term of fences: no lease of before counts any more, and the runs
// that had one are UNKNOWN. It is for after a restore or a failover that has lost commits.
func (p *Plane) BumpTerm(ctx context.Context, by ops.Identity) (shows Showing, err error) {
	if err := p.manages(by); err != nil {
		return Showing{}, err
	}
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		if err := p.bump(tx, map[string]any{"by": by, "reason": "by hand"}); err != nil {
			return err
		}
		shows, err = showPlane(tx)
		return err
	})
	return shows, stored(err)
}

// Restored is for whoever has put a backup in place of the store: a new term of fences, and
// every run that had a lease is UNKNOWN, all of it in tx.
//
// The store that is gone may have begun terms since the backup was made, and the same
// backup may be restored twice. So the term is later than that of the clock, and nothing is
// granted in a term before the clock has come to it: no store has granted anything in a
// term as late as this one. An invitation that is open may have been used since, and whoever
// has seen its token would enrol with it, so none is open afterwards.
func (p *Plane) Restored(tx journal.Tx) error {
	if _, err := tx.Exec(`UPDATE plane SET term = $1 WHERE id = 1 AND term < $1`, int64(tx.Now().Sub(firstTerm)/termLength)); err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE invitation SET expires_at = $1 WHERE used_at IS NULL AND expires_at > $1`, tx.Now().UnixMilli()); err != nil {
		return err
	}
	return p.bump(tx, map[string]any{"reason": "restored from a backup"})
}

// A term of the clock is termLength, the first beginning at firstTerm. Terms stay below 2^21,
// and fences so within ±2^53, until 2045.
const termLength = 5 * time.Minute

var firstTerm = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (p *Plane) bump(tx journal.Tx, why map[string]any) error {
	var term int64
	if _, err := tx.Exec(`UPDATE plane SET term = term + 1 WHERE id = 1`); err != nil {
		return err
	}
	if err := tx.Query(`SELECT term FROM plane WHERE id = 1`, func(scan func(...any) error) error { return scan(&term) }); err != nil {
		return err
	}
	// What waits may have been leased in commits that are lost, so it is granted only when
	// such a lease is over for certain. And see Restored.
	from := tx.Now().Add(p.TTL + p.Recover)
	if due := firstTerm.Add(time.Duration(term) * termLength); due.After(from) && !tx.Now().Before(firstTerm) { // a clock of before then tells nothing
		from = due
	}
	if _, err := tx.Exec(`UPDATE plane SET grants_at = $1 WHERE id = 1`, from.UnixMilli()); err != nil {
		return err
	}
	why["term"] = term
	if err := event(tx, "plane", "plane.term_bumped", why); err != nil {
		return err
	}
	runs, err := texts(tx, `SELECT run FROM dispatch WHERE state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED') ORDER BY id`)
	if err != nil {
		return err
	}
	for _, run := range runs {
		h, err := p.load(tx, "", run)
		if err != nil {
			return err
		}
		fault, err := p.apply(tx, h, Event{Kind: OnRestored, Lease: p.TTL, Recover: p.Recover, Reason: "term_bumped"})
		if err := orFault(fault, err); err != nil {
			return err
		}
	}
	return p.lapseVerifications(tx, "", "term_bumped")
}

// switchedTo is the position of the switch.
func switchedTo(tx journal.Tx) (state string, err error) {
	err = tx.Query(`SELECT state FROM plane WHERE id = 1`, func(scan func(...any) error) error { return scan(&state) })
	return state, err
}

// heldUntil is until when no lease expires.
func heldUntil(tx journal.Tx) (time.Time, error) {
	var ms int64
	err := tx.Query(`SELECT hold_until FROM plane WHERE id = 1`, func(scan func(...any) error) error { return scan(&ms) })
	return time.UnixMilli(ms), err
}

// begin gives what is leased one more TTL, as the plane starts.
func (p *Plane) begin(ctx context.Context) error {
	return p.store.Update(ctx, func(tx journal.Tx) error {
		if err := p.grace(tx); err != nil {
			return err
		}
		_, err := tx.Exec(`UPDATE plane SET boot = $1 WHERE id = 1`, string(p.store.Boot()))
		if err != nil {
			return err
		}
		return event(tx, "plane", "plane.started", map[string]any{"boot": p.store.Boot()})
	})
}

// grace gives every lease at least one TTL from now, never beyond the deadline, and holds
// expiry for as long: nobody could extend it, or nobody knows how long it was. For the same
// reason progress is looked for anew from now on.
func (p *Plane) grace(tx journal.Tx) error {
	now := tx.Now()
	until := now.Add(p.TTL).UnixMilli()
	if _, err := tx.Exec(`UPDATE plane SET hold_until = $1 WHERE id = 1 AND hold_until < $1`, until); err != nil {
		return err
	}
	// A run that is to stop is not capped by the deadline, which may be why.
	if _, err := tx.Exec(`UPDATE dispatch SET lease_until = CASE WHEN state <> 'CANCEL_REQUESTED' AND deadline < $1 THEN deadline ELSE $1 END,
			cancel_deadline = CASE WHEN cancel_deadline < $1 THEN $1 ELSE cancel_deadline END, version = version + 1
			WHERE state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED') AND lease_until < $1 AND (state = 'CANCEL_REQUESTED' OR lease_until < deadline)`, until); err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE dispatch SET progress_at = $1, version = version + 1 WHERE state IN ('LEASED', 'RUNNING', 'CHECKPOINTED') AND progress_at < $1`, now.UnixMilli()); err != nil {
		return err
	}
	_, err := tx.Exec(`UPDATE verification SET lease_until = $1, due_at = $1, version = version + 1 WHERE state = 'LEASED' AND lease_until < $1`, until)
	return err
}
