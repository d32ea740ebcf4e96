package task

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"inband/exec/proc"
)

// pass looks at all processes once.
func (r *Runner) pass(folder string, rec *record, self proc.Process) (p pass) {
	before, err := births()
	mounts, unread := os.ReadFile("/proc/self/mountinfo")
	p.err = errors.Join(err, unread, hidden(string(mounts)))
	names, err := pids()
	if err != nil {
		p.err = errors.Join(p.err, err)
		return p
	}
	others := r.others(folder)
	var all []seen
	for _, pid := range names {
		s, ok, err := status(pid)
		if err != nil {
			p.err = errors.Join(p.err, err)
		}
		if !ok {
			continue
		}
		if s.bound {
			s.marked = uses(pid, folder, rec.Mark)
			for _, other := range others {
				if uses(pid, other, "HOME="+other+"/"+homeFolder) {
					s.other = other
				}
			}
		}
		all = append(all, s)
	}
	p.found, p.suspects = judge(all, rec, self)
	after, err := births()
	p.err = errors.Join(p.err, err)
	p.whole = p.err == nil && before == after
	return p
}

// others are the folders of the runs under way but that of folder.
func (r *Runner) others(folder string) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other := range r.runs {
		if other != folder {
			all = append(all, other)
		}
	}
	return all
}

// births is how many processes and threads the machine has started since its own start.
func births() (string, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "processes "); ok && strings.TrimSpace(n) != "0" {
			return strings.TrimSpace(n), nil
		}
	}
	return "", errors.New("/proc/stat does not count processes")
}

// hidden says that /proc does not show all processes to everybody, by a mountinfo
// (proc_pid_mountinfo(5)). A process can make itself one of those.
func hidden(mounts string) error {
	for line := range strings.Lines(mounts) {
		left, right, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(left), strings.Fields(right)
		if len(f) < 5 || f[4] != "/proc" || len(kind) < 3 || kind[0] != "proc" {
			continue
		}
		for option := range strings.SplitSeq(kind[2], ",") {
			if how, ok := strings.CutPrefix(option, "hidepid="); ok && how != "0" && how != "off" {
				return fmt.Errorf("/proc does not show all processes (%s)", option)
			}
		}
	}
	return nil
}

func pids() (all []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all, err
}

// ended reports whether err says that a process is not there any more.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// status reads what /proc says of a process to everybody (proc_pid_status(5)). One that
// has ended, reaped or not, is not ok.
func status(pid int) (s seen, ok bool, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if ended(err) {
		return s, false, nil
	} else if err != nil {
		return s, false, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	if state := fields["State"]; strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") {
		return s, false, nil
	}
	if s.Process, err = proc.Identify(pid); ended(err) {
		return s, false, nil
	} else if err != nil {
		return s, false, err
	}
	uid, _, _ := strings.Cut(fields["Uid"], "\t")
	var bad [2]error
	s.uid, bad[0] = strconv.Atoi(uid)
	s.parent, bad[1] = strconv.Atoi(fields["PPid"])
	s.name, s.bound, s.filtered = fields["Name"], fields["NoNewPrivs"] == "1", fields["Seccomp"] == "2"
	return s, true, errors.Join(bad[:]...)
}

// uses reports whether a process works in folder, has a file of it open, or began with a
// variable. What cannot be looked at is not used, for all that is known.
func uses(pid int, folder, variable string) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	within := func(link string) bool {
		to, err := os.Readlink(link)
		to = strings.TrimSuffix(to, " (deleted)")
		return err == nil && (to == folder || strings.HasPrefix(to, folder+"/"))
	}
	if within(dir+"cwd") || began(dir+"environ", variable) {
		return true
	}
	open, err := os.ReadDir(dir + "fd")
	if err != nil {
		return false
	}
	for _, fd := range open {
		if within(filepath.Join(dir+"fd", fd.Name())) {
			return true
		}
	}
	return false
}

// maxEnvironment bounds what is read of an environment, in bytes.
const maxEnvironment = 1 << 20

func began(environ, variable string) bool {
	f, err := os.Open(environ)
	if err != nil {
		return false
	}
	defer f.Close()
	raw, _ := io.ReadAll(io.LimitReader(f, maxEnvironment))
	for v := range bytes.SplitSeq(raw, []byte{0}) {
		if string(v) == variable {
			return true
		}
	}
	return false
}

// end sends SIGKILL to a process, if it is still this one, and reports whether it was.
func end(p proc.Process) bool {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// A descriptor does not come to mean another process after this.
	return p.Lives() && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// yield puts what p is, or what it is the init of, behind the worker: in the order in
// which processors are given, and before it in that in which the kernel ends processes
// when memory is short. A worker that may not do this of another user's process does
// without.
func (r *Runner) yield(pid int) {
	targets := []int{pid}
	if r.namespaces {
		targets = nil
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, t := range tasks {
			raw, _ := os.ReadFile(t)
			for child := range strings.FieldsSeq(string(raw)) {
				if n, err := strconv.Atoi(child); err == nil {
					targets = append(targets, n)
				}
			}
		}
	}
	const nice, first = 10, "500"
	for _, t := range targets {
		err := unix.Setpriority(unix.PRIO_PROCESS, t, nice)
		if err := errors.Join(err, os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", t), []byte(first), 0)); err != nil {
			r.config.Slog.Debug("a command has the worker's own priority", "err", err)
		}
	}
}
