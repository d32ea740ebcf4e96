package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"inband/harvester"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/threads"
)

// Bounds of a file of cases.
const (
	maxCase      = 2 << 20 // bytes of one case
	maxInbound   = 32      // texts that an agent was shown in one case
	maxCaseID    = 128     // bytes
	casesAtATime = 32      // each waits for its commits, which they share
	toldWrong    = 20      // cases that disagree and are named one by one
)

func (a *app) policyTestCommand() *cobra.Command {
	var policyFile, agent string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "test FILE|-",
		Short: "Try replies against a policy",
		Long: `Try what becomes of agents' replies under a policy: each case of FILE says what an agent
was shown and what it wrote, and box prints what became of the orders in it, one JSON
object a line: {"id":…,"verdict":…}, where the verdict is

  run      an order would have run
  park     none would have; one waits for an approval
  refuse   every order is refused
  ignore   there was no order

They go through the same harvester, threads and door as in a gateway, in a journal of
their own that is thrown away. No op does anything. No gateway is needed and none is
asked.

FILE is a JSON array of objects: "id"; "inbound", an array of {"from","text"} in the
order in which the agent was shown them, where from is envelope (the errand of its
wake), operator (an operator's words), untrusted (anybody else's) or self (what it wrote
before); "key" and "job_ops", the key and the declared ops of the wake; "reply", what
the agent wrote. If there is "op", only orders of that op count. If there is "must"
(run, park, refuse, ignore, or "not run"), it is compared with the verdict; the exit
code is then 1 when one differs.

The ops are the native ones, those of ops.d in the state folder, or else those that come
with box, and test.write. The policy is --policy, or else
that of the state folder, or else the one that box comes with.`,
		Example: `  box policy test cases.json
  box policy test cases.json --policy policy.cedar.new | jq -r 'select(.verdict=="run").id'`,
		Args: exactly("the file with the cases"),
	}
	f := cmd.Flags()
	f.StringVar(&policyFile, "policy", "", "the policy file (default: that of the state folder, else the one that box comes with)")
	f.StringVar(&agent, "agent", "agent", "id of the agent that writes the replies, for policies that name one")
	f.StringArrayVar(&hosts, "exec-host", nil, "a host whose curl commands count, * for any (may be repeated)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !ops.IdentityID(agent).Valid() || ops.IdentityID(agent) == caseOperator.ID {
			return usagef("--agent %q: want the id of an agent", agent)
		}
		policy, err := a.policyToTest(policyFile)
		if err != nil {
			return err
		}
		bound, err := a.inertOps()
		if err != nil {
			return err
		}
		r, done, err := a.open(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer done()
		bench, err := openBench(cmd.Context(), policy, bound, ops.IdentityID(agent), hosts)
		if err != nil {
			return err
		}
		return errors.Join(a.tryCases(cmd.Context(), bench, newCaseReader(inputName(args[0]), r, bench.known)), bench.close())
	}
	return cmd
}

// policyToTest reads the policy that cases are tried under.
func (a *app) policyToTest(path string) (*access.Policy, error) {
	if path != "" {
		policy, err := readPolicy(path)
		return policy, asPolicyError(err)
	}
	folder, err := a.folder()
	if err != nil {
		return nil, err
	}
	policy, err := readPolicy(folder.policy())
	if errors.Is(err, fs.ErrNotExist) {
		return access.DefaultPolicy(), nil
	}
	return policy, asPolicyError(err)
}

// asPolicyError says of mistakes in a file that they are in the policy.
func asPolicyError(err error) error {
	if errors.As(err, new(ops.FileErrors)) {
		return &policyError{err}
	}
	return err
}

// inertOps is every op there is, none of which does anything.
func (a *app) inertOps() ([]ops.Bound, error) {
	all := append(ops.Natives(), testWrite())
	folder, err := a.folder()
	if err != nil {
		return nil, err
	}
	files, err := readOpFiles([]string{folder.ops()})
	if errors.Is(err, fs.ErrNotExist) {
		files, err = ops.ReadDir(ops.Files)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		for _, d := range f.Ops {
			all = append(all, d.Op)
		}
	}
	bound := make([]ops.Bound, len(all))
	for i, op := range all {
		op.Rate, op.Concurrency = ops.Rate{}, 0 // how many cases there are is no rate of an agent's
		bound[i] = ops.Bound{Op: op, Executor: inert{}}
	}
	return bound, nil
}

// testWrite is the op that only case files have.
func testWrite() ops.Op {
	return ops.Op{Name: "test.write", Provider: ops.NativeProvider, Summary: "An op of case files.", SideEffecting: true, Params: ops.Params{
		{Name: "path", Type: ops.Text, Max: 4096, Doc: "The file."},
		{Name: "data", Type: ops.Text, Max: ops.MaxText, Doc: "What it is to hold."},
	}}
}

// inert succeeds and has done nothing.
type inert struct{}

func (inert) Execute(context.Context, ops.Call) (ops.Outcome, error) {
	return ops.Success(ops.NewResult(nil, "")), nil
}

// inCase says in which case of the file name err came up.
func inCase(name string, c policyCase, err error) error {
	err = fmt.Errorf("%s: case %d (%s): %w", name, c.n, shorten(c.ID, 40), err)
	var fault *ops.Fault
	if errors.As(err, &fault) {
		return &exitError{code: fault.Code.Info().Exit, err: err}
	}
	return err
}

// bench is a gateway without an entrance, for one agent, in a folder that goes.
type bench struct {
	dir     string
	agent   ops.Identity
	store   *sqlite.Store
	door    *service.Door
	threads *threads.Threads
	known   func(ops.OpName) (ops.OpName, bool)
}

// caseOperator writes the operators' words of cases, and ends what they leave behind.
var caseOperator = ops.Identity{ID: "case-operator", Role: ops.Operator}

func openBench(ctx context.Context, policy *access.Policy, bound []ops.Bound, agent ops.IdentityID, hosts []string) (_ *bench, err error) {
	registry, err := ops.New(bound...)
	if err != nil {
		return nil, err
	}
	b := &bench{agent: ops.Identity{ID: agent, Role: ops.Agent}, known: func(name ops.OpName) (ops.OpName, bool) {
		e, ok := registry.Lookup(name)
		if !ok {
			return "", false
		}
		return e.Name, true
	}}
	if b.dir, err = os.MkdirTemp("", "inband-cases-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.store, err = sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(b.dir, "journal.db"), Schemas: []journal.Schema{access.Schema(), service.Schema(), threads.Schema()},
	}); err != nil {
		return nil, err
	}
	directory := access.NewDirectory(b.store)
	for _, id := range []ops.Identity{b.agent, caseOperator} {
		if _, err := directory.Add(ctx, id); err != nil {
			return nil, err
		}
	}
	silent := slog.New(slog.DiscardHandler)
	live := ops.NewLive(registry)
	most := casesAtATime * threads.MaxDirectives * (maxInbound + 1)
	if b.door, err = service.New(service.Config{
		Store: b.store, Registry: live, Policy: access.NewLivePolicy(policy), Log: silent,
		MaxWaiting: most, ShareWaiting: most, RatePerIdentity: ops.Rate{Count: 1 << 30, Per: time.Second},
		Approvals: service.ApprovalLimits{Most: most, Share: most},
	}); err != nil {
		return nil, err
	}
	if b.threads, err = threads.New(threads.Config{
		Store: b.store, Door: b.door, Registry: live, Log: silent, ExecHosts: append(harvester.DefaultExecHosts(), hosts...),
	}); err != nil {
		return nil, err
	}
	if err := b.door.Start(ctx); err != nil {
		return nil, err
	}
	return b, b.threads.Start(ctx)
}

// close ends b and removes its folder.
func (b *bench) close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel() // nothing is under way that matters
	if b.door != nil {
		_ = b.door.Close(ended)
	}
	if b.threads != nil {
		b.threads.Close()
	}
	var err error
	if b.store != nil {
		err = b.store.Close()
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// try shows the agent what c says that it was shown, hands in its reply, and returns
// the verdict. Each text but the agent's own is a wake in the case's thread; the last one
// is the wake that has the case's key and ops.
func (b *bench) try(ctx context.Context, c policyCase) (verdict string, err error) {
	thread := ""
	last := threads.Errand{Key: c.Key, Ops: c.JobOps}
	shown := slices.DeleteFunc(slices.Clone(c.Inbound), func(in caseText) bool {
		if in.From == "envelope" {
			last.Text += in.Text
		}
		return in.From == "envelope"
	})
	for i, in := range shown {
		switch {
		case in.From == "self":
			ack, err := b.reply(ctx, thread, fmt.Sprintf("%d.%d", c.n, i), in.Text)
			if err != nil {
				return "", fmt.Errorf("inbound: the agent's own words: %w", err)
			}
			thread = ack.Thread
		case i+1 == len(shown) && in.From == "operator" && last.Text == "":
			last.Text, last.By = in.Text, caseOperator
		case i+1 == len(shown) && in.From == "untrusted":
			last.Shown = in.Text
		default:
			e := threads.Errand{Shown: in.Text}
			if in.From == "operator" {
				e = threads.Errand{Text: in.Text, By: caseOperator}
			}
			if thread, err = b.wake(ctx, thread, e); err != nil {
				return "", fmt.Errorf("inbound: %s words: %w", in.From, err)
			}
		}
	}
	if last.Text == "" && last.Shown == "" {
		last.Text = "An errand."
	}
	if thread, err = b.wake(ctx, thread, last); err != nil {
		return "", fmt.Errorf("the wake: %w", err)
	}
	ack, err := b.reply(ctx, thread, fmt.Sprintf("%d", c.n), c.Reply)
	if err != nil {
		return "", fmt.Errorf("reply: %w", err)
	}
	verdict = verdictIgnore
	for _, call := range ack.Calls {
		if c.Op != "" && call.Op != c.Op {
			continue
		}
		if v := verdictOf(call.State); rank[v] > rank[verdict] {
			verdict = v
		}
	}
	return verdict, nil
}

// rank orders verdicts: what went furthest of several orders counts.
var rank = map[string]int{verdictIgnore: 0, verdictRefuse: 1, verdictPark: 2, verdictRun: 3}

func verdictOf(s ops.State) string {
	switch s {
	case ops.Refused:
		return verdictRefuse
	case ops.Parked:
		return verdictPark
	}
	return verdictRun
}

// wake wakes the agent and returns the thread.
func (b *bench) wake(ctx context.Context, thread string, e threads.Errand) (string, error) {
	e.Agent, e.Cause, e.Source, e.Name, e.Thread = b.agent.ID, threads.ByMessage, "case", "a case", thread
	var w threads.Wake
	err := b.store.Update(ctx, func(tx journal.Tx) (err error) {
		w, err = b.threads.Raise(tx, e)
		return err
	})
	return w.Thread, err
}

// reply hands in what the agent wrote. What it leaves open is ended, so that there are
// never many open calls.
func (b *bench) reply(ctx context.Context, thread, message, text string) (threads.Ack, error) {
	r := threads.Reply{Agent: b.agent.ID, Thread: thread, Message: message, Text: text}
	if thread == "" {
		r.Room = "cases"
	}
	ack, err := b.threads.Take(ctx, b.agent, r)
	if err != nil {
		return ack, err
	}
	for _, call := range ack.Calls {
		switch {
		case call.State == ops.Parked:
			_, err = b.door.Cancel(ctx, caseOperator, call.Call)
		case !call.State.Settled():
			_, err = b.door.Await(ctx, call.Call)
		}
		if err != nil {
			return ack, err
		}
	}
	return ack, nil
}

// tryCases tries each case that r has, some at a time, and prints the verdicts in the
// order of the file.
func (a *app) tryCases(ctx context.Context, b *bench, r *caseReader) error {
	out := bufio.NewWriter(a.out)
	verdicts := make(map[string]int)
	compared, wrong := 0, 0
	for ended := false; !ended; {
		var some []policyCase
		var broken error
		for len(some) < casesAtATime && broken == nil {
			c, err := r.next()
			if broken = err; err == nil {
				some = append(some, c)
			}
		}
		ended = broken != nil
		got, faults := make([]string, len(some)), make([]error, len(some))
		var trying sync.WaitGroup
		for i, c := range some {
			trying.Go(func() { got[i], faults[i] = b.try(ctx, c) })
		}
		trying.Wait()
		for i, c := range some {
			if err := faults[i]; err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return errors.Join(out.Flush(), inCase(r.name, c, err))
			}
			line, err := json.Marshal(struct {
				ID      string `json:"id"`
				Verdict string `json:"verdict"`
			}{c.ID, got[i]})
			if err != nil {
				return err
			}
			if _, err := out.Write(append(cleanJSON(line), '\n')); err != nil {
				return fmt.Errorf("write to standard output: %w", err)
			}
			verdicts[got[i]]++
			if c.Must == "" {
				continue
			}
			compared++
			if c.Must == got[i] || c.Must == wantNotRun && got[i] != verdictRun {
				continue
			}
			if wrong++; wrong <= toldWrong {
				a.notice("%s: %s, must %s", c.ID, got[i], c.Must)
			}
		}
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
		if ended && !errors.Is(broken, io.EOF) {
			return broken
		}
	}
	a.notice("%s: %d run, %d park, %d refuse, %d ignore", count(int64(r.n), "case"),
		verdicts[verdictRun], verdicts[verdictPark], verdicts[verdictRefuse], verdicts[verdictIgnore])
	if wrong > 0 {
		return &exitError{code: ops.ExitFailed, err: fmt.Errorf("%d of %d cases are not what they must be", wrong, compared)}
	}
	return nil
}
