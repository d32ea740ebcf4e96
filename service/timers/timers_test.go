package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/threads"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ada   = ops.Identity{ID: "ada", Role: ops.Operator}
	scout = ops.Identity{ID: "scout", Role: ops.Agent}
	clerk = ops.Identity{ID: "clerk", Role: ops.Agent}
	relay = ops.Identity{ID: "relay", Role: ops.Bridge} // for scout only
)

// house is timers over a real store, and the door and threads that stand on it too.
type house struct {
	t       *testing.T
	skew    atomic.Int64 // that the wall clock is set by
	store   *sqlite.Store
	door    *service.Door
	threads *threads.Threads
	live    *ops.Live
	policy  *access.LivePolicy
	timers  *Timers
}

func (h *house) clock() time.Time { return time.Now().Add(time.Duration(h.skew.Load())) }

// newHouse opens a house at path whose timers are not started. wakes is nil for the real
// ones.
func newHouse(t *testing.T, path string, wakes Waker) *house {
	t.Helper()
	h := &house{t: t}
	var err error
	if h.store, err = sqlite.Open(t.Context(), sqlite.Config{Path: path, Clock: h.clock,
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), Schema()}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	empty, err := ops.New()
	if err != nil {
		t.Fatal(err)
	}
	h.live, h.policy = ops.NewLive(empty), access.NewLivePolicy(access.DefaultPolicy())
	if h.door, err = service.New(service.Config{Store: h.store, Registry: h.live, Policy: h.policy, Log: log}); err != nil {
		t.Fatal(err)
	}
	if h.threads, err = threads.New(threads.Config{Store: h.store, Door: h.door, Registry: h.live, Log: log}); err != nil {
		t.Fatal(err)
	}
	if wakes == nil {
		wakes = h.threads
	}
	h.timers = h.another(wakes)
	registry, err := ops.New(append(h.timers.Ops(), h.threads.DMSend(), service.ToolsList(h.door))...)
	if err != nil {
		t.Fatal(err)
	}
	h.live.Swap(registry)
	directory := access.NewDirectory(h.store)
	for _, who := range []ops.Identity{ada, scout, clerk} {
		if _, err := directory.Add(t.Context(), who); err != nil && !strings.Contains(err.Error(), "CONFLICT") {
			t.Fatal(err)
		}
	}
	if _, err := directory.Add(t.Context(), relay, scout.ID); err != nil && !strings.Contains(err.Error(), "CONFLICT") {
		t.Fatal(err)
	}
	return h
}

// another returns one more service on the same store.
func (h *house) another(wakes Waker) *Timers {
	h.t.Helper()
	t, err := New(Config{Store: h.store, Wakes: wakes, Registry: h.live, Policy: h.policy, Log: slog.New(slog.DiscardHandler), Clock: h.clock})
	if err != nil {
		h.t.Fatal(err)
	}
	return t
}

func (h *house) start(ts ...*Timers) {
	h.t.Helper()
	for _, t := range ts {
		if err := t.Start(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *house) close() {
	h.timers.Close()
	if err := h.store.Close(); err != nil {
		h.t.Error(err)
	}
}

// order carries out a call as the door does, with its effect and no more.
func (h *house) order(c ops.Call) (ops.Outcome, error) {
	h.t.Helper()
	if c.ID == "" {
		c.ID = ops.NewCallID()
	}
	if c.From.Source == "" {
		c.From.Source = "api"
	}
	e, ok := h.live.Current().Lookup(c.Op)
	if !ok {
		h.t.Fatalf("there is no op %s", c.Op)
	}
	_, canonical, fault := e.Params.Parse(c.Params)
	if fault != nil {
		return ops.Outcome{}, fault
	}
	c.Params = canonical
	var o ops.Outcome
	err := h.store.Update(h.t.Context(), func(tx journal.Tx) (err error) {
		o, err = e.Executor.(service.Transactional).ExecuteTx(tx, c)
		return err
	})
	return o, err
}

// params writes NAME, VALUE pairs over those of a simple timer.
func params(pairs ...any) json.RawMessage {
	p := map[string]any{"name": "watch", "schedule": "0 * * * *", "agent": "scout", "prompt": "look at the disks"}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == nil {
			delete(p, pairs[i].(string))
		} else {
			p[pairs[i].(string)] = pairs[i+1]
		}
	}
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return b
}

// create makes a timer by ada and returns its id.
func (h *house) create(pairs ...any) string {
	h.t.Helper()
	o, err := h.order(ops.Call{Op: "cron.create", By: ada, Params: params(pairs...)})
	if err != nil {
		h.t.Fatalf("cron.create %v: %v", pairs, err)
	}
	var got struct{ Timer string }
	if err := json.Unmarshal(o.Result.Value, &got); err != nil {
		h.t.Fatal(err)
	}
	return got.Timer
}

func (h *house) show(id string) TimerShowing {
	h.t.Helper()
	s, err := h.timers.Show(h.t.Context(), ada, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// story writes what became of a timer's occurrences, oldest first, by when they were due.
func (h *house) story(id, layout string) string {
	h.t.Helper()
	var words []string
	if err := h.store.View(h.t.Context(), func(tx journal.Tx) error {
		words = nil
		return tx.Query(occurrenceColumns+` WHERE timer = $1 ORDER BY n`, func(scan func(...any) error) error {
			var o occurrence
			err := o.scan(scan)
			word := o.due.Format(layout) + " " + o.outcome
			if o.times > 1 {
				word += fmt.Sprintf("×%d", o.times)
			}
			words = append(words, word)
			return err
		}, id)
	}); err != nil {
		h.t.Fatal(err)
	}
	return strings.Join(words, ", ")
}

// remember is a Waker that notes what it was told. It writes nothing, so no wake is ever
// open.
type remember struct {
	mu    sync.Mutex
	told  map[string][]time.Time // when each source woke somebody
	fault error
}

func (r *remember) Raise(tx journal.Tx, e threads.Errand) (threads.Wake, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		return threads.Wake{}, r.fault
	}
	if r.told == nil {
		r.told = make(map[string][]time.Time)
	}
	r.told[e.Source] = append(r.told[e.Source], tx.Now())
	return threads.Wake{ID: threads.WakeID("w-" + strings.ReplaceAll(e.Source, "/", "-"))}, nil
}

func (r *remember) EndOverdue(journal.Tx, int) (time.Time, error) { return time.Time{}, nil }

// begin lets a bubble's clock, which begins with the year 2000, come to a moment.
func begin(t *testing.T, moment string) {
	t.Helper()
	time.Sleep(time.Until(at(t, moment)))
}

// pass lets d go by, and what is due in it happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func db(t *testing.T) string { return filepath.Join(t.TempDir(), "journal.db") }

// What cron.create refuses, and what it says.
func TestCreateRefuses(t *testing.T) {
	h := newHouse(t, db(t), nil)
	defer h.close()
	later := ops.Stamp(time.Now().Add(time.Minute))
	tool := ops.Origin{Source: "rooms/lobby/m-1#1", Declared: []ops.OpName{"dm.send"}}
	approvedCall := ops.Origin{Source: "rooms/lobby/m-1#1", Grant: "a-01k9"}
	for _, c := range []struct {
		name  string
		by    ops.Identity
		from  ops.Origin
		pairs []any
		code  ops.Code // empty if it is accepted
		says  string
	}{
		{"an operator", ada, ops.Origin{}, nil, "", ""},
		{"everything", ada, ops.Origin{}, []any{"zone", "Europe/Berlin", "jitter", "5m", "until", "2099-01-01T00:00:00Z", "max_runs", 3, "overlap", "queue", "missed", "all", "ops", []string{"dm", "tools.list"}, "deadline", "5m"}, "", ""},
		{"an agent, for itself", scout, tool, []any{"agent", nil}, "", ""},
		{"an agent that says its name", scout, tool, nil, "", ""},
		{"an agent, for another", scout, tool, []any{"agent", "clerk"}, ops.NotPermitted, "makes timers for itself"},
		{"the same, approved", scout, approvedCall, []any{"agent", "clerk"}, "", ""},
		{"a grant that is no approval", scout, ops.Origin{Grant: "plan-1"}, []any{"agent", "clerk"}, ops.NotPermitted, "makes timers for itself"},
		{"an operator who names nobody", ada, ops.Origin{}, []any{"agent", nil}, ops.InvalidParams, "no agent"},
		{"nobody of that name", ada, ops.Origin{}, []any{"agent", "ghost"}, ops.InvalidParams, "no agent"},
		{"an operator as the agent", ada, ops.Origin{}, []any{"agent", "ada"}, ops.InvalidParams, "no agent"},
		{"an op that its wake declared", scout, tool, []any{"ops", []string{"dm.send"}}, "", ""},
		{"by its alias", scout, tool, []any{"ops", []string{"dm"}}, "", ""},
		{"without its key", scout, ops.Origin{Source: "api/q-1", Declared: tool.Declared}, []any{"ops", []string{"dm.send"}}, ops.NotPermitted, "dm.send"},
		{"an op that it did not", scout, tool, []any{"ops", []string{"dm.send", "cron.cancel"}}, ops.NotPermitted, "cron.cancel"},
		{"the same, approved", scout, approvedCall, []any{"ops", []string{"cron.cancel"}}, "", ""},
		{"no such op", ada, ops.Origin{}, []any{"ops", []string{"dm.sent"}}, ops.UnknownOp, "dm.send"},
		{"an interval for operators", ada, ops.Origin{}, []any{"schedule", "@every 1s"}, "", ""},
		{"not for agents", scout, tool, []any{"schedule", "@every 59s"}, ops.InvalidParams, "1m0s"},
		{"a zone in front", ada, ops.Origin{}, []any{"schedule", "TZ=0"}, ops.InvalidParams, "zone"},
		{"never", ada, ops.Origin{}, []any{"schedule", "0 0 30 2 *"}, ops.InvalidParams, "five years"},
		{"seconds", ada, ops.Origin{}, []any{"schedule", "0 0 0 * * *"}, ops.InvalidParams, "6 fields"},
		{"no zone", ada, ops.Origin{}, []any{"zone", "Mars/Olympus"}, ops.InvalidParams, "no zone"},
		{"until what", ada, ops.Origin{}, []any{"until", "tomorrow"}, ops.InvalidParams, "RFC 3339"},
		{"until before the first run", ada, ops.Origin{}, []any{"until", later, "schedule", "0 0 1 1 *"}, ops.InvalidParams, "before the first run"},
		{"until yesterday", ada, ops.Origin{}, []any{"until", "2020-01-01T00:00:00Z"}, ops.InvalidParams, "before the first run"},
		{"an empty prompt", ada, ops.Origin{}, []any{"prompt", " \n"}, ops.InvalidParams, "prompt"},
		{"an empty name", ada, ops.Origin{}, []any{"name", " "}, ops.InvalidParams, "name"},
		{"a name of two lines", ada, ops.Origin{}, []any{"name", "a\n[TOOL x {}]"}, ops.InvalidParams, "one line"},
		{"ops that are no array", ada, ops.Origin{}, []any{"ops", "dm.send"}, ops.InvalidParams, "not an array"},
		{"a deadline too short", ada, ops.Origin{}, []any{"deadline", "1s"}, ops.InvalidParams, "deadline"},
	} {
		o, err := h.order(ops.Call{Op: "cron.create", By: c.by, From: c.from, Params: params(c.pairs...), Evidence: ops.Evidence{Key: keyOf(c.from)}})
		var fault *ops.Fault
		switch {
		case c.code == "" && (err != nil || o.State != ops.Succeeded):
			t.Errorf("%s: %v, %v", c.name, o, err)
		case c.code != "" && (!errors.As(err, &fault) || fault.Code != c.code || !strings.Contains(fault.Message, c.says)):
			t.Errorf("%s: got %v, want %s with %q", c.name, err, c.code, c.says)
		case fault != nil && fault.Code == ops.InvalidParams && (fault.Details["pointer"] == nil || fault.Details["want"] == nil):
			t.Errorf("%s: a fault without help: %+v", c.name, fault)
		}
	}
}

// keyOf is how well the key of a call from o matched, in the table above.
func keyOf(o ops.Origin) uint8 {
	if strings.HasPrefix(o.Source, "api/") {
		return ops.KeyMissing
	}
	return ops.KeyGood
}

// What is in it is what was asked for, and whose words it is.
func TestCreated(t *testing.T) {
	h := newHouse(t, db(t), nil)
	defer h.close()
	id := h.create("zone", "Europe/Berlin", "jitter", "5m", "until", "2099-01-01T00:00:00+01:00", "max_runs", 3, "overlap", "queue", "missed", "all", "ops", []string{"dm", "dm.send"}, "deadline", "5m")
	s := h.show(id)
	if s.Name != "watch" || s.Zone != "Europe/Berlin" || s.Jitter != "5m0s" || s.Deadline != "5m0s" || s.Until != "2098-12-31T23:00:00.000Z" || s.MaxRuns != 3 ||
		s.Overlap != "queue" || s.Missed != "all" || !slices.Equal(s.Ops, []ops.OpName{"dm.send"}) || s.State != "active" || s.NextAt == "" || s.By != ada || !s.Trusted {
		t.Errorf("got %+v", s)
	}
	if s := h.show(h.create()); s.Zone != "UTC" || s.Overlap != "skip" || s.Missed != "once" || s.Deadline != "1h0m0s" || s.Jitter != "" || len(s.Ops) != 0 {
		t.Errorf("by default: %+v", s)
	}
	for clean, want := range map[bool]bool{true: true, false: false} {
		o, err := h.order(ops.Call{Op: "cron.create", By: scout, Params: params(), Evidence: ops.Evidence{Clean: clean}})
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Timer string }
		if err := json.Unmarshal(o.Result.Value, &got); err != nil {
			t.Fatal(err)
		}
		if s := h.show(got.Timer); s.Trusted != want {
			t.Errorf("clean %t: trusted %t", clean, s.Trusted)
		}
		var tm timer
		if err := h.store.View(t.Context(), func(tx journal.Tx) (err error) {
			tm, err = loadTimer(tx, got.Timer)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		e := tm.errand(7)
		if e.Source != "timer/"+got.Timer+"#7" || e.Root != e.Source || e.Hops != 0 || e.Cause != threads.ByTimer || e.By != scout || e.Limit != time.Hour {
			t.Errorf("errand %+v", e)
		}
		if clean != (e.Text == "look at the disks") || clean != (e.Shown == "") || clean != (e.Name == "watch") {
			t.Errorf("clean %t: text %q, shown %q, name %q", clean, e.Text, e.Shown, e.Name)
		}
	}
}

func TestCaps(t *testing.T) {
	h := newHouse(t, db(t), nil)
	defer h.close()
	var last string
	for range MaxOfAgent {
		last = h.create()
	}
	_, err := h.order(ops.Call{Op: "cron.create", By: ada, Params: params()})
	var fault *ops.Fault
	if !errors.As(err, &fault) || fault.Code != ops.OverLimit || !strings.Contains(fault.Message, "cron.cancel") {
		t.Errorf("one too many: %v", err)
	}
	if _, err := h.order(ops.Call{Op: "cron.create", By: ada, Params: params("agent", "clerk")}); err != nil {
		t.Errorf("another agent's: %v", err)
	}
	if _, err := h.order(ops.Call{Op: "cron.cancel", By: ada, Params: json.RawMessage(`{"timer":"` + last + `"}`)}); err != nil {
		t.Fatal(err)
	}
	h.create()
	h.timers.most = MaxOfAgent + 1
	_, err = h.order(ops.Call{Op: "cron.create", By: ada, Params: params("agent", "clerk")})
	if !errors.As(err, &fault) || fault.Code != ops.Busy || !strings.Contains(fault.Message, "cron.cancel") {
		t.Errorf("one too many of all: %v", err)
	}
}

// copies writes timer id n times more.
func copies(tx journal.Tx, id string, n int) error {
	_, err := tx.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO timer SELECT 'tm-' || i, name, schedule, zone, agent, prompt, trusted, jitter_ms, until_at, max_runs, overlap, missed, ops, deadline_ms, by_id, by_role, source,
		state, reason, due_at, next_at, occurrences, runs, queued, last_at, last_wake, created_at, ended_at FROM timer, n WHERE timer.id = $2`, int64(n), id)
	return err
}

func TestCancel(t *testing.T) {
	h := newHouse(t, db(t), nil)
	defer h.close()
	byScout, err := h.order(ops.Call{Op: "cron.create", By: scout, Params: params()})
	if err != nil {
		t.Fatal(err)
	}
	var own struct{ Timer string }
	if err := json.Unmarshal(byScout.Result.Value, &own); err != nil {
		t.Fatal(err)
	}
	forScout, forClerk := h.create(), h.create("agent", "clerk")
	for _, c := range []struct {
		by    ops.Identity
		timer string
		code  ops.Code
	}{
		{clerk, own.Timer, ops.NotFound},
		{clerk, forScout, ops.NotFound},
		{relay, own.Timer, ops.NotFound},
		{scout, forClerk, ops.NotFound},
		{ada, "tm-" + strings.Repeat("0", 26), ops.NotFound},
		{scout, own.Timer, ""},
		{scout, own.Timer, ""}, // again
		{scout, forScout, ""},
		{ada, forClerk, ""},
	} {
		_, err := h.order(ops.Call{Op: "cron.cancel", By: c.by, Params: json.RawMessage(`{"timer":"` + c.timer + `","reason":"enough"}`)})
		var fault *ops.Fault
		if errors.As(err, &fault); (err == nil) != (c.code == "") || fault != nil && fault.Code != c.code {
			t.Errorf("%s cancels %s: %v, want %q", c.by, c.timer, err, c.code)
		}
	}
	if s := h.show(forClerk); s.State != "ended" || s.Reason != "cancelled by ada: enough" || s.NextAt != "" || s.EndedAt == "" {
		t.Errorf("cancelled: %+v", s)
	}
}

// Timers wake agents for real: the wake is there, with an envelope's key and deadline, and
// ends unanswered when its time is over.
func TestFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		h := newHouse(t, db(t), nil)
		h.start(h.timers)
		defer h.close()
		id := h.create("schedule", "*/20 * * * *", "deadline", "10m", "ops", []string{"dm.send"}, "max_runs", 2)
		pass(time.Minute)
		s := h.show(id)
		if s.Runs != 1 || s.LastWake == "" || s.NextAt != "2026-11-30T12:20:00.000Z" || len(s.Latest) != 1 || s.Latest[0].DueAt != "2026-11-30T12:00:00.000Z" {
			t.Fatalf("after the first: %+v", s)
		}
		w, err := h.timers.ShowWake(t.Context(), ada, threads.WakeID(s.LastWake))
		if err != nil {
			t.Fatal(err)
		}
		if w.Agent != "scout" || w.State != "open" || w.Cause != threads.ByTimer || w.Source != "timer/"+id+"#1" || w.Root != w.Source || w.Hops != 0 ||
			w.Errand != "look at the disks" || w.Shown != "" || !slices.Equal(w.Ops, []ops.OpName{"dm.send"}) || w.Deadline != "2026-11-30T12:10:00.000Z" || *w.By != ada {
			t.Errorf("wake %+v", w)
		}
		pass(10 * time.Minute)
		if w, err = h.timers.ShowWake(t.Context(), scout, w.Wake); err != nil || w.State != "ended" || w.Verdict != threads.Unanswered {
			t.Errorf("at its deadline: %+v, %v", w, err)
		}
		pass(10 * time.Minute)
		if s := h.show(id); s.State != "ended" || s.Runs != 2 || !strings.Contains(s.Reason, "as often") {
			t.Errorf("after two runs: %+v", s)
		}
		pass(24 * time.Hour)
		if got := h.story(id, "15:04"); got != "12:00 woken, 12:20 woken" {
			t.Errorf("story %s", got)
		}
		late := h.timers.Lateness()
		if late.Count != 2 || late.Sum > 1 {
			t.Errorf("lateness %+v", late)
		}
		page, err := h.timers.ListWakes(t.Context(), ada, service.Query{Filter: map[string]string{"agent": "scout", "state": "live"}})
		if err != nil || len(page.Wakes) != 0 {
			t.Errorf("live wakes %+v, %v", page, err)
		}
	})
}

// What becomes of an occurrence while the last one's wake is open.
func TestOverlap(t *testing.T) {
	for overlap, want := range map[string]string{
		"skip":  "12:00 woken, 12:05 skipped, 12:10 skipped, 12:15 woken, 12:20 skipped, 12:25 skipped",
		"allow": "12:00 woken, 12:05 woken, 12:10 woken, 12:15 woken, 12:20 woken, 12:25 woken",
		// 12:00 ends at 12:12, then 12:05 runs until 12:24.
		"queue": "12:00 woken, 12:05 woken, 12:10 woken, 12:15 queued, 12:20 queued, 12:25 queued",
	} {
		t.Run(overlap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin(t, "2026-11-30T11:59:30Z")
				h := newHouse(t, db(t), nil)
				h.start(h.timers)
				defer h.close()
				id := h.create("schedule", "*/5 * * * *", "deadline", "12m", "overlap", overlap)
				pass(26*time.Minute + 30*time.Second)
				if got := h.story(id, "15:04"); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
				if overlap != "queue" {
					return
				}
				// The queue is bounded, and what is cancelled lets it go.
				pass(5 * time.Hour)
				if s := h.show(id); s.Queued != MaxQueue {
					t.Errorf("%d wait", s.Queued)
				}
				if _, err := h.order(ops.Call{Op: "cron.cancel", By: ada, Params: json.RawMessage(`{"timer":"` + id + `"}`)}); err != nil {
					t.Fatal(err)
				}
				if s := h.show(id); s.Queued != 0 || strings.Contains(h.story(id, "15:04"), queued) {
					t.Errorf("after the end: %+v", s)
				}
			})
		})
	}
}

// While agents are stopped one wake is held, and a start lets go of that one, which is
// posted then and has all its time.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		h := newHouse(t, db(t), nil)
		h.start(h.timers)
		defer h.close()
		if _, err := h.threads.Hold(t.Context(), ada, threads.Everywhere); err != nil {
			t.Fatal(err)
		}
		id := h.create("schedule", "*/5 * * * *", "deadline", "12m", "overlap", "allow")
		pass(26 * time.Minute)
		if got := h.story(id, "15:04"); got != "12:00 woken, 12:05 skipped, 12:10 skipped, 12:15 skipped, 12:20 skipped, 12:25 skipped" {
			t.Errorf("while stopped: %s", got)
		}
		wake := threads.WakeID(h.show(id).LastWake)
		if w, err := h.timers.ShowWake(t.Context(), ada, wake); err != nil || w.State != "held" || w.Deadline != "" {
			t.Errorf("held: %+v, %v", w, err)
		}
		var fault *ops.Fault
		if _, err := h.timers.RunNow(t.Context(), ada, id); !errors.As(err, &fault) || fault.Code != ops.Conflict {
			t.Errorf("run now while stopped: %v", err)
		}
		if _, err := h.threads.Release(t.Context(), ada, threads.Everywhere); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if w, err := h.timers.ShowWake(t.Context(), ada, wake); err != nil || w.State != "open" || w.Deadline != "2026-11-30T12:37:30.000Z" {
			t.Errorf("started: %+v, %v", w, err)
		}
		pass(12 * time.Minute)
		if w, err := h.timers.ShowWake(t.Context(), ada, wake); err != nil || w.Verdict != threads.Unanswered {
			t.Errorf("at its deadline: %+v, %v", w, err)
		}
	})
}

// A queue goes on to its end, and the timer ends with it.
func TestQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		h := newHouse(t, db(t), nil)
		h.start(h.timers)
		defer h.close()
		id := h.create("schedule", "*/5 * * * *", "deadline", "12m", "overlap", "queue", "max_runs", 3)
		pass(20 * time.Minute)
		if s := h.show(id); s.State != "active" || s.Runs != 2 || s.Queued != 1 || s.NextAt != "" {
			t.Errorf("with one left: %+v", s)
		}
		pass(20 * time.Minute)
		if s := h.show(id); s.State != "ended" || s.Runs != 3 || s.Queued != 0 {
			t.Errorf("at the end: %+v", s)
		}
		until := h.create("schedule", "*/5 * * * *", "deadline", "12m", "overlap", "queue", "until", "2026-11-30T12:50:00Z")
		pass(time.Hour)
		if got := h.story(until, "15:04"); got != "12:40 woken, 12:45 missed, 12:50 missed" || h.show(until).State != "ended" {
			t.Errorf("no run begins after its end: %s, %+v", got, h.show(until))
		}
	})
}

// What was due while no gateway ran.
func TestMissed(t *testing.T) {
	for _, c := range []struct {
		missed, schedule string
		down             time.Duration
		want             string
	}{
		{"skip", "*/10 * * * *", 35 * time.Minute, "12:10 missed×3"},
		{"once", "*/10 * * * *", 35 * time.Minute, "12:10 missed×2, 12:30 woken"},
		{"all", "*/10 * * * *", 35 * time.Minute, "12:10 woken, 12:20 woken, 12:30 woken"},
		{"skip", "*/10 * * * *", 30*time.Minute + 20*time.Second, "12:10 missed×2, 12:30 woken"}, // the last one is just late
		{"once", "*/10 * * * *", 30*time.Minute + 20*time.Second, "12:10 missed×2, 12:30 woken"},
		{"skip", "*/10 * * * *", 5 * time.Minute, ""},
		{"once", "*/10 * * * *", 15 * time.Minute, "12:10 woken"},
		{"once", "* * * * *", 365 * 24 * time.Hour, "12:01 missed×10031, 12:00 woken"},
	} {
		t.Run(c.missed+" "+c.schedule+" "+c.down.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin(t, "2026-11-30T12:00:00Z")
				path := db(t)
				h := newHouse(t, path, nil)
				id := h.create("schedule", c.schedule, "overlap", "allow", "missed", c.missed)
				h.close()
				time.Sleep(c.down)
				h = newHouse(t, path, nil)
				h.start(h.timers)
				defer h.close()
				synctest.Wait()
				if got := h.story(id, "15:04"); c.want != "" && got != c.want || c.down < 10*time.Minute && got != "" {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			})
		})
	}
}

// All of them, up to a bound.
func TestMissedAllIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T12:00:00Z")
		path, r := db(t), &remember{}
		h := newHouse(t, path, r)
		id := h.create("schedule", "* * * * *", "missed", "all")
		h.close()
		time.Sleep(100*time.Minute + 30*time.Second)
		h = newHouse(t, path, r)
		h.start(h.timers)
		defer h.close()
		synctest.Wait()
		s := h.show(id)
		if len(r.told) != MaxCatchUp || s.Runs != MaxCatchUp || s.NextAt != "2026-11-30T13:41:00.000Z" {
			t.Errorf("%d woken, %+v", len(r.told), s)
		}
		if got := h.story(id, "15:04"); !strings.HasPrefix(got, "12:01 missed×68, 13:09 woken, 13:10 woken") {
			t.Errorf("story %s", got)
		}
	})
}

// Over a year, in zones whose clocks are changed, nothing is lost and nothing doubled, also
// when the gateway is restarted.
func TestYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-01-01T00:00:30Z")
		path, r := db(t), &remember{}
		h := newHouse(t, path, r)
		h.timers.look = 24 * time.Hour
		h.start(h.timers)
		zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"}
		type want struct {
			id, expr, zone string
		}
		var all []want
		for _, zone := range zones {
			for _, expr := range []string{"30 2 * * *", "45 1 * * 0", "0 0 1 * *"} {
				all = append(all, want{h.create("schedule", expr, "zone", zone, "overlap", "allow", "agent", []string{"scout", "clerk"}[len(all)%2]), expr, zone})
			}
		}
		for range 12 {
			pass(time.Duration(365*24) * time.Hour / 12)
			h.timers.Close()
			h.timers = h.another(r)
			h.timers.look = 24 * time.Hour
			h.start(h.timers)
			synctest.Wait()
		}
		h.close()
		end := at(t, "2027-01-01T00:00:30Z")
		for _, w := range all {
			s := must(t, w.expr, w.zone, time.Time{})
			n := 0
			for due := s.next(at(t, "2026-01-01T00:00:30Z")); !due.After(end); due = s.next(due) {
				n++
				got := r.told[fmt.Sprintf("timer/%s#%d", w.id, n)]
				if len(got) != 1 || got[0].Sub(due) < 0 || got[0].Sub(due) > time.Second {
					t.Fatalf("%s in %s, due at %s: woke at %v", w.expr, w.zone, due, got)
				}
			}
			if more := r.told[fmt.Sprintf("timer/%s#%d", w.id, n+1)]; more != nil || n < 12 {
				t.Errorf("%s in %s: %d were due, and one more ran: %v", w.expr, w.zone, n, more)
			}
			local := map[string]int{} // what is due once a day is so once a day by the wall clock, too
			for i := range n {
				day := r.told[fmt.Sprintf("timer/%s#%d", w.id, i+1)][0].In(s.zone).Format("2006-01-02")
				local[day]++
			}
			if w.expr == "30 2 * * *" && (len(local) < 365 || slices.Max(slices.Collect(maps.Values(local))) != 1) {
				t.Errorf("%s in %s: on %d days", w.expr, w.zone, len(local))
			}
		}
	})
}

// Two services on one store, and many timers: each occurrence wakes once.
func TestTwoServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		r := &remember{}
		h := newHouse(t, db(t), r)
		others := []*Timers{h.another(r), h.another(r)}
		h.start(append(others, h.timers)...)
		var ids []string
		for i := range 40 {
			ids = append(ids, h.create("schedule", "* * * * *", "agent", []string{"scout", "clerk"}[i%2], "jitter", []any{nil, "30s"}[i%2], "missed", []string{"once", "all"}[i/2%2]))
		}
		for range 6 {
			pass(time.Minute)
		}
		pass(45 * time.Second) // the jitter of the last ones
		for _, o := range others {
			o.Close()
		}
		h.close()
		if len(r.told) < 6*len(ids) {
			t.Errorf("%d woken", len(r.told))
		}
		for source, when := range r.told {
			if len(when) != 1 {
				t.Errorf("%s woke %d times", source, len(when))
			}
		}
		for _, id := range ids {
			for n := 1; n <= 6; n++ {
				if r.told[fmt.Sprintf("timer/%s#%d", id, n)] == nil {
					t.Errorf("%s#%d is lost", id, n)
				}
			}
		}
	})
}

// A clock that is set, either way, repeats nothing; what a jump has passed over is missed.
func TestClockIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T12:00:30Z")
		r := &remember{}
		h := newHouse(t, db(t), r)
		h.start(h.timers)
		defer h.close()
		once := h.create("schedule", "* * * * *")
		skip := h.create("schedule", "* * * * *", "missed", "skip")
		pass(2 * time.Minute) // 12:01, 12:02
		h.skew.Store(int64(-10 * time.Minute))
		pass(9 * time.Minute) // it is 12:01:30 again until 12:02:30, for all that is written
		if got := h.story(once, "15:04"); got != "12:01 woken, 12:02 woken" {
			t.Errorf("set back: %s", got)
		}
		pass(2 * time.Minute) // 12:03:30
		if got := h.story(once, "15:04"); got != "12:01 woken, 12:02 woken, 12:03 woken" {
			t.Errorf("caught up: %s", got)
		}
		h.skew.Store(0)
		pass(time.Minute + time.Second) // 12:14:31
		if got := h.story(once, "15:04"); got != "12:01 woken, 12:02 woken, 12:03 woken, 12:04 missed×10, 12:14 woken" {
			t.Errorf("set on: %s", got)
		}
		if got := h.story(skip, "15:04"); got != "12:01 woken, 12:02 woken, 12:03 woken, 12:04 missed×9, 12:13 woken, 12:14 woken" { // within the grace
			t.Errorf("set on, skip: %s", got)
		}
		for source, when := range r.told {
			if len(when) != 1 {
				t.Errorf("%s woke %d times", source, len(when))
			}
		}
	})
}

// Jitter is the same whoever asks, stays within its bound, the next occurrence and the
// timer's end, and is different for different timers.
func TestJitter(t *testing.T) {
	from := at(t, "2026-11-30T12:00:00Z")
	spread := map[time.Duration]bool{}
	for i := range 200 {
		tm := timer{id: fmt.Sprint("tm-", i), jitter: 10 * time.Minute}
		hourly, minutely := must(t, "0 * * * *", "", from), must(t, "* * * * *", "", from)
		got := tm.jittered(hourly, from)
		if d := got.Sub(from); d < 0 || d > 10*time.Minute || got != tm.jittered(hourly, from) {
			t.Fatalf("%s: %s", tm.id, d)
		}
		spread[got.Sub(from)] = true
		if d := tm.jittered(minutely, from).Sub(from); d < 0 || d >= time.Minute {
			t.Fatalf("%s of each minute: %s", tm.id, d)
		}
		tm.until = from.Add(3 * time.Second)
		if d := tm.jittered(hourly, from).Sub(from); d < 0 || d > 3*time.Second {
			t.Fatalf("%s before its end: %s", tm.id, d)
		}
	}
	if len(spread) < 150 {
		t.Errorf("200 timers have %d different jitters", len(spread))
	}
}

// What cannot wake anybody is on record, and the timer goes on; one whose agent is gone
// ends.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		r := &remember{fault: ops.Faultf(ops.LoopLimit, "too many")}
		h := newHouse(t, db(t), r)
		h.start(h.timers)
		defer h.close()
		id := h.create("schedule", "* * * * *")
		pass(time.Minute)
		if s := h.show(id); s.State != "active" || s.Latest[0].Outcome != refused || s.Latest[0].Fault.Code != ops.LoopLimit || s.Runs != 0 {
			t.Errorf("refused: %+v", s)
		}
		r.mu.Lock()
		r.fault = errors.New("a page of the envelope is missing")
		r.mu.Unlock()
		pass(time.Minute)
		if s := h.show(id); s.State != "active" || s.Latest[0].Outcome != refused || s.Latest[0].Fault.Code != ops.Internal || strings.Contains(s.Latest[0].Fault.Message, "page") {
			t.Errorf("broken: %+v", s)
		}
		r.mu.Lock()
		r.fault = nil
		r.mu.Unlock()
		pass(time.Minute)
		if s := h.show(id); s.Runs != 1 {
			t.Errorf("well again: %+v", s)
		}
		if _, err := access.NewDirectory(h.store).Revoke(t.Context(), scout.ID); err != nil {
			t.Fatal(err)
		}
		r.mu.Lock()
		r.fault = ops.Faultf(ops.NotFound, "no agent")
		r.mu.Unlock()
		pass(time.Minute)
		if s := h.show(id); s.State != "ended" || s.Reason != "its agent is gone" {
			t.Errorf("without its agent: %+v", s)
		}
		if got := h.timers.Counts(); !slices.Contains(got, threads.Count{What: "occurrences", Label: refused, N: 3}) || !slices.Contains(got, threads.Count{What: "occurrences", Label: woken, N: 1}) {
			t.Errorf("counts %v", got)
		}
	})
}

func TestPauseResumeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		h := newHouse(t, db(t), nil)
		h.start(h.timers)
		defer h.close()
		ctx := t.Context()
		id := h.create("schedule", "0 * * * *", "deadline", "5m")
		if s, err := h.timers.Pause(ctx, ada, id); err != nil || s.State != "paused" || s.NextAt != "" {
			t.Errorf("pause: %+v, %v", s, err)
		}
		if _, err := h.timers.Pause(ctx, ada, id); err != nil {
			t.Errorf("twice: %v", err)
		}
		pass(2 * time.Hour)
		if s := h.show(id); s.Runs != 0 {
			t.Errorf("while paused: %+v", s)
		}
		s, err := h.timers.RunNow(ctx, ada, id)
		if err != nil || s.Runs != 1 || s.State != "paused" || s.Latest[0].AskedBy != "ada" || s.Latest[0].Outcome != woken {
			t.Errorf("run: %+v, %v", s, err)
		}
		var fault *ops.Fault
		if _, err := h.timers.RunNow(ctx, ada, id); !errors.As(err, &fault) || fault.Code != ops.Conflict || fault.Details["wake"] != s.LastWake {
			t.Errorf("while it is open: %v", err)
		}
		if s, err := h.timers.Resume(ctx, ada, id); err != nil || s.State != "active" || s.NextAt != "2026-11-30T14:00:00.000Z" {
			t.Errorf("resume: %+v, %v", s, err)
		}
		pass(time.Hour)
		if got := h.story(id, "15:04"); got != "13:59 woken, 14:00 skipped" {
			t.Errorf("story %s", got)
		}
		for name, do := range map[string]func(context.Context, ops.Identity, string) (TimerShowing, error){"pause": h.timers.Pause, "resume": h.timers.Resume, "run": h.timers.RunNow} {
			for by, code := range map[ops.Identity]ops.Code{scout: ops.NotPermitted, relay: ops.NotPermitted, clerk: ops.NotFound, {}: ops.NotFound} {
				if _, err := do(ctx, by, id); !errors.As(err, &fault) || fault.Code != code {
					t.Errorf("%s by %s: %v, want %s", name, by, err, code)
				}
			}
			if _, err := do(ctx, ada, "tm-none"); !errors.As(err, &fault) || fault.Code != ops.NotFound {
				t.Errorf("%s of nothing: %v", name, err)
			}
		}
		if _, err := h.order(ops.Call{Op: "cron.cancel", By: ada, Params: json.RawMessage(`{"timer":"` + id + `"}`)}); err != nil {
			t.Fatal(err)
		}
		for _, do := range []func(context.Context, ops.Identity, string) (TimerShowing, error){h.timers.Pause, h.timers.Resume, h.timers.RunNow} {
			if _, err := do(ctx, ada, id); !errors.As(err, &fault) || fault.Code != ops.Conflict {
				t.Errorf("after its end: %v", err)
			}
		}
	})
}

// One that ends with a run asked for ends then, paused or not.
func TestRunNowIsARun(t *testing.T) {
	h := newHouse(t, db(t), &remember{})
	defer h.close()
	id := h.create("max_runs", 1)
	if _, err := h.timers.Pause(t.Context(), ada, id); err != nil {
		t.Fatal(err)
	}
	if s, err := h.timers.RunNow(t.Context(), ada, id); err != nil || s.State != "ended" || s.Runs != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:59:30Z")
		h := newHouse(t, db(t), nil)
		h.start(h.timers)
		defer h.close()
		forScout, forClerk := h.create("schedule", "* * * * *"), h.create("schedule", "* * * * *", "agent", "clerk")
		pass(time.Minute)
		for _, c := range []struct {
			by   ops.Identity
			want []string
		}{
			{ada, []string{forClerk, forScout}}, {scout, []string{forScout}}, {relay, []string{forScout}}, {clerk, []string{forClerk}}, {ops.Identity{}, nil},
		} {
			page, err := h.timers.List(t.Context(), c.by, service.Query{})
			if err != nil {
				t.Fatal(err)
			}
			var got, woke []string
			for _, l := range page.Timers {
				got = append(got, l.Timer)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s sees %v, want %v", c.by, got, c.want)
			}
			wakes, err := h.timers.ListWakes(t.Context(), c.by, service.Query{})
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range wakes.Wakes {
				woke = append(woke, strings.TrimSuffix(strings.TrimPrefix(w.Source, "timer/"), "#1"))
			}
			slices.Sort(woke)
			want := slices.Sorted(slices.Values(c.want))
			if !slices.Equal(woke, want) {
				t.Errorf("%s sees wakes of %v, want %v", c.by, woke, want)
			}
			for _, id := range []string{forScout, forClerk} {
				_, err := h.timers.Show(t.Context(), c.by, id)
				if (err == nil) != slices.Contains(c.want, id) {
					t.Errorf("%s shows %s: %v", c.by, id, err)
				}
				wake := threads.WakeID(h.show(id).LastWake)
				if _, err := h.timers.ShowWake(t.Context(), c.by, wake); (err == nil) != slices.Contains(c.want, id) {
					t.Errorf("%s shows the wake of %s: %v", c.by, id, err)
				}
			}
		}
		first, err := h.timers.List(t.Context(), ada, service.Query{Limit: 1})
		if err != nil || len(first.Timers) != 1 || first.Next != forClerk {
			t.Errorf("page %+v, %v", first, err)
		}
		rest, err := h.timers.List(t.Context(), ada, service.Query{Limit: 1, After: first.Next, Filter: map[string]string{"state": "active", "agent": "scout"}})
		if err != nil || len(rest.Timers) != 1 || rest.Next != "" || rest.Timers[0].Timer != forScout {
			t.Errorf("page %+v, %v", rest, err)
		}
		thread := ""
		if page, err := h.timers.ListWakes(t.Context(), ada, service.Query{Limit: 1}); err != nil || len(page.Wakes) != 1 || page.Next == "" {
			t.Errorf("page %+v, %v", page, err)
		} else {
			thread = page.Wakes[0].Thread
		}
		if page, err := h.timers.ListWakes(t.Context(), ada, service.Query{Filter: map[string]string{"thread": thread, "state": "live"}}); err != nil || len(page.Wakes) != 1 {
			t.Errorf("wakes of %s: %+v, %v", thread, page, err)
		}
		if _, err := h.timers.List(t.Context(), ada, service.Query{Limit: 1000}); err == nil {
			t.Error("a page of 1000")
		}
	})
}

// A thousand timers that are due at once are few transactions, and their lateness is
// counted.
func TestThousandAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin(t, "2026-11-30T11:50:30Z")
		r := &remember{}
		h := newHouse(t, db(t), r)
		id := h.create("schedule", "0 12 * * *")
		const n = 1000
		if err := h.store.Update(t.Context(), func(tx journal.Tx) error { return copies(tx, id, n-1) }); err != nil {
			t.Fatal(err)
		}
		h.start(h.timers)
		defer h.close()
		pass(10 * time.Minute)
		if late := h.timers.Lateness(); len(r.told) != n || late.Count != n || late.Counts[len(late.Counts)-1] != n {
			t.Errorf("%d woken, lateness %+v", len(r.told), late)
		}
	})
}

// Timers that an agent orders in its thread: what it may pass on is what its own wake had,
// and whose words the prompt is depends on what else stood there. The wakes that they
// raise end by what the agent answers, and let go on what has waited for that.
func TestOrderedInAThread(t *testing.T) {
	h := newHouse(t, db(t), nil)
	if err := errors.Join(h.door.Start(t.Context()), h.threads.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	h.start(h.timers)
	defer h.close()
	defer h.threads.Close()
	defer func() {
		if err := h.door.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	n := 0
	reply := func(thread, text string) threads.Ack {
		t.Helper()
		n++
		ack, err := h.threads.Take(t.Context(), scout, threads.Reply{Agent: scout.ID, Thread: thread, Message: fmt.Sprint("m-", n), Text: text})
		if err != nil {
			t.Fatal(err)
		}
		return ack
	}
	ask := func(stranger, pairs string) ops.Outcome {
		t.Helper()
		var w threads.Wake
		if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) {
			w, err = h.threads.Raise(tx, threads.Errand{Agent: scout.ID, Cause: threads.ByMessage, Source: "test", By: ada, Name: "ada", Text: "Make a timer.", Shown: stranger,
				Ops: []ops.OpName{"cron.create", "dm.send"}, Key: "k7q2-9xyz-abcd"})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		ack := reply(w.Thread, `[TOOL#k7q2-9xyz-abcd cron {"name":"watch","schedule":"@yearly","prompt":"Look at the disks.","overlap":"queue"`+pairs+`}]`)
		if len(ack.Calls) != 1 {
			t.Fatalf("calls %+v", ack)
		}
		o, err := h.door.Await(t.Context(), ack.Calls[0].Call)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	made := func(o ops.Outcome) TimerShowing {
		t.Helper()
		if o.State != ops.Succeeded {
			t.Fatalf("outcome %+v, %v", o, o.Fault)
		}
		var got struct{ Timer string }
		if err := json.Unmarshal(o.Result.Value, &got); err != nil {
			t.Fatal(err)
		}
		return h.show(got.Timer)
	}
	own := made(ask("", `,"ops":["dm"]`))
	if !own.Trusted || own.Agent != scout.ID || own.By != scout || !slices.Equal(own.Ops, []ops.OpName{"dm.send"}) {
		t.Errorf("in a clean thread: %+v", own)
	}
	if s := made(ask("Somebody says: the disks are full.", "")); s.Trusted {
		t.Errorf("beside words of a stranger: %+v", s)
	}
	for _, pairs := range []string{`,"ops":["dm.send","cron.cancel"]`, `,"agent":"clerk"`} {
		if o := ask("", pairs); o.State != ops.Failed || o.Fault.Code != ops.NotPermitted {
			t.Errorf("%s: %+v, %v", pairs, o, o.Fault)
		}
	}

	head, err := h.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := h.timers.RunNow(t.Context(), ada, own.Timer); err != nil {
			t.Fatal(err)
		}
	}
	first := h.show(own.Timer)
	if first.Runs != 1 || first.Queued != 1 {
		t.Fatalf("run twice: %+v", first)
	}
	var key, thread string
	if err := h.store.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT key, thread FROM wake WHERE id = $1`, func(scan func(...any) error) error { return scan(&key, &thread) }, first.LastWake)
	}); err != nil {
		t.Fatal(err)
	}
	reply(thread, `All is well. [RESULT#`+key+` {"verdict":"done","summary":"half full"}]`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	enough := errors.New("enough")
	fired := 0
	if err := h.store.Tail(ctx, head, func(e journal.Event) error {
		if e.Stream == "timer/"+own.Timer && e.Kind == "timer.fired" {
			if fired++; fired == 2 {
				return enough
			}
		}
		return nil
	}); !errors.Is(err, enough) {
		t.Fatalf("what has waited was let go on %d times: %v", fired-1, err)
	}
	w, err := h.timers.ShowWake(t.Context(), scout, threads.WakeID(first.LastWake))
	if err != nil || w.State != "ended" || w.Verdict != threads.Done || w.Summary != "half full" {
		t.Errorf("the first wake: %+v, %v", w, err)
	}
	if s := h.show(own.Timer); s.Runs != 2 || s.Queued != 0 || s.LastWake == first.LastWake {
		t.Errorf("afterwards: %+v", s)
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("timers over nothing")
	}
}
