package proc

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// launch is a private folder and a thread from which one process can be started there:
// fenced and confined, which it stays, so it ends with the run. It ends by end.
type launch struct {
	folder string
	own    bool // the folder is private
	fenced bool
	job    chan func() // for the thread; closed when it has none to do
	once   sync.Once   // for job to be closed
	thread chan struct{}
}

// newLaunch makes a launch for spec.
func newLaunch(spec *Spec) (*launch, error) {
	l := &launch{folder: spec.Folder, job: make(chan func()), thread: make(chan struct{})}
	if l.folder == "" {
		if err := l.makeFolder(spec); err != nil {
			return nil, err
		}
	}
	ready := make(chan error)
	go onOwnThread(func() {
		defer close(l.thread)
		err := l.prepare(spec)
		ready <- err
		if err != nil {
			return
		}
		if f := <-l.job; f != nil {
			f()
		}
	})
	if err := <-ready; err != nil {
		return nil, errors.Join(err, l.removeFolder())
	}
	return l, nil
}

// makeFolder makes the private folder.
func (l *launch) makeFolder(spec *Spec) (err error) {
	if l.folder, err = os.MkdirTemp(scratch(*spec), privateMark()); err != nil {
		return fmt.Errorf("private folder: %w", err)
	}
	l.own = true
	if o := spec.Owner; o != nil {
		if err := os.Chown(l.folder, int(o.UID), int(o.GID)); err != nil {
			return errors.Join(fmt.Errorf("private folder: %w", err), l.removeFolder())
		}
	}
	return nil
}

// removeFolder removes the folder if it is private.
func (l *launch) removeFolder() error {
	if !l.own {
		return nil
	}
	return removeFolder(l.folder)
}

// prepare makes the calling thread what spec wants.
func (l *launch) prepare(spec *Spec) error {
	if err := prepareThread(); err != nil {
		return err
	}
	if l.fenced = fenceable && !noFence; l.fenced {
		if err := fence(); err != nil {
			return err
		}
	}
	if spec.Confine != nil {
		if err := spec.Confine(l.folder); err != nil {
			return fmt.Errorf("confine: %w", err)
		}
	}
	return nil
}

// do calls f on the thread, which ends then.
func (l *launch) do(f func()) {
	l.job <- f
	<-l.thread
}

// end ends the thread, if nothing was done with it, and removes the folder.
func (l *launch) end() error {
	l.once.Do(func() { close(l.job) })
	<-l.thread
	return l.removeFolder()
}

// Bounds on what is made ahead.
const (
	// aheadTime is how long a launch is kept, and how soon after another a run must be
	// for the next launch to be made ahead.
	aheadTime = 2 * time.Second
	// maxAhead bounds the launches that are kept at one time.
	maxAhead = 32
)

// ahead is a launch that is made ahead of its run.
type ahead struct {
	stamp string
	made  chan struct{} // closed when the next two are set
	l     *launch
	err   error
}

var (
	aheadsMu sync.Mutex
	aheads   = map[*ahead]struct{}{} // all that nobody has taken
)

// take returns a launch for spec: the one that was made ahead, if it is of use, else a
// new one. It has the next one made where runs follow each other.
func (a *Ahead) take(spec *Spec) (*launch, error) {
	if a == nil {
		return newLaunch(spec)
	}
	stamp := a.Stamp()
	aheadsMu.Lock()
	next := a.next
	if _, kept := aheads[next]; !kept {
		next = nil // discarded
	}
	a.next = nil
	delete(aheads, next)
	hot := time.Since(a.last) < aheadTime
	a.last = time.Now()
	if hot && len(aheads) < maxAhead {
		a.next = &ahead{stamp: stamp, made: make(chan struct{})}
		aheads[a.next] = struct{}{}
		// Only what a launch is made of: the rest, secrets perhaps, is this run's.
		go a.make(a.next, Spec{Confine: spec.Confine, Owner: spec.Owner, Scratch: spec.Scratch})
	}
	aheadsMu.Unlock()
	if next == nil {
		return newLaunch(spec)
	}
	<-next.made
	switch {
	case next.err != nil:
		return newLaunch(spec) // which finds out for itself
	case next.stamp != stamp:
		if err := next.l.end(); err != nil {
			return nil, err
		}
		return newLaunch(spec)
	}
	return next.l, nil
}

// make makes n, and ends it when nobody has taken it in time.
func (a *Ahead) make(n *ahead, spec Spec) {
	n.l, n.err = newLaunch(&spec)
	close(n.made)
	time.AfterFunc(aheadTime, func() { a.drop(n) })
}

// drop ends n, unless somebody has taken it.
func (a *Ahead) drop(n *ahead) {
	aheadsMu.Lock()
	_, kept := aheads[n]
	delete(aheads, n)
	if a.next == n {
		a.next = nil
	}
	aheadsMu.Unlock()
	if kept && n.err == nil {
		_ = n.l.end() // what stays is for the next gateway on this state folder
	}
}

// discard ends all launches that were made ahead.
func discard() {
	aheadsMu.Lock()
	all := aheads
	aheads = map[*ahead]struct{}{}
	aheadsMu.Unlock()
	for n := range all {
		if <-n.made; n.err == nil {
			_ = n.l.end()
		}
	}
}
