package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inband/harvester"
	"inband/ops"
)

// What the documentation says is compared with what the program does, wherever both
// can be read by a machine.

// doc returns a file of the documentation, named from the module's root.
func doc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section returns the text below a heading, up to the next one of its level or above.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("there is no heading %q", heading)
	}
	level, fence := strings.IndexByte(heading, ' '), ""
	var b strings.Builder
	for line := range strings.Lines(rest) {
		switch mark := line[:min(3, len(line))]; {
		case fence == mark:
			fence = ""
		case fence == "" && (mark == "```" || mark == "~~~"):
			fence = mark
		}
		if hashes := len(line) - len(strings.TrimLeft(line, "#")); fence == "" && hashes > 0 && hashes <= level && line[hashes] == ' ' {
			break
		}
		b.WriteString(line)
	}
	return b.String()
}

// table returns the cells of the first table in text without its two heading lines.
// Code marks around a whole cell are taken off.
func table(t *testing.T, text string) (rows [][]string) {
	t.Helper()
	begun := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if begun > 0 {
				break
			}
			continue
		}
		if begun++; begun <= 2 {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i, c := range cells {
			c = strings.TrimSpace(c)
			if len(c) > 1 && c[0] == '`' && strings.Count(c, "`") == 2 && c[len(c)-1] == '`' {
				c = c[1 : len(c)-1]
			}
			cells[i] = c
		}
		rows = append(rows, cells)
	}
	if len(rows) == 0 {
		t.Fatal("there is no table")
	}
	return rows
}

// column returns one column of rows.
func column(rows [][]string, i int) (cells []string) {
	for _, row := range rows {
		cells = append(cells, row[i])
	}
	return cells
}

// yields is what docs/directives.md writes behind an example: the form and the op of
// each directive, with its key.
func yields(found []harvester.Directive) string {
	if len(found) == 0 {
		return "nothing"
	}
	var list []string
	for _, d := range found {
		s := string(d.Form) + " " + d.Op
		if d.Key != "" {
			s += " #" + d.Key
		}
		list = append(list, s)
	}
	return strings.Join(list, ", ")
}

func TestDirectiveExamples(t *testing.T) {
	type kase struct {
		ID, Reply string
		ExecHosts []string `json:"exec_hosts"`
	}
	var all []kase
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), "harvester", "testdata", "harvest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	cases := make(map[string]kase)
	for _, c := range all {
		cases[c.ID] = c
	}

	text := doc(t, "docs/directives.md")
	example := regexp.MustCompile(`(?ms)^<!-- case (\S+) -->\n~~~~text\n(.*?)^~~~~\n→ (.*?)$`)
	examples := example.FindAllStringSubmatch(text, -1)
	if n := strings.Count(text, "<!-- case "); n != len(examples) || n == 0 {
		t.Errorf("%d cases are named and %d examples read", n, len(examples))
	}
	if n := strings.Count(text, "~~~~text"); n != len(examples) {
		t.Errorf("%d examples, of which %d name a case", n, len(examples))
	}
	for _, e := range examples {
		c, ok := cases[e[1]]
		if !ok {
			t.Errorf("there is no case %s", e[1])
			continue
		}
		if strings.TrimSuffix(e[2], "\n") != strings.TrimSuffix(c.Reply, "\n") {
			t.Errorf("case %s is shown as\n%s\nand is\n%s", c.ID, e[2], c.Reply)
		}
		found, _ := harvester.All([]byte(c.Reply), harvester.Config{ExecHosts: c.ExecHosts})
		if got := yields(found); got != e[3] {
			t.Errorf("case %s: the page says %q, the harvester finds %q", c.ID, e[3], got)
		}
	}
}

func TestFaultTable(t *testing.T) {
	var want [][]string
	for _, c := range ops.Codes() {
		retryable := "no"
		if c.Retryable {
			retryable = "yes"
		}
		want = append(want, []string{string(c.Code), strconv.Itoa(c.Status), strconv.Itoa(c.Exit), retryable, c.Meaning})
	}
	got := table(t, section(t, doc(t, "docs/api.md"), "## Faults"))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("ops.Codes (-) and docs/api.md (+):\n%s", d)
	}
}

func TestArchitectureTable(t *testing.T) {
	var want [][]string
	for folder, row := range permitted {
		may := "nothing of ours"
		switch {
		case slices.Contains(row.may, "*"):
			may = "everything"
		case len(row.may) > 0:
			may = strings.Join(row.may, ", ")
		}
		want = append(want, []string{folder, may, row.why})
	}
	got := table(t, section(t, doc(t, "docs/architecture.md"), "## Who may import whom"))
	order := func(a, b []string) int { return strings.Compare(a[0], b[0]) }
	slices.SortFunc(want, order)
	slices.SortFunc(got, order)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("permitted of arch_test.go (-) and docs/architecture.md (+):\n%s", d)
	}

	var libraries [][]string
	for path, o := range only {
		libraries = append(libraries, []string{path, o.in, o.why})
	}
	shown := table(t, section(t, doc(t, "docs/architecture.md"), "## Libraries with one place"))
	slices.SortFunc(libraries, order)
	slices.SortFunc(shown, order)
	if d := cmp.Diff(libraries, shown); d != "" {
		t.Errorf("only of arch_test.go (-) and docs/architecture.md (+):\n%s", d)
	}
}

func TestCommandTable(t *testing.T) {
	out, err := exec.Command(build(t, ""), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(out), "Available Commands:\n")
	list, _, ok := strings.Cut(list, "\n\n")
	if !ok {
		t.Fatalf("box --help lists no commands:\n%s", out)
	}
	var want [][]string
	for line := range strings.Lines(list) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		want = append(want, []string{"box " + name, strings.TrimSpace(what)})
	}
	got := table(t, section(t, doc(t, "docs/operations.md"), "## Commands"))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("box --help (-) and docs/operations.md (+):\n%s", d)
	}
}

// The tables that only a running gateway can confirm: its routes, its ops, the reads
// of box.exec and the events.
func TestTablesOfAGateway(t *testing.T) {
	g := serveAlive(t, build(t, ""), filepath.Join(t.TempDir(), "state"))
	api, opsPage := doc(t, "docs/api.md"), doc(t, "docs/ops.md")

	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := g.get("/openapi.json", &document); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for path, methods := range document.Paths {
		for method := range methods {
			want = append(want, strings.ToUpper(method)+" "+path)
		}
	}
	for _, row := range table(t, section(t, api, "## Routes")) {
		got = append(got, row[0]+" "+row[1])
	}
	same(t, "the routes of /openapi.json", want, "docs/api.md", got)

	var list struct {
		Ops []struct {
			Name, Provider string
			Parameters     struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	}
	if err := g.get("/v1/ops", &list); err != nil {
		t.Fatal(err)
	}
	var native, host, actions []string
	for _, op := range list.Ops {
		if op.Provider == ops.NativeProvider {
			native = append(native, op.Name)
		} else {
			host = append(host, op.Name)
		}
		if op.Name == string(ops.BoxExec(nil).Name) {
			actions = op.Parameters.Properties["action"].Enum
		}
	}
	same(t, "the native ops", native, "docs/ops.md", column(table(t, section(t, opsPage, "## Native ops")), 0))
	same(t, "the actions of box.exec", actions, "docs/ops.md", column(table(t, section(t, opsPage, "### What box.exec reads")), 0))
	same(t, "the ops of host.yaml", host, "docs/ops.md", column(table(t, section(t, opsPage, "## What comes with box")), 0))

	documented := column(table(t, section(t, api, "## Events")), 0)
	for _, kind := range happened(t, g) {
		if !slices.Contains(documented, kind) {
			t.Errorf("docs/api.md does not name the event %s", kind)
		}
	}
}

// same compares two lists without regard to their order.
func same(t *testing.T, wantName string, want []string, gotName string, got []string) {
	t.Helper()
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-) and %s (+):\n%s", wantName, gotName, d)
	}
}

// happened has g do one of each thing that leaves events, and returns their kinds.
func happened(t *testing.T, g *gateway) (kinds []string) {
	t.Helper()
	token := g.agent(t, "ada")
	for _, text := range []string{"[TOOL kernel {}] [TOOL nothing.here {}] [DM {\"to\":\"#notes\",\"text\":\"hi\"}]", "edited"} {
		if err := g.as(token, http.MethodPost, "/v1/replies", map[string]any{"room": "lobby", "message": "m1", "text": text}, nil); err != nil {
			t.Fatal(err)
		}
	}
	var outbox struct{ Outbox []json.RawMessage }
	var calls struct{ Calls []struct{ State ops.State } }
	until(t, "the calls are settled and their results posted", func() bool {
		if err := g.get("/v1/calls", &calls); err != nil {
			t.Fatal(err)
		}
		for _, c := range calls.Calls {
			if c.State == ops.Received || c.State == ops.Running {
				return false
			}
		}
		if err := g.get("/v1/outbox", &outbox); err != nil {
			t.Fatal(err)
		}
		return len(outbox.Outbox) == 0
	})
	g.wake(t, "ada", "Look around.")
	for _, path := range []string{"/v1/stop", "/v1/start"} {
		if err := g.do(http.MethodPost, path, map[string]bool{"all": true}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/v1/ops/reload", "/v1/agents/ada/rotate", "/v1/agents/ada/revoke"} {
		if err := g.do(http.MethodPost, path, nil, nil); err != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/v1/events?after=0", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+g.token)
	res, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		kind, ok := strings.CutPrefix(lines.Text(), "event: ")
		if ok && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
		if kind == "agent.revoked" { // the last thing that was done
			return kinds
		}
	}
	t.Fatalf("the events end with %v after %v", lines.Err(), kinds)
	return nil
}

// Each op file that docs/ops.md shows is a good one, unless a line above says what is
// wrong with it.
func TestOpFilesOfTheDocs(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(doc(t, "docs/ops.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/ops.md shows no op file")
	}
	for i, b := range blocks {
		if _, err := ops.ReadFile(fmt.Sprintf("block %d", i+1), []byte(b[1])); err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
	}
}

// varies is what differs from run to run and from machine to machine in the README's
// minute; a line is compared as far as it does not.
var varies = regexp.MustCompile(`20\d\d-|c-[0-9a-z]{26}|t-[0-9a-z]{26}|\./|/dev/|Filesystem`)

// The README's minute is run as it stands, on a port of its own.
func TestReadmeMinute(t *testing.T) {
	text := doc(t, "README.md")
	for _, command := range []string{"go run ./cmd/box demo", "go test ./..."} {
		if !strings.Contains(text, "\n"+command) {
			t.Errorf("the README does not have the line %q", command)
		}
	}
	minute := section(t, text, "## A minute's run")
	var script strings.Builder
	script.WriteString("set -eu\ntrap 'kill %1 2>/dev/null || true; wait' EXIT\n")
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(minute, -1) {
		script.WriteString(block[1])
	}
	run := script.String()
	for _, change := range []struct{ from, to string }{
		{`go build -o bin/box ./cmd/box`, `:`},
		{`bin/box serve`, `bin/box serve --listen 127.0.0.1:0`},
		{`(?m)^bin/box threads show t-[0-9a-z]{26}$`, `thread=$$(bin/box threads --limit 1 --jsonl | cut -d '"' -f 4)
until bin/box threads show $$thread | grep -q ': succeeded'; do sleep 0.1; done # nobody pastes that fast
bin/box threads show $$thread`},
	} {
		from := regexp.MustCompile(change.from)
		if !from.MatchString(run) {
			t.Fatalf("the README's minute has no %s", change.from)
		}
		run = from.ReplaceAllString(run, change.to)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(build(t, ""), filepath.Join(dir, "bin", "box")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", run)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // the gateway too
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "INBAND_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, run, out)
	}
	// What the README shows below the commands that does not depend on the machine.
	shown := 0
	for _, block := range regexp.MustCompile("(?ms)^~~~text\n(.*?)^~~~$").FindAllStringSubmatch(minute, -1) {
		for line := range strings.Lines(block[1]) {
			fixed := strings.TrimRight(line, "\n")
			if varies.MatchString(fixed) {
				fixed = strings.TrimSpace(varies.Split(fixed, 2)[0])
			}
			if shown++; !strings.Contains(string(out), fixed) {
				t.Errorf("the README shows %q, which did not come:\n%s", strings.TrimSpace(line), out)
			}
		}
	}
	if shown == 0 {
		t.Error("the README shows nothing of what comes")
	}
}

// Links between files of the documentation lead somewhere, headings included.
func TestLinks(t *testing.T) {
	root := moduleRoot(t)
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, decisions...), filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"))
	fenced := regexp.MustCompile("(?ms)^(```|~~~~).*?^(```|~~~~)$")
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	links := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(b), ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
				continue
			}
			if anchor == "" || info.IsDir() {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s links to %s: there is no such heading", file, m[1])
			}
		}
	}
	if links == 0 {
		t.Error("no links found")
	}
}

// anchors are the names under which headings can be linked to.
func anchors(text string) (names []string) {
	strip := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		names = append(names, strings.ReplaceAll(strip.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return names
}
