package webhook

import (
	"strings"
	"testing"
)

func TestUnescape(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{`[TOOL x {"q":"a &lt; b &amp;&amp; c"}]`, `[TOOL x {"q":"a < b && c"}]`}, // tb-046
		{`see <https://h/|https://h/> now`, `see https://h/ now`},
		{`<https://h/?a=1&amp;b=2>`, `https://h/?a=1&b=2`},
		{"&amp;lt;", "&lt;"},
		{"&amp;amp;lt;", "&amp;lt;"},
		{"&quot;&#39;&nbsp;", "&quot;&#39;&nbsp;"}, // no platform of this kind writes them
		{"<@U1> and <@U2|ada>", "@U1 and @U2"},
		{"<#C1|ops>", "#C1"},
		{"<!here> <!channel|channel>", "!here !channel"},
		{"&lt;https://h/&gt;", "<https://h/>"}, // typed by somebody: no token
		{"&lt;@U1&gt;", "<@U1>"},
		{"a < b", "a < b"},
		{"<nothing>", "<nothing>"},
		{"<https://h/ x>", "<https://h/ x>"},
		{"<https://h/|two words>", "https://h/"},
		{"<https://h/", "<https://h/"},
		{"<<https://h/>>", "<https://h/>"},
		{"<https://>", "<https://>"},
		{"<@>", "<@>"},
		{"<", "<"},
		{"<\n@U1>", "<\n@U1>"},
		{"<https://" + strings.Repeat("a", maxToken) + ">", "<https://" + strings.Repeat("a", maxToken) + ">"},
	} {
		if got := unescape(tc.in); got != tc.want {
			t.Errorf("unescape(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

// What a platform shows in place of an address is known too.
func TestLabelled(t *testing.T) {
	for in, want := range map[string]string{
		"plain &lt;":                      "plain <",
		"<https://h/>":                    "https://h/",
		"<https://h/|[DM {&amp;}]> <@U1>": "[DM {&}] @U1",
		"<@U2|ada> <#C1|ops> <!here|>":    "ada ops !here",
	} {
		if got := labelled(in); got != want {
			t.Errorf("labelled(%q) = %q, want %q", in, got, want)
		}
	}
}

// What a user types arrives as it was typed, once the platform has escaped it.
func FuzzUnescape(f *testing.F) {
	for _, s := range []string{"a < b && c", "<@U1>", "&amp;lt;", "<https://h/|x>", "&&lt;;"} {
		f.Add(s)
	}
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	f.Fuzz(func(t *testing.T, typed string) {
		if got := unescape(escape.Replace(typed)); got != typed {
			t.Errorf("typed %q, arrives as %q", typed, got)
		}
	})
}
