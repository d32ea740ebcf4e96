package plane

import (
	"encoding/json"
	"fmt"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

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
	case WaitingHuman, Failed, Cancelled: // of the last two, while something is unproven
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
