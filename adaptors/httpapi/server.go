package httpapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/plane/wire"
)

// Door is what the API needs of the one door.
type Door interface {
	Submit(ctx context.Context, call ops.Call) (service.Ticket, error)
	Await(ctx context.Context, id ops.CallID) (ops.Outcome, error)
	Cancel(ctx context.Context, by ops.Identity, id ops.CallID) (ops.State, error)
	Policy() *access.Policy
	Holds(ctx context.Context) ([]service.Hold, error)
	Approvals
}

// Reads answers the reads that the API shares with box.exec, by their name there.
type Reads interface {
	Do(ctx context.Context, by ops.Identity, name string, q service.Query) (any, error)
}

// Identities proves, makes and revokes identities.
type Identities interface {
	Authenticate(ctx context.Context, token string) (ops.Identity, error)
	Add(ctx context.Context, id ops.Identity, agents ...ops.IdentityID) (token string, err error)
	Enrol(ctx context.Context, bridge ops.IdentityID, agents ...ops.IdentityID) error
	Revoke(ctx context.Context, id ops.IdentityID) (at time.Time, err error)
	Rotate(ctx context.Context, id ops.IdentityID) (token string, err error)
}

// Events is the journal as a stream reads it.
type Events interface {
	Tail(ctx context.Context, after int64, f func(journal.Event) error) error
	Head(ctx context.Context) (int64, error)
}

// Config is what a Server stands on. All but Hooks, Plane, Sandbox, Hosts and
// Limits is required.
type Config struct {
	Door       Door
	Reads      Reads
	Replies    Replies
	Identities Identities
	Events     Events
	Notary     Notary
	Audited    notary.Source // the store that Notary signs
	Artifacts  Artifacts
	Timers     Timers
	Outbox     Outbox
	Agents     Agents
	Backups    Backups // nil has none

	// Metrics returns what answers one scrape of GET /metrics.
	Metrics func(context.Context) (http.Handler, error)
	// Reload reads the op files and the policy again and returns what it found, as
	// the JSON of POST /v1/ops/reload. Its error is a fault that says what is wrong
	// with them.
	Reload func(context.Context) (any, error)
	// Ready names what keeps the gateway from being ready, nothing if it is. Strangers
	// read it.
	Ready func() []string
	// Hooks takes the events of chats. Nil has none.
	Hooks Hooks
	// Plane is the execution plane. Nil has none.
	Plane Plane
	// Sandbox is the layers of it that the gateway has. Strangers read it.
	Sandbox []service.Layer

	Version string       // of the API's document
	Hosts   []string     // names of this gateway besides localhost, 127.0.0.1 and ::1
	Log     *slog.Logger // never gets bodies, queries or tokens
	Limits  Limits
}

// Limits bounds what clients can take of the gateway. A zero field gets the value in
// parentheses.
type Limits struct {
	Body        int64         // bytes of a body (64 KiB)
	Reply       int64         // bytes of the body of a reply (1 MiB)
	Event       int64         // bytes of the body of an event of a chat (1 MiB)
	Events      int           // such requests under way, beside Requests; more are Busy (64)
	Strangers   int           // requests of workers that have no token yet: under way, beside Requests; more are Busy (64)
	StrangeRate int           // and of one address, in a second, four times as many at once; more are RateLimited (50)
	Workers     int           // requests of workers and verifiers under way, beside Requests; more are Busy (256)
	Polls       int           // of them, those that wait for work, beside Workers; more are Busy (1024)
	OwnPolls    int           // of them, those of one identity (8)
	Files       int           // pieces of files that workers send or fetch, beside Workers; more are Busy (64)
	Header      int           // bytes of a request's header (32 KiB)
	Requests    int           // requests under way, the last eighth for operators only; more are Busy (512)
	Connections int           // connections; more wait in the system's queue (2048)
	Streams     int           // clients of /v1/events; more are Busy (64)
	OwnStreams  int           // of them, those of one identity (8)
	ReadHeader  time.Duration // until a header has arrived (10 s)
	Read        time.Duration // until header and body have arrived (30 s)
	Write       time.Duration // for an answer, or a piece of a stream (30 s)
	Idle        time.Duration // between requests on one connection (2 min)
	Wait        time.Duration // that POST /exec waits before it answers 202 (10 min)
	Heartbeat   time.Duration // between comments on a stream (15 s)
}

func (l Limits) withDefaults() (Limits, error) {
	standard := Limits{
		Body: 64 << 10, Reply: 1 << 20, Event: 1 << 20, Events: 64, Header: 32 << 10, Requests: 512, Connections: 2048,
		Strangers: 64, StrangeRate: 50, Workers: 256, Polls: 1024, OwnPolls: 8, Files: 64, Streams: 64, OwnStreams: 8,
		ReadHeader: 10 * time.Second, Read: 30 * time.Second, Write: 30 * time.Second, Idle: 2 * time.Minute,
		Wait: 10 * time.Minute, Heartbeat: 15 * time.Second,
	}
	ok := orStandard(&l.Body, standard.Body) && orStandard(&l.Reply, standard.Reply) && orStandard(&l.Event, standard.Event) && orStandard(&l.Events, standard.Events) && orStandard(&l.Header, standard.Header) &&
		orStandard(&l.Strangers, standard.Strangers) && orStandard(&l.StrangeRate, standard.StrangeRate) &&
		orStandard(&l.Workers, standard.Workers) && orStandard(&l.Polls, standard.Polls) && orStandard(&l.OwnPolls, standard.OwnPolls) && orStandard(&l.Files, standard.Files) &&
		orStandard(&l.Requests, standard.Requests) && orStandard(&l.Connections, standard.Connections) &&
		orStandard(&l.Streams, standard.Streams) && orStandard(&l.OwnStreams, standard.OwnStreams) &&
		orStandard(&l.ReadHeader, standard.ReadHeader) && orStandard(&l.Read, standard.Read) &&
		orStandard(&l.Write, standard.Write) && orStandard(&l.Idle, standard.Idle) &&
		orStandard(&l.Wait, standard.Wait) && orStandard(&l.Heartbeat, standard.Heartbeat)
	if !ok {
		return l, errors.New("httpapi: a negative limit")
	}
	return l, nil
}

func orStandard[T int | int64 | time.Duration](v *T, standard T) bool {
	if *v == 0 {
		*v = standard
	}
	return *v > 0
}

// Server is the HTTPS API. Make it with New; Serve or Handler puts it to work;
// Shutdown ends it.
type Server struct {
	door       Door
	reads      Reads
	replies    Replies
	identities Identities
	events     Events
	notary     Notary
	audited    notary.Source
	artifacts  Artifacts
	timers     Timers
	outbox     Outbox
	hooks      Hooks
	plane      Plane
	agents     Agents
	backups    Backups
	metrics    func(context.Context) (http.Handler, error)
	reload     func(context.Context) (any, error)
	ready      func() []string
	sandbox    []service.Layer
	log        *slog.Logger
	limits     Limits

	hosts    map[string]bool
	router   *chi.Mux
	api      huma.API
	document func() ([]byte, error) // openapi.json, made when it is first asked for
	requests chan struct{}
	lanes    map[string]*lane // beside requests, by their names
	unknown  *strangers
	http     *http.Server

	refused atomic.Int64 // requests of workers without a valid token

	stopping chan struct{} // closed by Shutdown
	stopOnce sync.Once
	handling sync.RWMutex // held for reading by each request under way

	verifying sync.Mutex // held while the journal is verified

	mu      sync.Mutex
	streams map[ops.IdentityID]int // open ones of each identity
	open    int                    // all of them
	polls   map[ops.IdentityID]int // of each worker and verifier
}

// New returns a server over c. Nothing listens yet.
func New(c Config) (*Server, error) {
	if c.Door == nil || c.Reads == nil || c.Replies == nil || c.Identities == nil || c.Events == nil ||
		c.Notary == nil || c.Audited == nil || c.Artifacts == nil || c.Timers == nil || c.Outbox == nil || c.Agents == nil || c.Metrics == nil ||
		c.Reload == nil || c.Ready == nil || c.Version == "" || c.Log == nil {
		return nil, errors.New("httpapi: every field of Config but Hooks, Plane, Sandbox, Hosts and Limits is required")
	}
	limits, err := c.Limits.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		door: c.Door, reads: c.Reads, replies: c.Replies, identities: c.Identities, events: c.Events,
		notary: c.Notary, audited: c.Audited, artifacts: c.Artifacts, timers: c.Timers, outbox: c.Outbox, hooks: c.Hooks, plane: c.Plane, agents: c.Agents, backups: c.Backups, metrics: c.Metrics,
		reload: c.Reload, ready: c.Ready, sandbox: append([]service.Layer{}, c.Sandbox...), log: c.Log, limits: limits,
		hosts:    make(map[string]bool),
		router:   chi.NewMux(),
		requests: make(chan struct{}, limits.Requests),
		lanes: map[string]*lane{
			eventsLane:    newLane(limits.Events, "events are being taken"),
			strangersLane: newLane(limits.Strangers, "requests without a token are being served"),
			workersLane:   newLane(limits.Workers, "requests of workers are being served"),
			pollsLane:     newLane(limits.Polls, "workers wait for work"),
			filesLane:     newLane(limits.Files, "files of workers come or go"),
		},
		unknown:  newStrangers(limits.StrangeRate),
		stopping: make(chan struct{}),
		streams:  make(map[ops.IdentityID]int),
		polls:    make(map[ops.IdentityID]int),
	}
	for _, h := range append([]string{"localhost", "127.0.0.1", "::1"}, c.Hosts...) {
		if hostName(h) == "" {
			return nil, fmt.Errorf("httpapi: the host %q is no name", h)
		}
		s.hosts[hostName(h)] = true
	}
	s.router.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		writeFault(w, ops.Faultf(ops.NotFound, "there is no such route; /openapi.json lists them"))
	})
	s.router.MethodNotAllowed(s.methodNotAllowed)
	s.api = humachi.New(s.router, apiConfig(c.Version))
	s.api.UseMiddleware(s.guard)
	s.routes()
	listCodes(s.api.OpenAPI().Components.Schemas)
	s.document = sync.OnceValues(func() ([]byte, error) { return json.Marshal(s.api.OpenAPI()) })
	s.http = &http.Server{
		Handler:                      s.Handler(),
		ReadHeaderTimeout:            limits.ReadHeader,
		ReadTimeout:                  limits.Read,
		IdleTimeout:                  limits.Idle,
		MaxHeaderBytes:               limits.Header,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		// No WriteTimeout: it would run while a caller waits for its call. The
		// deadline is set when an answer begins.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100,
			WriteByteTimeout:     limits.Write,
			SendPingTimeout:      limits.Heartbeat,
			PingTimeout:          limits.Write,
		},
	}
	return s, nil
}

// apiConfig is huma without what it adds by itself: documentation pages from
// elsewhere, schema routes, $schema members and links.
func apiConfig(version string) huma.Config {
	c := huma.DefaultConfig("Inband", version)
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", ""
	c.CreateHooks = nil
	c.Info.Description = "Operations through one door. Faults are application/problem+json; docs/api.md says what the codes mean."
	format := huma.Format{Marshal: marshal, Unmarshal: json.Unmarshal}
	c.Formats = map[string]huma.Format{"application/json": format, "json": format} // "json" for …+json
	c.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "A token of an identity; it begins with ibt_."},
	}
	return c
}

// schemaName is what a type is called in the document. What the plane's workers say has a
// vocabulary of its own, in which some words mean something else.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() == reflect.TypeFor[wire.Ack]().PkgPath() {
		return "Wire" + name
	}
	return name
}

// listCodes names the codes of faults wherever the document speaks of one.
func listCodes(schemas huma.Registry) {
	var codes []any
	for _, c := range ops.Codes() {
		codes = append(codes, string(c.Code))
	}
	for _, name := range []string{"Problem", "ExecProblem", "Fault"} {
		schemas.Map()[name].Properties["code"].Enum = codes
	}
}

// marshal writes v whole or not at all.
func marshal(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// withToken is the security of every route but the open ones.
var withToken = []map[string][]string{{"token": {}}}

// routes registers every route.
func (s *Server) routes() {
	s.execRoute()
	s.replyRoute()
	s.hookRoute()
	s.readRoutes()
	s.callRoutes()
	s.approvalRoutes()
	s.opRoutes()
	s.agentRoutes()
	s.rotateRoute()
	s.policyRoute()
	s.eventRoute()
	s.auditRoutes()
	s.artifactRoutes()
	s.timerRoutes()
	s.wakeRoutes()
	s.outboxRoutes()
	s.holdRoutes()
	s.envelopeRoute()
	s.backupRoute()
	s.planeRoutes()
	s.metricsRoute()
	s.openRoutes()
}

type none struct{}

// openRoutes are those that need no token.
func (s *Server) openRoutes() {
	type health struct {
		Body struct {
			Status string `json:"status" enum:"ok"`
		}
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "healthz", Method: http.MethodGet, Path: "/healthz", Summary: "Whether the process serves",
	}, func(context.Context, *none) (*health, error) {
		h := &health{}
		h.Body.Status = "ok"
		return h, nil
	})

	type readiness struct {
		Body struct {
			Ready   bool            `json:"ready"`
			Sandbox []service.Layer `json:"sandbox" doc:"The layers of the sandbox that ops run in."`
		}
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "readyz", Method: http.MethodGet, Path: "/readyz", Summary: "Whether the gateway takes work",
		Description: "503 with `details.missing`, and the layers as `details.sandbox`, while it does not.",
	}, func(ctx context.Context, _ *none) (*readiness, error) {
		missing := s.ready()
		if s.isStopping() {
			missing = append(missing[:len(missing):len(missing)], "the gateway is stopping")
		}
		if len(missing) > 0 {
			return nil, s.problem(ctx, ops.Faultf(ops.Unavailable, "not ready: %s", strings.Join(missing, "; ")).With("missing", missing).With("sandbox", s.sandbox))
		}
		r := &readiness{}
		r.Body.Ready, r.Body.Sandbox = true, s.sandbox
		return r, nil
	})

	type document struct {
		ContentType string `header:"Content-Type"`
		Body        []byte
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "openapi", Method: http.MethodGet, Path: "/openapi.json", Summary: "This document",
		Responses: map[string]*huma.Response{"200": {
			Description: "OpenAPI 3.1",
			Content:     map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}}},
		}},
	}, func(ctx context.Context, _ *none) (*document, error) {
		b, err := s.document()
		if err != nil {
			return nil, s.problem(ctx, fmt.Errorf("write the OpenAPI document: %w", err))
		}
		return &document{ContentType: "application/json", Body: b}, nil
	})
}

// Handler returns the API without the listener, for tests and for mounting. What
// depends on the connection (TLS, the bounds on headers and connections) is Serve's.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.front) }

type requestKey struct{}

// requestID is the id under which the log speaks of a request, and the caller reads
// it in X-Request-Id.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// front is the first thing that a request meets.
func (s *Server) front(w http.ResponseWriter, r *http.Request) {
	s.handling.RLock()
	defer s.handling.RUnlock()
	id := "q-" + strings.ToLower(ulid.Make().String())
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, id))
	a := &answer{ResponseWriter: w, within: s.limits.Write}
	// The deadline of the answer before, on the same connection, is not this one's.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	h := w.Header()
	h.Set("X-Request-Id", id)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	begun := time.Now()
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.LogAttrs(r.Context(), slog.LevelError, "panic while serving", slog.String("request", id),
				slog.String("method", r.Method), slog.String("route", r.Pattern), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			if a.status != 0 {
				panic(http.ErrAbortHandler) // half an answer must not look whole
			}
			writeFault(a, ops.Faultf(ops.Internal, "internal error; the gateway's log has the particulars"))
		}
		s.served(r, a, time.Since(begun))
	}()
	if f := s.checkSite(r); f != nil {
		writeFault(a, f)
		return
	}
	if !plain(r.URL.Path) {
		writeFault(a, ops.Faultf(ops.BadRequest, "the path has control characters or is not UTF-8"))
		return
	}
	route := chi.NewRouteContext()
	route.Routes = s.router
	r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, route))
	switch r.Method {
	case http.MethodHead: // a GET whose body net/http leaves out
		route.RouteMethod = http.MethodGet
	case http.MethodOptions:
		if allow := s.allowed(r); allow != "" {
			a.Header().Set("Allow", allow)
			a.WriteHeader(http.StatusNoContent)
			return
		}
	}
	s.router.ServeHTTP(a, r)
}

// served logs a request that has been answered. What was tried without the right to it
// is told to whoever reads the log by default, with who tried; it leaves no event, so
// that strangers cannot fill the journal.
func (s *Server) served(r *http.Request, a *answer, took time.Duration) {
	level, says := slog.LevelDebug, "served"
	attrs := []slog.Attr{slog.String("request", requestID(r.Context())), slog.String("method", r.Method),
		slog.String("route", r.Pattern), slog.Int("status", a.status), slog.Duration("took", took)}
	if hidden := a.status == http.StatusNotFound && r.Method == http.MethodPost; hidden || a.status == http.StatusUnauthorized || a.status == http.StatusForbidden {
		level, says = slog.LevelInfo, "refused"
		attrs = append(attrs, slog.String("path", r.URL.Path[:min(len(r.URL.Path), maxLoggedPath)]))
	}
	if a.by != (ops.Identity{}) {
		attrs = append(attrs, slog.String("by", a.by.String()))
	}
	s.log.LogAttrs(r.Context(), level, says, attrs...)
}

// maxLoggedPath bounds what the log repeats of a path, in bytes.
const maxLoggedPath = 200

// checkSite refuses requests that were meant for somebody else, or that some other
// site had a browser send (DNS rebinding, cross-site requests).
func (s *Server) checkSite(r *http.Request) *ops.Fault {
	if !s.hosts[hostName(r.Host)] {
		return ops.Faultf(ops.NotPermitted, "the Host header names no host of this gateway")
	}
	foreign := ops.Faultf(ops.NotPermitted, "requests from other sites are refused")
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "none", "same-origin":
	default:
		return foreign
	}
	switch origin := r.Header.Values("Origin"); len(origin) {
	case 0:
		return nil
	case 1:
		u, err := url.Parse(origin[0])
		if err != nil || u.Scheme != "https" || !strings.EqualFold(u.Host, r.Host) || "https://"+u.Host != origin[0] {
			return foreign
		}
		return nil
	default:
		return foreign
	}
}

// hostName is a Host header, or a configured host, without its port, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// allowed is the Allow header of r's path, empty if there is no such route.
func (s *Server) allowed(r *http.Request) string {
	path := r.URL.Path
	if r.URL.RawPath != "" {
		path = r.URL.RawPath
	}
	var allow []string
	for _, m := range methods {
		if s.router.Match(chi.NewRouteContext(), m, path) {
			allow = append(allow, m)
			if m == http.MethodGet {
				allow = append(allow, http.MethodHead)
			}
		}
	}
	if len(allow) == 0 {
		return ""
	}
	return strings.Join(append(allow, http.MethodOptions), ", ")
}

func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	allow := s.allowed(r)
	if allow == "" { // a method that the router does not know, on no route
		s.router.NotFoundHandler()(w, r)
		return
	}
	w.Header().Set("Allow", allow)
	writeFault(w, ops.Faultf(ops.Method, "this route takes %s", allow))
}

// answer is the writer of one response. It notes the status, and bounds the time
// that the client has to take it.
type answer struct {
	http.ResponseWriter
	within time.Duration
	by     ops.Identity // nobody until a token has proved it
	status int          // 0 until the response begins
}

// Unwrap lets http.ResponseController through.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
		// Where deadlines are not supported there is no connection to protect.
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.within))
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(b)
}

// Serve answers on ln until Shutdown, and then returns nil. It speaks TLS 1.3 with
// cert, HTTP/1.1 and HTTP/2. Requests inherit the values of ctx but not its end: what
// is under way when a process is told to stop is Shutdown's to finish. Serve closes ln
// and is called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener, cert tls.Certificate) error {
	s.http.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	s.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
	err := s.http.ServeTLS(limitListener(ln, s.limits.Connections), "", "")
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
}

// Shutdown takes no new requests, ends the streams, and waits for the requests under
// way until ctx ends; then it cuts their connections, waits for what they were doing to
// notice, and returns ctx's error. The calls of those that were cut are left to the
// door, which is closed after it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopOnce.Do(func() { close(s.stopping) })
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
		s.handling.Lock() // net/http does not wait for the handlers of a closed server
		defer s.handling.Unlock()
		return fmt.Errorf("shut the API down: %w", err)
	}
	return nil
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
