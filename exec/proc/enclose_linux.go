package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// noCgroup makes tests run as where cgroups cannot be had.
var noCgroup bool

// enclose does the work of Enclose in the cgroup folder, below the one that the process
// is in.
func enclose(folder string) *Enclosure {
	e := &Enclosure{}
	parent, err := ownCgroup()
	if err == nil && noCgroup {
		err = errors.New("cgroups are switched off")
	}
	if err == nil {
		e.parent = parent
		err = e.enter(filepath.Join(parent, folder))
	}
	e.Why = err
	e.endMarked()
	return e
}

// ownCgroup returns the folder of the cgroup (version 2) that this process is in.
func ownCgroup() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	return cgroupFolder(string(mounts), string(own))
}

// cgroupFolder reads the two files, whose forms are in proc_pid_mountinfo(5) and
// cgroups(7).
func cgroupFolder(mounts, own string) (string, error) {
	path := ""
	for line := range strings.Lines(own) {
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			path = rest
		}
	}
	if path == "" {
		return "", errors.New("this process is in no cgroup of version 2")
	}
	if filepath.Clean(path) != path { // it begins with ".."
		return "", fmt.Errorf("the cgroup %s of this process is outside of what it may see", path)
	}
	for line := range strings.Lines(mounts) {
		left, right, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(left), strings.Fields(right)
		if len(f) < 5 || len(kind) == 0 || kind[0] != "cgroup2" {
			continue
		}
		root, at := unescape(f[3]), unescape(f[4])
		if rest, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rest) {
			return filepath.Join(at, rest), nil
		}
	}
	return "", fmt.Errorf("no cgroup file system shows the cgroup %s of this process", path)
}

// unescape returns a path of mountinfo, in which blanks are three octal digits.
func unescape(s string) string {
	for i := 0; i+4 <= len(s); i++ {
		if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); s[i] == '\\' && err == nil {
			s = s[:i] + string([]byte{byte(n)}) + s[i+4:]
		}
	}
	return s
}

// enter ends whoever is in the cgroup folder and enters it.
func (e *Enclosure) enter(folder string) error {
	if err := e.endIn(folder); err != nil {
		return err
	}
	// Those of gateways that will not come back.
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(folder), "inband-*"))
	for _, other := range others {
		_ = unix.Rmdir(other) // busy if it is in use
	}
	// Another gateway that starts may take the empty folder for such a one.
	var err error
	for range 10 {
		if err = os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if _, err = os.Stat(filepath.Join(folder, "cgroup.kill")); err != nil {
			continue // gone, or a kernel before 5.14
		}
		if err = join(folder); err == nil {
			e.Cgroup = folder
			return nil
		}
	}
	_ = unix.Rmdir(folder)
	return err
}

// join moves the calling process into a cgroup.
func join(folder string) error {
	return os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte("0"), 0)
}

// endIn ends the processes of a cgroup and of those below it, and removes it. A cgroup
// that is not there is none, also when another gateway has removed it just now.
func (e *Enclosure) endIn(folder string) error {
	// ENODEV is of a file that was open by then.
	if err := e.endAll(folder); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

func (e *Enclosure) endAll(folder string) error {
	var below []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		below = append(below, path)
		pids, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(pids)) {
			e.name(pid)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "cgroup.kill"), []byte("1"), 0); err != nil {
		return err
	}
	deadline := time.Now().Add(giveUp)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		events, err := os.ReadFile(filepath.Join(folder, "cgroup.events"))
		if err != nil {
			return err
		}
		if bytes.Contains(events, []byte("populated 0")) {
			break
		}
		if time.Now().After(deadline) {
			pids, _ := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
			e.Survivors = len(strings.Fields(string(pids)))
			return fmt.Errorf("%d processes of an earlier gateway do not end", e.Survivors)
		}
		time.Sleep(pause)
	}
	for _, path := range slices.Backward(below) {
		if err := unix.Rmdir(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

// name notes a process that is about to end.
func (e *Enclosure) name(pid string) {
	if b, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil && len(e.Ended) < maxNamed {
		e.Ended = append(e.Ended, strings.TrimSuffix(string(b), "\n"))
	}
}

// endMarked ends the processes whose working folder is a private folder of an earlier
// gateway of this name, and removes those folders.
func (e *Enclosure) endMarked() {
	deadline := time.Now().Add(giveUp)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		alive := 0
		all, err := processes()
		if err != nil {
			alive = 1 // for all that is known
		}
		for _, p := range all {
			if p.state == 'Z' || !marked(p.pid) {
				continue
			}
			alive++
			if pause == time.Millisecond {
				e.name(strconv.Itoa(p.pid))
			}
			// A descriptor does not come to mean another process between the two looks.
			if fd, err := unix.PidfdOpen(p.pid, 0); err == nil {
				if marked(p.pid) {
					_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				}
				unix.Close(fd)
			}
		}
		if alive == 0 {
			break
		}
		if time.Now().After(deadline) {
			e.Survivors += alive
			break
		}
		time.Sleep(pause)
	}
	for _, dir := range []string{memory, os.TempDir()} {
		left, _ := filepath.Glob(filepath.Join(dir, mark+"*"))
		for _, folder := range left {
			if info, err := os.Lstat(folder); err != nil || !info.IsDir() {
				continue
			} else if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
				_ = removeFolder(folder) // what stays is for the next start
			} else {
				_ = os.RemoveAll(folder) // and no change of modes in what is another's
			}
		}
	}
}

// marked reports whether the working folder of a process is, or was, a private folder
// of a gateway of this name.
func marked(pid int) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && (strings.HasPrefix(cwd, filepath.Join(memory, mark)) || strings.HasPrefix(cwd, filepath.Join(os.TempDir(), mark)))
}

// leave goes back to where enter came from.
func (e *Enclosure) leave() error {
	if e.Cgroup == "" {
		return nil
	}
	if err := join(e.parent); err != nil {
		return fmt.Errorf("leave the cgroup: %w", err)
	}
	// Another gateway that starts may have taken it for one that nobody comes back to.
	if err := unix.Rmdir(e.Cgroup); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the cgroup %s: %w", e.Cgroup, err)
	}
	e.Cgroup = ""
	return nil
}
