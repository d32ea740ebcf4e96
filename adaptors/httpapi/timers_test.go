package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/timers"
)

// timer has ada make a timer that wakes scout, has it run once, and returns its id and
// that of the wake.
func (g *gateway) timer() (timer, wake string) {
	g.t.Helper()
	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "ada",
		body: `{"op":"cron","params":{"name":"watch","schedule":"0 0 1 1 *","agent":"scout","prompt":"Look.","overlap":"allow","ops":["dm"]}}`}, &done)
	var made struct{ Timer string }
	if err := json.Unmarshal(done.Result, &made); err != nil {
		g.t.Fatal(err)
	}
	var shown timers.TimerShowing
	g.ok(200, request{method: "POST", path: "/v1/timers/" + made.Timer + "/run", as: "ada", body: "{}"}, &shown)
	if shown.LastWake == "" || shown.Runs != 1 || len(shown.Latest) != 1 || shown.Latest[0].AskedBy != "ada" {
		g.t.Fatalf("run now: %+v", shown)
	}
	return made.Timer, shown.LastWake
}

// Who sees and does what with timers and wakes over the API.
func TestTimerRoutes(t *testing.T) {
	g := open(t)
	timer, wake := g.timer()
	for _, c := range []struct {
		method, path string
		by           map[ops.IdentityID]int
	}{
		{"GET", "/v1/timers/" + timer, map[ops.IdentityID]int{"ada": 200, "scout": 200, "mx": 200, "other": 404, "": 401}},
		{"GET", "/v1/wakes/" + wake, map[ops.IdentityID]int{"ada": 200, "scout": 200, "mx": 200, "other": 404, "": 401}},
		{"GET", "/v1/timers/tm-none", map[ops.IdentityID]int{"ada": 404, "scout": 404}},
		{"GET", "/v1/wakes/w-none", map[ops.IdentityID]int{"ada": 404, "scout": 404}},
		{"GET", "/v1/timers?state=open", map[ops.IdentityID]int{"ada": 400}},
		{"GET", "/v1/wakes?state=active", map[ops.IdentityID]int{"ada": 400}},
		{"GET", "/v1/wakes?limit=0", map[ops.IdentityID]int{"ada": 400}},
		{"POST", "/v1/timers/" + timer + "/pause", map[ops.IdentityID]int{"ada": 200, "scout": 403, "mx": 403, "other": 404, "": 401}},
		{"POST", "/v1/timers/" + timer + "/resume", map[ops.IdentityID]int{"ada": 200, "scout": 403, "other": 404}},
		{"POST", "/v1/timers/" + timer + "/run", map[ops.IdentityID]int{"ada": 200, "scout": 403, "other": 404}},
		{"POST", "/v1/timers/tm-none/run", map[ops.IdentityID]int{"ada": 404}},
	} {
		for by, want := range c.by {
			q := request{method: c.method, path: c.path, as: by}
			if c.method == "POST" {
				q.body = "{}"
			}
			if a := g.do(q); a.status != want {
				t.Errorf("%s %s by %q: %s, want %d", c.method, c.path, by, a, want)
			}
		}
	}
	for by, want := range map[ops.IdentityID]int{"ada": 1, "scout": 1, "mx": 1, "other": 0} {
		var list timers.TimerPage
		g.get(by, "/v1/timers?state=active&agent=scout", &list)
		var wakes timers.WakePage
		g.get(by, "/v1/wakes?state=live&agent=scout", &wakes)
		if len(list.Timers) != want || len(wakes.Wakes) != 2*want { // it has run twice
			t.Errorf("%s sees %+v and %+v", by, list, wakes)
		}
	}
	if a := g.do(request{method: "GET", path: "/v1/wakes/" + wake, as: "scout"}); strings.Contains(string(a.body), `"key"`) {
		t.Errorf("a key: %s", a)
	}
	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"cron.cancel","params":{"timer":"` + timer + `"}}`}, &done)
	if a := g.do(request{method: "POST", path: "/v1/timers/" + timer + "/run", as: "ada", body: "{}"}); a.status != 409 {
		t.Errorf("after its end: %s", a)
	}
}
