package task

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxProgress bounds what is read of a progress file, in bytes.
const maxProgress = 4 << 10

// watch looks at what a command does until over: it tells progress when there is some, and
// calls stop when the run's folder holds too much.
func (r *Runner) watch(root *os.Root, spec *Spec, log *output, progress func(int64), stop context.CancelCauseFunc, over <-chan struct{}) {
	tick := time.NewTicker(r.config.Every)
	defer tick.Stop()
	told, changes := int64(0), int64(0)
	last := progressOf(root, spec)
	disk := time.Now() // when to look at it
	for n := 1; ; n++ {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		if now := progressOf(root, spec); now != last {
			last = now
			changes++
		}
		if now := log.bytes.Load() + changes; now > told && progress != nil {
			told = now
			progress(now)
		}
		if r.config.User != nil { // what the worker has put there meanwhile
			for _, folder := range spec.Read {
				_ = r.give(root, strings.TrimPrefix(folder, spec.Folder+"/"))
			}
		}
		if began := time.Now(); n%diskEvery == 0 && !began.Before(disk) {
			if holds(root, r.config.Disk) {
				stop(errFull)
			}
			disk = began.Add(diskShare * time.Since(began)) // so that a large folder does not keep it busy
		}
	}
}

// progressOf returns what tells one state of the progress file from another.
func progressOf(root *os.Root, spec *Spec) (sum [sha256.Size]byte) {
	name, ok := strings.CutPrefix(spec.Progress, spec.Folder+"/")
	if !ok {
		return sum
	}
	// It is the command's: a pipe, or a link to one, must not hold this up.
	f, err := root.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return sum
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return sum
	}
	hash := sha256.New()
	_, _ = io.Copy(hash, io.LimitReader(f, maxProgress))
	hash.Sum(sum[:0])
	return sum
}

// maxCounted bounds the entries that are counted in a run's folder; more are too much.
const maxCounted = 4_000_000

// holds reports whether root holds more than most bytes on its disk. What cannot be looked
// at, for the command may change it meanwhile, does not count.
func holds(root *os.Root, most int64) bool {
	var bytes, entries int64
	err := fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			bytes += occupied(info)
		}
		if entries++; bytes > most || entries > maxCounted {
			return errFull
		}
		return nil
	})
	return errors.Is(err, errFull)
}

// give gives a folder of the run, and what is in it, to the command's user.
func (r *Runner) give(root *os.Root, folder string) error {
	uid, gid := int(r.config.User.UID), int(r.config.User.GID)
	entries := 0
	return fs.WalkDir(root.FS(), filepath.ToSlash(folder), func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entries++; entries > maxCounted {
			return errFull
		}
		return root.Lchown(name, uid, gid)
	})
}
