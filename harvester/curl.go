package harvester

import (
	"bytes"
	"strconv"
)

// A curl command is read twice: while its bytes come, by a small lexer that
// knows only where the command ends and what can make it no call, and once
// it has ended, by a shell's parser. The lexer leaves out for the parser what
// needs no parser: what single quotes and quoted here-documents hold, and
// whatever would be expanded. So the parser never meets anything nested, and
// no byte of such a body is read by it.

// maxFrames bounds how deep expansions may nest in a command (rule 19).
const maxFrames = 50

// What the lexer stands in, outermost first.
type frame struct {
	kind    byte // 0 for the command itself, or the opener: ( { `
	parens  int  // in (: parentheses open
	doubles bool // double quotes stand open
}

// A heredoc is a here-document that was announced.
type heredoc struct {
	delimiter []byte
	quoted    bool // its body is literal
	tabs      bool // <<-: leading tabs are dropped
}

// A curl reads a curl command.
type curl struct {
	// What the parser gets.
	text     []byte // the command, without what is left out
	literals []byte // what is left out, in one piece
	ends     []int  // of each literal
	refused  bool   // it cannot be a call
	frames   []frame
	heredocs []heredoc
	bodies   int // here-documents that are over

	quote    byte // ' in single quotes, $ in $'…'
	escaped  bool
	dollar   bool // behind a $ that means something
	word     bool // in a word, where # begins no comment
	comment  bool
	less     int // < seen in a row
	announce struct {
		on, begun, escaped bool
		quote              byte
		heredoc
	}
	body struct {
		on      bool
		line    int // where the line begins, in text or literals
		same    int // bytes of the delimiter seen on it, -1 when it is another line
		begun   bool
		escaped bool
	}

	cr    bool // a CR is held back: before LF it is dropped
	blank bool // only space on the line so far
	empty bool // and not even that
}

func (c *curl) reset() {
	*c = curl{
		text: c.text[:0], literals: c.literals[:0], ends: c.ends[:0],
		frames: append(c.frames[:0], frame{}), heredocs: c.heredocs[:0],
	}
}

// step takes the next byte. It reports complete when the byte is the line
// break that ends the command, and broken when it nests too deep.
func (c *curl) step(b byte) verdict {
	if b == 0 {
		c.refused = true
	}
	if c.body.on {
		return c.stepBody(b)
	}
	if c.comment {
		if b != '\n' {
			return unfinished
		}
		c.comment = false
	}
	f := &c.frames[len(c.frames)-1]
	outer := len(c.frames) == 1
	switch c.quote {
	case '\'':
		switch {
		case b != '\'':
			if outer {
				c.literals = append(c.literals, b)
			}
		default:
			c.quote = 0
			if outer {
				c.text = c.cite(c.text, "'")
			}
		}
		return unfinished
	case '$':
		switch {
		case c.escaped:
			c.escaped = false
		case b == '\\':
			c.escaped = true
		case b == '\'':
			c.quote = 0
		}
		c.emit(b)
		return unfinished
	}
	if c.announce.on && c.announced(b) {
		return unfinished
	}
	if c.escaped {
		c.escaped = false
		c.emit(b)
		return unfinished
	}
	if c.dollar {
		c.dollar = false
		switch {
		case b == '(' || b == '{':
			return c.push(b)
		case b == '\'' && !f.doubles:
			c.quote = '$'
			c.emit('$')
			c.emit('\'')
			return unfinished
		}
		// An expansion, or a $ that a shell might still take for one.
		c.expand()
	}
	if c.less > 0 && b != '<' {
		if c.less == 2 {
			c.less = 0
			c.announce.on, c.announce.begun, c.announce.escaped, c.announce.quote = true, false, false, 0
			c.announce.heredoc = heredoc{tabs: b == '-'}
			if b == '-' || c.announced(b) {
				return unfinished
			}
		} else {
			c.less, c.refused = 0, true
		}
	}
	switch b {
	case '\\':
		c.escaped, c.word = true, true
		c.emit(b)
		return unfinished
	case '$':
		c.dollar, c.word = true, true
		return unfinished
	case '`':
		if f.kind == '`' {
			c.pop()
			return unfinished
		}
		return c.push('`')
	case '"':
		f.doubles = !f.doubles
		c.word = true
		c.emit(b)
		return unfinished
	}
	if f.doubles {
		c.emit(b)
		return unfinished
	}
	word := true
	switch b {
	case '\'':
		if f.kind != '{' || !c.frames[len(c.frames)-2].doubles {
			c.quote, c.word = '\'', true
			c.emit(b)
			return unfinished
		}
	case '#':
		if !c.word && f.kind != '{' {
			c.comment = true
			return unfinished
		}
	case '(':
		word = false
		if f.kind == '(' {
			f.parens++
		}
		c.refused = c.refused || outer
	case ')':
		word = false
		if f.kind == '(' {
			if f.parens--; f.parens == 0 {
				c.pop()
				return unfinished
			}
		}
		c.refused = c.refused || outer
	case '}':
		if f.kind == '{' {
			c.pop()
			return unfinished
		}
	case '|', ';', '&', '>':
		word = false
		c.refused = c.refused || outer
	case '<':
		word = false
		if outer {
			if c.less++; c.less > 2 {
				c.refused = true
			}
			return unfinished
		}
	case ' ', '\t':
		word = false
	case '\r':
		// Part of a word to a shell, but not to the parser.
		c.refused = c.refused || outer
	case '\n':
		c.word = false
		if outer {
			return c.endLine()
		}
		return unfinished
	}
	c.word = word
	c.emit(b)
	return unfinished
}

// emit hands b to the parser, unless it is part of something to expand.
func (c *curl) emit(b byte) {
	if len(c.frames) == 1 && !c.refused {
		c.text = append(c.text, b)
	}
}

// expand hands the parser an expansion that holds nothing.
func (c *curl) expand() {
	if len(c.frames) == 1 && !c.refused {
		c.text = append(c.text, "${_}"...)
	}
}

// cite ends a literal, and names it by its number.
func (c *curl) cite(to []byte, behind string) []byte {
	to = strconv.AppendInt(to, int64(len(c.ends)), 10)
	c.ends = append(c.ends, len(c.literals))
	return append(to, behind...)
}

// literal returns what was left out under the given number.
func (c *curl) literal(number string) (string, bool) {
	k, err := strconv.Atoi(number)
	if err != nil || k < 0 || k >= len(c.ends) {
		return "", false
	}
	from := 0
	if k > 0 {
		from = c.ends[k-1]
	}
	return string(c.literals[from:c.ends[k]]), true
}

func (c *curl) push(kind byte) verdict {
	if len(c.frames) > maxFrames {
		return broken
	}
	c.expand()
	c.word = false
	c.frames = append(c.frames, frame{kind: kind, parens: 1})
	return unfinished
}

func (c *curl) pop() {
	c.frames = c.frames[:len(c.frames)-1]
	c.word = true
}

// announced takes the next byte of a here-document's delimiter, and reports
// whether it belongs to it.
func (c *curl) announced(b byte) bool {
	a := &c.announce
	switch {
	case a.escaped:
		a.escaped = false
	case a.quote == '\'' && b != '\'':
	case b == '\\':
		a.escaped, a.quoted, a.begun = true, true, true
		return true
	case a.quote == 0 && (b == '\'' || b == '"'):
		a.quote, a.quoted, a.begun = b, true, true
		return true
	case a.quote != 0 && b == a.quote:
		a.quote = 0
		return true
	case a.quote != 0:
	case b == ' ' || b == '\t':
		if !a.begun {
			return true
		}
		c.endAnnounce()
		return false
	case b == '\n' || bytes.IndexByte([]byte("|;&()<>"), b) >= 0:
		c.endAnnounce()
		return false
	case b == '$' || b == '`':
		c.refused = true
	}
	a.begun = true
	a.delimiter = append(a.delimiter, b)
	return true
}

func (c *curl) endAnnounce() {
	a := &c.announce
	a.on = false
	c.word = false
	if len(a.delimiter) == 0 || len(c.heredocs) > 0 {
		c.refused = true
	}
	if !a.begun {
		return
	}
	c.heredocs = append(c.heredocs, a.heredoc)
	if a.quoted {
		c.textIfCall("<<'.'")
		return
	}
	for _, b := range a.delimiter {
		if opByte[b] == 0 || b == '/' {
			c.refused = true
		}
	}
	c.textIfCall("<<")
	c.textIfCall(string(a.delimiter))
}

func (c *curl) textIfCall(s string) {
	if !c.refused {
		c.text = append(c.text, s...)
	}
}

// endLine takes a line break of the command itself: its here-documents
// follow, or it is over.
func (c *curl) endLine() verdict {
	if c.bodies == len(c.heredocs) {
		return complete
	}
	c.textIfCall("\n")
	c.body.on = true
	c.beginBody()
	return unfinished
}

func (c *curl) beginBody() {
	c.body.line = c.bodySize()
	c.body.same, c.body.begun, c.body.escaped = 0, false, false
}

func (c *curl) bodySize() int {
	if c.heredocs[c.bodies].quoted {
		return len(c.literals)
	}
	return len(c.text)
}

// stepBody takes the next byte of a here-document.
func (c *curl) stepBody(b byte) verdict {
	h := &c.heredocs[c.bodies]
	body := &c.body
	if b == '\n' {
		if body.same == len(h.delimiter) {
			return c.endBody()
		}
		body.same, body.begun = 0, false
	} else {
		if h.tabs && !body.begun && b == '\t' {
			return unfinished
		}
		body.begun = true
		if body.same >= 0 && body.same < len(h.delimiter) && h.delimiter[body.same] == b {
			body.same++
		} else {
			body.same = -1
		}
	}
	switch {
	case h.quoted:
		c.literals = append(c.literals, b)
	case c.refused:
	default:
		// A backslash takes the meaning from $, ` and itself.
		if (b == '$' || b == '`') && !body.escaped {
			c.refused = true
		}
		c.text = append(c.text, b)
	}
	body.escaped = b == '\\' && !body.escaped
	if b == '\n' {
		body.line = c.bodySize()
	}
	return unfinished
}

func (c *curl) endBody() verdict {
	h := &c.heredocs[c.bodies]
	if h.quoted {
		c.literals = c.literals[:c.body.line]
		if !c.refused {
			c.text = c.cite(c.text, "\n.\n")
		}
	} else if !c.refused {
		c.text = append(append(c.text[:c.body.line], h.delimiter...), '\n')
	}
	if c.bodies++; c.bodies < len(c.heredocs) {
		c.beginBody()
		return unfinished
	}
	c.body.on = false
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
		s.begin(i, bracket)
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
				s.begin(i, bracket)
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
	if !s.fence.open && c.blank && !c.empty {
		return
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
