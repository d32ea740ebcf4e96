package proc

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noFence makes tests run as on a kernel without the signal scope. It changes
// only while nothing runs.
var noFence bool

// fence puts the calling thread into a Landlock domain of its own from which no
// signal gets out. An error means that the thread is as it was.
//
// kill(-1) from a thread that only believes itself fenced would reach the whole
// machine, so this trusts nothing but the kernel's own answers: the version must
// have the scope, the ruleset must be accepted with it, and init must have become
// unreachable. The process's own threads must have stayed reachable, because the
// Go runtime signals them; the first kernels with the scope got that wrong.
func fence() error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	if abi < 6 {
		return fmt.Errorf("landlock ABI %d has no signal scope: %w", abi, errors.ErrUnsupported)
	}
	attr := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_SIGNAL}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock restrict: %w", errno)
	}
	if unix.Getpid() != 1 && !errors.Is(unix.Kill(1, 0), unix.EPERM) {
		return errors.New("landlock: init can still be signalled")
	}
	if err := unix.Tgkill(unix.Getpid(), unix.Getpid(), 0); err != nil {
		return fmt.Errorf("landlock: signal to a thread of the gateway: %w", err)
	}
	return nil
}

// fenceTree ends a tree from inside its fence. Its value is the pid of the
// process; its methods run on the fenced thread only. That thread may be confined
// further and not see /proc, so it has that read elsewhere.
type fenceTree struct{ pid int }

func (t fenceTree) signal(sig unix.Signal) { unix.Kill(-1, sig) }

func (t fenceTree) finish(reap func()) (left []string, survivors int, alive []Process) {
	reap()
	if !adopted() && !beside() {
		return nil, 0, nil // the usual case: nobody is left
	}
	deadline := time.Now().Add(giveUp)
	in, err := members()
	for pause := time.Millisecond; err != nil; in, err = members() {
		unix.Kill(-1, unix.SIGKILL) // whoever they are
		if time.Now().After(deadline) {
			return nil, 1, nil // at least: whether there is anybody cannot be learnt
		}
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
	for _, p := range in {
		if p.state != 'Z' && len(left) < maxNamed {
			left = append(left, p.name)
		}
	}
	for pause := time.Millisecond; len(in) > 0 || err != nil; in, err = members() {
		unix.Kill(-1, unix.SIGKILL)
		wait := err != nil
		for _, p := range in {
			n, _ := unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
			wait = wait || n != p.pid
		}
		if time.Now().After(deadline) {
			return left, max(len(in), 1), identities(in)
		}
		if wait {
			time.Sleep(pause)
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
	return left, 0, nil
}

// adopted reports whether the gateway may have adopted anybody. Orphans go to
// the main thread of a subreaper, and a process that has exited has handed over
// its children by the time it can be waited for; so when the main thread has no
// children, no run that has ended has descendants.
func adopted() bool {
	var b [1]byte
	n, err := unix.Pread(childrenFd, b[:], 0)
	return err != nil || n > 0 // err: a kernel without CONFIG_PROC_CHILDREN
}

// beside reports whether the calling thread has a child left when its process has been
// reaped: one that a process made beside itself (CLONE_PARENT), and not below.
func beside() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WNOTHREAD|unix.WALL, nil)
	return !errors.Is(err, unix.ECHILD)
}

// childrenFd lists the children of the gateway's main thread, -1 if that cannot be
// had. It is opened once, since a confined thread cannot open it, and read by all.
var childrenFd = -1

func openChildren() {
	pid := unix.Getpid()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		childrenFd = fd
	}
}

// members returns the processes inside the fence of the calling thread.
func members() (in []stat, err error) {
	self := unix.Getpid()
	var all []stat
	elsewhere(func() { all, err = processes() })
	for _, p := range all {
		if p.pid != self && unix.Kill(p.pid, 0) == nil {
			in = append(in, p)
		}
	}
	return in, err
}
