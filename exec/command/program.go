package command

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"inband/ops"
)

// program is what a run executes, as it was when it was looked at: the file that the op
// names, behind it the interpreter if that is a script, and so on. The last one is what
// the kernel loads.
type program struct {
	files  []programFile
	sha256 string // of the first, in hex
}

// programFile is one file of a program.
type programFile struct {
	path string // as it was named
	real string // without links
	id   identity
}

// maxScripts is how deep the kernel follows scripts.
const maxScripts = 5

// examine looks at the program at path and, of a script, at its interpreter, as
// openProgram does, and takes the digest of its file. A file that is to have another digest
// than pin is an error; "" is none.
//
// What was found is remembered for a program that is no script and has been left alone:
// as long as the very same file is there, with its owner, mode and content, it does not
// matter who could have put another in its place.
func (e *executor) examine(path, pin string) (*program, error) {
	e.known.mu.Lock()
	known := e.known.program
	e.known.mu.Unlock()
	if known != nil && known.files[0].path == path {
		if info, err := os.Stat(path); err == nil && identify(info) == known.files[0].id {
			return known, nil
		}
	}
	began := time.Now()
	p, err := e.examineAnew(path, pin)
	if err == nil && len(p.files) == 1 && p.files[0].id.changed().Before(began.Add(-settledAfter)) {
		e.known.mu.Lock()
		e.known.program = p
		e.known.mu.Unlock()
	}
	return p, err
}

// knownProgram is what an examination found.
type knownProgram struct {
	mu      sync.Mutex
	program *program
}

func (e *executor) examineAnew(path, pin string) (*program, error) {
	p := new(program)
	for next := path; next != ""; {
		if len(p.files) > maxScripts {
			return nil, fmt.Errorf("program %s: a script of a script, more than %d deep", path, maxScripts)
		}
		f, info, err := openProgram(next)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, programFile{next, f.Name(), identify(info)})
		if p.sha256 == "" {
			if p.sha256, err = e.digests.of(f, info); err != nil {
				f.Close()
				return nil, fmt.Errorf("program %s: %w", path, err)
			}
			if pin != "" && p.sha256 != pin {
				f.Close()
				return nil, fmt.Errorf("program %s: its SHA-256 is %s; the op file wants %s", path, p.sha256, pin)
			}
		}
		next, err = interpreter(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("program %s: %w", path, err)
		}
	}
	return p, nil
}

// started says why the process pid, which has been loaded and has not begun, is not p.
func (p *program) started(pid int) error {
	last := len(p.files) - 1
	// A script is opened by its interpreter, later than this. That nobody but root and
	// the gateway's user can replace it is what holds then.
	for i, f := range p.files {
		at := f.real
		if i == last {
			at = fmt.Sprintf("/proc/%d/exe", pid) // while it runs nobody can write to it
		}
		info, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("look again at the program %s: %w", f.path, err)
		}
		if identify(info) != f.id {
			return fmt.Errorf("the program %s was replaced or changed while it was started", f.path)
		}
	}
	return nil
}

// interpreter returns what the first line of a script names, "" for what is no script.
func interpreter(f *os.File) (string, error) {
	// What the kernel reads (BINPRM_BUF_SIZE).
	line, _, err := bufio.NewReaderSize(io.NewSectionReader(f, 0, 256), 256).ReadLine()
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	script, ok := bytes.CutPrefix(line, []byte("#!"))
	words := bytes.Fields(script)
	if !ok || len(words) == 0 {
		return "", nil
	}
	return string(words[0]), nil
}

// Usable says why a call of what x runs would not be started now, nil if it would or if
// x is none of Bind's. It costs no more than a look at the program's file as long as that
// is left alone.
func Usable(x ops.Executor) error {
	if e, ok := x.(*executor); ok {
		return e.problem()
	}
	return nil
}

// openProgram opens the file behind path and checks what was opened: it must be an
// executable that belongs to root or to the gateway's user and that nobody else may write
// to; neither may anybody else be able to put another in its place, in any folder on the
// way to it. The error is an fs.ErrNotExist when there is no such program.
func openProgram(path string) (*os.File, fs.FileInfo, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, nil, fmt.Errorf("program %q: not a clean absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("program %s: %w", path, fs.ErrNotExist)
		}
		return nil, nil, fmt.Errorf("program %s: %w", path, err)
	}
	f, info, err := openRegular(real)
	if err == nil {
		err = trusted(path, real, info)
		if err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("program %s: %w", path, err)
	}
	return f, info, nil
}

// openRegular opens a regular file without waiting for anything.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// trusted says why what is open, which path leads to and real is, must not be started.
func trusted(path, real string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not executable", real)
	}
	if why := foreign(info); why != "" {
		return fmt.Errorf("%s: %s", real, why)
	}
	return onTheWay(path)
}

// onTheWay says who else could put another file in the place of path: each folder on the
// way to it, and each link, must be ours.
func onTheWay(path string) error {
	at, links := "/", 0
	for rest := path; ; {
		info, err := os.Lstat(at)
		if err != nil {
			return fmt.Errorf("folder %w", err)
		}
		if why := foreign(info); why != "" {
			return fmt.Errorf("folder %s: %s", at, why)
		}
		name, tail, more := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		next := filepath.Join(at, name) // also for "..", since at holds no link
		if info, err = os.Lstat(next); err != nil {
			return fmt.Errorf("look at %w", err)
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return fmt.Errorf("%s: too many links", path)
			}
			if uid, _, ok := owner(info); !ok || uid != 0 && uid != os.Geteuid() {
				return fmt.Errorf("the link %s: it belongs to user %d, neither root nor the gateway's", next, uid)
			}
			target, err := os.Readlink(next)
			if err != nil {
				return fmt.Errorf("link %w", err)
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = target + "/" + tail
		case !info.IsDir() || !more && tail == "":
			return nil
		default:
			at, rest = next, tail
		}
	}
}

// maxLinks is how many links the kernel follows on the way to one file.
const maxLinks = 40

// foreign says whether somebody other than root and the gateway's user owns or
// may change what info describes.
func foreign(info fs.FileInfo) string {
	uid, gid, ok := owner(info)
	if !ok {
		return "its owner cannot be told"
	}
	mode := info.Mode()
	switch {
	case uid != 0 && uid != os.Geteuid():
		return fmt.Sprintf("it belongs to user %d, neither root nor the gateway's", uid)
	case mode.IsDir() && mode&fs.ModeSticky != 0:
		return "" // others may add to it, but not replace what is ours
	case mode.Perm()&0o002 != 0:
		return "anybody may write to it"
	case mode.Perm()&0o020 != 0 && gid != 0 && gid != os.Getegid():
		return fmt.Sprintf("group %d may write to it", gid)
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
	if why := ops.Dispatches(argv, op.Params); why != "" {
		return fmt.Errorf("program %s: %s, and the caller supplies a word of it", op.Command.Argv[0].Word, why)
	}
	return nil
}

// digests remembers the SHA-256 of files as long as these stay the same.
type digests struct {
	mu   sync.Mutex
	seen map[identity]string
}

// settledAfter is how long a file must have been left alone for its digest to be
// remembered: the clock of a filesystem does not tell two changes at once apart.
const settledAfter = 2 * time.Second

// of returns the digest of a regular file in hex. It is remembered only for a file that
// is what info says before and after it was read.
func (d *digests) of(f *os.File, info fs.FileInfo) (string, error) {
	id := identify(info)
	d.mu.Lock()
	sum := d.seen[id]
	d.mu.Unlock()
	if sum != "" {
		return sum, nil
	}
	read := time.Now()
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, info.Size())); err != nil {
		return "", err
	}
	sum = hex.EncodeToString(h.Sum(nil))
	after, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case identify(after) != id:
		return "", errors.New("it was changed while it was read")
	case id.changed().Before(read.Add(-settledAfter)):
		d.mu.Lock()
		defer d.mu.Unlock()
		const most = 64 // more than an op has files, unless they change all the time
		if d.seen == nil || len(d.seen) >= most {
			d.seen = map[identity]string{}
		}
		d.seen[id] = sum
	}
	return sum, nil
}
