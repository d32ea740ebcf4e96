package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"inband/ops"
)

// maxReply bounds a reply: the API's bound on the body that carries it.
const maxReply = 1 << 20 // bytes

// ack is the answer of POST /v1/replies.
type ack struct {
	Reply     string      `json:"reply"`
	Room      string      `json:"room"`
	Thread    string      `json:"thread"`
	Message   string      `json:"message"`
	Duplicate bool        `json:"duplicate"`
	Edited    bool        `json:"edited"`
	Broken    int         `json:"broken"`
	OverLimit int         `json:"over_limit"`
	Wake      string      `json:"wake"`    // that it was written in, if it was
	Verdict   string      `json:"verdict"` // that it gave on it
	Calls     []replyCall `json:"calls"`
}

type replyCall struct {
	Call    string     `json:"call"`
	Op      string     `json:"op"`
	Form    string     `json:"form"`
	Ordinal int        `json:"ordinal"`
	State   ops.State  `json:"state"`
	Rule    string     `json:"rule"` // that decided
	Start   int64      `json:"start"`
	End     int64      `json:"end"`
	Fault   *ops.Fault `json:"fault"`

	Approval string `json:"approval"` // of a parked one
}

// replyBody is the body of POST /v1/replies.
type replyBody struct {
	Agent   string `json:"agent,omitempty"`
	Room    string `json:"room,omitempty"`
	Thread  string `json:"thread,omitempty"`
	Message string `json:"message"`
	Text    string `json:"text"`
}

func (a *app) replyCommand() *cobra.Command {
	var body replyBody
	var wait bool
	cmd := &cobra.Command{
		Use:   "reply [FILE|-]",
		Short: "Hand in what an agent wrote",
		Long: `Hand in what an agent wrote, from a file or from standard input. The gateway takes
it into a thread of the built-in rooms, runs the orders in it and posts their
results into the same thread. What box prints is what it found; a text without
orders is taken as well.

Give either --room, where a new thread is begun, or --thread. --message is the
message's id in the place where it was written: the same id in the same room is taken
once, however often it is handed in; without it box makes a fresh one. --agent says
who wrote it, which an operator or a bridge must say.

--wait waits until the results are posted and prints the thread; one that needs an
approval is waited for until somebody has decided. The exit code is then 1 when an
order did not succeed.`,
		Example: `  echo 'Let me look. [TOOL tools.list {}]' | box reply --agent ada --room lobby
  box reply --agent ada --thread t-01k9… --message m-17 answer.txt --wait`,
		Args: atMost(1),
	}
	f := cmd.Flags()
	f.StringVar(&body.Agent, "agent", "", "who wrote it (default: you, if you are an agent)")
	f.StringVar(&body.Room, "room", "", "begin a new thread in this room")
	f.StringVar(&body.Thread, "thread", "", "answer in this thread")
	f.StringVar(&body.Message, "message", "", "the message's id (default: a fresh one)")
	f.BoolVar(&wait, "wait", false, "wait for the results and print the thread")
	oneOf(cmd, "room", "thread")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.patient(cmd.Context())
		defer cancel()
		if body.Room == "" && body.Thread == "" {
			return usagef("where to: give --room or --thread")
		}
		file := "-"
		if len(args) > 0 {
			file = args[0]
		}
		text, whole, err := a.readInput(ctx, file, maxReply)
		if err != nil {
			return err
		}
		if !whole {
			return ops.Faultf(ops.TooLarge, "%s holds more than the %d bytes that a reply may have", inputName(file), maxReply).With("max", maxReply)
		}
		body.Text = string(text)
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.close()
		got, raw, err := c.reply(ctx, body)
		if err != nil {
			return err
		}
		if wait {
			return a.replyWait(ctx, c, got, raw)
		}
		if a.json || a.jsonl {
			return a.document(raw)
		}
		return a.printAck(got)
	}
	return a.speaks(cmd)
}

// reply hands in a reply. Its message id makes sending it again harmless.
func (c *client) reply(ctx context.Context, body replyBody) (ack, json.RawMessage, error) {
	if body.Message == "" {
		body.Message = "box-" + strings.ToLower(rand.Text())
	}
	var got ack
	raw, err := c.get(ctx, request{route: routeReplies, body: body, again: true}, &got)
	return got, raw, err
}

func (a *app) printAck(got ack) error {
	if len(got.Calls) > 0 {
		t := newTable("#", "OP", "FORM", "STATE", "RULE", "CALL", "BYTES", "FAULT")
		for _, call := range got.Calls {
			fault := ""
			if call.Fault != nil {
				fault = fmt.Sprintf("%s: %s", call.Fault.Code, call.Fault.Message)
			}
			t.row(strconv.Itoa(call.Ordinal), call.Op, call.Form, string(call.State), call.Rule, call.Call,
				fmt.Sprintf("%d-%d", call.Start, call.End), fault)
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	a.noteAck(got)
	a.notice("the thread: box threads show %s", got.Thread)
	return nil
}

// noteAck says what the table of calls does not.
func (a *app) noteAck(got ack) {
	switch {
	case got.Edited:
		a.notice("this message was taken before with another text, which stands; the new one is on record and nothing ran")
	case got.Duplicate:
		a.notice("this message was taken before; nothing ran again")
	}
	switch {
	case got.Verdict != "":
		a.notice("wake %s: %s", got.Wake, got.Verdict)
	case got.Wake != "":
		a.notice("wake %s has no verdict yet", got.Wake)
	}
	if len(got.Calls) == 0 {
		a.notice("no orders in this text")
	}
	if got.Broken > 0 {
		a.notice("broken directives: %d; box harvest --explain shows where", got.Broken)
	}
	if got.OverLimit > 0 {
		a.notice("orders beyond the limit of one reply, which were not run: %d", got.OverLimit)
	}
}

// replyWait waits until each call of a reply is settled and its result posted, and
// prints the thread from the reply on.
func (a *app) replyWait(ctx context.Context, c *client, got ack, raw json.RawMessage) error {
	a.noteAck(got)
	stop := a.progress("waiting for the results")
	posts, err := c.answers(ctx, got)
	stop()
	if err != nil {
		return err
	}
	if a.json {
		err = a.document(map[string]any{"reply": raw, "posts": posts})
	} else {
		for _, raw := range posts {
			var p post
			if err = decode(raw, &p); err != nil {
				return err
			}
			if err = a.printPost(raw, p); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	failed := 0
	for _, call := range got.Calls {
		shown, _, err := c.call(ctx, call.Call)
		if err != nil {
			return err
		}
		if shown.State != ops.Succeeded {
			failed++
		}
	}
	if failed > 0 {
		return &exitError{code: ops.ExitFailed, err: fmt.Errorf("%d of %d orders did not succeed", failed, len(got.Calls))}
	}
	return nil
}

// answers follows a reply's thread until the result of each of its calls is posted, and
// returns the posts from the reply on.
func (c *client) answers(ctx context.Context, got ack) ([]json.RawMessage, error) {
	left := make(map[string]bool)
	for _, call := range got.Calls {
		left[call.Call] = true
	}
	posts := []json.RawMessage{}
	begun := false
	err := c.followPosts(ctx, got.Thread, func(raw json.RawMessage, p post) error {
		if begun = begun || p.ID == got.Reply; begun {
			posts = append(posts, raw)
		}
		if p.Kind == "result" { // a message that the call has sent names it too
			delete(left, p.Call)
		}
		if begun && len(left) == 0 {
			return errDone
		}
		return nil
	})
	return posts, err
}
