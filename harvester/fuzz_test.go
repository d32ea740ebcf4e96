package harvester

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// seeds adds the replies of the vectors and small members of the adversarial
// families.
func seeds(f *testing.F) {
	for _, v := range vectors(f, "testdata/harvest.json") {
		f.Add([]byte(v.Reply), uint64(len(v.Reply)))
	}
	for _, c := range rules {
		f.Add([]byte(c.reply), uint64(0))
	}
	for _, m := range families {
		f.Add(m.make(200), uint64(7))
	}
	for _, c := range results {
		f.Add([]byte(c.reply), uint64(3))
	}
}

var (
	anyHost   = Config{ExecHosts: []string{"*"}}
	anyResult = Config{ExecHosts: []string{"*"}, Result: func(Directive) {}}
)

// both are read by a cut that is even and one that is odd.
func both(cut uint64) Config {
	if cut%2 == 0 {
		return anyHost
	}
	return anyResult
}

// The same directives come whatever the cuts are.
func FuzzCutting(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, reply []byte, cut uint64) {
		c := both(cut)
		for _, complete := range []bool{true, false} {
			want, whole := harvest(c, complete, reply)
			r := rand.New(rand.NewPCG(cut, 0))
			for _, pieces := range [][][]byte{cuts(reply, 1), randomCuts(reply, r), randomCuts(reply, r)} {
				got, s := harvest(c, complete, pieces...)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("reply %q, complete %v, cut as %q:\ngot %s\nwant %s", reply, complete, pieces, show(got), show(want))
				}
				if s.Broken() != whole.Broken() {
					t.Fatalf("reply %q, cut as %q: %d broken, whole %d", reply, pieces, s.Broken(), whole.Broken())
				}
			}
		}
	})
}

// The directives of a prefix are the first of the whole: what was reported
// stays right whatever follows. What the end of a reply completes is aside.
func FuzzPrefix(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, reply []byte, cut uint64) {
		c := both(cut)
		all, _ := harvest(c, true, reply)
		n := int(cut / 2 % uint64(len(reply)+1))
		some, _ := harvest(c, false, reply[:n])
		if len(some) > len(all) || len(some) > 0 && !reflect.DeepEqual(some, all[:len(some)]) {
			t.Fatalf("reply %q: its first %d bytes give %s\nthe whole gives %s", reply, n, show(some), show(all))
		}
		// And each is reported by the byte that completes it: what ends
		// inside the prefix is there.
		for _, d := range all[len(some):] {
			atLine := d.Form == Curl || d.Op == "box.exec" && d.Form == Box
			if d.End <= int64(n) && !atLine {
				t.Fatalf("reply %q: %+v ends within the first %d bytes, which do not give it", reply, d, n)
			}
		}
	})
}

// Spans lie in the reply and do not overlap; parameters are strict JSON.
func FuzzDirectives(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, reply []byte, cut uint64) {
		all, _ := harvest(both(cut), true, reply)
		var last Directive
		for _, d := range all {
			if d.Start < 0 || d.End > int64(len(reply)) || d.Start >= d.End {
				t.Fatalf("reply %q: %+v lies outside", reply, d)
			}
			sameArray := d.Start == last.Start && d.End == last.End && reply[d.Start] == '['
			if d.Start < last.End && !sameArray {
				t.Fatalf("reply %q: %+v overlaps %+v", reply, d, last)
			}
			last = d
			if !strictObject(d.Params) {
				t.Fatalf("reply %q: parameters %q are no strict JSON object", reply, d.Params)
			}
			if (d.Op == "") != (d.Form == Result) || len(d.Op) > maxOp || len(d.Key) > maxID || len(d.ID) > maxID || !utf8.ValidString(d.Key+d.ID) {
				t.Fatalf("reply %q: %+v", reply, d)
			}
			switch text := reply[d.Start:d.End]; {
			case text[0] == '[' && (d.Form == Tool || d.Form == Exec || d.Form == DM || d.Form == Result) && !sameArray && bytes.HasSuffix(text, []byte("]")):
			case d.Form == Curl && bytes.HasPrefix(text, []byte("curl")):
			case d.Form == Result:
				t.Fatalf("reply %q: the result has the text %q", reply, text)
			case opByte[text[0]] == opStart || text[0] == '{' || text[0] == '[':
			default:
				t.Fatalf("reply %q: %+v has the text %q", reply, d, text)
			}
			if d.Form != Curl && d.Op != "box.exec" && len(d.Params) > 2 && !bytes.Contains(reply[d.Start:d.End], d.Params) {
				t.Fatalf("reply %q: parameters %q are not as written", reply, d.Params)
			}
		}
	})
}

// strictObject reads text with another recogniser of strict JSON.
func strictObject(text []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	if dec.PeekKind() != '{' || dec.SkipValue() != nil {
		return false
	}
	return dec.InputOffset() == int64(len(text))
}

// What the object recogniser takes, strict JSON takes, and the other way round.
func FuzzObject(f *testing.F) {
	for _, v := range vectors(f, "testdata/harvest.json") {
		for _, d := range v.Expect {
			f.Add([]byte(d.Params))
		}
		if i := strings.IndexByte(v.Reply, '{'); i >= 0 {
			f.Add([]byte(v.Reply[i:]))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 0 && text[0] == '{' && len(text) <= 1<<16 {
			checkObject(t, text)
		}
	})
}

// checkObject compares the recogniser, on the whole text and byte by byte,
// with another one of strict JSON.
func checkObject(t *testing.T, text []byte) {
	t.Helper()
	var whole, bytewise object
	whole.reset(0, false)
	v := whole.scan(text)
	bytewise.reset(0, false)
	w := unfinished
	for n := 1; n <= len(text) && w == unfinished; n++ {
		w = bytewise.scan(text[:n])
	}
	if v != w || whole.pos != bytewise.pos {
		t.Fatalf("%q: whole %v at %d, byte by byte %v at %d", text, v, whole.pos, w, bytewise.pos)
	}
	if bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) > maxNesting {
		return // the other one nests deeper
	}
	if valid := strictObject(text[:whole.pos]); valid != (v == complete) {
		t.Fatalf("%q: %v at %d, strict JSON says %v", text, v, whole.pos, valid)
	}
	// What is broken must be so for the other one by that byte.
	if v == broken {
		if err := jsontext.NewDecoder(bytes.NewReader(text[:whole.pos+1])).SkipValue(); err == nil {
			t.Fatalf("%q: broken at %d, where strict JSON goes on", text, whole.pos)
		}
	}
}

// Every short text made of what numbers, and of what strings, are made of.
func TestShortValues(t *testing.T) {
	for _, c := range []struct {
		alphabet, before, after string
		longest                 int
	}{
		{"-+.01e", `{"x":`, `}`, 6},
		{"-0E,]", `{"x":[`, `]}`, 5},
		{`\"u/dc80` + "\x1f\n", `{"x":"`, `"}`, 4},
		{"08dDcCfb", `{"x":"\u`, `"}`, 4},
		{"08dDcCfb", `{"x":"\ud83d\u`, `"}`, 4},
		{"\xc2\xed\xe0\xf0\xf4\x80\x9f\xa0\xbfa", `{"x":"`, `"}`, 4},
		{`"a:,{}1 `, `{`, `}`, 5},
		{"truefalsn", `{"x":`, `}`, 4},
	} {
		text := []byte{}
		var grow func(n int)
		grow = func(n int) {
			checkObject(t, append(append([]byte(c.before), text...), c.after...))
			if n == 0 {
				return
			}
			for i := range len(c.alphabet) {
				text = append(text, c.alphabet[i])
				grow(n - 1)
				text = text[:len(text)-1]
			}
		}
		grow(c.longest)
	}
}

// The work is linear for any input and any cuts.
func FuzzExamined(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, reply []byte, cut uint64) {
		r := rand.New(rand.NewPCG(cut, 1))
		// Repeated, what costs too much shows.
		reply = bytes.Repeat(reply, 1+int(cut%8))
		for _, pieces := range [][][]byte{{reply}, cuts(reply, 1), randomCuts(reply, r)} {
			_, s := harvest(both(cut), true, pieces...)
			if float64(s.Examined()) > mostExamined*float64(len(reply))+fewBytes {
				t.Fatalf("reply %q (%d bytes) in %d pieces: examined %d", reply, len(reply), len(pieces), s.Examined())
			}
		}
	})
}
