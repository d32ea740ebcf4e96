package tests

import (
	"strings"
	"testing"
)

// A gateway that is killed before it sends a post into a chat, after the bridge has taken it,
// or after it has written that down: the post stands there once, in its place, and what
// comes after it too.
func TestKilledWhileItPosts(t *testing.T) {
	c := newChat(t)
	for _, mark := range []string{"threads.sending", "threads.sent", "threads.marked"} {
		c.g.kill()
		c.g = serve(t, build(t, "failpoint"), c.state, "INBAND_FAILPOINT="+mark)
		c.events()
		first := c.say("", `[TOOL box.exec {"action":"version"}]`)
		until(t, "the gateway is dead", c.g.isDead)
		c.restart()
		second := c.say(first, `[TOOL box.exec {"action":"health"}]`)
		var got []string
		until(t, "both results stand in the chat", func() bool {
			got = nil
			for _, m := range c.room() {
				if m.Own && m.Root == first {
					got = append(got, m.Text)
				}
			}
			return len(got) >= 2
		})
		until(t, "nothing is left", func() bool {
			var outbox struct{ Outbox []any }
			if err := c.g.get("/v1/outbox", &outbox); err != nil {
				t.Fatal(err)
			}
			return len(outbox.Outbox) == 0
		})
		calls := c.calls()
		for i, id := range []string{first, second} {
			if ran := calls["chat/C1/"+id+"#1"]; len(ran) != 1 || len(got) != 2 || !strings.Contains(got[i], string(ran[0])) {
				t.Errorf("killed at %s: the order ran as %q, and below it stands %q", mark, ran, got)
			}
		}
	}
}
