package plane

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"inband/failpoint"
	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// closing is a delegation that closes: what its call is told, and no more than is known.
type closing struct {
	h       *held
	as      DelegationState
	reason  string
	v       *verificationRow // the last verification, nil if there was none
	verdict wire.Verdict
	files   []wire.File
	missing []string
	open    []string // keys of mutations of which nobody knows whether they have happened
}

// closeDelegation settles the call of h, whose row says already that it is closed, and
// tells the thread. A delegation is COMPLETED only if the latest verification of its run
// says passed: this is looked up again here, whatever led here.
func (p *Plane) closeDelegation(tx journal.Tx, h *held, as DelegationState, reason string) error {
	if err := p.dropVerification(tx, h, "closed"); err != nil {
		return err
	}
	c := &closing{h: h, as: as, reason: reason}
	if err := c.read(tx); err != nil {
		return err
	}
	if as == Completed && (c.v == nil || c.v.state != JudgedPassed || c.v.run != h.run.run || c.v.verifier == "" || c.v.verifier == h.run.worker) {
		return fmt.Errorf("delegation %s would be completed without a verifier's word", h.delegation.id)
	}
	if err := c.record(tx); err != nil {
		return err
	}
	outcome, err := c.outcome()
	if err != nil {
		return err
	}
	failpoint.Here("plane.before-settle")
	switch err := p.door.Settle(tx, h.delegation.call, outcome); {
	case unsettled(err):
		// Somebody has settled the call before. What the delegation came to stands all the
		// same, and must not be lost over it.
		if err := event(tx, "delegation/"+h.delegation.id, "delegation.unsettled", map[string]any{"delegation": h.delegation.id, "call": h.delegation.call}); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("settle the call of %s: %w", h.delegation.id, err)
	}
	failpoint.Here("plane.settled")
	if p.notices == nil {
		return nil
	}
	call, err := orderOf(tx, h.delegation.call)
	if err != nil {
		return err
	}
	return p.notices.Closed(tx, News{Call: call, Delegation: h.delegation.id, State: as, Summary: h.run.summary})
}

// unsettled reports whether err says that a call waits for no outcome.
func unsettled(err error) bool {
	var f *ops.Fault
	return errors.As(err, &f) && (f.Code == ops.Conflict || f.Code == ops.NotFound)
}

// read reads what is known at the end.
func (c *closing) read(tx journal.Tx) (err error) {
	list, err := selectVerifications(tx, `v.delegation = $1 ORDER BY v.n DESC LIMIT 1`, c.h.delegation.id)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		c.v = &list[0]
		if c.v.verdict != "" {
			if err := json.Unmarshal([]byte(c.v.verdict), &c.verdict); err != nil {
				return fmt.Errorf("verdict of %s: %w", c.v.id, err)
			}
		}
	}
	if c.files, c.missing, err = returned(tx, c.h); err != nil {
		return err
	}
	c.open, err = unprovenKeys(tx, c.h.delegation.id)
	return err
}

// record appends the end to the delegation's stream.
func (c *closing) record(tx journal.Tx) error {
	body := map[string]any{
		"delegation": c.h.delegation.id, "call": c.h.delegation.call, "state": c.as, "reason": c.reason, "attempts": c.h.delegation.attempts,
		"run": c.h.run.run, "run_state": c.h.run.state, "worker": c.h.run.worker, "proof": c.h.run.proof, "unproven": len(c.open),
	}
	if c.v != nil {
		body["verification"], body["verification_state"], body["verifier"] = c.v.id, c.v.state, c.v.verifier
	}
	return event(tx, "delegation/"+c.h.delegation.id, "delegation.closed", body)
}

// known are the members that a result and the details of every fault have.
func (c *closing) known() map[string]any {
	h := c.h
	m := map[string]any{
		"delegation": h.delegation.id, "state": c.as, "run": h.run.run, "run_state": h.run.state, "attempt": h.run.attempt, "attempts": h.delegation.attempts,
	}
	if h.run.worker != "" {
		m["worker"] = h.run.worker
	}
	if c.v != nil && c.v.run == h.run.run {
		m["verification"] = c.v.id
		if c.v.verifier != "" {
			m["verifier"] = c.v.verifier
		}
	}
	if len(c.files) > 0 {
		m["files"] = c.files
	}
	if h.run.summary != "" {
		m["summary"] = untrusted(h.run.worker, h.run.summary)
	}
	if len(c.open) > 0 {
		m["mutations"] = c.open
	}
	return m
}

// untrusted marks words that somebody outside has written, for whoever reads them next.
func untrusted(by ops.IdentityID, text string) map[string]any {
	return map[string]any{"untrusted": true, "by": by, "text": text}
}

// outcome is what the call is told.
func (c *closing) outcome() (ops.Outcome, error) {
	receipt, err := c.receipt()
	if err != nil {
		return ops.Outcome{}, err
	}
	if c.as == Completed {
		result := c.known()
		if result["files"] == nil {
			result["files"] = []wire.File{}
		}
		o := ops.Success(ops.NewResult(result, ""))
		o.Receipt = receipt
		return o, nil
	}
	o := ops.Outcome{State: ops.Failed, Fault: c.fault(), Receipt: receipt}
	if c.as == DelegationCancelled {
		o.State = ops.Cancelled
	}
	return o, nil
}

// fault says what the work came to that was not done.
func (c *closing) fault() *ops.Fault {
	h := c.h
	var f *ops.Fault
	details := c.known()
	switch c.as {
	case VerificationFailed:
		f = ops.Faultf(ops.NotVerified, "%s was returned by %s, and verifier %s found it wrong; it counts as not done", h.delegation.id, h.run.worker, c.v.verifier)
		details["verdict"] = map[string]any{"command": c.verdict.Command, "exit": c.verdict.Exit, "reason": untrusted(c.v.verifier, c.verdict.Reason)}
	case EvidenceMissing:
		f = ops.Faultf(ops.NoEvidence, "%s was returned by %s without what it must be verified by; it counts as not done", h.delegation.id, h.run.worker)
		if len(c.missing) > 0 {
			f = ops.Faultf(ops.NoEvidence, "%s was returned by %s without the declared files %s, or they are not attested; it counts as not done",
				h.delegation.id, h.run.worker, strings.Join(c.missing, ", "))
			details["missing"] = c.missing
		} else if c.v != nil && c.v.verifier != "" {
			details["verdict"] = map[string]any{"reason": untrusted(c.v.verifier, c.verdict.Reason)}
		}
	case VerifierUnavailable:
		f = ops.Faultf(ops.NoVerifier, "%s was returned by %s, and no verifier of %s judged it in time; it counts as not done", h.delegation.id, h.run.worker, h.delegation.implementation)
	case DelegationCancelled:
		f = ops.Faultf(ops.CallCancelled, "%s was cancelled; %s", h.delegation.id, c.stopped())
		details["started"], details["proof"] = !h.run.startedAt.IsZero(), h.run.proof
	default:
		f = ops.Faultf(ops.Exhausted, "%s has failed in each of its %d attempts, the last time as %s", h.delegation.id, h.delegation.attempts, h.run.class)
		if h.run.proof == NoProof && h.delegation.cancel {
			f = ops.Faultf(ops.Exhausted, "%s was cancelled and given up; nothing proves that its run has stopped", h.delegation.id)
		}
		details["class"], details["reason"] = h.run.class, h.run.reason
	}
	if len(c.open) > 0 {
		f.Message += "; what it changed outside is not known: the mutations in the details may or may not have happened"
	}
	f.Details = details
	return f
}

// stopped says how it is known that nothing of a cancelled run goes on.
func (c *closing) stopped() string {
	r := c.h.run
	switch {
	case r.proof == NeverStarted:
		return "its run had not begun"
	case r.state == Succeeded:
		return "its result had come by then, and counts for nothing"
	case r.proof == Tombstone:
		return fmt.Sprintf("worker %s has signed that nothing of it is left", r.worker)
	case r.proof == NewBoot:
		return fmt.Sprintf("worker %s has begun anew and found nothing of it", r.worker)
	}
	return fmt.Sprintf("its run had ended at worker %s", r.worker)
}

// receipt is the account that stays with the call: who did what under which lease, from
// what, and who judged it by what.
func (c *closing) receipt() (json.RawMessage, error) {
	type verification struct {
		Verification string            `json:"verification"`
		State        VerificationState `json:"state"`
		Verifier     ops.IdentityID    `json:"verifier,omitempty"`
		Boot         string            `json:"boot,omitempty"`
		Fence        int64             `json:"fence,omitempty"`
		Message      string            `json:"message,omitempty"` // digest of the signed verdict
		Command      []string          `json:"command,omitempty"`
		Exit         int               `json:"exit"`
		Checked      []wire.File       `json:"checked,omitempty"`
	}
	h := c.h
	r := struct {
		Delegation   string          `json:"delegation"`
		State        DelegationState `json:"state"`
		Instruction  string          `json:"instruction_digest"`
		Source       wire.Source     `json:"source"`
		Run          string          `json:"run"`
		Dispatch     string          `json:"dispatch"`
		Attempt      int             `json:"attempt"`
		Worker       ops.IdentityID  `json:"worker,omitempty"`
		Boot         string          `json:"boot,omitempty"`
		Fence        int64           `json:"fence,omitempty"`
		Message      string          `json:"message,omitempty"` // digest of the run's last message
		Proof        Proof           `json:"proof,omitempty"`
		StartedAt    string          `json:"started_at,omitempty"`
		EndedAt      string          `json:"ended_at,omitempty"`
		Files        []wire.File     `json:"files,omitempty"`
		Unproven     int             `json:"unproven_mutations"`
		Verification *verification   `json:"verification,omitempty"`
	}{
		Delegation: h.delegation.id, State: c.as, Instruction: h.delegation.instruction, Source: wire.Source{Revision: h.delegation.revision, Worktree: h.delegation.worktree},
		Run: h.run.run, Dispatch: h.run.dispatch, Attempt: h.run.attempt, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Message: h.run.prev,
		Proof: h.run.proof, StartedAt: stampOf(h.run.startedAt), EndedAt: stampOf(h.run.endedAt), Files: c.files, Unproven: len(c.open),
	}
	if v := c.v; v != nil && v.run == h.run.run {
		r.Verification = &verification{Verification: v.id, State: v.state, Verifier: v.verifier, Boot: v.boot, Fence: v.fence, Message: v.prev,
			Command: c.verdict.Command, Exit: c.verdict.Exit, Checked: c.verdict.Checked}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("receipt of %s: %w", h.delegation.id, err)
	}
	return b, nil
}

// orderOf is the call that ordered a delegation.
func orderOf(tx journal.Tx, id ops.CallID) (ops.Call, error) {
	c := ops.Call{ID: id}
	err := tx.Query(`SELECT by_id, by_role, op, params, origin, evidence FROM call WHERE id = $1`, func(scan func(...any) error) error {
		var params, origin, evidence string
		if err := scan((*string)(&c.By.ID), (*string)(&c.By.Role), (*string)(&c.Op), &params, &origin, &evidence); err != nil {
			return err
		}
		c.Params = json.RawMessage(params)
		if err := json.Unmarshal([]byte(origin), &c.From); err != nil {
			return fmt.Errorf("origin of call %s: %w", id, err)
		}
		if err := json.Unmarshal([]byte(evidence), &c.Evidence); err != nil {
			return fmt.Errorf("evidence of call %s: %w", id, err)
		}
		return nil
	}, string(id))
	return c, err
}
