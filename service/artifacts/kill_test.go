package artifacts_test

import (
	"bufio"
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
	"inband/service/artifacts"
)

var kills = flag.Int("kills", 8, "how often TestKill kills its child")

// childEnv names the folder of the child, which is this test binary again.
const childEnv = "INBAND_ARTIFACTS_CHILD"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childEnv); folder != "" {
		fmt.Fprintln(os.Stderr, keepPutting(folder))
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
