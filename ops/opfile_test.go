package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The shipped files load, and there is enough in them.
func TestShippedFiles(t *testing.T) {
	files, err := ReadDir(Files)
	if err != nil {
		t.Fatal(err)
	}
	n, shown := 0, []string(nil)
	for _, f := range files {
		for _, op := range slices.Concat(f.Ops, f.Off) {
			n++
			for _, p := range op.Params {
				shown = append(shown, string(p.Type))
			}
			if len(op.Examples.Accept) == 0 || len(op.Examples.Reject) == 0 || op.Catalog == nil {
				t.Errorf("%s:%d: op %s lacks examples to accept, to reject, or a catalog entry", op.File, op.Line, op.Name)
			}
			if why := Dispatches(op.Command.Argv, op.Params); why != "" {
				t.Errorf("%s:%d: op %s: %s", op.File, op.Line, op.Name, why)
			}
			if op.SideEffecting && f.Enabled {
				t.Errorf("%s:%d: op %s has side effects, and its file is enabled", op.File, op.Line, op.Name)
			}
		}
	}
	if n < 12 {
		t.Errorf("%d ops, want a dozen", n)
	}
	for _, typ := range typeNames() {
		if !slices.Contains(shown, typ) {
			t.Errorf("no shipped op shows a parameter of type %s", typ)
		}
	}
}

const goodFile = `provider: demo
title: A demonstration
ops:
  say:
    summary: Say a word
    side_effecting: false
    params:
      loud: {type: bool, then: [--loud], else: [--soft], doc: Shout}
      word: {type: pattern, pattern: '[a-z ]+', max: 40, doc: The word}
      times: {type: int, min: 1, max: 3, optional: true}
      colour: {type: enum, values: [red, "on"]}
    argv:
      - /usr/bin/say
      - "-n"
      - {param: times}
      - {param: loud}
      - --
      - {param: word}
      - {param: colour}
    timeout: 1500ms
    output: {max: 2KiB, kind: application/json}
    aliases: [speak, demo.say]
    catalog: {label: Say, group: demo, domains: [fun], keywords: [talk], input: null, output: text}
    examples:
      accept: [{word: a b, loud: true, colour: red}]
      reject: [{word: A, loud: true, colour: red}, {}]
`

func TestReadFile(t *testing.T) {
	got, err := ReadFile("demo.yaml", []byte(goodFile))
	if err != nil {
		t.Fatal(err)
	}
	want := File{Name: "demo.yaml", Provider: "demo", Title: "A demonstration", Enabled: true, Ops: []Definition{{File: "demo.yaml", Line: 4, Op: Op{
		Name: "say", Aliases: []OpName{"speak", "demo.say"}, Provider: "demo", Summary: "Say a word", Timeout: 1500 * time.Millisecond,
		Params: Params{
			{Name: "loud", Type: Bool, Doc: "Shout", Then: []string{"--loud"}, Else: []string{"--soft"}},
			{Name: "word", Type: Pattern, Doc: "The word", Pattern: "[a-z ]+", Max: 40},
			{Name: "times", Type: Int, Min: 1, Max: 3, Optional: true},
			{Name: "colour", Type: Enum, Values: []string{"red", "on"}},
		},
		Command: &Command{OutputMax: 2048, Kind: "application/json", Argv: []Arg{{Word: "/usr/bin/say"}, {Word: "-n"}, {Param: "times"},
			{Param: "loud"}, {Word: "--"}, {Param: "word"}, {Param: "colour"}}},
		Catalog: &Catalog{Label: "Say", Group: "demo", Domains: []string{"fun"}, Keywords: []string{"talk"}, Output: "text"},
		Examples: Examples{Accept: []json.RawMessage{json.RawMessage(`{"word":"a b","loud":true,"colour":"red"}`)},
			Reject: []json.RawMessage{json.RawMessage(`{"word":"A","loud":true,"colour":"red"}`), json.RawMessage(`{}`)}},
	}}}}
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Param{})); d != "" {
		t.Error(d)
	}
}

// with returns a file with one op x that has the given lines, and with those
// keys of a valid one that the lines do not give.
func with(lines string) string {
	op := ""
	for _, d := range []string{"summary: Do it", "side_effecting: false", "argv: [/bin/true]"} {
		key, _, _ := strings.Cut(d, ":")
		if !strings.Contains("\n"+lines, "\n"+key+":") {
			op += "    " + d + "\n"
		}
	}
	for l := range strings.Lines(lines) {
		op += "    " + l
	}
	return "provider: p\nops:\n  x:\n" + op + "\n"
}

func TestReadFileRefuses(t *testing.T) {
	many := func(s string, n int) string { return strings.Repeat(s, n) }
	params := func(p, argv string) string { return with("params: {v: " + p + "}\nargv: " + argv) }
	for _, c := range []struct {
		name, file string
		line       int
		says       string
	}{
		{"empty", "", 1, "empty"},
		{"comment only", "# nothing\n", 1, "empty"},
		{"not a mapping", "- a\n", 1, "want a mapping"},
		{"syntax", "provider: p\nops: [\n", 0, ""},
		{"no provider", "ops: {x: {summary: a, side_effecting: false, argv: [/bin/true]}}", 1, "no provider"},
		{"no ops", "provider: p\n", 1, "no ops"},
		{"empty ops", "provider: p\nops: {}\n", 2, "want a mapping"},
		{"null ops", "provider: p\nops:\n", 2, "want a mapping"},
		{"provider form", "provider: P x\nops: {}\n", 1, "lower-case"},
		{"the gateway's provider", strings.Replace(with(""), "provider: p", "provider: box", 1), 1, "the gateway's own"},
		{"unknown key", with("colour: red"), 7, "unknown key"},
		{"unknown key above", "provider: p\nversion: 1\nops: {}\n", 2, "unknown key"},
		{"case variant", with("Timeout: 1s"), 7, "write timeout"},
		{"repeated key", with("timeout: 1s\ntimeout: 2s"), 8, "stands at line 7 already"},
		{"repeated op", "provider: p\nops:\n  x: {summary: a, side_effecting: false, argv: [/bin/true]}\n  x: {summary: a, side_effecting: false, argv: [/bin/true]}\n", 4, "stands at line 3"},
		{"repeated key in flow", with("output: {max: 1KiB, max: 2KiB}"), 7, "stands at line 7"},
		{"anchor", with("timeout: &a 1s"), 7, "anchor"},
		{"alias", with("timeout: &a 1s\naliases: [*a]"), 7, "anchor"},
		{"merge", with("output: {<<: {max: 1KiB}}"), 7, "merge"},
		{"tag", with("timeout: !!str 1s"), 7, "tag"},
		{"second document", with("") + "---\n" + with(""), 0, "document"},
		{"directive", "%YAML 1.1\n---\n" + with(""), 0, ""},
		{"octal", params("{type: int, min: 012, max: 20}", "[/bin/true, {param: v}]"), 6, "decimal"},
		{"new octal", params("{type: int, min: 0o12, max: 20}", "[/bin/true, {param: v}]"), 6, "decimal"},
		{"hexadecimal", params("{type: int, min: 0x1, max: 20}", "[/bin/true, {param: v}]"), 6, "decimal"},
		{"underscores", params("{type: int, min: 1_0, max: 20}", "[/bin/true, {param: v}]"), 6, "decimal"},
		{"plus", params("{type: int, min: +1, max: 20}", "[/bin/true, {param: v}]"), 6, "decimal"},
		{"sexagesimal", with("timeout: 1:30"), 7, ""},
		{"yes", with("side_effecting: yes"), 6, "quote it"},
		{"True", with("side_effecting: True"), 6, "true or false"},
		{"quoted true", with(`side_effecting: "true"`), 6, "want true or false"},
		{"tab", with("output:\n\tmax: 1KiB"), 8, "tab"},
		{"NUL", with("timeout: 1s # \x00"), 7, "control character"},
		{"escaped NUL", with(`argv: [/bin/true, "a\0b"]`), 6, "control character"},
		{"byte order mark", "\ufeff" + with(""), 1, "byte order mark"},
		{"invalid UTF-8", with("timeout: 1s # \xff"), 7, "UTF-8"},
		{"too long", with("") + many("#"+many("x", 199)+"\n", 6000), 1, "longer than"},
		{"too many lines", with("") + many("#\n", 10000), 10000, "lines"},
		{"empty lines", with("") + many("\n", 30), 0, "empty lines"},
		{"complex key", with("? timeout\n: 5s"), 7, "KEY: VALUE"},
		{"long line", with("aliases: [" + many("a, ", 10000) + "a]"), 7, "line longer"},
		{"deep flow", with("examples: {accept: [{a: " + many("[", 50) + many("]", 50) + "}]}"), 7, "nested deeper"},
		{"deep block", with("examples: \n" + many("- ", 1000) + "a"), 8, "nested too deep"},

		{"no summary", strings.Replace(with(""), "    summary: Do it\n", "", 1), 4, "no summary"},
		{"empty summary", with(`summary: ""`), 6, "empty"},
		{"two-line summary", with(`summary: "a\nb"`), 6, "control character"},
		{"no side_effecting", strings.Replace(with(""), "    side_effecting: false\n", "", 1), 4, "no side_effecting"},
		{"no argv", strings.Replace(with(""), "    argv: [/bin/true]\n", "", 1), 4, "no argv"},
		{"op name", "provider: p\nops:\n  \"a b\": {summary: a, side_effecting: false, argv: [/bin/true]}\n", 3, "op name"},
		{"timeout 0", with("timeout: 0s"), 7, "1ms"},
		{"timeout -1", with("timeout: -1s"), 7, "1ms"},
		{"timeout number", with("timeout: 5"), 7, "want a string"},
		{"timeout words", with("timeout: soon"), 7, "such as 5s"},
		{"timeout large", with("timeout: 10m1s"), 7, "10m0s"},
		{"timeout exponent", with("timeout: 1e12"), 7, "decimal"},
		{"output max 0", with("output: {max: 0KiB}"), 7, "such as 256KiB"},
		{"output max unit", with("output: {max: 256K}"), 7, "such as 256KiB"},
		{"output max large", with("output: {max: 5MiB}"), 7, "such as 256KiB"},
		{"output kind", with("output: {kind: text}"), 7, "media type"},
		{"alias form", with("aliases: [a b]"), 7, "alias"},
		{"alias of itself", with("aliases: [x]"), 3, "taken"},
		{"catalog key", with("catalog: {name: x}"), 7, "unknown key"},
		{"catalog group", with("catalog: {group: A b}"), 7, "group"},
		{"catalog keywords", with("catalog: {keywords: df}"), 7, "list"},
		{"examples key", with("examples: {accepted: []}"), 7, "unknown key"},
		{"example no object", with("examples: {accept: [1]}"), 7, "parameter object"},
		{"accept refused", with("examples:\n  accept:\n    - {}\n    - {a: 1}"), 10, "is refused"},
		{"reject accepted", with("examples:\n  reject:\n    - {a: 1}\n    - {}"), 10, "is accepted"},

		{"empty argv", with("argv: []"), 6, "want a list"},
		{"argv a string", with("argv: /bin/true"), 6, "want a list"},
		{"empty program", with(`argv: [""]`), 6, "absolute"},
		{"relative program", with("argv: [true.sh]"), 6, "absolute"},
		{"unclean program", with("argv: [/bin/../bin/true]"), 6, "absolute"},
		{"program a parameter", params("{type: enum, values: [/bin/true]}", "[{param: v}]"), 7, "program is a parameter"},
		{"number in argv", with("argv: [/bin/true, 5]"), 6, "quote it"},
		{"brace in a word", params("{type: enum, values: [a]}", "[/bin/true, {param: v}, \"--x={v}\"]"), 7, "brace"},
		{"template", with(`argv: [/bin/true, "{{v}}"]`), 6, "brace"},
		{"another key in an element", with("argv: [/bin/true, {arg: v}]"), 6, "unknown key"},
		{"undeclared", with("argv: [/bin/true, {param: v}]"), 6, "not declared"},
		{"unused", with("params: {v: {type: enum, values: [a]}}"), 7, "not used"},
		{"pattern without --", params("{type: pattern, pattern: a+, max: 9}", "[/bin/true, {param: v}]"), 7, "end of options"},
		{"pattern before --", params("{type: pattern, pattern: a+, max: 9}", "[/bin/true, {param: v}, --]"), 7, "end of options"},
		{"negative int without --", params("{type: int, min: -1, max: 9}", "[/bin/true, {param: v}]"), 7, "end of options"},
		{"end_of_options without a reason", with("end_of_options: unsupported"), 7, "the reason"},
		{"shell", params("{type: pattern, pattern: a+, max: 9}", "[/bin/sh, -c, --, {param: v}]"), 7, "sh runs what its words say"},
		{"env -S", params("{type: enum, values: [a]}", "[/usr/bin/env, -S, {param: v}]"), 7, "env runs"},
		{"python3.11", params("{type: int, min: 0, max: 9}", "[/usr/bin/python3.11, --, {param: v}]"), 7, "python3.11 runs"},
		{"the loader", params("{type: enum, values: [a]}", "[/lib64/ld-linux-x86-64.so.2, {param: v}]"), 7, "runs"},
		{"find -exec", params("{type: enum, values: [a]}", "[/usr/bin/find, /srv, -exec, {param: v}, ;]"), 7, "-exec"},
		{"ip netns exec", params("{type: enum, values: [a]}", "[/usr/bin/ip, netns, exec, {param: v}]"), 7, "exec"},

		{"no type", params("{doc: x}", "[/bin/true, {param: v}]"), 6, "no type"},
		{"unknown type", params("{type: string}", "[/bin/true, {param: v}]"), 6, "unknown type"},
		{"names", params("{type: names, max: 3}", "[/bin/true, {param: v}]"), 6, "for native ops only"},
		{"another type's key", params("{type: enum, values: [a], max: 3}", "[/bin/true, {param: v}]"), 6, "unknown key"},
		{"enum without values", params("{type: enum}", "[/bin/true, {param: v}]"), 6, "no values"},
		{"enum with a dash", params("{type: enum, values: [-x]}", "[/bin/true, {param: v}]"), 6, "begins with -"},
		{"enum of numbers", params("{type: enum, values: [1]}", "[/bin/true, {param: v}]"), 6, "quote it"},
		{"pattern without max", params("{type: pattern, pattern: a}", "[/bin/true, --, {param: v}]"), 6, "no max"},
		{"pattern that is none", params("{type: pattern, pattern: '(', max: 1}", "[/bin/true, --, {param: v}]"), 6, "pattern"},
		{"pattern out of its group", params("{type: pattern, pattern: 'a)|(b', max: 1}", "[/bin/true, --, {param: v}]"), 6, "pattern"},
		{"pattern that goes up", params("{type: pattern, pattern: '[a-z./]+', max: 99}", "[/bin/true, --, {param: v}]"), 6, "a way up"},
		{"pattern of anything", params("{type: pattern, pattern: '.*', max: 99}", "[/bin/true, --, {param: v}]"), 6, "a way up"},
		{"int without max", params("{type: int, min: 0}", "[/bin/true, {param: v}]"), 6, "no max"},
		{"int of strings", params("{type: int, min: '0', max: 3}", "[/bin/true, {param: v}]"), 6, "an integer"},
		{"int fraction", params("{type: int, min: 0.5, max: 3}", "[/bin/true, {param: v}]"), 6, "an integer"},
		{"int upside down", params("{type: int, min: 4, max: 3}", "[/bin/true, {param: v}]"), 6, "above"},
		{"int beyond", params("{type: int, min: 0, max: 9007199254740992}", "[/bin/true, {param: v}]"), 6, "±"},
		{"bool without words", params("{type: bool}", "[/bin/true, {param: v}]"), 6, "selects no words"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := ReadFile("f.yaml", []byte(c.file))
			var es FileErrors
			if !errors.As(err, &es) {
				t.Fatalf("got %+v, %v; want FileErrors for\n%s", f, err, c.file)
			}
			if first := es[0]; first.File != "f.yaml" || first.Line < 1 || c.line != 0 && first.Line != c.line || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v\nwant line %d and %q for\n%.800s", err, c.line, c.says, c.file)
			}
		})
	}
	for lines, want := range map[string]string{
		"fs: {write: [/srv]}":   "f.yaml:7: an op without side effects may write to its private folder only",
		"network: any":          "f.yaml:7: an op without side effects has no network",
		"network: unix":         "f.yaml:7: an op without side effects has no network",
		"network: some":         `f.yaml:7: unknown network "some"`,
		"fs: {metadata: true}":  "f.yaml:7: an op without side effects changes no mode, owner or times of files",
		"fs: {metadata: '1'}":   "f.yaml:7: metadata is the string",
		"network: [none]":       "f.yaml:7: network is a list",
		"fs: {read: [srv]}":     `f.yaml:7: read "srv": want a clean absolute path`,
		"fs: {read: [/a/../b]}": "want a clean absolute path",
		"fs: {exec: /usr}":      "f.yaml:7: exec is the string",
		"fs: {list: [/]}":       `f.yaml:7: unknown key "list" in fs`,
		"fs:\n      read:\n        - /ok\n        - nope":         `f.yaml:10: read "nope"`,
		"limits: {nofile: 3}":                                     "f.yaml:7: nofile 3: want 4",
		"limits: {nofile: '64'}":                                  "f.yaml:7: nofile is the string",
		"limits: {fsize: 1}":                                      "f.yaml:7: fsize is the number 1",
		"limits: {fsize: 1TB}":                                    `f.yaml:7: fsize "1TB"`,
		"limits: {cpu: 500ms}":                                    `f.yaml:7: cpu "500ms": want whole seconds`,
		"limits: {cpu: 1h}":                                       "want whole seconds",
		"limits: {memory: 0}":                                     "f.yaml:7: memory is the number 0",
		"limits: {processes: 0}":                                  "f.yaml:7: processes 0: want 1 to 4096",
		"limits: {processes: 4097}":                               "processes 4097: want 1 to 4096",
		"limits: {processes: 16MiB}":                              "processes is the string",
		"sandbox: none":                                           "f.yaml:7: nothing keeps an op outside the sandbox from having side effects",
		"sandbox: none\nfs: {read: [/etc]}\nside_effecting: true": "f.yaml:7: without a sandbox nothing enforces fs and network",
		"sandbox: none\nside_effecting: true\nnetwork: none":      "f.yaml:8: without a sandbox nothing enforces fs and network",
		`sandbox: ""`:                                             "f.yaml:7: sandbox \"\": want none, or {require: LAYERS}",
		"sandbox: strict":                                         `sandbox "strict": want none`,
		"sandbox:":                                                "sandbox is null; want a mapping of require",
		"sandbox: {require: [cgroups]}":                           `f.yaml:7: there is no layer "cgroups"; the layers are landlock, seccomp, limits, capabilities, run_as, cgroup, namespaces`,
		"sandbox: {require: [seccomp, seccomp]}":                  "the layer seccomp stands twice",
		"sandbox: {require: none}":                                "require is the string",
		"sandbox: {}":                                             "sandbox has no require",
		"sandbox: {profile: x}":                                   `unknown key "profile" in sandbox`,
		"run_as: Root":                                            `f.yaml:7: run_as "Root": want the name of a user`,
		"run_as: 65534":                                           "run_as is the number",
		"run_as: a b":                                             "want the name of a user",
		"run_as: -x":                                              "want the name of a user",
		`run_as: ""`:                                              "want the name of a user",
		"run_as: abcdefghijklmnopqrstuvwxyz0123456":               "want the name of a user",
		"concurrency: 0":                                          "f.yaml:7: concurrency 0: want 1 to 64",
		"concurrency: 65":                                         "concurrency 65: want 1 to 64",
		"concurrency: -1":                                         "concurrency -1: want 1 to 64",
		"concurrency: 1.5":                                        "concurrency is the number 1.5; want an integer",
		"concurrency: many":                                       "want an integer",
		"rate: 30":                                                "f.yaml:7: rate is the number 30",
		"rate: 0/m":                                               `rate "0/m": want a number in a second, a minute or an hour, such as 30/m`,
		"rate: 30/d":                                              `rate "30/d"`,
		"rate: 30/min":                                            `rate "30/min"`,
		"rate: 1.5/s":                                             `rate "1.5/s"`,
		"rate: -1/s":                                              `rate "-1/s"`,
		"rate: 1000000/s":                                         `rate "1000000/s"`,
		"rate: [1/s]":                                             "rate is a list",
		"sha256: abc":                                             `f.yaml:7: sha256 "abc": want 64 hexadecimal digits`,
		"sha256: " + strings.Repeat("A", 64):                      "small letters",
		"sha256: sha256:" + strings.Repeat("a", 64):               "want 64 hexadecimal digits",
		"sha256: '" + strings.Repeat("0", 63) + "'":               "want 64 hexadecimal digits",
		"env: [LANG=C]":                                           "f.yaml:7: env is a list",
		"env: {1A: x}":                                            `f.yaml:7: variable "1A": want a letter`,
		"env: {'A=B': x}":                                         `variable "A=B"`,
		"env: {'': x}":                                            "",
		"env: {A: 1}":                                             "the variable A is the number 1; want a string",
		"env: {A: null}":                                          "the variable A is null",
		`env: {A: "a\nb"}`:                                        "the variable A holds a control character",
		"env:\n      OK: x\n      LD_PRELOAD: /x.so":              "f.yaml:9: the variable LD_PRELOAD: the loader or a library takes code from it; remove it",
		"env: {LD_AUDIT: x}":                                      "takes code from it",
		"env: {GCONV_PATH: x}":                                    "takes code from it",
		"env: {ENV: x}":                                           "a shell runs what it says",
		"env: {BASH_ENV: x}":                                      "a shell runs what it says",
		"env: {IFS: x}":                                           "a shell runs what it says",
		"env: {PYTHONPATH: x}":                                    "an interpreter takes code or options from it",
		"env: {PERL5OPT: x}":                                      "an interpreter takes code or options from it",
		"env: {NODE_OPTIONS: x}":                                  "an interpreter takes code or options from it",
		"env: {LUA_INIT_5_4: x}":                                  "an interpreter takes code or options from it",
		"env: {GIT_CONFIG_VALUE_0: x}":                            "it names a program",
		"env: {PAGER: x}":                                         "it names a program",
		"env: {BASH_ENV: {credential: 'file:x'}}":                 "a shell runs what it says",
		"env: {PATH: 'bin:/usr/bin'}":                             "PATH: want clean absolute folders",
		"env: {PATH: '/usr/bin:'}":                                "PATH: want clean absolute folders",
		"env: {PATH: {credential: 'file:x'}}":                     "PATH: want clean absolute folders",
		"env: {A: {credential: hunter2}}":                         `f.yaml:7: credential "hunter2": want file:NAME, env:NAME or systemd:NAME`,
		"env: {A: {credential: 'file:../x'}}":                     `credential "file:../x"`,
		"env: {A: {credential: 'vault:x'}}":                       `credential "vault:x"`,
		"env: {A: {credential: 1}}":                               "credential is the number",
		"env: {A: {secret: x}}":                                   `unknown key "secret" in the variable A`,
		"env: {A: {}}":                                            "the variable A has no credential",
		"env: {A: x, A: y}":                                       "stands at line 7 already",
		"checks: []":                                              "f.yaml:7: checks is",
		"checks: {exit: 0}":                                       "want a list of 1 to 16 checks",
		"checks: [0]":                                             "a check is the number 0",
		"checks: [{}]":                                            "a check has 0 keys; want one of exit and stdout",
		"checks: [{exit: 0, stdout: a}]":                          "a check has 2 keys",
		"checks: [{stderr: a}]":                                   `unknown key "stderr" in a check; the keys here are exit, stdout`,
		"checks: [{exit: 256}]":                                   "exit code 256: want 0 to 255",
		"checks: [{exit: [0, 0]}]":                                "exit code 0 stands twice",
		"checks: [{exit: []}]":                                    "exit names no code",
		"checks: [{exit: [0, '1']}]":                              "an exit code is the string",
		"checks: [{exit: 0}, {exit: 1}]":                          "checks give the exit codes 2 times",
		"checks: [{stdout: '('}]":                                 `f.yaml:7: stdout "(": want a regular expression`,
		`checks: [{stdout: ""}]`:                                  "want a regular expression that is not empty",
		"publish: a":                                              "f.yaml:7: publish is",
		"publish: {file: a, kind: text/plain}":                    "want a list of up to 16 files, each {file: PATH, kind: MEDIA/TYPE}",
		"publish: [a]":                                            "a file of publish is the string",
		"publish: [{kind: text/plain}]":                           "a file of publish has no file; add it",
		"publish: [{file: a}]":                                    "a file of publish has no kind; add it",
		"publish: [{file: a, kind: text/plain, mode: 1}]":         `unknown key "mode" in a file of publish; the keys here are file, kind`,
		"publish: [{file: a, kind: text}]":                        `kind "text": want a media type`,
		"publish: [{file: /a, kind: text/plain}]":                 `f.yaml:7: file "/a": want a clean path below the private folder`,
		"publish: [{file: ../a, kind: text/plain}]":               `file "../a": want a clean path`,
		"publish: [{file: a/../b, kind: text/plain}]":             `file "a/../b": want a clean path`,
		"publish: [{file: a/, kind: text/plain}]":                 `file "a/": want a clean path`,
		"publish: [{file: '', kind: text/plain}]":                 `file "": want a clean path`,
		"publish: [{file: ., kind: text/plain}]":                  `file ".": want a clean path`,
		`publish: [{file: "a\x00", kind: text/plain}]`:            "file holds a control character",
		"publish: [{file: a, kind: a/b}, {file: a, kind: c/d}]":   `file "a" stands twice`,
		"publish: [" + strings.Repeat("{file: a, kind: a/b},", 17) + "]": "want a list of up to 16 files",
		"publish: [{file: a, kind: a/b}]\nlimits: {fsize: 0}":            "f.yaml:7: with fsize: 0 the program can write no file to publish",
		"env: {A: &a x}":          "f.yaml:7: an anchor",
		"env: {<<: {A: x}}":       "merge",
		"env: {A: !!binary eA==}": "tag",
		"env: {A: 012}":           "decimal",
		"env: {A: yes}":           "quote it",
		"env:\n\tA: x":            "f.yaml:8: ",
		"env: {A: \"\\0\"}":       "control character",
		"env: {A: x\xff}":         "f.yaml:7: ",
		"env: {A: '" + strings.Repeat("x", 5000) + "'}":   "longer than 4096 bytes",
		"env: {" + strings.Repeat("A: x, ", 10) + "B: x}": "stands at line 7 already",
		"checks: [{exit: 0o1}]":                           "decimal",
		"checks: [&a {exit: 0}, *a]":                      "f.yaml:7: an anchor",
		"concurrency: 0x4":                                "decimal",
		"concurrency: 99999999999999999999":               "want an integer",
		"Run_as: nobody":                                  "write run_as",
		"run_as: nobody\nrun_as: root":                    "f.yaml:8: ",
		"limits: {processes: 1, processes: 2}":            "stands at line 7 already",
		"stdin: x":                                        `unknown key "stdin" in op x`,
		"enabled: false":                                  `unknown key "enabled" in op x`,
	} {
		if _, err := ReadFile("f.yaml", []byte(with(lines))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", lines, err, want)
		}
	}
}

// Each type with its own keys, and how its value reaches the process.
func TestParamsOfOpFiles(t *testing.T) {
	for _, c := range []struct {
		params, argv, more string
		says               string // "" if it is good
	}{
		{"v: {type: text, max: 100}", "[/usr/bin/tee]", "", ""},
		{"v: {type: text}", "[/usr/bin/tee]", "", "f.yaml:7: parameter v has no max"},
		{"v: {type: text, max: 65537}", "[/usr/bin/tee]", "", "a text needs max, 1 to 65536 bytes"},
		{"v: {type: text, max: 9, as: argument}", "[/usr/bin/tee, {param: v}]", "", `unknown key "as" in parameter v`},
		{"v: {type: text, max: 9}", "[/usr/bin/tee, --, {param: v}]", "", "f.yaml:8: the parameter v is the standard input and no word; remove it from argv"},
		{"v: {type: text, max: 9}\n  w: {type: text, max: 9}", "[/usr/bin/tee]", "", "f.yaml:8: the parameters v and w are both the standard input"},
		{"v: {type: text, max: 9}\n  w: {type: path, root: /srv, kind: file}", "[/usr/bin/tee]", "", "are both the standard input"},
		{"v: {type: text, max: 9}\n  w: {type: secret, credentials: ['file:x']}", "[/usr/bin/tee]", "", "are both the standard input"},
		{"v: {type: text, max: 9}\n  w: {type: secret, credentials: ['file:x'], as: descriptor}", "[/usr/bin/tee, {param: w}]", "", ""},
		{"v: {type: text, max: 9}", "[/bin/sh]", "", "f.yaml:8: sh runs what its words say, and what a caller supplies is its standard input"},
		{"v: {type: path, root: /srv, kind: file}", "[/usr/bin/python3, -]", "", "python3 runs what its words say"},

		{"v: {type: path, root: /srv, kind: file}", "[/usr/bin/cat]", "", ""},
		{"v: {type: path, root: /srv, kind: file, as: stdin}", "[/usr/bin/cat]", "", ""},
		{"v: {type: path, root: /srv, kind: file}", "[/usr/bin/cat, {param: v}]", "", "remove it from argv, or say as: argument"},
		{"v: {type: path, root: /srv, kind: file, as: argument}", "[/usr/bin/cat, {param: v}]", "fs: {read: [/srv]}", ""},
		{"v: {type: path, root: /srv/a, kind: file, as: argument}", "[/usr/bin/cat, {param: v}]", "fs: {read: [/]}", ""},
		{"v: {type: path, root: /srv/a, kind: file, as: argument}", "[/usr/bin/cat, {param: v}]", "side_effecting: true\nfs: {write: [/srv]}", ""},
		{"v: {type: path, root: /srv/a, kind: file, as: argument}", "[/usr/bin/cat, {param: v}]", "side_effecting: true\nsandbox: none", ""},
		{"v: {type: path, root: /srv, kind: file, as: argument}", "[/usr/bin/cat]", "fs: {read: [/srv]}", "parameter v is declared and not used in argv"},
		{"v: {type: path, root: /srv, kind: file, as: argument}", "[/usr/bin/cat, {param: v}]", "", "f.yaml:7: the program could not open the files of parameter v; add /srv to read of fs"},
		{"v: {type: path, root: /srv, kind: file, as: argument}", "[/usr/bin/cat, {param: v}]", "fs: {read: [/srv/a, /sr]}", "add /srv to read of fs"},
		{"v: {type: path, root: /, kind: dir, as: argument}", "[/usr/bin/df, {param: v}]", "", ""},
		{"v: {type: path, root: /srv, kind: file, as: descriptor}", "[/usr/bin/cat]", "", `does not get a path as "descriptor"; want stdin or argument`},
		{"v: {type: path, kind: file}", "[/usr/bin/cat]", "", "parameter v has no root"},
		{"v: {type: path, root: /srv}", "[/usr/bin/cat]", "", "parameter v has no kind"},
		{"v: {type: path, root: srv, kind: file}", "[/usr/bin/cat]", "", "clean absolute path"},
		{"v: {type: path, root: /srv/, kind: file}", "[/usr/bin/cat]", "", "clean absolute path"},
		{"v: {type: path, root: /srv, kind: socket}", "[/usr/bin/cat]", "", "a path needs a kind, file or dir"},
		{"v: {type: path, root: /srv, kind: file, max: 9}", "[/usr/bin/cat]", "", `unknown key "max"`},

		{"v: {type: host}", "[/usr/bin/ping, --, {param: v}]", "", ""},
		{"v: {type: host}", "[/usr/bin/ping, {param: v}]", "", "f.yaml:8: the parameter v stands before the end of options"},
		{"v: {type: host, max: 9}", "[/usr/bin/ping, --, {param: v}]", "", `unknown key "max"`},

		{"v: {type: duration, min: 1s, max: 1m}", "[/usr/bin/sleep, {param: v}]", "", ""},
		{"v: {type: duration, min: 0s, max: 1m, unit: ms}", "[/usr/bin/sleep, {param: v}]", "", ""},
		{"v: {type: duration, max: 1m}", "[/usr/bin/sleep, {param: v}]", "", "parameter v has no min"},
		{"v: {type: duration, min: 1, max: 1m}", "[/usr/bin/sleep, {param: v}]", "", "min is the number 1; want a string"},
		{"v: {type: duration, min: soon, max: 1m}", "[/usr/bin/sleep, {param: v}]", "", `min "soon": want a duration`},
		{"v: {type: duration, min: 1m, max: 1s}", "[/usr/bin/sleep, {param: v}]", "", "min first"},
		{"v: {type: duration, min: -1s, max: 1s}", "[/usr/bin/sleep, {param: v}]", "", "between 0s and"},
		{"v: {type: duration, min: 1s, max: 2401h}", "[/usr/bin/sleep, {param: v}]", "", "between 0s and 2400h0m0s"},
		{"v: {type: duration, min: 1s, max: 1m, unit: h}", "[/usr/bin/sleep, {param: v}]", "", `unknown unit "h"`},
		{"v: {type: duration, min: 1s, max: 1m, unit: m}", "[/usr/bin/sleep, {param: v}]", "", "whole numbers of m"},

		{"v: {type: secret, credentials: ['file:x']}", "[/usr/bin/cat]", "", ""},
		{"v: {type: secret, credentials: ['file:x', 'env:Y'], as: descriptor}", "[/usr/bin/cat, {param: v}]", "", ""},
		{"v: {type: secret, credentials: ['file:x'], as: descriptor}", "[/usr/bin/cat]", "", "declared and not used"},
		{"v: {type: secret, credentials: ['file:x'], as: argument}", "[/usr/bin/cat, {param: v}]", "", `does not get a secret as "argument"; want stdin or descriptor`},
		{"v: {type: secret, credentials: ['file:x'], as: env}", "[/usr/bin/cat]", "", "want stdin or descriptor"},
		{"v: {type: secret, credentials: ['file:x']}", "[/usr/bin/cat, {param: v}]", "", "or say as: descriptor"},
		{"v: {type: secret}", "[/usr/bin/cat]", "", "parameter v has no credentials"},
		{"v: {type: secret, credentials: []}", "[/usr/bin/cat]", "", "a secret needs the credentials"},
		{"v: {type: secret, credentials: [hunter2]}", "[/usr/bin/cat]", "", `credential "hunter2": want file:NAME`},
		{"v: {type: secret, values: ['file:x']}", "[/usr/bin/cat]", "", `unknown key "values"`},
		{"v: {type: enum, values: [a], as: stdin}", "[/usr/bin/cat, {param: v}]", "", `unknown key "as"`},

		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "end_of_options: --stop", ""},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "end_of_options: --", ""},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, {param: v}, --end]", "end_of_options: --stop", "stands before the end of options"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "", "f.yaml:8: --end becomes the program's own word for the end of options; name that"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "end_of_options: unsupported because it is old", "--end becomes the program's own word"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --, {param: v}]", "end_of_options: --stop", "f.yaml:9: end_of_options names --stop, and argv does not say where it goes; put --end there"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, --end, {param: v}]", "end_of_options: --stop", "--end stands twice"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "end_of_options: --end", "end_of_options: want"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "end_of_options: stop", "end_of_options: want"},
		{"v: {type: pattern, pattern: a, max: 1}", "[/usr/bin/x, --end, {param: v}]", "end_of_options: '-'", "end_of_options: want"},
	} {
		file := with("params:\n  " + c.params + "\nargv: " + c.argv + "\n" + c.more)
		_, err := ReadFile("f.yaml", []byte(file))
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%v for\n%s", err, file)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("got %v, want %q for\n%s", err, c.says, file)
		}
	}
}

// What the new keys say arrives.
func TestFullOp(t *testing.T) {
	f, err := ReadFile("f.yaml", []byte(with(`side_effecting: true
params:
  note: {type: text, max: 1000, doc: What to write}
  where: {type: path, root: /srv/notes, kind: file, as: argument}
  wait: {type: duration, min: 100ms, max: 1m30s, unit: ms, optional: true}
  host: {type: host}
  key: {type: secret, credentials: ['file:key', 'systemd:key'], as: descriptor}
argv: [/usr/bin/post, --wait, {param: wait}, --key, {param: key}, {param: where}, --end, {param: host}]
end_of_options: --rest
fs: {write: [/srv]}
network: any
run_as: box-rw
env: {LANG: en_GB.UTF-8, TZ: UTC, PATH: '/usr/bin:/bin', TOKEN: {credential: 'file:deploy-token'}}
sha256: `+strings.Repeat("0a", 32)+`
limits: {processes: 16}
sandbox: {require: [landlock, cgroup]}
checks: [{stdout: 'saved [0-9]+'}]
concurrency: 4
rate: 30/m
examples:
  accept: [{note: "- a\n- b\n", where: a/b, wait: 1.5s, host: Example.org, key: 'file:key'}]
  reject: [{note: "", where: ../a, host: a, key: 'file:key'}, {note: "", where: a, host: a, key: 'file:other'}]
`)))
	if err != nil {
		t.Fatal(err)
	}
	op := f.Ops[0].Op
	op.Examples, op.Summary = Examples{}, ""
	want := Op{Name: "x", Provider: "p", SideEffecting: true, Timeout: DefaultTimeout, Concurrency: 4, Rate: Rate{30, time.Minute},
		Params: Params{
			{Name: "note", Type: Text, Max: 1000, Doc: "What to write"},
			{Name: "where", Type: Path, Root: "/srv/notes", Kind: KindFile, As: AsArgument},
			{Name: "wait", Type: Duration, Min: int64(100 * time.Millisecond), Max: int64(90 * time.Second), Unit: "ms", Optional: true},
			{Name: "host", Type: Host},
			{Name: "key", Type: Secret, Values: []string{"file:key", "systemd:key"}, As: AsDescriptor},
		},
		Command: &Command{OutputMax: DefaultOutput, Kind: "text/plain", Argv: []Arg{{Word: "/usr/bin/post"}, {Word: "--wait"}, {Param: "wait"}, {Word: "--key"},
			{Param: "key"}, {Param: "where"}, {Word: "--rest"}, {Param: "host"}},
			FS: Paths{Write: []string{"/srv"}}, Network: NetworkAny, Limits: Limits{Processes: 16}, RunAs: "box-rw", SHA256: strings.Repeat("0a", 32),
			Env:     []EnvVar{{Name: "LANG", Value: "en_GB.UTF-8"}, {Name: "TZ", Value: "UTC"}, {Name: "PATH", Value: "/usr/bin:/bin"}, {Name: "TOKEN", Credential: "file:deploy-token"}},
			Require: []string{"landlock", "cgroup"}, Checks: []Check{{Exit: []int{0}}, {Stdout: "saved [0-9]+"}}},
	}
	if d := cmp.Diff(want, op, cmpopts.IgnoreUnexported(Param{})); d != "" {
		t.Error(d)
	}

	for lines, want := range map[string]*Command{
		"sandbox: none\nside_effecting: true":             {Unconfined: true},
		"checks: [{exit: 0}]":                             {Checks: []Check{{Exit: []int{0}}}},
		"checks: [{stdout: a}, {exit: [1, 0]}]":           {Checks: []Check{{Stdout: "a"}, {Exit: []int{1, 0}}}},
		"run_as: root":                                    {RunAs: "root"},
		"env: {}":                                         {},
		"env:\n  A_1: ''\n  _b: '-x'":                     {Env: []EnvVar{{Name: "A_1"}, {Name: "_b", Value: "-x"}}},
		"end_of_options: --\nargv: [/bin/true, --end, a]": {Argv: []Arg{{Word: "/bin/true"}, {Word: "--"}, {Word: "a"}}},
	} {
		f, err := ReadFile("f.yaml", []byte(with(lines)))
		if err != nil {
			t.Errorf("%s: %v", lines, err)
			continue
		}
		want.OutputMax, want.Kind = DefaultOutput, "text/plain"
		if want.Argv == nil {
			want.Argv = []Arg{{Word: "/bin/true"}}
		}
		if d := cmp.Diff(want, f.Ops[0].Command, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: want, got:\n%s", lines, d)
		}
	}
	for lines, want := range map[string]Op{
		"concurrency: 64": {Concurrency: 64}, "rate: 1/s": {Rate: Rate{1, time.Second}}, "rate: 999999/h": {Rate: Rate{999999, time.Hour}}, "timeout: 1s": {},
	} {
		f, err := ReadFile("f.yaml", []byte(with(lines)))
		if err != nil || f.Ops[0].Concurrency != want.Concurrency || f.Ops[0].Rate != want.Rate {
			t.Errorf("%s: got %+v, %v", lines, f.Ops, err)
		}
	}
}

// A file that is not enabled is checked like any other, and offers nothing; its names are
// free for others.
func TestEnabled(t *testing.T) {
	off := strings.Replace(with("aliases: [w]"), "provider: p", "provider: p\nenabled: false", 1)
	f, err := ReadFile("f.yaml", []byte(off))
	if err != nil || f.Enabled || len(f.Ops) != 0 || len(f.Off) != 1 || f.Off[0].Name != "x" || f.Off[0].Line != 4 {
		t.Errorf("got %+v, %v", f, err)
	}
	on := strings.Replace(off, "false", "true", 1)
	if f, err := ReadFile("f.yaml", []byte(on)); err != nil || !f.Enabled || len(f.Ops) != 1 || len(f.Off) != 0 {
		t.Errorf("got %+v, %v", f, err)
	}
	for _, bad := range []string{strings.Replace(off, "Do it", "", 1), strings.Replace(off, "enabled: false", "enabled: no", 1), strings.Replace(off, "[w]", "[x]", 1)} {
		if _, err := ReadFile("f.yaml", []byte(bad)); err == nil {
			t.Errorf("no error for\n%s", bad)
		}
	}
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s), Mode: 0o644} }
	files, err := ReadDir(fstest.MapFS{"a.yaml": file(off), "b.yaml": file(on)})
	if err != nil || len(files) != 2 || files[0].Enabled || !files[1].Enabled {
		t.Errorf("the same name in two files, one of which is not enabled: %+v, %v", files, err)
	}
	if _, err := ReadDir(fstest.MapFS{"a.yaml": file(on), "b.yaml": file(on)}); err == nil {
		t.Error("the same name in two files passes")
	}
	open := fstest.MapFS{"a.yaml": file(on), ".": &fstest.MapFile{Mode: fs.ModeDir | 0o777}}
	if _, err := ReadDir(open); err == nil || !strings.Contains(err.Error(), "anybody may put") {
		t.Errorf("a folder that anybody may write to: %v", err)
	}
}

func TestReadFileAccepts(t *testing.T) {
	for name, file := range map[string]string{
		"the least":         with(""),
		"with a header":     "---\n" + with(""),
		"CRLF":              strings.ReplaceAll(with("timeout: 5s"), "\n", "\r\n"),
		"folded text":       with("summary: >-\n  two\n  lines"),
		"end of options":    with("params: {v: {type: pattern, pattern: a+, max: 9}}\nargv: [/bin/true, {param: v}]\nend_of_options: unsupported because it takes no options"),
		"git's own":         with("params: {v: {type: pattern, pattern: a+, max: 9}}\nargv: [/usr/bin/git, show, --end-of-options, {param: v}]"),
		"a shell, all ours": with("argv: [/bin/sh, -c, 'echo a; sleep 1']"),
		"negative int":      with("params: {v: {type: int, min: -5, max: 5}}\nargv: [/bin/true, --, {param: v}]"),
		"nothing to keep":   with("publish: []\nlimits: {fsize: 0}"),
		"enum of paths":     with("params: {v: {type: enum, values: [../x, /a/../b]}}\nargv: [/bin/true, {param: v}]"),
	} {
		if _, err := ReadFile("f.yaml", []byte(file)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What an op file says of the sandbox arrives.
func TestSandboxKeys(t *testing.T) {
	read := func(lines string) *Command {
		f, err := ReadFile("f.yaml", []byte(with(lines)))
		if err != nil {
			t.Fatalf("%s: %v", lines, err)
		}
		return f.Ops[0].Command
	}
	size := int64(3 << 20)
	got := read("side_effecting: true\nfs: {read: [/etc], write: [/srv/a, /srv/b], exec: [/usr/bin]}\nnetwork: any\n" +
		"limits: {nofile: 64, fsize: 3MiB, cpu: 5s, memory: 256MiB}\nsandbox: {require: [landlock, seccomp]}")
	want := &Command{Argv: []Arg{{Word: "/bin/true"}}, OutputMax: DefaultOutput, Kind: "text/plain",
		FS: Paths{Read: []string{"/etc"}, Write: []string{"/srv/a", "/srv/b"}, Exec: []string{"/usr/bin"}}, Network: NetworkAny,
		Limits: Limits{NoFile: 64, FSize: &size, CPU: 5 * time.Second, Memory: 256 << 20}, Require: []string{"landlock", "seccomp"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want, got:\n%s", diff)
	}
	got = read("side_effecting: true\nfs: {write: [/srv], metadata: true}\nnetwork: unix")
	if !got.FS.Metadata || got.Network != NetworkUnix {
		t.Errorf("metadata and unix: got %+v", got)
	}
	if diff := cmp.Diff([]Publish{{File: "out/report.txt", Kind: "text/plain"}, {File: "-x y", Kind: "image/png"}},
		read("publish: [{file: out/report.txt, kind: text/plain}, {file: -x y, kind: image/png}]").Publish); diff != "" {
		t.Errorf("publish: want, got:\n%s", diff)
	}
	if l := read("limits: {fsize: 0}").Limits; l.FSize == nil || *l.FSize != 0 {
		t.Errorf("fsize 0: got %+v", l)
	}
}

func TestAllErrorsOfAFile(t *testing.T) {
	_, err := ReadFile("f.yaml", []byte(with("timeout: 0s\ncolour: red\naliases: [a b]")))
	var es FileErrors
	if !errors.As(err, &es) || len(es) != 3 || es[0].Line != 7 || es[1].Line != 8 || es[2].Line != 9 {
		t.Errorf("got %v, want an error at each of lines 7, 8 and 9", err)
	}
	var one *FileError
	if !errors.As(err, &one) || one != es[0] {
		t.Errorf("errors.As gives %v", one)
	}
}

func TestReadDir(t *testing.T) {
	a := &fstest.MapFile{Data: []byte(with("aliases: [w]")), Mode: 0o644}
	b := &fstest.MapFile{Data: []byte(strings.Replace(with(""), "  x:", "  z:", 1)), Mode: 0o644}
	files, err := ReadDir(fstest.MapFS{"b.yaml": b, "a.yaml": a, "README.md": a, ".hidden.yaml": a, "sub/c.yaml": a})
	if err != nil || len(files) != 2 || files[0].Name != "a.yaml" || files[1].Ops[0].Name != "z" {
		t.Errorf("got %+v, %v", files, err)
	}
	for name, c := range map[string]struct {
		fsys fstest.MapFS
		want string
	}{
		"same name":       {fstest.MapFS{"a.yaml": a, "b.yaml": a}, "b.yaml:3: the name x is taken at a.yaml:3"},
		"name as alias":   {fstest.MapFS{"a.yaml": a, "b.yaml": {Data: []byte(strings.Replace(with(""), "  x:", "  w:", 1)), Mode: 0o644}}, "b.yaml:3: the name w is taken at a.yaml:3"},
		"world-writable":  {fstest.MapFS{"a.yaml": {Data: a.Data, Mode: 0o666}}, "a.yaml:1: anybody may write"},
		"yml":             {fstest.MapFS{"a.yml": a}, "a.yml:1: "},
		"YAML":            {fstest.MapFS{"a.YAML": a}, "a.YAML:1: "},
		"a folder":        {fstest.MapFS{"a.yaml/b": a}, "a.yaml:1: is not a regular file"},
		"too long":        {fstest.MapFS{"a.yaml": {Data: make([]byte, 10<<20), Mode: 0o644}}, "a.yaml:1: longer than"},
		"one of two bad":  {fstest.MapFS{"a.yaml": a, "b.yaml": {Data: []byte("x: 1\n"), Mode: 0o644}}, "b.yaml:1: unknown key"},
		"half-written":    {fstest.MapFS{"a.yaml": {Data: a.Data[:30], Mode: 0o644}}, "a.yaml:"},
		"nothing written": {fstest.MapFS{"a.yaml": {Mode: 0o644}}, "a.yaml:1: the file is empty"},
	} {
		files, err := ReadDir(c.fsys)
		if err == nil || !strings.Contains(err.Error(), c.want) || files != nil {
			t.Errorf("%s: got %v, %v; want %q", name, files, err, c.want)
		}
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDir(os.DirFS(dir)); err == nil || !strings.Contains(err.Error(), "pipe.yaml:1: is not a regular file") {
		t.Errorf("a pipe: got %v", err)
	}
	if _, err := ReadDir(os.DirFS(filepath.Join(t.TempDir(), "missing"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: got %v", err)
	}
}

// Whatever the bytes, reading ends, does not panic, and complains with a line
// that the file has.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Add([]byte(with("colour: red")))
	for _, s := range []string{"", "{", "a: [", "? a\n: b", "- - - a", "a: &x *x", "<<: {}", "%Y\n---\n", "!t a", "a: |\n  b\n", "\"\\u00", "a: 'b", "...\n", "--- a\n--- b", "0o7: 1", "? {a: b}\n: c",
		"a: b: c: d", "[[[[", "{{}: 1}", "a:\n b\n  c: d", "- a\nb", "*", "&", "|", ">", "!", "!!", "@", "`", "%", ": ", "?", "-"} {
		f.Add([]byte(s))
	}
	shipped, err := fs.Glob(Files, "*.yaml")
	if err != nil || len(shipped) == 0 {
		f.Fatalf("no op files to begin from: %v", err)
	}
	for _, name := range shipped {
		data, err := fs.ReadFile(Files, name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := ReadFile("f.yaml", data)
		if err == nil {
			for _, d := range slices.Concat(file.Ops, file.Off) {
				if err := d.Check(); err != nil {
					t.Fatalf("op %s was read and is not valid: %v", d.Name, err)
				}
				if len(d.Command.Argv) == 0 || !filepath.IsAbs(d.Command.Argv[0].Word) {
					t.Fatalf("op %s was read with argv %v", d.Name, d.Command.Argv)
				}
			}
			return
		}
		var es FileErrors
		if !errors.As(err, &es) || len(es) == 0 {
			t.Fatalf("got %v, want FileErrors", err)
		}
		lines := strings.Count(string(data), "\n") + 1
		for _, e := range es {
			if e.Line < 1 || e.Line > lines || e.Message == "" {
				t.Fatalf("a file of %d lines: %v", lines, e)
			}
		}
	})
}

func TestDispatches(t *testing.T) {
	argv := func(words ...string) (a []Arg) {
		for _, w := range words {
			a = append(a, Arg{Word: w})
		}
		return a
	}
	for _, p := range strings.Fields("/bin/sh /bin/bash /usr/bin/env /usr/bin/xargs /usr/bin/sudo /usr/bin/python3 /usr/bin/python3.11 /usr/bin/perl5.36.0 /usr/bin/lua5.4 /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 /lib/ld-linux.so.2 /lib/ld-musl-x86_64.so.1 /lib64/ld64.so.2 /usr/bin/ld.so /usr/bin/psql /usr/bin/timeout /usr/bin/ssh") {
		if Dispatches(argv(p, "x"), nil) == "" {
			t.Errorf("%s is not known to run what its words say", p)
		}
	}
	for _, p := range strings.Fields("/usr/bin/df /usr/bin/cat /usr/bin/ps /usr/bin/git /usr/bin/find /usr/bin/ip /usr/bin/sha256sum /usr/bin/sort /usr/bin/ld") {
		if why := Dispatches(argv(p, "x"), nil); why != "" {
			t.Errorf("%s: %s", p, why)
		}
	}
	if Dispatches(argv("/usr/bin/tar", "--to-command=id"), nil) == "" {
		t.Error("tar --to-command=id passes")
	}
	// Also a word that stands there only if the caller selects it.
	for _, p := range []Param{{Name: "b", Type: Bool, Then: []string{"-exec"}}, {Name: "b", Type: Bool, Else: []string{"-print", "-execdir"}}} {
		if Dispatches(append(argv("/usr/bin/find", "/srv"), Arg{Param: "b"}), Params{p}) == "" {
			t.Errorf("find with %q or %q passes", p.Then, p.Else)
		}
	}
}

func ExampleReadFile() {
	_, err := ReadFile("disk.yaml", []byte(`provider: host
ops:
  disk.usage:
    summary: Show how full a filesystem is
    params:
      folder: {type: pattern, pattern: '/[a-z./]*', max: 200}
    argv: [df, -h, {param: folder}]
`))
	fmt.Println(err)
	// Output:
	// disk.yaml:4: op disk.usage has no side_effecting; add it
	// disk.yaml:7: the program "df": want a clean absolute path
	// disk.yaml:7: the parameter folder stands before the end of options; put "--" in front of it, or write end_of_options: unsupported because, and the reason
}
