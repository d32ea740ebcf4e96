package harvester

import (
	"bytes"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// A curl command is read by a small lexer while its bytes come, which finds
// where the command ends, and once it has ended by a shell's parser, which
// finds its words (prove.go). What needs no parser is kept from it: text that
// means itself, quoted or plain, is set aside and stands as one _, and of a word
// with something to expand the parser gets the part before and $-. So it never
// meets anything nested, whose depth would be that of its stack, and it reads few
// bytes: those of a body are read here and as JSON, and no third time.

// maxFrames bounds how deep expansions may nest in a command (rule 19).
const maxFrames = 50

// A frame is an expansion that stands open, or the command itself.
type frame struct {
	opener  byte // ( { or `, 0 for the command
	parens  int  // behind (: parentheses open
	doubles bool // double quotes stand open
}

// A heredoc is a here-document that was announced.
type heredoc struct {
	delimiter []byte
	quoted    bool // nothing in its body has a meaning
	tabs      bool // <<-: leading tabs are dropped
}

// A curl reads a curl command.
type curl struct {
	text     []byte // the words, for the parser
	quotes   []byte // what was set aside, in one piece
	ends     []int  // of each quotation in it
	aside    bool   // a quotation has begun and is not cited yet
	document int    // the quotation that is the here-document, or -1
	refused  bool   // it is no call, whatever follows
	parser   *syntax.Parser

	frames  []frame
	single  bool // in single quotes
	ansi    ansi // in $'…'
	escaped bool // behind a backslash
	dollar  bool // behind a $
	word    bool // in a word, where # begins no comment
	expands bool // and something in it would be expanded
	comment bool
	less    int // < in a row
	last    byte

	heredocs []heredoc
	over     int // how many of them are
	naming   naming
	inBody   bool
	line     int  // where its line begins, in quotes
	same     int  // bytes of the delimiter seen on the line; -1: it is another line
	begun    bool // something stands on the line

	cr    bool // a CR is held back: before LF it is dropped
	blank bool // only space on the line so far
	empty bool // and not even that
}

// naming is the state of reading the delimiter of a here-document.
type naming struct {
	on      bool
	begun   bool
	quote   byte
	escaped bool
}

func (c *curl) reset() {
	*c = curl{
		text: c.text[:0], quotes: c.quotes[:0], ends: c.ends[:0], document: -1, parser: c.parser,
		frames: append(c.frames[:0], frame{}), heredocs: c.heredocs[:0],
	}
}

// step takes the next byte. It reports complete when that is the line break
// that ends the command, and broken when the command nests too deep.
func (c *curl) step(b byte) verdict {
	f := &c.frames[len(c.frames)-1]
	outer := len(c.frames) == 1
	before := c.last
	c.last = b
	if b == 0 {
		c.refused = true // the parser would drop it
	}
	switch {
	case c.inBody:
		return c.stepBody(b)
	case c.comment && b != '\n':
		return unfinished
	case c.single:
		if b != '\'' {
			c.quote(b)
		} else {
			c.single = false
			c.unquote()
		}
		return unfinished
	case c.ansi.on:
		c.stepAnsi(b)
		return unfinished
	case f.opener == '`':
		// Nothing in backticks matters but where they end.
		if b == '`' && !c.escaped {
			c.pop()
		}
		c.escaped = b == '\\' && !c.escaped
		return unfinished
	case c.naming.on && c.name(b):
		return unfinished
	case c.escaped:
		c.escaped = false
		switch {
		case b == '\n':
		case !f.doubles:
			c.refused = c.refused || b == '\r'
			c.quote(b)
		default:
			if b != '"' && !meansInDoubles(b) {
				c.quote('\\')
			}
			c.quote(b)
		}
		return unfinished
	}
	c.comment = false
	if c.dollar {
		c.dollar = false
		switch {
		case b == '(' || b == '{':
			return c.push(b)
		case b == '\'' && !f.doubles:
			c.ansi = ansi{on: true}
			return unfinished
		}
		c.expand()
		if b == '$' {
			return unfinished // $$ is one thing
		}
	}
	if c.less > 0 && b != '<' {
		c.refused = c.refused || c.less != 2
		if c.less == 2 {
			c.naming = naming{on: true}
			c.heredocs = append(c.heredocs, heredoc{tabs: b == '-'})
		}
		c.less = 0
		if c.naming.on && (b == '-' || c.name(b)) {
			return unfinished
		}
	}
	switch b {
	case '\\':
		c.escaped, c.word = true, true
		return unfinished
	case '$':
		c.dollar, c.word = true, true
		return unfinished
	case '`':
		return c.push(b)
	case '"':
		if f.doubles {
			c.unquote()
		}
		f.doubles = !f.doubles
		c.word = true
		return unfinished
	}
	if f.doubles {
		c.quote(b)
		return unfinished
	}
	word := false
	switch b {
	case ' ', '\t':
	case '\n':
		c.endWord()
		if outer {
			return c.endLine()
		}
		return unfinished
	case '|', ';', '&', '>', '(', ')':
		c.refused = c.refused || outer
		if f.opener == '(' && b == '(' {
			f.parens++
		}
		if f.opener == '(' && b == ')' {
			if f.parens--; f.parens == 0 {
				c.pop()
				return unfinished
			}
		}
	case '<':
		if outer {
			// A number there would be a file descriptor's.
			c.refused = c.refused || c.less == 0 && c.word && isDigit(before)
			c.less++
		}
	default:
		word = true
	}
	if !word {
		c.endWord()
		return unfinished
	}
	switch {
	case b == '#' && !c.word && f.opener != '{':
		c.comment = true
		return unfinished
	case b == '}' && f.opener == '{':
		c.pop()
		return unfinished
	case b == '\'' && !(f.opener == '{' && c.frames[len(c.frames)-2].doubles):
		c.single = true
	case b == '\r':
		// It is part of a word to a shell, but not to the parser.
		c.refused = c.refused || outer
	case b == '*' || b == '?' || b == '[' || b == '{' || b == '~' && !c.word:
		c.emit(b)
	default:
		c.quote(b)
	}
	c.word = true
	return unfinished
}

// kept reports whether what comes is part of a word as the parser gets it.
func (c *curl) kept() bool { return len(c.frames) == 1 && !c.refused && !c.expands }

// emit hands b to the parser.
func (c *curl) emit(b byte) {
	if c.kept() {
		c.cite()
		c.text = append(c.text, b)
	}
}

// quote sets b aside.
func (c *curl) quote(b byte) {
	if c.kept() {
		c.quotes = append(c.quotes, b)
		c.aside = true
	}
}

// unquote ends quotes, which may be empty: they are cited all the same.
func (c *curl) unquote() {
	c.aside = c.aside || c.kept()
}

// cited stands in the text for the parser where something is set aside. A _ of
// the command's own is set aside like any other plain text.
const cited = '_'

// cite cites what is set aside and not cited yet.
func (c *curl) cite() {
	if c.aside {
		c.aside = false
		c.text = append(c.text, cited)
		c.ends = append(c.ends, len(c.quotes))
	}
}

// quotation returns what was set aside under the given number.
func (c *curl) quotation(k int) []byte {
	from := 0
	if k > 0 {
		from = c.ends[k-1]
	}
	return c.quotes[from:c.ends[k]]
}

// expand notes that the word holds something to expand.
func (c *curl) expand() {
	if c.kept() {
		c.cite()
		c.text = append(c.text, "$-"...)
		c.expands = true
	}
}

func (c *curl) push(opener byte) verdict {
	if len(c.frames) > maxFrames {
		return broken
	}
	c.expand()
	c.word = false
	c.frames = append(c.frames, frame{opener: opener, parens: 1})
	return unfinished
}

func (c *curl) pop() {
	c.frames = c.frames[:len(c.frames)-1]
	c.word = true
}

func (c *curl) endWord() {
	c.word = false
	if len(c.frames) == 1 && !c.refused {
		c.cite()
		c.expands = false
		c.text = append(c.text, ' ')
	}
}

// ansi is the state of reading $'…', in which a shell undoes escapes of its own.
type ansi struct {
	on     bool
	escape byte // 0, or \\ behind a backslash, or x u U or 0 in a number
	value  rune
	digits int
}

// ansiEscapes are the escapes that stand for one byte.
var ansiEscapes = map[byte]byte{
	'a': 7, 'b': 8, 'e': 27, 'E': 27, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11,
	'\\': '\\', '\'': '\'', '"': '"', '?': '?',
}

// ansiDigits are how many digits a number may have.
var ansiDigits = map[byte]int{'0': 3, 'x': 2, 'u': 4, 'U': 8}

// stepAnsi takes the next byte in $'…'. An escape that names no character, or the
// character 0, is nothing that a call needs.
func (c *curl) stepAnsi(b byte) {
	a := &c.ansi
	if most, number := ansiDigits[a.escape]; number {
		if d := digitOf(b, a.escape == '0'); d >= 0 && a.digits < most {
			base := rune(16)
			if a.escape == '0' {
				base = 8
			}
			a.value, a.digits = a.value*base+d, a.digits+1
			return
		}
		c.character()
	}
	switch {
	case a.escape == 0 && b == '\'':
		a.on = false
		c.unquote()
	case a.escape == 0 && b == '\\':
		a.escape = b
	case a.escape == 0:
		c.refused = c.refused || b == '\r' && c.kept()
		c.quote(b)
	case '0' <= b && b <= '7':
		a.escape, a.value, a.digits = '0', rune(b-'0'), 1
	case ansiDigits[b] > 0:
		a.escape, a.value, a.digits = b, 0, 0
	default:
		a.escape = 0
		one, ok := ansiEscapes[b]
		switch {
		case ok:
			c.quote(one)
		case b == 'c' || b == '\r':
			c.refused = c.refused || c.kept()
		default:
			c.quote('\\')
			c.quote(b)
		}
	}
}

// character sets aside the character whose number has been read: a byte for \\nnn
// and \\xHH, else a code point.
func (c *curl) character() {
	a := &c.ansi
	octets := a.escape == '0' || a.escape == 'x'
	a.escape = 0
	switch {
	case !c.kept():
	case a.digits == 0 || a.value <= 0 || octets && a.value > 0xff || !octets && !utf8.ValidRune(a.value):
		c.refused = true
	case octets:
		c.quote(byte(a.value))
	default:
		for _, b := range utf8.AppendRune(nil, a.value) {
			c.quote(b)
		}
	}
}

// digitOf returns the value of b as an octal or a hexadecimal digit, or -1.
func digitOf(b byte, octal bool) rune {
	switch {
	case '0' <= b && b <= '7', !octal && '8' <= b && b <= '9':
		return rune(b - '0')
	case !octal && 'a' <= b|0x20 && b|0x20 <= 'f':
		return rune(b|0x20-'a') + 10
	}
	return -1
}

// meansInDoubles reports whether a backslash before b is undone in double
// quotes and in here-documents. In double quotes " is one more.
func meansInDoubles(b byte) bool { return b == '$' || b == '`' || b == '\\' }

// name takes the next byte of a here-document's delimiter, and reports whether
// it belongs to it.
func (c *curl) name(b byte) bool {
	n, h := &c.naming, &c.heredocs[len(c.heredocs)-1]
	switch {
	case n.escaped:
		n.escaped = false
	case n.quote != 0 && b == n.quote:
		n.quote = 0
		return true
	case b == '\\' && n.quote != '\'':
		n.escaped, n.begun, h.quoted = true, true, true
		return true
	case n.quote != 0:
	case b == '\'' || b == '"':
		n.quote, n.begun, h.quoted = b, true, true
		return true
	case (b == ' ' || b == '\t') && !n.begun:
		return true
	case bytes.IndexByte([]byte(" \t\n|;&()<>"), b) >= 0:
		// What a shell would expand it does not expand here; still, that is
		// more than a plain command says.
		n.on = false
		c.refused = c.refused || len(h.delimiter) == 0 || len(c.heredocs) > 1 || bytes.ContainsAny(h.delimiter, "$`\r")
		return false
	}
	n.begun = true
	h.delimiter = append(h.delimiter, b)
	return true
}

// endLine takes a line break of the command itself: its here-documents
// follow, or it is over.
func (c *curl) endLine() verdict {
	if len(c.heredocs) == 0 {
		return complete
	}
	c.inBody = true
	c.beginBody()
	return unfinished
}

func (c *curl) beginBody() {
	c.line, c.same, c.begun, c.escaped = len(c.quotes), 0, false, false
}

// stepBody takes the next byte of a here-document.
func (c *curl) stepBody(b byte) verdict {
	h := &c.heredocs[c.over]
	switch {
	case b == '\n':
		if c.same == len(h.delimiter) {
			return c.endBody()
		}
		c.same, c.begun = 0, false
	case h.tabs && !c.begun && b == '\t':
		return unfinished
	default:
		c.begun = true
		if c.same >= 0 && c.same < len(h.delimiter) && h.delimiter[c.same] == b {
			c.same++
		} else {
			c.same = -1
		}
	}
	switch {
	case h.quoted:
		c.quote(b)
	case c.escaped:
		c.escaped = false
		if b != '\n' {
			if !meansInDoubles(b) {
				c.quote('\\')
			}
			c.quote(b)
		}
	case b == '\\':
		c.escaped = true
	default:
		c.refused = c.refused || b == '$' || b == '`'
		c.quote(b)
	}
	if b == '\n' {
		c.line = len(c.quotes)
	}
	return unfinished
}

func (c *curl) endBody() verdict {
	if !c.refused {
		// The delimiter is no part of it.
		c.quotes = c.quotes[:c.line]
		c.document = len(c.ends)
		c.ends = append(c.ends, len(c.quotes))
	}
	if c.over++; c.over < len(c.heredocs) {
		c.beginBody()
		return unfinished
	}
	return complete
}

// What curlWord expects next; before curlGap, the byte of curlStart at that
// place.
const (
	curlStart = "$ curl"

	curlGap    = len(curlStart) + iota // space behind curl
	curlArg                            // more space, or what begins an argument
	curlHT                             // ttp, behind h
	curlHTT                            // tp
	curlHTTP                           // p
	curlDollar                         // ' behind $
)

// openCurlWord begins what may become a curl command at c, which is $ or c.
func (s *Scanner) openCurlWord(c byte, i int, back mode) {
	s.mode, s.back, s.matched = inCurlWord, back, 1
	s.curl.reset()
	if c == 'c' {
		s.matched = len("$ c")
		s.start = s.at(i)
	}
}

// curlWord reads on in what may become a curl command (rule 19). s.matched
// says what is expected next.
func (s *Scanner) curlWord(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		next, argument := -1, ""
		switch s.matched {
		default:
			if c == curlStart[s.matched] {
				next = s.matched + 1
			}
			if c == 'c' {
				s.start = s.at(i)
			}
			if next == len(curlStart) {
				next = curlGap
			}
		case curlGap, curlArg:
			switch {
			case c == ' ' || c == '\t' || c == '\r':
				next = curlArg
				// To a shell a carriage return is no blank.
				s.curl.refused = s.curl.refused || c == '\r'
			case s.matched == curlGap:
			case c == 'h':
				next = curlHT
			case c == '$':
				next = curlDollar
			case c == '-' || c == '\'' || c == '"' || c == '\\':
				argument = string(c)
			}
		case curlHT, curlHTT:
			if c == 't' {
				next = s.matched + 1
			}
		case curlHTTP:
			if c == 'p' {
				argument = "http"
			}
		case curlDollar:
			if c == '\'' {
				argument = "$'"
			}
		}
		switch {
		case argument != "":
			s.examined++
			s.mode = inCurl
			s.hide(19, s.start)
			for _, b := range []byte("curl " + argument) {
				s.curl.step(b)
			}
			return i + 1
		case next < 0:
			if s.back == inProse {
				s.toText()
			} else {
				s.mode = inQuoting
			}
			return i
		}
		s.examined++
		s.matched = next
	}
	return i
}

// readCurl reads on in a curl command.
func (s *Scanner) readCurl(p []byte, i int) int {
	c := &s.curl
	for ; i < len(p); i++ {
		b := p[i]
		if b == '\n' && (s.closesFence() || !s.fence.open && c.blank) {
			s.examined++
			if s.fence.open {
				return i + 1
			}
			return s.dropCurl(i)
		}
		n := s.at(i) - s.start
		if c.cr {
			n--
		}
		if n > maxDirective || n == maxDirective && b != '\n' && b != '\r' {
			s.mode = inLongCurl
			return i
		}
		v := c.take(b)
		if v == broken {
			s.mode = inLongCurl
			return i
		}
		s.examined++
		if v == complete {
			s.proveCurl(s.start + n)
			if s.fence.open {
				s.mode, s.place, s.run = inShell, true, 0
			} else {
				s.toLine()
			}
			return i + 1
		}
		if b == '\n' && s.fence.open {
			return i + 1
		}
	}
	return i
}

// take is step for the raw text: it drops the CR of a line break, and watches
// for blank lines.
func (c *curl) take(b byte) verdict {
	c.see(b)
	held := c.cr
	c.cr = b == '\r'
	if held && b != '\n' {
		if v := c.step('\r'); v != unfinished {
			return v
		}
	}
	if c.cr {
		return unfinished
	}
	return c.step(b)
}

func (c *curl) see(b byte) {
	c.blank = b == '\n' || c.blank && isSpace(b)
	c.empty = b == '\n'
}

// endCurl takes the end of a complete reply, which ends the command's line.
func (s *Scanner) endCurl() {
	c := &s.curl
	if c.empty || !s.fence.open && c.blank {
		return // the last line break did not end it, and no other comes
	}
	if c.cr {
		c.step('\r')
	}
	if c.step('\n') == complete {
		s.proveCurl(s.base)
	}
}

// dropCurl leaves a command of prose that is incomplete at the blank line
// that ends at i.
func (s *Scanner) dropCurl(i int) int {
	s.unhide(s.at(i))
	s.toLine()
	return i + 1
}

// longCurl reads on to where a command that is incomplete stops hiding: the
// next blank line, or the end of the fence.
func (s *Scanner) longCurl(p []byte, i int) int {
	if s.fence.open {
		s.mode = inQuoting
		return i
	}
	for ; i < len(p); i++ {
		s.examined++
		if p[i] == '\n' && s.curl.blank {
			return s.dropCurl(i)
		}
		s.curl.see(p[i])
	}
	return i
}
