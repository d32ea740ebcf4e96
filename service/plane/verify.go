package plane

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// VerificationState is where one judgement stands that was asked for.
type VerificationState string

// The states of a verification. The first two are open; of the others only JudgedPassed
// completes a delegation.
const (
	AwaitsVerifier VerificationState = "WAITING"          // offered to whoever may take it
	WithVerifier   VerificationState = "LEASED"           // a verifier has it
	JudgedPassed   VerificationState = "PASSED"           // it did what it was to do
	JudgedFailed   VerificationState = "FAILED"           // it did not
	JudgedLacking  VerificationState = "EVIDENCE_MISSING" // there is not enough to tell by
	NobodyJudged   VerificationState = "UNAVAILABLE"      // no verifier came in time
	Dropped        VerificationState = "DROPPED"          // nobody needs it any more
)

const (
	// lapsesBearable is how many leases on a verification may end without a verdict before
	// the delegation is shown to have no verifier.
	lapsesBearable = 3
	// waitsForVerifier is how long after its deadline a delegation is open for a verifier.
	waitsForVerifier = 24 * time.Hour
	// verificationBatch is how many verifications one sweep looks at.
	verificationBatch = 100
	// mostAttested bounds the attestations that a grant carries, in bytes.
	mostAttested = 256 << 10
)

// verificationRow is one row of the table verification, with what is asked most of its
// delegation.
type verificationRow struct {
	id, delegation, run string
	n                   int
	implementation      string
	producer, verifier  ops.IdentityID // verifier: "" if nobody has it
	state               VerificationState
	fence               int64 // of the last lease, 0: never leased
	boot                string
	leaseUntil          time.Time
	seq                 int64
	prev                string
	notBefore           time.Time
	deadline            time.Time // of somebody's verdict
	dueAt               time.Time // when the sweep has to look at it
	lapses              int       // leases that ended without a verdict
	verdict             string    // JSON, "" before there is one
	reason              string
	version             int64
	endedAt             time.Time

	stands    DelegationState // the delegation
	until     time.Time       // its deadline
	createdAt time.Time
}

func selectVerifications(tx journal.Tx, where string, args ...any) (list []verificationRow, err error) {
	var v verificationRow
	var s scanner
	s.dest = []any{&v.id, &v.delegation, &v.run, &v.n, &v.implementation, (*string)(&v.producer), s.text((*string)(&v.verifier)), (*string)(&v.state),
		s.number(&v.fence), s.text(&v.boot), s.moment(&v.leaseUntil), &v.seq, &v.prev, s.moment(&v.notBefore), s.moment(&v.deadline), s.moment(&v.dueAt), &v.lapses,
		s.text(&v.verdict), &v.reason, &v.version, s.moment(&v.endedAt), (*string)(&v.stands), s.moment(&v.until), s.moment(&v.createdAt)}
	err = tx.Query(`SELECT v.id, v.delegation, v.run, v.n, v.implementation, v.producer, v.verifier, v.state, v.fence, v.boot, v.lease_until, v.seq, v.prev, v.not_before,
			v.deadline, v.due_at, v.lapses, v.verdict, v.reason, v.version, v.ended_at, d.state, d.deadline, v.created_at
			FROM verification v JOIN delegation d ON d.id = v.delegation WHERE `+where,
		func(scan func(...any) error) error {
			err := s.scan(scan)
			list = append(list, v)
			return err
		}, args...)
	return list, err
}

// write writes all of v that changes, if it is still the row that was read.
func (v *verificationRow) write(tx journal.Tx) error {
	n, err := tx.Exec(`UPDATE verification SET verifier = $1, state = $2, fence = $3, boot = $4, lease_until = $5, seq = $6, prev = $7, not_before = $8, deadline = $9,
			due_at = $10, lapses = $11, verdict = $12, reason = $13, ended_at = $14, version = $15 + 1 WHERE id = $16 AND version = $15`,
		orNull(string(v.verifier)), string(v.state), orZero(v.fence), orNull(v.boot), milli(v.leaseUntil), v.seq, v.prev, milli(v.notBefore), milli(v.deadline),
		milli(v.dueAt), int64(v.lapses), orNull(v.verdict), v.reason, milli(v.endedAt), v.version, v.id)
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("verification %s: %w", v.id, ErrStaleRow)
	}
	v.version++
	return nil
}

// end gives v its last state.
func (v *verificationRow) end(state VerificationState, reason string, now time.Time) {
	v.state, v.reason, v.endedAt = state, reason, now
	v.leaseUntil, v.dueAt = time.Time{}, time.Time{}
}

// record appends an event about v. It carries no words of a verifier.
func (v *verificationRow) record(tx journal.Tx, kind string, more map[string]any) error {
	body := map[string]any{"delegation": v.delegation, "run": v.run, "verification": v.id, "n": v.n, "implementation": v.implementation, "state": v.state,
		"producer": v.producer, "due_ms": dueMS(v.dueAt)}
	if v.verifier != "" {
		body["verifier"], body["fence"] = v.verifier, v.fence
	}
	for name, value := range more {
		body[name] = value
	}
	return event(tx, "delegation/"+v.delegation, kind, body)
}

// openVerification asks for a judgement of h's run. Where a file that was declared is not
// there, nobody is asked: the evidence is missing, whoever looks.
func (p *Plane) openVerification(tx journal.Tx, h *held) error {
	now := tx.Now()
	v := verificationRow{
		id: newID("v-"), delegation: h.delegation.id, run: h.run.run, n: h.delegation.verifications, implementation: h.delegation.implementation,
		producer: h.run.worker, state: AwaitsVerifier, notBefore: now, deadline: now.Add(p.VerifyWithin),
	}
	v.dueAt = v.deadline
	_, missing, err := returned(tx, h)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		v.end(JudgedLacking, "not returned, or not attested: "+strings.Join(missing, ", "), now)
		v.dueAt = p.evidenceUntil(h, now)
		if was, err := stillLacking(tx, v); err != nil {
			return err
		} else if was {
			return p.lacking(tx, h)
		}
	}
	if _, err := tx.Exec(`INSERT INTO verification (id, delegation, run, n, implementation, producer, state, seq, prev, not_before, deadline, due_at, lapses, reason, version, created_at, ended_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, 0, '', $8, $9, $10, 0, $11, 1, $12, $13)`,
		v.id, v.delegation, v.run, int64(v.n), v.implementation, string(v.producer), string(v.state), milli(v.notBefore), milli(v.deadline), milli(v.dueAt),
		v.reason, now.UnixMilli(), milli(v.endedAt)); err != nil {
		return err
	}
	p.sooner(v.dueAt)
	if err := v.record(tx, "verification.requested", nil); err != nil || len(missing) == 0 {
		return err
	}
	return p.lacking(tx, h)
}

// stillLacking reports whether v's run lacked declared files before, and keeps what it lacks
// now in the verification that says so.
func stillLacking(tx journal.Tx, v verificationRow) (bool, error) {
	n, err := tx.Exec(`UPDATE verification SET reason = $1, due_at = $2, version = version + 1 WHERE delegation = $4 AND run = $3 AND state = 'EVIDENCE_MISSING' AND verifier IS NULL
			AND n = (SELECT max(o.n) FROM verification o WHERE o.delegation = $4)`, v.reason, milli(v.dueAt), v.run, v.delegation)
	return n > 0, err
}

// lacking says, without asking anybody, that evidence is missing.
func (p *Plane) lacking(tx journal.Tx, h *held) error {
	fault, err := p.apply(tx, h, Event{Kind: OnVerdict, Verdict: Lacking, Reason: "not_returned"})
	return orFault(fault, err)
}

// lookAgain asks for a judgement of h's run if it lacked declared files and they are there
// now. It is called when the run has attested one.
func (p *Plane) lookAgain(tx journal.Tx, h *held) error {
	if h.delegation.state != EvidenceMissing {
		return nil
	}
	_, missing, err := returned(tx, h)
	if err != nil || len(missing) > 0 {
		return err
	}
	fault, err := p.apply(tx, h, Event{Kind: OnVerifyAgain, Reason: "attested"})
	return orFault(fault, err)
}

// evidenceUntil is until when a delegation that lacks evidence waits for it.
func (p *Plane) evidenceUntil(h *held, now time.Time) time.Time {
	if until := now.Add(p.VerifyWithin); until.After(h.delegation.deadline) {
		return until
	}
	return h.delegation.deadline
}

// returned are the files of h's run that a verifier may go by: those of its result, and
// what it has attested under a declared name since. What is not stored and attested is not
// among them. missing are the declared names for which there is none.
func returned(tx journal.Tx, h *held) (files []wire.File, missing []string, err error) {
	named := make(map[string]bool)
	if h.run.result != nil {
		for _, f := range h.run.result.Files {
			there, attested, err := artifacts.Left(tx, h.run.run, f.Name, artifacts.Digest(f.Digest), f.Bytes)
			if err != nil {
				return nil, nil, err
			}
			if there && attested {
				files, named[f.Name] = append(files, f), true
			}
		}
	}
	for _, name := range h.delegation.outputs {
		if named[name] {
			continue
		}
		f := wire.File{Name: name}
		if err := tx.Query(`SELECT a.digest, a.bytes, a.kind FROM artifact a WHERE a.run = $1 AND a.name = $2
				AND EXISTS (SELECT 1 FROM attestation t WHERE t.run = a.run AND t.name = a.name AND t.digest = a.digest) ORDER BY a.id DESC LIMIT 1`,
			func(scan func(...any) error) error { return scan(&f.Digest, &f.Bytes, &f.Kind) }, h.run.run, name); err != nil {
			return nil, nil, err
		}
		if f.Digest == "" {
			missing = append(missing, name)
		} else {
			files = append(files, f)
		}
	}
	return files, missing, nil
}

// dropVerification ends what is open of h's verifications without a judgement.
func (p *Plane) dropVerification(tx journal.Tx, h *held, reason string) error {
	list, err := selectVerifications(tx, `v.delegation = $1 AND v.state IN ('WAITING', 'LEASED')`, h.delegation.id)
	if err != nil {
		return err
	}
	for _, v := range list {
		v.end(Dropped, reason, tx.Now())
		if err := v.write(tx); err != nil {
			return err
		}
		if err := v.record(tx, "verification.dropped", map[string]any{"reason": reason}); err != nil {
			return err
		}
	}
	_, err = tx.Exec(`UPDATE verification SET due_at = NULL, version = version + 1 WHERE delegation = $1 AND state = 'EVIDENCE_MISSING' AND due_at IS NOT NULL`, h.delegation.id)
	return err
}

// findVerification is the verification that has waited longest of those that who can judge,
// if there is one.
func findVerification(tx journal.Tx, who principalRow) ([]string, error) {
	if len(who.skills.implementations) == 0 {
		return nil, nil
	}
	args := []any{tx.Now().UnixMilli(), string(who.id)}
	places := make([]string, len(who.skills.implementations))
	for i, implementation := range who.skills.implementations {
		places[i] = fmt.Sprintf("$%d", i+3)
		args = append(args, implementation)
	}
	return texts(tx, `SELECT id FROM verification WHERE state = 'WAITING' AND not_before <= $1 AND producer <> $2 AND implementation IN (`+strings.Join(places, ", ")+`)
			ORDER BY not_before, id LIMIT 1`, args...)
}

// offerVerification gives a verifier the verification that has waited longest of those
// that it can judge, under a lease with the next fence; nil if there is none. The work of
// a run is never offered to who did it.
func (p *Plane) offerVerification(tx journal.Tx, who principalRow, nonce string) (*wire.Grant, error) {
	if who.role != ops.Verifier || who.revoked || who.boot == "" || who.plane == Off {
		return nil, nil
	}
	found, err := findVerification(tx, who)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	list, err := selectVerifications(tx, `v.id = $1`, found[0])
	if err != nil {
		return nil, err
	}
	now, v := tx.Now(), list[0]
	v.state, v.verifier, v.boot = WithVerifier, who.id, who.boot
	v.fence = max(v.fence+1, who.term<<termBits|1)
	if until := now.Add(p.VerifyWithin); until.After(v.deadline) { // somebody came: it has the time that is for judging
		v.deadline = until
	}
	v.extend(p.TTL, now)
	if err := v.write(tx); err != nil {
		return nil, err
	}
	p.sooner(v.dueAt)
	if err := v.record(tx, "verification.granted", map[string]any{"boot": v.boot, "lease_until": ops.Stamp(v.leaseUntil)}); err != nil {
		return nil, err
	}
	return p.grantOf(tx, v, nonce)
}

// extend lengthens the lease, up to the deadline.
func (v *verificationRow) extend(ttl time.Duration, now time.Time) {
	v.leaseUntil = now.Add(ttl)
	if v.leaseUntil.After(v.deadline) {
		v.leaseUntil = v.deadline
	}
	v.dueAt = v.leaseUntil
}

// verificationGrant is the grant of a lease that who has already, for the same poll again;
// nil if it has it no longer.
func (p *Plane) verificationGrant(tx journal.Tx, who principalRow, id, nonce string) (*wire.Grant, error) {
	list, err := selectVerifications(tx, `v.id = $1 AND v.state = 'LEASED' AND v.verifier = $2 AND v.boot = $3`, id, string(who.id), who.boot)
	if err != nil || len(list) == 0 || !tx.Now().Before(list[0].leaseUntil) {
		return nil, err
	}
	return p.grantOf(tx, list[0], nonce)
}

// grantOf is what the verifier that has v is told.
func (p *Plane) grantOf(tx journal.Tx, v verificationRow, nonce string) (*wire.Grant, error) {
	h, err := p.load(tx, v.delegation, v.run)
	if err != nil {
		return nil, err
	}
	now, d := tx.Now(), h.delegation
	g := &wire.Grant{
		Header: wire.Header{Delegation: d.id, Run: v.run, Dispatch: h.run.dispatch, Verification: v.id, Implementation: v.implementation,
			Worker: v.verifier, Boot: v.boot, Fence: v.fence, Seq: v.seq, Prev: v.prev, SentAt: now},
		Nonce: nonce, Attempt: h.run.attempt, TTLMS: v.leaseUntil.Sub(now).Milliseconds(), HeartbeatMS: p.Heartbeat.Milliseconds(),
		RemainingMS: v.deadline.Sub(now).Milliseconds(), Digest: d.instruction, Source: wire.Source{Revision: d.revision, Worktree: d.worktree},
		Outputs: d.outputs, Verify: d.verify, IdemKey: v.id, Producer: v.producer, Attested: make(map[string]wire.Attestations),
	}
	if g.Instruction, err = instructionOf(tx, d.instruction); err != nil {
		return nil, err
	}
	g.Result = &wire.Result{Succeeded: true, Summary: h.run.summary}
	if h.run.result != nil {
		r := *h.run.result
		g.Result = &r
	}
	if g.Result.Files, _, err = returned(tx, h); err != nil {
		return nil, err
	}
	room := mostAttested
	for _, f := range g.Result.Files {
		list, err := artifacts.Attestations(tx, v.run, artifacts.Digest(f.Digest))
		if err != nil {
			return nil, err
		}
		for _, a := range slices.Backward(list) { // the latest counts most
			if room -= len(a.Envelope); room < 0 {
				return g, nil
			}
			g.Attested[f.Digest] = append(g.Attested[f.Digest], a.Envelope)
		}
	}
	return g, nil
}

// sweepVerifications does what is due of verifications at now, up to a batch, and returns
// how many it has looked at: leases that have lapsed are offered again, delegations that
// nobody judges are shown as such, and those that have waited long enough are closed.
func (p *Plane) sweepVerifications(tx journal.Tx, now time.Time) (n int, err error) {
	hold, err := heldUntil(tx)
	if err != nil {
		return 0, err
	}
	leased := `, 'LEASED'`
	if now.Before(hold) { // no lease expires now
		leased = ``
	}
	list, err := selectVerifications(tx, `v.due_at <= $1 AND v.state IN ('WAITING', 'EVIDENCE_MISSING'`+leased+`) ORDER BY v.due_at, v.id LIMIT $2`, now.UnixMilli(), int64(verificationBatch))
	if err != nil {
		return 0, err
	}
	for _, v := range list {
		if err := p.sweepVerification(tx, v, now); err != nil {
			return n, fmt.Errorf("verification %s: %w", v.id, err)
		}
		n++
	}
	return n, nil
}

func (p *Plane) sweepVerification(tx journal.Tx, v verificationRow, now time.Time) error {
	if v.state == WithVerifier {
		return p.lapse(tx, v, now, "lease_expired")
	}
	h, err := p.load(tx, v.delegation, v.run)
	if err != nil {
		return err
	}
	e := Event{Kind: OnVerifyClosed, Recover: p.Recover}
	switch {
	case v.state == AwaitsVerifier && v.stands == Verifying:
		e.Kind, e.Reason = OnVerifierAbsent, "nobody_came"
		v.dueAt = p.closes(v)
	case v.state == AwaitsVerifier:
		v.end(NobodyJudged, "nobody came in time", now)
	default:
		v.dueAt = time.Time{}
	}
	if err := v.write(tx); err != nil {
		return err
	}
	p.sooner(v.dueAt)
	// A fault says that the delegation has gone on, and nobody waits for this any more.
	_, err = p.apply(tx, h, e)
	return err
}

// closes is until when v is offered, whatever becomes of those who take it.
func (p *Plane) closes(v verificationRow) time.Time {
	from := v.createdAt.Add(p.VerifyWithin)
	if v.until.After(from) {
		from = v.until
	}
	return from.Add(waitsForVerifier)
}

// lapse offers a verification again whose lease has ended without a verdict, the later the
// more often it has.
func (p *Plane) lapse(tx journal.Tx, v verificationRow, now time.Time, reason string) error {
	who := v.verifier
	v.lapses++
	v.state, v.verifier, v.boot, v.leaseUntil = AwaitsVerifier, "", "", time.Time{}
	v.notBefore = now.Add(min(time.Second<<min(v.lapses-1, 8), p.VerifyWithin))
	switch {
	case v.stands == VerifierUnavailable:
		v.dueAt = p.closes(v)
	case v.lapses >= lapsesBearable:
		v.dueAt = now
	default:
		v.dueAt = v.deadline
	}
	if err := v.write(tx); err != nil {
		return err
	}
	p.sooner(v.notBefore)
	p.sooner(v.dueAt)
	return v.record(tx, "verification.lapsed", map[string]any{"of": who, "fence": v.fence, "lapses": v.lapses, "reason": reason})
}

// lapseVerifications ends the leases on verifications that verifier has, or anybody if that
// is "", at once: its boot has ended, or the leases are of a term that has. They are
// offered again.
func (p *Plane) lapseVerifications(tx journal.Tx, verifier ops.IdentityID, reason string) error {
	where, args := `v.state = 'LEASED'`, []any(nil)
	if verifier != "" {
		where, args = where+` AND v.verifier = $1`, []any{string(verifier)}
	}
	list, err := selectVerifications(tx, where+` ORDER BY v.verifier, v.id`, args...)
	if err != nil {
		return err
	}
	for _, v := range list {
		if err := p.lapse(tx, v, tx.Now(), reason); err != nil {
			return err
		}
	}
	return nil
}
