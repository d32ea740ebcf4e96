package command

import (
	"fmt"
	"regexp"
	"slices"

	"inband/exec/proc"
	"inband/ops"
)

// check is one condition on a run, ready to be tried.
type check struct {
	ops.Check
	stdout *regexp.Regexp
}

// compileChecks readies the checks of an op. Unless one is of the exit code, 0 is.
func compileChecks(checks []ops.Check) ([]check, error) {
	var all []check
	exit := false
	for _, c := range checks {
		ready := check{Check: c}
		exit = exit || c.Exit != nil
		if c.Exit == nil {
			var err error
			if ready.stdout, err = regexp.Compile(c.Stdout); err != nil {
				return nil, fmt.Errorf("its check of stdout: %w", err)
			}
		}
		all = append(all, ready)
	}
	if !exit {
		all = append([]check{{Check: ops.Check{Exit: []int{0}}}}, all...)
	}
	return all, nil
}

// try tries the checks of the op on a run, nil for one that did not end by itself. An
// expression is looked for in what was kept before and after what was dropped, and not
// across.
func (e *executor) try(res proc.Result) []ReceiptedTest {
	if res.Unknown || res.Signal != 0 || res.Stopped != proc.NotStopped {
		return nil
	}
	var tried []ReceiptedTest
	for _, c := range e.checks {
		held := slices.Contains(c.Exit, res.Exit)
		if c.stdout != nil {
			held = c.stdout.Match(res.Stdout.Head) || res.Stdout.Dropped > 0 && c.stdout.Match(res.Stdout.Tail)
		}
		tried = append(tried, ReceiptedTest{c.Check, held})
	}
	return tried
}

// failedCheck is the fault of a run of which c did not hold.
func failedCheck(op ops.OpName, c ops.Check, res proc.Result) *ops.Fault {
	if c.Exit != nil {
		return ops.Faultf(ops.OpFailed, "op %s failed with exit code %d%s", op, res.Exit, lastLine(res.Stderr)).
			With("check", map[string]any{"exit": c.Exit})
	}
	return ops.Faultf(ops.OpFailed, "op %s ended with exit code %d, but what it wrote is not what the op wants", op, res.Exit).
		With("check", map[string]any{"stdout": c.Stdout})
}
