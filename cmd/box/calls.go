package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"inband/ops"
)

// callListing is a call as GET /v1/calls lists it.
type callListing struct {
	Call       string     `json:"call"`
	Op         string     `json:"op"`
	By         identity   `json:"by"`
	State      ops.State  `json:"state"`
	Source     string     `json:"source"`
	ReceivedAt time.Time  `json:"received_at"`
	StartedAt  *time.Time `json:"started_at"`
	SettledAt  *time.Time `json:"settled_at"`
}

// identity is who did something.
type identity struct {
	ID   string `json:"id"`
	Role string `json:"role"`
}

// callShown is a call as GET /v1/calls/{id} shows it.
type callShown struct {
	callListing
	Params   json.RawMessage `json:"params"`
	Key      string          `json:"key"`
	From     ops.Origin      `json:"from"`
	Approval string          `json:"approval"`
	Result   json.RawMessage `json:"result"`
	Fault    *ops.Fault      `json:"fault"`
	Receipt  json.RawMessage `json:"receipt"`
	Position int64           `json:"audit_position"`
}

func (a *app) callsCommand() *cobra.Command {
	var state, op, after string
	var limit int
	cmd := &cobra.Command{
		Use:   "calls",
		Short: "List calls, newest first; show or cancel one",
		Long: `List calls, newest first. A call is one op with parameters, on its way through the
gateway: received, running, and then succeeded, failed, cancelled, refused, or
outcome_unknown, which is said of a side-effecting call that a crash interrupted. One
that needs an approval is parked before it is received.`,
		Example: `  box calls
  box calls --in outcome_unknown
  box calls --op dm.send --limit 500 --jsonl
  box calls show c-01k9…`,
		Args: a.subcommandOnly,
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			return a.listing(ctx, c, lister{
				route: routeCalls, member: "calls", after: after, limit: limit,
				filters: map[string]string{"state": state, "op": op},
				table:   newTable("CALL", "OP", "BY", "STATE", "RECEIVED", "SOURCE"),
				row: func(t *table, raw json.RawMessage) error {
					var l callListing
					if err := decode(raw, &l); err != nil {
						return err
					}
					t.row(l.Call, l.Op, l.By.ID, string(l.State), stamp(l.ReceivedAt), l.Source)
					return nil
				},
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&state, "in", "", "only calls in this state")
	f.StringVar(&op, "op", "", "only calls of this op")
	a.pages(cmd, &limit, &after)
	cmd.AddCommand(a.callsShowCommand(), a.callsCancelCommand())
	return a.speaks(cmd)
}

func (a *app) callsShowCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "show CALL",
		Short: "Show a call and what came of it",
		Long: `Show a call and what came of it: its parameters, where it came from, its result or
its fault, and the receipt of its execution. The signed log holds the digest of the
receipt at the position that is shown (box audit). --wait waits until the call is
settled; the exit code then says how it ended, as that of exec does. Without --wait the
exit code is 0 when the call could be shown.`,
		Example: `  box calls show c-01k9…
  box calls show c-01k9… --wait --timeout 1m`,
		Args:              exactly("the call's id"),
		ValidArgsFunction: a.completeIDs(routeCalls, "calls", "call", "op"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			if wait {
				return a.waitAndPrint(ctx, c, args[0])
			}
			shown, raw, err := c.call(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printCall(shown, raw)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the call is settled")
	return a.speaks(cmd)
}

func (a *app) callsCancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel CALL",
		Short: "Cancel a call",
		Long: `Cancel a call that is not settled yet, and print the state that it is in then. An op
that has begun is told to stop; what it had done by then stands. A call that is
settled already is a conflict (exit code 6).`,
		Example:           "  box calls cancel c-01k9…",
		Args:              exactly("the call's id"),
		ValidArgsFunction: a.completeIDs(routeCalls, "calls", "call", "op"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var got struct {
				Call  string    `json:"call"`
				State ops.State `json:"state"`
			}
			raw, err := c.get(ctx, request{route: routeCancelCall, names: args}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("%s %s\n", clean(got.Call), clean(string(got.State)))
		}),
	}
	return a.speaks(cmd)
}

// call reads one call.
func (c *client) call(ctx context.Context, id string) (callShown, json.RawMessage, error) {
	var shown callShown
	raw, err := c.get(ctx, request{route: routeCall, names: []string{id}}, &shown)
	return shown, raw, err
}

// settled waits until a call is settled. It asks again and again, at most once a
// second, because only operators may follow the events of a call that has no thread.
func (a *app) settled(ctx context.Context, c *client, id string) (callShown, json.RawMessage, error) {
	defer a.progress("waiting for " + id)()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		shown, raw, err := c.call(ctx, id)
		if err != nil || shown.State.Settled() {
			return shown, raw, err
		}
		if err := pause(ctx, wait); err != nil {
			return shown, raw, err
		}
	}
}

// waitAndPrint waits for a call's outcome and prints it as exec does. A call that did
// not succeed is its fault.
func (a *app) waitAndPrint(ctx context.Context, c *client, id string) error {
	shown, raw, err := a.settled(ctx, c, id)
	if err != nil {
		if lost := new(exitError); ctx.Err() != nil || errors.As(err, &lost) && lost.code == ops.ExitUnreachable {
			a.notice("the call goes on: box calls show %s --wait", id)
		}
		return err
	}
	if a.json || a.jsonl {
		a.answered = true
		if err := a.document(raw); err != nil {
			return err
		}
	} else if shown.Fault == nil {
		if err := a.printValue(shown.Result); err != nil {
			return err
		}
	}
	if shown.Fault != nil {
		return shown.Fault
	}
	return nil
}

// printCall prints everything about a call for people.
func (a *app) printCall(c callShown, raw json.RawMessage) error {
	if a.json || a.jsonl {
		return a.document(raw)
	}
	var lines [][2]string
	line := func(name, value string) {
		if value != "" {
			lines = append(lines, [2]string{name, value})
		}
	}
	line("call", c.Call)
	line("op", c.Op)
	line("by", c.By.Role+" "+c.By.ID)
	line("state", string(c.State))
	line("source", c.Source)
	if c.From.Answer != nil {
		line("answer", c.From.Answer.Adaptor+" "+c.From.Answer.Opaque)
	}
	line("key", c.Key)
	line("approval", c.Approval)
	line("received", stamp(c.ReceivedAt))
	line("started", maybeStamp(c.StartedAt))
	line("settled", maybeStamp(c.SettledAt))
	line("params", string(c.Params))
	if len(c.Receipt) > 0 {
		lines = append(lines, receiptLines(c.Receipt)...)
	}
	if c.Position > 0 {
		line("audit", fmt.Sprintf("position %d", c.Position))
	}
	if c.Fault != nil {
		line("fault", fmt.Sprintf("%s (%s)", c.Fault.Message, c.Fault.Code))
		if len(c.Fault.Details) > 0 {
			details, err := json.Marshal(c.Fault.Details)
			if err != nil {
				return err
			}
			line("details", string(details))
		}
	}
	for _, l := range lines {
		if err := a.printf("%-10s%s\n", l[0], clean(l[1])); err != nil {
			return err
		}
	}
	if len(c.Result) > 0 {
		if err := a.printf("\n"); err != nil {
			return err
		}
		return a.printValue(c.Result)
	}
	return nil
}
