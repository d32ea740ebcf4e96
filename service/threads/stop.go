package threads

import (
	"context"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// Everywhere is the scope of a hold that stops all agents.
const Everywhere = service.Everything

// Holding says what a Hold or a Release has found in its scope.
type Holding struct {
	Scope   string `json:"scope"`   // a thread's id, or Everywhere
	Stopped bool   `json:"stopped"` // whether it is stopped now
	Calls   int    `json:"calls"`   // agents' calls that have not begun; while it is stopped, none does
	Running int    `json:"running"` // agents' calls that had begun, which go on to their end
	Wakes   int    `json:"wakes"`   // wakes whose envelopes are kept back, or, at a release, are posted now
}

// Hold stops what agents have ordered in a thread, or Everywhere: no call of theirs
// begins and no wake is posted until Release. What runs goes on to its end; Cancel of the
// door ends it. It outlives a restart. A second one changes nothing (rule R8).
//
// by must be allowed to manage, or it is NotPermitted. A thread that does not exist is
// NotFound.
func (t *Threads) Hold(ctx context.Context, by ops.Identity, scope string) (Holding, error) {
	s := Holding{Scope: scope, Stopped: true}
	err := t.store.Update(ctx, func(tx journal.Tx) error {
		if err := t.mayHold(tx, by, scope); err != nil {
			return err
		}
		if err := t.door.Hold(tx, by, scope); err != nil {
			return err
		}
		return tx.Query(`SELECT count(*) FROM wake WHERE state = 'held' AND ($1 = '*' OR thread = $1)`,
			func(scan func(...any) error) error { return scan(&s.Wakes) }, scope)
	})
	if err != nil {
		return Holding{}, err
	}
	s.Calls, s.Running = t.door.Standing(scope)
	return s, nil
}

// Release ends what Hold began with the same scope: the calls that wait go on, and the
// envelopes that were kept back are posted. A thread that is stopped by itself stays so
// when all are started. Its errors are those of Hold.
func (t *Threads) Release(ctx context.Context, by ops.Identity, scope string) (Holding, error) {
	s := Holding{Scope: scope}
	err := t.store.Update(ctx, func(tx journal.Tx) (err error) {
		if err := t.mayHold(tx, by, scope); err != nil {
			return err
		}
		if err := t.door.Release(tx, by, scope); err != nil {
			return err
		}
		s.Wakes, err = t.releaseWakes(tx, scope)
		return err
	})
	if err != nil {
		return Holding{}, err
	}
	s.Calls, s.Running = t.door.Standing(scope)
	return s, nil
}

// mayHold refuses who may not stop agents, and a scope that is none.
func (t *Threads) mayHold(tx journal.Tx, by ops.Identity, scope string) error {
	if d := t.door.Policy().Decide(access.Request{By: by, Action: access.Manage}); !d.Allowed {
		return ops.Faultf(ops.NotPermitted, "%s may not stop or start agents: %s", by, d.Rule)
	}
	if scope == Everywhere {
		return nil
	}
	return maySee(tx, t.door.Policy(), by, scope)
}
