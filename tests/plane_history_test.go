package tests

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
	"inband/service/journal/storetest"
	"inband/service/plane"
	"inband/service/plane/wire"
	"inband/service/threads"
	"inband/service/timers"
)

const (
	historyLease     = 2 * time.Second
	historyHeartbeat = 600 * time.Millisecond
	historyOpen      = 14 // delegations that are open at a time
	historyWorkers   = 12
	historyVerifiers = 3
	historyOperators = 4
)

// TestPlaneHistory is a run as Jepsen makes them: workers, verifiers and operators, of
// which some lie, speak with a real gateway through a way that loses, repeats and reorders,
// while the gateway is killed and started again, stopped for longer than a lease, and its
// disk filled. What each client was told is checked against the model, one delegation a
// partition, and what was acknowledged is looked up in the journal.
//
// INBAND_HISTORY sets the number of rounds, each on a state of its own, INBAND_HISTORY_SEED
// the seed of the dice.
func TestPlaneHistory(t *testing.T) {
	rounds := 1
	if s := os.Getenv("INBAND_HISTORY"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("INBAND_HISTORY=%q: want a number of rounds of at least 1", s)
		}
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("INBAND_HISTORY_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("INBAND_HISTORY_SEED=%q: want the seed that a run has printed", s)
		}
		seed = n
	}
	counts := map[string]int{}
	for i := range rounds {
		t.Run(fmt.Sprint("round", i+1), func(t *testing.T) {
			t.Logf("INBAND_HISTORY_SEED=%d", seed+uint64(i))
			historyRound(t, seed+uint64(i), os.Getenv("INBAND_HISTORY") != "", counts)
		})
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Printf("plane history: %s: %d\n", what, counts[what])
	}
}

// past is one round.
type past struct {
	t      *testing.T
	began  time.Time
	box    string
	state  string
	url    string // of the way
	token  string // the operators'
	client *http.Client
	way    *badWay
	going  context.Context // ends when the clients are to stop

	mu      sync.Mutex
	deeds   []deed
	orders  map[string]ops.CallID // by key, "" where no acknowledgement came
	headers []wire.Header         // of leases that were given, for who lies
	counts  map[string]int
	faults  []string
}

func (p *past) now() time.Duration { return time.Since(p.began) }

func (p *past) wrong(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) < 20 {
		p.faults = append(p.faults, fmt.Sprintf(format, args...))
	}
}

func (p *past) count(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[what]++
}

func (p *past) record(d deed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deeds = append(p.deeds, d)
	if !d.Sure {
		p.counts["operations of which nobody knows"]++
	}
}

// leaves records that w gives up l.
func (p *past) leaves(w *hand, l *grip) {
	now := p.now()
	p.record(deed{Client: string(w.id), Kind: left, Sure: true, Sent: now, Got: now, Header: l.Header})
}

func (p *past) ordered(key string, call ops.CallID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orders[key] = call
}

func (p *past) remember(h wire.Header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.headers = append(p.headers, h)
}

// another returns one of the last leases of somebody else.
func (p *past) another(random *rand.Rand, not ops.IdentityID) (wire.Header, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.headers[max(0, len(p.headers)-30):]
	for range 8 {
		if len(last) > 0 {
			if h := last[random.IntN(len(last))]; h.Worker != not {
				return h, true
			}
		}
	}
	return wire.Header{}, false
}

// serve starts the gateway, as it is or once more.
func (p *past) serve() {
	p.t.Helper()
	g := start(p.t, exec.Command(p.box, "--state", p.state, "serve", "--listen", "127.0.0.1:0", "--lease", historyLease.String(), "--heartbeat", historyHeartbeat.String()), p.state)
	if g.isDead() {
		p.t.Fatalf("the gateway does not start:\n%s", g.log)
	}
	p.way.to.Store(g)
	if p.token == "" { // it is the same in every life, and is read meanwhile
		p.token = g.token
	}
}

func historyRound(t *testing.T, seed uint64, long bool, sum map[string]int) {
	disk := t.TempDir()
	storetest.Need(t, "tmpfs mount", unix.Mount("tmpfs", disk, "tmpfs", 0, "size=48m"))
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	dice := rand.New(rand.NewPCG(seed, 1))
	going, stop := context.WithCancel(t.Context())
	defer stop()
	p := &past{t: t, began: time.Now(), box: build(t, ""), state: filepath.Join(disk, "state"), way: newBadWay(seed), going: going,
		orders: map[string]ops.CallID{}, counts: map[string]int{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	if out, err := exec.Command(p.box, "--state", p.state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	p.way.calm.Store(true)
	p.serve()
	way := httptest.NewServer(p.way)
	defer way.Close()
	defer p.client.CloseIdleConnections()
	p.url = way.URL
	if err := p.way.to.Load().do(http.MethodPost, "/v1/plane/state", map[string]string{"state": "on"}, nil); err != nil {
		t.Fatal(err)
	}
	var hands []*hand
	for i := range historyWorkers + historyVerifiers {
		key := make([]byte, ed25519.SeedSize)
		key[0], key[1] = 1, byte(i)
		w := &hand{p: p, ended: map[string]bool{}, id: ops.IdentityID(fmt.Sprint("worker-", i)), role: ops.Worker, key: ed25519.NewKeyFromSeed(key), random: rand.New(rand.NewPCG(seed, uint64(100+i)))}
		if i >= historyWorkers {
			w.id, w.role = ops.IdentityID(fmt.Sprint("verifier-", i)), ops.Verifier
		}
		for try := 0; ; try++ { // a machine that has much to do may be slow to answer
			err := w.enrol(going)
			if err == nil {
				break
			}
			if w.id += "a"; try == 5 {
				t.Fatal(err)
			}
		}
		hands = append(hands, w)
	}
	p.way.calm.Store(false)
	var clients sync.WaitGroup
	for _, w := range hands {
		clients.Go(w.live)
	}
	for i := range historyOperators {
		o := &operator{p, fmt.Sprint("operator-", i), rand.New(rand.NewPCG(seed, uint64(200+i)))}
		clients.Go(o.live)
	}
	p.misfortunes(dice, long, filepath.Join(disk, "ballast"))

	// Fair weather, honest people: everything comes to its end.
	p.way.calm.Store(true)
	p.way.late.Wait()
	o := &operator{p, "auditor", dice}
	if !p.ends(o) {
		open, _ := o.list()
		for _, d := range open {
			whole, _ := o.read(d.Delegation)
			b, _ := json.MarshalIndent(whole, "", " ")
			t.Errorf("%s does not end:\n%s", d.Delegation, b)
		}
	}
	_, all := o.list()
	for _, d := range all {
		o.read(d.Delegation)
	}
	stop()
	clients.Wait()
	p.way.to.Load().kill()
	p.check()
	p.audit()
	for _, f := range p.faults {
		t.Error(f)
	}
	for _, counts := range []map[string]int{p.counts, p.way.counts} {
		for what, n := range counts {
			sum[what] += n
		}
	}
	if t.Failed() {
		log := p.way.to.Load().log.String()
		t.Logf("the last gateway said:\n%s", log[max(0, len(log)-4000):])
	}
}

// misfortunes happen to the gateway and its disk, one after the other.
func (p *past) misfortunes(dice *rand.Rand, long bool, ballast string) {
	p.t.Helper()
	kinds := map[string]int{"kill": 2, "stop": 1, "full disk": 1, "full disk and kill": 1, "fence term": 1, "drain": 1}
	if long {
		kinds = map[string]int{"kill": 6, "stop": 4, "full disk": 3, "full disk and kill": 2, "fence term": 2, "drain": 2}
	}
	if testing.Short() {
		kinds = map[string]int{"kill": 1, "stop": 1, "full disk and kill": 1}
	}
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, slices.Repeat([]string{kind}, kinds[kind])...)
	}
	dice.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	between := func() { pause(p.going, time.Duration(500+dice.IntN(1500))*time.Millisecond) }
	operate := func(path string, body any) {
		if err := p.way.to.Load().do(http.MethodPost, path, body, nil); err != nil {
			p.t.Errorf("%s: %v", path, err)
		}
	}
	for _, kind := range list {
		between()
		p.count("misfortunes: " + kind)
		g := p.way.to.Load()
		if g.isDead() {
			p.t.Fatalf("the gateway died by itself:\n%s", g.log)
		}
		switch kind {
		case "kill":
			g.kill()
			p.serve()
		case "stop":
			if err := g.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				p.t.Fatal(err)
			}
			pause(p.going, historyLease+time.Duration(dice.IntN(int(historyLease))))
			if err := g.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				p.t.Fatal(err)
			}
		case "full disk", "full disk and kill":
			fill(p.t, ballast)
			between()
			if kind == "full disk and kill" {
				g.kill()
			}
			if err := os.Remove(ballast); err != nil {
				p.t.Fatal(err)
			}
			if kind == "full disk and kill" {
				p.serve()
			}
		case "fence term":
			operate("/v1/plane/fence-term", map[string]any{})
		case "drain":
			operate("/v1/plane/state", map[string]string{"state": "drain"})
			between()
			operate("/v1/plane/state", map[string]string{"state": "on"})
		}
	}
	between()
}

// ends waits until no delegation is open.
func (p *past) ends(o *operator) bool {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); pause(p.going, 100*time.Millisecond) {
		if open, all := o.list(); len(all) > 0 && len(open) == 0 {
			return true
		}
	}
	return false
}

// check holds the histories against the model, and then without their verdicts, which the
// model must refuse.
func (p *past) check() {
	p.t.Helper()
	end := p.now()
	p.counts["operations"] += len(p.deeds)
	by := map[string][]deed{}
	for _, d := range p.deeds {
		by[d.Header.Delegation] = append(by[d.Header.Delegation], d)
	}
	p.counts["delegations"] += len(by)
	model := delegationModel()
	for _, id := range slices.Sorted(maps.Keys(by)) {
		deeds := by[id]
		slices.SortStableFunc(deeds, func(a, b deed) int { return int(a.Sent - b.Sent) })
		switch porcupine.CheckOperationsTimeout(model, history(deeds, end), 20*time.Second) {
		case porcupine.Illegal:
			var b strings.Builder
			for _, d := range shortest(model, deeds, end) {
				fmt.Fprintf(&b, "  %s\n", told(d))
			}
			p.t.Errorf("the history of %s cannot be:\n%s", id, b.String())
		case porcupine.Unknown:
			p.t.Errorf("the history of %s of %d operations could not be checked in time", id, len(deeds))
		}
		last := deeds[len(deeds)-1]
		if last.Kind == saw {
			p.counts["delegations "+string(last.Seen.State)]++
		}
		if last.Kind != saw || last.Seen.State != plane.Completed {
			continue
		}
		without := slices.DeleteFunc(slices.Clone(deeds), func(d deed) bool { return d.Message == wire.KindVerdict })
		if porcupine.CheckOperationsTimeout(model, history(without, end), 20*time.Second) != porcupine.Illegal {
			p.t.Errorf("the model takes the history of %s, which was completed, without a verdict", id)
		}
	}
}

// shortest is the shortest beginning of a history that cannot be.
func shortest(model porcupine.Model, deeds []deed, end time.Duration) []deed {
	ended := func(d deed) time.Duration {
		if !d.Sure {
			return end
		}
		return d.Got
	}
	sorted := slices.Clone(deeds)
	slices.SortStableFunc(sorted, func(a, b deed) int { return int(ended(a) - ended(b)) })
	for n := range sorted {
		until := ended(sorted[n])
		some := slices.DeleteFunc(slices.Clone(deeds), func(d deed) bool { return d.Sent > until || d.Sure && d.Got > until })
		if porcupine.CheckOperationsTimeout(model, history(some, end), 5*time.Second) == porcupine.Illegal {
			return some
		}
	}
	return deeds
}

// told is a deed in a line.
func told(d deed) string {
	h := d.Header
	s := fmt.Sprintf("%8.3f-%8.3f %-12s %-8s", d.Sent.Seconds(), d.Got.Seconds(), d.Client, d.Kind)
	if !d.Sure {
		s = fmt.Sprintf("%8.3f-       ? %-12s %-8s", d.Sent.Seconds(), d.Client, d.Kind)
	}
	switch d.Kind {
	case saw, stopped:
		return s + fmt.Sprintf(" %+v", d.Seen)
	case granted:
		return s + fmt.Sprintf(" %s attempt %d fence %d seq %d until %.3f", h.Subject(), d.Attempt, h.Fence, h.Seq, d.Until.Seconds())
	case left:
		return s + fmt.Sprintf(" %s fence %d", h.Subject(), h.Fence)
	}
	return s + fmt.Sprintf(" %s %s fence %d seq %d claims %v: %s%s lease %d final %v replayed %v", h.Subject(), d.Message, h.Fence, h.Seq, d.Claims, d.Ack.State, d.Refused, d.Ack.LeaseMS, d.Ack.Final, d.Ack.Replayed)
}

// audit holds the journal against what was acknowledged.
func (p *past) audit() {
	p.t.Helper()
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(p.state, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer store.Close()
	type stored struct{ digest, ack string }
	callbacks := map[string]stored{}
	type row struct{ id, state, closed, call, outcome string }
	var delegations []row
	byKey, off := map[string]int{}, map[string]bool{}
	err = store.View(context.Background(), func(tx journal.Tx) error {
		return errors.Join(
			rowsOf(tx, 4, `SELECT subject, CAST(seq AS TEXT), digest, ack FROM callback`, func(r []string) error {
				callbacks[r[0]+" "+r[1]] = stored{r[2], r[3]}
				return nil
			}),
			rowsOf(tx, 6, `SELECT d.id, d.state, CASE WHEN d.closed_at IS NULL THEN '' ELSE 'closed' END, d.call, c.state, coalesce(c.idem_key, '') FROM delegation d JOIN call c ON c.id = d.call`, func(r []string) error {
				delegations = append(delegations, row{r[0], r[1], r[2], r[3], r[4]})
				byKey[r[5][strings.LastIndex(r[5], "/")+1:]]++
				return nil
			}),
			rowsOf(tx, 1, `SELECT id FROM call WHERE op = 'swarm.spawn' AND state = 'failed' AND outcome LIKE '%"PLANE_OFF"%'`, func(r []string) error {
				off[r[0]] = true // taken while nothing was handed out, and it says so
				return nil
			}),
			rowsOf(tx, 1, `SELECT d.id FROM delegation d WHERE d.state = 'COMPLETED' AND NOT EXISTS (SELECT 1 FROM verification v JOIN dispatch x ON x.run = v.run
					WHERE v.delegation = d.id AND v.state = 'PASSED' AND v.verifier <> x.worker AND x.state = 'SUCCEEDED' AND x.attempt = d.attempts
					AND EXISTS (SELECT 1 FROM callback c WHERE c.subject = v.id AND c.kind = 'verdict'))`, func(r []string) error {
				p.t.Errorf("%s is completed without a verifier's word", r[0])
				return nil
			}),
		)
	})
	if err != nil {
		p.t.Fatal(err)
	}
	closed, settled, leased := map[string]int{}, map[string]int{}, map[string]bool{}
	p.events(store, func(e journal.Event) {
		var body struct {
			Delegation, Call, Run, Verification string
			Fence                               int64
		}
		if err := json.Unmarshal(e.Body, &body); err != nil {
			p.t.Errorf("%s: %v", e.Kind, err)
		}
		switch e.Kind {
		case "delegation.closed":
			closed[body.Delegation]++
		case "call.settled":
			settled[strings.TrimPrefix(e.Stream, "call/")]++
		case "run.lease_granted", "verification.granted":
			subject := body.Run
			if body.Verification != "" {
				subject = body.Verification
			}
			key := fmt.Sprint(subject, " ", body.Fence)
			if leased[key] {
				p.t.Errorf("the fence %d of %s was granted twice", body.Fence, subject)
			}
			leased[key] = true
		}
	})
	for _, d := range p.deeds {
		h := d.Header
		switch {
		case d.Kind == granted && !leased[fmt.Sprint(h.Subject(), " ", h.Fence)]:
			p.t.Errorf("the lease on %s with the fence %d is not in the log", h.Subject(), h.Fence)
		case d.Kind == saidThat && d.Sure && d.Refused == "":
			kept := callbacks[fmt.Sprint(h.Subject(), " ", h.Seq)]
			var ack wire.Ack
			if err := json.Unmarshal([]byte(kept.ack), &ack); err != nil || kept.digest != d.Digest {
				p.t.Errorf("%s %d of %s was acknowledged and is not in the log", d.Message, h.Seq, h.Subject())
				continue
			}
			said := d.Ack
			said.Replayed = false
			if ack != said {
				p.t.Errorf("%s %d of %s was acknowledged as %+v, and stands as %+v", d.Message, h.Seq, h.Subject(), said, ack)
			}
		}
	}
	outcomes := map[string]string{"COMPLETED": "succeeded", "CANCELLED": "cancelled"}
	for _, d := range delegations {
		want := outcomes[d.state]
		if want == "" {
			want = "failed"
		}
		if d.closed == "" || closed[d.id] != 1 || settled[d.call] != 1 || d.outcome != want {
			p.t.Errorf("%s is %s %s, was closed %d times, and its call is %s and was settled %d times; want %s", d.id, d.state, d.closed, closed[d.id], d.outcome, settled[d.call], want)
		}
	}
	for key, call := range p.orders {
		if byKey[key] > 1 || call != "" && byKey[key] != 1 && !off[string(call)] {
			p.t.Errorf("the order %s, acknowledged as call %q, has %d delegations", key, call, byKey[key])
		}
	}
}

// events reads all events, in order.
func (p *past) events(store *sqlite.Store, take func(journal.Event)) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	head, err := store.Head(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	var last int64
	err = store.Tail(ctx, 0, func(e journal.Event) error {
		if e.Position != last+1 {
			p.t.Errorf("position %d follows %d", e.Position, last)
		}
		take(e)
		if last = e.Position; last >= head {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		p.t.Errorf("reading all events: %v", err)
	}
}
