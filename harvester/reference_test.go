package harvester_test

// A reference reading of the directive grammar: whole reply, lookahead and
// rescanning at will, each piece beside the rule it follows. It is slow and
// shares nothing with the scanner, which the fuzz tests compare with it.

import (
	"bytes"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// refDirective is one call as the reference reads it.
type refDirective struct {
	Op, Params, Form, Key, ID string
	Start, End                int
	// Made says that the parameters were written by the reader (rule 17), not
	// by the agent, so that their spelling is free.
	Made bool
}

const refLimit = 1 << 20 // rules 3, 16 and 19

type refReader struct {
	s        []byte
	hosts    []string
	complete bool
	results  bool // [RESULT {…}] is read where [DM {…}] is, but for directive fences
	fenced   bool // in a directive fence
	out      []refDirective
}

// reference reads a whole reply. thinking says that it begins inside a think
// tag (rule 13), complete that its end was seen (Words, "line"), results that
// [RESULT {…}] is asked for.
func reference(reply []byte, execHosts []string, thinking, complete, results bool) []refDirective {
	r := &refReader{s: reply, hosts: execHosts, complete: complete, results: results}
	i := 0
	if thinking { // rule 13: whichever tag it was, its closing ends it
		i = len(reply)
		for _, tag := range refThinkTags {
			if e := r.afterFold(0, "</"+tag+">"); e >= 0 && e < i {
				i = e
			}
		}
	}
	r.prose(i)
	return r.out
}

// Words.

func refSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func refOpName(b []byte) int {
	n := 0
	for n < len(b) {
		c := b[n]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if letter || n > 0 && ('0' <= c && c <= '9' || strings.IndexByte(".:/-", c) >= 0) {
			n++
			continue
		}
		break
	}
	if n > 128 {
		return 0
	}
	return n
}

// refKey is the length of a key at b, its # included, or 0.
func refKey(b []byte) int {
	if len(b) == 0 || b[0] != '#' {
		return 0
	}
	n := 1
	for n < len(b) && ('a' <= b[n] && b[n] <= 'z' || '0' <= b[n] && b[n] <= '9' || b[n] == '-') {
		n++
	}
	if n-1 < 3 || n-1 > 32 {
		return 0
	}
	return n
}

func (r *refReader) has(i int, text string) bool {
	return i <= len(r.s) && bytes.HasPrefix(r.s[i:], []byte(text))
}

func (r *refReader) hasFold(i int, text string) bool {
	return i+len(text) <= len(r.s) && refASCIIFold(r.s[i:i+len(text)], text)
}

func refASCIIFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for k, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[k] {
			return false
		}
	}
	return true
}

// afterFold is the position behind the next text at or after i, or -1.
func (r *refReader) afterFold(i int, text string) int {
	for ; i+len(text) <= len(r.s); i++ {
		if r.hasFold(i, text) {
			return i + len(text)
		}
	}
	return -1
}

// lineEnd is the position of the LF that ends the line at i, or the end.
func (r *refReader) lineEnd(i int) int {
	if k := bytes.IndexByte(r.s[i:], '\n'); k >= 0 {
		return i + k
	}
	return len(r.s)
}

func (r *refReader) nextLine(i int) int { return min(r.lineEnd(i)+1, len(r.s)) }

func (r *refReader) lineStart(i int) int {
	return bytes.LastIndexByte(r.s[:i], '\n') + 1
}

func (r *refReader) skipSpace(i int) int {
	for i < len(r.s) && refSpace(r.s[i]) {
		i++
	}
	return i
}

// skipBlanks is behind the spaces and tabs of "beginning a line".
func (r *refReader) skipBlanks(i int) int {
	for i < len(r.s) && (r.s[i] == ' ' || r.s[i] == '\t') {
		i++
	}
	return i
}

func (r *refReader) blank(i int) bool {
	return len(bytes.Trim(r.s[i:r.lineEnd(i)], " \t\r")) == 0
}

// Rules 13 and 14.

var refThinkTags = []string{"think", "thinking", "reasoning"}

func (r *refReader) thinkAt(i int) string {
	for _, tag := range refThinkTags {
		if k := i + 1 + len(tag); r.hasFold(i, "<"+tag) && k < len(r.s) && (r.s[k] == '>' || refSpace(r.s[k])) {
			return tag
		}
	}
	return ""
}

// hidden reads a comment or think tag at i. end is behind it, the reply's end
// when it is unclosed; begins says that what follows begins a line.
func (r *refReader) hidden(i int) (end int, begins, ok bool) {
	if r.has(i, "<!--") {
		// "<!-->" is complete: its dashes count for both ends.
		if k := bytes.Index(r.s[i+2:], []byte("-->")); k >= 0 {
			return i + 2 + k + 3, false, true
		}
		return len(r.s), false, true
	}
	if tag := r.thinkAt(i); tag != "" {
		if e := r.afterFold(i, "</"+tag+">"); e >= 0 {
			return e, true, true
		}
		return len(r.s), true, true
	}
	return 0, false, false
}

// Prose.

func (r *refReader) prose(i int) {
	begins := true
	for i < len(r.s) {
		if begins {
			// Words: comment or think tag, fence, quotation, curl, text.
			if e, b, ok := r.hidden(r.skipBlanks(i)); ok {
				i, begins = e, b
				continue
			}
			if f, body, ok := r.fenceAt(i); ok {
				if f.form != "" {
					i, begins = r.directiveFence(f, body)
				} else {
					i = r.quotingFence(f, body)
				}
				continue
			}
			if r.quotation(i) {
				i = r.nextLine(i)
				continue
			}
			if c, ok := r.curlAt(i); ok {
				// Rule 19: it must end before the next blank line.
				end := r.nextLine(c)
				for end < len(r.s) && !r.blank(end) {
					end = r.nextLine(end)
				}
				i = r.curl(c, end)
				continue
			}
			begins = false
		}
		switch c := r.s[i]; c {
		case '\n':
			i, begins = i+1, true
		case '`':
			i = r.inlineCode(i)
		case '<':
			if e, b, ok := r.hidden(i); ok {
				i, begins = e, b
			} else {
				i++
			}
		case '[':
			i, begins = r.bracket(i)
		default:
			i++
		}
	}
}

// inlineCode is rule 10. It ends behind the closing run, or before the line
// end that forgets it.
func (r *refReader) inlineCode(i int) int {
	run := func(i int) int {
		n := 0
		for i+n < len(r.s) && r.s[i+n] == '`' {
			n++
		}
		return n
	}
	n := run(i)
	for j := i + n; j < len(r.s); {
		switch {
		case r.s[j] == '`':
			m := run(j)
			j += m
			if m == n {
				return j
			}
		case r.s[j] == '\n' && n < 3:
			return j
		default:
			j++
		}
	}
	return len(r.s)
}

// quotation is rule 9, list markers by the end of rule 12.
func (r *refReader) quotation(i int) bool {
	if r.has(r.skipBlanks(i), "|") {
		return true
	}
	for _, k := range r.places(i) {
		if r.has(k.pos, ">") || r.has(k.pos, "&gt;") {
			return true
		}
	}
	return false
}

// Rule 11.
func (r *refReader) escaped(i int) bool {
	n := 0
	for i-n > 0 && r.s[i-n-1] == '\\' {
		n++
	}
	if n%2 == 1 {
		return true
	}
	for _, q := range []string{`"`, `'`, "“", "‘", "«"} {
		if bytes.HasSuffix(r.s[:i], []byte(q)) {
			return true
		}
	}
	return false
}

// keywords are those of rule 1, and RESULT where it is read.
func (r *refReader) keywords() []string {
	if r.results && !r.fenced {
		return []string{"TOOL", "EXEC", "DM", "RESULT"}
	}
	return []string{"TOOL", "EXEC", "DM"}
}

// opener is rule 8's bracket opener.
func (r *refReader) opener(i int) bool {
	for _, w := range r.keywords() {
		w = "[" + w
		if k := i + len(w); r.has(i, w) && k < len(r.s) && (r.s[k] == '#' || r.s[k] == '{' || refSpace(r.s[k])) {
			return true
		}
	}
	return false
}

// header is rules 1 to 4 up to the object at obj; obj is the reply's end when
// that came first.
func (r *refReader) header(i int) (d refDirective, obj int, ok bool) {
	d.Start = i
	for _, w := range r.keywords() {
		if r.has(i+1, w) {
			d.Form = strings.ToLower(w)
			i += 1 + len(w)
			break
		}
	}
	if d.Form == "" {
		return d, 0, false
	}
	if r.has(i, "#") {
		n := refKey(r.s[i:])
		if n == 0 {
			return d, 0, false // at the reply's end it makes no difference
		}
		d.Key = string(r.s[i+1 : i+n])
		i += n
	}
	switch d.Form {
	case "dm":
		d.Op = "dm.send"
	case "result":
	default:
		j := r.skipSpace(i)
		if j == i || j-i > 256 {
			return d, 0, false
		}
		if j == len(r.s) {
			return d, j, false
		}
		i = j
		n := refOpName(r.s[i:])
		if n == 0 {
			return d, 0, false
		}
		d.Op = string(r.s[i : i+n])
		i += n
	}
	j := r.skipSpace(i)
	if j-i > 256 {
		return d, 0, false
	}
	if !r.has(j, "{") {
		return d, j, false
	}
	return d, j, true
}

// bracket reads a bracket directive in prose.
func (r *refReader) bracket(i int) (next int, begins bool) {
	if r.escaped(i) {
		return i + 1, false
	}
	d, obj, ok := r.header(i)
	if !ok && obj == len(r.s) {
		return obj, false // it might have gone on
	}
	if !ok {
		return i + 1, false // rule 6
	}
	v, err := refJSON(r.s, obj, i+refLimit)
	if err != nil {
		end, why := r.recover(err, obj, nil)
		return end, why == refLine
	}
	if end := r.bracketEnd(i, v.end); end > 0 {
		d.Params = string(r.s[v.start:v.end])
		d.End = end
		r.out = append(r.out, d)
		return end, false
	}
	return v.end, false // rule 5
}

// bracketEnd is the position behind the ] that follows an object, or 0.
func (r *refReader) bracketEnd(start, i int) int {
	i = r.skipSpace(i)
	if r.has(i, "]") && i+1-start <= refLimit {
		return i + 1
	}
	return 0
}

// Rule 8.

type refWhy int

const (
	refBalanced refWhy = iota
	refLine            // before a line that ends it
	refComment         // before <!--
	refClosed          // before the closing line of the fence
	refCut             // likewise, and that cut a string
	refEnd             // the reply ended
)

// recover finds where the broken directive whose object begins at obj ends.
// f is the directive fence that it stands in, if any.
func (r *refReader) recover(err *refError, obj int, f *refFence) (int, refWhy) {
	if err.eof {
		return len(r.s), refEnd
	}
	var quote, extra byte
	if err.inString {
		quote = '"'
	}
	if c := r.s[err.pos]; c == '\'' || c == '`' {
		extra = c
	}
	if ls := r.lineStart(err.pos); quote == 0 && ls > obj && r.lineEnds(ls) {
		return ls, refLine
	}
	depth, escaped := err.depth, err.escaped
	for i := err.pos; i < len(r.s); i++ {
		if i > err.pos && r.s[i-1] == '\n' {
			if f != nil && r.closes(i, *f) {
				if quote != 0 {
					return i, refCut
				}
				return i, refClosed
			}
			if quote == 0 && r.lineEnds(i) {
				return i, refLine
			}
		}
		c := r.s[i]
		if quote != 0 {
			switch {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == quote:
				quote = 0
			}
			continue
		}
		switch {
		case r.has(i, "<!--"):
			return i, refComment
		case c == '"' || extra != 0 && c == extra:
			quote = c
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1, refBalanced
			}
		}
	}
	return len(r.s), refEnd
}

// lineEnds says that the line at i ends a broken directive.
func (r *refReader) lineEnds(i int) bool {
	i = r.skipBlanks(i)
	return r.opener(i) || r.has(i, "```") || r.has(i, "~~~") || r.has(i, "<!--") || r.thinkAt(i) != ""
}

// Fences, rule 12.

type refFence struct {
	char    byte
	n       int
	indent  int
	form    string // tool, exec, box, or nothing: it quotes
	key     string
	isShell bool
}

type refPlace struct{ pos, col int }

// places are the positions at which a fence or quotation of this line may
// stand: behind its indent and behind each list marker.
func (r *refReader) places(i int) []refPlace {
	var out []refPlace
	col := 0
	blanks := func() {
		for ; i < len(r.s) && (r.s[i] == ' ' || r.s[i] == '\t'); i++ {
			if r.s[i] == '\t' {
				col += 4 - col%4
			} else {
				col++
			}
		}
	}
	for {
		blanks()
		out = append(out, refPlace{i, col})
		m := 0
		if i < len(r.s) && strings.IndexByte("-*+", r.s[i]) >= 0 {
			m = 1
		} else {
			for i+m < len(r.s) && '0' <= r.s[i+m] && r.s[i+m] <= '9' {
				m++
			}
			if m < 1 || m > 9 || !r.has(i+m, ".") && !r.has(i+m, ")") {
				return out
			}
			m++
		}
		if i+m >= len(r.s) || !refSpace(r.s[i+m]) || r.s[i+m] == '\n' {
			return out
		}
		i += m
		col += m
		if r.s[i] == '\r' { // space by Words, but no indent
			i++
			col++
		}
	}
}

// fenceAt is the fence that the line at i opens, and where its body begins.
func (r *refReader) fenceAt(i int) (f refFence, body int, ok bool) {
	places := r.places(i)
	p := places[len(places)-1]
	if p.pos >= len(r.s) || r.s[p.pos] != '`' && r.s[p.pos] != '~' {
		return f, 0, false
	}
	f.char, f.indent = r.s[p.pos], p.col
	for p.pos+f.n < len(r.s) && r.s[p.pos+f.n] == f.char {
		f.n++
	}
	info := r.s[p.pos+f.n : r.lineEnd(i)]
	if f.n < 3 || f.char == '`' && bytes.IndexByte(info, '`') >= 0 {
		return f, 0, false
	}
	words := bytes.FieldsFunc(info, func(c rune) bool { return c < 128 && refSpace(byte(c)) })
	if len(words) == 1 || len(words) == 2 && refKey(words[1]) == len(words[1]) { // rule 15
		for _, label := range []string{"tool", "exec", "box"} {
			if refASCIIFold(words[0], label) {
				f.form = label
				if len(words) == 2 {
					f.key = string(words[1][1:])
				}
			}
		}
	}
	if len(words) == 1 { // rule 19
		for _, label := range []string{"sh", "bash", "shell", "zsh", "console"} {
			f.isShell = f.isShell || refASCIIFold(words[0], label)
		}
	}
	return f, r.nextLine(i), true
}

// closes says that the line at i is a closing line of f.
func (r *refReader) closes(i int, f refFence) bool {
	p := r.places(i)[0]
	n := 0
	for p.pos+n < len(r.s) && r.s[p.pos+n] == f.char {
		n++
	}
	return n >= f.n && p.col <= f.indent+3 && r.blank(p.pos+n)
}

// nest reads one line of a quoting fence into the stack of fences open in it.
func (r *refReader) nest(stack []refFence, i int) []refFence {
	if r.closes(i, stack[len(stack)-1]) {
		return stack[:len(stack)-1]
	}
	if f, _, ok := r.fenceAt(i); ok && f.form != "" && f.char == stack[0].char && f.n >= stack[0].n {
		return append(slices.Clip(stack), f)
	}
	return stack
}

// quotingFence reads the body of a fence that quotes; in a shell fence curl
// commands are read (rule 19). It returns the line behind the closing line.
func (r *refReader) quotingFence(f refFence, i int) int {
	stack := []refFence{f}
	shell := f.isShell
	for i < len(r.s) {
		if c, ok := r.curlAt(i); ok && shell && len(stack) == 1 {
			end, inner := i, stack
			for end < len(r.s) {
				if inner = r.nest(inner, end); len(inner) == 0 {
					break
				}
				end = r.nextLine(end)
			}
			next := r.curl(c, end)
			for ; i < next; i = r.nextLine(i) {
				stack = r.nest(stack, i)
			}
			continue
		}
		if !r.blank(i) && !r.has(r.skipBlanks(i), "#") {
			shell = false
		}
		stack = r.nest(stack, i)
		i = r.nextLine(i)
		if len(stack) == 0 {
			return i
		}
	}
	return i
}

// Directive fences, rules 15 to 18.

// directiveFence reads the items of f from i on.
func (r *refReader) directiveFence(f refFence, i int) (next int, begins bool) {
	r.fenced = true
	defer func() { r.fenced = false }()
	atLine := true  // i begins a line
	trails := false // what is at i trails a failed item
	own := true     // only spaces and tabs stand before i on its line
	for i < len(r.s) {
		if atLine {
			if r.closes(i, f) {
				return r.nextLine(i), true
			}
			atLine, trails, own = false, false, true
		}
		c := r.s[i]
		if c == '\n' {
			i, atLine = i+1, true
			continue
		}
		if e, b, ok := r.hidden(i); ok {
			// Rule 18: it hides to its end; the closing line ends the fence all
			// the same.
			closed := false
			for l := r.nextLine(i); l < e; l = r.nextLine(l) {
				closed = closed || r.closes(l, f)
			}
			if closed {
				return e, b
			}
			i, atLine, own = e, b, false
			continue
		}
		if trails || refSpace(c) {
			own = own && c != '\r' // Words, "beginning a line"
			i++
			continue
		}
		var why refWhy
		i, why = r.item(f, i, own)
		own = false
		switch why {
		case refBalanced: // failed, skip what trails it
			trails = true
		case refComment: // it trails the failed item
			trails = true
		case refLine, refClosed:
			atLine = true
		case refCut, refEnd:
			return len(r.s), false
		}
	}
	return i, false
}

const refItem refWhy = 100 // the item counts

// item reads the item at i, which is no space.
func (r *refReader) item(f refFence, i int, own bool) (int, refWhy) {
	if own && f.form == "box" {
		if end, ok := r.action(f, i); ok {
			return end, refItem
		}
	}
	switch {
	case r.opener(i) && !r.has(i, "[TOOL{") && !r.has(i, "[EXEC{"): // those can be no directive
		d, obj, ok := r.header(i)
		if !ok && obj == len(r.s) {
			return obj, refEnd
		}
		if !ok {
			return i + 1, refBalanced
		}
		v, err := refJSON(r.s, obj, i+refLimit)
		if err != nil {
			return r.recover(err, obj, &f)
		}
		d.End = r.bracketEnd(i, v.end)
		if d.End == 0 {
			return v.end, refBalanced // rule 5
		}
		if d.Key == "" {
			d.Key = f.key
		}
		d.Params = string(r.s[v.start:v.end])
		r.out = append(r.out, d)
		return d.End, refItem
	case r.has(i, "[") || r.has(i, "{"):
		v, err := refJSON(r.s, i, i+refLimit)
		if err != nil {
			return r.recover(err, i, &f)
		}
		list := []*refValue{v}
		if v.kind == '[' {
			list = v.items
		}
		var calls []refDirective
		for _, o := range list {
			d, ok := refCallObject(r.s, o)
			if !ok {
				return v.end, refBalanced
			}
			d.Form, d.Start, d.End = f.form, v.start, v.end
			if d.Key == "" {
				d.Key = f.key
			}
			calls = append(calls, d)
		}
		r.out = append(r.out, calls...)
		return v.end, refItem
	}
	n := refOpName(r.s[i:])
	if n == 0 {
		return i, refBalanced
	}
	obj := i + n
	for obj < len(r.s) && refSpace(r.s[obj]) && r.s[obj] != '\n' {
		obj++
	}
	if !r.has(obj, "{") {
		return i, refBalanced
	}
	v, err := refJSON(r.s, obj, i+refLimit)
	if err != nil {
		return r.recover(err, obj, &f)
	}
	r.out = append(r.out, refDirective{Op: string(r.s[i : i+n]), Params: string(r.s[v.start:v.end]),
		Form: f.form, Key: f.key, Start: i, End: v.end})
	return v.end, refItem
}

// action is rule 17, for the line on which only space stands before i.
func (r *refReader) action(f refFence, i int) (end int, ok bool) {
	end = r.lineEnd(i)
	if end == len(r.s) && !r.complete {
		return 0, false
	}
	line := r.s[i:end]
	if end < len(r.s) {
		line = bytes.TrimSuffix(line, []byte("\r"))
	}
	if !utf8.Valid(line) || len(line) > refLimit {
		return 0, false
	}
	word := func(b []byte) (w, rest []byte) {
		k := bytes.IndexAny(b, " \t\r")
		if k < 0 {
			return b, nil
		}
		return b[:k], bytes.Trim(b[k:], " \t\r")
	}
	w, rest := word(line)
	if bytes.IndexByte(rest, '{') >= 0 {
		return 0, false
	}
	if string(w) == "box" {
		w, rest = word(rest)
	}
	if len(w) == 0 || string(w) == "box" || w[0] < 'a' || w[0] > 'z' {
		return 0, false
	}
	for _, c := range w {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("_.-", c) >= 0) {
			return 0, false
		}
	}
	d := refDirective{Op: "box.exec", Form: "box", Key: f.key, Start: i, End: i + len(line), Made: true}
	d.Params = `{"action":` + refQuote(w)
	if len(rest) > 0 {
		d.Params += `,"arg":` + refQuote(rest)
	}
	d.Params += "}"
	r.out = append(r.out, d)
	return end, true
}

// Objects (Words).

type refError struct {
	pos      int
	eof      bool // not an error: the reply ended first
	inString bool
	escaped  bool // the byte at pos stands behind a backslash
	depth    int  // open braces and brackets before pos
}

type refValue struct {
	kind       byte // { [ " or 0
	start, end int
	text       string // of a string, unescaped
	names      []string
	items      []*refValue
}

type refParser struct {
	s        []byte
	i, limit int
	refError
}

// refJSON reads the I-JSON object or array at i; limit is where it is broken
// when still open.
func refJSON(s []byte, i, limit int) (v *refValue, err *refError) {
	p := &refParser{s: s, i: i, limit: limit}
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(refStop); !ok {
				panic(e)
			}
			err = &p.refError
		}
	}()
	return p.value(), nil
}

type refStop struct{}

func (p *refParser) fail() {
	p.pos = p.i
	panic(refStop{})
}

func (p *refParser) cur() byte {
	if p.i >= len(p.s) {
		p.eof = true
		p.fail()
	}
	if p.i >= p.limit {
		p.fail()
	}
	return p.s[p.i]
}

func (p *refParser) need(ok bool) {
	if !ok {
		p.fail()
	}
	p.i++
}

func (p *refParser) space() {
	for refSpace(p.cur()) {
		p.i++
	}
}

func refDigit(c byte) bool { return '0' <= c && c <= '9' }

func (p *refParser) value() *refValue {
	v := &refValue{start: p.i}
	switch c := p.cur(); {
	case c == '{' || c == '[':
		v.kind = c
		if p.depth == 128 {
			p.fail()
		}
		p.i++
		p.depth++
		p.members(v)
		p.depth--
	case c == '"':
		v.kind = c
		v.text = p.str(nil)
	case c == '-' || refDigit(c):
		p.number()
	case c == 't':
		p.literal("true")
	case c == 'f':
		p.literal("false")
	case c == 'n':
		p.literal("null")
	default:
		p.fail()
	}
	v.end = p.i
	return v
}

func (p *refParser) members(v *refValue) {
	closer := byte('}')
	if v.kind == '[' {
		closer = ']'
	}
	p.space()
	if p.cur() == closer {
		p.i++
		return
	}
	for {
		if v.kind == '{' {
			if p.cur() != '"' {
				p.fail()
			}
			v.names = append(v.names, p.str(v.names))
			p.space()
			p.need(p.cur() == ':')
			p.space()
		}
		v.items = append(v.items, p.value())
		p.space()
		if p.cur() == closer {
			p.i++
			return
		}
		p.need(p.cur() == ',')
		p.space()
	}
}

func (p *refParser) literal(w string) {
	for k := range len(w) {
		p.need(p.cur() == w[k])
	}
}

func (p *refParser) digits() {
	p.need(refDigit(p.cur()))
	for refDigit(p.cur()) {
		p.i++
	}
}

func (p *refParser) number() {
	if p.cur() == '-' {
		p.i++
	}
	if p.cur() == '0' {
		p.i++
	} else {
		p.digits()
	}
	if p.cur() == '.' {
		p.i++
		p.digits()
	}
	if c := p.cur(); c == 'e' || c == 'E' {
		p.i++
		if c := p.cur(); c == '+' || c == '-' {
			p.i++
		}
		p.digits()
	}
}

// str reads a string; taken are the names that it may not repeat.
func (p *refParser) str(taken []string) string {
	p.i++
	p.inString = true
	var b []byte
	for {
		c := p.cur()
		switch {
		case c == '"':
			if slices.Contains(taken, string(b)) {
				p.fail() // rule 8: at its closing quote
			}
			p.i++
			p.inString = false
			return string(b)
		case c < 0x20:
			p.fail()
		case c == '\\':
			b = p.escape(b)
		case c < 0x80:
			b = append(b, c)
			p.i++
		default:
			b = p.multibyte(b)
		}
	}
}

// multibyte reads one character by the table of RFC 3629, section 4.
func (p *refParser) multibyte(b []byte) []byte {
	c := p.cur()
	lo, hi, n := byte(0x80), byte(0xBF), 0
	switch {
	case 0xC2 <= c && c <= 0xDF:
		n = 1
	case 0xE0 <= c && c <= 0xEF:
		n = 2
		if c == 0xE0 {
			lo = 0xA0
		}
		if c == 0xED {
			hi = 0x9F
		}
	case 0xF0 <= c && c <= 0xF4:
		n = 3
		if c == 0xF0 {
			lo = 0x90
		}
		if c == 0xF4 {
			hi = 0x8F
		}
	default:
		p.fail()
	}
	b = append(b, c)
	p.i++
	for range n {
		c := p.cur()
		p.need(lo <= c && c <= hi)
		b = append(b, c)
		lo, hi = 0x80, 0xBF
	}
	return b
}

func (p *refParser) escape(b []byte) []byte {
	p.i++
	p.escaped = true
	c := p.cur()
	if k := strings.IndexByte(`"\/bfnrt`, c); k >= 0 {
		p.i++
		p.escaped = false
		return append(b, "\"\\/\b\f\n\r\t"[k])
	}
	p.need(c == 'u')
	p.escaped = false
	v := p.hex4(false)
	if v < 0xD800 || v > 0xDBFF {
		return utf8.AppendRune(b, v)
	}
	p.need(p.cur() == '\\')
	p.escaped = true
	p.need(p.cur() == 'u')
	p.escaped = false
	return utf8.AppendRune(b, (v-0xD800)<<10+(p.hex4(true)-0xDC00)+0x10000)
}

// hex4 reads four digits: of a low surrogate, or of anything but one.
func (p *refParser) hex4(low bool) rune {
	v := rune(0)
	for k := range 4 {
		d := strings.IndexByte("0123456789abcdef", p.cur()|0x20)
		if refDigit(p.cur()) {
			d = int(p.cur() - '0')
		} else if d < 10 {
			p.fail()
		}
		v = v<<4 + rune(d)
		isLow := v>>2 == 0xDC>>2 // after two digits
		switch {
		case low && k == 0 && v != 0xD, low && k == 1 && !isLow, !low && k == 1 && isLow:
			p.fail()
		}
		p.i++
	}
	return v
}

// refCallObject is the call object v, form and span aside.
func refCallObject(s []byte, v *refValue) (d refDirective, ok bool) {
	if v.kind != '{' {
		return d, false
	}
	d.Params = "{}"
	for k, name := range v.names {
		m := v.items[k]
		short := m.kind == '"' && len(m.text) >= 1 && len(m.text) <= 128
		switch {
		case name == "op" && m.kind == '"' && m.text != "" && refOpName([]byte(m.text)) == len(m.text):
			d.Op = m.text
		case name == "params" && m.kind == '{':
			d.Params = string(s[m.start:m.end])
		case name == "key" && short:
			d.Key = m.text
		case name == "id" && short:
			d.ID = m.text
		default:
			return d, false
		}
	}
	return d, d.Op != ""
}

func refQuote(b []byte) string {
	const hex = "0123456789abcdef"
	out := []byte{'"'}
	for _, c := range b {
		switch {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c < 0x20:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			out = append(out, c)
		}
	}
	return string(append(out, '"'))
}

// Curl, rules 19 to 21.

// curlAt is where a curl command of the line at i begins.
func (r *refReader) curlAt(i int) (int, bool) {
	i = r.skipBlanks(i)
	if r.has(i, "$ ") {
		i += 2
	}
	if !r.has(i, "curl") {
		return 0, false
	}
	j := i + 4
	for j < len(r.s) && refSpace(r.s[j]) && r.s[j] != '\n' {
		j++
	}
	if j == i+4 {
		return 0, false
	}
	for _, w := range []string{"-", "http", "'", `"`, "$'", `\`} {
		if r.has(j, w) {
			return i, true
		}
	}
	return 0, false
}

// curl reads the command at i, which must end before end, and returns the line
// behind it, or end.
func (r *refReader) curl(i, end int) int {
	sh := refShell{s: r.s[:end]}
	stop, ok := sh.command(i)
	if !ok || stop == len(r.s) && !r.complete {
		return end
	}
	text := r.s[i:stop]
	if stop < len(r.s) {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	if len(text) > refLimit {
		return end
	}
	if d, ok := r.call(text, sh.docs); ok && !sh.lone {
		d.Form, d.Start, d.End = "curl", i, i+len(text)
		r.out = append(r.out, d)
	}
	return min(stop+1, len(r.s))
}

type refDoc struct {
	delim        string
	quoted, dash bool
	body         []byte
}

// refShell finds where a command ends. Its methods take the position behind an
// opening and return that behind its closing, or false when there is none.
type refShell struct {
	s    []byte
	docs []refDoc
	deep int
	lone bool // a CR stands in a word unquoted: to a shell it is no space
}

func (h *refShell) at(i int, w string) bool {
	return bytes.HasPrefix(h.s[min(i, len(h.s)):], []byte(w))
}

// escape is the position behind the backslash at i and what it takes.
func (h *refShell) escape(i int) int {
	if h.at(i+1, "\r\n") {
		return i + 3
	}
	return i + 2
}

// command is the position of the line break that ends the command.
func (h *refShell) command(i int) (int, bool) {
	fresh := false // a word would begin here
	var pending []refDoc
	for i < len(h.s) {
		c := h.s[i]
		if c == '\n' || h.at(i, "\r\n") {
			if c == '\r' {
				i++
			}
			return h.bodies(i, pending)
		}
		switch {
		case c == '\\':
			if e := h.escape(i); e <= len(h.s) {
				h.lone = h.lone || h.s[e-1] == '\r'
				if h.s[e-1] != '\n' {
					fresh = false
				} else if e == len(h.s) {
					return 0, false // continued into nothing
				}
				i = e
				continue
			}
			return 0, false
		case c == ' ' || c == '\t':
			fresh = true
			i++
			continue
		case c == '#' && fresh:
			for i < len(h.s) && h.s[i] != '\n' {
				i++
			}
			if i < len(h.s) && h.s[i-1] == '\r' {
				i--
			}
			continue
		case h.at(i, "<<<"):
			fresh = true
			i += 3
			continue
		case h.at(i, "<<"):
			d, e, ok := h.delimiter(i + 2)
			if !ok {
				return 0, false
			}
			pending = append(pending, d)
			fresh = false
			i = e
			continue
		case strings.IndexByte("|&;()<>", c) >= 0:
			fresh = true
			i++
			continue
		}
		fresh = false
		h.lone = h.lone || c == '\r'
		e, ok := h.piece(i, false)
		if !ok {
			return 0, false
		}
		i = e
	}
	if len(pending) > 0 {
		return 0, false
	}
	return i, true
}

// piece is one byte or one quoted or expanding piece of a word at i.
func (h *refShell) piece(i int, inDouble bool) (int, bool) {
	for _, w := range []string{"$(", "${", "`"} {
		if h.at(i, w) { // quotes nest nothing by themselves
			if h.deep++; h.deep > 50 {
				return 0, false
			}
			defer func() { h.deep-- }()
		}
	}
	switch {
	case h.at(i, `\`):
		e := h.escape(i)
		return e, e <= len(h.s)
	case h.at(i, "$$"): // the shell's own number
		return i + 2, true
	case h.at(i, "`"):
		return h.until(i+1, '`')
	case h.at(i, `$'`) && !inDouble:
		e, ok := h.until(i+2, '\'')
		if ok { // the parser cannot be trusted with a CR here
			h.lone = h.lone || bytes.Contains(bytes.ReplaceAll(h.s[i:e], []byte("\r\n"), nil), []byte("\r"))
		}
		return e, ok
	case h.at(i, `$"`) && !inDouble:
		return h.double(i + 2)
	case h.at(i, `"`):
		return h.double(i + 1)
	case h.at(i, `'`) && !inDouble:
		if k := bytes.IndexByte(h.s[i+1:], '\''); k >= 0 {
			return i + 1 + k + 1, true
		}
		return 0, false
	case h.at(i, "$("):
		return h.parens(i + 2)
	case h.at(i, "${"):
		for i += 2; i < len(h.s); {
			if h.s[i] == '}' {
				return i + 1, true
			}
			e, ok := h.piece(i, inDouble)
			if !ok {
				return 0, false
			}
			i = e
		}
		return 0, false
	}
	return i + 1, true
}

func (h *refShell) until(i int, q byte) (int, bool) {
	for i < len(h.s) {
		switch h.s[i] {
		case '\\':
			i += 2
		case q:
			return i + 1, true
		default:
			i++
		}
	}
	return 0, false
}

func (h *refShell) double(i int) (int, bool) {
	for i < len(h.s) {
		if h.s[i] == '"' {
			return i + 1, true
		}
		e, ok := h.piece(i, true)
		if !ok {
			return 0, false
		}
		i = e
	}
	return 0, false
}

func (h *refShell) parens(i int) (int, bool) {
	arithmetic := h.at(i, "(")
	open, fresh := 1, true
	for i < len(h.s) {
		c := h.s[i]
		switch {
		case c == '#' && fresh && !arithmetic:
			for i < len(h.s) && h.s[i] != '\n' {
				i++
			}
			continue
		case c == '(':
			open++
		case c == ')':
			if open--; open == 0 {
				return i + 1, true
			}
		}
		fresh = strings.IndexByte(" \t\n|&;()<>", c) >= 0
		e, ok := h.piece(i, false)
		if !ok {
			return 0, false
		}
		i = e
	}
	return 0, false
}

// delimiter reads the word behind <<.
func (h *refShell) delimiter(i int) (d refDoc, end int, ok bool) {
	if h.at(i, "-") {
		d.dash = true
		i++
	}
	for h.at(i, " ") || h.at(i, "\t") {
		i++
	}
	var b []byte
	start := i
	for i < len(h.s) && strings.IndexByte(" \t\n|&;()<>", h.s[i]) < 0 && !h.at(i, "\r\n") {
		switch c := h.s[i]; c {
		case '\'', '"':
			k := bytes.IndexByte(h.s[i+1:], c)
			if k < 0 {
				return d, 0, false
			}
			d.quoted = true
			b = append(b, h.s[i+1:i+1+k]...)
			i += k + 2
		case '\\':
			e := h.escape(i)
			if e > len(h.s) {
				return d, 0, false
			}
			if h.s[e-1] != '\n' {
				d.quoted = true
				b = append(b, h.s[i+1:e]...)
			}
			i = e
		default:
			b = append(b, c)
			i++
		}
	}
	d.delim = string(b)
	h.lone = h.lone || bytes.IndexByte(b, '\r') >= 0
	return d, i, i > start
}

// bodies reads the here-documents behind the line break at i and returns the
// line break behind the last delimiter.
func (h *refShell) bodies(i int, docs []refDoc) (int, bool) {
	for _, d := range docs {
		found := false
		i++
		start := i
		joined := false
		for i < len(h.s) && !found {
			e := len(h.s)
			if k := bytes.IndexByte(h.s[i:], '\n'); k >= 0 {
				e = i + k
			}
			line := h.s[i:e]
			if e < len(h.s) {
				line = bytes.TrimSuffix(line, []byte("\r"))
			}
			if d.dash {
				line = bytes.TrimLeft(line, "\t")
			}
			if !joined && string(line) == d.delim {
				d.body = h.s[start:i]
				found = true
				i = e
				break
			}
			joined = false
			if !d.quoted {
				n := len(line) - len(bytes.TrimRight(line, `\`))
				joined = n%2 == 1
			}
			i = e + 1
		}
		if !found {
			return 0, false
		}
		h.docs = append(h.docs, d)
	}
	return i, true
}

// refFlags are the options without a value, refValues those with one.
const refFlags = "sSfLkivN#"
const refValues = "dXHuomAwbc"

var refLongFlags = strings.Fields(`--silent --show-error --fail --fail-with-body --location --insecure --include
	--verbose --compressed --no-progress-meter --http1.1 --http2 --no-buffer`)
var refLongValues = strings.Fields(`--request --header --user --output --max-time --connect-timeout --retry --cacert
	--cert --key --user-agent --write-out --cookie --cookie-jar --url`)
var refLongData = strings.Fields("--data --data-raw --data-binary --data-ascii --json")

// call is the call that a whole command makes.
func (r *refReader) call(text []byte, docs []refDoc) (d refDirective, ok bool) {
	if bytes.IndexByte(text, 0) >= 0 {
		return d, false // no shell hands one on, and the parser drops it unsaid
	}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(text), "")
	if err != nil || len(file.Stmts) != 1 {
		return d, false
	}
	st := file.Stmts[0]
	cmd, isCall := st.Cmd.(*syntax.CallExpr)
	if !isCall || len(cmd.Assigns) > 0 || st.Negated || st.Background || st.Coprocess || st.Semicolon.IsValid() {
		return d, false
	}
	for _, re := range st.Redirs {
		if re.Op != syntax.Hdoc && re.Op != syntax.DashHdoc || re.N != nil {
			return d, false
		}
	}
	if len(st.Redirs) > 1 || len(st.Redirs) != len(docs) {
		return d, false
	}
	var urls, data []string
	usedDoc := false
	proc := false // <(…) is a redirection, whatever word it stands in
	syntax.Walk(cmd, func(n syntax.Node) bool {
		_, is := n.(*syntax.ProcSubst)
		proc = proc || is
		return true
	})
	take := func(opt, v string, static bool) bool {
		switch opt {
		case "-H", "--header", "-u", "--user":
			return !proc
		}
		if !static {
			return false
		}
		switch opt {
		case "-X", "--request":
			return v == "POST"
		case "--url":
			urls = append(urls, v)
		case "-d", "--data", "--data-binary", "--data-ascii", "--json":
			if v == "@-" {
				usedDoc = true
				if len(docs) != 1 {
					return false
				}
				body, ok := refDocBody(docs[0])
				if !ok {
					return false
				}
				v = body
			} else if strings.HasPrefix(v, "@") {
				return false
			}
			data = append(data, v)
		case "--data-raw":
			data = append(data, v)
		}
		return true
	}
	pending := ""
	for k, w := range cmd.Args {
		v, static := refWord(w)
		if k == 0 {
			if v != "curl" || !static {
				return d, false
			}
			continue
		}
		if pending != "" {
			if !take(pending, v, static) {
				return d, false
			}
			pending = ""
			continue
		}
		switch {
		case strings.HasPrefix(v, "--"):
			if !static {
				return d, false
			}
			if slices.Contains(refLongFlags, v) {
				continue
			}
			if !slices.Contains(refLongValues, v) && !slices.Contains(refLongData, v) {
				return d, false
			}
			pending = v
		case strings.HasPrefix(v, "-") && len(v) > 1:
			for j := 1; j < len(v); j++ {
				if strings.IndexByte(refFlags, v[j]) >= 0 {
					if j == len(v)-1 && !static {
						return d, false
					}
					continue
				}
				if strings.IndexByte(refValues, v[j]) < 0 {
					return d, false
				}
				opt := "-" + v[j:j+1]
				if j == len(v)-1 {
					if !static {
						return d, false // were it nothing, the next word would be the value
					}
					pending = opt
				} else if !take(opt, v[j+1:], static) {
					return d, false
				}
				break
			}
		default:
			if !static {
				return d, false
			}
			urls = append(urls, v)
		}
	}
	if pending != "" || len(urls) != 1 || len(data) != 1 || usedDoc != (len(docs) == 1) {
		return d, false
	}
	if !r.endpoint(urls[0]) {
		return d, false
	}
	body := []byte(strings.Trim(data[0], " \t\r\n"))
	if len(body) == 0 || body[0] != '{' {
		return d, false
	}
	obj, jerr := refJSON(body, 0, len(body)+1)
	if jerr != nil || obj.end != len(body) {
		return d, false
	}
	return refCallObject(body, obj)
}

// endpoint is rule 19's test of the URL.
func (r *refReader) endpoint(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.HasSuffix(u.EscapedPath(), "/exec") {
		return false
	}
	if strings.ContainsAny(raw, "{}") || strings.ContainsAny(strings.Replace(raw, u.Host, "", 1), "[]") {
		return false // curl makes several URLs of it
	}
	return u.Hostname() != "" && slices.ContainsFunc(r.hosts, func(h string) bool {
		return h == "*" || strings.EqualFold(h, u.Hostname())
	})
}

// refWord is the text of a word up to its first expansion; static says that
// there is none.
func refWord(w *syntax.Word) (text string, static bool) {
	var b strings.Builder
	for k, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			for j := 0; j < len(p.Value); j++ {
				c := p.Value[j]
				switch {
				case c == '\\' && j+1 < len(p.Value):
					j++
					b.WriteByte(p.Value[j])
				case strings.IndexByte("$`*?[{", c) >= 0 || c == '~' && k == 0 && j == 0:
					return b.String(), false
				default:
					b.WriteByte(c)
				}
			}
		case *syntax.SglQuoted:
			if !p.Dollar {
				b.WriteString(p.Value)
				continue
			}
			s, ok := refDollarQuote(p.Value)
			if !ok {
				return b.String(), false
			}
			b.WriteString(s)
		case *syntax.DblQuoted:
			if p.Dollar {
				return b.String(), false
			}
			for _, q := range p.Parts {
				lit, ok := q.(*syntax.Lit)
				if !ok || refDollar(lit.Value) {
					return b.String(), false
				}
				b.WriteString(refUnescape(lit.Value, "\\\"$`"))
			}
		default:
			return b.String(), false
		}
	}
	return b.String(), true
}

// refDollar says that $ or a backtick stands in s with no backslash before it.
// A $ that happens to expand to itself counts: rule 20 names the byte.
func refDollar(s string) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '`', '$':
			return true
		}
	}
	return false
}

// refUnescape undoes the backslashes that stand before one of set, or a line
// break, which goes too.
func refUnescape(s, set string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if s[i+1] == '\n' {
				i++
				continue
			}
			if strings.IndexByte(set, s[i+1]) >= 0 {
				i++
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// refDocBody is the text of a here-document, false when it expands.
func refDocBody(d refDoc) (string, bool) {
	lines := strings.SplitAfter(strings.ReplaceAll(string(d.body), "\r\n", "\n"), "\n")
	var text strings.Builder
	for _, l := range lines {
		if d.dash {
			l = strings.TrimLeft(l, "\t")
		}
		text.WriteString(l)
	}
	s := text.String()
	if d.quoted {
		return s, true
	}
	if refDollar(s) {
		return "", false
	}
	return refUnescape(s, "\\$`"), true
}

// refDollarQuote undoes $'…' by bash's table.
func refDollarQuote(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		number := func(base, most, from int) (v, n int) {
			for n < most && from+n < len(s) {
				k := strings.IndexByte("0123456789abcdef", s[from+n])
				if s[from+n] >= 'A' && s[from+n] <= 'F' {
					k = int(s[from+n]-'A') + 10
				}
				if k < 0 || k >= base {
					break
				}
				v = v*base + k
				n++
			}
			return v, n
		}
		c := s[i]
		if k := strings.IndexByte(`abeEfnrtv\'"?`, c); k >= 0 {
			b.WriteByte("\a\b\x1b\x1b\f\n\r\t\v\\'\"?"[k])
			continue
		}
		switch c {
		case 'x':
			v, n := number(16, 2, i+1)
			if n == 0 {
				b.WriteString(`\x`)
				continue
			}
			if v == 0 {
				return "", false
			}
			b.WriteByte(byte(v))
			i += n
		case 'u', 'U':
			v, n := number(16, map[byte]int{'u': 4, 'U': 8}[c], i+1)
			if n == 0 {
				b.WriteByte('\\')
				b.WriteByte(c)
				continue
			}
			if v == 0 || !utf8.ValidRune(rune(v)) {
				return "", false
			}
			b.WriteRune(rune(v))
			i += n
		case 'c':
			return "", false
		case '0', '1', '2', '3', '4', '5', '6', '7':
			v, n := number(8, 3, i)
			if v&255 == 0 {
				return "", false
			}
			b.WriteByte(byte(v))
			i += n - 1
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	// The grammar repairs nothing, and U+FFFD is how a broken escape is repaired.
	return b.String(), !strings.ContainsRune(b.String(), utf8.RuneError)
}
