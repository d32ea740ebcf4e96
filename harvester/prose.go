package harvester

import (
	"bytes"
	"encoding/binary"
	"sync"
)

// before is what stands directly before the next byte of prose, as far as it
// hides a bracket (rule 11).
type before uint8

const (
	nothing   before = iota
	backslash        // an odd run of them
	quoteMark
	partE2   // the first byte of “ and ‘
	partE280 // and the second
	partC2   // the first byte of «
)

func (b before) next(c byte) before {
	switch {
	case c == '\\' && b != backslash:
		return backslash
	case c == '"' || c == '\'':
		return quoteMark
	case c == 0xe2:
		return partE2
	case c == 0x80 && b == partE2:
		return partE280
	case (c == 0x9c || c == 0x98) && b == partE280:
		return quoteMark
	case c == 0xc2:
		return partC2
	case c == 0xab && b == partC2:
		return quoteMark
	}
	return nothing
}

// prose reads text in which orders may stand. It looks at each byte with all
// that came before it in mind, and where it can it skips what cannot matter.
func (s *Scanner) prose(p []byte, i int) int {
	for i < len(p) {
		if !s.head && len(p)-i >= 8 {
			if j := skip(p, i, s.stops); j > i {
				s.examined += int64(j - i)
				i += s.lookBack(p[i:j])
				if i == len(p) {
					break
				}
			}
		}
		c := p[i]
		s.examined++
		if c == '\n' {
			s.toLine()
			i++
			continue
		}
		if s.head {
			if s.prefix.step(c) {
				i++
				continue
			}
			s.head, s.before = false, nothing
			if s.prefix.word() && s.word(c, i) {
				return i + 1
			}
		}
		switch c {
		case '[':
			if s.before != backslash && s.before != quoteMark {
				s.begin(i, bracket)
				s.mode = inHeader
				s.header.reset()
				return i + 1
			}
			s.mask(i)
		case '<':
			s.openTag(i, inProse)
			return i + 1
		case '`':
			s.mode, s.code, s.run = inCode, 0, 1
			s.hide(10, s.at(i))
			return i + 1
		}
		s.before = s.before.next(c)
		i++
	}
	return i
}

// word tries what can stand only at the beginning of a line: a fence, a
// quotation or curl. c is the line's first byte behind its prefix.
func (s *Scanner) word(c byte, i int) bool {
	switch c {
	case '`', '~':
		s.mode = inFenceLine
		s.line.reset(s.at(i))
		s.line.prefix = s.prefix
		s.line.char, s.line.run = c, 1
		if c == '`' {
			s.hide(10, s.at(i))
		}
	case '>':
		s.mode = inQuote
		s.hide(9, s.at(i))
	case '&':
		s.mode, s.matched = inEntity, 1
		s.hide(9, s.at(i))
	case '|':
		if s.prefix.listed {
			return false
		}
		s.mode = inQuote
		s.hide(9, s.at(i))
	case '$', 'c':
		if s.prefix.listed {
			return false
		}
		s.openCurlWord(c, i, inProse)
	default:
		return false
	}
	return true
}

// stops marks the pairs of bytes, the first in the low half, at which prose
// has to be read with care: something may begin at the first byte, or at the
// second. All others may be skipped, line ends too, since from a fence or a
// quotation lookBack finds the beginning of the line, and from the end of
// "curl" that of the word.
var stops = newStops("TED")

// resultStops is stops where [RESULT {…}] is looked for too.
var resultStops = sync.OnceValue(func() *stopTable {
	t := newStops("TEDR")
	return &t
})

type stopTable [1 << 16]uint8

// newStops makes a table of pairs; keywords are the first bytes of those that
// may follow a [.
func newStops(keywords string) (t stopTable) {
	pair := func(first, second string) {
		for _, a := range []byte(first) {
			for _, b := range []byte(second) {
				t[uint16(a)|uint16(b)<<8] = 1
			}
		}
	}
	var any []byte
	for b := range 256 {
		any = append(any, byte(b))
	}
	// What begins with the first byte.
	pair("[", keywords)
	pair("<", "!tTrR")
	pair("~", "~")
	pair("&", "g")
	pair("`>|", string(any))
	// What may begin with the second.
	pair(string(any), "[<`")
	pair("\n\r \t", "~&>|")
	pair("u", "r")
	pair("r", "l")
	return t
}

// skip returns the next offset, from i on, at which p has a pair that stops.
// It looks at every other pair only. At the end of p it returns the offset of
// the last byte, or the length of p.
func skip(p []byte, i int, stops *stopTable) int {
	for i+16 <= len(p) {
		x := binary.LittleEndian.Uint64(p[i:])
		y := binary.LittleEndian.Uint64(p[i+8:])
		a := stops[uint16(x)] | stops[uint16(x>>16)] | stops[uint16(x>>32)] | stops[uint16(x>>48)]
		b := stops[uint16(y)] | stops[uint16(y>>16)] | stops[uint16(y>>32)] | stops[uint16(y>>48)]
		if a|b != 0 {
			break
		}
		i += 16
	}
	for i+2 <= len(p) && stops[binary.LittleEndian.Uint16(p[i:])] == 0 {
		i += 2
	}
	return i
}

// lookBack restores what prose would know had it read b, which was skipped
// and began in the middle of a line. It returns how much of b is done: what
// may be the beginning of a curl command has to be read again.
func (s *Scanner) lookBack(b []byte) (done int) {
	last := b[len(b)-1]
	if last == 'c' || last == 'u' || last == '$' || last == ' ' {
		if k := beginsCurl(b); k > 0 && mayPrefix[b[k-1]] {
			n, ok := s.prefix.lookBack(b[:k])
			s.examined += int64(n)
			if s.head = ok; ok {
				s.before = nothing
				return k
			}
		}
	}
	s.head = false
	if mayPrefix[last] {
		n, ok := s.prefix.lookBack(b)
		s.examined += int64(n)
		s.head = ok
		s.before = nothing
		return len(b)
	}
	switch {
	case last == '\\':
		n := len(b)
		for n > 0 && b[n-1] == '\\' {
			n--
		}
		run := len(b) - n
		s.examined += int64(run)
		if n == 0 && s.before == backslash {
			run++
		}
		s.before = nothing
		if run%2 == 1 {
			s.before = backslash
		}
	case last >= 0x80 || last == '"' || last == '\'':
		near := b
		if len(b) > 3 {
			near = b[len(b)-3:]
			s.before = nothing
		}
		for _, c := range near {
			s.before = s.before.next(c)
		}
	default:
		s.before = nothing
	}
	return len(b)
}

// beginsCurl returns the offset in b of what it ends with, if that is part of
// "curl" or "$ curl", else 0.
func beginsCurl(b []byte) int {
	k := len(b) - 1
	switch b[k] {
	case 'u':
		if k--; k < 0 || b[k] != 'c' {
			return 0
		}
	case ' ':
		if k--; k < 0 || b[k] != '$' {
			return 0
		}
	}
	if b[k] == 'c' && k >= 2 && b[k-1] == ' ' && b[k-2] == '$' {
		k -= 2
	}
	return k
}

// opener reads on in a line that may open a fence.
func (s *Scanner) opener(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		s.examined++
		if c == '\n' {
			if s.line.opens() {
				s.unhidden()
				s.openFence(p, i+1)
				return i + 1
			}
			s.unhidden()
			s.toLine()
			return i + 1
		}
		if !s.line.step(c) {
			if s.line.char == '`' {
				s.mode, s.code, s.run = inCode, s.line.run, 0
			} else {
				s.toText()
			}
			return i
		}
	}
	return i
}

// inlineCode reads on to the run that closes what a run opened (rule 10).
// s.code is 0 as long as the opening run may grow.
func (s *Scanner) inlineCode(p []byte, i int) int {
	for i < len(p) {
		c := p[i]
		s.examined++
		if c == '`' {
			s.run++
			i++
			continue
		}
		if s.run > 0 {
			if s.code == 0 {
				s.code = s.run
			} else if s.run == s.code {
				s.unhide(s.at(i))
				s.toText()
				return i
			}
			s.run = 0
		}
		i++
		if c == '\n' && s.code < 3 {
			s.unhidden()
			s.toLine()
			return i
		}
		if s.code >= 3 {
			n := bytes.IndexByte(p[i:], '`')
			if n < 0 {
				n = len(p) - i
			}
			s.examined += int64(n)
			i += n
		}
	}
	return i
}

// quote reads on to the end of a quoted line (rule 9).
func (s *Scanner) quote(p []byte, i int) int {
	n := bytes.IndexByte(p[i:], '\n')
	if n < 0 {
		s.examined += int64(len(p) - i)
		return len(p)
	}
	s.examined += int64(n + 1)
	i += n + 1
	s.unhide(s.at(i))
	s.toLine()
	return i
}

// entity reads on in what may become &gt; and quote the line.
func (s *Scanner) entity(p []byte, i int) int {
	const gt = "&gt;"
	if p[i] != gt[s.matched] {
		s.unhidden()
		s.toText()
		return i
	}
	s.examined++
	if s.matched++; s.matched == len(gt) {
		s.mode = inQuote
	}
	return i + 1
}
