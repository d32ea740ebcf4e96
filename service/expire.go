package service

import (
	"context"
	"errors"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// expire ends approvals as their time comes, and those of identities that were revoked.
// It sleeps until the next one is due; attention wakes it when there is a new one, or
// when an identity was revoked.
func (d *Door) expire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := firstRetry
	for {
		select {
		case <-timer.C:
		case <-d.approvals.attention:
		case <-d.life.Done():
			return
		}
		next, err := d.sweep(d.life)
		switch {
		case d.life.Err() != nil || errors.Is(err, journal.ErrClosed):
			return
		case err != nil:
			d.log.Error("approvals not expired yet; trying again", "err", err)
			timer.Reset(retry)
			retry = min(2*retry, lastRetry)
			continue
		case next > 0:
			timer.Reset(next)
		default:
			timer.Stop()
		}
		retry = firstRetry
	}
}

// wake has expire look again.
func (d *Door) wake() {
	select {
	case d.approvals.attention <- struct{}{}:
	default: // it will look anyway
	}
}

// sweepBatch is how many approvals one look at the table brings at most.
const sweepBatch = 64

// sweep ends what is due and returns how long it is until the next one is, 0 if none is
// pending.
func (d *Door) sweep(ctx context.Context) (next time.Duration, err error) {
	for {
		var due []approval
		err := d.store.View(ctx, func(tx journal.Tx) (err error) {
			if due, err = selectApprovals(tx, `WHERE state = 'pending' AND (expires_at <= $1
					OR by_id IN (SELECT id FROM identity WHERE revoked_at IS NOT NULL)) ORDER BY expires_at LIMIT $2`,
				tx.Now().UnixMilli(), sweepBatch); err != nil || len(due) > 0 {
				return err
			}
			next = 0
			return tx.Query(`SELECT expires_at FROM approval WHERE state = 'pending' ORDER BY expires_at LIMIT 1`, func(scan func(...any) error) error {
				var at int64
				err := scan(&at)
				next = max(moment(at).Sub(tx.Now()), time.Millisecond)
				return err
			})
		})
		if err != nil || len(due) == 0 {
			return next, err
		}
		for _, a := range due {
			if err := d.lapse(ctx, a.id); err != nil {
				return 0, err
			}
		}
	}
}

// lapse ends one approval that is due or whose identity was revoked, unless somebody has
// decided it meanwhile.
func (d *Door) lapse(ctx context.Context, id ApprovalID) error {
	return d.store.Update(ctx, func(tx journal.Tx) error {
		a, c, err := loadApproval(tx, id)
		if err != nil || a.state != Pending {
			return err
		}
		live, known, err := access.Live(tx, c.By.ID)
		switch {
		case err != nil:
			return err
		case !known || live != c.By:
			a.state, a.changed = Void, []Change{{"identity", a.bound.Identity, ""}}
		case !tx.Now().Before(a.expiresAt):
			a.state = Expired
		default:
			return nil
		}
		return d.end(tx, c.call(), a, ops.Failure(a.fault()))
	})
}
