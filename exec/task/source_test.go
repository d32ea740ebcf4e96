package task

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/dirhash"
)

// entry is one of an archive of the tests; a name with "/" at its end is a folder.
type entry struct {
	name, content string
	kind          byte
	link          string
	mode          int64
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.content)), Mode: e.mode}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(e.name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

func unpack(t testing.TB, b []byte, bounds Bounds) (folder, digest string, err error) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	digest, err = Unpack(context.Background(), root, bytes.NewReader(b), bounds, nil)
	return folder, digest, err
}

var small = Bounds{Entries: 20, Bytes: 1000, Depth: 5}

// What is unpacked is what was packed, and its digest is dirhash's.
func TestUnpack(t *testing.T) {
	b := archive(t,
		entry{name: "pax_global_header", kind: tar.TypeXGlobalHeader},
		entry{name: "./"}, entry{name: "./a", content: "one"}, entry{name: "b/"}, entry{name: "b/run", content: "#!/bin/sh\n", mode: 0o4755},
		entry{name: "b/c/implied"}, entry{name: "ünï cöde", content: "x"}, entry{name: "back\\slash", content: "y"})
	for name, b := range map[string][]byte{"plain": b, "gzipped": zipped(t, b), "trailing": append(bytes.Clone(b), make([]byte, 5000)...)} {
		folder, digest, err := unpack(t, b, small)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want, err := dirhash.HashDir(folder, "", dirhash.Hash1)
		if err != nil || digest != want {
			t.Errorf("%s: digest %s, want %s, %v", name, digest, want, err)
		}
		for file, mode := range map[string]fs.FileMode{"a": 0o600, "b/run": 0o700, "b": 0o700 | fs.ModeDir, "b/c/implied": 0o600, "ünï cöde": 0o600} {
			if info, err := os.Lstat(filepath.Join(folder, file)); err != nil || info.Mode() != mode {
				t.Errorf("%s: %s: %v, %v; want %v", name, file, info, err, mode)
			}
		}
	}
}

// Links are part of the digest, and none is a file with the same content.
func TestUnpackLinks(t *testing.T) {
	digests := map[string]string{}
	for name, entries := range map[string][]entry{
		"link":        {{name: "a", content: "x"}, {name: "l", kind: tar.TypeSymlink, link: "a"}},
		"elsewhere":   {{name: "a", content: "x"}, {name: "l", kind: tar.TypeSymlink, link: "b"}},
		"file":        {{name: "a", content: "x"}, {name: "l", content: "a"}},
		"none":        {{name: "a", content: "x"}},
		"up and down": {{name: "a", content: "x"}, {name: "d/e/l", kind: tar.TypeSymlink, link: "../../a"}, {name: "l", kind: tar.TypeSymlink, link: "d/e/l"}},
		"before":      {{name: "l", kind: tar.TypeSymlink, link: "d"}, {name: "d/f", content: "1"}},
	} {
		folder, digest, err := unpack(t, archive(t, entries...), small)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if other, twice := digests[digest]; twice {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		digests[digest] = name
		for _, e := range entries {
			if e.kind == tar.TypeSymlink {
				if got, err := os.Readlink(filepath.Join(folder, e.name)); err != nil || got != e.link {
					t.Errorf("%s: %s is a link to %q, %v; want %q", name, e.name, got, err, e.link)
				}
			}
		}
	}
	_, digest, err := unpack(t, archive(t, entry{name: "l", kind: tar.TypeSymlink, link: "a"}), small)
	line := sha256.Sum256(fmt.Appendf(nil, "%x  l\x00link\n", sha256.Sum256([]byte("a"))))
	if want := "h1:" + base64.StdEncoding.EncodeToString(line[:]); err != nil || digest != want {
		t.Errorf("got %s, %v; want %s", digest, err, want)
	}
}

// Whatever is odd is refused, and nothing is written anywhere else.
func TestUnpackRefuses(t *testing.T) {
	deep := strings.Repeat("d/", 5)
	many := make([]entry, 0, 21)
	for i := range 21 {
		many = append(many, entry{name: fmt.Sprint("f", i)})
	}
	for name, c := range map[string]struct {
		entries []entry
		want    string
	}{
		"up":              {[]entry{{name: "../out", content: "x"}}, `element ".."`},
		"up within":       {[]entry{{name: "a/../../out", content: "x"}}, `element ".."`},
		"absolute":        {[]entry{{name: "/tmp/out", content: "x"}}, "absolute"},
		"empty element":   {[]entry{{name: "a//b"}}, `element ""`},
		"dot element":     {[]entry{{name: "a/./b"}}, `element "."`},
		"control":         {[]entry{{name: "a\nb"}}, "control characters"},
		"escape":          {[]entry{{name: "a\x1b[2J"}}, "control characters"},
		"not UTF-8":       {[]entry{{name: "a\xff"}}, "not UTF-8"},
		"long element":    {[]entry{{name: strings.Repeat("n", 256)}}, "256 bytes"},
		"twice":           {[]entry{{name: "a"}, {name: "./a"}}, "twice"},
		"file and folder": {[]entry{{name: "a"}, {name: "a/b"}}, "and a folder"},
		"folder and file": {[]entry{{name: "a/b"}, {name: "a"}}, "twice"},
		"file is folder":  {[]entry{{name: "a"}, {name: "a/"}}, "and a folder"},
		"hard link":       {[]entry{{name: "a"}, {name: "b", kind: tar.TypeLink, link: "a"}}, "hard link"},
		"hard link out":   {[]entry{{name: "b", kind: tar.TypeLink, link: "/etc/passwd"}}, "hard link"},
		"device":          {[]entry{{name: "null", kind: tar.TypeChar}}, "device"},
		"block device":    {[]entry{{name: "sda", kind: tar.TypeBlock}}, "device"},
		"pipe":            {[]entry{{name: "p", kind: tar.TypeFifo}}, "pipe"},
		"absolute link":   {[]entry{{name: "l", kind: tar.TypeSymlink, link: "/etc"}}, "absolute"},
		"link up":         {[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}}, "leaves"},
		"link up deep":    {[]entry{{name: "a/b/l", kind: tar.TypeSymlink, link: "../../../x"}}, "leaves"},
		"link over link": {[]entry{{name: "d", kind: tar.TypeSymlink, link: "."}, {name: "x", kind: tar.TypeSymlink, link: "d/d/../.."}},
			"leaves the folder or does not end"},
		"links in a ring":   {[]entry{{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "a"}}, "does not end"},
		"through a link":    {[]entry{{name: "l", kind: tar.TypeSymlink, link: "d"}, {name: "l/f", content: "x"}}, "a file or a link, and a folder"},
		"a link, then file": {[]entry{{name: "l", kind: tar.TypeSymlink, link: "d"}, {name: "l", content: "x"}}, "twice"},
		"link with control": {[]entry{{name: "l", kind: tar.TypeSymlink, link: "a\x07"}}, "control characters"},
		"deep":              {[]entry{{name: deep + "f"}}, "6 folders deep"},
		"many":              {many, "20 entries"},
		"many implied":      {[]entry{{name: "a/b/c/d/e"}, {name: "f/b/c/d/e"}, {name: "g/b/c/d/e"}, {name: "h/b/c/d/e"}, {name: "i"}}, "20 entries"},
		"large":             {[]entry{{name: "a", content: strings.Repeat("x", 600)}, {name: "b", content: strings.Repeat("x", 401)}}, "1000 bytes"},
	} {
		folder, digest, err := unpack(t, archive(t, c.entries...), small)
		var refused *SourceError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || digest != "" {
			t.Errorf("%s: got %q, %v; want a SourceError with %q", name, digest, err, c.want)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\n\x1b\x07") || !utf8.ValidString(err.Error())) {
			t.Errorf("%s: the error has the name as it is: %q", name, err)
		}
		if all, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(all) != 1 {
			t.Errorf("%s: something is beside the folder: %v %v", name, all, err)
		}
	}
}

// A bomb is refused when its bound is reached, and not unpacked to its end.
func TestUnpackBomb(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	const size = 64 << 20
	if err := w.WriteHeader(&tar.Header{Name: "zeroes", Typeflag: tar.TypeReg, Size: size, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeroes{}, size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	folder, _, err := unpack(t, b.Bytes(), Bounds{Entries: 1, Bytes: 1 << 20, Depth: 1})
	var refused *SourceError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	if info, err := os.Stat(filepath.Join(folder, "zeroes")); err != nil || info.Size() > 1<<20+1 {
		t.Errorf("%v %v", info, err)
	}
	// Behind the end of the archive as well.
	b.Reset()
	z = gzip.NewWriter(&b)
	if _, err := z.Write(archive(t, entry{name: "a"})); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(z, zeroes{}, 128<<20); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := unpack(t, b.Bytes(), small); !errors.As(err, &refused) || !strings.Contains(err.Error(), "larger") {
		t.Errorf("behind the end: got %v", err)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestUnpackBroken(t *testing.T) {
	whole := archive(t, entry{name: "a", content: strings.Repeat("x", 900)})
	z := zipped(t, whole)
	spoilt := bytes.Clone(z)
	spoilt[len(spoilt)-5] ^= 1
	for name, b := range map[string][]byte{"cut": whole[:700], "cut gzip": z[:len(z)-9], "spoilt gzip": spoilt, "text": []byte(strings.Repeat("no tar ", 200)), "gzip of text": zipped(t, []byte("text"))} {
		_, _, err := unpack(t, b, small)
		var refused *SourceError
		if !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want a SourceError", name, err)
		}
	}
	// An archive that cannot be read is not the archive's fault.
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var refused *SourceError
	if _, err := Unpack(ctx, root, bytes.NewReader(whole), small, nil); errors.As(err, &refused) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// Whatever the bytes are, nothing is written outside of the folder, no link in it leaves
// it, and the same tree has the same digest.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, entry{name: "a/b", content: "x"}, entry{name: "l", kind: tar.TypeSymlink, link: "a/b"}))
	f.Add(archive(f, entry{name: "../x", content: "x"}))
	f.Add(archive(f, entry{name: "d", kind: tar.TypeSymlink, link: "."}, entry{name: "x", kind: tar.TypeSymlink, link: "d/../.."}))
	f.Add(zipped(f, archive(f, entry{name: "a"})))
	f.Fuzz(func(t *testing.T, b []byte) {
		folder, digest, err := unpack(t, b, small)
		if (err == nil) != strings.HasPrefix(digest, "h1:") {
			t.Fatalf("got %q, %v", digest, err)
		}
		if all, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(all) != 1 {
			t.Fatalf("something is beside the folder: %v %v", all, err)
		}
		if err != nil {
			return
		}
		entries := 0
		walk := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == folder {
				return err
			}
			entries++
			if kind := d.Type(); !kind.IsRegular() && !kind.IsDir() && kind != fs.ModeSymlink {
				t.Errorf("%s is %v", path, kind)
			}
			if real, err := filepath.EvalSymlinks(path); err == nil && real != folder && !strings.HasPrefix(real, folder+"/") {
				t.Errorf("%s leads to %s", path, real)
			}
			return nil
		})
		if walk != nil || entries > small.Entries {
			t.Errorf("%d entries, %v", entries, walk)
		}
		if _, again, err := unpack(t, b, small); err != nil || again != digest {
			t.Errorf("again: %s, %v; want %s", again, err, digest)
		}
	})
}
