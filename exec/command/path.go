package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"inband/exec/sandbox"
	"inband/ops"
)

// errEscapes says that a path leads out of its root.
var errEscapes = errors.New("it leads out of its root by a link")

// below is a root folder and what it is asked for.
type below interface {
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Close() error
}

func openRoot(path string) (below, error) {
	if path == "/" {
		return everything{}, nil
	}
	return os.OpenRoot(path)
}

// look returns what value, one of the path parameter p, names. The root may hold links
// that stay below it; what leads out of it, and what is no file or folder as p says, is
// a fault. Nothing is opened.
//
// It looks as the user u, nil for the gateway's own, so that a call reaches no file that
// its program's user could not.
func look(p *ops.Param, value string, u *sandbox.User) (info fs.FileInfo, fault *ops.Fault) {
	if err := asUser(u, func() { info, fault = lookHere(p, value) }); err != nil {
		return nil, notRun(ops.Unavailable, "parameter %s: %v; nothing ran", p.Name, err)
	}
	return info, fault
}

func lookHere(p *ops.Param, value string) (fs.FileInfo, *ops.Fault) {
	root, err := openRoot(p.Root)
	if err != nil {
		return nil, notRun(ops.Unavailable, "the root of parameter %s cannot be had: %v; nothing ran", p.Name, err)
	}
	defer root.Close()
	info, err := root.Stat(value)
	if err != nil {
		return nil, noPath(p, value, err)
	}
	return info, wrongKind(p, value, info)
}

// open opens for reading what value, one of the path parameter p, names, as look finds
// it. It waits for nobody: a pipe or a device is not opened, and if one is put there at
// the last moment it is not read. What belongs to a process is not handed over: the
// gateway would open it as itself, where the sandbox keeps the program from it. Neither
// is what stands in a folder of closed.
func open(p *ops.Param, value string, u *sandbox.User, closed []string) (f *os.File, fault *ops.Fault) {
	if err := asUser(u, func() { f, fault = openHere(p, value, closed) }); err != nil {
		return nil, notRun(ops.Unavailable, "parameter %s: %v; nothing ran", p.Name, err)
	}
	return f, fault
}

func openHere(p *ops.Param, value string, closed []string) (*os.File, *ops.Fault) {
	if _, fault := lookHere(p, value); fault != nil { // opening alone may act on a device
		return nil, fault
	}
	root, err := openRoot(p.Root)
	if err != nil {
		return nil, notRun(ops.Unavailable, "the root of parameter %s cannot be had: %v; nothing ran", p.Name, err)
	}
	defer root.Close()
	f, err := root.OpenFile(value, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, noPath(p, value, err)
	}
	var fault *ops.Fault
	if info, err := f.Stat(); err != nil {
		fault = noPath(p, value, err)
	} else if fault = wrongKind(p, value, info); fault == nil {
		if why := withheld(f, closed); why != "" {
			fault = badPath(p, value, why)
		}
	}
	if fault != nil {
		f.Close()
		return nil, fault
	}
	return f, nil
}

// noPath says why a path cannot be used. What does not exist and what may not be read
// are one fault: which of the two it is depends on the machine and not on the call.
func noPath(p *ops.Param, value string, err error) *ops.Fault {
	var errno syscall.Errno
	if !errors.As(err, &errno) { // os.Root's own
		return badPath(p, value, errEscapes.Error())
	}
	return notRun(ops.NotFound, "%s: %s %q below %s: %v; nothing ran", p.Name, kind(p), short(value), p.Root, errno).With("pointer", "/"+p.Name)
}

// badPath is the fault of a path that the op does not take.
func badPath(p *ops.Param, value, why string) *ops.Fault {
	return notRun(ops.InvalidParams, "%s: %q below %s: %s; want a %s; nothing ran", p.Name, short(value), p.Root, why, kind(p)).
		With("pointer", "/"+p.Name).With("want", "a "+kind(p)+" below "+p.Root)
}

// wrongKind is the fault of what is not of the kind that p says, nil if it is.
func wrongKind(p *ops.Param, value string, info fs.FileInfo) *ops.Fault {
	is := ""
	switch mode := info.Mode(); {
	case mode.IsRegular():
		if p.Kind == ops.KindFile {
			return nil
		}
		is = "a file"
	case mode.IsDir():
		if p.Kind == ops.KindDir {
			return nil
		}
		is = "a folder"
	case mode&fs.ModeNamedPipe != 0:
		is = "a pipe"
	case mode&fs.ModeSocket != 0:
		is = "a socket"
	case mode&fs.ModeDevice != 0:
		is = "a device"
	default:
		is = fmt.Sprintf("neither (%v)", mode.Type())
	}
	return badPath(p, value, "it is "+is)
}

func kind(p *ops.Param) string {
	if p.Kind == ops.KindDir {
		return "folder"
	}
	return "file"
}

// short bounds a path that is told to the caller.
func short(path string) string {
	const most = 100
	if len(path) > most {
		return strings.ToValidUTF8(path[:most], "") + "…"
	}
	return path
}
