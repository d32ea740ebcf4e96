package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/gowebpki/jcs"
)

// Type is a parameter's type. Each type renders to JSON Schema and has one check
// that every entrance uses.
type Type string

// The types of parameters.
const (
	// Enum is one of Values.
	Enum Type = "enum"
	// Pattern is a string of at most Max bytes that matches Pattern as a whole.
	Pattern Type = "pattern"
	// Int is an integer in [Min, Max], within ±2^53.
	Int Type = "int"
	// Bool is true or false; in a command op it selects Then or Else.
	Bool Type = "bool"
	// Text is free text of at most Max bytes, line breaks and tabs allowed. In a
	// command op it is the process's standard input and never a word.
	Text Type = "text"
	// Path is a path below Root, relative to it or absolute, of a thing of Kind. It is
	// opened beneath Root when a process is launched, and handed over As says.
	Path Type = "path"
	// Host is a host name (RFC 1123) or an IP address, without a port.
	Host Type = "host"
	// Duration is a length of time from Min to Max, in nanoseconds, written as "90s"
	// or "1h30m". In a command op its word is a whole number of Unit.
	Duration Type = "duration"
	// Secret is a CredentialRef out of Values. What it stands for is known to the
	// process alone, which gets it As says.
	Secret Type = "secret"
)

// How a value reaches a process that is not simply a word of its argv.
const (
	AsStdin      = "stdin"      // Text, and Path and Secret unless they say otherwise
	AsArgument   = "argument"   // Path: its clean absolute path is a word
	AsDescriptor = "descriptor" // Secret: the word is /dev/fd/N, where the process reads it
)

// Kinds of things that a Path may name.
const (
	KindFile = "file" // a regular file
	KindDir  = "dir"
)

// Bounds on parameters.
const (
	// MaxInt is the largest magnitude of an integer anywhere in parameters: the
	// largest up to which RFC 8785 keeps integers apart.
	MaxInt = 1<<53 - 1
	// MaxString bounds a string parameter of any type but Text, in bytes.
	MaxString = 4 << 10
	// MaxText bounds a Text parameter, in bytes.
	MaxText = 64 << 10
)

// Param declares one parameter.
type Param struct {
	Name     string
	Type     Type
	Doc      string
	Optional bool // may be absent; in a command op its word is then left out

	Values  []string // Enum; Secret: the references that a caller may choose from
	Pattern string   // Pattern: an RE2 expression for the whole string
	Min     int64    // Int; Duration: nanoseconds
	Max     int64    // Int: the largest value; Duration: nanoseconds; Pattern and Text: bytes
	Then    []string // Bool in a command op: words for true
	Else    []string // Bool in a command op: words for false
	Root    string   // Path: an absolute, clean folder
	Kind    string   // Path: KindFile or KindDir
	As      string   // Path and Secret: how the process gets it; empty is AsStdin
	Unit    string   // Duration: "ms", "s" or "m"; empty is "s"

	re *regexp.Regexp
}

// Params are the parameters of an op, in the order of its definition.
type Params []Param

// Values are the parameters of one call after validation: string, int64 or bool
// by name. An optional parameter that was absent is absent here too.
type Values map[string]any

var paramName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// compile checks the declaration of p and prepares its check.
func (p *Param) compile() error {
	if !paramName.MatchString(p.Name) {
		return fmt.Errorf("parameter name %q: want a letter or _, then letters, digits, _ or -, at most 64", p.Name)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("parameter %s: %s", p.Name, fmt.Sprintf(format, args...))
	}
	switch p.Type {
	case Enum:
		if len(p.Values) == 0 {
			return bad("an enum needs values")
		}
		for i, v := range p.Values {
			if why := badString(v, MaxString, false); why != "" {
				return bad("value %q %s", v, why)
			}
			if slices.Contains(p.Values[:i], v) {
				return bad("value %q stands twice", v)
			}
		}
	case Pattern:
		if p.Max < 1 || p.Max > MaxString {
			return bad("a pattern needs max, 1 to %d bytes", MaxString)
		}
		// Alone first: "a)|(b" is an expression only between our parentheses, and
		// there it is no longer held to the whole string.
		if _, err := regexp.Compile(p.Pattern); err != nil {
			return bad("pattern: %v", err)
		}
		re, err := regexp.Compile(`^(?:` + p.Pattern + `)$`)
		if err != nil {
			return bad("pattern: %v", err)
		}
		p.re = re
	case Int:
		if p.Min > p.Max {
			return bad("min %d is above max %d", p.Min, p.Max)
		}
		if p.Min < -MaxInt || p.Max > MaxInt {
			return bad("min and max lie within ±%d", int64(MaxInt))
		}
	case Bool:
	case Text:
		if p.Max < 1 || p.Max > MaxText {
			return bad("a text needs max, 1 to %d bytes", MaxText)
		}
	default:
		return bad("unknown type %q; the types are enum, pattern, int, bool and text", p.Type)
	}
	return nil
}

// want says in words what p accepts.
func (p *Param) want() string {
	switch p.Type {
	case Enum:
		return "one of " + strings.Join(p.Values, ", ")
	case Pattern:
		return fmt.Sprintf("a string of at most %d bytes that matches %s and does not begin with -", p.Max, p.Pattern)
	case Int:
		return fmt.Sprintf("an integer from %d to %d", p.Min, p.Max)
	case Bool:
		return "true or false"
	case Text:
		return fmt.Sprintf("a string of at most %d bytes without control characters, line breaks and tabs aside", p.Max)
	}
	return ""
}

// check validates one decoded value. It returns what is wrong, or "".
func (p *Param) check(v any) (any, string) {
	switch p.Type {
	case Enum, Pattern, Text:
		s, ok := v.(string)
		if !ok {
			return nil, "is not a string"
		}
		limit := int64(MaxString)
		if p.Type != Enum {
			limit = p.Max
		}
		if why := badString(s, int(limit), p.Type == Text); why != "" {
			return nil, why
		}
		if p.Type == Enum && !slices.Contains(p.Values, s) {
			return nil, "is none of the values"
		}
		if p.Type == Pattern && !p.re.MatchString(s) {
			return nil, "does not match"
		}
		return s, ""
	case Int:
		n, ok := v.(json.Number)
		if !ok {
			return nil, "is not an integer"
		}
		i, ok := wholeNumber(n)
		if !ok {
			return nil, "is not an integer"
		}
		if i < p.Min || i > p.Max {
			return nil, "is out of range"
		}
		return i, ""
	case Bool:
		b, ok := v.(bool)
		if !ok {
			return nil, "is not true or false"
		}
		return b, ""
	}
	return nil, "has a type that does not exist"
}

// badString says what is wrong with s as a parameter of any type, or "". A
// leading - is refused for every type but free text, which never reaches an
// argv.
func badString(s string, limit int, free bool) string {
	if len(s) > limit {
		return fmt.Sprintf("is longer than %d bytes", limit)
	}
	if !utf8.ValidString(s) {
		return "is not valid UTF-8"
	}
	for _, r := range s {
		if free && (r == '\n' || r == '\t' || r == '\r') {
			continue
		}
		if unicode.IsControl(r) {
			return fmt.Sprintf("holds the control character %U", r)
		}
	}
	if !free && strings.HasPrefix(s, "-") {
		return "begins with -"
	}
	return ""
}

// wholeNumber returns n when it denotes an integer within ±MaxInt, in whatever
// notation (JSON Schema counts 1.0 and 1e2 as integers).
func wholeNumber(n json.Number) (int64, bool) {
	r, ok := exact(n)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	i := r.Num().Int64()
	return i, i >= -MaxInt && i <= MaxInt
}

// exact returns n without rounding. Numbers whose exponent alone would need a
// large amount of memory are no number that a parameter could hold.
func exact(n json.Number) (*big.Rat, bool) {
	f, err := n.Float64()
	if err != nil || math.IsInf(f, 0) {
		return nil, false
	}
	if _, exp, found := strings.Cut(strings.ToLower(string(n)), "e"); found && len(strings.TrimLeft(exp, "+-0")) > 3 {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(string(n))
	return r, ok
}

// Parse checks raw, the params object of a call, against ps. It returns the
// values and the object's RFC 8785 form, or the first fault, which names the
// JSON Pointer of the place and what would be right there.
//
// Empty raw counts as {}. A name that stands twice, a name that is not declared,
// a missing parameter, a wrong type and a value out of bounds are faults.
func (ps Params) Parse(raw json.RawMessage) (Values, json.RawMessage, *Fault) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	canonical, fault := Canonical(raw)
	if fault != nil {
		return nil, nil, fault
	}
	if canonical[0] != '{' {
		return nil, nil, paramFault("", "params is not an object", "one JSON object")
	}
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(canonical))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		return nil, nil, paramFault("", "params: "+err.Error(), "one JSON object")
	}
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if ps.find(name) == nil {
			return nil, nil, paramFault(pointer(name), fmt.Sprintf("there is no parameter %q", clip(name)), ps.known())
		}
	}
	values := make(Values, len(object))
	for i := range ps {
		p := &ps[i]
		v, ok := object[p.Name]
		if !ok {
			if p.Optional {
				continue
			}
			return nil, nil, paramFault(pointer(p.Name), "the parameter "+p.Name+" is missing", p.want())
		}
		value, why := p.check(v)
		if why != "" {
			return nil, nil, paramFault(pointer(p.Name), p.Name+" "+why, p.want())
		}
		values[p.Name] = value
	}
	return values, canonical, nil
}

func (ps Params) find(name string) *Param {
	for i := range ps {
		if ps[i].Name == name {
			return &ps[i]
		}
	}
	return nil
}

func (ps Params) known() string {
	if len(ps) == 0 {
		return "no parameters: {}"
	}
	names := make([]string, len(ps))
	for i := range ps {
		names[i] = ps[i].Name
	}
	return "only " + strings.Join(names, ", ")
}

func paramFault(pointer, message, want string) *Fault {
	return Faultf(InvalidParams, "%s; want %s", message, want).With("pointer", pointer).With("want", want)
}

// pointer returns the JSON Pointer of the member name of the root.
func pointer(name string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(name))
}

// clip bounds a caller's string before it is repeated to the caller.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Canonical returns raw in RFC 8785 form. It refuses what that form would hide:
// anything but one JSON value, invalid UTF-8, a name that stands twice, nesting
// beyond 128, and an integer beyond ±2^53 (two such integers can have one
// canonical form).
func Canonical(raw json.RawMessage) (json.RawMessage, *Fault) {
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	for depth := 0; ; {
		tok, err := d.ReadToken()
		if err != nil {
			return nil, syntaxFault(d, err)
		}
		switch tok.Kind() {
		case '{', '[':
			if depth++; depth > 128 {
				return nil, Faultf(InvalidParams, "nested deeper than 128").With("pointer", clip(string(d.StackPointer()))).With("want", "at most 128 levels")
			}
		case '}', ']':
			depth--
		case '0':
			if !safeNumber(json.Number(tok.String())) {
				at := clip(string(d.StackPointer()))
				return nil, Faultf(IntegerOutOfRange, "the number at %q would not keep its value: it lies beyond ±2^53, or rounds to an integer", at).
					With("pointer", at).With("want", "an integer within ±9007199254740991, or the value as a string")
			}
		}
		if depth == 0 {
			break
		}
	}
	// What follows the value must be space: ReadToken says io.EOF there.
	if _, err := d.ReadToken(); err == nil || err.Error() != "EOF" {
		return nil, Faultf(InvalidParams, "something follows the JSON value").With("pointer", "").With("want", "one JSON value and nothing behind it")
	}
	out, err := jcs.Transform(raw)
	if err != nil {
		return nil, Faultf(InvalidParams, "not canonical JSON: %v", err).With("pointer", "").With("want", "one I-JSON value")
	}
	return out, nil
}

func syntaxFault(d *jsontext.Decoder, err error) *Fault {
	at := clip(string(d.StackPointer()))
	return Faultf(InvalidParams, "not valid JSON at byte %d, near %q: want I-JSON (RFC 7493): valid UTF-8, no name twice", d.InputOffset(), at).
		With("pointer", at).With("want", "one JSON object")
}

// safeNumber reports whether n keeps its meaning in canonical form, which is that
// of the nearest double: an integer within ±MaxInt stays what it is, and what is
// not an integer does not become one by rounding.
func safeNumber(n json.Number) bool {
	f, err := n.Float64()
	if err != nil || math.Abs(f) > MaxInt {
		return false
	}
	r, ok := exact(n)
	if !ok { // an exponent of four digits and yet a double: zero, or next to it
		digits, _, _ := strings.Cut(strings.ToLower(string(n)), "e")
		return strings.Trim(digits, "-0.") == ""
	}
	if r.IsInt() {
		return r.Num().CmpAbs(big.NewInt(MaxInt)) <= 0
	}
	return f != math.Trunc(f)
}

// Schema returns the JSON Schema 2020-12 of the params object. A value is valid
// under it exactly when Parse accepts it, the bounds in bytes aside, which JSON
// Schema counts in characters.
func (ps Params) Schema() json.RawMessage {
	type member struct {
		name   string
		schema map[string]any
	}
	var required []string
	properties := make(map[string]any, len(ps))
	for i := range ps {
		m := member{ps[i].Name, ps[i].schema()}
		properties[m.name] = m.schema
		if !ps[i].Optional {
			required = append(required, m.name)
		}
	}
	s := map[string]any{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"type":                 "object",
		"properties":           properties,
		"additionalProperties": false,
	}
	if required != nil {
		s["required"] = required
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // maps of strings, numbers and bools
	}
	return b
}

func (p *Param) schema() map[string]any {
	s := map[string]any{}
	if p.Doc != "" {
		s["description"] = p.Doc
	}
	switch p.Type {
	case Enum:
		s["type"], s["enum"] = "string", p.Values
	case Pattern:
		s["type"], s["pattern"], s["maxLength"] = "string", `^(?:`+p.Pattern+`)$`, p.Max
		s["not"] = map[string]any{"pattern": `^-|[\x00-\x1f\x7f-\x9f]`}
	case Int:
		s["type"], s["minimum"], s["maximum"] = "integer", p.Min, p.Max
	case Bool:
		s["type"] = "boolean"
	case Text:
		s["type"], s["maxLength"] = "string", p.Max
		s["not"] = map[string]any{"pattern": `[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]`}
	}
	return s
}
