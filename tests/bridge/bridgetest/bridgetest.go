// Package bridgetest starts the bridge of the tests as a process, and ends it as a power
// cut does.
package bridgetest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Secret is what a bridge shares with its gateway.
const Secret = "the secret of this bridge"

// Build compiles the bridge into dir and returns its path.
func Build(dir string) (string, error) {
	program := filepath.Join(dir, "bridge")
	if out, err := exec.Command("go", "build", "-o", program, "inband/tests/bridge").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the bridge: %w\n%s", err, out)
	}
	return program, nil
}

// Bridge is a running bridge. Its store and its addresses outlive the process.
type Bridge struct {
	URL   string // where the gateway writes to
	Store string // the file of all messages

	program, control string
	args             []string
	cmd              *exec.Cmd
}

// Start starts a bridge that tells events to a URL, with further arguments. It ends with t.
func Start(t testing.TB, program, events string, args ...string) *Bridge {
	t.Helper()
	b := &Bridge{Store: filepath.Join(t.TempDir(), "messages.jsonl"), program: program}
	b.args = append(args[:len(args):len(args)], "-secrets", Secret, "-store", b.Store, "-events", events)
	b.start(t, "127.0.0.1:0", "127.0.0.1:0")
	t.Cleanup(b.Kill)
	return b
}

func (b *Bridge) start(t testing.TB, listen, control string) {
	t.Helper()
	b.cmd = exec.Command(b.program, append([]string{"-listen", listen, "-control", control}, b.args...)...)
	b.cmd.Stderr = os.Stderr
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var at struct{ URL, Control string }
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		b.Kill()
		t.Fatalf("the bridge does not start: %v", err)
	}
	b.URL, b.control = at.URL, at.Control
}

// Kill ends the process as a power cut does.
func (b *Bridge) Kill() {
	b.cmd.Process.Signal(syscall.SIGKILL)
	b.cmd.Wait()
}

// Restart kills the process and starts it again on the same addresses.
func (b *Bridge) Restart(t testing.TB) {
	t.Helper()
	b.Kill()
	b.start(t, strings.TrimPrefix(b.URL, "http://"), strings.TrimPrefix(b.control, "http://"))
}

// Do has the bridge do something (control.go names what), and reads its answer into into,
// nil for nothing.
func (b *Bridge) Do(t testing.TB, what string, body, into any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(b.control+"/control/"+what, "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", what, resp.StatusCode, got, err)
	}
	if into != nil {
		if err := json.Unmarshal(got, into); err != nil {
			t.Fatalf("%s: %v in %s", what, err, got)
		}
	}
}
