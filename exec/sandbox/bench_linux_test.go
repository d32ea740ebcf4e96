package sandbox_test

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"inband/exec/proc"
	"inband/exec/sandbox"
)

// BenchmarkBars alternates between a process in its sandbox and the same command, with
// the same environment, by os/exec without one, both with their output captured, and
// prints how their rates compare, in the form that make bench promises. It asserts
// nothing about time.
func BenchmarkBars(b *testing.B) {
	// In turns of several, so that what is made ahead of a run is paid for in our turn.
	const rounds, each = 20, 25
	for _, c := range []struct {
		name string
		user *sandbox.User
	}{{"sandboxed-process", nil}, {"sandboxed-process-run-as", &nobody}} {
		s, err := sandbox.New(sandbox.Policy{Program: "/bin/echo", Reads: true, User: c.user})
		if err != nil {
			fmt.Printf("%s: %v\n", c.name, err)
			continue
		}
		spec := proc.Spec{Argv: []string{"/bin/echo", "hello"}, Env: []string{"LANG=C.UTF-8"}, Timeout: time.Minute, OutputMax: 64 << 10,
			Confine: s.Confine, Aside: s.Aside, Limit: s.Limit, Ahead: &proc.Ahead{Stamp: s.Stamp}}
		if c.user != nil {
			spec.Owner = &proc.Owner{UID: c.user.UID, GID: c.user.GID}
		}
		turn := func(f func()) time.Duration {
			start := time.Now()
			for range each {
				f()
			}
			return time.Since(start)
		}
		var ours, plain time.Duration
		var ratios []float64
		for range rounds {
			o := turn(func() {
				if res, err := proc.Run(b.Context(), spec); err != nil || res.Exit != 0 || len(res.Stdout.Head) != 6 {
					b.Fatalf("%+v, %v", res, err)
				}
			})
			p := turn(func() {
				cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...)
				cmd.Env = spec.Env // a program does much for its locale
				if out, err := cmd.Output(); err != nil || len(out) != 6 {
					b.Fatal(err)
				}
			})
			ours, plain, ratios = ours+o, plain+p, append(ratios, float64(p)/float64(o))
		}
		slices.Sort(ratios)
		ratio := ratios[rounds/2]
		verdict := "ok"
		if ratio < 0.85 {
			verdict = "short"
		}
		fmt.Printf("bar %s %.2f >=0.85 %s\n", c.name, ratio, verdict)
		fmt.Printf("%s: %d µs, by os/exec without a sandbox %d µs (median of the ratios of %d rounds of %d)\n", c.name,
			ours.Microseconds()/(rounds*each), plain.Microseconds()/(rounds*each), rounds, each)
	}
	proc.Discard()
	for b.Loop() { // the figures above are the benchmark
	}
}
