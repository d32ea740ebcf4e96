package httpapi

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// hand is a worker or a verifier that has enrolled and begun, over the API.
type hand struct {
	g    *gateway
	id   ops.IdentityID
	key  ed25519.PrivateKey
	boot string

	grant wire.Grant // the last one
	seq   int64
	prev  string
	polls int
}

// hire invites, enrols and boots one.
func (g *gateway) hire(id ops.IdentityID, role ops.Role) *hand {
	g.t.Helper()
	var invited plane.Invited
	g.ok(201, request{method: "POST", path: "/v1/workers/invitations", as: "ada", body: fmt.Sprintf(`{"name":%q,"role":%q}`, id, role)}, &invited)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		g.t.Fatal(err)
	}
	h := &hand{g: g, id: id, key: key}
	var enrolled wire.Enrolled
	g.ok(201, request{method: "POST", path: "/v1/plane/enrol", body: h.seal(wire.KindEnrol, wire.Enrol{Token: invited.Token, PublicKey: key.Public().(ed25519.PublicKey)})}, &enrolled)
	if enrolled.Worker != (ops.Identity{ID: id, Role: role}) {
		g.t.Fatalf("enrolled as %+v", enrolled)
	}
	h.begin()
	return h
}

func (h *hand) seal(k wire.Kind, v any) string {
	h.g.t.Helper()
	b, _, err := wire.Seal(h.key, k, v)
	if err != nil {
		h.g.t.Fatal(err)
	}
	return string(b)
}

// begin begins a boot, whose token is that of h from then on.
func (h *hand) begin() {
	h.g.t.Helper()
	var c Challenge
	h.g.ok(200, request{method: "GET", path: "/v1/plane/challenge?worker=" + string(h.id)}, &c)
	h.boot = ulid.Make().String()
	var s wire.Session
	h.g.ok(201, request{method: "POST", path: "/v1/plane/boots", body: h.seal(wire.KindBoot, wire.Boot{Worker: h.id, Boot: h.boot, Challenge: c.Challenge, Version: "v0-test", Runs: []wire.BootRun{}})}, &s)
	h.g.tokens[h.id] = s.Token
}

// take polls until there is a grant.
func (h *hand) take() {
	h.g.t.Helper()
	h.polls++
	var e struct{ Payload []byte }
	h.g.ok(200, request{method: "POST", path: "/v1/plane/poll", as: h.id, body: fmt.Sprintf(`{"boot":%q,"nonce":"n-%d","wait_ms":30000}`, h.boot, h.polls)}, &e)
	h.grant = wire.Grant{}
	if err := json.Unmarshal(e.Payload, &h.grant); err != nil {
		h.g.t.Fatal(err)
	}
	h.seq, h.prev = h.grant.Seq, h.grant.Prev
}

// next is the next message, which send or the test sends.
func (h *hand) next(k wire.Kind, body any) string {
	h.g.t.Helper()
	head := h.grant.Header
	h.seq++
	head.Worker, head.Boot, head.Seq, head.Prev, head.SentAt = h.id, h.boot, h.seq, h.prev, time.Now()
	b, digest, err := wire.SealCallback(h.key, k, head, body)
	if err != nil {
		h.g.t.Fatal(err)
	}
	h.prev = digest
	return string(b)
}

func (h *hand) send(envelope string) reply {
	h.g.t.Helper()
	return h.g.do(request{method: "POST", path: "/v1/plane/callbacks", as: h.id, body: envelope})
}

// say sends the next message, which must be accepted.
func (h *hand) say(k wire.Kind, body any) (ack wire.Ack) {
	h.g.t.Helper()
	a := h.send(h.next(k, body))
	if a.status != 200 {
		h.g.t.Fatalf("%s: %s", k, a)
	}
	if err := json.Unmarshal(a.body, &ack); err != nil {
		h.g.t.Fatal(err)
	}
	return ack
}

// spawn hands work over and returns its delegation.
func (g *gateway) spawn(as ops.IdentityID) (delegation string) {
	g.t.Helper()
	var taken CallTaken
	g.ok(202, request{method: "POST", path: "/exec", as: as, body: `{"op":"swarm","params":{"task":"Look around."}}`, header: map[string]string{"Prefer": "respond-async"}}, &taken)
	if taken.Approval != "" {
		g.ok(200, request{method: "POST", path: "/v1/approvals/" + string(taken.Approval) + "/approve", as: "ada", body: "{}"}, nil)
	}
	eventually(g.t, func() bool {
		var page plane.DelegationPage
		g.get(as, "/v1/delegations", &page)
		for _, d := range page.Delegations {
			if d.Call == taken.Call {
				delegation = d.Delegation
			}
		}
		return delegation != ""
	})
	return delegation
}

// dispatch turns the plane on.
func (g *gateway) dispatch(state string) {
	g.t.Helper()
	g.ok(200, request{method: "POST", path: "/v1/plane/state", as: "ada", body: fmt.Sprintf(`{"state":%q}`, state)}, nil)
}

func (g *gateway) delegation(id string) (d plane.DelegationShowing) {
	g.t.Helper()
	g.get("ada", "/v1/delegations/"+id, &d)
	return d
}

// From the order to the verdict, over the API.
func TestWorkOverTheAPI(t *testing.T) {
	g := open(t)
	if a := g.do(request{method: "POST", path: "/exec", as: "ada", body: `{"op":"swarm","params":{"task":"Look around."}}`}); a.status != 409 || a.fault.Code != ops.PlaneOff {
		t.Errorf("while dispatch is off: %s", a)
	}
	g.dispatch("on")
	worker, verifier := g.hire("wk", ops.Worker), g.hire("vf", ops.Verifier)
	id := g.spawn("ada")
	worker.take()
	if worker.grant.Delegation != id || worker.grant.Instruction.Task != "Look around." {
		t.Fatalf("granted %+v", worker.grant)
	}
	if ack := worker.say(wire.KindStarted, wire.Started{}); ack.State != "RUNNING" || ack.LeaseMS <= 0 {
		t.Errorf("started: %+v", ack)
	}
	if ack := worker.say(wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 3}); ack.State != "RUNNING" || ack.Cancel {
		t.Errorf("heartbeat: %+v", ack)
	}
	if d := g.delegation(id); d.RunState != plane.Running || d.Progress != 3 || d.Worker != "wk" || d.Waits == "" {
		t.Errorf("while it runs: %+v", d)
	}
	worker.say(wire.KindResult, wire.Result{Succeeded: true, Summary: "nothing there", Files: []wire.File{}})
	if d := g.delegation(id); d.State != plane.Verifying || d.Closed {
		t.Errorf("before the verdict: %s, closed %v", d.State, d.Closed)
	}
	verifier.take()
	verifier.say(wire.KindStarted, wire.Started{})
	verifier.say(wire.KindVerdict, wire.Verdict{Verdict: "passed", Checked: []wire.File{}, Reason: "looked again"})
	d := g.delegation(id)
	if d.State != plane.Completed || !d.Closed {
		t.Errorf("after the verdict: %+v", d)
	}
	var call struct {
		State ops.State
	}
	g.get("ada", "/v1/calls/"+string(d.Call), &call)
	if call.State != ops.Succeeded {
		t.Errorf("the call is %s", call.State)
	}
}

// pb-030, pb-053: what is forged, cut off, put in another order or sent again.
func TestForgedCallbacks(t *testing.T) {
	g := open(t)
	g.dispatch("on")
	w, other := g.hire("wk", ops.Worker), g.hire("wk-2", ops.Worker)
	id := g.spawn("ada")
	w.take()
	second := g.spawn("ada")
	other.take()
	if other.grant.Delegation != second {
		t.Fatalf("the other has %s", other.grant.Delegation)
	}
	var first wire.Ack
	started := w.next(wire.KindStarted, wire.Started{})
	g.ok(200, request{method: "POST", path: "/v1/plane/callbacks", as: "wk", body: started}, &first)

	// edited is the next message with its envelope changed; w counts as if it had not been.
	edited := func(change func(e *Envelope, payload map[string]any)) string {
		t.Helper()
		seq, prev := w.seq, w.prev
		defer func() { w.seq, w.prev = seq, prev }()
		var e Envelope
		if err := json.Unmarshal([]byte(w.next(wire.KindHeartbeat, wire.Heartbeat{Alive: true})), &e); err != nil {
			t.Fatal(err)
		}
		raw, err := base64.StdEncoding.DecodeString(e.Payload)
		if err != nil {
			t.Fatal(err)
		}
		var payload map[string]any
		if err := json.Unmarshal(raw, &payload); err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(payload)
		change(&e, payload)
		if fmt.Sprint(payload) != before {
			if raw, err = json.Marshal(payload); err != nil {
				t.Fatal(err)
			}
			e.Payload = base64.StdEncoding.EncodeToString(raw)
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	stranger := &hand{g: g, id: "wk", boot: w.boot, grant: w.grant, seq: w.seq, prev: w.prev}
	if _, key, err := ed25519.GenerateKey(nil); err == nil {
		stranger.key = key
	}
	head := func() int64 {
		t.Helper()
		n, err := g.store.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct {
		name, body string
		as         ops.IdentityID
		status     int
		code       ops.Code
	}{
		{"random bytes as the signature", edited(func(e *Envelope, _ map[string]any) {
			e.Signatures[0].Sig = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 64)))
		}), "wk", 401, ops.BadSignature},
		{"a signature that is cut off", edited(func(e *Envelope, _ map[string]any) { e.Signatures[0].Sig = e.Signatures[0].Sig[:44] }), "wk", 401, ops.BadSignature},
		{"an unknown key", edited(func(e *Envelope, _ map[string]any) { e.Signatures[0].KeyID = "sha256:" + strings.Repeat("0", 64) }), "wk", 401, ops.BadSignature},
		{"the name of another algorithm", edited(func(e *Envelope, _ map[string]any) { e.Signatures[0].KeyID = "rsa:" + e.Signatures[0].KeyID }), "wk", 401, ops.BadSignature},
		{"another kind than was signed", edited(func(e *Envelope, _ map[string]any) { e.PayloadType = wire.KindStarted.PayloadType() }), "wk", 401, ops.BadSignature},
		{"a kind that there is not", edited(func(e *Envelope, _ map[string]any) { e.PayloadType = "application/vnd.inband.win+json" }), "wk", 400, ops.BadRequest},
		{"a kind that is no callback", edited(func(e *Envelope, _ map[string]any) { e.PayloadType = wire.KindGrant.PayloadType() }), "wk", 400, ops.BadRequest},
		{"a payload that is cut off", edited(func(e *Envelope, _ map[string]any) { e.Payload = e.Payload[:len(e.Payload)/8*4] }), "wk", 400, ops.BadRequest},
		{"a payload that is no base64", edited(func(e *Envelope, _ map[string]any) { e.Payload += "*" }), "wk", 400, ops.BadRequest},
		{"without its sequence", edited(func(_ *Envelope, p map[string]any) { delete(p, "seq") }), "wk", 401, ops.BadSignature},
		{"without its time", edited(func(_ *Envelope, p map[string]any) { delete(p, "sent_at") }), "wk", 401, ops.BadSignature},
		{"for another run", edited(func(_ *Envelope, p map[string]any) { p["run"] = other.grant.Run }), "wk", 401, ops.BadSignature},
		{"with a later fence", edited(func(_ *Envelope, p map[string]any) { p["fence"] = w.grant.Fence + 1 }), "wk", 401, ops.BadSignature},
		{"signed by a stranger's key", stranger.next(wire.KindHeartbeat, wire.Heartbeat{Alive: true}), "wk", 401, ops.BadSignature},
		{"with the token of another worker", edited(func(*Envelope, map[string]any) {}), "wk-2", 401, ops.BadSignature},
		{"with the token of a person", edited(func(*Envelope, map[string]any) {}), "ada", 403, ops.NotPermitted},
		{"without a token", edited(func(*Envelope, map[string]any) {}), "", 401, ops.Unauthenticated},
	} {
		before := head()
		a := g.do(request{method: "POST", path: "/v1/plane/callbacks", as: c.as, body: c.body})
		if a.status != c.status || a.fault.Code != c.code || a.fault.Retryable || a.fault.Details["final"] != true {
			t.Errorf("%s: %s, want %d %s and final", c.name, a, c.status, c.code)
		}
		if after := head(); after != before {
			t.Errorf("%s: it left %d events", c.name, after-before)
		}
	}
	if d := g.delegation(id); d.RunState != plane.Running || len(d.Runs) != 1 {
		t.Errorf("after the forgeries: %+v", d)
	}

	// Sent again as it was: the stored acknowledgement, and nothing happens.
	before := head()
	var again wire.Ack
	g.ok(200, request{method: "POST", path: "/v1/plane/callbacks", as: "wk", body: started}, &again)
	if !again.Replayed || again.Seq != first.Seq || again.Digest != first.Digest || again.State != first.State || head() != before {
		t.Errorf("again: %+v, first %+v; %d events", again, first, head()-before)
	}

	// In another order: the one that is too early is told what is wanted, and taken later.
	two := w.next(wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 1})
	three := w.next(wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 2})
	if a := w.send(three); a.status != 409 || a.fault.Code != ops.OutOfSequence || a.fault.Details["expected"] != 2.0 || a.fault.Details["final"] == true {
		t.Errorf("the third before the second: %s", a)
	}
	for i, m := range []string{two, three} {
		if a := w.send(m); a.status != 200 {
			t.Errorf("message %d in its turn: %s", i+2, a)
		}
	}
	// Another message under a number that was used: refused for good, and kept.
	w.seq, w.prev = 1, first.Digest
	if a := w.send(w.next(wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 9})); a.status != 409 || a.fault.Code != ops.OutOfSequence || a.fault.Details["final"] != true {
		t.Errorf("another second: %s", a)
	}
	if d := g.delegation(id); d.Progress != 2 || len(d.Evidence) != 1 {
		t.Errorf("after it: progress %d, evidence %+v", d.Progress, d.Evidence)
	}
	// For somebody else's run, rightly signed: it is not the lease's.
	thief := &hand{g: g, id: "wk-2", key: other.key, boot: other.boot, grant: w.grant, seq: 3}
	if a := thief.send(thief.next(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{}})); a.status != 409 || a.fault.Code != ops.StaleFence || a.fault.Details["final"] != true {
		t.Errorf("a result of another worker: %s", a)
	}
	ghost := &hand{g: g, id: "wk-2", key: other.key, boot: other.boot, grant: other.grant}
	ghost.grant.Run, ghost.grant.Delegation = "r-01arz3ndektsv4rrffq69g5fav", "d-01arz3ndektsv4rrffq69g5fav"
	if a := ghost.send(ghost.next(wire.KindStarted, wire.Started{})); a.status != 404 || a.fault.Details["final"] != true {
		t.Errorf("of a run that never was: %s", a)
	}

	// After the end: what was accepted then is answered as then, and nothing else counts.
	var parsed struct{ Payload []byte }
	if err := json.Unmarshal([]byte(three), &parsed); err != nil {
		t.Fatal(err)
	}
	w.seq, w.prev = 3, wire.Digest(parsed.Payload)
	w.say(wire.KindResult, wire.Result{Succeeded: true, Files: []wire.File{}})
	g.ok(200, request{method: "POST", path: "/v1/plane/callbacks", as: "wk", body: two}, &again)
	if !again.Replayed || again.Seq != 2 {
		t.Errorf("an old one after the end: %+v", again)
	}
	if a := w.send(w.next(wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 10})); a.status != 409 || a.fault.Code != ops.StaleFence || a.fault.Details["final"] != true {
		t.Errorf("a heartbeat after the end: %s", a)
	}
	// A new boot ends the token of the one before.
	old := g.tokens["wk"]
	w.begin()
	fresh := g.tokens["wk"]
	g.tokens["wk"] = old
	if a := w.send(two); a.status != 401 || a.fault.Details["final"] != true {
		t.Errorf("with the token of the boot before: %s", a)
	}
	g.tokens["wk"] = fresh
}

// Who may do what as an operator, and what happens to ids that nobody knows.
func TestPlaneIsForOperators(t *testing.T) {
	g := open(t)
	g.dispatch("on")
	g.hire("wk", ops.Worker)
	id := g.spawn("scout")
	for _, c := range []struct {
		method, path, body string
		by                 map[ops.IdentityID]int
	}{
		{"GET", "/v1/delegations/" + id, "", map[ops.IdentityID]int{"ada": 200, "scout": 200, "mx": 200, "other": 404, "wk": 404, "": 401}},
		{"GET", "/v1/delegations/d-none", "", map[ops.IdentityID]int{"ada": 404, "scout": 404}},
		{"GET", "/v1/delegations?state=DONE", "", map[ops.IdentityID]int{"ada": 400}},
		{"GET", "/v1/workers", "", map[ops.IdentityID]int{"ada": 200, "scout": 403, "mx": 403, "wk": 403, "": 401}},
		{"GET", "/v1/workers/wk", "", map[ops.IdentityID]int{"ada": 200, "scout": 403, "wk": 403}},
		{"GET", "/v1/workers/ada", "", map[ops.IdentityID]int{"ada": 404}},
		{"POST", "/v1/plane/state", `{"state":"off"}`, map[ops.IdentityID]int{"scout": 403, "mx": 403, "wk": 403, "": 401}},
		{"POST", "/v1/plane/fence-term", `{}`, map[ops.IdentityID]int{"scout": 403, "mx": 403, "wk": 403}},
		{"POST", "/v1/workers/invitations", `{"name":"x"}`, map[ops.IdentityID]int{"scout": 403, "mx": 403, "wk": 403}},
		{"POST", "/v1/workers/invitations", `{"name":"wk"}`, map[ops.IdentityID]int{"ada": 409}},
		{"POST", "/v1/workers/invitations", `{"name":"X Y"}`, map[ops.IdentityID]int{"ada": 400}},
		{"POST", "/v1/workers/wk/drain", `{}`, map[ops.IdentityID]int{"scout": 403, "wk": 403, "ada": 200}},
		{"POST", "/v1/workers/none/drain", `{}`, map[ops.IdentityID]int{"ada": 404}},
		{"POST", "/v1/workers/none/revoke", `{}`, map[ops.IdentityID]int{"ada": 404, "scout": 403}},
		{"POST", "/v1/delegations/d-none/cancel", `{}`, map[ops.IdentityID]int{"ada": 404, "scout": 404, "wk": 404}},
		{"POST", "/v1/delegations/d-none/resolve", `{"resolution":"fail"}`, map[ops.IdentityID]int{"ada": 404}},
		{"POST", "/v1/delegations/d-none/retry", `{}`, map[ops.IdentityID]int{"ada": 404}},
		{"POST", "/v1/delegations/" + id + "/resolve", `{"resolution":"fail"}`, map[ops.IdentityID]int{"scout": 403, "other": 404, "wk": 404, "ada": 409}},
		{"POST", "/v1/delegations/" + id + "/retry", `{}`, map[ops.IdentityID]int{"scout": 403, "other": 404, "wk": 404, "ada": 409}},
		{"POST", "/v1/delegations/" + id + "/cancel", `{"grace":"10000h"}`, map[ops.IdentityID]int{"ada": 400}},
		{"POST", "/v1/delegations/" + id + "/cancel", `{"reason":"enough"}`, map[ops.IdentityID]int{"mx": 403, "other": 404, "wk": 404, "scout": 200}},
	} {
		for by, want := range c.by {
			if a := g.do(request{method: c.method, path: c.path, as: by, body: c.body}); a.status != want {
				t.Errorf("%s %s by %q: %s, want %d", c.method, c.path, by, a, want)
			}
		}
	}
	if d := g.delegation(id); d.State != plane.DelegationCancelled || d.CancelReason != "enough" {
		t.Errorf("after the cancel: %+v", d)
	}
	if a := g.do(request{method: "POST", path: "/v1/delegations/" + id + "/retry", as: "ada", body: "{}"}); a.status != 409 {
		t.Errorf("retry of one that is closed: %s", a)
	}
	var list plane.DelegationPage
	g.get("other", "/v1/delegations", &list)
	if len(list.Delegations) != 0 {
		t.Errorf("other is listed %+v", list)
	}
	g.get("wk", "/v1/delegations", &list)
	if len(list.Delegations) != 0 {
		t.Errorf("a worker is listed %+v", list)
	}
	g.ok(200, request{method: "POST", path: "/v1/workers/wk/revoke", as: "ada", body: "{}"}, nil)
	if a := g.do(request{method: "POST", path: "/v1/plane/poll", as: "wk", body: `{"boot":"b","nonce":"n","wait_ms":0}`}); a.status != 401 {
		t.Errorf("a poll of one that is revoked: %s", a)
	}
}
