package proc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// A gateway that starts ends what the one before it left when it was killed, whatever a
// grandchild did to hide where there are cgroups, and removes its folders.
func TestEnclosureOutlivesTheGateway(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent, err := ownCgroup()
	cgroups := err == nil && syscall.Access(parent, 2) == nil
	for _, c := range []struct {
		how    string
		cgroup bool
	}{
		{"child", true}, {"setsid", true}, {"orphan", true}, {"hidden", true},
		{"child", false}, {"setsid", false}, {"orphan", false}, // hidden is not promised
	} {
		t.Run(fmt.Sprintf("%s, cgroup %t", c.how, c.cgroup), func(t *testing.T) {
			if c.cgroup && !cgroups {
				t.Skip("no cgroup to write to")
			}
			t.Parallel()
			tmp := t.TempDir()
			name := fmt.Sprintf("test%d%s%t", os.Getpid(), c.how, c.cgroup)
			pidfile := filepath.Join(tmp, "pid")
			env := []string{"TMPDIR=" + tmp, "PIDFILE=" + pidfile}
			if !c.cgroup {
				env = append(env, "NOCGROUP=1")
			}
			first := exec.Command(exe, "family", c.how, "stay")
			first.Env = append(append(helperEnv("daemon"), "ENCLOSE="+name), env...)
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			pid := readPID(t, pidfile)
			if err := first.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.Wait() // killed
			if !alive(pid) {
				t.Fatalf("process %d died by itself: there is nothing to prove", pid)
			}
			var got enclosing
			second := exec.Command(exe, name)
			second.Env = append(helperEnv("enclose"), env...)
			out, err := second.Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if alive(pid) || len(got.Ended) == 0 || got.Survivors != 0 {
				t.Errorf("process %d alive %t; got %+v", pid, alive(pid), got)
			}
			if got.Close != "<nil>" || (got.Why == "<nil>") != c.cgroup || (got.Cgroup != "") != c.cgroup {
				t.Errorf("got %+v, want a cgroup %t", got, c.cgroup)
			}
			if left, _ := filepath.Glob(filepath.Join(tmp, "inband-run-*")); len(left) != 0 {
				t.Errorf("private folders are left: %v", left)
			}
			if c.cgroup {
				if _, err := os.Stat(filepath.Join(parent, "inband-"+name)); err == nil {
					t.Error("the cgroup is left")
				}
			}
		})
	}
}

func TestEncloseRefusesNames(t *testing.T) {
	for _, name := range []string{"", "abc", "Abcd", "a/bc", "..", "abcd.x", "-abc", "a b c"} {
		if e, err := Enclose(name); err == nil {
			t.Errorf("%q: got %+v", name, e)
		}
	}
}

func TestCgroupFolder(t *testing.T) {
	const v1 = "41 31 0:38 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
	for _, c := range []struct{ name, mounts, own, want string }{
		{"one hierarchy", "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n", "0::/system.slice/inband.service\n",
			"/sys/fs/cgroup/system.slice/inband.service"},
		{"beside version 1", v1 + "42 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "9:pids:/x\n0::/\n", "/sys/fs/cgroup/unified"},
		{"a part is mounted", "42 31 0:39 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/docker/abc/x\n", "/sys/fs/cgroup/x"},
		{"a blank", `42 31 0:39 / /mnt/c\040g rw - cgroup2 none rw` + "\n", "0::/a b\n", "/mnt/c g/a b"},
		{"another part is mounted", "42 31 0:39 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/docker/abcd\n", ""},
		{"outside of the namespace", "42 31 0:39 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/../x\n", ""},
		{"version 1 only", v1, "9:pids:/x\n", ""},
		{"not mounted", v1, "0::/\n", ""},
	} {
		got, err := cgroupFolder(c.mounts, c.own)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}
