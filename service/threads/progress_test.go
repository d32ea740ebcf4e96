package threads

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// editBoard is a board that can change its posts.
type editBoard struct {
	*board
	edits    int
	failEdit func(n int) (changed bool, err error)
}

func (e *editBoard) Edit(_ context.Context, address, id string, p Outgoing) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.edits++
	changed, err := true, error(nil)
	if e.failEdit != nil {
		changed, err = e.failEdit(e.edits)
	}
	for i := range e.stood {
		if s := &e.stood[i]; s.id == id && changed {
			if s.address != address {
				return failure(RootGone, 0)
			}
			s.Outgoing = p
			return err
		}
	}
	return err
}

// slow answers with a text after a while.
func slow(took time.Duration, text string) ops.Bound {
	return ops.Bound{Op: ops.Op{Name: "t.slow", Provider: "test", Summary: "Take long.", Timeout: time.Hour},
		Executor: ops.ExecutorFunc(func(ctx context.Context, _ ops.Call) (ops.Outcome, error) {
			timer := time.NewTimer(took)
			defer timer.Stop()
			select {
			case <-timer.C:
				return ops.Success(ops.NewResult(map[string]string{"stdout": text}, "/stdout")), nil
			case <-ctx.Done():
				return ops.Outcome{}, ctx.Err()
			}
		})}
}

// tb-002, tb-007, tb-028, tb-033, tb-034: a thread is told of a call that takes long, once;
// the result takes the place of that post or stands below it, and is never lost.
func TestProgress(t *testing.T) {
	long := strings.Repeat("a line\n", 200)
	for name, tc := range map[string]struct {
		took     time.Duration
		result   string
		fail     func(n int) (bool, error)
		post     int
		edit     int
		stands   []string // what the posts hold
		most     int      // edits
		platform int      // posts of the record that stand as the placeholder
	}{
		"quick":                      {took: 2 * time.Second, result: "it is well", edit: 4000, stands: []string{"it is well"}, platform: 1},
		"in its place":               {took: time.Minute, result: "it is well", edit: 4000, stands: []string{"it is well"}, most: 1, platform: 2},
		"no edits there":             {took: time.Minute, result: "it is well", stands: []string{"it is well"}, platform: 1},
		"too long for an edit":       {took: time.Minute, result: long, edit: 1000, stands: []string{"finished: see below", "a line"}, most: 1, platform: 1},
		"too long for a post":        {took: time.Minute, result: long, post: 1000, edit: 1000, stands: []string{"finished: see below", "a line", "a line"}, most: 1, platform: 1},
		"the edit is refused":        {took: time.Minute, result: "it is well", edit: 4000, fail: func(int) (bool, error) { return false, failure(RefusedPost, 0) }, stands: []string{"not finished yet", "it is well"}, most: 1, platform: 1},
		"the edit is not so fast":    {took: time.Minute, result: "it is well", edit: 4000, fail: func(int) (bool, error) { return false, failure(RateLimit, time.Minute) }, stands: []string{"not finished yet", "it is well"}, most: 1, platform: 1},
		"edited, nobody says":        {took: time.Minute, result: "it is well", edit: 4000, fail: func(int) (bool, error) { return true, failure(Unsure, 0) }, stands: []string{"it is well"}, most: 1, platform: 2},
		"not edited, nobody says":    {took: time.Minute, result: "it is well", edit: 4000, fail: func(int) (bool, error) { return false, errors.New("reset") }, stands: []string{"not finished yet", "it is well"}, most: 3, platform: 1},
		"edited at the second try":   {took: time.Minute, result: "it is well", edit: 4000, fail: func(n int) (bool, error) { return n > 1, map[bool]error{false: errors.New("reset")}[n > 1] }, stands: []string{"it is well"}, most: 2, platform: 2},
		"the thread is closed by it": {took: time.Minute, result: "it is well", edit: 4000, fail: func(int) (bool, error) { return false, failure(Closed, 0) }, stands: []string{"not finished yet", "it is well"}, most: 1, platform: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := &editBoard{board: newBoard(), failEdit: tc.fail}
			b.limits.Post, b.limits.Edit = max(tc.post, 1000), tc.edit
			if tc.post == 0 {
				b.limits.Post = 4000
			}
			path := filepath.Join(t.TempDir(), "journal.db")
			synctest.Test(t, func(t *testing.T) {
				h := openHouse(t, path, slow(tc.took, tc.result))
				if err := h.threads.Attach(b); err != nil {
					t.Fatal(err)
				}
				h.people()
				h.start()
				defer h.close()
				thread := h.chatThread("root A", 1)
				ticket, err := h.door.Submit(t.Context(), ops.Call{Op: "t.slow", By: ada,
					From: ops.Origin{Source: "api/x", Answer: &ops.Address{Adaptor: "board", Opaque: thread}}})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if told := b.texts("root A"); tc.took > 30*time.Second && tc.edit > 0 &&
					(len(told) != 1 || !strings.Contains(told[0], "is not finished yet") || !strings.Contains(told[0], string(ticket.Call))) {
					t.Fatalf("after 30 s: %q", told)
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				texts := b.texts("root A")
				if len(texts) != len(tc.stands) {
					t.Fatalf("stands: %q, want %q", texts, tc.stands)
				}
				for i, want := range tc.stands {
					if !strings.Contains(texts[i], want) {
						t.Errorf("post %d: %q, want %q", i, texts[i], want)
					}
				}
				if b.edits != tc.most {
					t.Errorf("%d edits, want %d", b.edits, tc.most)
				}
				if left := h.outbox(); len(left) != 0 {
					t.Errorf("left: %+v", left)
				}
				results, same := 0, 0
				if err := h.store.View(t.Context(), func(tx journal.Tx) error {
					return tx.Query(`SELECT (SELECT count(*) FROM post WHERE thread = $1 AND kind = 'result'), (SELECT count(*) FROM post WHERE thread = $1 AND platform_id = 'm1')`,
						func(scan func(...any) error) error { return scan(&results, &same) }, thread)
				}); err != nil || results == 0 || same != tc.platform {
					t.Errorf("%d results are on record, %d posts as the first one, want %d: %v", results, same, tc.platform, err)
				}
			})
		})
	}
}

// A gateway that comes after one that was killed while a call took long does not tell of it
// again.
func TestProgressAfterARestart(t *testing.T) {
	b := &editBoard{board: newBoard()}
	b.limits.Edit = 500
	path := filepath.Join(t.TempDir(), "journal.db")
	synctest.Test(t, func(t *testing.T) {
		var ticket service.Ticket
		for i := range 2 {
			h := openHouse(t, path, slow(time.Minute, "it is well"))
			if err := h.threads.Attach(b); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				h.people()
			}
			h.start()
			if i == 0 {
				thread := h.chatThread("root A", 1)
				var err error
				if ticket, err = h.door.Submit(t.Context(), ops.Call{Op: "t.slow", By: ada,
					From: ops.Origin{Source: "api/x", Answer: &ops.Address{Adaptor: "board", Opaque: thread}}}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if err := h.store.Close(); err != nil { // as a kill: nothing more is written
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_ = h.door.Close(ctx)
				h.threads.Close()
				continue
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if got := b.texts("root A"); len(got) != 1 || !strings.Contains(got[0], "it is well") || b.edits != 1 {
				t.Errorf("call %s: stands %q after %d edits", ticket.Call, got, b.edits)
			}
			h.close()
		}
	})
}
