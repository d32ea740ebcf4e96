package service

import (
	"encoding/json"
	"fmt"

	"inband/ops"
	"inband/service/journal"
)

// CallBrief is what one line about a call says.
type CallBrief struct {
	Call     ops.CallID `json:"call"`
	Op       ops.OpName `json:"op"`
	State    ops.State  `json:"state"`
	Rule     string     `json:"rule,omitempty"`     // that let it run, parked or refused it, see Ticket
	Code     ops.Code   `json:"code,omitempty"`     // of its fault, when it did not succeed
	Approval ApprovalID `json:"approval,omitempty"` // that it waits for, or waited for
}

// Brief reads one call in tx, without its parameters and what it said. NotFound if there
// is none.
func (d *Door) Brief(tx journal.Tx, id ops.CallID) (CallBrief, error) {
	b := CallBrief{Call: id}
	var outcome, approval *string
	if err := tx.Query(`SELECT op, state, rule, CASE WHEN state IN ('refused', 'failed', 'cancelled', 'outcome_unknown') THEN outcome END,
			(SELECT a.id FROM approval a WHERE a.call = call.id) FROM call WHERE id = $1`,
		func(scan func(...any) error) error {
			return scan((*string)(&b.Op), (*string)(&b.State), &b.Rule, &outcome, &approval)
		}, string(id)); err != nil {
		return CallBrief{}, err
	}
	if b.State == "" {
		return CallBrief{}, unknownCall(id)
	}
	if approval != nil {
		b.Approval = ApprovalID(*approval)
	}
	if outcome == nil {
		return b, nil
	}
	var o ops.Outcome
	if err := json.Unmarshal([]byte(*outcome), &o); err != nil {
		return CallBrief{}, fmt.Errorf("outcome of call %s: %w", id, err)
	}
	if o.Fault != nil {
		b.Code = o.Fault.Code
	}
	return b, nil
}
