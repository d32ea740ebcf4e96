package threads

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/envelope"
	"inband/failpoint"
	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// enqueueResult writes what is posted of a settled call into the outbox, in the
// transaction that settles it.
func (t *Threads) enqueueResult(tx journal.Tx, call ops.Call, o ops.Outcome) error {
	if call.From.Answer == nil || call.From.Answer.Adaptor != Adaptor {
		return nil
	}
	o, _ = service.Told(t.door.Policy(), call.By, o)
	return enqueue(tx, "result", string(call.ID), *call.From.Answer, envelope.Outcome(call, o))
}

// enqueueParked writes into the outbox that a call waits, in the transaction that parks
// it. Its result follows when it is settled.
func (t *Threads) enqueueParked(tx journal.Tx, call ops.Call, id service.ApprovalID, expires time.Time) error {
	if call.From.Answer == nil || call.From.Answer.Adaptor != Adaptor {
		return nil
	}
	note := envelope.Note("%s (%s) waits for approval %s, until %s. Nothing has run.", string(call.Op), string(call.ID), string(id), ops.Stamp(expires))
	return enqueue(tx, "note", string(id), *call.From.Answer, note)
}

// enqueue puts one delivery into the outbox. about is what it is about, a call or a
// post; there is one delivery of a kind about a thing.
func enqueue(tx journal.Tx, kind, about string, to ops.Address, body string) error {
	_, err := tx.Exec(`INSERT INTO outbox (id, adaptor, address, kind, about, body, state, attempts, queued_at)
			VALUES ($1, $2, $3, $4, $5, $6, 'queued', 0, $7)`,
		"o-"+strings.ToLower(ulid.Make().String()), to.Adaptor, to.Opaque, kind, about, body, tx.Now().UnixMilli())
	if err != nil {
		return err
	}
	return event(tx, to.Opaque, "outbox.queued", map[string]any{"thread": to.Opaque, "about": about, "kind": kind})
}

// delivery is a row of the outbox.
type delivery struct {
	id, address, kind, about, body string
	attempts                       int64
}

// batch is how many deliveries one commit makes at most.
const batch = 64

// deliver empties the outbox, then waits for what is added to it. It is the only
// one that delivers.
func (t *Threads) deliver(after int64) {
	t.drain()
	done := after // the position up to which the last drain has seen all that was queued
	service.Follow(t.life, t.store, after, t.log, func(e journal.Event) {
		if e.Kind != "outbox.queued" || e.Position <= done {
			return
		}
		head, err := t.store.Head(t.life)
		t.drain()
		if err == nil {
			done = head
		}
	})
}

// drain delivers all that is queued, oldest first, and tries again while the store
// cannot write.
func (t *Threads) drain() {
	for wait := firstRetry; t.life.Err() == nil; {
		n, err := t.deliverBatch()
		switch {
		case err == nil && n < batch:
			return
		case err == nil:
			wait = firstRetry
		default:
			t.log.Error("results not delivered yet", "err", err)
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-t.life.Done():
				timer.Stop()
			}
			wait = min(2*wait, lastRetry)
		}
	}
}

// Bounds of the waits between attempts to deliver.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// deliverBatch posts the oldest deliveries. In the built-in rooms the post and the
// mark that it is made are one commit, so none is made twice.
func (t *Threads) deliverBatch() (n int, err error) {
	var due []delivery
	err = t.store.View(t.life, func(tx journal.Tx) error {
		due, err = queued(tx, batch)
		return err
	})
	if err != nil || len(due) == 0 {
		return 0, err
	}
	failpoint.Here("threads.delivering")
	err = t.store.Update(t.life, func(tx journal.Tx) error {
		for _, d := range due {
			if err := post1(tx, d); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		failpoint.Here("threads.delivered")
	}
	return len(due), err
}

func queued(tx journal.Tx, most int) (due []delivery, err error) {
	err = tx.Query(`SELECT id, address, kind, about, body, attempts FROM outbox WHERE state = 'queued' ORDER BY id LIMIT $1`,
		func(scan func(...any) error) error {
			var d delivery
			if err := scan(&d.id, &d.address, &d.kind, &d.about, &d.body, &d.attempts); err != nil {
				return err
			}
			due = append(due, d)
			return nil
		}, int64(most))
	return due, err
}

// post1 makes one delivery in tx. One whose thread does not exist is set aside, in
// sight of the operators, so that it holds up nobody.
func post1(tx journal.Tx, d delivery) error {
	n, err := tx.Exec(`UPDATE outbox SET state = 'delivered', attempts = attempts + 1, delivered_at = $1 WHERE id = $2 AND state = 'queued'`,
		tx.Now().UnixMilli(), d.id)
	if err != nil || n == 0 {
		return err
	}
	p := post{thread: d.address, kind: d.kind, body: d.body}
	if d.kind == "result" {
		p.call = ops.CallID(d.about)
	}
	_, err = addPost(tx, p)
	var fault *ops.Fault
	if errors.As(err, &fault) {
		_, err = tx.Exec(`UPDATE outbox SET state = 'set_aside', delivered_at = NULL, fault = $1 WHERE id = $2`, fault.Error(), d.id)
	}
	return err
}

// listOutbox answers the read outbox: what is not delivered, oldest first.
func (t *Threads) listOutbox(ctx context.Context, _ ops.Identity, q service.Query) (any, error) {
	limit, err := service.PageSize(q.Limit, defaultThreads, maxPage)
	if err != nil {
		return nil, err
	}
	type row struct {
		ID       string `json:"id"`
		Adaptor  string `json:"adaptor"`
		Thread   string `json:"thread"`
		Kind     string `json:"kind"`
		About    string `json:"about"`
		State    string `json:"state"`
		Attempts int64  `json:"attempts"`
		QueuedAt string `json:"queued_at"`
		Fault    string `json:"fault,omitempty"`
	}
	page := struct {
		Outbox []row  `json:"outbox"`
		Next   string `json:"next,omitempty"`
	}{Outbox: []row{}}
	err = t.store.View(ctx, func(tx journal.Tx) error {
		return tx.Query(`SELECT id, adaptor, address, kind, about, state, attempts, queued_at, fault FROM outbox
			WHERE state <> 'delivered' AND id > $1 ORDER BY id LIMIT $2`,
			func(scan func(...any) error) error {
				var r row
				var at int64
				var fault *string
				if err := scan(&r.ID, &r.Adaptor, &r.Thread, &r.Kind, &r.About, &r.State, &r.Attempts, &at, &fault); err != nil {
					return err
				}
				r.QueuedAt = stamp(at)
				if fault != nil {
					r.Fault = *fault
				}
				page.Outbox = append(page.Outbox, r)
				return nil
			}, q.After, int64(limit+1))
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
