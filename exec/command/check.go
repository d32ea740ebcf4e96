package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"inband/ops"
)

// Check says why the program at path must not be started, nil if it may. The
// file behind path must be an executable that belongs to root or to the gateway's
// user and that nobody else may write to; neither may anybody else be able to put
// another in its place, in any folder on the way to it.
//
// The error is an fs.ErrNotExist when there is no such program.
func Check(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("program %q: not a clean absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("program %s: %w", path, fs.ErrNotExist)
		}
		return fmt.Errorf("program %s: %w", path, err)
	}
	info, err := os.Stat(real)
	switch {
	case err != nil:
		return fmt.Errorf("program %s: %w", path, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("program %s: not a regular file", real)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("program %s: not executable", real)
	}
	if why := foreign(info); why != "" {
		return fmt.Errorf("program %s: %s", real, why)
	}
	for _, p := range []string{path, real} {
		for dir := filepath.Dir(p); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				return fmt.Errorf("program %s: folder %w", path, err)
			}
			if why := foreign(info); why != "" {
				return fmt.Errorf("program %s: folder %s: %s", path, dir, why)
			}
			if dir == "/" {
				break
			}
		}
		if real == path {
			break
		}
	}
	return nil
}

// foreign says whether somebody other than root and the gateway's user owns or
// may change what info describes.
func foreign(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "its owner cannot be told"
	}
	mode := info.Mode()
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("it belongs to user %d, neither root nor the gateway's", st.Uid)
	case mode.IsDir() && mode&fs.ModeSticky != 0:
		return "" // others may add to it, but not replace what is ours
	case mode.Perm()&0o002 != 0:
		return "anybody may write to it"
	case mode.Perm()&0o020 != 0 && !mode.IsDir() && st.Gid != 0 && int(st.Gid) != os.Getegid():
		return fmt.Sprintf("group %d may write to it", st.Gid)
	}
	return ""
}

// multicall are programs that many names link to and that act by the name they
// are started under.
var multicall = map[string]bool{"busybox": true, "toybox": true, "coreutils": true}

// disguised says whether the program goes by a harmless name and is one that
// runs what its words say, while the caller supplies some of these.
func disguised(op *ops.Op) error {
	supplied := false
	for _, a := range op.Command.Argv {
		supplied = supplied || a.Param != ""
	}
	real, err := filepath.EvalSymlinks(op.Command.Argv[0].Word)
	if !supplied || err != nil || multicall[filepath.Base(real)] {
		return nil
	}
	argv := append([]ops.Arg{{Word: real}}, op.Command.Argv[1:]...)
	if why := ops.Dispatches(argv); why != "" {
		return fmt.Errorf("program %s: %s, and the caller supplies a word of it", op.Command.Argv[0].Word, why)
	}
	return nil
}
