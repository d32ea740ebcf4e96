package threads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// board is a platform that keeps its messages in memory and fails as it is told. It is
// what the outbox is tried against; adaptors are tried against real servers.
type board struct {
	limits PostLimits
	users  map[ops.IdentityID]string

	mu    sync.Mutex
	stood []standing
	tries []Outgoing
	fail  func(n int, address string, p Outgoing) (taken bool, err error) // of the nth attempt, from 1
	block map[string]chan struct{}                                        // an address takes nothing until it is closed
	finds int
	noFnd error
}

type standing struct {
	id, address string
	Outgoing
}

// plainBoard cannot read a thread back.
type plainBoard struct{ b *board }

func (p plainBoard) Name() string                        { return p.b.Name() }
func (p plainBoard) Limits() PostLimits                  { return p.b.Limits() }
func (p plainBoard) Open(s string) (string, error)       { return p.b.Open(s) }
func (p plainBoard) Who(u string) (ops.IdentityID, bool) { return p.b.Who(u) }
func (p plainBoard) Home(id ops.IdentityID) (Home, bool) { return p.b.Home(id) }
func (p plainBoard) Post(ctx context.Context, address string, o Outgoing) (Posted, error) {
	return p.b.Post(ctx, address, o)
}

func newBoard() *board {
	return &board{limits: PostLimits{Unit: Runes, Post: 500}, users: map[ops.IdentityID]string{"scout": "U1"}}
}

func (b *board) Name() string                       { return "board" }
func (b *board) Limits() PostLimits                 { return b.limits }
func (b *board) Open(target string) (string, error) { return "room " + target, nil }
func (b *board) Who(user string) (ops.IdentityID, bool) {
	for id, u := range b.users {
		if u == user {
			return id, true
		}
	}
	return "", false
}
func (b *board) Home(id ops.IdentityID) (Home, bool) {
	u, ok := b.users[id]
	return Home{Target: "@" + u, User: u}, ok
}

func (b *board) Post(ctx context.Context, address string, p Outgoing) (Posted, error) {
	b.mu.Lock()
	block, fail := b.block[address], b.fail
	b.tries = append(b.tries, p)
	n := len(b.tries)
	b.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return Posted{}, ctx.Err()
		}
	}
	taken, err := true, error(nil)
	if fail != nil {
		taken, err = fail(n, address, p)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !taken {
		return Posted{}, err
	}
	id := fmt.Sprintf("m%d", len(b.stood)+1)
	if b.limits.Keys {
		for _, s := range b.stood {
			if s.Key == p.Key {
				return Posted{ID: s.id, Address: s.address}, err
			}
		}
	}
	if strings.HasPrefix(address, "room ") {
		address = "root " + id
	}
	b.stood = append(b.stood, standing{id, address, p})
	return Posted{ID: id, Address: address}, err
}

func (b *board) Find(_ context.Context, _, mark string) (Posted, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finds++
	if b.noFnd != nil {
		return Posted{}, false, b.noFnd
	}
	for _, s := range b.stood {
		if s.Mark == mark {
			return Posted{ID: s.id, Address: s.address}, true, nil
		}
	}
	return Posted{}, false, nil
}

// texts is what stands at an address, in order.
func (b *board) texts(address string) (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.stood {
		if s.address == address {
			list = append(list, s.Text)
		}
	}
	return list
}

// chatThread opens a thread of the board at address.
func (h *house) chatThread(address string, rooted int) string {
	h.t.Helper()
	id := NewThreadID()
	if err := h.store.Update(h.t.Context(), func(tx journal.Tx) error {
		if err := openThread(tx, "board#R1", id); err != nil {
			return err
		}
		_, err := tx.Exec(`UPDATE thread SET adaptor = 'board', address = $1, rooted = $2 WHERE id = $3`, address, rooted, id)
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	return id
}

func (h *house) send(list ...outgoing) {
	h.t.Helper()
	if err := h.store.Update(context.Background(), func(tx journal.Tx) error {
		for _, o := range list {
			if err := h.threads.send(tx, o); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
}

func note(thread, about, body string) outgoing {
	return outgoing{kind: "note", about: about, thread: thread, body: body}
}

// outbox is what is not delivered.
func (h *house) outbox() []OutboxEntry {
	h.t.Helper()
	v, err := h.threads.listOutbox(context.Background(), ada, service.Query{})
	if err != nil {
		h.t.Fatal(err)
	}
	return v.(OutboxPage).Outbox
}

// onBoard runs f in a bubble of fake time, with a house that has chat attached.
func onBoard(t *testing.T, chat Chat, f func(t *testing.T, h *house)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) { h := boardHouse(t, path, chat, true); defer h.close(); f(t, h) })
}

func boardHouse(t *testing.T, path string, chat Chat, fresh bool) *house {
	t.Helper()
	h := openHouse(t, path)
	if err := h.threads.Attach(chat); err != nil {
		t.Fatal(err)
	}
	if fresh {
		h.people()
	}
	h.start()
	return h
}

func TestPartsStandInOrderAndAreMirrored(t *testing.T) {
	b := newBoard()
	onBoard(t, b, func(t *testing.T, h *house) {
		thread := h.chatThread("root A", 1)
		long := strings.Repeat("a line of forty characters, more or less\n", 40)
		h.send(outgoing{kind: "result", about: "c-1", call: "c-1", thread: thread, body: long, agent: "scout"},
			outgoing{kind: "wake", about: "w-1", wake: "w-1", thread: thread, body: "second", post: "r-given"})
		synctest.Wait()
		texts := b.texts("root A")
		if n := len(texts); n < 4 || strings.Join(texts[:n-1], "") != long || texts[n-1] != "second" {
			t.Fatalf("%d posts: %q", n, texts)
		}
		for i, s := range b.stood {
			if len(s.Text)+footer > b.limits.Post {
				t.Errorf("post %d has %d characters beside its mark", i, len(s.Text))
			}
			if want := map[bool]string{true: "U1"}[i == 0]; s.Mention != want {
				t.Errorf("post %d mentions %q, want %q", i, s.Mention, want)
			}
		}
		posts := h.posts(thread, len(texts))
		for i, p := range posts {
			if p.ID != b.stood[i].Mark || p.Text != texts[i] {
				t.Errorf("post %d is mirrored as %s %q", i, p.ID, p.Text)
			}
		}
		if posts[0].Call != "c-1" || posts[0].Kind != "result" || posts[len(posts)-1].ID != "r-given" || posts[len(posts)-1].Kind != "wake" {
			t.Errorf("mirrored: %+v", posts)
		}
		platform := ""
		if err := h.store.View(t.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT platform_id FROM post WHERE id = 'r-given'`, func(scan func(...any) error) error { return scan(&platform) })
		}); err != nil || platform != b.stood[len(texts)-1].id {
			t.Errorf("platform id %q, %v", platform, err)
		}
		if left := h.outbox(); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
	})
}

func TestALongTextIsAnAttachmentWhereThereAreSome(t *testing.T) {
	b := newBoard()
	b.limits.Files = true
	onBoard(t, b, func(t *testing.T, h *house) {
		thread := h.chatThread("root A", 1)
		long := strings.Repeat("0123456789", 12000)
		h.send(note(thread, "a", long), outgoing{kind: "result", about: "c-1", thread: thread, body: "head " + long, file: "whole"}, note(thread, "b", "short"))
		synctest.Wait()
		if len(b.stood) != 3 {
			t.Fatalf("%d posts", len(b.stood))
		}
		for i, want := range []string{long, "whole", ""} {
			if s := b.stood[i]; s.File != want || utf8.RuneCountInString(s.Text)+footer > b.limits.Post {
				t.Errorf("post %d: a file of %d bytes, want %d; text %q", i, len(s.File), len(want), s.Text)
			}
		}
	})
}

// A first post makes the root of its thread: what follows stands below it.
func TestAFirstPostMakesTheRoot(t *testing.T) {
	b := newBoard()
	onBoard(t, b, func(t *testing.T, h *house) {
		one, two := h.chatThread("room #R1", 0), h.chatThread("room #R1", 0)
		h.send(note(one, "1", "one"), note(two, "2", "two"), note(one, "3", "more of one"))
		synctest.Wait()
		// Somebody answers in a thread before we know where it stands.
		late := h.chatThread("room #R1", 0)
		early := h.chatThread("root m4", 1)
		h.send(note(late, "4", "late"))
		synctest.Wait()
		h.send(note(late, "5", "later"), note(early, "6", "too"))
		synctest.Wait()
		got := map[string][]string{}
		for _, s := range b.stood {
			got[s.address] = append(got[s.address], s.Text)
		}
		roots := slices.Sorted(maps.Values(map[int]string{0: strings.Join(b.texts("root m1"), ","), 1: strings.Join(b.texts("root m2"), ","), 2: strings.Join(b.texts("root m3"), ",")}))
		if len(got) != 3 || !slices.Contains(roots, "one,more of one") || !slices.Contains(roots, "two") || len(b.texts("root m4")) != 3 {
			t.Errorf("stands: %q", got)
		}
		if err := h.store.View(t.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT id FROM thread WHERE adaptor = 'board' AND address = 'root m4' AND rooted = 1`, func(scan func(...any) error) error {
				var id string
				err := scan(&id)
				if id != late {
					t.Errorf("%s is found at the root, want %s", id, late)
				}
				return err
			})
		}); err != nil {
			t.Error(err)
		}
	})
}

func failure(kind Failure, after time.Duration) error {
	return &PostError{Kind: kind, After: after, Err: errors.New("as told")}
}

// Each kind of failure: how often the post is tried, what then stands, and what becomes of
// it and of the note behind it.
func TestFailuresOfPosts(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		taken    bool // the failing attempt was taken all the same
		times    int  // attempts that fail
		finder   bool
		keys     bool
		stands   []string
		tries    int
		reason   string // set aside
		attempts int64  // of it
		least    time.Duration
		most     time.Duration
	}{
		"unsure, taken":             {err: failure(Unsure, 0), taken: true, times: 1, finder: true, stands: []string{"first", "behind"}, tries: 2, most: time.Second},
		"unsure, not taken":         {err: failure(Unsure, 0), times: 1, finder: true, stands: []string{"first", "behind"}, tries: 3, most: time.Second},
		"any error is unsure":       {err: errors.New("reset"), taken: true, times: 1, finder: true, stands: []string{"first", "behind"}, tries: 2, most: time.Second},
		"unsure, with a key":        {err: failure(Unsure, 0), taken: true, times: 1, keys: true, stands: []string{"first", "behind"}, tries: 3, most: time.Second},
		"unsure, and nothing tells": {err: failure(Unsure, 0), taken: true, times: 1, stands: []string{"first", "behind"}, tries: 2, reason: "unknown_fate", attempts: 1, most: time.Second},
		"unsent":                    {err: failure(Unsent, 0), times: 4, finder: true, stands: []string{"first", "behind"}, tries: 6, least: 7 * time.Second, most: 15 * time.Second},
		"unsent for hours":          {err: failure(Unsent, 0), times: 60, finder: true, stands: []string{"first", "behind"}, tries: 62, least: 2 * time.Hour, most: 5 * time.Hour},
		"rate limited":              {err: failure(RateLimit, 2*time.Second), times: 1, finder: true, stands: []string{"first", "behind"}, tries: 3, least: 2 * time.Second, most: 2 * time.Second},
		"rate limited for long":     {err: failure(RateLimit, 2*time.Hour), times: 1, finder: true, stands: []string{"first", "behind"}, tries: 3, least: lastWait, most: lastWait},
		"rate limited, and no word": {err: failure(RateLimit, 0), times: 2, finder: true, stands: []string{"first", "behind"}, tries: 4, least: time.Second, most: 3 * time.Second},
		"refused":                   {err: failure(RefusedPost, 0), times: 1, finder: true, stands: []string{"behind"}, tries: 2, reason: "refused", attempts: 1},
		"the root is gone":          {err: failure(RootGone, 0), times: 1, finder: true, stands: []string{"behind"}, tries: 2, reason: "root_gone", attempts: 1},
		"the thread is closed":      {err: failure(Closed, 0), times: 1, finder: true, stands: []string{"behind"}, tries: 2, reason: "closed", attempts: 1},
		"a kind nobody knows":       {err: failure("odd", 0), taken: true, times: 1, finder: true, stands: []string{"first", "behind"}, tries: 2, most: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoard()
			b.limits.Keys = tc.keys
			b.fail = func(n int, _ string, _ Outgoing) (bool, error) {
				if n <= tc.times {
					return tc.taken, tc.err
				}
				return true, nil
			}
			var chat Chat = plainBoard{b}
			if tc.finder {
				chat = b
			}
			onBoard(t, chat, func(t *testing.T, h *house) {
				thread := h.chatThread("root A", 1)
				begun, step := time.Now(), max(50*time.Millisecond, tc.most/100)
				h.send(note(thread, "1", "first"), note(thread, "2", "behind"))
				for { // until all is said
					synctest.Wait()
					left := h.outbox()
					if open := slices.ContainsFunc(left, func(e OutboxEntry) bool { return e.State != "set_aside" }); !open {
						break
					}
					if time.Since(begun) > 24*time.Hour {
						t.Fatalf("after a day: %+v", left)
					}
					time.Sleep(step)
				}
				if took := time.Since(begun); took < tc.least || took > tc.most+step {
					t.Errorf("took %s, want %s to %s", took, tc.least, tc.most)
				}
				if got := b.texts("root A"); !slices.Equal(got, tc.stands) {
					t.Errorf("stands: %q, want %q", got, tc.stands)
				}
				if len(b.tries) != tc.tries {
					t.Errorf("%d posts were tried, want %d", len(b.tries), tc.tries)
				}
				for _, p := range b.tries {
					if p.Text == "first" && p.Key != b.tries[0].Key {
						t.Errorf("keys %q and %q of one post", p.Key, b.tries[0].Key)
					}
				}
				left := h.outbox()
				if tc.reason == "" && len(left) != 0 || tc.reason != "" && (len(left) != 1 || left[0].Reason != tc.reason || left[0].Attempts != tc.attempts || left[0].Fault == "") {
					t.Errorf("left: %+v", left)
				}
			})
		})
	}
}

// What one platform answers with about all posts stops all; about one thread, only that.
func TestRateLimitsOfAThreadAndOfAll(t *testing.T) {
	for _, wide := range []bool{false, true} {
		b := newBoard()
		b.fail = func(n int, _ string, p Outgoing) (bool, error) {
			if n == 1 {
				return false, &PostError{Kind: RateLimit, After: time.Minute, Wide: wide, Err: errors.New("slow down")}
			}
			return true, nil
		}
		onBoard(t, b, func(t *testing.T, h *house) {
			one, two := h.chatThread("root A", 1), h.chatThread("root B", 1)
			h.send(note(one, "1", "one"))
			synctest.Wait()
			h.send(note(two, "2", "two"))
			synctest.Wait()
			if got, want := len(b.texts("root B")), map[bool]int{false: 1, true: 0}[wide]; got != want {
				t.Errorf("wide %v: %d posts in the other thread meanwhile, want %d", wide, got, want)
			}
			time.Sleep(time.Minute + time.Second)
			synctest.Wait()
			if len(b.texts("root A")) != 1 || len(b.texts("root B")) != 1 || len(h.outbox()) != 0 {
				t.Errorf("wide %v: %q, left %+v", wide, b.stood, h.outbox())
			}
			if n := h.count("deliveries", "rate_limited"); n != 1 {
				t.Errorf("counted %d", n)
			}
		})
	}
}

func (h *house) count(what, label string) int64 {
	for _, c := range h.threads.Counts() {
		if c.What == what && c.Label == label {
			return c.N
		}
	}
	return 0
}

// A post that is never taken while others are does not hold up its thread for good.
func TestPoisonOfAChatIsSetAside(t *testing.T) {
	b := newBoard()
	b.fail = func(_ int, _ string, p Outgoing) (bool, error) {
		if strings.HasPrefix(p.Text, "poison") {
			return false, failure(Unsent, 0)
		}
		return true, nil
	}
	onBoard(t, b, func(t *testing.T, h *house) {
		one, two := h.chatThread("root A", 1), h.chatThread("root B", 1)
		h.send(note(one, "1", "poison"+strings.Repeat(" and more", 100)), note(one, "2", "behind"))
		for i := range 60 {
			h.send(note(two, fmt.Sprint("b", i), "fine"))
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if got := b.texts("root A"); !slices.Equal(got, []string{"behind"}) {
			t.Errorf("stands: %q", got)
		}
		left := h.outbox()
		if len(left) != 2 || left[0].Reason != "gave_up" || left[1].Reason != "gave_up" || left[1].Part != 1 || left[1].Attempts != 0 {
			t.Errorf("left: %+v", left) // the second part says nothing without the first
		}
	})
}

// A thread that hangs delays nobody else, and a post that takes too long is looked for.
func TestAThreadThatHangs(t *testing.T) {
	b := newBoard()
	onBoard(t, b, func(t *testing.T, h *house) {
		open := make(chan struct{})
		b.block = map[string]chan struct{}{"root A": open}
		stuck, free := h.chatThread("root A", 1), h.chatThread("root B", 1)
		h.send(note(stuck, "1", "one"), note(stuck, "2", "two"))
		for i := range 20 {
			h.send(note(free, fmt.Sprint("f", i), fmt.Sprint(i)))
		}
		synctest.Wait()
		if got := b.texts("root B"); len(got) != 20 {
			t.Errorf("the other thread has %q", got)
		}
		time.Sleep(postLimit + 2*time.Second)
		synctest.Wait()
		if b.finds == 0 || len(b.texts("root A")) != 0 {
			t.Errorf("looked for it %d times; stands: %q", b.finds, b.texts("root A"))
		}
		close(open)
		time.Sleep(lastWait)
		synctest.Wait()
		if got := b.texts("root A"); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("stands: %q", got)
		}
	})
}

// However posts of many threads fall, those of a thread keep their order and are not mixed.
func TestOrderOfAThread(t *testing.T) {
	b := newBoard()
	b.fail = func(n int, _ string, p Outgoing) (bool, error) {
		switch {
		case n%7 == 0:
			return false, failure(Unsent, 0)
		case n%11 == 0:
			return true, failure(Unsure, 0)
		}
		return true, nil
	}
	onBoard(t, b, func(t *testing.T, h *house) {
		want := map[string]string{}
		for i := range 12 {
			thread, address := "", fmt.Sprint("root ", i)
			thread = h.chatThread(address, 1)
			for j := range 5 {
				body := fmt.Sprintf("%d.%d ", i, j) + strings.Repeat("x", 600) + "\n"
				want[address] += body
				h.send(note(thread, fmt.Sprintf("n%d.%d", i, j), body))
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for address, text := range want {
			if got := strings.Join(b.texts(address), ""); got != text {
				t.Errorf("%s: got\n%s\nwant\n%s", address, got, text)
			}
		}
	})
}

// A gateway that comes after one that was killed while it sent.
func TestAfterAKillWhileSending(t *testing.T) {
	for _, tc := range []struct {
		name    string
		taken   bool
		finder  bool
		keys    bool
		stands  int
		unknown bool
	}{
		{"taken, found", true, true, false, 1, false},
		{"not taken, not found", false, true, false, 1, false},
		{"taken, by key", true, false, true, 1, false},
		{"not taken, by key", false, false, true, 1, false},
		{"taken, nothing tells", true, false, false, 1, true},
		{"not taken, nothing tells", false, false, false, 0, true},
	} {
		b := newBoard()
		b.limits.Keys = tc.keys
		var chat Chat = plainBoard{b}
		if tc.finder {
			chat = b
		}
		path := filepath.Join(t.TempDir(), "journal.db")
		synctest.Test(t, func(t *testing.T) {
			h := openHouse(t, path)
			h.people()
			if err := h.threads.Attach(chat); err != nil {
				t.Fatal(err)
			}
			thread := h.chatThread("root A", 1)
			h.send(note(thread, "1", "one"), note(thread, "2", "two"))
			var d delivery
			if err := h.store.Update(t.Context(), func(tx journal.Tx) error {
				list, err := selectDeliveries(tx, `WHERE about = '1'`)
				if err != nil {
					return err
				}
				d = list[0]
				_, err = tx.Exec(`UPDATE outbox SET state = 'sending', owner = 'gone', attempts = 1 WHERE id = $1`, d.id)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if tc.taken {
				if _, err := b.Post(t.Context(), "root A", Outgoing{Mark: d.mark, Key: d.key(), Text: d.body}); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.store.Close(); err != nil {
				t.Fatal(err)
			}
			h = boardHouse(t, path, chat, false)
			defer h.close()
			synctest.Wait()
			ones := 0
			for _, s := range b.texts("root A") {
				if s == "one" {
					ones++
				}
			}
			if got := b.texts("root A"); ones != tc.stands || got[len(got)-1] != "two" {
				t.Errorf("%s: stands %q", tc.name, got)
			}
			left := h.outbox()
			if tc.unknown && (len(left) != 1 || left[0].Reason != "unknown_fate") || !tc.unknown && len(left) != 0 {
				t.Errorf("%s: left %+v", tc.name, left)
			}
		})
	}
}

// A restart keeps the waiting; a clock that was set back does not park anything.
func TestTheNextAttemptIsKept(t *testing.T) {
	for _, tc := range []struct {
		in   time.Duration
		want time.Duration
	}{{0, 0}, {time.Minute, time.Minute}, {lastWait, lastWait}, {lastWait + 10*time.Minute, 0}, {-10 * time.Minute, 0}} {
		b := newBoard()
		path := filepath.Join(t.TempDir(), "journal.db")
		synctest.Test(t, func(t *testing.T) {
			h := openHouse(t, path)
			h.people()
			thread := h.chatThread("root A", 1)
			h.send(note(thread, "1", "one"))
			if err := h.store.Update(t.Context(), func(tx journal.Tx) error {
				_, err := tx.Exec(`UPDATE outbox SET next_at = $1, attempts = 3`, time.Now().Add(tc.in).UnixMilli())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if err := h.store.Close(); err != nil {
				t.Fatal(err)
			}
			h = boardHouse(t, path, b, false)
			defer h.close()
			begun := time.Now()
			for len(b.texts("root A")) == 0 && time.Since(begun) < time.Hour {
				time.Sleep(time.Second)
				synctest.Wait()
			}
			if took := time.Since(begun); took < tc.want || took > tc.want+2*time.Second {
				t.Errorf("due in %s: delivered after %s", tc.in, took)
			}
		})
	}
}

// full is a store that cannot write for a while.
type full struct {
	journal.Store
	mu    sync.Mutex
	fails int
}

func (f *full) Update(ctx context.Context, fn func(journal.Tx) error) error {
	f.mu.Lock()
	f.fails--
	fail := f.fails >= 0
	f.mu.Unlock()
	if fail {
		return errors.New("disk full")
	}
	return f.Store.Update(ctx, fn)
}

// A disk that is full before the claim, or between the post and the mark that it is made:
// nothing is lost and nothing stands twice.
func TestDiskFullWhileDelivering(t *testing.T) {
	for _, when := range []string{"before", "between"} {
		b := newBoard()
		path := filepath.Join(t.TempDir(), "journal.db")
		synctest.Test(t, func(t *testing.T) {
			h := openHouse(t, path)
			h.people()
			f := &full{Store: h.store}
			h.threads.store = f
			if err := h.threads.Attach(plainBoard{b}); err != nil {
				t.Fatal(err)
			}
			thread := h.chatThread("root A", 1)
			h.start()
			defer h.close()
			if when == "before" {
				f.fails = 20
			}
			b.fail = func(n int, _ string, _ Outgoing) (bool, error) {
				if when == "between" && n == 1 {
					f.mu.Lock()
					f.fails = 20
					f.mu.Unlock()
				}
				return true, nil
			}
			h.send(note(thread, "1", "one"), note(thread, "2", "two"))
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if got := b.texts("root A"); !slices.Equal(got, []string{"one", "two"}) || len(h.outbox()) != 0 {
				t.Errorf("%s: stands %q, left %+v", when, got, h.outbox())
			}
		})
	}
}

// What is set aside is tried again when an operator says so, in its old place; one of which
// nobody knows whether it stands there only when they say that they know.
func TestRetry(t *testing.T) {
	b := newBoard()
	b.fail = func(n int, _ string, p Outgoing) (bool, error) {
		switch {
		case n == 1:
			return false, failure(Closed, 0)
		case p.Text == "unsure" && n == 2:
			return true, failure(Unsure, 0)
		}
		return true, nil
	}
	onBoard(t, plainBoard{b}, func(t *testing.T, h *house) {
		thread, other := h.chatThread("root A", 1), h.chatThread("root B", 1)
		long := strings.Repeat("x", 600)
		h.send(note(thread, "1", long))
		synctest.Wait()
		h.send(note(other, "2", "unsure"))
		time.Sleep(lastWait)
		synctest.Wait()
		left := h.outbox()
		if len(left) != 3 || left[0].Reason != "closed" || left[1].Reason != "closed" || left[2].Reason != "unknown_fate" {
			t.Fatalf("left: %+v", left)
		}
		code := func(by ops.Identity, id string, again bool) ops.Code {
			e, err := h.threads.Retry(t.Context(), by, id, again)
			if err == nil {
				if e.ID != id || e.State != "queued" || e.Attempts != 0 || e.Fault != "" {
					t.Errorf("retried: %+v", e)
				}
				return ""
			}
			return service.AsFault(err).Code
		}
		for _, tc := range []struct {
			by    ops.Identity
			id    string
			again bool
			want  ops.Code
		}{
			{scout, left[0].ID, true, ops.NotPermitted}, {relay, left[0].ID, true, ops.NotPermitted},
			{ada, "o-none", false, ops.NotFound}, {ada, left[2].ID, false, ops.Conflict},
			{ada, left[0].ID, false, ""}, {ada, left[2].ID, true, ""},
		} {
			if got := code(tc.by, tc.id, tc.again); got != tc.want {
				t.Errorf("%s retries %s, again %v: %q, want %q", tc.by, tc.id, tc.again, got, tc.want)
			}
		}
		time.Sleep(lastWait)
		synctest.Wait()
		if got := strings.Join(b.texts("root A"), ""); got != long {
			t.Errorf("stands: %q", got)
		}
		if got := b.texts("root B"); len(got) != 2 || len(h.outbox()) != 0 { // the operator was told
			t.Errorf("stands: %q, left %+v", got, h.outbox())
		}
		if got := code(ada, left[0].ID, false); got != ops.NotFound {
			t.Errorf("one that is delivered: %q", got)
		}
	})
}

func TestAttachRefuses(t *testing.T) {
	h := openHouse(t, filepath.Join(t.TempDir(), "journal.db"))
	defer h.store.Close()
	if err := h.threads.Attach(newBoard()); err != nil {
		t.Fatal(err)
	}
	short, odd := newBoard(), newBoard()
	short.limits.Post = 499
	odd.limits.Unit = "words"
	for _, tc := range []struct {
		chat Chat
		want string
	}{
		{newBoard(), "two of this name"}, {named{newBoard(), "rooms"}, "not \"rooms\""}, {named{newBoard(), "api"}, "or \"api\""}, {named{newBoard(), "A"}, "want a name"},
		{named{short, "short"}, "at least 500"}, {named{odd, "odd"}, "want bytes, runes or utf16"},
	} {
		if err := h.threads.Attach(tc.chat); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("attach %s: %v, want %q", tc.chat.Name(), err, tc.want)
		}
	}
}

type named struct {
	*board
	name string
}

func (n named) Name() string { return n.name }

// A platform's key is another one when anything of the post is another.
func TestKeyOfADelivery(t *testing.T) {
	d := delivery{adaptor: "board", thread: "t-1", mark: "r-1", body: "text"}
	seen := map[string]bool{d.key(): true}
	for _, change := range []func(*delivery){
		func(d *delivery) { d.body = "texts" }, func(d *delivery) { d.thread = "t-2" }, func(d *delivery) { d.mark = "r-2" },
		func(d *delivery) { d.file = "f" }, func(d *delivery) { d.mention = "U" }, func(d *delivery) { d.adaptor = "b" },
		func(d *delivery) { d.body, d.file = "", "text" },
	} {
		e := d
		change(&e)
		if seen[e.key()] {
			t.Errorf("%+v has a key that is taken", e)
		}
		seen[e.key()] = true
	}
	if again := d; !seen[again.key()] {
		t.Error("the same delivery has another key")
	}
}
