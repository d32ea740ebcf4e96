package threads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"inband/envelope"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// DMSend returns the op dm.send: its effect is a wake, a post or a row of the outbox, made
// in the transaction that settles the call.
func (t *Threads) DMSend() ops.Bound {
	return ops.Bound{Op: ops.DMSend(), Executor: dm{t}}
}

type dm struct{ t *Threads }

var _ service.Transactional = dm{}

// Execute is never used: the door calls ExecuteTx of a Transactional.
func (dm) Execute(context.Context, ops.Call) (ops.Outcome, error) {
	return ops.Outcome{}, errors.New("dm.send runs in a transaction")
}

// sent is the result of dm.send.
type sent struct {
	Room   string `json:"room"`
	Thread string `json:"thread"`
	Post   string `json:"post,omitempty"` // "" while the wake is held
	Wake   WakeID `json:"wake,omitempty"` // to an agent
	Held   bool   `json:"held,omitempty"` // the thread is stopped: the agent is woken when it is started
	// Control says that the message was an operator's word to the gateway, STOP, START or
	// a decision, which was carried out and not posted as a message.
	Control bool `json:"control,omitempty"`
}

// ExecuteTx sends the message. An agent is woken by it, in its home unless the call names
// a thread in which it and the sender take part; a person gets it in a chat that knows
// them, else in the room "dm.PERSON"; in a room it begins a thread unless the call names
// one.
//
// The words of an operator are a trusted errand and begin a new root cause. Those of an
// agent are untrusted material, and one more agent stands between them and a person.
func (d dm) ExecuteTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	var p struct{ To, Text, Thread string }
	if err := json.Unmarshal(c.Params, &p); err != nil {
		return ops.Outcome{}, fmt.Errorf("parameters of dm.send: %w", err)
	}
	t := d.t
	to, err := t.recipient(tx, p.To)
	if err != nil {
		return ops.Outcome{}, err
	}
	if to.who == c.By && c.By.Role == ops.Agent {
		return ops.Outcome{}, ops.Faultf(ops.InvalidParams, "%s cannot wake itself by a message; cron.create makes a timer", c.By.ID).With("pointer", "/to")
	}
	s := sent{Thread: p.Thread}
	if p.Thread != "" {
		if s.Room, err = mayContinue(tx, t.door.Policy(), c.By, p.Thread, to); err != nil {
			return ops.Outcome{}, err
		}
		if s.Control, err = t.control(tx, c.By, p.Thread, p.Text, time.Time{}); err != nil {
			return ops.Outcome{}, err
		}
		if s.Control {
			return ops.Success(ops.NewResult(s, "")), nil
		}
	}
	if to.who.Role == ops.Agent {
		err = t.wakeBy(tx, c, to, p.Text, &s)
	} else {
		err = t.say(tx, c, to, p.Text, &s)
	}
	if err != nil {
		return ops.Outcome{}, err
	}
	return ops.Success(ops.NewResult(s, "")), nil
}

// wakeBy wakes an agent with the message of a call.
func (t *Threads) wakeBy(tx journal.Tx, c ops.Call, to recipient, text string, s *sent) (err error) {
	e := Errand{
		Agent: to.who.ID, Cause: ByMessage, Source: c.From.Source, By: c.By, Name: c.By.String(), Thread: s.Thread,
		Ops: []ops.OpName{ops.DMSend().Name},
	}
	if c.By.Role == ops.Operator {
		e.Text = text
	} else {
		e.Shown, e.Root, e.Hops = text, c.From.Root, c.From.Hops+1
	}
	if e.Thread == "" && to.chat != nil {
		if e.Thread, err = begin(tx, to.chat, to.target, to.who.ID); err != nil {
			return err
		}
	}
	w, err := t.Raise(tx, e)
	if err != nil {
		return err
	}
	s.Thread, s.Post, s.Wake, s.Held = w.Thread, w.Post, w.ID, w.Held
	return tx.Query(`SELECT room FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&s.Room) }, s.Thread)
}

// say posts the message of a call in a thread, or begins one with it.
func (t *Threads) say(tx journal.Tx, c ops.Call, to recipient, text string, s *sent) (err error) {
	switch {
	case s.Thread != "":
	case to.chat != nil:
		s.Thread, err = begin(tx, to.chat, to.target, to.who.ID)
	case to.who.ID != "":
		s.Thread, err = t.home(tx, to.who.ID)
	default:
		s.Thread = NewThreadID()
		err = openThread(tx, to.room, s.Thread)
	}
	if err != nil {
		return err
	}
	adaptor := ""
	if err := tx.Query(`SELECT room, adaptor FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&s.Room, &adaptor) }, s.Thread); err != nil {
		return err
	}
	for _, who := range []ops.IdentityID{c.By.ID, to.who.ID} {
		if who != "" {
			if err := join(tx, s.Thread, who); err != nil {
				return err
			}
		}
	}
	if c.By.Role != ops.Operator {
		if err := keepMaterial(tx, s.Thread, c.By.ID, t.materialOf(text)); err != nil {
			return err
		}
	}
	if adaptor == Adaptor {
		s.Post, err = addPost(tx, post{thread: s.Thread, kind: "message", author: c.By, body: text, call: c.ID})
		return err
	}
	words := envelope.Words(text)
	if c.By.Role == ops.Operator {
		words = envelope.Neutral(text) // who may mention people, and show where something is
	}
	s.Post = newPostID()
	return t.send(tx, outgoing{kind: "message", about: string(c.ID), thread: s.Thread, call: c.ID, agent: to.who.ID, post: s.Post,
		body: envelope.Note("%s:", c.By.String()) + words})
}

// recipient is whom or where a message is addressed to.
type recipient struct {
	who    ops.Identity // zero for a room, and for a person whom only a chat knows
	room   string       // of the built-in rooms, or as a room or person of a chat is named among them
	chat   Chat         // nil unless the message names a chat
	target string       // as its Open takes it
}

// recipient finds what a message is addressed to: a room written as #NAME, a room or a
// person of a chat, an identity, else a room of that name that exists.
func (t *Threads) recipient(tx journal.Tx, to string) (recipient, error) {
	if name, ok := strings.CutPrefix(to, "#"); ok {
		return recipient{room: name}, nil
	}
	if i := strings.IndexAny(to, "#@"); i > 0 {
		return t.ofChat(tx, to[:i], to[i:])
	}
	who, known, err := access.Live(tx, ops.IdentityID(to))
	if err != nil {
		return recipient{}, err
	}
	if known {
		return recipient{who: who, room: "dm." + to}, nil
	}
	r := recipient{}
	if err := tx.Query(`SELECT name FROM room WHERE name = $1`, func(scan func(...any) error) error { return scan(&r.room) }, to); err != nil {
		return recipient{}, err
	}
	if r.room == "" {
		return recipient{}, ops.Faultf(ops.NotFound, "there is no identity %q, or it has been revoked, and no such room; a new room is written #%s", to, to).With("pointer", "/to")
	}
	return r, nil
}

// ofChat finds a room or a person of a chat. A person who is an identity is that one.
func (t *Threads) ofChat(tx journal.Tx, adaptor, target string) (recipient, error) {
	r := recipient{chat: t.chat(adaptor), room: adaptor + target, target: target}
	if r.chat == nil {
		return recipient{}, ops.Faultf(ops.NotFound, "there is no adaptor %q", adaptor).With("pointer", "/to")
	}
	user, person := strings.CutPrefix(target, "@")
	if !person {
		return r, nil
	}
	id, known := r.chat.Who(user)
	if !known {
		return r, nil
	}
	who, live, err := access.Live(tx, id)
	if err == nil && !live {
		return recipient{}, ops.Faultf(ops.NotFound, "%s is %q, who does not exist or has been revoked", target, id).With("pointer", "/to")
	}
	r.who = who
	return r, err
}

// mayContinue returns the room that thread stands in, or NotFound unless by and the one
// who is written to take part in it, or a fault if it does not stand in the room that is
// written to.
func mayContinue(tx journal.Tx, policy *access.Policy, by ops.Identity, thread string, to recipient) (stands string, err error) {
	if err := maySee(tx, policy, by, thread); err != nil {
		return "", err
	}
	if err := tx.Query(`SELECT room FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&stands) }, thread); err != nil {
		return "", err
	}
	if to.who.ID != "" {
		return stands, takesPart(tx, thread, to.who.ID)
	}
	if stands != to.room {
		return "", ops.Faultf(ops.InvalidParams, "thread %s stands in #%s, not in #%s", thread, stands, to.room).With("pointer", "/thread")
	}
	return stands, nil
}
