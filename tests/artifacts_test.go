package tests

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"inband/ops"
	"inband/service"
	"inband/service/threads"
)

// report is two ops that publish a file that is another one each time.
const report = `provider: test
ops:
  test.report:
    summary: Write a report
    side_effecting: false
    argv: [/bin/sh, -c, '/usr/bin/date +%s.%N > report.txt']
    fs: {exec: [/usr/bin]}
    publish: [{file: report.txt, kind: text/plain}]
  test.write:
    summary: Write a report, and act
    side_effecting: true
    argv: [/bin/sh, -c, '/usr/bin/date +%s.%N > report.txt']
    fs: {exec: [/usr/bin]}
    publish: [{file: report.txt, kind: text/plain}]
`

// reporting makes a state folder with the ops.
func reporting(t *testing.T, box string) (state string) {
	t.Helper()
	state = filepath.Join(t.TempDir(), "state")
	if out, err := exec.Command(box, "--state", state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(state, "ops.d", "report.yaml"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	return state
}

// bytes fetches an artifact, and checks it against its digest.
func (g *gateway) bytes(token, digest string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, g.url+"/v1/artifacts/"+digest+"/bytes", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := g.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%w %d", errStatus, res.StatusCode)
	}
	if sum := sha256.Sum256(b); "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return "", fmt.Errorf("%q is not %s", b, digest)
	}
	return string(b), nil
}

// artifacts lists what the operator sees, the newest first.
func (g *gateway) artifacts(t *testing.T) []service.ArtifactListing {
	t.Helper()
	var page service.ArtifactPage
	if err := g.get("/v1/artifacts?limit=200", &page); err != nil {
		t.Fatal(err)
	}
	return page.Artifacts
}

// A file that an agent's order published is named in its thread, and is there for that
// agent and, by whichever entrance, for no other.
func TestPublishedByAnOrder(t *testing.T) {
	box := build(t, "")
	g := serveAlive(t, box, reporting(t, box))
	ada, bob := g.agent(t, "ada"), g.agent(t, "bob")
	var ack threads.Ack
	if err := g.as(ada, http.MethodPost, "/v1/replies", map[string]string{"room": "lobby", "message": "m1", "text": "[TOOL test.report {}]"}, &ack); err != nil {
		t.Fatal(err)
	}
	var post string
	until(t, "the result is posted", func() bool {
		var thread threads.Showing
		if err := g.as(ada, http.MethodGet, "/v1/threads/"+ack.Thread, nil, &thread); err != nil {
			t.Fatal(err)
		}
		if len(thread.Posts) < 2 {
			return false
		}
		post = thread.Posts[1].Text
		return true
	})
	_, digest, ok := strings.Cut(strings.TrimSpace(post), "\nkept: report.txt, 21 bytes, ")
	if !ok {
		t.Fatalf("the post names no file:\n%s", post)
	}
	if got, err := g.bytes(ada, digest); err != nil || len(got) != 21 {
		t.Errorf("ada gets %q, %v", got, err)
	}
	if got, err := g.bytes(bob, digest); err == nil || !strings.HasSuffix(err.Error(), "404") {
		t.Errorf("bob gets %q, %v", got, err)
	}
	read := fmt.Sprintf(`{"action":"artifact","arg":%q}`, digest)
	for name, enter := range map[string]func(token string) ops.Code{
		"the API": func(token string) ops.Code {
			var f ops.Fault
			_ = g.as(token, http.MethodGet, "/v1/artifacts/"+digest, nil, &f)
			return f.Code
		},
		"POST /exec": func(token string) ops.Code {
			var f ops.Fault
			_ = g.as(token, http.MethodPost, "/exec", map[string]any{"op": "box.exec", "params": json.RawMessage(read)}, &f)
			return f.Code
		},
		"a directive": func(token string) ops.Code {
			return inReply(t, g, token, "m2", "[TOOL box.exec "+read+"]")
		},
	} {
		if got := enter(ada); got != "" {
			t.Errorf("ada by %s: %s", name, got)
		}
		if got := enter(bob); got != ops.NotFound {
			t.Errorf("bob by %s: %q, want %s", name, got, ops.NotFound)
		}
	}
}

// A gateway that is killed while it keeps a file says afterwards what is true: either
// the call has succeeded and its file is there, or nothing of it was published.
func TestKilledWhileItKeeps(t *testing.T) {
	box := build(t, "failpoint")
	state := reporting(t, box)
	published := map[string]bool{} // by call
	for i, tc := range []struct{ op, mark string }{
		{"test.report", "artifacts.renamed"}, {"test.report", "door.executed"},
		{"test.write", "artifacts.written"}, {"test.write", "artifacts.kept"}, {"test.write", "door.executed"}, {"test.write", "door.settled"},
	} {
		op, mark := tc.op, tc.mark
		g := serve(t, box, state, "INBAND_FAILPOINT="+mark)
		key := fmt.Sprint(op, i)
		if err := g.do(http.MethodPost, "/exec", map[string]any{"op": op, "id": key}, nil); err == nil {
			t.Fatalf("%s at %s is answered", op, mark)
		}
		until(t, "the gateway is dead", g.isDead)

		g = serveAlive(t, box, state)
		var call struct {
			Call  string
			State ops.State
			Fault ops.Fault
		}
		until(t, "the call is settled", func() bool {
			var page struct{ Calls []struct{ Call string } }
			if err := g.get("/v1/calls?limit=1&op="+op, &page); err != nil || len(page.Calls) != 1 {
				t.Fatalf("calls: %+v, %v", page, err)
			}
			if err := g.get("/v1/calls/"+page.Calls[0].Call, &call); err != nil {
				t.Fatal(err)
			}
			return call.State.Settled()
		})
		want := ops.Succeeded // a read is run again
		if op == "test.write" && mark != "door.settled" {
			want = ops.Unknown
		}
		if call.State != want {
			t.Errorf("%s killed at %s is %s, want %s (%+v)", op, mark, call.State, want, call.Fault)
		}
		if call.State == ops.Succeeded {
			published[call.Call] = true
		}
		listed := g.artifacts(t)
		for _, a := range listed {
			if !published[string(a.Call)] {
				t.Errorf("after %s at %s: %s is published by a call that has not succeeded", op, mark, a.Digest)
			}
			if got, err := g.bytes(g.token, string(a.Digest)); err != nil || int64(len(got)) != a.Bytes {
				t.Errorf("after %s at %s: %q, %v", op, mark, got, err)
			}
		}
		if len(listed) != len(published) {
			t.Errorf("after %s at %s: %d are listed, want %d", op, mark, len(listed), len(published))
		}
		if left, err := os.ReadDir(filepath.Join(state, "artifacts", "tmp")); err != nil || len(left) != 0 {
			t.Errorf("after %s at %s: half written %v, %v", op, mark, left, err)
		}
		g.kill()
	}
}
