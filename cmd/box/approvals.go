package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/ops"
)

// approvalListing is an approval as GET /v1/approvals lists it.
type approvalListing struct {
	Approval      string     `json:"approval"`
	Call          string     `json:"call"`
	State         string     `json:"state"`
	Op            string     `json:"op"`
	Summary       string     `json:"summary"`
	SideEffecting bool       `json:"side_effecting"`
	By            identity   `json:"by"`
	Source        string     `json:"source"`
	RequestedAt   time.Time  `json:"requested_at"`
	ExpiresAt     time.Time  `json:"expires_at"`
	DecidedAt     *time.Time `json:"decided_at"`
	DecidedBy     *identity  `json:"decided_by"`
}

// approvalShown is an approval as GET /v1/approvals/{id} shows it.
type approvalShown struct {
	approvalListing
	Params json.RawMessage `json:"params"`
	From   ops.Origin      `json:"from"`
	Bound  struct {
		Params     string            `json:"params"`
		Definition string            `json:"definition"`
		RestsOn    map[string]string `json:"rests_on"`
	} `json:"bound"`
	Hash    string `json:"hash"`
	Policy  string `json:"policy"`
	Reason  string `json:"reason"`
	Changed []struct {
		What string `json:"what"`
		Was  string `json:"was"`
		Is   string `json:"is"`
	} `json:"changed"`
}

func (a *app) approvalsCommand() *cobra.Command {
	const long = `List approvals, newest first: those of calls that wait until somebody lets them run,
and those that were decided. What waits is listed with --in pending. An approval is for
one call as it was ordered: for its identity, op, parameters, definition and, for a
command, its program. When any of that has changed it is void, and nothing runs.`
	var state, after string
	var limit int
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		return a.listing(ctx, c, lister{
			route: routeApprovals, member: "approvals", after: after, limit: limit,
			filters: map[string]string{"state": state},
			table:   newTable("APPROVAL", "STATE", "OP", "BY", "EXPIRES", "CALL"),
			row: func(t *table, raw json.RawMessage) error {
				var l approvalListing
				if err := decode(raw, &l); err != nil {
					return err
				}
				t.row(l.Approval, l.State, l.Op, l.By.ID, stamp(l.ExpiresAt), l.Call)
				return nil
			},
		})
	})
	flags := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().StringVar(&state, "in", "", "only those in this state: pending, approved, denied, expired or void")
		a.pages(cmd, &limit, &after)
		return a.speaks(cmd)
	}
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "List approvals, newest first; show, approve or deny one",
		Long:  long,
		Example: `  box approvals --in pending
  box approvals show a-01k9…
  box approvals approve a-01k9…
  box approvals deny a-01k9… --reason "not on a Friday"`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	cmd.AddCommand(flags(&cobra.Command{
		Use: "list", Short: "List approvals", Long: long, Example: "  box approvals list --in pending --jsonl", Args: exactly(), RunE: list,
	}), a.approvalsShowCommand(), a.approvalsApproveCommand(), a.approvalsDenyCommand())
	return flags(cmd)
}

func (a *app) approvalsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show APPROVAL",
		Short: "Show an approval and what it is for",
		Long: `Show an approval and all that it is for: who ordered which op with which parameters,
from where, what it rests on, and until when it can be given.`,
		Example:           "  box approvals show a-01k9…",
		Args:              exactly("the approval's id"),
		ValidArgsFunction: a.completeIDs(routeApprovals, "approvals", "approval", "op"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.approval(ctx, c, request{route: routeApproval, names: args})
		}),
	}
	return a.speaks(cmd)
}

func (a *app) approvalsApproveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve APPROVAL",
		Short: "Let a call that waits run, once",
		Long: `Let a call that waits run, once, and print the approval. What it is for is looked at
again first: when anything has changed, nothing runs and the fault names it (exit code
6), as it does when the time to approve is over. Nobody approves their own call, unless
the policy lets them.`,
		Example: `  box approvals approve a-01k9…
  box calls show c-01k9… --wait`,
		Args:              exactly("the approval's id"),
		ValidArgsFunction: a.completeIDs(routeApprovals, "approvals", "approval", "op"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.approval(ctx, c, request{route: routeApprove, names: args, again: true})
		}),
	}
	return a.speaks(cmd)
}

func (a *app) approvalsDenyCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "deny APPROVAL",
		Short: "End a call that waits without running it",
		Long: `End a call that waits without running it, and print the approval. --reason is told to
whoever ordered the call, in its thread too.`,
		Example:           `  box approvals deny a-01k9… --reason "not on a Friday"`,
		Args:              exactly("the approval's id"),
		ValidArgsFunction: a.completeIDs(routeApprovals, "approvals", "approval", "op"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			body := struct {
				Reason string `json:"reason,omitempty"`
			}{reason}
			return a.approval(ctx, c, request{route: routeDeny, names: args, body: body, again: true})
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, at most 500 bytes")
	return a.speaks(cmd)
}

// approval sends r and prints the approval that it is answered with.
func (a *app) approval(ctx context.Context, c *client, r request) error {
	var got approvalShown
	raw, err := c.get(ctx, r, &got)
	if err != nil {
		return err
	}
	if a.json || a.jsonl {
		return a.document(raw)
	}
	s := sheet{app: a}
	effect := "none"
	if got.SideEffecting {
		effect = "has side effects"
	}
	s.line("approval", got.Approval)
	s.line("state", got.State)
	s.line("call", got.Call)
	s.line("by", got.By.Role+" "+got.By.ID)
	s.line("op", got.Op)
	s.line("summary", got.Summary)
	s.line("effect", effect)
	s.line("params", string(got.Params))
	s.line("source", got.Source)
	if got.From.Answer != nil {
		s.line("answer", got.From.Answer.Adaptor+" "+got.From.Answer.Opaque)
	}
	s.line("requested", stamp(got.RequestedAt))
	s.line("expires", stamp(got.ExpiresAt))
	s.line("decided", maybeStamp(got.DecidedAt))
	if got.DecidedBy != nil {
		s.line("decided by", got.DecidedBy.Role+" "+got.DecidedBy.ID)
	}
	s.line("reason", got.Reason)
	s.line("definition", got.Bound.Definition)
	for _, name := range slices.Sorted(maps.Keys(got.Bound.RestsOn)) {
		s.line("rests on", name+" "+got.Bound.RestsOn[name])
	}
	s.line("hash", got.Hash)
	s.line("policy", got.Policy)
	for _, change := range got.Changed {
		s.line("changed", strings.TrimSpace(change.What+" was "+change.Was+" is "+change.Is))
	}
	return s.err
}
