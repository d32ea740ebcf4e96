package tests

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"inband/ops"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// What a client may conclude from what it was told, whatever was lost on the way. The model
// knows nothing of how the plane is made: it is what plane.md promises to who stands
// outside.

// deedKind is what a client did.
type deedKind string

const (
	granted  deedKind = "granted"  // it got a lease on a run or a verification
	saidThat deedKind = "said"     // it sent a callback
	left     deedKind = "left"     // it gave up a lease by itself, and its command has ended
	saw      deedKind = "saw"      // it read a delegation
	stopped  deedKind = "canceled" // it cancelled a delegation
)

// deed is one operation of a client on one delegation, with its answer.
type deed struct {
	Client string
	Kind   deedKind
	Sure   bool // an answer came; else it may have happened at any time since, or not at all

	Sent, Got time.Duration // since the run began; Sent of the first attempt
	Header    wire.Header
	Attempt   int            // granted
	Until     time.Duration  // granted: until then the holder may count on it
	Producer  ops.IdentityID // granted, a verification: of the result

	Message wire.Kind // said
	Digest  string
	Claims  bool // a result that says it succeeded, a verdict that says passed
	Ack     wire.Ack
	Refused ops.Code // of a callback that was refused for good

	Seen seenWhole // saw, stopped
}

// seenWhole is a delegation as it was shown.
type seenWhole struct {
	State    plane.DelegationState
	Closed   bool
	Cancel   bool
	Attempts int
	Runs     []seenRun // the latest first
}

type seenRun struct {
	Run     string
	Attempt int
	State   plane.State
	Fence   int64
}

// paths are the transitions of a run that need no new lease.
var paths = map[plane.State][]plane.State{
	plane.Dispatched:      {plane.Cancelled, plane.Failed},
	plane.Leased:          {plane.Running, plane.CancelRequested, plane.Unknown},
	plane.Running:         {plane.Checkpointed, plane.Succeeded, plane.Failed, plane.WaitingHuman, plane.CancelRequested, plane.Unknown},
	plane.Checkpointed:    {plane.Succeeded, plane.Failed, plane.WaitingHuman, plane.CancelRequested, plane.Unknown},
	plane.CancelRequested: {plane.Cancelled, plane.Succeeded, plane.Failed, plane.Unknown},
	plane.Unknown:         {plane.Recovering},
	plane.Recovering:      {plane.Succeeded, plane.Failed, plane.Cancelled, plane.WaitingHuman},
	plane.WaitingHuman:    {plane.Dispatched, plane.Recovering, plane.Succeeded, plane.Failed, plane.Cancelled},
	plane.Failed:          {plane.Exhausted},
}

// comes is what may come of each state, itself included.
var comes = func() map[plane.State]map[plane.State]bool {
	all := map[plane.State]map[plane.State]bool{}
	for _, from := range plane.States() {
		all[from] = map[plane.State]bool{from: true}
		for open := []plane.State{from}; len(open) > 0; open = open[1:] {
			for _, to := range paths[open[0]] {
				if !all[from][to] {
					all[from][to] = true
					open = append(open, to)
				}
			}
		}
	}
	return all
}()

// over reports whether a new run may follow one in s.
func over(s plane.State) bool { return s == plane.Failed || s.Final() }

// leaseKnown is what is known of the leases on a run or a verification and of what was said
// under them.
type leaseKnown struct {
	Fence  int64
	Worker ops.IdentityID // "" if nobody told
	Until  time.Duration  // until then the holder may count on its lease
	Left   bool           // it does not, by its own doing
	Seq    int64
	Acks   map[int64]wire.Ack // by sequence
	May    map[int64][]string // digests of what was sent and not answered
}

func (l leaseKnown) copied() leaseKnown {
	l.Acks, l.May = maps.Clone(l.Acks), maps.Clone(l.May)
	return l
}

type runKnown struct {
	leaseKnown
	Attempt int
	State   plane.State
	Claimed bool // its owner has said that it succeeded
}

type verificationKnown struct {
	leaseKnown
	Run  string
	Over bool
}

// known is the state of the model: one delegation.
type known struct {
	State         plane.DelegationState
	Closed        bool
	Attempts      int
	Cancel        bool // somebody has cancelled it
	MayCancel     bool // or may have
	MayPass       bool // a verdict passed may have been taken
	Passed        bool
	Fence         int64
	Runs          map[string]runKnown
	Verifications map[string]verificationKnown
	Latest        string // verification
}

func (k known) copied() known {
	k.Runs, k.Verifications = maps.Clone(k.Runs), maps.Clone(k.Verifications)
	return k
}

// delegationModel is the model of one delegation, for porcupine.
func delegationModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
			by := map[string][]porcupine.Operation{}
			for _, o := range all {
				id := o.Input.(deed).Header.Delegation
				by[id] = append(by[id], o)
			}
			for _, id := range slices.Sorted(maps.Keys(by)) {
				parts = append(parts, by[id])
			}
			return parts
		},
		Init: func() any {
			return known{State: plane.Open, Attempts: 1, Runs: map[string]runKnown{}, Verifications: map[string]verificationKnown{}}
		},
		Step: func(state, input, _ any) (bool, any) {
			k := state.(known).copied()
			ok := k.take(input.(deed))
			return ok, k
		},
		Equal: reflect.DeepEqual,
	}
}

// take says whether d can have happened now, and learns from it.
func (k *known) take(d deed) bool {
	h := d.Header
	switch d.Kind {
	case granted:
		if h.Verification != "" {
			return k.judges(d)
		}
		return k.leases(d)
	case left:
		if h.Verification != "" {
			v := k.Verifications[h.Verification]
			v.Left = v.Left || v.Fence == h.Fence
			k.Verifications[h.Verification] = v
			return true
		}
		r := k.Runs[h.Run]
		r.Left = r.Left || r.Fence == h.Fence
		k.Runs[h.Run] = r
		return true
	case saidThat:
		if h.Verification != "" {
			return k.heardVerifier(d)
		}
		return k.heard(d)
	case saw:
		return k.shows(d.Seen)
	case stopped:
		k.MayCancel = true
		if !d.Sure {
			return true
		}
		k.Cancel = true
		return d.Seen.Cancel && k.shows(d.Seen)
	}
	return false
}

// observe learns that a run is in a state; fence 0 is one that was not told.
func (k *known) observe(run string, attempt int, fence int64, to plane.State) bool {
	r, was := k.Runs[run]
	switch {
	case !was:
		r = runKnown{Attempt: attempt, State: plane.Dispatched}
	case r.Attempt != attempt:
		return false
	}
	if fence == 0 {
		fence = r.Fence
	}
	switch {
	case fence < r.Fence:
		return false
	case fence == r.Fence && was && !comes[r.State][to]:
		return false
	case fence > r.Fence:
		// It was offered once more meanwhile, or for the first time, and taken.
		if r.Until, r.Left, r.Worker = 0, false, ""; !comes[r.State][plane.Dispatched] || k.Closed {
			return false
		}
	}
	if to == plane.Succeeded && !r.Claimed {
		return false
	}
	if attempt > k.Attempts {
		k.Attempts, k.State = attempt, plane.Open
		if k.Closed || k.Passed {
			return false
		}
	}
	r.Fence, r.State = fence, to
	k.Fence = max(k.Fence, fence)
	k.Runs[run] = r
	return k.alone()
}

// alone reports whether no run but the latest can be anything but over.
func (k *known) alone() bool {
	for id, r := range k.Runs {
		if r.Attempt >= k.Attempts || over(r.State) {
			continue
		}
		ends := false
		for to := range comes[r.State] {
			ends = ends || over(to)
		}
		if !ends {
			return false
		}
		r.State = plane.Failed // or cancelled, or succeeded and then refused: it is over
		k.Runs[id] = r
	}
	return true
}

// leases takes a lease on a run.
func (k *known) leases(d deed) bool {
	h := d.Header
	if r, ok := k.Runs[h.Run]; ok && r.Fence == h.Fence && r.Attempt == d.Attempt && (r.Worker == "" || r.Worker == h.Worker) {
		// The same poll again, or somebody saw it first.
		if !r.State.HasLease() || h.Seq < r.Seq || !r.reaches(h.Seq) {
			return false
		}
		r.Worker, r.Until, r.Seq = h.Worker, max(r.Until, d.Until), h.Seq
		k.Runs[h.Run] = r
		return true
	}
	if k.Closed || k.Cancel || k.Passed || h.Fence <= k.Fence {
		return false
	}
	for _, r := range k.Runs {
		if !r.Left && r.Worker != "" && d.Got < r.Until {
			return false // somebody else still counts on its lease
		}
	}
	if before := k.Runs[h.Run]; h.Seq < before.Seq || !before.reaches(h.Seq) {
		return false
	}
	if !k.observe(h.Run, d.Attempt, h.Fence, plane.Leased) || d.Attempt != k.Attempts {
		return false
	}
	r := k.Runs[h.Run]
	r.Worker, r.Until, r.Left, r.Seq = h.Worker, d.Until, false, h.Seq
	k.Runs[h.Run] = r
	return true
}

// reaches reports whether the messages up to seq were all taken or may have been.
func (l leaseKnown) reaches(seq int64) bool {
	for n := l.Seq + 1; n <= seq; n++ {
		if len(l.May[n]) == 0 {
			return false
		}
	}
	return true
}

// hears takes a callback under a lease and says whether it is news. May holds what was sent
// without an answer.
func (l *leaseKnown) hears(d deed, live bool) (news, ok bool) {
	h := d.Header
	*l = l.copied()
	if !d.Sure {
		if l.May == nil {
			l.May = map[int64][]string{}
		}
		l.May[h.Seq] = append(slices.Clone(l.May[h.Seq]), d.Digest)
		return false, true
	}
	if d.Ack.Seq != h.Seq || d.Ack.Digest != d.Digest || d.Ack.Subject != h.Subject() {
		return false, false
	}
	ack := d.Ack
	ack.Replayed = false
	if before, ok := l.Acks[h.Seq]; ok { // then it must be the very same
		return false, before == ack
	}
	if l.Acks == nil {
		l.Acks = map[int64]wire.Ack{}
	}
	l.Acks[h.Seq] = ack
	if h.Seq <= l.Seq {
		return false, slices.Contains(l.May[h.Seq], d.Digest)
	}
	if !live || l.Worker != h.Worker || l.Fence != h.Fence || !l.reaches(h.Seq-1) {
		return false, false
	}
	l.Seq = h.Seq
	if ack.Final {
		l.Left = true
	} else {
		l.Until = max(l.Until, d.Sent+time.Duration(ack.LeaseMS)*time.Millisecond)
	}
	return true, true
}

// heard takes what a worker said of a run.
func (k *known) heard(d deed) bool {
	h := d.Header
	r := k.Runs[h.Run]
	if d.Message == wire.KindResult && d.Claims && (r.Worker == h.Worker || r.Worker == "") {
		r.Claimed = true // be it too late: it may be adopted
	}
	if d.Refused != "" {
		k.Runs[h.Run] = r
		return true
	}
	news, ok := r.hears(d, r.State.HasLease() && !k.Closed)
	k.Runs[h.Run] = r
	if !ok || !news {
		return ok
	}
	to := plane.State(d.Ack.State)
	if d.Ack.Final == to.HasLease() || d.Message == wire.KindResult && d.Claims && to != plane.Succeeded {
		return false
	}
	if !k.observe(h.Run, r.Attempt, h.Fence, to) {
		return false
	}
	if to == plane.Succeeded && !k.Closed && k.State == plane.Open && !k.MayCancel {
		k.State = plane.Verifying
	}
	return true
}

// judges takes a lease on a verification.
func (k *known) judges(d deed) bool {
	h := d.Header
	v, was := k.Verifications[h.Verification]
	if was && v.Fence == h.Fence && v.Worker == h.Worker {
		if v.Over || h.Seq < v.Seq || !v.reaches(h.Seq) {
			return false
		}
		v.Until, v.Seq = max(v.Until, d.Until), h.Seq
		k.Verifications[h.Verification] = v
		return true
	}
	if k.Closed || k.Cancel || k.Passed || v.Over || h.Verification < k.Latest || h.Fence <= v.Fence || d.Producer == h.Worker {
		return false
	}
	for _, v := range k.Verifications {
		if !v.Left && d.Got < v.Until {
			return false
		}
	}
	if h.Seq < v.Seq || !v.reaches(h.Seq) || !k.observe(h.Run, d.Attempt, 0, plane.Succeeded) || d.Attempt != k.Attempts {
		return false
	}
	if r := k.Runs[h.Run]; r.Worker != "" && r.Worker != d.Producer {
		return false
	}
	v.leaseKnown = v.copied()
	v.Fence, v.Worker, v.Until, v.Left, v.Seq, v.Run = h.Fence, h.Worker, d.Until, false, h.Seq, h.Run
	k.Verifications[h.Verification], k.Latest = v, h.Verification
	if k.State == plane.Open {
		k.State = plane.Verifying
	}
	return true
}

// heardVerifier takes what a verifier said.
func (k *known) heardVerifier(d deed) bool {
	h := d.Header
	v := k.Verifications[h.Verification]
	if d.Message == wire.KindVerdict && d.Claims && d.Refused == "" {
		k.MayPass = true
	}
	if d.Refused != "" {
		return true
	}
	news, ok := v.hears(d, !v.Over && !k.Closed && h.Verification == k.Latest)
	if ok && news && d.Ack.Final {
		v.Over = true
	}
	k.Verifications[h.Verification] = v
	if !ok || !news || d.Message != wire.KindVerdict {
		return ok
	}
	if !d.Ack.Final || k.Runs[v.Run].Attempt != k.Attempts {
		return false
	}
	switch plane.VerificationState(d.Ack.State) {
	case plane.JudgedPassed:
		if !d.Claims || k.Cancel {
			return false
		}
		k.Passed, k.Closed, k.State = true, true, plane.Completed
	case plane.JudgedLacking:
		k.State = plane.EvidenceMissing
	case plane.JudgedFailed:
		if d.Claims {
			return false
		}
		// A new run comes, or the end: either is seen later.
	default:
		return false
	}
	return true
}

// shows takes a delegation as it was shown.
func (k *known) shows(s seenWhole) bool {
	switch {
	case s.Attempts < k.Attempts, k.Closed && (!s.Closed || s.State != k.State || s.Attempts != k.Attempts):
		return false
	case k.Cancel && !s.Cancel, s.Cancel && !k.MayCancel:
		return false
	case s.Attempts == k.Attempts && s.State == plane.Open && k.State != plane.Open:
		return false
	case k.Passed && s.State != plane.Completed:
		return false
	}
	switch s.State {
	case plane.Completed:
		if !k.Passed && !k.MayPass || k.Cancel {
			return false
		}
		fallthrough
	case plane.VerificationFailed, plane.DelegationExhausted:
		if !s.Closed {
			return false
		}
	case plane.DelegationCancelled:
		if !s.Closed || !k.MayCancel {
			return false
		}
	}
	if len(s.Runs) != s.Attempts {
		return false
	}
	for i, r := range slices.Backward(s.Runs) {
		if r.Attempt != s.Attempts-i || i > 0 && !over(r.State) || s.Closed && !over(r.State) {
			return false
		}
		if before, ok := k.Runs[r.Run]; ok && over(before.State) && before.Attempt < k.Attempts {
			if r.Fence < before.Fence || !over(r.State) {
				return false
			}
			continue // how exactly it ended may have been guessed
		}
		if !k.observe(r.Run, r.Attempt, r.Fence, r.State) {
			return false
		}
	}
	if s.State != plane.Open && s.State != plane.DelegationCancelled && s.State != plane.DelegationExhausted && s.Runs[0].State != plane.Succeeded {
		return false
	}
	k.State, k.Closed, k.Attempts = s.State, s.Closed, s.Attempts
	k.Cancel = k.Cancel || s.Cancel
	return true
}

// history collects deeds as operations.
func history(deeds []deed, end time.Duration) (all []porcupine.Operation) {
	for i, d := range deeds {
		o := porcupine.Operation{ClientId: i, Input: d, Call: int64(d.Sent), Return: int64(d.Got)}
		if !d.Sure {
			o.Return = int64(end)
		}
		all = append(all, o)
	}
	return all
}

// tale is a history in the making: each deed comes after the one before it.
type tale struct {
	deeds []deed
	at    time.Duration
}

const (
	step = 100 * time.Millisecond
	term = 2 * time.Second // of a lease
)

func (s *tale) add(d deed) {
	s.at += step
	d.Header.Delegation, d.Sure = "d", true
	d.Sent, d.Got = s.at, s.at+step/2
	d.Until = s.at + term
	s.deeds = append(s.deeds, d)
}

func (s *tale) grant(worker ops.IdentityID, run string, attempt int, fence, seq int64) {
	s.add(deed{Kind: granted, Attempt: attempt, Header: wire.Header{Run: run, Worker: worker, Fence: fence, Seq: seq}})
}

func (s *tale) say(worker ops.IdentityID, run string, fence, seq int64, what wire.Kind, to plane.State) {
	s.add(callback(wire.Header{Run: run, Worker: worker, Fence: fence, Seq: seq}, what, string(to), !to.HasLease()))
}

func callback(h wire.Header, what wire.Kind, to string, final bool) deed {
	d := deed{Kind: saidThat, Message: what, Digest: h.Subject() + string(what) + string(rune('0'+h.Seq)), Header: h, Claims: what == wire.KindResult && to == "SUCCEEDED" || to == "PASSED"}
	d.Ack = wire.Ack{Subject: h.Subject(), Seq: h.Seq, Digest: d.Digest, State: to, Final: final}
	if !final {
		d.Ack.LeaseMS = term.Milliseconds()
	}
	return d
}

func (s *tale) judge(verifier ops.IdentityID, v, run string, attempt int, fence int64) {
	s.add(deed{Kind: granted, Attempt: attempt, Producer: "w1", Header: wire.Header{Run: run, Verification: v, Worker: verifier, Fence: fence}})
}

func (s *tale) verdict(verifier ops.IdentityID, v, run string, fence, seq int64, to plane.VerificationState) {
	s.add(callback(wire.Header{Run: run, Verification: v, Worker: verifier, Fence: fence, Seq: seq}, wire.KindVerdict, string(to), true))
}

func (s *tale) see(state plane.DelegationState, closed, cancel bool, runs ...seenRun) {
	s.add(deed{Kind: saw, Seen: seenWhole{State: state, Closed: closed, Cancel: cancel, Attempts: len(runs), Runs: runs}})
}

// completed is a right history: a run is lost, the next one is verified.
func completed() *tale {
	s := &tale{}
	s.grant("w1", "r1", 1, 1, 0)
	s.say("w1", "r1", 1, 1, wire.KindStarted, plane.Running)
	s.see(plane.Open, false, false, seenRun{"r1", 1, plane.Running, 1})
	s.at += 2 * term // it is lost
	s.grant("w1", "r2", 2, 2, 0)
	s.say("w1", "r2", 2, 1, wire.KindStarted, plane.Running)
	s.say("w1", "r2", 2, 2, wire.KindHeartbeat, plane.Running)
	s.say("w1", "r2", 2, 3, wire.KindResult, plane.Succeeded)
	s.judge("v1", "v-1", "r2", 2, 1)
	s.verdict("v1", "v-1", "r2", 1, 1, plane.JudgedPassed)
	s.see(plane.Completed, true, false, seenRun{"r2", 2, plane.Succeeded, 2}, seenRun{"r1", 1, plane.Failed, 1})
	return s
}

// The model takes histories that are right, whatever is not known in them, and refuses
// those that break a promise, each for one thing that is wrong with it.
func TestPlaneHistoryModel(t *testing.T) {
	cancel := func(s *tale, seen seenWhole) { s.add(deed{Kind: stopped, Seen: seen}) }
	running := func() *tale {
		s := &tale{}
		s.grant("w1", "r1", 1, 1, 0)
		s.say("w1", "r1", 1, 1, wire.KindStarted, plane.Running)
		return s
	}
	succeeded := func() *tale {
		s := running()
		s.say("w1", "r1", 1, 2, wire.KindResult, plane.Succeeded)
		return s
	}
	tests := []struct {
		name  string
		right bool
		tell  func() *tale
	}{
		{"a run is lost and the next one verified", true, completed},
		{"a replay gets the stored acknowledgement", true, func() *tale {
			s := running()
			again := s.deeds[1]
			again.Ack.Replayed = true
			s.add(again)
			return s
		}},
		{"the answer to a heartbeat is lost, and it was taken", true, func() *tale {
			s := running()
			s.say("w1", "r1", 1, 2, wire.KindHeartbeat, plane.Running)
			s.deeds[2].Sure = false
			s.say("w1", "r1", 1, 3, wire.KindHeartbeat, plane.Running)
			return s
		}},
		{"the answer to a verdict is lost, and it was taken", true, func() *tale {
			s := completed()
			s.deeds[8].Sure = false
			return s
		}},
		{"a late result is adopted", true, func() *tale {
			s := running()
			s.at += 2 * term
			s.add(deed{Kind: saidThat, Message: wire.KindResult, Claims: true, Refused: ops.StaleFence, Header: wire.Header{Run: "r1", Worker: "w1", Fence: 1, Seq: 2}})
			s.see(plane.Verifying, false, false, seenRun{"r1", 1, plane.Succeeded, 1})
			return s
		}},
		{"a person answers, and the same run goes on under the next fence", true, func() *tale {
			s := running()
			s.say("w1", "r1", 1, 2, wire.KindHumanWait, plane.WaitingHuman)
			s.see(plane.Open, false, false, seenRun{"r1", 1, plane.Dispatched, 1})
			s.grant("w2", "r1", 1, 2, 2)
			s.say("w2", "r1", 2, 3, wire.KindStarted, plane.Running)
			return s
		}},
		{"cancelled, with a tombstone", true, func() *tale {
			s := running()
			cancel(s, seenWhole{State: plane.Open, Cancel: true, Attempts: 1, Runs: []seenRun{{"r1", 1, plane.CancelRequested, 1}}})
			s.say("w1", "r1", 1, 2, wire.KindCancelProof, plane.Cancelled)
			s.see(plane.DelegationCancelled, true, true, seenRun{"r1", 1, plane.Cancelled, 1})
			return s
		}},

		{"a lost acknowledgement: a result was acknowledged, and the run runs", false, func() *tale {
			s := succeeded()
			s.see(plane.Open, false, false, seenRun{"r1", 1, plane.Running, 1})
			return s
		}},
		{"a lost acknowledgement: the lease is told with an earlier sequence", false, func() *tale {
			s := running()
			s.grant("w1", "r1", 1, 1, 0)
			return s
		}},
		{"two holders: another has the run before the first has lost it", false, func() *tale {
			s := running()
			s.grant("w2", "r2", 2, 2, 0)
			return s
		}},
		{"two holders: the old one is acknowledged still", false, func() *tale {
			s := running()
			s.at += 2 * term
			s.grant("w2", "r2", 2, 2, 0)
			s.say("w1", "r1", 1, 2, wire.KindHeartbeat, plane.Running)
			return s
		}},
		{"a fence that does not rise", false, func() *tale {
			s := running()
			s.at += 2 * term
			s.grant("w2", "r2", 2, 1, 0)
			return s
		}},
		{"a backwards read: a run that waited to be recovered runs", false, func() *tale {
			s := running()
			s.see(plane.Open, false, false, seenRun{"r1", 1, plane.Unknown, 1})
			s.see(plane.Open, false, false, seenRun{"r1", 1, plane.Running, 1})
			return s
		}},
		{"a backwards read: a delegation that was closed is open", false, func() *tale {
			s := completed()
			s.see(plane.Verifying, false, false, seenRun{"r2", 2, plane.Succeeded, 2}, seenRun{"r1", 1, plane.Failed, 1})
			return s
		}},
		{"a backwards read: a run is missing", false, func() *tale {
			s := completed()
			s.deeds = s.deeds[:4]
			s.see(plane.Open, false, false, seenRun{"r1", 1, plane.Unknown, 1})
			return s
		}},
		{"completed without a verdict", false, func() *tale {
			s := completed()
			s.deeds = slices.Delete(s.deeds, 8, 9)
			return s
		}},
		{"completed by a verdict that said failed", false, func() *tale {
			s := completed()
			s.deeds[8].Claims, s.deeds[8].Ack.State = false, string(plane.JudgedFailed)
			return s
		}},
		{"completed by who did not hold the verification", false, func() *tale {
			s := completed()
			s.deeds[8].Header.Worker = "v2"
			return s
		}},
		{"judged by who did it", false, func() *tale {
			s := completed()
			s.deeds[7].Header.Worker, s.deeds[8].Header.Worker = "w1", "w1"
			return s
		}},
		{"succeeded, and nobody said so", false, func() *tale {
			s := running()
			s.see(plane.Verifying, false, false, seenRun{"r1", 1, plane.Succeeded, 1})
			return s
		}},
		{"two answers for one sequence: two messages", false, func() *tale {
			s := running()
			s.say("w1", "r1", 1, 1, wire.KindHeartbeat, plane.Running)
			return s
		}},
		{"two answers for one sequence: two acknowledgements", false, func() *tale {
			s := running()
			again := s.deeds[1]
			again.Ack.State = string(plane.CancelRequested)
			s.add(again)
			return s
		}},
		{"a gap is taken", false, func() *tale {
			s := running()
			s.say("w1", "r1", 1, 3, wire.KindHeartbeat, plane.Running)
			return s
		}},
		{"another's run is taken", false, func() *tale {
			s := running()
			s.say("w2", "r1", 1, 2, wire.KindHeartbeat, plane.Running)
			return s
		}},
		{"something is acknowledged after the end", false, func() *tale {
			s := succeeded()
			s.say("w1", "r1", 1, 3, wire.KindHeartbeat, plane.Running)
			return s
		}},
		{"cancelled by nobody", false, func() *tale {
			s := running()
			s.see(plane.DelegationCancelled, true, false, seenRun{"r1", 1, plane.Cancelled, 1})
			return s
		}},
		{"cancelled, and granted again", false, func() *tale {
			s := running()
			cancel(s, seenWhole{State: plane.Open, Cancel: true, Attempts: 1, Runs: []seenRun{{"r1", 1, plane.CancelRequested, 1}}})
			s.at += 2 * term
			s.grant("w2", "r2", 2, 2, 0)
			return s
		}},
		{"cancelled, and completed", false, func() *tale {
			s := succeeded()
			s.judge("v1", "v-1", "r1", 1, 1)
			cancel(s, seenWhole{State: plane.DelegationCancelled, Closed: true, Cancel: true, Attempts: 1, Runs: []seenRun{{"r1", 1, plane.Succeeded, 1}}})
			s.verdict("v1", "v-1", "r1", 1, 1, plane.JudgedPassed)
			return s
		}},
		{"closed, and its run is live", false, func() *tale {
			s := running()
			cancel(s, seenWhole{State: plane.DelegationCancelled, Closed: true, Cancel: true, Attempts: 1, Runs: []seenRun{{"r1", 1, plane.CancelRequested, 1}}})
			return s
		}},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, ":", ""), func(t *testing.T) {
			s := tt.tell()
			got := porcupine.CheckOperations(delegationModel(), history(s.deeds, s.at+term))
			if got != tt.right {
				t.Errorf("the model says %v, want %v, to %+v", got, tt.right, s.deeds)
			}
		})
	}
}
