package tests

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// build compiles box once for each set of build tags. INBAND_TEST_BOX is one without
// tags that has been compiled already, for who cannot.
func build(t testing.TB, tags string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if box := os.Getenv("INBAND_TEST_BOX"); box != "" && tags == "" {
		return box
	}
	if path, ok := built.path[tags]; ok {
		return path
	}
	path := filepath.Join(builtFolder(t), "box"+tags)
	if out, err := exec.Command("go", "build", "-tags", tags, "-o", path, "inband/cmd/box").CombinedOutput(); err != nil {
		t.Fatalf("build box: %v\n%s", err, out)
	}
	built.path[tags] = path
	return path
}

// builtFolder is where things are compiled to; built is locked.
func builtFolder(t testing.TB) string {
	t.Helper()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "inband-tests-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
	}
	return built.dir
}

var built = struct {
	sync.Mutex
	dir  string
	path map[string]string
}{path: map[string]string{}}

// TestMain runs the tests; as the program of an op, the test binary does what its words
// say instead.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "act" {
		if err := act(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			syscall.Exit(1)
		}
		syscall.Exit(0) // os.Exit takes a second under the race detector
	}
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// gateway is one life of a gateway: a real process on a state folder.
type gateway struct {
	state  string
	cmd    *exec.Cmd
	dead   chan struct{}
	log    *bytes.Buffer
	url    string
	token  string // the operator's
	client *http.Client
}

// serveAlive is serve for a gateway that has no reason to die.
func serveAlive(t testing.TB, box, state string) *gateway {
	t.Helper()
	g := serve(t, box, state)
	if g.isDead() {
		t.Fatalf("the gateway does not start:\n%s", g.log)
	}
	return g
}

// serve starts box on state with more environment, and waits until it is ready or
// dead.
func serve(t testing.TB, box, state string, env ...string) *gateway {
	t.Helper()
	cmd := exec.Command(box, "--state", state, "serve", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), env...)
	return start(t, cmd, state)
}

// start is serve with a command of one's own.
func start(t testing.TB, cmd *exec.Cmd, state string) *gateway {
	t.Helper()
	address := filepath.Join(state, "gateway.json")
	_ = os.Remove(address)
	g := &gateway{state: state, cmd: cmd, dead: make(chan struct{}), log: new(bytes.Buffer)}
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.dead)
	}()
	t.Cleanup(g.kill)
	until(t, "the gateway is ready", func() bool {
		if g.isDead() {
			return true
		}
		b, err := os.ReadFile(address)
		var at struct{ URL string }
		if err != nil || json.Unmarshal(b, &at) != nil || at.URL == "" {
			return false
		}
		g.url = at.URL
		return g.connect() && g.get("/readyz", nil) == nil
	})
	return g
}

func (g *gateway) connect() bool {
	if g.client != nil {
		return true
	}
	ca, err := os.ReadFile(filepath.Join(g.state, "tls", "ca.pem"))
	if err != nil {
		return false
	}
	token, err := os.ReadFile(filepath.Join(g.state, "operator.token"))
	if err != nil {
		return false
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return false
	}
	g.token = strings.TrimSpace(string(token))
	g.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}}
	return true
}

func (g *gateway) isDead() bool {
	select {
	case <-g.dead:
		return true
	default:
		return false
	}
}

// kill ends the gateway as a power cut would, and waits for it to be gone.
func (g *gateway) kill() {
	_ = g.cmd.Process.Signal(syscall.SIGKILL)
	<-g.dead
	if g.client != nil {
		g.client.CloseIdleConnections()
	}
}

// errStatus is an answer that is a fault.
var errStatus = errors.New("status")

// do sends one request as the operator. A fault is decoded into answer too.
func (g *gateway) do(method, path string, body, answer any) error {
	return g.as(g.token, method, path, body, answer)
}

// as sends one request with a token.
func (g *gateway) as(token, method, path string, body, answer any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, g.url+path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := g.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return err
	}
	if answer != nil {
		if err := json.Unmarshal(b, answer); err != nil {
			return fmt.Errorf("%s %s: %w in %.200s", method, path, err, b)
		}
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%w %d: %.300s", errStatus, res.StatusCode, b)
	}
	return nil
}

func (g *gateway) get(path string, answer any) error { return g.do(http.MethodGet, path, nil, answer) }

// agent makes an agent and returns its token.
func (g *gateway) agent(t testing.TB, id string) string {
	t.Helper()
	var made struct{ Token string }
	if err := g.do(http.MethodPost, "/v1/agents", map[string]any{"id": id, "role": "agent"}, &made); err != nil {
		t.Fatalf("add agent %s: %v\n%s", id, err, g.log)
	}
	return made.Token
}

// until waits for what to be so, for a minute at most.
func until(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
