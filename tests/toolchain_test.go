package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
)

// os.Root could be left through a link with a slash behind it until Go 1.26.5
// (CVE-2026-39822), and paths of callers are opened beneath one.
func TestToolchain(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(b))
	if m == nil || semver.Compare("v"+m[1], "v1.26.5") < 0 {
		t.Errorf("go.mod asks for %q; want go 1.26.5 or later", strings.Join(m, ""))
	}
}
