package threads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// Bounds of a message of a platform.
const (
	maxPlatformID = 256  // bytes of an id
	maxAddress    = 1024 // bytes of an address
	maxMentions   = 8    // agents that one message wakes; the rest is reported
)

// What becomes of an Inbound, as Heard.Status says it.
const (
	Taken     = "taken"
	Duplicate = "duplicate" // it was received before, and nothing happened now
	Edited    = "edited"    // it is an edit, which is remembered and never run
	Ignored   = "ignored"
)

// Why a message is ignored, as Heard.Reason says it.
const (
	ownMessage    = "own message"
	systemMessage = "system message"
	automated     = "automated" // by a program that is no enrolled agent
	oldMessage    = "history"
	tooLong       = "too long"
)

// Receive takes a message of a platform from its adaptor. When it returns, what the
// message leads to is durable, and the adaptor may move its cursor past it; an error says
// that nothing was taken, and the message is to be handed in again, except for a fault
// with the code ops.BadRequest, which no repetition helps.
//
// A message is known by (adaptor, workspace, room, message) and taken once, whoever hands
// it in again, and how often, and when. What an enrolled agent writes is a reply: its
// directives become calls. What an operator writes is trusted, and a word of control is
// carried out. Anybody else's words are kept as untrusted material (rule R5). A message by
// a person that mentions agents wakes them. An edit never runs: when it holds other
// directives than before, a note in the thread says so, once for each message.
//
// Who wrote a message is what Chat.Who makes of the platform's stable id. Names that are
// shown decide nothing.
func (t *Threads) Receive(ctx context.Context, in Inbound) (Heard, error) {
	if fault := in.check(); fault != nil {
		return Heard{}, fault
	}
	chat := t.chat(in.Adaptor)
	if chat == nil {
		return Heard{}, ops.Faultf(ops.BadRequest, "there is no adaptor %q", in.Adaptor)
	}
	switch {
	case in.Self:
		return t.ignored(ownMessage), nil
	case in.Kind == System:
		return t.overheard(ctx, in)
	}
	for range maxLooks {
		seen, err := t.lookUp(ctx, in)
		if err != nil {
			return Heard{}, err
		}
		if in.Kind == Message && seen.known && !seen.edit {
			return t.again(seen), nil
		}
		h, err := t.arrive(ctx, chat, in)
		if err != nil {
			return Heard{}, err
		}
		answer, err := t.receive(ctx, h, seen)
		if errors.Is(err, errReceived) {
			continue // by somebody else, between the two looks
		}
		return answer, err
	}
	return Heard{}, ops.Faultf(ops.Busy, "message %q is received several times at once; hand it in again", in.Message)
}

// check refuses what no platform's message may be.
func (in Inbound) check() *ops.Fault {
	for name, id := range map[string]string{"room": in.Room, "message": in.Message, "address": in.Address} {
		if id == "" {
			return ops.Faultf(ops.BadRequest, "%s: want the platform's id", name)
		}
	}
	for name, id := range map[string]string{"workspace": in.Workspace, "room": in.Room, "message": in.Message, "user": in.User} {
		if len(id) > maxPlatformID || !printable(id) {
			return ops.Faultf(ops.BadRequest, "%s: want an id of at most %d bytes of printable UTF-8", name, maxPlatformID)
		}
	}
	switch {
	case len(in.Address) > maxAddress || !printable(in.Address):
		return ops.Faultf(ops.BadRequest, "address: want at most %d bytes of printable UTF-8", maxAddress)
	case in.Kind != Message && in.Kind != Edit && in.Kind != System:
		return ops.Faultf(ops.BadRequest, "kind: want message, edit or system")
	case !utf8.ValidString(in.Text) || strings.ContainsRune(in.Text, 0) || !utf8.ValidString(in.Beside) || strings.ContainsRune(in.Beside, 0):
		return ops.Faultf(ops.BadRequest, "text: want valid UTF-8 without U+0000")
	}
	return nil
}

// ignored counts a message that is not read.
func (t *Threads) ignored(reason string) Heard {
	t.counts.add("messages ignored", reason, 1)
	return Heard{Status: Ignored, Reason: reason}
}

// overheard takes what a platform itself says. It is not read; but a topic or a notice may
// hold anybody's words, which those in its thread are shown.
func (t *Threads) overheard(ctx context.Context, in Inbound) (Heard, error) {
	if in.Text += "\n" + in.Beside; strings.TrimSpace(in.Text) == "" {
		return t.ignored(systemMessage), nil
	}
	m := t.materialUpTo(in.Text)
	var thread string
	find := func(tx journal.Tx) (err error) {
		thread, err = findThread(tx, in.Adaptor, in.Address)
		return err
	}
	err := t.store.View(ctx, find)
	if err == nil && thread != "" {
		err = t.store.Update(ctx, func(tx journal.Tx) error {
			if err := find(tx); err != nil || thread == "" {
				return err
			}
			return keepMaterial(tx, thread, "", m)
		})
	}
	if err != nil {
		return Heard{}, err
	}
	return t.ignored(systemMessage), nil
}

// heard is a message on its way in, with what could be found out before any transaction.
type heard struct {
	Inbound
	who      ops.Identity // zero for a stranger
	bridge   ops.Identity // the adaptor, as who hands the message in
	reply    bool         // an agent wrote it that is enrolled with the adaptor
	fresh    bool         // it was written within LateAfter of now
	hash     string
	material material
	beside   material         // what was shown beside it
	mentions []ops.IdentityID // agents, each once
	unheard  int              // more of them than may be woken
}

// arrive finds out who wrote in and what stands in it.
func (t *Threads) arrive(ctx context.Context, chat Chat, in Inbound) (*heard, error) {
	h := &heard{Inbound: in, bridge: ops.Identity{ID: ops.IdentityID(in.Adaptor), Role: ops.Bridge}, hash: textHash(in.Text)}
	var woken []ops.IdentityID
	for _, user := range in.Mentions {
		if id, ok := chat.Who(user); ok && !slices.Contains(woken, id) {
			woken = append(woken, id)
		}
	}
	id, known := chat.Who(in.User)
	err := t.store.View(ctx, func(tx journal.Tx) error {
		h.who, h.reply, h.mentions, h.unheard = ops.Identity{}, false, nil, 0
		h.fresh = !in.WrittenAt.IsZero() && tx.Now().Sub(in.WrittenAt).Abs() <= LateAfter
		if known && in.User != "" {
			who, live, err := access.Live(tx, id)
			if err != nil {
				return err
			}
			if live {
				h.who = who
			}
		}
		switch h.who.Role {
		case ops.Agent:
			err := maySpeak(tx, t.door.Policy(), h.bridge, h.who)
			var fault *ops.Fault
			if err != nil && !errors.As(err, &fault) {
				return err
			}
			h.reply = err == nil
			return nil // an agent's mention wakes nobody: dm.send does
		case ops.Operator:
			if in.Bot { // a program that has an operator's account
				h.who = ops.Identity{}
			}
		default:
			h.who = ops.Identity{} // of no role that speaks in chats
		}
		for _, agent := range woken {
			who, live, err := access.Live(tx, agent)
			if err != nil {
				return err
			}
			if !live || who.Role != ops.Agent {
				continue
			}
			if len(h.mentions) == maxMentions {
				h.unheard++
				continue
			}
			h.mentions = append(h.mentions, agent)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if h.who.Role != ops.Operator {
		h.material = t.materialUpTo(in.Text)
	}
	if in.Beside != "" {
		h.beside = t.materialUpTo(in.Beside)
	}
	return h, nil
}

// materialUpTo is materialOf a text that may be longer than is read: who knows what stands
// in that.
func (t *Threads) materialUpTo(text string) material {
	if len(text) > MaxText {
		return material{overflow: true, whole: true}
	}
	return t.materialOf(text)
}

// author is under whom the words of h are kept as material.
func (h *heard) author() ops.IdentityID {
	if h.reply {
		return h.who.ID
	}
	return ""
}

// escapeID keeps ids that hold a separator apart from each other.
var escapeID = strings.NewReplacer("%", "%25", "/", "%2F", "#", "%23")

// source is where h comes from, in words that an operator can follow. Idempotency keys of
// calls derive from it, so it is never longer than they may be.
func (h *heard) source() string {
	parts := []string{h.Adaptor}
	if h.Workspace != "" {
		parts = append(parts, escapeID.Replace(h.Workspace))
	}
	s := strings.Join(append(parts, escapeID.Replace(h.Room), escapeID.Replace(h.Message)), "/")
	if len(s) > ops.MaxKeyLen-8 { // an ordinal follows
		return h.Adaptor + "/sha256:" + textHash(s)
	}
	return s
}

// roomName is how the platform's room is called among the rooms.
func (h *heard) roomName() string {
	name := h.Adaptor + "#"
	if h.Workspace != "" {
		name += escapeID.Replace(h.Workspace) + "/"
	}
	return name + escapeID.Replace(h.Room)
}

// errReceived says that a message has been received by somebody else meanwhile.
var errReceived = errors.New("the message was received meanwhile")

// received is what is remembered of a message.
type received struct {
	known  bool
	edit   bool // only an edit of it was seen so far
	hash   string
	thread string
	post   string
	answer Heard
}

func lookUp(tx journal.Tx, in Inbound) (r received, err error) {
	var answer string
	var thread, post *string
	err = tx.Query(`SELECT text_hash, thread, post, answer FROM inbound WHERE adaptor = $1 AND workspace = $2 AND room = $3 AND message = $4`,
		func(scan func(...any) error) error {
			r.known = true
			return scan(&r.hash, &thread, &post, &answer)
		}, in.Adaptor, in.Workspace, in.Room, in.Message)
	if err != nil || !r.known {
		return received{}, err
	}
	if thread != nil {
		r.thread = *thread
	}
	if post != nil {
		r.post = *post
	}
	if err := json.Unmarshal([]byte(answer), &r.answer); err != nil {
		return received{}, fmt.Errorf("what became of message %q: %w", in.Message, err)
	}
	r.edit = r.answer.Status == Edited
	return r, nil
}

func (t *Threads) lookUp(ctx context.Context, in Inbound) (r received, err error) {
	err = t.store.View(ctx, func(tx journal.Tx) error {
		r, err = lookUp(tx, in)
		return err
	})
	return r, err
}

// Known reports whether a message of this adaptor, workspace, room and id has been
// received.
func (t *Threads) Known(ctx context.Context, in Inbound) (bool, error) {
	r, err := t.lookUp(ctx, in)
	return r.known && !r.edit, err
}

// receive does what h asks for. It returns errReceived when somebody else has meanwhile.
func (t *Threads) receive(ctx context.Context, h *heard, seen received) (Heard, error) {
	switch {
	case h.Kind == Edit:
		return t.edited(ctx, h, seen)
	case h.History:
		return t.remembered(ctx, h, oldMessage)
	case h.Bot && !h.reply:
		return t.remembered(ctx, h, automated)
	case len(h.Text) > MaxText:
		return t.remembered(ctx, h, tooLong)
	case h.reply:
		return t.replied(ctx, h)
	}
	return t.listened(ctx, h)
}

// again is the first answer, marked as a duplicate.
func (t *Threads) again(seen received) Heard {
	t.counts.add("duplicates", "", 1)
	answer := seen.answer
	answer.Status = Duplicate
	if answer.Reply != nil {
		ack := *answer.Reply
		ack.Duplicate = true
		answer.Reply = &ack
	}
	return answer
}

// claim writes what became of a message, in the transaction that does it: one insert
// decides who of several does. A message of which only an edit is known is still to come.
func (h *heard) claim(tx journal.Tx, answer Heard, post string) error {
	b, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("what became of message %q: %w", h.Message, err)
	}
	n, err := tx.Exec(`INSERT INTO inbound (adaptor, workspace, room, message, text_hash, thread, post, answer, received_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
			ON CONFLICT (adaptor, workspace, room, message) DO UPDATE SET text_hash = excluded.text_hash, thread = excluded.thread,
				post = excluded.post, answer = excluded.answer, received_at = excluded.received_at
			WHERE inbound.text_hash = ''`,
		h.Adaptor, h.Workspace, h.Room, h.Message, h.hash, orNull(answer.Thread), orNull(post), string(b), tx.Now().UnixMilli())
	if err == nil && n == 0 {
		return errReceived
	}
	if err != nil || h.hash == "" {
		return err // an edit of a message that may still come
	}
	return event(tx, answer.Thread, "message.heard", struct {
		Adaptor   string `json:"adaptor"`
		Workspace string `json:"workspace,omitempty"`
		Room      string `json:"room"`
		Message   string `json:"message"`
		User      string `json:"user,omitempty"`
		Name      string `json:"name,omitempty"`
		Status    string `json:"status"`
		Reason    string `json:"reason,omitempty"`
		CatchUp   bool   `json:"catch_up,omitempty"`
	}{h.Adaptor, h.Workspace, h.Room, h.Message, h.User, clipped(h.Name), answer.Status, answer.Reason, h.CatchUp})
}

// clipped is the beginning of a name that may be of any length.
func clipped(name string) string {
	if len(name) <= maxPlatformID {
		return name
	}
	return strings.ToValidUTF8(name[:maxPlatformID], "") + "…"
}

// remembered takes a message that is not read: only that it was there, and what it has
// shown to agents of the thread.
func (t *Threads) remembered(ctx context.Context, h *heard, reason string) (Heard, error) {
	var answer Heard
	err := t.store.Update(ctx, func(tx journal.Tx) error {
		answer = Heard{Status: Ignored, Reason: reason}
		var err error
		if answer.Thread, err = t.threadAt(tx, h.Adaptor, h.roomName(), h.Address); err != nil {
			return err
		}
		if err := h.claim(tx, answer, ""); err != nil {
			return err
		}
		if err := h.keep(tx, answer.Thread); err != nil || reason != tooLong {
			return err
		}
		return t.note(tx, answer.Thread, "long", "A message of %d bytes was not read: one may have %d. Nothing of it has run.", len(h.Text), MaxText)
	})
	if err != nil {
		return Heard{}, err
	}
	t.counts.add("messages ignored", reason, 1)
	return answer, nil
}

// keep records the words of h as material, unless they are an operator's.
func (h *heard) keep(tx journal.Tx, thread string) error {
	if err := h.keepBeside(tx, thread); err != nil {
		return err
	}
	if h.who.Role == ops.Operator {
		return nil
	}
	return keepMaterial(tx, thread, h.author(), h.material)
}

// keepBeside records what was shown beside h as anybody's words. Beside an operator's it may
// be the label of a link, which is theirs: only what looks like an order counts there.
func (h *heard) keepBeside(tx journal.Tx, thread string) error {
	if h.Beside == "" || h.who.Role == ops.Operator && len(h.beside.orders) == 0 && !h.beside.overflow {
		return nil
	}
	return keepMaterial(tx, thread, "", h.beside)
}

// replied takes the message of an agent as its reply.
func (t *Threads) replied(ctx context.Context, h *heard) (Heard, error) {
	if err := t.early(ctx, h); err != nil {
		return Heard{}, err
	}
	thread, err := t.findOrOpen(ctx, h)
	if err != nil {
		return Heard{}, err
	}
	var answer Heard
	_, err = t.take(ctx, h.bridge, arrival{
		adaptor: h.Adaptor, room: h.roomName(), source: h.source(), agent: h.who.ID, thread: thread,
		message: h.Message, platform: h.Message, text: h.Text, fresh: h.fresh,
		also: func(tx journal.Tx, ack Ack) error {
			answer = Heard{Status: Taken, Thread: ack.Thread, Reply: &ack}
			if ack.Duplicate {
				answer.Status = Duplicate
			}
			if err := h.claim(tx, answer, ack.Reply); err != nil {
				return err
			}
			if err := h.keepBeside(tx, ack.Thread); err != nil {
				return err
			}
			return t.late(tx, h, ack)
		},
	})
	if err != nil {
		return Heard{}, err
	}
	return answer, nil
}

// early returns Unavailable for a message that carries the key of a wake whose envelope is
// being posted: the agent has read it in the chat before the chat has said where it stands,
// and its thread is not known here. That is known, or given up, as soon as the outbox has
// looked; until then the message is to be handed in again.
func (t *Threads) early(ctx context.Context, h *heard) error {
	var keys []string
	if err := t.store.View(ctx, func(tx journal.Tx) error {
		keys = nil
		return tx.Query(`SELECT w.key FROM wake w JOIN thread t ON t.id = w.thread AND t.adaptor = $2 AND t.rooted = 0
				WHERE w.agent = $1 AND w.state = 'open'
				AND EXISTS (SELECT 1 FROM outbox o WHERE o.kind = 'wake' AND o.about = w.id AND o.state = 'sending')`,
			func(scan func(...any) error) error {
				var key string
				err := scan(&key)
				keys = append(keys, key)
				return err
			}, string(h.who.ID), h.Adaptor)
	}); err != nil {
		return err
	}
	for _, key := range keys {
		if strings.Contains(h.Text, "#"+key) {
			return ops.Faultf(ops.Unavailable, "where the message stands that this one answers is not known yet; nothing was taken; hand it in again")
		}
	}
	return nil
}

// late says in the thread why orders of an old message wait.
func (t *Threads) late(tx journal.Tx, h *heard, ack Ack) error {
	parked := 0
	for _, c := range ack.Calls {
		if c.State == ops.Parked {
			parked++
		}
	}
	if h.fresh || parked == 0 || ack.Duplicate {
		return nil
	}
	if h.WrittenAt.IsZero() {
		return t.note(tx, ack.Thread, "late", "It is not known when this message was written, so its orders with side effects (%d) wait for approval.", parked)
	}
	if h.WrittenAt.After(tx.Now()) {
		return t.note(tx, ack.Thread, "late", "This message says that it was written at %s, which is more than %d minutes ahead, so its orders with side effects (%d) wait for approval.",
			ops.Stamp(h.WrittenAt), int(LateAfter/time.Minute), parked)
	}
	return t.note(tx, ack.Thread, "late", "This message was written at %s and arrived more than %d minutes later, so its orders with side effects (%d) wait for approval.",
		ops.Stamp(h.WrittenAt), int(LateAfter/time.Minute), parked)
}

// listened takes the message of one who is no agent.
func (t *Threads) listened(ctx context.Context, h *heard) (Heard, error) {
	var answer Heard
	err := t.store.Update(ctx, func(tx journal.Tx) (err error) {
		answer = Heard{Status: Taken}
		if answer.Thread, err = t.threadAt(tx, h.Adaptor, h.roomName(), h.Address); err != nil {
			return err
		}
		id := newPostID()
		if err := h.claim(tx, answer, id); err != nil {
			return err
		}
		handled, err := t.control(tx, h.who, answer.Thread, h.Text, h.WrittenAt)
		if err != nil {
			return err
		}
		p := post{id: id, thread: answer.Thread, kind: "heard", author: h.who, body: h.Text, message: h.Message, platform: h.Message}
		if h.who.ID == "" {
			p.name = h.User
		}
		if _, err := addPost(tx, p); err != nil {
			return err
		}
		if err := h.keep(tx, answer.Thread); err != nil || handled {
			return err
		}
		return t.wakeMentioned(tx, h, answer.Thread)
	})
	if err != nil {
		return Heard{}, err
	}
	return answer, nil
}

// oneWord is the platform's id of a stranger for the line of an envelope that is trusted:
// where people choose their ids, one may read like an errand.
func oneWord(id string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("@:.+_-", r) || unicode.IsSpace(r) {
			return '_'
		}
		return r
	}, id)
}

// wakeMentioned wakes the agents that a person's message mentions: a new root cause, with
// nobody between. Why one cannot be woken is said in the thread.
func (t *Threads) wakeMentioned(tx journal.Tx, h *heard, thread string) error {
	for _, agent := range h.mentions {
		e := Errand{Agent: agent, Cause: ByMessage, Source: h.source(), By: h.who, Name: oneWord(h.User), Thread: thread, Ops: []ops.OpName{"dm.send"}}
		if h.who.Role == ops.Operator {
			e.Name, e.Text = string(h.who.ID), h.Text
		} else {
			e.Shown = h.Text
		}
		_, err := t.Raise(tx, e)
		var fault *ops.Fault
		if errors.As(err, &fault) {
			err = t.note(tx, thread, "wake", "%s was not woken (%s): %s", string(agent), string(fault.Code), fault.Message)
		}
		if err != nil {
			return err
		}
	}
	if h.unheard > 0 {
		return t.note(tx, thread, "wake", "%d more agents of this message were not woken: one message may wake %d.", h.unheard, maxMentions)
	}
	return nil
}

// threadAt returns the thread of an adaptor's address, which it opens in room if it is not
// known.
func (t *Threads) threadAt(tx journal.Tx, adaptor, room, address string) (id string, err error) {
	if id, err = findThread(tx, adaptor, address); err != nil || id != "" {
		return id, err
	}
	id = NewThreadID()
	if err := openThread(tx, room, id); err != nil {
		return "", err
	}
	_, err = tx.Exec(`UPDATE thread SET adaptor = $1, address = $2 WHERE id = $3`, adaptor, address, id)
	return id, err
}

func findThread(tx journal.Tx, adaptor, address string) (id string, err error) {
	err = tx.Query(`SELECT id FROM thread WHERE adaptor = $1 AND address = $2 AND rooted = 1 AND adaptor <> 'rooms'`,
		func(scan func(...any) error) error { return scan(&id) }, adaptor, address)
	return id, err
}

// findOrOpen is threadAt in a transaction of its own. A thread that stays empty because
// what was to be in it is refused harms nobody.
func (t *Threads) findOrOpen(ctx context.Context, h *heard) (id string, err error) {
	err = t.store.View(ctx, func(tx journal.Tx) error {
		id, err = findThread(tx, h.Adaptor, h.Address)
		return err
	})
	if err != nil || id != "" {
		return id, err
	}
	err = t.store.Update(ctx, func(tx journal.Tx) error {
		id, err = t.threadAt(tx, h.Adaptor, h.roomName(), h.Address)
		return err
	})
	return id, err
}
