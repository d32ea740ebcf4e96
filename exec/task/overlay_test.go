package task

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is laid over a source replaces what stands there, and is written through no link.
func TestOverlay(t *testing.T) {
	work, _, err := unpack(t, archive(t,
		entry{name: "same", content: "old"}, entry{name: "run", content: "old", mode: 0o700}, entry{name: "other", content: "kept"},
		entry{name: "link", kind: tar.TypeSymlink, link: "other"}, entry{name: "d", kind: tar.TypeSymlink, link: "e"}, entry{name: "e/f", content: "kept"},
		entry{name: "folder/f", content: "old"}), small)
	if err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(t.TempDir(), "returned")
	for name, content := range map[string]string{"same": "new", "run": "new", "link": "new", "d/f": "new", "folder": "new", "fresh/x": "new"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lay := func() error {
		to, err := os.OpenRoot(work)
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		of, err := os.OpenRoot(from)
		if err != nil {
			t.Fatal(err)
		}
		defer of.Close()
		return overlay(t.Context(), to, of, small, nil)
	}
	for range 2 { // again is the same
		if err := lay(); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"same": "new", "run": "new", "link": "new", "d/f": "new", "folder": "new", "fresh/x": "new", "other": "kept", "e/f": "kept"} {
		info, err := os.Lstat(filepath.Join(work, name))
		if err != nil || !info.Mode().IsRegular() || (info.Mode().Perm() == 0o700) != (name == "run") {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if b, err := os.ReadFile(filepath.Join(work, name)); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v; want %q", name, b, err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "large"), make([]byte, 1001), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lay(); err == nil || !strings.Contains(err.Error(), "more bytes") {
		t.Errorf("large: got %v", err)
	}
	if err := os.Remove(filepath.Join(from, "large")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lay(); err == nil || !strings.Contains(err.Error(), "neither a file nor a folder") {
		t.Errorf("pipe: got %v", err)
	}
}
