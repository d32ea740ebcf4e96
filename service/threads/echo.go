package threads

import (
	"encoding/json"
	"fmt"
	"strings"

	"inband/envelope"
	"inband/ops"
	"inband/service/journal"
)

// maxShownOrders bounds the orders that are kept of one author in one thread.
const maxShownOrders = 1 << 16

// anybody is the author under whom the end of a whole thread is kept. It is no identity.
const anybody = "*"

// keepMaterial records m as shown in thread, in the transaction that shows it. author is
// the agent whose words it is, "" for anybody who is not exempt: a stranger, a page, the
// result of a call. Words of operators and the gateway's own are not recorded.
//
// What it costs does not depend on how much the thread holds.
func keepMaterial(tx journal.Tx, thread string, author ops.IdentityID, m material) error {
	tails, err := loadTails(tx, thread, string(author))
	if err != nil {
		return err
	}
	orders, overflow := m.orders, m.overflow
	own, more := m.across(tails.own)
	orders, overflow = append(orders[:len(orders):len(orders)], own...), overflow || more
	if err := showOrders(tx, thread, string(author), 1, orders, overflow); err != nil {
		return err
	}
	if tails.writer != string(author) {
		// An order that begins in one's words and ends in another's is neither's own.
		mixed, more := m.across(tails.all)
		if len(mixed) > 0 || more {
			if err := showOrders(tx, thread, "", 0, mixed, more); err != nil {
				return err
			}
		}
	}
	return tails.keep(tx, thread, string(author), m)
}

// tails are the ends of what has been shown in a thread: by anybody, and by one author.
// A page that an agent reads in parts has its own words in between.
type tails struct {
	all, own string
	writer   string // whose words all is, mixed if several wrote it, "-" if there is none
}

// mixed is the writer of a tail that several have written. It is no identity.
const mixed = "+"

func loadTails(tx journal.Tx, thread, author string) (t tails, err error) {
	t.writer = "-"
	err = tx.Query(`SELECT author, writer, tail FROM material_tail WHERE thread = $1 AND author IN ($2, $3)`,
		func(scan func(...any) error) error {
			var who, writer, tail string
			if err := scan(&who, &writer, &tail); err != nil {
				return err
			}
			if who == anybody {
				t.all, t.writer = tail, writer
			} else {
				t.own = tail
			}
			return nil
		}, thread, anybody, author)
	return t, err
}

func (t tails) keep(tx journal.Tx, thread, author string, m material) error {
	writer := author
	if t.writer != author && t.writer != "-" {
		writer = mixed
	}
	if !m.whole {
		writer = author // nothing of what was before is left
	}
	for _, row := range [][3]string{{anybody, writer, m.after(t.all)}, {author, author, m.after(t.own)}} {
		if _, err := tx.Exec(`INSERT INTO material_tail (thread, author, writer, tail) VALUES ($1, $2, $3, $4)
				ON CONFLICT (thread, author) DO UPDATE SET writer = excluded.writer, tail = excluded.tail`,
			thread, row[0], row[1], row[2]); err != nil {
			return err
		}
	}
	return nil
}

// showOrders adds to what is known of an author's words in a thread.
func showOrders(tx journal.Tx, thread, author string, messages int, orders []string, overflow bool) error {
	const together = 200 // rows of one statement
	var added int64
	for len(orders) > 0 {
		n := min(len(orders), together)
		args := []any{thread, author}
		var values strings.Builder
		for i, digest := range orders[:n] {
			if i > 0 {
				values.WriteString(", ")
			}
			fmt.Fprintf(&values, "($1, $%d, $2)", i+3)
			args = append(args, digest)
		}
		rows, err := tx.Exec(`INSERT INTO shown (thread, digest, author) VALUES `+values.String()+` ON CONFLICT DO NOTHING`, args...)
		if err != nil {
			return err
		}
		added += rows
		orders = orders[n:]
	}
	_, err := tx.Exec(`INSERT INTO material (thread, author, messages, orders, overflow) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (thread, author) DO UPDATE SET messages = material.messages + excluded.messages, orders = material.orders + excluded.orders,
				overflow = CASE WHEN material.overflow + excluded.overflow > 0 OR material.orders + excluded.orders > $6 THEN 1 ELSE 0 END`,
		thread, author, int64(messages), added, overflow, int64(maxShownOrders))
	return err
}

// inheritMaterial adds what was shown in one thread to what was shown in another, which has
// turned out to be the same.
func inheritMaterial(tx journal.Tx, from, to string) error {
	for _, sql := range []string{
		`INSERT INTO shown (thread, digest, author) SELECT $2, digest, author FROM shown WHERE thread = $1 ON CONFLICT DO NOTHING`,
		`INSERT INTO material (thread, author, messages, orders, overflow) SELECT $2, author, messages, orders, overflow FROM material WHERE thread = $1
			ON CONFLICT (thread, author) DO UPDATE SET messages = material.messages + excluded.messages, orders = material.orders + excluded.orders,
				overflow = CASE WHEN material.overflow + excluded.overflow > 0 THEN 1 ELSE 0 END`,
		`INSERT INTO material_tail (thread, author, writer, tail) SELECT $2, author, writer, tail FROM material_tail WHERE thread = $1
			ON CONFLICT (thread, author) DO UPDATE SET writer = excluded.writer, tail = excluded.tail`,
	} {
		if _, err := tx.Exec(sql, from, to); err != nil {
			return err
		}
	}
	return nil
}

// echoed says whether an order with a digest has stood in what agent was shown in thread
// (rule R5): ops.EchoFound, ops.EchoNone, or ops.EchoUnknown when more was shown than
// could be kept. It is one look into an index, however long the thread is.
func echoed(tx journal.Tx, thread string, agent ops.IdentityID, digest string) (uint8, error) {
	found, err := exists(tx, `SELECT 1 FROM shown WHERE thread = $1 AND digest = $2 AND author <> $3 LIMIT 1`, thread, digest, string(agent))
	if err != nil || found {
		return ops.EchoFound, err
	}
	unknown, err := exists(tx, `SELECT 1 FROM material WHERE thread = $1 AND overflow <> 0 AND author <> $2 LIMIT 1`, thread, string(agent))
	if err != nil || unknown {
		return ops.EchoUnknown, err
	}
	return ops.EchoNone, nil
}

// clean reports whether agent has been shown nobody's words in thread but its own, an
// operator's and the gateway's.
func clean(tx journal.Tx, thread string, agent ops.IdentityID) (bool, error) {
	dirty, err := exists(tx, `SELECT 1 FROM material WHERE thread = $1 AND messages > 0 AND author <> $2 LIMIT 1`, thread, string(agent))
	return !dirty && err == nil, err
}

// exists reports whether a query has a row.
func exists(tx journal.Tx, sql string, args ...any) (found bool, err error) {
	err = tx.Query(sql, func(scan func(...any) error) error {
		found = true
		var one int
		return scan(&one)
	}, args...)
	return found, err
}

// Bounds of what is read of one outcome, in bytes: it is done in the transaction that
// settles the call.
const (
	maxReadRooms = 64 << 10  // a post there shows a quarter of it
	maxReadChats = 256 << 10 // more than the posts of a result may hold in most of them
)

// resultMaterial is what stands in the outcome of a call that is posted in a thread, before
// anything of it is made harmless. Of what is longer than the bounds above, the head and
// the tail are read, as the post shows them; where more than that is posted or attached,
// nothing is certain then.
func (t *Threads) resultMaterial(call ops.Call, o ops.Outcome) material {
	text := ""
	switch {
	case o.Result != nil:
		text = string(o.Result.Value)
	case o.Fault != nil:
		b, err := json.Marshal(o.Fault)
		if err != nil {
			panic(fmt.Sprintf("threads: a fault that is no JSON: %v", err))
		}
		text = string(b)
	}
	most, shows := maxReadRooms, envelope.MaxShown
	if c := t.chat(call.From.Answer.Adaptor); c != nil {
		l := c.Limits()
		if most, shows = maxReadChats, l.parts()*l.Post; l.Files {
			shows = len(text)
		}
	}
	if len(text) <= most {
		return t.materialOf(text)
	}
	read := ends(text, most)
	if o.Result != nil {
		if shown, ok := o.Result.Shown(); ok {
			read += "\n" + ends(shown, most)
		}
	}
	m := t.materialOf(read)
	m.overflow = m.overflow || shows > most
	return m
}

// ends is the head and the tail of a text that is longer than most.
func ends(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return first(s, most*3/4) + "\n" + last(s, most/4)
}
