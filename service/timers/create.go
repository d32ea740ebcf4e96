package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/threads"
)

// Ops returns cron.create and cron.cancel over t. Their whole effect is in the journal,
// in the transaction that settles the call.
func (t *Timers) Ops() []ops.Bound {
	return []ops.Bound{
		{Op: ops.CronCreate(), Executor: inTx(t.create)},
		{Op: ops.CronCancel(), Executor: inTx(t.cancel)},
	}
}

// inTx is an executor that runs in the transaction of its call.
type inTx func(journal.Tx, ops.Call) (ops.Outcome, error)

var _ service.Transactional = inTx(nil)

// Execute is never used: the door calls ExecuteTx of a Transactional.
func (inTx) Execute(context.Context, ops.Call) (ops.Outcome, error) {
	return ops.Outcome{}, errors.New("ops of timers run in a transaction")
}

// ExecuteTx calls f.
func (f inTx) ExecuteTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) { return f(tx, c) }

// createParams are the parameters of cron.create.
type createParams struct {
	Name, Schedule string
	Agent          ops.IdentityID
	Prompt, Zone   string
	Jitter, Until  string
	MaxRuns        int64 `json:"max_runs"`
	Overlap        string
	Missed         string
	Ops            []ops.OpName
	Deadline       string
}

// create makes a timer.
func (t *Timers) create(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	var p createParams
	if err := json.Unmarshal(c.Params, &p); err != nil {
		return ops.Outcome{}, fmt.Errorf("parameters of cron.create: %w", err)
	}
	tm, err := t.declared(tx, c, p)
	if err != nil {
		return ops.Outcome{}, err
	}
	if err := t.room(tx, tm.agent); err != nil {
		return ops.Outcome{}, err
	}
	if err := tm.insert(tx); err != nil {
		return ops.Outcome{}, err
	}
	if err := event(tx, tm.id, "timer.created", map[string]any{
		"timer": tm.id, "name": tm.name, "schedule": tm.schedule, "zone": tm.zone, "agent": tm.agent, "by": tm.by, "call": c.ID,
		"ops": tm.ops, "due_at": ops.Stamp(tm.due),
	}); err != nil {
		return ops.Outcome{}, err
	}
	return ops.Success(ops.NewResult(map[string]any{
		"timer": tm.id, "name": tm.name, "agent": tm.agent, "schedule": tm.schedule, "zone": tm.zone, "state": "active", "next_at": ops.Stamp(tm.next),
	}, "")), nil
}

// declared returns the timer that c asks for, or a fault that says what is wrong with it.
func (t *Timers) declared(tx journal.Tx, c ops.Call, p createParams) (timer, error) {
	now := tx.Now()
	tm := timer{
		id: newTimerID(), name: strings.TrimSpace(p.Name), schedule: strings.TrimSpace(p.Schedule), zone: orElse(p.Zone, "UTC"), prompt: p.Prompt,
		maxRuns: p.MaxRuns, overlap: orElse(p.Overlap, "skip"), missed: orElse(p.Missed, "once"),
		by: c.By, source: c.From.Source, created: now, state: "active",
		trusted: c.By.Role == ops.Operator || c.Evidence.Clean,
	}
	var err error
	switch {
	case tm.name == "" || strings.ContainsFunc(tm.name, unicode.IsControl):
		return tm, badParam("name", "is empty or more than one line", "one line that says what the timer is for")
	case strings.TrimSpace(p.Prompt) == "":
		return tm, badParam("prompt", "is empty", "the errand, in words")
	}
	if tm.agent, err = t.whom(tx, c, p.Agent); err != nil {
		return tm, err
	}
	if tm.ops, err = t.mayDeclare(c, p.Ops); err != nil {
		return tm, err
	}
	if tm.jitter, err = duration(p.Jitter, 0); err != nil {
		return tm, err
	}
	if tm.deadline, err = duration(p.Deadline, threads.StandardErrand); err != nil {
		return tm, err
	}
	zone, fault := readZone(tm.zone)
	if fault != nil {
		return tm, fault
	}
	least := LeastOfAgents
	if c.By.Role == ops.Operator {
		least = LeastOfOperators
	}
	s, fault := readSchedule(tm.schedule, zone, now, least)
	if fault != nil {
		return tm, fault
	}
	if p.Until != "" {
		if tm.until, err = time.Parse(time.RFC3339, p.Until); err != nil {
			return tm, badParam("until", "is no moment", "RFC 3339, such as 2027-01-31T18:00:00+01:00")
		}
		tm.until = tm.until.UTC().Truncate(time.Millisecond)
	}
	switch first := s.next(now); {
	case first.IsZero():
		return tm, badSchedule("is not due within five years")
	case !tm.until.IsZero() && first.After(tm.until):
		return tm, badParam("until", "comes before the first run, which is due at "+ops.Stamp(first), "a later moment, or none")
	default:
		tm.due, tm.next = first, tm.jittered(s, first)
	}
	return tm, nil
}

// whom returns the agent that a timer of c wakes. An agent makes timers for itself, and
// for others when a person has approved that very call.
func (t *Timers) whom(tx journal.Tx, c ops.Call, id ops.IdentityID) (ops.IdentityID, error) {
	if id == "" {
		id = c.By.ID
	}
	if id != c.By.ID && c.By.Role != ops.Operator && !approved(c) {
		return "", ops.Faultf(ops.NotPermitted, "%s makes timers for itself; one for %q needs the approval of a person", c.By, id)
	}
	who, known, err := access.Live(tx, id)
	switch {
	case err != nil:
		return "", err
	case !known || who.Role != ops.Agent:
		return "", badParam("agent", fmt.Sprintf("is %q, which is no agent", id), "the id of an agent")
	}
	return id, nil
}

// mayDeclare resolves the ops that a timer of c declares. An agent passes on what the wake
// had declared whose key it wrote, and more when a person has approved that very call.
func (t *Timers) mayDeclare(c ops.Call, names []ops.OpName) ([]ops.OpName, error) {
	registry := t.registry.Current()
	list := []ops.OpName{}
	for _, name := range names {
		e, ok := registry.Lookup(name)
		if !ok {
			return nil, registry.UnknownOp(name)
		}
		own := c.Evidence.Key == ops.KeyGood && slices.Contains(c.From.Declared, e.Name)
		if c.By.Role != ops.Operator && !approved(c) && !own {
			return nil, ops.Faultf(ops.NotPermitted, "%s may not declare %s: the wake under which it ordered this timer did not, so it needs the approval of a person", c.By, e.Name).
				With("op", e.Name)
		}
		if !slices.Contains(list, e.Name) {
			list = append(list, e.Name)
		}
	}
	return list, nil
}

// approved reports whether a person has approved c.
func approved(c ops.Call) bool { return strings.HasPrefix(c.From.Grant, "a-") }

// room returns a fault if there is no room for one more timer of agent.
func (t *Timers) room(tx journal.Tx, agent ops.IdentityID) error {
	var own, all int64
	if err := tx.Query(`SELECT (SELECT count(*) FROM timer WHERE agent = $1 AND state <> 'ended'), (SELECT count(*) FROM timer WHERE state <> 'ended')`,
		func(scan func(...any) error) error { return scan(&own, &all) }, string(agent)); err != nil {
		return err
	}
	switch {
	case own >= MaxOfAgent:
		return ops.Faultf(ops.OverLimit, "%d timers wake %s already, and no more may; end one with cron.cancel first", own, agent).With("max", MaxOfAgent)
	case all >= t.most:
		return ops.Faultf(ops.Busy, "there are %d timers, and no more may be; an operator can end some with cron.cancel", all).With("max", t.most)
	}
	return nil
}

// cancel ends a timer. One that has ended stays as it is.
func (t *Timers) cancel(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	var p struct{ Timer, Reason string }
	if err := json.Unmarshal(c.Params, &p); err != nil {
		return ops.Outcome{}, fmt.Errorf("parameters of cron.cancel: %w", err)
	}
	var told tally // what was queued and is let go is not counted, since this may run again
	f, err := t.firing(tx, p.Timer, &told)
	if err != nil {
		return ops.Outcome{}, err
	}
	own := c.By.Role != "" && (f.tm.agent == c.By.ID || f.tm.by.ID == c.By.ID)
	if !own && !t.manages(c.By) {
		return ops.Outcome{}, unknownTimer(p.Timer)
	}
	if f.tm.state != "ended" {
		why := "cancelled by " + string(c.By.ID)
		if reason := strings.TrimSpace(p.Reason); reason != "" {
			why += ": " + reason
		}
		f.end(why)
		if err := f.done(); err != nil {
			return ops.Outcome{}, err
		}
	}
	return ops.Success(ops.NewResult(map[string]any{"timer": f.tm.id, "name": f.tm.name, "state": f.tm.state, "reason": f.tm.reason}, "")), nil
}

// manages reports whether by may look after everybody's timers.
func (t *Timers) manages(by ops.Identity) bool {
	return t.policy.Current().Decide(access.Request{By: by, Action: access.Manage}).Allowed
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// duration reads a parameter that the door has looked at.
func duration(s string, otherwise time.Duration) (time.Duration, error) {
	if s == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("duration %q: %w", s, err)
	}
	return d, nil
}
