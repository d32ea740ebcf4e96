package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// echoFile is an op file with one command op that does nothing to speak of.
const echoFile = `provider: bench
ops:
  bench.echo:
    summary: Say hello
    side_effecting: false
    argv: [/usr/bin/echo, hello]
`

// BenchmarkBarsExec measures the requests a second of /exec for a command op, which is
// authenticated, decided, recorded and sandboxed, against those of a server that runs
// the same command behind net/http and does none of it. Both are processes of their
// own, with the same certificate, asked by the same eight clients in turns. No bar is
// set for it: the line says what all of that costs.
func BenchmarkBarsExec(b *testing.B) {
	box, state := build(b, ""), filepath.Join(b.TempDir(), "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		b.Fatalf("init: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(state, "ops.d", "bench.yaml"), []byte(echoFile), 0o600); err != nil {
		b.Fatal(err)
	}
	g := serveAlive(b, box, state)
	peer := startPeer(b, filepath.Join(state, "tls"))
	request := func(url string) error {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+"/exec", strings.NewReader(`{"op":"bench.echo"}`))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+g.token)
		req.Header.Set("Content-Type", "application/json")
		res, err := g.client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err == nil && (res.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"stdout":"hello\n"`))) {
			err = fmt.Errorf("%s answered %d %.300s", url, res.StatusCode, answer)
		}
		return err
	}
	const rounds, clients, each = 12, 8, 15
	load := func(url string) time.Duration {
		began := time.Now()
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				for range each {
					if err := request(url); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		return time.Since(began)
	}
	var ours, theirs time.Duration
	for r := range rounds + 1 {
		o, p := load(g.url), load(peer)
		if r > 0 { // the first warms up
			ours, theirs = ours+o, theirs+p
		}
	}
	if b.Failed() {
		return
	}
	rate := func(d time.Duration) float64 { return rounds * clients * each / d.Seconds() }
	fmt.Printf("exec of a command op: %.0f requests/s, the same command behind plain net/http %.0f, ratio %.2f (%d clients, %d requests each in turns)\n",
		rate(ours), rate(theirs), rate(ours)/rate(theirs), clients, rounds*clients*each)
	b.ReportMetric(rate(ours)/rate(theirs), "x-net/http")
	for b.Loop() { // the figures above are the benchmark
		_ = ours
	}
}

// startPeer builds and starts the peer, and returns where it listens.
func startPeer(b *testing.B, certificate string) string {
	b.Helper()
	program := filepath.Join(b.TempDir(), "peer")
	if out, err := exec.Command("go", "build", "-o", program, "./testdata/peer").CombinedOutput(); err != nil {
		b.Fatalf("build the peer: %v\n%s", err, out)
	}
	cmd := exec.Command(program, certificate)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(url)
}
