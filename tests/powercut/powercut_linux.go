// Package powercut is a disk for tests that forgets, when its power is cut, what was not
// synced: a FUSE file system in memory.
//
// What a process writes is seen by everybody at once, as on any disk. But bytes of a file
// are durable only once that file was synced, and names only once their folder was: a new
// file, a rename and a removal alike. Cut then decides of all that was pending, file by
// file, by dice: it is lost, it stands, or some sectors of it stand in any order, because
// that is what real disks do with their caches. Names are lost or stand, a folder at a
// time.
//
// It needs Linux, /dev/fuse and the right to mount; without these Mount says so.
package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// sector is what a disk writes whole or not at all, in bytes.
const sector = 512

// Disk is a mounted disk. Unmount it, at the latest by Cut.
type Disk struct {
	server *fuse.Server
	root   *node

	mu    sync.Mutex
	syncs int
	dead  bool // the power is gone: nothing is written or synced any more
}

// Mount mounts a disk at the folder at, with what the folder from holds on it, durably;
// "" is an empty one.
func Mount(at, from string) (*Disk, error) {
	d := &Disk{}
	d.root = d.newFolder(0o700)
	var fill func(ctx context.Context, n *node, folder string) error
	fill = func(ctx context.Context, n *node, folder string) error {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				return err
			}
			path := filepath.Join(folder, e.Name())
			var child *node
			switch {
			case info.IsDir():
				child = d.newFolder(uint32(info.Mode().Perm()))
			case info.Mode().IsRegular():
				child = d.newFile(uint32(info.Mode().Perm()))
				if child.data, err = os.ReadFile(path); err != nil {
					return err
				}
				child.durable = bytes.Clone(child.data)
			default:
				continue
			}
			n.AddChild(e.Name(), n.NewPersistentInode(ctx, child, child.stable()), true)
			n.names[e.Name()] = child
			if info.IsDir() {
				if err := fill(ctx, child, path); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var filled error
	d.root.onAdd = func(ctx context.Context) {
		if from != "" {
			filled = fill(ctx, d.root, from)
		}
	}
	second := time.Second
	server, err := fs.Mount(at, d.root, &fs.Options{
		AttrTimeout: &second, EntryTimeout: &second,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "powercut", Name: "powercut"},
	})
	if err != nil {
		return nil, fmt.Errorf("mount a disk at %s: %w", at, err)
	}
	d.server = server
	if filled != nil {
		return nil, errors.Join(filled, server.Unmount())
	}
	return d, nil
}

// Syncs is how many syncs there were.
func (d *Disk) Syncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// Dead makes every write and sync from now on fail, as if the power were gone, so that
// nothing that a process does until it is killed can be told from what it never did.
func (d *Disk) Dead() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
}

// Cut cuts the power: it unmounts the disk and writes what is left of it into the folder
// to, which it makes. Whoever used the disk is dead by then.
func (d *Disk) Cut(dice *rand.Rand, to string) error {
	d.Dead()
	if err := d.server.Unmount(); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.root.leave(dice, to)
}

// Unmount gives the disk up.
func (d *Disk) Unmount() error { return d.server.Unmount() }

// leave writes what is durable of the folder n, and what the dice let stand of the rest.
func (n *node) leave(dice *rand.Rand, to string) error {
	if err := os.Mkdir(to, os.FileMode(n.mode)); err != nil {
		return err
	}
	names := n.names
	if dice.IntN(2) == 0 { // the folder's pending names stand
		names = make(map[string]*node)
		for name, child := range n.Children() {
			names[name] = child.Operations().(*node)
		}
	}
	for name, child := range names {
		path := filepath.Join(to, name)
		if child.folder {
			if err := child.leave(dice, path); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(path, child.left(dice), os.FileMode(child.mode)); err != nil {
			return err
		}
	}
	return nil
}

// left is the bytes of a file after the cut.
func (n *node) left(dice *rand.Rand) []byte {
	switch dice.IntN(3) {
	case 0:
		return n.durable
	case 1:
		return n.data
	}
	b := bytes.Clone(n.durable)
	for _, i := range dice.Perm(len(n.pending)) {
		w := n.pending[i]
		if w.data == nil {
			if dice.IntN(2) == 0 {
				b = resize(b, w.at)
			}
			continue
		}
		for at := int64(0); at < int64(len(w.data)); at += sector {
			if dice.IntN(2) == 0 {
				b = put(b, w.at+at, w.data[at:min(at+sector, int64(len(w.data)))])
			}
		}
	}
	return b
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

func put(b []byte, at int64, data []byte) []byte {
	if end := at + int64(len(data)); end > int64(len(b)) {
		b = resize(b, end)
	}
	copy(b[at:], data)
	return b
}

// change is a write or, without data, a change of the size.
type change struct {
	at   int64
	data []byte
}

// node is a file or a folder. The disk's mu guards it.
type node struct {
	fs.Inode
	d      *Disk
	folder bool
	mode   uint32
	onAdd  func(context.Context)

	data    []byte   // as everybody sees it
	durable []byte   // as of its last sync
	pending []change // since then
	changed time.Time

	names map[string]*node // of a folder, as of its last sync
}

func (d *Disk) newFile(mode uint32) *node { return &node{d: d, mode: mode, changed: time.Now()} }
func (d *Disk) newFolder(mode uint32) *node {
	return &node{d: d, mode: mode, folder: true, names: make(map[string]*node), changed: time.Now()}
}

func (n *node) stable() fs.StableAttr {
	if n.folder {
		return fs.StableAttr{Mode: fuse.S_IFDIR}
	}
	return fs.StableAttr{Mode: fuse.S_IFREG}
}

func (n *node) attr(a *fuse.Attr) {
	a.Mode = n.stable().Mode | n.mode
	a.Size = uint64(len(n.data))
	a.Blocks = (a.Size + sector - 1) / sector
	a.Blksize = 4096
	a.Nlink = 1
	a.Owner = fuse.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	a.SetTimes(&n.changed, &n.changed, &n.changed)
}

// What go-fuse finds a node able to do.
var (
	_ fs.NodeOnAdder   = (*node)(nil)
	_ fs.NodeGetattrer = (*node)(nil)
	_ fs.NodeSetattrer = (*node)(nil)
	_ fs.NodeCreater   = (*node)(nil)
	_ fs.NodeMkdirer   = (*node)(nil)
	_ fs.NodeUnlinker  = (*node)(nil)
	_ fs.NodeRmdirer   = (*node)(nil)
	_ fs.NodeRenamer   = (*node)(nil)
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeReader    = (*node)(nil)
	_ fs.NodeWriter    = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)
	_ fs.NodeStatfser  = (*node)(nil)
)

func (n *node) OnAdd(ctx context.Context) {
	if n.onAdd != nil {
		n.onAdd(ctx)
	}
}

func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	out.Bsize, out.Frsize, out.NameLen = 4096, 4096, 255
	out.Blocks, out.Bfree, out.Bavail = 1<<20, 1<<19, 1<<19
	return 0
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.attr(&out.Attr)
	return 0
}

func (n *node) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.dead {
		return syscall.EIO
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = mode & 0o7777
	}
	if size, ok := in.GetSize(); ok {
		n.data = resize(n.data, int64(size))
		n.pending = append(n.pending, change{at: int64(size)})
	}
	n.changed = time.Now()
	n.attr(&out.Attr)
	return 0
}

func (n *node) add(ctx context.Context, child *node, out *fuse.EntryOut) *fs.Inode {
	child.attr(&out.Attr)
	return n.NewPersistentInode(ctx, child, child.stable())
}

func (n *node) Create(ctx context.Context, _ string, _, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.dead {
		return nil, nil, 0, syscall.EIO
	}
	return n.add(ctx, n.d.newFile(mode&0o7777), out), nil, 0, 0
}

func (n *node) Mkdir(ctx context.Context, _ string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.dead {
		return nil, syscall.EIO
	}
	return n.add(ctx, n.d.newFolder(mode&0o7777), out), 0
}

// ok answers what changes names only: go-fuse has changed them where everybody looks.
func (n *node) ok() syscall.Errno {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.dead {
		return syscall.EIO
	}
	return 0
}

func (n *node) Unlink(context.Context, string) syscall.Errno { return n.ok() }

func (n *node) Rmdir(context.Context, string) syscall.Errno { return n.ok() }

func (n *node) Rename(_ context.Context, _ string, _ fs.InodeEmbedder, _ string, flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL
	}
	return n.ok()
}

func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if flags&syscall.O_TRUNC != 0 && len(n.data) > 0 {
		n.data = nil
		n.pending = append(n.pending, change{})
	}
	return nil, 0, 0
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, dest []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if at >= int64(len(n.data)) {
		return fuse.ReadResultData(nil), 0
	}
	return fuse.ReadResultData(dest[:copy(dest, n.data[at:])]), 0
}

func (n *node) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.dead {
		return 0, syscall.EIO
	}
	n.data = put(n.data, at, data)
	n.pending = append(n.pending, change{at, bytes.Clone(data)})
	n.changed = time.Now()
	return uint32(len(data)), 0
}

// Fsync makes a file's bytes, or a folder's names, durable.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if n.d.dead {
		return syscall.EIO
	}
	n.d.syncs++
	if n.folder {
		n.names = make(map[string]*node)
		for name, child := range n.Children() {
			n.names[name] = child.Operations().(*node)
		}
		return 0
	}
	for _, w := range n.pending {
		if w.data == nil {
			n.durable = resize(n.durable, w.at)
		} else {
			n.durable = put(n.durable, w.at, w.data)
		}
	}
	n.pending = nil
	return 0
}
