package threads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"

	"inband/envelope"
	"inband/failpoint"
	"inband/harvester"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

//go:embed schema
var schema embed.FS

// Schema returns the tables of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "threads", FS: sub}
}

// Adaptor is the name of the built-in rooms as an adaptor.
const Adaptor = "rooms"

// Bounds of a reply.
const (
	// MaxDirectives is how many directives of one reply become calls (rule R8).
	// The rest is reported in the thread and not run.
	MaxDirectives = 8
	// MaxText bounds the text of a reply, in bytes.
	MaxText = 1 << 20
	// MaxMessage bounds a message id, in bytes.
	MaxMessage = 256
)

// Reply is one message of one agent. Exactly one of Room, which begins a thread
// there, and Thread, which continues one, is set.
type Reply struct {
	Agent   ops.IdentityID
	Room    string // [a-z0-9][a-z0-9._-]*, at most 64 bytes
	Thread  string
	Message string // the sender's id for it, 1 to MaxMessage bytes
	Text    string // UTF-8 without U+0000, at most MaxText bytes
}

// Ack says what became of a reply. It is the same each time the reply is handed in,
// Duplicate and Edited aside.
type Ack struct {
	Reply     string    `json:"reply"`             // the id of its post
	Wake      WakeID    `json:"wake,omitempty"`    // that it ends, or else the last one of the agent in the thread
	Verdict   Verdict   `json:"verdict,omitempty"` // what its [RESULT] gives the wake
	Room      string    `json:"room"`
	Thread    string    `json:"thread"`
	Message   string    `json:"message"`
	Duplicate bool      `json:"duplicate"`        // it was taken before, and nothing ran now
	Edited    bool      `json:"edited,omitempty"` // a duplicate whose text differs; the first text stands
	Broken    int       `json:"broken"`           // directives that are no valid JSON, ignored (decision D4)
	OverLimit int       `json:"over_limit"`       // directives beyond MaxDirectives, not run
	Calls     []AckCall `json:"calls"`
}

// AckCall is one call of a reply, as it stood when the reply was taken.
type AckCall struct {
	Call    ops.CallID `json:"call"`
	Op      ops.OpName `json:"op"`
	Form    string     `json:"form"`
	Ordinal int        `json:"ordinal"`
	State   ops.State  `json:"state"`
	Start   int64      `json:"start"` // bytes of the text
	End     int64      `json:"end"`
	Fault   *ops.Fault `json:"fault,omitempty"`
	Rule    string     `json:"rule,omitempty"` // that let it run, parked or refused it
	// Approval is what a parked call waits for.
	Approval service.ApprovalID `json:"approval,omitempty"`
}

// Config is what Threads needs.
type Config struct {
	Store journal.Store // with Schema, service.Schema and access.Schema
	Door  *service.Door // not started yet
	// Registry is the door's. It says which ops there are, for the hints of envelopes,
	// and under which names.
	Registry *ops.Live
	Log      *slog.Logger
	// ExecHosts are the hosts whose /exec a curl command in a reply may name, as
	// in harvester.Config.
	ExecHosts []string
}

// Threads is the replies, rooms and outbox of a store. Make it with New before the
// door is started, then Start it.
type Threads struct {
	store     journal.Store
	door      *service.Door
	registry  *ops.Live
	log       *slog.Logger
	execHosts []string
	chats     []Chat        // attached before Start
	reading   chan struct{} // one for each text that is being read; more than processors help nobody
	counts    counts

	life context.Context
	stop context.CancelFunc
	work sync.WaitGroup
}

// New returns the threads over cfg. It has the door write results into the outbox.
func New(cfg Config) (*Threads, error) {
	if cfg.Store == nil || cfg.Door == nil || cfg.Registry == nil || cfg.Log == nil {
		return nil, errors.New("threads: want a store, a door, its registry and a log")
	}
	t := &Threads{store: cfg.Store, door: cfg.Door, registry: cfg.Registry, log: cfg.Log, execHosts: cfg.ExecHosts,
		reading: make(chan struct{}, runtime.GOMAXPROCS(0))}
	t.life, t.stop = context.WithCancel(context.Background())
	cfg.Door.OnSettle(t.enqueueResult)
	cfg.Door.OnPark(t.enqueueParked)
	return t, nil
}

// Start begins to deliver what the outbox holds, and to carry out what has been decided in
// threads, of an earlier run too.
func (t *Threads) Start(ctx context.Context) error {
	head, err := t.store.Head(ctx)
	if err != nil {
		return fmt.Errorf("start the outbox: %w", err)
	}
	t.work.Go(func() { t.deliver(head) })
	t.work.Go(func() { t.decideAll(head) })
	return nil
}

// Close stops both after what is under way. What is left stays in the journal for the next
// start.
func (t *Threads) Close() {
	t.stop()
	t.work.Wait()
}

var roomName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// check refuses a reply that cannot be taken, whoever hands it in.
func (r Reply) check() *ops.Fault {
	switch {
	case !r.Agent.Valid():
		return ops.Faultf(ops.BadRequest, "agent: want the id of the agent that wrote the reply")
	case (r.Room == "") == (r.Thread == ""):
		return ops.Faultf(ops.BadRequest, "want either room, to begin a thread, or thread, to continue one")
	case r.Thread != "" && !printable(r.Thread):
		return unknownThread(r.Thread)
	case r.Room != "" && !roomName.MatchString(r.Room):
		return ops.Faultf(ops.BadRequest, "room: want a-z, 0-9, then also . _ -, at most 64 bytes")
	case r.Message == "" || len(r.Message) > MaxMessage:
		return ops.Faultf(ops.BadRequest, "message: want your id for this message, 1 to %d bytes; the same id is never run twice", MaxMessage)
	case !printable(r.Message):
		return ops.Faultf(ops.BadRequest, "message: want printable UTF-8")
	case len(r.Text) > MaxText:
		return ops.Faultf(ops.TooLarge, "text: longer than %d bytes", MaxText).With("max", MaxText)
	case !utf8.ValidString(r.Text) || strings.ContainsRune(r.Text, 0): // no engine of the journal keeps either
		return ops.Faultf(ops.BadRequest, "text: want valid UTF-8 without U+0000")
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// reading is what was found in the text of a reply.
type reading struct {
	directives   []harvester.Directive // the first MaxDirectives
	result       resultRead
	digests      []string // by directive: its order, as the echo guard knows it; "" for one without side effects
	more, broken int      // how many more directives there are, and how many broken ones
	material     material // the text as others in the thread are shown it
}

// read finds the directives of text. ctx bounds the wait for others that are being read.
func (t *Threads) read(ctx context.Context, text string) (r reading, err error) {
	select {
	case t.reading <- struct{}{}:
		defer func() { <-t.reading }()
	case <-ctx.Done():
		return reading{}, ctx.Err()
	}
	s := harvester.New(harvester.Config{ExecHosts: t.execHosts, Result: r.result.take, Found: func(d harvester.Directive) {
		if len(r.directives) == MaxDirectives {
			r.more++ // 1 MiB can hold 150,000, which are counted and not kept
			return
		}
		d.Params = bytes.Clone(d.Params)
		r.directives = append(r.directives, d)
	}})
	if _, err := s.Write([]byte(text)); err != nil {
		panic(err) // only after Close
	}
	s.Close(true)
	r.broken = s.Broken()
	registry := t.registry.Current()
	r.digests = make([]string, len(r.directives))
	for i, d := range r.directives {
		if e, ok := registry.Lookup(ops.OpName(d.Op)); ok && e.SideEffecting { // reads never pay for the guard
			r.digests[i] = orderDigest(e.Name, d.Params)
		}
	}
	r.material = t.materialOf(text)
	return r, nil
}

// Take takes a reply from by: the agent itself, a bridge that it is enrolled with,
// or an operator. When it returns, the reply is durable and its calls are, and they
// run; their results go to the thread.
//
// A message id that is known leads to the first acknowledgement, marked as a
// duplicate, and nothing runs, whatever the text is now. An agent that does not
// exist or that by may not speak for is NotPermitted; a thread that the agent takes
// no part in is NotFound.
func (t *Threads) Take(ctx context.Context, by ops.Identity, r Reply) (Ack, error) {
	if fault := r.check(); fault != nil {
		return Ack{}, fault
	}
	room := r.Room
	if r.Thread != "" {
		var err error
		if room, err = t.roomOf(ctx, r.Thread); err != nil {
			return Ack{}, err
		}
	}
	return t.take(ctx, by, arrival{
		adaptor: Adaptor, room: room, source: Adaptor + "/" + room + "/" + r.Message,
		agent: r.Agent, thread: r.Thread, message: r.Message, text: r.Text, fresh: true,
	})
}

// arrival is a reply on its way in, wherever it was written.
type arrival struct {
	adaptor  string
	room     string // its name in the table room
	source   string // of its calls, unique to the message; their ordinals are added
	agent    ops.IdentityID
	thread   string // empty begins one in room
	message  string // the sender's or the platform's id for it
	platform string // the message's id on the adaptor's platform, "" in the built-in rooms
	text     string
	fresh    bool // it arrived within LateAfter of being written
	// also adds to the transaction that takes it, or finds it taken; it may be nil.
	also func(journal.Tx, Ack) error
}

// maxLooks bounds how often a reply is weighed because something in its thread changed
// between the weighing and the taking.
const maxLooks = 3

// errWeighedAnew says that a reply would be weighed otherwise than it was.
var errWeighedAnew = errors.New("the thread has changed since the reply was weighed")

// take is Take for a reply that has been checked. A reply is weighed before the
// transaction that takes it, since the door prepares its calls by that, and inside again:
// a wake may have ended meanwhile, and a stranger may have written.
func (t *Threads) take(ctx context.Context, by ops.Identity, a arrival) (Ack, error) {
	r, err := t.read(ctx, a.text)
	if err != nil {
		return Ack{}, err
	}
	for range maxLooks {
		ack, err := t.takeOnce(ctx, by, a, r)
		if !errors.Is(err, errWeighedAnew) {
			return ack, err
		}
	}
	return Ack{}, ops.Faultf(ops.Busy, "the thread changes again and again while this reply is read; nothing was taken, hand it in again")
}

// takeOnce weighs a reply and takes it, or returns errWeighedAnew.
func (t *Threads) takeOnce(ctx context.Context, by ops.Identity, a arrival, r reading) (Ack, error) {
	agent := ops.Identity{ID: a.agent, Role: ops.Agent}
	hash, begins := textHash(a.text), a.thread == ""
	var w weighed
	if err := t.store.View(ctx, func(tx journal.Tx) (err error) {
		w, err = weigh(tx, a, r)
		return err
	}); err != nil {
		return Ack{}, err
	}
	if begins {
		a.thread = NewThreadID()
	}
	calls := callsOf(agent, a, r, w)
	orders := make([]service.Order, len(calls))
	for i, c := range calls {
		orders[i] = t.door.Prepare(c)
		if a.adaptor != Adaptor { // the next messages of the chat must not wait for this one
			orders[i] = orders[i].Answered()
		}
	}
	var ack Ack
	var tickets []service.Ticket
	err := t.store.Update(ctx, func(tx journal.Tx) error {
		ack, tickets = Ack{}, nil
		if err := maySpeak(tx, t.door.Policy(), by, agent); err != nil {
			return err
		}
		if !begins && a.adaptor == Adaptor {
			if err := takesPart(tx, a.thread, agent.ID); err != nil {
				return err
			}
		}
		earlier, found, err := earlierAck(tx, a, hash)
		if err != nil {
			return err
		}
		if found {
			ack = earlier
			return a.tell(tx, ack)
		}
		if begins {
			if err := openThread(tx, a.room, a.thread); err != nil {
				return err
			}
		} else if now, err := weigh(tx, a, r); err != nil {
			return err
		} else if !now.same(w) {
			return errWeighedAnew
		}
		ack = Ack{Room: a.room, Thread: a.thread, Message: a.message, Broken: r.broken, OverLimit: r.more, Wake: w.wake(), Calls: []AckCall{}}
		if ack.Reply, err = addPost(tx, post{thread: a.thread, kind: "reply", author: agent, body: a.text, message: a.message, platform: a.platform}); err != nil {
			return err
		}
		if err := keepMaterial(tx, a.thread, agent.ID, r.material); err != nil {
			return err
		}
		if tickets, err = t.door.Admit(tx, orders...); err != nil {
			return err
		}
		for i, ticket := range tickets {
			ack.Calls = append(ack.Calls, ackCall(r.directives[i], i+1, ticket))
			if ticket.Call == calls[i].ID {
				continue
			}
			if err := t.answerAgain(tx, calls[i], ticket, ack, i+1); err != nil {
				return err
			}
		}
		if err := t.conclude(tx, a, &r.result, w, &ack); err != nil {
			return err
		}
		if r.more > 0 {
			note := envelope.Note("%d more directives of this reply were not run: one reply may hold %d.", r.more, MaxDirectives)
			if err := t.send(tx, outgoing{kind: "note", about: ack.Reply, thread: a.thread, body: note}); err != nil {
				return err
			}
		}
		if err := keepAck(tx, a, hash, ack); err != nil {
			return err
		}
		return a.tell(tx, ack)
	})
	if err != nil {
		t.door.Forget(orders...)
		return Ack{}, err
	}
	t.countReply(ack, tickets)
	failpoint.Here("threads.reply-taken")
	t.door.Run(tickets...)
	return ack, nil
}

// ackCall is what the ticket of a directive says to whoever hands the reply in.
func ackCall(d harvester.Directive, ordinal int, ticket service.Ticket) AckCall {
	c := AckCall{
		Call: ticket.Call, Op: ticket.Op, Form: string(d.Form), Ordinal: ordinal, State: ticket.State, Rule: ticket.Rule,
		Start: d.Start, End: d.End, Approval: ticket.Approval,
	}
	if ticket.Outcome != nil {
		c.Fault = ticket.Outcome.Fault
	}
	return c
}

// countReply counts what a reply has come to.
func (t *Threads) countReply(ack Ack, tickets []service.Ticket) {
	if ack.Duplicate {
		t.counts.add("duplicates", "", 1)
		if ack.Edited {
			t.counts.add("edits", "", 1)
		}
		return
	}
	t.counts.add("broken directives", "", ack.Broken)
	t.counts.add("directives over the limit", "", ack.OverLimit)
	if ack.Verdict != "" {
		t.counts.add("verdicts", string(ack.Verdict), 1)
	}
	for _, ticket := range tickets {
		if ticket.Replayed {
			t.counts.add("repeated orders", "", 1)
		}
	}
}

// tell calls what the adaptor adds to the transaction.
func (a arrival) tell(tx journal.Tx, ack Ack) error {
	if a.also == nil {
		return nil
	}
	return a.also(tx, ack)
}

// callsOf makes calls of the directives of a. Their idempotency keys derive from where
// they stand, so that no redelivery can make them run again.
func callsOf(agent ops.Identity, a arrival, r reading, w weighed) []ops.Call {
	calls := make([]ops.Call, len(r.directives))
	for i, d := range r.directives {
		source := fmt.Sprintf("%s#%d", a.source, i+1)
		from := ops.Origin{Source: source, Answer: &ops.Address{Adaptor: a.adaptor, Opaque: a.thread}, Root: source}
		w.of[i].stamp(&from)
		calls[i] = ops.Call{
			ID: ops.NewCallID(), Op: ops.OpName(d.Op), By: agent, Params: json.RawMessage(d.Params), Key: source,
			From: from, Evidence: w.evidence[i],
		}
	}
	return calls
}

// answerAgain posts what an order leads to that repeats an earlier call under the same
// wake (rule R5): nothing runs, and no outcome of its own will come.
func (t *Threads) answerAgain(tx journal.Tx, call ops.Call, ticket service.Ticket, ack Ack, ordinal int) error {
	o := outgoing{kind: "note", about: fmt.Sprintf("%s#%d", ack.Reply, ordinal), thread: ack.Thread, call: ticket.Call}
	op, id := string(ticket.Op), string(ticket.Call)
	switch {
	case ticket.State == ops.Parked:
		o.body = envelope.Note("%s is the same order as %s, which waits for approval %s already. Nothing has run.", op, id, string(ticket.Approval))
	case ticket.Replayed && ticket.Outcome != nil:
		call.ID, call.Op = ticket.Call, ticket.Op
		told, _ := service.Told(t.door.Policy(), call.By, *ticket.Outcome)
		o.kind = "result"
		o.body = envelope.Note("%s is the same order as %s, so nothing ran again. This came of it then:", op, id) + envelope.Outcome(call, told)
	case ticket.Outcome != nil && ticket.Outcome.Fault != nil:
		o.body = envelope.Note("%s did not run: %s", op, ticket.Outcome.Fault.Error())
	default:
		o.body = envelope.Note("%s is the same order as %s, so nothing ran again.", op, id)
	}
	return t.send(tx, o)
}

// maySpeak decides whether by may hand in a reply of agent.
func maySpeak(tx journal.Tx, policy *access.Policy, by, agent ops.Identity) error {
	who, known, err := access.Live(tx, agent.ID)
	if err != nil {
		return err
	}
	enrolled, err := access.Enrolled(tx, by.ID, agent.ID)
	if err != nil {
		return err
	}
	speaker, live, err := access.Live(tx, by.ID)
	if err != nil {
		return err
	}
	allowed := live && speaker == by && policy.Decide(access.Request{By: by, Action: access.Reply, Owner: agent.ID, Enrolled: enrolled}).Allowed
	// One fault for all: who may not speak for an agent need not learn that it exists.
	if !allowed || !known || who != agent {
		return ops.Faultf(ops.NotPermitted, "%s may not hand in replies of agent %q, or there is no such agent", by, agent.ID)
	}
	return nil
}

// roomOf returns the room of a thread, "" if there is no such thread. A thread never
// changes its room.
func (t *Threads) roomOf(ctx context.Context, thread string) (room string, err error) {
	err = t.store.View(ctx, func(tx journal.Tx) error {
		return tx.Query(`SELECT room FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&room) }, thread)
	})
	return room, err
}

// takesPart returns NotFound unless who takes part in thread.
func takesPart(tx journal.Tx, thread string, who ops.IdentityID) error {
	n := 0
	if err := tx.Query(`SELECT count(*) FROM participant WHERE thread = $1 AND identity = $2`,
		func(scan func(...any) error) error { return scan(&n) }, thread, string(who)); err != nil {
		return err
	}
	if n == 0 {
		return unknownThread(thread)
	}
	return nil
}

// earlierAck looks for the acknowledgement of a reply with the same message id. An
// edit is recorded and never run.
func earlierAck(tx journal.Tx, a arrival, hash string) (ack Ack, found bool, err error) {
	var stored, storedHash string
	err = tx.Query(`SELECT ack, text_hash FROM reply WHERE adaptor = $1 AND room = $2 AND agent = $3 AND message = $4`,
		func(scan func(...any) error) error { return scan(&stored, &storedHash) }, a.adaptor, a.room, string(a.agent), a.message)
	if err != nil || stored == "" {
		return Ack{}, false, err
	}
	if err := json.Unmarshal([]byte(stored), &ack); err != nil {
		return Ack{}, false, fmt.Errorf("acknowledgement of message %q: %w", a.message, err)
	}
	ack.Duplicate = true
	if hash != storedHash {
		ack.Edited = true
		err = event(tx, ack.Thread, "reply.edited", map[string]any{"thread": ack.Thread, "message": a.message, "reply": ack.Reply, "sha256": hash})
	}
	return ack, true, err
}

func keepAck(tx journal.Tx, a arrival, hash string, ack Ack) error {
	b, err := json.Marshal(ack)
	if err != nil {
		return fmt.Errorf("acknowledgement of message %q: %w", a.message, err)
	}
	if _, err := tx.Exec(`INSERT INTO reply (adaptor, room, agent, message, thread, text_hash, ack) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		a.adaptor, ack.Room, string(a.agent), a.message, ack.Thread, hash, string(b)); err != nil {
		return err
	}
	return event(tx, ack.Thread, "reply.taken", map[string]any{
		"thread": ack.Thread, "message": a.message, "reply": ack.Reply, "agent": a.agent,
		"calls": len(ack.Calls), "broken": ack.Broken, "over_limit": ack.OverLimit, "wake": ack.Wake, "verdict": ack.Verdict,
	})
}

func textHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// NewThreadID returns a fresh id of a thread, "t-" and a lower-case ULID.
func NewThreadID() string { return "t-" + strings.ToLower(ulid.Make().String()) }

func newPostID() string { return "r-" + strings.ToLower(ulid.Make().String()) }

func unknownThread(id string) *ops.Fault {
	if len(id) > 64 || !printable(id) {
		return ops.Faultf(ops.NotFound, "there is no such thread")
	}
	return ops.Faultf(ops.NotFound, "there is no thread %q", id)
}

// event appends to the stream of a thread. Bodies say what happened, not what was
// written.
func event(tx journal.Tx, thread, kind string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append("thread/"+thread, journal.Any, kind, b)
}
