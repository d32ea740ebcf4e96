package notary

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"inband/failpoint"
	"inband/service/journal"
)

// Config is what a Notary stands on. Store, Folder and Log are required.
type Config struct {
	Store  journal.Store
	Folder string // where the keys are, made at the first start
	Log    *slog.Logger

	Every    time.Duration // how long an event waits for its checkpoint at most, default 1 s
	MaxBatch int           // events a checkpoint adds at most, default 1024
}

const (
	// patience is how old an event without a checkpoint may be before Err speaks of
	// it: a minute is far more than Every and less than anybody should sleep through.
	patience = time.Minute

	minPause = 250 * time.Millisecond // between tries after an error, doubled each time
	maxPause = 30 * time.Second
)

// Notary follows a store and signs what it holds. Make one with Open, end it with
// Close before the store's.
type Notary struct {
	cfg    Config
	signer signer
	cancel context.CancelFunc
	done   chan struct{}

	edge *edge // of what is signed; the run's own once it has begun

	// What stands in the checkpoint file; the run's own once it has begun.
	remembered   int64
	rememberedAt time.Time
	forgets      bool // the last try to write it went wrong

	mu      sync.Mutex
	sealed  Checkpoint    // the last; Size 0 without a Note when there is none
	wanted  int64         // a position up to which somebody waits for a checkpoint
	err     error         // why the last try did not go well
	dead    bool          // and it will not be tried again
	changed chan struct{} // closed and replaced whenever one of the above changes
	wake    chan struct{} // of capacity 1: wanted has grown
}

// errStopped is what waiting for a closed notary ends with.
var errStopped = fmt.Errorf("the notary has stopped: %w", journal.ErrClosed)

// Open checks the keys and the last checkpoint against the store and goes to work
// where it ended. A key that is missing, or a store that is not what was signed, is no
// error of Open: the notary then does nothing, Err says why, and the store works on
// without it. ctx bounds the opening only.
func Open(ctx context.Context, c Config) (*Notary, error) {
	if c.Store == nil || c.Folder == "" || c.Log == nil || c.Every < 0 || c.MaxBatch < 0 {
		return nil, errors.New("notary: Store, Folder and Log are required, and no bound is negative")
	}
	if c.Every == 0 {
		c.Every = time.Second
	}
	if c.MaxBatch == 0 {
		c.MaxBatch = 1024
	}
	n := &Notary{cfg: c, done: make(chan struct{}), changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	if err := n.resume(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("open notary: %w", err)
		}
		n.fail(err, true)
		n.cancel = func() {}
		close(n.done)
		return n, nil
	}
	ctx, n.cancel = context.WithCancel(context.Background())
	go n.run(ctx)
	return n, nil
}

// resume finds where the log ends, and makes sure that it is what was signed.
func (n *Notary) resume(ctx context.Context) error {
	var last batch
	var found bool
	n.edge = newEdge(0, nil)
	err := n.cfg.Store.View(ctx, func(tx journal.Tx) (err error) {
		if last, found, err = lastBatch(tx); err != nil || !found {
			return err
		}
		n.edge, err = storedEdge(tx, last.size)
		return err
	})
	if err != nil {
		return err
	}
	name := "inband/" + strings.ToLower(string(n.cfg.Store.Boot()))
	if n.signer, err = loadKey(n.cfg.Folder, name, !found); err != nil {
		return err
	}
	if !found {
		return n.recall(ctx)
	}
	cp, err := n.signer.key.OpenCheckpoint(last.note)
	if err != nil {
		return tampered(last.size, "the checkpoint at position %d: %v", last.size, err)
	}
	if cp.Size != last.size || cp.Hash != n.edge.hash() {
		return tampered(last.size, "the stored hashes up to position %d are not those that were signed", last.size)
	}
	head, err := n.cfg.Store.Head(ctx)
	if err != nil {
		return err
	}
	if head < cp.Size {
		return tampered(head+1, "the events after position %d are missing; a checkpoint covers %d", head, cp.Size)
	}
	n.sealed = cp
	return n.recall(ctx)
}

// recall makes sure that the log has not been taken back since it was last signed: else
// whoever can write the journal could remove the log, and have another history signed.
func (n *Notary) recall(ctx context.Context) error {
	cp, found, err := Remembered(n.cfg.Folder, n.signer.key)
	if err != nil || !found {
		return err
	}
	if cp.Size > n.sealed.Size {
		return tampered(n.sealed.Size+1, "the log ends at position %d, behind the checkpoint in %s, at %d: the journal was put back to an older copy, or its log was cut off; "+
			"if that was meant, move the checkpoint aside", n.sealed.Size, filepath.Join(n.cfg.Folder, checkpointFile), cp.Size)
	}
	var then *edge
	if err := n.cfg.Store.View(ctx, func(tx journal.Tx) (err error) {
		then, err = storedEdge(tx, cp.Size)
		return err
	}); err != nil {
		return err
	}
	if then.hash() != cp.Hash {
		return tampered(cp.Size, "the stored hashes up to position %d are not those of the checkpoint in %s", cp.Size, filepath.Join(n.cfg.Folder, checkpointFile))
	}
	n.remembered = cp.Size
	return nil
}

// remember writes the last checkpoint beside the key. That it cannot is said once: the
// log itself is whole without it.
func (n *Notary) remember() {
	cp := n.Sealed()
	if cp.Size == n.remembered {
		return
	}
	n.rememberedAt = time.Now()
	if err := writeFile(filepath.Join(n.cfg.Folder, checkpointFile), cp.Note, 0o644); err != nil {
		if !n.forgets {
			n.cfg.Log.Error("the notary cannot remember its last checkpoint", "err", err)
		}
		n.forgets = true
		return
	}
	n.remembered, n.forgets = cp.Size, false
}

// Sealed returns the last checkpoint, of Size 0 when there is none.
func (n *Notary) Sealed() Checkpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sealed
}

// Key is the public key. Its String is empty when there is none.
func (n *Notary) Key() Key { return n.signer.key }

// run follows the store until ctx ends, the store closes, or an error shows that going
// on would sign what must not be signed.
func (n *Notary) run(ctx context.Context) {
	defer close(n.done)
	defer n.remember()
	pause := minPause
	for {
		before := n.edge.size
		err := n.follow(ctx)
		var t *Tampering
		switch {
		case ctx.Err() != nil || errors.Is(err, journal.ErrClosed) && !errors.Is(err, journal.ErrUnknownCommit):
			n.fail(errStopped, true)
			return
		case errors.As(err, &t), errors.Is(err, journal.ErrUnknownCommit), errors.Is(err, journal.ErrConstraint), errors.Is(err, journal.ErrCorrupt):
			n.fail(err, true)
			return
		}
		n.fail(err, false)
		if n.edge.size > before {
			pause = minPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxPause)
	}
}

// leaf is an event on its way into the tree.
type leaf struct {
	position int64
	hash     tlog.Hash
}

// follow seals what comes after the edge until something goes wrong. Nothing of an
// unsealed batch remains then.
func (n *Notary) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	leaves := make(chan leaf, 256)
	ended := make(chan error, 1)
	after := n.edge.size
	go func() {
		ended <- n.cfg.Store.Tail(ctx, after, func(e journal.Event) error {
			select {
			case leaves <- leaf{e.Position, tlog.RecordHash(Record(e))}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		close(leaves)
	}()
	defer func() {
		cancel()
		for range leaves { // until Tail has returned
		}
	}()

	// A copy grows, so that what goes wrong leaves the edge of what is signed.
	grown, hashes := n.edge.clone(), []byte(nil)
	due := time.NewTimer(n.cfg.Every)
	due.Stop()
	defer due.Stop()
	for {
		pressing := false
		select {
		case l, ok := <-leaves:
			if !ok {
				return <-ended
			}
			if l.position != grown.size+1 {
				return tampered(grown.size+1, "the event at position %d is missing; the next one is at %d", grown.size+1, l.position)
			}
			if grown.size == n.edge.size {
				due.Reset(n.cfg.Every)
			}
			for _, h := range grown.add(l.hash) {
				hashes = append(hashes, h[:]...)
			}
			pressing = int(grown.size-n.edge.size) >= n.cfg.MaxBatch
		case <-due.C:
			pressing = true
		case <-n.wake:
		}
		n.mu.Lock()
		pressing = pressing || n.wanted > n.edge.size && grown.size >= n.wanted
		n.mu.Unlock()
		if !pressing || grown.size == n.edge.size {
			continue
		}
		if err := n.seal(ctx, grown, hashes); err != nil {
			return err
		}
		hashes = hashes[:0]
		due.Stop()
	}
}

// seal signs the tree at grown, and stores the hashes that have come with it.
func (n *Notary) seal(ctx context.Context, grown *edge, hashes []byte) error {
	cp, err := n.signer.sign(grown.size, grown.hash())
	if err != nil {
		return err
	}
	failpoint.Here("notary.signed")
	first := tlog.StoredHashCount(n.edge.size)
	err = n.cfg.Store.Update(ctx, func(tx journal.Tx) error {
		_, err := tx.Exec(`INSERT INTO notary_batch (size, first_hash, hashes, checkpoint) VALUES ($1, $2, $3, $4)`,
			cp.Size, first, hashes, cp.Note)
		failpoint.Here("notary.before-commit")
		return err
	})
	if err != nil {
		return fmt.Errorf("store checkpoint at position %d: %w", cp.Size, err)
	}
	failpoint.Here("notary.after-commit")
	n.edge = grown.clone()
	n.mu.Lock()
	if n.err != nil {
		n.cfg.Log.Info("the notary signs again", "position", cp.Size)
	}
	n.sealed, n.err = cp, nil
	n.announce()
	n.mu.Unlock()
	if time.Since(n.rememberedAt) >= n.cfg.Every {
		n.remember()
	}
	return nil
}

// announce tells those who wait; n.mu is held.
func (n *Notary) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// fail keeps why the notary does not get on, and says it once.
func (n *Notary) fail(err error, dead bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return
	}
	if err != errStopped && (n.err == nil || dead) {
		n.cfg.Log.Error("the notary does not sign", "err", err, "tries_again", !dead)
	}
	n.err, n.dead = err, dead
	n.announce()
}

// Checkpoint returns a checkpoint over every event that is committed when it is called,
// and waits for it. It returns ctx's error, or why there will be none.
func (n *Notary) Checkpoint(ctx context.Context) (Checkpoint, error) {
	return n.await(ctx, func(_ error, dead bool) bool { return dead })
}

// await is Checkpoint until hopeless says, of the last error and whether it is final,
// that waiting is in vain.
func (n *Notary) await(ctx context.Context, hopeless func(err error, dead bool) bool) (Checkpoint, error) {
	head, err := n.cfg.Store.Head(ctx)
	if err != nil {
		return Checkpoint{}, err
	}
	for {
		n.mu.Lock()
		if n.wanted < head {
			n.wanted = head
		}
		sealed, err, dead, changed := n.sealed, n.err, n.dead, n.changed
		n.mu.Unlock()
		switch {
		case hopeless(err, dead):
			return Checkpoint{}, fmt.Errorf("no checkpoint: %w", err)
		case sealed.Size >= head && sealed.Size > 0:
			return sealed, nil
		case head == 0:
			return Checkpoint{}, errors.New("no checkpoint: the store holds no event")
		}
		select {
		case n.wake <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err != nil {
				return Checkpoint{}, fmt.Errorf("no checkpoint yet: %w", err)
			}
			return Checkpoint{}, context.Cause(ctx)
		}
	}
}

// Status is how far a notary has come.
type Status struct {
	Key      string `json:"key"`      // the public key, empty when there is none
	Position int64  `json:"position"` // up to which the last checkpoint reaches
	Head     int64  `json:"head"`     // the last event of the store
	Lag      int64  `json:"lag"`      // events without a checkpoint
	State    string `json:"state"`    // "signing", "late" or "failed"
	Why      string `json:"why,omitempty"`
}

// Status says how far n has come, and whether that is as it should be.
func (n *Notary) Status(ctx context.Context) (Status, error) {
	n.mu.Lock()
	s := Status{Key: n.signer.key.String(), Position: n.sealed.Size, State: "signing"}
	err, dead := n.err, n.dead
	n.mu.Unlock()
	var failed error
	if s.Head, failed = n.cfg.Store.Head(ctx); failed != nil {
		return Status{}, failed
	}
	s.Lag = max(0, s.Head-s.Position)
	switch {
	case dead:
		s.State, s.Why = "failed", err.Error()
	case err != nil:
		s.State, s.Why = "late", err.Error()
	case s.Lag > 0:
		waited, failed := n.waited(ctx, s.Position)
		if failed != nil {
			return Status{}, failed
		}
		if waited > patience {
			s.State, s.Why = "late", fmt.Sprintf("the event at position %d has waited %s for its checkpoint", s.Position+1, waited.Round(time.Second))
		}
	}
	return s, nil
}

// waited is how long the event after a position has waited.
func (n *Notary) waited(ctx context.Context, position int64) (waited time.Duration, err error) {
	found := errors.New("found")
	err = n.cfg.Store.Tail(ctx, position, func(e journal.Event) error {
		waited = time.Since(e.At)
		return found
	})
	if errors.Is(err, found) {
		return waited, nil
	}
	return 0, err
}

// Err says what is wrong with n, in one sentence: nil while it signs in time.
func (n *Notary) Err(ctx context.Context) error {
	s, err := n.Status(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the notary: %w", err)
	case s.State == "signing":
		return nil
	case s.State == "late":
		return fmt.Errorf("the notary is late, %d events have no checkpoint: %s", s.Lag, s.Why)
	}
	return fmt.Errorf("the notary has failed: %s", s.Why)
}

// Close signs what is committed by now, as long as ctx lasts and nothing is wrong, and
// ends the notary. Events that it does not reach are signed after the next start.
func (n *Notary) Close(ctx context.Context) {
	if head, err := n.cfg.Store.Head(ctx); err == nil && head > 0 {
		// What is wrong, the log has said; there is no time to try again.
		_, _ = n.await(ctx, func(err error, _ bool) bool { return err != nil })
	}
	n.cancel()
	<-n.done
}
