package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"inband/ops"
	"inband/service"
)

// parked orders an op that needs an approval.
func (g *gateway) parked(as ops.IdentityID) (taken CallTaken) {
	g.t.Helper()
	g.ok(202, request{method: "POST", path: "/exec", as: as, body: `{"op":"test.a/b"}`}, &taken)
	if taken.State != ops.Parked || taken.Approval == "" {
		g.t.Fatalf("not parked: %+v", taken)
	}
	return taken
}

func TestParkedCallIsAnsweredAtOnce(t *testing.T) {
	g := open(t)
	for _, prefer := range []string{"", "respond-async"} {
		q := request{method: "POST", path: "/exec", as: "scout", body: `{"op":"test.a/b","id":"k` + prefer + `"}`}
		if prefer != "" {
			q.header = map[string]string{"Prefer": prefer}
		}
		var first, again CallTaken
		a := g.ok(202, q, &first)
		if first.State != ops.Parked || first.Approval == "" || first.Replayed ||
			a.header.Get("Location") != "/v1/calls/"+string(first.Call) || a.header.Get("Preference-Applied") != prefer {
			t.Errorf("Prefer %q: %s", prefer, a)
		}
		g.ok(202, q, &again)
		if again.Call != first.Call || again.Approval != first.Approval || !again.Replayed {
			t.Errorf("again: %+v, want %+v, replayed", again, first)
		}
		var call service.CallShowing
		g.get("scout", "/v1/calls/"+string(first.Call), &call)
		if call.State != ops.Parked || call.Approval != first.Approval {
			t.Errorf("shown as %+v", call)
		}
		// Decided, the same request has the outcome.
		g.ok(200, request{method: "POST", path: "/v1/approvals/" + string(first.Approval) + "/approve", as: "ada", body: "{}"}, nil)
		if _, err := g.door.Await(t.Context(), first.Call); err != nil {
			t.Fatal(err)
		}
		var done CallDone
		g.ok(200, q, &done)
		if done.Call != first.Call || !done.Replayed || string(done.Result) != `"done"` {
			t.Errorf("afterwards: %+v", done)
		}
	}
}

// Who sees and decides what over the API, and what a decision is answered with.
func TestApprovalRoutes(t *testing.T) {
	g := open(t)
	p, d, void := g.parked("scout"), g.parked("scout"), g.parked("scout")
	g.ok(200, request{method: "POST", path: "/v1/calls/" + string(void.Call) + "/cancel", as: "scout", body: "{}"}, nil)
	at := func(a CallTaken) string { return "/v1/approvals/" + string(a.Approval) }
	for i, tc := range []struct {
		as                 ops.IdentityID
		method, path, body string
		status             int
		says               string
	}{
		{"ada", "GET", at(p), "", 200, `"state":"pending"`},
		{"scout", "GET", at(p), "", 200, `"params":{}`},
		{"mx", "GET", at(p), "", 200, `"side_effecting":true`},
		{"other", "GET", at(p), "", 404, "NOT_FOUND"},
		{"ada", "GET", "/v1/approvals/a-none", "", 404, "NOT_FOUND"},
		{"other", "POST", at(p) + "/approve", "{}", 404, "NOT_FOUND"},
		{"scout", "POST", at(p) + "/approve", "{}", 403, "NOT_PERMITTED"},
		{"scout", "POST", at(p) + "/deny", "{}", 403, "NOT_PERMITTED"},
		{"mx", "POST", at(p) + "/approve", "{}", 403, "NOT_PERMITTED"},
		{"", "POST", at(p) + "/approve", "{}", 401, "UNAUTHENTICATED"},
		{"ada", "POST", at(d) + "/deny", `{"why":"x"}`, 400, "BAD_REQUEST"},
		{"ada", "POST", at(d) + "/deny", `{"reason":"` + strings.Repeat("x", 501) + `"}`, 400, "BAD_REQUEST"},
		{"ada", "POST", at(d) + "/deny", `{"reason":"\u001b[2J"}`, 400, "BAD_REQUEST"},
		{"ada", "POST", at(d) + "/deny", "", 400, "BAD_REQUEST"},
		{"ada", "POST", at(d) + "/deny", `{"reason":"not now"}`, 200, `"state":"denied"`},
		{"ada", "POST", at(d) + "/deny", "{}", 200, `"reason":"not now"`},
		{"ada", "POST", at(d) + "/approve", "{}", 409, "CONFLICT"},
		{"ada", "POST", at(p) + "/approve", `{"sure":true}`, 400, "BAD_REQUEST"},
		{"ada", "POST", at(p) + "/approve", "{}", 200, `"decided_by":{"id":"ada"`},
		{"ada", "POST", at(p) + "/approve", "", 200, `"state":"approved"`},
		{"ada", "POST", at(p) + "/deny", "{}", 409, "CONFLICT"},
		{"ada", "POST", at(void) + "/approve", "{}", 409, "CONFLICT"},
		{"ada", "GET", "/v1/approvals?state=denied", "", 200, `"state":"denied"`},
		{"ada", "GET", "/v1/approvals?state=open", "", 400, "BAD_REQUEST"},
		{"ada", "GET", "/v1/approvals?limit=201", "", 400, "BAD_REQUEST"},
		{"other", "GET", "/v1/approvals", "", 200, `{"approvals":[]}`},
		{"ada", "GET", "/v1/calls?state=parked", "", 200, `{"calls":[]}`},
	} {
		a := g.do(request{method: tc.method, path: tc.path, as: tc.as, body: tc.body})
		if a.status != tc.status || !strings.Contains(string(a.body), tc.says) {
			t.Errorf("%d: %s %s %s by %s: got %s, want %d and %s", i, tc.method, tc.path, tc.body, tc.as, a, tc.status, tc.says)
		}
	}
	var page, rest ApprovalPage
	g.get("ada", "/v1/approvals?limit=2", &page)
	if len(page.Approvals) != 2 || page.Approvals[0].Approval != void.Approval || page.Next != d.Approval {
		t.Errorf("the first page: %+v", page)
	}
	g.get("ada", "/v1/approvals?limit=2&after="+string(page.Next), &rest)
	if len(rest.Approvals) != 1 || rest.Approvals[0].Approval != p.Approval || rest.Next != "" {
		t.Errorf("the last page: %+v", rest)
	}
	// box.exec reads the same.
	var over, through any
	g.get("ada", "/v1/approvals", &over)
	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"box","params":{"action":"approvals"}}`}, &done)
	a, _ := json.Marshal(over)
	if err := json.Unmarshal(done.Result, &through); err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(through); string(a) != string(b) {
		t.Errorf("over the API %s, through box.exec %s", a, b)
	}
}
