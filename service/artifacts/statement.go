package artifacts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"inband/ops"
)

// What a statement says of itself, and how it is named in its envelope.
const (
	// AttestationType is the payload type of the DSSE envelope around a Statement.
	AttestationType = "application/vnd.in-toto+json"
	// StatementType is the _type of the in-toto attestation framework, version 1.
	StatementType = "https://in-toto.io/Statement/v1"
	// FilePredicate is the predicateType of the one predicate there is.
	FilePredicate = "urn:inband:attestation:file:v1"
)

// Bounds of a statement.
const (
	MaxStatement = 16 << 10 // bytes of its canonical form
	MaxName      = 512      // bytes of the name of a file
	maxSource    = 256      // bytes of a revision or a worktree
	maxArgs      = 64       // of the test command
	maxInteger   = 1 << 53  // what the canonical form keeps exactly (RFC 8785, 3.2.2.3)
)

// ErrStatement: it is no statement of the one form that is taken.
var ErrStatement = errors.New("not an attestation of a file")

// Statement is an in-toto statement about one file: who made it, from what, in which
// run, and what the test said. It says so only together with a signature of the
// producer; see package service/plane/wire for the envelope.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"` // just one
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

// Subject names the bytes that a statement is about.
type Subject struct {
	Name   string            `json:"name"`   // see CheckName
	Digest map[string]string `json:"digest"` // just "sha256", in hex
}

// Predicate is what is said of the file.
type Predicate struct {
	Source     Source         `json:"source"`
	Producer   ops.IdentityID `json:"producer"`
	Run        string         `json:"run"`
	Fence      int64          `json:"fence"`          // of the lease under which it was made; below 2^53
	Test       *Test          `json:"test,omitempty"` // absent: none was run
	CapturedAt time.Time      `json:"capturedAt"`     // by the producer's clock, UTC
}

// Source is what was worked on. Both are empty if it was nothing.
type Source struct {
	Revision string `json:"revision"`
	Worktree string `json:"worktree"` // digest of the tree, as it was at the start
}

// Test is a command that was run over the work, and how it ended.
type Test struct {
	Command []string `json:"command"`
	Exit    int      `json:"exit"`
}

// NewStatement returns the statement that name, whose bytes d names, is what p says.
func NewStatement(name string, d Digest, p Predicate) Statement {
	p.CapturedAt = p.CapturedAt.UTC()
	return Statement{
		Type: StatementType, PredicateType: FilePredicate, Predicate: p,
		Subject: []Subject{{Name: name, Digest: map[string]string{algorithm: d.name()}}},
	}
}

// Name is the name of the one subject of a statement that has been read.
func (s Statement) Name() string { return s.Subject[0].Name }

// Digest names the bytes of the one subject of a statement that has been read.
func (s Statement) Digest() Digest { return Digest(algorithm + ":" + s.Subject[0].Digest[algorithm]) }

// Payload is the canonical form of s (RFC 8785), which is what is signed. The error says
// what of s is out of bounds.
func (s Statement) Payload() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	b, err := s.canonical()
	if err == nil && len(b) > MaxStatement {
		err = fmt.Errorf("%w: %d bytes, of %d at most", ErrStatement, len(b), MaxStatement)
	}
	return b, err
}

func (s Statement) canonical() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	v := jsontext.Value(b)
	if err := v.Canonicalize(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	return v, nil
}

// ReadStatement reads the payload of an attestation. It must be the canonical form of a
// statement within the bounds: whatever else says the same, with a member more, a space
// or another spelling of a number, is refused, so that what was signed and what is shown
// cannot differ. The error is ErrStatement.
func ReadStatement(payload []byte) (Statement, error) {
	s, err := readStatement(payload)
	if err != nil {
		return Statement{}, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	return s, nil
}

func readStatement(payload []byte) (s Statement, err error) {
	if len(payload) > MaxStatement {
		return s, fmt.Errorf("%d bytes, of %d at most", len(payload), MaxStatement)
	}
	if err := jsonv2.Unmarshal(payload, &s, jsonv2.RejectUnknownMembers(true)); err != nil {
		return s, err
	}
	if err := s.check(); err != nil {
		return s, err
	}
	same, err := s.canonical()
	if err != nil {
		return s, err
	}
	if !bytes.Equal(same, payload) {
		return s, errors.New("it is not written in the canonical form of RFC 8785")
	}
	return s, nil
}

// check says what of s is not as it must be.
func (s Statement) check() error {
	switch {
	case s.Type != StatementType:
		return fmt.Errorf("_type is not %s", StatementType)
	case s.PredicateType != FilePredicate:
		return fmt.Errorf("predicateType is not %s", FilePredicate)
	case len(s.Subject) != 1:
		return fmt.Errorf("%d subjects, want one", len(s.Subject))
	case len(s.Subject[0].Digest) != 1 || !s.Digest().Valid():
		return fmt.Errorf("the subject's digest is not just %s and 64 lower-case hex digits", algorithm)
	}
	if err := CheckName(s.Subject[0].Name); err != nil {
		return err
	}
	p := s.Predicate
	for what, text := range map[string]string{"revision": p.Source.Revision, "worktree": p.Source.Worktree, "producer": string(p.Producer), "run": p.Run} {
		if len(text) > maxSource || !plain(text) {
			return fmt.Errorf("the %s is longer than %d bytes or holds control characters", what, maxSource)
		}
	}
	switch _, off := p.CapturedAt.Zone(); {
	case p.Producer == "" || p.Run == "":
		return errors.New("it names no producer or no run")
	case p.Fence < 1 || p.Fence > maxInteger:
		return fmt.Errorf("the fence %d is not in 1…2^53", p.Fence)
	case p.CapturedAt.IsZero() || off != 0 || p.CapturedAt.Year() > 9999:
		return errors.New("capturedAt is no time in UTC")
	case p.Test == nil:
		return nil
	case len(p.Test.Command) == 0 || len(p.Test.Command) > maxArgs:
		return fmt.Errorf("a test command of %d words, want 1 to %d", len(p.Test.Command), maxArgs)
	case p.Test.Exit < -1<<31 || p.Test.Exit > 1<<31-1:
		return errors.New("the test's exit is none")
	}
	for _, word := range p.Test.Command {
		if !utf8.ValidString(word) {
			return errors.New("the test command is not UTF-8")
		}
	}
	return nil
}

// CheckName says why name cannot be the name of a file that a run leaves: a clean
// relative path with slashes, of 1 to MaxName bytes of UTF-8 without control characters.
func CheckName(name string) error {
	switch {
	case len(name) > MaxName:
		return fmt.Errorf("a file's name of %d bytes, of %d at most", len(name), MaxName)
	case !fs.ValidPath(name) || name == "." || !plain(name) || strings.Contains(name, `\`):
		return fmt.Errorf("%q is no clean relative path, such as out/report.txt", clip(name))
	}
	return nil
}

// plain reports whether s is UTF-8 without control characters and what is like them.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
	})
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 80)], "\uFFFD") }
