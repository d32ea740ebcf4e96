package ops

import (
	"slices"
	"time"
)

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
		Summary: "Send a message to an agent, a person or a room; an agent is woken by it.",
		Params: Params{
			{Name: "to", Type: Pattern, Pattern: `#?[a-z0-9][a-z0-9._-]{0,63}|[a-z][a-z0-9-]{0,31}[#@][A-Za-z0-9][A-Za-z0-9._:+=-]{0,127}`, Max: 192,
				Doc: "An identity; a room as #NAME; or a room or a person of a chat adaptor as ADAPTOR#ROOM or ADAPTOR@USER."},
			{Name: "text", Type: Text, Max: MaxText, Doc: "The message."},
			{Name: "thread", Type: Pattern, Pattern: `t-[0-9a-z]{26}`, Max: 28, Optional: true, Doc: "A thread of that room; absent, a new one is begun."},
		},
		Catalog: &Catalog{Label: "Send a message", Group: "chat", Input: "text/plain", Output: "application/json"},
	}
}

// MaxTimerOps is how many ops a timer may declare.
const MaxTimerOps = 32

// CronCreate is the op that makes a timer.
func CronCreate() Op {
	return Op{
		Name: "cron.create", Aliases: []OpName{"cron"}, Provider: NativeProvider, SideEffecting: true,
		Summary: "Make a timer that wakes an agent with a prompt.",
		Params: Params{
			{Name: "name", Type: Text, Max: 128, Doc: "What the timer is called, for people."},
			{Name: "schedule", Type: Text, Max: 128, Doc: "Five cron fields, a descriptor such as @daily, or @every DURATION."},
			{Name: "agent", Type: Pattern, Pattern: `[a-z0-9][a-z0-9._-]{0,63}`, Max: 64, Optional: true, Doc: "Whom it wakes; absent, the caller."},
			{Name: "prompt", Type: Text, Max: 16 << 10, Doc: "The errand."},
			{Name: "zone", Type: Pattern, Pattern: `[A-Za-z][A-Za-z0-9_+/-]{0,63}`, Max: 64, Optional: true, Doc: "An IANA time zone; absent, UTC."},
			{Name: "jitter", Type: Duration, Max: int64(time.Hour), Optional: true, Doc: "A run comes at most this much later, by chance."},
			{Name: "until", Type: Text, Max: 40, Optional: true, Doc: "RFC 3339; no run begins after it."},
			{Name: "max_runs", Type: Int, Min: 1, Max: 1_000_000, Optional: true, Doc: "How often it runs at most."},
			{Name: "overlap", Type: Enum, Values: []string{"skip", "queue", "allow"}, Optional: true, Doc: "What becomes of a run that is due while the last one's wake is open; absent, skip."},
			{Name: "missed", Type: Enum, Values: []string{"skip", "once", "all"}, Optional: true, Doc: "What becomes of runs that were due while no gateway ran; absent, once."},
			{Name: "ops", Type: Names, Max: MaxTimerOps, Optional: true, Doc: "Ops that the wake may run unasked; absent, none that write."},
			{Name: "deadline", Type: Duration, Min: int64(time.Minute), Max: int64(7 * 24 * time.Hour), Optional: true, Doc: "How long the agent has; absent, an hour."},
		},
		Catalog: &Catalog{Label: "Make a timer", Group: "timers", Output: "application/json"},
	}
}

// CronCancel is the op that ends a timer.
func CronCancel() Op {
	return Op{
		Name: "cron.cancel", Provider: NativeProvider, SideEffecting: true,
		Summary: "End a timer; what it has woken goes on.",
		Params: Params{
			{Name: "timer", Type: Pattern, Pattern: `tm-[0-9a-z]{26}`, Max: 29, Doc: "The timer's id."},
			{Name: "reason", Type: Text, Max: 500, Optional: true, Doc: "Why, for people."},
		},
		Catalog: &Catalog{Label: "End a timer", Group: "timers", Output: "application/json"},
	}
}
