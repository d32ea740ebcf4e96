package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"inband/ops"
	"inband/service/access"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show, check or test the policy: who may do what",
		Long: `Show the policy in force, check a policy file before it is put in force, or try replies
of agents against it. The policy is policy.cedar in the state folder, in the language
Cedar; box ops reload or SIGHUP has the gateway read it again. What no policy permits is
refused.`,
		Example: `  box policy show
  box policy check && box ops reload`,
		Args: a.subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.policyShowCommand(), a.policyCheckCommand(), a.policyTestCommand())
	return cmd
}

func (a *app) policyShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the policy in force",
		Long: `Show the policy that the gateway decides by, as it was read. The file in the state
folder may have changed since; the digest tells (sha256 of the file).`,
		Example: `  box policy show
  box policy show | diff - ~/.local/state/inband/policy.cedar`,
		Args: exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			var got struct {
				Policy string `json:"policy"`
			}
			raw, err := c.get(ctx, request{route: routePolicy}, &got)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("%s", cleanText(got.Policy))
		}),
	}
	return a.speaks(cmd)
}

func (a *app) policyCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a policy file",
		Long: `Check a policy file as the gateway does before it puts it in force: its syntax, and
that every action, type and attribute in it exists and is used as what it is. Without an
argument it checks policy.cedar of the state folder. No gateway is needed.

What is wrong is printed to standard error as FILE:LINE: what, and what to do (exit
code 2). With --json it is one document on standard output.`,
		Example: `  box policy check
  box policy check policy.cedar.new`,
		Args: atMost(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := ""
			if len(args) == 1 {
				path = args[0]
			} else {
				folder, err := a.folder()
				if err != nil {
					return err
				}
				path = folder.policy()
			}
			policy, err := readPolicy(path)
			var problems ops.FileErrors
			if err != nil && !errors.As(err, &problems) {
				return err
			}
			rules := 0
			if policy != nil {
				rules = policy.Rules()
			}
			return a.printCheck("rule", "the policy", rules, problems)
		},
	}
	return a.prints(cmd)
}

// policyError is a policy file that a gateway cannot use.
type policyError struct{ err error }

func (e *policyError) Error() string { return e.err.Error() }
func (e *policyError) Unwrap() error { return e.err }

// loadPolicy reads the policy of a gateway.
func loadPolicy(path string) (*access.Policy, error) {
	policy, err := readPolicy(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = ops.FileErrors{{File: path, Line: 1, Message: "there is no policy; write one, or have box init write the one it comes with"}}
	}
	if err != nil {
		return nil, &policyError{err}
	}
	return policy, nil
}

// warnOfOps logs the ops that policy names and registry does not have as such: a rule
// about one never applies.
func warnOfOps(policy *access.Policy, registry *ops.Registry, log *slog.Logger) {
	for _, name := range policy.Ops() {
		switch e, ok := registry.Lookup(name); {
		case !ok:
			log.Warn("the policy names an op that is not there", "op", name)
		case e.Name != name:
			log.Warn("the policy names an op by an alias, which no decision is asked about", "alias", name, "op", e.Name)
		}
	}
}

// readPolicy reads a policy file. Its error is FileErrors when what is wrong is in it.
func readPolicy(path string) (*access.Policy, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, access.MaxPolicy+1)) // one more is too many, and is refused as such
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return access.ParsePolicy(path, text)
}

// ensurePolicy writes the default policy when there is none.
func ensurePolicy(path string) (bool, error) {
	if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, writePrivate(path, access.DefaultPolicyText())
}
