package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/plane/wire"
)

// Bounds of what a run returns.
const (
	MaxFiles     = 64      // files of one run
	maxFileBytes = 4 << 30 // of one of them
	maxEntries   = 4096    // of the folder they stand in, with all that is below it
)

// left is a file of a command, as it was when it was copied.
type left struct {
	file wire.File
	copy string // path of the copy, which nobody else writes
}

// keep copies the file name out of root, so that what is sent is what was hashed whatever
// the command does to it meanwhile. Only a regular file is taken, and no link.
func keep(root *os.Root, name, folder string) (l left, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("file %q: %w", name, plain(err))
		}
	}()
	if err := artifacts.CheckName(name); err != nil {
		return l, err
	}
	f, err := openRegular(root, name)
	if err != nil {
		return l, err
	}
	defer f.Close()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return l, err
	}
	out, err := os.CreateTemp(folder, ".copy-*")
	if err != nil {
		return l, err
	}
	defer out.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(f, maxFileBytes+1))
	if err == nil && n > maxFileBytes {
		err = fmt.Errorf("it is longer than %d bytes", int64(maxFileBytes))
	}
	if err == nil {
		err = out.Close()
	}
	l = left{wire.File{Name: name, Digest: digestOf(h), Bytes: n}, filepath.Join(folder, hex.EncodeToString(h.Sum(nil)))}
	if err == nil {
		err = os.Rename(out.Name(), l.copy)
	}
	if err != nil {
		os.Remove(out.Name())
	}
	return l, err
}

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// plain is err without the path, which is the worker's own.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// listed names the regular files of root, in order; first those that are wanted. A folder
// with more than may be returned is cut, and cut says so.
func listed(root *os.Root, wanted []string) (names []string, cut bool, err error) {
	entries := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			if name == "." {
				return err
			}
			return nil // gone, or a folder that may not be entered: what is wanted of it will be missed
		}
		if entries++; entries > maxEntries {
			cut = true
			return fs.SkipAll
		}
		if d.Type().IsRegular() && artifacts.CheckName(name) == nil {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("list what was left: %w", plain(err))
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := slices.Contains(wanted, a), slices.Contains(wanted, b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	if len(names) > MaxFiles {
		names, cut = names[:MaxFiles], true
	}
	return names, cut, nil
}

// upload has the bytes of l stored and goes on where an earlier attempt was cut off. It
// tries until they are, the answer is final, or ctx ends.
func (s *session) upload(ctx context.Context, run string, l left) error {
	announced, _, err := wire.Seal(s.key, wire.KindUpload, wire.Upload{Run: run, Worker: s.id, Boot: s.boot, File: l.file})
	if err != nil {
		return err
	}
	f, err := os.Open(l.copy)
	if err != nil {
		return err
	}
	defer f.Close()
	const most = 8 // announcements of one file: a lost upload is begun again
	piece := make([]byte, min(uploadPiece, max(l.file.Bytes, 1)))
	var at wire.Uploading // Upload "": to be announced
	unsure := false       // how much of it has arrived must be asked
	lost := 0
	for wait := retry(); !at.Done; {
		var now wire.Uploading
		switch {
		case at.Upload == "":
			now, err = s.client.Upload(ctx, announced)
		case unsure:
			now, err = s.client.Uploaded(ctx, at.Upload)
		default:
			n, readErr := f.ReadAt(piece, at.Offset)
			if readErr != nil && !errors.Is(readErr, io.EOF) {
				return fmt.Errorf("file %q: %w", l.file.Name, plain(readErr))
			}
			now, err = s.client.Append(ctx, at.Upload, at.Offset, piece[:n])
		}
		if err == nil && (now.Upload == "" && !now.Done || now.Offset < 0 || now.Offset > l.file.Bytes) {
			return fmt.Errorf("file %q: the gateway says that it has %d of %d bytes", l.file.Name, now.Offset, l.file.Bytes)
		}
		if err == nil {
			if at.Upload == "" || unsure || now.Done || now.Offset > at.Offset {
				at, unsure = now, false
				wait.reset()
				continue
			}
			err = &strangeAnswer{what: "an upload that does not go on"}
		}
		switch {
		case has(err, ops.NotFound) && at.Upload != "" && lost < most:
			lost++
			at, unsure = wire.Uploading{}, false // given up there meanwhile: begin again
		case has(err, ops.OutOfSequence) && unfinal(err): // a piece whose answer was lost has arrived after all
			if at.Offset = expected(err, at.Offset, l.file.Bytes); at.Offset < l.file.Bytes {
				continue
			}
			unsure = true
		case Again(err): // the same once more, which is refused if it has arrived
		default:
			return fmt.Errorf("file %q: %w", l.file.Name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := wait.wait(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// expected is where an upload stands, as the refusal of a piece says, if that is further
// on; else everything is asked for.
func expected(err error, at, bytes int64) int64 {
	var f *ops.Fault
	if errors.As(err, &f) {
		if n, ok := f.Details["expected"].(float64); ok && int64(n) > at && int64(n) <= bytes {
			return int64(n)
		}
	}
	return bytes
}

// unfinal reports whether err is a fault that nothing says is final.
func unfinal(err error) bool {
	var f *ops.Fault
	if !errors.As(err, &f) {
		return false
	}
	final, _ := f.Details["final"].(bool)
	return !final
}

// attestation is the signed statement that the run of g has made l.
func (s *session) attestation(g wire.Grant, worktree string, l left, at time.Time) (wire.Attest, error) {
	if g.Source.Worktree != "" {
		worktree = g.Source.Worktree
	}
	statement := artifacts.NewStatement(l.file.Name, artifacts.Digest(l.file.Digest), artifacts.Predicate{
		Source:   artifacts.Source{Revision: g.Source.Revision, Worktree: worktree},
		Producer: s.id, Run: g.Run, Fence: g.Fence, CapturedAt: at,
	})
	payload, err := statement.Payload()
	if err != nil {
		return wire.Attest{}, err
	}
	envelope, err := wire.SealBytes(s.key, artifacts.AttestationType, payload)
	return wire.Attest{Name: l.file.Name, Digest: l.file.Digest, Envelope: envelope}, err
}

// fetch gets the bytes of f into path and proves them. It tries until they are there, the
// answer is final, or ctx ends.
func (s *session) fetch(ctx context.Context, f wire.File, most int64, path string) error {
	for wait := retry(); ; {
		err := s.fetchOnce(ctx, f.Digest, most, path)
		if err == nil {
			return nil
		}
		if !Again(err) {
			return fmt.Errorf("file %q (%s): %w", f.Name, f.Digest, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := wait.wait(ctx, err); err != nil {
			return err
		}
	}
}

// otherBytes says that bytes are not what their digest says.
type otherBytes struct{ got string }

func (e *otherBytes) Error() string { return "its bytes have the digest " + e.got }

func (s *session) fetchOnce(ctx context.Context, digest string, most int64, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	h := sha256.New()
	if _, err := s.client.Fetch(ctx, digest, io.MultiWriter(out, h), most); err != nil {
		return err
	}
	if got := digestOf(h); got != digest {
		return &otherBytes{got}
	}
	return out.Close()
}
