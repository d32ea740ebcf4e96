package plane

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// ErrStaleRow says that a row has moved on since it was read. Whoever gets it reads again;
// nothing of what it wanted may be committed.
var ErrStaleRow = errors.New("the row has moved on")

// delegationRow is one row of the table delegation.
type delegationRow struct {
	id                 string
	call               ops.CallID
	by                 ops.Identity
	thread             string // where it was ordered, "" if nowhere
	implementation     string
	revision, worktree string
	instruction        string // digest
	capabilities       []string
	credentials        []ops.CredentialRef
	outputs            []string
	verify             []string
	retries, used      Budget
	state              DelegationState
	attempts           int
	lastFence          int64
	verifications      int
	cancel             bool
	cancelBy           ops.IdentityID
	cancelReason       string
	grace              time.Duration
	answer             string
	reason             string
	deadline           time.Time
	version            int64
	createdAt          time.Time
	closedAt           time.Time // zero: it is open

	read DelegationState // as the row stands
}

// runRow is one row of the table dispatch.
type runRow struct {
	dispatch, run, delegation string
	attempt                   int
	implementation            string
	state                     State
	fence                     int64 // 0: never leased
	worker                    ops.IdentityID
	boot                      string
	leaseUntil                time.Time
	notBefore, deadline       time.Time
	cancelDeadline            time.Time
	cancelAckedAt             time.Time
	proof                     Proof
	seq                       int64
	prev                      string
	progress                  int64
	progressAt                time.Time
	pid                       int64
	pidStart                  string
	class                     Class
	reason                    string
	summary, question         string // a worker's words
	lateResult                int64  // evidence, 0: none
	late                      *wire.Result
	result                    *wire.Result
	recoverAt, dueAt          time.Time
	version                   int64
	createdAt                 time.Time
	leasedAt, startedAt       time.Time
	endedAt                   time.Time
	idemKey                   string

	read struct { // as the row stands
		state State
		place place
	}
}

// held is a delegation with one of its runs, as they stand in a transaction, and what Step
// knows of them. Nothing else writes these rows but apply.
type held struct {
	delegation delegationRow
	run        runRow
	snap       Snapshot
	said       *wire.Message // the callback that is dealt with, nil if it is none
}

const delegationColumns = `d.id, d.call, d.by_id, d.by_role, d.thread, d.implementation, d.revision, d.worktree, d.instruction, d.capabilities, d.credentials,
	d.outputs, d.verify, d.retries, d.used, d.state, d.attempts, d.last_fence, d.verifications, d.cancel, d.cancel_by, d.cancel_reason, d.grace_ms, d.answer,
	d.reason, d.deadline, d.version, d.created_at, d.closed_at`

const runColumns = `x.id, x.run, x.delegation, x.attempt, x.implementation, x.state, x.fence, x.worker, x.boot, x.lease_until, x.not_before, x.deadline,
	x.cancel_deadline, x.cancel_acked_at, x.proof, x.seq, x.prev, x.progress, x.progress_at, x.pid, x.pid_start, x.class, x.reason, x.summary, x.question,
	x.late_result, x.result, x.recover_at, x.due_at, x.version, x.created_at, x.leased_at, x.started_at, x.ended_at, x.idem_key`

// scanner is what reads one row, part by part.
type scanner struct {
	dest []any
	then []func() error
}

// scan reads a row into all that was added.
func (s *scanner) scan(scan func(...any) error) error {
	if err := scan(s.dest...); err != nil {
		return err
	}
	for _, f := range s.then {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// moment adds a column that may hold a moment.
func (s *scanner) moment(t *time.Time) any {
	ms := new(*int64)
	s.then = append(s.then, func() error { *t = fromMilli(*ms); return nil })
	return ms
}

// text adds a column that may hold a text.
func (s *scanner) text(t *string) any {
	v := new(*string)
	s.then = append(s.then, func() error {
		if *t = ""; *v != nil {
			*t = **v
		}
		return nil
	})
	return v
}

// number adds a column that may hold a number.
func (s *scanner) number(n *int64) any {
	v := new(*int64)
	s.then = append(s.then, func() error {
		if *n = 0; *v != nil {
			*n = **v
		}
		return nil
	})
	return v
}

// json adds a column that holds JSON, or nothing.
func (s *scanner) json(what string, to any) any {
	v := new(*string)
	s.then = append(s.then, func() error {
		if *v == nil {
			return nil
		}
		if err := json.Unmarshal([]byte(**v), to); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	return v
}

// flag adds a column that holds 0 or 1.
func (s *scanner) flag(b *bool) any {
	v := new(int64)
	s.then = append(s.then, func() error { *b = *v == 1; return nil })
	return v
}

// span adds a column of milliseconds.
func (s *scanner) span(d *time.Duration) any {
	v := new(int64)
	s.then = append(s.then, func() error { *d = time.Duration(*v) * time.Millisecond; return nil })
	return v
}

// delegation adds delegationColumns.
func (s *scanner) delegation(d *delegationRow) {
	s.dest = append(s.dest, &d.id, (*string)(&d.call), (*string)(&d.by.ID), (*string)(&d.by.Role), &d.thread, &d.implementation, &d.revision, &d.worktree,
		&d.instruction, s.json("capabilities", &d.capabilities), s.json("credentials", &d.credentials), s.json("outputs", &d.outputs), s.json("verify", &d.verify),
		s.json("retries", &d.retries), s.json("used", &d.used), (*string)(&d.state), &d.attempts, &d.lastFence, &d.verifications, s.flag(&d.cancel),
		(*string)(&d.cancelBy), &d.cancelReason, s.span(&d.grace), &d.answer, &d.reason, s.moment(&d.deadline), &d.version,
		s.moment(&d.createdAt), s.moment(&d.closedAt))
}

// run adds runColumns.
func (s *scanner) run(r *runRow) {
	s.dest = append(s.dest, &r.dispatch, &r.run, &r.delegation, &r.attempt, &r.implementation, (*string)(&r.state), s.number(&r.fence),
		s.text((*string)(&r.worker)), s.text(&r.boot), s.moment(&r.leaseUntil), s.moment(&r.notBefore), s.moment(&r.deadline), s.moment(&r.cancelDeadline),
		s.moment(&r.cancelAckedAt), (*string)(&r.proof), &r.seq, &r.prev, &r.progress, s.moment(&r.progressAt), &r.pid, &r.pidStart, (*string)(&r.class),
		&r.reason, &r.summary, &r.question, s.number(&r.lateResult), s.json("result", &r.result), s.moment(&r.recoverAt), s.moment(&r.dueAt), &r.version,
		s.moment(&r.createdAt), s.moment(&r.leasedAt), s.moment(&r.startedAt), s.moment(&r.endedAt), &r.idemKey)
}

// load reads a delegation with one of its runs: the latest if run is "". Either id may be
// "" where the other is given. NotFound if there is no such thing.
func (p *Plane) load(tx journal.Tx, delegation, run string) (*held, error) {
	h := &held{}
	var s scanner
	s.delegation(&h.delegation)
	s.run(&h.run)
	s.dest = append(s.dest, &h.snap.Unproven, s.json("late result", &h.run.late))
	sql := `SELECT ` + delegationColumns + `, ` + runColumns + `,
			(SELECT count(*) FROM mutation m WHERE m.run = x.run AND m.state = 'INTENDED'),
			(SELECT e.body FROM evidence e WHERE e.id = x.late_result)
			FROM dispatch x JOIN delegation d ON d.id = x.delegation WHERE `
	var args []any
	switch {
	case run == "":
		sql, args = sql+`x.delegation = $1 ORDER BY x.attempt DESC LIMIT 1`, []any{delegation}
	case delegation == "":
		sql, args = sql+`x.run = $1`, []any{run}
	default:
		sql, args = sql+`x.run = $1 AND x.delegation = $2`, []any{run, delegation}
	}
	if err := tx.Query(sql, s.scan, args...); err != nil {
		return nil, err
	}
	if h.run.run == "" {
		if run != "" {
			return nil, ops.Faultf(ops.NotFound, "there is no run %s", shown(run))
		}
		return nil, ops.Faultf(ops.NotFound, "there is no delegation %s", shown(delegation))
	}
	h.snap.Delegation, h.snap.Run = h.delegation.known(), h.run.known()
	h.run.read.state, h.run.read.place = h.run.state, place{h.run.fence, h.run.worker, h.run.notBefore}
	h.delegation.read = h.delegation.state
	return h, nil
}

// known is what Step knows of d.
func (d *delegationRow) known() Delegation {
	return Delegation{
		State: d.state, Attempts: d.attempts, LastFence: d.lastFence, Verifications: d.verifications, Budget: d.retries, Used: d.used,
		Cancel: d.cancel, Grace: d.grace, Closed: !d.closedAt.IsZero(), Reason: d.reason,
	}
}

// known is what Step knows of r.
func (r *runRow) known() Run {
	k := Run{
		Attempt: r.attempt, State: r.state, Fence: r.fence, Worker: r.worker, Boot: r.boot, Seq: r.seq, Prev: r.prev, Deadline: r.deadline,
		LeaseUntil: r.leaseUntil, CancelDeadline: r.cancelDeadline, CancelAcked: !r.cancelAckedAt.IsZero(), RecoverAt: r.recoverAt,
		Started: !r.startedAt.IsZero(), Proof: r.proof, Class: r.class, Reason: r.reason, Progress: r.progress, ProgressAt: r.progressAt,
		LateResult: r.lateResult,
	}
	k.LateSucceeded = r.late != nil && r.late.Succeeded
	return k
}

// take makes d what Step says.
func (d *delegationRow) take(k Delegation, now time.Time) {
	d.state, d.attempts, d.lastFence, d.verifications, d.retries, d.used = k.State, k.Attempts, k.LastFence, k.Verifications, k.Budget, k.Used
	d.cancel, d.grace, d.reason = k.Cancel, k.Grace, k.Reason
	switch {
	case k.Closed && d.closedAt.IsZero():
		d.closedAt = now
	case !k.Closed:
		d.closedAt = time.Time{}
	}
}

// take makes r what Step says.
func (r *runRow) take(k Run, now time.Time) {
	r.state, r.fence, r.worker, r.boot, r.seq, r.prev, r.deadline = k.State, k.Fence, k.Worker, k.Boot, k.Seq, k.Prev, k.Deadline
	r.leaseUntil, r.cancelDeadline, r.recoverAt = k.LeaseUntil, k.CancelDeadline, k.RecoverAt
	r.proof, r.class, r.reason, r.progress, r.progressAt, r.lateResult = k.Proof, k.Class, k.Reason, k.Progress, k.ProgressAt, k.LateResult
	r.cancelAckedAt = since(k.CancelAcked, r.cancelAckedAt, now)
	r.startedAt = since(k.Started, r.startedAt, now)
	r.endedAt = since(k.State.Final() || k.State == Failed, r.endedAt, now)
}

// since is when something that is so has begun to be.
func since(so bool, before, now time.Time) time.Time {
	switch {
	case !so:
		return time.Time{}
	case before.IsZero():
		return now
	}
	return before
}

// apply steps e over h, writes both rows if they are still those that h was read from,
// records the event, and then does what the step asks for. After a fault the rows are as
// they were; what the step keeps of the event as evidence is written all the same, so the
// caller commits. ErrStaleRow means that a row has moved on and nothing may be committed.
func (p *Plane) apply(tx journal.Tx, h *held, e Event) (*ops.Fault, error) {
	now := tx.Now()
	before := h.snap
	after, effects, fault := Step(before, e, now)
	if fault != nil {
		for _, effect := range effects {
			if effect.Do == Keep && h.said != nil {
				if err := p.keep(tx, h, e, effect.Reason); err != nil {
					return nil, err
				}
			}
		}
		return fault, nil
	}
	h.snap = after
	if err := p.write(tx, h, before, e, now); err != nil {
		return nil, err
	}
	for _, effect := range effects {
		if effect.Do == Record {
			if err := h.record(tx, before, e); err != nil {
				return nil, err
			}
		}
	}
	for _, effect := range effects {
		if err := p.do(tx, h, e, effect); err != nil {
			return nil, fmt.Errorf("%s of %s after %s: %w", effect.Do, h.run.run, e.Kind, err)
		}
	}
	return nil, nil
}

// do carries out one effect. The rows are written already.
func (p *Plane) do(tx journal.Tx, h *held, e Event, effect Effect) error {
	switch effect.Do {
	case Record, LeaseEnded: // leases are counted by their rows
		return nil
	case NewRun:
		return p.newRun(tx, h, e, effect)
	case Verify:
		return p.openVerification(tx, h)
	case DropVerify:
		return p.dropVerification(tx, h, effect.Reason)
	case Close:
		return p.closeDelegation(tx, h, effect.Close, effect.Reason)
	case Ask:
		return p.ask(tx, h, h.run.question)
	case Keep:
		if h.said == nil {
			return nil
		}
		return p.keepEvidence(tx, h.delegation.id, *h.said, effect.Reason)
	case Alert:
		return p.alert(tx, h, effect.Reason)
	}
	return fmt.Errorf("nobody does %q", effect.Do)
}

// write writes what has changed since before.
func (p *Plane) write(tx journal.Tx, h *held, before Snapshot, e Event, now time.Time) error {
	after := h.snap
	body := h.body(e)
	if before.Run != after.Run || body {
		h.run.take(after.Run, now)
		if e.Kind == OnLeaseGranted {
			h.run.leasedAt = now
		}
		if err := p.writeRun(tx, h); err != nil {
			return err
		}
	}
	if !sameDelegation(before.Delegation, after.Delegation) {
		h.delegation.take(after.Delegation, now)
		return h.delegation.write(tx)
	}
	return nil
}

func sameDelegation(a, b Delegation) bool {
	return a.State == b.State && a.Attempts == b.Attempts && a.LastFence == b.LastFence && a.Verifications == b.Verifications && maps.Equal(a.Budget, b.Budget) &&
		maps.Equal(a.Used, b.Used) && a.Cancel == b.Cancel && a.Grace == b.Grace && a.Closed == b.Closed && a.Reason == b.Reason
}

// body puts what e brings beside the snapshot into the run's row, and reports whether it
// has changed.
func (h *held) body(e Event) bool {
	if e.Kind == OnReconciled && e.Adopt || e.Kind == OnHumanResolved && e.Resolution == Adopt {
		if h.run.late != nil && h.run.result == nil {
			h.run.result, h.run.summary = h.run.late, h.run.late.Summary
			return true
		}
	}
	if h.said == nil {
		return false
	}
	if e.Kind == OnEvidenceRecorded {
		if e.Of == OnResult && h.snap.Run.LateResult == e.Evidence {
			late := decoded[wire.Result](h.said.Body)
			h.run.late = &late
		}
		return false
	}
	if !e.Kind.Callback() {
		return false
	}
	switch m := h.said.Body; h.said.Kind {
	case wire.KindStarted:
		return h.process(decoded[wire.Started](m).Process)
	case wire.KindHeartbeat:
		return h.process(decoded[wire.Heartbeat](m).Process)
	case wire.KindHumanWait:
		h.run.question = decoded[wire.HumanWait](m).Question
		return true
	case wire.KindResult:
		r := decoded[wire.Result](m)
		h.run.result, h.run.summary = &r, r.Summary
		return true
	}
	return false
}

// decoded reads a body that has been read before and was right.
func decoded[T any](b json.RawMessage) (v T) {
	_ = wire.Strict(b, &v) // Callback has refused what cannot be read
	return v
}

// process keeps which process runs, the first time and when it has become another.
func (h *held) process(now *wire.Process) bool {
	if now == nil || h.run.pid == int64(now.PID) && h.run.pidStart == now.Start {
		return false
	}
	h.run.pid, h.run.pidStart = int64(now.PID), now.Start
	return true
}

// writeRun writes all of h's run that changes, if it is still the row that was read.
func (p *Plane) writeRun(tx journal.Tx, h *held) error {
	r := &h.run
	var result any
	if r.result != nil {
		b, err := json.Marshal(r.result)
		if err != nil {
			return fmt.Errorf("result of %s: %w", r.run, err)
		}
		result = string(b)
	}
	r.dueAt, _ = Due(h.snap, p.Stall)
	args := []any{orNull(r.boot), milli(r.leaseUntil), milli(r.deadline), milli(r.cancelDeadline), milli(r.cancelAckedAt), string(r.proof), r.seq, r.prev,
		r.progress, milli(r.progressAt), r.pid, r.pidStart, string(r.class), r.reason, r.summary, r.question, orZero(r.lateResult), result, milli(r.recoverAt),
		milli(r.dueAt), milli(r.leasedAt), milli(r.startedAt), milli(r.endedAt), r.version, r.dispatch}
	sql, offered := updateRun, place{r.fence, r.worker, r.notBefore}
	switch {
	case offered != r.read.place:
		sql, args = updateRunPlace, append(args, string(r.state), orZero(r.fence), orNull(string(r.worker)), milli(r.notBefore))
	case r.state != r.read.state:
		sql, args = updateRunState, append(args, string(r.state))
	}
	n, err := tx.Exec(sql, args...)
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("run %s: %w", r.run, ErrStaleRow)
	}
	r.version++
	r.read.state, r.read.place = r.state, offered
	return nil
}

// Every index over a column that a statement sets is written anew, whether the value is
// another or not. Most of what happens to a run changes none of them, so there are three.
var updateRun, updateRunState, updateRunPlace = updateOfRun(""), updateOfRun(", state = $26"), updateOfRun(", state = $26, fence = $27, worker = $28, not_before = $29")

func updateOfRun(more string) string {
	return `UPDATE dispatch SET boot = $1, lease_until = $2, deadline = $3, cancel_deadline = $4, cancel_acked_at = $5, proof = $6, seq = $7, prev = $8,
			progress = $9, progress_at = $10, pid = $11, pid_start = $12, class = $13, reason = $14, summary = $15, question = $16, late_result = $17, result = $18,
			recover_at = $19, due_at = $20, leased_at = $21, started_at = $22, ended_at = $23, version = $24 + 1` + more + ` WHERE id = $25 AND version = $24`
}

// place is what of a run only a grant changes.
type place struct {
	fence     int64
	worker    ops.IdentityID
	notBefore time.Time
}

// write writes all of d that changes, if it is still the row that was read.
func (d *delegationRow) write(tx journal.Tx) error {
	used, err := json.Marshal(d.used)
	if err != nil {
		return fmt.Errorf("budget of %s: %w", d.id, err)
	}
	args := []any{string(used), int64(d.attempts), d.lastFence, int64(d.verifications), flag(d.cancel), string(d.cancelBy), d.cancelReason, d.grace.Milliseconds(),
		d.answer, d.reason, milli(d.closedAt), d.version, d.id}
	set := ``
	if d.state != d.read { // a column of an index, as those of a run
		set, args = `, state = $14`, append(args, string(d.state))
	}
	n, err := tx.Exec(`UPDATE delegation SET used = $1, attempts = $2, last_fence = $3, verifications = $4, cancel = $5, cancel_by = $6, cancel_reason = $7,
			grace_ms = $8, answer = $9, reason = $10, closed_at = $11, version = $12 + 1`+set+` WHERE id = $13 AND version = $12`, args...)
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("delegation %s: %w", d.id, ErrStaleRow)
	}
	d.version++
	d.read = d.state
	return nil
}

// record appends e to the delegation's stream. It carries ids and digests, and never what
// a worker wrote.
func (h *held) record(tx journal.Tx, before Snapshot, e Event) error {
	body := struct {
		Delegation     string          `json:"delegation"`
		Run            string          `json:"run"`
		Attempt        int             `json:"attempt"`
		Implementation string          `json:"implementation"`
		From           State           `json:"from"`
		To             State           `json:"to"`
		Stands         DelegationState `json:"stands"`                 // the delegation, afterwards
		Capabilities   []string        `json:"capabilities,omitempty"` // of a run that is offered
		Worker         ops.IdentityID  `json:"worker,omitempty"`
		Boot           string          `json:"boot,omitempty"`
		Fence          int64           `json:"fence,omitempty"`
		Seq            int64           `json:"seq,omitempty"`
		Digest         string          `json:"digest,omitempty"`
		LeaseUntil     string          `json:"lease_until,omitempty"`
		DueMS          int64           `json:"due_ms,omitempty"`   // when the plane must look at it, milliseconds since 1970
		Evidence       int64           `json:"evidence,omitempty"` // the row
		Of             EventKind       `json:"of,omitempty"`       // what was kept
		Class          Class           `json:"class,omitempty"`
		Proof          Proof           `json:"proof,omitempty"`
		Reason         string          `json:"reason,omitempty"`
	}{
		Delegation: h.delegation.id, Run: h.run.run, Attempt: h.run.attempt, Implementation: h.run.implementation, From: before.Run.State, To: h.snap.Run.State,
		Stands: h.snap.Delegation.State, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: e.Seq, Digest: e.Digest,
		Class: h.snap.Run.Class, Proof: h.snap.Run.Proof, Reason: reasonFor(e, h.snap), DueMS: dueMS(h.run.dueAt), Evidence: e.Evidence, Of: e.Of,
	}
	if h.snap.Run.State == Dispatched {
		body.Capabilities = h.delegation.capabilities
	}
	if !h.snap.Run.LeaseUntil.IsZero() {
		body.LeaseUntil = ops.Stamp(h.snap.Run.LeaseUntil)
	}
	return event(tx, "delegation/"+h.delegation.id, kindOf(e.Kind), body)
}

// dueMS is a moment as events carry it for sweepers, 0 for none.
func dueMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// reasonFor is the reason that an event is recorded with: the run's own, unless a worker
// gave it.
func reasonFor(e Event, s Snapshot) string {
	if e.Reason != "" && !e.Kind.Callback() && e.Kind != OnVerdict {
		return e.Reason
	}
	return s.Run.Reason
}

// kindOf is what an event is called in the journal.
func kindOf(k EventKind) string {
	switch k {
	case OnMutationIntended:
		return "mutation.intended"
	case OnMutationProved:
		return "mutation.proved"
	case OnVerdict:
		return "verification.verdict"
	case OnVerifierAbsent:
		return "verification.verifier_absent"
	case OnVerifyAgain:
		return "verification.asked_again"
	case OnRetryDemanded:
		return "delegation.retry_demanded"
	}
	return "run." + string(k)
}

// event appends to a stream.
func event(tx journal.Tx, stream, kind string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append(stream, journal.Any, kind, b)
}

// keep writes the refused callback e as evidence, once, and lets Step see whether it is
// contact with a run that is lost.
func (p *Plane) keep(tx journal.Tx, h *held, e Event, reason string) error {
	id, news, err := keepRow(tx, h.delegation.id, *h.said, reason)
	if err != nil || !news {
		return err
	}
	seen := Event{Kind: OnEvidenceRecorded, Of: e.Kind, Evidence: id, Worker: e.Worker, Boot: e.Boot, Fence: e.Fence, Seq: e.Seq, Digest: e.Digest,
		Succeeded: e.Succeeded, Live: e.Live, Checks: e.Checks, Recover: e.Recover, Reason: reason}
	fault, err := p.apply(tx, h, seen)
	return orFault(fault, err)
}

// MaxEvidence bounds what is kept of one worker about one run or verification without
// authority, so that nobody fills the store by saying what does not count. What comes after
// that is refused as before, and leaves nothing.
const MaxEvidence = 64

// keepRow writes what was said and has no authority, and reports whether it is news.
func keepRow(tx journal.Tx, delegation string, m wire.Message, reason string) (id int64, news bool, err error) {
	subject, worker := m.Header.Subject(), string(m.Header.Worker)
	n, err := tx.Exec(`INSERT INTO evidence (delegation, subject, kind, reason, worker, fence, seq, digest, body, at) SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
			WHERE (SELECT count(*) FROM evidence WHERE subject = $2 AND worker = $5) < $11 ON CONFLICT (subject, fence, seq, digest, reason) DO NOTHING`,
		delegation, subject, string(m.Kind), reason, worker, m.Header.Fence, m.Header.Seq, m.Digest, string(m.Body), tx.Now().UnixMilli(), int64(MaxEvidence))
	if err != nil || n == 0 {
		return 0, false, err
	}
	err = tx.Query(`SELECT id FROM evidence WHERE subject = $1 AND fence = $2 AND seq = $3 AND digest = $4 AND reason = $5`,
		func(scan func(...any) error) error { return scan(&id) }, subject, m.Header.Fence, m.Header.Seq, m.Digest, reason)
	return id, true, err
}

// keepEvidence writes what was said and has no authority, once, with an event.
func (p *Plane) keepEvidence(tx journal.Tx, delegation string, m wire.Message, reason string) error {
	id, news, err := keepRow(tx, delegation, m, reason)
	if err != nil || !news {
		return err
	}
	return event(tx, "delegation/"+delegation, "run.evidence_recorded", map[string]any{
		"delegation": delegation, "run": m.Header.Run, "subject": m.Header.Subject(), "evidence": id, "kind": m.Kind, "reason": reason,
		"worker": m.Header.Worker, "fence": m.Header.Fence, "seq": m.Header.Seq, "digest": m.Digest,
	})
}

// keepCallback writes a callback that was accepted, and what it was answered.
func (p *Plane) keepCallback(tx journal.Tx, m wire.Message, ack wire.Ack) error {
	b, err := json.Marshal(ack)
	if err != nil {
		return fmt.Errorf("answer to %s: %w", m.Digest, err)
	}
	_, err = tx.Exec(`INSERT INTO callback (subject, seq, kind, fence, digest, body, ack, at, sent_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		m.Header.Subject(), m.Header.Seq, string(m.Kind), m.Header.Fence, m.Digest, string(m.Body), string(b), tx.Now().UnixMilli(), m.Header.SentAt.UnixMilli())
	return err
}

// replayed looks up the callback under m's number: what it was answered if it was the same
// one, and whether there was another.
func (p *Plane) replayed(tx journal.Tx, m wire.Message) (ack *wire.Ack, other bool, err error) {
	var digest, stored string
	if err := tx.Query(`SELECT digest, ack FROM callback WHERE subject = $1 AND seq = $2`,
		func(scan func(...any) error) error { return scan(&digest, &stored) }, m.Header.Subject(), m.Header.Seq); err != nil || digest == "" {
		return nil, false, err
	}
	if digest != m.Digest {
		return nil, true, nil
	}
	ack = &wire.Ack{}
	if err := json.Unmarshal([]byte(stored), ack); err != nil {
		return nil, false, fmt.Errorf("answer to %s: %w", m.Digest, err)
	}
	ack.Replayed = true
	return ack, false, nil
}
