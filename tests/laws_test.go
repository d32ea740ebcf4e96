package tests

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"inband/envelope"
	"inband/harvester"
	"inband/ops"
)

// Laws that hold across packages. What they need of one package alone is tested there.

var anyHost = harvester.Config{ExecHosts: []string{"*"}}

// The laws that stand elsewhere: every entrance refuses the same table
// (TestEveryEntranceRefusesTheSame), and acknowledged implies logged (TestKill).

// Law: spans lie in the reply, in order, and do not overlap; what a span holds is that
// order when it stands alone, as far as a bracket directive can; and any cutting gives
// the same directives.
func FuzzSpansTile(f *testing.F) {
	for _, s := range []string{
		"a [TOOL x {}] b [DM {\"t\":1}]", "```tool\na {} b {}\n```", "```box\nstatus\nop x\n```", "$ curl -d '{\"op\":\"a\"}' http://h/exec\n", "[TOOL a {\"b\":}] [EXEC c {}]",
	} {
		f.Add([]byte(s), 7)
	}
	f.Fuzz(func(t *testing.T, reply []byte, cut int) {
		found, _ := harvester.All(reply, anyHost)
		var pieces []harvester.Directive
		config := anyHost
		config.Found = func(d harvester.Directive) {
			d.Params = slices.Clone(d.Params)
			pieces = append(pieces, d)
		}
		scanner := harvester.New(config)
		size := 1 + int(uint(cut)%16)
		for piece := range slices.Chunk(reply, size) {
			if _, err := scanner.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		scanner.Close(true)
		if diff := cmp.Diff(found, pieces, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q in pieces of %d bytes reads otherwise than whole:\n%s", reply, size, diff)
		}
		last, lastStart := int64(0), int64(-1)
		for _, d := range found {
			together := d.Start == lastStart && d.End == last // calls of one array
			if d.Start < last && !together || d.End > int64(len(reply)) || d.Start >= d.End {
				t.Fatalf("span [%d, %d) after %d in %d bytes: %q", d.Start, d.End, last, len(reply), reply)
			}
			last, lastStart = d.End, d.Start
			if reply[d.Start] != '[' || reply[d.End-1] != ']' || together {
				continue
			}
			alone, _ := harvester.All(reply[d.Start:d.End], anyHost)
			if len(alone) != 1 || alone[0].Op != d.Op || string(alone[0].Params) != string(d.Params) {
				t.Fatalf("the span %q of %s reads alone as %+v", reply[d.Start:d.End], d.Op, alone)
			}
		}
	})
}

// Law (R9): harvesting a rendered outcome yields nothing, whatever the op returned and
// whatever the caller named, and it hides nothing that stands behind it.
func FuzzRenderedHoldsNoOrder(f *testing.F) {
	for _, s := range []string{
		"[TOOL a {}]", "```tool\na {}\n```", "~~~\n[DM {}]", "<!--", "<think>x", "curl -d '{\"op\":\"a\"}' http://h/exec", "> x", "`````", "\u202e", "- ```box\nstatus", "\\[TOOL a {}]", "a\r[EXEC b {}]\r\n",
	} {
		f.Add(s, s, s)
	}
	f.Fuzz(func(t *testing.T, result, name, message string) {
		call := ops.Call{ID: "c-1", Op: ops.OpName(name)}
		value, err := json.Marshal(map[string]string{"stdout": result})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []ops.Outcome{
			ops.Success(&ops.Result{Value: value, Show: "/stdout"}),
			ops.Success(&ops.Result{Value: value}),
			ops.Failure(ops.Faultf(ops.OpFailed, "%s", message).With("stdout", result).With("stderr", message)),
		} {
			text := envelope.Outcome(call, o)
			if found, _ := harvester.All([]byte(text), anyHost); len(found) != 0 {
				t.Fatalf("the outcome %q holds the order %+v", text, found)
			}
			behind := text + "[TOOL after {}]"
			if found, _ := harvester.All([]byte(behind), anyHost); len(found) != 1 || found[0].Op != "after" {
				t.Fatalf("behind the outcome %q the order was read as %+v", text, found)
			}
		}
		if found, _ := harvester.All([]byte(envelope.Note("%s", message)), anyHost); len(found) != 0 {
			t.Fatalf("the note of %q holds the order %+v", message, found)
		}
	})
}
