package plane

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
)

//go:embed schema
var schema embed.FS

// Schema returns the tables of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "plane", FS: sub}
}

// What a Config that leaves them out has.
const (
	StandardTTL         = 30 * time.Second
	StandardHeartbeat   = 10 * time.Second
	StandardStall       = 10 * time.Minute
	StandardVerify      = 15 * time.Minute
	StandardCancelGrace = 30 * time.Second
	StandardStarts      = 50 // a second
)

// Notices is what the plane tells the threads that its work was ordered in.
type Notices interface {
	// Begun is told of each delegation that call has ordered, in the transaction that
	// accepts the call. Nothing of it is done yet.
	Begun(tx journal.Tx, call ops.Call, delegation string) error
	// Note writes text of the plane's own into the thread of a, in tx, and below it words
	// of somebody who works on the delegation, which are nobody's orders; "" for none.
	// about is the delegation.
	Note(tx journal.Tx, a ops.Address, about, text, words string) error
	// Closed is told of each delegation that closes, in the transaction that closes it.
	Closed(tx journal.Tx, n News) error
}

// News is the end of a delegation.
type News struct {
	Call       ops.Call
	Delegation string
	State      DelegationState
	Summary    string // the worker's words, at most 4 KiB, untrusted
}

// Config is what a Plane needs. Times that are zero are the standard ones.
type Config struct {
	Store     journal.Store // with Schema, service.Schema, access.Schema and artifacts.Schema
	Door      *service.Door
	Directory *access.Directory
	Policy    *access.LivePolicy // the door's
	Artifacts *artifacts.Store
	Notices   Notices            // nil: nobody is told
	Key       ed25519.PrivateKey // with which grants are signed
	Log       *slog.Logger

	TTL          time.Duration // of a lease; at least three Heartbeats
	Heartbeat    time.Duration // that workers are told to keep
	Stall        time.Duration // without progress, after which a run is stopped
	Recover      time.Duration // how long an UNKNOWN run waits for contact; 0 is TTL
	VerifyWithin time.Duration // for a verifier to judge
	CancelGrace  time.Duration // for a cancelled run to prove that it has stopped

	// StartsPerSecond is how many new runs of one implementation become due in one second
	// after others have failed, so that what fell at once does not come back at once.
	StartsPerSecond int

	// Clock is the wall clock that the store goes by; nil is time.Now. It says when to
	// look and whether the clock was set. What is due, and all that is written, goes by
	// the time of a transaction.
	Clock func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	if c.Store == nil || c.Door == nil || c.Directory == nil || c.Policy == nil || c.Log == nil {
		return c, errors.New("plane: want a store, a door, a directory, a policy and a log")
	}
	if len(c.Key) != ed25519.PrivateKeySize {
		return c, fmt.Errorf("plane: a key of %d bytes, want an Ed25519 private key of %d", len(c.Key), ed25519.PrivateKeySize)
	}
	c.TTL = cmp.Or(c.TTL, StandardTTL)
	c.Heartbeat = cmp.Or(c.Heartbeat, StandardHeartbeat)
	c.Stall = cmp.Or(c.Stall, StandardStall)
	c.Recover = cmp.Or(c.Recover, c.TTL)
	c.VerifyWithin = cmp.Or(c.VerifyWithin, StandardVerify)
	c.CancelGrace = cmp.Or(c.CancelGrace, StandardCancelGrace)
	c.StartsPerSecond = cmp.Or(c.StartsPerSecond, StandardStarts)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	switch {
	case min(c.TTL, c.Heartbeat, c.Stall, c.Recover, c.VerifyWithin, c.CancelGrace) < time.Millisecond:
		return c, errors.New("plane: a time below 1ms")
	case c.TTL < 3*c.Heartbeat:
		return c, fmt.Errorf("plane: a lease of %s and a heartbeat each %s: want a lease of at least three heartbeats, or one that is lost loses the lease", c.TTL, c.Heartbeat)
	case c.StartsPerSecond < 1:
		return c, fmt.Errorf("plane: %d starts a second: want at least 1", c.StartsPerSecond)
	}
	return c, nil
}

// Plane is the plane of a store. Make it with New before the door is started, then Start
// it; Close it before the store.
type Plane struct {
	Config
	store     journal.Store
	door      *service.Door
	artifacts *artifacts.Store
	policy    *access.LivePolicy
	notices   Notices
	log       *slog.Logger
	secret    [32]byte // of challenges
	keys      keys
	counts    counts
	offers    offers
	watch     watch
	settling  sync.Mutex // held while a clock that was set is dealt with

	life      context.Context
	stop      context.CancelFunc
	work      sync.WaitGroup
	attention chan struct{} // something has changed that the sweeper may have to look at
}

// New returns the plane over c. An error says what of c is wrong.
func New(c Config) (*Plane, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Plane{Config: c, store: c.Store, door: c.Door, artifacts: c.Artifacts, policy: c.Policy, notices: c.Notices, log: c.Log,
		secret:    sha256.Sum256(append([]byte("inband plane challenge\x00"), c.Key.Seed()...)),
		attention: make(chan struct{}, 1)}
	p.watch.reset(c.Clock())
	p.life, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Start gives every lease one more TTL, since nobody could extend one while no plane ran,
// and begins to offer work and to look after what is due. ctx bounds the start only.
func (p *Plane) Start(ctx context.Context) error {
	head, err := p.store.Head(ctx)
	if err != nil {
		return fmt.Errorf("start the plane: %w", err)
	}
	if err := p.begin(ctx); err != nil {
		return fmt.Errorf("start the plane: %w", err)
	}
	p.work.Go(func() { service.Follow(p.life, p.store, head, p.log, p.heard) })
	p.work.Go(p.loop)
	return nil
}

// Close answers those who wait in Poll, ends the sweeps after the transaction under way,
// and waits for them.
func (p *Plane) Close() {
	p.stop()
	p.work.Wait()
}

// manages returns a fault unless by may manage the gateway.
func (p *Plane) manages(by ops.Identity) error {
	if !p.policy.Current().Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		return ops.Faultf(ops.NotPermitted, "%s may not manage the plane", by)
	}
	return nil
}

// newID returns a fresh id: the prefix and a lower-case ULID.
func newID(prefix string) string { return prefix + strings.ToLower(ulid.Make().String()) }

// earlier returns the first of two moments, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// signal wakes whoever waits on c, or will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake already
	}
}
