package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"inband/exec/command"
	"inband/ops"
)

// receiptLines are what a call's receipt says, for people. One that is not of a command op
// is shown as it is.
func receiptLines(raw json.RawMessage) [][2]string {
	var r command.Receipt
	if err := json.Unmarshal(raw, &r); err != nil || r.Program.Path == "" {
		return [][2]string{{"receipt", string(raw)}}
	}
	var lines [][2]string
	line := func(name, format string, args ...any) {
		lines = append(lines, [2]string{name, fmt.Sprintf(format, args...)})
	}
	program := r.Program.Path
	if r.Program.File != "" && r.Program.File != r.Program.Path {
		program += " (" + r.Program.File + ")"
	}
	line("program", "%s", strings.TrimSpace(program+" "+labelled("sha256:", r.Program.SHA256)))
	if r.Argv != nil {
		argv, err := json.Marshal(r.Argv)
		if err == nil {
			line("argv", "%s", argv)
		}
	}
	line("op was", "%s", r.Definition)
	if len(r.Credentials) > 0 {
		line("secrets", "%s", join(r.Credentials))
	}
	if !r.Started {
		line("ran", "no")
		return lines
	}
	line("ran", "%s, %s to %s, %d ms", ending(&r), r.StartedAt, r.EndedAt, r.DurationMS)
	line("stdout", "%s", streamLine(r.Stdout))
	line("stderr", "%s", streamLine(r.Stderr))
	if r.Truncated {
		line("kept", "not all of the output")
	}
	if r.Blotted > 0 {
		line("blotted", "a secret was taken out of the output at %s", count(int64(r.Blotted), "place"))
	}
	if r.LeftBehind != nil {
		line("left", "%s were alive at the end and killed", strings.Join(r.LeftBehind, ", "))
	}
	if r.Survivors > 0 {
		line("survived", "%s could not be killed", count(int64(r.Survivors), "descendant"))
	}
	for _, c := range r.Checks {
		held := "held"
		if !c.Held {
			held = "did not hold"
		}
		if c.Exit != nil {
			line("check", "exit code %v %s", c.Exit, held)
		} else {
			line("check", "stdout %q %s", c.Stdout, held)
		}
	}
	if r.Unconfined {
		line("sandbox", "none, as the op file and the gateway's configuration say")
	}
	if r.Layers != nil {
		who := r.Layers.RunAs
		line("run as", "%s", strings.TrimSpace(fmt.Sprintf("%s %d:%d", who.Name, who.UID, who.GID)))
		if layers, err := json.Marshal(r.Layers); err == nil {
			line("layers", "%s", layers)
		}
	}
	return lines
}

// ending is how a program that ran ended.
func ending(r *command.Receipt) string {
	how := ""
	switch {
	case r.Unknown != "":
		how = "end not known: " + r.Unknown
	case r.Signal != "":
		how = "signal " + r.Signal
	case r.ExitCode != nil:
		how = fmt.Sprintf("exit code %d", *r.ExitCode)
	}
	if r.Stopped != "" {
		how += " (stopped: " + string(r.Stopped) + ")"
	}
	return how
}

func streamLine(s command.ReceiptStream) string {
	return strings.TrimSpace(count(s.Bytes, "byte") + " " + labelled("sha256:", s.SHA256))
}

func labelled(label, s string) string {
	if s == "" {
		return ""
	}
	return label + s
}

func join(refs []ops.CredentialRef) string {
	words := make([]string, len(refs))
	for i, ref := range refs {
		words[i] = string(ref)
	}
	return strings.Join(words, ", ")
}
