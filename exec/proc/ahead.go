package proc

import "time"

// Ahead makes launches ahead of their runs: while runs follow each other within two
// seconds, the folder and the thread of the next one are made, fenced and confined, while
// this one runs. It changes when they are made and nothing else: each is for one run, and
// is dropped after two seconds if there is none. All Specs that share an Ahead must have
// the same Confine, Owner and Scratch. At most 32 launches are kept at one time.
//
// Whoever uses it calls Discard before the process ends.
type Ahead struct {
	// Stamp says what Confine would find now. A launch is not used when it has become
	// another since the launch was made.
	Stamp func() string

	next *ahead    // guarded by aheadsMu
	last time.Time // of the last run, likewise
}

// Discard ends all launches that were made ahead, with their folders. Runs go on, and
// those after it may have launches made again.
func Discard() { discard() }
