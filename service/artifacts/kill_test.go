package artifacts_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"inband/failpoint"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

var kills = flag.Int("kills", 8, "how often TestKill kills its child")

// childEnv names the folder of the child, which is this test binary again; of one that
// uploads, uploadEnv does.
const (
	childEnv  = "INBAND_ARTIFACTS_CHILD"
	uploadEnv = "INBAND_ARTIFACTS_UPLOADER"
)

func TestMain(m *testing.M) {
	if folder := os.Getenv(childEnv); folder != "" {
		fmt.Fprintln(os.Stderr, keepPutting(folder))
		os.Exit(1)
	}
	if folder := os.Getenv(uploadEnv); folder != "" {
		fmt.Fprintln(os.Stderr, keepUploading(folder))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// keepPutting puts artifacts until it is killed, and says of each that it is kept.
func keepPutting(folder string) error {
	s, err := artifacts.Open(artifacts.Config{Folder: folder})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		// Every other one has been put by an earlier child, too.
		text := fmt.Sprintf("%d of %d %s", i, os.Getpid()*(i%2), strings.Repeat("x", 1000*(i%100)))
		d, _, err := s.Put(context.Background(), strings.NewReader(text), most)
		if err != nil {
			return err
		}
		fmt.Println(d) // one write a line
	}
}

// What a killed process has said is kept is there and right, nothing half written has a
// name, and the next open tidies up.
func TestKill(t *testing.T) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	folder := filepath.Join(t.TempDir(), "artifacts")
	moments := []string{"a random moment"}
	if failpoint.Enabled {
		moments = append(moments, "artifacts.written", "artifacts.synced", "artifacts.renamed", "artifacts.kept")
	}
	kept := map[artifacts.Digest]bool{}
	for round := range max(*kills, len(moments)) {
		moment := moments[round%len(moments)]
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+folder)
		after := 1 + random.IntN(100)
		if round%len(moments) > 0 {
			cmd.Env = append(cmd.Env, fmt.Sprintf("INBAND_FAILPOINT=%s:%d", moment, 1+random.IntN(40)))
			after = -1
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			d, err := artifacts.ParseDigest(lines.Text())
			if err != nil {
				t.Fatal(err)
			}
			kept[d] = true
			if after--; after == 0 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatalf("the child at %s: %v", moment, err)
		}
		s := open(t, folder, 0)
		for d := range kept {
			if err := s.Check(context.Background(), d); err != nil {
				t.Fatalf("after %s: %v", moment, err)
			}
		}
		var bytes int64
		found := files(t, folder)
		for _, path := range found {
			d := artifacts.Digest("sha256:" + filepath.Base(path))
			if at(folder, d) != path {
				t.Fatalf("after %s there is %s", moment, path)
			}
			if err := s.Check(context.Background(), d); err != nil {
				t.Fatalf("after %s: %v", moment, err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			bytes += max((info.Size()+4095)/4096, 1) * 4096
		}
		if u := s.Usage(); u.Files != len(found) || u.Bytes != bytes {
			t.Fatalf("after %s: usage %+v, want %d files of %d bytes", moment, u, len(found), bytes)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(kept) == 0 {
		t.Error("nothing was kept before any kill")
	}
}

// uploaded is what the upload of run r-N brings.
func uploaded(n int) []byte {
	b := make([]byte, 1+n*7919%30_000)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

func declaredOf(n int) artifacts.Declared {
	what := declared(uploaded(n))
	what.Run, what.Delegation = fmt.Sprint("r-", n), fmt.Sprint("d-", n)
	return what
}

// keepUploading uploads what no earlier child has, until it is killed, and says of each
// piece how much has been acknowledged.
func keepUploading(folder string) error {
	d, closed, err := openDock(folder)
	if err != nil {
		return err
	}
	defer closed()
	ctx := context.Background()
	for n := 0; ; n++ {
		b := uploaded(n)
		up, err := d.Begin(ctx, declaredOf(n))
		for err == nil && !up.Done {
			fmt.Println(n, up.ID, up.Received)
			up, err = d.Append(ctx, up.ID, worker, up.Received, bytes.NewReader(b[up.Received:min(up.Received+9000, int64(len(b)))]))
		}
		if err != nil {
			return fmt.Errorf("upload %d: %w", n, err)
		}
		fmt.Println(n, "done", len(b))
	}
}

func openDock(folder string) (*dock, func(), error) {
	d := &dock{folder: filepath.Join(folder, "artifacts")}
	var err error
	if d.Files, err = artifacts.Open(artifacts.Config{Folder: d.folder}); err != nil {
		return nil, nil, err
	}
	if d.Journal, err = sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(folder, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), artifacts.Schema()}}); err != nil {
		return nil, nil, err
	}
	return d, func() { d.Journal.Close(); d.Files.Close() }, nil
}

// What a killed process has acknowledged of an upload is not asked for again; what it has
// said is done is there and right; and whatever it left goes on to its right end.
func TestKillUploads(t *testing.T) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	folder := t.TempDir()
	moments := []string{"a random moment"}
	if failpoint.Enabled {
		for _, moment := range []string{"piece-written", "piece-synced", "piece-recorded", "upload-read", "upload-placed", "upload-recorded"} {
			moments = append(moments, "artifacts."+moment)
		}
	}
	acknowledged := map[int]int64{}
	done := map[int]bool{}
	for round := range max(*kills, len(moments)) {
		moment := moments[round%len(moments)]
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), uploadEnv+"="+folder)
		after := 1 + random.IntN(60)
		if round%len(moments) > 0 {
			cmd.Env = append(cmd.Env, fmt.Sprintf("INBAND_FAILPOINT=%s:%d", moment, 1+random.IntN(12)))
			after = -1
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var n int
			var id string
			var received int64
			if _, err := fmt.Sscan(lines.Text(), &n, &id, &received); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			if received < acknowledged[n] {
				t.Fatalf("upload %d: %d bytes were acknowledged, and %d are known after %s", n, acknowledged[n], received, moment)
			}
			acknowledged[n] = received
			done[n] = done[n] || id == "done"
			if after--; after == 0 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatalf("the child at %s: %v", moment, err)
		}
		d, closed, err := openDock(folder)
		if err != nil {
			t.Fatal(err)
		}
		for n := range done {
			if !done[n] {
				continue
			}
			if err := d.Files.Check(t.Context(), named(uploaded(n))); err != nil {
				t.Fatalf("upload %d after %s: %v", n, moment, err)
			}
			if up, err := d.Begin(t.Context(), declaredOf(n)); err != nil || !up.Done {
				t.Fatalf("upload %d after %s: %+v, %v", n, moment, up, err)
			}
		}
		// What has no row goes, and the room is what is there.
		if _, err := d.Collect(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		var room int64
		kept := 0
		for _, path := range files(t, d.folder) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			room += max((info.Size()+4095)/4096, 1) * 4096
			if strings.Contains(path, "sha256") {
				kept++
				if err := d.Files.Check(t.Context(), artifacts.Digest("sha256:"+filepath.Base(path))); err != nil {
					t.Fatalf("after %s: %v", moment, err)
				}
			}
		}
		if u := d.Files.Usage(); u.Bytes != room || u.Files != kept {
			t.Fatalf("after %s: usage %+v, want %d files in %d bytes", moment, u, kept, room)
		}
		closed()
	}
	if len(acknowledged) == 0 || len(done) == 0 {
		t.Error("nothing was acknowledged before any kill")
	}
}
