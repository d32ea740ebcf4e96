package threads

import (
	"fmt"
	"strings"

	"inband/envelope"
	"inband/ops"
	"inband/service/journal"
)

// maxTold bounds the words that Tell and Ended show, in bytes. What is longer is cut.
const maxTold = 8 << 10

// Begun posts that the plane has accepted call as a delegation, in tx, into the thread
// that the call is answered in, so that whoever reads there knows what to ask after and
// does not take it for done. In a chat that can change its posts it is the placeholder of
// the call, which its result takes the place of.
func (t *Threads) Begun(tx journal.Tx, call ops.Call, delegation string) error {
	if call.From.Answer == nil {
		return nil
	}
	return t.send(tx, outgoing{kind: "note", about: progressOf(call.ID), thread: call.From.Answer.Opaque, call: call.ID,
		body: envelope.Note("%s (%s) is accepted as delegation %s. Nothing of it is done yet: a worker has to do it, and a verifier to confirm it. What it comes to is posted here; box delegations show %s says what it waits for.",
			string(call.Op), string(call.ID), delegation, delegation)})
}

// Tell posts text of the gateway's own into the thread of address a, in tx: what a person
// must answer, or what somebody should look at. about is the delegation. Below it, in a
// fence, stand words of somebody who works on the delegation, "" for none. They are
// neutralised, and remembered as those of a stranger: an order that stands in them, or in
// what an agent makes of them, is a quotation. Of more than 8 KiB the beginning is shown.
func (t *Threads) Tell(tx journal.Tx, a ops.Address, about, text, words string) error {
	body := envelope.Note("Delegation %s: %s", about, first(text, maxTold))
	if words = first(words, maxTold); words != "" {
		if err := keepMaterial(tx, a.Opaque, "", t.materialOf(words)); err != nil {
			return err
		}
		body += envelope.Fenced(words)
	}
	return t.remark(tx, a.Opaque, about, body)
}

// remark puts a note into the outbox, of which there may be any number about one thing.
func (t *Threads) remark(tx journal.Tx, thread, about, body string) error {
	var before int64
	if err := tx.Query(`SELECT count(*) FROM outbox WHERE kind = 'note' AND part = 0 AND (about = $1 OR about >= $1 || '#' AND about < $1 || '$')`,
		func(scan func(...any) error) error { return scan(&before) }, about); err != nil {
		return err
	}
	if before > 0 {
		about = fmt.Sprintf("%s#%d", about, before+1)
	}
	return t.send(tx, outgoing{kind: "note", about: about, thread: thread, body: body})
}

// Ended is the end of a delegation, as the thread that it was ordered in is told of it.
type Ended struct {
	Call       ops.Call // that ordered it
	Delegation string   // d-…
	What       string   // how it ended, in the gateway's own words: one sentence
	Summary    string   // in the words of whoever worked on it, or empty
}

// Ended wakes the agent that ordered a delegation in a thread, in tx. Its errand is how the
// delegation ended; the summary is shown as the words of a stranger, and nothing is
// declared. The wake has the root cause of the call, and one more agent stands before it. If
// that is one too many (LoopLimit) a note says so and nobody is woken.
//
// Nobody is woken for an operator, who reads the call's result in the thread, for a call
// that has no thread, whose caller waits for it, and for an agent that has been revoked.
func (t *Threads) Ended(tx journal.Tx, e Ended) error {
	call, thread := e.Call, e.Call.From.Thread
	if call.From.Answer != nil {
		thread = call.From.Answer.Opaque
	}
	if call.By.Role != ops.Agent || thread == "" {
		return nil
	}
	_, err := t.Raise(tx, Errand{
		Agent: call.By.ID, Cause: ByDelegation, Source: delegationSource + e.Delegation, Name: e.Delegation, Thread: thread,
		Text:  fmt.Sprintf("Delegation %s, which you ordered as call %s, is closed. %s", e.Delegation, call.ID, e.What),
		Shown: first(e.Summary, maxTold), Root: call.From.Root, Hops: call.From.Hops + 1,
	})
	f, fault := isFault(err)
	switch {
	case !fault:
		return err
	case f.Code == ops.LoopLimit:
		return t.remark(tx, thread, e.Delegation, envelope.Note("Delegation %s is closed, and %s is not woken for it: %s.", e.Delegation, string(call.By.ID), f.Message))
	case f.Code == ops.NotFound: // the agent or the thread is gone, and with it whoever would read a note
		return nil
	}
	return err
}

// delegationSource begins the Source of a wake that a delegation raised.
const delegationSource = "delegation/"

// terminal is the command that shows what a wake is about, "" if there is none.
func (e Errand) terminal() string {
	if id, ok := strings.CutPrefix(e.Source, delegationSource); ok && e.Cause == ByDelegation {
		return "box delegations show " + id
	}
	return ""
}
