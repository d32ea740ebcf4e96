package command

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
)

// What holds for a root gateway holds for one that is not: the other tests, by nobody.
func TestAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other tests have been run as an ordinary user")
	}
	dir, err := os.MkdirTemp("/tmp", "inband-nobody-") // the folders of t.TempDir are closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program, mine := filepath.Join(dir, "program"), filepath.Join(dir, "mine")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, self, 0o755), os.Mkdir(mine, 0o700), os.Chown(mine, overflow, overflow)); err != nil {
		t.Fatal(err)
	}
	// TestAttack goes to nobody by itself.
	cmd := exec.Command(program, "-test.v", "-test.timeout", "5m", "-test.skip", "^(TestAttack.*|Fuzz.*|Benchmark.*)$")
	cmd.Dir, cmd.Env = mine, []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "TMPDIR=" + mine}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: overflow, Gid: overflow}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	// A skip in there is seen by nobody else.
	for _, m := range regexp.MustCompile(`(?m)^\s*--- SKIP: (\S+)`).FindAllStringSubmatch(string(out), -1) {
		if !slices.Contains(rootOnly, m[1]) {
			t.Errorf("%s was skipped as an ordinary user:\n%s", m[1], out)
		}
	}
}

// rootOnly are the tests that are about what only a root gateway can do.
var rootOnly = []string{"TestAsNobody", "TestRunAs", "TestPathOfAnotherUser", "TestStraightOfOtherUsers"}
