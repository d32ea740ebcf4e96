package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

const echoOps = `provider: test
title: For the tests
ops:
  test.a:
    summary: Print a value.
    side_effecting: false
    params: {v: {type: pattern, pattern: '[a-z0-9]+', max: 40}}
    argv: [/bin/echo, a, {param: v}]
    end_of_options: unsupported because echo has none
  test.b:
    summary: Print a value.
    side_effecting: false
    params: {v: {type: pattern, pattern: '[a-z0-9]+', max: 40}}
    argv: [/bin/echo, b, {param: v}]
    end_of_options: unsupported because echo has none
`

// TestCallsDoNotMix (case x04): of a thousand calls at once each gets what it asked for,
// while the ops are read again and again, and so stands on record. Run it with -race.
func TestCallsDoNotMix(t *testing.T) {
	folder := stateFolder(t.TempDir())
	if err := os.MkdirAll(folder.ops(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder.ops(), "test.yaml"), []byte(echoOps), 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := start(t, folder, time.Second)
	calls, clients := 1000, 32
	if testing.Short() {
		calls = 200
	}
	type sent struct{ call, op, value string }
	work := make(chan int)
	var mu sync.Mutex
	var all []sent
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for n := range work {
				op, value := "test."+string("ab"[n%2]), fmt.Sprintf("v%dx%d", n, rand.Uint64())
				var done struct {
					Call, Op string
					Result   struct{ Stdout string }
				}
				_, err := c.get(t.Context(), request{route: routeExec, body: map[string]any{"op": op, "params": map[string]string{"v": value}}}, &done)
				if want := op[len("test."):] + " " + value + "\n"; err != nil || done.Op != op || done.Result.Stdout != want {
					t.Errorf("%s %s: got %+v, %v", op, value, done, err)
				}
				mu.Lock()
				all = append(all, sent{done.Call, op, value})
				mu.Unlock()
			}
		})
	}
	for n := range calls {
		if n%(calls/20) == 0 {
			if _, err := c.get(t.Context(), request{route: routeReload}, nil); err != nil {
				t.Errorf("reload: %v", err)
			}
		}
		work <- n
	}
	close(work)
	group.Wait()
	for _, s := range all {
		var shown struct {
			Op      string
			Params  struct{ V string }
			Receipt struct{ Argv []string }
		}
		raw, err := c.get(t.Context(), request{route: routeCall, names: []string{s.call}}, &shown)
		if err != nil || shown.Op != s.op || shown.Params.V != s.value {
			t.Errorf("call %s of %s %s is recorded as %s, %v", s.call, s.op, s.value, raw, err)
		}
		if want := []string{"/bin/echo", s.op[len("test."):], s.value}; !slices.Equal(shown.Receipt.Argv, want) {
			t.Errorf("the receipt of call %s has %q, want %q", s.call, shown.Receipt.Argv, want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if len(all) != calls {
		t.Errorf("%d calls were made, want %d", len(all), calls)
	}
}
