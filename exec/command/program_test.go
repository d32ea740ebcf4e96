package command

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/exec/sandbox"
	"inband/ops"
)

// between is a sandbox that does something after the program has been looked at and
// before it is started.
type between struct {
	confiner
	do func()
}

func (b between) Confine(folder string) error {
	b.do()
	return b.confiner.Confine(folder)
}

// A program that is not the one that was looked at does not get to run, however it was
// put there.
func TestReplacedProgram(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, path string){
		"another file": func(t *testing.T, path string) {
			other := script(t, t.TempDir(), "other")
			if err := os.Rename(other, path); err != nil {
				t.Error(err)
			}
		},
		"other bytes": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString("x")
				f.Close()
			}
			if err != nil {
				t.Error(err)
			}
		},
		"a link elsewhere": func(t *testing.T, path string) {
			os.Remove(path)
			if err := os.Symlink("/bin/false", path); err != nil {
				t.Error(err)
			}
		},
	} {
		for kind, make := range map[string]func(*testing.T, string) string{
			"program": func(t *testing.T, dir string) string { return script(t, dir, "program") },
			"script": func(t *testing.T, dir string) string {
				path := filepath.Join(dir, "program")
				if err := os.WriteFile(path, []byte("#!/bin/sh\n:\n"), 0o700); err != nil {
					t.Fatal(err)
				}
				return path
			},
		} {
			t.Run(name+" for a "+kind, func(t *testing.T) {
				path := make(t, t.TempDir())
				o := op(t, "")
				o.Command.Argv = []ops.Arg{word(path)}
				e, err := prepare(o, testConfig)
				if err != nil {
					t.Fatal(err)
				}
				call := ops.Call{Params: json.RawMessage(`{}`)}
				if out, err := e.Execute(t.Context(), call); err != nil || out.State != ops.Succeeded {
					t.Fatalf("before: %v, %v", out, err)
				}
				e.box, e.ahead = between{e.box, func() { replace(t, path) }}, nil
				out, err := e.Execute(t.Context(), call)
				if err != nil {
					t.Fatal(err)
				}
				if f := failure(t, out, ops.Failed, ops.Unavailable); !strings.Contains(f.Message, "replaced or changed") || f.Details["started"] != false {
					t.Errorf("got %v %v", f, f.Details)
				}
			})
		}
	}
}

func TestPin(t *testing.T) {
	path := script(t, t.TempDir(), "program")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	o := op(t, "")
	o.Command.Argv, o.Command.SHA256 = []ops.Arg{word(path)}, hex.EncodeToString(sum[:])
	e, err := New(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	call := ops.Call{Params: json.RawMessage(`{}`)}
	out, err := e.Execute(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	success(t, out)
	if err := os.WriteFile(path, append(b, 'x'), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err = e.Execute(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Failed, ops.Unavailable); !strings.Contains(f.Message, o.Command.SHA256) || f.Details["started"] != false {
		t.Errorf("got %v %v", f, f.Details)
	}
	if _, err := New(o, testConfig); err == nil {
		t.Error("an op whose program has another digest was bound")
	}
}

// The interpreter of a script is held to what a program is held to.
func TestCheckInterpreter(t *testing.T) {
	dir := t.TempDir()
	interpreter := script(t, dir, "interpreter")
	path := filepath.Join(dir, "script")
	if err := os.WriteFile(path, []byte("#! "+interpreter+" -x\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(interpreter, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(path); err == nil || !strings.Contains(err.Error(), interpreter+": anybody may write to it") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(path, []byte("#!"+path+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(path); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("a script of itself: got %v", err)
	}
}

// A digest is remembered for a file that has been left alone, and for that only.
func TestDigests(t *testing.T) {
	path := script(t, t.TempDir(), "program")
	var d digests
	of := func(path string) string {
		f, info, err := openRegular(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		sum, err := d.of(f, info)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	first := of(path)
	if len(d.seen) != 0 {
		t.Error("the digest of a file that was just written was remembered")
	}
	if err := os.WriteFile(path, []byte("other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if of(path) == first {
		t.Error("the digest did not change")
	}
	for range 2 {
		if sum := of("/bin/true"); len(sum) != 64 || len(d.seen) != 1 {
			t.Errorf("got %q, remembered %v", sum, d.seen)
		}
	}
}

var _ confiner = (*sandbox.Sandbox)(nil)

// What an examination found counts for as long as the very same file is there.
func TestExamineRemembers(t *testing.T) {
	path := script(t, t.TempDir(), "program")
	o := op(t, "")
	o.Command.Argv = []ops.Arg{word(path)}
	e, err := prepare(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.examine(path, ""); err != nil || e.known.program != nil {
		t.Errorf("a file that was just written: %v, remembered %v", err, e.known.program)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := e.examine(path, ""); err == nil {
		t.Error("a file that anybody may write to")
	}
	first, err := e.examine("/bin/true", "")
	if err != nil || e.known.program != first {
		t.Fatalf("got %v, remembered %v", err, e.known.program)
	}
	if again, err := e.examine("/bin/true", ""); err != nil || again != first {
		t.Errorf("got %v, %v", again, err)
	}
	if other, err := e.examine("/bin/false", ""); err != nil || other == first {
		t.Errorf("another program: got %v, %v", other, err)
	}
	changed := *first
	changed.files = []programFile{first.files[0]}
	changed.files[0].id.size++
	e.known.program = &changed
	changed.files[0].path = "/bin/true"
	if again, err := e.examine("/bin/true", ""); err != nil || again == &changed || again.sha256 != first.sha256 {
		t.Errorf("a file that was changed: got %v, %v", again, err)
	}
}

// checkProgram says why no op may start the program at path.
func checkProgram(path string) error {
	_, err := new(executor).examine(path, "")
	return err
}
