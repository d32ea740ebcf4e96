package plane

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// verifierCallback takes what a verifier says of a verification. m's signature is proved to
// be who's. It is the only way to a verdict: a judgement counts if it comes from a
// verifier, other than who did the work, that holds the live lease on it, as the next
// message, and says what it has judged by. Anything else is evidence at most.
func (p *Plane) verifierCallback(tx journal.Tx, m wire.Message, who principalRow) (wire.Ack, *ops.Fault, error) {
	refused := func(f *ops.Fault, err error) (wire.Ack, *ops.Fault, error) { return wire.Ack{}, f, err }
	list, err := selectVerifications(tx, `v.id = $1`, m.Header.Verification)
	if err != nil {
		return refused(nil, err)
	}
	if len(list) == 0 {
		return refused(final(ops.NotFound, "there is no verification %s", shown(m.Header.Verification)), nil)
	}
	v := list[0]
	h, err := p.load(tx, v.delegation, v.run)
	if err != nil {
		return refused(nil, err)
	}
	if m.Header.Delegation != v.delegation || m.Header.Run != v.run || m.Header.Dispatch != h.run.dispatch || m.Header.Implementation != v.implementation {
		return refused(p.doubted(tx, h, v, m, "other_ids", final(ops.StaleFence, "the verification %s is not of the delegation, run, dispatch and implementation that the message names", v.id)))
	}
	if who.role != ops.Verifier || who.id == v.producer || m.Header.Worker != who.id {
		p.counts.add("auth_rejected", "", 1)
		return refused(p.doubted(tx, h, v, m, "no_verifier", final(ops.BadSignature, "%s may not judge this run: want a verifier, and another one than who did the work", who.id)))
	}
	ack, other, err := p.replayed(tx, m)
	if err != nil {
		return refused(nil, err)
	}
	if ack != nil {
		return *ack, nil, nil
	}
	now := tx.Now()
	if why := v.stale(m, who, now); why != "" {
		return refused(p.doubted(tx, h, v, m, why, final(ops.StaleFence, "the verification is %s, and not, or no longer, under this lease; stop", v.state).With("reason", why)))
	}
	switch next := v.seq + 1; {
	case other || m.Header.Seq < next:
		return refused(p.doubted(tx, h, v, m, "other_message", final(ops.OutOfSequence, "message %d was another one", m.Header.Seq).With("expected", next)))
	case m.Header.Seq > next:
		return refused(ops.Faultf(ops.OutOfSequence, "message %d comes before message %d", next, m.Header.Seq).With("expected", next), nil)
	case m.Header.Prev != v.prev:
		return refused(p.doubted(tx, h, v, m, "other_chain", final(ops.OutOfSequence, "message %d does not follow the one that was accepted before it", m.Header.Seq).With("expected", next)))
	}
	if !lastWord(m.Kind) {
		if fault := p.tooOften(m.Header.Seq, manyJudging, v.createdAt, now); fault != nil {
			return refused(fault, nil)
		}
	}
	var verdict wire.Verdict
	fault := p.understood(tx, h, m, &verdict)
	if fault != nil {
		if m.Kind != wire.KindVerdict {
			return refused(fault, nil)
		}
		return refused(p.doubted(tx, h, v, m, "no_judgement", fault))
	}
	v.seq, v.prev = m.Header.Seq, m.Digest
	if m.Kind == wire.KindVerdict {
		fault, err = p.judged(tx, h, &v, m, verdict)
		if err != nil || fault != nil {
			return refused(fault, err)
		}
	} else {
		alive := m.Kind == wire.KindStarted || decoded[wire.Heartbeat](m.Body).Alive
		if alive && who.plane != Off {
			v.extend(p.TTL, now)
		}
		if err := v.write(tx); err != nil {
			return refused(nil, err)
		}
	}
	answer := wire.Ack{Subject: v.id, Seq: m.Header.Seq, Digest: m.Digest, State: string(v.state), Drain: !who.offered(), Final: v.state != WithVerifier}
	if v.state == WithVerifier {
		answer.LeaseMS = v.leaseUntil.Sub(now).Milliseconds()
	}
	return answer, nil, p.keepCallback(tx, m, answer)
}

// stale is why m has no authority over v: a word, "" if it has.
func (v *verificationRow) stale(m wire.Message, who principalRow, now time.Time) string {
	switch {
	case v.state != WithVerifier:
		return "no_lease"
	case m.Header.Worker != v.verifier:
		return "wrong_worker"
	case m.Header.Boot != v.boot || who.boot != v.boot:
		return "stale_boot"
	case m.Header.Fence != v.fence || v.fence>>termBits < who.term:
		return "stale_fence"
	case !now.Before(v.leaseUntil):
		return "lease_expired"
	}
	return ""
}

// doubted keeps m, which decides nothing, as evidence. Where it is the verdict of a
// verifier, and another one than was or will be given with authority, two verifiers
// disagree, and somebody is told.
func (p *Plane) doubted(tx journal.Tx, h *held, v verificationRow, m wire.Message, why string, fault *ops.Fault) (*ops.Fault, error) {
	if err := p.keepEvidence(tx, v.delegation, m, why); err != nil {
		return nil, err
	}
	if m.Kind != wire.KindVerdict || why == "no_verifier" || why == "other_ids" || why == "no_judgement" || v.verdict == "" || m.Header.Worker == v.verifier {
		return fault, nil
	}
	var counted wire.Verdict
	if err := json.Unmarshal([]byte(v.verdict), &counted); err != nil {
		return nil, fmt.Errorf("verdict of %s: %w", v.id, err)
	}
	if said := decoded[wire.Verdict](m.Body).Verdict; said != counted.Verdict {
		return fault, p.disagree(tx, h, v, m.Header.Worker)
	}
	return fault, nil
}

// disagree tells, once, that two verifiers judge the same result differently. The one that
// held the lease counts.
func (p *Plane) disagree(tx journal.Tx, h *held, v verificationRow, with ops.IdentityID) error {
	what := fmt.Sprintf("verifiers_disagree: %s says %s, %s says otherwise", v.verifier, v.state, with)
	if news, err := firstAlert(tx, h, what); err != nil || !news {
		return err
	}
	if err := v.record(tx, "verification.disagreement", map[string]any{"with": with}); err != nil {
		return err
	}
	return p.tellAlert(tx, h, what)
}

// understood reads the body of a verifier's message. A verdict is taken only if it is one:
// passed needs the declared test with exit code 0 and every declared file, by its digest;
// the others need a reason.
func (p *Plane) understood(tx journal.Tx, h *held, m wire.Message, verdict *wire.Verdict) *ops.Fault {
	var body any
	switch m.Kind {
	case wire.KindStarted:
		body = new(wire.Started)
	case wire.KindHeartbeat:
		body = new(wire.Heartbeat)
	case wire.KindVerdict:
		body = verdict
	default:
		return final(ops.BadRequest, "a verifier says started, heartbeat and verdict, and no %s", m.Kind)
	}
	if err := wire.Strict(m.Body, body); err != nil {
		return final(ops.BadRequest, "the body of %s: %v", m.Kind, err)
	}
	if m.Kind != wire.KindVerdict {
		return nil
	}
	bad := func(pointer, format string, args ...any) *ops.Fault {
		return final(ops.InvalidParams, format, args...).With("pointer", pointer)
	}
	switch {
	case verdict.Verdict != Passed && verdict.Verdict != Refused && verdict.Verdict != Lacking:
		return bad("/verdict", "the verdict %s: want %s, %s or %s", shown(verdict.Verdict), Passed, Refused, Lacking)
	case len(verdict.Reason) > maxWords || len(verdict.Output) > maxWords:
		return bad("/reason", "reason and output: want at most %d bytes each", maxWords)
	case verdict.Verdict != Passed && strings.TrimSpace(verdict.Reason) == "":
		return bad("/reason", "the verdict %s needs a reason", verdict.Verdict)
	case verdict.Verdict != Passed:
		return nil
	case len(h.delegation.verify) > 0 && !slices.Equal(verdict.Command, h.delegation.verify):
		return bad("/command", "passed, and by another command than was declared; run that one")
	case verdict.Exit != 0:
		return bad("/exit", "passed, and the command ended with exit code %d", verdict.Exit)
	}
	files, missing, err := returned(tx, h)
	switch {
	case err != nil:
		return ops.Faultf(ops.Unavailable, "the files of the run cannot be read now; say it again")
	case len(missing) > 0:
		return bad("/verdict", "passed, and files that were declared are not there: %s", strings.Join(missing, ", "))
	}
	for _, f := range files {
		if !slices.Contains(h.delegation.outputs, f.Name) {
			continue
		}
		if !slices.ContainsFunc(verdict.Checked, func(c wire.File) bool { return c.Name == f.Name && c.Digest == f.Digest }) {
			return bad("/checked", "passed, and the declared file %s is not among what was read, by its digest %s", shown(f.Name), f.Digest)
		}
	}
	return nil
}

// judged takes a verdict that counts.
func (p *Plane) judged(tx journal.Tx, h *held, v *verificationRow, m wire.Message, verdict wire.Verdict) (*ops.Fault, error) {
	e := Event{Kind: OnVerdict, Worker: v.verifier, Boot: v.boot, Fence: v.fence, Seq: m.Header.Seq, Digest: m.Digest, Verdict: verdict.Verdict, Reason: verdict.Verdict}
	if _, _, fault := Step(h.snap, e, tx.Now()); fault != nil {
		return p.doubted(tx, h, *v, m, "refused", fault.With("final", true))
	}
	b, err := json.Marshal(verdict)
	if err != nil {
		return nil, fmt.Errorf("verdict of %s: %w", v.id, err)
	}
	state := map[string]VerificationState{Passed: JudgedPassed, Refused: JudgedFailed, Lacking: JudgedLacking}[verdict.Verdict]
	v.end(state, verdict.Reason, tx.Now())
	v.verdict = string(b)
	if state == JudgedLacking {
		v.dueAt = p.evidenceUntil(h, tx.Now())
	}
	if err := v.write(tx); err != nil {
		return nil, err
	}
	if err := p.compare(tx, h, *v, verdict.Verdict); err != nil {
		return nil, err
	}
	fault, err := p.apply(tx, h, e)
	if err == nil && fault != nil {
		err = fmt.Errorf("verdict on %s: refused after it was taken: %w", v.id, fault)
	}
	return nil, err
}

// compare tells if another verifier has said otherwise before, without authority.
func (p *Plane) compare(tx journal.Tx, h *held, v verificationRow, said string) error {
	var others []ops.IdentityID
	if err := tx.Query(`SELECT worker, body FROM evidence WHERE subject = $1 AND kind = 'verdict' AND worker <> $2 AND reason NOT IN ('no_verifier', 'other_ids', 'no_judgement') ORDER BY id LIMIT 10`,
		func(scan func(...any) error) error {
			var who ops.IdentityID
			var body string
			if err := scan((*string)(&who), &body); err != nil {
				return err
			}
			if decoded[wire.Verdict](json.RawMessage(body)).Verdict != said {
				others = append(others, who)
			}
			return nil
		}, v.id, string(v.verifier)); err != nil {
		return err
	}
	if len(others) == 0 {
		return nil
	}
	return p.disagree(tx, h, v, others[0])
}
