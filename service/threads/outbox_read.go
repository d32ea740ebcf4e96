package threads

import (
	"context"
	"strconv"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// OutboxEntry is a delivery that is not made, as the read outbox shows it.
type OutboxEntry struct {
	ID         string     `json:"id"`
	Adaptor    string     `json:"adaptor"`
	Thread     string     `json:"thread"`
	Kind       string     `json:"kind"`
	About      string     `json:"about"`
	Part       int64      `json:"part"` // of those that one text was cut into, from 0
	Call       ops.CallID `json:"call,omitempty"`
	Wake       WakeID     `json:"wake,omitempty"`
	Post       string     `json:"post,omitempty"` // the id of the post that it becomes, its mark on the platform
	State      string     `json:"state"`          // queued, sending, set_aside
	Attempts   int64      `json:"attempts"`
	QueuedAt   string     `json:"queued_at"`
	NextAt     string     `json:"next_at,omitempty"`     // of the next attempt, after one that failed
	PlatformID string     `json:"platform_id,omitempty"` // the platform's id of it
	Reason     string     `json:"reason,omitempty"`      // set aside: one word
	Fault      string     `json:"fault,omitempty"`       // why the last attempt failed
}

// OutboxPage is a page of the read outbox.
type OutboxPage struct {
	Outbox []OutboxEntry `json:"outbox"`
	Next   string        `json:"next,omitempty"`
}

// selectEntries reads entries of the outbox.
func selectEntries(tx journal.Tx, where string, args ...any) (list []OutboxEntry, err error) {
	list = []OutboxEntry{}
	err = tx.Query(`SELECT id, adaptor, address, kind, about, part, coalesce(call, ''), coalesce(wake, ''), mark, state, attempts,
			queued_at, next_at, coalesce(platform_id, ''), reason, coalesce(fault, '') FROM outbox `+where,
		func(scan func(...any) error) error {
			var e OutboxEntry
			var queued, next int64
			var call, wake string
			if err := scan(&e.ID, &e.Adaptor, &e.Thread, &e.Kind, &e.About, &e.Part, &call, &wake, &e.Post, &e.State, &e.Attempts,
				&queued, &next, &e.PlatformID, &e.Reason, &e.Fault); err != nil {
				return err
			}
			e.Call, e.Wake, e.QueuedAt = ops.CallID(call), WakeID(wake), stamp(queued)
			if next > 0 && e.State != "set_aside" {
				e.NextAt = stamp(next)
			}
			list = append(list, e)
			return nil
		}, args...)
	return list, err
}

// listOutbox answers the read outbox: what is not delivered, oldest first.
func (t *Threads) listOutbox(ctx context.Context, _ ops.Identity, q service.Query) (any, error) {
	limit, err := service.PageSize(q.Limit, defaultThreads, maxPage)
	if err != nil {
		return nil, err
	}
	var page OutboxPage
	err = t.store.View(ctx, func(tx journal.Tx) (err error) {
		page.Outbox, err = selectEntries(tx, `WHERE state <> 'delivered' AND id > $1 ORDER BY id LIMIT $2`, q.After, int64(limit+1))
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(page.Outbox) > limit {
		page.Outbox = page.Outbox[:limit]
		page.Next = page.Outbox[limit-1].ID
	}
	return page, nil
}

// Retry has a delivery that is set aside tried again, with the parts of its text that were
// set aside along with it, and returns it. One of which nobody knows whether it stands there
// is only tried when again says so, because it may then stand twice; where the platform can
// tell, it is asked first.
//
// Who may not manage is NotPermitted; no such delivery is NotFound, one that is not set
// aside a Conflict.
func (t *Threads) Retry(ctx context.Context, by ops.Identity, id string, again bool) (e OutboxEntry, err error) {
	if !t.door.Policy().Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		return e, ops.Faultf(ops.NotPermitted, "%s may not manage deliveries", by)
	}
	err = t.store.Update(ctx, func(tx journal.Tx) error {
		list, err := selectEntries(tx, `WHERE id = $1 AND state <> 'delivered'`, id)
		switch {
		case err != nil:
			return err
		case len(list) == 0:
			return ops.Faultf(ops.NotFound, "there is no such delivery that is not made")
		}
		switch e = list[0]; {
		case e.State != "set_aside":
			return ops.Faultf(ops.Conflict, "delivery %s is %s: it is tried by itself", id, e.State).With("state", e.State)
		case e.Reason == unknownFate && !again:
			return ops.Faultf(ops.Conflict, "nobody knows whether delivery %s stands there; look, and say again to have it sent even so", id).With("reason", e.Reason)
		}
		state := "queued"
		if _, finder := t.chat(e.Adaptor).(Finder); finder && e.Reason == unknownFate {
			state = "sending" // it is looked for first
		}
		if _, err := tx.Exec(`UPDATE outbox SET state = CASE WHEN attempts > 0 THEN $5 ELSE 'queued' END, attempts = 0, next_at = 0, reason = '', fault = NULL
				WHERE state = 'set_aside' AND kind = $1 AND about = $2 AND part >= $3 AND reason = $4`,
			e.Kind, e.About, e.Part, e.Reason, state); err != nil {
			return err
		}
		if list, err = selectEntries(tx, `WHERE id = $1`, id); err != nil {
			return err
		}
		e = list[0]
		return event(tx, e.Thread, "outbox.queued", queuedEvent{e.Thread, e.Adaptor, e.Kind, e.About, &by})
	})
	if err != nil {
		return OutboxEntry{}, err
	}
	return e, nil
}

// sequence reads the place in a thread after which a page begins.
func sequence(after string) (int64, error) {
	if after == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(after, 10, 64)
	if err != nil || n < 0 {
		return 0, ops.Faultf(ops.BadRequest, "after: want the sequence number of a post")
	}
	return n, nil
}
