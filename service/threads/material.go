package threads

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"inband/envelope"
	"inband/ops"
)

// Bounds of what is read out of untrusted material.
const (
	maxOrders   = 4096     // of one message that are kept
	maxTail     = 16 << 10 // bytes of what was said before, which a message may go on
	shortTail   = 512      // of them, when no object stands open
	nameReach   = 256      // bytes before an object in which an op's name belongs to it
	directReach = 16       // of them, for an object that is empty
	maxLevels   = 3        // of backslashes, one quoted in the other
	maxFrames   = 1 << 16  // brackets that stand open
	maxHeight   = 128      // of an object, as in the grammar
	workPerByte = 16       // bytes that may be looked at for each byte of a text
	workAtLeast = 1 << 20  // and for a short one: a web page in JSON is read twelve times
)

// material is what stands in a text that looks like an order, far more of it than the
// harvester would call one: a text that is only quoted must be known again when an
// agent writes it without the quotation marks.
type material struct {
	orders   []string // digests, in order, each once
	overflow bool     // there is more than could be kept or looked at
	// The beginning and the end of the text, without what is not seen, for orders that are
	// split over messages. head is all of it when whole is set.
	head, tail string
	whole      bool
	words      vocabulary
}

// A vocabulary is what readMaterial has to know of the ops that there are.
type vocabulary struct {
	// resolve knows the names of ops, and their other names.
	resolve func(string) (ops.OpName, bool)
	// takes reports whether an op has a parameter that can have a value, of which only the
	// first token may be known; an object with another member can be no order of it. Nil
	// is yes.
	takes func(op ops.OpName, param string, value []byte) bool
}

// vocabulary is that of the ops in force.
func (t *Threads) vocabulary() vocabulary {
	registry := t.registry.Current()
	return vocabulary{
		resolve: func(name string) (ops.OpName, bool) {
			e, ok := registry.Lookup(ops.OpName(name))
			if !ok {
				return "", false
			}
			return e.Name, true
		},
		takes: func(op ops.OpName, param string, value []byte) bool {
			e, ok := registry.Lookup(op)
			if !ok {
				return true
			}
			for _, p := range e.Params {
				if p.Name == param {
					return len(value) == 0 || (value[0] == '{') == (p.Type == ops.Object) &&
						(value[0] == '[') == (p.Type == ops.Names || p.Type == ops.Strings) && !bytes.HasPrefix(value, []byte("[{"))
				}
			}
			return false
		},
	}
}

// materialOf is readMaterial with the ops in force.
func (t *Threads) materialOf(text string) material { return t.vocabulary().read(text) }

// readMaterial finds what looks like an order in text by the names of ops alone.
func readMaterial(text string, resolve func(string) (ops.OpName, bool)) material {
	return vocabulary{resolve: resolve}.read(text)
}

// read finds what looks like an order in text: a JSON object behind the name of an op,
// and call objects, wherever they stand. The work is linear in the length of text: it
// ends in overflow when it would be more than workPerByte bytes for each one.
func (v vocabulary) read(text string) material {
	r := newReader(len(text), v)
	plain := r.all(text)
	m := material{orders: r.list(), overflow: r.overflow, words: v}
	m.head, m.whole = first(plain, maxTail), len(plain) <= maxTail
	m.tail = last(plain, maxTail)
	if !r.open {
		m.tail = last(plain, shortTail)
	} else if r.far > maxTail {
		m.overflow = true // what stands open began before all that is kept of it
	}
	return m
}

// across finds the orders that begin in what was said before and end in m.
func (m material) across(before string) (orders []string, overflow bool) {
	if before == "" || m.whole && !strings.ContainsAny(m.head, "}｝&\\") {
		return nil, false
	}
	r := newReader(len(before)+len(m.head), m.words)
	r.all(before + m.head)
	overflow = r.overflow || !m.whole && r.open && r.far > len(m.head)
	if len(r.orders) == 0 {
		return nil, overflow
	}
	// What stands in the part before was its author's, and is known.
	earlier := newReader(len(before), m.words)
	earlier.all(before)
	for _, digest := range r.list() {
		_, in := slices.BinarySearch(m.orders, digest)
		if _, known := earlier.orders[digest]; !known && !in {
			orders = append(orders, digest)
		}
	}
	return orders, overflow
}

// after is what is kept of before and m for the message behind them.
func (m material) after(before string) string {
	if !m.whole {
		return m.tail
	}
	return last(before+m.head, maxTail)
}

// first and last cut s to at most n bytes, between characters.
func first(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func last(s string, n int) string {
	if len(s) <= n {
		return s
	}
	i := len(s) - n
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return s[i:]
}

// orderDigest is what an order is known again by: the op, resolved, and its parameters
// in RFC 8785 form with every string folded.
func orderDigest(op ops.OpName, params []byte) string {
	r := newReader(len(params), vocabulary{resolve: func(string) (ops.OpName, bool) { return "", false }})
	text := string(params)
	if at := skipSpace(text, 0); at < len(text) && text[at] == '{' {
		if end, whole := r.object(text, at); whole && skipSpace(text, end) == len(text) {
			if canonical, ok := canonicalOf(r.out); ok {
				return digestOrder(op, canonical)
			}
		}
	}
	return digestOrder(op, params) // no order that runs: its parameters are refused
}

func digestOrder(op ops.OpName, canonical []byte) string {
	h := sha256.New()
	h.Write([]byte(op))
	h.Write([]byte{0})
	h.Write(canonical)
	return hex.EncodeToString(h.Sum(nil))
}

// canonicalOf is the RFC 8785 form of an object, false if it has none.
func canonicalOf(object []byte) ([]byte, bool) {
	canonical, fault := ops.Canonical(json.RawMessage(object))
	return canonical, fault == nil
}

// A reader reads one text, in each way that it can be read.
type reader struct {
	vocabulary
	budget   int // bytes that may still be looked at
	examined int
	base     int // length of the text as it was written

	orders   map[string]struct{}
	overflow bool
	open     bool // an object stands open at the end
	far      int  // how far before the end one began that may be an order

	// of the reading at hand
	text   string
	names  []opAt
	seen   int // names are known up to here
	marked bool
	frames []frame
	out    []byte // the object at hand without what is between its tokens, its strings folded

	tried   map[[sha256.Size]byte]bool // what keep has been asked
	scratch []byte
}

// opAt is the name of an op in a text.
type opAt struct {
	op         ops.OpName
	start, end int
}

// A frame is a bracket that stands open.
type frame struct {
	start  int // in the text
	out    int // in reader.out
	brace  bool
	size   int // members or elements so far
	height int // levels inside
	member role
	call   ops.OpName // what a member of the object names as the op
	params [2]int     // in reader.out, of the member that has the parameters
	// foreign says that a member is none of a call object's.
	foreign bool
}

// A role is what a member of an object is for a call object.
type role uint8

const (
	noRole role = iota
	opRole
	maybeOpRole
	paramsRole
	otherRole // key and id
)

// roles knows more names than the grammar: what other tools call the same.
var roles = map[string]role{
	"op": opRole, "tool": maybeOpRole, "name": maybeOpRole, "function": maybeOpRole, "action": maybeOpRole, "command": maybeOpRole,
	"params": paramsRole, "parameters": paramsRole, "arguments": paramsRole, "args": paramsRole, "input": paramsRole,
	"key": otherRole, "id": otherRole,
}

func newReader(length int, words vocabulary) *reader {
	return &reader{vocabulary: words, base: length, budget: max(workPerByte*length, workAtLeast), orders: make(map[string]struct{}), tried: make(map[[sha256.Size]byte]bool)}
}

// spend reports whether n more bytes may be looked at.
func (r *reader) spend(n int) bool {
	r.examined += n
	if r.examined > r.budget {
		r.overflow = true
	}
	return !r.overflow
}

func (r *reader) list() []string {
	list := make([]string, 0, len(r.orders))
	for digest := range r.orders {
		list = append(list, digest)
	}
	slices.Sort(list)
	return list
}

func (r *reader) keep(op ops.OpName, params []byte) {
	if !r.spend(len(params)) {
		return
	}
	// The same one stands in several readings of a text, and often in one.
	r.scratch = append(append(append(r.scratch[:0], op...), 0), params...)
	if at := sha256.Sum256(r.scratch); !r.tried[at] {
		if len(r.tried) < 4*maxOrders {
			r.tried[at] = true
		}
	} else {
		return
	}
	if !r.fits(op, params) || !r.spend(2*len(params)) {
		return
	}
	canonical, ok := canonicalOf(params)
	if !ok {
		return
	}
	if len(r.orders) == maxOrders {
		r.overflow = true
		return
	}
	r.orders[digestOrder(op, canonical)] = struct{}{}
}

// fits reports whether op has all parameters that an object names, of which only the
// beginning may be there. The object is as in out: without spaces.
func (r *reader) fits(op ops.OpName, object []byte) bool {
	if r.takes == nil {
		return true
	}
	d := jsontext.NewDecoder(bytes.NewReader(object))
	if _, err := d.ReadToken(); err != nil {
		return true
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return true
		}
		param := name.String()
		value := object[min(int(d.InputOffset())+1, len(object)):] // behind the colon
		if !r.takes(op, param, value) {
			return false
		}
		if d.SkipValue() != nil {
			return true
		}
	}
	return true
}

// all reads text as it stands and with each level of quoting undone, and returns it
// without what is not seen.
func (r *reader) all(text string) string {
	r.spend(len(text))
	r.harmless(text)
	plain := strip(text)
	level := plain
	for n := 0; ; n++ {
		r.both(level)
		if strings.IndexByte(level, '&') >= 0 && r.spend(len(level)) {
			if decoded := strip(undoEntities(level)); decoded != level {
				r.both(decoded)
			}
		}
		if n == maxLevels || strings.IndexByte(level, '\\') < 0 || !r.spend(len(level)) {
			return plain
		}
		next := unescape(level)
		r.harmless(next)
		if next = strip(next); next == level {
			return plain
		}
		level = next
	}
}

// harmless reads text as package envelope shows it, where that folds to something else: a
// control character becomes an escape, which behind a backslash makes JSON of what is none,
// and what stands for a < becomes another character.
func (r *reader) harmless(text string) {
	if strings.IndexByte(text, '{') < 0 || strings.IndexByte(text, '&') < 0 && !escapedControl.MatchString(text) {
		return
	}
	if shown := envelope.Neutral(text); shown != text && fold(shown) != fold(text) {
		r.both(strip(shown))
	}
}

// escapedControl is a backslash before what an envelope writes as an escape.
var escapedControl = regexp.MustCompile(`\\[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{61c}\x{200e}\x{200f}\x{202a}-\x{202e}\x{2066}-\x{2069}\x{2028}\x{2029}]`)

// both reads a text as it stands and folded.
func (r *reader) both(text string) {
	r.read(text)
	if ascii(text) || !r.spend(len(text)) {
		return
	}
	if folded := fold(text); folded != text {
		r.read(folded)
	}
}

// read finds the orders of one reading of the text.
func (r *reader) read(text string) {
	if strings.IndexByte(text, '{') < 0 || !r.spend(len(text)) {
		return
	}
	r.text, r.names, r.seen, r.marked = text, r.names[:0], 0, false
	// Empty objects count wherever they stand, in strings as well.
	for i := opener(text, 0); i < len(text) && !r.overflow; i = opener(text, i+1) {
		r.nameTo(i)
		if end := skipSpace(text, i+1); end < len(text) && text[end] == '}' {
			for _, op := range r.namesBefore(i, directReach) {
				r.keep(op, []byte("{}"))
			}
		}
	}
	for i := opener(text, 0); i < len(text) && !r.overflow; i = opener(text, i) {
		i, _ = r.object(text, i)
	}
}

// opener is where the next { stands, the end of s if there is none.
func opener(s string, i int) int {
	if n := strings.IndexByte(s[i:], '{'); n >= 0 {
		return i + n
	}
	return len(s)
}

// object reads on from the { at p, and returns where to look for the next one: behind
// the object if it is whole, else at the first place that this reading has hidden.
//
// Objects inside are found on the way, also when what is around them breaks. What is
// hidden is inside of strings. A string's own text is looked at in another reading of
// the whole text, with its quoting undone; here it matters only where the quotes have
// been taken the wrong way round, which breaks at the first name of a member: so the
// last string before the break may hold a { that is none of its text.
func (r *reader) object(text string, p int) (next int, whole bool) {
	const (
		wantName = iota
		wantColon
		wantValue
		wantComma
	)
	r.frames, r.out = r.frames[:0], r.out[:0]
	r.push(p, true)
	state, quote := wantName, p+1
	i := p + 1
	broken := func() (int, bool) {
		if n := strings.IndexByte(text[quote:i], '{'); n >= 0 && quote > p+1 {
			return quote + n, false
		}
		return max(i, p+1), false
	}
	defer func() { r.spend(i - p) }()
	for {
		i = skipSpace(text, i)
		if i == len(text) {
			r.stands(text)
			return broken()
		}
		f := &r.frames[len(r.frames)-1]
		c := text[i]
		switch {
		case c == '}' && f.brace && (state == wantName || state == wantComma), c == ']' && !f.brace && (state == wantValue || state == wantComma):
			// A comma may stand before it: whoever writes it again leaves that out.
			i++
			r.out = append(r.out, c)
			if r.pop(); len(r.frames) == 0 {
				return i, true
			}
			state = wantComma
		case c == ',' && state == wantComma:
			i++
			if state = wantValue; f.brace {
				state = wantName
			}
		case c == ':' && state == wantColon:
			i++
			r.out = append(r.out, c)
			state = wantValue
		case c == '"' && (state == wantName || state == wantValue):
			quote = i + 1
			if state == wantName || !f.brace {
				r.element(f)
			}
			at := len(r.out)
			n, ok := r.quoted(text[i:])
			i += n
			if !ok {
				if i == len(text) {
					r.stands(text)
				}
				return broken()
			}
			if state == wantName {
				f.member = noRole
				if len(r.out)-at < 16 {
					f.member = roles[strings.ToLower(strings.Trim(string(r.out[at:]), `"`))]
				}
				f.foreign = f.foreign || f.member == noRole
				state = wantColon
				continue
			}
			r.named(f, r.out[at:])
			state = wantComma
		case state != wantValue:
			return broken()
		case c == '{' || c == '[':
			if !f.brace {
				r.element(f)
			}
			if len(r.frames) == maxFrames {
				r.overflow = true
				return broken()
			}
			r.push(i, c == '{')
			if state = wantValue; c == '{' {
				state = wantName
			}
			i++
		default:
			n := scalar(text[i:])
			if n == 0 {
				return broken()
			}
			if !f.brace {
				r.element(f)
			}
			r.out = append(r.out, text[i:i+n]...)
			i += n
			state = wantComma
		}
		if r.overflow {
			return broken()
		}
	}
}

// element begins one more member or element of f.
func (r *reader) element(f *frame) {
	if f.size++; f.size > 1 {
		r.out = append(r.out, ',')
	}
}

func (r *reader) push(i int, brace bool) {
	r.frames = append(r.frames, frame{start: i, out: len(r.out), brace: brace})
	open := byte('[')
	if brace {
		open = '{'
	}
	r.out = append(r.out, open)
}

// pop leaves the innermost bracket, which has been closed, and keeps what it is.
func (r *reader) pop() {
	f := r.frames[len(r.frames)-1]
	r.frames = r.frames[:len(r.frames)-1]
	if f.brace && f.height < maxHeight {
		if f.size > 0 {
			for _, op := range r.namesBefore(f.start, nameReach) {
				r.keep(op, r.out[f.out:])
			}
		}
		switch {
		case f.call == "":
		case f.params[1] > 0:
			r.keep(f.call, r.out[f.params[0]:f.params[1]])
		case !f.foreign: // a list of ops is full of those that have other members
			r.keep(f.call, []byte("{}"))
		}
	}
	if len(r.frames) == 0 {
		return
	}
	parent := &r.frames[len(r.frames)-1]
	parent.height = max(parent.height, f.height+1)
	if parent.brace && parent.member == paramsRole && f.brace {
		parent.params = [2]int{f.out, len(r.out)}
	}
}

// named takes the string value of the member of f that is at hand.
func (r *reader) named(f *frame, quoted []byte) {
	if !f.brace || f.member != opRole && f.member != maybeOpRole || len(quoted) > 6*ops.MaxNameLen {
		return
	}
	name, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return
	}
	if op, ok := r.lookup(string(name)); ok {
		f.call = op
	} else if f.member == opRole && f.call == "" && ops.OpName(name).Valid() {
		f.call = ops.OpName(name) // an op that may come to exist
	}
}

// stands notes the objects that stand open where the text ends.
func (r *reader) stands(text string) {
	r.open = true
	for _, f := range r.frames {
		if f.brace && (!f.foreign && (f.call != "" || f.params[1] > 0) || r.mayBecome(f)) {
			// The same place in the text as it was written.
			r.far = max(r.far, int(int64(len(text)-f.start+nameReach)*int64(r.base)/int64(len(text))))
			return
		}
		if !r.spend(1) {
			return
		}
	}
}

// mayBecome reports whether an object that stands open may be the parameters of an op
// whose name stands before it.
func (r *reader) mayBecome(f frame) bool {
	for _, op := range r.namesBefore(f.start, nameReach) {
		if !r.spend(len(r.out) - f.out) {
			return true
		}
		// Of an op that does not exist yet nobody writes that much.
		if _, known := r.resolve(string(op)); known && r.fits(op, r.out[f.out:]) {
			return true
		}
	}
	return false
}

// quoted reads the string at the beginning of s and appends it to out, folded. It
// returns how far it has read, and whether the string is whole.
func (r *reader) quoted(s string) (n int, ok bool) {
	simple := true
	for n = 1; n < len(s); n++ {
		switch c := s[n]; {
		case c == '"':
			n++
			if simple {
				r.out = append(r.out, s[:n]...)
				return n, true
			}
			text, err := jsontext.AppendUnquote(nil, s[:n])
			if err != nil {
				return n, false
			}
			if r.out, err = jsontext.AppendQuote(r.out, fold(string(text))); err != nil {
				return n, false
			}
			return n, true
		case c == '\\':
			simple = false
			n++
		case c < ' ':
			return n, false
		case c >= 0x7f:
			simple = false
		}
	}
	return len(s), false
}

// scalar returns the length of the number or the literal that s begins with, 0 if there
// is none.
func scalar(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] >= 'a' && s[n] <= 'z' || strings.IndexByte("+-.E", s[n]) >= 0) {
		n++
	}
	if n == 0 || !jsontext.Value(s[:n]).IsValid() {
		return 0
	}
	return n
}

// skipSpace returns where the next token of an object may begin. At the beginning of a
// line it also passes over what marks a quoted, commented or listed line.
func skipSpace(s string, i int) int {
	line := false
	for i < len(s) {
		switch c := s[i]; {
		case c == '\n':
			line = true
		case c == ' ' || c == '\t' || c == '\r':
		case line && strings.IndexByte(">|#*/+", c) >= 0:
		case line && c == '-' && (i+1 == len(s) || s[i+1] < '0' || s[i+1] > '9'):
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(s[i:])
			if !unicode.IsSpace(r) {
				return i
			}
			i += size - 1
		default:
			return i
		}
		i++
	}
	return i
}

// namesBefore returns the ops whose names end at most reach bytes before i, each once.
func (r *reader) namesBefore(i, reach int) (list []ops.OpName) {
	r.nameTo(i)
	n, _ := slices.BinarySearchFunc(r.names, i+1, func(o opAt, end int) int { return cmp.Compare(o.end, end) })
	for n--; n >= 0 && r.names[n].end >= i-reach && r.spend(1); n-- {
		if reach == directReach && strings.ContainsFunc(r.text[r.names[n].end:i], func(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }) {
			break
		}
		if !slices.Contains(list, r.names[n].op) {
			list = append(list, r.names[n].op)
		}
	}
	return list
}

// nameTo reads the words of the text up to i.
func (r *reader) nameTo(i int) {
	if i <= r.seen || r.text == "" {
		return
	}
	// Names further back than their reach are never asked for: words before are passed
	// over, but for one that stands across.
	at := max(r.seen, i-nameReach-ops.MaxNameLen)
	for at > r.seen && at > 0 && at > i-nameReach-2*ops.MaxNameLen && nameByte[r.text[at-1]] {
		at--
	}
	if !r.spend(i - at) {
		return
	}
	for at < i {
		if !nameByte[r.text[at]] {
			at++
			continue
		}
		start := at
		for at < i && nameByte[r.text[at]] {
			at++
		}
		r.word(start, at)
	}
	r.seen = i
}

// nameByte has the bytes of op names, and the backslash that markdown puts before them.
var nameByte = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/-\\") {
		t[c] = true
	}
	return t
}()

// word takes one word, which may be the name of an op.
func (r *reader) word(start, end int) {
	if end-start > 2*ops.MaxNameLen {
		r.marked = false
		return
	}
	word := r.text[start:end]
	if strings.IndexByte(word, '\\') >= 0 {
		word = strings.ReplaceAll(word, `\`, "")
	}
	if op, ok := r.lookup(word); ok {
		r.names, r.marked = append(r.names, opAt{op, start, end}), false
		return
	}
	switch {
	case len(word) == 4 && (strings.EqualFold(word, "tool") || strings.EqualFold(word, "exec")):
		r.marked = true
	case !r.marked, start > 0 && r.text[start-1] == '#': // its key
	case ops.OpName(word).Valid():
		r.names, r.marked = append(r.names, opAt{ops.OpName(word), start, end}), false // an op that may come to exist
	default:
		r.marked = false
	}
}

// lookup resolves what a word may mean: punctuation behind it, a path before it and its
// case are nothing that would keep a reader from understanding it.
func (r *reader) lookup(word string) (ops.OpName, bool) {
	if len(word) > ops.MaxNameLen || word == "" {
		return "", false
	}
	if op, ok := r.resolve(word); ok {
		return op, true
	}
	other, path := false, -1
	for i := range len(word) {
		switch c := word[i]; {
		case c == '/' || c == ':':
			path = i
		case c >= 'A' && c <= 'Z', i == len(word)-1 && (c == '.' || c == '-'):
			other = true
		}
	}
	if !other && path < 0 {
		return "", false
	}
	plain := strings.ToLower(strings.TrimRight(word, ".:/-"))
	if op, ok := r.resolve(plain); ok {
		return op, true
	}
	if i := strings.LastIndexAny(plain, "/:"); i >= 0 {
		return r.resolve(plain[i+1:])
	}
	return "", false
}
