package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"inband/ops"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/journal/storetest"
)

// dock is a store of bytes with the journal of its uploads.
type dock struct {
	artifacts.Uploads
	folder string
}

func openJournal(t testing.TB, path string) journal.Store {
	t.Helper()
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, Schemas: []journal.Schema{access.Schema(), artifacts.Schema()}})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newDock(t testing.TB, quota int64) *dock {
	t.Helper()
	d := &dock{folder: filepath.Join(t.TempDir(), "artifacts")}
	d.Files = open(t, d.folder, quota)
	d.Journal = openJournal(t, filepath.Join(t.TempDir(), "journal.db"))
	t.Cleanup(func() { _ = d.Journal.Close() })
	return d
}

// again is the dock after another start of its folder, as a crash leaves it.
func (d *dock) again(t testing.TB) {
	t.Helper()
	if err := d.Files.Close(); err != nil {
		t.Fatal(err)
	}
	d.Files = open(t, d.folder, d.Files.Usage().Quota)
}

var (
	worker = ops.IdentityID("w1")
	owner  = ops.Identity{ID: "scout", Role: ops.Agent}
)

func declared(b []byte) artifacts.Declared {
	return artifacts.Declared{Digest: named(b), Bytes: int64(len(b)), Name: "out/report.txt", Kind: "text/plain",
		Run: "r-1", Delegation: "d-1", Sender: worker, Owner: owner}
}

func (d *dock) begin(t testing.TB, what artifacts.Declared) artifacts.Upload {
	t.Helper()
	up, err := d.Begin(context.Background(), what)
	if err != nil {
		t.Fatalf("begin %+v: %v", what, err)
	}
	return up
}

func (d *dock) piece(up artifacts.Upload, offset int64, b []byte) (artifacts.Upload, error) {
	return d.Append(context.Background(), up.ID, up.Sender, offset, bytes.NewReader(b))
}

// listed are the artifacts that there are, as words.
func (d *dock) listed(t testing.TB) (list []string) {
	t.Helper()
	err := d.Journal.View(context.Background(), func(tx journal.Tx) error {
		list = nil
		return artifacts.List(tx, artifacts.Query{}, func(a artifacts.Artifact, _ bool) error {
			list = append(list, fmt.Sprintf("%s %s %s %d %s %s %s %s", a.Digest[7:15], a.Name, a.Kind, a.Bytes, a.Run, a.Delegation, a.Producer, a.Owner.ID))
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestUpload(t *testing.T) {
	d := newDock(t, 0)
	b := noise(3<<20 + 5)
	up := d.begin(t, declared(b))
	if up.Received != 0 || up.Done || up.ID == "" {
		t.Fatalf("begun: %+v", up)
	}
	for at := 0; at < len(b); {
		end := min(len(b), at+1<<20+7)
		got, err := d.piece(up, int64(at), b[at:end])
		if err != nil || got.Received != int64(end) || got.Done != (end == len(b)) {
			t.Fatalf("piece at %d: %+v, %v", at, got, err)
		}
		if again := d.begin(t, declared(b)); again.Received != int64(end) || again.Done != got.Done || !got.Done && again.ID != up.ID {
			t.Fatalf("announced again at %d: %+v", end, again)
		}
		if seen, err := d.Get(context.Background(), up.ID, worker); err != nil || seen.Received != int64(end) || seen.Done != got.Done {
			t.Fatalf("seen at %d: %+v, %v", end, seen, err)
		}
		d.again(t)
		at = end
	}
	if got, err := get(d.Files, named(b)); err != nil || !bytes.Equal(got, b) {
		t.Errorf("read: %d bytes, %v", len(got), err)
	}
	if info, err := os.Stat(at(d.folder, named(b))); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("the file: %v, %v", info, err)
	}
	want := fmt.Sprintf("%s out/report.txt text/plain %d r-1 d-1 w1 scout", named(b)[7:15], len(b))
	if got := d.listed(t); len(got) != 1 || got[0] != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	// The last answer may be lost; it is asked for again, by any way.
	if got, err := d.piece(up, int64(len(b)), nil); err != nil || !got.Done {
		t.Errorf("an empty piece at the end: %+v, %v", got, err)
	}
	var off *artifacts.OffsetError
	if _, err := d.piece(up, 0, b); !errors.As(err, &off) || off.Want != int64(len(b)) {
		t.Errorf("all of it once more: %v", err)
	}
	if u := d.Files.Usage(); u.Files != 1 || u.Bytes != (int64(len(b))+4095)/4096*4096 {
		t.Errorf("usage: %+v", u)
	}
	if left := files(t, filepath.Join(d.folder, "uploads")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// Property: however the bytes are cut into pieces, whatever breaks in between and
// wherever the process starts again, what arrives is what was announced, and an
// acknowledged byte is never asked for again.
func TestUploadProperty(t *testing.T) {
	d := newDock(t, 0)
	n := 0
	broken := errors.New("the connection broke")
	rapid.Check(t, func(rt *rapid.T) {
		n++
		b := rapid.SliceOfN(rapid.Byte(), 1, 200_000).Draw(rt, "bytes")
		what := declared(b)
		what.Run, what.Delegation = fmt.Sprint("r-", n), fmt.Sprint("d-", n)
		up := d.begin(t, what)
		sure := int64(0)
		for !up.Done {
			if up.Received < sure {
				rt.Fatalf("%d bytes were acknowledged, and now %d", sure, up.Received)
			}
			sure = up.Received
			end := sure + rapid.Int64Range(0, int64(len(b))-sure).Draw(rt, "piece")
			var r io.Reader = bytes.NewReader(b[sure:end])
			breaks := false
			switch rapid.IntRange(0, 4).Draw(rt, "arriving") {
			case 1:
				r = iotest.HalfReader(r)
			case 2:
				r = iotest.DataErrReader(r)
			case 3:
				r, breaks = io.MultiReader(r, iotest.ErrReader(broken)), true
			case 4:
				d.again(t)
			}
			got, err := d.Append(context.Background(), up.ID, worker, sure, r)
			if breaks && end < int64(len(b)) {
				if !errors.Is(err, broken) {
					rt.Fatalf("a broken piece: %v", err)
				}
				if got, err = d.Get(context.Background(), up.ID, worker); err != nil || got.Received != end {
					rt.Fatalf("after a broken piece to %d: %+v, %v", end, got, err)
				}
			} else if breaks && err != nil {
				if got, err = d.piece(up, end, nil); err != nil {
					rt.Fatal(err)
				}
			}
			if err != nil {
				rt.Fatal(err)
			}
			up = got
		}
		if got, err := get(d.Files, named(b)); err != nil || !bytes.Equal(got, b) {
			rt.Fatalf("read: %d of %d bytes, %v", len(got), len(b), err)
		}
	})
}

func TestUploadRefuses(t *testing.T) {
	d := newDock(t, 0)
	ctx := context.Background()
	b := noise(10_000)
	for name, change := range map[string]func(*artifacts.Declared){
		"no digest":       func(a *artifacts.Declared) { a.Digest = "" },
		"another digest":  func(a *artifacts.Declared) { a.Digest = "sha512:" + a.Digest[7:] },
		"a negative size": func(a *artifacts.Declared) { a.Bytes = -1 },
		"a path upwards":  func(a *artifacts.Declared) { a.Name = "../../etc/passwd" },
		"a rooted path":   func(a *artifacts.Declared) { a.Name = "/etc/passwd" },
		"no name":         func(a *artifacts.Declared) { a.Name = "" },
		"a kind of two":   func(a *artifacts.Declared) { a.Kind = "text/plain\r\nX: y" },
		"a kind of none":  func(a *artifacts.Declared) { a.Kind = "text" },
	} {
		what := declared(b)
		change(&what)
		if up, err := d.Begin(ctx, what); !errors.Is(err, artifacts.ErrDeclared) {
			t.Errorf("%s: %+v, %v", name, up, err)
		}
	}
	up := d.begin(t, declared(b))
	what := declared(b)
	what.Bytes--
	if _, err := d.Begin(ctx, what); !errors.Is(err, artifacts.ErrDeclared) {
		t.Errorf("another size: %v", err)
	}
	what = declared(b)
	what.Sender = "w2"
	if _, err := d.Begin(ctx, what); !errors.Is(err, artifacts.ErrDeclared) {
		t.Errorf("another sender: %v", err)
	}
	if _, err := d.piece(up, 0, b[:6000]); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{-1, 0, 1, 5999, 6001, 10_000, 1 << 62} {
		var off *artifacts.OffsetError
		r := bytes.NewReader(b)
		if _, err := d.Append(ctx, up.ID, worker, offset, r); !errors.As(err, &off) || off.Want != 6000 || r.Len() != len(b) {
			t.Errorf("at %d: %v, %d bytes read", offset, err, len(b)-r.Len())
		}
	}
	// Nobody else's, and no path.
	for _, id := range []artifacts.UploadID{up.ID, "", "u-", "x", "../journal.db", "u-../../../../etc/passwd", up.ID + "/../" + up.ID, "u-0000000000000000000000000a"} {
		sender := worker
		if id == up.ID {
			sender = "w2"
		}
		if got, err := d.Append(ctx, id, sender, 6000, bytes.NewReader(b)); !errors.Is(err, artifacts.ErrNoUpload) {
			t.Errorf("append to %q: %+v, %v", id, got, err)
		}
		if got, err := d.Get(ctx, id, sender); !errors.Is(err, artifacts.ErrNoUpload) {
			t.Errorf("get %q: %+v, %v", id, got, err)
		}
	}
	// More than was announced is refused, however it comes, and what is right is not lost.
	if _, err := d.piece(up, 6000, append(b[6000:len(b):len(b)], 'x')); !errors.Is(err, artifacts.ErrTooLarge) {
		t.Errorf("a byte too many: %v", err)
	}
	got, err := d.Get(ctx, up.ID, worker)
	if err != nil || got.Received != 10_000 || got.Done {
		t.Fatalf("after a byte too many: %+v, %v", got, err)
	}
	if got, err = d.piece(up, 10_000, nil); err != nil || !got.Done {
		t.Errorf("the end: %+v, %v", got, err)
	}
	if _, err := d.piece(up, 10_000, []byte("x")); !errors.Is(err, artifacts.ErrTooLarge) {
		t.Errorf("a byte behind the end: %v", err)
	}
}

// Bytes that are not those of the digest go, and leave nothing.
func TestUploadOfOtherBytes(t *testing.T) {
	d := newDock(t, 0)
	b, wrong := noise(100_000), noise(100_000)
	for round := range 2 { // it may be tried again
		up := d.begin(t, declared(b))
		if up.Received != 0 {
			t.Errorf("round %d begins at %d", round, up.Received)
		}
		if _, err := d.piece(up, 0, wrong); !errors.Is(err, artifacts.ErrDigest) {
			t.Errorf("other bytes: %v", err)
		}
		if _, err := d.Get(context.Background(), up.ID, worker); !errors.Is(err, artifacts.ErrNoUpload) {
			t.Errorf("get afterwards: %v", err)
		}
		for _, digest := range []artifacts.Digest{named(b), named(wrong)} {
			if _, err := d.Files.Open(digest); !errors.Is(err, artifacts.ErrNotFound) {
				t.Errorf("there is %s: %v", digest, err)
			}
		}
		if left, u := files(t, d.folder), d.Files.Usage(); len(left) != 0 || u.Bytes != 0 || u.Files != 0 {
			t.Errorf("left %q, usage %+v", left, u)
		}
	}
	if got := d.listed(t); got != nil {
		t.Errorf("listed %q", got)
	}
	// A digest of nothing is the digest of nothing.
	what := declared(b)
	what.Bytes = 0
	if _, err := d.Begin(context.Background(), what); !errors.Is(err, artifacts.ErrDigest) {
		t.Errorf("no bytes under a digest of some: %v", err)
	}
	if up := d.begin(t, declared(nil)); !up.Done {
		t.Errorf("an empty file: %+v", up)
	}
	if got, err := get(d.Files, named(nil)); err != nil || len(got) != 0 {
		t.Errorf("the empty file: %q, %v", got, err)
	}
}

// That bytes are there already helps nobody who has only their digest.
func TestUploadOfBytesThatAreThere(t *testing.T) {
	d := newDock(t, 0)
	b := noise(5000)
	put(t, d.Files, b)
	up := d.begin(t, declared(b))
	if up.Done {
		t.Fatal("bytes without a row are given to whoever names them")
	}
	if _, err := d.piece(up, 0, b); err != nil {
		t.Fatal(err)
	}
	what := declared(b)
	what.Run, what.Delegation = "r-9", "d-9"
	if up := d.begin(t, what); up.Done {
		t.Error("the bytes of another delegation are given to whoever names them")
	}
	what = declared(b)
	what.Run, what.Sender = "r-2", "w2" // the next attempt
	if up := d.begin(t, what); !up.Done {
		t.Errorf("the delegation has them: %+v", up)
	}
	if got := d.listed(t); len(got) != 2 || !strings.HasSuffix(got[0], "r-2 d-1 w2 scout") {
		t.Errorf("listed %q", got)
	}
	// A row is no bytes.
	if err := os.Remove(at(d.folder, named(b))); err != nil {
		t.Fatal(err)
	}
	what.Run = "r-3"
	if up := d.begin(t, what); up.Done {
		t.Error("bytes that are gone need not be sent")
	}
}

// Of two pieces at once, one is taken; none is mixed with the other.
func TestUploadAtOnce(t *testing.T) {
	d := newDock(t, 0)
	b := noise(256 << 10)
	up := d.begin(t, declared(b))
	r, w := io.Pipe()
	first := make(chan error)
	go func() {
		_, err := d.Append(context.Background(), up.ID, worker, 0, r)
		first <- err
	}()
	if _, err := w.Write(b[:1000]); err != nil { // so it is being read
		t.Fatal(err)
	}
	if _, err := d.piece(up, 0, b); !errors.Is(err, artifacts.ErrUploadBusy) {
		t.Errorf("a second piece: %v", err)
	}
	if _, err := d.Append(context.Background(), up.ID, "w2", 0, bytes.NewReader(b)); !errors.Is(err, artifacts.ErrNoUpload) {
		t.Errorf("another's: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var done sync.Map
	for i := range 8 {
		group.Go(func() {
			got, err := d.piece(up, 1000, b[1000:])
			var off *artifacts.OffsetError
			if err != nil && !errors.Is(err, artifacts.ErrUploadBusy) && !errors.As(err, &off) {
				t.Errorf("at once: %v", err)
			}
			if err == nil && got.Done {
				done.Store(i, true)
			}
		})
	}
	group.Wait()
	n := 0
	done.Range(func(any, any) bool { n++; return true })
	if got, err := get(d.Files, named(b)); err != nil || !bytes.Equal(got, b) || n != 1 {
		t.Errorf("%d are done; %d bytes, %v", n, len(got), err)
	}
}

func TestUploadBounds(t *testing.T) {
	d := newDock(t, 1<<20)
	d.Limits = artifacts.UploadLimits{All: 5, Sender: 3, Owner: 100 << 10}
	ctx := context.Background()
	try := func(sender ops.IdentityID, owner ops.IdentityID, bytes int64, i int) error {
		what := declared(fmt.Appendf(nil, "%s %d", sender, i))
		what.Sender, what.Owner.ID, what.Bytes, what.Run = sender, owner, bytes, fmt.Sprint("r-", sender, i)
		_, err := d.Begin(ctx, what)
		return err
	}
	for i := range 3 {
		if err := try("w1", "scout", 1000, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := try("w1", "scout", 1000, 3); !errors.Is(err, artifacts.ErrUploads) {
		t.Errorf("a fourth of w1: %v", err)
	}
	if err := try("w1", "scout", 1000, 0); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	// The owner has three blocks; 22 more fit, 23 do not.
	if err := try("w2", "scout", 22*4096+1, 0); !errors.Is(err, artifacts.ErrFull) || !strings.Contains(err.Error(), "scout") {
		t.Errorf("more than scout may have: %v", err)
	}
	if err := try("w2", "scout", 22*4096, 0); err != nil {
		t.Errorf("as much as scout may have: %v", err)
	}
	if err := try("w2", "scout", 1, 1); !errors.Is(err, artifacts.ErrFull) {
		t.Errorf("a byte more: %v", err)
	}
	if err := try("w2", "other", 100<<10, 1); err != nil {
		t.Errorf("another owner's: %v", err)
	}
	if err := try("w3", "third", 1, 0); !errors.Is(err, artifacts.ErrUploads) {
		t.Errorf("a sixth: %v", err)
	}
	// As many files as a run may leave, be they there or under way.
	d.Limits = artifacts.UploadLimits{Files: 2, Owner: 1 << 40}
	for i, want := range []error{0: nil, 1: nil, 2: artifacts.ErrFiles, 3: nil} {
		what := declared(nil)
		what.Run, what.Name = "r-many", fmt.Sprint("file", i%3) // the first one once more
		if i == 1 {
			what.Digest, what.Bytes = named([]byte("x")), 1
		}
		for range 2 { // again is no other file
			if _, err := d.Begin(ctx, what); !errors.Is(err, want) {
				t.Errorf("file %d of a run: %v, want %v", i, err, want)
			}
		}
	}
	// More than the store could ever hold is refused before anything is sent.
	d.Limits = artifacts.UploadLimits{Owner: 1 << 40}
	if err := try("w3", "third", 1<<20+1, 0); !errors.Is(err, artifacts.ErrFull) {
		t.Errorf("more than the quota: %v", err)
	}
}

// A quota that is full in the middle keeps what has come; there may be room later.
func TestUploadIntoAFullQuota(t *testing.T) {
	d := newDock(t, 256<<10)
	d.Limits.Owner = 1 << 30
	b := noise(200 << 10)
	up := d.begin(t, declared(b))
	put(t, d.Files, noise(100<<10))
	if _, err := d.piece(up, 0, b); !errors.Is(err, artifacts.ErrFull) {
		t.Fatalf("more than the quota: %v", err)
	}
	got, err := d.Get(context.Background(), up.ID, worker)
	if err != nil || got.Received == 0 || got.Received > 156<<10 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if u := d.Files.Usage(); u.Bytes > u.Quota || u.Bytes < 100<<10+got.Received {
		t.Errorf("usage %+v with %d bytes received", u, got.Received)
	}
	d.again(t)
	before := d.Files.Usage()
	if _, err := d.piece(up, got.Received, b[got.Received:]); !errors.Is(err, artifacts.ErrFull) {
		t.Errorf("still full: %v", err)
	}
	if err := d.Files.Close(); err != nil {
		t.Fatal(err)
	}
	d.Files = open(t, d.folder, 1<<20)
	if after := d.Files.Usage(); after.Bytes < before.Bytes {
		t.Errorf("usage %+v, before %+v", after, before)
	}
	if got, err = d.Get(context.Background(), up.ID, worker); err != nil {
		t.Fatal(err)
	}
	if got, err = d.piece(up, got.Received, b[got.Received:]); err != nil || !got.Done {
		t.Errorf("with more room: %+v, %v", got, err)
	}
}

func TestUploadToAFullDisk(t *testing.T) {
	disk := t.TempDir()
	storetest.Need(t, "tmpfs mount", unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	d := newDock(t, 0)
	d.folder = filepath.Join(disk, "artifacts")
	d.Files = open(t, d.folder, 0)
	b := noise(600 << 10)
	up := d.begin(t, declared(b))
	kept := put(t, d.Files, noise(600<<10))
	if _, err := d.piece(up, 0, b); !errors.Is(err, artifacts.ErrFull) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	got, err := d.Get(context.Background(), up.ID, worker)
	if err != nil || got.Done || got.Received == 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := os.Remove(at(d.folder, kept)); err != nil {
		t.Fatal(err)
	}
	d.again(t)
	if got, err = d.piece(up, got.Received, b[got.Received:]); err != nil || !got.Done {
		t.Errorf("with room: %+v, %v", got, err)
	}
	if err := d.Files.Check(context.Background(), named(b)); err != nil {
		t.Error(err)
	}
}

// What the disk has lost of an upload is asked for again; what it has too much does not count.
func TestUploadOnABadDisk(t *testing.T) {
	d := newDock(t, 0)
	b := noise(50_000)
	up := d.begin(t, declared(b))
	path := filepath.Join(d.folder, "uploads", string(up.ID))
	if _, err := d.piece(up, 0, b[:20_000]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b[:20_000:20_000], "what was not acknowledged"...), 0o600); err != nil {
		t.Fatal(err)
	}
	d.again(t)
	if got, err := d.piece(up, 20_000, b[20_000:30_000]); err != nil || got.Received != 30_000 {
		t.Fatalf("behind too much: %+v, %v", got, err)
	}
	if err := os.Truncate(path, 10_000); err != nil {
		t.Fatal(err)
	}
	d.again(t)
	var off *artifacts.OffsetError
	if _, err := d.piece(up, 30_000, b[30_000:]); !errors.As(err, &off) || off.Want != 0 {
		t.Fatalf("behind too little: %v", err)
	}
	if got, err := d.piece(up, 0, b); err != nil || !got.Done {
		t.Errorf("all of it: %+v, %v", got, err)
	}
}

func TestUploadExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDock(t, 0)
		d.Limits.Within = time.Hour
		b := noise(5000)
		up := d.begin(t, declared(b))
		if _, err := d.piece(up, 0, b[:4000]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Millisecond)
		if got, err := d.Get(t.Context(), up.ID, worker); err != nil || got.Received != 4000 {
			t.Errorf("just before: %+v, %v", got, err)
		}
		time.Sleep(2 * time.Millisecond)
		if _, err := d.Get(t.Context(), up.ID, worker); !errors.Is(err, artifacts.ErrNoUpload) {
			t.Errorf("just after: %v", err)
		}
		if _, err := d.piece(up, 4000, b[4000:]); !errors.Is(err, artifacts.ErrNoUpload) {
			t.Errorf("a piece: %v", err)
		}
		next := d.begin(t, declared(b))
		if next.ID == up.ID || next.Received != 0 {
			t.Errorf("announced again: %+v", next)
		}
		// One that expires while its piece arrives takes its file with it.
		r, w := io.Pipe()
		failed := make(chan error)
		go func() {
			_, err := d.Append(context.Background(), next.ID, worker, 0, r)
			failed <- err
		}()
		if _, err := w.Write(b[:100]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		third := d.begin(t, declared(b))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, artifacts.ErrNoUpload) {
			t.Errorf("an upload that expired meanwhile: %v", err)
		}
		if _, err := d.Collect(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if left, u := files(t, filepath.Join(d.folder, "uploads")), d.Files.Usage(); len(left) != 0 || u.Bytes != 0 {
			t.Errorf("left %q, usage %+v", left, u)
		}
		if got, err := d.piece(third, 0, b); err != nil || !got.Done {
			t.Errorf("the third: %+v, %v", got, err)
		}
		d.Files.Close()
		d.Journal.Close()
	})
}

// A partial file that may only be read, as a crash on the way to its name leaves it.
func TestUploadBehindItsName(t *testing.T) {
	d := newDock(t, 0)
	b := noise(5000)
	up := d.begin(t, declared(b))
	if _, err := d.piece(up, 0, b[:4000]); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(d.folder, "uploads", string(up.ID)), 0o400); err != nil {
		t.Fatal(err)
	}
	if got, err := d.piece(up, 4000, b[4000:]); err != nil || !got.Done {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(d.folder, "uploads", string(up.ID))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the partial file: %v", err)
	}
}
