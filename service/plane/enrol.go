package plane

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane/wire"
)

// InvitationPrefix begins every one-time token, so that scanners of leaked secrets find
// them.
const InvitationPrefix = "ibe_"

// Bounds of workers.
const (
	StandardInvitation = time.Hour
	MaxInvitation      = 7 * 24 * time.Hour
	MaxSkills          = 64  // implementations, and capabilities, of one worker
	MaxBootRuns        = 256 // that one boot can speak for
	MaxBoots           = 120 // of one worker in a minute
	challengeFor       = 60 * time.Second
)

// Invitation is what an operator asks for: room for one worker or verifier.
type Invitation struct {
	Name            ops.IdentityID `json:"name"`
	Role            ops.Role       `json:"role"` // worker or verifier
	Implementations []string       `json:"implementations"`
	Capabilities    []string       `json:"capabilities,omitempty"`
	TTL             time.Duration  `json:"ttl,omitempty"` // 0 is an hour; at most 7 days
}

// Invited is an invitation with its token, which cannot be had again.
type Invited struct {
	Token           string         `json:"token"`
	Name            ops.IdentityID `json:"name"`
	Role            ops.Role       `json:"role"`
	Implementations []string       `json:"implementations"`
	Capabilities    []string       `json:"capabilities"`
	ExpiresAt       string         `json:"expires_at"` // as ops.Stamp writes it
}

// skillName is what implementations and capabilities are called.
var skillName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// skills is what a worker can do.
type skills struct{ implementations, capabilities []string }

// scan reads two columns.
func (s *skills) scan(scan func(...any) error) error {
	var implementations, capabilities string
	if err := scan(&implementations, &capabilities); err != nil {
		return err
	}
	return s.read(implementations, capabilities)
}

func (s *skills) read(implementations, capabilities string) (err error) {
	if s.implementations, err = listed(implementations); err != nil {
		return err
	}
	s.capabilities, err = listed(capabilities)
	return err
}

// serve reports whether s can do work of implementation that needs capabilities.
func (s skills) serve(implementation string, capabilities []string) bool {
	if !slices.Contains(s.implementations, implementation) {
		return false
	}
	for _, c := range capabilities {
		if !slices.Contains(s.capabilities, c) {
			return false
		}
	}
	return true
}

// principalRow is one row of the table principal.
type principalRow struct {
	id       ops.IdentityID
	role     ops.Role
	keyID    string
	key      ed25519.PublicKey
	skills   skills
	boot     string // the current one, "" before the first
	version  string
	draining bool
	revoked  bool
	nonce    string // of the last poll that was granted
	granted  string // the subject and the fence of that grant
	seenAt   time.Time
	skew     time.Duration // its clock less the store's, as last seen

	plane    string    // the state of the plane: off, on, drain
	term     int64     // of fences
	grantsAt time.Time // nothing is granted before
}

// principal reads who may take leases, and how the plane stands. false if there is nobody
// of that id.
func (p *Plane) principal(tx journal.Tx, id ops.IdentityID) (who principalRow, known bool, err error) {
	err = tx.Query(`SELECT w.id, w.role, w.key_id, w.public_key, w.implementations, w.capabilities, w.boot, w.version, w.draining, w.revoked_at, w.nonce, w.granted, w.seen_at, w.skew_ms,
			p.state, p.term, p.grants_at FROM principal w JOIN plane p ON p.id = 1 WHERE w.id = $1`,
		func(scan func(...any) error) error {
			var implementations, capabilities string
			var draining int64
			var revoked, seen, grants *int64
			var skew int64
			if err := scan((*string)(&who.id), (*string)(&who.role), &who.keyID, (*[]byte)(&who.key), &implementations, &capabilities, &who.boot, &who.version,
				&draining, &revoked, &who.nonce, &who.granted, &seen, &skew, &who.plane, &who.term, &grants); err != nil {
				return err
			}
			who.draining, who.revoked, known = draining == 1, revoked != nil, true
			who.seenAt, who.skew, who.grantsAt = fromMilli(seen), time.Duration(skew)*time.Millisecond, fromMilli(grants)
			return who.skills.read(implementations, capabilities)
		}, string(id))
	return who, known, err
}

// identity is who the row is at the door.
func (w principalRow) identity() ops.Identity { return ops.Identity{ID: w.id, Role: w.role} }

// Invite makes room for one worker or verifier. Whoever has the token can enrol a key, once,
// until it expires. by must be one who may manage the gateway.
func (p *Plane) Invite(ctx context.Context, by ops.Identity, i Invitation) (Invited, error) {
	if err := p.manages(by); err != nil {
		return Invited{}, err
	}
	if i.TTL == 0 {
		i.TTL = StandardInvitation
	}
	if i.Role == "" {
		i.Role = ops.Worker
	}
	switch {
	case !i.Name.Valid():
		return Invited{}, ops.Faultf(ops.BadRequest, "the name %s: want a-z, 0-9, then also . _ -, at most 64 bytes", shown(string(i.Name)))
	case i.Role != ops.Worker && i.Role != ops.Verifier:
		return Invited{}, ops.Faultf(ops.BadRequest, "the role %s: want worker or verifier", shown(string(i.Role)))
	case i.TTL < time.Second || i.TTL > MaxInvitation:
		return Invited{}, ops.Faultf(ops.BadRequest, "an invitation for %s: want 1s to %s", i.TTL, MaxInvitation)
	case len(i.Implementations) == 0:
		return Invited{}, ops.Faultf(ops.BadRequest, "no implementation: want at least one, such as default")
	}
	for what, list := range map[string][]string{"implementations": i.Implementations, "capabilities": i.Capabilities} {
		if len(list) > MaxSkills {
			return Invited{}, ops.Faultf(ops.BadRequest, "%d %s: want at most %d", len(list), what, MaxSkills)
		}
		for _, n := range list {
			if !skillName.MatchString(n) {
				return Invited{}, ops.Faultf(ops.BadRequest, "%s: %s is no name; want a-z, 0-9, then also . _ -, at most 64 bytes", what, shown(n))
			}
		}
	}
	token := make([]byte, 32)
	if _, err := rand.Read(token); err != nil {
		panic(err) // crypto/rand does not fail on a system that runs
	}
	made := Invited{Token: InvitationPrefix + hex.EncodeToString(token), Name: i.Name, Role: i.Role, Implementations: i.Implementations,
		Capabilities: append([]string{}, i.Capabilities...)}
	err := p.store.Update(ctx, func(tx journal.Tx) error {
		if taken, err := exists(tx, `SELECT count(*) FROM identity WHERE id = $1`, string(i.Name)); err != nil {
			return err
		} else if taken {
			return ops.Faultf(ops.Conflict, "the identity %s exists; ids are never used again", i.Name)
		}
		expires := tx.Now().Add(i.TTL)
		made.ExpiresAt = ops.Stamp(expires)
		if _, err := tx.Exec(`INSERT INTO invitation (hash, name, role, implementations, capabilities, by_id, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			hashed(made.Token), string(i.Name), string(i.Role), column(i.Implementations), column(i.Capabilities), string(by.ID), tx.Now().UnixMilli(), expires.UnixMilli()); err != nil {
			return err
		}
		return event(tx, "worker/"+string(i.Name), "worker.invited", map[string]any{
			"worker": i.Name, "role": i.Role, "by": by, "implementations": i.Implementations, "capabilities": made.Capabilities, "expires_at": made.ExpiresAt,
		})
	})
	if err != nil {
		return Invited{}, stored(err)
	}
	return made, nil
}

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Enrol gives the key that the message is signed with the identity that its token was made
// for. A token works once, and so does a key, for one role; the same message again is
// answered again. The faults of what can never succeed are final.
func (p *Plane) Enrol(ctx context.Context, envelope []byte) (wire.Enrolled, error) {
	var m wire.Enrol
	s, err := opened(envelope, wire.KindEnrol, &m)
	if err != nil {
		return wire.Enrolled{}, err
	}
	if len(m.PublicKey) != ed25519.PublicKeySize {
		return wire.Enrolled{}, final(ops.BadRequest, "a public key of %d bytes: want the %d of an Ed25519 key", len(m.PublicKey), ed25519.PublicKeySize)
	}
	if err := s.Prove(m.PublicKey); err != nil {
		return wire.Enrolled{}, p.badSignature("the message is not signed by the key that it brings")
	}
	keyID := wire.KeyID(m.PublicKey)
	var made wire.Enrolled
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		made = wire.Enrolled{PlaneKey: p.Key.Public().(ed25519.PublicKey)}
		var implementations, capabilities string
		var expires int64
		var used *int64
		var usedBy *string
		if err := tx.Query(`SELECT name, role, implementations, capabilities, expires_at, used_at, key_id FROM invitation WHERE hash = $1`,
			func(scan func(...any) error) error {
				return scan((*string)(&made.Worker.ID), (*string)(&made.Worker.Role), &implementations, &capabilities, &expires, &used, &usedBy)
			}, hashed(m.Token)); err != nil {
			return err
		}
		again := usedBy != nil && *usedBy == keyID
		switch {
		case made.Worker.ID == "", used != nil && !again, used == nil && tx.Now().UnixMilli() >= expires:
			return final(ops.Unauthenticated, "the token is not known, was used, or has expired; ask an operator for a new invitation")
		}
		var sk skills
		if err := sk.read(implementations, capabilities); err != nil {
			return err
		}
		made.Implementations, made.Capabilities = sk.implementations, sk.capabilities
		if again {
			return nil
		}
		var owner string
		if err := tx.Query(`SELECT id FROM principal WHERE key_id = $1`, func(scan func(...any) error) error { return scan(&owner) }, keyID); err != nil {
			return err
		}
		if owner != "" {
			return final(ops.Conflict, "this key is enrolled already; a key has one identity and one role, so make another key")
		}
		if err := access.Make(tx, made.Worker); err != nil {
			return finally(err)
		}
		now := tx.Now().UnixMilli()
		if _, err := tx.Exec(`INSERT INTO principal (id, role, key_id, public_key, implementations, capabilities, boot, version, enrolled_at) VALUES ($1, $2, $3, $4, $5, $6, '', '', $7)`,
			string(made.Worker.ID), string(made.Worker.Role), keyID, m.PublicKey, implementations, capabilities, now); err != nil {
			return err
		}
		if _, err := tx.Exec(`UPDATE invitation SET used_at = $1, key_id = $2 WHERE hash = $3 AND used_at IS NULL`, now, keyID, hashed(m.Token)); err != nil {
			return err
		}
		return event(tx, "worker/"+string(made.Worker.ID), "worker.enrolled", map[string]any{
			"worker": made.Worker.ID, "role": made.Worker.Role, "key": keyID, "implementations": made.Implementations, "capabilities": made.Capabilities,
		})
	})
	if err != nil {
		if f := (*ops.Fault)(nil); errors.As(err, &f) && f.Code == ops.Unauthenticated {
			p.counts.add("auth_rejected", "", 1)
		}
		return wire.Enrolled{}, stored(err)
	}
	return made, nil
}

// Revoke ends a worker or verifier for good, at once: its tokens and its key open nothing
// any more, and what it had leased is UNKNOWN. One that is revoked already stays so.
func (p *Plane) Revoke(ctx context.Context, by ops.Identity, id string) (WorkerShowing, error) {
	return p.manageWorker(ctx, by, id, func(tx journal.Tx, who principalRow) error {
		if who.revoked {
			return nil
		}
		now := tx.Now().UnixMilli()
		if _, err := tx.Exec(`UPDATE principal SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL`, now, id); err != nil {
			return err
		}
		if _, err := tx.Exec(`UPDATE boot SET ended_at = $1 WHERE worker = $2 AND ended_at IS NULL`, now, id); err != nil {
			return err
		}
		if err := access.End(tx, who.id); err != nil {
			return err
		}
		if err := event(tx, "worker/"+id, "worker.revoked", map[string]any{"worker": id, "by": by}); err != nil {
			return err
		}
		return p.endBoots(tx, who.id, "worker_revoked", func(*held) Event {
			return Event{Kind: OnWorkerRebooted, Worker: who.id, Boot: "revoked", Recover: p.Recover, Reason: "worker_revoked"}
		})
	})
}

// DrainWorker has a worker get nothing new, or again; what it holds goes on.
func (p *Plane) DrainWorker(ctx context.Context, by ops.Identity, id string, on bool) (WorkerShowing, error) {
	return p.manageWorker(ctx, by, id, func(tx journal.Tx, who principalRow) error {
		switch {
		case who.revoked:
			return ops.Faultf(ops.Conflict, "%s is revoked for good", id)
		case who.draining == on:
			return nil
		}
		if _, err := tx.Exec(`UPDATE principal SET draining = $1 WHERE id = $2`, flag(on), id); err != nil {
			return err
		}
		kind := "worker.resumed"
		if on {
			kind = "worker.drained"
		}
		return event(tx, "worker/"+id, kind, map[string]any{"worker": id, "by": by})
	})
}

func (p *Plane) manageWorker(ctx context.Context, by ops.Identity, id string, do func(journal.Tx, principalRow) error) (shows WorkerShowing, err error) {
	if err := p.manages(by); err != nil {
		return WorkerShowing{}, err
	}
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		who, known, err := p.principal(tx, ops.IdentityID(id))
		if err != nil {
			return err
		}
		if !known {
			return ops.Faultf(ops.NotFound, "there is no worker %s", shown(id))
		}
		if err := do(tx, who); err != nil {
			return err
		}
		shows, err = showWorker(tx, ops.IdentityID(id))
		return err
	})
	return shows, stored(err)
}
