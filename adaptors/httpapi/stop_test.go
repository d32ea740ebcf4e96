package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"inband/ops"
)

func TestStopAndStart(t *testing.T) {
	g := open(t)
	var taken struct{ Thread string }
	g.ok(http.StatusCreated, request{method: "POST", path: "/v1/replies", as: "scout", body: `{"room":"lobby","message":"m1","text":"hello"}`}, &taken)
	thread := taken.Thread
	for _, c := range []struct {
		name, who, method, path, body string
		status                        int
		want                          string
	}{
		{"a thread", "ada", "POST", "/v1/stop", `{"thread":"` + thread + `"}`, 200, `"stopped":true`},
		{"listed", "ada", "GET", "/v1/holds", "", 200, `"scope":"` + thread + `"`},
		{"in the status", "scout", "GET", "/v1/status", "", 200, `"scope":"` + thread + `"`},
		{"all", "ada", "POST", "/v1/stop", `{"all":true}`, 200, `"scope":"*"`},
		{"all again", "ada", "POST", "/v1/start", `{"all":true}`, 200, `"stopped":false`},
		{"the thread again", "ada", "POST", "/v1/start", `{"thread":"` + thread + `"}`, 200, `"stopped":false`},
		{"none left", "ada", "GET", "/v1/holds", "", 200, `{"holds":[]}`},
		{"by an agent", "scout", "POST", "/v1/stop", `{"thread":"` + thread + `"}`, 403, string(ops.NotPermitted)},
		{"all by an agent", "scout", "POST", "/v1/start", `{"all":true}`, 403, string(ops.NotPermitted)},
		{"by a bridge", "mx", "POST", "/v1/stop", `{"all":true}`, 403, string(ops.NotPermitted)},
		{"listed to an agent", "scout", "GET", "/v1/holds", "", 403, string(ops.NotPermitted)},
		{"neither", "ada", "POST", "/v1/stop", `{}`, 400, "either thread or all"},
		{"both", "ada", "POST", "/v1/stop", `{"thread":"` + thread + `","all":true}`, 400, "either thread or all"},
		{"not all", "ada", "POST", "/v1/stop", `{"all":false}`, 400, "either thread or all"},
		{"no such thread", "ada", "POST", "/v1/stop", `{"thread":"t-none"}`, 404, string(ops.NotFound)},
		{"the scope of all as a thread", "ada", "POST", "/v1/stop", `{"thread":"*"}`, 404, string(ops.NotFound)},
		{"a preview", "ada", "POST", "/v1/envelope/preview", `{"agent":"scout","errand":"Look."}`, 200, "TOOL#0000-0000-0000 op"},
		{"a preview for an agent", "scout", "POST", "/v1/envelope/preview", `{"agent":"scout","errand":"Look."}`, 403, string(ops.NotPermitted)},
		{"a preview of nobody", "ada", "POST", "/v1/envelope/preview", `{"agent":"nobody","errand":"Look."}`, 404, string(ops.NotFound)},
		{"a preview of nothing", "ada", "POST", "/v1/envelope/preview", `{"agent":"scout"}`, 400, string(ops.BadRequest)},
		{"metrics", "ada", "GET", "/metrics", "", 200, "up 1"},
		{"metrics for an agent", "scout", "GET", "/metrics", "", 403, string(ops.NotPermitted)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := g.do(request{method: c.method, path: c.path, as: ops.IdentityID(c.who), body: c.body})
			if got.status != c.status || !strings.Contains(string(got.body), c.want) {
				t.Errorf("%v; want %d with %s", got, c.status, c.want)
			}
		})
	}
}
