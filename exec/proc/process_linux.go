package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxAlive bounds Result.Alive.
const maxAlive = 64

// bootID names this boot of the machine.
var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// Identify returns the identity of the process that has pid now.
func Identify(pid int) (Process, error) {
	boot, err := bootID()
	if err != nil {
		return Process{}, fmt.Errorf("which boot of the machine this is: %w", err)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	s, ok := parseStat(pid, b)
	if !ok {
		return Process{}, fmt.Errorf("process %d: its stat is %q", pid, b)
	}
	return s.identity(boot), nil
}

// Lives reports whether p has not ended, or this cannot be told. One that nobody has
// reaped yet has ended.
func (p Process) Lives() bool {
	boot, err := bootID()
	if err != nil {
		return true
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	s, ok := parseStat(p.PID, b)
	return !ok || s.state != 'Z' && s.state != 'X' && s.identity(boot) == p
}

func (s stat) identity(boot string) Process {
	return Process{s.pid, strconv.FormatUint(s.start, 10) + "@" + boot}
}

// identities are those of the processes of all that have not ended.
func identities(all []stat) (alive []Process) {
	boot, err := bootID()
	if err != nil {
		return nil
	}
	for _, s := range all {
		if s.state != 'Z' && len(alive) < maxAlive {
			alive = append(alive, s.identity(boot))
		}
	}
	return alive
}
