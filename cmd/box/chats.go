package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"

	"inband/adaptors/webhook"
	"inband/exec/command"
	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/journal"
	"inband/service/threads"
)

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
