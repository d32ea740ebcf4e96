package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxNamed bounds the names in Result.LeftBehind.
const maxNamed = 8

// stat is what /proc says of one process.
type stat struct {
	pid, ppid, sid int
	state          byte
	start          uint64 // clock ticks since boot
	name           string
}

// processes lists the processes that /proc shows. An error means that some may be
// missing, for want of a descriptor say.
func processes() ([]stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []stat
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/stat")
		for _, scarce := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
			if errors.Is(err, scarce) {
				return nil, err
			}
		}
		if err != nil {
			continue // it has ended meanwhile, or /proc does not show us what is another's
		}
		if p, ok := parseStat(pid, b); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// parseStat reads a /proc/PID/stat line (proc_pid_stat(5)). The name stands in
// parentheses and may hold any, so the last one ends it.
func parseStat(pid int, b []byte) (stat, bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, false
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, false
	}
	p := stat{pid: pid, state: f[0][0], name: string(b[open+1 : end])}
	var err [3]error
	p.ppid, err[0] = strconv.Atoi(f[1])
	p.sid, err[1] = strconv.Atoi(f[3])
	p.start, err[2] = strconv.ParseUint(f[19], 10, 64)
	return p, err[0] == nil && err[1] == nil && err[2] == nil
}

// runMarks are ties of a descendant to its run that survive setsid and the loss
// of its parent, as long as it does not cut them itself.
type runMarks struct {
	folder         string
	stdout, stderr uint64 // inodes of the output pipes
}

// holds reports whether process pid still uses the run's folder or its output.
func (m runMarks) holds(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	if cwd, err := os.Readlink(dir + "cwd"); err == nil {
		cwd = strings.TrimSuffix(cwd, " (deleted)")
		if cwd == m.folder || strings.HasPrefix(cwd, m.folder+"/") {
			return true
		}
	}
	for _, fd := range []string{"fd/1", "fd/2"} {
		to, err := os.Readlink(dir + fd)
		if err == nil && (to == fmt.Sprintf("pipe:[%d]", m.stdout) || to == fmt.Sprintf("pipe:[%d]", m.stderr)) {
			return true
		}
	}
	return false
}

// sweep ends a tree by looking for it in /proc.
type sweep struct {
	pid   int
	start uint64
	marks runMarks
}

// sweeps are the runs under way, so that one does not take another's orphans.
var (
	sweepsMu sync.Mutex
	sweeps   = map[int]*sweep{}
)

// enterSweep enters a run. The caller holds sweepsMu since before the start.
func enterSweep(pid int, marks runMarks) *sweep {
	s := &sweep{pid: pid, marks: marks}
	elsewhere(func() {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			p, _ := parseStat(pid, b)
			s.start = p.start
		}
	})
	sweeps[pid] = s
	return s
}

// find returns the processes of s's tree, the process itself included.
func (s *sweep) find() (in []stat, err error) {
	elsewhere(func() { in, err = s.look() }) // this thread may not see /proc
	return in, err
}

func (s *sweep) look() ([]stat, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	sweepsMu.Lock()
	defer sweepsMu.Unlock()
	roots := make(map[int]bool, len(sweeps))
	for pid := range sweeps {
		roots[pid] = true
	}
	claims := func(pid int) int {
		for _, other := range sweeps {
			if other.marks.holds(pid) {
				return other.pid
			}
		}
		return 0
	}
	return attribute(all, unix.Getpid(), s.pid, s.start, roots, claims), nil
}

// attribute picks from all the processes of the tree whose first process is root.
// self is the gateway, roots the first processes of all runs, and claims tells
// which run's marks an orphan still holds, 0 for none.
func attribute(all []stat, self, root int, since uint64, roots map[int]bool, claims func(pid int) int) []stat {
	byPID := make(map[int]stat, len(all))
	for _, p := range all {
		byPID[p.pid] = p
	}
	owner := make(map[int]int, len(all))
	var find func(p stat, depth int) int
	find = func(p stat, depth int) int {
		if o, ok := owner[p.pid]; ok {
			return o
		}
		o := 0
		switch {
		case depth > len(all): // a snapshot is not atomic: it may show a ring
		case p.pid == self:
		case roots[p.pid]:
			o = p.pid
		case roots[p.sid]: // a session cannot be joined from outside
			o = p.sid
		case p.ppid == self:
			// Adopted. A child that somebody else in this process started shares
			// our session or is older than the run.
			if p.sid == byPID[self].sid || p.start < since {
				break
			}
			if o = claims(p.pid); o == 0 {
				o = root
			}
		default:
			if parent, ok := byPID[p.ppid]; ok {
				o = find(parent, depth+1)
			}
		}
		owner[p.pid] = o
		return o
	}
	var in []stat
	for _, p := range all {
		if find(p, 0) == root {
			in = append(in, p)
		}
	}
	return in
}

func (s *sweep) signal(sig unix.Signal) {
	unix.Kill(-s.pid, sig)
	in, _ := s.find() // the group has been told, and finish looks again
	for _, p := range in {
		unix.Kill(p.pid, sig)
	}
}

// beside reports whether the calling thread has, or may have, more children than the
// process itself, which has not been reaped.
func (s *sweep) beside() (more bool) {
	tid := unix.Gettid()
	elsewhere(func() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", tid))
		more = err != nil || len(strings.Fields(string(b))) != 1
	})
	return more
}

func (s *sweep) finish(reap func()) (left []string, survivors int, alive []Process) {
	defer func() {
		// Only now: while the process is a zombie its pid names this session and
		// no other.
		reap()
		sweepsMu.Lock()
		defer sweepsMu.Unlock()
		delete(sweeps, s.pid)
	}()
	if !adopted() && !s.beside() {
		return nil, 0, nil // the usual case: nobody is left
	}
	deadline := time.Now().Add(giveUp)
	first := true
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		remaining := 0
		in, err := s.find()
		if err != nil {
			remaining = 1 // that we know of
		}
		for _, p := range in {
			if p.pid == s.pid {
				unix.Kill(p.pid, unix.SIGKILL)
				continue
			}
			if p.state == 'Z' {
				// Not ours yet: its parent dies in this round, then it comes to us.
				// Not to be had yet: other threads of it are still ending.
				n, err := unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
				if p.ppid != unix.Getpid() || n != p.pid && err == nil {
					remaining++
				}
				continue
			}
			if first && len(left) < maxNamed {
				left = append(left, p.name)
			}
			unix.Kill(p.pid, unix.SIGKILL)
			remaining++
		}
		first = first && err != nil
		if remaining == 0 {
			return left, 0, nil
		}
		if time.Now().After(deadline) {
			return left, remaining, identities(in)
		}
		time.Sleep(pause)
	}
}
