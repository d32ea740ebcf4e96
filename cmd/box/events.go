package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// event is one of the gateway's, as /v1/events sends it.
type event struct {
	Position int64           `json:"position"`
	Stream   string          `json:"stream"`
	Version  int64           `json:"version"`
	Kind     string          `json:"kind"`
	At       time.Time       `json:"at"`
	Body     json.RawMessage `json:"body"`
}

// maxEvent bounds a line of an event stream: a body of the journal's largest, escaped
// at its worst.
const maxEvent = 32 << 20 // bytes

// errDone ends a follow from within.
var errDone = errors.New("done")

// follow calls connected once the event stream is open, then each with every event
// after it, until each returns an error. errDone ends it without one. A stream that
// breaks off is opened again after the last event seen, and connected is called
// again; five breaks in a row, each within a minute and without an event, are an
// error. thread narrows the stream to one thread; empty asks for all.
func (c *client) follow(ctx context.Context, thread string, connected func() error, each func(event) error) error {
	return c.followFrom(ctx, -1, thread, connected, each)
}

// followFrom is follow from the events after a position; -1 is from now on.
func (c *client) followFrom(ctx context.Context, last int64, thread string, connected func() error, each func(event) error) error {
	begun := false
	for failures := 0; ; {
		opened := time.Now()
		r := request{route: routeEvents, query: url.Values{}, head: make(http.Header)}
		if thread != "" {
			r.query.Set("thread", thread)
		}
		if last >= 0 {
			r.head.Set("Last-Event-Id", strconv.FormatInt(last, 10))
		}
		err := c.followOnce(ctx, r, func() error { begun = true; return connected() }, func(e event) error {
			failures, last = 0, e.Position
			return each(e)
		})
		var broken *brokenStream
		switch {
		case errors.Is(err, errDone):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &broken) || !begun:
			return err
		}
		if time.Since(opened) > time.Minute {
			failures = 0
		}
		if failures++; failures == 5 {
			return broken.err
		}
		if err := pause(ctx, time.Duration(failures)*250*time.Millisecond); err != nil {
			return err
		}
	}
}

// brokenStream is the end of an event stream that nobody asked for, or one that could
// not be opened.
type brokenStream struct{ err error }

func (e *brokenStream) Error() string { return e.err.Error() }
func (e *brokenStream) Unwrap() error { return e.err }

func (c *client) followOnce(ctx context.Context, r request, connected func() error, each func(event) error) error {
	body, err := c.stream(ctx, r)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := connected(); err != nil {
		return err
	}
	err = readEvents(body, each)
	var broken *brokenStream
	if errors.As(err, &broken) {
		return &brokenStream{c.unreachable(broken.err, r)}
	}
	return err
}

// readEvents reads an event stream (WHATWG HTML, Server-sent events) of which each
// data field holds one JSON object. Comments and other fields are left out.
func readEvents(r io.Reader, each func(event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if data == nil {
				continue
			}
			var e event
			if err := json.Unmarshal(data, &e); err != nil {
				return fmt.Errorf("the gateway's event cannot be read: %w", err)
			}
			data = nil
			if err := each(e); err != nil {
				return err
			}
			continue
		}
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return &brokenStream{err}
}
