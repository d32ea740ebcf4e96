package plane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// Bounds of what a callback says.
const (
	maxWords = 4 << 10 // bytes of a summary, a question, a reason
	maxFiles = 256     // in one message
	maxAlive = 256     // processes in one message
	maxShort = 128     // bytes of a name or a digest that is shown as it is
)

// A run may say manyMessages at once (it leaves at most 4096 files, each of which it
// attests), and paceMessages more in each time of a heartbeat: so what one worker can write
// is bounded, however fast it is. A verification may say manyJudging.
const (
	manyMessages = 8192
	manyJudging  = 256
	paceMessages = 4
)

// lastWord reports whether the lease is over once k has been taken, so that it comes once.
func lastWord(k wire.Kind) bool {
	return k == wire.KindResult || k == wire.KindCancelProof || k == wire.KindHumanWait || k == wire.KindAbandoning || k == wire.KindVerdict
}

// tooOften returns a fault if message seq of what was made at since comes before its time.
func (p *Plane) tooOften(seq, many int64, since, now time.Time) *ops.Fault {
	each := p.Heartbeat / paceMessages
	wait := time.Duration(min(max(seq-many, 0), 1<<30))*each - now.Sub(since)
	if wait <= 0 {
		return nil
	}
	return ops.Faultf(ops.RateLimited, "it has said %d messages, of %d and %d in each %s; nothing was taken, say this again later", seq-1, many, paceMessages, p.Heartbeat).
		With("retry_after", max(1, int64(wait/time.Second)))
}

// Callback takes what a worker or verifier says, signed. by is whom its bearer token proves.
//
// What is refused for good has details.final. A message that was accepted before is answered
// as it was then. One that speaks for a lease that is over is kept as evidence, decides
// nothing, and is StaleFence. When the store cannot write, nothing has happened and the
// fault is retryable.
func (p *Plane) Callback(ctx context.Context, by ops.Identity, envelope []byte) (wire.Ack, error) {
	m, err := p.heardFrom(ctx, by, envelope)
	if err != nil {
		p.refused(err)
		return wire.Ack{}, err
	}
	if pressing(m.Kind) {
		ctx = journal.Urgent(ctx)
	}
	for {
		if err := p.settleClock(ctx); err != nil {
			return wire.Ack{}, stored(err)
		}
		var ack wire.Ack
		var fault *ops.Fault
		err := p.store.Update(ctx, func(tx journal.Tx) error {
			ack, fault = wire.Ack{}, nil
			if p.jumped() {
				return errJumped
			}
			who, known, err := p.principal(tx, m.Header.Worker)
			if err != nil {
				return err
			}
			if !known || who.revoked || who.identity() != by {
				return final(ops.Unauthenticated, "%s is no worker, or is revoked", by)
			}
			if m.Header.Verification != "" {
				ack, fault, err = p.verifierCallback(tx, m, who)
			} else {
				ack, fault, err = p.callback(tx, m, who)
			}
			if err != nil || fault != nil || ack.Replayed {
				return err
			}
			return p.seen(tx, who, m)
		})
		switch {
		case errors.Is(err, errJumped), errors.Is(err, ErrStaleRow):
			continue
		case err == nil && fault != nil:
			err = fault
		}
		if err != nil {
			err = stored(err)
			p.refused(err)
			return wire.Ack{}, err
		}
		if m.Kind == wire.KindVerdict {
			failpoint.Here("plane.verdict-taken")
		}
		failpoint.Here("plane.callback-taken")
		p.counts.add("callbacks", string(m.Kind), 1)
		return ack, nil
	}
}

// pressing reports whether messages of kind k go before others into the store: those that a
// lease lives by, and those that say that nothing runs any more. None of them comes often.
func pressing(k wire.Kind) bool {
	switch k {
	case wire.KindHeartbeat, wire.KindCancelAck, wire.KindCancelFailed, wire.KindCancelProof, wire.KindAbandoning:
		return true
	}
	return false
}

// refused counts a callback that was refused.
func (p *Plane) refused(err error) {
	if f := (*ops.Fault)(nil); errors.As(err, &f) {
		p.counts.add("callbacks_refused", string(f.Code), 1)
	}
}

// heardFrom opens an envelope and proves who says it. Nothing of the store is written.
func (p *Plane) heardFrom(ctx context.Context, by ops.Identity, envelope []byte) (wire.Message, error) {
	s, err := wire.Read(envelope, wire.MaxPayload)
	if err != nil {
		p.counts.add("auth_rejected", "", 1)
		return wire.Message{}, final(ops.BadRequest, "%v", err)
	}
	m, err := s.Callback()
	if err != nil {
		p.counts.add("auth_rejected", "", 1)
		return wire.Message{}, final(ops.BadRequest, "%v", err)
	}
	if _, err := p.proved(ctx, s, m.Header.Worker); err != nil {
		return wire.Message{}, err
	}
	if m.Header.Worker != by.ID {
		return wire.Message{}, p.badSignature("the message is signed by another one than the token is of")
	}
	if err := wellSaid(m); err != nil {
		return wire.Message{}, final(ops.BadRequest, "%s: %v", m.Kind, err)
	}
	return m, nil
}

// wellSaid refuses a body that its kind cannot have, so that it can be read blindly later.
func wellSaid(m wire.Message) error {
	if m.Header.Seq < 1 {
		return fmt.Errorf("sequence %d: want one that counts from 1", m.Header.Seq)
	}
	read := func(v any) error { return wire.Strict(m.Body, v) }
	switch m.Kind {
	case wire.KindStarted:
		var b wire.Started
		return errors.Join(read(&b), process(b.Process))
	case wire.KindHeartbeat:
		var b wire.Heartbeat
		return errors.Join(read(&b), process(b.Process), atMost("note", b.Note))
	case wire.KindCheckpoint:
		var b wire.Checkpoint
		return errors.Join(read(&b), files(b.Files), atMost("note", b.Note))
	case wire.KindResult:
		var b wire.Result
		if err := errors.Join(read(&b), files(b.Files), atMost("summary", b.Summary)); err != nil {
			return err
		}
		if !line(b.Worktree, maxShort) {
			return fmt.Errorf("the worktree: want one line of at most %d bytes", maxShort)
		}
		if c := Class(b.Class); c != "" && c != TaskFailed && c != WorkerLost && c != UnknownExternal {
			return fmt.Errorf("the class %q: want task_failed, worker_lost or unknown_external", b.Class)
		}
		return nil
	case wire.KindHumanWait:
		var b wire.HumanWait
		if err := errors.Join(read(&b), atMost("question", b.Question)); err != nil {
			return err
		}
		if strings.TrimSpace(b.Question) == "" {
			return errors.New("no question, and nobody could answer it")
		}
		return nil
	case wire.KindCancelAck:
		return read(&wire.CancelAck{})
	case wire.KindCancelFailed:
		var b wire.CancelFailed
		return errors.Join(read(&b), atMost("reason", b.Reason))
	case wire.KindCancelProof:
		var b wire.CancelProof
		return errors.Join(read(&b), processes(b.Live))
	case wire.KindAbandoning:
		var b wire.Abandoning
		return errors.Join(read(&b), processes(b.Live), atMost("reason", b.Reason))
	case wire.KindMutationIntended:
		var b wire.MutationIntended
		return errors.Join(read(&b), atMost("action", b.Action))
	case wire.KindMutationProved:
		var b wire.MutationProved
		return errors.Join(read(&b), atMost("proof", b.Proof))
	case wire.KindAttest:
		return read(&wire.Attest{})
	case wire.KindVerdict:
		var b wire.Verdict
		if m.Header.Verification == "" {
			return errors.New("a verdict is of a verification, which the header must name")
		}
		return errors.Join(read(&b), files(b.Checked), atMost("output", b.Output), atMost("reason", b.Reason))
	}
	return fmt.Errorf("there is no %s", m.Kind)
}

func atMost(what, s string) error {
	if len(s) > maxWords {
		return fmt.Errorf("a %s of %d bytes: want at most %d", what, len(s), maxWords)
	}
	return nil
}

// process refuses one that cannot be named, nil being none.
func process(p *wire.Process) error {
	if p != nil && (p.PID < 0 || !line(p.Start, maxShort)) {
		return fmt.Errorf("the process %d: want a number from 0, and a start that is one line of at most %d bytes", p.PID, maxShort)
	}
	return nil
}

func processes(list []wire.Process) error {
	if len(list) > maxAlive {
		return fmt.Errorf("%d processes: want at most %d, which say enough", len(list), maxAlive)
	}
	for _, p := range list {
		if err := process(&p); err != nil {
			return err
		}
	}
	return nil
}

// files refuses names and digests that cannot be.
func files(list []wire.File) error {
	if len(list) > maxFiles {
		return fmt.Errorf("%d files: want at most %d", len(list), maxFiles)
	}
	seen := make(map[string]bool, len(list))
	for _, f := range list {
		switch {
		case artifacts.CheckName(f.Name) != nil:
			return fmt.Errorf("the file %s: want a clean relative path of at most %d bytes, without what cannot be seen", shown(f.Name), artifacts.MaxName)
		case !artifacts.Digest(f.Digest).Valid():
			return fmt.Errorf("the digest %s: want sha256: and 64 lower-case hex digits", shown(f.Digest))
		case f.Bytes < 0 || !line(f.Kind, 128):
			return fmt.Errorf("the file %s: a length below 0, or a kind that is not one line of at most 128 bytes", shown(f.Name))
		case seen[f.Name]:
			return fmt.Errorf("the file %s comes twice", shown(f.Name))
		}
		seen[f.Name] = true
	}
	return nil
}

// callback takes a worker's message, in its transaction. A fault is committed with the
// evidence that it leaves; an error is not.
func (p *Plane) callback(tx journal.Tx, m wire.Message, who principalRow) (ack wire.Ack, fault *ops.Fault, err error) {
	h, err := p.load(tx, m.Header.Delegation, m.Header.Run)
	if err != nil {
		return ack, nil, finally(err)
	}
	h.said = &m
	if h.run.dispatch != m.Header.Dispatch || h.run.implementation != m.Header.Implementation {
		return ack, final(ops.NotFound, "run %s is of another dispatch or implementation", h.run.run), nil
	}
	if m.Header.Seq <= h.run.seq {
		before, _, err := p.replayed(tx, m)
		if err != nil {
			return ack, nil, err
		}
		if before != nil {
			return *before, nil, nil
		}
	}
	if m.Header.Seq == h.run.seq+1 && !lastWord(m.Kind) {
		if fault := p.tooOften(m.Header.Seq, manyMessages, h.run.createdAt, tx.Now()); fault != nil {
			return ack, fault, nil
		}
	}
	e, err := p.eventOf(tx, h, m, who)
	if err != nil {
		return ack, nil, err
	}
	// A lease that ends with the deadline has not lapsed: its worker is told to stop.
	if at, kind := Due(h.snap, p.Stall); kind == OnDeadlinePassed && !at.After(tx.Now()) {
		if _, err := p.apply(tx, h, p.own(h, kind)); err != nil {
			return ack, nil, err
		}
	}
	fault, err = p.apply(tx, h, e)
	if err != nil || fault != nil {
		return ack, fault, err
	}
	if err := p.follows(tx, h, m, who); err != nil {
		return ack, nil, err
	}
	ack = p.ack(h, m, who, tx.Now())
	return ack, nil, p.keepCallback(tx, m, ack)
}

// eventOf is what m means to Step.
func (p *Plane) eventOf(tx journal.Tx, h *held, m wire.Message, who principalRow) (Event, error) {
	e := Event{Worker: who.id, Boot: m.Header.Boot, Fence: m.Header.Fence, Seq: m.Header.Seq, Prev: m.Header.Prev, Digest: m.Digest, Recover: p.Recover}
	if who.plane != Off {
		e.Lease = p.TTL
	}
	stored := func(list []wire.File) error {
		missing, err := p.attested(tx, h.run.run, list)
		e.Stored = len(missing) == 0
		return err
	}
	switch m.Kind {
	case wire.KindStarted:
		e.Kind = OnStarted
	case wire.KindHeartbeat:
		b := decoded[wire.Heartbeat](m.Body)
		e.Kind, e.Alive, e.Progress = OnHeartbeat, b.Alive, b.Progress
	case wire.KindCheckpoint:
		b := decoded[wire.Checkpoint](m.Body)
		e.Kind, e.Progress = OnCheckpoint, b.Progress
		return e, stored(b.Files)
	case wire.KindResult:
		b := decoded[wire.Result](m.Body)
		e.Kind, e.Succeeded, e.Class = OnResult, b.Succeeded, Class(b.Class)
		return e, stored(b.Files)
	case wire.KindHumanWait:
		e.Kind = OnHumanWait
	case wire.KindCancelAck:
		e.Kind = OnCancelAck
	case wire.KindCancelFailed:
		e.Kind = OnCancelFailed
	case wire.KindCancelProof:
		b := decoded[wire.CancelProof](m.Body)
		e.Kind, e.Live, e.Checks = OnCancelProof, len(b.Live), b.Checks
	case wire.KindAbandoning:
		b := decoded[wire.Abandoning](m.Body)
		e.Kind, e.Live = OnAbandoning, len(b.Live)
	case wire.KindMutationIntended:
		e.Kind = OnMutationIntended
	case wire.KindMutationProved:
		e.Kind = OnMutationProved
	case wire.KindAttest:
		e.Kind = OnArtifactAttested
	}
	return e, nil
}

// follows does what an accepted message asks for beside its step. A fault of it is an error:
// then nothing of the message holds.
func (p *Plane) follows(tx journal.Tx, h *held, m wire.Message, who principalRow) error {
	var fault *ops.Fault
	var err error
	switch m.Kind {
	case wire.KindCheckpoint:
		return leave(tx, h.run.run, decoded[wire.Checkpoint](m.Body).Files)
	case wire.KindResult:
		return leave(tx, h.run.run, decoded[wire.Result](m.Body).Files)
	case wire.KindMutationIntended:
		fault, err = p.intend(tx, h, decoded[wire.MutationIntended](m.Body))
	case wire.KindMutationProved:
		fault, err = p.prove(tx, h, decoded[wire.MutationProved](m.Body))
	case wire.KindAttest:
		if fault, err = p.attest(tx, h, decoded[wire.Attest](m.Body), who); err == nil && fault == nil {
			err = p.lookAgain(tx, h)
		}
	}
	return orFault(fault, err)
}

// leave writes which files a run has left: of those that it names, the ones whose bytes have
// come from it. What it names beside them is nothing, and opens nobody's bytes to it.
func leave(tx journal.Tx, run string, list []wire.File) error {
	for _, f := range list {
		if _, err := tx.Exec(`INSERT INTO run_file (run, name, digest, bytes, kind, at) SELECT $1, $2, $3, $4, $5, $6
				WHERE EXISTS (SELECT 1 FROM artifact WHERE run = $1 AND name = $2 AND digest = $3 AND bytes = $4)
				ON CONFLICT (run, name, digest) DO UPDATE SET at = excluded.at`, // it is again what it was
			run, f.Name, f.Digest, f.Bytes, f.Kind, tx.Now().UnixMilli()); err != nil {
			return err
		}
	}
	return nil
}

// ack is the answer to a message that was accepted.
func (p *Plane) ack(h *held, m wire.Message, who principalRow, now time.Time) wire.Ack {
	r := h.snap.Run
	a := wire.Ack{Subject: h.run.run, Seq: m.Header.Seq, Digest: m.Digest, State: string(r.State), Drain: !who.offered()}
	if !r.State.HasLease() {
		a.Final = true
		return a
	}
	a.LeaseMS = r.LeaseUntil.Sub(now).Milliseconds()
	if r.State == CancelRequested {
		a.Cancel, a.Reason = true, r.Reason
		if !r.CancelDeadline.IsZero() {
			a.CancelMS = max(1, r.CancelDeadline.Sub(now).Milliseconds())
		}
	}
	return a
}

// seen keeps when a worker was last heard and how far its clock is off, not more often than
// it is worth.
func (p *Plane) seen(tx journal.Tx, who principalRow, m wire.Message) error {
	now := tx.Now()
	skew := m.Header.SentAt.Sub(now).Truncate(time.Second)
	if m.Header.SentAt.IsZero() {
		skew = 0
	}
	if now.Sub(who.seenAt) < p.Heartbeat/2 && (skew-who.skew).Abs() <= time.Second {
		return nil
	}
	skew = min(max(skew, -100*365*24*time.Hour), 100*365*24*time.Hour)
	_, err := tx.Exec(`UPDATE principal SET seen_at = $1, skew_ms = $2 WHERE id = $3`, now.UnixMilli(), skew.Milliseconds(), string(who.id))
	return err
}
