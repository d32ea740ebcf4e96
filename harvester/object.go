package harvester

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const maxNesting = 128

// A verdict is how a look at an object ended.
type verdict uint8

const (
	unfinished verdict = iota // every byte fits so far
	atLine                    // as unfinished, and a line feed was just passed (stopAtLine)
	complete                  // the byte before pos closed the object
	broken                    // the byte at pos fits no object
)

// What the next byte may be.
const (
	wantOpen  uint8 = iota // the bracket that begins the object
	wantValue              // a value
	wantFirst              // a value or ]
	wantName               // a name
	wantNamed              // a name or }
	wantColon              // :
	wantComma              // , or the closing bracket
	inString               // from here on a string stands open
	inEscape               // behind a backslash
	inHex                  // in the four digits of \u
	wantLow                // behind a high surrogate: a backslash
	wantLowU               // and its u
	inRune                 // in a character of several bytes
	inLiteral              // in true, false or null
	inMinus                // from here on in a number
	inZero
	inDigits
	inDot
	inFraction
	inE
	inESign
	inExponent
)

// An object recognises one JSON object, or array of call objects, that is
// valid I-JSON (RFC 7493), one byte after the other. Its text is kept
// together by the caller, so that names and members are plain offsets.
type object struct {
	pos        int // offset of the next byte
	state      uint8
	stopAtLine bool

	depth  int
	braces [maxNesting + 1]bool // at each depth: { rather than [

	// The string being read.
	isName  bool
	opened  int // offset behind the opening quote
	copied  int // in a name with escapes: what is before stands in the arena
	inArena bool

	digits  uint8  // of \u, seen so far
	unit    uint16 // their value
	high    uint16 // a high surrogate that waits for its low one
	more    uint8  // continuation bytes still due
	lo, hi  byte   // bounds of the next one
	literal string // what remains of it

	names names
	calls calls
}

func (o *object) reset(callDepth int, stopAtLine bool) {
	o.pos, o.state, o.depth, o.stopAtLine = 0, wantOpen, 0, stopAtLine
	o.inArena = false
	o.names.reset()
	o.calls.reset(callDepth)
}

// inQuotes reports whether a string stands open at pos.
func (o *object) inQuotes() bool { return o.state >= inString && o.state <= inRune }

// behindBackslash reports whether the byte at pos stands behind a backslash
// that belongs to a string.
func (o *object) behindBackslash() bool { return o.state == inEscape || o.state == wantLowU }

// plain marks the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x80; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unplain has the top bit set in the lowest byte of x that is not plain.
// Higher bytes may be marked wrongly.
func unplain(x uint64) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	q, b := x^ones*'"', x^ones*'\\'
	return (x | (x-ones*0x20)&^x | (q-ones)&^q | (b-ones)&^b) & tops
}

// scan reads on in b, which begins with the object.
func (o *object) scan(b []byte) verdict {
	i, state := o.pos, o.state
	result := unfinished
loop:
	for i < len(b) {
		c := b[i]
		switch state {
		case inString:
			if !plain[c] {
				switch {
				case c == '"':
					if o.isName {
						if !o.endName(b, i) {
							result = broken
							break loop
						}
						state = wantColon
						if i+1 < len(b) && b[i+1] == ':' {
							state = wantValue
							i++
						}
					} else {
						if o.depth == o.calls.depth {
							o.calls.end(i + 1)
						}
						state = wantComma
					}
					i++
				case c == '\\':
					if o.isName {
						o.intoArena(b, i)
					}
					state = inEscape
					i++
				case c >= 0x80:
					if !o.lead(c) {
						result = broken
						break loop
					}
					state = inRune
					i++
				default:
					result = broken
					break loop
				}
				continue
			}
			i++
			for i+8 <= len(b) {
				if m := unplain(binary.LittleEndian.Uint64(b[i:])); m != 0 {
					i += bits.TrailingZeros64(m) >> 3
					continue loop
				}
				i += 8
			}
			for i < len(b) && plain[b[i]] {
				i++
			}

		case wantComma:
			switch c {
			case ',':
				i++
				switch {
				case !o.braces[o.depth]:
					state = wantValue
				case i < len(b) && b[i] == '"':
					i++
					o.isName, o.opened, state = true, i, inString
				default:
					state = wantName
				}
				continue
			case '}', ']':
				if o.braces[o.depth] != (c == '}') {
					result = broken
					break loop
				}
				i++
				if o.close(i) {
					result = complete
					break loop
				}
				continue
			}
			goto space

		case wantName, wantNamed:
			if c == '"' {
				i++
				o.isName, o.opened, state = true, i, inString
				continue
			}
			if c == '}' && state == wantNamed {
				i++
				if o.close(i) {
					result = complete
					break loop
				}
				state = wantComma
				continue
			}
			goto space

		case wantColon:
			if c == ':' {
				state = wantValue
				i++
				continue
			}
			goto space

		case wantValue, wantFirst:
			if c == '"' {
				if o.depth == o.calls.depth {
					o.calls.begin(i)
				} else if o.depth < o.calls.depth {
					o.calls.foreign = true
				}
				o.isName = false
				state = inString
				i++
				continue
			}
			if next := valueStart[c]; next != 0 {
				if o.depth <= o.calls.depth {
					o.calls.foreign = true
				}
				switch c {
				case 't':
					o.literal = "rue"
				case 'f':
					o.literal = "alse"
				case 'n':
					o.literal = "ull"
				}
				state = next
				i++
				continue
			}
			switch c {
			case '{', '[':
				if o.depth == maxNesting {
					result = broken
					break loop
				}
				state = o.open(c, i)
				i++
				continue
			case ']':
				if state == wantFirst {
					i++
					if o.close(i) {
						result = complete
						break loop
					}
					state = wantComma
					continue
				}
			}
			goto space

		case wantOpen:
			state = o.open(c, i)
			i++

		case inDigits, inZero, inFraction, inExponent, inMinus, inDot, inE, inESign:
			if c >= '0' && c <= '9' {
				if state == inZero {
					result = broken // no digit follows a leading 0
					break loop
				}
				if state = digitNext[state]; state == inDigits && c == '0' && b[i-1] == '-' {
					state = inZero
				}
				i++
				continue
			}
			switch {
			case c == '.' && (state == inDigits || state == inZero):
				state = inDot
			case c|0x20 == 'e' && (state == inDigits || state == inZero || state == inFraction):
				state = inE
			case (c == '+' || c == '-') && state == inE:
				state = inESign
			case state == inMinus || state == inDot || state == inE || state == inESign:
				result = broken
				break loop
			default:
				state = wantComma
				continue
			}
			i++

		case inLiteral:
			if c != o.literal[0] {
				result = broken
				break loop
			}
			i++
			if o.literal = o.literal[1:]; o.literal == "" {
				state = wantComma
			}

		case inEscape:
			e := escapes[c]
			switch {
			case e != 0:
				if o.isName {
					o.names.arena = append(o.names.arena, e)
					o.copied = i + 1
				}
				state = inString
			case c == 'u':
				o.digits, o.unit, o.high = 0, 0, 0
				state = inHex
			default:
				result = broken
				break loop
			}
			i++

		case inHex:
			next, ok := o.hex(c, i)
			if !ok {
				result = broken
				break loop
			}
			state = next
			i++

		case wantLow:
			if c != '\\' {
				result = broken
				break loop
			}
			state = wantLowU
			i++

		case wantLowU:
			if c != 'u' {
				result = broken
				break loop
			}
			o.digits, o.unit = 0, 0
			state = inHex
			i++

		case inRune:
			if !o.continues(c) {
				result = broken
				break loop
			}
			if o.more == 0 {
				state = inString
			}
			i++
		}
		continue

	space:
		switch c {
		case '\n':
			i++
			if o.stopAtLine {
				result = atLine
				break loop
			}
			// Pretty-printed text indents what follows.
			for i < len(b) && b[i] == ' ' {
				i++
			}
		case ' ', '\t', '\r':
			i++
		default:
			result = broken
			break loop
		}
	}
	o.pos, o.state = i, state
	return result
}

var valueStart = func() (t [256]uint8) {
	for c := '1'; c <= '9'; c++ {
		t[c] = inDigits
	}
	t['-'], t['0'] = inMinus, inZero
	t['t'], t['f'], t['n'] = inLiteral, inLiteral, inLiteral
	return t
}()

// digitNext is the state behind one more digit.
var digitNext = [...]uint8{
	inMinus: inDigits, inDigits: inDigits, inDot: inFraction, inFraction: inFraction,
	inE: inExponent, inESign: inExponent, inExponent: inExponent,
}

func (o *object) open(c byte, i int) uint8 {
	if o.depth <= o.calls.depth {
		o.calls.open(o.depth, c, i)
	}
	o.depth++
	if o.braces[o.depth] = c == '{'; o.braces[o.depth] {
		o.names.open(o.depth)
		return wantNamed
	}
	return wantFirst
}

// close leaves the innermost bracket, which ended before i.
func (o *object) close(i int) (done bool) {
	if o.braces[o.depth] {
		o.names.close(o.depth)
	}
	o.depth--
	if o.depth <= o.calls.depth {
		o.calls.close(o.depth, i)
	}
	return o.depth == 0
}

// lead takes the first byte of a character of several bytes (RFC 3629: no
// overlong forms, no surrogates, nothing above U+10FFFF).
func (o *object) lead(c byte) bool {
	o.lo, o.hi = 0x80, 0xbf
	switch {
	case c < 0xc2 || c > 0xf4:
		return false
	case c < 0xe0:
		o.more = 1
	case c < 0xf0:
		o.more = 2
		if c == 0xe0 {
			o.lo = 0xa0
		} else if c == 0xed {
			o.hi = 0x9f
		}
	default:
		o.more = 3
		if c == 0xf0 {
			o.lo = 0x90
		} else if c == 0xf4 {
			o.hi = 0x8f
		}
	}
	return true
}

// continues takes one more byte of a character.
func (o *object) continues(c byte) bool {
	if c < o.lo || c > o.hi {
		return false
	}
	o.lo, o.hi = 0x80, 0xbf
	o.more--
	return true
}

// hex takes one digit of \uXXXX. A digit that would make a lone surrogate is
// refused at once.
func (o *object) hex(c byte, i int) (next uint8, ok bool) {
	var v uint16
	switch {
	case c >= '0' && c <= '9':
		v = uint16(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		v = uint16(c|0x20-'a') + 10
	default:
		return 0, false
	}
	o.unit = o.unit<<4 | v
	o.digits++
	if o.digits == 1 && o.high != 0 && o.unit != 0xd {
		return 0, false
	}
	if o.digits == 2 && (o.unit >= 0xdc && o.unit <= 0xdf) != (o.high != 0) {
		return 0, false
	}
	if o.digits < 4 {
		return inHex, true
	}
	if o.unit >= 0xd800 && o.unit < 0xdc00 {
		o.high = o.unit
		return wantLow, true
	}
	if o.isName {
		r := rune(o.unit)
		if o.high != 0 {
			r = utf16.DecodeRune(rune(o.high), r)
		}
		o.names.arena = utf8.AppendRune(o.names.arena, r)
		o.copied = i + 1
	}
	return inString, true
}

// intoArena begins or continues the unescaped copy of a name at the backslash
// at i.
func (o *object) intoArena(b []byte, i int) {
	if !o.inArena {
		o.inArena = true
		o.names.mark = len(o.names.arena)
		o.copied = o.opened
	}
	o.names.arena = append(o.names.arena, b[o.copied:i]...)
	o.copied = i
}

// endName takes the name whose closing quote stands at i, and reports whether
// it is new in its object.
func (o *object) endName(b []byte, i int) bool {
	text, at := b[o.opened:i], o.opened
	if o.inArena {
		o.inArena = false
		o.names.arena = append(o.names.arena, b[o.copied:i]...)
		text = o.names.arena[o.names.mark:]
		at = ^o.names.mark
	}
	if !o.names.add(b, text, at, o.depth) {
		return false
	}
	if o.depth == o.calls.depth {
		o.calls.name(text)
	}
	return true
}
