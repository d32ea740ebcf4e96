package threads

import (
	"context"
	"errors"
	"time"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
)

// post is one row of a thread.
type post struct {
	id       string // "" for a fresh one
	thread   string
	kind     string       // reply, result, note, message, wake, heard
	author   ops.Identity // zero: the gateway, or one who is no identity
	name     string       // of that one: the platform's id
	body     string
	call     ops.CallID
	wake     WakeID
	message  string
	platform string // the message's id on the adaptor's platform
}

// openThread makes a thread, and its room if this is the first one there.
func openThread(tx journal.Tx, room, thread string) error {
	now := tx.Now().UnixMilli()
	if _, err := tx.Exec(`INSERT INTO room (name, opened_at) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`, room, now); err != nil {
		return err
	}
	if _, err := tx.Exec(`INSERT INTO thread (id, room, opened_at, last_seq, last_at) VALUES ($1, $2, $3, 0, $3)`, thread, room, now); err != nil {
		return err
	}
	return event(tx, thread, "thread.opened", map[string]any{"thread": thread, "room": room})
}

// addPost puts p at the end of its thread and returns its id. Its author takes part
// in the thread from then on.
func addPost(tx journal.Tx, p post) (id string, err error) {
	now := tx.Now().UnixMilli()
	n, err := tx.Exec(`UPDATE thread SET last_seq = last_seq + 1, last_at = $1 WHERE id = $2`, now, p.thread)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", unknownThread(p.thread)
	}
	var seq int64
	if err := tx.Query(`SELECT last_seq FROM thread WHERE id = $1`, func(scan func(...any) error) error { return scan(&seq) }, p.thread); err != nil {
		return "", err
	}
	if id = p.id; id == "" {
		id = newPostID()
	}
	if _, err := tx.Exec(`INSERT INTO post (thread, seq, id, kind, author_id, author_role, author_name, body, posted_at, call, message, wake, platform_id)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		p.thread, seq, id, p.kind, orNull(string(p.author.ID)), orNull(string(p.author.Role)), orNull(p.name), p.body, now,
		orNull(string(p.call)), orNull(p.message), orNull(string(p.wake)), orNull(p.platform)); err != nil {
		return "", err
	}
	if p.author.ID != "" {
		if err := join(tx, p.thread, p.author.ID); err != nil {
			return "", err
		}
	}
	return id, event(tx, p.thread, "thread.posted", struct {
		Thread string     `json:"thread"`
		Seq    int64      `json:"seq"`
		Post   string     `json:"post"`
		Kind   string     `json:"kind"`
		Call   ops.CallID `json:"call,omitempty"`
	}{p.thread, seq, id, p.kind, p.call})
}

// join has who take part in thread.
func join(tx journal.Tx, thread string, who ops.IdentityID) error {
	_, err := tx.Exec(`INSERT INTO participant (thread, identity) VALUES ($1, $2) ON CONFLICT DO NOTHING`, thread, string(who))
	return err
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// MaySee returns nil when by may read thread, and NotFound when it may not or there
// is none.
func (t *Threads) MaySee(ctx context.Context, by ops.Identity, thread string) error {
	return t.store.View(ctx, func(tx journal.Tx) error { return maySee(tx, t.door.Policy(), by, thread) })
}

func maySee(tx journal.Tx, policy *access.Policy, by ops.Identity, thread string) error {
	exists := false
	if err := tx.Query(`SELECT 1 FROM thread WHERE id = $1`, func(scan func(...any) error) error {
		exists = true
		var one int
		return scan(&one)
	}, thread); err != nil {
		return err
	}
	if !exists {
		return unknownThread(thread)
	}
	if policy.Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		return nil
	}
	seen := false
	err := tx.Query(`SELECT p.identity, e.bridge IS NOT NULL FROM participant p
			LEFT JOIN (enrolment e JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL)
				ON e.agent = p.identity AND e.bridge = $2
			WHERE p.thread = $1`,
		func(scan func(...any) error) error {
			var owner string
			var enrolled bool
			if err := scan(&owner, &enrolled); err != nil {
				return err
			}
			seen = seen || policy.Decide(access.Request{By: by, Action: access.See, Owner: ops.IdentityID(owner), Enrolled: enrolled}).Allowed
			return nil
		}, thread, string(by.ID))
	if err == nil && !seen {
		return unknownThread(thread)
	}
	return err
}

// Listing is a thread as it is listed.
type Listing struct {
	ID       string `json:"id"`
	Adaptor  string `json:"adaptor"`
	Room     string `json:"room"`
	OpenedAt string `json:"opened_at"`
	Posts    int64  `json:"posts"`
	LastAt   string `json:"last_at"`
}

// Showing is a thread with a page of its posts, the oldest first.
type Showing struct {
	ID       string `json:"id"`
	Room     string `json:"room"`
	OpenedAt string `json:"opened_at"`
	Posts    []Post `json:"posts"`
	Next     int64  `json:"next,omitempty"` // after which the next page begins
}

// Post is what stands in a thread.
type Post struct {
	Seq     int64         `json:"seq"`
	ID      string        `json:"id"`
	Author  *ops.Identity `json:"author"`         // null: the gateway, or whom Name names
	Name    string        `json:"name,omitempty"` // the platform's id of one who is no identity
	Kind    string        `json:"kind"`
	Text    string        `json:"text"`
	At      string        `json:"at"`
	Call    ops.CallID    `json:"call,omitempty"`
	Message string        `json:"message,omitempty"`
	Wake    *PostWake     `json:"wake,omitempty"`  // of an envelope
	Calls   []PostCall    `json:"calls,omitempty"` // of a reply: its orders
}

// Bounds of a page.
const (
	defaultThreads = 50
	defaultPosts   = 100
	maxPage        = 200
	maxPageBytes   = 4 << 20 // of text; a page holds at least one post
)

// Reads returns the reads of this package: threads, thread and outbox.
func (t *Threads) Reads() []service.Read {
	return []service.Read{
		{Name: "threads", Do: t.list},
		{Name: "thread", Do: t.show},
		{Name: "outbox", Manage: true, Do: t.listOutbox},
	}
}

// list answers the read threads: newest first, those that by may see.
func (t *Threads) list(ctx context.Context, by ops.Identity, q service.Query) (any, error) {
	limit, err := service.PageSize(q.Limit, defaultThreads, maxPage)
	if err != nil {
		return nil, err
	}
	// Two queries, so that each has an index to go by.
	who, whose := string(by.ID), `id IN (SELECT DISTINCT p.thread FROM participant p
			WHERE p.identity IN (SELECT $1 UNION SELECT e.agent FROM enrolment e
				JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL WHERE e.bridge = $1)
			AND ($2 = '' OR p.thread < $2) ORDER BY p.thread DESC LIMIT $3)`
	if t.door.Policy().Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		who, whose = "", `$1 = '' AND ($2 = '' OR id < $2)`
	}
	page := struct {
		Threads []Listing `json:"threads"`
		Next    string    `json:"next,omitempty"`
	}{Threads: []Listing{}}
	err = t.store.View(ctx, func(tx journal.Tx) error {
		return tx.Query(`SELECT id, adaptor, room, opened_at, last_seq, last_at FROM thread
			WHERE `+whose+` ORDER BY id DESC LIMIT $3`,
			func(scan func(...any) error) error {
				var l Listing
				var opened, last int64
				if err := scan(&l.ID, &l.Adaptor, &l.Room, &opened, &l.Posts, &last); err != nil {
					return err
				}
				l.OpenedAt, l.LastAt = stamp(opened), stamp(last)
				page.Threads = append(page.Threads, l)
				return nil
			}, who, q.After, int64(limit+1))
	})
	if err != nil {
		return nil, err
	}
	if len(page.Threads) > limit {
		page.Threads = page.Threads[:limit]
		page.Next = page.Threads[limit-1].ID
	}
	return page, nil
}

// show answers the read thread. Query.After is the sequence number of the last post
// that the caller has.
func (t *Threads) show(ctx context.Context, by ops.Identity, q service.Query) (any, error) {
	limit, err := service.PageSize(q.Limit, defaultPosts, maxPage)
	if err != nil {
		return nil, err
	}
	after, err := sequence(q.After)
	if err != nil {
		return nil, err
	}
	s := Showing{Posts: []Post{}}
	err = t.store.View(ctx, func(tx journal.Tx) error {
		if err := maySee(tx, t.door.Policy(), by, q.Arg); err != nil {
			return err
		}
		if err := tx.Query(`SELECT id, room, opened_at FROM thread WHERE id = $1`, func(scan func(...any) error) error {
			var opened int64
			if err := scan(&s.ID, &s.Room, &opened); err != nil {
				return err
			}
			s.OpenedAt = stamp(opened)
			return nil
		}, q.Arg); err != nil {
			return err
		}
		size := 0
		err := tx.Query(`SELECT seq, id, kind, author_id, author_role, author_name, body, posted_at, call, message FROM post
			WHERE thread = $1 AND seq > $2 ORDER BY seq LIMIT $3`,
			func(scan func(...any) error) error {
				var p Post
				var at int64
				var author, role, name, call, message *string
				if err := scan(&p.Seq, &p.ID, &p.Kind, &author, &role, &name, &p.Text, &at, &call, &message); err != nil {
					return err
				}
				size += len(p.Text)
				if len(s.Posts) > 0 && (len(s.Posts) == limit || size > maxPageBytes) {
					s.Next = s.Posts[len(s.Posts)-1].Seq
					return errPageFull // what follows may be large and is not even read
				}
				p.At = stamp(at)
				if author != nil {
					p.Author = &ops.Identity{ID: ops.IdentityID(*author), Role: ops.Role(*role)}
				}
				if name != nil {
					p.Name = *name
				}
				if call != nil {
					p.Call = ops.CallID(*call)
				}
				if message != nil {
					p.Message = *message
				}
				s.Posts = append(s.Posts, p)
				return nil
			}, q.Arg, after, int64(limit+1))
		if err != nil && !errors.Is(err, errPageFull) {
			return err
		}
		return t.explain(tx, s.ID, s.Posts)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// errPageFull ends the reading of a page.
var errPageFull = errors.New("page is full")

// stamp writes a moment of the store.
func stamp(ms int64) string {
	return ops.Stamp(time.UnixMilli(ms))
}
