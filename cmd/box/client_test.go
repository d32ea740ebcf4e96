package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
)

// testServer answers for a gateway.
func testServer(t *testing.T, h http.HandlerFunc) *client {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	c := newClient(base, "ibt_test", pool)
	t.Cleanup(c.close)
	return c
}

func TestURL(t *testing.T) {
	c := &client{base: &url.URL{Scheme: "https", Host: "h:1"}}
	for _, test := range []struct {
		r    request
		want string
	}{
		{request{route: routeOps}, "https://h:1/v1/ops"},
		{request{route: routeOp, names: []string{"a/b:c.d"}}, "https://h:1/v1/ops/a%2Fb:c%2Ed"},
		{request{route: routeOp, names: []string{".."}}, "https://h:1/v1/ops/%2E%2E"},
		{request{route: routeCancelCall, names: []string{"c ?#"}}, "https://h:1/v1/calls/c%20%3F%23/cancel"},
		{request{route: routeCalls, query: page(10, "c-1", map[string]string{"op": "a&b", "state": ""})}, "https://h:1/v1/calls?after=c-1&limit=10&op=a%26b"},
	} {
		if got := c.url(test.r); got != test.want {
			t.Errorf("url(%v) = %s, want %s", test.r, got, test.want)
		}
	}
}

// TestLostConnection: a request with an idempotency key is sent again, with the same
// key; one without is not.
func TestLostConnection(t *testing.T) {
	var keys []string
	c := testServer(t, func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) < 3 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, `{"ok":true,"call":"c-1","state":"succeeded","result":1,"replayed":true}`)
	})
	a := testApp()
	got, _, err := a.order(t.Context(), c, order{op: "x"}, false)
	if err != nil || got.Call != "c-1" {
		t.Fatalf("order = %+v, %v", got, err)
	}
	if len(keys) != 3 || keys[0] == "" || keys[0] != keys[1] || keys[0] != keys[2] {
		t.Errorf("keys of the attempts: %q, want the same one three times", keys)
	}

	keys = nil
	_, err = c.get(t.Context(), request{route: routeAddAgent, body: map[string]string{}}, nil)
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != ops.ExitUnreachable {
		t.Errorf("a lost request that must not be repeated: %v", err)
	}
	if len(keys) != 1 {
		t.Errorf("it was sent %d times", len(keys))
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	c := testServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/ops" {
			t.Errorf("the token went to %s", r.URL)
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	_, err := c.get(t.Context(), request{route: routeOps}, nil)
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != ops.ExitUnreachable {
		t.Errorf("a redirect gives %v, want exit code 7", err)
	}
}

func TestFaults(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		code   ops.Code // empty: not a gateway's answer
	}{
		{404, `{"title":"Not Found","status":404,"code":"UNKNOWN_OP","message":"m","retryable":false,"details":{"nearest":["a"]}}`, ops.UnknownOp},
		{502, `{"ok":false,"code":"OP_FAILED","fault":{"code":"OP_FAILED","message":"m"}}`, ops.OpFailed},
		{502, `<html>bad gateway</html>`, ""},
		{500, ``, ""},
	} {
		c := testServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			fmt.Fprint(w, test.body)
		})
		_, err := c.get(t.Context(), request{route: routeOps}, nil)
		var fault *ops.Fault
		if errors.As(err, &fault) != (test.code != "") || fault != nil && fault.Code != test.code {
			t.Errorf("status %d, body %q: %v, want code %q", test.status, test.body, err, test.code)
		}
	}
}

func TestTyped(t *testing.T) {
	s := schema{Properties: map[string]property{
		"path": {Type: "string"}, "n": {Type: "integer"}, "deep": {Type: "boolean"},
	}}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"path=12", "n=12", "deep=true"}, `{"path":"12","n":12,"deep":true}`},
		{[]string{"n=-3"}, `{"n":-3}`},
		{[]string{"n=1.5"}, `{"n":"1.5"}`},
		{[]string{"deep=yes"}, `{"deep":"yes"}`},
		{[]string{"unknown=true"}, `{"unknown":"true"}`},
		{[]string{"path=a=b"}, `{"path":"a=b"}`},
		{[]string{"path="}, `{"path":""}`},
		{[]string{`list:=[1, 9007199254740993]`, `n:=1.0`}, `{"list":[1, 9007199254740993],"n":1.0}`},
		{nil, `{}`},
	} {
		words, err := parseWords(test.args)
		if err != nil {
			t.Errorf("parseWords(%q): %v", test.args, err)
			continue
		}
		got, err := s.object(words)
		if err != nil || string(got) != test.want {
			t.Errorf("%q becomes %s (%v), want %s", test.args, got, err, test.want)
		}
	}
}

func TestReadEvents(t *testing.T) {
	in := ": hello\n\nid: 1\nevent: a\ndata: {\"position\":1,\"kind\":\"a\",\ndata: \"body\":{\"x\":1}}\n\n" +
		"event: b\r\ndata:{\"position\":2,\"kind\":\"b\"}\r\n\r\ndata: {\"position\":3"
	var got []string
	err := readEvents(strings.NewReader(in), func(e event) error {
		got = append(got, fmt.Sprintf("%d %s %s", e.Position, e.Kind, e.Body))
		return nil
	})
	if want := []string{`1 a {"x":1}`, `2 b `}; !cmp.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	var broken *brokenStream
	if !errors.As(err, &broken) {
		t.Errorf("the end of the stream is %v, want a brokenStream", err)
	}
	if err := readEvents(strings.NewReader("data: {\n\n"), nil); err == nil || errors.As(err, &broken) {
		t.Errorf("an event that is no JSON gives %v", err)
	}
}

// TestFollowPosts: each post is seen once and in order, though events repeat, the
// stream breaks, and posts come while nobody listens.
func TestFollowPosts(t *testing.T) {
	const id = "t-1"
	posts, streams := 2, 0
	c := testServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/threads/" + id:
			var after int
			fmt.Sscan(r.URL.Query().Get("after"), &after)
			list := []post{}
			for seq := after + 1; seq <= posts && len(list) < 2; seq++ {
				list = append(list, post{Seq: int64(seq)})
			}
			answer := map[string]any{"id": id, "posts": list}
			if n := after + len(list); n < posts {
				answer["next"] = n
			}
			json.NewEncoder(w).Encode(answer)
		case "/v1/events":
			streams++
			if streams > 1 && r.Header.Get("Last-Event-Id") != "9" {
				t.Errorf("stream %d begins after %q, want 9", streams, r.Header.Get("Last-Event-Id"))
			}
			w.Header().Set("Content-Type", "text/event-stream")
			posts++
			for range 2 {
				fmt.Fprintf(w, "data: {\"position\":9,\"kind\":\"thread.posted\",\"body\":{\"thread\":%q,\"seq\":%d}}\n\n", id, posts)
			}
			posts++ // seen only because the posts are read after each connection
		}
	})
	var got []int64
	err := c.followPosts(t.Context(), id, func(_ json.RawMessage, p post) error {
		if got = append(got, p.Seq); p.Seq == 6 {
			return errDone
		}
		return nil
	})
	if want := []int64{1, 2, 3, 4, 5, 6}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("posts %v (%v), want %v", got, err, want)
	}
}

// TestRoutesOnly: no path of the API is written anywhere but in routes.go.
func TestRoutesOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("routes.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(table, []byte("route{http.")); n != len(routes) {
		t.Errorf("routes.go makes %d routes and lists %d", n, len(routes))
	}
	literal := regexp.MustCompile("[\"`](/exec|/v1/|/healthz|/readyz|/openapi)")
	for _, name := range files {
		if name == "routes.go" || strings.HasSuffix(name, "_test.go") || name == "demo.go" {
			continue // the demo writes a curl command
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if m := literal.Find(b); m != nil {
			t.Errorf("%s names the route %s beside routes.go", name, m)
		}
	}
}
