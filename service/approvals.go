package service

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/journal"
)

// ApprovalID identifies one approval for good: "a-" and a lower-case ULID. Ids sort by
// the time they were made.
type ApprovalID string

func newApprovalID() ApprovalID { return ApprovalID("a-" + strings.ToLower(ulid.Make().String())) }

// ApprovalState is what has become of an approval.
type ApprovalState string

// The states of an approval. All but Pending are final, but that an approved one becomes
// void when what it rests on is found to be another directly before the call begins.
const (
	Pending  ApprovalState = "pending"  // nobody has decided
	Approved ApprovalState = "approved" // the call went on, once
	Denied   ApprovalState = "denied"
	Expired  ApprovalState = "expired" // nobody decided in time
	Void     ApprovalState = "void"    // what it was for has changed, or the call was cancelled
)

// Bound is all that an approval is for. When any of it is different, it is an approval
// of something else. Nothing in it is a parameter or a secret.
type Bound struct {
	Call       ops.CallID        `json:"call"`
	Identity   string            `json:"identity"`           // role and id of who ordered it
	Op         ops.OpName        `json:"op"`                 // resolved
	Params     string            `json:"params"`             // digest of the canonical parameters
	Definition string            `json:"definition"`         // digest of the op's definition
	Policy     string            `json:"policy"`             // digest of the policy that had it ask
	Answer     string            `json:"answer,omitempty"`   // adaptor and address that the outcome goes to
	ExpiresAt  string            `json:"expires_at"`         // RFC 3339
	RestsOn    map[string]string `json:"rests_on,omitempty"` // what the op's executor has named, see ops.Binder
}

// hash is the digest of b, over its JSON with the members in their order.
func (b Bound) hash() string {
	text, err := json.Marshal(b)
	if err != nil {
		panic(fmt.Sprintf("service: what an approval binds is no JSON: %v", err)) // strings only
	}
	return digestOf(text)
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Change is one thing that is not what an approval was for. Is is empty for what is
// gone.
type Change struct {
	What string `json:"what"`
	Was  string `json:"was"`
	Is   string `json:"is"`
}

// changes is what differs between two Bounds, in a fixed order.
func changes(was, is Bound) (list []Change) {
	add := func(what, was, is string) {
		if was != is {
			list = append(list, Change{what, was, is})
		}
	}
	add("call", string(was.Call), string(is.Call))
	add("identity", was.Identity, is.Identity)
	add("op", string(was.Op), string(is.Op))
	add("params", was.Params, is.Params)
	add("definition", was.Definition, is.Definition)
	add("policy", was.Policy, is.Policy)
	add("answer", was.Answer, is.Answer)
	add("expires_at", was.ExpiresAt, is.ExpiresAt)
	names := slices.Collect(maps.Keys(was.RestsOn))
	for name := range is.RestsOn {
		if _, ok := was.RestsOn[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		add(name, was.RestsOn[name], is.RestsOn[name])
	}
	return list
}

// asking is why an order is to be parked: what its executor says that it rests on.
type asking struct {
	policy  string // digest of the policy that said so
	restsOn map[string]string
}

// ApprovalLimits bounds the calls that wait for an approval. A zero field gets the value
// in parentheses.
type ApprovalLimits struct {
	TTL   time.Duration // how long one waits, a second to 30 days (1 h)
	Most  int           // that wait at one time; more are Busy (1024)
	Share int           // of them, those of one identity (64)
}

// Bounds of ApprovalLimits.TTL.
const (
	MinApprovalTTL = time.Second
	MaxApprovalTTL = 30 * 24 * time.Hour
)

func (l ApprovalLimits) withDefaults() (ApprovalLimits, error) {
	if l.TTL == 0 {
		l.TTL = time.Hour
	}
	if l.Most == 0 {
		l.Most = 1024
	}
	if l.Share == 0 {
		l.Share = 64
	}
	if l.TTL < MinApprovalTTL || l.TTL > MaxApprovalTTL || l.Most < 1 || l.Share < 1 {
		return l, fmt.Errorf("service: approvals for %s, at most %d and %d of one identity: want %s to %s and at least 1", l.TTL, l.Most, l.Share, MinApprovalTTL, MaxApprovalTTL)
	}
	return l, nil
}

// approvals is what a door needs for them.
type approvals struct {
	limits    ApprovalLimits
	onPark    []ParkFunc
	attention chan struct{} // wakes expire
}

// ParkFunc adds to the transaction in which a call is parked. It may run again.
type ParkFunc func(tx journal.Tx, call ops.Call, id ApprovalID, expires time.Time) error

// OnPark has f called in every transaction that parks a call, in the order of the OnPark
// calls. It must not be called after Start.
func (d *Door) OnPark(f ParkFunc) { d.approvals.onPark = append(d.approvals.onPark, f) }

// restsOn asks e's executor what call rests on now. It may read files, so it is called
// outside of transactions. An executor that does not say needs nothing but its op's
// definition.
func restsOn(e *ops.Entry, call ops.Call) (things map[string]string, err error) {
	b, ok := e.Executor.(ops.Binder)
	if !ok {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			things, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	return b.Bind(call)
}

// ask makes o one that is parked, or one that is refused when what it rests on cannot
// be told, since nobody could know then what was approved.
func (d *Door) ask(o *Order, policy string) {
	things, err := restsOn(o.entry, o.call)
	if err == nil {
		o.asking = &asking{policy: policy, restsOn: things}
		return
	}
	o.rule = ruleBinding
	if !errors.As(err, &o.fault) {
		d.log.Error("a call cannot be parked: what it rests on cannot be read", "op", o.call.Op, "err", err)
		o.fault = ops.Faultf(ops.Conflict, "%s needs an approval, and what it rests on cannot be read now; the gateway's log has the particulars", o.call.Op)
	}
}

// bind is what an approval of call is for, under the policy with a digest. entry is nil
// when the op is gone.
func bind(call ops.Call, entry *ops.Entry, policy string, things map[string]string, expires time.Time) Bound {
	b := Bound{
		Call: call.ID, Identity: call.By.String(), Op: call.Op, Params: digestOf(call.Params), Policy: policy,
		ExpiresAt: ops.Stamp(expires), RestsOn: things,
	}
	if entry != nil {
		b.Definition = entry.Digest
	}
	if a := call.From.Answer; a != nil {
		b.Answer = a.Adaptor + " " + a.Opaque
	}
	return b
}

// tooManyWait is a fault when no more calls of by may wait for an approval.
func (d *Door) tooManyWait(tx journal.Tx, by ops.Identity) (*ops.Fault, error) {
	all, own := 0, 0
	if err := tx.Query(`SELECT count(*), coalesce(sum(CASE WHEN by_id = $1 THEN 1 ELSE 0 END), 0) FROM approval WHERE state = 'pending'`,
		func(scan func(...any) error) error { return scan(&all, &own) }, string(by.ID)); err != nil {
		return nil, err
	}
	switch {
	case own >= d.approvals.limits.Share:
		return ops.Faultf(ops.Busy, "%d calls of %s wait for an approval already; have them decided or cancel some", own, by), nil
	case all >= d.approvals.limits.Most:
		return ops.Faultf(ops.Busy, "%d calls wait for an approval already; try again when some are decided", all), nil
	}
	return nil, nil
}

// park writes o as a call that waits for an approval.
func (d *Door) park(tx journal.Tx, o Order) (ApprovalID, error) {
	call := o.call
	now := tx.Now()
	a := approval{
		id: newApprovalID(), state: Pending, summary: o.entry.Summary, sideEffecting: o.entry.SideEffecting,
		policy: o.asking.policy, requestedAt: now, expiresAt: now.Add(d.approvals.limits.TTL),
	}
	a.bound = bind(call, o.entry, o.asking.policy, o.asking.restsOn, a.expiresAt)
	a.hash = a.bound.hash()
	bound, err := json.Marshal(a.bound)
	if err != nil {
		return "", fmt.Errorf("what %s binds: %w", a.id, err)
	}
	if _, err := tx.Exec(`INSERT INTO approval (id, call, by_id, state, summary, side_effecting, bound, hash, policy, requested_at, expires_at)
			VALUES ($1, $2, $3, 'pending', $4, $5, $6, $7, $8, $9, $10)`,
		string(a.id), string(call.ID), string(call.By.ID), a.summary, a.sideEffecting, string(bound), a.hash, a.policy,
		now.UnixMilli(), a.expiresAt.UnixMilli()); err != nil {
		return "", err
	}
	if err := recordApproval(tx, "approval.requested", call, a, o.rule); err != nil {
		return "", err
	}
	for _, f := range d.approvals.onPark {
		if err := f(tx, call, a.id, a.expiresAt); err != nil {
			return "", fmt.Errorf("after parking call %s: %w", call.ID, err)
		}
	}
	return a.id, nil
}

// approval is a row of the approval table.
type approval struct {
	id            ApprovalID
	call          ops.CallID
	state         ApprovalState
	summary       string
	sideEffecting bool
	bound         Bound
	hash          string
	policy        string
	requestedAt   time.Time
	expiresAt     time.Time
	decidedAt     *time.Time
	decidedBy     *ops.Identity // nil when nobody did: it expired, or was void by itself
	reason        string
	changed       []Change
}

func selectApprovals(tx journal.Tx, where string, args ...any) (list []approval, err error) {
	err = tx.Query(`SELECT id, call, state, summary, side_effecting, bound, hash, policy, requested_at, expires_at,
			decided_at, decided_by, reason, changed FROM approval `+where,
		func(scan func(...any) error) error {
			var a approval
			var bound string
			var requested, expires int64
			var decided *int64
			var by, reason, changed *string
			if err := scan((*string)(&a.id), (*string)(&a.call), (*string)(&a.state), &a.summary, &a.sideEffecting, &bound, &a.hash, &a.policy,
				&requested, &expires, &decided, &by, &reason, &changed); err != nil {
				return err
			}
			a.requestedAt, a.expiresAt, a.decidedAt = moment(requested), moment(expires), maybe(decided)
			if err := json.Unmarshal([]byte(bound), &a.bound); err != nil {
				return fmt.Errorf("what %s binds: %w", a.id, err)
			}
			if by != nil {
				a.decidedBy = new(ops.Identity)
				if err := json.Unmarshal([]byte(*by), a.decidedBy); err != nil {
					return fmt.Errorf("who decided %s: %w", a.id, err)
				}
			}
			if reason != nil {
				a.reason = *reason
			}
			if changed != nil {
				if err := json.Unmarshal([]byte(*changed), &a.changed); err != nil {
					return fmt.Errorf("what changed for %s: %w", a.id, err)
				}
			}
			list = append(list, a)
			return nil
		}, args...)
	return list, err
}

// approvalOf returns the approval that a call was parked for, false if it was not.
func approvalOf(tx journal.Tx, id ops.CallID) (approval, bool, error) {
	list, err := selectApprovals(tx, `WHERE call = $1`, string(id))
	if err != nil || len(list) == 0 {
		return approval{}, false, err
	}
	return list[0], true, nil
}

// loadApproval returns an approval with its call, or NotFound.
func loadApproval(tx journal.Tx, id ApprovalID) (approval, storedCall, error) {
	list, err := selectApprovals(tx, `WHERE id = $1`, string(id))
	if err != nil {
		return approval{}, storedCall{}, err
	}
	if len(list) == 0 {
		return approval{}, storedCall{}, unknownApproval(id)
	}
	c, err := load(tx, list[0].call)
	return list[0], c, err
}

func unknownApproval(id ApprovalID) *ops.Fault {
	return ops.Faultf(ops.NotFound, "there is no approval %q", clip(string(id), 64))
}

// recordApproval appends an event about a to the stream of its call: what is bound, who
// decided and what has changed, never parameters or words.
func recordApproval(tx journal.Tx, kind string, call ops.Call, a approval, rule string) error {
	body := struct {
		Call      ops.CallID    `json:"call"`
		Op        ops.OpName    `json:"op"`
		By        ops.Identity  `json:"by"`
		Source    string        `json:"source,omitempty"`
		Rule      string        `json:"rule,omitempty"` // that had it wait
		Approval  ApprovalID    `json:"approval"`
		Hash      string        `json:"hash"`
		Bound     *Bound        `json:"bound,omitempty"`
		DecidedBy *ops.Identity `json:"decided_by,omitempty"`
		Changed   []Change      `json:"changed,omitempty"`
	}{
		Call: call.ID, Op: call.Op, By: call.By, Source: call.From.Source, Rule: rule,
		Approval: a.id, Hash: a.hash, DecidedBy: a.decidedBy, Changed: a.changed,
	}
	if a.state == Pending {
		body.Bound = &a.bound
	}
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append(stream(call.ID), journal.Any, kind, b)
}

// errNotPending says that an approval has another state than it was read in.
var errNotPending = errors.New("approval is not in the state that it was read in")

// turn gives a, which has the state from, the state that a now says, on record. It is
// the one place where an approval changes.
func turn(tx journal.Tx, call ops.Call, a approval, from ApprovalState) error {
	by, changed := any(nil), any(nil)
	if a.decidedBy != nil {
		b, err := json.Marshal(a.decidedBy)
		if err != nil {
			return fmt.Errorf("who decided %s: %w", a.id, err)
		}
		by = string(b)
	}
	if len(a.changed) > 0 {
		b, err := json.Marshal(a.changed)
		if err != nil {
			return fmt.Errorf("what changed for %s: %w", a.id, err)
		}
		changed = string(b)
	}
	n, err := tx.Exec(`UPDATE approval SET state = $1, decided_at = $2, decided_by = $3, reason = $4, changed = $5 WHERE id = $6 AND state = $7`,
		string(a.state), tx.Now().UnixMilli(), by, a.reason, changed, string(a.id), string(from))
	if err != nil {
		return err
	}
	if n != 1 {
		return errNotPending
	}
	return recordApproval(tx, "approval."+string(a.state), call, a, "")
}

// fault is why a call does not run whose approval has the state of a.
func (a approval) fault() *ops.Fault {
	var f *ops.Fault
	switch a.state {
	case Denied:
		f = ops.Faultf(ops.ApprovalDenied, "%s denied this call; nothing ran", a.decidedBy)
		if a.reason != "" {
			f = ops.Faultf(ops.ApprovalDenied, "%s denied this call, and nothing ran: %s", a.decidedBy, a.reason)
		}
	case Expired:
		f = ops.Faultf(ops.ApprovalExpired, "nobody approved this call before %s; nothing ran; order it again", ops.Stamp(a.expiresAt))
	default:
		what := make([]string, len(a.changed))
		for i, c := range a.changed {
			what[i] = c.What
		}
		f = ops.Faultf(ops.ApprovalVoid, "what the approval was for has changed (%s); nothing ran; order it again", strings.Join(what, ", ")).With("changed", a.changed)
	}
	return f.With("approval", a.id)
}
