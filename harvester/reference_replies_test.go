package harvester_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"inband/harvester"
)

// The scanner and the reference must read every reply alike, in one piece and
// in many. A difference is shrunk before it is shown.

var refHosts = []string{"h", "box.test"}

func TestReferenceVectors(t *testing.T) {
	for _, v := range refVectors(t) {
		var want []refDirective
		for _, e := range v.Expect {
			d := refDirective{Op: e.Op, Params: e.ParamsRaw, Form: e.Form, Key: e.Key, ID: e.ID, Start: e.Start, End: e.End}
			if d.Params == "" {
				d.Params, d.Made = string(e.Params), true
			}
			want = append(want, d)
		}
		got := reference([]byte(v.Reply), v.ExecHosts, false, true, false)
		if !refSame(got, want) {
			t.Errorf("%s (%s)\ninput %q\ngot\n%swant\n%s", v.ID, v.Why, v.Reply, refShow(got), refShow(want))
		}
	}
}

// TestReferenceReplies compares a fixed set of random replies; FuzzReference
// goes on from there.
func TestReferenceReplies(t *testing.T) {
	vectors := refReplies(t)
	calls := 0
	for seed := range uint64(10_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		reply := refReply(r, vectors)
		calls += refCompare(t, reply, r.IntN(20) == 0, r.IntN(4) > 0, r.IntN(2) == 0, r)
	}
	if calls < 1000 {
		t.Errorf("only %d calls in all: the replies have stopped meaning anything", calls)
	}
}

// TestReferenceLimits compares replies that stand about the limits.
func TestReferenceLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("reads tens of mebibytes")
	}
	for _, reply := range refLimitReplies() {
		refCompare(t, []byte(reply), false, true, strings.Contains(reply, "RESULT"), rand.New(rand.NewPCG(1, 1)))
	}
}

func FuzzReference(f *testing.F) {
	for _, reply := range refReplies(f) {
		f.Add([]byte(reply), uint64(0), false, true)
	}
	for _, scene := range refScenes {
		f.Add([]byte(scene), uint64(0), true, false)
	}
	f.Fuzz(func(t *testing.T, reply []byte, cuts uint64, thinking, complete bool) {
		if len(reply) > 1<<12 {
			t.Skip("the reference reads again and again")
		}
		refCompare(t, reply, thinking, complete, cuts%2 == 1, rand.New(rand.NewPCG(cuts, 1)))
	})
}

// refCompare reads a reply in one piece and in random ones, and returns how
// many calls it holds.
func refCompare(t *testing.T, reply []byte, thinking, complete, results bool, r *rand.Rand) int {
	t.Helper()
	differs := func(reply []byte) bool {
		want, got := reference(reply, refHosts, thinking, complete, results), refScan(thinking, complete, results, reply)
		return !refSame(got, want) && !refUndecided(reply, want) && !refUndecided(reply, got)
	}
	if differs(reply) {
		if len(reply) < 1<<12 {
			reply = refShrink(reply, differs)
		}
		t.Errorf("input %.200q (%d bytes)\nthinking %v, complete %v, results %v\ngot\n%swant\n%s", reply, len(reply), thinking, complete, results,
			refShow(refScan(thinking, complete, results, reply)), refShow(reference(reply, refHosts, thinking, complete, results)))
		return 0
	}
	whole := refScan(thinking, complete, results, reply)
	pieces := refCuts(reply, r)
	if got := refScan(thinking, complete, results, pieces...); !refSame(got, whole) {
		t.Errorf("input %.500q\nthinking %v, complete %v, results %v\ngot in pieces\n%swant\n%s", pieces, thinking, complete, results, refShow(got), refShow(whole))
	}
	return len(whole)
}

// refUndecided says that a curl command holds what the grammar leaves open:
// invalid UTF-8 where it cannot matter, a NUL in a comment, bash's old
// arithmetic.
func refUndecided(reply []byte, calls []refDirective) bool {
	for _, d := range calls {
		text := reply[d.Start:d.End]
		if d.Form == "curl" && (!utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 || bytes.Contains(text, []byte("$["))) {
			return true
		}
	}
	return false
}

// refScan is the scanner's reading. Pieces are spoilt once they are read.
func refScan(thinking, complete, results bool, pieces ...[]byte) []refDirective {
	var out []refDirective
	found := func(d harvester.Directive) {
		out = append(out, refDirective{Op: d.Op, Params: string(d.Params), Form: string(d.Form), Key: d.Key, ID: d.ID, Start: int(d.Start), End: int(d.End)})
	}
	c := harvester.Config{ExecHosts: refHosts, Thinking: thinking, Found: found}
	if results {
		c.Result = found
	}
	s := harvester.New(c)
	for _, p := range pieces {
		lent := bytes.Clone(p)
		s.Write(lent)
		for i := range lent {
			lent[i] = 'X'
		}
	}
	s.Close(complete)
	return out
}

func refCuts(b []byte, r *rand.Rand) (pieces [][]byte) {
	for len(b) > 0 {
		n := 1 + r.IntN(1+r.IntN(min(len(b), 40)))
		if len(b) > 1<<16 {
			n = 1 + r.IntN(1<<16)
		}
		pieces = append(pieces, b[:n])
		b = b[n:]
	}
	return pieces
}

func refSame(got, want []refDirective) bool {
	if len(got) != len(want) {
		return false
	}
	for i, w := range want {
		g := got[i]
		if w.Made && refSameJSON(g.Params, w.Params) {
			g.Params = w.Params
		}
		g.Made = w.Made
		if g != w {
			return false
		}
	}
	return true
}

func refSameJSON(a, b string) bool {
	read := func(s string) (v any) {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			return err
		}
		return v
	}
	return reflect.DeepEqual(read(a), read(b))
}

// refShrink takes bytes away for as long as the reply stays bad.
func refShrink(s []byte, bad func([]byte) bool) []byte {
	for again := true; again; {
		again = false
		for n := len(s) / 2; n > 0; n /= 2 {
			for i := 0; i+n <= len(s); {
				if less := append(bytes.Clone(s[:i]), s[i+n:]...); bad(less) {
					s, again = less, true
				} else {
					i++
				}
			}
		}
	}
	return s
}

func refShow(calls []refDirective) string {
	var b strings.Builder
	for _, d := range calls {
		fmt.Fprintf(&b, "  %s %.60s %.100q key %q id %q %d-%d\n", d.Form, d.Op, d.Params, d.Key, d.ID, d.Start, d.End)
	}
	return b.String()
}

type refVector struct {
	ID, Why, Reply string
	ExecHosts      []string `json:"exec_hosts"`
	Expect         []struct {
		Op, Form, Key, ID string
		Params            json.RawMessage
		ParamsRaw         string `json:"params_raw"`
		Start, End        int
	}
}

func refVectors(t testing.TB) (all []refVector) {
	for _, file := range []string{"testdata/harvest.json", "testdata/reference.json"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v []refVector
		if err := json.Unmarshal(b, &v); err != nil || len(v) == 0 {
			t.Fatalf("%s: %d cases, %v", file, len(v), err)
		}
		all = append(all, v...)
	}
	return all
}

func refReplies(t testing.TB) (replies []string) {
	for _, v := range refVectors(t) {
		replies = append(replies, v.Reply)
	}
	return replies
}

// refPieces are what random replies are made of, by kind, so that a reply can
// lean towards one part of the grammar.
var refPieces = map[string][]string{
	"space": {" ", "  ", "\t", "\n", "\n", "\n", "\r\n", "\r", "\n\n", "    ", " \n", "\n \t\r\n"},
	"bracket": {"[TOOL a {}]", "[TOOL b {\"k\":1}]", "[EXEC c {\"s\":\"x\"}]", "[DM {\"to\":\"x\"}]", "[DM{}]", "[TOOL#k7q2 d {}]",
		"[DM#abc {}]", "[TOOL ", "[TOOL", "[EXEC ", "[DM ", "[DM", "[TOOL a ", "[TOOL a {", "[TOOL a {\"k\":", "[TOOL a {\"k\":\"", "[EXEC a\n{",
		"[TOOL\n", "[TOOL#", "[TOOL#ab ", "[tool a {}]", "[TOOL a{}]", "[TOOL a b {}]", "[TOOL a,{}]", "[", "]", "#k7q2", "#abc", "a", "op.x", "1op",
		"TOOL", "DM", "[[TOOL a {}]]", "[TOOL x {}\n", "[TOOL x {}", "] ", "}]", "{}]", "{}",
		"[RESULT {\"verdict\":\"done\"}]", "[RESULT {}]", "[RESULT#k7q2 {}]", "[RESULT", "[RESULT ", "[RESULT a {}]", "[RESULT {", "[RES", "RESULT", "\n[RESULT {}]", "[RESULT {\"k\":\"[TOOL r {}]\"}]", "[RESULT {} x]"},
	"json": {"{", "}", "[", "]", ":", ",", "\"", "\"k\"", "\"k\":", "\"\\u006b\":1", "\"a b\"", "1", "0", "-", "01", "1.5", "1.", "-0.5e+10", "2e", "true", "tru", "null", "nul", "false",
		"\\", "\\\"", "\\\\", "\\u", "\\u00e9", "\\ud83d", "\\ude00", "\\ud83d\\ude00", "\\udc00", "\\n", "\\a", "'", "'x'", "{\"k\":1}", "{\"k\":[1,{\"n\":[]}]}", "{\"k\":1,\"k\":2}",
		"{\"k\":1,}", "{k:1}", "{'k':1}", "{\"k\":`x`}", "{\"k\":\"x\ny\"}", "é", "\xff", "\xc3", "\xe2\x80", "\x00", "\x01", "{\"\":{}}", "}}", "]]", "{\"k\":\"", "\"}"},
	"call": {"{\"op\":\"a\"}", "{\"op\":\"b\",\"params\":{\"n\":1}}", "{\"op\":\"c\",\"key\":\"k7q2\",\"id\":\"i-1\"}", "[{\"op\":\"d\"},{\"op\":\"e\"}]", "[]", "[{\"op\":\"d\"},{\"nop\":1}]",
		"{\"op\":\"a\",\"args\":{}}", "{\"op\":1}", "{\"op\":\"\"}", "{\"op\":\"a b\"}", "{\"op\":\"a\",\"id\":\"\"}", "{\"op\":\"a\",\"params\":[]}", "{\"\\u006fp\":\"a\"}", "{\"params\":{}}", "a {}", "b {\"k\":1}",
		"a\n{}", "a{}", "dm.send {\"to\":\"x\"}", "{}", "[{\"op\":\"a\"}", "[{\"op\":\"a\",", "{\"op\":\"a\""},
	"fence": {"```", "````", "~~~", "~~~~", "`````", "```tool\n", "```exec\n", "```box\n", "```Tool\n", "~~~tool\n", "````tool\n", "```tool #k7q2\n", "```tool#k7q2\n", "``` tool\n", "```tool x\n", "```tool #NO\n", "~~~box #abc\n",
		"```json\n", "```\n", "```sh\n", "```bash\n", "```Console\n", "~~~sh\n", "```bash x\n", "```md\n", "````md\n", "\n```\n", "\n```\n", "\n~~~\n", "\n  ```\n", "\n    ```\n", "\n\t```\n", "```\r\n", "``` \r \n", "```tool `x`\n", "~~~tool ~\n", "\n````\n", "```tool\r\n", "\n- ```\n", "- ```tool\n"},
	"list":  {"- ", "* ", "+ ", "1. ", "12) ", "1234567890. ", "-", "-\t", "1.\t", "> ", ">", "&gt; ", "|", "| ", "- > ", "- | ", "1. - ", "- - ```tool\n", "-\r", "> ```tool\n", "&gt"},
	"tick":  {"`", "`", "``", "```", "\\`", "` `", "``x``", "`x`", "`````"},
	"quote": {"\\", "\\\\", "\"", "'", "“", "‘", "«", "”", "\\[", "\"[TOOL a {}]\"", "\\[TOOL a {}]", "\\\\[TOOL a {}]", "“[TOOL a {}]”"},
	"hidden": {"<!--", "-->", "<!-->", "<!--->", "<!-- x -->", "<think>", "</think>", "<thinking>", "</thinking>", "<reasoning>", "</reasoning>", "<THINK ", "</Think>", "<think\n", "<thin", "<!-", "--", "->", "<", ">", "</think", "<think>x</think>",
		"`<!--`", "</think >"},
	"box": {"status", "box status", "box", "box box", "thread t-17", "thread  t 17 ", "RM -rf /", "status; reboot", "thread {x", "thread {\"k\":1}", "box a {}", "box thread {\"k\":1}", "box {\"op\":\"a\"}", "a.b-c_d", "a\tb", "status \u00a0", "say \"x\\y\"", "say <!-- x -->", "say \xff", "say x{}", "say é\x01", "status\r"},
	"curl": {"curl https://h/exec -d '{\"op\":\"a\"}'", "curl -d '{\"op\":\"b\",\"params\":{\"k\":\"x\"}}' https://h/exec", "$ curl https://h/exec -d '{\"op\":\"a\"}'", "curl ", "curl -", "curl 'http://h/exec' ", "curl \"http://h:80/exec\" ", "curl $'http://h/exec' ",
		"curl http://evil/exec -d '{\"op\":\"a\"}'", "curl http://h/exec", "https://h/exec", "http://H/x/exec", "http://h/exec?x", "'http://h/exec?x=1'", "http://h/exec/", "http://u@h/exec", "-d ", "-d '{\"op\":\"c\"}'", " -d \"{\\\"op\\\":\\\"a\\\"}\"", "--json '{\"op\":\"j\"}'", "--data-raw ", "--data ", "-d@-", "-d @- <<EOF\n{\"op\":\"h\"}\nEOF\n", "-d @- <<'EOF'\n{\"op\":\"h\"}\nEOF\n", "--json @- <<-\"E F\"\n\t{\"op\":\"h\"}\n\tE F\n",
		" <<EOF\n", "EOF\n", "\nEOF", "<<'X'\nX\n", "<<<", "-sS ", "-X POST ", "-XPOST ", "-X GET ", "-sX POST ", "-H 'a: b' ", "-H \"A: $T\" ", "-H $(x) ", "-H \"$(x ')' )\" ", "-H ${x} ", "-H$x ", "-H\"$x\" ", "-sH \"a $x\" ", "-u$(x) ", "0<<EOF\n", "-d $'{\\x22op\\x22:\\n\"e\"}' ", "-d '{' -d", "'{\"op\":\"q\"'\\}", "\"$x\"", "\\\r", "$$", "`\\``", "-A \"a $ b\" ", "http://[::1]/exec ", "http://h:80/exec ", "HTTP://h/exec ", "-u `id` ", "-u a:b ", "-o x ", "-G ", "-k ", "--compressed ", "--url http://h/exec ", "-# ", "-- ",
		"| jq", "; rm x", "&& x", " & ", " > f", " 2>&1", " # it's done", "#x", "\\\n", "\\\r\n", " \\\n  ", "'", "\"", "$'", "$(", ")", "${", "}", "$((1<<2))", "$x", "$", "\"5$\"", "{a,b}", "*", "~", "\\*", "'\\''", "@body.json", "`x`", "$\"x\"", "\\", "(", "()", "!", "cat > x <<'EOF'\n", "# note\n", "ls -l\n"},
	"text": {"hello ", "the plan", "x", "1", ".", "(", "a[0]", "{k: v}", "https://x.test", "\u00a0", "\ufeff", "\u200b", "\xff", "\xe2\x80", "é", "\x00", "&quot;", "— ", "curl failed", "**b**", "# H"},
}

var refKinds = []string{"space", "bracket", "json", "call", "fence", "list", "tick", "quote", "hidden", "box", "curl", "text"}

// refScenes are openings that put random pieces where they matter.
var refScenes = []string{"", "", "", "\n", "[TOOL a {", "[TOOL a {\"k\":\"", "[TOOL a {x", "[TOOL a {\"n\":[", "[RESULT {\"k\":\"", "[RESULT {x", "```tool\n", "```exec #k7q2\n", "```box\n", "```box\n", "~~~tool\n", "  ```tool\n", "1. ```tool\n", "```sh\n", "```bash\n", "```sh\ncurl http://h/exec ", "```md\n", "````md\n", "curl http://h/exec ", "curl -d ", "curl https://h/exec -d '{\"op\":\"a\"}'",
	"```tool\n{", "```tool\na {", "```tool\n[", "```tool\n<!--", "```tool\n<think>", "```tool\nx ", "```tool\n[TOOL a {", "<think>", "<!--", "`", "```x ", "- ", "\ufeff"}

// refReply is a random reply, the same for the same r.
func refReply(r *rand.Rand, vectors []string) []byte {
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	switch r.IntN(9) {
	case 8:
		return refProse(r, vectors)
	case 0, 1:
		return refMutant(r, vectors)
	case 2, 3:
		return refSoup(r)
	}
	var b bytes.Buffer
	for range 1 + r.IntN(3) {
		b.WriteString(pick(refScenes))
		kinds := make([]string, 1+r.IntN(4))
		for k := range kinds {
			kinds[k] = pick(refKinds)
		}
		for range r.IntN(14) {
			if r.IntN(5) == 0 {
				b.WriteString(pick(refPieces["space"]))
			}
			b.WriteString(pick(refPieces[pick(kinds)]))
		}
		b.WriteString(pick([]string{"", "\n", "\n", "\n```\n", "\n\n"}))
	}
	if r.IntN(3) == 0 {
		b.WriteString("\n[TOOL z {}]")
	}
	return b.Bytes()
}

// refProse is plain text, at any offset of which something of the grammar may
// stand: what the scanner skips in strides must not be missed.
func refProse(r *rand.Rand, vectors []string) []byte {
	var b bytes.Buffer
	for range 1 + r.IntN(8) {
		for range r.IntN(50) {
			b.WriteByte("etaoin shrdlu\t\n\r -*+.)1>|&~`\\\"$curl[<TD#R"[min(r.IntN(41), r.IntN(41), r.IntN(41))])
		}
		switch r.IntN(5) {
		case 0:
			b.WriteString("\n")
			b.WriteString(refPieces["list"][r.IntN(len(refPieces["list"]))])
		case 1:
			b.WriteString("\n")
			b.WriteString(vectors[r.IntN(24)])
		}
		kind := refPieces[refKinds[r.IntN(len(refKinds))]]
		b.WriteString(kind[r.IntN(len(kind))])
	}
	b.WriteString("\n[TOOL z {}]")
	return b.Bytes()
}

// refSoup is a directive around an object that is JSON but for a few bytes.
func refSoup(r *rand.Rand) []byte {
	var b bytes.Buffer
	from := func(set string, most int) {
		for range r.IntN(most + 1) {
			b.WriteByte(set[r.IntN(len(set))])
		}
	}
	str := func() {
		b.WriteByte('"')
		for range r.IntN(4) {
			switch r.IntN(6) {
			case 0:
				b.WriteString("\\u")
				from("dD", 1)
				from("8bcf0", 1)
				for range 2 + r.IntN(2) {
					b.WriteByte("0123456789abcdefABCDEF"[r.IntN(22)])
				}
			case 1:
				b.WriteByte('\\')
				b.WriteByte("\"\\/bfnrtu'a`\n"[r.IntN(13)])
			case 2:
				b.WriteByte([]byte{0x7f, 0x80, 0xbf, 0xc1, 0xc2, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0x9f, 0xa0, 0x8f, 0x90}[r.IntN(17)])
				from("\x80\x9f\xa0\xbf\x8f\x90", 3)
			case 3:
				b.WriteString([]string{"é", "€", "𝄞", "\xed\x9f\xbf", "[TOOL y {}]", "}", "]", "\n```\n", "<!--"}[r.IntN(9)])
			default:
				from("ab {}[],:'`", 3)
			}
		}
		b.WriteByte('"')
	}
	var value func(deep int)
	value = func(deep int) {
		switch k := r.IntN(9); {
		case k < 2 && deep < 4:
			b.WriteByte('{')
			for n := range r.IntN(4) {
				if n > 0 {
					b.WriteByte(',')
				}
				if r.IntN(3) > 0 {
					b.WriteString([]string{`"a"`, `"b"`, `"\u0061"`, `""`, `"op"`}[r.IntN(5)])
				} else {
					str()
				}
				b.WriteByte(':')
				value(deep + 1)
			}
			b.WriteByte('}')
		case k < 4 && deep < 4:
			b.WriteByte('[')
			for n := range r.IntN(4) {
				if n > 0 {
					b.WriteByte(',')
				}
				value(deep + 1)
			}
			b.WriteByte(']')
		case k < 6:
			str()
		case k < 8:
			from("-", 1)
			from("0123", 2)
			from(".", 1)
			from("012", 2)
			from("eE", 1)
			from("+-", 1)
			from("012", 2)
		default:
			b.WriteString([]string{"true", "false", "null", "tru", "nul", "NaN", "'x'", "`x`", " 1", "1\n", "\t{}\r\n"}[r.IntN(11)])
		}
	}
	if r.IntN(4) == 0 {
		b.WriteString("\n")
	}
	open := [][2]string{{"[TOOL a {\"x\":", "}]"}, {"[DM#abc {\"y\":1,\"z\":", "} ]"}, {"```tool\na {\"x\":", "}\n```\n"}, {"```exec #key\n{\"op\":\"a\",\"params\":", "}\n```"},
		{"```tool\n[{\"op\":\"a\",\"params\":{\"x\":", "}}]\n```\n"}, {"```tool\n[", "]\n```"}, {"curl http://h/exec -d '{\"op\":\"a\",\"params\":{\"x\":", "}}'\n"},
		{"```box\n{\"op\":\"a\",\"id\":", "}\n```"}, {"```box\n  {\"key\":", ",\"op\":\"a\"} z {}\n```"}, {"```tool\n{\"op\":", "}\n```"}}[r.IntN(10)]
	b.WriteString(open[0])
	value(0)
	b.WriteString(open[1])
	b.WriteString([]string{"", "\n[TOOL z {}]", "\"}]\n[TOOL z {}]", "'}] [TOOL z {}]", "\n```\n[TOOL z {}]"}[r.IntN(5)])
	s := b.Bytes()
	for range r.IntN(3) {
		i := r.IntN(len(s))
		switch r.IntN(4) {
		case 0:
			s = append(s[:i], s[i+1:]...)
		case 1:
			s[i] = "\"'`{}[],:\\0-.e\n \x00\xff"[r.IntN(18)]
		case 2:
			s = append(s[:i], append([]byte{"\"'`{}[],:\\0-.e\n<"[r.IntN(16)]}, s[i:]...)...)
		}
		if len(s) == 0 {
			break
		}
	}
	return s
}

// refMutant changes a vector in one to four places.
func refMutant(r *rand.Rand, vectors []string) []byte {
	s := vectors[r.IntN(len(vectors))]
	for len(s) > 2000 {
		s = vectors[r.IntN(len(vectors))]
	}
	for range 1 + r.IntN(4) {
		i := r.IntN(len(s) + 1)
		j := i + r.IntN(min(len(s)-i, 24)+1)
		kind := refPieces[refKinds[r.IntN(len(refKinds))]]
		switch r.IntN(7) {
		case 0:
			s = s[:i] + s[j:]
		case 1:
			s = s[:j] + s[i:]
		case 2:
			s = s[:i]
		case 3, 4:
			s = s[:i] + kind[r.IntN(len(kind))] + s[i:]
		case 5:
			o := vectors[r.IntN(len(vectors))]
			if len(o) < 1000 {
				k := r.IntN(len(o) + 1)
				s = s[:i] + o[k:]
			}
		case 6:
			s = s[:i] + strings.ReplaceAll(s[i:], "\n", "\r\n")
		}
	}
	return []byte(s)
}

// refLimitReplies stand about the limits, which random replies do not reach.
func refLimitReplies() []string {
	var out []string
	tail := "\n[TOOL z {}]"
	for _, d := range []int{-1, 0, 1} {
		x := func(n int) string { return strings.Repeat("x", n) }
		sp := func(n int) string { return strings.Repeat(" ", n) }
		out = append(out,
			"[TOOL"+sp(256+d)+"a {}]"+tail,
			"[TOOL a"+sp(256+d)+"{}]"+tail,
			"[DM"+sp(256+d)+"{}]"+tail,
			"[RESULT"+sp(256+d)+"{}]"+tail,
			"[RESULT#"+x(32+d)+" {}]"+tail,
			"[RESULT#"+x(3+d)+" {}]"+tail,
			"```tool\na"+sp(256+d)+"{}\n```"+tail,
			"[TOOL "+x(128+d)+" {}]"+tail,
			"```tool\n"+x(128+d)+" {}\n```"+tail,
			"```box\n"+x(128+d)+"\n```"+tail,
			"```tool\n{\"op\":\""+x(128+d)+"\"}\n```"+tail,
			"```tool\n{\"op\":\"a\",\"id\":\""+x(128+d)+"\"}\n```"+tail,
			"```tool\n{\"op\":\"a\",\"key\":\""+strings.Repeat("é", 64+d)+"\"}\n```"+tail,
			"[TOOL#"+x(32+d)+" a {}]"+tail,
			"[TOOL#"+x(3+d)+" a {}]"+tail,
			"```tool #"+x(32+d)+"\na {}\n```"+tail,
		)
		n := 128 + d
		nest := func(open, in, closer string) string { return strings.Repeat(open, n) + in + strings.Repeat(closer, n) }
		out = append(out,
			"[TOOL a "+nest(`{"a":`, "1", "}")+"]"+tail,
			"[TOOL a {\"a\":"+nest(`[`, "1", "]")+"}]"+tail,
			"```tool\na "+nest(`{"a":`, "1", "}")+"\n```"+tail,
			"```tool\n{\"op\":\"a\",\"params\":"+nest(`{"a":`, "1", "}")+"}\n```"+tail,
			"```tool\n[{\"op\":\"a\",\"params\":"+nest(`{"a":`, "1", "}")+"}]\n```"+tail,
			"[TOOL a "+nest(`{"a":`, "{", "}")+"]"+tail,
		)
		n = 50 + d
		out = append(out,
			"curl http://h/exec -d '{\"op\":\"a\"}' -H "+nest("$(x ", "y", ")")+"\n[TOOL b {}]\n"+tail,
			"curl http://h/exec -d '{\"op\":\"a\"}' -H "+nest("${x:-", "y", "}")+"\n[TOOL b {}]\n"+tail,
			"curl http://h/exec -d '{\"op\":\"a\"}' -H "+nest("$((", "1", "))")+"\n[TOOL b {}]\n"+tail,
			"curl http://h/exec -d '{\"op\":\"a\"}' -H "+nest("\"$(x ", "y", ")\"")+"\n[TOOL b {}]\n"+tail,
			"curl http://h/exec -d '{\"op\":\"a\"}' -H "+nest("$(x ${y:-", "y", "})")+"\n[TOOL b {}]\n"+tail,
		)
		if d < 0 {
			continue // a mebibyte each
		}
		for _, form := range []struct{ pre, mid, post string }{
			{"", "[TOOL a {\"k\":\"", "\"}]"},
			{"", "[RESULT {\"k\":\"", "\"}]"},
			{"```tool\n", "[TOOL a {\"k\":\"", "\"}]"},
			{"```tool\n", "a {\"k\":\"", "\"}"},
			{"```tool\n", "{\"op\":\"a\",\"params\":{\"k\":\"", "\"}}"},
			{"```tool\n", "[{\"op\":\"a\",\"params\":{\"k\":\"", "\"}}]"},
			{"", "curl http://h/exec -d '{\"op\":\"a\",\"params\":{\"k\":\"", "\"}}'"},
			{"```sh\n", "curl http://h/exec -d '{\"op\":\"a\",\"params\":{\"k\":\"", "\"}}'"},
		} {
			n := refLimit + d - len(form.mid) - len(form.post)
			t := tail
			if form.pre != "" {
				t = "\n```" + tail
			}
			out = append(out, form.pre+form.mid+x(n)+form.post+t)
		}
		for _, form := range []struct{ pre, mid, post string }{
			{"", "[TOOL a {}", "]"},
			{"", "[TOOL a {\"k\":", "1}]"},
			{"", "[TOOL a {", "}]"},
			{"```tool\n", "a {", "}"},
			{"```tool\n", "[TOOL a {}", "]"},
			{"```tool\n", "[", "{\"op\":\"a\"}]"},
			{"```tool\n", "a ", "{}"},
			{"", "curl http://h/exec -d '{\"op\":\"a\"}' ", "#"},
		} {
			t := tail
			if form.pre != "" {
				t = "\n```" + tail
			}
			out = append(out, form.pre+form.mid+sp(refLimit+d-len(form.mid)-len(form.post))+form.post+t)
		}
		out = append(out,
			"[TOOL a {\"k\":\""+x(refLimit+d-13)+"\"}] [TOOL y {}]\n\"}]"+tail, // the error stands at the quote
			"```box\nthread "+x(refLimit+d-7)+"\nstatus\n```"+tail,
			"```box\nthread t\n"+sp(refLimit+d)+"status\n```"+tail,
			"```box\nthread "+sp(refLimit+d-7)+"\nstatus\n```"+tail,
			"```box\nthread x <!-- "+sp(refLimit+d-7)+"\nstatus\n```"+tail,
			"curl http://h/exec -d @- <<EOF\n{\"op\":\"a\""+sp(refLimit+d-45)+"}\nEOF\n[TOOL b {}]\n"+tail,
			"curl http://h/exec -d @- <<'EOF'\r\n{\"op\":\"a\""+sp(refLimit+d-47)+"}\nEOF\r\n[TOOL b {}]\n"+tail,
			"curl http://h/exec -d '{\"op\":\"a\"}' #"+x(refLimit+d-36)+"\r\n[TOOL b {}]\n"+tail,
		)
	}
	return out
}
