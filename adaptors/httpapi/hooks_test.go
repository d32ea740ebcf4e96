package httpapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/threads"
)

// hooks is an adaptor that notes what it is given.
type hooks struct {
	header http.Header
	body   []byte
	err    error
	wait   chan struct{} // nil, or what Deliver waits for
	began  chan struct{}
}

func (h *hooks) Deliver(_ context.Context, name string, header http.Header, body []byte) (threads.Heard, error) {
	if h.wait != nil {
		h.began <- struct{}{}
		<-h.wait
		return threads.Heard{Status: "taken"}, nil
	}
	if name != "chat" {
		return threads.Heard{}, ops.Faultf(ops.NotFound, "there is no adaptor of this name that takes events")
	}
	h.header, h.body = header, bytes.Clone(body)
	return threads.Heard{Status: "taken", Thread: "t-1"}, h.err
}

func hookServer(t *testing.T, h Hooks, limits Limits, log *slog.Logger) http.Handler {
	t.Helper()
	return open(t, func(c *Config) { c.Hooks, c.Limits, c.Log = h, limits, log }).server.Handler()
}

// postEvent sends an event to the route of an adaptor.
func postEvent(h http.Handler, name, contentType string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "https://localhost/v1/adaptors/"+name+"/events", body)
	r.Header.Set("Content-Type", contentType)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestEvents(t *testing.T) {
	log := &bytes.Buffer{}
	taker := &hooks{}
	s := hookServer(t, taker, Limits{}, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	signed := []string{"webhook-id", "e-1", "webhook-timestamp", "1700000000", "webhook-signature", "v1,AAAA v1,BBBB"}
	for _, tc := range []struct {
		name, adaptor, kind, body string
		headers                   []string
		err                       error
		status                    int
		want                      string // in the answer
		taken                     bool
	}{
		{"an event", "chat", "application/json", `{"text":"hi"}`, signed, nil, 200, `"status":"taken"`, true},
		{"bytes are handed on as they are", "chat", "application/json", " {\"a\":1,\"a\":2,\"B\":\xff}\n", signed, nil, 200, `"taken"`, true},
		{"no headers are the adaptor's to refuse", "chat", "application/json", `{}`, nil, ops.Faultf(ops.Unauthenticated, "the header webhook-id is missing"), 401, "webhook-id is missing", true},
		{"a token helps nobody", "chat", "application/json", `{}`, []string{"Authorization", "Bearer ibt_0"}, ops.Faultf(ops.Unauthenticated, "the header webhook-id is missing"), 401, "webhook-id is missing", true},
		{"no such adaptor", "other", "application/json", `{}`, signed, nil, 404, "no adaptor", false},
		{"not started", "chat", "application/json", `{}`, signed, ops.Faultf(ops.Unavailable, "not started"), 503, "not started", true},
		{"another type", "chat", "text/plain", `{}`, signed, nil, 415, "application/json", false},
		{"compressed", "chat", "application/json", `{}`, append([]string{"Content-Encoding", "gzip"}, signed...), nil, 415, "Content-Encoding", false},
		{"nothing", "chat", "application/json", ``, signed, nil, 400, "missing", false},
		{"as long as it may be", "chat", "application/json", strings.Repeat("x", 1<<20), signed, nil, 200, `"taken"`, true},
		{"too long", "chat", "application/json", strings.Repeat("x", 1<<20+1), signed, nil, 413, "longer than", false},
		{"two ids", "chat", "application/json", `{}`, append([]string{"webhook-id", "e-0"}, signed...), nil, 400, "webhook-id is given 2 times", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			*taker = hooks{err: tc.err}
			w := postEvent(s, tc.adaptor, tc.kind, strings.NewReader(tc.body), tc.headers...)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) {
				t.Errorf("%d %s, want %d with %s", w.Code, w.Body, tc.status, tc.want)
			}
			if tc.taken != (taker.body != nil) || tc.taken && string(taker.body) != tc.body {
				t.Errorf("%.80q was handed on, want %v", taker.body, tc.taken)
			}
			if tc.taken && len(tc.headers) > 2 && taker.header.Get("webhook-signature") != "v1,AAAA v1,BBBB" {
				t.Errorf("the headers were handed on as %v", taker.header)
			}
			if got := w.Header().Get("WWW-Authenticate"); (tc.status == 401) != strings.HasPrefix(got, "Webhook-Signature") {
				t.Errorf("WWW-Authenticate: %q", got)
			}
		})
	}
	if strings.Contains(log.String(), `hi`) && strings.Contains(log.String(), `"text"`) {
		t.Errorf("the log holds a body:\n%s", log)
	}
}

// Events wait in places of their own: however many there are, those with a token are
// served.
func TestEventsAreBounded(t *testing.T) {
	taker := &hooks{wait: make(chan struct{}), began: make(chan struct{})}
	s := hookServer(t, taker, Limits{Events: 2, Requests: 2}, slog.New(slog.DiscardHandler))
	answers := make(chan int)
	for range 2 {
		go func() { answers <- postEvent(s, "chat", "application/json", strings.NewReader(`{}`)).Code }()
		<-taker.began
	}
	w := postEvent(s, "chat", "application/json", strings.NewReader(`{}`))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("the third event: %d, Retry-After %q; want 503 and when to come again", w.Code, w.Header().Get("Retry-After"))
	}
	r := httptest.NewRequest(http.MethodGet, "https://localhost/v1/version", nil)
	other := httptest.NewRecorder()
	s.ServeHTTP(other, r)
	if other.Code != http.StatusUnauthorized {
		t.Errorf("a request without a token: %d, want 401 and not busy", other.Code)
	}
	close(taker.wait)
	for range 2 {
		if code := <-answers; code != http.StatusOK {
			t.Errorf("an event that was under way: %d", code)
		}
	}
}
