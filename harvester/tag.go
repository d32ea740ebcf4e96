package harvester

import "bytes"

// A tag reads what may become the opening of a comment, or a think tag, from
// the byte behind its < on.
type tag struct {
	name tagName // once it is known
	path byte    // its first byte, in lower case
	n    uint8   // bytes read
}

type tagName uint8

const (
	noName tagName = iota
	anyName
	comment
	thinkName
	thinkingName
	reasoningName
)

// step takes the next byte. It reports whether the bytes may still become a
// tag; name is set when they have.
func (t *tag) step(c byte) bool {
	if c >= 'A' && c <= 'Z' {
		c |= 0x20
	}
	var path string
	if t.n == 0 {
		t.path = c
	}
	switch t.path {
	case '!':
		path = "!--"
	case 't':
		path = "thinking"
	case 'r':
		path = "reasoning"
	default:
		return false
	}
	if int(t.n) < len(path) && c == path[t.n] {
		if t.n++; t.path == '!' && t.n == 3 {
			t.name = comment
		}
		return true
	}
	if c != '>' && !isSpace(c) {
		return false
	}
	switch {
	case t.path == 't' && t.n == 5:
		t.name = thinkName
	case t.path == 't' && t.n == 8:
		t.name = thinkingName
	case t.path == 'r' && t.n == 9:
		t.name = reasoningName
	}
	return t.name != noName
}

// openTag begins a tag at the < at i. back is the mode to go back to.
func (s *Scanner) openTag(i int, back mode) {
	s.mode, s.tag, s.back = inTag, tag{}, back
	if s.explainer.rule == 0 {
		s.hide(14, s.at(i))
	}
}

// tagged reads on in what may become a tag.
func (s *Scanner) tagged(p []byte, i int) int {
	if !s.tag.step(p[i]) {
		s.unhidden()
		switch s.back {
		case inProse:
			s.toText()
		default:
			s.mode = inRest
		}
		return i
	}
	s.examined++
	if s.tag.name != noName {
		s.enterTag()
	}
	return i + 1
}

// enterTag hides what follows s.tag, which is complete.
func (s *Scanner) enterTag() {
	if s.tag.name == comment {
		// Two dashes stand already: <!--> is complete.
		s.mode, s.matched = inComment, 2
		return
	}
	s.mode, s.matched, s.hidden = inThink, 0, s.tag
	s.explainer.rule = 13
}

// comment reads on to -->. s.matched counts the dashes before, up to two.
func (s *Scanner) comment(p []byte, i int) int {
	for i < len(p) {
		if s.matched == 0 && !s.fence.open {
			n := bytes.IndexByte(p[i:], '-')
			if n < 0 {
				s.examined += int64(len(p) - i)
				return len(p)
			}
			s.examined += int64(n)
			i += n
		}
		c := p[i]
		s.examined++
		i++
		switch {
		case c == '-':
			s.matched = min(s.matched+1, 2)
		case c == '>' && s.matched == 2:
			s.unhide(s.at(i))
			switch s.back {
			case inProse:
				s.toText()
			default:
				s.mode, s.place = s.back, false
			}
			return i
		default:
			s.matched = 0
			if c == '\n' && s.fence.open {
				return i
			}
		}
	}
	return i
}

// think reads on to the closing tag of s.hidden. s.matched counts the bytes of
// its </ so far.
func (s *Scanner) think(p []byte, i int) int {
	for i < len(p) {
		if s.matched == 0 && !s.fence.open {
			n := bytes.IndexByte(p[i:], '<')
			if n < 0 {
				s.examined += int64(len(p) - i)
				return len(p)
			}
			s.examined += int64(n)
			i += n
		}
		c := p[i]
		s.examined++
		i++
		switch {
		case s.matched == 1 && c == '/':
			s.matched, s.tag = 2, tag{}
		case s.matched == 2 && s.tag.step(c) && (s.tag.name == noName || c == '>'):
			if s.tag.name == noName {
				break
			}
			s.matched = 0
			if s.tag.name == s.hidden.name || s.hidden.name == anyName && s.tag.name > comment {
				s.unhide(s.at(i))
				if s.back == inProse {
					s.toLine()
				} else {
					// What follows begins a line, for the fence as well.
					s.mode, s.place = inItems, true
					s.beginFenceLine(p, i)
				}
				return i
			}
		case c == '<':
			s.matched = 1
		default:
			s.matched = 0
			if c == '\n' && s.fence.open {
				return i
			}
		}
	}
	return i
}
