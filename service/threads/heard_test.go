package threads

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
	"testing/synctest"
	"time"
	"unicode/utf8"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

var bea = ops.Identity{ID: "bea", Role: ops.Operator}

// square is a house on a board where scout, clerk, ada and bea are known as U1, U2, UA and
// UB, and anybody else is a stranger. Only scout may write there by the board's identity.
type square struct {
	*house
	board *board
	ran   atomic.Int64 // executions of t.write
	n     int          // messages
}

func onSquare(t *testing.T, f func(t *testing.T, s *square)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		s := &square{board: newBoard()}
		s.board.users = map[ops.IdentityID]string{"scout": "U1", "clerk": "U2", "ada": "UA", "bea": "UB", "gone": "UG"}
		s.open(t, path)
		s.people()
		for _, who := range []ops.Identity{bea, {ID: "gone", Role: ops.Agent}} {
			if _, err := s.directory.Add(t.Context(), who); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.directory.Revoke(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.directory.Add(t.Context(), ops.Identity{ID: "board", Role: ops.Bridge}, scout.ID); err != nil {
			t.Fatal(err)
		}
		s.start()
		f(t, s)
		s.close()
	})
}

func (s *square) open(t *testing.T, path string) {
	t.Helper()
	s.house = openHouse(t, path, echo("t.read", "all is well"), write("t.write", &s.ran))
	if err := s.threads.Attach(s.board); err != nil {
		t.Fatal(err)
	}
}

// said is a message of user in thread "root A", written now.
func (s *square) said(user, text string) Inbound {
	s.n++
	return Inbound{Adaptor: "board", Room: "R1", Message: fmt.Sprintf("in-%d", s.n), Address: "root A", Kind: Message, User: user, Text: text, WrittenAt: time.Now()}
}

func (s *square) receive(in Inbound) Heard {
	s.t.Helper()
	h, err := s.threads.Receive(context.Background(), in)
	if err != nil {
		s.t.Fatalf("receive %+v: %v", in, err)
	}
	return h
}

// one reads one value.
func (s *square) one(dest any, sql string, args ...any) {
	s.t.Helper()
	if err := s.store.View(context.Background(), func(tx journal.Tx) error {
		return tx.Query(sql, func(scan func(...any) error) error { return scan(dest) }, args...)
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *square) number(sql string, args ...any) (n int) {
	s.t.Helper()
	s.one(&n, sql, args...)
	return n
}

// results is how many calls of an op have succeeded.
func (s *square) results(op string) int {
	return s.number(`SELECT count(*) FROM call WHERE op = $1 AND state = 'succeeded'`, op)
}

// tb-009, tb-012, tb-013, tb-016.
func TestReceive_OnceWhoeverAndHoweverOften(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		in := s.said("U1", "[TOOL t.read {}]")
		var callers sync.WaitGroup
		var taken atomic.Int64
		for range 11 {
			callers.Go(func() {
				h, err := s.threads.Receive(context.Background(), in)
				if err != nil {
					t.Errorf("receive: %v", err)
				}
				if h.Status == Taken {
					taken.Add(1)
				} else if h.Status != Duplicate || h.Reply == nil || !h.Reply.Duplicate || len(h.Reply.Calls) != 1 {
					t.Errorf("a duplicate is answered %+v", h)
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		if taken.Load() != 1 || s.results("t.read") != 1 {
			t.Fatalf("taken %d times, run %d times", taken.Load(), s.results("t.read"))
		}
		for _, after := range []time.Duration{time.Minute, 4 * time.Minute, 10 * time.Minute, 24 * time.Hour} {
			time.Sleep(after)
			again := in
			again.CatchUp = true
			if h := s.receive(again); h.Status != Duplicate {
				t.Errorf("%s later: %+v", after, h)
			}
		}
		// Another message id is another message, in another room too.
		other := in
		other.Room, other.Address = "R2", "root B"
		if h := s.receive(other); h.Status != Taken || h.Reply.Room != "board#R2" {
			t.Errorf("in another room: %+v", h)
		}
		workspace := in
		workspace.Workspace, workspace.Address = "W/1", "root C"
		if h := s.receive(workspace); h.Status != Taken || h.Reply.Room != "board#W%2F1/R1" {
			t.Errorf("in another workspace: %+v", h)
		}
		synctest.Wait()
		if s.results("t.read") != 3 || s.count("duplicates", "") != 14 {
			t.Errorf("run %d times, %d duplicates", s.results("t.read"), s.count("duplicates", ""))
		}
		// One result in each thread, and nowhere else.
		for _, address := range []string{"root A", "root B", "root C"} {
			if texts := s.board.texts(address); len(texts) != 1 {
				t.Errorf("%s: %q", address, texts)
			}
		}
	})
}

// The same for one who is no agent: one post, one wake, one note.
func TestReceive_PeopleOnce(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		mention, stop, word := s.said("U9", "hello"), s.said("UA", "STOP"), s.said("U9", "x")
		mention.Mentions = []string{"U1"}
		for _, in := range []Inbound{mention, stop, word} {
			var callers sync.WaitGroup
			var taken atomic.Int64
			for range 11 {
				callers.Go(func() {
					h, err := s.threads.Receive(context.Background(), in)
					if err != nil {
						t.Errorf("receive: %v", err)
					}
					if h.Status == Taken {
						taken.Add(1)
					}
				})
			}
			callers.Wait()
			if taken.Load() != 1 {
				t.Errorf("%q is taken %d times", in.Text, taken.Load())
			}
		}
		synctest.Wait()
		if n := s.number(`SELECT count(*) FROM post WHERE kind = 'heard'`); n != 3 {
			t.Errorf("%d posts", n)
		}
		if n := s.number(`SELECT count(*) FROM wake`); n != 1 {
			t.Errorf("%d wakes", n)
		}
		if n := s.number(`SELECT count(*) FROM outbox WHERE about LIKE 'stop:%'`); n != 1 {
			t.Errorf("%d notes", n)
		}
	})
}

func TestReceive_OnceOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		s := &square{board: newBoard()}
		s.open(t, path)
		s.people()
		if _, err := s.directory.Add(t.Context(), ops.Identity{ID: "board", Role: ops.Bridge}, scout.ID); err != nil {
			t.Fatal(err)
		}
		s.start()
		in := s.said("U1", "[TOOL t.read {}]")
		s.receive(in)
		if err := s.threads.SetCursor(t.Context(), "board", "after in-1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.close()
		time.Sleep(15 * time.Minute)
		s.open(t, path)
		s.start()
		defer s.close()
		if value, ok, err := s.threads.Cursor(t.Context(), "board"); value != "after in-1" || !ok || err != nil {
			t.Errorf("cursor %q, %t, %v", value, ok, err)
		}
		if _, ok, err := s.threads.Cursor(t.Context(), "other"); ok || err != nil {
			t.Errorf("a cursor that was never set: %t, %v", ok, err)
		}
		if h := s.receive(in); h.Status != Duplicate || h.Reply == nil || len(h.Reply.Calls) != 1 {
			t.Errorf("after a restart: %+v", h)
		}
		if known, err := s.threads.Known(t.Context(), in); !known || err != nil {
			t.Errorf("known: %t, %v", known, err)
		}
		if known, err := s.threads.Known(t.Context(), s.said("U1", "")); known || err != nil {
			t.Errorf("a new one is known: %t, %v", known, err)
		}
		synctest.Wait()
		if s.results("t.read") != 1 {
			t.Errorf("run %d times", s.results("t.read"))
		}
	})
}

// tb-010: a batch that fails in the middle is handed in again.
func TestReceive_ABatchAgain(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		var batch []Inbound
		for range 20 {
			batch = append(batch, s.said("U1", "[TOOL t.read {}]"))
		}
		for _, in := range batch[:11] {
			s.receive(in)
		}
		fresh := 0
		for _, in := range batch {
			if s.receive(in).Status == Taken {
				fresh++
			}
		}
		synctest.Wait()
		if fresh != 9 || s.results("t.read") != 20 {
			t.Errorf("%d were new, %d have run", fresh, s.results("t.read"))
		}
	})
}

// tb-025: what is older than the gateway's memory of a room is shown to nobody as new.
func TestReceive_History(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		var old []Inbound
		for range 10 {
			in := s.said("U1", "[TOOL t.read {}] [TOOL t.write {}]")
			in.History = true
			old = append(old, in)
		}
		mention := s.said("UA", "go")
		mention.History, mention.Mentions = true, []string{"U1"}
		stop := s.said("UA", "STOP")
		stop.History = true
		for _, in := range append(old, mention, stop) {
			if h := s.receive(in); h.Status != Ignored || h.Reason != "history" {
				t.Errorf("%+v", h)
			}
		}
		for _, in := range old {
			in.History = false // the cursor was lost
			if h := s.receive(in); h.Status != Duplicate {
				t.Errorf("after the cursor was lost: %+v", h)
			}
		}
		synctest.Wait()
		if n := s.number(`SELECT (SELECT count(*) FROM call) + (SELECT count(*) FROM wake) + (SELECT count(*) FROM hold)`); n != 0 {
			t.Errorf("%d calls, wakes and holds of history", n)
		}
		if s.count("messages ignored", "history") != 12 {
			t.Errorf("%d counted", s.count("messages ignored", "history"))
		}
	})
}

// tb-021, tb-057, tb-048: who is read, and as what.
func TestReceive_WhoIsRead(t *testing.T) {
	order := "[TOOL t.read {}]"
	cases := []struct {
		name   string
		change func(*Inbound)
		status string
		reason string
		calls  int
		author string // of the post that is kept, "-" for none
	}{
		{"an agent", func(in *Inbound) {}, Taken, "", 1, "scout"},
		{"an agent that the platform calls a bot", func(in *Inbound) { in.Bot = true }, Taken, "", 1, "scout"},
		{"ourselves", func(in *Inbound) { in.Self = true }, Ignored, "own message", 0, "-"},
		{"the system", func(in *Inbound) { in.Kind = System }, Ignored, "system message", 0, "-"},
		{"a bot", func(in *Inbound) { in.User, in.Bot = "U9", true }, Ignored, "automated", 0, "-"},
		{"a stranger", func(in *Inbound) { in.User = "U9" }, Taken, "", 0, "U9"},
		{"a stranger of an agent's name", func(in *Inbound) { in.User, in.Name = "U9", "scout" }, Taken, "", 0, "U9"},
		{"a stranger of nearly that name", func(in *Inbound) { in.User, in.Name = "U9", "sсout" }, Taken, "", 0, "U9"},
		{"one whose id looks the same", func(in *Inbound) { in.User = "Ｕ１" }, Taken, "", 0, "Ｕ１"},
		{"an agent that is not enrolled here", func(in *Inbound) { in.User = "U2" }, Taken, "", 0, "clerk"},
		{"a revoked agent", func(in *Inbound) { in.User = "UG" }, Taken, "", 0, "UG"},
		{"a revoked agent's bot", func(in *Inbound) { in.User, in.Bot = "UG", true }, Ignored, "automated", 0, "-"},
		{"nobody", func(in *Inbound) { in.User = "" }, Taken, "", 0, ""},
		{"an operator", func(in *Inbound) { in.User = "UA" }, Taken, "", 0, "ada"},
		{"an operator who quotes", func(in *Inbound) { in.User, in.Text = "UA", "> "+order+"\nwhat is that?" }, Taken, "", 0, "ada"},
		{"too long", func(in *Inbound) { in.Text = order + strings.Repeat("x", MaxText) }, Ignored, "too long", 0, "-"},
		{"a stranger, too long", func(in *Inbound) { in.User, in.Text = "U9", strings.Repeat("x", MaxText+1) }, Ignored, "too long", 0, "-"},
	}
	onSquare(t, func(t *testing.T, s *square) {
		for i, c := range cases {
			in := s.said("U1", order)
			c.change(&in)
			in.Address = fmt.Sprintf("root %d", i)
			ran, ignored := s.results("t.read"), s.count("messages ignored", c.reason)
			h := s.receive(in)
			if h.Status != c.status || h.Reason != c.reason {
				t.Errorf("%s: %+v, want %s %s", c.name, h, c.status, c.reason)
				continue
			}
			synctest.Wait()
			if n := s.results("t.read") - ran; n != c.calls {
				t.Errorf("%s: %d calls, want %d", c.name, n, c.calls)
			}
			if n := s.count("messages ignored", c.reason) - ignored; (n == 1) != (c.status == Ignored) {
				t.Errorf("%s: counted %d times", c.name, n)
			}
			author := "-"
			s.one(&author, `SELECT coalesce(author_id, author_name, '') FROM post WHERE kind IN ('heard', 'reply') AND thread = $1`, h.Thread)
			if author != c.author {
				t.Errorf("%s: kept as %q, want %q", c.name, author, c.author)
			}
		}
	})
}

// Each message of a chat is on record with the platform's id of who wrote it, the name
// that it showed and whether it was fetched after an outage; once, however often it comes
// (tb-023, tb-057).
func TestReceive_IsOnRecord(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		agent := s.said("U1", "[TOOL t.read {}]")
		agent.Name, agent.CatchUp = "Scout", true
		copied := s.said("U9", "[TOOL t.read {}]")
		copied.Name = "Sсout" // with a Cyrillic letter
		long := s.said("U9", "hello")
		long.Name = strings.Repeat("é\u202e", 1000)
		program := s.said("U8", "[TOOL t.read {}]")
		program.Bot = true
		thread := ""
		for _, in := range []Inbound{agent, copied, long, program, agent, copied} {
			thread = s.receive(in).Thread
		}
		type heard struct {
			Message, User, Name, Status, Reason string
			CatchUp                             bool `json:"catch_up"`
		}
		var got []heard
		if err := s.store.Stream(t.Context(), "thread/"+thread, 0, func(e journal.Event) error {
			if e.Kind != "message.heard" {
				return nil
			}
			var h heard
			err := json.Unmarshal(e.Body, &h)
			got = append(got, h)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		want := []heard{
			{agent.Message, "U1", "Scout", Taken, "", true},
			{copied.Message, "U9", "Sсout", Taken, "", false},
			{long.Message, "U9", clipped(long.Name), Taken, "", false},
			{program.Message, "U8", "", Ignored, "automated", false},
		}
		if !slices.Equal(got, want) {
			t.Errorf("on record:\n%+v\nwant\n%+v", got, want)
		}
		if n := len(clipped(long.Name)); n > 300 || !utf8.ValidString(clipped(long.Name)) {
			t.Errorf("a name of %d bytes is kept as %d", len(long.Name), n)
		}
	})
}

func TestReceive_BadInput(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		for name, change := range map[string]func(*Inbound){
			"no adaptor":              func(in *Inbound) { in.Adaptor = "" },
			"another adaptor":         func(in *Inbound) { in.Adaptor = "slack" },
			"rooms":                   func(in *Inbound) { in.Adaptor = "rooms" },
			"no room":                 func(in *Inbound) { in.Room = "" },
			"no message":              func(in *Inbound) { in.Message = "" },
			"no address":              func(in *Inbound) { in.Address = "" },
			"no kind":                 func(in *Inbound) { in.Kind = "" },
			"a long id":               func(in *Inbound) { in.Message = strings.Repeat("m", 257) },
			"a long address":          func(in *Inbound) { in.Address = strings.Repeat("m", 1025) },
			"control characters":      func(in *Inbound) { in.Room = "R\n1" },
			"an id that is no UTF-8":  func(in *Inbound) { in.User = "U\xff" },
			"a text that is no UTF-8": func(in *Inbound) { in.Text = "\xff" },
			"a zero byte":             func(in *Inbound) { in.Text = "a\x00b" },
		} {
			in := s.said("U1", "[TOOL t.read {}]")
			change(&in)
			_, err := s.threads.Receive(t.Context(), in)
			var fault *ops.Fault
			if !errors.As(err, &fault) || fault.Code != ops.BadRequest {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := s.number(`SELECT (SELECT count(*) FROM inbound) + (SELECT count(*) FROM thread)`); n != 0 {
			t.Errorf("%d rows of bad input", n)
		}
		var fault *ops.Fault
		for _, value := range []string{"\xff", "a\x00", strings.Repeat("x", maxCursor+1)} {
			if err := s.threads.SetCursor(t.Context(), "board", value); !errors.As(err, &fault) {
				t.Errorf("cursor: %v", err)
			}
		}
		// Ids as long as they may be still run, and once.
		in := s.said("U1", "[TOOL t.read {}]")
		in.Workspace, in.Room, in.Message = strings.Repeat("/", 256), strings.Repeat("#", 256), strings.Repeat("%", 256)
		if h := s.receive(in); h.Status != Taken || h.Reply.Calls[0].Fault != nil {
			t.Errorf("long ids: %+v", h)
		}
		if h := s.receive(in); h.Status != Duplicate {
			t.Errorf("long ids again: %+v", h)
		}
	})
}

// tb-035, tb-036, tb-037.
func TestReceive_Edits(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		edit := func(in Inbound, text string) Heard {
			in.Kind, in.Text = Edit, text
			return s.receive(in)
		}
		notes := func() int { return s.number(`SELECT count(*) FROM outbox WHERE kind = 'note' AND about LIKE 'edit:%'`) }

		in := s.said("U1", "Look: [TOOL t.read {\"n\":1}]")
		s.receive(in)
		synctest.Wait()
		// A preview is added, the words around are mended: nothing is run and nothing said.
		for _, text := range []string{in.Text, "Look! [TOOL t.read {\"n\":1}]", "Look, [TOOL t.read { \"n\": 1 }].", "no order any more"} {
			if h := edit(in, text); h.Status != Edited {
				t.Errorf("edit: %+v", h)
			}
		}
		synctest.Wait()
		if s.results("t.read") != 1 || notes() != 0 {
			t.Fatalf("run %d times, %d notes", s.results("t.read"), notes())
		}
		// Another order is said not to be run, once.
		for _, n := range []int{2, 3, 4} {
			edit(in, fmt.Sprintf("Look: [TOOL t.read {\"n\":%d}]", n))
		}
		synctest.Wait()
		if s.results("t.read") != 1 || notes() != 1 {
			t.Errorf("run %d times, %d notes", s.results("t.read"), notes())
		}
		if texts := s.board.texts("root A"); len(texts) != 2 || !strings.Contains(texts[1], "new message") {
			t.Errorf("posts %q", texts)
		}
		// The message itself, redelivered.
		if h := s.receive(in); h.Status != Duplicate {
			t.Errorf("%+v", h)
		}

		// An edit of what is not known is remembered, and the message, when it comes after
		// all, is taken once.
		late := s.said("U1", "[TOOL t.read {\"n\":5}]")
		if h := edit(late, "[TOOL t.read {\"n\":6}]"); h.Status != Edited {
			t.Errorf("%+v", h)
		}
		if known, err := s.threads.Known(t.Context(), late); known || err != nil {
			t.Errorf("an edit makes a message known: %t, %v", known, err)
		}
		edit(late, "[TOOL t.read {\"n\":7}]")
		synctest.Wait()
		if s.results("t.read") != 1 || notes() != 2 {
			t.Errorf("run %d times, %d notes", s.results("t.read"), notes())
		}
		if h := s.receive(late); h.Status != Taken {
			t.Errorf("%+v", h)
		}
		if h := s.receive(late); h.Status != Duplicate {
			t.Errorf("%+v", h)
		}
		// Edits by others hold no orders.
		other := s.said("U9", "hello")
		s.receive(other)
		edit(other, "[TOOL t.read {}]")
		op := s.said("UA", "hello")
		s.receive(op)
		edit(op, "STOP")
		edit(s.said("UA", ""), "STOP")
		synctest.Wait()
		if s.results("t.read") != 2 || notes() != 2 || s.number(`SELECT count(*) FROM hold`) != 0 {
			t.Errorf("run %d times, %d notes", s.results("t.read"), notes())
		}
	})
}

// Orders that arrive late wait, and the thread is told why; reads run.
func TestReceive_Late(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		for _, c := range []struct {
			name string
			at   time.Time
			note bool
		}{
			{"now", time.Now(), false},
			{"fourteen minutes ago", time.Now().Add(-14 * time.Minute), false},
			{"sixteen minutes ago", time.Now().Add(-16 * time.Minute), true},
			{"in ten minutes, by their clock", time.Now().Add(10 * time.Minute), false},
			{"nobody knows when", time.Time{}, true},
		} {
			in := s.said("U1", "[TOOL t.read {}] [TOOL t.write {}]")
			in.Address, in.WrittenAt, in.CatchUp = "root "+c.name, c.at, true
			h := s.receive(in)
			synctest.Wait()
			if h.Reply.Calls[0].State != ops.Received || h.Reply.Calls[1].State != ops.Parked {
				t.Errorf("%s: %+v", c.name, h.Reply.Calls)
			}
			notes := s.number(`SELECT count(*) FROM outbox WHERE about LIKE 'late:%' AND address = $1`, h.Thread)
			if notes != map[bool]int{true: 1}[c.note] {
				t.Errorf("%s: %d notes", c.name, notes)
			}
			var evidence string
			s.one(&evidence, `SELECT evidence FROM call WHERE op = 't.write' AND id = $1`, string(h.Reply.Calls[1].Call))
			var e ops.Evidence
			if err := json.Unmarshal([]byte(evidence), &e); err != nil || e.Fresh == c.note {
				t.Errorf("%s: evidence %s, %v", c.name, evidence, err)
			}
		}
	})
}

// Only a mention by a person wakes, and only agents.
func TestReceive_Mentions(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		wakes := func() int { return s.number(`SELECT count(*) FROM wake`) }
		for i, c := range []struct {
			user     string
			bot      bool
			mentions []string
			want     int
		}{
			{"UA", false, []string{"U1"}, 1},
			{"U9", false, []string{"U1", "U1", "U2"}, 2},
			{"U9", false, []string{"UA", "U9", "UG", "nobody"}, 0},
			{"U9", true, []string{"U1"}, 0},
			{"U1", false, []string{"U2"}, 0}, // an agent
			{"U2", false, []string{"U1"}, 0}, // an agent that is not enrolled here
			{"UA", false, nil, 0},
		} {
			before := wakes()
			in := s.said(c.user, fmt.Sprintf("message %d [TOOL t.read {}]", i))
			in.Bot, in.Mentions = c.bot, c.mentions
			s.receive(in)
			s.receive(in)
			if got := wakes() - before; got != c.want {
				t.Errorf("%d: %s mentions %q: %d wakes, want %d", i, c.user, c.mentions, got, c.want)
			}
		}
		var errand Errand
		var text string
		s.one(&text, `SELECT errand FROM wake ORDER BY id LIMIT 1`)
		if err := json.Unmarshal([]byte(text), &errand); err != nil {
			t.Fatal(err)
		}
		if errand.Text == "" || errand.Shown != "" || errand.By != ada || errand.Hops != 0 || errand.Cause != ByMessage || errand.Source != "board/R1/in-1" {
			t.Errorf("by an operator: %+v", errand)
		}
		s.one(&text, `SELECT errand FROM wake WHERE agent = 'clerk'`)
		errand = Errand{}
		if err := json.Unmarshal([]byte(text), &errand); err != nil {
			t.Fatal(err)
		}
		if errand.Text != "" || errand.Shown == "" || errand.By != (ops.Identity{}) || errand.Name != "U9" || len(errand.Ops) != 1 || errand.Ops[0] != "dm.send" {
			t.Errorf("by a stranger: %+v", errand)
		}
		synctest.Wait()
		if s.results("t.read") != 1 { // the one of the agent's own message
			t.Errorf("%d reads", s.results("t.read"))
		}
		// Who cannot be woken is said.
		in := s.said("UA", "   ")
		in.Mentions = []string{"U1"}
		h := s.receive(in)
		if n := s.number(`SELECT count(*) FROM outbox WHERE about LIKE 'wake:%' AND address = $1`, h.Thread); n != 1 {
			t.Errorf("%d notes about an empty errand", n)
		}
	})
}

// What strangers, bots and other agents write is material; what operators write is not.
func TestReceive_Material(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		digest := func(n int) string { return orderDigest("t.write", []byte(fmt.Sprintf(`{"n":%d}`, n))) }
		order := func(n int) string { return fmt.Sprintf("`[TOOL t.write {\"n\":%d}]`", n) }
		for i, c := range []struct {
			user  string
			bot   bool
			edit  bool
			found bool // by scout
		}{{"U9", false, false, true}, {"U9", true, false, true}, {"U2", false, false, true}, {"UA", false, false, false}, {"U1", false, false, false}, {"U9", false, true, true}} {
			in := s.said(c.user, order(i))
			in.Bot = c.bot
			in.Address = fmt.Sprintf("root %d", i)
			if c.edit {
				in.Kind = Edit
			}
			h := s.receive(in)
			if err := s.store.View(t.Context(), func(tx journal.Tx) error {
				got, err := echoed(tx, h.Thread, scout.ID, digest(i))
				if (got == ops.EchoFound) != c.found || err != nil {
					t.Errorf("%d: echo %d, %v; want found %t", i, got, err, c.found)
				}
				ok, err := clean(tx, h.Thread, scout.ID)
				if ok == c.found || err != nil {
					t.Errorf("%d: clean %t, %v", i, ok, err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	})
}

// Nobody knows what stands in a message that is too long to be read.
func TestReceive_TooLongIsUncertain(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		for i, c := range []struct {
			user string
			want uint8
		}{{"UA", ops.EchoNone}, {"U1", ops.EchoNone}, {"U9", ops.EchoUnknown}} {
			in := s.said(c.user, strings.Repeat("x", MaxText+1))
			in.Address = fmt.Sprintf("root %d", i)
			h := s.receive(in)
			update(t, s.store, func(tx journal.Tx) error {
				got, err := echoed(tx, h.Thread, scout.ID, "any")
				if got != c.want {
					t.Errorf("by %s: echo %d, want %d", c.user, got, c.want)
				}
				return err
			})
		}
	})
}

func TestReceive_ThreadIsSeenByWhoTakesPart(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		h := s.receive(s.said("U9", "hello"))
		for who, want := range map[ops.Identity]bool{ada: true, scout: false, clerk: false} {
			if err := s.threads.MaySee(t.Context(), who, h.Thread); (err == nil) != want {
				t.Errorf("%s: %v", who, err)
			}
		}
		s.receive(s.said("U1", "hello"))
		if err := s.threads.MaySee(t.Context(), scout, h.Thread); err != nil {
			t.Errorf("scout takes part: %v", err)
		}
		v, err := s.threads.show(t.Context(), ada, service.Query{Arg: h.Thread})
		if err != nil || len(v.(Showing).Posts) != 2 || v.(Showing).Room != "board#R1" {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// inert is an op of the safety cases, with any of the parameters that they use.
func inert(name ops.OpName, alias ops.OpName, ran *atomic.Int64, params ...string) ops.Bound {
	b := write(name, ran)
	b.Op.Aliases = []ops.OpName{alias}
	b.Op.Params = nil
	for _, p := range params {
		b.Op.Params = append(b.Op.Params, ops.Param{Name: p, Type: ops.Text, Max: 1000, Optional: true})
	}
	return b
}

// The safety cases over a chat: what untrusted people say stands in the thread, and the
// agent is woken there.
func TestReceive_SafetyCases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		s := &square{board: newBoard()}
		s.board.users = map[ops.IdentityID]string{"scout": "U1", "ada": "UA"}
		status := echo("box.exec", "well")
		status.Op.Params = ops.Params{{Name: "action", Type: ops.Text, Max: 100}}
		s.house = openHouse(t, path,
			inert("cron.create", "cron", &s.ran, "name", "schedule", "prompt", "extra"), inert("swarm.spawn", "swarm", &s.ran, "task", "extra"),
			inert("test.write", "write", &s.ran, "path", "data", "extra"), echo("tools.list", "none"), status)
		if err := s.threads.Attach(s.board); err != nil {
			t.Fatal(err)
		}
		s.people()
		if _, err := s.directory.Add(t.Context(), ops.Identity{ID: "board", Role: ops.Bridge}, scout.ID); err != nil {
			t.Fatal(err)
		}
		s.start()
		defer s.close()
		tried := map[string]int{}
		for i, c := range safetyCases(t) {
			in := func(user, text string) Heard {
				m := s.said(user, text)
				m.Address = "root " + c.ID
				return s.receive(m)
			}
			thread := in("UA", "Here we work.").Thread
			text := "do your work"
			for _, said := range c.Inbound {
				switch said.From {
				case "untrusted":
					in("U9", said.Text)
				case "operator":
					in("UA", said.Text)
				case "self":
					in("U1", said.Text)
				default:
					text = said.Text
				}
			}
			update(t, s.store, func(tx journal.Tx) error {
				_, err := s.threads.Raise(tx, Errand{Agent: scout.ID, Cause: ByTimer, Source: "timer/" + c.ID, By: ada, Name: "daily", Thread: thread, Text: text, Ops: c.JobOps, Key: c.Key})
				return err
			})
			if i%8 == 0 {
				time.Sleep(time.Minute) // the rate of an identity
			}
			ack := in("U1", c.Reply).Reply
			got := "ignore"
			for _, call := range ack.Calls {
				switch call.State {
				case ops.Received:
					got = "run"
				case ops.Parked:
					got = "park"
				default:
					if got == "ignore" {
						got = "refuse"
					}
					if call.Fault != nil && call.Fault.Code == ops.InvalidParams && call.Op != "dm.send" {
						t.Errorf("%s: the case tries nothing: %v", c.ID, call.Fault)
					}
				}
			}
			if c.Must == "not run" && got == "run" || c.Must != "not run" && got != c.Must {
				t.Errorf("%s (%s): %s, must %s\nshown %+v\nreply %q\n%+v", c.ID, c.Class, got, c.Must, c.Inbound, c.Reply, ack.Calls)
			}
			tried[got]++
			synctest.Wait()
		}
		if tried["run"] != 72 || tried["park"] < 48 {
			t.Errorf("%v", tried)
		}
	})
}
