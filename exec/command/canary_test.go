package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/exec/sandbox"
	"inband/ops"
)

// weakened is a sandbox without one layer.
type weakened struct {
	*sandbox.Sandbox
	without string
}

func (w weakened) Confine(folder string) error {
	for _, l := range []struct {
		name  string
		layer func() error
	}{{"landlock", func() error { return w.Landlock(folder) }}, {"run_as", w.RunAs}, {"capabilities", w.DropCapabilities}, {"seccomp", w.Seccomp}} {
		if strings.Contains(w.without, l.name) {
			continue
		}
		if err := l.layer(); err != nil {
			return err
		}
	}
	return nil
}

func (w weakened) Limit(pid int) error {
	if strings.Contains(w.without, "limits") {
		return nil
	}
	return w.Sandbox.Limit(pid)
}

// The canary finds each layer that is switched off, and the op does not run then.
func TestCanary(t *testing.T) {
	for without, says := range map[string]string{
		"":             "",
		"landlock":     "it could read a file, write a file, make a file",
		"seccomp":      "it could make a namespace, change the mode of a file, make a socket",
		"limits":       "it could exceed the limit nofile, exceed the limit core, exceed the limit fsize, exceed the limit processes",
		"capabilities": "it could keep capabilities",
		// Root without capabilities cannot get to the private folder of nobody.
		"run_as":                          "permission denied",
		"run_as, capabilities and limits": "keep capabilities, be the user 0, 0, 0, be the group 0, 0, 0",
	} {
		if (strings.Contains(without, "run_as") || without == "capabilities") && os.Geteuid() != 0 {
			continue // has none to drop, and is nobody else
		}
		o := op(t, "argv")
		o.Command.Argv, o.Command.RunAs = []ops.Arg{word("/bin/true")}, ""
		o.Command.Limits.NoFile, o.Command.Limits.Processes = 64, 5000
		if without == "capabilities" { // which only root keeps over an exec
			o.Command.RunAs, o.Command.Limits.Processes = own(), 0
		}
		e, err := prepare(o, testConfig)
		if err != nil {
			t.Fatal(err)
		}
		e.confine = func(p sandbox.Policy) (confiner, error) {
			s, err := sandbox.New(p)
			return weakened{s, without}, err
		}
		bound := []ops.Bound{{Op: o, Executor: e}}
		err = Prove(t.Context(), bound)
		if says == "" {
			if err != nil {
				t.Errorf("with every layer: %v", err)
			}
			if got := Disabled(bound); got != nil {
				t.Errorf("with every layer, disabled: %v", got)
			}
			continue
		}
		if got := Disabled(bound); len(got) != 1 || got[0].Op != o.Name || !strings.Contains(got[0].Error(), says) {
			t.Errorf("without %s, disabled: got %v, want %q", without, got, says)
		}
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "op t.op is disabled") {
			t.Errorf("without %s: got %v, want %q", without, err, says)
		}
		out, err := e.Execute(t.Context(), ops.Call{Params: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		if f := failure(t, out, ops.Failed, ops.NoSandbox); f.Details["started"] != false {
			t.Errorf("without %s: got %v", without, f.Details)
		}
	}
}

// Every kind of op that an op file can have keeps what its policy says.
func TestProveHolds(t *testing.T) {
	size := int64(0)
	var bound []ops.Bound
	for _, c := range []struct {
		effect  bool
		network ops.Network
		limits  ops.Limits
		runAs   string
	}{
		{false, "", ops.Limits{}, own()}, {false, ops.NetworkNone, ops.Limits{NoFile: 20, FSize: &size, CPU: 3e9, Memory: 8 << 30}, own()},
		{false, ops.NetworkNetlink, ops.Limits{}, ""}, {true, ops.NetworkNone, ops.Limits{NoFile: 4, Memory: 1 << 20, Processes: 1}, ""}, {true, ops.NetworkAny, ops.Limits{}, own()},
		{true, ops.NetworkUnix, ops.Limits{}, ""},
	} {
		o := op(t, "argv")
		o.SideEffecting, o.Command.Network, o.Command.Limits = c.effect, c.network, c.limits
		o.Command.Argv, o.Command.RunAs = []ops.Arg{word("/bin/true")}, c.runAs
		if raceEnabled {
			o.Command.Limits.Memory = 0 // the race detector takes terabytes of addresses
		}
		e, err := New(o, testConfig)
		if err != nil {
			t.Fatal(err)
		}
		bound = append(bound, ops.Bound{Op: o, Executor: e})
	}
	if err := Prove(t.Context(), bound); err != nil {
		t.Error(err)
	}
}

// Where no canary can be sent, no op that it would have proved runs.
func TestCannotProve(t *testing.T) {
	o := op(t, "argv")
	o.Command.Argv, o.Command.RunAs = []ops.Arg{word("/bin/true")}, own()
	e, err := prepare(o, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	e.scratch = ""
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "not-there"))
	bound := []ops.Bound{{Op: o, Executor: e}}
	if err := Prove(t.Context(), bound); err == nil || !strings.Contains(err.Error(), "cannot be proved") {
		t.Errorf("got %v", err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Params: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Failed, ops.NoSandbox); f.Details["started"] != false {
		t.Errorf("got %v", f.Details)
	}
}
