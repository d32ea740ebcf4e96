package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

func TestExec(t *testing.T) {
	g := open(t)
	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "scout", body: `{"op":"tools"}`}, &done)
	var list struct {
		Ops []struct {
			Name      string
			Permitted bool
		}
	}
	if err := json.Unmarshal(done.Result, &list); err != nil {
		t.Fatal(err)
	}
	if !done.OK || done.Op != "tools.list" || done.State != ops.Succeeded || done.Replayed || len(list.Ops) != 12 {
		t.Errorf("got %+v with %d ops", done, len(list.Ops))
	}
	var call struct {
		Source string
		By     ops.Identity
	}
	g.get("scout", "/v1/calls/"+string(done.Call), &call)
	if !strings.HasPrefix(call.Source, "api/q-") || call.By.ID != "scout" {
		t.Errorf("the call is recorded as %+v", call)
	}
}

func TestExecFaults(t *testing.T) {
	g := open(t)
	for _, c := range []struct {
		name, body string
		code       ops.Code
		state      ops.State
	}{
		{"a failure", `{"op":"test.fail"}`, ops.OpFailed, ops.Failed},
		{"an unknown op", `{"op":"tools.lst"}`, ops.UnknownOp, ops.Refused},
		{"a bridge", `{"op":"test.a/b"}`, ops.NotPermitted, ops.Refused},
		{"a parameter too much", `{"op":"tools","params":{"x":1}}`, ops.InvalidParams, ops.Refused},
		{"an integer out of range", `{"op":"tools","params":{"x":9007199254740993}}`, ops.IntegerOutOfRange, ops.Refused},
		{"an op that is none", `{"op":"a b"}`, ops.UnknownOp, ops.Refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			as := ops.IdentityID("scout")
			if c.name == "a bridge" {
				as = "mx"
			}
			a := g.do(request{method: "POST", path: "/exec", as: as, body: c.body})
			var p ExecProblem
			if err := json.Unmarshal(a.body, &p); err != nil {
				t.Fatalf("%v in %s", err, a)
			}
			if a.status != c.code.Info().Status || p.Code != c.code || p.State != c.state || p.OK || p.Call == "" || p.Fault == nil || p.Fault.Code != c.code {
				t.Errorf("got %s, want %s, %s", a, c.code, c.state)
			}
			if !strings.Contains(string(a.body), `"ok":false`) {
				t.Errorf(`no "ok":false in %s`, a)
			}
		})
	}
	// A refusal before the door has the same form and no call.
	var p ExecProblem
	g.ok(401, request{method: "POST", path: "/exec", body: `{"op":"tools"}`}, &p)
	if p.OK || p.Call != "" || p.Fault == nil || p.Fault.Code != ops.Unauthenticated {
		t.Errorf("without a token: got %+v", p)
	}
}

func TestIdempotency(t *testing.T) {
	g := open(t)
	exec := func(status int, body string, header string) (done CallDone) {
		t.Helper()
		q := request{method: "POST", path: "/exec", as: "ada", body: body}
		if header != "" {
			q.header = map[string]string{"Idempotency-Key": header}
		}
		g.ok(status, q, &done)
		return done
	}
	first := exec(200, `{"op":"test.a/b","id":"one"}`, "")
	for _, again := range []CallDone{exec(200, `{"op":"test.a/b"}`, "one"), exec(200, `{"op":"test.a/b","id":"one"}`, "one")} {
		if !again.Replayed || again.Call != first.Call || string(again.Result) != string(first.Result) {
			t.Errorf("the same key again: got %+v, want %+v replayed", again, first)
		}
	}
	exec(422, `{"op":"tools","id":"one"}`, "")
	exec(400, `{"op":"test.a/b","id":"one"}`, "two")
	exec(400, `{"op":"test.a/b","id":"`+strings.Repeat("é", 65)+`"}`, "") // 130 bytes
	exec(400, `{"op":"test.a/b","id":""}`, "")
	exec(400, `{"op":"test.a/b"}`, strings.Repeat("k", 129))

	a := g.ok(202, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"slow","id":"s"}`, header: map[string]string{"Prefer": "respond-async"}}, nil)
	id := <-g.begun
	b := g.do(request{method: "POST", path: "/exec", as: "ada", body: `{"op":"slow","id":"s"}`})
	if b.fault.Code != ops.InProgress || b.fault.Details["call"] != string(id) || !b.fault.Retryable {
		t.Errorf("the key of a running call: got %s", b)
	}
	close(g.release)
	<-g.ended
	if a.header.Get("Location") != "/v1/calls/"+string(id) {
		t.Errorf("Location %q, want the call %s", a.header.Get("Location"), id)
	}
}

func TestRateLimited(t *testing.T) {
	g := open(t)
	body := `{"op":"test.rated","id":"once"}`
	var first, again CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "scout", body: body}, &first)
	for _, body := range []string{`{"op":"test.rated"}`, `{"op":"test.rated","id":"twice"}`} {
		a := g.do(request{method: "POST", path: "/exec", as: "ada", body: body})
		after, err := strconv.Atoi(a.header.Get("Retry-After"))
		if a.status != 429 || a.fault.Code != ops.RateLimited || !a.fault.Retryable || err != nil || after < 3590 || after > 3600 || a.fault.Details["retry_after"] != float64(after) {
			t.Errorf("got %s with Retry-After %q, want 429 and the seconds in both", a, a.header.Get("Retry-After"))
		}
		if strings.Contains(string(a.body), `"call":`) {
			t.Errorf("it has a call: %s", a)
		}
	}
	// The same key again is a replay, which no rate keeps back.
	if g.ok(200, request{method: "POST", path: "/exec", as: "scout", body: body}, &again); !again.Replayed || again.Call != first.Call {
		t.Errorf("got %+v, want the replay of %+v", again, first)
	}
	// The list says what the bounds are.
	var op struct {
		Concurrency int
		Rate        struct {
			Count      int
			PerSeconds float64 `json:"per_seconds"`
		}
	}
	if g.get("scout", "/v1/ops/test.rated", &op); op.Concurrency != 2 || op.Rate.Count != 1 || op.Rate.PerSeconds != 3600 {
		t.Errorf("the op is listed with %+v", op)
	}
	if a := g.do(request{method: "GET", path: "/v1/ops/tools.list", as: "scout"}); strings.Contains(string(a.body), `"rate"`) || strings.Contains(string(a.body), `"concurrency"`) {
		t.Errorf("an op without bounds is listed with some: %s", a)
	}
}

// What answers 429 or 503 says when to come back, if anybody knows.
func TestRetryAfter(t *testing.T) {
	for _, c := range ops.Codes() {
		for name, f := range map[string]*ops.Fault{
			"":                       ops.Faultf(c.Code, "m"),
			"with seconds":           ops.Faultf(c.Code, "m").With("retry_after", int64(7)),
			"out of the journal":     ops.Faultf(c.Code, "m").With("retry_after", float64(7)),
			"with something strange": ops.Faultf(c.Code, "m").With("retry_after", "soon"),
		} {
			want := ""
			switch {
			case c.Status != 429 && c.Status != 503:
			case strings.HasPrefix(name, "with seconds"), strings.HasPrefix(name, "out of"):
				want = "7"
			case c.Code == ops.Busy || c.Code == ops.Unavailable || c.Code == ops.NotStarted:
				want = "1"
			}
			if got := ptr(newProblem(f)).GetHeaders().Get("Retry-After"); got != want {
				t.Errorf("%s %s: Retry-After %q, want %q", c.Code, name, got, want)
			}
			if got := newExecProblem(f, service.Ticket{}).GetHeaders().Get("Retry-After"); got != want {
				t.Errorf("%s %s of /exec: Retry-After %q, want %q", c.Code, name, got, want)
			}
			replay := *f
			replay.Retryable = false
			if got := newExecProblem(&replay, service.Ticket{Replayed: true}).GetHeaders().Get("Retry-After"); got == "1" {
				t.Errorf("%s %s: a replay is to be asked for again", c.Code, name)
			}
		}
	}
}

func TestRespondAsync(t *testing.T) {
	g := open(t)
	for _, prefer := range []string{"respond-async", "Respond-Async; x=1", "wait=5, respond-async"} {
		var taken CallTaken
		a := g.ok(202, request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`, header: map[string]string{"Prefer": prefer}}, &taken)
		if !taken.OK || taken.Call == "" || taken.State.Settled() || a.header.Get("Preference-Applied") != "respond-async" || a.header.Get("Location") != "/v1/calls/"+string(taken.Call) {
			t.Errorf("Prefer: %s: got %s, %v", prefer, a, a.header)
		}
		if id := <-g.begun; id != taken.Call {
			t.Errorf("%s began, want %s", id, taken.Call)
		}
	}
	// What is refused at once is said at once.
	if a := g.do(request{method: "POST", path: "/exec", as: "scout", body: `{"op":"nope"}`, header: map[string]string{"Prefer": "respond-async"}}); a.status != 404 || a.header.Get("Preference-Applied") != "" {
		t.Errorf("a refusal: got %s", a)
	}
	close(g.release)
}

func TestHangUpCancels(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			// The short deadline for reading must not be mistaken for a hang-up.
			g := open(t, func(c *Config) { c.Limits.Read = 2 * time.Second })
			g.client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "HTTP/2.0"
			ctx, hangUp := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			r := g.build(ctx, request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`})
			go func() {
				resp, err := g.client.Do(r)
				if err == nil {
					resp.Body.Close()
				}
				failed <- err
			}()
			id := <-g.begun
			hangUp()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller got %v", err)
			}
			if err := <-g.ended; err == nil {
				t.Error("the call was not stopped")
			}
			o, err := g.door.Await(t.Context(), id)
			if err != nil || o.State != ops.Cancelled {
				t.Errorf("the call is %+v, %v; want cancelled", o, err)
			}
		})
	}
}

func TestHangUpLeavesAsyncCalls(t *testing.T) {
	g := open(t)
	client := g.newClient()
	resp, err := client.Do(g.build(t.Context(), request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`, header: map[string]string{"Prefer": "respond-async"}}))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	id := <-g.begun
	client.CloseIdleConnections()
	close(g.release)
	if o, err := g.door.Await(t.Context(), id); err != nil || o.State != ops.Succeeded {
		t.Errorf("the call is %+v, %v; want succeeded", o, err)
	}
}

// A caller whose call outlasts the longest wait gets the call's address, and the
// call goes on.
func TestLongestWait(t *testing.T) {
	g := open(t, func(c *Config) { c.Limits.Wait = time.Millisecond })
	var taken CallTaken
	a := g.ok(202, request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`}, &taken)
	if a.header.Get("Location") != "/v1/calls/"+string(taken.Call) {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	close(g.release)
	if o, err := g.door.Await(t.Context(), taken.Call); err != nil || o.State != ops.Succeeded {
		t.Errorf("the call is %+v, %v; want succeeded", o, err)
	}
}

func TestCancel(t *testing.T) {
	g := open(t)
	var taken CallTaken
	g.ok(202, request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`, header: map[string]string{"Prefer": "respond-async"}}, &taken)
	<-g.begun
	path := "/v1/calls/" + string(taken.Call) + "/cancel"
	if a := g.do(request{method: "POST", path: path, as: "other"}); a.fault.Code != ops.NotFound {
		t.Errorf("another agent: got %s", a)
	}
	var got CallTaken
	g.ok(200, request{method: "POST", path: path, as: "scout"}, &got)
	if got.Call != taken.Call || got.State != ops.Cancelled {
		t.Errorf("got %+v", got)
	}
	if a := g.do(request{method: "POST", path: path, as: "scout", body: "{}"}); a.fault.Code != ops.Conflict {
		t.Errorf("again: got %s", a)
	}
}

// A stop answers the callers that wait, if their calls end in time.
func TestShutdownFinishes(t *testing.T) {
	g := open(t)
	status := make(chan int, 1)
	r := g.build(t.Context(), request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`})
	go func() {
		resp, err := g.client.Do(r)
		if err != nil {
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	<-g.begun
	stopped := make(chan error, 1)
	go func() { stopped <- g.server.Shutdown(t.Context()) }()
	<-g.server.stopping
	close(g.release)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := <-status; got != 200 {
		t.Errorf("the caller got %d, want 200", got)
	}
}

// A stop that may not wait cuts its callers off, and leaves their calls to the door.
func TestShutdownIsBounded(t *testing.T) {
	g := open(t)
	failed := make(chan error, 1)
	r := g.build(t.Context(), request{method: "POST", path: "/exec", as: "scout", body: `{"op":"slow"}`})
	go func() {
		resp, err := g.client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	id := <-g.begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("shutdown: got %v, want %v", err, context.Canceled)
	}
	if !strings.Contains(g.logs.String(), "msg=served") {
		t.Error("the request is under way still")
	}
	if err := <-failed; err == nil {
		t.Error("the caller was answered")
	}
	close(g.release)
	if o, err := g.door.Await(t.Context(), id); err != nil || o.State != ops.Succeeded {
		t.Errorf("the call is %+v, %v; want succeeded", o, err)
	}
}

// The key of a wake in a call object: of the caller's own open wakes only.
func TestExec_KeyOfAWake(t *testing.T) {
	g := open(t)
	g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"dm","params":{"to":"scout","text":"tell the other"}}`}, nil)
	var key, thread string
	if err := g.store.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT key, thread FROM wake WHERE agent = 'scout'`, func(scan func(...any) error) error { return scan(&key, &thread) })
	}); err != nil || key == "" {
		t.Fatalf("key %q, %v", key, err)
	}
	body := func(key string) string {
		return fmt.Sprintf(`{"op":"dm","params":{"to":"other","text":"hello"}%s}`, key)
	}
	g.ok(202, request{method: "POST", path: "/exec", as: "scout", body: body("")}, nil) // parked
	for _, tc := range []struct{ name, as, key string }{
		{"a key of nobody", "scout", "aaaa-bbbb-cccc"}, {"cut", "scout", key[:len(key)-1]}, {"another agent's", "other", key}, {"an operator's", "ada", key},
	} {
		var problem ExecProblem
		a := g.do(request{method: "POST", path: "/exec", as: ops.IdentityID(tc.as), body: body(`,"key":"` + tc.key + `"`)})
		if err := json.Unmarshal(a.body, &problem); err != nil || a.status != http.StatusForbidden {
			t.Errorf("%s: %d %s", tc.name, a.status, a.body)
		}
		if problem.Code != ops.WrongKey || problem.Call != "" {
			t.Errorf("%s: got %+v, want WRONG_KEY and no call", tc.name, problem)
		}
	}
	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "scout", body: body(`,"key":"` + key + `"`)}, &done)
	var call struct{ Rule string }
	g.get("scout", "/v1/calls/"+string(done.Call), &call)
	if done.State != ops.Succeeded || !strings.HasPrefix(call.Rule, "policy: ") {
		t.Errorf("with the key: %+v, %+v", done, call)
	}

	// Whoever asks again after the wake has ended learns what came of the call, and nothing
	// else runs.
	once := `,"key":"` + key + `","id":"once"`
	other := strings.Replace(body(once), "hello", "hello again", 1)
	g.ok(200, request{method: "POST", path: "/exec", as: "scout", body: other}, &done)
	g.ok(201, request{method: "POST", path: "/v1/replies", as: "scout", body: fmt.Sprintf(`{"thread":%q,"message":"m1","text":"[RESULT {\"verdict\":\"done\"}]"}`, thread)}, nil)
	var again CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "scout", body: other}, &again)
	if !again.Replayed || again.Call != done.Call {
		t.Errorf("the same again: %+v, want %s replayed", again, done.Call)
	}
	for name, tc := range map[string]struct {
		body string
		want ops.Code
	}{
		"another body":              {body(once), ops.KeyReused},
		"another id":                {strings.Replace(other, "once", "twice", 1), ops.WrongKey},
		"another key":               {strings.Replace(other, key, "aaaa-bbbb-cccc", 1), ops.WrongKey},
		"no id, the wake has ended": {body(`,"key":"` + key + `"`), ops.WrongKey},
	} {
		a := g.do(request{method: "POST", path: "/exec", as: "scout", body: tc.body})
		if a.fault.Code != tc.want {
			t.Errorf("%s: got %s, want %s", name, a, tc.want)
		}
	}
}
