package main

import (
	"crypto/ed25519"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// hand is a worker by hand: a key and a boot of a plane.
type hand struct {
	t    *testing.T
	g    *gateway
	id   ops.Identity
	key  ed25519.PrivateKey
	boot string
}

// enrolled returns a worker that is enrolled and has begun a boot.
func enrolled(t *testing.T, g *gateway, name ops.IdentityID) *hand {
	t.Helper()
	invited, err := g.plane.Invite(t.Context(), operator, plane.Invitation{Name: name, Role: ops.Worker, Implementations: []string{"default"}})
	if err != nil {
		t.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{t: t, g: g, id: ops.Identity{ID: name, Role: ops.Worker}, key: key}
	if _, err := g.plane.Enrol(t.Context(), h.seal(wire.KindEnrol, wire.Enrol{Token: invited.Token, PublicKey: public})); err != nil {
		t.Fatal(err)
	}
	h.begin()
	return h
}

func (h *hand) seal(k wire.Kind, v any) []byte {
	h.t.Helper()
	envelope, _, err := wire.Seal(h.key, k, v)
	if err != nil {
		h.t.Fatal(err)
	}
	return envelope
}

func (h *hand) begin() {
	h.t.Helper()
	challenge, err := h.g.plane.Challenge(h.t.Context(), string(h.id.ID))
	if err != nil {
		h.t.Fatal(err)
	}
	h.boot = ulid.Make().String()
	if _, err := h.g.plane.Begin(h.t.Context(), h.seal(wire.KindBoot, wire.Boot{Worker: h.id.ID, Boot: h.boot, Challenge: challenge, Version: "test"})); err != nil {
		h.t.Fatal(err)
	}
}

// poll takes the next work.
func (h *hand) poll() wire.Grant {
	h.t.Helper()
	envelope, err := h.g.plane.Poll(h.t.Context(), h.id, wire.Poll{Boot: h.boot, Nonce: ulid.Make().String(), WaitMS: 10_000})
	if err != nil || envelope == nil {
		h.t.Fatalf("no grant: %v", err)
	}
	sealed, err := wire.Read(envelope, 2*wire.MaxGrant)
	if err != nil {
		h.t.Fatal(err)
	}
	var grant wire.Grant
	if err := sealed.Decode(wire.KindGrant, &grant); err != nil {
		h.t.Fatal(err)
	}
	return grant
}

// start says that the run of a grant begins.
func (h *hand) start(grant wire.Grant) error {
	h.t.Helper()
	head := grant.Header
	head.Seq++
	envelope, _, err := wire.SealCallback(h.key, wire.KindStarted, head, wire.Started{})
	if err != nil {
		h.t.Fatal(err)
	}
	_, err = h.g.plane.Callback(h.t.Context(), h.id, envelope)
	return err
}

// spawn has the operator hand out work.
func (g *gateway) spawn(t *testing.T) {
	t.Helper()
	ticket, err := g.door.Submit(t.Context(), ops.Call{Op: "swarm.spawn", By: operator, Params: json.RawMessage(`{"task":"x"}`), From: ops.Origin{Source: "api/test"}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		state := ""
		if err := g.store.View(t.Context(), func(tx journal.Tx) error {
			return tx.Query(`SELECT state FROM call WHERE id = $1`, func(scan func(...any) error) error { return scan(&state) }, string(ticket.Call))
		}); err != nil {
			t.Fatal(err)
		}
		switch state {
		case string(ops.Accepted):
			return
		case string(ops.Received), string(ops.Running):
		default:
			t.Fatalf("the spawn is %s", state)
		}
	}
}

// A store that is restored from an older state, and from the same one twice, while workers
// hold leases: every fence of later is greater than any that the lost stores have given out
// or could have, and no run of a lease goes on as if nothing had happened.
func TestRestoreWithLiveLeases(t *testing.T) {
	folder := stateFolder(filepath.Join(t.TempDir(), "state"))
	g, stop := gatewayOn(t, folder)
	if _, err := g.plane.Switch(t.Context(), operator, plane.On); err != nil {
		t.Fatal(err)
	}
	w := enrolled(t, g, "smith")
	for range 3 {
		g.spawn(t)
	}
	leased, running := w.poll(), w.poll()
	if err := w.start(running); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b.tar")
	if code, _, errs := box(t, folder, "backup", file); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	// The lost store goes on: with terms of its own, and the last of the work.
	last := w.poll()
	for range 5 {
		if _, err := g.plane.BumpTerm(t.Context(), operator); err != nil {
			t.Fatal(err)
		}
	}
	highest := max(leased.Fence, running.Fence, last.Fence)
	if err := g.store.View(t.Context(), func(tx journal.Tx) error {
		return tx.Query(`SELECT max($1, (term + 1) * 4294967296 - 1, (SELECT max(last_fence) FROM delegation)) FROM plane`, // all that this term could give
			func(scan func(...any) error) error { return scan(&highest) }, highest)
	}); err != nil {
		t.Fatal(err)
	}
	stop()

	for range 2 {
		again := stateFolder(filepath.Join(t.TempDir(), "new"))
		code, out, errs := box(t, again, "restore", file, "--json")
		var r restored
		if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || r.Unknown != 2 || r.Open != 3 || r.Plane != plane.On {
			t.Fatalf("exit code %d, %v: %s%s; want 2 runs that are UNKNOWN and 3 open calls", code, err, out, errs)
		}
		if code, _, errs := box(t, again, "audit", "verify"); code != 0 {
			t.Errorf("audit verify: exit code %d: %s", code, errs)
		}
		h, stop := gatewayOn(t, again)
		states := map[string]int{}
		var fences, beyond, grants int64
		if err := h.store.View(t.Context(), func(tx journal.Tx) error {
			if err := tx.Query(`SELECT run, state FROM dispatch`, func(scan func(...any) error) error {
				var run, state string
				err := scan(&run, &state)
				states[state]++
				if state != "UNKNOWN" && state != "RECOVERING" && (run == leased.Run || run == running.Run) {
					t.Errorf("run %s, which was live, is %s", run, state)
				}
				return err
			}); err != nil {
				return err
			}
			return tx.Query(`SELECT grants_at, term * 4294967296, (SELECT count(*) FROM delegation WHERE last_fence > term * 4294967296) FROM plane`,
				func(scan func(...any) error) error { return scan(&grants, &fences, &beyond) })
		}); err != nil {
			t.Fatal(err)
		}
		if states["DISPATCHED"] != 1 {
			t.Errorf("the runs are %v; want the one that waited to wait", states)
		}
		// Nothing is granted before a restore would begin a later term still.
		if next := (grants - time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()) / (5 * time.Minute).Milliseconds(); next+1 <= r.Term {
			t.Errorf("what is granted at %d has the term %d, and so has a restore then, %d", grants, r.Term, next+1)
		}
		if fences <= highest || beyond != 0 || fences>>32 != r.Term {
			t.Errorf("the new term's fences begin at %d (term %d), and the lost store could give up to %d", fences, r.Term, highest)
		}
		// Its worker comes back under the lease of before: what it says is no authority.
		w.g = h
		w.begin()
		if err := w.start(leased); err == nil {
			t.Error("a run of before begins under its old lease")
		}
		stop()

	}
}
