package plane

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane/wire"
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

// DelegationShowing is a delegation as it is shown whole.
type DelegationShowing struct {
	DelegationListing
	Waits         string                `json:"waits,omitempty"` // what has to come for it to go on, of one that is open
	Instruction   *wire.Instruction     `json:"instruction,omitempty"`
	Digest        string                `json:"instruction_digest"`
	Source        DelegationSource      `json:"source"`
	Capabilities  []string              `json:"capabilities"`
	Credentials   []ops.CredentialRef   `json:"credentials"`
	Outputs       []string              `json:"outputs"` // files that must be returned
	Verify        []string              `json:"verify"`  // argv of the declared test
	Retries       Budget                `json:"retries"` // new runs that may follow, by why the last failed
	Used          Budget                `json:"used"`
	CancelBy      ops.IdentityID        `json:"cancel_by,omitempty"`
	CancelReason  string                `json:"cancel_reason,omitempty"`
	Question      string                `json:"question,omitempty"` // of the worker, untrusted, while a person is waited for
	Answer        string                `json:"answer,omitempty"`   // what a person answered last
	DueAt         string                `json:"due_at,omitempty"`   // when it is closed if nothing comes
	Runs          []RunShowing          `json:"runs"`               // the latest first, at most 50
	Files         []RunFileShowing      `json:"files"`              // that its runs have left, at most 200
	Verifications []VerificationShowing `json:"verifications"`      // the latest first, at most 50
	Mutations     []MutationShowing     `json:"mutations"`          // the latest first, at most 200
	Evidence      []EvidenceShowing     `json:"evidence"`           // the latest first, at most 50
	Withheld      bool                  `json:"withheld,omitempty"` // the policy keeps what was said from the one who asks
}

// DelegationSource is exactly what is worked on.
type DelegationSource struct {
	Revision string `json:"revision,omitempty"` // the digest of an archive among the artifacts, or a name that the worker's repository knows
	Worktree string `json:"worktree,omitempty"` // digest of the tree that it must be
}

// RunShowing is one run of a delegation.
type RunShowing struct {
	Run         string         `json:"run"`
	Dispatch    string         `json:"dispatch"`
	Attempt     int            `json:"attempt"`
	State       State          `json:"state"`
	Class       Class          `json:"class,omitempty"` // of its failure
	Reason      string         `json:"reason,omitempty"`
	Proof       Proof          `json:"proof,omitempty"` // how it is known that nothing of it is alive
	Fence       int64          `json:"fence,omitempty"`
	Worker      ops.IdentityID `json:"worker,omitempty"`
	Boot        string         `json:"boot,omitempty"`
	Process     *wire.Process  `json:"process,omitempty"`
	Progress    int64          `json:"progress"`
	ProgressAt  string         `json:"progress_at,omitempty"`
	Summary     string         `json:"summary,omitempty"`  // the worker's words, untrusted
	Question    string         `json:"question,omitempty"` // likewise, the last that it asked a person
	LateResult  int64          `json:"late_result,omitempty"`
	LeaseUntil  string         `json:"lease_until,omitempty"`
	NotBefore   string         `json:"not_before,omitempty"`      // of one that is offered later
	CancelUntil string         `json:"cancel_deadline,omitempty"` // until when a proof that it has stopped is waited for
	CreatedAt   string         `json:"created_at"`
	LeasedAt    string         `json:"leased_at,omitempty"`
	StartedAt   string         `json:"started_at,omitempty"`
	EndedAt     string         `json:"ended_at,omitempty"`
}

// RunFileShowing is a file that a run has left.
type RunFileShowing struct {
	Run string `json:"run"`
	wire.File
	At string `json:"at"`
}

// VerificationShowing is one judgement that was asked for.
type VerificationShowing struct {
	Verification string            `json:"verification"`
	Run          string            `json:"run"`
	N            int               `json:"n"` // from 1
	State        VerificationState `json:"state"`
	Producer     ops.IdentityID    `json:"producer"`
	Verifier     ops.IdentityID    `json:"verifier,omitempty"`
	Fence        int64             `json:"fence,omitempty"`
	Lapses       int               `json:"lapses,omitempty"` // leases on it that ended without a verdict
	Reason       string            `json:"reason,omitempty"` // the verifier's words, or why nobody was asked
	Verdict      *wire.Verdict     `json:"verdict,omitempty"`
	LeaseUntil   string            `json:"lease_until,omitempty"`
	Deadline     string            `json:"deadline"`
	CreatedAt    string            `json:"created_at"`
	EndedAt      string            `json:"ended_at,omitempty"`
}

// MutationShowing is a change outside.
type MutationShowing struct {
	Key        string        `json:"key"` // that the outside knows it by
	Run        string        `json:"run"`
	Action     string        `json:"action"` // the worker's words, untrusted
	State      MutationState `json:"state"`
	Proof      string        `json:"proof,omitempty"`
	IntendedAt string        `json:"intended_at"`
	ProvedAt   string        `json:"proved_at,omitempty"`
}

// EvidenceShowing is what was said and has no authority. What it said is kept by digest.
type EvidenceShowing struct {
	ID      int64          `json:"id"`
	Subject string         `json:"subject"`
	Kind    string         `json:"kind"`
	Reason  string         `json:"reason"`
	Worker  ops.IdentityID `json:"worker"`
	Fence   int64          `json:"fence"`
	Seq     int64          `json:"seq"`
	Digest  string         `json:"digest"`
	At      string         `json:"at"`
}

// WorkerListing is a worker or a verifier.
type WorkerListing struct {
	Worker          ops.IdentityID `json:"worker"`
	Role            ops.Role       `json:"role"`
	State           string         `json:"state" enum:"new,ready,draining,revoked"` // new has never begun
	Draining        bool           `json:"draining,omitempty"`                      // nothing more is granted to it
	KeyID           string         `json:"key_id"`
	PublicKey       []byte         `json:"public_key"` // Ed25519, 32 bytes
	Implementations []string       `json:"implementations"`
	Capabilities    []string       `json:"capabilities"`
	Version         string         `json:"version,omitempty"`
	Boot            string         `json:"boot,omitempty"`
	BootAt          string         `json:"boot_at,omitempty"`
	SeenAt          string         `json:"seen_at,omitempty"`
	SkewMS          int64          `json:"skew_ms"` // its clock less the store's, as last seen; it decides nothing
	Leases          int            `json:"leases"`  // that it has now
	EnrolledAt      string         `json:"enrolled_at"`
	RevokedAt       string         `json:"revoked_at,omitempty"`
}

// WorkerPage is a page of workers and verifiers, by name.
type WorkerPage struct {
	Workers []WorkerListing `json:"workers"`
	Next    ops.IdentityID  `json:"next,omitempty"`
}

// WorkerShowing is a worker or verifier with its leases.
type WorkerShowing struct {
	WorkerListing
	Holds []LeaseShowing `json:"holds"` // at most 200
}

// LeaseShowing is a lease that somebody has.
type LeaseShowing struct {
	Delegation string `json:"delegation"`
	Subject    string `json:"subject"` // a run, or a verification
	State      string `json:"state"`
	Fence      int64  `json:"fence"`
	LeaseUntil string `json:"lease_until"`
}

// Showing is the plane as a whole.
type Showing struct {
	State         string           `json:"state" enum:"off,on,drain"`
	Term          int64            `json:"term"`                 // of fences
	HoldUntil     string           `json:"hold_until,omitempty"` // no lease expires before, if that is ahead
	ChangedAt     string           `json:"changed_at,omitempty"`
	Delegations   map[string]int64 `json:"delegations"`   // open ones by state
	Runs          map[string]int64 `json:"runs"`          // those that are not final, by state
	Verifications map[string]int64 `json:"verifications"` // waiting and leased
	Workers       map[string]int64 `json:"workers"`       // that are not revoked, by role
	Unable        int64            `json:"unable"`        // runs that are offered and that no worker there is could take
	OldestOffer   int64            `json:"oldest_offer_seconds"`
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

// kept is what an offer waits for that would not be granted though somebody came for it, ""
// if it would be.
func (p *Plane) kept(tx journal.Tx, s *DelegationShowing) (string, error) {
	if s.Closed || s.RunState != Dispatched {
		return "", nil
	}
	var state string
	if err := tx.Query(`SELECT state FROM plane WHERE id = 1`, func(scan func(...any) error) error { return scan(&state) }); err != nil {
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

// withhold takes out what workers and verifiers have said.
func (s *DelegationShowing) withhold() {
	s.Withheld, s.Question = true, ""
	for i := range s.Runs {
		s.Runs[i].Summary, s.Runs[i].Question = "", ""
	}
	for i := range s.Verifications {
		s.Verifications[i].Verdict, s.Verifications[i].Reason = nil, ""
	}
	for i := range s.Mutations {
		s.Mutations[i].Action, s.Mutations[i].Proof = "", ""
	}
	s.Files, s.Evidence = []RunFileShowing{}, []EvidenceShowing{}
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

// showDelegation reads a delegation whole, or NotFound.
func showDelegation(tx journal.Tx, id string) (DelegationShowing, error) {
	list, err := listDelegations(tx, `d.id = $1`, id)
	if err != nil {
		return DelegationShowing{}, err
	}
	if len(list) == 0 {
		return DelegationShowing{}, unknownDelegation(id)
	}
	s := DelegationShowing{DelegationListing: list[0]}
	var body, question string
	var due *int64
	lists := make([]string, 6)
	err = tx.Query(`SELECT (SELECT max(v.due_at) FROM verification v WHERE v.delegation = d.id AND d.state <> 'VERIFYING'), d.revision, d.worktree, d.instruction, i.body, d.capabilities, d.credentials, d.outputs, d.verify, d.retries, d.used,
			d.cancel_by, d.cancel_reason, d.answer, coalesce(x.question, '')
			FROM delegation d JOIN instruction i ON i.digest = d.instruction LEFT JOIN dispatch x ON x.delegation = d.id AND x.attempt = d.attempts WHERE d.id = $1`,
		func(scan func(...any) error) error {
			return scan(&due, &s.Source.Revision, &s.Source.Worktree, &s.Digest, &body, &lists[0], &lists[1], &lists[2], &lists[3], &lists[4], &lists[5],
				(*string)(&s.CancelBy), &s.CancelReason, &s.Answer, &question)
		}, id)
	if err != nil {
		return DelegationShowing{}, err
	}
	s.DueAt = maybeMS(due)
	if s.RunState == WaitingHuman {
		s.Question = question
	}
	s.Instruction = new(wire.Instruction)
	for i, into := range []any{&s.Capabilities, &s.Credentials, &s.Outputs, &s.Verify, &s.Retries, &s.Used} {
		if err := json.Unmarshal([]byte(lists[i]), into); err != nil {
			return DelegationShowing{}, fmt.Errorf("delegation %s: %w", id, err)
		}
	}
	if err := json.Unmarshal([]byte(body), s.Instruction); err != nil {
		return DelegationShowing{}, fmt.Errorf("instruction of delegation %s: %w", id, err)
	}
	s.Capabilities, s.Outputs, s.Verify = orEmpty(s.Capabilities), orEmpty(s.Outputs), orEmpty(s.Verify)
	s.Credentials = orEmpty(s.Credentials)
	for _, read := range []func(journal.Tx, *DelegationShowing) error{showRuns, showFiles, showVerifications, showMutations, showEvidence} {
		if err := read(tx, &s); err != nil {
			return DelegationShowing{}, err
		}
	}
	s.Waits = s.waits(tx.Now())
	return s, nil
}

// waits says what an open delegation waits for, so that none is stuck for no reason that
// can be read.
func (s *DelegationShowing) waits(now time.Time) string {
	if s.Closed {
		return ""
	}
	switch s.State {
	case Verifying, VerifierUnavailable:
		if len(s.Verifications) > 0 && s.Verifications[0].State == WithVerifier {
			return fmt.Sprintf("the verdict of verifier %s", s.Verifications[0].Verifier)
		}
		return fmt.Sprintf("a verifier for %s", s.Implementation)
	case EvidenceMissing:
		return "files that are declared and not there, or a person who has it looked at again"
	}
	if len(s.Runs) == 0 {
		return ""
	}
	r := s.Runs[0]
	switch r.State {
	case Dispatched:
		if r.NotBefore != "" && r.NotBefore > ops.Stamp(now) {
			return "its next attempt, which is offered at " + r.NotBefore
		}
		return fmt.Sprintf("a worker for %s", s.Implementation)
	case Leased, Running, Checkpointed:
		return fmt.Sprintf("worker %s", r.Worker)
	case CancelRequested:
		return fmt.Sprintf("worker %s to prove that it has stopped", r.Worker)
	case Unknown:
		return fmt.Sprintf("contact with worker %s: nobody knows whether it still runs", r.Worker)
	case Recovering:
		return "the plane to put together what is known"
	case WaitingHuman, Failed:
		for _, m := range s.Mutations {
			if m.State == Intended {
				return "a person to say whether a change outside has happened: box delegations resolve"
			}
		}
		return "a person's answer: box delegations resolve"
	}
	return ""
}

func showRuns(tx journal.Tx, s *DelegationShowing) error {
	s.Runs = []RunShowing{}
	return tx.Query(`SELECT run, id, attempt, state, class, reason, proof, coalesce(fence, 0), coalesce(worker, ''), coalesce(boot, ''), pid, pid_start, progress, progress_at,
			summary, question, coalesce(late_result, 0), lease_until, not_before, cancel_deadline, created_at, leased_at, started_at, ended_at
			FROM dispatch WHERE delegation = $1 ORDER BY attempt DESC LIMIT $2`,
		func(scan func(...any) error) error {
			var r RunShowing
			var attempt, pid, notBefore, created int64
			var start string
			var progress, lease, cancel, leased, started, ended *int64
			if err := scan(&r.Run, &r.Dispatch, &attempt, (*string)(&r.State), (*string)(&r.Class), &r.Reason, (*string)(&r.Proof), &r.Fence, (*string)(&r.Worker), &r.Boot,
				&pid, &start, &r.Progress, &progress, &r.Summary, &r.Question, &r.LateResult, &lease, &notBefore, &cancel, &created, &leased, &started, &ended); err != nil {
				return err
			}
			r.Attempt = int(attempt)
			if pid > 0 {
				r.Process = &wire.Process{PID: int(pid), Start: start}
			}
			if r.State == Dispatched && notBefore > 0 {
				r.NotBefore = stampMS(notBefore)
			}
			if r.State.HasLease() {
				r.LeaseUntil, r.CancelUntil = maybeMS(lease), maybeMS(cancel)
			}
			r.ProgressAt, r.CreatedAt, r.LeasedAt, r.StartedAt, r.EndedAt = maybeMS(progress), stampMS(created), maybeMS(leased), maybeMS(started), maybeMS(ended)
			s.Runs = append(s.Runs, r)
			return nil
		}, s.Delegation, int64(shownRuns))
}

func showFiles(tx journal.Tx, s *DelegationShowing) error {
	s.Files = []RunFileShowing{}
	return tx.Query(`SELECT f.run, f.name, f.digest, f.bytes, f.kind, f.at FROM run_file f JOIN dispatch x ON x.run = f.run
			WHERE x.delegation = $1 ORDER BY x.attempt DESC, f.name, f.at DESC LIMIT $2`,
		func(scan func(...any) error) error {
			var f RunFileShowing
			var at int64
			if err := scan(&f.Run, &f.Name, &f.Digest, &f.Bytes, &f.Kind, &at); err != nil {
				return err
			}
			f.At = stampMS(at)
			s.Files = append(s.Files, f)
			return nil
		}, s.Delegation, int64(shownFiles))
}

func showVerifications(tx journal.Tx, s *DelegationShowing) error {
	s.Verifications = []VerificationShowing{}
	return tx.Query(`SELECT id, run, n, state, producer, coalesce(verifier, ''), coalesce(fence, 0), lapses, reason, coalesce(verdict, ''), lease_until, deadline, created_at, ended_at
			FROM verification WHERE delegation = $1 ORDER BY n DESC LIMIT $2`,
		func(scan func(...any) error) error {
			var v VerificationShowing
			var n, lapses, deadline, created int64
			var lease, ended *int64
			var verdict string
			if err := scan(&v.Verification, &v.Run, &n, (*string)(&v.State), (*string)(&v.Producer), (*string)(&v.Verifier), &v.Fence, &lapses, &v.Reason, &verdict,
				&lease, &deadline, &created, &ended); err != nil {
				return err
			}
			v.N, v.Lapses, v.Deadline, v.CreatedAt, v.EndedAt = int(n), int(lapses), stampMS(deadline), stampMS(created), maybeMS(ended)
			if v.State == WithVerifier {
				v.LeaseUntil = maybeMS(lease)
			}
			if verdict != "" {
				v.Verdict = new(wire.Verdict)
				if err := json.Unmarshal([]byte(verdict), v.Verdict); err != nil {
					return fmt.Errorf("verdict of %s: %w", v.Verification, err)
				}
			}
			s.Verifications = append(s.Verifications, v)
			return nil
		}, s.Delegation, int64(shownVerdict))
}

func showMutations(tx journal.Tx, s *DelegationShowing) error {
	s.Mutations = []MutationShowing{}
	return tx.Query(`SELECT external, run, action, state, proof, intended_at, proved_at FROM mutation WHERE delegation = $1 ORDER BY intended_at DESC, external LIMIT $2`,
		func(scan func(...any) error) error {
			var m MutationShowing
			var intended int64
			var proved *int64
			if err := scan(&m.Key, &m.Run, &m.Action, (*string)(&m.State), &m.Proof, &intended, &proved); err != nil {
				return err
			}
			m.IntendedAt, m.ProvedAt = stampMS(intended), maybeMS(proved)
			s.Mutations = append(s.Mutations, m)
			return nil
		}, s.Delegation, int64(shownChanges))
}

func showEvidence(tx journal.Tx, s *DelegationShowing) error {
	s.Evidence = []EvidenceShowing{}
	return tx.Query(`SELECT id, subject, kind, reason, worker, fence, seq, digest, at FROM evidence WHERE delegation = $1 ORDER BY id DESC LIMIT $2`,
		func(scan func(...any) error) error {
			var e EvidenceShowing
			var at int64
			if err := scan(&e.ID, &e.Subject, &e.Kind, &e.Reason, (*string)(&e.Worker), &e.Fence, &e.Seq, &e.Digest, &at); err != nil {
				return err
			}
			e.At = stampMS(at)
			s.Evidence = append(s.Evidence, e)
			return nil
		}, s.Delegation, int64(shownDoubts))
}

// Workers returns workers and verifiers, by name. Filters: role, state ("live" are those
// that are not revoked).
func (p *Plane) Workers(ctx context.Context, q service.Query) (WorkerPage, error) {
	limit, err := service.PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return WorkerPage{}, err
	}
	role, state := q.Filter["role"], q.Filter["state"]
	if role != "" && role != string(ops.Worker) && role != string(ops.Verifier) {
		return WorkerPage{}, ops.Faultf(ops.BadRequest, "role %s: want worker or verifier", shown(role))
	}
	live := map[string]string{"": "", "live": ` AND p.revoked_at IS NULL`, "revoked": ` AND p.revoked_at IS NOT NULL`}
	narrowed, ok := live[state]
	if !ok {
		return WorkerPage{}, ops.Faultf(ops.BadRequest, "state %s: want live or revoked", shown(state))
	}
	page := WorkerPage{}
	err = p.store.View(ctx, func(tx journal.Tx) (err error) {
		page.Workers, err = listWorkers(tx, `p.id > $1 AND ($2 = '' OR p.role = $2)`+narrowed+` ORDER BY p.id LIMIT $3`, q.After, role, int64(limit+1))
		return err
	})
	if err != nil {
		return WorkerPage{}, err
	}
	if len(page.Workers) > limit {
		page.Workers = page.Workers[:limit]
		page.Next = page.Workers[limit-1].Worker
	}
	return page, nil
}

// Worker returns a worker or a verifier, or NotFound.
func (p *Plane) Worker(ctx context.Context, id string) (s WorkerShowing, err error) {
	err = p.store.View(ctx, func(tx journal.Tx) error {
		s, err = showWorker(tx, ops.IdentityID(id))
		return err
	})
	return s, err
}

func listWorkers(tx journal.Tx, where string, args ...any) ([]WorkerListing, error) {
	list := []WorkerListing{}
	err := tx.Query(`SELECT p.id, p.role, p.key_id, p.public_key, p.implementations, p.capabilities, p.version, p.boot, p.boot_at, p.seen_at, p.skew_ms, p.draining, p.enrolled_at, p.revoked_at,
			(SELECT count(*) FROM dispatch x WHERE x.worker = p.id AND x.state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED'))
			+ (SELECT count(*) FROM verification v WHERE v.verifier = p.id AND v.state = 'LEASED')
			FROM principal p WHERE `+where,
		func(scan func(...any) error) error {
			var w WorkerListing
			var implementations, capabilities string
			var boot, seen, revoked *int64
			var draining, enrolled, leases int64
			if err := scan((*string)(&w.Worker), (*string)(&w.Role), &w.KeyID, &w.PublicKey, &implementations, &capabilities, &w.Version, &w.Boot, &boot, &seen, &w.SkewMS, &draining, &enrolled, &revoked, &leases); err != nil {
				return err
			}
			for i, into := range []*[]string{&w.Implementations, &w.Capabilities} {
				if err := json.Unmarshal([]byte([]string{implementations, capabilities}[i]), into); err != nil {
					return fmt.Errorf("worker %s: %w", w.Worker, err)
				}
				*into = orEmpty(*into)
			}
			w.BootAt, w.SeenAt, w.EnrolledAt, w.RevokedAt, w.Leases, w.Draining = maybeMS(boot), maybeMS(seen), stampMS(enrolled), maybeMS(revoked), int(leases), draining != 0
			switch {
			case revoked != nil:
				w.State = "revoked"
			case w.Boot == "":
				w.State = "new"
			case draining != 0:
				w.State = "draining"
			default:
				w.State = "ready"
			}
			list = append(list, w)
			return nil
		}, args...)
	return list, err
}

// showWorker reads a worker or verifier, or NotFound.
func showWorker(tx journal.Tx, id ops.IdentityID) (WorkerShowing, error) {
	list, err := listWorkers(tx, `p.id = $1`, string(id))
	if err != nil {
		return WorkerShowing{}, err
	}
	if len(list) == 0 {
		return WorkerShowing{}, ops.Faultf(ops.NotFound, "there is no worker or verifier %s", shown(string(id)))
	}
	s := WorkerShowing{WorkerListing: list[0], Holds: []LeaseShowing{}}
	err = tx.Query(`SELECT delegation, run, state, fence, lease_until FROM dispatch WHERE worker = $1 AND state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED')
			UNION ALL SELECT delegation, id, state, fence, lease_until FROM verification WHERE verifier = $1 AND state = 'LEASED' ORDER BY 2 LIMIT 200`,
		func(scan func(...any) error) error {
			var l LeaseShowing
			var until int64
			if err := scan(&l.Delegation, &l.Subject, &l.State, &l.Fence, &until); err != nil {
				return err
			}
			l.LeaseUntil = stampMS(until)
			s.Holds = append(s.Holds, l)
			return nil
		}, string(id))
	return s, err
}

// Status returns the plane as a whole.
func (p *Plane) Status(ctx context.Context) (s Showing, err error) {
	err = p.store.View(ctx, func(tx journal.Tx) error {
		s, err = showPlane(tx)
		return err
	})
	return s, err
}

// showPlane reads the plane as a whole.
func showPlane(tx journal.Tx) (Showing, error) {
	s := Showing{}
	var hold, changed int64
	if err := tx.Query(`SELECT state, term, hold_until, changed_at FROM plane WHERE id = 1`, func(scan func(...any) error) error {
		return scan(&s.State, &s.Term, &hold, &changed)
	}); err != nil {
		return Showing{}, err
	}
	now := tx.Now().UnixMilli()
	if hold > now {
		s.HoldUntil = stampMS(hold)
	}
	if changed > 0 {
		s.ChangedAt = stampMS(changed)
	}
	for _, c := range []struct {
		into *map[string]int64
		sql  string
	}{
		{&s.Delegations, `SELECT state, count(*) FROM delegation WHERE state IN ('OPEN', 'VERIFYING', 'EVIDENCE_MISSING', 'VERIFIER_UNAVAILABLE') AND closed_at IS NULL GROUP BY state`},
		{&s.Runs, `SELECT state, count(*) FROM dispatch WHERE state IN ('DISPATCHED', 'LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED', 'UNKNOWN', 'RECOVERING', 'WAITING_HUMAN') GROUP BY state`},
		{&s.Verifications, `SELECT state, count(*) FROM verification WHERE state IN ('WAITING', 'LEASED') GROUP BY state`},
		{&s.Workers, `SELECT role, count(*) FROM principal WHERE revoked_at IS NULL GROUP BY role`},
	} {
		*c.into = make(map[string]int64)
		if err := tx.Query(c.sql, func(scan func(...any) error) error {
			var what string
			var n int64
			if err := scan(&what, &n); err != nil {
				return err
			}
			(*c.into)[what] = n
			return nil
		}); err != nil {
			return Showing{}, err
		}
	}
	var oldest *int64
	if err := tx.Query(`SELECT min(not_before) FROM dispatch WHERE state = 'DISPATCHED' AND not_before <= $1`, func(scan func(...any) error) error { return scan(&oldest) }, now); err != nil {
		return Showing{}, err
	}
	if oldest != nil {
		s.OldestOffer = (now - *oldest) / 1000
	}
	var err error
	s.Unable, err = unserved(tx)
	return s, err
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// stampMS writes a time of a table.
func stampMS(ms int64) string { return ops.Stamp(time.UnixMilli(ms)) }

// maybeMS writes a time of a table that may be absent.
func maybeMS(ms *int64) string {
	if ms == nil {
		return ""
	}
	return stampMS(*ms)
}
