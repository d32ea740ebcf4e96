package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/ops"
)

// nobody is who the ops of a root gateway run as, unless they name somebody.
const nobody = "nobody"

// overflow is the id that nobody has where no nobody is known, which is that of the
// kernel for ids that it cannot show.
const overflow = 65534

// user is who op runs as, nil for the gateway's own user. The error says why it may not
// or cannot.
func (c *Config) user(op *ops.Op) (*sandbox.User, error) {
	name := op.Command.RunAs
	if name == "" {
		if os.Geteuid() != 0 {
			return nil, nil
		}
		name = nobody
	}
	u, err := lookupUser(name)
	if err != nil {
		return nil, &sandbox.MissingError{Layers: []string{sandbox.LayerRunAs}, Err: err}
	}
	switch {
	case u.UID == 0 && os.Geteuid() == 0 && !c.AllowRoot:
		return nil, &sandbox.MissingError{Layers: []string{sandbox.LayerRunAs},
			Err: errors.New("run_as: the gateway's configuration does not let ops run as root")}
	case u.UID == 0 && op.Command.FS.Metadata:
		return nil, errors.New("fs.metadata: no path bounds it, and root owns the whole machine: name another user in run_as")
	case int(u.UID) == os.Geteuid() && int(u.GID) == os.Getegid():
		return nil, nil
	}
	return u, nil
}

// LookupUser returns the user of the system that has a name.
func LookupUser(name string) (*sandbox.User, error) { return lookupUser(name) }

func lookupUser(name string) (*sandbox.User, error) {
	found, err := user.Lookup(name)
	if err != nil {
		if name == nobody {
			return &sandbox.User{Name: nobody, UID: overflow, GID: overflow}, nil
		}
		return nil, fmt.Errorf("run_as: %w", err)
	}
	uid, badUID := strconv.ParseUint(found.Uid, 10, 32)
	gid, badGID := strconv.ParseUint(found.Gid, 10, 32)
	if err := errors.Join(badUID, badGID); err != nil {
		return nil, fmt.Errorf("run_as: user %s: %w", name, err)
	}
	return &sandbox.User{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
}

// owned is whose the private folder of a run is.
func owned(u *sandbox.User) *proc.Owner {
	if u == nil {
		return nil
	}
	return &proc.Owner{UID: u.UID, GID: u.GID}
}

// shared is where private folders are made for users who cannot get to $TMPDIR.
const shared = "/tmp"

// scratch is where the private folders of op are made, "" for the usual place. That may
// be in memory, which no limit counts, so it is only for an op that can make nothing in
// its folder. A root gateway may well have a folder for temporary files that nobody else
// can pass.
func scratch(op *ops.Op, u *sandbox.User) string {
	if passes, err := Passes(u, os.TempDir()); err == nil && !passes {
		return shared
	}
	if size := op.Command.Limits.FSize; size != nil && *size == 0 && !op.Command.Unconfined {
		return ""
	}
	return os.TempDir()
}

// Passes reports whether u, or the gateway's user if that is nil, may look up names in
// folder. The error says that it cannot be found out.
func Passes(u *sandbox.User, folder string) (passes bool, err error) {
	err = asUser(u, func() {
		_, err := os.Stat(filepath.Join(folder, "inband-nothing"))
		passes = !errors.Is(err, fs.ErrPermission)
	})
	return passes, err
}

// sandbox makes what confines the program.
func (e *executor) sandbox() (confiner, error) {
	if !e.op.Command.Unconfined {
		return e.confine(policy(&e.op, e.user))
	}
	if !slices.Contains(e.config.AllowUnconfined, e.op.Name) {
		return nil, errors.New("sandbox: none: the gateway's configuration does not let it run without a sandbox")
	}
	box, err := unconfine(policy(&e.op, e.user), e.user != nil)
	if err != nil && e.user == nil && e.op.Command.Limits == (ops.Limits{}) {
		return unconfine(sandbox.Policy{}, false) // there is nothing that it takes a sandbox for
	}
	return box, err
}
