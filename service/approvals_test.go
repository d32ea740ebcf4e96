package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

// files stands for what a program is made of: an op with side effects that rests on
// them, and counts its runs.
type files struct {
	mu     sync.Mutex
	things map[string]string
	err    error
	ran    atomic.Int64
	calls  []ops.Call
}

func newFiles() *files {
	return &files{things: map[string]string{"argv": "sha256:0a", "program": "sha256:0b"}}
}

func (f *files) Bind(ops.Call) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	things := make(map[string]string)
	for k, v := range f.things {
		things[k] = v
	}
	return things, f.err
}

func (f *files) set(change func(map[string]string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.things)
}

func (f *files) Execute(ctx context.Context, c ops.Call) (ops.Outcome, error) {
	f.ran.Add(1)
	f.mu.Lock()
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	return fine(ctx, c)
}

func (f *files) op(name ops.OpName) ops.Bound {
	b := write(name, nil)
	b.Executor = f
	return b
}

// park orders op by who and returns the ticket of a call that waits.
func (h *house) park(c ops.Call) Ticket {
	h.t.Helper()
	ticket, err := h.door.Submit(h.t.Context(), c)
	if err != nil {
		h.t.Fatalf("submit %s: %v", c.Op, err)
	}
	if ticket.State != ops.Parked || ticket.Approval == "" || ticket.Outcome != nil {
		h.t.Fatalf("%s by %s: got %+v, want it parked", c.Op, c.By, ticket)
	}
	return ticket
}

func (h *house) await(id ops.CallID) ops.Outcome {
	h.t.Helper()
	o, err := h.door.Await(h.t.Context(), id)
	if err != nil {
		h.t.Fatalf("await %s: %v", id, err)
	}
	return o
}

func (h *house) swap(bound ...ops.Bound) {
	h.t.Helper()
	r, err := ops.New(bound...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.door.registry.Swap(r)
}

func (h *house) policy(text string) {
	h.t.Helper()
	p, err := access.ParsePolicy("test", []byte(text))
	if err != nil {
		h.t.Fatal(err)
	}
	h.door.policy.Swap(p)
}

func (h *house) add(who ops.Identity, agents ...ops.IdentityID) ops.Identity {
	h.t.Helper()
	if _, err := h.directory.Add(context.Background(), who, agents...); err != nil {
		h.t.Fatal(err)
	}
	return who
}

func codeOf(err error) ops.Code {
	if f := AsFault(err); f != nil {
		return f.Code
	}
	return ""
}

var bea = ops.Identity{ID: "bea", Role: ops.Operator}

func TestApproval(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	c := call(scout, "t.write")
	c.Params, c.From.Answer = json.RawMessage(`{"n": 7}`), &ops.Address{Adaptor: "rooms", Opaque: "t-1"}
	ticket := h.park(c)
	if f.ran.Load() != 0 {
		t.Fatal("a parked call ran")
	}
	if got := h.kinds(ticket.Call); !slices.Equal(got, []string{"approval.requested"}) {
		t.Errorf("events %q", got)
	}
	a, err := h.door.Approval(t.Context(), ada, ticket.Approval)
	if err != nil {
		t.Fatal(err)
	}
	if a.State != Pending || a.By != scout || a.Op != "t.write" || a.Summary != "A read." || !a.SideEffecting || string(a.Params) != `{"n":7}` ||
		a.Bound.Answer != "rooms t-1" || !cmp.Equal(a.Bound.RestsOn, f.things) || a.Bound.Identity != "agent/scout" || a.Hash != a.Bound.hash() || a.ExpiresAt != a.Bound.ExpiresAt {
		t.Errorf("shown as %+v", a)
	}

	a, err = h.door.Approve(t.Context(), ada, ticket.Approval)
	if err != nil || a.State != Approved || a.DecidedBy == nil || *a.DecidedBy != ada {
		t.Fatalf("approve: %+v, %v", a, err)
	}
	if o := h.await(ticket.Call); o.State != ops.Succeeded {
		t.Fatalf("the approved call: %+v", o)
	}
	if got := h.kinds(ticket.Call); !slices.Equal(got, []string{"approval.requested", "approval.approved", "call.received", "call.running", "call.settled"}) {
		t.Errorf("events %q", got)
	}
	if f.ran.Load() != 1 || f.calls[0].From.Grant != string(ticket.Approval) || f.calls[0].By != scout || string(f.calls[0].Params) != `{"n":7}` {
		t.Errorf("ran %d times: %+v", f.ran.Load(), f.calls)
	}

	// It is used. Once more changes nothing, and nobody can take it back.
	for _, by := range []ops.Identity{ada, h.add(bea)} {
		again, err := h.door.Approve(t.Context(), by, ticket.Approval)
		if err != nil || !cmp.Equal(again, a) {
			t.Errorf("%s approves again: %+v, %v, want %+v", by, again, err, a)
		}
		if _, err := h.door.Deny(t.Context(), by, ticket.Approval, ""); codeOf(err) != ops.Conflict {
			t.Errorf("%s denies what was approved: %v", by, err)
		}
	}
	if f.ran.Load() != 1 {
		t.Errorf("ran %d times", f.ran.Load())
	}
}

func TestDenial(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	ticket := h.park(call(scout, "t.write"))
	for _, reason := range []string{strings.Repeat("x", maxReason+1), "\xff", "a\x00b", "\x1b[2J"} {
		if _, err := h.door.Deny(t.Context(), ada, ticket.Approval, reason); codeOf(err) != ops.BadRequest {
			t.Errorf("reason %.20q: %v", reason, err)
		}
	}
	a, err := h.door.Deny(t.Context(), ada, ticket.Approval, "not on a Friday")
	if err != nil || a.State != Denied || a.Reason != "not on a Friday" {
		t.Fatalf("deny: %+v, %v", a, err)
	}
	o := h.await(ticket.Call)
	if o.State != ops.Failed || o.Fault.Code != ops.ApprovalDenied || !strings.Contains(o.Fault.Message, "operator/ada") || !strings.Contains(o.Fault.Message, "Friday") {
		t.Errorf("the denied call: %+v", o.Fault)
	}
	if again, err := h.door.Deny(t.Context(), ada, ticket.Approval, "other words"); err != nil || !cmp.Equal(again, a) {
		t.Errorf("denied again: %+v, %v", again, err)
	}
	if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); codeOf(err) != ops.Conflict {
		t.Errorf("approved after the denial: %v", err)
	}
	if got := h.kinds(ticket.Call); !slices.Equal(got, []string{"approval.requested", "approval.denied", "call.settled"}) {
		t.Errorf("events %q", got)
	}
	if f.ran.Load() != 0 {
		t.Error("a denied call ran")
	}
}

// Who may decide. Self-approval is refused by default (x49).
func TestWhoMayDecide(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	other, relay := h.add(ops.Identity{ID: "other", Role: ops.Agent}), h.add(ops.Identity{ID: "relay", Role: ops.Bridge}, "scout")
	gone := h.add(ops.Identity{ID: "gone", Role: ops.Operator})
	if _, err := h.directory.Revoke(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	const opsAsk = `permit (principal is Operator, action, resource) unless { action == Action::"run" };
		forbid (principal, action == Action::"approve", resource) when { context.own };`
	for _, tc := range []struct {
		name, policy string
		owner, by    ops.Identity
		id           ApprovalID
		want         ops.Code
	}{
		{"its own", "", scout, scout, "", ops.NotPermitted},
		{"another agent's", "", scout, other, "", ops.NotFound},
		{"its agent's", "", scout, relay, "", ops.NotPermitted},
		{"of nobody", "", scout, ops.Identity{}, "", ops.NotFound},
		{"by who was revoked", "", scout, gone, "", ops.NotPermitted},
		{"by who is not that role", "", scout, ops.Identity{ID: "scout", Role: ops.Operator}, "", ops.NotPermitted},
		{"that is none", "", scout, ada, "a-none", ops.NotFound},
		{"with a strange id", "", scout, ada, "\x1b'; DROP TABLE approval", ops.NotFound},
		{"an operator's own", opsAsk, ada, ada, "", ops.NotPermitted},
		{"one's own, permitted", string(access.DefaultPolicyText()) + `permit (principal is Agent, action == Action::"approve", resource);`, scout, scout, "", ops.NotPermitted},
		{"another's, permitted", string(access.DefaultPolicyText()) + `permit (principal == Agent::"other", action == Action::"approve", resource == Identity::"scout");`, scout, other, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.t = t
			if tc.policy == "" {
				tc.policy = string(access.DefaultPolicyText())
			}
			h.policy(tc.policy)
			ticket := h.park(call(tc.owner, "t.write"))
			if tc.id == "" {
				tc.id = ticket.Approval
			}
			if tc.want != "" {
				if _, err := h.door.Deny(t.Context(), tc.by, tc.id, ""); codeOf(err) != tc.want {
					t.Errorf("deny: got %v, want %q", err, tc.want)
				}
			}
			before := f.ran.Load()
			_, err := h.door.Approve(t.Context(), tc.by, tc.id)
			if codeOf(err) != tc.want {
				t.Errorf("approve: got %v, want %q", err, tc.want)
			}
			if tc.want != "" {
				if a, err := h.door.Approval(t.Context(), ada, ticket.Approval); err != nil || a.State != Pending || f.ran.Load() != before {
					t.Errorf("it is %q now, %v, and %d ran", a.State, err, f.ran.Load()-before)
				}
				return
			}
			h.await(ticket.Call)
		})
	}
}

// What was approved is what runs, or nothing does (x47).
func TestVoid(t *testing.T) {
	const mayAsk = `permit (principal is Operator, action, resource);
		permit (principal is Agent, action == Action::"ask", resource);`
	changed := func(op ops.Bound) ops.Bound { op.Op.Timeout = time.Minute; return op }
	for _, tc := range []struct {
		name   string
		change func(h *house, f *files, t Ticket)
		what   string // "" for what does not matter
		is     string
	}{
		{"nothing", func(*house, *files, Ticket) {}, "", ""},
		{"the same policy, loaded again", func(h *house, _ *files, _ Ticket) { h.policy(string(access.DefaultPolicyText())) }, "", ""},
		{"a policy that still lets it ask", func(h *house, _ *files, _ Ticket) { h.policy(mayAsk) }, "policy", "sha256:"},
		{"a policy that lets it run", func(h *house, _ *files, _ Ticket) {
			h.policy(mayAsk + `permit (principal is Agent, action == Action::"run", resource);`)
		}, "policy", "sha256:"},
		{"another op", func(h *house, f *files, _ Ticket) { h.swap(f.op("t.write"), read("t.new", fine)) }, "", ""},
		{"the script", func(_ *house, f *files, _ Ticket) { f.set(func(m map[string]string) { m["program"] = "sha256:ff" }) }, "program", "sha256:ff"},
		{"the script is gone", func(_ *house, f *files, _ Ticket) { f.set(func(m map[string]string) { delete(m, "program") }) }, "program", ""},
		{"one more file", func(_ *house, f *files, _ Ticket) { f.set(func(m map[string]string) { m["lib"] = "sha256:ff" }) }, "lib", "sha256:ff"},
		{"a file that cannot be read", func(_ *house, f *files, _ Ticket) {
			f.mu.Lock()
			f.err = errors.New("no such file")
			f.mu.Unlock()
		}, "rests_on", "cannot be read"},
		{"the op's definition", func(h *house, f *files, _ Ticket) { h.swap(changed(f.op("t.write"))) }, "definition", "sha256:"},
		{"the op is gone", func(h *house, f *files, _ Ticket) { h.swap(f.op("t.other")) }, "definition", ""},
		{"its name is another's alias", func(h *house, f *files, _ Ticket) {
			b := f.op("t.other")
			b.Op.Aliases = []ops.OpName{"t.write"}
			h.swap(b)
		}, "definition", ""},
		{"the executor no longer says", func(h *house, f *files, _ Ticket) { h.swap(write("t.write", f.Execute)) }, "argv", ""},
		{"the policy", func(h *house, _ *files, _ Ticket) { h.policy(`permit (principal is Operator, action, resource);`) }, "policy", "sha256:"},
		{"the parameters", func(h *house, _ *files, t Ticket) {
			h.exec(`UPDATE call SET params = '{"n":8}' WHERE id = $1`, string(t.Call))
		}, "params", "sha256:"},
		{"where the answer goes", func(h *house, _ *files, t Ticket) {
			h.exec(`UPDATE call SET origin = '{"source":"test","answer":{"adaptor":"rooms","opaque":"t-2"}}' WHERE id = $1`, string(t.Call))
		}, "answer", "rooms t-2"},
		{"who ordered it", func(h *house, _ *files, t Ticket) {
			h.exec(`UPDATE call SET by_id = 'other' WHERE id = $1`, string(t.Call))
		}, "identity", "agent/other"},
		{"the record of it", func(h *house, _ *files, t Ticket) {
			h.exec(`UPDATE approval SET bound = replace(bound, 'sha256:0b', 'sha256:ff') WHERE id = $1`, string(t.Approval))
		}, "record", "sha256:"},
		{"its expiry", func(h *house, _ *files, t Ticket) {
			h.exec(`UPDATE approval SET expires_at = expires_at + 1000 WHERE id = $1`, string(t.Approval))
		}, "expires_at", "20"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFiles()
			h := newHouse(t, f.op("t.write"))
			h.add(ops.Identity{ID: "other", Role: ops.Agent})
			ticket := h.park(call(scout, "t.write"))
			tc.change(h, f, ticket)
			_, err := h.door.Approve(t.Context(), ada, ticket.Approval)
			o := h.await(ticket.Call)
			if tc.what == "" {
				if err != nil || o.State != ops.Succeeded || f.ran.Load() != 1 {
					t.Errorf("approve: %v, %+v, ran %d times", err, o, f.ran.Load())
				}
				return
			}
			if f.ran.Load() != 0 {
				t.Fatal("it ran")
			}
			if codeOf(err) != ops.ApprovalVoid || o.State != ops.Failed || o.Fault.Code != ops.ApprovalVoid {
				t.Fatalf("approve: %v, the call %+v", err, o)
			}
			a, err := h.door.Approval(t.Context(), ada, ticket.Approval)
			if err != nil || a.State != Void {
				t.Fatalf("shown as %+v, %v", a, err)
			}
			i := slices.IndexFunc(a.Changed, func(c Change) bool { return c.What == tc.what })
			if i < 0 || tc.is == "" != (a.Changed[i].Is == "") || !strings.HasPrefix(a.Changed[i].Is, tc.is) || a.Changed[i].Was == a.Changed[i].Is {
				t.Fatalf("changed: %+v, want %s to be %q", a.Changed, tc.what, tc.is)
			}
			shown, _ := json.Marshal(a.Changed)
			details, _ := json.Marshal(o.Fault.Details["changed"])
			var told []Change
			if err := json.Unmarshal(details, &told); err != nil || !cmp.Equal(told, a.Changed) {
				t.Errorf("the fault says %s, the approval %s", details, shown)
			}
			if audit := h.event(ticket.Call, "approval.void"); !strings.Contains(audit, string(shown)) || !strings.Contains(audit, `"decided_by":{"id":"ada"`) {
				t.Errorf("the event is %s", audit)
			}
			// Void is void, also when all is as it was.
			f.set(func(m map[string]string) { clear(m); m["argv"], m["program"] = "sha256:0a", "sha256:0b" })
			if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); codeOf(err) != ops.ApprovalVoid || f.ran.Load() != 0 {
				t.Errorf("approve again: %v, ran %d times", err, f.ran.Load())
			}
		})
	}
}

func (h *house) exec(sql string, args ...any) {
	h.t.Helper()
	if err := h.store.Update(context.Background(), func(tx journal.Tx) error {
		n, err := tx.Exec(sql, args...)
		if err == nil && n != 1 {
			return fmt.Errorf("%d rows", n)
		}
		return err
	}); err != nil {
		h.t.Fatalf("%s: %v", sql, err)
	}
}

// event is the body of the event of that kind in a call's stream, "" if there is none.
func (h *house) event(id ops.CallID, kind string) (body string) {
	h.t.Helper()
	if err := h.store.Stream(h.t.Context(), stream(id), 0, func(e journal.Event) error {
		if e.Kind == kind {
			body = string(e.Body)
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	return body
}

// A file that is swapped when the call is approved and waits for room (x47).
func TestSwappedBeforeTheStart(t *testing.T) {
	for _, effect := range []string{"write", "read"} {
		t.Run(effect, func(t *testing.T) {
			f, release := newFiles(), make(chan struct{})
			slow := read("t.slow", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
				<-release
				return fine(ctx, c)
			})
			op := f.op("t.op")
			op.Op.SideEffecting = effect == "write"
			h := newHouse(t, slow, op)
			h.policy(`permit (principal is Operator, action, resource);
				permit (principal is Agent, action == Action::"run", resource == Op::"t.slow");
				permit (principal is Agent, action == Action::"ask", resource);`)
			var before []ops.CallID
			for range 4 { // scout's share
				ticket, err := h.door.Submit(t.Context(), call(scout, "t.slow"))
				if err != nil {
					t.Fatal(err)
				}
				before = append(before, ticket.Call)
			}
			swapped, kept := h.park(call(scout, "t.op")), h.park(call(scout, "t.op"))
			if _, err := h.door.Approve(t.Context(), ada, swapped.Approval); err != nil {
				t.Fatal(err)
			}
			f.set(func(m map[string]string) { m["program"] = "sha256:ff" })
			close(release)
			for _, id := range before {
				h.await(id)
			}
			o := h.await(swapped.Call)
			if o.State != ops.Failed || o.Fault.Code != ops.ApprovalVoid || f.ran.Load() != 0 {
				t.Errorf("the swapped call: %+v, ran %d times", o, f.ran.Load())
			}
			if a, err := h.door.Approval(t.Context(), ada, swapped.Approval); err != nil || a.State != Void ||
				!cmp.Equal(a.Changed, []Change{{"program", "sha256:0b", "sha256:ff"}}) || *a.DecidedBy != ada {
				t.Errorf("shown as %+v, %v", a, err)
			}
			if audit := h.event(swapped.Call, "approval.void"); !strings.Contains(audit, "sha256:0b") || !strings.Contains(audit, "sha256:ff") {
				t.Errorf("the event is %s", audit)
			}
			f.set(func(m map[string]string) { m["program"] = "sha256:0b" })
			if _, err := h.door.Approve(t.Context(), ada, kept.Approval); err != nil {
				t.Fatal(err)
			}
			if o := h.await(kept.Call); o.State != ops.Succeeded || f.ran.Load() != 1 {
				t.Errorf("the other call: %+v, ran %d times", o, f.ran.Load())
			}
		})
	}
}

// An approval is for one call and for no other (x48).
func TestEachCallNeedsItsOwn(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	other := h.add(ops.Identity{ID: "other", Role: ops.Agent})
	order := func(by ops.Identity, params string) ops.Call {
		c := call(by, "t.write")
		c.Params = json.RawMessage(params)
		return c
	}
	first := h.park(order(scout, `{"n":1}`))
	if _, err := h.door.Approve(t.Context(), ada, first.Approval); err != nil {
		t.Fatal(err)
	}
	h.await(first.Call)
	h.park(order(scout, `{"n":1}`))
	h.park(order(scout, `{"n":2}`))
	h.park(order(other, `{"n":1}`))
	again := f.op("t.write")
	again.Op.Timeout = time.Minute
	h.swap(again)
	h.park(order(scout, `{"n":1}`))
	if f.ran.Load() != 1 {
		t.Errorf("ran %d times", f.ran.Load())
	}
}

// Nobody answers (x49): the call is never run, and a late answer is told so.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFiles()
		h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), f.op("t.write"))
		h.people()
		h.start()
		first := h.park(call(scout, "t.write"))
		time.Sleep(30 * time.Minute)
		second := h.park(call(scout, "t.write"))
		time.Sleep(30*time.Minute - time.Second)
		synctest.Wait()
		state := func(id ApprovalID) ApprovalState {
			t.Helper()
			a, err := h.door.Approval(t.Context(), ada, id)
			if err != nil {
				t.Fatal(err)
			}
			return a.State
		}
		if got := state(first.Approval); got != Pending {
			t.Errorf("%s a second before its time", got)
		}
		if o := h.await(first.Call); o.State != ops.Failed || o.Fault.Code != ops.ApprovalExpired {
			t.Errorf("when its time has come: %+v", o)
		}
		if got := state(second.Approval); got != Pending {
			t.Errorf("the other is %s", got)
		}
		if _, err := h.door.Approve(t.Context(), ada, first.Approval); codeOf(err) != ops.ApprovalExpired {
			t.Errorf("approved too late: %v", err)
		}
		if _, err := h.door.Deny(t.Context(), ada, first.Approval, ""); codeOf(err) != ops.ApprovalExpired {
			t.Errorf("denied too late: %v", err)
		}
		if _, err := h.door.Approve(t.Context(), ada, second.Approval); err != nil {
			t.Errorf("in time: %v", err)
		}
		h.await(second.Call)
		if got := h.kinds(first.Call); !slices.Equal(got, []string{"approval.requested", "approval.expired", "call.settled"}) {
			t.Errorf("events %q", got)
		}
		if f.ran.Load() != 1 {
			t.Errorf("ran %d times", f.ran.Load())
		}
		h.close()
	})
}

// The moment decides, not the sweeper: an approval that is due and not swept is expired.
func TestExpiryDoesNotWaitForTheSweeper(t *testing.T) {
	for _, approve := range []bool{true, false} {
		f := newFiles()
		h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"), f.op("t.write"))
		h.people() // and nobody starts the door
		ticket := h.park(call(scout, "t.write"))
		h.exec(`UPDATE approval SET expires_at = requested_at - 1 WHERE id = $1`, string(ticket.Approval))
		decide := h.door.Approve
		if !approve {
			decide = func(ctx context.Context, by ops.Identity, id ApprovalID) (ApprovalShowing, error) {
				return h.door.Deny(ctx, by, id, "no")
			}
		}
		if _, err := decide(t.Context(), ada, ticket.Approval); codeOf(err) != ops.ApprovalExpired {
			t.Errorf("approve %v: %v", approve, err)
		}
		if a, err := h.door.Approval(t.Context(), ada, ticket.Approval); err != nil || a.State != Expired || a.DecidedBy != nil || a.Reason != "" || f.ran.Load() != 0 {
			t.Errorf("approve %v: %+v, %v", approve, a, err)
		}
		h.close()
	}
}

// A parked call waits over a restart, and what has become due meanwhile expires.
func TestRestartWhileParked(t *testing.T) {
	f := newFiles()
	path := filepath.Join(t.TempDir(), "journal.db")
	h := openHouse(t, path, f.op("t.write"))
	h.people()
	h.start()
	kept, due, changed := h.park(call(scout, "t.write")), h.park(call(scout, "t.write")), h.park(call(scout, "t.write"))
	h.exec(`UPDATE approval SET expires_at = requested_at - 1 WHERE id = $1`, string(due.Approval))
	h.close()

	h = openHouse(t, path, f.op("t.write"))
	h.start()
	if o := h.await(due.Call); o.Fault == nil || o.Fault.Code != ops.ApprovalExpired {
		t.Errorf("due while nobody served: %+v", o)
	}
	if _, err := h.door.Approve(t.Context(), ada, kept.Approval); err != nil {
		t.Errorf("approved after the restart: %v", err)
	}
	if o := h.await(kept.Call); o.State != ops.Succeeded || f.ran.Load() != 1 {
		t.Errorf("%+v, ran %d times", o, f.ran.Load())
	}
	h.close()

	again := f.op("t.write")
	again.Op.Timeout = time.Minute
	h = openHouse(t, path, again)
	h.start()
	if _, err := h.door.Approve(t.Context(), ada, kept.Approval); err != nil || f.ran.Load() != 1 {
		t.Errorf("approved again after another restart: %v, ran %d times", err, f.ran.Load())
	}
	if _, err := h.door.Approve(t.Context(), ada, changed.Approval); codeOf(err) != ops.ApprovalVoid || f.ran.Load() != 1 {
		t.Errorf("an op file that changed over a restart: %v, ran %d times", err, f.ran.Load())
	}
	h.close()
}

// A gateway that dies between the approval and the start has not run the call, says so,
// and does not run it later.
func TestCrashAfterApproval(t *testing.T) {
	f, release := newFiles(), make(chan struct{})
	slow := read("t.slow", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		select {
		case <-release:
		case <-ctx.Done():
			return ops.Outcome{}, ctx.Err()
		}
		return fine(ctx, c)
	})
	path := filepath.Join(t.TempDir(), "journal.db")
	h := openHouse(t, path, slow, f.op("t.write"))
	h.people()
	h.start()
	for range 4 {
		if _, err := h.door.Submit(t.Context(), call(scout, "t.slow")); err != nil {
			t.Fatal(err)
		}
	}
	ticket := h.park(call(scout, "t.write"))
	if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = h.door.Close(ended)
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}
	h = openHouse(t, path, slow, f.op("t.write"))
	close(release)
	h.start()
	if o := h.await(ticket.Call); o.State != ops.Failed || o.Fault.Code != ops.NotStarted || f.ran.Load() != 0 {
		t.Errorf("%+v, ran %d times", o, f.ran.Load())
	}
	if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); err != nil || f.ran.Load() != 0 {
		t.Errorf("approved again: %v, ran %d times", err, f.ran.Load())
	}
	h.close()
}

// Any number of deciders: one decision holds, and what is approved runs once.
func TestDecidersAtOnce(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	h.add(bea)
	for range 20 {
		before := f.ran.Load()
		ticket := h.park(call(scout, "t.write"))
		var approved, denied atomic.Int64
		var deciders sync.WaitGroup
		for i := range 8 {
			deciders.Go(func() {
				by := []ops.Identity{ada, bea}[i%2]
				if i%4 == 3 {
					if _, err := h.door.Deny(context.Background(), by, ticket.Approval, ""); err == nil {
						denied.Add(1)
					} else if codeOf(err) != ops.Conflict {
						t.Errorf("deny: %v", err)
					}
					return
				}
				if _, err := h.door.Approve(context.Background(), by, ticket.Approval); err == nil {
					approved.Add(1)
				} else if codeOf(err) != ops.Conflict {
					t.Errorf("approve: %v", err)
				}
			})
		}
		deciders.Wait()
		o := h.await(ticket.Call)
		ran := f.ran.Load() - before
		switch {
		case approved.Load() == 6 && denied.Load() == 0:
			if o.State != ops.Succeeded || ran != 1 {
				t.Errorf("approved: %+v, ran %d times", o, ran)
			}
		case approved.Load() == 0 && denied.Load() == 2:
			if o.Fault == nil || o.Fault.Code != ops.ApprovalDenied || ran != 0 {
				t.Errorf("denied: %+v, ran %d times", o, ran)
			}
		default:
			t.Errorf("%d approved and %d denied", approved.Load(), denied.Load())
		}
	}
}

// A key leads to the call that is parked, and later to what became of it.
func TestKeyOfAParkedCall(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	keyed := func(key, params string) ops.Call {
		c := call(scout, "t.write")
		c.Key, c.Params = key, json.RawMessage(params)
		return c
	}
	for _, approve := range []bool{true, false} {
		key := fmt.Sprint("k", approve)
		first := h.park(keyed(key, `{"n":1}`))
		before := h.calls()
		again := h.park(keyed(key, `{ "n": 1 }`))
		if again.Call != first.Call || again.Approval != first.Approval || !again.Replayed || first.Replayed {
			t.Errorf("again: %+v, want %+v, replayed", again, first)
		}
		if _, o := h.run(keyed(key, `{"n":2}`)); o.Fault == nil || o.Fault.Code != ops.KeyReused {
			t.Errorf("another body: %+v", o)
		}
		if h.calls() != before {
			t.Error("a repeat is another call")
		}
		ran := f.ran.Load()
		if approve {
			if _, err := h.door.Approve(t.Context(), ada, first.Approval); err != nil {
				t.Fatal(err)
			}
			ran++
		} else if _, err := h.door.Deny(t.Context(), ada, first.Approval, ""); err != nil {
			t.Fatal(err)
		}
		want := h.await(first.Call)
		ticket, o := h.run(keyed(key, `{"n":1}`))
		if !ticket.Replayed || ticket.Call != first.Call || o.State != want.State || f.ran.Load() != ran {
			t.Errorf("replayed: %+v %+v, want %+v; ran %d times, want %d", ticket, o, want, f.ran.Load(), ran)
		}
	}
}

func TestTooManyWait(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	h.door.approvals.limits.Most, h.door.approvals.limits.Share = 5, 3
	other := h.add(ops.Identity{ID: "other", Role: ops.Agent})
	var tickets []Ticket
	for range 3 {
		tickets = append(tickets, h.park(call(scout, "t.write")))
	}
	refused := func(by ops.Identity, says string) {
		t.Helper()
		before := h.calls()
		_, err := h.door.Submit(t.Context(), call(by, "t.write"))
		if codeOf(err) != ops.Busy || !strings.Contains(err.Error(), says) || h.calls() != before {
			t.Errorf("%s: %v, and %d calls written; want BUSY, %q", by, err, h.calls()-before, says)
		}
	}
	refused(scout, "3 calls of agent/scout")
	h.park(call(other, "t.write"))
	h.park(call(other, "t.write"))
	refused(other, "5 calls wait for an approval")
	// Those that are decided make room.
	if _, err := h.door.Deny(t.Context(), ada, tickets[0].Approval, ""); err != nil {
		t.Fatal(err)
	}
	h.park(call(other, "t.write"))
}

func TestApprovalNeedsRoomInLine(t *testing.T) {
	f, release := newFiles(), make(chan struct{})
	h := newHouse(t, f.op("t.write"), read("t.slow", func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		<-release
		return fine(ctx, c)
	}))
	ticket := h.park(call(scout, "t.write"))
	var waiting []ops.CallID
	for range 24 { // scout's share
		slow, err := h.door.Submit(t.Context(), call(scout, "t.slow"))
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, slow.Call)
	}
	if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); codeOf(err) != ops.Busy {
		t.Errorf("approved without room: %v", err)
	}
	close(release)
	for _, id := range waiting {
		h.await(id)
	}
	for {
		_, err := h.door.Approve(t.Context(), ada, ticket.Approval)
		if codeOf(err) == ops.Busy { // settled is a moment before off the books
			continue
		}
		if err != nil {
			t.Errorf("approved with room: %v", err)
		}
		break
	}
	if o := h.await(ticket.Call); o.State != ops.Succeeded {
		t.Errorf("%+v", o)
	}
}

func TestCancelParked(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	other := h.add(ops.Identity{ID: "other", Role: ops.Agent})
	for _, by := range []ops.Identity{scout, ada} {
		ticket := h.park(call(scout, "t.write"))
		if _, err := h.door.Cancel(t.Context(), other, ticket.Call); codeOf(err) != ops.NotFound {
			t.Errorf("another agent cancels it: %v", err)
		}
		state, err := h.door.Cancel(t.Context(), by, ticket.Call)
		if err != nil || state != ops.Cancelled {
			t.Errorf("%s cancels it: %s, %v", by, state, err)
		}
		if o := h.await(ticket.Call); o.State != ops.Cancelled || o.Fault.Details["started"] != false {
			t.Errorf("cancelled: %+v", o)
		}
		if a, err := h.door.Approval(t.Context(), scout, ticket.Approval); err != nil || a.State != Void || *a.DecidedBy != by {
			t.Errorf("shown as %+v, %v", a, err)
		}
		if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); codeOf(err) != ops.Conflict || f.ran.Load() != 0 {
			t.Errorf("approved after that: %v", err)
		}
		if got := h.kinds(ticket.Call); !slices.Equal(got, []string{"approval.requested", "call.cancel_requested", "approval.void", "call.settled"}) {
			t.Errorf("events %q", got)
		}
	}
}

// What an identity asked for ends with it, by itself.
func TestRevokedWhileParked(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	other := h.add(ops.Identity{ID: "other", Role: ops.Agent})
	ticket, kept := h.park(call(scout, "t.write")), h.park(call(other, "t.write"))
	if _, err := h.directory.Revoke(t.Context(), scout.ID); err != nil {
		t.Fatal(err)
	}
	o := h.await(ticket.Call)
	if o.State != ops.Failed || o.Fault.Code != ops.ApprovalVoid || !strings.Contains(o.Fault.Message, "identity") {
		t.Errorf("%+v", o)
	}
	if _, err := h.door.Approve(t.Context(), ada, ticket.Approval); codeOf(err) != ops.ApprovalVoid || f.ran.Load() != 0 {
		t.Errorf("approved: %v", err)
	}
	if a, err := h.door.Approval(t.Context(), ada, kept.Approval); err != nil || a.State != Pending {
		t.Errorf("another's: %+v, %v", a, err)
	}
}

// An op that cannot say what it rests on cannot be approved.
func TestWhatCannotBeBound(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	for _, tc := range []struct {
		err  error
		want ops.Code
	}{
		{errors.New("open /secret/place: no such file"), ops.Conflict},
		{ops.Faultf(ops.NoSandbox, "disabled"), ops.NoSandbox},
	} {
		f.err = tc.err
		_, o := h.run(call(scout, "t.write"))
		if o.State != ops.Refused || o.Fault.Code != tc.want || strings.Contains(o.Fault.Message, "/secret") {
			t.Errorf("%v: %+v", tc.err, o.Fault)
		}
	}
	if !strings.Contains(h.logs.String(), "/secret/place") {
		t.Error("the log does not say why")
	}
}

// Everybody finds in the list what they may see or decide about, and no more.
func TestListOfApprovals(t *testing.T) {
	f := newFiles()
	h := newHouse(t, f.op("t.write"))
	other, relay := h.add(ops.Identity{ID: "other", Role: ops.Agent}), h.add(ops.Identity{ID: "relay", Role: ops.Bridge}, "scout")
	name := map[ApprovalID]string{}
	for i, by := range []ops.Identity{scout, other, scout, other} {
		ticket := h.park(call(by, "t.write"))
		name[ticket.Approval] = fmt.Sprintf("%s%d", by.ID, i)
		if i >= 2 {
			if _, err := h.door.Deny(t.Context(), ada, ticket.Approval, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(by ops.Identity, state string, limit int) (names []string) {
		t.Helper()
		after := ""
		for {
			v, err := h.door.listApprovals(t.Context(), by, Query{Limit: limit, After: after, Filter: map[string]string{"state": state}})
			if err != nil {
				t.Fatal(err)
			}
			var page struct {
				Approvals []ApprovalListing
				Next      string
			}
			b, _ := json.Marshal(v)
			if err := json.Unmarshal(b, &page); err != nil || limit > 0 && len(page.Approvals) > limit {
				t.Fatalf("%s, %v", b, err)
			}
			for _, a := range page.Approvals {
				names = append(names, name[a.Approval])
			}
			if after = page.Next; after == "" {
				return names
			}
		}
	}
	lead := string(access.DefaultPolicyText()) + `permit (principal == Agent::"scout", action == Action::"approve", resource == Identity::"other");`
	for _, tc := range []struct {
		policy string
		by     ops.Identity
		state  string
		want   []string
	}{
		{"", ada, "", []string{"other3", "scout2", "other1", "scout0"}},
		{"", ada, "pending", []string{"other1", "scout0"}},
		{"", scout, "", []string{"scout2", "scout0"}},
		{"", relay, "denied", []string{"scout2"}},
		{"", ops.Identity{}, "", nil},
		{lead, scout, "", []string{"scout2", "other1", "scout0"}},
		{lead, scout, "pending", []string{"other1", "scout0"}},
		{lead, scout, "denied", []string{"scout2"}},
		{lead, other, "", []string{"other3", "other1"}},
	} {
		if tc.policy == "" {
			tc.policy = string(access.DefaultPolicyText())
		}
		h.policy(tc.policy)
		for _, limit := range []int{0, 1, 2} {
			if got := list(tc.by, tc.state, limit); !slices.Equal(got, tc.want) {
				t.Errorf("%s, state %q, pages of %d: got %q, want %q", tc.by, tc.state, limit, got, tc.want)
			}
		}
	}
	if v, err := h.door.listApprovals(t.Context(), ada, Query{Limit: maxPage + 1}); codeOf(err) != ops.BadRequest {
		t.Errorf("a page too large: %v, %v", v, err)
	}
}

// A journal of before there were approvals is brought up to date with its calls.
func TestCallsOfTheFirstSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	first, err := schema.ReadFile("schema/sqlite/00001_calls.sql")
	if err != nil {
		t.Fatal(err)
	}
	old := journal.Schema{Name: "calls", FS: fstest.MapFS{"sqlite/00001_calls.sql": {Data: first}}}
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Schemas: []journal.Schema{access.Schema(), old}})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Update(t.Context(), func(tx journal.Tx) error {
		_, err := tx.Exec(`INSERT INTO call (id, by_id, by_role, op, provider, effect, definition, params, body_hash, idem_key, source, origin,
				evidence, state, owner, outcome, received_at, started_at, settled_at)
			VALUES ('c-1', 'scout', 'agent', 't.read', 'test', 'none', 'd', '{"n":1}', 'h', 'k', 'test', '{"source":"test"}',
				'{"clean":true}', 'succeeded', 'boot', '{"state":"succeeded","result":{"value":7}}', 1000, 2000, 3000)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	f := newFiles()
	h := openHouse(t, path, f.op("t.write"))
	h.people()
	h.start()
	defer h.close()
	c, err := h.door.read(t.Context(), "c-1")
	if err != nil || c.By != scout || c.Op != "t.read" || string(c.Params) != `{"n":1}` || c.Key != "k" || !c.Evidence.Clean ||
		c.State != ops.Succeeded || string(c.outcome.Result.Value) != "7" || c.SettledAt.UnixMilli() != 3000 {
		t.Errorf("the call is now %+v, %v", c, err)
	}
	h.park(call(scout, "t.write"))
}

func TestApprovalLimits(t *testing.T) {
	for _, l := range []ApprovalLimits{{TTL: time.Millisecond}, {TTL: -time.Hour}, {TTL: MaxApprovalTTL + 1}, {Most: -1}, {Share: -1}} {
		if _, err := l.withDefaults(); err == nil {
			t.Errorf("%+v is taken", l)
		}
	}
	if l, err := (ApprovalLimits{}).withDefaults(); err != nil || l != (ApprovalLimits{time.Hour, 1024, 64}) {
		t.Errorf("the defaults are %+v, %v", l, err)
	}
}
