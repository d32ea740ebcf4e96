package httpapi

import (
	"fmt"
	"testing"
	"time"

	"inband/ops"
)

// An address has its rate, whatever others do; the addresses behind one customer's IPv6
// prefix are one.
func TestStrangersAreBounded(t *testing.T) {
	s, now := newStrangers(2), time.Unix(1000, 0)
	admitted := func(addr string, n int) (got int) {
		for range n {
			if f := s.admit(addr, now); f == nil {
				got++
			} else if f.Code != ops.RateLimited || !f.Retryable || f.Details["retry_after"] != int64(1) {
				t.Fatalf("%s: %+v", addr, f)
			}
		}
		return got
	}
	for _, c := range []struct {
		addr string
		n    int
		want int
	}{
		{"192.0.2.1:1000", 20, 8},
		{"192.0.2.1:2000", 20, 0}, // another connection of the same
		{"[::ffff:192.0.2.1]:2000", 20, 0},
		{"192.0.2.2:1000", 3, 3},
		{"[2001:db8::1]:1", 20, 8},
		{"[2001:db8::ffff:1]:1", 20, 0}, // the same customer
		{"[2001:db8:0:1::1]:1", 20, 8},
		{"[fe80::1%eth0]:1", 20, 8},
		{"nonsense", 20, 8},
		{"", 1, 0}, // as nonsense: what has no address is one stranger
	} {
		if got := admitted(c.addr, c.n); got != c.want {
			t.Errorf("%d of %q: %d admitted, want %d", c.n, c.addr, got, c.want)
		}
	}
	now = now.Add(time.Second)
	if got := admitted("192.0.2.1:1", 20); got != 2 {
		t.Errorf("a second later: %d admitted, want 2", got)
	}
}

// What is remembered of strangers has a bound: beyond it, newcomers share one rate, those
// that are known keep theirs, and who has not come for long makes room.
func TestStrangersAreForgotten(t *testing.T) {
	s, now := newStrangers(1), time.Unix(1000, 0)
	for i := range maxStrangers {
		if f := s.admit(fmt.Sprintf("10.%d.%d.1:1", i>>8, i&255), now); f != nil {
			t.Fatalf("stranger %d: %v", i, f)
		}
	}
	got := 0
	for i := range 20 {
		if s.admit(fmt.Sprintf("192.0.2.%d:1", i), now) == nil {
			got++
		}
	}
	if got != 4 || len(s.known) != maxStrangers {
		t.Errorf("20 newcomers: %d admitted, %d known; want 4 and %d", got, len(s.known), maxStrangers)
	}
	if f := s.admit("10.0.0.1:1", now); f != nil {
		t.Errorf("one that is known: %v", f)
	}
	now = now.Add(time.Second) // all but that one are as if they had never come
	if f := s.admit("192.0.2.77:1", now); f != nil || len(s.known) != 2 {
		t.Errorf("a newcomer later: %v, %d known; want it and the one before", f, len(s.known))
	}
}

func TestLane(t *testing.T) {
	l := newLane(2, "things are done")
	first, f := l.enter()
	if f != nil {
		t.Fatal(f)
	}
	if _, f = l.enter(); f != nil {
		t.Fatal(f)
	}
	if _, f = l.enter(); f == nil || f.Code != ops.Busy || !f.Retryable || f.Message != "2 things are done; try again later" {
		t.Errorf("the third: %+v", f)
	}
	first()
	if _, f = l.enter(); f != nil {
		t.Errorf("after one has left: %v", f)
	}
}
