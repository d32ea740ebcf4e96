package timers

import (
	"context"
	"encoding/json"
	"fmt"

	"inband/ops"
	"inband/service"
	"inband/service/journal"
	"inband/service/threads"
)

// WakeListing is a wake as it is listed. The key is nobody's to read but the agent's.
type WakeListing struct {
	Wake     threads.WakeID  `json:"wake"`
	Agent    ops.IdentityID  `json:"agent"`
	Thread   string          `json:"thread"`
	Cause    threads.Cause   `json:"cause" enum:"timer,message,delegation"`
	Source   string          `json:"source"` // what raised it: "timer/tm-…#3", or the source of a call
	Name     string          `json:"name"`   // the same for people
	State    string          `json:"state" enum:"held,open,ended"`
	Verdict  threads.Verdict `json:"verdict,omitempty" enum:"done,failed,blocked,waiting,unanswered"`
	RaisedAt string          `json:"raised_at"`
	Deadline string          `json:"deadline,omitempty"` // nothing while it is held
	EndedAt  string          `json:"ended_at,omitempty"`
	Post     string          `json:"post,omitempty"`    // its envelope
	Summary  string          `json:"summary,omitempty"` // what the agent says has come of it
}

// WakeShowing is a wake as it is shown whole.
type WakeShowing struct {
	WakeListing
	By     *ops.Identity `json:"by,omitempty"` // who raised it, nobody for a stranger
	Errand string        `json:"errand"`       // in the words of someone who is trusted
	Shown  string        `json:"shown"`        // untrusted words that belong to it
	Ops    []ops.OpName  `json:"ops"`          // what it may run unasked
	Root   string        `json:"root"`         // the first cause
	Hops   int64         `json:"hops"`         // agents between a person and it
	Refs   []string      `json:"refs"`         // what the agent says it is about
}

// WakePage is a page of wakes.
type WakePage struct {
	Wakes []WakeListing  `json:"wakes"`
	Next  threads.WakeID `json:"next,omitempty"`
}

const wakeColumns = `SELECT id, agent, thread, cause, source, errand, state, verdict, raised_at, deadline_at, ended_at, by_id, by_role, declared, root, hops, post, summary, refs FROM wake`

// scanWake reads a row of wakeColumns.
func scanWake(scan func(...any) error) (w WakeShowing, err error) {
	var raised, deadline int64
	var ended *int64
	var verdict, byID, byRole, post, summary, refs *string
	var errand, declared string
	if err := scan((*string)(&w.Wake), (*string)(&w.Agent), &w.Thread, (*string)(&w.Cause), &w.Source, &errand, &w.State, &verdict, &raised, &deadline, &ended,
		&byID, &byRole, &declared, &w.Root, &w.Hops, &post, &summary, &refs); err != nil {
		return w, err
	}
	var e threads.Errand
	if err := json.Unmarshal([]byte(errand), &e); err != nil {
		return w, fmt.Errorf("errand of wake %s: %w", w.Wake, err)
	}
	w.Name, w.Errand, w.Shown = e.Name, e.Text, e.Shown
	w.RaisedAt, w.EndedAt = maybe(fromMilli(&raised)), maybe(fromMilli(ended))
	if deadline > 0 {
		w.Deadline = maybe(fromMilli(&deadline))
	}
	w.Verdict = threads.Verdict(orEmpty(verdict))
	if byID != nil {
		w.By = &ops.Identity{ID: ops.IdentityID(*byID), Role: ops.Role(orEmpty(byRole))}
	}
	w.Post, w.Summary, w.Refs, w.Ops = orEmpty(post), orEmpty(summary), []string{}, []ops.OpName{}
	if err := json.Unmarshal([]byte(declared), &w.Ops); err != nil {
		return w, fmt.Errorf("ops of wake %s: %w", w.Wake, err)
	}
	if refs != nil {
		if err := json.Unmarshal([]byte(*refs), &w.Refs); err != nil {
			return w, fmt.Errorf("refs of wake %s: %w", w.Wake, err)
		}
	}
	return w, nil
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// wakeStates are the conditions that the filter state stands for, as text of the query, so
// that those of live wakes go by an index of these alone: agents ask for them all the time.
var wakeStates = map[string]string{
	"": "", "held": ` AND state <> 'ended' AND state = 'held'`, "open": ` AND state <> 'ended' AND state = 'open'`,
	"live": ` AND state <> 'ended'`, "ended": ` AND state = 'ended'`,
}

// ListWakes returns wakes, newest first: those of by and of the agents that are enrolled
// with it; all of them for who may manage the gateway. Filters: agent, thread, and state,
// where "live" is held or open; another state is BadRequest.
func (t *Timers) ListWakes(ctx context.Context, by ops.Identity, q service.Query) (WakePage, error) {
	limit, err := service.PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return WakePage{}, err
	}
	state, ok := wakeStates[q.Filter["state"]]
	if !ok {
		return WakePage{}, ops.Faultf(ops.BadRequest, "state: want held, open, live or ended")
	}
	who, whose := string(by.ID), `agent IN (SELECT $1 UNION ALL `+enrolled+`)`
	if t.manages(by) {
		who, whose = "", `$1 = ''`
	}
	page := WakePage{Wakes: []WakeListing{}}
	err = t.store.View(ctx, func(tx journal.Tx) error {
		page = WakePage{Wakes: []WakeListing{}}
		return tx.Query(wakeColumns+` WHERE `+whose+` AND ($2 = '' OR id < $2) AND ($3 = '' OR agent = $3) AND ($4 = '' OR thread = $4)`+state+`
				ORDER BY id DESC LIMIT $5`,
			func(scan func(...any) error) error {
				w, err := scanWake(scan)
				page.Wakes = append(page.Wakes, w.WakeListing)
				return err
			}, who, q.After, q.Filter["agent"], q.Filter["thread"], int64(limit+1))
	})
	if err != nil {
		return WakePage{}, err
	}
	if len(page.Wakes) > limit {
		page.Wakes = page.Wakes[:limit]
		page.Next = page.Wakes[limit-1].Wake
	}
	return page, nil
}

// ShowWake returns a wake whole, or NotFound for one that by may not see.
func (t *Timers) ShowWake(ctx context.Context, by ops.Identity, id threads.WakeID) (w WakeShowing, err error) {
	err = t.store.View(ctx, func(tx journal.Tx) error {
		unknown := ops.Faultf(ops.NotFound, "there is no wake %s", shown(string(id)))
		found := false
		if err := tx.Query(wakeColumns+` WHERE id = $1`, func(scan func(...any) error) (err error) {
			w, err = scanWake(scan)
			found = true
			return err
		}, string(id)); err != nil {
			return err
		}
		if !found {
			return unknown
		}
		sees, err := seesOf(tx, t.policy.Current(), by, w.Agent)
		if err == nil && !sees {
			return unknown
		}
		return err
	})
	if err != nil {
		return WakeShowing{}, err
	}
	return w, nil
}
