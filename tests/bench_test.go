package tests

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"inband/service/threads"
)

// BenchmarkBars measures a whole gateway, a real process over HTTPS, and prints a line
// a bar of the design. It asserts nothing about time.
func BenchmarkBars(b *testing.B) {
	box, state := build(b, ""), filepath.Join(b.TempDir(), "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		b.Fatalf("init: %v\n%s", err, out)
	}
	var starts []time.Duration
	var g *gateway
	for range 9 {
		if g != nil {
			g.kill()
		}
		begin := time.Now()
		g = serveAlive(b, box, state)
		starts = append(starts, time.Since(begin))
	}
	bar("start-to-ready-ms", ms(median(starts)), 150, false)
	bar("idle-memory-MB", residentMB(b, g.cmd.Process.Pid), 40, false)

	token := g.agent(b, "scout")
	var took []time.Duration
	for i := range 300 {
		took = append(took, roundTrip(b, g, token, i))
	}
	took = took[50:] // warm
	bar("read-directive-p50-ms", ms(median(took)), 5, false)
	fmt.Printf("read directive, reply in to result in the thread over HTTPS: p50 %.2f ms, p99 %.2f ms, %d replies\n",
		ms(median(took)), ms(took[len(took)*99/100]), len(took))
	b.ReportMetric(ms(median(took)), "p50-ms")
	for b.Loop() { // the figures above are the benchmark
		_ = took
	}
}

// roundTrip hands in a reply with one read directive, in a thread that it listens to,
// and returns the time until the event of the posted result is there.
func roundTrip(b *testing.B, g *gateway, token string, i int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var ack threads.Ack
	if err := g.as(token, http.MethodPost, "/v1/replies", map[string]string{"room": "bench", "message": fmt.Sprintf("open%d", i), "text": "-"}, &ack); err != nil {
		b.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/v1/events?thread="+ack.Thread, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := g.client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	begin := time.Now()
	if err := g.as(token, http.MethodPost, "/v1/replies", map[string]string{"thread": ack.Thread, "message": fmt.Sprintf("m%d", i), "text": `[TOOL box.exec {"action":"version"}]`}, nil); err != nil {
		b.Fatal(err)
	}
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data:"); ok && strings.Contains(data, `"thread.posted"`) && strings.Contains(data, `"result"`) {
			return time.Since(begin)
		}
	}
	b.Fatalf("the stream ended before the result: %v", lines.Err())
	return 0
}

// bar prints one line in the form that make bench promises.
func bar(name string, figure, target float64, atLeast bool) {
	verdict, sign := "ok", "<"
	short := figure >= target
	if atLeast {
		sign, short = ">=", figure < target
	}
	if short {
		verdict = "short"
	}
	fmt.Printf("bar %s %.2f %s%g %s\n", name, figure, sign, target, verdict)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// residentMB is the resident memory of a process, in MB.
func residentMB(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				b.Fatal(err)
			}
			return float64(kb) / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
