package artifacts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/service/artifacts"
)

var captured = time.Date(2031, 4, 5, 6, 7, 8, 900_000_000, time.UTC)

func statement() artifacts.Statement {
	return artifacts.NewStatement("out/report <1>.txt", named([]byte("report")), artifacts.Predicate{
		Source:   artifacts.Source{Revision: "v1.2", Worktree: "h1:abc="},
		Producer: "w1", Run: "r-1", Fence: 1<<32 | 7,
		Test:       &artifacts.Test{Command: []string{"make", "test", "é\u2028"}, Exit: 2},
		CapturedAt: captured,
	})
}

func TestStatement(t *testing.T) {
	for _, change := range []func(*artifacts.Statement){
		func(*artifacts.Statement) {},
		func(s *artifacts.Statement) { s.Predicate.Test = nil },
		func(s *artifacts.Statement) { s.Predicate.Source = artifacts.Source{} },
		func(s *artifacts.Statement) { s.Predicate.Fence = 1 << 53 },
		func(s *artifacts.Statement) { s.Subject[0].Name = strings.Repeat("n", artifacts.MaxName) },
	} {
		want := statement()
		change(&want)
		payload, err := want.Payload()
		if err != nil {
			t.Fatal(err)
		}
		got, err := artifacts.ReadStatement(payload)
		if err != nil {
			t.Errorf("%s: %v", payload, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("read (-want +got):\n%s", d)
		}
		if got.Name() != want.Subject[0].Name || got.Digest() != named([]byte("report")) {
			t.Errorf("%s %s", got.Name(), got.Digest())
		}
	}
}

// One statement has one form; whatever else says the same is refused.
func TestStatementForm(t *testing.T) {
	payload, err := statement().Payload()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"_type":"https://in-toto.io/Statement/v1","predicate":{"capturedAt":"2031-04-05T06:07:08.9Z","fence":4294967303,` +
		`"producer":"w1","run":"r-1","source":{"revision":"v1.2","worktree":"h1:abc="},"test":{"command":["make","test","é` + "\u2028" + `"],"exit":2}},` +
		`"predicateType":"urn:inband:attestation:file:v1","subject":[{"digest":{"sha256":"`
	if !strings.HasPrefix(string(payload), want) {
		t.Errorf("the form is\n%s\nwant\n%s…", payload, want)
	}
	replace := func(old, by string) string {
		if !bytes.Contains(payload, []byte(old)) {
			t.Fatalf("no %s in %s", old, payload)
		}
		return strings.Replace(string(payload), old, by, 1)
	}
	for name, text := range map[string]string{
		"empty":                   "",
		"null":                    "null",
		"an array":                "[]",
		"a space":                 " " + string(payload),
		"a line end":              string(payload) + "\n",
		"two of them":             string(payload) + string(payload),
		"cut off":                 string(payload[:len(payload)-1]),
		"another type":            replace("Statement/v1", "Statement/v0.1"),
		"another predicate":       replace("file:v1", "file:v2"),
		"a member more":           replace(`"exit":2`, `"exit":2,"fine":true`),
		"a member twice":          replace(`"exit":2`, `"exit":0,"exit":2`),
		"a member in other case":  replace(`"fence"`, `"Fence"`),
		"no fence":                replace(`"fence":4294967303,`, ""),
		"a fence of zero":         replace("4294967303", "0"),
		"a negative fence":        replace("4294967303", "-1"),
		"a fence in two halves":   replace("4294967303", "4294967303.0"),
		"a fence with exponent":   replace("4294967303", "4294967303e0"),
		"a fence that is text":    replace("4294967303", `"4294967303"`),
		"a fence beyond 2^53":     replace("4294967303", "9007199254740993"),
		"no producer":             replace(`"w1"`, `""`),
		"no run":                  replace(`"r-1"`, `""`),
		"a run of two lines":      replace(`"r-1"`, `"r-1\nr-2"`),
		"a time elsewhere":        replace("08.9Z", "08.9+02:00"),
		"a time with a zero":      replace("08.9Z", "08.90Z"),
		"no time":                 replace("2031-04-05T06:07:08.9Z", "0001-01-01T00:00:00Z"),
		"a test of null":          replace(`{"command":["make","test","é`+"\u2028"+`"],"exit":2}`, "null"),
		"a test of nothing":       replace(`["make","test","é`+"\u2028"+`"]`, "[]"),
		"a test with a lone half": replace(`"make"`, `"\ud800"`),
		"escapes":                 replace("make", `\u006dake`),
		"two subjects":            replace(`"subject":[`, `"subject":[{"digest":{"sha256":"`+strings.Repeat("0", 64)+`"},"name":"x"},`),
		"an upper-case digest":    replace(`"sha256":"`+artifactHex(), `"sha256":"`+strings.ToUpper(artifactHex())),
		"two digests":             replace(`{"sha256"`, `{"md5":"","sha256"`),
		"another algorithm":       replace(`{"sha256"`, `{"sha512"`),
		"a path upwards":          replace("out/report <1>.txt", "../report"),
		"a rooted path":           replace("out/report <1>.txt", "/out/report"),
		"too long":                replace("make", strings.Repeat("m", artifacts.MaxStatement)),
	} {
		if s, err := artifacts.ReadStatement([]byte(text)); !errors.Is(err, artifacts.ErrStatement) {
			t.Errorf("%s: read as %+v, %v", name, s, err)
		}
	}
	for i := range payload {
		if s, err := artifacts.ReadStatement(payload[:i]); err == nil {
			t.Fatalf("the first %d bytes are read as %+v", i, s)
		}
	}
}

func artifactHex() string { return strings.TrimPrefix(string(named([]byte("report"))), "sha256:") }

func TestStatementRefuses(t *testing.T) {
	for name, change := range map[string]func(*artifacts.Statement){
		"no subject":          func(s *artifacts.Statement) { s.Subject = nil },
		"no digest":           func(s *artifacts.Statement) { s.Subject[0].Digest = nil },
		"a fence beyond 2^53": func(s *artifacts.Statement) { s.Predicate.Fence = 1<<53 + 1 },
		"no time":             func(s *artifacts.Statement) { s.Predicate.CapturedAt = time.Time{} },
		"a year too far":      func(s *artifacts.Statement) { s.Predicate.CapturedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"too many words":      func(s *artifacts.Statement) { s.Predicate.Test.Command = make([]string, 65) },
		"too long":            func(s *artifacts.Statement) { s.Predicate.Test.Command = []string{strings.Repeat("x", 20<<10)} },
		"no UTF-8":            func(s *artifacts.Statement) { s.Predicate.Test.Command = []string{"\xff"} },
		"a long revision":     func(s *artifacts.Statement) { s.Predicate.Source.Revision = strings.Repeat("x", 257) },
	} {
		s := statement()
		change(&s)
		if b, err := s.Payload(); !errors.Is(err, artifacts.ErrStatement) {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
}

func TestCheckName(t *testing.T) {
	for _, good := range []string{"a", "out/report.txt", "a b/ü.html", "..a", "a/...", strings.Repeat("n", 512)} {
		if err := artifacts.CheckName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "/", "/etc/passwd", "../x", "a/../x", "a//b", "a/", "./a", `a\b`, "a\x00b", "a\nb", "\xff",
		"a\u202eb", "a\u2028b", strings.Repeat("n", 513), strings.Repeat("../", 30) + "etc/passwd"} {
		if err := artifacts.CheckName(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Property: what is read is within the bounds and is the very form that would be signed.
func FuzzReadStatement(f *testing.F) {
	payload, err := statement().Payload()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add(payload[:len(payload)/2])
	f.Add(bytes.Replace(payload, []byte("4294967303"), []byte("9007199254740993"), 1))
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := artifacts.ReadStatement(text)
		if err != nil {
			if !errors.Is(err, artifacts.ErrStatement) {
				t.Errorf("%v is no %v", err, artifacts.ErrStatement)
			}
			return
		}
		again, err := s.Payload()
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("%s is read, and written as %s, %v", text, again, err)
		}
		if err := artifacts.CheckName(s.Name()); err != nil || !s.Digest().Valid() || !json.Valid(text) {
			t.Errorf("%q, %q: %v", s.Name(), s.Digest(), err)
		}
	})
}
