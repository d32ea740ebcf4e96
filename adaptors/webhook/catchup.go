package webhook

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"inband/ops"
	"inband/service/threads"
)

func (a *Adaptor) taker() Intake {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.into
}

// lookAgain has the history read soon; several wishes are one.
func (a *Adaptor) lookAgain() {
	select {
	case a.again <- struct{}{}:
	default:
	}
}

// Bounds of the waits between attempts to read a history.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Run has the adaptor take messages into into until ctx ends. Where the bridge has a
// history it is read from the stored cursor: at once, every Config.Poll seconds, and
// after each gap that the bridge tells of. It returns ctx's error.
func (a *Adaptor) Run(ctx context.Context, into Intake) error {
	a.mu.Lock()
	a.into = into
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.into = nil
		a.mu.Unlock()
	}()
	if a.cfg.URLs.History == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	retry := firstRetry
	for {
		wait := time.Duration(a.cfg.Poll) * time.Second
		err := a.catchUp(ctx, into)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.state.behind.Store(err != nil)
		if err != nil {
			a.log.Warn("the history of the bridge could not be read; it is tried again", "err", err, "in", retry)
			wait, retry = retry, min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-a.again:
		}
		timer.Stop()
	}
}

// page is an answer of the bridge's history.
type page struct {
	OK       *bool            `json:"ok"`
	Error    string           `json:"error"`
	Messages []jsontext.Value `json:"messages"` // payloads as events have them, oldest first
	Cursor   string           `json:"cursor"`   // behind the last of them
	Now      jsontext.Value   `json:"now"`      // the bridge's clock, in any form that written_at may have
}

// unknownCursor is the error of a bridge that does not know the cursor it is given.
const unknownCursor = "unknown_cursor"

// Sizes of a page, in messages, and of a cursor, in bytes.
const (
	pageSize  = 50
	maxCursor = 4096
)

// catchUp takes what the bridge's history holds behind the stored cursor, up to its end.
// The cursor moves only behind what was taken; a message that was taken before is a
// duplicate, so a page may come twice.
//
// Without a cursor that the bridge knows nobody can tell what was taken: what was written
// before now is remembered and never run.
func (a *Adaptor) catchUp(ctx context.Context, into Intake) error {
	stored, _, err := into.Cursor(ctx, a.cfg.Name)
	if err != nil {
		return fmt.Errorf("read the cursor: %w", err)
	}
	at := readMark(stored)
	remembered, size := 0, pageSize
	for {
		p, err := a.history(ctx, at.cursor, size)
		var failed *threads.PostError
		switch {
		case errors.Is(err, errUnknownCursor) && at.cursor != "":
			at = mark{old: true}
			continue
		case errors.Is(err, errTooLong) && size > 1:
			size /= 2
			continue
		case errors.As(err, &failed) && failed.Kind == threads.RateLimit:
			if err := pause(ctx, failed.After); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if at.old && at.before.IsZero() {
			if at.before, err = moment(gjson.ParseBytes(p.Now)); err != nil || at.before.IsZero() {
				at.before = a.now()
			}
			// Before anything is taken: the next start must draw the same line.
			if err := a.keep(ctx, into, at); err != nil {
				return err
			}
		}
		for _, raw := range p.Messages {
			n, err := a.recall(ctx, into, raw, at)
			if err != nil {
				return err
			}
			remembered += n
		}
		if len(p.Messages) == 0 {
			break
		}
		if p.Cursor == "" || p.Cursor == at.cursor || len(p.Cursor) > maxCursor {
			return errors.New("the bridge's history gives messages and no new cursor behind them")
		}
		at.cursor = p.Cursor
		if err := a.keep(ctx, into, at); err != nil {
			return err
		}
	}
	if !at.old {
		return nil
	}
	if remembered > 0 {
		a.state.alerts.Add(1)
		a.log.Warn("there was no cursor that the bridge knows: what it held is remembered and nothing of it was run; look for orders that were missed", "messages", remembered)
	}
	if at.cursor == "" { // there is nothing behind which a place could be
		return nil
	}
	return a.keep(ctx, into, mark{cursor: at.cursor})
}

// mark is a place in a history, as the cursor of the adaptor is stored.
type mark struct {
	cursor string // the bridge's, "" for the first message
	// old: what was written before is history, by the bridge's clock. It stays so until
	// the end of the history has been reached, also by another process.
	old    bool
	before time.Time
}

// readMark reads a stored cursor. None is the beginning of a history of which nothing is
// to be run.
func readMark(s string) mark {
	if cursor, ok := strings.CutPrefix(s, "at:"); ok {
		return mark{cursor: cursor}
	}
	if rest, ok := strings.CutPrefix(s, "old:"); ok {
		ms, cursor, _ := strings.Cut(rest, ":")
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			return mark{cursor: cursor, old: true, before: time.UnixMilli(n).UTC()}
		}
	}
	return mark{old: true}
}

func (m mark) String() string {
	if m.old {
		return fmt.Sprintf("old:%d:%s", m.before.UnixMilli(), m.cursor)
	}
	return "at:" + m.cursor
}

func (a *Adaptor) keep(ctx context.Context, into Intake, m mark) error {
	if err := into.SetCursor(ctx, a.cfg.Name, m.String()); err != nil {
		return fmt.Errorf("keep the cursor: %w", err)
	}
	return nil
}

// recall takes one message of the history, and returns 1 if it was only remembered. What
// cannot be read is left out: it would be no better the next time.
func (a *Adaptor) recall(ctx context.Context, into Intake, raw jsontext.Value, at mark) (int, error) {
	var in threads.Inbound
	var heard *threads.Heard
	fault := checkPayload(raw)
	if fault == nil {
		in, heard, fault = a.inbound(raw)
	}
	if fault == nil && heard != nil {
		return 0, nil
	}
	if fault == nil {
		in.CatchUp = true
		in.History = at.old && in.WrittenAt.Before(at.before)
		if _, err := a.receive(ctx, into, in); err != nil && (!errors.As(err, &fault) || fault.Retryable || fault.Code == ops.Internal) {
			return 0, fmt.Errorf("take a message of the history: %w", err)
		}
	}
	if fault != nil {
		a.state.skipped.Add(1)
		a.log.Warn("a message of the history cannot be read and is left out", "code", fault.Code)
		return 0, nil
	}
	if in.History {
		return 1, nil
	}
	return 0, nil
}

var errUnknownCursor = errors.New("the bridge does not know the cursor")

// history reads a page.
func (a *Adaptor) history(ctx context.Context, cursor string, size int) (page, error) {
	var p page
	raw, err := a.send(ctx, a.cfg.URLs.History, "history", struct {
		Cursor string `json:"cursor,omitzero"` // absent: from the first message
		Limit  int    `json:"limit"`
	}{cursor, size}, maxPage)
	if err != nil {
		return p, err
	}
	// What is wrong with one message must not keep us from the others.
	err = json.Unmarshal(raw, &p, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	switch {
	case err != nil || p.OK == nil:
		return p, errors.New("the bridge's history is not of the form that docs/adaptors.md gives")
	case *p.OK:
		return p, nil
	case p.Error == unknownCursor:
		return p, errUnknownCursor
	}
	return p, inside(&answer{Error: p.Error})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
