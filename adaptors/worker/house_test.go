package worker

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/plane/wire"
)

var boss = ops.Identity{ID: "boss", Role: ops.Operator}

// house is a real plane on a real store, behind its routes, in a network of the tests.
type house struct {
	t         *testing.T
	dir       string
	store     *sqlite.Store
	door      *service.Door
	plane     *plane.Plane
	directory *access.Directory
	files     *artifacts.Store
	net       *network
	log       *slog.Logger
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	if testing.Verbose() {
		h.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	h.net = &network{handler: h}
	h.open()
	t.Cleanup(h.close)
	if _, err := h.directory.Add(t.Context(), boss); err != nil {
		t.Fatal(err)
	}
	if _, err := h.plane.Switch(t.Context(), boss, "on"); err != nil {
		t.Fatal(err)
	}
	return h
}

// open starts the plane over the store of the house.
func (h *house) open() {
	h.t.Helper()
	ctx := context.WithoutCancel(h.t.Context())
	var err error
	if h.store, err = sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(h.dir, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), artifacts.Schema(), plane.Schema()}}); err != nil {
		h.t.Fatal(err)
	}
	empty, err := ops.New()
	if err != nil {
		h.t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	live, policy := ops.NewLive(empty), access.NewLivePolicy(access.DefaultPolicy())
	if h.door, err = service.New(service.Config{Store: h.store, Registry: live, Policy: policy, Log: quiet}); err != nil {
		h.t.Fatal(err)
	}
	if h.files, err = artifacts.Open(artifacts.Config{Folder: filepath.Join(h.dir, "artifacts")}); err != nil {
		h.t.Fatal(err)
	}
	h.directory = access.NewDirectory(h.store)
	if h.plane, err = plane.New(plane.Config{Store: h.store, Door: h.door, Directory: h.directory, Policy: policy, Artifacts: h.files,
		Key: ed25519.NewKeyFromSeed(make([]byte, 32)), Log: quiet}); err != nil {
		h.t.Fatal(err)
	}
	registry, err := ops.New(h.plane.Ops()...)
	if err != nil {
		h.t.Fatal(err)
	}
	live.Swap(registry)
	h.door.OnCancel(h.plane.CancelCall)
	if err := errors.Join(h.door.Start(ctx), h.plane.Start(ctx)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) close() {
	h.plane.Close()
	if err := errors.Join(h.door.Close(context.Background()), h.files.Close(), h.store.Close()); err != nil {
		h.t.Error(err)
	}
}

// restart is a gateway that ends and comes back.
func (h *house) restart() {
	h.net.cut(true)
	h.close()
	h.open()
	h.net.cut(false)
}

// ServeHTTP has the routes of workers, as the API's documentation has them.
func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	answer := func(v any, err error) {
		var f *ops.Fault
		switch {
		case err == nil:
			_ = json.NewEncoder(w).Encode(v)
		case errors.As(err, &f):
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(f.Code.Info().Status)
			_ = json.NewEncoder(w).Encode(f)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	switch path := r.URL.Path; {
	case path == "/v1/plane/enrol":
		v, err := h.plane.Enrol(ctx, body)
		answer(v, err)
		return
	case path == "/v1/plane/challenge":
		c, err := h.plane.Challenge(ctx, r.URL.Query().Get("worker"))
		answer(map[string]string{"challenge": c}, err)
		return
	case path == "/v1/plane/boots":
		v, err := h.plane.Begin(ctx, body)
		answer(v, err)
		return
	}
	by, err := h.directory.Authenticate(ctx, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if err != nil {
		answer(nil, ops.Faultf(ops.Unauthenticated, "no such token"))
		return
	}
	switch path := r.URL.Path; {
	case path == "/v1/plane/poll":
		var q wire.Poll
		if err := wire.Strict(body, &q); err != nil {
			answer(nil, ops.Faultf(ops.BadRequest, "%v", err))
			return
		}
		envelope, err := h.plane.Poll(ctx, by, q)
		if err == nil && envelope == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(json.RawMessage(envelope), err)
	case path == "/v1/plane/callbacks":
		v, err := h.plane.Callback(ctx, by, body)
		answer(v, err)
	case path == "/v1/plane/uploads":
		v, err := h.plane.Upload(ctx, by, body)
		answer(v, err)
	case strings.HasPrefix(path, "/v1/plane/uploads/"):
		id := strings.TrimPrefix(path, "/v1/plane/uploads/")
		if r.Method == http.MethodGet {
			v, err := h.plane.Uploaded(ctx, by, id)
			answer(v, err)
			return
		}
		offset, err := strconv.ParseInt(r.Header.Get("Upload-Offset"), 10, 64)
		if err != nil {
			answer(nil, ops.Faultf(ops.BadRequest, "Upload-Offset"))
			return
		}
		v, err := h.plane.Append(ctx, by, id, offset, bytes.NewReader(body))
		answer(v, err)
	case strings.HasPrefix(path, "/v1/plane/artifacts/"):
		b, err := h.plane.Fetch(ctx, by, strings.TrimPrefix(path, "/v1/plane/artifacts/"))
		if err != nil {
			answer(nil, err)
			return
		}
		defer b.Close()
		_, _ = io.Copy(w, b)
	default:
		http.NotFound(w, r)
	}
}

// fate is what the network does to one request.
type fate int

const (
	pass     fate = iota
	dropped       // it does not arrive
	unheard       // it arrives, and its answer is lost
	repeated      // it arrives twice, and the second answer is given
	slow          // it arrives after a second, and so does the answer
	broken        // a proxy answers: 502 with a page
)

// network is what lies between a worker and the plane.
type network struct {
	handler http.Handler

	mu     sync.Mutex
	gone   bool
	decide func(path string) fate // nil: pass
	sent   map[string]int         // requests, by path
}

// cut cuts the network, or mends it.
func (n *network) cut(gone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = gone
}

func (n *network) is(decide func(path string) fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.decide = decide
}

// count is how many requests went to path.
func (n *network) count(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent[path]
}

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body.Close()
	}
	n.mu.Lock()
	f, gone := pass, n.gone
	if n.decide != nil {
		f = n.decide(req.URL.Path)
	}
	if n.sent == nil {
		n.sent = map[string]int{}
	}
	n.sent[req.URL.Path]++
	n.mu.Unlock()
	if gone {
		f = dropped
	}
	do := func() *http.Response {
		again := req.Clone(req.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		rec := httptest.NewRecorder()
		n.handler.ServeHTTP(rec, again)
		return rec.Result()
	}
	cut := errors.New("connection reset")
	switch f {
	case dropped:
		return nil, cut
	case unheard:
		do()
		return nil, cut
	case repeated:
		do()
		return do(), nil
	case slow:
		if err := sleep(req.Context(), time.Second); err != nil {
			return nil, err
		}
		resp := do()
		if err := sleep(req.Context(), time.Second); err != nil {
			return nil, err
		}
		return resp, nil
	case broken:
		rec := httptest.NewRecorder()
		rec.WriteHeader(http.StatusBadGateway)
		_, _ = rec.WriteString("<html>bad gateway</html>")
		return rec.Result(), nil
	}
	resp := do()
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return resp, nil
}

// spawn orders work and returns its delegation.
func (h *house) spawn(params string) string {
	h.t.Helper()
	ticket, err := h.door.Submit(h.t.Context(), ops.Call{Op: "swarm.spawn", By: boss, Params: json.RawMessage(params), From: ops.Origin{Source: "api/1"}})
	if err != nil {
		h.t.Fatal(err)
	}
	for {
		var id string
		h.view(`SELECT id FROM delegation WHERE call = $1`, func(scan func(...any) error) error { return scan(&id) }, string(ticket.Call))
		if id != "" {
			return id
		}
		time.Sleep(time.Millisecond) // of the bubble's clock
	}
}

func (h *house) view(sql string, row func(func(...any) error) error, args ...any) {
	h.t.Helper()
	if err := h.store.View(context.WithoutCancel(h.t.Context()), func(tx journal.Tx) error { return tx.Query(sql, row, args...) }); err != nil {
		h.t.Fatal(err)
	}
}

// text is the one text that sql finds, "" if none.
func (h *house) text(sql string, args ...any) (s string) {
	h.t.Helper()
	h.view(sql, func(scan func(...any) error) error { return scan(&s) }, args...)
	return s
}

func (h *house) number(sql string, args ...any) (n int64) {
	h.t.Helper()
	h.view(sql, func(scan func(...any) error) error { return scan(&n) }, args...)
	return n
}

// events is how many events of a kind there are.
func (h *house) events(kind string) (n int) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	defer cancel()
	head, err := h.store.Head(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.store.Tail(ctx, 0, func(e journal.Event) error {
		if e.Kind == kind {
			n++
		}
		if e.Position >= head {
			cancel()
		}
		return nil
	}); err != nil && ctx.Err() == nil {
		h.t.Fatal(err)
	}
	return n
}

// run is the state of the latest run of d, and delegation that of d.
func (h *house) run(d string) string {
	return h.text(`SELECT state FROM dispatch WHERE delegation = $1 ORDER BY attempt DESC LIMIT 1`, d)
}
func (h *house) delegation(d string) string {
	return h.text(`SELECT state FROM delegation WHERE id = $1`, d)
}

// await waits until what f returns is want, by the bubble's clock.
func (h *house) await(what string, want string, f func() string) {
	h.t.Helper()
	for range 40_000 {
		if f() == want {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	h.t.Fatalf("%s is %q after a long time, want %q", what, f(), want)
}

// member makes the configuration of a worker or verifier that an operator has invited.
func (h *house) member(name string, role ops.Role, r Runner) Config {
	h.t.Helper()
	invited, err := h.plane.Invite(h.t.Context(), boss, plane.Invitation{Name: ops.IdentityID(name), Role: role, Implementations: []string{"default"}})
	if err != nil {
		h.t.Fatal(err)
	}
	state, err := OpenState(filepath.Join(h.dir, name))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { state.Close() })
	cfg := Config{State: state, Client: NewClient("https://gateway.example", h.net), Runner: r, Role: role, Implementations: []string{"default"},
		Token: invited.Token, Log: h.log.With("who", name), Version: "test"}
	if role == ops.Worker {
		cfg.Command = []string{"work"}
	}
	return cfg
}

// atWork is a Worker that runs until it is told to drain, or abandon.
type atWork struct {
	drain   context.CancelFunc
	abandon chan struct{}
	done    chan struct{}
	err     error
}

func (h *house) start(cfg Config) *atWork {
	h.t.Helper()
	a := &atWork{abandon: make(chan struct{}), done: make(chan struct{})}
	cfg.Abandon = a.abandon
	w, err := New(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	a.drain = cancel
	go func() {
		defer close(a.done)
		a.err = w.Run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		select {
		case <-a.abandon:
		default:
			close(a.abandon)
		}
		<-a.done
	})
	return a
}

// hands is a Runner whose commands are functions.
type hands struct {
	do func(ctx context.Context, t Task, r Report) (Outcome, error)

	mu    sync.Mutex
	dead  bool // what Alive says no to
	live  []wire.Process
	begun int
	ended []string // folders of which End was asked
}

var _ Runner = (*hands)(nil)

func (k *hands) Run(ctx context.Context, t Task, r Report) (Outcome, error) {
	if err := r.Started(wire.Process{PID: 4711, Start: "1"}); err != nil {
		return Outcome{}, err
	}
	k.mu.Lock()
	k.begun++
	k.mu.Unlock()
	return k.do(ctx, t, r)
}

func (k *hands) Alive(wire.Process) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.dead
}

func (k *hands) End(_ context.Context, folder string, _ wire.Process) ([]wire.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = append(k.ended, filepath.Base(folder))
	return k.live, nil
}

func (k *hands) set(f func(*hands)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k)
}

func (k *hands) runs() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.begun
}

// roundTripper is a transport that is a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var planeCancel = plane.CancelRequest{Reason: "test"}

type (
	httpRequest  = http.Request
	httpResponse = http.Response
)

func bodyOf(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

func fifo(path string) error { return unix.Mkfifo(path, 0o600) }

type pub = ed25519.PublicKey

func newKey() (pub, ed25519.PrivateKey, error) { return ed25519.GenerateKey(nil) }

// begun enrols a member and begins its first boot, without the loops of a Worker.
func (h *house) begun(cfg Config) *session {
	h.t.Helper()
	e, err := enrol(h.t.Context(), cfg.Client, cfg.State, cfg.Token, h.log)
	if err != nil {
		h.t.Fatal(err)
	}
	s, err := begin(h.t.Context(), cfg.Client, cfg.State, e, "test", nil, h.log)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// leased takes what the plane offers to s and says that it has started.
func (h *house) leased(cfg Config, s *session) (granted, *chain) {
	h.t.Helper()
	sent := s.now()
	envelope, err := s.poll(h.t.Context(), "n1", pollWait)
	if err != nil {
		h.t.Fatal(err)
	}
	g, err := s.open(envelope, "n1", sent)
	if err != nil {
		h.t.Fatal(err)
	}
	c := newChain(cfg.Client, s.key, g.Grant, sent, s.now, func(wire.Ack) {})
	if _, err := c.say(h.t.Context(), wire.KindStarted, wire.Started{}); err != nil {
		h.t.Fatal(err)
	}
	return g, c
}
