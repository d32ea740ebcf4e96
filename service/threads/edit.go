package threads

import (
	"context"
	"slices"

	"inband/envelope"
	"inband/harvester"
	"inband/ops"
	"inband/service/journal"
)

// edited takes an edit: it is remembered, and never run.
func (t *Threads) edited(ctx context.Context, h *heard, seen received) (Heard, error) {
	if seen.known && seen.hash == h.hash && h.Beside == "" {
		return Heard{Status: Edited, Thread: seen.thread}, nil // a preview, or the same text once more
	}
	orders, err := t.ordersOf(ctx, h)
	if err != nil {
		return Heard{}, err
	}
	var answer Heard
	err = t.store.Update(ctx, func(tx journal.Tx) error {
		now, err := lookUp(tx, h.Inbound)
		if err != nil {
			return err
		}
		answer = Heard{Status: Edited, Thread: now.thread}
		if !now.known {
			if answer.Thread, err = t.threadAt(tx, h.Adaptor, h.roomName(), h.Address); err != nil {
				return err
			}
			h.hash = "" // the message itself may still come
			if err := h.claim(tx, answer, ""); err != nil {
				return err
			}
		}
		if err := event(tx, answer.Thread, "reply.edited", map[string]any{"thread": answer.Thread, "message": h.Message, "reply": now.post, "sha256": textHash(h.Text)}); err != nil {
			return err
		}
		if err := h.keep(tx, answer.Thread); err != nil || len(orders) == 0 {
			return err
		}
		before, err := ordersOfPost(tx, t, now.post)
		if err != nil || slices.Equal(orders, before) {
			return err
		}
		return t.noteEdit(tx, h, answer.Thread)
	})
	if err != nil {
		return Heard{}, err
	}
	t.counts.add("edits", "", 1)
	return answer, nil
}

// noteEdit says once for each message that its edited orders were not run.
func (t *Threads) noteEdit(tx journal.Tx, h *heard, thread string) error {
	about := "edit:" + textHash(h.source())
	said, err := exists(tx, `SELECT 1 FROM outbox WHERE kind = 'note' AND about = $1 LIMIT 1`, about)
	if err != nil || said {
		return err
	}
	return t.send(tx, outgoing{kind: "note", about: about, thread: thread,
		body: envelope.Note("A message was edited, and edited orders are not run. To have them run, send them as a new message.")})
}

// ordersOf is what the directives of an agent's text order, in their order; nothing for
// anybody else.
func (t *Threads) ordersOf(ctx context.Context, h *heard) ([]string, error) {
	if !h.reply || len(h.Text) > MaxText {
		return nil, nil
	}
	r, err := t.read(ctx, h.Text)
	return digestsOf(r.directives, t.resolve), err
}

// ordersOfPost is the same of a text that was taken.
func ordersOfPost(tx journal.Tx, t *Threads, post string) ([]string, error) {
	if post == "" {
		return nil, nil
	}
	var text string
	if err := tx.Query(`SELECT body FROM post WHERE id = $1`, func(scan func(...any) error) error { return scan(&text) }, post); err != nil {
		return nil, err
	}
	found, _ := harvester.All([]byte(text), harvester.Config{ExecHosts: t.execHosts})
	return digestsOf(found[:min(len(found), MaxDirectives)], t.resolve), nil
}

func digestsOf(list []harvester.Directive, resolve func(string) (ops.OpName, bool)) []string {
	digests := make([]string, len(list))
	for i, d := range list {
		op, ok := resolve(d.Op)
		if !ok {
			op = ops.OpName(d.Op)
		}
		digests[i] = orderDigest(op, d.Params)
	}
	return digests
}
