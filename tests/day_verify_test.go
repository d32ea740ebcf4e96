package tests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/notary"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/threads"
	"inband/service/timers"
)

// onRecord is what the journal of a day says.
type onRecord struct {
	calls     []*callRow
	bySource  map[string]*callRow
	byID      map[string]*callRow
	approvals map[string]approvalRow // by call
	inbound   map[string]inboundRow  // by message
	replies   map[string]int         // by message
	posts     map[string][]postRow   // by the platform's id
	outbox    []outboxRow
	wakes     []wakeRow
	early     map[string]bool // threads that were opened below a post whose root was not known yet
}

type callRow struct {
	id, op, source, state, rule string
	params                      string
	code                        string // of its fault
	from                        ops.Origin
}

type approvalRow struct{ id, state, code, thread string }

type inboundRow struct{ hash, thread, status, reason string }

type postRow struct {
	thread, kind string
	seq          int64
}

type outboxRow struct {
	id, thread, kind, about, mark, state, reason, call, wake, platform string
	seq, part                                                          int64
}

type wakeRow struct{ id, agent, thread, source, key, state, verdict, summary string }

// verify ends the gateway and holds the journal and the bridge's file against what was
// written.
func (d *day) verify() {
	d.t.Helper()
	d.g.kill()
	d.look()
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(d.state, "journal.db"),
		Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema(), notary.Schema(), artifacts.Schema(), timers.Schema(), plane.Schema()}})
	if err != nil {
		d.t.Fatal(err)
	}
	defer store.Close()
	key, err := notary.PublicKey(filepath.Join(d.state, "audit"))
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := notary.Verify(context.Background(), store, key); err != nil {
		d.t.Errorf("the signed log: %v", err)
	}
	r := &onRecord{bySource: map[string]*callRow{}, byID: map[string]*callRow{}, approvals: map[string]approvalRow{},
		inbound: map[string]inboundRow{}, early: map[string]bool{}, replies: map[string]int{}, posts: map[string][]postRow{}}
	if err := store.View(context.Background(), func(tx journal.Tx) error { return r.load(tx) }); err != nil {
		d.t.Fatal(err)
	}
	d.verifyMessages(r)
	d.verifyOrders(r)
	d.verifyEffects(r)
	d.verifyResults(r)
	d.verifyPosts(r)
	d.verifyWakes(r)
	d.verifyEvents(r, store)
}

// about is what is on record of the wake with a key, for messages.
func (r *onRecord) about(key string) string {
	var b strings.Builder
	for _, w := range r.wakes {
		if w.key == key {
			fmt.Fprintf(&b, "wake %+v", w)
			for _, o := range r.outbox {
				if o.wake == w.id {
					fmt.Fprintf(&b, "; %+v", o)
				}
			}
		}
	}
	return b.String()
}

// rowsOf reads rows of text columns.
func rowsOf(tx journal.Tx, columns int, query string, take func(row []string) error) error {
	return tx.Query(query, func(scan func(...any) error) error {
		row, into := make([]string, columns), make([]any, columns)
		for i := range row {
			into[i] = &row[i]
		}
		if err := scan(into...); err != nil {
			return err
		}
		return take(row)
	})
}

func (r *onRecord) load(tx journal.Tx) error {
	return errors.Join(
		rowsOf(tx, 8, `SELECT id, op, source, state, rule, params, coalesce(outcome, ''), origin FROM call ORDER BY id`, func(row []string) error {
			c := &callRow{id: row[0], op: row[1], source: row[2], state: row[3], rule: row[4], params: row[5]}
			var o ops.Outcome
			if row[6] != "" {
				if err := json.Unmarshal([]byte(row[6]), &o); err != nil {
					return err
				}
			}
			if o.Fault != nil {
				c.code = string(o.Fault.Code)
			}
			r.calls = append(r.calls, c)
			r.byID[c.id], r.bySource[c.source] = c, c
			return json.Unmarshal([]byte(row[7]), &c.from)
		}),
		rowsOf(tx, 5, `SELECT a.id, a.call, a.state, coalesce(c.code, ''), coalesce(c.thread, '') FROM approval a LEFT JOIN approval_code c ON c.approval = a.id`, func(row []string) error {
			r.approvals[row[1]] = approvalRow{row[0], row[2], row[3], row[4]}
			return nil
		}),
		rowsOf(tx, 4, `SELECT message, text_hash, coalesce(thread, ''), answer FROM inbound WHERE adaptor = 'chat'`, func(row []string) error {
			var h threads.Heard
			err := json.Unmarshal([]byte(row[3]), &h)
			r.inbound[row[0]] = inboundRow{row[1], row[2], h.Status, h.Reason}
			return err
		}),
		rowsOf(tx, 1, `SELECT id FROM thread WHERE rooted = 2`, func(row []string) error {
			r.early[row[0]] = true
			return nil
		}),
		rowsOf(tx, 1, `SELECT message FROM reply WHERE adaptor = 'chat'`, func(row []string) error {
			r.replies[row[0]]++
			return nil
		}),
		rowsOf(tx, 4, `SELECT platform_id, thread, kind, CAST(seq AS TEXT) FROM post WHERE platform_id IS NOT NULL`, func(row []string) error {
			seq, err := strconv.ParseInt(row[3], 10, 64)
			r.posts[row[0]] = append(r.posts[row[0]], postRow{row[1], row[2], seq})
			return err
		}),
		rowsOf(tx, 12, `SELECT id, address, kind, about, mark, state, reason, coalesce(call, ''), coalesce(wake, ''), coalesce(platform_id, ''),
				CAST(seq AS TEXT), CAST(part AS TEXT) FROM outbox WHERE adaptor = 'chat' ORDER BY address, seq`, func(row []string) error {
			o := outboxRow{id: row[0], thread: row[1], kind: row[2], about: row[3], mark: row[4], state: row[5], reason: row[6], call: row[7], wake: row[8], platform: row[9]}
			var err, err2 error
			o.seq, err = strconv.ParseInt(row[10], 10, 64)
			o.part, err2 = strconv.ParseInt(row[11], 10, 64)
			r.outbox = append(r.outbox, o)
			return errors.Join(err, err2)
		}),
		rowsOf(tx, 8, `SELECT id, agent, thread, source, key, state, coalesce(verdict, ''), coalesce(summary, '') FROM wake ORDER BY id`, func(row []string) error {
			r.wakes = append(r.wakes, wakeRow{row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]})
			return nil
		}),
	)
}

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// taken reports whether a message was read, and not only remembered.
func (r *onRecord) taken(id string) bool { return r.inbound[id].status == threads.Taken }

// Each message that stands in the chat was taken once, or there is a reason on record.
func (d *day) verifyMessages(r *onRecord) {
	d.t.Helper()
	for i, id := range d.order {
		w, m := d.said[id], d.messages[id]
		if m == nil {
			d.t.Errorf("message %s is not in the bridge's file", id)
			continue
		}
		in, known := r.inbound[id]
		read := 0
		for _, p := range r.posts[id] {
			if p.kind == "reply" || p.kind == "heard" {
				read++
			}
		}
		silent := m.Room == "C9" || m.User == "UBOT" || d.never[tokenOf(w.text)] == isSystem
		switch {
		case silent:
			if known || read > 0 {
				d.t.Errorf("message %s of %s in %s was read: %+v", id, m.User, m.Room, in)
			}
			continue
		case !known:
			d.t.Errorf("message %s by %s is lost", id, m.User)
			continue
		}
		if in.hash != sha(w.text) && (w.edited == "" || in.hash != sha(w.edited)) {
			d.t.Errorf("message %s was taken with another text", id)
		}
		switch replies := r.replies[id]; {
		case in.status == threads.Taken && w.agent != "":
			if replies != 1 || read != 1 {
				d.t.Errorf("message %s of %s was taken as %d replies and stands %d times in the record", id, w.agent, replies, read)
			}
		case in.status == threads.Taken:
			if replies != 0 || read != 1 {
				d.t.Errorf("message %s of a person was taken as %d replies and stands %d times in the record", id, replies, read)
			}
		case in.status == threads.Ignored && (in.reason == "history" || in.reason == "automated"):
			if replies != 0 || read != 0 {
				d.t.Errorf("message %s was ignored as %s, and there are %d replies and %d posts of it", id, in.reason, replies, read)
			}
			d.count["ignored as "+in.reason]++
			if in.reason == "history" && d.count["cursor lost"] == 0 && i >= d.begun {
				d.t.Errorf("message %s was taken for history though no cursor was lost", id)
			}
		default:
			d.t.Errorf("message %s by %s became %+v", id, m.User, in)
		}
	}
}

var effectToken = regexp.MustCompile(`/(k[0-9]+)\.XXXXXX`)

// tokenOf is the first token of an effect in a text, "" if there is none.
func tokenOf(text string) string {
	if m := effectToken.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

var dmToken = regexp.MustCompile(`go on, (k[0-9]+)\.`)

// sourceOf is the message of the chat that a call came from, and which directive of it.
func sourceOf(c *callRow) (message string, ordinal int, ok bool) {
	rest, ok := strings.CutPrefix(c.source, "chat/")
	if !ok {
		return "", 0, false
	}
	_, rest, _ = strings.Cut(rest, "/")
	message, number, _ := strings.Cut(rest, "#")
	ordinal, err := strconv.Atoi(number)
	return message, ordinal, err == nil
}

// Each directive of an agent's message became one call, and there is no other call. What
// a call was worth is what it had to be worth.
func (d *day) verifyOrders(r *onRecord) {
	d.t.Helper()
	for _, id := range d.order {
		w := d.said[id]
		if w.agent == "" || !r.taken(id) || r.inbound[id].hash != sha(w.text) {
			continue
		}
		for i, o := range w.orders {
			c := r.bySource["chat/"+d.messages[id].Room+"/"+id+"#"+strconv.Itoa(i+1)]
			switch {
			case i >= 8 && c != nil:
				d.t.Errorf("order %d of message %s became a call", i+1, id)
			case i < 8 && c == nil && !o.repeat:
				d.t.Errorf("order %d of message %s (%s) is lost", i+1, id, o.kind)
			}
		}
	}
	sources := map[string]string{}
	for _, c := range r.calls {
		message, ordinal, ok := sourceOf(c)
		if !ok {
			continue
		}
		if other := sources[c.source]; other != "" {
			d.t.Errorf("order %s became the calls %s and %s", c.source, other, c.id)
		}
		sources[c.source] = c.id
		w := d.said[message]
		if w == nil || w.agent == "" {
			d.t.Errorf("call %s (%s) came out of message %s, which no agent wrote", c.id, c.op, message)
			continue
		}
		if !r.taken(message) {
			d.t.Errorf("call %s came out of message %s, which was not taken", c.id, message)
		}
		o := order{kind: isUnkeyed, token: tokenOf(strings.TrimPrefix(w.edited, w.text))} // it was first seen as edited
		switch {
		case ordinal <= len(w.orders):
			o = w.orders[ordinal-1]
		case w.edited == "" || r.inbound[message].hash != sha(w.edited):
			d.t.Errorf("call %s is order %d of message %s, which has %d", c.id, ordinal, message, len(w.orders))
			continue
		}
		d.verifyOrder(r, w, c, o)
	}
}

// verifyOrder holds what became of a call against what its order was worth.
func (d *day) verifyOrder(r *onRecord, w *written, c *callRow, o order) {
	d.t.Helper()
	fits := false
	busy := c.state == string(ops.Refused) && c.code == string(ops.Busy) // too many of its agent wait
	switch {
	case o.kind == isRead:
		fits = c.op == "box.exec"
	case o.kind == isDM:
		m := dmToken.FindStringSubmatch(c.params)
		fits = c.op == "dm.send" && m != nil && m[1] == o.token
	default:
		fits = c.op == "test.effect" && tokenOf(c.params) == o.token
	}
	if !fits {
		d.t.Errorf("call %s of %s is %s %s, ordered was %s %s", c.id, c.source, c.op, c.params, o.kind, o.token)
		return
	}
	d.count["calls "+c.state]++
	if busy {
		d.count["calls refused as too many wait"]++
	}
	approval, waited := r.approvals[c.id]
	ran := c.state == string(ops.Succeeded) || c.state == string(ops.Unknown)
	switch o.kind {
	case isWrong:
		fits = c.state == string(ops.Refused) && c.code == string(ops.WrongKey)
	case isUnkeyed:
		fits = waited || busy
	case isEcho:
		before, after := r.posts[o.of], r.posts[w.id]
		if len(before) == 1 && len(after) == 1 && before[0].thread == after[0].thread && before[0].seq < after[0].seq {
			fits = c.state == string(ops.Refused) && (c.code == string(ops.Quotation) || c.code == string(ops.WrongKey))
			d.count["echoes refused"]++
		}
	case isKeyed, isDM:
		if w.late {
			fits = waited || c.state == string(ops.Refused)
		}
		if ran && !waited {
			d.count["orders run by their key"]++
		}
	}
	if !fits {
		d.t.Errorf("call %s of %s, an %s (late: %v), is %s %s by %q", c.id, c.source, o.kind, w.late, c.state, c.code, c.rule)
	}
	if waited && ran && approval.state != "approved" {
		d.t.Errorf("call %s of %s waited, its approval is %s, and it is %s %s", c.id, c.source, approval.state, c.state, c.code)
	}
	if !waited {
		return
	}
	d.count["approval "+approval.state]++
	for _, id := range d.order {
		y := d.said[id]
		if y.decides == approval.code && y.approves && y.root == w.root && r.taken(id) && y.user == operatorUser {
			return
		}
	}
	if approval.state == "approved" {
		d.t.Errorf("call %s was approved by nobody", c.id)
	}
}

// Each effect was made at most once, once where it is on record as done, and never where
// nobody ordered it.
func (d *day) verifyEffects(r *onRecord) {
	d.t.Helper()
	entries, err := os.ReadDir(d.effects)
	if err != nil {
		d.t.Fatal(err)
	}
	made := map[string]int{}
	for _, e := range entries {
		token, _, _ := strings.Cut(e.Name(), ".")
		made[token]++
	}
	done, unsure := map[string]int{}, map[string]int{}
	for _, c := range r.calls {
		if c.op != "test.effect" {
			continue
		}
		token := tokenOf(c.params)
		switch c.state {
		case string(ops.Succeeded):
			done[token]++
		case string(ops.Unknown):
			unsure[token]++
			d.count["outcome unknown"]++
		}
	}
	for token, n := range made {
		if n > 1 || done[token]+unsure[token] == 0 {
			d.t.Errorf("effect %s was made %d times, and is on record as made %d times", token, n, done[token])
		}
	}
	for token, n := range done {
		if n != 1 || made[token] != 1 {
			d.t.Errorf("effect %s is on record as made %d times, and was made %d times", token, n, made[token])
		}
	}
	for token, why := range d.never {
		if why == isEdited && done[token]+unsure[token] > 0 {
			continue // the text was first seen as edited: verifyOrders knows of it
		}
		if made[token] > 0 {
			d.t.Errorf("effect %s was made: %s", token, why)
		}
	}
	d.count["effects made"] = len(made)
}

var resultHead = regexp.MustCompile(`^[✓✗?] ([a-z0-9._-]+): [a-z ]+ \((c-[a-z0-9]+)\)\n`)

// Each call from the chat has its result there, once, in the thread that it came from, or
// a reason why not.
func (d *day) verifyResults(r *onRecord) {
	d.t.Helper()
	stand := map[string][]*stored{}
	for _, m := range d.messages {
		if head := resultHead.FindStringSubmatch(m.Text); head != nil && m.Own && !m.Gone {
			stand[head[2]] = append(stand[head[2]], m)
			if c := r.byID[head[2]]; c == nil || c.op != head[1] {
				d.t.Errorf("%s is the result of call %s, which is not on record", m.ID, head[2])
			}
			if len(m.Mention) > 0 || m.Fetches > 0 {
				d.t.Errorf("the result %s has notified %v and fetched %d", m.ID, m.Mention, m.Fetches)
			}
		}
	}
	aside := map[string]string{}
	for _, o := range r.outbox {
		if o.kind == "result" && o.part == 0 && o.state == "set_aside" {
			aside[o.about] = o.reason
		}
	}
	for _, c := range r.calls {
		message, _, ok := sourceOf(c)
		if !ok || d.said[message] == nil {
			continue
		}
		if c.from.Answer == nil || c.from.Answer.Adaptor != "chat" || c.from.Answer.Opaque != r.inbound[message].thread {
			d.t.Errorf("the answer of call %s of %s goes to %+v", c.id, message, c.from.Answer)
		}
		posts, reason := stand[c.id], aside[c.id]
		switch {
		case reason != "" && len(posts) == 0:
			d.count["results set aside"]++
			if reason != "refused" {
				d.t.Errorf("the result of call %s is set aside: %s", c.id, reason)
			}
		case len(posts) != 1 || reason != "":
			d.t.Errorf("the result of call %s of %s (%s) stands %d times; set aside: %q", c.id, message, c.state, len(posts), reason)
		case posts[0].Root != d.said[message].root:
			d.t.Errorf("the result of call %s of %s stands below %s, want %s", c.id, message, posts[0].Root, d.said[message].root)
		default:
			d.count["results posted"]++
		}
	}
}

// What the outbox says is what stands in the chat: each post once, in its thread, in order.
func (d *day) verifyPosts(r *onRecord) {
	d.t.Helper()
	marks := map[string]string{}
	for _, m := range d.messages {
		if !m.Own || m.Gone {
			continue
		}
		if other := marks[m.Mark]; m.Mark == "" || other != "" {
			d.t.Errorf("the mark %q stands below %s and %s", m.Mark, m.ID, other)
		}
		marks[m.Mark] = m.ID
	}
	roots := map[string]string{} // by thread
	for id, in := range r.inbound {
		if root := d.messages[id].Root; in.thread != "" {
			if other := roots[in.thread]; other != "" && other != root {
				d.t.Errorf("thread %s stands below %s and below %s", in.thread, other, root)
			}
			roots[in.thread] = root
		}
	}
	last := map[string]int{} // by thread
	seen := map[string]bool{}
	for _, o := range r.outbox {
		m := d.messages[o.platform]
		if o.state != "set_aside" && (o.state != "delivered" || m == nil && !strings.HasPrefix(o.about, "pointer/")) {
			d.t.Errorf("%s %s of thread %s is %s as %q", o.kind, o.about, o.thread, o.state, o.platform)
			continue
		}
		if o.state == "set_aside" {
			d.count["posts set aside"]++
			if id := marks[o.mark]; id != "" {
				d.t.Errorf("%s %s is set aside (%s) and stands as %s", o.kind, o.about, o.reason, id)
			}
			delete(marks, o.mark)
			continue
		}
		if m == nil || seen[o.platform] {
			continue // an edit of a post
		}
		seen[o.platform] = true
		if marks[o.mark] != o.platform {
			d.t.Errorf("%s %s stands as %s, its mark below %q", o.kind, o.about, o.platform, marks[o.mark])
		}
		delete(marks, o.mark)
		if root := roots[o.thread]; root != "" && root != m.Root {
			d.t.Errorf("%s %s stands below %s, want %s", o.kind, o.about, m.Root, root)
		}
		roots[o.thread] = m.Root
		if m.Seq <= last[o.thread] {
			d.t.Errorf("%s %s of thread %s stands as %s, before what was queued before it", o.kind, o.about, o.thread, o.platform)
		}
		last[o.thread] = m.Seq
		if o.kind != "wake" && len(m.Mention) > 0 {
			d.t.Errorf("%s %s has notified %v", o.kind, o.about, m.Mention)
		}
	}
	for mark, id := range marks {
		d.t.Errorf("%s with the mark %s stands in the chat, and the outbox does not know it", id, mark)
	}
}

// Who was woken was woken once for each reason, and a verdict is what its agent said.
func (d *day) verifyWakes(r *onRecord) {
	d.t.Helper()
	type reason struct{ source, agent string }
	raised := map[reason]int{}
	envelopes := map[string]int{}
	for _, o := range r.outbox {
		if o.kind == "wake" && o.part == 0 {
			envelopes[o.wake]++
		}
	}
	said := map[string]*written{}
	for _, w := range d.said {
		if w.summary != "" {
			said[w.summary] = w
		}
	}
	ended := map[string]bool{}
	for _, w := range r.wakes {
		raised[reason{w.source, w.agent}]++
		if want := 1; envelopes[w.id] != want {
			d.t.Errorf("wake %s (%s) has %d envelopes", w.id, w.state, envelopes[w.id])
		}
		d.count["wake "+w.state+" "+w.verdict]++
		ended[w.key] = w.state == "ended"
		if w.verdict == "" || w.verdict == string(threads.Unanswered) {
			if w.summary != "" {
				d.t.Errorf("wake %s is %q with the summary %q", w.id, w.verdict, w.summary)
			}
			continue
		}
		by := said[w.summary]
		if by == nil || by.agent != w.agent || by.key != w.key || by.verdict != w.verdict || !r.taken(by.id) || r.inbound[by.id].thread != w.thread {
			d.t.Errorf("wake %s of %s is %s, %q, which it did not say: %+v", w.id, w.agent, w.verdict, w.summary, by)
		}
	}
	for _, w := range d.said {
		if w.verdict != "" && w.verdict != "waiting" && r.taken(w.id) && r.inbound[w.id].hash == sha(w.text) && !ended[w.key] {
			if r.early[r.inbound[w.id].thread] { // the key is good in the thread of the post only
				d.count["verdict before the root was known"]++
			} else {
				d.t.Errorf("%s has ended a wake of %s as %s, and it goes on; it was taken into %s; %s", w.id, w.agent, w.verdict, r.inbound[w.id].thread, r.about(w.key))
			}
		}
		for _, agent := range w.wakes {
			n := raised[reason{"chat/" + d.messages[w.id].Room + "/" + w.id, agent}]
			if want := map[bool]int{true: 1}[r.taken(w.id)]; n != want {
				d.t.Errorf("message %s has woken %s %d times, want %d", w.id, agent, n, want)
			}
		}
	}
	for _, c := range r.calls {
		if _, _, ok := sourceOf(c); !ok || c.op != "dm.send" {
			continue
		}
		var p struct{ To string }
		if err := json.Unmarshal([]byte(c.params), &p); err != nil {
			d.t.Fatal(err)
		}
		if n, want := raised[reason{c.source, p.To}], map[bool]int{true: 1}[c.state == string(ops.Succeeded)]; n != want {
			d.t.Errorf("the message of call %s (%s) has woken %s %d times, want %d", c.id, c.state, p.To, n, want)
		}
	}
	for why, n := range raised {
		if n != 1 {
			d.t.Errorf("%s was woken %d times by %s", why.agent, n, why.source)
		}
	}
}

// Positions have no gap, and nothing has begun in a thread while it was stopped.
func (d *day) verifyEvents(r *onRecord, store journal.Store) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	head, err := store.Head(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	var last int64
	var order []string // of effects, as they were settled
	held := map[string]bool{}
	err = store.Tail(ctx, 0, func(e journal.Event) error {
		if e.Position != last+1 {
			d.t.Errorf("position %d follows %d", e.Position, last)
		}
		var body struct{ Scope, Call, State string }
		switch e.Kind {
		case "hold.set", "hold.released", "call.running", "call.settled":
			if err := json.Unmarshal(e.Body, &body); err != nil {
				return err
			}
		}
		switch e.Kind {
		case "hold.set", "hold.released":
			held[body.Scope] = e.Kind == "hold.set"
			d.count["thread "+e.Kind]++
		case "call.running":
			if c := r.byID[body.Call]; c != nil && c.from.Answer != nil && held[c.from.Answer.Opaque] {
				d.t.Errorf("call %s began while its thread was stopped", body.Call)
			}
		case "call.settled":
			order = append(order, body.Call)
		}
		if last = e.Position; last >= head {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		d.t.Errorf("reading all events: %v", err)
	}
	d.verifySequence(r, order)
}

// verifySequence holds the order in which the effects of one message were made against
// that in which they were written, for those that ran unasked.
func (d *day) verifySequence(r *onRecord, settled []string) {
	d.t.Helper()
	last := map[string]int{}
	for _, id := range settled {
		c := r.byID[id]
		if c == nil || c.op != "test.effect" || c.state != string(ops.Succeeded) {
			continue
		}
		if _, waited := r.approvals[id]; waited {
			continue
		}
		message, ordinal, ok := sourceOf(c)
		if !ok {
			continue
		}
		if ordinal < last[message] {
			d.t.Errorf("order %d of message %s ran before order %d", last[message], message, ordinal)
		}
		last[message] = ordinal
	}
}
