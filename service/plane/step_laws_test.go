package plane

import (
	"slices"
	"time"
)

// The laws: what no step may do, and what is true of every world.

// lawful breaks when one step has done what none may.
func (m *model) lawful(w *world, before, after Snapshot, e Event, effects []Effect) {
	from, to := before.Run.State, after.Run.State
	if !allowed(e.Kind, from, to) {
		violated("%s leads from %s to %s, which no rule says", e.Kind, from, to)
	}
	if from.Final() && to != from {
		violated("%s moves a run out of %s to %s", e.Kind, from, to)
	}
	b, a := before.Delegation, after.Delegation
	if b.Closed && (!a.Closed || a.State != b.State || a.Attempts != b.Attempts || a.Cancel != b.Cancel) {
		violated("%s moves a closed delegation from %s to %s", e.Kind, b.State, a.State)
	}
	if b.Cancel && !a.Cancel {
		violated("%s forgets that the delegation is to end", e.Kind)
	}
	now := at(w.now)
	switch e.Kind {
	case OnLeaseGranted:
		if after.Run.Fence <= b.LastFence || a.LastFence != after.Run.Fence {
			violated("fence %d follows %d", after.Run.Fence, b.LastFence)
		}
		if b.Cancel {
			violated("a run was granted after the delegation was cancelled")
		}
		if !now.Before(after.Run.Deadline) {
			violated("a run was granted after its deadline")
		}
	case OnLeaseExpired:
		if l := w.lease(before.Run.Fence); l == nil || w.now < l.until {
			violated("a lease expired before its time")
		}
	case OnDeadlinePassed:
		if now.Before(before.Run.Deadline) {
			violated("a deadline passed before its time")
		}
	case OnCancelDeadline:
		if now.Before(before.Run.CancelDeadline) {
			violated("the time to stop passed before its time")
		}
	}
	if before.Run.State.HasLease() && after.Run.State == CancelRequested && from != CancelRequested && after.Run.CancelDeadline.IsZero() {
		violated("%s waits for a proof for ever", e.Kind)
	}
	runs, ended := 0, 0
	for i, f := range effects {
		switch f.Do {
		case Record:
			if i != 0 {
				violated("%s is recorded behind other effects", e.Kind)
			}
		case NewRun:
			runs++
			if before.Unproven > 0 && e.Kind != OnMutationResolved || after.Unproven > 0 {
				violated("a new run while something outside is unproven")
			}
			if a.Cancel {
				violated("a new run of a cancelled delegation")
			}
			if !settled(to) {
				violated("a new run beside one that is %s", to)
			}
		case LeaseEnded:
			ended++
		}
	}
	if len(effects) == 0 || effects[0].Do != Record {
		violated("%s is not recorded", e.Kind)
	}
	if a.Attempts != b.Attempts+runs {
		violated("%d runs became %d with %d new ones", b.Attempts, a.Attempts, runs)
	}
	if lapsed := from.HasLease() && !to.HasLease(); lapsed != (ended == 1) || ended > 1 {
		violated("%s from %s to %s ends %d leases", e.Kind, from, to, ended)
	}
}

// settled reports whether a run in s is over, as far as its row goes.
func settled(s State) bool { return s.Final() || s == Failed }

// allowed reports whether a rule leads from one state to another.
func allowed(k EventKind, from, to State) bool {
	for _, r := range rules {
		if r.on == k && slices.Contains(r.in, from) && (from == to || slices.Contains(r.to, to)) {
			return true
		}
	}
	return false
}

// authority breaks when a callback was accepted that did not come from who had the
// lease, as the observer of the grants knows it, or not in its place.
func (w *world) authority(msg message, before Run, was lent) {
	seq, prev := w.count[msg.run-1], ""
	if seq > 0 {
		prev = w.last[msg.run-1].digest()
	}
	switch {
	case was.fence != before.Fence || was.fence == 0 || was.worker != msg.worker || was.boot != msg.boot:
		violated("accepted from who has no lease: %s", msg)
	case was.over || w.now >= was.until:
		violated("accepted after the lease: %s", msg)
	case msg.seq != seq+1 || msg.prev != prev:
		violated("accepted out of its place: %s", msg)
	}
}

// check breaks when a world is one that must not be.
func (m *model) check(w *world) {
	live, commands := 0, 0
	for i, r := range w.runs[:w.d.Attempts] {
		if !settled(r.State) {
			live++
			if i+1 != w.d.Attempts {
				violated("run %d is %s, and there is a later one", i+1, r.State)
			}
		}
		alive := false
		for _, l := range w.leases[:w.nl] {
			if int(l.run) == i+1 && l.alive {
				alive = true
				commands++
			}
		}
		if alive && r.State == Cancelled {
			violated("run %d is CANCELLED and its command lives", i+1)
		}
		if latest := i+1 == w.d.Attempts; alive && w.d.State == DelegationCancelled && (latest || !m.frozen) {
			violated("the delegation is CANCELLED and the command of run %d lives", i+1)
		}
		if r.State == Cancelled && r.Proof == NoProof {
			violated("run %d is CANCELLED without a proof", i+1)
		}
		if r.State.HasLease() != !r.LeaseUntil.IsZero() {
			violated("run %d is %s and its lease ends at %v", i+1, r.State, r.LeaseUntil)
		}
		if r.State.HasLease() && (r.Fence == 0 || r.Worker == "" || r.Boot == "") {
			violated("run %d is %s for nobody", i+1, r.State)
		}
		end := r.Deadline
		if r.State == CancelRequested {
			end = r.CancelDeadline
		}
		if r.LeaseUntil.After(end) {
			violated("run %d is %s, and its lease outlives its end by %s", i+1, r.State, r.LeaseUntil.Sub(end))
		}
		if r.State == Exhausted && w.d.State != DelegationExhausted {
			violated("run %d is EXHAUSTED and its delegation %s", i+1, w.d.State)
		}
	}
	d := w.d
	if live > 1 {
		violated("%d live runs", live)
	}
	if commands > 1 && !m.frozen {
		violated("%d commands work at once", commands)
	}
	if w.effects > 1 {
		violated("the outside was changed %d times", w.effects)
	}
	last := w.runs[d.Attempts-1]
	if d.State == Completed && (!w.passed || last.State != Succeeded) {
		violated("COMPLETED, and nobody has verified its run, which is %s", last.State)
	}
	used := 1
	for _, c := range Classes() {
		used += d.Used[c]
		if d.Used[c] > d.Budget[c] {
			violated("%d new runs of class %s, of which there may be %d", d.Used[c], c, d.Budget[c])
		}
	}
	if w.retried {
		used++
	}
	if d.Attempts != used {
		violated("%d runs, and %d are accounted for", d.Attempts, used)
	}
	switch d.State {
	case DelegationExhausted:
		if c := last.Class; !d.Cancel && d.Used[c] < d.Budget[c] {
			violated("EXHAUSTED, with %d runs left of class %q", d.Budget[c]-d.Used[c], c)
		}
	case VerificationFailed:
		if d.Used[InvalidResult] < d.Budget[InvalidResult] {
			violated("VERIFICATION_FAILED, with a run left")
		}
	}
	if final := d.State == Completed || d.State == VerificationFailed || d.State == DelegationCancelled || d.State == DelegationExhausted; final && !d.Closed {
		violated("%s and not closed", d.State)
	}
	if d.Closed && live > 0 {
		violated("closed as %s while its run is %s", d.State, last.State)
	}
	m.leadsOn(w.snapshot(int8(d.Attempts)), w.now)
}

// leadsOn breaks when the plane and people cannot bring a delegation to its end by
// themselves, whatever becomes of its workers.
func (m *model) leadsOn(s Snapshot, now int8) {
	r := s.Run
	d := s.Delegation
	known := standing{run: r, now: now, unproven: s.Unproven, state: d.State, cancel: d.Cancel, closed: d.Closed, attempts: d.Attempts}
	known.run.Prev, known.run.Seq, known.run.Worker, known.run.Boot, known.run.ProgressAt = "", 0, "", "", time.Time{}
	for i, c := range Classes() {
		known.used[i] = d.Used[c]
	}
	if m.waysOn[known] {
		return
	}
	way := []string{}
	moment := at(now)
	for n := 0; !s.Delegation.Closed; n++ {
		if n == 60 {
			violated("no way on from %s in a delegation %s: %v", s.Run.State, s.Delegation.State, way)
		}
		e := Event{Recover: span(ticksRecover)}
		when, kind := Due(s, 0)
		switch {
		case kind == OnReconciled && s.Run.LateResult != 0:
			e.Adopt = true
		case !when.IsZero():
		case s.Run.State == Unknown:
			kind, e.Person = OnRecoveryStarted, true
		case s.Unproven > 0:
			kind = OnMutationResolved
		case s.Run.State == WaitingHuman:
			kind, e.Resolution = OnHumanResolved, Fail
		case s.Delegation.State == Verifying:
			kind = OnVerifierAbsent
		case s.Delegation.State == EvidenceMissing || s.Delegation.State == VerifierUnavailable:
			kind = OnVerifyClosed
		default:
			violated("nothing moves on a run %s in a delegation %s", s.Run.State, s.Delegation.State)
		}
		if when.After(moment) {
			moment = when
		}
		e.Kind = kind
		after, effects, fault := m.step(s, e, moment)
		if fault != nil {
			violated("%s is what moves on a run %s in a delegation %s, and it is refused: %s", kind, s.Run.State, s.Delegation.State, fault)
		}
		for _, f := range effects {
			if f.Do == NewRun {
				after.Run, after.Unproven = Run{Attempt: f.Attempt, State: Dispatched, Deadline: moment.Add(time.Second)}, 0
			}
		}
		way = append(way, string(kind))
		s = after
	}
	m.waysOn[known] = true
}

// standing is what leadsOn depends on.
type standing struct {
	run            Run
	now            int8
	unproven       int
	state          DelegationState
	cancel, closed bool
	attempts       int
	used           [6]int
}
