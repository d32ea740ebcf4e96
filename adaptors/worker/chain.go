package worker

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
	"time"

	"inband/ops"
	"inband/service/plane/wire"
)

// errOver says that a chain takes no further message: an answer was final.
var errOver = errors.New("nothing more is expected of this run")

// chain is the messages of one lease: of a run or of a verification. One is under way at
// a time; it is sent again, byte for byte, until it is answered.
type chain struct {
	client *Client
	key    ed25519.PrivateKey
	heard  func(wire.Ack) // called for each answer, in order
	now    func() time.Time

	turn chan struct{} // holds one token: whoever has it may send

	mu      sync.Mutex
	header  wire.Header // Seq and Prev are those of the last message that was answered
	pending *message    // begun and not answered: nothing else may be said before it
	until   time.Time   // the lease, by this machine's clock
	over    error       // why nothing more may be said; nil
	last    bool        // the last word was said
}

// message is one that has been signed.
type message struct {
	kind     wire.Kind
	envelope []byte
	digest   string
	seq      int64
	first    time.Time // when it was sent first; zero: not yet
}

// newChain begins behind what g says was the last message of its subject. sent is when
// the poll was sent that got g.
func newChain(client *Client, key ed25519.PrivateKey, g wire.Grant, sent time.Time, now func() time.Time, heard func(wire.Ack)) *chain {
	c := &chain{client: client, key: key, heard: heard, now: now, header: g.Header, turn: make(chan struct{}, 1)}
	c.until = sent.Add(time.Duration(g.TTLMS) * time.Millisecond)
	c.turn <- struct{}{}
	return c
}

// leaseUntil is when the lease lapses unless an answer extends it.
func (c *chain) leaseUntil() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until
}

// ended says why nothing more may be said, nil if something may.
func (c *chain) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// say sends the next message and returns its answer. It tries until there is one or ctx
// ends; then the message stays under way and goes before the next. The error is that of
// ctx, the fault of a message that was refused, or errOver.
func (c *chain) say(ctx context.Context, kind wire.Kind, body any) (wire.Ack, error) {
	select {
	case <-c.turn:
		defer func() { c.turn <- struct{}{} }()
	case <-ctx.Done():
		return wire.Ack{}, context.Cause(ctx)
	}
	if m := c.underWay(); m != nil {
		if _, err := c.deliver(ctx, m); err != nil {
			return wire.Ack{}, err
		}
	}
	m, err := c.seal(kind, body, false)
	if err != nil {
		return wire.Ack{}, err
	}
	return c.deliver(ctx, m)
}

// lastWord sends a message although the lease is over: what became of the run, which the
// plane keeps as evidence. It is said once, whatever the answer; a chain that ended because
// the plane does not know it, or whose own last message was such a word, has none.
func (c *chain) lastWord(ctx context.Context, kind wire.Kind, body any) error {
	_, err := c.say(ctx, kind, body)
	if err == nil || !has(err, ops.StaleFence) && !errors.Is(err, errOver) {
		return err
	}
	select {
	case <-c.turn:
		defer func() { c.turn <- struct{}{} }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	said := c.last || !has(c.over, ops.StaleFence) && c.over != errOver
	c.mu.Unlock()
	if said {
		return err
	}
	m, sealErr := c.seal(kind, body, true)
	if sealErr != nil {
		return sealErr
	}
	_, err = c.deliver(ctx, m)
	return err
}

// underWay is the message that has not been answered, if nothing has ended the chain.
func (c *chain) underWay() *message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// seal signs the next message. The caller has the turn.
func (c *chain) seal(kind wire.Kind, body any, late bool) (*message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil && !late {
		return nil, fmt.Errorf("%w: %w", errOver, c.over)
	}
	h := c.header
	h.Seq++
	h.SentAt = c.now().UTC()
	envelope, digest, err := wire.SealCallback(c.key, kind, h, body)
	if err != nil {
		return nil, err
	}
	c.last = kind == wire.KindResult || kind == wire.KindCancelProof || kind == wire.KindVerdict || late
	c.pending = &message{kind: kind, envelope: envelope, digest: digest, seq: h.Seq}
	return c.pending, nil
}

// retry is how fast a message is tried again. The longest wait is well below the time
// between heartbeats, so that a lease outlives a gateway's restart.
func retry() *backoff { return &backoff{first: 100 * time.Millisecond, most: 3 * time.Second} }

// deliver sends m until it is answered. The caller has the turn.
func (c *chain) deliver(ctx context.Context, m *message) (wire.Ack, error) {
	for wait := retry(); ; {
		sent := c.now()
		if m.first.IsZero() {
			m.first = sent
		}
		ack, err := c.client.Callback(ctx, m.envelope)
		if err == nil && (ack.Seq != m.seq || ack.Digest != m.digest || ack.Subject != c.header.Subject()) {
			err = &strangeAnswer{what: fmt.Sprintf("an answer to message %d of %s, not to %d of %s", ack.Seq, ack.Subject, m.seq, c.header.Subject())}
		}
		if err == nil {
			if ack.Replayed {
				sent = m.first // it had arrived with an earlier attempt, at the earliest the first
			}
			c.answered(m, ack, sent)
			return ack, nil
		}
		if !Again(err) {
			c.refused(err)
			return wire.Ack{}, err
		}
		if ctx.Err() != nil {
			return wire.Ack{}, context.Cause(ctx)
		}
		if err := wait.wait(ctx, err); err != nil {
			return wire.Ack{}, err
		}
	}
}

// answered takes what an answer says. sent is when the attempt was sent that it is for.
func (c *chain) answered(m *message, ack wire.Ack, sent time.Time) {
	c.mu.Lock()
	c.pending = nil
	c.header.Seq, c.header.Prev = m.seq, m.digest
	if ack.LeaseMS > 0 {
		if until := sent.Add(time.Duration(ack.LeaseMS) * time.Millisecond); until.After(c.until) {
			c.until = until
		}
	}
	if (ack.Final || ack.LeaseMS <= 0) && c.over == nil {
		c.over = errOver
	}
	c.mu.Unlock()
	c.heard(ack)
}

// refused says that a message is not taken and is not sent again. If that is because of
// its lease or its place, nothing more may be said; if it is because of what it says,
// another message may take its place.
func (c *chain) refused(why error) {
	c.mu.Lock()
	c.pending = nil
	ends := has(why, ops.StaleFence, ops.OutOfSequence, ops.NotFound, ops.BadSignature, ops.Unauthenticated, ops.NotPermitted)
	if ends && c.over == nil {
		c.over = why
	}
	c.mu.Unlock()
	if ends {
		c.heard(wire.Ack{Final: true, Reason: why.Error()})
	}
}
