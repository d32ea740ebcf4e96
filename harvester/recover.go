package harvester

// A recovery reads on behind the error in a broken object, to where its
// brackets balance or it is plain that it was given up (rule 8).
type recovery struct {
	depth     int
	quote     byte // the quote of the string that stands open, or 0
	alsoQuote byte // the ' or ` that stood at the error, or 0
	escaped   bool // behind a backslash in a string

	seen uint8 // what was seen of something that would end the recovery
	col  int   // indent of the line
	char byte  // of the fence's run
	run  int   // and its length
	at   int64 // where it began
}

const (
	seenNothing uint8 = iota
	seenLine          // the beginning of a line, and indent
	seenBracket       // and [, and some of a keyword
	seenRun           // and backticks or tildes
	seenTag           // and <
	seenComment       // < in the middle of a line
)

// openRecovery begins to recover from an error at c, the byte behind those of
// w that were read.
func (s *Scanner) openRecovery(w []byte, c byte, why string) {
	o, r := &s.object, &s.recovery
	w = w[:o.pos]
	s.breakAt(s.objectAt+int64(o.pos), 8, why)
	*r = recovery{depth: o.depth}
	s.mode = inRecovery
	if o.inQuotes() {
		r.quote = '"'
		r.escaped = o.behindBackslash()
	}
	if c == '\'' || c == '`' {
		r.alsoQuote = c
	}
	if r.quote != 0 {
		return
	}
	// The error's own line may begin with what ends the recovery. Of that
	// only the [ of a bracket opener can stand before the error.
	opened := len(w) > 0 && w[len(w)-1] == '['
	if opened {
		w = w[:len(w)-1]
	}
	n := len(w)
	for n > 0 && (w[n-1] == ' ' || w[n-1] == '\t') {
		n--
	}
	s.examined += int64(len(w) - n)
	if n == 0 || w[n-1] != '\n' {
		return
	}
	r.seen = seenLine
	for _, c := range w[n:] {
		r.indent(c)
	}
	if opened {
		r.seen, r.at = seenBracket, s.objectAt+int64(len(w))
		s.header.reset()
	}
}

func (r *recovery) indent(c byte) {
	r.col++
	if c == '\t' {
		r.col = (r.col + 3) &^ 3
	}
}

// readRecovery reads on in a broken object.
func (s *Scanner) readRecovery(p []byte, i int) int {
	r := &s.recovery
	for i < len(p) {
		c := p[i]
		if r.seen > seenLine {
			taken := s.abandon(c)
			if taken {
				s.examined++
				i++
			}
			if s.mode != inRecovery {
				return i
			}
			if taken {
				continue
			}
		}
		s.examined++
		i++
		if r.quote != 0 {
			switch {
			case r.escaped:
				r.escaped = false
			case c == '\\':
				r.escaped = true
			case c == r.quote:
				r.quote = 0
			}
			if c == '\n' && s.fence.open {
				return i
			}
			continue
		}
		if c == '\n' {
			r.seen, r.col = seenLine, 0
			if s.fence.open {
				return i
			}
			continue
		}
		first := r.seen == seenLine
		if first && (c == ' ' || c == '\t') {
			r.indent(c)
			continue
		}
		r.seen, r.at = seenNothing, s.at(i-1)
		switch {
		case first && (c == '`' || c == '~'):
			r.seen, r.char, r.run = seenRun, c, 1
		case c == '<':
			r.seen, s.tag = seenComment, tag{}
			if first {
				r.seen = seenTag
			}
		case c == '"' || c == r.alsoQuote && c != 0:
			r.quote = c
		case c == '{' || c == '[':
			r.depth++
			if first && c == '[' {
				r.seen = seenBracket
				s.header.reset()
			}
		case c == '}' || c == ']':
			if r.depth--; r.depth == 0 {
				s.toRest()
				return i
			}
		}
	}
	return i
}

// abandon takes the next byte of what may end the recovery before its
// brackets balance, and reports whether c belongs to it. When it does end,
// the mode has changed.
func (s *Scanner) abandon(c byte) (taken bool) {
	r := &s.recovery
	switch r.seen {
	case seenBracket:
		if s.header.opens(c) {
			s.start, s.kind, s.mode = r.at, bracket, inHeader
			return false
		}
		if s.header.step(c) == unfinished {
			return true
		}
	case seenRun:
		if c == r.char {
			if r.run++; r.run == 3 {
				s.abandonAtFence()
			}
			return true
		}
		if r.char == r.alsoQuote && r.run == 1 {
			r.quote = r.char
		}
	case seenTag, seenComment:
		if s.tag.step(c) && (s.tag.name <= comment || r.seen == seenTag) {
			if s.tag.name != noName {
				s.back = inProse
				if s.fence.open {
					s.back = inRest
					if r.seen == seenTag {
						s.back = inItems
					}
				}
				s.hide(14, r.at)
				s.enterTag()
			}
			return true
		}
	}
	r.seen = seenNothing
	return false
}

// abandonAtFence goes on in a line that began with three backticks or tildes.
func (s *Scanner) abandonAtFence() {
	if s.fence.open {
		s.mode = inRest
		return
	}
	r := &s.recovery
	s.mode = inFenceLine
	s.line.reset(r.at)
	s.line.prefix.col, s.line.char, s.line.run = r.col, r.char, r.run
	if r.char == '`' {
		s.hide(10, r.at)
	}
}

// toRest goes on behind something broken: in prose in the middle of the line,
// in a fence with what trails a failed item.
func (s *Scanner) toRest() {
	if s.fence.open {
		s.mode = inRest
	} else {
		s.toText()
	}
}
