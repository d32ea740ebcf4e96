package ops

import "slices"

// NativeProvider owns the ops whose logic is Go.
const NativeProvider = "box"

// Reads are the actions of box.exec, in the order of the documentation. Each is
// offered once the subsystem that answers it exists.
var (
	// PlainReads take no argument.
	PlainReads = []string{"status", "health", "version", "uptime", "config", "ops", "providers", "adaptors", "agents",
		"threads", "calls", "approvals", "outbox", "timers", "jobs", "workers", "delegations", "artifacts", "audit"}
	// ReadsOfOne take the id of one thing.
	ReadsOfOne = []string{"op", "agent", "thread", "call", "timer", "job", "delegation", "artifact"}
)

// ToolsList is the op that tells a caller what there is (decision D5).
func ToolsList() Op {
	return Op{
		Name: "tools.list", Aliases: []OpName{"tools"}, Provider: NativeProvider,
		Summary: "List every op with its parameters, whether it has side effects, and whether you may run it.",
		Catalog: &Catalog{Label: "List ops", Group: "discovery", Output: "application/json"},
	}
}

// BoxExec is the op that reads the gateway's own state (decision D2). actions
// are the reads that exist in this gateway, out of PlainReads and ReadsOfOne.
func BoxExec(actions []string) Op {
	return Op{
		Name: "box.exec", Aliases: []OpName{"box"}, Provider: NativeProvider,
		Summary: "Read the gateway's own state: an action, and the id of one thing where the action takes one.",
		Params: Params{
			{Name: "action", Type: Enum, Values: slices.Clone(actions), Doc: "What to read."},
			{Name: "arg", Type: Pattern, Pattern: `[A-Za-z0-9_][A-Za-z0-9_.:/-]*`, Max: 256, Optional: true, Doc: "The id of one thing, for the actions that take one."},
		},
		Catalog: &Catalog{Label: "Read the gateway", Group: "discovery", Output: "application/json"},
	}
}

// DMSend is the op that writes to an agent or a room.
func DMSend() Op {
	return Op{
		Name: "dm.send", Aliases: []OpName{"dm"}, Provider: NativeProvider, SideEffecting: true,
		Summary: "Send a message to an agent or a room.",
		Params: Params{
			{Name: "to", Type: Pattern, Pattern: `#?[a-z0-9][a-z0-9._-]{0,63}`, Max: 65, Doc: "An identity, or a room as #NAME."},
			{Name: "text", Type: Text, Max: MaxText, Doc: "The message."},
			{Name: "thread", Type: Pattern, Pattern: `t-[0-9a-z]{26}`, Max: 28, Optional: true, Doc: "A thread of that room; absent, a new one is begun."},
		},
		Catalog: &Catalog{Label: "Send a message", Group: "chat", Input: "text/plain", Output: "application/json"},
	}
}
