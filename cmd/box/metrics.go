package main

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"inband/service/journal"
	"inband/service/journal/sqlite"
	"inband/service/plane"
	"inband/service/threads"
	"inband/service/timers"
)

// metricsFor is how long what was read for one scrape serves the next ones, so that who
// asks often costs the store nothing.
const metricsFor = 2 * time.Second

// metrics answers scrapes. What it shows is what the parts of the gateway count since it
// started, and what a few indexed queries say of the store.
type metrics struct {
	g       *gateway
	process *prometheus.Registry // of the Go runtime and the process

	mu   sync.Mutex
	page http.Handler
	read time.Time
}

func newMetrics(g *gateway) *metrics {
	m := &metrics{g: g, process: prometheus.NewRegistry()}
	m.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler returns the page of a scrape.
func (m *metrics) handler(ctx context.Context) (http.Handler, error) {
	m.mu.Lock() // also while the store is read: one reads, and the others have what it found
	defer m.mu.Unlock()
	if m.page != nil && time.Since(m.read) < metricsFor {
		return m.page, nil
	}
	s, err := m.g.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	r := prometheus.NewRegistry()
	if err := r.Register(s); err != nil {
		return nil, err
	}
	m.page = promhttp.HandlerFor(prometheus.Gatherers{m.process, r}, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	m.read = time.Now()
	return m.page, nil
}

// counter is how what is counted inside is called outside.
type counter struct {
	name, help string
	label      string // "" where there is one kind
}

// counters are the counters, by the words under which they are counted.
var counters = map[string]counter{
	"broken directives":         {"directives_broken_total", "Directives that are no valid JSON, which are ignored.", ""},
	"directives over the limit": {"directives_over_limit_total", "Directives beyond what one reply may hold, which were not run.", ""},
	"messages ignored":          {"messages_ignored_total", "Messages of chats that were not read as replies.", "reason"},
	"duplicates":                {"messages_duplicate_total", "Messages that had been taken before, of which nothing ran again.", ""},
	"edits":                     {"messages_edited_total", "Messages that had been taken before with another text.", ""},
	"repeated orders":           {"orders_repeated_total", "Orders that stood under the same key before and were answered with the stored outcome.", ""},
	"wakes":                     {"wakes_raised_total", "Wakes, by what raised them.", "cause"},
	"verdicts":                  {"wake_verdicts_total", "Verdicts on wakes; unanswered is what the gateway gives at a deadline.", "verdict"},
	"loops refused":             {"loops_refused_total", "Wakes that were refused because agents wake each other without a person, by the cap that did.", "cap"},
	"deliveries":                {"deliveries_total", "What came of attempts to post into chats.", "result"},
	"refused":                   {"calls_refused_total", "Calls that were refused, by the rule that did.", "rule"},
	"parked":                    {"calls_parked_total", "Calls that had to wait for an approval, by the rule that had them wait.", "rule"},
	"replayed":                  {"calls_replayed_total", "Calls that were answered with the outcome of an earlier one.", ""},
	"occurrences":               {"timer_occurrences_total", "Occurrences of timers, by what became of them.", "result"},

	// Of the execution plane.
	"grants":            {"plane_grants_total", "Leases that were given, by the implementation of the work.", "implementation"},
	"polls":             {"plane_polls_total", "Polls of workers and verifiers that were answered, by with what.", "result"},
	"callbacks":         {"plane_callbacks_total", "Messages of workers and verifiers that were accepted, by their kind.", "kind"},
	"callbacks_refused": {"plane_callbacks_refused_total", "Messages of workers and verifiers that were refused, by the code of the fault.", "code"},
	"auth_rejected":     {"plane_auth_rejected_total", "Requests of workers and verifiers that did not prove who they are: a token, a signature or an envelope that is not right.", ""},
	"clock_jumps":       {"plane_clock_jumps_total", "Times that the clock of the gateway was set while it ran, each of which holds the end of leases.", ""},
	"swept":             {"plane_swept_total", "What became of runs because their time had come, by the event.", "event"},
}

// wakesByHops is the word under which wakes are counted by the agents between them and
// a person.
const wakesByHops = "hops"

// snapshot is what the gateway's metrics are at one moment. It is a prometheus.Collector
// that always collects the same.
type snapshot []prometheus.Metric

// Describe sends nothing: what there is depends on what has happened.
func (s snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics.
func (s snapshot) Collect(to chan<- prometheus.Metric) {
	for _, m := range s {
		to <- m
	}
}

func (s *snapshot) add(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	*s = append(*s, prometheus.MustNewConstMetric(prometheus.NewDesc("inband_"+name, help, names, nil), kind, value, values...))
}

func (s *snapshot) gauge(name, help string, value float64, labels ...string) {
	s.add(prometheus.GaugeValue, name, help, value, labels...)
}

// snapshot reads what the metrics are now.
func (g *gateway) snapshot(ctx context.Context) (s snapshot, err error) {
	s.gauge("build_info", "1, with the version of the program.", 1, "version", g.cfg.Version)
	s.gauge("start_time_seconds", "When the gateway started, in seconds since 1970.", float64(g.started.UnixMilli())/1000)
	ready := 1.0
	if len(g.missing()) > 0 {
		ready = 0
	}
	s.gauge("ready", "1 while the gateway is ready, else 0.", ready)
	s.add(prometheus.CounterValue, "config_reload_failed_total", "Reloads of the op files and the policy that were refused.", float64(g.reloadsFailed.Load()))

	counts := slices.Concat(g.threads.Counts(), g.timers.Counts())
	for _, c := range g.door.Counts() {
		counts = append(counts, threads.Count(c))
	}
	for _, c := range g.plane.Counts() {
		counts = append(counts, threads.Count(c))
	}
	counts = append(counts, threads.Count{What: "auth_rejected", N: g.api.RefusedWorkers()}) // which the plane never saw
	s.counts(counts)
	s.lateness(g.timers.Lateness())
	if err := g.store.View(ctx, s.open); err != nil {
		return nil, err
	}
	work, err := g.plane.Gauges(ctx)
	if err != nil {
		return nil, err
	}
	s.plane(work)
	head, err := g.store.Head(ctx)
	s.add(prometheus.CounterValue, "journal_events_total", "Events in the journal.", float64(head))
	s.store(g.store.Load())
	return s, err
}

// store adds what weighs on the store.
func (s *snapshot) store(l sqlite.Load) {
	s.gauge("journal_log_bytes", "Size of the log beside the journal's file, which is cut back when it is large.", float64(l.Log))
	s.gauge("journal_oldest_read_seconds", "How long the longest read of the journal under way, a backup too, has lasted, 0 if there is none.", l.OldestRead.Seconds())
	s.add(prometheus.CounterValue, "journal_views_ended_total", "Reads of the journal that were ended because they took too long.", float64(l.TooLong))
}

// counts adds the counters, those without labels also when nothing was counted.
func (s *snapshot) counts(counts []threads.Count) {
	sums := make(map[string]float64)
	var hops []threads.Count
	for _, c := range counts {
		k, known := counters[c.What]
		switch {
		case c.What == wakesByHops:
			hops = append(hops, c)
		case !known: // a test has it that there is none
		case k.label == "":
			sums[c.What] += float64(c.N)
		default:
			s.add(prometheus.CounterValue, k.name, k.help, float64(c.N), k.label, c.Label)
		}
	}
	for what, k := range counters {
		if k.label == "" {
			s.add(prometheus.CounterValue, k.name, k.help, sums[what])
		}
	}
	s.hops(hops)
}

// hops adds how many agents stood between wakes and a person.
func (s *snapshot) hops(counts []threads.Count) {
	buckets := make(map[float64]uint64)
	var n uint64
	var sum float64
	for h := range threads.MaxHops + 1 {
		for _, c := range counts {
			if c.Label == strconv.Itoa(h) {
				n += uint64(c.N)
				sum += float64(h) * float64(c.N)
			}
		}
		buckets[float64(h)] = n
	}
	*s = append(*s, prometheus.MustNewConstHistogram(
		prometheus.NewDesc("inband_wake_hops", "Agents between a person and the wakes that were raised.", nil, nil), n, sum, buckets))
}

// plane adds how the execution plane stands.
func (s *snapshot) plane(g plane.Gauges) {
	for _, state := range []string{"off", "on", "drain"} {
		is := 0.0
		if g.State == state {
			is = 1
		}
		s.gauge("plane_state", "1 for the state that dispatch is in, else 0.", is, "state", state)
	}
	s.gauge("plane_leases", "Runs that a worker has a lease on.", float64(g.LiveLeases))
	s.gauge("plane_oldest_running_seconds", "How long the oldest run that a worker has begun has run, 0 if there is none.", g.OldestRunning.Seconds())
	s.gauge("plane_dispatches_waiting", "Runs that wait for a worker.", float64(g.Waiting))
	s.gauge("plane_dispatches_unable", "Of those, the ones that no worker who is enrolled could take.", float64(g.NoAbleWorker))
	s.gauge("plane_runs_unknown", "Runs of which nobody knows whether they run.", float64(g.Unknown))
	s.gauge("plane_runs_waiting_human", "Runs that wait for a person.", float64(g.WaitingHuman))
	s.gauge("plane_verifications_waiting", "Verifications that wait for a verifier.", float64(g.Verifications))
	s.gauge("plane_clock_skew_seconds", "The largest difference of a worker's clock to the gateway's, as last seen; it decides nothing.", g.Skew.Seconds())
}

// lateness adds how much later than they were due timers have woken.
func (s *snapshot) lateness(h timers.Histogram) {
	buckets := make(map[float64]uint64)
	for i, bound := range h.Bounds {
		buckets[bound] = uint64(h.Counts[i])
	}
	*s = append(*s, prometheus.MustNewConstHistogram(
		prometheus.NewDesc("inband_timer_lateness_seconds", "How much later than they were due timers have fired.", nil, nil), uint64(h.Count), h.Sum, buckets))
}

// open adds what the store holds that is not done with. Each query goes by an index
// over just that.
func (s *snapshot) open(tx journal.Tx) error {
	one := func(name, help, query string) error {
		var n int64
		if err := tx.Query(query, func(scan func(...any) error) error { return scan(&n) }); err != nil {
			return err
		}
		s.gauge(name, help, float64(n))
		return nil
	}
	each := func(name, help, label, query string, always ...string) error {
		n := make(map[string]int64)
		for _, a := range always {
			n[a] = 0
		}
		if err := tx.Query(query, func(scan func(...any) error) error {
			var kind string
			var k int64
			err := scan(&kind, &k)
			n[kind] = k
			return err
		}); err != nil {
			return err
		}
		for kind, k := range n {
			s.gauge(name, help, float64(k), label, kind)
		}
		return nil
	}
	var oldest int64
	if err := tx.Query(`SELECT coalesce(min(queued_at), 0) FROM outbox WHERE state IN ('queued', 'sending')`,
		func(scan func(...any) error) error { return scan(&oldest) }); err != nil {
		return err
	}
	age := 0.0
	if oldest > 0 {
		age = max(0, tx.Now().Sub(time.UnixMilli(oldest)).Seconds())
	}
	s.gauge("outbox_oldest_seconds", "How long the oldest post has waited to be delivered, 0 if none does.", age)
	for _, err := range []error{
		each("calls_open", "Calls that are not settled.", "state", `SELECT state, count(*) FROM call WHERE outcome IS NULL GROUP BY state`,
			"received", "parked", "running", "accepted"),
		each("outbox_posts", "Posts that are not delivered.", "state", `SELECT state, count(*) FROM outbox WHERE state <> 'delivered' GROUP BY state`,
			"queued", "sending", "set_aside"),
		one("wakes_open", "Wakes without a verdict whose deadline has not passed.", `SELECT count(*) FROM wake WHERE state = 'open'`),
		one("wakes_held", "Wakes whose envelope is kept back because their thread is stopped.", `SELECT count(*) FROM wake WHERE state = 'held'`),
		one("holds", "Threads that are stopped, and one for all agents if they are.", `SELECT count(*) FROM hold`),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}
