package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

// compiled returns ps ready for use.
func compiled(t testing.TB, ps Params) Params {
	t.Helper()
	op := Op{Name: "x", Provider: "p", Summary: "s", Params: slices.Clone(ps)}
	if err := op.Check(); err != nil {
		t.Fatal(err)
	}
	return op.Params
}

func everyType(t testing.TB) Params {
	return compiled(t, Params{
		{Name: "e", Type: Enum, Values: []string{"red", "dark blue", "é"}, Optional: true},
		{Name: "p", Type: Pattern, Pattern: `[a-cé -]*`, Max: 20, Optional: true},
		{Name: "i", Type: Int, Min: -3, Max: 300, Optional: true},
		{Name: "b", Type: Bool, Optional: true},
		{Name: "t", Type: Text, Max: 40, Optional: true},
		{Name: "f", Type: Path, Root: "/srv/d.1", Kind: KindFile, Optional: true},
		{Name: "d", Type: Path, Root: "/srv/d.1", Kind: KindDir, As: AsArgument, Optional: true},
		{Name: "r", Type: Path, Root: "/", Kind: KindDir, Optional: true},
		{Name: "h", Type: Host, Optional: true},
		{Name: "w", Type: Duration, Min: int64(time.Second), Max: int64(2 * time.Hour), Optional: true},
		{Name: "ms", Type: Duration, Min: 0, Max: int64(time.Minute), Unit: "ms", Doc: "How long", Optional: true},
		{Name: "s", Type: Secret, Values: []string{"file:key-1", "systemd:x"}, Optional: true},
		{Name: "n", Type: Names, Max: 3, Optional: true},
		{Name: "l", Type: Strings, Max: 3, Optional: true},
		{Name: "lp", Type: Strings, Min: 1, Max: 3, Pattern: `[a-z.-]+`, Optional: true},
		{Name: "o", Type: Object, Optional: true, Fields: Params{
			{Name: "a", Type: Int, Min: 1, Max: 9},
			{Name: "b", Type: Strings, Min: 1, Max: 2, Optional: true},
			{Name: "c", Type: Object, Optional: true, Doc: "Deeper.", Fields: Params{{Name: "d", Type: Bool, Optional: true}}},
		}},
	})
}

func schemaOf(t testing.TB, ps Params) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(ps.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("params.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("params.json")
	if err != nil {
		t.Fatalf("%v\n%s", err, ps.Schema())
	}
	return s
}

// For each type, Parse accepts a value exactly when its published schema does.
func TestParseAgreesWithSchema(t *testing.T) {
	for _, p := range everyType(t) {
		p.Optional = false
		ps := compiled(t, Params{p})
		schema := schemaOf(t, ps)
		near := "abcé -d\n\t\x00\x1f\x7f\u0085😀"
		switch p.Type {
		case Path:
			near = "a/.-/.d1srv"
		case Host:
			near = "0125af:.:-xX%"
		case Duration:
			near = "0139.hmsun-"
		}
		t.Run(p.Name+" "+string(p.Type), rapid.MakeCheck(func(t *rapid.T) {
			value := rapid.OneOf(
				rapid.SampledFrom([]string{`null`, `true`, `false`, `"true"`, `[]`, `{}`, `""`, `0`, `-0`, `1.0`, `1e2`, `1.5`, `15e-1`, `-3`, `-4`, `300`, `301`,
					`1e-400`, `-1e-400`, `0e9999`, `1.00000000000000000001`, `1e400`, `9007199254740991`, `9007199254740992`, `9007199254740993`,
					`"red"`, `"Red"`, `"red "`, `"dark blue"`, `"é"`, `"é"`, `"-a"`, `"a-"`, `"a\nb"`, `"\u0000"`, `"\u007f"`, `"\u0085"`, `"\t"`, `"\r"`, `"a\n"`}),
				rapid.Map(rapid.SampledFrom(slices.Concat(paths, hosts, durations)), quoted),
				rapid.SampledFrom(slices.Concat(lists, objects)),
				rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.Int64Range(-400, 400).Draw(t, "n")) }),
				rapid.Custom(func(t *rapid.T) string {
					return fmt.Sprintf("%de%d", rapid.Int64Range(-40, 40).Draw(t, "n"), rapid.IntRange(-20, 20).Draw(t, "exp"))
				}),
				rapid.Custom(func(t *rapid.T) string {
					s := rapid.StringOf(rapid.SampledFrom([]rune(near))).Draw(t, "s")
					if p.Type == Path && rapid.Bool().Draw(t, "absolute") {
						s = "/srv/d.1" + s
					}
					return quoted(s)
				}),
			).Draw(t, "value")
			for _, raw := range []string{`{"` + p.Name + `":` + value + `}`, `{}`, `{"` + p.Name + `":` + value + `,"other":1}`} {
				parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(raw))
				if err != nil {
					t.Fatal(err)
				}
				valid := schema.Validate(parsed) == nil
				values, _, fault := ps.Parse(json.RawMessage(raw))
				if accepted := fault == nil; accepted != valid {
					if s, ok := parsed.(map[string]any)[p.Name].(string); ok && valid && utf8.RuneCountInString(s) <= int(p.Max) && len(s) > int(p.Max) {
						return // the bound is in bytes, the schema counts characters
					}
					if want, _ := fault.Details["want"].(string); valid && p.Type == Duration && want == p.want() {
						if d, err := time.ParseDuration(strings.Trim(value, `"`)); err != nil || int64(d) < p.Min || int64(d) > p.Max || d%units[p.unit()] != 0 {
							return // the schema knows the form, not the length
						}
					}
					t.Fatalf("%s: Parse accepts %t (%v), the schema %t", raw, accepted, fault, valid)
				}
				if fault == nil && values[p.Name] == nil {
					t.Fatalf("%s: no value", raw)
				}
			}
		}))
	}
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(b)
}

// What the types Path, Host and Duration are tried with, good and bad; x61 of the cases
// among them.
var (
	paths = []string{"a", "a/b", "a/", "a/.", ".", "./", "..", "../a", "a/..", "a/../b", "a//b", "./out//passwd", "out/", "...", "a/..b", "..b", "/", "//",
		"/srv/d.1", "/srv/d.1/", "/srv/d.1/.", "/srv/d.1/a", "/srv/d.1//a/", "//srv/d.1/a", "/srv/./d.1/a", "/srv/d.12/a", "/srv/dx1/a", "/srv", "/etc/passwd",
		"/srv/d.1/../x", "/srv/d.1/-a", "./-a", "-a", "~root", "$HOME", "{a,b}", "*", "a b", `a\b`, `..\a`, "é/x", "/srv/d.1/.."}
	hosts = []string{"localhost", "Example.ORG", "a-b.c", "a--b", "-a", "a-", "a.-b", "a..b", ".a", "a.", "a_b", "127.0.0.1", "127.1", "1", "0x7f000001", "0x", "a.0x1",
		"256.1.1.1", "01.2.3.4", "1.2.3.4.5", "1.2.3.4a", "4a", "a.1", "1.a", "::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8",
		"1:2:3:4:5:6:7::8", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", "::ffff:1.2.3.4", "::FFFF:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5::1.2.3.4", "1:2:3:4:5:6::1.2.3.4",
		"::1.2.3.4:5", "::1.2.3.04", "12345::", "fe80::1%eth0", "[::1]", "a:80", "http://a", "a/b", "user@a", "bücher.example", "xn--bcher-kva.example",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 126) + "aa", ":", ":1", "1:", ":::"}
	lists = []string{`["a"]`, `["dm.send","a/b"]`, `["a","a"]`, `["a","b","c"]`, `["a","b","c","d"]`, `["A","a"]`, `[""]`, `["-a"]`, `["1a"]`, `["a b"]`, `["a\n"]`, `["\u0000"]`,
		`["é"]`, `[1]`, `[null]`, `[["a"]]`, `[{}]`, `["a",1]`, `{"0":"a"}`, `"a"`, `["` + strings.Repeat("a", MaxNameLen) + `"]`, `["` + strings.Repeat("a", MaxNameLen+1) + `"]`}
	objects = []string{`{"a":1}`, `{"a":1,"b":["x"]}`, `{"a":1,"b":[]}`, `{"a":1,"b":["x","x"]}`, `{"a":1,"b":["x","y","z"]}`, `{"a":1,"b":"x"}`, `{"a":0}`, `{"b":["x"]}`,
		`{"a":1,"c":{}}`, `{"a":1,"c":{"d":true}}`, `{"a":1,"c":{"d":1}}`, `{"a":1,"c":{"e":1}}`, `{"a":1,"c":null}`, `{"a":1,"c":[]}`, `{"a":1,"A":1}`, `{"a":null}`, `[{"a":1}]`,
		`["-a"]`, `["-"]`, `["a\nb"]`, `["\u0000"]`, `["\u0085"]`, `["ok","Ok"]`, `["",""]`}
	durations = []string{"1s", "0s", "0", "90s", "1h30m", "1.5m", "1.5s", "1.5h", "2h", "2h1s", "1m1h", "1s1s", "+1s", "-1s", "1", "s", "1 s", "1S", ".5m", "1.m", "1h2m3s4ms5us6ns",
		"1000ms", "1500ms", "1us", "1µs", "1.5ms", "1000000us", "1000000000ns", "1000000001ns", "999999999h", "9999999999h", "1d", "0.0000000001s", "1e3s", "0x1s", "0h0m1s", "60m", "120m", "3600000ms"}
)

// What Parse makes of the types whose value is not the caller's string.
func TestCanonicalValues(t *testing.T) {
	ps := everyType(t)
	for _, c := range []struct {
		name, value string
		want        any // nil if it is refused
		says        string
	}{
		{"f", "a/b", "a/b", ""}, {"f", "./a//./b", "a/b", ""}, {"f", "/srv/d.1//a", "a", ""}, {"f", "./-a", "-a", ""}, {"f", "a/..b/...", "a/..b/...", ""},
		{"f", "{a,b}", "{a,b}", ""}, {"f", "~root/.bashrc", "~root/.bashrc", ""},
		{"f", "", nil, "is empty"}, {"f", ".", nil, "names a folder"}, {"f", "a/", nil, "names a folder"}, {"f", "/srv/d.1", nil, "names a folder"}, {"f", "/srv/d.1/", nil, "names a folder"},
		{"f", "a/../b", nil, "a way up"}, {"f", "/srv/d.1/../d.1/a", nil, "a way up"}, {"f", "/etc/passwd", nil, "not below /srv/d.1"}, {"f", "/srv/d.12", nil, "not below"},
		{"f", "//srv/d.1/a", nil, "not below"}, {"f", "-a", nil, "begins with -"},
		{"d", ".", ".", ""}, {"d", "a/", "a", ""}, {"d", "/srv/d.1", ".", ""}, {"d", "/srv/d.1/", ".", ""}, {"d", "/srv", nil, "not below"},
		{"r", "/", ".", ""}, {"r", "/etc/", "etc", ""}, {"r", "//etc", "etc", ""}, {"r", "etc", "etc", ""},
		{"h", "Example.ORG", "example.org", ""}, {"h", "::FFFF:1.2.3.4", "::ffff:1.2.3.4", ""}, {"h", "0:0:0:0:0:0:0:1", "::1", ""}, {"h", "127.0.0.1", "127.0.0.1", ""},
		{"h", "4a", "4a", ""}, {"h", "1.a", "1.a", ""},
		{"h", "127.1", nil, "ends in a number"}, {"h", "0x7f000001", nil, "ends in a number"}, {"h", "256.1.1.1", nil, "ends in a number"}, {"h", "fe80::1%eth0", nil, "zone"},
		{"h", "[::1]", nil, "neither"}, {"h", "a:80", nil, "neither"}, {"h", "a-", nil, "neither"}, {"h", "a_b", nil, "neither"}, {"h", "bücher.example", nil, "neither"}, {"h", "", nil, "neither"},
		{"h", strings.Repeat("a.", 127) + "a", nil, "longer than 253"}, {"h", strings.Repeat("a", 64), nil, "neither"},
		{"w", "90s", int64(90), ""}, {"w", "1h30m", int64(5400), ""}, {"w", "1.5h", int64(5400), ""}, {"w", "2000ms", int64(2), ""},
		{"w", "2h1s", nil, "out of range"}, {"w", "0s", nil, "out of range"}, {"w", "999999999h", nil, "out of range"}, {"w", "1500ms", nil, "whole number of s"},
		{"w", "1", nil, "not a duration"}, {"w", "", nil, "not a duration"}, {"w", "30m1h", nil, "not a duration"}, {"w", "+1s", nil, "not a duration"}, {"w", "-1s", nil, "begins with -"},
		{"ms", "0s", int64(0), ""}, {"ms", "1.5s", int64(1500), ""}, {"ms", "1us", nil, "whole number of ms"}, {"ms", "0.0000000001s", nil, "not a duration"},
		{"s", "file:key-1", "file:key-1", ""}, {"s", "file:key-2", nil, "none of the values"}, {"s", "file:key-1 ", nil, "none of the values"},
	} {
		values, _, fault := ps.Parse(json.RawMessage(`{"` + c.name + `":` + quoted(c.value) + `}`))
		switch {
		case c.want == nil && (fault == nil || !strings.Contains(fault.Message, c.says)):
			t.Errorf("%s %q: got %v, %v; want a fault with %q", c.name, c.value, values, fault, c.says)
		case c.want != nil && (fault != nil || values[c.name] != c.want):
			t.Errorf("%s %q: got %#v, %v; want %#v", c.name, c.value, values[c.name], fault, c.want)
		}
	}
	for name, want := range map[string]string{"f": "/srv/d.1/-a", "r": "/-a"} {
		if got := ps.find(name).Absolute("-a"); got != want {
			t.Errorf("%s: Absolute gives %s, want %s", name, got, want)
		}
	}
	if got := ps.find("d").Absolute("."); got != "/srv/d.1" {
		t.Errorf("d: Absolute(.) is %s", got)
	}
	for name, want := range map[string]bool{"e": false, "p": false, "i": false, "b": false, "t": true, "f": true, "d": false, "h": false, "w": false, "s": true, "n": false, "l": false, "o": false} {
		if got := ps.find(name).Stdin(); got != want {
			t.Errorf("%s: Stdin is %t", name, got)
		}
	}
}

// Whatever the JSON, no type accepts what no process may get, a value has one canonical
// form, and Parse and the schema agree.
func FuzzParam(f *testing.F) {
	ps := everyType(f)
	schemas := make([]*jsonschema.Schema, len(ps))
	for i := range ps {
		schemas[i] = schemaOf(f, ps[i:i+1])
		for _, s := range slices.Concat(paths, hosts, durations, ps[i].Values) {
			f.Add(i, quoted(s))
		}
		for _, s := range slices.Concat(lists, objects) {
			f.Add(i, s)
		}
		for _, s := range []string{`null`, `3`, `-0`, `1e2`, `true`, `"\u0000"`, `"a\nb"`, `"\ud800"`, "\"\xff\"", `"abc"`, `{}`, `1}{`} {
			f.Add(i, s)
		}
	}
	f.Fuzz(func(t *testing.T, i int, value string) {
		if i < 0 || i >= len(ps) || len(value) > 1<<16 {
			return
		}
		p := &ps[i]
		raw := json.RawMessage(`{"` + p.Name + `":` + value + `}`)
		values, canonical, fault := ps[i : i+1].Parse(raw)
		parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err == nil && fault == nil && schemas[i].Validate(parsed) != nil {
			t.Fatalf("%s: %s is accepted, and not by the schema", p.Name, raw)
		}
		if fault != nil {
			if object, ok := parsed.(map[string]any); ok && len(object) == 1 && fault.Code == InvalidParams && inside(fault, "/"+p.Name) && schemas[i].Validate(parsed) == nil {
				s, _ := object[p.Name].(string)
				parts := p.Type == Strings || p.Type == Object // whose strings are bounded in bytes as well
				if p.Type != Duration && !(parts && len(value) != utf8.RuneCountInString(value)) && len(s) == utf8.RuneCountInString(s) && !strings.Contains(value, `\u`) && utf8.ValidString(value) {
					t.Fatalf("%s: %s is refused (%v), and not by the schema", p.Name, raw, fault)
				}
			}
			return
		}
		v, given := values[p.Name]
		if !given { // "value" closed the object, and began another member
			return
		}
		if s, ok := v.(string); ok && badString(strings.TrimPrefix(s, "-"), MaxText, true) != "" {
			t.Fatalf("%s: %q is accepted", p.Name, s)
		}
		again, twice, fault := ps[i : i+1].Parse(canonical)
		if fault != nil || !bytes.Equal(canonical, twice) || !reflect.DeepEqual(again[p.Name], v) {
			t.Fatalf("%s: %s is %v, then %v (%v)", p.Name, raw, v, again, fault)
		}
		switch v := v.(type) {
		case string:
			if p.Type == Path && (!filepath.IsLocal(v) || filepath.Clean(v) != v || !strings.HasPrefix(p.Absolute(v)+"/", strings.TrimSuffix(p.Root, "/")+"/") || p.Kind == KindFile && v == ".") {
				t.Fatalf("%s: %s is the path %q, %q", p.Name, raw, v, p.Absolute(v))
			}
			if p.Type != Path { // whose canonical value is relative to the root
				if once, why := p.check(v); why != "" || once != v {
					t.Fatalf("%s: the value %q becomes %v (%s)", p.Name, v, once, why)
				}
			}
			if p.Type == Host && strings.ContainsAny(v, "-/%[]@") && (v[0] == '-' || strings.ContainsAny(v, "/%[]@")) {
				t.Fatalf("host %q", v)
			}
		case int64:
			n, unit := v, int64(1)
			if p.Type == Duration {
				unit = int64(units[p.unit()])
			}
			if n*unit < p.Min || n*unit > p.Max {
				t.Fatalf("%s: %s is %d, out of range", p.Name, raw, n)
			}
		case []OpName:
			if int64(len(v)) > p.Max || len(v) != len(slices.Compact(slices.Sorted(slices.Values(v)))) || slices.ContainsFunc(v, func(n OpName) bool { return !n.Valid() }) {
				t.Fatalf("names %q", v)
			}
		case []string:
			if int64(len(v)) > p.Max || int64(len(v)) < p.Min || slices.ContainsFunc(v, func(s string) bool { return badString(s, MaxString, true) != "" }) {
				t.Fatalf("strings %q", v)
			}
		case Values:
			for name := range v {
				if p.Fields.find(name) == nil {
					t.Fatalf("object %v", v)
				}
			}
		}
	})
}

// inside reports whether fault names place or something within it.
func inside(fault *Fault, place string) bool {
	at, _ := fault.Details["pointer"].(string)
	return at == place || strings.HasPrefix(at, place+"/")
}

// A fault of a list or an object names the very place in it, and what would be right there.
func TestNested(t *testing.T) {
	ps := everyType(t)
	long := quoted(strings.Repeat("é", MaxString/2+1)) // few enough characters, too many bytes
	for _, c := range []struct {
		raw           string
		at, says, get string // get is the value if it is accepted
	}{
		{`{"l":[]}`, "", "", `[]`}, {`{"l":["-x","a\n\tb","","-x"]}`, "/l", "l has more than 3 strings", ""}, {`{"l":["-x","a\n\tb",""]}`, "", "", `["-x","a\n\tb",""]`},
		{`{"l":"a"}`, "/l", "l is not an array", ""}, {`{"l":null}`, "/l", "is not an array", ""}, {`{"l":{}}`, "/l", "is not an array", ""},
		{`{"l":["a",1]}`, "/l/1", "string 2 of l is not a string", ""}, {`{"l":[["a"]]}`, "/l/0", "string 1 of l is not a string", ""}, {`{"l":[null]}`, "/l/0", "is not a string", ""},
		{`{"l":["\u0000"]}`, "/l/0", "control character U+0000", ""}, {`{"l":[` + long + `]}`, "/l/0", "longer than 4096 bytes", ""},
		{`{"lp":[]}`, "/lp", "lp has fewer than 1 strings; want an array of 1 to 3", ""}, {`{"lp":["a.b","A"]}`, "/lp/1", "string 2 of lp does not match", ""}, {`{"lp":["a.b","-"]}`, "", "", `["a.b","-"]`},
		{`{"o":{}}`, "/o/a", "the parameter o.a is missing", ""}, {`{"o":[]}`, "/o", "o is not an object; want an object with only a, b, c", ""}, {`{"o":null}`, "/o", "is not an object", ""},
		{`{"o":{"a":1}}`, "", "", `{"a":1}`}, {`{"o":{"c":{"d":true},"b":["x"],"a":1e0}}`, "", "", `{"a":1,"b":["x"],"c":{"d":true}}`},
		{`{"o":{"a":10}}`, "/o/a", "o.a is out of range; want an integer from 1 to 9", ""}, {`{"o":{"a":1,"b":["x",2]}}`, "/o/b/1", "string 2 of o.b is not a string", ""},
		{`{"o":{"a":1,"x/y":2}}`, "/o/x~1y", `there is no parameter "x/y" in o; want only a, b, c`, ""}, {`{"o":{"a":1,"c":{"e":2}}}`, "/o/c/e", `there is no parameter "e" in o.c; want only d`, ""},
		{`{"o":{"a":1,"a":2}}`, "/o/a", "no name twice", ""}, {`{"o":{"a":1,"c":{"d":null}}}`, "/o/c/d", "o.c.d is not true or false", ""},
	} {
		values, canonical, fault := ps.Parse(json.RawMessage(c.raw))
		if c.says != "" {
			if fault == nil || fault.Code != InvalidParams || fault.Details["pointer"] != c.at || !strings.Contains(fault.Message, c.says) {
				t.Errorf("%.60s: got %v, %v; want a fault at %s with %q", c.raw, values, fault, c.at, c.says)
			}
			continue
		}
		var got []byte
		for _, v := range values {
			got, _ = json.Marshal(v)
		}
		if fault != nil || string(got) != c.get || !bytes.Contains(canonical, []byte(c.get)) {
			t.Errorf("%.60s: got %s in %s, %v; want %s", c.raw, got, canonical, fault, c.get)
		}
	}
}

// Declarations of lists and objects that no call could satisfy, or that mean nothing.
func TestNestedDeclarations(t *testing.T) {
	deep := Param{Name: "x", Type: Bool}
	for range MaxNested + 1 {
		deep = Param{Name: "x", Type: Object, Fields: Params{deep}}
	}
	for _, c := range []struct {
		p    Param
		says string
	}{
		{Param{Type: Strings}, "need max"}, {Param{Type: Strings, Max: MaxStrings + 1}, "need max"}, {Param{Type: Strings, Min: 3, Max: 2}, "min not above"}, {Param{Type: Strings, Min: -1, Max: 2}, "min not above"},
		{Param{Type: Strings, Max: 2, Pattern: "a)|(b"}, "pattern"}, {Param{Type: Strings, Max: 2, As: AsStdin}, "want no as"},
		{Param{Type: Object}, "needs fields"}, {Param{Type: Bool, Fields: Params{{Name: "a", Type: Bool}}}, "a bool has no fields"},
		{Param{Type: Object, Fields: Params{{Name: "a", Type: Bool}, {Name: "a", Type: Bool}}}, "v: parameter a stands twice"},
		{Param{Type: Object, Fields: Params{{Name: "a", Type: Int, Min: 2, Max: 1}}}, "v: parameter a: min 2 is above"},
		{Param{Type: Object, Fields: Params{{Name: "a b", Type: Bool}}}, `"a b"`}, {Param{Type: Object, Fields: deep.Fields}, "at most 4 deep"},
	} {
		c.p.Name = "v"
		op := Op{Name: "x", Provider: "p", Summary: "s", Params: Params{c.p}}
		if err := op.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: got %v, want %q", c.p, err, c.says)
		}
	}
}

// What stands in an object counts in an op's digest, and an op without one has the digest
// that it had before there were any.
func TestDigestOfFields(t *testing.T) {
	with := func(fields Params) string {
		op := Op{Name: "x", Provider: "p", Summary: "s", Params: Params{{Name: "v", Type: Object, Fields: fields}}}
		return op.digest()
	}
	one, other := with(Params{{Name: "a", Type: Int, Max: 1}}), with(Params{{Name: "a", Type: Int, Max: 2}})
	if one == other {
		t.Error("another bound of a member leaves the digest")
	}
	b, err := json.Marshal(Param{Name: "v", Type: Bool})
	if err != nil || bytes.Contains(b, []byte("Fields")) {
		t.Errorf("a parameter without fields is %s, %v", b, err)
	}
	shared := Params{{Name: "a", Type: Pattern, Pattern: "a", Max: 1}}
	compiled(t, Params{{Name: "v", Type: Object, Fields: shared}})
	if shared[0].re != nil {
		t.Error("what an op prepares is shared with who declared it")
	}
}

func TestParse(t *testing.T) {
	ps := everyType(t)
	required := compiled(t, Params{{Name: "n", Type: Int, Min: 0, Max: 9}, {Name: "a/b", Type: Bool}}[:1])
	for _, c := range []struct {
		ps      Params
		raw     string
		code    Code // "" if accepted
		pointer string
	}{
		{ps, ``, "", ""},
		{ps, ` {} `, "", ""},
		{ps, `{"e":"red","p":"abc","i":3,"b":true,"t":"a\nb"}`, "", ""},
		{ps, `[]`, InvalidParams, ""},
		{ps, `null`, InvalidParams, ""},
		{ps, `"x"`, InvalidParams, ""},
		{ps, `{`, InvalidParams, ""},
		{ps, `{}{}`, InvalidParams, ""},
		{ps, `{} x`, InvalidParams, ""},
		{ps, `{"b":true,"b":false}`, InvalidParams, "/b"},
		{ps, `{"B":true}`, InvalidParams, "/B"},
		{ps, `{"other":true}`, InvalidParams, "/other"},
		{ps, `{"a/b~c":true}`, InvalidParams, "/a~1b~0c"},
		{ps, `{"i":"3"}`, InvalidParams, "/i"},
		{ps, `{"i":9007199254740993}`, IntegerOutOfRange, "/i"},
		{ps, `{"t":{"deep":[1e300]}}`, IntegerOutOfRange, "/t/deep/0"},
		{ps, `{"b":null}`, InvalidParams, "/b"},
		{ps, "{\"t\":\"a\xffb\"}", InvalidParams, ""},
		{ps, `{"t":"\ud800"}`, InvalidParams, ""},
		{ps, `{"t":"` + strings.Repeat("x", 41) + `"}`, InvalidParams, "/t"},
		{ps, `{"p":"` + strings.Repeat("a", 1<<20) + `"}`, InvalidParams, "/p"},
		{ps, strings.Repeat("[", 200), InvalidParams, ""},
		{required, `{}`, InvalidParams, "/n"},
		{required, `{"n":0}`, "", ""},
	} {
		values, canonical, fault := c.ps.Parse(json.RawMessage(c.raw))
		switch {
		case c.code == "" && fault != nil:
			t.Errorf("%.60s: refused: %v", c.raw, fault)
		case c.code == "" && (values == nil || !json.Valid(canonical)):
			t.Errorf("%.60s: got %v, %s", c.raw, values, canonical)
		case c.code != "" && (fault == nil || fault.Code != c.code):
			t.Errorf("%.60s: got %v, want %s", c.raw, fault, c.code)
		case fault != nil && c.pointer != "" && fault.Details["pointer"] != c.pointer:
			t.Errorf("%.60s: pointer %v, want %s", c.raw, fault.Details["pointer"], c.pointer)
		case fault != nil && (fault.Details["want"] == "" || len(fault.Message) > 2000):
			t.Errorf("%.60s: fault without help, or too long: %v", c.raw, fault)
		}
	}
}

func TestNames(t *testing.T) {
	ps := everyType(t)
	for _, c := range []struct{ value, says string }{ // says is empty if it is accepted
		{`[]`, ""}, {`["dm.send"]`, ""}, {`["b","a","dm"]`, ""},
		{`["a","b","c","d"]`, "more than 3"}, {`["a","b","a"]`, `names "a" twice`}, {`"dm.send"`, "not an array"}, {`null`, "not an array"}, {`{}`, "not an array"},
		{`["dm send"]`, "no name of an op"}, {`["-x"]`, "no name of an op"}, {`[""]`, "no name of an op"}, {`[1]`, "no name of an op"}, {`[null]`, "no name of an op"}, {`["dm\n"]`, "no name of an op"},
	} {
		values, _, fault := ps.Parse(json.RawMessage(`{"n":` + c.value + `}`))
		var want []OpName
		switch {
		case c.says != "" && (fault == nil || !strings.Contains(fault.Message, c.says) || fault.Details["pointer"] != "/n"):
			t.Errorf("%s: got %v, %v; want a fault with %q at /n", c.value, values, fault, c.says)
		case c.says == "" && (fault != nil || json.Unmarshal([]byte(c.value), &want) != nil || !reflect.DeepEqual(values["n"], want)):
			t.Errorf("%s: got %#v, %v", c.value, values["n"], fault)
		}
	}
	for _, most := range []int64{0, -1, MaxNames + 1} {
		op := Op{Name: "x", Provider: "p", Summary: "s", Params: Params{{Name: "v", Type: Names, Max: most}}}
		if err := op.Check(); err == nil {
			t.Errorf("max %d is accepted", most)
		}
	}
}

// The parameters of the chat ops are those of threads.md, those of the plane's plane.md's.
func TestCronParameters(t *testing.T) {
	for _, c := range []struct {
		op   Op
		want string
	}{
		{CronCreate(), "name schedule agent? prompt zone? jitter? until? max_runs? overlap? missed? ops? deadline?"},
		{CronCancel(), "timer reason?"},
		{SwarmSpawn(), "task implementation? source? instruction? artifacts? verify? deadline? retries? capabilities? credentials?"},
		{SwarmCancel(), "delegation grace?"},
	} {
		if err := c.op.Check(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range c.op.Params {
			name := p.Name
			if p.Optional {
				name += "?"
			}
			got = append(got, name)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s takes %s, want %s", c.op.Name, got, c.want)
		}
	}
	timer := "tm-" + strings.ToLower("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	cancel := CronCancel()
	if err := cancel.Check(); err != nil {
		t.Fatal(err)
	}
	if _, _, fault := cancel.Params.Parse(json.RawMessage(`{"timer":"` + timer + `"}`)); fault != nil {
		t.Errorf("%s: %v", timer, fault)
	}
}

func TestSwarmParameters(t *testing.T) {
	ps := compiled(t, SwarmSpawn().Params)
	schema := schemaOf(t, ps)
	for raw, at := range map[string]string{ // "ok" is accepted
		`{"task":"fix build"}`: "ok",
		`{"task":"a\nb","implementation":"agent.cli","source":{"revision":"sha256:00","worktree":"h1:` + strings.Repeat("A", 43) + `="},
			"instruction":{"original":"please","inferred":"i","context":"c","verification":"v"},"artifacts":["out/a.txt"],"verify":{"command":["go","test","-race","./..."]},
			"deadline":"168h","retries":{"worker_lost":0,"window":1,"human":2,"invalid_result":3,"unknown_external":0,"task_failed":16},"capabilities":["git"],"credentials":["file:key"]}`: "ok",
		`{}`:                                             "/task",
		`{"task":"x","source":{}}`:                       "/source/revision",
		`{"task":"x","verify":{"command":[]}}`:           "/verify/command",
		`{"task":"x","verify":{}}`:                       "/verify/command",
		`{"task":"x","verify":["go"]}`:                   "/verify",
		`{"task":"x","retries":{"worker_lost":17}}`:      "/retries/worker_lost",
		`{"task":"x","retries":{"lost":1}}`:              "/retries/lost",
		`{"task":"x","credentials":["hunter2"]}`:         "/credentials/0",
		`{"task":"x","capabilities":["A"]}`:              "/capabilities/0",
		`{"task":"x","source":{"revision":"--upload"}}`:  "/source/revision",
		`{"task":"x","instruction":{"goal":"x"}}`:        "/instruction/goal",
		`{"task":"x","instruction":{"original":["x"]}}`:  "/instruction/original",
		`{"task":"x","source":{"revision":"a","x":"h"}}`: "/source/x",
	} {
		_, _, fault := ps.Parse(json.RawMessage(raw))
		parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if (fault == nil) != (at == "ok") || fault != nil && fault.Details["pointer"] != at || (schema.Validate(parsed) == nil) != (at == "ok") {
			t.Errorf("%s: got %v, schema %v; want %s", raw, fault, schema.Validate(parsed), at)
		}
	}
	// A second longer is a matter of the bounds, which no schema says.
	if _, _, fault := ps.Parse(json.RawMessage(`{"task":"x","deadline":"168h0m1s"}`)); fault == nil || fault.Details["pointer"] != "/deadline" {
		t.Errorf("eight days: %v", fault)
	}
}

// A pattern is held to the whole string, whatever the operator wrote.
func TestPatternIsWhole(t *testing.T) {
	for _, bad := range []string{"a)|(b", "(", "a)(?:b"} {
		op := Op{Name: "x", Provider: "p", Summary: "s", Params: Params{{Name: "v", Type: Pattern, Pattern: bad, Max: 9}}}
		if err := op.Check(); err == nil {
			t.Errorf("pattern %q is accepted", bad)
		}
	}
	ps := compiled(t, Params{{Name: "v", Type: Pattern, Pattern: `a|(?m)b$`, Max: 9}})
	for raw, want := range map[string]bool{"a": true, "b": true, "ax": false, "xb": false, `b\na`: false, "": false} {
		if _, _, fault := ps.Parse(json.RawMessage(`{"v":"` + raw + `"}`)); (fault == nil) != want {
			t.Errorf("%q: got %v, want accepted %t", raw, fault, want)
		}
	}
}

// The canonical form is one value's only form: making it again changes nothing,
// and another implementation of RFC 8785 agrees.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{}`, `{"b":1,"a":[true,null,"x"]}`, `1e2`, `-0`, `0.1`, `1e-7`, `123456789012345`, `9007199254740991`, `"é\u00e9\ud83d\ude00"`, `{"\u20ac":1,"\r":2,"1":3,"😀":4,"ö":5}`,
		`1e-400`, `[1.00000000000000000001]`, `5e-324`, `1.7976931348623157e308`, ` [ ] `, "\"\x7f\u2028\"", `"\/"`, `{"a":{"a":{"a":1}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		once, fault := Canonical(raw)
		if fault != nil {
			if fault.Code != InvalidParams && fault.Code != IntegerOutOfRange {
				t.Fatalf("%q: code %s", raw, fault.Code)
			}
			return
		}
		twice, fault := Canonical(once)
		if fault != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q: %q, then %q, %v", raw, once, twice, fault)
		}
		other := jsontext.Value(bytes.Clone(raw))
		if err := other.Canonicalize(); err != nil {
			t.Fatalf("%q: jsontext refuses: %v", raw, err)
		}
		if !bytes.Equal(once, other) {
			t.Fatalf("%q: %q, jsontext %q", raw, once, other)
		}
	})
}
