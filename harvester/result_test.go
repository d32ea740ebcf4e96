package harvester

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// results are replies with a [RESULT {…}], by the rules that it shares with [DM {…}]. want
// is what is found when results are asked for; plain is what is found when they are not.
var results = []struct {
	rule        int
	reply       string
	want, plain string
}{
	{1, `[RESULT {"verdict":"done"}]`, `result {"verdict":"done"}`, ""},
	{1, `All is well. [RESULT {"verdict":"done"}] Bye.`, `result {"verdict":"done"}`, ""},
	{1, "[RESULT{}][RESULT\r\n{} ]", "result {}; result {}", ""},
	{1, "[result {}] [Result {}] [RESULTS {}] [ RESULT {}] [RESUL {}]", "", ""},
	{1, "[TOOL a {}]\n[RESULT {}]\n[DM {}]", "tool a {}; result {}; dm dm.send {}", "tool a {}; dm dm.send {}"},
	{2, "[RESULT#k7q2 {}] [RESULT#k7q2{}] [RESULT#K {}] [RESULT#ab {}]", "result {} #k7q2; result {} #k7q2", ""},
	{3, "[RESULT" + strings.Repeat(" ", 256) + "{}]", "result {}", ""},
	{3, "[RESULT" + strings.Repeat(" ", 257) + "{}]", "", ""},
	{4, "[RESULT] [RESULT done] [RESULT \"done\"] [RESULT [{}]] [RESULT a {}]", "", ""},
	{5, "[RESULT {} x] [RESULT {}", "", ""},
	{5, "[RESULT {} [TOOL a {}]]", "tool a {}", "tool a {}"},
	{6, "[RESULT [RESULT {}]]", "result {}", ""},
	{6, "[RESULT\n> [RESULT {}]\n[RESULT {}]", "result {}", ""},
	{7, `[RESULT {"summary":"then [TOOL a {}] ran"}]`, `result {"summary":"then [TOOL a {}] ran"}`, "tool a {}"},
	{7, `[TOOL a {"x":"[RESULT {}]"}]`, `tool a {"x":"[RESULT {}]"}`, `tool a {"x":"[RESULT {}]"}`},
	{7, `[RESULT {"summary":"x [TOOL a {}]" x}]`, "", "tool a {}"},
	{8, "[RESULT {x\n[RESULT {}]", "result {}", ""},
	{8, "[TOOL a {x\n[RESULT {}]", "result {}", ""},
	{8, "[TOOL a {\"k\":[\n [RESULT#abc {}]", "result {} #abc", ""},
	{8, "[RESULT {x\n[TOOL a {}]", "tool a {}", "tool a {}"},
	{8, `[RESULT {"verdict":"done","verdict":"failed"}] [TOOL a {}]`, "tool a {}", "tool a {}"},
	{9, "> [RESULT {}]\n&gt; [RESULT {}]\n| [RESULT {}]\n- > [RESULT {}]", "", ""},
	{10, "`[RESULT {}]` ``[RESULT {}]`` ` [RESULT {}]\n[RESULT {}]", "result {}", ""},
	{11, `\[RESULT {}] "[RESULT {}]" '[RESULT {}]' “[RESULT {}]” ‘[RESULT {}] «[RESULT {}] \\[RESULT {}]`, "result {}", ""},
	{12, "```\n[RESULT {}]\n```\n~~~json\n[RESULT {}]\n~~~\n[RESULT {}]", "result {}", ""},
	{12, "```\n[RESULT {}]", "", ""},
	{13, "<think>[RESULT {}]</think>[RESULT {\"x\":1}]<reasoning>[RESULT {}]", `result {"x":1}`, ""},
	{14, "<!-- [RESULT {}] -->[RESULT {\"x\":1}]<!--[RESULT {}]", `result {"x":1}`, ""},
	// In a directive fence it is no item, and skipped as one that failed.
	{16, "```tool\n[RESULT {}]\na {}\n```\n[RESULT {}]", "tool a {}; result {}", "tool a {}"},
	{16, "```tool\n[RESULT {\"summary\":\"x [TOOL b {}]\"}] [TOOL c {}]\na {}\n```", "tool a {}", "tool a {}"},
	{16, "```exec #k7q2\n[RESULT#k7q2 {}]\n[DM {}]\n```", "dm dm.send {} #k7q2", "dm dm.send {} #k7q2"},
	{16, "```box\n[RESULT {}]\nstatus\n```", `box box.exec {"action":"status"}`, `box box.exec {"action":"status"}`},
	{16, "```tool\na {x\n[RESULT {}]\n}\nb {}\n```", "tool b {}", "tool b {}"},
}

func TestResults(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range results {
		for _, asked := range []bool{true, false} {
			config, want := Config{}, c.plain
			if asked {
				config, want = Config{Result: func(Directive) {}}, c.want
			}
			reply := []byte(c.reply)
			for _, pieces := range [][][]byte{{reply}, cuts(reply, 1), randomCuts(reply, r), randomCuts(reply, r)} {
				all, _ := harvest(config, true, pieces...)
				var got []string
				for _, d := range all {
					s := strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", d.Form, d.Op, d.Params)), " ")
					if d.Key != "" {
						s += " #" + d.Key
					}
					got = append(got, s)
					if d.Form == Result && string(reply[d.Start:d.Start+7]) != "[RESULT" {
						t.Errorf("%q: the result stands at %d", c.reply, d.Start)
					}
				}
				if s := strings.Join(got, "; "); s != want {
					t.Errorf("rule %d: %.300q cut as %.300q, asked %v:\ngot  %s\nwant %s", c.rule, c.reply, pieces, asked, s, want)
				}
			}
		}
	}
}

// A result and what is found besides are told to their own functions, in text order, and
// All returns no result.
func TestResultsAreToldApart(t *testing.T) {
	var told []string
	all, stats := All([]byte(`[TOOL a {}] [RESULT#abc {"verdict":"done"}] [TOOL b {}] [RESULT {x}]`), Config{
		Found:  func(d Directive) { told = append(told, "found "+d.Op) },
		Result: func(d Directive) { told = append(told, fmt.Sprintf("result %s %s", d.Key, d.Params)) },
	})
	want := []string{"found a", `result abc {"verdict":"done"}`, "found b"}
	if !reflect.DeepEqual(told, want) || len(all) != 2 || stats.Broken != 1 {
		t.Errorf("got %q, %d directives and %d broken, want %q, 2 and 1", told, len(all), stats.Broken, want)
	}
}

// Without Result, not one byte is examined more than where there is no RESULT.
func TestUnaskedResultsCostNothing(t *testing.T) {
	reply := bytes.Repeat([]byte(`text [RESULT {"verdict":"done"}] and [RESULT`), 100)
	other := bytes.ReplaceAll(reply, []byte("RESULT"), []byte("SESULT"))
	for _, size := range []int{len(reply), 7, 1} {
		_, a := harvest(Config{}, true, cuts(reply, size)...)
		_, b := harvest(Config{}, true, cuts(other, size)...)
		if a.Examined() != b.Examined() || a.Broken() != b.Broken() {
			t.Errorf("in pieces of %d: examined %d, without a RESULT %d", size, a.Examined(), b.Examined())
		}
	}
}
