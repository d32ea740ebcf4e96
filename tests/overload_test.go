package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"sync"
	"testing"

	"inband/ops"
)

// Case x60: a gateway that has no descriptors left says so at once, mixes nothing up,
// and is itself again when the others are done.
func TestFewDescriptors(t *testing.T) {
	l := newSite(t, `provider: test
title: To be run often
ops:
  test.echo: {summary: Print a number., side_effecting: false, params: {number: {type: int, min: 0, max: 9999}}, argv: [/usr/bin/echo, {param: number}]}
`, "")
	l.kill()
	cmd := exec.Command("/bin/sh", "-c", `ulimit -n 64 && exec "$0" "$@"`, l.box, "--state", l.state, "serve", "--listen", "127.0.0.1:0")
	l.gateway = start(t, cmd, l.state)
	if l.isDead() {
		t.Fatalf("the gateway does not start:\n%s", l.log)
	}
	one := func(n int) (status int, code ops.Code) {
		var a struct {
			Code   ops.Code
			Result struct{ Stdout string }
		}
		got := l.send("POST", "/exec", fmt.Sprintf(`{"op":"test.echo","params":{"number":%d}}`, n), bearer(l.token))
		if err := json.Unmarshal(got.body, &a); err != nil {
			t.Errorf("%d: %v in %s", n, err, got.body)
		}
		switch {
		case got.status == http.StatusOK && a.Result.Stdout != fmt.Sprintln(n):
			t.Errorf("%d was answered with %s", n, got.body)
		case got.status == http.StatusServiceUnavailable && got.header.Get("Retry-After") == "":
			t.Errorf("%d: no Retry-After with %s", n, got.body)
		}
		return got.status, a.Code
	}
	var mu sync.Mutex
	answers := map[string]int{}
	for range 3 {
		var group sync.WaitGroup
		for n := range 200 {
			group.Go(func() {
				status, code := one(n)
				if status != http.StatusOK && code != ops.Busy && code != ops.NotStarted { // both: nothing ran, try again
					t.Errorf("%d was answered %d %s, want 200, or 503 BUSY or NOT_STARTED", n, status, code)
				}
				mu.Lock()
				answers[fmt.Sprint(status, " ", code)]++
				mu.Unlock()
			})
		}
		group.Wait()
		until(t, "it is itself again", func() bool { status, _ := one(1); return status == http.StatusOK })
	}
	t.Logf("600 calls were answered %v", answers)
	if answers["503 "+string(ops.Busy)] == 0 || answers["200 "] == 0 {
		t.Errorf("answered %v, want some refused as BUSY and some run", answers)
	}
}
