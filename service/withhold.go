package service

import (
	"encoding/json"

	"inband/ops"
	"inband/service/access"
)

// Told returns what by, whose call has outcome o, is told of it, and whether that is
// less than all: the policy may let somebody run an op and keep from them what it said.
// Whoever answers a caller, or posts for one, asks this first.
func Told(p *access.Policy, by ops.Identity, o ops.Outcome) (told ops.Outcome, withheld bool) {
	if o.State == ops.Refused || p.Decide(access.Request{By: by, Action: access.Output, Owner: by.ID}).Allowed {
		return o, false // a refusal is our own word
	}
	return withoutOutput(o), true
}

// withoutOutput is how a call ended without anything that it said: its state, the code
// of its fault, and how its process ended if it was one.
func withoutOutput(o ops.Outcome) ops.Outcome {
	told := ops.Outcome{State: o.State}
	if o.Result != nil {
		left := map[string]any{"withheld": true}
		var process struct {
			ExitCode *int `json:"exit_code"`
		}
		if json.Unmarshal(o.Result.Value, &process) == nil && process.ExitCode != nil {
			left["exit_code"] = *process.ExitCode
		}
		told.Result = ops.NewResult(left, "")
	}
	if o.Fault != nil {
		f := ops.Faultf(o.Fault.Code, "%s", o.Fault.Code.Info().Meaning)
		f.Retryable = o.Fault.Retryable
		for _, name := range []string{"exit_code", "signal", "started", "call"} {
			if v, ok := o.Fault.Details[name]; ok {
				f = f.With(name, v)
			}
		}
		told.Fault = f
	}
	return told
}
