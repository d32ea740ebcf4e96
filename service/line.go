package service

import (
	"slices"

	"inband/ops"
)

// A task that may run, but for want of room, stands in the door's line. There are three
// bounds: on all executions (Config.MaxRunning), on those of one identity
// (Config.ShareRunning; operators have none), and on those of one op
// (ops.Op.Concurrency). A task takes its room in all three at once, so that none is held
// idle while another is waited for, and first come is first served among those that
// there is room for: a call of an op that is busy holds up no call of another op.
//
// No task waits for ever while others pass it. Of its identity's room the last is kept
// for a task further ahead; what becomes free in its op goes to the first of that op.
//
// A task that a hold is over (see Door.Hold) stands aside until it is released. It keeps
// its place among those that wait, for the bounds, and takes nobody's turn.

// share is what one identity has of the door while it has calls in it.
type share struct {
	waiting int // tasks that are not finished, those that run included
	running int
}

// group are tasks of one Run that may run beside each other: neighbours without side
// effects, or one that has some. They come to the line when all before them of the same
// Run are finished.
type group struct {
	tasks []*task
	left  int  // of tasks, not finished
	open  bool // its tasks have come to the line
	// forgone says that the gateway stops and a task of it, or before it, was held.
	forgone bool
	next    *group
}

// groups parts tasks, which keep their order.
func groups(tasks []*task) (first *group) {
	var last *group
	for i, t := range tasks {
		if i == 0 || t.entry.SideEffecting || tasks[i-1].entry.SideEffecting {
			g := new(group)
			if last == nil {
				first = g
			} else {
				last.next = g
			}
			last = g
		}
		t.group = last
		last.tasks = append(last.tasks, t)
		last.left++
	}
	return first
}

// open brings the tasks of g to the line, and those of the groups behind it as long as
// nothing of a group is left. The caller holds mu.
func (d *Door) open(g *group) {
	for ; g != nil; g = g.next {
		g.open = true
		for _, t := range g.tasks {
			if !t.started { // those that were cancelled before have been
				d.enqueue(t)
			}
		}
		if g.left > 0 {
			break
		}
	}
	d.dispatch()
}

// enqueue has t wait for room, or for the hold over it to be released. The caller holds
// mu, and dispatches.
func (d *Door) enqueue(t *task) {
	t.held = d.holdsOver(t.call)
	switch {
	case d.closing && (t.held || t.group.forgone):
		d.forgo(t)
	case t.held:
		d.onHold = append(d.onHold, t)
	default:
		d.line = append(d.line, t)
	}
}

// dispatch starts the tasks in the line that there is room for. The caller holds mu.
func (d *Door) dispatch() {
	if d.running == d.maxRunning {
		return
	}
	passed := make(map[*share]bool)
	kept := d.line[:0]
	for i, t := range d.line {
		if d.running == d.maxRunning {
			kept = append(kept, d.line[i:]...)
			break
		}
		if !d.fits(t, passed[t.share]) {
			passed[t.share] = true
			kept = append(kept, t)
			continue
		}
		d.running++
		d.inOp[t.call.Op]++
		t.share.running++
		t.room = true
		d.start(t)
	}
	clear(d.line[len(kept):])
	d.line = kept
}

// fits reports whether its op and its identity have room for t. When the identity has
// a task further ahead, the last of its room is that one's.
func (d *Door) fits(t *task, behind bool) bool {
	if most := t.entry.Concurrency; most > 0 && d.inOp[t.call.Op] >= most {
		return false
	}
	if t.call.By.Role == ops.Operator {
		return true
	}
	free := d.shareRunning - t.share.running
	if behind {
		free--
	}
	return free > 0
}

// start has t executed, which says what becomes of it. The caller holds mu.
func (d *Door) start(t *task) {
	t.started, t.held = true, false
	go func() {
		defer d.work.Done()
		if d.execute(t) {
			d.finish(t)
			return
		}
		d.work.Add(1) // for its next turn
		d.putBack(t)
	}()
}

// callOff ends t because a caller asked for it. When it has not begun it settles now,
// whatever it waits for.
func (d *Door) callOff(t *task) {
	t.cancel(errCancelled)
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.started {
		return
	}
	if i := slices.Index(d.line, t); i >= 0 {
		d.line = slices.Delete(d.line, i, i+1)
	}
	if i := slices.Index(d.onHold, t); i >= 0 {
		d.onHold = slices.Delete(d.onHold, i, i+1)
	}
	d.start(t)
}

// fullLine is BUSY for an order that would be one call too many of those that are not
// finished.
func fullLine(whose string, waiting, most int) *ops.Fault {
	return ops.Faultf(ops.Busy, "%d calls%s run or wait already, of at most %d; nothing was taken, try again when some are done, or cancel some", waiting, whose, most).
		With("waiting", waiting).With("max", most)
}

// finish takes t off the books and gives its room to others.
func (d *Door) finish(t *task) {
	t.cancel(nil)
	d.mu.Lock()
	delete(d.tasks, t.call.ID)
	d.giveRoom(t)
	if t.share.waiting--; t.share.waiting == 0 {
		delete(d.shares, t.call.By.ID)
	}
	if next := t.group.next; next != nil && t.group.forgone {
		next.forgone = true
	}
	if t.group.left--; t.group.left == 0 && t.group.open {
		d.open(t.group.next)
	} else {
		d.dispatch()
	}
	d.mu.Unlock()
	close(t.done)
}

// giveRoom gives back the room that t has, if it has any. The caller holds mu.
func (d *Door) giveRoom(t *task) {
	if !t.room {
		return
	}
	t.room = false
	d.running--
	t.share.running--
	if d.inOp[t.call.Op]--; d.inOp[t.call.Op] == 0 {
		delete(d.inOp, t.call.Op)
	}
}
