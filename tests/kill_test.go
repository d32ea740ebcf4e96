package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/threads"
	"inband/service/timers"
)

// marks are the moments at which a gateway is killed, beside random ones.
var marks = []string{
	"journal.before-commit", "journal.after-commit",
	"door.admitted", "threads.reply-taken",
	"door.started", "door.executed", "door.settled",
	"threads.delivering", "threads.delivered",
}

// Where a kill can catch a call. A kill under load catches several calls, in several
// places.
const (
	notBegun  = "received, not begun"
	begun     = "running, no effect yet"
	acted     = "running, effect made, outcome not written"
	notPosted = "settled, result not posted"
	wholly    = "settled, result posted"
)

// TestKill kills a real gateway under load, again and again on one state folder, and
// looks at what each kill left and at what the next start makes of it:
//
//   - no acknowledged reply is lost, and handing it in again runs nothing;
//   - no call with side effects runs twice, and none is reported as done or failed
//     without being so;
//   - each result is posted once, in the thread that its order came from;
//   - the journal's positions have no gap.
//
// INBAND_KILLS sets the number of kills; the default is the short form.
func TestKill(t *testing.T) {
	kills := 36
	if s := os.Getenv("INBAND_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("INBAND_KILLS=%q: want a number of at least 1", s)
		}
		kills = n
	} else if testing.Short() {
		kills = 9
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	k := newKillers(t, rand.New(rand.NewPCG(seed, 1)))
	caught, died := map[string]int{}, map[string]int{}
	for i := range kills {
		// Every second kill comes at a mark, each mark in turn.
		mark := ""
		if i%2 == 0 {
			mark = marks[i/2%len(marks)]
		}
		for _, place := range k.round(mark) {
			caught[place]++
		}
		if mark == "" {
			mark = "a random moment"
		}
		died[mark]++
	}
	k.verifyAll()

	fmt.Printf("kills: %d on one state folder; %d replies acknowledged, %d calls with outside effects ordered\n", kills, len(k.replies), len(k.writes))
	for _, m := range append([]string{"a random moment"}, marks...) {
		fmt.Printf("kills at %s: %d\n", m, died[m])
	}
	for _, place := range []string{notBegun, begun, acted, notPosted, wholly} {
		fmt.Printf("kills that caught a call %s: %d\n", place, caught[place])
		if caught[place] == 0 && kills >= 2*len(marks) {
			t.Errorf("no kill caught a call %s", place)
		}
	}
}

// killers drives one state folder through its deaths.
type killers struct {
	t       *testing.T
	random  *rand.Rand
	box     string
	state   string
	effects string // folder in which each run of the side-effecting op leaves one entry

	mu      sync.Mutex
	replies []handedIn
	writes  map[string]ops.CallID // by key; "" where no acknowledgement came
	next    int
	// The wake under which the agent writes in this life.
	thread, key string
}

// handedIn is a reply that was acknowledged.
type handedIn struct {
	request map[string]string
	ack     threads.Ack
}

func newKillers(t *testing.T, random *rand.Rand) *killers {
	t.Helper()
	dir := t.TempDir()
	k := &killers{t: t, random: random, box: build(t, "failpoint"), state: filepath.Join(dir, "state"), effects: openFolder(t), writes: map[string]ops.CallID{}}
	k.command("init")
	// mktemp makes a new entry each time it runs, so two runs of one call are two
	// entries: an effect that can be counted.
	file := fmt.Sprintf(`provider: test
title: Effects that can be counted
ops:
  test.effect:
    summary: Leave one more entry in the folder of effects.
    side_effecting: true
    params:
      name: {type: pattern, pattern: '%s/k[0-9]+\.XXXXXX', max: 400, doc: Where}
    argv: [/usr/bin/mktemp, --, {param: name}]
    fs: {write: [%s]}
    timeout: 10s
    examples:
      accept: [{name: %s/k1.XXXXXX}]
      reject: [{name: /etc/passwd}]
`, strings.ReplaceAll(k.effects, ".", `\.`), k.effects, k.effects)
	if err := os.WriteFile(filepath.Join(k.state, "ops.d", "test.yaml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	g := serveAlive(k.t, k.box, k.state)
	g.agent(k.t, "scout")
	k.thread, k.key = g.wake(k.t, "scout", "Look around, and tell the notes.")
	g.kill()
	return k
}

func (k *killers) command(args ...string) {
	k.t.Helper()
	if out, err := exec.Command(k.box, append([]string{"--state", k.state}, args...)...).CombinedOutput(); err != nil {
		k.t.Fatalf("box %q: %v\n%s", args, err, out)
	}
}

// round is one life: load, death, a look at what is left, and the next start.
func (k *killers) round(mark string) (caught []string) {
	k.t.Helper()
	armed := mark
	if mark != "" {
		armed = fmt.Sprintf("%s:%d", mark, 1+k.random.IntN(25))
	}
	firstReply := len(k.replies)
	g := serve(k.t, k.box, k.state, "INBAND_FAILPOINT="+armed)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() { k.client(g, stop) })
	}
	switch {
	case mark == "":
		timer := time.NewTimer(time.Duration(20+k.random.IntN(200)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-g.dead:
			k.t.Fatalf("the gateway died by itself:\n%s", g.log)
		}
		g.kill()
	default:
		select {
		case <-g.dead:
		case <-time.After(20 * time.Second):
			g.kill()
			k.t.Fatalf("the mark %s was not reached:\n%s", armed, g.log)
		}
	}
	close(stop)
	clients.Wait()

	caught = k.autopsy()
	g = serve(k.t, k.box, k.state)
	if g.isDead() {
		k.t.Fatalf("the gateway does not start after a kill at %q:\n%s", armed, g.log)
	}
	k.settle(g)
	k.verify(g, k.replies[firstReply:])
	k.thread, k.key = g.wake(k.t, "scout", "Look around, and tell the notes.") // for the next life
	g.kill()
	return caught
}

// client is the load: replies with reads, a message and an order that is refused,
// and calls with an outside effect.
func (k *killers) client(g *gateway, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-g.dead:
			return
		default:
		}
		k.mu.Lock()
		k.next++
		n := k.next
		k.mu.Unlock()
		if n%3 == 0 {
			k.effect(g, fmt.Sprintf("k%d", n))
			continue
		}
		request := map[string]string{
			"agent": "scout", "thread": k.thread, "message": fmt.Sprintf("m%d", n),
			"text": fmt.Sprintf("Looking.\n[TOOL box.exec {\"action\":\"version\"}] [TOOL box.exec {\"action\":\"uptime\"}]\n[DM#%s {\"to\":\"#notes\",\"text\":\"n%d.\"}]\n[TOOL#%[1]s test.effect {\"name\":\"no\"}]", k.key, n),
		}
		var ack threads.Ack
		if err := g.do(http.MethodPost, "/v1/replies", request, &ack); err != nil {
			if errors.Is(err, errStatus) && !g.isDead() {
				k.t.Errorf("reply %d: %v", n, err)
				return
			}
			continue
		}
		k.mu.Lock()
		k.replies = append(k.replies, handedIn{request, ack})
		k.mu.Unlock()
	}
}

// effect orders one entry in the folder of effects. Whether an answer comes or not,
// the key is remembered.
func (k *killers) effect(g *gateway, key string) {
	var answer struct{ Call ops.CallID }
	err := g.do(http.MethodPost, "/exec", map[string]any{
		"op": "test.effect", "id": key, "params": map[string]string{"name": filepath.Join(k.effects, key+".XXXXXX")},
	}, &answer)
	if err != nil {
		answer.Call = ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes[key] = answer.Call
}

// made returns how often the effect of key was made.
func (k *killers) made(key string) int {
	k.t.Helper()
	found, err := filepath.Glob(filepath.Join(k.effects, key+".*"))
	if err != nil {
		k.t.Fatal(err)
	}
	return len(found)
}

// autopsy opens the dead gateway's journal and says where calls were caught.
func (k *killers) autopsy() []string {
	k.t.Helper()
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(k.state, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()}})
	if err != nil {
		k.t.Fatalf("the journal of a killed gateway: %v", err)
	}
	defer store.Close()
	places := map[string]bool{}
	err = store.View(context.Background(), func(tx journal.Tx) error {
		if err := tx.Query(`SELECT state, op, coalesce(idem_key, '') FROM call WHERE outcome IS NULL`, func(scan func(...any) error) error {
			var state, op, key string
			if err := scan(&state, &op, &key); err != nil {
				return err
			}
			switch {
			case state == string(ops.Received):
				places[notBegun] = true
			case op == "test.effect" && k.made(key[strings.LastIndex(key, "/")+1:]) > 0:
				places[acted] = true
			default:
				places[begun] = true
			}
			return nil
		}); err != nil {
			return err
		}
		return tx.Query(`SELECT state, count(*) FROM outbox GROUP BY state`, func(scan func(...any) error) error {
			var state string
			var n int
			if err := scan(&state, &n); err != nil {
				return err
			}
			places[map[string]string{"queued": notPosted, "delivered": wholly}[state]] = true
			return nil
		})
	})
	if err != nil {
		k.t.Fatal(err)
	}
	var list []string
	for p := range places {
		list = append(list, p)
	}
	slices.Sort(list)
	return list
}

// settle waits until the restarted gateway has dealt with what was open.
func (k *killers) settle(g *gateway) {
	k.t.Helper()
	until(k.t, "open calls are settled and results posted", func() bool {
		var status struct {
			Open map[string]int `json:"open_calls"`
		}
		var outbox struct {
			Outbox []any `json:"outbox"`
		}
		if err := errors.Join(g.get("/v1/status", &status), g.get("/v1/outbox", &outbox)); err != nil {
			k.t.Fatalf("%v\n%s", err, g.log)
		}
		return len(status.Open) == 0 && len(outbox.Outbox) == 0
	})
}

// verify holds what the gateway says of replies against what was acknowledged.
func (k *killers) verify(g *gateway, replies []handedIn) {
	k.t.Helper()
	posts, err := g.posts(k.thread)
	if err != nil {
		k.t.Fatalf("the thread of the replies: %v", err)
	}
	results := map[ops.CallID]int{}
	for _, p := range posts {
		if p.Kind == "result" {
			results[p.Call]++
		}
	}
	for _, r := range replies {
		var again threads.Ack
		if err := g.do(http.MethodPost, "/v1/replies", r.request, &again); err != nil {
			k.t.Fatalf("handing in %s again: %v", r.ack.Message, err)
		}
		if !again.Duplicate || again.Reply != r.ack.Reply || len(again.Calls) != len(r.ack.Calls) {
			k.t.Errorf("reply %s was acknowledged as %+v and is now %+v", r.ack.Message, r.ack, again)
		}
		for _, c := range r.ack.Calls {
			if results[c.Call] != 1 {
				k.t.Errorf("call %s (%s) of reply %s: %d results in its thread, want 1", c.Call, c.Op, r.ack.Message, results[c.Call])
			}
			delete(results, c.Call)
		}
	}
	// The rest is of replies whose acknowledgement the death kept from us.
	for id, n := range results {
		var call struct{ From ops.Origin }
		if err := g.get("/v1/calls/"+string(id), &call); err != nil {
			k.t.Fatalf("call %s: %v", id, err)
		}
		if n != 1 || call.From.Answer == nil || call.From.Answer.Opaque != k.thread {
			k.t.Errorf("%d results of call %s, from %+v, stand in thread %s", n, id, call.From, k.thread)
		}
	}
}

// verifyAll looks at the whole history through the journal and the folder of effects.
func (k *killers) verifyAll() {
	k.t.Helper()
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(k.state, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()}})
	if err != nil {
		k.t.Fatal(err)
	}
	defer store.Close()
	key, err := notary.PublicKey(filepath.Join(k.state, "audit"))
	if err != nil {
		k.t.Fatal(err)
	}
	if _, err := notary.Verify(context.Background(), store, key); err != nil {
		k.t.Errorf("the signed log after the kills: %v", err)
	}
	type state struct{ state, code string }
	stored := map[string]state{}
	posts, messages := map[string]int{}, map[string]int{}
	err = store.View(context.Background(), func(tx journal.Tx) error {
		if err := tx.Query(`SELECT idem_key, state, outcome FROM call WHERE op = 'test.effect' AND idem_key IS NOT NULL`, func(scan func(...any) error) error {
			var key, s string
			var outcome *string
			if err := scan(&key, &s, &outcome); err != nil {
				return err
			}
			var o ops.Outcome
			if outcome != nil {
				if err := json.Unmarshal([]byte(*outcome), &o); err != nil {
					return err
				}
			}
			one := state{state: s}
			if o.Fault != nil {
				one.code = string(o.Fault.Code)
			}
			stored[key[strings.LastIndex(key, "/")+1:]] = one
			return nil
		}); err != nil {
			return err
		}
		if err := tx.Query(`SELECT call FROM post WHERE kind = 'result'`, func(scan func(...any) error) error {
			var call string
			err := scan(&call)
			posts[call]++
			return err
		}); err != nil {
			return err
		}
		return tx.Query(`SELECT body FROM post WHERE kind = 'message'`, func(scan func(...any) error) error {
			var body string
			err := scan(&body)
			messages[body]++
			return err
		})
	})
	if err != nil {
		k.t.Fatal(err)
	}
	for call, n := range posts {
		if n != 1 {
			k.t.Errorf("the result of call %s is posted %d times", call, n)
		}
	}
	for _, r := range k.replies {
		if n := messages["n"+strings.TrimPrefix(r.ack.Message, "m")+"."]; n != 1 {
			k.t.Errorf("the message of reply %s was sent %d times", r.ack.Message, n)
		}
	}
	for key, call := range k.writes {
		made, s := k.made(key), stored[key]
		fits := false
		switch {
		case s.state == "": // never admitted
			fits = made == 0 && call == ""
		case s.state == string(ops.Succeeded):
			fits = made == 1
		case s.state == string(ops.Failed) && s.code == string(ops.NotStarted):
			fits = made == 0 && call == ""
		case s.state == string(ops.Unknown):
			fits = made <= 1 && call == ""
		}
		if !fits {
			k.t.Errorf("effect %s: made %d times, on record as %s %s, acknowledged as %q", key, made, s.state, s.code, call)
		}
	}
	var last int64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	head, err := store.Head(ctx)
	if err != nil {
		k.t.Fatal(err)
	}
	err = store.Tail(ctx, 0, func(e journal.Event) error {
		if e.Position != last+1 {
			k.t.Errorf("position %d follows %d", e.Position, last)
		}
		if last = e.Position; last >= head {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		k.t.Errorf("reading all events: %v", err)
	}
}
