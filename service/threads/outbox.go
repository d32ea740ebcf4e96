package threads

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/envelope"
	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// outgoing is what is to be posted in a thread.
type outgoing struct {
	kind   string // result, note, message, wake
	about  string // what it is about: there is one post, or one row of parts, of a kind about a thing
	thread string
	body   string
	file   string // the whole text of which body is the head, "" for none
	call   ops.CallID
	wake   WakeID
	agent  ops.IdentityID // whom it addresses, "" for nobody
	post   string         // the id that its first post gets, "" for a fresh one
}

// send puts o into the outbox, in the transaction of its cause. What is too long for one
// post of the thread's platform becomes several, which keep their order.
func (t *Threads) send(tx journal.Tx, o outgoing) error {
	adaptor := Adaptor // of a thread that does not exist, too: delivering it shows that
	if err := tx.Query(`SELECT adaptor FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&adaptor) }, o.thread); err != nil {
		return err
	}
	parts, mention := []string{o.body}, ""
	if adaptor != Adaptor {
		limits := unknownLimits
		if c := t.chat(adaptor); c != nil {
			limits = c.Limits()
			if h, ok := c.Home(o.agent); ok && o.agent != "" {
				mention = h.User
			}
		}
		parts = split(&o, limits)
	}
	var seq int64
	if err := tx.Query(`SELECT coalesce(max(seq), 0) FROM outbox WHERE address = $1`, func(scan func(...any) error) error { return scan(&seq) }, o.thread); err != nil {
		return err
	}
	for i, body := range parts {
		file, mark := "", o.post
		if i == 0 {
			file = o.file
		} else {
			mention = ""
		}
		if i > 0 || mark == "" {
			mark = newPostID()
		}
		seq++
		if _, err := tx.Exec(`INSERT INTO outbox (id, adaptor, address, seq, kind, about, part, body, file, call, wake, mention, mark, state, attempts, queued_at)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'queued', 0, $14)`,
			"o-"+strings.ToLower(ulid.Make().String()), adaptor, o.thread, seq, o.kind, o.about, i, body, file,
			orNull(string(o.call)), orNull(string(o.wake)), mention, mark, tx.Now().UnixMilli()); err != nil {
			return err
		}
	}
	return event(tx, o.thread, "outbox.queued", queuedEvent{o.thread, adaptor, o.kind, o.about, nil})
}

// queuedEvent is the body of outbox.queued.
type queuedEvent struct {
	Thread  string        `json:"thread"`
	Adaptor string        `json:"adaptor"`
	Kind    string        `json:"kind"`
	About   string        `json:"about"`
	By      *ops.Identity `json:"by,omitempty"` // who has it tried again
}

// unknownLimits are what a text is cut by while its adaptor is not attached: what every
// platform takes.
var unknownLimits = PostLimits{Unit: Bytes, Post: 500, Parts: 8}

// standardParts is how many posts one text becomes at most when a platform does not say.
const standardParts = 8

func (l PostLimits) parts() int {
	if l.Parts == 0 {
		return standardParts
	}
	return l.Parts
}

// footer is how much of a post its mark takes, in any unit: a line break and r-ULID.
const footer = 1 + len("r-") + ulid.EncodedSize

// split returns the texts of the posts that o becomes under limits. Where the platform has
// attachments, what is too long is the head and a file.
func split(o *outgoing, limits PostLimits) []string {
	cut := envelope.Limit{Unit: string(limits.Unit), Size: limits.Post - footer, Parts: limits.parts()}
	if o.call != "" {
		cut.Whole = "box calls show " + string(o.call)
	}
	if !limits.Files {
		o.file = ""
		return envelope.Split(o.body, cut)
	}
	cut.Parts, cut.Whole = 1, "the attachment"
	head := envelope.Split(o.body, cut)
	if head[0] != o.body && o.file == "" {
		o.file = o.body
	}
	return head
}

// outcome renders what came of call for a thread of the adaptor, and the whole text of it
// for an attachment when it shows less than that.
func (t *Threads) outcome(call ops.Call, o ops.Outcome) (body, file string) {
	c := t.chat(call.From.Answer.Adaptor)
	if c == nil {
		return envelope.Outcome(call, o), ""
	}
	limits := c.Limits()
	if !limits.Files {
		// A tenth is left for fences that are closed and opened again.
		return envelope.OutcomeUpTo(call, o, limits.parts()*(limits.Post-footer)*9/10), ""
	}
	body = envelope.Outcome(call, o)
	if whole := envelope.Whole(o); len(whole) > min(envelope.MaxShown, limits.Post*9/10) {
		file = whole
	}
	return body, file
}

var adaptorName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Attach has posts into threads of the chats delivered. It is an error when the name or the
// limits of one cannot be. It must not be called after Start.
func (t *Threads) Attach(chats ...Chat) error {
	for _, c := range chats {
		name, l := c.Name(), c.Limits()
		switch {
		case !adaptorName.MatchString(name) || name == Adaptor || name == "api": // what begins sources of the rooms and the API
			return fmt.Errorf("adaptor %q: want a name of a-z, 0-9 and -, at most 32 bytes, and not %q or \"api\"", name, Adaptor)
		case t.chat(name) != nil:
			return fmt.Errorf("adaptor %q: there are two of this name", name)
		case l.Unit != Bytes && l.Unit != Runes && l.Unit != UTF16:
			return fmt.Errorf("adaptor %q: posts are measured in %q: want bytes, runes or utf16", name, l.Unit)
		case l.Post < 500 || l.Edit < 0 || l.Parts < 0:
			return fmt.Errorf("adaptor %q: want posts of at least 500 %s, and no negative limit", name, l.Unit)
		}
		t.chats = append(t.chats, c)
	}
	return nil
}

// chat returns the adaptor of a name, nil if there is none.
func (t *Threads) chat(name string) Chat {
	for _, c := range t.chats {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// enqueueResult writes what is posted of a settled call into the outbox, in the
// transaction that settles it, and keeps what stands in it as shown to those who read the
// thread (rule R5).
func (t *Threads) enqueueResult(tx journal.Tx, call ops.Call, o ops.Outcome) error {
	if call.From.Answer == nil {
		return nil
	}
	o, _ = service.Told(t.door.Policy(), call.By, o)
	thread := call.From.Answer.Opaque
	if err := keepMaterial(tx, thread, "", t.resultMaterial(call, o)); err != nil {
		return err
	}
	told, err := t.endProgress(tx, call)
	if err != nil {
		return err
	}
	body, file := t.outcome(call, o)
	if err := t.send(tx, outgoing{kind: "result", about: string(call.ID), thread: thread, call: call.ID, body: body, file: file}); err != nil || !told {
		return err
	}
	return t.point(tx, call)
}

// enqueueParked writes into the outbox that a call waits, in the transaction that parks
// it. Its result follows when it is settled.
func (t *Threads) enqueueParked(tx journal.Tx, call ops.Call, id service.ApprovalID, expires time.Time) error {
	if call.From.Answer == nil {
		return nil
	}
	thread, rule := call.From.Answer.Opaque, ""
	if err := tx.Query(`SELECT rule FROM call WHERE id = $1`, func(scan func(...any) error) error { return scan(&rule) }, string(call.ID)); err != nil {
		return err
	}
	code, err := t.approvalCode(tx, thread, id)
	if err != nil {
		return err
	}
	note := envelope.Parked(call, string(id), code, expires, rule)
	return t.send(tx, outgoing{kind: "note", about: string(id), thread: thread, call: call.ID, body: note})
}

// delivery is a row of the outbox.
type delivery struct {
	id, adaptor, thread, kind, about string
	part                             int64
	body, file, mention, mark        string
	call                             ops.CallID
	wake                             WakeID
	state                            string
	attempts                         int64
	nextAt                           int64
}

const deliveryColumns = `id, adaptor, address, kind, about, part, body, file, mention, mark, call, wake, state, attempts, next_at`

// selectDeliveries reads the deliveries that where picks.
func selectDeliveries(tx journal.Tx, where string, args ...any) (list []delivery, err error) {
	err = tx.Query(`SELECT `+deliveryColumns+` FROM outbox `+where, func(scan func(...any) error) error {
		var d delivery
		var call, wake *string
		if err := scan(&d.id, &d.adaptor, &d.thread, &d.kind, &d.about, &d.part, &d.body, &d.file, &d.mention, &d.mark,
			&call, &wake, &d.state, &d.attempts, &d.nextAt); err != nil {
			return err
		}
		if call != nil {
			d.call = ops.CallID(*call)
		}
		if wake != nil {
			d.wake = WakeID(*wake)
		}
		list = append(list, d)
		return nil
	}, args...)
	return list, err
}

// key is the idempotency key of d on its platform. It is bound to all that is sent, so
// that one key never stands for two posts.
func (d delivery) key() string {
	h := sha256.New()
	for _, s := range []string{d.adaptor, d.thread, d.mark, d.mention, d.body, d.file} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return d.mark + "-" + hex.EncodeToString(h.Sum(nil)[:8])
}

// mirror puts d into the record of its thread, as the post that has been made of it.
func mirror(tx journal.Tx, d delivery, platformID string) error {
	_, err := addPost(tx, post{id: d.mark, thread: d.thread, kind: d.kind, body: d.body, call: d.call, wake: d.wake, platform: platformID})
	return err
}

// Reasons why a delivery is set aside, beside the kinds of a PostError.
const (
	noThread    = "no_thread"    // there is no such thread
	unknownFate = "unknown_fate" // it may stand there, and nothing tells
	gaveUp      = "gave_up"      // refused too often
)

// setAside takes d out of the way of what is behind it and shows it to operators.
func setAside(tx journal.Tx, d delivery, reason, fault string) error {
	n, err := tx.Exec(`UPDATE outbox SET state = 'set_aside', reason = $1, fault = $2, owner = '' WHERE id = $3 AND state IN ('queued', 'sending')`,
		reason, fault, d.id)
	if err != nil || n == 0 {
		return err
	}
	return event(tx, d.thread, "outbox.set_aside", struct {
		Thread  string `json:"thread"`
		Adaptor string `json:"adaptor"`
		ID      string `json:"id"`
		Kind    string `json:"kind"`
		About   string `json:"about"`
		Part    int64  `json:"part,omitempty"`
		Reason  string `json:"reason"`
	}{d.thread, d.adaptor, d.id, d.kind, d.about, d.part, reason})
}

// isFault reports whether err is a fault, which is about what was asked for and not
// about the store.
func isFault(err error) (*ops.Fault, bool) {
	var f *ops.Fault
	ok := errors.As(err, &f)
	return f, ok
}
