package webhook

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"inband/ops"
	"inband/service/threads"
)

const whole = `{
  "urls": {"post": "https://bridge.example/post", "find": "http://127.0.0.1:9/find"},
  "secrets": ["file:chat"],
  "self": "U0",
  "people": {"U1": "mallory"},
  "agents": {"U2": {"identity": "ada", "home": "C1"}, "U3": {"identity": "bob"}},
  "rooms": {"C1": "operations"},
  "inbound": {"text": "event.text", "mentions": "event.mentions.#.id", "gap": ""}
}`

func TestRead(t *testing.T) {
	c, err := Read("chat", "chat.json", []byte(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "chat" || c.Inbound.Text != "event.text" || c.Inbound.Room != "room" || c.Inbound.Gap != "" || c.Posts.Unit != threads.UTF16 || c.Posts.Edit != 4000 || c.Poll != 60 {
		t.Errorf("read as %+v", c)
	}
}

func TestReadRefuses(t *testing.T) {
	with := func(old, new string) string {
		if !strings.Contains(whole, old) {
			t.Fatalf("there is no %s in the good file", old)
		}
		return strings.Replace(whole, old, new, 1)
	}
	for _, tc := range []struct {
		name, file string
		line       int
		want       string
	}{
		{"nothing", "", 1, "ends too early"},
		{"a list", "[]", 1, "want one JSON object"},
		{"cut", whole[:len(whole)-2], 8, "ends too early"},
		{"behind the end", whole + "{}", 9, "not JSON"},
		{"unknown", with(`"self"`, `"slef"`), 4, `"slef" is unknown; known here are urls, ca, secrets, self`},
		{"unknown inside", with(`"text": "event.text"`, `"txt": "event.text"`), 8, `"txt" is unknown; known here are kind`},
		{"unknown in an agent", with(`"home": "C1"`, `"room": "C1"`), 6, `"room" is unknown; known here are identity, home`},
		{"another case", with(`"self"`, `"Self"`), 4, `"Self" is unknown`},
		{"twice", with(`"self": "U0",`, `"self": "U0", "self": "U9",`), 4, `"self" occurs twice`},
		{"a user twice", with(`"U1": "mallory"`, `"U1": "mallory", "U1": "eve"`), 5, `"U1" occurs twice`},
		{"a number for a string", with(`"U0"`, `0`), 4, "self: want a string"},
		{"a string for a list", with(`["file:chat"]`, `"file:chat"`), 3, "secrets: want a list"},
		{"no self", with(`"self": "U0",`, ""), 1, "our own user's id"},
		{"empty self", with(`"U0"`, `""`), 4, "our own user's id"},
		{"no post", with(`"post": "https://bridge.example/post", `, ""), 2, "URL that posts go to"},
		{"plain http", with("https://bridge", "http://bridge"), 2, "https, or http on a loopback"},
		{"another scheme", with("https://bridge", "ftp://bridge"), 2, "https, or http on a loopback"},
		{"a password", with("https://bridge", "https://u:p@bridge"), 2, "no user or password"},
		{"a fragment", with("/post", "/post#x"), 2, "want no #"},
		{"no host", with("https://bridge.example/post", "https:/post"), 2, "want a URL"},
		{"the secret itself", with("file:chat", "hunter2hunter2hunter2"), 3, "never in this file"},
		{"no secret", with(`"file:chat"`, ""), 3, "never in this file"},
		{"no rooms", strings.Replace(with(`{"C1": "operations"}`, "{}"), `"home": "C1"`, `"home": ""`, 1), 7, "want the rooms"},
		{"a home that is no room", with(`"home": "C1"`, `"home": "operations"`), 6, `no room "operations" in rooms`},
		{"our own user", with(`"U1": "mallory"`, `"U0": "mallory"`), 5, "our own user"},
		{"no identity", with("mallory", "Mallory!"), 5, "want an identity"},
		{"one identity, two users", with("mallory", "ada"), 6, "one identity is one user"},
		{"the adaptor's own identity", with("mallory", "chat"), 5, "is the adaptor already"},
		{"person and agent", with(`"U1": "mallory"`, `"U2": "mallory"`), 6, "one or the other"},
		{"a wildcard", with("event.text", "event.*"), 8, "names joined by dots"},
		{"a modifier", with("event.text", "event.text|@reverse"), 8, "names joined by dots"},
		{"a query", with("event.text", "a.#(b==1).c"), 8, "names joined by dots"},
		{"many texts", with("event.text", "a.#.c"), 8, "only mentions"},
		{"no text", with("event.text", ""), 8, "no message can be read without it"},
		{"a unit", with(`"self": "U0"`, `"self": "U0", "posts": {"unit": "words"}`), 4, "bytes, runes or utf16"},
		{"short posts", with(`"self": "U0"`, `"self": "U0", "posts": {"most": 10}`), 4, "want 500 to"},
		{"a kind", with(`"self": "U0"`, `"self": "U0", "kinds": {"join": "nothing"}`), 4, "message, edit or system"},
		{"an unescaping", with(`"self": "U0"`, `"self": "U0", "unescape": "xml"`), 4, "none or html"},
		{"a poll", with(`"self": "U0"`, `"self": "U0", "poll": 1`), 4, "want 10 to 86400"},
		{"no such authority", with(`"self": "U0"`, `"self": "U0", "ca": "none.pem"`), 4, `no file "none.pem"`},
		{"an authority elsewhere", with(`"self": "U0"`, `"self": "U0", "ca": "../tls/ca.pem"`), 4, "in the folder"},
		{"no authority", with(`"self": "U0"`, `"self": "U0", "ca": "bad.pem"`), 4, "no certificate"},
		{"a fraction", with(`"self": "U0"`, `"self": "U0", "poll": 60.5`), 4, "poll: want a whole number"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Read("chat", "adaptors/chat.json", []byte(tc.file), fstest.MapFS{"bad.pem": {Data: []byte("x")}})
			var errs ops.FileErrors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("read: %v", err)
			}
			if e := errs[0]; e.File != "adaptors/chat.json" || e.Line != tc.line || !strings.Contains(e.Message, tc.want) {
				t.Errorf("%v\nwant line %d with %q", err, tc.line, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats the secret: %v", err)
			}
		})
	}
	for _, name := range []string{"", "rooms", "Chat", "1chat", "a b", strings.Repeat("a", 33)} {
		if _, err := Read(name, "x.json", []byte(whole), nil); err == nil || !strings.Contains(err.Error(), "the name") {
			t.Errorf("the name %q: %v", name, err)
		}
	}
}

// Whatever the file holds, it is read, or each error names a line of it.
func FuzzRead(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(`{"agents":{"":{}}}`))
	f.Add([]byte(`{"urls":{"post":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Read("chat", "chat.json", data, fstest.MapFS{})
		if err == nil {
			if c.Self == "" || len(c.Secrets) == 0 || len(c.Rooms) == 0 {
				t.Errorf("read as %+v", c)
			}
			return
		}
		var errs ops.FileErrors
		if !errors.As(err, &errs) || len(errs) == 0 {
			t.Fatal(err)
		}
		for _, e := range errs {
			if e.Line < 1 || e.Line > 1+strings.Count(string(data), "\n") || e.Message == "" {
				t.Errorf("%s for %s", e, fmt.Sprintf("%q", data))
			}
		}
	})
}
