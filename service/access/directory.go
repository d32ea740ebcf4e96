package access

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/journal"
)

//go:embed schema
var schema embed.FS

// Schema returns the tables of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "access", FS: sub}
}

// TokenPrefix begins every token, so that scanners of leaked secrets find them.
const TokenPrefix = "ibt_"

// tokenBytes is the entropy of a token.
const tokenBytes = 32

// Listing is an identity as it is listed. It holds nothing that opens anything.
type Listing struct {
	ops.Identity
	CreatedAt string           `json:"created_at"` // as ops.Stamp writes it
	RevokedAt string           `json:"revoked_at,omitempty"`
	Tokens    []TokenListing   `json:"tokens"`
	Agents    []ops.IdentityID `json:"agents,omitempty"` // a bridge's
}

// TokenListing describes a token without giving it away.
type TokenListing struct {
	ID        string `json:"id"`
	Hint      string `json:"hint"` // the prefix and the first four characters
	CreatedAt string `json:"created_at"`
	RevokedAt string `json:"revoked_at,omitempty"`
}

// Directory is the identities of a store.
type Directory struct{ store journal.Store }

// NewDirectory returns the identities in store, whose schemas include Schema.
func NewDirectory(store journal.Store) *Directory { return &Directory{store} }

// Add makes an identity with one token and returns the token, which cannot be had
// again. agents are the agents that a bridge hands in replies for; they must exist
// and have the role agent. An id that exists is a Conflict.
func (d *Directory) Add(ctx context.Context, id ops.Identity, agents ...ops.IdentityID) (token string, err error) {
	switch {
	case !id.ID.Valid():
		return "", ops.Faultf(ops.BadRequest, "the id %q: want a-z, 0-9, then also . _ -, at most 64 bytes", clip(string(id.ID)))
	case !known(id.Role):
		return "", ops.Faultf(ops.BadRequest, "the role %q: want agent, operator, bridge, worker or verifier", clip(string(id.Role)))
	case id.Role != ops.Bridge && len(agents) > 0:
		return "", ops.Faultf(ops.BadRequest, "only a bridge has agents, and %s is no bridge", id.ID)
	}
	token = NewToken()
	err = d.store.Update(ctx, func(tx journal.Tx) error {
		n, err := tx.Exec(`INSERT INTO identity (id, role, created_at) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`,
			string(id.ID), string(id.Role), tx.Now().UnixMilli())
		if err != nil {
			return err
		}
		if n == 0 {
			return ops.Faultf(ops.Conflict, "the identity %s exists; ids are never used again", id.ID)
		}
		if err := keepToken(tx, id.ID, token); err != nil {
			return err
		}
		for _, agent := range agents {
			got, err := identity(tx, agent)
			if err != nil {
				return err
			}
			if got.Role != ops.Agent {
				return ops.Faultf(ops.BadRequest, "there is no agent %q to enrol", clip(string(agent)))
			}
			if _, err := tx.Exec(`INSERT INTO enrolment (bridge, agent) VALUES ($1, $2) ON CONFLICT DO NOTHING`, string(id.ID), string(agent)); err != nil {
				return err
			}
		}
		return event(tx, id.ID, "agent.added", struct {
			ops.Identity
			Agents []ops.IdentityID `json:"agents,omitempty"`
		}{id, agents})
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// known reports whether a principal can have the role.
func known(role ops.Role) bool {
	_, ok := principals[role]
	return ok
}

// Revoke ends an identity and its tokens for good. One that is revoked already
// stays as it is; one that does not exist is NotFound. The last operator cannot be
// revoked, since nobody could then make another.
func (d *Directory) Revoke(ctx context.Context, id ops.IdentityID) (at time.Time, err error) {
	err = d.store.Update(ctx, func(tx journal.Tx) error {
		role, revoked := ops.Role(""), (*int64)(nil)
		if err := tx.Query(`SELECT role, revoked_at FROM identity WHERE id = $1`,
			func(scan func(...any) error) error { return scan((*string)(&role), &revoked) }, string(id)); err != nil {
			return err
		}
		if role == "" {
			return unknownIdentity(id)
		}
		if revoked != nil {
			at = time.UnixMilli(*revoked).UTC()
			return nil
		}
		at = tx.Now()
		if role == ops.Operator {
			others := 0
			if err := tx.Query(`SELECT count(*) FROM identity WHERE role = 'operator' AND revoked_at IS NULL AND id <> $1`,
				func(scan func(...any) error) error { return scan(&others) }, string(id)); err != nil {
				return err
			}
			if others == 0 {
				return ops.Faultf(ops.Conflict, "%s is the last operator; add another one first", id)
			}
		}
		if _, err := tx.Exec(`UPDATE identity SET revoked_at = $1 WHERE id = $2`, at.UnixMilli(), string(id)); err != nil {
			return err
		}
		if err := endTokens(tx, id); err != nil {
			return err
		}
		return event(tx, id, "agent.revoked", map[string]any{"id": id})
	})
	return at, err
}

// Rotate gives an identity a new token, which cannot be had again, and ends its others
// in the same commit. An identity that does not exist is NotFound; one that is revoked
// is a Conflict and stays so.
func (d *Directory) Rotate(ctx context.Context, id ops.IdentityID) (token string, err error) {
	token = NewToken()
	err = d.store.Update(ctx, func(tx journal.Tx) error {
		known, revoked := false, (*int64)(nil)
		if err := tx.Query(`SELECT revoked_at FROM identity WHERE id = $1`, func(scan func(...any) error) error {
			known = true
			return scan(&revoked)
		}, string(id)); err != nil {
			return err
		}
		switch {
		case !known:
			return unknownIdentity(id)
		case revoked != nil:
			return ops.Faultf(ops.Conflict, "the identity %s is revoked for good; make another one", id)
		}
		if err := endTokens(tx, id); err != nil {
			return err
		}
		if err := keepToken(tx, id, token); err != nil {
			return err
		}
		return event(tx, id, "agent.rotated", map[string]any{"id": id})
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// keepToken writes what the store keeps of a token of id.
func keepToken(tx journal.Tx, id ops.IdentityID, token string) error {
	_, err := tx.Exec(`INSERT INTO token (id, hash, identity, hint, created_at) VALUES ($1, $2, $3, $4, $5)`,
		"k-"+strings.ToLower(ulid.Make().String()), hash(token), string(id), token[:len(TokenPrefix)+4], tx.Now().UnixMilli())
	return err
}

// endTokens ends all tokens that id has.
func endTokens(tx journal.Tx, id ops.IdentityID) error {
	_, err := tx.Exec(`UPDATE token SET revoked_at = $1 WHERE identity = $2 AND revoked_at IS NULL`, tx.Now().UnixMilli(), string(id))
	return err
}

// Authenticate returns the identity that token proves. A token that is missing,
// malformed, unknown or revoked is the same Unauthenticated fault, which does not
// say which.
func (d *Directory) Authenticate(ctx context.Context, token string) (ops.Identity, error) {
	var who ops.Identity
	if strings.HasPrefix(token, TokenPrefix) && len(token) == len(TokenPrefix)+2*tokenBytes {
		err := d.store.View(ctx, func(tx journal.Tx) error {
			return tx.Query(`SELECT i.id, i.role FROM token t JOIN identity i ON i.id = t.identity
				WHERE t.hash = $1 AND t.revoked_at IS NULL AND i.revoked_at IS NULL`,
				func(scan func(...any) error) error { return scan((*string)(&who.ID), (*string)(&who.Role)) }, hash(token))
		})
		if err != nil {
			return ops.Identity{}, err
		}
	}
	if who == (ops.Identity{}) {
		return who, ops.Faultf(ops.Unauthenticated, "no valid token; send Authorization: Bearer %s…", TokenPrefix)
	}
	return who, nil
}

// List returns the identities with the given role, or all if role is empty,
// ordered by id.
func (d *Directory) List(ctx context.Context, role ops.Role) (l []Listing, err error) {
	err = d.store.View(ctx, func(tx journal.Tx) error {
		l, err = list(tx, "", role)
		return err
	})
	return l, err
}

// Show returns one identity, or NotFound.
func (d *Directory) Show(ctx context.Context, id ops.IdentityID) (Listing, error) {
	var l []Listing
	err := d.store.View(ctx, func(tx journal.Tx) (err error) {
		l, err = list(tx, id, "")
		return err
	})
	if err != nil {
		return Listing{}, err
	}
	if len(l) == 0 {
		return Listing{}, unknownIdentity(id)
	}
	return l[0], nil
}

// Live returns the identity id as it stands in tx: its role, and false if it does
// not exist or is revoked.
func Live(tx journal.Tx, id ops.IdentityID) (ops.Identity, bool, error) {
	who, err := identity(tx, id)
	return who, who != (ops.Identity{}), err
}

// Enrolled reports whether bridge may act for agent, both being unrevoked.
func Enrolled(tx journal.Tx, bridge, agent ops.IdentityID) (bool, error) {
	n := 0
	err := tx.Query(`SELECT count(*) FROM enrolment e
		JOIN identity b ON b.id = e.bridge AND b.revoked_at IS NULL
		JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL
		WHERE e.bridge = $1 AND e.agent = $2`,
		func(scan func(...any) error) error { return scan(&n) }, string(bridge), string(agent))
	return n > 0, err
}

func identity(tx journal.Tx, id ops.IdentityID) (who ops.Identity, err error) {
	err = tx.Query(`SELECT id, role FROM identity WHERE id = $1 AND revoked_at IS NULL`,
		func(scan func(...any) error) error { return scan((*string)(&who.ID), (*string)(&who.Role)) }, string(id))
	return who, err
}

// list reads identities with their tokens and agents: one when id is given.
func list(tx journal.Tx, id ops.IdentityID, role ops.Role) ([]Listing, error) {
	var l []Listing
	index := make(map[ops.IdentityID]int)
	err := tx.Query(`SELECT id, role, created_at, revoked_at FROM identity
		WHERE ($1 = '' OR id = $1) AND ($2 = '' OR role = $2) ORDER BY id`,
		func(scan func(...any) error) error {
			var one Listing
			var created int64
			var revoked *int64
			if err := scan((*string)(&one.ID), (*string)(&one.Role), &created, &revoked); err != nil {
				return err
			}
			one.CreatedAt, one.RevokedAt, one.Tokens = stamp(&created), stamp(revoked), []TokenListing{}
			index[one.ID] = len(l)
			l = append(l, one)
			return nil
		}, string(id), string(role))
	if err != nil {
		return nil, err
	}
	err = tx.Query(`SELECT identity, id, hint, created_at, revoked_at FROM token WHERE ($1 = '' OR identity = $1) ORDER BY id`,
		func(scan func(...any) error) error {
			var owner string
			var t TokenListing
			var created int64
			var revoked *int64
			if err := scan(&owner, &t.ID, &t.Hint, &created, &revoked); err != nil {
				return err
			}
			t.CreatedAt, t.RevokedAt = stamp(&created), stamp(revoked)
			if i, ok := index[ops.IdentityID(owner)]; ok {
				l[i].Tokens = append(l[i].Tokens, t)
			}
			return nil
		}, string(id))
	if err != nil {
		return nil, err
	}
	err = tx.Query(`SELECT bridge, agent FROM enrolment WHERE ($1 = '' OR bridge = $1) ORDER BY bridge, agent`,
		func(scan func(...any) error) error {
			var bridge, agent string
			if err := scan(&bridge, &agent); err != nil {
				return err
			}
			if i, ok := index[ops.IdentityID(bridge)]; ok {
				l[i].Agents = append(l[i].Agents, ops.IdentityID(agent))
			}
			return nil
		}, string(id))
	return l, err
}

func event(tx journal.Tx, id ops.IdentityID, kind string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return tx.Append("identity/"+string(id), journal.Any, kind, b)
}

func unknownIdentity(id ops.IdentityID) error {
	return ops.Faultf(ops.NotFound, "there is no identity %q", clip(string(id)))
}

// hash is what the store keeps of a token. A token has 256 bits of entropy, so a
// plain hash cannot be searched.
func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// stamp writes a moment of the store, "" for none.
func stamp(ms *int64) string {
	if ms == nil {
		return ""
	}
	return ops.Stamp(time.UnixMilli(*ms))
}

// clip bounds what is repeated of a caller's words.
func clip(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
