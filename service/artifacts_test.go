package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

// library is a house with artifacts. Its op keep publishes the files that keeping says,
// with their names as their bytes.
type library struct {
	*house
	kept    *Artifacts
	folder  string
	keeping []string
	spoil   func(*ops.Outcome) // what it does to its outcome at the end
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	l := &library{house: &house{t: t, logs: new(strings.Builder)}, folder: filepath.Join(t.TempDir(), "artifacts")}
	files, err := artifacts.Open(artifacts.Config{Folder: l.folder})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&locked{w: l.logs}, nil))
	if l.store, err = sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "journal.db"),
		Schemas: []journal.Schema{access.Schema(), Schema(), artifacts.Schema()}, Logger: log}); err != nil {
		t.Fatal(err)
	}
	l.directory = access.NewDirectory(l.store)
	l.people()
	for _, who := range []ops.Identity{{ID: "other", Role: ops.Agent}, {ID: "mx", Role: ops.Bridge}} {
		var agents []ops.IdentityID
		if who.Role == ops.Bridge {
			agents = []ops.IdentityID{"scout"}
		}
		if _, err := l.directory.Add(t.Context(), who, agents...); err != nil {
			t.Fatal(err)
		}
	}
	registry, err := ops.New(read("keep", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		o := ops.Success(ops.NewResult("kept", ""))
		for _, name := range l.keeping {
			d, size, err := files.Put(ctx, strings.NewReader(name), 1<<20)
			if err != nil {
				return ops.Outcome{}, err
			}
			o.Published = append(o.Published, ops.Published{File: name, Kind: "text/plain", Digest: string(d), Bytes: size})
		}
		if l.spoil != nil {
			l.spoil(&o)
		}
		return o, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if l.door, err = New(Config{Store: l.store, Registry: ops.NewLive(registry), Log: log}); err != nil {
		t.Fatal(err)
	}
	l.kept = NewArtifacts(l.door, files)
	l.start()
	t.Cleanup(func() {
		l.close()
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// keep has by publish names and returns their digests.
func (l *library) keep(by ops.Identity, names ...string) (digests []string) {
	l.t.Helper()
	l.keeping = names
	_, o := l.run(call(by, "keep"))
	if o.State != ops.Succeeded {
		l.t.Fatalf("keep: %+v", o)
	}
	for _, p := range o.Published {
		digests = append(digests, p.Digest)
	}
	return digests
}

// names are what by is listed, and whether there is more.
func (l *library) names(by ops.Identity, q Query) (names []string, next string) {
	l.t.Helper()
	v, err := l.kept.list(l.t.Context(), by, q)
	if err != nil {
		l.t.Fatal(err)
	}
	page := v.(ArtifactPage)
	for _, a := range page.Artifacts {
		names = append(names, a.Name)
	}
	return names, string(page.Next)
}

func (l *library) bytes(by ops.Identity, digest string) (string, error) {
	f, err := l.kept.Open(l.t.Context(), by, digest)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}

func code(err error) ops.Code {
	var f *ops.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

var (
	other  = ops.Identity{ID: "other", Role: ops.Agent}
	relay  = ops.Identity{ID: "mx", Role: ops.Bridge}
	nobody = ops.Identity{}
)

func TestArtifactsBelongToTheirCalls(t *testing.T) {
	l := newLibrary(t)
	if names, next := l.names(ada, Query{}); names != nil || next != "" {
		t.Errorf("at the beginning: %q, %q", names, next)
	}
	digests := l.keep(scout, "one", "two")
	for _, by := range []ops.Identity{scout, ada, relay} {
		if names, _ := l.names(by, Query{}); cmp.Diff([]string{"two", "one"}, names) != "" {
			t.Errorf("%s is listed %q", by, names)
		}
		v, err := l.kept.show(t.Context(), by, Query{Arg: digests[0]})
		if s, _ := v.(ArtifactShowing); err != nil || s.Bytes != 3 || len(s.Published) != 1 || s.Published[0].Name != "one" ||
			s.Published[0].By != scout || s.Published[0].Kind != "text/plain" || s.Published[0].Call == "" {
			t.Errorf("%s is shown %+v, %v", by, v, err)
		}
		if got, err := l.bytes(by, digests[1]); err != nil || got != "two" {
			t.Errorf("%s reads %q, %v", by, got, err)
		}
	}
	// To know the digest is to know nothing.
	for _, by := range []ops.Identity{other, nobody, {ID: "other-relay", Role: ops.Bridge}, {ID: "w", Role: ops.Worker}} {
		if names, _ := l.names(by, Query{}); names != nil {
			t.Errorf("%s is listed %q", by, names)
		}
		if v, err := l.kept.show(t.Context(), by, Query{Arg: digests[0]}); code(err) != ops.NotFound {
			t.Errorf("%s is shown %+v, %v", by, v, err)
		}
		if got, err := l.bytes(by, digests[0]); code(err) != ops.NotFound {
			t.Errorf("%s reads %q, %v", by, got, err)
		}
	}
	// Who publishes the same bytes has them, and sees no other's name for them.
	l.keep(other, "one")
	v, err := l.kept.show(t.Context(), other, Query{Arg: digests[0]})
	if s, _ := v.(ArtifactShowing); err != nil || len(s.Published) != 1 || s.Published[0].By != other {
		t.Errorf("other is shown %+v, %v", v, err)
	}
	v, err = l.kept.show(t.Context(), ada, Query{Arg: digests[0]})
	if s, _ := v.(ArtifactShowing); err != nil || len(s.Published) != 2 || s.Published[0].By != other || s.Published[1].By != scout {
		t.Errorf("ada is shown %+v, %v", v, err)
	}
}

func TestArtifactPages(t *testing.T) {
	l := newLibrary(t)
	l.keep(scout, "a", "b", "c")
	l.keep(other, "x")
	l.keep(scout, "d")
	var all []string
	for next, first := "", true; first || next != ""; first = false {
		var names []string
		names, next = l.names(scout, Query{Limit: 2, After: next})
		all = append(all, names...)
	}
	if d := cmp.Diff([]string{"d", "c", "b", "a"}, all); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
	if names, next := l.names(ada, Query{Limit: 5}); len(names) != 5 || next != "" {
		t.Errorf("a page that is just full: %q, next %q", names, next)
	}
	for _, limit := range []int{-1, maxPage + 1} {
		if _, err := l.kept.list(t.Context(), scout, Query{Limit: limit}); code(err) != ops.BadRequest {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// The policy's action output decides, and the operator's own may be kept from him.
func TestArtifactsObeyThePolicy(t *testing.T) {
	l := newLibrary(t)
	digests := l.keep(scout, "one")
	for _, tc := range []struct {
		policy string
		by     ops.Identity
		may    bool
	}{
		{`permit (principal, action, resource); forbid (principal, action == Action::"output", resource);`, ada, false},
		{`permit (principal, action, resource); forbid (principal, action == Action::"output", resource);`, scout, false},
		{`permit (principal is Agent, action == Action::"see", resource);`, scout, false},
		{`permit (principal is Agent, action == Action::"output", resource) when { context.own };`, scout, true},
		{`permit (principal is Agent, action == Action::"output", resource) when { context.own };`, other, false},
		{`permit (principal is Agent, action == Action::"output", resource);`, other, true},
	} {
		p, err := access.ParsePolicy("test", []byte(tc.policy))
		if err != nil {
			t.Fatal(err)
		}
		l.door.policy.Swap(p)
		if _, err := l.bytes(tc.by, digests[0]); tc.may != (err == nil) || !tc.may && code(err) != ops.NotFound {
			t.Errorf("%s reads under %s: %v", tc.by, tc.policy, err)
		}
		if _, err := l.kept.show(t.Context(), tc.by, Query{Arg: digests[0]}); tc.may != (err == nil) || !tc.may && code(err) != ops.NotFound {
			t.Errorf("%s is shown under %s: %v", tc.by, tc.policy, err)
		}
		if names, _ := l.names(tc.by, Query{}); !tc.may && names != nil {
			t.Errorf("%s is listed %q under %s", tc.by, names, tc.policy)
		}
	}
}

// Only what an executor says it has kept, of a call that succeeded, is recorded; words
// in a result are not.
func TestWhatIsNotPublished(t *testing.T) {
	l := newLibrary(t)
	digests := l.keep(scout, "secret")
	l.keeping = nil
	forged := map[string]any{"published": []ops.Published{{File: "x", Kind: "text/plain", Digest: digests[0], Bytes: 6}}}
	for name, spoil := range map[string]func(*ops.Outcome){
		"words in a result": func(o *ops.Outcome) { o.Result = ops.NewResult(forged, "") },
		"a failure": func(o *ops.Outcome) {
			*o = ops.Failure(ops.Faultf(ops.OpFailed, "no"))
			o.Published = []ops.Published{{File: "x", Digest: digests[0]}}
		},
		"no digest": func(o *ops.Outcome) { o.Published = []ops.Published{{File: "x", Digest: "../../journal.db"}} },
	} {
		l.spoil = spoil
		if _, o := l.run(call(other, "keep")); !o.State.Settled() {
			t.Errorf("%s: %+v", name, o)
		}
		if names, _ := l.names(other, Query{}); names != nil {
			t.Errorf("%s: other has %q", name, names)
		}
	}
	if !strings.Contains(l.logs.String(), "not recorded") {
		t.Errorf("the log does not say so:\n%s", l.logs)
	}
}

func TestDamagedArtifacts(t *testing.T) {
	l := newLibrary(t)
	digests := l.keep(scout, "gone", "damaged", "longer", "fine")
	l.keep(other, "fine")
	r, err := l.kept.Verify(t.Context())
	if err != nil || !r.OK || r.Artifacts != 4 || r.Found != nil || r.Usage.Files != 4 || r.Usage.Bytes != 4*4096 || r.Usage.Quota != artifacts.DefaultQuota {
		t.Errorf("verified: %+v, %v", r, err)
	}
	at := func(digest string) string {
		name := strings.TrimPrefix(digest, "sha256:")
		return filepath.Join(l.folder, "sha256", name[:2], name)
	}
	if err := os.Remove(at(digests[0])); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"DAMAGED", "longer than it was"} {
		if err := errors.Join(os.Remove(at(digests[1+i])), os.WriteFile(at(digests[1+i]), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, digest := range digests[:3] {
		if got, err := l.bytes(scout, digest); code(err) != ops.Internal || got != "" {
			t.Errorf("%s: %q, %v", digest, got, err)
		}
	}
	if r, err = l.kept.Verify(t.Context()); err != nil || r.OK || r.Artifacts != 4 {
		t.Errorf("verified: %+v, %v", r, err)
	}
	found := map[string]string{}
	for _, f := range r.Found {
		found[string(f.Digest)] = f.What
	}
	if d := cmp.Diff(map[string]string{
		digests[0]: "the bytes are gone",
		digests[1]: "the bytes are not those that were published",
		digests[2]: "the bytes are not those that were published",
	}, found); d != "" {
		t.Errorf("found (-want +got):\n%s", d)
	}
	l.kept.verifying.Lock()
	_, err = l.kept.Verify(t.Context())
	l.kept.verifying.Unlock()
	if code(err) != ops.Busy {
		t.Errorf("two at once: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := l.kept.Verify(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %+v, %v", r, err)
	}
}

func TestUnknownArtifacts(t *testing.T) {
	l := newLibrary(t)
	for _, digest := range []string{"", "x", "sha256:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("A", 64), "../journal.db", strings.Repeat("é", 500)} {
		if v, err := l.kept.show(t.Context(), ada, Query{Arg: digest}); code(err) != ops.NotFound {
			t.Errorf("show %q: %v, %v", digest, v, err)
		}
		if _, err := l.bytes(ada, digest); code(err) != ops.NotFound {
			t.Errorf("open %q: %v", digest, err)
		}
	}
}

// The outcome that is kept and the answer of a replay have what was published, too.
func TestPublishedIsPartOfTheOutcome(t *testing.T) {
	l := newLibrary(t)
	l.keeping = []string{"one"}
	c := call(scout, "keep")
	c.Key = "k"
	first, o := l.run(c)
	again, replayed := l.run(c)
	if first.Call != again.Call || len(o.Published) != 1 || cmp.Diff(o.Published, replayed.Published) != "" {
		t.Errorf("first %+v, replayed %+v", o, replayed)
	}
	if names, _ := l.names(scout, Query{}); len(names) != 1 {
		t.Errorf("listed %q", names)
	}
	b, err := json.Marshal(o)
	if err != nil || !strings.Contains(string(b), `"published":[{"file":"one","kind":"text/plain","digest":"sha256:`) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}

// Files of a run belong to whose the delegation is; what was attested of them is shown to
// those who may see the run's file, and to nobody else.
func TestFilesOfRuns(t *testing.T) {
	l := newLibrary(t)
	digests := l.keep(other, "one") // other has the same bytes
	digest := artifacts.Digest(digests[0])
	p := artifacts.Predicate{Source: artifacts.Source{Revision: "main"}, Producer: "w1", Run: "r-1", Fence: 7,
		Test: &artifacts.Test{Command: []string{"make", "check"}, Exit: 1}, CapturedAt: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	payload, err := artifacts.NewStatement("one", digest, p).Payload()
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := json.Marshal(map[string]any{"payloadType": artifacts.AttestationType, "payload": payload, "signatures": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.store.Update(t.Context(), func(tx journal.Tx) error {
		return errors.Join(
			artifacts.Add(tx, artifacts.Artifact{Digest: digest, Name: "one", Kind: "text/plain", Bytes: 3, Owner: scout, Run: "r-1", Delegation: "d-1", Producer: "w1"}),
			artifacts.Attest(tx, artifacts.Attestation{Digest: digest, Name: "one", Run: "r-1", Delegation: "d-1", Producer: "w1", Fence: 7, KeyID: "k", Statement: "s", Envelope: envelope}))
	}); err != nil {
		t.Fatal(err)
	}
	for by, want := range map[ops.Identity]int{scout: 1, ada: 1, relay: 1, other: 0} {
		v, err := l.kept.show(t.Context(), by, Query{Arg: digests[0]})
		s, _ := v.(ArtifactShowing)
		if err != nil || len(s.Attested) != want {
			t.Errorf("%s is shown %+v, %v", by, v, err)
			continue
		}
		if want == 0 {
			continue
		}
		want := AttestationListing{Name: "one", Run: "r-1", Producer: "w1", Fence: 7, Key: "k", At: s.Attested[0].At, Revision: "main",
			Test: &AttestedTest{Command: []string{"make", "check"}, Exit: 1}, CapturedAt: "2030-01-02T03:04:05.000Z", Envelope: envelope}
		if d := cmp.Diff(want, s.Attested[0]); d != "" || s.Attested[0].At == "" {
			t.Errorf("%s is shown (-want +got):\n%s", by, d)
		}
		if p := s.Published[0]; p.Run != "r-1" || p.Delegation != "d-1" || p.Producer != "w1" || p.Call != "" || p.By != scout {
			t.Errorf("%s is shown %+v", by, p)
		}
	}
	// The worker itself is no owner.
	if v, err := l.kept.show(t.Context(), ops.Identity{ID: "w1", Role: ops.Worker}, Query{Arg: digests[0]}); code(err) != ops.NotFound {
		t.Errorf("w1 is shown %+v, %v", v, err)
	}
}

// What nothing names goes after a day, and what somebody else names stays.
func TestCollectArtifacts(t *testing.T) {
	l := newLibrary(t)
	digests := l.keep(scout, "named", "elsewhere")
	l.spoil = func(o *ops.Outcome) { *o = ops.Failure(ops.Faultf(ops.OpFailed, "no")) }
	l.keeping = []string{"failed", "failed just now"}
	l.run(call(scout, "keep"))
	path := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		name := hex.EncodeToString(sum[:])
		return filepath.Join(l.folder, "sha256", name[:2], name)
	}
	for _, text := range []string{"named", "elsewhere", "failed"} {
		then := time.Now().Add(-25 * time.Hour)
		if err := os.Chtimes(path(text), then, then); err != nil {
			t.Fatal(err)
		}
	}
	var asked []artifacts.Digest
	l.kept.Refers(func(_ journal.Tx, digests []artifacts.Digest) (map[artifacts.Digest]bool, error) {
		asked = digests
		return nil, nil
	})
	c, err := l.kept.Collect(t.Context())
	if err != nil || c.Files != 1 || c.Bytes != 4096 || c.Usage.Files != 3 || len(asked) != 3 {
		t.Errorf("collected %+v, %v; asked of %q", c, err, asked)
	}
	if _, err := os.Stat(path("failed")); err == nil {
		t.Error("what a failed call has put is there")
	}
	for _, text := range []string{"named", "elsewhere", "failed just now"} {
		if _, err := os.Stat(path(text)); err != nil {
			t.Error(err)
		}
	}
	if got, err := l.bytes(scout, digests[0]); err != nil || got != "named" {
		t.Errorf("%q, %v", got, err)
	}
	l.kept.collecting.Lock()
	_, err = l.kept.Collect(t.Context())
	l.kept.collecting.Unlock()
	if code(err) != ops.Busy {
		t.Errorf("two at once: %v", err)
	}
}

// The gateway collects now and then, and ends when it is told to.
func TestArtifactsAreCollectedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLibrary(t)
		l.spoil = func(o *ops.Outcome) { *o = ops.Failure(ops.Faultf(ops.OpFailed, "no")) }
		l.kept.Start()
		for i, pause := range []time.Duration{collectFirst, collectEvery} {
			l.keeping = []string{fmt.Sprint("failed ", i)}
			l.run(call(scout, "keep"))
			then := time.Now().Add(-25 * time.Hour)
			if err := filepath.WalkDir(l.folder, func(path string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					err = os.Chtimes(path, then, then)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause - time.Second)
			if n := l.kept.files.Usage().Files; n != 1 {
				t.Errorf("%d files before it is time", n)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if n := l.kept.files.Usage().Files; n != 0 {
				t.Errorf("%d files afterwards", n)
			}
		}
		l.kept.Close()
		l.kept.Close() // may be closed twice
	})
}
