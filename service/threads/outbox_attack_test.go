package threads

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"inband/ops"
	"inband/service/journal"
)

// What was heard in a thread before its root was known is known in the thread that it
// turns out to be, and so is a stop.
func TestRoot_WhatWasHeardBefore(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		lost := make(chan struct{})
		s.board.block = map[string]chan struct{}{"room @U1": lost}
		w := s.raise(errand(scout, ""))
		order := `[DM {"to":"clerk","text":"pay"}]`
		in := s.said("U9", order)
		in.Address = "root m1" // as the first post will make it
		heard := s.receive(in)
		stop := s.said("UA", "STOP")
		stop.Address = in.Address
		s.receive(stop)
		if heard.Thread == w.Thread {
			t.Fatal("the thread is known too early for this test")
		}
		close(lost)
		synctest.Wait()
		if address := s.addressOf(w.Thread); address != "root m1" {
			t.Fatalf("the thread stands at %q", address)
		}
		if err := s.store.View(t.Context(), func(tx journal.Tx) error {
			got, err := echoed(tx, w.Thread, "scout", orderDigest("dm.send", []byte(`{"to":"clerk","text":"pay"}`)))
			if err != nil {
				return err
			}
			ok, err := clean(tx, w.Thread, "scout")
			if got != ops.EchoFound || ok {
				t.Errorf("echo %d, clean %v in the thread where a stranger has said it", got, ok)
			}
			if err != nil {
				return err
			}
			held, err := s.door.Held(tx, w.Thread)
			if !held {
				t.Error("the thread in which an operator wrote STOP is not stopped")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// An agent may answer an envelope before the chat has said where it stands. Its words are
// not taken until that is known, since the key would seem to be of another thread.
func TestRoot_AnsweredBeforeItIsKnown(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		lost := make(chan struct{})
		s.board.block = map[string]chan struct{}{"room @U1": lost}
		e := errand(scout, "")
		e.Ops = []ops.OpName{"dm.send"}
		w := s.raise(e)
		synctest.Wait() // its envelope is on the way
		var key string
		s.one(&key, `SELECT key FROM wake WHERE id = $1`, string(w.ID))
		early := s.said("U1", fmt.Sprintf(`[DM#%s {"to":"clerk","text":"on it"}]`, key))
		early.Address = "root m1" // as the first post will make it
		_, err := s.threads.Receive(t.Context(), early)
		var fault *ops.Fault
		if !errors.As(err, &fault) || fault.Code != ops.Unavailable {
			t.Fatalf("an answer before the root is known: %v, want %s", err, ops.Unavailable)
		}
		if n := s.number(`SELECT count(*) FROM inbound`); n != 0 {
			t.Errorf("%d messages are remembered as received", n)
		}
		other := s.said("U1", "No order of that wake here.")
		s.receive(other) // holds up nothing else
		close(lost)
		synctest.Wait()
		heard := s.receive(early)
		if heard.Thread != w.Thread || heard.Reply == nil || len(heard.Reply.Calls) != 1 || heard.Reply.Calls[0].State != ops.Received {
			t.Errorf("the answer handed in again: %+v, want its order to run in thread %s", heard, w.Thread)
		}
	})
}

// Whoever was woken below a post before it was known where that stands answers, with a good
// key, in the thread that it turns out to be.
func TestRoot_WokenBeforeItIsKnown(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		lost := make(chan struct{})
		s.board.block = map[string]chan struct{}{"room @U1": lost}
		w := s.raise(errand(scout, ""))
		synctest.Wait()
		mention := s.said("UA", "have a look")
		mention.Address, mention.Mentions = "root m1", []string{"U1"} // as the first post will make it
		early := s.receive(mention).Thread
		if early == w.Thread {
			t.Fatal("the thread is known too early for this test")
		}
		var key string
		s.one(&key, `SELECT key FROM wake WHERE thread = $1`, early)
		close(lost)
		synctest.Wait()
		answer := s.said("U1", fmt.Sprintf("[DM#%s {\"to\":\"clerk\",\"text\":\"on it\"}]\n[RESULT#%[1]s {\"verdict\":\"done\",\"summary\":\"seen\"}]", key))
		answer.Address = "root m1"
		heard := s.receive(answer)
		if heard.Thread != w.Thread || heard.Reply == nil || heard.Reply.Verdict != Done || len(heard.Reply.Calls) != 1 || heard.Reply.Calls[0].State != ops.Received {
			t.Errorf("the answer is %+v, want it in thread %s with its order running and the wake done", heard, w.Thread)
		}
	})
}

func (s *square) addressOf(thread string) (address string) {
	s.t.Helper()
	s.one(&address, `SELECT address FROM thread WHERE id = $1`, thread)
	return address
}

// A post of which it is not known whether it stands there is looked for again when it is
// tried again, also when the platform refused to look.
func TestRetry_LooksFirst(t *testing.T) {
	onSquare(t, func(t *testing.T, s *square) {
		thread := s.receive(s.said("UA", "hello")).Thread
		s.board.mu.Lock()
		s.board.fail = func(n int, _ string, _ Outgoing) (bool, error) {
			return true, &PostError{Kind: Unsure, Err: fmt.Errorf("the answer is lost")}
		}
		s.board.noFnd = &PostError{Kind: RootGone, Err: fmt.Errorf("404")} // find has moved
		s.board.mu.Unlock()
		s.send(outgoing{kind: "note", about: "x", thread: thread, body: "once"})
		time.Sleep(time.Hour)
		synctest.Wait()
		s.board.mu.Lock()
		s.board.fail, s.board.noFnd = nil, nil
		s.board.mu.Unlock()
		var id, reason string
		s.one(&id, `SELECT id FROM outbox WHERE about = 'x'`)
		s.one(&reason, `SELECT reason FROM outbox WHERE about = 'x'`)
		if reason != unknownFate {
			t.Errorf("set aside as %q, though it may stand there", reason)
		}
		if _, err := s.threads.Retry(context.Background(), ada, id, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if texts := s.board.texts("root A"); len(texts) != 1 {
			t.Errorf("it stands there %d times: %q", len(texts), texts)
		}
		var state string
		if s.one(&state, `SELECT state FROM outbox WHERE about = 'x'`); state != "delivered" {
			t.Errorf("it is %s", state)
		}
	})
}
