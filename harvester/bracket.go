package harvester

// A header reads a bracket directive from its [ up to its object (rules 1 to
// 4 and 6).
type header struct {
	results bool // [RESULT is a keyword here
	part    uint8
	keyword string
	form    Form
	at      int // bytes of the keyword seen
	gap     int // spaces of the gap at hand

	raw         [maxHeader]byte // what was read, to read it again if it fails
	n           int
	hasLine     bool // a line ends in it
	plain       bool // for an item: its op name may be an action's
	key, keyEnd int  // in raw
	op, opEnd   int
}

// maxHeader bounds a header: [, keyword, # and key, two gaps and an op.
const maxHeader = 1 + 6 + 1 + maxKey + maxGap + maxOp + maxGap

const (
	inKeyword uint8 = iota
	afterKeyword
	inHeaderKey
	beforeOp // a gap; for what has no op the only one
	inOp
	beforeObject
)

func (h *header) reset() {
	h.part, h.keyword, h.at, h.gap = inKeyword, "", 0, 0
	h.key, h.keyEnd, h.op, h.opEnd = 0, 0, 0, 0
	h.raw[0], h.n, h.hasLine = '[', 1, false
}

// step takes the next byte. It reports complete at the { of the object, and
// broken when the header fails.
func (h *header) step(c byte) verdict {
	switch h.part {
	case inKeyword:
		if h.at == 0 {
			switch c {
			case 'T':
				h.keyword, h.form = "TOOL", Tool
			case 'E':
				h.keyword, h.form = "EXEC", Exec
			case 'D':
				h.keyword, h.form = "DM", DM
			case 'R':
				if !h.results {
					return broken
				}
				h.keyword, h.form = "RESULT", Result
			default:
				return broken
			}
		} else if c != h.keyword[h.at] {
			return broken
		}
		if h.at++; h.at == len(h.keyword) {
			h.part = afterKeyword
		}
	case afterKeyword:
		switch {
		case c == '#':
			h.part = inHeaderKey
			h.key = h.n + 1
		case isSpace(c):
			h.part, h.gap = beforeOp, 1
		case c == '{' && h.bare():
			return complete
		default:
			return broken
		}
	case inHeaderKey:
		h.keyEnd = h.n
		switch n := h.n - h.key; {
		case isKey[c] && n < maxKey:
		case isKey[c] || n < minKey:
			return broken
		case isSpace(c):
			h.part, h.gap = beforeOp, 1
		case c == '{' && h.bare():
			return complete
		default:
			return broken
		}
	case beforeOp:
		switch {
		case isSpace(c):
			if h.gap++; h.gap > maxGap {
				return broken
			}
		case h.bare():
			if c != '{' {
				return broken
			}
			return complete
		case opByte[c] == opStart:
			h.part, h.op = inOp, h.n
		default:
			return broken
		}
	case inOp:
		h.opEnd = h.n
		switch {
		case opByte[c] != 0:
			if h.n-h.op == maxOp {
				return broken
			}
		case isSpace(c):
			h.part, h.gap = beforeObject, 1
		case c == '{':
			return complete
		default:
			return broken
		}
	case beforeObject:
		if c == '{' {
			return complete
		}
		if !isSpace(c) {
			return broken
		}
		if h.gap++; h.gap > maxGap {
			return broken
		}
	}
	h.raw[h.n] = c
	h.n++
	h.hasLine = h.hasLine || c == '\n'
	return unfinished
}

// bare reports whether the object follows the keyword, with no op between.
func (h *header) bare() bool { return h.form == DM || h.form == Result }

// opens reports whether c completes a bracket opener in the sense of rule 8,
// whatever becomes of its header.
func (h *header) opens(c byte) bool {
	return h.part == afterKeyword && (c == '#' || c == '{' || isSpace(c))
}

const (
	opInner = 1 // may stand in an op name
	opStart = 2 // and begin it
)

var opByte = func() (t [256]uint8) {
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-0x20] = opStart, opStart
	}
	t['_'] = opStart
	for _, c := range []byte("0123456789.:/-") {
		t[c] = opInner
	}
	return t
}()

// begin notes that a directive begins at i.
func (s *Scanner) begin(i int, k kind) {
	s.start, s.kind = s.at(i), k
}

// readHeader reads on in a bracket directive before its object.
func (s *Scanner) readHeader(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		s.examined++
		switch s.header.step(c) {
		case unfinished:
			if c == '\n' && s.fence.open {
				return i + 1
			}
		case complete:
			s.openObject(i)
			return i
		case broken:
			s.examined--
			switch {
			case !s.fence.open || s.header.part > afterKeyword:
				s.failHeader()
			case s.header.n == 1:
				s.openArray()
			default:
				// No bracket opener: an array, broken at its second byte.
				s.breakAt(s.start+1, 8, "broken JSON")
				s.mode, s.recovery = inRecovery, recovery{depth: 1}
			}
			return i
		}
	}
	return i
}

// failHeader goes on one byte behind the [ of a header that failed (rule 6).
// Nothing in a header matters to prose but its line ends.
func (s *Scanner) failHeader() {
	h := &s.header
	s.toRest()
	if !h.hasLine {
		return
	}
	raw := h.raw
	s.readAgain(raw[1:h.n], s.start+1)
}

// readAgain reads again what was read otherwise and failed; it stood at the
// given offset.
func (s *Scanner) readAgain(p []byte, at int64) {
	base := s.base
	s.base, s.replay = at, true
	s.read(p)
	s.keep(p)
	s.base, s.replay = base, false
}

// openObject begins the object at i, of the directive that stands open.
func (s *Scanner) openObject(i int) {
	s.mode, s.objectAt, s.buffered = inObject, s.at(i), false
	depth := 0
	switch s.kind {
	case callItem:
		depth = 1
	case arrayItem:
		depth = 2
	}
	s.object.reset(depth, s.fence.open)
}

// openArray begins an array of call objects whose [ was read already, perhaps
// in an earlier piece.
func (s *Scanner) openArray() {
	s.kind = arrayItem
	s.openObject(int(s.start - s.base))
	if s.objectAt < s.base {
		s.buf, s.buffered = append(s.buf[:0], '['), true
	}
}

// readObject reads on in an object. It lies in p as long as p is all that is
// known of it; once it goes over several pieces it is gathered in buf.
func (s *Scanner) readObject(p []byte, i int) int {
	room := int(s.start + maxDirective - s.objectAt)
	o := &s.object
	if s.buffered && o.state == inString && len(p)-i < 16 {
		// Small pieces are mostly text.
		old := i
		for i < len(p) && plain[p[i]] && len(s.buf) < room {
			s.buf = append(s.buf, p[i])
			i++
		}
		o.pos += i - old
		s.examined += int64(i - old)
		if i == len(p) {
			return i
		}
	}
	for {
		var w []byte
		old, shift := o.pos, 0 // shift: offset in p of w's first byte
		if s.buffered {
			// Little by little, so that what lies behind the object is
			// not copied for nothing.
			n := min(len(p)-i, room-len(s.buf), max(64, len(s.buf)/2))
			if s.fence.open {
				n = min(n, 64)
			}
			shift = i - len(s.buf)
			s.buf = append(s.buf, p[i:i+n]...)
			w = s.buf
		} else {
			shift = int(s.objectAt - s.base)
			w = p[shift:]
			w = w[:min(len(w), room)]
		}
		v := o.scan(w)
		s.examined += int64(o.pos - old)
		if s.buffered {
			s.buf = s.buf[:o.pos]
		}
		i = o.pos + shift
		switch v {
		case complete:
			s.endObject(w[:o.pos], i)
			return i
		case broken:
			s.openRecovery(w, p[i], "broken JSON")
			return i
		case atLine:
			return i
		}
		if i == len(p) {
			return i
		}
		if o.pos == room {
			s.openRecovery(w, p[i], "longer than 1 MiB")
			return i
		}
	}
}

// endObject takes the object w, which ended before i.
func (s *Scanner) endObject(w []byte, i int) {
	switch s.kind {
	case bracket:
		s.mode, s.head, s.place, s.matched = inTrail, false, false, 0
	case opItem:
		s.found(Directive{Form: s.fence.form, Op: string(s.header.raw[:s.header.n]), Params: w, Key: s.fence.key}, i)
		s.mode, s.place = inItems, false
	case callItem, arrayItem:
		calls, n, ok := s.object.calls.directives(s.pending[:0], w)
		s.pending = calls
		s.examined += int64(n)
		if !ok {
			s.breakAt(s.at(i), 16, "not a call object")
			s.mode = inRest
			return
		}
		for _, d := range calls {
			d.Form = s.fence.form
			if d.Key == "" {
				d.Key = s.fence.key
			}
			s.found(d, i)
		}
		clear(calls) // they would keep the text
		s.mode, s.place = inItems, false
	}
}

// found reports d, which ends before i.
func (s *Scanner) found(d Directive, i int) {
	d.Start, d.End = s.start, s.at(i)
	s.report(d)
}

func (s *Scanner) report(d Directive) {
	to := s.config.Found
	if d.Form == Result {
		to = s.config.Result
	}
	if to != nil {
		d.Params = d.Params[:len(d.Params):len(d.Params)]
		to(d)
	}
}

// trail reads on from a bracket directive's object to its ] (rule 5).
func (s *Scanner) trail(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		tooLong := s.at(i)-s.start >= maxDirective
		if c == ']' && !tooLong {
			s.examined++
			s.endBracket(p, i+1)
			return i + 1
		}
		if !isSpace(c) || tooLong {
			if tooLong {
				s.breakAt(s.at(i), 8, "longer than 1 MiB")
			} else {
				s.breakAt(s.at(i), 5, "something else than space before the closing bracket")
			}
			s.before = nothing
			switch {
			case !s.fence.open:
				s.mode = inProse
			case s.matched > 0:
				s.mode = inItems
			default:
				s.mode = inRest
			}
			return i
		}
		s.examined++
		// The line is watched as prose does, which goes on here if the ]
		// does not come.
		switch {
		case c == '\n':
			s.head, s.prefix, s.place, s.matched = true, prefix{}, true, 1
			if s.fence.open {
				return i + 1
			}
		case c == '\r':
			s.head, s.place = false, false
		case s.head:
			s.prefix.step(c)
		}
	}
	return i
}

func (s *Scanner) endBracket(p []byte, i int) {
	h := &s.header
	w := s.buf
	if !s.buffered {
		w = p[s.objectAt-s.base:]
	}
	d := Directive{Form: h.form, Op: string(h.raw[h.op:h.opEnd]), Params: w[:s.object.pos], Key: string(h.raw[h.key:h.keyEnd])}
	if h.form == DM {
		d.Op = "dm.send"
	}
	if d.Key == "" {
		d.Key = s.fence.key
	}
	s.found(d, i)
	if s.fence.open {
		s.mode, s.place = inItems, false
	} else {
		s.toText()
	}
}
