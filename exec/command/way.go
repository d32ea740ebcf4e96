package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"inband/ops"
)

// The paths of a policy are names, which are looked up at each run. Who may put something
// else in the place of what one names, on any step of the way there, would choose what a
// program reads, writes or executes. So an op is disabled where a path can be bent by
// somebody who is neither root, nor the gateway's user, nor the op's own, who may do as
// much without it; or by what another op, or the op itself, may write.

// step is a folder that a name is looked up in.
type step struct {
	dir  string // without links
	info fs.FileInfo
	name string
	what fs.FileInfo // what stands there, nil for nothing
}

// way returns the steps by which path is found, over all links, up to the first that
// leads nowhere.
func way(path string) ([]step, error) {
	const most = 255 // the kernel follows 40 links
	var steps []step
	at, rest := "/", elements(path)
	for len(rest) > 0 {
		if len(steps) == most {
			return nil, fmt.Errorf("%s: the way there does not end", path)
		}
		name := rest[0]
		if rest = rest[1:]; name == ".." {
			at = filepath.Dir(at)
			continue
		}
		info, err := os.Lstat(at)
		if err != nil {
			return nil, err
		}
		next := filepath.Join(at, name)
		what, err := os.Lstat(next)
		if errors.Is(err, fs.ErrPermission) {
			return steps, nil // who cannot look cannot open it for the program either
		}
		if err != nil {
			return append(steps, step{at, info, name, nil}), nil
		}
		steps = append(steps, step{at, info, name, what})
		if what.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(elements(target), rest...)
	}
	return steps, nil
}

// elements are those of a path.
func elements(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// bent says who, other than root, the gateway's user and uid, could put something else
// there, "" for nobody.
func (s step) bent(uid int) string {
	ours := func(info fs.FileInfo) bool {
		owner, _, ok := owner(info)
		return ok && (owner == 0 || owner == os.Geteuid() || owner == uid)
	}
	mode := s.info.Mode()
	switch {
	case !ours(s.info):
		return "the user that the folder belongs to"
	case mode.Perm()&0o002 == 0:
		return ""
	case mode&fs.ModeSticky == 0 || s.what == nil:
		return "anybody"
	case !ours(s.what):
		return "the user that " + s.name + " belongs to"
	}
	return ""
}

// open reports whether a process of uid and gid may put something else there, as far as
// owners and modes say.
func (s step) open(uid, gid int) bool {
	user, group, ok := owner(s.info)
	if !ok || user == uid {
		return true
	}
	if s.info.Mode()&fs.ModeSticky != 0 && s.what != nil {
		user, _, ok := owner(s.what)
		return !ok || user == uid
	}
	mode := s.info.Mode().Perm()
	return mode&0o002 != 0 || group == gid && mode&0o020 != 0
}

// ids are the user and the group that the program runs as.
func (e *executor) ids() (uid, gid int) {
	if e.user == nil {
		return os.Geteuid(), os.Getegid()
	}
	return int(e.user.UID), int(e.user.GID)
}

// paths are those of the op's policy.
func (e *executor) paths() []string {
	fs := e.op.Command.FS
	return slices.Concat(fs.Read, fs.Write, fs.Exec)
}

// straight says which path of e could be bent by somebody on this machine.
func (e *executor) straight() error {
	uid, _ := e.ids()
	for _, path := range e.paths() {
		steps, err := way(path)
		if err != nil {
			return fmt.Errorf("fs: %w", err)
		}
		for _, s := range steps {
			if who := s.bent(uid); who != "" {
				return fmt.Errorf("fs: %s: %s could put something else in the place of %s", path, who, filepath.Join(s.dir, s.name))
			}
		}
	}
	return nil
}

// entangled says which path of e the op other, which may be e, could bend by what it may
// write.
func (e *executor) entangled(other *executor) error {
	if len(other.op.Command.FS.Write) == 0 {
		return nil
	}
	uid, gid := other.ids()
	for _, path := range e.paths() {
		steps, err := way(path)
		if err != nil {
			return fmt.Errorf("fs: %w", err)
		}
		for _, written := range other.op.Command.FS.Write {
			if real, err := filepath.EvalSymlinks(written); err == nil {
				written = real
			}
			for _, s := range steps {
				if within(s.dir, written) && s.open(uid, gid) {
					return fmt.Errorf("fs: %s: op %s may write to %s, and could put something else in the place of %s; name the folder itself",
						path, other.op.Name, written, filepath.Join(s.dir, s.name))
				}
			}
		}
	}
	return nil
}

// within reports whether path is folder or below it.
func within(path, folder string) bool {
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
}

// disentangle disables the ops of bound that have a path which another one could bend.
func disentangle(bound []ops.Bound) (errs []error) {
	var all []*executor
	for _, b := range bound {
		if e, ok := b.Executor.(*executor); ok && e.broken == nil && !e.op.Command.Unconfined {
			all = append(all, e)
		}
	}
	broken := map[*executor]error{} // at the end, so that each is compared with all
	for _, e := range all {
		for _, other := range all {
			if err := e.entangled(other); err != nil {
				broken[e] = err
				break
			}
		}
	}
	for _, e := range all {
		if err := broken[e]; err != nil {
			e.broken = err
			errs = append(errs, fmt.Errorf("op %s is disabled: %w", e.op.Name, err))
		}
	}
	return errs
}
