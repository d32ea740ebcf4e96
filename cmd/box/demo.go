package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"inband/ops"
)

// demoPatience bounds the whole demo. It takes a second or two.
const demoPatience = 60 * time.Second

// demoOps is an op file for the demo: an op that an agent may not run.
//
//go:embed demo.yaml
var demoOps []byte

func (a *app) demoCommand() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a gateway at work, in seconds",
		Long: `Start a gateway on a free loopback port with a temporary state folder, let an agent
hand in replies that hold every form of order, a quotation, a broken one, a refused one
and one that an operator has to decide about, and print the thread as a person would
read it. Everything is real: the journal,
TLS, HTTP and the ops. Afterwards the gateway is stopped and the folder removed, unless
--keep.

The exit code is 0 when every order came out as it should.`,
		Example: `  box demo
  box demo --keep`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(syscall.SIGPIPE) // the folder is to be removed, whoever reads no more
			ctx, cancel := context.WithTimeout(cmd.Context(), demoPatience)
			defer cancel()
			err := a.demo(ctx, keep)
			if errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
				err = &exitError{code: ops.ExitUnreachable, err: fmt.Errorf("the demo did not come to its end within %s", demoPatience)}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the state folder, and say where it is")
	return cmd
}

func (a *app) demo(ctx context.Context, keep bool) (err error) {
	dir, err := os.MkdirTemp("", "inband-demo-")
	if err != nil {
		return err
	}
	if !keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	folder := stateFolder(dir)
	if _, err := ensureOpFiles(folder.ops()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder.ops(), "demo.yaml"), demoOps, 0o600); err != nil {
		return err
	}

	listening := make(chan address, 1)
	g, err := openGateway(ctx, gatewayConfig{
		Folder: folder, Listen: "127.0.0.1:0", Grace: 5 * time.Second, Version: readBuild().String(),
		Log: a.logger(slog.LevelError), Listening: func(at address) { listening <- at },
	})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(serving) }()
	var ran error
	select {
	case at := <-listening:
		ran = a.demoRun(ctx, folder, at)
	case err := <-ended:
		ended <- err
		ran = errors.New("the gateway ended before it listened")
	}
	stop()
	if err := errors.Join(ran, <-ended); err != nil {
		return err
	}
	return a.demoEnd(folder, keep)
}

// demoRun plays the agent and prints what comes of it.
func (a *app) demoRun(ctx context.Context, folder stateFolder, at address) error {
	operator, err := demoClient(a, folder, at, "")
	if err != nil {
		return err
	}
	defer operator.close()
	var added struct {
		Token string `json:"token"`
	}
	if _, err := operator.get(ctx, request{route: routeAddAgent, body: map[string]string{"id": demoAgent, "role": "agent"}}, &added); err != nil {
		return err
	}
	agent, err := demoClient(a, folder, at, added.Token)
	if err != nil {
		return err
	}
	defer agent.close()

	if err := a.printf("A gateway listens at %s. The agent %s hands in its replies over HTTPS.\n\n", clean(at.URL), demoAgent); err != nil {
		return err
	}
	thread := ""
	for i, step := range demoSteps(at.URL) {
		body := replyBody{Message: fmt.Sprintf("demo-%d", i+1), Text: step.text}
		if body.Thread = thread; thread == "" {
			body.Room = "demo"
		}
		got, _, err := agent.reply(ctx, body)
		if err != nil {
			return fmt.Errorf("reply %d: %w", i+1, err)
		}
		thread = got.Thread
		for _, call := range got.Calls {
			if call.State != ops.Parked {
				continue
			}
			body := map[string]string{"reason": "this is only a demo"}
			if _, err := operator.get(ctx, request{route: routeDeny, names: []string{call.Approval}, body: body}, nil); err != nil {
				return fmt.Errorf("decide about order %d of reply %d: %w", call.Ordinal, i+1, err)
			}
		}
		posts, err := agent.answers(ctx, got)
		if err != nil {
			return fmt.Errorf("results of reply %d: %w", i+1, err)
		}
		if err := a.demoShow(ctx, agent, posts); err != nil {
			return err
		}
		if err := step.check(ctx, agent, got); err != nil {
			return fmt.Errorf("reply %d did not come out as it should: %w", i+1, err)
		}
	}
	return nil
}

const demoAgent = "ada"

// demoClient is a client of the demo's gateway, as the operator without a token.
func demoClient(a *app, folder stateFolder, at address, token string) (*client, error) {
	// A fresh app: neither flags nor environment lead the demo elsewhere.
	fresh := newApp(a.in, a.out, a.errs, func(string) string { return "" })
	fresh.state = string(folder)
	c, err := fresh.connect()
	if err != nil {
		return nil, err
	}
	if token != "" {
		c.token = token
	}
	return c, nil
}

// demoStep is one reply and what must come of it.
type demoStep struct {
	text   string
	calls  []demoCall // in text order, all that there may be
	broken int
}

// demoCall is an order and its outcome: the code of its fault, empty for success.
type demoCall struct {
	form, op string
	code     ops.Code
}

func demoSteps(gateway string) []demoStep {
	exec := gateway + "/exec"
	return []demoStep{
		{
			text: "Let me see what I may use here, and how the gateway is doing.\n\n" +
				"[TOOL tools.list {}]\n" +
				"[EXEC box.exec {\"action\":\"health\"}]\n" +
				"[DM {\"to\":\"#demo-notes\",\"text\":\"ada is looking around\"}]",
			calls: []demoCall{{form: "tool", op: "tools.list"}, {form: "exec", op: "box.exec"}, {form: "dm", op: "dm.send"}},
		},
		{
			text: "The same works in fences, and as a curl command:\n\n" +
				"```tool\nbox.exec {\"action\":\"uptime\"}\n```\n\n" +
				"```exec\n{\"op\":\"box.exec\",\"params\":{\"action\":\"adaptors\"}}\n```\n\n" +
				"```box\nversion\nagent " + demoAgent + "\n```\n\n" +
				"curl -s " + exec + " -d '{\"op\":\"box.exec\",\"params\":{\"action\":\"providers\"}}'",
			calls: []demoCall{
				{form: "tool", op: "box.exec"}, {form: "exec", op: "box.exec"}, {form: "box", op: "box.exec"},
				{form: "box", op: "box.exec"}, {form: "curl", op: "box.exec"},
			},
		},
		{
			text: "Not every mention is an order:\n\n" +
				"> [DM {\"to\":\"#demo-notes\",\"text\":\"quoted, so never sent\"}]\n\n" +
				"Nor is `[TOOL tools.list {}]` in code, and this one is broken: [TOOL box.exec {\"action\":}]\n\n" +
				"These two are orders. The first waits until an operator decides, who says no; the second is refused:\n\n" +
				"[TOOL demo.restart {\"unit\":\"web\"}]\n" +
				"[TOOL tools.lst {}]",
			calls:  []demoCall{{form: "tool", op: "demo.restart", code: ops.ApprovalDenied}, {form: "tool", op: "tools.lst", code: ops.UnknownOp}},
			broken: 1,
		},
	}
}

// check compares what came of a reply with what must.
func (s demoStep) check(ctx context.Context, c *client, got ack) error {
	if len(got.Calls) != len(s.calls) {
		return fmt.Errorf("%d orders were found instead of %d", len(got.Calls), len(s.calls))
	}
	if got.Broken != s.broken {
		return fmt.Errorf("%d broken directives were counted instead of %d", got.Broken, s.broken)
	}
	for i, want := range s.calls {
		shown, _, err := c.call(ctx, got.Calls[i].Call)
		if err != nil {
			return err
		}
		is := demoCall{form: got.Calls[i].Form, op: shown.Op}
		if shown.Fault != nil {
			is.code = shown.Fault.Code
		} else if shown.State != ops.Succeeded {
			return fmt.Errorf("order %d is %s", i+1, shown.State)
		}
		if is != want {
			return fmt.Errorf("order %d came out as %+v instead of %+v", i+1, is, want)
		}
	}
	return nil
}

// Bounds of what the demo shows of one post.
const (
	demoLines = 14
	demoWidth = 96
)

// demoShow prints posts, the results shortened.
func (a *app) demoShow(ctx context.Context, c *client, posts []json.RawMessage) error {
	for _, raw := range posts {
		var p post
		if err := decode(raw, &p); err != nil {
			return err
		}
		who := "inband"
		if p.Author != nil {
			who = p.Author.ID
		}
		text := cleanText(p.Text)
		if p.Kind == "result" {
			shown, _, err := c.call(ctx, p.Call)
			if err != nil {
				return err
			}
			if shown.Op == string(ops.ToolsList().Name) && shown.State == ops.Succeeded {
				if text, err = briefOps(p.Text, shown.Result); err != nil {
					return err
				}
			}
			text = brief(text)
		}
		who = clean(who)
		if _, tty := terminal(a.out); tty && a.colour() {
			who = "\x1b[1m" + who + "\x1b[0m"
		}
		if err := a.printf("%s\n%s\n", who, indent(text)); err != nil {
			return err
		}
	}
	return nil
}

// briefOps is the post of a list of ops with its first line and, instead of the
// document, a line for each op.
func briefOps(text string, result json.RawMessage) (string, error) {
	var list struct {
		Ops []opListing `json:"ops"`
	}
	if err := decode(result, &list); err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(text, "\n")
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", clean(first))
	for _, op := range list.Ops {
		fmt.Fprintf(&b, "%-14s %-6s  you %-7s  %s\n", clean(op.Name), effect(op.SideEffecting), permitted(op.Permitted), clean(op.Summary))
	}
	return b.String(), nil
}

// brief keeps the first lines of a text and its last one, each cut to a width.
func brief(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if more := len(lines) - demoLines; more > 1 {
		last := lines[len(lines)-1]
		lines = append(slices.Clone(lines[:demoLines-1]), fmt.Sprintf("… %d more lines …", more), last)
	}
	for i, line := range lines {
		if utf8.RuneCountInString(line) > demoWidth {
			lines[i] = shorten(line, demoWidth)
		}
	}
	return strings.Join(lines, "\n")
}

// demoEnd says how to go on.
func (a *app) demoEnd(folder stateFolder, keep bool) error {
	next := [][2]string{
		{"box serve", "run a gateway of your own"},
		{"box agents add ada", "make an agent and its token"},
		{"box reply --agent ada --room lobby --wait FILE", "hand in what it wrote"},
		{"box threads follow THREAD", "watch a thread"},
		{"box harvest --explain FILE", "see what counts as an order, and what does not"},
	}
	if keep {
		path := string(folder)
		next = slices.Insert(next, 0, [2]string{"box serve --state " + quoted(path), "go on where the demo ended"})
	}
	if err := a.printf("Every order came out as it should. How to go on:\n\n"); err != nil {
		return err
	}
	width := 0
	for _, n := range next {
		width = max(width, len(n[0]))
	}
	for _, n := range next {
		if err := a.printf("    %-*s  # %s\n", width, n[0], n[1]); err != nil {
			return err
		}
	}
	return nil
}

// quoted is path as a shell reads it, for a line to copy.
func quoted(path string) string {
	if url.PathEscape(strings.ReplaceAll(path, "/", "")) == strings.ReplaceAll(path, "/", "") {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
