package harvester

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// names holds the names of the objects that stand open, to find one that
// comes twice. Few names of one object are compared with each other, many
// through a hash table keyed at random, so that the work stays linear whatever
// the names are.
type names struct {
	list   []name
	first  [maxNesting + 1]int32 // in list, of the object at each depth
	hashed [maxNesting + 1]bool  // the object's names are in slots
	slots  []int32               // open addressing: index in list + 1
	used   int                   // slots taken

	arena    []byte // names that were written with escapes, unescaped
	mark     int    // where the one being read begins
	examined int64  // bytes read again to hash or compare
}

type name struct {
	print uint64 // the bytes of a short name, the hash of a longer one
	at    int32  // offset in the text, or ^offset in the arena
	len   int32
	depth uint8
}

const fewNames = 8

var (
	seed   = maphash.MakeSeed()
	secret = [2]uint64{maphash.String(seed, "xor"), maphash.String(seed, "multiply") | 1}
)

func (n *names) reset() {
	for d := maxNesting; len(n.list) > 0; d-- {
		if len(n.list) > int(n.first[d]) && n.list[len(n.list)-1].depth == uint8(d) {
			n.close(d)
		}
	}
	n.arena = n.arena[:0]
}

func (n *names) open(depth int) {
	n.first[depth], n.hashed[depth] = int32(len(n.list)), false
}

// close forgets the names of the object at depth. Taken out in the opposite
// order of their coming, they leave no gap in a chain of the table.
func (n *names) close(depth int) {
	first := int(n.first[depth])
	if n.hashed[depth] {
		for k := len(n.list) - 1; k >= first; k-- {
			at := n.slot(&n.list[k])
			for n.slots[at] != int32(k+1) {
				at = (at + 1) & (len(n.slots) - 1)
			}
			n.slots[at] = 0
			n.used--
		}
	}
	n.list = n.list[:first]
}

// add reports whether the name is new in the object at depth. Names of the
// arena stay there until the whole text is done.
func (n *names) add(b, text []byte, at, depth int) bool {
	nm := name{at: int32(at), len: int32(len(text)), depth: uint8(depth)}
	switch {
	case len(text) > 8:
		nm.print = maphash.Bytes(seed, text)
		n.examined += int64(len(text))
	case at >= 8:
		// What stands before the name is shifted out.
		nm.print = binary.LittleEndian.Uint64(b[at+len(text)-8:]) >> (64 - 8*len(text))
	default:
		for k := len(text) - 1; k >= 0; k-- {
			nm.print = nm.print<<8 | uint64(text[k])
		}
	}
	if !n.hashed[depth] {
		mine := n.list[n.first[depth]:]
		for k := range mine {
			if n.same(b, text, &mine[k], &nm) {
				return false
			}
		}
		n.list = append(n.list, nm)
		if len(mine) == fewNames {
			n.hashed[depth] = true
			for k := int(n.first[depth]); k < len(n.list); k++ {
				n.insert(k)
			}
		}
		return true
	}
	for at := n.slot(&nm); n.slots[at] != 0; at = (at + 1) & (len(n.slots) - 1) {
		if n.same(b, text, &n.list[n.slots[at]-1], &nm) {
			return false
		}
	}
	n.list = append(n.list, nm)
	n.insert(len(n.list) - 1)
	return true
}

// same compares text, which is nm's, with the older name old.
func (n *names) same(b, text []byte, old, nm *name) bool {
	if old.print != nm.print || old.len != nm.len || old.depth != nm.depth {
		return false
	}
	if len(text) <= 8 {
		return true
	}
	n.examined += int64(len(text))
	if old.at < 0 {
		return string(n.arena[^old.at:^old.at+old.len]) == string(text)
	}
	return string(b[old.at:old.at+old.len]) == string(text)
}

func (n *names) slot(nm *name) int {
	hi, lo := bits.Mul64(nm.print^secret[0], secret[1]+uint64(nm.depth)<<1)
	return int(hi^lo) & (len(n.slots) - 1)
}

func (n *names) insert(k int) {
	if 2*(n.used+1) > len(n.slots) {
		n.slots = make([]int32, max(64, 2*len(n.slots)))
		n.used = 0
		for j := range k {
			if n.hashed[n.list[j].depth] {
				n.put(j)
			}
		}
	}
	n.put(k)
}

func (n *names) put(k int) {
	at := n.slot(&n.list[k])
	for n.slots[at] != 0 {
		at = (at + 1) & (len(n.slots) - 1)
	}
	n.slots[at] = int32(k + 1)
	n.used++
}
