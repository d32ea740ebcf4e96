package httpapi

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/time/rate"

	"inband/ops"
)

// Requests are served in lanes, each with places of its own, so that no kind of them can
// keep another out: a worker's heartbeat must come through while agents wait for their
// calls, and what strangers send must not fill the places of those who have a token.
const (
	laneKey     = "lane"     // in the Metadata of an operation: which lane
	envelopeKey = "envelope" // and whether its body is a signed envelope

	eventsLane    = "events"    // of chats, which are signed
	strangersLane = "strangers" // of workers before they have a token
	workersLane   = "workers"   // of workers and verifiers
	pollsLane     = "polls"     // theirs that wait for work
	filesLane     = "files"     // theirs that bring or fetch bytes, which takes a while
)

// lane is the places of one kind of requests.
type lane struct {
	places chan struct{}
	full   string // what they are, when all are taken
}

func newLane(n int, full string) *lane { return &lane{make(chan struct{}, n), full} }

// enter takes a place, which leave gives back, or says that there is none.
func (l *lane) enter() (leave func(), f *ops.Fault) {
	select {
	case l.places <- struct{}{}:
		return func() { <-l.places }, nil
	default:
		return nil, ops.Faultf(ops.Busy, "%d %s; try again later", cap(l.places), l.full)
	}
}

// laneOf is the name of op's lane, "" for those of all other routes.
func laneOf(op *huma.Operation) string {
	name, _ := op.Metadata[laneKey].(string)
	return name
}

// isEnvelope reports whether op's body is a signed envelope, whose sender must know
// whether to send it again.
func isEnvelope(op *huma.Operation) bool {
	is, _ := op.Metadata[envelopeKey].(bool)
	return is
}

// forWorkers reports whether op is for workers and verifiers only.
func forWorkers(op *huma.Operation) bool {
	name := laneOf(op)
	return name == workersLane || name == pollsLane || name == filesLane
}

// RefusedWorkers is how many requests of workers had no valid token since the start.
func (s *Server) RefusedWorkers() int64 { return s.refused.Load() }

// strangers bounds how often one address may ask without a token. Who comes from as many
// addresses as it remembers shares one rate with the others that it does not.
type strangers struct {
	every rate.Limit
	burst int

	mu    sync.Mutex
	known map[netip.Prefix]*rate.Limiter
	rest  *rate.Limiter
	swept time.Time
}

// maxStrangers is how many addresses are remembered at one time.
const maxStrangers = 4096

func newStrangers(perSecond int) *strangers {
	l, burst := rate.Limit(perSecond), 4*perSecond
	return &strangers{every: l, burst: burst, known: make(map[netip.Prefix]*rate.Limiter), rest: rate.NewLimiter(l, burst)}
}

// admit counts one request from addr, HOST:PORT, or says when to come again.
func (s *strangers) admit(addr string, now time.Time) *ops.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.of(network(addr), now)
	if l.AllowN(now, 1) {
		return nil
	}
	return ops.Faultf(ops.RateLimited, "too many requests without a token from this address; try again later").With("retry_after", int64(1)) // a second brings one at least
}

// of returns the rate of a network. It is called with mu held.
func (s *strangers) of(n netip.Prefix, now time.Time) *rate.Limiter {
	if l, ok := s.known[n]; ok {
		return l
	}
	if len(s.known) >= maxStrangers && now.Sub(s.swept) >= time.Second {
		s.swept = now
		for n, l := range s.known {
			if l.TokensAt(now) >= float64(s.burst) { // as if it had never come
				delete(s.known, n)
			}
		}
	}
	if len(s.known) >= maxStrangers {
		return s.rest
	}
	l := rate.NewLimiter(s.every, s.burst)
	s.known[n] = l
	return l
}

// network is what one customer of a provider has: an IPv4 address, or the 64 bits of an
// IPv6 one (RFC 6177).
func network(addr string) netip.Prefix {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	n, err := ip.Prefix(bits)
	if err != nil {
		panic(fmt.Sprintf("a prefix of %d bits of %s: %v", bits, ip, err)) // the bits fit both kinds
	}
	return n
}
