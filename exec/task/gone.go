package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"inband/exec/proc"
)

// Gone is what is known of what a run has left.
type Gone struct {
	Ended []string       // the names of what was ended now, at most 8
	Alive []proc.Process // what SIGKILL did not end in time
	// Proof says, in words, how it is known that nothing is alive; "" if something is.
	Proof string

	looks int // how often in a row nothing was found
}

// giveUp is how long Gone tries.
const giveUp = 10 * time.Second

// maxEnded bounds Gone.Ended.
const maxEnded = 8

// Gone ends what is left of the run of a folder: of one that an earlier life of the worker
// had under way, or that Run could not end. It removes the run's secrets. An error says
// that it cannot be told whether anything is alive, and why.
func (r *Runner) Gone(ctx context.Context, folder string) (Gone, error) {
	if err := r.enter(folder); err != nil {
		return Gone{}, err
	}
	defer r.leave(folder)
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Gone{}, fmt.Errorf("what is left of a run: %w", err)
	}
	defer root.Close()
	rec, err := readRecord(root)
	if err != nil {
		return Gone{}, err
	}
	g, err := r.gone(ctx, folder, rec)
	if err == nil && len(g.Alive) == 0 {
		err = dropSecrets(folder)
	}
	return g, err
}

func (r *Runner) gone(ctx context.Context, folder string, rec *record) (Gone, error) {
	if rec.Process.PID == 0 {
		return Gone{Proof: "the command never began", looks: 2}, nil
	}
	self, err := proc.Identify(os.Getpid())
	if err != nil {
		return Gone{}, err
	}
	if boot(rec.Process) != boot(self) {
		return Gone{Proof: "the machine has been started since", looks: 2}, nil
	}
	if pids, err := os.Readlink("/proc/self/ns/pid"); err != nil || pids != rec.PIDs {
		return Gone{}, fmt.Errorf("the run began in another namespace of processes (%s) than this one (%s): what lives there cannot be seen", rec.PIDs, pids)
	}
	proof := func(p pass) string {
		e := r.config.Enclosure
		switch {
		case rec.Over && !rec.Process.Lives():
			return "its tree was ended, and looked for twice"
		case rec.Namespaces && !rec.Process.Lives():
			return "its namespaces are gone"
		case rec.Filtered && rec.Worker != self && e != nil && // without a sandbox it may have gone elsewhere
			e.Cgroup != "" && e.Cgroup == rec.Cgroup && e.Survivors == 0:
			return "all that was in the worker's cgroup has been ended"
		case p.whole && len(p.suspects) == 0:
			return "no process of this machine can be of it"
		}
		return ""
	}
	return r.clear(ctx, folder, rec, self, proof)
}

// again is what is known of a run that package proc has just ended.
func (r *Runner) again(folder string, rec *record) Gone {
	self, err := proc.Identify(os.Getpid())
	if err != nil {
		return Gone{}
	}
	g, err := r.clear(context.Background(), folder, rec, self, func(p pass) string {
		if p.err != nil || rec.Process.Lives() {
			return ""
		}
		return "its tree was ended"
	})
	if err != nil {
		r.config.Slog.Warn("what a run has left", "folder", folder, "err", err)
	}
	return g
}

// clear ends what it finds of a run until it finds nothing twice in a row and proof says
// how it is known that there is no more.
func (r *Runner) clear(ctx context.Context, folder string, rec *record, self proc.Process, proof func(pass) string) (g Gone, err error) {
	deadline := time.Now().Add(giveUp)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		p := r.pass(folder, rec, self)
		for _, s := range p.found {
			if end(s.Process) && len(g.Ended) < maxEnded {
				g.Ended = append(g.Ended, s.name)
			}
		}
		why := ""
		if len(p.found) == 0 {
			why = proof(p)
		}
		if g.looks++; why == "" {
			g.looks = 0
		}
		if g.looks == 2 {
			g.Proof = why
			return g, nil
		}
		switch stopped := context.Cause(ctx); {
		case stopped == nil && time.Now().Before(deadline):
		case len(p.found) > 0:
			for _, s := range p.found {
				g.Alive = append(g.Alive, s.Process)
			}
			return g, nil
		default:
			return g, errors.Join(stopped, fmt.Errorf("whether anything of the run lives cannot be told: %s", p.doubt()))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// seen is a process as it can be seen from outside.
type seen struct {
	proc.Process
	name     string
	parent   int
	uid      int
	bound    bool // no_new_privs
	filtered bool
	marked   bool   // it uses the run's folder, or began with its environment
	other    string // the folder of another run that it uses likewise, "" for none
}

// pass is one look at all processes.
type pass struct {
	found    []seen // what is the run's
	suspects []seen // what may be
	whole    bool   // nobody was born meanwhile, and all could be seen
	err      error  // why not all could be seen
}

// doubt says what keeps a pass from being a proof.
func (p pass) doubt() string {
	switch {
	case p.err != nil:
		return p.err.Error()
	case len(p.suspects) > 0:
		return fmt.Sprintf("process %d (%s) could be its, and %d more", p.suspects[0].PID, p.suspects[0].name, len(p.suspects)-1)
	}
	return "processes are born all the time"
}

// judge tells which of all processes are the run's and which may be. self is this process.
// If the run was started by an earlier one, what this one has started is not the run's.
func judge(all []seen, rec *record, self proc.Process) (found, suspects []seen) {
	byPID := make(map[int]seen, len(all))
	for _, s := range all {
		byPID[s.PID] = s
	}
	// could says that nothing speaks against s: what a run starts cannot lose its user,
	// unless it is root without a sandbox, its no_new_privs and its filter, nor be older
	// than the run.
	could := func(s seen) bool {
		if s.Process == rec.Process || s.Process == self {
			return s.Process == rec.Process
		}
		same := s.uid == rec.UID || rec.UID == 0 && !rec.Filtered
		return same && s.bound && (s.filtered || !rec.Filtered) && ticks(s.Process) >= ticks(rec.Process)
	}
	below := func(s seen, is func(seen) bool) bool {
		for range len(all) { // a snapshot may show a ring
			if is(s) {
				return true
			}
			parent, ok := byPID[s.parent]
			if !ok {
				return false
			}
			s = parent
		}
		return false
	}
	mine := func(s seen) bool { return s.Process == rec.Process || s.marked && could(s) }
	for _, s := range all {
		switch {
		case !could(s):
		case below(s, mine):
			found = append(found, s)
		case below(s, func(s seen) bool { return s.other != "" || s.Process == self && rec.Worker != self }):
		default:
			suspects = append(suspects, s)
		}
	}
	return found, suspects
}
