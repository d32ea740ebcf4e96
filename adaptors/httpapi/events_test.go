package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/journal"
	"inband/service/threads"
)

// eventSource reads one stream of server-sent events.
type eventSource struct {
	t      *testing.T
	resp   *http.Response
	r      *bufio.Reader
	cancel context.CancelFunc
}

func (g *gateway) follow(t *testing.T, client *http.Client, as ops.IdentityID, path, lastID string) *eventSource {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	q := request{method: "GET", path: path, as: as}
	if lastID != "" {
		q.header = map[string]string{"Last-Event-ID": lastID}
	}
	resp, err := client.Do(g.build(ctx, q))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: got %s, %q", path, resp.Status, b)
	}
	return &eventSource{t: t, resp: resp, r: bufio.NewReader(resp.Body), cancel: cancel}
}

// block returns the lines of the next block, or an error when the stream ends.
func (s *eventSource) block() (lines []string, err error) {
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return lines, err
		}
		if line == "\n" {
			return lines, nil
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
}

// next returns the next event, passing over comments.
func (s *eventSource) next() (e Event, err error) {
	for {
		lines, err := s.block()
		if err != nil {
			return e, err
		}
		if len(lines) == 1 && strings.HasPrefix(lines[0], ": ") {
			continue
		}
		if len(lines) != 3 || !strings.HasPrefix(lines[2], "data: ") {
			s.t.Fatalf("a block of %q", lines)
		}
		if err := json.Unmarshal([]byte(lines[2][len("data: "):]), &e); err != nil {
			s.t.Fatalf("%v in %q", err, lines[2])
		}
		if lines[0] != "id: "+strconv.FormatInt(e.Position, 10) || lines[1] != "event: "+e.Kind {
			s.t.Fatalf("the block %q does not fit its data", lines)
		}
		return e, nil
	}
}

func (g *gateway) append(n int, body []byte) {
	g.t.Helper()
	err := g.store.Update(context.Background(), func(tx journal.Tx) error {
		for range n {
			if err := tx.Append("test/events", journal.Any, "test.happened", body); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
}

func TestStreamResumes(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			g := open(t)
			g.client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "HTTP/2.0"
			g.append(300, []byte(`{"n":1}`))
			var got []Event
			last := ""
			path := "/v1/events?after=0"
			for round := range 5 { // each takes some, and hangs up
				s := g.follow(t, g.client, "ada", path, last)
				if s.resp.Proto != proto {
					t.Fatalf("the stream speaks %s", s.resp.Proto)
				}
				for range 40 + round {
					e, err := s.next()
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, e)
					last = strconv.FormatInt(e.Position, 10)
				}
				s.cancel()
			}
			g.append(20, []byte(`{"n":2}`)) // some come while it listens
			s := g.follow(t, g.client, "ada", path, last)
			g.append(20, []byte("not JSON"))
			head, err := g.store.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for len(got) == 0 || got[len(got)-1].Position < head {
				e, err := s.next()
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, e)
			}
			var want []Event
			done := errors.New("done")
			err = g.store.Tail(t.Context(), 0, func(e journal.Event) error {
				body := json.RawMessage(e.Body)
				if !json.Valid(body) {
					body = json.RawMessage("null")
				}
				want = append(want, Event{Position: e.Position, Stream: e.Stream, Version: e.Version, Kind: e.Kind, At: ops.Stamp(e.At), Body: body})
				if e.Position == head {
					return done
				}
				return nil
			})
			if !errors.Is(err, done) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("events (-journal +stream):\n%s", diff)
			}
		})
	}
}

func TestStreamFromNow(t *testing.T) {
	g := open(t)
	s := g.follow(t, g.client, "ada", "/v1/events", "")
	if lines, err := s.block(); err != nil || len(lines) != 1 || !strings.HasPrefix(lines[0], ": events after ") {
		t.Fatalf("the stream begins with %q, %v", lines, err)
	}
	g.append(1, []byte(`{"first":true}`))
	if e, err := s.next(); err != nil || string(e.Body) != `{"first":true}` {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestStreamOfAThread(t *testing.T) {
	g := open(t)
	var ack, foreign threads.Ack
	g.ok(201, request{method: "POST", path: "/v1/replies", as: "scout", body: `{"room":"lobby","message":"m-1","text":"one"}`}, &ack)
	g.ok(201, request{method: "POST", path: "/v1/replies", as: "other", body: `{"room":"lobby","message":"m-1","text":"else"}`}, &foreign)
	g.ok(201, request{method: "POST", path: "/v1/replies", as: "mx", body: `{"agent":"scout","thread":"` + ack.Thread + `","message":"m-2","text":"two"}`}, nil)
	for _, who := range []ops.IdentityID{"scout", "mx", "ada"} {
		s := g.follow(t, g.client, who, "/v1/events?after=0&thread="+ack.Thread, "")
		posts := 0
		for posts < 2 {
			e, err := s.next()
			if err != nil {
				t.Fatal(err)
			}
			if e.Stream != "thread/"+ack.Thread {
				t.Errorf("%s gets an event of %s", who, e.Stream)
			}
			if e.Kind == "thread.posted" {
				posts++
			}
		}
		s.cancel()
	}
	for _, c := range []struct {
		as   ops.IdentityID
		path string
		want ops.Code
	}{
		{"scout", "/v1/events", ops.NotPermitted},
		{"mx", "/v1/events?after=0", ops.NotPermitted},
		{"scout", "/v1/events?thread=" + foreign.Thread, ops.NotFound},
		{"scout", "/v1/events?thread=t-none", ops.NotFound},
		{"ada", "/v1/events?thread=t-none", ops.NotFound},
		{"ada", "/v1/events?after=1000000", ops.BadRequest},
		{"ada", "/v1/events?after=-1", ops.BadRequest},
		{"ada", "/v1/events?after=x", ops.BadRequest},
		{"ada", "/v1/events?after=9999999999999999999", ops.BadRequest},
	} {
		if a := g.do(request{method: "GET", path: c.path, as: c.as}); a.fault.Code != c.want {
			t.Errorf("%s at %s: got %s, want %s", c.as, c.path, a, c.want)
		}
	}
}

func TestStreamHeartbeat(t *testing.T) {
	g := open(t, func(c *Config) { c.Limits.Heartbeat = 10 * time.Millisecond })
	s := g.follow(t, g.client, "ada", "/v1/events", "")
	for range 3 {
		lines, err := s.block()
		if err != nil || len(lines) != 1 || !strings.HasPrefix(lines[0], ": ") {
			t.Fatalf("got %q, %v; want a comment", lines, err)
		}
	}
}

func TestStreamEndsWithItsIdentity(t *testing.T) {
	g := open(t)
	var added AgentAdded
	g.ok(201, request{method: "POST", path: "/v1/agents", as: "ada", body: `{"id":"bob","role":"operator"}`}, &added)
	g.tokens["bob"] = added.Token
	bob, ada := g.follow(t, g.client, "bob", "/v1/events", ""), g.follow(t, g.client, "ada", "/v1/events", "")
	g.ok(200, request{method: "POST", path: "/v1/agents/bob/revoke", as: "ada"}, nil)
	g.append(1, []byte(`{}`))
	if e, err := bob.next(); err == nil {
		t.Errorf("the revoked one reads %+v", e)
	}
	for _, want := range []string{"agent.revoked", "test.happened"} {
		if e, err := ada.next(); err != nil || e.Kind != want {
			t.Errorf("the other one reads %+v, %v; want %s", e, err, want)
		}
	}
}

// A rotation ends the streams of the old token, and none of the new one that reads
// about it later.
func TestStreamEndsWithItsToken(t *testing.T) {
	g := open(t)
	var bob AgentAdded
	g.ok(201, request{method: "POST", path: "/v1/agents", as: "ada", body: `{"id":"bob","role":"operator"}`}, &bob)
	g.tokens["bob"] = bob.Token
	old := g.follow(t, g.client, "bob", "/v1/events", "")
	var rotated AgentRotated
	g.ok(200, request{method: "POST", path: "/v1/agents/bob/rotate", as: "ada"}, &rotated)
	g.append(1, []byte(`{}`))
	if e, err := old.next(); err == nil {
		t.Errorf("the old token reads %+v", e)
	}
	if a := g.do(request{method: "GET", path: "/v1/ops", as: "bob"}); a.status != 401 {
		t.Errorf("the old token: got %s", a)
	}
	g.tokens["bob"] = rotated.Token
	fresh := g.follow(t, g.client, "bob", "/v1/events?after=0", "")
	for kind := ""; kind != "test.happened"; {
		e, err := fresh.next()
		if err != nil {
			t.Fatalf("the new token's stream ends after %q: %v", kind, err)
		}
		kind = e.Kind
	}
	if a := g.do(request{method: "POST", path: "/v1/agents/bob/rotate", as: "scout"}); a.status != 403 {
		t.Errorf("an agent rotates: got %s", a)
	}
	if a := g.do(request{method: "GET", path: "/v1/policy", as: "scout"}); a.status != 403 {
		t.Errorf("an agent reads the policy: got %s", a)
	}
}

func TestRoomForStreams(t *testing.T) {
	g := open(t, func(c *Config) { c.Limits.Streams, c.Limits.OwnStreams = 3, 2 })
	var added AgentAdded
	g.ok(201, request{method: "POST", path: "/v1/agents", as: "ada", body: `{"id":"bob","role":"operator"}`}, &added)
	g.tokens["bob"] = added.Token
	first := g.follow(t, g.client, "ada", "/v1/events", "")
	g.follow(t, g.client, "ada", "/v1/events", "")
	if a := g.do(request{method: "GET", path: "/v1/events", as: "ada"}); a.fault.Code != ops.Busy {
		t.Errorf("a third of one identity: got %s", a)
	}
	g.follow(t, g.client, "bob", "/v1/events", "")
	if a := g.do(request{method: "GET", path: "/v1/events", as: "bob"}); a.fault.Code != ops.Busy {
		t.Errorf("a fourth: got %s", a)
	}
	first.cancel()
	g.logs.await(t, "stream ended")
	g.follow(t, g.client, "bob", "/v1/events", "")
}

// big is more events than what lies between two sockets can hold, in bytes.
const big, bigEvents = 1 << 20, 16

// A client that does not read is disconnected.
func TestSlowStreamIsCut(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			g := open(t, func(c *Config) { c.Limits.Write = 200 * time.Millisecond })
			g.client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "HTTP/2.0"
			slow := g.follow(t, g.client, "ada", "/v1/events", "")
			g.append(bigEvents, fmt.Appendf(nil, "%q", strings.Repeat("x", big)))
			g.logs.await(t, "stream ended")
			n := 0
			for ; n <= bigEvents; n++ {
				if _, err := slow.block(); err != nil {
					break
				}
			}
			if n >= bigEvents {
				t.Errorf("the slow one got %d of %d events", n, bigEvents)
			}
		})
	}
}

// And it delays nobody while it lasts.
func TestSlowStreamDelaysNobody(t *testing.T) {
	g := open(t)
	slow := g.newClient()
	g.follow(t, slow, "ada", "/v1/events", "")
	t.Cleanup(slow.CloseIdleConnections)
	quick := g.follow(t, g.client, "ada", "/v1/events", "")
	g.append(bigEvents, fmt.Appendf(nil, "%q", strings.Repeat("x", big)))
	for n := range bigEvents + 1 { // a comment first
		if _, err := quick.block(); err != nil {
			t.Fatalf("the quick one, after %d: %v", n, err)
		}
	}
	if g.ok(200, request{method: "GET", path: "/v1/version", as: "ada"}, nil); strings.Contains(g.logs.String(), "stream ended") {
		t.Error("the slow one was cut before its time")
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			g := open(t)
			g.client.Transport.(*http.Transport).ForceAttemptHTTP2 = proto == "HTTP/2.0"
			s := g.follow(t, g.client, "ada", "/v1/events", "")
			if err := g.server.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			said := ""
			for {
				lines, err := s.block()
				if err != nil {
					if err != io.EOF {
						t.Errorf("the stream ended with %v", err)
					}
					break
				}
				said = strings.Join(lines, "\n")
			}
			if said != ": the gateway is stopping" {
				t.Errorf("the last word was %q", said)
			}
		})
	}
}
