package plane

import (
	"context"
	"fmt"
	"slices"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// Reads returns the reads delegations, delegation, workers, worker and plane. Workers are
// for who may manage the gateway.
func (p *Plane) Reads() []service.Read {
	return []service.Read{
		{Name: "delegations", Do: func(ctx context.Context, by ops.Identity, q service.Query) (any, error) {
			return p.Delegations(ctx, by, q)
		}},
		{Name: "delegation", Do: func(ctx context.Context, by ops.Identity, q service.Query) (any, error) {
			return p.Delegation(ctx, by, q.Arg)
		}},
		{Name: "workers", Manage: true, Do: func(ctx context.Context, _ ops.Identity, q service.Query) (any, error) {
			return p.Workers(ctx, q)
		}},
		{Name: "worker", Manage: true, Do: func(ctx context.Context, _ ops.Identity, q service.Query) (any, error) {
			return p.Worker(ctx, q.Arg)
		}},
		{Name: "plane", Do: func(ctx context.Context, _ ops.Identity, _ service.Query) (any, error) { return p.Status(ctx) }},
	}
}

// Bounds of what is shown.
const (
	defaultPage  = 50
	maxPage      = 200
	shownRuns    = 50
	shownFiles   = 200
	shownVerdict = 50
	shownChanges = 200
	shownDoubts  = 50
)

// DelegationListing is a delegation as it is listed, with its latest run. Times are as
// ops.Stamp writes them.
type DelegationListing struct {
	Delegation     string          `json:"delegation"`
	Call           ops.CallID      `json:"call"` // that ordered it, and that it settles
	By             ops.Identity    `json:"by"`
	Thread         string          `json:"thread,omitempty"` // where it was ordered
	Implementation string          `json:"implementation"`
	State          DelegationState `json:"state"`
	Closed         bool            `json:"closed"`           // nothing moves it any more; its call is settled
	Cancel         bool            `json:"cancel,omitempty"` // it is to end as cancelled
	Reason         string          `json:"reason,omitempty"`
	Attempts       int             `json:"attempts"`
	Run            string          `json:"run,omitempty"` // the latest
	RunState       State           `json:"run_state,omitempty"`
	Worker         ops.IdentityID  `json:"worker,omitempty"`
	Progress       int64           `json:"progress,omitempty"`
	Deadline       string          `json:"deadline"`
	CreatedAt      string          `json:"created_at"`
	ClosedAt       string          `json:"closed_at,omitempty"`
}

// DelegationPage is a page of delegations, newest first.
type DelegationPage struct {
	Delegations []DelegationListing `json:"delegations"`
	Next        string              `json:"next,omitempty"`
}

// Delegations returns delegations, newest first: the caller's own and those of the agents
// that are enrolled with it; all of them for who may manage the gateway. Filters: state,
// by, implementation, thread. A state that does not exist is a BadRequest.
func (p *Plane) Delegations(ctx context.Context, by ops.Identity, q service.Query) (DelegationPage, error) {
	limit, err := service.PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return DelegationPage{}, err
	}
	state := q.Filter["state"]
	if state != "" && !slices.Contains(delegationStates(), DelegationState(state)) {
		return DelegationPage{}, ops.Faultf(ops.BadRequest, "state %s: want one of %v", shown(state), delegationStates())
	}
	// Only what is asked for stands in the statement, so that it has an index to go by.
	args := []any{int64(limit + 1)}
	where := `d.id <> ''`
	if p.manages(by) != nil {
		where = `d.by_id IN (SELECT $2 UNION SELECT e.agent FROM enrolment e JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL WHERE e.bridge = $2)`
		args = append(args, string(by.ID))
	}
	for _, c := range []struct{ condition, value string }{
		{`d.id <`, q.After}, {`d.state =`, state}, {`d.by_id =`, q.Filter["by"]}, {`d.implementation =`, q.Filter["implementation"]}, {`d.thread =`, q.Filter["thread"]},
	} {
		if c.value != "" {
			args = append(args, c.value)
			where += fmt.Sprintf(` AND %s $%d`, c.condition, len(args))
		}
	}
	page := DelegationPage{}
	err = p.store.View(ctx, func(tx journal.Tx) (err error) {
		page.Delegations, err = listDelegations(tx, where+` ORDER BY d.id DESC LIMIT $1`, args...)
		return err
	})
	if err != nil {
		return DelegationPage{}, err
	}
	if len(page.Delegations) > limit {
		page.Delegations = page.Delegations[:limit]
		page.Next = page.Delegations[limit-1].Delegation
	}
	return page, nil
}

func delegationStates() []DelegationState {
	return []DelegationState{Open, Verifying, EvidenceMissing, VerifierUnavailable, Completed, VerificationFailed, DelegationCancelled, DelegationExhausted}
}

// listDelegations reads delegations, each with its latest run.
func listDelegations(tx journal.Tx, where string, args ...any) ([]DelegationListing, error) {
	list := []DelegationListing{}
	err := tx.Query(`SELECT d.id, d.call, d.by_id, d.by_role, d.thread, d.implementation, d.state, d.cancel, d.reason, d.attempts, d.deadline, d.created_at, d.closed_at,
			coalesce(x.run, ''), coalesce(x.state, ''), coalesce(x.worker, ''), coalesce(x.progress, 0)
			FROM delegation d LEFT JOIN dispatch x ON x.delegation = d.id AND x.attempt = d.attempts WHERE `+where,
		func(scan func(...any) error) error {
			var l DelegationListing
			var attempts, cancel, deadline, created int64
			var closed *int64
			if err := scan(&l.Delegation, (*string)(&l.Call), (*string)(&l.By.ID), (*string)(&l.By.Role), &l.Thread, &l.Implementation, (*string)(&l.State), &cancel,
				&l.Reason, &attempts, &deadline, &created, &closed, &l.Run, (*string)(&l.RunState), (*string)(&l.Worker), &l.Progress); err != nil {
				return err
			}
			l.Attempts, l.Cancel = int(attempts), cancel != 0
			l.Deadline, l.CreatedAt, l.ClosedAt, l.Closed = stampMS(deadline), stampMS(created), maybeMS(closed), closed != nil
			list = append(list, l)
			return nil
		}, args...)
	return list, err
}

// Delegation returns a delegation whole, or NotFound for one that by may not see.
func (p *Plane) Delegation(ctx context.Context, by ops.Identity, id string) (s DelegationShowing, err error) {
	err = p.store.View(ctx, func(tx journal.Tx) error {
		s, err = p.showTo(tx, by, id)
		return err
	})
	return s, err
}

// showTo is delegation id as by may see it, in tx.
func (p *Plane) showTo(tx journal.Tx, by ops.Identity, id string) (DelegationShowing, error) {
	owner, err := ownerOf(tx, id)
	if err != nil {
		return DelegationShowing{}, err
	}
	if sees, err := p.may(tx, by, access.See, owner); err != nil || !sees {
		return DelegationShowing{}, orUnknown(err, id)
	}
	hears, err := p.may(tx, by, access.Output, owner)
	if err != nil {
		return DelegationShowing{}, err
	}
	s, err := showDelegation(tx, id)
	if err != nil {
		return DelegationShowing{}, err
	}
	if why, err := p.kept(tx, &s); err != nil {
		return DelegationShowing{}, err
	} else if why != "" {
		s.Waits = why
	}
	if !hears {
		s.withhold()
	}
	return s, nil
}

// may reports whether by may do action to what belongs to owner.
func (p *Plane) may(tx journal.Tx, by ops.Identity, action access.Action, owner ops.IdentityID) (bool, error) {
	enrolled, err := access.Enrolled(tx, by.ID, owner)
	if err != nil {
		return false, err
	}
	return p.policy.Current().Decide(access.Request{By: by, Action: action, Owner: owner, Enrolled: enrolled}).Allowed, nil
}

// ownerOf is whose delegation id is, or NotFound.
func ownerOf(tx journal.Tx, id string) (owner ops.IdentityID, err error) {
	err = tx.Query(`SELECT by_id FROM delegation WHERE id = $1`, func(scan func(...any) error) error { return scan((*string)(&owner)) }, id)
	if err == nil && owner == "" {
		err = unknownDelegation(id)
	}
	return owner, err
}

func unknownDelegation(id string) *ops.Fault {
	return ops.Faultf(ops.NotFound, "there is no delegation %s", shown(id))
}

func orUnknown(err error, id string) error {
	if err != nil {
		return err
	}
	return unknownDelegation(id)
}

// kept is what an offer waits for that would not be granted though somebody came for it, ""
// if it would be.
func (p *Plane) kept(tx journal.Tx, s *DelegationShowing) (string, error) {
	if s.Closed || s.RunState != Dispatched {
		return "", nil
	}
	state, err := switchedTo(tx)
	if err != nil {
		return "", err
	}
	if state != On {
		return fmt.Sprintf("box plane on: dispatch is %s", state), nil
	}
	if s.By.Role == ops.Operator { // what a person orders is never held
		return "", nil
	}
	held, err := p.door.Held(tx, s.Thread)
	if err != nil || !held {
		return "", err
	}
	return "a START: agents are stopped in its thread, or all of them (box start)", nil
}
