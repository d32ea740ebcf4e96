package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
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
		t.Run(string(p.Type), rapid.MakeCheck(func(t *rapid.T) {
			value := rapid.OneOf(
				rapid.SampledFrom([]string{`null`, `true`, `false`, `"true"`, `[]`, `{}`, `""`, `0`, `-0`, `1.0`, `1e2`, `1.5`, `15e-1`, `-3`, `-4`, `300`, `301`,
					`1e-400`, `-1e-400`, `0e9999`, `1.00000000000000000001`, `1e400`, `9007199254740991`, `9007199254740992`, `9007199254740993`,
					`"red"`, `"Red"`, `"red "`, `"dark blue"`, `"é"`, `"é"`, `"-a"`, `"a-"`, `"a\nb"`, `"\u0000"`, `"\u007f"`, `"\u0085"`, `"\t"`, `"\r"`, `"a\n"`}),
				rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.Int64Range(-400, 400).Draw(t, "n")) }),
				rapid.Custom(func(t *rapid.T) string {
					return fmt.Sprintf("%de%d", rapid.Int64Range(-40, 40).Draw(t, "n"), rapid.IntRange(-20, 20).Draw(t, "exp"))
				}),
				rapid.Custom(func(t *rapid.T) string {
					s := rapid.StringOf(rapid.SampledFrom([]rune("abcé -d\n\t\x00\x1f\x7f\u0085😀"))).Draw(t, "s")
					b, _ := json.Marshal(s)
					return string(b)
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
					t.Fatalf("%s: Parse accepts %t (%v), the schema %t", raw, accepted, fault, valid)
				}
				if fault == nil && values[p.Name] == nil {
					t.Fatalf("%s: no value", raw)
				}
			}
		}))
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
