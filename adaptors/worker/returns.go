package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/plane/wire"
)

// store has a file stored and attests it, once for each of its contents. ctx bounds the
// sending of bytes; what is said is waited for.
func (r *run) store(ctx context.Context, l left, worktree string) error {
	r.mu.Lock()
	known, ok := r.kept[l.file.Name]
	r.mu.Unlock()
	if ok && known == l.file {
		return nil
	}
	failpoint.Here("worker.before-upload")
	if err := r.s.upload(ctx, r.g.Run, l); err != nil {
		return err
	}
	failpoint.Here("worker.uploaded")
	a, err := r.s.attestation(r.g.Grant, worktree, l, r.s.now())
	if err != nil {
		return err
	}
	if _, err := r.chain.say(r.talk, wire.KindAttest, a); err != nil {
		return err
	}
	failpoint.Here("worker.attested")
	r.mu.Lock()
	r.kept[l.file.Name] = l.file
	r.mu.Unlock()
	return nil
}

// checkpoints stores the files that were asked for whenever they have changed.
func (r *run) checkpoints(ctx context.Context) {
	if len(r.w.cfg.Checkpoints) == 0 {
		return
	}
	for sleep(ctx, time.Duration(r.g.HeartbeatMS)*time.Millisecond) == nil {
		if err := r.checkpoint(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("no checkpoint", "err", err)
		}
	}
}

// checkpoint stores what has changed, and says what would remain now.
func (r *run) checkpoint(ctx context.Context) error {
	root, err := os.OpenRoot(r.task.Path(OutFolder))
	if err != nil {
		return err
	}
	defer root.Close()
	changed := false
	for _, name := range r.w.cfg.Checkpoints {
		if _, err := root.Lstat(name); errors.Is(err, os.ErrNotExist) {
			continue // not yet
		}
		l, err := keep(root, name, r.copies())
		if err != nil {
			return err
		}
		r.mu.Lock()
		same := r.kept[name] == l.file
		r.mu.Unlock()
		if same {
			os.Remove(l.copy)
			continue
		}
		err = r.store(ctx, l, "")
		os.Remove(l.copy) // stored or not: copies that nobody takes must not add up
		if err != nil {
			return err
		}
		changed = true
	}
	if !changed {
		return nil
	}
	r.mu.Lock()
	c := wire.Checkpoint{Progress: r.progress, Files: []wire.File{}}
	for _, name := range slices.Sorted(maps.Keys(r.kept)) {
		c.Files = append(c.Files, r.kept[name])
	}
	r.mu.Unlock()
	_, err = r.chain.say(r.talk, wire.KindCheckpoint, c)
	failpoint.Here("worker.checkpoint-answered")
	return err
}

// copies is the folder of the copies of what the run leaves.
func (r *run) copies() string { return r.w.cfg.State.path("kept", r.g.Subject()) }

// returnFiles stores and attests what the command has left. missing says which of the
// files that must be returned are not there, or were not taken, and why. The error is one
// that ends the run; files are then what was stored before.
func (r *run) returnFiles(ctx context.Context, worktree string) (files []wire.File, missing []string, err error) {
	files = []wire.File{}
	root, err := os.OpenRoot(r.task.Path(OutFolder))
	if err != nil {
		return files, nil, err
	}
	defer root.Close()
	names, cut, err := listed(root, r.g.Outputs)
	if err != nil {
		return files, nil, err
	}
	if cut {
		r.log.Warn("the command left more files than are returned", "most", MaxFiles)
	}
	for _, name := range names {
		l, err := keep(root, name, r.copies())
		if err == nil {
			err = r.store(ctx, l, worktree)
			os.Remove(l.copy) // one at a time: a sparse file is small only where it was
		}
		var fault *ops.Fault
		switch {
		case err == nil:
			files = append(files, l.file)
		case isOver(err):
			// Evidence may still name what was stored; whether it counts is the plane's.
			files = append(files, l.file)
		case ctx.Err() != nil:
			return files, missing, context.Cause(ctx)
		case slices.Contains(r.g.Outputs, name):
			missing = append(missing, r.blot(err.Error()))
		case errors.As(err, &fault) || l.file.Name == "":
			r.log.Warn("a file is not returned", "err", err)
		default:
			return files, missing, err
		}
	}
	for _, name := range r.g.Outputs {
		if !slices.Contains(names, name) {
			missing = append(missing, fmt.Sprintf("there is no file %q in %s", name, OutFolder))
		}
	}
	return files, missing, nil
}
