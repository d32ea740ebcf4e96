package webhook

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/threads"
)

// intake remembers what it is handed, as the threads do.
type intake struct {
	mu     sync.Mutex
	taken  []threads.Inbound
	cursor string
	fail   error // of the next Receive
}

func (i *intake) Receive(_ context.Context, in threads.Inbound) (threads.Heard, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.fail; err != nil {
		i.fail = nil
		return threads.Heard{}, err
	}
	if i.has(in) {
		return threads.Heard{Status: threads.Duplicate}, nil
	}
	i.taken = append(i.taken, in)
	return threads.Heard{Status: threads.Taken}, nil
}

func (i *intake) has(in threads.Inbound) bool {
	for _, t := range i.taken {
		if t.Workspace == in.Workspace && t.Room == in.Room && t.Message == in.Message {
			return true
		}
	}
	return false
}

func (i *intake) Known(_ context.Context, in threads.Inbound) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.has(in), nil
}

func (i *intake) Cursor(context.Context, string) (string, bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.cursor, i.cursor != "", nil
}

func (i *intake) SetCursor(_ context.Context, _, value string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cursor = value
	return nil
}

func (i *intake) texts() (list []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, in := range i.taken {
		text := in.Text
		if in.CatchUp {
			text += " (caught up)"
		}
		if in.History {
			text += " (history)"
		}
		list = append(list, text)
	}
	return list
}

var _ Intake = (*intake)(nil)

// deliver hands a payload to a as a bridge with the right secret does.
func deliver(t *testing.T, a *Adaptor, body string) (threads.Heard, error) {
	t.Helper()
	h := http.Header{}
	secret(t, testSecret).Sign(h, "e-1", a.now(), []byte(body))
	return a.Deliver(context.Background(), h, []byte(body))
}

// withoutHistory has a run with an intake and no catching up.
func taking(t *testing.T, change ...func(map[string]any)) (*Adaptor, *intake) {
	t.Helper()
	change = append(change, func(f map[string]any) { delete(f["urls"].(map[string]any), "history") })
	a, into := newAdaptor(t, "http://127.0.0.1:1", change...), &intake{}
	a.into = into
	return a, into
}

func TestPayloads(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 250e6, time.UTC)
	base := threads.Inbound{Adaptor: "chat", Room: "C1", Message: "m-1", Address: "#C1/m-1", Kind: threads.Message, User: "U2", Text: "hi"}
	with := func(f func(*threads.Inbound)) threads.Inbound { in := base; f(&in); return in }
	foreign := func(f map[string]any) {
		f["inbound"] = map[string]any{"room": "event.channel", "message": "event.ts", "thread": "event.thread_ts", "user": "event.user", "text": "event.text",
			"written_at": "event.ts", "workspace": "team_id", "kind": "event.subtype", "bot": "event.bot_id", "name": "", "mentions": "event.tags.#.id", "gap": ""}
		f["kinds"] = map[string]string{"channel_join": "system", "message_changed": "edit"}
	}
	for _, tc := range []struct {
		name, body string
		change     func(map[string]any)
		want       threads.Inbound
		heard      string // a reason, when it is ignored
		fault      string
	}{
		{"the least", `{"room":"C1","message":"m-1","user":"U2","text":"hi"}`, nil, base, "", ""},
		{"something beside it", `{"room":"C1","message":"m-1","user":"U2","text":"hi","beside":"a card"}`, nil, with(func(in *threads.Inbound) { in.Beside = "a card" }), "", ""},
		{"a link with a label", `{"room":"C1","message":"m-1","user":"U2","text":"see <https://h/|this &amp; that>"}`, func(f map[string]any) { f["unescape"] = "html" },
			with(func(in *threads.Inbound) { in.Text, in.Beside = "see https://h/", "see this & that\n" }), "", ""},
		{"all of it", `{"kind":"message","workspace":"W","room":"C1","message":"m-2","thread":"m-1","user":"U2","name":"Ada","text":"hi","written_at":"2026-05-01T14:00:00.25+02:00","bot":false,"mentions":["U1","U3"],"more":{"a":[1]}}`, nil,
			with(func(in *threads.Inbound) {
				in.Workspace, in.Message, in.Name, in.WrittenAt, in.Mentions = "W", "m-2", "Ada", at, []string{"U1", "U3"}
			}), "", ""},
		{"numbers as ids", `{"room":"C1","message":90071992547409931,"thread":7,"user":"U2","text":"hi"}`, nil,
			with(func(in *threads.Inbound) { in.Message, in.Address = "90071992547409931", "#C1/7" }), "", ""},
		{"seconds", `{"room":"C1","message":"m-1","user":"U2","text":"hi","written_at":1777636800.25}`, nil, with(func(in *threads.Inbound) { in.WrittenAt = at }), "", ""},
		{"seconds as text", `{"room":"C1","message":"m-1","user":"U2","text":"hi","written_at":"1777636800.250"}`, nil, with(func(in *threads.Inbound) { in.WrittenAt = at }), "", ""},
		{"milliseconds", `{"room":"C1","message":"m-1","user":"U2","text":"hi","written_at":1777636800250}`, nil, with(func(in *threads.Inbound) { in.WrittenAt = at }), "", ""},
		{"our own", `{"room":"C1","message":"m-1","user":"UBOT","text":"hi"}`, nil, with(func(in *threads.Inbound) { in.User, in.Self = "UBOT", true }), "", ""},
		{"a program", `{"room":"C1","message":"m-1","user":"U2","text":"hi","bot":true}`, nil, with(func(in *threads.Inbound) { in.Bot = true }), "", ""},
		{"a program by its id", `{"room":"C1","message":"m-1","user":"U2","text":"hi","bot":"B1"}`, nil, with(func(in *threads.Inbound) { in.Bot = true }), "", ""},
		{"an edit", `{"kind":"edit","room":"C1","message":"m-1","user":"U2","text":"ho"}`, nil, with(func(in *threads.Inbound) { in.Kind, in.Text = threads.Edit, "ho" }), "", ""},
		{"escaped", `{"room":"C1","message":"m-1","user":"U2","text":"[TOOL x {\"q\":\"a &lt; b &amp;&amp; c\"}] <https://h/|https://h/> &amp;lt;"}`, nil,
			with(func(in *threads.Inbound) { in.Text = `[TOOL x {"q":"a < b && c"}] https://h/ &lt;` }), "", ""},
		{"zero width and bidi stay", "{\"room\":\"C1\",\"message\":\"m-1\",\"user\":\"U2\",\"text\":\"a\u200b\u202eb\"}", nil, with(func(in *threads.Inbound) { in.Text = "a\u200b\u202eb" }), "", ""},
		{"65 KiB", `{"room":"C1","message":"m-1","user":"U2","text":"` + strings.Repeat("x", 65<<10) + `"}`, nil, with(func(in *threads.Inbound) { in.Text = strings.Repeat("x", 65<<10) }), "", ""},
		{"foreign", `{"team_id":"T1","event":{"channel":"C1","ts":"1777636800.250","user":"U2","text":"hi","tags":[{"id":"U1"},{"id":3}]}}`, foreign,
			with(func(in *threads.Inbound) {
				in.Workspace, in.Message, in.Address, in.WrittenAt, in.Mentions = "T1", "1777636800.250", "#C1/1777636800.250", at, []string{"U1", "3"}
			}), "", ""},
		{"foreign, in a thread", `{"team_id":"T1","event":{"channel":"C1","ts":"2.0","thread_ts":"1.5","user":"U2","text":"hi","subtype":"message_changed"}}`, foreign,
			with(func(in *threads.Inbound) {
				in.Workspace, in.Message, in.Address, in.WrittenAt, in.Kind = "T1", "2.0", "#C1/1.5", time.Unix(2, 0).UTC(), threads.Edit
			}), "", ""}, // tb-003
		{"a join", `{"event":{"channel":"C1","ts":"2.0","user":"U2","subtype":"channel_join"}}`, foreign,
			with(func(in *threads.Inbound) {
				in.Message, in.Address, in.WrittenAt, in.Kind, in.Text = "2.0", "#C1/2.0", time.Unix(2, 0).UTC(), threads.System, ""
			}), "", ""},
		{"what nobody knows", `{"event":{"channel":"C1","ts":"2.0","user":"U2","text":"[TOOL x {}]","subtype":"reminder"}}`, foreign, base, "not a message", ""},
		{"no message at all", `{"kind":"system"}`, nil, base, "not a message", ""},
		{"another room", `{"room":"C9","message":"m-1","user":"U2","text":"hi"}`, nil, base, "not one of this adaptor's", ""},
		{"a room by its name", `{"room":"operations","message":"m-1","user":"U2","text":"hi"}`, nil, base, "not one of this adaptor's", ""}, // tb-055

		{"no room", `{"message":"m-1","user":"U2","text":"hi"}`, nil, base, "", "no room at room"},
		{"no user", `{"room":"C1","message":"m-1","text":"hi"}`, nil, base, "", "no user at user"},
		{"no text", `{"room":"C1","message":"m-1","user":"U2"}`, nil, base, "", "no text at text"},
		{"text that is none", `{"room":"C1","message":"m-1","user":"U2","text":["hi"]}`, nil, base, "", "want a string at text"},
		{"a user that is none", `{"room":"C1","message":"m-1","user":{"id":"U2"},"text":"hi"}`, nil, base, "", "want an id at user"},
		{"a user in disguise", "{\"room\":\"C1\",\"message\":\"m-1\",\"user\":\"U2\u200b\",\"text\":\"hi\"}", nil, base, "", "printable id"},
		{"a long id", `{"room":"C1","message":"` + strings.Repeat("m", 257) + `","user":"U2","text":"hi"}`, nil, base, "", "printable id"},
		{"U+0000", `{"room":"C1","message":"m-1","user":"U2","text":"a\u0000b"}`, nil, base, "", "U+0000"},
		{"half a surrogate", `{"room":"C1","message":"m-1","user":"U2","text":"\ud800"}`, nil, base, "", "valid UTF-8"},
		{"not UTF-8", "{\"room\":\"C1\",\"message\":\"m-1\",\"user\":\"U2\",\"text\":\"\xff\"}", nil, base, "", "valid UTF-8"},
		{"a name twice", `{"room":"C1","message":"m-1","user":"U2","text":"hi","text":"[TOOL x {}]"}`, nil, base, "", "occurs twice"},
		{"a name twice below", `{"room":"C1","message":"m-1","user":"U2","text":"hi","x":[{"a":1,"a":1}]}`, nil, base, "", "occurs twice"},
		{"a bomb", `{"a":` + strings.Repeat("[", 500_000) + `}`, nil, base, "", "nested at most"},
		{"a list", `[]`, nil, base, "", "want one JSON object"},
		{"nothing", ``, nil, base, "", "want one JSON object"},
		{"two", `{}{}`, nil, base, "", "behind its end"},
		{"cut", `{"room":"C1"`, nil, base, "", "want one JSON object"},
		{"a time that is none", `{"room":"C1","message":"m-1","user":"U2","text":"hi","written_at":"yesterday"}`, nil, base, "", "RFC 3339"},
		{"a time beyond all", `{"room":"C1","message":"m-1","user":"U2","text":"hi","written_at":1e300}`, nil, base, "", "RFC 3339"},
		{"no number", `{"room":"C1","message":"m-1","user":"U2","text":"hi","written_at":"NaN"}`, nil, base, "", "RFC 3339"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			change := []func(map[string]any){}
			if tc.change != nil {
				change = append(change, tc.change)
			}
			a, into := taking(t, change...)
			heard, err := deliver(t, a, tc.body)
			var fault *ops.Fault
			switch {
			case tc.fault != "":
				if !errors.As(err, &fault) || fault.Code != ops.BadRequest || !strings.Contains(fault.Message, tc.fault) {
					t.Errorf("%v, want %s with %q", err, ops.BadRequest, tc.fault)
				}
			case err != nil:
				t.Error(err)
			case tc.heard != "":
				if heard.Status != "ignored" || !strings.Contains(heard.Reason, tc.heard) {
					t.Errorf("heard %+v, want it ignored: %s", heard, tc.heard)
				}
			default:
				if d := cmp.Diff([]threads.Inbound{tc.want}, into.taken); d != "" {
					t.Errorf("taken (-want +got):\n%s", d)
				}
				return
			}
			if len(into.taken) > 0 {
				t.Errorf("taken: %+v", into.taken)
			}
		})
	}
}

func TestDeliverRefuses(t *testing.T) {
	a, into := taking(t)
	body := []byte(`{"room":"C1","message":"m-1","user":"U2","text":"hi"}`)
	h := http.Header{}
	secret(t, "the secret of somebody else").Sign(h, "e-1", time.Now(), body)
	var fault *ops.Fault
	if _, err := a.Deliver(context.Background(), h, body); !errors.As(err, &fault) || fault.Code != ops.Unauthenticated {
		t.Errorf("another's signature: %v", err)
	}
	if a.State().Refused != 1 {
		t.Errorf("refused %d", a.State().Refused)
	}
	// Secrets are swapped while it runs: the new one counts at once, the old one no more.
	a.SetSecrets([]Secret{secret(t, "the secret of somebody else")})
	if _, err := a.Deliver(context.Background(), h, body); err != nil {
		t.Errorf("after the swap: %v", err)
	}
	if _, err := deliver(t, a, string(body)); !errors.As(err, &fault) || fault.Code != ops.Unauthenticated {
		t.Errorf("the old secret after the swap: %v", err)
	}
	a.into = nil
	if _, err := a.Deliver(context.Background(), h, body); !errors.As(err, &fault) || fault.Code != ops.Unavailable {
		t.Errorf("while it does not run: %v", err)
	}
	if len(into.taken) != 1 {
		t.Errorf("taken %d times", len(into.taken))
	}
}

// tb-011: what has no id at all is known by its content.
func TestWithoutID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, into := taking(t)
		send := func(want, body string) {
			t.Helper()
			heard, err := deliver(t, a, body)
			if err != nil || heard.Status != want {
				t.Errorf("%s: %q, %v; want %s", body, heard.Status, err, want)
			}
		}
		plain := `{"room":"C1","user":"U2","text":"[TOOL x {}]"}`
		send(threads.Taken, plain)
		for range 3 {
			send(threads.Duplicate, plain)
		}
		time.Sleep(14*time.Minute + 59*time.Second)
		send(threads.Duplicate, plain)
		send(threads.Taken, `{"room":"C1","user":"U1","text":"[TOOL x {}]"}`)
		send(threads.Taken, `{"room":"C1","thread":"m-1","user":"U2","text":"[TOOL x {}]"}`)
		send(threads.Taken, `{"room":"C1","user":"U2","text":"[TOOL x {} ]"}`)
		time.Sleep(time.Hour)
		send(threads.Taken, plain)

		dated := `{"room":"C1","user":"U2","text":"dated","written_at":"2026-05-01T12:00:00Z"}`
		send(threads.Taken, dated)
		time.Sleep(100 * time.Hour)
		send(threads.Duplicate, dated)
		if in := into.taken[0]; in.Address != "#C1" || in.Message == "" {
			t.Errorf("taken as %+v", in)
		}
	})
}

// The same request again is the same message, and too late it is nothing.
func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, into := taking(t)
		body := []byte(`{"room":"C1","message":"m-1","user":"U2","text":"hi"}`)
		h := http.Header{}
		secret(t, testSecret).Sign(h, "e-1", time.Now(), body)
		for _, want := range []string{threads.Taken, threads.Duplicate, threads.Duplicate} {
			if heard, err := a.Deliver(context.Background(), h, body); err != nil || heard.Status != want {
				t.Errorf("%q, %v; want %s", heard.Status, err, want)
			}
		}
		time.Sleep(Window + time.Second)
		var fault *ops.Fault
		if _, err := a.Deliver(context.Background(), h, body); !errors.As(err, &fault) || fault.Code != ops.Unauthenticated {
			t.Errorf("after the window: %v", err)
		}
		if len(into.taken) != 1 {
			t.Errorf("taken %d times", len(into.taken))
		}
	})
}

// Whatever a payload holds, what is handed on is a message of a room of ours, in text that
// the threads take.
func FuzzDeliver(f *testing.F) {
	for _, s := range []string{`{"room":"C1","message":"m-1","user":"U2","text":"hi"}`, `{"gap":true}`, `{"room":["C1"],"text":{}}`,
		`{"room":"C1","user":1e5,"text":"<https://h|x> &amp;lt;","written_at":1777636800}`, "{\"room\":\"C1\",\"text\":\"\\u0000\"}", `{"mentions":{"a":"U1"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, into := taking(t)
		heard, err := deliver(t, a, string(body))
		var fault *ops.Fault
		switch {
		case err != nil && (!errors.As(err, &fault) || fault.Code != ops.BadRequest && fault.Code != ops.TooLarge):
			t.Errorf("%v", err)
		case err != nil && len(into.taken) > 0, err == nil && heard.Status == "ignored" && len(into.taken) > 0:
			t.Errorf("taken %+v, and answered %+v, %v", into.taken, heard, err)
		}
		for _, in := range into.taken {
			p, err := place(in.Address)
			if err != nil || p.Room != in.Room || in.Room != "C1" && in.Room != "C/2 ü" || in.Message == "" || !utf8.ValidString(in.Text) || strings.ContainsRune(in.Text, 0) || in.Self != (in.User == "UBOT") {
				t.Errorf("taken %+v", in)
			}
		}
	})
}
