package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/threads"
	"inband/service/timers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway is the API over a real store, door and threads, served on a loopback port.
type gateway struct {
	t       testing.TB
	url     string
	addr    string
	roots   *x509.CertPool
	client  *http.Client
	store   *sqlite.Store
	door    *service.Door
	plane   *plane.Plane
	server  *Server
	served  chan error
	logs    *logs
	begun   chan ops.CallID // from the op slow, when it has begun
	ended   chan error      // from the op slow, how it ended
	release chan struct{}   // lets slow end by itself
	ready   func() []string // what is missing
	reload  func(context.Context) (any, error)
	metrics func() (http.Handler, error)
	tokens  map[ops.IdentityID]string
	files   string // the folder of the artifacts
}

// logs is what the gateway has logged.
type logs struct {
	mu    sync.Mutex
	b     bytes.Buffer
	grown chan struct{} // closed and replaced with each line
}

func newLogs() *logs { return &logs{grown: make(chan struct{})} }

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.grown)
	l.grown = make(chan struct{})
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await returns when text has been logged.
func (l *logs) await(t testing.TB, text string) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		l.mu.Lock()
		found, grown := bytes.Contains(l.b.Bytes(), []byte(text)), l.grown
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-grown:
		case <-limit:
			t.Fatalf("%q was not logged:\n%s", text, l)
		}
	}
}

// open starts a gateway with the identities ada (operator), scout and other (agents),
// and mx (a bridge for scout).
func open(t testing.TB, change ...func(*Config)) *gateway {
	t.Helper()
	g := &gateway{
		t: t, served: make(chan error, 1), logs: newLogs(), tokens: make(map[ops.IdentityID]string),
		begun: make(chan ops.CallID, 64), ended: make(chan error, 64), release: make(chan struct{}),
		ready:  func() []string { return nil },
		reload: func(context.Context) (any, error) { return map[string]any{"ops": 1}, nil },
		metrics: func() (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") }), nil
		},
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(g.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	g.store, err = sqlite.Open(context.Background(), sqlite.Config{
		Path: filepath.Join(t.TempDir(), "journal.db"), Logger: log,
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()},
	})
	must(err)
	directory := access.NewDirectory(g.store)
	for _, who := range []ops.Identity{{ID: "ada", Role: ops.Operator}, {ID: "scout", Role: ops.Agent}, {ID: "other", Role: ops.Agent}} {
		g.tokens[who.ID], err = directory.Add(context.Background(), who)
		must(err)
	}
	g.tokens["mx"], err = directory.Add(context.Background(), ops.Identity{ID: "mx", Role: ops.Bridge}, "scout")
	must(err)

	live, policy := ops.NewLive(nil), access.NewLivePolicy(access.DefaultPolicy())
	g.door, err = service.New(service.Config{Store: g.store, Registry: live, Policy: policy, Log: log})
	must(err)
	rooms, err := threads.New(threads.Config{Store: g.store, Door: g.door, Registry: live, Log: log, ExecHosts: []string{"localhost"}})
	must(err)
	reads := service.NewReads(g.door, directory, service.About{
		Version: "v0-test", StartedAt: time.Now(), Config: map[string]any{"state": "here"}, Adaptors: []string{"rooms"},
		Missing: func() []string { return g.ready() },
	})
	must(reads.Add(rooms.Reads()...))
	clocks, err := timers.New(timers.Config{Store: g.store, Wakes: rooms, Registry: live, Policy: policy, Log: log})
	must(err)
	must(reads.Add(clocks.Reads()...))
	g.files = filepath.Join(t.TempDir(), "artifacts")
	files, err := artifacts.Open(artifacts.Config{Folder: g.files})
	must(err)
	published := service.NewArtifacts(g.door, files)
	must(reads.Add(published.Reads()...))
	_, key, err := ed25519.GenerateKey(nil)
	must(err)
	g.plane, err = plane.New(plane.Config{Store: g.store, Door: g.door, Directory: directory, Policy: policy, Artifacts: files, Key: key, Log: log})
	must(err)
	must(reads.Add(g.plane.Reads()...))
	signer, err := notary.Open(context.Background(), notary.Config{Store: g.store, Folder: filepath.Join(t.TempDir(), "audit"), Log: log})
	must(err)
	must(reads.Add(service.Read{Name: "audit", Manage: true, Do: func(ctx context.Context, _ ops.Identity, _ service.Query) (any, error) {
		return signer.Status(ctx)
	}}))
	registry, err := ops.New(append(append(clocks.Ops(), g.plane.Ops()...),
		service.ToolsList(g.door), service.BoxExec(reads), rooms.DMSend(),
		ops.Bound{Op: ops.Op{Name: "test.slow", Aliases: []ops.OpName{"slow"}, Provider: "test", Summary: "Wait to be released or stopped.", Timeout: time.Minute}, Executor: ops.ExecutorFunc(g.slow)},
		ops.Bound{Op: ops.Op{Name: "test.a/b", Provider: "test", Summary: "Answer at once.", SideEffecting: true}, Executor: ops.ExecutorFunc(
			func(context.Context, ops.Call) (ops.Outcome, error) {
				return ops.Success(ops.NewResult("done", "")), nil
			})},
		ops.Bound{Op: ops.Op{Name: "test.keep", Provider: "test", Summary: "Publish files."}, Executor: ops.ExecutorFunc(
			func(ctx context.Context, _ ops.Call) (ops.Outcome, error) { return keep(ctx, files) })},
		ops.Bound{Op: ops.Op{Name: "test.fail", Provider: "test", Summary: "Fail."}, Executor: ops.ExecutorFunc(
			func(context.Context, ops.Call) (ops.Outcome, error) {
				return ops.Failure(ops.Faultf(ops.OpFailed, "it does not work").With("exit", 3)), nil
			})},
		ops.Bound{Op: ops.Op{Name: "test.rated", Provider: "test", Summary: "Answer once an hour.", Concurrency: 2, Rate: ops.Rate{Count: 1, Per: time.Hour}},
			Executor: ops.ExecutorFunc(func(context.Context, ops.Call) (ops.Outcome, error) {
				return ops.Success(ops.NewResult("done", "")), nil
			})},
	)...)
	must(err)
	live.Swap(registry)
	must(g.door.Start(context.Background()))
	must(rooms.Start(context.Background()))
	must(clocks.Start(context.Background()))
	must(g.plane.Start(context.Background()))

	c := Config{
		Door: g.door, Reads: reads, Replies: rooms, Identities: directory, Events: g.store,
		Notary: signer, Audited: g.store, Artifacts: published, Timers: clocks, Plane: g.plane, Outbox: rooms, Agents: rooms, Metrics: func(context.Context) (http.Handler, error) { return g.metrics() },
		Reload: func(ctx context.Context) (any, error) { return g.reload(ctx) }, Ready: func() []string { return g.ready() },
		Version: "v0-test", Log: log,
	}
	for _, f := range change {
		f(&c)
	}
	g.server, err = New(c)
	must(err)
	cert, ca, err := LoadOrMakeCA(filepath.Join(t.TempDir(), "tls"), c.Hosts)
	must(err)
	g.roots = x509.NewCertPool()
	g.roots.AppendCertsFromPEM(ca)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	g.addr = ln.Addr().String()
	g.url = "https://" + g.addr
	g.client = g.newClient()
	go func() { g.served <- g.server.Serve(context.Background(), ln, cert) }()
	t.Cleanup(func() {
		g.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.server.Shutdown(ctx); err != nil {
			t.Errorf("shut the server down: %v", err)
		}
		if err := <-g.served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := g.door.Close(ctx); err != nil {
			t.Errorf("close the door: %v", err)
		}
		g.plane.Close()
		clocks.Close()
		rooms.Close()
		signer.Close(ctx)
		if err := errors.Join(g.store.Close(), files.Close()); err != nil {
			t.Errorf("close the stores: %v", err)
		}
	})
	return g
}

// slow is the op test.slow.
func (g *gateway) slow(ctx context.Context, c ops.Call) (ops.Outcome, error) {
	g.begun <- c.ID
	select {
	case <-g.release:
		g.ended <- nil
		return ops.Success(ops.NewResult("released", "")), nil
	case <-ctx.Done():
		g.ended <- context.Cause(ctx)
		return ops.Outcome{}, ctx.Err()
	}
}

// newClient returns a client with connections of its own; it speaks HTTP/2.
func (g *gateway) newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: g.roots}, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request is one request and what it is answered.
type request struct {
	method, path string
	as           ops.IdentityID // whose token; "" sends none
	body         string
	header       map[string]string
	host         string
}

type reply struct {
	status int
	header http.Header
	body   []byte
	closes bool    // the server says that it closes the connection
	fault  Problem // when it is one
}

func (r reply) String() string {
	body := bytes.TrimSpace(r.body)
	if len(body) > 2000 {
		body = append(body[:2000:2000], "…"...)
	}
	return fmt.Sprintf("%d %s", r.status, body)
}

func (g *gateway) build(ctx context.Context, q request) *http.Request {
	g.t.Helper()
	var body io.Reader
	if q.body != "" {
		body = strings.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, g.url+q.path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	if q.as != "" {
		r.Header.Set("Authorization", "Bearer "+g.tokens[q.as])
	}
	if q.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range q.header {
		if v == "" {
			r.Header.Del(k)
			continue
		}
		r.Header.Set(k, v)
	}
	if q.host != "" {
		r.Host = q.host
	}
	return r
}

func (g *gateway) do(q request) reply {
	g.t.Helper()
	return g.send(g.build(g.t.Context(), q))
}

func (g *gateway) send(r *http.Request) reply {
	g.t.Helper()
	resp, err := g.client.Do(r)
	if err != nil {
		g.t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	defer resp.Body.Close()
	return g.read(resp)
}

// read checks what holds for every answer.
func (g *gateway) read(resp *http.Response) reply {
	g.t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	a := reply{status: resp.StatusCode, header: resp.Header, body: body, closes: resp.Close}
	what := resp.Request.Method + " " + resp.Request.URL.Path
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"} {
		if got := a.header.Get(name); got != want {
			g.t.Errorf("%s: %s is %q, want %q", what, name, got, want)
		}
	}
	if !strings.HasPrefix(a.header.Get("X-Request-Id"), "q-") {
		g.t.Errorf("%s: X-Request-Id is %q", what, a.header.Get("X-Request-Id"))
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) == nil && members["$schema"] != nil {
		g.t.Errorf("%s: $schema in %s", what, a)
	}
	if resp.Request.Method == http.MethodHead || a.status == http.StatusNoContent {
		return a
	}
	if a.status >= 400 {
		if got := a.header.Get("Content-Type"); got != "application/problem+json" {
			g.t.Errorf("%s: a fault as %q: %s", what, got, a)
		}
		if err := json.Unmarshal(body, &a.fault); err != nil {
			g.t.Errorf("%s: %v in %s", what, err, a)
		}
		f := a.fault
		if f.Status != a.status || f.Code.Info().Status != a.status || f.Title != http.StatusText(a.status) || f.Type != "about:blank" ||
			f.Detail != f.Message || f.Message == "" || f.Code.Info().Code != f.Code {
			g.t.Errorf("%s: the problem does not fit its status: %s", what, a)
		}
	} else if got := a.header.Get("Content-Type"); got != "application/json" && got != "text/event-stream" && resp.Request.URL.Path != "/metrics" {
		g.t.Errorf("%s: Content-Type %q", what, got)
	}
	for id, token := range g.tokens {
		if bytes.Contains(body, []byte(token)) && a.status != http.StatusCreated {
			g.t.Errorf("%s: the answer repeats the token of %s", what, id)
		}
	}
	return a
}

// get is a 200 read into v.
func (g *gateway) get(as ops.IdentityID, path string, v any) {
	g.t.Helper()
	g.ok(200, request{method: "GET", path: path, as: as}, v)
}

func (g *gateway) ok(status int, q request, v any) reply {
	g.t.Helper()
	a := g.do(q)
	if a.status != status {
		g.t.Fatalf("%s %s: got %s, want %d", q.method, q.path, a, status)
	}
	if v != nil {
		if err := json.Unmarshal(a.body, v); err != nil {
			g.t.Fatalf("%s %s: %v in %s", q.method, q.path, err, a)
		}
	}
	return a
}

// raw is a connection that speaks HTTP/1.1 as the test writes it.
func (g *gateway) raw() *tls.Conn {
	g.t.Helper()
	c, err := tls.Dial("tcp", g.addr, &tls.Config{RootCAs: g.roots, NextProtos: []string{"http/1.1"}, ServerName: "127.0.0.1"})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	// No test waits longer than this for the server to act.
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		g.t.Fatal(err)
	}
	return c
}

// answerTo reads one response from a raw connection.
func (g *gateway) answerTo(c net.Conn, method, path string) reply {
	g.t.Helper()
	r, err := http.NewRequest(method, g.url+path, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	return g.read(resp)
}
