package notary_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/service/journal/notary"
)

func remembered(t testing.TB, dir string, key notary.Key) (notary.Checkpoint, bool) {
	t.Helper()
	cp, found, err := notary.Remembered(filepath.Join(dir, "audit"), key)
	if err != nil {
		t.Fatal(err)
	}
	return cp, found
}

// The last checkpoint stands beside the key too, once the notary has ended and as soon
// as it has signed at all.
func TestRemembers(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 8)
	if cp, found := remembered(t, dir, n.Key()); found {
		t.Errorf("before anything is signed: %+v", cp)
	}
	write(t, s, 0, 3)
	first := checkpoint(t, n)
	write(t, s, 3, 20)
	last := checkpoint(t, n)
	// The file is written behind the checkpoint that is handed out, so at least the
	// first one stands there when the second one was signed.
	if cp, found := remembered(t, dir, n.Key()); !found || cp.Size < first.Size {
		t.Errorf("while it signs: %+v, %v", cp, found)
	}
	if got := n.Sealed(); got != last {
		t.Errorf("sealed is %+v, want %+v", got, last)
	}
	n.Close(t.Context())
	if cp, _ := remembered(t, dir, n.Key()); cp != last {
		t.Errorf("after its end: %+v, want %+v", cp, last)
	}
	if names, err := os.ReadDir(filepath.Join(dir, "audit")); err != nil || len(names) != 3 {
		t.Errorf("the folder holds %v, %v", names, err)
	}
}

// Whoever can write the journal and has no key cannot get another history signed: not
// by taking back the log, and not by taking back the journal.
func TestSignsNoOtherHistory(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string // "" is that it signs
	}{
		"nothing":             {func(*testing.T, string) {}, ""},
		"the file is missing": {func(t *testing.T, dir string) { drop(t, dir) }, ""},
		"the log removed, an event changed": {func(t *testing.T, dir string) {
			edit(t, dir, `DELETE FROM notary_batch`, `UPDATE journal_events SET kind = 'nothing' WHERE position = 3`)
		}, "the log ends at position 0, behind the checkpoint in"},
		"its end removed, an event changed": {func(t *testing.T, dir string) {
			edit(t, dir, `DELETE FROM notary_batch WHERE size > 8`, `UPDATE journal_events SET kind = 'nothing' WHERE position = 15`)
		}, "the log ends at position 6, behind the checkpoint in"},
		"another key's": {func(t *testing.T, dir string) {
			other, _, _ := filled(t, 3)
			put(t, dir, string(read(t, other)))
		}, "is not signed by the key"},
		"nonsense": {func(t *testing.T, dir string) { put(t, dir, "nonsense\n") }, "malformed note"},
		"much":     {func(t *testing.T, dir string) { put(t, dir, strings.Repeat("x", 5000)) }, "a checkpoint of"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, key, _ := filled(t, 20)
			c.spoil(t, dir)
			s := openStore(t, dir)
			n := openNotary(t, dir, s, 8)
			write(t, s, 100, 110)
			cp, err := n.Checkpoint(t.Context())
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				n.Close(t.Context())
				if again, _ := remembered(t, dir, key); again != cp {
					t.Errorf("remembered %+v, want %+v", again, cp)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v; want %q", cp, err, c.want)
			}
		})
	}
}

// An older copy of the journal beside the newer checkpoint is found at the start.
func TestRememberedBeforeAnOlderCopy(t *testing.T) {
	dir, _, _ := filled(t, 30)
	path := filepath.Join(dir, "journal.db")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 8)
	write(t, s, 30, 40)
	n.Close(t.Context())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	n = openNotary(t, dir, s, 8)
	if err := n.Err(t.Context()); err == nil || !strings.Contains(err.Error(), "the log ends at position 30, behind the checkpoint in") {
		t.Errorf("got %v", err)
	}
}

func rememberedFile(dir string) string { return filepath.Join(dir, "audit", "checkpoint") }

func read(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(rememberedFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(t testing.TB, dir, text string) {
	t.Helper()
	if err := os.WriteFile(rememberedFile(dir), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func drop(t testing.TB, dir string) {
	t.Helper()
	if err := os.Remove(rememberedFile(dir)); err != nil {
		t.Fatal(err)
	}
}
