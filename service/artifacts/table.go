package artifacts

import (
	"embed"
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

// Schema returns the table of this package, for the store to create.
func Schema() journal.Schema {
	sub, err := fs.Sub(schema, "schema")
	if err != nil {
		panic(err) // embedded
	}
	return journal.Schema{Name: "artifacts", FS: sub}
}

// ID is the id of one publication, "f-" and a lower-case ULID. Ids sort by the time
// they were made.
type ID string

// Artifact is bytes that somebody published under a name. The same bytes may have been
// published more than once, by others too; each time is an artifact of its own.
type Artifact struct {
	ID        ID
	Digest    Digest
	Name      string // as the publisher calls it; never a path to open
	Kind      string // media type, as declared; nobody has looked whether it is one
	Bytes     int64
	Call      ops.CallID // what published it; empty if it was no call
	Owner     ops.Identity
	CreatedAt time.Time

	// Of what a run has left; empty for others. Owner is then whose the delegation is.
	Run        string
	Delegation string
	Producer   ops.IdentityID // the worker that sent it
	Upload     UploadID       // by which it came; empty if the bytes were there
}

// Add writes a row for a in tx, with an id and the time of its own, and its event
// artifact.published. The bytes are durable already. A call that has published a name
// does not publish it again; a run may leave other bytes under one, but not the same
// ones twice.
func Add(tx journal.Tx, a Artifact) error {
	a.ID = ID("f-" + strings.ToLower(ulid.Make().String()))
	n, err := tx.Exec(`INSERT INTO artifact (id, digest, name, kind, bytes, call, owner_id, owner_role, created_at, run, delegation, producer, upload)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT DO NOTHING`,
		string(a.ID), string(a.Digest), a.Name, a.Kind, a.Bytes, orNull(string(a.Call)), string(a.Owner.ID), string(a.Owner.Role), tx.Now().UnixMilli(),
		orNull(a.Run), orNull(a.Delegation), orNull(string(a.Producer)), orNull(string(a.Upload)))
	if err != nil || n == 0 {
		return err
	}
	e := struct {
		Artifact   ID             `json:"artifact"`
		Digest     Digest         `json:"digest"`
		Name       string         `json:"name,omitempty"`
		Kind       string         `json:"kind,omitempty"`
		Bytes      int64          `json:"bytes"`
		Call       ops.CallID     `json:"call,omitempty"`
		Run        string         `json:"run,omitempty"`
		Delegation string         `json:"delegation,omitempty"`
		Producer   ops.IdentityID `json:"producer,omitempty"`
		By         ops.Identity   `json:"by"`
	}{a.ID, a.Digest, a.Name, a.Kind, a.Bytes, a.Call, a.Run, a.Delegation, a.Producer, a.Owner}
	if a.Run != "" {
		e.Name, e.Kind = "", "" // a worker's words
	}
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("event artifact.published: %w", err)
	}
	return tx.Append("artifact/"+string(a.Digest), journal.Any, "artifact.published", body)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Query says which artifacts are wanted.
type Query struct {
	Digest Digest // only these bytes; empty is all
	Run    string // only what this run has left; empty is all
	After  ID     // only what is older than this one; empty is from the newest on
	// By is who asks. Enrolled is about it: whether it is a bridge that the owner is
	// enrolled with.
	By ops.IdentityID
	// Near leaves out what is neither By's own nor that of an agent enrolled with it. It
	// is for lists; a query by digest has all owners.
	Near bool
}

// List calls f with each artifact that q asks for, the newest first, until f returns an
// error, which is returned as it is. f must not use tx. The tables of package access are
// needed, too.
func List(tx journal.Tx, q Query, f func(a Artifact, enrolled bool) error) error {
	// One query each, so that each has an index to go by.
	which := `$2 = ''`
	switch {
	case q.Digest != "":
		which = `a.digest = $2`
	case q.Run != "":
		which = `$2 = '' AND a.run = $4`
	case q.Near:
		which = `$2 = '' AND a.owner_id IN (SELECT $1 UNION SELECT n.agent FROM enrolment n WHERE n.bridge = $1)`
	}
	return tx.Query(`SELECT a.id, a.digest, a.name, a.kind, a.bytes, a.call, a.owner_id, a.owner_role, a.created_at, a.run, a.delegation, a.producer, a.upload, e.agent IS NOT NULL
			FROM artifact a
			LEFT JOIN (SELECT n.agent FROM enrolment n
				JOIN identity i ON i.id = n.agent AND i.revoked_at IS NULL
				JOIN identity b ON b.id = n.bridge AND b.revoked_at IS NULL
				WHERE n.bridge = $1) e ON e.agent = a.owner_id
			WHERE `+which+` AND ($3 = '' OR a.id < $3) AND ($4 = '' OR a.run = $4) ORDER BY a.id DESC`,
		func(scan func(...any) error) error {
			var a Artifact
			var at int64
			var call, run, delegation, producer, upload *string
			var enrolled bool
			if err := scan((*string)(&a.ID), (*string)(&a.Digest), &a.Name, &a.Kind, &a.Bytes, &call,
				(*string)(&a.Owner.ID), (*string)(&a.Owner.Role), &at, &run, &delegation, &producer, &upload, &enrolled); err != nil {
				return err
			}
			a.Call, a.Run, a.Delegation = ops.CallID(orEmpty(call)), orEmpty(run), orEmpty(delegation)
			a.Producer, a.Upload = ops.IdentityID(orEmpty(producer)), UploadID(orEmpty(upload))
			a.CreatedAt = time.UnixMilli(at).UTC()
			return f(a, enrolled)
		}, string(q.By), string(q.Digest), string(q.After), q.Run)
}

// Digests returns up to limit of the digests that artifacts have, in their order, after
// one; empty is from the first on.
func Digests(tx journal.Tx, after Digest, limit int) ([]Digest, error) {
	var list []Digest
	err := tx.Query(`SELECT DISTINCT digest FROM artifact WHERE digest > $1 ORDER BY digest LIMIT $2`,
		func(scan func(...any) error) error {
			var d Digest
			if err := scan((*string)(&d)); err != nil {
				return err
			}
			list = append(list, d)
			return nil
		}, string(after), int64(limit))
	return list, err
}
