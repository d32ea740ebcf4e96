package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"inband/ops"
	"inband/service/plane"
	"inband/service/threads"
)

// The moments at which processes of a plane are killed, beside random ones.
var (
	planeMarks = []string{
		"plane.granted", "plane.callback-taken", "plane.verdict-taken", "plane.before-settle", "plane.settled", "plane.spawned",
		"plane.new-run", "plane.booted", "plane.swept", "plane.cancelled", "plane.upload-begun", "journal.before-commit", "journal.after-commit",
	}
	workerMarks = []string{
		"worker.grant-kept", "worker.start-acknowledged", "worker.command-begins", "worker.command-ended", "worker.checkpoint-answered",
		"worker.before-upload", "worker.uploaded", "worker.attested", "worker.before-result", "worker.result-answered",
		"worker.before-tombstone", "worker.tombstone-answered", "worker.before-boot", "worker.booted",
	}
	verifierMarks = []string{"worker.grant-kept", "worker.start-acknowledged", "worker.before-verdict", "worker.verdict-answered", "worker.booted"}
)

const (
	atRandom = "a random moment"
	// Short, so that leases lapse; three heartbeats and more, so that they need not.
	killLease, killHeartbeat = 2 * time.Second, 400 * time.Millisecond
)

// TestPlaneKill kills a real gateway, two real workers and a real verifier, again and again,
// while work flows from the API and from a chat thread through them. All restart by
// themselves. Meanwhile work is cancelled, asks people, fails, and changes things outside,
// and workers stand still for longer than a lease. At the end the journal, the files and
// what the commands have really done are held against each other; see planeAudit.
//
// INBAND_PLANE_KILLS sets the number of kills of gateways and of workers; the default is
// the short form. INBAND_PLANE_SEED makes the same choices again, as far as processes do.
func TestPlaneKill(t *testing.T) {
	kills := 8
	if s := os.Getenv("INBAND_PLANE_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("INBAND_PLANE_KILLS=%q: want a number of at least 1", s)
		}
		kills = n
	} else if testing.Short() {
		kills = 4
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("INBAND_PLANE_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("INBAND_PLANE_SEED=%q: want a number", s)
		}
		seed = n
	}
	t.Logf("seed %d", seed)
	k := newPlaneKillers(t, seed, kills)
	k.run()
	a := k.audit()

	fmt.Printf("plane kills: seed %d, %d delegations, %d commands begun\n", seed, len(a.delegations), a.begun)
	for _, part := range []struct {
		who   string
		marks []string
	}{{"gateway", planeMarks}, {"worker", workerMarks}, {"verifier", verifierMarks}} {
		total := 0
		for _, m := range append([]string{atRandom}, part.marks...) {
			n := k.died[part.who+" "+m]
			total += n
			fmt.Printf("plane kills of a %s at %s: %d\n", part.who, m, n)
			if n == 0 && kills >= 4*len(part.marks) && part.who != "verifier" && !strings.Contains(m, "tombstone") {
				t.Errorf("no %s was killed at %s", part.who, m)
			}
		}
		fmt.Printf("plane kills of a %s: %d\n", part.who, total)
		if total < kills && part.who != "verifier" {
			t.Errorf("%d kills of a %s: want %d", total, part.who, kills)
		}
	}
	fmt.Printf("plane kills: workers stood still for longer than a lease: %d\n", k.died["worker stood still"])
	for _, what := range slices.Sorted(maps.Keys(a.count)) {
		fmt.Printf("plane kills: %s: %d\n", what, a.count[what])
	}
	for _, what := range []string{"delegations COMPLETED", "delegations CANCELLED", "delegations ordered in a thread"} {
		if a.count[what] == 0 {
			t.Errorf("there were no %s, so that nothing was proved of them", what)
		}
	}
}

// handedOut is one delegation as its driver ordered it.
type handedOut struct {
	n       int
	kind    string
	cancel  bool // it is cancelled on the way
	retries map[string]int
	seen    time.Time // when it is cancelled, if it is; zero: nobody has seen it yet
}

// planeKillers drives one state folder and the processes on it.
type planeKillers struct {
	t       *testing.T
	kills   int
	box     string
	state   string
	listen  string
	dir     string // that commands can get to
	record  string // file that each command appends to
	members []*member

	gateway atomic.Pointer[gateway]
	calm    chan struct{} // closed when nobody is killed any more
	over    chan struct{} // closed when everybody is to end

	mu     sync.Mutex
	random *rand.Rand
	died   map[string]int // by who and where
	turns  map[string]int // of marks, by who
	orders map[ops.CallID]*handedOut
	timer  string
	wake   struct{ thread, key string }
	failed atomic.Bool
}

// member is a worker or a verifier: a process after the other on one folder.
type member struct {
	name string
	role ops.Role
	args []string
}

func newPlaneKillers(t *testing.T, seed uint64, kills int) *planeKillers {
	t.Helper()
	k := &planeKillers{t: t, kills: kills, box: build(t, "failpoint"), state: filepath.Join(t.TempDir(), "state"), dir: openFolder(t), listen: freeAddress(t),
		calm: make(chan struct{}), over: make(chan struct{}), random: rand.New(rand.NewPCG(seed, 2)), died: map[string]int{}, turns: map[string]int{}, orders: map[ops.CallID]*handedOut{}}
	k.record = filepath.Join(k.dir, "record")
	script := filepath.Join(k.dir, "work.sh")
	if err := errors.Join(os.WriteFile(k.record, nil, 0o600), os.Chmod(k.record, 0o666), os.WriteFile(script, []byte(planeCommand), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(k.box, "--state", k.state, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	g := k.serve("")
	if g.isDead() {
		t.Fatalf("the gateway does not start:\n%s", g.log)
	}
	if err := g.do(http.MethodPost, "/v1/plane/state", map[string]string{"state": "on"}, nil); err != nil {
		t.Fatal(err)
	}
	g.agent(t, "scout")
	var made struct{ Result struct{ Timer string } }
	if err := g.do(http.MethodPost, "/exec", map[string]any{"op": "cron.create", "params": map[string]any{
		"name": "work", "schedule": "@every 24h", "agent": "scout", "prompt": "Hand out work.", "ops": []string{"swarm.spawn"}, "overlap": "allow",
	}}, &made); err != nil {
		t.Fatal(err)
	}
	k.timer = made.Result.Timer
	for _, m := range []*member{{name: "worker-a", role: ops.Worker}, {name: "worker-b", role: ops.Worker}, {name: "judge", role: ops.Verifier}} {
		var invited struct{ Token string }
		if err := g.do(http.MethodPost, "/v1/workers/invitations", map[string]any{"name": m.name, "role": m.role}, &invited); err != nil {
			t.Fatal(err)
		}
		token := filepath.Join(k.dir, m.name+".invitation")
		if err := os.WriteFile(token, []byte(invited.Token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.args = []string{"--state", k.state, string(m.role), "--name", m.name, "--gateway", g.url, "--token-file", token, "--slots", "2", "--scratch", k.dir}
		if m.role == ops.Worker {
			m.args = append(m.args, "--read", k.dir, "--write", k.record, "--env", "RECORD="+k.record, "--checkpoint", "part.txt", "--", "/bin/sh", script)
		}
		k.members = append(k.members, m)
	}
	g.kill()
	return k
}

// freeAddress is a loopback address that stays this test's: outside of the range that
// outgoing connections are given ports from, which a worker's might else take meanwhile.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(18000))
		if l, err := net.Listen("tcp", at); err == nil {
			l.Close()
			return at
		}
	}
	t.Fatal("there is no free port")
	return ""
}

// serve starts a gateway that is to die at a mark.
func (k *planeKillers) serve(armed string) *gateway {
	k.t.Helper()
	cmd := exec.Command(k.box, "--state", k.state, "serve", "--listen", k.listen, "--lease", killLease.String(), "--heartbeat", killHeartbeat.String())
	cmd.Env = append(os.Environ(), "INBAND_FAILPOINT="+armed)
	g := start(k.t, cmd, k.state)
	k.gateway.Store(g)
	return g
}

func (k *planeKillers) rand(n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.random.IntN(n)
}

// between is a random time.
func (k *planeKillers) between(least, most time.Duration) time.Duration {
	return least + time.Duration(k.rand(int((most-least)/time.Millisecond)))*time.Millisecond
}

func (k *planeKillers) note(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.died[what]++
}

// deaths is how often who was killed.
func (k *planeKillers) deaths(who string) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for what, times := range k.died {
		if strings.HasPrefix(what, who+" ") && what != who+" stood still" {
			n += times
		}
	}
	return n
}

// ordered is how many delegations were acknowledged.
func (k *planeKillers) ordered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.orders)
}

// wrong is for goroutines beside the test's own.
func (k *planeKillers) wrong(format string, args ...any) {
	k.failed.Store(true)
	k.t.Errorf(format, args...)
}

// next is the mark of the next life of who, "" for a random moment, and how it is armed.
func (k *planeKillers) next(who string, marks []string) (mark, armed string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.turns[who]
	if k.turns[who]++; n%3 == 2 {
		return "", ""
	}
	mark = marks[(n-n/3)%len(marks)]
	most := 3
	switch {
	case strings.HasSuffix(mark, "boot"), strings.HasSuffix(mark, "booted"), strings.HasSuffix(mark, "tombstone"), strings.HasSuffix(mark, "cancelled"):
		most = 1
	case strings.HasPrefix(mark, "journal."), mark == "plane.callback-taken":
		most = 25
	}
	return mark, fmt.Sprintf("%s:%d", mark, 1+k.random.IntN(most))
}

// run lets them live and die, and returns when all is settled and all have ended.
func (k *planeKillers) run() {
	k.t.Helper()
	var beside sync.WaitGroup
	spawning, meddling := make(chan struct{}), make(chan struct{})
	for _, m := range k.members {
		beside.Go(func() { k.live(m) })
	}
	beside.Go(func() { k.spawn(spawning) })
	beside.Go(func() { k.meddle(meddling) })
	ended := sync.OnceFunc(func() {
		close(k.over)
		beside.Wait()
	})
	defer ended()
	for k.deaths("gateway") < k.kills || k.deaths("worker") < k.kills || k.ordered() < len(planeKinds) {
		if k.failed.Load() {
			return
		}
		k.gatewayLife()
	}
	close(spawning)
	close(k.calm)
	g := k.serve("")
	if g.isDead() {
		k.t.Fatalf("the gateway does not start after the kills:\n%s", g.log)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for left := k.open(g); len(left) > 0 && !k.failed.Load(); left = k.open(g) {
		if time.Now().After(deadline) {
			k.stuck(g, left)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	until(k.t, "results are posted", func() bool {
		var outbox struct {
			Outbox []any `json:"outbox"`
		}
		return g.get("/v1/outbox", &outbox) == nil && len(outbox.Outbox) == 0
	})
	close(meddling)
	ended()
	g.kill()
}

// gatewayLife is one life of the gateway.
func (k *planeKillers) gatewayLife() {
	mark, armed := k.next("gateway", planeMarks)
	most := 5 * time.Second
	switch {
	case k.deaths("gateway") >= k.kills: // it waits for the workers' deaths
		mark, armed = "", ""
	case mark == "":
		most = k.between(300*time.Millisecond, 3*time.Second)
	}
	g := k.serve(armed)
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-timer.C:
		g.kill()
		k.note("gateway " + atRandom)
	case <-g.dead:
		if mark == "" {
			if !strings.Contains(g.log.String(), "address already in use") {
				k.wrong("the gateway died by itself:\n%s", g.log)
			}
			return
		}
		k.note("gateway " + mark)
	}
	g.kill()
}

// live is the lives of m, until everybody is to end.
func (k *planeKillers) live(m *member) {
	who, marks := "worker", workerMarks
	if m.role == ops.Verifier {
		who, marks = "verifier", verifierMarks
	}
	for {
		var mark, armed string
		dying := true
		select {
		case <-k.calm:
			dying = false
		default:
			mark, armed = k.next(who, marks)
		}
		if k.deaths(who) >= k.kills {
			dying, mark, armed = false, "", ""
		}
		log := new(bytes.Buffer)
		cmd := exec.Command(k.box, m.args...)
		cmd.Env = append(os.Environ(), "INBAND_FAILPOINT="+armed)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			k.wrong("%s: %v", m.name, err)
			return
		}
		dead := make(chan struct{})
		go func() { _ = cmd.Wait(); close(dead) }()
		kill := func() { _ = cmd.Process.Kill(); <-dead }
		most := k.between(300*time.Millisecond, 4*time.Second)
		if mark != "" {
			most = 6 * time.Second
		}
		timer := time.NewTimer(most)
		expired, calm := timer.C, k.calm
		if !dying {
			expired, calm = nil, nil
		}
		stood := false
	life:
		for {
			select {
			case <-dead:
				if mark == "" {
					k.wrong("%s ended by itself: %v\n%s", m.name, cmd.ProcessState, log)
					return
				}
				k.note(who + " " + mark)
				break life
			case <-expired:
				if m.role == ops.Worker && !stood && k.rand(4) == 0 {
					stood = true
					_ = cmd.Process.Signal(syscall.SIGSTOP)
					still := time.NewTimer(killLease + k.between(0, 2*killLease))
					<-still.C
					_ = cmd.Process.Signal(syscall.SIGCONT)
					k.note(who + " stood still")
					timer.Reset(k.between(300*time.Millisecond, 4*time.Second))
					continue
				}
				kill()
				k.note(who + " " + atRandom)
				break life
			case <-calm:
				if calm = nil; mark == "" { // it lives on
					expired = nil
					continue
				}
				kill()
				k.note(who + " " + atRandom)
				break life
			case <-k.over:
				timer.Stop()
				_ = cmd.Process.Signal(syscall.SIGTERM)
				late := time.NewTimer(time.Minute)
				defer late.Stop()
				select {
				case <-dead:
				case <-late.C:
					kill()
					k.wrong("%s does not end a minute after SIGTERM:\n%s", m.name, log)
				}
				return
			}
		}
		timer.Stop()
	}
}

// kinds are the kinds of work that planeCommand does.
var planeKinds = []string{"quick", "slow", "stray", "wrong", "fails", "asks", "changes", "stuck"}

// spawn has work ordered for as long as it is wanted, so that some is always open.
func (k *planeKillers) spawn(stop chan struct{}) {
	for n := 1; ; n++ {
		o := &handedOut{n: n, kind: planeKinds[n%len(planeKinds)], retries: map[string]int{"worker_lost": 16, "task_failed": 2, "invalid_result": 2}}
		switch o.kind {
		case "quick": // some work must come to its end
		case "stuck":
			o.cancel = true
		default:
			o.cancel = k.rand(8) == 0
			if k.rand(4) == 0 {
				o.retries["worker_lost"] = 0
			}
		}
		for ordered := false; !ordered; {
			select {
			case <-stop:
				return
			case <-k.over:
				return
			default:
			}
			g := k.gateway.Load()
			if g.isDead() || len(k.open(g)) >= 8 {
				pause := time.NewTimer(20 * time.Millisecond)
				<-pause.C
				continue
			}
			if n%3 == 0 {
				ordered = k.inThread(g, o)
			} else {
				ordered = k.overAPI(g, o)
			}
		}
	}
}

// params are those of swarm.spawn for o.
func (o *handedOut) params() map[string]any {
	return map[string]any{"task": fmt.Sprintf("%s %d", o.kind, o.n), "artifacts": []string{"out.txt"}, "verify": map[string]any{"command": []string{"/bin/grep", "-aq", "^made", "out.txt"}},
		"deadline": "2h", "retries": o.retries}
}

// overAPI orders o, and reports whether that was acknowledged.
func (k *planeKillers) overAPI(g *gateway, o *handedOut) bool {
	body, err := json.Marshal(map[string]any{"op": "swarm.spawn", "id": fmt.Sprintf("order-%d", o.n), "params": o.params()})
	if err != nil {
		k.wrong("%v", err)
		return true
	}
	req, err := http.NewRequest(http.MethodPost, g.url+"/exec", bytes.NewReader(body))
	if err != nil {
		k.wrong("%v", err)
		return true
	}
	req.Header.Set("Authorization", "Bearer "+g.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "respond-async")
	res, err := g.client.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	var answer struct {
		Call      ops.CallID
		Code      ops.Code
		Retryable bool
	}
	if json.NewDecoder(res.Body).Decode(&answer) != nil {
		return false
	}
	if res.StatusCode >= 300 && answer.Call == "" {
		if !answer.Retryable {
			k.wrong("order %d: %d %s", o.n, res.StatusCode, answer.Code)
		}
		return !answer.Retryable
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.orders[answer.Call] = o
	return true
}

// inThread has the agent order o in the thread of a wake, and reports whether that was
// acknowledged.
func (k *planeKillers) inThread(g *gateway, o *handedOut) bool {
	if k.wake.key == "" && !k.raise(g) {
		return false
	}
	params, err := json.Marshal(o.params())
	if err != nil {
		k.wrong("%v", err)
		return true
	}
	var ack threads.Ack
	if err := g.do(http.MethodPost, "/v1/replies", map[string]string{
		"agent": "scout", "thread": k.wake.thread, "message": fmt.Sprintf("m%d", o.n), "text": fmt.Sprintf("As you say.\n[TOOL#%s swarm.spawn %s]", k.wake.key, params),
	}, &ack); err != nil {
		return false
	}
	if len(ack.Calls) != 1 || ack.Calls[0].State == ops.Refused {
		k.wake.key = "" // its time is over; the next one has another number
		if len(ack.Calls) != 1 {
			k.wrong("reply %d: %+v", o.n, ack)
		}
		k.note("refused in the thread")
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.orders[ack.Calls[0].Call] = o
	return true
}

// raise wakes the agent, and reports whether its key was found.
func (k *planeKillers) raise(g *gateway) bool {
	var timer struct {
		LastWake string `json:"last_wake"`
	}
	if g.do(http.MethodPost, "/v1/timers/"+k.timer+"/run", nil, nil) != nil || g.get("/v1/timers/"+k.timer, &timer) != nil || timer.LastWake == "" {
		return false
	}
	var w raised
	if g.get("/v1/wakes/"+timer.LastWake, &w) != nil {
		return false
	}
	posts, err := g.posts(w.Thread)
	if err != nil {
		return false
	}
	for _, p := range slices.Backward(posts) {
		if m := carries.FindStringSubmatch(p.Text); p.Kind == "wake" && m != nil {
			k.wake.thread, k.wake.key = w.Thread, m[1]
			return true
		}
	}
	return false
}

// open are the delegations that are not closed. None that can be told is one that nobody is.
func (k *planeKillers) open(g *gateway) (left []plane.DelegationListing) {
	for path := "/v1/delegations?limit=200"; ; {
		var page plane.DelegationPage
		if err := g.get(path, &page); err != nil {
			return []plane.DelegationListing{{Reason: err.Error()}}
		}
		for _, d := range page.Delegations {
			if !d.Closed {
				left = append(left, d)
			}
		}
		if page.Next == "" {
			return left
		}
		path = "/v1/delegations?limit=200&after=" + page.Next
	}
}

// stuck says of what is left open whether it says why.
func (k *planeKillers) stuck(g *gateway, left []plane.DelegationListing) {
	for _, d := range left {
		if d.Delegation == "" {
			k.wrong("the delegations cannot be listed: %s", d.Reason)
			continue
		}
		var s plane.DelegationShowing
		if err := g.get("/v1/delegations/"+d.Delegation, &s); err != nil {
			k.wrong("delegation %s: %v", d.Delegation, err)
			continue
		}
		b, _ := json.Marshal(s)
		k.wrong("delegation %s is open long after the last kill, and waits for %q:\n%s", d.Delegation, s.Waits, b)
	}
}

// meddle is the people: they cancel, answer, and say what has become of changes outside.
func (k *planeKillers) meddle(stop chan struct{}) {
	for {
		pause := time.NewTimer(60 * time.Millisecond)
		select {
		case <-stop:
			return
		case <-k.over:
			return
		case <-pause.C:
		}
		g := k.gateway.Load()
		if g.isDead() {
			continue
		}
		for _, d := range k.open(g) {
			k.mu.Lock()
			o := k.orders[d.Call]
			k.mu.Unlock()
			if o == nil || d.Delegation == "" {
				continue
			}
			if o.seen.IsZero() {
				o.seen = time.Now().Add(k.between(0, 2*time.Second))
			}
			if o.cancel && !d.Cancel && time.Now().After(o.seen) {
				err := g.do(http.MethodPost, "/v1/delegations/"+d.Delegation+"/cancel", map[string]string{"grace": "3s", "reason": "not wanted"}, nil)
				if errors.Is(err, errStatus) && !strings.Contains(err.Error(), `"CONFLICT"`) && !strings.Contains(err.Error(), `"retryable":true`) && !g.isDead() {
					k.wrong("cancel %s: %v", d.Delegation, err)
				}
				continue
			}
			select {
			case <-k.calm: // nobody need wait longer after so many failures
				if d.RunState == plane.Dispatched || d.State == plane.VerifierUnavailable {
					_ = g.do(http.MethodPost, "/v1/delegations/"+d.Delegation+"/retry", nil, nil)
					continue
				}
			default:
			}
			if d.State == plane.EvidenceMissing { // its files came too late, with a result that was adopted
				_ = g.do(http.MethodPost, "/v1/delegations/"+d.Delegation+"/retry", nil, nil)
				continue
			}
			if d.RunState == plane.WaitingHuman || d.State == plane.Open && d.Cancel {
				k.decide(g, d.Delegation)
			}
		}
	}
}

// decide does what a person has to, truthfully.
func (k *planeKillers) decide(g *gateway, id string) {
	var s plane.DelegationShowing
	if g.get("/v1/delegations/"+id, &s) != nil || len(s.Runs) == 0 {
		return
	}
	resolve := func(body map[string]any) {
		_ = g.do(http.MethodPost, "/v1/delegations/"+id+"/resolve", body, nil) // it is looked at again
	}
	run := s.Runs[0]
	if run.State != plane.WaitingHuman {
		return
	}
	for _, m := range s.Mutations {
		if m.State == plane.Intended && run.Proof != "" { // before, the command might still do it
			done := strings.Contains(k.recorded(), "change "+id+" "+m.Key+" ")
			resolve(map[string]any{"mutation": m.Key, "done": done, "proof": "the record was read"})
			return
		}
	}
	if s.Question != "" && !s.Cancel {
		resolve(map[string]any{"resolution": "resume", "answer": "Go on."})
	}
}

// recorded is what the commands have written so far.
func (k *planeKillers) recorded() string {
	b, err := os.ReadFile(k.record)
	if err != nil {
		k.wrong("%v", err)
	}
	return string(b)
}

// planeCommand is what workers run. It appends what it does to the file RECORD, a line a
// write: what, delegation, run, fence, milliseconds since 1970; a change has the run and
// the fence in one word, its key.
const planeCommand = `set -eu
fence=$(sed -n 's/.*"fence": *\([0-9]*\).*/\1/p' "$INBAND_TASK/grant.json" | head -n 1)
kind=$(sed -n 's/.*"task": *"\([a-z]*\).*/\1/p' "$INBAND_TASK/instruction.json" | head -n 1)
say() { echo "$1 $INBAND_DELEGATION $2 $(date +%s%3N)" >> "$RECORD"; }
step=0
tick() { step=$((step + 1)); echo "$step" > "$INBAND_CONTROL/progress"; say tick "$INBAND_RUN $fence"; sleep 0.1; }
made() { { echo "$1 $INBAND_DELEGATION $INBAND_RUN $fence"; head -c 100000 /dev/zero; } > "$INBAND_OUT/out.txt"; }
say begin "$INBAND_RUN $fence"
tick
case $kind in
slow)
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
		case $i in 4|8) echo "part $i" > "$INBAND_OUT/part.txt" ;; esac
		tick
	done ;;
stray)
	setsid /bin/sh -c 'while :; do echo "tick $INBAND_DELEGATION $INBAND_RUN '"$fence"' $(date +%s%3N)" >> "$RECORD"; sleep 0.1; done' > /dev/null 2>&1 &
	tick ;;
wrong)
	if [ "$INBAND_ATTEMPT" = 1 ]; then made bad; say end "$INBAND_RUN $fence"; exit 0; fi ;;
fails)
	if [ "$INBAND_ATTEMPT" = 1 ]; then say end "$INBAND_RUN $fence"; exit 3; fi ;;
asks)
	if [ ! -e "$INBAND_TASK/answer.txt" ]; then
		echo "Shall I go on?" > "$INBAND_CONTROL/question.txt"
		say end "$INBAND_RUN $fence"; exit 75
	fi ;;
changes)
	key="$INBAND_RUN.$fence"
	echo "{\"intend\": \"$key\", \"action\": \"append a line\"}" >> "$INBAND_CONTROL/mutations.jsonl"
	until [ -s "$INBAND_TASK/acknowledged.jsonl" ]; do tick; done
	if ! grep -q '"ok": *true' "$INBAND_TASK/acknowledged.jsonl"; then say end "$INBAND_RUN $fence"; exit 4; fi
	say change "$key"
	tick
	echo "{\"prove\": \"$key\", \"done\": true, \"proof\": \"the line stands there\"}" >> "$INBAND_CONTROL/mutations.jsonl"
	tick ;;
stuck)
	while :; do tick; done ;;
esac
tick
made made
say end "$INBAND_RUN $fence"
`
