package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"inband/exec/proc"
	"inband/ops"
)

// MaxPublished is the longest file that an op may publish, in bytes.
const MaxPublished = 64 << 20

// Keeper keeps the files that ops publish. When Keep returns, the bytes of r are durable
// under their digest; on an error none of them remain. It reads no more than it needs to
// find that they are too many.
type Keeper interface {
	Keep(ctx context.Context, r io.Reader) (digest string, size int64, err error)
}

// publishing takes what one run leaves to be kept out of its private folder.
type publishing struct {
	e       *executor
	ctx     context.Context
	blotter *blotter
	kept    []ops.Published
	// failed is the first file that could not be kept, and why.
	failed string
	why    error
}

// publish returns what is to be done with the private folder of a run that is given
// secrets, nil if the op publishes nothing.
func (e *executor) publish(ctx context.Context, secrets []secret) *publishing {
	if len(e.op.Command.Publish) == 0 {
		return nil
	}
	return &publishing{e: e, ctx: ctx, blotter: newBlotter(secrets)}
}

// keep keeps all files of a run that has passed its checks. They are all looked at
// before the first is kept; one that cannot be kept fails the call, and those before it
// are kept for nobody.
func (p *publishing) keep(folder *os.Root, res proc.Result) {
	tried := p.e.try(res)
	if tried == nil {
		return // it did not end by itself
	}
	for _, t := range tried {
		if !t.Held {
			return
		}
	}
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	for _, file := range p.e.op.Command.Publish {
		f, err := openPublished(folder, file.File)
		if err != nil {
			p.failed, p.why = file.File, err
			return
		}
		open = append(open, f)
	}
	for i, file := range p.e.op.Command.Publish {
		digest, size, err := p.e.config.Keeper.Keep(p.ctx, p.blotter.guard(open[i]))
		if err != nil {
			p.failed, p.why = file.File, err
			p.kept = nil
			return
		}
		p.kept = append(p.kept, ops.Published{File: file.File, Kind: file.Kind, Digest: digest, Bytes: size})
	}
}

// openPublished opens a file that a program has left, and nothing else: no link, on the
// way or at the end, and no file that has another name, which could be anybody's. The
// program is gone, or is no longer trusted to be: what is opened is looked at again.
func openPublished(folder *os.Root, name string) (*os.File, error) {
	steps := strings.Split(name, "/")
	var there fs.FileInfo
	for i := range steps {
		info, err := folder.Lstat(path.Join(steps[:i+1]...))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, errors.New("there is no such file")
		case err != nil:
			return nil, reason(err)
		case info.Mode()&fs.ModeSymlink != 0:
			return nil, errors.New("there is a link in its place")
		case i < len(steps)-1 && !info.IsDir():
			return nil, errors.New("there is no such file")
		}
		there = info
	}
	if err := publishable(there); err != nil {
		return nil, err
	}
	f, err := folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // or a pipe would wait for its writer
	if err != nil {
		return nil, reason(err)
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(info, there) {
		err = errors.New("it is changing")
	}
	if err == nil {
		err = publishable(info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func publishable(info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is no regular file")
	case info.Size() > MaxPublished:
		return fmt.Errorf("it is longer than %d bytes", MaxPublished)
	case names(info) != 1:
		return errors.New("it has another name as well (a hard link)")
	}
	return nil
}

// result is what a run that has passed its checks leaves: its files, or a fault that
// names the one that is not kept.
func (p *publishing) result(res proc.Result) ([]ops.Published, *ops.Fault) {
	if p == nil {
		return nil, nil
	}
	if p.failed == "" {
		return p.kept, nil
	}
	why := p.why.Error()
	if p.ctx.Err() != nil {
		why = "the time for the call was over, or it was cancelled"
	}
	return nil, p.e.detail(res, ops.Faultf(ops.OpFailed, "op %s ended with exit code %d, and what it did stands, but its file %s is not kept: %s",
		p.e.op.Name, res.Exit, p.failed, why).With("check", map[string]any{"publish": p.failed}))
}

// guard returns a reader of r that fails where a secret comes. What is published is
// kept as it is or not at all: blotted bytes would not be the program's any more.
func (b *blotter) guard(r io.Reader) io.Reader {
	g := &guard{r: r, blotter: b}
	for _, f := range b.forms {
		g.overlap = max(g.overlap, len(f.text)-1)
	}
	return g
}

type guard struct {
	r       io.Reader
	blotter *blotter
	overlap int    // bytes of what came before that a secret may begin in
	window  []byte // those, and what came last
}

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if len(g.blotter.forms) == 0 {
		return n, err
	}
	g.window = append(g.window, p[:n]...)
	if found := g.blotter.find(g.window); found != nil {
		return 0, fmt.Errorf("it holds a secret: %s", found[0].mark)
	}
	g.window = append(g.window[:0], g.window[max(0, len(g.window)-g.overlap):]...)
	return n, err
}
