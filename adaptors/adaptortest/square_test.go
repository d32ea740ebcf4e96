package adaptortest

import (
	"context"
	"errors"
	"fmt"
	"html"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/ops"
	"inband/service/threads"
)

// square is a platform in memory, on which the suite itself is tried. Its adaptor does what
// docs of the contract ask for and no more.
type square struct {
	setting Setting
	limits  threads.PostLimits
	finds   bool

	mu       sync.Mutex
	messages []*squared
	told     int // of messages, by number, up to which the adaptor of now has been told
	severed  bool
	faults   []Fault
	seen     []Request
	intake   Intake
	ready    chan struct{} // closed while an adaptor runs
	wake     chan struct{}
}

type squared struct {
	Standing
	room, name, key string
	kind            Kind
	at              time.Time
	gone            bool
	mark            string
}

type squares struct {
	limits threads.PostLimits
	finds  bool
}

func (s squares) Start(t *testing.T, setting Setting) Platform {
	return &square{setting: setting, limits: s.limits, finds: s.finds, wake: make(chan struct{}, 1)}
}

func (s *square) Adaptor(*testing.T) Adaptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intake, s.ready = nil, make(chan struct{})
	return &clerkOf{s}
}

// into is where the adaptor of now puts things, once it runs.
func (s *square) into() Intake {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	<-ready
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.intake
}

// clerkOf is the adaptor of a square.
type clerkOf struct{ *square }

func (c *clerkOf) Chat() threads.Chat {
	if c.finds {
		return finding{c}
	}
	return c
}

type finding struct{ *clerkOf }

func (f finding) Find(_ context.Context, address, mark string) (threads.Posted, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	room, root, _ := strings.Cut(address, "/")
	if k := f.fault("find", room); k != nil {
		return threads.Posted{}, false, errors.New("not now")
	}
	for _, m := range f.messages {
		if m.room == room && m.mark == mark && (root == "" || m.Root == root) {
			return threads.Posted{ID: m.ID, Address: room + "/" + m.Root}, true, nil
		}
	}
	return threads.Posted{}, false, nil
}

func (f finding) Edit(_ context.Context, address, id string, o threads.Outgoing) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	room, _, _ := strings.Cut(address, "/")
	f.seen = append(f.seen, Request{Of: "edit", Room: room, Mark: o.Mark, At: time.Now()})
	m := f.message(id)
	if f.fault("edit", room) != nil || m == nil || !m.Own {
		return &threads.PostError{Kind: threads.RefusedPost, Err: errors.New("no more edits")}
	}
	m.Text, m.mark = strings.TrimSuffix(o.Text, "\n")+"\n"+o.Mark, o.Mark
	m.Edits++
	return nil
}

func (c *clerkOf) Name() string               { return "square" }
func (c *clerkOf) Limits() threads.PostLimits { return c.limits }
func (c *clerkOf) Open(target string) (string, error) {
	if room, ok := strings.CutPrefix(target, "#"); ok && slices.Contains(c.setting.Rooms, room) {
		return room, nil
	}
	return "", ops.Faultf(ops.NotFound, "there is no %q", target)
}

func (c *clerkOf) Who(user string) (ops.IdentityID, bool) {
	for _, p := range c.setting.People {
		if p.User == user {
			return p.Is.ID, true
		}
	}
	return "", false
}

func (c *clerkOf) Home(id ops.IdentityID) (threads.Home, bool) {
	for _, p := range c.setting.People {
		if p.Is.ID == id {
			return threads.Home{Target: "#" + p.Home, User: p.User}, true
		}
	}
	return threads.Home{}, false
}

// fault takes the fault that a request meets, nil for none.
func (s *square) fault(of, room string) *Fault {
	for i := range s.faults {
		f := &s.faults[i]
		if f.Of == "" {
			f.Of = "post"
		}
		if f.Of != of || f.Room != "" && f.Room != room || f.Times < 0 {
			continue
		}
		got := *f
		if f.Times == 1 {
			f.Times = -1
		} else if f.Times > 1 {
			f.Times--
		}
		return &got
	}
	return nil
}

func (c *clerkOf) Post(_ context.Context, address string, o threads.Outgoing) (threads.Posted, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room, root, _ := strings.Cut(address, "/")
	text := strings.TrimSuffix(o.Text, "\n") + "\n" + o.Mark
	r := Request{Of: "post", Room: room, Root: root, Mark: o.Mark, Key: o.Key, Status: 200, At: time.Now(), Units: size(c.limits.Unit, text)}
	defer func() { c.seen = append(c.seen, r) }()
	refuse := func(status int, kind threads.Failure, after time.Duration) (threads.Posted, error) {
		r.Status = status
		return threads.Posted{}, &threads.PostError{Kind: kind, After: after, Err: fmt.Errorf("status %d", status)}
	}
	if c.severed {
		return refuse(0, threads.Unsent, 0)
	}
	f := c.fault("post", room)
	if f != nil {
		switch f.Kind {
		case Error:
			return refuse(503, threads.Unsent, 0)
		case TooMany:
			return refuse(429, threads.RateLimit, f.After)
		case Inside:
			return refuse(200, threads.RateLimit, 0)
		case Refuse:
			return refuse(400, threads.RefusedPost, 0)
		case Locked:
			return refuse(403, threads.Closed, 0)
		case Gone:
			return refuse(404, threads.RootGone, 0)
		}
	}
	if root != "" {
		if m := c.message(root); m == nil || m.gone || m.Root != root {
			return refuse(404, threads.RootGone, 0)
		}
	}
	if c.limits.Keys {
		for _, m := range c.messages {
			if m.key == o.Key {
				return threads.Posted{ID: m.ID, Address: room + "/" + m.Root}, nil
			}
		}
	}
	m := c.add(room, root, &squared{Standing: Standing{Own: true, Text: text, File: o.File}, mark: o.Mark, key: o.Key, kind: Own, at: time.Now()})
	if o.Mention != "" {
		m.Notified = []string{o.Mention}
	}
	if f != nil {
		return refuse(0, threads.Unsure, 0)
	}
	return threads.Posted{ID: m.ID, Address: room + "/" + m.Root}, nil
}

// add puts m at the end.
func (s *square) add(room, root string, m *squared) *squared {
	m.ID, m.room = fmt.Sprintf("m%d", len(s.messages)+1), room
	if m.Root = root; root == "" {
		m.Root = m.ID
	}
	s.messages = append(s.messages, m)
	return m
}

func (s *square) message(id string) *squared {
	for _, m := range s.messages {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// Run tells what there is, then what comes. Its cursor is a number of messages; with none
// or one that means nothing, what is older than the start is history.
func (c *clerkOf) Run(ctx context.Context, intake Intake) error {
	value, ok, err := intake.Cursor(ctx, "square")
	if err != nil {
		return err
	}
	c.mu.Lock()
	next, history := 0, 0
	if _, err := fmt.Sscanf(value, "c%d", &next); !ok || err != nil {
		next, history = 0, len(c.messages)
	}
	c.told = next
	caughtUp := len(c.messages)
	c.intake = intake
	close(c.ready)
	c.mu.Unlock()
	for {
		c.mu.Lock()
		var in *threads.Inbound
		if n := c.told; !c.severed && n < len(c.messages) {
			got := c.inbound(c.messages[n], threads.Message)
			got.CatchUp, got.History = n < caughtUp, n < history
			in = &got
		}
		c.mu.Unlock()
		if in != nil {
			if _, err := intake.Receive(ctx, *in); err != nil && ctx.Err() == nil {
				return err
			}
			c.mu.Lock()
			c.told++
			value := fmt.Sprintf("c%d", c.told)
			c.mu.Unlock()
			if err := intake.SetCursor(ctx, "square", value); err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *square) inbound(m *squared, kind threads.InboundKind) threads.Inbound {
	if m.kind == Notice {
		kind = threads.System
	}
	return threads.Inbound{Adaptor: "square", Room: m.room, Message: m.ID, Address: m.room + "/" + m.Root, Kind: kind,
		User: m.User, Name: m.name, Self: m.Own, Bot: m.kind == Program, Text: html.UnescapeString(m.Text), WrittenAt: m.at}
}

func (s *square) look() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *square) Say(t *testing.T, m Message) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	root := ""
	if m.Under != "" {
		root = s.message(m.Under).Root
	}
	at := m.At
	if at.IsZero() {
		at = time.Now()
	}
	got := s.add(m.Room, root, &squared{Standing: Standing{User: m.User, Own: m.Kind == Own, Text: html.EscapeString(m.Text)}, name: m.Name, kind: m.Kind, at: at})
	s.look()
	return got.ID
}

func (s *square) Change(t *testing.T, id, text string, preview bool) {
	s.mu.Lock()
	m := s.message(id)
	if !preview {
		m.Text = html.EscapeString(text)
	}
	in := s.inbound(m, threads.Edit)
	s.mu.Unlock()
	if _, err := s.into().Receive(context.Background(), in); err != nil {
		t.Errorf("an edit: %v", err)
	}
}

func (s *square) Remove(_ *testing.T, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		m.gone = m.gone || m.Root == id
	}
}

func (s *square) Tell(t *testing.T, atOnce bool, ids ...string) {
	var tellers sync.WaitGroup
	for _, id := range ids {
		s.mu.Lock()
		in := s.inbound(s.message(id), threads.Message)
		s.mu.Unlock()
		intake := s.into()
		tell := func() {
			if _, err := intake.Receive(context.Background(), in); err != nil {
				t.Errorf("told again: %v", err)
			}
		}
		if atOnce {
			tellers.Go(tell)
		} else {
			tell()
		}
	}
	tellers.Wait()
}

func (s *square) Sever(*testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.severed = true
}

func (s *square) Mend(*testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.severed = false
	s.look()
}

func (s *square) Room(_ *testing.T, room string) (list []Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.room == room && !m.gone && (m.mark != "" || m.kind != Own) {
			list = append(list, m.Standing)
		}
	}
	return list
}

func (s *square) Fail(_ *testing.T, f ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = slices.Clone(f)
}

func (s *square) Seen(*testing.T) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// The suite on a platform of each kind.
func TestSuite(t *testing.T) {
	for name, s := range map[string]squares{
		"read back, runes": {threads.PostLimits{Unit: threads.Runes, Post: 500}, true},
		"keys, utf16":      {threads.PostLimits{Unit: threads.UTF16, Post: 4096, Keys: true}, false},
		"neither, bytes":   {threads.PostLimits{Unit: threads.Bytes, Post: 1000, Parts: 4}, false},
		"files":            {threads.PostLimits{Unit: threads.Runes, Post: 4000, Edit: 1000, Files: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Run(t, s)
		})
	}
}
