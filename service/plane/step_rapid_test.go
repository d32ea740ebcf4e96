package plane

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// TestAnyStory goes far into worlds that are too large to be explored whole: whatever
// happens in whatever order, no law breaks.
func TestAnyStory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := bounds{ticks: 60, deadline: rapid.IntRange(3, 30).Draw(t, "deadline"), leases: maxLeases, workers: 2, says: "hcdrfwaipt", words: 3, reboots: 2,
			budget: Budget{rapid.SampledFrom(Classes()).Draw(t, "class"): 1}, cancel: rapid.Bool().Draw(t, "cancel"), people: true, verifier: true,
			outside: true, restore: true, frozen: false}
		m := &model{bounds: b, step: Step, waysOn: make(map[standing]bool), forgedAt: make(map[seenRow]bool)}
		w := m.begin()
		defer func() {
			if p := recover(); p != nil {
				var law broken
				if err, ok := p.(error); ok && errors.As(err, &law) {
					t.Fatalf("%s, at %s", law.what, m.doing)
				}
				panic(p)
			}
		}()
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			var then []world
			var did []action
			m.next(&w, func(n world, a action) { then, did = append(then, n), append(did, a) })
			if len(then) == 0 {
				return
			}
			i := rapid.IntRange(0, len(then)-1).Draw(t, "what")
			t.Logf("%d  %s", w.now, did[i])
			m.doing = did[i]
			w = then[i]
			m.check(&w)
		}
	})
}
