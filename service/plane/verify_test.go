package plane

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/plane/wire"
)

// Who appears in the tests of what comes after a result.
var (
	boss   = ops.Identity{ID: "boss", Role: ops.Operator}
	asker  = ops.Identity{ID: "asker", Role: ops.Agent}
	nosy   = ops.Identity{ID: "nosy", Role: ops.Agent}
	herald = ops.Identity{ID: "herald", Role: ops.Bridge} // of asker
)

// said is what the plane told threads.
type said struct {
	begun  []string // delegations
	notes  []string
	closed []News
}

func (s *said) Note(_ journal.Tx, _ ops.Address, _, text, words string) error {
	s.notes = append(s.notes, text+"\n"+words)
	return nil
}

func (s *said) Closed(_ journal.Tx, n News) error {
	s.closed = append(s.closed, n)
	return nil
}

// court is a plane on a real store, with a worker and two verifiers, in which runs are
// brought to where a test begins by the events that lead there.
type court struct {
	t     testing.TB
	store *sqlite.Store
	door  *service.Door
	plane *Plane
	told  *said
	ahead atomic.Int64 // of the store's clock, milliseconds
}

func (c *court) clock() time.Time {
	return time.Now().Add(time.Duration(c.ahead.Load()) * time.Millisecond)
}

// pass lets time pass, by every clock.
func (c *court) pass(d time.Duration) {
	c.ahead.Add(d.Milliseconds())
	c.plane.watch.reset(c.clock())
}

func newCourt(t testing.TB) *court {
	t.Helper()
	c := &court{t: t, told: &said{}}
	var err error
	dir := t.TempDir()
	c.store, err = sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "journal.db"), Clock: c.clock,
		Schemas: []journal.Schema{access.Schema(), service.Schema(), artifacts.Schema(), Schema()}})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	empty, err := ops.New()
	if err != nil {
		t.Fatal(err)
	}
	live, policy := ops.NewLive(empty), access.NewLivePolicy(access.DefaultPolicy())
	if c.door, err = service.New(service.Config{Store: c.store, Registry: live, Policy: policy, Log: log}); err != nil {
		t.Fatal(err)
	}
	files, err := artifacts.Open(artifacts.Config{Folder: filepath.Join(dir, "artifacts")})
	if err != nil {
		t.Fatal(err)
	}
	directory := access.NewDirectory(c.store)
	for _, who := range []ops.Identity{boss, asker, nosy} {
		if _, err := directory.Add(t.Context(), who); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := directory.Add(t.Context(), herald, asker.ID); err != nil {
		t.Fatal(err)
	}
	c.plane, err = New(Config{Store: c.store, Door: c.door, Directory: directory, Policy: policy, Artifacts: files, Notices: c.told,
		Key: ed25519.NewKeyFromSeed(make([]byte, 32)), Log: log, Clock: c.clock})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := ops.New(c.plane.Ops()...)
	if err != nil {
		t.Fatal(err)
	}
	live.Swap(registry)
	c.door.OnCancel(c.plane.CancelCall)
	if err := c.door.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.door.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
		if err := c.store.Close(); err != nil {
			t.Error(err)
		}
	})
	c.must(func(tx journal.Tx) error {
		for i, who := range []ops.Identity{{ID: "smith", Role: ops.Worker}, {ID: "judge", Role: ops.Verifier}, {ID: "umpire", Role: ops.Verifier}} {
			if _, err := tx.Exec(`INSERT INTO principal (id, role, key_id, public_key, implementations, capabilities, boot, boot_at, version, enrolled_at)
					VALUES ($1, $2, $3, $4, '["default"]', '[]', $5, 0, '', 0)`, string(who.ID), string(who.Role), fmt.Sprint("key-", i), []byte{byte(i)}, string(who.ID)+"-1"); err != nil {
				return err
			}
		}
		_, err := tx.Exec(`UPDATE plane SET state = 'on' WHERE id = 1`)
		return err
	})
	return c
}

// do runs f in a transaction and returns its error.
func (c *court) do(f func(journal.Tx) error) error { return c.store.Update(c.t.Context(), f) }

func (c *court) must(f func(journal.Tx) error) {
	c.t.Helper()
	if err := c.do(f); err != nil {
		c.t.Fatal(err)
	}
}

// who is a principal as it is now.
func (c *court) who(tx journal.Tx, id ops.IdentityID) principalRow {
	who, known, err := c.plane.principal(tx, id)
	if err != nil || !known {
		c.t.Fatalf("principal %s: %v %v", id, known, err)
	}
	return who
}

// spawn orders work by asker, from a thread, and returns the delegation's id.
func (c *court) spawn(params string) string {
	c.t.Helper()
	ticket, err := c.door.Submit(c.t.Context(), ops.Call{Op: "swarm.spawn", By: boss, Params: json.RawMessage(params),
		From: ops.Origin{Source: "rooms/lobby/m#1", Answer: &ops.Address{Adaptor: "rooms", Opaque: "t-lobby"}}})
	if err != nil {
		c.t.Fatal(err)
	}
	for {
		var id string
		var state ops.State
		if err := c.store.View(c.t.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT c.state, coalesce(d.id, '') FROM call c LEFT JOIN delegation d ON d.call = c.id WHERE c.id = $1`,
				func(scan func(...any) error) error { return scan((*string)(&state), &id) }, string(ticket.Call))
		}); err != nil {
			c.t.Fatal(err)
		}
		if state == ops.Accepted && id != "" {
			return id
		}
		if state.Settled() {
			o, err := c.door.Await(c.t.Context(), ticket.Call)
			c.t.Fatalf("spawn %s: %s %v %v", params, state, o.Fault, err)
		}
	}
}

// by makes the delegation asker's, who may not order by itself in the default policy.
func (c *court) by(d string, who ops.Identity) {
	c.must(func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE delegation SET by_id = $1, by_role = $2 WHERE id = $3`, string(who.ID), string(who.Role), d)
		return err
	})
}

// held loads the latest run of d.
func (c *court) held(d string) (h *held) {
	c.t.Helper()
	if err := c.store.View(c.t.Context(), func(tx journal.Tx) (err error) { h, err = c.plane.load(tx, d, ""); return err }); err != nil {
		c.t.Fatal(err)
	}
	return h
}

// step applies events to the latest run of d, each in a transaction of its own.
func (c *court) step(d string, events ...Event) {
	c.t.Helper()
	for _, e := range events {
		c.must(func(tx journal.Tx) error {
			h, err := c.plane.load(tx, d, "")
			if err != nil {
				return err
			}
			if e.Kind.Callback() {
				e.Worker, e.Boot, e.Fence, e.Seq, e.Prev, e.Digest = h.run.worker, h.run.boot, h.run.fence, h.run.seq+1, h.run.prev, fmt.Sprint("sha256:", h.run.seq+1)
			}
			if e.Kind == OnLeaseGranted {
				e.Worker, e.Boot, e.Capable, e.Term, e.Lease = "smith", "smith-1", true, 1, time.Minute
			}
			fault, err := c.plane.apply(tx, h, e)
			if err == nil && fault != nil {
				err = fmt.Errorf("%s: %w", e.Kind, fault)
			}
			return err
		})
	}
}

// leave has the latest run of d leave a file, attested if it says so.
func (c *court) leave(d, name, content string, attested bool) wire.File {
	c.t.Helper()
	h := c.held(d)
	f := wire.File{Name: name, Digest: wire.Digest([]byte(content)), Bytes: int64(len(content)), Kind: "text/plain"}
	c.must(func(tx journal.Tx) error {
		if err := artifacts.Add(tx, artifacts.Artifact{Digest: artifacts.Digest(f.Digest), Name: name, Kind: f.Kind, Bytes: f.Bytes, Owner: h.delegation.by,
			Run: h.run.run, Delegation: d, Producer: h.run.worker}); err != nil || !attested {
			return err
		}
		return artifacts.Attest(tx, artifacts.Attestation{Digest: artifacts.Digest(f.Digest), Name: name, Run: h.run.run, Delegation: d, Producer: h.run.worker,
			Fence: h.run.fence, KeyID: "key-0", Statement: f.Digest, Envelope: json.RawMessage(`{}`)})
	})
	return f
}

// succeed brings the latest run of d to SUCCEEDED with files.
func (c *court) succeed(d string, files ...wire.File) {
	c.t.Helper()
	c.must(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		body, err := json.Marshal(wire.Result{Succeeded: true, Summary: "it is done, believe me", Files: files})
		if err != nil {
			return err
		}
		h.said = &wire.Message{Kind: wire.KindResult, Header: wire.Header{Delegation: d, Run: h.run.run}, Body: body}
		fault, err := c.plane.apply(tx, h, Event{Kind: OnResult, Worker: h.run.worker, Boot: h.run.boot, Fence: h.run.fence, Seq: h.run.seq + 1, Prev: h.run.prev,
			Digest: "sha256:result", Stored: true, Succeeded: true})
		return orFault(fault, err)
	})
}

var begin = []Event{{Kind: OnLeaseGranted}, {Kind: OnStarted}}

// returned spawns work, has it done and returned, and gives its id.
func (c *court) returned(params string, outputs ...string) string {
	c.t.Helper()
	d := c.spawn(params)
	c.step(d, begin...)
	var files []wire.File
	for _, name := range outputs {
		files = append(files, c.leave(d, name, "content of "+name, true))
	}
	c.succeed(d, files...)
	return d
}

// grant polls for a verifier.
func (c *court) grant(verifier ops.IdentityID) (g *wire.Grant) {
	c.t.Helper()
	c.must(func(tx journal.Tx) (err error) {
		g, err = c.plane.offerVerification(tx, c.who(tx, verifier), "nonce")
		return err
	})
	return g
}

// speech is what a verifier says under a grant; next makes the message after it.
type speech struct {
	wire.Grant
	seq  int64
	prev string
}

func speaking(g *wire.Grant) *speech { return &speech{*g, g.Seq, g.Prev} }

// message makes the next message of s, which counts it as accepted if it is told to.
func (s *speech) message(t testing.TB, k wire.Kind, body any, count bool) wire.Message {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	m := wire.Message{Kind: k, Header: s.Header, Body: b, KeyID: "key"}
	m.Header.Seq, m.Header.Prev = s.seq+1, s.prev
	m.Digest = wire.Digest(fmt.Appendf(nil, "%v %d %d %s %s", m.Header.Worker, m.Header.Fence, m.Header.Seq, k, b))
	if count {
		s.seq, s.prev = m.Header.Seq, m.Digest
	}
	return m
}

// hear hands m to the plane as said by who.
func (c *court) hear(m wire.Message, who ops.IdentityID) (ack wire.Ack, fault *ops.Fault) {
	c.t.Helper()
	c.must(func(tx journal.Tx) (err error) {
		ack, fault, err = c.plane.verifierCallback(tx, m, c.who(tx, who))
		return err
	})
	return ack, fault
}

// passed is the verdict that g asks for.
func passed(g *wire.Grant) wire.Verdict {
	return wire.Verdict{Verdict: Passed, Command: g.Verify, Checked: g.Result.Files}
}

// verification is the latest verification of d.
func (c *court) verification(d string) verificationRow {
	c.t.Helper()
	var list []verificationRow
	if err := c.store.View(c.t.Context(), func(tx journal.Tx) (err error) {
		list, err = selectVerifications(tx, `v.delegation = $1 ORDER BY v.n DESC`, d)
		return err
	}); err != nil || len(list) == 0 {
		c.t.Fatalf("verifications of %s: %v %v", d, list, err)
	}
	return list[0]
}

// sweep looks at what is due of verifications.
func (c *court) sweep() (n int) {
	c.t.Helper()
	c.must(func(tx journal.Tx) (err error) {
		n, err = c.plane.sweepVerifications(tx, tx.Now())
		return err
	})
	return n
}

// outcome is what the call of d was told.
func (c *court) outcome(d string) ops.Outcome {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	o, err := c.door.Await(ctx, c.held(d).delegation.call)
	if err != nil {
		c.t.Fatalf("outcome of %s: %v", d, err)
	}
	return o
}

// is fails unless d stands so.
func (c *court) is(d string, run State, delegation DelegationState) {
	c.t.Helper()
	if h := c.held(d); h.run.state != run || h.delegation.state != delegation {
		c.t.Fatalf("the run is %s (%s) and the delegation %s (%s), want %s and %s", h.run.state, h.run.reason, h.delegation.state, h.delegation.reason, run, delegation)
	}
}

// evidence are the reasons for which things said of d were kept, oldest first.
func (c *court) evidence(d string) []string {
	c.t.Helper()
	var list []string
	if err := c.store.View(c.t.Context(), func(tx journal.Tx) (err error) {
		list, err = texts(tx, `SELECT kind || ' ' || reason FROM evidence WHERE delegation = $1 ORDER BY id`, d)
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	return list
}

// events are the kinds of d's events.
func (c *court) events(d string) []string {
	c.t.Helper()
	var list []string
	if err := c.store.Stream(c.t.Context(), "delegation/"+d, 0, func(e journal.Event) error { list = append(list, e.Kind); return nil }); err != nil {
		c.t.Fatal(err)
	}
	return list
}

func wantCode(t testing.TB, err error, code ops.Code) *ops.Fault {
	t.Helper()
	var f *ops.Fault
	if fault, ok := err.(*ops.Fault); ok && fault == nil || !errors.As(err, &f) || f.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	return f
}

const declared = `{"task":"write the report","artifacts":["report.md"],"verify":{"command":["make","check"]}}`

func TestPassed(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md", "log.txt")
	c.is(d, Succeeded, Verifying)
	g := c.grant("judge")
	if g == nil || g.Producer != "smith" || g.Instruction.Task != "write the report" || len(g.Result.Files) != 2 || len(g.Attested) != 2 || g.Fence != 1<<termBits|1 {
		t.Fatalf("grant %+v", g)
	}
	s := speaking(g)
	if ack, fault := c.hear(s.message(t, wire.KindStarted, wire.Started{}, true), "judge"); fault != nil || ack.LeaseMS <= 0 || ack.Final {
		t.Fatalf("started: %+v %v", ack, fault)
	}
	if ack, fault := c.hear(s.message(t, wire.KindHeartbeat, wire.Heartbeat{Alive: true}, true), "judge"); fault != nil || ack.LeaseMS <= 0 {
		t.Fatalf("heartbeat: %+v %v", ack, fault)
	}
	c.is(d, Succeeded, Verifying)
	verdict := s.message(t, wire.KindVerdict, passed(g), true)
	ack, fault := c.hear(verdict, "judge")
	if fault != nil || !ack.Final || ack.State != string(JudgedPassed) {
		t.Fatalf("verdict: %+v %v", ack, fault)
	}
	c.is(d, Succeeded, Completed)
	o := c.outcome(d)
	var r struct {
		Delegation, Run, Worker, Verifier, State string
		Attempt                                  int
		Files                                    []wire.File
		Summary                                  struct {
			Untrusted bool
			By, Text  string
		}
	}
	if o.State != ops.Succeeded {
		t.Fatalf("outcome %+v %v", o, o.Fault)
	}
	if err := json.Unmarshal(o.Result.Value, &r); err != nil {
		t.Fatal(err)
	}
	if r.Delegation != d || r.Worker != "smith" || r.Verifier != "judge" || r.State != "COMPLETED" || r.Attempt != 1 || len(r.Files) != 2 || !r.Summary.Untrusted || r.Summary.By != "smith" {
		t.Errorf("result %s", o.Result.Value)
	}
	if !strings.Contains(string(o.Receipt), verdict.Digest) {
		t.Errorf("the receipt %s does not name the verdict %s", o.Receipt, verdict.Digest)
	}
	if len(c.told.closed) != 1 || c.told.closed[0].State != Completed || c.told.closed[0].Call.Op != "swarm.spawn" {
		t.Errorf("told %+v", c.told.closed)
	}

	// The same message again is answered again and does nothing (pb-053).
	before := len(c.events(d))
	again, fault := c.hear(verdict, "judge")
	if fault != nil || !again.Replayed || again.State != ack.State || again.Seq != ack.Seq {
		t.Errorf("again: %+v %v", again, fault)
	}
	if got := len(c.events(d)); got != before {
		t.Errorf("%d events after a replay, want %d", got, before)
	}
}

// What a verdict must say to be one.
func TestVerdictRefused(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	g := c.grant("judge")
	s := speaking(g)
	right := passed(g)
	for name, change := range map[string]func(*wire.Verdict){
		"no word":         func(v *wire.Verdict) { v.Verdict = "" },
		"another word":    func(v *wire.Verdict) { v.Verdict = "PASSED" },
		"unavailable":     func(v *wire.Verdict) { v.Verdict = "unavailable" },
		"other command":   func(v *wire.Verdict) { v.Command = []string{"true"} },
		"no command":      func(v *wire.Verdict) { v.Command = nil },
		"exit 1":          func(v *wire.Verdict) { v.Exit = 1 },
		"nothing checked": func(v *wire.Verdict) { v.Checked = nil },
		"other digest":    func(v *wire.Verdict) { v.Checked = []wire.File{{Name: "report.md", Digest: wire.Digest(nil)}} },
		"failed, no why":  func(v *wire.Verdict) { v.Verdict, v.Reason = Refused, " " },
		"lacking, no why": func(v *wire.Verdict) { v.Verdict = Lacking },
		"long output":     func(v *wire.Verdict) { v.Output = strings.Repeat("x", maxWords+1) },
	} {
		v := right
		change(&v)
		if _, fault := c.hear(s.message(t, wire.KindVerdict, v, false), "judge"); fault == nil || fault.Code != ops.InvalidParams || fault.Details["final"] != true {
			t.Errorf("%s: got %v, want INVALID_PARAMS, final", name, fault)
		}
	}
	for name, m := range map[string]wire.Message{
		"no object":      {Kind: wire.KindVerdict, Body: json.RawMessage(`[]`)},
		"unknown member": {Kind: wire.KindVerdict, Body: json.RawMessage(`{"verdict":"passed","sure":true}`)},
		"twice":          {Kind: wire.KindVerdict, Body: json.RawMessage(`{"verdict":"failed","verdict":"passed"}`)},
		"a result":       {Kind: wire.KindResult, Body: json.RawMessage(`{"succeeded":true}`)},
		"a proof":        {Kind: wire.KindCancelProof, Body: json.RawMessage(`{}`)},
	} {
		like := s.message(t, m.Kind, m.Body, false)
		if _, fault := c.hear(like, "judge"); fault == nil || fault.Code != ops.BadRequest || fault.Details["final"] != true {
			t.Errorf("%s: got %v, want BAD_REQUEST, final", name, fault)
		}
	}
	// Nor is it one while what was declared is not there any more.
	c.must(func(tx journal.Tx) error { _, err := tx.Exec(`UPDATE attestation SET name = 'other.md'`); return err })
	if _, fault := c.hear(s.message(t, wire.KindVerdict, right, false), "judge"); fault == nil || fault.Code != ops.InvalidParams || !strings.Contains(fault.Message, "report.md") {
		t.Errorf("without the file: %v", fault)
	}
	c.must(func(tx journal.Tx) error { _, err := tx.Exec(`UPDATE attestation SET name = 'report.md'`); return err })
	c.is(d, Succeeded, Verifying)
	if v := c.verification(d); v.state != WithVerifier || v.seq != 0 {
		t.Errorf("verification %+v", v)
	}
	if _, fault := c.hear(s.message(t, wire.KindVerdict, right, true), "judge"); fault != nil {
		t.Errorf("the right one: %v", fault)
	}
	c.is(d, Succeeded, Completed)
}

// Who may not judge: a worker's key, the producer itself, a verifier without the lease, and
// the holder under another fence, boot or number.
func TestVerdictWithoutAuthority(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	g := c.grant("judge")
	s := speaking(g)
	for name, tt := range map[string]struct {
		who    ops.IdentityID
		change func(*wire.Message)
		code   ops.Code
		why    string
	}{
		"the producer":     {"smith", func(m *wire.Message) { m.Header.Worker = "smith" }, ops.BadSignature, "no_verifier"},
		"in another name":  {"umpire", func(m *wire.Message) {}, ops.BadSignature, "no_verifier"},
		"without a lease":  {"umpire", func(m *wire.Message) { m.Header.Worker, m.Header.Boot = "umpire", "umpire-1" }, ops.StaleFence, "wrong_worker"},
		"another boot":     {"judge", func(m *wire.Message) { m.Header.Boot = "judge-0" }, ops.StaleFence, "stale_boot"},
		"an older fence":   {"judge", func(m *wire.Message) { m.Header.Fence-- }, ops.StaleFence, "stale_fence"},
		"a future fence":   {"judge", func(m *wire.Message) { m.Header.Fence++ }, ops.StaleFence, "stale_fence"},
		"a gap":            {"judge", func(m *wire.Message) { m.Header.Seq++ }, ops.OutOfSequence, ""},
		"number nought":    {"judge", func(m *wire.Message) { m.Header.Seq = 0 }, ops.OutOfSequence, "other_message"},
		"another chain":    {"judge", func(m *wire.Message) { m.Header.Prev = "sha256:other" }, ops.OutOfSequence, "other_chain"},
		"another run":      {"judge", func(m *wire.Message) { m.Header.Run = "r-other" }, ops.StaleFence, "other_ids"},
		"another delegate": {"judge", func(m *wire.Message) { m.Header.Delegation = "d-other" }, ops.StaleFence, "other_ids"},
		"no such":          {"judge", func(m *wire.Message) { m.Header.Verification = "v-other" }, ops.NotFound, ""},
	} {
		m := s.message(t, wire.KindVerdict, passed(g), false)
		tt.change(&m)
		m.Digest = wire.Digest([]byte(name))
		before := len(c.evidence(d))
		_, fault := c.hear(m, tt.who)
		if fault == nil || fault.Code != tt.code || name != "a gap" && fault.Details["final"] != true {
			t.Errorf("%s: got %v, want %s, final", name, fault, tt.code)
		}
		if name == "a gap" && fault.Details["expected"] != int64(1) {
			t.Errorf("a gap: expected %v", fault.Details["expected"])
		}
		got := c.evidence(d)[before:]
		if want := "verdict " + tt.why; tt.why != "" && !slices.Equal(got, []string{want}) || tt.why == "" && len(got) > 0 {
			t.Errorf("%s: kept %q, want %q", name, got, want)
		}
	}
	c.is(d, Succeeded, Verifying)
	c.must(func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE verification SET producer = 'umpire'`)
		return err
	})
	m := s.message(t, wire.KindVerdict, passed(g), false)
	m.Header.Worker, m.Header.Boot = "umpire", "umpire-1"
	if _, fault := c.hear(m, "umpire"); fault == nil || fault.Code != ops.BadSignature {
		t.Errorf("a verifier that did the work itself: %v", fault)
	}
	c.must(func(tx journal.Tx) error { _, err := tx.Exec(`UPDATE verification SET producer = 'smith'`); return err })
	c.pass(c.plane.TTL)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), false), "judge"); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("a lapsed lease: %v", fault)
	}
	c.is(d, Succeeded, Verifying)
}

// The one who did the work is offered nothing to judge, also if it were a verifier; nor is
// one that cannot judge that implementation, that is revoked, or while the plane is off.
func TestOfferVerification(t *testing.T) {
	c := newCourt(t)
	c.returned(declared, "report.md")
	set := func(sql string) {
		c.must(func(tx journal.Tx) error { _, err := tx.Exec(sql); return err })
	}
	if g := c.grant("smith"); g != nil {
		t.Error("a worker was given a verification")
	}
	set(`UPDATE verification SET producer = 'judge'`)
	if g := c.grant("judge"); g != nil {
		t.Error("the producer was given its own work to judge")
	}
	set(`UPDATE verification SET producer = 'smith'`)
	set(`UPDATE principal SET implementations = '["other"]' WHERE id = 'judge'`)
	if g := c.grant("judge"); g != nil {
		t.Error("a verifier of another implementation was given it")
	}
	set(`UPDATE principal SET implementations = '["default"]'`)
	for _, off := range []string{`UPDATE plane SET state = 'off'`, `UPDATE plane SET state = 'on'; UPDATE principal SET revoked_at = 1 WHERE id = 'judge'`} {
		for _, sql := range strings.Split(off, "; ") {
			set(sql)
		}
		if g := c.grant("judge"); g != nil {
			t.Errorf("after %s: granted", off)
		}
	}
	set(`UPDATE principal SET revoked_at = NULL`)
	set(`UPDATE plane SET state = 'drain'`)
	g := c.grant("judge")
	if g == nil {
		t.Fatal("nothing is verified while the plane drains")
	}
	if other := c.grant("umpire"); other != nil {
		t.Error("two verifiers have one verification")
	}
	var again *wire.Grant
	c.must(func(tx journal.Tx) (err error) {
		again, err = c.plane.verificationGrant(tx, c.who(tx, "judge"), g.Verification, "nonce")
		return err
	})
	if again == nil || again.Fence != g.Fence || again.Verification != g.Verification {
		t.Errorf("the same poll again: %+v", again)
	}
}

// A verification that a verifier has left is offered to another, under a greater fence;
// what the first one says then decides nothing, and a verdict that differs is told.
func TestVerifiersDisagree(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	first := speaking(c.grant("judge"))
	c.pass(c.plane.TTL)
	if n := c.sweep(); n != 1 {
		t.Fatalf("%d looked at", n)
	}
	c.pass(time.Second)
	second := c.grant("umpire")
	if second == nil || second.Fence <= first.Fence || second.Verification != first.Verification {
		t.Fatalf("second grant %+v", second)
	}
	// Before there is a verdict that counts.
	no := wire.Verdict{Verdict: Refused, Reason: "the report is empty"}
	if _, fault := c.hear(first.message(t, wire.KindVerdict, no, false), "judge"); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("the first verifier: %v", fault)
	}
	c.is(d, Succeeded, Verifying)
	if len(c.told.notes) != 0 {
		t.Errorf("told %q before anybody disagrees", c.told.notes)
	}
	s := speaking(second)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(second), true), "umpire"); fault != nil {
		t.Fatal(fault)
	}
	c.is(d, Succeeded, Completed)
	if len(c.told.notes) != 1 || !strings.Contains(c.told.notes[0], "judge") || !slices.Contains(c.events(d), "verification.disagreement") {
		t.Errorf("told %q, events %q", c.told.notes, c.events(d))
	}
	// And afterwards.
	first.seq = 4
	if _, fault := c.hear(first.message(t, wire.KindVerdict, no, false), "judge"); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("the first verifier, later: %v", fault)
	}
	if len(c.told.notes) != 1 {
		t.Errorf("told %q, of the same twice", c.told.notes)
	}
	c.is(d, Succeeded, Completed)
	if got := c.evidence(d); !slices.Equal(got, []string{"verdict wrong_worker", "verdict no_lease"}) {
		t.Errorf("evidence %q", got)
	}
}

// A failed verdict is a new attempt within its budget, and then the end.
func TestVerdictFailed(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	for attempt := 1; attempt <= 2; attempt++ {
		if attempt == 2 {
			c.is(d, Dispatched, Open)
			c.pass(10 * time.Second)
			c.step(d, begin...)
			c.succeed(d, c.leave(d, "report.md", "another", true))
		}
		g := c.grant("judge")
		s := speaking(g)
		if _, fault := c.hear(s.message(t, wire.KindVerdict, wire.Verdict{Verdict: Refused, Command: g.Verify, Exit: 2, Reason: "tests fail"}, true), "judge"); fault != nil {
			t.Fatal(fault)
		}
	}
	c.is(d, Succeeded, VerificationFailed)
	o := c.outcome(d)
	if o.State != ops.Failed || o.Fault.Code != ops.NotVerified || o.Fault.Details["verifier"] != "judge" || o.Fault.Details["attempts"] != float64(2) {
		t.Errorf("outcome %+v", o.Fault)
	}
}

// A declared file that is not returned and attested makes EVIDENCE_MISSING without asking
// anybody. It is looked at again when it is attested, and closed in the end.
func TestEvidenceMissing(t *testing.T) {
	for name, files := range map[string]func(c *court, d string) []wire.File{
		"not returned": func(c *court, d string) []wire.File { return []wire.File{c.leave(d, "other.md", "x", true)} },
		"not attested": func(c *court, d string) []wire.File { return []wire.File{c.leave(d, "report.md", "x", false)} },
		"nothing":      func(c *court, d string) []wire.File { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCourt(t)
			d := c.spawn(declared)
			c.step(d, begin...)
			c.succeed(d, files(c, d)...)
			c.is(d, Succeeded, EvidenceMissing)
			if g := c.grant("judge"); g != nil {
				t.Fatal("a verifier was asked")
			}
			if _, err := c.plane.Retry(t.Context(), asker, d); err == nil {
				t.Error("an agent may retry")
			}
			// Attested since, it is looked at again.
			c.leave(d, "report.md", "at last", true)
			c.step(d, Event{Kind: OnArtifactAttested})
			c.is(d, Succeeded, Verifying)
			g := c.grant("judge")
			if g == nil || !slices.ContainsFunc(g.Result.Files, func(f wire.File) bool { return f.Name == "report.md" }) {
				t.Fatalf("grant %+v", g)
			}
			s := speaking(g)
			if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), true), "judge"); fault != nil {
				t.Fatal(fault)
			}
			c.is(d, Succeeded, Completed)
		})
	}
	c := newCourt(t)
	d := c.returned(declared)
	c.is(d, Succeeded, EvidenceMissing)
	c.pass(59 * time.Minute)
	if n := c.sweep(); n != 0 {
		t.Errorf("%d looked at before its time", n)
	}
	c.pass(time.Minute + time.Second)
	c.sweep()
	c.is(d, Succeeded, EvidenceMissing)
	o := c.outcome(d)
	if o.Fault == nil || o.Fault.Code != ops.NoEvidence || fmt.Sprint(o.Fault.Details["missing"]) != "[report.md]" {
		t.Errorf("outcome %+v", o.Fault)
	}
}

// A verifier that lacks evidence says so; a person has it looked at again.
func TestVerifierLacksEvidence(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	s := speaking(c.grant("judge"))
	if _, fault := c.hear(s.message(t, wire.KindVerdict, wire.Verdict{Verdict: Lacking, Reason: "no log of the tests"}, true), "judge"); fault != nil {
		t.Fatal(fault)
	}
	c.is(d, Succeeded, EvidenceMissing)
	shows, err := c.plane.Retry(t.Context(), boss, d)
	if err != nil || shows.State != Verifying || len(shows.Verifications) != 2 {
		t.Fatalf("retry: %+v %v", shows, err)
	}
	if c.sweep(); c.verification(d).state != AwaitsVerifier {
		t.Errorf("verification %+v", c.verification(d))
	}
	// The time of the first one is over, and closes nothing any more.
	g := c.grant("umpire")
	s = speaking(g)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), true), "umpire"); fault != nil {
		t.Fatal(fault)
	}
	c.is(d, Succeeded, Completed)
}

// Nobody comes: that is shown, a verifier may come still, and in the end the delegation is
// closed as what it is.
func TestVerifierUnavailable(t *testing.T) {
	c := newCourt(t)
	early, never := c.returned(declared, "report.md"), c.returned(declared, "report.md")
	c.pass(c.plane.VerifyWithin)
	if n := c.sweep(); n != 2 {
		t.Errorf("%d looked at, want 2", n)
	}
	c.is(early, Succeeded, VerifierUnavailable)
	c.is(never, Succeeded, VerifierUnavailable)
	if len(c.told.notes) != 2 {
		t.Errorf("told %q", c.told.notes)
	}
	g := c.grant("judge")
	if g == nil || g.Delegation != early {
		t.Fatalf("grant %+v, want the one that has waited longest", g)
	}
	s := speaking(g)
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), true), "judge"); fault != nil {
		t.Fatal(fault)
	}
	c.is(early, Succeeded, Completed)
	c.pass(time.Hour + waitsForVerifier)
	c.sweep()
	h := c.held(never)
	if h.delegation.state != VerifierUnavailable || h.delegation.closedAt.IsZero() || c.verification(never).state != NobodyJudged {
		t.Fatalf("delegation %+v", h.delegation)
	}
	if o := c.outcome(never); o.Fault == nil || o.Fault.Code != ops.NoVerifier {
		t.Errorf("outcome %+v", o)
	}
	if g := c.grant("judge"); g != nil {
		t.Error("it is offered on after it is closed")
	}
}

// A verifier that takes the work again and again and never judges does not hide that
// nobody judges it.
func TestVerifierKeepsVanishing(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	var last int64
	for range lapsesBearable {
		c.pass(10 * time.Second)
		g := c.grant("judge")
		if g == nil || g.Fence <= last {
			t.Fatalf("grant %+v after fence %d", g, last)
		}
		last = g.Fence
		c.pass(c.plane.TTL)
		c.sweep()
	}
	c.sweep()
	c.is(d, Succeeded, VerifierUnavailable)
	c.pass(10 * time.Second)
	if g := c.grant("umpire"); g == nil {
		t.Error("it is offered no more")
	}
}

// The lease of a verifier ends with the time that is for judging, however it heartbeats;
// one whose command is dead extends nothing; and none lapses while expiry is held.
func TestVerifierLease(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	g := c.grant("judge")
	s := speaking(g)
	for range int(c.plane.VerifyWithin / c.plane.Heartbeat) {
		c.pass(c.plane.Heartbeat)
		if _, fault := c.hear(s.message(t, wire.KindHeartbeat, wire.Heartbeat{Alive: true}, true), "judge"); fault != nil {
			if left := c.verification(d); left.leaseUntil.Before(left.deadline) {
				t.Fatalf("lost at %v of %v: %v", left.leaseUntil, left.deadline, fault)
			}
		}
	}
	if _, fault := c.hear(s.message(t, wire.KindHeartbeat, wire.Heartbeat{Alive: true}, true), "judge"); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("after the time to judge: %v", fault)
	}
	c.sweep()
	c.pass(time.Minute)
	g = c.grant("judge")
	s = speaking(g)
	until := c.verification(d).leaseUntil
	c.pass(time.Second)
	if _, fault := c.hear(s.message(t, wire.KindHeartbeat, wire.Heartbeat{Alive: false}, true), "judge"); fault != nil {
		t.Fatal(fault)
	}
	if got := c.verification(d).leaseUntil; !got.Equal(until) {
		t.Errorf("a dead command extended the lease to %v from %v", got, until)
	}
	c.must(func(tx journal.Tx) error { _, err := tx.Exec(`UPDATE plane SET state = 'off'`); return err })
	if ack, fault := c.hear(s.message(t, wire.KindHeartbeat, wire.Heartbeat{Alive: true}, true), "judge"); fault != nil || !ack.Drain || ack.LeaseMS <= 0 {
		t.Errorf("while the plane is off: %+v %v", ack, fault)
	}
	if got := c.verification(d).leaseUntil; !got.Equal(until) {
		t.Errorf("a plane that is off extended the lease to %v from %v", got, until)
	}
	c.must(func(tx journal.Tx) error {
		_, err := tx.Exec(`UPDATE plane SET hold_until = $1`, tx.Now().Add(time.Hour).UnixMilli())
		return err
	})
	c.pass(c.plane.TTL)
	c.sweep()
	if v := c.verification(d); v.state != WithVerifier {
		t.Errorf("it lapsed while expiry was held: %+v", v)
	}
}

// A verifier's next boot, its revocation and a new term end its leases; what it says under
// one of before is evidence.
func TestVerifierBootEnds(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	g := c.grant("judge")
	s := speaking(g)
	c.must(func(tx journal.Tx) error {
		if _, err := tx.Exec(`UPDATE plane SET term = 2`); err != nil {
			return err
		}
		return c.plane.lapseVerifications(tx, "", "term_bumped")
	})
	if _, fault := c.hear(s.message(t, wire.KindVerdict, passed(g), false), "judge"); fault == nil || fault.Code != ops.StaleFence {
		t.Errorf("after the term: %v", fault)
	}
	c.is(d, Succeeded, Verifying)
	c.pass(time.Second)
	again := c.grant("judge")
	if again == nil || again.Fence>>termBits != 2 {
		t.Fatalf("grant %+v, want a fence of term 2", again)
	}
}

// Nothing but a verifier's passed, said by the holder of the live lease as the next message
// with what it has judged by, completes a delegation: whatever messages come, in whatever
// order, from whomever, with time passing between them.
func TestOnlyPassedCompletes(t *testing.T) {
	c := newCourt(t)
	rapid.Check(t, func(r *rapid.T) {
		d := c.returned(declared, "report.md")
		defer c.plane.CancelDelegation(t.Context(), boss, d, CancelRequest{})
		grants := map[ops.IdentityID]*speech{}
		var latest *wire.Grant
		speakers := []ops.IdentityID{"judge", "umpire", "smith"}
		for range rapid.IntRange(1, 25).Draw(r, "messages") {
			switch rapid.SampledFrom([]string{"poll", "say", "say", "say", "say", "sweep", "wait", "cancel", "attest", "retry"}).Draw(r, "what") {
			case "poll":
				who := rapid.SampledFrom(speakers).Draw(r, "who")
				if g := c.grant(who); g != nil {
					grants[who], latest = speaking(g), g
				}
			case "sweep":
				c.sweep()
			case "wait":
				c.pass(time.Duration(rapid.SampledFrom([]int{1, 29, 31, 901}).Draw(r, "seconds")) * time.Second)
			case "attest":
				c.do(func(tx journal.Tx) error {
					h, err := c.plane.load(tx, d, "")
					if err != nil {
						return err
					}
					_, err = c.plane.apply(tx, h, Event{Kind: OnArtifactAttested, Worker: "smith", Boot: "smith-1", Fence: h.run.fence, Seq: h.run.seq + 1, Prev: h.run.prev, Digest: "sha256:a"})
					return err
				})
			case "cancel":
				if rapid.IntRange(0, 9).Draw(r, "really") == 0 {
					c.plane.CancelDelegation(t.Context(), boss, d, CancelRequest{})
				}
			case "retry":
				c.plane.Retry(t.Context(), boss, d)
			case "say":
				if latest == nil {
					continue
				}
				who := rapid.SampledFrom(speakers).Draw(r, "speaker")
				s := grants[who]
				if s == nil {
					s = speaking(latest)
				}
				kind := rapid.SampledFrom([]wire.Kind{wire.KindVerdict, wire.KindVerdict, wire.KindHeartbeat, wire.KindStarted, wire.KindResult, wire.KindCancelProof, wire.KindMutationProved}).Draw(r, "kind")
				v := wire.Verdict{Verdict: rapid.SampledFrom([]string{Passed, Passed, Refused, Lacking, "", "completed"}).Draw(r, "verdict"), Command: latest.Verify, Checked: latest.Result.Files, Reason: "so"}
				if rapid.Bool().Draw(r, "bare") {
					v.Command, v.Checked = nil, nil
				}
				m := s.message(t, kind, v, false)
				if kind == wire.KindHeartbeat {
					m = s.message(t, kind, wire.Heartbeat{Alive: rapid.Bool().Draw(r, "alive")}, false)
				}
				m.Header.Fence += rapid.SampledFrom([]int64{0, 0, 0, 1, -1}).Draw(r, "fence")
				m.Header.Seq += rapid.SampledFrom([]int64{0, 0, 0, 1, -1}).Draw(r, "seq")
				m.Header.Worker = rapid.SampledFrom([]ops.IdentityID{who, who, who, "judge"}).Draw(r, "name")
				m.Header.Verification = rapid.SampledFrom([]string{m.Header.Verification, m.Header.Verification, "v-other"}).Draw(r, "subject")
				before, h := c.verification(d), c.held(d)
				now := c.clock()
				ack, fault := c.hear(m, who)
				after := c.held(d)
				if fault == nil && !ack.Replayed {
					s.seq, s.prev = m.Header.Seq, m.Digest
				}
				if after.delegation.state == Completed && h.delegation.state != Completed {
					right := kind == wire.KindVerdict && v.Verdict == Passed && len(v.Checked) > 0 && fault == nil && who != "smith" && m.Header.Worker == who &&
						before.state == WithVerifier && before.verifier == who && before.fence == m.Header.Fence && before.seq+1 == m.Header.Seq && now.Before(before.leaseUntil) &&
						m.Header.Verification == before.id && !h.delegation.cancel
					if !right {
						r.Fatalf("completed by %+v %s of %s, verification %+v", m.Header, m.Body, who, before)
					}
				}
			}
			h := c.held(d)
			if h.delegation.state == Completed {
				n := 0
				c.must(func(tx journal.Tx) error {
					return tx.Query(`SELECT count(*) FROM verification WHERE delegation = $1 AND run = $2 AND state = 'PASSED' AND verifier <> 'smith'`, func(scan func(...any) error) error { return scan(&n) }, d, h.run.run)
				})
				if n != 1 || c.outcome(d).State != ops.Succeeded {
					r.Fatalf("COMPLETED with %d verdicts that passed", n)
				}
			}
		}
	})
}

// What leads to Close is not trusted: without a verdict on record nothing is completed.
func TestNothingIsCompletedByAStep(t *testing.T) {
	c := newCourt(t)
	d := c.returned(declared, "report.md")
	err := c.do(func(tx journal.Tx) error {
		h, err := c.plane.load(tx, d, "")
		if err != nil {
			return err
		}
		_, err = c.plane.apply(tx, h, Event{Kind: OnVerdict, Verdict: Passed, Worker: "judge"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "without a verifier's word") {
		t.Errorf("got %v", err)
	}
	c.is(d, Succeeded, Verifying)
}
