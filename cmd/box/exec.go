package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"inband/ops"
)

// maxParams bounds what exec reads as parameters: the API's bound on a body.
const maxParams = 64 << 10

// execAnswer is what POST /exec answers, a success or a fault.
type execAnswer struct {
	OK       bool            `json:"ok"`
	Call     string          `json:"call"`
	Op       string          `json:"op"`
	State    ops.State       `json:"state"`
	Result   json.RawMessage `json:"result"`
	Replayed bool            `json:"replayed"`
	Approval string          `json:"approval"` // of a parked call
	Fault    *ops.Fault      `json:"fault"`
}

func (a *app) execCommand() *cobra.Command {
	var file, key, id string
	var async, wait bool
	cmd := &cobra.Command{
		Use:   "exec OP [NAME=VALUE | NAME:=JSON]… [-f FILE]",
		Short: "Run an op and print its result",
		Long: `Run an op and print its result.

Parameters are written NAME=VALUE and typed as the op declares them: a string, an
integer, true or false. NAME:=JSON gives any JSON value as it is. -f FILE, or -f -
for standard input, reads one JSON object instead. What does not fit the op is
refused by the gateway, which says what would.

A call that needs somebody's approval is parked: its id and the approval's are
printed, and the exit code is 5. With --wait it is waited for until somebody has
decided and the call is done.

Each invocation carries an idempotency key of its own, so that a request whose
connection was lost can be sent again without running the op twice. --id gives the
key; the same key with the same op and parameters never runs twice.

--async orders the call and prints its id without waiting. --wait orders it in the
same way and then waits for its outcome, so that a lost connection or an interrupt
does not cancel the call; without it, the call of a caller who goes is cancelled.

Exit codes: 0 the op succeeded, 1 it failed or its outcome is not known, 2 wrong
parameters, 3 no such op, 4 not permitted, 5 waiting for an approval, 6 conflict,
7 unreachable or timed out.`,
		Example: `  box exec tools.list
  box exec disk.usage folder=/srv
  box exec dm.send to=ops text="the build is green"
  box exec processes by_memory=true
  echo '{"folder":"/srv"}' | box exec disk.usage -f - --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the op is missing")
			}
			return nil
		},
		ValidArgsFunction: a.completeExec,
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "read the parameters as one JSON object from this file, - for standard input")
	f.StringVar(&key, "key", "", "the key of the wake that this belongs to")
	f.StringVar(&id, "id", "", "idempotency key (default: a fresh one)")
	f.BoolVar(&async, "async", false, "print the call's id at once; do not wait for its outcome")
	f.BoolVar(&wait, "wait", false, "do not tie the call to this connection; wait for its outcome")
	oneOf(cmd, "async", "wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.patient(cmd.Context())
		defer cancel()
		if file != "" && len(args) > 1 {
			return usagef("give the parameters either as NAME=VALUE or with -f, not both")
		}
		if changed(cmd.Flags(), "id") && id == "" {
			return usagef("--id is empty; leave it out for a fresh one")
		}
		words, err := parseWords(args[1:])
		if err != nil {
			return err
		}
		var params json.RawMessage
		if file != "" {
			if params, err = a.readParams(ctx, file); err != nil {
				return err
			}
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.close()
		if len(words) > 0 {
			if params, err = c.typed(ctx, args[0], words); err != nil {
				return err
			}
		}
		return a.exec(ctx, c, order{op: args[0], params: params, key: key, id: id}, async, wait)
	}
	return a.speaks(cmd)
}

// order is a call to be made.
type order struct {
	op, key, id string
	params      json.RawMessage
}

// exec makes a call and prints what comes of it.
func (a *app) exec(ctx context.Context, c *client, o order, async, wait bool) error {
	got, raw, err := a.order(ctx, c, o, async || wait)
	if err != nil {
		if raw != nil && (a.json || a.jsonl) && json.Valid(raw) {
			a.answered = true
			if err := a.document(raw); err != nil {
				return err
			}
		}
		return err
	}
	if got.State == ops.Parked && !wait {
		return a.printParked(got, raw)
	}
	if !async && !got.State.Settled() { // also when the gateway ends a long wait
		return a.waitAndPrint(ctx, c, got.Call)
	}
	switch {
	case a.json || a.jsonl:
		err = a.document(raw)
	case async:
		err = a.printf("%s\n", clean(got.Call))
	default:
		err = a.printValue(got.Result)
	}
	if err != nil {
		return err
	}
	if got.Replayed {
		a.notice("this key was used before: the stored outcome of %s, nothing ran", got.Call)
	}
	if async {
		a.notice("see what comes of it: box calls show %s --wait", got.Call)
	}
	return nil
}

// printParked prints what a call waits for, which is the exit code 5.
func (a *app) printParked(got execAnswer, raw json.RawMessage) error {
	var err error
	if a.json || a.jsonl {
		err = a.document(raw)
	} else {
		err = a.printf("call      %s\napproval  %s\n", clean(got.Call), clean(got.Approval))
	}
	if err != nil {
		return err
	}
	return &exitError{code: ops.ExitWaiting, hint: got.Op + " waits for an approval, and nothing has run: box approvals approve " + got.Approval +
		", and what comes of it: box calls show " + got.Call + " --wait"}
}

// order sends one call and returns the decoded answer with its bytes. When the answer
// to an earlier attempt was lost and the call is still running, it is waited for.
func (a *app) order(ctx context.Context, c *client, o order, detached bool) (execAnswer, json.RawMessage, error) {
	if o.id == "" {
		o.id = "box-" + strings.ToLower(rand.Text())
	}
	body := struct {
		Op     string          `json:"op"`
		Params json.RawMessage `json:"params,omitempty"`
		Key    string          `json:"key,omitempty"`
	}{o.op, o.params, o.key}
	head := http.Header{"Idempotency-Key": {o.id}}
	if detached {
		head.Set("Prefer", "respond-async")
	}
	stop := a.progress("waiting for " + o.op)
	got, err := c.do(ctx, request{route: routeExec, body: body, head: head, again: true})
	stop()
	var fault *ops.Fault
	if errors.As(err, &fault) && fault.Code == ops.InProgress && got.tries > 1 {
		if call, ok := fault.Details["call"].(string); ok {
			return execAnswer{OK: true, Call: call, Op: o.op, State: ops.Running}, nil, a.waitAndPrint(ctx, c, call)
		}
	}
	var answer execAnswer
	if err != nil {
		return answer, got.body, err
	}
	return answer, got.body, decode(got.body, &answer)
}

// word is one NAME=VALUE or NAME:=JSON of the command line.
type word struct {
	name, value string
	raw         bool
}

func parseWords(args []string) ([]word, error) {
	var words []word
	seen := make(map[string]bool)
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, usagef("the parameter %q: want NAME=VALUE or NAME:=JSON", arg)
		}
		name, raw := strings.CutSuffix(name, ":")
		if name == "" {
			return nil, usagef("the parameter %q has no name", arg)
		}
		if seen[name] {
			return nil, usagef("the parameter %s is given twice", name)
		}
		seen[name] = true
		if raw && !json.Valid([]byte(value)) {
			return nil, usagef("the parameter %s: %q is not JSON", name, value)
		}
		words = append(words, word{name, value, raw})
	}
	return words, nil
}

// opListing is an op as GET /v1/ops lists it.
type opListing struct {
	Name          string   `json:"name"`
	Aliases       []string `json:"aliases"`
	Provider      string   `json:"provider"`
	Summary       string   `json:"summary"`
	SideEffecting bool     `json:"side_effecting"`
	Parameters    schema   `json:"parameters"`
	Concurrency   int      `json:"concurrency"`
	Rate          *opRate  `json:"rate"`
	Permitted     bool     `json:"permitted"`
	Digest        string   `json:"digest"`
}

// opRate is how many calls of an op may begin in a time.
type opRate struct {
	Count      int     `json:"count"`
	PerSeconds float64 `json:"per_seconds"`
}

// schema is what box reads of the JSON Schema of an op's parameters.
type schema struct {
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required"`
}

type property struct {
	Type        string `json:"type"`
	Description string `json:"description"`
	Enum        []any  `json:"enum"`
	Minimum     *int64 `json:"minimum"`
	Maximum     *int64 `json:"maximum"`
	MaxLength   *int64 `json:"maxLength"`
	Pattern     string `json:"pattern"`
}

// typed turns words into a params object by the op's published schema.
func (c *client) typed(ctx context.Context, op string, words []word) (json.RawMessage, error) {
	var listing opListing
	if _, err := c.get(ctx, request{route: routeOp, names: []string{op}}, &listing); err != nil {
		return nil, err
	}
	return listing.Parameters.object(words)
}

// object writes words as one JSON object in their order. A value that does not read as
// the declared type is sent as a string: the gateway then says what it wants instead.
func (s schema) object(words []word) (json.RawMessage, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, w := range words {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(w.name)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		if w.raw {
			b.WriteString(w.value)
			continue
		}
		value, err := json.Marshal(s.Properties[w.name].read(w.value))
		if err != nil {
			return nil, err
		}
		b.Write(value)
	}
	b.WriteByte('}')
	return json.RawMessage(b.String()), nil
}

func (p property) read(value string) any {
	switch p.Type {
	case "integer":
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			return n
		}
	case "boolean":
		switch value {
		case "true":
			return true
		case "false":
			return false
		}
	}
	return value
}

// readParams reads one JSON object. Whether it fits the op is the gateway's to say.
func (a *app) readParams(ctx context.Context, file string) (json.RawMessage, error) {
	b, whole, err := a.readInput(ctx, file, maxParams)
	if err != nil {
		return nil, err
	}
	if !whole {
		return nil, ops.Faultf(ops.TooLarge, "%s holds more than the %d bytes that parameters may have", inputName(file), maxParams)
	}
	if trimmed := strings.TrimLeft(string(b), " \t\r\n"); !json.Valid(b) || trimmed[0] != '{' {
		return nil, usagef("%s is not one JSON object", inputName(file))
	}
	return b, nil
}
