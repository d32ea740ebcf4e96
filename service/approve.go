package service

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// maxReason bounds the words of who denies, in bytes.
const maxReason = 500

// Approve lets the call of approval id run, once. Everything that the approval is for is
// looked at again first: if its identity is no longer live, or the policy, the op's
// definition or what it rests on is another, the approval is void, the call fails and
// ApprovalVoid says what has changed.
//
// by needs the permission approve for whoever ordered the call; NotPermitted otherwise,
// or NotFound if by may not even see it. An approval that is approved already stays so,
// without a fault and without another run; one that was denied or cancelled is a
// Conflict, one that has expired ApprovalExpired. Busy says that too many calls wait,
// and leaves it pending.
func (d *Door) Approve(ctx context.Context, by ops.Identity, id ApprovalID) (ApprovalShowing, error) {
	return d.decide(ctx, by, id, Approved, "")
}

// Deny ends the call of approval id without running it, as ApprovalDenied with reason,
// which is at most 500 bytes of text and may be empty. Who may is as for Approve. One
// that is denied already stays so; one that is decided otherwise is a Conflict.
func (d *Door) Deny(ctx context.Context, by ops.Identity, id ApprovalID, reason string) (ApprovalShowing, error) {
	if len(reason) > maxReason || !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }) {
		return ApprovalShowing{}, ops.Faultf(ops.BadRequest, "reason: want text of at most %d bytes, without control characters", maxReason).With("pointer", "/reason")
	}
	return d.decide(ctx, by, id, Denied, reason)
}

func (d *Door) decide(ctx context.Context, by ops.Identity, id ApprovalID, to ApprovalState, reason string) (ApprovalShowing, error) {
	if d.isClosing() {
		return ApprovalShowing{}, ops.Faultf(ops.Unavailable, "the gateway is stopping")
	}
	a, c, err := d.visible(ctx, by, id)
	if err != nil {
		return ApprovalShowing{}, err
	}
	look := looked{}
	if to == Approved && a.state == Pending {
		look = d.look(c.call())
	}
	var fault *ops.Fault
	var ticket Ticket
	err = d.store.Update(ctx, func(tx journal.Tx) (err error) {
		fault, ticket = nil, Ticket{}
		if a, c, err = loadApproval(tx, id); err != nil {
			return err
		}
		if err := d.mayApprove(tx, by, c.By); err != nil {
			return err
		}
		switch {
		case a.state == to:
			return nil
		case a.state != Pending:
			fault = a.late()
			return nil
		}
		a.decidedBy, a.reason = &by, reason
		if !tx.Now().Before(a.expiresAt) {
			a.state, a.decidedBy, a.reason = Expired, nil, ""
			fault = a.fault()
			return d.end(tx, c.call(), a, ops.Failure(fault))
		}
		if to == Denied {
			a.state = Denied
			return d.end(tx, c.call(), a, ops.Failure(a.fault()))
		}
		if a.changed, err = d.changed(tx, a, c.call(), look); err != nil {
			return err
		}
		if len(a.changed) > 0 {
			a.state = Void
			fault = a.fault()
			return d.end(tx, c.call(), a, ops.Failure(fault))
		}
		if busy := d.roomFor(c.By, 1); busy != nil {
			return busy
		}
		a.state = Approved
		ticket, err = d.unpark(tx, c.call(), a, look.entry)
		return err
	})
	if err != nil {
		return ApprovalShowing{}, err
	}
	d.Run(ticket)
	if fault != nil {
		return ApprovalShowing{}, fault
	}
	return d.Approval(ctx, by, id)
}

// late is why an approval that is decided cannot be decided otherwise.
func (a approval) late() *ops.Fault {
	switch {
	case a.state == Expired, a.state == Void && len(a.changed) > 0:
		return a.fault()
	case a.state == Void:
		return ops.Faultf(ops.Conflict, "the call of %s was cancelled", a.id).With("state", a.state)
	}
	return ops.Faultf(ops.Conflict, "%s is %s already", a.id, a.state).With("state", a.state)
}

// end gives a pending approval its last state, which a has, and settles its call.
func (d *Door) end(tx journal.Tx, call ops.Call, a approval, o ops.Outcome) error {
	if err := turn(tx, call, a, Pending); err != nil {
		return err
	}
	return d.settleTx(tx, call, o)
}

// unpark has the approved call received, as if it had been admitted now, with a as its
// grant.
func (d *Door) unpark(tx journal.Tx, call ops.Call, a approval, entry *ops.Entry) (Ticket, error) {
	if err := turn(tx, call, a, Pending); err != nil {
		return Ticket{}, err
	}
	call.From.Grant = string(a.id)
	origin, err := json.Marshal(call.From)
	if err != nil {
		return Ticket{}, fmt.Errorf("origin of call %s: %w", call.ID, err)
	}
	n, err := tx.Exec(`UPDATE call SET state = 'received', origin = $1, owner = $2 WHERE id = $3 AND state = 'parked'`,
		string(origin), string(d.store.Boot()), string(call.ID))
	if err != nil {
		return Ticket{}, err
	}
	if n != 1 {
		return Ticket{}, fmt.Errorf("call %s has a pending approval and is not parked", call.ID)
	}
	if err := record(tx, call, "call.received", nil, ""); err != nil {
		return Ticket{}, err
	}
	return Ticket{Call: call.ID, Op: call.Op, State: ops.Received, task: newTask(call, entry)}, nil
}

// looked is what a call would rest on if it ran now, found outside of transactions.
type looked struct {
	entry  *ops.Entry // nil if the op is gone
	things map[string]string
	err    error // the things cannot be told
}

func (d *Door) look(call ops.Call) looked {
	entry, ok := d.registry.Current().Lookup(call.Op)
	if !ok || entry.Name != call.Op {
		return looked{}
	}
	things, err := restsOn(entry, call)
	if err != nil {
		d.log.Error("what a call rests on cannot be read", "call", call.ID, "op", call.Op, "err", err)
	}
	return looked{entry, things, err}
}

// changed is what is different now from what a was asked for.
func (d *Door) changed(tx journal.Tx, a approval, call ops.Call, l looked) ([]Change, error) {
	live, known, err := access.Live(tx, call.By.ID)
	if err != nil {
		return nil, err
	}
	if !known || live != call.By {
		return []Change{{"identity", a.bound.Identity, ""}}, nil
	}
	if a.bound.hash() != a.hash {
		return []Change{{"record", a.hash, a.bound.hash()}}, nil
	}
	// The files were read before; the op may have been loaded anew since.
	if entry, ok := d.registry.Current().Lookup(call.Op); !ok || l.entry != nil && entry.Digest != l.entry.Digest {
		l = looked{entry: entry, things: a.bound.RestsOn}
	}
	if l.entry == nil {
		return []Change{{"definition", a.bound.Definition, ""}}, nil
	}
	if l.err != nil {
		l.things = a.bound.RestsOn
	}
	list := changes(a.bound, bind(call, l.entry, d.Policy().Digest(), l.things, a.expiresAt))
	if l.err != nil {
		list = append(list, Change{"rests_on", a.hash, "cannot be read"})
	}
	return list, nil
}

// stale reports whether what an approved call rests on is different from what was
// approved, and settles the call then. It is asked directly before the executor is
// entered: between the approval and this moment the call may have waited in line.
func (d *Door) stale(t *task) bool {
	if _, binds := t.entry.Executor.(ops.Binder); !binds || !strings.HasPrefix(t.call.From.Grant, "a-") {
		return false
	}
	var a approval
	err := d.store.View(d.life, func(tx journal.Tx) (err error) {
		a, _, err = loadApproval(tx, ApprovalID(t.call.From.Grant))
		return err
	})
	if err != nil {
		d.log.Error("call not begun: its approval cannot be read", "call", t.call.ID, "op", t.call.Op, "err", err)
		d.settle(t, ops.Failure(ops.Faultf(ops.NotStarted, "the store could not be read when this call was to begin, so nothing ran")))
		return true
	}
	things, err := restsOn(t.entry, t.call)
	if err != nil {
		d.log.Error("what an approved call rests on cannot be read", "call", t.call.ID, "op", t.call.Op, "err", err)
		a.changed = []Change{{"rests_on", a.hash, "cannot be read"}}
	} else {
		was, is := a.bound, a.bound
		is.RestsOn, is.Definition = things, t.entry.Digest
		a.changed = changes(was, is)
	}
	if len(a.changed) == 0 {
		return false
	}
	a.state = Void
	d.write(t, func(tx journal.Tx) (ops.Outcome, error) {
		if err := turn(tx, t.call, a, Approved); err != nil {
			return ops.Outcome{}, err
		}
		return ops.Failure(a.fault()), nil
	})
	return true
}

// unask voids the pending approval of a call that is cancelled and settles the call,
// false if there is none to void.
func (d *Door) unask(tx journal.Tx, by ops.Identity, call ops.Call) (bool, error) {
	a, found, err := approvalOf(tx, call.ID)
	if err != nil || !found || a.state != Pending {
		return false, err
	}
	a.state, a.decidedBy = Void, &by
	return true, d.end(tx, call, a, cancelled(false))
}

// mayApprove decides whether by may decide about a call of owner.
func (d *Door) mayApprove(tx journal.Tx, by, owner ops.Identity) error {
	live, known, err := access.Live(tx, by.ID)
	if err != nil {
		return err
	}
	if !known || live != by {
		return ops.Faultf(ops.NotPermitted, "%s does not exist or has been revoked", by)
	}
	enrolled, err := access.Enrolled(tx, by.ID, owner.ID)
	if err != nil {
		return err
	}
	decision := d.Policy().Decide(access.Request{By: by, Action: access.Approve, Owner: owner.ID, Enrolled: enrolled})
	if !decision.Allowed {
		return ops.Faultf(ops.NotPermitted, "%s may not decide about calls of %s: %s", by, owner, decision.Rule)
	}
	return nil
}
