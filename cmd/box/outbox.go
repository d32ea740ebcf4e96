package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// outboxEntry is a delivery as GET /v1/outbox shows it.
type outboxEntry struct {
	ID       string     `json:"id"`
	Adaptor  string     `json:"adaptor"`
	Thread   string     `json:"thread"`
	Kind     string     `json:"kind"`
	About    string     `json:"about"`
	Part     int        `json:"part"`
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	QueuedAt time.Time  `json:"queued_at"`
	NextAt   *time.Time `json:"next_at"`
	Reason   string     `json:"reason"`
	Fault    string     `json:"fault"`
}

func (a *app) outboxCommand() *cobra.Command {
	const long = `List what is to be posted in threads and is not posted yet, oldest first: what waits,
what is being sent, and what was set aside because it cannot be sent, or because nobody
knows whether it has been. What is set aside is not tried again by itself.`
	var after string
	var limit int
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		return a.listing(ctx, c, lister{
			route: routeOutbox, member: "outbox", after: after, limit: limit,
			table: newTable("DELIVERY", "STATE", "ADAPTOR", "THREAD", "ABOUT", "ATTEMPTS", "NEXT", "WHY"),
			row: func(t *table, raw json.RawMessage) error {
				var e outboxEntry
				if err := decode(raw, &e); err != nil {
					return err
				}
				t.row(e.cells()...)
				return nil
			},
		})
	})
	flags := func(cmd *cobra.Command) *cobra.Command {
		a.pages(cmd, &limit, &after)
		return a.speaks(cmd)
	}
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "List what is not posted yet; try again what was set aside",
		Long:  long,
		Example: `  box outbox
  box outbox retry o-01k9…`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	cmd.AddCommand(flags(&cobra.Command{
		Use: "list", Short: "List what is not posted yet", Long: long, Example: "  box outbox list --jsonl", Args: exactly(), RunE: list,
	}), a.outboxRetryCommand())
	return flags(cmd)
}

// cells are what a line of the list says of e.
func (e outboxEntry) cells() []string {
	about, next, why := e.Kind+" "+e.About, "", e.Reason
	if e.Part > 0 {
		about += fmt.Sprintf(" part %d", e.Part+1)
	}
	if e.NextAt != nil {
		next = stamp(*e.NextAt)
	}
	if why == "" {
		why = e.Fault
	}
	return []string{e.ID, e.State, e.Adaptor, e.Thread, about, fmt.Sprint(e.Attempts), next, why}
}

func (a *app) outboxRetryCommand() *cobra.Command {
	var again bool
	cmd := &cobra.Command{
		Use:   "retry DELIVERY",
		Short: "Try again what was set aside",
		Long: `Put a delivery that was set aside back into its place, with the parts of its text that
were set aside along with it, and print it. When its reason is unknown_fate, it may stand
in the thread already: look there first. It is only sent with --again then, and may
stand there twice.`,
		Example: `  box outbox retry o-01k9…
  box outbox retry o-01k9… --again`,
		Args:              exactly("the delivery's id"),
		ValidArgsFunction: a.completeIDs(routeOutbox, "outbox", "id", "reason"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			body := struct {
				Again bool `json:"again,omitempty"`
			}{again}
			var e outboxEntry
			raw, err := c.get(ctx, request{route: routeRetry, names: args, body: body}, &e)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("%s is %s\n", clean(e.ID), clean(e.State))
		}),
	}
	cmd.Flags().BoolVar(&again, "again", false, "send it even if nobody knows whether it stands there")
	return a.speaks(cmd)
}
