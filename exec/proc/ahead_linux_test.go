package proc

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// follow is a Spec whose launches are made ahead. Its process prints its folder.
type follow struct {
	Spec
	stamp    atomic.Value // string
	confined atomic.Int64 // calls of Confine
	refuse   atomic.Bool  // Confine refuses
}

var errRefused = errors.New("refused")

func newFollow(t *testing.T) *follow {
	f := &follow{}
	f.stamp.Store("a")
	f.Spec = Spec{Argv: []string{"/bin/pwd"}, Timeout: time.Minute, OutputMax: 4 << 10, Scratch: t.TempDir(),
		Ahead: &Ahead{Stamp: func() string { return f.stamp.Load().(string) }},
		Confine: func(string) error {
			f.confined.Add(1)
			if f.refuse.Load() {
				return errRefused
			}
			return nil
		},
	}
	t.Cleanup(Discard)
	return f
}

// folder runs the process and returns its folder.
func (f *follow) folder(t *testing.T) string {
	t.Helper()
	res, err := Run(t.Context(), f.Spec)
	if err != nil {
		t.Fatal(err)
	}
	folder := strings.TrimSpace(string(res.Stdout.Head))
	if res.Exit != 0 || !strings.HasPrefix(folder, f.Scratch) {
		t.Fatalf("exit %d, %q %q; want a folder in %s", res.Exit, folder, res.Stderr.Head, f.Scratch)
	}
	if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the folder %s is still there: %v", folder, err)
	}
	return folder
}

// kept returns the launch that is made ahead for f, nil if there is none.
func (f *follow) kept() *ahead {
	aheadsMu.Lock()
	defer aheadsMu.Unlock()
	return f.Ahead.next
}

func (f *follow) folders(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir(f.Scratch)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A run that follows another has its launch made before it begins, and none is used
// twice.
func TestAhead(t *testing.T) {
	f := newFollow(t)
	f.folder(t)
	if f.kept() != nil {
		t.Fatal("a launch is kept for a run that nothing says will come")
	}
	var seen []string
	for range 5 {
		before := f.kept()
		folder := f.folder(t)
		if before != nil && before.l.folder != folder {
			t.Fatalf("it ran in %s; want %s, which was made ahead", folder, before.l.folder)
		}
		if slices.Contains(seen, folder) {
			t.Fatalf("two runs in %s", folder)
		}
		seen = append(seen, folder)
		next := f.kept()
		if next == nil {
			t.Fatal("no launch was made ahead")
		}
		<-next.made
	}
	if got := f.confined.Load(); got != 7 {
		t.Errorf("%d launches for 6 runs and one ahead; want 7", got)
	}
	if got := f.folders(t); got != 1 {
		t.Errorf("%d folders; want the one that was made ahead", got)
	}
	Discard()
	if got := f.folders(t); got != 0 {
		t.Errorf("%d folders are left; want none", got)
	}
	f.folder(t) // and it goes on
}

// A launch that rests on what has changed is not used.
func TestAheadStale(t *testing.T) {
	f := newFollow(t)
	f.folder(t)
	f.folder(t)
	old := f.kept()
	<-old.made
	f.stamp.Store("b")
	if folder := f.folder(t); folder == old.l.folder {
		t.Fatal("a launch was used that was made for something else")
	}
	if _, err := os.Lstat(old.l.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the launch that was not used: %v", err)
	}
}

// A launch that nobody takes is ended, with its folder.
func TestAheadDropped(t *testing.T) {
	f := newFollow(t)
	f.folder(t)
	f.folder(t)
	n := f.kept()
	<-n.made
	f.Ahead.drop(n)
	if f.kept() != nil || f.folders(t) != 0 {
		t.Errorf("kept %v, %d folders; want nothing", f.kept(), f.folders(t))
	}
	f.Ahead.drop(n) // as its time passes
	f.folder(t)
}

// A launch that cannot be made ahead fails no run but its own.
func TestAheadFails(t *testing.T) {
	f := newFollow(t)
	f.folder(t)
	f.refuse.Store(true)
	var start *StartError
	if _, err := Run(t.Context(), f.Spec); !errors.As(err, &start) || !errors.Is(err, errRefused) {
		t.Fatalf("got %v, want a StartError", err)
	}
	if n := f.kept(); n == nil {
		t.Fatal("no launch was made ahead")
	} else if <-n.made; !errors.Is(n.err, errRefused) {
		t.Fatalf("ahead: %v", n.err)
	}
	f.refuse.Store(false)
	f.folder(t)
	Discard()
	if got := f.folders(t); got != 0 {
		t.Errorf("%d folders are left; want none", got)
	}
}

// Many at once each have their own, also while all that is ahead is discarded.
func TestAheadAtOnce(t *testing.T) {
	f := newFollow(t)
	var mu sync.Mutex
	seen := map[string]bool{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				folder := f.folder(t)
				mu.Lock()
				if seen[folder] {
					t.Errorf("two runs in %s", folder)
				}
				seen[folder] = true
				mu.Unlock()
			}
		})
	}
	group.Go(func() {
		for range 50 {
			Discard()
		}
	})
	group.Wait()
	Discard()
	if got := f.folders(t); got != 0 {
		t.Errorf("%d folders are left; want none", got)
	}
}
