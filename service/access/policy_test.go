package access

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"inband/ops"
)

// fixedRule is the default policy written as Go: what it decides, and what the benchmark
// measures against.
func fixedRule(r Request) bool {
	own := r.Owner != "" && r.Owner == r.By.ID
	switch r.By.Role {
	case ops.Operator:
		return r.Action != Approve || !own
	case ops.Agent:
		switch r.Action {
		case Run:
			return !r.SideEffecting || r.WakeDeclared
		case Ask:
			return r.SideEffecting
		case See, Output, Cancel, Reply:
			return own
		}
	case ops.Bridge:
		switch r.Action {
		case See, Output, Reply:
			return own || r.Enrolled
		}
	}
	return false
}

var everyAction = []Action{Run, Ask, See, Output, Cancel, Reply, Approve, Manage}

// everyRequest is each request that can be told apart by the fixed rule, with and
// without what it did not look at.
func everyRequest(yield func(Request) bool) {
	for _, role := range []ops.Role{"", ops.Agent, ops.Operator, ops.Bridge, ops.Worker, ops.Verifier} {
		for _, action := range everyAction {
			for bits := range 1 << 4 {
				for _, op := range []ops.OpName{"dm.send", "dm", "DM.send", "test.touch", ""} {
					for _, owner := range []ops.IdentityID{"", "me", "you"} {
						r := Request{By: ops.Identity{ID: "me", Role: role}, Action: action, Op: op, Owner: owner,
							SideEffecting: bits&1 > 0, Enrolled: bits&2 > 0, WakeDeclared: bits&4 > 0}
						if bits&8 > 0 {
							r.Evidence, r.Entrance, r.Provider = ops.Evidence{Key: 255, Echo: 255, Clean: true}, "api", "test"
						}
						if !yield(r) {
							return
						}
					}
				}
			}
		}
	}
}

func TestDefaultPolicyIsTheFixedRule(t *testing.T) {
	p := DefaultPolicy()
	for r := range everyRequest {
		if got := p.Decide(r); got.Allowed != fixedRule(r) || got.Rule == "" {
			t.Errorf("%+v: got %+v, want allowed %v and a rule", r, got, fixedRule(r))
		}
	}
	if lines := strings.Count(p.Text(), "\n"); lines > 40 {
		t.Errorf("the default policy has %d lines and is to fit on a screen", lines)
	}
	for _, action := range []Action{"", "fly", "Run"} {
		if d := p.Decide(Request{By: ops.Identity{ID: "ada", Role: ops.Operator}, Action: action}); d.Allowed {
			t.Errorf("an operator may do the action %q: %+v", action, d)
		}
	}
}

// No part of the default policy is there for nothing, and none can be changed without
// a case that notices.
func TestDefaultPolicyMutations(t *testing.T) {
	text := string(DefaultPolicyText())
	var mutants []string
	mutate := func(from, to string) {
		if strings.Count(text, from) == 0 {
			t.Errorf("the default policy does not hold %q", from)
		}
		for at := 0; ; {
			i := strings.Index(text[at:], from)
			if i < 0 {
				return
			}
			at += i
			mutants = append(mutants, text[:at]+to+text[at+len(from):])
			at += len(from)
		}
	}
	rules := strings.SplitAfter(text, ";\n")
	for i := range rules {
		if strings.Contains(rules[i], "permit (") || strings.Contains(rules[i], "forbid (") {
			mutants = append(mutants, strings.Join(slices.Delete(slices.Clone(rules), i, i+1), ""))
		}
	}
	mutate("permit (", "forbid (")
	for _, role := range []string{"Agent", "Operator", "Bridge"} {
		mutate("principal is "+role, "principal")
		mutate("principal is "+role, "principal is Worker")
	}
	mutate(`action == Action::"run"`, `action in [Action::"run", Action::"ask"]`)
	mutate(`action == Action::"run"`, `action == Action::"ask"`)
	mutate(`action == Action::"ask"`, `action == Action::"run"`)
	mutate(`action == Action::"approve"`, `action == Action::"manage"`)
	mutate(`action == Action::"approve"`, `action == Action::"cancel"`)
	mutate("forbid (principal, ", "forbid (principal is Agent, ")
	mutate("forbid (", "permit (")
	mutate("when { context.side_effecting };", ";")
	for _, action := range []string{"see", "output", "cancel", "reply"} {
		mutate(`Action::"`+action+`"`, `Action::"approve"`)
	}
	mutate(`Action::"see", Action::"output", Action::"reply"`, `Action::"see", Action::"output", Action::"reply", Action::"cancel"`)
	mutate("context.wake_declared", "context.clean")
	mutate("context.wake_declared", "context.side_effecting")
	mutate("when { context.wake_declared };", ";")
	mutate("!context", "context")
	mutate("when {", "unless {")
	mutate("when { context.own };", ";")
	mutate("when { context.own || context.enrolled };", ";")
	mutate("context.own || context.enrolled", "context.own")
	mutate("context.own || context.enrolled", "context.enrolled")
	mutate("context.own || context.enrolled", "context.own && context.enrolled")
	mutate("context.own }", `context.own || context.owner == "" }`)

	if len(mutants) < 40 {
		t.Errorf("only %d mutants", len(mutants))
	}
	for _, m := range mutants {
		p, err := ParsePolicy("mutant", []byte(m))
		if err != nil {
			continue // noticed even sooner
		}
		noticed := false
		for r := range everyRequest {
			if p.Decide(r).Allowed != fixedRule(r) {
				noticed = true
				break
			}
		}
		if !noticed {
			t.Errorf("nobody would notice this policy:\n%s", m)
		}
	}
}

// Each file in testdata/policies is wrong where and how its first line says.
func TestBrokenPolicies(t *testing.T) {
	files, err := filepath.Glob("testdata/policies/*.cedar")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\n")
		head, ok := strings.CutPrefix(head, "// want ")
		line, what, ok2 := strings.Cut(head, ": ")
		if !ok || !ok2 {
			t.Errorf("%s: the first line does not say what is wrong", file)
			continue
		}
		p, err := ParsePolicy(file, text)
		var found ops.FileErrors
		if p != nil || !errors.As(err, &found) {
			t.Errorf("%s loads, or its error is none of the file: %v", file, err)
			continue
		}
		if !slices.ContainsFunc(found, func(e *ops.FileError) bool {
			return e.File == file && fmt.Sprint(e.Line) == line && strings.Contains(e.Message, what)
		}) {
			t.Errorf("%s: got\n%v\nwant line %s: %s", file, found, line, what)
		}
	}
}

func TestOpsOfAPolicy(t *testing.T) {
	p, err := ParsePolicy("x", []byte(`forbid (principal, action in [Action::"run", Action::"ask"], resource == Op::"b");
permit (principal, action == Action::"run", resource) when { [Op::"c", Op::"a"].contains(resource) || resource in [Op::"b"] };`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Ops(), []ops.OpName{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLongPolicy(t *testing.T) {
	text := []byte("permit (principal, action, resource);")
	fits := append(slices.Clone(text), []byte(strings.Repeat("\n", MaxPolicy-len(text)))...)
	if _, err := ParsePolicy("x", fits); err != nil {
		t.Errorf("%d bytes: %v", len(fits), err)
	}
	if _, err := ParsePolicy("x", append(fits, '\n')); err == nil {
		t.Errorf("%d bytes load", len(fits)+1)
	}
}

// A policy that cannot be evaluated refuses, whether it permits or forbids.
func TestFailureRefuses(t *testing.T) {
	const permit = `permit (principal is Agent, action == Action::"run", resource);`
	overflows := `context.evidence_key * 9223372036854775807 > 0`
	r := Request{By: ops.Identity{ID: "scout", Role: ops.Agent}, Action: Run, Op: "r", Evidence: ops.Evidence{Key: 2}}
	for _, tc := range []struct {
		text string
		key  uint8
		want bool
		rule string
	}{
		{permit, 2, true, "the policy at line 1"},
		{permit + "\nforbid (principal, action == Action::\"run\", resource) when { " + overflows + " };", 2, false, "line 2 cannot be evaluated"},
		{permit + "\nforbid (principal, action == Action::\"run\", resource) when { " + overflows + " };", 0, true, "the policy at line 1"},
		{permit + "\npermit (principal, action == Action::\"run\", resource) when { " + overflows + " };", 2, false, "line 2 cannot be evaluated"},
		{permit + "\n@id(\"not now\")\nforbid (principal, action == Action::\"run\", resource);", 2, false, "not now"},
		{permit + "\n" + permit, 2, true, "the policy at line 1"},
	} {
		p, err := ParsePolicy("x", []byte(tc.text))
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		r.Evidence.Key = tc.key
		if d := p.Decide(r); d.Allowed != tc.want || !strings.Contains(d.Rule, tc.rule) {
			t.Errorf("%s\nkey %d: got %+v, want %v by %q", tc.text, tc.key, d, tc.want, tc.rule)
		}
	}
}

// What a policy can tell apart, each by a rule of its own.
func TestContext(t *testing.T) {
	scout := ops.Identity{ID: "scout", Role: ops.Agent}
	run, see := Request{By: scout, Action: Run, Op: "host.ps", Provider: "host"}, Request{By: scout, Action: See, Owner: "ada"}
	with := func(r Request, change func(*Request)) Request { change(&r); return r }
	for _, tc := range []struct {
		when     string
		yes, not Request
	}{
		{`context.op == "host.ps"`, run, with(run, func(r *Request) { r.Op = "x" })},
		{`context.op like "host.*"`, run, with(run, func(r *Request) { r.Op = "hostps" })},
		{`resource == Op::"host.ps"`, run, with(run, func(r *Request) { r.Op = "x" })},
		{`context.provider == "host"`, run, with(run, func(r *Request) { r.Provider = "" })},
		{`context.side_effecting`, with(run, func(r *Request) { r.SideEffecting = true }), run},
		{`context.entrance == "api"`, with(run, func(r *Request) { r.Entrance = "api" }), run},
		{`context.wake_declared`, with(run, func(r *Request) { r.WakeDeclared = true }), run},
		{`context.evidence_key >= 2`, with(run, func(r *Request) { r.Evidence.Key = 2 }), with(run, func(r *Request) { r.Evidence.Key = 1 })},
		{`context.evidence_echo == 255`, with(run, func(r *Request) { r.Evidence.Echo = 255 }), run},
		{`context.clean`, with(run, func(r *Request) { r.Evidence.Clean = true }), run},
		{`context.fresh`, with(run, func(r *Request) { r.Evidence.Fresh = true }), run},
		{`principal == Agent::"scout"`, run, with(run, func(r *Request) { r.By.ID = "ada" })},
		{`principal is Agent`, run, with(run, func(r *Request) { r.By.Role = ops.Bridge })},
		{`context.owner == "ada"`, see, with(see, func(r *Request) { r.Owner = "bob" })},
		{`resource == Identity::"ada"`, see, with(see, func(r *Request) { r.Owner = "bob" })},
		{`context.own`, with(see, func(r *Request) { r.Owner = "scout" }), see},
		{`context.own`, with(see, func(r *Request) { r.Owner = "scout" }), with(see, func(r *Request) { r.Owner, r.By.ID = "", "" })},
		{`context.enrolled`, with(see, func(r *Request) { r.Enrolled = true }), see},
	} {
		p, err := ParsePolicy("x", fmt.Appendf(nil, `permit (principal, action == Action::%q, resource) when { %s };`, tc.yes.Action, tc.when))
		if err != nil {
			t.Errorf("%s: %v", tc.when, err)
			continue
		}
		if d := p.Decide(tc.yes); !d.Allowed {
			t.Errorf("%s of %+v: %+v", tc.when, tc.yes, d)
		}
		if d := p.Decide(tc.not); d.Allowed {
			t.Errorf("%s of %+v: %+v", tc.when, tc.not, d)
		}
	}
	if got := Entrance(ops.Origin{Source: "rooms/lobby/m-1#2"}); got != "rooms" {
		t.Errorf("entrance %q, want rooms", got)
	}
}

// Whoever asks while the policy is swapped gets the answer of one of the two.
func TestSwapUnderLoad(t *testing.T) {
	every, none := DefaultPolicy(), (*Policy)(nil)
	none, err := ParsePolicy("none", []byte(`@id("closed") forbid (principal, action, resource);`))
	if err != nil {
		t.Fatal(err)
	}
	l := NewLivePolicy(every)
	r := Request{By: ops.Identity{ID: "ada", Role: ops.Operator}, Action: Manage}
	want := map[Decision]bool{every.Decide(r): true, none.Decide(r): true}
	if len(want) != 2 {
		t.Fatalf("the two policies decide alike: %v", want)
	}
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for range 2000 {
				if got := l.Current().Decide(r); !want[got] {
					t.Errorf("got %+v, which neither policy says", got)
				}
			}
		})
	}
	for range 1000 {
		l.Swap(none)
		l.Swap(every)
	}
	asking.Wait()
}

// Whatever the bytes, there is a policy or an error with a place; and no policy gives
// anything to nobody.
func FuzzParsePolicy(f *testing.F) {
	f.Add(DefaultPolicyText())
	files, err := filepath.Glob("testdata/policies/*.cedar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParsePolicy("x.cedar", text)
		if err != nil {
			var found ops.FileErrors
			if !errors.As(err, &found) || len(found) == 0 || p != nil {
				t.Fatalf("%q: %v", text, err)
			}
			last := 1 + strings.Count(string(text), "\n")
			for _, e := range found {
				if e.File != "x.cedar" || e.Line < 1 || e.Line > last || e.Message == "" || strings.ContainsAny(e.Message, "\n\r") {
					t.Errorf("%q: %+v in a file of %d lines", text, e, last)
				}
			}
			return
		}
		if p.Text() != string(text) || p.Rules() == 0 {
			t.Errorf("%q: %d rules of %q", text, p.Rules(), p.Text())
		}
		for _, action := range everyAction {
			for _, role := range []ops.Role{"", "root", "Agent"} {
				if d := p.Decide(Request{By: ops.Identity{ID: "x", Role: role}, Action: action}); d.Allowed {
					t.Errorf("%q: the role %q may %s", text, role, action)
				}
			}
			r := Request{By: ops.Identity{ID: "x", Role: ops.Agent}, Action: action, Op: "x", Owner: "x"}
			if one, two := p.Decide(r), p.Decide(r); one != two || one.Rule == "" {
				t.Errorf("%q: %+v, then %+v", text, one, two)
			}
		}
	})
}

// A decision by the default policy, against the rule that was written in Go.
func BenchmarkDecide(b *testing.B) {
	r := Request{By: ops.Identity{ID: "scout", Role: ops.Agent}, Action: Run, Op: "disk.usage", Provider: "host"}
	p := DefaultPolicy()
	b.Run("policy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !p.Decide(r).Allowed {
				b.Fatal("refused")
			}
		}
	})
	b.Run("fixed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !fixedRule(r) {
				b.Fatal("refused")
			}
		}
	})
}
