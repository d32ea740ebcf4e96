package harvester

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"reflect"
	"testing"
)

var randomReplies = flag.Int("random", 3000, "how many random replies to harvest")

// scraps are what random replies are made of.
var scraps = []string{
	"[TOOL a {}]", "[TOOL b {\"x\":1}]", "[EXEC c {\"y\":[{}]}]", "[DM {\"t\":\"z\"}]", "[DM{}]", "[TOOL#abc d {}]",
	"[TOOL ", "[EXEC ", "[DM ", "[TOOL", "[", "]", "{", "}", "{}", "{\"", "\":", "\"", "'", ",", ":", "1", "tru", "\\", "\\u", "\\ud83d", "\xc3",
	"\n", "\n", "\n", "\n", "\r\n", "\r", " ", "  ", "\t", "    ", "\n\n",
	"`", "``", "```", "````", "~~~", "~~~~", "```tool\n", "```box\n", "```exec #abc\n", "```sh\n", "```json\n", "~~~bash\n", "\n```\n", "\n~~~\n",
	"<!--", "-->", "<think>", "</think>", "<thinking ", "</thinking>", "<reasoning\n", "<", ">", "> ", "&gt;", "|", "- ", "1. ", "12) ", "* ",
	"“", "‘", "«", "a {}", "b {\"k\":2}", "{\"op\":\"c\"}", "[{\"op\":\"d\"},{\"op\":\"e\"}]", "status", "box thread t", "\nnow <think>", "\n-\r", "box", "x", "word ",
	"curl http://h/exec -d '{\"op\":\"a\"}'\n", "curl ", "$ curl ", "cur", "http://h/exec ", "-d ", "@- <<E\n{\"op\":\"b\"}\nE\n", "'{\"op\":\"a\"}'", "$(", "${", ")", "$'", "#", ";",
	"and so the text goes on for a while, ", "it's ",
}

// Random replies made of what the grammar knows give the same directives in
// any pieces, and what was reported stays.
func TestRandomReplies(t *testing.T) {
	r := rand.New(rand.NewPCG(5, uint64(*randomReplies)))
	found := 0
	for range *randomReplies {
		var reply []byte
		for range 1 + r.IntN(24) {
			reply = append(reply, scraps[r.IntN(len(scraps))]...)
		}
		complete := r.IntN(2) == 0
		want, s := harvest(anyHost, complete, reply)
		found += len(want)
		if float64(s.Examined()) > mostExamined*float64(len(reply))+fewBytes {
			t.Fatalf("%q: examined %d of %d bytes", reply, s.Examined(), len(reply))
		}
		for _, pieces := range [][][]byte{cuts(reply, 1), randomCuts(reply, r), randomCuts(reply, r)} {
			got, _ := harvest(anyHost, complete, pieces...)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("reply %q, complete %v, cut as %q:\ngot %s\nwant %s", reply, complete, pieces, show(got), show(want))
			}
		}
		n := r.IntN(len(reply) + 1)
		some, _ := harvest(anyHost, false, reply[:n])
		if len(some) > len(want) || len(some) > 0 && !reflect.DeepEqual(some, want[:len(some)]) {
			t.Fatalf("reply %q: its first %d bytes give %s\nthe whole gives %s", reply, n, show(some), show(want))
		}
		for _, d := range want {
			if d.Start < 0 || d.Start >= d.End || d.End > int64(len(reply)) || !strictObject(bytes.Clone(d.Params)) {
				t.Fatalf("reply %q: %s", reply, show([]Directive{d}))
			}
		}
	}
	if found == 0 {
		t.Errorf("%d random replies held no directive", *randomReplies)
	}
	t.Logf("%d directives in %d replies", found, *randomReplies)
}
