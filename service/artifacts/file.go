package artifacts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// small is how long a file may be to be read and checked whole before any of it is
// given, in bytes.
const small = 1 << 20

// File is an artifact that is open for reading.
type File struct {
	digest Digest
	size   int64
	whole  *bytes.Reader // of a small one, checked; nil for others

	f    *os.File
	hash hash.Hash
	left int64 // bytes not read yet
	err  error // what every further Read returns
}

var _ io.ReadCloser = (*File)(nil)

// Open opens the bytes that d names. Wrong ones are never given as if they were right:
//
//   - up to 1 MiB they are read and checked here, and wrong ones are ErrCorrupt;
//   - longer ones are checked as they are read. A Read that would give the last byte
//     checks first, and gives ErrCorrupt and none of its bytes if they are not right.
//     Until then the caller has an incomplete file, shorter than Size.
//
// There being none is ErrNotFound. The caller closes the File.
func (s *Store) Open(d Digest) (*File, error) {
	file, err := s.openFile(d)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = ErrNotFound
		fallthrough
	case err != nil:
		return nil, fmt.Errorf("artifact %q: %w", string(d), err)
	}
	return file, nil
}

func (s *Store) openFile(d Digest) (*File, error) {
	if !d.Valid() {
		return nil, ErrNotFound
	}
	f, err := s.root.OpenFile(d.file(), os.O_RDONLY|syscall.O_NONBLOCK, 0) // or a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is no regular file", ErrCorrupt)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	file := &File{digest: d, size: info.Size(), f: f, hash: sha256.New(), left: info.Size()}
	if file.size > small {
		return file, nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, small+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); digestOf(sum[:]) != d {
		return nil, ErrCorrupt
	}
	file.size, file.whole, file.f = int64(len(b)), bytes.NewReader(b), nil
	return file, nil
}

// Digest is the name of the bytes.
func (f *File) Digest() Digest { return f.digest }

// Size is how many bytes there are.
func (f *File) Size() int64 { return f.size }

// Read reads as [Store.Open] says.
func (f *File) Read(p []byte) (int, error) {
	switch {
	case f.whole != nil:
		return f.whole.Read(p)
	case f.err != nil:
		return 0, f.err
	case len(p) == 0:
		return 0, nil
	}
	n, err := f.f.Read(p[:min(int64(len(p)), f.left)])
	f.hash.Write(p[:n])
	f.left -= int64(n)
	switch {
	case f.left == 0:
		if f.err = f.check(); f.err != io.EOF {
			return 0, f.err
		}
		return n, nil
	case errors.Is(err, io.EOF):
		f.err = fmt.Errorf("artifact %s: %w: it is cut off", f.digest, ErrCorrupt)
		return n, f.err
	case err != nil:
		f.err = fmt.Errorf("artifact %s: %w", f.digest, err)
		return n, f.err
	}
	return n, nil
}

// check returns io.EOF if the bytes are over and right.
func (f *File) check() error {
	var beyond [1]byte
	if n, err := f.f.Read(beyond[:]); n == 0 && errors.Is(err, io.EOF) && digestOf(f.hash.Sum(nil)) == f.digest {
		return io.EOF
	}
	return fmt.Errorf("artifact %s: %w", f.digest, ErrCorrupt)
}

// Close gives up the file.
func (f *File) Close() error {
	if f.f == nil {
		return nil
	}
	return f.f.Close()
}

// Check reads the bytes of d and returns nil if they are right, ErrNotFound, ErrCorrupt,
// or what kept it from knowing.
func (s *Store) Check(ctx context.Context, d Digest) error {
	f, err := s.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := f.Read(*buf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
