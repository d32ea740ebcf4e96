package threads

import (
	"html"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Two texts that look alike to whoever reads them must become one text before they are
// compared (rule R5): strip takes out what is not seen, fold also what is only written
// otherwise, and unescape undoes one level of quoting.

// maxMarks bounds the combining marks that stay behind one character. The library cuts
// longer runs by a character of its own, which would make fold say something else the
// second time.
const maxMarks = 16

// strip returns s without what is not seen: format and control characters, fillers and
// variation selectors. Line breaks and tabs stay, and of a run of combining marks the
// first maxMarks.
func strip(s string) string {
	i := 0
	for i < len(s) && (s[i] >= ' ' && s[i] < 0x7f || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	if i == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:i])
	marks := 0
	for _, r := range s[i:] {
		switch {
		case r < ' ' && r != '\n' && r != '\t' && r != '\r', r == 0x7f:
			continue
		case r < 0x80:
			marks = 0
		case unseen(r):
			continue
		case unicode.Is(unicode.M, r):
			if marks++; marks > maxMarks {
				continue
			}
		default:
			marks = 0
		}
		b.WriteRune(r)
	}
	return b.String()
}

// unseen reports whether r is one of the characters that leave no trace on a screen
// (Unicode's Default_Ignorable_Code_Point, and control characters).
func unseen(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Cc, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// straight makes " and ' of the quotation marks that a word processor makes of them, and
// undoes what package envelope puts into words that it makes harmless: ⟦ and ‹, and the dot
// between a command or a fence and what follows it. Whoever copies an order from an
// envelope or a result copies those.
func straight(r rune) rune {
	switch r {
	case '⟦':
		return '['
	case '‹':
		return '<'
	case '·':
		return -1
	case '“', '”', '„', '‟', '«', '»', '″':
		return '"'
	case '‘', '’', '‚', '‛', '′':
		return '\''
	}
	return r
}

// fold returns s in compatibility form (NFKC), without what is not seen, with straight
// quotation marks, and as it was before it was made harmless. It says the same of what it
// returned.
func fold(s string) string {
	s = strip(s)
	if ascii(s) {
		return s
	}
	// What one step makes may be something for another: decomposed fillers, marks that
	// have come together. Two rounds are all that any text is known to need.
	for range 4 {
		next := strings.Map(straight, strings.ReplaceAll(strip(norm.NFKC.String(s)), " ·", ""))
		if next == s {
			break
		}
		s = next
	}
	return s
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// unescape undoes one level of backslashes, as in a JSON string, a shell word or a
// paragraph of markdown. It is not particular about which.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		n := strings.IndexByte(s[i:], '\\')
		if n < 0 || i+n+1 == len(s) {
			b.WriteString(s[i:])
			break
		}
		if n > 0 && strings.HasPrefix(s[i+n-1:], `'\''`) { // a ' in a shell word of '…'
			b.WriteString(s[i : i+n-1])
			b.WriteByte('\'')
			i += n + 3
			continue
		}
		b.WriteString(s[i : i+n])
		i += n
		switch c := s[i+1]; {
		case c == 'n':
			b.WriteByte('\n')
		case c == 't':
			b.WriteByte('\t')
		case c == 'r':
			b.WriteByte('\r')
		case c == 'u':
			if r, size := unicodeEscape(s[i:]); size > 0 {
				b.WriteRune(r)
				i += size
				continue
			}
			b.WriteString(`\u`)
		case c == 'x':
			if r, ok := hexDigits(s[i+2:], 2); ok {
				b.WriteRune(r)
				i += 4
				continue
			}
			b.WriteString(`\x`)
		case c < utf8.RuneSelf && !unicode.IsLetter(rune(c)) && !unicode.IsDigit(rune(c)):
			b.WriteByte(c)
		default:
			b.WriteByte('\\')
			i++
			continue
		}
		i += 2
	}
	return b.String()
}

// unicodeEscape reads \uXXXX, or two of them that are one character, at the beginning
// of s; size is 0 if there is none.
func unicodeEscape(s string) (r rune, size int) {
	r, ok := hexDigits(s[2:], 4)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) {
		if strings.HasPrefix(s[6:], `\u`) {
			if low, ok := hexDigits(s[8:], 4); ok {
				if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
					return both, 12
				}
			}
		}
		return utf8.RuneError, 6
	}
	return r, 6
}

func hexDigits(s string, digits int) (r rune, ok bool) {
	if len(s) < digits {
		return 0, false
	}
	for _, c := range []byte(s[:digits]) {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// undoEntities returns s with its HTML entities undone once.
func undoEntities(s string) string {
	if strings.IndexByte(s, '&') < 0 {
		return s
	}
	return html.UnescapeString(s)
}
