package threads

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/envelope"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// Words by which an operator controls a thread from inside it (rules R7 and R8). They
// are a whole message; anything beside them makes it one like any other.
const (
	stopWord  = "STOP"
	startWord = "START"
)

// decisionWords is y CODE or n CODE [reason]. A code has the form of newCode, which is no
// word, so that "n that is wrong" is none.
var decisionWords = regexp.MustCompile(`^([yYnN])\s+((?:[A-HJKMNP-Za-hjkmnp-z][2-9]){2,4})(?:\s+(?s:(.+)))?$`)

// Bounds of the answers to codes that are none.
const (
	maxWrongCodes   = 3 // a minute in one thread; more are silent
	wrongCodeWindow = time.Minute
	maxReasonWords  = 500 // bytes of a reason, as the door takes it
)

// control carries out text if it is an operator's word to the gateway about thread: STOP,
// START, or a decision about a call that waits there. It is not handled when it is none,
// or when by is no operator: then it is a message like any other. written is when it was
// written, zero if that is now or nobody knows.
func (t *Threads) control(tx journal.Tx, by ops.Identity, thread, text string, written time.Time) (handled bool, err error) {
	if by.Role != ops.Operator {
		return false, nil
	}
	switch text = strings.TrimSpace(text); text {
	case stopWord, startWord:
		if !t.door.Policy().Decide(access.Request{By: by, Action: access.Manage}).Allowed {
			return false, nil
		}
		if text == stopWord {
			return true, t.stopped(tx, by, thread)
		}
		return true, t.started(tx, by, thread, written)
	}
	m := decisionWords.FindStringSubmatch(text)
	approve := m != nil && strings.EqualFold(m[1], "y")
	if m == nil || approve && m[3] != "" {
		return false, nil
	}
	return true, t.decided(tx, by, thread, approve, strings.ToLower(m[2]), strings.TrimSpace(m[3]))
}

func (t *Threads) stopped(tx journal.Tx, by ops.Identity, thread string) error {
	all, err := standingTogether(tx, thread)
	if err != nil {
		return err
	}
	for _, id := range all {
		if err := t.door.Hold(tx, by, id); err != nil {
			return err
		}
	}
	return t.note(tx, thread, "stop", "%s has stopped this thread: nothing is begun in it, and nobody is woken, until an operator writes START.", string(by.ID))
}

// started starts thread again, unless it was stopped after by wrote: messages may arrive
// out of order, and the last word counts.
func (t *Threads) started(tx journal.Tx, by ops.Identity, thread string, written time.Time) error {
	if !written.IsZero() {
		var since int64
		if err := tx.Query(`SELECT set_at FROM hold WHERE scope = $1`, func(scan func(...any) error) error { return scan(&since) }, thread); err != nil {
			return err
		}
		if stop := time.UnixMilli(since); written.Before(stop.Truncate(time.Second)) { // many platforms count seconds
			return t.note(tx, thread, "start", "The START of %s was written at %s, before this thread was stopped at %s, and starts nothing. If it is meant, write it again.",
				string(by.ID), ops.Stamp(written), ops.Stamp(stop))
		}
	}
	all, err := standingTogether(tx, thread)
	if err != nil {
		return err
	}
	for _, id := range all {
		if err := t.door.Release(tx, by, id); err != nil {
			return err
		}
		if _, err := t.releaseWakes(tx, id); err != nil {
			return err
		}
	}
	everything, err := t.held(tx, thread)
	if err != nil {
		return err
	}
	if everything {
		return t.note(tx, thread, "start", "%s has started this thread. All agents are stopped still: box start --all starts them.", string(by.ID))
	}
	return t.note(tx, thread, "start", "%s has started this thread.", string(by.ID))
}

// standingTogether returns thread, and those that were opened at the place of a chat where
// it stands before its root was known: to people they are one thread.
func standingTogether(tx journal.Tx, thread string) ([]string, error) {
	all := []string{thread}
	err := tx.Query(`SELECT o.id FROM thread t JOIN thread o ON o.adaptor = t.adaptor AND o.address = t.address
			WHERE t.id = $1 AND t.adaptor <> 'rooms' AND t.rooted = 1 AND o.rooted = 2 ORDER BY o.id`, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		all = append(all, id)
		return err
	}, thread)
	return all, err
}

// note posts a note of the gateway in thread. about says what kind of note it is.
func (t *Threads) note(tx journal.Tx, thread, about, format string, args ...any) error {
	return t.send(tx, outgoing{kind: "note", about: about + ":" + strings.ToLower(ulid.Make().String()), thread: thread, body: envelope.Note(format, args...)})
}

// decided writes down what by has decided about the call that waits under code, for
// decideAll to carry out. A code decides once: what others write after it is not heard
// any more. Wrong codes, and those of calls that by may not decide about, are answered
// alike, a few in a minute.
func (t *Threads) decided(tx journal.Tx, by ops.Identity, thread string, approve bool, code, reason string) error {
	all, err := standingTogether(tx, thread)
	if err != nil {
		return err
	}
	var approval, owner, state string
	for _, id := range all {
		if err := tx.Query(`SELECT c.thread, c.approval, a.by_id, a.state FROM approval_code c JOIN approval a ON a.id = c.approval WHERE c.thread = $1 AND c.code = $2`,
			func(scan func(...any) error) error { return scan(&thread, &approval, &owner, &state) }, id, code); err != nil {
			return err
		}
		if approval != "" {
			break
		}
	}
	if approval == "" {
		return t.wrongCode(tx, thread, "No call that waits for approval in this thread has the code %s.", code)
	}
	enrolled, err := access.Enrolled(tx, by.ID, ops.IdentityID(owner))
	if err != nil {
		return err
	}
	if !t.door.Policy().Decide(access.Request{By: by, Action: access.Approve, Owner: ops.IdentityID(owner), Enrolled: enrolled}).Allowed {
		return t.wrongCode(tx, thread, "%s may not decide about this call.", string(by.ID))
	}
	taken, err := exists(tx, `SELECT 1 FROM decision WHERE thread = $1 AND code = $2 AND state <> 'refused' LIMIT 1`, thread, code)
	if err != nil || taken {
		return err
	}
	if state != string(service.Pending) {
		return t.wrongCode(tx, thread, "The call with the code %s waits no longer.", code)
	}
	id := "d-" + strings.ToLower(ulid.Make().String())
	if _, err := tx.Exec(`INSERT INTO decision (id, thread, by_id, by_role, approve, code, reason, state, at) VALUES ($1, $2, $3, $4, $5, $6, $7, 'new', $8)`,
		id, thread, string(by.ID), string(by.Role), approve, code, first(reason, maxReasonWords), tx.Now().UnixMilli()); err != nil {
		return err
	}
	return event(tx, thread, "decision.written", struct {
		Thread   string       `json:"thread"`
		Decision string       `json:"decision"`
		Approval string       `json:"approval"`
		By       ops.Identity `json:"by"`
		Approve  bool         `json:"approve"`
	}{thread, id, approval, by, approve})
}

// wrongCode answers a code that decides nothing, unless that was done too often in the
// last minute.
func (t *Threads) wrongCode(tx journal.Tx, thread, format, what string) error {
	n, since := 0, tx.Now().Add(-wrongCodeWindow).UnixMilli()
	if err := tx.Query(`SELECT count(*) FROM (SELECT about, queued_at FROM outbox WHERE address = $1 ORDER BY seq DESC LIMIT 64) AS o
			WHERE about LIKE 'code:%' AND queued_at > $2`,
		func(scan func(...any) error) error { return scan(&n) }, thread, since); err != nil {
		return err
	}
	if n >= maxWrongCodes {
		return nil
	}
	return t.note(tx, thread, "code", format, what)
}

// The letters and digits of a code, none of which is taken for another.
const (
	codeLetters = "abcdefghjkmnpqrstuvwxyz"
	codeDigits  = "23456789"
)

// newCode returns a code of pairs of a letter and a digit.
func newCode(pairs int) (string, error) {
	var b strings.Builder
	for range pairs {
		for _, set := range []string{codeLetters, codeDigits} {
			n, err := rand.Int(rand.Reader, big.NewInt(int64(len(set))))
			if err != nil {
				return "", fmt.Errorf("code of an approval: %w", err)
			}
			b.WriteByte(set[n.Int64()])
		}
	}
	return b.String(), nil
}

// approvalCode gives an approval the code by which it is decided in thread: four
// characters, more where many are taken. It is no secret: who may decide is asked of
// whoever writes it.
func (t *Threads) approvalCode(tx journal.Tx, thread string, id service.ApprovalID) (code string, err error) {
	for try := range 12 {
		if code, err = newCode(2 + try/4); err != nil {
			return "", err
		}
		n, err := tx.Exec(`INSERT INTO approval_code (thread, code, approval) VALUES ($1, $2, $3) ON CONFLICT (thread, code) DO NOTHING`, thread, code, string(id))
		if err != nil {
			return "", err
		}
		if n == 1 {
			return code, nil
		}
	}
	return "", ops.Faultf(ops.Busy, "too many calls of this thread have waited for an approval")
}

// decideAll carries out what has been decided in threads, and what an earlier run has
// left.
func (t *Threads) decideAll(after int64) {
	t.decideNew()
	service.Follow(t.life, t.store, after, t.log, func(e journal.Event) {
		if e.Kind == "decision.written" {
			t.decideNew()
		}
	})
}

// decision is a row of the table decision, with the approval of its code.
type decision struct {
	id, thread, code, reason string
	by                       ops.Identity
	approve                  bool
	approval                 service.ApprovalID
}

// decideNew carries out the decisions that are new, the oldest first.
func (t *Threads) decideNew() { t.empty(t.decideBatch, "decisions not carried out yet") }

func (t *Threads) decideBatch() (n int, err error) {
	var list []decision
	err = t.store.View(t.life, func(tx journal.Tx) error {
		list = nil
		return tx.Query(`SELECT d.id, d.thread, d.by_id, d.by_role, d.approve, d.code, d.reason, c.approval
				FROM decision d JOIN approval_code c ON c.thread = d.thread AND c.code = d.code
				WHERE d.state = 'new' ORDER BY d.id LIMIT $1`,
			func(scan func(...any) error) error {
				var d decision
				var approve int64
				if err := scan(&d.id, &d.thread, (*string)(&d.by.ID), (*string)(&d.by.Role), &approve, &d.code, &d.reason, (*string)(&d.approval)); err != nil {
					return err
				}
				d.approve = approve != 0
				list = append(list, d)
				return nil
			}, int64(batch))
	})
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		if err := t.carryOut(d); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}

// carryOut has the door decide as d says. What it has done is posted by the call's own
// result; what it refuses is answered here.
func (t *Threads) carryOut(d decision) error {
	var err error
	if d.approve {
		_, err = t.door.Approve(t.life, d.by, d.approval)
	} else {
		_, err = t.door.Deny(t.life, d.by, d.approval, d.reason)
	}
	var fault *ops.Fault
	switch {
	case err == nil:
	case !errors.As(err, &fault):
		return fmt.Errorf("decision %s: %w", d.id, err)
	case fault.Code == ops.Unavailable:
		return fmt.Errorf("decision %s: %w", d.id, err) // the door is closing: for the next start
	}
	return t.store.Update(context.WithoutCancel(t.life), func(tx journal.Tx) error {
		state := "done"
		// What the door has left pending can be decided again with the same code.
		if fault != nil {
			state = "refused"
		}
		n, err := tx.Exec(`UPDATE decision SET state = $1 WHERE id = $2 AND state = 'new'`, state, d.id)
		if err != nil || n == 0 || fault == nil {
			return err
		}
		if fault.Code == ops.ApprovalExpired || fault.Code == ops.ApprovalVoid {
			return nil // the call's result says so
		}
		return t.note(tx, d.thread, "decision", "The decision of %s about %s was not carried out (%s): %s", string(d.by.ID), string(d.approval), string(fault.Code), fault.Message)
	})
}
