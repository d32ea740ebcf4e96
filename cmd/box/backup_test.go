package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"inband/ops"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/journal/storetest"
	"inband/service/plane"
)

// box runs a command line on a state folder and returns its exit code and what it printed.
func box(t *testing.T, folder stateFolder, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	a := newApp(strings.NewReader(""), &o, &e, func(string) string { return "" })
	code = a.run(t.Context(), append([]string{"--state", string(folder)}, args...))
	return code, o.String(), e.String()
}

// gatewayOn has a gateway on folder run until the test ends or stop is called.
func gatewayOn(t *testing.T, folder stateFolder) (g *gateway, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g = testGateway(t, folder)
	listening := make(chan struct{})
	g.cfg.Listening = func(address) { close(listening) }
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	select {
	case <-listening:
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return g, stop
}

var operator = ops.Identity{ID: "operator", Role: ops.Operator}

// say has the operator write into a room, and returns the call once it is settled.
func (g *gateway) say(text string) (ops.CallID, error) {
	params, err := json.Marshal(map[string]string{"to": "#lobby", "text": text})
	if err != nil {
		return "", err
	}
	ticket, err := g.door.Submit(context.Background(), ops.Call{Op: "dm.send", By: operator, Params: params, From: ops.Origin{Source: "api/test"}})
	if err != nil {
		return "", err
	}
	o, err := g.door.Await(context.Background(), ticket.Call)
	if err == nil && o.State != ops.Succeeded {
		err = fmt.Errorf("%s: %+v", o.State, o.Fault)
	}
	return ticket.Call, err
}

// publish keeps bytes of a call and names them in the journal.
func (g *gateway) publish(call ops.CallID, content []byte) error {
	d, n, err := g.files.Put(context.Background(), bytes.NewReader(content), 1<<20)
	if err != nil {
		return err
	}
	return g.store.Update(context.Background(), func(tx journal.Tx) error {
		return artifacts.Add(tx, artifacts.Artifact{Digest: d, Name: "f", Kind: "text/plain", Bytes: n, Call: call, Owner: operator})
	})
}

// A backup that a running gateway makes while 32 callers write holds all that was
// acknowledged before it began, with the bytes of every digest that it names, and is a
// state folder whose log verifies and whose gateway goes on.
func TestBackupWhileCallersWrite(t *testing.T) {
	folder := stateFolder(filepath.Join(t.TempDir(), "state"))
	g, stop := gatewayOn(t, folder)
	if err := os.WriteFile(filepath.Join(folder.credentials(), "key"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var kept []ops.CallID
	end := make(chan struct{})
	var writing sync.WaitGroup
	for c := range 32 {
		writing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-end:
					return
				default:
				}
				id, err := g.say(fmt.Sprint(c, " says ", i))
				if err == nil {
					err = g.publish(id, fmt.Appendf(nil, "file %d of %d", i, c))
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				kept = append(kept, id)
				mu.Unlock()
			}
		})
	}
	var before []ops.CallID
	for len(before) < 100 {
		mu.Lock()
		before = slices.Clone(kept)
		mu.Unlock()
	}
	file := filepath.Join(t.TempDir(), "b.tar")
	code, out, errs := box(t, folder, "backup", file, "--json")
	var made backupReport
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || !made.OK || made.Artifacts < len(before) || made.File != file {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	close(end)
	writing.Wait()
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the backup is %v, %v; want mode 0600", info.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(string(folder), snapshotFolders)); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	if code, _, errs := box(t, folder, "backup", file); code != ops.ExitConflict {
		t.Errorf("over a file: exit code %d, %s", code, errs)
	}
	if code, out, errs := box(t, folder, "backup", "verify", file, "--digest", made.Digest); code != 0 {
		t.Errorf("verify: exit code %d: %s%s", code, out, errs)
	}
	if code, _, errs := box(t, folder, "backup", "verify", file, "--digest", "sha256:0"); code != ops.ExitFailed || !strings.Contains(errs, "is another one") {
		t.Errorf("verify with another digest: exit code %d: %s", code, errs)
	}
	if code, _, errs := box(t, folder, "restore", file); code != ops.ExitConflict || !strings.Contains(errs, "in use") {
		t.Errorf("into a folder in use: exit code %d: %s", code, errs)
	}
	stop()
	if code, _, errs := box(t, folder, "restore", file); code != ops.ExitConflict || !strings.Contains(errs, "not empty") {
		t.Errorf("into a folder with a state: exit code %d: %s", code, errs)
	}

	again := stateFolder(filepath.Join(t.TempDir(), "new"))
	code, out, errs = box(t, again, "restore", file, "--json")
	var r restored
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || r.Backup.Digest != made.Digest || r.Term < 2 {
		t.Fatalf("restore: exit code %d, %v: %s%s", code, err, out, errs)
	}
	if code, out, errs := box(t, again, "audit", "verify"); code != 0 {
		t.Errorf("audit verify: exit code %d: %s%s", code, out, errs)
	}
	for name, mode := range map[string]fs.FileMode{".": fs.ModeDir | 0o700, "journal.db": 0o600, "tls/ca.key": 0o600, "operator.token": 0o600, "plane/key": 0o600, "audit/notary.key": 0o600,
		"credentials/key": 0o600, "policy.cedar": 0, "ops.d/actions.yaml": 0} {
		want, err := os.ReadFile(filepath.Join(string(folder), name))
		got, err2 := os.ReadFile(filepath.Join(string(again), name))
		if name != "." && name != "journal.db" && (err != nil || err2 != nil || !bytes.Equal(got, want)) {
			t.Errorf("%s is not what it was: %v, %v", name, err, err2)
		}
		if info, err := os.Stat(filepath.Join(string(again), name)); err != nil || mode != 0 && info.Mode() != mode {
			t.Errorf("%s has mode %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
	h, _ := gatewayOn(t, again)
	for _, id := range before {
		if o, err := h.door.Await(t.Context(), id); err != nil || o.State != ops.Succeeded {
			t.Errorf("%s, which was acknowledged before: %v, %v", id, o.State, err)
		}
	}
	if _, err := h.say("and on"); err != nil {
		t.Error(err)
	}
	if v, err := h.published.Verify(t.Context()); err != nil || !v.OK || v.Usage.Files < len(before) {
		t.Errorf("artifacts: %+v, %v", v, err)
	}
}

// backedUp is a small state folder and the bytes of a backup of it.
func backedUp(t *testing.T) (stateFolder, []byte) {
	t.Helper()
	folder := stateFolder(filepath.Join(t.TempDir(), "state"))
	g, stop := gatewayOn(t, folder)
	id, err := g.say("hello")
	if err == nil {
		err = g.publish(id, []byte("precious"))
	}
	if err != nil {
		t.Fatal(err)
	}
	stop()
	file := filepath.Join(t.TempDir(), "b.tar")
	if code, _, errs := box(t, folder, "backup", file); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return folder, b
}

// rewritten is a backup with its members changed by edit, which returns false to leave one
// out, and with a manifest that fits them when fit says so.
func rewritten(t *testing.T, b []byte, edit func(h *tar.Header, content []byte) ([]byte, bool), fit bool) []byte {
	t.Helper()
	var out bytes.Buffer
	w := &backupWriter{ctx: t.Context(), tar: tar.NewWriter(&out), m: new(manifest)}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if fit && h.Name == backupLast {
			var m manifest
			if err := json.Unmarshal(content, &m); err != nil {
				t.Fatal(err)
			}
			m.Files = w.m.Files
			if content, err = json.Marshal(m); err != nil {
				t.Fatal(err)
			}
		}
		content, keep := edit(h, content)
		if !keep {
			continue
		}
		put := w.member
		if h.Name == backupFirst || h.Name == backupLast {
			put = func(name string, mode fs.FileMode, size int64, r io.Reader) error {
				return w.put(name, mode, size, r, nil)
			}
		}
		if err := put(h.Name, fs.FileMode(h.Mode), int64(len(content)), bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.tar.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Backups that are cut off, damaged or made up are refused, by verify and by restore, which
// leaves nothing behind.
func TestBadBackups(t *testing.T) {
	_, good := backedUp(t)
	only := func(name string, change func([]byte) []byte) func(*tar.Header, []byte) ([]byte, bool) {
		return func(h *tar.Header, b []byte) ([]byte, bool) {
			if h.Name == name {
				b = change(bytes.Clone(b))
			}
			return b, true
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	without := func(name string) func(*tar.Header, []byte) ([]byte, bool) {
		return func(h *tar.Header, b []byte) ([]byte, bool) { return b, h.Name != name }
	}
	named := func(from, to string) func(*tar.Header, []byte) ([]byte, bool) {
		return func(h *tar.Header, b []byte) ([]byte, bool) {
			if h.Name == from {
				h.Name = to
			}
			return b, true
		}
	}
	digest := ""
	rewritten(t, good, func(h *tar.Header, b []byte) ([]byte, bool) {
		if strings.HasPrefix(h.Name, artifactsPart) {
			digest = h.Name
		}
		return b, true
	}, false)
	if digest == "" {
		t.Fatal("the backup holds no artifact")
	}
	cases := map[string]struct {
		b    []byte
		says string
	}{
		"nothing":                    {nil, "is none"},
		"no archive":                 {[]byte(strings.Repeat("no archive ", 100)), "is none"},
		"another archive":            {rewritten(t, good, without(backupFirst), false), "is none"},
		"a later format":             {rewritten(t, good, only(backupFirst, func([]byte) []byte { return []byte(`{"format":"inband backup 9"}`) }), false), `"inband backup 9"`},
		"a byte of the journal":      {rewritten(t, good, only(journalPart, flip), false), "is not what was written"},
		"a byte of a key":            {rewritten(t, good, only("tls/ca.key", flip), false), "is not what was written"},
		"a file less":                {rewritten(t, good, without("tls/ca.key"), false), "its manifest names"},
		"no end":                     {rewritten(t, good, without(backupLast), false), "is cut off"},
		"the manifest":               {rewritten(t, good, only(backupLast, func([]byte) []byte { return []byte("{") }), false), "a manifest that is none"},
		"behind the end":             {append(bytes.Clone(good), "more"...), "behind its end"},
		"twice":                      {append(bytes.Clone(good), good...), "behind its end"},
		"made up: bytes are missing": {rewritten(t, good, without(digest), true), "lacks the bytes of sha256:"},
		"made up: other bytes":       {rewritten(t, good, only(digest, flip), true), "other bytes than those of sha256:"},
		"made up: a way up":          {rewritten(t, good, named("tls/ca.key", "tls/../../evil"), true), "which cannot be in one"},
		"made up: an absolute path":  {rewritten(t, good, named("tls/ca.key", "/etc/evil"), true), "which cannot be in one"},
		"made up: a lock":            {rewritten(t, good, named("tls/ca.key", "journal.db.lock"), true), "which cannot be in one"},
		"made up: one file twice":    {rewritten(t, good, named("tls/ca.key", "tls/ca.pem"), true), "which cannot be in one"},
		"made up: events": {rewritten(t, good, only(journalPart, func(b []byte) []byte {
			return tampered(t, b, `UPDATE journal_events SET body = CAST('{}' AS BLOB) WHERE position = 2`)
		}), true), "event"},
		"made up: an end cut off": {rewritten(t, good, only(journalPart, func(b []byte) []byte {
			return tampered(t, b, `DELETE FROM journal_events WHERE position = (SELECT max(position) FROM journal_events)`)
		}), true), ""},
		"made up: no journal at all": {rewritten(t, good, only(journalPart, func([]byte) []byte { return []byte("no database") }), true), ""},
		"a newer schema": {rewritten(t, good, only(journalPart, func(b []byte) []byte {
			return tampered(t, b, `INSERT INTO journal_schema_plane (version_id, is_applied, tstamp) VALUES (999, 1, '2026-01-01')`)
		}), true), "this program knows versions up to"},
	}
	for n := range 40 { // cut off anywhere, and a bit changed anywhere
		at := len(good) * n / 40
		cases[fmt.Sprintf("cut off at %d", at)] = struct {
			b    []byte
			says string
		}{good[:at], ""}
	}
	for name, c := range cases {
		file := filepath.Join(t.TempDir(), "b.tar")
		if err := os.WriteFile(file, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		folder := stateFolder(filepath.Join(t.TempDir(), "new"))
		if code, _, errs := box(t, folder, "backup", "verify", file); code == 0 || !strings.Contains(errs, c.says) || strings.Contains(errs, "panic") {
			t.Errorf("%s: verify has exit code %d, %s; want a fault with %q", name, code, errs, c.says)
		}
		if code, _, errs := box(t, folder, "restore", file); code == 0 || !strings.Contains(errs, c.says) {
			t.Errorf("%s: restore has exit code %d, %s; want a fault with %q", name, code, errs, c.says)
		}
		if _, err := os.Lstat(string(folder)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the restore leaves its folder: %v", name, err)
		}
	}
	// Whatever bit is changed, it is another backup or none.
	for n := range 60 {
		b := bytes.Clone(good)
		b[len(b)*n/60] ^= 0x20
		if m, got, err := readBackup(bytes.NewReader(b), extract("", func(string) bool { return false })); err == nil {
			want, sum, err := readBackup(bytes.NewReader(good), extract("", func(string) bool { return false }))
			if err != nil || got != sum || !slices.Equal(m.Files, want.Files) {
				t.Errorf("a bit at %d gives another backup, %s, %v", len(b)*n/60, got, err)
			}
		}
	}
}

// tampered is a journal in which somebody has run a statement.
func tampered(t *testing.T, b []byte, statement string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := execSQL(path, statement); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// disk mounts a small disk for the test.
func disk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	storetest.Need(t, "tmpfs mount", unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size="+size))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// A disk that is full, on either side, is an error that leaves nothing behind.
func TestBackupOnAFullDisk(t *testing.T) {
	folder, good := backedUp(t)
	small := disk(t, "256k")
	empty := func(what string) {
		t.Helper()
		if left, err := os.ReadDir(small); err != nil || len(left) > 0 {
			t.Errorf("%s leaves %v, %v", what, left, err)
		}
	}
	for _, how := range []string{"offline", "online"} {
		if how == "online" {
			gatewayOn(t, folder)
		}
		code, _, errs := box(t, folder, "backup", small)
		if code == 0 || !strings.Contains(errs, "no space left") {
			t.Errorf("%s: exit code %d: %s", how, code, errs)
		}
		empty("a backup made " + how)
	}
	file := filepath.Join(t.TempDir(), "b.tar")
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := box(t, stateFolder(small), "restore", file)
	if code == 0 || !strings.Contains(errs, "no space left") {
		t.Errorf("restore: exit code %d: %s", code, errs)
	}
	empty("a restore")

	// The state folder itself has no room for a copy of the journal.
	full := disk(t, "3m")
	g, _ := gatewayOn(t, stateFolder(full))
	if err := os.WriteFile(filepath.Join(full, "ballast"), make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk takes more than it holds: %v", err)
	}
	if err := os.Truncate(filepath.Join(full, "ballast"), max(0, sizeOf(t, filepath.Join(full, "ballast"))-200<<10)); err != nil { // room for events, not for a copy
		t.Fatal(err)
	}
	if code, _, errs := box(t, stateFolder(full), "backup", file+"2"); code != ops.ExitUnreachable || !strings.Contains(errs, "no room") {
		t.Errorf("a state folder without room: exit code %d: %s", code, errs)
	}
	if left, err := filepath.Glob(filepath.Join(full, snapshotFolders)); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	if err := os.Remove(filepath.Join(full, "ballast")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.say("goes on"); err != nil {
		t.Error(err)
	}
	if code, _, errs := box(t, stateFolder(full), "backup", file+"2"); code != 0 {
		t.Errorf("with room again: exit code %d: %s", code, errs)
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// Bytes that were gone or rotten when the backup was made are named, and hinder neither
// the backup nor the restore.
func TestBackupNamesWhatIsMissing(t *testing.T) {
	folder, _ := backedUp(t)
	g, stop := gatewayOn(t, folder)
	id, err := g.say("more")
	if err == nil {
		err = g.publish(id, []byte("to be rotten"))
	}
	if err != nil {
		t.Fatal(err)
	}
	stop()
	var files []string
	if err := filepath.WalkDir(filepath.Join(folder.artifacts(), "sha256"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	}); err != nil || len(files) != 2 {
		t.Fatalf("%d artifacts, %v", len(files), err)
	}
	if err := errors.Join(os.Remove(files[0]), os.Chmod(files[1], 0o600), os.WriteFile(files[1], []byte("rotten"), 0o600)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b.tar")
	code, out, errs := box(t, folder, "backup", file, "--json")
	var r backupReport
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || r.Missing != 1 || r.Damaged != 1 || !strings.Contains(errs, "1 artifacts were missing already") {
		t.Errorf("exit code %d, %v: %+v %s", code, err, r, errs)
	}
	if code, _, errs := box(t, stateFolder(filepath.Join(t.TempDir(), "new")), "restore", file); code != 0 || !strings.Contains(errs, "1 artifacts were missing already") {
		t.Errorf("restore: exit code %d: %s", code, errs)
	}
}

// One backup is made at a time, and only operators have one made.
func TestWhoMayBackUp(t *testing.T) {
	folder := stateFolder(filepath.Join(t.TempDir(), "state"))
	g, _ := gatewayOn(t, folder)
	first, err := g.Backup(t.Context(), operator)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b.tar")
	if code, _, errs := box(t, folder, "backup", file); code == 0 || !strings.Contains(errs, "BUSY") {
		t.Errorf("a second one: exit code %d: %s", code, errs)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	code, out, errs := box(t, folder, "agents", "add", "scout", "--json")
	var added struct{ Token string }
	if err := json.Unmarshal([]byte(out), &added); code != 0 || err != nil || added.Token == "" {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(added.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := box(t, folder, "backup", file, "--token-file", token); code != ops.ExitNotAllowed {
		t.Errorf("an agent: exit code %d: %s", code, errs)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b, err := g.Backup(ctx, operator)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := b.Write(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("written after its caller has gone: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestMigrate(t *testing.T) {
	folder, _ := backedUp(t)
	versions := func(args ...string) (m migrated, code int, errs string) {
		t.Helper()
		code, out, errs := box(t, folder, append([]string{"migrate", "--json"}, args...)...)
		if code == 0 {
			if err := json.Unmarshal([]byte(out), &m); err != nil {
				t.Fatal(err)
			}
		}
		return m, code, errs
	}
	if m, code, errs := versions(); code != 0 || m.Changed || slices.ContainsFunc(m.Schemas, func(v sqlite.Version) bool { return v.Stored != v.Known }) {
		t.Errorf("what is up to date: %+v, exit code %d %s", m, code, errs)
	}
	// A journal of a program that had no plane yet.
	made, err := fs.ReadFile(plane.Schema().FS, "sqlite/00001_plane.sql")
	if err != nil {
		t.Fatal(err)
	}
	tables := []string{"journal_schema_plane"}
	for _, m := range regexp.MustCompile(`(?m)^CREATE TABLE (\w+)`).FindAllSubmatch(made, -1) {
		tables = append(tables, string(m[1]))
	}
	slices.Reverse(tables) // what refers to another is dropped first
	for _, table := range tables {
		if err := execSQL(folder.journal(), "DROP TABLE "+table); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(m migrated) int64 {
		i := slices.IndexFunc(m.Schemas, func(v sqlite.Version) bool { return v.Schema == "plane" })
		return m.Schemas[i].Stored
	}
	if m, code, errs := versions("--show"); code != 0 || stored(m) != 0 {
		t.Errorf("shown: %+v, exit code %d %s", m, code, errs)
	}
	if m, code, errs := versions("--show"); code != 0 || stored(m) != 0 {
		t.Errorf("to look changed it: %+v, exit code %d %s", m, code, errs)
	}
	if m, code, errs := versions(); code != 0 || !m.Changed || stored(m) == 0 {
		t.Errorf("migrated: %+v, exit code %d %s", m, code, errs)
	}
	_, stop := gatewayOn(t, folder)
	if _, code, errs := versions(); code != ops.ExitConflict {
		t.Errorf("under a gateway: exit code %d %s", code, errs)
	}
	stop()
	if err := execSQL(folder.journal(), `INSERT INTO journal_schema_calls (version_id, is_applied, tstamp) VALUES (999, 1, '2026-01-01')`); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(folder.journal())
	if err != nil {
		t.Fatal(err)
	}
	if _, code, errs := versions(); code != ops.ExitConflict || !strings.Contains(errs, "schema calls is at version 999") || !strings.Contains(errs, "a newer one") {
		t.Errorf("a newer schema: exit code %d %s", code, errs)
	}
	if after, err := os.ReadFile(folder.journal()); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a journal that was refused has changed: %v", err)
	}
	if code, _, errs := box(t, stateFolder(t.TempDir()), "migrate"); code != ops.ExitNotFound {
		t.Errorf("no journal: exit code %d %s", code, errs)
	}
	readOnly := disk(t, "4m")
	if err := os.WriteFile(filepath.Join(readOnly, "journal.db"), before, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := box(t, stateFolder(readOnly), "migrate"); code != ops.ExitNotAllowed || !strings.Contains(errs, "must be one that user") {
		t.Errorf("a read-only folder: exit code %d %s", code, errs)
	}
}

// A restore says which folders it does not touch.
func TestRestoreRefuses(t *testing.T) {
	_, good := backedUp(t)
	file := filepath.Join(t.TempDir(), "b.tar")
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	folder := stateFolder(t.TempDir())
	precious := filepath.Join(string(folder), "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := box(t, folder, "restore", file); code != ops.ExitConflict || !strings.Contains(errs, "it holds precious") {
		t.Errorf("not empty: exit code %d: %s", code, errs)
	}
	if b, err := os.ReadFile(precious); string(b) != "x" {
		t.Errorf("it is %q now, %v", b, err)
	}
	if err := os.Remove(precious); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := box(t, folder, "restore", file+"none"); code != ops.ExitNotFound {
		t.Errorf("no backup: exit code %d: %s", code, errs)
	}
	// What a restore that was cut off has left is not opened, and another begins anew.
	if err := errors.Join(os.Mkdir(folder.restoring(), 0o700), os.WriteFile(folder.token(), []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init"}, {"serve", "--listen", "127.0.0.1:0"}, {"migrate"}} {
		if code, _, errs := box(t, folder, args...); code != ops.ExitConflict || !strings.Contains(errs, "was cut off") {
			t.Errorf("%v: exit code %d: %s", args, code, errs)
		}
	}
	if code, _, errs := box(t, folder, "restore", file); code != 0 {
		t.Errorf("again: exit code %d: %s", code, errs)
	}
	if token, err := readToken(folder.token()); err != nil || token == "half" {
		t.Errorf("the token is %q, %v", token, err)
	}
}
