package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// Stamp says what Confine would find at the paths of the policy now: it is another once
// something else stands at one of them.
func (s *Sandbox) Stamp() string {
	var b strings.Builder
	add := func(path string) {
		id := identify(path)
		fmt.Fprintf(&b, "%d:%d %t\n", id.dev, id.ino, id.folder)
	}
	for _, r := range s.rules {
		add(r.path)
	}
	for _, e := range s.executed {
		for _, path := range slices.Concat([]string{e.path}, e.interpreters()) {
			add(path)
		}
	}
	return b.String()
}
