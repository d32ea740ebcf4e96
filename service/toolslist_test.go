package service

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inband/envelope"
	"inband/ops"
)

// Whoever is shown tools.list in a thread can write an order of any op from it: no op is
// cut off, and each parameter stands there, those of objects too.
func TestToolsListAsText(t *testing.T) {
	bound := []ops.Bound{read("test.r", fine)}
	for _, op := range ops.Natives() {
		if op.Name != "tools.list" {
			bound = append(bound, ops.Bound{Op: op, Executor: ops.ExecutorFunc(fine)})
		}
	}
	bound = append(bound, ops.Bound{Op: ops.Op{Name: "test.all", Provider: "test", Summary: "All types.", Params: ops.Params{
		{Name: "kind", Type: ops.Enum, Values: []string{"a", "b"}, Doc: "Which."},
		{Name: "n", Type: ops.Int, Min: -1, Max: 3}, {Name: "yes", Type: ops.Bool, Optional: true},
		{Name: "wait", Type: ops.Duration, Min: int64(time.Second), Max: int64(time.Minute)},
		{Name: "who", Type: ops.Names, Max: 4},
	}}, Executor: ops.ExecutorFunc(fine)})
	h := newHouse(t, bound...)
	list := h.door.Tools(scout)
	if list.Total != len(bound) || len(list.Ops) != len(bound) {
		t.Fatalf("%d ops of %d", list.Total, len(bound))
	}
	for _, want := range []string{
		"\n- test.r: ", "\n! swarm.spawn or swarm: Hand work to a worker", "\n    task text: What is to be done.\n", "\n    verify? object: ", "\n      command array of strings, 1..64: ",
		"\n      revision string: ", "\n      worker_lost? number 0..16: ", "\n    artifacts? array of strings, 0..32: ", "\n    deadline? duration 1s..168h0m0s: ",
		"\n    kind one of a|b: Which.\n", "\n    n number -1..3\n", "\n    yes? true|false\n", "\n    wait duration 1s..1m0s\n", "\n    who array of names of ops, at most 4\n",
		"\n! swarm.cancel: ", "\n    delegation string: ",
	} {
		if !strings.Contains(list.Text, want) {
			t.Errorf("the text lacks %q:\n%s", want, list.Text)
		}
	}
	o := ops.Success(ops.NewResult(list, "/text"))
	post := envelope.Outcome(ops.Call{ID: "c-1", Op: "tools.list"}, o)
	if !strings.Contains(post, "\n! swarm.spawn or swarm") || strings.Contains(post, "bytes left out") || strings.Contains(post, `"ops"`) {
		t.Errorf("the post is not the text, or not all of it:\n%s", post)
	}
	var value struct {
		Ops []struct{ Name, Parameters json.RawMessage }
	}
	if err := json.Unmarshal(o.Result.Value, &value); err != nil || len(value.Ops) != len(bound) {
		t.Errorf("the value has %d ops, %v", len(value.Ops), err)
	}
}
