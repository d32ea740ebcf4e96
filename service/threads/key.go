package threads

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"

	"inband/harvester"
	"inband/ops"
	"inband/service/journal"
)

// newKey returns a fresh key in the form of the directive grammar, four characters in each
// of keyGroups groups.
func newKey() string {
	const even = 256 / len(keyAlphabet) * len(keyAlphabet) // bytes from here on would favour some characters
	key := make([]byte, 0, 5*keyGroups)
	var random [8 * keyGroups]byte
	for {
		rand.Read(random[:])
		for _, b := range random {
			if int(b) >= even {
				continue
			}
			if len(key)%5 == 4 {
				key = append(key, '-')
			}
			key = append(key, keyAlphabet[int(b)%len(keyAlphabet)])
			if len(key) == 5*keyGroups-1 {
				return string(key)
			}
		}
	}
}

var keyForm = regexp.MustCompile(`^[a-z0-9-]{3,32}$`)

// bond is what a wake means for the calls that are ordered under it.
type bond struct {
	wake     WakeID // "" for no wake
	thread   string
	key      string
	root     string
	hops     int
	declared []ops.OpName
	open     bool // its key is good
}

// stamp has a call come from the wake. A call of no wake keeps its own root.
func (b bond) stamp(from *ops.Origin) {
	if b.wake == "" {
		return
	}
	from.Wake, from.Root, from.Hops = string(b.wake), b.root, b.hops
	if b.open {
		from.Declared = b.declared
	}
}

// bonds are the wakes of one agent in one thread.
type bonds struct {
	open []bond // those whose keys are good, the newest first; at most maxOpenOfThread
	last bond   // the newest, whatever has become of it
}

// same reports whether b and c are the same wakes in the same states.
func (b bonds) same(c bonds) bool {
	if b.last.wake != c.last.wake || len(b.open) != len(c.open) {
		return false
	}
	for i := range b.open {
		if b.open[i].wake != c.open[i].wake {
			return false
		}
	}
	return true
}

// under returns the wake that a directive with key is of, and how well the key fits.
// Without a key, or with a wrong one, it is of the last wake, so that no order gets rid
// of its root cause and hops by leaving the key out.
func (b bonds) under(key string) (bond, uint8) {
	if key == "" {
		return b.last, ops.KeyMissing
	}
	found := -1
	for i := range b.open { // all of them: the time must not tell which one comes close
		if subtle.ConstantTimeCompare([]byte(b.open[i].key), []byte(key)) == 1 && found < 0 {
			found = i
		}
	}
	if found < 0 {
		return b.last, ops.KeyWrong
	}
	return b.open[found], ops.KeyGood
}

const bondColumns = `id, thread, key, root, hops, declared, state, deadline_at`

// selectBonds reads the wakes that where picks.
func selectBonds(tx journal.Tx, where string, args ...any) (list []bond, err error) {
	now := tx.Now()
	err = tx.Query(`SELECT `+bondColumns+` FROM wake `+where, func(scan func(...any) error) error {
		var b bond
		var declared, state string
		var hops, deadline int64
		if err := scan((*string)(&b.wake), &b.thread, &b.key, &b.root, &hops, &declared, &state, &deadline); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(declared), &b.declared); err != nil {
			return fmt.Errorf("declared ops of wake %s: %w", b.wake, err)
		}
		b.hops, b.open = int(hops), state == "open" && now.Before(time.UnixMilli(deadline))
		list = append(list, b)
		return nil
	}, args...)
	return list, err
}

// wakesOf reads the wakes of agent in thread.
func wakesOf(tx journal.Tx, agent ops.IdentityID, thread string) (b bonds, err error) {
	last, err := selectBonds(tx, `WHERE thread = $1 AND agent = $2 ORDER BY id DESC LIMIT 1`, thread, string(agent))
	if err != nil || len(last) == 0 {
		return bonds{}, err
	}
	b.last = last[0]
	open, err := selectBonds(tx, `WHERE thread = $1 AND agent = $2 AND state = 'open' ORDER BY id DESC LIMIT $3`,
		thread, string(agent), int64(maxOpenOfThread))
	for _, o := range open {
		if o.open {
			b.open = append(b.open, o)
		}
	}
	return b, err
}

// weighed is what a reply's directives are worth, as it was when it was looked up.
type weighed struct {
	wakes    bonds
	of       []bond // by directive
	evidence []ops.Evidence
}

// wake returns the wake of the first directive with a good key, or else the last one.
func (w weighed) wake() WakeID {
	for i, e := range w.evidence {
		if e.Key == ops.KeyGood {
			return w.of[i].wake
		}
	}
	return w.wakes.last.wake
}

// same reports whether w and v say the same of the same reply.
func (w weighed) same(v weighed) bool {
	return w.wakes.same(v.wakes) && slices.Equal(w.evidence, v.evidence)
}

// weigh looks up what stands for and against the directives of a reply.
func weigh(tx journal.Tx, a arrival, r reading) (w weighed, err error) {
	w = weighed{of: make([]bond, len(r.directives)), evidence: make([]ops.Evidence, len(r.directives))}
	unsoiled := true // nothing has been shown yet in a thread that begins
	if a.thread != "" {
		if unsoiled, err = clean(tx, a.thread, a.agent); err != nil {
			return w, err
		}
		if w.wakes, err = wakesOf(tx, a.agent, a.thread); err != nil {
			return w, err
		}
	}
	for i, d := range r.directives {
		e := &w.evidence[i]
		*e = ops.Evidence{Echo: ops.EchoUnknown, Clean: unsoiled, Fresh: a.fresh, Curl: d.Form == harvester.Curl}
		w.of[i], e.Key = w.wakes.under(d.Key)
		if r.digests[i] == "" {
			continue
		}
		if e.Echo, err = echoed(tx, a.thread, a.agent, r.digests[i]); err != nil {
			return w, err
		}
	}
	return w, nil
}

// Weigh says what a call over the API is worth that carries key, the key of a wake of its
// caller in any thread, or none. With a good key it is of that wake, which may have declared
// its op. Without one it only inherits the root cause of that wake of its caller, of those
// that are open and the last one, which stands farthest from a person: no loop gets around
// its caps by the API. A key that is of no wake leaves ops.KeyWrong in the evidence: the
// caller refuses it.
func (t *Threads) Weigh(ctx context.Context, c ops.Call, key string) (ops.Call, error) {
	entry, known := t.registry.Current().Lookup(c.Op)
	writes := known && entry.SideEffecting
	c.Evidence = ops.Evidence{Key: ops.KeyMissing, Echo: ops.EchoUnknown, Fresh: true}
	if key == "" && (c.By.Role != ops.Agent || !writes) {
		return c, nil
	}
	err := t.store.View(ctx, func(tx journal.Tx) error {
		open, err := openBonds(tx, c.By.ID)
		if err != nil {
			return err
		}
		if key == "" {
			last, err := selectBonds(tx, `WHERE agent = $1 ORDER BY id DESC LIMIT 1`, string(c.By.ID))
			c.From.Root, c.From.Hops = worst(append(open, last...))
			return err
		}
		b, fits := bonds{open: open}.under(key)
		if fits != ops.KeyGood && c.Key != "" {
			if b, fits, err = bondOf(tx, c, key); err != nil {
				return err
			}
		}
		if c.Evidence.Key = fits; fits != ops.KeyGood {
			return nil
		}
		b.stamp(&c.From)
		c.From.Thread = b.thread
		if !writes {
			return nil
		}
		if c.Evidence.Echo, err = echoed(tx, b.thread, c.By.ID, orderDigest(entry.Name, c.Params)); err != nil {
			return err
		}
		c.Evidence.Clean, err = clean(tx, b.thread, c.By.ID)
		return err
	})
	return c, err
}

// bondOf returns the wake of an earlier call with the idempotency key of c, as it was then,
// if key is the key of that wake. The door finds the call too and makes no other.
func bondOf(tx journal.Tx, c ops.Call, key string) (bond, uint8, error) {
	list, err := selectBonds(tx, `WHERE id = (SELECT wake FROM call WHERE by_id = $1 AND idem_key = $2) AND agent = $1`, string(c.By.ID), c.Key)
	if err != nil || len(list) == 0 || subtle.ConstantTimeCompare([]byte(list[0].key), []byte(key)) != 1 {
		return bond{}, ops.KeyWrong, err
	}
	list[0].open = true
	return list[0], ops.KeyGood, nil
}

// maxOpenOfAgent bounds how many open wakes of one agent are looked at, the newest.
const maxOpenOfAgent = 1024

// openBonds reads the wakes of agent whose keys are good, the newest first.
func openBonds(tx journal.Tx, agent ops.IdentityID) (open []bond, err error) {
	list, err := selectBonds(tx, `WHERE agent = $1 AND state <> 'ended' AND state = 'open' ORDER BY id DESC LIMIT $2`, string(agent), int64(maxOpenOfAgent))
	for _, b := range list {
		if b.open {
			open = append(open, b)
		}
	}
	return open, err
}

// worst returns the root and the hops of the wake that stands farthest from a person.
func worst(open []bond) (root string, hops int) {
	for i, b := range open {
		if i == 0 || b.hops > hops {
			root, hops = b.root, b.hops
		}
	}
	return root, hops
}
