package task

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"inband/exec/proc"
)

// SourceError says why a source is refused. Nothing ran.
type SourceError struct {
	Entry string // of the archive, "" if it is not about one
	Why   string
}

// Error names the entry, quoted, and says what is wrong.
func (e *SourceError) Error() string {
	if e.Entry == "" {
		return "source: " + e.Why
	}
	return fmt.Sprintf("source: entry %q: %s", e.Entry, e.Why)
}

// Bounds bound a source.
type Bounds struct {
	Entries int   // files, folders and links, those included that only a longer name implies
	Bytes   int64 // of all files
	Depth   int   // elements of a name
}

// DefaultBounds are the bounds of a source.
var DefaultBounds = Bounds{Entries: 200_000, Bytes: 4 << 30, Depth: 64}

// Bounds on names, in bytes: of one, of one element, and of all.
const (
	maxName    = 4096
	maxElement = 255
	maxNames   = 64 << 20
)

// linkMark is behind the name of a symbolic link in a digest. No name has a NUL.
const linkMark = "\x00link"

// unpacking is a source on its way into a folder.
type unpacking struct {
	root   *os.Root
	bounds Bounds
	owner  *proc.Owner // whose it is to be, nil for the worker's
	known  map[string]bool
	names  int // bytes of all names
	bytes  int64
	links  []link
	sums   []sum
}

type link struct{ name, target string }

// sum is a line of the digest.
type sum struct {
	name string
	hash [sha256.Size]byte
}

// Unpack unpacks a tar archive, gzipped or not, into root, which is empty, gives all of it
// to owner, and returns its digest. What is wrong with the archive is a *SourceError; what
// had been unpacked by then stays.
func Unpack(ctx context.Context, root *os.Root, archive io.Reader, bounds Bounds, owner *proc.Owner) (digest string, err error) {
	u := unpacking{root: root, bounds: bounds, owner: owner, known: map[string]bool{}}
	buffered := bufio.NewReaderSize(untilDone{ctx, archive}, 64<<10)
	var plain io.Reader = buffered
	if head, _ := buffered.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		zipped, err := gzip.NewReader(buffered)
		if err != nil {
			return "", unreadable(err)
		}
		plain = zipped
	}
	// Of headers and padding each entry has less than 4 KiB beside its name.
	most := bounds.Bytes + int64(bounds.Entries)*4096 + maxNames
	stream := &bounded{plain, most}
	if err := u.all(tar.NewReader(stream)); err != nil {
		return "", err
	}
	// What follows the end of a tar archive means nothing, but the check of a gzip stands
	// at its end.
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return "", unreadable(err)
	}
	if err := u.link(); err != nil {
		return "", err
	}
	return u.digest(), nil
}

// untilDone reads until a context has ended.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// bounded is an error, and not an end, at its bound.
type bounded struct {
	r    io.Reader
	left int64
}

var errLarge = errors.New("the archive is larger than a source may be")

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLarge
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// unreadable is the error of reading an archive: of its form, or of whatever it is read
// from.
func unreadable(err error) error {
	var system interface{ Timeout() bool } // as the errors of files and of networks have
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.As(err, &system):
		return fmt.Errorf("read the source: %w", err)
	case errors.Is(err, errLarge):
		return &SourceError{Why: err.Error()}
	}
	return &SourceError{Why: "it is no whole tar archive: " + err.Error()}
}

func (u *unpacking) all(archive *tar.Reader) error {
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unreadable(err)
		}
		if err := u.entry(h, archive); err != nil {
			var refused *SourceError
			if errors.As(err, &refused) && refused.Entry == "" {
				refused.Entry = shortened(h.Name)
			}
			return err
		}
	}
}

// shortened is a name for a message.
func shortened(name string) string {
	const most = 200
	if len(name) > most {
		return name[:most] + "…"
	}
	return name
}

func refuse(format string, args ...any) error { return &SourceError{Why: fmt.Sprintf(format, args...)} }

// entry unpacks one entry. Links are made when everything else is there, so that nothing
// is ever written through one.
func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // git's: the commit
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
	case tar.TypeLink:
		return refuse("it is a hard link; want files, folders and symbolic links only")
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return refuse("it is a device or a pipe; want files, folders and symbolic links only")
	default:
		return refuse("it is of the type %q; want files, folders and symbolic links only", h.Typeflag)
	}
	name, err := u.name(h)
	if err != nil || name == "." {
		return err
	}
	if err := u.folders(path.Dir(name)); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.folders(name)
	}
	if err := u.enter(name, false); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return u.note(name, h.Linkname)
	}
	return u.file(name, h.Mode&0o100 != 0, content)
}

// name returns the name of an entry, clean, "." for the folder itself.
func (u *unpacking) name(h *tar.Header) (string, error) {
	name := h.Name
	for strings.HasPrefix(name, "./") { // as tar writes them when it is given "."
		name = name[2:]
	}
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	if name == "" && h.Name != "" || name == "." {
		if h.Typeflag == tar.TypeDir {
			return ".", nil
		}
		return "", refuse("it has no name")
	}
	if why := odd(name); why != "" {
		return "", refuse("%s", why)
	}
	elements := strings.Split(name, "/")
	if len(elements) > u.bounds.Depth {
		return "", refuse("it is %d folders deep; a source may have %d", len(elements), u.bounds.Depth)
	}
	for _, e := range elements {
		if e == "" || e == "." || e == ".." {
			return "", refuse("its name has an element %q; want a clean name below the folder", e)
		}
		if len(e) > maxElement {
			return "", refuse("its name has an element of %d bytes; want at most %d", len(e), maxElement)
		}
	}
	return name, nil
}

// odd says what is wrong with a name or a target, "" if nothing is.
func odd(name string) string {
	switch {
	case name == "":
		return "it has no name"
	case len(name) > maxName:
		return fmt.Sprintf("its name has %d bytes; want at most %d", len(name), maxName)
	case strings.HasPrefix(name, "/"):
		return "its name is absolute; want one below the folder"
	case !utf8.ValidString(name):
		return "its name is not UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "its name has control characters"
	}
	return ""
}

// enter notes a name that must be new.
func (u *unpacking) enter(name string, folder bool) error {
	if _, twice := u.known[name]; twice {
		return refuse("its name comes twice")
	}
	if len(u.known) >= u.bounds.Entries {
		return refuse("it is one more than the %d entries that a source may have", u.bounds.Entries)
	}
	if u.names += len(name); u.names > maxNames {
		return refuse("the names of the source are longer than %d bytes together", maxNames)
	}
	u.known[name] = folder
	return nil
}

// folders makes a folder and those above it.
func (u *unpacking) folders(name string) error {
	if name == "." {
		return nil
	}
	if folder, known := u.known[name]; known {
		if !folder {
			return refuse("%q is a file or a link, and a folder", shortened(name))
		}
		return nil
	}
	if err := u.folders(path.Dir(name)); err != nil {
		return err
	}
	if err := u.enter(name, true); err != nil {
		return err
	}
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return fmt.Errorf("unpack the source: %w", err)
	}
	return u.give(name)
}

func (u *unpacking) give(name string) error {
	if u.owner == nil {
		return nil
	}
	if err := u.root.Lchown(name, int(u.owner.UID), int(u.owner.GID)); err != nil {
		return fmt.Errorf("unpack the source: %w", err)
	}
	return nil
}

func (u *unpacking) file(name string, executable bool, content io.Reader) (err error) {
	mode := fs.FileMode(0o600)
	if executable {
		mode = 0o700
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("unpack the source: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash := sha256.New()
	from := &failing{r: io.LimitReader(content, u.bounds.Bytes-u.bytes+1)}
	n, err := io.Copy(io.MultiWriter(f, hash), from)
	u.bytes += n
	switch {
	case from.err != nil:
		return unreadable(from.err)
	case err != nil:
		return fmt.Errorf("unpack the source: %w", err)
	case u.bytes > u.bounds.Bytes:
		return refuse("with it the source has more than %d bytes", u.bounds.Bytes)
	}
	one := sum{name: name}
	hash.Sum(one.hash[:0])
	u.sums = append(u.sums, one)
	return u.give(name)
}

// failing keeps the error of reading, so that it can be told from one of writing.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// note notes a link that is to be made.
func (u *unpacking) note(name, target string) error {
	if why := odd(target); why != "" {
		return refuse("it is a link to %q, and of that: %s", shortened(target), why)
	}
	if to := path.Join(path.Dir(name), target); to != "." && !filepath.IsLocal(to) {
		return refuse("it is a link that leaves the folder, to %q", shortened(target))
	}
	if u.names += len(target); u.names > maxNames {
		return refuse("the names of the source are longer than %d bytes together", maxNames)
	}
	u.links = append(u.links, link{name, target})
	u.sums = append(u.sums, sum{name + linkMark, sha256.Sum256([]byte(target))})
	return nil
}

// link makes the links. Each may stay within the folder by its words and leave it over
// another, so all of them are followed once they are there.
func (u *unpacking) link() error {
	for _, l := range u.links {
		if err := u.root.Symlink(l.target, l.name); err != nil {
			return fmt.Errorf("unpack the source: %w", err)
		}
		if err := u.give(l.name); err != nil {
			return err
		}
	}
	for _, l := range u.links {
		if _, err := u.root.Stat(l.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &SourceError{shortened(l.name), fmt.Sprintf("it is a link that leaves the folder or does not end, to %q", shortened(l.target))}
		}
	}
	return nil
}

// digest is the digest of what was unpacked (dirhash.Hash1 of golang.org/x/mod).
func (u *unpacking) digest() string {
	slices.SortFunc(u.sums, func(a, b sum) int { return strings.Compare(a.name, b.name) })
	all := sha256.New()
	for _, s := range u.sums {
		fmt.Fprintf(all, "%s  %s\n", hex.EncodeToString(s.hash[:]), s.name)
	}
	return "h1:" + base64.StdEncoding.EncodeToString(all.Sum(nil))
}
