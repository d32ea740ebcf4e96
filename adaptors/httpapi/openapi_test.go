package httpapi

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"inband/ops"
	"inband/service"
	"inband/service/plane/wire"
	"inband/service/threads"
)

// document is what the tests need of openapi.json.
type document struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string                `json:"operationId"`
		Security    []map[string][]string `json:"security"`
		Parameters  []struct {
			Name, In string
			Required bool
		} `json:"parameters"`
		RequestBody *struct {
			Content map[string]struct{ Schema json.RawMessage }
		} `json:"requestBody"`
		Responses map[string]struct {
			Content map[string]struct{ Schema json.RawMessage }
		} `json:"responses"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]json.RawMessage `json:"schemas"`
	} `json:"components"`
}

func (g *gateway) document() (d document, raw any) {
	g.t.Helper()
	a := g.ok(200, request{method: "GET", path: "/openapi.json"}, &d)
	raw, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
	if err != nil {
		g.t.Fatal(err)
	}
	return d, raw
}

func TestDocumentListsTheRoutes(t *testing.T) {
	g := open(t)
	d, _ := g.document()
	if !strings.HasPrefix(d.OpenAPI, "3.1.") {
		t.Errorf("openapi is %q, want 3.1", d.OpenAPI)
	}
	var documented, routed []string
	ids := make(map[string]bool)
	for path, methods := range d.Paths {
		for method, op := range methods {
			documented = append(documented, strings.ToUpper(method)+" "+path)
			if ids[op.OperationID] {
				t.Errorf("two operations are called %s", op.OperationID)
			}
			ids[op.OperationID] = true
			open := path == "/healthz" || path == "/readyz" || path == "/openapi.json" || path == "/v1/adaptors/{name}/events" ||
				path == "/v1/plane/enrol" || path == "/v1/plane/challenge" || path == "/v1/plane/boots"
			if needs := len(op.Security) > 0; needs == open {
				t.Errorf("%s %s: needs a token is %v", method, path, needs)
			}
			if _, ok := op.Responses["default"].Content[problemJSON]; !ok {
				t.Errorf("%s %s: no fault documented", method, path)
			}
			for status, r := range op.Responses {
				for kind, c := range r.Content {
					if len(c.Schema) == 0 {
						t.Errorf("%s %s: %s %s has no schema", method, path, status, kind)
					}
				}
			}
			for _, p := range op.Parameters {
				if p.In == "path" && !p.Required {
					t.Errorf("%s %s: path parameter %s is optional", method, path, p.Name)
				}
			}
		}
	}
	err := chi.Walk(g.server.router, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routed = append(routed, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(documented)
	slices.Sort(routed)
	if diff := cmp.Diff(routed, documented); diff != "" {
		t.Errorf("routes (-routed +documented):\n%s", diff)
	}
}

// Every schema of the document is JSON Schema 2020-12, and every reference leads
// somewhere.
func TestDocumentSchemasCompile(t *testing.T) {
	g := open(t)
	d, raw := g.document()
	c := compiler(t, raw)
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		if _, err := c.Compile("openapi.json#/components/schemas/" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"Problem", "ExecProblem", "CallDone", "CallTaken", "Ack", "Thread", "Event"} {
		if _, ok := d.Components.Schemas[name]; !ok {
			t.Errorf("no schema %s", name)
		}
	}
	for _, code := range ops.Codes() {
		if !bytes.Contains(d.Components.Schemas["Problem"], []byte(`"`+code.Code+`"`)) {
			t.Errorf("the code %s is not documented", code.Code)
		}
	}
}

func compiler(t *testing.T, raw any) *jsonschema.Compiler {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("openapi.json", raw); err != nil {
		t.Fatal(err)
	}
	return c
}

// Every route answers what its document says, faults included.
func TestAnswersFitTheDocument(t *testing.T) {
	g := open(t, func(c *Config) { c.Hooks = &hooks{} })
	d, raw := g.document()
	c := compiler(t, raw)

	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"box","params":{"action":"version"}}`}, &done)
	var ack threads.Ack
	g.ok(201, request{method: "POST", path: "/v1/replies", as: "scout", body: `{"room":"lobby","message":"m-1","text":"Look. [TOOL tools.list {}]"}`}, &ack)
	var async CallTaken
	digest := string(g.keep("ada")[0].Digest)
	slow := g.ok(202, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"slow"}`, header: map[string]string{"Prefer": "respond-async"}}, &async)
	<-g.begun

	parked := g.parked("scout")
	denied := g.parked("scout")

	aside := g.setAside()
	timer, wake := g.timer()

	g.dispatch("on")
	worker := g.hire("wk", ops.Worker)
	delegation := g.spawn("ada")
	worker.take()
	started := worker.next(wire.KindStarted, wire.Started{})
	enrol := worker.seal(wire.KindEnrol, wire.Enrol{Token: "ibe_none", PublicKey: worker.key.Public().(ed25519.PublicKey)})

	seen := make(map[string]bool)
	check := func(template string, a reply, method string) {
		t.Helper()
		op := d.Paths[template][strings.ToLower(method)]
		status := http.StatusText(a.status)
		key := "default"
		for s := range op.Responses {
			if s != "default" && strings.HasPrefix(a.String(), s+" ") {
				key = s
			}
		}
		if key == "default" && a.status < 400 {
			t.Errorf("%s %s: %s is not documented", method, template, status)
			return
		}
		seen[method+" "+template] = true
		if len(op.Responses[key].Content) == 0 && len(a.body) == 0 {
			return
		}
		kind := strings.Split(a.header.Get("Content-Type"), ";")[0]
		escaped := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(template)
		where := "openapi.json#/paths/" + escaped + "/" + strings.ToLower(method) + "/responses/" + key + "/content/" + strings.ReplaceAll(kind, "/", "~1") + "/schema"
		schema, err := c.Compile(where)
		if err != nil {
			t.Errorf("%s %s: %v", method, template, err)
			return
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
		if err != nil {
			t.Errorf("%s %s: %v", method, template, err)
			return
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s %s: %v\nanswer: %s", method, template, err, a)
		}
	}
	for _, q := range []struct{ template, path, body string }{
		{"/exec", "", `{"op":"tools.list"}`},
		{"/exec", "", `{"op":"tools"}`},
		{"/exec", "", `{"op":"test.fail"}`},
		{"/exec", "", `{"op":"no.such.op"}`},
		{"/v1/replies", "", `{"agent":"scout","room":"lobby","message":"m-1","text":"again"}`},
		{"/v1/replies", "", `{"agent":"scout","thread":"` + ack.Thread + `","message":"m-2","text":"[TOOL x {}] [TOOL test.a/b {}]"}`},
		{"/v1/status", "", ""}, {"/v1/version", "", ""}, {"/v1/config", "", ""}, {"/v1/providers", "", ""},
		{"/v1/adaptors", "", ""}, {"/v1/adaptors/{name}/events", "/v1/adaptors/chat/events", "{}"}, {"/v1/outbox", "", ""}, {"/v1/outbox/{id}/retry", "/v1/outbox/" + aside + "/retry", "{}"}, {"/v1/outbox/{id}/retry", "/v1/outbox/o-none/retry", "{}"}, {"/v1/ops", "", ""}, {"/v1/threads", "", ""}, {"/v1/agents", "", ""}, {"/v1/calls", "", ""},
		{"/v1/ops/{name}", "/v1/ops/test.a%2Fb", ""},
		{"/v1/threads/{id}", "/v1/threads/" + ack.Thread, ""},
		{"/v1/calls/{id}", "/v1/calls/" + string(done.Call), ""},
		{"/v1/agents/{id}", "/v1/agents/mx", ""},
		{"/v1/agents", "", `{"id":"new","role":"bridge","agents":["scout"]}`},
		{"/v1/agents", "", `{"id":"new","role":"agent"}`},
		{"/v1/agents/{id}/enrol", "/v1/agents/mx/enrol", `{"agents":["other"]}`},
		{"/v1/agents/{id}/enrol", "/v1/agents/other/enrol", `{"agents":["scout"]}`},
		{"/v1/agents/{id}/rotate", "/v1/agents/new/rotate", "{}"},
		{"/v1/agents/{id}/rotate", "/v1/agents/none/rotate", "{}"},
		{"/v1/policy", "", ""},
		{"/v1/agents/{id}/revoke", "/v1/agents/new/revoke", "{}"},
		{"/v1/calls/{id}/cancel", slow.header.Get("Location") + "/cancel", "{}"},
		{"/v1/calls/{id}/cancel", slow.header.Get("Location") + "/cancel", "{}"},
		{"/v1/approvals", "", ""},
		{"/v1/approvals/{id}", "/v1/approvals/" + string(parked.Approval), ""},
		{"/v1/approvals/{id}/approve", "/v1/approvals/" + string(parked.Approval) + "/approve", "{}"},
		{"/v1/approvals/{id}/approve", "/v1/approvals/a-none/approve", "{}"},
		{"/v1/approvals/{id}/deny", "/v1/approvals/" + string(denied.Approval) + "/deny", `{"reason":"no"}`},
		{"/v1/approvals/{id}", "/v1/approvals/" + string(denied.Approval), ""},
		{"/v1/ops/reload", "", "{}"},
		{"/v1/audit", "", ""}, {"/v1/audit/checkpoint", "", ""}, {"/v1/audit/verify", "", `{"checkpoint":""}`}, {"/v1/audit/verify", "", `{"checkpoint":"x"}`},
		{"/v1/artifacts", "", ""}, {"/v1/artifacts/verify", "", "{}"},
		{"/v1/artifacts/{digest}", "/v1/artifacts/" + digest, ""}, {"/v1/artifacts/{digest}", "/v1/artifacts/sha256:0", ""},
		{"/v1/artifacts/{digest}/bytes", "/v1/artifacts/sha256:0/bytes", ""},
		{"/v1/timers", "", ""}, {"/v1/timers/{id}", "/v1/timers/" + timer, ""}, {"/v1/timers/{id}/pause", "/v1/timers/" + timer + "/pause", "{}"},
		{"/v1/timers/{id}/resume", "/v1/timers/" + timer + "/resume", "{}"}, {"/v1/timers/{id}/run", "/v1/timers/" + timer + "/run", "{}"}, {"/v1/timers/{id}/run", "/v1/timers/tm-none/run", "{}"},
		{"/v1/wakes", "", ""}, {"/v1/wakes/{id}", "/v1/wakes/" + wake, ""}, {"/v1/wakes/{id}", "/v1/wakes/w-none", ""},
		{"/v1/stop", "", `{"thread":"` + ack.Thread + `"}`}, {"/v1/stop", "", `{}`}, {"/v1/holds", "", ""}, {"/v1/start", "", `{"thread":"` + ack.Thread + `"}`},
		{"/v1/envelope/preview", "", `{"agent":"scout","errand":"Look.","shown":"words"}`}, {"/v1/envelope/preview", "", `{"agent":"scout","errand":"Look."}`},
		{"/v1/plane", "", ""}, {"/v1/workers", "", ""}, {"/v1/workers/{id}", "/v1/workers/wk", ""}, {"/v1/workers/{id}", "/v1/workers/none", ""},
		{"/v1/workers/invitations", "", `{"name":"judge","role":"verifier"}`}, {"/v1/workers/{id}/drain", "/v1/workers/wk/drain", "{}"},
		{"/v1/delegations", "", ""}, {"/v1/delegations/{id}", "/v1/delegations/" + delegation, ""}, {"/v1/delegations/{id}", "/v1/delegations/d-none", ""},
		{"/v1/delegations/{id}/resolve", "/v1/delegations/" + delegation + "/resolve", `{"resolution":"fail"}`},
		{"/v1/delegations/{id}/retry", "/v1/delegations/" + delegation + "/retry", "{}"},
		{"/v1/delegations/{id}/cancel", "/v1/delegations/" + delegation + "/cancel", `{"grace":"1m"}`},
		{"/v1/delegations/{id}", "/v1/delegations/" + delegation, ""},
		{"/v1/plane/state", "", `{"state":"drain"}`}, {"/v1/plane/fence-term", "", "{}"},
		{"/v1/plane/enrol", "", enrol}, {"/v1/plane/challenge", "/v1/plane/challenge?worker=wk", ""}, {"/v1/plane/boots", "", enrol},
		{"/v1/plane/uploads", "", started}, {"/v1/plane/uploads/{id}", "/v1/plane/uploads/u-none", ""}, {"/v1/plane/artifacts/{digest}", "/v1/plane/artifacts/" + digest, ""},
		{"/v1/artifacts/collect", "", "{}"},
		{"/v1/plane/callbacks", "", started}, {"/v1/plane/poll", "", `{"boot":"b","nonce":"n","wait_ms":0}`},
		{"/healthz", "", ""}, {"/readyz", "", ""}, {"/openapi.json", "", ""},
	} {
		method, path := "GET", q.path
		if q.body != "" {
			method = "POST"
		}
		if path == "" {
			path = q.template
		}
		check(q.template, g.do(request{method: method, path: path, as: "ada", body: q.body}), method)
	}
	for _, q := range []struct{ path, body string }{
		{"/v1/plane/callbacks", started}, {"/v1/plane/poll", fmt.Sprintf(`{"boot":%q,"nonce":"n-1","wait_ms":0}`, worker.boot)},
	} {
		check(q.path, g.do(request{method: "POST", path: q.path, as: "wk", body: q.body}), "POST")
	}
	check("/v1/plane/uploads/{id}", g.do(request{method: "PATCH", path: "/v1/plane/uploads/u-none", as: "ada", body: "x"}), "PATCH")
	check("/v1/workers/{id}/revoke", g.do(request{method: "POST", path: "/v1/workers/wk/revoke", as: "ada", body: "{}"}), "POST")
	check("/v1/audit/export", g.do(request{method: "GET", path: "/v1/audit/export?from=999999", as: "ada"}), "GET")
	check("/metrics", g.do(request{method: "GET", path: "/metrics", as: "scout"}), "GET")
	check("/v1/events", g.do(request{method: "GET", path: "/v1/events?after=999999", as: "ada"}), "GET")
	if err := <-g.ended; err == nil {
		t.Error("the slow call was not cancelled")
	}
	for path, methods := range d.Paths {
		for method := range methods {
			if !seen[strings.ToUpper(method)+" "+path] {
				t.Errorf("%s %s: no answer was checked", method, path)
			}
		}
	}
}

// The API and box.exec answer the same.
func TestReadsAreBoxExecs(t *testing.T) {
	g := open(t)
	for _, name := range []string{"version", "config", "ops", "providers", "adaptors", "agents", "threads", "outbox", "artifacts", "timers", "delegations", "workers"} {
		var over, through any
		g.get("ada", "/v1/"+name, &over)
		var done CallDone
		g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"box.exec","params":{"action":"` + name + `"}}`}, &done)
		if err := json.Unmarshal(done.Result, &through); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(through, over); diff != "" {
			t.Errorf("%s (-box.exec +API):\n%s", name, diff)
		}
	}
	var over, through service.OpListing
	g.get("ada", "/v1/ops/test.a%2Fb", &over)
	var done CallDone
	g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"box.exec","params":{"action":"op","arg":"test.a/b"}}`}, &done)
	if err := json.Unmarshal(done.Result, &through); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(through, over); diff != "" || over.Name != ops.OpName("test.a/b") {
		t.Errorf("op (-box.exec +API):\n%s", diff)
	}
}
