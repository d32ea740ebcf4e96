package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// clean makes s safe to print in a line: control characters, bidirectional and other
// invisible format characters, line separators and invalid UTF-8 are written as
// escapes, so that text from elsewhere can neither repaint a terminal nor reorder
// what stands around it.
func clean(s string) string { return escape(s, false) }

// cleanText is clean for text of several lines: line breaks stay, and a tab becomes
// the spaces up to the next multiple of eight columns.
func cleanText(s string) string { return escape(s, true) }

func escape(s string, lines bool) string {
	if !needsEscape(s) {
		return s
	}
	var b strings.Builder
	column := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		written := b.Len()
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case lines && r == '\n':
			b.WriteByte('\n')
			column, written = 0, b.Len()
		case lines && r == '\r' && strings.HasPrefix(s[i+1:], "\n"):
		case lines && r == '\t':
			b.WriteString(strings.Repeat(" ", 8-column%8))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case hidden(r) && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case hidden(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
		column += utf8.RuneCountInString(b.String()[written:])
		i += size
	}
	return b.String()
}

func needsEscape(s string) bool {
	if !utf8.ValidString(s) {
		return true
	}
	return strings.IndexFunc(s, hidden) >= 0
}

// hidden reports whether r acts on the text around it instead of being seen.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// cleanJSON escapes in a JSON document what clean would escape. The document's value
// stays the same: such characters stand only inside strings.
func cleanJSON(doc []byte) []byte {
	if bytes.IndexFunc(doc, func(r rune) bool { return hidden(r) && r != '\n' && r != '\r' && r != '\t' }) < 0 {
		return doc
	}
	out := make([]byte, 0, len(doc)+64)
	for len(doc) > 0 {
		r, size := utf8.DecodeRune(doc)
		switch {
		case r < 0x20 || !hidden(r): // below 0x20 only white space between tokens
			out = append(out, doc[:size]...)
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
		doc = doc[size:]
	}
	return out
}

// document prints v as one JSON document: indented with --json, on one line with
// --jsonl.
func (a *app) document(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print document: %w", err)
	}
	if !a.jsonl {
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("print document: %w", err)
		}
		raw = b.Bytes()
	}
	return a.write(append(cleanJSON(raw), '\n'))
}

// printf prints data for people. What it is given must be clean.
func (a *app) printf(format string, args ...any) error {
	return a.write(fmt.Appendf(nil, format, args...))
}

// sheet prints one thing for people, a line for each part of it that there is. What it is
// given need not be clean. Nothing is printed behind err.
type sheet struct {
	app *app
	err error
}

func (s *sheet) line(name, value string) {
	if value != "" && s.err == nil {
		s.err = s.app.printf("%-12s%s\n", name, clean(value))
	}
}

// text prints a value of several lines.
func (s *sheet) text(name, value string) {
	if value != "" && s.err == nil {
		s.err = s.app.printf("%s\n%s", name, indent(cleanText(value)))
	}
}

func (a *app) write(b []byte) error {
	if _, err := a.out.Write(b); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// table collects rows and prints them aligned, two spaces between columns, without
// tabs.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

// row adds one row. Cells are cleaned here; an empty one is printed as "-".
func (t *table) row(cells ...string) {
	for i, c := range cells {
		if c = clean(c); c == "" {
			c = "-"
		}
		cells[i] = c
	}
	t.rows = append(t.rows, cells)
}

// print writes t. On a terminal the head is bold and the last column is cut to the
// terminal's width.
func (a *app) print(t *table) error {
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	columns, tty := terminal(a.out)
	last := len(t.head) - 1
	if tty {
		taken := 0
		for _, w := range width[:last] {
			taken += w + 2
		}
		if room := columns - taken; room >= 16 {
			width[last] = min(width[last], room)
		}
	}
	var b bytes.Buffer
	line := func(row []string) {
		for i, c := range row {
			if i == last {
				b.WriteString(shorten(c, width[i]))
				break
			}
			b.WriteString(c)
			b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
		}
	}
	if bold := tty && a.colour(); bold {
		b.WriteString("\x1b[1m")
		line(t.head)
		b.WriteString("\x1b[0m\n")
	} else {
		line(t.head)
		b.WriteByte('\n')
	}
	for _, row := range t.rows {
		line(row)
		b.WriteByte('\n')
	}
	return a.write(b.Bytes())
}

// shorten cuts s to n characters, the last of which then says so.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	runes := []rune(s)
	return string(runes[:max(n-1, 0)]) + "…"
}

// colour reports whether escape sequences may be used at all.
func (a *app) colour() bool { return a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" }

// terminal reports whether w is one, and how wide it is.
func terminal(w any) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		columns = 80
	}
	return columns, true
}

// printValue prints a result for people: a string as it is, what a command wrote as
// it wrote it, a list of objects as a table, anything else as indented JSON.
func (a *app) printValue(raw json.RawMessage) error {
	var v any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if len(raw) == 0 || d.Decode(&v) != nil {
		return nil
	}
	switch v := v.(type) {
	case string:
		return a.printText(v)
	case map[string]any:
		if out, ok := v["stdout"].(string); ok {
			if err := a.printText(out); err != nil {
				return err
			}
			if s, ok := v["stderr"].(string); ok && s != "" {
				fmt.Fprint(a.errs, endLine(cleanText(s)))
			}
			return nil
		}
		if isOpList(v) {
			return a.printOps(raw)
		}
	}
	return a.document(raw)
}

// isOpList reports whether v is what tools.list answers.
func isOpList(v map[string]any) bool {
	list, ok := v["ops"].([]any)
	if !ok || len(list) == 0 {
		return false
	}
	for _, one := range list {
		op, _ := one.(map[string]any)
		_, named := op["name"].(string)
		_, marked := op["side_effecting"].(bool)
		if _, schema := op["parameters"].(map[string]any); !named || !marked || !schema {
			return false
		}
	}
	return true
}

// printText prints text of other people, ending with a line break.
func (a *app) printText(s string) error {
	if s == "" {
		return nil
	}
	return a.write([]byte(endLine(cleanText(s))))
}

func endLine(s string) string {
	if strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// progress says on a terminal that something takes long, and how long by now. The
// func that it returns ends that and must be called.
func (a *app) progress(what string) func() {
	if _, tty := terminal(a.errs); !tty {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		begun := time.Now()
		t := time.NewTicker(time.Second)
		defer t.Stop()
		shown := false
		for {
			select {
			case <-stop:
				if shown {
					fmt.Fprint(a.errs, "\r\x1b[K")
				}
				return
			case <-t.C:
				if took := time.Since(begun).Round(time.Second); took >= 2*time.Second {
					fmt.Fprintf(a.errs, "\r\x1b[Kbox: %s (%s)", clean(what), took)
					shown = true
				}
			}
		}
	}()
	return func() { close(stop); <-stopped }
}
