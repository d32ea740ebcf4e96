package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"inband/failpoint"
	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// Order is a call that has been weighed and is ready to be written: everything
// that needs no store has been decided.
type Order struct {
	call     ops.Call
	entry    *ops.Entry // nil if the op is unknown
	fault    *ops.Fault // why it is refused, nil if it is not
	asking   *asking    // what an approval of it is for, nil if it needs none
	answered bool       // see Answered
	digest   string     // of op and parameters, for the idempotency key
	held     *held      // what it has had of the rates
	rule     string     // that lets it run, has it ask or refuses it
}

// Prepare resolves the alias of call, weighs the evidence that it is an order, decides
// permission and validates the parameters. It never fails: what is wrong with the call is
// kept in the order and refused, on record, by Admit.
func (d *Door) Prepare(call ops.Call) Order {
	if call.ID == "" {
		call.ID = ops.NewCallID()
	}
	registry := d.registry.Current()
	o := Order{call: call, held: new(held)}
	entry, ok := registry.Lookup(call.Op)
	if !ok {
		o.refuse(ruleUnknownOp, registry.UnknownOp(call.Op))
		o.call.Op = ops.OpName(strings.ReplaceAll(clip(string(call.Op), ops.MaxNameLen), "\x00", "\uFFFD"))
		o.call.Params = keepable(call.Params)
		return o
	}
	o.entry = entry
	o.call.Op = entry.Name
	policy := d.Policy()
	v := decide(d.rules, policy, ofText(call, entry))
	if o.rule = v.rule; v.fault != nil {
		o.fault = v.fault
		o.call.Params = keepable(call.Params)
		return o
	}
	_, canonical, fault := entry.Params.Parse(call.Params)
	if fault != nil {
		o.refuse(ruleParams, fault)
		o.call.Params = keepable(call.Params)
		return o
	}
	o.call.Params = canonical
	if len(call.Key) > ops.MaxKeyLen {
		o.refuse(ruleKeyLength, ops.Faultf(ops.BadRequest, "the idempotency key is longer than %d bytes", ops.MaxKeyLen))
		o.call.Key = ""
		return o
	}
	sum := sha256.Sum256([]byte(string(entry.Name) + "\x00" + string(canonical)))
	o.digest = hex.EncodeToString(sum[:])
	if v.ask {
		d.ask(&o, policy.Digest())
	}
	return o
}

// Answered returns o as an order whose answer is its result, since nobody can hand it in
// again: when too many calls wait for an approval it is refused as Busy, on record, and
// Admit does not fail for it.
func (o Order) Answered() Order {
	o.answered = true
	return o
}

// refuse makes o one that is refused, by rule.
func (o *Order) refuse(rule string, f *ops.Fault) { o.rule, o.fault = rule, f }

// runRequest asks whether by may run entry, on the worst evidence that there is.
func runRequest(by ops.Identity, entry *ops.Entry) access.Request {
	return access.Request{By: by, Action: access.Run, Op: entry.Name, Provider: entry.Provider, SideEffecting: entry.SideEffecting}
}

// Admit writes the intents of orders in tx, one ticket each, in their order. When
// tx has committed, the caller hands the tickets to Run; if it never does, the next
// start of the gateway finds the calls.
//
// A refused call is written too, with its outcome, and OnSettle functions see it. A call
// that is too many for the rate of its op or its identity is refused as RateLimited. One
// that waits for an approval is parked, and its ticket names the approval. A call whose
// key is known is not written again: its ticket carries the stored outcome, or the
// approval that it waits for, or IN_PROGRESS, or KEY_REUSED. Nor is one with side effects
// that is the same, by op and parameters, as an earlier one of its wake, whose key it
// carries (rule R5).
//
// The error is one of the store, or Busy when too many calls wait, in line or for an
// approval (but see Order.Answered), of all or of the one who ordered them; then nothing of orders may be
// committed. All of orders are of one identity.
func (d *Door) Admit(tx journal.Tx, orders ...Order) ([]Ticket, error) {
	if fault := d.room(orders); fault != nil {
		return nil, fault
	}
	tickets := make([]Ticket, 0, len(orders))
	for _, o := range orders {
		t, err := d.admit(tx, o)
		if err != nil {
			return nil, err
		}
		tickets = append(tickets, t)
	}
	return tickets, nil
}

func (d *Door) admit(tx journal.Tx, o Order) (Ticket, error) {
	call := o.call
	live, known, err := access.Live(tx, call.By.ID)
	if err != nil {
		return Ticket{}, err
	}
	if o.fault == nil && (!known || live != call.By) {
		o.refuse(ruleIdentity, ops.Faultf(ops.NotPermitted, "%s does not exist or has been revoked", call.By))
	}
	earlier, found, err := before(tx, o)
	if err != nil {
		return Ticket{}, err
	}
	if found {
		d.giveBack(o)
		return earlier.again(tx, o.digest)
	}
	if fault := d.take(o); fault != nil {
		o.refuse(ruleRate, fault)
	}
	if o.asking != nil && o.fault == nil {
		fault, err := d.tooManyWait(tx, call.By)
		switch {
		case err != nil:
			return Ticket{}, err
		case fault != nil && !o.answered:
			return Ticket{}, fault
		case fault != nil:
			o.refuse(ruleWaiting, fault)
		}
	}
	if err := insert(tx, o, string(d.store.Boot())); err != nil {
		return Ticket{}, err
	}
	if o.fault != nil {
		outcome := ops.Outcome{State: ops.Refused, Fault: o.fault}
		if err := d.settled(tx, call, outcome, o.rule); err != nil {
			return Ticket{}, err
		}
		return Ticket{Call: call.ID, Op: call.Op, State: ops.Refused, Outcome: &outcome, Rule: o.rule}, nil
	}
	if o.asking != nil {
		id, err := d.park(tx, o)
		if err != nil {
			return Ticket{}, err
		}
		return Ticket{Call: call.ID, Op: call.Op, State: ops.Parked, Approval: id, Rule: o.rule}, nil
	}
	if err := record(tx, call, "call.received", nil, o.rule); err != nil {
		return Ticket{}, err
	}
	return Ticket{Call: call.ID, Op: call.Op, State: ops.Received, Rule: o.rule, task: newTask(call, o.entry)}, nil
}

// before returns the call that o is once more, false if there is none or o is refused.
func before(tx journal.Tx, o Order) (earlierCall, bool, error) {
	if o.fault != nil {
		return earlierCall{}, false, nil
	}
	if o.call.Key != "" {
		if e, found, err := byKey(tx, o.call.By.ID, o.call.Key); err != nil || found {
			return e, found, err
		}
	}
	if !o.once() {
		return earlierCall{}, false, nil
	}
	return byWake(tx, o)
}

// once reports whether o is an order that its wake has only once: the same again is most
// often an agent that repeats itself.
func (o Order) once() bool {
	return o.call.From.Wake != "" && o.call.Evidence.Key == ops.KeyGood && o.entry.SideEffecting
}

// earlierCall is what a known key leads to, or an order that a wake has had.
type earlierCall struct {
	same    string // what it has in common with this one, for people
	id      ops.CallID
	op      ops.OpName
	digest  string
	state   ops.State
	outcome *ops.Outcome
	rule    string
}

// again is the ticket for a call that was made before. What it came to is replayed, but
// not as retryable: that takes a new key.
func (e earlierCall) again(tx journal.Tx, digest string) (Ticket, error) {
	refused := func(f *ops.Fault) (Ticket, error) {
		return Ticket{Call: e.id, Op: e.op, State: e.state, Rule: e.rule,
			Outcome: &ops.Outcome{State: ops.Refused, Fault: f.With("call", e.id)}}, nil
	}
	switch {
	case digest != e.digest:
		return refused(ops.Faultf(ops.KeyReused, "this idempotency key was used for call %s, with another op or other parameters; use a new key", e.id))
	case e.state == ops.Parked:
		a, _, err := approvalOf(tx, e.id)
		return Ticket{Call: e.id, Op: e.op, State: e.state, Approval: a.id, Replayed: true, Rule: e.rule}, err
	case e.outcome == nil:
		return refused(ops.Faultf(ops.InProgress, "call %s %s and is not settled yet", e.id, e.same))
	}
	o := *e.outcome
	if o.Fault != nil && o.Fault.Retryable { // the same request leads here again, whatever has passed meanwhile
		f := *o.Fault
		f.Retryable = false
		o.Fault = &f
	}
	return Ticket{Call: e.id, Op: e.op, State: e.state, Outcome: &o, Replayed: true, Rule: e.rule}, nil
}

// Submit admits one call and runs it. The ticket of a call that runs is not
// settled; Await tells its outcome. The error is as Admit's, or RateLimited when the op
// or the identity has had its number of calls for now; nothing is written then.
func (d *Door) Submit(ctx context.Context, call ops.Call) (Ticket, error) {
	if d.isClosing() {
		return Ticket{}, ops.Faultf(ops.Unavailable, "the gateway is stopping")
	}
	order := d.Prepare(call)
	if err := d.tooOften(ctx, order); err != nil {
		if AsFault(err).Code == ops.RateLimited {
			d.counts.add("refused", label(ruleRate))
		}
		return Ticket{}, err
	}
	var tickets []Ticket
	err := d.store.Update(ctx, func(tx journal.Tx) (err error) {
		tickets, err = d.Admit(tx, order)
		return err
	})
	if err != nil {
		d.Forget(order)
		return Ticket{}, err
	}
	failpoint.Here("door.admitted")
	d.Run(tickets...)
	return tickets[0], nil
}

// room is a fault if orders would be more than may wait.
func (d *Door) room(orders []Order) *ops.Fault {
	if len(orders) == 0 {
		return nil
	}
	return d.roomFor(orders[0].call.By, len(orders))
}

// roomFor is a fault if n more calls of by would be more than may wait.
func (d *Door) roomFor(by ops.Identity, n int) *ops.Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if waiting := len(d.tasks); waiting+n > d.maxWaiting {
		return fullLine("", waiting, d.maxWaiting)
	}
	if s := d.shares[by.ID]; s != nil && by.Role != ops.Operator && s.waiting+n > d.shareWaiting {
		return fullLine(" of "+by.String(), s.waiting, d.shareWaiting)
	}
	return nil
}

func (d *Door) isClosing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing
}

// maxKept bounds what is kept of parameters that were refused, in bytes.
const maxKept = 4 << 10

// keepable returns raw in a form that can be stored and shown: refused parameters
// need not be JSON, and need not be short.
func keepable(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	if canonical, fault := ops.Canonical(raw); fault == nil && len(canonical) <= maxKept {
		return canonical
	}
	b, err := json.Marshal(clip(string(raw), maxKept))
	if err != nil {
		panic(fmt.Sprintf("service: a string that is no JSON: %v", err))
	}
	return b
}
