package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxDepth is how many folders are open at once while a tree is removed: what is deeper
// is lifted to the top first.
const maxDepth = 32

// removeTime bounds the removal of one private folder. Only a process that survived, or
// another one of the same user, can make it last: it may add to the folder for ever.
const removeTime = time.Minute

// removeFolder removes a private folder. What is in it was made by a process that is
// not trusted: it may be deeper than there are descriptors or than a path is long, it
// may be closed to its owner, and links are not followed. One that is not there is
// removed.
func removeFolder(folder string) error {
	// The usual case is an empty one, for which it takes no descriptor.
	if err := unix.Rmdir(folder); err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	parent, err := unix.Open(filepath.Dir(folder), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(folder), Err: err}
	}
	defer unix.Close(parent)
	r := remover{top: -1, until: time.Now().Add(removeTime)}
	if err := r.folder(parent, filepath.Base(folder), 0); err != nil {
		return fmt.Errorf("remove %s: %w", folder, err)
	}
	return nil
}

// remover removes a tree.
type remover struct {
	top   int // the folder that all of it is in
	done  int // what was removed or lifted
	moved int // the number in the name of what was lifted last
	until time.Time
}

// folder removes the folder that has a name in dir.
func (r *remover) folder(dir int, name string, depth int) error {
	fd, err := openFolder(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return err
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.top = fd
	}
	for {
		before := r.done
		if err := r.empty(fd, depth); err != nil {
			return err
		}
		// Reading a folder that changes meanwhile may pass over something.
		err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			r.done++
			return nil
		case !errors.Is(err, unix.ENOTEMPTY) || r.done == before:
			return err
		case time.Now().After(r.until):
			return errors.New("somebody adds to it all the time")
		}
	}
}

// empty removes what is in the open folder fd.
func (r *remover) empty(fd, depth int) error {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(again), "")
	defer f.Close()
	const atOnce = 256
	for time.Now().Before(r.until) {
		names, err := f.Readdirnames(atOnce)
		for _, name := range names {
			if err := r.entry(fd, name, depth); err != nil {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			return nil
		}
	}
	return nil
}

// entry removes what has a name in dir, or lifts it to the top.
func (r *remover) entry(dir int, name string, depth int) error {
	switch err := unix.Unlinkat(dir, name, 0); {
	case err == nil || errors.Is(err, unix.ENOENT):
		r.done++
		return nil
	case !errors.Is(err, unix.EISDIR):
		return err
	case depth < maxDepth:
		return r.folder(dir, name, depth+1)
	}
	fd, err := openFolder(dir, name) // a folder that its owner may not write to cannot change its place
	if err != nil {
		return err
	}
	unix.Close(fd)
	for {
		r.moved++
		err := unix.Renameat2(dir, name, r.top, "."+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) { // the process may have made one of that name
			r.done++
			return err
		}
	}
}

// openFolder opens a folder, no link to one, and gives its owner all rights to it: to
// the very folder that is open, not to what has its name by then.
func openFolder(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&0o700 != 0o700 {
		_ = unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700) // if it fails, so does what needs it
	}
	return fd, nil
}
