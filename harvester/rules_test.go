package harvester

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// rules holds cases beside the vectors: what JSON cannot carry, and the
// corners of each rule. want lists form, op and parameters of each directive.
var rules = []struct {
	rule  int
	reply string
	want  string
}{
	// Words.
	{0, "\xff\xfe [TOOL a {}] \xc3", "tool a {}"},
	{0, "[TOOL a {\"x\":\"\xc3\"}] [TOOL b {}]", "tool b {}"},
	{0, "[TOOL a {\"\xe2\x80\":1}] [TOOL b {}]", "tool b {}"},
	{0, "[TOOL a {\"x\":\"\xed\xa0\x80\"}] [TOOL b {}]", "tool b {}"},         // a surrogate in UTF-8
	{0, "[TOOL a {\"x\":\"\xf4\x90\x80\x80\"}] [TOOL b {}]", "tool b {}"},     // above U+10FFFF
	{0, "[TOOL a {\"x\":\"\xc0\xaf\xe0\x80\xaf\"}] [TOOL b {}]", "tool b {}"}, // overlong
	{0, "[TOOL a {\"x\":\"\xf4\x8f\xbf\xbf\xf0\x90\x80\x80\xe0\xa0\x80\"}]", "tool a {\"x\":\"\U0010ffff\U00010000\u0800\"}"},
	{0, "[TOOL \xc2\xa0a {}]\n[TOOL a\xef\xbb\xbf{}]\n[TOOL b {}]", "tool b {}"},
	{0, "\r\r> [TOOL a {}]", "tool a {}"}, // a lone CR begins no line

	// 1 to 3: header.
	{1, "[DM{}][DM {}][DM\r\n{}]", "dm dm.send {}; dm dm.send {}; dm dm.send {}"},
	{1, "[DMx {}] [ TOOL a {}] [TOOLa {}] [TOOL{}] [EXEC a{}]", "exec a {}"},
	{2, "[TOOL#abc{}] [TOOL#abc a{}] [DM#abc{}] [DM#ab {}] [TOOL#a_b c {}]", "tool a {} #abc; dm dm.send {} #abc"},
	{3, "[TOOL\ta\n{}\r\n\t]", "tool a {}"},
	{3, "[TOOL a.b:c/d-e_F9 {}] [TOOL 9a {}] [TOOL -a {}] [TOOL _ {}]", "tool a.b:c/d-e_F9 {}; tool _ {}"},
	{4, "[TOOL a] [DM] [DM \"x\"] [TOOL a [{}]] [TOOL a b {}]", ""},

	// 5 to 8: what is broken.
	{5, "[TOOL a {} x] [TOOL b {}", ""},
	{5, "[TOOL a {}\n> [TOOL b {}]\n[TOOL c {}]", "tool c {}"},
	{5, "[TOOL a {}\n- > [TOOL b {}]\n[TOOL c {}]", "tool c {}"},
	{5, "[TOOL a {}\n```\n[TOOL b {}]\n```\n[TOOL c {}]", "tool c {}"},
	{5, "[TOOL a {}\ncurl -d '\n[TOOL b {}]\n\n[TOOL c {}]", "tool c {}"},
	{5, "[TOOL a {} [TOOL b {}]", "tool b {}"},
	{5, `[TOOL a {} "[TOOL b {}]`, ""},
	{6, "[TOOL\n> [TOOL a {}]\n[TOOL b {}]", "tool b {}"},
	{6, "[TOOL\ncurl -d '\n[TOOL b {}]\n\n[TOOL c {}]", "tool c {}"},
	{6, "[TOOL\ncurl http://h/ -d '\n[TOOL b {}]\n\n[TOOL c {}]", "tool c {}"},
	{6, "[TOOL\na - ```\n[TOOL b {}]\n``` [TOOL c {}]", "tool c {}"},
	{6, "[TOOL [EXEC a {}]]", "exec a {}"},
	{7, `[TOOL a {"x":"[TOOL b {}]" x}] [TOOL c {}]`, "tool c {}"},
	{8, "[TOOL a {x\n [TOOL b {}]", "tool b {}"},
	{8, "[TOOL a {x [TOOL b {}]\n}]\n[TOOL c {}]", "tool c {}"},
	{8, "[TOOL a {\"k\":\n[TOOL b {}]", "tool b {}"},    // the error stands behind the [
	{8, "[TOOL a {\"k\":[\n[TOOL# b {}]", ""},           // an opener, and then no header
	{8, "[TOOL a {\"k\":[\n[TOOLS b {}]]}]", ""},        // no opener
	{8, "[TOOL a {\"k\":[\n[TOOLS]] [TOOL b {}]}]", ""}, // still inside
	{8, "[TOOL a {x\n``\n[TOOL b {}]", "tool b {}"},
	{8, "[TOOL a {x\n~~~\n[TOOL b {}]\n~~~\n[TOOL c {}]", "tool c {}"},
	{8, "[TOOL a {x\n```y`\n[TOOL b {}]\n``` [TOOL c {}]", "tool c {}"},
	{8, "[TOOL a {`x\n```\n[TOOL b {}]\n``` }] [TOOL c {}]", "tool b {}"},
	{8, "[TOOL a {\n`x\n[TOOL b {}]\n`}] [TOOL c {}]", "tool c {}"},
	{8, "[TOOL a {x <!-- [TOOL b {}] --> [TOOL c {}]", "tool c {}"},
	{8, "[TOOL a {x <think>\n[TOOL b {}]</think>", "tool b {}"}, // not at the line's beginning
	{8, "[TOOL a {x <!- }] [TOOL b {}]", "tool b {}"},
	{8, "[TOOL a {x\n<thinker> }] [TOOL b {}]", "tool b {}"},
	{8, `[TOOL a {"x":"\"'}] [TOOL b {}]`, ""},
	{8, `[TOOL a {"x":"\q\"}] [TOOL b {}]"}] [TOOL c {}]`, "tool c {}"},
	{8, `[TOOL a {"x":"\u12"}] [TOOL b {}]`, "tool b {}"},
	{8, `[TOOL a {"x":"\u12\"}] [TOOL b {}]"}] [TOOL c {}]`, "tool c {}"},
	{8, `[TOOL a {"x":"\ud83d"}] [TOOL b {}]`, "tool b {}"},
	{8, `[TOOL a {"x":"\ud83d\u0041"}] [TOOL b {}]`, "tool b {}"},
	{8, `[TOOL a {"x":"\udc00"}] [TOOL b {}]`, "tool b {}"},
	{8, "[TOOL a {\"x\":\"\xc3\"}] [TOOL b {}]", "tool b {}"},
	{8, "[TOOL a {\"x\":\"\xc3\\\"}] [TOOL b {}]\"}] [TOOL c {}]", "tool c {}"},
	{8, `[TOOL a {"x":1 "y":"}] [TOOL b {}]"}] [TOOL c {}]`, "tool c {}"},
	{8, `[TOOL a {"x":tru}] [TOOL b {"x":truE}] [TOOL c {"x":-}] [TOOL d {"x":1e}] [TOOL e {"x":true}]`, `tool e {"x":true}`},
	{8, `[TOOL a {"x":-01}] [TOOL b {"x":00}] [TOOL c {"x":[-0,0,-0.5,10,-10e0]}]`, `tool c {"x":[-0,0,-0.5,10,-10e0]}`},
	{8, `[TOOL a {"x":1,"x":2}] [TOOL b {"x":{"x":1},"y":[{"x":1},{"x":1}]}]`, `tool b {"x":{"x":1},"y":[{"x":1},{"x":1}]}`},
	{8, `[TOOL a {"a long name":1,"a long \u006eame":1}] [TOOL b {"\ud83d\ude00":1,"😀":1}] [TOOL c {"":1,"\u0000":1}]`, `tool c {"":1,"\u0000":1}`},

	// 9 to 14: quotation.
	{9, "> [TOOL a {}]\n\t&gt;[TOOL b {}]\n | [TOOL c {}]\n&gt [TOOL d {}]\nx > [TOOL e {}]", "tool d {}; tool e {}"},
	{9, "&gt;&gt; [TOOL a {}]", ""},
	{10, "`` ` `` [TOOL a {}] `[TOOL b {}]` ```[TOOL c {}]``` [TOOL d {}]", "tool a {}; tool d {}"},
	{10, "x ``` \n> \n[TOOL a {}] `` ```` ``` [TOOL b {}]", "tool b {}"},
	{10, "```x`\n[TOOL a {}] ``` [TOOL b {}]", "tool b {}"},
	{10, "``[TOOL a {}]\n[TOOL b {}]", "tool b {}"},
	{11, `"[TOOL a {}] '[TOOL b {}] \[TOOL c {}] \\[TOOL d {}] \\\[TOOL e {}]`, "tool d {}"},
	{11, "“[TOOL a {}] ‘[TOOL b {}] «[TOOL c {}] ”[TOOL d {}] »[TOOL e {}]", "tool d {}; tool e {}"},
	{11, "\x80\x9c[TOOL a {}] \xab[TOOL b {}]", "tool a {}; tool b {}"},
	{11, "\\\n[TOOL a {}] \" [TOOL b {}]", "tool a {}; tool b {}"},
	{12, "\t\t````x\n[TOOL a {}]\n```\n\t\t   ````\t\r\n[TOOL b {}]", "tool b {}"},
	{12, "```x\n    ```\n[TOOL a {}]\n   ```\n[TOOL b {}]", "tool b {}"},
	{12, " \t```x\n       ```\n[TOOL b {}]", "tool b {}"}, // a tab goes to column 4
	{12, "~~~ `x` ~~~\n[TOOL a {}]\n```\n~~~~ \n[TOOL b {}]", "tool b {}"},
	{12, "```md\n````tool\n```\n[TOOL a {}]\n````\n[TOOL b {}]\n```\n[TOOL c {}]", "tool c {}"},
	{12, "~~~md\n```tool\n~~~\n[TOOL b {}]", "tool b {}"},
	{12, "```md\n- ```tool #abc\n  ```\n[TOOL a {}]\n```\n[TOOL b {}]", "tool b {}"},
	{12, "123456789) ```x\n[TOOL a {}]\n```\n[TOOL b {}]", "tool b {}"},
	{12, "1234567890. ```x\n[TOOL a {}]\n```\n", ""},
	{12, "- 1) *\t+ > [TOOL a {}]\n-> [TOOL b {}]\n1.> [TOOL c {}]\n1 > [TOOL d {}]\n- | [TOOL e {}]", "tool b {}; tool c {}; tool d {}; tool e {}"},
	{12, "- a\n- &gt; [TOOL a {}]\n1. &gt; [TOOL b {}]", ""},
	{12, "```\n<!-- ```\n<think>\n```\n[TOOL a {}]", "tool a {}"},
	{13, "<thinking\n>[TOOL a {}]</think></thinking>[TOOL b {}]", "tool b {}"},
	{13, "<Reasoning >[TOOL a {}]</REASONING>> [TOOL b {}]\n[TOOL c {}]", "tool c {}"},
	{13, "<thinker>[TOOL a {}] <think/>[TOOL b {}] `<think>`[TOOL c {}]", "tool a {}; tool b {}; tool c {}"},
	{13, "<<think>[TOOL a {}]<</think>[TOOL b {}]", "tool b {}"},
	{14, "<!-->[TOOL a {}]<!--->[TOOL b {}]\\<!--[TOOL c {}]-- >--->[TOOL d {}]<!- [TOOL e {}]", "tool a {}; tool b {}; tool d {}; tool e {}"},
	{14, "<!-- x -->> [TOOL a {}]", "tool a {}"}, // behind it no line begins

	// 15 to 18: directive fences.
	{15, "```  TOOL   #abc \r\na {}\n```", "tool a {} #abc"},
	{15, "```tool#abc\na {}\n```\n~~~exec #ab\na {}\n~~~\n~~~box #abc x\na {}\n~~~\n~~~ #abc\na {}\n~~~\n[TOOL b {}]", "tool b {}"},
	{16, "```tool\na {}b{}{\"op\":\"c\"}[{\"op\":\"d\"},\n{\"op\":\"e\"}][TOOL f {}]\n```", "tool a {}; tool b {}; tool c {}; tool d {}; tool e {}; tool f {}"},
	{16, "```tool\na\n{}\nb\t \r{}\n```", "tool b {}"},
	{16, "```tool\n{\"\\u006fp\":\"\\u0061\",\"id\":\"\\u00e9\"}\n{\"op\":\"9\"}\n{\"op\":\"\"}\n{\"op\":{}}\n{}\n{\"op\":\"a\",\"params\":[]}\n{\"op\":\"a\",\"key\":\"\"}\n{\"op\":\"a\",\"id\":1}\n```", "tool a {} @é"},
	{16, "```tool\n[{\"op\":\"a\"},1]\n[{\"op\":\"a\"},[]]\n[[{\"op\":\"a\"}]]\n[\"a\"]\n[\n{\"op\":\"b\",\"params\":{\"op\":1}}]\n```", `tool b {"op":1}`},
	{16, "```exec #abc\n[DM {}]\n[DM#xyz {}]\n{\"op\":\"a\",\"key\":\"k\"}\na {}\n```", "dm dm.send {} #abc; dm dm.send {} #xyz; exec a {} #k; exec a {} #abc"},
	{16, "```tool\n[TOOL\nb {}\n```\n~~~tool\n[TOOL\nx y\nb {}\n~~~", "tool b {}"}, // what fails is left at its line's end
	{17, "```box\nstatus\r\n box  agents \nbox\nbox box\nagents box x\nstatus; x\n9\nstatus \xff\nthread t {\nop {\"a\":1}\na {} status\n```", `box box.exec {"action":"status"}; box box.exec {"action":"agents"}; box box.exec {"action":"agents","arg":"box x"}; box op {"a":1}; box a {}`},
	{17, "```box\nthread \"\\\t\x01é\n```", `box box.exec {"action":"thread","arg":"\"\\\u0009\u0001é"}`},
	{17, "```tool\nstatus\n```\n```box\nstatus", `box box.exec {"action":"status"}`},
	{17, "```box\n[TOOL a {} x\nstatus\n</think>\n<think>x</think>status\n<!-- -->status\n```", `box box.exec {"action":"status"}; box box.exec {"action":"status"}`},
	{18, "```tool\nx y <!-- \na {}\n--> b {}\nc {}\n<!-- --> d {}\n```", "tool c {}; tool d {}"},
	{18, "```tool\nx <think>\na {}</think>b {}\n```", "tool b {}"},
	{18, "```tool\n<!--\n```\n[TOOL a {}]-->[TOOL b {}]", "tool b {}"},
	{17, "```box\nnow <think></think>status x {\nnow <think></think>status\nnow <think>{</think>status\nnow <think></think>[{\"op\":\"a\"}]\nx<!-- { --> b {}\n```", `box box.exec {"action":"now","arg":"<think></think>status"}; box box.exec {"action":"status"}; box a {}`},
	{17, "```box\nbox Foo <!--\nstatus\n-->\nthread \xff <!--\nstatus\n-->\nthread \xc3<!--\nstatus\n-->\nbox box <!--\nstatus\n-->\nbox\tthread \xc3\xa9 <!--\nbox now\n```", `box box.exec {"action":"thread","arg":"é <!--"}; box box.exec {"action":"now"}`},
	{17, "```box\nthread \xc3", ""},
	{17, "```box\nnow <think></think>```{\n```\n[TOOL a {}]", "tool a {}"},
	{18, "```tool\na {x\n[TOOL b {}]\nc {}\n```", "tool b {}; tool c {}"},
	{18, "```tool\na {x} b {}\n{\"op\":\"a\"\n````tool\nc {}\n```\n[TOOL d {}]", "tool c {}; tool d {}"},
	{18, "```tool\na {\"x\":`\n```\n[TOOL b {}]", ""}, // the backtick at the error quotes
	{18, "```tool\na {\"x\":1\n}b{}\n```", `tool a {"x":1` + "\n" + `}; tool b {}`},
	{18, "```tool\n[TOOL a {}\n```\n[TOOL b {}]", "tool b {}"},

	// 19 to 21: curl.
	{19, "curl\thttp://h/exec -d '{\"op\":\"a\"}'\r\n [TOOL b {}]", "curl a {}; tool b {}"},
	{19, "$ curl http://h/exec -d '{\"op\":\"a\"}'", "curl a {}"},
	{19, "$curl http://h/exec -d '{\"op\":\"a\"}'\nx curl http://h/exec -d '{\"op\":\"b\"}'\n- curl http://h/exec -d '{\"op\":\"c\"}'", ""},
	{19, "```Console\n# x\n\n$ curl http://h/exec -d '{\"op\":\"a\"}'\n  curl http://h/exec -d '{\"op\":\"b\"}'\nls\ncurl http://h/exec -d '{\"op\":\"c\"}'\n```", "curl a {}; curl b {}"},
	{19, "```sh x\ncurl http://h/exec -d '{\"op\":\"a\"}'\n```\n```tool\ncurl http://h/exec -d '{\"op\":\"a\"}'\n```", ""},
	{19, "```sh\ncurl http://h/exec -d '{\"op\":\"a\"}\n```\n[TOOL b {}]'", "tool b {}"},
	{19, "```sh\ncurl http://h/exec -d '{\"op\":\n\n\"a\"}'\n```", "curl a {}"}, // blank lines count in prose only
	{19, "curl http://h/exec -d '{\"op\":\n \t\r\n\"a\"}'\n[TOOL b {}]", "tool b {}"},
	{19, "curl http://h/exec/ -d '{\"op\":\"a\"}'\ncurl http://h/exec?x -d '{\"op\":\"a\"}'\ncurl 'http://h:1/v1/exec?x#y' -d '{\"op\":\"b\"}'", "curl b {}"},
	{19, "curl ftp://h/exec -d '{\"op\":\"a\"}'\ncurl -d '{\"op\":\"a\"}' h/exec\ncurl -d '{\"op\":\"a\"}' HTTPS://H/exec", "curl a {}"},
	{19, "curl 'http://h/{a,exec}/exec' -d '{\"op\":\"a\"}'\ncurl 'http://h/[1-2]/exec' -d '{\"op\":\"a\"}'\ncurl 'http://[::1]:8/exec' -d '{\"op\":\"b\"}'", "curl b {}"},
	{19, "curl \\\n  http://h/exec \\\r\n  -d \\\n '{\"op\":\"a\"}'\n", "curl a {}"},
	{19, "curl -H \"x: $(echo 'a\nb' ${c:-\"}\"} `d`)\" http://h/exec -d '{\"op\":\"a\"}'\n[TOOL b {}]", "curl a {}; tool b {}"},
	{20, "curl -sSfLkivN# -XPOST -d'{\"op\":\"a\"}' --url http://h/exec", "curl a {}"},
	{20, "curl --silent --json \"{\\\"op\\\":\\\"a\\\",\\\"params\\\":{\\\"x\\\":\\\"\\$\\`\\\\\\\\\\\"}}\" http://h/exec", "curl a {\"x\":\"$`\\\\\"}"},
	{20, "curl -H\"x: $T\" -u $U -H ~/x -H x* -d '{\"op\":\"a\"}' http://h/exec", "curl a {}"},
	{20, "curl -d '{\"op\":\"a\"}' http://h/exec -o $X\ncurl -d \"{\\\"op\\\":\\\"a\\\"}$\" http://h/exec\ncurl -H -d '{\"op\":\"a\"}' http://h/exec", ""},
	{20, "curl -d '{\"op\":\"a\"}' http://h/exec > x\ncurl -d '{\"op\":\"a\"}' http://h/exec <x\ncurl -d '{\"op\":\"a\"}' http://h/exec &\ncurl -d '{\"op\":\"a\"}' http://h/exec <<<x", ""},
	{20, "curl -d '{\"op\":\"a\"}' http://h/exec\r#x\ncurl -d '{\"op\":\"a\"}' http://h/exec x=1\ncurl -d '{\"op\":\"b\"}' http://h/exec#x #\"", "curl b {}"}, // #x is a fragment
	{20, "curl -d @- http://h/exec <<EOF\n{\"op\":\"a\",\n\"params\":{\"x\":\"\\$\\\\n\"}}\nEOF\n[TOOL b {}]", "curl a {\"x\":\"$\\n\"}; tool b {}"},
	{20, "curl -d @- http://h/exec <<-\"E F\"\n\t{\"op\":\"a\"}\n\tE F", "curl a {}"},
	{20, "curl -d @- http://h/exec <<E\n{\"op\":\"a\",\"params\":{\"x\":\"$y\"}}\nE\ncurl -d @- http://h/exec 0<<E\n{\"op\":\"a\"}\nE\ncurl -d '{\"op\":\"a\"}' http://h/exec <<E\nE\ncurl -d @- http://h/exec\n[TOOL b {}]", "tool b {}"},
	{20, "curl -d @- http://h/exec <<A <<B\n{\"op\":\"a\"}\nA\n[TOOL b {}]\nB\n[TOOL c {}]", "tool c {}"},
	{20, "curl -d @- <<E http://h/exec\n{\"op\":\"a\"}\nEE\nE \n", ""},
	{20, "curl -d $'{\"op\":\"\\x61\"}' http://h/exec\ncurl -d $\"{}\" http://h/exec\ncurl -d {} http://h/exec", "curl a {}"},
	{20, "curl -d '{\"op\":\"a\"}' http://h/exec -- \ncurl -d '{\"op\":\"a\"}' http://h/exec - \ncurl -d '{\"op\":\"a\"}' http://h/exec -s$x\ncurl -d '{\"op\":\"a\"}' http://h/exec -x y\ncurl -d '{\"op\":\"a\"}' http://h/exec --data-urlencode y", ""},
	{20, "curl -d '{\"op\":\"z\"}' http://h/exec \x00\ncurl -d '{\"op\":\"a\"}' http://h/exec -H \xff\ncurl -d '{\"op\":\"b\"}' http://h/exec -H '\xff'", "curl a {}; curl b {}"},
	{20, "curl -d $'{\"op\":\"a\r\"}' http://h/exec\ncurl -d \"{\x00\\\"op\\\":\\\"a\\\"}\" http://h/exec\ncurl -d '{\"op\":\"a\"}' http://h/exec\\\rx\n", ""},
	{20, "curl -d $'{\"op\":\"a\",\"id\":\"\\ud83d\"}' http://h/exec\ncurl -H $$( http://h/exec\n[TOOL b {}]", "tool b {}"},
	{21, "curl http://h/exec -d ' \r\n {\"op\":\"a\",\"key\":\"k\",\"id\":\"i\"}\n'", "curl a {} #k @i"},
	{21, "curl http://h/exec -d '[{\"op\":\"a\"}]'\ncurl http://h/exec -d '{\"op\":\"a\"} x'\ncurl http://h/exec -d ''\ncurl http://h/exec -d '{\"op\":\"a\",\"x\":1}'", ""},

	// 22 to 24.
	{22, "```box\nstatus\n```\ncurl -d '{\"op\":\"a\"}' http://h/exec\n", `box box.exec {"action":"status"}; curl a {}`},
	{23, strings.Repeat("[TOOL a {", 50) + "\n[TOOL b {}]", "tool b {}"},
	{24, strings.Repeat("[TOOL a {}]", 20), strings.Repeat("tool a {}; ", 19) + "tool a {}"},
}

// brief writes directives as the rules do.
func brief(all []Directive) string {
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s %s %s", d.Form, d.Op, d.Params)
		if d.Key != "" {
			b.WriteString(" #" + d.Key)
		}
		if d.ID != "" {
			b.WriteString(" @" + d.ID)
		}
	}
	return b.String()
}

func TestRules(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range rules {
		got, _ := harvest(anyHost, true, []byte(c.reply))
		if brief(got) != c.want {
			t.Errorf("rule %d: %q:\ngot  %s\nwant %s", c.rule, c.reply, brief(got), c.want)
			continue
		}
		for k := range 10 {
			pieces := cuts([]byte(c.reply), 1)
			if k > 0 {
				pieces = randomCuts([]byte(c.reply), r)
			}
			if got, _ := harvest(anyHost, true, pieces...); brief(got) != c.want {
				t.Errorf("rule %d, cut as %q:\ngot  %s\nwant %s", c.rule, pieces, brief(got), c.want)
			}
		}
	}
}

// Each rule has a case, here or among the vectors.
func TestEveryRuleHasCases(t *testing.T) {
	seen := make(map[int]bool)
	for _, c := range rules {
		seen[c.rule] = true
	}
	for rule := 1; rule <= 24; rule++ {
		if !seen[rule] {
			t.Errorf("rule %d has no case", rule)
		}
	}
}

// A reply that is broken off has no end: its last line completes nothing.
func TestBrokenOff(t *testing.T) {
	for reply, want := range map[string]string{
		"```box\nstatus":                                  `box box.exec {"action":"status"}`,
		"```box\nthread 1":                                `box box.exec {"action":"thread","arg":"1"}`,
		"curl -d '{\"op\":\"a\"}' http://h/exec":          "curl a {}",
		"curl -d @- http://h/exec <<E\n{\"op\":\"a\"}\nE": "curl a {}",
	} {
		if got, _ := harvest(anyHost, true, []byte(reply)); brief(got) != want {
			t.Errorf("%q, complete: got %s, want %s", reply, brief(got), want)
		}
		if got, _ := harvest(anyHost, false, []byte(reply)); len(got) != 0 {
			t.Errorf("%q, broken off: got %s, want nothing", reply, brief(got))
		}
		if got, _ := harvest(anyHost, false, []byte(reply+"\n")); brief(got) != want {
			t.Errorf("%q and a line break, broken off: got %s, want %s", reply, brief(got), want)
		}
	}
}

func TestThinking(t *testing.T) {
	for _, name := range []string{"think", "thinking", "Reasoning"} {
		reply := "[TOOL a {}] </thin> </" + name + ">[TOOL b {}]<think>[TOOL c {}]</thinking>"
		got, _ := harvest(Config{Thinking: true}, true, []byte(reply))
		if brief(got) != "tool b {}" {
			t.Errorf("%q: got %s, want tool b {}", reply, brief(got))
		}
	}
}

func TestLimits(t *testing.T) {
	rep := strings.Repeat
	nest := func(n int) string { return rep(`{"n":`, n-1) + "{}" + rep("}", n-1) }
	call := func(key, id string) string {
		return "```tool\n" + `{"op":"a","key":"` + key + `","id":"` + id + "\"}\n"
	}
	curl := func(header string) string {
		return "curl -H \"" + header + "\" -d '{\"op\":\"a\"}' http://h/exec\n"
	}
	fill := func(head, tail string, n int) string { return head + rep("x", n-len(head)-len(tail)) + tail }
	const MiB = 1 << 20
	for _, c := range []struct {
		what     string
		in, over string // within the limit, and one more
	}{
		{"op name", "[TOOL " + rep("a", 128) + " {}]", "[TOOL " + rep("a", 129) + " {}]"},
		{"op name of an item", "```tool\n" + rep("a", 128) + " {}", "```tool\n" + rep("a", 129) + " {}"},
		{"op name of a call object", "```tool\n{\"op\":\"" + rep("a", 128) + "\"}", "```tool\n{\"op\":\"" + rep("a", 129) + "\"}"},
		{"space before the op", "[TOOL" + rep(" ", 256) + "a {}]", "[TOOL" + rep(" ", 257) + "a {}]"},
		{"space before the object", "[TOOL a" + rep("\n", 256) + "{}]", "[TOOL a" + rep("\n", 257) + "{}]"},
		{"space in a DM", "[DM" + rep("\t", 256) + "{}]", "[DM" + rep("\t", 257) + "{}]"},
		{"long key", "[TOOL#" + rep("a", 32) + " a {}]", "[TOOL#" + rep("a", 33) + " a {}]"},
		{"short key", "[TOOL#abc a {}]", "[TOOL#ab a {}]"},
		{"long key of a fence", "```tool #" + rep("a", 32) + "\na {}", "```tool #" + rep("a", 33) + "\na {}"},
		{"short key of a fence", "```tool #abc\na {}", "```tool #ab\na {}"},
		{"key of a call object", call(rep("k", 128), "i"), call(rep("k", 129), "i")},
		{"id of a call object", call("k", rep("i", 128)), call("k", rep("i", 129))},
		{"escaped id", call("k", rep(`\u0069`, 128)), call("k", rep(`\u0069`, 129))},
		{"id counted in bytes", call("k", rep("é", 64)), call("k", rep("é", 64)+"i")},
		{"nesting", "[TOOL a " + nest(128) + "]", "[TOOL a " + nest(129) + "]"},
		{"nesting with arrays", `[TOOL a {"x":` + rep("[", 127) + rep("]", 127) + "}]", `[TOOL a {"x":` + rep("[", 128) + rep("]", 128) + "}]"},
		{"directive", fill(`[TOOL a {"x":"`, `"}]`, MiB), fill(`[TOOL a {"x":"`, `"}]`, MiB+1)},
		{"directive with space before its end", `[TOOL a {}` + rep(" ", MiB-11) + "]", `[TOOL a {}` + rep(" ", MiB-10) + "]"},
		{"item", "```tool\n" + fill(`a {"x":"`, `"}`, MiB), "```tool\n" + fill(`a {"x":"`, `"}`, MiB+1)},
		{"call object", "```tool\n" + fill(`{"op":"a","params":{"x":"`, `"}}`, MiB), "```tool\n" + fill(`{"op":"a","params":{"x":"`, `"}}`, MiB+1)},
		{"action", "```box\n" + fill("thread ", "\n", MiB+1), "```box\n" + fill("thread ", "\n", MiB+2)},
		{"curl", fill("curl http://h/exec -d '{\"op\":\"a\"}' #", "\n", MiB+1), fill("curl http://h/exec -d '{\"op\":\"a\"}' #", "\n", MiB+2)},
		{"curl with CRLF", fill("curl http://h/exec -d '{\"op\":\"a\"}' #", "\r\n", MiB+2), fill("curl http://h/exec -d '{\"op\":\"a\"}' #", "\r\n", MiB+3)},
		{"$( in curl", curl(rep("$(", 50) + rep(")", 50)), curl(rep("$(", 51) + rep(")", 51))},
		{"$(( in curl", curl(rep("$((", 50) + "1" + rep("))", 50)), curl(rep("$((", 51) + "1" + rep("))", 51))},
		{"${ in curl", curl(rep("${a:-", 50) + rep("}", 50)), curl(rep("${a:-", 51) + rep("}", 51))},
	} {
		for _, size := range []int{4 * MiB, 1000, 1} {
			if size == 1 && len(c.in) > MiB/2 {
				continue
			}
			if got, _ := harvest(anyHost, true, cuts([]byte(c.in), size)...); len(got) != 1 {
				t.Errorf("%s at its limit, in pieces of %d: got %d directives, want 1", c.what, size, len(got))
			}
			if got, _ := harvest(anyHost, true, cuts([]byte(c.over), size)...); len(got) != 0 {
				t.Errorf("%s over its limit, in pieces of %d: got %d directives, want none", c.what, size, len(got))
			}
		}
	}
}

// A directive that is too long is broken where it is, in a string perhaps.
func TestTooLongIsBrokenThere(t *testing.T) {
	const MiB = 1 << 20
	head := `[TOOL a {"x":"`
	reply := head + strings.Repeat("x", MiB) + `[TOOL b {}]"}] [TOOL c {}]`
	got, s := harvest(Config{}, true, []byte(reply))
	if brief(got) != "tool c {}" || s.Broken() != 1 {
		t.Errorf("got %s and %d broken, want tool c {} and 1", brief(got), s.Broken())
	}
}

func TestBrokenCount(t *testing.T) {
	for reply, want := range map[string]int{
		"":                                     0,
		"[TOOL a] [DM] [TOOL x y":              0, // mentions
		"[TOOL a {x}]":                         1,
		"[TOOL a {} x]":                        1,
		"[TOOL a {":                            1,
		"[TOOL a {}":                           1,
		"```tool\n{\"op\":1}\n[1]\na {\n```\n": 3,
	} {
		if _, s := harvest(Config{}, true, []byte(reply)); s.Broken() != want {
			t.Errorf("%q: %d broken, want %d", reply, s.Broken(), want)
		}
	}
}

func TestExplain(t *testing.T) {
	reply := "> [TOOL a {}]\n> x\n`[TOOL a {}] ``` ` `x` \\[TOOL a {}] \\[1] \"[x]\"\n```\n[TOOL a {}]\n```\n<!-- [TOOL a {}] --><!-- x -->\n" +
		"<think>[TOOL a {}]</think>\n[TOOL a {x}] [TOOL a {} x] <x [DM]\ncurl -d x http://h/exec\n~~~ sh\n<!-- [DM {}]"
	want := []string{
		`9 "> [TOOL a {}]\n"`,
		"10 \"`[TOOL a {}] ``` `\"",
		`11 "["`,
		`12 "[TOOL a {}]\n"`,
		`14 "<!-- [TOOL a {}] -->"`,
		`13 "<think>[TOOL a {}]</think>"`,
		`8 "[TOOL a {"`,
		`5 "[TOOL a {} "`,
		`19 "curl -d x http://h/exec"`,
		`12 "<!-- [DM {}]"`,
	}
	for _, size := range []int{1000, 7, 1} {
		var got []string
		c := Config{Explain: func(f Finding) {
			got = append(got, fmt.Sprintf("%d %q", f.Rule, reply[f.Start:f.End]))
		}}
		harvest(c, true, cuts([]byte(reply), size)...)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("in pieces of %d: got\n%s\nwant\n%s", size, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestWriteAfterClose(t *testing.T) {
	s := New(Config{})
	s.Close(true)
	if n, err := s.Write([]byte("[TOOL a {}]")); n != 0 || err != ErrClosed {
		t.Errorf("got %d, %v, want 0, ErrClosed", n, err)
	}
	s.Reset()
	if n, err := s.Write([]byte("[TOOL a {}]")); n != 11 || err != nil {
		t.Errorf("after Reset: got %d, %v, want 11, nil", n, err)
	}
}

// A scanner that is used again begins anew, whatever it was in.
func TestReset(t *testing.T) {
	var n int
	s := New(Config{Found: func(Directive) { n++ }, ExecHosts: []string{"*"}})
	for _, c := range rules {
		s.Write([]byte(c.reply))
		s.Close(false)
		s.Reset()
		n = 0
		s.Write([]byte("[TOOL a {}]"))
		s.Close(true)
		if n != 1 || s.Broken() != 0 {
			t.Errorf("after %q: got %d directives and %d broken, want 1 and 0", c.reply, n, s.Broken())
		}
		s.Reset()
	}
}

func TestParamsAreLent(t *testing.T) {
	reply := []byte(`[TOOL a {"x":1}] [TOOL b {"y":2}]`)
	all, _ := All(reply, Config{})
	if len(all) != 2 {
		t.Fatalf("got %d directives, want 2", len(all))
	}
	// Appending to one must not write into the reply.
	_ = append(all[0].Params, "!!!!"...)
	if !bytes.Equal(reply, []byte(`[TOOL a {"x":1}] [TOOL b {"y":2}]`)) {
		t.Errorf("the reply has become %q", reply)
	}
}
