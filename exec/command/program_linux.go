package command

import (
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nonblock keeps the opening of a pipe or a device from waiting.
const nonblock = unix.O_NONBLOCK

// identity tells whether a file is the same file with the same content. The time of the
// last change cannot be set, and is set by every write.
type identity struct {
	dev, ino     uint64
	size         int64
	ctime, mtime syscall.Timespec
}

func identify(info fs.FileInfo) identity {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}
	}
	return identity{uint64(st.Dev), st.Ino, st.Size, st.Ctim, st.Mtim}
}

// which is the file, whatever it holds.
func (i identity) which() string { return fmt.Sprintf("%d:%d", i.dev, i.ino) }

// String is the file, how long it is, and when it changed last.
func (i identity) String() string {
	return fmt.Sprintf("%s %d %d.%09d", i.which(), i.size, i.ctime.Sec, i.ctime.Nsec)
}

func (i identity) changed() time.Time { return time.Unix(i.ctime.Unix()) }

// owner returns the user and the group that a file belongs to.
func owner(info fs.FileInfo) (uid, gid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(st.Uid), int(st.Gid), true
}
