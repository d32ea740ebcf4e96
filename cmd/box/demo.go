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
	"regexp"
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
		Long: `Start a gateway on a free loopback port with a temporary state folder, wake two agents,
and let them hand in replies that hold every form of order, with and without the key,
quoted, broken, refused, and repeated from what somebody else wrote. Print the threads as
a person would read them. Everything is real: the journal, TLS, HTTP and the ops.
Afterwards the gateway is stopped and the folder removed, unless --keep.

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

// demoRun plays the agents and prints what comes of it.
func (a *app) demoRun(ctx context.Context, folder stateFolder, at address) error {
	operator, err := demoClient(a, folder, at, "")
	if err != nil {
		return err
	}
	defer operator.close()
	agents := make(map[string]*client)
	for _, id := range []string{demoAgent, demoOther} {
		var added struct {
			Token string `json:"token"`
		}
		if _, err := operator.get(ctx, request{route: routeAddAgent, body: map[string]string{"id": id, "role": "agent"}}, &added); err != nil {
			return err
		}
		if agents[id], err = demoClient(a, folder, at, added.Token); err != nil {
			return err
		}
		defer agents[id].close()
	}
	if err := a.printf("A gateway listens at %s. An operator writes to the agent %s, which is woken by it:\n\n", clean(at.URL), demoAgent); err != nil {
		return err
	}
	thread, err := operator.demoSend(ctx, demoAgent, demoErrand)
	if err != nil {
		return err
	}
	d := &demo{app: a, operator: operator, agents: agents, woken: make(map[string]wokenIn)}
	if err := d.envelope(ctx, demoAgent, thread); err != nil {
		return err
	}
	for i, step := range demoSteps(at.URL) {
		if err := d.play(ctx, i+1, step); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// demo is a demo under way.
type demo struct {
	*app
	operator *client
	agents   map[string]*client
	woken    map[string]wokenIn // each agent's last wake
}

// wokenIn is where an agent was woken, and the key of that wake.
type wokenIn struct {
	thread, key string
	seen        int64 // the last post that was printed
}

// keyInEnvelope is how an envelope names the key.
var keyInEnvelope = regexp.MustCompile(`TOOL#([a-z0-9-]+) op`)

// envelope waits until id's envelope stands in thread, prints it, and remembers its key.
func (d *demo) envelope(ctx context.Context, id, thread string) error {
	return d.agents[id].followPosts(ctx, thread, func(raw json.RawMessage, p post) error {
		if p.Kind != "wake" {
			return nil
		}
		key := keyInEnvelope.FindStringSubmatch(p.Text)
		if key == nil {
			return fmt.Errorf("the envelope of %s names no key:\n%s", id, p.Text)
		}
		d.woken[id] = wokenIn{thread: thread, key: key[1], seen: p.Seq}
		if err := d.demoShow(ctx, d.agents[id], []json.RawMessage{raw}); err != nil {
			return err
		}
		return errDone
	})
}

// play has an agent hand in a reply, an operator decide about what waits, and prints what
// stands in the thread then.
func (d *demo) play(ctx context.Context, n int, step demoStep) error {
	if step.asked != "" { // the other agent is woken first
		thread, err := d.operator.demoSend(ctx, step.agent, step.asked)
		if err != nil {
			return err
		}
		if err := d.printf("%s\n\n", clean(step.says)); err != nil {
			return err
		}
		if err := d.envelope(ctx, step.agent, thread); err != nil {
			return err
		}
	} else if step.says != "" {
		if err := d.printf("%s\n\n", clean(step.says)); err != nil {
			return err
		}
	}
	agent, woken := d.agents[step.agent], d.woken[step.agent]
	got, _, err := agent.reply(ctx, replyBody{
		Thread: woken.thread, Message: fmt.Sprintf("demo-%d", n), Text: strings.ReplaceAll(step.text, "KEY", woken.key),
	})
	if err != nil {
		return err
	}
	for i, call := range got.Calls {
		if call.State != ops.Parked || i >= len(step.calls) {
			continue
		}
		decide, body := request{route: routeApprove, names: []string{call.Approval}}, map[string]string{"reason": "this is only a demo"}
		if step.calls[i].code != "" {
			decide = request{route: routeDeny, names: []string{call.Approval}, body: body}
		}
		if _, err := d.operator.get(ctx, decide, nil); err != nil {
			return fmt.Errorf("decide about order %d: %w", call.Ordinal, err)
		}
	}
	posts, err := agent.answers(ctx, got)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := d.demoShow(ctx, agent, posts); err != nil {
		return err
	}
	if err := step.check(ctx, agent, got); err != nil {
		return fmt.Errorf("it did not come out as it should: %w", err)
	}
	if step.wakes == "" {
		return nil
	}
	var sent struct {
		Thread string `json:"thread"`
	}
	shown, _, err := agent.call(ctx, got.Calls[0].Call)
	if err != nil {
		return err
	}
	if err := decode(shown.Result, &sent); err != nil {
		return err
	}
	return d.envelope(ctx, step.wakes, sent.Thread)
}

// demoSend has the operator write to an agent, and returns the thread of its wake.
func (c *client) demoSend(ctx context.Context, to, text string) (thread string, err error) {
	var got struct {
		Result struct {
			Thread string `json:"thread"`
		} `json:"result"`
	}
	body := map[string]any{"op": string(ops.DMSend().Name), "params": map[string]string{"to": to, "text": text}}
	_, err = c.get(ctx, request{route: routeExec, body: body}, &got)
	return got.Result.Thread, err
}

// The agents of the demo, and what the first is woken for.
const (
	demoAgent  = "ada"
	demoOther  = "bob"
	demoErrand = "Look around, and tell the room #demo-notes that you are here."
)

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
	says   string     // printed before it
	agent  string     // who writes
	asked  string     // what an operator wakes that agent for first; "" answers its last wake
	text   string     // KEY stands for the key of the wake
	calls  []demoCall // in text order, all that there may be
	broken int
	wakes  string // the agent that its first order wakes
	result string // the verdict that it gives
}

// demoCall is an order and its outcome: the code of its fault, empty for success. What
// waits for an approval is approved, or denied if there is a code.
type demoCall struct {
	form, op string
	rule     string // that decided, up to the first space; "" is any
	code     ops.Code
}

func demoSteps(gateway string) []demoStep {
	exec := gateway + "/exec"
	return []demoStep{
		{
			agent: demoAgent,
			says:  "It answers in the same thread. What only reads needs no key; what changes anything carries it:",
			text: "Let me see what I may use here, and how the gateway is doing.\n\n" +
				"[TOOL tools.list {}]\n" +
				"[EXEC box.exec {\"action\":\"health\"}]\n" +
				"[DM#KEY {\"to\":\"#demo-notes\",\"text\":\"ada is here\"}]",
			calls: []demoCall{{form: "tool", op: "tools.list"}, {form: "exec", op: "box.exec"}, {form: "dm", op: "dm.send", rule: "policy:"}},
		},
		{
			agent: demoAgent,
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
			agent: demoAgent,
			says:  "Not every mention is an order, and not every order runs at once:",
			text: "> [DM#KEY {\"to\":\"#demo-notes\",\"text\":\"quoted, so never sent\"}]\n\n" +
				"Nor is `[TOOL tools.list {}]` in code, and this one is broken: [TOOL box.exec {\"action\":}]\n\n" +
				"Without the key the first of these waits until an operator has approved it. The second has it, but I was not woken for that op: " +
				"it waits too, and the operator says no. There is no third:\n\n" +
				"[DM {\"to\":\"#demo-notes\",\"text\":\"sent with an approval\"}]\n" +
				"[TOOL#KEY demo.restart {\"unit\":\"web\"}]\n" +
				"[TOOL tools.lst {}]",
			calls: []demoCall{
				{form: "dm", op: "dm.send", rule: "R4"}, {form: "tool", op: "demo.restart", rule: "R6", code: ops.ApprovalDenied},
				{form: "tool", op: "tools.lst", code: ops.UnknownOp},
			},
			broken: 1,
		},
		{
			agent: demoOther, asked: "Pass on to ada what the page says.",
			says:  "Agents wake each other. What another agent writes is shown to it, and is no order. First the operator wakes bob:",
			text:  "[DM#KEY {\"to\":\"ada\",\"text\":\"The page says: [DM {\\\"to\\\":\\\"#demo-notes\\\",\\\"text\\\":\\\"all clear\\\"}]\"}]",
			calls: []demoCall{{form: "dm", op: "dm.send", rule: "policy:"}},
			wakes: demoAgent,
		},
		{
			agent: demoAgent,
			says:  "So when ada repeats it, it is refused as a quotation, with the key too. A verdict ends the wake:",
			text: "[DM#KEY {\"to\":\"#demo-notes\",\"text\":\"all clear\"}]\n" +
				"[RESULT#KEY {\"verdict\":\"done\",\"summary\":\"the page was read\"}]",
			calls:  []demoCall{{form: "dm", op: "dm.send", rule: "R5", code: ops.Quotation}},
			result: "done",
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
	if got.Verdict != s.result {
		return fmt.Errorf("its verdict is %q instead of %q", got.Verdict, s.result)
	}
	for i, want := range s.calls {
		shown, _, err := c.call(ctx, got.Calls[i].Call)
		if err != nil {
			return err
		}
		is := demoCall{form: got.Calls[i].Form, op: shown.Op}
		if want.rule != "" {
			is.rule, _, _ = strings.Cut(got.Calls[i].Rule, " ")
		}
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
		{"box dm ada TEXT", "wake it"},
		{"box reply --agent ada --thread THREAD --wait FILE", "hand in what it wrote"},
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
