package tests

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"inband/service/journal/storetest"
)

// The cases that depend on whom the gateway runs as hold for one that is not root, too.
func TestCasesAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		storetest.Need(t, "root, to become nobody", syscall.EPERM)
	}
	tests := []string{"TestOnlyWhatIsDeclared", "TestPathsAreLiteral", "TestStandardInputIsOneValue", "TestEmptyAndAbsentAreNone", "TestProgramsStartNoOthers",
		"TestSecretsStayWhereTheyAre", "TestStateFolderIsNoParameter", "TestTreesEnd", "TestOnlyOnesOwnIsCancelled", "TestOneKeyIsOneExecution", "TestOutputIsShownSafely", "TestWildOps"}
	dir := openFolder(t)
	read := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	box, self := filepath.Join(dir, "box"), filepath.Join(dir, "tests")
	if err := errors.Join(os.WriteFile(box, read(build(t, "")), 0o755), os.WriteFile(self, read("/proc/self/exe"), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.run", "^("+strings.Join(tests, "|")+")$")
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=/tmp", "PATH=/usr/bin:/bin", "HOME=/nonexistent", "INBAND_TEST_BOX=" + box}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("%s did not pass as nobody", name)
		}
	}
}
