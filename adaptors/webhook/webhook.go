package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/hashicorp/go-retryablehttp"

	"inband/ops"
	"inband/service/threads"
)

// Intake takes the messages of a platform. threads.Threads is the real one.
type Intake interface {
	Receive(ctx context.Context, in threads.Inbound) (threads.Heard, error)
	// Known reports whether the message that in names has been taken.
	Known(ctx context.Context, in threads.Inbound) (bool, error)
	// Cursor returns what SetCursor was given last, false if nothing was.
	Cursor(ctx context.Context, adaptor string) (value string, ok bool, err error)
	SetCursor(ctx context.Context, adaptor, value string) error
}

// Adaptor is one bridge. Make it with New, attach what Chat returns to the threads, and
// Run it; what the bridge sends goes to Deliver. It is safe for concurrent use.
type Adaptor struct {
	cfg     Config
	log     *slog.Logger // never gets bodies or secrets
	secrets atomic.Pointer[[]Secret]
	client  *retryablehttp.Client
	who     map[string]ops.IdentityID
	homes   map[ops.IdentityID]threads.Home
	now     func() time.Time
	again   chan struct{} // holds one wish to read the history
	unnamed sync.Mutex    // held while a message without an id is taken
	state   state

	mu   sync.Mutex
	into Intake // nil while it does not run
}

// New returns the adaptor of a configuration that Read has made, with its secrets in the
// same order. Nothing is sent yet.
func New(cfg Config, secrets []Secret, log *slog.Logger) (*Adaptor, error) {
	if cfg.Name == "" || cfg.Self == "" || log == nil || len(secrets) == 0 {
		return nil, errors.New("webhook: want a configuration with our own user, its secrets and a log")
	}
	a := &Adaptor{cfg: cfg, log: log.With("adaptor", cfg.Name), now: time.Now, again: make(chan struct{}, 1),
		who: make(map[string]ops.IdentityID), homes: make(map[ops.IdentityID]threads.Home)}
	a.SetSecrets(secrets)
	for user, id := range cfg.People {
		a.who[user], a.homes[id] = id, threads.Home{Target: "@" + user, User: user}
	}
	for user, agent := range cfg.Agents {
		home := threads.Home{Target: "@" + user, User: user}
		if agent.Home != "" {
			home.Target = "#" + agent.Home
		}
		a.who[user], a.homes[agent.Identity] = agent.Identity, home
	}
	a.client = newClient(cfg.Roots)
	return a, nil
}

// Bounds of what is sent to a bridge and read from it.
const (
	maxAnswer   = 64 << 10 // bytes of an answer to a post, an edit or a search
	maxPage     = 4 << 20  // bytes of a page of the history
	maxConns    = 16       // connections to one bridge
	dialRetries = 2        // further attempts to connect; nothing was sent before
)

// newClient returns the client of one bridge. It follows no redirect, uses no proxy, and
// repeats a request by itself only when nothing of it can have been sent: everything
// else is the outbox's to decide.
func newClient(roots *x509.CertPool) *retryablehttp.Client {
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxConnsPerHost:        maxConns,
		MaxIdleConnsPerHost:    maxConns,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
	c := retryablehttp.NewClient()
	c.Logger = nil // it would log URLs
	c.HTTPClient = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c.RetryMax, c.RetryWaitMin, c.RetryWaitMax = dialRetries, 50*time.Millisecond, time.Second
	c.CheckRetry = func(ctx context.Context, _ *http.Response, err error) (bool, error) {
		s, _ := ctx.Value(sentKey{}).(*atomic.Bool)
		return err != nil && ctx.Err() == nil && s != nil && !s.Load(), nil
	}
	c.ErrorHandler = func(resp *http.Response, err error, _ int) (*http.Response, error) { return resp, err }
	return c
}

// sentKey is where a request keeps whether it has got a connection. From then on, what
// the bridge has read of it is not known.
type sentKey struct{}

// SetSecrets puts other secrets in force, for what is sent and received from now on.
func (a *Adaptor) SetSecrets(secrets []Secret) {
	s := append([]Secret(nil), secrets...)
	a.secrets.Store(&s)
}

// Config returns what the adaptor was made of.
func (a *Adaptor) Config() Config { return a.cfg }

// Chat returns the adaptor as the threads write to it: a threads.Finder and a
// threads.Editor where the bridge can do that.
func (a *Adaptor) Chat() Chat {
	switch find, edit := a.cfg.URLs.Find != "", a.cfg.URLs.Edit != ""; {
	case find && edit:
		return &struct {
			*Adaptor
			finder
			editor
		}{a, finder{a}, editor{a}}
	case find:
		return &struct {
			*Adaptor
			finder
		}{a, finder{a}}
	case edit:
		return &struct {
			*Adaptor
			editor
		}{a, editor{a}}
	}
	return a
}

// Chat is an adaptor to which the threads write.
type Chat interface {
	threads.Chat
	Run(ctx context.Context, into Intake) error
	Deliver(ctx context.Context, h http.Header, body []byte) (threads.Heard, error)
}

var (
	_ Chat           = (*Adaptor)(nil)
	_ threads.Finder = finder{}
	_ threads.Editor = editor{}
)

// Name implements threads.Chat.
func (a *Adaptor) Name() string { return a.cfg.Name }

// Limits implements threads.Chat.
func (a *Adaptor) Limits() threads.PostLimits {
	p := a.cfg.Posts
	l := threads.PostLimits{Unit: p.Unit, Post: p.Most, Parts: p.Parts, Files: p.Files, Keys: p.Keys}
	if a.cfg.URLs.Edit != "" {
		l.Edit = p.Edit
	}
	return l
}

// Open implements threads.Chat: room "#ID" of the configuration, or user "@ID" of it.
func (a *Adaptor) Open(target string) (string, error) {
	kind, id := target[:min(1, len(target))], target[min(1, len(target)):]
	if _, ok := a.cfg.Rooms[id]; ok && kind == "#" {
		return address(target, ""), nil
	}
	if _, ok := a.who[id]; ok && kind == "@" {
		return address(target, ""), nil
	}
	return "", ops.Faultf(ops.NotFound, "the adaptor %s has no such room or user; want #ID or @ID of its configuration", a.cfg.Name)
}

// Who implements threads.Chat.
func (a *Adaptor) Who(user string) (ops.IdentityID, bool) {
	id, ok := a.who[user]
	return id, ok
}

// Home implements threads.Chat.
func (a *Adaptor) Home(id ops.IdentityID) (threads.Home, bool) {
	h, ok := a.homes[id]
	return h, ok
}

// address is how this adaptor writes the place of a thread: its target, then the id of
// its root message if it has one. Ids are escaped, so that / stands between them only.
func address(target, root string) string {
	at := target[:1] + url.PathEscape(target[1:])
	if root != "" {
		at += "/" + url.PathEscape(root)
	}
	return at
}

// place reads an address.
func place(address string) (p where, err error) {
	target, root, _ := strings.Cut(address, "/")
	if len(target) < 2 || target[0] != '#' && target[0] != '@' {
		return p, errors.New("this is no address of a webhook's thread")
	}
	id, badID := url.PathUnescape(target[1:])
	if p.Thread, err = url.PathUnescape(root); err != nil || badID != nil {
		return p, errors.New("this is no address of a webhook's thread")
	}
	if target[0] == '#' {
		p.Room = id
	} else {
		p.User = id
	}
	return p, nil
}

// where is the place of a post in a request.
type where struct {
	Room   string `json:"room,omitzero"`
	User   string `json:"user,omitzero"`   // instead of room: a direct message to this user
	Thread string `json:"thread,omitzero"` // the root message; absent, the post begins a thread
}

// request is what the bridge is sent to post, edit or find something.
type request struct {
	where
	ID      string `json:"id,omitzero"` // of the post that is edited
	Mark    string `json:"mark"`
	Key     string `json:"key,omitzero"`
	Text    string `json:"text,omitzero"` // the mark is its last line
	Mention string `json:"mention,omitzero"`
	File    string `json:"file,omitzero"`
	Unfurl  *bool  `json:"unfurl,omitzero"`
}

func newRequest(p where, o threads.Outgoing) request {
	no := false
	return request{where: p, Mark: o.Mark, Key: o.Key, Text: o.Text + "\n" + o.Mark, Mention: o.Mention, File: o.File, Unfurl: &no}
}

// Post implements threads.Chat. Its errors are *threads.PostError.
func (a *Adaptor) Post(ctx context.Context, address string, o threads.Outgoing) (threads.Posted, error) {
	p, err := place(address)
	if err != nil {
		return threads.Posted{}, &threads.PostError{Kind: threads.RefusedPost, Err: err}
	}
	var got answer
	if err := a.ask(ctx, a.cfg.URLs.Post, o.Mark, newRequest(p, o), &got, maxAnswer); err != nil {
		return threads.Posted{}, a.sent(err)
	}
	if got.ID == "" || !platformID(got.ID) || got.Thread != "" && !platformID(got.Thread) || got.Room != "" && !platformID(got.Room) {
		return threads.Posted{}, a.sent(&threads.PostError{Kind: threads.Unsure, Err: errors.New("the bridge says ok, but no id of the post")})
	}
	a.sent(nil)
	return a.posted(p, got), nil
}

// posted is the post of an answer to a request about p.
func (a *Adaptor) posted(p where, got answer) threads.Posted {
	root := p.Thread
	if root == "" {
		root = got.Thread
	}
	if root == "" {
		root = got.ID
	}
	target := "#" + p.Room
	switch {
	case p.Room == "" && got.Room != "": // a direct message, whose room the bridge knows
		target = "#" + got.Room
	case p.Room == "":
		target = "@" + p.User
	}
	return threads.Posted{ID: got.ID, Address: address(target, root)}
}

type finder struct{ a *Adaptor }

// Find implements threads.Finder.
func (f finder) Find(ctx context.Context, address, mark string) (threads.Posted, bool, error) {
	p, err := place(address)
	if err != nil {
		return threads.Posted{}, false, err
	}
	var got answer
	if err := f.a.ask(ctx, f.a.cfg.URLs.Find, "find-"+mark, request{where: p, Mark: mark}, &got, maxAnswer); err != nil {
		return threads.Posted{}, false, err
	}
	switch {
	case got.Found != nil && !*got.Found:
		return threads.Posted{}, false, nil
	case got.Found == nil || !platformID(got.ID):
		return threads.Posted{}, false, errors.New("the bridge does not say whether it has found the post")
	}
	return f.a.posted(p, got), true, nil
}

type editor struct{ a *Adaptor }

// Edit implements threads.Editor. Its errors are *threads.PostError.
func (e editor) Edit(ctx context.Context, address, id string, o threads.Outgoing) error {
	p, err := place(address)
	if err != nil {
		return &threads.PostError{Kind: threads.RefusedPost, Err: err}
	}
	r := newRequest(p, o)
	r.ID = id
	var got answer
	return e.a.sent(e.a.ask(ctx, e.a.cfg.URLs.Edit, "edit-"+o.Mark, r, &got, maxAnswer))
}

// sent notes how a post or an edit has ended, and returns err.
func (a *Adaptor) sent(err error) error {
	var failed *threads.PostError
	switch {
	case err == nil:
		a.state.out.Store(ptr(a.now()))
		a.state.limited.Store(nil)
		a.state.lastError.Store(nil)
	case errors.As(err, &failed) && failed.Kind == threads.RateLimit:
		a.state.limited.Store(ptr(a.now().Add(failed.After)))
	default:
		kind := threads.Unsure
		if failed != nil {
			kind = failed.Kind
		}
		a.state.failed.Add(1)
		a.state.lastError.Store(ptr(string(kind))) // the rest is in the outbox, for operators
	}
	return err
}

// ask sends v, signed, to a URL of the bridge and reads its answer. An error is a
// *threads.PostError; what it says repeats nothing of the answer but a short word.
func (a *Adaptor) ask(ctx context.Context, to, id string, v any, into *answer, most int64) error {
	raw, err := a.send(ctx, to, id, v, most)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil || into.OK == nil {
		return &threads.PostError{Kind: threads.Unsure, Err: errors.New(`the bridge answered 200 with something else than {"ok":…}`)}
	}
	if *into.OK {
		return nil
	}
	return inside(into)
}

// send sends v and returns the body of a 2xx.
func (a *Adaptor) send(ctx context.Context, to, id string, v any, most int64) (jsontext.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.wait())
	defer cancel()
	body, err := json.Marshal(v)
	if err != nil { // text that is not UTF-8, which no envelope makes
		return nil, &threads.PostError{Kind: threads.RefusedPost, Err: err}
	}
	var sent atomic.Bool
	ctx = context.WithValue(ctx, sentKey{}, &sent)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	r, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, to, body)
	if err != nil {
		return nil, &threads.PostError{Kind: threads.RefusedPost, Err: withoutURL(err)}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "inband")
	(*a.secrets.Load())[0].Sign(r.Header, id, a.now(), body)
	resp, err := a.client.Do(r)
	if err != nil {
		if !sent.Load() {
			return nil, &threads.PostError{Kind: threads.Unsent, Err: withoutURL(err)}
		}
		return nil, &threads.PostError{Kind: threads.Unsure, Err: withoutURL(err)}
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if fault := status(resp, got, a.now()); fault != nil {
		return nil, fault
	}
	switch {
	case err != nil:
		return nil, &threads.PostError{Kind: threads.Unsure, Err: fmt.Errorf("the answer broke off: %w", withoutURL(err))}
	case int64(len(got)) > most:
		return nil, &threads.PostError{Kind: threads.Unsure, Err: fmt.Errorf("%w than %d bytes", errTooLong, most)}
	}
	return bytes.TrimSpace(got), nil
}

// errTooLong is why an answer is not read.
var errTooLong = errors.New("the answer is longer")

// withoutURL is err without the URL, which may hold what the bridge's owner takes for a
// secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
