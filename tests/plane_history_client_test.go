package tests

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// Bounds of clients.
const (
	askWithin = 1500 * time.Millisecond // for one attempt
	patience  = 7 * time.Second         // for all attempts at one thing
)

// outcome is how an attempt, or all of them, ended.
type outcome int

const (
	unknown outcome = iota // no answer, or none that settles it
	taken
	refused // for good: it has not happened and never will
)

// ask makes one attempt. The fault is of an answer that is one.
func (p *past) ask(ctx context.Context, token, method, path string, body []byte, v any) (status int, fault ops.Fault, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, fault, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "respond-async")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return 0, fault, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil {
		return 0, fault, err
	}
	switch {
	case res.StatusCode >= 300:
		err = json.Unmarshal(answer, &fault)
	case v != nil && len(answer) > 0:
		err = json.Unmarshal(answer, v)
	}
	if err != nil {
		p.wrong("%s %s: status %d, and the answer is %.200s", method, path, res.StatusCode, answer)
	}
	return res.StatusCode, fault, err
}

// settledAs says what an attempt has come to.
func settledAs(status int, fault ops.Fault, err error) outcome {
	switch {
	case err != nil:
		return unknown
	case status < 300:
		return taken
	case fault.Details["final"] == true:
		return refused
	}
	return unknown
}

// hand is a worker or a verifier that speaks the protocol by itself.
type hand struct {
	p        *past
	id       ops.IdentityID
	role     ops.Role
	key      ed25519.PrivateKey
	planeKey ed25519.PublicKey
	random   *rand.Rand
	boot     string
	token    string // "": it must begin a boot
	nonce    string // of its last poll
	asleep   []*grip
	said     []message       // that were acknowledged
	ended    map[string]bool // leases that it is done with
}

// grip is a lease that a hand has.
type grip struct {
	wire.Grant
	seq      int64
	prev     string
	until    time.Duration
	progress int64
	cancel   bool
	over     bool
}

// lease names the lease.
func (l *grip) lease() string { return fmt.Sprint(l.Subject(), " ", l.Fence) }

// message is a callback that was sent.
type message struct {
	envelope []byte
	deed     deed
}

func (w *hand) chance(percent int) bool { return w.random.IntN(100) < percent }

// enrol makes the identity, in fair weather.
func (w *hand) enrol(ctx context.Context) error {
	var invited plane.Invited
	body := fmt.Appendf(nil, `{"name":%q,"role":%q}`, w.id, w.role)
	if status, fault, err := w.p.ask(ctx, w.p.token, http.MethodPost, "/v1/workers/invitations", body, &invited); err != nil || status >= 300 {
		return fmt.Errorf("invite %s: %d %s %w", w.id, status, fault.Message, err)
	}
	envelope, _, err := wire.Seal(w.key, wire.KindEnrol, wire.Enrol{Token: invited.Token, PublicKey: w.key.Public().(ed25519.PublicKey)})
	if err != nil {
		return err
	}
	var enrolled wire.Enrolled
	if status, fault, err := w.p.ask(ctx, "", http.MethodPost, "/v1/plane/enrol", envelope, &enrolled); err != nil || status >= 300 {
		return fmt.Errorf("enrol %s: %d %s %w", w.id, status, fault.Message, err)
	}
	w.planeKey = enrolled.PlaneKey
	return nil
}

// restart is what a crash and a new start of the worker is: whatever it had is gone, and
// its new boot says so, or some of it.
func (w *hand) restart(tellAll bool) {
	var runs []wire.BootRun
	for _, l := range w.asleep {
		w.p.leaves(w, l)
		if l.Verification == "" && (tellAll || w.chance(70)) {
			runs = append(runs, wire.BootRun{Run: l.Run, Live: []wire.Process{}})
		}
	}
	w.asleep, w.token, w.nonce = nil, "", ""
	w.boot = ulid.Make().String()
	for w.p.going.Err() == nil {
		var challenge struct{ Challenge string }
		status, fault, err := w.p.ask(w.p.going, "", http.MethodGet, "/v1/plane/challenge?worker="+string(w.id), nil, &challenge)
		if settledAs(status, fault, err) == taken {
			envelope, _, err := wire.Seal(w.key, wire.KindBoot, wire.Boot{Worker: w.id, Boot: w.boot, Challenge: challenge.Challenge, Version: "history", Runs: runs})
			if err != nil {
				w.p.wrong("%s: %v", w.id, err)
				return
			}
			var session wire.Session
			status, fault, err = w.p.ask(w.p.going, "", http.MethodPost, "/v1/plane/boots", envelope, &session)
			switch settledAs(status, fault, err) {
			case taken:
				w.token = session.Token
				w.p.count("boots")
				return
			case refused:
				w.p.wrong("%s: its boot is refused: %s %s", w.id, fault.Code, fault.Message)
				return
			}
		}
		pause(w.p.going, 50*time.Millisecond)
	}
}

// poll asks for work once, as often as it takes, and returns what it got.
func (w *hand) poll() *grip {
	if w.nonce == "" || !w.chance(5) { // sometimes the old one again
		w.nonce = ulid.Make().String()
	}
	body, err := json.Marshal(wire.Poll{Boot: w.boot, Nonce: w.nonce, WaitMS: 300})
	if err != nil {
		w.p.wrong("%v", err)
		return nil
	}
	first := w.p.now()
	for w.p.going.Err() == nil && w.p.now()-first < patience {
		var answer json.RawMessage
		sent := w.p.now()
		status, fault, err := w.p.ask(w.p.going, w.token, http.MethodPost, "/v1/plane/poll", body, &answer)
		switch settledAs(status, fault, err) {
		case taken:
			if len(answer) == 0 {
				return nil
			}
			return w.granted(answer, first, sent)
		case refused:
			if fault.Code != ops.StaleFence && fault.Code != ops.Unauthenticated {
				w.p.wrong("%s: its poll is refused: %s %s", w.id, fault.Code, fault.Message)
			}
			w.token = ""
			return nil
		}
		if fault.Code == ops.Unauthenticated {
			w.token = ""
			return nil
		}
		pause(w.p.going, 50*time.Millisecond)
	}
	return nil
}

// granted reads a grant.
func (w *hand) granted(envelope []byte, first, sent time.Duration) *grip {
	var g wire.Grant
	s, err := wire.Read(envelope, wire.MaxGrant)
	if err == nil {
		err = s.Prove(w.planeKey)
	}
	if err == nil {
		err = s.Decode(wire.KindGrant, &g)
	}
	if err != nil || g.Nonce != w.nonce || g.Worker != w.id || g.Boot != w.boot || (g.Verification != "") != (w.role == ops.Verifier) {
		w.p.wrong("%s: a grant that is not for it: %v %+v", w.id, err, g.Header)
		return nil
	}
	l := &grip{Grant: g, seq: g.Seq, prev: g.Prev, until: sent + time.Duration(g.TTLMS)*time.Millisecond}
	w.p.record(deed{Client: string(w.id), Kind: granted, Sure: true, Sent: first, Got: w.p.now(), Header: g.Header, Attempt: g.Attempt, Until: l.until, Producer: g.Producer})
	w.p.remember(g.Header)
	if w.ended[l.lease()] { // the same poll again; what it said last may still be on its way
		return nil
	}
	for _, o := range w.asleep {
		if o.lease() == l.lease() {
			return o // it has it already
		}
	}
	w.asleep = append(w.asleep, l)
	return l
}

// drop forgets a lease that is over.
func (w *hand) drop(l *grip) {
	w.asleep = slices.DeleteFunc(w.asleep, func(o *grip) bool { return o == l })
}

// seal signs a callback.
func (w *hand) seal(h wire.Header, kind wire.Kind, body any) (message, error) {
	h.SentAt = time.Now().UTC()
	envelope, digest, err := wire.SealCallback(w.key, kind, h, body)
	return message{envelope, deed{Client: string(w.id), Kind: saidThat, Header: h, Message: kind, Digest: digest}}, err
}

// send hands in a message until it is answered. What was acknowledged is recorded.
func (w *hand) send(m *message) (outcome, ops.Fault) {
	first := m.deed.Sent
	if first == 0 {
		first = w.p.now()
		m.deed.Sent = first
	}
	begun, last, patience := w.p.now(), ops.Fault{}, patience
	if w.chance(25) && !w.p.way.calm.Load() { // so that it may never know
		patience = 0
	}
	for again := true; again && w.p.going.Err() == nil; again = w.p.now()-begun < patience {
		var ack wire.Ack
		status, fault, err := w.p.ask(w.p.going, w.token, http.MethodPost, "/v1/plane/callbacks", m.envelope, &ack)
		switch o := settledAs(status, fault, err); {
		case o == taken:
			m.deed.Sure, m.deed.Got, m.deed.Ack = true, w.p.now(), ack
			w.p.record(m.deed)
			return taken, fault
		case o == refused && fault.Code != ops.Unauthenticated:
			return refused, fault
		case status == http.StatusConflict, fault.Code == ops.Unauthenticated, status == http.StatusBadRequest:
			return unknown, fault // it changes nothing, and a copy may still be on its way
		}
		last = fault
		pause(w.p.going, min(patience, 50*time.Millisecond))
	}
	return unknown, last
}

// say says the next thing of a lease, and reports whether it was acknowledged and the lease
// goes on.
func (w *hand) say(l *grip, kind wire.Kind, body any) bool {
	h := l.Header
	h.Seq, h.Prev = l.seq+1, l.prev
	m, err := w.seal(h, kind, body)
	if err != nil {
		w.p.wrong("%s: %v", w.id, err)
		return false
	}
	switch b := body.(type) {
	case wire.Result:
		m.deed.Claims = b.Succeeded
	case wire.Verdict:
		m.deed.Claims = b.Verdict == plane.Passed
	}
	switch o, fault := w.send(&m); o {
	case taken:
		ack := m.deed.Ack
		l.seq, l.prev, l.cancel = h.Seq, m.deed.Digest, ack.Cancel
		l.over = ack.Final
		l.until = max(l.until, m.deed.Sent+time.Duration(ack.LeaseMS)*time.Millisecond)
		w.said = append(w.said, m)
		if len(w.said) > 64 {
			w.said = w.said[1:]
		}
	case refused:
		l.over = true
		if fault.Code != ops.StaleFence {
			w.p.wrong("%s: %s %d of %s is refused: %s %s", w.id, kind, h.Seq, h.Subject(), fault.Code, fault.Message)
		}
		if kind == wire.KindResult {
			m.deed.Sure, m.deed.Got, m.deed.Refused = true, w.p.now(), fault.Code
			w.p.record(m.deed)
		}
	default: // from now on nobody knows what comes next
		l.over = true
		w.p.record(m.deed)
		if fault.Code == ops.Unauthenticated {
			w.token = ""
		}
	}
	if l.over {
		w.drop(l)
		w.ended[l.lease()] = true
		w.p.leaves(w, l)
	}
	return !l.over
}

// live is the life of a worker or verifier.
func (w *hand) live() {
	for w.p.going.Err() == nil {
		calm := w.p.way.calm.Load()
		if w.token == "" {
			w.restart(calm)
			continue
		}
		if !calm && w.chance(25) {
			w.lie()
		}
		var l *grip
		if len(w.asleep) > 0 && (calm || w.chance(40)) { // one that it has forgotten comes back
			if l = w.asleep[w.random.IntN(len(w.asleep))]; w.p.now() > l.until {
				w.p.count("workers that came back late")
			}
		} else {
			l = w.poll()
		}
		switch {
		case l == nil:
			pause(w.p.going, time.Duration(w.random.IntN(100))*time.Millisecond)
		case w.role == ops.Verifier:
			w.judge(l, calm)
		default:
			w.work(l, calm)
		}
		if !calm && w.chance(4) {
			w.token = ""
		}
	}
}

// breathe waits as a command that works would.
func (w *hand) breathe(calm bool) {
	if !calm {
		pause(w.p.going, time.Duration(w.random.IntN(int(historyHeartbeat))))
	}
}

// work does something with a run.
func (w *hand) work(l *grip, calm bool) {
	beat := func(alive bool) bool {
		l.progress++
		return w.say(l, wire.KindHeartbeat, wire.Heartbeat{Alive: alive, Progress: l.progress})
	}
	if l.seq == l.Seq { // it has not begun
		if !calm && w.chance(5) {
			return // and never does
		}
		if !w.say(l, wire.KindStarted, wire.Started{Process: &wire.Process{PID: 1 + w.random.IntN(1000), Start: "1"}}) {
			return
		}
	}
	for range w.random.IntN(4) {
		if l.cancel {
			break
		}
		w.breathe(calm)
		if !beat(true) {
			return
		}
	}
	if !l.cancel && w.chance(25) && !w.say(l, wire.KindCheckpoint, wire.Checkpoint{Progress: l.progress, Files: []wire.File{}}) {
		return
	}
	if !l.cancel && w.chance(8) {
		key := ulid.Make().String()
		if !w.say(l, wire.KindMutationIntended, wire.MutationIntended{Key: key, Action: "change something"}) {
			return
		}
		if !calm && w.chance(30) {
			return
		}
		if !w.say(l, wire.KindMutationProved, wire.MutationProved{Key: key, Done: w.chance(50), Proof: "it was looked at"}) {
			return
		}
	}
	switch n := w.random.IntN(100); {
	case l.cancel && w.chance(80):
		if w.say(l, wire.KindCancelAck, wire.CancelAck{}) {
			w.say(l, wire.KindCancelProof, wire.CancelProof{Live: []wire.Process{}, Checks: 2})
		}
	case calm || n < 60:
		w.say(l, wire.KindResult, wire.Result{Succeeded: true, Summary: "done", Files: []wire.File{}})
	case n < 68:
		w.say(l, wire.KindResult, wire.Result{Class: string(plane.TaskFailed), Exit: 1, Summary: "not done", Files: []wire.File{}})
	case n < 74 && !l.cancel:
		w.say(l, wire.KindHumanWait, wire.HumanWait{Question: "What now?"})
	case n < 78:
		w.say(l, wire.KindAbandoning, wire.Abandoning{Reason: "it ends", Live: []wire.Process{}})
	case n < 81:
		beat(false)
	case n < 90: // it stands still for longer than its lease, and then goes on as if nothing were
		pause(w.p.going, l.until-w.p.now()+time.Duration(w.random.IntN(int(historyLease))))
		w.p.count("workers that stood still")
		w.say(l, wire.KindResult, wire.Result{Succeeded: true, Summary: "late", Files: []wire.File{}})
	default: // it is forgotten, perhaps for now
	}
}

// judge does something with a verification.
func (w *hand) judge(l *grip, calm bool) {
	if !calm && w.chance(8) {
		return
	}
	if l.seq == l.Seq && !w.say(l, wire.KindStarted, wire.Started{}) {
		return
	}
	if w.chance(30) {
		w.breathe(calm)
		if !w.say(l, wire.KindHeartbeat, wire.Heartbeat{Alive: true, Progress: 1}) {
			return
		}
	}
	v := wire.Verdict{Verdict: plane.Passed, Checked: []wire.File{}, Reason: "it was tried"}
	switch n := w.random.IntN(100); {
	case calm || n < 65:
	case n < 80:
		v.Verdict, v.Exit = plane.Refused, 1
	case n < 90:
		v.Verdict = plane.Lacking
	default:
		return
	}
	w.say(l, wire.KindVerdict, v)
}

// lie says something that must not be taken. What is taken all the same is in the history,
// which the model refuses then.
func (w *hand) lie() {
	if len(w.said) == 0 {
		return
	}
	old := w.said[w.random.IntN(len(w.said))]
	h, key, kind := old.deed.Header, w.key, wire.KindHeartbeat
	body := any(wire.Heartbeat{Alive: true, Progress: 1 << 40, Note: "a lie"})
	var what string
	switch w.random.IntN(8) {
	case 0: // no lie: the same again must get the same answer
		again := message{envelope: old.envelope, deed: old.deed}
		if o, fault := w.send(&again); o == refused {
			w.p.wrong("%s: %s %d of %s was acknowledged and is refused now: %s %s", w.id, old.deed.Message, h.Seq, h.Subject(), fault.Code, fault.Message)
		}
		w.p.count("messages sent again")
		return
	case 1:
		what = "another message under a number that was taken"
	case 2:
		what = "an old fence"
		h.Fence--
		h.Seq, h.Prev = h.Seq+1, old.deed.Digest
	case 3:
		what = "another's lease"
		if o, ok := w.p.another(w.random, w.id); ok {
			h = o
			h.Worker, h.Boot = w.id, w.boot
			h.Seq++
		}
	case 4:
		what = "another's name"
		if o, ok := w.p.another(w.random, w.id); ok {
			h = o
			h.Seq++
		}
	case 5:
		what = "a gap"
		h.Seq, h.Prev = h.Seq+7, wire.Digest([]byte("nothing"))
	case 6:
		what = "a verdict of who may not"
		if o, ok := w.p.another(w.random, w.id); ok && w.role == ops.Worker {
			h = o
			h.Verification = cmp.Or(o.Verification, "v-"+strings.ToLower(ulid.Make().String()))
			h.Worker, h.Boot, h.Seq = w.id, w.boot, o.Seq+1
			kind, body = wire.KindVerdict, wire.Verdict{Verdict: plane.Passed, Checked: []wire.File{}, Reason: "a lie"}
		}
	case 7:
		what = "a changed envelope"
	}
	envelope, digest, err := wire.SealCallback(key, kind, h, body)
	if err != nil {
		w.p.wrong("%s: %v", w.id, err)
		return
	}
	if what == "a changed envelope" {
		if w.chance(50) {
			envelope = envelope[:len(envelope)-1-w.random.IntN(40)]
		} else {
			envelope = bytes.Replace(envelope, []byte(kind.PayloadType()), []byte(wire.KindAbandoning.PayloadType()), 1)
		}
	}
	sent := w.p.now()
	var ack wire.Ack
	status, fault, err := w.p.ask(w.p.going, w.token, http.MethodPost, "/v1/plane/callbacks", envelope, &ack)
	w.p.count("lies: " + what)
	if settledAs(status, fault, err) == taken {
		w.p.wrong("%s: %s was acknowledged: %s %+v", w.id, what, kind, h)
		w.p.record(deed{Client: string(w.id), Kind: saidThat, Sure: true, Sent: sent, Got: w.p.now(), Header: h, Message: kind, Digest: digest, Ack: ack})
	}
}

// operator is a person who hands out work, looks at it, cancels and decides.
type operator struct {
	p      *past
	name   string
	random *rand.Rand
}

func (o *operator) chance(percent int) bool { return o.random.IntN(100) < percent }

func (o *operator) live() {
	for o.p.going.Err() == nil {
		open, all := o.list()
		calm := o.p.way.calm.Load()
		if !calm && len(open) < historyOpen {
			o.spawn()
		}
		if calm {
			for _, d := range open {
				o.read(d.Delegation)
				o.decide(d, true)
			}
		} else {
			for range 3 {
				if len(all) > 0 {
					o.read(all[o.random.IntN(len(all))].Delegation)
				}
				if len(open) > 0 {
					d := open[o.random.IntN(len(open))]
					o.read(d.Delegation)
					if o.chance(4) {
						o.cancel(d.Delegation)
					}
					o.decide(d, false)
				}
			}
		}
		pause(o.p.going, time.Duration(100+o.random.IntN(200))*time.Millisecond)
	}
}

// list returns the delegations that are open, and all of the latest.
func (o *operator) list() (open, all []plane.DelegationListing) {
	var page plane.DelegationPage
	status, fault, err := o.p.ask(o.p.going, o.p.token, http.MethodGet, "/v1/delegations?limit=200", nil, &page)
	if settledAs(status, fault, err) != taken {
		return nil, nil
	}
	for _, d := range page.Delegations {
		if !d.Closed {
			open = append(open, d)
		}
	}
	return open, page.Delegations
}

// spawn hands out work, as often as it takes until it is acknowledged.
func (o *operator) spawn() {
	key := ulid.Make().String()
	params := map[string]any{"task": "something", "deadline": "1h", "retries": map[string]int{
		"worker_lost": o.random.IntN(4), "invalid_result": o.random.IntN(3), "task_failed": o.random.IntN(2), "unknown_external": o.random.IntN(2), "window": o.random.IntN(2)}}
	if o.chance(15) {
		params["deadline"] = fmt.Sprintf("%ds", 2+o.random.IntN(5))
	}
	body, err := json.Marshal(map[string]any{"op": "swarm.spawn", "id": key, "params": params})
	if err != nil {
		o.p.wrong("%v", err)
		return
	}
	o.p.ordered(key, "")
	for begun := o.p.now(); o.p.going.Err() == nil && o.p.now()-begun < patience; {
		var answer struct{ Call ops.CallID }
		status, fault, err := o.p.ask(o.p.going, o.p.token, http.MethodPost, "/exec", body, &answer)
		switch {
		case settledAs(status, fault, err) == taken:
			o.p.ordered(key, answer.Call)
			return
		case err == nil && (fault.Code == ops.PlaneOff || status == http.StatusBadRequest):
			if fault.Code != ops.PlaneOff {
				o.p.wrong("an order is refused: %s %s", fault.Code, fault.Message)
			}
			return
		}
		pause(o.p.going, 50*time.Millisecond)
	}
}

func shownWhole(d plane.DelegationShowing) seenWhole {
	s := seenWhole{State: d.State, Closed: d.Closed, Cancel: d.Cancel, Attempts: d.Attempts}
	for _, r := range d.Runs {
		s.Runs = append(s.Runs, seenRun{r.Run, r.Attempt, r.State, r.Fence})
	}
	return s
}

// act sends something about a delegation once and records what it shows.
func (o *operator) act(kind deedKind, method, id, action string, body any) (d plane.DelegationShowing, out outcome) {
	var err error
	var b []byte
	if body != nil {
		if b, err = json.Marshal(body); err != nil {
			o.p.wrong("%v", err)
			return
		}
	}
	did := deed{Client: o.name, Kind: kind, Sent: o.p.now(), Header: wire.Header{Delegation: id}}
	status, fault, err := o.p.ask(o.p.going, o.p.token, method, "/v1/delegations/"+id+action, b, &d)
	if err == nil && status >= http.StatusBadRequest && status != http.StatusConflict && status < http.StatusInternalServerError {
		o.p.wrong("%s %s%s is refused: %s %s", method, id, action, fault.Code, fault.Message)
	}
	out = settledAs(status, fault, err)
	if did.Sure = out == taken; did.Sure {
		did.Got, did.Seen = o.p.now(), shownWhole(d)
	}
	if did.Sure || kind == stopped {
		o.p.record(did)
	}
	return d, out
}

func (o *operator) read(id string) (plane.DelegationShowing, bool) {
	d, out := o.act(saw, http.MethodGet, id, "", nil)
	return d, out == taken
}

func (o *operator) cancel(id string) {
	o.act(stopped, http.MethodPost, id, "/cancel", map[string]string{"grace": "3s", "reason": "no longer wanted"})
	o.p.count("cancels")
}

// decide does what a person must do about a delegation, if anything.
func (o *operator) decide(d plane.DelegationListing, soon bool) {
	resolve := func(body map[string]any) { o.act(saw, http.MethodPost, d.Delegation, "/resolve", body) }
	switch {
	case d.RunState == plane.WaitingHuman || (d.RunState == plane.Failed || d.RunState == plane.Cancelled) && !d.Closed:
		whole, ok := o.read(d.Delegation)
		if !ok {
			return
		}
		for _, m := range whole.Mutations {
			if m.State == "INTENDED" {
				resolve(map[string]any{"mutation": m.Key, "done": o.chance(50), "proof": "somebody looked"})
			}
		}
		if d.RunState == plane.WaitingHuman {
			resolution := []string{"resume", "fail", "adopt"}[o.random.IntN(3)]
			if soon && d.Cancel {
				resolution = "fail"
			}
			body := map[string]any{"resolution": resolution}
			if resolution == "resume" {
				body["answer"] = "Go on."
			}
			resolve(body)
		}
		o.p.count("decisions")
	case d.RunState == plane.Unknown && (soon || o.chance(10)):
		resolve(map[string]any{"resolution": "fail"})
	case d.State == plane.EvidenceMissing || d.State == plane.VerifierUnavailable || soon && d.RunState == plane.Dispatched:
		o.act(saw, http.MethodPost, d.Delegation, "/retry", map[string]any{})
		o.p.count("retries demanded")
	}
}
