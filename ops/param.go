package ops

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
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
	// Names is an array of at most Max distinct names of ops or aliases. Only native ops
	// have it. Whether there are such ops is for the executor to find.
	Names Type = "names"
	// Strings is an array of Min to Max strings, each of at most MaxString bytes and, where
	// Pattern is not empty, matched by it as a whole. A string may hold line breaks and
	// tabs and begin with "-". Only native ops have it.
	Strings Type = "strings"
	// Object is a JSON object whose members are Fields and no others. Only native ops have
	// it.
	Object Type = "object"
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
	// MaxString bounds a string parameter of any type but Text, and each string of a
	// Strings parameter, in bytes.
	MaxString = 4 << 10
	// MaxText bounds a Text parameter, in bytes.
	MaxText = 64 << 10
	// MaxDuration bounds a Duration parameter: 100 days.
	MaxDuration = 2400 * time.Hour
	// MaxNames bounds a Names parameter.
	MaxNames = 64
	// MaxStrings bounds a Strings parameter.
	MaxStrings = 64
	// MaxNested bounds how deep Object parameters stand in one another.
	MaxNested = 4
)

// Param declares one parameter.
type Param struct {
	Name     string
	Type     Type
	Doc      string
	Optional bool // may be absent; in a command op its word is then left out

	Values  []string // Enum; Secret: the references that a caller may choose from
	Pattern string   // Pattern and Strings: an RE2 expression for the whole string
	Min     int64    // Int; Duration: nanoseconds; Strings: how many
	Max     int64    // Int: the largest value; Duration: nanoseconds; Pattern and Text: bytes; Names and Strings: how many
	Then    []string // Bool in a command op: words for true
	Else    []string // Bool in a command op: words for false
	Root    string   // Path: an absolute, clean folder
	Kind    string   // Path: KindFile or KindDir
	As      string   // Path and Secret: how the process gets it; empty is AsStdin
	Unit    string   // Duration: "ms", "s" or "m"; empty is "s"
	Fields  Params   `json:",omitempty"` // Object: its members

	re *regexp.Regexp
}

// Params are the parameters of an op, in the order of its definition.
type Params []Param

// Values are the parameters of one call after validation, by name. An optional
// parameter that was absent is absent here too. What a value is depends on the type:
//
//   - Enum, Pattern, Text: the string that the caller gave.
//   - Int: an int64. Bool: a bool.
//   - Path: a string, the clean path relative to Root, "." for Root itself. It may
//     begin with "-" and is never a word; Param.Absolute makes the one that is.
//   - Host: a string, a name in lower case or an address as net/netip writes it.
//   - Duration: an int64, the number of Units. It is the word of a command op.
//   - Secret: a string, one of the references in Param.Values and never what it
//     stands for.
//   - Names: a []OpName, in the caller's order. Strings: a []string, in that order.
//   - Object: Values, those of its members.
type Values map[string]any

var paramName = lazily(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// compile checks the declarations of ps, which stand depth objects deep, and prepares
// their checks.
func (ps Params) compile(depth int) error {
	for i := range ps {
		if err := ps[i].compile(depth); err != nil {
			return err
		}
		for j := range i {
			if ps[j].Name == ps[i].Name {
				return fmt.Errorf("parameter %s stands twice", ps[i].Name)
			}
		}
	}
	return nil
}

// compile checks the declaration of p and prepares its check.
func (p *Param) compile(depth int) error {
	if !paramName().MatchString(p.Name) {
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
		if err := p.compilePattern(); err != nil {
			return bad("pattern: %v", err)
		}
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
	case Path:
		if !filepath.IsAbs(p.Root) || filepath.Clean(p.Root) != p.Root || badString(p.Root, MaxString, false) != "" {
			return bad("a path needs a root, a clean absolute path; it has %q", clip(p.Root))
		}
		if p.Kind != KindFile && p.Kind != KindDir {
			return bad("a path needs a kind, %s or %s; it has %q", KindFile, KindDir, clip(p.Kind))
		}
	case Host:
	case Duration:
		unit, ok := units[p.unit()]
		if !ok {
			return bad("unknown unit %q; the units are ms, s and m", clip(p.Unit))
		}
		if p.Min < 0 || p.Min > p.Max || p.Max > int64(MaxDuration) {
			return bad("min and max lie between 0s and %s, min first", MaxDuration)
		}
		if p.Min%int64(unit) != 0 || p.Max%int64(unit) != 0 {
			return bad("min and max are whole numbers of %s, since that is the unit", p.unit())
		}
	case Secret:
		if len(p.Values) == 0 {
			return bad("a secret needs the credentials that a caller may choose from")
		}
		for i, v := range p.Values {
			if !CredentialRef(v).Valid() {
				return bad("credential %q: want file:NAME, env:NAME or systemd:NAME", clip(v))
			}
			if slices.Contains(p.Values[:i], v) {
				return bad("credential %q stands twice", v)
			}
		}
	case Names:
		if p.Max < 1 || p.Max > MaxNames {
			return bad("names need max, 1 to %d of them", MaxNames)
		}
	case Strings:
		if p.Max < 1 || p.Max > MaxStrings || p.Min < 0 || p.Min > p.Max {
			return bad("strings need max, 1 to %d of them, and min not above it", MaxStrings)
		}
		if p.Pattern != "" {
			if err := p.compilePattern(); err != nil {
				return bad("pattern: %v", err)
			}
		}
	case Object:
		if depth >= MaxNested {
			return bad("objects stand in one another at most %d deep", MaxNested)
		}
		if len(p.Fields) == 0 {
			return bad("an object needs fields")
		}
		p.Fields = slices.Clone(p.Fields) // what is prepared is this op's own
		if err := p.Fields.compile(depth + 1); err != nil {
			return bad("%v", err)
		}
	default:
		return bad("unknown type %q; the types are %s", clip(string(p.Type)), strings.Join(typeNames(), ", "))
	}
	if p.Type != Object && len(p.Fields) > 0 {
		return bad("a %s has no fields", p.Type)
	}
	if p.As != "" && !slices.Contains(ways[p.Type], p.As) {
		return bad("the process does not get a %s as %q; want %s", p.Type, clip(p.As), cmp.Or(strings.Join(ways[p.Type], " or "), "no as"))
	}
	return nil
}

// compilePattern prepares p.Pattern for whole strings.
func (p *Param) compilePattern() error {
	// Alone first: "a)|(b" is an expression only between our parentheses, and
	// there it is no longer held to the whole string.
	if _, err := regexp.Compile(p.Pattern); err != nil {
		return err
	}
	re, err := regexp.Compile(`^(?:` + p.Pattern + `)$`)
	p.re = re
	return err
}

// ways are the values of As that a type may have, the one that an empty As means first.
var ways = map[Type][]string{
	Text:   {AsStdin},
	Path:   {AsStdin, AsArgument},
	Secret: {AsStdin, AsDescriptor},
}

// typeNames are the types that an op file can have, in the order of their constants.
func typeNames() []string {
	return []string{string(Enum), string(Pattern), string(Int), string(Bool), string(Text), string(Path), string(Host), string(Duration), string(Secret)}
}

// Stdin reports whether a process gets the value of p as its standard input, so that
// it is no word of its argv.
func (p *Param) Stdin() bool {
	return len(ways[p.Type]) > 0 && (p.As == "" || p.As == AsStdin)
}

// Absolute returns the absolute path of value, which is one that Parse returned for p,
// a Path. It is a matter of words: what stands there, and whether a link on the way
// leads out of Root, is for the one who opens it to find.
func (p *Param) Absolute(value string) string { return filepath.Join(p.Root, value) }

// units are the units of a Duration.
var units = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute}

func (p *Param) unit() string { return cmp.Or(p.Unit, "s") }

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
	case Path:
		thing := "file"
		if p.Kind == KindDir {
			thing = "folder"
		}
		return fmt.Sprintf("the path of a %s below %s, relative to it or absolute, without ..", thing, p.Root)
	case Host:
		return "a host name (letters, digits, - and dots), an IPv4 or an IPv6 address, without a port"
	case Duration:
		return fmt.Sprintf("a duration from %s to %s, a whole number of %s, such as 90s or 1h30m", time.Duration(p.Min), time.Duration(p.Max), p.unit())
	case Secret:
		return "one of the references " + strings.Join(p.Values, ", ")
	case Names:
		return fmt.Sprintf("an array of at most %d names of ops, none twice", p.Max)
	case Strings:
		least := "at most"
		if p.Min > 0 {
			least = fmt.Sprintf("%d to", p.Min)
		}
		return fmt.Sprintf("an array of %s %d strings, each %s", least, p.Max, p.wantString())
	case Object:
		return "an object with " + p.Fields.known()
	}
	return ""
}

// wantString says in words what p, a Strings, accepts as one string.
func (p *Param) wantString() string {
	if p.Pattern != "" {
		return fmt.Sprintf("of at most %d bytes that matches %s", MaxString, p.Pattern)
	}
	return fmt.Sprintf("of at most %d bytes without control characters, line breaks and tabs aside", MaxString)
}

// read validates one decoded value that stands at the JSON Pointer at. It returns the
// value, or the fault, which names the place in v where it lies.
func (p *Param) read(v any, at string) (any, *Fault) {
	switch p.Type {
	case Strings:
		return p.readStrings(v, at)
	case Object:
		object, ok := v.(map[string]any)
		if !ok {
			return nil, paramFault(at, dotted(at)+" is not an object", p.want())
		}
		values, fault := p.Fields.read(object, at)
		if fault != nil {
			return nil, fault
		}
		return values, nil
	}
	value, why := p.check(v)
	if why != "" {
		return nil, paramFault(at, dotted(at)+" "+why, p.want())
	}
	return value, nil
}

// readStrings is read for the type Strings.
func (p *Param) readStrings(v any, at string) (any, *Fault) {
	list, ok := v.([]any)
	switch {
	case !ok:
		return nil, paramFault(at, dotted(at)+" is not an array", p.want())
	case int64(len(list)) > p.Max:
		return nil, paramFault(at, fmt.Sprintf("%s has more than %d strings", dotted(at), p.Max), p.want())
	case int64(len(list)) < p.Min:
		return nil, paramFault(at, fmt.Sprintf("%s has fewer than %d strings", dotted(at), p.Min), p.want())
	}
	all := make([]string, len(list))
	for i, e := range list {
		s, ok := e.(string)
		why := "is not a string"
		if ok {
			why = badString(s, MaxString, true)
		}
		if why == "" && p.re != nil && !p.re.MatchString(s) {
			why = "does not match"
		}
		if why != "" {
			return nil, paramFault(fmt.Sprintf("%s/%d", at, i), fmt.Sprintf("string %d of %s %s", i+1, dotted(at), why), "strings "+p.wantString())
		}
		all[i] = s
	}
	return all, nil
}

// dotted writes the JSON Pointer of a parameter for people: verify.command. No name of
// a parameter holds what a pointer escapes.
func dotted(at string) string { return strings.ReplaceAll(strings.TrimPrefix(at, "/"), "/", ".") }

// check validates one decoded value of a type that has no parts of its own. It returns what is wrong, or "".
func (p *Param) check(v any) (any, string) {
	switch p.Type {
	case Enum, Pattern, Text, Path, Host, Duration, Secret:
		s, ok := v.(string)
		if !ok {
			return nil, "is not a string"
		}
		limit := int64(MaxString)
		if p.Type == Pattern || p.Type == Text {
			limit = p.Max
		}
		if why := badString(s, int(limit), p.Type == Text); why != "" {
			return nil, why
		}
		return p.checkString(s)
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
	case Names:
		return p.names(v)
	}
	return nil, "has a type that does not exist"
}

// names validates a decoded value of the type Names.
func (p *Param) names(v any) (any, string) {
	list, ok := v.([]any)
	switch {
	case !ok:
		return nil, "is not an array"
	case int64(len(list)) > p.Max:
		return nil, fmt.Sprintf("has more than %d names", p.Max)
	}
	names := make([]OpName, 0, len(list))
	for _, e := range list {
		s, ok := e.(string)
		switch name := OpName(s); {
		case !ok || !name.Valid():
			return nil, "holds something that is no name of an op"
		case slices.Contains(names, name):
			return nil, fmt.Sprintf("names %q twice", clip(s))
		default:
			names = append(names, name)
		}
	}
	return names, ""
}

// checkString validates a string of which badString has nothing to say.
func (p *Param) checkString(s string) (any, string) {
	switch p.Type {
	case Enum, Secret:
		if !slices.Contains(p.Values, s) {
			return nil, "is none of the values"
		}
	case Pattern:
		if !p.re.MatchString(s) {
			return nil, "does not match"
		}
	case Path:
		return p.below(s)
	case Host:
		return host(s)
	case Duration:
		return p.count(s)
	}
	return s, ""
}

// below returns the clean path of s relative to p.Root. It goes by the words alone, and
// refuses ".." even where the path would stay below, because through a link it need not.
func (p *Param) below(s string) (any, string) {
	root := strings.TrimSuffix(p.Root, "/")
	switch rest, under := strings.CutPrefix(s, root); {
	case s == "":
		return nil, "is empty"
	case slices.Contains(strings.Split(s, "/"), ".."):
		return nil, "has a way up (..)"
	case s[0] != '/':
	case !under || rest != "" && rest[0] != '/':
		return nil, "is not below " + p.Root
	default:
		s = "." + rest
	}
	if end := s[strings.LastIndexByte(s, '/')+1:]; p.Kind == KindFile && (end == "" || end == ".") {
		return nil, "names a folder"
	}
	return filepath.Clean(s), ""
}

// maxHost is the longest host name, in bytes: the 255 octets of RFC 1035 (2.3.4) less
// the length of the first label and the root.
const maxHost = 253

// The forms of a host. A name is that of RFC 1123 (2.1), and does not end in a label
// that some resolver would read as a number: 127.1, 0x7f000001 and 256.1.1.1 are neither
// names nor addresses.
const (
	hostName   = `^(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`
	hostNumber = `(?:^|\.)(?:[0-9]+|0[xX][0-9A-Fa-f]*)$`
)

var (
	hostNameRE   = lazily(hostName)
	hostNumberRE = regexp.MustCompile(hostNumber)
)

// host returns the canonical form of a host name or an address.
func host(s string) (any, string) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return nil, "is an address with a zone"
		}
		return a.String(), ""
	}
	switch {
	case len(s) > maxHost:
		return nil, fmt.Sprintf("is longer than %d bytes", maxHost)
	case !hostNameRE().MatchString(s):
		return nil, "is neither a host name nor an address"
	case hostNumberRE.MatchString(s):
		return nil, "ends in a number and is no address"
	}
	return strings.ToLower(s), ""
}

// addressPatterns are the forms of an address that netip.ParseAddr reads, without zones,
// for a schema.
func addressPatterns() (v4, v6 string) {
	const octet, group = `(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`, `[0-9A-Fa-f]{1,4}`
	v4 = `(?:` + octet + `\.){3}` + octet
	forms := []string{`(?:` + group + `:){7}` + group, `(?:` + group + `:){6}` + v4}
	for before := range 8 { // groups in front of the "::", which stands for at least one
		front := ""
		if before > 0 {
			front = fmt.Sprintf(`(?:%s:){%d}%s`, group, before-1, group)
		}
		back := ""
		if before < 7 {
			back = fmt.Sprintf(`(?:(?:%s:){0,%d}%s)?`, group, 6-before, group)
		}
		if before < 6 {
			back = fmt.Sprintf(`(?:%s|(?:%s:){0,%d}%s)`, back, group, 5-before, v4)
		}
		forms = append(forms, front+`::`+back)
	}
	return `^` + v4 + `$`, `^(?:` + strings.Join(forms, `|`) + `)$`
}

// durationForm is Go's notation without its doubles: the units once each and from the
// largest down, no sign, and fractions only where nanoseconds hold them exactly.
const durationForm = `^(?:[0-9]{1,9}(?:\.[0-9]{1,9})?h)?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?m)?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?s)?` +
	`(?:[0-9]{1,15}ms)?(?:[0-9]{1,15}us)?(?:[0-9]{1,15}ns)?$`

var durationRE = lazily(durationForm)

// count returns how many units s lasts.
func (p *Param) count(s string) (any, string) {
	if s == "" || !durationRE().MatchString(s) {
		return nil, "is not a duration"
	}
	d, err := time.ParseDuration(s)
	unit := units[p.unit()]
	switch {
	case err != nil || int64(d) < p.Min || int64(d) > p.Max: // of this form only what overflows is an error
		return nil, "is out of range"
	case d%unit != 0:
		return nil, "is not a whole number of " + p.unit()
	}
	return int64(d / unit), ""
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
	values, fault := ps.read(object, "")
	if fault != nil {
		return nil, nil, fault
	}
	return values, canonical, nil
}

// read validates the members of a decoded object that stands at the JSON Pointer at.
func (ps Params) read(object map[string]any, at string) (Values, *Fault) {
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if ps.find(name) == nil {
			where := ""
			if at != "" {
				where = " in " + dotted(at)
			}
			return nil, paramFault(at+pointer(name), fmt.Sprintf("there is no parameter %q%s", clip(name), where), ps.known())
		}
	}
	values := make(Values, len(object))
	for i := range ps {
		p := &ps[i]
		here := at + pointer(p.Name)
		v, ok := object[p.Name]
		if !ok {
			if p.Optional {
				continue
			}
			return nil, paramFault(here, "the parameter "+dotted(here)+" is missing", p.want())
		}
		value, fault := p.read(v, here)
		if fault != nil {
			return nil, fault
		}
		values[p.Name] = value
	}
	return values, nil
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

// pointer returns the JSON Pointer of the member name within its object.
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
// under it exactly when Parse accepts it, but for what JSON Schema cannot say: it
// counts characters and not bytes, and knows the form of a duration and not its length.
func (ps Params) Schema() json.RawMessage {
	s := ps.object()
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // maps of strings, numbers and bools
	}
	return b
}

// object returns the schema of an object whose members are ps.
func (ps Params) object() map[string]any {
	var required []string
	properties := make(map[string]any, len(ps))
	for i := range ps {
		properties[ps[i].Name] = ps[i].schema()
		if !ps[i].Optional {
			required = append(required, ps[i].Name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		s["required"] = required
	}
	return s
}

func (p *Param) schema() map[string]any {
	s := map[string]any{}
	if p.Doc != "" {
		s["description"] = p.Doc
	}
	switch p.Type {
	case Enum, Secret:
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
	case Path:
		s["type"], s["minLength"], s["maxLength"] = "string", 1, MaxString
		end, never := `(?:/|$)`, `^-|[\x00-\x1f\x7f-\x9f]|(?:^|/)\.\.(?:/|$)`
		if p.Kind == KindFile {
			end, never = `/`, never+`|(?:^|/)\.?$`
		}
		s["allOf"] = []any{
			map[string]any{"pattern": `^(?:[^/]|` + regexp.QuoteMeta(strings.TrimSuffix(p.Root, "/")) + end + `)`},
			map[string]any{"not": map[string]any{"pattern": never}},
		}
		s["description"] = p.described()
	case Host:
		v4, v6 := addressPatterns()
		s["type"] = "string"
		s["anyOf"] = []any{
			map[string]any{"pattern": hostName, "not": map[string]any{"pattern": hostNumber}, "maxLength": maxHost},
			map[string]any{"format": "ipv4", "pattern": v4},
			map[string]any{"format": "ipv6", "pattern": v6},
		}
		s["description"] = p.described()
	case Duration:
		s["type"], s["minLength"], s["maxLength"] = "string", 1, 128 // the form is shorter
		s["allOf"] = []any{map[string]any{"pattern": durationForm}}
		s["description"] = p.described()
	case Names:
		s["type"], s["maxItems"], s["uniqueItems"] = "array", p.Max, true
		s["items"] = map[string]any{"type": "string", "pattern": opName.String(), "maxLength": MaxNameLen}
	case Strings:
		item := map[string]any{"type": "string", "maxLength": MaxString, "not": map[string]any{"pattern": `[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]`}}
		if p.Pattern != "" {
			item["pattern"] = `^(?:` + p.Pattern + `)$`
		}
		s["type"], s["maxItems"], s["items"] = "array", p.Max, item
		if p.Min > 0 {
			s["minItems"] = p.Min
		}
	case Object:
		maps.Copy(s, p.Fields.object())
	}
	return s
}

// described is what a parameter is, and in words what it accepts, for a type whose
// schema is not easily read.
func (p *Param) described() string {
	if p.Doc == "" {
		return p.want()
	}
	return p.Doc + " (" + p.want() + ")"
}
