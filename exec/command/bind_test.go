package command

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inband/ops"
)

// Whatever an approved call rests on is seen to change (x47), and what it does not rest
// on is not.
func TestBindNamesWhatChanges(t *testing.T) {
	type setting struct {
		dir string
		op  ops.Op
	}
	set := func(t *testing.T) setting {
		dir := t.TempDir()
		program := script(t, dir, "program")
		if err := errors.Join(os.WriteFile(dir+"/script", []byte("first"), 0o644), os.MkdirAll(dir+"/root/a/b", 0o755),
			os.WriteFile(dir+"/root/a/file", []byte("x"), 0o644), os.Symlink("a", dir+"/root/current")); err != nil {
			t.Fatal(err)
		}
		o := op(t, "")
		o.Command.Argv = []ops.Arg{word(program), word(dir + "/script"), word(dir + "/root"), word(dir + "/not-there"), word("--"), param("folder"), param("word")}
		o.Params = ops.Params{{Name: "folder", Type: ops.Path, Root: dir + "/root", Kind: ops.KindDir, As: ops.AsArgument},
			{Name: "word", Type: ops.Pattern, Pattern: "[a-z]+", Max: 9}}
		return setting{dir, o}
	}
	const params = `{"folder":"current/b","word":"a"}`
	bind := func(t *testing.T, o ops.Op, params string) (map[string]string, error) {
		e, err := prepare(o, testConfig)
		if err != nil {
			t.Fatal(err)
		}
		return e.Bind(ops.Call{Params: json.RawMessage(params)})
	}
	for name, c := range map[string]struct {
		change func(s setting) error
		moved  []string // the names, with $ for the folder
	}{
		"nothing":        {func(setting) error { return nil }, nil},
		"something else": {func(s setting) error { return os.WriteFile(s.dir+"/root/a/file", []byte("y"), 0o644) }, nil},
		"the program":    {func(s setting) error { return os.Rename(script(t, t.TempDir(), "other"), s.dir+"/program") }, nil}, // the same bytes
		"its bytes":      {func(s setting) error { return os.WriteFile(s.dir+"/program", []byte("other"), 0o755) }, []string{"program $/program"}},
		"the script":     {func(s setting) error { return os.WriteFile(s.dir+"/script", []byte("other"), 0o600) }, []string{"file $/script"}},
		"a new operand":  {func(s setting) error { return os.WriteFile(s.dir+"/not-there", []byte("other"), 0o600) }, []string{"file $/not-there"}},
		"a lost operand": {func(s setting) error { return os.Remove(s.dir + "/script") }, []string{"file $/script"}},
		"a folder": {func(s setting) error {
			return errors.Join(os.Rename(s.dir+"/root/a/b", s.dir+"/root/a/c"), os.Mkdir(s.dir+"/root/a/b", 0o755))
		}, []string{"path folder"}},
		"a link": {func(s setting) error {
			return errors.Join(os.Remove(s.dir+"/root/current"), os.MkdirAll(s.dir+"/root/z/b", 0o755), os.Symlink("z", s.dir+"/root/current"))
		}, []string{"path folder"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := set(t)
			before, err := bind(t, s.op, params)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(s); err != nil {
				t.Fatal(err)
			}
			after, err := bind(t, s.op, params)
			if err != nil {
				t.Fatal(err)
			}
			var moved []string
			for name := range maps.Keys(before) {
				if after[name] != before[name] {
					moved = append(moved, name)
				}
			}
			for name := range maps.Keys(after) {
				if _, was := before[name]; !was {
					moved = append(moved, name)
				}
			}
			var want []string
			for _, name := range c.moved {
				want = append(want, strings.ReplaceAll(name, "$", s.dir))
			}
			if !slices.Equal(moved, want) {
				t.Errorf("got %q, want %q\n%v\n%v", moved, want, before, after)
			}
		})
	}
	s := set(t)
	// A closed file may hold a secret: its digest is not told.
	for mode, told := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		if err := os.Chmod(s.dir+"/script", mode); err != nil {
			t.Fatal(err)
		}
		got, err := bind(t, s.op, params)
		if rests := got["file "+s.dir+"/script"]; err != nil || !strings.HasPrefix(rests, s.dir+"/script ") || strings.HasSuffix(rests, sha("first")) != told {
			t.Errorf("mode %o: got %q, %v", mode, rests, err)
		}
	}
	large := filepath.Join(s.dir, "large")
	s.op.Command.Argv[3] = word(large)
	if err := errors.Join(os.WriteFile(large, nil, 0o644), os.Truncate(large, maxBound+1)); err != nil {
		t.Fatal(err)
	}
	first, err := bind(t, s.op, params)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxBound+2); err != nil {
		t.Fatal(err)
	}
	if second, err := bind(t, s.op, params); err != nil || first["file "+large] == "" || first["file "+large] == second["file "+large] {
		t.Errorf("a large file: %q, then %q, %v", first["file "+large], second["file "+large], err)
	}
	s = set(t)
	before, err := bind(t, s.op, params)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := bind(t, s.op, `{"folder":"current/b","word":"b"}`); err != nil || after["argv"] == before["argv"] {
		t.Errorf("another word: got %v, %v", after, err)
	}
	for _, bad := range []string{`{}`, `{"folder":"nowhere","word":"a"}`} {
		var fault *ops.Fault
		if _, err := bind(t, s.op, bad); !errors.As(err, &fault) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
	if err := os.Remove(filepath.Join(s.dir, "program")); err != nil {
		t.Fatal(err)
	}
	if _, err := bind(t, s.op, params); err == nil {
		t.Error("a program that is not there was bound")
	}
}
