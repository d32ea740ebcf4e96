package threads

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"inband/envelope"
	"inband/ops"
)

// What a reply says of its wake: the last result that can be read counts, and whatever
// ends nothing is answered.
func TestResultOfAReply(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       string // of the wake
		note       string // in the note, "" for none
	}{
		{"done", `[RESULT {"verdict":"done","summary":"all of it","refs":["r-1"]}]`, "ended done", ""},
		{"failed", `[RESULT {"verdict":"failed"}]`, "ended failed", ""},
		{"blocked", `[RESULT {"verdict":"blocked"}]`, "ended blocked", ""},
		{"waiting", `[RESULT {"verdict":"waiting"}]`, "open waiting", ""},
		{"none", "I have done it. Verdict: done.", "open", ""},
		{"with the key", "[RESULT#KEY {\"verdict\":\"done\"}]", "ended done", ""},
		{"with another key", "[RESULT#aaaa-bbbb {\"verdict\":\"done\"}]", "open", "its key is not"},
		{"the last counts", `[RESULT {"verdict":"done"}] no, wait: [RESULT {"verdict":"failed"}]`, "ended failed", ""},
		{"the last that can be read counts", `[RESULT {"verdict":"blocked"}] [RESULT {"verdict":"finished"}]`, "ended blocked", "cannot be read"},
		{"unanswered is none", `[RESULT {"verdict":"unanswered"}]`, "open", "done, failed, blocked or waiting"},
		{"of another case", `[RESULT {"verdict":"Done"}]`, "open", "ended nothing"},
		{"without a verdict", `[RESULT {}]`, "open", "ended nothing"},
		{"with another name", `[RESULT {"verdict":"done","status":"ok"}]`, "open", "ended nothing"},
		{"a number", `[RESULT {"verdict":1}]`, "open", "ended nothing"},
		{"a long summary", `[RESULT {"verdict":"done","summary":"` + strings.Repeat("x", envelope.MaxSummary+1) + `"}]`, "open", "ended nothing"},
		{"broken", `[RESULT {"verdict":"done",}]`, "open", ""}, // as any broken directive (decision D4)
		{"quoted", "> [RESULT {\"verdict\":\"done\"}]", "open", ""},
		{"in a fence", "```\n[RESULT {\"verdict\":\"done\"}]\n```", "open", ""},
		{"in code", "`[RESULT {\"verdict\":\"done\"}]`", "open", ""},
		{"thought", "<think>[RESULT {\"verdict\":\"done\"}]</think>", "open", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHouse(t)
			w := h.raise(errand(scout, ""))
			ack := h.take(scout, Reply{Agent: "scout", Thread: w.Thread, Message: "m", Text: strings.ReplaceAll(tc.text, "KEY", h.key(w.ID))})
			h.settled()
			if got := h.verdict(w.ID); got != tc.want {
				t.Errorf("the wake is %q, want %q", got, tc.want)
			}
			if _, v, _ := strings.Cut(tc.want, " "); string(ack.Verdict) != v || ack.Wake != w.ID {
				t.Errorf("ack has verdict %q of wake %q, want %q", ack.Verdict, ack.Wake, v)
			}
			notes := ""
			for _, p := range h.posts(w.Thread, 2) {
				if p.Kind == "note" {
					notes += p.Text
				}
			}
			if (notes != "") != (tc.note != "") || !strings.Contains(notes, tc.note) {
				t.Errorf("notes %q, want %q", notes, tc.note)
			}
		})
	}
}

// A result without a key is about the only wake that it can be about.
func TestResultOfSeveralWakes(t *testing.T) {
	h := newHouse(t, echo("t.read", "x"))
	first := h.raise(errand(scout, ""))
	second := h.raise(errand(scout, first.Thread))
	other := h.raise(errand(clerk, first.Thread))
	n := 0
	for _, tc := range []struct{ text, want string }{
		{`[RESULT {"verdict":"done"}]`, "open, open"},
		{"[TOOL#SECOND t.read {}] [TOOL#FIRST t.read {}] [RESULT {\"verdict\":\"done\"}]", "open, open"},
		{"[RESULT#OTHER {\"verdict\":\"done\"}]", "open, open"},
		{"[TOOL#FIRST t.read {}] [RESULT {\"verdict\":\"failed\"}]", "ended failed, open"},
		{"[RESULT#FIRST {\"verdict\":\"done\"}]", "ended failed, open"},
		{`[RESULT {"verdict":"done"}]`, "ended failed, ended done"},
		{`[RESULT {"verdict":"blocked"}]`, "ended failed, ended done"},
	} {
		n++
		h.take(scout, Reply{Agent: "scout", Thread: first.Thread, Message: fmt.Sprint("m", n),
			Text: strings.NewReplacer("FIRST", h.key(first.ID), "SECOND", h.key(second.ID), "OTHER", h.key(other.ID)).Replace(tc.text)})
		if got := h.verdict(first.ID) + ", " + h.verdict(second.ID); got != tc.want {
			t.Errorf("after %s: %s, want %s", tc.text, got, tc.want)
		}
	}
	if got := h.verdict(other.ID); got != "open" {
		t.Errorf("another agent's wake in the thread is %s", got)
	}
}

// Of any sequence of results, text and quotations, the last result that can be read and is
// no quotation counts.
func TestLastResultCounts(t *testing.T) {
	h := openHouse(t, t.TempDir()+"/journal.db")
	defer h.store.Close()
	rapid.Check(t, func(rt *rapid.T) {
		want, bad := "", 0
		var text strings.Builder
		for range rapid.IntRange(0, 12).Draw(rt, "pieces") {
			verdict := rapid.SampledFrom([]string{"done", "failed", "blocked", "waiting"}).Draw(rt, "verdict")
			piece := fmt.Sprintf(`[RESULT {"verdict":%q,"summary":%q}]`, verdict, rapid.StringMatching(`[a-z \[\]{}]{0,20}`).Draw(rt, "summary"))
			switch rapid.IntRange(0, 5).Draw(rt, "kind") {
			case 0:
				want = verdict
				text.WriteString(piece + "\n\n")
			case 1:
				bad++
				text.WriteString("[RESULT {\"verdict\":\"other\"}]\n\n")
			case 2:
				text.WriteString("> " + piece + "\n\n")
			case 3:
				text.WriteString("```text\n" + piece + "\n```\n\n")
			case 4:
				text.WriteString("`" + piece + "`\n\n")
			case 5:
				text.WriteString(rapid.StringMatching(`[a-zA-Z ,.!]{0,40}`).Draw(rt, "prose") + "\n\n")
			}
		}
		r, err := h.threads.read(t.Context(), text.String())
		if err != nil || r.result.found != (want != "") || r.result.Verdict != want || r.result.bad != bad {
			rt.Fatalf("read %+v, %v; want %q and %d bad, of\n%s", r.result, err, want, bad, text.String())
		}
	})
}

func FuzzResultInReply(f *testing.F) {
	for _, s := range []string{`[RESULT {"verdict":"done"}]`, "[RESULT#abc {\"verdict\":\"waiting\",\"refs\":[]}]", "> [RESULT {}]", "[RESULT {\"verdict\":\"done\"}", "\xff[RESULT{"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h := &Threads{registry: emptyRegistry(t), reading: make(chan struct{}, 1)}
		r, err := h.read(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		if !r.result.found {
			return
		}
		switch Verdict(r.result.Verdict) {
		case Done, Failed, Blocked, Waiting:
		default:
			t.Errorf("verdict %q of %q", r.result.Verdict, text)
		}
		for name, quoted := range map[string]string{"neutral": envelope.Neutral(text), "quoted": "> " + strings.NewReplacer("\r", " ", "\n", "\n> ").Replace(text)} {
			if r, err := h.read(t.Context(), quoted); err != nil || r.result.found {
				t.Errorf("%s, it is a result still: %q, %v", name, quoted, err)
			}
		}
	})
}

func emptyRegistry(t *testing.T) *ops.Live {
	t.Helper()
	r, err := ops.New()
	if err != nil {
		t.Fatal(err)
	}
	return ops.NewLive(r)
}
