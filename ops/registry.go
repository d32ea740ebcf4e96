package ops

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"
)

// Entry is an op that can run: its definition, what runs it, and the digest of
// the definition.
type Entry struct {
	Op
	Executor Executor
	// Digest is "sha256:" and the hex digest of the definition's RFC 8785 form.
	Digest string
}

// Registry holds the ops that exist. It never changes once New has returned it,
// so that everything a call sees comes from one set of definitions.
type Registry struct {
	entries []*Entry // by name
	byName  map[OpName]*Entry
}

// Bound is an op with what runs it, as New takes it.
type Bound struct {
	Op       Op
	Executor Executor
}

// New builds a registry. A name or an alias that stands twice is an error, and
// so is a definition that no call could satisfy.
func New(bound ...Bound) (*Registry, error) {
	r := &Registry{byName: make(map[OpName]*Entry, len(bound))}
	for _, b := range bound {
		if b.Executor == nil {
			return nil, fmt.Errorf("op %s: nothing runs it", b.Op.Name)
		}
		op := b.Op
		op.Params = slices.Clone(op.Params)
		if err := op.Check(); err != nil {
			return nil, fmt.Errorf("op %s: %w", op.Name, err)
		}
		e := &Entry{Op: op, Executor: b.Executor, Digest: op.digest()}
		for _, name := range append([]OpName{op.Name}, op.Aliases...) {
			if other, taken := r.byName[name]; taken {
				return nil, fmt.Errorf("op %s (provider %s): the name %s is taken by op %s (provider %s)",
					op.Name, op.Provider, name, other.Name, other.Provider)
			}
			r.byName[name] = e
		}
		r.entries = append(r.entries, e)
	}
	slices.SortFunc(r.entries, func(a, b *Entry) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return r, nil
}

// Check validates the definition of op and prepares its parameters for use.
func (op *Op) Check() error {
	for _, name := range append([]OpName{op.Name}, op.Aliases...) {
		if !name.Valid() {
			return fmt.Errorf("name %q: want a letter or _, then letters, digits or any of _.:/-, at most %d bytes", clip(string(name)), MaxNameLen)
		}
	}
	if op.Provider == "" {
		return fmt.Errorf("no provider owns it")
	}
	if op.Summary == "" || strings.ContainsAny(op.Summary, "\r\n") {
		return fmt.Errorf("want a summary of one line")
	}
	if r := op.Rate; op.Concurrency < 0 || r.Count < 0 || r.Count > 0 && r.Per < time.Second {
		return fmt.Errorf("concurrency %d and rate %d in %s: want neither negative, and at least a second", op.Concurrency, r.Count, r.Per)
	}
	return op.Params.compile(0)
}

// Lookup resolves a name or an alias. The second answer is false when there is
// no such op.
func (r *Registry) Lookup(name OpName) (*Entry, bool) {
	e, ok := r.byName[name]
	return e, ok
}

// All returns every op, ordered by name.
func (r *Registry) All() []*Entry { return slices.Clone(r.entries) }

// UnknownOp returns the fault for a name that Lookup does not know, with at most
// three nearest names.
func (r *Registry) UnknownOp(name OpName) *Fault {
	f := Faultf(UnknownOp, "there is no op %q", clip(string(name)))
	near := r.nearest(string(name))
	if len(near) > 0 {
		f.Message += "; nearest: " + strings.Join(near, ", ")
		f = f.With("nearest", near)
	} else {
		f.Message += "; tools.list names them all"
	}
	return f
}

// nearest returns up to three names within an edit distance that a slip of the
// hand explains: a third of the name's length, at least 1 and at most 4.
func (r *Registry) nearest(name string) []string {
	if len(name) > MaxNameLen {
		return nil
	}
	most := min(max(len(name)/3, 1), 4)
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	for n := range r.byName {
		if d := distance(strings.ToLower(name), strings.ToLower(string(n))); d <= most {
			found = append(found, candidate{string(n), d})
		}
	}
	sort.Slice(found, func(i, j int) bool {
		if found[i].distance != found[j].distance {
			return found[i].distance < found[j].distance
		}
		return found[i].name < found[j].name
	})
	var names []string
	for _, c := range found[:min(len(found), 3)] {
		names = append(names, c.name)
	}
	return names
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// digest covers everything that decides what the op does: all of its definition but the
// words about it, its other names and its examples.
func (op *Op) digest() string {
	b, err := json.Marshal(struct {
		Name          OpName
		Provider      string
		SideEffecting bool
		Params        Params
		Timeout       int64
		Command       *Command
		Concurrency   int
		Rate          Rate
	}{op.Name, op.Provider, op.SideEffecting, op.Params, int64(op.Timeout), op.Command, op.Concurrency, op.Rate})
	if err != nil {
		panic(err) // plain data
	}
	canonical, fault := Canonical(b)
	if fault != nil {
		canonical = b
	}
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Live is the registry in force. A reload swaps it whole.
type Live struct{ p atomic.Pointer[Registry] }

// NewLive returns a Live that holds r.
func NewLive(r *Registry) *Live {
	l := new(Live)
	l.p.Store(r)
	return l
}

// Current returns the registry in force. A caller that needs several answers
// about one call takes it once.
func (l *Live) Current() *Registry { return l.p.Load() }

// Swap puts r in force.
func (l *Live) Swap(r *Registry) { l.p.Store(r) }
