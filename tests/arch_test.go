package tests

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// permitted holds every arrow between folders of this module, with its reason. Imports
// run downwards only; ops and failpoint, which import nothing of ours, may be imported
// from anywhere but the harvester and the two exec packages that know no ops.
// A folder that is missing here fails the test.
var permitted = map[string]struct {
	may []string
	why string
}{
	"failpoint":                 {nil, "marks in the code, known to nobody"},
	"harvester":                 {nil, "pure: text to directives, usable by anyone"},
	"ops":                       {nil, "the vocabulary at the bottom"},
	"envelope":                  {[]string{"ops"}, "what agents and people read, as text"},
	"exec/proc":                 {nil, "a process, without knowing why"},
	"exec/sandbox":              {nil, "layers of the kernel, without knowing for what"},
	"exec/command":              {[]string{"ops", "exec/proc", "exec/sandbox"}, "turns an op and parameters into a confined process"},
	"exec/task":                 {[]string{"ops", "exec/command", "exec/proc", "exec/sandbox"}, "runs a worker's command for hours, in a folder of its own"},
	"service/journal":           {[]string{"ops"}, "the store's vocabulary"},
	"service/journal/sqlite":    {[]string{"ops", "failpoint", "service/journal"}, "one engine"},
	"service/journal/storetest": {[]string{"ops", "service/journal"}, "what every engine passes"},
	"service/journal/notary":    {[]string{"failpoint", "service/journal"}, "signs what a store holds"},
	"service/access":            {[]string{"ops", "service/journal"}, "who, and what they may do"},
	"service/artifacts":         {[]string{"ops", "failpoint", "service/journal"}, "bytes by their digest, and who published them"},
	"service":                   {[]string{"ops", "failpoint", "service/journal", "service/access", "service/artifacts"}, "the one door"},
	"service/threads":           {[]string{"ops", "failpoint", "service", "service/access", "service/journal", "harvester", "envelope"}, "replies in, results out"},
	"service/timers":            {[]string{"ops", "service", "service/access", "service/journal", "service/threads"}, "when agents are woken"},
	"service/plane":             {[]string{"ops", "failpoint", "service", "service/access", "service/journal", "service/artifacts", "service/plane/wire"}, "work for others, under leases, until somebody else has verified it"},
	"service/plane/wire":        {[]string{"ops"}, "what the plane and its workers say to each other, signed"},
	"adaptors/httpapi":          {[]string{"ops", "service", "service/access", "service/journal", "service/journal/notary", "service/plane", "service/plane/wire", "service/threads", "service/timers"}, "HTTP on top of the service"},
	"adaptors/webhook":          {[]string{"ops", "service", "service/threads"}, "a chat behind signed HTTP"},
	"adaptors/worker":           {[]string{"ops", "failpoint", "service/artifacts", "service/plane/wire"}, "the other end of the plane, which knows the gateway by its routes only"},
	"adaptors/adaptortest":      {[]string{"ops", "harvester", "service", "service/access", "service/journal", "service/journal/sqlite", "service/threads"}, "what every adaptor of a chat passes"},
	"cmd/box":                   {[]string{"*"}, "wires everything"},
	"tests":                     {[]string{"*"}, "looks at everything"},
	"tests/bridge/bridgetest":   {nil, "starts that chat as a process"},
	"tests/riverpeer":           {nil, "the job queue that benchmarks of the plane compare with"},
	"tests/powercut":            {nil, "a disk of the tests that forgets what was not synced"},
	"tests/bridge":              {nil, "a chat of the tests, which knows the gateway by its documents only"},
}

// only holds libraries that one folder alone may import, with the reason.
var only = map[string]struct{ in, why string }{
	"os/exec":                                                {"exec/proc", "every process is bounded in one place"},
	"modernc.org/sqlite":                                     {"service/journal/sqlite", "one engine knows its driver"},
	"database/sql":                                           {"service/journal/sqlite", "features speak portable SQL through journal.Tx"},
	"github.com/pressly/goose/v3":                            {"service/journal/sqlite", "an engine migrates itself"},
	"golang.org/x/mod/sumdb/tlog":                            {"service/journal/notary", "the log's hashes are computed in one place"},
	"golang.org/x/mod/sumdb/note":                            {"service/journal/notary", "and signed there"},
	"mvdan.cc/sh/v3/syntax":                                  {"harvester", "shell words are read in the curl form only"},
	"github.com/danielgtaylor/huma/v2":                       {"adaptors/httpapi", "one HTTP framework, one place"},
	"github.com/go-chi/chi/v5":                               {"adaptors/httpapi", "one router, one place"},
	"github.com/spf13/cobra":                                 {"cmd/box", "flags and commands belong to main"},
	"github.com/goccy/go-yaml":                               {"ops", "op files are read in one place"},
	"github.com/elastic/go-seccomp-bpf":                      {"exec/sandbox", "every filter is built in one place"},
	"github.com/landlock-lsm/go-landlock/landlock":           {"exec/sandbox", "every ruleset is built in one place"},
	"github.com/cedar-policy/cedar-go":                       {"service/access", "one place decides"},
	"github.com/prometheus/client_golang/prometheus":         {"cmd/box", "metrics are put together where all parts are known"},
	"github.com/hashicorp/go-retryablehttp":                  {"adaptors/webhook", "whoever sends again must know what was sent"},
	"github.com/secure-systems-lab/go-securesystemslib/dsse": {"service/plane/wire", "envelopes are sealed and proved in one place"},
	"github.com/robfig/cron/v3":                              {"service/timers", "expressions are read in one place, around what its parser gets wrong"},
}

// bottom may be imported by folders whose own list does not name ops, never by these.
var pure = []string{"harvester", "exec/proc", "exec/sandbox", "failpoint"}

func TestImportsRunDownwards(t *testing.T) {
	seen := map[string]bool{}
	for file, imports := range sources(t, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }) {
		folder := filepath.Dir(file)
		rule, ok := permitted[folder]
		if !ok {
			t.Errorf("%s: the folder %s is in no row of permitted; add it with a reason", file, folder)
			continue
		}
		seen[folder] = true
		for _, path := range imports {
			// What only serves tests is as free as they are.
			if o, ok := only[path]; ok && o.in != folder && !strings.HasPrefix(folder, o.in+"/") && !strings.HasPrefix(folder, "tests/") {
				t.Errorf("%s imports %s, which only %s may: %s", file, path, o.in, o.why)
			}
			ours, ok := strings.CutPrefix(path, "inband/")
			if !ok {
				continue
			}
			if !slices.Contains(rule.may, ours) && !slices.Contains(rule.may, "*") {
				t.Errorf("%s imports %s, which %s may not (%s)", file, ours, folder, rule.why)
			}
			if slices.Contains(pure, folder) {
				t.Errorf("%s imports %s, and %s imports nothing of ours", file, ours, folder)
			}
		}
	}
	for folder := range permitted {
		if !seen[folder] && folder != "tests" {
			t.Errorf("permitted names %s, which holds no Go file; take the row out", folder)
		}
	}
}

// Everybody sees in main what the program holds: nothing registers itself by being
// imported. The exceptions are the SQL driver, inside its engine, and the world's zones,
// inside the package that reckons with them.
func TestNoRegistrationByImport(t *testing.T) {
	root := moduleRoot(t)
	for file := range sources(t, func(string) bool { return true }) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if i.Name == nil || i.Name.Name != "_" {
				continue
			}
			path, _ := strconv.Unquote(i.Path.Value)
			folder := filepath.Dir(file)
			if path == "embed" || path == "modernc.org/sqlite" && folder == "service/journal/sqlite" || path == "time/tzdata" && folder == "service/timers" {
				continue
			}
			t.Errorf("%s imports %s for its side effects", file, path)
		}
	}
}

// sources returns the imports of the module's Go files whose name keep accepts, by
// path below the root.
func sources(t *testing.T, keep func(name string) bool) map[string][]string {
	t.Helper()
	root := moduleRoot(t)
	files := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || !keep(d.Name()) {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)] = nil
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			files[filepath.ToSlash(rel)] = append(files[filepath.ToSlash(rel)], p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	return files
}

// moduleRoot is the folder that holds go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the tests")
		}
		dir = parent
	}
}
