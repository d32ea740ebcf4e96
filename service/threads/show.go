package threads

import (
	"encoding/json"
	"fmt"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// PostWake is the wake that a post is the envelope of, as it stands when it is read. Its
// key is in the envelope and nowhere else.
type PostWake struct {
	Wake     WakeID         `json:"wake"`
	Agent    ops.IdentityID `json:"agent"`
	Cause    Cause          `json:"cause"`
	Name     string         `json:"name"` // who or what raised it
	Ops      []ops.OpName   `json:"ops"`  // declared
	Hops     int            `json:"hops"` // agents between a person and it
	State    string         `json:"state"`
	Verdict  Verdict        `json:"verdict,omitempty"`
	Summary  string         `json:"summary,omitempty"`
	Refs     []string       `json:"refs,omitempty"`
	Deadline string         `json:"deadline"`
	EndedAt  string         `json:"ended_at,omitempty"`
}

// PostCall is an order of a reply, as it stands when it is read.
type PostCall struct {
	service.CallBrief
	Form    string `json:"form"`
	Ordinal int    `json:"ordinal"`
	// Delivery is the state in the outbox of what was posted of its outcome: queued,
	// sending, delivered or set_aside; "" while there is nothing to post.
	Delivery string `json:"delivery,omitempty"`
}

// explain adds to posts of a thread, in order of their places, what became of the wakes
// and the orders in them.
func (t *Threads) explain(tx journal.Tx, thread string, posts []Post) error {
	if len(posts) == 0 {
		return nil
	}
	on := page{thread, posts[0].Seq, posts[len(posts)-1].Seq, make(map[int64]*Post, len(posts))}
	for i := range posts {
		on.at[posts[i].Seq] = &posts[i]
	}
	if err := on.wakes(tx); err != nil {
		return err
	}
	if err := on.orders(tx); err != nil {
		return err
	}
	for i := range posts {
		for j := range posts[i].Calls {
			if err := t.standing(tx, &posts[i].Calls[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// page is some posts of a thread, one after the other.
type page struct {
	thread      string
	first, last int64
	at          map[int64]*Post // by place
}

// wakes adds the wakes to their envelopes.
func (p page) wakes(tx journal.Tx) error {
	return tx.Query(`SELECT p.seq, w.id, w.agent, w.cause, w.hops, w.declared, w.errand, w.state, w.verdict, w.summary, w.refs, w.deadline_at, w.ended_at
			FROM post p JOIN wake w ON w.id = p.wake
			WHERE p.thread = $1 AND p.seq BETWEEN $2 AND $3 AND p.kind = 'wake'`,
		func(scan func(...any) error) error {
			var seq, hops, deadline int64
			var ended *int64
			var declared, errand string
			var verdict, summary, refs *string
			w := new(PostWake)
			if err := scan(&seq, (*string)(&w.Wake), (*string)(&w.Agent), (*string)(&w.Cause), &hops, &declared, &errand, &w.State, &verdict, &summary, &refs, &deadline, &ended); err != nil {
				return err
			}
			var e Errand
			if err := json.Unmarshal([]byte(errand), &e); err != nil {
				return fmt.Errorf("errand of wake %s: %w", w.Wake, err)
			}
			if err := json.Unmarshal([]byte(declared), &w.Ops); err != nil {
				return fmt.Errorf("declared ops of wake %s: %w", w.Wake, err)
			}
			w.Name, w.Hops, w.Deadline = e.Name, int(hops), stamp(deadline)
			if verdict != nil {
				w.Verdict = Verdict(*verdict)
			}
			if summary != nil {
				w.Summary = *summary
			}
			if refs != nil {
				if err := json.Unmarshal([]byte(*refs), &w.Refs); err != nil {
					return fmt.Errorf("references of wake %s: %w", w.Wake, err)
				}
			}
			if ended != nil {
				w.EndedAt = stamp(*ended)
			}
			p.at[seq].Wake = w
			return nil
		}, p.thread, p.first, p.last)
}

// orders adds to replies the orders in them.
func (p page) orders(tx journal.Tx) error {
	return tx.Query(`SELECT p.seq, r.ack FROM post p JOIN thread t ON t.id = p.thread
			JOIN reply r ON r.adaptor = t.adaptor AND r.room = t.room AND r.agent = p.author_id AND r.message = p.message
			WHERE p.thread = $1 AND p.seq BETWEEN $2 AND $3 AND p.kind = 'reply'`,
		func(scan func(...any) error) error {
			var seq int64
			var stored string
			if err := scan(&seq, &stored); err != nil {
				return err
			}
			var ack Ack
			if err := json.Unmarshal([]byte(stored), &ack); err != nil {
				return fmt.Errorf("acknowledgement of post %d of thread %s: %w", seq, p.thread, err)
			}
			for _, c := range ack.Calls {
				p.at[seq].Calls = append(p.at[seq].Calls, PostCall{CallBrief: service.CallBrief{Call: c.Call, Op: c.Op}, Form: c.Form, Ordinal: c.Ordinal})
			}
			return nil
		}, p.thread, p.first, p.last)
}

// standing says how c stands now, and what was posted of its outcome: of several parts
// the one that is furthest from being delivered.
func (t *Threads) standing(tx journal.Tx, c *PostCall) (err error) {
	if c.CallBrief, err = t.door.Brief(tx, c.Call); err != nil {
		return err
	}
	return tx.Query(`SELECT state FROM outbox WHERE kind = 'result' AND about = $1
			ORDER BY CASE state WHEN 'set_aside' THEN 0 WHEN 'queued' THEN 1 WHEN 'sending' THEN 2 ELSE 3 END LIMIT 1`,
		func(scan func(...any) error) error { return scan(&c.Delivery) }, string(c.Call))
}
