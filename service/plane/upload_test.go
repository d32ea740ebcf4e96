package plane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// announce announces content as a file of run, signed by h.
func (h *hand) announce(run, name, content string, change ...func(*wire.Upload)) (wire.Uploading, error) {
	h.y.t.Helper()
	m := wire.Upload{Run: run, Worker: h.who.ID, Boot: h.boot,
		File: wire.File{Name: name, Digest: wire.Digest([]byte(content)), Bytes: int64(len(content)), Kind: "text/plain"}}
	for _, f := range change {
		f(&m)
	}
	envelope, _, err := wire.Seal(h.key, wire.KindUpload, m)
	if err != nil {
		h.y.t.Fatal(err)
	}
	return h.y.plane.Upload(h.y.t.Context(), h.who, envelope)
}

// upload brings content as a file of g's run.
func (g *tenure) upload(name, content string) wire.File {
	h := g.hand
	h.y.t.Helper()
	up, err := h.announce(g.Run, name, content)
	if err == nil && !up.Done {
		up, err = h.y.plane.Append(h.y.t.Context(), h.who, up.Upload, up.Offset, strings.NewReader(content[up.Offset:]))
	}
	if err != nil || !up.Done {
		h.y.t.Fatalf("upload of %s by %s: %+v, %v", name, h.who.ID, up, err)
	}
	return wire.File{Name: name, Digest: wire.Digest([]byte(content)), Bytes: int64(len(content)), Kind: "text/plain"}
}

// statement is what the worker of g would say of f.
func (g *tenure) statement(f wire.File) artifacts.Statement {
	return artifacts.NewStatement(f.Name, artifacts.Digest(f.Digest), artifacts.Predicate{
		Source:   artifacts.Source{Revision: g.Source.Revision, Worktree: g.Source.Worktree},
		Producer: g.hand.who.ID, Run: g.Run, Fence: g.Fence, Test: &artifacts.Test{Command: []string{"make", "check"}}, CapturedAt: time.Now(),
	})
}

// sealed is s as by signs it.
func (h *hand) sealed(s artifacts.Statement) json.RawMessage {
	h.y.t.Helper()
	payload, err := s.Payload()
	if err != nil {
		h.y.t.Fatal(err)
	}
	b, err := wire.SealBytes(h.key, artifacts.AttestationType, payload)
	if err != nil {
		h.y.t.Fatal(err)
	}
	return b
}

// fetched is what h gets of a digest.
func (h *hand) fetched(digest string) (string, error) {
	f, err := h.y.plane.Fetch(h.y.t.Context(), h.who, digest)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}

func codeOf(err error) ops.Code {
	var f *ops.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

func isFinal(err error) bool {
	var f *ops.Fault
	return errors.As(err, &f) && f.Details["final"] == true
}

// pb-019, principle 5: files are stored by their digest, belong to the run that left them,
// and are evidence once they are attested.
func TestFilesOfARun(t *testing.T) {
	y := newYard(t, nil)
	defer y.close()
	smith := y.hire("smith", ops.Worker)
	d := y.spawn(`{"task":"Write a report.","source":{"revision":"v1"}}`)
	g := smith.must(0)
	g.started()
	content := strings.Repeat("all is well\n", 1000)
	up, err := smith.announce(g.Run, "out/report.txt", content)
	if err != nil || up.Offset != 0 || up.Done {
		t.Fatalf("announced: %+v, %v", up, err)
	}
	if up, err = y.plane.Append(t.Context(), smith.who, up.Upload, 0, strings.NewReader(content[:5000])); err != nil || up.Offset != 5000 || up.Done {
		t.Fatalf("a piece: %+v, %v", up, err)
	}
	_, err = y.plane.Append(t.Context(), smith.who, up.Upload, 0, strings.NewReader(content))
	if f := (*ops.Fault)(nil); !errors.As(err, &f) || f.Code != ops.OutOfSequence || f.Details["expected"] != int64(5000) || isFinal(err) {
		t.Errorf("from the beginning again: %v", err)
	}
	y.reopen()
	if up, err = smith.announce(g.Run, "out/report.txt", content); err != nil || up.Offset != 5000 {
		t.Fatalf("after a restart: %+v, %v", up, err)
	}
	if got, err := y.plane.Uploaded(t.Context(), smith.who, up.Upload); err != nil || got != up {
		t.Errorf("asked: %+v, %v; want %+v", got, err, up)
	}
	file := wire.File{Name: "out/report.txt", Digest: wire.Digest([]byte(content)), Bytes: int64(len(content)), Kind: "text/plain"}
	attest := wire.Attest{Name: file.Name, Digest: file.Digest, Envelope: smith.sealed(g.statement(file))}
	if _, err := g.try(wire.KindAttest, attest); codeOf(err) != ops.NoEvidence {
		t.Errorf("attested before it is there: %v", err)
	}
	if up, err = y.plane.Append(t.Context(), smith.who, up.Upload, 5000, strings.NewReader(content[5000:])); err != nil || !up.Done {
		t.Fatalf("the rest: %+v, %v", up, err)
	}
	if _, err := g.try(wire.KindCheckpoint, wire.Checkpoint{Progress: 1, Files: []wire.File{file}}); err == nil {
		t.Error("a file that is not attested is checkpointed")
	}
	g.say(wire.KindAttest, attest)
	g.say(wire.KindCheckpoint, wire.Checkpoint{Progress: 1, Files: []wire.File{file}})
	y.wants(d, Checkpointed, Open)
	owner := y.text(`SELECT owner_id || ' ' || run || ' ' || delegation || ' ' || producer FROM artifact WHERE digest = $1`, file.Digest)
	if want := fmt.Sprintf("ada %s %s smith", g.Run, d); owner != want {
		t.Errorf("the artifact is of %s, want %s", owner, want)
	}
	if got, err := smith.fetched(file.Digest); err != nil || got != content {
		t.Errorf("smith fetches %d bytes, %v", len(got), err)
	}
}

// Who has, or had, the run may send files of it, and nobody else; nothing is taken of a
// delegation that is closed.
func TestUploadsOfOthers(t *testing.T) {
	y := newYard(t, nil)
	defer y.close()
	smith, jones, judge := y.hire("smith", ops.Worker), y.hire("jones", ops.Worker), y.hire("judge", ops.Verifier)
	d := y.spawn("")
	g := smith.must(0)
	up, err := smith.announce(g.Run, "a", "first")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		by     *hand
		change func(*wire.Upload)
		want   ops.Code
	}{
		"another worker":    {jones, nil, ops.NotFound},
		"a verifier":        {judge, nil, ops.NotFound},
		"in another's name": {jones, func(m *wire.Upload) { m.Worker = "smith"; m.Boot = smith.boot }, ops.BadSignature},
		"another boot":      {smith, func(m *wire.Upload) { m.Boot = "01ARZ3NDEKTSV4RRFFQ69G5FAV" }, ops.StaleFence},
		"no such run":       {smith, func(m *wire.Upload) { m.Run = "r-none" }, ops.NotFound},
		"a path":            {smith, func(m *wire.Upload) { m.File.Name = "../../etc/passwd" }, ops.InvalidParams},
		"no digest":         {smith, func(m *wire.Upload) { m.File.Digest = "../journal.db" }, ops.InvalidParams},
		"another size":      {smith, func(m *wire.Upload) { m.File.Name, m.File.Bytes = "a", 6 }, ops.InvalidParams},
		"less than nothing": {smith, func(m *wire.Upload) { m.File.Bytes = -1 }, ops.InvalidParams},
	} {
		change := tc.change
		if change == nil {
			change = func(*wire.Upload) {}
		}
		if got, err := tc.by.announce(g.Run, "a", "first", change); codeOf(err) != tc.want || !isFinal(err) {
			t.Errorf("%s: %+v, %v; want %s, final", name, got, err, tc.want)
		}
	}
	// The token is another's than the envelope's.
	envelope, _, err := wire.Seal(smith.key, wire.KindUpload, wire.Upload{Run: g.Run, Worker: "smith", Boot: smith.boot, File: wire.File{Name: "b", Digest: wire.Digest(nil)}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := y.plane.Upload(t.Context(), jones.who, envelope); codeOf(err) != ops.Unauthenticated {
		t.Errorf("with another's token: %+v, %v", got, err)
	}
	if got, err := y.plane.Upload(t.Context(), smith.who, envelope[:len(envelope)-5]); codeOf(err) != ops.BadRequest || !isFinal(err) {
		t.Errorf("cut off: %+v, %v", got, err)
	}
	for _, by := range []*hand{jones, judge} {
		if got, err := y.plane.Append(t.Context(), by.who, up.Upload, 0, strings.NewReader("first")); err == nil {
			t.Errorf("%s sends of it: %+v", by.who, got)
		}
		if got, err := y.plane.Uploaded(t.Context(), by.who, up.Upload); err == nil {
			t.Errorf("%s asks of it: %+v", by.who, got)
		}
	}
	// Other bytes than those of the digest are refused for good.
	if got, err := y.plane.Append(t.Context(), smith.who, up.Upload, 0, strings.NewReader("third")); codeOf(err) != ops.InvalidParams || !isFinal(err) {
		t.Errorf("other bytes: %+v, %v", got, err)
	}
	if got, err := y.plane.Append(t.Context(), smith.who, up.Upload, 0, strings.NewReader("first")); codeOf(err) != ops.NotFound || isFinal(err) {
		t.Errorf("to an upload that is gone: %+v, %v", got, err)
	}
	g.upload("a", "first")
	// A worker that begins again may send what it has left.
	smith.reboot()
	g.upload("b", "second")
	if _, err := y.plane.CancelDelegation(t.Context(), ada, d, CancelRequest{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	y.exec(`UPDATE delegation SET closed_at = 1 WHERE id = $1`, d)
	if got, err := smith.announce(g.Run, "c", "third"); codeOf(err) != ops.Conflict || !isFinal(err) {
		t.Errorf("of a closed delegation: %+v, %v", got, err)
	}
}

// An attestation counts if it is the worker's own, in the one form, of just these bytes,
// this run and this source. What is refused leaves nothing.
func TestAttestationRefused(t *testing.T) {
	y := newYard(t, nil)
	defer y.close()
	smith, jones := y.hire("smith", ops.Worker), y.hire("jones", ops.Worker)
	y.spawn(`{"task":"Write a report.","source":{"revision":"v1","worktree":"h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}}`)
	g := smith.must(0)
	g.started()
	f, other := g.upload("report", "fine"), g.upload("other", "poor")
	statement := func(change func(*artifacts.Statement)) artifacts.Statement {
		s := g.statement(f)
		change(&s)
		return s
	}
	good, err := g.statement(f).Payload()
	if err != nil {
		t.Fatal(err)
	}
	raw := func(payloadType string, payload []byte) json.RawMessage {
		b, err := wire.SealBytes(smith.key, payloadType, payload)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	whole := smith.sealed(g.statement(f))
	for name, tc := range map[string]struct {
		envelope json.RawMessage
		want     ops.Code
	}{
		"another's key":      {jones.sealed(g.statement(f)), ops.BadSignature},
		"another digest":     {smith.sealed(g.statement(wire.File{Name: f.Name, Digest: other.Digest})), ops.InvalidParams},
		"another name":       {smith.sealed(g.statement(wire.File{Name: "other", Digest: f.Digest})), ops.InvalidParams},
		"another producer":   {smith.sealed(statement(func(s *artifacts.Statement) { s.Predicate.Producer = "jones" })), ops.InvalidParams},
		"another run":        {smith.sealed(statement(func(s *artifacts.Statement) { s.Predicate.Run = "r-1" })), ops.InvalidParams},
		"another fence":      {smith.sealed(statement(func(s *artifacts.Statement) { s.Predicate.Fence++ })), ops.InvalidParams},
		"another revision":   {smith.sealed(statement(func(s *artifacts.Statement) { s.Predicate.Source.Revision = "v2" })), ops.InvalidParams},
		"another worktree":   {smith.sealed(statement(func(s *artifacts.Statement) { s.Predicate.Source.Worktree = "" })), ops.InvalidParams},
		"another type":       {raw("application/json", good), ops.InvalidParams},
		"a message":          {raw(wire.KindResult.PayloadType(), good), ops.InvalidParams},
		"a space more":       {raw(artifacts.AttestationType, append([]byte(" "), good...)), ops.InvalidParams},
		"a cut statement":    {raw(artifacts.AttestationType, good[:len(good)-1]), ops.InvalidParams},
		"a long one":         {raw(artifacts.AttestationType, bytes.Repeat([]byte("x"), artifacts.MaxStatement+1)), ops.InvalidParams},
		"not an envelope":    {json.RawMessage(`{"_type":"https://in-toto.io/Statement/v1"}`), ops.InvalidParams},
		"no signature":       {json.RawMessage(strings.Replace(string(whole), `"sig":"`, `"sig":"AA`, 1)), ops.BadSignature},
		"nothing in between": {json.RawMessage(`{}`), ops.InvalidParams},
	} {
		seq := g.seq
		if _, err := g.try(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: tc.envelope}); codeOf(err) != tc.want || !isFinal(err) {
			t.Errorf("%s: %v, want %s, final", name, err, tc.want)
		}
		if g.seq != seq {
			t.Fatalf("%s was accepted", name)
		}
	}
	if n := y.number(`SELECT count(*) FROM attestation`); n != 0 {
		t.Errorf("%d attestations are kept", n)
	}
	attest := wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: whole}
	g.say(wire.KindAttest, attest)
	g.say(wire.KindAttest, attest) // again, and it is the same one
	if n := y.number(`SELECT count(*) FROM attestation`); n != 1 {
		t.Errorf("%d attestations are kept, want one", n)
	}
	if y.text(`SELECT key_id FROM attestation`) != y.text(`SELECT key_id FROM principal WHERE id = 'smith'`) {
		t.Error("it is kept under another key")
	}
	// A result names files that are there and attested, or it is not taken as it is.
	y.do(func(tx journal.Tx) error {
		missing, err := y.plane.attested(tx, g.Run, []wire.File{f, other, {Name: f.Name, Digest: f.Digest, Bytes: f.Bytes + 1}, {Name: "nothing", Digest: wire.Digest(nil)}})
		if d := []string{"other", "report", "nothing"}; !slices.Equal(missing, d) {
			t.Errorf("missing %q, want %q", missing, d)
		}
		return err
	})
}

// What a lease names can be fetched while it lives; to know a digest is not enough.
func TestFetch(t *testing.T) {
	y := newYard(t, nil)
	defer y.close()
	smith, jones, judge := y.hire("smith", ops.Worker), y.hire("jones", ops.Worker), y.hire("judge", ops.Verifier)
	put := func(text string, owner ops.Identity) string {
		d, size, err := y.files.Put(t.Context(), strings.NewReader(text), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		y.do(func(tx journal.Tx) error {
			return artifacts.Add(tx, artifacts.Artifact{Digest: d, Name: "source.tar", Kind: "application/x-tar", Bytes: size, Owner: owner})
		})
		return string(d)
	}
	source, secret := put("the source", ada), put("a secret", ops.Identity{ID: "other", Role: ops.Agent})
	d := y.spawn(fmt.Sprintf(`{"task":"Read it.","source":{"revision":%q},"artifacts":["report"]}`, source))
	if _, err := smith.fetched(source); codeOf(err) != ops.NotFound {
		t.Errorf("before there is a lease: %v", err)
	}
	g := smith.must(0)
	g.started()
	for _, tc := range []struct {
		by     *hand
		digest string
		want   ops.Code
	}{
		{smith, source, ""}, {smith, secret, ops.NotFound}, {jones, source, ops.NotFound}, {judge, source, ops.NotFound},
		{smith, "sha256:..", ops.NotFound}, {smith, "../journal.db", ops.NotFound}, {smith, wire.Digest([]byte("nothing")), ops.NotFound},
	} {
		if got, err := tc.by.fetched(tc.digest); codeOf(err) != tc.want || tc.want == "" && got != "the source" {
			t.Errorf("%s fetches %s: %q, %v; want %s", tc.by.who.ID, tc.digest, got, err, tc.want)
		}
	}
	if _, err := y.plane.Fetch(t.Context(), ada, source); codeOf(err) != ops.NotFound {
		t.Errorf("who is no worker: %v", err)
	}
	f := g.upload("report", "all is well")
	g.say(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: smith.sealed(g.statement(f))})
	if _, err := judge.fetched(f.Digest); codeOf(err) != ops.NotFound {
		t.Errorf("before it is to be verified: %v", err)
	}
	g.say(wire.KindResult, wire.Result{Succeeded: true, Summary: "done", Files: []wire.File{f}})
	y.wants(d, Succeeded, Verifying)
	v := judge.must(0)
	for _, digest := range []string{source, f.Digest} {
		if _, err := judge.fetched(digest); err != nil {
			t.Errorf("the verifier: %v", err)
		}
		if _, err := jones.fetched(digest); codeOf(err) != ops.NotFound {
			t.Errorf("another worker: %v", err)
		}
	}
	if len(v.Attested[f.Digest]) != 1 {
		t.Errorf("the grant has %d attestations", len(v.Attested[f.Digest]))
	}
	if _, err := smith.fetched(source); codeOf(err) != ops.NotFound {
		t.Errorf("after the lease: %v", err)
	}
	if got, err := smith.fetched(f.Digest); err != nil || got != "all is well" {
		t.Errorf("what its own run has left: %q, %v", got, err)
	}
	judge.reboot()
	if _, err := judge.fetched(f.Digest); codeOf(err) != ops.NotFound {
		t.Errorf("after its boot: %v", err)
	}
	if _, err := y.plane.Revoke(t.Context(), ada, "smith"); err != nil {
		t.Fatal(err)
	}
	if _, err := smith.fetched(f.Digest); codeOf(err) != ops.NotFound {
		t.Errorf("revoked: %v", err)
	}
}

// Nobody has work done on bytes that it may not read itself.
func TestSourceOfOthers(t *testing.T) {
	y := newYard(t, nil)
	defer y.close()
	d := artifacts.Digest(wire.Digest([]byte("secret")))
	scout := ops.Identity{ID: "scout", Role: ops.Agent}
	y.do(func(tx journal.Tx) error {
		if err := artifacts.Add(tx, artifacts.Artifact{Digest: d, Name: "x", Kind: "text/plain", Bytes: 6, Owner: scout}); err != nil {
			return err
		}
		for _, tc := range []struct {
			by       ops.Identity
			revision string
			refused  bool
		}{
			{scout, string(d), false}, {ada, string(d), false}, {ops.Identity{ID: "other", Role: ops.Agent}, string(d), true},
			{scout, wire.Digest(nil), true}, {scout, "main", false}, {scout, "sha256:short", false},
		} {
			fault, err := y.plane.maySource(tx, tc.by, tc.revision)
			if err != nil {
				return err
			}
			if (fault != nil) != tc.refused {
				t.Errorf("%s on %s: %v", tc.by, tc.revision, fault)
			}
		}
		return nil
	})
}

// What a run has left, and what work is done on, is not collected.
func TestReferenced(t *testing.T) {
	y := newYard(t, nil)
	defer y.close()
	smith := y.hire("smith", ops.Worker)
	y.spawn(`{"task":"x","source":{"revision":"main"}}`)
	g := smith.must(0)
	g.started()
	f := g.upload("report", "fine")
	g.say(wire.KindAttest, wire.Attest{Name: f.Name, Digest: f.Digest, Envelope: smith.sealed(g.statement(f))})
	g.say(wire.KindCheckpoint, wire.Checkpoint{Progress: 1, Files: []wire.File{f}})
	source, nothing := wire.Digest([]byte("source")), wire.Digest([]byte("nothing"))
	y.exec(`UPDATE delegation SET revision = $1`, source)
	y.do(func(tx journal.Tx) error {
		named, err := Referenced(tx, []artifacts.Digest{artifacts.Digest(f.Digest), artifacts.Digest(source), artifacts.Digest(nothing)})
		if !named[artifacts.Digest(f.Digest)] || !named[artifacts.Digest(source)] || named[artifacts.Digest(nothing)] {
			t.Errorf("named: %v", named)
		}
		return err
	})
}
