package proc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is also the program that the tests run: with PROC_HELPER set
// it does what that says.
func TestMain(m *testing.M) {
	Init(initHooks)
	if mode := os.Getenv("PROC_HELPER"); mode != "" {
		helper(mode, os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}

// helperEnv is the environment for a helper. A program built with the race
// detector sleeps a second before it exits unless told otherwise.
func helperEnv(mode string) []string {
	return []string{"PROC_HELPER=" + mode, "GORACE=atexit_sleep_ms=0"}
}

// report is what the helper "report" says of its own circumstances.
type report struct {
	Args, Env, Fds     []string
	Dir, Stdin, Status string
	DirMode            string
	Umask, SID, PID    int
	Terminal           bool
}

func helper(mode string, args []string) {
	switch mode {
	case "report":
		r := report{Args: args, Env: os.Environ(), PID: os.Getpid()}
		r.Dir, _ = os.Getwd()
		if fi, err := os.Stat("."); err == nil {
			r.DirMode = fi.Mode().Perm().String()
		}
		for fd := range 256 {
			// The runtime opens descriptors of its own (epoll, eventfd).
			to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/fs/cgroup") {
				r.Fds = append(r.Fds, fmt.Sprintf("%d %s", fd, to))
			}
		}
		r.Umask = syscall.Umask(0)
		if sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, 0, 0, 0); errno == 0 {
			r.SID = int(sid)
		}
		if f, err := os.Open("/dev/tty"); err == nil {
			r.Terminal = true
			f.Close()
		}
		b, _ := os.ReadFile("/proc/self/status")
		r.Status = string(b)
		in := make([]byte, 1<<20)
		for n := 0; ; {
			k, err := os.Stdin.Read(in[n:])
			n += k
			if err != nil {
				r.Stdin = string(in[:n])
				break
			}
		}
		json.NewEncoder(os.Stdout).Encode(r)
	case "write": // write OUT ERR: that many bytes to each stream
		for i, f := range []*os.File{os.Stdout, os.Stderr} {
			n, _ := strconv.ParseInt(args[i], 10, 64)
			block := []byte(strings.Repeat("0123456789abcdef", 4096))
			for n > 0 {
				k, err := f.Write(block[:min(n, int64(len(block)))])
				if err != nil {
					os.Exit(9)
				}
				n -= int64(k)
			}
		}
	case "exit":
		n, _ := strconv.Atoi(args[0])
		os.Exit(n)
	case "kill":
		n, _ := strconv.Atoi(args[0])
		syscall.Kill(os.Getpid(), syscall.Signal(n))
		select {}
	case "signal": // signal PID: try to reach it
		n, _ := strconv.Atoi(args[0])
		fmt.Print(syscall.Kill(n, 0))
	case "stay": // until killed
		fmt.Println("staying")
		time.Sleep(time.Hour)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGPIPE) // the gateway that reads may have been killed
		fmt.Println("staying")
		time.Sleep(time.Hour)
	case "locked": // leave a folder behind that cannot be emptied without rights
		os.MkdirAll("a/b", 0o700)
		os.WriteFile("a/b/f", nil, 0o600)
		os.Chmod("a/b", 0)
	case "family":
		// family HOW THEN: start a grandchild, write its pid, then stay or exit.
		//   child     in the session
		//   setsid    in its own session, this process its parent
		//   orphan    in its own session, its parent gone
		//   hidden    as orphan, and away from the folder and the output
		how, then := args[0], args[1]
		writePID(startRelative(how))
		if then == "stay" {
			time.Sleep(time.Hour)
		}
	case "beside": // leave a process beside this one, not below it
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, syscall.CLONE_PARENT|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			panic(errno)
		}
		for pid == 0 { // no goroutines here: this is one thread of a runtime
			syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
		writePID(int(pid))
	case "between": // the process between an orphan and its grandparent
		os.Stderr.WriteString(strconv.Itoa(startRelative(args[0])))
	case "enclose": // enclose NAME: as a gateway of that name, start and end, and print what it met
		e := encloseHere(args[0])
		left := *e
		err := e.Close()
		json.NewEncoder(os.Stdout).Encode(enclosing{left.Cgroup, left.Ended, left.Survivors, fmt.Sprint(left.Why), fmt.Sprint(err)})
	case "daemon": // daemon HELPER ARG...: run it as the gateway would, then print its result
		self, _ := os.Executable()
		if name := os.Getenv("ENCLOSE"); name != "" {
			encloseHere(name)
		}
		res, err := Run(testContext, Spec{Argv: append([]string{self}, args[1:]...), Env: append(helperEnv(args[0]), "PIDFILE="+os.Getenv("PIDFILE")),
			Timeout: time.Hour, OutputMax: 100})
		fmt.Println(res, err)
	case "inside": // inside FOLDER SCRIPT
		insideHelper(args)
	case "pidfile":
		writePID(os.Getpid())
		time.Sleep(time.Hour)
	default:
		panic(mode)
	}
}

// enclosing is what a gateway met when it enclosed itself.
type enclosing struct {
	Cgroup     string
	Ended      []string
	Survivors  int
	Why, Close string // the errors
}

func encloseHere(name string) *Enclosure {
	noCgroup = os.Getenv("NOCGROUP") != ""
	e, err := Enclose(name)
	if err != nil {
		panic(err)
	}
	return e
}

func writePID(pid int) {
	file := os.Getenv("PIDFILE")
	os.WriteFile(file+".part", []byte(strconv.Itoa(pid)), 0o600)
	os.Rename(file+".part", file)
}

// startRelative starts a process that stays, related to this one as how says.
func startRelative(how string) int {
	self, _ := os.Executable()
	env := helperEnv("stubborn")
	null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	files := []uintptr{0, 1, 2}
	dir := ""
	setsid := true
	switch how {
	case "child":
		setsid = false
	case "setsid", "orphan-now":
	case "hidden-now":
		dir = "/"
		files = []uintptr{null.Fd(), null.Fd(), null.Fd()}
	case "orphan", "hidden":
		// Through a process that exits at once and says the pid on a pipe.
		r, w, _ := os.Pipe()
		pid, err := syscall.ForkExec(self, []string{self, how + "-now"}, &syscall.ProcAttr{Env: helperEnv("between"),
			Files: []uintptr{0, 1, w.Fd()}})
		if err != nil {
			panic(err)
		}
		w.Close()
		b := make([]byte, 20)
		n, _ := r.Read(b)
		var ws syscall.WaitStatus
		syscall.Wait4(pid, &ws, 0, nil)
		grand, _ := strconv.Atoi(string(b[:n]))
		return grand
	}
	if how == "orphan-now" { // its stderr is the pipe above; give it the output
		files[2] = 1
	}
	pid, err := syscall.ForkExec(self, []string{self}, &syscall.ProcAttr{Env: env, Dir: dir, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: setsid}})
	if err != nil {
		panic(err)
	}
	return pid
}
