package task

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

const nonblock = unix.O_NONBLOCK

// signalName returns the name of a signal, as SIGKILL.
func signalName(sig syscall.Signal) string { return unix.SignalName(sig) }

// occupied is what a file takes of its disk, in bytes.
func occupied(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
