package envelope

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestSplitProperties(t *testing.T) {
	bits := []string{"a", "word ", "é", "世界", "\u0301", "👩\u200d👩\u200d👧", "🇩🇪", "\n", "\n\n", "```text\n", "\n```\n", "~~~\n", "`````x y\n", "`", "\r\n", "\xff", strings.Repeat("x", 90), strings.Repeat("line of text\n", 20), "  ```\n", "각", "\u1100\u1161\u11a8"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(bits), 0, 400).Draw(t, "text"), "")
		l := Limit{
			Unit: rapid.SampledFrom([]string{"", "bytes", "runes", "utf16"}).Draw(t, "unit"), Size: rapid.IntRange(MinSize, 1000).Draw(t, "size"),
			Parts: rapid.IntRange(0, 5).Draw(t, "parts"), Whole: "box calls show c-1",
		}
		chunks := Split(text, l)
		for i, c := range chunks {
			if !utf8.ValidString(c) || l.size(c) > l.Size {
				t.Fatalf("chunk %d of %d: %d of %d, valid %v: %q", i, len(chunks), l.size(c), l.Size, utf8.ValidString(c), c)
			}
		}
		if l.Parts > 0 && len(chunks) > l.Parts {
			t.Fatalf("%d chunks, at most %d", len(chunks), l.Parts)
		}
		valid := strings.ToValidUTF8(text, "\ufffd")
		pieces, rest := split(valid, l)
		var b strings.Builder
		for _, p := range pieces {
			b.WriteString(p.text)
		}
		if got := b.String(); got != valid[:len(valid)-rest] {
			t.Fatalf("joined %q, want %q", got, valid)
		}
	})
}
