package envelope

import (
	"time"

	"inband/ops"
)

// Parked says that call waits for an approval, by which rule, and what an approver writes
// in its thread to decide it: y CODE or n CODE. It is one line.
func Parked(call ops.Call, approval, code string, expires time.Time, rule string) string {
	return Note("%s (%s) waits for a person, by %s: approval %s, until %s. Nothing has run. An approver may answer y %s, or n %s and why.",
		string(call.Op), string(call.ID), rule, approval, ops.Stamp(expires), code, code)
}
