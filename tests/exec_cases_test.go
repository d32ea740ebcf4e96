package tests

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// testdata/exec-cases.json holds public failures of gateways like this one: for each,
// what was set up, what was asked, and what must come of it. held says which tests of
// ours hold each, or why it cannot arise here yet and what will make it arise.

// heldCase is one case: the tests that hold it, each FOLDER.TestName or
// FOLDER.TestName/SUBTEST with the folder as from the root of the module, or a reason.
type heldCase struct {
	id    string
	tests string // separated by spaces
	not   string // why it cannot arise in this version, and with what it will
}

var held = []heldCase{
	{"x01", "tests.TestOneProgramAndNoShell exec/command.TestNoShell", ""},
	{"x02", "tests.TestHostileValuesEverywhere", ""},
	{"x03", "tests.TestOnlyWhatIsDeclared", ""},
	{"x04", "cmd/box.TestCallsDoNotMix exec/command.TestManyAtOnce", ""},
	{"x05", "tests.TestClientsNameNoFiles", ""},
	{"x06", "tests.TestNobodyElseSeesACall tests.TestWhoSeesWhat adaptors/httpapi.TestStreamOfAThread", ""},
	{"x07", "tests.TestParametersForgeNoEvents", ""},
	{"x08", "", "no route and no command runs a call again: an order that is repeated under its key is answered from the record, and any other is a new call of whoever makes it; arises with the jobs of issue 4, whose nodes may be tried again"},
	{"x09", "tests.TestOnlyOnesOwnIsCancelled adaptors/httpapi.TestCancel", ""},
	{"x10", "tests.TestOpsAreShownToIdentities", ""},
	{"x11", "tests.TestOutputIsWithheldEverywhere service.TestOutputIsWithheld", ""},
	{"x12", "tests.TestStrangersGetOneAnswer", ""},
	{"x13", "tests.TestOutputIsData service/threads.TestResultsAreNeutral", ""},
	{"x14", "tests.TestNoIDStopsTheGateway tests.TestOddBytes", ""},
	{"x15", "tests.TestTreesEnd exec/proc.TestTheTreeEndsWithItsRun exec/sandbox.TestRunAsEnds", ""},
	{"x16", "tests.TestTreesEnd exec/proc.TestTheTreeEndsWithItsRun exec/proc.TestTwoRunsAtOnce", ""},
	{"x17", "tests.TestTreesEnd exec/proc.TestTheTreeEndsWithItsRun", ""},
	{"x18", "exec/sandbox.TestManyRuns exec/proc.TestManyAtOnce", ""},
	{"x19", "cmd/box.TestTreeGoesWithItsCaller adaptors/httpapi.TestHangUpLeavesAsyncCalls tests.TestCallersHangUp", ""},
	{"x20", "exec/proc.TestTheGatewaysDeathEndsItsProcess tests.TestStopInTheMiddleOfAReply tests.TestKill", ""},
	{"x21", "exec/sandbox.TestManyRuns tests.TestNothingGrows", ""},
	{"x22", "exec/sandbox.TestForkChain", ""},
	{"x23", "cmd/box.TestCutConnection cmd/box.TestLostConnection", ""},
	{"x24", "tests.TestBadOpFiles ops.TestReadFileRefuses/timeout_0", ""},
	{"x25", "tests.TestWildOps exec/proc.TestAFloodTakesNoMemory exec/proc.TestOutputIsBounded", ""},
	{"x26", "tests.TestOutputIsShownSafely cmd/box.TestClean cmd/box.TestCleanJSON", ""},
	{"x27", "tests.TestOnlyWhatIsListed/x27", ""},
	{"x28", "tests.TestOnlyWhatIsListed/x28", ""},
	{"x29", "tests.TestProgramsThatRunOthers ops.TestDispatches ops.TestShippedFiles", ""},
	{"x30", "tests.TestOnlyWhatIsDeclared", ""},
	{"x31", "tests.TestOnlyWhatIsListed/x31", ""},
	{"x32", "ops.TestReadFileRefuses/env_-S ops.TestReadFileRefuses/shell ops.TestReadFileRefuses/brace_in_a_word exec/command.TestNewRefuses/env_in_disguise", ""},
	{"x33", "tests.TestPathsAreLiteral", ""},
	{"x34", "tests.TestPathsAreLiteral", ""},
	{"x35", "tests.TestOnlyWhatIsListed/x35", ""},
	{"x36", "tests.TestProgramsStartNoOthers exec/command.TestAttack", ""},
	{"x37", "tests.TestPathIsNotSearched ops.TestReadFileRefuses/relative_program", ""},
	{"x38", "tests.TestOnlyWhatIsListed/x38 ops.TestReadFileRefuses/empty_argv ops.TestReadFileRefuses/empty_program ops.TestReadFileRefuses/program_a_parameter", ""},
	{"x39", "tests.TestRevisionsAreNoOptions ops.TestReadFileRefuses/pattern_without_--", ""},
	{"x40", "tests.TestStandardInputIsOneValue tests.TestHostileValuesEverywhere", ""},
	{"x41", "tests.TestBodiesHaveOneReading adaptors/httpapi.TestCheckJSON", ""},
	{"x42", "tests.TestBodiesAreReadWholeOrNot adaptors/httpapi.TestTooLargeIsNotRead adaptors/httpapi.TestSlowClients", ""},
	{"x43", "tests.TestOtherSitesAreRefused adaptors/httpapi.TestEveryRouteRefuses/foreign_origin", ""},
	{"x44", "tests.TestStrangersGetOneAnswer adaptors/httpapi.TestEveryRouteRefuses/cut_token", ""},
	{"x45", "tests.TestHostileValuesEverywhere", ""},
	{"x46", "exec/command.TestRunAs exec/sandbox.TestRunAs exec/sandbox.TestInGroups exec/sandbox.TestRootAsRoot", ""},
	{"x47", "tests.TestApprovedIsWhatRuns service.TestVoid service.TestSwappedBeforeTheStart", ""},
	{"x48", "service.TestEachCallNeedsItsOwn service.TestVoid", ""},
	{"x49", "service.TestExpiry service.TestRestartWhileParked service.TestDecidersAtOnce service.TestWhoMayDecide", ""},
	{"x50", "tests.TestOneKeyIsOneExecution/x50", ""},
	{"x51", "tests.TestOneKeyIsOneExecution/x51", ""},
	{"x52", "tests.TestOneKeyIsOneExecution/x52 service.TestSameKeyAtOnceRunsOnce tests.TestStopInTheMiddleOfAReply", ""},
	{"x53", "tests.TestEmptyAndAbsentAreNone tests.TestBadOpFiles exec/command.TestAttack", ""},
	{"x54", "cmd/box.TestReadiness exec/command.TestMissingLayer exec/sandbox.TestMissing", ""},
	{"x55", "tests.TestBadOpFiles exec/sandbox.TestRunAs", ""},
	{"x56", "exec/sandbox.TestFilter exec/sandbox.TestFilterOfAllNumbers exec/command.TestForeignArchitecture", ""},
	{"x57", "exec/sandbox.TestNoTerminal exec/command.TestAttack", ""},
	{"x58", "exec/sandbox.TestManyRuns exec/proc.TestWhatAProcessGets", ""},
	{"x59", "exec/command.TestLimits exec/sandbox.TestRunAs", ""},
	{"x60", "exec/sandbox.TestFewDescriptors tests.TestOutOfDescriptors", ""},
	{"x61", "exec/command.TestPathParameters ops.TestCanonicalValues tests.TestToolchain", ""},
	{"x62", "exec/sandbox.TestGatewaysEnvironmentIsClosed exec/command.TestEnvironment tests.TestOnlyWhatIsDeclared", ""},
	{"x63", "tests.TestSecretsStayWhereTheyAre exec/command.TestSecrets exec/command.TestSecretPrints", ""},
	{"x64", "tests.TestBadOpFiles tests.TestOpWithoutPermission tests.TestReloadUnderLoad cmd/box.TestReloadKeepsTheOldOps", ""},
}

func TestExecCases(t *testing.T) {
	cases := readCases(t, filepath.Join("testdata", "exec-cases.json"))
	if len(cases) != 64 {
		t.Errorf("%d cases, want 64", len(cases))
	}
	holds(t, cases, held)
	for _, h := range held {
		if (h.tests == "") == (h.not == "") {
			t.Errorf("case %s: want either tests or a reason", h.id)
		}
	}
}

// vectorCase is a case of a file of vectors, as far as the ledgers look at it.
type vectorCase struct{ ID, Must string }

func readCases(t *testing.T, file string) (cases []vectorCase) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// holds fails t unless there is one row for each case, with tests that exist, and reasons
// that say until when they are good.
func holds(t *testing.T, cases []vectorCase, held []heldCase) {
	t.Helper()
	rows := map[string]int{}
	for _, h := range held {
		rows[h.id]++
	}
	for _, c := range cases {
		if rows[c.ID] != 1 {
			t.Errorf("case %s has %d rows, want one", c.ID, rows[c.ID])
		}
		delete(rows, c.ID)
	}
	for id := range rows {
		t.Errorf("row %s is about no case", id)
	}
	known := map[string]map[string][]string{} // folder, test, its subtests
	for _, h := range held {
		if h.tests == "" && h.not == "" {
			t.Errorf("case %s: want tests or a reason", h.id)
		}
		if h.not != "" && !strings.Contains(h.not, "arises with ") {
			t.Errorf("case %s: the reason does not say what it arises with", h.id)
		}
		for name := range strings.FieldsSeq(h.tests) {
			folder, test, ok := strings.Cut(name, ".")
			if !ok {
				t.Errorf("case %s: %q is no FOLDER.TestName", h.id, name)
				continue
			}
			if known[folder] == nil {
				known[folder] = testsIn(t, filepath.Join("..", filepath.FromSlash(folder)))
			}
			test, sub, _ := strings.Cut(test, "/")
			subs, ok := known[folder][test]
			if ok && test == "TestScript" { // a file each
				_, err := os.Stat(filepath.Join("..", filepath.FromSlash(folder), "testdata", "script", sub+".txtar"))
				ok, sub = err == nil, ""
			}
			if !ok || sub != "" && !slices.Contains(subs, sub) {
				t.Errorf("case %s: there is no test %s", h.id, name)
			}
		}
	}
}

// testsIn returns the tests of a folder, each with the names that it gives to t.Run and
// the strings of its tables, out of which others are made.
func testsIn(t *testing.T, folder string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", folder, err)
	}
	found := map[string][]string{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			found[fn.Name.Name] = names(fn)
		}
	}
	return found
}

// names are the strings that may name subtests of fn: those given to t.Run, and the
// first ones of the rows of its tables, with spaces as go test writes them.
func names(fn *ast.FuncDecl) (all []string) {
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				all = append(all, strings.ReplaceAll(s, " ", "_"))
			}
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Run" && len(n.Args) == 2 {
				add(n.Args[0])
			}
		case *ast.CompositeLit:
			if len(n.Elts) > 0 {
				add(n.Elts[0])
			}
		case *ast.KeyValueExpr:
			add(n.Key)
		}
		return true
	})
	return all
}
