package plane

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"inband/failpoint"
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
	challengeFor       = 60 * time.Second
)

// skillName is what implementations and capabilities are called.
var skillName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

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

// listed reads a list of names as a column holds it.
func listed(column string) (list []string, err error) {
	if err := json.Unmarshal([]byte(column), &list); err != nil {
		return nil, fmt.Errorf("list of names: %w", err)
	}
	return list, nil
}

// column is a list as a column holds it.
func column[T any](list []T) string {
	if list == nil {
		list = []T{}
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // of names
	}
	return string(b)
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

func exists(tx journal.Tx, sql string, args ...any) (bool, error) {
	n := 0
	err := tx.Query(sql, func(scan func(...any) error) error { return scan(&n) }, args...)
	return n > 0, err
}

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// final is a fault that no repetition can change.
func final(code ops.Code, format string, args ...any) *ops.Fault {
	return ops.Faultf(code, format, args...).With("final", true)
}

// opened reads an envelope of kind k, without proving it.
func opened(envelope []byte, k wire.Kind, v any) (*wire.Sealed, error) {
	s, err := wire.Read(envelope, wire.MaxPayload)
	if err == nil {
		err = s.Decode(k, v)
	}
	if err != nil {
		return nil, final(ops.BadRequest, "%v", err)
	}
	return s, nil
}

// badSignature counts and returns the refusal of who is not whom he says.
func (p *Plane) badSignature(why string) *ops.Fault {
	p.counts.add("auth_rejected", "", 1)
	return final(ops.BadSignature, "%s", why)
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

// finally makes a fault final.
func finally(err error) error {
	if f := (*ops.Fault)(nil); errors.As(err, &f) {
		return f.With("final", true)
	}
	return err
}

// Challenge returns what the next boot of worker has to sign. It is good for a minute, by
// the store's clock, and nothing is kept of it.
func (p *Plane) Challenge(ctx context.Context, worker string) (string, error) {
	if !ops.IdentityID(worker).Valid() {
		return "", final(ops.BadRequest, "the worker %s: want its id", shown(worker))
	}
	var now time.Time
	if err := p.store.View(ctx, func(tx journal.Tx) error { now = tx.Now(); return nil }); err != nil {
		return "", stored(err)
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli()))
	b = append(b, make([]byte, 16)...)
	if _, err := rand.Read(b[8:]); err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(append(b, p.challenge(b, worker)...)), nil
}

func (p *Plane) challenge(b []byte, worker string) []byte {
	mac := hmac.New(sha256.New, p.secret[:])
	mac.Write(b)
	mac.Write([]byte(worker))
	return mac.Sum(nil)
}

// fresh reports whether challenge was made for worker within the last minute.
func (p *Plane) fresh(challenge, worker string, now time.Time) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(challenge)
	if err != nil || len(b) != 24+sha256.Size || subtle.ConstantTimeCompare(b[24:], p.challenge(b[:24], worker)) != 1 {
		return false
	}
	age := now.Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(b))))
	return age >= 0 && age <= challengeFor
}

var bootID = regexp.MustCompile(`^[0-9A-Za-z]{26}$`)

// Begin begins a life of a worker's process. The one before it ends: its token is revoked,
// what it had leased is UNKNOWN, and those runs of which the message says that nothing is
// alive are being recovered. The same message again, while its boot lasts, is answered with
// another token. Faults are final, but for a challenge that is too old: get another one.
func (p *Plane) Begin(ctx context.Context, envelope []byte) (wire.Session, error) {
	var m wire.Boot
	s, err := opened(envelope, wire.KindBoot, &m)
	if err != nil {
		return wire.Session{}, err
	}
	switch {
	case !bootID.MatchString(m.Boot):
		return wire.Session{}, final(ops.BadRequest, "the boot %s: want a ULID", shown(m.Boot))
	case len(m.Runs) > MaxBootRuns:
		return wire.Session{}, final(ops.BadRequest, "%d runs: want at most %d", len(m.Runs), MaxBootRuns)
	case !line(m.Version, 64):
		return wire.Session{}, final(ops.BadRequest, "a version of %d bytes: want one line of at most 64", len(m.Version))
	}
	for _, r := range m.Runs {
		if err := processes(r.Live); err != nil {
			return wire.Session{}, final(ops.BadRequest, "of the run %s: %v", shown(r.Run), err)
		}
	}
	if _, err := p.proved(ctx, s, m.Worker); err != nil {
		return wire.Session{}, err
	}
	token := access.NewToken()
	err = p.store.Update(ctx, func(tx journal.Tx) error {
		who, known, err := p.principal(tx, m.Worker)
		switch {
		case err != nil:
			return err
		case !known, who.revoked:
			return final(ops.Unauthenticated, "%s is revoked", m.Worker)
		case !p.fresh(m.Challenge, string(m.Worker), tx.Now()):
			return ops.Faultf(ops.BadRequest, "the challenge is not one of this minute; get another one").With("challenge", true)
		}
		if m.Boot != who.boot {
			if err := p.reboot(tx, who, m); err != nil {
				return err
			}
		}
		return access.Issue(tx, m.Worker, token)
	})
	if err != nil {
		return wire.Session{}, stored(err)
	}
	failpoint.Here("plane.booted")
	return wire.Session{Token: token, PlaneKey: p.Key.Public().(ed25519.PublicKey), TTLMS: p.TTL.Milliseconds(), HeartbeatMS: p.Heartbeat.Milliseconds()}, nil
}

// reboot ends the boot that who has, and begins m's.
func (p *Plane) reboot(tx journal.Tx, who principalRow, m wire.Boot) error {
	now := tx.Now()
	ended, err := exists(tx, `SELECT count(*) FROM boot WHERE worker = $1 AND boot = $2`, string(who.id), m.Boot)
	if err != nil {
		return err
	}
	if ended {
		return final(ops.Conflict, "the boot %s of %s has ended; a process that begins has a boot of its own", m.Boot, who.id)
	}
	if _, err := tx.Exec(`UPDATE boot SET ended_at = $1 WHERE worker = $2 AND ended_at IS NULL`, now.UnixMilli(), string(who.id)); err != nil {
		return err
	}
	if _, err := tx.Exec(`INSERT INTO boot (worker, boot, begun_at) VALUES ($1, $2, $3)`, string(who.id), m.Boot, now.UnixMilli()); err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE principal SET boot = $1, boot_at = $2, seen_at = $2, version = $3, nonce = '', granted = '' WHERE id = $4`,
		m.Boot, now.UnixMilli(), m.Version, string(who.id)); err != nil {
		return err
	}
	if err := event(tx, "worker/"+string(who.id), "worker.booted", map[string]any{"worker": who.id, "boot": m.Boot, "before": who.boot, "version": m.Version, "runs": len(m.Runs)}); err != nil {
		return err
	}
	said := make(map[string]wire.BootRun, len(m.Runs))
	for _, r := range m.Runs {
		said[r.Run] = r
	}
	return p.endBoots(tx, who.id, "worker_rebooted", func(h *held) Event {
		r, reported := said[h.run.run]
		return Event{Kind: OnWorkerRebooted, Worker: who.id, Boot: m.Boot, Reported: reported, Live: len(r.Live), Recover: p.Recover, Reason: "worker_rebooted"}
	})
}

// endBoots applies an event to every run that worker holds or may still be running, and lets
// its verifications lapse.
func (p *Plane) endBoots(tx journal.Tx, worker ops.IdentityID, reason string, of func(*held) Event) error {
	var runs []string
	if err := tx.Query(`SELECT run FROM dispatch WHERE worker = $1 AND state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED', 'UNKNOWN', 'RECOVERING', 'WAITING_HUMAN') ORDER BY run`,
		func(scan func(...any) error) error {
			var run string
			err := scan(&run)
			runs = append(runs, run)
			return err
		}, string(worker)); err != nil {
		return err
	}
	for _, run := range runs {
		h, err := p.load(tx, "", run)
		if err != nil {
			return err
		}
		// A fault says that nothing of it concerns this run.
		if _, err := p.apply(tx, h, of(h)); err != nil {
			return err
		}
	}
	return p.lapseVerifications(tx, worker, reason)
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

// keys remembers public keys. A key never changes, so what was read once is right for good;
// whether its owner is revoked is asked of the store each time.
type keys struct {
	mu sync.Mutex
	of map[ops.IdentityID]ed25519.PublicKey
}

// maxKeys bounds the keys that are remembered. All are forgotten when there are more.
const maxKeys = 10_000

// proved checks that s is signed by worker and returns its key.
func (p *Plane) proved(ctx context.Context, s *wire.Sealed, worker ops.IdentityID) (ed25519.PublicKey, error) {
	p.keys.mu.Lock()
	key := p.keys.of[worker]
	p.keys.mu.Unlock()
	if key == nil && worker.Valid() {
		if err := p.store.View(ctx, func(tx journal.Tx) error {
			who, _, err := p.principal(tx, worker)
			key = who.key
			return err
		}); err != nil {
			return nil, stored(err)
		}
		if key != nil {
			p.keys.mu.Lock()
			if p.keys.of == nil || len(p.keys.of) >= maxKeys {
				p.keys.of = make(map[ops.IdentityID]ed25519.PublicKey)
			}
			p.keys.of[worker] = key
			p.keys.mu.Unlock()
		}
	}
	if key == nil || s.Prove(key) != nil {
		return nil, p.badSignature("the message is not signed by the key of the worker that it names")
	}
	return key, nil
}

// speaks returns a fault unless who, as by's token says, may speak in its boot now.
func speaks(who principalRow, known bool, by ops.Identity, boot string) *ops.Fault {
	switch {
	case !known || who.identity() != by || who.revoked:
		return final(ops.Unauthenticated, "%s is no worker, or is revoked", by)
	case boot != who.boot || boot == "":
		return final(ops.StaleFence, "the boot %s of %s has ended; begin another one", strings.TrimSpace(shown(boot)), by.ID).With("reason", "boot_ended")
	}
	return nil
}
