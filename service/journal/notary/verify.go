package notary

import (
	"context"
	"errors"
	"math"

	"golang.org/x/mod/sumdb/tlog"

	"inband/service/journal"
)

// Source is what can be verified and exported: a running store, or one that is closed
// and opened for reading.
type Source interface {
	View(ctx context.Context, f func(journal.Tx) error) error
	Head(ctx context.Context) (int64, error)
	// Events calls f with each event after a position, in order, up to the last
	// that is there when it gets so far, and returns nil then.
	Events(ctx context.Context, after int64, f func(journal.Event) error) error
}

// Report is what Verify has found to be in order.
type Report struct {
	Position  int64 `json:"position"`  // up to which a checkpoint covers the events
	Head      int64 `json:"head"`      // the last event that was read
	Uncovered int64 `json:"uncovered"` // events that no checkpoint covers yet
}

// Verify computes the whole log anew from the events of src and compares it with every
// stored hash and every signed checkpoint, and with checkpoints that were kept
// elsewhere. What it finds is a *Tampering, which names the first position where it
// shows. Any other error says that src could not be read. While src grows, what was
// there at the beginning is verified.
func Verify(ctx context.Context, src Source, key Key, kept ...Checkpoint) (Report, error) {
	v := &verifier{key: key, edge: newEdge(0, nil), kept: kept}
	var last batch
	var found bool
	head, err := src.Head(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := src.View(ctx, func(tx journal.Tx) (err error) {
		last, found, err = lastBatch(tx)
		return err
	}); err != nil {
		return Report{}, err
	}
	if found {
		v.end, head = last.size, max(head, last.size)
	}
	v.fetch = func() (list []batch, err error) {
		const atOnce = 4 // of up to 64 KiB
		err = src.View(ctx, func(tx journal.Tx) error {
			list, err = batchesAfter(tx, v.fetched, atOnce)
			return err
		})
		return list, err
	}
	if err := src.Events(ctx, math.MinInt64, func(e journal.Event) error {
		if e.Position > head {
			return errPast
		}
		return v.event(e)
	}); err != nil && !errors.Is(err, errPast) {
		return Report{}, err
	}
	if err := v.finish(head); err != nil {
		return Report{}, err
	}
	for _, k := range kept {
		if k.Size > v.end {
			return Report{}, tampered(v.end+1, "the log ends at position %d, behind the checkpoint that was kept, at %d: its end was cut off", v.end, k.Size)
		}
	}
	return Report{Position: v.end, Head: v.edge.size, Uncovered: v.edge.size - v.end}, nil
}

// errPast ends the reading of a store that has grown meanwhile.
var errPast = errors.New("past the end")

type verifier struct {
	key  Key
	edge *edge
	kept []Checkpoint
	end  int64 // the size of the last batch

	fetch   func() ([]batch, error)
	queue   []batch
	fetched int64 // size of the last batch that was fetched

	at *batch // the batch that covers the next event
	in int    // bytes of its hashes that are compared
}

// event takes the next event.
func (v *verifier) event(e journal.Event) error {
	if want := v.edge.size + 1; e.Position != want {
		if e.Position < want {
			return tampered(e.Position, "an event stands at position %d, where none can be", e.Position)
		}
		return tampered(want, "the event at position %d is missing; the next one is at %d", want, e.Position)
	}
	stored := v.edge.add(tlog.RecordHash(Record(e)))
	if e.Position > v.end {
		return v.compareKept()
	}
	if err := v.cover(e.Position); err != nil {
		return err
	}
	for level, h := range stored {
		if v.in+tlog.HashSize > len(v.at.hashes) {
			return tampered(e.Position, "the stored hashes at position %d are cut off", e.Position)
		}
		if tlog.Hash(v.at.hashes[v.in:v.in+tlog.HashSize]) != h {
			if level == 0 {
				return tampered(e.Position, "the event at position %d is not the one that was recorded", e.Position)
			}
			return tampered(e.Position, "the stored hashes at position %d were altered", e.Position)
		}
		v.in += tlog.HashSize
	}
	if err := v.compareKept(); err != nil {
		return err
	}
	if v.edge.size == v.at.size {
		return v.endBatch()
	}
	return nil
}

// cover makes v.at the batch that covers position.
func (v *verifier) cover(position int64) error {
	if v.at != nil {
		return nil
	}
	if len(v.queue) == 0 {
		list, err := v.fetch()
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return tampered(position, "the hashes of the event at position %d are missing", position)
		}
		v.queue, v.fetched = list, list[len(list)-1].size
	}
	v.at, v.in = &v.queue[0], 0
	v.queue = v.queue[1:]
	if v.at.firstHash != tlog.StoredHashCount(v.edge.size-1) {
		return tampered(position, "the stored hashes at position %d are not in their place", position)
	}
	return nil
}

// endBatch checks the checkpoint of the batch that ends here.
func (v *verifier) endBatch() error {
	b := v.at
	v.at = nil
	if v.in != len(b.hashes) {
		return tampered(b.size, "there are more stored hashes at position %d than events", b.size)
	}
	cp, err := v.key.OpenCheckpoint(b.note)
	switch {
	case err != nil:
		return tampered(b.size, "the checkpoint at position %d: %v", b.size, err)
	case cp.Size != b.size:
		return tampered(b.size, "the checkpoint at position %d is one of position %d", b.size, cp.Size)
	case cp.Hash != v.edge.hash():
		return tampered(b.size, "the checkpoint at position %d signs another history", b.size)
	}
	return nil
}

// compareKept compares the tree as it is now with the kept checkpoints of its size.
func (v *verifier) compareKept() error {
	for _, k := range v.kept {
		if k.Size == v.edge.size && k.Hash != v.edge.hash() {
			return tampered(k.Size, "the events up to position %d are not those of the checkpoint that was kept: history was rewritten", k.Size)
		}
	}
	return nil
}

// finish says whether the events end where they should.
func (v *verifier) finish(head int64) error {
	size := v.edge.size
	switch {
	case size < v.end:
		return tampered(size+1, "the events after position %d are missing; a checkpoint covers %d", size, v.end)
	case size < head:
		return tampered(size+1, "the events after position %d are missing; the store says that there are %d", size, head)
	}
	for _, k := range v.kept {
		if size < k.Size {
			return tampered(size+1, "the store ends at position %d, behind the checkpoint that was kept, at %d: it was rolled back, or its end was cut off", size, k.Size)
		}
	}
	return nil
}

// Last returns the last checkpoint of src, whose signature it checks. A store that has
// none yet is an error.
func Last(ctx context.Context, src Source, key Key) (Checkpoint, error) {
	var last batch
	var found bool
	if err := src.View(ctx, func(tx journal.Tx) (err error) {
		last, found, err = lastBatch(tx)
		return err
	}); err != nil {
		return Checkpoint{}, err
	}
	if !found {
		return Checkpoint{}, errors.New("no checkpoint: none was signed yet")
	}
	cp, err := key.OpenCheckpoint(last.note)
	if err != nil {
		return Checkpoint{}, tampered(last.size, "the checkpoint at position %d: %v", last.size, err)
	}
	if cp.Size != last.size {
		return Checkpoint{}, tampered(last.size, "the checkpoint at position %d is one of position %d", last.size, cp.Size)
	}
	return cp, nil
}
