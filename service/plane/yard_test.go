package plane

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/plane/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ada = ops.Identity{ID: "ada", Role: ops.Operator}

// yard is a plane over a real store, with the door that work comes in by, at a path that it
// can be opened at again.
type yard struct {
	t      testing.TB
	path   string
	config func(*Config)
	schema journal.Schema
	batch  int          // transactions in a commit of the store at most, 0 is its own number
	skew   atomic.Int64 // that the wall clock is set by
	broken atomic.Bool  // the store takes no writes
	store  *sqlite.Store
	door   *service.Door
	files  *artifacts.Store
	plane  *Plane
}

func (y *yard) clock() time.Time { return time.Now().Add(time.Duration(y.skew.Load())) }

// brittle is a store that can be made to take no writes.
type brittle struct {
	journal.Store
	y *yard
}

func (b brittle) Update(ctx context.Context, f func(journal.Tx) error) error {
	if b.y.broken.Load() {
		return fmt.Errorf("write: %w", journal.ErrFull)
	}
	return b.Store.Update(ctx, f)
}

// newYard opens a yard whose plane is on and not started.
func newYard(t testing.TB, config func(*Config)) *yard {
	t.Helper()
	y := &yard{t: t, path: filepath.Join(t.TempDir(), "journal.db"), config: config, schema: Schema()}
	y.begin()
	return y
}

// begin opens y for the first time.
func (y *yard) begin() {
	y.t.Helper()
	y.open()
	if _, err := access.NewDirectory(y.store).Add(y.t.Context(), ada); err != nil {
		y.t.Fatal(err)
	}
	if _, err := y.plane.Switch(y.t.Context(), ada, On); err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) open() {
	y.t.Helper()
	var err error
	if y.store, err = sqlite.Open(y.t.Context(), sqlite.Config{Path: y.path, Clock: y.clock, MaxBatch: y.batch,
		Schemas: []journal.Schema{access.Schema(), service.Schema(), artifacts.Schema(), y.schema}}); err != nil {
		y.t.Fatal(err)
	}
	if y.files, err = artifacts.Open(artifacts.Config{Folder: filepath.Join(filepath.Dir(y.path), "artifacts")}); err != nil {
		y.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	empty, err := ops.New()
	if err != nil {
		y.t.Fatal(err)
	}
	live, policy := ops.NewLive(empty), access.NewLivePolicy(access.DefaultPolicy())
	if y.door, err = service.New(service.Config{Store: y.store, Registry: live, Policy: policy, Log: log, MaxWaiting: 100_000, RatePerIdentity: ops.Rate{Count: 1_000_000, Per: time.Second}}); err != nil {
		y.t.Fatal(err)
	}
	y.plane = y.another()
	registry, err := ops.New(y.plane.Ops()...)
	if err != nil {
		y.t.Fatal(err)
	}
	live.Swap(registry)
	if err := y.door.Start(y.t.Context()); err != nil {
		y.t.Fatal(err)
	}
}

// another returns one more plane on the same store.
func (y *yard) another() *Plane {
	y.t.Helper()
	c := Config{Store: brittle{y.store, y}, Door: y.door, Directory: access.NewDirectory(y.store), Policy: access.NewLivePolicy(access.DefaultPolicy()),
		Artifacts: y.files, Key: ed25519.NewKeyFromSeed(make([]byte, 32)), Log: slog.New(slog.DiscardHandler), Clock: y.clock}
	if y.config != nil {
		y.config(&c)
	}
	p, err := New(c)
	if err != nil {
		y.t.Fatal(err)
	}
	return p
}

func (y *yard) start() {
	y.t.Helper()
	if err := y.plane.Start(y.t.Context()); err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) close() {
	y.t.Helper()
	y.plane.Close()
	if err := y.door.Close(context.Background()); err != nil {
		y.t.Error(err)
	}
	if err := errors.Join(y.files.Close(), y.store.Close()); err != nil {
		y.t.Error(err)
	}
}

// reopen ends everything and opens it again at the same path, as after a restart.
func (y *yard) reopen() {
	y.t.Helper()
	y.close()
	y.open()
}

// do runs f in a transaction.
func (y *yard) do(f func(journal.Tx) error) {
	y.t.Helper()
	if err := y.store.Update(y.t.Context(), f); err != nil {
		y.t.Fatal(err)
	}
}

// exec runs one statement.
func (y *yard) exec(sql string, args ...any) {
	y.t.Helper()
	y.do(func(tx journal.Tx) error { _, err := tx.Exec(sql, args...); return err })
}

// number reads one number.
func (y *yard) number(sql string, args ...any) (n int64) {
	y.t.Helper()
	if err := y.store.View(y.t.Context(), func(tx journal.Tx) error {
		return tx.Query(sql, func(scan func(...any) error) error { return scan(&n) }, args...)
	}); err != nil {
		y.t.Fatal(err)
	}
	return n
}

// text reads one text.
func (y *yard) text(sql string, args ...any) (s string) {
	y.t.Helper()
	if err := y.store.View(y.t.Context(), func(tx journal.Tx) error {
		return tx.Query(sql, func(scan func(...any) error) error { return scan(&s) }, args...)
	}); err != nil {
		y.t.Fatal(err)
	}
	return s
}

// events counts the events of a kind, of one delegation or of all.
func (y *yard) events(kind, delegation string) (n int) {
	y.t.Helper()
	done := errors.New("done")
	head, err := y.store.Head(y.t.Context())
	if err != nil {
		y.t.Fatal(err)
	}
	if err := y.store.Tail(y.t.Context(), 0, func(e journal.Event) error {
		if e.Kind == kind && (delegation == "" || e.Stream == "delegation/"+delegation) {
			n++
		}
		if e.Position >= head {
			return done
		}
		return nil
	}); !errors.Is(err, done) {
		y.t.Fatal(err)
	}
	return n
}

// spawn orders work through the door and returns the delegation's id.
func (y *yard) spawn(params string) string {
	y.t.Helper()
	if params == "" {
		params = `{"task":"Count the files."}`
	}
	return y.order(ops.Call{Op: "swarm.spawn", By: ada, Params: json.RawMessage(params), From: ops.Origin{Source: "api"}})
}

func (y *yard) order(c ops.Call) string {
	y.t.Helper()
	ticket, err := y.door.Submit(y.t.Context(), c)
	if err != nil {
		y.t.Fatal(err)
	}
	var id, state string
	for until := time.Now().Add(10 * time.Second); id == ""; {
		if err := y.store.View(y.t.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT c.state, COALESCE(d.id, '') FROM call c LEFT JOIN delegation d ON d.call = c.id WHERE c.id = $1`,
				func(scan func(...any) error) error { return scan(&state, &id) }, string(ticket.Call))
		}); err != nil {
			y.t.Fatal(err)
		}
		if ops.State(state).Settled() || time.Now().After(until) {
			y.t.Fatalf("%s %s is %s", c.Op, c.Params, state)
		}
	}
	return id
}

// run is the latest run of a delegation, as it stands.
func (y *yard) run(d string) (r runRow) {
	y.t.Helper()
	return y.held(d).run
}

func (y *yard) held(d string) (h *held) {
	y.t.Helper()
	if err := y.store.View(y.t.Context(), func(tx journal.Tx) (err error) { h, err = y.plane.load(tx, d, ""); return err }); err != nil {
		y.t.Fatal(err)
	}
	return h
}

// wants checks the states of a delegation and its latest run.
func (y *yard) wants(d string, run State, delegation DelegationState) {
	y.t.Helper()
	if h := y.held(d); h.run.state != run || h.delegation.state != delegation {
		y.t.Fatalf("%s: run %d is %s (%s) and the delegation %s (%s), want %s and %s", d, h.run.attempt, h.run.state, h.run.reason, h.delegation.state, h.delegation.reason, run, delegation)
	}
}

// hand is a worker or verifier as the plane meets it: a key, a boot, a token's identity.
type hand struct {
	y     *yard
	who   ops.Identity
	key   ed25519.PrivateKey
	boot  string
	polls int
	off   time.Duration // of its clock
}

// hire enrols a worker or verifier and begins its first boot.
func (y *yard) hire(id ops.IdentityID, role ops.Role, skills ...string) *hand {
	y.t.Helper()
	i := Invitation{Name: id, Role: role, Implementations: []string{StandardImplementation}}
	if len(skills) > 0 {
		i.Implementations, i.Capabilities = skills[:1], skills[1:]
	}
	invited, err := y.plane.Invite(y.t.Context(), ada, i)
	if err != nil {
		y.t.Fatal(err)
	}
	seed := sha256.Sum256([]byte(id))
	h := &hand{y: y, who: ops.Identity{ID: id, Role: role}, key: ed25519.NewKeyFromSeed(seed[:])}
	envelope, _, err := wire.Seal(h.key, wire.KindEnrol, wire.Enrol{Token: invited.Token, PublicKey: h.key.Public().(ed25519.PublicKey)})
	if err != nil {
		y.t.Fatal(err)
	}
	if _, err := y.plane.Enrol(y.t.Context(), envelope); err != nil {
		y.t.Fatal(err)
	}
	h.reboot()
	return h
}

// reboot begins another boot, which says of runs that it has found nothing alive.
func (h *hand) reboot(runs ...wire.BootRun) {
	h.y.t.Helper()
	if err := h.begin(ulid.Make().String(), runs...); err != nil {
		h.y.t.Fatal(err)
	}
}

func (h *hand) begin(boot string, runs ...wire.BootRun) error {
	h.y.t.Helper()
	challenge, err := h.y.plane.Challenge(h.y.t.Context(), string(h.who.ID))
	if err != nil {
		return err
	}
	if runs == nil {
		runs = []wire.BootRun{}
	}
	envelope, _, err := wire.Seal(h.key, wire.KindBoot, wire.Boot{Worker: h.who.ID, Boot: boot, Challenge: challenge, Version: "test", Runs: runs})
	if err != nil {
		return err
	}
	if _, err = h.y.plane.Begin(h.y.t.Context(), envelope); err == nil {
		h.boot = boot
	}
	return err
}

// lease is a grant that a hand has, with its place in the chain of messages.
type tenure struct {
	hand *hand
	wire.Grant
	seq  int64
	prev string
}

// poll asks for work, nil if there is none within wait.
func (h *hand) poll(wait time.Duration) *tenure {
	h.y.t.Helper()
	g, err := h.tryPoll(wait)
	if err != nil {
		h.y.t.Fatal(err)
	}
	return g
}

func (h *hand) tryPoll(wait time.Duration) (*tenure, error) {
	h.polls++
	return h.pollAs(fmt.Sprint("n", h.polls), wait)
}

func (h *hand) pollAs(nonce string, wait time.Duration) (*tenure, error) {
	envelope, err := h.y.plane.Poll(h.y.t.Context(), h.who, wire.Poll{Boot: h.boot, Nonce: nonce, WaitMS: wait.Milliseconds()})
	return h.granted(envelope, err)
}

// granted opens the answer to a poll.
func (h *hand) granted(envelope []byte, err error) (*tenure, error) {
	if err != nil || envelope == nil {
		return nil, err
	}
	s, err := wire.Read(envelope, wire.MaxGrant)
	if err != nil {
		return nil, err
	}
	if err := s.Prove(h.y.plane.Key.Public().(ed25519.PublicKey)); err != nil {
		return nil, err
	}
	g := &tenure{hand: h}
	if err := s.Decode(wire.KindGrant, &g.Grant); err != nil {
		return nil, err
	}
	g.seq, g.prev = g.Seq, g.Prev
	return g, nil
}

// must polls and has to be granted something.
func (h *hand) must(wait time.Duration) *tenure {
	h.y.t.Helper()
	g := h.poll(wait)
	if g == nil {
		h.y.t.Fatalf("%s was granted nothing", h.who)
	}
	return g
}

// seal makes the next message of g, without counting it.
func (g *tenure) seal(k wire.Kind, body any) (envelope []byte, digest string) {
	g.hand.y.t.Helper()
	header := g.Header
	header.Seq, header.Prev, header.SentAt = g.seq+1, g.prev, time.Now().Add(g.hand.off)
	envelope, digest, err := wire.SealCallback(g.hand.key, k, header, body)
	if err != nil {
		g.hand.y.t.Fatal(err)
	}
	return envelope, digest
}

// try says the next message and counts it if it is accepted.
func (g *tenure) try(k wire.Kind, body any) (wire.Ack, error) {
	g.hand.y.t.Helper()
	envelope, digest := g.seal(k, body)
	ack, err := g.hand.y.plane.Callback(g.hand.y.t.Context(), g.hand.who, envelope)
	if err == nil {
		g.seq, g.prev = g.seq+1, digest
	}
	return ack, err
}

// say says the next message, which has to be accepted.
func (g *tenure) say(k wire.Kind, body any) wire.Ack {
	g.hand.y.t.Helper()
	ack, err := g.try(k, body)
	if err != nil {
		g.hand.y.t.Fatalf("%s by %s: %v", k, g.hand.who, err)
	}
	return ack
}

func (g *tenure) started() wire.Ack {
	g.hand.y.t.Helper()
	return g.say(wire.KindStarted, wire.Started{Process: &wire.Process{PID: 7, Start: "s7"}})
}

func alive(progress int64) wire.Heartbeat {
	return wire.Heartbeat{Process: &wire.Process{PID: 7, Start: "s7"}, Alive: true, Progress: progress}
}

func (g *tenure) beat(progress int64) wire.Ack {
	g.hand.y.t.Helper()
	return g.say(wire.KindHeartbeat, alive(progress))
}

var (
	done   = wire.Result{Succeeded: true, Summary: "done", Files: []wire.File{}}
	failed = wire.Result{Class: string(TaskFailed), Exit: 1, Summary: "it cannot be done", Files: []wire.File{}}
)

// wantFault checks the code of an error, and whether it is final.
func wantFault(t testing.TB, err error, code ops.Code, final bool) *ops.Fault {
	t.Helper()
	var f *ops.Fault
	if !errors.As(err, &f) {
		t.Fatalf("error %v, want %s", err, code)
	}
	got, _ := f.Details["final"].(bool)
	if f.Code != code || got != final {
		t.Fatalf("fault %v with %v, want %s, final %t", f, f.Details, code, final)
	}
	return f
}

// inYard runs f in a yard whose time is synctest's. The plane is started.
func inYard(t *testing.T, config func(*Config), f func(*testing.T, *yard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, config)
		defer y.close()
		y.start()
		f(t, y)
	})
}

// pass lets time pass, and whatever it brings.
func (y *yard) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAWorkIsDoneOnceSomebodyElseSaysSo(t *testing.T) {
	inYard(t, nil, func(t *testing.T, y *yard) {
		smith, judge := y.hire("smith", ops.Worker), y.hire("judge", ops.Verifier)
		d := y.spawn(`{"task":"Count the files.","instruction":{"original":"count them"},"verify":{"command":["true"]}}`)
		g := smith.must(0)
		if g.Instruction.Task != "Count the files." || g.Instruction.Original != "count them" || g.Attempt != 1 || g.Fence != 1<<32|1 {
			t.Errorf("grant %+v", g.Grant)
		}
		if raw, _ := json.Marshal(g.Instruction); func() bool { c, _ := ops.Canonical(raw); return wire.Digest(c) != g.Digest }() {
			t.Errorf("the digest of the instruction is %s", g.Digest)
		}
		y.wants(d, Leased, Open)
		g.started()
		y.wants(d, Running, Open)
		if ack := g.beat(1); ack.LeaseMS != y.plane.TTL.Milliseconds() || ack.Cancel || ack.Final {
			t.Errorf("heartbeat answered %+v", ack)
		}
		if ack := g.say(wire.KindResult, done); !ack.Final || ack.State != string(Succeeded) {
			t.Errorf("result answered %+v", ack)
		}
		y.wants(d, Succeeded, Verifying)
		v := judge.must(0)
		v.say(wire.KindStarted, wire.Started{})
		v.say(wire.KindVerdict, wire.Verdict{Verdict: Passed, Command: []string{"true"}, Checked: []wire.File{}})
		y.wants(d, Succeeded, Completed)
		if state := y.text(`SELECT c.state FROM call c JOIN delegation d ON d.call = c.id WHERE d.id = $1`, d); state != "succeeded" {
			t.Errorf("the call is %s", state)
		}
	})
}
