package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"inband/adaptors/webhook"
	"inband/ops"
	"inband/tests/bridge/bridgetest"
)

const chatSecret = bridgetest.Secret

// chatGateway starts a gateway with an adaptor "chat" whose bridge is at url: mallory is
// an operator and the user U1, ada an agent and the user U2. change may change the file.
func chatGateway(t testing.TB, state, url string, change func(file map[string]any)) *gateway {
	t.Helper()
	g := serveAlive(t, build(t, ""), state)
	for _, who := range []map[string]any{{"id": "mallory", "role": "operator"}, {"id": "ada", "role": "agent"}, {"id": "chat", "role": "bridge", "agents": []string{"ada"}}} {
		if err := g.do(http.MethodPost, "/v1/agents", who, nil); err != nil {
			t.Fatal(err)
		}
	}
	g.kill()
	file := map[string]any{
		"urls": map[string]string{"post": url + "/post"}, "secrets": []string{"file:chat"}, "self": "UBOT",
		"people": map[string]string{"U1": "mallory"}, "agents": map[string]any{"U2": map[string]string{"identity": "ada", "home": "C1"}},
		"rooms": map[string]string{"C1": "operations"},
	}
	if change != nil {
		change(file)
	}
	b, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(state, "adaptors"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"adaptors/chat.json": b, "credentials/chat": []byte(chatSecret + "\n")} {
		if err := os.WriteFile(filepath.Join(state, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return serveAlive(t, build(t, ""), state)
}

// freePort is an address on which nobody listens.
func freePort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// docBridge writes the bridge in a language that docs/adaptors.md shows into a file.
func docBridge(t *testing.T, language, path string) {
	t.Helper()
	m := regexp.MustCompile("(?s)<!-- bridge: " + language + " -->\n```\\w+\n(.*?)\n```\n").FindStringSubmatch(doc(t, "docs/adaptors.md"))
	if m == nil {
		t.Fatalf("docs/adaptors.md has no bridge in %s", language)
	}
	if n := strings.Count(m[1], "\n") + 1; n > 40 {
		t.Errorf("the bridge in %s has %d lines, want at most 40", language, n)
	}
	if err := os.WriteFile(path, []byte(m[1]+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}

// lines is what a process prints.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// started starts a process with its children in a group of its own, which ends with t.
func started(t *testing.T, cmd *exec.Cmd) *lines {
	t.Helper()
	printed := &lines{}
	cmd.Stdout, cmd.Stderr = printed, printed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
	return printed
}

// listening waits until somebody listens at an address.
func listening(t *testing.T, at string) {
	t.Helper()
	until(t, "the bridge listens", func() bool {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

const posted = `(?s)version.*\nr-[0-9a-z]{26}\n`

func TestBridgeInGo(t *testing.T) {
	dir, at := t.TempDir(), freePort(t)
	g := chatGateway(t, filepath.Join(dir, "state"), "http://"+at, nil)
	docBridge(t, "go", filepath.Join(dir, "bridge.go"))
	program := filepath.Join(dir, "bridge")
	if out, err := exec.Command("go", "build", "-o", program, filepath.Join(dir, "bridge.go")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "SECRET="+chatSecret, "LISTEN="+at, "SSL_CERT_FILE="+filepath.Join(g.state, "tls", "ca.pem"), "EVENTS="+g.url+"/v1/adaptors/chat/events")
	printed := started(t, cmd)
	listening(t, at)
	resp, err := http.Get("http://" + at + "/say?user=U2&text=" + url.QueryEscape("Let me look.\n[TOOL box.exec {\"action\":\"version\"}] <-"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	until(t, "the result is posted", func() bool { return regexp.MustCompile(posted).MatchString(printed.String()) })
	// Who has not the secret posts nothing.
	if resp, err = http.Post("http://"+at+"/post", "application/json", strings.NewReader(`{"text":"hi"}`)); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a post without a signature: %d", resp.StatusCode)
	}
}

func TestBridgeInAShell(t *testing.T) {
	for _, program := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("INBAND_CI") != "" {
				t.Fatalf("%s is not here, and CI runs this test", program)
			}
			t.Skipf("%s is not here", program)
		}
	}
	dir, at := t.TempDir(), freePort(t)
	docBridge(t, "sh", filepath.Join(dir, "bridge.sh"))
	req := exec.Command("openssl", strings.Fields("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=bridge -addext subjectAltName=IP:127.0.0.1 -keyout bridge.key -out bridge.pem")...)
	if !strings.Contains(strings.ReplaceAll(doc(t, "docs/adaptors.md"), "\\\n\t", ""), strings.Join(req.Args, " ")) {
		t.Error("docs/adaptors.md makes the certificate in another way")
	}
	req.Dir = dir
	if out, err := req.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(filepath.Join(state, "adaptors"), 0o700); err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(dir, "bridge.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "adaptors", "bridge.pem"), pem, 0o600); err != nil {
		t.Fatal(err)
	}
	g := chatGateway(t, state, "https://"+at, func(file map[string]any) { file["ca"] = "bridge.pem" })
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command("bash", append([]string{"bridge.sh"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "SECRET="+chatSecret, "LISTEN="+at, "CA="+filepath.Join(state, "tls", "ca.pem"), "EVENTS="+g.url+"/v1/adaptors/chat/events")
		return cmd
	}
	started(t, command("serve"))
	text := "Let me \"look\" \\ here.\n[TOOL box.exec {\"action\":\"version\"}]\n\n[TOOL box.exec {\"action\":\"uptime\"}]"
	out, err := command("say", "U2", text).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"status":"taken"`) {
		t.Fatalf("%v %s", err, out)
	}
	for _, what := range []string{"version", "started_at"} {
		until(t, "the result with "+what+" is posted", func() bool {
			b, _ := os.ReadFile(filepath.Join(dir, "chat.txt"))
			return regexp.MustCompile(strings.Replace(posted, "version", what, 1)).Match(b)
		})
	}
	var page struct{ Threads []struct{ ID string } }
	var thread struct{ Posts []struct{ Kind, Text string } }
	if err := g.get("/v1/threads", &page); err != nil || len(page.Threads) == 0 {
		t.Fatalf("%d threads, %v", len(page.Threads), err)
	}
	if err := g.get("/v1/threads/"+page.Threads[len(page.Threads)-1].ID, &thread); err != nil || len(thread.Posts) == 0 || thread.Posts[0].Text != text {
		t.Errorf("%v: the message arrived as %+v", err, thread.Posts)
	}
}

// What docs/adaptors.md says of the file is what is read.
func TestAdaptorsPage(t *testing.T) {
	page := doc(t, "docs/adaptors.md")
	m := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("there is no example")
	}
	if _, err := webhook.Read("chat", "the example", []byte(m[1]), nil); err != nil {
		t.Error(err)
	}
	var documented []string
	for _, row := range table(t, section(t, page, "## The file")) {
		documented = append(documented, row[0])
	}
	same(t, "the members of webhook.Config", webhook.Members(), "docs/adaptors.md", documented)
	var fields []string
	for _, row := range table(t, section(t, page, "### Payloads")) {
		fields = append(fields, strings.Split(strings.ReplaceAll(row[0], "`", ""), ", ")...)
	}
	same(t, "the fields of a payload", webhook.PayloadFields(), "docs/adaptors.md", fields)
}

// sendEvent sends a payload, signed with a secret, to the adaptor chat.
func sendEvent(t *testing.T, g *gateway, secret string, payload map[string]any) *http.Response {
	t.Helper()
	s, err := webhook.NewSecret([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest(http.MethodPost, g.url+"/v1/adaptors/chat/events", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	s.Sign(r.Header, "e-1", time.Now(), body)
	resp, err := g.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// A secret is rotated while the gateway runs, and no event is refused on the way.
func TestRotatedSecret(t *testing.T) {
	const next = "the secret that comes after it"
	state := filepath.Join(t.TempDir(), "state")
	g := chatGateway(t, state, "http://"+freePort(t), nil)
	file := filepath.Join(state, "adaptors", "chat.json")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "credentials", "next"), []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		secrets        string
		old, following int
	}{
		{`["file:chat"]`, 200, 401},
		{`["file:chat","file:next"]`, 200, 200},
		{`["file:next","file:chat"]`, 200, 200},
		{`["file:next"]`, 401, 200},
	} {
		if err := os.WriteFile(file, bytes.Replace(config, []byte(`["file:chat"]`), []byte(step.secrets), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.do(http.MethodPost, "/v1/ops/reload", nil, nil); err != nil {
			t.Fatal(err)
		}
		for secret, want := range map[string]int{chatSecret: step.old, next: step.following} {
			resp := sendEvent(t, g, secret, map[string]any{"room": "C1", "message": "m-1", "user": "U2", "text": "hi"})
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("with %s, signed with %q: %d, want %d", step.secrets, secret, resp.StatusCode, want)
			}
		}
	}
}

// An event of a chat is one more entrance: what is in it is decided as what an agent hands
// in itself.
func TestEventsAreDecidedAsReplies(t *testing.T) {
	g := chatGateway(t, filepath.Join(t.TempDir(), "state"), "http://"+freePort(t), nil)
	var made struct{ Token string }
	if err := g.do(http.MethodPost, "/v1/agents/ada/rotate", nil, &made); err != nil {
		t.Fatal(err)
	}
	type decided struct {
		Op    ops.OpName
		State ops.State
		Form  string
		Rule  string
		Fault *ops.Fault
	}
	type ack struct{ Calls []decided }
	for i, text := range []string{
		`[TOOL no.such.op {}]`,
		`[TOOL box.exec {"action":"none"}]`,
		`[TOOL box.exec {"action":"version","action":"uptime"}]`,
		`[TOOL dm.send {"to":"#lobby","text":"hi"}]`,
		`[TOOL#zzzz-zzzz-zzzz dm.send {"to":"#lobby","text":"hi"}]`,
		"```tool\ndm.send {\"to\":\"#lobby\",\"text\":\"hi\"}\n```",
		"```exec\n{\"op\":\"dm.send\",\"params\":{\"to\":\"#lobby\",\"text\":\"hi\"}}\n```",
		"$ curl -d '{\"op\":\"dm.send\",\"params\":{\"to\":\"#lobby\",\"text\":\"hi\"}}' https://localhost/exec\n",
		"> [TOOL dm.send {\"to\":\"#lobby\",\"text\":\"hi\"}]",
		"`[TOOL dm.send {}]`",
		`[TOOL dm.send {“to”:"#lobby"}]`,
	} {
		id := fmt.Sprint("m-", i)
		var reply ack
		if err := g.as(made.Token, http.MethodPost, "/v1/replies", map[string]any{"room": "lobby", "message": id, "text": text}, &reply); err != nil {
			t.Fatal(err)
		}
		resp := sendEvent(t, g, chatSecret, map[string]any{"room": "C1", "message": id, "user": "U2", "text": text, "written_at": time.Now()})
		var heard struct {
			Status string
			Reply  ack
		}
		err := json.NewDecoder(resp.Body).Decode(&heard)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || heard.Status != "taken" {
			t.Fatalf("%s: %d %+v, %v", text, resp.StatusCode, heard, err)
		}
		if d := cmp.Diff(reply, heard.Reply, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s\nhanded in (-) and in the chat (+):\n%s", text, d)
		}
	}
}
