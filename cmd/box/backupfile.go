package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
)

// A backup is a tar archive: first backupFirst, which says what it is, then what a state
// folder holds under the same names, last backupLast, which names every file before it
// with its digest. One without its end is no backup.
const (
	backupFormat = "inband backup 1"
	backupFirst  = "backup.json"
	backupLast   = "manifest.json"
	backupKind   = "application/x-tar"

	maxBackupName = 1024     // bytes
	maxManifest   = 64 << 20 // bytes
)

// backupParts are the names at the top of a state folder that a backup holds, beside the
// journal and the artifacts. Those of folders end in a slash. The audit folder stands by
// itself: what the notary remembers there must not be newer than the journal.
var backupParts = []string{"tls/", "plane/", "ops.d/", "policy.cedar", "adaptors/", "credentials/", "operator.token"}

const (
	auditPart     = "audit/"
	artifactsPart = "artifacts/sha256/"
	journalPart   = "journal.db"
)

// manifest says what a backup holds.
type manifest struct {
	Format   string       `json:"format"`
	MadeAt   string       `json:"made_at"`
	Version  string       `json:"version"`  // of the program that made it
	Position int64        `json:"position"` // of the last event
	Files    []backedFile `json:"files"`
	// Missing and Damaged are digests that the journal names and whose bytes were not
	// there, or were others, when the backup was made.
	Missing []artifacts.Digest `json:"missing,omitempty"`
	Damaged []artifacts.Digest `json:"damaged,omitempty"`
}

// backedFile is one file of a backup.
type backedFile struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"`
}

// stateCopy is a state folder at one moment, from which a backup is written. The journal
// is copied first and the artifacts after it, so that bytes are there for every digest
// that it names.
type stateCopy struct {
	folder  stateFolder
	dir     string            // of the copy of the journal, below the state folder
	audit   map[string][]byte // read before the journal
	digests []artifacts.Digest
	m       manifest
	sum     string // the digest of the manifest, once it is written
}

// snapshotFolders match what a snapshot that was cut off has left.
const snapshotFolders = ".backup-*"

// takeSnapshot makes a stateCopy, whose journal copied writes. The caller owns the journal
// and takes one snapshot at a time.
func takeSnapshot(ctx context.Context, folder stateFolder, version string, copied func(context.Context, string) error) (_ *stateCopy, err error) {
	if err := folder.sweep(); err != nil {
		return nil, err
	}
	s := &stateCopy{folder: folder, audit: make(map[string][]byte), m: manifest{Format: backupFormat, MadeAt: ops.Stamp(time.Now()), Version: version}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	entries, err := os.ReadDir(folder.audit())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if s.audit[auditPart+e.Name()], err = os.ReadFile(filepath.Join(folder.audit(), e.Name())); err != nil {
			return nil, err
		}
	}
	if s.dir, err = os.MkdirTemp(string(folder), strings.TrimSuffix(snapshotFolders, "*")); err != nil {
		return nil, err
	}
	if err := copied(ctx, s.journal()); err != nil {
		return nil, err
	}
	failpoint.Here("backup.copied")
	return s, s.inspect(ctx)
}

// sweep removes what snapshots that were cut off have left in s.
func (s stateFolder) sweep() error {
	left, err := filepath.Glob(filepath.Join(string(s), snapshotFolders))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

func (s *stateCopy) journal() string { return filepath.Join(s.dir, journalPart) }

// inspect checks the copy and reads which bytes it names.
func (s *stateCopy) inspect(ctx context.Context) error {
	i, err := sqlite.Inspect(ctx, s.journal())
	if err != nil {
		return err
	}
	s.digests, err = namedDigests(ctx, i)
	if err == nil {
		s.m.Position, err = i.Head(ctx)
	}
	return errors.Join(err, i.Close())
}

// namedDigests are the digests of the artifacts that a journal names, in order.
func namedDigests(ctx context.Context, i *sqlite.Inspection) (list []artifacts.Digest, err error) {
	err = i.View(ctx, func(tx journal.Tx) error {
		list = nil
		return tx.Query(`SELECT DISTINCT digest FROM artifact ORDER BY digest`, func(scan func(...any) error) error {
			var d artifacts.Digest
			if err := scan((*string)(&d)); err != nil {
				return err
			}
			if !d.Valid() {
				return fmt.Errorf("the journal names bytes by %q, which is no digest", string(d))
			}
			list = append(list, d)
			return nil
		})
	})
	return list, err
}

// artifactName is the name of the bytes of d in a backup, as in the state folder.
func artifactName(d artifacts.Digest) string {
	hexadecimal := strings.TrimPrefix(string(d), "sha256:")
	return artifactsPart + hexadecimal[:2] + "/" + hexadecimal
}

// Close removes the copy of the journal.
func (s *stateCopy) Close() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// Write writes the backup. After an error w holds a part of one, which nobody takes for a
// whole.
func (s *stateCopy) Write(ctx context.Context, w io.Writer) error {
	b := &backupWriter{ctx: ctx, tar: tar.NewWriter(w), m: &s.m}
	head, err := json.Marshal(map[string]string{"format": backupFormat, "made_at": s.m.MadeAt, "version": s.m.Version})
	if err != nil {
		return err
	}
	if err := b.put(backupFirst, 0o600, int64(len(head)), bytes.NewReader(head), nil); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.audit)) {
		if err := b.member(name, 0o600, int64(len(s.audit[name])), bytes.NewReader(s.audit[name])); err != nil {
			return err
		}
	}
	if err := b.file(journalPart, s.journal()); err != nil {
		return err
	}
	for _, part := range backupParts {
		if err := b.part(s.folder, part); err != nil {
			return err
		}
	}
	for _, d := range s.digests {
		switch err := b.file(artifactName(d), filepath.Join(string(s.folder), filepath.FromSlash(artifactName(d)))); {
		case errors.Is(err, fs.ErrNotExist):
			s.m.Missing = append(s.m.Missing, d)
		case err != nil:
			return err
		case b.last().Digest != string(d):
			s.m.Damaged = append(s.m.Damaged, d)
		}
	}
	failpoint.Here("backup.written")
	end, err := json.Marshal(s.m)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(end)
	s.sum = "sha256:" + hex.EncodeToString(sum[:])
	if err := b.put(backupLast, 0o600, int64(len(end)), bytes.NewReader(end), nil); err != nil {
		return err
	}
	return b.tar.Close()
}

// backupWriter writes the members of a backup and notes them in its manifest.
type backupWriter struct {
	ctx context.Context // of the one Write that it serves
	tar *tar.Writer
	m   *manifest
}

func (b *backupWriter) last() backedFile { return b.m.Files[len(b.m.Files)-1] }

// part writes a file or the files of a folder at the top of a state folder, if it is there.
func (b *backupWriter) part(folder stateFolder, part string) error {
	root, isFolder := strings.CutSuffix(part, "/")
	at := filepath.Join(string(folder), root)
	if !isFolder {
		if err := b.file(root, at); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return filepath.WalkDir(at, func(file string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && file == at:
			return nil
		case err != nil:
			return err
		case e.IsDir():
			return nil
		}
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			return err // what is no file, such as a socket, is not kept
		}
		below, err := filepath.Rel(at, file)
		if err != nil {
			return err
		}
		return b.file(path.Join(root, filepath.ToSlash(below)), file)
	})
}

// file writes the file at a path of this machine. One that is not there is fs.ErrNotExist,
// and nothing is written then.
func (b *backupWriter) file(name, at string) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return b.member(name, info.Mode().Perm(), info.Size(), f)
}

// member writes a file and notes it.
func (b *backupWriter) member(name string, mode fs.FileMode, size int64, r io.Reader) error {
	sum := sha256.New()
	if err := b.put(name, mode, size, r, sum); err != nil {
		return err
	}
	b.m.Files = append(b.m.Files, backedFile{name, size, "sha256:" + hex.EncodeToString(sum.Sum(nil))})
	return nil
}

func (b *backupWriter) put(name string, mode fs.FileMode, size int64, r io.Reader, sum hash.Hash) error {
	if err := b.ctx.Err(); err != nil {
		return context.Cause(b.ctx)
	}
	if err := b.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode & 0o644), Size: size, Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	w := io.Writer(b.tar)
	if sum != nil {
		w = io.MultiWriter(b.tar, sum)
	}
	if n, err := io.Copy(w, io.LimitReader(r, size)); err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	} else if n != size {
		return fmt.Errorf("back up %s: it got shorter meanwhile; try again", name)
	}
	return nil
}

// errBackup is what is wrong with a backup.
type errBackup struct{ what string }

func (e *errBackup) Error() string { return "the backup " + e.what }

func badBackup(format string, args ...any) error { return &errBackup{fmt.Sprintf(format, args...)} }

// readBackup reads a backup whole, hands each file to put, and compares all of them with
// the manifest. It returns the manifest and its digest. An *errBackup says what is wrong
// with it; what put has got is then not to be trusted.
func readBackup(r io.Reader, put func(name string, mode fs.FileMode, content io.Reader) error) (*manifest, string, error) {
	in := tar.NewReader(r)
	h, err := in.Next()
	if err != nil || h.Name != backupFirst {
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, tar.ErrHeader) {
			return nil, "", err
		}
		return nil, "", badBackup("is none: want an archive that box backup has written")
	}
	var first struct{ Format string }
	if b, err := io.ReadAll(io.LimitReader(in, 4096)); err != nil || json.Unmarshal(b, &first) != nil || first.Format != backupFormat {
		return nil, "", badBackup("has the format %q, and this program reads %q", first.Format, backupFormat)
	}
	var files []backedFile
	seen := make(map[string]bool)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, "", badBackup("is cut off: its end, %s, is missing", backupLast)
		case errors.Is(err, tar.ErrHeader):
			return nil, "", badBackup("is damaged behind %q", lastName(files))
		case err != nil:
			return nil, "", err
		case h.Name == backupLast:
			return readManifest(in, r, files)
		case h.Typeflag != tar.TypeReg || !inBackup(h.Name) || seen[h.Name]:
			return nil, "", badBackup("holds %q, which cannot be in one", clean(h.Name))
		}
		seen[h.Name] = true
		sum := sha256.New()
		if err := put(h.Name, fs.FileMode(h.Mode)&0o644|0o400, io.TeeReader(in, sum)); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = badBackup("is cut off in %s", h.Name)
			}
			return nil, "", err
		}
		files = append(files, backedFile{h.Name, h.Size, "sha256:" + hex.EncodeToString(sum.Sum(nil))})
	}
}

func lastName(files []backedFile) string {
	if len(files) == 0 {
		return backupFirst
	}
	return files[len(files)-1].Name
}

// readManifest reads the end of a backup and compares it with what stood before it.
func readManifest(in *tar.Reader, r io.Reader, files []backedFile) (*manifest, string, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, "", badBackup("is cut off in %s", backupLast)
	case err != nil:
		return nil, "", err
	case len(b) > maxManifest:
		return nil, "", badBackup("has a manifest of more than %d bytes", maxManifest)
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil || m.Format != backupFormat {
		return nil, "", badBackup("has a manifest that is none")
	}
	if len(files) != len(m.Files) {
		return nil, "", badBackup("holds %d files, and its manifest names %d", len(files), len(m.Files))
	}
	for i, f := range files {
		if f != m.Files[i] {
			return nil, "", badBackup("is not what was written: %s has %d bytes of %s, and its manifest says %s, %d bytes of %s",
				f.Name, f.Bytes, f.Digest, clean(m.Files[i].Name), m.Files[i].Bytes, clean(m.Files[i].Digest))
		}
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		return nil, "", badBackup("goes on behind its end")
	}
	if n, err := io.Copy(io.Discard, r); err != nil {
		return nil, "", err
	} else if n > 0 {
		return nil, "", badBackup("goes on behind its end")
	}
	sum := sha256.Sum256(b)
	return &m, "sha256:" + hex.EncodeToString(sum[:]), nil
}

// inBackup reports whether a file of a backup may have this name, which becomes a path
// below a state folder.
func inBackup(name string) bool {
	if name == journalPart {
		return true
	}
	if !fs.ValidPath(name) || len(name) > maxBackupName || strings.ContainsAny(name, "\\\x00") {
		return false
	}
	for _, part := range append([]string{auditPart, artifactsPart}, backupParts...) {
		if name == part || strings.HasSuffix(part, "/") && strings.HasPrefix(name, part) {
			return true
		}
	}
	return false
}

// backupReport is what is known of a backup that was read whole.
type backupReport struct {
	OK        bool             `json:"ok"`
	Digest    string           `json:"digest"` // of the manifest, and so of all it holds
	MadeAt    string           `json:"made_at"`
	Version   string           `json:"version"`
	Position  int64            `json:"position"`
	Signed    int64            `json:"signed"` // the last event that a checkpoint covers; verified, if it was
	Files     int              `json:"files"`
	Bytes     int64            `json:"bytes"`
	Artifacts int              `json:"artifacts"`
	Missing   int              `json:"missing"`
	Damaged   int              `json:"damaged"`
	Schemas   []sqlite.Version `json:"schemas,omitempty"`
	File      string           `json:"file,omitempty"`
}

func reportOf(m *manifest, digest string) backupReport {
	r := backupReport{OK: true, Digest: digest, MadeAt: m.MadeAt, Version: m.Version, Position: m.Position, Files: len(m.Files), Missing: len(m.Missing), Damaged: len(m.Damaged)}
	for _, f := range m.Files {
		r.Bytes += f.Bytes
		if strings.HasPrefix(f.Name, artifactsPart) {
			r.Artifacts++
		}
	}
	return r
}

// extract returns what puts the files of a backup below dir, durably.
func extract(dir string, which func(name string) bool) func(string, fs.FileMode, io.Reader) error {
	return func(name string, mode fs.FileMode, content io.Reader) (err error) {
		if !which(name) {
			_, err := io.Copy(io.Discard, content)
			return err
		}
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if _, err := io.Copy(f, content); err != nil {
			return err
		}
		return f.Sync()
	}
}

// checkState verifies what a backup has become below dir: the journal by SQLite's own
// check, its schemas, its events against what was signed of them, and that there are bytes
// for every digest that it names. The audit folder and the journal are needed; artifacts
// go by the manifest.
func checkState(ctx context.Context, dir string, m *manifest, r *backupReport) error {
	folder := stateFolder(dir)
	src, err := sqlite.Inspect(ctx, folder.journal())
	if err != nil {
		return err
	}
	err = checkJournal(ctx, src, folder, m, r)
	return errors.Join(err, src.Close())
}

func checkJournal(ctx context.Context, src *sqlite.Inspection, folder stateFolder, m *manifest, r *backupReport) (err error) {
	if r.Schemas, err = src.Versions(ctx, schemas()); err != nil {
		return err
	}
	if err := newerSchema(r.Schemas); err != nil {
		return err
	}
	head, err := src.Head(ctx)
	if err != nil {
		return err
	}
	if head != m.Position {
		return badBackup("says that its last event is %d, and its journal ends at %d", m.Position, head)
	}
	key, err := notary.PublicKey(folder.audit())
	if err != nil {
		return err
	}
	var kept []notary.Checkpoint
	switch last, found, err := notary.Remembered(folder.audit(), key); {
	case err != nil:
		return err
	case found:
		kept = append(kept, last)
	}
	verified, err := notary.Verify(ctx, src, key, kept...)
	if err != nil {
		return err
	}
	r.Signed = verified.Position
	there := make(map[string]string, len(m.Files))
	for _, f := range m.Files {
		there[f.Name] = f.Digest
	}
	named, err := namedDigests(ctx, src)
	if err != nil {
		return err
	}
	for _, d := range named {
		got, ok := there[artifactName(d)]
		switch {
		case !ok && !slices.Contains(m.Missing, d):
			return badBackup("lacks the bytes of %s, which its journal names", d)
		case ok && got != string(d) && !slices.Contains(m.Damaged, d):
			return badBackup("holds other bytes than those of %s", d)
		}
	}
	return nil
}

// newerSchema refuses a journal that a newer program has written.
func newerSchema(list []sqlite.Version) error {
	for _, v := range list {
		if v.Newer() {
			return &exitError{code: ops.ExitConflict, err: fmt.Errorf("%w: schema %s is at version %d, this program knows versions up to %d", journal.ErrNewerSchema, v.Schema, v.Stored, v.Known),
				hint: "use the program that wrote it, or a newer one; box version says which this is"}
		}
	}
	return nil
}
