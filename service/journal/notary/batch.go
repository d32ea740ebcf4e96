package notary

import (
	"embed"
	"fmt"
	"io/fs"

	"golang.org/x/mod/sumdb/tlog"

	"inband/service/journal"
)

//go:embed schema
var schema embed.FS

// Schema returns the table of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "notary", FS: sub}
}

// batch is a row: the hashes that the events up to size have added after the batch
// before, and the checkpoint over the tree of that size.
type batch struct {
	size      int64
	firstHash int64
	hashes    []byte
	note      string
}

// batchesAfter reads up to limit batches beyond size, in order; last reads the last.
func batchesAfter(tx journal.Tx, size int64, limit int) (list []batch, err error) {
	return queryBatches(tx, `SELECT size, first_hash, hashes, checkpoint FROM notary_batch WHERE size > $1 ORDER BY size LIMIT $2`, size, int64(limit))
}

func lastBatch(tx journal.Tx) (batch, bool, error) {
	list, err := queryBatches(tx, `SELECT size, first_hash, hashes, checkpoint FROM notary_batch ORDER BY size DESC LIMIT 1`)
	if err != nil || len(list) == 0 {
		return batch{}, false, err
	}
	return list[0], true, nil
}

func queryBatches(tx journal.Tx, sql string, args ...any) (list []batch, err error) {
	err = tx.Query(sql, func(scan func(...any) error) error {
		var b batch
		if err := scan(&b.size, &b.firstHash, &b.hashes, &b.note); err != nil {
			return err
		}
		list = append(list, b)
		return nil
	}, args...)
	return list, err
}

// storedEdge reads the edge of the tree of size events out of the stored hashes.
func storedEdge(tx journal.Tx, size int64) (*edge, error) {
	var roots []tlog.Hash
	for _, index := range rootIndexes(size) {
		var h tlog.Hash
		found := false
		err := tx.Query(`SELECT first_hash, hashes FROM notary_batch WHERE first_hash <= $1 ORDER BY first_hash DESC LIMIT 1`, func(scan func(...any) error) error {
			var first int64
			var hashes []byte
			if err := scan(&first, &hashes); err != nil {
				return err
			}
			if at := (index - first) * tlog.HashSize; at+tlog.HashSize <= int64(len(hashes)) {
				found = copy(h[:], hashes[at:]) == tlog.HashSize
			}
			return nil
		}, index)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, tampered(size, "the stored hashes up to position %d are not whole", size)
		}
		roots = append(roots, h)
	}
	return newEdge(size, roots), nil
}

// Tampering is what Verify finds: the store, or an export, is not what was signed.
type Tampering struct {
	Position int64 // of the event or checkpoint where it shows
	What     string
}

func (t *Tampering) Error() string { return t.What }

func tampered(position int64, format string, args ...any) error {
	return &Tampering{Position: position, What: fmt.Sprintf(format, args...)}
}
