package timers

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/threads"
)

// What became of an occurrence, in the words of the table.
const (
	woken   = "woken"
	missed  = "missed"
	skipped = "skipped"
	queued  = "queued"
	refused = "refused"
)

// plan is what is to be done about a timer that is due. It is made from a snapshot and
// holds only while the timer's next time is still the one that it was made for.
type plan struct {
	timer timer
	let   *span      // occurrences that the policy for missed ones lets go
	runs  []run      // those that run, first come first
	due   time.Time  // the occurrence after them, zero if there is none
	next  time.Time  // and its jitter
	fault *ops.Fault // why none can run
}

// span is several occurrences, one after the other.
type span struct {
	first, last time.Time
	times       int64
}

// run is one occurrence: when it is due, and its jitter on top.
type run struct{ due, at time.Time }

// planned says what is to be done about t, which is due at now.
func (t timer) planned(now time.Time) plan {
	s, fault := t.read()
	if fault != nil { // its zone is known no longer
		return plan{timer: t, runs: []run{{t.due, t.next}}, fault: fault}
	}
	end := now
	if !t.until.IsZero() && t.until.Before(end) {
		end = t.until
	}
	before, dues := s.upTo(t.due, end)
	var list []run
	for _, due := range dues {
		list = append(list, run{due, t.jittered(s, due)})
	}
	p := plan{timer: t}
	last := list[len(list)-1]
	if len(list) > 1 && last.at.After(now) {
		p.due, p.next = last.due, last.at
		list = list[:len(list)-1]
	} else {
		p.due, p.next = t.after(s, last.due)
	}
	late := 0
	for late < len(list) && list[late].at.Add(Grace).Before(now) {
		late++
	}
	drop := 0 // from the front of the list
	switch {
	case !t.until.IsZero() && t.until.Add(Grace).Before(now):
		drop = len(list)
	case t.missed == "skip":
		drop = late
	case t.missed == "once" && late > 0:
		drop = len(list) - 1
	}
	if times := before + int64(drop); times > 0 {
		p.let = &span{first: t.due, times: times}
		if drop > 0 {
			p.let.last = list[drop-1].due
		} else {
			_, dues := s.upTo(t.due, list[0].due.Add(-time.Millisecond))
			p.let.last = dues[len(dues)-1]
		}
	}
	p.runs = list[drop:]
	return p
}

// after returns the occurrence after due, zero times if there is none before the timer
// ends.
func (t timer) after(s schedule, due time.Time) (next, at time.Time) {
	next = s.next(due)
	if next.IsZero() || !t.until.IsZero() && next.After(t.until) {
		return time.Time{}, time.Time{}
	}
	return next, t.jittered(s, next)
}

// jittered is when the occurrence that is due at due runs. The jitter is drawn by the
// timer's id and the time, so it is the same whoever asks; it reaches neither beyond the
// next occurrence nor beyond the timer's end.
func (t timer) jittered(s schedule, due time.Time) time.Time {
	most := t.jitter
	if most == 0 {
		return due
	}
	if next := s.next(due); !next.IsZero() {
		most = min(most, next.Sub(due)-time.Millisecond)
	}
	if !t.until.IsZero() {
		most = min(most, t.until.Sub(due))
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(t.id), uint64(due.UnixMilli())))
	n := binary.BigEndian.Uint64(sum[:]) % uint64(most.Milliseconds()+1)
	return due.Add(time.Duration(n) * time.Millisecond)
}

// pass does what is due by now, up to a batch, and returns when there is more to do: the
// zero time if nothing is known of. Wakes are looked at when the first deadline has
// passed, or if overdue says so.
func (t *Timers) pass(overdue bool) (next time.Time, err error) {
	var (
		now, first, deadline time.Time
		plans                []plan
		drained              []string
	)
	err = t.store.View(t.life, func(tx journal.Tx) error {
		now, plans = tx.Now(), nil
		due, err := timersOf(tx, `state = 'active' AND next_at <= $1 ORDER BY next_at, id LIMIT $2`, now.UnixMilli(), int64(batch))
		if err != nil {
			return err
		}
		for _, tm := range due {
			plans = append(plans, tm.planned(now))
		}
		if drained, err = readyQueues(tx); err != nil {
			return err
		}
		var at, ends *int64
		err = tx.Query(`SELECT (SELECT min(next_at) FROM timer WHERE state = 'active' AND next_at > $1), (SELECT min(deadline_at) FROM wake WHERE state = 'open')`,
			func(scan func(...any) error) error { return scan(&at, &ends) }, now.UnixMilli())
		first, deadline = fromMilli(at), fromMilli(ends)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	if err := t.fireAll(plans); err != nil {
		return time.Time{}, err
	}
	for _, id := range drained {
		if err := t.drain(id); err != nil {
			return time.Time{}, err
		}
	}
	if overdue || !deadline.IsZero() && !deadline.After(now) {
		err := t.store.Update(t.life, func(tx journal.Tx) (err error) {
			deadline, err = t.wakes.EndOverdue(tx, batch)
			return err
		})
		if err != nil {
			return time.Time{}, fmt.Errorf("end overdue wakes: %w", err)
		}
	}
	if len(plans) == batch || len(drained) == batch {
		return now, nil
	}
	next = earlier(first, deadline)
	for _, p := range plans {
		next = earlier(next, p.next)
	}
	return next, nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// fireAll carries plans out in one transaction, or, when one of them breaks it, each in
// one of its own.
func (t *Timers) fireAll(plans []plan) error {
	if len(plans) == 0 {
		return nil
	}
	err := t.fire(plans...)
	if err == nil || ofStore(err) {
		return err
	}
	for _, p := range plans {
		err := t.fire(p)
		if err == nil {
			continue
		}
		if ofStore(err) {
			return err
		}
		t.log.Error("an occurrence of a timer broke", "timer", p.timer.id, "err", err)
		p.fault = ops.Faultf(ops.Internal, "the wake could not be written; the gateway's log has the particulars")
		if err := t.fire(p); err != nil {
			return err
		}
	}
	return nil
}

// ofStore reports whether err is about the store, so that another timer would meet it too.
func ofStore(err error) bool {
	for _, e := range []error{journal.ErrFull, journal.ErrClosed, journal.ErrUnknownCommit, journal.ErrCorrupt, journal.ErrScarce, journal.ErrBusy, journal.ErrTooLong, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// fire carries plans out, all of them or, after an error, none.
func (t *Timers) fire(plans ...plan) error {
	var told tally
	err := t.store.Update(t.life, func(tx journal.Tx) error {
		told = tally{}
		for _, p := range plans {
			if err := t.fireTx(tx, p, &told); err != nil {
				return fmt.Errorf("timer %s: %w", p.timer.id, err)
			}
		}
		return nil
	})
	if err == nil {
		t.counts.add(told)
	}
	return err
}

// fireTx carries p out, unless somebody has taken its occurrences before.
func (t *Timers) fireTx(tx journal.Tx, p plan, told *tally) error {
	n, err := tx.Exec(`UPDATE timer SET due_at = $1, next_at = $2 WHERE id = $3 AND next_at = $4 AND state = 'active'`,
		milli(p.due), milli(p.next), p.timer.id, p.timer.next.UnixMilli())
	if err != nil || n == 0 {
		return err
	}
	f, err := t.firing(tx, p.timer.id, told)
	if err != nil {
		return err
	}
	f.broken = p.fault
	if p.let != nil {
		if err := f.record(occurrence{due: p.let.first, lastDue: p.let.last, next: p.let.first, times: p.let.times, outcome: missed}); err != nil {
			return err
		}
	}
	for _, r := range p.runs {
		if f.spent() || f.ended != "" {
			break
		}
		if err := f.occur(r, ""); err != nil {
			return err
		}
	}
	if p.fault != nil && p.fault.Code != ops.Internal {
		f.end("its schedule cannot be read any more")
	}
	return f.done()
}

// firing is a timer in the transaction in which something of it occurs.
type firing struct {
	*Timers
	tx     journal.Tx
	tm     timer
	told   *tally
	broken *ops.Fault // why its agent cannot be woken
	ended  string     // why it has ended
}

func (t *Timers) firing(tx journal.Tx, id string, told *tally) (*firing, error) {
	tm, err := loadTimer(tx, id)
	return &firing{Timers: t, tx: tx, tm: tm, told: told}, err
}

// spent reports whether the timer may not run more often.
func (f *firing) spent() bool { return f.tm.maxRuns > 0 && f.tm.runs+f.tm.queued >= f.tm.maxRuns }

// end says why the timer ends.
func (f *firing) end(why string) {
	if f.ended == "" {
		f.ended = why
	}
}

// occur deals with one occurrence. by is who had it run now, "" for the schedule.
func (f *firing) occur(r run, by ops.IdentityID) error {
	o := occurrence{due: r.due, lastDue: r.due, next: r.at, times: 1, by: by}
	open, held, err := f.open()
	if err != nil {
		return err
	}
	switch waits := open || f.tm.queued > 0; {
	case waits && f.tm.overlap == "queue" && f.tm.queued < MaxQueue:
		o.outcome = queued
		f.tm.queued++
	case waits && f.tm.overlap != "allow", held: // a start must not let go of a flood
		o.outcome = skipped
	default:
		if err := f.wake(&o, f.tm.occurrences+1); err != nil {
			return err
		}
	}
	return f.record(o)
}

// open reports whether the wake of the last occurrence that woke the agent is still open,
// and whether that is because it is held: operators have stopped what it is about.
func (f *firing) open() (open, held bool, err error) {
	if f.tm.lastWake == "" {
		return false, false, nil
	}
	err = f.tx.Query(`SELECT state FROM wake WHERE id = $1`, func(scan func(...any) error) error {
		var state string
		err := scan(&state)
		open, held = state != "ended", state == "held"
		return err
	}, f.tm.lastWake)
	return open, held, err
}

// wake wakes the agent for o, the timer's nth occurrence, and writes into o what came of
// it.
func (f *firing) wake(o *occurrence, n int64) error {
	err := error(f.broken)
	var w threads.Wake
	if f.broken == nil {
		w, err = f.wakes.Raise(f.tx, f.tm.errand(n))
	}
	var fault *ops.Fault
	switch {
	case err == nil:
		o.outcome, o.wake = woken, string(w.ID)
		f.tm.runs++
		f.tm.lastAt, f.tm.lastWake = f.tx.Now(), o.wake
		if o.by == "" {
			f.told.late = append(f.told.late, f.tx.Now().Sub(o.next))
		}
	case errors.As(err, &fault):
		o.outcome, o.fault = refused, fault
		if who, known, err := access.Live(f.tx, f.tm.agent); err != nil {
			return err
		} else if !known || who.Role != ops.Agent {
			f.end("its agent is gone")
		}
	default:
		return err
	}
	return nil
}

// record writes o as the timer's next occurrence.
func (f *firing) record(o occurrence) error {
	f.tm.occurrences++
	o.n = f.tm.occurrences
	fault, err := faultColumn(o.fault)
	if err != nil {
		return err
	}
	if _, err := f.tx.Exec(`INSERT INTO occurrence (timer, n, due_at, last_due, times, next_at, asked_by, outcome, at, wake, fault) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		f.tm.id, o.n, o.due.UnixMilli(), o.lastDue.UnixMilli(), o.times, o.next.UnixMilli(), string(o.by), o.outcome, f.tx.Now().UnixMilli(), orNull(o.wake), fault); err != nil {
		return err
	}
	return f.tell(o)
}

// tell appends the event of o, and counts it.
func (f *firing) tell(o occurrence) error {
	f.told.add(o.outcome, o.times)
	kind := "timer.passed"
	if o.outcome == woken {
		kind = "timer.fired"
	}
	return event(f.tx, f.tm.id, kind, struct {
		Timer   string         `json:"timer"`
		N       int64          `json:"n"`
		Due     string         `json:"due_at"`
		Times   int64          `json:"times"`
		Outcome string         `json:"outcome"`
		By      ops.IdentityID `json:"asked_by,omitempty"`
		Wake    string         `json:"wake,omitempty"`
		Fault   *ops.Fault     `json:"fault,omitempty"`
	}{f.tm.id, o.n, ops.Stamp(o.due), o.times, o.outcome, o.by, o.wake, o.fault})
}

// done writes what the timer has come to, and ends it if it has nothing to do any more.
func (f *firing) done() error {
	if f.spent() {
		f.tm.due, f.tm.next = time.Time{}, time.Time{}
	}
	switch {
	case f.ended != "" || f.tm.queued > 0:
	case f.spent():
		f.end("it has run as often as it was to")
	case f.tm.state != "active" || !f.tm.due.IsZero():
	case !f.tm.until.IsZero():
		f.end("its time is over")
	default:
		f.end("it is not due any more")
	}
	if f.ended != "" {
		if err := f.dropQueue(skipped); err != nil {
			return err
		}
		return f.tm.finish(f.tx, f.ended)
	}
	return f.tm.keep(f.tx)
}

// dropQueue lets go what waits.
func (f *firing) dropQueue(outcome string) error {
	if f.tm.queued == 0 {
		return nil
	}
	f.told.add(outcome, f.tm.queued)
	f.tm.queued = 0
	_, err := f.tx.Exec(`UPDATE occurrence SET outcome = $1, at = $2 WHERE timer = $3 AND outcome = 'queued'`, outcome, f.tx.Now().UnixMilli(), f.tm.id)
	return err
}

// readyQueues returns timers of which an occurrence waits for a wake that has ended.
func readyQueues(tx journal.Tx) (ids []string, err error) {
	err = tx.Query(`SELECT id FROM timer WHERE queued > 0 AND state = 'active'
			AND NOT EXISTS (SELECT 1 FROM wake WHERE wake.id = timer.last_wake AND wake.state <> 'ended') ORDER BY id LIMIT $1`,
		func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			ids = append(ids, id)
			return err
		}, int64(batch))
	return ids, err
}

// drain runs the first occurrence that waits in timer id, if nothing keeps it any more.
func (t *Timers) drain(id string) error {
	var told tally
	err := t.store.Update(t.life, func(tx journal.Tx) error {
		told = tally{}
		f, err := t.firing(tx, id, &told)
		if err != nil {
			return err
		}
		open, _, err := f.open()
		if err != nil || open || f.tm.queued == 0 || f.tm.state != "active" {
			return err // somebody else was here
		}
		if !f.tm.until.IsZero() && f.tm.until.Add(Grace).Before(tx.Now()) {
			if err := f.dropQueue(missed); err != nil {
				return err
			}
			return f.done()
		}
		var o occurrence
		if err := tx.Query(occurrenceColumns+` WHERE timer = $1 AND outcome = 'queued' ORDER BY n LIMIT 1`, o.scan, id); err != nil {
			return err
		}
		f.tm.queued--
		waited := len(told.late)
		if err := f.wake(&o, o.n); err != nil {
			return err
		}
		told.late = told.late[:waited] // it was not late: it had to wait
		fault, err := faultColumn(o.fault)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(`UPDATE occurrence SET outcome = $1, at = $2, wake = $3, fault = $4 WHERE timer = $5 AND n = $6`,
			o.outcome, tx.Now().UnixMilli(), orNull(o.wake), fault, id, o.n); err != nil {
			return err
		}
		if err := f.tell(o); err != nil {
			return err
		}
		return f.done()
	})
	if err == nil {
		t.counts.add(told)
	}
	return err
}

func faultColumn(f *ops.Fault) (any, error) {
	if f == nil {
		return nil, nil
	}
	b, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("fault of an occurrence: %w", err)
	}
	return string(b), nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
