package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/ops"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// planeOf is a plane that answers what a test wants of it.
type planeOf struct {
	Uploads // of no test here
	poll    func(ctx context.Context, by ops.Identity, q wire.Poll) ([]byte, error)
	err     error

	mu    sync.Mutex
	taken []string // what was handed in, with by whom
}

func (p *planeOf) note(what string, by ops.Identity, body []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, fmt.Sprintf("%s %s %s", what, by.ID, body))
	return p.err
}

func (p *planeOf) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) == 0 {
		return ""
	}
	return p.taken[len(p.taken)-1]
}

func (p *planeOf) Enrol(_ context.Context, envelope []byte) (wire.Enrolled, error) {
	return wire.Enrolled{Worker: ops.Identity{ID: "wk", Role: ops.Worker}, Implementations: []string{"default"}, Capabilities: []string{}, PlaneKey: []byte{1}}, p.note("enrol", ops.Identity{}, envelope)
}

func (p *planeOf) Challenge(_ context.Context, worker string) (string, error) {
	return "sign this", p.note("challenge", ops.Identity{}, []byte(worker))
}

func (p *planeOf) Begin(_ context.Context, envelope []byte) (wire.Session, error) {
	return wire.Session{Token: "ibt_none", TTLMS: 30_000, HeartbeatMS: 10_000, PlaneKey: []byte{1}}, p.note("boot", ops.Identity{}, envelope)
}

func (p *planeOf) Poll(ctx context.Context, by ops.Identity, q wire.Poll) ([]byte, error) {
	if p.poll != nil {
		return p.poll(ctx, by, q)
	}
	return nil, p.note("poll", by, fmt.Append(nil, q))
}

func (p *planeOf) Callback(_ context.Context, by ops.Identity, envelope []byte) (wire.Ack, error) {
	return wire.Ack{Subject: "r-1", Seq: 1, State: "RUNNING", LeaseMS: 30_000}, p.note("callback", by, envelope)
}

func (p *planeOf) Switch(_ context.Context, by ops.Identity, to string) (plane.Showing, error) {
	return plane.Showing{State: to}, p.note("switch", by, []byte(to))
}

func (p *planeOf) BumpTerm(_ context.Context, by ops.Identity) (plane.Showing, error) {
	return plane.Showing{State: "off", Term: 2}, p.note("term", by, nil)
}

func (p *planeOf) CancelDelegation(_ context.Context, by ops.Identity, id string, c plane.CancelRequest) (plane.DelegationShowing, error) {
	return plane.DelegationShowing{}, p.note("cancel", by, fmt.Append(nil, id, " ", c.Grace, " ", c.Reason))
}

func (p *planeOf) Resolve(_ context.Context, by ops.Identity, id string, r plane.ResolveRequest) (plane.DelegationShowing, error) {
	done := "-"
	if r.Done != nil {
		done = fmt.Sprint(*r.Done)
	}
	return plane.DelegationShowing{}, p.note("resolve", by, fmt.Append(nil, strings.Join([]string{id, string(r.Resolution), r.Answer, r.Mutation, done, r.Proof}, "|")))
}

func (p *planeOf) Retry(_ context.Context, by ops.Identity, id string) (plane.DelegationShowing, error) {
	return plane.DelegationShowing{}, p.note("retry", by, []byte(id))
}

func (p *planeOf) Invite(_ context.Context, by ops.Identity, i plane.Invitation) (plane.Invited, error) {
	return plane.Invited{Token: "ibe_1", Name: i.Name, Role: i.Role, Implementations: i.Implementations, Capabilities: []string{}}, p.note("invite", by, fmt.Append(nil, i))
}

func (p *planeOf) Revoke(_ context.Context, by ops.Identity, id string) (plane.WorkerShowing, error) {
	return plane.WorkerShowing{}, p.note("revoke", by, []byte(id))
}

func (p *planeOf) DrainWorker(_ context.Context, by ops.Identity, id string, on bool) (plane.WorkerShowing, error) {
	return plane.WorkerShowing{}, p.note("drain", by, fmt.Append(nil, id, " ", on))
}

// withPlane is a gateway with p, a worker wk and a verifier vf.
func withPlane(t testing.TB, p Plane, limits Limits) *gateway {
	t.Helper()
	g := open(t, func(c *Config) { c.Plane, c.Limits = p, limits })
	for id, role := range map[ops.IdentityID]ops.Role{"wk": ops.Worker, "vf": ops.Verifier} {
		var added AgentAdded
		g.ok(201, request{method: "POST", path: "/v1/agents", as: "ada", body: fmt.Sprintf(`{"id":%q,"role":%q}`, id, role)}, &added)
		g.tokens[id] = added.Token
	}
	return g
}

const someEnvelope = `{"payloadType":"application/vnd.inband.heartbeat+json","payload":"e30=","signatures":[{"keyid":"sha256:0","sig":"AAAA"}]}`

// The routes of workers, in the form in which a test may send something to each.
var protocol = []struct{ method, path, body string }{
	{"POST", "/v1/plane/enrol", someEnvelope},
	{"GET", "/v1/plane/challenge?worker=wk", ""},
	{"POST", "/v1/plane/boots", someEnvelope},
	{"POST", "/v1/plane/poll", `{"boot":"b","nonce":"n","wait_ms":0}`},
	{"POST", "/v1/plane/callbacks", someEnvelope},
}

// Who may use the routes of workers: strangers those three that are answered by a
// signature, and the tokens of workers and verifiers alone the others.
func TestWhoSpeaksForWorkers(t *testing.T) {
	p := &planeOf{}
	g := withPlane(t, p, Limits{})
	for _, q := range protocol {
		name, _, _ := strings.Cut(strings.TrimPrefix(q.path, "/v1/plane/"), "?")
		stranger := name == "enrol" || name == "challenge" || name == "boots"
		for _, by := range []ops.IdentityID{"", "ada", "scout", "mx", "wk", "vf"} {
			want := 200
			switch {
			case stranger && q.method == "POST":
				want = 201
			case stranger:
			case by == "":
				want = 401
			case by != "wk" && by != "vf":
				want = 403
			case name == "poll":
				want = 204
			}
			a := g.do(request{method: q.method, path: q.path, as: by, body: q.body})
			if a.status != want {
				t.Errorf("%s by %q: %s, want %d", q.path, by, a, want)
			}
			if final := a.fault.Details["final"] == true; final != (want >= 400 && name == "callbacks") {
				t.Errorf("%s by %q: final is %v: %s", q.path, by, final, a)
			}
		}
	}
	// A token that is cut off or no longer valid is refused at once and counted.
	before := g.server.RefusedWorkers()
	whole := g.tokens["wk"]
	g.tokens["wk"] = whole[:len(whole)-1]
	for _, q := range protocol[3:] {
		if a := g.do(request{method: q.method, path: q.path, as: "wk", body: q.body}); a.status != 401 || a.fault.Retryable {
			t.Errorf("%s with a token that is cut off: %s", q.path, a)
		}
	}
	g.tokens["wk"] = whole
	g.ok(200, request{method: "POST", path: "/v1/agents/wk/revoke", as: "ada", body: "{}"}, nil)
	for _, q := range protocol[3:] {
		if a := g.do(request{method: q.method, path: q.path, as: "wk", body: q.body}); a.status != 401 {
			t.Errorf("%s of one that is revoked: %s", q.path, a)
		}
	}
	if n := g.server.RefusedWorkers() - before; n != 4 {
		t.Errorf("%d tokens of workers were refused, want 4", n)
	}
}

// What the tokens of workers and verifiers open beside the routes of workers is what is
// for everybody: by the default policy they see nothing of anybody's and do nothing.
func TestWorkerTokensOpenNothingElse(t *testing.T) {
	g := withPlane(t, &planeOf{}, Limits{})
	everybodys := []string{"/v1/status", "/v1/version", "/v1/providers", "/v1/adaptors", "/v1/ops", "/v1/ops/{name}", "/healthz", "/readyz", "/openapi.json"}
	g.ok(201, request{method: "POST", path: "/v1/replies", as: "scout", body: `{"room":"lobby","message":"m-0","text":"[TOOL tools.list {}]"}`}, nil)
	lists := []string{"/v1/threads", "/v1/calls", "/v1/approvals", "/v1/artifacts", "/v1/timers", "/v1/wakes"}
	bodies := map[string]string{
		"/exec": `{"op":"dm.send","params":{"to":"scout","text":"hi"}}`, "/v1/replies": `{"agent":"scout","room":"lobby","message":"m","text":"hi"}`,
		"/v1/agents": `{"id":"new","role":"operator"}`, "/v1/agents/{id}/enrol": `{"agents":["scout"]}`, "/v1/stop": `{"all":true}`, "/v1/start": `{"all":true}`,
		"/v1/audit/verify": `{"checkpoint":""}`, "/v1/envelope/preview": `{"agent":"scout","errand":"Look."}`,
	}
	d, _ := g.document()
	for path, methods := range d.Paths {
		if strings.Contains(path, "/v1/plane") || strings.Contains(path, "/v1/delegations") || strings.Contains(path, "/v1/workers") || strings.HasPrefix(path, "/v1/adaptors/{") {
			continue // the plane's own, which the real one decides about, and what is signed
		}
		for method := range methods {
			q := request{method: strings.ToUpper(method), path: strings.NewReplacer("{id}", "scout", "{digest}", "sha256:"+strings.Repeat("0", 64), "{name}", "box.exec").Replace(path)}
			if q.method == "POST" {
				if q.body = bodies[path]; q.body == "" {
					q.body = "{}"
				}
			}
			for _, by := range []ops.IdentityID{"wk", "vf"} {
				q.as = by
				a := g.do(q)
				switch {
				case q.method == "GET" && slices.Contains(everybodys, path):
					if a.status != 200 {
						t.Errorf("%s %s by %s: %s, want 200", q.method, path, by, a)
					}
				case q.method == "GET" && slices.Contains(lists, path):
					if a.status != 200 || bytes.Contains(a.body, []byte("scout")) {
						t.Errorf("%s %s by %s: %s, want a list without what is scout's", q.method, path, by, a)
					}
				case a.status != 403 && a.status != 404:
					t.Errorf("%s %s by %s: %s, want 403 or 404", q.method, path, by, a)
				}
			}
		}
	}
}

// A signed envelope is read as strictly as any body, comes to the plane as it was sent,
// and what is wrong with it is final. What did not arrive is not.
func TestEnvelopesAreReadStrictly(t *testing.T) {
	p := &planeOf{}
	g := withPlane(t, p, Limits{})
	spaced := strings.ReplaceAll(someEnvelope, `":`, "\" :\n")
	for _, q := range []struct{ path, note string }{{"/v1/plane/callbacks", "callback wk "}, {"/v1/plane/boots", "boot  "}, {"/v1/plane/enrol", "enrol  "}} {
		for _, c := range []struct {
			name, body string
			kind       string
			want       int
			final      bool
			message    string
		}{
			{"as it should be", someEnvelope, "", 200, false, ""},
			{"with other white space", spaced, "", 200, false, ""},
			{"cut off", someEnvelope[:len(someEnvelope)-3], "", 400, true, "ends too early"},
			{"more behind it", someEnvelope + "{}", "", 400, true, "behind its end"},
			{"two payloads", `{"payload":"e30=",` + someEnvelope[1:], "", 400, true, "occurs twice"},
			{"another case", strings.Replace(someEnvelope, "payloadType", "payloadtype", 1), "", 400, true, `written \"payloadType\"`},
			{"unknown", `{"x":1,` + someEnvelope[1:], "", 400, true, "unknown"},
			{"unknown in the signature", strings.Replace(someEnvelope, `"sig"`, `"alg":"none","sig"`, 1), "", 400, true, "unknown"},
			{"two signatures", strings.Replace(someEnvelope, `"signatures":[`, `"signatures":[{"keyid":"x","sig":"AAAA"},`, 1), "", 400, true, "/signatures"},
			{"no signature", strings.Replace(someEnvelope, `[{"keyid":"sha256:0","sig":"AAAA"}]`, `[]`, 1), "", 400, true, "/signatures"},
			{"null", strings.Replace(someEnvelope, `"e30="`, `null`, 1), "", 400, true, "null"},
			{"a list", `[` + someEnvelope + `]`, "", 400, true, "one JSON object"},
			{"nothing", "", "application/json", 400, true, "missing"},
			{"text", someEnvelope, "text/plain", 415, true, "application/json"},
			{"too long", strings.Replace(someEnvelope, "e30=", strings.Repeat("AAAA", maxEnvelope/4), 1), "", 413, true, "longer than"},
		} {
			before := p.last()
			r := request{method: "POST", path: q.path, as: "wk", body: c.body}
			if c.kind != "" {
				r.header = map[string]string{"Content-Type": c.kind}
			}
			a := g.do(r)
			if c.want == 200 && q.path != "/v1/plane/callbacks" {
				c.want = 201
			}
			if a.status != c.want || (a.fault.Details["final"] == true) != c.final || !strings.Contains(string(a.body), c.message) {
				t.Errorf("%s, %s: %s, want %d, final %v, with %q", q.path, c.name, a, c.want, c.final, c.message)
			}
			switch got := p.last(); {
			case c.want < 300 && got != q.note+c.body:
				t.Errorf("%s, %s: the plane was given %q, want %q", q.path, c.name, got, q.note+c.body)
			case c.want >= 400 && got != before:
				t.Errorf("%s, %s: the plane was given %q", q.path, c.name, got)
			}
		}
	}
	// A body that breaks off on its way.
	c := g.raw()
	fmt.Fprintf(c, "POST /v1/plane/callbacks HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		g.addr, g.tokens["wk"], len(someEnvelope), someEnvelope[:20])
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if a := g.answerTo(c, "POST", "/v1/plane/callbacks"); a.status != 400 || a.fault.Details["final"] != nil {
		t.Errorf("a body that breaks off: %s, want 400 and nothing final", a)
	}
}

// What the plane says of an envelope is answered as it is.
func TestFaultsOfThePlane(t *testing.T) {
	p := &planeOf{}
	g := withPlane(t, p, Limits{})
	for _, c := range []struct {
		err     error
		status  int
		details string
	}{
		{ops.Faultf(ops.StaleFence, "the lease is over").With("final", true), 409, `"details":{"final":true}`},
		{ops.Faultf(ops.OutOfSequence, "want 3").With("expected", 3), 409, `"details":{"expected":3}`},
		{ops.Faultf(ops.BadSignature, "another key").With("final", true), 401, `"details":{"final":true}`},
		{ops.Faultf(ops.NotFound, "there is no such run").With("final", true), 404, `"details":{"final":true}`},
		{ops.Faultf(ops.Unavailable, "the store takes no writes"), 503, `"retryable":true`},
		{io.ErrUnexpectedEOF, 500, `"retryable":false`},
	} {
		p.err = c.err
		for _, q := range protocol {
			a := g.do(request{method: q.method, path: q.path, as: "wk", body: q.body})
			if a.status != c.status || !strings.Contains(string(a.body), c.details) || strings.Contains(string(a.body), "unexpected EOF") {
				t.Errorf("%s with %v: %s, want %d with %s", q.path, c.err, a, c.status, c.details)
			}
			if c.status == 503 && a.header.Get("Retry-After") == "" {
				t.Errorf("%s with %v: no Retry-After", q.path, c.err)
			}
		}
	}
	p.err = ops.Faultf(ops.BadSignature, "another key").With("final", true)
	for path, scheme := range map[string]string{"/v1/plane/enrol": "DSSE", "/v1/plane/boots": "DSSE"} {
		if a := g.do(request{method: "POST", path: path, body: someEnvelope}); !strings.HasPrefix(a.header.Get("WWW-Authenticate"), scheme) {
			t.Errorf("%s: WWW-Authenticate %q, want %s", path, a.header.Get("WWW-Authenticate"), scheme)
		}
	}
}

// Strangers have a rate, and places of their own; who has a token is served beside them.
func TestStrangersAtTheRoutes(t *testing.T) {
	g := withPlane(t, &planeOf{}, Limits{StrangeRate: 1})
	admitted := 0
	for range 12 {
		a := g.do(request{method: "GET", path: "/v1/plane/challenge?worker=wk"})
		switch {
		case a.status == 200:
			admitted++
		case a.status != 429 || a.fault.Code != ops.RateLimited || a.header.Get("Retry-After") != "1":
			t.Errorf("a stranger: %s, Retry-After %q", a, a.header.Get("Retry-After"))
		}
	}
	if admitted < 4 || admitted == 12 { // more than 4 where this takes seconds
		t.Errorf("%d of 12 requests were answered, want 4 and one each second", admitted)
	}
	if a := g.do(request{method: "POST", path: "/v1/plane/callbacks", as: "wk", body: someEnvelope}); a.status != 200 {
		t.Errorf("a worker meanwhile: %s", a)
	}
}

func TestChallengeWantsAWorker(t *testing.T) {
	g := withPlane(t, &planeOf{}, Limits{})
	for _, query := range []string{"", "?worker=", "?worker=a&worker=b", "?worker=a&x=1", "?Worker=a", "?worker=" + strings.Repeat("a", 65)} {
		if a := g.do(request{method: "GET", path: "/v1/plane/challenge" + query}); a.status != 400 || a.fault.Code != ops.BadRequest {
			t.Errorf("%q: %s", query, a)
		}
	}
}

// waiting is a plane whose polls wait until release is closed, or their context ends.
func waiting() (p *planeOf, began chan string, release chan struct{}, ended chan error) {
	began, release, ended = make(chan string, 1024), make(chan struct{}), make(chan error, 1024)
	return &planeOf{poll: func(ctx context.Context, by ops.Identity, q wire.Poll) ([]byte, error) {
		began <- q.Nonce
		select {
		case <-release:
			ended <- nil
			return []byte(someEnvelope), nil
		case <-ctx.Done():
			ended <- ctx.Err()
			return nil, nil
		}
	}}, began, release, ended
}

func pollBody(nonce string) string {
	return fmt.Sprintf(`{"boot":"b","nonce":%q,"wait_ms":60000}`, nonce)
}

func TestPoll(t *testing.T) {
	var asked wire.Poll
	var answer []byte
	g := withPlane(t, &planeOf{poll: func(_ context.Context, by ops.Identity, q wire.Poll) ([]byte, error) {
		asked = q
		return answer, nil
	}}, Limits{})
	if a := g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: `{"boot":"b-1","nonce":"n-1","wait_ms":25}`}); a.status != 204 || len(a.body) > 0 {
		t.Errorf("nothing to do: %s", a)
	}
	if want := (wire.Poll{Boot: "b-1", Nonce: "n-1", WaitMS: 25}); asked != want {
		t.Errorf("asked for %+v, want %+v", asked, want)
	}
	answer = []byte(someEnvelope)
	if a := g.do(request{method: "POST", path: "/v1/plane/poll", as: "vf", body: pollBody("n-2")}); a.status != 200 || string(a.body) != someEnvelope {
		t.Errorf("a grant: %s", a)
	}
	for _, body := range []string{
		`{}`, `{"boot":"b","nonce":"n"}`, `{"boot":"b","nonce":"n","wait_ms":-1}`, `{"boot":"b","nonce":"n","wait_ms":60001}`, `{"boot":"b","nonce":"n","wait_ms":0.5}`,
		`{"boot":"","nonce":"n","wait_ms":0}`, `{"boot":"b","nonce":"","wait_ms":0}`, `{"boot":"b","nonce":"n","wait_ms":0,"wait_ms":1}`, `{"boot":"b","nonce":"n","waitms":0}`,
		`{"boot":"b","nonce":"` + strings.Repeat("n", 65) + `","wait_ms":0}`, `{"boot":"b","nonce":"n","wait_ms":0} `[:30],
	} {
		if a := g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: body}); a.status != 400 {
			t.Errorf("%s: %s, want 400", body, a)
		}
	}
}

// Two hundred polls wait at once, and none of them takes a place of other requests.
func TestPollsWaitBeside(t *testing.T) {
	p, began, release, _ := waiting()
	g := withPlane(t, p, Limits{Requests: 8, Workers: 2, Polls: 200, OwnPolls: 200})
	answers := make(chan int, 200)
	for i := range 200 {
		r := g.build(t.Context(), request{method: "POST", path: "/v1/plane/poll", as: []ops.IdentityID{"wk", "vf"}[i%2], body: pollBody(fmt.Sprint(i))})
		go func() {
			res, err := g.client.Do(r)
			if err != nil {
				answers <- -1
				return
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil || string(b) != someEnvelope {
				answers <- -2
				return
			}
			answers <- res.StatusCode
		}()
	}
	for range 200 {
		<-began
	}
	if a := g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: pollBody("more")}); a.status != 503 || a.fault.Code != ops.Busy || a.header.Get("Retry-After") != "1" {
		t.Errorf("one more: %s", a)
	}
	if a := g.do(request{method: "GET", path: "/v1/status", as: "scout"}); a.status != 200 {
		t.Errorf("another's request meanwhile: %s", a)
	}
	if a := g.do(request{method: "POST", path: "/v1/plane/callbacks", as: "wk", body: someEnvelope}); a.status != 200 {
		t.Errorf("a heartbeat meanwhile: %s", a)
	}
	close(release)
	for range 200 {
		if code := <-answers; code != 200 {
			t.Errorf("a poll was answered %d", code)
		}
	}
}

// One worker does not take every place, and what it gives up is free again.
func TestPollsOfOneWorkerAreBounded(t *testing.T) {
	p, began, release, ended := waiting()
	g := withPlane(t, p, Limits{OwnPolls: 2})
	ctx, hangUp := context.WithCancel(t.Context())
	left := make(chan error, 2)
	for i := range 2 {
		r := g.build(ctx, request{method: "POST", path: "/v1/plane/poll", as: "wk", body: pollBody(fmt.Sprint(i))})
		go func() {
			res, err := g.client.Do(r)
			if err == nil {
				res.Body.Close()
			}
			left <- err
		}()
		<-began
	}
	if a := g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: pollBody("more")}); a.status != 503 || a.fault.Code != ops.Busy {
		t.Errorf("the third: %s", a)
	}
	hangUp() // and the plane is told
	for range 2 {
		if err := <-left; err == nil {
			t.Error("a request that was given up was answered")
		}
		if err := <-ended; err == nil {
			t.Error("the poll of one who has gone went on")
		}
	}
	close(release)
	eventually(t, func() bool {
		return g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: pollBody("again")}).status == 200
	})
}

// eventually asks again until ok, for 30 seconds.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	limit := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(limit) {
			t.Fatal("it has not come about within 30 s")
		}
	}
}

// A stop ends those who wait, at once, and says that it is one.
func TestPollsEndWithTheServer(t *testing.T) {
	p, began, _, ended := waiting()
	g := withPlane(t, p, Limits{})
	answers := make(chan reply, 3)
	for i := range 3 {
		r := g.build(t.Context(), request{method: "POST", path: "/v1/plane/poll", as: "wk", body: pollBody(fmt.Sprint(i))})
		go func() {
			res, err := g.client.Do(r)
			if err != nil {
				t.Errorf("a poll at the end: %v", err)
				answers <- reply{}
				return
			}
			defer res.Body.Close()
			var a reply
			a.status = res.StatusCode
			if err := json.NewDecoder(res.Body).Decode(&a.fault); err != nil {
				t.Error(err)
			}
			answers <- a
		}()
		<-began
	}
	stopped := make(chan error, 1)
	go func() { stopped <- g.server.Shutdown(t.Context()) }()
	for range 3 {
		<-ended
		if a := <-answers; a.status != 503 || a.fault.Code != ops.Unavailable || !a.fault.Retryable {
			t.Errorf("at the end: %d %+v", a.status, a.fault)
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client that is slow to ask, or does not take its answer, loses its connection and
// gives up its place.
func TestSlowPolls(t *testing.T) {
	large := append([]byte(`{"payload":"`), bytes.Repeat([]byte("A"), 64<<20)...) // more than any buffer on the way
	large = append(large, `"}`...)
	answer := large
	g := withPlane(t, &planeOf{poll: func(context.Context, ops.Identity, wire.Poll) ([]byte, error) { return answer, nil }},
		Limits{Polls: 1, Read: 500 * time.Millisecond, Write: 500 * time.Millisecond})
	head := func(length int) string {
		return fmt.Sprintf("POST /v1/plane/poll HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", g.addr, g.tokens["wk"], length)
	}
	slow := g.raw()
	io.WriteString(slow, head(100)+`{"boot"`)
	if a := g.answerTo(slow, "POST", "/v1/plane/poll"); a.status != 400 || !strings.Contains(a.fault.Message, "did not arrive") {
		t.Errorf("a body that does not come: %s", a)
	}
	body := pollBody("n")
	deaf := g.raw()
	io.WriteString(deaf, head(len(body))+body)
	one := make([]byte, 1)
	if _, err := io.ReadFull(deaf, one); err != nil { // the answer has begun
		t.Fatal(err)
	}
	answer = nil
	eventually(t, func() bool {
		return g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: pollBody("m")}).status == http.StatusNoContent
	})
	if n, err := io.Copy(io.Discard, deaf); err == nil && n >= int64(len(large)) {
		t.Error("a client that did not read was sent everything")
	}
}

// What operators ask of the plane comes to it as it was meant.
func TestPlaneRoutes(t *testing.T) {
	p := &planeOf{}
	g := withPlane(t, p, Limits{})
	for _, c := range []struct {
		path, body string
		status     int
		taken      string // by the plane; "" is nothing
	}{
		{"/v1/plane/state", `{"state":"on"}`, 200, "switch ada on"},
		{"/v1/plane/state", `{"state":"drain"}`, 200, "switch ada drain"},
		{"/v1/plane/state", `{"state":"ON"}`, 400, ""},
		{"/v1/plane/state", `{}`, 400, ""},
		{"/v1/plane/fence-term", `{}`, 200, "term ada "},
		{"/v1/plane/fence-term", ``, 200, "term ada "},
		{"/v1/plane/fence-term", `{"by":2}`, 400, ""},
		{"/v1/workers/invitations", `{"name":"builder"}`, 201, "invite ada {builder worker [default] [] 1h0m0s}"},
		{"/v1/workers/invitations", `{"name":"judge","role":"verifier","implementations":["a","b"],"capabilities":["gpu"],"ttl":"15m"}`, 201, "invite ada {judge verifier [a b] [gpu] 15m0s}"},
		{"/v1/workers/invitations", `{"name":"boss","role":"operator"}`, 400, ""},
		{"/v1/workers/invitations", `{"name":""}`, 400, ""},
		{"/v1/workers/invitations", `{"name":"b","ttl":"soon"}`, 400, ""},
		{"/v1/workers/invitations", `{"name":"b","ttl":"-1h"}`, 400, ""},
		{"/v1/workers/builder/revoke", `{}`, 200, "revoke ada builder"},
		{"/v1/workers/builder/drain", `{}`, 200, "drain ada builder true"},
		{"/v1/workers/builder/drain", `{"off":true}`, 200, "drain ada builder false"},
		{"/v1/workers/builder/drain", `{"on":true}`, 400, ""},
		{"/v1/delegations/d-1/cancel", `{}`, 200, "cancel ada d-1 0s "},
		{"/v1/delegations/d-1/cancel", `{"grace":"1m30s","reason":"late"}`, 200, "cancel ada d-1 1m30s late"},
		{"/v1/delegations/d-1/cancel", `{"grace":"0s"}`, 400, ""},
		{"/v1/delegations/d-1/cancel", `{"grace":"a while"}`, 400, ""},
		{"/v1/delegations/d-1/resolve", `{"resolution":"resume","answer":"yes"}`, 200, "resolve ada d-1|resume|yes||-|"},
		{"/v1/delegations/d-1/resolve", `{"mutation":"k","done":false,"proof":"looked"}`, 200, "resolve ada d-1|||k|false|looked"},
		{"/v1/delegations/d-1/resolve", `{"resolution":"forget"}`, 400, ""},
		{"/v1/delegations/d-1/resolve", `{"resolution":"fail","done":null}`, 400, ""},
		{"/v1/delegations/d-1/retry", `{}`, 200, "retry ada d-1"},
	} {
		p.mu.Lock()
		p.taken = nil
		p.mu.Unlock()
		a := g.do(request{method: "POST", path: c.path, as: "ada", body: c.body})
		if a.status != c.status || p.last() != c.taken {
			t.Errorf("%s %s: %s, the plane was asked %q; want %d and %q", c.path, c.body, a, p.last(), c.status, c.taken)
		}
		if a := g.do(request{method: "POST", path: c.path, body: c.body}); a.status != 401 {
			t.Errorf("%s without a token: %s", c.path, a)
		}
	}
}
