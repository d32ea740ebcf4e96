package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file is replaced, and nothing else is: not a device, not a folder.
func TestArtifactFileReplacesFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("pipe", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir + "/link", dir, os.DevNull} {
		var usage *usageError
		if _, err := new(client).artifactFile(t.Context(), "sha256:", path); !errors.As(err, &usage) {
			t.Errorf("%s: got %v, want a usage error", path, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"1B": 1, "1KiB": 1 << 10, "512MiB": 512 << 20, "4GiB": 4 << 30, "8589934591GiB": 8589934591 << 30,
		"": 0, "1": 0, "0B": 0, "-1MiB": 0, "+1MiB": 0, "MiB": 0, "1.5GiB": 0, "1 GiB": 0, "1GB": 0, "1gib": 0, "8589934592GiB": 0, "1KiBB": 0,
	} {
		var s sizeFlag
		if err := s.Set(text); (err == nil) != (want > 0) || int64(s) != want {
			t.Errorf("%q: got %d, %v; want %d", text, s, err, want)
		}
		if want == 0 {
			continue
		}
		var again sizeFlag
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%q is written %q: %v", text, s.String(), err)
		}
	}
	for bytes, want := range map[int64]string{0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 5 << 28: "1.2 GiB"} {
		if got := size(bytes); got != want {
			t.Errorf("%d bytes: got %q, want %q", bytes, got, want)
		}
	}
}
