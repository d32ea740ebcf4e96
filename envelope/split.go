package envelope

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MinSize is the smallest size of a chunk; a smaller one counts as this. Below it the walls
// of a fence and the line about what is left out would leave too little room.
const MinSize = 400

// Limit is what a platform takes in one message.
type Limit struct {
	Unit  string // what Size counts: bytes, runes or utf16 (code units); empty is bytes
	Size  int    // of a chunk at most; 0 is no limit
	Parts int    // chunks at most; 0 is no limit
	// Whole says where all of a text can be read that has more than Parts chunks, as in
	// "box calls show c-…".
	Whole string
}

// Split cuts text into chunks of at most l.Size units, in order. It cuts at the end of a
// line where one stands in the second half of the chunk, else at a space, else between two
// characters as a reader sees them: not before a combining mark, inside an emoji sequence
// or inside a run of backticks, if that can be avoided, and never inside a rune. A fence
// that is open at a cut is closed there, and opened again with its info string in the next
// chunk, if its walls are no longer than an eighth of a chunk. Bytes that are not UTF-8 are
// replaced, and a chunk that would be space alone is left out: platforms refuse it.
//
// Of a text that needs more than l.Parts chunks the last one ends in a line that says how
// many bytes are left out and where all of it can be read.
func Split(text string, l Limit) []string {
	pieces, rest := split(strings.ToValidUTF8(text, "\ufffd"), l)
	chunks := make([]string, len(pieces))
	for i, p := range pieces {
		chunks[i] = p.open + p.text + p.close
	}
	if last := len(chunks) - 1; last > 0 {
		chunks = append(slices.DeleteFunc(chunks[:last:last], isSpace), chunks[last])
		if rest == 0 && len(chunks) > 1 && isSpace(chunks[len(chunks)-1]) {
			chunks = chunks[:len(chunks)-1]
		}
	}
	if rest > 0 {
		last := &chunks[len(chunks)-1]
		if !strings.HasSuffix(*last, "\n") {
			*last += "\n"
		}
		*last += l.note(rest)
	}
	return chunks
}

func isSpace(s string) bool { return strings.TrimSpace(s) == "" }

// note is the line about the rest that is left out.
func (l *Limit) note(rest int) string {
	s := fmt.Sprintf("… %d bytes left out", rest)
	if l.Whole != "" {
		s += "; " + short(plain(l.Whole), maxName) + " has all of it"
	}
	return s + " …\n"
}

// size is the length of s in the unit of the limit.
func (l *Limit) size(s string) (n int) {
	switch l.Unit {
	case "runes":
		return utf8.RuneCountInString(s)
	case "utf16":
		for _, r := range s {
			n += units(r)
		}
		return n
	}
	return len(s)
}

func units(r rune) int {
	if r >= 0x10000 {
		return 2
	}
	return 1
}

// fit is the length in bytes of the longest beginning of s, in whole runes, that has at
// most room units.
func (l *Limit) fit(s string, room int) int {
	for i, r := range s {
		switch l.Unit {
		case "runes":
			room--
		case "utf16":
			room -= units(r)
		default:
			room -= utf8.RuneLen(r)
		}
		if room < 0 {
			return i
		}
	}
	return len(s)
}

// A piece is a chunk: a part of the text, and the lines that open and close its fence.
type piece struct{ open, text, close string }

// split cuts text, which is valid UTF-8. The texts of the pieces, one behind the other, are
// the text up to the last rest bytes.
func split(text string, l Limit) (pieces []piece, rest int) {
	if l.Size <= 0 || l.size(text) <= max(l.Size, MinSize) {
		return []piece{{text: text}}, 0
	}
	l.Size = max(l.Size, MinSize)
	var at cutPoint
	for {
		open := at.wall.line(&l)
		room := l.Size - l.size(open)
		if l.fit(text, room) == len(text) {
			return append(pieces, piece{open: open, text: text}), 0
		}
		last := len(pieces)+1 == l.Parts
		if last {
			room -= l.size(l.note(len(text))) + 1
		}
		at = at.next(text, room, &l)
		pieces = append(pieces, piece{open: open, text: text[:at.pos], close: at.closing(&l)})
		text = text[at.pos:]
		if last {
			return pieces, len(text)
		}
	}
}

// A cutPoint is a place at which a text may be cut: how far behind the last one, the fence
// that is open there, and whether it stands in the middle of a line.
type cutPoint struct {
	pos    int
	wall   wall
	inLine bool
}

// closing is what closes the fence that is open at the point.
func (c *cutPoint) closing(l *Limit) string {
	if c.wall.line(l) == "" {
		return ""
	}
	s := strings.Repeat(c.wall.char, c.wall.run) + "\n"
	if c.inLine {
		s = "\n" + s
	}
	return s
}

// next finds the best point up to room units behind c, in text, which begins there.
func (c *cutPoint) next(text string, room int, l *Limit) cutPoint {
	// At line ends first.
	most := l.fit(text, room)
	here := cutPoint{wall: c.wall, inLine: c.inLine}
	var best cutPoint
	for here.pos < most {
		line, _, whole := strings.Cut(text[here.pos:most], "\n")
		if !whole {
			break
		}
		opened := false
		if !here.inLine {
			opened = here.wall.step(line)
		}
		here.pos, here.inLine = here.pos+len(line)+1, false
		if opened {
			continue // an empty block would stand at the end of the chunk
		}
		if l.size(text[:here.pos])+l.size(here.closing(l)) <= room {
			best = here
		}
	}
	if best.pos >= most/2 && best.pos > 0 {
		return best
	}
	// Then in the middle of a line. One that begins in this chunk may be a wall there.
	if !here.inLine {
		here.wall.step(text[here.pos:most])
	}
	here.inLine = true
	room -= l.size(here.closing(l))
	most = max(l.fit(text, room), 1)
	for !utf8.RuneStart(text[most]) {
		most++
	}
	here.pos = most
	if i := strings.LastIndexAny(text[most*3/4:most], " \t"); i >= 0 && apart(text, most*3/4+i+1) {
		here.pos = most*3/4 + i + 1
	} else {
		here.pos = boundary(text, most)
	}
	return here
}

// boundary is the last place up to n at which a cut parts nothing that belongs together,
// or n if there is none nearby.
func boundary(text string, n int) int {
	const nearby = 128
	for i := n; i > 0 && i > n-nearby && i > n/2; i-- {
		if utf8.RuneStart(text[i]) && apart(text, i) {
			return i
		}
	}
	return n
}

// apart reports whether the runes before and behind i, at the beginning of a rune inside s,
// may stand in different messages.
func apart(s string, i int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:i])
	behind, _ := utf8.DecodeRuneInString(s[i:])
	if next := strings.TrimLeft(s[i:min(len(s), i+16)], " \t"); next != "" && (next[0] == '`' || next[0] == '~') {
		return false // at the beginning of a chunk it could be a wall
	}
	switch {
	case before == '\r' && behind == '\n':
		return false
	case extends(behind) || before == joiner:
		return false
	case regional(before) && regional(behind):
		n := 0
		for k := i; regional(before); n++ {
			k -= utf8.RuneLen(before)
			before, _ = utf8.DecodeLastRuneInString(s[:k])
		}
		return n%2 == 0
	case unicode.Is(unicode.Hangul, before) && unicode.Is(unicode.Hangul, behind):
		return !jamo(behind)
	}
	return true
}

const joiner = '\u200d'

// extends reports whether r belongs to the character before it.
func extends(r rune) bool {
	return r == joiner || unicode.Is(unicode.M, r) || unicode.Is(unicode.Variation_Selector, r) ||
		r >= 0x1f3fb && r <= 0x1f3ff || r >= 0xe0020 && r <= 0xe007f
}

func regional(r rune) bool { return r >= 0x1f1e6 && r <= 0x1f1ff }

// jamo reports whether r may be a vowel or a final of the syllable before it.
func jamo(r rune) bool { return r >= 0x1160 && r <= 0x11ff || r >= 0xd7b0 && r <= 0xd7ff }

// A wall is the opening line of the fence that is open, zero when none is.
type wall struct {
	char string // ` or ~
	run  int
	info string
}

// maxInfo bounds the info string that is repeated, in bytes.
const maxInfo = 64

// line is the line that opens the fence again. There is none where the walls would take
// more than half of a chunk.
func (w *wall) line(l *Limit) string {
	if w.run == 0 || w.run > l.Size/8 {
		return ""
	}
	info := w.info
	if len(info) > maxInfo {
		info = ""
	}
	return strings.Repeat(w.char, w.run) + info + "\n"
}

// step takes a line of the text, which may open or close a fence, and reports whether it
// opened one.
func (w *wall) step(line string) (opened bool) {
	line = strings.TrimRight(strings.TrimLeft(line, " \t"), " \t\r\n")
	if line == "" || line[0] != '`' && line[0] != '~' {
		return false
	}
	char := line[:1]
	info := strings.TrimLeft(line, char)
	run := len(line) - len(info)
	switch {
	case run < 3:
		return false
	case w.run == 0 && (char == "~" || !strings.Contains(info, "`")):
		*w = wall{char, run, info}
		return true
	case w.run > 0 && char == w.char && run >= w.run && info == "":
		*w = wall{}
	}
	return false
}
