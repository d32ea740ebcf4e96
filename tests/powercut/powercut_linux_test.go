package powercut

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// mount mounts a disk for the test, or skips it where that cannot be.
func mount(t *testing.T, from string) (*Disk, string) {
	t.Helper()
	at := t.TempDir()
	d, err := Mount(at, from)
	if err != nil {
		if os.Getenv("INBAND_CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("needs FUSE and the right to mount: %v", err)
	}
	return d, at
}

// write writes a file and syncs it, its folder, or neither.
func write(t *testing.T, path, text string, file, folder bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if file {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if folder {
		syncFolder(t, filepath.Dir(path))
	}
}

func syncFolder(t *testing.T, folder string) {
	t.Helper()
	f, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// What was synced is there after every cut; what was not is there after some and gone
// after others, or a part of it is.
func TestCut(t *testing.T) {
	const text = "0123456789abcdef"
	long := make([]byte, 8*sector)
	for i := range long {
		long[i] = 'x'
	}
	seen := map[string]map[string]bool{"bytes": {}, "name": {}, "renamed": {}, "removed": {}}
	for seed := range uint64(60) {
		d, at := mount(t, "")
		write(t, filepath.Join(at, "synced"), text, true, true)
		write(t, filepath.Join(at, "gone"), text, true, true)
		write(t, filepath.Join(at, "bytes"), "", true, true)
		write(t, filepath.Join(at, "bytes"), string(long), false, false)
		write(t, filepath.Join(at, "name"), text, true, false)
		if err := os.Rename(filepath.Join(at, "name"), filepath.Join(at, "renamed")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(at, "gone")); err != nil {
			t.Fatal(err)
		}
		d.Dead()
		if err := os.WriteFile(filepath.Join(at, "late"), nil, 0o600); err == nil {
			t.Fatal("a disk without power took a file")
		}
		to := filepath.Join(t.TempDir(), "left")
		if err := d.Cut(rand.New(rand.NewPCG(seed, 0)), to); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(to, "synced")); err != nil || string(b) != text {
			t.Fatalf("seed %d: what was synced is %q, %v", seed, b, err)
		}
		b, err := os.ReadFile(filepath.Join(to, "bytes"))
		if err != nil {
			t.Fatal(err)
		}
		switch whole := string(b) == string(long); {
		case whole:
			seen["bytes"]["all"] = true
		case len(b) == 0:
			seen["bytes"]["none"] = true
		default:
			seen["bytes"]["some"] = true
		}
		for name, file := range map[string]string{"name": "name", "renamed": "renamed", "removed": "gone"} {
			_, err := os.Stat(filepath.Join(to, file))
			seen[name][map[bool]string{true: "there", false: "gone"}[!errors.Is(err, fs.ErrNotExist)]] = true
		}
	}
	for what, want := range map[string][]string{"bytes": {"all", "some", "none"}, "renamed": {"there", "gone"}, "removed": {"there", "gone"}} {
		for _, w := range want {
			if !seen[what][w] {
				t.Errorf("of 60 cuts none had %s %s", what, w)
			}
		}
	}
	if seen["name"]["there"] {
		t.Error("a name that was never synced and was changed is there")
	}
}

// A disk begins with what another has left.
func TestMount_From(t *testing.T) {
	d, at := mount(t, "")
	if err := os.Mkdir(filepath.Join(at, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(at, "folder", "file"), "text", true, true)
	syncFolder(t, at)
	to := filepath.Join(t.TempDir(), "left")
	if err := d.Cut(rand.New(rand.NewPCG(1, 0)), to); err != nil {
		t.Fatal(err)
	}
	d, at = mount(t, to)
	b, err := os.ReadFile(filepath.Join(at, "folder", "file"))
	if err != nil || string(b) != "text" {
		t.Errorf("the file is %q, %v", b, err)
	}
	if err := d.Unmount(); err != nil {
		t.Fatal(err)
	}
}
