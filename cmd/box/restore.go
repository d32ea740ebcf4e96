package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"inband/failpoint"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane"
)

// restoring is the folder in a state folder in which a restore puts everything together.
// While it stands there the state folder is not whole, and nothing opens it.
func (s stateFolder) restoring() string { return filepath.Join(string(s), ".restoring") }

// whole refuses a state folder in which a restore was cut off.
func (s stateFolder) whole() error {
	if _, err := os.Lstat(s.restoring()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return &exitError{code: ops.ExitConflict, err: fmt.Errorf("state folder %s: a restore is under way or was cut off, so it is not whole", s),
		hint: "run box restore again, which begins anew"}
}

// restored is what box restore did.
type restored struct {
	State    string       `json:"state"`
	Backup   backupReport `json:"backup"`
	Term     int64        `json:"term"`     // of fences, from now on
	Unknown  int64        `json:"unknown"`  // runs that were live and are UNKNOWN now
	Open     int64        `json:"open"`     // calls that had not settled
	Outgoing int64        `json:"outgoing"` // posts that had not been delivered
	Plane    string       `json:"plane"`    // off, on or drain
}

func (a *app) restoreCommand() *cobra.Command {
	var digest string
	cmd := &cobra.Command{
		Use:   "restore BACKUP",
		Short: "Make a state folder of a backup",
		Long: `Make a state folder (--state) of a backup: - reads standard input. The folder must be
empty or not exist. The backup is verified first, as box backup verify does, and nothing
of it counts before all of it is there.

What has happened since the backup is not in it, and other machines may go on with it.
So a new term of fences begins, later than any that the lost gateway can have given, and
each run that a worker had a lease on is UNKNOWN: nothing that such a worker says counts
before it is reconciled. Identities, tokens and keys are those of the backup; what was
revoked later has to be revoked again. Posts that waited then are made, orders of chats
that came since are read again where the platform shows them, and those that are older
than 15 minutes wait for a person. Nothing runs before box serve.`,
		Example: `  box restore inband-20261130T220000Z.tar --state /var/lib/inband
  age -d monday.tar.age | box restore - --state /var/lib/inband`,
		Args: exactly("the backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			folder, err := a.folder()
			if err != nil {
				return err
			}
			in, done, err := a.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			r, err := restore(cmd.Context(), in, digest, folder)
			if err != nil {
				return asBackupError(err)
			}
			return a.printRestored(r)
		},
	}
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that box backup printed")
	return a.prints(cmd)
}

// restore makes folder of the backup that in yields. After an error the folder is as empty
// as it was; a process that is killed leaves one that nothing but another restore opens.
func restore(ctx context.Context, in io.Reader, digest string, folder stateFolder) (r restored, err error) {
	_, err = os.Stat(string(folder))
	made := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(string(folder), 0o700); err != nil {
		return r, fmt.Errorf("make state folder: %w", err)
	}
	lock, err := os.Open(string(folder))
	if err != nil {
		return r, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return r, &exitError{code: ops.ExitConflict, err: fmt.Errorf("state folder %s: another restore is under way", folder)}
	}
	if err := folder.clear(); err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, folder.clear())
			if made {
				os.Remove(string(folder)) // only if it is empty
			}
		}
	}()
	stage := stateFolder(folder.restoring())
	if err := os.Mkdir(string(stage), 0o700); err != nil {
		return r, err
	}
	if err := errors.Join(syncFolder(string(folder)), syncFolder(filepath.Dir(string(folder)))); err != nil {
		return r, err
	}
	failpoint.Here("restore.begun")
	m, got, err := readBackup(bufio.NewReaderSize(in, 1<<20), extract(string(stage), func(string) bool { return true }))
	if err != nil {
		return r, err
	}
	if err := sameDigest(digest, got); err != nil {
		return r, err
	}
	failpoint.Here("restore.extracted")
	r = restored{State: string(folder), Backup: reportOf(m, got)}
	if err := checkState(ctx, string(stage), m, &r.Backup); err != nil {
		return r, err
	}
	if err := beginAgain(ctx, stage, &r); err != nil {
		return r, err
	}
	failpoint.Here("restore.changed")
	return r, folder.settle(stage)
}

// parts are the names at the top of a state folder that a restore may have put there. The
// journal is the last.
func (s stateFolder) parts() (names []string) {
	for _, part := range append([]string{auditPart, "artifacts/"}, backupParts...) {
		names = append(names, strings.TrimSuffix(part, "/"))
	}
	return append(names, "journal.db.lock", "journal.db-wal", "journal.db-shm", journalPart)
}

// clear removes what a restore that was cut off has left in s, and refuses a folder that
// holds anything else. Nothing else can have been there when that restore began, and
// nothing has opened it since.
func (s stateFolder) clear() error {
	if _, err := os.Lstat(s.restoring()); err == nil {
		for _, name := range append(s.parts(), filepath.Base(s.restoring())) { // the mark is the last
			if err := os.RemoveAll(filepath.Join(string(s), name)); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(string(s))
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	if at, ok, err := s.readAddress(); err == nil && ok {
		return &exitError{code: ops.ExitConflict, err: fmt.Errorf("state folder %s is in use: process %d serves it, or did", s, at.PID), hint: "choose a new folder with --state"}
	}
	return &exitError{code: ops.ExitConflict, err: fmt.Errorf("state folder %s is not empty: it holds %s", s, entries[0].Name()), hint: "choose a new folder with --state"}
}

// settle moves what was put together in stage to its place in s, the journal last, and
// then takes the mark away.
func (s stateFolder) settle(stage stateFolder) error {
	if err := syncTree(string(stage)); err != nil {
		return err
	}
	for _, name := range s.parts() {
		err := os.Rename(filepath.Join(string(stage), name), filepath.Join(string(s), name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		failpoint.Here("restore.moved")
	}
	if err := syncFolder(string(s)); err != nil {
		return err
	}
	if err := os.Remove(string(stage)); err != nil { // it is empty, or something was not moved
		return err
	}
	return syncFolder(string(s))
}

// syncTree makes the names in dir and in all folders below it durable.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return syncFolder(path)
	})
}

// beginAgain makes the store of a backup one that goes on: its schemas are brought up to
// date, a new term of fences begins, and live runs are UNKNOWN.
func beginAgain(ctx context.Context, stage stateFolder, r *restored) error {
	log := slog.New(slog.DiscardHandler)
	store, err := openState(ctx, stage, log)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // again below, where it counts
	key, _, err := planeKey(stage)
	if err != nil {
		return err
	}
	empty, err := ops.New()
	if err != nil {
		return err
	}
	policy := access.NewLivePolicy(access.DefaultPolicy())
	door, err := service.New(service.Config{Store: store, Registry: ops.NewLive(empty), Policy: policy, Log: log}) // never started
	if err != nil {
		return err
	}
	p, err := plane.New(plane.Config{Store: store, Door: door, Directory: access.NewDirectory(store), Policy: policy, Key: key, Log: log})
	if err != nil {
		return err
	}
	defer p.Close()
	body := fmt.Appendf(nil, `{"backup":%q,"made_at":%q,"position":%d}`, r.Backup.Digest, r.Backup.MadeAt, r.Backup.Position)
	err = store.Update(ctx, func(tx journal.Tx) error {
		if err := tx.Append("gateway", journal.Any, "state.restored", body); err != nil {
			return err
		}
		var before int64
		unknown := func(n *int64) error {
			return tx.Query(`SELECT count(*) FROM dispatch WHERE state = 'UNKNOWN'`, func(scan func(...any) error) error { return scan(n) })
		}
		if err := unknown(&before); err != nil {
			return err
		}
		if err := p.Restored(tx); err != nil {
			return err
		}
		if err := unknown(&r.Unknown); err != nil {
			return err
		}
		r.Unknown -= before
		return tx.Query(`SELECT term, state, (SELECT count(*) FROM call WHERE outcome IS NULL),
				(SELECT count(*) FROM outbox WHERE state IN ('queued', 'sending')) FROM plane WHERE id = 1`,
			func(scan func(...any) error) error { return scan(&r.Term, &r.Plane, &r.Open, &r.Outgoing) })
	})
	return errors.Join(err, store.Close())
}

func (a *app) printRestored(r restored) error {
	if a.json || a.jsonl {
		return a.document(r)
	}
	t := newTable("WHAT", "")
	t.row("state folder", r.State)
	t.row("backup", fmt.Sprintf("made at %s, up to event %d", r.Backup.MadeAt, r.Backup.Position))
	t.row("signed and verified", fmt.Sprintf("up to event %d", r.Backup.Signed))
	t.row("artifacts", fmt.Sprint(r.Backup.Artifacts))
	t.row("fences", fmt.Sprintf("term %d begins", r.Term))
	t.row("runs that were live", fmt.Sprintf("%d, now UNKNOWN", r.Unknown))
	t.row("calls not settled", fmt.Sprint(r.Open))
	t.row("posts not delivered", fmt.Sprintf("%d, made again", r.Outgoing))
	t.row("plane", r.Plane)
	if err := a.print(t); err != nil {
		return err
	}
	if r.Backup.Missing+r.Backup.Damaged > 0 {
		a.notice("%d artifacts were missing already when the backup was made, and %d damaged; box artifacts verify names them", r.Backup.Missing, r.Backup.Damaged)
	}
	a.notice("revoke again what was revoked after %s; start the gateway with: box serve --state %s", r.Backup.MadeAt, r.State)
	return nil
}
