package threads

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"inband/envelope"
	"inband/failpoint"
	"inband/ops"
	"inband/service/journal"
)

// A call from a thread of a chat that can change its posts, and that takes long, is told
// of by one post, the placeholder, which its result then takes the place of. A result that
// is too long for that, or whose edit the platform refuses, is posted as any other; the
// placeholder then says that it is below, if the platform lets it. Whatever becomes of an
// edit, the result is not lost.
const (
	// progressAfter is how long a call may take until its thread is told that it is not
	// finished.
	progressAfter = 10 * time.Second
	// progressEvery is how often calls are looked at.
	progressEvery = 5 * time.Second
	// editTries is how often an edit of unknown fate is tried.
	editTries = 3
)

// What the note about a call is about that is its placeholder, and the one that points
// from there to the result.
func progressOf(call ops.CallID) string { return "progress/" + string(call) }
func pointerOf(call ops.CallID) string  { return "pointer/" + string(call) }

// What has become of a placeholder, as the reason of its row.
const (
	wasEdited = "edited"     // the result stands in its place
	notEdited = "not_edited" // the platform does not change it
)

// editor is the adaptor of a name, nil if it does not change posts.
func (t *Threads) editor(adaptor string) Editor {
	c := t.chat(adaptor)
	if c == nil || c.Limits().Edit == 0 {
		return nil
	}
	e, _ := c.(Editor)
	return e
}

// watchProgress tells threads of calls that take long, until the threads are closed.
func (t *Threads) watchProgress() {
	for t.pause(progressEvery) {
		if err := t.tellProgress(); err != nil && t.life.Err() == nil {
			t.log.Error("calls that take long cannot be looked for", "err", err)
		}
	}
}

// tellProgress puts a placeholder into the outbox for each call that has begun to take
// long.
func (t *Threads) tellProgress() error {
	const isLong = `FROM call WHERE outcome IS NULL AND state <> 'parked' AND coalesce(started_at, received_at) <= $1
			AND NOT EXISTS (SELECT 1 FROM outbox WHERE kind = 'note' AND about = 'progress/' || call.id)`
	var due []ops.Call
	since := time.Now().Add(-progressAfter).UnixMilli()
	err := t.store.View(t.life, func(tx journal.Tx) error {
		due = nil
		return tx.Query(`SELECT id, op, origin `+isLong, func(scan func(...any) error) error {
			var id, op, origin string
			if err := scan(&id, &op, &origin); err != nil {
				return err
			}
			c := ops.Call{ID: ops.CallID(id), Op: ops.OpName(op)}
			if err := json.Unmarshal([]byte(origin), &c.From); err != nil {
				return fmt.Errorf("origin of call %s: %w", id, err)
			}
			if c.From.Answer != nil && t.editor(c.From.Answer.Adaptor) != nil {
				due = append(due, c)
			}
			return nil
		}, since)
	})
	if err != nil || len(due) == 0 {
		return err
	}
	return t.store.Update(t.life, func(tx journal.Tx) error {
		for _, c := range due {
			still := 0
			if err := tx.Query(`SELECT count(*) `+isLong+` AND id = $2`, func(scan func(...any) error) error { return scan(&still) }, since, string(c.ID)); err != nil {
				return err
			}
			if still == 0 {
				continue
			}
			note := envelope.Note("%s (%s) is not finished yet.", string(c.Op), string(c.ID))
			if err := t.send(tx, outgoing{kind: "note", about: progressOf(c.ID), thread: c.From.Answer.Opaque, call: c.ID, body: note}); err != nil {
				return err
			}
		}
		return nil
	})
}

// endProgress is done before the result of a call is sent: a placeholder that nobody has
// seen is not posted. It reports whether there is one.
func (t *Threads) endProgress(tx journal.Tx, call ops.Call) (told bool, err error) {
	if t.editor(call.From.Answer.Adaptor) == nil {
		return false, nil
	}
	if _, err := tx.Exec(`DELETE FROM outbox WHERE kind = 'note' AND about = $1 AND state = 'queued' AND attempts = 0`, progressOf(call.ID)); err != nil {
		return false, err
	}
	err = tx.Query(`SELECT 1 FROM outbox WHERE kind = 'note' AND about = $1`, func(scan func(...any) error) error {
		var one int
		told = true
		return scan(&one)
	}, progressOf(call.ID))
	return told, err
}

// point has the placeholder of call say where the result is, unless it stands in its place.
func (t *Threads) point(tx journal.Tx, call ops.Call) error {
	note := envelope.Note("%s (%s) is finished: see below.", string(call.Op), string(call.ID))
	return t.send(tx, outgoing{kind: "note", about: pointerOf(call.ID), thread: call.From.Answer.Opaque, call: call.ID, body: note})
}

// isPointer reports whether d only changes a placeholder.
func (d delivery) isPointer() bool { return d.kind == "note" && d.about == pointerOf(d.call) }

// size is the length of s in the unit of l.
func (l PostLimits) size(s string) int {
	switch l.Unit {
	case Runes:
		return utf8.RuneCountInString(s)
	case UTF16:
		n := 0
		for _, r := range s {
			n += utf16.RuneLen(r)
		}
		return n
	}
	return len(s)
}

// placeholder returns the platform's id of the post that d is to take the place of, "" for
// none.
func (c *courier) placeholder(d delivery) (id string, err error) {
	if c.t.editor(d.adaptor) == nil || d.call == "" || !d.isPointer() && d.kind != "result" {
		return "", nil
	}
	limits := c.chat.Limits()
	if d.part > 0 || d.file != "" || limits.size(d.body)+footer > limits.Edit {
		return "", nil
	}
	err = c.t.store.View(c.t.life, func(tx journal.Tx) error {
		id = ""
		return tx.Query(`SELECT platform_id FROM outbox WHERE kind = 'note' AND about = $1 AND state = 'delivered' AND reason = '' AND platform_id IS NOT NULL
				AND NOT EXISTS (SELECT 1 FROM outbox WHERE kind = $2 AND about = $3 AND part = 1)`,
			func(scan func(...any) error) error { return scan(&id) }, progressOf(d.call), d.kind, d.about)
	})
	return id, err
}

// edit puts d into the place of its placeholder. It returns how long to wait before the
// next attempt, by an edit or a post, 0 when there is none.
func (c *courier) edit(d delivery, address, id string) (wait time.Duration) {
	if d, wait = c.claim(d); wait != 0 || d.state != "sending" {
		return wait
	}
	ctx, cancel := c.patient()
	err := c.t.editor(d.adaptor).Edit(ctx, address, id, Outgoing{Mark: d.mark, Key: d.key(), Text: d.body})
	cancel()
	failpoint.Here("threads.sent")
	switch p := asPostError(err); {
	case d.isPointer(): // nothing is lost without it
		c.drop(d)
		return 0
	case err == nil:
		c.delivered(d, address, Posted{ID: id})
		return 0
	case p.Kind == Unsure && d.attempts < editTries:
		return c.failed(d, "edit: ", err, "queued")
	default:
		c.count("edit_" + string(p.Kind))
		c.t.log.Warn("a post is not changed, so there is another one", "adaptor", c.chat.Name(), "thread", d.thread, "delivery", d.id, "err", err)
		state := "queued"
		if p.Kind == Unsure {
			state = "sending" // it is looked for
		}
		if p.Kind == RateLimit {
			wait = min(max(p.After, firstWait), lastWait)
		}
		c.keep(func(tx journal.Tx) error {
			if _, err := tx.Exec(`UPDATE outbox SET reason = $1 WHERE kind = 'note' AND about = $2 AND state = 'delivered'`, notEdited, progressOf(d.call)); err != nil {
				return err
			}
			_, err := tx.Exec(`UPDATE outbox SET state = $1, next_at = $2, attempts = 0 WHERE id = $3 AND state = 'sending'`,
				state, time.Now().Add(wait).UnixMilli(), d.id)
			return err
		})
		return wait
	}
}

// drop takes a row out of the outbox that says nothing any more.
func (c *courier) drop(d delivery) {
	c.keep(func(tx journal.Tx) error {
		_, err := tx.Exec(`DELETE FROM outbox WHERE id = $1`, d.id)
		return err
	})
}

// asPostError is what is known of err; what is no PostError is of the kind Unsure.
func asPostError(err error) *PostError {
	var p *PostError
	if !errors.As(err, &p) {
		p = &PostError{Kind: Unsure, Err: err}
	}
	return p
}
