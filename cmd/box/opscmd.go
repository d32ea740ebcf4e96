package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) opsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ops",
		Short: "List the ops; show, check or reload them",
		Long: `List the ops that the gateway has, with what each is for, whether it has side
effects, and whether you may run it. What is not in this list cannot run.`,
		Example: `  box ops
  box ops show disk.usage
  box ops check ops.d/
  box ops reload`,
		Args: a.subcommandOnly,
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			var answer struct {
				Ops []json.RawMessage `json:"ops"`
			}
			raw, err := c.get(ctx, request{route: routeOps}, &answer)
			switch {
			case err != nil:
				return err
			case a.json:
				return a.document(raw)
			case a.jsonl:
				for _, op := range answer.Ops {
					if err := a.document(op); err != nil {
						return err
					}
				}
				return nil
			}
			return a.printOps(raw)
		}),
	}
	cmd.AddCommand(a.opsShowCommand(), a.opsCheckCommand(), a.opsReloadCommand())
	return a.speaks(cmd)
}

// printOps prints the answer of GET /v1/ops or tools.list as a table.
func (a *app) printOps(raw json.RawMessage) error {
	var list struct {
		Ops []opListing `json:"ops"`
	}
	if err := decode(raw, &list); err != nil {
		return err
	}
	t := newTable("OP", "EFFECT", "YOU", "BOUNDS", "PROVIDER", "WHAT IT DOES")
	for _, op := range list.Ops {
		t.row(op.Name, effect(op.SideEffecting), permitted(op.Permitted), op.bounds(), op.Provider, op.Summary)
	}
	return a.print(t)
}

func effect(sideEffecting bool) string {
	if sideEffecting {
		return "writes"
	}
	return "reads"
}

func permitted(ok bool) string {
	if ok {
		return "may"
	}
	return "may not"
}

func (a *app) opsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show OP",
		Short: "Show an op and its parameters",
		Long: `Show an op: what it is for, its aliases, whether it has side effects and whether you
may run it, and its parameters with what each accepts. --json shows the parameters
as their JSON Schema.`,
		Example: `  box ops show disk.usage
  box ops show dm --json`,
		Args:              exactly("the op"),
		ValidArgsFunction: a.completeOp,
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var op struct {
				opListing
				Process *opProcess `json:"process"`
			}
			raw, err := c.get(ctx, request{route: routeOp, names: args}, &op)
			if err != nil {
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printOp(op.opListing, op.Process)
		}),
	}
	return a.speaks(cmd)
}

// opProcess is what the process of a command op may do.
type opProcess struct {
	Program    string   `json:"program"`
	Read       []string `json:"read"`
	Write      []string `json:"write"`
	Exec       []string `json:"exec"`
	Network    string   `json:"network"`
	RunAs      string   `json:"run_as"`
	Unconfined bool     `json:"unconfined"`
}

// words says in words what p may do; nothing is left to be guessed from its absence.
func (p *opProcess) words() [][2]string {
	if p == nil {
		return nil
	}
	or := func(list []string, none string) string {
		if len(list) == 0 {
			return none
		}
		return strings.Join(list, ", ")
	}
	network := map[string]string{"none": "none, no socket at all", "netlink": "none, but it may ask the kernel about the network", "unix": "the services of this machine, through UNIX sockets", "any": "any, but no UNIX sockets"}[p.Network]
	words := [][2]string{{"program", p.Program}}
	if p.Unconfined {
		words = append(words, [2]string{"sandbox", "none: it has all the rights of its user"})
	}
	user := p.RunAs
	if user == "" {
		user = "nobody, or the gateway's own user where that is not root"
	}
	return append(words, [2]string{"reads", or(p.Read, "nothing but the system's libraries and its private folder")},
		[2]string{"writes", or(p.Write, "nothing but its private folder")}, [2]string{"executes", or(p.Exec, "no other program")},
		[2]string{"network", network}, [2]string{"runs as", user})
}

func (a *app) printOp(op opListing, process *opProcess) error {
	head := [][2]string{
		{"op", op.Name}, {"aliases", strings.Join(op.Aliases, ", ")}, {"provider", op.Provider}, {"does", op.Summary},
		{"effect", effect(op.SideEffecting)}, {"you", permitted(op.Permitted) + " run it"}, {"bounds", op.bounds()}, {"digest", op.Digest},
	}
	for _, l := range append(head, process.words()...) {
		if l[1] == "" {
			continue
		}
		if err := a.printf("%-10s%s\n", l[0], clean(l[1])); err != nil {
			return err
		}
	}
	if len(op.Parameters.Properties) == 0 {
		return a.printf("\nIt takes no parameters.\n")
	}
	if err := a.printf("\n"); err != nil {
		return err
	}
	required := make(map[string]bool)
	for _, name := range op.Parameters.Required {
		required[name] = true
	}
	names := make([]string, 0, len(op.Parameters.Properties))
	for name := range op.Parameters.Properties {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool {
		if required[names[i]] != required[names[j]] {
			return required[names[i]]
		}
		return names[i] < names[j]
	})
	t := newTable("PARAMETER", "NEEDED", "ACCEPTS", "WHAT IT IS")
	for _, name := range names {
		p := op.Parameters.Properties[name]
		need := "no"
		if required[name] {
			need = "yes"
		}
		t.row(name, need, p.accepts(), p.Description)
	}
	return a.print(t)
}

// bounds says in words how often and how many times at once an op runs.
func (op opListing) bounds() string {
	var bounds []string
	if op.Concurrency > 0 {
		bounds = append(bounds, fmt.Sprintf("%d at one time", op.Concurrency))
	}
	if op.Rate != nil {
		bounds = append(bounds, fmt.Sprintf("%d/%s", op.Rate.Count, inUnits(op.Rate.PerSeconds)))
	}
	return strings.Join(bounds, ", ")
}

// accepts says in words what a property accepts.
func (p property) accepts() string {
	switch {
	case len(p.Enum) > 0:
		words := make([]string, len(p.Enum))
		for i, v := range p.Enum {
			words[i] = fmt.Sprint(v)
		}
		return strings.Join(words, "|")
	case p.Type == "integer" && p.Minimum != nil && p.Maximum != nil:
		return fmt.Sprintf("integer %d…%d", *p.Minimum, *p.Maximum)
	case p.Type == "boolean":
		return "true|false"
	case p.Pattern != "":
		return strings.TrimSuffix(strings.TrimPrefix(p.Pattern, "^(?:"), ")$")
	case p.Type == "string" && p.MaxLength != nil:
		return fmt.Sprintf("text up to %d bytes", *p.MaxLength)
	}
	return p.Type
}

func (a *app) opsReloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the gateway read its op files and its policy again",
		Long: `Make the gateway read its op files (ops.d in the state folder) and its policy
(policy.cedar) again. Either all of them load and replace what is in force, or nothing
changes and the problems are listed (exit code 6). Calls that were admitted go on as
they were. SIGHUP does the same.`,
		Example: "  box ops check && box policy check && box ops reload",
		Args:    exactly(),
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			var got struct {
				Ops int `json:"ops"`
			}
			raw, err := c.get(ctx, request{route: routeReload}, &got)
			if err != nil {
				a.problems(err)
				return err
			}
			if a.json || a.jsonl {
				return a.document(raw)
			}
			return a.printf("%d ops in force\n", got.Ops)
		}),
	}
	return a.speaks(cmd)
}
