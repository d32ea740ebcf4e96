package service

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// visible returns an approval with its call if by may see the call or decide about it,
// NotFound otherwise.
func (d *Door) visible(ctx context.Context, by ops.Identity, id ApprovalID) (a approval, c storedCall, err error) {
	var enrolled bool
	err = d.store.View(ctx, func(tx journal.Tx) (err error) {
		if a, c, err = loadApproval(tx, id); err != nil {
			return err
		}
		enrolled, err = access.Enrolled(tx, by.ID, c.By.ID)
		return err
	})
	if err != nil {
		return a, c, err
	}
	policy, request := d.Policy(), access.Request{By: by, Action: access.See, Owner: c.By.ID, Enrolled: enrolled}
	if policy.Decide(request).Allowed {
		return a, c, nil
	}
	if request.Action = access.Approve; policy.Decide(request).Allowed {
		return a, c, nil
	}
	return approval{}, storedCall{}, unknownApproval(id)
}

// ApprovalListing is an approval as it is listed.
type ApprovalListing struct {
	Approval      ApprovalID    `json:"approval"`
	Call          ops.CallID    `json:"call"`
	State         ApprovalState `json:"state"`
	Op            ops.OpName    `json:"op"`
	Summary       string        `json:"summary"` // of the op as it was
	SideEffecting bool          `json:"side_effecting"`
	By            ops.Identity  `json:"by"` // who ordered the call
	Source        string        `json:"source"`
	Rule          string        `json:"rule,omitempty"` // that had it wait, see Ticket
	RequestedAt   string        `json:"requested_at"`
	ExpiresAt     string        `json:"expires_at"`
	DecidedAt     string        `json:"decided_at,omitempty"`
	DecidedBy     *ops.Identity `json:"decided_by,omitempty"` // absent when nobody did
}

// ApprovalShowing is an approval with all that who decides needs to know.
type ApprovalShowing struct {
	ApprovalListing
	Params   json.RawMessage `json:"params"` // as they would be run
	From     ops.Origin      `json:"from"`
	Evidence ops.Evidence    `json:"evidence"`
	Bound    Bound           `json:"bound"`
	Hash     string          `json:"hash"`   // over bound
	Policy   string          `json:"policy"` // digest of the policy that had it ask
	Reason   string          `json:"reason,omitempty"`
	Changed  []Change        `json:"changed,omitempty"` // of a void one
}

func (a approval) listed(c storedCall) ApprovalListing {
	l := ApprovalListing{
		Approval: a.id, Call: a.call, State: a.state, Op: c.Op, Summary: a.summary, SideEffecting: a.sideEffecting,
		By: c.By, Source: c.From.Source, Rule: c.rule, RequestedAt: ops.Stamp(a.requestedAt), ExpiresAt: ops.Stamp(a.expiresAt), DecidedBy: a.decidedBy,
	}
	if a.decidedAt != nil {
		l.DecidedAt = ops.Stamp(*a.decidedAt)
	}
	return l
}

// Approval shows approval id to by: one of a call that by may see or may decide about.
// Others are NotFound.
func (d *Door) Approval(ctx context.Context, by ops.Identity, id ApprovalID) (ApprovalShowing, error) {
	a, c, err := d.visible(ctx, by, id)
	if err != nil {
		return ApprovalShowing{}, err
	}
	return ApprovalShowing{
		ApprovalListing: a.listed(c), Params: c.Params, From: c.From, Evidence: c.Evidence,
		Bound: a.bound, Hash: a.hash, Policy: a.policy, Reason: a.reason, Changed: a.changed,
	}, nil
}

// listApprovals answers the read approvals: newest first, those of one's own calls and
// of one's agents', the pending ones that one may decide about, and all for who may see
// all. Filter: state.
func (d *Door) listApprovals(ctx context.Context, by ops.Identity, q Query) (any, error) {
	limit, err := PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	page := struct {
		Approvals []ApprovalListing `json:"approvals"`
		Next      ApprovalID        `json:"next,omitempty"`
	}{Approvals: []ApprovalListing{}}
	policy, state := d.Policy(), q.Filter["state"]
	manages := policy.Decide(access.Request{By: by, Action: access.Manage}).Allowed
	err = d.store.View(ctx, func(tx journal.Tx) error {
		const narrowed, order = ` AND ($2 = '' OR id < $2) AND ($3 = '' OR state = $3)`, ` ORDER BY id DESC`
		who, whose := "", `WHERE $1 = ''`
		if !manages {
			who, whose = string(by.ID), `WHERE by_id IN (SELECT $1 UNION SELECT e.agent FROM enrolment e
				JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL WHERE e.bridge = $1)`
		}
		found, err := selectApprovals(tx, whose+narrowed+order+` LIMIT $4`, who, q.After, state, int64(limit+1))
		if err != nil {
			return err
		}
		if !manages && (state == "" || state == string(Pending)) {
			open, err := selectApprovals(tx, `WHERE state = 'pending' AND $1 <> by_id`+narrowed+order, who, q.After, state)
			if err != nil {
				return err
			}
			if found, err = withThose(tx, found, open, policy, by); err != nil {
				return err
			}
		}
		if len(found) > limit {
			found = found[:limit]
			page.Next = found[limit-1].id
		}
		for _, a := range found {
			c, err := load(tx, a.call)
			if err != nil {
				return err
			}
			page.Approvals = append(page.Approvals, a.listed(c))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// withThose adds to found those of open that by may decide about, in their order. There
// are never more open ones than may be pending.
func withThose(tx journal.Tx, found, open []approval, policy *access.Policy, by ops.Identity) ([]approval, error) {
	may := make(map[string]bool)
	for _, a := range open {
		if slices.ContainsFunc(found, func(f approval) bool { return f.id == a.id }) {
			continue
		}
		allowed, known := may[a.bound.Identity]
		if !known {
			_, owner, _ := strings.Cut(a.bound.Identity, "/")
			enrolled, err := access.Enrolled(tx, by.ID, ops.IdentityID(owner))
			if err != nil {
				return nil, err
			}
			allowed = policy.Decide(access.Request{By: by, Action: access.Approve, Owner: ops.IdentityID(owner), Enrolled: enrolled}).Allowed
			may[a.bound.Identity] = allowed
		}
		if allowed {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b approval) int { return strings.Compare(string(b.id), string(a.id)) })
	return found, nil
}
