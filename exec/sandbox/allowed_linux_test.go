package sandbox

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Everything that a read may call, by name. A system call that a newer table of the
// library brings is allowed unless a list has it, so each stands here when somebody has
// read what it does; testdata/allowed.txt is in the order of the alphabet. (ioctl is not in
// it, since it is allowed by its second argument only.)
func TestAllowedIsReviewed(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the list is that of amd64")
	}
	text, err := os.ReadFile(filepath.Join("testdata", "allowed.txt"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := archInfo()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, number := range info.SyscallNames {
		if decide(t, Policy{Network: NoNetwork, Reads: true}, unix.AUDIT_ARCH_X86_64, uint32(number)) == allow {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	want := strings.Fields(string(text))
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("a read may call %s, which nobody has reviewed", name)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("a read may not call %s any more", name)
		}
	}
}
