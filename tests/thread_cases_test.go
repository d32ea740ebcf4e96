package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"inband/harvester"
	"inband/ops"
)

// testdata/thread-cases.json holds public failures of programs that speak in chats: for
// each, what is the case and what must come of it. inThreads says which tests of ours hold
// each, or what of it cannot arise yet and with what it will. Where a case is one for any
// adaptor, adaptors/adaptortest runs it, here on the webhook and its bridge.

// anAdaptor is the test that runs the suite of all adaptors.
const anAdaptor = "adaptors/webhook.TestAdaptor"

var inThreads = []heldCase{
	{"tb-001", anAdaptor + " service/threads.TestAFirstPostMakesTheRoot", ""},
	{"tb-002", anAdaptor + " service/threads.TestProgress", ""},
	{"tb-003", anAdaptor + " adaptors/webhook.TestPayloads", ""},
	{"tb-004", anAdaptor, ""},
	{"tb-005", anAdaptor, ""},
	{"tb-006", anAdaptor, ""},
	{"tb-007", anAdaptor + " service/threads.TestProgress", ""},
	{"tb-008", anAdaptor + " service/threads.TestFailuresOfPosts", "the console's list of what was not delivered arises with the console"},
	{"tb-009", anAdaptor + " service/threads.TestReceive_OnceWhoeverAndHoweverOften cmd/box.TestEveryCountHasAName", ""},
	{"tb-010", "adaptors/webhook.TestCursorFollowsWhatIsTaken service/threads.TestReceive_ABatchAgain", ""},
	{"tb-011", "adaptors/webhook.TestWithoutID", ""},
	{"tb-012", anAdaptor, ""},
	{"tb-013", anAdaptor + " service/threads.TestReceive_OnceOverARestart", ""},
	{"tb-014", anAdaptor + " adaptors/webhook.TestAdaptorWithKeys service/threads.TestAfterAKillWhileSending tests.TestKilledWhileItPosts", ""},
	{"tb-015", anAdaptor + " adaptors/webhook.TestAdaptorWithKeys service/threads.TestKeyOfADelivery tests.TestOneKeyIsOneExecution", ""},
	{"tb-016", anAdaptor + " service/threads.TestReceive_PeopleOnce", ""},
	{"tb-017", "tests.TestTwoAgents tests.TestLoopOfAgents service/threads.TestAgentsThatAnswerEachOther service/threads.TestCapsOfRaise", ""},
	{"tb-018", anAdaptor + " tests.TestLoopOfAgents service/threads.TestControl_StopHoldsTheThread service/threads.TestControl_InRooms service.TestNothingBeginsWhileItIsHeld", ""},
	{"tb-019", anAdaptor + " tests.TestLoopOfAgents service/threads.TestReceive_Mentions", ""},
	{"tb-020", anAdaptor + " tests.TestOrdersOrNot/tb-020 tests.FuzzRenderedHoldsNoOrder envelope.TestNothingRenderedIsAnOrder", ""},
	{"tb-021", anAdaptor + " service/threads.TestReceive_WhoIsRead", ""},
	{"tb-022", "envelope.TestRenderingsAreAllThereAre envelope.TestNotesOfOthersHoldNoOrder envelope.TestEchoedEnvelopesAreNoOrders envelope.TestEchoedHintsAreNoOrders tests.TestInstructionsAreNoOrders", ""},
	{"tb-023", anAdaptor + " adaptors/webhook.TestCatchUp service/threads.TestReceive_IsOnRecord", ""},
	{"tb-024", anAdaptor + " service/threads.TestReceive_Late", ""},
	{"tb-025", anAdaptor + " adaptors/webhook.TestCatchUp adaptors/webhook.TestGap service/threads.TestReceive_History", ""},
	{"tb-026", anAdaptor + " envelope.TestSplitOfALongResult", ""},
	{"tb-027", anAdaptor + " service/threads.TestALongTextIsAnAttachmentWhereThereAreSome", ""},
	{"tb-028", "service/threads.TestProgress", ""},
	{"tb-029", "", "no adaptor joins rooms: those of a webhook stand in its file, and the bridge is in them; arises with the Matrix and Slack adaptors"},
	{"tb-030", anAdaptor + " envelope.TestSplitOfRandomTexts envelope.TestSplitPoints", ""},
	{"tb-031", anAdaptor + " envelope.TestSplitOfRandomTexts service/threads.TestPartsStandInOrderAndAreMirrored", ""},
	{"tb-032", anAdaptor + " service/threads.TestRateLimitsOfAThreadAndOfAll", ""},
	{"tb-033", anAdaptor + " adaptors/webhook.TestOutcomes service/threads.TestProgress", ""},
	{"tb-034", anAdaptor + " service/threads.TestProgress", ""},
	{"tb-035", anAdaptor + " service/threads.TestReceive_Edits", ""},
	{"tb-036", anAdaptor + " service/threads.TestReceive_Edits", ""},
	{"tb-037", anAdaptor + " service/threads.TestReceive_Edits", ""},
	{"tb-038", anAdaptor + " envelope.TestNeutral envelope.TestMentionsReadTheSame", ""},
	{"tb-039", anAdaptor + " envelope.TestNeutral", ""},
	{"tb-040", anAdaptor + " envelope.TestNothingRenderedIsAnOrder tests.FuzzRenderedHoldsNoOrder", ""},
	{"tb-041", anAdaptor + " envelope.TestNeutral", "what a web page shows of it arises with the console"},
	{"tb-042", anAdaptor, "what is posted has no markup but fences, so there is nothing to try again without; arises with an adaptor whose platform reads markup strictly"},
	{"tb-043", anAdaptor + " envelope.TestSplitOfRandomTexts envelope.TestSplitPoints", ""},
	{"tb-044", anAdaptor + " envelope.TestSplitOfRandomTexts envelope.TestSplitPoints", ""},
	{"tb-046", anAdaptor + " adaptors/webhook.TestUnescape", "what is Slack's own arises with the Slack adaptor"},
	{"tb-047", "tests.TestOrdersOrNot/tb-047 harvester.TestVectors harvester.TestExplain", ""},
	{"tb-048", "tests.TestOrdersOrNot/tb-048 service/threads.TestReceive_WhoIsRead", ""},
	{"tb-049", "tests.TestOrdersOrNot/tb-049 harvester.TestVectors", ""},
	{"tb-050", "tests.TestOrdersOrNot/tb-050 harvester.TestVectors", ""},
	{"tb-051", "tests.TestOrdersOrNot/tb-051 tests.FuzzSpansTile", ""},
	{"tb-052", "service.TestDecidersAtOnce service/threads.TestControl_OneDecision", ""},
	{"tb-053", anAdaptor + " service/threads.TestControl_DecisionAfterARestart service.TestRestartWhileParked", ""},
	{"tb-054", anAdaptor + " service/threads.TestControl_WhoDecides service.TestWhoMayDecide", ""},
	{"tb-055", "adaptors/webhook.TestPayloads/a_room_by_its_name adaptors/webhook.TestReadRefuses", ""},
	{"tb-056", "tests.TestOutputIsWithheldEverywhere service.TestOutputIsWithheld", "the web page of the six ways arises with the console"},
	{"tb-057", anAdaptor + " service/threads.TestReceive_WhoIsRead service/threads.TestReceive_IsOnRecord", ""},
	{"tb-058", anAdaptor + " service/threads.TestOrderOfAThread", ""},
	{"tb-059", anAdaptor + " service/threads.TestFailuresOfPosts service/threads.TestAThreadThatHangs", ""},
	{"tb-060", "tests.TestJSONStandsAlone cmd/box.TestScript/operate", ""},
	{"tb-061", "cmd/box.TestScript/operate cmd/box.TestScript/usage", ""},
	{"tb-062", "tests.TestOutputIsShownSafely cmd/box.TestScript/operate cmd/box.TestClean cmd/box.TestCleanJSON", ""},
}

func TestThreadCases(t *testing.T) {
	cases := readCases(t, filepath.Join("testdata", "thread-cases.json"))
	if len(cases) != 61 {
		t.Errorf("%d cases, want 61", len(cases))
	}
	holds(t, cases, inThreads)
	// What is said to be the suite's is one of its cases, and the other way round.
	b, err := os.ReadFile(filepath.Join("..", "adaptors", "adaptortest", "run.go"))
	if err != nil {
		t.Fatal(err)
	}
	var suite, ours []string
	for _, m := range regexp.MustCompile(`"(tb-[0-9]+)"`).FindAllSubmatch(b, -1) {
		suite = append(suite, string(m[1]))
	}
	for _, h := range inThreads {
		if slices.Contains(strings.Fields(h.tests), anAdaptor) {
			ours = append(ours, h.id)
		}
	}
	same(t, "the cases of the suite of adaptors", suite, "those that are said to be in it", ours)
}

// The safety cases run whole in two ways: by box policy test, which has a gateway of its
// own, and as messages of a chat.
func TestSafetyCases(t *testing.T) {
	cases := readCases(t, filepath.Join("..", "cmd", "box", "testdata", "safety-cases.json"))
	musts := map[string]int{}
	var rows []heldCase
	for _, c := range cases {
		musts[c.Must]++
		rows = append(rows, heldCase{c.ID, "cmd/box.TestPolicyCases/safety-cases.json service/threads.TestReceive_SafetyCases", ""})
	}
	if got := fmt.Sprint(musts); got != "map[not run:224 park:48 run:72]" {
		t.Errorf("the cases must %s", got)
	}
	holds(t, cases, rows)
	if !bytes.Equal(fileOf(t, "service/threads/testdata/safety-cases.json"), fileOf(t, "cmd/box/testdata/safety-cases.json")) {
		t.Error("the safety cases of a chat are others")
	}
	if !bytes.Equal(fileOf(t, "adaptors/adaptortest/testdata/thread-cases.json"), fileOf(t, "tests/testdata/thread-cases.json")) {
		t.Error("the thread cases of the suite are others")
	}
}

func fileOf(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What is and what is not an order, as the thread cases have it, through a real gateway:
// what a reply runs, what of it is broken, and that it is kept as it was written.
func TestOrdersOrNot(t *testing.T) {
	l := newSite(t, `provider: test
title: What is said is said again
ops:
  test.echo:
    summary: Say a text again.
    side_effecting: false
    params: {text: {type: text, max: 1000}}
    argv: [/bin/cat]
`, "")
	order := func(text string) string {
		b, err := json.Marshal(map[string]string{"text": text})
		if err != nil {
			t.Fatal(err)
		}
		return "[TOOL test.echo " + string(b) + "]"
	}
	live := order("live")
	code := "    if x {\n\t\treturn  1\n    }\n\n\n  trailing  \n"
	for _, tc := range []struct {
		name, text string
		runs       int
		broken     int
	}{
		{"tb-020", order(order(order("the third"))), 1, 0},
		{"tb-047", "[TOOL test.echo {“text”: “one — two”}]", 0, 1},
		{"tb-048", "> " + live + "\n> > " + live + "\nWhat does that mean?", 0, 0},
		{"tb-049", "```xml\n" + live + "\n```\n```text\n" + live + "\n```\n~~~\n" + live + "\n~~~\n" + live + "\n```xml\n" + live + "\n", 1, 0},
		{"tb-050", "`" + live + "` and <!-- " + live + " -->\n\n| how | what |\n|---|---|\n| so | `" + live + "` |\n", 0, 0},
		{"tb-051", code + live + "\n" + code, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := l.in(t)
			status, reply := l.reply(tc.name, tc.text)
			if status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			if len(reply.Calls) != tc.runs || reply.Broken != tc.broken {
				t.Errorf("%q: %d calls and %d broken, want %d and %d", tc.text, len(reply.Calls), reply.Broken, tc.runs, tc.broken)
			}
			l.quiet()
			l.once(reply.Ack)
			posts, err := l.posts(reply.Thread)
			if err != nil {
				t.Fatal(err)
			}
			if len(posts) != 1+tc.runs || posts[0].Text != tc.text {
				t.Fatalf("the thread holds %+v, want %q and %d results", posts, tc.text, tc.runs)
			}
			for i, c := range reply.Calls {
				if got := tc.text[c.Start:c.End]; !strings.HasPrefix(got, "[TOOL test.echo ") || got[len(got)-1] != ']' {
					t.Errorf("the order is said to be %q", got)
				}
				// Nobody who hands the result in again orders anything.
				result := posts[1+i].Text
				if found, _ := harvester.All([]byte(result), anyHost); len(found) > 0 {
					t.Errorf("%q orders %+v", result, found)
				}
				if status, again := l.reply(tc.name+" again", result); status != http.StatusOK || len(again.Calls) > 0 {
					t.Errorf("handed in again, %q ran: status %d, %+v", result, status, again.Calls)
				}
			}
		})
	}
	if n := len(l.callsOf("test.echo")); n != 3 {
		t.Errorf("%d calls in all, want 3", n)
	}
	out, errs, _ := l.run(l.scout, "so: [TOOL test.echo {“text”:1}]", "harvest", "--explain", "-")
	if !regexp.MustCompile(`(?m)^4-21 +rule 8 +broken JSON$`).MatchString(out) || !strings.Contains(errs, "1 broken directive") {
		t.Errorf("box harvest --explain says %q and %q", out, errs)
	}
}

// callsOf are all calls of an op.
func (l *lab) callsOf(op string) (ids []ops.CallID) {
	l.t.Helper()
	var page struct{ Calls []struct{ Call ops.CallID } }
	if err := l.get("/v1/calls?limit=200&op="+op, &page); err != nil {
		l.t.Fatal(err)
	}
	for _, c := range page.Calls {
		ids = append(ids, c.Call)
	}
	return ids
}

// Case tb-060: with --json standard output is one JSON document and nothing else, whether it
// is a pipe or a terminal, and also when there is something to say beside it.
func TestJSONStandsAlone(t *testing.T) {
	l := newSite(t, `provider: test
title: Something to list
ops:
  test.say: {summary: Say hello., side_effecting: false, argv: [/bin/echo, hello]}
`, "")
	for range 3 {
		if _, _, code := l.run(l.scout, "", "exec", "test.say"); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
	for _, words := range [][]string{
		{"calls", "--json"}, {"calls", "--limit", "1", "--json"}, {"wakes", "--json"}, {"timers", "--json"}, {"threads", "--json"}, {"ops", "--json"},
		{"exec", "test.say", "--json"}, {"exec", "test.say", "--async", "--json"}, {"version", "--json"},
	} {
		out, errs, code := l.run(l.scout, "", words...)
		shown := l.terminal(words, func(cmd *exec.Cmd, tty *os.File) { cmd.Stdin, cmd.Stdout = tty, tty })
		for where, s := range map[string]string{"a pipe": out, "a terminal": shown} {
			if !json.Valid([]byte(s)) || code != 0 {
				t.Errorf("box %s into %s: exit code %d, %q, and beside it %q", strings.Join(words, " "), where, code, s, errs)
			}
		}
	}
}
