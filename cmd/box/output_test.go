package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for _, test := range []struct{ in, line, text string }{
		{"plain", "plain", "plain"},
		{"größer 火", "größer 火", "größer 火"},
		{"a\x1b[2Jb", `a\u001b[2Jb`, `a\u001b[2Jb`},
		{"a\nb", `a\nb`, "a\nb"},
		{"a\r\nb", `a\r\nb`, "a\nb"},
		{"a\rb", `a\rb`, `a\rb`},
		{"a\tb", `a\tb`, "a       b"},
		{"1234567\tb", `1234567\tb`, "1234567 b"},
		{"12345678\tb\n\tc", `12345678\tb\n\tc`, "12345678        b\n        c"},
		{"user\u202egnp.exe", `user\u202egnp.exe`, `user\u202egnp.exe`},
		{"a\u200bb\u2066c", `a\u200bb\u2066c`, `a\u200bb\u2066c`},
		{"a\u2028b", `a\u2028b`, `a\u2028b`},
		{"a\u009bb", `a\u009bb`, `a\u009bb`},
		{"tag\U000e0041", `tag\U000e0041`, `tag\U000e0041`},
		{"bad\xff\xfe", `bad\xff\xfe`, `bad\xff\xfe`},
		{"", "", ""},
	} {
		if got := clean(test.in); got != test.line {
			t.Errorf("clean(%q) = %q, want %q", test.in, got, test.line)
		}
		if got := cleanText(test.in); got != test.text {
			t.Errorf("cleanText(%q) = %q, want %q", test.in, got, test.text)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[2J\u202e\xff\t\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		line, text := clean(s), cleanText(s)
		if !utf8.ValidString(line) || strings.ContainsFunc(line, hidden) {
			t.Errorf("clean(%q) = %q", s, line)
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(strings.ReplaceAll(text, "\n", ""), hidden) {
			t.Errorf("cleanText(%q) = %q", s, text)
		}
	})
}

// TestCleanJSON: what is escaped in a document changes nothing of its value.
func TestCleanJSON(t *testing.T) {
	in := map[string]any{"a\u202e": "b\u007f\U000e0041 ok \u2028", "n": []any{1.0, "火"}}
	raw, err := json.MarshalIndent(in, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	got := cleanJSON(raw)
	if strings.ContainsFunc(strings.NewReplacer("\n", "", "\t", "").Replace(string(got)), hidden) {
		t.Errorf("cleanJSON(%q) = %q", raw, got)
	}
	var out map[string]any
	if err := json.Unmarshal(got, &out); err != nil || !reflect.DeepEqual(out, in) {
		t.Errorf("cleanJSON(%q) = %q, which is %v (%v)", raw, got, out, err)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	a := newApp(nil, &out, &out, func(string) string { return "" })
	table := newTable("ID", "NAME", "WHAT")
	table.row("1", "größe", "one\ttwo")
	table.row("200", "", "a\x1b[31m")
	if err := a.print(table); err != nil {
		t.Fatal(err)
	}
	want := "ID   NAME   WHAT\n1    größe  one\\ttwo\n200  -      a\\u001b[31m\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestPrintValue(t *testing.T) {
	for _, test := range []struct{ in, out, errs string }{
		{`"text"`, "text\n", ""},
		{`{"stdout":"a\nb\n","stderr":""}`, "a\nb\n", ""},
		{`{"stdout":"a","stderr":"careful\u001b"}`, "a\n", "careful\\u001b\n"},
		{`{"stdout":""}`, "", ""},
		{`{"n":12345678901234567890}`, "{\n  \"n\": 12345678901234567890\n}\n", ""},
		{`[1,2]`, "[\n  1,\n  2\n]\n", ""},
		{`null`, "null\n", ""},
		{``, "", ""},
	} {
		var out, errs bytes.Buffer
		a := newApp(nil, &out, &errs, func(string) string { return "" })
		if err := a.printValue(json.RawMessage(test.in)); err != nil {
			t.Fatal(err)
		}
		if out.String() != test.out || errs.String() != test.errs {
			t.Errorf("printValue(%s) = %q and %q, want %q and %q", test.in, out.String(), errs.String(), test.out, test.errs)
		}
	}
}

func TestBrief(t *testing.T) {
	long := strings.Repeat("line\n", demoLines+5) + "last"
	got := strings.Split(brief(long), "\n")
	if len(got) != demoLines+1 || got[demoLines-1] != "… 6 more lines …" || got[demoLines] != "last" {
		t.Errorf("brief of %d lines = %q", demoLines+6, got)
	}
	if s := strings.Repeat("line\n", demoLines) + "last"; brief(s) != s {
		t.Errorf("brief cuts out a single line: %q", brief(s))
	}
	if got := brief(strings.Repeat("火", demoWidth+1)); utf8.RuneCountInString(got) != demoWidth {
		t.Errorf("brief leaves %d characters in a line", utf8.RuneCountInString(got))
	}
}
