package plane

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"inband/ops"
)

// The model: one delegation, two workers that crash and come back, commands that go on
// after their worker is gone, a network that loses, repeats and reorders, people and a
// verifier who may say anything at any time, and one change outside. Around Step it does
// what the plane does: rows, stored answers, evidence.
//
// Time goes in ticks. Everything that may be sent stays deliverable for ever, and
// nothing must be delivered; that is loss, repetition and reordering in one.

const (
	ticksTTL     = 2 // a lease
	ticksGrace   = 1 // to prove that a run has stopped
	ticksRecover = 1 // after a lease, in which its worker ends the command by itself
	maxLeases    = 3
	maxRuns      = 3
	term         = 1
)

// bounds is how much of the world one exploration sees.
type bounds struct {
	name     string
	ticks    int    // how far time goes
	deadline int    // of every run, ticks
	leases   int    // fences there may be
	workers  int    // 1 or 2
	says     string // what workers say beside started: letters of sayings
	words    int    // how many of those in one lease
	reboots  int    // for each worker
	budget   Budget
	cancel   bool // somebody may cancel
	people   bool // resolve, retry, recover
	verifier bool // verdicts, right and wrong ones
	outside  bool // one change outside, which must not happen twice
	frozen   bool // commands outlive their lease: only what needs a proof holds
	restore  bool // the term may be bumped once
	forged   bool // messages that no worker would send
}

// sayings are what workers say, by a letter.
var sayings = map[rune]EventKind{'h': OnHeartbeat, 'd': OnHeartbeat, 'c': OnCheckpoint, 'r': OnResult, 'f': OnResult, 'w': OnHumanWait,
	'a': OnAbandoning, 'i': OnMutationIntended, 'p': OnMutationProved, 's': OnStarted, 't': OnCancelProof, 'l': OnCancelProof}

// message is a callback on the network.
type message struct {
	worker, boot, run int8
	fence             int64
	seq               int8
	prev              string
	say               rune
	at                int8
	done              bool // mutation_proved
}

var digests = map[message]string{}

func (m message) digest() string {
	d, ok := digests[m]
	if !ok {
		d = "m" + strconv.Itoa(len(digests)+1)
		digests[m] = d
	}
	return d
}

func (m message) String() string {
	return fmt.Sprintf("%c's boot %d says %s (%c) of run %d, fence %d, seq %d", 'A'+rune(m.worker), m.boot, sayings[m.say], m.say, m.run, m.fence&0xff, m.seq)
}

// event is what Step is told of m.
func (m message) event() Event {
	e := Event{Kind: sayings[m.say], Worker: names[m.worker], Boot: boots[m.boot], Fence: m.fence, Seq: int64(m.seq), Prev: m.prev, Digest: m.digest(),
		Lease: span(ticksTTL), Recover: span(ticksRecover), Alive: m.say != 'd', Stored: true, Succeeded: m.say == 'r', Checks: enough}
	if m.say == 'l' {
		e.Live = 1
	}
	return e
}

var (
	names = []ops.IdentityID{"a", "b"}
	boots = []string{"", "b1", "b2", "b3"}
)

// answer is what was answered to a callback that was accepted.
type answer struct {
	m      message
	state  State
	leased bool
	until  int8 // of the lease, if the message extends it
	at     int8 // when it was answered
	stop   bool
}

// worker is one of the two, as it knows itself.
type worker struct {
	boot  int8
	has   bool // it knows of a lease
	run   int8
	fence int64
	until int8 // of the lease, as it counts it
	begun bool
	stop  bool // it has been told to
	gone  bool // it has been told that its lease is
	ended bool // it has said its last word
	seq   int8
	prev  string
	wait  message // for whose answer it waits
	words int8
	knows bool // that the change outside is done
}

// lent is a lease, as an observer of the grants knows it, and the command under it.
type lent struct {
	fence  int64
	worker int8
	boot   int8
	run    int8
	at     int8 // when it was asked for
	seq    int8
	prev   string
	knows  bool
	until  int8 // by the accepted messages
	over   bool
	alive  bool // the command
	killed int8 // when it is certainly dead, once its worker cannot extend any more
	change byte // the row of the change outside under this lease: 0, i(ntended), D(one), A(bsent)
	may    bool // the command has heard that it is noted, and may do it
	acted  bool // it has
}

// world is one state of everything.
type world struct {
	now      int8
	d        Delegation
	runs     [maxRuns]Run
	leases   [maxLeases]lent
	nl       int8
	workers  [2]worker
	sent     []message        // sorted
	log      []answer         // of accepted messages whose senders still wait for it
	last     [maxRuns]message // accepted of each run
	count    [maxRuns]int8
	effects  int8 // how often the outside was changed
	passed   bool // somebody else has verified the run that there is
	retried  bool
	restored bool
	again    int8
}

func at(tick int8) time.Time { return epoch.Add(time.Duration(tick) * time.Second) }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func span(ticks int) time.Duration { return time.Duration(ticks) * time.Second }

func tick(t time.Time) int8 {
	if t.IsZero() {
		return -1
	}
	return int8(t.Sub(epoch) / time.Second)
}

// begin is a delegation that has just been spawned.
func (b bounds) begin() world {
	w := world{d: Delegation{State: Open, Attempts: 1, Budget: b.budget, Grace: span(ticksGrace)}}
	w.runs[0] = Run{Attempt: 1, State: Dispatched, Deadline: at(int8(b.deadline))}
	for i := range w.workers {
		w.workers[i].boot = 1
	}
	return w
}

// unproven counts the changes outside of a run of which nobody knows.
func (w *world) unproven(run int8) (n int) {
	for _, l := range w.leases[:w.nl] {
		if l.run == run && l.change == 'i' {
			n++
		}
	}
	return n
}

func (w *world) snapshot(run int8) Snapshot {
	return Snapshot{Delegation: w.d, Run: w.runs[run-1], Unproven: w.unproven(run)}
}

func (w *world) lease(fence int64) *lent {
	for i := range w.leases[:w.nl] {
		if w.leases[i].fence == fence {
			return &w.leases[i]
		}
	}
	return nil
}

// key is w in bytes; two worlds with the same key go on alike.
func (w *world) key(b []byte) []byte {
	str := func(s string) { b = append(append(b, s...), 0) }
	num := func(ns ...int8) {
		for _, n := range ns {
			b = append(b, byte(n))
		}
	}
	flag := func(fs ...bool) {
		for _, f := range fs {
			if f {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		}
	}
	num(w.now, int8(w.d.Attempts), w.nl, w.effects, w.again, int8(w.d.LastFence>>termBits), int8(w.d.LastFence))
	str(string(w.d.State))
	flag(w.d.Cancel, w.d.Closed, w.passed, w.retried, w.restored)
	for _, c := range Classes() {
		num(int8(w.d.Used[c]))
	}
	for _, r := range w.runs[:min(w.d.Attempts, maxRuns)] {
		str(string(r.State))
		str(string(r.Proof))
		str(string(r.Class))
		if settled(r.State) {
			continue
		}
		num(int8(r.Fence>>termBits), int8(r.Fence), int8(r.Seq), tick(r.Deadline), tick(r.LeaseUntil), tick(r.CancelDeadline), tick(r.RecoverAt), int8(r.LateResult))
		str(string(r.Worker))
		str(r.Boot)
		str(r.Prev)
		str(r.Reason)
		flag(r.Started, r.LateSucceeded)
	}
	for i := range w.leases[:w.nl] {
		l := &w.leases[i]
		num(int8(l.fence), l.worker, l.boot, l.run, int8(l.change))
		flag(l.over, l.alive, l.may, l.acted)
		if w.unheard(l) {
			num(l.at, l.seq)
			str(l.prev)
			flag(l.knows)
		}
		if !l.over {
			num(l.until)
		}
		if l.alive {
			num(l.killed)
		}
	}
	for i := range w.workers {
		k := &w.workers[i]
		num(k.boot, k.run, int8(k.fence))
		flag(k.has, k.ended, k.gone)
		if k.has && (!k.ended || k.wait.say != 0) {
			num(k.until, k.seq, k.words, int8(k.wait.say), k.wait.seq)
			flag(k.begun, k.stop, k.knows)
			str(k.prev)
		}
	}
	for _, m := range w.sent {
		str(m.digest())
	}
	b = append(b, '|')
	for _, a := range w.log {
		str(a.m.digest())
		num(a.until, a.at)
		str(string(a.state))
		flag(a.stop, a.leased)
	}
	return b
}

// unheard reports whether the worker of l may still hear of it.
func (w *world) unheard(l *lent) bool {
	k := &w.workers[l.worker]
	return l.boot == k.boot && (!k.has || k.fence < l.fence) && w.now < l.at+ticksTTL
}

// stepper is Step, or a mutant of it.
type stepper func(Snapshot, Event, time.Time) (Snapshot, []Effect, *ops.Fault)

// broken is an invariant that does not hold.
type broken struct{ what string }

func (b broken) Error() string { return b.what }

func violated(format string, args ...any) { panic(broken{fmt.Sprintf(format, args...)}) }

// model explores what may follow a world.
type model struct {
	bounds
	step     stepper
	doing    action // for the trace, when a law is broken
	waysOn   map[standing]bool
	forgedAt map[seenRow]bool
}

// apply tells Step of an event and does what comes of it. It breaks when a step does
// what no step may.
func (m *model) apply(w *world, run int8, e Event) *ops.Fault {
	before := w.snapshot(run)
	after, effects, fault := m.step(before, e, at(w.now))
	if fault != nil {
		for _, f := range effects {
			if f.Do != Keep {
				violated("a step that is refused (%s) has the effect %s", fault, f.Do)
			}
		}
		return fault
	}
	m.commit(w, run, e, before, after, effects)
	return nil
}

// commit writes what came of a step.
func (m *model) commit(w *world, run int8, e Event, before, after Snapshot, effects []Effect) {
	m.lawful(w, before, after, e, effects)
	switch e.Kind {
	case OnVerdict:
		w.passed = w.passed || e.Verdict == Passed && e.Worker == "v" && int(run) == before.Delegation.Attempts
	case OnVerifyAgain:
		w.again++
	case OnRetryDemanded:
		w.retried = true
	case OnRestored:
		w.restored = true
	}
	w.d, w.runs[run-1] = after.Delegation, after.Run
	if l := w.lease(after.Run.Fence); l != nil && before.Run.State.HasLease() {
		l.over = !after.Run.State.HasLease()
		if after.Run.State == CancelRequested {
			l.until = tick(after.Run.LeaseUntil)
		}
	}
	for _, f := range effects {
		if f.Do == NewRun {
			if f.Attempt > maxRuns {
				violated("run %d of a delegation that may have %d", f.Attempt, maxRuns)
			}
			w.runs[f.Attempt-1] = Run{Attempt: f.Attempt, State: Dispatched, Deadline: at(int8(m.deadline))}
			w.passed = false
		}
	}
}

// hasRule reports whether there is a rule for a kind of event in a state.
var hasRule = func() map[EventKind]map[State]bool {
	has := make(map[EventKind]map[State]bool)
	for _, r := range rules {
		for _, s := range r.in {
			if has[r.on] == nil {
				has[r.on] = make(map[State]bool)
			}
			has[r.on][s] = true
		}
	}
	return has
}()

// next calls emit with every world that may follow w, and with what was done.
func (m *model) next(w *world, emit func(world, action)) {
	try := func(a action, do func(*world) bool) {
		n := *w
		m.doing = a
		if do(&n) {
			n.forget()
			emit(n, a)
		}
	}
	current := int8(w.d.Attempts)
	event := func(run int8, e Event, a action) {
		if !hasRule[e.Kind][w.runs[run-1].State] {
			return
		}
		e.Recover = span(ticksRecover)
		m.doing = a
		before := w.snapshot(run)
		after, effects, fault := m.step(before, e, at(w.now))
		if fault == nil {
			n := *w
			m.commit(&n, run, e, before, after, effects)
			n.forget()
			emit(n, a)
		}
	}

	if int(w.now) < m.ticks {
		try(action{what: "time goes on"}, func(n *world) bool { n.tick(m.frozen); return true })
	}
	m.plane(w, current, event)
	if m.people {
		m.persons(w, current, event, try)
	}
	if m.cancel && !w.d.Cancel {
		for run := int8(1); run <= current; run++ {
			event(run, Event{Kind: OnCancelRequested}, action{what: "somebody cancels", n: run})
		}
	}
	if m.verifier {
		m.verifiers(w, current, event)
	}
	for i := range m.workers {
		if !w.d.Closed {
			m.worker(w, i, try)
		}
	}
	for _, msg := range w.sent {
		m.deliver(msg, w, try)
	}
	if m.forged {
		m.forge(w)
	}
	// A command changes something outside, which it may do once that has been noted.
	for x, l := range w.leases[:w.nl] {
		if l.alive && l.may && !l.acted {
			try(action{what: "the command changes something outside in run", n: l.run}, func(n *world) bool {
				n.leases[x].acted = true
				n.effects++
				return true
			})
		}
	}
}

// tick lets time go on. Commands whose worker can no longer extend its lease are dead
// once it has had the time to end them, unless they are frozen.
func (w *world) tick(frozen bool) {
	w.now++
	for i := range w.leases[:w.nl] {
		l := &w.leases[i]
		own := l.killed
		if k := &w.workers[l.worker]; k.has && k.fence == l.fence && k.boot == l.boot {
			own = k.until
		}
		if l.alive && !frozen && w.now >= own+ticksRecover {
			l.alive = false
		}
	}
}

type eventFunc func(run int8, e Event, a action)
type tryFunc func(a action, do func(*world) bool)

// plane does what the plane does: it grants, and it sweeps, at any time.
func (m *model) plane(w *world, current int8, event eventFunc) {
	for _, k := range []EventKind{OnLeaseExpired, OnDeadlinePassed, OnCancelDeadline, OnRecoveryStarted, OnLeaseMissing} {
		for run := int8(1); run <= current; run++ {
			event(run, Event{Kind: k}, action{what: string(k), n: run})
		}
	}
	event(current, Event{Kind: OnReconciled, Adopt: w.runs[current-1].LateResult != 0}, action{what: "reconciled", n: current})
	if m.restore && !w.restored {
		event(current, Event{Kind: OnRestored, Lease: span(ticksTTL)}, action{what: "restored", n: current})
	}
}

// grantTo leases the current run to worker i, whose poll was sent now.
func (m *model) grantTo(n *world, i int, capable bool) bool {
	run := int8(n.d.Attempts)
	k := n.workers[i]
	if int(n.nl) >= m.leases || k.has && !k.ended && !k.gone {
		return false
	}
	if m.apply(n, run, Event{Kind: OnLeaseGranted, Worker: names[i], Boot: boots[k.boot], Lease: span(ticksTTL), Capable: capable, Term: term}) != nil {
		return false
	}
	if !capable {
		violated("a run was granted to a worker that cannot have it")
	}
	r := n.runs[run-1]
	done := false
	for _, l := range n.leases[:n.nl] {
		done = done || l.change == 'D'
	}
	n.leases[n.nl] = lent{fence: r.Fence, worker: int8(i), boot: k.boot, run: run, at: n.now, seq: int8(r.Seq), prev: r.Prev, until: tick(r.LeaseUntil), knows: done}
	n.nl++
	return true
}

// persons say anything that people may say. Of the change outside they say what is true.
func (m *model) persons(w *world, current int8, event eventFunc, try tryFunc) {
	for _, r := range []Resolution{Resume, Fail, Adopt} {
		event(current, Event{Kind: OnHumanResolved, Resolution: r}, action{what: "a person says " + string(r)})
	}
	event(current, Event{Kind: OnRecoveryStarted, Person: true}, action{what: "a person wants it recovered"})
	for x := range w.leases[:w.nl] {
		if l := w.leases[x]; l.change == 'i' {
			try(action{what: "a person proves what happened outside in run", n: l.run}, func(n *world) bool {
				if m.apply(n, l.run, Event{Kind: OnMutationResolved}) != nil {
					return false
				}
				n.leases[x].change = 'A'
				if l.acted {
					n.leases[x].change = 'D'
				}
				return true
			})
		}
	}
	if !w.retried && current < maxRuns {
		event(current, Event{Kind: OnRetryDemanded}, action{what: "a person wants it tried again"})
	}
}

// verifiers say anything that verifiers may say, and what none may.
func (m *model) verifiers(w *world, current int8, event eventFunc) {
	for run := int8(1); run <= current; run++ {
		for _, v := range []string{Passed, Refused, Lacking} {
			event(run, Event{Kind: OnVerdict, Worker: "v", Verdict: v}, action{what: "the verifier says " + v + " of run", n: run})
		}
		event(run, Event{Kind: OnVerdict, Worker: w.runs[run-1].Worker, Verdict: Passed}, action{what: "its worker says passed of run", n: run})
		event(run, Event{Kind: OnVerdict, Verdict: Passed}, action{what: "nobody says passed of run", n: run})
	}
	event(current, Event{Kind: OnVerifierAbsent}, action{what: "no verifier comes"})
	event(current, Event{Kind: OnVerifyClosed}, action{what: "nobody waits for a verifier any longer"})
	if w.again < 1 {
		event(current, Event{Kind: OnVerifyAgain}, action{what: "verify again"})
	}
}

// worker does whatever worker i may do next.
func (m *model) worker(w *world, i int, try tryFunc) {
	k := &w.workers[i]
	who := string(rune('A' + i))
	if w.runs[w.d.Attempts-1].State == Dispatched {
		try(action{what: "the run is granted to " + who}, func(n *world) bool { return m.grantTo(n, i, true) })
		try(action{what: "the run is granted, without the capability, to " + who}, func(n *world) bool { return m.grantTo(n, i, false) })
	}

	// It hears of a lease that it still has, by its own clock.
	for x := range w.leases[:w.nl] {
		l := w.leases[x]
		if int(l.worker) == i && w.unheard(&l) {
			try(action{what: who + " hears of its lease"}, func(n *world) bool {
				n.workers[i] = worker{boot: k.boot, has: true, run: l.run, fence: l.fence, until: min(l.at+ticksTTL, l.until), seq: l.seq, prev: l.prev, knows: l.knows}
				return true
			})
		}
	}
	if k.has {
		m.leased(w, i, who, try)
	}
	if int(k.boot) <= m.reboots {
		for _, how := range []string{"reports that nothing lives", "reports that the command lives", "reports nothing"} {
			try(action{what: who + " begins another boot and " + how}, func(n *world) bool { m.reboot(n, i, how); return true })
		}
	}
}

// leased is a worker with a lease.
func (m *model) leased(w *world, i int, who string, try tryFunc) {
	k, l := &w.workers[i], w.lease(w.workers[i].fence)
	say := func(s rune, change func(*worker, *lent)) {
		try(action{what: who + " sends " + string(sayings[s]) + " (" + string(s) + ")"}, func(n *world) bool {
			nk, nl := &n.workers[i], n.lease(k.fence)
			change(nk, nl)
			msg := message{worker: int8(i), boot: k.boot, run: k.run, fence: k.fence, seq: k.seq + 1, prev: k.prev, say: s, done: nl.acted}
			if strings.ContainsRune("shdc", s) {
				msg.at = w.now // from which its lease counts
			}
			nk.wait = msg
			n.send(msg)
			return true
		})
	}
	last := func(k *worker, l *lent) { l.alive, k.ended, l.killed = false, true, w.now }
	word := func(k *worker, _ *lent) { k.words++ }
	switch has := func(s rune) bool { return strings.ContainsRune(m.says, s) }; {
	case k.ended || k.wait.say != 0:
	case k.gone || w.now >= k.until:
		if has('t') {
			say('t', last)
		}
	case k.stop:
		say('t', last)
		if l.alive && has('l') && k.words == 0 {
			say('l', word)
		}
		if k.begun && has('r') {
			say('r', last)
		}
	case !k.begun:
		if k.words == 0 {
			say('s', word)
		}
	default:
		if has('p') && l.change == 'i' {
			say('p', func(_ *worker, l *lent) { l.may = false })
		}
		if has('i') && l.change == 0 && !k.knows && l.alive {
			say('i', func(*worker, *lent) {})
		}
		for _, s := range m.says {
			switch {
			case strings.ContainsRune("rfwa", s) && int(k.words) <= m.words+1:
				say(s, last)
			case s == 'd' && int(k.words) <= m.words:
				say(s, func(k *worker, l *lent) { l.alive = false; k.words++ })
			case strings.ContainsRune("hc", s) && int(k.words) <= m.words:
				say(s, word)
			}
		}
	}
}

// send puts msg on the network, for good.
func (w *world) send(msg message) {
	x, found := slices.BinarySearchFunc(w.sent, msg, func(a, b message) int { return cmp.Compare(a.digest(), b.digest()) })
	if !found {
		w.sent = slices.Insert(slices.Clone(w.sent), x, msg)
	}
}

// reboot begins another life of worker i. The command of the last one may live on.
func (m *model) reboot(n *world, i int, how string) {
	k := n.workers[i]
	reported, live := how != "reports nothing", how == "reports that the command lives"
	for x := range n.leases[:n.nl] {
		l := &n.leases[x]
		if int(l.worker) != i || l.boot != k.boot {
			continue
		}
		if k.has && k.fence == l.fence {
			l.killed = max(l.killed, k.until)
		}
		if reported && !live {
			l.alive = false
		}
	}
	n.workers[i] = worker{boot: k.boot + 1}
	for run := int8(1); run <= int8(n.d.Attempts); run++ {
		if n.runs[run-1].Worker != names[i] {
			continue
		}
		l := n.lease(n.runs[run-1].Fence)
		e := Event{Kind: OnWorkerRebooted, Worker: names[i], Boot: boots[k.boot+1], Reported: reported, Recover: span(ticksRecover)}
		if live && l != nil && l.alive {
			e.Live = 1
		}
		m.apply(n, run, e)
	}
}

// deliver brings msg to the plane; its answer comes back or is lost.
func (m *model) deliver(msg message, w *world, try tryFunc) {
	for _, back := range []bool{true, false} {
		what := "is heard, and the answer"
		if !back {
			what = "is heard, and the answer is lost"
		}
		try(action{what: what, m: msg}, func(n *world) bool {
			k := &n.workers[msg.worker]
			waits := k.wait == msg && k.boot == msg.boot && k.has
			if back && !waits {
				return false
			}
			changed := false
			a, final := m.callback(n, msg, &changed)
			if back {
				n.hear(msg, a, final)
			}
			return changed || back
		})
	}
}

// forget drops what can make no difference any more: messages whose senders do not wait
// for the answer, if they were accepted (to repeat one gets the stored answer, and that
// goes nowhere) or if their run is over.
func (w *world) forget() {
	if len(w.sent) == 0 {
		return
	}
	idle := func(m message) bool {
		k := &w.workers[m.worker]
		return k.wait != m || k.boot != m.boot
	}
	logged := func(m message) bool { return slices.ContainsFunc(w.log, func(a answer) bool { return a.m == m }) }
	drop := func(m message) bool { return idle(m) && (settled(w.runs[m.run-1].State) || logged(m)) }
	if slices.ContainsFunc(w.sent, drop) {
		w.sent = slices.DeleteFunc(slices.Clone(w.sent), drop)
		w.log = slices.DeleteFunc(slices.Clone(w.log), func(a answer) bool { return idle(a.m) })
	}
}

// callback is what the plane does with a callback: the stored answer of one that was
// accepted before, else a step, and what has no authority is evidence.
func (m *model) callback(n *world, msg message, changed *bool) (answer, bool) {
	for _, a := range n.log {
		if a.m == msg {
			return a, false
		}
	}
	before := n.runs[msg.run-1]
	e := msg.event()
	var was lent
	if l := n.lease(msg.fence); l != nil {
		was = *l
	}
	fault := m.apply(n, msg.run, e)
	if fault != nil {
		final, _ := fault.Details["final"].(bool)
		if final && fault.Code == ops.StaleFence {
			m.apply(n, msg.run, Event{Kind: OnEvidenceRecorded, Of: e.Kind, Evidence: 1, Worker: e.Worker, Boot: e.Boot, Fence: e.Fence,
				Succeeded: e.Succeeded, Live: e.Live, Checks: e.Checks, Recover: span(ticksRecover)})
			*changed = n.runs[msg.run-1] != before
		}
		return answer{}, final
	}
	*changed = true
	n.authority(msg, before, was)
	r := n.runs[msg.run-1]
	a := answer{m: msg, state: r.State, stop: r.State == CancelRequested}
	if l := n.lease(msg.fence); l != nil {
		switch e.Kind {
		case OnMutationIntended:
			l.change = 'i'
		case OnMutationProved:
			l.change = 'A'
			if msg.done {
				l.change = 'D'
			}
		}
		if r.State.HasLease() {
			a.leased = true
			if e.Kind == OnStarted || e.Kind == OnHeartbeat || e.Kind == OnCheckpoint {
				a.until, a.at = tick(r.LeaseUntil), n.now
				l.until = max(l.until, min(n.now+ticksTTL, tick(r.Deadline)))
				if r.State == CancelRequested {
					l.until = tick(r.LeaseUntil)
				}
			}
		}
	}
	n.log = append(slices.Clone(n.log), a)
	n.last[msg.run-1], n.count[msg.run-1] = msg, n.count[msg.run-1]+1
	return a, false
}

// hear is what a worker does with an answer.
func (n *world) hear(msg message, a answer, final bool) {
	k := &n.workers[msg.worker]
	k.wait = message{}
	l := n.lease(k.fence)
	if a.m.say == 0 { // It was refused.
		l.killed = max(l.killed, k.until)
		if final {
			k.gone = true
			return
		}
		k.ended = false // It may say something else in its place.
		k.words++
		return
	}
	k.seq, k.prev = msg.seq, msg.digest()
	k.stop = k.stop || a.stop
	if a.until > 0 {
		k.until = max(k.until, msg.at+a.until-a.at)
	} else if !a.leased {
		k.gone = true
		l.killed = max(l.killed, k.until)
	}
	if n.now >= k.until { // By its own clock it has no lease.
		k.gone = true
		l.killed = max(l.killed, k.until)
		return
	}
	switch sayings[msg.say] {
	case OnStarted:
		if a.state == Running && !k.stop {
			k.begun, l.alive = true, true
		}
	case OnMutationIntended:
		l.may = l.alive
	}
}

// forge delivers messages that the run's own worker would not send: another's, another
// boot's, under an older fence, out of place, of files that are not there. All are
// refused, so they lead nowhere.
func (m *model) forge(w *world) {
	for run := int8(1); run <= int8(w.d.Attempts); run++ {
		s := w.snapshot(run)
		r := s.Run
		known := seenRow{run: r, now: w.now, cancel: w.d.Cancel, closed: w.d.Closed}
		if r.Fence == 0 || m.forgedAt[known] {
			continue
		}
		m.forgedAt[known] = true
		right := Event{Worker: r.Worker, Boot: r.Boot, Fence: r.Fence, Seq: r.Seq + 1, Prev: r.Prev, Digest: "forged", Lease: span(ticksTTL), Alive: true,
			Stored: true, Succeeded: true, Checks: enough, Recover: span(ticksRecover)}
		for what, wrong := range forgeries {
			for _, k := range []EventKind{OnStarted, OnHeartbeat, OnCheckpoint, OnResult, OnCancelProof} {
				e := right
				e.Kind = k
				if !wrong(&e, k) {
					continue
				}
				if _, _, fault := m.step(s, e, at(w.now)); fault == nil {
					m.doing = action{what: string(k) + " comes of run", n: run}
					violated("a message was accepted that is %s", what)
				}
			}
		}
	}
}

// seenRow is what an answer to a forged message depends on.
type seenRow struct {
	run            Run
	now            int8
	cancel, closed bool
}

var forgeries = map[string]func(*Event, EventKind) bool{
	"of another worker":    func(e *Event, _ EventKind) bool { e.Worker = names[1-slices.Index(names, e.Worker)]; return true },
	"of another boot":      func(e *Event, _ EventKind) bool { e.Boot = "b9"; return true },
	"of an older fence":    func(e *Event, _ EventKind) bool { e.Fence--; return true },
	"of a later fence":     func(e *Event, _ EventKind) bool { e.Fence++; return true },
	"behind a gap":         func(e *Event, _ EventKind) bool { e.Seq++; return true },
	"of a number again":    func(e *Event, _ EventKind) bool { e.Seq--; return true },
	"of another chain":     func(e *Event, _ EventKind) bool { e.Prev = "elsewhere"; return true },
	"of files not stored":  func(e *Event, k EventKind) bool { e.Stored = false; return k == OnResult },
	"with a live process":  func(e *Event, k EventKind) bool { e.Live = 1; return k == OnCancelProof },
	"looked for once only": func(e *Event, k EventKind) bool { e.Checks = 1; return k == OnCancelProof },
}

// action is what was done, for a trace.
type action struct {
	what string
	n    int8
	m    message
}

func (a action) String() string {
	s := a.what
	if a.n > 0 {
		s += fmt.Sprintf(" %d", a.n)
	}
	if a.m.say != 0 {
		s = a.m.String() + " " + s
	}
	return s
}
