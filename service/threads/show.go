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
	first, last := posts[0].Seq, posts[len(posts)-1].Seq
	at := make(map[int64]*Post, len(posts))
	for i := range posts {
		at[posts[i].Seq] = &posts[i]
	}
	if err := tx.Query(`SELECT p.seq, w.id, w.agent, w.cause, w.hops, w.declared, w.errand, w.state, w.verdict, w.summary, w.refs, w.deadline_at, w.ended_at
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
			at[seq].Wake = w
			return nil
		}, thread, first, last); err != nil {
		return err
	}
	if err := tx.Query(`SELECT p.seq, r.ack FROM post p JOIN thread t ON t.id = p.thread
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
				return fmt.Errorf("acknowledgement of post %d of thread %s: %w", seq, thread, err)
			}
			for _, c := range ack.Calls {
				at[seq].Calls = append(at[seq].Calls, PostCall{CallBrief: service.CallBrief{Call: c.Call, Op: c.Op}, Form: c.Form, Ordinal: c.Ordinal})
			}
			return nil
		}, thread, first, last); err != nil {
		return err
	}
	for i := range posts {
		for j := range posts[i].Calls {
			c := &posts[i].Calls[j]
			brief, err := t.door.Brief(tx, c.Call)
			if err != nil {
				return err
			}
			c.CallBrief = brief
			// Of several parts the one that is furthest from being delivered.
			if err := tx.Query(`SELECT state FROM outbox WHERE kind = 'result' AND about = $1
					ORDER BY CASE state WHEN 'set_aside' THEN 0 WHEN 'queued' THEN 1 WHEN 'sending' THEN 2 ELSE 3 END LIMIT 1`,
				func(scan func(...any) error) error { return scan(&c.Delivery) }, string(c.Call)); err != nil {
				return err
			}
		}
	}
	return nil
}
