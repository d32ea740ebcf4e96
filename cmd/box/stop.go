package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"inband/service"
)

// holding is the answer of POST /v1/stop and /v1/start.
type holding struct {
	Scope   string `json:"scope"`
	Stopped bool   `json:"stopped"`
	Calls   int64  `json:"calls"`
	Running int64  `json:"running"`
	Wakes   int64  `json:"wakes"`
}

func (a *app) stopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stop [THREAD|--all]",
		Short: "Stop what agents have ordered",
		Long: `Stop what agents have ordered, in a thread or everywhere: no call of an agent begins
there and no agent is woken until box start. It is in force when box returns, and
outlives a restart. What had begun goes on to its end; box calls cancel ends it.

In the thread itself an operator's message that is only STOP does the same.`,
		Example: `  box stop t-01k9…
  box stop --all`,
	}
	return a.holds(cmd, routeStop)
}

func (a *app) startCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start [THREAD|--all]",
		Short: "Start again what was stopped",
		Long: `Start again what box stop has stopped: the calls that wait go on, and the wakes that
were kept back are posted. A thread that was stopped by itself is started by itself;
--all ends only what stop --all began. box status lists what is stopped.

In the thread itself an operator's message that is only START does the same.`,
		Example: `  box start t-01k9…
  box start --all`,
	}
	return a.holds(cmd, routeStart)
}

// holds makes cmd the command that has r done to a thread or to all agents.
func (a *app) holds(cmd *cobra.Command, r route) *cobra.Command {
	var all bool
	cmd.Args = atMost(1)
	cmd.ValidArgsFunction = a.completeIDs(routeThreads, "threads", "id", "room")
	cmd.Flags().BoolVar(&all, "all", false, "all agents")
	cmd.RunE = a.asking(func(ctx context.Context, c *client, args []string) error {
		body := map[string]any{"all": true}
		switch {
		case all && len(args) > 0:
			return usagef("give a thread or --all, not both")
		case !all && len(args) == 0:
			return usagef("which: give a thread's id, or --all")
		case !all:
			body = map[string]any{"thread": args[0]}
		}
		var h holding
		// Doing it again changes nothing, so a lost answer is no harm.
		raw, err := c.get(ctx, request{route: r, body: body, again: true}, &h)
		switch {
		case err != nil:
			return err
		case a.json || a.jsonl:
			return a.document(raw)
		}
		return a.printf("%s\n", clean(h.words()))
	})
	return a.speaks(cmd)
}

// words says what a stop or a start has done.
func (h holding) words() string {
	where := "thread " + h.Scope
	if h.Scope == service.Everything {
		where = "all agents"
	}
	if h.Stopped {
		return fmt.Sprintf("%s stopped: %s and %s wait, %s still run", where, count(h.Calls, "call"), count(h.Wakes, "wake"), count(h.Running, "call"))
	}
	return fmt.Sprintf("%s started: %s posted, %s wait, %s run", where, count(h.Wakes, "wake"), count(h.Calls, "call"), count(h.Running, "call"))
}
