package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"inband/service"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how a gateway is",
		Long: `Show how a gateway is: whether it is ready and what it lacks if not, how many calls are
open, what operators have stopped, which layers of the sandbox it has, which ops are
disabled and why, and the reloads that failed since the start.

The exit code says whether the gateway answers, not whether it is ready; GET /readyz
and "ready" of --json say that.`,
		Example: `  box status
  box status --json`,
		Args: exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			var s gatewayStatus
			raw, err := c.get(ctx, request{route: routeStatus}, &s)
			switch {
			case err != nil:
				return err
			case a.json || a.jsonl:
				return a.document(raw)
			}
			return a.printStatus(s)
		}),
	}
	return a.speaks(cmd)
}

// gatewayStatus is what GET /v1/status answers.
type gatewayStatus struct {
	Version   string           `json:"version"`
	StartedAt string           `json:"started_at"`
	Ops       int64            `json:"ops"`
	OpenCalls map[string]int64 `json:"open_calls"`
	Health    struct {
		Ready   bool     `json:"ready"`
		Missing []string `json:"missing"`
	} `json:"health"`
	Sandbox  []service.Layer      `json:"sandbox"`
	Disabled []service.DisabledOp `json:"disabled"`
	Reloads  service.Reloads      `json:"reloads"`
	Holds    []service.Hold       `json:"holds"`
}

func (a *app) printStatus(s gatewayStatus) error {
	lines := [][2]string{
		{"gateway", fmt.Sprintf("%s, since %s", s.Version, s.StartedAt)}, {"ready", "yes"},
		{"ops", fmt.Sprint(s.Ops)}, {"open", openCalls(s.OpenCalls)}, {"sandbox", layersInWords(s.Sandbox)},
	}
	if !s.Health.Ready {
		lines[1][1] = "no: " + strings.Join(s.Health.Missing, "; ")
	}
	if n := len(s.Disabled); n > 0 {
		lines[2][1] += fmt.Sprintf(", of which %d cannot run", n)
	}
	for _, h := range s.Holds {
		what := "thread " + h.Scope
		if h.Scope == service.Everything {
			what = "all agents"
		}
		lines = append(lines, [2]string{"stopped", fmt.Sprintf("%s, by %s at %s", what, h.By.ID, h.SetAt)})
	}
	if s.Reloads.Failed > 0 {
		lines = append(lines, [2]string{"reloads", fmt.Sprintf("%d failed, the last at %s", s.Reloads.Failed, s.Reloads.FailedAt)})
	}
	for _, l := range lines {
		if err := a.printf("%-10s%s\n", l[0], clean(l[1])); err != nil {
			return err
		}
	}
	if len(s.Disabled) == 0 {
		return nil
	}
	t := newTable("CANNOT RUN", "MISSES", "WHY")
	for _, d := range s.Disabled {
		t.row(string(d.Op), strings.Join(d.Layers, ", "), d.Why)
	}
	if err := a.printf("\n"); err != nil {
		return err
	}
	return a.print(t)
}

func openCalls(states map[string]int64) string {
	var words []string
	for state, n := range states {
		words = append(words, fmt.Sprintf("%d %s", n, state))
	}
	if words == nil {
		return "no calls"
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

func layersInWords(layers []service.Layer) string {
	var has, lacks []string
	for _, l := range layers {
		switch {
		case !l.Applied:
			lacks = append(lacks, l.Name)
		case l.Detail != "":
			has = append(has, l.Name+" ("+l.Detail+")")
		default:
			has = append(has, l.Name)
		}
	}
	words := strings.Join(has, ", ")
	if lacks != nil {
		words += "; without " + strings.Join(lacks, ", ")
	}
	return strings.TrimPrefix(words, "; ")
}
