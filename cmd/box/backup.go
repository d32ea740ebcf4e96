package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inband/adaptors/httpapi"
	"inband/failpoint"
	"inband/ops"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
)

func (a *app) backupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup [FILE|FOLDER]",
		Short: "Write all of a state folder into one file; verify one",
		Long: `Write the journal as it is now, every file that it names, and all else of the state
folder into one new file of mode 0600: FILE, or a file named after the time in FOLDER
(the current one). - writes to standard output. While a gateway runs it makes the backup
and goes on meanwhile; for operators. Without one the state folder is read itself.

The file is verified as it is written, and durable when box ends. It holds the keys and
credentials of the gateway: keep it as you keep those. The digest that is printed names
all that it holds: kept elsewhere, it shows a backup that somebody has changed.

The state folder needs room for a second journal meanwhile.`,
		Example: `  box backup /backups
  box backup - | age -r KEY > monday.tar.age
  box backup verify /backups/inband-20261130T220000Z.tar`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := a.patient(cmd.Context())
			defer cancel()
			to, err := newBackupFile(a, args)
			if err != nil {
				return err
			}
			r, err := a.backUp(ctx, to)
			if err != nil {
				return errors.Join(err, to.discard())
			}
			if err := to.keep(); err != nil {
				return err
			}
			r.File = to.path
			return a.printBackup(r, to.f == nil)
		},
	}
	cmd.AddCommand(a.backupVerifyCommand())
	return a.speaks(cmd)
}

// backUp writes a backup into w, verifies it meanwhile, and says what it holds.
func (a *app) backUp(ctx context.Context, w io.Writer) (backupReport, error) {
	if a.gateway != "" || a.getenv("INBAND_GATEWAY") != "" {
		return a.fetchBackup(ctx, w)
	}
	folder, err := a.folder()
	if err != nil {
		return backupReport{}, err
	}
	src, err := sqlite.Inspect(ctx, folder.journal())
	if errors.Is(err, journal.ErrOwned) {
		return a.fetchBackup(ctx, w)
	}
	if err != nil {
		return backupReport{}, err
	}
	s, err := takeSnapshot(ctx, folder, readBuild().String(), src.Backup)
	if err != nil {
		return backupReport{}, errors.Join(err, src.Close())
	}
	r, err := a.watchBackup(w, func(w io.Writer) error { return s.Write(ctx, w) })
	return r, errors.Join(err, s.Close(), src.Close())
}

// fetchBackup has a running gateway make the backup.
func (a *app) fetchBackup(ctx context.Context, w io.Writer) (backupReport, error) {
	c, err := a.connect()
	if err != nil {
		return backupReport{}, err
	}
	defer c.close()
	r := request{route: routeBackup, head: http.Header{"Accept": {backupKind + ", application/problem+json"}}}
	resp, err := c.send(ctx, r, nil)
	if err != nil {
		if ctx.Err() != nil {
			return backupReport{}, ctx.Err()
		}
		return backupReport{}, c.unreachable(err, r)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _, err := readBounded(resp.Body, 1<<20)
		if err != nil {
			return backupReport{}, c.unreachable(err, r)
		}
		return backupReport{}, asFault(answer{status: resp.StatusCode, body: b})
	}
	return a.watchBackup(w, func(w io.Writer) error {
		if _, err := io.Copy(w, resp.Body); err != nil {
			return fmt.Errorf("the gateway broke off: %w; its log says why", err)
		}
		return nil
	})
}

// watchBackup verifies what produce writes, and says now and then how much that is.
func (a *app) watchBackup(w io.Writer, produce func(io.Writer) error) (backupReport, error) {
	r, pipe := io.Pipe()
	type verdict struct {
		report backupReport
		err    error
	}
	read := make(chan verdict, 1)
	go func() {
		m, digest, err := readBackup(r, extract("", func(string) bool { return false }))
		r.CloseWithError(err)
		if err != nil {
			read <- verdict{err: err}
			return
		}
		read <- verdict{report: reportOf(m, digest)}
	}()
	out := bufio.NewWriterSize(w, 1<<20)
	err := produce(io.MultiWriter(out, pipe, &meter{a: a}))
	pipe.CloseWithError(err) // nil is the end of the archive
	v := <-read
	if err == nil {
		err = v.err
	}
	return v.report, errors.Join(err, out.Flush())
}

// meter says to people how many bytes have passed.
type meter struct {
	a          *app
	done, said int64
}

// meterStep is how many bytes pass between what a meter says.
const meterStep = 256 << 20

func (m *meter) Write(p []byte) (int, error) {
	if m.done += int64(len(p)); m.done-m.said >= meterStep {
		m.said = m.done
		if _, tty := terminal(m.a.errs); tty {
			m.a.notice("%d MiB so far", m.done>>20)
		}
	}
	return len(p), nil
}

// backupFile is where a backup goes: a temporary file beside its name until it is whole.
type backupFile struct {
	io.Writer
	f    *os.File // nil for standard output
	path string
}

func newBackupFile(a *app, args []string) (*backupFile, error) {
	to := "."
	if len(args) > 0 {
		to = args[0]
	}
	if to == "-" {
		return &backupFile{Writer: a.out}, nil
	}
	info, err := os.Stat(to)
	switch {
	case err == nil && info.IsDir():
		to = filepath.Join(to, "inband-"+time.Now().UTC().Format("20060102T150405Z")+".tar")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if _, err := os.Lstat(to); err == nil {
		return nil, ops.Faultf(ops.Conflict, "%s is there already; name another file", to)
	}
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &backupFile{f, f, to}, nil
}

// keep gives the backup its name, durably, and never one that stands for something else.
func (b *backupFile) keep() error {
	if b.f == nil {
		return nil
	}
	if err := errors.Join(b.f.Sync(), b.f.Close()); err != nil {
		return errors.Join(err, os.Remove(b.f.Name()))
	}
	failpoint.Here("backup.synced")
	if err := os.Link(b.f.Name(), b.path); err != nil { // unlike a rename, it replaces nothing
		return errors.Join(err, os.Remove(b.f.Name()))
	}
	if err := os.Remove(b.f.Name()); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(b.path))
}

// discard removes what is no whole backup.
func (b *backupFile) discard() error {
	if b.f == nil {
		return nil
	}
	b.f.Close() // it is thrown away
	return os.Remove(b.f.Name())
}

// printBackup prints what a backup holds. When the backup itself is what standard output
// has got, people are told.
func (a *app) printBackup(r backupReport, onOutput bool) error {
	if r.Missing+r.Damaged > 0 {
		a.notice("%d artifacts were missing already when it was made, and %d damaged; box artifacts verify names them in the state folder", r.Missing, r.Damaged)
	}
	if onOutput {
		a.notice("digest %s, %d files, %d bytes, up to event %d", r.Digest, r.Files, r.Bytes, r.Position)
		return nil
	}
	if a.json || a.jsonl {
		return a.document(r)
	}
	t := newTable("WHAT", "")
	if r.File != "" {
		t.row("file", r.File)
	}
	t.row("made at", r.MadeAt)
	t.row("last event", fmt.Sprint(r.Position))
	t.row("files", fmt.Sprintf("%d, %d of them artifacts", r.Files, r.Artifacts))
	t.row("bytes", fmt.Sprint(r.Bytes))
	t.row("digest", r.Digest)
	return a.print(t)
}

func (a *app) backupVerifyCommand() *cobra.Command {
	var digest string
	cmd := &cobra.Command{
		Use:   "verify BACKUP",
		Short: "Read a backup whole and check all that it holds",
		Long: `Read a backup whole and check it: every file against the manifest, the journal by
SQLite's own check, its events against what the notary has signed, and that there are
bytes for every digest that the journal names. The exit code is 1 when something is not
in order. - reads standard input.

--digest compares with the digest that box backup printed: without it, somebody who can
write the file could have made another backup.`,
		Example: `  box backup verify inband-20261130T220000Z.tar
  age -d monday.tar.age | box backup verify -`,
		Args: exactly("the backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := os.MkdirTemp("", "inband-verify-")
			if err != nil {
				return err
			}
			r, err := a.verifyBackup(cmd.Context(), args[0], digest, dir)
			if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
				return asBackupError(err)
			}
			if args[0] != "-" {
				r.File = args[0]
			}
			return a.printBackup(r, false)
		},
	}
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that box backup printed")
	return a.prints(cmd)
}

// verifyBackup checks the backup at path; dir is for its journal meanwhile.
func (a *app) verifyBackup(ctx context.Context, path, digest, dir string) (backupReport, error) {
	in, done, err := a.open(ctx, path)
	if err != nil {
		return backupReport{}, err
	}
	defer done()
	m, got, err := readBackup(bufio.NewReaderSize(in, 1<<20), extract(dir, func(name string) bool {
		return name == journalPart || strings.HasPrefix(name, auditPart)
	}))
	if err != nil {
		return backupReport{}, err
	}
	if err := sameDigest(digest, got); err != nil {
		return backupReport{}, err
	}
	r := reportOf(m, got)
	return r, checkState(ctx, dir, m, &r)
}

func sameDigest(want, got string) error {
	if want != "" && want != got {
		return badBackup("is another one: its digest is %s", got)
	}
	return nil
}

// asBackupError gives what is wrong with a backup, or with the journal in it, its exit
// code.
func asBackupError(err error) error {
	var bad *errBackup
	var found *notary.Tampering
	if errors.As(err, &bad) || errors.As(err, &found) || errors.Is(err, journal.ErrCorrupt) {
		return &exitError{code: ops.ExitFailed, err: err}
	}
	return err
}

// Backup makes a backup of the running gateway. It implements httpapi.Backups.
func (g *gateway) Backup(ctx context.Context, by ops.Identity) (httpapi.Backup, error) {
	if !g.backing.TryLock() {
		return nil, ops.Faultf(ops.Busy, "a backup is being made already; try again later")
	}
	s, err := g.snapshotOf(ctx, by)
	if err != nil {
		g.backing.Unlock()
		if errors.Is(err, journal.ErrFull) {
			err = ops.Faultf(ops.Unavailable, "the state folder has no room for a copy of the journal; nothing was changed")
		}
		return nil, err
	}
	return &runningBackup{s, g}, nil
}

func (g *gateway) snapshotOf(ctx context.Context, by ops.Identity) (*stateCopy, error) {
	if err := g.record(ctx, "backup.begun", map[string]any{"by": by}); err != nil {
		return nil, err
	}
	sign, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := g.notary.Checkpoint(sign); err != nil { // a backup of what is not signed is worth having, too
		g.log.Warn("the last events of a backup have no checkpoint", "err", err)
	}
	return takeSnapshot(ctx, g.cfg.Folder, g.cfg.Version, g.store.Backup)
}

// runningBackup is the one that a gateway makes.
type runningBackup struct {
	*stateCopy
	g *gateway
}

// Close ends it, and lets another begin.
func (b *runningBackup) Close() error {
	defer b.g.backing.Unlock()
	return b.stateCopy.Close()
}
