package notary

import (
	"encoding/binary"

	"golang.org/x/mod/sumdb/tlog"

	"inband/service/journal"
)

const recordMark = "inband/event/v1\n"

// Record returns the bytes that stand for e in the log; see the package's doc.
func Record(e journal.Event) []byte {
	b := make([]byte, 0, len(recordMark)+3*8+3*4+len(e.Stream)+len(e.Kind)+len(e.Body))
	b = append(b, recordMark...)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Position))
	b = binary.BigEndian.AppendUint64(b, uint64(e.At.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Version))
	for _, s := range []string{e.Stream, e.Kind} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Body)))
	return append(b, e.Body...)
}

// edge is the right edge of a tree: the roots of the perfect subtrees that its leaves
// make up, which is all that growing and hashing it needs.
type edge struct {
	size  int64
	roots map[int64]tlog.Hash // by stored index
}

// rootIndexes are the stored indexes of the roots of a tree of size leaves, the
// largest subtree first.
func rootIndexes(size int64) []int64 {
	var indexes []int64
	for level, from := 62, int64(0); level >= 0; level-- {
		if width := int64(1) << level; size&width != 0 {
			indexes = append(indexes, tlog.StoredHashIndex(level, from>>level))
			from += width
		}
	}
	return indexes
}

// newEdge is the edge of a tree of size leaves with these roots, in the order of
// rootIndexes.
func newEdge(size int64, roots []tlog.Hash) *edge {
	e := &edge{size: size, roots: make(map[int64]tlog.Hash, len(roots))}
	for i, index := range rootIndexes(size) {
		e.roots[index] = roots[i]
	}
	return e
}

func (e *edge) clone() *edge { return newEdge(e.size, e.list()) }

// list returns the roots in the order of rootIndexes.
func (e *edge) list() []tlog.Hash {
	var roots []tlog.Hash
	for _, index := range rootIndexes(e.size) {
		roots = append(roots, e.roots[index])
	}
	return roots
}

// ReadHashes implements tlog.HashReader for what an edge is asked for.
func (e *edge) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		h, ok := e.roots[index]
		if !ok {
			panic("notary: a hash outside of the tree's edge") // tlog asks for roots only
		}
		hashes[i] = h
	}
	return hashes, nil
}

// add appends a leaf and returns the hashes that are stored for it: the leaf's own,
// then those of the subtrees that it completes.
func (e *edge) add(leaf tlog.Hash) []tlog.Hash {
	stored, err := tlog.StoredHashesForRecordHash(e.size, leaf, e)
	if err != nil {
		panic(err) // ReadHashes has none
	}
	for _, index := range rootIndexes(e.size)[len(e.roots)-(len(stored)-1):] {
		delete(e.roots, index)
	}
	e.size++
	indexes := rootIndexes(e.size)
	e.roots[indexes[len(indexes)-1]] = stored[len(stored)-1]
	return stored
}

// hash is the tree's hash. An empty tree has the hash of nothing.
func (e *edge) hash() tlog.Hash {
	h, err := tlog.TreeHash(e.size, e)
	if err != nil {
		panic(err) // ReadHashes has none
	}
	return h
}
