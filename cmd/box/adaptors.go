package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"inband/adaptors/webhook"
	"inband/exec/command"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/threads"
)

// readAdaptors reads the adaptor files of a folder, in the order of their names; a folder
// that does not exist has none. Its error is FileErrors when what is wrong is in them.
func readAdaptors(dir string) ([]webhook.Config, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the adaptors: %w", err)
	}
	var configs []webhook.Config
	var problems ops.FileErrors
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		c, err := readAdaptor(filepath.Join(dir, e.Name()))
		var found ops.FileErrors
		switch {
		case errors.As(err, &found):
			problems = append(problems, found...)
		case err != nil:
			return nil, err
		default:
			configs = append(configs, c)
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return configs, nil
}

func readAdaptor(path string) (webhook.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return webhook.Config{}, err
	}
	return webhook.Read(strings.TrimSuffix(filepath.Base(path), ".json"), path, data, os.DirFS(filepath.Dir(path)))
}

// sharedSecrets resolves the secrets of an adaptor.
func sharedSecrets(c webhook.Config, from command.Credentials) ([]webhook.Secret, error) {
	var secrets []webhook.Secret
	for _, ref := range c.Secrets {
		value, err := from.Value(ref)
		if err != nil {
			return nil, fmt.Errorf("the adaptor %s: %w", c.Name, err)
		}
		s, err := webhook.NewSecret(value)
		if err != nil {
			return nil, fmt.Errorf("the adaptor %s: credential %s: %w", c.Name, ref, err)
		}
		secrets = append(secrets, s)
	}
	return secrets, nil
}

// chats is the adaptors of a gateway. The set of them is that of its start; a reload
// takes other secrets and starts those that could not be started before.
type chats struct {
	dir         string
	credentials command.Credentials
	store       journal.Store
	into        *threads.Threads
	log         *slog.Logger
	list        []*chat // by name

	mu   sync.Mutex // held while adaptors are started and ended
	life context.Context
	stop context.CancelFunc
	work sync.WaitGroup
}

// chat is one adaptor.
type chat struct {
	*webhook.Adaptor

	mu      sync.Mutex
	running bool
	problem string
}

// openChats reads the adaptors of the state folder and attaches them to the threads,
// which are not started yet.
func openChats(folder stateFolder, credentials command.Credentials, store journal.Store, into *threads.Threads, log *slog.Logger) (*chats, error) {
	c := &chats{dir: folder.adaptors(), credentials: credentials, store: store, into: into, log: log}
	c.life, c.stop = context.WithCancel(context.Background())
	configs, err := readAdaptors(c.dir)
	if err != nil {
		return nil, err
	}
	for _, config := range configs {
		secrets, err := sharedSecrets(config, credentials)
		if err != nil {
			return nil, &exitError{code: ops.ExitUsage, err: err, hint: "put the secret, which the bridge has too, into " + folder.credentials() + ", mode 0600"}
		}
		adaptor, err := webhook.New(config, secrets, log)
		if err != nil {
			return nil, err
		}
		if err := into.Attach(adaptor.Chat()); err != nil {
			return nil, err
		}
		c.list = append(c.list, &chat{Adaptor: adaptor})
	}
	return c, nil
}

// start starts the adaptors that do not run and whose identities are there.
func (c *chats) start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.list {
		if running, _ := one.condition(); running || c.life.Err() != nil {
			continue
		}
		problem, err := c.unknown(ctx, one.Config())
		if err != nil {
			return err
		}
		one.note(problem == "", problem)
		if problem != "" {
			c.log.Error("an adaptor is not started", "adaptor", one.Name(), "why", problem)
			continue
		}
		c.work.Go(func() { _ = one.Run(c.life, c.into) }) // ends with life only
	}
	return nil
}

// close ends the adaptors and waits for them.
func (c *chats) close() {
	c.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work.Wait()
}

func (c *chat) condition() (running bool, problem string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running, c.problem
}

func (c *chat) note(running bool, problem string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.problem = running, problem
}

// unknown says which identities an adaptor lacks and which command makes them, "" if none.
func (c *chats) unknown(ctx context.Context, config webhook.Config) (problem string, err error) {
	err = c.store.View(ctx, func(tx journal.Tx) error {
		problem, err = unknownIdentities(tx, config)
		return err
	})
	return problem, err
}

func unknownIdentities(tx journal.Tx, config webhook.Config) (string, error) {
	reload := "; then: box ops reload"
	var agents []ops.IdentityID
	for _, user := range slices.Sorted(maps.Keys(config.Agents)) {
		id := config.Agents[user].Identity
		who, live, err := access.Live(tx, id)
		switch {
		case err != nil:
			return "", err
		case !live:
			return fmt.Sprintf("the agent %s does not exist: box agents add %s%s", id, id, reload), nil
		case who.Role != ops.Agent:
			return fmt.Sprintf("%s is no agent; move it to people, or name an agent", who), nil
		}
		agents = append(agents, id)
	}
	for _, user := range slices.Sorted(maps.Keys(config.People)) {
		id := config.People[user]
		who, live, err := access.Live(tx, id)
		switch {
		case err != nil:
			return "", err
		case !live:
			return fmt.Sprintf("the identity %s of a person does not exist: box agents add %s --role operator%s", id, id, reload), nil
		case who.Role == ops.Agent:
			return fmt.Sprintf("%s is an agent; move it from people to agents", who), nil
		}
	}
	bridge := ops.IdentityID(config.Name)
	add := fmt.Sprintf("box agents add %s --role bridge", bridge)
	for _, id := range agents {
		add += fmt.Sprintf(" --agent %s", id)
	}
	who, live, err := access.Live(tx, bridge)
	switch {
	case err != nil:
		return "", err
	case !live:
		return fmt.Sprintf("its identity does not exist: %s%s", add, reload), nil
	case who.Role != ops.Bridge:
		return fmt.Sprintf("%s is no bridge; give the file of the adaptor another name", who), nil
	}
	for _, id := range agents {
		enrolled, err := access.Enrolled(tx, bridge, id)
		if err != nil {
			return "", err
		}
		if !enrolled {
			return fmt.Sprintf("the bridge %s is not enrolled for the agent %s: box agents enrol %s --agent %s%s", bridge, id, bridge, id, reload), nil
		}
	}
	return "", nil
}

// secrets resolves the secrets of every adaptor as its file names them now, and returns
// what puts them in force. Everything else in the files is taken at the next start.
func (c *chats) secrets() (swap func(), err error) {
	configs, err := readAdaptors(c.dir)
	if err != nil {
		return nil, err
	}
	var swaps []func()
	for _, one := range c.list {
		i := slices.IndexFunc(configs, func(now webhook.Config) bool { return now.Name == one.Name() })
		if i < 0 {
			c.log.Warn("the file of an adaptor is gone; it runs until the gateway is started again", "adaptor", one.Name())
			continue
		}
		secrets, err := sharedSecrets(configs[i], c.credentials)
		if err != nil {
			return nil, err
		}
		swaps = append(swaps, func() { one.SetSecrets(secrets) })
	}
	if len(configs) > len(c.list) {
		c.log.Warn("there are more adaptors than at the start; they are started with the gateway's next start")
	}
	return func() {
		for _, swap := range swaps {
			swap()
		}
	}, nil
}

// Deliver implements httpapi.Hooks.
func (c *chats) Deliver(ctx context.Context, name string, h http.Header, body []byte) (threads.Heard, error) {
	for _, one := range c.list {
		if one.Name() == name {
			return one.Deliver(ctx, h, body)
		}
	}
	return threads.Heard{}, ops.Faultf(ops.NotFound, "there is no adaptor of this name that takes events")
}

// states says how the adaptors are.
func (c *chats) states() []service.AdaptorState {
	var list []service.AdaptorState
	for _, one := range c.list {
		s := one.State()
		_, s.Problem = one.condition()
		list = append(list, s)
	}
	return list
}

// missing is what keeps the gateway from being ready. Strangers read it.
func (c *chats) missing() []string {
	n := int64(0)
	for _, one := range c.list {
		if running, _ := one.condition(); !running {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{count(n, "adaptor") + " of a chat not started"}
}

func (a *app) adaptorsCommand() *cobra.Command {
	list := a.asking(func(ctx context.Context, c *client, _ []string) error {
		states, raw, err := c.adaptors(ctx)
		switch {
		case err != nil:
			return err
		case a.json:
			return a.document(raw)
		}
		t := newTable("ADAPTOR", "KIND", "STATE", "LAST IN", "LAST OUT", "FAILED", "ALERTS")
		for _, s := range states {
			if a.jsonl {
				if err := a.document(s); err != nil {
					return err
				}
				continue
			}
			t.row(s.Name, s.Kind, adaptorCondition(s), s.LastIn, s.LastOut, fmt.Sprint(s.Failed), fmt.Sprint(s.Alerts))
		}
		if a.jsonl {
			return nil
		}
		return a.print(t)
	})
	const long = `List the chats that the gateway is in, and how each is. An adaptor is a file
adaptors/NAME.json in the state folder; docs/adaptors.md describes it. It is read when
the gateway starts; box ops reload has its secrets read again.`
	cmd := &cobra.Command{
		Use:   "adaptors",
		Short: "List the chats that the gateway is in; check a configuration",
		Long:  long,
		Example: `  box adaptors
  box adaptors show chat
  box adaptors check adaptors/chat.json`,
		Args: a.subcommandOnly,
		RunE: list,
	}
	listCmd := &cobra.Command{
		Use: "list", Short: "List the chats that the gateway is in", Long: long, Example: "  box adaptors list --json", Args: exactly(), RunE: list,
	}
	cmd.AddCommand(a.speaks(listCmd), a.adaptorsShowCommand(), a.adaptorsCheckCommand())
	return a.speaks(cmd)
}

// adaptors asks for the adaptors of the gateway.
func (c *client) adaptors(ctx context.Context) ([]service.AdaptorState, json.RawMessage, error) {
	var answer struct {
		Adaptors []service.AdaptorState `json:"adaptors"`
	}
	raw, err := c.get(ctx, request{route: routeAdaptors}, &answer)
	return answer.Adaptors, raw, err
}

// adaptorCondition is how an adaptor is, in a word.
func adaptorCondition(s service.AdaptorState) string {
	switch {
	case !s.Running:
		return "not started"
	case s.RateLimited != "":
		return "rate limited"
	case s.LastError != "":
		return "failing: " + s.LastError
	case s.Behind:
		return "behind"
	}
	return "running"
}

func (a *app) adaptorsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show how an adaptor is",
		Long: `Show how an adaptor is: whether it runs, and if not, why and what to do; when it last
took and posted something; what has failed since the gateway was started.`,
		Example:           "  box adaptors show chat",
		Args:              exactly("the adaptor"),
		ValidArgsFunction: a.completeIDs(routeAdaptors, "adaptors", "name", "kind"),
		RunE: a.asking(func(ctx context.Context, c *client, args []string) error {
			states, _, err := c.adaptors(ctx)
			if err != nil {
				return err
			}
			for _, s := range states {
				if s.Name == args[0] {
					return a.document(s)
				}
			}
			return ops.Faultf(ops.NotFound, "there is no adaptor %q", args[0])
		}),
	}
	return a.speaks(cmd)
}

func (a *app) adaptorsCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE…]",
		Short: "Check the files of adaptors",
		Long: `Check the files of adaptors as the gateway does before it loads them, by default those
of the state folder. No gateway is needed, nothing is sent, and no secret is read;
whether identities exist is found out when the gateway starts.

What is wrong is printed to standard error as FILE:LINE: what, and what to do (exit
code 2). With --json it is one document on standard output.`,
		Example: `  box adaptors check
  box adaptors check chat.json`,
		RunE: func(_ *cobra.Command, args []string) error {
			good := 0
			var problems ops.FileErrors
			note := func(n int, err error) error {
				var found ops.FileErrors
				if err != nil && !errors.As(err, &found) {
					return err
				}
				good, problems = good+n, append(problems, found...)
				return nil
			}
			for _, path := range args {
				n := 1
				_, err := readAdaptor(path)
				if err != nil {
					n = 0
				}
				if err := note(n, err); err != nil {
					return err
				}
			}
			if len(args) == 0 {
				folder, err := a.folder()
				if err != nil {
					return err
				}
				configs, err := readAdaptors(folder.adaptors())
				if err := note(len(configs), err); err != nil {
					return err
				}
			}
			return a.printCheck("adaptor", "the files of adaptors", good, problems)
		},
	}
	return a.prints(cmd)
}
