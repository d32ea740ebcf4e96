package webhook

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"inband/ops"
	"inband/service/threads"
)

// Config is what one file adaptors/NAME.json says. Read makes it; docs/adaptors.md
// describes each member.
type Config struct {
	Name string `json:"-"` // of the file, the adaptor and its identity

	URLs URLs `json:"urls"`
	// CA is the file beside this one with the certificates that the bridge's is signed by,
	// "" for those of the system. Read makes Roots of it.
	CA    string         `json:"ca"`
	Roots *x509.CertPool `json:"-"`
	// Secrets are references to the shared secrets, at least one. The first signs, all
	// verify.
	Secrets []ops.CredentialRef `json:"secrets"`
	// Self is the platform's id of our own user there, whose messages are never read.
	Self  string `json:"self"`
	Posts Posts  `json:"posts"`
	// People are those who are identities here and no agents, by the platform's id.
	People map[string]ops.IdentityID `json:"people"`
	Agents map[string]Agent          `json:"agents"` // by the platform's id
	// Rooms are the rooms that are read and written to, by the platform's id, each with a
	// name for people, which decides nothing.
	Rooms    map[string]string `json:"rooms"`
	Inbound  Fields            `json:"inbound"`
	Kinds    map[string]string `json:"kinds"`    // further words for what an event is: message, edit or system
	Unescape string            `json:"unescape"` // Plain or HTML
	// Poll is how many seconds pass between looks into the history, 10 to 86400.
	Poll int `json:"poll"`
	// Timeout is how many seconds one request to the bridge may take, 1 to 120.
	Timeout int `json:"timeout"`
}

// URLs are where the bridge listens: https, or http on a loopback address.
type URLs struct {
	Post    string `json:"post"`
	Find    string `json:"find"`    // "": posts cannot be looked for
	Edit    string `json:"edit"`    // "": posts cannot be changed
	History string `json:"history"` // "": what is missed while nobody listens is lost
}

// Posts says what one post of the platform may be.
type Posts struct {
	Unit  threads.Unit `json:"unit"`
	Most  int          `json:"most"`  // units of a post
	Edit  int          `json:"edit"`  // units of a post that is edited; 0 is as many as Most
	Parts int          `json:"parts"` // posts of one result
	Files bool         `json:"files"` // a long text may be an attachment
	Keys  bool         `json:"keys"`  // a second post with the same key is not made
}

// Agent is an agent on the platform.
type Agent struct {
	Identity ops.IdentityID `json:"identity"`
	Home     string         `json:"home"` // the room where it is woken; "" is a direct message to it
}

// Fields are the paths of what an event of the platform says: names joined by dots, with
// a backslash before a dot that is part of a name, and # for every element of a list. An
// empty path stands for what the platform does not say.
type Fields struct {
	Kind      string `json:"kind"`
	Workspace string `json:"workspace"`
	Room      string `json:"room"`
	Message   string `json:"message"`
	Thread    string `json:"thread"` // the root message of its thread; absent: it is one itself
	User      string `json:"user"`
	Name      string `json:"name"`
	Text      string `json:"text"`
	Beside    string `json:"beside"`     // what is shown beside the text: attachments, previews
	WrittenAt string `json:"written_at"` // RFC 3339, or seconds or milliseconds since 1970
	Bot       string `json:"bot"`        // present and neither false nor empty: a program wrote it
	Mentions  string `json:"mentions"`
	Gap       string `json:"gap"` // true: events were lost, and the history is to be read
}

// The ways to undo a platform's escaping.
const (
	Plain = "none"
	HTML  = "html" // &lt; &gt; &amp; once, and <URL|label>, <@user|name>, <#room|name>
)

// Bounds of a configuration.
const (
	MaxConfig  = 1 << 20 // bytes of a file
	MinSecret  = 16      // bytes of a secret
	maxID      = 256     // bytes of an id of the platform
	maxSecrets = 8
	minPoll    = 10
	maxPoll    = 24 * 60 * 60
	maxTimeout = 120
)

// standard is what a file need not say.
func standard() Config {
	return Config{
		Posts: Posts{Unit: threads.UTF16, Most: 4000, Parts: 8},
		Inbound: Fields{Kind: "kind", Workspace: "workspace", Room: "room", Message: "message", Thread: "thread", User: "user",
			Name: "name", Text: "text", Beside: "beside", WrittenAt: "written_at", Bot: "bot", Mentions: "mentions", Gap: "gap"},
		Unescape: Plain, Poll: 60, Timeout: 20,
	}
}

var adaptorName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Read reads the file of the adaptor name, and returns a Config or ops.FileErrors with
// everything that is wrong with it. beside is the folder where it stands, for the file that
// it names as ca. Whether identities exist and secrets can be had is the gateway's to find
// out.
func Read(name, file string, data []byte, beside fs.FS) (Config, error) {
	c := standard()
	c.Name = name
	at := func(p jsontext.Pointer, format string, args ...any) *ops.FileError {
		return &ops.FileError{File: file, Line: lineAt(data, p), Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case !adaptorName.MatchString(name) || name == threads.Adaptor:
		return Config{}, ops.FileErrors{at("", "the name %q: want a-z, then also 0-9 and -, at most 32 bytes, and not %q, which are the built-in rooms; rename the file", name, threads.Adaptor)}
	case len(data) > MaxConfig:
		return Config{}, ops.FileErrors{at("", "it is longer than %d bytes", MaxConfig)}
	}
	if err := json.Unmarshal(data, &c, json.RejectUnknownMembers(true)); err != nil {
		return Config{}, ops.FileErrors{readError(file, data, err)}
	}
	var wrong ops.FileErrors
	for _, p := range c.problems() {
		wrong = append(wrong, at(p.at, "%s", p.what))
	}
	if c.CA != "" {
		pem, err := fs.ReadFile(beside, c.CA)
		c.Roots = x509.NewCertPool()
		switch {
		case strings.Contains(c.CA, "/") || errors.Is(err, fs.ErrInvalid):
			wrong = append(wrong, at("/ca", "want the name of a file in the folder where this one stands"))
		case errors.Is(err, fs.ErrNotExist):
			wrong = append(wrong, at("/ca", "there is no file %q beside this one", c.CA))
		case err != nil:
			wrong = append(wrong, at("/ca", "%v", err))
		case !c.Roots.AppendCertsFromPEM(pem):
			wrong = append(wrong, at("/ca", "%s holds no certificate in PEM", c.CA))
		}
	}
	if len(wrong) > 0 {
		slices.SortStableFunc(wrong, func(a, b *ops.FileError) int { return a.Line - b.Line })
		return Config{}, wrong
	}
	if c.Posts.Edit == 0 {
		c.Posts.Edit = c.Posts.Most
	}
	return c, nil
}

// problem is something wrong at a place in a file.
type problem struct {
	at   jsontext.Pointer
	what string
}

func (c *Config) problems() (found []problem) {
	wrong := func(format string, args ...any) func(names ...string) {
		return func(names ...string) {
			var p jsontext.Pointer
			for _, n := range names {
				p = p.AppendToken(n)
			}
			found = append(found, problem{p, fmt.Sprintf(format, args...)})
		}
	}
	within := func(v, least, most int, names ...string) {
		if v < least || v > most {
			wrong("want %d to %d", least, most)(names...)
		}
	}
	for _, u := range []struct{ name, url string }{{"post", c.URLs.Post}, {"find", c.URLs.Find}, {"edit", c.URLs.Edit}, {"history", c.URLs.History}} {
		if u.url == "" && u.name != "post" {
			continue
		}
		if why := badURL(u.url); why != "" {
			wrong("%s", why)("urls", u.name)
		}
	}
	if n := len(c.Secrets); n < 1 || n > maxSecrets {
		wrong(`want 1 to %d references to credentials, such as ["file:%s"]; the secret itself is never in this file`, maxSecrets, c.Name)("secrets")
	}
	for i, ref := range c.Secrets {
		if !ref.Valid() {
			wrong("want file:NAME, env:NAME or systemd:NAME; the secret itself is never in this file")("secrets", fmt.Sprint(i))
		}
	}
	if !platformID(c.Self) {
		wrong("want our own user's id on the platform, which the bridge knows: without it our own posts could be read as orders")("self")
	}
	if !slices.Contains([]threads.Unit{threads.Bytes, threads.Runes, threads.UTF16}, c.Posts.Unit) {
		wrong("want bytes, runes or utf16")("posts", "unit")
	}
	within(c.Posts.Most, 500, 1<<20, "posts", "most")
	if c.Posts.Edit != 0 {
		within(c.Posts.Edit, 500, 1<<20, "posts", "edit")
	}
	within(c.Posts.Parts, 1, 100, "posts", "parts")
	within(c.Poll, minPoll, maxPoll, "poll")
	within(c.Timeout, 1, maxTimeout, "timeout")
	if c.Unescape != Plain && c.Unescape != HTML {
		wrong("want %s or %s", Plain, HTML)("unescape")
	}
	for word, kind := range c.Kinds {
		if !slices.Contains([]threads.InboundKind{threads.Message, threads.Edit, threads.System}, threads.InboundKind(kind)) {
			wrong("want message, edit or system")("kinds", word)
		}
	}
	found = append(found, c.names()...)
	return append(found, c.Inbound.problems()...)
}

// names finds the names that stand for nothing or for two things.
func (c *Config) names() (found []problem) {
	wrong := func(what string, names ...string) {
		var p jsontext.Pointer
		for _, n := range names {
			p = p.AppendToken(n)
		}
		found = append(found, problem{p, what})
	}
	if len(c.Rooms) == 0 {
		wrong("want the rooms that are read and written to, by the platform's id", "rooms")
	}
	for id := range c.Rooms {
		if !platformID(id) {
			wrong("want the platform's id of a room, printable and at most 256 bytes", "rooms", id)
		}
	}
	owner := map[ops.IdentityID]string{ops.IdentityID(c.Name): "the adaptor"}
	claim := func(user string, id ops.IdentityID, names ...string) {
		switch other, taken := owner[id]; {
		case !platformID(user):
			wrong("want the platform's id of a user, printable and at most 256 bytes", names...)
		case user == c.Self:
			wrong("this is the id that self has; our own user is nobody else", names...)
		case !id.Valid():
			wrong("want an identity of this gateway: a-z, 0-9, then also . _ -, at most 64 bytes", names...)
		case taken:
			wrong(fmt.Sprintf("the identity %s is %s already; one identity is one user", id, other), names...)
		}
		owner[id] = user
	}
	for _, user := range sorted(c.People) {
		claim(user, c.People[user], "people", user)
	}
	for _, user := range sorted(c.Agents) {
		a := c.Agents[user]
		claim(user, a.Identity, "agents", user)
		if _, both := c.People[user]; both {
			wrong("this user is among people too; it is one or the other", "agents", user)
		}
		if _, ok := c.Rooms[a.Home]; a.Home != "" && !ok {
			wrong(fmt.Sprintf("there is no room %q in rooms; want an id of a room, not its name", a.Home), "agents", user, "home")
		}
	}
	return found
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// fieldPath is a path that means the same whatever the payload holds: no wildcards, no
// queries and no modifiers, which could cost more than one look at the payload.
var fieldPath = regexp.MustCompile(`^(?:[A-Za-z0-9_$:/-]|\\\.)+(?:\.(?:#|(?:[A-Za-z0-9_$:/-]|\\\.)+))*$`)

func (f *Fields) problems() (found []problem) {
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		name, path := jsonName(v.Type().Field(i)), v.Field(i).String()
		p := jsontext.Pointer("/inbound").AppendToken(name)
		switch {
		case path == "" && slices.Contains([]string{"room", "user", "text"}, name):
			found = append(found, problem{p, "no message can be read without it"})
		case path != "" && (len(path) > 200 || !fieldPath.MatchString(path)):
			found = append(found, problem{p, `want names joined by dots, such as event.text, at most 200 bytes`})
		case strings.Contains(path, "#") && name != "mentions":
			found = append(found, problem{p, "# stands for many values; only mentions may be many"})
		}
	}
	return found
}

// badURL says what is wrong with the URL of a bridge, "" if nothing is.
func badURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case s == "":
		return "want the URL that posts go to"
	case err != nil || u.Host == "" || u.Opaque != "" || len(s) > 2048:
		return "want a URL such as https://bridge.example/post"
	case u.User != nil:
		return "want no user or password in it: whoever reads this file would have them; the signature proves who we are"
	case u.Fragment != "":
		return "want no # in it"
	case u.Scheme == "https", u.Scheme == "http" && loopback(u.Hostname()):
		return ""
	}
	return "want https, or http on a loopback address: posts would be readable on the way"
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// platformID reports whether s can be an id of a platform.
func platformID(s string) bool {
	return s != "" && len(s) <= maxID && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) })
}

// readError is what the JSON decoder found, in words that say what would be right and
// repeat no value, which may be a secret that has strayed.
func readError(file string, data []byte, err error) *ops.FileError {
	e := &ops.FileError{File: file, Line: 1, Message: "want one JSON object"}
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		e.Line = lineOf(data, syntax.ByteOffset)
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			e.Message = fmt.Sprintf("the name %q occurs twice", syntax.JSONPointer.LastToken())
		case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
			e.Message = "it ends too early; want one JSON object"
		default:
			e.Message = "this is not JSON: " + syntax.Err.Error()
		}
	case errors.As(err, &meaning):
		p := meaning.JSONPointer
		e.Line = lineAt(data, p)
		switch t := memberType(p); {
		case errors.Is(err, json.ErrUnknownName):
			e.Message = fmt.Sprintf("the name %q is unknown; known here are %s", p.LastToken(), strings.Join(known(memberType(p.Parent())), ", "))
		case p == "":
		case t != nil:
			e.Message = fmt.Sprintf("%s: want %s", strings.TrimPrefix(string(p), "/"), kindWord(t))
		default:
			e.Message = fmt.Sprintf("%s: a value of another kind belongs here", strings.TrimPrefix(string(p), "/"))
		}
	}
	return e
}

// memberType is the Go type of the member that p names in a Config, nil if there is none.
func memberType(p jsontext.Pointer) reflect.Type {
	t := reflect.TypeFor[Config]()
	for name := range p.Tokens() {
		switch t.Kind() {
		case reflect.Map, reflect.Slice:
			t = t.Elem()
		case reflect.Struct:
			i := slices.Index(known(t), name)
			if i < 0 {
				return nil
			}
			for f := range fields(t) {
				if jsonName(f) == name {
					t = f.Type
					break
				}
			}
		default:
			return nil
		}
	}
	return t
}

func fields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); jsonName(f) != "-" && !yield(f) {
				return
			}
		}
	}
}

func jsonName(f reflect.StructField) string { return f.Tag.Get("json") }

func known(t reflect.Type) (names []string) {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for f := range fields(t) {
		names = append(names, jsonName(f))
	}
	return names
}

func kindWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// lineAt is the line on which the value stands that p names, or the nearest one above it
// that is there.
func lineAt(data []byte, p jsontext.Pointer) int {
	d := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	best, line := -1, 1
	for {
		if _, err := d.ReadToken(); err != nil {
			return line
		}
		here := d.StackPointer()
		if len(here) > best && (here == p || here == "" || here.Contains(p)) {
			best, line = len(here), lineOf(data, d.InputOffset())
			if here == p {
				return line
			}
		}
	}
}

// lineOf is the line of a byte, from 1.
func lineOf(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
}

// wait is the time of one request to the bridge.
func (c *Config) wait() time.Duration { return time.Duration(c.Timeout) * time.Second }

// Members returns the members of a file as docs/adaptors.md lists them; those of a payload
// are inbound.FIELD.
func Members() (names []string) {
	for f := range fields(reflect.TypeFor[Config]()) {
		switch name := jsonName(f); {
		case name == "inbound":
			names = append(names, name+".FIELD")
		case f.Type.Kind() == reflect.Struct:
			for _, inner := range known(f.Type) {
				names = append(names, name+"."+inner)
			}
		default:
			names = append(names, name)
		}
	}
	return names
}

// PayloadFields returns the fields that are read of a payload.
func PayloadFields() []string { return known(reflect.TypeFor[Fields]()) }
