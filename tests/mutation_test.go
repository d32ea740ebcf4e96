package tests

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mutation is a program without one of the rules about what is an order (docs/security.md).
type mutation struct {
	rule string
	file string // below the module's root
	// change returns the file without the rule.
	change func(t *testing.T, text string) string
	quick  bool // tried in every run, the others when INBAND_MUTATIONS is "all"
}

var mutations = []mutation{
	{"R2 quotation", "harvester/prose.go", replaced("case '>':\n\t\ts.mode = inQuote", "case 0x07:\n\t\ts.mode = inQuote"), false},
	{"R2 curl", "service/rules.go", withoutRule("R2 curl"), false},
	{"R3 tier", "service/rules.go", withoutRule("R3 tier"), false},
	{"R4 key wrong", "service/rules.go", withoutRule("R4 key wrong"), false},
	{"R4 key missing", "service/rules.go", withoutRule("R4 key missing"), false},
	{"R5 echo", "service/rules.go", withoutRule("R5 echo"), true},
	{"R6 untrusted text", "service/rules.go", withoutRule("R6 untrusted text"), false},
	{"R6 policy", "service/access/policy/default.cedar", replaced("when { context.wake_declared };", ";"), false},
	{"R8 caps", "service/threads/threads.go", replaced("MaxDirectives = 8", "MaxDirectives = 9"), false},
}

// A program that lacks a rule fails some case of box policy test, so none of them stands
// there for nothing. The programs are built from the sources with one file changed.
func TestEachRuleDecidesSomeCase(t *testing.T) {
	all := os.Getenv("INBAND_MUTATIONS") == "all"
	t.Run("none", func(t *testing.T) {
		if failed := failsCases(t, build(t, "")); failed != "" {
			t.Errorf("the program itself fails:\n%s", failed)
		}
	})
	for _, m := range mutations {
		if !m.quick && !all {
			continue
		}
		t.Run(m.rule, func(t *testing.T) {
			path := filepath.Join(moduleRoot(t), m.file)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := m.change(t, string(b))
			if failed := failsCases(t, buildWith(t, path, changed)); failed == "" {
				t.Errorf("without the rule %s every case comes out as it must", m.rule)
			} else {
				t.Logf("without the rule:\n%s", failed)
			}
		})
	}
}

// failsCases returns what box says of cases that are not what they must be, empty if all
// are.
func failsCases(t *testing.T, box string) string {
	t.Helper()
	data := filepath.Join(moduleRoot(t), "cmd", "box", "testdata")
	var failed strings.Builder
	for _, args := range [][]string{
		{"safety-cases.json"}, {"rule-cases.json"}, {"open-cases.json", "--policy", filepath.Join(data, "open.cedar")},
	} {
		cmd := exec.CommandContext(t.Context(), box, append([]string{"policy", "test", "--exec-host", "box.test", filepath.Join(data, args[0])}, args[1:]...)...)
		cmd.Env = []string{"INBAND_STATE=" + filepath.Join(t.TempDir(), "state"), "HOME=" + t.TempDir()}
		var errs strings.Builder
		cmd.Stderr = &errs
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(errs.String(), "not what they must be"):
			failed.WriteString(errs.String())
		default:
			t.Fatalf("%v: %v\n%s", cmd.Args, err, errs.String())
		}
	}
	return failed.String()
}

// buildWith builds box with the text of one file changed.
func buildWith(t *testing.T, path, text string) string {
	t.Helper()
	dir := t.TempDir()
	changed, overlay, box := filepath.Join(dir, "changed"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "box")
	if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", box, "inband/cmd/box").CombinedOutput(); err != nil {
		t.Fatalf("build box with another %s: %v\n%s", path, err, out)
	}
	return box
}

// replaced changes the one place where was stands.
func replaced(was, is string) func(*testing.T, string) string {
	return func(t *testing.T, text string) string {
		t.Helper()
		if n := strings.Count(text, was); n != 1 {
			t.Fatalf("%q stands %d times; want it once", was, n)
		}
		return strings.Replace(text, was, is, 1)
	}
}

// withoutRule takes the entry with that name out of the door's table of rules.
func withoutRule(name string) func(*testing.T, string) string {
	return func(t *testing.T, text string) string {
		t.Helper()
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, "rules.go", text, 0)
		if err != nil {
			t.Fatal(err)
		}
		at := func(p token.Pos) int { return files.Position(p).Offset }
		from, to := -1, -1
		ast.Inspect(f, func(n ast.Node) bool {
			entry, ok := n.(*ast.CompositeLit)
			if !ok || len(entry.Elts) == 0 {
				return true
			}
			first, ok := entry.Elts[0].(*ast.BasicLit)
			if !ok || first.Value != strconv.Quote(name) {
				return true
			}
			if from >= 0 {
				t.Fatalf("the rule %s stands twice", name)
			}
			from, to = at(entry.Pos()), at(entry.End())
			return false
		})
		if from < 0 {
			t.Fatalf("there is no rule %s", name)
		}
		b := slices.Concat([]byte(text[:from]), []byte(strings.TrimPrefix(text[to:], ",")))
		return string(b)
	}
}
