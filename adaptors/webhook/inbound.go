package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"inband/ops"
	"inband/service/threads"
)

// MaxBody bounds an event, in bytes.
const MaxBody = 1 << 20

// maxMentions bounds the mentions that are read of a message.
const maxMentions = 100

// Deliver takes one event of the bridge: its headers, and its body as it was sent. When it
// returns without an error, what the event says is durable. An error is an ops.Fault:
// Unauthenticated when the signature is not right, BadRequest for a payload that cannot
// be read, Unavailable while the adaptor is not started; then nothing was taken.
//
// An event that is delivered again, under whatever event id, is a duplicate of the
// message that it is about.
func (a *Adaptor) Deliver(ctx context.Context, h http.Header, body []byte) (threads.Heard, error) {
	if fault := Verify(*a.secrets.Load(), h, body, a.now()); fault != nil {
		a.state.refused.Add(1)
		return threads.Heard{}, fault
	}
	if len(body) > MaxBody {
		return threads.Heard{}, ops.Faultf(ops.TooLarge, "the body is longer than %d bytes", MaxBody).With("max", MaxBody)
	}
	into := a.taker()
	if into == nil {
		return threads.Heard{}, ops.Faultf(ops.Unavailable, "the adaptor %s is not started; the gateway's log says why", a.cfg.Name)
	}
	if fault := checkPayload(body); fault != nil {
		return threads.Heard{}, fault
	}
	a.state.in.Store(ptr(a.now()))
	if a.gap(body) {
		a.lookAgain()
		return ignored("a gap: the history is being read"), nil
	}
	in, heard, fault := a.inbound(body)
	if fault != nil {
		return threads.Heard{}, fault
	}
	if heard != nil {
		return *heard, nil
	}
	return a.receive(ctx, into, in)
}

func ignored(reason string) threads.Heard { return threads.Heard{Status: "ignored", Reason: reason} }

// checkPayload admits one JSON object in valid UTF-8 without a name that occurs twice,
// of which gjson would take the first and the bridge may mean the last.
func checkPayload(body []byte) *ops.Fault {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if k := d.PeekKind(); k != '{' && k != 0 {
		return ops.Faultf(ops.BadRequest, "the body: want one JSON object")
	}
	err := d.SkipValue()
	if err == nil {
		if _, err = d.ReadToken(); err == io.EOF {
			return nil
		}
		return ops.Faultf(ops.BadRequest, "the body (byte %d): there is something behind its end", d.InputOffset())
	}
	return ops.Faultf(ops.BadRequest, "the body (byte %d): want one JSON object in valid UTF-8, nested at most 10000 deep, without a name that occurs twice", d.InputOffset())
}

func (a *Adaptor) gap(body []byte) bool {
	return a.cfg.Inbound.Gap != "" && a.cfg.URLs.History != "" && gjson.GetBytes(body, a.cfg.Inbound.Gap).Type == gjson.True
}

// inbound reads a payload that is known to be valid JSON. What is no message of a room
// that is configured is answered at once.
func (a *Adaptor) inbound(body []byte) (in threads.Inbound, heard *threads.Heard, fault *ops.Fault) {
	f := a.cfg.Inbound
	r := reader{body: body}
	kind, known := a.kind(r.text("kind", f.Kind))
	in = threads.Inbound{
		Adaptor: a.cfg.Name, Kind: kind,
		Workspace: r.id("workspace", f.Workspace), Room: r.id("room", f.Room), Message: r.id("message", f.Message),
		User: r.id("user", f.User), Name: clip(r.text("name", f.Name), maxID),
		Bot: truthy(r.get(f.Bot)), Text: r.text("text", f.Text), Beside: r.text("beside", f.Beside),
	}
	root := r.id("thread", f.Thread)
	written := r.get(f.WrittenAt)
	if kind == threads.System && (!known || r.fault != nil || in.Room == "" || in.Message == "") {
		return in, ptr(ignored("not a message")), nil
	}
	switch {
	case r.fault != nil:
		return in, nil, r.fault
	case in.Room == "":
		return in, nil, absent("room", f.Room)
	}
	if _, ok := a.cfg.Rooms[in.Room]; !ok {
		return in, ptr(ignored("the room is not one of this adaptor's")), nil
	}
	switch {
	case in.User == "" && kind != threads.System:
		return in, nil, absent("user", f.User)
	case !r.has(f.Text) && kind == threads.Message:
		return in, nil, absent("text", f.Text)
	case strings.ContainsRune(in.Text, 0) || strings.ContainsRune(in.Beside, 0):
		return in, nil, ops.Faultf(ops.BadRequest, "text: it holds U+0000, which no text has")
	}
	if a.cfg.Unescape == HTML {
		if shown := labelled(in.Text); shown != unescape(in.Text) {
			in.Beside = shown + "\n" + in.Beside
		}
		in.Text = unescape(in.Text)
	}
	var err error
	if in.WrittenAt, err = moment(written); err != nil {
		return in, nil, ops.Faultf(ops.BadRequest, "written_at: %v", err)
	}
	in.Self = in.User == a.cfg.Self
	in.Mentions = mentions(r.get(f.Mentions))
	in.Address = address("#"+in.Room, root)
	switch {
	case in.Message == "":
		in.Message = contentID(in, root, written.Raw)
	case root == "":
		in.Address = address("#"+in.Room, in.Message)
	}
	return in, nil, nil
}

// kind is what an event is about, by the configured words and our own. What nobody knows
// is not read.
func (a *Adaptor) kind(word string) (kind threads.InboundKind, known bool) {
	if k, ok := a.cfg.Kinds[word]; ok {
		return threads.InboundKind(k), true
	}
	switch k := threads.InboundKind(word); k {
	case "":
		return threads.Message, true
	case threads.Message, threads.Edit, threads.System:
		return k, true
	}
	return threads.System, false
}

func absent(what, path string) *ops.Fault {
	return ops.Faultf(ops.BadRequest, "the payload has no %s at %s", what, path)
}

// reader reads fields of a payload and keeps what is wrong with the first bad one.
type reader struct {
	body  []byte
	fault *ops.Fault
}

func (r *reader) get(path string) gjson.Result {
	if path == "" {
		return gjson.Result{}
	}
	return gjson.GetBytes(r.body, path)
}

func (r *reader) has(path string) bool {
	v := r.get(path)
	return v.Exists() && v.Type != gjson.Null
}

// text is a string, "" if it is absent or null.
func (r *reader) text(what, path string) string {
	switch v := r.get(path); v.Type {
	case gjson.String:
		return v.Str
	case gjson.Null:
	default:
		r.wrong("%s: want a string at %s", what, path)
	}
	return ""
}

// id is an id: a string, or a number as it is written.
func (r *reader) id(what, path string) string {
	v := r.get(path)
	id := v.Str
	switch v.Type {
	case gjson.String:
		if id == "" {
			return ""
		}
	case gjson.Number:
		id = v.Raw
	case gjson.Null:
		return ""
	default:
		r.wrong("%s: want an id at %s, a string or a number", what, path)
		return ""
	}
	if !platformID(id) {
		r.wrong("%s: want a printable id of at most %d bytes at %s", what, maxID, path)
	}
	return id
}

func (r *reader) wrong(format string, args ...any) {
	if r.fault == nil {
		r.fault = ops.Faultf(ops.BadRequest, format, args...)
	}
}

// truthy reports whether a flag is set: true, a number but 0, a string or a list that is
// not empty, any object.
func truthy(v gjson.Result) bool {
	switch v.Type {
	case gjson.True:
		return true
	case gjson.Number:
		return v.Num != 0
	case gjson.String:
		return v.Str != ""
	case gjson.JSON:
		return v.IsObject() || len(v.Array()) > 0
	}
	return false
}

func mentions(v gjson.Result) (users []string) {
	v.ForEach(func(_, one gjson.Result) bool {
		id := one.Str
		if one.Type == gjson.Number {
			id = one.Raw
		}
		if platformID(id) {
			users = append(users, id)
		}
		return len(users) < maxMentions
	})
	return users
}

// clip is s with at most n bytes, cut between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// milliseconds is from where on a number of seconds would be in the year 5138, and is one
// of milliseconds.
const milliseconds = 1e11

// moment reads when a message was written, the zero time if the platform does not say.
func moment(v gjson.Result) (time.Time, error) {
	wrong := fmt.Errorf("want RFC 3339, or seconds or milliseconds since 1970")
	n := v.Num
	switch v.Type {
	case gjson.Null:
		return time.Time{}, nil
	case gjson.String:
		if v.Str == "" {
			return time.Time{}, nil
		}
		if t, err := time.Parse(time.RFC3339Nano, v.Str); err == nil {
			n = float64(t.UnixMilli())
			if n < 0 || n > 253402300799999 {
				return time.Time{}, wrong
			}
			return t.UTC(), nil
		}
		var err error
		if n, err = strconv.ParseFloat(v.Str, 64); err != nil {
			return time.Time{}, wrong
		}
	case gjson.Number:
	default:
		return time.Time{}, wrong
	}
	if n < milliseconds {
		n *= 1000
	}
	if !(n >= 0 && n <= 253402300799999) { // the end of the year 9999; not a number is neither
		return time.Time{}, wrong
	}
	return time.UnixMilli(int64(math.Round(n))).UTC(), nil
}

// noID begins the ids that we give to messages of platforms that give none.
const noID = "sha256:"

// contentID stands for a message without an id: its content is all that there is.
func contentID(in threads.Inbound, root, written string) string {
	h := sha256.New()
	for _, s := range []string{in.Workspace, in.Room, root, in.User, in.Text, written} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return noID + hex.EncodeToString(h.Sum(nil))
}

// sameWithin is how long the same words of the same user are the same message, where the
// platform says neither its id nor when it was written. Senders that get no answer
// repeat themselves for about as long.
const sameWithin = 15 * time.Minute

// receive hands in over. A message without id and time is the same as one of the same
// content in this quarter of an hour or the one before, so a repetition is known for 15
// to 30 minutes, also by the next process.
func (a *Adaptor) receive(ctx context.Context, into Intake, in threads.Inbound) (threads.Heard, error) {
	if strings.HasPrefix(in.Message, noID) && in.WrittenAt.IsZero() {
		a.unnamed.Lock() // or two of them could be each other's first
		defer a.unnamed.Unlock()
		quarter := a.now().Unix() / int64(sameWithin/time.Second)
		content := in.Message
		in.Message = fmt.Sprintf("%s@%d", content, quarter-1)
		known, err := into.Known(ctx, in)
		if err != nil {
			return threads.Heard{}, err
		}
		if !known {
			in.Message = fmt.Sprintf("%s@%d", content, quarter)
		}
	}
	return into.Receive(ctx, in)
}

func ptr[T any](v T) *T { return &v }
