package task

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"inband/exec/command"
)

// LogFile is the file of the run's folder that holds the output of the command, both
// streams as they came. Beyond Config.Log it is the first and the last half of that, with
// a line between them that says how much is missing. While the command runs, the last
// half is in no order.
const LogFile = "output.log"

// output takes what a command writes. Its methods but moved are called by one goroutine.
type output struct {
	root    *os.Root
	file    *os.File
	most    int64 // of the file
	written int64 // to the file, had it no bound
	err     error // the first of writing; nothing is written after it
	streams [2]*command.Blotter
	tail    []byte // the last of all, at most tailMost bytes
	bytes   atomic.Int64
	closing sync.Once
}

// tailMost bounds Outcome.Tail, in bytes.
const tailMost = 4 << 10

// newOutput makes the log in root.
func newOutput(root *os.Root, most int64, secrets []Secret) (*output, error) {
	if err := root.Remove(LogFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("log: %w", err)
	}
	f, err := root.OpenFile(LogFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	o := &output{root: root, file: f, most: most}
	for i := range o.streams {
		o.streams[i] = command.NewBlotter(values(secrets))
	}
	return o, nil
}

// take takes a piece. It opens nothing and waits for the disk alone (proc.Spec.Output).
func (o *output) take(stderr bool, piece []byte) {
	o.bytes.Add(int64(len(piece)))
	i := 0
	if stderr {
		i = 1
	}
	o.write(o.streams[i].Add(piece))
}

// write writes what has no secrets in it.
func (o *output) write(p []byte) {
	o.tail = append(o.tail, p...)
	if drop := len(o.tail) - tailMost; drop > 0 {
		o.tail = append(o.tail[:0], o.tail[drop:]...)
	}
	head, ring := o.most-o.most/2, o.most/2
	for len(p) > 0 && o.err == nil {
		at, room := o.written, head-o.written
		if room <= 0 {
			within := (o.written - head) % ring
			at, room = head+within, ring-within
		}
		n := int(min(room, int64(len(p))))
		_, o.err = o.file.WriteAt(p[:n], at)
		p = p[n:]
		o.written += int64(n)
	}
}

// close puts the log in order. It returns what of it could not be written.
func (o *output) close() (err error) {
	o.closing.Do(func() {
		for _, s := range o.streams {
			o.write(s.End())
		}
		err = errors.Join(o.err, o.order(), o.file.Close())
		if err != nil {
			err = fmt.Errorf("log: %w", err)
		}
	})
	return err
}

// order writes a log that has come round anew, beginning with its oldest byte.
func (o *output) order() (err error) {
	if o.err != nil || o.written <= o.most {
		return nil
	}
	const fresh = LogFile + ".new"
	if err := o.root.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := o.root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, f.Close()) }()
	head, ring := o.most-o.most/2, o.most/2
	oldest := (o.written - head) % ring
	note := fmt.Sprintf("\n… %d bytes dropped …\n", o.written-o.most)
	if _, err := io.Copy(f, io.NewSectionReader(o.file, 0, head)); err != nil {
		return err
	}
	if _, err := io.WriteString(f, note); err != nil {
		return err
	}
	for _, part := range [][2]int64{{head + oldest, ring - oldest}, {head, oldest}} {
		if _, err := io.Copy(f, io.NewSectionReader(o.file, part[0], part[1])); err != nil {
			return err
		}
	}
	return o.root.Rename(fresh, LogFile)
}
