package harvester

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
)

// A vector is one case of testdata/harvest.json.
type vector struct {
	ID     string
	Kind   string
	Reply  string
	Hosts  []string `json:"exec_hosts"`
	Chunks []string
	Expect []struct {
		Op         string
		Params     json.RawMessage
		Raw        string `json:"params_raw"`
		Form       Form
		Key, ID    string
		Start, End int64
	}
	Why string
}

func vectors(t testing.TB, file string) []vector {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("%s holds no cases", file)
	}
	return all
}

// harvest reads a reply in the given pieces. Results come among the directives
// when c asks for them.
func harvest(c Config, complete bool, pieces ...[]byte) ([]Directive, *Scanner) {
	var all []Directive
	c.Found = func(d Directive) {
		d.Params = bytes.Clone(d.Params)
		all = append(all, d)
	}
	if c.Result != nil {
		c.Result = c.Found
	}
	s := New(c)
	for _, p := range pieces {
		// The piece is the caller's: what is kept of it would be spoilt.
		lent := bytes.Clone(p)
		s.Write(lent)
		for i := range lent {
			lent[i] = 'X'
		}
	}
	s.Close(complete)
	return all, s
}

// cuts cuts b into pieces of n bytes.
func cuts(b []byte, n int) (pieces [][]byte) {
	for len(b) > n {
		pieces = append(pieces, b[:n])
		b = b[n:]
	}
	return append(pieces, b)
}

// randomCuts cuts b at random places.
func randomCuts(b []byte, r *rand.Rand) (pieces [][]byte) {
	for len(b) > 0 {
		n := 1 + r.IntN(1+r.IntN(len(b)))
		pieces = append(pieces, b[:n])
		b = b[n:]
	}
	return pieces
}

func (v *vector) check(t *testing.T, how string, got []Directive) {
	t.Helper()
	if len(got) != len(v.Expect) {
		t.Errorf("%s, %s: got %d directives, want %d\nwhy: %s\nreply: %q\ngot: %s", v.ID, how, len(got), len(v.Expect), v.Why, v.Reply, show(got))
		return
	}
	for i, want := range v.Expect {
		d := got[i]
		if d.Op != want.Op || d.Form != want.Form || d.Key != want.Key || d.ID != want.ID || d.Start != want.Start || d.End != want.End {
			t.Errorf("%s, %s: directive %d:\ngot  %+v\nwant %+v\nreply: %q", v.ID, how, i, d, want, v.Reply)
		}
		if want.Raw != "" && string(d.Params) != want.Raw {
			t.Errorf("%s, %s: directive %d: got params %s, want %s", v.ID, how, i, d.Params, want.Raw)
		}
		if !sameJSON(t, d.Params, want.Params) {
			t.Errorf("%s, %s: directive %d: got params %s, want %s", v.ID, how, i, d.Params, want.Params)
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	for _, v := range []struct {
		text []byte
		into *any
	}{{a, &x}, {b, &y}} {
		if err := json.Unmarshal(v.text, v.into); err != nil {
			t.Errorf("parameters %q: %v", v.text, err)
		}
	}
	return reflect.DeepEqual(x, y)
}

func show(all []Directive) string {
	var b bytes.Buffer
	for _, d := range all {
		fmt.Fprintf(&b, "\n  %s %s %.80s key=%q id=%q %d-%d", d.Form, d.Op, d.Params, d.Key, d.ID, d.Start, d.End)
	}
	return b.String()
}

func TestVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, file := range []string{"testdata/harvest.json", "testdata/reference.json"} {
		for _, v := range vectors(t, file) {
			c := Config{ExecHosts: v.Hosts}
			reply := []byte(v.Reply)
			whole, _ := harvest(c, true, reply)
			v.check(t, "whole", whole)
			c.Result = func(Directive) {}
			asked, _ := harvest(c, true, reply)
			v.check(t, "asked for results", asked)
			c.Result = nil
			bytewise, _ := harvest(c, true, cuts(reply, 1)...)
			v.check(t, "byte by byte", bytewise)
			if v.Chunks != nil {
				var pieces [][]byte
				for _, c := range v.Chunks {
					pieces = append(pieces, []byte(c))
				}
				chunked, _ := harvest(c, true, pieces...)
				v.check(t, "in its chunks", chunked)
			}
			for range 20 {
				pieces := randomCuts(reply, r)
				got, _ := harvest(c, true, pieces...)
				v.check(t, fmt.Sprintf("cut as %q", pieces), got)
			}
		}
	}
}
