package command

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"inband/exec/sandbox"
	"inband/ops"
)

// attempt is one thing that a read op must not be able to do, and how it ended: "done"
// if it could, else the error.
type attempt struct{ Name, Got string }

// target is what the attack aims at: things of the gateway and of the machine that the
// gateway itself can reach.
type target struct {
	PID    int    // the gateway
	Dir    string // a folder of the gateway's
	File   string // a file in it
	Port   int    // a TCP port that is listened at
	Socket string // a UNIX socket that is listened at
	Acts   bool   // the op has side effects
}

// attempts are those of one attack.
type attempts []attempt

func (all *attempts) try(name string, err error) {
	got := "done"
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		got = unix.ErrnoName(errno)
	case err != nil:
		got = err.Error()
	}
	*all = append(*all, attempt{name, got})
}

func (all *attempts) call(name string, number uintptr, args ...uintptr) {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno == 0 {
		all.try(name, nil)
		return
	}
	all.try(name, errno)
}

// attack tries everything that we could think of against t. It runs inside a read op
// whose policy lets it read /proc, and inside one with side effects and a network, which
// may read the files and the folders of t too, but write to its private folder only.
func attack(t target) []attempt {
	var all attempts
	if t.Acts {
		all.byActing(t)
	} else {
		all.byReading(t)
	}
	return all
}

// byActing tries what an op with side effects must not be able to do.
func (all *attempts) byActing(t target) {
	path := func(s string) uintptr { b, _ := unix.BytePtrFromString(s); return uintptr(unsafe.Pointer(b)) }
	// The gateway's user may do this to its own files, and Landlock does not see it.
	all.try("chmod, acting", unix.Chmod(t.File, 0o666))
	all.try("chmod of a folder, acting", unix.Chmod(t.Dir, 0o777))
	all.try("chown, acting", unix.Chown(t.File, os.Getuid(), os.Getgid()))
	all.try("set times, acting", unix.UtimesNanoAt(unix.AT_FDCWD, t.File, []unix.Timespec{{}, {}}, 0))
	all.try("set an attribute, acting", unix.Setxattr(t.File, "user.x", []byte("x"), 0))
	all.try("remove an attribute, acting", unix.Removexattr(t.File, "user.x"))
	all.try("write a file, acting", os.WriteFile(t.File, []byte("x"), 0o600))
	if fd, err := unix.Open("mine", unix.O_CREAT|unix.O_RDWR, 0o600); err == nil { // even its own
		all.try("chmod of an open file, acting", unix.Fchmod(fd, 0o4777))
		all.try("chown of an open file, acting", unix.Fchown(fd, os.Getuid(), os.Getgid()))
		all.try("set an attribute of an open file, acting", unix.Fsetxattr(fd, "user.x", []byte("x"), 0))
		all.call("set flags of a file, acting", unix.SYS_IOCTL, uintptr(fd), 0x40086602, path("x"))
		all.call("seal a file, acting", unix.SYS_IOCTL, uintptr(fd), 0x40806685, path("x"))
		all.call("lease a file, acting", unix.SYS_FCNTL, uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	}
	_, err := net.Dial("unix", t.Socket)
	all.try("connect to a service of this machine, acting", err)
	var pair [2]int32
	all.call("a pair of sockets that sends anywhere, acting", unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM, 0, uintptr(unsafe.Pointer(&pair)))
	for name, family := range map[string]uintptr{"packet": unix.AF_PACKET, "vsock": unix.AF_VSOCK, "crypto": unix.AF_ALG} {
		all.call("socket: "+name+", acting", unix.SYS_SOCKET, family, unix.SOCK_RAW, 0)
	}
}

func (all *attempts) byReading(t target) {
	try, call := all.try, all.call
	opens := func(name, path string, flags int) {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		try(name, err)
	}
	pid := uintptr(t.PID)
	path := func(s string) uintptr { b, _ := unix.BytePtrFromString(s); return uintptr(unsafe.Pointer(b)) }
	proc := fmt.Sprintf("/proc/%d/", t.PID)

	// Files of the gateway.
	opens("read a file", t.File, unix.O_RDONLY)
	opens("write a file", t.File, unix.O_WRONLY)
	opens("append to a file", t.File, unix.O_WRONLY|unix.O_APPEND)
	opens("create a file", t.Dir+"/new", unix.O_CREAT|unix.O_WRONLY)
	opens("list a folder", t.Dir, unix.O_RDONLY|unix.O_DIRECTORY)
	opens("create a nameless file", t.Dir, unix.O_TMPFILE|unix.O_RDWR)
	try("truncate", unix.Truncate(t.File, 0))
	try("remove", unix.Unlink(t.File))
	try("rename", unix.Rename(t.File, t.Dir+"/other"))
	try("link into the private folder", unix.Link(t.File, "link"))
	try("symlink beside", unix.Symlink("x", t.Dir+"/symlink"))
	try("make a folder", unix.Mkdir(t.Dir+"/folder", 0o700))
	try("make a pipe", unix.Mkfifo(t.Dir+"/fifo", 0o600))
	try("make a device", unix.Mknod("null", unix.S_IFCHR|0o600, 0x103))
	try("chmod", unix.Chmod(t.File, 0o666))
	try("chown", unix.Chown(t.File, os.Getuid(), os.Getgid()))
	try("set times", unix.UtimesNanoAt(unix.AT_FDCWD, t.File, []unix.Timespec{{}, {}}, 0))
	try("set an attribute", unix.Setxattr(t.File, "user.x", []byte("x"), 0))
	try("remove an attribute", unix.Removexattr(t.File, "user.x"))
	opens("read through a link", t.linkTo(), unix.O_RDONLY)
	opens("read through /proc/PID/cwd", proc+"cwd/x", unix.O_RDONLY)
	opens("read through /proc/PID/root", proc+"root"+t.File, unix.O_RDONLY)
	opens("write a setting of the kernel", "/proc/sys/kernel/core_pattern", unix.O_WRONLY)
	opens("write an own setting under /proc", "/proc/self/comm", unix.O_WRONLY)
	opens("write the gateway's OOM score", proc+"oom_score_adj", unix.O_WRONLY)
	opens("make shared memory", "/dev/shm/inband-attack", unix.O_CREAT|unix.O_RDWR)
	opens("open the disk of random numbers for writing", "/dev/urandom", unix.O_WRONLY)
	_, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", ":"}, nil)
	try("execute another program", err)
	_, err = syscall.ForkExec("/usr/bin/su", []string{"su"}, nil)
	try("execute a set-uid program", err)

	call("make a file in memory, to execute it", unix.SYS_MEMFD_CREATE, path("x"), 0)

	// The gateway's process.
	opens("read its environment", proc+"environ", unix.O_RDONLY)
	opens("read its memory", proc+"mem", unix.O_RDONLY)
	opens("read its mappings", proc+"maps", unix.O_RDONLY)
	_, err = os.ReadDir(proc + "fd")
	try("count its descriptors", err)
	_, err = os.Readlink(proc + "fd/0")
	try("look at a descriptor", err)
	opens("open a descriptor", proc+"fd/0", unix.O_RDONLY)
	_, err = os.Readlink(proc + "exe")
	try("look at its program", err)
	call("signal it", unix.SYS_KILL, pid, 0)
	call("signal a thread of it", unix.SYS_TGKILL, pid, pid, 0)
	call("signal its group", unix.SYS_KILL, uintptr(-t.PID), 0)
	call("signal init", unix.SYS_KILL, 1, 0)
	var info [128]byte
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
	call("queue a signal", unix.SYS_RT_SIGQUEUEINFO, pid, uintptr(unix.SIGURG), uintptr(unsafe.Pointer(&info)))
	if fd, err := unix.PidfdOpen(t.PID, 0); err == nil {
		try("signal it by descriptor", unix.PidfdSendSignal(fd, 0, nil, 0))
		call("take a descriptor", unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0)
		call("advise its memory", unix.SYS_PROCESS_MADVISE, uintptr(fd), 0, 0, 0, 0)
		unix.Close(fd)
	}
	call("attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, pid)
	call("seize", unix.SYS_PTRACE, unix.PTRACE_SEIZE, pid)
	call("read its memory by call", unix.SYS_PROCESS_VM_READV, pid, 0, 0, 0, 0, 0)
	call("write its memory by call", unix.SYS_PROCESS_VM_WRITEV, pid, 0, 0, 0, 0, 0)
	call("compare with it", unix.SYS_KCMP, pid, pid, 0, 0, 0)
	var limit unix.Rlimit
	call("set its limits", unix.SYS_PRLIMIT64, pid, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&limit)), 0)
	call("read its limits", unix.SYS_PRLIMIT64, pid, unix.RLIMIT_CORE, 0, uintptr(unsafe.Pointer(&limit)))
	call("set its priority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, pid, 5)
	var cpus unix.CPUSet
	cpus.Set(0)
	call("set its processors", unix.SYS_SCHED_SETAFFINITY, pid, unsafe.Sizeof(cpus), uintptr(unsafe.Pointer(&cpus)))
	call("set its scheduling", unix.SYS_SCHED_SETSCHEDULER, pid, 0, uintptr(unsafe.Pointer(&limit)))
	call("set its input and output priority", unix.SYS_IOPRIO_SET, 1, pid, 0)
	call("move its pages", unix.SYS_MOVE_PAGES, pid, 0, 0, 0, 0, 0)

	// Sockets, also those that Landlock does not see.
	for _, s := range []struct {
		name        string
		family, typ uintptr
	}{
		{"TCP", unix.AF_INET, unix.SOCK_STREAM}, {"UDP", unix.AF_INET, unix.SOCK_DGRAM}, {"TCP over IPv6", unix.AF_INET6, unix.SOCK_STREAM},
		{"UNIX", unix.AF_UNIX, unix.SOCK_STREAM}, {"netlink", unix.AF_NETLINK, unix.SOCK_RAW}, {"packet", unix.AF_PACKET, unix.SOCK_RAW},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM}, {"crypto", unix.AF_ALG, unix.SOCK_SEQPACKET},
		{"UNIX, with bits that the kernel drops", 1<<32 | unix.AF_UNIX, unix.SOCK_STREAM},
	} {
		call("socket: "+s.name, unix.SYS_SOCKET, s.family, s.typ, 0)
	}
	var pair [2]int32
	call("socketpair", unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(&pair)))
	_, err = net.DialTimeout("tcp", "127.0.0.1:"+strconv.Itoa(t.Port), time.Second)
	try("connect to the gateway", err)

	// Objects with keys and names.
	call("System V memory", unix.SYS_SHMGET, 0x1b, 4096, unix.IPC_CREAT|0o600)
	call("System V queue", unix.SYS_MSGGET, 0x1b, unix.IPC_CREAT|0o600)
	call("System V semaphores", unix.SYS_SEMGET, 0x1b, 1, unix.IPC_CREAT|0o600)
	call("POSIX queue", unix.SYS_MQ_OPEN, path("inband-attack"), unix.O_CREAT|unix.O_RDWR, 0o600, 0)
	call("keyring", unix.SYS_KEYCTL, 0, 0, 0)
	call("key", unix.SYS_ADD_KEY, path("user"), path("x"), path("x"), 1, 0)

	// Namespaces and the machine.
	call("unshare a user namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	call("unshare mounts", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	call("clone into a user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
	call("clone3", unix.SYS_CLONE3, 0, 0)
	call("enter a namespace", unix.SYS_SETNS, 0, 0)
	call("mount", unix.SYS_MOUNT, path("none"), path("/mnt"), path("tmpfs"), 0, 0)
	call("unmount", unix.SYS_UMOUNT2, path("/mnt"), 0)
	call("open a tree", unix.SYS_OPEN_TREE, 0, path("/"), 1)
	call("open a tree with attributes", unix.SYS_OPEN_TREE_ATTR, 0, path("/"), 1)
	call("open a filesystem", unix.SYS_FSOPEN, path("tmpfs"), 0)
	call("change the root", unix.SYS_CHROOT, path("."))
	call("pivot the root", unix.SYS_PIVOT_ROOT, path("."), path("."))
	call("bpf", unix.SYS_BPF, 0, 0, 0)
	call("perf", unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0)
	call("userfaultfd", unix.SYS_USERFAULTFD, 1)
	call("io_uring", unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&info)))
	call("file by handle", unix.SYS_OPEN_BY_HANDLE_AT, 0, uintptr(unsafe.Pointer(&info)), 0)
	call("load a module", unix.SYS_FINIT_MODULE, 0, path(""), 0)
	call("load a kernel", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	call("reboot", unix.SYS_REBOOT, 0, 0, 0, 0)
	call("swap", unix.SYS_SWAPON, path("x"), 0)
	call("set the clock", unix.SYS_CLOCK_SETTIME, 0, 0)
	call("set the name", unix.SYS_SETHOSTNAME, path("x"), 1)
	call("read the kernel's log", unix.SYS_SYSLOG, 10, 0, 0)
	call("type into the terminal", unix.SYS_IOCTL, 0, unix.TIOCSTI, path("x"))
	call("type into the terminal, with bits that the kernel drops", unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, path("x"))
	call("set flags of a file", unix.SYS_IOCTL, 0, 0x40086602, path("x"))

	call("lease a file", unix.SYS_FCNTL, 0, unix.F_SETLEASE, unix.F_RDLCK)
	call("seal a file", unix.SYS_IOCTL, 0, 0x40806685, path("x"))

	// More of what it has.
	call("outlive the gateway", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0)
	call("raise a limit", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&unix.Rlimit{Cur: 1 << 19, Max: 1 << 19})), 0)
	call("become another user", unix.SYS_SETUID, 12345)
	try("regain capabilities", regain())
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		for _, key := range []string{"CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp"} {
			if rest, ok := strings.CutPrefix(line, key+":"); ok {
				*all = append(*all, attempt{key, strings.TrimSpace(rest)})
			}
		}
	}
}

// linkTo makes a link to the file in the private folder.
func (t target) linkTo() string {
	_ = os.Symlink(t.File, "to-file")
	return "to-file"
}

func regain() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_KILL, Permitted: 1 << unix.CAP_KILL}}
	return unix.Capset(&header, &data[0])
}

// besiege runs the attack inside a read op and inside one that acts, as the user runAs,
// and prints each attempt and how it ended. This process stands for the gateway; with
// the layer required the init of their namespaces does, which is all that they see of it.
func besiege(dir, runAs, required string) error {
	gateway, require := os.Getpid(), strings.Fields(required)
	if len(require) > 0 {
		gateway = 1
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	file, socket := filepath.Join(dir, "secret"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		return err
	}
	service, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer service.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, acts := range []bool{false, true} {
		aim, err := json.Marshal(target{PID: gateway, Dir: dir, File: file, Port: l.Addr().(*net.TCPAddr).Port, Socket: socket, Acts: acts})
		if err != nil {
			return err
		}
		o := ops.Op{Name: "t.attack", Provider: "t", Summary: "Attack", Timeout: time.Minute, SideEffecting: acts, Command: &ops.Command{
			Argv: []ops.Arg{word(self), word("helper"), word("attack"), word(string(aim))}, OutputMax: 64 << 10,
			FS: ops.Paths{Read: []string{"/proc"}}, RunAs: runAs, Require: require}}
		if acts {
			o.Command.Network, o.Command.FS.Read = ops.NetworkAny, []string{dir}
		}
		e, err := New(o, testConfig)
		if err != nil {
			return err
		}
		out, err := e.Execute(context.Background(), ops.Call{Op: o.Name, Params: json.RawMessage(`{}`)})
		if err != nil {
			return err
		}
		if out.State != ops.Succeeded {
			return fmt.Errorf("%v %v", out.Fault, out.Fault.Details)
		}
		var result Output
		if err := json.Unmarshal(out.Result.Value, &result); err != nil {
			return err
		}
		fmt.Print(result.Stdout)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "secret" {
		return fmt.Errorf("the file reads %q, %v", b, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		return fmt.Errorf("the file is %v, %v", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		return fmt.Errorf("the folder holds %v, %v", entries, err)
	}
	return nil
}

// A program in an allowed read op tries what it can against the gateway, which runs as
// root and as nobody. testdata/attacks.txt is the reviewed table of how each attempt
// ends.
func TestAttack(t *testing.T) { underAttack(t, "") }

// In namespaces it can do as little to the init that is around it.
func TestAttackInNamespaces(t *testing.T) {
	needNamespaces(t)
	underAttack(t, sandbox.LayerNamespaces)
}

func underAttack(t *testing.T, required string) {
	want, err := os.ReadFile(filepath.Join("testdata", "attacks.txt"))
	if err != nil {
		t.Fatal(err)
	}
	type siege struct {
		gateway *syscall.Credential // nil for this user
		runAs   string
	}
	sieges := map[string]siege{"this user": {nil, own()}}
	if os.Geteuid() == 0 {
		sieges["nobody"] = siege{&syscall.Credential{Uid: 65534, Gid: 65534}, ""}
		sieges["root and nobody in it"] = siege{nil, ""}
	}
	for name, s := range sieges {
		t.Run(name, func(t *testing.T) {
			credential := s.gateway
			dir, err := os.MkdirTemp("", "inband-attack-") // the folders of t.TempDir are closed to others
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			program, mine := filepath.Join(dir, "program"), filepath.Join(dir, "mine")
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(self)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, b, 0o755), os.Mkdir(mine, 0o700)); err != nil {
				t.Fatal(err)
			}
			if credential != nil {
				if err := os.Chown(mine, int(credential.Uid), int(credential.Gid)); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(program, "helper", "besiege", mine, s.runAs, required)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "TMPDIR=/tmp", "GATEWAY_SECRET=x")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
			got, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, got)
			}
			compareAttempts(t, string(got), string(want))
		})
	}
}

// A program that calls by the numbers of another architecture is killed.
func TestForeignArchitecture(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs the int 0x80 of amd64")
	}
	f := failure(t, execute(t, op(t, "foreign"), `{}`), ops.Failed, ops.OpFailed)
	if f.Details["signal"] != syscall.SIGSYS.String() {
		t.Errorf("got %v %v, want %v", f, f.Details, syscall.SIGSYS)
	}
}

// Limits are in force before the first instruction of the program.
func TestLimits(t *testing.T) {
	size := int64(4096)
	o := op(t, "argv")
	o.Command.Argv = []ops.Arg{word("/bin/cat"), word("/proc/self/limits")}
	o.Command.FS.Read = []string{"/proc"}
	o.Command.Limits = ops.Limits{NoFile: 33, FSize: &size, CPU: 7 * time.Second, Memory: 1 << 30}
	out := success(t, execute(t, o, `{}`))
	for _, want := range []string{"Max open files 33 33 files", "Max file size 4096 4096 bytes", "Max cpu time 7 7 seconds",
		"Max address space 1073741824 1073741824 bytes", "Max core file size 1 1 bytes"} {
		if !strings.Contains(strings.Join(strings.Fields(out.Stdout), " "), want) {
			t.Errorf("no %q in\n%s", want, out.Stdout)
		}
	}
	if l := out.Layers; !l.NoNewPrivs || l.Capabilities != "none" || l.Landlock < 6 || !strings.HasPrefix(l.Seccomp, "sha256:") || len(l.Limits) != 5 ||
		l.Network != "none" || !l.Reads {
		t.Errorf("layers: %+v", l)
	}
}

// What a read may leave in its private folder is bounded, and where it is nothing the
// folder may be in memory.
func TestPrivateFolder(t *testing.T) {
	none := int64(0)
	o := op(t, "argv")
	runs := func(argv ...string) ops.Outcome {
		o.Command.Argv = nil
		for _, w := range argv {
			o.Command.Argv = append(o.Command.Argv, word(w))
		}
		return execute(t, o, `{}`)
	}
	limit := func(out Output) (size uint64) {
		for _, l := range out.Layers.Limits {
			if l.Name == "fsize" {
				size = l.Value
			}
		}
		return size
	}
	if out := success(t, runs("/usr/bin/pwd")); limit(out) != ops.DefaultFSize {
		t.Errorf("absent: files of %d bytes", limit(out))
	}
	success(t, runs("/usr/bin/truncate", "-s", "64M", "made"))
	failure(t, runs("/usr/bin/truncate", "-s", "67108865", "made"), ops.Failed, ops.OpFailed)
	o.Command.Limits.FSize = &none
	success(t, runs("/usr/bin/pwd"))
	for _, argv := range [][]string{{"touch", "made"}, {"mkdir", "made"}, {"ln", "-s", "x", "made"}, {"mkfifo", "made"}} {
		argv[0] = "/usr/bin/" + argv[0]
		if f := failure(t, runs(argv...), ops.Failed, ops.OpFailed); !strings.Contains(f.Message, "Permission denied") {
			t.Errorf("%s: got %v", argv[0], f)
		}
	}
	o.SideEffecting, o.Command.Limits.FSize = true, nil
	if out := success(t, runs("/usr/bin/pwd")); limit(out) != 0 {
		t.Errorf("with effects: files of %d bytes", limit(out))
	}
}

// Only a folder in which nothing can be made may be in memory, which no limit counts.
func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", "") // as a service has it; package proc chooses where nothing is said
	none, some := int64(0), int64(1)
	for _, c := range []struct {
		size       *int64
		unconfined bool
		want       string
	}{{nil, false, "/tmp"}, {&some, false, "/tmp"}, {&none, false, ""}, {&none, true, "/tmp"}} {
		o := ops.Op{Command: &ops.Command{Limits: ops.Limits{FSize: c.size}, Unconfined: c.unconfined}}
		if got := scratch(&o, nil); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

// A program may write below the paths of its op, and nowhere else; it may execute what
// the op names.
func TestPaths(t *testing.T) {
	in, beside := t.TempDir(), t.TempDir()
	run := func(change func(*ops.Op), argv ...string) ops.Outcome {
		o := op(t, "argv")
		o.SideEffecting = true
		o.Command.Argv = nil
		for _, w := range argv {
			o.Command.Argv = append(o.Command.Argv, word(w))
		}
		change(&o)
		return execute(t, o, `{}`)
	}
	writes := func(o *ops.Op) { o.Command.FS.Write = []string{in} }
	success(t, run(writes, "/usr/bin/touch", in+"/file"))
	success(t, run(writes, "/usr/bin/touch", in+"/file")) // its times, which it opens
	success(t, run(writes, "/usr/bin/cp", in+"/file", in+"/copy"))
	success(t, run(writes, "/usr/bin/mv", in+"/copy", in+"/moved"))
	failure(t, run(writes, "/usr/bin/chmod", "0640", in+"/file"), ops.Failed, ops.OpFailed)
	failure(t, run(writes, "/usr/bin/touch", "-h", in+"/file"), ops.Failed, ops.OpFailed)

	// Where it is granted, and to no root.
	o := op(t, "argv")
	o.SideEffecting, o.Command.FS.Metadata, o.Command.RunAs = true, true, ""
	o.Command.Argv = []ops.Arg{word("/usr/bin/install"), word("-m"), word("0640"), word("/dev/null"), word("made")}
	success(t, execute(t, o, `{}`))
	if o.Command.RunAs = "root"; os.Geteuid() == 0 {
		if _, err := New(o, testConfig); err == nil || !strings.Contains(err.Error(), "name another user") {
			t.Errorf("metadata as root: got %v", err)
		}
	}
	failure(t, run(writes, "/usr/bin/touch", beside+"/file"), ops.Failed, ops.OpFailed)
	failure(t, run(func(*ops.Op) {}, "/usr/bin/touch", in+"/other"), ops.Failed, ops.OpFailed)
	failure(t, run(writes, "/usr/bin/cp", beside+"/../x", in), ops.Failed, ops.OpFailed)
	file := filepath.Join(in, "script")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nexec /usr/bin/true\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	failure(t, run(func(*ops.Op) {}, file), ops.Failed, ops.OpFailed)
	success(t, run(func(o *ops.Op) { o.Command.FS.Exec = []string{"/usr/bin"} }, file))
	failure(t, run(func(o *ops.Op) {}, "/usr/bin/env", "/usr/bin/true"), ops.Failed, ops.OpFailed)
	success(t, run(func(o *ops.Op) { o.Command.FS.Exec = []string{"/usr/bin/true"} }, "/usr/bin/env", "/usr/bin/true"))
}

// A program that has another run in its place, and then one that ignores SIGTERM, ends
// with its tree although its thread can see nothing.
func TestConfinedTreeEnds(t *testing.T) {
	o := op(t, "argv")
	o.SideEffecting = true
	o.Timeout = 300 * time.Millisecond
	o.Command.Argv = []ops.Arg{word("/bin/sh"), word("-c"), word(`setsid sh -c 'trap "" TERM; sleep 1000; sleep 1000' & trap "" TERM; sleep 1000; sleep 1000`)}
	o.Command.FS.Exec = []string{"/usr/bin", "/bin"}
	f := failure(t, execute(t, o, `{}`), ops.Failed, ops.TimedOut)
	if f.Details["survivors"] != nil {
		t.Errorf("got %v", f.Details)
	}
	o.Command.Argv[2] = word(`setsid sleep 1000 >/dev/null 2>&1 & :`)
	if out := success(t, execute(t, o, `{}`)); len(out.LeftBehind) != 1 {
		t.Errorf("left behind: %q", out.LeftBehind)
	}
}

// compareAttempts compares lines "NAME: GOT" with lines "NAME: WANT or WANT".
func compareAttempts(t *testing.T, got, want string) {
	t.Helper()
	expected := map[string][]string{}
	for line := range strings.Lines(want) {
		if name, how, ok := strings.Cut(strings.TrimSpace(line), " = "); ok && !strings.HasPrefix(line, "#") {
			expected[name] = strings.Split(how, " or ")
		}
	}
	lines := bufio.NewScanner(strings.NewReader(got))
	for lines.Scan() {
		name, how, _ := strings.Cut(lines.Text(), " = ")
		if !slices.Contains(expected[name], how) {
			t.Errorf("%s: got %s, want %s", name, how, strings.Join(expected[name], " or "))
		}
		delete(expected, name)
	}
	for name := range expected {
		t.Errorf("%s was not tried", name)
	}
}
