package harvester

// A prefix reads what may stand before the first word of a line: indent and
// list markers, which count as indent (rule 12).
type prefix struct {
	part   uint8
	digits uint8 // of a list number
	listed bool  // behind a list marker
	col    int
}

const (
	afterSpace  uint8 = iota // what comes next may be a word
	afterBullet              // a list marker that wants its space
	inNumber
	noPrefix
)

// step takes the next byte of the line, and reports whether it still belongs
// to the prefix. If not, part is afterSpace where a word begins.
func (x *prefix) step(c byte) bool {
	switch {
	case c == '\r' && x.part == afterBullet:
		// It is space, but no indent.
		x.part, x.listed = afterSpace, true
		x.col++
		return true
	case c == ' ' || c == '\t':
		if x.part == inNumber {
			break
		}
		if x.part == afterBullet {
			x.part, x.listed = afterSpace, true
		}
		x.col++
		if c == '\t' {
			x.col = (x.col + 3) &^ 3
		}
		return true
	case x.part == afterSpace && (c == '-' || c == '*' || c == '+'):
		x.part = afterBullet
		x.col++
		return true
	case x.part == afterSpace && isDigit(c):
		x.part, x.digits = inNumber, 1
		x.col++
		return true
	case x.part == inNumber && isDigit(c) && x.digits < 9:
		x.digits++
		x.col++
		return true
	case x.part == inNumber && (c == '.' || c == ')'):
		x.part = afterBullet
		x.col++
		return true
	}
	if x.part != afterSpace {
		x.part = noPrefix
	}
	return false
}

// word reports whether the byte that ended the prefix begins a word.
func (x *prefix) word() bool { return x.part == afterSpace }

// lookBack is step for a whole line, from its end: b ends where the line has
// come to. It reports whether the last line of b is all prefix, and how many
// bytes it read to know. Only a line that begins in b counts.
func (x *prefix) lookBack(b []byte) (n int, ok bool) {
	*x = prefix{}
	k := len(b)
	col, since, tabs := 0, 0, false // columns right of a tab; bytes since it
	// A list marker that still wants its space, or a number its delimiter.
	switch c := b[k-1]; {
	case c == '-' || c == '*' || c == '+':
		x.part = afterBullet
		k--
	case c == '.' || c == ')' || isDigit(c):
		x.part = inNumber
		if !isDigit(c) {
			x.part = afterBullet
			k--
		}
		for k > 0 && isDigit(b[k-1]) && x.digits < 10 {
			x.digits++
			k--
		}
		if x.digits == 0 || x.digits > 9 {
			return len(b) - k, false
		}
	}
	since = len(b) - k
	for {
		spaces := 0
		for k > 0 && (b[k-1] == ' ' || b[k-1] == '\t') {
			k--
			spaces++
			if b[k] == '\t' {
				if tabs {
					since = since&^3 + 4
				}
				col += since
				since, tabs = 0, true
			} else {
				since++
			}
		}
		// A carriage return is space behind a list marker.
		cr := k > 1 && b[k-1] == '\r' && b[k-2] != '\n' && b[k-2] != ' ' && b[k-2] != '\t'
		if cr {
			k--
			spaces++
			since++
		}
		if k == 0 {
			return len(b), false
		}
		if b[k-1] == '\n' {
			if tabs {
				since = since&^3 + 4
			}
			x.col = col + since
			return len(b) - k + 1, true
		}
		if spaces == 0 {
			return len(b) - k + 1, false
		}
		k--
		since++
		switch c := b[k]; {
		case c == '-' || c == '*' || c == '+':
		case c == '.' || c == ')':
			digits := 0
			for k > 0 && isDigit(b[k-1]) && digits < 10 {
				digits++
				k--
			}
			since += digits
			if digits == 0 || digits > 9 {
				return len(b) - k + 1, false
			}
		default:
			return len(b) - k, false
		}
		x.listed = true
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// mayPrefix marks the bytes that a prefix is made of, and the line feed.
var mayPrefix = func() (t [256]bool) {
	for _, c := range []byte(" \t\r-*+.)0123456789\n") {
		t[c] = true
	}
	return t
}()

// A fenceLine reads one line for what it would mean to fences: that it opens
// one, or closes one.
type fenceLine struct {
	start  int64 // offset in the reply of the line
	dead   bool  // it means nothing
	prefix prefix
	char   byte // ` or ~ once the run began
	run    int  // its length
	info   info
}

func (l *fenceLine) reset(start int64) { *l = fenceLine{start: start} }

// step takes the next byte of the line. It reports false when the line means
// nothing to fences, with that byte.
func (l *fenceLine) step(c byte) bool {
	switch {
	case l.char == 0:
		if l.prefix.step(c) {
			return true
		}
		if (c == '`' || c == '~') && l.prefix.word() {
			l.char, l.run = c, 1
			return true
		}
		return false
	case l.info.part == beforeLabel && c == l.char && !l.info.begun:
		l.run++
		return true
	case l.run < 3 || c == '`' && l.char == '`':
		return false
	}
	l.info.step(c)
	return true
}

// opens reports whether the line, which is over, opens a fence.
func (l *fenceLine) opens() bool { return !l.dead && l.run >= 3 }

// closes reports whether the line, which is over, closes the fence that f
// opened.
func (l *fenceLine) closes(f level) bool {
	return !l.dead && l.char == f.char && l.run >= f.run && !l.prefix.listed &&
		l.prefix.col <= f.col+3 && l.info.part == beforeLabel
}

// An info reads the info string of a fence (rule 15).
type info struct {
	part  uint8
	begun bool // something, space perhaps, stands behind the run
	n     uint8
	label [8]byte // in lower case; no label is longer
	k     uint8
	key   [maxKey]byte
}

const (
	beforeLabel uint8 = iota
	inLabel
	afterLabel
	inKey
	afterKey
	tooMuch // what makes it a quotation
)

func (f *info) step(c byte) {
	f.begun = true
	space := isSpace(c)
	switch f.part {
	case beforeLabel, inLabel:
		if space {
			if f.part == inLabel {
				f.part = afterLabel
			}
			return
		}
		f.part = inLabel
		if int(f.n) == len(f.label) {
			f.part = tooMuch
			return
		}
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		f.label[f.n] = c
		f.n++
	case afterLabel:
		if c == '#' {
			f.part = inKey
		} else if !space {
			f.part = tooMuch
		}
	case inKey:
		switch {
		case isKey[c] && f.k < maxKey:
			f.key[f.k] = c
			f.k++
		case space && f.k >= minKey:
			f.part = afterKey
		default:
			f.part = tooMuch
		}
	case afterKey:
		if !space {
			f.part = tooMuch
		}
	}
}

// directive returns the form and key of the directive fence that the info
// string opens, if it does.
func (f *info) directive() (form Form, key string, ok bool) {
	if f.part == tooMuch || f.part == inKey && f.k < minKey {
		return "", "", false
	}
	switch form = Form(f.label[:f.n]); form {
	case Tool, Exec, Box:
		return form, string(f.key[:f.k]), true
	}
	return "", "", false
}

// shell reports whether the info string is the label of a shell.
func (f *info) shell() bool {
	if f.part != inLabel && f.part != afterLabel {
		return false
	}
	switch string(f.label[:f.n]) {
	case "sh", "bash", "shell", "zsh", "console":
		return true
	}
	return false
}

var isKey = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789-") {
		t[c] = true
	}
	return t
}()
