package artifacts

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/journal"
)

// MaxAttestations bounds what one run may attest of the same bytes.
const MaxAttestations = 16

// ErrAttestations: a run has attested the same bytes often enough.
var ErrAttestations = errors.New("too many attestations")

// Attestation is a statement that somebody has signed. Whoever writes one has proved the
// signature and that the statement is about bytes that the run has left.
type Attestation struct {
	Digest     Digest
	Name       string
	Run        string
	Delegation string
	Producer   ops.IdentityID
	Fence      int64
	KeyID      string          // whose signature the envelope carries
	Statement  string          // digest of the signed payload
	Envelope   json.RawMessage // DSSE
	At         time.Time       // when it came, by the store's clock
}

// Said reads the statement in the envelope. It proves nothing: whoever wants that takes the
// envelope and the producer's key to package service/plane/wire.
func (a Attestation) Said() (Statement, error) {
	var e struct {
		Payload []byte `json:"payload"` // standard base64
	}
	if err := json.Unmarshal(a.Envelope, &e); err != nil {
		return Statement{}, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	return ReadStatement(e.Payload)
}

// Attest writes a row for a in tx. The same statement again changes nothing. The error
// is ErrAttestations if the run has attested these bytes MaxAttestations times.
func Attest(tx journal.Tx, a Attestation) error {
	n := 0
	known := false
	if err := tx.Query(`SELECT statement FROM attestation WHERE run = $1 AND digest = $2`, func(scan func(...any) error) error {
		var s string
		err := scan(&s)
		n++
		known = known || s == a.Statement
		return err
	}, a.Run, string(a.Digest)); err != nil || known {
		return err
	}
	if n >= MaxAttestations {
		return fmt.Errorf("%w: %d of %s by %s", ErrAttestations, n, a.Digest, a.Run)
	}
	_, err := tx.Exec(`INSERT INTO attestation (id, digest, name, run, delegation, producer, fence, key_id, statement, envelope, at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		"t-"+strings.ToLower(ulid.Make().String()), string(a.Digest), a.Name, a.Run, a.Delegation, string(a.Producer), a.Fence, a.KeyID,
		a.Statement, string(a.Envelope), tx.Now().UnixMilli())
	return err
}

// Attestations returns what was attested of d, the oldest first: by a run, or by any if
// run is empty, then at most 200.
func Attestations(tx journal.Tx, run string, d Digest) ([]Attestation, error) {
	var list []Attestation
	err := tx.Query(`SELECT digest, name, run, delegation, producer, fence, key_id, statement, envelope, at FROM attestation
			WHERE digest = $1 AND ($2 = '' OR run = $2) ORDER BY id LIMIT 200`,
		func(scan func(...any) error) error {
			var a Attestation
			var at int64
			var envelope string
			if err := scan((*string)(&a.Digest), &a.Name, &a.Run, &a.Delegation, (*string)(&a.Producer), &a.Fence, &a.KeyID, &a.Statement, &envelope, &at); err != nil {
				return err
			}
			a.Envelope, a.At = json.RawMessage(envelope), time.UnixMilli(at).UTC()
			list = append(list, a)
			return nil
		}, string(d), run)
	return list, err
}

// Left says of a file of a run whether its bytes have arrived, in that number, and
// whether the run has attested them under that name.
func Left(tx journal.Tx, run, name string, d Digest, bytes int64) (there, attested bool, err error) {
	if err = tx.Query(`SELECT 1 FROM artifact WHERE run = $1 AND name = $2 AND digest = $3 AND bytes = $4`, func(func(...any) error) error {
		there = true
		return nil
	}, run, name, string(d), bytes); err != nil {
		return false, false, err
	}
	err = tx.Query(`SELECT 1 FROM attestation WHERE run = $1 AND name = $2 AND digest = $3 LIMIT 1`, func(func(...any) error) error {
		attested = true
		return nil
	}, run, name, string(d))
	return there, attested, err
}
