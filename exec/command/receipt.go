package command

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/ops"
)

// Receipt is the account of one execution, whatever came of it: what was started with
// what, as whom and confined by what, and how it ended. It holds no secret, and of the
// output its size and digest only.
type Receipt struct {
	Op ops.OpName `json:"op"`
	// Definition is the digest of the op's definition, as the list of ops shows it.
	Definition string `json:"definition"`
	// Argv is the words of the program as they were handed over.
	Argv    []string       `json:"argv"`
	Program ReceiptProgram `json:"program"`
	// Credentials are the references that were resolved for the program.
	Credentials []ops.CredentialRef `json:"credentials,omitempty"`
	// Layers is what confined the program; nil if nothing was started.
	Layers *sandbox.Layers `json:"layers,omitempty"`
	// Unconfined says that the op file and the gateway's configuration waived the
	// sandbox.
	Unconfined bool `json:"unconfined,omitempty"`
	// Started says whether the program ran at all. What follows is empty if it did not.
	Started    bool   `json:"started"`
	StartedAt  string `json:"started_at,omitempty"` // RFC 3339, UTC, milliseconds
	EndedAt    string `json:"ended_at,omitempty"`
	DurationMS int64  `json:"duration_ms"`
	// ExitCode is nil when a signal ended the program or its end is not known.
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"`
	// Stopped is why the gateway ended the program: deadline or cancelled.
	Stopped proc.Stop `json:"stopped,omitempty"`
	// Unknown is why the end of the program is not known.
	Unknown string        `json:"unknown,omitempty"`
	Stdout  ReceiptStream `json:"stdout"`
	Stderr  ReceiptStream `json:"stderr"`
	// Truncated says that not all of the output was kept.
	Truncated bool `json:"truncated"`
	// Blotted counts the places of the kept output where a secret was taken out.
	Blotted int `json:"blotted"`
	// LeftBehind names processes, at most 8, that outlived the program and were killed;
	// Survivors counts those that could not be.
	LeftBehind []string        `json:"left_behind,omitempty"`
	Survivors  int             `json:"survivors,omitempty"`
	Checks     []ReceiptedTest `json:"checks,omitempty"`
	// Published are the files that were kept.
	Published []ops.Published `json:"published,omitempty"`
	// Fault is the code of the fault that the call ended in.
	Fault ops.Code `json:"fault,omitempty"`
}

// ReceiptProgram is the file that was executed.
type ReceiptProgram struct {
	Path   string `json:"path"`             // as the op file names it
	File   string `json:"file,omitempty"`   // what that led to, without links
	SHA256 string `json:"sha256,omitempty"` // in hex
}

// ReceiptStream is one output of the program.
type ReceiptStream struct {
	Bytes int64 `json:"bytes"` // that it wrote
	// SHA256 is over all of them, in hex. It is left out where a secret was taken out, or
	// may be in what was dropped: the digest would be one of the secret.
	SHA256 string `json:"sha256,omitempty"`
}

// ReceiptedTest is a check of the op and whether it held.
type ReceiptedTest struct {
	ops.Check
	Held bool `json:"held"`
}

// receipt begins the receipt of a call.
func (e *executor) receipt() *Receipt {
	return &Receipt{Op: e.op.Name, Definition: e.digest, Program: ReceiptProgram{Path: e.op.Command.Argv[0].Word}, Unconfined: e.op.Command.Unconfined}
}

// ended adds how the program ended, with digests of its output unless one is of a secret.
func (r *Receipt) ended(res proc.Result, blotted int, digests bool) {
	r.Started = true
	r.StartedAt, r.EndedAt = ops.Stamp(res.Started), ops.Stamp(res.Ended)
	r.DurationMS = res.Ended.Sub(res.Started).Milliseconds()
	switch {
	case res.Unknown:
		r.Unknown = res.Why
	case res.Signal != 0:
		r.Signal = res.Signal.String()
	default:
		r.ExitCode = &res.Exit
	}
	r.Stopped = res.Stopped
	r.Stdout.Bytes, r.Stderr.Bytes = res.Stdout.Total(), res.Stderr.Total()
	if digests {
		r.Stdout.SHA256, r.Stderr.SHA256 = hex.EncodeToString(res.Stdout.SHA256[:]), hex.EncodeToString(res.Stderr.SHA256[:])
	}
	r.Truncated, r.Blotted = res.Truncated(), blotted
	r.LeftBehind, r.Survivors = res.LeftBehind, res.Survivors
}

// attach puts r into o.
func (r *Receipt) attach(o ops.Outcome) ops.Outcome {
	if o.Fault != nil {
		r.Fault = o.Fault.Code
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("command: a receipt that is no JSON value: %v", err)) // strings and numbers
	}
	o.Receipt = b
	return o
}

// took is how long a run took, for people.
func took(res proc.Result) time.Duration { return res.Ended.Sub(res.Started).Round(time.Millisecond) }
