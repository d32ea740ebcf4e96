package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// workerListing is a worker or a verifier as GET /v1/workers lists it.
type workerListing struct {
	ID              string     `json:"worker"`
	Role            string     `json:"role"`
	State           string     `json:"state"`
	KeyID           string     `json:"key_id"`
	Implementations []string   `json:"implementations"`
	Capabilities    []string   `json:"capabilities"`
	Version         string     `json:"version"`
	Boot            string     `json:"boot"`
	BootAt          *time.Time `json:"boot_at"`
	SeenAt          *time.Time `json:"seen_at"`
	SkewMS          int64      `json:"skew_ms"`
	Leases          int        `json:"leases"`
	EnrolledAt      time.Time  `json:"enrolled_at"`
	RevokedAt       *time.Time `json:"revoked_at"`
	Holds           []struct {
		Delegation string    `json:"delegation"`
		Subject    string    `json:"subject"`
		State      string    `json:"state"`
		LeaseUntil time.Time `json:"lease_until"`
	} `json:"holds"`
}

func (a *app) workersCommand() *cobra.Command {
	const long = `List workers, which do what is handed over, and verifiers, which judge what came of it.
Each has a key of its own and enrols it once, with the token of an invitation. For
operators.`
	var role, state, after string
	var limit int
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		return a.listing(ctx, c, lister{
			route: routeWorkers, member: "workers", after: after, limit: limit, filters: map[string]string{"role": role, "state": state},
			table: newTable("WORKER", "ROLE", "STATE", "LEASES", "SEEN", "IMPLEMENTATIONS", "CAPABILITIES", "VERSION"),
			row: func(t *table, raw json.RawMessage) error {
				var l workerListing
				if err := decode(raw, &l); err != nil {
					return err
				}
				t.row(l.ID, l.Role, l.State, strconv.Itoa(l.Leases), maybeStamp(l.SeenAt), strings.Join(l.Implementations, " "), strings.Join(l.Capabilities, " "), l.Version)
				return nil
			},
		})
	})
	flags := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().StringVar(&role, "role", "", "only this role: worker or verifier")
		cmd.Flags().StringVar(&state, "in", "", "only those that are live, or revoked")
		a.pages(cmd, &limit, &after)
		return a.speaks(cmd)
	}
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List workers and verifiers; show, invite, revoke or drain one",
		Long:  long,
		Example: `  box workers
  box workers invite builder > builder.invitation
  box workers invite judge --role verifier > judge.invitation
  box workers drain builder
  box workers revoke builder`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	cmd.AddCommand(
		flags(&cobra.Command{Use: "list", Short: "List workers and verifiers", Long: long, Example: "  box workers list --role verifier", Args: exactly(), RunE: list}),
		a.workersShowCommand(), a.workersInviteCommand(), a.workersRevokeCommand(), a.workersDrainCommand(),
	)
	return flags(cmd)
}

func (a *app) workersShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show WORKER",
		Short: "Show a worker or a verifier and what it holds",
		Long: `Show a worker or a verifier: its key, what it may take, when it was seen last, how far
its clock is from the gateway's, and the leases that it has now.`,
		Example:           "  box workers show builder",
		Args:              exactly("the worker"),
		ValidArgsFunction: a.completeIDs(routeWorkers, "workers", "worker", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var w workerListing
			raw, err := c.get(ctx, request{route: routeWorker, names: args}, &w)
			switch {
			case err != nil:
				return err
			case a.json || a.jsonl:
				return a.document(raw)
			}
			s := sheet{app: a}
			s.line(w.Role, w.ID)
			s.line("state", w.State)
			s.line("key", w.KeyID)
			s.line("work", strings.Join(w.Implementations, " "))
			s.line("can", strings.Join(w.Capabilities, " "))
			s.line("version", w.Version)
			s.line("boot", w.Boot)
			s.line("began", maybeStamp(w.BootAt))
			s.line("seen", maybeStamp(w.SeenAt))
			s.line("clock", (time.Duration(w.SkewMS) * time.Millisecond).String())
			s.line("enrolled", stamp(w.EnrolledAt))
			s.line("revoked", maybeStamp(w.RevokedAt))
			if s.err != nil || len(w.Holds) == 0 {
				return s.err
			}
			t := newTable("HOLDS", "OF", "STATE", "LEASE UNTIL")
			for _, l := range w.Holds {
				t.row(l.Subject, l.Delegation, l.State, stamp(l.LeaseUntil))
			}
			return a.print(t)
		}),
	}
	return a.speaks(cmd)
}

func (a *app) workersInviteCommand() *cobra.Command {
	body := struct {
		Name            string   `json:"name"`
		Role            string   `json:"role,omitempty"`
		Implementations []string `json:"implementations,omitempty"`
		Capabilities    []string `json:"capabilities,omitempty"`
		TTL             string   `json:"ttl,omitempty"`
	}{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "invite NAME",
		Short: "Invite a worker or a verifier, and print the token that enrols it",
		Long: `Invite a worker or a verifier, and print the token that enrols one key, once, as NAME.
It is the only time that the token can be had. NAME is a stable id that no identity has
had before. The token goes to box worker or box verifier, on whichever machine, which
makes a key of its own and keeps it.

An implementation is a kind of work: swarm.spawn names one, and who serves it may take
it. A capability is something that a piece of work may ask for beside that.`,
		Example: `  box workers invite builder > builder.invitation
  box workers invite gpu-1 --implementation train --capability gpu --ttl 15m > gpu-1.invitation
  box workers invite judge --role verifier > judge.invitation`,
		Args: exactly("the worker's name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			if ttl < 0 {
				return usagef("--ttl %s: want more than nothing", ttl)
			}
			if body.Name = args[0]; ttl > 0 {
				body.TTL = ttl.String()
			}
			var got struct {
				Token     string    `json:"token"`
				ExpiresAt time.Time `json:"expires_at"`
			}
			raw, err := c.get(ctx, request{route: routeInvite, body: body}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				err = a.document(raw)
			} else {
				err = a.printf("%s\n", clean(got.Token))
			}
			if err == nil {
				a.notice("this is the token of the invitation, which is not shown again; it enrols %s until %s", args[0], stamp(got.ExpiresAt))
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&body.Role, "role", "worker", "worker or verifier")
	f.StringArrayVar(&body.Implementations, "implementation", nil, "a kind of work that it may take (may be repeated; default: default)")
	f.StringArrayVar(&body.Capabilities, "capability", nil, "what it has that work may ask for (may be repeated)")
	f.DurationVar(&ttl, "ttl", 0, "how long the token may be used (default 1h)")
	return a.speaks(cmd)
}

func (a *app) workersRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke WORKER",
		Short: "End a worker or a verifier and its key",
		Long: `End a worker or a verifier, its key and its tokens, at once and for good. What it says
from then on decides nothing; what it held is looked after as if it had vanished.`,
		Example:           "  box workers revoke builder",
		Args:              exactly("the worker"),
		ValidArgsFunction: a.completeIDs(routeWorkers, "workers", "worker", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.worker(ctx, c, request{route: routeRevokeWorker, names: args, again: true})
		}),
	}
	return a.speaks(cmd)
}

func (a *app) workersDrainCommand() *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:   "drain WORKER",
		Short: "Offer a worker or a verifier no more work",
		Long: `Offer a worker or a verifier no more work. What it has goes on to its end. --off ends
that again.`,
		Example: `  box workers drain builder
  box workers drain builder --off`,
		Args:              exactly("the worker"),
		ValidArgsFunction: a.completeIDs(routeWorkers, "workers", "worker", "role"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			body := struct {
				Off bool `json:"off,omitempty"`
			}{off}
			return a.worker(ctx, c, request{route: routeDrainWorker, names: args, body: body, again: true})
		}),
	}
	cmd.Flags().BoolVar(&off, "off", false, "offer it work again")
	return a.speaks(cmd)
}

// worker sends r and prints in a line how the worker is then.
func (a *app) worker(ctx context.Context, c *client, r request) error {
	var w workerListing
	raw, err := c.get(ctx, r, &w)
	if err != nil {
		return err
	}
	if a.json || a.jsonl {
		return a.document(raw)
	}
	return a.printf("%s\n", clean(fmt.Sprintf("%s %s is %s, with %s", w.Role, w.ID, w.State, count(int64(w.Leases), "lease"))))
}
