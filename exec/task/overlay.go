package task

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"inband/exec/proc"
)

// overlay copies the files of from over those of to, and gives them to owner. What stands
// in the way, a file, a link or a folder, is replaced, so that nothing is written through
// a link; a file that replaces an executable one is executable. from holds folders and
// regular files only.
func overlay(ctx context.Context, to, from *os.Root, bounds Bounds, owner *proc.Owner) error {
	entries, left := 0, bounds.Bytes
	err := fs.WalkDir(from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if entries++; entries > bounds.Entries {
			return fmt.Errorf("more than %d entries", bounds.Entries)
		}
		switch {
		case d.IsDir():
			err = replaceFolder(to, name)
		case d.Type().IsRegular():
			var n int64
			n, err = replaceFile(to, from, name, left)
			left -= n
		default:
			return fmt.Errorf("%q is neither a file nor a folder", shortened(name))
		}
		if err == nil && owner != nil {
			err = to.Lchown(name, int(owner.UID), int(owner.GID))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("what is laid over the source: %w", err)
	}
	return nil
}

// replaceFolder makes a folder, unless there is one. Those above it are folders.
func replaceFolder(to *os.Root, name string) error {
	info, err := to.Lstat(name)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		err = to.Remove(name)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return err
	}
	return to.Mkdir(name, 0o700)
}

// replaceFile copies a file of at most left bytes.
func replaceFile(to, from *os.Root, name string, left int64) (n int64, err error) {
	mode := fs.FileMode(0o600)
	info, err := to.Lstat(name)
	if err == nil {
		if info.Mode().IsRegular() && info.Mode().Perm()&0o100 != 0 {
			mode = 0o700
		}
		err = to.RemoveAll(name)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return 0, err
	}
	source, err := from.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	f, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(f, io.LimitReader(source, left+1))
	if err == nil && n > left {
		err = errors.New("more bytes than a source may have")
	}
	return n, errors.Join(err, f.Close())
}
