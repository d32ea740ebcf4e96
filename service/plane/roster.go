package plane

import (
	"context"
	"encoding/json"
	"fmt"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// WorkerListing is a worker or a verifier.
type WorkerListing struct {
	Worker          ops.IdentityID `json:"worker"`
	Role            ops.Role       `json:"role"`
	State           string         `json:"state" enum:"new,ready,draining,revoked"` // new has never begun
	Draining        bool           `json:"draining,omitempty"`                      // nothing more is granted to it
	KeyID           string         `json:"key_id"`
	PublicKey       []byte         `json:"public_key"` // Ed25519, 32 bytes
	Implementations []string       `json:"implementations"`
	Capabilities    []string       `json:"capabilities"`
	Version         string         `json:"version,omitempty"`
	Boot            string         `json:"boot,omitempty"`
	BootAt          string         `json:"boot_at,omitempty"`
	SeenAt          string         `json:"seen_at,omitempty"`
	SkewMS          int64          `json:"skew_ms"` // its clock less the store's, as last seen; it decides nothing
	Leases          int            `json:"leases"`  // that it has now
	EnrolledAt      string         `json:"enrolled_at"`
	RevokedAt       string         `json:"revoked_at,omitempty"`
}

// WorkerPage is a page of workers and verifiers, by name.
type WorkerPage struct {
	Workers []WorkerListing `json:"workers"`
	Next    ops.IdentityID  `json:"next,omitempty"`
}

// Workers returns workers and verifiers, by name. Filters: role, state ("live" are those
// that are not revoked).
func (p *Plane) Workers(ctx context.Context, q service.Query) (WorkerPage, error) {
	limit, err := service.PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return WorkerPage{}, err
	}
	role, state := q.Filter["role"], q.Filter["state"]
	if role != "" && role != string(ops.Worker) && role != string(ops.Verifier) {
		return WorkerPage{}, ops.Faultf(ops.BadRequest, "role %s: want worker or verifier", shown(role))
	}
	live := map[string]string{"": "", "live": ` AND p.revoked_at IS NULL`, "revoked": ` AND p.revoked_at IS NOT NULL`}
	narrowed, ok := live[state]
	if !ok {
		return WorkerPage{}, ops.Faultf(ops.BadRequest, "state %s: want live or revoked", shown(state))
	}
	page := WorkerPage{}
	err = p.store.View(ctx, func(tx journal.Tx) (err error) {
		page.Workers, err = listWorkers(tx, `p.id > $1 AND ($2 = '' OR p.role = $2)`+narrowed+` ORDER BY p.id LIMIT $3`, q.After, role, int64(limit+1))
		return err
	})
	if err != nil {
		return WorkerPage{}, err
	}
	if len(page.Workers) > limit {
		page.Workers = page.Workers[:limit]
		page.Next = page.Workers[limit-1].Worker
	}
	return page, nil
}

// WorkerShowing is a worker or verifier with its leases.
type WorkerShowing struct {
	WorkerListing
	Holds []LeaseShowing `json:"holds"` // at most 200
}

// LeaseShowing is a lease that somebody has.
type LeaseShowing struct {
	Delegation string `json:"delegation"`
	Subject    string `json:"subject"` // a run, or a verification
	State      string `json:"state"`
	Fence      int64  `json:"fence"`
	LeaseUntil string `json:"lease_until"`
}

// Worker returns a worker or a verifier, or NotFound.
func (p *Plane) Worker(ctx context.Context, id string) (s WorkerShowing, err error) {
	err = p.store.View(ctx, func(tx journal.Tx) error {
		s, err = showWorker(tx, ops.IdentityID(id))
		return err
	})
	return s, err
}

func listWorkers(tx journal.Tx, where string, args ...any) ([]WorkerListing, error) {
	list := []WorkerListing{}
	err := tx.Query(`SELECT p.id, p.role, p.key_id, p.public_key, p.implementations, p.capabilities, p.version, p.boot, p.boot_at, p.seen_at, p.skew_ms, p.draining, p.enrolled_at, p.revoked_at,
			(SELECT count(*) FROM dispatch x WHERE x.worker = p.id AND x.state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED'))
			+ (SELECT count(*) FROM verification v WHERE v.verifier = p.id AND v.state = 'LEASED')
			FROM principal p WHERE `+where,
		func(scan func(...any) error) error {
			var w WorkerListing
			var implementations, capabilities string
			var boot, seen, revoked *int64
			var draining, enrolled, leases int64
			if err := scan((*string)(&w.Worker), (*string)(&w.Role), &w.KeyID, &w.PublicKey, &implementations, &capabilities, &w.Version, &w.Boot, &boot, &seen, &w.SkewMS, &draining, &enrolled, &revoked, &leases); err != nil {
				return err
			}
			for i, into := range []*[]string{&w.Implementations, &w.Capabilities} {
				if err := json.Unmarshal([]byte([]string{implementations, capabilities}[i]), into); err != nil {
					return fmt.Errorf("worker %s: %w", w.Worker, err)
				}
				*into = orEmpty(*into)
			}
			w.BootAt, w.SeenAt, w.EnrolledAt, w.RevokedAt, w.Leases, w.Draining = maybeMS(boot), maybeMS(seen), stampMS(enrolled), maybeMS(revoked), int(leases), draining != 0
			switch {
			case revoked != nil:
				w.State = "revoked"
			case w.Boot == "":
				w.State = "new"
			case draining != 0:
				w.State = "draining"
			default:
				w.State = "ready"
			}
			list = append(list, w)
			return nil
		}, args...)
	return list, err
}

// showWorker reads a worker or verifier, or NotFound.
func showWorker(tx journal.Tx, id ops.IdentityID) (WorkerShowing, error) {
	list, err := listWorkers(tx, `p.id = $1`, string(id))
	if err != nil {
		return WorkerShowing{}, err
	}
	if len(list) == 0 {
		return WorkerShowing{}, ops.Faultf(ops.NotFound, "there is no worker or verifier %s", shown(string(id)))
	}
	s := WorkerShowing{WorkerListing: list[0], Holds: []LeaseShowing{}}
	err = tx.Query(`SELECT delegation, run, state, fence, lease_until FROM dispatch WHERE worker = $1 AND state IN ('LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED')
			UNION ALL SELECT delegation, id, state, fence, lease_until FROM verification WHERE verifier = $1 AND state = 'LEASED' ORDER BY 2 LIMIT 200`,
		func(scan func(...any) error) error {
			var l LeaseShowing
			var until int64
			if err := scan(&l.Delegation, &l.Subject, &l.State, &l.Fence, &until); err != nil {
				return err
			}
			l.LeaseUntil = stampMS(until)
			s.Holds = append(s.Holds, l)
			return nil
		}, string(id))
	return s, err
}

// Showing is the plane as a whole.
type Showing struct {
	State         string           `json:"state" enum:"off,on,drain"`
	Term          int64            `json:"term"`                 // of fences
	HoldUntil     string           `json:"hold_until,omitempty"` // no lease expires before, if that is ahead
	ChangedAt     string           `json:"changed_at,omitempty"`
	Delegations   map[string]int64 `json:"delegations"`   // open ones by state
	Runs          map[string]int64 `json:"runs"`          // those that are not final, by state
	Verifications map[string]int64 `json:"verifications"` // waiting and leased
	Workers       map[string]int64 `json:"workers"`       // that are not revoked, by role
	Unable        int64            `json:"unable"`        // runs that are offered and that no worker there is could take
	OldestOffer   int64            `json:"oldest_offer_seconds"`
}

// Status returns the plane as a whole.
func (p *Plane) Status(ctx context.Context) (s Showing, err error) {
	err = p.store.View(ctx, func(tx journal.Tx) error {
		s, err = showPlane(tx)
		return err
	})
	return s, err
}

// showPlane reads the plane as a whole.
func showPlane(tx journal.Tx) (Showing, error) {
	s := Showing{}
	var hold, changed int64
	if err := tx.Query(`SELECT state, term, hold_until, changed_at FROM plane WHERE id = 1`, func(scan func(...any) error) error {
		return scan(&s.State, &s.Term, &hold, &changed)
	}); err != nil {
		return Showing{}, err
	}
	now := tx.Now().UnixMilli()
	if hold > now {
		s.HoldUntil = stampMS(hold)
	}
	if changed > 0 {
		s.ChangedAt = stampMS(changed)
	}
	for _, c := range []struct {
		into *map[string]int64
		sql  string
	}{
		{&s.Delegations, `SELECT state, count(*) FROM delegation WHERE state IN ('OPEN', 'VERIFYING', 'EVIDENCE_MISSING', 'VERIFIER_UNAVAILABLE') AND closed_at IS NULL GROUP BY state`},
		{&s.Runs, `SELECT state, count(*) FROM dispatch WHERE state IN ('DISPATCHED', 'LEASED', 'RUNNING', 'CHECKPOINTED', 'CANCEL_REQUESTED', 'UNKNOWN', 'RECOVERING', 'WAITING_HUMAN') GROUP BY state`},
		{&s.Verifications, `SELECT state, count(*) FROM verification WHERE state IN ('WAITING', 'LEASED') GROUP BY state`},
		{&s.Workers, `SELECT role, count(*) FROM principal WHERE revoked_at IS NULL GROUP BY role`},
	} {
		*c.into = make(map[string]int64)
		if err := tx.Query(c.sql, func(scan func(...any) error) error {
			var what string
			var n int64
			if err := scan(&what, &n); err != nil {
				return err
			}
			(*c.into)[what] = n
			return nil
		}); err != nil {
			return Showing{}, err
		}
	}
	var oldest *int64
	if err := tx.Query(`SELECT min(not_before) FROM dispatch WHERE state = 'DISPATCHED' AND not_before <= $1`, func(scan func(...any) error) error { return scan(&oldest) }, now); err != nil {
		return Showing{}, err
	}
	if oldest != nil {
		s.OldestOffer = (now - *oldest) / 1000
	}
	var err error
	s.Unable, err = unserved(tx)
	return s, err
}
