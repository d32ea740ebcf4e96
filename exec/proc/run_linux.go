package proc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tree ends the descendants of one run. Both of its methods are called on the
// run's thread.
type tree interface {
	// signal sends sig to every process of the tree.
	signal(sig unix.Signal)
	// finish is called when the process itself has exited. It kills what is left
	// of the tree and reaps the process. It returns the names of what was alive,
	// the number of processes that would not die, and those of them that are known.
	finish(reap func()) (left []string, survivors int, alive []Process)
}

// run does the work of Run on a thread of its own, which does not outlive it:
// the fence, the umask and no_new_privs are properties of that thread.
func run(ctx context.Context, spec Spec) (res Result, err error) {
	adoptOnce.Do(adopt)
	if adoptErr != nil {
		return Result{}, adoptErr
	}
	reapAbandoned()
	l, err := spec.Ahead.take(&spec)
	if err != nil {
		return Result{}, err
	}
	defer func() { // not on the run's thread, which may be confined; and even if Keep panics
		gone := l.end()
		if err != nil {
			res, err = Result{}, errors.Join(err, gone)
			return
		}
		res.Folder = gone
	}()
	var kept *os.Root // opened before the process could put something else in its place
	if spec.Keep != nil {
		if kept, err = os.OpenRoot(l.folder); err != nil {
			return Result{}, fmt.Errorf("private folder: %w", err)
		}
		defer kept.Close()
	}
	p, err := newProcess(spec)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	l.do(func() { res, err = p.run(ctx, l) })
	if err == nil && kept != nil {
		spec.Keep(kept, res)
	}
	return res, err
}

// memory is where Linux systems mount a file system in memory that everybody may use.
const memory = "/dev/shm"

// roomInMemory is how much of it must be free for a private folder to be made there.
const roomInMemory = 1 << 30

// scratch returns where to make a private folder. It looks each time: when the memory
// fills, the next ones go to the disk.
func scratch(spec Spec) string {
	if spec.Scratch != "" || os.Getenv("TMPDIR") != "" {
		return spec.Scratch
	}
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < roomInMemory ||
		unix.Access(memory, unix.W_OK) != nil {
		return ""
	}
	return memory
}

var (
	adoptOnce sync.Once
	adoptErr  error
	fenceable bool // every run is fenced, or none
)

// adopt makes the gateway the parent of its runs' orphans, and finds out early
// what the kernel has.
func adopt() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		adoptErr = fmt.Errorf("become a child subreaper: %w", err)
		return
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		adoptErr = fmt.Errorf("the kernel has no pidfd: %w", err)
		return
	}
	unix.Close(fd)
	// A run's thread is in the run's Landlock domain, so only this keeps the run from
	// looking into the gateway through it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		adoptErr = fmt.Errorf("close the gateway's memory to its processes: %w", err)
		return
	}
	openChildren()
	_, _ = bootID() // a confined thread cannot read it
	onOwnThread(func() { fenceable = prepareThread() == nil && fence() == nil })
}

// onOwnThread calls f on a thread that runs nothing else and ends with f. The
// main thread cannot end, so it is never used: a goroutine that finds itself on
// it lends it out until f is done elsewhere.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f() // the thread is never unlocked, so it ends with this goroutine
	}()
	<-done
}

// process is one run under way, seen from its thread.
type process struct {
	spec      Spec
	pid       int
	pidfd     int
	tree      tree
	in        int    // what is left of stdin goes here; -1 when closed
	out, errs int    // -1 when at their end
	wake      int    // readable when the context has ended
	inner     int    // the socket of the init that is around the process; -1 if none is
	child     [3]int // the process's ends of its pipes; -1 when closed
	stdout    collector
	stderr    collector
	res       Result
	status    unix.WaitStatus
	reaped    bool
}

// elsewhere calls f on another thread, which is not confined, and waits for it.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// newProcess makes what a run needs of descriptors, on a thread that nothing confines.
func newProcess(spec Spec) (*process, error) {
	p := &process{spec: spec, in: -1, out: -1, errs: -1, wake: -1, inner: -1, pidfd: -1, child: [3]int{-1, -1, -1}}
	p.stdout, p.stderr = newCollector(spec.OutputMax), newCollector(spec.OutputMax)
	if err := p.open(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *process) open() (err error) {
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	switch {
	case p.spec.StdinFile != nil:
		p.child[0], err = unix.FcntlInt(p.spec.StdinFile.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	case p.spec.Stdin == nil:
		p.child[0], err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	default:
		p.child[0], p.in, err = pipe(1)
	}
	if err != nil {
		return err
	}
	if p.out, p.child[1], err = pipe(0); err != nil {
		return err
	}
	if p.errs, p.child[2], err = pipe(0); err != nil {
		return err
	}
	return p.giveAway()
}

// run starts the process from the thread of l, which it is called on, and sees it to its
// end.
func (p *process) run(ctx context.Context, l *launch) (Result, error) {
	if err := p.start(ctx, l); err != nil {
		return Result{}, err
	}
	stop := context.AfterFunc(ctx, p.wakeUp)
	p.watch()
	if !stop() {
		p.awaitWake()
	}
	p.res.Fenced = l.fenced
	p.res.Stdout, p.res.Stderr = share(&p.stdout, &p.stderr, p.spec.OutputMax)
	return p.res, nil
}

// prepareThread sets what the child inherits from the thread that starts it.
func prepareThread() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // a umask of our own
		return fmt.Errorf("unshare the umask: %w", err)
	}
	unix.Umask(0o077)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// closeOnExec keeps descriptors that the gateway was started with, or that a library
// opened carelessly, from reaching the child.
func closeOnExec() error {
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors close-on-exec: %w", err)
	}
	return nil
}

// start starts the process. After an error nothing runs.
func (p *process) start(ctx context.Context, l *launch) (err error) {
	defer func() {
		for i, fd := range p.child {
			unix.Close(fd)
			p.child[i] = -1
		}
	}()
	if err := closeOnExec(); err != nil {
		return err
	}
	files := []uintptr{uintptr(p.child[0]), uintptr(p.child[1]), uintptr(p.child[2])}
	for _, f := range p.spec.Files {
		fd := f.Fd()
		if fd == ^uintptr(0) {
			return fmt.Errorf("%s: %w", f.Name(), os.ErrClosed)
		}
		files = append(files, fd)
	}
	defer runtime.KeepAlive(p.spec.Files)
	if !l.fenced {
		// A sweep that saw the process before it is entered would take it for an
		// orphan that has cut its ties.
		sweepsMu.Lock()
		defer sweepsMu.Unlock()
	}
	if p.spec.Inside != nil {
		err = p.enterInside(ctx, l.folder, files)
	} else {
		err = p.exec(l.folder, files)
	}
	if err != nil {
		return err
	}
	p.res.Exit = -1
	if l.fenced {
		p.tree = fenceTree{p.pid}
	} else {
		p.tree = enterSweep(p.pid, runMarks{folder: l.folder, stdout: inode(p.out), stderr: inode(p.errs)})
	}
	return nil
}

// exec starts the process with files as its descriptors. After an error nothing runs.
func (p *process) exec(folder string, files []uintptr) (err error) {
	p.res.Started = time.Now()
	p.pid, err = syscall.ForkExec(p.spec.Path, p.spec.Argv, &syscall.ProcAttr{
		Dir:   folder,
		Env:   append([]string{}, p.spec.Env...), // nil would mean the gateway's own
		Files: files,
		Sys: &syscall.SysProcAttr{
			Setsid:    true,
			Ptrace:    p.spec.stops(), // stops the process at its exec
			Pdeathsig: syscall.SIGKILL,
			PidFD:     &p.pidfd,
		},
	})
	if err != nil {
		return descriptors(err)
	}
	if err := p.settle(); err != nil {
		// Not reaped yet, so the pid is its own; this thread may be confined.
		elsewhere(func() { unix.Kill(p.pid, unix.SIGKILL) })
		p.reap()
		return err
	}
	return nil
}

// descriptors makes plain what an error of a start means.
func descriptors(err error) error {
	if errors.Is(err, unix.EBADF) {
		// All that were handed over are open: the child could not move one up, beyond
		// the last that it may have.
		return fmt.Errorf("descriptors of the process: %w", unix.EMFILE)
	}
	return err
}

// giveAway makes the pipes the owner's: a script that opens /dev/stderr opens its pipe
// anew, and the rights of a pipe are those of a file.
func (p *process) giveAway() error {
	if p.spec.Owner == nil {
		return nil
	}
	for i, fd := range p.child {
		if i == 0 && p.in < 0 {
			continue // a file or /dev/null
		}
		if err := unix.Fchown(fd, int(p.spec.Owner.UID), int(p.spec.Owner.GID)); err != nil {
			return fmt.Errorf("give away a pipe: %w", err)
		}
	}
	return nil
}

// settle does what Spec wants done between the start and the first instruction.
func (p *process) settle() error {
	if p.spec.Aside != nil {
		if err := p.spec.Aside(); err != nil {
			return err
		}
	}
	if !p.spec.stops() {
		return nil
	}
	return p.limit()
}

// stops says that the process is stopped before its first instruction.
func (s *Spec) stops() bool { return s.Limit != nil || s.Begin != nil }

// begin says which process is about to begin, on a thread that is not confined.
func (p *process) begin() (err error) {
	if p.spec.Begin == nil {
		return nil
	}
	elsewhere(func() {
		var which Process
		if which, err = Identify(p.pid); err == nil {
			err = p.spec.Begin(which)
		}
	})
	p.res.Started = time.Now()
	return err
}

// limit waits for the process to stop at its exec, has it limited, and lets it go.
func (p *process) limit() error {
	for {
		_, err := unix.Wait4(p.pid, &p.status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for the exec: %w", err)
		}
		break
	}
	if !p.status.Stopped() {
		p.reaped = true
		return errors.New("it ended at its exec")
	}
	var err error
	if p.spec.Limit != nil {
		elsewhere(func() { err = p.spec.Limit(p.pid) })
	}
	if err == nil {
		err = p.begin()
	}
	if err != nil {
		return err
	}
	if err := unix.PtraceDetach(p.pid); err != nil {
		return fmt.Errorf("let it go: %w", err)
	}
	return nil
}

// pipe returns the two ends of a pipe; the end with index ours (0 reads, 1
// writes) does not block.
func pipe(ours int) (r, w int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

func inode(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

func (p *process) close() {
	for _, fd := range []int{p.child[0], p.child[1], p.child[2], p.in, p.out, p.errs, p.pidfd, p.wake, p.inner} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// awaitWake waits for wakeUp, which runs or has run since the context ended: it writes to
// a descriptor that is about to be closed.
func (p *process) awaitWake() {
	pfd := []unix.PollFd{{Fd: int32(p.wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(pfd, -1); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (p *process) wakeUp() {
	one := [8]byte{1}
	unix.Write(p.wake, one[:])
}

// buffers are what output is read into, one a run.
var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// watch moves the process's input and output and waits for its end, telling it
// to end when its time is up or the context has ended.
func (p *process) watch() {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	stdin := p.spec.Stdin
	next := p.res.Started.Add(p.spec.Timeout) // when to do the next harder thing
	killed := false
	for {
		fds := [5]unix.PollFd{
			{Fd: int32(p.pidfd), Events: unix.POLLIN},
			{Fd: int32(p.wake), Events: unix.POLLIN},
			{Fd: int32(p.out), Events: unix.POLLIN},
			{Fd: int32(p.errs), Events: unix.POLLIN},
			{Fd: int32(p.in), Events: unix.POLLOUT},
		}
		if p.res.Stopped != NotStopped {
			fds[1].Fd = -1
		}
		wait := min(max(time.Until(next), 0), time.Hour)
		_, err := unix.Poll(fds[:], int((wait+time.Millisecond-1)/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			// The arguments are right, so only memory can be short. Stop what we
			// can no longer watch.
			p.tree.signal(unix.SIGKILL)
			p.unknown("watching the process: " + err.Error())
			p.end()
			return
		}
		if fds[0].Revents != 0 {
			p.end()
			p.drain(*buf)
			return
		}
		if fds[2].Revents != 0 {
			p.out = p.read(p.out, false, *buf)
		}
		if fds[3].Revents != 0 {
			p.errs = p.read(p.errs, true, *buf)
		}
		if fds[4].Revents != 0 {
			n, err := unix.Write(p.in, stdin)
			stdin = stdin[max(n, 0):]
			if len(stdin) == 0 || err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				unix.Close(p.in)
				p.in = -1
			}
		}
		now := time.Now()
		switch {
		case p.res.Stopped == NotStopped && fds[1].Revents != 0:
			p.res.Stopped = Cancelled
			p.tree.signal(unix.SIGTERM)
			next = now.Add(p.spec.Grace)
		case now.Before(next):
		case p.res.Stopped == NotStopped:
			p.res.Stopped = Deadline
			p.tree.signal(unix.SIGTERM)
			next = now.Add(p.spec.Grace)
		case !killed:
			killed = true
			p.tree.signal(unix.SIGKILL)
			next = now.Add(giveUp)
		default:
			p.unknown("the process did not end on SIGKILL")
			abandon(p.pid)
			p.res.Survivors++
			elsewhere(func() {
				if which, err := Identify(p.pid); err == nil {
					p.res.Alive = append(p.res.Alive, which)
				}
			})
			p.res.Ended = now
			return
		}
	}
}

// end is called when the process has exited or cannot be watched. It clears up
// the tree and learns how the process ended.
func (p *process) end() {
	p.res.Ended = time.Now()
	left, survivors, alive := p.tree.finish(p.reap)
	if p.spec.Inside != nil {
		left = p.account()
	}
	if p.res.Stopped == NotStopped {
		p.res.LeftBehind = left
	}
	p.res.Survivors, p.res.Alive = survivors, alive
	if p.res.Unknown {
		return
	}
	switch {
	case p.status.Exited():
		p.res.Exit = p.status.ExitStatus()
	case p.status.Signaled():
		p.res.Signal = p.status.Signal()
	}
}

// reap takes the exit status.
func (p *process) reap() {
	if p.reaped {
		return
	}
	p.reaped = true
	for {
		_, err := unix.Wait4(p.pid, &p.status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			p.unknown("its exit status could not be had: " + err.Error())
		}
		return
	}
}

func (p *process) unknown(why string) { p.res.Unknown, p.res.Why, p.res.Exit = true, why, -1 }

// read takes one piece of output. It returns fd, or -1 at the end.
func (p *process) read(fd int, stderr bool, buf []byte) int {
	n, err := unix.Read(fd, buf)
	switch {
	case n > 0:
		p.take(stderr, buf[:n])
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
	default:
		unix.Close(fd)
		return -1
	}
	return fd
}

// take notes a piece of output.
func (p *process) take(stderr bool, piece []byte) {
	if stderr {
		p.stderr.Write(piece)
	} else {
		p.stdout.Write(piece)
	}
	if p.spec.Output != nil {
		p.spec.Output(stderr, piece)
	}
}

// drain reads what was in the pipes when the last writer died. It does not wait:
// somebody outside the tree may have been handed an end of them.
func (p *process) drain(buf []byte) {
	const most = 4 << 20 // above the largest pipe an unprivileged process can make
	for _, s := range []struct {
		fd     *int
		stderr bool
	}{{&p.out, false}, {&p.errs, true}} {
		for got := 0; *s.fd >= 0 && got < most; {
			n, err := unix.Read(*s.fd, buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				break
			}
			p.take(s.stderr, buf[:n])
			got += n
		}
	}
}

// Processes that outlived SIGKILL are reaped when a later run comes by.
var (
	abandonedMu sync.Mutex
	abandoned   []int
)

func abandon(pid int) {
	abandonedMu.Lock()
	defer abandonedMu.Unlock()
	abandoned = append(abandoned, pid)
}

func reapAbandoned() {
	abandonedMu.Lock()
	defer abandonedMu.Unlock()
	kept := abandoned[:0]
	for _, pid := range abandoned {
		if n, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); n == 0 && err == nil {
			kept = append(kept, pid)
		}
	}
	abandoned = kept
}
