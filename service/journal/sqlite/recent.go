package sqlite

import (
	"bytes"

	"inband/service/journal"
)

// Bounds of what is kept of the last events.
const (
	recentEvents = 1024
	recentBytes  = 1 << 20 // of bodies
)

// recent is the last committed events, without a gap and up to the head. Whoever tails
// the store is nearly always at its end, and is answered from here without a query.
type recent struct {
	events []journal.Event
	bytes  int
}

// add puts committed events at the end. Beyond twice the bounds it drops the oldest, so
// that dropping, which moves the others, is rare.
func (r *recent) add(events []journal.Event) {
	for _, e := range events {
		r.bytes += len(e.Body)
	}
	r.events = append(r.events, events...)
	if len(r.events) <= 2*recentEvents && r.bytes <= 2*recentBytes {
		return
	}
	drop := 0
	for drop < len(r.events) && (len(r.events)-drop > recentEvents || r.bytes > recentBytes) {
		r.bytes -= len(r.events[drop].Body)
		drop++
	}
	// Moved, not sliced: what is dropped must not be kept by the array.
	r.events = append([]journal.Event(nil), r.events[drop:]...)
}

// after returns at most pageEvents events after a position, with bodies of their own.
// ok is false when the first of them is not kept any more.
func (r *recent) after(position int64) (page []journal.Event, ok bool) {
	if len(r.events) == 0 || r.events[0].Position > position+1 {
		return nil, false
	}
	first := int(position + 1 - r.events[0].Position)
	if first >= len(r.events) {
		return nil, true
	}
	page = append(page, r.events[first:min(len(r.events), first+pageEvents)]...)
	for i := range page {
		page[i].Body = bytes.Clone(page[i].Body)
	}
	return page, true
}
