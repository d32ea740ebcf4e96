package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completionPatience bounds the wait for a gateway while somebody holds the tab key.
const completionPatience = time.Second

func (a *app) completionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Long: `Print a completion script for a shell. Names of ops, parameters, calls, threads and
identities are completed where a gateway answers.`,
		Example: `  source <(box completion bash)
  box completion zsh > "${fpath[1]}/_box"
  box completion fish > ~/.config/fish/completions/box.fish
  box completion powershell | Out-String | Invoke-Expression`,
		Args:      exactly("the shell: bash, zsh, fish or powershell"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out)
			}
			return usagef("the shell %q: want bash, zsh, fish or powershell", args[0])
		},
	}
	return cmd
}

// ask runs f with a client for a completion. Nothing is said when no gateway answers:
// the person is typing.
func (a *app) ask(cmd *cobra.Command, f func(context.Context, *client) error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	c, err := a.connect()
	if err != nil {
		return
	}
	defer c.close()
	_ = f(ctx, c)
}

// described is a candidate with what it is, as cobra hands it to the shells.
func described(candidate, what string) string {
	return clean(candidate) + "\t" + clean(what)
}

func (a *app) completeOp(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	a.ask(cmd, func(ctx context.Context, c *client) error {
		var list struct {
			Ops []opListing `json:"ops"`
		}
		_, err := c.get(ctx, request{route: routeOps}, &list)
		for _, op := range list.Ops {
			for _, name := range append([]string{op.Name}, op.Aliases...) {
				if strings.HasPrefix(name, prefix) {
					found = append(found, described(name, op.Summary))
				}
			}
		}
		return err
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeExec completes an op, then the names and fixed values of its parameters.
func (a *app) completeExec(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeOp(cmd, args, prefix)
	}
	given := make(map[string]bool)
	for _, arg := range args[1:] {
		name, _, _ := strings.Cut(arg, "=")
		given[strings.TrimSuffix(name, ":")] = true
	}
	var found []string
	a.ask(cmd, func(ctx context.Context, c *client) error {
		var op opListing
		_, err := c.get(ctx, request{route: routeOp, names: args[:1]}, &op)
		for name, p := range op.Parameters.Properties {
			if given[name] {
				continue
			}
			candidates := []string{name + "="}
			for _, v := range p.Enum {
				if s, ok := v.(string); ok {
					candidates = append(candidates, name+"="+s)
				}
			}
			if p.Type == "boolean" {
				candidates = append(candidates, name+"=true", name+"=false")
			}
			if len(candidates) > 1 && strings.HasPrefix(prefix, name+"=") {
				candidates = candidates[1:]
			} else {
				candidates = candidates[:1]
			}
			for _, candidate := range candidates {
				if strings.HasPrefix(candidate, prefix) {
					found = append(found, described(candidate, p.Description))
				}
			}
		}
		return err
	})
	return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeIDs completes the ids of a list, described by another member of each row.
func (a *app) completeIDs(r route, member, id, what string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		a.ask(cmd, func(ctx context.Context, c *client) error {
			var answer map[string]json.RawMessage
			if _, err := c.get(ctx, request{route: r}, &answer); err != nil {
				return err
			}
			var rows []map[string]any
			if err := decode(answer[member], &rows); err != nil {
				return err
			}
			for _, row := range rows {
				candidate, _ := row[id].(string)
				about, _ := row[what].(string)
				if candidate != "" && strings.HasPrefix(candidate, prefix) {
					found = append(found, described(candidate, about))
				}
			}
			return nil
		})
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
