package main

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// lister prints a paged list.
type lister struct {
	route   route
	names   []string
	member  string // the array's name in the answer
	after   string
	limit   int // rows in all; 0 is all
	filters map[string]string
	table   *table
	row     func(*table, json.RawMessage) error
}

// maxPage is the most rows that a page of the API holds.
const maxPage = 200

// listing prints l in the mode that was asked for. With --jsonl each page is printed
// as it comes, so a list of any length needs no memory.
func (a *app) listing(ctx context.Context, c *client, l lister) error {
	if l.limit < 0 {
		return usagef("--limit is negative")
	}
	next, left := l.after, l.limit
	rows := []json.RawMessage{}
	for {
		size := maxPage
		if l.limit > 0 {
			size = min(left, maxPage)
		}
		var answer map[string]json.RawMessage
		if _, err := c.get(ctx, request{route: l.route, names: l.names, query: page(size, next, l.filters)}, &answer); err != nil {
			return err
		}
		var got []json.RawMessage
		if err := decode(answer[l.member], &got); err != nil {
			return err
		}
		next = cursor(answer["next"])
		for _, raw := range got {
			switch {
			case a.jsonl:
				if err := a.document(raw); err != nil {
					return err
				}
			case a.json:
				rows = append(rows, raw)
			default:
				if err := l.row(l.table, raw); err != nil {
					return err
				}
			}
		}
		left -= len(got)
		if next == "" || len(got) == 0 || l.limit > 0 && left <= 0 {
			break
		}
	}
	switch {
	case a.jsonl:
	case a.json:
		doc := map[string]any{l.member: rows}
		if next != "" {
			doc["next"] = next
		}
		if err := a.document(doc); err != nil {
			return err
		}
	default:
		if err := a.print(l.table); err != nil {
			return err
		}
	}
	if next != "" {
		a.notice("there are more: add --after %s", next)
	}
	return nil
}

// cursor is the value for after in an answer's next: a string, or a number's digits.
func cursor(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n int64
	if json.Unmarshal(raw, &n) == nil && n > 0 {
		return strconv.FormatInt(n, 10)
	}
	return ""
}

// pages gives cmd the flags of a paged list.
func (a *app) pages(cmd *cobra.Command, limit *int, after *string) {
	cmd.Flags().IntVar(limit, "limit", 50, "most rows, 0 for all")
	cmd.Flags().StringVar(after, "after", "", "go on behind this one")
}

// page is a query for one page of a list.
func page(limit int, after string, filters map[string]string) url.Values {
	q := url.Values{}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	if after != "" {
		q.Set("after", after)
	}
	for name, value := range filters {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// stamp writes a time for people: local, to the second.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func maybeStamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return stamp(*t)
}
