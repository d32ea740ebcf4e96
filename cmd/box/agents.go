package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// identityListing is an identity as GET /v1/agents lists it.
type identityListing struct {
	ID        string     `json:"id"`
	Role      string     `json:"role"`
	CreatedAt time.Time  `json:"created_at"`
	RevokedAt *time.Time `json:"revoked_at"`
	Tokens    []struct {
		Hint      string     `json:"hint"`
		RevokedAt *time.Time `json:"revoked_at"`
	} `json:"tokens"`
	Agents []string `json:"agents"`
}

func (a *app) agentsCommand() *cobra.Command {
	var role string
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		q := url.Values{}
		if role != "" {
			q.Set("role", role)
		}
		var answer struct {
			Agents []json.RawMessage `json:"agents"`
		}
		raw, err := c.get(ctx, request{route: routeAgents, query: q}, &answer)
		switch {
		case err != nil:
			return err
		case a.json:
			return a.document(raw)
		}
		t := newTable("IDENTITY", "ROLE", "TOKEN", "SINCE", "REVOKED", "AGENTS")
		for _, one := range answer.Agents {
			if a.jsonl {
				if err := a.document(one); err != nil {
					return err
				}
				continue
			}
			var l identityListing
			if err := decode(one, &l); err != nil {
				return err
			}
			var hints []string
			for _, token := range l.Tokens {
				hints = append(hints, token.Hint+"…")
			}
			t.row(l.ID, l.Role, strings.Join(hints, " "), stamp(l.CreatedAt), maybeStamp(l.RevokedAt), strings.Join(l.Agents, " "))
		}
		if a.jsonl {
			return nil
		}
		return a.print(t)
	})
	const long = `List identities: agents, whose replies are read for orders; operators, who run the
gateway; and bridges, which hand in replies of the agents they are enrolled for.
Tokens are shown by their first characters only; the gateway itself keeps no more
than a hash.`
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "List identities; add, enrol, rotate or revoke one",
		Long:  long,
		Example: `  box agents
  box agents add ada
  box agents add relay --role bridge --agent ada --agent bob
  box agents enrol relay --agent eve
  box agents rotate ada > ada.token
  box agents revoke ada`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	cmd.Flags().StringVar(&role, "role", "", "only this role: agent, operator, bridge, worker or verifier")
	listCmd := &cobra.Command{
		Use: "list", Short: "List identities", Long: long, Example: "  box agents list --role bridge", Args: exactly(), RunE: list,
	}
	listCmd.Flags().StringVar(&role, "role", "", "only this role: agent, operator, bridge, worker or verifier")
	cmd.AddCommand(a.speaks(listCmd), a.agentsShowCommand(), a.agentsAddCommand(), a.agentsEnrolCommand(), a.agentsRotateCommand(), a.agentsRevokeCommand())
	return a.speaks(cmd)
}

func (a *app) agentsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show IDENTITY",
		Short:             "Show an identity",
		Long:              "Show an identity: its role, since when, and its tokens by their first characters.",
		Example:           "  box agents show ada",
		Args:              exactly("the identity"),
		ValidArgsFunction: a.completeIDs(routeAgents, "agents", "id", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			raw, err := c.get(ctx, request{route: routeAgent, names: args}, nil)
			if err != nil {
				return err
			}
			return a.document(raw)
		}),
	}
	return a.speaks(cmd)
}

func (a *app) agentsAddCommand() *cobra.Command {
	var role string
	var agents []string
	cmd := &cobra.Command{
		Use:   "add IDENTITY",
		Short: "Make an identity and print its token",
		Long: `Make an identity and print its token, the only time that it can be had. The identity
is a stable id: small letters, digits, and . _ - inside; it is never used again, not
even after it is revoked.

An agent writes replies. An operator may do everything. A bridge hands in the replies
of the agents named by --agent, which must exist. Workers and verifiers of the execution
plane are made by box workers invite, and prove themselves by a key.`,
		Example: `  box agents add ada > ada.token
  box agents add relay --role bridge --agent ada --agent bob`,
		Args: exactly("the identity"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			body := struct {
				ID     string   `json:"id"`
				Role   string   `json:"role"`
				Agents []string `json:"agents,omitempty"`
			}{args[0], role, agents}
			var got struct {
				ID    string `json:"id"`
				Role  string `json:"role"`
				Token string `json:"token"`
			}
			raw, err := c.get(ctx, request{route: routeAddAgent, body: body}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				err = a.document(raw)
			} else {
				err = a.printf("%s\n", clean(got.Token))
			}
			if err == nil {
				a.notice("%s %s added; this is its token, which is not shown again", got.Role, got.ID)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&role, "role", "agent", "agent, operator, bridge, worker or verifier")
	cmd.Flags().StringArrayVar(&agents, "agent", nil, "an agent that the bridge hands in replies for (may be repeated)")
	return a.speaks(cmd)
}

func (a *app) agentsEnrolCommand() *cobra.Command {
	var agents []string
	cmd := &cobra.Command{
		Use:               "enrol BRIDGE",
		Short:             "Have a bridge hand in the replies of further agents",
		Long:              `Have a bridge hand in the replies of further agents, beside those that it has.`,
		Example:           "  box agents enrol relay --agent eve",
		Args:              exactly("the bridge"),
		ValidArgsFunction: a.completeIDs(routeAgents, "agents", "id", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			if len(agents) == 0 {
				return usagef("which agents: give --agent")
			}
			var got struct {
				Agents []string `json:"agents"`
			}
			raw, err := c.get(ctx, request{route: routeEnrol, names: args, body: map[string]any{"agents": agents}}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("%s\n", clean(fmt.Sprintf("%s hands in the replies of %s", args[0], strings.Join(got.Agents, ", "))))
		}),
	}
	cmd.Flags().StringArrayVar(&agents, "agent", nil, "an agent that the bridge hands in replies for (may be repeated)")
	return a.speaks(cmd)
}

func (a *app) agentsRotateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate IDENTITY",
		Short: "Give an identity a new token and print it",
		Long: `Give an identity a new token, print it, the only time that it can be had, and end the
tokens that it had, at once. For the operator whose token is in operator.token of the
state folder, write the new one there.`,
		Example: `  box agents rotate ada > ada.token
  token=$(box agents rotate operator) && (umask 077; echo "$token" > ~/.local/state/inband/operator.token)`,
		Args:              exactly("the identity"),
		ValidArgsFunction: a.completeIDs(routeAgents, "agents", "id", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var got struct {
				ID    string `json:"id"`
				Token string `json:"token"`
			}
			raw, err := c.get(ctx, request{route: routeRotate, names: args}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				err = a.document(raw)
			} else {
				err = a.printf("%s\n", clean(got.Token))
			}
			if err == nil {
				a.notice("this is the token of %s now; it is not shown again, and those before it have ended", got.ID)
			}
			return err
		}),
	}
	return a.speaks(cmd)
}

func (a *app) agentsRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke IDENTITY",
		Short: "End an identity and its tokens",
		Long: `End an identity and its tokens, at once and for good. What it did stays recorded. The
last operator cannot be revoked (exit code 6).`,
		Example:           "  box agents revoke ada",
		Args:              exactly("the identity"),
		ValidArgsFunction: a.completeIDs(routeAgents, "agents", "id", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var got struct {
				ID        string    `json:"id"`
				RevokedAt time.Time `json:"revoked_at"`
			}
			raw, err := c.get(ctx, request{route: routeRevoke, names: args}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("%s\n", clean(fmt.Sprintf("%s revoked at %s", got.ID, stamp(got.RevokedAt))))
		}),
	}
	return a.speaks(cmd)
}
