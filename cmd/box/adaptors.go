package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"inband/adaptors/webhook"
	"inband/ops"
	"inband/service"
)

// readAdaptors reads the adaptor files of a folder, in the order of their names; a folder
// that does not exist has none. Its error is FileErrors when what is wrong is in them.
func readAdaptors(dir string) ([]webhook.Config, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the adaptors: %w", err)
	}
	var configs []webhook.Config
	var problems ops.FileErrors
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		c, err := readAdaptor(filepath.Join(dir, e.Name()))
		var found ops.FileErrors
		switch {
		case errors.As(err, &found):
			problems = append(problems, found...)
		case err != nil:
			return nil, err
		default:
			configs = append(configs, c)
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return configs, nil
}

func readAdaptor(path string) (webhook.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return webhook.Config{}, err
	}
	return webhook.Read(strings.TrimSuffix(filepath.Base(path), ".json"), path, data, os.DirFS(filepath.Dir(path)))
}

func (a *app) adaptorsCommand() *cobra.Command {
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		states, raw, err := c.adaptors(ctx)
		switch {
		case err != nil:
			return err
		case a.json:
			return a.document(raw)
		}
		t := newTable("ADAPTOR", "KIND", "STATE", "LAST IN", "LAST OUT", "FAILED", "ALERTS")
		for _, s := range states {
			if a.jsonl {
				if err := a.document(s); err != nil {
					return err
				}
				continue
			}
			t.row(s.Name, s.Kind, adaptorCondition(s), s.LastIn, s.LastOut, fmt.Sprint(s.Failed), fmt.Sprint(s.Alerts))
		}
		if a.jsonl {
			return nil
		}
		return a.print(t)
	})
	const long = `List the chats that the gateway is in, and how each is. An adaptor is a file
adaptors/NAME.json in the state folder; docs/adaptors.md describes it. It is read when
the gateway starts; box ops reload has its secrets read again.`
	cmd := &cobra.Command{
		Use:   "adaptors",
		Short: "List the chats that the gateway is in; check a configuration",
		Long:  long,
		Example: `  box adaptors
  box adaptors show chat
  box adaptors check adaptors/chat.json`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	listCmd := &cobra.Command{
		Use: "list", Short: "List the chats that the gateway is in", Long: long, Example: "  box adaptors list --json", Args: exactly(), RunE: list,
	}
	cmd.AddCommand(a.speaks(listCmd), a.adaptorsShowCommand(), a.adaptorsCheckCommand())
	return a.speaks(cmd)
}

// adaptors asks for the adaptors of the gateway.
func (c *client) adaptors(ctx context.Context) ([]service.AdaptorState, json.RawMessage, error) {
	var answer struct {
		Adaptors []service.AdaptorState `json:"adaptors"`
	}
	raw, err := c.get(ctx, request{route: routeAdaptors}, &answer)
	return answer.Adaptors, raw, err
}

// adaptorCondition is how an adaptor is, in a word.
func adaptorCondition(s service.AdaptorState) string {
	switch {
	case !s.Running:
		return "not started"
	case s.RateLimited != "":
		return "rate limited"
	case s.LastError != "":
		return "failing: " + s.LastError
	case s.Behind:
		return "behind"
	}
	return "running"
}

func (a *app) adaptorsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show how an adaptor is",
		Long: `Show how an adaptor is: whether it runs, and if not, why and what to do; when it last
took and posted something; what has failed since the gateway was started.`,
		Example:           "  box adaptors show chat",
		Args:              exactly("the adaptor"),
		ValidArgsFunction: a.completeIDs(routeAdaptors, "adaptors", "name", "kind"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			states, _, err := c.adaptors(ctx)
			if err != nil {
				return err
			}
			for _, s := range states {
				if s.Name == args[0] {
					return a.document(s)
				}
			}
			return ops.Faultf(ops.NotFound, "there is no adaptor %q", args[0])
		}),
	}
	return a.speaks(cmd)
}

func (a *app) adaptorsCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE…]",
		Short: "Check the files of adaptors",
		Long: `Check the files of adaptors as the gateway does before it loads them, by default those
of the state folder. No gateway is needed, nothing is sent, and no secret is read;
whether identities exist is found out when the gateway starts.

What is wrong is printed to standard error as FILE:LINE: what, and what to do (exit
code 2). With --json it is one document on standard output.`,
		Example: `  box adaptors check
  box adaptors check chat.json`,
		RunE: func(_ *cobra.Command, args []string) error {
			good := 0
			var problems ops.FileErrors
			note := func(n int, err error) error {
				var found ops.FileErrors
				if err != nil && !errors.As(err, &found) {
					return err
				}
				good, problems = good+n, append(problems, found...)
				return nil
			}
			for _, path := range args {
				n := 1
				_, err := readAdaptor(path)
				if err != nil {
					n = 0
				}
				if err := note(n, err); err != nil {
					return err
				}
			}
			if len(args) == 0 {
				folder, err := a.folder()
				if err != nil {
					return err
				}
				configs, err := readAdaptors(folder.adaptors())
				if err := note(len(configs), err); err != nil {
					return err
				}
			}
			return a.printCheck("adaptor", "the files of adaptors", good, problems)
		},
	}
	return a.prints(cmd)
}
