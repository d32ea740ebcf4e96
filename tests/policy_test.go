package tests

import (
	"regexp"
	"strings"
	"testing"

	"inband/service/access"
)

// The policies that docs/security.md shows are good ones, the first is the default, and
// its tables name what the schema has.
func TestPoliciesOfTheDocs(t *testing.T) {
	text := section(t, doc(t, "docs/security.md"), "## The policy")
	blocks := regexp.MustCompile("(?ms)^```cedar\n(.*?)^```$").FindAllStringSubmatch(text, -1)
	if len(blocks) < 2 {
		t.Fatalf("docs/security.md shows %d policies", len(blocks))
	}
	for _, b := range blocks {
		if _, err := access.ParsePolicy("docs/security.md", []byte(b[1])); err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
	}
	if blocks[0][1] != string(access.DefaultPolicyText()) {
		t.Errorf("the default policy is shown as\n%s", blocks[0][1])
	}

	_, rest, _ := strings.Cut(text, "| action |")
	actions, attributes, ok := strings.Cut(rest, "| in `context` |")
	if !ok {
		t.Fatal("docs/security.md has no table of the context")
	}
	schema := access.PolicySchema()
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^action ([^{]+) appliesTo`).FindAllStringSubmatch(schema, -1) {
		want = append(want, strings.Split(strings.ReplaceAll(m[1], `"`, ""), ", ")...)
	}
	same(t, "the actions of the schema", want, "docs/security.md", column(table(t, "| action |"+actions), 0))

	want = nil
	for _, m := range regexp.MustCompile(`(?m)^    (\w+): (\w+),`).FindAllStringSubmatch(schema, -1) {
		want = append(want, m[1]+" "+m[2])
	}
	var got []string
	for _, row := range table(t, "| in `context` |"+attributes) {
		for name := range strings.SplitSeq(strings.ReplaceAll(row[0], "`", ""), ", ") {
			got = append(got, name+" "+row[1])
		}
	}
	same(t, "the context of the schema", want, "docs/security.md", got)
}
