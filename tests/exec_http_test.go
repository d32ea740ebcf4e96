package tests

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"inband/ops"
)

// What the HTTP side of the gateway does with requests that are not what they seem.

// twoOps are an op that an agent may run under only, and one that it may not; both
// leave a trace.
const (
	twoOps = `provider: test
title: Two ops
ops:
  test.up: {summary: Note that it ran., side_effecting: true, argv: [PROGRAM, act, trace, DIR/ran, up], fs: {write: [DIR]}}
  test.down: {summary: Note that it ran., side_effecting: true, argv: [PROGRAM, act, trace, DIR/ran, down], fs: {write: [DIR]}}
`
	onlyUp = `permit (principal is Operator, action, resource);
permit (principal is Agent, action == Action::"run", resource == Op::"test.up");
permit (principal is Agent, action, resource) when { context has own && context.own };
`
)

func twoOpsSite(t *testing.T, policy string) *lab {
	t.Helper()
	return newSiteWith(t, twoOps, policy, func(l *lab) { l.file("ran") })
}

// runs are the ops that ran, in their order.
func (l *lab) runs() (all []string) {
	l.t.Helper()
	for _, s := range l.traces("ran") {
		all = append(all, s.Args[0])
	}
	return all
}

// sent is the answer to a request of raw header and body.
type sent struct {
	status int
	body   []byte
	header http.Header
}

// send sends a request as the lab's client, with a header of its own.
func (l *lab) send(method, path, body string, header map[string]string) sent {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), method, l.url+path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	for k, v := range header {
		if k == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	res, err := l.client.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		l.t.Fatal(err)
	}
	return sent{res.StatusCode, b, res.Header}
}

// bearer is the header of a JSON request of a token.
func bearer(token string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json"}
}

// with is h with one more member.
func with(h map[string]string, key, value string) map[string]string {
	all := map[string]string{key: value}
	for k, v := range h {
		if k != key {
			all[k] = v
		}
	}
	return all
}

// dial is a connection that speaks HTTP/1.1 as the test writes it.
func (l *lab) dial() net.Conn {
	l.t.Helper()
	config := l.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName, config.NextProtos = "localhost", []string{"http/1.1"}
	c, err := tls.Dial("tcp", strings.TrimPrefix(l.url, "https://"), config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// Case x05: what a client calls its requests names no file.
func TestClientsNameNoFiles(t *testing.T) {
	l := twoOpsSite(t, everything)
	above := filepath.Dir(l.state)
	before := tree(t, above, l.state)
	mark := fmt.Sprintf("pwn-%d", os.Getpid())
	ids := []string{"../../../tmp/" + mark, "a/" + mark, ".", "..", "con\x00" + mark, "/tmp/" + mark, `..\` + mark, strings.Repeat(mark, 1000)}
	for _, id := range ids {
		quoted, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		headers := []map[string]string{bearer(l.scout)}
		if !strings.Contains(id, "\x00") {
			headers = append(headers, with(bearer(l.scout), "Idempotency-Key", id), with(bearer(l.scout), "X-Request-Id", id), with(bearer(l.scout), "X-Correlation-Id", id))
		}
		for _, h := range headers {
			a := l.send("POST", "/exec", `{"op":"test.up","params":{}}`, h)
			if a.status != http.StatusOK && a.status != http.StatusBadRequest || id != "." && id != ".." && bytes.Contains(a.body, []byte(id)) {
				t.Errorf("header %q: status %d %s", h, a.status, a.body)
			}
			if got := a.header.Get("X-Request-Id"); !strings.HasPrefix(got, "q-") || got == id {
				t.Errorf("X-Request-Id is %q", got)
			}
		}
		for _, body := range []string{`{"op":"test.up","id":%s}`, `{"op":"test.up","key":%s}`} {
			a := l.send("POST", "/exec", fmt.Sprintf(body, quoted), bearer(l.scout))
			wrong := a.status == http.StatusForbidden && bytes.Contains(a.body, []byte(ops.WrongKey)) // no key of a wake
			if a.status != http.StatusOK && a.status != http.StatusBadRequest && !wrong {
				t.Errorf("body with %s: status %d %s", quoted, a.status, a.body)
			}
		}
		for _, field := range []string{"message", "room", "thread"} {
			body := map[string]string{"room": "lobby", "message": "m", "text": "[TOOL tools {}]"}
			if field == "thread" {
				delete(body, "room")
			}
			body[field] = id
			if status, a := l.ask(l.scout, "POST", "/v1/replies", body); status != 200 && status/100 != 4 {
				t.Errorf("reply with %s %q: status %d %s", field, id, status, a.Code)
			}
		}
	}
	for _, id := range []string{strings.Repeat("k", 129), "con\u0000x"} {
		if status, a := l.ask(l.scout, "POST", "/exec", map[string]any{"op": "test.up", "id": id}); status != http.StatusBadRequest {
			t.Errorf("key %.20q: status %d %s, want 400", id, status, a.Code)
		}
	}
	l.quiet()
	if after := tree(t, above, l.state); !slices.Equal(before, after) {
		t.Errorf("outside the state folder there is now\n%s\nand there was\n%s", after, before)
	}
	for _, path := range append(tree(t, l.state), "/tmp/"+mark) {
		if _, err := os.Lstat(path); err == nil && strings.Contains(path, mark) {
			t.Errorf("a client named the file %s", path)
		}
	}
}

// Case x10: without a token nothing tells an op that exists from one that does not; with
// one, an op that one may not run is described as such, and nothing tries it out.
func TestOpsAreShownToIdentities(t *testing.T) {
	l := twoOpsSite(t, onlyUp)
	for _, path := range []string{"/v1/ops/%s", "/v1/ops/%s?dry_run=1", "/v1/calls?op=%s"} {
		var first []byte
		for _, name := range []string{"test.down", "no.such", "tools.list", "-x"} {
			for _, h := range []map[string]string{{}, bearer("ibt_" + strings.Repeat("0", 64))} {
				a := l.send("GET", fmt.Sprintf(path, name), "", h)
				if first == nil {
					first = a.body
				}
				if a.status != http.StatusUnauthorized || !bytes.Equal(a.body, first) {
					t.Errorf("GET "+path+": status %d %s, want 401 %s", name, a.status, a.body, first)
				}
			}
		}
	}
	var first []byte
	for _, body := range []string{`{"op":"test.down"}`, `{"op":"no.such"}`, `{"op":"test.down","params":{"x":1}}`} {
		a := l.send("POST", "/exec", body, map[string]string{"Content-Type": "application/json"})
		if first == nil {
			first = a.body
		}
		if a.status != http.StatusUnauthorized || !bytes.Equal(a.body, first) {
			t.Errorf("POST /exec %s: status %d %s", body, a.status, a.body)
		}
	}
	for name, want := range map[string]bool{"test.up": true, "test.down": false} {
		var op struct {
			Name      string
			Permitted *bool
		}
		if err := l.as(l.scout, "GET", "/v1/ops/"+name, nil, &op); err != nil || op.Name != name || op.Permitted == nil || *op.Permitted != want {
			t.Errorf("%s is described as %+v, %v", name, op, err)
		}
	}
	// There is no dry run; whatever asks for one is refused, and does not run either.
	for path, body := range map[string]string{"/exec?dry_run=1": `{"op":"test.up"}`, "/exec": `{"op":"test.up","dry_run":true}`, "/v1/ops/test.up/validate": `{}`, "/v1/exec": `{"op":"test.up"}`} {
		if a := l.send("POST", path, body, bearer(l.scout)); a.status != http.StatusBadRequest && a.status != http.StatusNotFound {
			t.Errorf("POST %s %s: status %d", path, body, a.status)
		}
	}
	if a := l.send("POST", "/exec", `{"op":"test.down","params":{"x":1}}`, bearer(l.scout)); a.status != http.StatusForbidden {
		t.Errorf("an op that scout may not run, with parameters that it does not have: status %d %s, want 403", a.status, a.body)
	}
	if ran := l.runs(); len(ran) > 0 {
		t.Errorf("%v ran", ran)
	}
}

// Cases x12 and x44: who is not known here gets one and the same answer, whatever they
// present, and it tells nothing.
func TestStrangersGetOneAnswer(t *testing.T) {
	one := twoOpsSite(t, everything)
	one.kill()
	two := newSiteWith(t, twoOps, everything, func(l *lab) {
		l.file("ran")
		for _, from := range tree(t, filepath.Join(one.state, "tls"))[1:] {
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(l.state, "tls", filepath.Base(from)), string(b))
		}
	})
	one.again()
	body := `{"op":"test.up"}`
	if a := one.send("POST", "/exec", body, bearer(one.scout)); a.status != http.StatusOK {
		t.Fatalf("scout of one at one: status %d %s", a.status, a.body)
	}
	flipped := []byte(two.scout)
	flipped[len(flipped)-1] ^= 1
	const header, claims = "eyJhbGciOiJub25lIn0", "eyJzdWIiOiJvcGVyYXRvciIsImV4cCI6MX0" // alg none, no audience, expired
	strangers := map[string]map[string]string{
		"nothing":           {},
		"empty":             {"Authorization": ""},
		"no token":          {"Authorization": "Bearer "},
		"another gateway's": {"Authorization": "Bearer " + one.scout},
		"its operator's":    {"Authorization": "Bearer " + one.token},
		"wrong":             {"Authorization": "Bearer wrong"},
		"one byte changed":  {"Authorization": "Bearer " + string(flipped)},
		"one byte less":     {"Authorization": "Bearer " + two.scout[:len(two.scout)-1]},
		"one byte more":     {"Authorization": "Bearer " + two.scout + "0"},
		"upper case":        {"Authorization": "Bearer " + strings.ToUpper(two.scout)},
		"an unsigned JWT":   {"Authorization": "Bearer " + header + "." + claims + "."},
		"a signed JWT":      {"Authorization": "Bearer " + header + "." + claims + ".AAAA"},
		"basic":             {"Authorization": "Basic " + two.scout},
		"a cookie":          {"Cookie": "token=" + two.scout},
		"another header":    {"X-Api-Key": two.scout},
	}
	for _, route := range []struct{ method, path, body string }{{"POST", "/exec", body}, {"GET", "/v1/status", ""}, {"POST", "/v1/ops/reload", ""}} {
		want := two.send(route.method, route.path, route.body, map[string]string{"Content-Type": "application/json"})
		for what, h := range strangers {
			got := two.send(route.method, route.path, route.body, with(h, "Content-Type", "application/json"))
			got.header.Del("X-Request-Id")
			got.header.Del("Date")
			want.header.Del("X-Request-Id")
			want.header.Del("Date")
			if got.status != http.StatusUnauthorized || !bytes.Equal(got.body, want.body) || fmt.Sprint(got.header) != fmt.Sprint(want.header) {
				t.Errorf("%s with %s: status %d %v %s, want %d %v %s", route.path, what, got.status, got.header, got.body, want.status, want.header, want.body)
			}
		}
		for _, query := range []string{"access_token=" + two.scout, "token=" + two.scout, two.scout} {
			for _, h := range []map[string]string{{"Content-Type": "application/json"}, bearer(two.scout)} {
				a := two.send(route.method, route.path+"?"+query, route.body, h)
				if a.status != http.StatusBadRequest && a.status != http.StatusUnauthorized || bytes.Contains(a.body, []byte(two.scout)) {
					t.Errorf("%s with a token in the query: status %d %s", route.path, a.status, a.body)
				}
			}
		}
	}
	// A certificate of the shared authority proves nothing about a caller.
	pairs, err := filepath.Glob(filepath.Join(one.state, "tls", "*.key"))
	if err != nil || len(pairs) == 0 {
		t.Fatalf("no keys: %v", err)
	}
	for _, key := range pairs {
		pair, err := tls.LoadX509KeyPair(strings.TrimSuffix(key, ".key")+".pem", key)
		if err != nil {
			t.Fatal(err)
		}
		config := two.client.Transport.(*http.Transport).TLSClientConfig.Clone()
		config.Certificates = []tls.Certificate{pair}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		res, err := client.Get(two.url + "/v1/status")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		client.CloseIdleConnections()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("with the certificate %s: status %d", filepath.Base(key), res.StatusCode)
		}
	}
	if ran := two.runs(); len(ran) > 0 {
		t.Errorf("%v ran", ran)
	}
	two.kill()
	two.nowhere(two.scout, string(flipped), two.clerk)
}

// nowhere checks that none of the secrets stands in the log of a gateway that has
// ended, or in its state folder.
func (l *lab) nowhere(secrets ...string) {
	l.t.Helper()
	places := map[string][]byte{"the log": l.log.Bytes()}
	for _, path := range tree(l.t, l.state) {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				l.t.Fatal(err)
			}
			places[path] = b
		}
	}
	for place, b := range places {
		for _, s := range secrets {
			if bytes.Contains(b, []byte(s)) {
				l.t.Errorf("%s holds %.12s…", place, s)
			}
		}
	}
}

// Case x14: ids and bodies of every wrong kind at every route, and the gateway goes on.
func TestNoIDStopsTheGateway(t *testing.T) {
	l := twoOpsSite(t, everything)
	var document struct {
		Paths map[string]map[string]struct{ RequestBody json.RawMessage }
	}
	if err := l.get("/openapi.json", &document); err != nil {
		t.Fatal(err)
	}
	check := func(method, path, body string) {
		t.Helper()
		a := l.send(method, path, body, bearer(l.token))
		if a.status/100 != 4 || !strings.HasSuffix(a.header.Get("Content-Type"), "json") || !json.Valid(a.body) {
			t.Errorf("%s %.80s %.80s: status %d, %q, %.200s", method, path, body, a.status, a.header.Get("Content-Type"), a.body)
		}
	}
	ids := 0
	for template, methods := range document.Paths {
		for method, route := range methods {
			method = strings.ToUpper(method)
			if before, _, ok := strings.Cut(template, "{"); ok {
				ids++
				_, behind, _ := strings.Cut(template, "}")
				for _, id := range []string{"no-such", "c-01j00000000000000000000000", "", strings.Repeat("x", 10_000), "null", "0", "-1", "%2e%2e", "a%2fb", "%ff"} {
					check(method, before+id+behind, "")
				}
			}
			if len(route.RequestBody) == 0 {
				continue
			}
			for _, body := range []string{"", "null", "7", `"x"`, "[]", "{}", "{"} {
				check(method, strings.NewReplacer("{id}", "scout", "{name}", "x").Replace(template), body)
			}
		}
	}
	if ids < 5 {
		t.Errorf("only %d routes with an id: %v", ids, document.Paths)
	}
	for _, op := range []string{`null`, `7`, `""`, `[]`, `{}`, `"no-such"`, `"` + strings.Repeat("x", 10_000) + `"`, `true`} {
		check("POST", "/exec", `{"op":`+op+`}`)
		check("POST", "/exec", `{"op":"box","params":{"action":"call","arg":`+op+`}}`)
		check("POST", "/exec", `{"op":"box","params":`+op+`}`)
	}
	if err := l.get("/healthz", nil); err != nil || l.isDead() {
		t.Errorf("after all that: %v", err)
	}
	l.kill()
	if strings.Contains(l.log.String(), "panic") {
		t.Errorf("the log has a panic:\n%s", l.log)
	}
}

// Case x41: a body that two readers could read in two ways is refused.
func TestBodiesHaveOneReading(t *testing.T) {
	l := twoOpsSite(t, onlyUp)
	for _, body := range []string{
		`{"op":"test.up","Op":"test.down"}`,
		`{"Op":"test.down","op":"test.up"}`,
		`{"op":"test.up","op":"test.down"}`,
		`{"op":"test.down","op":"test.up"}`,
		`{"op":"test.up","\u006fp":"test.down"}`,
		`{"op":"test.up","param` + "\u017f" + `":{}}`,
		`{"op":"test.up","param\u017f":{}}`,
		`{"op":"test.up","PARAMS":{}}`,
		`{"op":"test.up","params":{},"params":{}}`,
		`{"op":"test.up","params":{"a":1,"a":2}}`,
		`{"op":"test.up"}{"op":"test.down"}`,
		`{"op":"test.up"} {}`,
		`{"op":"test.up"}x`,
		`{"op":"test.up"}` + "\x00",
		`{"op":"test.up",}`,
		`{"op":"test.up"/**/}`,
		"\ufeff" + `{"op":"test.up"}`,
		`[{"op":"test.up"}]`,
	} {
		if a := l.send("POST", "/exec", body, bearer(l.scout)); a.status != http.StatusBadRequest {
			t.Errorf("%s: status %d %s, want 400", body, a.status, a.body)
		}
	}
	var calls struct{ Calls []struct{ Op string } }
	if err := l.get("/v1/calls", &calls); err != nil || len(calls.Calls) > 0 || len(l.runs()) > 0 {
		t.Errorf("calls %v and runs %v came of it (%v)", calls.Calls, l.runs(), err)
	}
	if a := l.send("POST", "/exec", ` {"params":{},"op":"test.up"} `+"\n", bearer(l.scout)); a.status != http.StatusOK || !slices.Equal(l.runs(), []string{"up"}) {
		t.Errorf("a good body: status %d %s, ran %v", a.status, a.body, l.runs())
	}
}

// Case x42: what cannot be read whole is refused whole.
func TestBodiesAreReadWholeOrNot(t *testing.T) {
	l := twoOpsSite(t, onlyUp)
	head := "POST /exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + l.scout + "\r\nContent-Type: application/json\r\n"
	up := `{"op":"test.up"}`
	long := func(n int) string { return up + strings.Repeat(" ", n-len(up)) }
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	for name, tc := range map[string]struct {
		raw  string
		want []int
	}{
		"64 KiB and a byte":           {fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 64<<10+1, long(64<<10+1)), []int{413}},
		"10 MiB":                      {fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 10<<20, long(128<<10)), []int{413}},
		"chunks without end":          {"Transfer-Encoding: chunked\r\n\r\n" + chunk(long(64<<10)) + chunk(long(64<<10)), []int{413}},
		"length 0 and a body":         {"Content-Length: 0\r\n\r\n" + up, []int{400}},
		"a negative length":           {"Content-Length: -1\r\n\r\n" + up, []int{400}},
		"two lengths":                 {fmt.Sprintf("Content-Length: %d\r\nContent-Length: 3\r\n\r\n%s", len(up), up), []int{400}},
		"transfer encodings twice":    {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(up) + "0\r\n\r\n", []int{400, 501}},
		"an encoding that is none":    {"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(up) + "0\r\n\r\n", []int{400, 501}},
		"a chunk with a bad length":   {"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + up + "\r\n0\r\n\r\n", []int{400}},
		"neither length nor encoding": {"\r\n" + up, []int{400, 411}},
		"expected and never sent":     {fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", 10<<20), []int{413, 417}},
	} {
		c := l.dial()
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = io.WriteString(c, head+tc.raw) // the answer may come before all of it is read
		}()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if body, _ := io.ReadAll(res.Body); !slices.Contains(tc.want, res.StatusCode) {
			t.Errorf("%s: status %d %s, want %v", name, res.StatusCode, body, tc.want)
		}
		c.Close()
		<-written
	}
	var calls struct{ Calls []struct{ Op string } }
	if err := l.get("/v1/calls", &calls); err != nil || len(calls.Calls) > 0 || len(l.runs()) > 0 {
		t.Errorf("calls %v and runs %v came of it (%v)", calls.Calls, l.runs(), err)
	}
	// Just as much as fits is read.
	if a := l.send("POST", "/exec", long(64<<10), bearer(l.scout)); a.status != http.StatusOK {
		t.Errorf("64 KiB: status %d %s", a.status, a.body)
	}
}

// Case x43: what a page in somebody's browser could send is refused, and reading runs
// nothing.
func TestOtherSitesAreRefused(t *testing.T) {
	l := twoOpsSite(t, everything)
	before := l.head()
	body, h := `{"op":"test.up"}`, bearer(l.scout)
	for what, tc := range map[string]struct {
		method, path string
		header       map[string]string
		want         int
	}{
		"a foreign host":                {"POST", "/exec", with(h, "Host", "evil.example"), 403},
		"a host that begins alike":      {"POST", "/exec", with(h, "Host", "localhost.evil.example"), 403},
		"a foreign origin":              {"POST", "/exec", with(h, "Origin", "https://evil.example"), 403},
		"no origin at all":              {"POST", "/exec", with(h, "Origin", "null"), 403},
		"cross-site":                    {"POST", "/exec", with(h, "Sec-Fetch-Site", "cross-site"), 403},
		"text/plain":                    {"POST", "/exec", with(h, "Content-Type", "text/plain"), 415},
		"a form":                        {"POST", "/exec", with(h, "Content-Type", "application/x-www-form-urlencoded"), 415},
		"a form of parts":               {"POST", "/exec", with(h, "Content-Type", "multipart/form-data; boundary=x"), 415},
		"a stream of a foreign origin":  {"GET", "/v1/events", with(h, "Origin", "https://evil.example"), 403},
		"a stream of a foreign host":    {"GET", "/v1/events", with(h, "Host", "evil.example"), 403},
		"a socket of a foreign origin":  {"GET", "/v1/events", with(with(with(h, "Origin", "https://evil.example"), "Upgrade", "websocket"), "Connection", "Upgrade"), 403},
		"a cookie and no token":         {"POST", "/exec", map[string]string{"Cookie": "token=" + l.scout, "Content-Type": "application/json"}, 401},
		"GET of /exec":                  {"GET", "/exec", map[string]string{"Authorization": h["Authorization"]}, 405},
		"GET of /exec with a query":     {"GET", "/exec?op=test.up", map[string]string{"Authorization": h["Authorization"]}, 405},
		"HEAD of /exec":                 {"HEAD", "/exec", map[string]string{"Authorization": h["Authorization"]}, 405},
		"another method for a POST":     {"GET", "/exec", with(map[string]string{"Authorization": h["Authorization"]}, "X-Http-Method-Override", "POST"), 405},
		"a preflight of a foreign site": {"OPTIONS", "/exec", map[string]string{"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}, 403},
	} {
		send := body
		if tc.method != "POST" {
			send = ""
		}
		a := l.send(tc.method, tc.path, send, tc.header)
		if a.status != tc.want || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: status %d %s, want %d", what, a.status, a.body, tc.want)
		}
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := l.get("/openapi.json", &document); err != nil {
		t.Fatal(err)
	}
	for template, methods := range document.Paths {
		if methods["get"] == nil || template == "/v1/events" {
			continue
		}
		path := strings.NewReplacer("{name}", "test.up", "{id}", "scout").Replace(template)
		if a := l.send("GET", path, "", map[string]string{"Authorization": "Bearer " + l.token}); a.status >= 500 && path != "/readyz" {
			t.Errorf("GET %s: status %d %s", path, a.status, a.body)
		}
	}
	if now := l.head(); now != before || len(l.runs()) > 0 {
		t.Errorf("%d events and the runs %v came of it", now-before, l.runs())
	}
}

// Case x07: what a caller sends is one event, however it is written, and the log of
// events stays provable.
func TestParametersForgeNoEvents(t *testing.T) {
	l := twoOpsSite(t, everything)
	l.quiet()
	const forged = "a@b\n{\"seq\":999,\"who\":\"admin\",\"decision\":\"allow\"}"
	before := l.events()
	status, a := l.ask(l.scout, "POST", "/exec", map[string]any{"op": "box", "params": map[string]string{"action": "agent", "arg": forged}})
	if status != http.StatusBadRequest || a.Code != ops.InvalidParams {
		t.Errorf("a line break in a parameter: status %d %s", status, a.Code)
	}
	refused := l.events()[len(before):]
	if kinds := kindsOf(refused); !slices.Equal(kinds, []string{"call.settled"}) {
		t.Errorf("a refusal is the events %v", kinds)
	}
	// Where line breaks are allowed, it is as many events as any other text.
	texts := []string{"plain", forged, "a\r\n\r\ndata: {}\n\nid: 1", "\u2028\u2029"}
	var kinds [][]string
	for _, text := range texts {
		before := len(l.events())
		if status, a := l.ask(l.scout, "POST", "/exec", map[string]any{"op": "dm", "params": map[string]string{"to": "#notes", "text": text}}); status != http.StatusOK {
			t.Fatalf("dm %q: status %d %s", text, status, a.Code)
		}
		l.quiet()
		kinds = append(kinds, kindsOf(l.events()[before:]))
	}
	for i := range kinds[1:] {
		if !slices.Equal(kinds[i+1], kinds[0]) {
			t.Errorf("the text %q is the events %v, and %q %v", texts[i+1], kinds[i+1], texts[0], kinds[0])
		}
	}
	if out, errs, code := l.run(l.token, "", "audit", "verify"); code != 0 {
		t.Errorf("box audit verify: exit code %d\n%s%s", code, out, errs)
	}
	l.kill()
	out, err := exec.Command(l.box, "--state", l.state, "audit", "verify").CombinedOutput()
	if err != nil {
		t.Errorf("box audit verify of the folder: %v\n%s", err, out)
	}
	if strings.Contains(l.log.String(), "\n{\"seq\"") {
		t.Errorf("the log has a forged line:\n%s", l.log)
	}
}

// event is a line of what box audit tail prints.
type event struct{ Kind, Stream string }

func kindsOf(events []event) (kinds []string) {
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// events are all events so far, each on a line of its own, as the API streams them.
func (l *lab) events() (all []event) {
	l.t.Helper()
	var status struct{ Position int64 }
	if err := l.get("/v1/status", &status); err != nil {
		l.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(l.t.Context(), "GET", l.url+"/v1/events?after=0", nil)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+l.token)
	res, err := l.client.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for last := int64(0); last < status.Position && lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
			}
			var e event
			if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &e); err != nil {
				l.t.Fatalf("%v in %s", err, lines.Text())
			}
			all = append(all, e)
			if last, err = strconv.ParseInt(id, 10, 64); err != nil {
				l.t.Fatal(err)
			}
		}
	}
	return all
}
