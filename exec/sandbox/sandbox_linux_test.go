package sandbox

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The test binary is also the program that reaches for the thread that launched it.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "reach" {
		tid, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		reach(os.Getppid(), tid)
		unix.Exit(0) // a test binary with the race detector takes a second to return
	}
	goleak.VerifyTestMain(m)
}

// reach tries to signal the thread tid of the process pid, to look into it, and to start
// a process beside this one, and prints what it could do.
func reach(pid, tid int) {
	did := func(what string, err error) {
		if err == nil {
			fmt.Println(what)
		}
	}
	call := func(what string, number uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 {
			fmt.Println(what)
		}
	}
	did("kill", unix.Kill(tid, 0))
	did("kill with odd bits", func() error {
		_, _, errno := unix.RawSyscall(unix.SYS_KILL, 1<<32|uintptr(tid), 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}())
	call("tkill", unix.SYS_TKILL, uintptr(tid), 0)
	call("tgkill", unix.SYS_TGKILL, uintptr(pid), uintptr(tid), 0)
	var info [128]byte
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
	call("sigqueue", unix.SYS_RT_SIGQUEUEINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)))
	call("tgsigqueue", unix.SYS_RT_TGSIGQUEUEINFO, uintptr(pid), uintptr(tid), 0, uintptr(unsafe.Pointer(&info)))
	fd, err := unix.PidfdOpen(tid, unix.O_EXCL) // PIDFD_THREAD
	did("pidfd_open", err)
	if err == nil {
		did("pidfd_send_signal", unix.PidfdSendSignal(fd, 0, nil, 0))
	}
	if fd, err := unix.Open(fmt.Sprintf("/proc/%d", tid), unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		did("pidfd_send_signal by /proc", unix.PidfdSendSignal(fd, 0, nil, 0))
	}
	_, err = unix.FcntlInt(1, unix.F_SETOWN, tid)
	did("F_SETOWN", err)
	owner := [2]int32{0, int32(tid)} // F_OWNER_TID
	call("F_SETOWN_EX", unix.SYS_FCNTL, 1, unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
	call("FIOSETOWN", unix.SYS_IOCTL, 1, 0x8901, uintptr(unsafe.Pointer(&owner[1])))
	call("attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(tid))
	for _, file := range []string{"mem", "maps", "environ", "auxv", "fd/0", "cwd/.", "task/" + strconv.Itoa(tid) + "/mem"} {
		for _, id := range []int{pid, tid} {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", id, file), unix.O_RDONLY, 0)
			if err == nil {
				_, err = unix.Read(fd, info[:1])
			}
			did("read "+file, err)
		}
	}
	child, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_PARENT|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 {
		if child == 0 {
			unix.Exit(0)
		}
		fmt.Println("clone beside")
	}
	fmt.Println("end")
}

const (
	allow  = unix.SECCOMP_RET_ALLOW
	thread = 4711 // what launched
)

func refuse(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// machine returns the filter of p as a function of a system call. The virtual machine
// loads big-endian words, the kernel its own; both load the same words here.
func machine(t *testing.T, p Policy) func(auditArch, number uint32, args ...uint64) uint32 {
	t.Helper()
	filter, err := assemble(&p)
	if err != nil {
		t.Fatal(err)
	}
	var in []bpf.Instruction
	for _, f := range filter.forThread(thread) {
		in = append(in, bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble())
	}
	vm, err := bpf.NewVM(in)
	if err != nil {
		t.Fatal(err)
	}
	return func(auditArch, number uint32, args ...uint64) uint32 {
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
}

// decide runs the filter of p on one system call.
func decide(t *testing.T, p Policy, auditArch, number uint32, args ...uint64) uint32 {
	t.Helper()
	return machine(t, p)(auditArch, number, args...)
}

func TestFilter(t *testing.T) {
	here := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	read, effect := Policy{Network: NoNetwork, Reads: true}, Policy{Network: NoNetwork}
	netlink, any := Policy{Network: Netlink, Reads: true}, Policy{Network: AnyNetwork}
	local, free := Policy{Network: UnixNetwork}, Policy{Network: NoNetwork, Metadata: true}
	const odd = 1 << 32 // a bit that the kernel drops from what it takes as an int
	eperm, notty := refuse(unix.EPERM), refuse(unix.ENOTTY)
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
		{"kill the thread", any, unix.SYS_KILL, []uint64{thread, 9}, eperm},
		{"kill the thread, odd", any, unix.SYS_KILL, []uint64{odd | thread, 9}, eperm},
		{"kill a group", any, unix.SYS_KILL, []uint64{1<<64 - thread, 9}, allow},
		{"tkill", any, unix.SYS_TKILL, []uint64{thread + 1, 9}, allow},
		{"tkill the thread", any, unix.SYS_TKILL, []uint64{thread, 9}, eperm},
		{"tgkill", any, unix.SYS_TGKILL, []uint64{thread, thread + 1, 9}, allow},
		{"tgkill the thread", any, unix.SYS_TGKILL, []uint64{1, thread, 9}, eperm},
		{"queue to the thread", any, unix.SYS_RT_SIGQUEUEINFO, []uint64{thread, 9}, eperm},
		{"queue", any, unix.SYS_RT_SIGQUEUEINFO, []uint64{1, thread}, allow},
		{"queue to the thread of a group", any, unix.SYS_RT_TGSIGQUEUEINFO, []uint64{1, thread, 9}, eperm},
		{"pidfd", any, unix.SYS_PIDFD_OPEN, []uint64{thread - 1}, allow},
		{"pidfd of the thread", any, unix.SYS_PIDFD_OPEN, []uint64{thread, unix.O_EXCL}, eperm},
		{"signal by pidfd", any, unix.SYS_PIDFD_SEND_SIGNAL, []uint64{3}, eperm},
		{"fcntl", read, unix.SYS_FCNTL, []uint64{1, unix.F_DUPFD_CLOEXEC}, allow},
		{"owner", any, unix.SYS_FCNTL, []uint64{1, odd | unix.F_SETOWN}, eperm},
		{"owner, extended", any, unix.SYS_FCNTL, []uint64{1, unix.F_SETOWN_EX}, eperm},
		{"owner by ioctl", any, unix.SYS_IOCTL, []uint64{1, 0x8901}, eperm},
		{"clone beside", any, unix.SYS_CLONE, []uint64{unix.CLONE_PARENT}, eperm},
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
		{"network granted, version 6", any, unix.SYS_SOCKET, []uint64{unix.AF_INET6}, allow},
		{"network granted, netlink", any, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, allow},
		{"network granted, UNIX", any, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, eperm},
		{"network granted, UNIX, odd", any, unix.SYS_SOCKET, []uint64{odd | unix.AF_UNIX}, eperm},
		{"network granted, packets", any, unix.SYS_SOCKET, []uint64{unix.AF_PACKET}, eperm},
		{"network granted, vsock", any, unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, eperm},
		{"network granted, a pair", any, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, allow},
		{"network granted, a pair of packets", any, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, allow},
		{"network granted, a pair that sends anywhere", any, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, eperm},
		{"network granted, the same by its other name", any, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, odd | unix.SOCK_RAW | unix.SOCK_NONBLOCK}, eperm},
		{"UNIX granted", local, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, allow},
		{"UNIX granted, a pair", local, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, allow},
		{"UNIX granted, internet", local, unix.SYS_SOCKET, []uint64{unix.AF_INET}, eperm},
		{"UNIX granted, netlink", local, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, eperm},
		{"ioctl", read, unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, allow},
		{"tiocsti", any, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm},
		{"tiocsti, odd", any, unix.SYS_IOCTL, []uint64{0, odd | unix.TIOCSTI}, eperm},
		{"tioclinux", any, unix.SYS_IOCTL, []uint64{0, unix.TIOCLINUX}, eperm},
		{"flags of a file", read, unix.SYS_IOCTL, []uint64{0, 0x40086602}, notty},
		{"flags of a file, with effects", effect, unix.SYS_IOCTL, []uint64{0, 0x40086602}, notty},
		{"flags of a file, granted", free, unix.SYS_IOCTL, []uint64{0, 0x40086602}, allow},
		{"tiocsti, with metadata granted", free, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm},
		{"verity", effect, unix.SYS_IOCTL, []uint64{0, 0x40806685}, notty},
		{"verity, odd", effect, unix.SYS_IOCTL, []uint64{0, odd | 0x40806685}, notty},
		{"a subvolume", effect, unix.SYS_IOCTL, []uint64{0, 0x5000940e}, notty},
		{"the request 0", read, unix.SYS_IOCTL, []uint64{0, 0}, notty},
		{"the first known request", read, unix.SYS_IOCTL, []uint64{0, uint64(knownRequests[0])}, allow},
		{"the last known request", read, unix.SYS_IOCTL, []uint64{0, uint64(knownRequests[len(knownRequests)-1])}, allow},
		{"before the sockets' requests", netlink, unix.SYS_IOCTL, []uint64{0, socketsFrom - 1}, notty},
		{"a socket's interface", netlink, unix.SYS_IOCTL, []uint64{0, unix.SIOCGIFINDEX}, allow},
		{"behind the sockets' requests", netlink, unix.SYS_IOCTL, []uint64{0, socketsTo + 1}, notty},
		{"a lease", read, unix.SYS_FCNTL, []uint64{0, unix.F_SETLEASE}, eperm},
		{"a lease, odd", effect, unix.SYS_FCNTL, []uint64{0, odd | unix.F_SETLEASE}, eperm},
		{"a lock", read, unix.SYS_FCNTL, []uint64{0, unix.F_SETLK}, allow},
		{"to outlive the gateway", any, unix.SYS_PRCTL, []uint64{unix.PR_SET_PDEATHSIG, 0}, eperm},
		{"to outlive the gateway, odd", any, unix.SYS_PRCTL, []uint64{odd | unix.PR_SET_PDEATHSIG, uint64(unix.SIGTERM)}, eperm},
		{"to end with the gateway", read, unix.SYS_PRCTL, []uint64{unix.PR_SET_PDEATHSIG, uint64(unix.SIGKILL)}, allow},
		{"a name", read, unix.SYS_PRCTL, []uint64{unix.PR_SET_NAME, 0}, allow},
		{"a number like a request", read, unix.TIOCSTI, nil, refuse(unix.ENOSYS)},
		{"chmod", read, unix.SYS_FCHMODAT, nil, eperm},
		{"chmod, with effects", effect, unix.SYS_FCHMODAT, nil, eperm},
		{"chmod by descriptor, with effects", effect, unix.SYS_FCHMOD, nil, eperm},
		{"chmod, granted", free, unix.SYS_FCHMODAT, nil, allow},
		{"times", effect, unix.SYS_UTIMENSAT, []uint64{3, 4096}, eperm},
		{"times, of a name in high memory", effect, unix.SYS_UTIMENSAT, []uint64{3, odd}, eperm},
		{"times of an open file", effect, unix.SYS_UTIMENSAT, []uint64{3, 0}, allow},
		{"times of an open file, by a read", read, unix.SYS_UTIMENSAT, []uint64{3, 0}, eperm},
		{"times, granted", free, unix.SYS_UTIMENSAT, []uint64{3, 4096}, allow},
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

// Each number gets what the lists say of its name, whatever the tree of decisions looks
// like.
func TestFilterOfAllNumbers(t *testing.T) {
	info, err := archInfo()
	if err != nil {
		t.Fatal(err)
	}
	here := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	for _, p := range []Policy{{Network: NoNetwork, Reads: true}, {Network: Netlink}, {Network: UnixNetwork, Metadata: true}, {Network: AnyNetwork}} {
		want := map[int]uint32{}
		set := func(action uint32, names ...string) {
			for _, name := range names {
				if number, ok := info.SyscallNames[name]; ok {
					want[number] = action
				}
			}
		}
		set(refuse(unix.EPERM), slices.Concat(denied...)...)
		if !p.Metadata {
			set(refuse(unix.EPERM), metadata...)
			set(refuse(unix.ENOTTY), "ioctl") // the request 0
			if !p.Reads {
				set(allow, "utimensat") // of an open file
			}
		}
		if p.Network == NoNetwork || p.Network == Netlink {
			set(refuse(unix.EPERM), "socketpair")
		}
		set(refuse(unix.EPERM), "socket") // of family 0
		set(refuse(unix.ENOSYS), "clone3")
		machine := machine(t, p)
		for number := range newest(info) + 50 {
			w, ok := want[number]
			switch {
			case number > newest(info):
				w = refuse(unix.ENOSYS)
			case !ok:
				w = allow
			}
			if got := machine(here, uint32(number)); got != w {
				t.Errorf("%+v: %d: got %#x, want %#x", p, number, got, w)
			}
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
		"speaking read":    {Program: "/bin/true", Reads: true, Network: UnixNetwork},
		"changing read":    {Program: "/bin/true", Reads: true, Metadata: true},
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

// What executes a program is read again when the program is another one.
func TestExecutedIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	e := newExecuted(path)
	if got, want := e.interpreters(), interpreters(path); !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := os.WriteFile(path+".new", []byte("#!/bin/cat\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if got := e.interpreters(); len(got) == 0 || got[0] != "/bin/cat" {
		t.Errorf("after it is replaced: got %q", got)
	}
	if e := newExecuted(filepath.Dir(path)); !slices.Equal(e.interpreters(), interpreters("/bin")) {
		t.Errorf("a folder: got %q", e.interpreters())
	}
}
