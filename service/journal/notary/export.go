package notary

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/tlog"

	"inband/service/journal"
)

// ErrNothingThere means that an export was asked for from behind the last checkpoint.
var ErrNothingThere = errors.New("no checkpoint covers that position")

// ErrNotCompared means that an export begins behind a checkpoint that was kept, so that
// the two cannot be held against each other.
var ErrNotCompared = errors.New("the export begins behind the checkpoint that was kept")

// maxPosition is beyond every event that there can be, and far enough from where the
// indexes of stored hashes end.
const maxPosition = 1 << 60

const exportFormat = "inband/audit-export/v1"

// The lines of an export, each a JSON object in ASCII: a header, one line an event,
// and the checkpoint, which signs all of them.
type (
	exportHeader struct {
		Format string      `json:"format"`
		Key    string      `json:"key"`
		From   int64       `json:"from"`
		Roots  []tlog.Hash `json:"roots"` // of the tree over the events before From, the largest first
	}
	exportEvent struct {
		Position int64   `json:"position"`
		Stream   string  `json:"stream"`
		Version  int64   `json:"version"`
		Kind     string  `json:"kind"`
		At       string  `json:"at"`
		Body     *string `json:"body,omitempty"`        // when it is UTF-8
		Bytes    []byte  `json:"body_base64,omitempty"` // when it is not
	}
	exportEnd struct {
		Checkpoint string `json:"checkpoint"`
	}
)

// maxLine bounds a line of an export: a body of the largest size, escaped at its worst.
const maxLine = 6*journal.MaxBody + 1<<20 // bytes

// stamp is the form of times: UTC with milliseconds.
const stamp = "2006-01-02T15:04:05.000Z07:00"

// Export writes the events of src from a position (from 1) to the checkpoint cp as
// lines of JSON, for VerifyExport to check without the store. From behind cp it is
// ErrNothingThere, before anything is written.
func Export(ctx context.Context, src Source, key Key, cp Checkpoint, from int64, w io.Writer) error {
	if from < 1 || from > cp.Size {
		return fmt.Errorf("export from position %d: %w; the last one is at %d", from, ErrNothingThere, cp.Size)
	}
	h := exportHeader{Format: exportFormat, Key: key.String(), From: from, Roots: []tlog.Hash{}}
	if from > 1 {
		if err := src.View(ctx, func(tx journal.Tx) error {
			e, err := storedEdge(tx, from-1)
			if err == nil {
				h.Roots = e.list()
			}
			return err
		}); err != nil {
			return err
		}
	}
	out := bufio.NewWriterSize(w, 64<<10)
	if err := writeLine(out, h); err != nil {
		return err
	}
	next := from
	err := src.Events(ctx, from-1, func(e journal.Event) error {
		if e.Position > cp.Size {
			return errPast
		}
		if e.Position != next {
			return tampered(next, "the event at position %d is missing; the next one is at %d", next, e.Position)
		}
		next++
		return writeLine(out, exported(e))
	})
	if err != nil && !errors.Is(err, errPast) {
		return err
	}
	if next != cp.Size+1 {
		return tampered(next, "the events after position %d are missing; a checkpoint covers %d", next-1, cp.Size)
	}
	if err := writeLine(out, exportEnd{cp.Note}); err != nil {
		return err
	}
	return out.Flush()
}

func exported(e journal.Event) exportEvent {
	l := exportEvent{Position: e.Position, Stream: e.Stream, Version: e.Version, Kind: e.Kind, At: e.At.UTC().Format(stamp)}
	if utf8.Valid(e.Body) {
		s := string(e.Body)
		l.Body = &s
	} else {
		l.Bytes = e.Body
	}
	return l
}

// line is v as JSON in ASCII, so that no terminal or transport touches it.
func line(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if bytes.IndexFunc(b, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return append(b, '\n'), nil
	}
	ascii := make([]byte, 0, len(b)+16)
	for _, r := range string(b) {
		switch {
		case r < utf8.RuneSelf:
			ascii = append(ascii, byte(r))
		case r > 0xffff:
			r -= 0x10000
			ascii = fmt.Appendf(ascii, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			ascii = fmt.Appendf(ascii, `\u%04x`, r)
		}
	}
	return append(ascii, '\n'), nil
}

func writeLine(w io.Writer, v any) error {
	b, err := line(v)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// VerifyExport checks an export: that its events are those that its checkpoint signs,
// byte for byte, and that the signature is by key. Without a key (its String empty) the
// one that stands in the export is taken, which proves only that the export is whole:
// compare the key that is returned. What is wrong is a *Tampering. Kept checkpoints are
// compared as Verify does; for one that ends before the export begins, that is
// ErrNotCompared.
func VerifyExport(r io.Reader, key Key, kept ...Checkpoint) (Report, Key, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	lines.Split(wholeLines)
	scan := func() error {
		if lines.Scan() {
			return nil
		}
		switch err := lines.Err(); {
		case err == nil, errors.Is(err, errNotWhole):
			return tampered(0, "%v", errNotWhole)
		case errors.Is(err, bufio.ErrTooLong):
			return tampered(0, "a line of the export is longer than any event can be")
		default:
			return fmt.Errorf("read export: %w", err)
		}
	}
	var h exportHeader
	if err := scan(); err != nil {
		return Report{}, key, err
	}
	if err := readLine(lines.Bytes(), &h); err != nil {
		return Report{}, key, notExport(1, err)
	}
	own, err := ParseKey(h.Key)
	switch {
	case h.Format != exportFormat:
		return Report{}, key, tampered(0, "the export's first line is not that of an export (%s)", exportFormat)
	case err != nil:
		return Report{}, key, tampered(0, "the export's key: %v", err)
	case key.String() == "":
		key = own
	case key.String() != own.String():
		return Report{}, key, tampered(0, "the export is signed by another key, %s", own)
	}
	if h.From < 1 || h.From > maxPosition || len(h.Roots) != len(rootIndexes(h.From-1)) {
		return Report{}, key, tampered(h.From, "the export's first line does not lead to position %d", h.From)
	}
	v := &verifier{key: key, edge: newEdge(h.From-1, h.Roots), kept: kept}
	for _, k := range kept {
		if k.Size < h.From-1 {
			return Report{}, key, fmt.Errorf("%w: one begins with %d, the other ends at %d; export from %d or before", ErrNotCompared, h.From, k.Size, k.Size+1)
		}
	}
	if err := v.compareKept(); err != nil {
		return Report{}, key, err
	}
	for number := 2; ; number++ {
		if err := scan(); err != nil {
			return Report{}, key, err
		}
		if bytes.HasPrefix(lines.Bytes(), []byte(`{"checkpoint":`)) {
			var end exportEnd
			if err := readLine(lines.Bytes(), &end); err != nil {
				return Report{}, key, notExport(number, err)
			}
			if err := v.endExport(end.Checkpoint); err != nil {
				return Report{}, key, err
			}
			if lines.Scan() || lines.Err() != nil {
				return Report{}, key, tampered(v.edge.size, "something stands behind the export's checkpoint")
			}
			return Report{Position: v.edge.size, Head: v.edge.size}, key, nil
		}
		var l exportEvent
		if err := readLine(lines.Bytes(), &l); err != nil {
			return Report{}, key, notExport(number, err)
		}
		e, err := l.event()
		if err != nil {
			return Report{}, key, notExport(number, err)
		}
		if err := v.event(e); err != nil {
			return Report{}, key, err
		}
	}
}

// endExport compares what the export's events come to with its checkpoint.
func (v *verifier) endExport(text string) error {
	size := v.edge.size
	cp, err := v.key.OpenCheckpoint(text)
	switch {
	case err != nil:
		return tampered(size, "the export's checkpoint: %v", err)
	case cp.Size != size:
		return tampered(min(cp.Size, size)+1, "the export's events end at position %d, and its checkpoint is one of position %d", size, cp.Size)
	case cp.Hash != v.edge.hash():
		return tampered(size, "the export's events up to position %d are not those that its checkpoint signs", size)
	}
	return v.finish(size)
}

func (l exportEvent) event() (journal.Event, error) {
	at, err := time.Parse(stamp, l.At)
	if err != nil {
		return journal.Event{}, err
	}
	e := journal.Event{Position: l.Position, Stream: l.Stream, Version: l.Version, Kind: l.Kind, At: at, Body: l.Bytes}
	if l.Body != nil {
		e.Body = []byte(*l.Body)
	}
	// One event has one line: anything that reads alike is refused.
	if again, err := line(exported(e)); err != nil {
		return journal.Event{}, err
	} else if own, err := line(l); err != nil || !bytes.Equal(again, own) {
		return journal.Event{}, errForm
	}
	return e, nil
}

// wholeLines splits at newlines and gives up a last line without one.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, errNotWhole
	}
	return 0, nil, nil
}

// readLine decodes a line that must be just what writing v again gives.
func readLine(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return err
	}
	again, err := line(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, b) {
		return errForm
	}
	return nil
}

var (
	errNotWhole = errors.New("the export ends without a checkpoint: it is not whole")
	errForm     = errors.New("it is not written as an export writes it")
)

// notExport is what is wrong with a line.
func notExport(number int, err error) error {
	return tampered(0, "line %d of the export: %v", number, err)
}
