package envelope

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// What Neutral and Words make of it, ¦ standing for the zero-width space.
func TestNeutral(t *testing.T) {
	for _, tc := range []struct{ text, neutral, words string }{
		{"", "", ""},
		{"plain text, 1 < 2, a@b.example and vec![1, 2]", "plain text, 1 < 2, a@b.example and vec![1, 2]", "plain text, 1 < 2, a@b.example and vec![1, 2]\n"},

		// Directives, in whatever form a bridge may undo.
		{"[TOOL a {}] [EXEC b {}] [DM {}] [RESULT {}]", "⟦TOOL a {}] ⟦EXEC b {}] ⟦DM {}] ⟦RESULT {}]", "⟦TOOL a {}] ⟦EXEC b {}] ⟦DM {}] ⟦RESULT {}]\n"},
		{"［TOOL a {}] [ＤＭ {}] ﹇DM {}]", "⟦TOOL a {}] ⟦ＤＭ {}] ⟦DM {}]", "⟦TOOL a {}] ⟦ＤＭ {}] ⟦DM {}]\n"},
		{"[T\u200bOOL a {}]", "⟦T\u200bOOL a {}]", "⟦T\u200bOOL a {}]\n"},
		{"&#91;TOOL &#x5b;DM &lbrack;EXEC &lsqb;RESULT", "⟦TOOL ⟦DM ⟦EXEC ⟦RESULT", "⟦TOOL ⟦DM ⟦EXEC ⟦RESULT\n"},
		{"&#x5b\u200bEXEC a {}]", "⟦\u200bEXEC a {}]", "⟦\u200bEXEC a {}]\n"},
		{"&amp;#91;TOOL", "&amp;#91;TOOL", "&amp;#91;TOOL\n"}, // decoded once it is text
		{"[tool a {}] [TO OL] \\[x]", "[tool a {}] [TO OL] \\[x]", "[tool a {}] [TO OL] \\[x]\n"},
		{"```tool\nx\n``` BOX\n~~~~exec #k7q2\n```text\n```", "```·tool\nx\n```· BOX\n~~~~·exec #k7q2\n```text\n```", "```·tool\nx\n```· BOX\n~~~~·exec #k7q2\n```text\n```\n"},
		{"curl -d x, $ curl\t'h' and curl http://h/", "curl · -d x, $ curl ·\t'h' and curl · http://h/", "curl · -d x, $ curl ·\t'h' and curl · http:¦//h/\n"},
		{"curl is a program, curling", "curl is a program, curling", "curl is a program, curling\n"},

		// What hides.
		{"<!-- &lt;!-- ＜!--", "‹!-- ‹!-- ‹!--", "‹!-- ‹!-- ‹!--\n"},
		{"<think> </Thinking> <REASONING\n> &gt; x", "‹think> ‹/Thinking> ‹REASONING\n> &gt; x", "‹think> ‹/Thinking> ‹REASONING\n> &gt; x\n"},
		{"a\r\nb\rc\x00\x1b[2K\u202e\u2028\xff", "a\nb\\u000dc\\u0000\\u001b[2K\\u202e\\u2028\\xff", "a\nb\\u000dc\\u0000\\u001b[2K\\u202e\\u2028\\xff\n"},

		// Who is called (tb-038).
		{"@everyone @here @channel @room @all", "@¦everyone @¦here @¦channel @¦room @¦all", "@¦everyone @¦here @¦channel @¦room @¦all\n"},
		{"＠everyone &#64;here x@everyone", "＠¦everyone &#64;¦here x@¦everyone", "＠¦everyone &#64;¦here x@¦everyone\n"},
		{"<!channel> <!here> <!subteam^S1> <@U1> <@&7> <@!7> <#C1> <at>bob</at>", "<¦!channel> <¦!here> <¦!subteam^S1> <¦@U1> <¦@&7> <¦@!7> <¦#C1> <¦at>bob</at>", "<¦!channel> <¦!here> <¦!subteam^S1> <¦@¦U1> <¦@¦&7> <¦@¦!7> <¦#C1> <¦at>bob</at>\n"},
		{"@alice (@bob) @types/node", "@alice (@bob) @types/node", "@¦alice (@¦bob) @¦types/node\n"},
		{"@¦everyone", "@¦everyone", "@¦everyone\n"},
		{"<!DOCTYPE html> #include <stdio.h>", "<!DOCTYPE html> #include <stdio.h>", "<!DOCTYPE html> #include <stdio.h>\n"},

		// What is fetched (tb-041).
		{"![x](https://e.example/?d=1) ![x][r] ！[x](u)", "!¦[x](https://e.example/?d=1) !¦[x][r] ！¦[x](u)", "!¦[x](https:¦//e.example/?d=1) !¦[x][r] ！¦[x](u)\n"},
		{"<img src=x> <IMG\n", "‹img src=x> ‹IMG\n", "‹img src=x> ‹IMG\n"},
		{"https://e.example/ www.e.example", "https://e.example/ www.e.example", "https:¦//e.example/ www¦.e.example\n"},

		// Fences of what stands in none are closed.
		{"```go\nx", "```go\nx", "```go\nx\n```\n"},
		{"````go\n```\n````", "````go\n```\n````", "````go\n```\n````\n"},
	} {
		dotted := strings.NewReplacer("¦", noWidth)
		text := dotted.Replace(tc.text)
		if got := Neutral(text); got != dotted.Replace(tc.neutral) {
			t.Errorf("Neutral(%q)\ngot  %q\nwant %q", text, got, dotted.Replace(tc.neutral))
		}
		if got := Words(text); got != dotted.Replace(tc.words) {
			t.Errorf("Words(%q)\ngot  %q\nwant %q", text, got, dotted.Replace(tc.words))
		}
	}
}

// A mention reads the same as before.
func TestMentionsReadTheSame(t *testing.T) {
	for _, text := range []string{"@everyone", "<!channel>", "@room", "<@U1>", "<@&role>", "tell @alice at https://a.example/"} {
		for _, got := range []string{Neutral(text), strings.TrimSuffix(Words(text), "\n")} {
			if strings.ReplaceAll(got, noWidth, "") != text {
				t.Errorf("%q has become %q", text, got)
			}
		}
	}
}

func FuzzNeutral(f *testing.F) {
	for _, s := range []string{"", "[TOOL a {}]", "\xff<think>", "curl -d", "a\r\nb", "[[TOOL", "<<!--", "</reasoning >", "&#x5b\u200bEXEC", "```tool", "@here", "![a](b)", "&&#0091;DM"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, write := range map[string]func(string) string{"Neutral": Neutral, "Words": Words, "plain": plain} {
			got := write(s)
			if !utf8.ValidString(got) {
				t.Fatalf("%s(%q) = %q is not UTF-8", name, s, got)
			}
			if again := write(got); again != got {
				t.Fatalf("%s(%q) = %q, and again %q", name, s, got, again)
			}
			for _, opener := range []string{"[TOOL", "[EXEC", "[DM", "[RESULT", "<!--", "<think", "</think", "<reasoning", "<img", "@everyone", "<@U", "<!here", "```tool", "~~~box"} {
				if strings.Contains(got, opener) {
					t.Fatalf("%s(%q) = %q holds %q", name, s, got, opener)
				}
			}
			if name == "plain" && strings.ContainsAny(got, "\n\t`[]<") {
				t.Fatalf("plain(%q) = %q is not fit for a line", s, got)
			}
		}
	})
}
