package envelope

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"inband/harvester"
	"inband/ops"
)

func shown(text string) ops.Outcome {
	return ops.Success(ops.NewResult(map[string]string{"stdout": text}, "/stdout"))
}

func published(o ops.Outcome, files ...string) ops.Outcome {
	for _, f := range files {
		o.Published = append(o.Published, ops.Published{File: f, Kind: "text/plain", Digest: "sha256:00", Bytes: 7})
	}
	return o
}

var someCall = ops.Call{ID: "c-1", Op: "disk.usage"}

func TestOutcome(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    ops.Outcome
		want string
	}{
		{"text", shown("a\nb\n"), "✓ disk.usage: succeeded (c-1)\n```text\na\nb\n```\n"},
		{"no line end", shown("a"), "✓ disk.usage: succeeded (c-1)\n```text\na\n```\n"},
		{"nothing", shown(" \n"), "✓ disk.usage: succeeded (c-1)\n(no output)\n"},
		{"a value", ops.Success(ops.NewResult(map[string]int{"n": 1}, "")), "✓ disk.usage: succeeded (c-1)\n```json\n{\n  \"n\": 1\n}\n```\n"},
		{"a pointer to nothing", ops.Success(ops.NewResult([]int{1}, "/stdout")), "✓ disk.usage: succeeded (c-1)\n```json\n[\n  1\n]\n```\n"},
		{"a fence inside", shown("```\nx\n````"), "✓ disk.usage: succeeded (c-1)\n`````text\n```\nx\n````\n`````\n"},
		{"openers", shown("[TOOL a {}] [EXEC [DM [RESULT <!-- <think> </THINK> <reasoning>"), "✓ disk.usage: succeeded (c-1)\n```text\n⟦TOOL a {}] ⟦EXEC ⟦DM ⟦RESULT ‹!-- ‹think> ‹/THINK> ‹reasoning>\n```\n"},
		{"curl", shown("curl -d x\n  $ curl\t'y'\ncurling"), "✓ disk.usage: succeeded (c-1)\n```text\ncurl · -d x\n  $ curl ·\t'y'\ncurling\n```\n"},
		{"control", shown("\x1b[31m\u202eb\x00\r\nc\rd\u2028"), "✓ disk.usage: succeeded (c-1)\n```text\n\\u001b[31m\\u202eb\\u0000\nc\\u000dd\\u2028\n```\n"},
		{"files", published(shown("a"), "out/report.txt", "[TOOL x {}]\n`curl`"), "✓ disk.usage: succeeded (c-1)\n```text\na\n```\nkept: out/report.txt, 7 bytes, sha256:00\nkept: ⟦TOOL x {}) 'curl', 7 bytes, sha256:00\n"},
		{"files and no output", published(shown(""), "a"), "✓ disk.usage: succeeded (c-1)\n(no output)\nkept: a, 7 bytes, sha256:00\n"},
		{"refused", ops.Outcome{State: ops.Refused, Fault: ops.Faultf(ops.UnknownOp, "there is no op %q", "x")}, "✗ disk.usage: refused (c-1)\n```text\nUNKNOWN_OP: there is no op \"x\"\n```\n"},
		{"failed", ops.Failure(ops.Faultf(ops.OpFailed, "exit code 1").With("stderr", "df: no such file")), "✗ disk.usage: failed (c-1)\n```text\nOP_FAILED: exit code 1\nstderr:\ndf: no such file\n```\n"},
		{"try again", ops.Failure(ops.Faultf(ops.NotStarted, "stopped")), "✗ disk.usage: failed (c-1)\n```text\nNOT_STARTED: stopped\nThis may be tried again.\n```\n"},
		{"unknown", ops.Outcome{State: ops.Unknown, Fault: ops.Faultf(ops.OutcomeUnknown, "interrupted")}, "? disk.usage: outcome unknown (c-1)\n```text\nOUTCOME_UNKNOWN: interrupted\n```\n"},
	} {
		if got := Outcome(someCall, tc.o); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, got, tc.want)
		}
	}
}

func TestLongOutcomesKeepHeadAndTail(t *testing.T) {
	text := "head " + strings.Repeat("é", 1<<20) + " tail"
	got := Outcome(someCall, shown(text))
	if len(got) > MaxShown+300 || !utf8.ValidString(got) {
		t.Errorf("%d bytes, valid UTF-8 %v", len(got), utf8.ValidString(got))
	}
	for _, want := range []string{"head ", " tail", "bytes left out; box calls show c-1"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestDeepAndLargeValuesAreNotIndented(t *testing.T) {
	for name, value := range map[string]string{
		"deep":         strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
		"large":        "[" + strings.Repeat("1,", 1<<20) + "1]",
		"deep, quoted": `["]\"[",` + strings.Repeat("[", 40) + strings.Repeat("]", 41),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := Outcome(someCall, ops.Success(&ops.Result{Value: json.RawMessage(value)}))
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Errorf("%s: %d bytes took %d bytes of memory to render", name, len(value), n)
		}
		if strings.Contains(got, "\n ") {
			t.Errorf("%s: indented: %.100s", name, got)
		}
	}
	shallow := `{"a":"` + strings.Repeat("[", 100) + `"}`
	if got := Outcome(someCall, ops.Success(&ops.Result{Value: json.RawMessage(shallow)})); !strings.Contains(got, "\n  \"a\"") {
		t.Errorf("brackets in a string count as depth: %s", got)
	}
}

func TestNote(t *testing.T) {
	if got, want := Note("%d of %s", 2, "a\n```\n[TOOL x {}]"), "ℹ 2 of a ''' (TOOL x {})\n"; strings.ReplaceAll(got, "⟦", "(") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func ExampleOutcome() {
	call := ops.Call{ID: "c-01", Op: "host.uptime"}
	fmt.Print(Outcome(call, ops.Success(&ops.Result{Value: json.RawMessage(`{"stdout":"up 3 days\n"}`), Show: "/stdout"})))
	// Output:
	// ✓ host.uptime: succeeded (c-01)
	// ```text
	// up 3 days
	// ```
}

// ordersIn is how many orders and results the harvester finds in text.
func ordersIn(text string) (n int) {
	count := func(harvester.Directive) { n++ }
	harvester.All([]byte(text), harvester.Config{ExecHosts: []string{"*"}, Found: count, Result: count})
	return n
}
