package tests

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"inband/service/journal/storetest"
)

// A disk that fills while events are signed, the store's or that of the audit folder:
// what is on record can be proved all the while and afterwards, and what could not be
// signed is signed when there is room.
func TestFullDiskDuringAudit(t *testing.T) {
	for name, on := range map[string]func(state string) string{
		"the state":        func(state string) string { return filepath.Dir(state) },
		"the audit folder": func(state string) string { return filepath.Join(state, "audit") },
	} {
		t.Run(name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "disk", "state")
			disk, size := on(state), "size=1m"
			if disk == filepath.Dir(state) {
				size = "size=16m" // of which the store takes what it needs, and the ballast the rest
			}
			if err := os.MkdirAll(disk, 0o700); err != nil {
				t.Fatal(err)
			}
			storetest.Need(t, "tmpfs mount", unix.Mount("tmpfs", disk, "tmpfs", 0, size+",mode=700"))
			t.Cleanup(func() {
				if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
					t.Errorf("unmount: %v", err)
				}
			})
			l := newLab(t, state)
			order := func(n int) (taken, refused int) {
				t.Helper()
				for i := range n {
					switch status, a := l.reply(fmt.Sprint(t.Name(), n, i), `[TOOL tools {}] [DM#KEY {"to":"#notes","text":"MESSAGE: full?"}]`); {
					case status == http.StatusOK:
						taken++
					case status == http.StatusServiceUnavailable:
						refused++
					default:
						t.Fatalf("status %d %s", status, a.Code)
					}
				}
				return taken, refused
			}
			verify := func() {
				t.Helper()
				if out, errs, code := l.run(l.token, "", "audit", "verify"); code != 0 {
					t.Errorf("box audit verify: exit code %d\n%s%s", code, out, errs)
				}
			}
			if taken, _ := order(5); taken != 5 {
				t.Fatalf("with room %d of 5 are taken", taken)
			}
			ballast := filepath.Join(disk, "ballast")
			fill(t, ballast)
			taken, refused := order(200)
			if disk == filepath.Dir(state) && refused == 0 {
				t.Errorf("on a full disk %d are taken and none refused", taken)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			if taken, _ := order(6); taken != 6 {
				t.Errorf("with room again %d of 6 are taken", taken)
			}
			l.quiet()
			until(t, "all is signed", func() bool { return l.get("/readyz", nil) == nil })
			verify()
			l.kill()
			if out, err := exec.Command(l.box, "--state", l.state, "audit", "verify").CombinedOutput(); err != nil {
				t.Errorf("box audit verify of the folder: %v\n%s", err, out)
			}
			// And a gateway that is killed while it is full.
			l.again()
			fill(t, ballast)
			order(100)
			l.kill()
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			l.again()
			if taken, _ := order(7); taken != 7 {
				t.Errorf("after a kill %d of 7 are taken", taken)
			}
			l.quiet()
			until(t, "all is signed", func() bool { return l.get("/readyz", nil) == nil })
			verify()
		})
	}
}
