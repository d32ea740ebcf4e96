package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"inband/ops"
)

const (
	// dialTimeout bounds the connection and its handshake, so that a gateway that
	// is not there is known soon whatever the command then waits for.
	dialTimeout = 5 * time.Second
	// maxAnswer bounds an answer. The largest is a page of 200 posts.
	maxAnswer = 64 << 20 // bytes
	// attempts is how often a request is sent that the gateway can tell from a new
	// one: a read, or one with an idempotency key.
	attempts = 3
)

// client speaks to one gateway as one identity.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
	where string // the gateway in words, for faults
}

// connect finds the gateway, its certificate authority and the token. It does not
// connect yet.
func (a *app) connect() (*client, error) {
	folder, err := a.folder()
	if err != nil {
		return nil, err
	}
	base, local, err := a.findGateway(folder)
	if err != nil {
		return nil, err
	}
	token, err := a.findToken(folder)
	if err != nil {
		return nil, err
	}
	pool, err := a.findCA(folder, local)
	if err != nil {
		return nil, err
	}
	return newClient(base, token, pool), nil
}

func newClient(base *url.URL, token string, pool *x509.CertPool) *client {
	return &client{
		base: base, token: token, where: base.String(),
		http: &http.Client{
			Transport: &http.Transport{
				DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
				TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool},
				TLSHandshakeTimeout:    dialTimeout,
				MaxResponseHeaderBytes: 64 << 10,
				MaxIdleConns:           4,
				IdleConnTimeout:        30 * time.Second,
			},
			// The token goes to the gateway that was asked for and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// close ends idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

func noGateway(where string) error {
	return &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("no gateway at %s", where),
		hint: "start one with: box serve; or name another one with --gateway or --state"}
}

// findGateway returns the gateway's URL, and whether it is the state folder's own.
func (a *app) findGateway(folder stateFolder) (*url.URL, bool, error) {
	given := a.gateway
	if given == "" {
		given = a.getenv("INBAND_GATEWAY")
	}
	local := given == ""
	if local {
		at, ok, err := folder.readAddress()
		if err != nil {
			return nil, false, err
		}
		if !ok {
			return nil, false, noGateway(string(folder))
		}
		given = at.URL
	}
	u, err := url.Parse(given)
	switch {
	case err != nil || u.Host == "":
		return nil, false, usagef("the gateway %q: want https://HOST:PORT", given)
	case u.Scheme != "https":
		return nil, false, usagef("the gateway %q: want https, since a token goes there", given)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return nil, false, usagef("the gateway %q: want https://HOST:PORT and nothing more", given)
	}
	u.Path = ""
	return u, local, nil
}

// findToken returns the token: --token-file, INBAND_TOKEN, or the operator's.
func (a *app) findToken(folder stateFolder) (string, error) {
	if a.tokenFile != "" {
		return readToken(a.tokenFile)
	}
	if token := strings.TrimSpace(a.getenv("INBAND_TOKEN")); token != "" {
		return token, nil
	}
	token, err := readToken(folder.token())
	if errors.Is(err, fs.ErrNotExist) {
		return "", &exitError{code: ops.ExitNotAllowed, err: fmt.Errorf("no token: there is no %s", folder.token()),
			hint: "give --token-file or INBAND_TOKEN; a gateway's first start makes the operator's token"}
	}
	return token, err
}

// findCA returns what to trust: --ca or INBAND_CA alone; else the state folder's
// authority, for a gateway elsewhere together with the system's. Nil is the system's.
func (a *app) findCA(folder stateFolder, local bool) (*x509.CertPool, error) {
	path := a.ca
	if path == "" {
		path = a.getenv("INBAND_CA")
	}
	given := path != ""
	if !given {
		path = folder.ca()
	}
	pem, err := os.ReadFile(path)
	if !given && !local && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !given && !local {
		if system, err := x509.SystemCertPool(); err == nil {
			pool = system
		}
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &exitError{code: ops.ExitUsage, err: fmt.Errorf("%s holds no certificate", path)}
	}
	return pool, nil
}

// request is one request to a route.
type request struct {
	route route
	names []string   // for the {…} of the path, in order
	query url.Values // nil: none
	body  any        // nil: none; else marshalled
	again bool       // may be sent again: the gateway tells it from a new one
	head  http.Header
}

// url fills names into the route's path.
func (c *client) url(r request) string {
	path := r.route.path
	for _, name := range r.names {
		open, end := strings.IndexByte(path, '{'), strings.IndexByte(path, '}')
		// A lone dot or two would be taken for a step in the path.
		escaped := strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
		path = path[:open] + escaped + path[end+1:]
	}
	u := c.base.String() + path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	return u
}

// answer is what a gateway answered.
type answer struct {
	status int
	body   []byte
	tries  int // how often the request was sent
}

// do sends r and returns a success's answer. A fault of the gateway comes back as an
// *ops.Fault, together with its answer; a gateway that cannot be asked as an
// exitError with code 7.
func (c *client) do(ctx context.Context, r request) (answer, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return answer{}, fmt.Errorf("encode request: %w", err)
		}
	}
	again := r.again || r.route.method == http.MethodGet
	var open error // the first loss: from then on nobody knows whether the request arrived
	for try := 1; ; try++ {
		got, err := c.once(ctx, r, body)
		got.tries = try
		if err == nil {
			return got, asFault(got)
		}
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		if open == nil && lost(err) {
			open = err
		}
		if !again || try == attempts || !lost(err) {
			if open != nil { // that the gateway is gone by now does not say that it was then
				err = open
			}
			return answer{}, c.unreachable(err, r)
		}
		if err := pause(ctx, time.Duration(try)*200*time.Millisecond); err != nil {
			return answer{}, err
		}
	}
}

func (c *client) once(ctx context.Context, r request, body []byte) (answer, error) {
	resp, err := c.send(ctx, r, body)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, whole, err := readBounded(resp.Body, maxAnswer)
	if err != nil {
		return answer{}, err
	}
	if !whole {
		return answer{}, fmt.Errorf("an answer longer than %d bytes", maxAnswer)
	}
	return answer{status: resp.StatusCode, body: b}, nil
}

func (c *client) send(ctx context.Context, r request, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.route.method, c.url(r), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range r.head {
		req.Header[name] = values
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("User-Agent", "box")
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json, application/problem+json")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.http.Do(req)
}

// asFault returns the fault in an answer, or nil if it is a success.
func asFault(got answer) error {
	if got.status >= 200 && got.status < 300 {
		return nil
	}
	var problem struct {
		ops.Fault
		Inner *ops.Fault `json:"fault"`
	}
	if err := json.Unmarshal(got.body, &problem); err != nil {
		problem.Code = ""
	}
	f := &problem.Fault
	if problem.Inner != nil {
		f = problem.Inner
	}
	if f.Code == "" {
		return &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("the answer is no gateway's: status %d %s", got.status, http.StatusText(got.status)),
			hint: "check --gateway: something else answers there"}
	}
	return f
}

// lost reports whether err may mean that the connection went, so that nobody knows
// whether the request arrived.
func lost(err error) bool {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return false
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	return true
}

// unreachable says why the gateway could not be asked, and what to do.
func (c *client) unreachable(err error, r request) error {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("the gateway at %s shows a certificate that is not trusted: %v", c.where, cert.Err),
			hint: "give its certificate authority with --ca or INBAND_CA"}
	}
	if !lost(err) {
		return noGateway(c.where)
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("the connection to %s was lost: %v", c.where, err),
		hint: afterLoss(r)}
}

// afterLoss says what is known about a request whose connection was lost.
func afterLoss(r request) string {
	if r.route.method == http.MethodGet {
		return "nothing was changed; ask again"
	}
	if key := r.head.Get("Idempotency-Key"); key != "" {
		return "whether it was done is not known; the same command with --id " + key + " finds out and does nothing twice"
	}
	return "whether it was done is not known; look before you repeat it"
}

// pause waits for d or the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// get asks a read and decodes its answer into v, if v is not nil.
func (c *client) get(ctx context.Context, r request, v any) (json.RawMessage, error) {
	got, err := c.do(ctx, r)
	if err != nil {
		return got.body, err
	}
	if err := decode(got.body, v); err != nil {
		return got.body, err
	}
	return got.body, nil
}

func decode(body []byte, v any) error {
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("the gateway's answer cannot be read: %w", err),
			hint: "box and the gateway may be of different versions: compare box version"}
	}
	return nil
}

// stream opens a route that answers with an event stream. The caller closes it. A
// connection that cannot be had or breaks is a brokenStream.
func (c *client) stream(ctx context.Context, r request) (io.ReadCloser, error) {
	r.head = r.head.Clone()
	if r.head == nil {
		r.head = make(http.Header)
	}
	r.head.Set("Accept", "text/event-stream")
	resp, err := c.send(ctx, r, nil)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &brokenStream{c.unreachable(err, r)}
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		b, _, err := readBounded(resp.Body, 1<<20)
		if err != nil {
			return nil, &brokenStream{c.unreachable(err, r)}
		}
		return nil, asFault(answer{status: resp.StatusCode, body: b})
	}
	return resp.Body, nil
}
