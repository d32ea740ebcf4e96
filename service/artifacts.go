package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
)

// Artifacts is the files that calls have published and that runs have left: rows in the
// journal, and bytes in an [artifacts.Store]. A row is written in the transaction that
// writes the outcome of its call, or that ends the upload, and belongs to whom the call
// belongs to, be it the one that ordered the run: who may read that call's output may read
// the artifact and its bytes, and for everybody else there is none.
type Artifacts struct {
	door  *Door
	files *artifacts.Store
	refer []artifacts.Referenced

	verifying  sync.Mutex // held while everything is read
	collecting sync.Mutex // held while something is removed

	stop context.CancelFunc // nil before Start
	work sync.WaitGroup
}

// NewArtifacts has d record what its calls publish into files. The store of d has the
// table of package artifacts. It must be called before d is started.
func NewArtifacts(d *Door, files *artifacts.Store) *Artifacts {
	a := &Artifacts{door: d, files: files}
	d.OnSettle(a.record)
	return a
}

// record writes a row for each file that call has published.
func (a *Artifacts) record(tx journal.Tx, call ops.Call, o ops.Outcome) error {
	if o.State != ops.Succeeded {
		return nil
	}
	for _, p := range o.Published {
		digest, err := artifacts.ParseDigest(p.Digest)
		if err != nil {
			// An executor's mistake, which must not keep the call from settling.
			a.door.log.Error("a published file is not recorded", "call", call.ID, "op", call.Op, "file", p.File, "err", err)
			continue
		}
		if err := artifacts.Add(tx, artifacts.Artifact{
			Digest: digest, Name: p.File, Kind: p.Kind, Bytes: p.Bytes, Call: call.ID, Owner: call.By,
		}); err != nil {
			return fmt.Errorf("artifact %s of call %s: %w", digest, call.ID, err)
		}
	}
	return nil
}

// ArtifactListing is an artifact as it is listed: bytes that were published once.
type ArtifactListing struct {
	Artifact  artifacts.ID     `json:"artifact"`
	Digest    artifacts.Digest `json:"digest"`
	Name      string           `json:"name"`
	Kind      string           `json:"kind"`
	Bytes     int64            `json:"bytes"`
	Call      ops.CallID       `json:"call,omitempty"`
	By        ops.Identity     `json:"by" doc:"Whose it is."`
	CreatedAt string           `json:"created_at"`

	Run        string         `json:"run,omitempty" doc:"The run that has left it."`
	Delegation string         `json:"delegation,omitempty"`
	Producer   ops.IdentityID `json:"producer,omitempty" doc:"The worker that sent it."`
}

func listArtifact(a artifacts.Artifact) ArtifactListing {
	return ArtifactListing{
		Artifact: a.ID, Digest: a.Digest, Name: a.Name, Kind: a.Kind, Bytes: a.Bytes,
		Call: a.Call, By: a.Owner, CreatedAt: ops.Stamp(a.CreatedAt), Run: a.Run, Delegation: a.Delegation, Producer: a.Producer,
	}
}

// ArtifactPage is a page of artifacts.
type ArtifactPage struct {
	Artifacts []ArtifactListing `json:"artifacts"`
	Next      artifacts.ID      `json:"next,omitempty"`
}

// ArtifactShowing is bytes with each time that they were published, as far as the one
// who asks may see it: the newest first, at most 200 of them.
type ArtifactShowing struct {
	Digest    artifacts.Digest     `json:"digest"`
	Bytes     int64                `json:"bytes"`
	Published []ArtifactListing    `json:"published"`
	Attested  []AttestationListing `json:"attested" doc:"What workers have signed of these bytes, the oldest first."`
}

// AttestationListing is what a worker has signed of bytes that a run has left. The members
// but envelope are what the gateway has read in it; who does not trust the gateway proves
// the envelope.
type AttestationListing struct {
	Name       string          `json:"name"`
	Run        string          `json:"run"`
	Producer   ops.IdentityID  `json:"producer"`
	Fence      int64           `json:"fence"`
	Key        string          `json:"key" doc:"The key that signed: sha256: and the hex digest of its public half."`
	At         string          `json:"at" doc:"When it came, by the gateway's clock."`
	Revision   string          `json:"revision,omitempty" doc:"What was worked on."`
	Worktree   string          `json:"worktree,omitempty"`
	Test       *AttestedTest   `json:"test,omitempty" doc:"Absent if none was run."`
	CapturedAt string          `json:"captured_at" doc:"By the worker's clock."`
	Envelope   json.RawMessage `json:"envelope" doc:"The in-toto statement in its DSSE envelope."`
}

// AttestedTest is a test that a worker ran, as it says.
type AttestedTest struct {
	Command []string `json:"command"`
	Exit    int      `json:"exit"`
}

func listAttestation(a artifacts.Attestation, p artifacts.Predicate) AttestationListing {
	l := AttestationListing{Name: a.Name, Run: a.Run, Producer: a.Producer, Fence: a.Fence, Key: a.KeyID, At: ops.Stamp(a.At),
		Revision: p.Source.Revision, Worktree: p.Source.Worktree, CapturedAt: ops.Stamp(p.CapturedAt), Envelope: a.Envelope}
	if p.Test != nil {
		l.Test = &AttestedTest{p.Test.Command, p.Test.Exit}
	}
	return l
}

// Reads returns the reads artifacts and artifact, whose argument is a digest.
func (a *Artifacts) Reads() []Read {
	return []Read{{Name: "artifacts", Do: a.list}, {Name: "artifact", Do: a.show}}
}

// errEnough ends the reading of rows.
var errEnough = errors.New("enough")

// visible calls f with the artifacts of q whose output by may read, until f returns
// false.
func (a *Artifacts) visible(ctx context.Context, by ops.Identity, q artifacts.Query, f func(artifacts.Artifact) bool) error {
	policy := a.door.Policy()
	decided := make(map[ops.IdentityID]bool)
	q.By = by.ID
	err := a.door.store.View(ctx, func(tx journal.Tx) error {
		return artifacts.List(tx, q, func(row artifacts.Artifact, enrolled bool) error {
			may, known := decided[row.Owner.ID]
			if !known {
				may = policy.Decide(access.Request{By: by, Action: access.Output, Owner: row.Owner.ID, Enrolled: enrolled}).Allowed
				decided[row.Owner.ID] = may
			}
			if may && !f(row) {
				return errEnough
			}
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// list answers the read artifacts: newest first, the caller's own and those of the
// agents that are enrolled with it, unless it may see all.
func (a *Artifacts) list(ctx context.Context, by ops.Identity, q Query) (any, error) {
	limit, err := PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	near := !a.door.Policy().Decide(access.Request{By: by, Action: access.Manage}).Allowed
	page := ArtifactPage{Artifacts: []ArtifactListing{}}
	err = a.visible(ctx, by, artifacts.Query{After: artifacts.ID(q.After), Near: near}, func(row artifacts.Artifact) bool {
		if len(page.Artifacts) == limit {
			page.Next = page.Artifacts[limit-1].Artifact
			return false
		}
		page.Artifacts = append(page.Artifacts, listArtifact(row))
		return true
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// show answers the read artifact.
func (a *Artifacts) show(ctx context.Context, by ops.Identity, q Query) (any, error) {
	digest, err := artifacts.ParseDigest(q.Arg)
	if err != nil {
		return nil, unknownArtifact(q.Arg)
	}
	s := ArtifactShowing{Digest: digest}
	err = a.visible(ctx, by, artifacts.Query{Digest: digest}, func(row artifacts.Artifact) bool {
		s.Bytes = row.Bytes
		s.Published = append(s.Published, listArtifact(row))
		return len(s.Published) < maxPage
	})
	switch {
	case err != nil:
		return nil, err
	case s.Published == nil:
		return nil, unknownArtifact(q.Arg)
	}
	s.Attested, err = a.attested(ctx, digest, s.Published)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attested are the attestations of digest by the runs of published, which may be seen.
func (a *Artifacts) attested(ctx context.Context, digest artifacts.Digest, published []ArtifactListing) ([]AttestationListing, error) {
	list := []AttestationListing{}
	seen := make(map[string]bool)
	for _, p := range published {
		seen[p.Run] = true
	}
	var rows []artifacts.Attestation
	if err := a.door.store.View(ctx, func(tx journal.Tx) (err error) {
		rows, err = artifacts.Attestations(tx, "", digest)
		return err
	}); err != nil {
		return nil, err
	}
	for _, r := range rows {
		if !seen[r.Run] {
			continue
		}
		said, err := r.Said()
		if err != nil {
			return nil, fmt.Errorf("an attestation of %s: %w", digest, err)
		}
		list = append(list, listAttestation(r, said.Predicate))
	}
	return list, nil
}

func unknownArtifact(digest string) *ops.Fault {
	return ops.Faultf(ops.NotFound, "there is no artifact %q; a digest is sha256: and 64 lower-case hex digits", clip(digest, 80))
}

// ArtifactBytes is an artifact that is open for reading. A Read that would give the last
// byte fails if the bytes are not right. The caller closes it.
type ArtifactBytes struct {
	io.ReadCloser
	Size int64
	Name string // under which by saw it published last
}

// Open opens the bytes of digest for by. There being none, or none that by may read, is
// NotFound; bytes that are gone or damaged are Internal.
func (a *Artifacts) Open(ctx context.Context, by ops.Identity, digest string) (*ArtifactBytes, error) {
	d, err := artifacts.ParseDigest(digest)
	if err != nil {
		return nil, unknownArtifact(digest)
	}
	var found *artifacts.Artifact
	if err := a.visible(ctx, by, artifacts.Query{Digest: d}, func(row artifacts.Artifact) bool {
		found = &row
		return false
	}); err != nil {
		return nil, err
	}
	if found == nil {
		return nil, unknownArtifact(digest)
	}
	f, err := a.files.Open(d)
	if err == nil && f.Size() != found.Bytes {
		f.Close()
		err = fmt.Errorf("artifact %s: %w", d, artifacts.ErrCorrupt)
	}
	if errors.Is(err, artifacts.ErrNotFound) || errors.Is(err, artifacts.ErrCorrupt) {
		a.door.log.Error("the bytes of an artifact are gone or damaged; restore them from a backup", "digest", d, "err", err)
		return nil, ops.Faultf(ops.Internal, "the bytes of this artifact are gone or damaged; an operator must restore them from a backup").With("digest", string(d))
	}
	if err != nil {
		return nil, err
	}
	return &ArtifactBytes{ReadCloser: f, Size: f.Size(), Name: found.Name}, nil
}

// ArtifactReport is what Verify found.
type ArtifactReport struct {
	OK        bool              `json:"ok"`
	Artifacts int               `json:"artifacts"` // different bytes that were read
	Found     []ArtifactFinding `json:"found,omitempty"`
	Usage     artifacts.Usage   `json:"usage"`
}

// ArtifactFinding is bytes that are not as they were published.
type ArtifactFinding struct {
	Digest artifacts.Digest `json:"digest"`
	What   string           `json:"what"`
}

// maxFindings bounds the findings of a report.
const maxFindings = 100

// Verify reads the bytes of every artifact and returns what is wrong with them, up to
// 100 things. Bytes without a row are no finding. It is for identities that may manage
// the gateway, one at a time: another is Busy.
func (a *Artifacts) Verify(ctx context.Context) (ArtifactReport, error) {
	if !a.verifying.TryLock() {
		return ArtifactReport{}, ops.Faultf(ops.Busy, "the artifacts are being verified already; try again later")
	}
	defer a.verifying.Unlock()
	r := ArtifactReport{}
	for after := artifacts.Digest(""); ; {
		var page []artifacts.Digest
		if err := a.door.store.View(ctx, func(tx journal.Tx) (err error) {
			page, err = artifacts.Digests(tx, after, 500)
			return err
		}); err != nil {
			return ArtifactReport{}, err
		}
		for _, d := range page {
			err := a.files.Check(ctx, d)
			var what string
			switch {
			case ctx.Err() != nil:
				return ArtifactReport{}, ctx.Err()
			case errors.Is(err, artifacts.ErrNotFound):
				what = "the bytes are gone"
			case errors.Is(err, artifacts.ErrCorrupt):
				what = "the bytes are not those that were published"
			case err != nil:
				return ArtifactReport{}, err
			}
			r.Artifacts++
			if what != "" {
				r.Found = append(r.Found, ArtifactFinding{Digest: d, What: what})
			}
		}
		if len(page) == 0 || len(r.Found) >= maxFindings {
			break
		}
		after = page[len(page)-1]
	}
	r.Found = r.Found[:min(len(r.Found), maxFindings)]
	r.OK, r.Usage = len(r.Found) == 0, a.files.Usage()
	return r, nil
}

// Refers has the collection of bytes ask names, too, which bytes are named. It must be
// called before Start.
func (a *Artifacts) Refers(names artifacts.Referenced) { a.refer = append(a.refer, names) }

// Bytes are collected some time after a start, also of a gateway that does not run for
// long, and then again and again.
const (
	collectFirst = 5 * time.Minute
	collectEvery = time.Hour
)

// Start collects bytes now and then until Close.
func (a *Artifacts) Start() {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.work.Go(func() {
		next := time.NewTimer(collectFirst)
		defer next.Stop()
		for {
			select {
			case <-next.C:
			case <-ctx.Done():
				return
			}
			next.Reset(collectEvery)
			if c, err := a.Collect(ctx); err != nil && ctx.Err() == nil {
				a.door.log.Error("bytes that nothing names are not collected; their room stays taken", "err", err)
			} else if c.Files+c.Uploads > 0 {
				a.door.log.Info("collected bytes that nothing names", "files", c.Files, "uploads", c.Uploads, "bytes", c.Bytes)
			}
		}
	})
}

// Close ends what Start has begun, and waits for it.
func (a *Artifacts) Close() {
	if a.stop != nil {
		a.stop()
	}
	a.work.Wait()
}

// ArtifactCollection is what Collect has done.
type ArtifactCollection struct {
	artifacts.Collected
	Usage artifacts.Usage `json:"usage"`
}

// Collect ends the uploads whose time is over, and removes what they have left and kept
// bytes that nothing names and that have stood there for a day. It is for identities that
// may manage the gateway, one at a time: another is Busy.
func (a *Artifacts) Collect(ctx context.Context) (ArtifactCollection, error) {
	if !a.collecting.TryLock() {
		return ArtifactCollection{}, ops.Faultf(ops.Busy, "artifacts are being collected already; try again later")
	}
	defer a.collecting.Unlock()
	c, err := artifacts.Uploads{Journal: a.door.store, Files: a.files}.Collect(ctx, artifacts.CollectAfter, a.refer...)
	if err != nil {
		return ArtifactCollection{}, err
	}
	return ArtifactCollection{Collected: c, Usage: a.files.Usage()}, nil
}
