//go:build race

package sandbox_test

// raceEnabled says that the race detector slows the tests down.
const raceEnabled = true
