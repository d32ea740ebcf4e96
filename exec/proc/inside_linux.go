package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// thisProgram is what an init executes, wherever it stands and whoever may look there.
const thisProgram = "/proc/self/exe"

// initTime bounds how long an init takes until its process is about to begin.
const initTime = 30 * time.Second

// order is what an init gets. Words are bytes in it, since JSON keeps no text that is not
// UTF-8 as it is.
type order struct {
	// Path is empty for a try: then there is no process, only what is around one.
	Path, Folder []byte
	Argv, Env    [][]byte
	// Map is the ids that the init maps into its user namespace, nil if it has none or
	// they are mapped.
	Map  *Owner
	Task []byte
}

// message is what an init says on its socket: first that its process is about to begin
// or why not, then how the process ended.
type message struct {
	Error string `json:",omitempty"`
	Errno int    `json:",omitempty"` // that of the error, if it had one

	Status unix.WaitStatus `json:",omitempty"`
	Left   [][]byte        `json:",omitempty"` // as Result.LeftBehind
}

// maxMessage bounds a message, in bytes. A name in it has at most 15.
const maxMessage = 8 << 10

// goOn is the answer to the first message.
var goOn = []byte("go")

// Namespaces returns the namespaces that Inside makes here, by their names, or why they
// cannot be had: it tries, until it has once been able to, with an init that has no
// process. Main must call Init.
func Namespaces(network bool) ([]string, error) {
	triedMu.Lock()
	defer triedMu.Unlock()
	if !tried {
		res, err := Run(context.Background(), Spec{Argv: []string{thisProgram}, Timeout: initTime, OutputMax: 4 << 10,
			Inside: &Inside{Network: true}, try: true})
		var start *StartError
		switch {
		case errors.As(err, &start):
			return nil, start.Err // the program does not matter
		case res.Unknown || res.Signal != 0:
			return nil, fmt.Errorf("their init ended early: %s%v", res.Why, res.Signal)
		}
		tried = true
	}
	names := []string{"pid", "ipc", "mount"}
	if network {
		names = append(names, "net")
	}
	if needsUser() {
		names = append(names, "user")
	}
	return names, nil
}

var (
	triedMu sync.Mutex
	tried   bool // and it worked
)

// needsUser reports whether this process makes namespaces in a user namespace only.
func needsUser() bool {
	// What is not root's would lose the capability at the exec of the init.
	return os.Geteuid() != 0 || !capable(unix.CAP_SYS_ADMIN)
}

// capable reports whether this process has all of some capabilities below 32.
func capable(all ...int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if unix.Capget(&header, &have[0]) != nil {
		return false
	}
	for _, c := range all {
		if have[0].Effective&(1<<c) == 0 {
			return false
		}
	}
	return true
}

// inUser adds a user namespace to what an init is started in.
func (o *order) inUser(attr *syscall.SysProcAttr) error {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	if os.Geteuid() != 0 {
		// The init maps its ids itself: until it is another program it is closed to
		// everybody, also to this very user. With no id it would lose all capabilities
		// by then.
		o.Map = &Owner{uint32(os.Geteuid()), uint32(os.Getegid())}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
		return nil
	}
	if !capable(unix.CAP_SETUID, unix.CAP_SETGID) {
		return errors.New("root without CAP_SYS_ADMIN needs CAP_SETUID and CAP_SETGID to make any")
	}
	all := []syscall.SysProcIDMap{{Size: math.MaxUint32}}
	attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = all, all, true
	return nil
}

// enterInside starts the init and waits until the process is about to begin, with files
// as its descriptors. After an error nothing runs.
func (p *process) enterInside(ctx context.Context, folder string, files []uintptr) error {
	in := p.spec.Inside
	o := order{Path: []byte(p.spec.Path), Argv: convert[[]byte](p.spec.Argv), Env: convert[[]byte](p.spec.Env), Folder: []byte(folder), Task: in.Task}
	if p.spec.try {
		o.Path = nil
	}
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &p.pidfd,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS}
	if in.Network {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if needsUser() {
		if err := o.inUser(attr); err != nil {
			return fmt.Errorf("namespaces: %w", err)
		}
	}
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	memory, err := sealed(raw)
	if err != nil {
		return err
	}
	defer unix.Close(memory)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p.inner = pair[0]
	p.pid, err = syscall.ForkExec(thisProgram, []string{initName, strconv.Itoa(len(files))}, &syscall.ProcAttr{
		Dir: folder, Env: []string{}, Files: append(slices.Clone(files), uintptr(memory), uintptr(pair[1])), Sys: attr})
	unix.Close(pair[1])
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("there are as many as the machine lets one user have: %w", unix.EAGAIN)
		}
		return fmt.Errorf("namespaces: %w", descriptors(err))
	}
	if err := p.await(ctx); err != nil {
		elsewhere(func() { unix.Kill(p.pid, unix.SIGKILL) }) // not reaped yet, so the pid is its own
		p.reap()
		return err
	}
	return nil
}

// await waits for the first message of the init, and lets the process begin.
func (p *process) await(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.wakeUp)
	err := p.first()
	if !stop() {
		p.awaitWake()
		return context.Cause(ctx)
	}
	if err == nil {
		err = p.begin()
	}
	if err != nil {
		return err
	}
	p.res.Started = time.Now()
	return unix.Send(p.inner, goOn, unix.MSG_NOSIGNAL)
}

// first reads the first message of the init.
func (p *process) first() error {
	deadline := time.Now().Add(initTime)
	for {
		fds := []unix.PollFd{{Fd: int32(p.inner), Events: unix.POLLIN}, {Fd: int32(p.wake), Events: unix.POLLIN}}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("namespaces: their init has done nothing for %v", initTime)
		}
		if _, err := unix.Poll(fds, int(left/time.Millisecond)+1); err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
				continue
			}
			return err
		}
		if fds[0].Revents == 0 && fds[1].Revents == 0 {
			continue
		}
		if fds[0].Revents == 0 {
			return context.Canceled // whoever waits knows the cause
		}
		m, err := p.hear()
		switch {
		case err != nil:
			return fmt.Errorf("namespaces: their init ended early: %w%s", err, p.lastWords())
		case m.Errno != 0:
			return &innerError{m.Error, unix.Errno(m.Errno)}
		case m.Error != "":
			return errors.New(m.Error)
		}
		return nil
	}
}

// lastWords are what an init that broke down wrote, which is the run's output otherwise.
func (p *process) lastWords() string {
	b := make([]byte, 512)
	if n, _ := unix.Read(p.errs, b); n > 0 {
		return fmt.Sprintf(" (%q)", b[:n])
	}
	return ""
}

// innerError is an error of an init, in its words.
type innerError struct {
	text  string
	errno unix.Errno
}

func (e *innerError) Error() string { return e.text }
func (e *innerError) Unwrap() error { return e.errno }

// hear reads a message that is there.
func (p *process) hear() (m message, err error) {
	b := make([]byte, maxMessage)
	for {
		n, _, err := unix.Recvfrom(p.inner, b, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return m, err
		case n <= 0:
			return m, io.ErrUnexpectedEOF
		}
		return m, json.Unmarshal(b[:n], &m)
	}
}

// account takes from the init, which has been reaped, how the process ended and what
// was left of it.
func (p *process) account() (left []string) {
	m, err := p.hear()
	switch {
	case err == nil && m.Error != "":
		p.unknown(m.Error)
	case err == nil:
		p.status = m.Status
	case p.status.Signaled():
		// What ends an init ends what it started in the same way: only SIGKILL gets
		// through to either.
	default:
		p.unknown("the init of its namespaces did not say how it ended: " + err.Error())
	}
	if len(m.Left) == 0 {
		return nil
	}
	return convert[string](m.Left)
}

// Init must be called by main before anything else but what may likewise exit. In a
// process that Run started for Inside it does not return: it makes what the Task says
// by prepare, and then is the init of a run. In any other it does nothing.
func Init(prepare func(task []byte) (Hooks, error)) {
	if len(os.Args) != 2 || os.Args[0] != initName {
		return
	}
	first, err := strconv.Atoi(os.Args[1])
	if err != nil || first < 3 {
		fmt.Fprintln(os.Stderr, initName+": it is started by a gateway only")
		syscall.Exit(2)
	}
	// Handled, signals do not end this process, and it starts others with all of them
	// as they are by default.
	signal.Notify(make(chan os.Signal, 1))
	over := false
	onOwnThread(func() {
		i := &inner{memory: first, socket: first + 1}
		if err := i.start(prepare); err != nil {
			m := message{Error: err.Error()}
			var errno syscall.Errno
			if errors.As(err, &errno) {
				m.Errno = int(errno)
			}
			i.tell(m)
		} else {
			i.serve()
		}
		over = true
	})
	if !over {
		select {} // a panic, which is about to end the process and says more than an exit
	}
	syscall.Exit(0) // os.Exit and return take a second under the race detector
}

// inner is the run as its init sees it.
type inner struct {
	memory, socket int // descriptors
	p              process
}

func (i *inner) tell(m message) {
	raw, err := json.Marshal(m)
	if err == nil && len(raw) > maxMessage {
		raw, err = json.Marshal(message{Error: "an error that is too long to be told", Errno: m.Errno})
	}
	if err == nil {
		// The gateway that does not hear it is gone.
		_ = unix.Send(i.socket, raw, unix.MSG_NOSIGNAL)
	}
}

// start makes the process, and lets it begin when the gateway says so.
func (i *inner) start(prepare func([]byte) (Hooks, error)) error {
	var o order
	if err := i.read(&o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if o.Map != nil {
		if err := mapIDs(*o.Map); err != nil {
			return fmt.Errorf("map the ids: %w", err)
		}
	}
	if err := os.WriteFile("/proc/self/comm", []byte(initName), 0); err != nil { // for those who look at processes
		return fmt.Errorf("take its name: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close its memory: %w", err)
	}
	if err := errors.Join(prepareThread(), closeOnExec()); err != nil {
		return err
	}
	// For this thread's mounts are this process's. What is mounted here stays here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if len(o.Path) == 0 {
		return i.begin()
	}
	hooks, err := prepare(o.Task)
	if err != nil {
		return err
	}
	i.p.spec = Spec{Aside: hooks.Aside, Limit: func(pid int) error {
		if hooks.Limit != nil {
			if err := hooks.Limit(pid); err != nil {
				return err
			}
		}
		return i.begin()
	}}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if hooks.Confine != nil {
		if err := hooks.Confine(string(o.Folder)); err != nil {
			return fmt.Errorf("confine: %w", err)
		}
	}
	files := make([]uintptr, i.memory)
	for fd := range files {
		files[fd] = uintptr(fd)
	}
	i.p.pid, err = syscall.ForkExec(string(o.Path), convert[string](o.Argv), &syscall.ProcAttr{Dir: string(o.Folder), Env: convert[string](o.Env), Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Ptrace: true, Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		return err
	}
	// What is the process's has no other end here.
	for fd := range files {
		if fd > 2 {
			unix.Close(fd)
		} else if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	return i.p.settle()
}

// begin tells the gateway that the process is about to begin, and waits until it may.
func (i *inner) begin() error {
	i.tell(message{})
	b := make([]byte, len(goOn)+1)
	for {
		n, err := unix.Read(i.socket, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || string(b[:max(n, 0)]) != string(goOn) {
			syscall.Exit(1) // and the process with it
		}
		return nil
	}
}

func (i *inner) read(o *order) error {
	var st unix.Stat_t
	if err := unix.Fstat(i.memory, &st); err != nil {
		return err
	}
	raw := make([]byte, st.Size)
	for at := 0; at < len(raw); {
		n, err := unix.Pread(i.memory, raw[at:], int64(at))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		at += n
	}
	unix.Close(i.memory)
	return json.Unmarshal(raw, o)
}

// serve reaps whoever ends until the process does, and says how that was.
func (i *inner) serve() {
	if i.p.pid == 0 {
		i.tell(message{})
		return // a try
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR), err == nil && pid != i.p.pid:
		case err != nil:
			i.tell(message{Error: err.Error()})
			return
		default:
			elsewhere(func() { i.tell(message{Status: status, Left: convert[[]byte](others())}) })
			return
		}
	}
}

// others names the processes of this pid namespace but the init, at most 8.
func others() (names []string) {
	all, err := processes()
	if err != nil {
		return nil // the kernel ends them all the same
	}
	for _, s := range all {
		if s.pid != unix.Getpid() && s.state != 'Z' && len(names) < maxNamed {
			names = append(names, s.name)
		}
	}
	return names
}

// mapIDs gives one user and one group the ids in the user namespace of this process that
// they have outside, in the order that user_namespaces(7) wants.
func mapIDs(o Owner) error {
	for _, m := range []struct{ file, text string }{
		{"setgroups", "deny"}, {"gid_map", fmt.Sprintf("%d %d 1", o.GID, o.GID)}, {"uid_map", fmt.Sprintf("%d %d 1", o.UID, o.UID)},
	} {
		if err := os.WriteFile("/proc/self/"+m.file, []byte(m.text), 0); err != nil {
			return err
		}
	}
	return nil
}

// convert returns words as bytes or as strings, and not nil: that would be the environment
// of this process.
func convert[To, From []byte | string](words []From) []To {
	all := make([]To, 0, len(words))
	for _, w := range words {
		all = append(all, To(w))
	}
	return all
}

// sealed returns a file in memory that nobody can change.
func sealed(value []byte) (int, error) {
	fd, err := unix.MemfdCreate(initName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	for at := 0; at < len(value) && err == nil; {
		var n int
		n, err = unix.Pwrite(fd, value[at:], int64(at))
		at += max(n, 0)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("a file in memory: %w", err)
	}
	return fd, nil
}
