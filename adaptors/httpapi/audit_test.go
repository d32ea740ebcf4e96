package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/journal"
	"inband/service/journal/notary"
)

// What the API hands out is what the notary's own functions take.
func TestAudit(t *testing.T) {
	g := open(t)
	var cp AuditCheckpoint
	g.get("ada", "/v1/audit/checkpoint", &cp)
	key, err := notary.ParseKey(cp.Key)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := key.OpenCheckpoint(cp.Checkpoint)
	if err != nil || kept.Size != cp.Position || kept.Size == 0 {
		t.Fatalf("the checkpoint is %+v, %v; its position %d", kept, err, cp.Position)
	}
	g.ok(200, request{method: "POST", path: "/exec", as: "ada", body: `{"op":"tools"}`}, nil)

	for _, path := range []string{"/v1/audit/export", "/v1/audit/export?from=3"} {
		whole := g.fetch(path, "ada")
		if r, _, err := notary.VerifyExport(bytes.NewReader(whole), key, kept); err != nil || r.Position <= kept.Size {
			t.Errorf("%s: %+v, %v in %s", path, r, err, whole)
		}
	}

	body, err := json.Marshal(AuditRequest{Checkpoint: cp.Checkpoint})
	if err != nil {
		t.Fatal(err)
	}
	var report AuditReport
	g.ok(200, request{method: "POST", path: "/v1/audit/verify", as: "ada", body: string(body)}, &report)
	if !report.OK || report.Position < cp.Position || report.Found != nil {
		t.Errorf("verified: %+v", report)
	}
	var state AuditState
	g.get("ada", "/v1/audit", &state)
	if state.State != "signing" || state.Key != cp.Key || state.Head != state.Position+state.Lag {
		t.Errorf("the state is %+v", state)
	}

	// The log itself, put wrong.
	if err := g.store.Update(t.Context(), func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE notary_batch SET checkpoint = 'x'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	report = AuditReport{}
	g.ok(200, request{method: "POST", path: "/v1/audit/verify", as: "ada", body: `{"checkpoint":""}`}, &report)
	if report.OK || report.Found == nil || report.Found.Position == 0 || !strings.Contains(report.Found.What, "the checkpoint at position") {
		t.Errorf("after tampering: %+v", report)
	}
}

// The log shows everything, so it is for operators.
func TestAuditIsForOperators(t *testing.T) {
	g := open(t)
	for _, q := range []request{
		{method: "GET", path: "/v1/audit"}, {method: "GET", path: "/v1/audit/checkpoint"}, {method: "GET", path: "/v1/audit/export"},
		{method: "POST", path: "/v1/audit/verify", body: `{"checkpoint":""}`},
	} {
		for _, who := range []ops.IdentityID{"scout", "mx"} {
			q.as = who
			if a := g.do(q); a.status != 403 {
				t.Errorf("%s %s as %s: %s", q.method, q.path, who, a)
			}
		}
	}
}

// A log that is gone is missed by the notary that has written it, without a checkpoint
// that was kept elsewhere.
func TestAuditOfALogThatIsGone(t *testing.T) {
	g := open(t)
	g.get("ada", "/v1/audit/checkpoint", &AuditCheckpoint{})
	if err := g.store.Update(t.Context(), func(tx journal.Tx) error {
		_, err := tx.Exec(`DELETE FROM notary_batch`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var report AuditReport
	g.ok(200, request{method: "POST", path: "/v1/audit/verify", as: "ada", body: `{"checkpoint":""}`}, &report)
	if report.OK || report.Found == nil || !strings.Contains(report.Found.What, "the log ends at position 0") {
		t.Errorf("got %+v %+v", report, report.Found)
	}
}

// A notary that does not sign is a fault, not an empty proof.
func TestAuditWithoutNotary(t *testing.T) {
	g := open(t, func(c *Config) { c.Notary = unable{} })
	for _, q := range []request{
		{method: "GET", path: "/v1/audit/checkpoint"}, {method: "GET", path: "/v1/audit/export"},
		{method: "POST", path: "/v1/audit/verify", body: `{"checkpoint":""}`},
	} {
		q.as = "ada"
		if a := g.do(q); a.status != 503 {
			t.Errorf("%s %s: %s", q.method, q.path, a)
		}
	}
}

type unable struct{}

func (unable) Checkpoint(context.Context) (notary.Checkpoint, error) {
	return notary.Checkpoint{}, errors.New("no")
}
func (unable) Sealed() notary.Checkpoint { return notary.Checkpoint{} }
func (unable) Key() notary.Key           { return notary.Key{} }

// fetch returns the body of an export.
func (g *gateway) fetch(path string, as ops.IdentityID) []byte {
	g.t.Helper()
	resp, err := g.client.Do(g.build(g.t.Context(), request{method: "GET", path: path, as: as}))
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if got := resp.Header.Get("Content-Type"); err != nil || resp.StatusCode != 200 || got != "application/jsonl" {
		g.t.Fatalf("GET %s: %d %s, %v", path, resp.StatusCode, got, err)
	}
	return b
}
