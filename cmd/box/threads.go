package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// threadListing is a thread as GET /v1/threads lists it.
type threadListing struct {
	ID       string    `json:"id"`
	Room     string    `json:"room"`
	OpenedAt time.Time `json:"opened_at"`
	Posts    int64     `json:"posts"`
	LastAt   time.Time `json:"last_at"`
}

// threadPage is a page of GET /v1/threads/{id}.
type threadPage struct {
	ID       string            `json:"id"`
	Room     string            `json:"room"`
	OpenedAt time.Time         `json:"opened_at"`
	Posts    []json.RawMessage `json:"posts"`
	Next     json.RawMessage   `json:"next"`
}

// post is one entry of a thread.
type post struct {
	Seq     int64      `json:"seq"`
	ID      string     `json:"id"`
	Author  *identity  `json:"author"` // nil: the gateway, or whom Name names
	Name    string     `json:"name"`   // the platform's id of a stranger
	Kind    string     `json:"kind"`
	Text    string     `json:"text"`
	At      time.Time  `json:"at"`
	Call    string     `json:"call"`
	Message string     `json:"message"`
	Wake    *postWake  `json:"wake"`  // of an envelope
	Calls   []postCall `json:"calls"` // of a reply
}

// postWake is the wake that a post is the envelope of.
type postWake struct {
	Wake     string    `json:"wake"`
	Agent    string    `json:"agent"`
	Cause    string    `json:"cause"`
	Name     string    `json:"name"`
	Ops      []string  `json:"ops"`
	State    string    `json:"state"`
	Verdict  string    `json:"verdict"`
	Summary  string    `json:"summary"`
	Deadline time.Time `json:"deadline"`
}

// postCall is an order of a reply.
type postCall struct {
	Call     string `json:"call"`
	Op       string `json:"op"`
	Ordinal  int    `json:"ordinal"`
	State    string `json:"state"`
	Rule     string `json:"rule"`
	Code     string `json:"code"`
	Approval string `json:"approval"`
	Delivery string `json:"delivery"`
}

// words says what became of the wake.
func (w postWake) words() string {
	words := fmt.Sprintf("%s woke %s by %s of %s", w.Wake, w.Agent, w.Cause, w.Name)
	if len(w.Ops) > 0 {
		words += ", for " + strings.Join(w.Ops, ", ")
	}
	switch {
	case w.Verdict != "" && w.Summary != "":
		return words + ": " + w.Verdict + ", " + w.Summary
	case w.Verdict != "":
		return words + ": " + w.Verdict
	}
	return words + ": " + w.State + ", answer by " + stamp(w.Deadline)
}

// words says what became of the order, and by which rule.
func (c postCall) words() string {
	words := fmt.Sprintf("%d. %s %s: %s", c.Ordinal, c.Op, c.Call, c.State)
	if c.Code != "" {
		words += " " + c.Code
	}
	if c.Rule != "" {
		words += ", by " + c.Rule
	}
	if c.Approval != "" {
		words += ", " + c.Approval
	}
	if c.Delivery != "" {
		words += ", result " + strings.ReplaceAll(c.Delivery, "_", " ")
	}
	return words
}

func (a *app) threadsCommand() *cobra.Command {
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "threads",
		Short: "List threads, newest first; show or follow one",
		Long: `List threads, newest first. A thread holds what an agent wrote and, below it, the
results of the orders in it.`,
		Example: `  box threads
  box threads show t-01k9…
  box threads follow t-01k9…`,
		Args: a.subcommandOnly,
		RunE: a.asking(func(ctx context.Context, c *client, _ []string) error {
			return a.listing(ctx, c, lister{
				route: routeThreads, member: "threads", after: after, limit: limit,
				table: newTable("THREAD", "ROOM", "POSTS", "LAST", "OPENED"),
				row: func(t *table, raw json.RawMessage) error {
					var l threadListing
					if err := decode(raw, &l); err != nil {
						return err
					}
					t.row(l.ID, l.Room, strconv.FormatInt(l.Posts, 10), stamp(l.LastAt), stamp(l.OpenedAt))
					return nil
				},
			})
		}),
	}
	a.pages(cmd, &limit, &after)
	cmd.AddCommand(a.threadsShowCommand(), a.threadsFollowCommand())
	return a.speaks(cmd)
}

func (a *app) threadsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show THREAD",
		Short: "Print a thread",
		Long: `Print a thread, oldest post first: what was written, and the results that were
posted below it. Below an envelope stands what became of its wake, and below a reply
each order in it: its state, the rule that let it run, parked or refused it, and whether
its result was delivered. --jsonl prints one post a line.`,
		Example: `  box threads show t-01k9…
  box threads show t-01k9… --jsonl`,
		Args:              exactly("the thread's id"),
		ValidArgsFunction: a.completeIDs(routeThreads, "threads", "id", "room"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			return a.showThread(ctx, c, args[0])
		}),
	}
	return a.speaks(cmd)
}

func (a *app) showThread(ctx context.Context, c *client, id string) error {
	posts := []json.RawMessage{}
	head, err := c.posts(ctx, id, 0, func(raw json.RawMessage, p post) error {
		if a.json {
			posts = append(posts, raw)
			return nil
		}
		return a.printPost(raw, p)
	})
	if err != nil || !a.json {
		return err
	}
	return a.document(map[string]any{"id": head.ID, "room": head.Room, "opened_at": head.OpenedAt, "posts": posts})
}

func (a *app) threadsFollowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "follow THREAD",
		Short: "Print a thread and what comes",
		Long: `Print a thread and then each post as it is made, until interrupted (exit code 130) or
until --timeout (exit code 7). A connection that breaks off is taken up again where
it ended. --jsonl prints one post a line; --json is not offered, since a document
that never ends is none.`,
		Example: `  box threads follow t-01k9…
  box threads follow t-01k9… --jsonl | jq -r .text`,
		Args:              exactly("the thread's id"),
		ValidArgsFunction: a.completeIDs(routeThreads, "threads", "id", "room"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json {
				return usagef("follow prints a stream; use --jsonl")
			}
			ctx, cancel := a.patient(cmd.Context())
			defer cancel()
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.close()
			return c.followPosts(ctx, args[0], a.printPost)
		},
	}
	return a.speaks(cmd)
}

// posts reads the posts of a thread after seq, page by page, and calls each with them
// in order. It returns the thread's head.
func (c *client) posts(ctx context.Context, id string, seq int64, each func(json.RawMessage, post) error) (threadPage, error) {
	for {
		var got threadPage
		q := url.Values{"limit": {strconv.Itoa(maxPage)}, "after": {strconv.FormatInt(seq, 10)}}
		if _, err := c.get(ctx, request{route: routeThread, names: []string{id}, query: q}, &got); err != nil {
			return got, err
		}
		before := seq
		for _, raw := range got.Posts {
			var p post
			if err := decode(raw, &p); err != nil {
				return got, err
			}
			seq = p.Seq
			if err := each(raw, p); err != nil {
				return got, err
			}
		}
		if cursor(got.Next) == "" || seq == before {
			return got, nil
		}
	}
}

// followPosts calls each with the posts of a thread, those that exist and those that
// come, in order and each once, until it returns an error. errDone ends it without
// one.
func (c *client) followPosts(ctx context.Context, thread string, each func(json.RawMessage, post) error) error {
	var seen int64
	read := func() error {
		_, err := c.posts(ctx, thread, seen, func(raw json.RawMessage, p post) error {
			seen = p.Seq
			return each(raw, p)
		})
		return err
	}
	// The stream is open before the posts are read, so none falls between.
	return c.follow(ctx, thread, read, func(e event) error {
		var body struct {
			Thread string `json:"thread"`
			Seq    int64  `json:"seq"`
		}
		if e.Kind != "thread.posted" {
			return nil
		}
		if err := decode(e.Body, &body); err != nil {
			return err
		}
		if body.Thread != thread || body.Seq <= seen {
			return nil
		}
		return read()
	})
}

// printPost prints one post: who, when and what it is about, then its text, indented.
func (a *app) printPost(raw json.RawMessage, p post) error {
	if a.jsonl {
		return a.document(raw)
	}
	who := "inband"
	switch {
	case p.Author != nil:
		who = p.Author.ID
	case p.Name != "":
		who = "stranger " + p.Name
	}
	head := fmt.Sprintf("#%d %s, %s, %s", p.Seq, who, p.Kind, stamp(p.At))
	if p.Call != "" {
		head += ", " + p.Call
	}
	if p.Message != "" {
		head += ", message " + p.Message
	}
	head = clean(head)
	if _, tty := terminal(a.out); tty && a.colour() {
		head = "\x1b[1m" + head + "\x1b[0m"
	}
	text := indent(cleanText(p.Text))
	if p.Wake != nil {
		text += "  → " + clean(p.Wake.words()) + "\n"
	}
	for _, c := range p.Calls {
		text += "  → " + clean(c.words()) + "\n"
	}
	return a.printf("%s\n%s\n", head, text)
}

// indent sets each line of s off by four columns and ends with a line break.
func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(endLine(s)) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}
