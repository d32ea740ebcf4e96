package artifacts

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"time"

	"inband/failpoint"
	"inband/service/journal"
)

// CollectAfter is how long bytes without a row are left alone at least: somebody may be
// about to write it. No call is that long between its bytes and its outcome.
const CollectAfter = 24 * time.Hour

// batch is how many digests are asked about at once.
const batch = 500

// Collected is what a collection has removed.
type Collected struct {
	Files   int   `json:"files"`   // kept bytes that nothing named
	Uploads int   `json:"uploads"` // partial files of uploads that are over
	Bytes   int64 `json:"bytes"`   // of both, as the quota counts them
}

// candidate is a file that nothing may name.
type candidate struct {
	digest Digest
	info   fs.FileInfo
}

// Collect removes kept bytes that nothing names and that were put before older. It marks
// first and sweeps then: named gets up to 500 digests, all of files that exist and are
// old, and returns those that something names, as of a moment after it was called.
//
// That is safe beside a Put or an upload of the same bytes: either makes the file anew,
// and only the very file that was looked at is removed. So whoever writes a row has put
// the bytes before, or finds another row that names them already.
func (s *Store) Collect(ctx context.Context, older time.Time, named func(context.Context, []Digest) (map[Digest]bool, error)) (Collected, error) {
	var c Collected
	var marked []candidate
	sweep := func() error {
		if len(marked) == 0 {
			return nil
		}
		digests := make([]Digest, len(marked))
		for i, m := range marked {
			digests[i] = m.digest
		}
		keep, err := named(ctx, digests)
		if err != nil {
			return err
		}
		failpoint.Here("artifacts.marked")
		for _, m := range marked {
			if keep[m.digest] {
				continue
			}
			size, err := s.removeIf(m)
			if err != nil {
				return err
			}
			if size > 0 {
				c.Files++
				c.Bytes += size
			}
		}
		marked = marked[:0]
		return nil
	}
	err := fs.WalkDir(s.root.FS(), algorithm, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		d := Digest(algorithm + ":" + path.Base(name))
		if e.IsDir() || !d.Valid() || d.file() != name {
			return nil // somebody else's
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !info.ModTime().Before(older) {
			return err
		}
		if marked = append(marked, candidate{d, info}); len(marked) == batch {
			return sweep()
		}
		return nil
	})
	if err == nil {
		err = sweep()
	}
	return c, err
}

// removeIf removes the file that m was, and returns what that gives back; 0 if another
// stands in its place.
func (s *Store) removeIf(m candidate) (int64, error) {
	s.mu.Lock() // place renames under it
	defer s.mu.Unlock()
	now, err := s.root.Lstat(m.digest.file())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !(os.SameFile(now, m.info) && now.ModTime().Equal(m.info.ModTime())) {
		return 0, nil
	}
	if err == nil {
		err = s.root.Remove(m.digest.file())
	}
	if err != nil {
		return 0, err
	}
	size := blocks(now.Size())
	s.used -= size
	s.files--
	return size, nil
}

// collectPartials removes the files of uploads that have no row.
func (s *Store) collectPartials(ctx context.Context, live func(context.Context, UploadID) (bool, error)) (Collected, error) {
	var c Collected
	entries, err := fs.ReadDir(s.root.FS(), partial)
	if err != nil {
		return c, err
	}
	for _, e := range entries {
		id := UploadID(e.Name())
		if !id.valid() || !s.claim(id) {
			continue
		}
		err := func() error {
			defer s.leave(id)
			if is, err := live(ctx, id); err != nil || is {
				return err
			}
			if size := s.partialSize(id); size >= 0 {
				if err := s.root.Remove(id.file()); err != nil {
					return err
				}
				s.release(blocks(size), 0)
				c.Uploads++
				c.Bytes += blocks(size)
			}
			return nil
		}()
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// Referenced returns which of digests somebody else names, in tx.
type Referenced func(tx journal.Tx, digests []Digest) (map[Digest]bool, error)

// Collect ends the uploads whose time is over, and removes partial files without a row
// and kept bytes that no artifact, upload or attestation names, nor others, and that have
// stood there for after. See [Store.Collect].
func (u Uploads) Collect(ctx context.Context, after time.Duration, others ...Referenced) (Collected, error) {
	for {
		var ended []UploadID
		if err := u.Journal.Update(ctx, func(tx journal.Tx) (err error) {
			ended, err = expire(tx, batch)
			return err
		}); err != nil {
			return Collected{}, err
		}
		if len(ended) < batch {
			break
		}
	}
	partials, err := u.Files.collectPartials(ctx, func(ctx context.Context, id UploadID) (is bool, err error) {
		err = u.Journal.View(ctx, func(tx journal.Tx) error {
			return tx.Query(`SELECT 1 FROM upload WHERE id = $1`, func(func(...any) error) error {
				is = true
				return nil
			}, string(id))
		})
		return is, err
	})
	if err != nil {
		return partials, err
	}
	c, err := u.Files.Collect(ctx, time.Now().Add(-after), func(ctx context.Context, digests []Digest) (map[Digest]bool, error) {
		named := make(map[Digest]bool)
		err := u.Journal.View(ctx, func(tx journal.Tx) error {
			for _, names := range append([]Referenced{rows}, others...) {
				more, err := names(tx, digests)
				if err != nil {
					return err
				}
				for d, is := range more {
					named[d] = named[d] || is
				}
			}
			return nil
		})
		return named, err
	})
	c.Uploads += partials.Uploads
	c.Bytes += partials.Bytes
	return c, err
}

// rows is what the tables of this package name.
func rows(tx journal.Tx, digests []Digest) (map[Digest]bool, error) {
	named := make(map[Digest]bool)
	for _, d := range digests {
		if err := tx.Query(`SELECT 1 WHERE EXISTS (SELECT 1 FROM artifact WHERE digest = $1)
				OR EXISTS (SELECT 1 FROM upload WHERE digest = $1) OR EXISTS (SELECT 1 FROM attestation WHERE digest = $1)`,
			func(func(...any) error) error {
				named[d] = true
				return nil
			}, string(d)); err != nil {
			return nil, err
		}
	}
	return named, nil
}
