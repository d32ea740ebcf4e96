package threads

import (
	"context"
	"strings"
	"unicode/utf8"

	"inband/ops"
	"inband/service/journal"
)

// Cursor returns where an adaptor is to go on reading its platform, as SetCursor was told,
// false if it never was.
func (t *Threads) Cursor(ctx context.Context, adaptor string) (value string, ok bool, err error) {
	err = t.store.View(ctx, func(tx journal.Tx) error {
		value, ok = "", false
		return tx.Query(`SELECT value FROM cursor WHERE adaptor = $1`, func(scan func(...any) error) error {
			ok = true
			return scan(&value)
		}, adaptor)
	})
	return value, ok, err
}

// maxCursor bounds a cursor, in bytes.
const maxCursor = 64 << 10

// SetCursor keeps value, at most 64 KiB of text, as where an adaptor is to go on. It is set
// after Receive has returned for all that is before it.
func (t *Threads) SetCursor(ctx context.Context, adaptor, value string) error {
	if len(value) > maxCursor || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return ops.Faultf(ops.BadRequest, "cursor: want at most %d bytes of UTF-8 without U+0000", maxCursor)
	}
	return t.store.Update(ctx, func(tx journal.Tx) error {
		_, err := tx.Exec(`INSERT INTO cursor (adaptor, value, set_at) VALUES ($1, $2, $3)
				ON CONFLICT (adaptor) DO UPDATE SET value = excluded.value, set_at = excluded.set_at`, adaptor, value, tx.Now().UnixMilli())
		return err
	})
}
