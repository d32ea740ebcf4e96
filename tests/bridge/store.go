package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// message is what stands in a room, and a line of the file: the last line of an id counts.
type message struct {
	ID      string    `json:"id"`
	Seq     int       `json:"seq"`
	Room    string    `json:"room"`
	Root    string    `json:"root"` // its own id for a root
	User    string    `json:"user"`
	Name    string    `json:"name,omitempty"`
	Kind    string    `json:"kind,omitempty"` // "" or system
	Bot     bool      `json:"bot,omitempty"`
	Own     bool      `json:"own,omitempty"` // the gateway has posted it
	Text    string    `json:"text"`
	File    string    `json:"file,omitempty"`
	Key     string    `json:"key,omitempty"`
	Mark    string    `json:"mark,omitempty"`
	Mention []string  `json:"mention,omitempty"` // whom it has notified
	Fetches int       `json:"fetches,omitempty"`
	Edits   int       `json:"edits,omitempty"`
	Gone    bool      `json:"gone,omitempty"`
	At      time.Time `json:"at"`
}

// store is every message, in a file that is written before anybody is answered.
type store struct {
	mu    sync.Mutex
	file  *os.File
	all   []*message // in the order of Seq
	byID  map[string]*message
	grown chan struct{} // closed by the next write
}

func openStore(path string) (*store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s := &store{file: f, byID: make(map[string]*message), grown: make(chan struct{})}
	good := int64(0)
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // what a kill has cut off was promised to nobody
			break
		}
		if err != nil {
			return nil, err
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		good += int64(len(line))
		s.put(&m)
	}
	if err := f.Truncate(good); err != nil {
		return nil, err
	}
	_, err = f.Seek(good, io.SeekStart)
	return s, err
}

func (s *store) close() error { return s.file.Close() }

// put notes m, which is on its way into the file or out of it.
func (s *store) put(m *message) {
	if old, ok := s.byID[m.ID]; ok {
		*old = *m
		return
	}
	s.byID[m.ID] = m
	s.all = append(s.all, m)
}

// write makes m durable and notes it. The caller holds mu.
func (s *store) write(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := s.file.Write(append(b, '\n')); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.put(&m)
	close(s.grown)
	s.grown = make(chan struct{})
	return nil
}

// add makes a new message of m. The caller holds mu.
func (s *store) add(m message) (message, error) {
	m.Seq = len(s.all) + 1
	m.ID = fmt.Sprintf("m-%d", m.Seq)
	if m.Root == "" {
		m.Root = m.ID
	}
	return m, s.write(m)
}

// get returns a copy of a message that stands there.
func (s *store) get(id string) (message, bool) {
	m, ok := s.byID[id]
	if !ok || m.Gone {
		return message{}, false
	}
	c := *m
	c.Mention = slices.Clone(m.Mention)
	return c, true
}

// in returns copies of what stands in a room, in all rooms for "".
func (s *store) in(room string) []message {
	list := []message{}
	for _, m := range s.all {
		if !m.Gone && (room == "" || m.Room == room) {
			c, _ := s.get(m.ID)
			list = append(list, c)
		}
	}
	return list
}
