package envelope

import (
	"fmt"
	"html"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Neutral returns text with nothing in it that could be taken for an order, name people so
// that they are called, or hide what follows it:
//
//   - a directive opener, a comment or a think tag begins with another rune: ⟦TOOL, ‹!--,
//     ‹think>, and so does an image tag: ‹img;
//   - a curl command, and the label of a directive fence, get a visible dot: curl · -d,
//     ```·tool;
//   - a mention of everybody (@everyone, @here, @room, @channel, @all), a mention in angle
//     brackets (<@U1>, <!here>) and an image (![x](…)) are broken by a zero-width space, so
//     that they read the same;
//   - control and bidirectional characters, and bytes that are not UTF-8, are written as
//     escapes. Line breaks and tabs stay; CR LF is a line break.
//
// It holds also for what a bridge may make of the text: all this is found behind character
// references, compatibility forms (［ for [) and zero-width characters too, and in every
// part of the text, wherever it is cut.
func Neutral(text string) string { return neutral(text, inFence) }

// Words are text of somebody for a post of its own, outside of any fence, several lines if
// need be: neutral, and without an @NAME that calls somebody or an address that a platform
// would open. They end in a line break, and no fence is left open.
func Words(text string) string {
	text = neutral(text, inProse)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	var w wall
	for line := range strings.Lines(text) {
		w.step(line)
	}
	if w.run > 0 {
		text += strings.Repeat(w.char, w.run) + "\n"
	}
	return text
}

// plain is text that came from elsewhere, fit to stand in a line of ours: in one line, with
// no markup, no @NAME that calls somebody and no address that a platform would open.
func plain(s string) string {
	return inline.Replace(neutral(s, inProse))
}

var inline = strings.NewReplacer("\n", " ", "\t", " ", "`", "'", "[", "(", "]", ")", "<", "‹")

// place is where a text is going to stand. A fence keeps platforms from reading @NAME and
// addresses; there both stay as they are, so that they can be copied.
type place uint8

const (
	inFence place = iota
	inProse
)

func neutral(text string, p place) string {
	text = escaped(strings.ReplaceAll(text, "\r\n", "\n"))
	if inert(text, p) {
		return text
	}
	for _, v := range readings(text) {
		text = v.read(text).defused(text, p)
	}
	return text
}

// inert reports whether nothing in text needs a closer look, as is common.
func inert(text string, p place) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf || strings.IndexByte("[<`~@!&", text[i]) >= 0 {
			return false
		}
	}
	return p == inFence && !strings.Contains(text, "curl")
}

// escaped is text with what does not show, or reorders what does, written as escapes.
func escaped(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for i, r := range text {
		switch {
		case r >= ' ' && r < 0x7f || r == '\n' || r == '\t':
			b.WriteByte(byte(r))
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd"):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// A reading is what a bridge does to a text before and after it decodes character
// references, once: both at last normalise and drop what has no width.
type reading struct{ normalised, dropped bool }

// readings are those that may differ for text.
func readings(text string) []reading {
	if !strings.ContainsAny(text, "&＆﹠") {
		return []reading{{true, true}}
	}
	return []reading{{true, true}, {true, false}, {false, true}, {false, false}}
}

// A sign is a rune as somebody reads it who was told to, and where it stands in the text.
type sign struct {
	r          rune
	start, end int
}

// signs are a text as it is read.
type signs []sign

// read reads text, which is UTF-8.
func (v reading) read(text string) signs {
	s := make(signs, 0, len(text))
	for i, r := range text {
		s = v.fold(s, sign{r, i, i + utf8.RuneLen(r)})
	}
	decoded := s.decoded()
	if v == (reading{true, true}) && len(decoded) == len(s) {
		return decoded
	}
	all := reading{true, true}
	s = make(signs, 0, len(decoded))
	for _, at := range decoded {
		s = all.fold(s, at)
	}
	return s
}

// fold appends what becomes of at.
func (v reading) fold(s signs, at sign) signs {
	switch {
	case at.r < utf8.RuneSelf:
		return append(s, at)
	case v.dropped && widthless(at.r):
		return s
	case !v.normalised:
		return append(s, at)
	}
	for _, r := range norm.NFKC.String(string(at.r)) {
		s = append(s, sign{r, at.start, at.end})
	}
	return s
}

// widthless reports whether r may be dropped as something that has no width.
func widthless(r rune) bool {
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// decoded returns s with its character references decoded, once.
func (s signs) decoded() signs {
	var out signs // nil as long as nothing was decoded
	for i := 0; i < len(s); i++ {
		var to string
		n := 0
		if s[i].r == '&' {
			to, n = s[i:].reference()
		}
		if n == 0 {
			if out != nil {
				out = append(out, s[i])
			}
			continue
		}
		if out == nil {
			out = append(make(signs, 0, len(s)), s[:i]...)
		}
		for _, r := range to {
			out = append(out, sign{r, s[i].start, s[i+n-1].end})
		}
		i += n - 1
	}
	if out == nil {
		return s
	}
	return out
}

// reference returns what the character reference at the beginning of s stands for, and how
// many signs it has, 0 when there is none.
func (s signs) reference() (to string, n int) {
	var token []byte
	for _, c := range s {
		if c.r >= utf8.RuneSelf {
			break
		}
		token = append(token, byte(c.r))
		if len(token) > 1 && c.r != '#' && !isAlnum(c.r) {
			break
		}
	}
	whole := string(token)
	to = html.UnescapeString(whole)
	if to == whole {
		return "", 0
	}
	// What follows the reference without belonging to it stays.
	for n = len(whole); n > 1 && len(to) > 1 && to[len(to)-1] == whole[n-1]; n-- {
		to = to[:len(to)-1]
	}
	return to, n
}

func isAlnum(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// An edit puts text in place of a range of the original.
type edit struct {
	start, end int
	text       string
}

// defused returns text, of which s is a reading, with what is live in it broken.
func (s signs) defused(text string, p place) string {
	var edits []edit
	replace := func(i int, by string) { edits = append(edits, edit{s[i].start, s[i].end, by}) }
	behind := func(i int, mark string) { edits = append(edits, edit{s[i].end, s[i].end, mark}) }
	// part puts a zero-width space between the signs i and i+1, if nothing is there yet.
	part := func(i int) {
		if i+1 == len(s) || s[i+1].start == s[i].end {
			behind(i, noWidth)
		}
	}
	for i := 0; i < len(s); i++ {
		rest := s[i+1:]
		switch s[i].r {
		case '[':
			if rest.begins("TOOL") || rest.begins("EXEC") || rest.begins("DM") || rest.begins("RESULT") {
				replace(i, "⟦")
			}
		case '<':
			switch {
			case rest.begins("!--") || rest.isThink() || rest.beginsFold("img"):
				replace(i, "‹")
			case rest.isMention():
				part(i)
			}
		case 'c':
			if rest.begins("url") && rest[3:].isArgument() {
				behind(i+3, " ·")
			}
		case '`', '~':
			n := 1
			for i+n < len(s) && s[i+n].r == s[i].r {
				n++
			}
			if n >= 3 && s[i+n:].isLabel() {
				behind(i+n-1, "·")
			}
			i += n - 1
		case '!':
			if rest.begins("[") && rest.isImage() {
				part(i)
			}
		case '@':
			if rest.isEverybody() || p == inProse && rest.isName() && (i == 0 || !isWord(s[i-1].r)) {
				part(i)
			}
		case ':':
			if p == inProse && rest.begins("//") {
				part(i)
			}
		case 'w', 'W':
			if p == inProse && rest.beginsFold("ww.") {
				part(i + 2)
			}
		}
	}
	return apply(text, edits)
}

// noWidth is the zero-width space that breaks what must read the same.
const noWidth = "\u200b"

// apply makes edits, which are in order and do not overlap but where one sign stands for
// several.
func apply(text string, edits []edit) string {
	if len(edits) == 0 {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 4*len(edits))
	done := 0
	for _, e := range edits {
		if e.start < done {
			continue
		}
		b.WriteString(text[done:e.start])
		b.WriteString(e.text)
		done = e.end
	}
	b.WriteString(text[done:])
	return b.String()
}

func (s signs) begins(word string) bool {
	if len(s) < len(word) {
		return false
	}
	for i := range len(word) {
		if s[i].r != rune(word[i]) {
			return false
		}
	}
	return true
}

// beginsFold is begins for a word in lower case, in any case.
func (s signs) beginsFold(word string) bool {
	if len(s) < len(word) {
		return false
	}
	for i := range len(word) {
		r := s[i].r
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		if r != rune(word[i]) {
			return false
		}
	}
	return true
}

// isThink reports whether s, what follows a <, opens or closes a think tag.
func (s signs) isThink() bool {
	if s.begins("/") {
		s = s[1:]
	}
	return s.beginsFold("think") || s.beginsFold("reasoning")
}

// isArgument reports whether s, what follows curl, may go on as a command that is read
// (rule 19 of the grammar).
func (s signs) isArgument() bool {
	n := 0
	for n < len(s) && (s[n].r == ' ' || s[n].r == '\t' || s[n].r == '\r') {
		n++
	}
	return n > 0 && n < len(s) && strings.ContainsRune(`-h'"$\`, s[n].r)
}

// isLabel reports whether s, what follows the run of a fence, begins with the label of a
// directive fence (rule 15).
func (s signs) isLabel() bool {
	for len(s) > 0 && (s[0].r == ' ' || s[0].r == '\t' || s[0].r == '\r') {
		s = s[1:]
	}
	for _, label := range []string{"tool", "exec", "box"} {
		if s.beginsFold(label) {
			return true
		}
	}
	return false
}

// maxImage bounds how far the end of an image's text is looked for.
const maxImage = 512

// isImage reports whether s, what follows a !, is a text in brackets that an address or a
// name follows.
func (s signs) isImage() bool {
	for i := range s[:min(len(s)-1, maxImage)] {
		switch {
		case s[i].r == '\n':
			return false
		case s[i].r == ']' && (s[i+1].r == '(' || s[i+1].r == '['):
			return true
		}
	}
	return false
}

// isEverybody reports whether s, what follows an @, names all who are there.
func (s signs) isEverybody() bool {
	for _, name := range []string{"everyone", "here", "room", "channel", "all"} {
		if s.beginsFold(name) && (len(s) == len(name) || !isWord(s[len(name)].r)) {
			return true
		}
	}
	return false
}

// isMention reports whether s, what follows a <, goes on as the mention of somebody, of a
// group or of a room.
func (s signs) isMention() bool {
	for _, name := range []string{"!here", "!channel", "!everyone", "!group", "!subteam", "at>", "at "} {
		if s.beginsFold(name) {
			return true
		}
	}
	if len(s) < 2 {
		return false
	}
	r := s[1].r
	switch s[0].r {
	case '@':
		return isAlnum(r) || r == '!' || r == '&'
	case '#':
		return r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	}
	return false
}

// isName reports whether s, what follows an @, may name somebody.
func (s signs) isName() bool {
	return len(s) > 0 && (isWord(s[0].r) || s[0].r == '*' || s[0].r == '!' || s[0].r == '&')
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// A fenced is a text between walls that it cannot close.
type fenced struct {
	open, text, wall string
	added            int // bytes that were added to the end of text
}

// block puts text into a fence with the given label.
func block(text, label string) fenced {
	text = Neutral(text)
	run := 0
	if !inert(text, inFence) {
		for _, v := range readings(text) {
			text = v.read(text).shorten(text)
		}
		for _, v := range readings(text) {
			run = max(run, v.read(text).longestRun())
		}
	}
	added := 0
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
		added = 1
	}
	wall := strings.Repeat("`", max(3, run+1))
	return fenced{wall + label + "\n", text, wall + "\n", added}
}

// maxRun bounds the runs of backticks that are shown as they are: a wall is one longer
// than the longest.
const maxRun = 24

// shorten puts a mark into runs of backticks that are longer than maxRun.
func (s signs) shorten(text string) string {
	var edits []edit
	run := 0
	for _, at := range s {
		switch {
		case at.r != '`':
			run = 0
		case run == maxRun:
			edits = append(edits, edit{at.start, at.start, "·"})
			run = 1
		default:
			run++
		}
	}
	return apply(text, edits)
}

func (s signs) longestRun() (longest int) {
	run := 0
	for _, at := range s {
		if at.r != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

// frame is what stands around the text, in bytes.
func (f *fenced) frame() int { return len(f.open) + f.added + len(f.wall) }

func (f *fenced) String() string { return f.open + f.text + f.wall }
