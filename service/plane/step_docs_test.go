package plane

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDocs compares the diagram and the tables of docs/plane.md with what Step does.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/plane.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(doc)
	runs, delegations := taken(t)
	for what, want := range map[string]string{"diagram of a run's states": diagram(runs), "table of transitions": table(runs), "table of the delegation's states": outer(delegations),
		"table of classes": classes()} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/plane.md has another %s; it would be\n%s", what, want)
		}
	}
	// Whatever a rule says that it may lead to, it does lead to.
	for _, r := range rules {
		for _, to := range r.to {
			if !slices.ContainsFunc(r.in, func(from State) bool { return runs[arrow[State]{from, to, r.on}] }) {
				t.Errorf("%s is said to lead from %v to %s, and does not", r.on, r.in, to)
			}
		}
	}
	for a := range runs {
		if !allowed(a.on, a.from, a.to) {
			t.Errorf("%s leads from %s to %s, which no rule says", a.on, a.from, a.to)
		}
	}
}

type arrow[S ~string] struct {
	from, to S
	on       EventKind
}

// taken tries every event on every kind of snapshot that there can be, and returns where
// they lead.
func taken(t *testing.T) (runs map[arrow[State]]bool, delegations map[arrow[DelegationState]]bool) {
	t.Helper()
	runs, delegations = make(map[arrow[State]]bool), make(map[arrow[DelegationState]]bool)
	now := epoch.Add(time.Hour)
	for _, s := range snapshots(now) {
		for _, e := range events(s) {
			after, _, fault := Step(s, e, now)
			if fault != nil {
				continue
			}
			runs[arrow[State]{s.Run.State, after.Run.State, e.Kind}] = true
			delegations[arrow[DelegationState]{s.Delegation.State, after.Delegation.State, e.Kind}] = true
		}
	}
	return runs, delegations
}

// snapshots are the kinds of snapshots that Step can be given of open delegations.
func snapshots(now time.Time) (all []Snapshot) {
	far := now.Add(time.Hour)
	add := func(r Run, d Delegation, unproven int) {
		r.Attempt, d.Attempts, d.Grace, r.ProgressAt = 1, 1, grace, epoch
		if r.State != Dispatched {
			r.Worker, r.Boot, r.Fence = "a", "b1", 1<<termBits|1
		}
		if r.Deadline.IsZero() {
			r.Deadline = far
		}
		d.LastFence = r.Fence
		if d.State == "" {
			d.State = Open
		}
		for _, n := range []int{0, 1} {
			d.Budget = Budget{}
			for _, c := range Classes() {
				d.Budget[c] = n
			}
			all = append(all, Snapshot{Delegation: d, Run: r, Unproven: unproven})
		}
	}
	for _, deadline := range []time.Time{far, now} {
		add(Run{State: Dispatched, Deadline: deadline}, Delegation{}, 0)
		for _, lease := range []time.Time{now.Add(time.Second), now, {}} {
			add(Run{State: Leased, Deadline: deadline, LeaseUntil: lease}, Delegation{}, 0)
			for unproven := range 2 {
				for _, s := range []State{Running, Checkpointed} {
					add(Run{State: s, Started: true, Deadline: deadline, LeaseUntil: lease}, Delegation{}, unproven)
				}
				for _, cancel := range []bool{false, true} {
					for _, stop := range []time.Time{now.Add(time.Second), now} {
						class := Window
						if cancel {
							class = ""
						}
						add(Run{State: CancelRequested, Started: true, LeaseUntil: lease, CancelDeadline: stop, Class: class}, Delegation{Cancel: cancel}, unproven)
					}
				}
			}
		}
	}
	for unproven := range 2 {
		for _, cancel := range []bool{false, true} {
			for _, proof := range []Proof{NoProof, Ended} {
				for _, late := range []Run{{}, {LateResult: 1}, {LateResult: 1, LateSucceeded: true}} {
					if late.LateResult != 0 && proof == NoProof {
						continue
					}
					for _, s := range []State{Unknown, Recovering, WaitingHuman} {
						if s == WaitingHuman && cancel && proof != NoProof {
							continue // It would be over.
						}
						for _, reason := range []string{"lease_expired", "unproven"} {
							r := late
							r.State, r.Started, r.Proof, r.RecoverAt, r.Reason = s, true, proof, now, reason
							add(r, Delegation{Cancel: cancel}, unproven)
						}
					}
				}
			}
		}
	}
	add(Run{State: Failed, Proof: Ended, Class: UnknownExternal}, Delegation{}, 1)
	add(Run{State: Failed, Class: UnknownExternal}, Delegation{}, 1)
	add(Run{State: Cancelled, Proof: Tombstone, Class: Window}, Delegation{}, 1)
	for _, d := range []DelegationState{Verifying, EvidenceMissing, VerifierUnavailable} {
		add(Run{State: Succeeded, Proof: Ended, Started: true}, Delegation{State: d}, 0)
	}
	return all
}

// events are the events that a snapshot can meet, each with what can make a difference.
func events(s Snapshot) (all []Event) {
	for _, k := range Kinds() {
		e := Event{Kind: k, Worker: "a", Boot: "b1", Fence: s.Run.Fence, Seq: s.Run.Seq + 1, Prev: s.Run.Prev, Lease: ttl, Recover: wait, Capable: true, Term: 1,
			Alive: true, Stored: true, Checks: enough, Evidence: 1}
		vary := func(f func(*Event)) {
			v := e
			f(&v)
			all = append(all, v)
		}
		switch k {
		case OnHeartbeat:
			vary(func(e *Event) { e.Alive = false })
		case OnResult:
			vary(func(e *Event) { e.Succeeded = true })
		case OnWorkerRebooted:
			e.Boot = "b2"
			vary(func(e *Event) { e.Reported = true })
		case OnRecoveryStarted:
			vary(func(e *Event) { e.Person = true })
		case OnReconciled:
			vary(func(e *Event) { e.Adopt = true })
		case OnHumanResolved:
			for _, r := range []Resolution{Resume, Fail, Adopt} {
				vary(func(e *Event) { e.Resolution = r })
			}
		case OnVerdict:
			e.Worker = "v"
			for _, v := range []string{Passed, Refused, Lacking} {
				vary(func(e *Event) { e.Verdict = v })
			}
		case OnEvidenceRecorded:
			for _, of := range []EventKind{OnResult, OnCancelProof, OnHeartbeat} {
				vary(func(e *Event) { e.Of = of })
			}
		}
		all = append(all, e)
	}
	return all
}

// diagram draws the states of a run, an arrow for every way from one to another.
func diagram(runs map[arrow[State]]bool) string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> DISPATCHED\n")
	for _, from := range States() {
		for _, to := range States() {
			if on := kinds(runs, from, to); from != to && len(on) > 0 {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", from, to, strings.Join(on, ", "))
			}
		}
	}
	for _, s := range States() {
		if s.Final() {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	return b.String() + "```\n"
}

// kinds are the events that lead from one state to another, in the order of Kinds.
func kinds[S ~string](taken map[arrow[S]]bool, from, to S) (on []string) {
	for _, k := range Kinds() {
		if taken[arrow[S]{from, to, k}] {
			on = append(on, string(k))
		}
	}
	return on
}

// table says of each state what leads on from it.
func table(runs map[arrow[State]]bool) string {
	var b strings.Builder
	b.WriteString("| state | event → next |\n|---|---|\n")
	for _, from := range States() {
		var ways []string
		for _, k := range Kinds() {
			var to []string
			for _, s := range States() {
				if runs[arrow[State]{from, s, k}] {
					if s == from {
						to = append(to, "same")
					} else {
						to = append(to, string(s))
					}
				}
			}
			if everywhere := (k == OnEvidenceRecorded || k == OnClockJump) && slices.Equal(to, []string{"same"}); len(to) > 0 && !everywhere {
				ways = append(ways, fmt.Sprintf("`%s` → %s", k, strings.Join(to, ", ")))
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", from, cmp.Or(strings.Join(ways, "; "), "final"))
	}
	return b.String()
}

// outer says what moves a delegation.
func outer(delegations map[arrow[DelegationState]]bool) string {
	var b strings.Builder
	b.WriteString("| delegation | event → next |\n|---|---|\n")
	order := []DelegationState{Open, Verifying, EvidenceMissing, VerifierUnavailable, Completed, VerificationFailed, DelegationCancelled, DelegationExhausted}
	for _, from := range order {
		var ways []string
		for _, to := range order {
			if on := kinds(delegations, from, to); from != to && len(on) > 0 {
				ways = append(ways, fmt.Sprintf("`%s` → %s", strings.Join(on, "`, `"), to))
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", from, cmp.Or(strings.Join(ways, "; "), "final"))
	}
	return b.String()
}

// classes are why runs fail, and the budgets of a delegation that names none.
func classes() string {
	why := map[Class]string{
		WorkerLost:      "its worker, or the way to it, is gone; it stalled",
		Window:          "its time was used up",
		HumanBlocker:    "a person has given it up",
		InvalidResult:   "a verifier found it wrong",
		UnknownExternal: "something that it did outside was unproven when it ended",
		TaskFailed:      "its worker says that it failed",
	}
	var b strings.Builder
	b.WriteString("| class | a run failed because | new runs |\n|---|---|---|\n")
	for _, c := range Classes() {
		fmt.Fprintf(&b, "| `%s` | %s | %d |\n", c, why[c], DefaultBudget()[c])
	}
	return b.String()
}
