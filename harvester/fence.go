package harvester

import "bytes"

// A level is what a closing line is measured by: the opener of a fence, or of
// a directive fence shown inside a quoting one.
type level struct {
	char     byte
	run, col int
}

// maxLevels bounds the levels that are kept apart; deeper ones are counted
// and measured by the last of these.
const maxLevels = 1 << 12

// A fence is the fenced block that stands open.
type fence struct {
	open   bool
	quotes bool // it is no directive fence
	form   Form
	key    string
	levels []level
	deeper int
	cut    bool // a string stood open where the line begins
}

func (f *fence) top() level { return f.levels[len(f.levels)-1] }

// nested reports whether a directive fence is shown at this place.
func (f *fence) nested() bool { return len(f.levels) > 1 }

// openFence opens the fence of s.line, whose line ended before i.
func (s *Scanner) openFence(p []byte, i int) {
	l, f := &s.line, &s.fence
	f.open, f.deeper = true, 0
	s.header.results = false // there it would be an item, and it is none
	f.levels = append(f.levels[:0], level{l.char, l.run, l.prefix.col})
	form, key, directive := l.info.directive()
	f.quotes, f.form, f.key = !directive, form, key
	s.place = true
	switch {
	case directive:
		s.mode = inItems
	case l.info.shell():
		s.mode, s.run = inShell, 0
		s.hide(12, s.at(i))
	default:
		s.mode = inQuoting
		s.hide(12, s.at(i))
	}
	s.beginFenceLine(p, i)
}

// beginFenceLine begins a line of a fence at i.
func (s *Scanner) beginFenceLine(p []byte, i int) {
	s.line.reset(s.at(i))
	s.braced = s.braced && s.replay
	s.fence.cut = s.mode == inRecovery && s.recovery.quote != 0
	s.readLine(p[i:])
}

// readLine reads the line of a fence for the fence alone, beside whatever
// else reads it.
func (s *Scanner) readLine(b []byte) {
	if s.line.dead {
		return
	}
	for _, c := range b {
		if c == '\n' {
			return
		}
		s.examined++
		if !s.line.step(c) {
			s.line.dead = true
			return
		}
	}
}

// endFenceLine takes the end of a line of a fence, before i: it may close the
// fence or nest a level.
func (s *Scanner) endFenceLine(p []byte, i int) {
	f, l := &s.fence, &s.line
	top := f.top()
	switch {
	case l.closes(top):
		switch {
		case f.deeper > 0:
			f.deeper--
		case len(f.levels) > 1:
			f.levels = f.levels[:len(f.levels)-1]
		default:
			s.closeFence(i)
			return
		}
	case f.quotes && l.opens() && l.char == top.char && l.run >= f.levels[0].run:
		if _, _, ok := l.info.directive(); !ok {
			break
		}
		if len(f.levels) < maxLevels {
			f.levels = append(f.levels, level{l.char, l.run, l.prefix.col})
		} else {
			f.deeper++
		}
	}
	s.beginFenceLine(p, i)
}

// closesFence reports whether the line at hand closes the fence itself.
func (s *Scanner) closesFence() bool {
	f := &s.fence
	return f.open && !f.nested() && s.line.closes(f.levels[0])
}

// closeFence ends the fence, whatever stands open, with the line that ended
// before i. If it cuts a string, nobody can tell what follows (rule 18).
func (s *Scanner) closeFence(i int) {
	if s.mode == inObject || s.mode == inTrail {
		s.breakAt(s.line.start, 18, "the fence closed before the item did")
	}
	s.fence.open, s.fence.form, s.fence.key = false, "", ""
	s.header.results = s.config.Result != nil
	if s.mode == inComment || s.mode == inThink {
		s.back = inProse // these hide on to their own end
		return
	}
	s.unhide(s.line.start)
	if s.fence.cut {
		s.mode = inHiding
		s.hide(18, s.at(i))
		return
	}
	s.toLine()
}

// quoting reads on in a quoting fence, of which only line ends matter.
func (s *Scanner) quoting(p []byte, i int) int {
	n := bytes.IndexByte(p[i:], '\n') + 1
	if n == 0 {
		n = len(p) - i
	}
	s.examined += int64(n)
	return i + n
}

// shell reads on in a shell fence as long as its lines are blank, comments or
// curl commands. s.run is 1 in a comment.
func (s *Scanner) shell(p []byte, i int) int {
	if s.fence.nested() {
		s.mode = inQuoting
		return i
	}
	for ; i < len(p); i++ {
		c := p[i]
		s.examined++
		switch {
		case c == '\n':
			s.place, s.run = true, 0
			return i + 1
		case s.run == 1 || c == ' ' || c == '\t':
		case c == '\r':
			s.place = false
		case s.place && c == '#':
			s.run = 1
		case s.place && (c == '$' || c == 'c'):
			s.openCurlWord(c, i, inShell)
			return i + 1
		default:
			s.examined--
			s.mode = inQuoting
			return i
		}
	}
	return i
}

// items reads on in a directive fence where an item may begin (rule 16).
func (s *Scanner) items(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		s.examined++
		switch {
		case c == '\n':
			s.place = true
			return i + 1
		case c == ' ' || c == '\t':
		case c == '\r':
			s.place = false
		case c == '{':
			s.begin(i, callItem)
			s.openObject(i)
			return i
		case c == '[':
			s.begin(i, bracket)
			s.mode = inHeader
			s.header.reset()
			return i + 1
		case c == '<':
			s.openTag(i, inItems)
			return i + 1
		case opByte[c] == opStart:
			s.begin(i, opItem)
			s.mode, s.header.n, s.header.gap = inItemOp, 0, 0
			s.buf = s.buf[:0]
			s.examined--
			return i
		default:
			s.mode = inRest
			s.examined--
			return i
		}
	}
	return i
}

// itemOp reads on in an item that began with an op name. Its object begins on
// the same line; in a box fence it may be a plain action instead.
func (s *Scanner) itemOp(p []byte, i int) int {
	h := &s.header
	mayAct := s.place && !s.braced && s.fence.form == Box
	for ; i < len(p); i++ {
		c := p[i]
		switch {
		case s.tooLong(c, i):
			s.mode = inRest
			return i
		case c == '{' && h.n <= maxOp:
			s.openObject(i)
			return i
		case c == '\n':
			s.endItemOp(s.at(i))
			s.mode, s.place = inItems, true
			s.examined++
			return i + 1
		case isSpace(c):
			h.gap++
		case h.gap == 0 && opByte[c] != 0 && (h.n < maxOp || mayAct):
			// The name of an action has no bound; one byte too many is
			// kept of an op.
			h.plain = isActionByte(c, h.n == 0) && (h.n == 0 || h.plain)
			if h.n <= maxOp {
				h.raw[h.n] = c
				h.n++
			}
		case h.gap > 0 && mayAct && h.plain:
			s.mode, s.object.more, s.behindBox = inAction, 0, -1
			if string(h.raw[:h.n]) == "box" {
				s.behindBox = len(s.buf)
			}
			return i
		default:
			s.mode = inRest
			return i
		}
		s.examined++
		if mayAct {
			s.buf = append(s.buf, c)
		}
	}
	return i
}

// endItemOp ends a line that is an op name alone, with its line break at the
// given offset.
func (s *Scanner) endItemOp(end int64) {
	if s.place && !s.braced && s.fence.form == Box {
		s.endAction(end)
	}
}

// action reads on in a plain action of a box fence, from its second word on.
// It gives up at the first byte with which the line can be none.
func (s *Scanner) action(p []byte, i int) int {
	o := &s.object // which reads UTF-8
	for ; i < len(p); i++ {
		c := p[i]
		ok := c != '{' && !s.tooLong(c, i)
		switch {
		case o.more > 0:
			ok = ok && o.continues(c)
		case c >= 0x80:
			ok = ok && o.lead(c)
		}
		if s.behindBox >= 0 {
			switch word := s.buf[s.behindBox:]; {
			case isSpace(c):
				ok = ok && string(word) != "box"
				s.behindBox = -1
			default:
				ok = ok && isActionByte(c, len(word) == 0)
			}
		}
		if !ok {
			s.failAction(p, i)
			return i
		}
		s.examined++
		if c == '\n' {
			s.endAction(s.at(i))
			s.mode, s.place = inItems, true
			return i + 1
		}
		s.buf = append(s.buf, c)
	}
	return i
}

// tooLong reports whether c, at i, makes an item longer than 1 MiB. A line
// break is no part of an item.
func (s *Scanner) tooLong(c byte, i int) bool {
	n := s.at(i) - s.start
	return c != '\n' && (n > maxDirective || n == maxDirective && c != '\r')
}

// failAction takes the line of a plain action up to i, which is none, for an
// item that failed: it is read again for what trails such an item.
func (s *Scanner) failAction(p []byte, i int) {
	s.mode, s.braced = inItems, true
	s.readAgain(s.buf, s.start)
	if !s.line.dead {
		s.readLine(p[i:]) // a line begins behind a think tag
	}
}

// endAction reports the plain action of which buf is the line, if it is one
// (rule 17). The line break, a carriage return before it included, stands at
// the given offset.
func (s *Scanner) endAction(end int64) {
	line := s.buf
	s.examined += int64(len(line))
	if !s.closed && len(line) > 0 && line[len(line)-1] == '\r' {
		end--
	}
	name, arg := cutSpace(line)
	if string(name) == "box" {
		name, arg = cutSpace(arg)
	}
	if !isAction(name) || string(name) == "box" || end-s.start > maxDirective {
		return
	}
	params := append([]byte(nil), `{"action":"`...)
	params = append(append(params, name...), '"')
	if len(arg) > 0 {
		params = appendString(append(params, `,"arg":`...), arg)
	}
	params = append(params, '}')
	s.report(Directive{Form: Box, Op: "box.exec", Params: params, Key: s.fence.key, Start: s.start, End: end})
}

// cutSpace returns the first word of b and what follows it, without the space
// around.
func cutSpace(b []byte) (word, rest []byte) {
	b = trimSpace(b)
	n := 0
	for n < len(b) && !isSpace(b[n]) {
		n++
	}
	return b[:n], trimSpace(b[n:])
}

func trimSpace(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

// isAction reports whether name is made like an action's, as box is.
func isAction(name []byte) bool {
	for i, c := range name {
		if !isActionByte(c, i == 0) {
			return false
		}
	}
	return len(name) > 0
}

func isActionByte(c byte, first bool) bool {
	return c >= 'a' && c <= 'z' || !first && (isDigit(c) || c == '_' || c == '.' || c == '-')
}

// appendString appends a JSON string of b, which is valid UTF-8.
func appendString(to, b []byte) []byte {
	const hex = "0123456789abcdef"
	to = append(to, '"')
	for _, c := range b {
		switch {
		case c == '"' || c == '\\':
			to = append(to, '\\', c)
		case c < 0x20:
			to = append(to, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}

// rest reads on behind a failed item, to its line end (rule 18).
func (s *Scanner) rest(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		s.examined++
		switch c {
		case '\n':
			s.mode, s.place = inItems, true
			return i + 1
		case '<':
			s.openTag(i, inRest)
			return i + 1
		}
	}
	return i
}
