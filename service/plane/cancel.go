package plane

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// MaxGrace bounds how long a cancelled run may take to prove that it has stopped.
const MaxGrace = time.Hour

// maxReason bounds the words of who cancels, in bytes.
const maxReason = 500

// CancelRequest is how a delegation is to be cancelled.
type CancelRequest struct {
	Grace  time.Duration // for the run to prove that it has stopped; 0 is the plane's standard
	Reason string        // for people, at most 500 bytes
}

// CancelDelegation has the delegation id end as cancelled, and returns it as it is then.
// One that nobody has begun, waits for its next attempt or for a verifier is cancelled at
// once. A worker that has it is told with the next answer that it gets, and has Grace to
// prove that nothing is left; the delegation is open until then, and stays so as UNKNOWN
// if no proof comes. One that is to be cancelled already stays so, and so does one that
// is; one that has ended otherwise is a Conflict.
//
// by may cancel its own delegations, operators any. One that by may not see is NotFound,
// one that it may see and no more NotPermitted.
func (p *Plane) CancelDelegation(ctx context.Context, by ops.Identity, id string, c CancelRequest) (s DelegationShowing, err error) {
	err = p.store.Update(journal.Urgent(ctx), func(tx journal.Tx) error {
		if _, err := p.cancel(tx, by, id, c); err != nil {
			return err
		}
		s, err = p.showTo(tx, by, id)
		return err
	})
	if err == nil {
		failpoint.Here("plane.cancelled")
	}
	return s, stored(err)
}

// CancelCall has the delegation of call end as cancelled, in tx, for a door whose caller
// may cancel that call; false if call is of no delegation. It is made for OnCancel.
func (p *Plane) CancelCall(tx journal.Tx, by ops.Identity, call ops.Call) (handled bool, err error) {
	var id string
	if err := tx.Query(`SELECT id FROM delegation WHERE call = $1`, func(scan func(...any) error) error { return scan(&id) }, string(call.ID)); err != nil || id == "" {
		return false, err
	}
	h, err := p.load(tx, id, "")
	if err != nil {
		return false, err
	}
	fault, err := p.cancelOf(tx, h, by, CancelRequest{})
	return true, orFault(fault, err)
}

// cancelTx is swarm.cancel, whose whole effect is in the journal.
func (p *Plane) cancelTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	var q struct{ Delegation, Grace string }
	if err := json.Unmarshal(c.Params, &q); err != nil {
		return ops.Outcome{}, fmt.Errorf("parameters of swarm.cancel: %w", err)
	}
	r := CancelRequest{}
	if q.Grace != "" {
		grace, err := time.ParseDuration(q.Grace)
		if err != nil {
			return ops.Outcome{}, fmt.Errorf("grace of swarm.cancel: %w", err)
		}
		r.Grace = grace
	}
	h, err := p.cancel(tx, c.By, q.Delegation, r)
	if err != nil {
		return ops.Outcome{}, err
	}
	return ops.Success(ops.NewResult(map[string]any{
		"delegation": h.delegation.id, "state": h.delegation.state, "closed": !h.delegation.closedAt.IsZero(),
		"run": h.run.run, "run_state": h.run.state, "proof": h.run.proof,
	}, "")), nil
}

// cancel has by cancel delegation id, if it may. Its error may be a fault.
func (p *Plane) cancel(tx journal.Tx, by ops.Identity, id string, c CancelRequest) (*held, error) {
	switch {
	case c.Grace < 0 || c.Grace > MaxGrace:
		return nil, ops.Faultf(ops.BadRequest, "grace %s: want at most %s", c.Grace, MaxGrace).With("pointer", "/grace")
	case !words(c.Reason, maxReason):
		return nil, ops.Faultf(ops.BadRequest, "reason: want text of at most %d bytes, without control characters", maxReason).With("pointer", "/reason")
	}
	h, err := p.load(tx, id, "")
	if err != nil {
		return nil, err
	}
	if may, err := p.may(tx, by, access.Cancel, h.delegation.by.ID); err != nil {
		return nil, err
	} else if !may {
		return nil, p.refuse(tx, by, h, "cancel it; who ordered it may, and operators may")
	}
	fault, err := p.cancelOf(tx, h, by, c)
	return h, orFault(fault, err)
}

// refuse is why by may not do something with h: NotPermitted if it may see it, and else
// NotFound, so that nobody learns what there is.
func (p *Plane) refuse(tx journal.Tx, by ops.Identity, h *held, what string) error {
	sees, err := p.may(tx, by, access.See, h.delegation.by.ID)
	if err != nil || !sees {
		return orUnknown(err, h.delegation.id)
	}
	return ops.Faultf(ops.NotPermitted, "%s may not %s", by, what)
}

// cancelOf has h end as cancelled, by somebody who may. The fault is why it cannot.
func (p *Plane) cancelOf(tx journal.Tx, h *held, by ops.Identity, c CancelRequest) (*ops.Fault, error) {
	d := &h.delegation
	switch {
	case d.state == DelegationCancelled && !d.closedAt.IsZero():
		return nil, nil
	case !d.closedAt.IsZero():
		return closedFault(d), nil
	case d.cancel:
		return nil, nil
	}
	if c.Grace == 0 {
		c.Grace = p.CancelGrace
	}
	d.cancelBy, d.cancelReason = by.ID, c.Reason
	return p.apply(tx, h, Event{Kind: OnCancelRequested, Grace: c.Grace, Recover: p.Recover, Reason: "cancelled"})
}

// closedFault says that a delegation has ended.
func closedFault(d *delegationRow) *ops.Fault {
	return ops.Faultf(ops.Conflict, "delegation %s is %s already", d.id, d.state).With("state", d.state)
}
