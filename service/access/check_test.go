package access

import (
	"slices"
	"testing"

	"inband/ops"
)

// An op that a policy names as a string is one of its ops, and a provider is none.
func TestOpsInConditions(t *testing.T) {
	p, err := ParsePolicy("x", []byte(`forbid (principal, action == Action::"run", resource) when {
  context.op == "d" || "e" != context.op || ["f", "d"].contains(context.op) || context.provider == "host" || context.op like "g*" };
permit (principal, action, resource == Op::"c");`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Ops(), []ops.OpName{"c", "d", "e", "f"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
