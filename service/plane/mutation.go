package plane

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// MutationState is what is known of a change outside.
type MutationState string

// The states of a mutation. Between Intended and the others lies what nobody knows.
const (
	Intended MutationState = "INTENDED" // it may or may not have happened
	Done     MutationState = "DONE"     // proved to have happened
	Absent   MutationState = "ABSENT"   // proved not to have happened
)

// Bounds of what is said of a mutation, in bytes.
const (
	maxMutationKey = 256
	maxAction      = 1 << 10
	maxProof       = 4 << 10
	maxUnproven    = 20 // keys that a fault names
)

// intend writes down, before it is tried, that h's run is to change something outside. The
// key that the outside knows the change by is used once in the life of the store, whatever
// became of it: where it is not known whether something has happened, the same key again
// could do it twice, or be answered with what another run did. KeyReused says so. It is
// called once Step has taken the event, in its transaction.
func (p *Plane) intend(tx journal.Tx, h *held, m wire.MutationIntended) (*ops.Fault, error) {
	switch {
	case m.Key == "" || !line(m.Key, maxMutationKey):
		return ops.Faultf(ops.InvalidParams, "the key of a mutation: want one line of 1 to %d bytes", maxMutationKey).With("final", true).With("pointer", "/key"), nil
	case strings.TrimSpace(m.Action) == "" || !words(m.Action, maxAction):
		return ops.Faultf(ops.InvalidParams, "the action of a mutation: want text of 1 to %d bytes for people", maxAction).With("final", true).With("pointer", "/action"), nil
	}
	n, err := tx.Exec(`INSERT INTO mutation (external, delegation, run, action, state, proof, intended_at) VALUES ($1, $2, $3, $4, 'INTENDED', '', $5)
			ON CONFLICT (external) DO NOTHING`, m.Key, h.delegation.id, h.run.run, m.Action, tx.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return ops.Faultf(ops.KeyReused, "this key was used for a mutation before, and none is used again; make another one").With("final", true), nil
	}
	return nil, nil
}

// prove writes down what the owner of h's run says has become of a mutation of that run.
// NotFound is a mutation that the run has not intended, Conflict one that was proved to be
// otherwise; the same again changes nothing. It is called once Step has taken the event,
// in its transaction.
func (p *Plane) prove(tx journal.Tx, h *held, m wire.MutationProved) (*ops.Fault, error) {
	_, fault, err := p.settleMutation(tx, h, m.Key, h.run.run, m.Done, m.Proof)
	return fault, err
}

// settleMutation makes an intended mutation done or absent, and returns whose it is if
// that was news. run is "" for one of any run of the delegation.
func (p *Plane) settleMutation(tx journal.Tx, h *held, key, run string, done bool, proof string) (of string, fault *ops.Fault, err error) {
	if strings.TrimSpace(proof) == "" || !words(proof, maxProof) {
		return "", ops.Faultf(ops.InvalidParams, "the proof of a mutation: want text of 1 to %d bytes that says how it is known", maxProof).With("final", true).With("pointer", "/proof"), nil
	}
	var state MutationState
	var owner string
	if err := tx.Query(`SELECT state, run FROM mutation WHERE external = $1 AND delegation = $2 AND ($3 = '' OR run = $3)`,
		func(scan func(...any) error) error { return scan((*string)(&state), &owner) }, key, h.delegation.id, run); err != nil {
		return "", nil, err
	}
	to := Absent
	if done {
		to = Done
	}
	switch state {
	case "":
		return "", ops.Faultf(ops.NotFound, "no mutation with the key %s was intended here", shown(key)).With("final", true), nil
	case to:
		return "", nil, nil
	case Intended:
	default:
		return "", ops.Faultf(ops.Conflict, "the mutation %s was proved to be %s before", shown(key), state).With("final", true).With("state", state), nil
	}
	n, err := tx.Exec(`UPDATE mutation SET state = $1, proof = $2, proved_at = $3 WHERE external = $4 AND state = 'INTENDED'`,
		string(to), proof, tx.Now().UnixMilli(), key)
	if err != nil {
		return "", nil, err
	}
	if n != 1 {
		return "", nil, fmt.Errorf("mutation of %s: %w", h.run.run, ErrStaleRow)
	}
	return owner, nil, nil
}

// unprovenKeys are the keys of the mutations of a delegation of which nobody knows whether
// they have happened, the first of them.
func unprovenKeys(tx journal.Tx, delegation string) (keys []string, err error) {
	err = tx.Query(`SELECT external FROM mutation WHERE delegation = $1 AND state = 'INTENDED' ORDER BY intended_at, external LIMIT $2`,
		func(scan func(...any) error) error {
			var key string
			err := scan(&key)
			keys = append(keys, key)
			return err
		}, delegation, int64(maxUnproven))
	return keys, err
}

// naming adds to a fault that says UNPROVEN which mutations it is about.
func naming(tx journal.Tx, f *ops.Fault, delegation string) (*ops.Fault, error) {
	if f == nil || f.Code != ops.Unproven {
		return f, nil
	}
	keys, err := unprovenKeys(tx, delegation)
	return f.With("mutations", keys), err
}

// line reports whether s is one line of at most most bytes, and can be seen as what it is.
func line(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) })
}

// words reports whether s is text of at most most bytes. Lines and tabs may stand in it.
func words(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' })
}
