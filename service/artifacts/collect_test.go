package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"inband/service/artifacts"
	"inband/service/journal"
)

// age makes the file of d older.
func (d *dock) age(t testing.TB, digest artifacts.Digest, by time.Duration) {
	t.Helper()
	then := time.Now().Add(-by)
	if err := os.Chtimes(at(d.folder, digest), then, then); err != nil {
		t.Fatal(err)
	}
}

func (d *dock) collect(t testing.TB, others ...artifacts.Referenced) artifacts.Collected {
	t.Helper()
	c, err := d.Collect(context.Background(), time.Hour, others...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (d *dock) there(digest artifacts.Digest) bool {
	_, err := os.Stat(at(d.folder, digest))
	return err == nil
}

// What a row, a live upload, an attestation or somebody else names stays, however old;
// what nobody names goes when it is old.
func TestCollect(t *testing.T) {
	d := newDock(t, 0)
	published, uploaded, coming, attested, elsewhere, young, old, large := noise(10), noise(20), noise(30), noise(40), noise(50), noise(60), noise(70), noise(9000)
	for _, b := range [][]byte{published, coming, attested, elsewhere, young, old, large} {
		put(t, d.Files, b)
	}
	err := d.Journal.Update(context.Background(), func(tx journal.Tx) error {
		return errors.Join(
			artifacts.Add(tx, artifacts.Artifact{Digest: named(published), Name: "a", Kind: "text/plain", Bytes: 10, Call: "c-1", Owner: owner}),
			artifacts.Attest(tx, artifacts.Attestation{Digest: named(attested), Name: "b", Run: "r-1", Delegation: "d-1", Producer: "w1", Fence: 1, KeyID: "k", Statement: "s", Envelope: []byte("{}")}))
	})
	if err != nil {
		t.Fatal(err)
	}
	up := d.begin(t, declared(uploaded))
	if _, err := d.piece(up, 0, uploaded); err != nil {
		t.Fatal(err)
	}
	d.begin(t, declared(coming)) // and none of it has come
	for _, b := range [][]byte{published, uploaded, coming, attested, elsewhere, old, large} {
		d.age(t, named(b), 2*time.Hour)
	}
	stray := filepath.Join(d.folder, "sha256", "README")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	names := func(_ journal.Tx, digests []artifacts.Digest) (map[artifacts.Digest]bool, error) {
		return map[artifacts.Digest]bool{named(elsewhere): slices.Contains(digests, named(elsewhere)), named(published): false}, nil
	}
	before := d.Files.Usage()
	if c := d.collect(t, names); c.Files != 2 || c.Uploads != 0 || c.Bytes != 4096+3*4096 {
		t.Errorf("collected %+v", c)
	}
	for what, b := range map[string][]byte{"published": published, "uploaded": uploaded, "coming": coming, "attested": attested, "elsewhere": elsewhere, "young": young} {
		if !d.there(named(b)) {
			t.Errorf("%s has gone", what)
		}
	}
	if d.there(named(old)) || d.there(named(large)) {
		t.Error("what nobody names is there")
	}
	if _, err := os.Stat(stray); err != nil {
		t.Error(err)
	}
	if u := d.Files.Usage(); u.Files != before.Files-2 || u.Bytes != before.Bytes-4*4096 {
		t.Errorf("usage %+v, before %+v", u, before)
	}
	if c := d.collect(t, names); c != (artifacts.Collected{}) {
		t.Errorf("collected again: %+v", c)
	}
	// An error of whoever is asked removes nothing.
	broken := errors.New("broken")
	if _, err := d.Collect(context.Background(), 0, func(journal.Tx, []artifacts.Digest) (map[artifacts.Digest]bool, error) { return nil, broken }); !errors.Is(err, broken) || !d.there(named(young)) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.Collect(ctx, 0); !errors.Is(err, context.Canceled) || !d.there(named(young)) {
		t.Errorf("cancelled: %v", err)
	}
}

// Property of the two phases: bytes that are put while they are being collected, after
// nobody named them and before they are removed, stay.
func TestCollectBesideAPut(t *testing.T) {
	d := newDock(t, 0)
	b := noise(3000)
	put(t, d.Files, b)
	d.age(t, named(b), 2*time.Hour)
	asked := 0
	c, err := d.Files.Collect(context.Background(), time.Now().Add(-time.Hour), func(_ context.Context, digests []artifacts.Digest) (map[artifacts.Digest]bool, error) {
		asked++
		put(t, d.Files, b) // somebody does just now, and writes its row later
		return nil, nil
	})
	if err != nil || asked != 1 || c != (artifacts.Collected{}) {
		t.Errorf("collected %+v, %v; asked %d times", c, err, asked)
	}
	if got, err := get(d.Files, named(b)); err != nil || !bytes.Equal(got, b) {
		t.Errorf("read: %d bytes, %v", len(got), err)
	}
	// The same with an upload, whose file is as old as its first pieces.
	d.age(t, named(b), 2*time.Hour)
	up := d.begin(t, declared(b))
	if _, err := d.piece(up, 0, b[:2000]); err != nil {
		t.Fatal(err)
	}
	c, err = d.Files.Collect(context.Background(), time.Now().Add(-time.Hour), func(context.Context, []artifacts.Digest) (map[artifacts.Digest]bool, error) {
		if got, err := d.piece(up, 2000, b[2000:]); err != nil || !got.Done {
			t.Errorf("the piece: %+v, %v", got, err)
		}
		return nil, nil
	})
	if err != nil || c.Files != 0 || !d.there(named(b)) {
		t.Errorf("collected %+v, %v", c, err)
	}
}

// Many at it at once: whatever has a row at the end has its bytes.
func TestCollectAtOnce(t *testing.T) {
	d := newDock(t, 0)
	texts := make([][]byte, 24)
	for i := range texts {
		texts[i] = noise(500)
		put(t, d.Files, texts[i])
		d.age(t, named(texts[i]), 2*time.Hour)
	}
	stop := make(chan struct{})
	var collecting, writing sync.WaitGroup
	collecting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := d.Collect(context.Background(), time.Hour); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for w := range 4 {
		writing.Go(func() {
			for i := w; i < len(texts); i += 4 {
				if i%2 == 0 {
					what := declared(texts[i])
					what.Sender = owner.ID
					up := d.begin(t, what)
					if got, err := d.piece(up, 0, texts[i]); err != nil || !got.Done {
						t.Errorf("upload %d: %+v, %v", i, got, err)
					}
					continue
				}
				put(t, d.Files, texts[i])
				if err := d.Journal.Update(context.Background(), func(tx journal.Tx) error {
					return artifacts.Add(tx, artifacts.Artifact{Digest: named(texts[i]), Name: "x", Kind: "a/b", Bytes: 500, Owner: owner})
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	collecting.Wait()
	for i, b := range texts {
		if err := d.Files.Check(context.Background(), named(b)); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if u := d.Files.Usage(); u.Files != len(texts) || u.Bytes != int64(len(texts))*4096 {
		t.Errorf("usage %+v", u)
	}
}

// Partial files whose row is gone are removed; those that somebody is at are not.
func TestCollectPartials(t *testing.T) {
	d := newDock(t, 0)
	b := noise(5000)
	up := d.begin(t, declared(b))
	if _, err := d.piece(up, 0, b[:3000]); err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(d.folder, "uploads", "u-0123456789abcdefghjkmnpqrs")
	stray := filepath.Join(d.folder, "uploads", "notes")
	for _, path := range []string{orphan, stray} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.again(t)
	if u := d.Files.Usage(); u.Bytes != 5*4096 || u.Files != 0 {
		t.Errorf("usage with partial files: %+v", u)
	}
	if c := d.collect(t); c.Uploads != 1 || c.Bytes != 2*4096 {
		t.Errorf("collected %+v", c)
	}
	if left := files(t, filepath.Join(d.folder, "uploads")); len(left) != 2 || slices.Contains(left, orphan) {
		t.Errorf("left %q", left)
	}
	if got, err := d.piece(up, 3000, b[3000:]); err != nil || !got.Done {
		t.Errorf("the upload: %+v, %v", got, err)
	}
}

// More files than are asked about at once.
func TestCollectMany(t *testing.T) {
	d := newDock(t, 0)
	keep := map[artifacts.Digest]bool{}
	for i := range 1200 {
		b := fmt.Appendf(nil, "file %d", i)
		path := at(d.folder, named(b))
		then := time.Now().Add(-2 * time.Hour)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o400), os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
		if i%400 == 7 {
			keep[named(b)] = true
		}
	}
	d.again(t)
	asked := 0
	c := d.collect(t, func(_ journal.Tx, digests []artifacts.Digest) (map[artifacts.Digest]bool, error) {
		if asked++; len(digests) > 500 {
			t.Errorf("asked about %d at once", len(digests))
		}
		return keep, nil
	})
	if c.Files != 1197 || asked != 3 || d.Files.Usage().Files != 3 {
		t.Errorf("collected %+v, asked %d times, usage %+v", c, asked, d.Files.Usage())
	}
	for digest := range keep {
		if !d.there(digest) {
			t.Errorf("%s has gone", digest)
		}
	}
}
