package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
)

// bodies are well-formed bodies of the routes that take one.
var bodies = map[string]string{
	"/exec":            `{"op":"dm","params":{"to":"scout","text":"hello"}}`,
	"/v1/replies":      `{"agent":"scout","room":"lobby","message":"m-1","text":"hello"}`,
	"/v1/audit/verify": `{"checkpoint":""}`,
	"/v1/agents":       `{"id":"new","role":"agent"}`,

	"/v1/stop":  `{"thread":"t-1"}`,
	"/v1/start": `{"thread":"t-1"}`,

	"/v1/envelope/preview":   `{"agent":"scout","errand":"Look."}`,
	"/v1/approvals/ada/deny": `{"reason":"not now"}`,
	"/v1/agents/ada/enrol":   `{"agents":["scout"]}`,
	"/v1/outbox/ada/retry":   `{"again":true}`,

	"/v1/plane/state":             `{"state":"on"}`,
	"/v1/plane/enrol":             someEnvelope,
	"/v1/plane/boots":             someEnvelope,
	"/v1/plane/callbacks":         someEnvelope,
	"/v1/plane/uploads":           someEnvelope,
	"/v1/plane/poll":              `{"boot":"b","nonce":"n","wait_ms":0}`,
	"/v1/workers/invitations":     `{"name":"builder"}`,
	"/v1/workers/ada/drain":       `{"off":true}`,
	"/v1/delegations/ada/cancel":  `{"reason":"not now"}`,
	"/v1/delegations/ada/resolve": `{"resolution":"fail"}`,
}

// mayBeEmpty are the routes whose body needs no member.
var mayBeEmpty = []string{"/v1/approvals/{id}/deny", "/v1/outbox/{id}/retry", "/v1/workers/{id}/drain", "/v1/delegations/{id}/cancel"}

// spoil returns request body with its first name replaced.
func spoil(body, by string) string {
	_, rest, _ := strings.Cut(body[2:], `"`)
	return `{"` + by + `"` + rest
}

// first is the name of the first member of a body.
func first(body string) string { name, _, _ := strings.Cut(body[2:], `"`); return name }

// Every route refuses the same, and nothing at all comes of a refused request.
func TestEveryRouteRefuses(t *testing.T) {
	g := open(t)
	revoked := g.addRevoked()
	var worker AgentAdded
	g.ok(201, request{method: "POST", path: "/v1/agents", as: "ada", body: `{"id":"wk","role":"worker"}`}, &worker)
	g.tokens["wk"] = worker.Token
	d, _ := g.document()
	before, err := g.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for template, methods := range d.Paths {
		for method, op := range methods {
			if op.OperationID == hookOperation || method == "patch" { // its body is somebody else's, or bytes, and it has a test of its own
				continue
			}
			method = strings.ToUpper(method)
			path := strings.NewReplacer("{id}", "ada", "{name}", "tools").Replace(template)
			valid := request{method: method, path: path, as: "ada", body: bodies[path]}
			if method == "GET" {
				valid.body = ""
			}
			if name, ok := strings.CutPrefix(path, "/v1/plane/"); ok && name != "state" && name != "fence-term" {
				valid.as = "wk"
			}
			hasBody, needsToken := op.RequestBody != nil, len(op.Security) > 0
			if hasBody != (valid.body != "") {
				t.Errorf("%s %s takes a body is %v; the table says %v", method, template, hasBody, valid.body != "")
			}

			type refusal struct {
				name   string
				change func(*request)
				want   ops.Code
			}
			header := func(k, v string) func(*request) {
				return func(q *request) { q.header = map[string]string{k: v} }
			}
			body := func(b string) func(*request) { return func(q *request) { q.body = b } }
			table := []refusal{
				{"unknown query", func(q *request) { q.path += "?verbose=1" }, ops.BadRequest},
				{"token in the query", func(q *request) { q.path += "?access_token=" + g.tokens["ada"] }, ops.BadRequest},
				{"token as a name in the query", func(q *request) { q.path += "?" + g.tokens["ada"] }, ops.BadRequest},
				{"malformed query", func(q *request) { q.path += "?a=%zz" }, ops.BadRequest},
				{"semicolons in the query", func(q *request) { q.path += "?a=1;b=2" }, ops.BadRequest},
				{"another host", func(q *request) { q.host = "evil.example" }, ops.NotPermitted},
				{"another host that begins right", func(q *request) { q.host = "localhost.evil.example" }, ops.NotPermitted},
				{"foreign origin", header("Origin", "https://evil.example"), ops.NotPermitted},
				{"null origin", header("Origin", "null"), ops.NotPermitted},
				{"origin without TLS", header("Origin", "http://"+g.addr), ops.NotPermitted},
				{"origin on another port", header("Origin", "https://127.0.0.1:1"), ops.NotPermitted},
				{"cross-site", header("Sec-Fetch-Site", "cross-site"), ops.NotPermitted},
				{"trailing slash", func(q *request) { q.path += "/" }, ops.NotFound},
				{"two slashes", func(q *request) { q.path = "/" + q.path }, ops.NotFound},
				{"encoded letter", func(q *request) { q.path = fmt.Sprintf("/%%%02x%s", q.path[1], q.path[2:]) }, ops.NotFound},
				{"another case", func(q *request) { q.path = strings.ToUpper(q.path) }, ops.NotFound},
				{"control character", func(q *request) { q.path += "%00" }, ops.BadRequest},
				{"wrong method", func(q *request) { q.method, q.body = "DELETE", "" }, ops.Method},
				{"invented method", func(q *request) { q.method, q.body = "BREW", "" }, ops.Method},
			}
			if needsToken {
				table = append(table,
					refusal{"no token", func(q *request) { q.as = "" }, ops.Unauthenticated},
					refusal{"wrong token", header("Authorization", "Bearer ibt_"+strings.Repeat("0", 64)), ops.Unauthenticated},
					refusal{"revoked token", header("Authorization", "Bearer "+revoked), ops.Unauthenticated},
					refusal{"cut token", header("Authorization", "Bearer "+g.tokens["ada"][:40]), ops.Unauthenticated},
					refusal{"basic", header("Authorization", "Basic YWRhOmFkYQ=="), ops.Unauthenticated},
					refusal{"token alone", header("Authorization", g.tokens["ada"]), ops.Unauthenticated},
				)
			}
			for _, p := range op.Parameters {
				if p.In == "query" {
					table = append(table,
						refusal{"repeated " + p.Name, func(q *request) { q.path += "?" + p.Name + "=1&" + p.Name + "=1" }, ops.BadRequest},
						refusal{"empty " + p.Name, func(q *request) { q.path += "?" + p.Name + "=" }, ops.BadRequest},
						refusal{"control in " + p.Name, func(q *request) { q.path += "?" + p.Name + "=%0a" }, ops.BadRequest},
						refusal{"another case of " + p.Name, func(q *request) { q.path += "?" + strings.ToUpper(p.Name) + "=1" }, ops.BadRequest},
						refusal{"long " + p.Name, func(q *request) { q.path += "?" + p.Name + "=" + strings.Repeat("1", 1000) }, ops.BadRequest},
					)
				}
			}
			if method == "GET" {
				table = append(table, refusal{"a body", body(`{}`), ops.BadRequest})
			} else {
				table = append(table,
					refusal{"array", body(`[]`), ops.BadRequest},
					refusal{"string", body(`"x"`), ops.BadRequest},
					refusal{"null", body(`null`), ops.BadRequest},
					refusal{"two objects", body(`{}{}`), ops.BadRequest},
					refusal{"byte order mark", body("\xEF\xBB\xBF{}"), ops.BadRequest},
					refusal{"unknown member", body(`{"sudo":true}`), ops.BadRequest},
					refusal{"cut short", body(`{`), ops.BadRequest},
					refusal{"a comment", body(`{}//`), ops.BadRequest},
					refusal{"white space alone", body(" "), ops.BadRequest},
					refusal{"no content type", func(q *request) { q.body = `{}`; q.header = map[string]string{"Content-Type": ""} }, ops.MediaType},
					refusal{"wrong content type", func(q *request) { q.body = `{}`; q.header = map[string]string{"Content-Type": "text/plain"} }, ops.MediaType},
					refusal{"a form", func(q *request) {
						q.body = "op=tools"
						q.header = map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
					}, ops.MediaType},
					refusal{"wrong charset", func(q *request) {
						q.body = `{}`
						q.header = map[string]string{"Content-Type": "application/json; charset=latin1"}
					}, ops.MediaType},
					refusal{"gzip", func(q *request) { q.body = `{}`; q.header = map[string]string{"Content-Encoding": "gzip"} }, ops.MediaType},
				)
			}
			if hasBody {
				name := first(valid.body)
				table = append(table,
					refusal{"no body", body(""), ops.BadRequest},
					refusal{"trailing bytes", body(valid.body + "x"), ops.BadRequest},
					refusal{"another case", body(spoil(valid.body, strings.ToUpper(name))), ops.BadRequest},
					refusal{"twice", body(`{"` + name + `":"x",` + valid.body[1:]), ops.BadRequest},
					refusal{"twice, escaped", body(fmt.Sprintf(`{"\u%04x%s":"x",%s`, name[0], name[1:], valid.body[1:])), ops.BadRequest},
					refusal{"null for a value", body(`{"` + name + `":null,` + valid.body[1:]), ops.BadRequest},
					refusal{"a number for a value", body(fmt.Sprintf(`{"%s":7}`, name)), ops.BadRequest},
					refusal{"one too many", body(valid.body[:len(valid.body)-1] + `,"extra":1}`), ops.BadRequest},
					refusal{"invalid UTF-8", body(fmt.Sprintf("{\"%s\":\"\xff\"}", name)), ops.BadRequest},
					refusal{"half a surrogate", body(fmt.Sprintf(`{"%s":"\ud800"}`, name)), ops.BadRequest},
					refusal{"too large", body(valid.body + strings.Repeat(" ", 1<<20)), ops.TooLarge},
				)
				if !slices.Contains(mayBeEmpty, template) {
					table = append(table, refusal{"empty object", body(`{}`), ops.BadRequest})
				}
			}
			for _, r := range table {
				t.Run(method+template+"/"+r.name, func(t *testing.T) {
					g := *g
					g.t = t
					q := valid
					r.change(&q)
					a := g.do(q)
					if a.fault.Code != r.want {
						t.Fatalf("got %s, want %s", a, r.want)
					}
					if www := a.header.Get("WWW-Authenticate"); (www != "") != (r.want == ops.Unauthenticated) {
						t.Errorf("WWW-Authenticate is %q", www)
					}
					if allow := a.header.Get("Allow"); r.want == ops.Method && !strings.Contains(allow, method) {
						t.Errorf("Allow is %q, want it to hold %s", allow, method)
					}
					if r.want == ops.TooLarge && a.fault.Details["max"] == nil {
						t.Errorf("no details.max in %s", a)
					}
				})
			}
		}
	}
	after, err := g.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("the journal has %d new events; refusals leave none", after-before)
	}
	for id, token := range g.tokens {
		if strings.Contains(g.logs.String(), token) {
			t.Errorf("the log holds the token of %s", id)
		}
	}
}

// addRevoked returns the token of an identity that has been revoked.
func (g *gateway) addRevoked() string {
	g.t.Helper()
	var added AgentAdded
	g.ok(201, request{method: "POST", path: "/v1/agents", as: "ada", body: `{"id":"gone","role":"operator"}`}, &added)
	g.ok(200, request{method: "POST", path: "/v1/agents/gone/revoke", as: "ada"}, nil)
	return added.Token
}

func TestHeaderTwice(t *testing.T) {
	g := open(t)
	for name, values := range map[string][2]string{
		"Authorization":   {"Bearer " + g.tokens["ada"], "Bearer " + g.tokens["ada"]},
		"Idempotency-Key": {"a", "b"},
		"Content-Type":    {"application/json", "application/json"},
		"Origin":          {g.url, g.url},
	} {
		r := g.build(t.Context(), request{method: "POST", path: "/exec", as: "ada", body: `{"op":"tools"}`})
		r.Header[name] = values[:]
		if a := g.send(r); a.status < 400 || a.status >= 500 {
			t.Errorf("%s twice: got %s", name, a)
		}
	}
	r := g.build(t.Context(), request{method: "GET", path: "/v1/events", as: "ada"})
	r.Header["Last-Event-Id"] = []string{"1", "2"}
	if a := g.send(r); a.fault.Code != ops.BadRequest {
		t.Errorf("Last-Event-ID twice: got %s", a)
	}
	// Prefer is a list: its lines are one.
	r = g.build(t.Context(), request{method: "POST", path: "/exec", as: "ada", body: `{"op":"slow"}`})
	r.Header["Prefer"] = []string{"wait=1", "respond-async"}
	if a := g.send(r); a.status != 202 {
		t.Errorf("Prefer on two lines: got %s", a)
	}
	close(g.release)
}

func TestSameOriginIsServed(t *testing.T) {
	g := open(t, func(c *Config) { c.Hosts = []string{"Box.Example"} })
	_, port, err := net.SplitHostPort(g.addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1:" + port, "localhost:" + port, "[::1]:" + port, "LOCALHOST:" + port, "box.example", "box.example:443"} {
		a := g.do(request{method: "GET", path: "/v1/version", as: "ada", host: host, header: map[string]string{
			"Origin": "https://" + host, "Sec-Fetch-Site": "same-origin",
		}})
		if a.status != 200 {
			t.Errorf("%s: got %s", host, a)
		}
	}
}

func TestMethods(t *testing.T) {
	g := open(t)
	for _, c := range []struct{ path, allow string }{
		{"/exec", "POST, OPTIONS"},
		{"/v1/agents", "GET, HEAD, POST, OPTIONS"},
		{"/v1/ops/reload", "GET, HEAD, POST, OPTIONS"},
		{"/v1/calls/c-1/cancel", "POST, OPTIONS"},
		{"/healthz", "GET, HEAD, OPTIONS"},
	} {
		if a := g.do(request{method: "OPTIONS", path: c.path}); a.status != 204 || a.header.Get("Allow") != c.allow || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("OPTIONS %s: got %s, Allow %q, want %q", c.path, a, a.header.Get("Allow"), c.allow)
		}
		if a := g.do(request{method: "PUT", path: c.path}); a.fault.Code != ops.Method || a.header.Get("Allow") != c.allow {
			t.Errorf("PUT %s: got %s, Allow %q, want %q", c.path, a, a.header.Get("Allow"), c.allow)
		}
	}
	if a := g.do(request{method: "OPTIONS", path: "/nowhere"}); a.fault.Code != ops.NotFound {
		t.Errorf("OPTIONS /nowhere: got %s", a)
	}
	if a := g.do(request{method: "BREW", path: "/nowhere"}); a.fault.Code != ops.NotFound {
		t.Errorf("BREW /nowhere: got %s", a)
	}
	for _, path := range []string{"/v1/version", "/healthz", "/v1/events"} {
		get := 200
		if a := g.do(request{method: "HEAD", path: path, as: "ada"}); a.status != get || len(a.body) > 0 {
			t.Errorf("HEAD %s: got %s", path, a)
		}
	}
	if a := g.do(request{method: "HEAD", path: "/v1/version"}); a.status != 401 {
		t.Errorf("HEAD without a token: got %s", a)
	}
}

// Paths that other servers clean, decode or redirect lead nowhere.
func TestPathsAsWritten(t *testing.T) {
	g := open(t)
	for _, path := range []string{
		"/v1/../exec", "/v1/./version", "/v1//version", "/v1%2fversion", "/v1/%2e%2e/healthz", "/v1/version/..", "/v1/version;x=1",
		"/v1/version%20", "/", "/v1", "//127.0.0.1/v1/version", "/v1/ops/test.a/b", `/v1\version`, "/v1/%76ersion",
	} {
		c := g.raw()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, g.tokens["ada"])
		if a := g.answerTo(c, "GET", "/"); a.fault.Code != ops.NotFound {
			t.Errorf("%s: got %s, want %s", path, a, ops.NotFound)
		}
	}
	// An encoded slash is part of a name, and of nothing else.
	if a := g.do(request{method: "GET", path: "/v1/ops/test.a%2Fb", as: "ada"}); a.status != 200 {
		t.Errorf("an op with a slash: got %s", a)
	}
	if a := g.do(request{method: "GET", path: "/v1/ops/%2e%2e%2fstatus", as: "ada"}); a.fault.Code != ops.UnknownOp {
		t.Errorf("an op that climbs: got %s", a)
	}
}

// A body that is announced as too large is refused before any of it is read.
func TestTooLargeIsNotRead(t *testing.T) {
	g := open(t)
	for path, most := range map[string]int{"/exec": 64 << 10, "/v1/replies": 1 << 20, "/v1/agents": 64 << 10} {
		c := g.raw()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, g.tokens["ada"], 10<<20)
		a := g.answerTo(c, "POST", path)
		if a.fault.Code != ops.TooLarge || a.fault.Details["max"] != float64(most) || !a.closes {
			t.Errorf("%s: got %s, and the connection stays is %v", path, a, !a.closes)
		}

		// One that never says how long it is, and never ends.
		c = g.raw()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", path, g.tokens["ada"])
		fmt.Fprintf(c, "%x\r\n%s\r\n", most+1, strings.Repeat(" ", most+1))
		if a := g.answerTo(c, "POST", path); a.fault.Code != ops.TooLarge {
			t.Errorf("%s in chunks: got %s", path, a)
		}
	}
	// Just as much as fits is taken.
	for path, most := range map[string]int{"/exec": 64 << 10, "/v1/replies": 1 << 20} {
		body := strings.Replace(bodies[path], "hello", strings.Repeat("x", 10), 1)
		body += strings.Repeat(" ", most-len(body))
		if a := g.do(request{method: "POST", path: path, as: "ada", body: body}); a.status >= 300 {
			t.Errorf("%s with %d bytes: got %s", path, len(body), a)
		}
	}
}

func TestOversizedHeader(t *testing.T) {
	g := open(t)
	c := g.raw()
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Padding: %s\r\n\r\n", strings.Repeat("x", 64<<10))
	b, err := io.ReadAll(c)
	if !bytes.HasPrefix(b, []byte("HTTP/1.1 431 ")) {
		t.Errorf("got %q, %v", b, err)
	}
}

// Clients that send slowly lose their connection. (The bounds are for a handshake on a
// busy machine too.)
func TestSlowClients(t *testing.T) {
	g := open(t, func(c *Config) {
		c.Limits.ReadHeader, c.Limits.Read, c.Limits.Idle = 100*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
	})
	c := g.raw()
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: local")
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 && !bytes.HasPrefix(b, []byte("HTTP/1.1 408 ")) {
		t.Errorf("half a header: got %q, %v", b, err)
	}

	c = g.raw()
	fmt.Fprintf(c, "POST /exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"op\"", g.tokens["ada"])
	if a := g.answerTo(c, "POST", "/exec"); a.fault.Code != ops.BadRequest {
		t.Errorf("half a body: got %s", a)
	}
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("after half a body: got %q, %v; want the end", b, err)
	}

	c = g.raw()
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if a := g.answerTo(c, "GET", "/healthz"); a.status != 200 {
		t.Errorf("got %s", a)
	}
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("an idle connection: got %q, %v; want the end", b, err)
	}

	// One that says nothing at all holds its place no longer.
	plain, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(plain); len(b) > 0 || err != nil {
		t.Errorf("no handshake: got %q, %v; want the end", b, err)
	}
}

// However many agents wait, an operator still gets in, and could cancel their calls.
func TestRoomForOperators(t *testing.T) {
	g := open(t, func(c *Config) { c.Limits.Requests = 8 })
	var agents sync.WaitGroup
	for range 7 {
		r := g.build(t.Context(), request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`})
		agents.Go(func() {
			if resp, err := g.client.Do(r); err == nil {
				resp.Body.Close()
			}
		})
		<-g.begun
	}
	if a := g.do(request{method: "GET", path: "/v1/version", as: "scout"}); a.fault.Code != ops.Busy {
		t.Errorf("one more of an agent: got %s, want BUSY", a)
	}
	if a := g.do(request{method: "GET", path: "/v1/version", as: "ada"}); a.status != 200 {
		t.Errorf("an operator: got %s", a)
	}
	close(g.release)
	agents.Wait()
}

func TestRoomForRequests(t *testing.T) {
	g := open(t, func(c *Config) { c.Limits.Requests = 1 })
	done := make(chan struct{})
	r := g.build(t.Context(), request{method: "POST", path: "/exec", as: "ada", body: `{"op":"slow"}`})
	go func() {
		defer close(done)
		resp, err := g.client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-g.begun
	if a := g.do(request{method: "GET", path: "/v1/version", as: "ada"}); a.fault.Code != ops.Busy || !a.fault.Retryable || a.header.Get("Retry-After") == "" {
		t.Errorf("got %s", a)
	}
	if a := g.do(request{method: "GET", path: "/healthz"}); a.status != 200 {
		t.Errorf("/healthz: got %s", a)
	}
	close(g.release)
	<-done
}

// pipes is a listener to which somebody has always just connected.
type pipes struct{ net.Listener }

func (pipes) Accept() (net.Conn, error) {
	c, other := net.Pipe()
	other.Close()
	return c, nil
}

func (pipes) Close() error { return nil }

func TestRoomForConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := limitListener(pipes{}, 1)
		first, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var accepted atomic.Int32
		var last atomic.Value
		go func() {
			for {
				if _, err := ln.Accept(); err != nil {
					last.Store(err)
					return
				}
				accepted.Add(1)
			}
		}()
		synctest.Wait()
		if n := accepted.Load(); n != 0 {
			t.Errorf("%d connections beside the first, want none", n)
		}
		first.Close()
		first.Close() // as net/http may; it makes room once
		synctest.Wait()
		if n := accepted.Load(); n != 1 {
			t.Errorf("%d connections after the first, want 1", n)
		}
		ln.Close()
		synctest.Wait()
		if err, _ := last.Load().(error); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener ended with %v, want %v", err, net.ErrClosed)
		}
	})
}

func TestPanics(t *testing.T) {
	g := open(t)
	g.reload = func(context.Context) (any, error) { panic("a secret: " + g.tokens["ada"]) }
	a := g.do(request{method: "POST", path: "/v1/ops/reload", as: "ada"})
	if a.fault.Code != ops.Internal {
		t.Errorf("got %s", a)
	}
	if log := g.logs.String(); !strings.Contains(log, "panic while serving") || !strings.Contains(log, a.header.Get("X-Request-Id")) {
		t.Errorf("the log says nothing of it: %s", log)
	}
	if a := g.do(request{method: "GET", path: "/healthz"}); a.status != 200 {
		t.Errorf("after it: %s", a)
	}
}

func TestReload(t *testing.T) {
	g := open(t)
	if a := g.do(request{method: "POST", path: "/v1/ops/reload", as: "scout"}); a.fault.Code != ops.NotPermitted {
		t.Errorf("an agent: got %s", a)
	}
	g.reload = func(context.Context) (any, error) {
		return nil, ops.Faultf(ops.Conflict, "the op files are wrong").With("problems", []string{"a.yaml:3: no argv"})
	}
	if a := g.do(request{method: "POST", path: "/v1/ops/reload", as: "ada"}); a.fault.Code != ops.Conflict || a.fault.Details["problems"] == nil {
		t.Errorf("wrong files: got %s", a)
	}
}

func TestReady(t *testing.T) {
	g := open(t)
	g.ready = func() []string { return []string{"the outbox"} }
	a := g.do(request{method: "GET", path: "/readyz"})
	if a.fault.Code != ops.Unavailable || fmt.Sprint(a.fault.Details["missing"]) != "[the outbox]" {
		t.Errorf("got %s", a)
	}
}

func TestAgents(t *testing.T) {
	g := open(t)
	for _, c := range []struct {
		as   ops.IdentityID
		body string
		want int
	}{
		{"scout", `{"id":"x","role":"agent"}`, 403},
		{"mx", `{"id":"x","role":"agent"}`, 403},
		{"ada", `{"id":"X","role":"agent"}`, 400},
		{"ada", `{"id":"x","role":"king"}`, 400},
		{"ada", `{"id":"w","role":"worker","agents":["scout"]}`, 400},
		{"ada", `{"id":"w","role":"worker"}`, 201},
		{"ada", `{"id":"v","role":"verifier"}`, 201},
		{"ada", `{"id":"x","role":"agent","agents":["scout"]}`, 400},
		{"ada", `{"id":"x","role":"bridge","agents":null}`, 400},
		{"ada", `{"id":"x","role":"bridge","agents":["nobody"]}`, 400},
		{"ada", `{"id":"scout","role":"agent"}`, 409},
		{"ada", `{"id":"x","role":"bridge","agents":["scout"]}`, 201},
	} {
		if a := g.do(request{method: "POST", path: "/v1/agents", as: c.as, body: c.body}); a.status != c.want {
			t.Errorf("%s adds %s: got %s, want %d", c.as, c.body, a, c.want)
		}
	}
	if a := g.do(request{method: "POST", path: "/v1/agents/x/revoke", as: "scout"}); a.status != 403 {
		t.Errorf("an agent revokes: got %s", a)
	}
	g.ok(200, request{method: "POST", path: "/v1/agents/scout/revoke", as: "ada"}, nil)
	if a := g.do(request{method: "GET", path: "/v1/version", as: "scout"}); a.status != 401 {
		t.Errorf("the revoked one: got %s", a)
	}
}

// schemas of the bodies, as the server has them.
func bodySchemas(t testing.TB) (huma.Registry, map[string]*huma.Schema) {
	t.Helper()
	g := open(t)
	m := make(map[string]*huma.Schema)
	for path := range bodies {
		template := strings.Replace(path, "/ada/", "/{id}/", 1)
		m[path] = bodySchema(g.server.api.OpenAPI().Paths[template].Post)
	}
	return g.server.api.OpenAPI().Components.Schemas, m
}

func TestCheckJSON(t *testing.T) {
	registry, schemas := bodySchemas(t)
	deep := strings.Repeat(`{"a":`, 20) + `{"b":1,"b":2}` + strings.Repeat("}", 20)
	for _, c := range []struct{ body, pointer, say string }{
		{`{"op":"x","params":{"a":[1,{"b":null}]}}`, "", ""},
		{` { "op" : "x" } ` + "\n", "", ""},
		{`{"op":"x","op":"y"}`, "/op", "twice"},
		{`{"op":"x","params":{"a":{"b":1,"b":2}}}`, "/params/a/b", "twice"},
		{`{"op":"x","params":` + deep + `}`, "/params/a/a/a/a/a/a/a/…", "twice"},
		{`{"op":"x","Params":{}}`, "/Params", `"params"`},
		{`{"op":"x","oP":"y"}`, "/oP", `"op"`},
		{`{"op":"x","sudo":1}`, "/sudo", "known are id, key, op, params"},
		{`{"op":"x","ibt_0123":1}`, "/…", "unknown"},
		{`{"op":null}`, "/op", "null"},
		{`{"op":"x","params":null}`, "/params", "null"},
		{`{"op":"x"} {}`, "", "behind"},
		{`{"op":"x"`, "", "early"},
		{`{"op":"x",}`, "", "not JSON"},
		{`{'op':'x'}`, "", "not JSON"},
		{"{\"op\":\"\xff\"}", "/op", "UTF-8"},
		{"{\"op\":\"a\nb\"}", "/op", "not JSON"},
		{"\xEF\xBB\xBF{}", "", "byte order mark"},
		{`[]`, "", "one JSON object"},
		{``, "", "early"},
		{`{"op":NaN}`, "/op", "not JSON"},
		{`{"op":01}`, "", "not JSON"},
	} {
		f := checkJSON([]byte(c.body), registry, schemas["/exec"])
		switch {
		case c.say == "" && f != nil:
			t.Errorf("%s: got %v, want it taken", c.body, f)
		case c.say == "":
		case f == nil:
			t.Errorf("%s: taken, want a fault with %q", c.body, c.say)
		case !strings.Contains(f.Message, c.say) || f.Details["pointer"] != c.pointer || f.Details["byte"] == nil:
			t.Errorf("%s: got %v with %v, want %q at %q", c.body, f, f.Details, c.say, c.pointer)
		}
	}
}

// What the check takes, encoding/json reads in one way only: reading it, writing it
// and reading it again gives the same, and no member was lost or renamed.
func FuzzCheckJSON(f *testing.F) {
	registry, schemas := bodySchemas(f)
	paths := slices.Sorted(maps.Keys(schemas))
	for i, path := range paths {
		f.Add(i, []byte(bodies[path]))
		f.Add(i, []byte(spoil(bodies[path], strings.ToUpper(first(bodies[path])))))
	}
	f.Add(0, []byte(`{"op":"x","params":{"a":{"b":1,"b":2}},"key":"\u0061"}`))
	f.Add(0, []byte("{\"op\":\"\xff\"}"))
	f.Add(0, []byte(`{"op":"x"} `))
	f.Add(0, []byte(strings.Repeat("[", 20000)))
	f.Fuzz(func(t *testing.T, i int, body []byte) {
		path := paths[uint(i)%uint(len(paths))]
		schema := schemas[path]
		for schema.Ref != "" {
			schema = registry.SchemaFromRef(schema.Ref)
		}
		fault := checkJSON(body, registry, schema)
		if fault != nil {
			if fault.Code != ops.BadRequest || fault.Message == "" || len(fault.Message) > 1000 {
				t.Fatalf("%q: a fault %v", body, fault)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q is taken and is not JSON", body)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(body, &members); err != nil {
			t.Fatalf("%q is taken: %v", body, err)
		}
		for name, value := range members {
			if schema.Properties[name] == nil {
				t.Fatalf("%q is taken with the unknown member %q", body, name)
			}
			if string(value) == "null" {
				t.Fatalf("%q is taken with null for %q", body, name)
			}
		}
		d := json.NewDecoder(bytes.NewReader(body))
		if n := countNames(t, d); n != len(members) {
			t.Fatalf("%q is taken: %d members are written, %d are read", body, n, len(members))
		}
	})
}

// countNames counts the members of the object that d reads, however often each.
func countNames(t *testing.T, d *json.Decoder) (n int) {
	depth := 0
	name := true
	for {
		token, err := d.Token()
		if err == io.EOF {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
			name = true
			continue
		case json.Delim('}'), json.Delim(']'):
			depth--
			name = true
			continue
		}
		if depth == 1 {
			if name {
				n++
			}
			name = !name
		}
	}
}
