package harvester

import "strings"

// prose returns n bytes of text as chat agents write it, without a directive.
func prose(n int) []byte {
	const sample = `I looked at the build that failed last night. The compiler runs out of memory
when it links the largest of the three binaries, and the machine has no swap, so
the kernel ends it. That explains why the log stops in the middle of a line.

There are two ways out. We can link with fewer jobs at a time, which costs about
four minutes more, or move the job to the larger machine, which is idle at night
anyway. I would try the second first: nothing in the build has to change for it,
and if the timing gets worse (it should not) we can go back within a minute.

- The queue is empty since 03:12, so nobody waits for the machine.
- Its disk is 41 % full; the cache of the build needs another 9 GB.
- Ana's nightly report starts at 05:30 and needs half of the memory.

Two more things. The test "reads the whole file" is slow because it opens each
part twice; I measured 1.9 seconds against 0.8. And the dashboard still shows
last week's numbers, since its query asks for ISO weeks (the data has calendar
weeks). I can change the query, but whoever made the board should agree with it.
`
	return []byte(strings.Repeat(sample, n/len(sample)+1)[:n])
}
