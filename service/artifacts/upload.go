package artifacts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/failpoint"
	"inband/ops"
	"inband/service/journal"
)

// What an upload may end in, beside ErrFull and ErrTooLarge and the errors of the
// system and of the journal.
var (
	// ErrDeclared: what is announced cannot be, or is not what was announced before.
	ErrDeclared = errors.New("the announcement is not right")
	// ErrUploads: as many uploads are under way as may.
	ErrUploads = errors.New("too many uploads are under way")
	// ErrFiles: a run has left, or announced, as many files as it may.
	ErrFiles = errors.New("too many files of one run")
	// ErrNoUpload: there is no such upload of this sender; it may have expired.
	ErrNoUpload = errors.New("no such upload")
	// ErrUploadBusy: another piece of the upload is arriving.
	ErrUploadBusy = errors.New("another piece of the upload is arriving")
	// ErrDigest: all bytes came and they are not those of the digest. The upload is gone.
	ErrDigest = errors.New("the bytes that came are not those of the digest")
)

// OffsetError says where the next piece of an upload must begin.
type OffsetError struct{ Want int64 }

func (e *OffsetError) Error() string { return fmt.Sprintf("the next piece begins at %d", e.Want) }

// UploadID is the id of an upload, "u-" and a lower-case ULID.
type UploadID string

// Declared is what is announced: bytes of a run, by their digest and their number. The
// same announcement of the same run is the same upload, or the same artifact.
type Declared struct {
	Digest     Digest
	Bytes      int64
	Name       string // see CheckName
	Kind       string // media type; empty is application/octet-stream
	Run        string
	Delegation string
	Sender     ops.IdentityID // who sends the bytes
	Owner      ops.Identity   // whose they will be
}

// Upload is bytes on their way, or, when it is Done, that have arrived.
type Upload struct {
	ID UploadID
	Declared
	Received int64 // bytes that are durable; the next piece begins there
	Done     bool  // all of them are there, and right
	Expires  time.Time
}

// UploadLimits bounds uploads. A zero field gets the value in parentheses.
type UploadLimits struct {
	Within time.Duration // in which an upload must be done (24 h)
	All    int           // uploads under way (256)
	Sender int           // of them, those of one sender (16)
	Files  int           // files that one run leaves, with those under way (4096)
	// Owner bounds what the artifacts and uploads of one owner take together, different
	// bytes once and each file rounded up to 4 KiB, in bytes (half the store's quota).
	Owner int64
}

// Uploads takes bytes in pieces, each of them durable before it is acknowledged, so that
// an upload goes on after whatever has interrupted it: a lost connection, or the death
// of this process. Journal has the tables of this package.
//
// An upload has a row, which says how many bytes have arrived, and a file, which may
// hold more than that. When all have arrived they are read once more and hashed; bytes
// that are not those of the digest are refused and go.
type Uploads struct {
	Journal journal.Store
	Files   *Store
	Limits  UploadLimits
}

const (
	// stride is after how many bytes of one piece what has come is made durable.
	stride = 8 << 20
	// sweep is how many expired uploads one announcement ends.
	sweep = 16
)

func (u Uploads) limits() UploadLimits {
	l := u.Limits
	if l.Within == 0 {
		l.Within = 24 * time.Hour
	}
	if l.All == 0 {
		l.All = 256
	}
	if l.Sender == 0 {
		l.Sender = 16
	}
	if l.Files == 0 {
		l.Files = 4096
	}
	if l.Owner == 0 {
		l.Owner = u.Files.quota / 2
	}
	return l
}

// check says what of d cannot be, and completes it.
func (d *Declared) check() error {
	if !d.Digest.Valid() {
		return fmt.Errorf("%w: the digest is not %s: and 64 lower-case hex digits", ErrDeclared, algorithm)
	}
	if err := CheckName(d.Name); err != nil {
		return fmt.Errorf("%w: %w", ErrDeclared, err)
	}
	if d.Kind == "" {
		d.Kind = "application/octet-stream"
	}
	if kind, _, err := mime.ParseMediaType(d.Kind); err != nil || len(d.Kind) > 128 || !plain(d.Kind) || !strings.Contains(kind, "/") {
		return fmt.Errorf("%w: the kind is no media type, such as text/plain", ErrDeclared)
	}
	if d.Bytes < 0 {
		return fmt.Errorf("%w: %d bytes", ErrDeclared, d.Bytes)
	}
	return nil
}

// Begin announces an upload, or finds the one that was announced before and goes on. It
// is done at once if the delegation has these bytes, or there are none to send. That
// others have them is no reason: who cannot send them has not got them.
//
// The errors are ErrDeclared, ErrUploads, ErrFiles, ErrFull and ErrDigest (of no bytes).
func (u Uploads) Begin(ctx context.Context, d Declared) (Upload, error) {
	if err := d.check(); err != nil {
		return Upload{}, err
	}
	if d.Bytes == 0 {
		sum := sha256.Sum256(nil)
		if d.Digest != digestOf(sum[:]) {
			return Upload{}, ErrDigest
		}
		if _, _, err := u.Files.Put(ctx, strings.NewReader(""), 0); err != nil {
			return Upload{}, err
		}
	}
	var up Upload
	var ended []UploadID
	err := u.Journal.Update(ctx, func(tx journal.Tx) (err error) {
		if ended, err = expire(tx, sweep); err != nil {
			return err
		}
		up, err = u.begin(tx, d)
		return err
	})
	if err == nil {
		for _, id := range ended {
			u.Files.dropPartial(id)
		}
	}
	return up, err
}

func (u Uploads) begin(tx journal.Tx, d Declared) (Upload, error) {
	if _, err := tx.Exec(`DELETE FROM upload WHERE run = $1 AND name = $2 AND digest = $3 AND expires_at <= $4`,
		d.Run, d.Name, string(d.Digest), tx.Now().UnixMilli()); err != nil { // its file is collected
		return Upload{}, err
	}
	up, err := find(tx, `run = $1 AND name = $2 AND digest = $3`, d.Run, d.Name, string(d.Digest))
	switch {
	case err == nil && (up.Bytes != d.Bytes || up.Sender != d.Sender):
		return Upload{}, fmt.Errorf("%w: it was announced with %d bytes before", ErrDeclared, up.Bytes)
	case err == nil:
		return u.arrived(tx, up)
	case !errors.Is(err, ErrNoUpload):
		return Upload{}, err
	}
	left, err := leftBy(tx, d)
	if err != nil {
		return Upload{}, err
	}
	if !left.known && left.files >= u.limits().Files {
		return Upload{}, fmt.Errorf("%w: %d", ErrFiles, left.files)
	}
	up = Upload{Declared: d}
	if d.Bytes == 0 || left.same && u.Files.has(d.Digest, d.Bytes) {
		return u.done(tx, up)
	}
	if err := u.room(tx, d); err != nil {
		return Upload{}, err
	}
	up.ID, up.Expires = UploadID("u-"+strings.ToLower(ulid.Make().String())), tx.Now().Add(u.limits().Within)
	_, err = tx.Exec(`INSERT INTO upload (id, digest, bytes, received, name, kind, run, delegation, sender, owner_id, owner_role, created_at, expires_at)
			VALUES ($1, $2, $3, 0, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		string(up.ID), string(d.Digest), d.Bytes, d.Name, d.Kind, d.Run, d.Delegation, string(d.Sender),
		string(d.Owner.ID), string(d.Owner.Role), tx.Now().UnixMilli(), up.Expires.UnixMilli())
	return up, err
}

// room says whether there is some for d.
func (u Uploads) room(tx journal.Tx, d Declared) error {
	l := u.limits()
	var all, own int
	err := tx.Query(`SELECT sender = $1, COUNT(*) FROM upload GROUP BY sender = $1`, func(scan func(...any) error) error {
		var mine bool
		var n int
		if err := scan(&mine, &n); err != nil {
			return err
		}
		all += n
		if mine {
			own = n
		}
		return nil
	}, string(d.Sender))
	switch {
	case err != nil:
		return err
	case own >= l.Sender:
		return fmt.Errorf("%w: %d of %s", ErrUploads, own, d.Sender)
	case all >= l.All:
		return fmt.Errorf("%w: %d in all", ErrUploads, all)
	}
	var taken int64
	if err := tx.Query(`SELECT COALESCE(SUM(CASE WHEN bytes = 0 THEN 4096 ELSE (bytes + 4095) / 4096 * 4096 END), 0) FROM (
			SELECT digest, bytes FROM artifact WHERE owner_id = $1 UNION SELECT digest, bytes FROM upload WHERE owner_id = $1
			UNION SELECT $2, $3) mine`,
		func(scan func(...any) error) error { return scan(&taken) }, string(d.Owner.ID), string(d.Digest), d.Bytes); err != nil {
		return err
	}
	if taken > l.Owner {
		return fmt.Errorf("%w for %s: its artifacts would take %d bytes, of %d at most", ErrFull, d.Owner.ID, taken, l.Owner)
	}
	if use := u.Files.Usage(); use.Bytes+blocks(d.Bytes) > use.Quota {
		return fmt.Errorf("%w: %d bytes more do not fit into its quota of %d", ErrFull, d.Bytes, use.Quota)
	}
	return nil
}

// arrived completes an upload whose bytes have got their name, and whose process ended
// before its row was written.
func (u Uploads) arrived(tx journal.Tx, up Upload) (Upload, error) {
	if up.Done || up.Received < up.Bytes || u.Files.partialSize(up.ID) >= 0 || !u.Files.has(up.Digest, up.Bytes) {
		return up, nil
	}
	return u.done(tx, up)
}

// done writes that up has arrived.
func (u Uploads) done(tx journal.Tx, up Upload) (Upload, error) {
	if up.ID != "" {
		if n, err := tx.Exec(`DELETE FROM upload WHERE id = $1`, string(up.ID)); err != nil || n == 0 {
			return Upload{}, errors.Join(err, ErrNoUpload)
		}
	}
	up.Received, up.Done = up.Bytes, true
	return up, Add(tx, Artifact{Digest: up.Digest, Name: up.Name, Kind: up.Kind, Bytes: up.Bytes, Owner: up.Owner,
		Run: up.Run, Delegation: up.Delegation, Producer: up.Sender, Upload: up.ID})
}

// Get returns an upload of sender, also one that is done. The error is ErrNoUpload.
func (u Uploads) Get(ctx context.Context, id UploadID, sender ops.IdentityID) (up Upload, err error) {
	if !id.valid() {
		return Upload{}, ErrNoUpload
	}
	err = u.Journal.View(ctx, func(tx journal.Tx) error {
		up, err = find(tx, `id = $1 AND sender = $2`, string(id), string(sender))
		if errors.Is(err, ErrNoUpload) {
			up, err = finished(tx, id, sender)
		}
		return err
	})
	return up, err
}

// Append takes a piece of an upload that begins at offset, as far as r gives it, and
// returns the upload as it stands then. It is done when the last byte has come and all
// are right. After an error of r, what had come before is durable and counts: Get says
// how much it is. One piece arrives at a time. Memory does not grow with the piece.
//
// The errors are ErrNoUpload, ErrUploadBusy, an *OffsetError before anything is read,
// ErrTooLarge (more than was announced; nothing of the excess is kept), ErrFull,
// ErrDigest, and those of r, of the journal and of the system.
func (u Uploads) Append(ctx context.Context, id UploadID, sender ops.IdentityID, offset int64, r io.Reader) (Upload, error) {
	if _, err := u.Get(ctx, id, sender); err != nil {
		return Upload{}, err // before it is claimed: another's upload is not to be held up
	}
	if !u.Files.claim(id) {
		return Upload{}, ErrUploadBusy
	}
	defer u.Files.leave(id)
	up, err := u.Get(ctx, id, sender)
	if err != nil {
		return Upload{}, err
	}
	up, err = u.append(ctx, up, offset, r)
	if errors.Is(err, ErrNoUpload) || errors.Is(err, ErrDigest) {
		u.Files.removePartial(id) // its row has gone meanwhile
	}
	return up, full(err)
}

func (u Uploads) append(ctx context.Context, up Upload, offset int64, r io.Reader) (Upload, error) {
	if !up.Done && up.Received == up.Bytes { // it ended between its last piece and its end
		err := u.Journal.Update(ctx, func(tx journal.Tx) (err error) {
			if up, err = find(tx, `id = $1`, string(up.ID)); err == nil {
				up, err = u.arrived(tx, up)
			}
			return err
		})
		if err != nil {
			return Upload{}, err
		}
	}
	if up.Done {
		if offset != up.Bytes {
			return up, &OffsetError{up.Bytes}
		}
		return up, tooMuch(r)
	}
	p, err := u.Files.openPartial(up.ID, up.Received)
	if err != nil {
		return Upload{}, err
	}
	defer p.close()
	if p.size < up.Received { // the disk has lost what was durable
		if err := u.record(ctx, &up, 0); err != nil {
			return Upload{}, err
		}
		if err := p.cut(0); err != nil {
			return Upload{}, err
		}
	}
	if offset != up.Received {
		return up, &OffsetError{up.Received}
	}
	// What has come counts even if its sender has gone meanwhile.
	durable := context.WithoutCancel(ctx)
	broken := u.fill(ctx, durable, p, &up, r)
	if broken != nil {
		return up, broken
	}
	if up.Received < up.Bytes {
		return up, nil
	}
	return u.finish(ctx, durable, p, up)
}

// fill writes and records what r gives. The error may be r's: what had come by then is
// recorded.
func (u Uploads) fill(ctx, durable context.Context, p *partFile, up *Upload, r io.Reader) error {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	keep := func() error {
		if p.size == up.Received {
			return nil
		}
		failpoint.Here("artifacts.piece-written")
		if err := p.f.Sync(); err != nil {
			return err
		}
		failpoint.Here("artifacts.piece-synced")
		return u.record(durable, up, p.size)
	}
	for idle := 0; ; {
		left := up.Bytes - p.size
		var n int
		err := ctx.Err()
		if err == nil && left > 0 {
			n, err = r.Read((*buf)[:min(left, int64(len(*buf)))])
		} else if err == nil {
			if err = tooMuch(r); err == nil {
				err = io.EOF
			}
		}
		if n > 0 {
			idle = 0
			if err := p.write((*buf)[:n]); err != nil {
				return errors.Join(err, keep())
			}
		} else if idle++; idle > 100 && err == nil {
			err = io.ErrNoProgress
		}
		switch {
		case errors.Is(err, io.EOF):
			return keep()
		case err != nil:
			return errors.Join(err, keep())
		case p.size-up.Received >= stride:
			if err := keep(); err != nil {
				return err
			}
		}
	}
}

// tooMuch reports whether r has anything to give still.
func tooMuch(r io.Reader) error {
	var beyond [1]byte
	for range 100 {
		n, err := r.Read(beyond[:])
		switch {
		case n > 0:
			return fmt.Errorf("%w: more bytes than were announced", ErrTooLarge)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
	return io.ErrNoProgress
}

// record writes how much of up is durable.
func (u Uploads) record(ctx context.Context, up *Upload, received int64) error {
	err := u.Journal.Update(ctx, func(tx journal.Tx) error {
		n, err := tx.Exec(`UPDATE upload SET received = $1 WHERE id = $2 AND received = $3`, received, string(up.ID), up.Received)
		if err == nil && n == 0 {
			err = ErrNoUpload
		}
		return err
	})
	if err == nil {
		up.Received = received
		failpoint.Here("artifacts.piece-recorded")
	}
	return err
}

// finish reads what has come, and gives it its name if it is right. Where the reading is
// broken off, an empty piece at the end has it begin again.
func (u Uploads) finish(reading, ctx context.Context, p *partFile, up Upload) (Upload, error) {
	sum, err := p.sum(reading)
	if err != nil {
		return up, err
	}
	failpoint.Here("artifacts.upload-read")
	if sum != up.Digest {
		err := u.Journal.Update(ctx, func(tx journal.Tx) error {
			_, err := tx.Exec(`DELETE FROM upload WHERE id = $1`, string(up.ID))
			return err
		})
		if err != nil {
			return up, err
		}
		return Upload{}, ErrDigest
	}
	if err := p.place(up.Digest); err != nil {
		return up, err
	}
	failpoint.Here("artifacts.upload-placed")
	err = u.Journal.Update(ctx, func(tx journal.Tx) error {
		done, err := u.done(tx, up)
		if err == nil {
			up = done
		}
		return err
	})
	if err == nil {
		failpoint.Here("artifacts.upload-recorded")
	}
	return up, err
}

const uploadColumns = `id, digest, bytes, received, name, kind, run, delegation, sender, owner_id, owner_role, expires_at`

// find returns the upload of a condition, ErrNoUpload if there is none or it has expired.
func find(tx journal.Tx, which string, args ...any) (Upload, error) {
	up, err := Upload{}, error(ErrNoUpload)
	if e := tx.Query(`SELECT `+uploadColumns+` FROM upload WHERE `+which, func(scan func(...any) error) error {
		var at int64
		if err := scan((*string)(&up.ID), (*string)(&up.Digest), &up.Bytes, &up.Received, &up.Name, &up.Kind, &up.Run, &up.Delegation,
			(*string)(&up.Sender), (*string)(&up.Owner.ID), (*string)(&up.Owner.Role), &at); err != nil {
			return err
		}
		if up.Expires = time.UnixMilli(at).UTC(); tx.Now().Before(up.Expires) {
			err = nil
		}
		return nil
	}, args...); e != nil {
		return Upload{}, e
	}
	return up, err
}

// finished returns an upload of sender that is done.
func finished(tx journal.Tx, id UploadID, sender ops.IdentityID) (Upload, error) {
	up, err := Upload{ID: id, Done: true}, error(ErrNoUpload)
	if e := tx.Query(`SELECT digest, bytes, name, kind, run, delegation, producer, owner_id, owner_role FROM artifact WHERE upload = $1 AND producer = $2`,
		func(scan func(...any) error) error {
			err = nil
			return scan((*string)(&up.Digest), &up.Bytes, &up.Name, &up.Kind, &up.Run, &up.Delegation, (*string)(&up.Sender), (*string)(&up.Owner.ID), (*string)(&up.Owner.Role))
		}, string(id), string(sender)); e != nil {
		return Upload{}, e
	}
	up.Received = up.Bytes
	return up, err
}

// left is what there is of a run already.
type left struct {
	files int  // that the run has left or announced
	known bool // this file is one of them
	same  bool // a run of its delegation has left just these bytes
}

func leftBy(tx journal.Tx, d Declared) (l left, err error) {
	err = tx.Query(`SELECT (SELECT COUNT(*) FROM artifact WHERE run = $1) + (SELECT COUNT(*) FROM upload WHERE run = $1),
			EXISTS (SELECT 1 FROM artifact WHERE run = $1 AND name = $5 AND digest = $3),
			EXISTS (SELECT 1 FROM artifact WHERE delegation = $2 AND digest = $3 AND bytes = $4)`,
		func(scan func(...any) error) error { return scan(&l.files, &l.known, &l.same) }, d.Run, d.Delegation, string(d.Digest), d.Bytes, d.Name)
	return l, err
}

// expire ends up to limit uploads whose time is over, and returns which.
func expire(tx journal.Tx, limit int) (ended []UploadID, err error) {
	now := tx.Now().UnixMilli()
	if err := tx.Query(`SELECT id FROM upload WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2`, func(scan func(...any) error) error {
		var id UploadID
		err := scan((*string)(&id))
		ended = append(ended, id)
		return err
	}, now, int64(limit)); err != nil {
		return nil, err
	}
	for _, id := range ended {
		if _, err := tx.Exec(`DELETE FROM upload WHERE id = $1 AND expires_at <= $2`, string(id), now); err != nil {
			return nil, err
		}
	}
	return ended, nil
}

// The folder's side of it.

// claim takes an upload for one goroutine; leave gives it back.
func (s *Store) claim(id UploadID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[id] {
		return false
	}
	s.busy[id] = true
	return true
}

func (s *Store) leave(id UploadID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, id)
}

// valid reports whether id has the form of one, so that it can be a file's name.
func (id UploadID) valid() bool {
	name, ok := strings.CutPrefix(string(id), "u-")
	return ok && len(name) == ulid.EncodedSize && strings.Trim(name, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

func (id UploadID) file() string { return path.Join(partial, string(id)) }

// has reports whether there is a file of d of that size. It is not read.
func (s *Store) has(d Digest, size int64) bool {
	info, err := s.root.Lstat(d.file())
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// partialSize is the size of an upload's file, -1 if it has none.
func (s *Store) partialSize(id UploadID) int64 {
	info, err := s.root.Lstat(id.file())
	if err != nil {
		return -1
	}
	return info.Size()
}

// dropPartial removes the file of an upload that has no row any more, unless somebody
// is at it, who finds that out himself.
func (s *Store) dropPartial(id UploadID) {
	if s.claim(id) {
		defer s.leave(id)
		s.removePartial(id)
	}
}

// removePartial is dropPartial for who has claimed the upload.
func (s *Store) removePartial(id UploadID) {
	if size := s.partialSize(id); size >= 0 && s.root.Remove(id.file()) == nil {
		s.release(blocks(size), 0)
	} // else it takes its room until it is collected
}

// partFile is the file of an upload, open at its end.
type partFile struct {
	s    *Store
	f    *os.File
	id   UploadID
	size int64
	held int64 // of the quota
}

// openPartial opens the file of an upload and cuts off what lies in it beyond received
// bytes. It may have fewer.
func (s *Store) openPartial(id UploadID, received int64) (*partFile, error) {
	f, err := s.root.OpenFile(id.file(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) && s.root.Chmod(id.file(), 0o600) == nil { // it was about to get its name
		f, err = s.root.OpenFile(id.file(), os.O_RDWR, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.take(block); err != nil {
			return nil, err
		}
		if f, err = s.root.OpenFile(id.file(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			if err = s.sync(partial); err != nil {
				f.Close()
			}
		}
		if err != nil {
			s.release(block, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	p := &partFile{s: s, f: f, id: id, size: info.Size(), held: blocks(info.Size())}
	if p.size > received {
		err = p.cut(received)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// cut cuts the file off at size.
func (p *partFile) cut(size int64) error {
	if err := p.f.Truncate(size); err != nil {
		return err
	}
	if _, err := p.f.Seek(size, io.SeekStart); err != nil {
		return err
	}
	p.size = size
	p.fit()
	return nil
}

// fit gives back what of the quota the file does not need.
func (p *partFile) fit() {
	if need := blocks(p.size); need < p.held {
		p.s.release(p.held-need, 0)
		p.held = need
	}
}

// write appends b, or nothing.
func (p *partFile) write(b []byte) error {
	if need := blocks(p.size + int64(len(b))); need > p.held {
		if err := p.s.take(need - p.held); err != nil {
			return err
		}
		p.held = need
	}
	if _, err := p.f.Write(b); err != nil {
		return errors.Join(err, p.cut(p.size))
	}
	p.size += int64(len(b))
	return nil
}

// sum reads the file whole and returns what it is.
func (p *partFile) sum(ctx context.Context) (Digest, error) {
	if _, err := p.f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := p.f.Read(*buf)
		h.Write((*buf)[:n])
		if errors.Is(err, io.EOF) {
			return digestOf(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// place gives the file the name of its bytes, durably.
func (p *partFile) place(d Digest) error {
	if err := errors.Join(p.f.Chmod(0o400), p.f.Sync()); err != nil {
		return err
	}
	if err := p.s.place(p.id.file(), d); err != nil {
		return err
	}
	return p.s.sync(d.shard())
}

func (p *partFile) close() { _ = p.f.Close() } // what counts was synced
