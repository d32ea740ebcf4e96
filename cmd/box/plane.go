package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// planeShown is the answer of GET /v1/plane.
type planeShown struct {
	State         string           `json:"state"`
	Term          int64            `json:"term"`
	HoldUntil     *time.Time       `json:"hold_until"`
	ChangedAt     *time.Time       `json:"changed_at"`
	Delegations   map[string]int64 `json:"delegations"`
	Runs          map[string]int64 `json:"runs"`
	Verifications map[string]int64 `json:"verifications"`
	Workers       map[string]int64 `json:"workers"`
	Unable        int64            `json:"unable"`
	OldestOffer   int64            `json:"oldest_offer_seconds"`
}

func (a *app) planeCommand() *cobra.Command {
	const long = `Show the execution plane: whether work is handed to workers, how much of it is open and
in which states, and what waits for a worker or a verifier that is not there. Dispatch
is off until box plane on.`
	status := a.asking(func(ctx context.Context, c *client, _ []string) error {
		return a.plane(ctx, c, request{route: routePlane})
	})
	cmd := &cobra.Command{
		Use:   "plane",
		Short: "Show the execution plane; turn dispatch on or off, or drain it",
		Long:  long,
		Example: `  box plane
  box plane on
  box plane drain`,
		Args: a.subcommandOnly,
		RunE: status,
	}
	cmd.AddCommand(
		a.speaks(&cobra.Command{Use: "status", Short: "Show the execution plane", Long: long, Example: "  box plane status --json", Args: exactly(), RunE: status}),
		a.planeSwitchCommand("on", "Hand work to workers",
			`Hand work to workers: what waits is offered, and swarm.spawn takes more.`),
		a.planeSwitchCommand("drain", "Hand over no more work, and let what runs go on",
			`Hand over no more work, and let what runs go on to its end. swarm.spawn fails with
PLANE_OFF; what was returned is still verified. box plane on ends it.`),
		a.planeSwitchCommand("off", "Hand over no more work, and extend no lease",
			`Hand over no more work, and extend no lease: workers stop what they have, and nothing
new begins. swarm.spawn fails with PLANE_OFF. History and files remain. box plane drain
lets what runs go on instead.`),
		a.planeFenceCommand(),
	)
	return a.speaks(cmd)
}

func (a *app) planeSwitchCommand(state, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     state,
		Short:   short,
		Long:    long + " For operators.",
		Example: "  box plane " + state,
		Args:    exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			return a.plane(ctx, c, request{route: routePlaneState, body: map[string]string{"state": state}, again: true})
		}),
	}
	return a.speaks(cmd)
}

func (a *app) planeFenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence-term",
		Short: "Begin a new term of fences",
		Long: `Begin a new term of fences, by which no lease of before can pass for one of now. box
restore does it by itself.`,
		Example: "  box plane fence-term bump",
		Args:    a.subcommandOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	bump := &cobra.Command{
		Use:   "bump",
		Short: "Begin a new term of fences and doubt every lease",
		Long: `Begin a new term of fences and doubt every lease: each run that a worker has becomes
UNKNOWN, and what its worker says from then on is evidence. Do it when the store may
have lost what it had acknowledged: after a restore from a copy of the disk, or a
failover. For operators.`,
		Example: "  box plane fence-term bump",
		Args:    exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			return a.plane(ctx, c, request{route: routeFenceTerm})
		}),
	}
	cmd.AddCommand(a.speaks(bump))
	return cmd
}

// plane sends r and prints how the plane is then.
func (a *app) plane(ctx context.Context, c *client, r request) error {
	var p planeShown
	raw, err := c.get(ctx, r, &p)
	if err != nil {
		return err
	}
	if a.json || a.jsonl {
		return a.document(raw)
	}
	s := sheet{app: a}
	s.line("dispatch", p.State)
	s.line("since", maybeStamp(p.ChangedAt))
	s.line("fence term", strconv.FormatInt(p.Term, 10))
	s.line("holds until", maybeStamp(p.HoldUntil))
	s.line("delegations", tally(p.Delegations))
	s.line("runs", tally(p.Runs))
	s.line("verifying", tally(p.Verifications))
	s.line("workers", tally(p.Workers))
	if p.Unable > 0 {
		s.line("unable", fmt.Sprintf("%s that no worker there is could take", count(p.Unable, "run")))
	}
	if p.OldestOffer > 0 {
		s.line("oldest", "has waited for a worker for "+(time.Duration(p.OldestOffer)*time.Second).String())
	}
	return s.err
}

// tally writes counts by state, "none" if there are none.
func tally(counts map[string]int64) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		if counts[what] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
