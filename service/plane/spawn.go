package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// What a spawn that leaves them out has.
const (
	StandardImplementation = "default"
	StandardDeadline       = time.Hour
)

// MaxOpen bounds the delegations of one identity, other than an operator, that are open at a
// time: an agent that hands out work for whatever it is woken by comes to an end.
const MaxOpen = 256

// Ops returns swarm.spawn and swarm.cancel over p. Their whole effect is in the journal, in
// the transaction that writes their outcome.
func (p *Plane) Ops() []ops.Bound {
	return []ops.Bound{
		{Op: ops.SwarmSpawn(), Executor: inTx(p.spawn)},
		{Op: ops.SwarmCancel(), Executor: inTx(p.cancelTx)},
	}
}

// inTx is an executor that runs in the transaction of its call.
type inTx func(journal.Tx, ops.Call) (ops.Outcome, error)

var _ service.Transactional = inTx(nil)

// Execute is never used: the door calls ExecuteTx of a Transactional.
func (inTx) Execute(context.Context, ops.Call) (ops.Outcome, error) {
	return ops.Outcome{}, errors.New("ops of the plane run in a transaction")
}

// ExecuteTx calls f.
func (f inTx) ExecuteTx(tx journal.Tx, c ops.Call) (ops.Outcome, error) { return f(tx, c) }

// spawnParams are the parameters of swarm.spawn.
type spawnParams struct {
	Task           string
	Implementation string
	Source         struct{ Revision, Worktree string }
	Instruction    struct{ Original, Inferred, Context, Verification string }
	Artifacts      []string
	Verify         struct{ Command []string }
	Deadline       string
	Retries        Budget
	Capabilities   []string
	Credentials    []ops.CredentialRef
}

// spawn makes a delegation with its first dispatch. The call stays accepted until the
// delegation closes.
func (p *Plane) spawn(tx journal.Tx, c ops.Call) (ops.Outcome, error) {
	var q spawnParams
	if err := json.Unmarshal(c.Params, &q); err != nil {
		return ops.Outcome{}, fmt.Errorf("parameters of swarm.spawn: %w", err)
	}
	state, err := switchedTo(tx)
	if err != nil {
		return ops.Outcome{}, err
	}
	if state != On {
		return ops.Outcome{}, ops.Faultf(ops.PlaneOff, "dispatch is %s, so nothing was handed out; an operator turns it on with box plane on", state).With("state", state)
	}
	if c.By.Role != ops.Operator {
		open := 0
		if err := tx.Query(`SELECT count(*) FROM delegation WHERE by_id = $1 AND closed_at IS NULL`, func(scan func(...any) error) error { return scan(&open) }, string(c.By.ID)); err != nil {
			return ops.Outcome{}, err
		}
		if open >= MaxOpen {
			return ops.Outcome{}, ops.Faultf(ops.OverLimit, "%d delegations of %s are open, of %d at most; wait for some, or cancel some with swarm.cancel", open, c.By.ID, MaxOpen).
				With("open", open).With("max", MaxOpen)
		}
	}
	now := tx.Now()
	d, canonical, err := delegated(c, q, now)
	if err != nil {
		return ops.Outcome{}, err
	}
	if d.revision != "" {
		fault, err := p.maySource(tx, c.By, d.revision)
		if err != nil {
			return ops.Outcome{}, err
		}
		if fault != nil {
			return ops.Outcome{}, fault
		}
	}
	if _, err := tx.Exec(`INSERT INTO instruction (digest, body) VALUES ($1, $2) ON CONFLICT (digest) DO NOTHING`, d.instruction, string(canonical)); err != nil {
		return ops.Outcome{}, err
	}
	d.grace = p.CancelGrace
	if err := d.insert(tx); err != nil {
		return ops.Outcome{}, err
	}
	r := runRow{delegation: d.id, attempt: 1, implementation: d.implementation, notBefore: now, deadline: d.deadline}
	if err := p.insertRun(tx, &r, now); err != nil {
		return ops.Outcome{}, err
	}
	failpoint.Here("plane.spawned")
	if p.notices != nil {
		if err := p.notices.Begun(tx, c, d.id); err != nil {
			return ops.Outcome{}, err
		}
	}
	return ops.Outcome{State: ops.Accepted}, event(tx, "delegation/"+d.id, "delegation.spawned", map[string]any{
		"delegation": d.id, "run": r.run, "call": c.ID, "by": c.By, "implementation": d.implementation, "capabilities": d.capabilities,
		"instruction": d.instruction, "revision": d.revision, "worktree": d.worktree, "deadline": ops.Stamp(d.deadline), "due_ms": dueMS(r.dueAt),
	})
}

// delegated is the delegation that c asks for, with its instruction in canonical form, or a
// fault that says what is wrong with it.
func delegated(c ops.Call, q spawnParams, now time.Time) (d delegationRow, canonical []byte, err error) {
	instruction := wire.Instruction{Original: q.Instruction.Original, Inferred: q.Instruction.Inferred, Context: q.Instruction.Context,
		Verification: q.Instruction.Verification, Task: q.Task}
	if strings.TrimSpace(q.Task) == "" {
		return d, nil, badParam("/task", "is empty", "what is to be done, in words")
	}
	for i, file := range q.Artifacts {
		if artifacts.CheckName(file) != nil {
			return d, nil, badParam(fmt.Sprintf("/artifacts/%d", i), "is no name of a file", fmt.Sprintf("a clean relative path such as out/report.md, of at most %d bytes", artifacts.MaxName))
		}
	}
	for i, word := range q.Verify.Command {
		if i == 0 && word == "" || strings.ContainsRune(word, 0) {
			return d, nil, badParam(fmt.Sprintf("/verify/command/%d", i), "cannot be run", "a program and its words, without NUL")
		}
	}
	deadline := StandardDeadline
	if q.Deadline != "" {
		if deadline, err = time.ParseDuration(q.Deadline); err != nil {
			return d, nil, badParam("/deadline", "is no duration", "a duration such as 90s or 2h")
		}
	}
	budget := DefaultBudget()
	for class, n := range q.Retries {
		budget[class] = min(n, MaxRetries)
	}
	raw, err := json.Marshal(instruction)
	if err != nil {
		return d, nil, fmt.Errorf("instruction: %w", err)
	}
	canonical, fault := ops.Canonical(raw)
	if fault != nil {
		return d, nil, fault
	}
	d = delegationRow{
		id: newID("d-"), call: c.ID, by: c.By, thread: c.From.Thread, implementation: q.Implementation, revision: q.Source.Revision, worktree: q.Source.Worktree,
		instruction: wire.Digest(canonical), capabilities: q.Capabilities, credentials: q.Credentials, outputs: q.Artifacts, verify: q.Verify.Command,
		retries: budget, used: Budget{}, state: Open, attempts: 1, deadline: now.Add(deadline), createdAt: now,
	}
	if c.From.Answer != nil {
		d.thread = c.From.Answer.Opaque
	}
	if d.implementation == "" {
		d.implementation = StandardImplementation
	}
	return d, canonical, nil
}

// insert writes d for the first time.
func (d *delegationRow) insert(tx journal.Tx) error {
	_, err := tx.Exec(`INSERT INTO delegation (id, call, by_id, by_role, thread, implementation, revision, worktree, instruction, capabilities, credentials, outputs, verify,
			retries, used, state, attempts, last_fence, verifications, cancel, cancel_by, cancel_reason, grace_ms, answer, reason, deadline, version, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, '{}', 'OPEN', 1, 0, 0, 0, '', '', $15, '', '', $16, 1, $17)`,
		d.id, string(d.call), string(d.by.ID), string(d.by.Role), d.thread, d.implementation, d.revision, d.worktree, d.instruction, column(d.capabilities),
		column(d.credentials), column(d.outputs), column(d.verify), budgetColumn(d.retries), d.grace.Milliseconds(), milli(d.deadline), milli(d.createdAt))
	return err
}

func budgetColumn(b Budget) string {
	j, err := json.Marshal(b)
	if err != nil {
		panic(err) // of numbers
	}
	return string(j)
}

// insertRun writes r for the first time, as a dispatch that waits to be taken.
func (p *Plane) insertRun(tx journal.Tx, r *runRow, now time.Time) error {
	r.dispatch, r.run = newID("x-"), newID("r-")
	r.idemKey, r.state, r.createdAt, r.version = r.run, Dispatched, now, 1
	r.dueAt, _ = Due(Snapshot{Run: r.known()}, p.Stall)
	_, err := tx.Exec(`INSERT INTO dispatch (id, run, delegation, attempt, implementation, state, not_before, deadline, proof, seq, prev, progress, pid, pid_start, class, reason,
			summary, question, due_at, version, created_at, idem_key) VALUES ($1, $2, $3, $4, $5, 'DISPATCHED', $6, $7, '', 0, '', 0, 0, '', '', '', '', '', $8, 1, $9, $10)`,
		r.dispatch, r.run, r.delegation, int64(r.attempt), r.implementation, milli(r.notBefore), milli(r.deadline), milli(r.dueAt), milli(now), r.idemKey)
	return err
}

// Bounds of the wait before a new run.
const (
	firstBackoff = time.Second
	lastBackoff  = 5 * time.Minute
)

// newRun makes the next attempt, which begins after a wait that doubles with each of its
// class, with jitter, and at a second that has room for one more start.
func (p *Plane) newRun(tx journal.Tx, h *held, e Event, effect Effect) error {
	now := tx.Now()
	r := runRow{delegation: h.delegation.id, attempt: effect.Attempt, implementation: h.delegation.implementation, notBefore: now, deadline: h.run.deadline}
	if effect.Class == Window || e.Kind == OnRetryDemanded {
		// The time of the last attempt is used up, or somebody gives it more.
		r.deadline = now.Add(h.delegation.deadline.Sub(h.delegation.createdAt))
	}
	if e.Kind != OnRetryDemanded {
		var err error
		if r.notBefore, err = p.slot(tx, r.implementation, now.Add(backoff(h.delegation.used[effect.Class]))); err != nil {
			return err
		}
	}
	if err := p.insertRun(tx, &r, now); err != nil {
		return err
	}
	failpoint.Here("plane.new-run")
	return event(tx, "delegation/"+h.delegation.id, "run.dispatched", map[string]any{
		"delegation": h.delegation.id, "run": r.run, "attempt": r.attempt, "implementation": r.implementation, "capabilities": h.delegation.capabilities,
		"after": h.run.run, "class": effect.Class, "not_before": ops.Stamp(r.notBefore), "due_ms": dueMS(earlier(r.dueAt, r.notBefore)),
	})
}

// backoff is how long the nth new run of a class waits, between a half and one and a half
// of what is doubled each time.
func backoff(n int) time.Duration {
	d := firstBackoff << min(max(n-1, 0), 16)
	d = min(d, lastBackoff)
	return d/2 + rand.N(d)
}

// slot takes the first second from at on in which fewer runs of an implementation begin than
// may. It is the moment itself if that second has room.
func (p *Plane) slot(tx journal.Tx, implementation string, at time.Time) (time.Time, error) {
	first := at.Unix()
	for second := first; ; second++ {
		n, err := tx.Exec(`INSERT INTO start_slot (implementation, second, n) VALUES ($1, $2, 1)
				ON CONFLICT (implementation, second) DO UPDATE SET n = start_slot.n + 1 WHERE start_slot.n < $3`, implementation, second, int64(p.StartsPerSecond))
		if err != nil {
			return time.Time{}, err
		}
		switch {
		case n == 1 && second == first:
			return at, nil
		case n == 1:
			return time.Unix(second, rand.N(int64(time.Second))).UTC().Truncate(time.Millisecond), nil
		}
	}
}
