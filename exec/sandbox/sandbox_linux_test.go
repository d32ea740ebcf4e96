package sandbox

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const allow = unix.SECCOMP_RET_ALLOW

func refuse(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// decide runs the filter of p on a system call. The virtual machine loads big-endian
// words, the kernel its own; both load the same words here.
func decide(t *testing.T, p Policy, auditArch, number uint32, args ...uint64) uint32 {
	t.Helper()
	filter, err := assemble(&p)
	if err != nil {
		t.Fatal(err)
	}
	var in []bpf.Instruction
	for _, f := range filter {
		in = append(in, bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble())
	}
	vm, err := bpf.NewVM(in)
	if err != nil {
		t.Fatal(err)
	}
	data := binary.BigEndian.AppendUint32(nil, number)
	data = binary.BigEndian.AppendUint32(data, auditArch)
	data = append(data, make([]byte, 8)...)
	for i := range 6 {
		var arg uint64
		if i < len(args) {
			arg = args[i]
		}
		data = binary.BigEndian.AppendUint32(data, uint32(arg))
		data = binary.BigEndian.AppendUint32(data, uint32(arg>>32))
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func TestFilter(t *testing.T) {
	here := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	read, effect := Policy{Network: NoNetwork, Reads: true}, Policy{Network: NoNetwork}
	netlink, any := Policy{Network: Netlink, Reads: true}, Policy{Network: AnyNetwork}
	const odd = 1 << 32 // a bit that the kernel drops from what it takes as an int
	eperm := refuse(unix.EPERM)
	for _, c := range []struct {
		name   string
		p      Policy
		number uint32
		args   []uint64
		want   uint32
	}{
		{"read", read, unix.SYS_READ, nil, allow},
		{"openat", read, unix.SYS_OPENAT, nil, allow},
		{"execve", read, unix.SYS_EXECVE, nil, allow},
		{"kill", read, unix.SYS_KILL, []uint64{1, 9}, allow}, // Landlock's
		{"clone", read, unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, allow},
		{"clone newuser", read, unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, eperm},
		{"clone newnet", effect, unix.SYS_CLONE, []uint64{unix.CLONE_NEWNET | unix.CLONE_VM}, eperm},
		{"clone3", any, unix.SYS_CLONE3, nil, refuse(unix.ENOSYS)},
		{"unshare", any, unix.SYS_UNSHARE, []uint64{unix.CLONE_FS}, eperm},
		{"traceme", read, unix.SYS_PTRACE, []uint64{unix.PTRACE_TRACEME}, allow},
		{"detach", read, unix.SYS_PTRACE, []uint64{unix.PTRACE_DETACH}, allow},
		{"attach", any, unix.SYS_PTRACE, []uint64{unix.PTRACE_ATTACH}, eperm},
		{"peek", any, unix.SYS_PTRACE, []uint64{unix.PTRACE_PEEKDATA}, eperm},
		{"traceme, odd", any, unix.SYS_PTRACE, []uint64{odd}, eperm},
		{"own limits", read, unix.SYS_PRLIMIT64, []uint64{0, 7}, allow},
		{"other's limits", any, unix.SYS_PRLIMIT64, []uint64{1, 7}, eperm},
		{"own processors", read, unix.SYS_SCHED_SETAFFINITY, []uint64{0}, allow},
		{"other's processors", any, unix.SYS_SCHED_SETAFFINITY, []uint64{7}, eperm},
		{"socket", read, unix.SYS_SOCKET, []uint64{unix.AF_INET}, eperm},
		{"socket, with effects", effect, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, eperm},
		{"socketpair", read, unix.SYS_SOCKETPAIR, nil, eperm},
		{"netlink", read, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, eperm},
		{"netlink granted", netlink, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, allow},
		{"netlink granted, internet", netlink, unix.SYS_SOCKET, []uint64{unix.AF_INET}, eperm},
		{"netlink granted, UNIX", netlink, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, eperm},
		{"netlink granted, odd", netlink, unix.SYS_SOCKET, []uint64{odd | unix.AF_NETLINK}, eperm},
		{"network granted", any, unix.SYS_SOCKET, []uint64{unix.AF_INET}, allow},
		{"ioctl", read, unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, allow},
		{"tiocsti", any, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm},
		{"tiocsti, odd", any, unix.SYS_IOCTL, []uint64{0, odd | unix.TIOCSTI}, eperm},
		{"tioclinux", any, unix.SYS_IOCTL, []uint64{0, unix.TIOCLINUX}, eperm},
		{"flags of a file", read, unix.SYS_IOCTL, []uint64{0, 0x40086602}, eperm},
		{"the last request", read, unix.SYS_IOCTL, []uint64{0, 0x401c5820}, eperm},
		{"flags of a file, with effects", effect, unix.SYS_IOCTL, []uint64{0, 0x40086602}, allow},
		{"a number like a request", read, unix.TIOCSTI, nil, refuse(unix.ENOSYS)},
		{"chmod", read, unix.SYS_FCHMODAT, nil, eperm},
		{"chmod, with effects", effect, unix.SYS_FCHMODAT, nil, allow},
		{"file_setattr, newer than the lists", any, unix.SYS_FILE_SETATTR, nil, refuse(unix.ENOSYS)},
		{"what comes in later years", any, 9999, nil, refuse(unix.ENOSYS)},
		{"io_uring", any, unix.SYS_IO_URING_SETUP, nil, eperm},
		{"bpf", any, unix.SYS_BPF, nil, eperm},
	} {
		if got := decide(t, c.p, here, c.number, c.args...); got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
		}
		if got := decide(t, c.p, unix.AUDIT_ARCH_I386, c.number, c.args...); got != unix.SECCOMP_RET_KILL_PROCESS {
			t.Errorf("%s by the numbers of another architecture: got %#x, want it killed", c.name, got)
		}
	}
	if runtime.GOARCH == "amd64" {
		if got := decide(t, read, here, 0x40000000|unix.SYS_PTRACE); got != refuse(unix.ENOSYS) {
			t.Errorf("x32: got %#x, want ENOSYS", got)
		}
	}
}

// Every name of the lists is one that this architecture, or another, knows: a misspelt
// one would be left out in silence.
func TestListsAreSpelt(t *testing.T) {
	elsewhere := []string{"umount", "stime"}
	if runtime.GOARCH == "arm64" {
		elsewhere = append(elsewhere, "ioperm", "iopl", "chmod", "chown", "lchown", "utime", "utimes", "futimesat")
	}
	info, err := archInfo()
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(slices.Concat(denied...), metadata, onItself)
	for i, name := range all {
		if _, ok := info.SyscallNames[name]; !ok && !slices.Contains(elsewhere, name) {
			t.Errorf("%s is no system call here", name)
		}
		if slices.Contains(all[:i], name) {
			t.Errorf("%s stands in the lists twice", name)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, p := range map[string]Policy{
		"no program":       {},
		"relative program": {Program: "true"},
		"relative path":    {Program: "/bin/true", Read: []string{"etc"}},
		"path upwards":     {Program: "/bin/true", Write: []string{"/srv/../etc"}},
		"unknown network":  {Program: "/bin/true", Network: "some"},
		"writing read":     {Program: "/bin/true", Reads: true, Write: []string{"/srv"}},
		"connecting read":  {Program: "/bin/true", Reads: true, Network: AnyNetwork},
	} {
		if s, err := New(p); err == nil {
			t.Errorf("%s: got %+v", name, s.Layers())
		}
	}
}

func TestInterpreters(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shell := interpreters("/bin/sh")
	if len(shell) != 1 || !strings.Contains(shell[0], "ld-") {
		t.Errorf("/bin/sh: got %q, want its loader", shell)
	}
	if got := interpreters(write("script", "#! /bin/sh -e\necho\n")); !slices.Equal(got, append([]string{"/bin/sh"}, shell...)) {
		t.Errorf("a script: got %q", got)
	}
	if got := interpreters("/usr/bin"); !slices.Contains(got, shell[0]) {
		t.Errorf("a folder: got %q, want %s among them", got, shell)
	}
	loop := filepath.Join(dir, "loop")
	if got := interpreters(write("loop", "#!"+loop)); len(got) != 5 {
		t.Errorf("a script that names itself: got %q", got)
	}
	for name, text := range map[string]string{"empty": "", "text": "hello", "relative": "#!sh", "nothing": "#!", "elf": "\x7fELF"} {
		if got := interpreters(write(name, text)); len(got) != 0 {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if got := interpreters(filepath.Join(dir, "missing")); len(got) != 0 {
		t.Errorf("missing: got %q", got)
	}
}
