package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// MaxWait bounds how long a Poll waits for work.
const MaxWait = 60 * time.Second

const (
	maxNonce = 64   // bytes
	page     = 256  // dispatches that are read at a time
	maxPolls = 4096 // that wait at a time
)

// Poll returns a signed grant for the worker or verifier by, or nil if there is nothing for
// it within the time that q waits. The same nonce is answered with the same grant again,
// as long as its lease lives.
//
// The time of the lease counts from when the poll was sent. What was waited for the work is
// added to it, so a long poll costs nothing of the lease.
func (p *Plane) Poll(ctx context.Context, by ops.Identity, q wire.Poll) ([]byte, error) {
	wait := time.Duration(q.WaitMS) * time.Millisecond
	switch {
	case q.Nonce == "" || len(q.Nonce) > maxNonce:
		return nil, final(ops.BadRequest, "a nonce of %d bytes: want 1 to %d, another for each poll", len(q.Nonce), maxNonce)
	case q.WaitMS < 0 || wait > MaxWait:
		return nil, final(ops.BadRequest, "a wait of %d ms: want 0 to %d", q.WaitMS, MaxWait.Milliseconds())
	}
	received := time.Now()
	if err := p.settleClock(ctx); err != nil {
		return nil, stored(err)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for w := (*waiter)(nil); ; {
		who, grant, err := p.offer(ctx, by, q, received)
		if err != nil {
			return nil, stored(err)
		}
		if grant != nil {
			failpoint.Here("plane.granted")
			p.counts.add("polls", "granted", 1)
			envelope, _, err := wire.Seal(p.Key, wire.KindGrant, grant)
			return envelope, err
		}
		if w == nil { // Once in line it looks again, since something may have come meanwhile.
			w = &waiter{role: who.role, skills: who.skills, barred: !who.offered(), ready: make(chan struct{}, 1)}
			if !p.offers.join(w) {
				return nil, ops.Faultf(ops.Busy, "%d polls wait already; try again later", maxPolls)
			}
			defer p.offers.leave(w)
			continue
		}
		p.offers.bar(w, !who.offered())
		select {
		case <-w.ready:
			p.offers.again(w)
		case <-timer.C:
			p.counts.add("polls", "empty", 1)
			return nil, nil
		case <-p.life.Done():
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// offer looks for work for by and leases it, nil if there is none now. It looks without
// writing first, unless the last look of anybody for such work has found some. who is by's
// row.
func (p *Plane) offer(ctx context.Context, by ops.Identity, q wire.Poll, received time.Time) (who principalRow, grant *wire.Grant, err error) {
	for range rounds {
		var found []string
		if !p.offers.likely(by.ID) {
			if err := p.store.View(ctx, func(tx journal.Tx) error {
				grant, found = nil, nil
				if who, err = p.speaker(tx, by, q.Boot); err != nil {
					return err
				}
				if who.nonce == q.Nonce {
					grant, err = p.granted(tx, who)
					return err
				}
				found, err = p.find(tx, who)
				return err
			}); err != nil || grant != nil || len(found) == 0 {
				return who, grant, err
			}
		}
		err = p.store.Update(ctx, func(tx journal.Tx) error {
			grant = nil
			if p.jumped() {
				return errJumped
			}
			if who, err = p.speaker(tx, by, q.Boot); err != nil {
				return err
			}
			grant, err = p.take(tx, who, q.Nonce, found, received)
			return err
		})
		p.offers.learn(by.ID, err == nil && grant != nil)
		switch {
		case errors.Is(err, errJumped):
			if err := p.settleClock(ctx); err != nil {
				return who, nil, err
			}
		case err != nil && !errors.Is(err, ErrStaleRow), grant != nil:
			return who, grant, err
		}
		// Somebody else was quicker with all that was found; there may be more.
	}
	return who, nil, nil
}

// rounds bounds how often a poll looks again at once because others were quicker.
const rounds = 8

// speaker is who polls, if it may.
func (p *Plane) speaker(tx journal.Tx, by ops.Identity, boot string) (principalRow, error) {
	who, known, err := p.principal(tx, by.ID)
	if err != nil {
		return who, err
	}
	if f := speaks(who, known, by, boot); f != nil {
		return who, f
	}
	return who, nil
}

// take leases who the first thing that can be had, nil if there is none. found is where to
// look first.
func (p *Plane) take(tx journal.Tx, who principalRow, nonce string, found []string, received time.Time) (grant *wire.Grant, err error) {
	if who.nonce == nonce {
		return p.granted(tx, who)
	}
	if !who.offered() || tx.Now().Before(who.grantsAt) {
		return nil, nil
	}
	if who.role == ops.Verifier {
		grant, err = p.offerVerification(tx, who, nonce)
	} else {
		if len(found) > 0 {
			grant, err = p.lease(tx, who, nonce, found)
		}
		if err == nil && grant == nil { // or others were quicker with all of it, while more waits
			if found, err = p.search(tx, who, 1); err == nil {
				grant, err = p.lease(tx, who, nonce, found)
			}
		}
	}
	if err != nil || grant == nil {
		return nil, err
	}
	// It is counted from when the poll was sent, which is not after it came.
	grant.TTLMS += time.Since(received).Milliseconds()
	_, err = tx.Exec(`UPDATE principal SET nonce = $1, granted = $2, seen_at = $3 WHERE id = $4`,
		nonce, grant.Subject()+" "+strconv.FormatInt(grant.Fence, 10), tx.Now().UnixMilli(), string(who.id))
	return grant, err
}

// offered reports whether who may get something new.
func (w principalRow) offered() bool {
	switch {
	case w.draining:
		return false
	case w.role == ops.Verifier:
		return w.plane != Off
	}
	return w.plane == On
}

// find looks for some things that who could be granted now: runs, in the order in which they
// are offered, or for a verifier a verification.
func (p *Plane) find(tx journal.Tx, who principalRow) (found []string, err error) {
	return p.search(tx, who, some)
}

// search looks for up to want of them.
func (p *Plane) search(tx journal.Tx, who principalRow, want int) (found []string, err error) {
	if !who.offered() || tx.Now().Before(who.grantsAt) {
		return nil, nil
	}
	now := tx.Now().UnixMilli()
	if who.role == ops.Verifier {
		return findVerification(tx, who)
	}
	threads := make(map[string]bool) // whether they are held
	for _, implementation := range who.skills.implementations {
		if found, err = p.findOf(tx, who, implementation, want, now, threads); err != nil || len(found) > 0 {
			return found, err
		}
	}
	return nil, nil
}

// some is how many candidates a poll takes into a transaction: others are after them too.
const some = 8

// findOf looks for runs of one implementation, page by page, so that those which who cannot
// do or which are held hide none.
func (p *Plane) findOf(tx journal.Tx, who principalRow, implementation string, want int, now int64, threads map[string]bool) (found []string, err error) {
	type candidate struct{ run, thread string }
	after, last := int64(-1), ""
	for limit := want; ; limit = min(4*limit, page) {
		var list []candidate
		n := 0
		if err := tx.Query(`SELECT x.run, x.not_before, x.id, d.capabilities, d.thread, d.by_role FROM dispatch x JOIN delegation d ON d.id = x.delegation
				WHERE x.state = 'DISPATCHED' AND x.implementation = $1 AND x.not_before <= $2 AND (x.not_before, x.id) > ($3, $4) AND x.deadline > $2
				ORDER BY x.not_before, x.id LIMIT $5`,
			func(scan func(...any) error) error {
				var c candidate
				var capabilities, role string
				if err := scan(&c.run, &after, &last, &capabilities, &c.thread, &role); err != nil {
					return err
				}
				n++
				if ops.Role(role) == ops.Operator {
					c.thread = "" // what a person orders is never held
				} else if c.thread == "" {
					c.thread = "-" // by a hold over everything it may be
				}
				needs, err := listed(capabilities)
				if err == nil && who.skills.serve(implementation, needs) {
					list = append(list, c)
				}
				return err
			}, implementation, now, after, last, int64(limit)); err != nil {
			return nil, err
		}
		for _, c := range list {
			held, known := threads[c.thread]
			if !known && c.thread != "" {
				if held, err = p.door.Held(tx, c.thread); err != nil {
					return nil, err
				}
				threads[c.thread] = held
			}
			if !held {
				found = append(found, c.run)
			}
		}
		if len(found) >= want || n < limit {
			return found[:min(len(found), want)], nil
		}
	}
}

// lease grants who the first of runs that can still be had, nil if none can.
func (p *Plane) lease(tx journal.Tx, who principalRow, nonce string, runs []string) (*wire.Grant, error) {
	for _, run := range runs {
		h, err := p.load(tx, "", run)
		if err != nil {
			return nil, err
		}
		if h.run.state != Dispatched || h.run.notBefore.After(tx.Now()) {
			continue
		}
		if h.delegation.by.Role != ops.Operator {
			if held, err := p.door.Held(tx, h.delegation.thread); err != nil {
				return nil, err
			} else if held {
				continue
			}
		}
		fault, err := p.apply(tx, h, Event{Kind: OnLeaseGranted, Worker: who.id, Boot: who.boot, Lease: p.TTL, Term: who.term,
			Capable: who.skills.serve(h.run.implementation, h.delegation.capabilities)})
		if err != nil {
			return nil, err
		}
		if fault != nil {
			continue
		}
		grant, err := p.grant(tx, h, nonce)
		if err != nil {
			return nil, err
		}
		p.counts.add("grants", h.run.implementation, 1)
		return grant, nil
	}
	return nil, nil
}

// granted is the grant that the last poll of who was answered with, while its lease lives,
// else nil. Its time is what is left of the lease.
func (p *Plane) granted(tx journal.Tx, who principalRow) (*wire.Grant, error) {
	subject, number, _ := strings.Cut(who.granted, " ")
	fence, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, nil
	}
	if who.role == ops.Verifier {
		return p.verificationGrant(tx, who, subject, who.nonce)
	}
	h, err := p.load(tx, "", subject)
	if err != nil {
		return nil, err
	}
	if h.run.fence != fence || h.run.boot != who.boot || !h.run.state.HasLease() || !h.run.leaseUntil.After(tx.Now()) {
		return nil, nil
	}
	return p.grant(tx, h, who.nonce)
}

// grant is the plane's word for the lease of h. The lease's time is what is left of it now.
func (p *Plane) grant(tx journal.Tx, h *held, nonce string) (*wire.Grant, error) {
	now := tx.Now()
	d, r := &h.delegation, &h.run
	g := &wire.Grant{
		Header: wire.Header{Delegation: d.id, Run: r.run, Dispatch: r.dispatch, Implementation: r.implementation, Worker: r.worker, Boot: r.boot, Fence: r.fence,
			Seq: r.seq, Prev: r.prev, SentAt: now},
		Nonce: nonce, Attempt: r.attempt, TTLMS: r.leaseUntil.Sub(now).Milliseconds(), HeartbeatMS: p.Heartbeat.Milliseconds(), RemainingMS: r.deadline.Sub(now).Milliseconds(),
		Digest: d.instruction, Source: wire.Source{Revision: d.revision, Worktree: d.worktree}, Capabilities: d.capabilities, Credentials: d.credentials,
		Outputs: d.outputs, Verify: d.verify, Answer: d.answer, IdemKey: r.idemKey,
	}
	var err error
	if g.Instruction, err = instructionOf(tx, d.instruction); err != nil {
		return nil, err
	}
	if r.attempt > 1 || r.seq > 0 {
		if err := tx.Query(`SELECT f.name, f.digest, f.bytes, f.kind FROM run_file f JOIN dispatch x ON x.run = f.run WHERE x.delegation = $1 ORDER BY x.attempt, f.at, f.name`,
			func(scan func(...any) error) error {
				var f wire.File
				err := scan(&f.Name, &f.Digest, &f.Bytes, &f.Kind)
				g.Earlier = append(g.Earlier, f)
				return err
			}, d.id); err != nil {
			return nil, err
		}
		g.Earlier = latest(g.Earlier)
		g.Earlier = g.Earlier[max(0, len(g.Earlier)-maxEarlier):]
	}
	return g, nil
}

// latest leaves of files, the oldest first, the last of each name, and of those that cannot
// stand in one folder, since one is a folder of the other, the newer.
func latest(files []wire.File) []wire.File {
	taken, folders := make(map[string]bool), make(map[string]bool)
	kept := files[:0:0]
	for _, f := range slices.Backward(files) {
		fits := !taken[f.Name] && !folders[f.Name]
		for dir := path.Dir(f.Name); fits && dir != "."; dir = path.Dir(dir) {
			fits = !taken[dir]
		}
		if !fits {
			continue
		}
		kept, taken[f.Name] = append(kept, f), true
		for dir := path.Dir(f.Name); dir != "."; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	slices.Reverse(kept)
	return kept
}

// maxEarlier bounds the files of earlier attempts that a grant names; the last ones are.
const maxEarlier = 256

// instructionOf reads an instruction by its digest.
func instructionOf(tx journal.Tx, digest string) (i wire.Instruction, err error) {
	var body string
	if err := tx.Query(`SELECT body FROM instruction WHERE digest = $1`, func(scan func(...any) error) error { return scan(&body) }, digest); err != nil {
		return i, err
	}
	if err := json.Unmarshal([]byte(body), &i); err != nil {
		return i, fmt.Errorf("instruction %s: %w", digest, err)
	}
	return i, nil
}

// offers are the polls that wait, first come first. Whoever is woken looks for itself, so a
// waiter that is woken for nothing, or too late, only looks once more.
type offers struct {
	mu      sync.Mutex
	waiting []*waiter
	lucky   map[ops.IdentityID]bool // whose last look has found something
}

// likely reports whether a look of id has found something the last time: then it is worth
// a transaction that writes.
func (o *offers) likely(id ops.IdentityID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lucky[id]
}

// learn notes how a look has ended.
func (o *offers) learn(id ops.IdentityID, found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !found:
		delete(o.lucky, id)
	case o.lucky == nil || len(o.lucky) >= maxKeys:
		o.lucky = map[ops.IdentityID]bool{id: true}
	default:
		o.lucky[id] = true
	}
}

// waiter is one poll.
type waiter struct {
	role   ops.Role
	skills skills
	ready  chan struct{}
	asleep bool // it stands in line
	barred bool // nothing new is for it: it would only keep what it is woken for from others
	since  string
	needs  []string // what it was woken for: an implementation, with capabilities
}

// join puts w in line. It is false when too many stand there.
func (o *offers) join(w *waiter) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting) >= maxPolls {
		return false
	}
	w.asleep = true
	o.waiting = append(o.waiting, w)
	return true
}

// again puts w, which was woken and looks, back in line.
func (o *offers) again(w *waiter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !w.asleep {
		w.asleep, w.since, w.needs = true, "", nil
		o.waiting = append(o.waiting, w)
	}
}

// bar notes whether w may get anything, as its last look has found. What changes that wakes
// everybody. Was w woken for something since, the next in line looks instead.
func (o *offers) bar(w *waiter, barred bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w.barred = barred
	if barred && !w.asleep && w.since != "" {
		since, needs := w.since, w.needs
		w.since, w.needs = "", nil
		o.wakeOne(w.role, since, needs)
	}
}

// leave takes w out of line. If it was woken and has not looked since, the next in line
// looks instead.
func (o *offers) leave(w *waiter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w.asleep {
		o.waiting = slices.DeleteFunc(o.waiting, func(other *waiter) bool { return other == w })
		w.asleep = false
		return
	}
	if w.since != "" {
		o.wakeOne(w.role, w.since, w.needs)
	}
}

// work wakes the first worker in line that can do work of an implementation.
func (o *offers) work(implementation string, capabilities []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wakeOne(ops.Worker, implementation, capabilities)
}

// judge wakes the first verifier in line that can judge work of an implementation.
func (o *offers) judge(implementation string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wakeOne(ops.Verifier, implementation, nil)
}

func (o *offers) wakeOne(role ops.Role, implementation string, capabilities []string) {
	for i, w := range o.waiting {
		if w.role == role && !w.barred && w.skills.serve(implementation, capabilities) {
			o.waiting = slices.Delete(o.waiting, i, i+1)
			w.asleep, w.since, w.needs = false, implementation, capabilities
			signal(w.ready)
			return
		}
	}
}

// all wakes everybody in line of a role, or of any.
func (o *offers) all(role ops.Role) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = slices.DeleteFunc(o.waiting, func(w *waiter) bool {
		if role != "" && w.role != role {
			return false
		}
		w.asleep = false
		signal(w.ready)
		return true
	})
}

// implementations are those that somebody in line can do.
func (o *offers) implementations() (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.waiting {
		if w.role != ops.Worker {
			continue
		}
		for _, i := range w.skills.implementations {
			if !slices.Contains(list, i) {
				list = append(list, i)
			}
		}
	}
	return list
}

// heard takes notice of what was committed, whoever wrote it: work for those who wait, and
// what is due earlier than the sweeper thinks.
func (p *Plane) heard(e journal.Event) {
	switch {
	case e.Kind == "run.heartbeat": // which only puts off
	case e.Kind == "delegation.spawned", strings.HasPrefix(e.Kind, "run."), strings.HasPrefix(e.Kind, "mutation."):
		var b struct {
			To             State
			Implementation string
			Capabilities   []string
			NotBefore      time.Time `json:"not_before"`
			DueMS          int64     `json:"due_ms"`
		}
		if err := json.Unmarshal(e.Body, &b); err != nil {
			return
		}
		offered := e.Kind == "delegation.spawned" || e.Kind == "run.dispatched" || b.To == Dispatched
		if offered && !b.NotBefore.After(e.At) {
			p.offers.work(b.Implementation, b.Capabilities)
		}
		if b.DueMS != 0 {
			p.sooner(time.UnixMilli(b.DueMS))
		}
	case e.Kind == "verification.requested", e.Kind == "verification.granted":
		var b struct {
			Implementation string
			DueMS          int64 `json:"due_ms"`
		}
		if err := json.Unmarshal(e.Body, &b); err != nil {
			return
		}
		if e.Kind == "verification.requested" {
			p.offers.judge(b.Implementation)
		}
		if b.DueMS != 0 {
			p.sooner(time.UnixMilli(b.DueMS))
		}
	case strings.HasPrefix(e.Kind, "verification."):
		p.offers.all(ops.Verifier)
		signal(p.attention)
	case e.Kind == "hold.released", strings.HasPrefix(e.Kind, "plane."), strings.HasPrefix(e.Kind, "worker."):
		p.offers.all("") // who has no right any more is told so
		signal(p.attention)
	}
}
