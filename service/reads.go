package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// Read is one of the reads of the gateway's own state. It has one implementation,
// which box.exec, the API and box share.
type Read struct {
	Name   string // out of ops.PlainReads or ops.ReadsOfOne
	Manage bool   // only for identities that may manage the gateway
	// Do returns a value that marshals to the answer. It shows by no more than by
	// may see; what it must not show is NotFound.
	Do func(ctx context.Context, by ops.Identity, q Query) (any, error)
}

// Reads is the reads that this gateway has. Subsystems add theirs before it is used.
type Reads struct {
	door   *Door
	byName map[string]Read
}

// Add adds reads. A name that no documentation knows or that is taken is an error.
func (r *Reads) Add(reads ...Read) error {
	for _, read := range reads {
		if !slices.Contains(ops.PlainReads, read.Name) && !slices.Contains(ops.ReadsOfOne, read.Name) {
			return fmt.Errorf("read %q is none of the actions of box.exec", read.Name)
		}
		if _, taken := r.byName[read.Name]; taken {
			return fmt.Errorf("read %q is there already", read.Name)
		}
		r.byName[read.Name] = read
	}
	return nil
}

// Names returns the names of the reads in the order of the documentation.
func (r *Reads) Names() []string {
	var names []string
	for _, name := range slices.Concat(ops.PlainReads, ops.ReadsOfOne) {
		if _, ok := r.byName[name]; ok {
			names = append(names, name)
		}
	}
	return names
}

// Do answers the read name for by. A name that does not exist is NotFound, an
// argument too much or too little BadRequest.
func (r *Reads) Do(ctx context.Context, by ops.Identity, name string, q Query) (any, error) {
	read, ok := r.byName[name]
	if !ok {
		return nil, ops.Faultf(ops.NotFound, "there is no read %q", clip(name, 64))
	}
	switch one := slices.Contains(ops.ReadsOfOne, name); {
	case one && q.Arg == "":
		return nil, ops.Faultf(ops.BadRequest, "%s needs the id of one %s as its argument", name, name)
	case !one && q.Arg != "":
		return nil, ops.Faultf(ops.BadRequest, "%s takes no argument", name)
	}
	if read.Manage && !r.door.Policy().Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		return nil, ops.Faultf(ops.NotPermitted, "%s may not read %s", by, name)
	}
	return read.Do(ctx, by, q)
}

// About is what the gateway says of itself.
type About struct {
	Version   string
	StartedAt time.Time
	Config    any             // what it runs with, without secrets
	Adaptors  []string        // the built-in ones, by name
	Missing   func() []string // what keeps it from being ready, nothing if it is
	// Chats is how its adaptors of chats are, by name. Nil is none.
	Chats func() []AdaptorState
	// Condition is what its ops have. Nil is the zero value.
	Condition func() Condition
}

// AdaptorState is how an adaptor is. Times are as ops.Stamp writes them, absent for never;
// counts are since the gateway has started.
type AdaptorState struct {
	Name        string `json:"name"`
	Kind        string `json:"kind"` // built-in, webhook
	Running     bool   `json:"running"`
	Problem     string `json:"problem,omitempty"` // why it does not run, and what to do
	LastIn      string `json:"last_in,omitempty"`
	LastOut     string `json:"last_out,omitempty"`
	RateLimited string `json:"rate_limited_until,omitempty"`
	LastError   string `json:"last_error,omitempty"` // the kind of the last post's failure, absent if it went well
	Refused     int64  `json:"refused,omitempty"`    // events whose signature was not right
	Failed      int64  `json:"failed,omitempty"`     // posts and edits that failed, rate limits aside
	Skipped     int64  `json:"skipped,omitempty"`    // messages of the platform's history that could not be read
	Alerts      int64  `json:"alerts,omitempty"`     // times that the place in that history was lost
	Behind      bool   `json:"behind,omitempty"`     // that history could not be read the last time
}

func (a About) adaptors() []AdaptorState {
	list := []AdaptorState{}
	for _, name := range a.Adaptors {
		list = append(list, AdaptorState{Name: name, Kind: "built-in", Running: true})
	}
	if a.Chats != nil {
		list = append(list, a.Chats()...)
	}
	return list
}

// NewReads returns the reads of the door, the identities and the gateway itself.
func NewReads(d *Door, directory *access.Directory, about About) *Reads {
	r := &Reads{door: d, byName: make(map[string]Read)}
	err := r.Add(
		Read{Name: "status", Do: func(ctx context.Context, _ ops.Identity, _ Query) (any, error) { return d.status(ctx, about) }},
		Read{Name: "health", Do: func(context.Context, ops.Identity, Query) (any, error) { return about.health(), nil }},
		Read{Name: "version", Do: func(context.Context, ops.Identity, Query) (any, error) {
			return map[string]string{"version": about.Version}, nil
		}},
		Read{Name: "uptime", Do: func(context.Context, ops.Identity, Query) (any, error) {
			return map[string]any{"started_at": ops.Stamp(about.StartedAt), "seconds": int64(time.Since(about.StartedAt).Seconds())}, nil
		}},
		Read{Name: "config", Manage: true, Do: func(context.Context, ops.Identity, Query) (any, error) { return about.Config, nil }},
		Read{Name: "adaptors", Do: func(context.Context, ops.Identity, Query) (any, error) {
			return map[string]any{"adaptors": about.adaptors()}, nil
		}},
		Read{Name: "ops", Do: func(_ context.Context, by ops.Identity, _ Query) (any, error) {
			return d.List(by), nil
		}},
		Read{Name: "op", Do: func(_ context.Context, by ops.Identity, q Query) (any, error) { return d.showOp(by, q.Arg) }},
		Read{Name: "providers", Do: func(context.Context, ops.Identity, Query) (any, error) { return d.providers(), nil }},
		Read{Name: "calls", Do: d.listCalls},
		Read{Name: "call", Do: d.showCall},
		Read{Name: "approvals", Do: d.listApprovals},
		Read{Name: "agents", Manage: true, Do: func(ctx context.Context, _ ops.Identity, q Query) (any, error) {
			l, err := directory.List(ctx, ops.Role(q.Filter["role"]))
			if l == nil {
				l = []access.Listing{}
			}
			return map[string]any{"agents": l}, err
		}},
		Read{Name: "agent", Do: func(ctx context.Context, by ops.Identity, q Query) (any, error) {
			id := ops.IdentityID(q.Arg)
			enrolled := false
			if err := d.store.View(ctx, func(tx journal.Tx) (err error) {
				enrolled, err = access.Enrolled(tx, by.ID, id)
				return err
			}); err != nil {
				return nil, err
			}
			if !d.Policy().Decide(access.Request{By: by, Action: access.See, Owner: id, Enrolled: enrolled}).Allowed {
				return nil, ops.Faultf(ops.NotFound, "there is no identity %q", clip(q.Arg, 64))
			}
			return directory.Show(ctx, id)
		}},
	)
	if err != nil {
		panic(err) // the table above names a read twice
	}
	return r
}

func (a About) health() any {
	missing := a.Missing()
	if missing == nil {
		missing = []string{}
	}
	return map[string]any{"status": "ok", "ready": len(missing) == 0, "missing": missing}
}

func (d *Door) status(ctx context.Context, about About) (any, error) {
	open := make(map[string]int64)
	err := d.store.View(ctx, func(tx journal.Tx) error {
		return tx.Query(`SELECT state, count(*) FROM call WHERE outcome IS NULL GROUP BY state`, func(scan func(...any) error) error {
			var state string
			var n int64
			if err := scan(&state, &n); err != nil {
				return err
			}
			open[state] = n
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	holds, err := d.Holds(ctx)
	if err != nil {
		return nil, err
	}
	head, err := d.store.Head(ctx)
	if err != nil {
		return nil, err
	}
	var c Condition
	if about.Condition != nil {
		c = about.Condition()
	}
	return map[string]any{
		"sandbox":    append([]Layer{}, c.Layers...),
		"disabled":   append([]DisabledOp{}, c.Disabled...),
		"reloads":    c.Reloads,
		"version":    about.Version,
		"boot":       d.store.Boot(),
		"started_at": ops.Stamp(about.StartedAt),
		"ops":        len(d.registry.Current().All()),
		"open_calls": open,
		"holds":      holds,
		"position":   head,
		"health":     about.health(),
	}, nil
}

// OpListing is an op as it is listed to one identity (decision D5).
type OpListing struct {
	Name          ops.OpName      `json:"name"`
	Aliases       []ops.OpName    `json:"aliases"`
	Provider      string          `json:"provider"`
	Summary       string          `json:"summary"`
	SideEffecting bool            `json:"side_effecting"`
	Parameters    json.RawMessage `json:"parameters"` // JSON Schema 2020-12
	Concurrency   int             `json:"concurrency,omitempty"`
	Rate          *OpRate         `json:"rate,omitempty"`
	Permitted     bool            `json:"permitted"` // for the one who asks
	Digest        string          `json:"digest"`
	// Process is for those who may manage the gateway, in the read of one command op.
	Process *OpProcess `json:"process,omitempty"`
}

// OpRate is how many calls of an op may begin in a time, by all identities together.
type OpRate struct {
	Count      int     `json:"count"`
	PerSeconds float64 `json:"per_seconds"`
}

// OpList is the answer of tools.list and of the read ops.
type OpList struct {
	Ops   []OpListing `json:"ops"`
	Total int         `json:"total"`
}

// List returns every op as by sees it, ordered by name. Ops that by may not run are
// listed too, with Permitted false. What an op is permitted only on good evidence
// counts as not permitted, since a list has none.
func (d *Door) List(by ops.Identity) OpList {
	all, policy := d.registry.Current().All(), d.Policy()
	l := OpList{Ops: make([]OpListing, len(all)), Total: len(all)}
	for i, e := range all {
		l.Ops[i] = listing(e, policy, by)
	}
	return l
}

func listing(e *ops.Entry, policy *access.Policy, by ops.Identity) OpListing {
	aliases := e.Aliases
	if aliases == nil {
		aliases = []ops.OpName{}
	}
	l := OpListing{
		Name: e.Name, Aliases: aliases, Provider: e.Provider, Summary: e.Summary,
		SideEffecting: e.SideEffecting, Parameters: e.Params.Schema(), Digest: e.Digest,
		Concurrency: e.Concurrency, Permitted: policy.Decide(runRequest(by, e)).Allowed,
	}
	if e.Rate.Count > 0 {
		l.Rate = &OpRate{Count: e.Rate.Count, PerSeconds: e.Rate.Per.Seconds()}
	}
	return l
}

func (d *Door) showOp(by ops.Identity, name string) (any, error) {
	registry := d.registry.Current()
	e, ok := registry.Lookup(ops.OpName(name))
	if !ok {
		return nil, registry.UnknownOp(ops.OpName(name))
	}
	policy := d.Policy()
	l := listing(e, policy, by)
	if policy.Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		l.Process = process(e)
	}
	return l, nil
}

func (d *Door) providers() any {
	type provider struct {
		Name string `json:"name"`
		Ops  int    `json:"ops"`
	}
	var list []provider
	for _, e := range d.registry.Current().All() {
		i := slices.IndexFunc(list, func(p provider) bool { return p.Name == e.Provider })
		if i < 0 {
			i = len(list)
			list = append(list, provider{Name: e.Provider})
		}
		list[i].Ops++
	}
	slices.SortFunc(list, func(a, b provider) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return map[string]any{"providers": list}
}

// CallListing is a call as it is listed.
type CallListing struct {
	Call       ops.CallID   `json:"call"`
	Op         ops.OpName   `json:"op"`
	By         ops.Identity `json:"by"`
	State      ops.State    `json:"state"`
	Held       bool         `json:"held,omitempty"` // it does not begin while what it belongs to is stopped
	Source     string       `json:"source"`
	Rule       string       `json:"rule,omitempty"` // that let it run, parked or refused it, see Ticket
	ReceivedAt string       `json:"received_at"`
	SettledAt  string       `json:"settled_at,omitempty"`
}

// CallShowing is a call as it is shown whole.
type CallShowing struct {
	CallListing
	Provider   string          `json:"provider,omitempty"`
	Definition string          `json:"definition,omitempty"` // digest of the op as it was
	Params     json.RawMessage `json:"params"`
	Key        string          `json:"key,omitempty"`
	From       ops.Origin      `json:"from"`
	Evidence   ops.Evidence    `json:"evidence"`
	StartedAt  string          `json:"started_at,omitempty"`
	Approval   ApprovalID      `json:"approval,omitempty"` // that it waits or has waited for
	Result     json.RawMessage `json:"result,omitempty"`
	Fault      *ops.Fault      `json:"fault,omitempty"`
	Withheld   bool            `json:"withheld,omitempty"` // the policy keeps what it said from the one who asks
	// Receipt is the executor's account of what it did. The event at AuditPosition holds
	// the SHA-256 of its RFC 8785 form.
	Receipt       json.RawMessage `json:"receipt,omitempty"`
	AuditPosition int64           `json:"audit_position,omitempty"` // of the event that settled the call
}

// Bounds of a page of calls.
const (
	defaultPage = 50
	maxPage     = 200
)

// listCalls answers the read calls: newest first, the caller's own and those of the
// agents that are enrolled with it, unless it may see all. Filters: state, op.
func (d *Door) listCalls(ctx context.Context, by ops.Identity, q Query) (any, error) {
	limit, err := PageSize(q.Limit, defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	// Two queries, so that each has an index to go by: who has few calls among many must
	// not make every list read them all.
	who, whose := string(by.ID), `by_id IN (SELECT $1 UNION SELECT e.agent FROM enrolment e
			JOIN identity a ON a.id = e.agent AND a.revoked_at IS NULL WHERE e.bridge = $1)`
	if d.Policy().Decide(access.Request{By: by, Action: access.Manage}).Allowed {
		who, whose = "", `$1 = ''`
	}
	page := struct {
		Calls []CallListing `json:"calls"`
		Next  ops.CallID    `json:"next,omitempty"`
	}{Calls: []CallListing{}}
	err = d.store.View(ctx, func(tx journal.Tx) error {
		// Neither parameters nor outcomes: a page of those could be very large.
		return tx.Query(`SELECT id, by_id, by_role, op, source, state, rule, received_at, settled_at FROM call
			WHERE `+whose+` AND ($2 = '' OR id < $2) AND ($3 = '' OR state = $3) AND ($4 = '' OR op = $4)
			ORDER BY id DESC LIMIT $5`,
			func(scan func(...any) error) error {
				var c storedCall
				var received int64
				var settled *int64
				if err := scan((*string)(&c.ID), (*string)(&c.By.ID), (*string)(&c.By.Role), (*string)(&c.Op), &c.From.Source,
					(*string)(&c.State), &c.rule, &received, &settled); err != nil {
					return err
				}
				c.ReceivedAt, c.SettledAt = moment(received), maybe(settled)
				page.Calls = append(page.Calls, d.listed(c))
				return nil
			}, who, q.After, q.Filter["state"], q.Filter["op"], int64(limit+1))
	})
	if err != nil {
		return nil, err
	}
	if len(page.Calls) > limit {
		page.Calls = page.Calls[:limit]
		page.Next = page.Calls[limit-1].Call
	}
	return page, nil
}

// showCall answers the read call.
func (d *Door) showCall(ctx context.Context, by ops.Identity, q Query) (any, error) {
	var c storedCall
	var a approval
	var enrolled bool
	err := d.store.View(ctx, func(tx journal.Tx) (err error) {
		if c, err = load(tx, ops.CallID(q.Arg)); err != nil {
			return err
		}
		if a, _, err = approvalOf(tx, c.ID); err != nil {
			return err
		}
		enrolled, err = access.Enrolled(tx, by.ID, c.By.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	policy, request := d.Policy(), access.Request{By: by, Action: access.See, Owner: c.By.ID, Enrolled: enrolled}
	if !policy.Decide(request).Allowed {
		return nil, unknownCall(c.ID)
	}
	s := CallShowing{
		CallListing: d.listed(c), Provider: c.Provider, Definition: c.definition, Params: c.Params,
		Key: c.Key, From: c.From, Evidence: c.Evidence, Approval: a.id,
	}
	if c.StartedAt != nil {
		s.StartedAt = ops.Stamp(*c.StartedAt)
	}
	if c.outcome == nil {
		return s, nil
	}
	s.Fault = c.outcome.Fault
	request.Action = access.Output
	if s.Withheld = !policy.Decide(request).Allowed; s.Withheld {
		s.Fault = withoutOutput(*c.outcome).Fault
		return s, nil
	}
	if c.outcome.Result != nil {
		s.Result = c.outcome.Result.Value
	}
	s.Receipt = c.outcome.Receipt
	err = d.store.Stream(ctx, stream(c.ID), 0, func(e journal.Event) error {
		if e.Kind == "call.settled" {
			s.AuditPosition = e.Position
		}
		return nil
	})
	return s, err
}

// listed is c as it stands now: a call without side effects that runs is not
// written as running, and is shown so all the same.
func (d *Door) listed(c storedCall) CallListing {
	l := CallListing{Call: c.ID, Op: c.Op, By: c.By, State: c.State, Source: c.From.Source, Rule: c.rule, ReceivedAt: ops.Stamp(c.ReceivedAt)}
	if c.SettledAt != nil {
		l.SettledAt = ops.Stamp(*c.SettledAt)
	}
	if c.State == ops.Received {
		began, held := d.progress(c.ID)
		if l.Held = held; began {
			l.State = ops.Running
		}
	}
	return l
}

// PageSize checks the size that a caller asked for: 0 is standard, and more than
// most is refused.
func PageSize(asked, standard, most int) (int, error) {
	switch {
	case asked == 0:
		return standard, nil
	case asked < 0 || asked > most:
		return 0, ops.Faultf(ops.BadRequest, "limit %d: want 1 to %d", asked, most)
	}
	return asked, nil
}
