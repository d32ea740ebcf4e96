package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// readInput reads up to limit bytes of a file, or of standard input for -.
func (a *app) readInput(ctx context.Context, file string, limit int64) ([]byte, bool, error) {
	r, done, err := a.open(ctx, file)
	if err != nil {
		return nil, false, err
	}
	defer done()
	b, whole, err := readBounded(r, limit)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", inputName(file), err)
	}
	return b, whole, nil
}

func inputName(file string) string {
	if file == "-" || file == "" {
		return "standard input"
	}
	return file
}

// open opens a file for reading, or standard input for - and for nothing.
func (a *app) open(ctx context.Context, file string) (io.Reader, func(), error) {
	if file == "-" || file == "" {
		return newInput(ctx, a.in), func() {}, nil
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil, usagef("%v", err) // 4 is what a gateway does not allow
	}
	if err != nil {
		return nil, nil, err
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, nil, usagef("%s is a folder; want a file", file)
	}
	return f, func() { f.Close() }, nil
}

// readBounded reads all of r, and reports false when it holds more than limit bytes.
func readBounded(r io.Reader, limit int64) ([]byte, bool, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, false, err
	}
	return b, int64(len(b)) <= limit, nil
}

// input is standard input, whose Read ends with a ctx. A file's Read cannot be ended
// from outside, so it is done beside; one that is under way when ctx ends stays until
// the process ends, which is then about to.
type input struct {
	ctx    context.Context
	pieces chan piece
	left   []byte
	err    error
}

type piece struct {
	bytes []byte
	err   error
}

func newInput(ctx context.Context, r io.Reader) *input {
	in := &input{ctx: ctx, pieces: make(chan piece)}
	go func() {
		// Read asks for a piece when it has done with the one before, so one buffer
		// is read from while the other is filled.
		var buffers [2][256 << 10]byte
		for i := 0; ; i++ {
			b := buffers[i%2][:]
			n, err := r.Read(b)
			select {
			case in.pieces <- piece{b[:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return in
}

func (in *input) Read(p []byte) (int, error) {
	for len(in.left) == 0 {
		if in.err != nil {
			return 0, in.err
		}
		select {
		case got := <-in.pieces:
			in.left, in.err = got.bytes, got.err
		case <-in.ctx.Done():
			return 0, in.ctx.Err()
		}
	}
	n := copy(p, in.left)
	in.left = in.left[n:]
	return n, nil
}
