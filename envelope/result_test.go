package envelope

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"inband/ops"
)

func TestReadResult(t *testing.T) {
	refs := func(n int, ref string) string {
		return `["` + strings.Join(slices.Repeat([]string{ref}, n), `","`) + `"]`
	}
	for _, tc := range []struct {
		name, params string
		want         Result
		wrong        string // the pointer of the fault; "-" for none
	}{
		{"the least", `{"verdict":"done"}`, Result{Verdict: "done"}, "-"},
		{"all of it", ` {"refs" : ["a","b"], "summary":"it \u00e9\n", "verdict":"failed"} `, Result{"failed", "it é\n", []string{"a", "b"}}, "-"},
		{"blocked", `{"verdict":"blocked","summary":"","refs":[]}`, Result{Verdict: "blocked"}, "-"},
		{"waiting", `{"verdict":"waiting"}`, Result{Verdict: "waiting"}, "-"},
		{"the longest", `{"verdict":"done","summary":"` + strings.Repeat("é", 1000) + `","refs":` + refs(20, strings.Repeat("x", 500)) + `}`,
			Result{"done", strings.Repeat("é", 1000), slices.Repeat([]string{strings.Repeat("x", 500)}, 20)}, "-"},

		{"nothing", ``, Result{}, ""},
		{"no object", `["done"]`, Result{}, ""},
		{"null", `null`, Result{}, ""},
		{"a string", `"done"`, Result{}, ""},
		{"more behind it", `{"verdict":"done"} {}`, Result{}, ""},
		{"another name", `{"verdict":"done","note":"x"}`, Result{}, ""},
		{"a name in another case", `{"Verdict":"done"}`, Result{}, ""},
		{"a name twice", `{"verdict":"done","verdict":"done"}`, Result{}, ""},
		{"a name twice, escaped", `{"verdict":"done","\u0076erdict":"done"}`, Result{}, ""},
		{"a name twice in a ref", `{"verdict":"done","refs":[{"a":1,"a":2}]}`, Result{}, ""},
		{"no UTF-8", "{\"verdict\":\"done\",\"summary\":\"\xff\"}", Result{}, ""},
		{"a lone surrogate", `{"verdict":"done","summary":"\ud83d"}`, Result{}, ""},
		{"no verdict", `{"summary":"x"}`, Result{}, "/verdict"},
		{"no verdict at all", `{}`, Result{}, "/verdict"},
		{"another verdict", `{"verdict":"ok"}`, Result{}, "/verdict"},
		{"unanswered", `{"verdict":"unanswered"}`, Result{}, "/verdict"},
		{"a verdict in another case", `{"verdict":"Done"}`, Result{}, "/verdict"},
		{"a verdict as shown", `{"verdict":"done|failed|blocked|waiting"}`, Result{}, "/verdict"},
		{"a verdict that is true", `{"verdict":true}`, Result{}, "/verdict"},
		{"a verdict that is null", `{"verdict":null}`, Result{}, "/verdict"},
		{"a summary that is null", `{"verdict":"done","summary":null}`, Result{}, "/summary"},
		{"a summary that is a number", `{"verdict":"done","summary":1}`, Result{}, "/summary"},
		{"a long summary", `{"verdict":"done","summary":"` + strings.Repeat("é", 1000) + `x"}`, Result{}, "/summary"},
		{"refs that are null", `{"verdict":"done","refs":null}`, Result{}, "/refs"},
		{"refs that are a string", `{"verdict":"done","refs":"a"}`, Result{}, "/refs"},
		{"many refs", `{"verdict":"done","refs":` + refs(21, "x") + `}`, Result{}, "/refs"},
		{"a ref that is null", `{"verdict":"done","refs":["a",null]}`, Result{}, "/refs/1"},
		{"a ref that is an array", `{"verdict":"done","refs":[["a"]]}`, Result{}, "/refs/0"},
		{"a long ref", `{"verdict":"done","refs":["a","b","` + strings.Repeat("x", 501) + `"]}`, Result{}, "/refs/2"},
	} {
		got, err := ReadResult([]byte(tc.params))
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: ReadResult(%.100s) = %+v, want %+v", tc.name, tc.params, got, tc.want)
		}
		if tc.wrong == "-" {
			if err != nil {
				t.Errorf("%s: ReadResult(%.100s): %v", tc.name, tc.params, err)
			}
			continue
		}
		var fault *ops.Fault
		if !errors.As(err, &fault) || fault.Code != ops.InvalidParams || fault.Details["pointer"] != tc.wrong || fault.Details["want"] == "" {
			t.Errorf("%s: ReadResult(%.100s): error %v, details %v, want one at %q", tc.name, tc.params, err, fault.Details, tc.wrong)
		}
	}
}

// What is a result comes back as it was written, and what is read is a result.
func FuzzReadResult(f *testing.F) {
	f.Add([]byte(`{"verdict":"done","summary":"x","refs":["a"]}`), "done", "it works", "c-1")
	f.Add([]byte(`{"verdict":"waiting"}`), "waiting", "", "\xff")
	f.Add([]byte(`{"verdict":"done","verdict":"done"}`), "", "", "")
	f.Fuzz(func(t *testing.T, params []byte, verdict, summary, ref string) {
		if r, err := ReadResult(params); err == nil {
			if !slices.Contains([]string{"done", "failed", "blocked", "waiting"}, r.Verdict) || len(r.Summary) > MaxSummary || len(r.Refs) > MaxRefs {
				t.Fatalf("ReadResult(%q) = %+v", params, r)
			}
			back, err := json.Marshal(map[string]any{"verdict": r.Verdict, "summary": r.Summary, "refs": append([]string{}, r.Refs...)})
			if err != nil {
				t.Fatal(err)
			}
			if again, err := ReadResult(back); err != nil || !reflect.DeepEqual(again, r) {
				t.Fatalf("ReadResult(%q) = %+v, written again %+v, %v", params, r, again, err)
			}
		}
		want := Result{verdict, summary, []string{ref}}
		text, err := json.Marshal(map[string]any{"verdict": verdict, "summary": summary, "refs": []string{ref}})
		if err != nil {
			t.Fatal(err)
		}
		fits := slices.Contains([]string{"done", "failed", "blocked", "waiting"}, verdict) && len(summary) <= MaxSummary && len(ref) <= MaxRef
		if !utf8.ValidString(summary + ref) {
			return // encoding/json writes something else
		}
		got, err := ReadResult(text)
		if (err == nil) != fits || fits && !reflect.DeepEqual(got, want) {
			t.Fatalf("ReadResult(%q) = %+v, %v", text, got, err)
		}
	})
}

func ExampleReadResult() {
	r, err := ReadResult([]byte(`{"verdict":"done","summary":"two disks are nearly full","refs":["c-01"]}`))
	fmt.Printf("%s: %s %v %v\n", r.Verdict, r.Summary, r.Refs, err)
	_, err = ReadResult([]byte(`{"verdict":"perhaps"}`))
	fmt.Println(err)
	// Output:
	// done: two disks are nearly full [c-01] <nil>
	// INVALID_PARAMS: /verdict: want done, failed, blocked or waiting
}
