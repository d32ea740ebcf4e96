package tests

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"inband/ops"
)

// types returns the parameter types that package ops declares.
func types(t *testing.T) (all []ops.Type) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "ops", "param.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if named, ok := spec.Type.(*ast.Ident); ok && named.Name == "Type" {
			for _, v := range spec.Values {
				s, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, ops.Type(s))
			}
		}
		return true
	})
	if len(all) < 4 {
		t.Fatalf("found the types %v", all)
	}
	return all
}

// typeRow is a parameter type with a declaration, the value that its program gets for
// good, and which of the values of hostileValues it accepts.
type typeRow struct {
	declare string
	argv    string // how argv ends
	good    string // JSON
	reaches seen   // Args and Stdin
	accepts []string
	literal []string // accepted as the name of something, which is not there
}

var typeRows = map[ops.Type]typeRow{
	ops.Enum:     {"type: enum, values: [red, dark blue]", "{param: v}", `"dark blue"`, seen{Args: []string{"dark blue"}}, nil, nil},
	ops.Pattern:  {"type: pattern, pattern: '[a-z;$()` ]+', max: 4096", "--, {param: v}", `"a;id $(id) ` + "`id`" + `"`, seen{Args: []string{"--", "a;id $(id) `id`"}}, []string{";id"}, nil},
	ops.Int:      {"type: int, min: 1, max: 9", "{param: v}", `7`, seen{Args: []string{"7"}}, nil, nil},
	ops.Bool:     {"type: bool, then: [--on], else: [--off]", "{param: v}", `true`, seen{Args: []string{"--on"}}, []string{"false"}, nil},
	ops.Text:     {"type: text, max: 4096", "", `"one\n\ttwo"`, seen{Stdin: "one\n\ttwo"}, []string{"line break", "leading dash", "two leading dashes", ";id", `""`}, nil},
	ops.Path:     {"type: path, root: DIR/root, kind: file, as: argument", "--, {param: v}", `"./inside"`, seen{Args: []string{"--", "DIR/root/inside"}}, nil, []string{";id"}},
	ops.Host:     {"type: host", "--, {param: v}", `"Example.ORG"`, seen{Args: []string{"--", "example.org"}}, nil, nil},
	ops.Duration: {"type: duration, min: 1s, max: 1h, unit: s", "{param: v}", `"1m30s"`, seen{Args: []string{"90"}}, nil, nil},
	ops.Secret:   {"type: secret, credentials: ['file:key']", "", `"file:key"`, seen{Stdin: "open sesame"}, nil, nil},
}

// hostileValues are what each type is tried with, as JSON, and what is wrong with them.
var hostileValues = []struct {
	name, value string
	want        ops.Code // if it is refused
}{
	{"NUL", `"a\u0000b"`, ops.InvalidParams},
	{"line break", `"a\nb"`, ops.InvalidParams},
	{"leading dash", `"-x"`, ops.InvalidParams},
	{"two leading dashes", `"--"`, ops.InvalidParams},
	{";id", `";id"`, ops.InvalidParams},
	{"5,000 bytes", `"` + strings.Repeat("a", 5000) + `"`, ops.InvalidParams},
	{"1 MiB", `"` + strings.Repeat("a", 1<<20) + `"`, ops.TooLarge},
	{"escape", `"\u001b[2J"`, ops.InvalidParams},
	{"C1", `"\u0085"`, ops.InvalidParams},
	{"null", `null`, ops.InvalidParams},
	{`""`, `""`, ops.InvalidParams},
	{"[]", `[]`, ops.InvalidParams},
	{"{}", `{}`, ops.InvalidParams},
	{"0", `0`, ops.InvalidParams},
	{"false", `false`, ops.InvalidParams},
	{"1.5", `1.5`, ops.InvalidParams},
	{"an integer beyond", `9007199254740993`, ops.IntegerOutOfRange},
}

// Cases x02 and x45, and of x40 what holds for each type: a value is judged alike at
// every entrance, whatever its type, and nothing runs that was refused.
func TestHostileValuesEverywhere(t *testing.T) {
	file := "provider: test\ntitle: Every type\nops:\n"
	all := slices.DeleteFunc(types(t), func(typ ops.Type) bool {
		return slices.Contains([]ops.Type{ops.Names, ops.Strings, ops.Object}, typ) // which op files cannot have
	})
	for _, typ := range all {
		row, ok := typeRows[typ]
		if !ok {
			t.Errorf("the type %s has no row", typ)
			continue
		}
		file += fmt.Sprintf(`  test.%s:
    summary: Note what it was given.
    side_effecting: true
    params:
      v: {%s}
    argv: [PROGRAM, act, trace, DIR/%s, %s]
    fs: {write: [DIR]}
`, typ, row.declare, typ, row.argv)
	}
	l := newSiteWith(t, file, everything, func(l *lab) {
		for _, typ := range all {
			l.file(string(typ))
		}
		writeFile(t, filepath.Join(l.dir, "root", "inside"), "x")
		l.credential("key", "open sesame")
	})
	entrances := len(l.entrances(l.scout, true))
	for _, typ := range all {
		t.Run(string(typ), func(t *testing.T) {
			l := l.in(t)
			row, op := typeRows[typ], "test."+string(typ)
			runs := 0
			for _, h := range hostileValues {
				want := h.want
				if slices.Contains(row.accepts, h.name) {
					want, runs = "", runs+entrances
				}
				if slices.Contains(row.literal, h.name) {
					want = ops.NotFound
				}
				l.everywhere(l.scout, op, `{"v":`+h.value+`}`, want)
			}
			l.everywhere(l.scout, op, `{}`, ops.InvalidParams)
			l.everywhere(l.scout, op, `{"V":`+row.good+`}`, ops.InvalidParams)
			if got := len(l.traces(string(typ))); got != runs {
				t.Errorf("%s ran %d times, want %d: a value that was refused ran, or one that was not did not", op, got, runs)
			}
			l.everywhere(l.scout, op, `{"v":`+row.good+`}`, "")
			traces := l.traces(string(typ))
			if len(traces) != runs+entrances {
				t.Fatalf("%s ran %d times, want %d", op, len(traces), runs+entrances)
			}
			for _, s := range traces[runs:] {
				want := slices.Clone(row.reaches.Args)
				for i := range want {
					want[i] = l.fill(want[i])
				}
				if !slices.Equal(s.Args, want) || s.Stdin != row.reaches.Stdin {
					t.Errorf("%s: the program got %q and %q, want %q and %q", op, s.Args, s.Stdin, want, row.reaches.Stdin)
				}
			}
		})
	}
}

// Cases x03 and x30: what an op does not declare is refused and named, whatever it is
// called and wherever it stands. A program gets what its op declares and nothing else.
func TestOnlyWhatIsDeclared(t *testing.T) {
	l := newSite(t, `provider: test
title: What a program gets
ops:
  test.dump:
    summary: Show what a program is given.
    side_effecting: false
    params:
      name: {type: pattern, pattern: '[a-z]+', max: 9, optional: true}
    argv: [PROGRAM, act, show, --, {param: name}]
`, "")
	for params, first := range map[string]string{
		`{"name":"ok","box_user":"root","ot_x":"1","_identity":"admin","NAME":"x"}`: "/NAME",
		`{"box_user":"root"}`:              "/box_user",
		`{"ot_x":"1"}`:                     "/ot_x",
		`{"_identity":"admin"}`:            "/_identity",
		`{"Name":"ok"}`:                    "/Name",
		`{"env":{"LD_PRELOAD":"/x.so"}}`:   "/env",
		`{"environ":["LD_PRELOAD=/x.so"]}`: "/environ",
		`{"cwd":"/"}`:                      "/cwd",
		`{"timeout":"1h"}`:                 "/timeout",
		`{"user":"root"}`:                  "/user",
		`{"stdin":"x"}`:                    "/stdin",
	} {
		l.everywhere(l.scout, "test.dump", params, ops.InvalidParams)
		var answer struct{ Details struct{ Pointer string } }
		if err := l.as(l.scout, http.MethodPost, "/exec", map[string]any{"op": "test.dump", "params": json.RawMessage(params)}, &answer); err == nil || answer.Details.Pointer != first {
			t.Errorf("%s: the fault names %q, want %s (%v)", params, answer.Details.Pointer, first, err)
		}
	}
	for _, member := range []string{"env", "environ", "cwd", "timeout", "user", "stdin", "run_as", "argv"} {
		if status, a := l.ask(l.scout, http.MethodPost, "/exec", map[string]any{"op": "test.dump", member: "x"}); status != http.StatusBadRequest || a.Code != ops.BadRequest {
			t.Errorf("a body with %s: status %d %s, want 400", member, status, a.Code)
		}
	}
	l.everywhere(l.scout, "box", `{"action":"LD_PRELOAD=/tmp/x.so uptime"}`, ops.InvalidParams)
	if _, _, code := l.run(l.scout, "", "exec", "LD_PRELOAD=/tmp/x.so uptime"); code != ops.ExitNotFound {
		t.Errorf("box exec with an assignment: exit code %d", code)
	}

	out, _, code := l.run(l.scout, "", "exec", "test.dump", "name=ok")
	var s seen
	if err := json.Unmarshal([]byte(out), &s); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v in %q", code, err, out)
	}
	if !slices.Equal(s.Args, []string{"--", "ok"}) || !slices.Equal(s.Env, []string{"LANG=C.UTF-8"}) || s.Stdin != "" {
		t.Errorf("the program got %+v", s)
	}
}
