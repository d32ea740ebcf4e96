package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/ops"
)

// delegationListing is a delegation as GET /v1/delegations lists it.
type delegationListing struct {
	Delegation     string     `json:"delegation"`
	Call           string     `json:"call"`
	By             identity   `json:"by"`
	Thread         string     `json:"thread"`
	Implementation string     `json:"implementation"`
	State          string     `json:"state"`
	Closed         bool       `json:"closed"`
	Cancel         bool       `json:"cancel"`
	Reason         string     `json:"reason"`
	Attempts       int        `json:"attempts"`
	RunState       string     `json:"run_state"`
	Worker         string     `json:"worker"`
	Progress       int64      `json:"progress"`
	Deadline       time.Time  `json:"deadline"`
	CreatedAt      time.Time  `json:"created_at"`
	ClosedAt       *time.Time `json:"closed_at"`
}

// delegationShown is a delegation as GET /v1/delegations/{id} shows it.
type delegationShown struct {
	delegationListing
	Waits       string `json:"waits"`
	Instruction *struct {
		Original     string `json:"original"`
		Inferred     string `json:"inferred"`
		Context      string `json:"context"`
		Verification string `json:"verification"`
		Task         string `json:"task"`
	} `json:"instruction"`
	Digest string `json:"instruction_digest"`
	Source struct {
		Revision string `json:"revision"`
		Worktree string `json:"worktree"`
	} `json:"source"`
	Capabilities []string       `json:"capabilities"`
	Credentials  []string       `json:"credentials"`
	Outputs      []string       `json:"outputs"`
	Verify       []string       `json:"verify"`
	Retries      map[string]int `json:"retries"`
	Used         map[string]int `json:"used"`
	CancelBy     string         `json:"cancel_by"`
	CancelReason string         `json:"cancel_reason"`
	Question     string         `json:"question"`
	Answer       string         `json:"answer"`
	DueAt        *time.Time     `json:"due_at"`
	Withheld     bool           `json:"withheld"`

	Runs []struct {
		Run       string     `json:"run"`
		Attempt   int        `json:"attempt"`
		State     string     `json:"state"`
		Class     string     `json:"class"`
		Reason    string     `json:"reason"`
		Proof     string     `json:"proof"`
		Worker    string     `json:"worker"`
		Progress  int64      `json:"progress"`
		Summary   string     `json:"summary"`
		StartedAt *time.Time `json:"started_at"`
		EndedAt   *time.Time `json:"ended_at"`
	} `json:"runs"`
	Files []struct {
		Run    string `json:"run"`
		Name   string `json:"name"`
		Digest string `json:"digest"`
		Bytes  int64  `json:"bytes"`
	} `json:"files"`
	Verifications []struct {
		Verification string     `json:"verification"`
		N            int        `json:"n"`
		State        string     `json:"state"`
		Verifier     string     `json:"verifier"`
		Reason       string     `json:"reason"`
		EndedAt      *time.Time `json:"ended_at"`
	} `json:"verifications"`
	Mutations []struct {
		Key    string `json:"key"`
		Action string `json:"action"`
		State  string `json:"state"`
		Proof  string `json:"proof"`
	} `json:"mutations"`
	Evidence []struct {
		ID      int64     `json:"id"`
		Subject string    `json:"subject"`
		Kind    string    `json:"kind"`
		Reason  string    `json:"reason"`
		Worker  string    `json:"worker"`
		At      time.Time `json:"at"`
	} `json:"evidence"`
}

func (a *app) delegationsCommand() *cobra.Command {
	const long = `List delegations, newest first: work that was handed to workers by the op swarm.spawn.
One is OPEN while its runs are tried, VERIFYING while somebody else than its worker
judges what came of it, and COMPLETED only when that verdict is passed. An agent sees
those that it has ordered; an operator sees all.`
	var state, thread, implementation, by, after string
	var limit int
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		return a.listing(ctx, c, lister{
			route: routeDelegations, member: "delegations", after: after, limit: limit,
			filters: map[string]string{"state": state, "thread": thread, "implementation": implementation, "by": by},
			table:   newTable("DELEGATION", "STATE", "RUN", "WORKER", "IMPLEMENTATION", "ATTEMPTS", "BY", "CREATED", "REASON"),
			row: func(t *table, raw json.RawMessage) error {
				var l delegationListing
				if err := decode(raw, &l); err != nil {
					return err
				}
				t.row(l.Delegation, l.State, l.RunState, l.Worker, l.Implementation, strconv.Itoa(l.Attempts), l.By.ID, stamp(l.CreatedAt), l.Reason)
				return nil
			},
		})
	})
	flags := func(cmd *cobra.Command) *cobra.Command {
		f := cmd.Flags()
		f.StringVar(&state, "in", "", "only those in this state, such as OPEN or COMPLETED")
		f.StringVar(&thread, "thread", "", "only those that were ordered in this thread")
		f.StringVar(&implementation, "implementation", "", "only those for this implementation")
		f.StringVar(&by, "by", "", "only those that this identity has ordered")
		a.pages(cmd, &limit, &after)
		return a.speaks(cmd)
	}
	cmd := &cobra.Command{
		Use:   "delegations",
		Short: "List work that was handed to workers; show, watch, cancel, resolve or retry it",
		Long:  long,
		Example: `  box delegations --in OPEN
  box delegations watch d-01k9…
  box delegations cancel d-01k9… --reason "not needed any more"
  box delegations resolve d-01k9… resume --answer "use the second one"`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	cmd.AddCommand(
		flags(&cobra.Command{Use: "list", Short: "List delegations", Long: long, Example: "  box delegations list --in VERIFYING --jsonl", Args: exactly(), RunE: list}),
		a.delegationsShowCommand(), a.delegationsWatchCommand(), a.delegationsCancelCommand(), a.delegationsResolveCommand(), a.delegationsRetryCommand(),
	)
	return flags(cmd)
}

func (a *app) delegationsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show DELEGATION",
		Short: "Show a delegation, its runs, and what its worker and verifier said",
		Long: `Show a delegation: what was ordered, what it waits for, each run with what became of
it, the files that were left, the verdicts of verifiers, changes outside that were
intended, and what was said and does not count. What workers wrote is untrusted.`,
		Example:           "  box delegations show d-01k9…",
		Args:              exactly("the delegation's id"),
		ValidArgsFunction: a.completeIDs(routeDelegations, "delegations", "delegation", "state"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			var got delegationShown
			raw, err := c.get(ctx, request{route: routeDelegation, names: args}, &got)
			switch {
			case err != nil:
				return err
			case a.json || a.jsonl:
				return a.document(raw)
			}
			return a.printDelegation(got)
		}),
	}
	return a.speaks(cmd)
}

// printDelegation prints a delegation for people.
func (a *app) printDelegation(d delegationShown) error {
	s := sheet{app: a}
	s.line("delegation", d.Delegation)
	s.line("state", d.State)
	s.line("waits for", d.Waits)
	s.line("reason", d.Reason)
	s.line("call", d.Call)
	s.line("by", d.By.Role+" "+d.By.ID)
	s.line("thread", d.Thread)
	s.line("work", d.Implementation)
	s.line("revision", d.Source.Revision)
	s.line("worktree", d.Source.Worktree)
	s.line("needs", strings.Join(d.Capabilities, " "))
	s.line("secrets", strings.Join(d.Credentials, " "))
	s.line("returns", strings.Join(d.Outputs, " "))
	s.line("verified by", strings.Join(d.Verify, " "))
	s.line("retries", budget(d.Retries, d.Used))
	s.line("ordered", stamp(d.CreatedAt))
	s.line("deadline", stamp(d.Deadline))
	s.line("due", maybeStamp(d.DueAt))
	s.line("closed", maybeStamp(d.ClosedAt))
	if d.Cancel {
		s.line("cancelled", strings.TrimSpace("by "+d.CancelBy+" "+d.CancelReason))
	}
	if d.Withheld {
		s.line("withheld", "what was said, by the policy")
	}
	s.line("instruction", d.Digest)
	if i := d.Instruction; i != nil {
		s.text("task", i.Task)
		s.text("original", i.Original)
		s.text("inferred", i.Inferred)
		s.text("context", i.Context)
		s.text("to verify", i.Verification)
	}
	s.text("question, untrusted", d.Question)
	s.text("answer", d.Answer)
	if s.err != nil {
		return s.err
	}
	runs := newTable("ATTEMPT", "RUN", "STATE", "WORKER", "PROGRESS", "STARTED", "ENDED", "PROOF", "WHY", "SUMMARY, UNTRUSTED")
	for _, r := range d.Runs {
		runs.row(strconv.Itoa(r.Attempt), r.Run, r.State, r.Worker, strconv.FormatInt(r.Progress, 10), maybeStamp(r.StartedAt), maybeStamp(r.EndedAt), r.Proof,
			strings.Trim(r.Class+": "+r.Reason, ": "), r.Summary)
	}
	files := newTable("FILE", "BYTES", "DIGEST", "RUN")
	for _, f := range d.Files {
		files.row(f.Name, strconv.FormatInt(f.Bytes, 10), f.Digest, f.Run)
	}
	verdicts := newTable("N", "VERIFICATION", "STATE", "VERIFIER", "ENDED", "REASON, UNTRUSTED")
	for _, v := range d.Verifications {
		verdicts.row(strconv.Itoa(v.N), v.Verification, v.State, v.Verifier, maybeStamp(v.EndedAt), v.Reason)
	}
	changes := newTable("CHANGE OUTSIDE", "STATE", "PROOF", "WHAT, UNTRUSTED")
	for _, m := range d.Mutations {
		changes.row(m.Key, m.State, m.Proof, m.Action)
	}
	doubts := newTable("EVIDENCE", "OF", "KIND", "WORKER", "AT", "WHY IT DOES NOT COUNT")
	for _, e := range d.Evidence {
		doubts.row(strconv.FormatInt(e.ID, 10), e.Subject, e.Kind, e.Worker, stamp(e.At), e.Reason)
	}
	for _, t := range []*table{runs, files, verdicts, changes, doubts} {
		if len(t.rows) == 0 {
			continue
		}
		if err := a.printf("\n"); err != nil {
			return err
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	return nil
}

// budget says of each class of failures how many of its retries are used.
func budget(have, used map[string]int) string {
	var parts []string
	for class, n := range have {
		if n > 0 || used[class] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d of %d used", class, used[class], n))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// watchPatience is how long a gateway that does not answer is asked again.
const watchPatience = time.Minute

func (a *app) delegationsWatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch DELEGATION",
		Short: "Follow a delegation until it is closed",
		Long: `Follow a delegation until it is closed, and print what becomes of it as it comes. The
exit code is that of its outcome: 0 when it is COMPLETED, which is when a verifier has
passed it, and 1 for every other end. An interrupt ends the watching only (exit code
130), and so does --timeout (7): the work goes on.

With --jsonl the delegation is printed whenever it has changed; with --json once, when
it is closed.`,
		Example: `  box delegations watch d-01k9…
  box delegations watch d-01k9… --timeout 10m`,
		Args:              exactly("the delegation's id"),
		ValidArgsFunction: a.completeIDs(routeDelegations, "delegations", "delegation", "state"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			end, err := a.watch(ctx, c, args[0])
			var lost *exitError
			if err != nil && (ctx.Err() != nil || errors.As(err, &lost) && lost.code == ops.ExitUnreachable) {
				a.notice("the work goes on: box delegations watch %s", args[0])
			}
			if err != nil || end.State == "COMPLETED" {
				return err
			}
			return &exitError{code: ops.ExitFailed, err: fmt.Errorf("%s ended as %s: %s", end.Delegation, end.State, end.Reason),
				hint: "box delegations show " + end.Delegation + " has all of it"}
		}),
	}
	return a.speaks(cmd)
}

// watch prints what becomes of a delegation until it is closed. It asks again and again,
// at most once a second, because only operators may follow the events of what has no
// thread, and because work is not lost from sight when its gateway restarts.
func (a *app) watch(ctx context.Context, c *client, id string) (delegationShown, error) {
	const least, most = 50 * time.Millisecond, time.Second
	said := make(map[string]string)
	var before string
	var away time.Time // since when there is no answer
	for wait := least; ; wait = min(2*wait, most) {
		var got delegationShown
		raw, err := c.get(ctx, request{route: routeDelegation, names: []string{id}}, &got)
		var lost *exitError
		switch {
		case err == nil:
			away = time.Time{}
		case ctx.Err() == nil && errors.As(err, &lost) && lost.code == ops.ExitUnreachable && before != "" && (away.IsZero() || time.Since(away) < watchPatience):
			if away.IsZero() {
				away = time.Now()
				a.notice("the gateway does not answer; asking again for %s", watchPatience)
			}
			if err := pause(ctx, most); err != nil {
				return got, err
			}
			if again, err := a.connect(); err == nil { // it may be back elsewhere
				c.close()
				c = again
				defer again.close()
			}
			continue
		default:
			return got, err
		}
		if now := string(raw); now != before {
			before, wait = now, least
			if err := a.printChange(got, raw, said); err != nil {
				return got, err
			}
		}
		if got.Closed {
			return got, nil
		}
		if err := pause(ctx, wait); err != nil {
			return got, err
		}
	}
}

// printChange prints what is new of a delegation. said is what was printed, by what it
// was about.
func (a *app) printChange(d delegationShown, raw json.RawMessage, said map[string]string) error {
	switch {
	case a.jsonl:
		return a.document(raw)
	case a.json && d.Closed:
		return a.document(raw)
	case a.json:
		return nil
	}
	say := func(about, text string) error {
		if said[about] == text {
			return nil
		}
		said[about] = text
		return a.printf("%s  %s\n", time.Now().Format(time.TimeOnly), clean(text))
	}
	for _, r := range slices.Backward(d.Runs) {
		text := fmt.Sprintf("run %d %s", r.Attempt, r.State)
		if r.Worker != "" {
			text += " at " + r.Worker
		}
		if r.Progress > 0 {
			text += fmt.Sprintf(", progress %d", r.Progress)
		}
		if why := strings.Trim(r.Class+": "+r.Reason, ": "); why != "" {
			text += ", " + why
		}
		if r.Summary != "" {
			text += ", it says: " + shorten(r.Summary, 200)
		}
		if err := say(r.Run, text); err != nil {
			return err
		}
	}
	for _, v := range slices.Backward(d.Verifications) {
		text := fmt.Sprintf("verification %d %s", v.N, v.State)
		if v.Verifier != "" {
			text += " at " + v.Verifier
		}
		if v.Reason != "" {
			text += ", it says: " + shorten(v.Reason, 200)
		}
		if err := say(v.Verification, text); err != nil {
			return err
		}
	}
	text := d.State
	switch {
	case d.Closed && d.Reason != "":
		text += ": " + d.Reason
	case d.Waits != "":
		text += ", waits for " + d.Waits
	}
	if d.Question != "" {
		text += "; it asks: " + shorten(d.Question, 200)
	}
	return say("", text)
}

func (a *app) delegationsCancelCommand() *cobra.Command {
	body := struct {
		Grace  string `json:"grace,omitempty"`
		Reason string `json:"reason,omitempty"`
	}{}
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "cancel DELEGATION",
		Short: "Cancel a delegation",
		Long: `Cancel a delegation, and print where it stands. It is CANCELLED at once when nothing of
it runs; else its worker is told to stop, and it stays open until that is proved or
settled by a person. One that is closed is a conflict (exit code 6).`,
		Example: `  box delegations cancel d-01k9…
  box delegations cancel d-01k9… --grace 2m --reason "not needed any more"`,
		Args:              exactly("the delegation's id"),
		ValidArgsFunction: a.completeIDs(routeDelegations, "delegations", "delegation", "state"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			if grace < 0 {
				return usagef("--grace %s: want more than nothing", grace)
			}
			if grace > 0 {
				body.Grace = grace.String()
			}
			return a.delegation(ctx, c, request{route: routeCancelDelegation, names: args, body: body, again: true})
		}),
	}
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long its worker has to stop and prove it (default 30s)")
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why, at most 500 bytes")
	return a.speaks(cmd)
}

func (a *app) delegationsResolveCommand() *cobra.Command {
	body := struct {
		Resolution string `json:"resolution,omitempty"`
		Answer     string `json:"answer,omitempty"`
		Mutation   string `json:"mutation,omitempty"`
		Done       *bool  `json:"done,omitempty"`
		Proof      string `json:"proof,omitempty"`
	}{}
	var done, absent bool
	cmd := &cobra.Command{
		Use:   "resolve DELEGATION [resume|fail|adopt]",
		Short: "Say how a delegation that waits for a person goes on",
		Long: `Say how a delegation that waits for a person goes on, and print where it stands.

  resume  offer the same run again; --answer is told to the worker
  fail    the run has failed; a new one follows if its budget for that allows
  adopt   the result that came too late counts, and is verified

While it is not known whether a change outside has happened, none of them is taken
(exit code 6). --mutation names that change, with --done or --absent, and --proof says
how that is known. Both may be given at once.`,
		Example: `  box delegations resolve d-01k9… resume --answer "use the second one"
  box delegations resolve d-01k9… --mutation order-17 --absent --proof "the shop has no order 17"
  box delegations resolve d-01k9… fail`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the delegation's id is missing")
			}
			return atMost(2)(cmd, args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"resume\toffer the same run again", "fail\tthe run has failed", "adopt\tits late result counts"}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeIDs(routeDelegations, "delegations", "delegation", "state")(cmd, args, prefix)
		},
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			if len(args) == 2 {
				body.Resolution = args[1]
			}
			switch {
			case body.Resolution == "" && body.Mutation == "":
				return usagef("how: give resume, fail or adopt, or --mutation with --done or --absent")
			case body.Resolution != "" && !slices.Contains([]string{"resume", "fail", "adopt"}, body.Resolution):
				return usagef("%q: want resume, fail or adopt", body.Resolution)
			case body.Answer != "" && body.Resolution != "resume":
				return usagef("--answer belongs to resume")
			case body.Mutation == "" && (done || absent || body.Proof != ""):
				return usagef("which change outside: give --mutation")
			case body.Mutation != "" && done == absent:
				return usagef("has it happened: give --done or --absent")
			case body.Mutation != "" && body.Proof == "":
				return usagef("how is that known: give --proof")
			case body.Mutation != "":
				body.Done = &done
			}
			return a.delegation(ctx, c, request{route: routeResolveDelegation, names: args[:1], body: body})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&body.Answer, "answer", "", "for resume: what the worker is told, at most 16 KiB")
	f.StringVar(&body.Mutation, "mutation", "", "the key of a change outside that nobody has proved")
	f.BoolVar(&done, "done", false, "that change has happened")
	f.BoolVar(&absent, "absent", false, "that change has certainly not happened")
	f.StringVar(&body.Proof, "proof", "", "how that is known")
	return a.speaks(cmd)
}

func (a *app) delegationsRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry DELEGATION",
		Short: "Have a delegation tried or verified again, beyond its budget",
		Long: `Have a delegation tried again although its budget has no new run left, or verified
again when evidence or a verifier was missing, and print where it stands. One that is
closed or goes on anyhow is a conflict (exit code 6). For operators.`,
		Example:           "  box delegations retry d-01k9…",
		Args:              exactly("the delegation's id"),
		ValidArgsFunction: a.completeIDs(routeDelegations, "delegations", "delegation", "state"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.delegation(ctx, c, request{route: routeRetryDelegation, names: args})
		}),
	}
	return a.speaks(cmd)
}

// delegation sends r and prints in a line where the delegation stands then.
func (a *app) delegation(ctx context.Context, c *client, r request) error {
	var got delegationShown
	raw, err := c.get(ctx, r, &got)
	if err != nil {
		return err
	}
	if a.json || a.jsonl {
		return a.document(raw)
	}
	text := got.Delegation + " is " + got.State
	switch {
	case got.Closed && got.Reason != "":
		text += ": " + got.Reason
	case got.Waits != "":
		text += ", waits for " + got.Waits
	}
	return a.printf("%s\n", clean(text))
}
