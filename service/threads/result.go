package threads

import (
	"encoding/json"
	"fmt"

	"inband/envelope"
	"inband/harvester"
	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// resultRead is what a reply says of its wake in [RESULT {…}]: the last one that can be
// read counts.
type resultRead struct {
	found bool
	key   string // of the wake that it is about, "" unless it says
	envelope.Result
	wrong *ops.Fault // why the last one that cannot be read cannot
	bad   int        // how many cannot
}

// take takes the next [RESULT {…}] of a reply.
func (r *resultRead) take(d harvester.Directive) {
	read, err := envelope.ReadResult(d.Params)
	if err != nil {
		r.wrong = service.AsFault(err)
		r.bad++
		return
	}
	r.found, r.key, r.Result = true, d.Key, read
}

// wake returns the wake that the result is about, or what to tell an agent whose result is
// about none. Where several are open, the result or an order beside it has to carry the key
// of one: its agent may not even have seen the others.
func (r *resultRead) wake(w weighed) (b bond, problem string) {
	if r.key != "" {
		b, fits := w.wakes.under(r.key)
		if fits != ops.KeyGood {
			return bond{}, "its key is not, or no longer, the one of a wake of yours in this thread"
		}
		return b, ""
	}
	of := make(map[WakeID]bond)
	for i, e := range w.evidence {
		if e.Key == ops.KeyGood {
			of[w.of[i].wake] = w.of[i]
		}
	}
	if len(of) == 0 {
		for _, b := range w.wakes.open {
			of[b.wake] = b
		}
	}
	switch len(of) {
	case 0:
		return bond{}, "no wake of yours is open in this thread"
	case 1:
		for _, b := range of {
			return b, ""
		}
	}
	return bond{}, fmt.Sprintf("it may be about any of %d wakes that are open; write (RESULT#KEY …) with the key of one", len(of))
}

// conclude gives a wake the verdict of its reply and writes it into ack. It ends the wake,
// and with it the key, except for one that waits. A result that cannot be read, or that is
// about no wake, ends nothing, and a note says so.
func (t *Threads) conclude(tx journal.Tx, a arrival, r *resultRead, w weighed, ack *Ack) error {
	problem := ""
	if r.bad > 0 {
		problem = fmt.Sprintf("(%d of them) cannot be read: %s", r.bad, r.wrong.Message)
	}
	if r.found {
		b, why := r.wake(w)
		if why == "" {
			ack.Wake, ack.Verdict = b.wake, Verdict(r.Verdict)
			if err := t.give(tx, b.wake, a, r.Result); err != nil {
				return err
			}
		} else {
			problem = "has ended nothing: " + why
		}
	}
	if problem == "" {
		return nil
	}
	if !r.found {
		problem += "; it has ended nothing"
	}
	return t.send(tx, outgoing{kind: "note", about: ack.Reply + "#result", thread: a.thread, wake: ack.Wake,
		body: envelope.Note("The RESULT of this reply %s.", problem)})
}

// give writes a verdict into an open wake.
func (t *Threads) give(tx journal.Tx, id WakeID, a arrival, r envelope.Result) error {
	refs := r.Refs
	if refs == nil {
		refs = []string{}
	}
	list, err := json.Marshal(refs)
	if err != nil {
		return fmt.Errorf("refs of wake %s: %w", id, err)
	}
	state, ended := "ended", any(tx.Now().UnixMilli())
	if Verdict(r.Verdict) == Waiting {
		state, ended = "open", nil
	}
	n, err := tx.Exec(`UPDATE wake SET state = $1, verdict = $2, summary = $3, refs = $4, ended_at = $5 WHERE id = $6 AND state = 'open'`,
		state, r.Verdict, r.Summary, string(list), ended, string(id))
	if err != nil {
		return err
	}
	if n != 1 {
		return errWeighedAnew
	}
	if state == "open" {
		return nil
	}
	return wakeEvent(tx, "wake.ended", id, Errand{Agent: a.agent, Thread: a.thread}, Verdict(r.Verdict))
}
