package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
)

type config struct {
	store, self, events, ca string
	secrets                 []string
	keys                    bool
}

// fault is how requests of the gateway fail.
type fault struct {
	Kind  string `json:"kind"`
	Of    string `json:"of"`
	Room  string `json:"room"`
	Times int    `json:"times"` // 0: for ever
	After int    `json:"after"` // seconds
}

// seen is a request of the gateway.
type seen struct {
	Of     string    `json:"of"`
	Room   string    `json:"room"`
	Root   string    `json:"root"`
	Mark   string    `json:"mark"`
	Key    string    `json:"key"`
	Status int       `json:"status"`
	Units  int       `json:"units"`
	At     time.Time `json:"at"`
}

type bridge struct {
	config
	store   *store
	client  *http.Client
	address string // kept over a restart of the server

	mu     sync.Mutex
	server *http.Server // nil while the connection is cut
	ended  chan struct{}
	faults []fault
	met    map[string]int // how often requests have met each kind of fault
	log    []seen
	mood   mood
	held   []message // events that are to be sent in another order
	gap    bool      // the gateway has missed an event
	epoch  int       // cursors of another one are unknown
}

// mood is what is done to events.
type mood struct {
	Drop      int `json:"drop"`      // the next ones are lost
	Duplicate int `json:"duplicate"` // so often each is sent again, with another event id
	Delay     int `json:"delay"`     // milliseconds before each
	Reorder   int `json:"reorder"`   // so many are collected and sent in the other order
}

func open(c config) (*bridge, error) {
	s, err := openStore(c.store)
	if err != nil {
		return nil, err
	}
	b := &bridge{config: c, store: s, met: make(map[string]int), client: &http.Client{Timeout: 15 * time.Second}}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", c.ca)
		}
		b.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	}
	return b, nil
}

// serve answers the gateway at an address.
func (b *bridge) serve(address string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		return nil
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	b.address = ln.Addr().String()
	mux := http.NewServeMux()
	for _, of := range []string{"post", "find", "edit", "history"} {
		mux.HandleFunc("POST /"+of, func(w http.ResponseWriter, r *http.Request) { b.answer(w, r, of) })
	}
	b.server, b.ended = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, make(chan struct{})
	go func(s *http.Server, ended chan struct{}) { s.Serve(ln); close(ended) }(b.server, b.ended)
	return nil
}

// sever cuts every connection of the gateway.
func (b *bridge) sever() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		b.server.Close()
		<-b.ended
		b.server = nil
	}
}

func (b *bridge) severed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.server == nil
}

// sign is the signature of a request, by the first secret unless another is given.
func sign(secret, id, timestamp string, body []byte) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(id + "." + timestamp + "."))
	m.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
}

func (b *bridge) verify(h http.Header, body []byte) error {
	n, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(n, 0)).Abs() > 5*time.Minute {
		return errors.New("old")
	}
	for _, s := range strings.Fields(h.Get("webhook-signature")) {
		for _, secret := range b.secrets {
			if hmac.Equal([]byte(s), []byte(sign(secret, h.Get("webhook-id"), h.Get("webhook-timestamp"), body))) {
				return nil
			}
		}
	}
	return errors.New("wrong")
}

// order is what the gateway asks for.
type order struct {
	Room, User, Thread, ID, Mark, Key, Text, Mention, File string
	Unfurl                                                 *bool
	Cursor                                                 string
	Limit                                                  int
}

type result = map[string]any

// answer does what the gateway asks for, or fails in the way that it is told to.
func (b *bridge) answer(w http.ResponseWriter, r *http.Request, of string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
	var o order
	if err == nil {
		err = b.verify(r.Header, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &o)
	}
	if err != nil {
		b.say(w, http.StatusUnauthorized, result{"ok": false, "error": err.Error()})
		return
	}
	if o.Room == "" && o.User != "" {
		o.Room = "D" + o.User // the room of direct messages
	}
	s := seen{Of: of, Room: o.Room, Root: o.Thread, Mark: o.Mark, Key: o.Key, Units: len(utf16.Encode([]rune(o.Text))), At: time.Now()}
	note := func(status int) {
		s.Status = status
		if of != "history" {
			b.mu.Lock()
			b.log = append(b.log, s)
			b.mu.Unlock()
		}
	}
	refuse := func(status int, word string) {
		note(status)
		b.say(w, status, result{"ok": false, "error": word})
	}
	f := b.fault(of, o.Room)
	switch f.Kind {
	case "error", "no_read":
		refuse(http.StatusServiceUnavailable, "down")
		return
	case "too_many":
		w.Header().Set("Retry-After", strconv.Itoa(f.After))
		refuse(http.StatusTooManyRequests, "rate_limited")
		return
	case "inside":
		note(http.StatusOK)
		b.say(w, http.StatusOK, result{"ok": false, "error": "ratelimited", "retry_after": f.After})
		return
	case "refuse":
		refuse(http.StatusBadRequest, "cannot_parse")
		return
	case "root_gone":
		refuse(http.StatusNotFound, "root_gone")
		return
	case "closed":
		refuse(http.StatusLocked, "closed")
		return
	case "edit_limit":
		refuse(http.StatusOK, "edit_limit")
		return
	}
	var status int
	var got result
	switch of {
	case "post":
		status, got = b.post(o)
	case "find":
		status, got = b.find(o)
	case "edit":
		status, got = b.edit(o)
	default:
		status, got = b.history(o)
	}
	switch f.Kind {
	case "drop":
		note(0)
		panic(http.ErrAbortHandler)
	case "cut":
		note(0)
		w.Header().Set("Content-Length", "1000")
		w.Write([]byte(`{"ok":tr`))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case "hang":
		note(0)
		<-r.Context().Done()
		return
	}
	note(status)
	b.say(w, status, got)
}

func (b *bridge) say(w http.ResponseWriter, status int, v result) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

// fault takes the fault that a request meets.
func (b *bridge) fault(of, room string) fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, f := range b.faults {
		if cmp.Or(f.Of, "post") != of || f.Room != "" && f.Room != room {
			continue
		}
		if f.Times == 1 {
			b.faults = append(b.faults[:i:i], b.faults[i+1:]...)
		} else if f.Times > 1 {
			b.faults[i].Times--
		}
		b.met[f.Kind]++
		return f
	}
	return fault{}
}

// thread finds the root that an order names.
func (b *bridge) thread(o order) (status int, got result) {
	if o.Thread == "" {
		return 0, nil
	}
	root, ok := b.store.get(o.Thread)
	switch {
	case !ok:
		return http.StatusNotFound, result{"ok": false, "error": "root_gone"}
	case root.Root != root.ID || root.Room != o.Room:
		return http.StatusBadRequest, result{"ok": false, "error": "not_a_root"}
	}
	return 0, nil
}

func (b *bridge) post(o order) (int, result) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if status, got := b.thread(o); status != 0 {
		return status, got
	}
	if b.keys && o.Key != "" {
		for _, m := range b.store.all {
			if m.Key != o.Key {
				continue
			}
			if m.Text != o.Text || m.Room != o.Room || o.Thread != "" && m.Root != o.Thread {
				return http.StatusUnprocessableEntity, result{"ok": false, "error": "key_reused", "was": digest(m.Text), "is": digest(o.Text)}
			}
			return http.StatusOK, result{"ok": true, "id": m.ID, "thread": m.Root, "room": m.Room}
		}
	}
	m := message{Room: o.Room, Root: o.Thread, User: b.self, Own: true, Text: o.Text, File: o.File, Key: o.Key, Mark: o.Mark, At: time.Now().UTC()}
	if o.Mention != "" {
		m.Mention = []string{o.Mention}
	}
	if o.Unfurl == nil || *o.Unfurl {
		m.Fetches = strings.Count(o.Text, "http://") + strings.Count(o.Text, "https://")
	}
	m, err := b.store.add(m)
	if err != nil {
		return http.StatusInternalServerError, result{"ok": false, "error": "internal_error"}
	}
	return http.StatusOK, result{"ok": true, "id": m.ID, "thread": m.Root, "room": m.Room}
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func (b *bridge) find(o order) (int, result) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	for _, m := range b.store.in(o.Room) {
		if m.Own && m.Mark == o.Mark && (o.Thread == "" || m.Root == o.Thread) {
			return http.StatusOK, result{"ok": true, "found": true, "id": m.ID, "thread": m.Root, "room": m.Room}
		}
	}
	return http.StatusOK, result{"ok": true, "found": false}
}

func (b *bridge) edit(o order) (int, result) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	m, ok := b.store.get(o.ID)
	switch {
	case !ok:
		return http.StatusNotFound, result{"ok": false, "error": "message_not_found"}
	case !m.Own:
		return http.StatusForbidden, result{"ok": false, "error": "not_yours"}
	}
	m.Text, m.Edits = o.Text, m.Edits+1
	if err := b.store.write(m); err != nil {
		return http.StatusInternalServerError, result{"ok": false, "error": "internal_error"}
	}
	return http.StatusOK, result{"ok": true, "id": m.ID}
}

func (b *bridge) history(o order) (int, result) {
	b.mu.Lock()
	epoch := b.epoch
	b.mu.Unlock()
	after := 0
	if o.Cursor != "" {
		var of int
		if n, err := fmt.Sscanf(o.Cursor, "%d/%d", &of, &after); n != 2 || err != nil || of != epoch {
			return http.StatusOK, result{"ok": false, "error": "unknown_cursor"}
		}
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	messages, cursor := []result{}, o.Cursor
	for _, m := range b.store.in("") {
		if m.Seq > after && len(messages) < min(max(o.Limit, 1), 10) {
			messages = append(messages, b.payload(m, "message"))
			cursor = fmt.Sprintf("%d/%d", epoch, m.Seq)
		}
	}
	return http.StatusOK, result{"ok": true, "messages": messages, "cursor": cursor, "now": time.Now().UTC().Format(time.RFC3339Nano)}
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// payload is a message as the platform tells of it.
func (b *bridge) payload(m message, kind string) result {
	p := result{"kind": cmp.Or(m.Kind, kind), "room": m.Room, "message": m.ID, "user": m.User, "name": m.Name,
		"text": escape.Replace(m.Text), "written_at": m.At.Format(time.RFC3339Nano), "bot": m.Bot || m.Own}
	if m.Root != m.ID {
		p["thread"] = m.Root
	}
	users := []string{}
	for _, word := range strings.FieldsFunc(m.Text, func(r rune) bool {
		return !(r == '@' || r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z')
	}) {
		if user, ok := strings.CutPrefix(word, "@"); ok && user != "" {
			users = append(users, user)
		}
	}
	p["mentions"] = users
	return p
}

// send tells the gateway of something, once. What it does not take is a gap, of which it
// is told when it can be reached again.
func (b *bridge) send(ctx context.Context, p result) (status int, answer json.RawMessage) {
	if b.severed() {
		b.missed()
		return 0, nil
	}
	body, err := json.Marshal(p)
	if err != nil {
		return 0, nil
	}
	b.mu.Lock()
	to := b.events
	b.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return 0, nil
	}
	id, now := "e-"+rand.Text(), strconv.FormatInt(time.Now().Unix(), 10)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", now)
	r.Header.Set("webhook-signature", sign(b.secrets[0], id, now, body))
	resp, err := b.client.Do(r)
	if err != nil {
		b.missed()
		return 0, nil
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || resp.StatusCode >= 500 {
		b.missed()
	}
	return resp.StatusCode, answer
}

func (b *bridge) missed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gap = true
}

// tell sends messages as events, in the mood that is set.
func (b *bridge) tell(ctx context.Context, kind string, all ...message) (statuses []int) {
	b.mu.Lock()
	mood := b.mood
	if mood.Drop > 0 {
		n := min(mood.Drop, len(all))
		b.mood.Drop -= n
		all = all[n:]
	}
	if mood.Reorder > 0 {
		b.held = append(b.held, all...)
		all = nil
		if len(b.held) >= mood.Reorder {
			for i := len(b.held) - 1; i >= 0; i-- {
				all = append(all, b.held[i])
			}
			b.held = nil
		}
	}
	gap := b.gap
	b.gap = false
	b.mu.Unlock()
	if gap && len(all) > 0 {
		b.send(ctx, result{"gap": true})
	}
	for _, m := range all {
		if mood.Delay > 0 {
			timer := time.NewTimer(time.Duration(mood.Delay) * time.Millisecond)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
		}
		for range 1 + mood.Duplicate {
			status, _ := b.send(ctx, b.payload(m, kind))
			statuses = append(statuses, status)
		}
	}
	return statuses
}
