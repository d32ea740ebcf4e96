package harvester

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// The bars of the design, counted: bytes examined are at most mostExamined
// times those written, and mostDoubled times as many for twice the input. What
// a few bytes cost at the edges is allowed for by fewBytes.
const (
	mostExamined = 2.5
	mostDoubled  = 2.05
	fewBytes     = 64
)

// curlBody is one curl command whose body, between quotes as they stand before and
// behind it, is full of a piece.
func curlBody(open, closing, piece string) func(int) []byte {
	return func(n int) []byte {
		quote, brace := `"`, "{}"
		switch open {
		case "":
			quote, brace = `\"`, `\{\}`
		case `"`:
			quote = `\"`
		}
		l, r := brace[:len(brace)/2], brace[len(brace)/2:]
		body := l + quote + "op" + quote + ":" + quote + "a" + quote + "," + quote + "params" + quote + ":" + l + quote + "x" + quote + ":" + quote +
			strings.Repeat(piece, (min(n, 1<<20)-120)/len(piece)) + quote + r + r
		return []byte("curl https://h/exec -d " + open + body + closing + "\n")
	}
}

// A family is adversarial input of any size.
type family struct {
	name string
	make func(n int) []byte // about n bytes
}

// over repeats unit behind head.
func over(head, unit string) func(int) []byte {
	return func(n int) []byte {
		return append([]byte(head), strings.Repeat(unit, max(1, (n-len(head))/len(unit)))...)
	}
}

// counted joins units made for 0, 1, 2, … behind head, and tail behind them.
func counted(head string, unit func(k int) string, tail string) func(int) []byte {
	return func(n int) []byte {
		b := []byte(head)
		for k := 0; len(b) < n; k++ {
			b = append(b, unit(k)...)
		}
		return append(b, tail...)
	}
}

var families = []family{
	{"open directives", over("", `[TOOL a {`)},
	{"open strings", over("", `[TOOL a {"x":"`)},
	{"open braces", over("[TOOL a ", `{`)},
	{"open brackets", over("", `[`)},
	{"open arrays", over(`[TOOL a {"x":`, `[`)},
	{"nested objects", over("[TOOL a ", `{"a":`)},
	{"nested objects, deep as allowed", over("", "[TOOL a "+strings.Repeat(`{"a":`, 128)+"1"+strings.Repeat("}", 128)+"]")},
	{"distinct names", counted("[TOOL a {", func(k int) string { return `"` + strconv.Itoa(k) + `":1,` }, `"z":0}]`)},
	{"distinct long names", counted("[TOOL a {", func(k int) string { return fmt.Sprintf(`"a long and common name %d":1,`, k) }, `"z":0}]`)},
	{"distinct escaped names", counted("[TOOL a {", func(k int) string { return fmt.Sprintf(`"\u0061\n%d":1,`, k) }, `"z":0}]`)},
	{"escapes alone in names", over(`[TOOL a {"`, `\n`)},
	{"small objects of nine names", over(`[TOOL a {"x":[`, `{"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9},`)},
	{"repeated names", over("", `[TOOL a {"a long name of it":1,"a long name of it":2}]`)},
	{"broken with many names", over("", `[TOOL a {"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9,x}]`)},
	{"growing backtick runs", counted("", func(k int) string { return strings.Repeat("`", k+1) + " " }, "")},
	{"shrinking backtick runs", func(n int) []byte {
		var b []byte
		for k := 1000; len(b) < n; k-- {
			b = append(b, strings.Repeat("`", 1+(k+1000)%1000)+" "...)
		}
		return b
	}},
	{"backticks", over("", "`")},
	{"lone backticks", over("", "a ` ")},
	{"unclosed fences", over("", "```\n")},
	{"unclosed fences of other kinds", over("", "```x\n~~~y\n")},
	{"unclosed directive fences", over("", "```tool\n")},
	{"unclosed directive fences in a list", over("```\n", "- 1. ```tool\n")},
	{"nested levels", over("```md\n", "```tool\n")},
	{"longer closing lines", over("````tool\n", "   ```` x\n")},
	{"comments", over("", "<!--")},
	{"closed comments", over("", "<!-- - -->")},
	{"dashes in a comment", over("<!--", "-a")},
	{"think tags", over("", "<think>")},
	{"closed think tags", over("", "<think></think>")},
	{"almost closed think tags", over("<think>", "</thin")},
	{"open tags", over("", "<thin")},
	{"curl commands", over("", "curl https://h/exec -d '")},
	{"curl lines", over("", "curl https://h/exec -d '\n")},
	{"curl calls", over("", "curl https://h/exec -d '{\"op\":\"a\"}'\n")},
	{"curl calls in a fence", over("```sh\n", "curl https://h/exec -d '{\"op\":\"a\"}'\n")},
	{"a large curl body", func(n int) []byte {
		return []byte(`curl https://h/exec -d '{"op":"a","params":{"x":"` + strings.Repeat("y", min(n, 1<<20)-60) + `"}}'` + "\n")
	}},
	{"a large curl body in $''", curlBody("$'", "'", "y")},
	{"a large curl body of escapes in $''", curlBody("$'", "'", `\x79`)},
	{"a large plain curl body", curlBody("", "", "y")},
	{"a large plain curl body of tildes", curlBody("", "", "~")},
	{"a large plain curl body of escapes", curlBody("", "", `\y`)},
	{"a large curl body in double quotes", curlBody(`"`, `"`, "y")},
	{"a large curl body in pieces", curlBody("", "", `''y""`)},
	{"a large curl header", func(n int) []byte {
		return []byte("curl https://h/exec -H " + strings.Repeat("y", min(n, 1<<20)-60) + ` -d '{"op":"a"}'` + "\n")
	}},
	{"many curl words", func(n int) []byte {
		return []byte("curl https://h/exec -d '{\"op\":\"a\"}' " + strings.Repeat("-s ", (min(n, 1<<20)-60)/3) + "\n")
	}},
	{"many empty curl words", over("curl x ", "'' ")},
	{"many curl words that expand", over("curl x ", "* ~ $x ")},
	{"curl with deep expansions", over("curl -H ", "$((")},
	{"curl with braces", over("curl -H ", "${a:-")},
	{"curl with backticks", over("curl -H ", "`a`")},
	{"curl with parentheses", over("curl x ", "(")},
	{"curl with subscripts", over("curl -H ", "$[")},
	{"curl with here-documents", over("curl -d @- ", "<<E ")},
	{"curl with a long here-document", over("curl -d @- <<EOF\n", "EO\n")},
	{"almost curl", over("x", "\n  $ cur ")},
	{"almost curl in a line", over("x", " cur")},
	{"curls", over("x", "cur url rl ")},
	{"a line of curl", over("", "curl ")},
	{"curl that is none", over("", "curl h\n")},
	{"list markers", over("", "- ")},
	{"list lines", over("", "1. - x\n")},
	{"list markers before a fence", func(n int) []byte { return append(over("", "- ")(n), "```tool\na {}\n```\n"...) }},
	{"list markers behind text", over("a\n", "- 1. \t")},
	{"tabs", over("", "\t")},
	{"lines of space", over("", "\n    \t")},
	{"digits", over("", "\n123456789. 1")},
	{"quoted lines", over("", "> [TOOL a {}]\n")},
	{"angles", over("", "- >\n1. x >")},
	{"angles in text", over("x", " >")},
	{"tildes", over("x ", "~~~ ")},
	{"entities", over("", "\n&g")},
	{"backslashes", over("", `\`)},
	{"backslashes before brackets", over("", `\\\[TOOL `)},
	{"quotation marks", over("", `“"[TOOL a {}]`)},
	{"failed headers", over("", "[TOOL a")},
	{"failed headers over lines", over("", "[TOOL\na ")},
	{"failed headers with curl", over("", "[TOOL\ncurl -x\n\n")},
	{"longest headers", over("", "[TOOL"+strings.Repeat("\n", 256)+strings.Repeat("a", 128)+strings.Repeat(" ", 256)+"x")},
	{"longest headers that count", over("", "[TOOL"+strings.Repeat("\n", 256)+strings.Repeat("a", 128)+strings.Repeat("\n", 256)+"{}]")},
	{"space before the closing bracket", over("[TOOL a {}", " \n")},
	{"directives", over("", `[TOOL a {}]`)},
	{"directives broken behind their object", over("", `[TOOL a {} `)},
	{"items", over("```tool\n", "a {}")},
	{"items in an array", func(n int) []byte {
		return append(over("```tool\n[", `{"op":"abcdefghijkl"},`)(n), "{\"op\":\"b\"}]\n"...)
	}},
	{"call objects with long names", over("```tool\n", `{"op":"a","params":{"a name that is long":1}}`)},
	{"failed items", over("```tool\n", "a b <!-- -->\n")},
	{"actions", over("```box\n", "status x\n")},
	{"actions with arguments", over("```box\n", "thread "+strings.Repeat("t", 500)+"\n")},
	{"tags in actions", over("```box\n", "a <think></think>")},
	{"tags in actions that are none", counted("```box\n", func(int) string { return strings.Repeat("a <think></think>", 50) + "{\n" }, "")},
	{"actions broken at their end", over("```box\n", "a <"+strings.Repeat("b", 500)+"\xff\n")},
	{"long actions", over("```box\n", strings.Repeat("a", 500)+" x\n")},
	{"long words in a box", over("```box\n", strings.Repeat("a", 500)+" {\n")},
	{"broken arrays", over("```tool\n", "[TOO")},
	{"carriage returns", over("a", "\n-\r1.\r\r")},
	{"recovery lines", over("[TOOL a {x", "\n[TOO")},
	{"recovery fences", over("[TOOL a {x", "\n``")},
	{"recovery tags", over("[TOOL a {x", "\n<thin")},
	{"recovery indents", over("[TOOL a {x", "\n   \t")},
	{"abandoned directives", over("", "[TOOL a {x\n")},
	{"indented abandoned directives", over("", "[TOOL a {\n      \t      ")},
	{"strings of one byte", over("[TOOL a {\"x\":[", `"",`)},
	{"numbers", over("[TOOL a {\"x\":[", `1,`)},
	{"escapes", over("[TOOL a {\"x\":\"", `\ud83d\ude00`)},
	{"lone surrogates", over("", `[TOOL a {"x":"\ud83d"}]`)},
	{"runes", over("[TOOL a {\"x\":\"", "\U0001f600")},
	{"results", over("", `[RESULT {}]`)},
	{"open results", over("", `[RESULT {"x":"`)},
	{"failed headers of results", over("", "[RESULT\na ")},
	{"headers of results", over("", "[RES")},
	{"recovery lines of results", over("[RESULT {x", "\n[RESUL")},
	{"everything", over("", "[TOOL a {\"x\":1}] `<!--` > ~~~\n- ```tool\na {}\n```\n> q\n<think>x</think>curl -d '\n\n[DM {x\n")},
}

func TestExaminedIsLinear(t *testing.T) {
	const n = 1 << 14
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			reply, twice := f.make(n), f.make(2*n)
			examined := func(c Config, reply []byte, size int) int64 {
				s := New(c)
				for _, p := range cuts(reply, size) {
					s.Write(p)
				}
				s.Close(true)
				if most := int64(mostExamined*float64(len(reply))) + fewBytes; s.Examined() > most {
					t.Errorf("%.40q…, %d bytes in pieces of %d: examined %d = %.3f times, want at most %v times",
						reply, len(reply), size, s.Examined(), float64(s.Examined())/float64(len(reply)), mostExamined)
				}
				return s.Examined()
			}
			for _, run := range []struct {
				config Config
				sizes  []int
			}{{anyHost, []int{1, 3, 16, 4096, 2 * n}}, {anyResult, []int{1, 4096}}} {
				for _, size := range run.sizes {
					once, both := examined(run.config, reply, size), examined(run.config, twice, size)
					if most := mostDoubled * float64(once) * float64(len(twice)) / float64(2*len(reply)); float64(both) > most+fewBytes {
						t.Errorf("%.40q… in pieces of %d: twice the input examines %d, once %d", reply, size, both, once)
					}
				}
			}
		})
	}
}

func TestHundredThousandNames(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("```tool\na {")
	for k := range 100_000 {
		fmt.Fprintf(&b, `"%x":1,`, k)
	}
	b.WriteString(`"z":0}`)
	if b.Len() > maxDirective {
		t.Fatalf("the object has %d bytes", b.Len())
	}
	got, _ := harvest(Config{}, true, b.Bytes())
	if len(got) != 1 {
		t.Errorf("100,000 distinct names: got %d directives, want 1", len(got))
	}
	again := bytes.Replace(b.Bytes(), []byte(`"z":0`), []byte(`"z":0,"\u0031869f":0`), 1)
	got, s := harvest(Config{}, true, again)
	if len(got) != 0 || s.Broken() != 1 {
		t.Errorf("one of them twice: got %d directives and %d broken, want 0 and 1", len(got), s.Broken())
	}
}

// A directive that comes byte by byte is not read again and again.
func TestExaminedByteByByte(t *testing.T) {
	reply := largest()
	_, whole := harvest(Config{}, true, reply)
	_, bytewise := harvest(Config{}, true, cuts(reply, 1)...)
	if w, b := whole.Examined(), bytewise.Examined(); float64(b) > 1.1*float64(w) {
		t.Errorf("1 MiB in pieces of one byte examines %d, in one piece %d", b, w)
	}
}

// largest returns a directive of exactly 1 MiB.
func largest() []byte {
	const head, tail = `[TOOL note.put {"lines":[`, `""]}]`
	b := []byte(head)
	for k := 0; len(b)+100 < maxDirective; k++ {
		b = fmt.Appendf(b, `{"n":%d,"text":"some words, a \"quotation\" and more"},`, k)
	}
	b = append(b, strings.Repeat(" ", maxDirective-len(b)-len(tail))...)
	return append(b, tail...)
}

func TestProseAllocatesNothing(t *testing.T) {
	text := prose(1 << 16)
	s := New(Config{ExecHosts: DefaultExecHosts()})
	for _, size := range []int{1 << 16, 16, 1} {
		pieces := cuts(text, size)
		if n := testing.AllocsPerRun(5, func() {
			s.Reset()
			for _, p := range pieces {
				s.Write(p)
			}
			s.Close(true)
		}); n != 0 {
			t.Errorf("prose in pieces of %d bytes: %v allocations, want 0", size, n)
		}
	}
}

// A scanner that is used again keeps no more than the largest directive.
func TestMemoryIsBounded(t *testing.T) {
	s := New(Config{})
	for range 3 {
		for _, p := range cuts(bytes.Repeat(largest(), 2), 1000) {
			s.Write(p)
		}
		for range 20 {
			s.Write([]byte(`[TOOL a {"x":"` + strings.Repeat("y", 1<<20)))
		}
		s.Close(false)
		if cap(s.buf) > 2*maxDirective {
			t.Fatalf("buffer of %d bytes", cap(s.buf))
		}
		s.Reset()
	}
}
