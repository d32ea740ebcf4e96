package threads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// DMSend returns the op dm.send: its effect is a post in the journal, made in the
// transaction that settles the call. policy is the door's: it decides whether the
// sender may see the thread that a call names.
func DMSend(policy *access.LivePolicy) ops.Bound {
	return ops.Bound{Op: ops.DMSend(), Executor: dm{policy}}
}

type dm struct{ policy *access.LivePolicy }

var _ service.Transactional = dm{}

// Execute is never used: the door calls ExecuteTx of a Transactional.
func (dm) Execute(context.Context, ops.Call) (ops.Outcome, error) {
	return ops.Outcome{}, errors.New("dm.send runs in a transaction")
}

// ExecuteTx posts the message. To an agent, it stands in the room of that agent,
// "dm.AGENT"; to a room, in a new thread there unless the call names one that its
// sender takes part in.
func (d dm) ExecuteTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	var p struct{ To, Text, Thread string }
	if err := json.Unmarshal(c.Params, &p); err != nil {
		return ops.Outcome{}, fmt.Errorf("parameters of dm.send: %w", err)
	}
	room, to, err := recipient(tx, p.To)
	if err != nil {
		return ops.Outcome{}, err
	}
	thread := p.Thread
	if thread == "" {
		thread = NewThreadID()
		if err := openThread(tx, room, thread); err != nil {
			return ops.Outcome{}, err
		}
	} else if room, err = mayContinue(tx, d.policy.Current(), c.By, thread, room, to); err != nil {
		return ops.Outcome{}, err
	}
	if to != "" {
		if err := join(tx, thread, to); err != nil {
			return ops.Outcome{}, err
		}
	}
	id, err := addPost(tx, post{thread: thread, kind: "message", author: c.By, body: p.Text, call: c.ID})
	if err != nil {
		return ops.Outcome{}, err
	}
	return ops.Success(ops.NewResult(map[string]any{"room": room, "thread": thread, "post": id}, "")), nil
}

// recipient finds what a message is addressed to: a room written as #NAME, else an
// identity, else a room of that name that exists.
func recipient(tx journal.Tx, to string) (room string, who ops.IdentityID, err error) {
	if name, ok := strings.CutPrefix(to, "#"); ok {
		return name, "", nil
	}
	id, known, err := access.Live(tx, ops.IdentityID(to))
	if err != nil {
		return "", "", err
	}
	if known {
		return "dm." + to, id.ID, nil
	}
	if err := tx.Query(`SELECT name FROM room WHERE name = $1`, func(scan func(...any) error) error { return scan(&room) }, to); err != nil {
		return "", "", err
	}
	if room == "" {
		return "", "", ops.Faultf(ops.NotFound, "there is no identity and no room %q; a new room is written #%s", to, to)
	}
	return room, "", nil
}

// mayContinue returns the room that thread stands in, or NotFound unless by and the one
// who is written to take part in it, or a fault if it does not stand in the room that is
// written to.
func mayContinue(tx journal.Tx, policy *access.Policy, by ops.Identity, thread, room string, to ops.IdentityID) (stands string, err error) {
	if err := maySee(tx, policy, by, thread); err != nil {
		return "", err
	}
	if err := tx.Query(`SELECT room FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&stands) }, thread); err != nil {
		return "", err
	}
	if to != "" {
		return stands, takesPart(tx, thread, to)
	}
	if stands != room {
		return "", ops.Faultf(ops.InvalidParams, "thread %s stands in #%s, not in #%s", thread, stands, room).With("pointer", "/thread")
	}
	return stands, nil
}
