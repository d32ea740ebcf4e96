package command

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// everything is the root /, out of which no path leads. (An os.Root would take each
// absolute link for a way out.) The links of /proc that lead to what a process has open
// are followed nowhere: the process is the gateway.
type everything struct{}

func (e everything) Stat(name string) (fs.FileInfo, error) {
	f, err := e.OpenFile(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

func (everything) OpenFile(name string, flag int, _ fs.FileMode) (*os.File, error) {
	path := filepath.Join("/", name)
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: uint64(flag) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &fs.PathError{Op: "openat2", Path: path, Err: err}
		default:
			return os.NewFile(uintptr(fd), path), nil
		}
	}
}

func (everything) Close() error { return nil }

// withheld says why f is not handed over, whatever root it stands below: it belongs to a
// process, which is to stand on a proc file system below a number, or to the gateway.
// What cannot be told counts as both.
func withheld(f *os.File, closed []string) string {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "where it stands cannot be told"
	}
	var on unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &on); err != nil || on.Type == unix.PROC_SUPER_MAGIC && numbered(path) {
		return "it belongs to a process"
	}
	for _, folder := range closed {
		if path == folder || strings.HasPrefix(path, folder+"/") {
			return "it belongs to the gateway"
		}
	}
	return ""
}

// numbered reports whether a step of path is a number.
func numbered(path string) bool {
	for step := range strings.SplitSeq(path, "/") {
		if step != "" && strings.Trim(step, "0123456789") == "" {
			return true
		}
	}
	return false
}
