package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"inband/ops"
	"inband/service/threads"
)

// scrape asks g for its metrics.
func scrape(t *testing.T, g *gateway, token string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", "https://localhost/metrics", nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	g.api.Handler().ServeHTTP(w, r)
	return w
}

func TestMetrics(t *testing.T) {
	folder := stateFolder(t.TempDir())
	g := testGateway(t, folder)
	defer g.close()
	b, err := os.ReadFile(folder.token())
	if err != nil {
		t.Fatal(err)
	}
	operator := strings.TrimSpace(string(b))

	r := httptest.NewRequest("POST", "https://localhost/v1/agents", strings.NewReader(`{"id":"ada","role":"agent"}`))
	r.Header.Set("Authorization", "Bearer "+operator)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	g.api.Handler().ServeHTTP(w, r)
	token := regexp.MustCompile(`ibt_[0-9a-f]+`).FindString(w.Body.String())
	if token == "" {
		t.Fatalf("no agent was made: %s", w.Body)
	}
	if w := scrape(t, g, ""); w.Code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", w.Code)
	}
	if w := scrape(t, g, token); w.Code != http.StatusForbidden {
		t.Errorf("as an agent: %d", w.Code)
	}

	// One wake; an order without its key, one with another; a broken one; the reply again.
	if err := g.threads.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	reply := threads.Reply{Agent: "ada", Room: "lobby", Message: "m1",
		Text: `[DM {"to":"#notes","text":"x"}] [DM#aaaa-bbbb {"to":"#notes","text":"y"}] [TOOL a {"k":}]`}
	for range 2 {
		if _, err := g.threads.Take(t.Context(), ops.Identity{ID: "ada", Role: ops.Agent}, reply); err != nil {
			t.Fatal(err)
		}
	}
	// One who knocks at the door of workers with nothing.
	knock := httptest.NewRequest("POST", "https://localhost/v1/plane/poll", strings.NewReader(`{"boot":"b","nonce":"n","wait_ms":0}`))
	knock.Header.Set("Content-Type", "application/json")
	g.api.Handler().ServeHTTP(httptest.NewRecorder(), knock)

	w = scrape(t, g, operator)
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Fatalf("%d, %s: %s", w.Code, w.Header(), w.Body)
	}
	problems, err := promlint.New(bytes.NewReader(w.Body.Bytes())).Lint()
	if err != nil {
		t.Fatalf("not the text format of Prometheus: %v\n%s", err, w.Body)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "inband_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for _, want := range []string{
		`inband_calls_parked_total{rule="R4"} 1`, `inband_calls_refused_total{rule="R4"} 1`, `inband_directives_broken_total 1`,
		`inband_messages_duplicate_total 1`, `inband_calls_open{state="parked"} 1`, `inband_calls_open{state="running"} 0`,
		`inband_holds 0`, `inband_config_reload_failed_total 0`, `inband_wakes_open 0`, `inband_outbox_posts{state="set_aside"} 0`,
		`inband_build_info{version="test"} 1`, `inband_wake_hops_count 0`, `inband_timer_lateness_seconds_count 0`,
		`inband_plane_state{state="off"} 1`, `inband_plane_state{state="on"} 0`, `inband_plane_auth_rejected_total 1`, `inband_plane_runs_unknown 0`, `inband_plane_clock_jumps_total 0`,
	} {
		if !slices.Contains(strings.Split(w.Body.String(), "\n"), want) {
			t.Errorf("%s is missing in\n%s", want, w.Body)
		}
	}
	// What docs/operations.md lists is what there is, but for those with a label that has
	// not happened.
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile("(?m)^\\| `(inband_[a-z_]+)` \\|").FindAllSubmatch(page, -1)
	var listed []string
	for _, m := range documented {
		listed = append(listed, string(m[1]))
	}
	var shown []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (inband_\S+)`).FindAllStringSubmatch(w.Body.String(), -1) {
		shown = append(shown, m[1])
	}
	for _, k := range counters {
		if name := "inband_" + k.name; !slices.Contains(shown, name) {
			shown = append(shown, name)
		}
	}
	slices.Sort(listed)
	slices.Sort(shown)
	if !slices.Equal(listed, shown) {
		t.Errorf("docs/operations.md lists\n%s\nand there are\n%s", strings.Join(listed, "\n"), strings.Join(shown, "\n"))
	}
}

// What is counted anywhere has a name outside.
func TestEveryCountHasAName(t *testing.T) {
	found := 0
	for _, dir := range []string{"threads", "timers", "plane", "."} {
		files, err := filepath.Glob(filepath.Join("..", "..", "service", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) < 2 {
					return true
				}
				add, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || add.Sel.Name != "add" {
					return true
				}
				if of, ok := add.X.(*ast.SelectorExpr); !ok || of.Sel.Name != "counts" {
					return true
				}
				word, ok := call.Args[0].(*ast.BasicLit)
				if !ok {
					return true
				}
				what, err := strconv.Unquote(word.Value)
				if err != nil {
					t.Fatal(err)
				}
				found++
				if _, known := counters[what]; !known && what != wakesByHops {
					t.Errorf("%s counts %q, which metrics.go does not name", file, what)
				}
				return true
			})
		}
	}
	if found < 10 {
		t.Errorf("only %d counts found", found)
	}
}
