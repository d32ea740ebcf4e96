package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
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
	Params json.RawMessage `json:"params"`
	Key    string          `json:"key"`
	From   ops.Origin      `json:"from"`
	Result json.RawMessage `json:"result"`
	Fault  *ops.Fault      `json:"fault"`
}

func (a *app) callsCommand() *cobra.Command {
	var state, op, after string
	var limit int
	cmd := &cobra.Command{
		Use:   "calls",
		Short: "List calls, newest first; show or cancel one",
		Long: `List calls, newest first. A call is one op with parameters, on its way through the
gateway: received, running, and then succeeded, failed, cancelled, refused, or
outcome_unknown, which is said of a side-effecting call that a crash interrupted.`,
		Example: `  box calls
  box calls --in outcome_unknown
  box calls --op dm.send --limit 500 --jsonl
  box calls show c-01k9…`,
		Args: a.subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.patient(cmd.Context())
			defer cancel()
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.close()
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
		},
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
its fault. --wait waits until it is settled; the exit code then says how it ended,
as that of exec does. Without --wait the exit code is 0 when the call could be shown.`,
		Example: `  box calls show c-01k9…
  box calls show c-01k9… --wait --timeout 1m`,
		Args:              exactly("the call's id"),
		ValidArgsFunction: a.completeIDs(routeCalls, "calls", "call", "op"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := a.patient(cmd.Context())
			defer cancel()
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.close()
			if wait {
				return a.waitAndPrint(ctx, c, args[0])
			}
			shown, raw, err := c.call(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printCall(shown, raw)
		},
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
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := a.patient(cmd.Context())
			defer cancel()
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.close()
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
		},
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
		if ctx.Err() != nil {
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
	line("received", stamp(c.ReceivedAt))
	line("started", maybeStamp(c.StartedAt))
	line("settled", maybeStamp(c.SettledAt))
	line("params", string(c.Params))
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

// stamp writes a time for people: local, to the second.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func maybeStamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return stamp(*t)
}

// lister prints a paged list.
type lister struct {
	route   route
	names   []string
	member  string // the array's name in the answer
	after   string
	limit   int // rows in all; 0 is all
	filters map[string]string
	table   *table
	row     func(*table, json.RawMessage) error
}

// maxPage is the most rows that a page of the API holds.
const maxPage = 200

// listing prints l in the mode that was asked for. With --jsonl each page is printed
// as it comes, so a list of any length needs no memory.
func (a *app) listing(ctx context.Context, c *client, l lister) error {
	if l.limit < 0 {
		return usagef("--limit is negative")
	}
	next, left := l.after, l.limit
	rows := []json.RawMessage{}
	for {
		size := maxPage
		if l.limit > 0 {
			size = min(left, maxPage)
		}
		var answer map[string]json.RawMessage
		if _, err := c.get(ctx, request{route: l.route, names: l.names, query: page(size, next, l.filters)}, &answer); err != nil {
			return err
		}
		var got []json.RawMessage
		if err := decode(answer[l.member], &got); err != nil {
			return err
		}
		next = cursor(answer["next"])
		for _, raw := range got {
			switch {
			case a.jsonl:
				if err := a.document(raw); err != nil {
					return err
				}
			case a.json:
				rows = append(rows, raw)
			default:
				if err := l.row(l.table, raw); err != nil {
					return err
				}
			}
		}
		left -= len(got)
		if next == "" || len(got) == 0 || l.limit > 0 && left <= 0 {
			break
		}
	}
	switch {
	case a.jsonl:
	case a.json:
		doc := map[string]any{l.member: rows}
		if next != "" {
			doc["next"] = next
		}
		if err := a.document(doc); err != nil {
			return err
		}
	default:
		if err := a.print(l.table); err != nil {
			return err
		}
	}
	if next != "" {
		a.notice("there are more: add --after %s", next)
	}
	return nil
}

// cursor is the value for after in an answer's next: a string, or a number's digits.
func cursor(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n int64
	if json.Unmarshal(raw, &n) == nil && n > 0 {
		return strconv.FormatInt(n, 10)
	}
	return ""
}

// pages gives cmd the flags of a paged list.
func (a *app) pages(cmd *cobra.Command, limit *int, after *string) {
	cmd.Flags().IntVar(limit, "limit", 50, "most rows, 0 for all")
	cmd.Flags().StringVar(after, "after", "", "go on behind this one")
}
