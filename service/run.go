package service

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// task is one admitted call on its way through an executor.
type task struct {
	call  ops.Call
	entry *ops.Entry
	began atomic.Bool   // the executor has been entered
	done  chan struct{} // closed when the outcome is written, or given up at shutdown

	ctx    context.Context // ends on cancel and at shutdown
	cancel context.CancelCauseFunc

	// Guarded by the door's mu, from Run on.
	share   *share // what its identity has of the door
	group   *group // what it may run beside
	started bool   // execute has it
	room    bool   // it counts among what runs
	held    bool   // it stands aside, for a hold
}

func newTask(call ops.Call, entry *ops.Entry) *task {
	return &task{call: call, entry: entry, done: make(chan struct{})}
}

// effect says where a call of e may act, in the words of the call table.
func effect(e *ops.Entry) string {
	switch {
	case e == nil || !e.SideEffecting:
		return "none"
	case transactional(e) != nil:
		return "journal"
	}
	return "outside"
}

func transactional(e *ops.Entry) Transactional {
	t, _ := e.Executor.(Transactional)
	return t
}

// errCancelled is the cause of a task's end when a caller asked for it.
var errCancelled = errors.New("cancelled by a caller")

// Run executes what tickets of one Admit ask for, and returns at once. It is called once
// that is committed, for all of them, since it counts what became of them too. Calls stand in
// line in the order of the tickets; neighbours without side effects run side by side,
// and one with side effects runs alone between its neighbours.
func (d *Door) Run(tickets ...Ticket) {
	for _, t := range tickets {
		d.counts.ticket(t)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var tasks []*task
	for _, t := range tickets {
		if t.task == nil || d.closing || d.tasks[t.Call] != nil {
			continue
		}
		t.task.ctx, t.task.cancel = context.WithCancelCause(d.life)
		by := t.task.call.By.ID
		if d.shares[by] == nil {
			d.shares[by] = new(share)
		}
		t.task.share = d.shares[by]
		t.task.share.waiting++
		d.tasks[t.Call] = t.task
		d.work.Add(1)
		tasks = append(tasks, t.task)
	}
	d.open(groups(tasks))
}

// execute takes t through its executor and writes the outcome, true; or does not begin
// it, because a hold is over it, false.
func (d *Door) execute(t *task) bool {
	if t.ctx.Err() != nil {
		d.neverBegan(t)
		return true
	}
	if tx := transactional(t.entry); tx != nil {
		return d.executeTx(t, tx)
	}
	fault, err := d.begin(t)
	switch {
	case errors.Is(err, errHeld):
		return false
	case err != nil && t.ctx.Err() != nil:
		d.neverBegan(t)
		return true
	case err != nil:
		d.log.Error("call not begun: the store does not let it", "call", t.call.ID, "op", t.call.Op, "err", err)
		fault = ops.Faultf(ops.NotStarted, "the store could not be read or written when this call was to begin, so nothing ran")
	}
	if fault != nil {
		d.settle(t, ops.Failure(fault))
		return true
	}
	if d.stale(t) {
		return true
	}
	t.began.Store(true)
	failpoint.Here("door.started")
	outcome := d.outcomeOf(t)
	failpoint.Here("door.executed")
	d.settle(t, outcome)
	return true
}

// neverBegan settles a task that was cancelled before it began. One that waits
// while the gateway stops stays received.
func (d *Door) neverBegan(t *task) {
	if errors.Is(context.Cause(t.ctx), errCancelled) {
		d.settle(t, cancelled(false))
	}
}

// begin decides for the last time whether t may run. For a side-effecting call it
// writes that it runs, before its executor is entered. The error is errHeld, and nothing
// is written, when a hold is over t.
func (d *Door) begin(t *task) (fault *ops.Fault, err error) {
	if !t.entry.SideEffecting {
		err = d.store.View(t.ctx, func(tx journal.Tx) (err error) {
			fault, err = d.barred(tx, t.call)
			return err
		})
		return fault, err
	}
	err = d.store.Update(d.life, func(tx journal.Tx) (err error) {
		if fault, err = d.barred(tx, t.call); err != nil || fault != nil {
			return err
		}
		n, err := tx.Exec(`UPDATE call SET state = 'running', started_at = $1, owner = $2 WHERE id = $3 AND state = 'received'`,
			tx.Now().UnixMilli(), string(d.store.Boot()), string(t.call.ID))
		if err != nil {
			return err
		}
		if n != 1 {
			return fmt.Errorf("call %s is not waiting to begin", t.call.ID)
		}
		return record(tx, t.call, "call.running", nil, "")
	})
	return fault, err
}

// barred is what keeps call from beginning now: the fault of revoked, or errHeld.
func (d *Door) barred(tx journal.Tx, call ops.Call) (*ops.Fault, error) {
	if fault, err := revoked(tx, call); err != nil || fault != nil {
		return fault, err
	}
	held, err := d.stopped(tx, call)
	if err == nil && held {
		err = errHeld
	}
	return nil, err
}

// revoked is the fault of a call whose identity has been revoked since it was
// admitted: what has not begun does not begin, after a restart either. It is nil if
// the call may go on.
func revoked(tx journal.Tx, call ops.Call) (*ops.Fault, error) {
	live, known, err := access.Live(tx, call.By.ID)
	if err != nil || known && live == call.By {
		return nil, err
	}
	return ops.Faultf(ops.NotPermitted, "%s was revoked before this call began; nothing ran", call.By), nil
}

// outcomeOf runs the executor and says what is known of the outcome.
func (d *Door) outcomeOf(t *task) ops.Outcome {
	timeout := t.entry.Timeout
	if timeout == 0 {
		timeout = ops.DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	outcome, err := guarded(func() (ops.Outcome, error) { return t.entry.Executor.Execute(ctx, t.call) })
	if err == nil && !wellFormed(outcome) {
		err = fmt.Errorf("op %s returned an outcome in state %q that says nothing", t.call.Op, outcome.State)
	}
	if err == nil {
		return outcome
	}
	if t.entry.SideEffecting {
		d.log.Warn("outcome of a call unknown", "call", t.call.ID, "op", t.call.Op, "err", err)
		return ops.Outcome{State: ops.Unknown, Fault: unknownFault()}
	}
	switch {
	case errors.Is(context.Cause(t.ctx), errCancelled):
		return cancelled(true)
	case t.ctx.Err() != nil:
		return ops.Failure(ops.Faultf(ops.NotStarted, "the gateway stopped before this finished; it has no side effects, so order it again"))
	case ctx.Err() != nil:
		return ops.Failure(ops.Faultf(ops.TimedOut, "stopped after %s", timeout))
	}
	d.log.Error("op broke", "call", t.call.ID, "op", t.call.Op, "err", err)
	return ops.Failure(ops.Faultf(ops.Internal, "the op broke; the gateway's log has the particulars"))
}

// guarded turns a panic of an executor into an error: one op must not end the
// gateway, and what it did before is not known.
func guarded(f func() (ops.Outcome, error)) (o ops.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// executeTx runs an op whose effect is in the journal. An op that breaks leaves
// nothing behind, so its call has certainly failed. It is false when a hold is over t.
func (d *Door) executeTx(t *task, e Transactional) bool {
	return d.write(t, func(tx journal.Tx) (ops.Outcome, error) {
		if fault, err := d.barred(tx, t.call); err != nil || fault != nil {
			return ops.Failure(fault), err
		}
		outcome, err := guarded(func() (ops.Outcome, error) { return e.ExecuteTx(tx, t.call) })
		if err == nil && !wellFormed(outcome) {
			err = fmt.Errorf("outcome in state %q says nothing", outcome.State)
		}
		if err != nil && !ofStore(err) {
			return ops.Outcome{}, &opError{err}
		}
		return outcome, err
	})
}

// opError is the error of an op in a transaction, as opposed to the store's.
type opError struct{ error }

func (e *opError) Unwrap() error { return e.error }

// outcome is what an op that broke in a transaction comes to.
func (e *opError) outcome() ops.Outcome {
	var fault *ops.Fault
	if errors.As(e.error, &fault) {
		return ops.Failure(fault)
	}
	return ops.Failure(ops.Faultf(ops.Internal, "the op broke and left nothing behind; the gateway's log has the particulars"))
}

// ofStore reports whether err is the store's, so that trying again may help.
func ofStore(err error) bool {
	return errors.Is(err, journal.ErrFull) || errors.Is(err, journal.ErrClosed) || errors.Is(err, journal.ErrUnknownCommit) ||
		errors.Is(err, journal.ErrBusy) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func wellFormed(o ops.Outcome) bool {
	switch o.State {
	case ops.Succeeded:
		return o.Result != nil && len(o.Result.Value) > 0 && o.Fault == nil
	case ops.Failed, ops.Cancelled, ops.Unknown:
		return o.Fault != nil
	case ops.Accepted:
		return o.Fault == nil
	}
	return false
}

func cancelled(started bool) ops.Outcome {
	message := "cancelled before it began; nothing ran"
	if started {
		message = "cancelled while it ran"
	}
	return ops.Outcome{State: ops.Cancelled, Fault: ops.Faultf(ops.CallCancelled, "%s", message).With("started", started)}
}

func unknownFault() *ops.Fault {
	return ops.Faultf(ops.OutcomeUnknown, "this call was interrupted and may have acted, wholly or in part; it is not run again by itself")
}

// settle writes an outcome that is known.
func (d *Door) settle(t *task, outcome ops.Outcome) {
	d.write(t, func(journal.Tx) (ops.Outcome, error) { return outcome, nil })
}

// Bounds of the waits between attempts to write an outcome.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// write commits what outcome returns. While the store cannot write (a full disk) it
// tries again until the gateway stops; the call then stays as it is on record, and
// the next start says what is known of it. It is false when outcome says errHeld, and
// true when there is nothing more to be done about t.
func (d *Door) write(t *task, outcome func(journal.Tx) (ops.Outcome, error)) bool {
	var came ops.Outcome
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		// The outcome is written also while the gateway stops: hence no d.life.
		err := d.store.Update(context.Background(), func(tx journal.Tx) error {
			o, err := outcome(tx)
			if err != nil {
				return err
			}
			came = o
			return d.settleTx(tx, t.call, o)
		})
		if err == nil {
			if looped(came) {
				d.counts.add("refused", label(ruleLoop))
			}
			failpoint.Here("door.settled")
			return true
		}
		var broke *opError
		switch {
		case errors.Is(err, errHeld):
			return false
		case errors.Is(err, errNotOpen), errors.Is(err, errNotPending):
			d.log.Warn("outcome not written: the call is settled already", "call", t.call.ID, "op", t.call.Op)
			return true
		case errors.As(err, &broke):
			if f := (*ops.Fault)(nil); !errors.As(broke.error, &f) { // a fault is an answer
				d.log.Error("op broke", "call", t.call.ID, "op", t.call.Op, "err", err)
			}
			outcome = func(journal.Tx) (ops.Outcome, error) { return broke.outcome(), nil }
			continue
		}
		d.log.Error("outcome not written yet", "call", t.call.ID, "op", t.call.Op, "err", err)
		if errors.Is(err, journal.ErrClosed) {
			d.deafen()
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-d.life.Done():
			timer.Stop()
			return true
		}
	}
}

// progress says of a call that is on record as received whether it has begun, and whether
// a hold keeps it from that.
func (d *Door) progress(id ops.CallID) (began, held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tasks[id]
	return t != nil && t.began.Load(), t != nil && t.held
}

// task returns the task of a call that has been handed to Run and is not finished, nil
// if there is none.
func (d *Door) task(id ops.CallID) *task {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tasks[id]
}
