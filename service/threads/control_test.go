package threads

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// park has scout order t.write without a key, and returns the code that decides it.
func (s *square) park(n int) (call ops.CallID, code string) {
	s.t.Helper()
	h := s.receive(s.said("U1", fmt.Sprintf("[TOOL t.write {\"n\":%d}]", n)))
	if len(h.Reply.Calls) != 1 || h.Reply.Calls[0].State != ops.Parked {
		s.t.Fatalf("not parked: %+v", h.Reply)
	}
	s.one(&code, `SELECT code FROM approval_code WHERE approval = $1`, string(h.Reply.Calls[0].Approval))
	return h.Reply.Calls[0].Call, code
}

func (s *square) state(call ops.CallID) (state string) {
	s.t.Helper()
	s.one(&state, `SELECT state FROM call WHERE id = $1`, string(call))
	return state
}

// decides has the decisions of the house carried out, as Start does.
func (s *square) decides() {
	s.t.Helper()
	synctest.Wait()
}

func TestControl_Words(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		held := func() int { return s.number(`SELECT count(*) FROM hold`) }
		for _, c := range []struct {
			user, text string
			held       int
		}{
			{"U9", "STOP", 0}, {"U1", "STOP", 0}, {"U2", "STOP", 0},
			{"UA", "stop", 0}, {"UA", "STOP!", 0}, {"UA", "> STOP", 0}, {"UA", "please STOP", 0}, {"UA", "STOP\nall", 0}, {"UA", "`STOP`", 0},
			{"UA", "  STOP\n", 1}, {"UB", "STOP", 1},
			{"U9", "START", 1}, {"U1", "START", 1}, {"UA", "start", 1}, {"UA", "START it", 1},
			{"UB", "START", 0}, {"UA", "START", 0},
		} {
			s.receive(s.said(c.user, c.text))
			if held() != c.held {
				t.Fatalf("after %q by %s: %d holds, want %d", c.text, c.user, held(), c.held)
			}
		}
		synctest.Wait()
		stops, starts := 0, 0
		for _, text := range s.board.texts("root A") {
			if strings.Contains(text, "has stopped this thread") {
				stops++
			}
			if strings.Contains(text, "has started this thread") {
				starts++
			}
		}
		if stops != 2 || starts != 2 {
			t.Errorf("%d and %d notes", stops, starts)
		}
		// They stand in the thread all the same.
		if n := s.number(`SELECT count(*) FROM post WHERE kind = 'heard' AND trim(body, char(10) || ' ') = 'STOP'`); n != 4 {
			t.Errorf("%d kept", n)
		}
	})
}

// tb-018: while a thread is stopped nothing begins in it, and other threads go on.
func TestControl_StopHoldsTheThread(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		s.receive(s.said("UA", "STOP"))
		in := s.said("U1", "[TOOL t.read {}]")
		s.receive(in)
		wake := s.said("UA", "go on")
		wake.Mentions = []string{"U1"}
		s.receive(wake)
		other := s.said("U1", "[TOOL t.read {\"n\":1}]")
		other.Address = "root B"
		s.receive(other)
		synctest.Wait()
		if s.results("t.read") != 1 || s.number(`SELECT count(*) FROM wake WHERE state = 'held'`) != 1 {
			t.Fatalf("%d reads, %d held wakes", s.results("t.read"), s.number(`SELECT count(*) FROM wake WHERE state = 'held'`))
		}
		s.receive(s.said("UA", "START"))
		synctest.Wait()
		if s.results("t.read") != 2 || s.number(`SELECT count(*) FROM wake WHERE state = 'open'`) != 1 {
			t.Errorf("after START: %d reads, %d open wakes", s.results("t.read"), s.number(`SELECT count(*) FROM wake WHERE state = 'open'`))
		}
	})
}

func TestControl_Decisions(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		for _, c := range []struct {
			text  string // %s is the code
			state string
			fault string
		}{
			{"y %s", "succeeded", ""},
			{"  Y   %s \n", "succeeded", ""},
			{"n %s", "failed", "APPROVAL_DENIED"},
			{"N %s not today,\nplease", "failed", "not today,\nplease"},
			{"y %s thanks", "parked", ""}, // who adds something may mean something else
			{"yes %s", "parked", ""},
			{"> y %s", "parked", ""},
			{"y%s", "parked", ""},
			{"y", "parked", ""},
			{"%s", "parked", ""},
		} {
			call, code := s.park(1)
			text := c.text
			if strings.Contains(text, "%s") {
				text = fmt.Sprintf(text, code)
			}
			s.receive(s.said("UA", text))
			s.decides()
			if got := s.state(call); got != c.state {
				t.Errorf("%q: %s, want %s", c.text, got, c.state)
			}
			var outcome string
			s.one(&outcome, `SELECT coalesce(outcome, '') FROM call WHERE id = $1`, string(call))
			if !strings.Contains(strings.ReplaceAll(outcome, `\n`, "\n"), c.fault) {
				t.Errorf("%q: outcome %s, want %q in it", c.text, outcome, c.fault)
			}
		}
		if n := s.ran.Load(); n != 2 {
			t.Errorf("%d executions", n)
		}
	})
}

// The code is written in capitals, too, by who decides on a phone.
func TestControl_CodesHaveNoCase(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		call, code := s.park(1)
		if !regexp.MustCompile(`^([a-hjkmnp-z][2-9]){2}$`).MatchString(code) {
			t.Errorf("code %q", code)
		}
		if !strings.Contains(strings.Join(s.texts(), "\n"), code) {
			t.Errorf("the code %s stands in none of %q", code, s.texts())
		}
		s.receive(s.said("UA", "y "+strings.ToUpper(code)))
		s.decides()
		if s.state(call) != "succeeded" {
			t.Error(s.state(call))
		}
	})
}

func (s *square) texts() []string {
	synctest.Wait()
	return s.board.texts("root A")
}

// tb-054: the one who asked, a member of the room and one of an approver's name decide
// nothing.
func TestControl_WhoDecides(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		call, code := s.park(1)
		s.texts()
		before := len(s.board.stood)
		for _, in := range []Inbound{s.said("U1", "y "+code), s.said("U2", "y "+code), s.said("U9", "y "+code), s.said("UG", "y "+code)} {
			in.Name = "ada"
			s.receive(in)
		}
		bot := s.said("U9", "y "+code)
		bot.Name, bot.Bot = "ada", true
		s.receive(bot)
		elsewhere := s.said("UA", "y "+code)
		elsewhere.Address = "root B"
		s.receive(elsewhere)
		s.decides()
		if s.state(call) != "parked" || s.ran.Load() != 0 {
			t.Fatalf("%s, %d executions", s.state(call), s.ran.Load())
		}
		// One note, to the operator who wrote the code in another thread.
		if n := len(s.board.stood) - before; n != 1 {
			t.Errorf("%d notes", n)
		}
		s.receive(s.said("UA", "y "+code))
		s.decides()
		if s.state(call) != "succeeded" || s.ran.Load() != 1 {
			t.Errorf("%s, %d executions", s.state(call), s.ran.Load())
		}
	})
}

func TestControl_WrongCodesAreAnsweredAFewTimes(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		for range 10 {
			s.receive(s.said("UA", "y a2b3"))
		}
		if n := len(s.texts()); n != 3 {
			t.Errorf("%d notes in a minute", n)
		}
		time.Sleep(61 * time.Second)
		s.receive(s.said("UA", "n a2b3"))
		if n := len(s.texts()); n != 4 {
			t.Errorf("%d notes a minute later", n)
		}
		// Plain words are no codes.
		for _, text := range []string{"y know", "n that is wrong", "y 1234", "y abcd", "n 2a2b"} {
			s.receive(s.said("UA", text))
		}
		if n := len(s.texts()); n != 4 {
			t.Errorf("%d notes after plain words", n)
		}
	})
}

// tb-052: the first decision of several is carried out, once, with one message.
func TestControl_OneDecision(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		s.board.users["cyd"] = "UC"
		cyd := ops.Identity{ID: "cyd", Role: ops.Operator}
		if _, err := s.directory.Add(t.Context(), cyd); err != nil {
			t.Fatal(err)
		}
		rounds := 200
		if testing.Short() {
			rounds = 20
		}
		for i := range rounds {
			time.Sleep(time.Minute)
			ran, posts := s.ran.Load(), 0
			call, code := s.park(i)
			posts = len(s.texts())
			var callers sync.WaitGroup
			for user, text := range map[string]string{"UA": "y " + code, "UB": "y " + code, "UC": "n " + code} {
				in := s.said(user, text)
				callers.Go(func() {
					time.Sleep(time.Duration(len(user)) * time.Millisecond)
					if _, err := s.threads.Receive(context.Background(), in); err != nil {
						t.Errorf("receive: %v", err)
					}
				})
			}
			callers.Wait()
			s.decides()
			state, n := s.state(call), s.ran.Load()-ran
			if state != "succeeded" && state != "failed" || n != map[string]int64{"succeeded": 1}[state] {
				t.Fatalf("round %d: %s, %d executions", i, state, n)
			}
			if d := s.number(`SELECT count(*) FROM decision WHERE code = $1`, code); d != 1 {
				t.Fatalf("round %d: %d decisions", i, d)
			}
			if m := len(s.texts()) - posts; m != 1 {
				t.Fatalf("round %d: %d messages: %q", i, m, s.texts()[posts:])
			}
		}
	})
}

// tb-053: the second of three orders is approved after a restart.
func TestControl_DecisionAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		s := &square{board: newBoard()}
		s.board.users = map[ops.IdentityID]string{"scout": "U1", "ada": "UA"}
		s.open(t, path)
		s.people()
		if _, err := s.directory.Add(t.Context(), ops.Identity{ID: "board", Role: ops.Bridge}, scout.ID); err != nil {
			t.Fatal(err)
		}
		s.start()
		h := s.receive(s.said("U1", `[TOOL t.read {}] [TOOL t.write {"n":1}] [TOOL t.write {"n":2}]`))
		synctest.Wait()
		var code string
		s.one(&code, `SELECT code FROM approval_code WHERE approval = $1`, string(h.Reply.Calls[1].Approval))
		// Written down and not carried out when the gateway ended.
		in := s.said("UA", "y "+code)
		if err := s.store.Update(t.Context(), func(tx journal.Tx) error {
			_, err := tx.Exec(`INSERT INTO decision (id, thread, by_id, by_role, approve, code, reason, state, at) VALUES ('d-1', $1, 'ada', 'operator', 1, $2, '', 'new', 0)`, h.Thread, code)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if s.state(h.Reply.Calls[1].Call) != "parked" {
			t.Fatal("carried out by nobody's word")
		}
		s.close()
		s.open(t, path)
		s.start()
		defer s.close()
		s.decides()
		s.receive(in) // the operator tries again
		s.decides()
		states := [3]string{}
		for i := range states {
			states[i] = s.state(h.Reply.Calls[i].Call)
		}
		if states != [3]string{"succeeded", "succeeded", "parked"} || s.ran.Load() != 1 || s.results("t.read") != 1 {
			t.Errorf("%q, %d executions", states, s.ran.Load())
		}
		if n := s.number(`SELECT count(*) FROM decision WHERE state = 'done'`); n != 1 {
			t.Errorf("%d decisions are done", n)
		}
	})
}

// A decision that comes too late leads to no run, and the thread is told by the expiry.
func TestControl_TooLate(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		call, code := s.park(1)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		posts := len(s.texts())
		s.receive(s.said("UA", "y "+code))
		s.decides()
		if s.state(call) != "failed" || s.ran.Load() != 0 {
			t.Errorf("%s, %d executions", s.state(call), s.ran.Load())
		}
		if got := s.texts()[posts:]; len(got) != 1 || !strings.Contains(got[0], "waits no longer") {
			t.Errorf("answered %q", got)
		}
	})
}

// What the door refuses is answered, and the code can be used again by who may.
func TestControl_RefusedDecisions(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		call, code := s.park(1)
		h := s.said("UB", "y "+code)
		// Revoked between the writing and the carrying out.
		var thread string
		s.one(&thread, `SELECT thread FROM approval_code WHERE code = $1`, code)
		if _, err := s.directory.Revoke(t.Context(), bea.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.store.Update(t.Context(), func(tx journal.Tx) error { return s.threads.decided(tx, bea, thread, true, code, "") }); err != nil {
			t.Fatal(err)
		}
		posts := len(s.texts())
		s.decides()
		if s.state(call) != "parked" || s.ran.Load() != 0 {
			t.Fatalf("%s", s.state(call))
		}
		if got := s.texts(); !strings.Contains(strings.Join(got, "\n"), "NOT_PERMITTED") {
			t.Errorf("answered %q", got[min(posts, len(got)):])
		}
		if heard := s.receive(h); heard.Status != Taken { // a stranger by now
			t.Errorf("%+v", heard)
		}
		s.decides()
		if s.state(call) != "parked" {
			t.Fatalf("a revoked operator has decided: %s", s.state(call))
		}
		s.receive(s.said("UA", "y "+code))
		s.decides()
		if s.state(call) != "succeeded" {
			t.Errorf("%s", s.state(call))
		}
	})
}

// In the built-in rooms an operator's dm.send into a thread carries the same words.
func TestControl_InRooms(t *testing.T) {
	h := newHouse(t, echo("t.read", "x"))
	ack := h.take(scout, Reply{Agent: "scout", Room: "lobby", Message: "m1", Text: "hello"})
	say := func(by ops.Identity, text string) (handled bool) {
		t.Helper()
		if err := h.store.Update(t.Context(), func(tx journal.Tx) (err error) {
			handled, err = h.threads.control(tx, by, ack.Thread, text, time.Time{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return handled
	}
	if say(scout, "STOP") || say(relay, "STOP") || say(ops.Identity{}, "STOP") || !say(ada, "STOP") {
		t.Error("STOP is an operator's word only")
	}
	posts := h.posts(ack.Thread, 2)
	if posts[1].Kind != "note" || !strings.Contains(posts[1].Text, "START") {
		t.Errorf("note %+v", posts[1])
	}
	holds, err := h.door.Holds(t.Context())
	if err != nil || len(holds) != 1 || holds[0].Scope != ack.Thread {
		t.Errorf("holds %+v, %v", holds, err)
	}
	if !say(ada, "START") || !say(ada, "y a2b3") || say(ada, "y no such code") {
		t.Error("START and codes are words of control")
	}
	if holds, err = h.door.Holds(t.Context()); err != nil || len(holds) != 0 {
		t.Errorf("holds %+v, %v", holds, err)
	}
}

func TestApprovalCodesAreUniqueInAThread(t *testing.T) {
	h := newHouse(t)
	seen := make(map[string]bool)
	if err := h.store.Update(t.Context(), func(tx journal.Tx) error {
		clear(seen)
		for i := range 3000 {
			code, err := h.threads.approvalCode(tx, "t-1", service.ApprovalID(fmt.Sprintf("a-%d", i)))
			if err != nil {
				return err
			}
			if seen[code] || !decisionWords.MatchString("y "+code) {
				t.Errorf("code %q", code)
			}
			seen[code] = true
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
