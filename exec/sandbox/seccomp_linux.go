package sandbox

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// denied are the system calls that nobody gets, by what they are for. Those that an
// architecture does not have are left out there.
var denied = [][]string{
	// Mounts and roots.
	{"mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"},
	// Other processes: their memory, descriptors and scheduling.
	{"process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "pidfd_getfd", "kcmp", "move_pages", "migrate_pages",
		"setpriority", "ioprio_set"},
	// Namespaces.
	{"unshare", "setns"},
	// Wide interfaces to the kernel, and ways around the rest of this list.
	{"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
		"name_to_handle_at", "open_by_handle_at", "fanotify_init", "add_key", "request_key", "keyctl"},
	// Objects that outlive the process and are shared by key or name. (POSIX shared
	// memory is a file, which Landlock sees.)
	{"shmget", "shmat", "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl",
		"mq_open", "mq_unlink"},
	// The machine.
	{"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
		"quotactl_fd", "syslog", "settimeofday", "clock_settime", "stime", "sethostname", "setdomainname", "iopl", "ioperm", "nfsservctl",
		"vhangup", "lookup_dcookie"},
	// Files in memory, which can be executed: to Landlock they are at no path.
	{"memfd_create", "memfd_secret"},
	// Signals by descriptor, which launcher cannot tell apart.
	{"pidfd_send_signal"},
}

// metadata are the system calls that change a file other than by writing to it, which
// Landlock does not see.
var metadata = []string{"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "utimensat",
	"futimesat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat"}

// onItself are system calls whose first argument says which process they act on, 0 for
// the caller.
var onItself = []string{"sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity", "prlimit64"}

// refusedFlags are those with which clone makes a namespace (CLONE_NEWTIME is no flag
// of clone), or a process beside the caller and not below it.
const refusedFlags = unix.CLONE_PARENT | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// filter is a program of which one number is not known before the launch: that of the
// thread that launches.
type filter struct {
	program []unix.SockFilter
	thread  int // the instruction that compares with it
}

// forThread returns the program for what the thread launches.
func (f filter) forThread(tid int) []unix.SockFilter {
	program := slices.Clone(f.program)
	program[f.thread].K = uint32(tid)
	return program
}

// assemble returns the filter of p: the guard, the requests of ioctl, fcntl and prctl,
// the launching thread, and the policy.
func assemble(p *Policy) (filter, error) {
	info, err := archInfo()
	if err != nil {
		return filter{}, err
	}
	var auditArch uint32
	switch info.ID {
	case arch.X86_64.ID:
		auditArch = unix.AUDIT_ARCH_X86_64
	case arch.AARCH64.ID:
		auditArch = unix.AUDIT_ARCH_AARCH64
	default:
		return filter{}, fmt.Errorf("the architecture %s has no deny list", info.Name)
	}
	numbers := map[string]uint32{"kill": 0, "tkill": 0, "tgkill": 0, "rt_sigqueueinfo": 0, "rt_tgsigqueueinfo": 0, "pidfd_open": 0,
		"ioctl": 0, "fcntl": 0, "prctl": 0}
	for name := range numbers {
		number, ok := info.SyscallNames[name]
		if !ok {
			return filter{}, fmt.Errorf("the architecture %s has no %s", info.Name, name)
		}
		numbers[name] = uint32(number)
	}

	verdicts := map[uint32]verdict{}
	for _, number := range numbers {
		verdicts[number] = look
	}
	deny := func(names []string) {
		for _, name := range names {
			if number, ok := info.SyscallNames[name]; ok {
				verdicts[uint32(number)] = refused
			}
		}
	}
	group := seccomp.SyscallGroup{Action: seccomp.ActionErrno}
	when := func(name string, conditions ...seccomp.Condition) {
		if number, ok := info.SyscallNames[name]; ok {
			verdicts[uint32(number)] = look
			group.NamesWithCondtions = append(group.NamesWithCondtions, seccomp.NameWithConditions{Name: name, Conditions: conditions})
		}
	}
	for _, names := range denied {
		deny(names)
	}
	if !p.Metadata {
		deny(metadata)
	}
	// Conditions compare 64 bits where the kernel looks at 32, so each is of the kind
	// that refuses too much, never too little.
	for _, name := range onItself {
		when(name, seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: 0})
	}
	when("clone", seccomp.Condition{Argument: 0, Operation: seccomp.BitsSet, Value: refusedFlags})
	if !p.Metadata && !p.Reads {
		// The times of a file that is open already, which touch and cp set: no path, and so
		// no file that could not be opened.
		when("utimensat", seccomp.Condition{Argument: 1, Operation: seccomp.NotEqual, Value: 0})
	}
	// The launch itself is traced up to its first instruction: the child asks for it,
	// and the thread lets it go. Neither reaches another process.
	when("ptrace", seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.PTRACE_TRACEME},
		seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.PTRACE_DETACH})
	switch p.Network {
	case NoNetwork:
		deny([]string{"socket", "socketpair"})
	case Netlink:
		deny([]string{"socketpair"})
		when("socket", seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_NETLINK})
	case UnixNetwork:
		when("socket", seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_UNIX})
	case AnyNetwork:
		when("socket", seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_INET},
			seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_INET6},
			seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: unix.AF_NETLINK})
		// One of a pair of datagram sockets can send to any other by its path. The bit is
		// that of SOCK_DGRAM and of SOCK_RAW, which is the same here.
		when("socketpair", seccomp.Condition{Argument: 1, Operation: seccomp.BitsSet, Value: unix.SOCK_DGRAM})
	}
	deny([]string{"clone3"}) // its flags are in memory, where the filter cannot look
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{group}}
	rest, err := policy.Assemble()
	if err != nil {
		return filter{}, err
	}
	tree, err := decisions(verdicts, uint32(newest(info)))
	if err != nil {
		return filter{}, err
	}
	front := slices.Concat(guard(auditArch), absent(uint32(info.SyscallNames["clone3"])), tree, ioctls(numbers["ioctl"], p),
		fcntls(numbers["fcntl"]), parting(numbers["prctl"]))
	launch, at := launcher(numbers)
	raw, err := bpf.Assemble(slices.Concat(front, launch, rest))
	if err != nil {
		return filter{}, err
	}
	f := filter{make([]unix.SockFilter, len(raw)), len(front) + at} // each instruction is one
	for i, r := range raw {
		f.program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return f, nil
}

// archInfo is what the library knows of the architecture that this program is for.
func archInfo() (*arch.Info, error) { return arch.GetInfo("") }

// Offsets in struct seccomp_data, on little-endian machines.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16
	offArg1   = 24
)

// guard kills what calls by the numbers of another architecture, to which the rest of
// the filter does not apply.
func guard(auditArch uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
	}
}

// absent answers ENOSYS for a system call for which there are older ones.
func absent(number uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}
}

// newest is the highest number of the tables that the lists are read by.
func newest(info *arch.Info) (n int) {
	for _, number := range info.SyscallNames {
		n = max(n, number)
	}
	return n
}

// verdict is what the number of a system call alone decides.
type verdict int

// In the order of the instructions at the end of decisions.
const (
	allowed verdict = iota
	refused
	newer
	look // at the arguments, behind the end
)

// decisions finds the verdict on the loaded number by bisection. It goes on behind its
// end to look at arguments. What is newer than the tables is answered ENOSYS, as by an
// older kernel; else a list would miss what it cannot name.
//
// This is not for speed of the calls, for the kernel remembers which ones are always
// allowed: to know it, it runs the filter once for every number at each launch. A list
// from the top down takes it 0.4 ms.
func decisions(verdicts map[uint32]verdict, newest uint32) ([]bpf.Instruction, error) {
	type span struct {
		from uint32
		verdict
	}
	spans := []span{{0, verdicts[0]}}
	for number := uint32(1); number <= newest; number++ {
		if v := verdicts[number]; v != spans[len(spans)-1].verdict {
			spans = append(spans, span{number, v})
		}
	}
	spans = append(spans, span{newest + 1, newer})

	// One comparison between any two spans, then the verdicts.
	ends := len(spans) - 1
	var tree []bpf.Instruction
	var grow func(spans []span) (entry int)
	grow = func(spans []span) int {
		if len(spans) == 1 {
			return ends + int(spans[0].verdict)
		}
		half := len(spans) / 2
		at := len(tree)
		tree = append(tree, nil)
		below := grow(spans[:half]) - at - 1
		above := grow(spans[half:]) - at - 1
		tree[at] = bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[half].from, SkipTrue: uint8(above), SkipFalse: uint8(below)}
		return at
	}
	if ends+int(look) > math.MaxUint8 {
		return nil, errors.New("the lists are too long for one filter")
	}
	grow(spans)
	return append(tree,
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}), nil
}

// Requests of ioctl that x/sys does not have.
const (
	fioSetOwn, siocSPGrp        = 0x8901, 0x8902 // asm-generic/sockios.h
	tcGetS2                     = 0x802c542a     // asm-generic/ioctls.h
	fioNBIO                     = 0x5421
	fioClex, fioNClex, fioQSize = 0x5451, 0x5450, 0x5460 // the same
	fiGetBsz                    = 2                      // linux/fs.h
	fsGetFlags, fsGetVersion    = 0x80086601, 0x80087601
	fsGetXattr, fsFiemap        = 0x801c581f, 0xc020660b
	fiClone, fiCloneRange       = 0x40049409, 0x4020940d
	socketsFrom, socketsTo      = 0x8900, 0x89ff
)

// refusedRequests of ioctl type into a terminal, or have signals sent to an owner.
var refusedRequests = []uint32{unix.TIOCSTI, unix.TIOCLINUX, fioSetOwn, siocSPGrp}

// knownRequests of ioctl ask, change the descriptor alone, or write to a file that is
// open for writing. (Those of devices are Landlock's matter.) What else there is depends
// on the filesystem, and some of it needs no file that is open for writing: verity,
// encryption, btrfs's subvolumes, attributes.
var knownRequests = []uint32{unix.TCGETS, tcGetS2, unix.TIOCGWINSZ, unix.TIOCGPGRP, unix.TIOCINQ, unix.TIOCOUTQ, fioNBIO,
	fioClex, fioNClex, fioQSize, fiGetBsz, fsGetFlags, fsGetVersion, fsGetXattr, fsFiemap, fiClone, fiCloneRange}

// ioctls refuses requests of ioctl. One that is neither known nor that of a socket is
// answered as by a file that does not know it, unless p may change what is no content.
func ioctls(number uint32, p *Policy) []bpf.Instruction {
	if p.Metadata {
		return requests(number, refusedRequests, nil)
	}
	n := len(knownRequests)
	var known []bpf.Instruction
	for i, request := range knownRequests {
		known = append(known, bpf.JumpIf{Cond: bpf.JumpEqual, Val: request, SkipTrue: uint8(n - i + 2)})
	}
	return requests(number, refusedRequests, append(known,
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: socketsFrom, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: socketsTo, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOTTY)}))
}

// fcntls refuses commands of fcntl: those that have signals sent to an owner, and those
// by which a file that may only be read is slowed down for others, or put elsewhere on
// its disk.
func fcntls(number uint32) []bpf.Instruction {
	const setDelegation = 1024 + 16 // linux/fcntl.h
	return requests(number, []uint32{unix.F_SETOWN, unix.F_SETOWN_EX, unix.F_SETLEASE, setDelegation, unix.F_SET_RW_HINT, unix.F_SET_FILE_RW_HINT}, nil)
}

// requests refuses some second arguments of a system call, and decides by rest about the
// others. The kernel takes 32 bits of them, so 32 bits are compared.
func requests(number uint32, list []uint32, rest []bpf.Instruction) []bpf.Instruction {
	in := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(list) + len(rest) + 3)},
		bpf.LoadAbsolute{Off: offArg1, Size: 4},
	}
	for i, request := range list {
		// Over the requests after this one and the jump, onto the refusal.
		in = append(in, bpf.JumpIf{Cond: bpf.JumpEqual, Val: request, SkipTrue: uint8(len(list) - i)})
	}
	in = append(in, bpf.Jump{Skip: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	return append(in, rest...)
}

// parting refuses to part from the gateway: it may be set with which signal the process
// ends when the gateway does, but to nothing else than what it is. (The launch sets it
// from within the child.)
func parting(number uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 5},
		bpf.LoadAbsolute{Off: offArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PR_SET_PDEATHSIG, SkipTrue: 3},
		bpf.LoadAbsolute{Off: offArg1, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(unix.SIGKILL), SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
}

// launcher refuses signals to the thread that launched the process, and returns which
// of its instructions holds that thread's number. To the kernel the thread is inside
// the process's own Landlock domain, and of the same user; yet it is a thread of the
// gateway, and a signal that kills it kills the gateway. Signals that a descriptor
// sends to an owner are refused whoever the owner is.
func launcher(numbers map[string]uint32) (in []bpf.Instruction, thread int) {
	byFirst, bySecond := []string{"kill", "tkill", "rt_sigqueueinfo", "pidfd_open"}, []string{"tgkill", "rt_tgsigqueueinfo"}
	all := len(byFirst) + len(bySecond)
	in = append(in, bpf.LoadAbsolute{Off: offNumber, Size: 4})
	for i, name := range byFirst {
		in = append(in, bpf.JumpIf{Cond: bpf.JumpEqual, Val: numbers[name], SkipTrue: uint8(all - i)})
	}
	for i, name := range bySecond {
		in = append(in, bpf.JumpIf{Cond: bpf.JumpEqual, Val: numbers[name], SkipTrue: uint8(len(bySecond) - i + 2)})
	}
	in = append(in,
		bpf.Jump{Skip: 5}, // another call
		bpf.LoadAbsolute{Off: offArg0, Size: 4},
		bpf.Jump{Skip: 1},
		bpf.LoadAbsolute{Off: offArg1, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	return in, len(in) - 2
}
