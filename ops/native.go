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
		"threads", "calls", "approvals", "outbox", "timers", "jobs", "workers", "delegations", "plane", "artifacts", "audit"}
	// ReadsOfOne take the id of one thing.
	ReadsOfOne = []string{"op", "agent", "thread", "call", "timer", "job", "delegation", "worker", "artifact"}
)

// Natives are all native ops, with every read that box.exec may have. Their names and
// aliases are no other op's.
func Natives() []Op {
	return []Op{ToolsList(), BoxExec(slices.Concat(PlainReads, ReadsOfOne)), DMSend(), CronCreate(), CronCancel(), SwarmSpawn(), SwarmCancel()}
}

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

// Bounds on what swarm.spawn hands out.
const (
	// MaxSpawnDeadline is the longest that a delegation may take.
	MaxSpawnDeadline = 7 * 24 * time.Hour
	// MaxRetries is the most new runs that may follow failures of one class.
	MaxRetries = 16
	// MaxProvenance bounds each part of an instruction beside the task, in bytes.
	MaxProvenance = 16 << 10
)

// SwarmSpawn is the op that hands work to a worker (plane.md, principle 2). Its call is
// accepted, and settled when the delegation closes.
func SwarmSpawn() Op {
	retries := func(name, doc string) Param {
		return Param{Name: name, Type: Int, Max: MaxRetries, Optional: true, Doc: doc}
	}
	part := func(name, doc string) Param {
		return Param{Name: name, Type: Text, Max: MaxProvenance, Optional: true, Doc: doc}
	}
	return Op{
		Name: "swarm.spawn", Aliases: []OpName{"swarm"}, Provider: NativeProvider, SideEffecting: true,
		Summary: "Hand work to a worker; it is done only when a separate verifier says so.",
		Params: Params{
			{Name: "task", Type: Text, Max: MaxText, Doc: "What is to be done."},
			{Name: "implementation", Type: Pattern, Pattern: `[a-z0-9][a-z0-9._-]{0,63}`, Max: 64, Optional: true, Doc: "Which kind of worker; absent, default."},
			{Name: "source", Type: Object, Optional: true, Doc: "What is worked on.", Fields: Params{
				{Name: "revision", Type: Pattern, Pattern: `[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*`, Max: 256, Doc: "The digest of a tar archive among the artifacts, or a revision that the worker's repository knows."},
				{Name: "worktree", Type: Pattern, Pattern: `h1:[A-Za-z0-9+/]{43}=`, Max: 47, Optional: true, Doc: "The digest of the tree that it must be."},
			}},
			{Name: "instruction", Type: Object, Optional: true, Doc: "Where the task comes from, each part by itself.", Fields: Params{
				part("original", "The human's own words."),
				part("inferred", "The goal as you understood it."),
				part("context", "What you added."),
				part("verification", "How it is to be verified, in words."),
			}},
			{Name: "artifacts", Type: Strings, Max: 32, Optional: true, Doc: "The names of files that must be returned, relative paths."},
			{Name: "verify", Type: Object, Optional: true, Doc: "How the verifier tries the result.", Fields: Params{
				{Name: "command", Type: Strings, Min: 1, Max: 64, Doc: "A program and its words; it passes with exit code 0."},
			}},
			{Name: "deadline", Type: Duration, Min: int64(time.Second), Max: int64(MaxSpawnDeadline), Optional: true, Doc: "How long it may take; absent, an hour."},
			{Name: "retries", Type: Object, Optional: true, Doc: "How many new runs may follow failures of a class.", Fields: Params{
				retries("worker_lost", "The worker, or the way to it, is gone; absent, 2."),
				retries("window", "Its time was used up; absent, 0."),
				retries("human", "A person said that it cannot go on; absent, 0."),
				retries("invalid_result", "The verifier found it wrong; absent, 1."),
				retries("unknown_external", "Nobody knows what it did outside; absent, 0."),
				retries("task_failed", "The worker said that it failed; absent, 0."),
			}},
			{Name: "capabilities", Type: Strings, Max: 16, Pattern: `[a-z0-9][a-z0-9._-]{0,63}`, Optional: true, Doc: "What the worker must be able to do."},
			{Name: "credentials", Type: Strings, Max: 16, Pattern: `(?:file|env|systemd):[A-Za-z0-9_][A-Za-z0-9._-]{0,99}`, Optional: true, Doc: "References of credentials, which the worker resolves; never secrets."},
		},
		Catalog: &Catalog{Label: "Hand out work", Group: "work", Output: "application/json"},
	}
}

// SwarmCancel is the op that stops a delegation (plane.md, principle 6).
func SwarmCancel() Op {
	return Op{
		Name: "swarm.cancel", Provider: NativeProvider, SideEffecting: true,
		Summary: "Stop a delegation; it counts as cancelled when that is proved.",
		Params: Params{
			{Name: "delegation", Type: Pattern, Pattern: `d-[0-9a-z]{26}`, Max: 28, Doc: "The delegation's id."},
			{Name: "grace", Type: Duration, Max: int64(time.Hour), Optional: true, Doc: "How long its worker has to end tidily; absent, 30s."},
		},
		Catalog: &Catalog{Label: "Stop work", Group: "work", Output: "application/json"},
	}
}
