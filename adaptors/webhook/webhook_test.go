package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/threads"
)

const testSecret = "the secret of this bridge"

// newAdaptor makes an adaptor whose bridge is at url.
func newAdaptor(t testing.TB, url string, change ...func(map[string]any)) *Adaptor {
	t.Helper()
	file := map[string]any{
		"urls":    map[string]any{"post": url + "/post", "find": url + "/find", "edit": url + "/edit", "history": url + "/history"},
		"secrets": []string{"file:chat"}, "self": "UBOT",
		"people": map[string]any{"U1": "mallory"}, "agents": map[string]any{"U2": map[string]any{"identity": "ada", "home": "C1"}},
		"rooms": map[string]any{"C1": "operations", "C/2 ü": "odd"}, "unescape": "html", "timeout": 5,
	}
	for _, f := range change {
		f(file)
	}
	b, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Read("chat", "chat.json", b, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(c, []Secret{secret(t, testSecret)}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.client.HTTPClient.CloseIdleConnections)
	return a
}

var out = threads.Outgoing{Mark: "r-01", Key: "k-1", Text: "a result", Mention: "U2"}

// What comes of a post says what is known of it, and nothing is sent twice.
func TestOutcomes(t *testing.T) {
	status := func(code int, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(code)
		}
	}
	says := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }
	}
	for _, tc := range []struct {
		name  string
		serve http.HandlerFunc
		kind  threads.Failure // "" is success
		after time.Duration
		says  string
	}{
		{"taken", says(`{"ok":true,"id":"m-9","thread":"m-1"}`), "", 0, ""},
		{"taken, by a talkative one", says(` {"ok":true,"id":"m-9","thread":"m-1","version":3} `), "", 0, ""},
		{"no id", says(`{"ok":true}`), threads.Unsure, 0, "no id"},
		{"an id that is none", says(`{"ok":true,"id":"a\nb"}`), threads.Unsure, 0, "no id"},
		{"nothing", says(``), threads.Unsure, 0, `{"ok":`},
		{"a page", says(`<html>ok</html>`), threads.Unsure, 0, `{"ok":`},
		{"no ok", says(`{"id":"m-9"}`), threads.Unsure, 0, `{"ok":`},
		{"ok twice", says(`{"ok":false,"ok":true,"id":"m-9"}`), threads.Unsure, 0, `{"ok":`},
		{"too long", says(`{"ok":true,"id":"m-9","x":"` + strings.Repeat("x", maxAnswer) + `"}`), threads.Unsure, 0, "longer than"},
		{"rate limited inside", says(`{"ok":false,"error":"ratelimited","retry_after":7}`), threads.RateLimit, 7 * time.Second, "ratelimited"}, // tb-033
		{"for ever inside", says(`{"ok":false,"error":"ratelimited","retry_after":1e300}`), threads.RateLimit, time.Hour, ""},
		{"gone inside", says(`{"ok":false,"error":"thread_not_found"}`), threads.RootGone, 0, ""},
		{"closed inside", says(`{"ok":false,"error":"is_archived"}`), threads.Closed, 0, ""},
		{"any error inside", says(`{"ok":false,"error":"msg_too_long"}`), threads.RefusedPost, 0, "msg_too_long"},
		{"an error of its own inside", says(`{"ok":false,"error":"internal_error"}`), threads.Unsure, 0, ""},
		{"words inside", says(`{"ok":false,"error":"<b>the text was: a result</b>"}`), threads.RefusedPost, 0, "no plain word"},
		{"429", status(429, "Retry-After", "2"), threads.RateLimit, 2 * time.Second, "429"},
		{"429 without a time", status(429), threads.RateLimit, time.Second, ""},
		{"429 with nonsense", status(429, "Retry-After", "soon"), threads.RateLimit, time.Second, ""},
		{"429 for a year", status(429, "Retry-After", "31536000"), threads.RateLimit, time.Hour, ""},
		{"429 before now", status(429, "Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"), threads.RateLimit, time.Second, ""},
		{"404", status(404), threads.RootGone, 0, ""},
		{"410", status(410), threads.RootGone, 0, ""},
		{"409", status(409), threads.Closed, 0, ""},
		{"423", status(423), threads.Closed, 0, ""},
		{"400", status(400), threads.RefusedPost, 0, ""},
		{"413", status(413), threads.RefusedPost, 0, ""},
		{"422", status(422), threads.RefusedPost, 0, ""},
		{"401", status(401), threads.Unsent, 0, ""},
		{"408", status(408), threads.Unsure, 0, ""},
		{"500", status(500), threads.Unsure, 0, ""},
		{"502", status(502), threads.Unsure, 0, ""},
		{"503", status(503, "Retry-After", "9"), threads.Unsure, 0, ""},
		{"a redirect", status(307, "Location", "/elsewhere"), threads.Unsure, 0, "not followed"},
		{"cut before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, threads.Unsure, 0, ""},
		{"cut in the answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"ok":true,"id":"m-9"}`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, threads.Unsure, 0, "broke off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				asked.Add(1)
				tc.serve(w, r)
			}))
			defer server.Close()
			a := newAdaptor(t, server.URL)
			p, err := a.Post(context.Background(), "#C1/m-1", out)
			if n := asked.Load(); n != 1 {
				t.Errorf("the bridge was asked %d times", n)
			}
			if tc.kind == "" {
				if want := (threads.Posted{ID: "m-9", Address: "#C1/m-1"}); err != nil || p != want {
					t.Errorf("posted %+v, %v; want %+v", p, err, want)
				}
				return
			}
			var e *threads.PostError
			if !errors.As(err, &e) || e.Kind != tc.kind || e.After != tc.after || !strings.Contains(e.Error(), tc.says) {
				t.Errorf("%#v %v; want %s after %v with %q", e, err, tc.kind, tc.after, tc.says)
			}
			if strings.Contains(fmt.Sprint(err), "a result") {
				t.Errorf("the error repeats the post: %v", err)
			}
		})
	}
}

// Nobody listens: nothing was sent, and that is known.
func TestUnsent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	ln.Close()
	a := newAdaptor(t, "http://"+at)
	_, err = a.Post(context.Background(), "#C1", out)
	var e *threads.PostError
	if !errors.As(err, &e) || e.Kind != threads.Unsent {
		t.Errorf("%v, want %s", err, threads.Unsent)
	}
	if s := a.State(); s.Failed != 1 || s.LastError != string(threads.Unsent) {
		t.Errorf("the state is %+v", s)
	}
}

// A bridge that does not answer in time may have taken the post.
func TestHangs(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-release
	}))
	defer server.Close()
	defer close(release)
	a := newAdaptor(t, server.URL)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := a.Post(ctx, "#C1", out)
	var e *threads.PostError
	if !errors.As(err, &e) || e.Kind != threads.Unsure {
		t.Errorf("%v, want %s", err, threads.Unsure)
	}
}

// What the bridge is sent is signed, and says all that it needs.
func TestRequests(t *testing.T) {
	type got struct {
		path, body string
		fault      *ops.Fault
	}
	var mu sync.Mutex
	var requests []got
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		requests = append(requests, got{r.Method + " " + r.URL.Path, string(body), Verify([]Secret{secret(t, testSecret)}, r.Header, body, time.Now())})
		mu.Unlock()
		io.WriteString(w, `{"ok":true,"found":true,"id":"m-9","thread":"m-9","room":"DU1"}`)
	}))
	defer server.Close()
	ctx := context.Background()
	chat := newAdaptor(t, server.URL).Chat()
	odd, err := chat.Open("#C/2 ü")
	if err != nil {
		t.Fatal(err)
	}
	var places []string
	for _, address := range []string{"#C1", "#C1/m-1", "@U1", odd} {
		p, err := chat.Post(ctx, address, out)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, p.Address)
	}
	if d := cmp.Diff([]string{"#C1/m-9", "#C1/m-1", "#DU1/m-9", "#C%2F2%20%C3%BC/m-9"}, places); d != "" {
		t.Errorf("the posts stand at (-want +got):\n%s", d)
	}
	if p, found, err := chat.(threads.Finder).Find(ctx, "#C1/m-1", "r-01"); err != nil || !found || p.ID != "m-9" || p.Address != "#C1/m-1" {
		t.Errorf("found %v %+v, %v", found, p, err)
	}
	if err := chat.(threads.Editor).Edit(ctx, "#C1/m-1", "m-9", threads.Outgoing{Mark: "r-01", Text: "more", File: "long"}); err != nil {
		t.Errorf("edit: %v", err)
	}
	common := `"mark":"r-01","key":"k-1","text":"a result\nr-01","mention":"U2","unfurl":false}`
	want := []got{
		{"POST /post", `{"room":"C1",` + common, nil},
		{"POST /post", `{"room":"C1","thread":"m-1",` + common, nil},
		{"POST /post", `{"user":"U1",` + common, nil},
		{"POST /post", `{"room":"C/2 ü",` + common, nil},
		{"POST /find", `{"room":"C1","thread":"m-1","mark":"r-01"}`, nil},
		{"POST /edit", `{"room":"C1","thread":"m-1","id":"m-9","mark":"r-01","text":"more\nr-01","file":"long","unfurl":false}`, nil},
	}
	if d := cmp.Diff(want, requests, cmp.AllowUnexported(got{})); d != "" {
		t.Errorf("the bridge was asked (-want +got):\n%s", d)
	}
}

func TestNames(t *testing.T) {
	a := newAdaptor(t, "http://127.0.0.1:1")
	for _, target := range []string{"", "#", "@", "C1", "#C9", "@U9", "#U1", "@C1", "#operations", "#C1/m-1"} {
		if at, err := a.Open(target); err == nil {
			t.Errorf("Open(%q) = %q", target, at)
		}
	}
	for _, address := range []string{"", "C1", "#", "#%zz", "#C1/%zz"} {
		if _, err := a.Post(context.Background(), address, out); err == nil {
			t.Errorf("posted to %q", address)
		}
	}
	if id, ok := a.Who("U2"); id != "ada" || !ok {
		t.Errorf("U2 is %q, %v", id, ok)
	}
	for _, user := range []string{"", "UBOT", "U9", "ada", "u2"} {
		if id, ok := a.Who(user); ok {
			t.Errorf("%q is %s", user, id)
		}
	}
	if h, ok := a.Home("ada"); !ok || h != (threads.Home{Target: "#C1", User: "U2"}) {
		t.Errorf("the home of ada is %+v, %v", h, ok)
	}
	if h, ok := a.Home("mallory"); !ok || h != (threads.Home{Target: "@U1", User: "U1"}) {
		t.Errorf("the home of mallory is %+v, %v", h, ok)
	}
	none := newAdaptor(t, "http://127.0.0.1:1", func(f map[string]any) { f["urls"] = map[string]any{"post": "http://127.0.0.1:1/post"} }).Chat()
	if _, ok := none.(threads.Finder); ok {
		t.Error("a bridge without a URL to find is a Finder")
	}
	if _, ok := none.(threads.Editor); ok || none.Limits().Edit != 0 {
		t.Error("a bridge without a URL to edit is an Editor")
	}
}

// Addresses go there and back for any id of a platform.
func FuzzAddress(f *testing.F) {
	f.Add("C1", "m-1")
	f.Add("a/b#c@d%e", "ü ?&")
	f.Fuzz(func(t *testing.T, id, root string) {
		if !platformID(id) || root != "" && !platformID(root) {
			t.Skip()
		}
		for _, kind := range []string{"#", "@"} {
			p, err := place(address(kind+id, root))
			want := where{Room: id, Thread: root}
			if kind == "@" {
				want = where{User: id, Thread: root}
			}
			if err != nil || p != want {
				t.Errorf("%q in %s%q: %+v, %v", root, kind, id, p, err)
			}
		}
	})
}
