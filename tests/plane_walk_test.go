package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// walked is what differs from one walk to another; a line is compared by the parts between.
var walked = regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d|c-[0-9a-z]{26}|\(devel\)`)

// The walk of docs/plane.md is made as it stands, over a gateway, a worker and a verifier
// that are real processes; only the port is another one, and nobody types that fast.
func TestPlaneWalk(t *testing.T) {
	walk := section(t, doc(t, "docs/plane.md"), "## From box worker to a verified result")
	var script strings.Builder
	script.WriteString("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n")
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(walk, -1) {
		script.WriteString(block[1])
	}
	dir := t.TempDir()
	run := script.String()
	serving := `$(grep -o 'https://[0-9.:]*' state/gateway.json)`
	changes := []struct{ from, to string }{
		{`go build -o bin/box ./cmd/box`, `:`},
		{`bin/box serve`, `bin/box serve --listen 127.0.0.1:0`},
		{`https://127\.0\.0\.1:8787`, strings.ReplaceAll(serving, "$", "$$")},
		{`(?m)^bin/box workers$`, `until [ "$$(bin/box workers --jsonl | grep -c '"state":"ready"')" = 2 ]; do sleep 0.1; done
bin/box workers`},
		{`bin/box exec swarm\.spawn`, `before=$$(bin/box delegations --limit 1 --jsonl)
bin/box exec swarm.spawn`},
		{`(?m)^delegation=`, `until [ "$$(bin/box delegations --limit 1 --jsonl | cut -c -50)" != "$$(echo "$$before" | cut -c -50)" ]; do sleep 0.1; done
delegation=`},
	}
	if os.Geteuid() == 0 {
		scratch, err := os.MkdirTemp("", "inband-walk-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(scratch) })
		if err := os.Chmod(scratch, 0o711); err != nil {
			t.Fatal(err)
		}
		changes = append(changes, struct{ from, to string }{`bin/box (worker|verifier) `, `bin/box $1 --scratch ` + scratch + ` `})
	}
	for _, change := range changes {
		from := regexp.MustCompile(change.from)
		if !from.MatchString(run) {
			t.Fatalf("the walk has no %s", change.from)
		}
		run = from.ReplaceAllString(run, change.to)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(build(t, ""), filepath.Join(dir, "bin", "box")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", run)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "INBAND_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		var logs strings.Builder
		for _, name := range []string{"state/serve.log", "builder/log", "judge/log"} {
			b, _ := os.ReadFile(filepath.Join(dir, name))
			logs.WriteString("\n" + name + ":\n")
			logs.Write(b)
		}
		t.Fatalf("%v\n%s\n%s%s", err, run, out, logs.String())
	}
	// What comes by chance of the clock between two looks is no part of what must come.
	passing := regexp.MustCompile(`RUNNING at|LEASED at|waits for`)
	shown := 0
	for _, block := range regexp.MustCompile("(?ms)^~~~text\n(.*?)^~~~$").FindAllStringSubmatch(walk, -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimRight(line, "\n")
			if passing.MatchString(line) {
				continue
			}
			for _, part := range walked.Split(line, -1) {
				if part = strings.TrimSpace(part); part == "" {
					continue
				}
				if shown++; !strings.Contains(string(out), part) {
					t.Errorf("the walk shows %q, of the line %q, which did not come:\n%s", part, line, out)
				}
			}
		}
	}
	if shown == 0 {
		t.Error("the walk shows nothing of what comes")
	}
}
