package tests

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/plane/wire"
	"inband/service/threads"
	"inband/service/timers"
)

// planeAudit holds what a state folder says against what commands have really done.
type planeAudit struct {
	k           *planeKillers
	delegations map[string]*auditedDelegation
	runs        map[string]*auditedRun
	calls       map[ops.CallID]*auditedCall
	mutations   map[string]*auditedMutation
	keys        map[ops.IdentityID]ed25519.PublicKey
	roles       map[ops.IdentityID]ops.Role
	files       *artifacts.Store

	begun int // commands
	count map[string]int
}

type auditedDelegation struct {
	id      string
	call    ops.CallID
	state   plane.DelegationState
	closed  bool
	reason  string
	cancel  bool
	retries plane.Budget
	outputs []string

	live      string // run, by the order of events
	fence     int64  // of the last lease
	ending    bool   // a cancel stands in the journal
	follows   plane.Budget
	demanded  bool // a person has it run once more
	closings  int
	judged    string // verification that passed
	producer  ops.IdentityID
	verifier  ops.IdentityID
	judgedRun string
}

type auditedRun struct {
	id, delegation string
	attempt        int
	state          plane.State
	proof          plane.Proof
	worker         ops.IdentityID
	result         *wire.Result
	created        int64

	stands plane.State // by the order of events
	proved int64       // when it was known that nothing of it is alive, 0: never
	leases map[int64]bool
}

type auditedCall struct {
	state   ops.State
	settled int // events
	posted  int // results in threads
	thread  string
}

type auditedMutation struct {
	delegation, run, state string
	intended, proved       int64
}

// audit reads everything once nobody works any more.
func (k *planeKillers) audit() *planeAudit {
	k.t.Helper()
	a := &planeAudit{k: k, delegations: map[string]*auditedDelegation{}, runs: map[string]*auditedRun{}, calls: map[ops.CallID]*auditedCall{},
		mutations: map[string]*auditedMutation{}, keys: map[ops.IdentityID]ed25519.PublicKey{}, roles: map[ops.IdentityID]ops.Role{}, count: map[string]int{}}
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(k.state, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()}})
	if err != nil {
		k.t.Fatal(err)
	}
	defer store.Close()
	if a.files, err = artifacts.Open(artifacts.Config{Folder: filepath.Join(k.state, "artifacts")}); err != nil {
		k.t.Fatal(err)
	}
	defer a.files.Close()
	key, err := notary.PublicKey(filepath.Join(k.state, "audit"))
	if err != nil {
		k.t.Fatal(err)
	}
	if _, err := notary.Verify(context.Background(), store, key); err != nil {
		k.t.Errorf("the signed log after the kills: %v", err)
	}
	if err := store.View(context.Background(), a.read); err != nil {
		k.t.Fatal(err)
	}
	a.events(store)
	if err := store.View(context.Background(), a.completed); err != nil {
		k.t.Fatal(err)
	}
	a.ends()
	a.acts()
	a.processes()
	return a
}

func (a *planeAudit) errorf(format string, args ...any) {
	a.k.t.Helper()
	a.k.t.Errorf(format, args...)
}

// read reads the rows.
func (a *planeAudit) read(tx journal.Tx) error {
	return errors.Join(
		tx.Query(`SELECT id, role, public_key FROM principal`, func(scan func(...any) error) error {
			var id ops.IdentityID
			var role ops.Role
			var key []byte
			err := scan((*string)(&id), (*string)(&role), &key)
			a.keys[id], a.roles[id] = key, role
			return err
		}),
		tx.Query(`SELECT id, call, state, closed_at, reason, cancel, retries, outputs FROM delegation`, func(scan func(...any) error) error {
			d := &auditedDelegation{follows: plane.Budget{}}
			var closed *int64
			var cancel int64
			var retries, outputs string
			if err := scan(&d.id, (*string)(&d.call), (*string)(&d.state), &closed, &d.reason, &cancel, &retries, &outputs); err != nil {
				return err
			}
			d.closed, d.cancel = closed != nil, cancel == 1
			a.delegations[d.id] = d
			return errors.Join(json.Unmarshal([]byte(retries), &d.retries), json.Unmarshal([]byte(outputs), &d.outputs))
		}),
		tx.Query(`SELECT run, delegation, attempt, state, proof, coalesce(worker, ''), result, created_at FROM dispatch`, func(scan func(...any) error) error {
			r := &auditedRun{leases: map[int64]bool{}}
			var result *string
			if err := scan(&r.id, &r.delegation, &r.attempt, (*string)(&r.state), (*string)(&r.proof), (*string)(&r.worker), &result, &r.created); err != nil {
				return err
			}
			a.runs[r.id] = r
			if result == nil {
				return nil
			}
			r.result = &wire.Result{}
			return json.Unmarshal([]byte(*result), r.result)
		}),
		tx.Query(`SELECT id, state, coalesce(json_extract(origin, '$.answer.opaque'), '') FROM call WHERE op = 'swarm.spawn'`, func(scan func(...any) error) error {
			var id ops.CallID
			c := &auditedCall{}
			err := scan((*string)(&id), (*string)(&c.state), &c.thread)
			a.calls[id] = c
			return err
		}),
		tx.Query(`SELECT call FROM post WHERE kind = 'result'`, func(scan func(...any) error) error {
			var id ops.CallID
			err := scan((*string)(&id))
			if c := a.calls[id]; c != nil {
				c.posted++
			}
			return err
		}),
		tx.Query(`SELECT external, delegation, run, state, intended_at, coalesce(proved_at, 0) FROM mutation`, func(scan func(...any) error) error {
			var key string
			m := &auditedMutation{}
			err := scan(&key, &m.delegation, &m.run, &m.state, &m.intended, &m.proved)
			a.mutations[key] = m
			return err
		}),
	)
}

// events goes through the journal in its order: who was live when, under which fence, and
// what followed what.
func (a *planeAudit) events(store *sqlite.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	head, err := store.Head(ctx)
	if err != nil {
		a.k.t.Fatal(err)
	}
	var last int64
	err = store.Tail(ctx, 0, func(e journal.Event) error {
		if e.Position != last+1 {
			a.errorf("position %d follows %d", e.Position, last)
		}
		a.event(e)
		if last = e.Position; last >= head {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		a.errorf("reading all events: %v", err)
	}
}

// lives reports whether a run in s may have, or get, a command.
func lives(s plane.State) bool { return s != "" && s != plane.Failed && !s.Final() }

func (a *planeAudit) event(e journal.Event) {
	if e.Kind == "call.settled" {
		var b struct{ Call ops.CallID }
		if err := json.Unmarshal(e.Body, &b); err != nil {
			a.errorf("event %d: %v", e.Position, err)
		}
		if c := a.calls[b.Call]; c != nil {
			c.settled++
		}
		return
	}
	id, ok := strings.CutPrefix(e.Stream, "delegation/")
	if !ok {
		return
	}
	var b struct {
		Run      string
		From, To plane.State
		Fence    int64
		Proof    plane.Proof
		Class    plane.Class
		State    string
		Worker   ops.IdentityID
	}
	if err := json.Unmarshal(e.Body, &b); err != nil {
		a.errorf("event %d: %v", e.Position, err)
		return
	}
	d, r := a.delegations[id], a.runs[b.Run]
	if d == nil || b.Run != "" && r == nil {
		a.errorf("event %d, %s, is of the delegation %s and the run %q, which are not there", e.Position, e.Kind, id, b.Run)
		return
	}
	switch {
	case e.Kind == "delegation.spawned":
		b.To = plane.Dispatched
	case e.Kind == "run.dispatched":
		b.To = plane.Dispatched
		if d.demanded {
			d.demanded = false
			a.count["runs that a person demanded"]++
		} else if d.follows[b.Class]++; d.follows[b.Class] > d.retries[b.Class] {
			a.errorf("run %s is attempt %d of delegation %s: its class %s has a budget of %d", r.id, r.attempt, d.id, b.Class, d.retries[b.Class])
		}
		if d.ending {
			a.errorf("run %s of delegation %s was made after its cancel", r.id, d.id)
		}
	case e.Kind == "delegation.retry_demanded":
		d.demanded = true
	case e.Kind == "delegation.closed":
		d.closings++
	case e.Kind == "verification.verdict":
		a.count["verdicts"]++
	}
	if e.Kind == "run.cancel_requested" {
		d.ending = true
		a.count["cancels"]++
	}
	if r == nil || b.To == "" {
		return
	}
	if b.From != "" && b.From != r.stands {
		a.errorf("event %d, %s, takes run %s from %s, and it was %s", e.Position, e.Kind, r.id, b.From, r.stands)
	}
	if r.stands = b.To; lives(r.stands) {
		if d.live != "" && d.live != r.id {
			a.errorf("event %d, %s: runs %s and %s of delegation %s are live at once", e.Position, e.Kind, d.live, r.id, d.id)
		}
		d.live = r.id
	} else if d.live == r.id {
		d.live = ""
	}
	switch e.Kind {
	case "run.lease_granted":
		if b.Fence <= d.fence {
			a.errorf("run %s was leased under fence %d after %d", r.id, b.Fence, d.fence)
		}
		if d.ending {
			a.errorf("run %s of delegation %s was leased after its cancel", r.id, d.id)
		}
		d.fence, r.proved = b.Fence, 0
		r.leases[b.Fence] = true
		a.count["leases"]++
	case "run.lease_expired", "run.worker_rebooted", "run.mutation_intended", "run.human_wait", "run.checkpoint":
		a.count[strings.ReplaceAll(strings.TrimPrefix(e.Kind, "run."), "_", " ")]++
	}
	if b.Proof != plane.NoProof && r.proved == 0 {
		r.proved = e.At.UnixMilli()
		a.count["proofs by "+string(b.Proof)]++
	}
	if b.To == plane.Cancelled && b.Proof == plane.NoProof {
		a.errorf("run %s is CANCELLED without a proof", r.id)
	}
}

// completed looks at every verdict that counts, and at the bytes that it is about.
func (a *planeAudit) completed(tx journal.Tx) error {
	if err := tx.Query(`SELECT id, delegation, run, producer, coalesce(verifier, '') FROM verification WHERE state = 'PASSED'`, func(scan func(...any) error) error {
		var v, delegation, run string
		var producer, verifier ops.IdentityID
		if err := scan(&v, &delegation, &run, (*string)(&producer), (*string)(&verifier)); err != nil {
			return err
		}
		d := a.delegations[delegation]
		d.judged, d.judgedRun, d.producer, d.verifier = v, run, producer, verifier
		return nil
	}); err != nil {
		return err
	}
	for _, d := range a.delegations {
		if d.state != plane.Completed {
			continue
		}
		r := a.runs[d.judgedRun]
		switch {
		case d.judged == "" || r == nil:
			a.errorf("delegation %s is COMPLETED, and nobody has passed it", d.id)
			continue
		case d.verifier == d.producer || a.roles[d.verifier] != ops.Verifier || d.producer != r.worker || a.roles[r.worker] != ops.Worker:
			a.errorf("delegation %s was done by %s and passed by %s", d.id, r.worker, d.verifier)
		case r.state != plane.Succeeded || r.delegation != d.id || d.cancel:
			a.errorf("delegation %s is COMPLETED by run %s, which is %s; cancelled: %v", d.id, r.id, r.state, d.cancel)
		}
		for _, name := range d.outputs {
			if err := a.output(tx, r, name); err != nil {
				a.errorf("delegation %s is COMPLETED: %v", d.id, err)
			}
		}
	}
	return nil
}

// output proves one file that a run had to return: its bytes are those that the command
// has made, and its worker has attested them.
func (a *planeAudit) output(tx journal.Tx, r *auditedRun, name string) error {
	var digest artifacts.Digest
	for _, f := range r.result.Files {
		if f.Name == name {
			digest = artifacts.Digest(f.Digest)
		}
	}
	f, err := a.files.Open(digest)
	if err != nil {
		return fmt.Errorf("file %s (%q) of run %s: %w", name, digest, r.id, err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	words := strings.Fields(string(first))
	if len(words) != 4 || words[0] != "made" || words[1] != r.delegation || words[2] != r.id || len(rest) != 100_000 || len(bytes.Trim(rest, "\x00")) > 0 {
		return fmt.Errorf("file %s of run %s says %q and has %d bytes more", name, r.id, first, len(rest))
	}
	fence, err := strconv.ParseInt(words[3], 10, 64)
	if err != nil || !r.leases[fence] {
		return fmt.Errorf("file %s of run %s was made under the fence %s", name, r.id, words[3])
	}
	if string(digest) != wire.Digest(b) {
		return fmt.Errorf("the bytes of %s of run %s are those of %s, not %s", name, r.id, wire.Digest(b), digest)
	}
	proved := 0
	if err := tx.Query(`SELECT envelope FROM attestation WHERE run = $1 AND name = $2 AND digest = $3`, func(scan func(...any) error) error {
		var envelope string
		if err := scan(&envelope); err != nil {
			return err
		}
		sealed, err := wire.Read([]byte(envelope), artifacts.MaxStatement)
		if err == nil {
			err = sealed.Prove(a.keys[r.worker])
		}
		if err != nil {
			return err
		}
		s, err := artifacts.ReadStatement(sealed.Payload)
		if err != nil {
			return err
		}
		if p := s.Predicate; s.Digest() == digest && p.Run == r.id && p.Producer == r.worker && p.Fence == fence {
			proved++
		}
		return nil
	}, r.id, name, string(digest)); err != nil {
		return fmt.Errorf("attestation of %s of run %s: %w", name, r.id, err)
	}
	if proved == 0 {
		return fmt.Errorf("file %s of run %s is not attested by its worker", name, r.id)
	}
	return nil
}

// ends looks at what has become of each order.
func (a *planeAudit) ends() {
	byCall := map[ops.CallID]*auditedDelegation{}
	for _, d := range a.delegations {
		byCall[d.call] = d
		a.count["delegations "+string(d.state)]++
		if c := a.calls[d.call]; c != nil && c.thread != "" {
			a.count["delegations ordered in a thread"]++
		}
		if !d.closed {
			a.errorf("delegation %s is left %s (%s)", d.id, d.state, d.reason)
			continue
		}
		if d.closings != 1 {
			a.errorf("delegation %s was closed %d times", d.id, d.closings)
		}
		c := a.calls[d.call]
		if c == nil || c.settled != 1 {
			a.errorf("the call of delegation %s: %+v, want it settled once", d.id, c)
			continue
		}
		if done := d.state == plane.Completed; done != (c.state == ops.Succeeded) {
			a.errorf("delegation %s is %s, and its call %s is %s", d.id, d.state, d.call, c.state)
		}
		want := 0
		if c.thread != "" {
			want = 1
		}
		if c.posted != want {
			a.errorf("the result of the call of delegation %s, ordered in the thread %q, is posted %d times, want %d", d.id, c.thread, c.posted, want)
		}
	}
	for _, r := range a.runs {
		if r.state != r.stands {
			a.errorf("run %s is %s, and by its events it is %s", r.id, r.state, r.stands)
		}
		if d := a.delegations[r.delegation]; d.closed && lives(r.state) {
			a.errorf("delegation %s is closed, and its run %s is %s", d.id, r.id, r.state)
		}
		for key, m := range a.mutations {
			if m.delegation == r.delegation && m.run != r.id && m.intended < r.created && (m.proved == 0 || r.created < m.proved) {
				a.errorf("run %s of delegation %s was made while nobody knew what had become of %s", r.id, r.delegation, key)
			}
		}
	}
	for id, o := range a.k.orders {
		d := byCall[id]
		if d == nil {
			a.errorf("the order %d (%s) was acknowledged as %s, and there is no delegation", o.n, o.kind, id)
			continue
		}
		if done := d.state == plane.Completed; done && o.kind == "stuck" {
			a.errorf("delegation %s can have no end, and is %s", d.id, d.state)
		}
	}
	for id := range a.calls {
		if a.calls[id].state != ops.Refused && byCall[id] == nil && a.calls[id].settled != 1 {
			a.errorf("the call %s is %s and has no delegation", id, a.calls[id].state)
		}
	}
}

// acts holds what commands have written against what is said of them.
func (a *planeAudit) acts() {
	type lease struct {
		run   string
		fence int64
	}
	begun := map[lease]int{}
	current := map[string]lease{} // the command of a delegation that began last
	beside := map[lease]bool{}
	for n, line := range strings.Split(strings.TrimSpace(a.k.recorded()), "\n") {
		words := strings.Fields(line)
		if len(words) == 4 && words[0] == "change" {
			m := a.mutations[words[2]]
			at, err := strconv.ParseInt(words[3], 10, 64)
			switch {
			case err != nil || m == nil:
				a.errorf("line %d, %q, is of a change that nobody was asked for", n+1, line)
			case m.intended > at+1: // the store counts whole milliseconds too
				a.errorf("the change %s was made before it was acknowledged", words[2])
			case m.state == "ABSENT":
				a.errorf("the change %s has happened, and is on record as not", words[2])
			}
			a.count["changes outside"]++
			continue
		}
		if len(words) != 5 {
			a.errorf("line %d of the record is %q", n+1, line)
			continue
		}
		l := lease{run: words[2]}
		var err, err2 error
		var at int64
		l.fence, err = strconv.ParseInt(words[3], 10, 64)
		at, err2 = strconv.ParseInt(words[4], 10, 64)
		r := a.runs[l.run]
		if errors.Join(err, err2) != nil || r == nil || r.delegation != words[1] || !r.leases[l.fence] {
			a.errorf("line %d, %q, is of a command that nobody has leased", n+1, line)
			continue
		}
		if words[0] == "begin" {
			a.begun++
			if begun[l]++; begun[l] > 1 {
				a.errorf("the command of run %s under fence %d was begun %d times", l.run, l.fence, begun[l])
			}
			current[words[1]] = l
		} else if now := current[words[1]]; now != l && !beside[l] {
			beside[l] = true
			a.count["commands that lived beside their successor"]++
			if r.proof != plane.NoProof {
				a.errorf("line %d: a command of run %s lives beside that of run %s, and is proved (%s) not to", n+1, l.run, now.run, r.proof)
			}
		}
		if r.proof == plane.NeverStarted && len(r.leases) == 1 { // a run that was resumed had begun before
			a.errorf("line %d: run %s is proved to have never begun", n+1, l.run)
		}
		// Only the last lease's: a run that waited for a person has gone on under another.
		if r.proved != 0 && at > r.proved && len(r.leases) == 1 {
			a.errorf("line %d, %q, was written %d ms after it was proved (%s) that nothing of the run is alive", n+1, line, at-r.proved, r.proof)
		}
	}
}

// processes looks for whatever of the commands is still alive.
func (a *planeAudit) processes() {
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		a.k.t.Fatal(err)
	}
	looked := 0
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone, or another user's
		}
		looked++
		if bytes.Contains(b, []byte("RECORD="+a.k.record)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			a.errorf("%s is still alive: %q", filepath.Dir(path), line)
		}
	}
	if looked == 0 {
		a.errorf("no process could be looked at")
	}
}
