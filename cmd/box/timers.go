package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/ops"
)

// timerListing is a timer as GET /v1/timers lists it.
type timerListing struct {
	Timer    string     `json:"timer"`
	Name     string     `json:"name"`
	Schedule string     `json:"schedule"`
	Zone     string     `json:"zone"`
	Agent    string     `json:"agent"`
	By       identity   `json:"by"`
	State    string     `json:"state"`
	Reason   string     `json:"reason"`
	NextAt   *time.Time `json:"next_at"`
	LastAt   *time.Time `json:"last_at"`
	LastWake string     `json:"last_wake"`
	Runs     int64      `json:"runs"`
}

// timerShown is a timer as GET /v1/timers/{id} shows it.
type timerShown struct {
	timerListing
	Prompt      string     `json:"prompt"`
	Trusted     bool       `json:"trusted"`
	Ops         []string   `json:"ops"`
	Overlap     string     `json:"overlap"`
	Missed      string     `json:"missed"`
	Jitter      string     `json:"jitter"`
	Until       *time.Time `json:"until"`
	MaxRuns     int64      `json:"max_runs"`
	Deadline    string     `json:"deadline"`
	Queued      int64      `json:"queued"`
	Source      string     `json:"source"`
	CreatedAt   time.Time  `json:"created_at"`
	EndedAt     *time.Time `json:"ended_at"`
	Occurrences []struct {
		N       int64      `json:"n"`
		DueAt   time.Time  `json:"due_at"`
		LastDue *time.Time `json:"last_due_at"`
		Times   int64      `json:"times"`
		AskedBy string     `json:"asked_by"`
		Outcome string     `json:"outcome"`
		Wake    string     `json:"wake"`
		Fault   *ops.Fault `json:"fault"`
	} `json:"occurrences"`
}

func (a *app) timersCommand() *cobra.Command {
	const long = `List timers, newest first: what wakes agents, and when next. An agent sees those that
wake it or that it has made; an operator sees all.`
	var state, agent, after string
	var limit int
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		return a.listing(ctx, c, lister{
			route: routeTimers, member: "timers", after: after, limit: limit,
			filters: map[string]string{"state": state, "agent": agent},
			table:   newTable("TIMER", "STATE", "AGENT", "SCHEDULE", "ZONE", "NEXT", "RUNS", "NAME"),
			row: func(t *table, raw json.RawMessage) error {
				var l timerListing
				if err := decode(raw, &l); err != nil {
					return err
				}
				t.row(l.Timer, l.State, l.Agent, l.Schedule, l.Zone, maybeStamp(l.NextAt), strconv.FormatInt(l.Runs, 10), l.Name)
				return nil
			},
		})
	})
	flags := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().StringVar(&state, "in", "", "only those in this state: active, paused or ended")
		cmd.Flags().StringVar(&agent, "agent", "", "only those that wake this agent")
		a.pages(cmd, &limit, &after)
		return a.speaks(cmd)
	}
	cmd := &cobra.Command{
		Use:   "timers",
		Short: "List timers; show, make, cancel, pause, resume or run one",
		Long:  long,
		Example: `  box timers --in active
  box timers create morning "0 7 * * 1-5" "Look at the disks." --agent scout --zone Europe/Berlin
  box timers show tm-01k9…
  box timers cancel tm-01k9… --reason "not needed any more"`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	cmd.AddCommand(
		flags(&cobra.Command{Use: "list", Short: "List timers", Long: long, Example: "  box timers list --agent scout --jsonl", Args: exactly(), RunE: list}),
		a.timersShowCommand(), a.timersCreateCommand(), a.timersCancelCommand(),
		a.timersChangeCommand("pause", routePauseTimer, true, "Have a timer be due no more until it is resumed",
			`Have a timer be due no more until it is resumed, and print it. What waits for the last
run's wake to end waits on. For operators.`),
		a.timersChangeCommand("resume", routeResumeTimer, true, "Have a timer be due again from now on",
			`Have a timer be due again from now on, and print it. What was due while it was paused
is not missed. For operators.`),
		a.timersChangeCommand("run", routeRunTimer, false, "Have a timer wake its agent now",
			`Have a timer wake its agent now, beside its schedule and paused or not, and print it.
It counts as a run. While the wake of the last one is open, it waits or runs as the
timer's overlap says; where that is skip, it is refused (exit code 6). For operators.`),
	)
	return flags(cmd)
}

func (a *app) timersShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show TIMER",
		Short: "Show a timer and what became of its latest occurrences",
		Long: `Show a timer: what it says to whom and when, what its wakes may do unasked, and what
became of its latest occurrences, newest first.`,
		Example:           "  box timers show tm-01k9…",
		Args:              exactly("the timer's id"),
		ValidArgsFunction: a.completeIDs(routeTimers, "timers", "timer", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.timer(ctx, c, request{route: routeTimer, names: args})
		}),
	}
	return a.speaks(cmd)
}

func (a *app) timersChangeCommand(name string, r route, again bool, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use:               name + " TIMER",
		Short:             short,
		Long:              long,
		Example:           "  box timers " + name + " tm-01k9…",
		Args:              exactly("the timer's id"),
		ValidArgsFunction: a.completeIDs(routeTimers, "timers", "timer", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.timer(ctx, c, request{route: r, names: args, again: again})
		}),
	}
	return a.speaks(cmd)
}

func (a *app) timersCreateCommand() *cobra.Command {
	p := struct {
		Name     string   `json:"name"`
		Schedule string   `json:"schedule"`
		Agent    string   `json:"agent,omitempty"`
		Prompt   string   `json:"prompt"`
		Zone     string   `json:"zone,omitempty"`
		Jitter   string   `json:"jitter,omitempty"`
		Until    string   `json:"until,omitempty"`
		MaxRuns  int64    `json:"max_runs,omitempty"`
		Overlap  string   `json:"overlap,omitempty"`
		Missed   string   `json:"missed,omitempty"`
		Ops      []string `json:"ops,omitempty"`
		Deadline string   `json:"deadline,omitempty"`
	}{}
	cmd := &cobra.Command{
		Use:   "create NAME SCHEDULE PROMPT --agent AGENT",
		Short: "Make a timer that wakes an agent with a prompt",
		Long: `Make a timer that wakes an agent with a prompt, by the op cron.create, and print it.

SCHEDULE is five cron fields (minute, hour, day of month, month, day of week), @hourly,
@daily, @weekly, @monthly, @yearly, or @every and a duration. The fields are meant in
--zone. On a day when its clocks are changed, a time that is skipped runs at the next
one that there is, and a time that comes twice runs once.

--op names an op that the agent may run unasked when the timer wakes it; give it more
than once for several. Without any it is told the prompt and may run what needs no
leave.`,
		Example: `  box timers create morning "0 7 * * 1-5" "Look at the disks." --agent scout --zone Europe/Berlin
  box timers create pulse "@every 15m" "Is the queue empty?" --agent scout --overlap queue --op dm.send`,
		Args: exactly("the timer's name", "the schedule", "the prompt"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			p.Name, p.Schedule, p.Prompt = args[0], args[1], args[2]
			return a.run1(ctx, c, "cron.create", p)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&p.Agent, "agent", "", "whom it wakes (default: the agent whose token is used)")
	f.StringVar(&p.Zone, "zone", "", "an IANA time zone such as Europe/Berlin (default UTC)")
	f.StringVar(&p.Jitter, "jitter", "", "a run comes at most this much later, by chance")
	f.StringVar(&p.Until, "until", "", "RFC 3339; no run begins after it")
	f.Int64Var(&p.MaxRuns, "max-runs", 0, "how often it runs at most (default: no bound)")
	f.StringVar(&p.Overlap, "overlap", "", "a run while the last one's wake is open: skip, queue or allow (default skip)")
	f.StringVar(&p.Missed, "missed", "", "runs that were due while no gateway ran: skip, once or all (default once)")
	f.StringArrayVar(&p.Ops, "op", nil, "an op that the wake may run unasked")
	f.StringVar(&p.Deadline, "deadline", "", "how long the agent has (default 1h)")
	return a.speaks(cmd)
}

func (a *app) timersCancelCommand() *cobra.Command {
	p := struct {
		Timer  string `json:"timer"`
		Reason string `json:"reason,omitempty"`
	}{}
	cmd := &cobra.Command{
		Use:   "cancel TIMER",
		Short: "End a timer for good",
		Long: `End a timer for good, by the op cron.cancel. What it has woken goes on; what waits for
the last run's wake to end does not run.`,
		Example:           `  box timers cancel tm-01k9… --reason "not needed any more"`,
		Args:              exactly("the timer's id"),
		ValidArgsFunction: a.completeIDs(routeTimers, "timers", "timer", "name"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			p.Timer = args[0]
			return a.run1(ctx, c, "cron.cancel", p)
		}),
	}
	cmd.Flags().StringVar(&p.Reason, "reason", "", "why, at most 500 bytes")
	return a.speaks(cmd)
}

// run1 runs one op with params and prints its result.
func (a *app) run1(ctx context.Context, c *client, op string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return a.exec(ctx, c, order{op: op, params: raw}, false, false)
}

// timer sends r and prints the timer that it is answered with.
func (a *app) timer(ctx context.Context, c *client, r request) error {
	var got timerShown
	raw, err := c.get(ctx, r, &got)
	if err != nil {
		return err
	}
	if a.json || a.jsonl {
		return a.document(raw)
	}
	s := sheet{app: a}
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	s.line("timer", got.Timer)
	s.line("name", got.Name)
	s.line("state", got.State)
	s.line("reason", got.Reason)
	s.line("agent", got.Agent)
	s.line("schedule", got.Schedule+" in "+got.Zone)
	s.line("next", maybeStamp(got.NextAt))
	s.line("last", maybeStamp(got.LastAt))
	s.line("last wake", got.LastWake)
	s.line("runs", strconv.FormatInt(got.Runs, 10))
	s.line("at most", number(got.MaxRuns))
	s.line("until", maybeStamp(got.Until))
	s.line("jitter", got.Jitter)
	s.line("overlap", got.Overlap)
	s.line("missed", got.Missed)
	s.line("queued", number(got.Queued))
	s.line("deadline", got.Deadline)
	s.line("ops", strings.Join(got.Ops, " "))
	s.line("by", got.By.Role+" "+got.By.ID)
	s.line("source", got.Source)
	s.line("made", stamp(got.CreatedAt))
	s.line("ended", maybeStamp(got.EndedAt))
	prompt := "prompt"
	if !got.Trusted {
		prompt = "prompt, untrusted"
	}
	s.text(prompt, got.Prompt)
	if s.err != nil || len(got.Occurrences) == 0 {
		return s.err
	}
	t := newTable("N", "DUE", "TIMES", "OUTCOME", "WAKE", "FAULT")
	for _, o := range got.Occurrences {
		fault := ""
		if o.Fault != nil {
			fault = string(o.Fault.Code)
		}
		outcome := o.Outcome
		if o.AskedBy != "" {
			outcome += " for " + o.AskedBy
		}
		t.row(strconv.FormatInt(o.N, 10), stamp(o.DueAt), strconv.FormatInt(o.Times, 10), outcome, o.Wake, fault)
	}
	return a.print(t)
}
