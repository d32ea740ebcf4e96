package threads

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"inband/ops"
	"inband/service/journal"
)

// Of an agent that has as many calls waiting for approval as it may, the next message is
// taken too: what would have to wait is refused, and answered, so that the messages behind
// it in the history are read.
func TestReceive_TooManyWait(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		waiting := func() int { return s.number(`SELECT count(*) FROM approval WHERE state = 'pending'`) }
		n := 0
		for before := -1; waiting() > before; n++ {
			before = waiting()
			s.receive(s.said("U1", fmt.Sprintf(`[TOOL t.write {"n":%d}]`, n)))
		}
		h := s.receive(s.said("U1", `[TOOL t.write {"n":9999}] [TOOL t.read {}]`))
		c := h.Reply.Calls
		if h.Status != Taken || len(c) != 2 || c[0].State != ops.Refused || c[0].Fault.Code != ops.Busy || c[0].Rule != "approval: too many wait" || c[1].State != ops.Received {
			t.Errorf("heard %+v", c)
		}
		synctest.Wait()
		if r := s.results("t.read"); r != 1 || waiting() != n-1 || s.ran.Load() != 0 {
			t.Errorf("%d reads, %d calls wait of %d, %d writes", r, waiting(), n, s.ran.Load())
		}
	})
}

// What was said below a post whose root was not known yet stands, to people, in the thread
// that the post has made: its calls are decided there, and stopped and started.
func TestControl_WhereTheRootCameLate(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		s.receive(s.said("U1", `[TOOL t.write {"n":1}] [TOOL t.write {"n":2}]`))
		synctest.Wait()
		var early, code string
		s.one(&early, `SELECT thread FROM approval_code LIMIT 1`)
		var late string
		if err := s.store.Update(t.Context(), func(tx journal.Tx) (err error) {
			late, err = begin(tx, s.board, "#R1", "clerk")
			if err != nil {
				return err
			}
			return s.threads.root(tx, delivery{adaptor: "board", thread: late}, "root A")
		}); err != nil || late == early {
			t.Fatalf("the thread %s of the post, %s before: %v", late, early, err)
		}
		if h := s.receive(s.said("UA", "STOP")); h.Thread != late {
			t.Fatalf("heard %+v, want thread %s", h, late)
		}
		if n := s.number(`SELECT count(*) FROM hold`); n != 2 {
			t.Errorf("%d threads are stopped, want both", n)
		}
		s.one(&code, `SELECT code FROM approval_code ORDER BY approval LIMIT 1`)
		s.receive(s.said("UA", "y "+code))
		synctest.Wait()
		if s.ran.Load() != 0 {
			t.Error("a call has run in a thread that is stopped")
		}
		s.receive(s.said("UA", "START"))
		synctest.Wait()
		if held := s.number(`SELECT count(*) FROM hold`); held != 0 || s.ran.Load() != 1 {
			t.Errorf("%d threads are stopped, and %d calls have run", held, s.ran.Load())
		}
		s.one(&code, `SELECT code FROM approval_code ORDER BY approval DESC LIMIT 1`)
		s.receive(s.said("UA", strings.ToUpper("n "+code)))
		synctest.Wait()
		if n := s.number(`SELECT count(*) FROM approval WHERE state = 'denied'`); n != 1 {
			t.Errorf("%d calls were denied, want 1", n)
		}
	})
}
