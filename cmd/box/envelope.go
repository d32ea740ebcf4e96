package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) envelopeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "envelope",
		Short: "See what an agent is woken with",
		Long: `See what an agent is woken with. A wake is an errand for an agent; its envelope is the
message that tells it so: the errand, the key that its orders carry, what it may use and
how it ends.`,
		Example: `  box envelope preview ada
  box envelope preview ada --errand 'Restart the web server.' --op web.restart`,
		Args: a.subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.envelopePreviewCommand())
	return cmd
}

func (a *app) envelopePreviewCommand() *cobra.Command {
	var body struct {
		Agent  string   `json:"agent"`
		Cause  string   `json:"cause,omitempty"`
		Name   string   `json:"name,omitempty"`
		Errand string   `json:"errand"`
		Shown  string   `json:"shown,omitempty"`
		Ops    []string `json:"ops,omitempty"`
	}
	cmd := &cobra.Command{
		Use:   "preview AGENT",
		Short: "Print the envelope that an agent would get now",
		Long: `Print the envelope that an agent would get now, under the policy and with the ops in
force. Nobody is woken and nothing is kept. What stands where the key would be is none
and never will be one. How many bytes it has goes to standard error; beside the errand
and the words of strangers it has at most 1200.`,
		Example: `  box envelope preview ada
  box envelope preview ada --cause timer --name nightly --op backup.run --errand 'Run the backup.'`,
		Args:              exactly("the agent's id"),
		ValidArgsFunction: a.completeIDs(routeAgents, "agents", "id", "role"),
	}
	f := cmd.Flags()
	f.StringVar(&body.Cause, "cause", "message", "what would wake it: timer, message or delegation")
	f.StringVar(&body.Name, "name", "", "who or what that is (default: you)")
	f.StringVar(&body.Errand, "errand", "(the errand)", "the errand")
	f.StringVar(&body.Shown, "shown", "", "words of somebody else that belong to it")
	f.StringArrayVar(&body.Ops, "op", nil, "an op that it may run unasked (may be repeated)")
	cmd.RunE = a.asking(func(ctx context.Context, c *client, args []string) error {
		body.Agent = args[0]
		var got struct {
			Text  string `json:"text"`
			Bytes int64  `json:"bytes"`
			Frame int64  `json:"frame"`
		}
		raw, err := c.get(ctx, request{route: routePreview, body: body, again: true}, &got)
		switch {
		case err != nil:
			return err
		case a.json || a.jsonl:
			return a.document(raw)
		}
		if err := a.printText(got.Text); err != nil {
			return err
		}
		a.notice("%s, %d of them beside the errand and the words of others", strings.TrimSpace(count(got.Bytes, "byte")), got.Frame)
		return nil
	})
	return a.speaks(cmd)
}
