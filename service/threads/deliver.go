package threads

import (
	"time"

	"inband/failpoint"
	"inband/service"
	"inband/service/journal"
)

// batch is how many deliveries into the built-in rooms one commit makes at most, and how
// many decisions are read at a time.
const batch = 64

// Bounds of the waits between attempts while the store cannot write.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// deliver empties the outbox, then waits for what is added to it: itself for the
// built-in rooms, by a courier for each chat. Nobody else delivers.
func (t *Threads) deliver(after int64) {
	if len(t.chats) > 0 {
		couriers, edits := make(map[string]*courier, len(t.chats)), false
		for _, chat := range t.chats {
			c := newCourier(t, chat)
			couriers[chat.Name()] = c
			t.work.Go(c.run)
			edits = edits || t.editor(chat.Name()) != nil
		}
		if edits {
			t.work.Go(t.watchProgress)
		}
		t.work.Go(func() { t.followChats(after, couriers) })
	}
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

// drain delivers all that is queued, oldest first.
func (t *Threads) drain() { t.empty(t.deliverBatch, "results not delivered yet") }

// empty does batches until one is not full, and tries again, saying late, while the store
// cannot write.
func (t *Threads) empty(do func() (int, error), late string) {
	for wait := firstRetry; t.life.Err() == nil; {
		switch n, err := do(); {
		case err == nil && n < batch:
			return
		case err == nil:
			wait = firstRetry
		default:
			t.log.Error(late, "err", err)
			t.pause(wait)
			wait = min(2*wait, lastRetry)
		}
	}
}

// deliverBatch posts the oldest deliveries. In the built-in rooms the post and the
// mark that it is made are one commit, so none is made twice.
func (t *Threads) deliverBatch() (n int, err error) {
	var due []delivery
	err = t.store.View(t.life, func(tx journal.Tx) error {
		due, err = selectDeliveries(tx, `WHERE adaptor = $1 AND state = 'queued' ORDER BY queued_at, seq LIMIT $2`, Adaptor, batch)
		return err
	})
	if err != nil || len(due) == 0 {
		return 0, err
	}
	failpoint.Here("threads.delivering")
	err = t.store.Update(t.life, func(tx journal.Tx) error {
		for _, d := range due {
			if err := deliverHere(tx, d); err != nil {
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

// deliverHere makes one delivery into a built-in room in tx. One whose thread does not
// exist is set aside, in sight of the operators, so that it holds up nobody.
func deliverHere(tx journal.Tx, d delivery) error {
	n, err := tx.Exec(`UPDATE outbox SET state = 'delivered', attempts = attempts + 1, delivered_at = $1 WHERE id = $2 AND state = 'queued'`,
		tx.Now().UnixMilli(), d.id)
	if err != nil || n == 0 {
		return err
	}
	err = mirror(tx, d, "")
	if fault, ok := isFault(err); ok {
		if _, err := tx.Exec(`UPDATE outbox SET state = 'queued', delivered_at = NULL WHERE id = $1`, d.id); err != nil {
			return err
		}
		return setAside(tx, d, noThread, fault.Error())
	}
	return err
}
