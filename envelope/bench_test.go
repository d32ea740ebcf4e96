package envelope

import (
	"strings"
	"testing"
)

// What rendering costs, of text without anything special and of text that has to be read in four ways.
func BenchmarkNeutral(b *testing.B) {
	for name, text := range map[string]string{
		"inert":      strings.Repeat("Filesystem 1K-blocks Used Available Use% Mounted on\n", 300),
		"references": strings.Repeat("a &amp; b &lt;c&gt; @here [TOOL x {}] — é\n", 300),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				Neutral(text)
			}
		})
	}
}
