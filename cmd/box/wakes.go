package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// wakeListing is a wake as GET /v1/wakes lists it.
type wakeListing struct {
	Wake     string     `json:"wake"`
	Agent    string     `json:"agent"`
	Thread   string     `json:"thread"`
	Cause    string     `json:"cause"`
	Source   string     `json:"source"`
	Name     string     `json:"name"`
	State    string     `json:"state"`
	Verdict  string     `json:"verdict"`
	RaisedAt time.Time  `json:"raised_at"`
	Deadline *time.Time `json:"deadline"`
	EndedAt  *time.Time `json:"ended_at"`
	Post     string     `json:"post"`
	Summary  string     `json:"summary"`
}

// wakeShown is a wake as GET /v1/wakes/{id} shows it.
type wakeShown struct {
	wakeListing
	By     *identity `json:"by"`
	Errand string    `json:"errand"`
	Shown  string    `json:"shown"`
	Ops    []string  `json:"ops"`
	Root   string    `json:"root"`
	Hops   int64     `json:"hops"`
	Refs   []string  `json:"refs"`
}

func (a *app) wakesCommand() *cobra.Command {
	const long = `List wakes, newest first: the errands that agents were woken for, by timers and by
messages, and what came of them. The verdict is the agent's own (done, failed, blocked,
waiting), or unanswered when the deadline passed without one.`
	var agent, thread, after string
	var open bool
	var limit int
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		state := ""
		if open {
			state = "live"
		}
		return a.listing(ctx, c, lister{
			route: routeWakes, member: "wakes", after: after, limit: limit,
			filters: map[string]string{"agent": agent, "thread": thread, "state": state},
			table:   newTable("WAKE", "AGENT", "STATE", "VERDICT", "CAUSE", "RAISED", "DEADLINE", "THREAD", "NAME"),
			row: func(t *table, raw json.RawMessage) error {
				var l wakeListing
				if err := decode(raw, &l); err != nil {
					return err
				}
				t.row(l.Wake, l.Agent, l.State, l.Verdict, l.Cause, stamp(l.RaisedAt), maybeStamp(l.Deadline), l.Thread, l.Name)
				return nil
			},
		})
	})
	flags := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().StringVar(&agent, "agent", "", "only those of this agent")
		cmd.Flags().StringVar(&thread, "thread", "", "only those in this thread")
		cmd.Flags().BoolVar(&open, "open", false, "only those that have not ended")
		a.pages(cmd, &limit, &after)
		return a.speaks(cmd)
	}
	cmd := &cobra.Command{
		Use:   "wakes",
		Short: "List wakes, newest first; show one",
		Long:  long,
		Example: `  box wakes --open
  box wakes --agent scout
  box wakes show w-01k9…`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	show := &cobra.Command{
		Use:   "show WAKE",
		Short: "Show a wake, its errand and what came of it",
		Long: `Show a wake: what raised it, the errand, what the agent may run unasked, and what came
of it. Its key is shown to nobody but the agent.`,
		Example:           "  box wakes show w-01k9…",
		Args:              exactly("the wake's id"),
		ValidArgsFunction: a.completeIDs(routeWakes, "wakes", "wake", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.wake(ctx, c, args[0])
		}),
	}
	cmd.AddCommand(flags(&cobra.Command{Use: "list", Short: "List wakes", Long: long, Example: "  box wakes list --open --jsonl", Args: exactly(), RunE: list}), a.speaks(show))
	return flags(cmd)
}

// wake prints one wake.
func (a *app) wake(ctx context.Context, c *client, id string) error {
	var got wakeShown
	raw, err := c.get(ctx, request{route: routeWake, names: []string{id}}, &got)
	if err != nil {
		return err
	}
	if a.json || a.jsonl {
		return a.document(raw)
	}
	s := sheet{app: a}
	s.line("wake", got.Wake)
	s.line("state", got.State)
	s.line("verdict", got.Verdict)
	s.line("agent", got.Agent)
	s.line("thread", got.Thread)
	s.line("cause", got.Cause)
	s.line("name", got.Name)
	s.line("source", got.Source)
	if got.By != nil {
		s.line("by", got.By.Role+" "+got.By.ID)
	}
	s.line("root", got.Root)
	s.line("hops", strconv.FormatInt(got.Hops, 10))
	s.line("ops", strings.Join(got.Ops, " "))
	s.line("raised", stamp(got.RaisedAt))
	s.line("deadline", maybeStamp(got.Deadline))
	s.line("ended", maybeStamp(got.EndedAt))
	s.line("envelope", got.Post)
	s.line("summary", got.Summary)
	for _, ref := range got.Refs {
		s.line("ref", ref)
	}
	s.text("errand", got.Errand)
	s.text("shown, untrusted", got.Shown)
	return s.err
}
