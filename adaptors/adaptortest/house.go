package adaptortest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"inband/harvester"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/threads"
)

// The people and rooms of the suite.
var (
	ada   = ops.Identity{ID: "ada", Role: ops.Operator}
	scout = ops.Identity{ID: "scout", Role: ops.Agent}
	clerk = ops.Identity{ID: "clerk", Role: ops.Agent}

	setting = Setting{
		Rooms: []string{"R1", "R2", "R3", probes},
		People: []Person{
			{User: "U-ada", Name: "Ada", Is: ada, Home: "R1"},
			{User: "U-scout", Name: "Scout", Is: scout, Home: "R1"},
			{User: "U-clerk", Name: "Clerk", Is: clerk, Home: "R2"},
		},
	}
)

// probes is the room in which the suite only finds out how far the adaptor has come.
const probes = "R0"

// patience bounds the wait for anything.
const patience = 60 * time.Second

// house is a gateway without its API: real threads, a real door, a real store, and the
// adaptor under test on a real platform.
type house struct {
	t    *testing.T
	path string

	platform Platform
	store    *sqlite.Store
	door     *service.Door
	threads  *threads.Threads
	chat     threads.Chat
	stopRun  context.CancelFunc
	ran      chan error

	hold chan struct{} // t.hold ends when it is closed

	mu    sync.Mutex
	calls []string // of ops of the suite, as "op params", in the order in which they ran
}

func open(t *testing.T, h Harness) *house {
	t.Helper()
	g := &house{t: t, path: filepath.Join(t.TempDir(), "journal.db"), platform: h.Start(t, setting), hold: make(chan struct{})}
	g.start(true)
	g.begun()
	t.Cleanup(func() {
		if g.store != nil {
			g.stop()
		}
		g.check()
	})
	return g
}

// start starts a gateway on the journal; the first one makes the identities.
func (g *house) start(first bool) {
	g.t.Helper()
	must := func(err error) {
		g.t.Helper()
		if err != nil {
			g.t.Fatal(err)
		}
	}
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	var err error
	g.store, err = g.journal()
	must(err)
	adaptor := g.platform.Adaptor(g.t)
	g.chat = adaptor.Chat()
	if first {
		directory := access.NewDirectory(g.store)
		for _, p := range setting.People {
			_, err := directory.Add(ctx, p.Is)
			must(err)
		}
		_, err := directory.Add(ctx, ops.Identity{ID: ops.IdentityID(g.chat.Name()), Role: ops.Bridge}, scout.ID, clerk.ID)
		must(err)
	}
	registry, policy := ops.NewLive(nil), access.NewLivePolicy(access.DefaultPolicy())
	g.door, err = service.New(service.Config{Store: g.store, Registry: registry, Policy: policy, Log: log})
	must(err)
	g.threads, err = threads.New(threads.Config{Store: g.store, Door: g.door, Registry: registry, Log: log})
	must(err)
	set, err := ops.New(append(g.ops(), g.threads.DMSend())...)
	must(err)
	registry.Swap(set)
	must(g.threads.Attach(g.chat))
	must(g.door.Start(ctx))
	must(g.threads.Start(ctx))
	run, cancel := context.WithCancel(ctx)
	g.stopRun, g.ran = cancel, make(chan error, 1)
	go func() { g.ran <- adaptor.Run(run, g.threads) }()
}

func (g *house) journal() (*sqlite.Store, error) {
	return sqlite.Open(context.Background(), sqlite.Config{Path: g.path, Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema()}})
}

// change changes the journal while no gateway runs.
func (g *house) change(sql string) {
	g.t.Helper()
	store, err := g.journal()
	if err != nil {
		g.t.Fatal(err)
	}
	err = store.Update(context.Background(), func(tx journal.Tx) error { _, err := tx.Exec(sql); return err })
	if err := errors.Join(err, store.Close()); err != nil {
		g.t.Fatal(err)
	}
}

// begun waits until the adaptor has begun. Without a cursor, all that is said before is
// history to it, so it is tried until something is not.
func (g *house) begun() {
	g.t.Helper()
	answered := len(g.own(probes))
	g.until("the adaptor to begin", func() bool {
		g.say(probes, "", "U-scout", order("t.read", "probe"))
		return len(g.own(probes)) > answered
	})
	g.settled()
}

// stop ends the gateway as a SIGTERM does.
func (g *house) stop() {
	g.t.Helper()
	g.stopRun()
	if err := <-g.ran; err != nil && !errors.Is(err, context.Canceled) {
		g.t.Errorf("the adaptor ended: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := g.door.Close(ctx); err != nil {
		g.t.Error(err)
	}
	g.threads.Close()
	if err := g.store.Close(); err != nil {
		g.t.Error(err)
	}
	g.store = nil
}

// ops are what the suite orders. Each of them that runs is remembered.
func (g *house) ops() []ops.Bound {
	op := func(name ops.OpName, writes bool, run func(ctx context.Context, text string, n int) (string, error)) ops.Bound {
		return ops.Bound{
			Op: ops.Op{Name: name, Provider: "test", Summary: "An op of the suite.", SideEffecting: writes, Timeout: time.Minute, Params: ops.Params{
				{Name: "text", Type: ops.Text, Max: 1 << 16, Optional: true}, {Name: "n", Type: ops.Int, Max: 1 << 20, Optional: true}}},
			Executor: ops.ExecutorFunc(func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
				var p struct {
					Text string
					N    int
				}
				if err := json.Unmarshal(c.Params, &p); err != nil {
					return ops.Outcome{}, err
				}
				if !strings.HasPrefix(p.Text, "probe") {
					g.mu.Lock()
					g.calls = append(g.calls, fmt.Sprintf("%s %s %d", name, p.Text, p.N))
					g.mu.Unlock()
				}
				shown, err := run(ctx, p.Text, p.N)
				if err != nil {
					return ops.Failure(ops.Faultf(ops.OpFailed, "%s", err)), nil
				}
				return ops.Success(ops.NewResult(map[string]string{"stdout": shown}, "/stdout")), nil
			}),
		}
	}
	say := func(_ context.Context, text string, n int) (string, error) {
		return fmt.Sprintf("%s %d\n", text, n), nil
	}
	return []ops.Bound{
		op("t.read", false, say), op("t.write", true, say),
		op("t.fail", false, func(_ context.Context, text string, _ int) (string, error) { return "", errors.New(text) }),
		op("t.repeat", false, func(_ context.Context, text string, n int) (string, error) { return strings.Repeat(text, n), nil }),
		op("t.hold", false, func(ctx context.Context, text string, n int) (string, error) {
			select {
			case <-g.hold:
				return say(ctx, text, n)
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}),
	}
}

// ranOps is what has run, in order, but for probes.
func (g *house) ranOps() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
}

// times is how often an op has run with text.
func (g *house) times(op, text string) (n int) {
	for _, c := range g.ranOps() {
		if strings.HasPrefix(c, op+" "+text+" ") {
			n++
		}
	}
	return n
}

// until waits until done, and fails after patience saying what it has waited for.
func (g *house) until(what string, done func() bool) {
	g.t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		select {
		case err := <-g.ran:
			g.ran <- err
			g.t.Fatalf("the adaptor has ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("waited %s for %s; what stands:\n%s\nthe outbox: %+v", patience, what, g.shown(), g.outbox())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// quiet waits until everything that was said has been heard and all that follows from it
// has been posted or set aside: a platform tells things in order, so that an answer to what
// is said last comes last.
func (g *house) quiet() {
	g.t.Helper()
	text := fmt.Sprintf("probe%d", time.Now().UnixNano())
	g.say(probes, "", "U-scout", order("t.read", text))
	g.until("everything to be heard", func() bool { return g.stands(probes, text+" 0") > 0 })
	g.settled()
}

// settled waits until no call is open and nothing waits in the outbox.
func (g *house) settled() {
	g.t.Helper()
	g.until("calls and posts", func() bool {
		open := -1
		if err := g.store.View(context.Background(), func(tx journal.Tx) error {
			return tx.Query(`SELECT (SELECT count(*) FROM call WHERE outcome IS NULL AND state <> 'parked') + (SELECT count(*) FROM outbox WHERE state IN ('queued', 'sending'))`,
				func(scan func(...any) error) error { return scan(&open) })
		}); err != nil {
			g.t.Fatal(err)
		}
		return open == 0
	})
}

// outbox is what is not delivered.
func (g *house) outbox() []threads.OutboxEntry {
	if g.store == nil {
		return nil
	}
	for _, r := range g.threads.Reads() {
		if r.Name == "outbox" {
			v, err := r.Do(context.Background(), ada, service.Query{})
			if err != nil {
				g.t.Fatal(err)
			}
			return v.(threads.OutboxPage).Outbox
		}
	}
	return nil
}

// say has user write text in a room, below a message or as a new thread.
func (g *house) say(room, under, user, text string) (id string) {
	g.t.Helper()
	return g.platform.Say(g.t, Message{Room: room, Under: under, User: user, Name: user, Text: text})
}

// stands is how many of our own posts in a room hold text.
func (g *house) stands(room, text string) (n int) {
	for _, s := range g.own(room) {
		if strings.Contains(s.Text, text) || strings.Contains(s.File, text) {
			n++
		}
	}
	return n
}

// own is what we have posted in a room.
func (g *house) own(room string) (list []Standing) {
	for _, s := range g.platform.Room(g.t, room) {
		if s.Own {
			list = append(list, s)
		}
	}
	return list
}

// under is what we have posted in one thread.
func (g *house) under(room, root string) (list []Standing) {
	for _, s := range g.own(room) {
		if s.Root == root {
			list = append(list, s)
		}
	}
	return list
}

func (g *house) shown() string {
	var b strings.Builder
	for _, room := range setting.Rooms {
		for _, s := range g.platform.Room(g.t, room) {
			fmt.Fprintf(&b, "%s %s below %s, own %v: %.200q\n", room, s.ID, s.Root, s.Own, s.Text)
		}
	}
	return b.String()
}

var (
	markRE  = regexp.MustCompile(`\br-[0-9a-z]{26}\b`)
	fenceRE = regexp.MustCompile("^(```+|~~~+)")
)

// unclosed reports whether text ends inside a fence.
func unclosed(text string) bool {
	wall := ""
	for line := range strings.Lines(text) {
		run := fenceRE.FindString(line)
		switch {
		case wall == "":
			wall = run
		case strings.HasPrefix(run, wall) && strings.TrimSpace(line) == run:
			wall = ""
		}
	}
	return wall != ""
}

// check holds everything that we have ever posted to what is true of each post, whatever
// path it came by (tb-020, tb-026, tb-030, tb-031, tb-043): within the limit, whole UTF-8,
// balanced fences, one mark that nothing else has, no order in it, nobody called, nothing
// fetched.
func (g *house) check() {
	if g.t.Failed() {
		return
	}
	limits, marks := g.chat.Limits(), map[string]string{}
	for _, room := range setting.Rooms {
		for _, s := range g.own(room) {
			if n := size(limits.Unit, s.Text); n > limits.Post {
				g.t.Errorf("post %s has %d %s, more than %d", s.ID, n, limits.Unit, limits.Post)
			}
			if !utf8.ValidString(s.Text) {
				g.t.Errorf("post %s is no UTF-8: %q", s.ID, s.Text)
			}
			if unclosed(s.Text) {
				g.t.Errorf("post %s leaves a fence open: %q", s.ID, s.Text)
			}
			if found, _ := harvester.All([]byte(s.Text), harvester.Config{ExecHosts: []string{"*"}}); len(found) != 0 {
				g.t.Errorf("post %s holds the order %+v", s.ID, found)
			}
			if s.Fetches != 0 {
				g.t.Errorf("the platform has fetched something for post %s: %q", s.ID, s.Text)
			}
			mark := ""
			if all := markRE.FindAllString(s.Text, -1); len(all) > 0 {
				mark = all[len(all)-1]
			}
			if mark == "" || marks[mark] != "" {
				g.t.Errorf("post %s has the mark %q, which post %q has too: %q", s.ID, mark, marks[mark], s.Text)
			}
			marks[mark] = s.ID
		}
	}
	for _, r := range g.platform.Seen(g.t) {
		if r.Units > limits.Post {
			g.t.Errorf("a post of %d %s was tried, more than %d", r.Units, limits.Unit, limits.Post)
		}
	}
}

func size(unit threads.Unit, s string) int {
	switch unit {
	case threads.Bytes:
		return len(s)
	case threads.Runes:
		return utf8.RuneCountInString(s)
	}
	return len(utf16.Encode([]rune(s)))
}
