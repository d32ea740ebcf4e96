package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/threads"
)

// A reply goes in as text, and the results of its orders stand in its thread.
func TestReply(t *testing.T) {
	g := open(t)
	s := g.follow(t, g.client, "ada", "/v1/events?after=0", "")
	var ack threads.Ack
	text := "I look.\n[TOOL tools.list {}]\n> [TOOL tools.list {}]\n[TOOL test.b {}]\n[TOOL x {\n"
	body, err := json.Marshal(NewReply{Room: "lobby", Message: "m-1", Text: text})
	if err != nil {
		t.Fatal(err)
	}
	a := g.ok(201, request{method: "POST", path: "/v1/replies", as: "scout", body: string(body)}, &ack)
	if ack.Room != "lobby" || ack.Message != "m-1" || ack.Duplicate || len(ack.Calls) != 2 || ack.Calls[1].Fault == nil || ack.Calls[1].Fault.Code != ops.UnknownOp {
		t.Fatalf("got %s", a)
	}
	results := 0
	for results < 2 {
		e, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		var posted struct{ Thread, Kind string }
		if e.Kind == "thread.posted" {
			if err := json.Unmarshal(e.Body, &posted); err != nil {
				t.Fatal(err)
			}
		}
		if posted.Kind == "result" && posted.Thread == ack.Thread {
			results++
		}
	}
	var thread struct {
		Posts []struct{ Kind, Call, Text string }
	}
	g.get("scout", "/v1/threads/"+ack.Thread, &thread)
	if len(thread.Posts) != 3 || thread.Posts[0].Text != text {
		t.Errorf("the thread holds %+v", thread.Posts)
	}
	var page struct {
		Posts []struct{ Seq int64 }
		Next  int64
	}
	g.get("scout", "/v1/threads/"+ack.Thread+"?limit=2", &page)
	if len(page.Posts) != 2 || page.Next != 2 {
		t.Errorf("a page of two: %+v", page)
	}
	page.Next = 0
	g.get("scout", "/v1/threads/"+ack.Thread+"?limit=2&after=2", &page)
	if len(page.Posts) != 1 || page.Next != 0 {
		t.Errorf("the page after: %+v", page)
	}

	var again threads.Ack
	g.ok(200, request{method: "POST", path: "/v1/replies", as: "scout", body: string(body)}, &again)
	if !again.Duplicate || again.Reply != ack.Reply || again.Thread != ack.Thread || fmt.Sprint(again.Calls[0].Call) != fmt.Sprint(ack.Calls[0].Call) {
		t.Errorf("again: got %+v, want %+v as a duplicate", again, ack)
	}
}

func TestReplyRefused(t *testing.T) {
	g := open(t)
	for _, c := range []struct {
		as   ops.IdentityID
		body string
		want int
	}{
		{"scout", `{"agent":"scout","room":"lobby","message":"1","text":""}`, 201},
		{"mx", `{"agent":"scout","room":"lobby","message":"2","text":"x"}`, 201},
		{"ada", `{"agent":"other","room":"lobby","message":"3","text":"x"}`, 201},
		{"ada", `{"room":"lobby","message":"4","text":"x"}`, 400},
		{"mx", `{"room":"lobby","message":"4","text":"x"}`, 400},
		{"mx", `{"agent":"other","room":"lobby","message":"4","text":"x"}`, 403},
		{"other", `{"agent":"scout","room":"lobby","message":"4","text":"x"}`, 403},
		{"scout", `{"message":"4","text":"x"}`, 400},
		{"scout", `{"room":"lobby","thread":"t-1","message":"4","text":"x"}`, 400},
		{"scout", `{"thread":"t-1","message":"4","text":"x"}`, 404},
		{"scout", `{"room":"Lobby","message":"4","text":"x"}`, 400},
		{"scout", `{"room":"lobby","message":"","text":"x"}`, 400},
		{"scout", `{"room":"lobby","text":"x"}`, 400},
		{"scout", `{"room":"lobby","message":"4"}`, 400},
		{"scout", `{"room":"lobby","message":"` + strings.Repeat("é", 129) + `","text":"x"}`, 400}, // 258 bytes
		{"scout", `{"room":"lobby","message":"` + strings.Repeat("m", 256) + `","text":"x"}`, 201},
		{"scout", `{"room":"lobby","message":"5","text":"` + strings.Repeat("[", 1<<20-100) + `"}`, 201},
	} {
		a := g.do(request{method: "POST", path: "/v1/replies", as: c.as, body: c.body})
		if a.status != c.want {
			t.Errorf("%s hands in %.100s: got %s, want %d", c.as, c.body, a, c.want)
		}
	}
}
