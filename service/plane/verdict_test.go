package plane

import (
	"bytes"
	"testing"
	"time"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// send uploads a file of g's run.
func (g *tenure) send(name, content string) wire.File {
	t, y := g.hand.y.t, g.hand.y
	t.Helper()
	f := wire.File{Name: name, Digest: wire.Digest([]byte(content)), Bytes: int64(len(content)), Kind: "text/plain"}
	envelope, _, err := wire.Seal(g.hand.key, wire.KindUpload, wire.Upload{Run: g.Run, Worker: g.hand.who.ID, Boot: g.hand.boot, File: f})
	if err != nil {
		t.Fatal(err)
	}
	u, err := y.plane.Upload(t.Context(), g.hand.who, envelope)
	if err == nil && !u.Done {
		u, err = y.plane.Append(t.Context(), g.hand.who, u.Upload, u.Offset, bytes.NewReader([]byte(content)[u.Offset:]))
	}
	if err != nil || !u.Done {
		t.Fatalf("upload of %s: %+v %v", name, u, err)
	}
	return f
}

// attest hands in an attestation of f.
func (g *tenure) attest(f wire.File) {
	t := g.hand.y.t
	t.Helper()
	statement := artifacts.NewStatement(f.Name, artifacts.Digest(f.Digest), artifacts.Predicate{
		Source: artifacts.Source{Revision: g.Source.Revision, Worktree: g.Source.Worktree}, Producer: g.hand.who.ID, Run: g.Run, Fence: g.Fence, CapturedAt: time.Now().UTC().Truncate(time.Millisecond),
	})
	payload, err := statement.Payload()
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := wire.SealBytes(g.hand.key, artifacts.AttestationType, payload)
	if err != nil {
		t.Fatal(err)
	}
	g.say(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: envelope})
}

// A file that was declared and comes after the result, with its attestation, has the result
// looked at after all.
func TestALateAttestationIsLookedAt(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)
		d := y.spawn(`{"task":"Write it.","artifacts":["a.md","b.md"]}`)
		g := smith.must(0)
		g.started()
		a, b, other := g.send("a.md", "a"), g.send("b.md", "b"), g.send("log.txt", "c")
		g.attest(a)
		result := done
		result.Files = []wire.File{a}
		g.say(wire.KindResult, result)
		y.wants(d, Succeeded, EvidenceMissing)
		if v := judge.poll(0); v != nil {
			t.Fatal("a verifier was asked")
		}
		g.attest(other)
		y.wants(d, Succeeded, EvidenceMissing)
		if n := y.number(`SELECT count(*) FROM verification`); n != 1 {
			t.Errorf("%d verifications that nobody was asked for, want 1", n)
		}
		g.attest(b)
		y.wants(d, Succeeded, Verifying)
		v := judge.must(0)
		if len(v.Result.Files) != 2 || len(v.Attested[b.Digest]) != 1 {
			t.Fatalf("grant %+v", v.Grant)
		}
		v.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: v.Result.Files})
		y.wants(d, Succeeded, Completed)
	})
}

// A verdict is refused for good, whoever has signed it, unless it is the verifier that holds
// the verification: signed by the worker, in its own name or the verifier's; signed by the
// verifier without naming the verification; signed by a verifier that is revoked.
func TestForgedVerdicts(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge, umpire := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier), y.hire("umpire", ops.Verifier)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		g.say(wire.KindResult, done)
		v := judge.must(0)
		pass := wire.Verdict{Verdict: Passed, Checked: []wire.File{}}
		as := func(h *hand, change func(*wire.Header)) error {
			header := v.Header
			header.Seq, header.Prev = 1, ""
			change(&header)
			envelope, _, err := wire.SealCallback(h.key, wire.KindVerdict, header, pass)
			if err != nil {
				t.Fatal(err)
			}
			_, err = y.plane.Callback(t.Context(), h.who, envelope)
			return err
		}
		wantFault(t, as(smith, func(*wire.Header) {}), ops.BadSignature, true)
		wantFault(t, as(smith, func(h *wire.Header) { h.Worker, h.Boot = "smith", smith.boot }), ops.BadSignature, true)
		wantFault(t, as(umpire, func(*wire.Header) {}), ops.BadSignature, true)
		wantFault(t, as(umpire, func(h *wire.Header) { h.Worker, h.Boot = "umpire", umpire.boot }), ops.StaleFence, true)
		wantFault(t, as(judge, func(h *wire.Header) { h.Verification = "" }), ops.BadRequest, true)
		wantFault(t, as(judge, func(h *wire.Header) { h.Verification = "v-other" }), ops.NotFound, true)
		y.wants(d, Succeeded, Verifying)
		if _, err := y.plane.Revoke(t.Context(), ada, "judge"); err != nil {
			t.Fatal(err)
		}
		wantFault(t, as(judge, func(*wire.Header) {}), ops.Unauthenticated, true)
		y.wants(d, Succeeded, Verifying)
		if v := umpire.must(10 * time.Second); v.Verification == "" || v.Fence <= g.Fence {
			t.Errorf("grant %+v", v.Grant)
		}
	})
}

// The plane looks after its verifications by itself: a verifier that vanishes is replaced
// within the time of a lease, and when nobody comes the delegation says so.
func TestAVerifierThatVanishesIsReplaced(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge, umpire := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier), y.hire("umpire", ops.Verifier)
		d, alone := y.spawn(""), y.spawn("")
		for range 2 {
			g := smith.must(0)
			g.started()
			g.say(wire.KindResult, done)
		}
		v := judge.must(0)
		y.exec(`UPDATE verification SET implementation = 'nobodys' WHERE delegation <> $1`, v.Delegation)
		if v.Delegation != d {
			d, alone = alone, d
		}
		next := umpire.must(y.plane.TTL + 10*time.Second)
		if next.Verification != v.Verification || next.Fence <= v.Fence {
			t.Fatalf("grant %+v", next.Grant)
		}
		next.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}})
		y.wants(d, Succeeded, Completed)
		y.pass(y.plane.VerifyWithin)
		y.wants(alone, Succeeded, VerifierUnavailable)
	})
}

// A restore or a new term ends what verifiers hold; they get it again under a fence of that
// term.
func TestANewTermEndsVerifications(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)
		d := y.spawn("")
		g := smith.must(0)
		g.started()
		g.say(wire.KindResult, done)
		v := judge.must(0)
		y.do(func(tx journal.Tx) error { return y.plane.Restored(tx) })
		_, err := v.try(wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}})
		wantFault(t, err, ops.StaleFence, true)
		y.wants(d, Succeeded, Verifying)
		y.pass(2 * time.Minute)
		again := judge.must(time.Minute)
		if again.Fence>>termBits <= v.Fence>>termBits {
			t.Errorf("fences %d and %d", v.Fence, again.Fence)
		}
		again.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Checked: []wire.File{}})
		y.wants(d, Succeeded, Completed)
	})
}
