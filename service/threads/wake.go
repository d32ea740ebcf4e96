package threads

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/envelope"
	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// WakeID identifies a wake for good: "w-" and a lower-case ULID.
type WakeID string

// Cause is what raised a wake.
type Cause string

// The causes.
const (
	ByTimer      Cause = "timer"
	ByMessage    Cause = "message"
	ByDelegation Cause = "delegation"
)

// Verdict is what came of a wake.
type Verdict string

// The verdicts. An agent gives the first four by [RESULT {…}]; a wake without one at its
// deadline is unanswered, never done.
const (
	Done       Verdict = "done"
	Failed     Verdict = "failed"
	Blocked    Verdict = "blocked"
	Waiting    Verdict = "waiting" // the wake stays open until its deadline
	Unanswered Verdict = "unanswered"
)

// Errand is what an agent is to be woken for.
type Errand struct {
	Agent  ops.IdentityID `json:"agent"`
	Cause  Cause          `json:"cause"`
	Source string         `json:"source"`       // "timer/tm-…#3", "delegation/d-…", or the source of the call that raised it
	By     ops.Identity   `json:"by,omitzero"`  // who raised it, zero for a stranger
	Name   string         `json:"name"`         // who or what raised it, in a few words, for people
	Thread string         `json:"thread"`       // where the envelope goes; empty is a new thread in the agent's home
	Text   string         `json:"text"`         // the errand in the words of someone who is trusted, or empty
	Shown  string         `json:"shown"`        // untrusted words that belong to it, or empty
	Ops    []ops.OpName   `json:"ops"`          // declared: what it may run unasked
	Root   string         `json:"root"`         // root cause; empty begins a new one
	Hops   int            `json:"hops"`         // agents between a person and this
	Limit  time.Duration  `json:"limit"`        // until the deadline; 0 is an hour
	Key    string         `json:"key,omitzero"` // empty is a fresh one, as it is but in case files
}

// Bounds of wakes (rule R8).
const (
	MaxHops         = 6  // agents between a person and a wake
	MaxWakesOfRoot  = 20 // wakes of one root cause
	StandardErrand  = time.Hour
	maxErrand       = 31 * 24 * time.Hour // of a deadline
	LateAfter       = 15 * time.Minute    // an order that arrives later than this is parked
	keyAlphabet     = "abcdefghjkmnpqrstuvwxyz23456789"
	keyGroups       = 3 // of four, 59 bits in all
	maxOpenOfThread = 64
)

// Wake is a wake that was raised.
type Wake struct {
	ID       WakeID
	Thread   string
	Post     string // of the envelope, "" while the thread is stopped
	Deadline time.Time
	Held     bool // its thread is stopped: the envelope is posted when it is started again
}

// Raise wakes an agent in tx: it writes the wake, and its envelope into the outbox. It is
// a LoopLimit when the errand stands more than MaxHops agents away from a person, its root
// cause has woken agents MaxWakesOfRoot times, or maxOpenOfThread wakes of its thread are
// open; NotFound when there is no such agent or thread; BadRequest when the errand has
// nothing to say. After a fault nothing has been written.
//
// While the thread, or every agent, is stopped, the wake is held: its envelope is posted
// when it is started again, and only then its time begins to run.
func (t *Threads) Raise(tx journal.Tx, e Errand) (Wake, error) {
	if e.Limit == 0 {
		e.Limit = StandardErrand
	}
	if fault := e.check(); fault != nil {
		return Wake{}, fault
	}
	agent, known, err := access.Live(tx, e.Agent)
	if err != nil {
		return Wake{}, err
	}
	if !known || agent.Role != ops.Agent {
		return Wake{}, ops.Faultf(ops.NotFound, "there is no agent %q, or it has been revoked", e.Agent)
	}
	if e.Key == "" {
		e.Key = newKey()
	}
	w, key := Wake{ID: newWakeID()}, e.Key
	e.Key = "" // it is kept in its own column, and not in what is shown of the errand
	if e.Root == "" {
		e.Root = string(w.ID)
	}
	if err := t.withinCaps(tx, e); err != nil {
		return Wake{}, err
	}
	if e.Thread == "" {
		if e.Thread, err = t.home(tx, agent.ID); err != nil {
			return Wake{}, err
		}
	}
	for _, who := range []ops.IdentityID{e.Agent, e.By.ID} {
		if who == "" {
			continue
		}
		if err := join(tx, e.Thread, who); err != nil {
			return Wake{}, err
		}
	}
	if w.Held, err = t.held(tx, e.Thread); err != nil {
		return Wake{}, err
	}
	w.Thread = e.Thread
	if err := insertWake(tx, w.ID, e, key); err != nil {
		return Wake{}, err
	}
	kind := "wake.raised"
	if w.Held {
		kind = "wake.held"
	} else if w.Post, w.Deadline, err = t.post(tx, w.ID, e, key); err != nil {
		return Wake{}, err
	}
	t.counts.add("wakes", string(e.Cause), 1)
	t.counts.add("hops", strconv.Itoa(e.Hops), 1)
	return w, wakeEvent(tx, kind, w.ID, e, "")
}

// check refuses an errand that cannot be one.
func (e Errand) check() *ops.Fault {
	switch {
	case strings.TrimSpace(e.Text) == "" && strings.TrimSpace(e.Shown) == "":
		return ops.Faultf(ops.BadRequest, "a wake needs an errand; the text is empty")
	case len(e.Text) > envelope.MaxPayload:
		return ops.Faultf(ops.TooLarge, "the errand is longer than %d bytes", envelope.MaxPayload).With("max", envelope.MaxPayload)
	case len(e.Shown) > MaxText:
		return ops.Faultf(ops.TooLarge, "what is shown is longer than %d bytes", MaxText).With("max", MaxText)
	case e.Limit < 0 || e.Limit > maxErrand:
		return ops.Faultf(ops.BadRequest, "a wake's deadline is at most %s away", maxErrand)
	case e.Key != "" && !keyForm.MatchString(e.Key):
		return ops.Faultf(ops.BadRequest, "a key has 3 to 32 of a-z, 0-9 and -")
	case len(e.Ops) > ops.MaxNames:
		return ops.Faultf(ops.BadRequest, "a wake declares at most %d ops", ops.MaxNames)
	}
	return nil
}

// withinCaps returns LoopLimit when e would be one wake too many (rule R8).
func (t *Threads) withinCaps(tx journal.Tx, e Errand) error {
	if e.Hops > MaxHops {
		t.counts.add("loops refused", "hops", 1)
		return ops.Faultf(ops.LoopLimit, "%d agents have written to each other since a person did, and at most %d may; nobody was woken. A person can go on with a message of their own", e.Hops, MaxHops).
			With("hops", e.Hops).With("root", e.Root)
	}
	var wakes, open int64
	if err := tx.Query(`SELECT (SELECT count(*) FROM wake WHERE root = $1), (SELECT count(*) FROM wake WHERE thread = $2 AND state <> 'ended')`,
		func(scan func(...any) error) error { return scan(&wakes, &open) }, e.Root, e.Thread); err != nil {
		return err
	}
	if wakes >= MaxWakesOfRoot {
		t.counts.add("loops refused", "wakes", 1)
		return ops.Faultf(ops.LoopLimit, "one cause, %s, has woken agents %d times, and at most %d are allowed; nobody was woken. A person can go on with a message of their own", e.Root, wakes, MaxWakesOfRoot).
			With("wakes", wakes).With("root", e.Root)
	}
	if open >= maxOpenOfThread {
		return ops.Faultf(ops.LoopLimit, "%d wakes of thread %s are open, and at most %d may be; nobody was woken", open, e.Thread, maxOpenOfThread).With("open", open)
	}
	if e.Thread == "" {
		return nil
	}
	room := ""
	if err := tx.Query(`SELECT room FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&room) }, e.Thread); err != nil {
		return err
	}
	if room == "" {
		return unknownThread(e.Thread)
	}
	return nil
}

// home returns a thread for words to who, who is found where a chat has it, else in a room
// of its own.
func (t *Threads) home(tx journal.Tx, who ops.IdentityID) (thread string, err error) {
	for _, c := range t.chats {
		if h, ok := c.Home(who); ok {
			return begin(tx, c, h.Target, who)
		}
	}
	thread = NewThreadID()
	return thread, openThread(tx, "dm."+string(who), thread)
}

// begin returns a thread at target, a room or a person of chat c, for words to who, if that
// is an identity. It is a new one, unless the platform has one thread only at that address:
// that one is known by then, or its first post, to the same one, is still on its way.
func begin(tx journal.Tx, c Chat, target string, who ops.IdentityID) (thread string, err error) {
	address, err := c.Open(target)
	if err != nil {
		return "", err
	}
	if err := tx.Query(`SELECT id FROM thread WHERE adaptor = $1 AND address = $2 AND adaptor <> 'rooms' AND (rooted = 1 OR
			rooted = 0 AND id IN (SELECT thread FROM participant WHERE identity = $3)) ORDER BY rooted DESC, id LIMIT 1`,
		func(scan func(...any) error) error { return scan(&thread) }, c.Name(), address, string(who)); err != nil || thread != "" {
		return thread, err
	}
	thread = NewThreadID()
	if err := openThread(tx, c.Name()+target, thread); err != nil {
		return "", err
	}
	_, err = tx.Exec(`UPDATE thread SET adaptor = $1, address = $2, rooted = 0 WHERE id = $3`, c.Name(), address, thread)
	return thread, err
}

func insertWake(tx journal.Tx, id WakeID, e Errand, key string) error {
	if e.Ops == nil {
		e.Ops = []ops.OpName{}
	}
	declared, err := json.Marshal(e.Ops)
	if err != nil {
		return fmt.Errorf("declared ops of wake %s: %w", id, err)
	}
	errand, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("errand of wake %s: %w", id, err)
	}
	_, err = tx.Exec(`INSERT INTO wake (id, agent, thread, key, cause, source, by_id, by_role, root, hops, declared, errand, state, raised_at, deadline_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'held', $13, 0)`,
		string(id), string(e.Agent), e.Thread, key, string(e.Cause), e.Source, orNull(string(e.By.ID)), orNull(string(e.By.Role)),
		e.Root, int64(e.Hops), string(declared), string(errand), tx.Now().UnixMilli())
	return err
}

// post opens a wake that is held, as every one is at first: its envelope goes into the
// outbox, what it shows of strangers is remembered, and its time begins to run.
func (t *Threads) post(tx journal.Tx, id WakeID, e Errand, key string) (post string, deadline time.Time, err error) {
	deadline = tx.Now().Add(e.Limit).Truncate(time.Millisecond)
	text, shown, err := envelope.Wrap(t.envelopeOf(e, id, key, deadline))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("envelope of wake %s: %w", id, err)
	}
	if e.Shown != "" {
		if err := keepMaterial(tx, e.Thread, e.stranger(), t.materialOf(e.Shown)); err != nil {
			return "", time.Time{}, err
		}
	}
	post = newPostID()
	if err := t.send(tx, outgoing{kind: "wake", about: string(id), thread: e.Thread, body: text, wake: id, agent: e.Agent, post: post}); err != nil {
		return "", time.Time{}, err
	}
	_, err = tx.Exec(`UPDATE wake SET state = 'open', post = $1, span_start = $2, span_end = $3, deadline_at = $4 WHERE id = $5`,
		post, int64(shown.Start), int64(shown.End), deadline.UnixMilli(), string(id))
	return post, deadline, err
}

// stranger is whose words Shown is, for the echo guard: the agent that wrote them, or
// nobody.
func (e Errand) stranger() ops.IdentityID {
	if e.By.Role == ops.Operator {
		return ""
	}
	return e.By.ID
}

// envelopeOf is what the envelope of e says.
func (t *Threads) envelopeOf(e Errand, id WakeID, key string, deadline time.Time) envelope.Wake {
	hints, total := t.hints(ops.Identity{ID: e.Agent, Role: ops.Agent}, e.Ops)
	return envelope.Wake{
		ID: string(id), Cause: string(e.Cause), Name: e.Name, Key: key, Deadline: deadline,
		Errand: e.Text, Shown: e.Shown, From: e.Name, Hints: hints, Total: total,
		Terminal: e.terminal(),
	}
}

// maxAsked bounds how often the policy is asked for the hints of one envelope.
const maxAsked = 4 * envelope.MaxHints

// hints are the declared ops that there are, and then reads that the agent may run.
func (t *Threads) hints(agent ops.Identity, declared []ops.OpName) (list []envelope.Hint, total int) {
	registry, policy := t.registry.Current(), t.door.Policy()
	all := registry.All()
	for _, name := range declared {
		if e, ok := registry.Lookup(name); ok && len(list) < envelope.MaxHints {
			list = append(list, hint(e, true))
		}
	}
	asked := 0
	for _, e := range all {
		if len(list) == envelope.MaxHints || asked == maxAsked {
			break
		}
		if e.SideEffecting || e.Name == ops.ToolsList().Name || slices.Contains(declared, e.Name) {
			continue
		}
		asked++
		r := access.Request{By: agent, Action: access.Run, Op: e.Name, Provider: e.Provider, Entrance: Adaptor}
		if policy.Decide(r).Allowed {
			list = append(list, hint(e, false))
		}
	}
	return list, len(all)
}

func hint(e *ops.Entry, declared bool) envelope.Hint {
	h := envelope.Hint{Op: e.Name, SideEffecting: e.SideEffecting, Declared: declared, Summary: e.Summary}
	for _, p := range e.Params {
		name := p.Name
		if p.Optional {
			name += "?"
		}
		h.Params = append(h.Params, name)
	}
	return h
}

// resolve returns the op that a name or an alias stands for.
func (t *Threads) resolve(name string) (ops.OpName, bool) {
	e, ok := t.registry.Current().Lookup(ops.OpName(name))
	if !ok {
		return "", false
	}
	return e.Name, true
}

// held reports whether thread, or everywhere, is stopped.
func (t *Threads) held(tx journal.Tx, thread string) (bool, error) { return t.door.Held(tx, thread) }

// releaseAtOnce bounds how many held wakes one transaction posts. EndOverdue goes on
// with the rest.
const releaseAtOnce = 100

// releaseWakes opens the held wakes in scope, a thread or Everywhere, whose thread is
// stopped no longer, and posts their envelopes. It returns how many it has dealt with, at
// most releaseAtOnce.
func (t *Threads) releaseWakes(tx journal.Tx, scope string) (n int, err error) {
	type heldWake struct {
		id          WakeID
		key, errand string
	}
	var list []heldWake
	if err := tx.Query(`SELECT id, key, errand FROM wake WHERE state = 'held' AND ($1 = '*' OR thread = $1)
			AND thread NOT IN (SELECT scope FROM hold) AND NOT EXISTS (SELECT 1 FROM hold WHERE scope = '*')
			ORDER BY id LIMIT $2`,
		func(scan func(...any) error) error {
			var w heldWake
			err := scan((*string)(&w.id), &w.key, &w.errand)
			list = append(list, w)
			return err
		}, scope, int64(releaseAtOnce)); err != nil {
		return 0, err
	}
	for _, w := range list {
		var e Errand
		if err := json.Unmarshal([]byte(w.errand), &e); err != nil {
			return 0, fmt.Errorf("errand of wake %s: %w", w.id, err)
		}
		if _, live, err := access.Live(tx, e.Agent); err != nil {
			return 0, err
		} else if !live {
			if err := t.end(tx, w.id, e.Agent, e.Thread, Unanswered, "its agent has been revoked"); err != nil {
				return 0, err
			}
			continue
		}
		if _, _, err := t.post(tx, w.id, e, w.key); err != nil {
			return 0, err
		}
		if err := wakeEvent(tx, "wake.raised", w.id, e, ""); err != nil {
			return 0, err
		}
	}
	return len(list), nil
}

// EndOverdue ends the wakes whose deadline has passed, at most n of them: as unanswered,
// or as waiting where the agent has said so. A note in the thread says it. It also posts
// envelopes that a start of many threads has left over. It returns when it has to be
// called again, the zero time if nothing is open.
func (t *Threads) EndOverdue(tx journal.Tx, n int) (next time.Time, err error) {
	released, err := t.releaseWakes(tx, Everywhere)
	if err != nil {
		return time.Time{}, err
	}
	type overdue struct {
		id      WakeID
		agent   ops.IdentityID
		thread  string
		verdict *string
	}
	var list []overdue
	now := tx.Now()
	if err := tx.Query(`SELECT id, agent, thread, verdict FROM wake WHERE state = 'open' AND deadline_at <= $1 ORDER BY deadline_at LIMIT $2`,
		func(scan func(...any) error) error {
			var o overdue
			err := scan((*string)(&o.id), (*string)(&o.agent), &o.thread, &o.verdict)
			list = append(list, o)
			return err
		}, now.UnixMilli(), int64(n)); err != nil {
		return time.Time{}, err
	}
	for _, o := range list {
		verdict, why := Unanswered, "there was no [RESULT] by its deadline"
		if o.verdict != nil && Verdict(*o.verdict) == Waiting {
			verdict, why = Waiting, "its deadline has passed while the agent waited"
		}
		if err := t.end(tx, o.id, o.agent, o.thread, verdict, why); err != nil {
			return time.Time{}, err
		}
	}
	if released == releaseAtOnce {
		return now, nil
	}
	err = tx.Query(`SELECT min(deadline_at) FROM wake WHERE state = 'open'`, func(scan func(...any) error) error {
		var at *int64
		err := scan(&at)
		if at != nil {
			next = time.UnixMilli(*at)
		}
		return err
	})
	return next, err
}

// end ends a wake that its agent has not ended, and says why in its thread.
func (t *Threads) end(tx journal.Tx, id WakeID, agent ops.IdentityID, thread string, v Verdict, why string) error {
	if _, err := tx.Exec(`UPDATE wake SET state = 'ended', verdict = $1, ended_at = $2 WHERE id = $3`, string(v), tx.Now().UnixMilli(), string(id)); err != nil {
		return err
	}
	note := envelope.Note("Wake %s of %s ends as %s: %s.", string(id), string(agent), string(v), why)
	if err := t.send(tx, outgoing{kind: "note", about: string(id), thread: thread, body: note, wake: id}); err != nil {
		return err
	}
	t.counts.add("verdicts", string(v), 1)
	return wakeEvent(tx, "wake.ended", id, Errand{Agent: agent, Thread: thread}, v)
}

func wakeEvent(tx journal.Tx, kind string, id WakeID, e Errand, v Verdict) error {
	return event(tx, e.Thread, kind, struct {
		Wake    WakeID         `json:"wake"`
		Thread  string         `json:"thread"`
		Agent   ops.IdentityID `json:"agent"`
		Cause   Cause          `json:"cause,omitempty"`
		Source  string         `json:"source,omitempty"`
		Root    string         `json:"root,omitempty"`
		Hops    int            `json:"hops,omitempty"`
		Verdict Verdict        `json:"verdict,omitempty"`
	}{id, e.Thread, e.Agent, e.Cause, e.Source, e.Root, e.Hops, v})
}

func newWakeID() WakeID { return WakeID("w-" + strings.ToLower(ulid.Make().String())) }
