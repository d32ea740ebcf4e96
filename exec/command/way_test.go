package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/ops"
)

// roads is a folder with others in it, of which anybody may write to some.
func roads(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"safe/deep", "wide/deep", "sticky/mine"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "wide"), 0o777), os.Chmod(filepath.Join(dir, "sticky"), 0o777|os.ModeSticky),
		os.Symlink("../wide/deep", filepath.Join(dir, "safe", "over-wide")), os.Symlink(filepath.Join(dir, "safe/over-wide/x"), filepath.Join(dir, "safe", "twice")),
		os.Symlink("circle", filepath.Join(dir, "safe", "circle")), os.Symlink("deep", filepath.Join(dir, "safe", "beside"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A path that somebody could bend disables its op, whichever list it is in.
func TestStraight(t *testing.T) {
	dir := roads(t)
	for path, says := range map[string]string{
		"safe":                 "",
		"safe/deep":            "",
		"safe/missing/below":   "",
		"safe/beside":          "",
		"wide":                 "", // what is in it is anybody's; which folder it is is not
		"wide/deep":            "anybody could put something else in the place of DIR/wide/deep",
		"wide/missing":         "anybody could put something else in the place of DIR/wide/missing",
		"wide/deep/below":      "in the place of DIR/wide/deep",
		"safe/over-wide":       "in the place of DIR/wide/deep",
		"safe/over-wide/below": "in the place of DIR/wide/deep",
		"safe/twice":           "in the place of DIR/wide/deep",
		"sticky/mine":          "",
		"sticky/mine/below":    "",
		"sticky/missing":       "anybody could put something else in the place of DIR/sticky/missing",
		"safe/circle":          "does not end",
	} {
		for list, set := range map[string]func(*ops.Paths, []string){
			"read":  func(p *ops.Paths, l []string) { p.Read = l },
			"write": func(p *ops.Paths, l []string) { p.Write = l },
			"exec":  func(p *ops.Paths, l []string) { p.Exec = l },
		} {
			o := op(t, "argv")
			o.SideEffecting = true
			set(&o.Command.FS, []string{filepath.Join(dir, path)})
			_, err := New(o, testConfig)
			says := strings.ReplaceAll(says, "DIR", dir)
			if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
				t.Errorf("%s %s: got %v, want %q", list, path, err, says)
			}
		}
	}
}

// What belongs to somebody else is bent by that user, but for the op's own.
func TestStraightOfOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives folders away")
	}
	dir := roads(t)
	for _, name := range []string{"safe", "sticky/mine"} {
		if err := os.Chown(filepath.Join(dir, name), 4321, 4321); err != nil {
			t.Fatal(err)
		}
	}
	for path, says := range map[string]string{
		"safe":        "",
		"safe/deep":   "the user that the folder belongs to could put something else in the place of " + dir + "/safe/deep",
		"sticky/mine": "the user that mine belongs to could",
	} {
		e := &executor{op: op(t, "argv")}
		e.op.Command.FS.Read = []string{filepath.Join(dir, path)}
		err := e.straight()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: got %v, want %q", path, err, says)
		}
	}
	if err := errors.Join(os.Chown(filepath.Join(dir, "safe"), overflow, overflow), os.Chown(filepath.Join(dir, "sticky/mine"), overflow, overflow)); err != nil {
		t.Fatal(err)
	}
	o := op(t, "argv")
	o.Command.RunAs, o.Command.Argv = "", []ops.Arg{word("/usr/bin/true")}
	o.Command.FS.Read = []string{dir + "/safe/deep", dir + "/sticky/mine"}
	if _, err := New(o, testConfig); err != nil {
		t.Errorf("folders of the op's own user: %v", err)
	}
}

// What an op may write leads nobody's path elsewhere, its own neither.
func TestDisentangle(t *testing.T) {
	dir := roads(t)
	make := func(name, runAs string, fs ops.Paths) ops.Bound {
		o := op(t, "argv")
		o.Name, o.SideEffecting, o.Command.FS, o.Command.RunAs = ops.OpName(name), true, fs, runAs
		o.Command.Argv = []ops.Arg{word("/usr/bin/true")}
		e, err := New(o, testConfig)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return ops.Bound{Op: o, Executor: e}
	}
	safe := dir + "/safe"
	writer := make("t.writer", own(), ops.Paths{Write: []string{safe}})
	for name, c := range map[string]struct {
		fs   ops.Paths
		says string
	}{
		"the same":        {ops.Paths{Read: []string{safe}}, ""},
		"both of it":      {ops.Paths{Write: []string{safe}, Exec: []string{safe}}, ""},
		"beside":          {ops.Paths{Read: []string{dir + "/sticky"}}, ""},
		"like it by name": {ops.Paths{Read: []string{dir + "/safer"}}, ""},
		"above":           {ops.Paths{Read: []string{dir}}, ""},
		"below":           {ops.Paths{Read: []string{safe + "/deep"}}, "op t.writer may write to " + safe + ", and could put something else in the place of " + safe + "/deep"},
		"missing below":   {ops.Paths{Exec: []string{safe + "/missing/x"}}, "op t.writer may write to " + safe},
		"by a link":       {ops.Paths{Write: []string{safe + "/beside"}}, "in the place of " + safe + "/beside"},
	} {
		b := make("t.other", own(), c.fs)
		bound := []ops.Bound{b, writer}
		errs := errors.Join(disentangle(bound)...)
		got := b.Executor.(*executor).broken
		if c.says == "" && (got != nil || errs != nil) || c.says != "" && (got == nil || !strings.Contains(got.Error(), c.says) || !strings.Contains(errs.Error(), "op t.other is disabled: ")) {
			t.Errorf("%s: got %v, %v; want %q", name, got, errs, c.says)
		}
	}
	self := make("t.self", own(), ops.Paths{Write: []string{safe}, Exec: []string{safe + "/deep"}})
	if errs := disentangle([]ops.Bound{self}); len(errs) != 1 {
		t.Errorf("by itself: got %v", errs)
	}
	if os.Geteuid() == 0 {
		// Who may write by its op file, and not by its user, bends nothing.
		all := make("t.all", "", ops.Paths{Write: []string{"/"}})
		if errs := disentangle([]ops.Bound{all, make("t.other", own(), ops.Paths{Read: []string{safe + "/deep", "/etc/passwd"}})}); errs != nil {
			t.Errorf("without the right to: got %v", errs)
		}
	}
}
