package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BenchmarkBars prints two bars of the design in the form that make bench promises: how
// much the memory of this process grows, at its highest, under 2 GB of output of which
// 1 MiB is kept, and how long after a run's deadline its grandchild of another session
// is gone. It asserts nothing about either.
func BenchmarkBars(b *testing.B) {
	mustRun(b, self(b, "exit", "0")) // what is made once
	spec := self(b, "write", "2000000000", "0")
	spec.OutputMax, spec.Timeout = 1<<20, 10*time.Minute
	// The highest resident memory is made the present one (proc_pid_clear_refs(5)).
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		fmt.Println("output-memory-MiB is for root to measure:", err) // Run has closed /proc/self
	} else {
		before := peakMiB(b)
		if res := mustRun(b, spec); res.Stdout.Total() != 2_000_000_000 {
			b.Fatalf("%d bytes", res.Stdout.Total())
		}
		printBar("output-memory-MiB", peakMiB(b)-before, 16)
	}

	const deadline = 200 * time.Millisecond
	spec = self(b, "family", "setsid", "stay")
	pidfile := filepath.Join(b.TempDir(), "pid")
	spec.Env = append(spec.Env, "PIDFILE="+pidfile)
	spec.Timeout, spec.Grace = deadline, 50*time.Millisecond
	start := time.Now()
	res := mustRun(b, spec)
	after := time.Since(start) - deadline
	var pid int
	if raw, err := os.ReadFile(pidfile); err != nil {
		b.Fatal(err)
	} else if _, err := fmt.Sscan(string(raw), &pid); err != nil || alive(pid) || res.Stopped != Deadline {
		b.Fatalf("the grandchild %d lives, or the run was not stopped: %+v, %v", pid, res, err)
	}
	printBar("setsid-grandchild-gone-s", after.Seconds(), 2)
	for b.Loop() { // the figures above are the benchmark
	}
}

func printBar(name string, figure, most float64) {
	verdict := "ok"
	if figure > most {
		verdict = "short"
	}
	fmt.Printf("bar %s %.2f <=%g %s\n", name, figure, most, verdict)
}

// peakMiB is the highest resident memory of this process.
func peakMiB(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kB float64
			if _, err := fmt.Sscan(rest, &kB); err != nil {
				b.Fatal(err)
			}
			return kB / 1024
		}
	}
	b.Fatal("no VmHWM")
	return 0
}
