package artifacts_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"inband/service/artifacts"
	"inband/service/journal/storetest"
)

const most = 64 << 20

func open(t testing.TB, folder string, quota int64) *artifacts.Store {
	t.Helper()
	s, err := artifacts.Open(artifacts.Config{Folder: folder, Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // tests that care close it themselves
	return s
}

func put(t testing.TB, s *artifacts.Store, b []byte) artifacts.Digest {
	t.Helper()
	d, size, err := s.Put(context.Background(), bytes.NewReader(b), most)
	if err != nil || size != int64(len(b)) || d != named(b) {
		t.Fatalf("put %d bytes: %s, %d, %v; want %s", len(b), d, size, err, named(b))
	}
	return d
}

// get reads d whole, in pieces of a size that is no divisor of anything.
func get(s *artifacts.Store, d artifacts.Digest) ([]byte, error) {
	f, err := s.Open(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	_, err = io.CopyBuffer(struct{ io.Writer }{&b}, struct{ io.Reader }{f}, make([]byte, 4099))
	return b.Bytes(), err
}

func named(b []byte) artifacts.Digest {
	sum := sha256.Sum256(b)
	return artifacts.Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// at is where d lies in a folder.
func at(folder string, d artifacts.Digest) string {
	name := strings.TrimPrefix(string(d), "sha256:")
	return filepath.Join(folder, "sha256", name[:2], name)
}

// noise is n bytes that no other call returns.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// files are the regular files below a folder.
func files(t testing.TB, folder string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestPutAndOpen(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "artifacts")
	s := open(t, folder, 0)
	for _, n := range []int{0, 1, 4095, 4096, 64 << 10, 64<<10 + 1, 1 << 20, 1<<20 + 1, 3<<20 + 7} {
		want := noise(n)
		d := put(t, s, want)
		got, err := get(s, d)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
		info, err := os.Stat(at(folder, d))
		if err != nil || info.Mode().Perm() != 0o400 {
			t.Errorf("%d bytes: %v, %v; want a file of mode 0400", n, info, err)
		}
		if err := s.Check(context.Background(), d); err != nil {
			t.Errorf("check %d bytes: %v", n, err)
		}
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v; want mode 0700", info.Mode(), err)
	}
	before := s.Usage()
	if before.Files != 9 || before.Quota != artifacts.DefaultQuota {
		t.Errorf("usage: %+v", before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := open(t, folder, 0).Usage(); after != before {
		t.Errorf("usage after another open: %+v, want %+v", after, before)
	}
}

// Property: whatever the bytes and however they arrive, they come back under the digest
// of their own, and what was put twice is there once.
func TestPutProperty(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "artifacts"), 0)
	kept := map[artifacts.Digest]bool{}
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Byte(), 0, 9000).Draw(t, "bytes")
		var r io.Reader = bytes.NewReader(want)
		switch rapid.IntRange(0, 3).Draw(t, "arriving") {
		case 1:
			r = iotest.OneByteReader(r)
		case 2:
			r = iotest.DataErrReader(r)
		case 3:
			r = iotest.HalfReader(r)
		}
		d, size, err := s.Put(context.Background(), r, int64(len(want)))
		if err != nil || size != int64(len(want)) || d != named(want) {
			t.Fatalf("put: %s, %d, %v", d, size, err)
		}
		kept[d] = true
		if got, err := get(s, d); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %x, %v", got, err)
		}
		if n := s.Usage().Files; n != len(kept) {
			t.Fatalf("%d files, want %d", n, len(kept))
		}
	})
}

func TestDigest(t *testing.T) {
	good := string(named(nil))
	if d, err := artifacts.ParseDigest(good); err != nil || string(d) != good {
		t.Errorf("%q: %q, %v", good, d, err)
	}
	s := open(t, filepath.Join(t.TempDir(), "artifacts"), 0)
	for _, odd := range []string{
		"", "sha256:", good[:70], good + "0", strings.ToUpper(good), "sha512" + good[6:], good[7:], " " + good, good + "\n", good + "\x00",
		"sha256:" + strings.Repeat("g", 64), "sha256:../" + good[10:], "sha256:" + strings.Repeat("../", 21) + "a",
		"sha256:..", "../../etc/passwd", "/etc/passwd", "sha256:" + strings.Repeat("é", 32), "sha256:" + good[7:39] + "/" + good[40:],
	} {
		if d, err := artifacts.ParseDigest(odd); err == nil {
			t.Errorf("%q is taken for the digest %q", odd, d)
		}
		if _, err := s.Open(artifacts.Digest(odd)); !errors.Is(err, artifacts.ErrNotFound) {
			t.Errorf("open %q: %v, want %v", odd, err, artifacts.ErrNotFound)
		}
	}
}

func FuzzParseDigest(f *testing.F) {
	f.Add(string(named(nil)))
	f.Add("sha256:../../../etc/passwd")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := artifacts.ParseDigest(text)
		if err != nil {
			return
		}
		if string(d) != text {
			t.Errorf("%q is read as %q", text, d)
		}
		if raw, err := hex.DecodeString(strings.TrimPrefix(text, "sha256:")); err != nil || len(raw) != sha256.Size || "sha256:"+hex.EncodeToString(raw) != text {
			t.Errorf("%q is no digest: %v", text, err)
		}
	})
}

func TestPutRefuses(t *testing.T) {
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, folder, 64<<10)
	kept := put(t, s, noise(8<<10))
	broken := errors.New("the source broke")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		r    io.Reader
		most int64
		want error
	}{
		{"one byte too many", context.Background(), bytes.NewReader(noise(101)), 100, artifacts.ErrTooLarge},
		{"one byte where none may be", context.Background(), bytes.NewReader(noise(1)), 0, artifacts.ErrTooLarge},
		{"a negative bound", context.Background(), bytes.NewReader(noise(1)), -1, artifacts.ErrTooLarge},
		{"no end", context.Background(), endless{}, 32 << 10, artifacts.ErrTooLarge},
		{"more than the quota", context.Background(), bytes.NewReader(noise(60 << 10)), most, artifacts.ErrFull},
		{"no end, up to the quota", context.Background(), endless{}, most, artifacts.ErrFull},
		{"a source that breaks", context.Background(), io.MultiReader(bytes.NewReader(noise(10<<10)), iotest.ErrReader(broken)), most, broken},
		{"a source that stops giving", context.Background(), stuck{}, most, io.ErrNoProgress},
		{"cancelled", cancelled, bytes.NewReader(noise(1)), most, context.Canceled},
	} {
		before := s.Usage()
		d, size, err := s.Put(tc.ctx, tc.r, tc.most)
		if !errors.Is(err, tc.want) || d != "" || size != 0 {
			t.Errorf("%s: %q, %d, %v; want %v", tc.name, d, size, err, tc.want)
		}
		if after := s.Usage(); after != before {
			t.Errorf("%s: usage %+v, before %+v", tc.name, after, before)
		}
		if got := files(t, folder); len(got) != 1 || got[0] != at(folder, kept) {
			t.Errorf("%s leaves %q", tc.name, got)
		}
	}
	// What is left of the quota can be used still, to the last block.
	put(t, s, noise(56<<10))
	if _, _, err := s.Put(context.Background(), strings.NewReader(""), 1); !errors.Is(err, artifacts.ErrFull) {
		t.Errorf("an empty file in a full store: %v, want %v", err, artifacts.ErrFull)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// A disk that is full says so, and leaves nothing half written.
func TestDiskFull(t *testing.T) {
	disk := t.TempDir()
	storetest.Need(t, "tmpfs mount", unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	folder := filepath.Join(disk, "artifacts")
	s := open(t, folder, 0)
	kept := put(t, s, noise(300<<10))
	before := s.Usage()
	if _, _, err := s.Put(context.Background(), bytes.NewReader(noise(2<<20)), most); !errors.Is(err, artifacts.ErrFull) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("put: %v, want %v and %v", err, artifacts.ErrFull, unix.ENOSPC)
	}
	if got := files(t, folder); len(got) != 1 || got[0] != at(folder, kept) || s.Usage() != before {
		t.Errorf("files %q, usage %+v, before %+v", got, s.Usage(), before)
	}
	put(t, s, noise(300<<10)) // there is room again
}

func TestSameAtOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "artifacts")
	s := open(t, folder, 0)
	same := noise(200 << 10)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for _, b := range [][]byte{same, fmt.Appendf(nil, "%d", i%4)} {
				if d, _, err := s.Put(context.Background(), iotest.HalfReader(bytes.NewReader(b)), most); err != nil || d != named(b) {
					t.Errorf("put: %s, %v", d, err)
				}
				if got, err := get(s, named(b)); err != nil || !bytes.Equal(got, b) {
					t.Errorf("get: %d bytes, %v", len(got), err)
				}
			}
		})
	}
	group.Wait()
	if got, u := files(t, folder), s.Usage(); len(got) != 5 || u.Files != 5 || u.Bytes != 200<<10+4*4096 {
		t.Errorf("%d files, usage %+v", len(got), u)
	}
}

// What is wrong on disk is never given as if it was right, and the right bytes put
// again heal it.
func TestCorrupt(t *testing.T) {
	damage := map[string]func(t *testing.T, path string, b []byte) error{
		"a flipped bit at the beginning": func(t *testing.T, path string, b []byte) error {
			b[0] ^= 1
			return os.WriteFile(path, b, 0o600)
		},
		"a flipped bit at the end": func(t *testing.T, path string, b []byte) error {
			b[len(b)-1] ^= 1
			return os.WriteFile(path, b, 0o600)
		},
		"a byte too many": func(t *testing.T, path string, b []byte) error {
			return os.WriteFile(path, append(b, 0), 0o600)
		},
		"a byte too few": func(t *testing.T, path string, b []byte) error {
			return os.WriteFile(path, b[:len(b)-1], 0o600)
		},
		"nothing": func(t *testing.T, path string, b []byte) error { return os.WriteFile(path, nil, 0o600) },
		"a pipe": func(t *testing.T, path string, b []byte) error {
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
		},
		"a folder": func(t *testing.T, path string, b []byte) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		},
		"a link to elsewhere": func(t *testing.T, path string, b []byte) error {
			return errors.Join(os.Rename(path, path+"-"), os.Symlink("/etc/passwd", path))
		},
	}
	for name, harm := range damage {
		for _, n := range []int{2, 1 << 20, 1<<20 + 1, 1<<20 + 64<<10} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				folder := filepath.Join(t.TempDir(), "artifacts")
				s := open(t, folder, 0)
				b := noise(n)
				d := put(t, s, b)
				path := at(folder, d)
				if err := os.Chmod(path, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := harm(t, path, bytes.Clone(b)); err != nil {
					t.Fatal(err)
				}
				got, err := get(s, d)
				if err == nil || len(got) >= len(b) {
					t.Errorf("get: %d of %d bytes, %v", len(got), len(b), err)
				}
				if n <= 1<<20 && name != "a byte too many" && len(got) > 0 {
					t.Errorf("%d bytes of a small file were given", len(got))
				}
				if err := s.Check(context.Background(), d); err == nil {
					t.Error("the check finds nothing")
				}
				if name == "a folder" {
					return // which a file cannot replace
				}
				put(t, s, b)
				if got, err := get(s, d); err != nil || !bytes.Equal(got, b) {
					t.Errorf("put again: %d bytes, %v", len(got), err)
				}
			})
		}
	}
}

func TestGone(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "artifacts")
	s := open(t, folder, 0)
	d := put(t, s, []byte("x"))
	if err := s.Check(context.Background(), d); err != nil {
		t.Errorf("check: %v", err)
	}
	if err := os.Remove(at(folder, d)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(d); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("open: %v, want %v", err, artifacts.ErrNotFound)
	}
	if err := s.Check(context.Background(), d); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("check: %v, want %v", err, artifacts.ErrNotFound)
	}
}

func TestOpenStore(t *testing.T) {
	for name, c := range map[string]artifacts.Config{
		"a negative quota": {Folder: filepath.Join(t.TempDir(), "a"), Quota: -1},
		"no folder":        {},
	} {
		if s, err := artifacts.Open(c); err == nil {
			t.Errorf("%s: %v opens", name, s)
		}
	}
	// A folder that others can look into.
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := artifacts.Open(artifacts.Config{Folder: folder}); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a folder of mode 0750: %v", err)
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	// What a crash left is removed; what somebody put there is counted and left alone.
	for name, b := range map[string]string{"tmp/half": "written", "tmp/more/below": "x", "sha256/README": "hello"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, folder, 0)
	if got := files(t, folder); len(got) != 1 || filepath.Base(got[0]) != "README" {
		t.Errorf("left are %q", got)
	}
	if u := s.Usage(); u.Files != 1 || u.Bytes != 4096 {
		t.Errorf("usage: %+v", u)
	}
	put(t, s, []byte("as before"))
}

func TestSmallReads(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "artifacts"), 0)
	b := noise(1<<20 + 3)
	f, err := s.Open(put(t, s, b))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := iotest.TestReader(f, b); err != nil {
		t.Error(err)
	}
}
