package plane

import (
	"context"
	"fmt"
	"strings"

	"inband/ops"
	"inband/service/journal"
)

// MaxAnswer bounds what a person answers a worker, in bytes.
const MaxAnswer = 16 << 10

// ResolveRequest is what a person decides of a delegation that cannot go on by itself: how
// its run goes on, or what has become of a change outside, or both, the latter first.
type ResolveRequest struct {
	Resolution Resolution // "" where only a mutation is proved
	Answer     string     // for the worker, with Resume; at most 16 KiB
	Mutation   string     // its key
	Done       *bool      // whether it has happened
	Proof      string     // how that is known, at most 4 KiB
}

// check refuses what says nothing, or too much.
func (r ResolveRequest) check() *ops.Fault {
	bad := func(pointer, format string, args ...any) *ops.Fault {
		return ops.Faultf(ops.BadRequest, format, args...).With("pointer", pointer)
	}
	switch r.Resolution {
	case "", Resume, Fail, Adopt:
	default:
		return bad("/resolution", "resolution %s: want %s, %s or %s", shown(string(r.Resolution)), Resume, Fail, Adopt)
	}
	switch {
	case r.Resolution == "" && r.Mutation == "":
		return bad("/resolution", "there is nothing to resolve: want a resolution (%s, %s or %s), or a mutation with what became of it", Resume, Fail, Adopt)
	case r.Answer != "" && r.Resolution != Resume:
		return bad("/answer", "an answer is for the worker that goes on, so it needs the resolution %s", Resume)
	case !words(r.Answer, MaxAnswer):
		return bad("/answer", "answer: want text of at most %d bytes", MaxAnswer)
	case r.Mutation == "" && (r.Done != nil || r.Proof != ""):
		return bad("/mutation", "want the key of the mutation that is proved")
	case r.Mutation != "" && r.Done == nil:
		return bad("/done", "want whether the mutation has happened: true or false")
	case r.Mutation != "" && (strings.TrimSpace(r.Proof) == "" || !words(r.Proof, maxProof)):
		return bad("/proof", "want how it is known, as text of 1 to %d bytes", maxProof)
	}
	return nil
}

// Resolve does with delegation id what a person has decided, and returns it as it is then.
//
// Resume offers the run again, under its next fence and with the answer; Fail says that it
// cannot go on; Adopt has the result count that its worker returned too late. The first and
// the last are not possible while it is not known what the run has done outside: Unproven
// names the mutations. A run that is UNKNOWN can be given up too, before there is contact,
// but not while its worker may still have its lease. A state in which nobody waits for a
// person is a Conflict. A mutation may be proved once its run is over or waits for a person,
// also of a delegation that has ended; before, the run might still do it.
//
// by must be one who may manage the gateway.
func (p *Plane) Resolve(ctx context.Context, by ops.Identity, id string, r ResolveRequest) (s DelegationShowing, err error) {
	if fault := r.check(); fault != nil {
		return s, fault
	}
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		h, err := p.managed(tx, by, id, "resolve it; operators may")
		if err != nil {
			return err
		}
		if err := p.resolve(tx, h, by, r); err != nil {
			return err
		}
		s, err = p.showTo(tx, by, id)
		return err
	})
	return s, stored(err)
}

func (p *Plane) resolve(tx journal.Tx, h *held, by ops.Identity, r ResolveRequest) error {
	if r.Mutation != "" {
		of, fault, err := p.settleMutation(tx, h, r.Mutation, "", *r.Done, string(by.ID)+": "+r.Proof)
		if err != nil || fault != nil {
			return orFault(fault, err)
		}
		if of != "" {
			if err := p.mutationResolved(tx, h, of, by); err != nil {
				return err
			}
		}
	}
	if r.Resolution == "" {
		return nil
	}
	if !h.delegation.closedAt.IsZero() {
		return closedFault(&h.delegation)
	}
	if r.Resolution == Resume && h.delegation.answer != r.Answer {
		h.delegation.answer = r.Answer
		if err := h.delegation.write(tx); err != nil {
			return err
		}
	}
	reason := "by " + string(by.ID)
	if h.run.state == Unknown && r.Resolution != Resume {
		// Nobody need wait for contact any more.
		fault, err := p.apply(tx, h, Event{Kind: OnRecoveryStarted, Person: true, Reason: reason})
		if err != nil || fault != nil {
			return orFault(fault, err)
		}
	}
	e := Event{Kind: OnHumanResolved, Resolution: r.Resolution, Reason: reason}
	if h.run.state == Recovering && r.Resolution != Resume {
		e = Event{Kind: OnReconciled, Adopt: r.Resolution == Adopt, Reason: reason}
	}
	if h.run.late != nil {
		e.Class = Class(h.run.late.Class)
	}
	fault, err := p.apply(tx, h, e)
	if err != nil {
		return err
	}
	fault, err = naming(tx, fault, h.delegation.id)
	return orFault(fault, err)
}

// mutationResolved goes on with what waited for the mutation of a run that a person has
// proved. h stands as before, and is what it has become afterwards.
func (p *Plane) mutationResolved(tx journal.Tx, h *held, run string, by ops.Identity) error {
	of := h
	if run != h.run.run {
		var err error
		if of, err = p.load(tx, h.delegation.id, run); err != nil {
			return err
		}
		of.snap.Unproven++ // as it was, which Step counts down
	}
	fault, err := p.apply(tx, of, Event{Kind: OnMutationResolved, Recover: p.Recover, Reason: "by " + string(by.ID)})
	if err != nil || fault != nil {
		return orFault(fault, err)
	}
	again, err := p.load(tx, h.delegation.id, "")
	if err == nil {
		*h = *again
	}
	return err
}

// Retry has delegation id go on because a person says so, and returns it as it is then.
// One that lacks a verifier, or evidence that was not declared, is verified again; one
// whose next attempt waits for its time is offered at once; and one whose run waits for a
// person, or has not returned what was declared, gets another run beyond its budget, unless
// it is not known what the run has done outside (Unproven). Anything else is a Conflict,
// and so is one that has ended: its call is settled, so it must be ordered anew.
//
// by must be one who may manage the gateway.
func (p *Plane) Retry(ctx context.Context, by ops.Identity, id string) (s DelegationShowing, err error) {
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		h, err := p.managed(tx, by, id, "retry it; operators may")
		if err != nil {
			return err
		}
		if err := p.retry(tx, h, by); err != nil {
			return err
		}
		s, err = p.showTo(tx, by, id)
		return err
	})
	return s, stored(err)
}

func (p *Plane) retry(tx journal.Tx, h *held, by ops.Identity) error {
	e := Event{Kind: OnRetryDemanded, Recover: p.Recover, Reason: "by " + string(by.ID)}
	switch d := &h.delegation; {
	case !d.closedAt.IsZero():
		return closedFault(d)
	case d.state == VerifierUnavailable:
		e.Kind = OnVerifyAgain
	case d.state == EvidenceMissing:
		_, missing, err := returned(tx, h)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			e.Kind = OnVerifyAgain
		} // else no look at the same would find more, so it is done again
	case h.run.state == Dispatched && h.run.notBefore.After(tx.Now()):
		h.run.notBefore = tx.Now()
		if err := p.writeRun(tx, h); err != nil {
			return err
		}
		return event(tx, "delegation/"+d.id, "run.hastened", map[string]any{"delegation": d.id, "run": h.run.run, "by": by})
	}
	fault, err := p.apply(tx, h, e)
	if err != nil {
		return err
	}
	fault, err = naming(tx, fault, h.delegation.id)
	return orFault(fault, err)
}

// managed loads delegation id for one who may manage the gateway.
func (p *Plane) managed(tx journal.Tx, by ops.Identity, id, what string) (*held, error) {
	h, err := p.load(tx, id, "")
	if err != nil {
		return nil, err
	}
	if p.manages(by) != nil {
		return nil, p.refuse(tx, by, h, what)
	}
	return h, nil
}

// ask asks a person how h goes on, in the thread that it was ordered in. question is the
// worker's, "" if it is the plane that cannot go on. Asked or not, the delegation shows
// that it waits.
func (p *Plane) ask(tx journal.Tx, h *held, question string) error {
	keys, err := unprovenKeys(tx, h.delegation.id)
	if err != nil {
		return err
	}
	switch id := h.delegation.id; {
	case len(keys) > 0:
		return p.note(tx, h, fmt.Sprintf("It waits for a person: worker %s intended a change outside, and nobody knows whether it happened. Say for each key below, with box delegations resolve %s --mutation KEY, whether it is --done or --absent, and how that is known with --proof.",
			h.run.worker, id), strings.Join(keys, "\n"))
	case question != "":
		return p.note(tx, h, fmt.Sprintf("It waits for a person: worker %s asks what stands below. Answer with box delegations resolve %s resume --answer TEXT.", h.run.worker, id), question)
	default:
		return p.note(tx, h, fmt.Sprintf("It waits for a person: %s. Decide with box delegations resolve %s.", because(h), id), "")
	}
}

// because is why the run of h waits, in words.
func because(h *held) string {
	if h.run.reason == "" {
		return "it cannot go on by itself"
	}
	return "it cannot go on by itself (" + h.run.reason + ")"
}

// alert has somebody look at h: what is a word or a short sentence of the plane's own. The
// same of the same lease is told once, however often a worker gives cause for it.
func (p *Plane) alert(tx journal.Tx, h *held, what string) error {
	if news, err := firstAlert(tx, h, what); err != nil || !news {
		return err
	}
	return p.tellAlert(tx, h, what)
}

// firstAlert reports whether what is told for the first time of this lease and verification.
func firstAlert(tx journal.Tx, h *held, what string) (bool, error) {
	n, err := tx.Exec(`INSERT INTO alert (run, fence, verifications, what) VALUES ($1, $2, $3, $4) ON CONFLICT (run, fence, verifications, what) DO NOTHING`,
		h.run.run, h.snap.Run.Fence, int64(h.snap.Delegation.Verifications), what)
	return n == 1, err
}

func (p *Plane) tellAlert(tx journal.Tx, h *held, what string) error {
	if err := event(tx, "delegation/"+h.delegation.id, "delegation.alert", map[string]any{
		"delegation": h.delegation.id, "run": h.run.run, "what": what,
	}); err != nil {
		return err
	}
	return p.note(tx, h, fmt.Sprintf("It needs somebody to look at it: %s. See box delegations show %s.", what, h.delegation.id), "")
}

// note writes text, and somebody's words below it, into the thread that h was ordered in,
// if there is one.
func (p *Plane) note(tx journal.Tx, h *held, text, words string) error {
	if p.notices == nil {
		return nil
	}
	call, err := orderOf(tx, h.delegation.call)
	if err != nil || call.From.Answer == nil {
		return err
	}
	return p.notices.Note(tx, *call.From.Answer, h.delegation.id, text, words)
}
