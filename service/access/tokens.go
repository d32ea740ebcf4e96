package access

import (
	"crypto/rand"
	"encoding/hex"

	"inband/ops"
	"inband/service/journal"
)

// Make adds, in tx, an identity that has no token yet. An id that exists, also a revoked
// one, is a Conflict: ids are never used again.
func Make(tx journal.Tx, id ops.Identity) error {
	if !id.ID.Valid() || !known(id.Role) {
		return ops.Faultf(ops.BadRequest, "the identity %q of role %q: want an id of a-z, 0-9, then also . _ -, at most 64 bytes, and a role there is", clip(string(id.ID)), clip(string(id.Role)))
	}
	n, err := tx.Exec(`INSERT INTO identity (id, role, created_at) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`,
		string(id.ID), string(id.Role), tx.Now().UnixMilli())
	if err != nil {
		return err
	}
	if n == 0 {
		return ops.Faultf(ops.Conflict, "the identity %s exists; ids are never used again", id.ID)
	}
	return event(tx, id.ID, "agent.added", id)
}

// NewToken returns a token that stands for nobody until Issue has given it to somebody.
func NewToken() string {
	b := make([]byte, tokenBytes)
	if _, err := rand.Read(b); err != nil {
		panic(err) // crypto/rand does not fail on a system that runs
	}
	return TokenPrefix + hex.EncodeToString(b)
}

// Issue gives, in tx, a live identity a token of NewToken's and ends its others. NotFound
// if there is no such identity or it is revoked.
func Issue(tx journal.Tx, id ops.IdentityID, token string) error {
	if _, live, err := Live(tx, id); err != nil {
		return err
	} else if !live {
		return unknownIdentity(id)
	}
	if err := endTokens(tx, id); err != nil {
		return err
	}
	return keepToken(tx, id, token)
}

// End revokes, in tx, an identity that is no operator, and its tokens, for good. One that
// is revoked already, or does not exist, stays as it is.
func End(tx journal.Tx, id ops.IdentityID) error {
	n, err := tx.Exec(`UPDATE identity SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL AND role <> 'operator'`, tx.Now().UnixMilli(), string(id))
	if err != nil || n == 0 {
		return err
	}
	if err := endTokens(tx, id); err != nil {
		return err
	}
	return event(tx, id, "agent.revoked", map[string]any{"id": id})
}
