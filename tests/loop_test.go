package tests

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/threads"
)

// raised is a wake as the API lists it.
type raised struct {
	Wake, Agent, Thread, Cause, State, Root string
	Hops                                    int
}

// raisedWakes are all wakes, newest first.
func (g *gateway) raisedWakes(t testing.TB) (all []raised) {
	t.Helper()
	for path := "/v1/wakes?limit=200"; ; {
		var page struct {
			Wakes []raised
			Next  string
		}
		if err := g.get(path, &page); err != nil {
			t.Fatal(err)
		}
		for _, w := range page.Wakes {
			if err := g.get("/v1/wakes/"+w.Wake, &w); err != nil { // the list has neither root nor hops
				t.Fatal(err)
			}
			all = append(all, w)
		}
		if page.Next == "" {
			return all
		}
		path = "/v1/wakes?limit=200&after=" + page.Next
	}
}

// limits are the notices that agents have talked to each other long enough, in all threads.
func (g *gateway) limits(t testing.TB) (n int) {
	t.Helper()
	var list struct{ Threads []struct{ ID string } }
	if err := g.get("/v1/threads?limit=200", &list); err != nil {
		t.Fatal(err)
	}
	for _, thread := range list.Threads {
		posts, err := g.posts(thread.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range posts {
			if p.Kind == "result" && strings.Contains(p.Text, string(ops.LoopLimit)) {
				n++
			}
		}
	}
	return n
}

// still reports whether nothing of the agents goes on: each wake has ended, no call is
// under way, and none was received while this looked.
func (g *gateway) still(t testing.TB) bool {
	t.Helper()
	settled := func() int {
		var page struct{ Calls []struct{ State ops.State } }
		if err := g.get("/v1/calls?limit=200", &page); err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Calls {
			if !c.State.Settled() {
				return -1
			}
		}
		return len(page.Calls)
	}
	before := settled()
	var open struct{ Wakes []raised }
	if err := g.get("/v1/wakes?state=live", &open); err != nil {
		t.Fatal(err)
	}
	return before >= 0 && len(open.Wakes) == 0 && settled() == before
}

// Two agents, each a process of the runtime in docs/agents.md, write to each other without
// end. They come to the cap, one notice says so, and a person may wake them again (tb-017).
func TestTwoAgents(t *testing.T) {
	g, dir := serveAlive(t, build(t, ""), filepath.Join(t.TempDir(), "state")), t.TempDir()
	for me, other := range map[string]string{"ada": "bob", "bob": "ada"} {
		g.docsAgent(t, dir, me, `key=$(sed -n 's/.*TOOL#\([a-z0-9-]*\) op.*/\1/p' | tail -1)
echo "[DM#$key {\"to\":\"`+other+`\",\"text\":\"and what do you say?\"}]"
echo "[RESULT#$key {\"verdict\":\"done\",\"summary\":\"asked `+other+`\"}]"`)
	}
	talk := func() {
		t.Helper()
		if err := g.do(http.MethodPost, "/exec", map[string]any{"op": "dm.send", "params": map[string]string{"to": "ada", "text": "Talk to bob."}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for round := 1; round <= 2; round++ {
		talk()
		until(t, "they are at the cap", func() bool { return g.still(t) && g.limits(t) == round })
		wakes := map[string]int{} // of each root
		for _, w := range g.raisedWakes(t) {
			wakes[w.Root]++
			if w.Hops > threads.MaxHops {
				t.Errorf("%s is %d hops from a person, at most %d", w.Wake, w.Hops, threads.MaxHops)
			}
		}
		if len(wakes) != round {
			t.Errorf("%d root causes, want %d", len(wakes), round)
		}
		for root, n := range wakes {
			if n != threads.MaxHops+1 {
				t.Errorf("%d wakes of %s, want %d", n, root, threads.MaxHops+1)
			}
		}
	}
}

// Agents that all answer one another never pass the caps, however many they are and to how
// many each one writes; while they are stopped nothing of it goes on, and what an agent
// says about that changes nothing (tb-017, tb-018, tb-019).
func TestLoopOfAgents(t *testing.T) {
	for _, tc := range []struct {
		agents, answers int
		wakes           int // of the one cause
	}{
		{2, 1, threads.MaxHops + 1}, {3, 2, threads.MaxWakesOfRoot}, {5, 1, threads.MaxHops + 1}, {10, 3, threads.MaxWakesOfRoot}, {20, 7, threads.MaxWakesOfRoot},
	} {
		t.Run(fmt.Sprintf("%d agents", tc.agents), func(t *testing.T) {
			t.Parallel()
			g := serveAlive(t, build(t, ""), filepath.Join(t.TempDir(), "state"))
			names, tokens := make([]string, tc.agents), map[string]string{}
			for i := range names {
				names[i] = fmt.Sprint("agent", i)
				tokens[names[i]] = g.agent(t, names[i])
			}
			if err := g.do(http.MethodPost, "/exec", map[string]any{"op": "dm.send", "params": map[string]string{"to": "agent0", "text": "Talk to each other."}}, nil); err != nil {
				t.Fatal(err)
			}
			answered := map[string]bool{}
			// answer has the agent of each open wake write to others and end it.
			answer := func() {
				var open struct{ Wakes []raised }
				if err := g.get("/v1/wakes?state=open&limit=200", &open); err != nil {
					t.Fatal(err)
				}
				for _, w := range open.Wakes {
					if answered[w.Wake] {
						continue
					}
					posts, err := g.posts(w.Thread)
					if err != nil {
						t.Fatal(err)
					}
					key := ""
					for _, p := range posts {
						if m := carries.FindStringSubmatch(p.Text); p.Kind == "wake" && m != nil && strings.Contains(p.Text, w.Wake) {
							key = m[1]
						}
					}
					if key == "" {
						continue // its envelope is on the way
					}
					answered[w.Wake] = true
					var me int
					fmt.Sscanf(w.Agent, "agent%d", &me)
					text := ""
					for i := range tc.answers {
						text += fmt.Sprintf("[DM#%s {\"to\":%q,\"text\":\"and you, after %s?\"}]\n", key, names[(me+1+i)%tc.agents], w.Wake)
					}
					text += fmt.Sprintf("[RESULT#%s {\"verdict\":\"done\",\"summary\":\"asked on\"}]", key)
					// Thanks wake nobody, whoever is named in them, and no agent stops others.
					for i, text := range []string{"Thank you, @agent0!", "STOP", text} {
						if err := g.as(tokens[w.Agent], http.MethodPost, "/v1/replies", map[string]string{"thread": w.Thread, "message": fmt.Sprint(w.Wake, i), "text": text}, nil); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			until(t, "some have been woken", func() bool { answer(); return len(answered) >= 3 })
			until(t, "they are stopped and none of their calls runs", func() bool {
				var stop threads.Holding
				if err := g.do(http.MethodPost, "/v1/stop", map[string]bool{"all": true}, &stop); err != nil {
					t.Fatal(err)
				}
				return stop.Running == 0
			})
			until(t, "what has been told is answered", func() bool {
				n := len(answered)
				answer()
				return n == len(answered)
			})
			stopped := len(g.raisedWakes(t))
			for range 20 {
				answer()
			}
			if n := len(g.raisedWakes(t)); n != stopped {
				t.Errorf("%d wakes while they are stopped, %d before", n, stopped)
			}
			if err := g.do(http.MethodPost, "/v1/start", map[string]bool{"all": true}, nil); err != nil {
				t.Fatal(err)
			}
			until(t, "they are at the cap", func() bool { answer(); return g.still(t) && g.limits(t) > 0 })
			wakes, hops, roots := g.raisedWakes(t), 0, map[string]bool{}
			for _, w := range wakes {
				hops, roots[w.Root] = max(hops, w.Hops), true
			}
			if len(wakes) != tc.wakes || hops > threads.MaxHops || len(roots) != 1 {
				t.Errorf("%d wakes of %d causes, %d hops; want %d of one, at most %d", len(wakes), len(roots), hops, tc.wakes, threads.MaxHops)
			}
			if tc.answers == 1 {
				if n := g.limits(t); n != 1 {
					t.Errorf("%d notices of the cap, want one", n)
				}
			}
			if err := g.do(http.MethodPost, "/exec", map[string]any{"op": "dm.send", "params": map[string]string{"to": "agent1", "text": "And now?"}}, nil); err != nil {
				t.Errorf("a person wakes an agent: %v", err)
			}
		})
	}
}
