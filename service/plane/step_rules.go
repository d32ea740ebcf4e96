package plane

import "inband/ops"

// rule is what one event does to a run in any of some states.
type rule struct {
	on   EventKind
	in   []State
	to   []State // where the run may be afterwards; its own state is always one of them
	need []guard // beside the guards of worker events
	do   func(*turn) *ops.Fault
}

var (
	working = []State{Running, Checkpointed}
	granted = []State{Leased, Running, Checkpointed}
	leased  = []State{Leased, Running, Checkpointed, CancelRequested}
	lost    = []State{Unknown, Recovering, WaitingHuman}
)

// rules are the transitions (plane.md, Transitions). An event that has no rule for the
// state of its run is refused there.
var rules = []rule{
	// What its worker says.
	{OnStarted, []State{Leased}, []State{Running}, nil, (*turn).started},
	{OnStarted, []State{CancelRequested}, nil, nil, (*turn).same}, // and is told to stop before it has begun
	{OnHeartbeat, leased, []State{Unknown}, nil, (*turn).heartbeat},
	{OnCheckpoint, working, []State{Checkpointed}, []guard{filesStored}, (*turn).checkpoint},
	{OnCheckpoint, []State{CancelRequested}, nil, nil, (*turn).tooLate},
	{OnResult, []State{Running, Checkpointed, CancelRequested}, []State{Succeeded, Failed, Exhausted}, []guard{filesStored}, (*turn).result},
	{OnHumanWait, working, []State{WaitingHuman}, nil, (*turn).humanWait},
	{OnCancelAck, []State{CancelRequested}, nil, nil, (*turn).cancelAck},
	{OnCancelFailed, []State{CancelRequested}, nil, nil, (*turn).cancelFailed},
	{OnCancelProof, []State{CancelRequested}, []State{Cancelled}, []guard{nobodyLeft}, (*turn).cancelProof},
	{OnAbandoning, leased, []State{Unknown}, nil, (*turn).abandoning},
	{OnMutationIntended, working, nil, nil, (*turn).intended},
	{OnMutationProved, []State{Running, Checkpointed, CancelRequested}, nil, nil, (*turn).proved},
	{OnArtifactAttested, []State{Running, Checkpointed, CancelRequested}, nil, nil, (*turn).same},
	{OnArtifactAttested, []State{Succeeded}, nil, []guard{stillOpen, latestRun}, (*turn).attestedLate},

	// What the plane does and sees.
	{OnLeaseGranted, []State{Dispatched}, []State{Leased}, []guard{stillOpen, ableWorker, timeAhead}, (*turn).grant},
	{OnLeaseExpired, leased, []State{Unknown}, []guard{timeHasCome}, (*turn).expired},
	{OnLeaseMissing, leased, []State{Unknown}, nil, (*turn).missing},
	{OnWorkerRebooted, leased, []State{Unknown}, nil, (*turn).rebooted},
	{OnWorkerRebooted, lost, []State{Cancelled}, nil, (*turn).reported},
	{OnRestored, leased, []State{Unknown}, nil, (*turn).restored},
	{OnStalled, granted, []State{CancelRequested}, []guard{timeHasCome}, (*turn).stalled},
	{OnDeadlinePassed, []State{Dispatched}, []State{Failed, Exhausted}, []guard{timeHasCome}, (*turn).nobodyCame},
	{OnDeadlinePassed, granted, []State{CancelRequested}, []guard{timeHasCome}, (*turn).deadline},
	{OnCancelDeadline, []State{CancelRequested}, []State{Unknown}, []guard{timeHasCome}, (*turn).unacknowledged},
	{OnRecoveryStarted, []State{Unknown}, []State{Recovering}, nil, (*turn).recover},
	{OnReconciled, []State{Recovering}, []State{Succeeded, Failed, Exhausted, Cancelled, WaitingHuman}, nil, (*turn).reconcile},
	{OnEvidenceRecorded, States(), []State{Cancelled}, nil, (*turn).evidence},
	{OnClockJump, States(), nil, nil, (*turn).same},

	// What people decide.
	{OnCancelRequested, States(), []State{CancelRequested, Cancelled, Exhausted}, []guard{stillOpen, latestRun}, (*turn).cancel},
	{OnHumanResolved, []State{WaitingHuman}, []State{Dispatched, Succeeded, Failed, Exhausted}, []guard{stillOpen}, (*turn).resolve},
	{OnRetryDemanded, []State{WaitingHuman}, []State{Failed}, []guard{stillOpen, allProven}, (*turn).retry},
	{OnRetryDemanded, []State{Succeeded}, nil, []guard{stillOpen, latestRun, allProven}, (*turn).retry},
	{OnMutationResolved, []State{WaitingHuman, Failed, Succeeded, Cancelled, Exhausted}, []State{Recovering, Exhausted}, nil, (*turn).mutationResolved},

	// What becomes of a result.
	{OnVerdict, []State{Succeeded}, nil, []guard{stillOpen, latestRun, anotherIdentity}, (*turn).verdict},
	{OnVerifierAbsent, []State{Succeeded}, nil, []guard{stillOpen, latestRun}, (*turn).absent},
	{OnVerifyAgain, []State{Succeeded}, nil, []guard{stillOpen, latestRun}, (*turn).again},
	{OnVerifyClosed, []State{Succeeded}, nil, []guard{stillOpen, latestRun}, (*turn).giveUp},
}

func (t *turn) same() *ops.Fault { return nil }
