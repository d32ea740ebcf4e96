package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"inband/adaptors/adaptortest"
	"inband/adaptors/webhook"
	"inband/ops"
	"inband/service/threads"
)

// bridgeProgram is the bridge of the tests, built once.
var bridgeProgram string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "bridge-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bridgeProgram = filepath.Join(dir, "bridge")
		if out, err := exec.Command("go", "build", "-o", bridgeProgram, "inband/tests/bridge").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the bridge: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

const sharedSecret = "the secret of this bridge"

// bridge is a running process of tests/bridge.
type bridge struct {
	store   string
	url     string
	control string
	args    []string
	cmd     *exec.Cmd
}

// startBridge starts a bridge that tells events to a URL.
func startBridge(t testing.TB, events string, args ...string) *bridge {
	t.Helper()
	b := &bridge{store: filepath.Join(t.TempDir(), "messages.jsonl"), args: args}
	b.args = append(b.args, "-secrets", sharedSecret, "-store", b.store, "-events", events)
	b.start(t, "127.0.0.1:0", "127.0.0.1:0")
	t.Cleanup(func() { b.kill() })
	return b
}

func (b *bridge) start(t testing.TB, listen, control string) {
	t.Helper()
	b.cmd = exec.Command(bridgeProgram, append([]string{"-listen", listen, "-control", control}, b.args...)...)
	b.cmd.Stderr = os.Stderr
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var at struct{ URL, Control string }
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		b.kill()
		t.Fatalf("the bridge does not start: %v", err)
	}
	b.url, b.control = at.URL, at.Control
}

// kill ends the process as a power cut does.
func (b *bridge) kill() {
	b.cmd.Process.Signal(syscall.SIGKILL)
	b.cmd.Wait()
}

// restart kills the process and starts it again on the same addresses.
func (b *bridge) restart(t testing.TB) {
	t.Helper()
	b.kill()
	b.start(t, b.url[len("http://"):], b.control[len("http://"):])
}

// do has the bridge do something.
func (b *bridge) do(t testing.TB, what string, body, into any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(b.control+"/control/"+what, "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", what, resp.StatusCode, got, err)
	}
	if into != nil {
		if err := json.Unmarshal(got, into); err != nil {
			t.Fatalf("%s: %v in %s", what, err, got)
		}
	}
}

// said is what the bridge answers when somebody has written something.
type said struct {
	ID   string
	Told []int // the statuses of the events
}

// harness runs adaptors on bridges of their own.
type harness struct{ args []string }

func (h harness) Start(t *testing.T, s adaptortest.Setting) adaptortest.Platform {
	t.Helper()
	p := &platform{setting: s}
	// The gateway's side of the events: whichever adaptor there is.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := p.adaptor.Load()
		body, err := io.ReadAll(r.Body)
		if a == nil || err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		heard, err := a.Deliver(r.Context(), r.Header, body)
		if err != nil {
			code := http.StatusInternalServerError
			if f, ok := err.(*ops.Fault); ok {
				code = f.Code.Info().Status
			}
			w.WriteHeader(code)
			return
		}
		json.NewEncoder(w).Encode(heard)
	}))
	t.Cleanup(server.Close)
	p.bridge = startBridge(t, server.URL, h.args...)
	return p
}

type platform struct {
	*bridge
	setting adaptortest.Setting
	adaptor atomic.Pointer[webhook.Adaptor]
}

// runnable is an adaptor as the suite runs it.
type runnable struct{ a *webhook.Adaptor }

func (r runnable) Chat() threads.Chat { return r.a.Chat() }

func (r runnable) Run(ctx context.Context, into adaptortest.Intake) error { return r.a.Run(ctx, into) }

func (p *platform) Adaptor(t *testing.T) adaptortest.Adaptor {
	t.Helper()
	rooms, people, agents := map[string]string{}, map[string]any{}, map[string]any{}
	for _, id := range p.setting.Rooms {
		rooms[id] = "room " + id
	}
	for _, who := range p.setting.People {
		if who.Is.Role == ops.Agent {
			agents[who.User] = map[string]any{"identity": who.Is.ID, "home": who.Home}
		} else {
			people[who.User] = who.Is.ID
		}
	}
	file, err := json.Marshal(map[string]any{
		"urls":    map[string]string{"post": p.url + "/post", "find": p.url + "/find", "edit": p.url + "/edit", "history": p.url + "/history"},
		"secrets": []string{"file:chat"}, "self": "UBOT", "rooms": rooms, "people": people, "agents": agents,
		"unescape": "html", "timeout": 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := webhook.Read("chat", "chat.json", file, nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := webhook.NewSecret([]byte(sharedSecret))
	if err != nil {
		t.Fatal(err)
	}
	a, err := webhook.New(c, []webhook.Secret{secret}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.adaptor.Store(a)
	return runnable{a}
}

func (p *platform) Say(t *testing.T, m adaptortest.Message) string {
	t.Helper()
	body := map[string]any{"room": m.Room, "under": m.Under, "user": m.User, "name": m.Name, "text": m.Text, "quiet": m.Quiet,
		"bot": m.Kind == adaptortest.Program, "own": m.Kind == adaptortest.Own}
	if m.Kind == adaptortest.Notice {
		body["kind"] = "system"
	}
	if !m.At.IsZero() {
		body["at"] = m.At
	}
	var got said
	p.do(t, "say", body, &got)
	return got.ID
}

func (p *platform) Change(t *testing.T, id, text string, preview bool) {
	t.Helper()
	p.do(t, "change", map[string]any{"id": id, "text": text, "preview": preview}, nil)
}

func (p *platform) Remove(t *testing.T, id string) {
	t.Helper()
	p.do(t, "remove", map[string]any{"id": id}, nil)
}

func (p *platform) Tell(t *testing.T, atOnce bool, ids ...string) {
	t.Helper()
	p.do(t, "tell", map[string]any{"atonce": atOnce, "ids": ids}, nil)
}

func (p *platform) Sever(t *testing.T) { t.Helper(); p.do(t, "sever", nil, nil) }
func (p *platform) Mend(t *testing.T)  { t.Helper(); p.do(t, "mend", nil, nil) }

func (p *platform) Room(t *testing.T, room string) []adaptortest.Standing {
	t.Helper()
	var all []struct {
		ID, Root, User, Text, File string
		Own                        bool
		Mention                    []string
		Fetches, Edits             int
	}
	p.do(t, "room", room, &all)
	standing := []adaptortest.Standing{}
	for _, m := range all {
		standing = append(standing, adaptortest.Standing{ID: m.ID, Root: m.Root, User: m.User, Own: m.Own, Text: m.Text, File: m.File,
			Edits: m.Edits, Notified: m.Mention, Fetches: m.Fetches})
	}
	return standing
}

func (p *platform) Fail(t *testing.T, faults ...adaptortest.Fault) {
	t.Helper()
	list := []map[string]any{}
	for _, f := range faults {
		list = append(list, map[string]any{"kind": f.Kind, "of": f.Of, "room": f.Room, "times": f.Times, "after": int(f.After / time.Second)})
	}
	p.do(t, "fail", list, nil)
}

func (p *platform) Seen(t *testing.T) []adaptortest.Request {
	t.Helper()
	var all []adaptortest.Request
	p.do(t, "seen", nil, &all)
	return all
}

// The suite that every adaptor passes, on a bridge that finds its posts again.
func TestAdaptor(t *testing.T) {
	t.Parallel()
	adaptortest.Run(t, harness{})
}

// The same on one that also makes no second post with the same key.
func TestAdaptorWithKeys(t *testing.T) {
	t.Parallel()
	adaptortest.Run(t, harness{args: []string{"-keys"}})
}
