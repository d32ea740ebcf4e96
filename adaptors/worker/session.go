package worker

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gowebpki/jcs"
	"github.com/oklog/ulid/v2"

	"inband/ops"
	"inband/service/plane/wire"
)

// RefusedError says that the plane will not have this worker as it is: what to do stands
// in it. Trying again does not help.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

func refused(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// enrol presents the key of s with a one-time token, unless it is enrolled. It tries
// until the gateway has answered. The error is a *RefusedError, that of ctx, or one of
// the folder.
func enrol(ctx context.Context, c *Client, s *State, token string, log *slog.Logger) (wire.Enrolled, error) {
	e, ok, err := s.enrolment()
	if err != nil || ok {
		return e, err
	}
	if token == "" {
		return e, refused("this worker is not enrolled; make an invitation with box workers invite, and give its token with --token or --token-file")
	}
	envelope, _, err := wire.Seal(s.key, wire.KindEnrol, wire.Enrol{Token: token, PublicKey: s.Public()})
	if err != nil {
		return e, err
	}
	for wait := retry(); ; {
		e, err = c.Enrol(ctx, envelope)
		if err == nil {
			if e.Worker.ID == "" || len(e.PlaneKey) != ed25519.PublicKeySize {
				return e, refused("what answers there is not a gateway of this protocol: its answer names no worker or no key")
			}
			return e, s.keepEnrolment(e)
		}
		var strange *strangeAnswer
		if errors.As(err, &strange) && strange.status >= 400 && strange.status < 500 {
			return e, refused("enrolment: %v; is this the URL of a gateway?", err)
		}
		if !Again(err) {
			return e, refused("enrolment: %v; a token is good once and for a time, so make another invitation with box workers invite", err)
		}
		log.Warn("enrolment goes on", "err", err)
		if err := wait.wait(ctx, err); err != nil {
			return e, err
		}
	}
}

// session is one boot of an enrolled worker or verifier.
type session struct {
	client *Client
	key    ed25519.PrivateKey
	plane  ed25519.PublicKey
	id     ops.IdentityID
	role   ops.Role
	boot   string
	ttl    time.Duration
	beat   time.Duration // between heartbeats
	now    func() time.Time
}

// begin tells the plane that this worker's process is a new one, and what it found of
// earlier ones. It tries until the gateway has answered. The error is a *RefusedError or
// that of ctx.
func begin(ctx context.Context, c *Client, s *State, e wire.Enrolled, version string, runs []wire.BootRun, log *slog.Logger) (*session, error) {
	for wait := retry(); ; {
		session, err := beginOnce(ctx, c, s, e, version, runs)
		if err == nil {
			return session, nil
		}
		var not *RefusedError
		if errors.As(err, &not) {
			return nil, err
		}
		if !Again(err) && !stale(err) {
			return nil, refused("the plane does not take this worker: %v", err)
		}
		log.Warn("the boot goes on", "err", err)
		if err := wait.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

// stale reports whether a boot was refused because its challenge was too old when it came.
func stale(err error) bool {
	var f *ops.Fault
	if !errors.As(err, &f) {
		return false
	}
	old, _ := f.Details["challenge"].(bool)
	return old
}

func beginOnce(ctx context.Context, c *Client, s *State, e wire.Enrolled, version string, runs []wire.BootRun) (*session, error) {
	challenge, err := c.Challenge(ctx, e.Worker.ID)
	if err != nil {
		return nil, err
	}
	// Another boot each time: of one whose answer was lost nobody knows the token.
	boot := ulid.Make().String()
	if runs == nil {
		runs = []wire.BootRun{}
	}
	envelope, _, err := wire.Seal(s.key, wire.KindBoot, wire.Boot{Worker: e.Worker.ID, Boot: boot, Challenge: challenge, Version: version, Runs: runs})
	if err != nil {
		return nil, err
	}
	answer, err := c.Begin(ctx, envelope)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(answer.PlaneKey, e.PlaneKey) {
		return nil, refused("the plane of this gateway has another key than the one that this worker was enrolled with, so it is another gateway; enrol with a folder of its own")
	}
	session := &session{
		client: c, key: s.key, plane: e.PlaneKey, id: e.Worker.ID, role: e.Worker.Role, boot: boot,
		ttl: time.Duration(answer.TTLMS) * time.Millisecond, beat: time.Duration(answer.HeartbeatMS) * time.Millisecond, now: time.Now,
	}
	if answer.Token == "" || session.beat <= 0 || session.ttl < 3*session.beat {
		return nil, refused("the gateway's leases of %s with heartbeats each %s cannot be kept: want three heartbeats in a lease", session.ttl, session.beat)
	}
	c.SetToken(answer.Token)
	return session, nil
}

// granted is a lease that has been looked at.
type granted struct {
	wire.Grant
	sent time.Time // when the poll was sent that got it
}

// errGrant says that a grant is not one for this worker now.
var errGrant = errors.New("not a grant for this worker")

// open reads the envelope of a grant: signed by the plane, for this worker, this boot and
// this poll, with the instruction that its digest names, and of a lease that is still
// live when counted from when the poll was sent.
func (s *session) open(envelope []byte, nonce string, sent time.Time) (g granted, err error) {
	sealed, err := wire.Read(envelope, wire.MaxGrant)
	if err != nil {
		return g, fmt.Errorf("%w: %w", errGrant, err)
	}
	if err := sealed.Prove(s.plane); err != nil {
		return g, fmt.Errorf("%w: %w", errGrant, err)
	}
	if err := sealed.Decode(wire.KindGrant, &g.Grant); err != nil {
		return g, fmt.Errorf("%w: %w", errGrant, err)
	}
	g.sent = sent
	digest, err := instructionDigest(g.Instruction)
	if err != nil {
		return g, fmt.Errorf("%w: %w", errGrant, err)
	}
	ttl, beat := time.Duration(g.TTLMS)*time.Millisecond, time.Duration(g.HeartbeatMS)*time.Millisecond
	var wrong string
	switch {
	case g.Worker != s.id:
		wrong = "it is for " + string(g.Worker)
	case g.Boot != s.boot:
		wrong = "it is for another boot"
	case g.Nonce != nonce:
		wrong = "it answers another poll"
	case !safeName(g.Subject()) || !safeName(g.Run):
		wrong = "its run has no id"
	case (g.Verification != "") != (s.role == ops.Verifier):
		wrong = "it is for another role"
	case g.Verification != "" && g.Result == nil:
		wrong = "it names no result to verify"
	case g.Digest != digest:
		wrong = "its instruction is not what its digest says"
	case g.Fence <= 0 || beat <= 0 || ttl <= 0 || g.RemainingMS <= 0:
		wrong = "it has no fence, or no time"
	case !s.now().Before(sent.Add(ttl)):
		wrong = fmt.Sprintf("its lease has lapsed: the poll was sent %s ago", s.now().Sub(sent).Round(time.Millisecond))
	}
	if wrong != "" {
		return g, fmt.Errorf("%w: %s", errGrant, wrong)
	}
	return g, nil
}

// instructionDigest is the digest of the canonical JSON (RFC 8785) of i.
func instructionDigest(i wire.Instruction) (string, error) {
	b, err := json.Marshal(i)
	if err != nil {
		return "", err
	}
	if b, err = jcs.Transform(b); err != nil {
		return "", err
	}
	return wire.Digest(b), nil
}

// poll asks once for a grant; nil if none came. wait is at most how long the plane waits.
func (s *session) poll(ctx context.Context, nonce string, wait time.Duration) ([]byte, error) {
	return s.client.Poll(ctx, wire.Poll{Boot: s.boot, Nonce: nonce, WaitMS: wait.Milliseconds()})
}

// pollWait is how long the plane may hold a poll. The plane adds to a lease what its poll
// has waited, so a long one costs nothing of it.
const pollWait = 30 * time.Second

// serves compares what the plane has enrolled with what this process serves. A poll
// cannot choose, so both must be the same.
func serves(enrolled, served []string) error {
	a, b := slices.Sorted(slices.Values(enrolled)), slices.Sorted(slices.Values(served))
	if slices.Equal(slices.Compact(a), slices.Compact(b)) {
		return nil
	}
	return refused("this worker is enrolled for %s and was started for %s; these must be the same, since the plane offers it whatever it is enrolled for", strings.Join(enrolled, ", "), strings.Join(served, ", "))
}
