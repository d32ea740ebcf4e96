package notary_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"inband/failpoint"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
)

var kills = flag.Int("kills", 9, "how often TestKill kills its child")

// never is an Every that no test waits for: what is sealed is asked for.
const never = time.Hour

const childEnv = "INBAND_NOTARY_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := runChild(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openStore(t testing.TB, dir string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(dir, "journal.db"), Schemas: []journal.Schema{notary.Schema()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func openNotary(t testing.TB, dir string, s journal.Store, batch int) *notary.Notary {
	t.Helper()
	n, err := notary.Open(t.Context(), notary.Config{Store: s, Folder: filepath.Join(dir, "audit"), Log: slog.New(slog.DiscardHandler), Every: never, MaxBatch: batch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close(context.Background()) })
	return n
}

// write appends events i to j-1.
func write(t testing.TB, s journal.Store, i, j int) {
	t.Helper()
	for ; i < j; i++ {
		if err := s.Update(context.Background(), func(tx journal.Tx) error {
			return tx.Append(fmt.Sprintf("call/%d", i%3), journal.Any, "call.received", fmt.Appendf(nil, `{"n":%d,"text":"ä \u0000"}`, i))
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func checkpoint(t testing.TB, n *notary.Notary) notary.Checkpoint {
	t.Helper()
	cp, err := n.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

// filled returns a folder with a closed store of events, signed in batches, and the
// checkpoint that was kept at the first third.
func filled(t testing.TB, events int) (dir string, key notary.Key, kept notary.Checkpoint) {
	t.Helper()
	dir = t.TempDir()
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 8)
	write(t, s, 0, events/3)
	kept = checkpoint(t, n)
	write(t, s, events/3, events)
	n.Close(t.Context())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, n.Key(), kept
}

func inspect(t testing.TB, dir string) *sqlite.Inspection {
	t.Helper()
	i, err := sqlite.Inspect(t.Context(), filepath.Join(dir, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func verify(t testing.TB, dir string, key notary.Key, kept ...notary.Checkpoint) (notary.Report, error) {
	t.Helper()
	i := inspect(t, dir)
	defer i.Close()
	return notary.Verify(t.Context(), i, key, kept...)
}

// The record of an event is fixed for ever: old checkpoints depend on it.
func TestRecord(t *testing.T) {
	e := journal.Event{Position: 2, Stream: "call/1", Version: 3, Kind: "call.settled", At: time.UnixMilli(-2), Body: []byte{0, 1}}
	want := "inband/event/v1\n" +
		"\x00\x00\x00\x00\x00\x00\x00\x02" + "\xff\xff\xff\xff\xff\xff\xff\xfe" + "\x00\x00\x00\x00\x00\x00\x00\x03" +
		"\x00\x00\x00\x06call/1" + "\x00\x00\x00\x0ccall.settled" + "\x00\x00\x00\x02\x00\x01"
	if got := string(notary.Record(e)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The checkpoint's hash is that of RFC 6962, computed here from its definition.
func TestTreeHash(t *testing.T) {
	var tree func(leaves []tlog.Hash) tlog.Hash
	tree = func(leaves []tlog.Hash) tlog.Hash {
		if len(leaves) == 1 {
			return leaves[0]
		}
		k := 1
		for 2*k < len(leaves) {
			k *= 2
		}
		return tlog.NodeHash(tree(leaves[:k]), tree(leaves[k:]))
	}
	dir := t.TempDir()
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 5)
	var leaves []tlog.Hash
	for i := range 40 {
		write(t, s, i, i+1)
		if err := s.Events(t.Context(), int64(i), func(e journal.Event) error {
			leaves = append(leaves, tlog.RecordHash(notary.Record(e)))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		cp := checkpoint(t, n)
		if cp.Size != int64(i+1) || cp.Hash != tree(leaves) {
			t.Fatalf("after %d events: checkpoint %d %s, want hash %s", i+1, cp.Size, cp.Hash, tree(leaves))
		}
		if again, err := n.Key().OpenCheckpoint(cp.Note); err != nil || again != cp {
			t.Fatalf("the checkpoint reads as %v, %v", again, err)
		}
	}
}

func TestVerify(t *testing.T) {
	dir, key, kept := filled(t, 50)
	got, err := verify(t, dir, key, kept)
	if want := (notary.Report{Position: 50, Head: 50}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if public, err := notary.PublicKey(filepath.Join(dir, "audit")); err != nil || public.String() != key.String() {
		t.Errorf("the public key is %v, %v; want %v", public, err, key)
	}
	if info, err := os.Stat(filepath.Join(dir, "audit", "notary.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key: %v, %v; want mode 0600", info.Mode(), err)
	}
}

// While the gateway runs, writers go on and everything verifies at any moment.
func TestConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 16)
	write(t, s, 0, 1)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { write(t, s, 0, 50) })
	}
	for range 5 {
		if len(checkpoint(t, n).Note) == 0 {
			t.Error("an empty checkpoint")
		}
		if _, err := notary.Verify(t.Context(), s, n.Key()); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	cp := checkpoint(t, n)
	got, err := notary.Verify(t.Context(), s, n.Key(), cp)
	if want := (notary.Report{Position: 401, Head: 401}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if head, err := s.Head(t.Context()); err != nil || head != 401 {
		t.Errorf("the store has %d events, %v: the notary must write none", head, err)
	}
	if status, err := n.Status(t.Context()); err != nil || status.Lag != 0 || status.State != "signing" || status.Position != 401 {
		t.Errorf("status %+v, %v", status, err)
	}
}

// What was committed without a notary is signed by the next one.
func TestCatchUp(t *testing.T) {
	dir, key, _ := filled(t, 20)
	s := openStore(t, dir)
	write(t, s, 20, 45)
	got, err := notary.Verify(t.Context(), s, key)
	if want := (notary.Report{Position: 20, Head: 45, Uncovered: 25}); err != nil || got != want {
		t.Errorf("without a notary: got %+v, %v; want %+v", got, err, want)
	}
	n := openNotary(t, dir, s, 8)
	if n.Key().String() != key.String() {
		t.Errorf("the key is %s, was %s", n.Key(), key)
	}
	n.Close(t.Context())
	got, err = notary.Verify(t.Context(), s, key)
	if want := (notary.Report{Position: 45, Head: 45}); err != nil || got != want {
		t.Errorf("with one: got %+v, %v; want %+v", got, err, want)
	}
}

// edit changes a closed journal through another connection, past every guard of its own.
func edit(t testing.TB, dir string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range append([]string{`PRAGMA ignore_check_constraints = 1`, `DROP TRIGGER IF EXISTS journal_events_unchanged`, `DROP TRIGGER IF EXISTS journal_events_kept`}, statements...) {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestTampering(t *testing.T) {
	made, key, kept := filled(t, 50)
	whole, err := os.ReadFile(filepath.Join(made, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit []string
		want string
	}{
		"body":     {[]string{`UPDATE journal_events SET body = cast(replace(cast(body AS TEXT), '"n":12', '"n":13') AS BLOB) WHERE position = 13`}, "the event at position 13 is not the one that was recorded"},
		"body bit": {[]string{`UPDATE journal_events SET body = cast(body || x'20' AS BLOB) WHERE position = 1`}, "the event at position 1 is not"},
		"kind":     {[]string{`UPDATE journal_events SET kind = 'call.receiveD' WHERE position = 30`}, "the event at position 30 is not"},
		"at":       {[]string{`UPDATE journal_events SET at = at + 1 WHERE position = 8`}, "the event at position 8 is not"},
		"stream":   {[]string{`UPDATE journal_events SET stream = 'call/9' WHERE position = 50`}, "the event at position 50 is not"},
		"version":  {[]string{`UPDATE journal_events SET version = 1000 WHERE position = 9`}, "the event at position 9 is not"},
		"position": {[]string{`UPDATE journal_events SET position = 51 WHERE position = 20`, `UPDATE journal_state SET head = 51`}, "the event at position 20 is missing; the next one is at 21"},
		"removed":  {[]string{`DELETE FROM journal_events WHERE position = 17`}, "the event at position 17 is missing"},
		"closed over": {[]string{`DELETE FROM journal_events WHERE position = 17`, `UPDATE journal_events SET position = -position WHERE position > 17`,
			`UPDATE journal_events SET position = -position - 1 WHERE position < 0`, `UPDATE journal_state SET head = 49`}, "the event at position 17 is not"},
		"inserted": {[]string{`UPDATE journal_events SET position = -position WHERE position >= 5`, `UPDATE journal_events SET position = 1 - position WHERE position < 0`,
			`INSERT INTO journal_events VALUES (5, 'forged', 1, 'call.settled', 0, x'7b7d')`, `UPDATE journal_state SET head = 51`}, "the event at position 5 is not"},
		"reordered": {[]string{`UPDATE journal_events SET position = -1 WHERE position = 22`, `UPDATE journal_events SET position = 22 WHERE position = 23`,
			`UPDATE journal_events SET position = 23 WHERE position = -1`}, "the event at position 22 is not"},
		"cut off":           {[]string{`DELETE FROM journal_events WHERE position > 40`, `UPDATE journal_state SET head = 40`}, "the events after position 40 are missing; a checkpoint covers 50"},
		"emptied":           {[]string{`DELETE FROM journal_events`, `UPDATE journal_state SET head = 0`}, "the events after position 0 are missing"},
		"end out of sight":  {[]string{`DELETE FROM journal_events WHERE position > 48`, `UPDATE notary_batch SET size = 49 WHERE size = 50`, `UPDATE journal_state SET head = 48`}, "the events after position 48 are missing; a checkpoint covers 49"},
		"behind the end":    {[]string{`UPDATE journal_state SET head = 53`}, "the events after position 50 are missing; the store says that there are 53"},
		"batch removed":     {[]string{`DELETE FROM notary_batch WHERE size = (SELECT size FROM notary_batch ORDER BY size LIMIT 1 OFFSET 2)`}, "are not in their place"},
		"first removed":     {[]string{`DELETE FROM notary_batch WHERE first_hash = 0`}, "the stored hashes at position 1 are not in their place"},
		"hash":              {[]string{`UPDATE notary_batch SET hashes = zeroblob(32) || substr(hashes, 33) WHERE first_hash = 0`}, "the event at position 1 is not"},
		"inner hash":        {[]string{`UPDATE notary_batch SET hashes = substr(hashes, 1, 64) || zeroblob(32) || substr(hashes, 97) WHERE first_hash = 0`}, "the stored hashes at position 2 were altered"},
		"hashes cut":        {[]string{`UPDATE notary_batch SET hashes = substr(hashes, 1, 40) WHERE first_hash = 0`}, "the stored hashes at position 2 are cut off"},
		"hashes more":       {[]string{`UPDATE notary_batch SET hashes = hashes || zeroblob(32) WHERE first_hash = 0`}, "more stored hashes"},
		"checkpoint":        {[]string{`UPDATE notary_batch SET checkpoint = replace(checkpoint, char(10) || '8' || char(10), char(10) || '9' || char(10)) WHERE size = 8`}, "the checkpoint at position 8"},
		"checkpoints moved": {[]string{`UPDATE notary_batch SET checkpoint = (SELECT checkpoint FROM notary_batch WHERE size = 8)`}, "the checkpoint at position 16 is one of position 8"},
		"checkpoint empty":  {[]string{`UPDATE notary_batch SET checkpoint = ''`}, "the checkpoint at position 8"},
		"log removed":       {[]string{`DELETE FROM notary_batch`, `DELETE FROM journal_events WHERE position > 10`, `UPDATE journal_state SET head = 10`}, "behind the checkpoint that was kept, at 16"},
		"log cut off":       {[]string{`DELETE FROM notary_batch WHERE size > 8`}, "the log ends at position 8, behind the checkpoint that was kept, at 16"},
		"log is gone":       {[]string{`DELETE FROM notary_batch`}, "the log ends at position 0, behind the checkpoint that was kept, at 16"},
		"rewritten": {[]string{`DELETE FROM notary_batch`, `UPDATE journal_events SET kind = 'nothing' WHERE position = 3`},
			"the events up to position 16 are not those of the checkpoint that was kept"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "journal.db"), whole, 0o600); err != nil {
				t.Fatal(err)
			}
			edit(t, dir, c.edit...)
			_, err := verify(t, dir, key, kept)
			var found *notary.Tampering
			if !errors.As(err, &found) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A state folder that was put back to an older copy is sound in itself; a checkpoint that was
// kept elsewhere shows it.
func TestRolledBack(t *testing.T) {
	dir, key, _ := filled(t, 30)
	old, err := os.ReadFile(filepath.Join(dir, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	beside := read(t, dir)
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 8)
	write(t, s, 30, 40)
	kept := checkpoint(t, n)
	n.Close(t.Context())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := verify(t, dir, key, kept); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "journal.db"), old, 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, dir, string(beside))
	if _, err := verify(t, dir, key); err != nil {
		t.Errorf("an older copy by itself: %v", err)
	}
	_, err = verify(t, dir, key, kept)
	if want := "the store ends at position 30, behind the checkpoint that was kept, at 40"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}

	// Going on from there makes another history, which shows as well.
	s = openStore(t, dir)
	n = openNotary(t, dir, s, 8)
	write(t, s, 100, 115)
	checkpoint(t, n)
	_, err = notary.Verify(t.Context(), s, key, kept)
	if want := "the events up to position 40 are not those of the checkpoint that was kept"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// A notary signs nothing on top of what it cannot stand for, and says so; the store
// works on.
func TestRefusesToSign(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"hashes": {func(t *testing.T, dir string) {
			edit(t, dir, `UPDATE notary_batch SET hashes = zeroblob(length(hashes))`)
		}, "are not those that were signed"},
		"checkpoint": {func(t *testing.T, dir string) { edit(t, dir, `UPDATE notary_batch SET checkpoint = 'x'`) }, "the checkpoint at position 20"},
		"cut off": {func(t *testing.T, dir string) {
			edit(t, dir, `DELETE FROM journal_events WHERE position > 18`, `UPDATE journal_state SET head = 18`)
		}, "the events after position 18 are missing"},
		"key missing": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "audit", "notary.key")); err != nil {
				t.Fatal(err)
			}
		}, "is missing; restore it from a backup"},
		"key open": {func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, "audit", "notary.key"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "may be read by others"},
		"another key": {func(t *testing.T, dir string) {
			other, _, _ := filled(t, 3)
			for _, name := range []string{"notary.key", "notary.pub"} {
				b, err := os.ReadFile(filepath.Join(other, "audit", name))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "audit", name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, "is not signed by the key"},
		"half a key": {func(t *testing.T, dir string) {
			other, _, _ := filled(t, 3)
			b, err := os.ReadFile(filepath.Join(other, "audit", "notary.pub"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "audit", "notary.pub"), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "do not belong together"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, _ := filled(t, 20)
			c.spoil(t, dir)
			s := openStore(t, dir)
			n := openNotary(t, dir, s, 8)
			if err := n.Err(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Err is %v, want %q", err, c.want)
			}
			write(t, s, 100, 110)
			if cp, err := n.Checkpoint(t.Context()); err == nil {
				t.Errorf("it signs %v", cp)
			}
		})
	}
}

// An event that waits too long for its checkpoint is spoken of.
func TestLate(t *testing.T) {
	dir := t.TempDir()
	behind := time.Hour
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "journal.db"), Schemas: []journal.Schema{notary.Schema()},
		Clock: func() time.Time { return time.Now().Add(-behind) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := openNotary(t, dir, s, 8)
	if err := n.Err(t.Context()); err != nil {
		t.Errorf("with nothing to sign: %v", err)
	}
	write(t, s, 0, 3) // as if an hour ago
	status, err := n.Status(t.Context())
	if err != nil || status.State != "late" || status.Lag != 3 || status.Head != 3 {
		t.Errorf("status %+v, %v; want late by 3", status, err)
	}
	if err := n.Err(t.Context()); err == nil || !strings.Contains(err.Error(), "3 events have no checkpoint") {
		t.Errorf("Err is %v", err)
	}
	checkpoint(t, n)
	if err := n.Err(t.Context()); err != nil {
		t.Errorf("once they are signed: %v", err)
	}
	n.Close(t.Context())
}

// Closing signs what is left, and gives up at once on what cannot be written.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	f := &faulty{Store: s, left: 1 << 30}
	n := openNotary(t, dir, f, 8)
	write(t, s, 0, 3)
	n.Close(t.Context())
	n.Close(t.Context())
	if _, err := n.Checkpoint(t.Context()); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	n = openNotary(t, dir, s, 8)
	n.Close(t.Context())
	if got, err := notary.Verify(t.Context(), s, n.Key()); err != nil || got.Uncovered != 0 || got.Position != 3 {
		t.Errorf("after the next one: %+v, %v", got, err)
	}
}

// A notary that fails to write tries again, and reports itself meanwhile.
func TestTriesAgain(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	f := &faulty{Store: s, left: 1}
	n := openNotary(t, dir, f, 8)
	write(t, s, 0, 10) // the first batch is full at 8
	cp, err := n.Checkpoint(t.Context())
	if err != nil || cp.Size != 10 {
		t.Errorf("after a full store has room again: %v, %v", cp, err)
	}
	if f.left != 0 {
		t.Error("the fault did not happen")
	}
	if err := n.Err(t.Context()); err != nil {
		t.Error(err)
	}
}

// faulty finds no room for the first writes.
type faulty struct {
	journal.Store
	left int
}

func (f *faulty) Update(ctx context.Context, do func(journal.Tx) error) error {
	if f.left > 0 {
		f.left--
		return journal.ErrFull
	}
	return f.Store.Update(ctx, do)
}

func exported(t testing.TB, dir string, key notary.Key, from int64) []byte {
	t.Helper()
	i := inspect(t, dir)
	defer i.Close()
	cp, err := notary.Last(t.Context(), i, key)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := notary.Export(t.Context(), i, key, cp, from, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestExport(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	n := openNotary(t, dir, s, 8)
	write(t, s, 0, 20)
	if err := s.Update(t.Context(), func(tx journal.Tx) error {
		for i, body := range []string{"\xff\xfe", "", "😀 <b>&\u2028\x00\n\"", "null"} {
			if err := tx.Append(fmt.Sprint("odd/ä", i), 0, "odd", []byte(body)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	kept := checkpoint(t, n)
	n.Close(t.Context())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for from := int64(1); from <= 24; from++ {
		b := exported(t, dir, n.Key(), from)
		got, key, err := notary.VerifyExport(bytes.NewReader(b), notary.Key{}, kept)
		if err != nil || got.Position != 24 || key.String() != n.Key().String() {
			t.Errorf("from %d: %+v, %s, %v in\n%s", from, got, key, err, b)
		}
		if i := bytes.IndexFunc(b, func(r rune) bool { return r > 0x7e || r < 0x20 && r != '\n' }); i >= 0 {
			t.Errorf("from %d: byte %d is not printable ASCII", from, i)
		}
	}
	i := inspect(t, dir)
	defer i.Close()
	for _, from := range []int64{-1, 0, 25} {
		var b bytes.Buffer
		if err := notary.Export(t.Context(), i, n.Key(), kept, from, &b); !errors.Is(err, notary.ErrNothingThere) || b.Len() > 0 {
			t.Errorf("from %d: %v and %q", from, err, &b)
		}
	}
}

// An export verifies if and only if nobody has changed it: no byte can be another, be
// missing or be too many.
func TestExportMutated(t *testing.T) {
	dir, key, _ := filled(t, 12)
	exports := [][]byte{exported(t, dir, key, 1), exported(t, dir, key, 6)}
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(rapid.SampledFrom(exports).Draw(t, "export"))
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		value := rapid.Byte().Draw(t, "value")
		changed := true
		switch rapid.SampledFrom([]string{"none", "replace", "flip", "remove", "insert", "cut"}).Draw(t, "how") {
		case "none":
			changed = false
		case "replace":
			changed = b[at] != value
			b[at] = value
		case "flip":
			b[at] ^= 1 << (value % 8)
		case "remove":
			changed = at == 0 || len(b) > 0
			b = append(b[:at], b[at+1:]...)
		case "insert":
			b = append(b[:at], append([]byte{value}, b[at:]...)...)
		case "cut":
			b = b[:at]
		}
		_, _, err := notary.VerifyExport(bytes.NewReader(b), notary.Key{})
		var found *notary.Tampering
		if changed != errors.As(err, &found) || !changed && err != nil {
			t.Fatalf("changed %v, and verifying says %v", changed, err)
		}
	})
}

// Each single byte of an export, replaced by its neighbours in value and case.
func TestExportEveryByte(t *testing.T) {
	dir, key, _ := filled(t, 5)
	whole := exported(t, dir, key, 3)
	for i := range whole {
		for _, flip := range []byte{0x01, 0x02, 0x20, 0x80} {
			b := bytes.Clone(whole)
			b[i] ^= flip
			if _, _, err := notary.VerifyExport(bytes.NewReader(b), notary.Key{}); err == nil {
				t.Fatalf("byte %d, %q, may be %q", i, whole[i], b[i])
			}
		}
	}
}

// Who signs an altered export with another key is found out by whoever knows the key.
func TestExportOfAnotherKey(t *testing.T) {
	dir, key, _ := filled(t, 5)
	_, other, _ := filled(t, 5)
	b := exported(t, dir, key, 1)
	if _, _, err := notary.VerifyExport(bytes.NewReader(b), key); err != nil {
		t.Error(err)
	}
	if _, _, err := notary.VerifyExport(bytes.NewReader(b), other); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("got %v", err)
	}
}

func runChild(dir string) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(dir, "journal.db"), Schemas: []journal.Schema{notary.Schema()}})
	if err != nil {
		return err
	}
	n, err := notary.Open(context.Background(), notary.Config{Store: s, Folder: filepath.Join(dir, "audit"), Log: slog.New(slog.DiscardHandler), Every: time.Millisecond, MaxBatch: 16})
	if err != nil {
		return err
	}
	if err := n.Err(context.Background()); err != nil {
		return err
	}
	go func() {
		for {
			if cp, err := n.Checkpoint(context.Background()); err == nil {
				fmt.Printf("%q\n", cp.Note)
			}
		}
	}()
	go func() {
		for i := 0; ; i++ {
			_ = s.Update(context.Background(), func(tx journal.Tx) error {
				return tx.Append(fmt.Sprint("call/", i%7), journal.Any, "call.received", make([]byte, i%100))
			})
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// However the process dies, what it has published stays true, and the next one goes on
// from there.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	moments := []string{""}
	if failpoint.Enabled {
		moments = []string{"notary.signed", "notary.before-commit", "notary.after-commit"}
	}
	var kept []notary.Checkpoint
	for round := range *kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprintf("INBAND_FAILPOINT=%s:%d", moments[round%len(moments)], 1+rand.IntN(8)))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said []string
		for left := 1 + rand.IntN(30); ; left-- {
			var text string
			if _, err := fmt.Fscanf(out, "%q\n", &text); err != nil {
				break
			}
			said = append(said, text)
			if left == 0 && !failpoint.Enabled {
				break
			}
		}
		_ = cmd.Process.Kill() // at a failpoint it is dead already
		_ = in.Close()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("round %d: the child ended by itself: %v", round, err)
		}
		key, err := notary.PublicKey(filepath.Join(dir, "audit"))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range said {
			cp, err := key.OpenCheckpoint(text)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, cp)
		}
		if cp, found := remembered(t, dir, key); found {
			kept = append(kept, cp)
		}
		if _, err := verify(t, dir, key, kept...); err != nil {
			t.Fatalf("round %d, %d checkpoints kept: %v", round, len(kept), err)
		}
	}
	if len(kept) == 0 {
		t.Error("no checkpoint was published")
	}
}
