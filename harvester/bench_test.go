// The benchmarks of the harvester.
//
//	go test -run '^$' -bench . ./harvester              # each by itself
//	go test -run '^$' -bench Bars ./harvester           # the design's bars
//
// BenchmarkBars prints a line "bar NAME FIGURE TARGET ok|short" for each bar. Each
// ratio is taken against its peer in the same run, in turns, and of each the
// best round counts, so that other work on the machine disturbs little. It
// asserts no time: a slow machine fails no test.

package harvester

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

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

// dense returns about n bytes of directives and little else, and their
// payloads.
func dense(n int) (reply []byte, payloads [][]byte) {
	for k := 0; len(reply) < n; k++ {
		payload := fmt.Sprintf(`{"path":"/srv/data/%d/report.txt","lines":[%d,%d],"options":{"follow":true,"encoding":"utf-8","limit":%d},`+
			`"note":"Please read the last part only; the \"summary\" at its end says what has changed since."}`, k, k, k+40, 100*k)
		payloads = append(payloads, []byte(payload))
		reply = append(reply, "[TOOL file.read "+payload+"]\n"...)
	}
	return reply, payloads
}

// peer is what finds fences and brackets with a Go regexp.
var peer = regexp.MustCompile("(?m)^[ \t]*(```|~~~)[^\n]*$|\\[(TOOL|EXEC|DM)(#[a-z0-9-]{3,32})?[ \t\r\n]*[A-Za-z_]?[A-Za-z0-9_.:/-]*[ \t\r\n]*\\{")

// lineEnds finds the line ends of text.
func lineEnds(text []byte) (n int) {
	for {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return n
		}
		n++
		text = text[i+1:]
	}
}

// write feeds s one reply in pieces of the given size.
func write(s *Scanner, reply []byte, size int) {
	s.Reset()
	for len(reply) > size {
		s.Write(reply[:size])
		reply = reply[size:]
	}
	s.Write(reply)
	s.Close(true)
}

func benchmark(b *testing.B, reply []byte, size int) {
	s := New(anyHost)
	b.SetBytes(int64(len(reply)))
	b.ReportAllocs()
	for b.Loop() {
		write(s, reply, size)
	}
}

func BenchmarkProse(b *testing.B)          { benchmark(b, prose(1<<20), 1<<20) }
func BenchmarkProseIn16Bytes(b *testing.B) { benchmark(b, prose(1<<20), 16) }
func BenchmarkProseIn1Byte(b *testing.B)   { benchmark(b, prose(1<<20), 1) }
func BenchmarkMiBIn1Byte(b *testing.B)     { benchmark(b, largest(), 1) }
func BenchmarkMiB(b *testing.B)            { benchmark(b, largest(), 1<<20) }

func BenchmarkDense(b *testing.B) {
	reply, _ := dense(1 << 20)
	benchmark(b, reply, len(reply))
}

func BenchmarkDenseGJSON(b *testing.B) {
	_, payloads := dense(1 << 20)
	n := 0
	for _, p := range payloads {
		n += len(p)
	}
	b.SetBytes(int64(n))
	for b.Loop() {
		for _, p := range payloads {
			if !gjson.ValidBytes(p) {
				b.Fatal("invalid")
			}
		}
	}
}

func BenchmarkProseRegexp(b *testing.B) {
	text := prose(1 << 20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		peer.FindAllIndex(text, -1)
	}
}

func BenchmarkProseIndexByte(b *testing.B) {
	text := prose(1 << 20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		lineEnds(text)
	}
}

func BenchmarkAdversarial(b *testing.B) {
	for _, f := range families {
		b.Run(strings.ReplaceAll(f.name, " ", "-"), func(b *testing.B) {
			reply := f.make(1 << 18)
			benchmark(b, reply, len(reply))
		})
	}
}

// rate runs the functions in turns, and returns for each the bytes a second of
// its best round.
func rate(rounds int, bytes []int, run ...func()) []float64 {
	best := make([]time.Duration, len(run))
	for round := range rounds {
		for k, f := range run {
			start := time.Now()
			f()
			if d := time.Since(start); round == 0 || d < best[k] {
				best[k] = d
			}
		}
	}
	rates := make([]float64, len(run))
	for k := range run {
		rates[k] = float64(bytes[k]) / best[k].Seconds()
	}
	return rates
}

// bytewise returns the nanoseconds that a call takes when reply comes in
// pieces of one byte. It takes the best round of each part of the reply: the
// whole takes longer than a busy machine leaves anybody alone.
func bytewise(rounds int, s *Scanner, reply []byte) float64 {
	parts := cuts(reply, 1<<14)
	best := make([]time.Duration, len(parts))
	for round := range rounds {
		s.Reset()
		for k, part := range parts {
			start := time.Now()
			for i := range part {
				s.Write(part[i : i+1])
			}
			if d := time.Since(start); round == 0 || d < best[k] {
				best[k] = d
			}
		}
		s.Close(true)
	}
	var sum time.Duration
	for _, d := range best {
		sum += d
	}
	return float64(sum.Nanoseconds()) / float64(len(reply))
}

// BenchmarkBars prints a line for each bar of the design. Its own time means nothing.
func BenchmarkBars(b *testing.B) {
	bar := func(name string, figure float64, relation string, target float64) {
		verdict := "short"
		if relation == ">=" && figure >= target || relation == "<=" && figure <= target {
			verdict = "ok"
		}
		fmt.Printf("bar %s %.3g %s%v %s\n", name, figure, relation, target, verdict)
	}
	s := New(anyHost)
	text := prose(1 << 17)
	n := len(text)
	r := rate(200, []int{n, n, n, n},
		func() { write(s, text, n) },
		func() { lineEnds(text) },
		func() { write(s, text, 16) },
		func() { peer.FindAllIndex(text, -1) })
	bar("harvest-prose-GBps", r[0]/1e9, ">=", 1.8)
	bar("harvest-prose-vs-regexp", r[0]/r[3], ">=", 50)
	bar("harvest-prose-vs-indexbyte", r[0]/r[1], ">=", 0.5)
	bar("harvest-prose-allocs", testing.AllocsPerRun(3, func() { write(s, text, n) }), "<=", 0)
	bar("harvest-16byte-MBps", r[2]/1e6, ">=", 400)

	reply, payloads := dense(1 << 17)
	raw := 0
	for _, p := range payloads {
		raw += len(p)
	}
	r = rate(200, []int{raw, raw},
		func() { write(s, reply, len(reply)) },
		func() {
			for _, p := range payloads {
				gjson.ValidBytes(p)
			}
		})
	bar("harvest-dense-MBps", r[0]/1e6, ">=", 300)
	bar("harvest-dense-vs-gjson", r[0]/r[1], ">=", 0.4)

	one := largest()
	perByte := bytewise(20, s, one)
	bar("harvest-1MiB-1byte-ns", perByte, "<=", 20)
	pieces := s.Examined()
	write(s, one, len(one))
	bar("harvest-1MiB-1byte-examined", float64(pieces)/float64(s.Examined()), "<=", 1.1)

	most, doubled := 0.0, 0.0
	for _, f := range families {
		for _, size := range []int{1, 16, 1 << 30} {
			once, twice := f.make(1<<16), f.make(1<<17)
			write(s, once, size)
			single := float64(s.Examined())
			write(s, twice, size)
			double := float64(s.Examined())
			most = max(most, single/float64(len(once)), double/float64(len(twice)))
			doubled = max(doubled, double/single*2*float64(len(once))/float64(len(twice)))
		}
	}
	bar("harvest-examined-max", math.Round(most*1000)/1000, "<=", mostExamined)
	bar("harvest-examined-doubling", math.Round(doubled*1000)/1000, "<=", mostDoubled)
	for b.Loop() {
		write(s, text, n)
	}
}
