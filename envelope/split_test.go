package envelope

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// join takes the walls that Split added off again, and makes sure that chunks holds what
// the pieces do. What is left out at the end is missing.
func join(t *testing.T, text string, l Limit) string {
	t.Helper()
	pieces, rest := split(strings.ToValidUTF8(text, "\ufffd"), l)
	chunks := Split(text, l)
	var b strings.Builder
	next := 0
	for _, p := range pieces {
		whole := p.open + p.text + p.close
		b.WriteString(p.text)
		switch {
		case next < len(chunks) && strings.HasPrefix(chunks[next], whole):
			next++
		case isSpace(whole):
		default:
			t.Fatalf("%q is in no chunk", whole)
		}
	}
	if next != len(chunks) {
		t.Fatalf("%d chunks of %d pieces", len(chunks), len(pieces))
	}
	if got, want := b.Len(), len(strings.ToValidUTF8(text, "\ufffd"))-rest; got != want {
		t.Fatalf("%d bytes in %d pieces, want %d", got, len(pieces), want)
	}
	return b.String()
}

// lengths are how long a chunk is in each unit, by other means than Split's.
var lengths = map[string]func(string) int{
	"":      func(s string) int { return len(s) },
	"bytes": func(s string) int { return len(s) },
	"runes": func(s string) int { return len([]rune(s)) },
	"utf16": func(s string) int { return len(utf16.Encode([]rune(s))) },
}

// checkChunks holds chunks to what is asked of any.
func checkChunks(t *testing.T, text string, chunks []string, l Limit) {
	t.Helper()
	for i, c := range chunks {
		if !utf8.ValidString(c) {
			t.Fatalf("chunk %d of %q is not UTF-8: %q", i, text, c)
		}
		if n := lengths[l.Unit](c); l.Size > 0 && n > max(l.Size, MinSize) {
			t.Fatalf("chunk %d of %d has %d of %d %s: %q", i, len(chunks), n, l.Size, l.Unit, c)
		}
	}
	if l.Parts > 0 && len(chunks) > l.Parts {
		t.Fatalf("%d chunks of %q, at most %d", len(chunks), text, l.Parts)
	}
}

// balanced reports whether chunk leaves no fence open.
func balanced(chunk string) bool {
	var w wall
	for line := range strings.Lines(chunk) {
		w.step(line)
	}
	return w.run == 0
}

func TestSplitOfRandomTexts(t *testing.T) {
	bits := []string{
		"a", "word ", "é", "世界", "e\u0301\u0302", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "\u1112\u1161\u11ab", "\n", "\n\n", "\r\n", " ", "\t", "`", "\xff", "\n> ",
		"\n```text\n", "\n```\n", "\n~~~\n", "\n`````x y\n", "\n`````\n", "\n  ```\n", "\n```" + strings.Repeat("i", 70) + "\n",
		strings.Repeat("x", 90), strings.Repeat("line of text\n", 20), strings.Repeat("words in a line ", 40), strings.Repeat("👩\u200d👩\u200d👧", 50), strings.Repeat("`", 100), strings.Repeat(" ", 500),
	}
	units := []string{"", "bytes", "runes", "utf16"}
	r := rand.New(rand.NewPCG(1, 2))
	cut, fenced := 0, 0
	for range 800 {
		var b strings.Builder
		for range r.IntN(120) {
			b.WriteString(bits[r.IntN(len(bits))])
		}
		text := b.String()
		l := Limit{Unit: units[r.IntN(4)], Size: MinSize + r.IntN(1000), Parts: r.IntN(6), Whole: "box calls show c-1"}
		chunks := Split(text, l)
		checkChunks(t, text, chunks, l)
		whole := join(t, text, l)
		if !strings.HasPrefix(strings.ToValidUTF8(text, "\ufffd"), whole) {
			t.Fatalf("joined %q\nof %q", whole, text)
		}
		pieces, rest := split(strings.ToValidUTF8(text, "\ufffd"), l)
		if rest > 0 {
			cut++
			if last := chunks[len(chunks)-1]; !strings.HasSuffix(last, fmt.Sprintf("… %d bytes left out; box calls show c-1 has all of it …\n", rest)) {
				t.Fatalf("%d bytes left out, and the last chunk is %q", rest, last)
			}
		}
		for i, p := range pieces[:len(pieces)-1] {
			if p.open != "" {
				fenced++
			}
			if strings.Contains(text, strings.Repeat("`", 100)) || strings.Contains(text, "iii") {
				continue // walls that are too long are not repeated
			}
			if !balanced(p.open + p.text + p.close) {
				t.Fatalf("piece %d of %q leaves a fence open: %q", i, text, p)
			}
		}
	}
	if cut < 50 || fenced < 50 {
		t.Errorf("%d texts were cut and %d pieces began in a fence: too few to mean anything", cut, fenced)
	}
}

// A text that fits is one chunk as it is.
func TestShortTextsStayWhole(t *testing.T) {
	for _, text := range []string{"", "a", "```text\na\n```\n", strings.Repeat("x", 1000)} {
		if got := Split(text, Limit{Size: 1000}); len(got) != 1 || got[0] != text {
			t.Errorf("Split(%.20q) = %q", text, got)
		}
	}
	if got := Split(strings.Repeat("x", 1<<20), Limit{}); len(got) != 1 {
		t.Errorf("without a limit: %d chunks", len(got))
	}
}

// Where a text is cut (tb-030, tb-043 and tb-044 of the thread cases).
func TestSplitPoints(t *testing.T) {
	lines := strings.Repeat("a line of the log, number 12345\n", 300)
	for _, tc := range []struct {
		name, text string
		l          Limit
		bad        func(chunk string) bool // no chunk may be so
	}{
		{"lines", lines, Limit{Size: 2000}, func(c string) bool { return !strings.HasSuffix(c, "12345\n") }},
		{"a fence of 300 lines", "✓ logs (c-1)\n```text\n" + lines + "```\n", Limit{Unit: "runes", Size: 2000}, func(c string) bool {
			return !balanced(c) || !strings.Contains(c, "```text\na line") || !strings.HasSuffix(c, "12345\n```\n")
		}},
		{"a fence with a long line", "```json\n" + strings.Repeat("[1,2,3],", 2000) + "\n```\n", Limit{Size: 2000}, func(c string) bool {
			return !balanced(c) || !strings.HasPrefix(c, "```json\n") || !strings.HasSuffix(c, "\n```\n")
		}},
		{"emoji beyond the BMP", strings.Repeat("😀", 5000), Limit{Unit: "utf16", Size: 4096}, func(c string) bool { return strings.Trim(c, "😀") != "" }},
		{"families", strings.Repeat("👩\u200d👩\u200d👧", 900), Limit{Size: 1000}, func(c string) bool {
			return !strings.HasPrefix(c, "👩") || !strings.HasSuffix(c, "👧")
		}},
		{"flags", strings.Repeat("🇩🇪", 900), Limit{Size: 1001}, func(c string) bool { return !strings.HasPrefix(c, "🇩") || !strings.HasSuffix(c, "🇪") }},
		{"skin tones", strings.Repeat("👍🏽", 900), Limit{Unit: "utf16", Size: 1001}, func(c string) bool { return !strings.HasPrefix(c, "👍") }},
		{"Cyrillic", strings.Repeat("я", 9000), Limit{Size: 469}, func(c string) bool { return strings.Trim(c, "я") != "" }},
		{"CJK", strings.Repeat("世", 9000), Limit{Size: 469}, func(c string) bool { return strings.Trim(c, "世") != "" }},
		{"combining marks", strings.Repeat("e\u0301\u0323", 900), Limit{Unit: "runes", Size: 500}, func(c string) bool { return c[0] != 'e' }},
		{"jamo", strings.Repeat("\u1112\u1161\u11ab", 900), Limit{Unit: "runes", Size: 500}, func(c string) bool { return !strings.HasPrefix(c, "\u1112") }},
		{"a line of words", strings.Repeat("some words ", 900), Limit{Size: 1000}, func(c string) bool { return !strings.HasSuffix(c, " ") }},
		{"runs of backticks in a line", strings.Repeat("some `code` ``` ", 900), Limit{Size: 1000}, func(c string) bool { return strings.HasPrefix(c, "`") }},
		{"nothing but marks", strings.Repeat("\u0301", 3000), Limit{Size: 1000}, func(c string) bool { return c == "" }},
		{"space alone", "a" + strings.Repeat("\n", 5000) + "b", Limit{Size: 1000}, isSpace},
	} {
		chunks := Split(tc.text, tc.l)
		checkChunks(t, tc.text, chunks, tc.l)
		if got := join(t, tc.text, tc.l); got != tc.text {
			t.Errorf("%s: joined it is %.100q…", tc.name, got)
		}
		if len(chunks) < 2 {
			t.Errorf("%s: %d chunks", tc.name, len(chunks))
		}
		for i, c := range chunks {
			if tc.bad(c) {
				t.Errorf("%s: chunk %d of %d is %.80q … %q", tc.name, i, len(chunks), c, c[max(0, len(c)-40):])
			}
		}
	}
}

// tb-026: a result of 120,000 bytes on a platform of 4,000 characters comes out again as it
// went in, and with a bound on the parts says what is missing.
func TestSplitOfALongResult(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 120_000; i++ {
		fmt.Fprintf(&b, "%d: é and more\n", i)
	}
	text := block(b.String(), "text")
	whole := text.open + text.text + text.wall
	l := Limit{Unit: "runes", Size: 4000}
	checkChunks(t, whole, Split(whole, l), l)
	if sha256.Sum256([]byte(join(t, whole, l))) != sha256.Sum256([]byte(whole)) {
		t.Error("the parts do not make the whole")
	}
	l.Parts, l.Whole = 8, "box calls show c-1"
	chunks := Split(whole, l)
	checkChunks(t, whole, chunks, l)
	_, rest := split(whole, l)
	if last := chunks[len(chunks)-1]; len(chunks) != 8 || !strings.HasSuffix(last, fmt.Sprintf("```\n… %d bytes left out; box calls show c-1 has all of it …\n", rest)) {
		t.Errorf("%d chunks, the last is %q", len(chunks), last[len(last)-200:])
	}
}

// Each chunk of what the harvester's cases render to holds no order.
func TestChunksHoldNoOrder(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "harvester", "testdata", "harvest.json"))
	if err != nil {
		t.Fatal(err)
	}
	for size := MinSize; size < MinSize+60; size++ {
		for i, c := range Split(Outcome(someCall, shown(string(b))), Limit{Size: size}) {
			if n := ordersIn(c); n != 0 {
				t.Fatalf("chunk %d holds %d orders: %q", i, n, c)
			}
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add("```text\na\n```\n", uint16(1), "bytes", uint8(2))
	f.Add(strings.Repeat("👩\u200d👩\u200d👧 ", 100), uint16(0), "utf16", uint8(0))
	f.Fuzz(func(t *testing.T, text string, size uint16, unit string, parts uint8) {
		l := Limit{Unit: unit, Size: MinSize + int(size%2000), Parts: int(parts)}
		if lengths[unit] == nil {
			l.Unit = ""
		}
		text = strings.Repeat(text, 1+400/(len(text)+1))
		checkChunks(t, text, Split(text, l), l)
		join(t, text, l)
	})
}

func ExampleSplit() {
	text := "```text\n" + strings.Repeat("one line of a log\n", 30) + "```\n"
	for i, chunk := range Split(text, Limit{Unit: "utf16", Size: 400}) {
		first, _, _ := strings.Cut(chunk, "\n")
		fmt.Println(i, first, strings.Count(chunk, "log"), "lines")
	}
	// Output:
	// 0 ```text 21 lines
	// 1 ```text 9 lines
}
