package plane

import (
	"time"

	"inband/ops"
)

// State is where a run stands.
type State string

// The states of a run (plane.md, Transitions). The last three are final.
const (
	Dispatched      State = "DISPATCHED"       // offered to whoever may take it
	Leased          State = "LEASED"           // a worker has it and has not begun
	Running         State = "RUNNING"          // it has begun
	Checkpointed    State = "CHECKPOINTED"     // running, and something of it would remain
	CancelRequested State = "CANCEL_REQUESTED" // it is to stop, and nobody has proved yet that it has
	Unknown         State = "UNKNOWN"          // nobody knows whether it runs
	Recovering      State = "RECOVERING"       // what is known is put together
	WaitingHuman    State = "WAITING_HUMAN"    // a person must say how it goes on
	Failed          State = "FAILED"           // a new run may follow
	Succeeded       State = "SUCCEEDED"        // the worker returned a result that was accepted, and no more than that
	Cancelled       State = "CANCELLED"        // proved to have stopped
	Exhausted       State = "EXHAUSTED"        // failed, and no new run may follow
)

// States lists every state, in the order of the documentation.
func States() []State {
	return []State{Dispatched, Leased, Running, Checkpointed, CancelRequested, Unknown, Recovering, WaitingHuman, Failed, Succeeded, Cancelled, Exhausted}
}

// HasLease reports whether a worker has a lease in s.
func (s State) HasLease() bool {
	return s == Leased || s == Running || s == Checkpointed || s == CancelRequested
}

// Final reports whether nothing moves a run out of s.
func (s State) Final() bool { return s == Succeeded || s == Cancelled || s == Exhausted }

// DelegationState is where a delegation stands.
type DelegationState string

// The states of a delegation. COMPLETED needs a verifier's word; the next two wait for
// evidence or a verifier until they are closed.
const (
	Open                DelegationState = "OPEN"
	Verifying           DelegationState = "VERIFYING"
	EvidenceMissing     DelegationState = "EVIDENCE_MISSING"
	VerifierUnavailable DelegationState = "VERIFIER_UNAVAILABLE"
	Completed           DelegationState = "COMPLETED"
	VerificationFailed  DelegationState = "VERIFICATION_FAILED"
	DelegationCancelled DelegationState = "CANCELLED"
	DelegationExhausted DelegationState = "EXHAUSTED"
)

// Class is why a run failed. Each has its own budget of new runs.
type Class string

// The classes of failures (plane.md, principle 7).
const (
	WorkerLost      Class = "worker_lost"      // its worker or the way to it is gone
	Window          Class = "window"           // its time was used up
	HumanBlocker    Class = "human"            // a person said that it cannot go on
	InvalidResult   Class = "invalid_result"   // a verifier found it wrong
	UnknownExternal Class = "unknown_external" // nobody knows what it did outside
	TaskFailed      Class = "task_failed"      // the worker said that it failed
)

// Classes lists every class.
func Classes() []Class {
	return []Class{WorkerLost, Window, HumanBlocker, InvalidResult, UnknownExternal, TaskFailed}
}

// Budget is how many new runs may follow failures of each class.
type Budget map[Class]int

// DefaultBudget is the budget of a delegation that names none.
func DefaultBudget() Budget {
	return Budget{WorkerLost: 2, Window: 0, HumanBlocker: 0, InvalidResult: 1, UnknownExternal: 0, TaskFailed: 0}
}

// MaxRetries bounds the budget of one class.
const MaxRetries = 16

// Proof is how it is known that nothing of a run is alive.
type Proof string

// The proofs. "No process was seen" is none.
const (
	NoProof      Proof = ""
	NeverStarted Proof = "never_started" // it was never leased, or its start was never acknowledged
	Tombstone    Proof = "tombstone"     // its owner signed that nothing is left
	NewBoot      Proof = "new_boot"      // its worker's later boot says so
	Ended        Proof = "ended"         // its owner returned a result or gave it up tidily
)

// Run is what Step knows of one run. Times are the store's.
type Run struct {
	Attempt  int
	State    State
	Fence    int64 // 0: never leased
	Worker   ops.IdentityID
	Boot     string
	Seq      int64 // of the last accepted callback
	Prev     string
	Deadline time.Time

	LeaseUntil     time.Time // zero: none
	CancelDeadline time.Time // zero: nobody waits for a proof
	CancelAcked    bool
	RecoverAt      time.Time // when an UNKNOWN run may be recovered without contact
	Started        bool      // its start was acknowledged
	Proof          Proof
	Class          Class
	Reason         string
	Progress       int64
	ProgressAt     time.Time
	LateResult     int64 // the evidence that holds a result which came too late; 0: none
	LateSucceeded  bool  // what it said
}

// Delegation is what Step knows of a delegation.
type Delegation struct {
	State         DelegationState
	Attempts      int // runs there are
	LastFence     int64
	Verifications int
	Budget, Used  Budget
	Cancel        bool
	Grace         time.Duration // for a cancelled run to prove that it has stopped
	Closed        bool
	Reason        string
}

// Snapshot is a delegation with the run that an event is about.
type Snapshot struct {
	Delegation Delegation
	Run        Run
	Unproven   int // mutations of the run that are intended and not proved
}

// EventKind is something that happens to a run or a delegation.
type EventKind string

// The events. The first group are a worker's callbacks, which the guards of worker
// events are for: worker, boot, fence, live lease, next in sequence. (The signature is
// proved before there is an event.)
const (
	OnStarted          EventKind = "started"
	OnHeartbeat        EventKind = "heartbeat"
	OnCheckpoint       EventKind = "checkpoint"
	OnResult           EventKind = "result"
	OnHumanWait        EventKind = "human_wait"
	OnCancelAck        EventKind = "cancel_ack"
	OnCancelFailed     EventKind = "cancel_failed"
	OnCancelProof      EventKind = "cancel_proof"
	OnAbandoning       EventKind = "abandoning"
	OnMutationIntended EventKind = "mutation_intended"
	OnMutationProved   EventKind = "mutation_proved"
	OnArtifactAttested EventKind = "artifact_attested"

	OnLeaseGranted     EventKind = "lease_granted"
	OnLeaseExpired     EventKind = "lease_expired"
	OnLeaseMissing     EventKind = "lease_missing" // a leased state without a lease: an invariant is broken
	OnWorkerRebooted   EventKind = "worker_rebooted"
	OnStalled          EventKind = "stalled"
	OnDeadlinePassed   EventKind = "deadline_passed"
	OnCancelDeadline   EventKind = "cancel_deadline_passed"
	OnCancelRequested  EventKind = "cancel_requested"
	OnRecoveryStarted  EventKind = "recovery_started"
	OnReconciled       EventKind = "reconciled"
	OnHumanResolved    EventKind = "human_resolved"
	OnRestored         EventKind = "restored" // the store came from a backup, or its term was bumped
	OnVerdict          EventKind = "verdict"
	OnVerifierAbsent   EventKind = "verifier_absent"
	OnVerifyAgain      EventKind = "verify_again"
	OnVerifyClosed     EventKind = "verification_closed" // nobody waits any longer for evidence or a verifier
	OnRetryDemanded    EventKind = "retry_demanded"      // by a person, beyond the budget
	OnMutationResolved EventKind = "mutation_resolved"   // a person says what became of one
	OnEvidenceRecorded EventKind = "evidence_recorded"   // a callback without authority was kept: what its own worker says of a lost run is contact
	OnClockJump        EventKind = "clock_jump"
)

// Kinds lists every kind of event, in the order of the documentation.
func Kinds() []EventKind {
	return []EventKind{OnStarted, OnHeartbeat, OnCheckpoint, OnResult, OnHumanWait, OnCancelAck, OnCancelFailed, OnCancelProof, OnAbandoning,
		OnMutationIntended, OnMutationProved, OnArtifactAttested,
		OnLeaseGranted, OnLeaseExpired, OnLeaseMissing, OnWorkerRebooted, OnStalled, OnDeadlinePassed, OnCancelDeadline, OnCancelRequested,
		OnRecoveryStarted, OnReconciled, OnHumanResolved, OnRestored, OnVerdict, OnVerifierAbsent, OnVerifyAgain, OnVerifyClosed,
		OnRetryDemanded, OnMutationResolved, OnEvidenceRecorded, OnClockJump}
}

// Callback reports whether k is a worker's callback.
func (k EventKind) Callback() bool {
	switch k {
	case OnStarted, OnHeartbeat, OnCheckpoint, OnResult, OnHumanWait, OnCancelAck, OnCancelFailed, OnCancelProof, OnAbandoning,
		OnMutationIntended, OnMutationProved, OnArtifactAttested:
		return true
	}
	return false
}

// Event is one of them with what it needs. Which members count is said at each kind in
// Step.
type Event struct {
	Kind EventKind

	// Of a worker's callbacks.
	Worker ops.IdentityID
	Boot   string
	Fence  int64
	Seq    int64
	Prev   string // digest of the payload before it
	Digest string // its own

	Lease      time.Duration // lease_granted, started, heartbeat, checkpoint: the time of a lease, 0 extends nothing; restored: that a worker may still count on
	Capable    bool          // lease_granted: implementation and capabilities match, the key is active
	Term       int64         // lease_granted: the term of fences
	Progress   int64         // heartbeat, checkpoint
	Alive      bool          // heartbeat: the command lives
	Stored     bool          // checkpoint, result: every file that it names is durable and attested
	Succeeded  bool          // result
	Class      Class         // result that failed; reconciled
	Live       int           // cancel_proof, abandoning, worker_rebooted, evidence of those: processes that could not be ended
	Checks     int           // cancel_proof, evidence of it
	Reported   bool          // worker_rebooted: the later boot has said what became of this run
	Stall      time.Duration // stalled: how long without progress it is
	Recover    time.Duration // lease_expired and whatever else makes UNKNOWN: how long contact is waited for
	Of         EventKind     // evidence_recorded: what the callback was
	Evidence   int64         // evidence_recorded: its row
	Person     bool          // recovery_started: a person has ordered it
	Grace      time.Duration // cancel_requested: 0 is the delegation's
	Adopt      bool          // reconciled: the late result counts
	Resolution Resolution    // human_resolved
	Verdict    string        // verdict: Passed, Refused or Lacking, by Worker
	Reason     string
}

// The verdicts of a verifier.
const (
	Passed  = "passed"
	Refused = "failed"
	Lacking = "evidence_missing"
)

// Resolution is what a person decides of a run in WAITING_HUMAN.
type Resolution string

// The resolutions.
const (
	Resume Resolution = "resume" // offer the same run again, under the next fence
	Fail   Resolution = "fail"   // it has failed; the class human has its own budget
	Adopt  Resolution = "adopt"  // its late result counts
)

// Effect is what must be done in the transaction that writes the new snapshot. Which
// members count is said at each.
type Effect struct {
	Do      Do
	Class   Class           // NewRun: why
	Close   DelegationState // Close: as what
	Reason  string          // Keep, Alert, Ask, Close, DropVerify: why
	Attempt int             // NewRun: its number
}

// Do is a kind of effect.
type Do string

// The effects.
const (
	Record     Do = "record"     // append the event to the delegation's stream; every step has it
	NewRun     Do = "new_run"    // a dispatch for the next attempt
	Verify     Do = "verify"     // ask for a verification of this run
	DropVerify Do = "drop"       // a verification that nobody needs any more
	Close      Do = "close"      // settle the call: the delegation is closed
	Ask        Do = "ask"        // ask in the thread, and show that a person is needed
	Keep       Do = "keep"       // keep the callback as evidence; nothing else of it counts
	Alert      Do = "alert"      // somebody should look
	LeaseEnded Do = "lease_over" // the worker's share is free
)
