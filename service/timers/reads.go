package timers

import (
	"context"
	"fmt"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// TimerListing is a timer as it is listed.
type TimerListing struct {
	Timer    string         `json:"timer"`
	Name     string         `json:"name"`
	Schedule string         `json:"schedule"`
	Zone     string         `json:"zone"`
	Agent    ops.IdentityID `json:"agent"`
	By       ops.Identity   `json:"by"` // who made it
	State    string         `json:"state" enum:"active,paused,ended"`
	Reason   string         `json:"reason,omitempty"`  // why it has ended
	NextAt   string         `json:"next_at,omitempty"` // jitter included
	LastAt   string         `json:"last_at,omitempty"` // when it last woke the agent
	LastWake string         `json:"last_wake,omitempty"`
	Runs     int64          `json:"runs"` // wakes that it has raised
}

// TimerShowing is a timer as it is shown whole.
type TimerShowing struct {
	TimerListing
	Prompt    string            `json:"prompt"`
	Trusted   bool              `json:"trusted"` // the agent is told it as words of someone who is trusted
	Ops       []ops.OpName      `json:"ops"`     // what its wakes may run unasked
	Overlap   string            `json:"overlap" enum:"skip,queue,allow"`
	Missed    string            `json:"missed" enum:"skip,once,all"`
	Jitter    string            `json:"jitter,omitempty"`
	Until     string            `json:"until,omitempty"`
	MaxRuns   int64             `json:"max_runs,omitempty"`
	Deadline  string            `json:"deadline"`
	Queued    int64             `json:"queued"` // occurrences that wait for the last wake to end
	Source    string            `json:"source"` // where it was ordered
	CreatedAt string            `json:"created_at"`
	EndedAt   string            `json:"ended_at,omitempty"`
	Latest    []TimerOccurrence `json:"occurrences"` // the latest ones, newest first
}

// TimerOccurrence is one occurrence of a timer, or several that were missed together.
type TimerOccurrence struct {
	N       int64          `json:"n"` // from 1
	DueAt   string         `json:"due_at"`
	LastDue string         `json:"last_due_at,omitempty"` // of several
	Times   int64          `json:"times"`                 // how many it stands for, counted to 10,000
	NextAt  string         `json:"next_at"`               // due_at and its jitter
	AskedBy ops.IdentityID `json:"asked_by,omitempty"`    // who had it run beside the schedule
	Outcome string         `json:"outcome" enum:"woken,missed,skipped,queued,refused"`
	At      string         `json:"at"` // when that was decided
	Wake    string         `json:"wake,omitempty"`
	Fault   *ops.Fault     `json:"fault,omitempty"`
}

// latest is how many occurrences a timer is shown with.
const latest = 20

func (t *timer) listing() TimerListing {
	return TimerListing{
		Timer: t.id, Name: t.name, Schedule: t.schedule, Zone: t.zone, Agent: t.agent, By: t.by, State: t.state, Reason: t.reason,
		NextAt: maybe(t.next), LastAt: maybe(t.lastAt), LastWake: t.lastWake, Runs: t.runs,
	}
}

// Reads returns the reads timers and timer.
func (t *Timers) Reads() []service.Read {
	return []service.Read{
		{Name: "timers", Do: func(ctx context.Context, by ops.Identity, q service.Query) (any, error) { return t.List(ctx, by, q) }},
		{Name: "timer", Do: func(ctx context.Context, by ops.Identity, q service.Query) (any, error) {
			return t.Show(ctx, by, q.Arg)
		}},
	}
}

// TimerPage is a page of timers.
type TimerPage struct {
	Timers []TimerListing `json:"timers"`
	Next   string         `json:"next,omitempty"`
}

// Bounds of a page.
const (
	defaultPage = 50
	maxPage     = 200
)

// enrolled are the agents that are enrolled with the identity $1.
const enrolled = `SELECT e.agent FROM enrolment e JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL WHERE e.bridge = $1`

// List returns timers, newest first: those that wake by, those that it has made, and those
// of agents that are enrolled with it; all of them for who may manage the gateway.
// Filters: state, agent.
func (t *Timers) List(ctx context.Context, by ops.Identity, q service.Query) (TimerPage, error) {
	limit, err := service.PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return TimerPage{}, err
	}
	who, whose := string(by.ID), `(agent = $1 OR by_id = $1 OR agent IN (`+enrolled+`))`
	if t.manages(by) {
		who, whose = "", `$1 = ''`
	}
	page := TimerPage{Timers: []TimerListing{}}
	err = t.store.View(ctx, func(tx journal.Tx) error {
		page = TimerPage{Timers: []TimerListing{}}
		list, err := timersOf(tx, whose+` AND ($2 = '' OR id < $2) AND ($3 = '' OR state = $3) AND ($4 = '' OR agent = $4) ORDER BY id DESC LIMIT $5`,
			who, q.After, q.Filter["state"], q.Filter["agent"], int64(limit+1))
		for _, tm := range list {
			page.Timers = append(page.Timers, tm.listing())
		}
		return err
	})
	if err != nil {
		return TimerPage{}, err
	}
	if len(page.Timers) > limit {
		page.Timers = page.Timers[:limit]
		page.Next = page.Timers[limit-1].Timer
	}
	return page, nil
}

// Show returns a timer whole, or NotFound for one that by may not see.
func (t *Timers) Show(ctx context.Context, by ops.Identity, id string) (s TimerShowing, err error) {
	err = t.store.View(ctx, func(tx journal.Tx) error {
		tm, err := loadTimer(tx, id)
		if err != nil {
			return err
		}
		if sees, err := t.sees(tx, by, tm); err != nil || !sees {
			return orUnknown(err, id)
		}
		s, err = show(tx, id)
		return err
	})
	return s, err
}

// sees reports whether by may see tm.
func (t *Timers) sees(tx journal.Tx, by ops.Identity, tm timer) (bool, error) {
	if by.ID == tm.by.ID && by.Role == tm.by.Role {
		return true, nil
	}
	return seesOf(tx, t.policy.Current(), by, tm.agent)
}

// seesOf reports whether by may see what belongs to agent.
func seesOf(tx journal.Tx, policy *access.Policy, by ops.Identity, agent ops.IdentityID) (bool, error) {
	enrolled, err := access.Enrolled(tx, by.ID, agent)
	if err != nil {
		return false, err
	}
	return policy.Decide(access.Request{By: by, Action: access.See, Owner: agent, Enrolled: enrolled}).Allowed, nil
}

func show(tx journal.Tx, id string) (TimerShowing, error) {
	t, err := loadTimer(tx, id)
	if err != nil {
		return TimerShowing{}, err
	}
	s := TimerShowing{
		TimerListing: t.listing(), Prompt: t.prompt, Trusted: t.trusted, Ops: append([]ops.OpName{}, t.ops...), Overlap: t.overlap, Missed: t.missed,
		Until: maybe(t.until), MaxRuns: t.maxRuns, Deadline: t.deadline.String(), Queued: t.queued, Source: t.source,
		CreatedAt: ops.Stamp(t.created), EndedAt: maybe(t.endedAt), Latest: []TimerOccurrence{},
	}
	if t.jitter > 0 {
		s.Jitter = t.jitter.String()
	}
	err = tx.Query(occurrenceColumns+` WHERE timer = $1 ORDER BY n DESC LIMIT $2`, func(scan func(...any) error) error {
		var o occurrence
		if err := o.scan(scan); err != nil {
			return fmt.Errorf("timer %s: %w", id, err)
		}
		shown := TimerOccurrence{N: o.n, DueAt: ops.Stamp(o.due), Times: o.times, NextAt: ops.Stamp(o.next), AskedBy: o.by, Outcome: o.outcome,
			At: ops.Stamp(o.at), Wake: o.wake, Fault: o.fault}
		if o.times > 1 {
			shown.LastDue = ops.Stamp(o.lastDue)
		}
		s.Latest = append(s.Latest, shown)
		return nil
	}, id, int64(latest))
	return s, err
}
