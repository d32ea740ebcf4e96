//go:build race

package plane

// raced says that the race detector is on. What explores is then an order of magnitude
// slower and has no second goroutine to find, so it sees less.
const raced = true
