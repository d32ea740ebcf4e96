package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
)

// leave does one thing to the private folder that it runs in: write NAME BYTES, copy
// NAME VARIABLE, folder NAME, link NAME TARGET, hard NAME TARGET, pipe NAME, closed
// NAME, or exit CODE.
func leave(what []string) error {
	switch what[0] {
	case "write":
		n, _ := strconv.Atoi(what[2])
		return os.WriteFile(what[1], bytes.Repeat([]byte("x"), n), 0o600)
	case "long": // without writing all of it
		f, err := os.Create(what[1])
		if err != nil {
			return err
		}
		n, _ := strconv.ParseInt(what[2], 10, 64)
		return errors.Join(f.Truncate(n), f.Close())
	case "copy":
		return os.WriteFile(what[1], []byte(strings.Repeat("y", 100<<10)+os.Getenv(what[2])), 0o600)
	case "folder":
		return os.MkdirAll(what[1], 0o700)
	case "link":
		return os.Symlink(what[2], what[1])
	case "hard":
		return os.Link(what[2], what[1])
	case "pipe":
		return syscall.Mkfifo(what[1], 0o600)
	case "exit":
		n, _ := strconv.Atoi(what[1])
		syscall.Exit(n)
	}
	return errors.New("no such thing to leave")
}

// keeper keeps in memory.
type keeper struct {
	kept map[string][]byte
	err  error // of the file with number at, from 0
	at   int
	late bool // keeps until the call is over
	stop func()
}

func (k *keeper) Keep(ctx context.Context, r io.Reader) (string, int64, error) {
	if k.late {
		k.stop()
		<-ctx.Done()
		return "", 0, ctx.Err()
	}
	b, err := io.ReadAll(r)
	if err == nil && k.err != nil && k.at == len(k.kept) {
		err = k.err
	}
	if err != nil {
		return "", 0, err
	}
	sum := sha256.Sum256(b)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	k.kept[digest] = b
	return digest, int64(len(b)), nil
}

// publishes runs an op that leaves things and publishes files, each of kind text/plain.
func publishes(t *testing.T, k *keeper, files []string, left ...string) ops.Outcome {
	t.Helper()
	o := op(t, "leave")
	for _, l := range left {
		o.Command.Argv = append(o.Command.Argv, word(l))
	}
	for _, f := range files {
		o.Command.Publish = append(o.Command.Publish, ops.Publish{File: f, Kind: "text/plain"})
	}
	o.SideEffecting = true
	o.Command.Env = []ops.EnvVar{{Name: "TOKEN", Credential: "file:token"}}
	config := testConfig
	config.Credentials = credentials(t)
	if k != nil {
		config.Keeper = k
	}
	e, err := New(o, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if k != nil {
		k.stop = cancel
	}
	out, err := e.Execute(ctx, ops.Call{Op: o.Name, Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPublish(t *testing.T) {
	k := &keeper{kept: map[string][]byte{}}
	out := publishes(t, k, []string{"out/report.txt", "empty"}, "folder:out", "write:out/report.txt:70000", "write:empty:0", "write:other:5")
	var r Receipt
	if err := json.Unmarshal(out.Receipt, &r); err != nil {
		t.Fatal(err)
	}
	value := success(t, out)
	if len(out.Published) != 2 || len(k.kept) != 2 {
		t.Fatalf("published %+v, kept %d", out.Published, len(k.kept))
	}
	for i, want := range []ops.Published{{File: "out/report.txt", Bytes: 70000}, {File: "empty"}} {
		got := out.Published[i]
		if got.File != want.File || got.Kind != "text/plain" || got.Bytes != want.Bytes || int64(len(k.kept[got.Digest])) != want.Bytes {
			t.Errorf("published %+v", got)
		}
	}
	// Those who asked, and those who look later, are told the same.
	if d := cmp.Diff(out.Published, value.Published) + cmp.Diff(out.Published, r.Published); d != "" {
		t.Errorf("in the value and the receipt (-outcome +those):\n%s", d)
	}
	if out := publishes(t, &keeper{}, nil, "write:other:5"); out.Published != nil || strings.Contains(string(out.Result.Value), "published") {
		t.Errorf("an op that publishes nothing: %+v", out)
	}
}

// A file that cannot be kept is a failure of the call, which names it, and nothing of
// the call is published.
func TestPublishFails(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("somebody's"), 0o644); err != nil {
		t.Fatal(err)
	}
	full := errors.New("the artifact store is full")
	for _, tc := range []struct {
		name  string
		files []string
		left  []string
		k     keeper
		want  string
		kept  int // for nobody
	}{
		{"none", []string{"a"}, nil, keeper{}, "file a is not kept: there is no such file", 0},
		{"one of two", []string{"a", "b"}, []string{"write:a:1"}, keeper{}, "file b is not kept: there is no such file", 0},
		{"no folder", []string{"out/a"}, nil, keeper{}, "no such file", 0},
		{"a file for a folder", []string{"out/a"}, []string{"write:out:1"}, keeper{}, "no such file", 0},
		{"a folder", []string{"a"}, []string{"folder:a"}, keeper{}, "it is no regular file", 0},
		{"a pipe", []string{"a"}, []string{"pipe:a"}, keeper{}, "it is no regular file", 0},
		{"a link out", []string{"a"}, []string{"link:a:" + outside}, keeper{}, "there is a link in its place", 0},
		{"a link to the gateway's", []string{"a"}, []string{"link:a:/proc/self/environ"}, keeper{}, "there is a link in its place", 0},
		{"a link within", []string{"a"}, []string{"write:b:1", "link:a:b"}, keeper{}, "there is a link in its place", 0},
		{"a folder that is a link", []string{"out/a"}, []string{"link:out:/etc"}, keeper{}, "there is a link in its place", 0},
		{"a folder that is a link within", []string{"out/a"}, []string{"folder:in", "write:in/a:1", "link:out:in"}, keeper{}, "there is a link in its place", 0},
		{"another name", []string{"a"}, []string{"write:b:1", "hard:a:b"}, keeper{}, "it has another name", 0},
		{"too long", []string{"a"}, []string{"long:a:" + strconv.Itoa(MaxPublished+1)}, keeper{}, "it is longer than 67108864 bytes", 0},
		{"a secret", []string{"a"}, []string{"copy:a:TOKEN"}, keeper{}, "it holds a secret: [secret file:token]", 0},
		{"no room", []string{"a", "b"}, []string{"write:a:1", "write:b:2"}, keeper{err: full, at: 1}, "file b is not kept: the artifact store is full", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.k.kept = map[string][]byte{}
			out := publishes(t, &tc.k, tc.files, tc.left...)
			f := failure(t, out, ops.Failed, ops.OpFailed)
			if !strings.Contains(f.Message, tc.want) || f.Details["exit_code"] != 0 || f.Details["started"] != true || out.Published != nil || len(tc.k.kept) != tc.kept {
				t.Errorf("%+v with %d kept; want %q", f, len(tc.k.kept), tc.want)
			}
			if strings.Contains(fmt.Sprint(out), token) {
				t.Errorf("the secret stands in %+v", out)
			}
			var r Receipt
			if err := json.Unmarshal(out.Receipt, &r); err != nil || r.Published != nil || r.Fault != ops.OpFailed {
				t.Errorf("the receipt: %+v, %v", r, err)
			}
		})
	}
	// Of a run that fails by itself nothing is kept.
	k := &keeper{kept: map[string][]byte{}}
	f := failure(t, publishes(t, k, []string{"a"}, "write:a:1", "exit:3"), ops.Failed, ops.OpFailed)
	if !strings.Contains(f.Message, "exit code 3") || len(k.kept) != 0 {
		t.Errorf("a run that fails: %+v, %d kept", f, len(k.kept))
	}
	// The time for the keeping is the call's.
	k = &keeper{kept: map[string][]byte{}, late: true}
	f = failure(t, publishes(t, k, []string{"a"}, "write:a:1"), ops.Failed, ops.OpFailed)
	if !strings.Contains(f.Message, "the time for the call was over, or it was cancelled") {
		t.Errorf("when it is cancelled meanwhile: %+v", f)
	}
	// Where nobody keeps files, nothing runs.
	f = failure(t, publishes(t, nil, []string{"a"}, "write:a:1"), ops.Failed, ops.Unavailable)
	if f.Details["started"] != false {
		t.Errorf("without a keeper: %+v", f)
	}
}

// Property: a secret is found wherever it stands and however the bytes arrive, and what
// holds none passes unchanged.
func TestGuard(t *testing.T) {
	b := newBlotter([]secret{{ref: "file:token", value: []byte(token)}})
	for _, before := range []int{0, 1, 511, 4096 - len(token)/2} {
		for name, arriving := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "by halves": iotest.HalfReader, "with the end": iotest.DataErrReader,
		} {
			clean := bytes.Repeat([]byte("z"), before)
			for _, f := range forms([]byte(token)) {
				_, err := io.ReadAll(b.guard(arriving(io.MultiReader(bytes.NewReader(clean), strings.NewReader(f+"tail")))))
				if err == nil || strings.Contains(err.Error(), token) {
					t.Errorf("%q after %d bytes, %s: %v", f, before, name, err)
				}
			}
			got, err := io.ReadAll(b.guard(arriving(bytes.NewReader(clean))))
			if err != nil || !bytes.Equal(got, clean) {
				t.Errorf("%d clean bytes, %s: got %d, %v", before, name, len(got), err)
			}
		}
	}
}

func TestOpenPublishedIsBeneath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	folder, err := os.OpenRoot(filepath.Join(dir, "folder"))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	for _, name := range []string{"../secret", filepath.Join(dir, "secret"), "", ".", "./../secret"} {
		if f, err := openPublished(folder, name); err == nil || errors.Is(err, fs.ErrExist) {
			t.Errorf("%q opens %v", name, f.Name())
		}
	}
}
