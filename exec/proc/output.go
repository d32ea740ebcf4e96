package proc

import (
	"crypto/sha256"
	"hash"
	"unicode/utf8"
)

// Output is one stream of a process, within its bound.
type Output struct {
	// Head is the beginning, or the whole when nothing was dropped.
	Head []byte
	// Tail is the end, when something between the two was dropped.
	Tail []byte
	// Dropped is the number of bytes between Head and Tail that were not kept.
	Dropped int64
	// SHA256 is the digest of all bytes that were read from the process, the dropped
	// ones too.
	SHA256 [sha256.Size]byte
}

// Total is the number of bytes that the process wrote.
func (o Output) Total() int64 { return int64(len(o.Head)+len(o.Tail)) + o.Dropped }

// collector keeps the first half and the last half of at most max bytes.
type collector struct {
	max   int
	head  []byte
	ring  []byte // the last bytes after head, once head is full
	next  int    // where the ring's oldest byte is, once it is full
	after int64  // bytes written after head was full
	sum   hash.Hash
}

func newCollector(max int64) collector { return collector{max: int(max), sum: sha256.New()} }

func (c *collector) Write(p []byte) {
	c.sum.Write(p) // never fails
	if room := c.max - c.max/2 - len(c.head); room > 0 {
		n := min(room, len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	c.after += int64(len(p))
	size := c.max / 2
	if len(p) > size {
		p = p[len(p)-size:]
	}
	if room := size - len(c.ring); room > 0 && c.next == 0 {
		n := min(room, len(p))
		c.ring = append(c.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(c.ring[c.next:], p)
		p = p[n:]
		c.next = (c.next + n) % size
	}
}

// bytes returns what is kept: the bytes of head, then those of the ring in
// order, and the number dropped between the two.
func (c *collector) bytes() (head, tail []byte, dropped int64) {
	tail = make([]byte, 0, len(c.ring))
	tail = append(append(tail, c.ring[c.next:]...), c.ring[:c.next]...)
	return c.head, tail, c.after - int64(len(tail))
}

// kept is the number of bytes held.
func (c *collector) kept() int { return len(c.head) + len(c.ring) }

// output returns the stream cut down to at most limit bytes. Where a cut would
// fall into a character, the character goes with what is dropped.
func (c *collector) output(limit int) Output {
	var o Output
	c.sum.Sum(o.SHA256[:0])
	head, tail, dropped := c.bytes()
	if dropped == 0 && len(head)+len(tail) <= limit {
		o.Head = append(head, tail...)
		return o
	}
	all := len(head) + len(tail)
	if dropped == 0 {
		joined := append(head, tail...)
		head, tail = joined, joined
	}
	h, t := min(limit-limit/2, len(head)), min(limit/2, len(tail))
	o.Head, o.Tail = head[:h], tail[len(tail)-t:]
	o.Head = o.Head[:len(o.Head)-partialEnd(o.Head)]
	o.Tail = o.Tail[partialStart(o.Tail):]
	o.Dropped = int64(all-len(o.Head)-len(o.Tail)) + dropped
	return o
}

// partialEnd returns the length of the unfinished character at the end of b.
func partialEnd(b []byte) int {
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return i
			}
			return 0
		}
	}
	return 0
}

// partialStart returns the length of the rest of a character at the start of b.
func partialStart(b []byte) int {
	for i := range min(utf8.UTFMax, len(b)) {
		if utf8.RuneStart(b[i]) {
			return i
		}
	}
	return 0
}

// share cuts the two streams down to max bytes together. What one stream does
// not need the other may use; when both are long, stderr gets a quarter.
func share(out, errs *collector, limit int64) (Output, Output) {
	o, e := int64(out.kept()), int64(errs.kept())
	if o+e > limit {
		e = min(e, max(limit/4, limit-o))
		o = limit - e
	}
	return out.output(int(o)), errs.output(int(e))
}
