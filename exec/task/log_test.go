package task

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// The log is the whole, or its first and last half with the number of bytes between them;
// the tail is the end, whatever the pieces.
func TestLog(t *testing.T) {
	const most = 100
	for _, total := range []int{0, 1, 49, 50, 51, 99, 100, 101, 149, 150, 151, 200, 1000, 9999} {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		o, err := newOutput(root, most, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		for len(all) < total {
			piece := make([]byte, min(1+rand.IntN(140), total-len(all)))
			for i := range piece {
				piece[i] = byte('a' + (len(all)+i)*7%26)
			}
			all = append(all, piece...)
			o.take(rand.IntN(2) == 1, piece)
			if info, err := o.file.Stat(); err != nil || info.Size() > most {
				t.Fatalf("the log has %d bytes, %v", info.Size(), err)
			}
		}
		if err := o.close(); err != nil {
			t.Fatal(err)
		}
		got, err := root.ReadFile(LogFile)
		want := all
		if total > most {
			want = fmt.Appendf(bytes.Clone(all[:most/2]), "\n… %d bytes dropped …\n%s", total-most, all[total-most/2:])
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %q, want %q, %v", total, got, want, err)
		}
		if want := all[max(0, total-tailMost):]; !bytes.Equal(o.tail, want) || o.bytes.Load() != int64(total) {
			t.Errorf("%d bytes: tail %q of %d", total, o.tail, o.bytes.Load())
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%d bytes: %v %v", total, left, err)
		}
	}
}

// A log that cannot be written is said to be so, and the tail is there all the same.
func TestLogCannotBeWritten(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	o, err := newOutput(root, 100, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o.file, err = os.OpenFile("/dev/full", os.O_RDWR, 0); err != nil {
		t.Skip(err)
	}
	o.take(false, []byte(strings.Repeat("x", 500)))
	if err := o.close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	if len(o.tail) != 500 || o.bytes.Load() != 500 {
		t.Errorf("tail of %d, %d bytes", len(o.tail), o.bytes.Load())
	}
}
