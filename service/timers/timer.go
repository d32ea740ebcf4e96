package timers

import (
	"encoding/json"
	"fmt"
	"time"

	"inband/ops"
	"inband/service/journal"
	"inband/service/threads"
)

// timer is one row of the table.
type timer struct {
	id, name, schedule, zone string
	agent                    ops.IdentityID
	prompt                   string
	trusted                  bool
	jitter                   time.Duration
	until                    time.Time // zero is no end
	maxRuns                  int64     // 0 is no bound
	overlap, missed          string
	ops                      []ops.OpName
	deadline                 time.Duration
	by                       ops.Identity
	source                   string

	state, reason             string
	due, next                 time.Time
	occurrences, runs, queued int64
	lastAt                    time.Time
	lastWake                  string
	created, endedAt          time.Time
}

const timerColumns = `SELECT id, name, schedule, zone, agent, prompt, trusted, jitter_ms, until_at, max_runs, overlap, missed, ops, deadline_ms,
	by_id, by_role, source, state, reason, due_at, next_at, occurrences, runs, queued, last_at, last_wake, created_at, ended_at FROM timer`

// scan reads a row of timerColumns.
func (t *timer) scan(scan func(...any) error) error {
	var trusted, jitter, deadline, created int64
	var until, due, next, last, ended *int64
	var wake *string
	var declared string
	if err := scan(&t.id, &t.name, &t.schedule, &t.zone, (*string)(&t.agent), &t.prompt, &trusted, &jitter, &until, &t.maxRuns, &t.overlap, &t.missed,
		&declared, &deadline, (*string)(&t.by.ID), (*string)(&t.by.Role), &t.source, &t.state, &t.reason, &due, &next, &t.occurrences, &t.runs, &t.queued,
		&last, &wake, &created, &ended); err != nil {
		return err
	}
	t.trusted = trusted == 1
	t.jitter, t.deadline = time.Duration(jitter)*time.Millisecond, time.Duration(deadline)*time.Millisecond
	t.until, t.due, t.next, t.lastAt, t.created, t.endedAt = fromMilli(until), fromMilli(due), fromMilli(next), fromMilli(last), fromMilli(&created), fromMilli(ended)
	if wake != nil {
		t.lastWake = *wake
	}
	if err := json.Unmarshal([]byte(declared), &t.ops); err != nil {
		return fmt.Errorf("ops of timer %s: %w", t.id, err)
	}
	return nil
}

// timersOf reads the timers of which where is true.
func timersOf(tx journal.Tx, where string, args ...any) (list []timer, err error) {
	err = tx.Query(timerColumns+` WHERE `+where, func(scan func(...any) error) error {
		var t timer
		err := t.scan(scan)
		list = append(list, t)
		return err
	}, args...)
	return list, err
}

// loadTimer reads one timer, or is NotFound.
func loadTimer(tx journal.Tx, id string) (timer, error) {
	list, err := timersOf(tx, `id = $1`, id)
	if err != nil {
		return timer{}, err
	}
	if len(list) == 0 {
		return timer{}, unknownTimer(id)
	}
	return list[0], nil
}

func unknownTimer(id string) *ops.Fault {
	return ops.Faultf(ops.NotFound, "there is no timer %s", shown(id))
}

// insert writes t for the first time.
func (t *timer) insert(tx journal.Tx) error {
	if t.ops == nil {
		t.ops = []ops.OpName{}
	}
	declared, err := json.Marshal(t.ops)
	if err != nil {
		return fmt.Errorf("ops of timer %s: %w", t.id, err)
	}
	_, err = tx.Exec(`INSERT INTO timer (id, name, schedule, zone, agent, prompt, trusted, jitter_ms, until_at, max_runs, overlap, missed, ops, deadline_ms,
			by_id, by_role, source, state, reason, due_at, next_at, occurrences, runs, queued, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, 'active', '', $18, $19, 0, 0, 0, $20)`,
		t.id, t.name, t.schedule, t.zone, string(t.agent), t.prompt, t.trusted, t.jitter.Milliseconds(), milli(t.until), t.maxRuns, t.overlap, t.missed,
		string(declared), t.deadline.Milliseconds(), string(t.by.ID), string(t.by.Role), t.source, milli(t.due), milli(t.next), t.created.UnixMilli())
	return err
}

// keep writes what of t changes.
func (t *timer) keep(tx journal.Tx) error {
	_, err := tx.Exec(`UPDATE timer SET state = $1, reason = $2, due_at = $3, next_at = $4, occurrences = $5, runs = $6, queued = $7, last_at = $8, last_wake = $9, ended_at = $10 WHERE id = $11`,
		t.state, t.reason, milli(t.due), milli(t.next), t.occurrences, t.runs, t.queued, milli(t.lastAt), orNull(t.lastWake), milli(t.endedAt), t.id)
	return err
}

// finish ends t for good.
func (t *timer) finish(tx journal.Tx, why string) error {
	t.state, t.reason, t.endedAt = "ended", why, tx.Now()
	t.due, t.next = time.Time{}, time.Time{}
	if err := t.keep(tx); err != nil {
		return err
	}
	return event(tx, t.id, "timer.ended", map[string]any{"timer": t.id, "reason": why})
}

// read returns the schedule of t.
func (t *timer) read() (schedule, *ops.Fault) {
	zone, fault := readZone(t.zone)
	if fault != nil {
		return schedule{}, fault
	}
	return readSchedule(t.schedule, zone, t.created, LeastOfOperators)
}

// errand is what the nth occurrence wakes the agent for. Each is a cause of its own, with
// no agent between it and a person.
func (t *timer) errand(n int64) threads.Errand {
	source := fmt.Sprintf("timer/%s#%d", t.id, n)
	e := threads.Errand{
		Agent: t.agent, Cause: threads.ByTimer, Source: source, By: t.by, Name: t.name, Text: t.prompt,
		Ops: t.ops, Root: source, Limit: t.deadline,
	}
	if !t.trusted { // neither are its words, nor its name
		e.Name, e.Text, e.Shown = t.id, "", t.prompt
	}
	return e
}

// occurrence is one row of the table.
type occurrence struct {
	n            int64
	due, lastDue time.Time
	times        int64
	next         time.Time
	by           ops.IdentityID
	outcome      string
	at           time.Time
	wake         string
	fault        *ops.Fault
}

const occurrenceColumns = `SELECT n, due_at, last_due, times, next_at, asked_by, outcome, at, wake, fault FROM occurrence`

// scan reads a row of occurrenceColumns.
func (o *occurrence) scan(scan func(...any) error) error {
	var due, last, next, at int64
	var wake, fault *string
	if err := scan(&o.n, &due, &last, &o.times, &next, (*string)(&o.by), &o.outcome, &at, &wake, &fault); err != nil {
		return err
	}
	o.due, o.lastDue, o.next, o.at = fromMilli(&due), fromMilli(&last), fromMilli(&next), fromMilli(&at)
	if wake != nil {
		o.wake = *wake
	}
	if fault != nil {
		if err := json.Unmarshal([]byte(*fault), &o.fault); err != nil {
			return fmt.Errorf("fault of an occurrence: %w", err)
		}
	}
	return nil
}

// event appends to the stream of a timer.
func event(tx journal.Tx, id, kind string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append("timer/"+id, journal.Any, kind, b)
}

// shown quotes an id of the caller's, as long as it may be.
func shown(id string) string {
	if len(id) > 64 {
		id = id[:64]
	}
	return fmt.Sprintf("%q", id)
}

// maybe writes a moment, or nothing for none.
func maybe(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ops.Stamp(t)
}
