package tests

import (
	"fmt"
	"net/http"
	"regexp"
	"testing"

	"inband/service/threads"
)

// carries is how an envelope shows its key.
var carries = regexp.MustCompile(`TOOL#([a-z0-9-]+) op`)

// wake has the operator write to an agent. It returns the thread of the envelope, and the
// key that the agent's orders with side effects carry there; dm.send is what they may do.
func (g *gateway) wake(t testing.TB, agent, errand string) (thread, key string) {
	t.Helper()
	var sent struct{ Result struct{ Thread, Post string } }
	err := g.do(http.MethodPost, "/exec", map[string]any{"op": "dm.send", "params": map[string]string{"to": agent, "text": errand}}, &sent)
	if err != nil {
		t.Fatalf("wake %s: %v\n%s", agent, err, g.log)
	}
	until(t, "the envelope is posted", func() bool {
		posts, err := g.posts(sent.Result.Thread)
		if err != nil {
			t.Fatalf("the thread of the envelope: %v", err)
		}
		for _, p := range posts {
			if m := carries.FindStringSubmatch(p.Text); p.Kind == "wake" && p.ID == sent.Result.Post && m != nil {
				key = m[1]
			}
		}
		return key != ""
	})
	return sent.Result.Thread, key
}

// posts returns the posts of a thread, all of them.
func (g *gateway) posts(thread string) (posts []threads.Post, err error) {
	for after := int64(0); ; {
		var page threads.Showing
		if err := g.get(fmt.Sprintf("/v1/threads/%s?after=%d", thread, after), &page); err != nil {
			return nil, err
		}
		posts = append(posts, page.Posts...)
		if after = page.Next; after == 0 {
			return posts, nil
		}
	}
}
