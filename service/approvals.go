package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/access"
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
	if !errors.As(err, &o.fault) {
		d.log.Error("a call cannot be parked: what it rests on cannot be read", "op", o.call.Op, "err", err)
		o.fault = ops.Faultf(ops.Conflict, "%s needs an approval, and what it rests on cannot be read now; the gateway's log has the particulars", o.call.Op)
	}
}

// bind is what an approval of call is for. entry is nil when the op is gone.
func bind(call ops.Call, entry *ops.Entry, things map[string]string, expires time.Time) Bound {
	b := Bound{
		Call: call.ID, Identity: call.By.String(), Op: call.Op, Params: digestOf(call.Params),
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

// park writes o as a call that waits for an approval. The error is Busy, with nothing
// to be committed, when too many wait.
func (d *Door) park(tx journal.Tx, o Order) (ApprovalID, error) {
	call := o.call
	all, own := 0, 0
	if err := tx.Query(`SELECT count(*), coalesce(sum(CASE WHEN by_id = $1 THEN 1 ELSE 0 END), 0) FROM approval WHERE state = 'pending'`,
		func(scan func(...any) error) error { return scan(&all, &own) }, string(call.By.ID)); err != nil {
		return "", err
	}
	switch {
	case own >= d.approvals.limits.Share:
		return "", ops.Faultf(ops.Busy, "%d calls of %s wait for an approval already; have them decided or cancel some", own, call.By)
	case all >= d.approvals.limits.Most:
		return "", ops.Faultf(ops.Busy, "%d calls wait for an approval already; try again when some are decided", all)
	}
	now := tx.Now()
	a := approval{
		id: newApprovalID(), state: Pending, summary: o.entry.Summary, sideEffecting: o.entry.SideEffecting,
		policy: o.asking.policy, requestedAt: now, expiresAt: now.Add(d.approvals.limits.TTL),
	}
	a.bound = bind(call, o.entry, o.asking.restsOn, a.expiresAt)
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
	if err := recordApproval(tx, "approval.requested", call, a); err != nil {
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
func recordApproval(tx journal.Tx, kind string, call ops.Call, a approval) error {
	body := struct {
		Call      ops.CallID    `json:"call"`
		Op        ops.OpName    `json:"op"`
		By        ops.Identity  `json:"by"`
		Source    string        `json:"source,omitempty"`
		Approval  ApprovalID    `json:"approval"`
		Hash      string        `json:"hash"`
		Bound     *Bound        `json:"bound,omitempty"`
		DecidedBy *ops.Identity `json:"decided_by,omitempty"`
		Changed   []Change      `json:"changed,omitempty"`
	}{
		Call: call.ID, Op: call.Op, By: call.By, Source: call.From.Source,
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
	return recordApproval(tx, "approval."+string(a.state), call, a)
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

// maxReason bounds the words of who denies, in bytes.
const maxReason = 500

// Approve lets the call of approval id run, once. Everything that the approval is for is
// looked at again first: if its identity is no longer live, the policy no longer lets
// it ask, the op has another definition or what it rests on is different, the approval
// is void, the call fails and ApprovalVoid says what has changed.
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
	if err := record(tx, call, "call.received", nil); err != nil {
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
	list := changes(a.bound, bind(call, l.entry, l.things, a.expiresAt))
	if l.err != nil {
		list = append(list, Change{"rests_on", a.hash, "cannot be read"})
	}
	if run, ask, policy := d.decisions(call, l.entry); !run.Allowed && !ask.Allowed {
		list = append(list, Change{"policy", a.policy, policy.Digest()})
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
		By: c.By, Source: c.From.Source, RequestedAt: ops.Stamp(a.requestedAt), ExpiresAt: ops.Stamp(a.expiresAt), DecidedBy: a.decidedBy,
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

// expire ends approvals as their time comes, and those of identities that were revoked.
// It sleeps until the next one is due; attention wakes it when there is a new one, or
// when an identity was revoked.
func (d *Door) expire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := firstRetry
	for {
		select {
		case <-timer.C:
		case <-d.approvals.attention:
		case <-d.life.Done():
			return
		}
		next, err := d.sweep(d.life)
		switch {
		case d.life.Err() != nil || errors.Is(err, journal.ErrClosed):
			return
		case err != nil:
			d.log.Error("approvals not expired yet; trying again", "err", err)
			timer.Reset(retry)
			retry = min(2*retry, lastRetry)
			continue
		case next > 0:
			timer.Reset(next)
		default:
			timer.Stop()
		}
		retry = firstRetry
	}
}

// wake has expire look again.
func (d *Door) wake() {
	select {
	case d.approvals.attention <- struct{}{}:
	default: // it will look anyway
	}
}

// sweepBatch is how many approvals one look at the table brings at most.
const sweepBatch = 64

// sweep ends what is due and returns how long it is until the next one is, 0 if none is
// pending.
func (d *Door) sweep(ctx context.Context) (next time.Duration, err error) {
	for {
		var due []approval
		err := d.store.View(ctx, func(tx journal.Tx) (err error) {
			if due, err = selectApprovals(tx, `WHERE state = 'pending' AND (expires_at <= $1
					OR by_id IN (SELECT id FROM identity WHERE revoked_at IS NOT NULL)) ORDER BY expires_at LIMIT $2`,
				tx.Now().UnixMilli(), sweepBatch); err != nil || len(due) > 0 {
				return err
			}
			next = 0
			return tx.Query(`SELECT expires_at FROM approval WHERE state = 'pending' ORDER BY expires_at LIMIT 1`, func(scan func(...any) error) error {
				var at int64
				err := scan(&at)
				next = max(moment(at).Sub(tx.Now()), time.Millisecond)
				return err
			})
		})
		if err != nil || len(due) == 0 {
			return next, err
		}
		for _, a := range due {
			if err := d.lapse(ctx, a.id); err != nil {
				return 0, err
			}
		}
	}
}

// lapse ends one approval that is due or whose identity was revoked, unless somebody has
// decided it meanwhile.
func (d *Door) lapse(ctx context.Context, id ApprovalID) error {
	return d.store.Update(ctx, func(tx journal.Tx) error {
		a, c, err := loadApproval(tx, id)
		if err != nil || a.state != Pending {
			return err
		}
		live, known, err := access.Live(tx, c.By.ID)
		switch {
		case err != nil:
			return err
		case !known || live != c.By:
			a.state, a.changed = Void, []Change{{"identity", a.bound.Identity, ""}}
		case !tx.Now().Before(a.expiresAt):
			a.state = Expired
		default:
			return nil
		}
		return d.end(tx, c.call(), a, ops.Failure(a.fault()))
	})
}
