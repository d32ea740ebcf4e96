package tests

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"inband/harvester"
)

// What docs/agents.md tells an agent orders nothing when the agent repeats it, neither as
// it stands nor with a key, and ends no wake.
func TestInstructionsAreNoOrders(t *testing.T) {
	text := section(t, doc(t, "docs/agents.md"), "## What to put into its instructions")
	block := regexp.MustCompile("(?ms)^~~~~text\n(.*?)^~~~~$").FindStringSubmatch(text)
	if block == nil {
		t.Fatal("there are no instructions")
	}
	for _, text := range []string{block[1], strings.ReplaceAll(block[1], "KEY", "k7q2-9mzx-4hve")} {
		s := harvester.New(harvester.Config{
			Found:  func(d harvester.Directive) { t.Errorf("it orders %s %s", d.Form, d.Op) },
			Result: func(d harvester.Directive) { t.Errorf("it ends a wake: %s", d.Params) },
		})
		if _, err := s.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		s.Close(true)
	}
}

// Two agents of the runtime in docs/agents.md talk to each other: a person wakes ada, ada
// asks bob, bob writes into a room and both say that they are done.
func TestAgentsOfTheDocs(t *testing.T) {
	g, dir := serveAlive(t, build(t, ""), filepath.Join(t.TempDir(), "state")), t.TempDir()
	const key = `key=$(sed -n 's/.*TOOL#\([a-z0-9-]*\) op.*/\1/p' | tail -1)` + "\n"
	think := map[string]string{
		"ada": key + `echo "[DM#$key {\"to\":\"bob\",\"text\":\"is the build green?\"}]"
echo "[RESULT#$key {\"verdict\":\"done\",\"summary\":\"asked bob\"}]"`,
		"bob": key + `echo "[DM#$key {\"to\":\"#notes\",\"text\":\"the build is green\"}]"
echo "[RESULT#$key {\"verdict\":\"done\",\"summary\":\"told everybody\"}]"`,
	}
	for id, text := range think {
		g.docsAgent(t, dir, id, text)
	}
	if err := g.do(http.MethodPost, "/exec", map[string]any{"op": "dm.send", "params": map[string]string{"to": "ada", "text": "Ask bob about the build."}}, nil); err != nil {
		t.Fatal(err)
	}
	var wakes struct {
		Wakes []struct{ Agent, Verdict, Summary string }
	}
	until(t, "both wakes are done", func() bool {
		wakes.Wakes = nil // what is left out would stay
		if err := g.get("/v1/wakes", &wakes); err != nil {
			t.Fatal(err)
		}
		done := 0
		for _, w := range wakes.Wakes {
			if w.Verdict == "done" {
				done++
			}
		}
		return done == 2
	})
	if got := fmt.Sprint(wakes.Wakes); got != "[{bob done told everybody} {ada done asked bob}]" {
		t.Errorf("wakes %s", got)
	}
	var threads struct{ Threads []struct{ ID, Room string } }
	var thread struct{ Posts []struct{ Text string } }
	until(t, "bob's message stands in its room", func() bool {
		threads.Threads, thread.Posts = nil, nil
		if err := g.get("/v1/threads", &threads); err != nil {
			t.Fatal(err)
		}
		for _, listed := range threads.Threads {
			if listed.Room != "notes" {
				continue
			}
			if err := g.get("/v1/threads/"+listed.ID, &thread); err != nil {
				t.Fatal(err)
			}
			return len(thread.Posts) == 1 && thread.Posts[0].Text == "the build is green"
		}
		return false
	})
}

// docsAgent makes an agent and runs it as docs/agents.md shows, a process in a folder below
// dir, until the test ends. think is the shell command that answers a thread.
func (g *gateway) docsAgent(t *testing.T, dir, id, think string) {
	t.Helper()
	script := regexp.MustCompile("(?ms)^```sh\n(#!/bin/sh\n.*?)^```$").FindStringSubmatch(doc(t, "docs/agents.md"))
	if script == nil {
		t.Fatal("docs/agents.md shows no runtime")
	}
	if n := strings.Count(script[1], "\n"); n > 40 {
		t.Errorf("the runtime has %d lines", n)
	}
	home := filepath.Join(dir, id)
	write(t, filepath.Join(home, "agent.sh"), script[1])
	write(t, filepath.Join(home, "think"), "#!/bin/sh\n"+think+"\n")
	if err := os.Symlink(build(t, ""), filepath.Join(home, "box")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "./agent.sh", "./think")
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + home + ":" + os.Getenv("PATH"), "HOME=" + home, "INBAND_STATE=" + g.state, "INBAND_TOKEN=" + g.agent(t, id)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		log.Close()
		if b, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s:\n%s", id, b)
		}
	})
}

// write makes a file that can be executed, and the folder for it.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
