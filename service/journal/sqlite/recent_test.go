package sqlite

import (
	"testing"

	"inband/service/journal"
)

// What is kept is always the last events without a gap, within twice the bounds, and
// whoever asks for more is told so.
func TestRecent(t *testing.T) {
	for _, size := range []int{0, 10, 10 << 10, 3 * recentBytes} {
		var r recent
		head := int64(0)
		for batch := range 3000 {
			if size > recentBytes && batch == 20 {
				break
			}
			var events []journal.Event
			for range batch % 4 {
				head++
				events = append(events, journal.Event{Position: head, Body: make([]byte, size)})
			}
			r.add(events)
			bytes := 0
			for i, e := range r.events {
				bytes += len(e.Body)
				if want := head - int64(len(r.events)) + 1 + int64(i); e.Position != want {
					t.Fatalf("size %d: position %d where %d should be", size, e.Position, want)
				}
			}
			if len(r.events) > 2*recentEvents || bytes > 2*recentBytes || bytes != r.bytes {
				t.Fatalf("size %d: %d events of %d bytes are kept, counted as %d", size, len(r.events), bytes, r.bytes)
			}
			for _, after := range []int64{0, head / 2, head - 1, head} {
				page, ok := r.after(after)
				oldest := head - int64(len(r.events)) + 1
				if want := len(r.events) > 0 && after+1 >= oldest; ok != want {
					t.Fatalf("size %d: after %d of %d with %d kept: ok %v, want %v", size, after, head, len(r.events), ok, want)
				}
				if ok && len(page) != min(int(head-after), pageEvents) || len(page) > 0 && page[0].Position != after+1 {
					t.Fatalf("size %d: after %d of %d: %d events", size, after, head, len(page))
				}
			}
		}
	}
}

func TestRecentBodiesAreTheCallersOwn(t *testing.T) {
	var r recent
	r.add([]journal.Event{{Position: 1, Body: []byte("kept")}})
	page, _ := r.after(0)
	copy(page[0].Body, "gone")
	if page, _ = r.after(0); string(page[0].Body) != "kept" {
		t.Errorf("a reader has changed what others read to %q", page[0].Body)
	}
}
