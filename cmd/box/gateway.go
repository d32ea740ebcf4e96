package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"inband/adaptors/httpapi"
	"inband/exec/command"
	"inband/exec/proc"
	"inband/harvester"
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

// gatewayConfig is what a gateway is made of. All but Hosts, Rate, Artifacts,
// Approvals and Listening is required.
type gatewayConfig struct {
	Folder  stateFolder
	Listen  string   // HOST:PORT, port 0 for a free one
	Hosts   []string // further names of this gateway, for its certificate and the curl form
	Rate    ops.Rate // of one identity's calls; the zero value is service.DefaultRate
	Grace   time.Duration
	Ops     command.Config // what command ops may have
	Version string
	Log     *slog.Logger
	// Listening is called once the gateway answers.
	Listening func(address)
	// Artifacts bounds the bytes of all published files; 0 is artifacts.DefaultQuota.
	Artifacts int64
	// Approvals is how long a call waits for one; 0 is the door's own time.
	Approvals time.Duration
	// Lease and Heartbeat are those of workers; 0 is the plane's own.
	Lease, Heartbeat time.Duration
	// Enclose puts the process into a cgroup of its own, which only a process that is a
	// gateway and nothing else should do.
	Enclose bool
}

// gateway is the running service: the store, the door, the threads and the API, made
// in this order and ended in the other. Make one with openGateway and put it to work
// with Run, which also ends it.
type gateway struct {
	cfg     gatewayConfig
	log     *slog.Logger
	started time.Time

	store     *sqlite.Store
	enclosure *proc.Enclosure // nil if the process is not enclosed
	files     *artifacts.Store
	notary    *notary.Notary
	native    []ops.Bound
	registry  *ops.Live
	ops       atomic.Pointer[opSet] // what the registry in force was loaded with
	layers    []service.Layer       // of the sandbox, as they are here
	policy    *access.LivePolicy
	door      *service.Door
	threads   *threads.Threads
	timers    *timers.Timers
	published *service.Artifacts
	plane     *plane.Plane
	chats     *chats
	api       *httpapi.Server
	cert      tls.Certificate
	listener  net.Listener
	at        address

	stopping  atomic.Bool
	reloading sync.Mutex
	backing   sync.Mutex // held while a backup is made

	reloadsFailed  atomic.Int64
	reloadFailedAt atomic.Pointer[time.Time]
}

// openGateway opens the store, which only one gateway can, makes what the state folder
// lacks, and listens; but nobody is answered before Run. After an error nothing stays
// open. ctx bounds the opening only.
func openGateway(ctx context.Context, cfg gatewayConfig) (*gateway, error) {
	cfg.Ops.Credentials.Folder = cfg.Folder.credentials()
	g := &gateway{cfg: cfg, log: cfg.Log, started: time.Now()}
	if err := g.open(ctx); err != nil {
		return nil, errors.Join(err, g.release())
	}
	return g, nil
}

func (g *gateway) open(ctx context.Context) (err error) {
	if g.store, err = openState(ctx, g.cfg.Folder, g.log); err != nil {
		return err
	}
	own, err := g.cfg.Folder.real()
	if err != nil {
		return err
	}
	g.cfg.Ops.Closed = []string{own}
	if err = g.cfg.Folder.sweep(); err != nil {
		return err
	}
	if err = g.enclose(); err != nil {
		return err
	}
	// Beside the rest: trying what the kernel has takes a process of its own.
	var layers sync.WaitGroup
	layers.Go(func() { g.layers = machineLayers() })
	defer layers.Wait()
	if g.notary, err = notary.Open(ctx, notary.Config{Store: g.store, Folder: g.cfg.Folder.audit(), Log: g.log}); err != nil {
		return err
	}
	if g.files, err = artifacts.Open(artifacts.Config{Folder: g.cfg.Folder.artifacts(), Quota: g.cfg.Artifacts}); err != nil {
		return err
	}
	g.cfg.Ops.Keeper = keeper{g.files}
	directory := access.NewDirectory(g.store)
	made, err := prepareState(ctx, g.cfg.Folder, directory, "operator")
	if err != nil {
		return err
	}
	for _, m := range made {
		g.log.Info("made", "what", m.what, "path", m.path)
	}
	if _, err := os.Stat(g.cfg.Folder.token()); errors.Is(err, fs.ErrNotExist) {
		g.log.Warn("the operator's token is not in the state folder; box init --operator NAME makes another operator while no gateway runs", "path", g.cfg.Folder.token())
	}
	if g.cert, _, err = httpapi.LoadOrMakeCA(g.cfg.Folder.tls(), g.cfg.Hosts); err != nil {
		return err
	}

	empty, err := ops.New()
	if err != nil {
		return err
	}
	policy, err := loadPolicy(g.cfg.Folder.policy())
	if err != nil {
		return err
	}
	g.policy = access.NewLivePolicy(policy)
	g.registry = ops.NewLive(empty) // until the reads exist, which name the actions of box.exec
	if g.door, err = service.New(service.Config{Store: g.store, Registry: g.registry, Policy: g.policy, Log: g.log, RatePerIdentity: g.cfg.Rate,
		Approvals: service.ApprovalLimits{TTL: g.cfg.Approvals}}); err != nil {
		return err
	}
	if g.threads, err = threads.New(threads.Config{
		Store: g.store, Door: g.door, Registry: g.registry, Log: g.log, ExecHosts: append(harvester.DefaultExecHosts(), g.cfg.Hosts...),
	}); err != nil {
		return err
	}
	if g.chats, err = openChats(g.cfg.Folder, g.cfg.Ops.Credentials, g.store, g.threads, g.log); err != nil {
		return err
	}
	if g.timers, err = timers.New(timers.Config{Store: g.store, Wakes: g.threads, Registry: g.registry, Policy: g.policy, Log: g.log}); err != nil {
		return err
	}
	g.published = service.NewArtifacts(g.door, g.files)
	if err := g.openPlane(directory); err != nil {
		return err
	}
	reads := service.NewReads(g.door, directory, service.About{
		Version: g.cfg.Version, StartedAt: g.started, Config: g.shownConfig(), Adaptors: []string{threads.Adaptor}, Chats: g.chats.states, Missing: g.missing, Condition: g.condition,
	})
	if err := reads.Add(slices.Concat(g.threads.Reads(), g.timers.Reads(), g.published.Reads(), g.plane.Reads())...); err != nil {
		return err
	}
	if err := reads.Add(g.auditRead()); err != nil {
		return err
	}
	g.native = slices.Concat(g.timers.Ops(), g.plane.Ops(), []ops.Bound{service.ToolsList(g.door), service.BoxExec(reads), g.threads.DMSend()})
	set, err := g.load()
	layers.Wait()
	g.logLayers()
	if err != nil {
		return err
	}
	g.put(set)
	warnOfOps(policy, set.registry, g.log)

	if g.api, err = httpapi.New(httpapi.Config{
		Door: g.door, Reads: reads, Replies: g.threads, Hooks: g.chats, Identities: directory, Events: g.store,
		Notary: g.notary, Audited: g.store, Artifacts: g.published, Timers: g.timers, Plane: g.plane, Outbox: g.threads, Agents: g.threads, Backups: g, Metrics: newMetrics(g).handler,
		Reload: func(ctx context.Context) (any, error) { return g.Reload(ctx) },
		Ready:  g.missing, Sandbox: g.layers, Version: g.cfg.Version, Hosts: g.cfg.Hosts, Log: g.log,
	}); err != nil {
		return err
	}
	if g.listener, err = net.Listen("tcp", g.cfg.Listen); err != nil {
		code := ops.ExitUsage
		if errors.Is(err, syscall.EADDRINUSE) {
			code = ops.ExitConflict
		}
		return &exitError{code: code, err: err, hint: "choose another address with --listen HOST:PORT, port 0 for a free one"}
	}
	g.at = address{URL: publicURL(g.listener.Addr()), PID: os.Getpid(), Boot: string(g.store.Boot())}
	return nil
}

// openPlane makes the plane, which is off until an operator switches it on.
func (g *gateway) openPlane(directory *access.Directory) error {
	key, made, err := planeKey(g.cfg.Folder)
	if err != nil {
		return err
	}
	if made {
		g.log.Info("made", "what", "key of the plane", "path", g.cfg.Folder.planeKey())
	}
	if g.plane, err = plane.New(plane.Config{
		Store: g.store, Door: g.door, Directory: directory, Policy: g.policy, Artifacts: g.files, Notices: notices{g.threads}, Key: key, Log: g.log,
		TTL: g.cfg.Lease, Heartbeat: g.cfg.Heartbeat,
	}); err != nil {
		return err
	}
	g.door.OnCancel(g.plane.CancelCall)
	g.published.Refers(plane.Referenced)
	return nil
}

// publicURL is where this machine reaches what listens at a.
func publicURL(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return "https://" + a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, port)
}

// Run recovers what an earlier gateway left open, serves until ctx ends or serving
// fails, and ends tidily: nothing new begins, what runs has the grace to finish and is
// stopped then, each outcome is written. It takes as long as twice the grace.
func (g *gateway) Run(ctx context.Context) error {
	err := g.serve(ctx)
	return errors.Join(err, g.close())
}

func (g *gateway) serve(ctx context.Context) error {
	if err := g.record(ctx, "boot.started", map[string]any{"boot": g.store.Boot(), "version": g.cfg.Version, "pid": os.Getpid()}); err != nil {
		return err
	}
	if err := g.door.Start(ctx); err != nil {
		return err
	}
	if err := g.threads.Start(ctx); err != nil {
		return err
	}
	if err := g.timers.Start(ctx); err != nil {
		return err
	}
	if err := g.plane.Start(ctx); err != nil {
		return err
	}
	g.published.Start()
	if err := g.chats.start(ctx); err != nil {
		return err
	}
	served := make(chan error, 1)
	// Its ctx is not ours: the API goes on answering while the door closes.
	go func() { served <- g.api.Serve(context.WithoutCancel(ctx), g.listener, g.cert) }()
	if err := g.cfg.Folder.writeAddress(g.at); err != nil {
		return errors.Join(err, g.endAPI(served))
	}
	if tcp, ok := g.listener.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		g.log.Warn("other machines can reach this gateway", "listen", tcp.String())
	}
	g.log.Info("listening", "url", g.at.URL, "state", string(g.cfg.Folder), "ops", len(g.registry.Current().All()))
	if g.cfg.Listening != nil {
		g.cfg.Listening(g.at)
	}
	select {
	case <-ctx.Done():
	case err := <-served:
		served <- err
		g.log.Error("serving ended", "err", err)
	}
	g.stopping.Store(true)
	g.log.Info("stopping", "grace", g.cfg.Grace)
	err := g.cfg.Folder.removeAddress(g.at)
	grace, cancel := context.WithTimeout(context.Background(), g.cfg.Grace)
	defer cancel()
	if late := g.door.Close(grace); late != nil {
		g.log.Warn("calls were stopped at the end of the grace")
	}
	g.plane.Close() // workers that wait for work are answered, or the API would wait for them
	return errors.Join(err, g.endAPI(served))
}

// endAPI ends the API after the answers under way, and waits for it.
func (g *gateway) endAPI(served <-chan error) error {
	grace, cancel := context.WithTimeout(context.Background(), g.cfg.Grace)
	defer cancel()
	if err := g.api.Shutdown(grace); err != nil {
		g.log.Warn("connections were cut at the end of the grace", "err", err)
	}
	return <-served
}

// close ends what Run has started; each part may be closed twice.
func (g *gateway) close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel() // serve has given the grace
	_ = g.door.Close(ended)
	g.timers.Close()
	g.plane.Close()
	g.published.Close()
	g.chats.close()
	g.threads.Close()
	proc.Discard()
	err := g.release()
	if err == nil {
		g.log.Info("stopped")
	}
	return err
}

// release gives back what open has taken.
func (g *gateway) release() error {
	var errs []error
	if g.listener != nil {
		if err := g.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if g.notary != nil {
		grace, cancel := context.WithTimeout(context.Background(), g.cfg.Grace)
		g.notary.Close(grace)
		cancel()
	}
	g.disclose()
	if g.store != nil {
		errs = append(errs, g.store.Close())
	}
	if g.files != nil {
		errs = append(errs, g.files.Close())
	}
	return errors.Join(errs...)
}

// shownConfig is what the read config shows.
func (g *gateway) shownConfig() any {
	return map[string]any{
		"artifacts_max": g.files.Usage().Quota,
		"state":         string(g.cfg.Folder), "listen": g.cfg.Listen, "hosts": append([]string{}, g.cfg.Hosts...),
		"exec_hosts": append(harvester.DefaultExecHosts(), g.cfg.Hosts...), "grace": g.cfg.Grace.String(), "pid": os.Getpid(),
		"credential_env": slices.Sorted(maps.Keys(g.cfg.Ops.Credentials.Env)), "allow_root_ops": g.cfg.Ops.AllowRoot,
		"allow_unconfined": append([]ops.OpName{}, g.cfg.Ops.AllowUnconfined...),
	}
}

// load reads the op files and puts the native ops beside them.
func (g *gateway) load() (*opSet, error) {
	bound, err := loadOpFiles(g.cfg.Folder.ops(), g.cfg.Ops, g.log)
	if err != nil {
		return nil, err
	}
	registry, err := ops.New(append(slices.Clone(g.native), bound...)...)
	return &opSet{registry, command.Disabled(bound)}, err
}

// put puts set in force.
func (g *gateway) put(set *opSet) {
	g.registry.Swap(set.registry)
	g.ops.Store(set)
}

// reloaded is the answer of a reload.
type reloaded struct {
	Ops    int    `json:"ops"`
	Digest string `json:"digest"` // over the definitions in force
	Policy string `json:"policy"` // digest of the policy in force
}

// Reload reads the op files and the policy again. Either all of them are good and
// replace what is in force, or nothing changes and the fault lists the problems.
func (g *gateway) Reload(ctx context.Context) (reloaded, error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	set, wrongOps := g.load()
	policy, wrongPolicy := loadPolicy(g.cfg.Folder.policy())
	swapSecrets, wrongSecrets := g.chats.secrets()
	if err := errors.Join(wrongOps, wrongPolicy, wrongSecrets); err != nil {
		now := time.Now()
		g.reloadsFailed.Add(1)
		g.reloadFailedAt.Store(&now)
		problems := problemLines(err)
		g.log.Error("reload refused; the ops and the policy in force stay as they were", "problems", problems)
		return reloaded{}, ops.Faultf(ops.Conflict, "the files do not load; the ops and the policy in force stay as they were").With("problems", problems)
	}
	now := reloaded{Ops: len(set.registry.All()), Digest: digest(set.registry), Policy: policy.Digest()}
	if err := g.record(ctx, "ops.reloaded", now); err != nil {
		return reloaded{}, err
	}
	g.put(set)
	g.policy.Swap(policy)
	swapSecrets()
	if err := g.chats.start(ctx); err != nil {
		return reloaded{}, err
	}
	warnOfOps(policy, set.registry, g.log)
	g.log.Info("ops reloaded", "ops", now.Ops, "digest", now.Digest, "policy", now.Policy)
	return now, nil
}

// digest covers every definition of r.
func digest(r *ops.Registry) string {
	h := sha256.New()
	for _, e := range r.All() {
		fmt.Fprintf(h, "%s %s\n", e.Name, e.Digest)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// record writes an event of the gateway itself.
func (g *gateway) record(ctx context.Context, kind string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("event %s: %w", kind, err)
	}
	return g.store.Update(ctx, func(tx journal.Tx) error { return tx.Append("gateway", journal.Any, kind, b) })
}
