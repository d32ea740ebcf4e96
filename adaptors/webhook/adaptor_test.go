package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"inband/adaptors/adaptortest"
	"inband/adaptors/webhook"
	"inband/ops"
	"inband/service/threads"
	"inband/tests/bridge/bridgetest"
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
		if bridgeProgram, err = bridgetest.Build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
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
	p.Bridge = bridgetest.Start(t, bridgeProgram, server.URL, h.args...)
	return p
}

type platform struct {
	*bridgetest.Bridge
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
		"urls":    map[string]string{"post": p.URL + "/post", "find": p.URL + "/find", "edit": p.URL + "/edit", "history": p.URL + "/history"},
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
	secret, err := webhook.NewSecret([]byte(bridgetest.Secret))
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
	p.Do(t, "say", body, &got)
	return got.ID
}

func (p *platform) Change(t *testing.T, id, text string, preview bool) {
	t.Helper()
	p.Do(t, "change", map[string]any{"id": id, "text": text, "preview": preview}, nil)
}

func (p *platform) Remove(t *testing.T, id string) {
	t.Helper()
	p.Do(t, "remove", map[string]any{"id": id}, nil)
}

func (p *platform) Tell(t *testing.T, atOnce bool, ids ...string) {
	t.Helper()
	p.Do(t, "tell", map[string]any{"atonce": atOnce, "ids": ids}, nil)
}

func (p *platform) Sever(t *testing.T) { t.Helper(); p.Do(t, "sever", nil, nil) }
func (p *platform) Mend(t *testing.T)  { t.Helper(); p.Do(t, "mend", nil, nil) }

func (p *platform) Room(t *testing.T, room string) []adaptortest.Standing {
	t.Helper()
	var all []struct {
		ID, Root, User, Text, File string
		Own                        bool
		Mention                    []string
		Fetches, Edits             int
	}
	p.Do(t, "room", room, &all)
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
	p.Do(t, "fail", list, nil)
}

func (p *platform) Seen(t *testing.T) []adaptortest.Request {
	t.Helper()
	var all []adaptortest.Request
	p.Do(t, "seen", nil, &all)
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
