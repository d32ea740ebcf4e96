package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"inband/exec/sandbox"
)

// A stamp is another when something else stands at a path of the policy, and only then.
func TestStamp(t *testing.T) {
	dir := t.TempDir()
	file, missing := filepath.Join(dir, "file"), filepath.Join(dir, "missing")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(file)
	s, err := sandbox.New(sandbox.Policy{Program: "/bin/echo", Read: []string{file, missing}})
	if err != nil {
		t.Fatal(err)
	}
	before := s.Stamp()
	if err := os.WriteFile(file, []byte("more"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.Stamp() != before {
		t.Error("another stamp for the same file with other bytes")
	}
	write(file)
	replaced := s.Stamp()
	if replaced == before {
		t.Error("the same stamp for a file that was put in the place of one")
	}
	write(missing)
	if s.Stamp() == replaced {
		t.Error("the same stamp where there was nothing and is a file")
	}
}
