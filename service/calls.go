package service

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"inband/ops"
	"inband/service/journal"
)

// storedCall is a row of the call table.
type storedCall struct {
	ID         ops.CallID
	By         ops.Identity
	Op         ops.OpName
	Provider   string
	Params     json.RawMessage
	Key        string
	From       ops.Origin
	Evidence   ops.Evidence
	State      ops.State
	ReceivedAt time.Time
	StartedAt  *time.Time
	SettledAt  *time.Time

	effect     string
	definition string
	digest     string
	rule       string
	outcome    *ops.Outcome
}

func (c *storedCall) call() ops.Call {
	return ops.Call{ID: c.ID, Op: c.Op, By: c.By, Key: c.Key, Params: c.Params, From: c.From, Evidence: c.Evidence}
}

// insert writes the intent of o. A refused call leaves its key free.
func insert(tx journal.Tx, o Order, owner string) error {
	call := o.call
	origin, err := json.Marshal(call.From)
	if err != nil {
		return fmt.Errorf("origin of call %s: %w", call.ID, err)
	}
	evidence, err := json.Marshal(call.Evidence)
	if err != nil {
		return fmt.Errorf("evidence of call %s: %w", call.ID, err)
	}
	provider, definition := "", ""
	if o.entry != nil {
		provider, definition = o.entry.Provider, o.entry.Digest
	}
	now := tx.Now().UnixMilli()
	state, key, outcome, settled, wake := ops.Received, any(nil), any(nil), any(nil), any(nil)
	if call.From.Wake != "" {
		wake = call.From.Wake
	}
	if o.fault != nil {
		b, err := json.Marshal(ops.Outcome{State: ops.Refused, Fault: o.fault})
		if err != nil {
			return fmt.Errorf("refusal of call %s: %w", call.ID, err)
		}
		state, outcome, settled = ops.Refused, string(b), now
	} else {
		if call.Key != "" {
			key = call.Key
		}
		if o.asking != nil {
			state = ops.Parked
		}
	}
	_, err = tx.Exec(`INSERT INTO call (id, by_id, by_role, op, provider, effect, definition, params, body_hash, idem_key,
			source, origin, evidence, state, owner, outcome, received_at, settled_at, rule, wake)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)`,
		string(call.ID), string(call.By.ID), string(call.By.Role), string(call.Op), provider, effect(o.entry), definition,
		string(call.Params), o.digest, key, call.From.Source, string(origin), string(evidence), string(state), owner,
		outcome, now, settled, o.rule, wake)
	return err
}

func byKey(tx journal.Tx, by ops.IdentityID, key string) (e earlierCall, found bool, err error) {
	calls, err := selectCalls(tx, `WHERE by_id = $1 AND idem_key = $2`, string(by), key)
	if err != nil || len(calls) == 0 {
		return e, false, err
	}
	return calls[0].earlier("has this idempotency key"), true, nil
}

func (c *storedCall) earlier(same string) earlierCall {
	return earlierCall{same: same, id: c.ID, op: c.Op, digest: c.digest, state: c.State, outcome: c.outcome, rule: c.rule}
}

// byWake returns the call of the wake of o that is the same as o. One that was refused, or
// whose fault says that nothing ran and that it is to be ordered again, is none.
func byWake(tx journal.Tx, o Order) (earlierCall, bool, error) {
	calls, err := selectCalls(tx, `WHERE wake = $1 AND body_hash = $2 AND by_id = $3 AND state <> 'refused' ORDER BY id`,
		o.call.From.Wake, o.digest, string(o.call.By.ID))
	if err != nil {
		return earlierCall{}, false, err
	}
	for _, c := range calls {
		if c.outcome != nil && c.outcome.Fault != nil {
			switch c.outcome.Fault.Code {
			case ops.NotStarted, ops.ApprovalExpired, ops.ApprovalVoid:
				continue
			}
		}
		return c.earlier("is the same order of this wake"), true, nil
	}
	return earlierCall{}, false, nil
}

// load reads one call, or returns NotFound.
func load(tx journal.Tx, id ops.CallID) (storedCall, error) {
	calls, err := selectCalls(tx, `WHERE id = $1`, string(id))
	if err != nil {
		return storedCall{}, err
	}
	if len(calls) == 0 {
		return storedCall{}, unknownCall(id)
	}
	return calls[0], nil
}

func (d *Door) read(ctx context.Context, id ops.CallID) (c storedCall, err error) {
	err = d.store.View(ctx, func(tx journal.Tx) error {
		c, err = load(tx, id)
		return err
	})
	return c, err
}

func unknownCall(id ops.CallID) *ops.Fault {
	return ops.Faultf(ops.NotFound, "there is no call %q", clip(string(id), 64))
}

func selectCalls(tx journal.Tx, where string, args ...any) ([]storedCall, error) {
	var calls []storedCall
	err := tx.Query(`SELECT id, by_id, by_role, op, provider, effect, definition, params, body_hash, idem_key, origin, evidence,
			state, outcome, received_at, started_at, settled_at, rule FROM call `+where,
		func(scan func(...any) error) error {
			var c storedCall
			var params, origin, evidence string
			var key, outcome *string
			var received int64
			var started, settled *int64
			if err := scan((*string)(&c.ID), (*string)(&c.By.ID), (*string)(&c.By.Role), (*string)(&c.Op), &c.Provider, &c.effect, &c.definition,
				&params, &c.digest, &key, &origin, &evidence, (*string)(&c.State), &outcome, &received, &started, &settled, &c.rule); err != nil {
				return err
			}
			c.Params = json.RawMessage(params)
			if key != nil {
				c.Key = *key
			}
			c.ReceivedAt, c.StartedAt, c.SettledAt = moment(received), maybe(started), maybe(settled)
			if err := json.Unmarshal([]byte(origin), &c.From); err != nil {
				return fmt.Errorf("origin of call %s: %w", c.ID, err)
			}
			if err := json.Unmarshal([]byte(evidence), &c.Evidence); err != nil {
				return fmt.Errorf("evidence of call %s: %w", c.ID, err)
			}
			if outcome != nil {
				c.outcome = new(ops.Outcome)
				if err := json.Unmarshal([]byte(*outcome), c.outcome); err != nil {
					return fmt.Errorf("outcome of call %s: %w", c.ID, err)
				}
			}
			calls = append(calls, c)
			return nil
		}, args...)
	return calls, err
}

func moment(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func maybe(ms *int64) *time.Time {
	if ms == nil {
		return nil
	}
	t := moment(*ms)
	return &t
}
