//go:build failpoint

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether this binary was built with the tag failpoint.
const Enabled = true

var (
	armed, countdown = arm(os.Getenv("INBAND_FAILPOINT"))
	remaining        atomic.Int64
)

func init() { remaining.Store(countdown) }

func arm(s string) (string, int64) {
	name, count, found := strings.Cut(s, ":")
	if !found {
		return name, 1
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		panic("INBAND_FAILPOINT: want NAME or NAME:N with N at least 1, got " + strconv.Quote(s))
	}
	return name, n
}

// Here kills the process with SIGKILL when name is the armed mark and has been
// reached the armed number of times.
func Here(name string) {
	if name != armed || remaining.Add(-1) != 0 {
		return
	}
	// Kill does not return before the signal is delivered to this process, but
	// other threads may run a little longer: block this one for good.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
