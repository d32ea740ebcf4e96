package command

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"inband/exec/sandbox"
)

// asUser calls f on a thread that has the rights to files of u, without supplementary
// groups, and that ends with it; for nil it calls f as it is. An error says that f was
// not called.
func asUser(u *sandbox.User, f func()) error {
	if u == nil {
		f()
		return nil
	}
	failed := make(chan error)
	go func() { failed <- onThreadOf(u, f) }()
	return <-failed
}

// onThreadOf is asUser on a goroutine that nothing comes after.
func onThreadOf(u *sandbox.User, f func()) error {
	runtime.LockOSThread() // for good, so that nothing else runs on the thread
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread() // the main thread cannot end
		return asUser(u, f)
	}
	// Of this thread alone; the functions of package syscall would change all. Without
	// root's id for files a thread has no rights beyond its user's (capabilities(7)).
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("look at files as %s: clear the groups: %w", u.Name, errno)
	}
	if err := setFS(unix.SetfsgidRetGid, int(u.GID)); err != nil {
		return fmt.Errorf("look at files as %s: set the group: %w", u.Name, err)
	}
	if err := setFS(unix.SetfsuidRetUid, int(u.UID)); err != nil {
		return fmt.Errorf("look at files as %s: set the user: %w", u.Name, err)
	}
	f()
	return nil
}

// setFS calls setfsuid or setfsgid, which do not say that they have not worked.
func setFS(set func(int) (int, error), id int) error {
	if _, err := set(id); err != nil {
		return err
	}
	now, err := set(id) // returns the one before
	if err == nil && now != id {
		err = unix.EPERM
	}
	return err
}

// unconfined lets a program do what its user may. A user other than the gateway's has no
// capabilities.
type unconfined struct {
	box     *sandbox.Sandbox // nil where nothing is done
	another bool
}

// unconfine makes what starts a program without a sandbox. The zero policy is as the
// gateway itself; another is the policy's user, which takes what a sandbox takes.
func unconfine(p sandbox.Policy, another bool) (confiner, error) {
	if p.Program == "" {
		return unconfined{}, nil
	}
	box, err := sandbox.New(p)
	if err != nil {
		return nil, err
	}
	return unconfined{box, another}, nil
}

func (u unconfined) Confine(string) error {
	if !u.another {
		return nil
	}
	if err := u.box.RunAs(); err != nil {
		return err
	}
	return u.box.DropCapabilities()
}

func (u unconfined) Aside() error {
	if !u.another {
		return nil
	}
	return u.box.Aside()
}

func (u unconfined) Limit(pid int) error {
	if u.box == nil {
		return nil
	}
	return u.box.Limit(pid)
}

func (u unconfined) Layers() sandbox.Layers {
	layers := sandbox.Layers{NoNewPrivs: true, Scopes: []string{}, Network: sandbox.AnyNetwork, Metadata: true, Limits: []sandbox.Limit{}}
	if u.box != nil {
		all := u.box.Layers()
		layers.Limits, layers.RunAs, layers.Cgroup = all.Limits, all.RunAs, all.Cgroup
	}
	if u.another {
		layers.Capabilities = "none"
	}
	return layers
}
