package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// TestInput: standard input comes through whole, however it is cut, and its errors
// after what was read before them.
func TestInput(t *testing.T) {
	want := make([]byte, 3<<20+17)
	for i := range want {
		want[i] = byte(i ^ i>>8 ^ i>>16)
	}
	broken := errors.New("broken")
	for name, r := range map[string]io.Reader{
		"whole":                   bytes.NewReader(want),
		"halves":                  iotest.HalfReader(bytes.NewReader(want)),
		"data and error together": iotest.DataErrReader(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(broken))),
	} {
		got, err := io.ReadAll(iotest.HalfReader(newInput(t.Context(), r)))
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes that differ from the %d that were written", name, len(got), len(want))
		}
		if err != nil && !errors.Is(err, broken) || err == nil && name == "data and error together" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestInputEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	in := newInput(ctx, r)
	cancel()
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Read = %v, want %v", err, context.Canceled)
	}
}

func TestReadBounded(t *testing.T) {
	for _, test := range []struct {
		in    string
		whole bool
	}{{"", true}, {"12345", true}, {"123456", false}} {
		b, whole, err := readBounded(bytes.NewReader([]byte(test.in)), 5)
		if err != nil || whole != test.whole || whole && string(b) != test.in {
			t.Errorf("readBounded(%q, 5) = %q, %v, %v", test.in, b, whole, err)
		}
	}
}
