package proc

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// onBothWays runs f for a process without namespaces and for one with.
func onBothWays(t *testing.T, f func(t *testing.T, in *Inside)) {
	t.Run("outside", func(t *testing.T) { f(t, nil) })
	t.Run("inside", func(t *testing.T) {
		if _, err := Namespaces(false); err != nil {
			t.Skipf("no namespaces here: %v", err)
		}
		f(t, &Inside{})
	})
}

// A working folder that is there is used, and stays with what is in it.
func TestFolderStays(t *testing.T) {
	onBothWays(t, func(t *testing.T, in *Inside) {
		folder := t.TempDir()
		res, err := Run(t.Context(), Spec{Argv: []string{"/bin/sh", "-c", "pwd; echo kept >file"}, Folder: folder, Inside: in,
			Timeout: time.Minute, OutputMax: 1 << 10})
		if err != nil || res.Exit != 0 || res.Folder != nil {
			t.Fatalf("got %+v, %v", res, err)
		}
		if got := strings.TrimSpace(string(res.Stdout.Head)); got != folder {
			t.Errorf("it worked in %q, want %q", got, folder)
		}
		if b, err := os.ReadFile(filepath.Join(folder, "file")); err != nil || string(b) != "kept\n" {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

func TestFolderIsChecked(t *testing.T) {
	for name, spec := range map[string]Spec{
		"relative": {Folder: "a"}, "not clean": {Folder: "/tmp/"}, "kept": {Folder: "/tmp", Keep: func(*os.Root, Result) {}},
		"made ahead": {Folder: "/tmp", Ahead: &Ahead{}}, "not there": {Folder: filepath.Join(t.TempDir(), "none")},
	} {
		spec.Argv, spec.Timeout, spec.OutputMax = []string{"/bin/true"}, time.Minute, 1
		_, err := Run(t.Context(), spec)
		var start *StartError
		if !errors.As(err, &start) {
			t.Errorf("%s: got %v, want a StartError", name, err)
		}
	}
}

// Begin is told which process it is while that has done nothing yet, and can keep it from
// beginning.
func TestBegin(t *testing.T) {
	onBothWays(t, func(t *testing.T, in *Inside) {
		folder := t.TempDir()
		mark := filepath.Join(folder, "mark")
		var told Process
		spec := Spec{Argv: []string{"/bin/sh", "-c", "echo >mark"}, Folder: folder, Inside: in, Timeout: time.Minute, OutputMax: 1 << 10,
			Begin: func(p Process) error {
				if _, err := os.Stat(mark); err == nil {
					t.Error("it had begun")
				}
				if !p.Lives() {
					t.Errorf("%v does not live", p)
				}
				told = p
				return nil
			}}
		if res, err := Run(t.Context(), spec); err != nil || res.Exit != 0 {
			t.Fatalf("got %+v, %v", res, err)
		}
		if _, err := os.Stat(mark); err != nil || told.PID == 0 || told.Lives() {
			t.Errorf("%v, %v", err, told)
		}
		if err := os.Remove(mark); err != nil {
			t.Fatal(err)
		}
		no := errors.New("no")
		spec.Begin = func(p Process) error { told = p; return no }
		_, err := Run(t.Context(), spec)
		var start *StartError
		if !errors.As(err, &start) || !errors.Is(err, no) {
			t.Errorf("got %v, want a StartError for %v", err, no)
		}
		if _, err := os.Stat(mark); err == nil || told.Lives() {
			t.Errorf("it ran: %v %v", err, told)
		}
	})
}

// A pid alone is not a process.
func TestProcessIsNotItsPID(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil || !self.Lives() {
		t.Fatalf("got %v, %v", self, err)
	}
	ticks, boot, _ := strings.Cut(self.Start, "@")
	for _, other := range []Process{{self.PID, "1" + ticks + "@" + boot}, {self.PID, ticks + "@" + boot[1:]}, {1 << 30, self.Start}} {
		if other.Lives() {
			t.Errorf("%v lives", other)
		}
	}
}

// Output gets all that is written, in the order of each stream, also what is not kept.
func TestOutputIsHandedOn(t *testing.T) {
	onBothWays(t, func(t *testing.T, in *Inside) {
		var both [2]bytes.Buffer
		res, err := Run(t.Context(), Spec{Argv: []string{"/bin/sh", "-c", "seq 20000; seq 30000 >&2"}, Inside: in, Timeout: time.Minute, OutputMax: 100,
			Output: func(stderr bool, p []byte) {
				i := 0
				if stderr {
					i = 1
				}
				both[i].Write(p)
			}})
		if err != nil || res.Exit != 0 {
			t.Fatalf("got %+v, %v", res, err)
		}
		for i, last := range []string{"\n20000\n", "\n30000\n"} {
			if got := both[i].String(); !strings.HasPrefix(got, "1\n2\n") || !strings.HasSuffix(got, last) || strings.Count(got, "\n") != 20000+10000*i {
				t.Errorf("stream %d: %d bytes, ends %q", i, len(got), got[max(0, len(got)-10):])
			}
		}
		if res.Stdout.Total() != int64(both[0].Len()) || !res.Truncated() {
			t.Errorf("total %d, handed on %d", res.Stdout.Total(), both[0].Len())
		}
	})
}

// Whoever outlives SIGKILL is named.
func TestSurvivorsAreNamed(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	var mine []stat
	for _, s := range all {
		if s.pid == self.PID {
			mine = append(mine, s, stat{pid: 1 << 29, state: 'Z'})
		}
	}
	if got := identities(mine); len(got) != 1 || got[0] != self {
		t.Errorf("got %v, want %v alone", got, self)
	}
}
