package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file as the standard input, and further descriptors, are the process's; nothing of
// them is closed or moved for the caller.
func TestGivenFiles(t *testing.T) {
	dir := t.TempDir()
	open := func(name, text string) *os.File {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	res, err := Run(t.Context(), Spec{Argv: []string{"/bin/cat", "-", "/dev/fd/3", "/dev/fd/4"}, Timeout: time.Minute, OutputMax: 1 << 10,
		StdinFile: open("in", "in "), Files: []*os.File{open("three", "three "), open("four", "four")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(res.Stdout.Head); got != "in three four" || res.Exit != 0 {
		t.Errorf("got %q, exit %d, %s; want the three files", got, res.Exit, res.Stderr.Head)
	}
}

// A file that is closed is no descriptor of the process, and nothing runs.
func TestClosedFile(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]Spec{"stdin": {StdinFile: f}, "further": {Files: []*os.File{f}}} {
		spec.Argv, spec.Timeout, spec.OutputMax = []string{"/bin/true"}, time.Minute, 100
		var start *StartError
		if res, err := Run(t.Context(), spec); !errors.As(err, &start) {
			t.Errorf("%s: got %+v, %v; want a StartError", name, res, err)
		}
	}
}
