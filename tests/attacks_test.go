package tests

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table of attacks in docs/security.md is the one that the attack program is held
// to: the same attempts, each ending the same way.
func TestAttackTable(t *testing.T) {
	file := filepath.Join(moduleRoot(t), "exec", "command", "testdata", "attacks.txt")
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	held := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		attempt, end, ok := strings.Cut(line, " = ")
		if !ok || held[attempt] != "" {
			t.Fatalf("%s: %q is no attempt with its end, or stands there twice", file, line)
		}
		held[attempt] = end
	}
	for _, row := range table(t, section(t, doc(t, "docs/security.md"), "### What a program tried")) {
		for attempt := range strings.SplitSeq(row[1], "; ") {
			switch end, ok := held[attempt]; {
			case !ok:
				t.Errorf("docs/security.md has %q, which is not tried, or has it twice", attempt)
			case end != row[2]:
				t.Errorf("docs/security.md says that %q ends with %s; it ends with %s", attempt, row[2], end)
			}
			delete(held, attempt)
		}
	}
	for attempt, end := range held {
		t.Errorf("docs/security.md does not have %q, which ends with %s", attempt, end)
	}
}
