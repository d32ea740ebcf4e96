package plane

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cases says where each of the public failures in testdata/plane-cases.json is tried: the
// tests by name, of this package or of the folder before the colon, or what it needs that
// is not there yet.
var cases = map[string][]string{
	"pb-001": {"TestALeaseThatIsMissingIsFoundByTheState"},
	"pb-002": {"TestTwoSweepersMoveALeaseOnOnce"}, // and on two gateways: needs postgres
	"pb-003": {"TestAHeartbeatThatCannotBeWrittenIsNotAcknowledged"},
	"pb-004": {"TestALostWorkerIsReplacedWithinItsOwnBudget"},
	"pb-005": {"TestACancelledRunStaysSoAndIsToldEachTime", "TestCancelRunning"},
	"pb-006": {"TestALeaseEndsWithTheDeadlineHoweverItIsKeptAlive", "TestDeadlineOfRun"},
	"pb-007": {"TestNothingRunsAgainWhileAMutationIsUnproven", "TestUnprovenMutationHoldsRetry"},
	"pb-008": {"TestASweeperThatComesLateChangesNothing"},
	"pb-009": {"TestFiveThousandLostRunsAreAllFound"},
	"pb-010": {"needs: postgres"},
	"pb-011": {"TestACancelledRunStaysSoAndIsToldEachTime", "TestCancelRunning", "TestCancelDispatched", "TestCancelInBackoff"},
	"pb-012": {"TestRowsThatAreNotEligibleHideNone"},
	"pb-013": {"needs: postgres"}, // several gateways that want to be the notary
	"pb-014": {"TestALeaseIsJudgedByWhatIsStored"},
	"pb-015": {"TestAResultThatComesTooLateIsEvidenceUntilItIsAdopted", "adaptors/worker:TestPB015LateResultIsEvidence"},
	"pb-016": {"TestAPlaneThatComesBackLeavesLeasesTheirTime"},
	"pb-017": {"TestAWorkerThatDrainsKeepsWhatItHas", "adaptors/worker:TestPB017DrainKeepsTheLease"},
	"pb-018": {"TestAHeartbeatThatCannotBeWrittenIsNotAcknowledged", "adaptors/worker:TestPB018HeartbeatsComeBack"},
	"pb-019": {"TestWhoHasLostItsLeaseChangesNothing", "adaptors/worker:TestPB019StoppedWorkerChangesNothing"},
	"pb-020": {"TestALostWorkerIsReplacedWithinItsOwnBudget"},
	"pb-021": {"TestWhoHasLostItsLeaseChangesNothing", "adaptors/worker:TestPB021FinalAnswersAreNotRepeated"},
	"pb-022": {"TestACancelThatCannotBeProvedIsNoCancel", "adaptors/worker:TestPB022WhatCannotBeKilledIsReported"},
	"pb-023": {"TestACancelledDispatchIsOfferedToNobody", "TestCancelDispatched"},
	"pb-024": {"TestLifeWithoutProgressIsNotEnough"},
	"pb-025": {"adaptors/worker:TestPB025HeartbeatsGoOnBesideTheCommand", "exec/task:TestProgressBesideSpinningThreads"},
	"pb-026": {"TestACancelledRunStaysSoAndIsToldEachTime", "adaptors/worker:TestPB026ProofWaitsForTheLastProcess", "exec/task:TestTheTreeIsEnded"},
	"pb-027": {"TestABootEndsTheOneBefore", "adaptors/worker:TestPB027RestartedWorkerReportsItsRuns"},
	"pb-028": {"TestAStartAdoptsNothingThatIsBegunMeanwhile"},
	"pb-029": {"TestABootEndsTheOneBefore", "adaptors/worker:TestPB029OlderProcessEnds"},
	"pb-030": {"TestForgedCallbacksAreRefusedForGood", "adaptors/worker:TestPB030ForgedCallbacks"},
	"pb-031": {"needs: postgres"},
	"pb-032": {"TestAWorkersClockDecidesNothing", "adaptors/worker:TestPB032WrongClocks"},
	"pb-033": {"TestALeaseIsJudgedByWhatIsStored"}, // on two gateways: needs postgres
	"pb-034": {"needs: postgres"},
	"pb-035": {"TestWhoHasLostItsLeaseChangesNothing", "TestEarlierAttemptSpeaks"},
	"pb-036": {"TestEveryAttemptFailsAndThereAreAsManyAsMayBe"},
	"pb-037": {"service/journal/sqlite:TestPowerCut", "service/journal/sqlite:TestBelowFullIsRefused"},
	"pb-038": {"service/journal/sqlite:TestNobodyHearsOfALock", "service/journal/sqlite:TestLogIsEmptiedAfterAForeignReader", "service/journal/sqlite:TestBackupWhileOthersWrite"},
	"pb-039": {"service/journal/sqlite:TestOldViewIsEnded", "service/journal/sqlite:TestLogStaysBelowItsBound", "service/journal/sqlite:TestTailHoldsNoSnapshot"},
	"pb-040": {"TestALeaseThatLapsedBeforeItWasHeardOfIsNone", "adaptors/worker:TestPB040LateGrantIsNotBegun"},
	"pb-041": {"TestACommandThatIsDeadKeepsNoLease", "adaptors/worker:TestPB041DeadChildKeepsNoLease"},
	"pb-042": {"TestANetworkThatFlapsStartsNothingTwice"},
	"pb-043": {"TestAResultThatComesTooLateIsEvidenceUntilItIsAdopted", "TestABootEndsTheOneBefore"},
	"pb-044": {"TestWhatFollowsAResultIsInItsCommit", "TestWhatFollowsIsOfTheSameCommit"},
	"pb-045": {"needs: postgres"},
	"pb-046": {"TestACancelDuringTheWaitForANewRunHoldsAtOnce", "TestCancelInBackoff"},
	"pb-047": {"TestAKeyLeadsToOneDelegation"},
	"pb-048": {"TestAPlaneThatComesBackLeavesLeasesTheirTime"},
	"pb-049": {"service/journal/sqlite:TestUrgentGoesFirst", "TestWhatPressesGoesFirst"},
	"pb-050": {"service/journal/sqlite:TestStore"}, // its writers, and what a view refuses
	"pb-051": {"TestRowsOfEveryStateOutliveAnUpgrade"},
	"pb-052": {"TestWorkThatNobodyCanDoUsesNoAttempt"},
	"pb-053": {"TestAReplayIsAnsweredAsItWasAndChangesNothing"},
	"pb-054": {"TestWhatFellAtOnceDoesNotComeBackAtOnce"},
	"pb-055": {"TestAWorkerThatAbandonsItsRunsFreesThemAtOnce", "adaptors/worker:TestPB055AbandoningIsSaid"},
}

// TestEveryCaseIsTriedSomewhere holds the table against the cases and against the tests.
func TestEveryCaseIsTriedSomewhere(t *testing.T) {
	b, err := os.ReadFile("testdata/plane-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ ID, Condition string }
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, c := range all {
		ids = append(ids, c.ID)
		if len(cases[c.ID]) == 0 {
			t.Errorf("%s is tried nowhere: %s", c.ID, c.Condition)
		}
	}
	tests := make(map[string][]string) // by folder
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for id, places := range cases {
		if !slices.Contains(ids, id) {
			t.Errorf("%s is no case", id)
		}
		for _, place := range places {
			if strings.HasPrefix(place, "needs: ") {
				continue
			}
			folder, name, elsewhere := strings.Cut(place, ":")
			if !elsewhere {
				folder, name = "service/plane", place
			}
			if tests[folder] == nil {
				files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range files {
					b, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					for _, m := range function.FindAllSubmatch(b, -1) {
						tests[folder] = append(tests[folder], string(m[1]))
					}
				}
			}
			if !slices.Contains(tests[folder], name) {
				t.Errorf("%s: there is no %s in %s", id, name, folder)
			}
		}
	}
}
