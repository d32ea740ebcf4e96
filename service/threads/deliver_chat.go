package threads

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"inband/failpoint"
	"inband/service"
	"inband/service/journal"
)

// Bounds of the delivery to a chat.
const (
	// postsAtOnce is how many posts to one platform are under way at most, each in
	// another thread.
	postsAtOnce = 8
	// postLimit bounds one request to a platform. A post that takes longer may stand there.
	postLimit = 30 * time.Second
	// postGrace is how long a post under way may go on while the gateway stops.
	postGrace = 5 * time.Second
	// firstWait and lastWait bound the waits between attempts, what a platform asks for
	// included.
	firstWait = time.Second
	lastWait  = 5 * time.Minute
	// patience is how often a post may be left untaken while others are taken, before it is
	// set aside.
	patience = 12
)

// lane is a thread that has something to be delivered. Its posts are made one after
// another.
type lane struct {
	thread string
	due    time.Time // when it waits
	busy   bool      // one of its posts is under way
	again  bool      // something was added meanwhile
	fails  int       // attempts in a row that the journal has failed
}

// courier delivers to one chat: in order within a thread, and no thread waits for
// another. What is to be delivered, and when it is tried again, stands in the outbox; a
// courier only remembers in which threads there is something.
type courier struct {
	t    *Threads
	chat Chat

	attention chan struct{} // there may be something to start

	mu      sync.Mutex
	lanes   map[string]*lane
	ready   []*lane
	waiting laneHeap
	paused  time.Time // the platform takes nothing until then
	running int
	taken   time.Time // when the platform last took a post
}

func newCourier(t *Threads, chat Chat) *courier {
	return &courier{t: t, chat: chat, attention: make(chan struct{}, 1), lanes: make(map[string]*lane)}
}

// followChats tells the couriers of what is queued after a position.
func (t *Threads) followChats(after int64, couriers map[string]*courier) {
	service.Follow(t.life, t.store, after, t.log, func(e journal.Event) {
		if e.Kind != "outbox.queued" {
			return
		}
		var body struct{ Thread, Adaptor string }
		if json.Unmarshal(e.Body, &body) != nil {
			return
		}
		if c := couriers[body.Adaptor]; c != nil {
			c.add(body.Thread)
		}
	})
}

// add says that there is something to deliver in thread.
func (c *courier) add(thread string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch l := c.lanes[thread]; {
	case l == nil:
		l = &lane{thread: thread}
		c.lanes[thread] = l
		c.ready = append(c.ready, l)
		c.look()
	case l.busy:
		l.again = true
	}
}

// look has run look for something to start.
func (c *courier) look() {
	select {
	case c.attention <- struct{}{}:
	default: // it will look anyway
	}
}

// run delivers until the threads are closed.
func (c *courier) run() {
	var posts sync.WaitGroup
	defer posts.Wait()
	if !c.fill() {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.attention:
		case <-timer.C:
		case <-c.t.life.Done():
			return
		}
		started, next := c.start()
		for _, l := range started {
			posts.Go(func() {
				more, wait := c.next(l)
				c.done(l, more, wait)
			})
		}
		if next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
}

// fill finds the threads in which an earlier gateway has left something. It is false when
// the threads were closed before it could.
func (c *courier) fill() bool {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		var left []string
		err := c.t.store.View(c.t.life, func(tx journal.Tx) error {
			left = nil
			return tx.Query(`SELECT DISTINCT address FROM outbox WHERE adaptor = $1 AND state IN ('queued', 'sending')`,
				func(scan func(...any) error) error {
					var thread string
					err := scan(&thread)
					left = append(left, thread)
					return err
				}, c.chat.Name())
		})
		if err == nil {
			for _, thread := range left {
				c.add(thread)
			}
			return true
		}
		if c.t.life.Err() != nil {
			return false
		}
		c.t.log.Error("what is left to deliver cannot be read; trying again", "adaptor", c.chat.Name(), "err", err)
		if !c.t.pause(wait) {
			return false
		}
	}
}

// pause waits, and is false when the threads are closed meanwhile.
func (t *Threads) pause(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.life.Done():
		return false
	}
}

// start takes the lanes whose turn it is and says when to look again, 0 for when there is
// attention.
func (c *courier) start() (started []*lane, next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for len(c.waiting) > 0 && !c.waiting[0].due.After(now) {
		c.ready = append(c.ready, heap.Pop(&c.waiting).(*lane))
	}
	if wait := c.paused.Sub(now); wait > 0 {
		return nil, wait
	}
	for c.running < postsAtOnce && len(c.ready) > 0 {
		l := c.ready[0]
		c.ready = c.ready[1:]
		l.busy, l.again = true, false
		c.running++
		started = append(started, l)
	}
	if len(c.waiting) > 0 {
		next = max(c.waiting[0].due.Sub(now), time.Millisecond)
	}
	return started, next
}

// done puts l back in line, or forgets it when there is nothing more in its thread.
func (c *courier) done(l *lane, more bool, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	l.busy = false
	switch {
	case more && wait > 0:
		l.due = time.Now().Add(wait)
		heap.Push(&c.waiting, l)
	case more || l.again:
		c.ready = append(c.ready, l)
	default:
		delete(c.lanes, l.thread)
	}
	c.look()
}

// next makes the next delivery in the thread of l, or finds out what came of it. It says
// whether there may be more, and how long to wait before.
func (c *courier) next(l *lane) (more bool, wait time.Duration) {
	d, address, err := c.head(l.thread)
	switch {
	case c.t.life.Err() != nil:
		return true, lastWait // and nobody comes back
	case err != nil:
		l.fails++
		c.t.log.Error("the outbox cannot be read; trying again", "adaptor", c.chat.Name(), "thread", l.thread, "err", err)
		return true, min(firstRetry<<min(l.fails, 10), lastRetry)
	case d.id == "":
		return false, 0
	}
	l.fails = 0
	// A clock that was set back must not make anybody wait longer than lastWait.
	if wait := time.Until(time.UnixMilli(d.nextAt)); wait > 0 && wait <= lastWait {
		return true, wait
	}
	if address == "" {
		c.keep(func(tx journal.Tx) error {
			return setAside(tx, d, noThread, "the thread has no address on the platform")
		})
		return true, 0
	}
	change, err := c.placeholder(d)
	switch _, finder := c.chat.(Finder); {
	case err != nil:
		return true, firstRetry
	case d.isPointer() && change == "":
		c.drop(d)
		return true, 0
	case d.state == "sending" && !d.isPointer() && (finder || change == ""): // an edit may be made again
		if ready, wait := c.readBack(d, address); !ready {
			return true, wait
		}
	}
	if change != "" {
		return true, c.edit(d, address, change)
	}
	return true, c.post(d, address)
}

// head is the oldest delivery in a thread that is not made, and the thread's address.
func (c *courier) head(thread string) (d delivery, address string, err error) {
	err = c.t.store.View(c.t.life, func(tx journal.Tx) error {
		list, err := selectDeliveries(tx, `WHERE adaptor = $1 AND address = $2 AND state IN ('queued', 'sending') ORDER BY seq LIMIT 1`, c.chat.Name(), thread)
		if err != nil || len(list) == 0 {
			d = delivery{}
			return err
		}
		d, address = list[0], ""
		return tx.Query(`SELECT address FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&address) }, thread)
	})
	return d, address, err
}

// readBack finds out whether d, which may stand in its thread, does. ready means that it
// may be sent again; otherwise wait is how long to wait before what comes next.
func (c *courier) readBack(d delivery, address string) (ready bool, wait time.Duration) {
	finder, ok := c.chat.(Finder)
	if !ok {
		if c.chat.Limits().Keys {
			return true, 0
		}
		c.count(unknownFate)
		c.keep(func(tx journal.Tx) error {
			return setAside(tx, d, unknownFate, "it is not known whether it stands there, and the platform cannot tell")
		})
		return false, 0
	}
	ctx, cancel := c.patient()
	defer cancel()
	p, found, err := finder.Find(ctx, address, d.mark)
	if err != nil {
		return false, c.failed(d, "read back: ", err, "sending")
	}
	if found {
		c.count("found")
		c.delivered(d, address, p)
		return false, 0
	}
	return true, 0
}

// post sends d and keeps what came of it. It returns how long to wait before the next
// attempt, 0 when there is none.
func (c *courier) post(d delivery, address string) (wait time.Duration) {
	if d, wait = c.claim(d); wait != 0 || d.state != "sending" {
		return wait
	}
	ctx, cancel := c.patient()
	p, err := c.chat.Post(ctx, address, Outgoing{Mark: d.mark, Key: d.key(), Text: d.body, Mention: d.mention, File: d.file})
	cancel()
	failpoint.Here("threads.sent")
	if err != nil {
		return c.failed(d, "", err, "queued")
	}
	c.delivered(d, address, p)
	return 0
}

// claim says in the journal that d is being sent, before it is. d is returned as it is then;
// its state is not sending when somebody else has changed it.
func (c *courier) claim(d delivery) (delivery, time.Duration) {
	claimed := false
	if !c.keep(func(tx journal.Tx) error {
		n, err := tx.Exec(`UPDATE outbox SET state = 'sending', owner = $1, attempts = attempts + 1 WHERE id = $2 AND state = $3`,
			string(c.t.store.Boot()), d.id, d.state)
		claimed = n == 1
		return err
	}) {
		return d, lastWait
	}
	if !claimed {
		d.state = ""
		return d, 0
	}
	d.state = "sending"
	d.attempts++
	failpoint.Here("threads.sending")
	return d, 0
}

// patient is the context of one request to the platform: bounded, and with a grace when
// the threads are closed, since cutting it off leaves a post of unknown fate.
func (c *courier) patient() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.life), postLimit)
	stop := context.AfterFunc(c.t.life, func() {
		grace := time.AfterFunc(postGrace, cancel)
		context.AfterFunc(ctx, func() { grace.Stop() })
	})
	return ctx, func() { stop(); cancel() }
}

// failed keeps that an attempt at d has failed and returns how long to wait. unsent is the
// state that d is in when it is certain that the attempt has written nothing.
func (c *courier) failed(d delivery, doing string, err error, unsent string) (wait time.Duration) {
	p := asPostError(err)
	c.count(string(p.Kind))
	text := faultText(doing + err.Error())
	c.t.log.Warn("not delivered", "adaptor", c.chat.Name(), "thread", d.thread, "delivery", d.id, "attempt", d.attempts, "why", p.Kind, "err", text)
	wait, state := backoff(d.attempts), unsent
	switch p.Kind {
	case RefusedPost, RootGone, Closed:
		reason := string(p.Kind)
		if unsent == "sending" { // it is the looking that is refused
			reason = unknownFate
		}
		c.keep(func(tx journal.Tx) error { return setAsideAll(tx, d, reason, text) })
		return 0
	case RateLimit:
		if p.After > 0 {
			wait = min(p.After, lastWait)
			d.attempts-- // the platform has not looked at it
		}
		if p.Wide {
			c.mu.Lock()
			c.paused = time.Now().Add(wait)
			c.mu.Unlock()
		}
	case Unsent:
		if unsent == "queued" && d.attempts >= patience && c.othersTaken() {
			c.keep(func(tx journal.Tx) error { return setAsideAll(tx, d, gaveUp, text) })
			return 0
		}
	default: // also what this package does not know
		state = "sending"
	}
	c.keep(func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE outbox SET state = $1, next_at = $2, fault = $3, attempts = $4 WHERE id = $5 AND state = 'sending'`,
			state, time.Now().Add(wait).UnixMilli(), text, d.attempts, d.id)
		return err
	})
	return wait
}

// othersTaken reports whether the platform has lately taken something: then it is not the
// platform that is out of order, but what it does not take.
func (c *courier) othersTaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.taken.IsZero() && time.Since(c.taken) < lastWait
}

// delivered keeps that d stands on the platform as p. A first post has made the root of
// its thread, whose address is known from then on.
func (c *courier) delivered(d delivery, address string, p Posted) {
	c.count("delivered")
	c.mu.Lock()
	c.taken = time.Now()
	c.mu.Unlock()
	if c.keep(func(tx journal.Tx) error { return c.t.markDelivered(tx, d, address, p) }) {
		failpoint.Here("threads.marked")
	}
}

func (t *Threads) markDelivered(tx journal.Tx, d delivery, address string, p Posted) error {
	n, err := tx.Exec(`UPDATE outbox SET state = 'delivered', delivered_at = $1, platform_id = $2, owner = '', next_at = 0, fault = NULL
			WHERE id = $3 AND state = 'sending'`, tx.Now().UnixMilli(), orNull(p.ID), d.id)
	if err != nil || n == 0 {
		return err
	}
	if d.kind == "result" { // it may stand in the place of what said that it is not finished
		if _, err := tx.Exec(`UPDATE outbox SET reason = $1 WHERE kind = 'note' AND about = $2 AND platform_id = $3`, wasEdited, progressOf(d.call), p.ID); err != nil {
			return err
		}
	}
	if p.Address != "" && p.Address != address {
		if err := t.root(tx, d, p.Address); err != nil {
			return err
		}
	}
	if err := mirror(tx, d, p.ID); err != nil {
		return err
	}
	return event(tx, d.thread, "outbox.delivered", struct {
		Thread     string `json:"thread"`
		Adaptor    string `json:"adaptor"`
		ID         string `json:"id"`
		Kind       string `json:"kind"`
		About      string `json:"about"`
		Part       int64  `json:"part,omitempty"`
		Post       string `json:"post"`
		PlatformID string `json:"platform_id"`
	}{d.thread, d.adaptor, d.id, d.kind, d.about, d.part, d.mark, p.ID})
}

// root keeps that the thread of d stands at address now. Somebody may have answered there
// before that was known, so that a thread was opened for it: from now on it is this one
// that is found. What its agents have been shown there they have been shown here, an
// operator who has stopped that one meant this, and whoever was woken there answers here.
func (t *Threads) root(tx journal.Tx, d delivery, address string) error {
	var before string
	if err := tx.Query(`SELECT id FROM thread WHERE adaptor = $1 AND address = $2 AND adaptor <> 'rooms' AND rooted = 1 AND id <> $3`,
		func(scan func(...any) error) error { return scan(&before) }, d.adaptor, address, d.thread); err != nil {
		return err
	}
	if before != "" {
		if _, err := tx.Exec(`UPDATE thread SET rooted = 2 WHERE id = $1`, before); err != nil {
			return err
		}
		if err := inheritMaterial(tx, before, d.thread); err != nil {
			return err
		}
		if err := t.door.Spread(tx, before, d.thread); err != nil {
			return err
		}
		if _, err := tx.Exec(`UPDATE wake SET thread = $1 WHERE thread = $2 AND state <> 'ended'`, d.thread, before); err != nil {
			return err
		}
	}
	_, err := tx.Exec(`UPDATE thread SET address = $1, rooted = 1 WHERE id = $2`, address, d.thread)
	return err
}

// setAsideAll sets d aside, and the parts of its text behind it, which would say nothing
// without it.
func setAsideAll(tx journal.Tx, d delivery, reason, fault string) error {
	rest, err := selectDeliveries(tx, `WHERE kind = $1 AND about = $2 AND part > $3 AND state = 'queued' ORDER BY part`, d.kind, d.about, d.part)
	if err != nil {
		return err
	}
	if err := setAside(tx, d, reason, fault); err != nil {
		return err
	}
	for _, behind := range rest {
		if err := setAside(tx, behind, reason, fmt.Sprintf("part %d of the same text is set aside: %s", d.part, fault)); err != nil {
			return err
		}
	}
	return nil
}

// keep writes f, which says what has become of a delivery, however long the store cannot:
// until then nothing else is done in its thread. It is false when the threads were closed
// before; what may have been sent is looked for after the next start.
func (c *courier) keep(f func(journal.Tx) error) bool {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.life), postGrace)
		err := c.t.store.Update(ctx, f)
		cancel()
		if err == nil {
			return true
		}
		if errors.Is(err, journal.ErrClosed) {
			return false
		}
		c.t.log.Error("what became of a delivery is not written yet", "adaptor", c.chat.Name(), "err", err)
		if !c.t.pause(wait) {
			return false
		}
	}
}

func (c *courier) count(label string) { c.t.counts.add("deliveries", label, 1) }

// backoff is how long to wait after so many attempts.
func backoff(attempts int64) time.Duration {
	most := min(firstWait<<min(max(attempts-1, 0), 20), lastWait)
	return most/2 + rand.N(most/2) // so that many do not come back at once
}

// maxFault bounds what the outbox keeps of why an attempt failed, in bytes.
const maxFault = 500

// faultText is what the outbox keeps of why an attempt failed.
func faultText(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s[:min(len(s), maxFault)], "\x00", ""), "\ufffd")
}

// laneHeap is the lanes that wait, the one that is due first at the top.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h laneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laneHeap) Push(x any)        { *h = append(*h, x.(*lane)) }
func (h *laneHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	*h = old[:len(old)-1]
	return l
}
