package sqlite_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/tests/powercut"
)

var cuts = flag.Int("cuts", 6, "how often TestPowerCut cuts the power")

// Case pb-037: what was acknowledged is in the journal after the power was cut, on a
// disk that forgets what was not synced. 32 callers write, so that cuts fall between
// transactions and inside the group that commits them.
func TestPowerCut(t *testing.T) {
	seed := rand.Uint64()
	dice := rand.New(rand.NewPCG(seed, 0))
	kept := map[string]bool{}
	var syncs int
	from := ""
	for round := range *cuts {
		at, to := filepath.Join(t.TempDir(), "disk"), filepath.Join(t.TempDir(), "left")
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		disk, err := powercut.Mount(at, from)
		if err != nil {
			if os.Getenv("INBAND_CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("needs FUSE and the right to mount: %v", err)
		}
		cmd, _, lines := start(t, child{Do: "write", Path: filepath.Join(at, "journal.db"), Writers: 32})
		// What is acknowledged after this many lines is not waited for: the power goes first,
		// then the process.
		for after := 1 + dice.IntN(1500); lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "kept "); ok {
				kept[name] = true
			}
			if after--; after == 0 {
				disk.Dead()
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatalf("round %d: the child ended with %v", round, err)
		}
		syncs += disk.Syncs()
		if err := disk.Cut(dice, to); err != nil {
			t.Fatal(err)
		}
		s := open(t, config(filepath.Join(to, "journal.db")))
		there := recorded(t, s)
		for name := range kept {
			if !there[name] {
				t.Errorf("round %d of seed %d: %s was acknowledged and is gone", round, seed, name)
			}
		}
		shut(t, s)
		from = to
	}
	t.Logf("%d acknowledged in %d syncs, none missing after %d cuts", len(kept), syncs, *cuts)
	if len(kept) == 0 || syncs == 0 {
		t.Error(fmt.Sprint("nothing was acknowledged or synced: ", len(kept), ", ", syncs))
	}
}
