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
	"regexp"
	"strings"
	"sync"
	"time"

	"inband/failpoint"
	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/plane/wire"
)

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
	begun := 0
	if err := tx.Query(`SELECT count(*) FROM boot WHERE worker = $1 AND begun_at > $2`, func(scan func(...any) error) error { return scan(&begun) },
		string(who.id), now.Add(-time.Minute).UnixMilli()); err != nil {
		return err
	}
	if begun >= MaxBoots {
		return ops.Faultf(ops.RateLimited, "%s has begun %d times within a minute, of %d at most; something ends it", who.id, begun, MaxBoots).With("retry_after", int64(1))
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
