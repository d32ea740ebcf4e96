package sandbox

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// The rights of paths. Those of folders do not fit on files.
const (
	readFile  = landlock.AccessFSSet(ll.AccessFSReadFile)
	readDir   = readFile | ll.AccessFSReadDir
	execFile  = readFile | ll.AccessFSExecute
	execDir   = readDir | ll.AccessFSExecute
	writeFile = readFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
	writeDir  = writeFile | readDir | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg |
		ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym | ll.AccessFSRefer
)

// libraries are where the loader looks for what a program is linked with.
var libraries = []string{"/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libexec", "/etc/ld.so.cache"}

// minABI is the first Landlock with the signal scope.
const minABI = 6

// config is everything that the rights above know of. Later kernels restrict more;
// what they add is taken up here by intention and not by their release.
var config = landlock.V6

// Sandbox is a prepared policy. It may be used by several threads at once.
type Sandbox struct {
	policy Policy
	filter filter
	rules  []rule
	// executed are the policy's program and what else it may execute.
	executed []executed
	limits   []Limit
	user     RunAs
	other    bool    // user is not the gateway's own
	self     uintptr // the gateway's user
	layers   Layers
}

// New prepares p. The error is a *MissingError if layers cannot be had, and else says
// what is wrong with p.
func New(p Policy) (*Sandbox, error) {
	if p.Network == "" {
		p.Network = NoNetwork
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	var missing MissingError
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		missing.add(LayerLandlock, err)
	} else if abi < minABI {
		missing.add(LayerLandlock, fmt.Errorf("the kernel has ABI %d; want %d (Linux 6.12)", abi, minABI))
	}
	program, err := assemble(&p)
	if err != nil {
		missing.add(LayerSeccomp, err)
	}
	s := &Sandbox{policy: p, filter: program, limits: p.Limits.list()}
	if err := s.chooseUser(); err != nil {
		missing.add(LayerRunAs, err)
	}
	if p.Limits.Processes > 0 && s.user.UID == 0 {
		missing.add(LayerLimits, errors.New("the number of root's processes cannot be limited: name another user"))
	}
	for _, layer := range p.Require {
		switch layer {
		case LayerRunAs:
			if s.user.UID == uint32(os.Getuid()) {
				missing.add(layer, errors.New("the process would run as the gateway's own user"))
			}
		case LayerCgroup:
			if !ownCgroup() {
				missing.add(layer, errors.New("the gateway could not make one for itself"))
			}
		case LayerNamespaces:
			if len(p.Namespaces) == 0 {
				missing.add(layer, errors.New("the process is started without any"))
			}
		}
	}
	if missing.Layers != nil {
		return nil, &missing
	}
	s.rules = rules(&p)
	for _, path := range append([]string{p.Program}, p.Exec...) {
		s.executed = append(s.executed, newExecuted(path))
	}
	s.layers = Layers{NoNewPrivs: true, Capabilities: "none", Landlock: abi, Scopes: []string{"abstract_unix_socket", "signal"},
		Seccomp: digest(program.program), Network: p.Network, Reads: p.Reads, Metadata: p.Metadata, Limits: s.limits, RunAs: s.user, Cgroup: ownCgroup(), Namespaces: p.Namespaces}
	return s, nil
}

// ownCgroup reports whether this process is in a cgroup of its own, which it knows by
// the name that package proc gives it.
func ownCgroup() bool {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return strings.HasPrefix(filepath.Base(path), "inband-")
		}
	}
	return false
}

// chooseUser finds out whom processes run as.
func (s *Sandbox) chooseUser() error {
	s.user = RunAs{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if u := s.policy.User; u != nil {
		s.user = RunAs{Name: u.Name, UID: u.UID, GID: u.GID}
	}
	other := s.user.UID != uint32(os.Getuid()) || s.user.GID != uint32(os.Getgid())
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP
	s.user.GroupsCleared = os.Geteuid() == 0 && have[0].Effective&need == need
	s.other, s.self = other, uintptr(os.Getuid())
	if other && !s.user.GroupsCleared {
		return fmt.Errorf("a gateway that is not root cannot run a process as %q (%d:%d)", s.user.Name, s.user.UID, s.user.GID)
	}
	return nil
}

// Policy returns what s was made of, from which the same can be made in another process.
func (s *Sandbox) Policy() Policy { return s.policy }

// Layers returns what Confine and Limit apply.
func (s *Sandbox) Layers() Layers { return s.layers }

// Confine confines the calling thread, which must be locked to its goroutine, must
// have no_new_privs and must never be unlocked. folder is the private folder of the
// process to be started. After an error nothing may be started from the thread.
//
// The layers are applied in this order: paths are opened as the gateway, capabilities
// are what it takes to become another user, and the filter refuses what the others do.
func (s *Sandbox) Confine(folder string) error {
	for _, layer := range []func() error{func() error { return s.Landlock(folder) }, s.RunAs, s.DropCapabilities, s.Seccomp} {
		if err := layer(); err != nil {
			return err
		}
	}
	return nil
}

// RunAs is the second layer of Confine: it makes the calling thread, and no other of
// this process, one of the policy's user without supplementary groups. The functions of
// package syscall would change all threads.
func (s *Sandbox) RunAs() error {
	if !s.user.GroupsCleared {
		return nil // as the gateway, which is nobody special
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("run as %s: clear the groups: %w", s.user.Name, errno)
	}
	if !s.other {
		return nil
	}
	// Capabilities outlive the change, for DropCapabilities to drop all sets of them.
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
		return fmt.Errorf("run as %s: set securebits: %w", s.user.Name, err)
	}
	gid, uid := uintptr(s.user.GID), uintptr(s.user.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return fmt.Errorf("run as %s: set the group %d: %w", s.user.Name, gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return fmt.Errorf("run as %s: set the user %d: %w", s.user.Name, uid, errno)
	}
	return nil
}

// Securebits (linux/securebits.h), each with its lock.
const (
	noRoot        = 1<<0 | 1<<1
	noSetuidFixup = 1<<2 | 1<<3
)

// DropCapabilities is the third layer of Confine. It leaves the bounding set as it is,
// for nothing draws from it any more: the other sets are empty, root gains nothing by
// exec (NOROOT, locked), and with no_new_privs nobody gains by exec what he does not
// have. To drop it takes a system call for each of its 41 members, a fifteenth of a
// launch.
func (s *Sandbox) DropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if have[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot|noSetuidFixup, 0, 0, 0); err != nil {
			return fmt.Errorf("set securebits: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	var kept [2]unix.CapUserData
	if s.other {
		kept[0].Permitted = 1 << unix.CAP_SETUID // for Aside; exec takes it away, since nothing gives it
	}
	if err := unix.Capset(&header, &kept[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// Aside takes the thread that Confine confined out of the reach of the policy's user,
// once it has started its process. It is a thread of the gateway, so a signal to it is
// one to the gateway, and a signal may be sent by whoever has the real or the saved id
// of its target: these become the gateway's again. The effective one stays that user's,
// for the thread's own signals to the process. Then it has no capability left.
func (s *Sandbox) Aside() error {
	if !s.other {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	raised := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SETUID, Permitted: 1 << unix.CAP_SETUID}}
	if err := unix.Capset(&header, &raised[0]); err != nil {
		return fmt.Errorf("stand aside: %w", err)
	}
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, s.self, keep, s.self); errno != 0 {
		return fmt.Errorf("stand aside: set the user: %w", errno)
	}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("stand aside: %w", err)
	}
	return nil
}

// rule gives rights to what stands at a path, by what it is.
type rule struct {
	path      string
	file, dir landlock.AccessFSSet
}

// rules returns what p opens, but for the private folder and what executes programs.
func rules(p *Policy) []rule {
	all := []rule{{os.DevNull, writeFile, writeDir}, {p.Program, execFile, execFile}}
	seen := map[string]bool{} // on most systems /lib is /usr/lib
	for _, path := range libraries {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if seen[real] {
				continue
			}
			seen[real] = true
		}
		all = append(all, rule{path, readFile, readDir})
	}
	for _, path := range p.Read {
		all = append(all, rule{path, readFile, readDir})
	}
	for _, path := range p.Write {
		all = append(all, rule{path, writeFile, writeDir})
	}
	for _, path := range p.Exec {
		all = append(all, rule{path, execFile, execDir})
	}
	return all
}

// Landlock is the first layer of Confine.
func (s *Sandbox) Landlock(folder string) error {
	c := config
	if s.policy.Network == AnyNetwork {
		c.HandledAccessNet = 0
	}
	ruleset, flags, err := c.NewRulesetFD()
	if err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	defer unix.Close(ruleset)
	add := func(r rule) {
		if err == nil {
			err = r.add(ruleset)
		}
	}
	if size := s.policy.Limits.FSize; size != nil && *size == 0 {
		add(rule{folder, readFile, readDir}) // it is empty and stays so
	} else {
		add(rule{folder, writeFile, writeDir})
	}
	for _, r := range s.rules {
		add(r)
	}
	for _, e := range s.executed {
		for _, path := range e.interpreters() {
			add(rule{path, execFile, execFile})
		}
	}
	if err == nil {
		err = ll.LandlockRestrictSelf(ruleset, flags)
	}
	if err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return nil
}

// add adds r to a ruleset, unless there is nothing at its path.
func (r rule) add(ruleset int) error {
	fd, err := unix.Open(r.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return fmt.Errorf("open %s: %w", r.path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("stat %s: %w", r.path, err)
	}
	rights := r.file
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		rights = r.dir
	}
	if err := ll.LandlockAddPathBeneathRule(ruleset, &ll.PathBeneathAttr{AllowedAccess: uint64(rights), ParentFd: fd}, 0); err != nil {
		return fmt.Errorf("add %s: %w", r.path, err)
	}
	return nil
}

// executed is a program, or a folder of programs, and what executes it. That is read
// from the file once, and again when there is another file.
type executed struct {
	path string
	file fileID
	by   []string
}

// fileID tells a file from what replaces it.
type fileID struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
	folder       bool
}

func identify(path string) (id fileID) {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		id = fileID{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim, st.Mode&unix.S_IFMT == unix.S_IFDIR}
	}
	return id
}

func newExecuted(path string) executed {
	id := identify(path) // before it is read: a file that changes meanwhile is read again
	return executed{path, id, interpreters(path)}
}

// interpreters returns what executes e's path as it is now.
func (e executed) interpreters() []string {
	if now := identify(e.path); now == e.file || now.folder && e.file.folder {
		return e.by // what executes the programs of a folder does not hang on them
	}
	return interpreters(e.path)
}

// interpreters returns what the kernel executes to execute path: the loader that a
// program names, the interpreter that a script names and that one's loader, or the
// loaders of the system for a folder, whose programs are not known.
func interpreters(path string) []string {
	if info, err := os.Stat(path); err != nil {
		return nil
	} else if info.IsDir() {
		var all []string
		for _, pattern := range []string{"/lib64/ld-linux-*.so.*", "/lib/ld-linux-*.so.*", "/lib/ld-musl-*.so.*"} {
			found, _ := filepath.Glob(pattern) // the patterns are right
			all = append(all, found...)
		}
		return all
	}
	var all []string
	const most = 5 // as deep as the kernel follows scripts
	for len(all) < most {
		next := interpreter(path)
		if next == "" {
			break
		}
		all = append(all, next)
		path = next
	}
	return all
}

// interpreter returns what the first line of a script or the header of an ELF program
// names, "" if it names none.
func interpreter(program string) string {
	f, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	var head [256]byte // what the kernel reads (BINPRM_BUF_SIZE)
	n, _ := io.ReadFull(f, head[:])
	if script, ok := bytes.CutPrefix(head[:n], []byte("#!")); ok {
		line, _, _ := bytes.Cut(script, []byte("\n"))
		if words := bytes.Fields(line); len(words) > 0 && filepath.IsAbs(string(words[0])) {
			return string(words[0])
		}
		return ""
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return ""
	}
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > unix.PathMax {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return ""
		}
		if path := string(bytes.TrimRight(b, "\x00")); filepath.IsAbs(path) {
			return path
		}
	}
	return ""
}

// Seccomp is the last layer of Confine. It is for the calling thread only, and keeps
// that thread from the signals of what it starts.
func (s *Sandbox) Seccomp() error {
	filter := s.filter.forThread(unix.Gettid())
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// Limit sets the limits of the process pid, which runs as the policy's user. The calling
// thread must not be confined.
//
// The limits of another's process can be set with CAP_SYS_RESOURCE only, which many a
// root does not have, or by whose real ids are those of the process. So the calling
// thread takes on these, and no more of that user, meanwhile. (While it is locked to its
// goroutine, the runtime makes no thread from it.)
func (s *Sandbox) Limit(pid int) (err error) {
	if s.other {
		const keep = ^uintptr(0)
		runtime.LockOSThread()
		uid, gid := uintptr(os.Getuid()), uintptr(os.Getgid())
		defer func() {
			_, _, u := unix.RawSyscall(unix.SYS_SETRESUID, uid, keep, keep)
			_, _, g := unix.RawSyscall(unix.SYS_SETRESGID, gid, keep, keep)
			if u == 0 && g == 0 {
				runtime.UnlockOSThread()
				return
			}
			// Still locked, the thread dies with its goroutine.
			err = errors.Join(err, errors.New("limits: the thread could not take back its own ids"))
		}()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(s.user.GID), keep, keep); errno != 0 {
			return fmt.Errorf("limits: take on the group %d: %w", s.user.GID, errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(s.user.UID), keep, keep); errno != 0 {
			return fmt.Errorf("limits: take on the user %d: %w", s.user.UID, errno)
		}
	}
	for _, l := range s.limits {
		var now unix.Rlimit
		if err := unix.Prlimit(pid, resources[l.Name], nil, &now); err != nil {
			return fmt.Errorf("limit %s: %w", l.Name, err)
		}
		value := min(l.Value, now.Max) // the gateway may have less itself
		if err := unix.Prlimit(pid, resources[l.Name], &unix.Rlimit{Cur: value, Max: value}, nil); err != nil {
			return fmt.Errorf("limit %s: %w", l.Name, err)
		}
	}
	return nil
}

// resources are the limits by name.
var resources = map[string]int{"nofile": unix.RLIMIT_NOFILE, "core": unix.RLIMIT_CORE, "fsize": unix.RLIMIT_FSIZE,
	"cpu": unix.RLIMIT_CPU, "memory": unix.RLIMIT_AS, "processes": unix.RLIMIT_NPROC}

// Exceeded reports whether the calling process may go beyond l.
func (l Limit) Exceeded() bool {
	var now unix.Rlimit
	err := unix.Getrlimit(resources[l.Name], &now)
	return err != nil || now.Cur > l.Value || now.Max > l.Value
}

// list returns the limits in a fixed order.
func (l Limits) list() []Limit {
	files := l.NoFile
	if files == 0 {
		files = DefaultNoFile
	}
	// 1 byte is too little for a core file, and the value by which the kernel makes no core
	// at all: with 0 it would still pipe one, with all secrets in it, to a program that
	// core_pattern names (core(5), fs/coredump.c).
	list := []Limit{{"nofile", files}, {"core", 1}}
	if l.FSize != nil {
		list = append(list, Limit{"fsize", *l.FSize})
	}
	if l.CPU > 0 {
		list = append(list, Limit{"cpu", uint64((l.CPU + time.Second - 1) / time.Second)})
	}
	if l.Memory > 0 {
		list = append(list, Limit{"memory", l.Memory})
	}
	if l.Processes > 0 {
		list = append(list, Limit{"processes", l.Processes})
	}
	return list
}

func digest(filter []unix.SockFilter) string {
	var b bytes.Buffer
	for _, i := range filter {
		_ = binary.Write(&b, binary.LittleEndian, i) // fixed-size fields, and a buffer takes all
	}
	sum := sha256.Sum256(b.Bytes())
	return "sha256:" + hex.EncodeToString(sum[:])
}
