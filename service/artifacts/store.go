package artifacts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/oklog/ulid/v2"

	"inband/failpoint"
)

// What Put and Open may return, beside the errors of the system.
var (
	// ErrFull: the quota or the disk has no room. Nothing of the bytes remains; it may
	// succeed later.
	ErrFull = errors.New("the artifact store is full")
	// ErrTooLarge: there are more bytes than the caller allows.
	ErrTooLarge = errors.New("longer than allowed")
	// ErrNotFound: there are no such bytes.
	ErrNotFound = errors.New("no such artifact")
	// ErrCorrupt: what stands under the name is not what the name says.
	ErrCorrupt = errors.New("the bytes are not those of the digest")
)

// DefaultQuota is the quota of a store whose configuration does not say, in bytes.
const DefaultQuota = 1 << 30

// block is what the quota counts in: the smallest file takes as much of a disk.
const block = 4 << 10

const (
	tmp     = "tmp"
	partial = "uploads"
)

// Config says where a store is and how much it may hold.
type Config struct {
	Folder string // made with mode 0700 if it does not exist
	// Quota bounds all that is kept and being written, each file rounded up to 4 KiB,
	// in bytes. 0 means DefaultQuota.
	Quota int64
}

// Store is bytes in a folder, by digest. Its methods may be called from any number of
// goroutines. Close it when nobody uses it any more.
type Store struct {
	root  *os.Root
	quota int64

	mu     sync.Mutex
	used   int64
	files  int
	shards map[string]bool // those whose own name is durable

	busy map[UploadID]bool // uploads that somebody is at
}

// Open opens the store in a folder: what a crash left half written is removed, and what
// is there is counted, without being read.
func Open(c Config) (*Store, error) {
	s, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("open artifacts %s: %w", c.Folder, err)
	}
	return s, nil
}

func open(c Config) (*Store, error) {
	if c.Quota < 0 {
		return nil, fmt.Errorf("a quota of %d bytes", c.Quota)
	}
	if c.Quota == 0 {
		c.Quota = DefaultQuota
	}
	if err := os.MkdirAll(c.Folder, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Stat(c.Folder)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, errors.New("others may look into the folder; set its mode to 0700")
	}
	root, err := os.OpenRoot(c.Folder)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, quota: c.Quota, shards: make(map[string]bool), busy: make(map[UploadID]bool)}
	if err := s.prepare(filepath.Dir(c.Folder)); err != nil {
		root.Close()
		return nil, err
	}
	return s, nil
}

// prepare makes the folders durable, empties tmp and counts what is kept.
func (s *Store) prepare(parent string) error {
	if err := s.root.RemoveAll(tmp); err != nil {
		return err
	}
	for _, dir := range []string{tmp, algorithm, partial} {
		if err := s.root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	above, err := os.Open(parent)
	if err != nil {
		return err
	}
	if err := errors.Join(above.Sync(), above.Close(), s.sync("."), s.sync(algorithm)); err != nil {
		return err
	}
	for _, dir := range []string{algorithm, partial} {
		if err := s.count(dir); err != nil {
			return err
		}
	}
	return nil
}

// count takes note of what a folder holds. A stray file takes room, too.
func (s *Store) count(dir string) error {
	return fs.WalkDir(s.root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			if path.Dir(name) == algorithm {
				s.shards[name] = true // its name is durable since the folder above was synced
			}
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		s.used += blocks(info.Size())
		if dir == algorithm {
			s.files++
		}
		return nil
	})
}

// Close gives up the folder. Files that are open stay readable.
func (s *Store) Close() error { return s.root.Close() }

// Usage is how much of a store is taken.
type Usage struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"` // as the quota counts them, with what is being written and uploaded
	Quota int64 `json:"quota"`
}

// Usage returns how much is taken now.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Usage{Files: s.files, Bytes: s.used, Quota: s.quota}
}

// blocks is what a file of size bytes takes of the quota.
func blocks(size int64) int64 { return max((size+block-1)/block, 1) * block }

// Put keeps what r yields, at most most bytes, and returns its name and its size. When
// it returns, the bytes are on disk under that name; the same bytes put again are the
// same file. On an error nothing of them remains, unless they were there before or the
// disk fails after they have their name; a file then stands that nobody was told of.
//
// The errors are ErrTooLarge, ErrFull, those of r, of ctx and of the system. Memory
// does not grow with the bytes.
func (s *Store) Put(ctx context.Context, r io.Reader, most int64) (Digest, int64, error) {
	w, err := s.begin()
	if err != nil {
		return "", 0, full(err)
	}
	defer w.discard()
	if err := w.fill(ctx, r, most); err != nil {
		return "", 0, full(err)
	}
	d, err := w.commit()
	if err != nil {
		return "", 0, full(err)
	}
	return d, w.size, nil
}

// full makes the system's ways to say that there is no room one.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// writer is bytes on their way into a store: a temporary file until commit.
type writer struct {
	s    *Store
	f    *os.File
	name string // "" once it is no temporary file any more
	hash hash.Hash
	size int64
	held int64 // of the quota
}

func (s *Store) begin() (*writer, error) {
	w := &writer{s: s, name: path.Join(tmp, ulid.Make().String()), hash: sha256.New()}
	if err := w.hold(block); err != nil {
		return nil, err
	}
	var err error
	if w.f, err = s.root.OpenFile(w.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400); err != nil {
		s.release(w.held, 0)
		return nil, err
	}
	return w, nil
}

// hold takes as much of the quota as the file will need.
func (w *writer) hold(total int64) error {
	if total <= w.held {
		return nil
	}
	if err := w.s.take(total - w.held); err != nil {
		return err
	}
	w.held = total
	return nil
}

// take takes more bytes of the quota.
func (s *Store) take(more int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used+more > s.quota {
		return fmt.Errorf("%w: its quota of %d bytes is taken", ErrFull, s.quota)
	}
	s.used += more
	return nil
}

func (s *Store) release(bytes int64, files int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= bytes
	s.files -= files
}

var pieces = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// fill writes what r yields.
func (w *writer) fill(ctx context.Context, r io.Reader, most int64) error {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	for idle := 0; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(*buf)
		if n > 0 {
			idle = 0
			if err := w.write((*buf)[:n], most); err != nil {
				return err
			}
		} else if idle++; idle > 100 && err == nil {
			return io.ErrNoProgress
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *writer) write(p []byte, most int64) error {
	if int64(len(p)) > most-w.size {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)
	}
	if err := w.hold(blocks(w.size + int64(len(p)))); err != nil {
		return err
	}
	n, err := w.f.Write(p)
	w.hash.Write(p[:n])
	w.size += int64(n)
	return err
}

// commit gives the bytes their name, durably. The file is synced before it is renamed
// and its folder after, so a name never stands for less than its bytes.
func (w *writer) commit() (Digest, error) {
	failpoint.Here("artifacts.written")
	if err := w.f.Sync(); err != nil {
		return "", err
	}
	if err := w.f.Close(); err != nil {
		return "", err
	}
	failpoint.Here("artifacts.synced")
	d := digestOf(w.hash.Sum(nil))
	if err := w.s.place(w.name, d); err != nil {
		return "", err
	}
	w.name = ""
	failpoint.Here("artifacts.renamed")
	// Also when the file was there before: whoever put it may not have come this far.
	if err := w.s.sync(d.shard()); err != nil {
		return "", err
	}
	failpoint.Here("artifacts.kept")
	return d, nil
}

// place renames a file, which counts already, to the name that its bytes have. One that
// stands there already is replaced: the bytes at hand are known to be right, those on
// disk may have rotted, or be about to be collected.
func (s *Store) place(from string, d Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if shard := d.shard(); !s.shards[shard] {
		if err := s.root.Mkdir(shard, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := s.sync(algorithm); err != nil {
			return err
		}
		s.shards[shard] = true
	}
	before, err := s.root.Lstat(d.file())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.root.Rename(from, d.file()); err != nil {
		return err
	}
	if before != nil {
		s.used -= blocks(before.Size())
	} else {
		s.files++
	}
	return nil
}

// discard removes what commit has not given a name.
func (w *writer) discard() {
	w.f.Close()
	if w.name == "" {
		return
	}
	if err := w.s.root.Remove(w.name); err == nil || errors.Is(err, fs.ErrNotExist) {
		w.s.release(w.held, 0)
	} // else it takes its room until the next Open
}

// sync makes the names in a folder durable.
func (s *Store) sync(dir string) error {
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// String names the store's folder, for messages.
func (s *Store) String() string { return strings.TrimSuffix(s.root.Name(), "/") }
