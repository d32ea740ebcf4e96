package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/plane/wire"
)

// Why a run's life ends before its command does.
var (
	errCancel = errors.New("the plane has it cancelled")
	errLapsed = errors.New("its lease has lapsed")
	errFinal  = errors.New("the plane's answer was final")
	errDead   = errors.New("its process is gone")
)

// parting bounds the last message of a run that the worker gives up when it ends.
const parting = 15 * time.Second

// errGivenUp is a run that cannot be served by this process at all.
var errGivenUp = errors.New("given up")

// run is one lease that is being served.
type run struct {
	w     *Worker
	s     *session
	g     granted
	log   *slog.Logger
	chain *chain
	task  Task

	life context.Context
	end  context.CancelCauseFunc // ends the command; what follows depends on the cause
	talk context.Context         // of messages that must be answered: ends a while after the worker gives its runs up

	mu       sync.Mutex
	process  *wire.Process
	progress int64
	cancelBy time.Time            // until when the plane waits for the proof; zero: no cancel
	kept     map[string]wire.File // stored and attested, by name

	acked  chan struct{} // closed once the cancel is acknowledged, or cannot be; nil: nobody has tried
	ackErr error         // of acknowledging the cancel
}

// run serves one grant to its end. life ends when the worker gives its runs up.
func (w *Worker) run(life context.Context, g granted, over func()) {
	r := &run{w: w, s: w.session, g: g, kept: map[string]wire.File{},
		log: w.log.With("subject", g.Subject(), "delegation", g.Delegation, "attempt", g.Attempt, "fence", g.Fence)}
	r.life, r.end = context.WithCancelCause(life)
	defer r.end(nil)
	var hush context.CancelFunc
	r.talk, hush = outlive(life, parting)
	defer hush()
	r.chain = newChain(w.cfg.Client, w.session.key, g.Grant, g.sent, w.session.now, r.heard)
	r.task = Task{Folder: filepath.Join(w.cfg.State.Runs(), g.Subject()), Grant: g.Grant, Deadline: g.sent.Add(time.Duration(g.RemainingMS) * time.Millisecond)}

	err := r.serve(life)
	switch {
	case err == nil:
		r.log.Info("done")
	case has(err, ops.Unauthenticated):
		over()
	default:
		r.log.Warn("ended", "why", err)
	}
	if errors.Is(err, errGivenUp) {
		return // what is left of it stays written down, and the next boot looks after it
	}
	if err := w.cfg.State.forget(g.Subject(), r.task.Folder); err != nil {
		r.log.Warn("what the run has left cannot be removed", "err", err)
	}
}

// heard takes each answer to a message of the run.
func (r *run) heard(ack wire.Ack) {
	if ack.Cancel {
		r.mu.Lock()
		if r.cancelBy.IsZero() {
			r.cancelBy = r.s.now().Add(time.Duration(max(ack.CancelMS, 1)) * time.Millisecond)
		}
		r.mu.Unlock()
		r.end(fmt.Errorf("%w: %s", errCancel, ack.Reason))
	}
	if ack.Final {
		r.end(fmt.Errorf("%w: %s", errFinal, ack.Reason))
	}
}

// serve goes through the life of the run. worker ends when the worker gives its runs up.
// The error says why it came to nothing, nil if its last message was acknowledged.
func (r *run) serve(worker context.Context) error {
	if err := r.w.cfg.State.keepLease(r.lease(nil)); err != nil {
		return err // not begun; the plane's time for it runs out
	}
	failpoint.Here("worker.grant-kept")
	// The start is acknowledged before anything begins. Its lease may lapse meanwhile.
	starting, cancel := context.WithDeadlineCause(r.life, r.chain.leaseUntil(), errLapsed)
	ack, err := r.chain.say(starting, wire.KindStarted, wire.Started{})
	cancel()
	if err == nil && r.life.Err() != nil {
		err = context.Cause(r.life)
	}
	if err == nil && r.g.Verification == "" && ack.State != stateRunning {
		err = fmt.Errorf("%w: the run is %s", errFinal, ack.State)
	}
	if err != nil {
		return r.stopped(worker, err)
	}
	failpoint.Here("worker.start-acknowledged")
	var beside sync.WaitGroup
	defer beside.Wait()
	beating, still := context.WithCancel(context.WithoutCancel(worker))
	defer still()
	beside.Go(func() { r.watch(beating) })
	beside.Go(func() { r.beat(beating) })
	beside.Go(func() { // at once, not only when the command has been ended
		select {
		case <-r.life.Done():
		case <-beating.Done():
			return
		}
		if errors.Is(context.Cause(r.life), errCancel) {
			_ = r.acknowledge() // whoever proves the end hears of its error
		}
	})
	if r.g.Verification != "" {
		return r.verify(worker)
	}
	return r.work(worker)
}

// lease is what is written down of the run.
func (r *run) lease(p *wire.Process) lease {
	return lease{Subject: r.g.Subject(), Run: r.g.Run, Verification: r.g.Verification, Delegation: r.g.Delegation, Fence: r.g.Fence, Boot: r.g.Boot, Folder: r.task.Folder, Process: p}
}

// watch ends the run when its lease has lapsed by this machine's clock.
func (r *run) watch(ctx context.Context) {
	for {
		d := r.chain.leaseUntil().Sub(r.s.now())
		if d <= 0 {
			r.end(errLapsed)
			return
		}
		if sleep(ctx, d) != nil || r.chain.ended() != nil {
			return
		}
	}
}

// beat sends heartbeats, whatever else the run does. A ticker has no timer that must be
// set again: after an attempt that took long the next tick is there at once.
func (r *run) beat(ctx context.Context) {
	interval := time.Duration(r.g.HeartbeatMS) * time.Millisecond
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	dead := false
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		if !r.s.now().Before(r.chain.leaseUntil()) {
			return // watch has ended the run
		}
		r.readProgress()
		r.mu.Lock()
		beat := wire.Heartbeat{Process: r.process, Alive: true, Progress: r.progress}
		r.mu.Unlock()
		if beat.Process != nil && !r.w.cfg.Runner.Alive(*beat.Process) {
			// A lease is not kept for a process that is not there. Its Runner, if it
			// has not noticed, is told to look; if it does not return until the next
			// heartbeat, the plane hears that nothing more comes.
			if !dead {
				dead = true
				r.end(errDead)
				continue
			}
			beat.Alive = false
		}
		until, cancel := context.WithDeadlineCause(ctx, r.chain.leaseUntil(), errLapsed)
		for again := true; again; {
			ack, err := r.chain.say(until, wire.KindHeartbeat, beat)
			if err != nil {
				r.log.Debug("no heartbeat", "err", err)
			}
			// An answer that came by repetition counts from the first attempt, which
			// may be long ago: one more heartbeat, and the lease is whole again.
			again = err == nil && ack.Replayed
		}
		cancel()
		if r.chain.ended() != nil {
			return
		}
	}
}

// Started implements Report.
func (r *run) Started(p wire.Process) error {
	if err := r.w.cfg.State.keepLease(r.lease(&p)); err != nil {
		return err
	}
	if err := r.life.Err(); err != nil {
		return context.Cause(r.life)
	}
	if !r.s.now().Before(r.chain.leaseUntil()) {
		return errLapsed
	}
	failpoint.Here("worker.command-begins")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = &p
	return nil
}

// Progress implements Report.
func (r *run) Progress(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress = max(r.progress, n)
}

// readProgress takes what the command says of its progress itself.
func (r *run) readProgress() {
	root, err := os.OpenRoot(r.task.Path(ControlFolder))
	if err != nil {
		return
	}
	defer root.Close()
	text, err := readSmall(root, ProgressFile, 64)
	if err != nil {
		return
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && n >= 0 {
		r.Progress(n)
	}
}

// work runs the command of a worker's run.
func (r *run) work(worker context.Context) error {
	if err := r.prepare(); err != nil {
		if r.life.Err() != nil {
			return r.stopped(worker, context.Cause(r.life))
		}
		return r.result(wire.Result{Class: classTaskFailed, Exit: -1, Summary: "it was not begun: " + err.Error(), Files: []wire.File{}})
	}
	command, cancel := context.WithCancel(r.life)
	defer cancel()
	looking, stop := context.WithCancel(r.life)
	defer stop()
	var looks sync.WaitGroup
	m := &mutations{r: r}
	looks.Go(func() { m.follow(looking) })
	looks.Go(func() { r.checkpoints(looking) })
	out, err := r.w.cfg.Runner.Run(command, r.task, r)
	failpoint.Here("worker.command-ended")
	r.mu.Lock()
	r.process = nil // a heartbeat from now on is of a run whose command has ended
	r.mu.Unlock()
	stop()
	looks.Wait()
	why := context.Cause(r.life)
	switch {
	case err != nil && why != nil:
		return r.stopped(worker, why)
	case err != nil:
		return r.result(wire.Result{Class: classTaskFailed, Exit: -1, Summary: r.blot("it was not begun: " + err.Error()), Files: []wire.File{}})
	case len(out.Survivors) > 0 && why == nil:
		return r.stopped(worker, fmt.Errorf("%w: processes of it cannot be ended", errGivenUp))
	case out.Stopped == stoppedCancelled || len(out.Survivors) > 0:
		if errors.Is(why, errDead) {
			return r.result(wire.Result{Class: classWorkerLost, Exit: -1, Summary: "its process was gone", Files: []wire.File{}})
		}
		return r.stopped(worker, why)
	}
	m.look() // what it wrote just before it ended
	return r.returned(worker, out)
}

// stateRunning is the state of a run whose start was acknowledged, as the plane names it.
const stateRunning = "RUNNING"

// Why a Runner has stopped a command (Outcome.Stopped).
const (
	stoppedDeadline  = "deadline"
	stoppedCancelled = "cancelled"
)

// Classes of failures, as the plane names them.
const (
	classTaskFailed = "task_failed"
	classWorkerLost = "worker_lost"
	classUnknown    = "unknown_external"
)

// returned hands in what a command that ended by itself, or at its deadline, has left.
func (r *run) returned(worker context.Context, out Outcome) error {
	ctx := r.talk
	if out.Exit == ExitAsk && out.Stopped == "" {
		if question := r.question(); question != "" {
			if err := r.checkpoint(ctx); err != nil {
				r.log.Warn("the last checkpoint before the question was not taken", "err", err)
			}
			switch _, err := r.chain.say(ctx, wire.KindHumanWait, wire.HumanWait{Question: question}); {
			case err == nil:
				return nil
			case has(err, ops.Conflict): // it was told to stop meanwhile, and has not heard of it
				return r.stopped(worker, fmt.Errorf("%w: %w", errCancel, err))
			default:
				return r.stopped(worker, err)
			}
		}
	}
	res := wire.Result{Succeeded: out.Exit == 0 && out.Stopped == "" && out.Unknown == "", Exit: out.Exit, Summary: r.blot(out.Tail), Worktree: out.Worktree}
	switch {
	case res.Succeeded:
	case out.Stopped == stoppedDeadline:
		res.Class, res.Summary = classTaskFailed, "the command was stopped at the deadline\n"+res.Summary
	case out.Unknown != "":
		res.Class, res.Summary = classWorkerLost, "it is not known how the command ended: "+out.Unknown+"\n"+res.Summary
	case out.Signal == "SIGKILL" && out.Stopped == "": // whoever else: the kernel, for memory, or a person
		res.Class, res.Summary = classWorkerLost, "the command was killed from outside\n"+res.Summary
	default:
		res.Class = classTaskFailed
	}
	files, missing, err := r.returnFiles(ctx, out.Worktree)
	if err != nil && !isOver(err) {
		return r.stopped(worker, err)
	}
	res.Files = files
	if len(missing) > 0 && res.Succeeded {
		res.Succeeded, res.Class = false, classTaskFailed
		res.Summary = "the command ended well, but did not leave what must be returned: " + strings.Join(missing, "; ") + "\n" + res.Summary
	}
	return r.result(res)
}

// isOver reports whether err says that the lease is over, so that only evidence can
// still be given.
func isOver(err error) bool {
	return has(err, ops.StaleFence) || errors.Is(err, errOver) || errors.Is(err, errLapsed)
}

// result sends the result, also when the lease has lapsed meanwhile: then it is evidence,
// and whether it counts is not for the worker to say. One that the plane refuses as it is
// becomes a failure that says so.
func (r *run) result(res wire.Result) error {
	res.Summary = clip(res.Summary, maxText)
	failpoint.Here("worker.before-result")
	err := r.chain.lastWord(r.talk, wire.KindResult, res)
	failpoint.Here("worker.result-answered")
	var f *ops.Fault
	if err == nil || isOver(err) || r.chain.ended() != nil || !errors.As(err, &f) {
		return err
	}
	r.log.Error("the plane refused the result", "err", err)
	if f.Code == ops.Unproven {
		res.Succeeded, res.Class = false, classUnknown
		res.Summary = clip("it ended, and what it has changed outside is not proved: "+f.Message+"\n"+res.Summary, maxText)
		return r.chain.lastWord(r.talk, wire.KindResult, res)
	}
	return r.chain.lastWord(r.talk, wire.KindResult, wire.Result{Class: classTaskFailed, Exit: res.Exit, Files: []wire.File{},
		Summary: clip("the plane refused the result: "+f.Message, maxText)})
}

// maxText bounds texts in messages, in bytes.
const maxText = 4 << 10

// clip cuts s to its last n bytes, at a letter.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[len(s)-n:]
	}
	return strings.ToValidUTF8(s, "\uFFFD"[:0])
}

// outlive is a context that ends d after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var late *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		late = time.AfterFunc(d, func() { cancel(context.Cause(ctx)) })
	})
	return longer, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if late != nil {
			late.Stop()
		}
		cancel(nil)
	}
}

// stopped ends a run whose command was stopped, or was never begun, and says what can be
// proved: that nothing of it is alive, or that something is.
func (r *run) stopped(worker context.Context, why error) error {
	ctx := r.talk
	if r.g.Verification != "" { // of which the plane hears by the lapse of its lease
		if live, err := r.bury(ctx); err != nil || len(live) > 0 {
			return fmt.Errorf("%w: %w", errGivenUp, errors.Join(why, err))
		}
		return why
	}
	switch {
	case errors.Is(why, errCancel):
		return r.cancelled(ctx)
	case worker.Err() != nil && !isOver(why) && !errors.Is(why, errFinal) || errors.Is(why, errGivenUp):
		live, err := r.bury(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", errGivenUp, err)
		}
		if live == nil {
			live = []wire.Process{}
		}
		if _, err := r.chain.say(ctx, wire.KindAbandoning, wire.Abandoning{Reason: clip(why.Error(), 512), Live: live}); err != nil {
			return fmt.Errorf("%w: %w", errGivenUp, err)
		}
		if len(live) > 0 {
			return fmt.Errorf("%w: %d processes are alive", errGivenUp, len(live))
		}
		return nil
	}
	// The lease is over, for the plane or by this machine's clock only. What is known is
	// said once more: it may spare a person.
	live, err := r.bury(ctx)
	if err != nil || len(live) > 0 {
		return fmt.Errorf("%w: %w; %d processes are alive", errGivenUp, errors.Join(why, err), len(live))
	}
	if _, err := r.chain.say(ctx, wire.KindAbandoning, wire.Abandoning{Reason: clip(why.Error(), 512), Live: []wire.Process{}}); err == nil {
		return why
	}
	if err := r.chain.lastWord(ctx, wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{}, Checks: 2}); err != nil && !isOver(err) {
		return fmt.Errorf("%w: %w", why, err)
	}
	return why
}

// bury ends what is left of the run. Runner.End looks at least twice.
func (r *run) bury(ctx context.Context) ([]wire.Process, error) {
	if r.w.cfg.Runner == nil {
		return nil, nil // a dry run starts no process
	}
	r.mu.Lock()
	var p wire.Process
	if r.process != nil {
		p = *r.process
	}
	r.mu.Unlock()
	return r.w.cfg.Runner.End(ctx, r.task.Folder, p)
}

// acknowledge says, once, that the order to stop has been received.
func (r *run) acknowledge() error {
	r.mu.Lock()
	first := r.acked == nil
	if first {
		r.acked = make(chan struct{})
	}
	acked := r.acked
	r.mu.Unlock()
	if first {
		_, r.ackErr = r.chain.say(r.talk, wire.KindCancelAck, wire.CancelAck{})
		close(acked)
	}
	<-acked // of the first, which may take as long as the gateway is away
	return r.ackErr
}

// cancelled acknowledges a cancel and proves that nothing of the run is alive, which counts
// also when it comes too late for all else. While something is alive, the plane hears so and
// the tree is ended again, until the plane gives up.
func (r *run) cancelled(ctx context.Context) error {
	if err := r.acknowledge(); err != nil && !isOver(err) {
		return err
	}
	for told := false; ; {
		live, err := r.bury(ctx)
		if err == nil && len(live) == 0 {
			failpoint.Here("worker.before-tombstone")
			err := r.chain.lastWord(ctx, wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{}, Checks: 2})
			failpoint.Here("worker.tombstone-answered")
			return err
		}
		if !told {
			reason := fmt.Sprintf("%d processes outlive SIGKILL", len(live))
			if err != nil {
				reason = "nobody can tell whether something is alive: " + err.Error()
			}
			if _, err := r.chain.say(ctx, wire.KindCancelFailed, wire.CancelFailed{Reason: clip(reason, 512)}); err != nil {
				return fmt.Errorf("%w: %w", errGivenUp, err)
			}
			told = true
		}
		r.mu.Lock()
		by := r.cancelBy
		r.mu.Unlock()
		if r.chain.ended() != nil || !r.s.now().Before(by) {
			return fmt.Errorf("%w: processes of a cancelled run cannot be ended", errGivenUp)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("%w: %w", errGivenUp, err)
		}
	}
}

// prepare makes the folders of the run, with all that its command is to find there.
func (r *run) prepare() error {
	t := &r.task
	for _, f := range []string{TaskFolder, WorkFolder, OutFolder, ControlFolder} {
		if err := os.MkdirAll(t.Path(f), 0o700); err != nil {
			return err
		}
	}
	g := t.Grant
	public := g
	public.Instruction, public.Answer, public.Earlier, public.Attested = wire.Instruction{}, "", nil, nil
	if err := errors.Join(writeJSON(t.Path(TaskFolder, InstructionFile), g.Instruction), writeJSON(t.Path(TaskFolder, GrantFile), public)); err != nil {
		return err
	}
	if g.Answer != "" {
		if err := os.WriteFile(t.Path(TaskFolder, AnswerFile), []byte(g.Answer), 0o600); err != nil {
			return err
		}
	}
	for _, ref := range g.Credentials {
		if r.w.cfg.Secret == nil {
			return fmt.Errorf("credential %s: this worker has none", ref)
		}
		value, err := r.w.cfg.Secret(ref)
		if err != nil {
			return err
		}
		t.Secrets = append(t.Secrets, Secret{ref, value})
	}
	if strings.HasPrefix(g.Source.Revision, "sha256:") && r.w.cfg.Runner != nil {
		f := wire.File{Name: SourceArchive, Digest: g.Source.Revision}
		if err := r.s.fetch(r.life, f, maxFileBytes, t.Path(SourceArchive)); err != nil {
			return err
		}
	}
	for _, f := range g.Earlier[max(0, len(g.Earlier)-MaxFiles):] { // the newest come last
		if err := r.fetchInto(f, EarlierFolder); err != nil {
			return err
		}
	}
	t.Argv, t.Env = r.w.cfg.Command, r.env()
	return nil
}

// fetchInto gets a file that an earlier attempt, or another worker, has left.
func (r *run) fetchInto(f wire.File, folder string) error {
	if !filepath.IsLocal(f.Name) || f.Bytes < 0 || f.Bytes > maxFileBytes {
		return fmt.Errorf("file %q of %d bytes cannot be fetched", f.Name, f.Bytes)
	}
	path := r.task.Path(TaskFolder, folder, filepath.FromSlash(f.Name))
	if err := r.s.fetch(r.life, f, f.Bytes, path); err != nil {
		return err
	}
	if info, err := os.Stat(path); err != nil || info.Size() != f.Bytes {
		return errors.Join(err, fmt.Errorf("file %q (%s) has not the %d bytes that were announced", f.Name, f.Digest, f.Bytes))
	}
	return nil
}

// env is the environment of the command: the operator's, and what the task says.
func (r *run) env() []string {
	g, t := r.task.Grant, r.task
	env := append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, r.w.cfg.Env...)
	return append(env,
		"INBAND_TASK="+t.Path(TaskFolder), "INBAND_WORK="+t.Path(WorkFolder), "INBAND_OUT="+t.Path(OutFolder), "INBAND_CONTROL="+t.Path(ControlFolder),
		"INBAND_DELEGATION="+g.Delegation, "INBAND_RUN="+g.Run, "INBAND_IMPLEMENTATION="+g.Implementation, "INBAND_ATTEMPT="+strconv.Itoa(g.Attempt),
		"INBAND_REVISION="+g.Source.Revision, "INBAND_IDEMPOTENCY_KEY="+g.IdemKey)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// blot takes the run's secrets out of s.
func (r *run) blot(s string) string {
	for _, secret := range r.task.Secrets {
		if len(secret.Value) > 0 {
			s = strings.ReplaceAll(s, string(secret.Value), secret.String())
		}
	}
	return s
}

// question is what the command asks a person, "" if nothing.
func (r *run) question() string {
	root, err := os.OpenRoot(r.task.Path(ControlFolder))
	if err != nil {
		return ""
	}
	defer root.Close()
	text, err := readSmall(root, QuestionFile, maxText)
	if err != nil {
		return ""
	}
	return r.blot(strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD")))
}
