package adaptortest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// elsewhere says where the thread cases are tried that the suite does not try: a file of
// this module and the test in it, or why there is none.
var elsewhere = map[string]struct{ file, test, why string }{
	"tb-028": {"service/threads/progress_test.go", "TestProgress", ""},
	"tb-010": {"adaptors/webhook/catchup_test.go", "TestCursorFollowsWhatIsTaken", ""},
	"tb-011": {"adaptors/webhook/inbound_test.go", "TestWithoutID", ""},
	"tb-017": {"service/threads/wake_test.go", "TestAgentsThatAnswerEachOther", ""},
	"tb-022": {"envelope/law_test.go", "TestRenderingsAreAllThereAre", ""},
	"tb-029": {why: "no adaptor joins channels by itself: rooms stand in its configuration"},
	"tb-047": {"harvester/vectors_test.go", "TestVectors", ""},
	"tb-048": {"harvester/vectors_test.go", "TestVectors", ""},
	"tb-049": {"harvester/vectors_test.go", "TestVectors", ""},
	"tb-050": {"harvester/vectors_test.go", "TestVectors", ""},
	"tb-051": {why: "nothing is ever stripped of its directives: a reply is kept as it was written, and shown so"},
	"tb-052": {"service/approvals_test.go", "TestDecidersAtOnce", ""},
	"tb-055": {"adaptors/webhook/config_test.go", "TestReadRefuses", ""},
	"tb-056": {"service/policy_test.go", "TestOutputIsWithheld", ""},
	"tb-060": {"cmd/box/testdata/script/exec.txtar", "", ""},
	"tb-061": {"cmd/box/testdata/script/usage.txtar", "", ""},
	"tb-062": {"cmd/box/output_test.go", "TestClean", ""},
}

// Every case of the vectors is run by the suite, or by a test that exists, or there is a
// reason.
func TestEveryThreadCaseIsTried(t *testing.T) {
	b, err := os.ReadFile("testdata/thread-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ ID, Condition string }
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	known, ours := map[string]bool{}, map[string]bool{}
	for _, c := range cases {
		known[c.ID] = true
	}
	for _, s := range suite {
		for _, id := range s.cases {
			if !known[id] || ours[id] {
				t.Errorf("%s: the case %s is unknown, or run twice", s.name, id)
			}
			ours[id] = true
		}
	}
	for id, e := range elsewhere {
		if !known[id] || ours[id] {
			t.Errorf("%s is no case, or is run by the suite", id)
		}
		if e.file == "" {
			if e.why == "" {
				t.Errorf("%s: neither a test nor a reason", id)
			}
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(e.file)))
		if err != nil || e.test != "" && !strings.Contains(string(text), "\nfunc "+e.test+"(") {
			t.Errorf("%s: %s has no %s: %v", id, e.file, e.test, err)
		}
	}
	for _, c := range cases {
		if _, ok := elsewhere[c.ID]; !ok && !ours[c.ID] {
			t.Errorf("%s is tried nowhere: %s", c.ID, c.Condition)
		}
	}
}
