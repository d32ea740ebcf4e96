package plane

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"strings"
	"testing"
	"time"

	"inband/ops"
)

// worlds are the explorations. Together they see every rule and every guard; the long
// form (INBAND_CHECK=all) has further ones that see more of them at once.
var worlds = []bounds{
	{name: "verdicts", ticks: 1, deadline: 9, leases: 2, workers: 1, says: "rf", budget: Budget{InvalidResult: 1}, verifier: true, people: true, cancel: true},
	{name: "restored", ticks: 5, deadline: 9, leases: 2, workers: 1, says: "r", budget: Budget{WorkerLost: 1}, restore: true},
	{name: "talk", ticks: 4, deadline: 3, leases: 1, workers: 1, says: "hcrfda", words: 1, budget: Budget{}, forged: true},
	{name: "leases", ticks: 5, deadline: 9, leases: 2, workers: 2, says: "r", budget: Budget{WorkerLost: 1}, forged: true},
	{name: "deadline", ticks: 4, deadline: 2, leases: 1, workers: 1, says: "rth", words: 1, budget: Budget{Window: 1}, cancel: true},
	{name: "people", ticks: 3, deadline: 3, leases: 3, workers: 1, says: "w", budget: Budget{HumanBlocker: 1}, people: true, cancel: true},
	{name: "cancel", ticks: 3, deadline: 9, leases: 1, workers: 1, says: "rtl", budget: Budget{WorkerLost: 1}, cancel: true, forged: true},
	{name: "frozen", ticks: 3, deadline: 9, leases: 1, workers: 1, says: "t", reboots: 1, budget: Budget{WorkerLost: 1}, cancel: true, frozen: true},
	{name: "outside", ticks: 3, deadline: 9, leases: 2, workers: 1, says: "ipwf", budget: Budget{WorkerLost: 1, UnknownExternal: 1}, outside: true, people: true},
	{name: "reboots", ticks: 3, deadline: 9, leases: 2, workers: 1, says: "", reboots: 1, budget: Budget{WorkerLost: 1}, cancel: true},
}

// found is one exploration's end.
type found struct {
	worlds int
	law    string   // that is broken, "" if none
	trace  []string // how
}

// explore looks at every world of some bounds, breadth first, until a law is broken.
func explore(b bounds, s stepper, most int) (f found) {
	type node struct {
		parent int32
		child  int32
	}
	m := &model{bounds: b, step: s, waysOn: make(map[standing]bool), forgedAt: make(map[seenRow]bool)}
	seed1, seed2 := maphash.MakeSeed(), maphash.MakeSeed()
	seen := make(map[[2]uint64]struct{})
	var key []byte
	fresh := func(w *world) bool {
		key = w.key(key[:0])
		h := [2]uint64{maphash.Bytes(seed1, key), maphash.Bytes(seed2, key)}
		if _, ok := seen[h]; ok {
			return false
		}
		seen[h] = struct{}{}
		return true
	}
	nodes := []node{{-1, 0}}
	at := int32(0)
	defer func() {
		f.worlds = len(nodes)
		if p := recover(); p != nil {
			var law broken
			if err, ok := p.(error); !ok || !errors.As(err, &law) {
				panic(p)
			}
			f.law = law.what
			last := m.doing
			var path []int32
			for n := at; nodes[n].parent >= 0; n = nodes[n].parent {
				path = append(path, nodes[n].child)
			}
			f.trace = append(m.replay(path), last.String())
		}
	}()
	first := b.begin()
	fresh(&first)
	front := []world{first}
	for start := int32(0); len(front) > 0 && len(nodes) < most; {
		var further []world
		for i := range front {
			at = start + int32(i)
			child := int32(0)
			m.next(&front[i], func(w world, a action) {
				child++
				if fresh(&w) {
					m.doing = a
					m.check(&w)
					nodes = append(nodes, node{at, child})
					further = append(further, w)
				}
			})
		}
		start += int32(len(front))
		front = further
	}
	return f
}

// replay says what was done along a path, from its last child to its first.
func (m *model) replay(path []int32) (trace []string) {
	w := m.begin()
	for i := len(path) - 1; i >= 0; i-- {
		child := int32(0)
		var then world
		func() {
			defer func() { _ = recover() }() // A later child may break a law, which is another's trace.
			m.next(&w, func(n world, a action) {
				if child++; child == path[i] {
					then = n
					trace = append(trace, fmt.Sprintf("%d  %s → %s, delegation %s", w.now, a, n.runs[n.d.Attempts-1].State, n.d.State))
				}
			})
		}()
		w = then
	}
	return trace
}

// TestStepKeepsTheLaws explores Step.
func TestStepKeepsTheLaws(t *testing.T) {
	all := worlds
	if raced {
		all = worlds[:5]
	}
	if os.Getenv("INBAND_CHECK") == "all" {
		all = append(all, longWorlds...)
	}
	for _, b := range all {
		t.Run(b.name, func(t *testing.T) {
			f := explore(b, Step, mostWorlds)
			if f.law != "" {
				t.Fatalf("after %d worlds: %s\n  %s", f.worlds, f.law, strings.Join(f.trace, "\n  "))
			}
			if f.worlds >= mostWorlds {
				t.Logf("%d worlds, and there are more", f.worlds)
				return
			}
			t.Logf("all %d worlds", f.worlds)
		})
	}
}

// longWorlds see more at once: two workers, two attempts, three fences, and time for all
// of them.
var longWorlds = []bounds{
	{name: "long leases", ticks: 8, deadline: 20, leases: 3, workers: 2, says: "r", budget: Budget{WorkerLost: 1}, people: true},
	{name: "long cancel", ticks: 4, deadline: 9, leases: 2, workers: 2, says: "rt", budget: Budget{WorkerLost: 1}, cancel: true},
	{name: "long deadline", ticks: 6, deadline: 3, leases: 2, workers: 1, says: "rth", words: 1, budget: Budget{Window: 1}, cancel: true},
	{name: "long people", ticks: 4, deadline: 4, leases: 3, workers: 1, says: "wr", budget: Budget{HumanBlocker: 1}, people: true, cancel: true},
	{name: "long reboots", ticks: 4, deadline: 9, leases: 2, workers: 1, says: "rt", reboots: 1, budget: Budget{WorkerLost: 1}, cancel: true},
	{name: "long outside", ticks: 4, deadline: 9, leases: 3, workers: 1, says: "ipwfr", budget: Budget{WorkerLost: 1}, outside: true, people: true},
	{name: "long restored", ticks: 6, deadline: 9, leases: 3, workers: 2, says: "r", budget: Budget{WorkerLost: 1}, restore: true},
	{name: "long verdicts", ticks: 3, deadline: 9, leases: 3, workers: 2, says: "rf", budget: Budget{InvalidResult: 1}, verifier: true, people: true, cancel: true},
}

// mostWorlds bounds the memory of one exploration of the long form; what it has not
// reached by then it says.
const mostWorlds = 1_500_000

// TestEveryGuardIsNeeded shows of each guard what its absence leads to.
func TestEveryGuardIsNeeded(t *testing.T) {
	if raced {
		t.Skip("explores what TestStepKeepsTheLaws does, again for each guard")
	}
	for _, g := range guards() {
		t.Run(string(g), func(t *testing.T) {
			for _, b := range worlds {
				f := explore(b, without(g), mostWorlds)
				if f.law != "" {
					t.Logf("%s: %s\n  %s", b.name, f.law, strings.Join(f.trace, "\n  "))
					return
				}
			}
			t.Errorf("a Step without the guard %q keeps all laws", g)
		})
	}
}

// without is Step without one guard.
func without(g guard) stepper {
	return func(s Snapshot, e Event, now time.Time) (Snapshot, []Effect, *ops.Fault) { return step(s, e, now, g) }
}
