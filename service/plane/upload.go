package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"inband/failpoint"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// uploads takes the bytes of runs.
func (p *Plane) uploads() artifacts.Uploads {
	return artifacts.Uploads{Journal: p.store, Files: p.artifacts}
}

// uploading is what a worker is told of an upload.
func uploading(u artifacts.Upload) wire.Uploading {
	return wire.Uploading{Upload: string(u.ID), Offset: u.Received, Done: u.Done}
}

// Upload announces bytes of a run, or goes on with those that were announced before: a
// signed wire.Upload of the worker that has the run, or had it. They belong to whom the
// delegation belongs to, and to that run alone, whatever its state is; but once the
// delegation is closed nothing is taken any more. by is who the bearer token proves.
func (p *Plane) Upload(ctx context.Context, by ops.Identity, envelope []byte) (wire.Uploading, error) {
	var m wire.Upload
	s, err := opened(envelope, wire.KindUpload, &m)
	if err != nil {
		return wire.Uploading{}, err
	}
	if _, err := p.proved(ctx, s, m.Worker); err != nil {
		return wire.Uploading{}, err
	}
	d := artifacts.Declared{
		Digest: artifacts.Digest(m.File.Digest), Bytes: m.File.Bytes, Name: m.File.Name, Kind: m.File.Kind, Run: m.Run, Sender: m.Worker,
	}
	err = p.store.View(ctx, func(tx journal.Tx) error {
		who, known, err := p.principal(tx, m.Worker)
		if err != nil {
			return err
		}
		if f := speaks(who, known, by, m.Boot); f != nil {
			return f
		}
		var closed *int64
		found := false
		if err := tx.Query(`SELECT d.id, d.by_id, d.by_role, d.closed_at FROM dispatch x JOIN delegation d ON d.id = x.delegation WHERE x.run = $1 AND x.worker = $2`,
			func(scan func(...any) error) error {
				found = true
				return scan(&d.Delegation, (*string)(&d.Owner.ID), (*string)(&d.Owner.Role), &closed)
			}, m.Run, string(m.Worker)); err != nil {
			return err
		}
		switch {
		case !found:
			return final(ops.NotFound, "there is no run %s of %s", shown(m.Run), m.Worker)
		case closed != nil:
			return final(ops.Conflict, "the delegation %s is closed, and takes no files any more", d.Delegation)
		}
		return nil
	})
	if err != nil {
		return wire.Uploading{}, stored(err)
	}
	up, err := p.uploads().Begin(ctx, d)
	if err != nil {
		return wire.Uploading{}, uploadFault(err)
	}
	failpoint.Here("plane.upload-begun")
	return uploading(up), nil
}

// Append takes a piece of an upload of by's that begins at offset, and answers with what
// is durable then. See [artifacts.Uploads.Append].
func (p *Plane) Append(ctx context.Context, by ops.Identity, upload string, offset int64, r io.Reader) (wire.Uploading, error) {
	if f := uploads(by); f != nil {
		return wire.Uploading{}, f
	}
	up, err := p.uploads().Append(ctx, artifacts.UploadID(upload), by.ID, offset, r)
	if err != nil {
		return wire.Uploading{}, uploadFault(err)
	}
	return uploading(up), nil
}

// Uploaded answers how far an upload of by's has come.
func (p *Plane) Uploaded(ctx context.Context, by ops.Identity, upload string) (wire.Uploading, error) {
	if f := uploads(by); f != nil {
		return wire.Uploading{}, f
	}
	up, err := p.uploads().Get(ctx, artifacts.UploadID(upload), by.ID)
	if err != nil {
		return wire.Uploading{}, uploadFault(err)
	}
	return uploading(up), nil
}

// uploads returns a fault unless by is a worker.
func uploads(by ops.Identity) *ops.Fault {
	if by.Role != ops.Worker {
		return final(ops.NotPermitted, "%s is no worker, and only workers send files", by)
	}
	return nil
}

// uploadFault is what a worker is told of an error of an upload. What it need not send
// again is final.
func uploadFault(err error) error {
	var off *artifacts.OffsetError
	switch {
	case errors.As(err, &off):
		return ops.Faultf(ops.OutOfSequence, "the next piece of this upload begins at %d", off.Want).With("expected", off.Want)
	case errors.Is(err, artifacts.ErrDeclared):
		return final(ops.InvalidParams, "%v", err)
	case errors.Is(err, artifacts.ErrDigest):
		return final(ops.InvalidParams, "%v; the upload is gone", err)
	case errors.Is(err, artifacts.ErrNoUpload):
		return ops.Faultf(ops.NotFound, "there is no such upload, or its time is over; announce it again")
	case errors.Is(err, artifacts.ErrTooLarge):
		return final(ops.TooLarge, "%v", err)
	case errors.Is(err, artifacts.ErrUploadBusy):
		return ops.Faultf(ops.InProgress, "another piece of this upload is arriving; ask how far it is, then go on")
	case errors.Is(err, artifacts.ErrFiles):
		return final(ops.OverLimit, "%v", err)
	case errors.Is(err, artifacts.ErrUploads):
		return ops.Faultf(ops.Busy, "%v; finish one, or try again later", err).With("why", "uploads")
	case errors.Is(err, artifacts.ErrFull):
		return ops.Faultf(ops.Busy, "there is no room for the file; what was taken of it is kept, so try again later").With("why", "full")
	}
	return stored(err)
}

// Fetch opens bytes for who works on them: what a live lease of by's names, be it of a run
// (its source, and what earlier attempts have left) or of a verification (also what the
// run has left), and for a worker what its own runs have left. For everybody else there is
// no such thing. The caller closes them.
func (p *Plane) Fetch(ctx context.Context, by ops.Identity, digest string) (*service.ArtifactBytes, error) {
	none := ops.Faultf(ops.NotFound, "there is nothing with the digest %s that a lease of %s names", shown(digest), by.ID)
	d, err := artifacts.ParseDigest(digest)
	if err != nil {
		return nil, none
	}
	var name string
	err = p.store.View(ctx, func(tx journal.Tx) (err error) {
		name, err = p.fetchable(tx, by, d)
		return err
	})
	if err != nil {
		return nil, stored(err)
	}
	if name == "" {
		return nil, none
	}
	f, err := p.artifacts.Open(d)
	if errors.Is(err, artifacts.ErrNotFound) || errors.Is(err, artifacts.ErrCorrupt) {
		p.log.Error("the bytes of an artifact are gone or damaged; restore them from a backup", "digest", d, "err", err)
		return nil, ops.Faultf(ops.Internal, "the bytes of this artifact are gone or damaged; an operator must restore them from a backup").With("digest", string(d))
	}
	if err != nil {
		return nil, err
	}
	return &service.ArtifactBytes{ReadCloser: f, Size: f.Size(), Name: name}, nil
}

// fetchable returns the name under which by may read the bytes of d, "" if it may not.
func (p *Plane) fetchable(tx journal.Tx, by ops.Identity, d artifacts.Digest) (name string, err error) {
	who, known, err := p.principal(tx, by.ID)
	if err != nil || !known || who.identity() != by || who.revoked {
		return "", err
	}
	first := func(sql string, args ...any) {
		if name != "" || err != nil {
			return
		}
		err = tx.Query(sql+` LIMIT 1`, func(scan func(...any) error) error { return scan(&name) }, args...)
	}
	now := tx.Now().UnixMilli()
	id, digest := string(by.ID), string(d)
	if by.Role == ops.Worker {
		// What its own runs have left, whatever became of them.
		first(`SELECT a.name FROM artifact a JOIN dispatch x ON x.run = a.run WHERE x.worker = $1 AND a.producer = $1 AND a.digest = $2`, id, digest)
		// What earlier attempts have left.
		first(`SELECT f.name FROM dispatch x JOIN dispatch o ON o.delegation = x.delegation JOIN run_file f ON f.run = o.run
			WHERE x.worker = $1 AND x.boot = $2 AND x.state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED') AND x.lease_until > $3 AND f.digest = $4`,
			id, who.boot, now, digest)
	} else {
		// All that a verdict may go by, which may have been attested after the result.
		first(`SELECT a.name FROM verification v JOIN artifact a ON a.run = v.run WHERE v.verifier = $1 AND v.boot = $2 AND v.state = 'LEASED' AND v.lease_until > $3
			AND a.digest = $4 AND EXISTS (SELECT 1 FROM attestation t WHERE t.run = a.run AND t.name = a.name AND t.digest = a.digest)`, id, who.boot, now, digest)
	}
	if err != nil || name != "" {
		return name, err
	}
	return p.source(tx, who, d)
}

// source returns a name for the bytes of d if they are the source that a live lease of
// who's works on, and whoever ordered the work may still read them.
func (p *Plane) source(tx journal.Tx, who principalRow, d artifacts.Digest) (string, error) {
	leased := `SELECT x.delegation FROM dispatch x WHERE x.worker = $1 AND x.boot = $2 AND x.state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED')
		AND x.lease_until > $3`
	if who.role == ops.Verifier {
		leased = `SELECT v.delegation FROM verification v WHERE v.verifier = $1 AND v.boot = $2 AND v.state = 'LEASED' AND v.lease_until > $3`
	}
	var owners []ops.Identity
	if err := tx.Query(`SELECT DISTINCT d.by_id, d.by_role FROM delegation d WHERE d.revision = $4 AND d.id IN (`+leased+`)`, func(scan func(...any) error) error {
		var owner ops.Identity
		err := scan((*string)(&owner.ID), (*string)(&owner.Role))
		owners = append(owners, owner)
		return err
	}, string(who.id), who.boot, tx.Now().UnixMilli(), string(d)); err != nil {
		return "", err
	}
	for _, owner := range owners {
		name, err := p.readable(tx, owner, d)
		if err != nil || name != "" {
			return name, err
		}
	}
	return "", nil
}

// readable returns the name under which by may read an artifact by the policy, "" if there
// is none.
func (p *Plane) readable(tx journal.Tx, by ops.Identity, d artifacts.Digest) (name string, err error) {
	enough := errors.New("enough")
	policy := p.policy.Current()
	err = artifacts.List(tx, artifacts.Query{Digest: d, By: by.ID}, func(a artifacts.Artifact, enrolled bool) error {
		if !policy.Decide(access.Request{By: by, Action: access.Output, Owner: a.Owner.ID, Enrolled: enrolled}).Allowed {
			return nil
		}
		name = path.Clean(a.Name)
		return enough
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return name, err
}

// maySource says why by may not have work done on a revision: one that is a digest must be
// of an artifact that by may read. Any other is a name for the worker to know.
func (p *Plane) maySource(tx journal.Tx, by ops.Identity, revision string) (*ops.Fault, error) {
	d := artifacts.Digest(revision)
	if !d.Valid() {
		return nil, nil
	}
	name, err := p.readable(tx, by, d)
	if err != nil || name != "" {
		return nil, err
	}
	return ops.Faultf(ops.InvalidParams, "the parameter at /source/revision: there is no artifact %s, or it is not yours to read; publish it first", revision).
		With("pointer", "/source/revision").With("want", "the digest of an artifact of yours, or a name that the worker's repository knows"), nil
}

// attest keeps an attestation of h's run that its worker hands in. It must be the worker's
// own, in the one form, about bytes that this run has left, under this run's fence, of this
// delegation's source. The guards of worker events have passed.
func (p *Plane) attest(tx journal.Tx, h *held, a wire.Attest, producer principalRow) (*ops.Fault, error) {
	s, statement, fault := p.readAttestation(h, a, producer)
	if fault != nil {
		return fault, nil
	}
	there := false
	if err := tx.Query(`SELECT 1 FROM artifact WHERE run = $1 AND name = $2 AND digest = $3`, func(func(...any) error) error {
		there = true
		return nil
	}, h.run.run, a.Name, a.Digest); err != nil {
		return nil, err
	}
	if !there {
		return ops.Faultf(ops.NoEvidence, "no file %s with the digest %s has arrived from the run %s; upload it, then attest it", shown(a.Name), a.Digest, h.run.run), nil
	}
	err := artifacts.Attest(tx, artifacts.Attestation{
		Digest: statement.Digest(), Name: a.Name, Run: h.run.run, Delegation: h.delegation.id, Producer: producer.id, Fence: statement.Predicate.Fence,
		KeyID: s.KeyID, Statement: wire.Digest(s.Payload), Envelope: json.RawMessage(a.Envelope),
	})
	if errors.Is(err, artifacts.ErrAttestations) {
		return final(ops.OverLimit, "this run has attested these bytes %d times", artifacts.MaxAttestations), nil
	}
	return nil, err
}

// readAttestation reads and proves what a brings.
func (p *Plane) readAttestation(h *held, a wire.Attest, producer principalRow) (*wire.Sealed, artifacts.Statement, *ops.Fault) {
	wrong := func(format string, args ...any) (*wire.Sealed, artifacts.Statement, *ops.Fault) {
		return nil, artifacts.Statement{}, final(ops.InvalidParams, "the attestation: "+format, args...).With("pointer", "/envelope")
	}
	s, err := wire.Read(a.Envelope, artifacts.MaxStatement)
	if err != nil {
		return wrong("%v", err)
	}
	if s.Type != artifacts.AttestationType {
		return wrong("its payload is of another type, want %s", artifacts.AttestationType)
	}
	if err := s.Prove(producer.key); err != nil {
		return nil, artifacts.Statement{}, p.badSignature("the attestation is not signed by the key of the worker that hands it in")
	}
	st, err := artifacts.ReadStatement(s.Payload)
	if err != nil {
		return wrong("%v", err)
	}
	said := st.Predicate
	switch {
	case string(st.Digest()) != a.Digest || st.Name() != a.Name:
		return wrong("it is about another file")
	case said.Producer != producer.id:
		return wrong("it names another producer")
	case said.Run != h.run.run || said.Fence != h.run.fence:
		return wrong("it names another run, or another fence than %d", h.run.fence)
	case said.Source.Revision != h.delegation.revision:
		return wrong("it names another revision than the delegation's")
	case h.delegation.worktree != "" && said.Source.Worktree != h.delegation.worktree:
		return wrong("it names another worktree than the delegation's")
	}
	return s, st, nil
}

// attested returns the names of files that a run names and has not left, in full and
// attested under their names.
func (p *Plane) attested(tx journal.Tx, run string, files []wire.File) (missing []string, err error) {
	for _, f := range files {
		there, attested, err := artifacts.Left(tx, run, f.Name, artifacts.Digest(f.Digest), f.Bytes)
		if err != nil {
			return nil, fmt.Errorf("files of %s: %w", run, err)
		}
		if !there || !attested {
			missing = append(missing, f.Name)
		}
	}
	return missing, nil
}

// Referenced returns which of digests the plane names: files of runs, and sources of work.
// It is for the collection of what nobody names.
func Referenced(tx journal.Tx, digests []artifacts.Digest) (map[artifacts.Digest]bool, error) {
	named := make(map[artifacts.Digest]bool)
	for _, d := range digests {
		if err := tx.Query(`SELECT 1 WHERE EXISTS (SELECT 1 FROM run_file WHERE digest = $1) OR EXISTS (SELECT 1 FROM delegation WHERE revision = $1)`,
			func(func(...any) error) error {
				named[d] = true
				return nil
			}, string(d)); err != nil {
			return nil, err
		}
	}
	return named, nil
}

var _ artifacts.Referenced = Referenced
