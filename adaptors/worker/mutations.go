package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"inband/service/plane/wire"
)

// How a command says that it changes something outside. It appends a line to
// control/mutations.jsonl before it tries,
//
//	{"intend": "KEY", "action": "what will be done, for people"}
//
// and waits for the line's answer in task/acknowledged.jsonl, {"line": 1, "ok": true}:
// then the plane has it durably, and the change may be tried, with KEY as the outside's
// idempotency key. If ok is false, error says why, and it must not be tried. Afterwards
//
//	{"prove": "KEY", "done": true, "proof": "how that is known"}
//
// says what became of it; done false means that it has certainly not happened. Whatever
// is intended and not proved when the run ends keeps the delegation from being run again.
const (
	maxMutationLine  = 8 << 10 // bytes
	maxMutationLines = 1000    // of one run
	lookEvery        = 100 * time.Millisecond
)

// mutations follows what a command says of changes outside.
type mutations struct {
	r    *run
	at   int64 // how far the file has been read
	line int
}

// mutation is one line.
type mutation struct {
	Intend *string `json:"intend"`
	Action string  `json:"action"`
	Prove  *string `json:"prove"`
	Done   *bool   `json:"done"`
	Proof  string  `json:"proof"`
}

// follow looks at the file until ctx ends.
func (m *mutations) follow(ctx context.Context) {
	for sleep(ctx, lookEvery) == nil {
		m.look()
	}
}

// look takes each whole line that is new. It waits for the plane's answers.
func (m *mutations) look() {
	root, err := os.OpenRoot(m.r.task.Path(ControlFolder))
	if err != nil {
		return
	}
	defer root.Close()
	f, err := openRegular(root, MutationsFile)
	if err != nil {
		return // there is none
	}
	defer f.Close()
	for m.line < maxMutationLines {
		buf := make([]byte, maxMutationLine+1)
		n, err := f.ReadAt(buf, m.at)
		if err != nil && !errors.Is(err, io.EOF) {
			return
		}
		end := bytes.IndexByte(buf[:n], '\n')
		if end < 0 && n <= maxMutationLine {
			return // not yet a line
		}
		m.line++
		if end < 0 {
			m.answer(fmt.Errorf("a line of more than %d bytes; nothing after it is read", maxMutationLine))
			m.line = maxMutationLines
			return
		}
		m.at += int64(end) + 1
		m.answer(m.take(buf[:end]))
		if m.line == maxMutationLines {
			m.r.log.Warn("the command has said more of changes outside than is read", "lines", maxMutationLines)
		}
	}
}

// take hands one line to the plane.
func (m *mutations) take(line []byte) error {
	var l mutation
	if err := wire.Strict(line, &l); err != nil {
		return fmt.Errorf("not a line of this file: %w", err)
	}
	var err error
	switch {
	case l.Intend != nil && l.Prove == nil && *l.Intend != "" && l.Action != "" && l.Done == nil && l.Proof == "":
		_, err = m.r.chain.say(m.r.talk, wire.KindMutationIntended, wire.MutationIntended{Key: *l.Intend, Action: m.r.blot(l.Action)})
	case l.Prove != nil && l.Intend == nil && *l.Prove != "" && l.Done != nil && l.Proof != "" && l.Action == "":
		_, err = m.r.chain.say(m.r.talk, wire.KindMutationProved, wire.MutationProved{Key: *l.Prove, Done: *l.Done, Proof: m.r.blot(l.Proof)})
	default:
		err = errors.New(`want {"intend": KEY, "action": TEXT} or {"prove": KEY, "done": true or false, "proof": TEXT}`)
	}
	return err
}

// answer appends what became of a line where the command can read it and not write.
func (m *mutations) answer(err error) {
	a := struct {
		Line  int    `json:"line"`
		OK    bool   `json:"ok"`
		Error string `json:"error,omitempty"`
	}{Line: m.line, OK: err == nil}
	if err != nil {
		a.Error = err.Error()
		m.r.log.Warn("a line of a change outside was not taken", "line", m.line, "err", err)
	}
	b, marshalErr := json.Marshal(a)
	if marshalErr != nil {
		return
	}
	f, openErr := os.OpenFile(m.r.task.Path(TaskFolder, AcknowledgedFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if openErr == nil {
		_, openErr = f.Write(append(b, '\n'))
		openErr = errors.Join(openErr, f.Close())
	}
	if openErr != nil {
		m.r.log.Error("the command does not get its answer", "err", openErr)
	}
}

// openRegular opens a regular file of root and nothing else.
func openRegular(root *os.Root, name string) (*os.File, error) {
	if info, err := root.Lstat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, errors.New("it is not a regular file"))
	}
	return f, nil
}

// readSmall reads a regular file of root, at most most bytes of it.
func readSmall(root *os.Root, name string, most int64) (string, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	return string(b), err
}
