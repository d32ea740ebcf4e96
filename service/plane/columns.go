package plane

import (
	"encoding/json"
	"fmt"
	"time"

	"inband/ops"
	"inband/service/journal"
)

// milli is a moment as a column holds it.
func milli(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// fromMilli is what a column says.
func fromMilli(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}

// stampOf writes a moment, "" if it is none.
func stampOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ops.Stamp(t)
}

// stampMS writes a time of a table.
func stampMS(ms int64) string { return ops.Stamp(time.UnixMilli(ms)) }

// maybeMS writes a time of a table that may be absent.
func maybeMS(ms *int64) string { return stampOf(fromMilli(ms)) }

// orNull is a text as a column holds it, "" being none.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// orZero is a number as a column holds it, 0 being none.
func orZero(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// flag is a bool as a column holds it.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
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

// texts reads one column.
func texts(tx journal.Tx, sql string, args ...any) (list []string, err error) {
	err = tx.Query(sql, func(scan func(...any) error) error {
		var s string
		err := scan(&s)
		list = append(list, s)
		return err
	}, args...)
	return list, err
}

func exists(tx journal.Tx, sql string, args ...any) (bool, error) {
	n := 0
	err := tx.Query(sql, func(scan func(...any) error) error { return scan(&n) }, args...)
	return n > 0, err
}
