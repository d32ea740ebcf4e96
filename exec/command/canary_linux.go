package command

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"inband/exec/sandbox"
)

// namespaceLinks tell which namespaces a process is in, by their names in a policy.
var namespaceLinks = map[string]string{"pid": "/proc/self/ns/pid", "ipc": "/proc/self/ns/ipc", "mount": "/proc/self/ns/mnt",
	"net": "/proc/self/ns/net", "user": "/proc/self/ns/user"}

// outside tells in which namespaces this process is.
func outside(names []string) (map[string]string, error) {
	all := map[string]string{}
	for _, name := range names {
		link, err := os.Readlink(namespaceLinks[name])
		if err != nil {
			return nil, fmt.Errorf("which %s namespace the gateway is in: %w", name, err)
		}
		all[name] = link
	}
	return all, nil
}

// try does what is forbidden, one thing a layer at least, and returns what it could do.
func (a aim) try() (could []string) {
	did := func(what string, err error) {
		if err == nil {
			could = append(could, what)
		}
	}
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	switch err := open("mine", unix.O_CREAT|unix.O_RDWR); {
	case !a.Folder:
		did("write to its private folder", err)
	case err != nil:
		could = append(could, fmt.Sprintf("not write to its private folder (%v)", err))
	}
	did("read a file", open(a.File, unix.O_RDONLY))
	did("write a file", open(a.File, unix.O_WRONLY))
	did("make a file", open(a.File+".new", unix.O_CREAT|unix.O_WRONLY))
	did("signal the gateway", unix.Kill(a.PID, 0))
	did("make a namespace", unix.Unshare(unix.CLONE_FS))
	if !a.Metadata {
		did("change the mode of a file", unix.Chmod(".", 0o700))
	}
	family := unix.AF_INET
	if a.Network == sandbox.AnyNetwork {
		family = unix.AF_UNIX
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	did("make a socket", err)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		could = append(could, fmt.Sprintf("not tell its capabilities (%v)", err))
	}
	if have[0].Permitted|have[1].Permitted != 0 {
		could = append(could, "keep capabilities")
	}
	if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || n != 1 {
		could = append(could, "gain privileges")
	}
	for _, id := range []struct {
		what string
		get  func() (r, e, s int)
		want uint32
	}{{"user", unix.Getresuid, a.RunAs.UID}, {"group", unix.Getresgid, a.RunAs.GID}} {
		if r, e, s := id.get(); uint32(r) != id.want || uint32(e) != id.want || uint32(s) != id.want {
			could = append(could, fmt.Sprintf("be the %s %d, %d, %d", id.what, r, e, s))
		}
	}
	if groups, err := unix.Getgroups(); err != nil || a.RunAs.GroupsCleared && len(groups) > 0 {
		could = append(could, fmt.Sprintf("keep the groups %v", groups))
	}
	for name, theirs := range a.Namespaces {
		if own, err := os.Readlink(namespaceLinks[name]); err != nil || own == theirs {
			could = append(could, fmt.Sprintf("be in the gateway's namespace %s (%v)", name, err))
		}
	}
	if len(a.Namespaces) > 0 {
		if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
			could = append(could, fmt.Sprintf("see a /proc in which it is %q (%v)", self, err))
		}
	}
	for _, l := range a.Limits {
		if l.Exceeded() {
			could = append(could, fmt.Sprintf("exceed the limit %s", l.Name))
		}
	}
	return could
}
