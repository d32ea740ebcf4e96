package access

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/cedar-policy/cedar-go"

	"inband/ops"
)

// MaxPolicy is the longest policy file, in bytes.
const MaxPolicy = 32 << 10

// maxDots bounds the dots in a policy file. A chain behind has ("context has a.b.c…")
// takes the library time that grows with the cube of its length, and one chain of
// 16 KiB takes it most of a minute.
const maxDots = 1024

//go:embed policy/default.cedar
var defaultPolicy []byte

// Policy is a set of Cedar policies that has passed every check of ParsePolicy. It
// never changes, and any number of callers may ask it at one time.
type Policy struct {
	rules  rules
	text   []byte
	digest string
}

// rule is one policy with what a decision by it is told with: its @id, or its line.
type rule struct {
	name   cedar.PolicyID
	policy *cedar.Policy
}

// rules is policies in the order of their file, so that of several reasons for a
// decision the first is named.
type rules []rule

// All iterates as cedar.Authorize wants it.
func (rs rules) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, r := range rs {
			if !yield(r.name, r.policy) {
				return
			}
		}
	}
}

// ParsePolicy reads a policy file and checks it against the schema: each action, type
// and attribute that it names exists where it is used, and each comparison is between
// values of one type. file is how errors name it. An error is ops.FileErrors, with
// everything that is wrong, in the order of the lines; a file with one mistake yields
// no policy. A file without policies is a mistake, since it would shut everybody out.
func ParsePolicy(file string, text []byte) (*Policy, error) {
	if f := readable(text); f != nil {
		f.File = file
		return nil, ops.FileErrors{f}
	}
	list, err := cedar.NewPolicyListFromBytes(file, text)
	if err != nil {
		return nil, ops.FileErrors{{File: file, Line: lineOf(text, err), Message: shortened(plainly(err)) + "; docs/security.md shows the form of a policy"}}
	}
	if len(list) == 0 {
		return nil, ops.FileErrors{{File: file, Line: 1, Message: "there is no policy here, so that nobody could do anything; begin with what box init writes"}}
	}
	var found ops.FileErrors
	var named rules
	ids := make(map[string]int)
	for i, p := range list {
		end := len(text)
		if i+1 < len(list) {
			end = list[i+1].Position().Offset
		}
		span := text[p.Position().Offset:end]
		for _, c := range append(checkID(p, ids), check(p)...) {
			line := p.Position().Line
			if at := bytes.Index(span, []byte(c.name)); at > 0 && c.name != "" {
				line += bytes.Count(span[:at], []byte("\n"))
			}
			found = append(found, &ops.FileError{File: file, Line: line, Message: shortened(c.message)})
		}
		name, ok := p.Annotations()["id"]
		if !ok {
			name = cedar.String(fmt.Sprintf("the policy at line %d", p.Position().Line))
		}
		named = append(named, rule{cedar.PolicyID(name), p})
	}
	if len(found) > 0 {
		slices.SortStableFunc(found, func(a, b *ops.FileError) int { return cmp.Compare(a.Line, b.Line) })
		return nil, slices.CompactFunc(found, func(a, b *ops.FileError) bool { return *a == *b })
	}
	sum := sha256.Sum256(text)
	return &Policy{rules: named, text: bytes.Clone(text), digest: "sha256:" + hex.EncodeToString(sum[:])}, nil
}

// DefaultPolicyText returns the policy file that box init writes.
func DefaultPolicyText() []byte { return bytes.Clone(defaultPolicy) }

// DefaultPolicy returns the policy of DefaultPolicyText.
func DefaultPolicy() *Policy {
	p, err := ParsePolicy("default.cedar", defaultPolicy)
	if err != nil {
		panic(err) // embedded
	}
	return p
}

// Text returns the file that p was read from.
func (p *Policy) Text() string { return string(p.text) }

// Digest returns "sha256:" and the digest of Text in hexadecimal.
func (p *Policy) Digest() string { return p.digest }

// Rules returns how many policies p holds.
func (p *Policy) Rules() int { return len(p.rules) }

// LivePolicy is the policy in force. A reload swaps it whole.
type LivePolicy struct{ p atomic.Pointer[Policy] }

// NewLivePolicy returns a LivePolicy that holds p.
func NewLivePolicy(p *Policy) *LivePolicy {
	l := new(LivePolicy)
	l.p.Store(p)
	return l
}

// Current returns the policy in force. A caller that needs several answers about one
// thing takes it once.
func (l *LivePolicy) Current() *Policy { return l.p.Load() }

// Swap puts p in force.
func (l *LivePolicy) Swap(p *Policy) { l.p.Store(p) }

// readable refuses what must not reach the parser.
func readable(text []byte) *ops.FileError {
	if len(text) > MaxPolicy {
		return &ops.FileError{Line: 1, Message: fmt.Sprintf("the file has %d bytes; a policy has at most %d", len(text), MaxPolicy)}
	}
	at := func(i int, format string, args ...any) *ops.FileError {
		return &ops.FileError{Line: 1 + bytes.Count(text[:i], []byte("\n")), Message: fmt.Sprintf(format, args...)}
	}
	dots := 0
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return at(i, "a byte that is not UTF-8; save the file as UTF-8")
		case r == '\r' && !bytes.HasPrefix(text[i:], []byte("\r\n")):
			return at(i, "a carriage return that ends no line: an editor may show one, where a comment goes on; end lines with a newline")
		case unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t':
			return at(i, "the control character %U; take it out", r)
		case unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp):
			return at(i, "the character %U, which cannot be seen or makes text read otherwise than it is; take it out", r)
		case r == '.':
			if dots++; dots > maxDots {
				return at(i, "more than %d dots in one file; write shorter conditions", maxDots)
			}
		}
		i += size
	}
	return nil
}

// place is where the parser's message says that something is wrong.
var place = regexp.MustCompile(`<input>:(\d+):\d+`)

// lineOf is the line that a parser's error is about. One that names no place is about
// the policy behind the last one that can be read.
func lineOf(text []byte, err error) int {
	last := 1 + bytes.Count(text, []byte("\n"))
	if m := place.FindStringSubmatch(err.Error()); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= last {
			return n
		}
	}
	line := 1
	d := cedar.NewDecoder(bytes.NewReader(text))
	for {
		var p cedar.Policy
		if d.Decode(&p) != nil {
			return line
		}
		line = p.Position().Line
	}
}

// maxMessage bounds an error that repeats what stands in the file, in bytes of each end.
const maxMessage = 300

// shortened leaves out the middle of a message that is too long to be read.
func shortened(s string) string {
	if len(s) <= 2*maxMessage {
		return s
	}
	left := len(s) - 2*maxMessage
	return strings.ToValidUTF8(fmt.Sprintf("%s… %d bytes more …%s", s[:maxMessage], left, s[len(s)-maxMessage:]), "")
}

// expected is how the parser says which token it wants.
var expected = regexp.MustCompile(`(?s)^(.*)exact got .* want (.+)$`)

// plainly is a parser's error without what lineOf has taken out of it.
func plainly(err error) string {
	s := strings.TrimPrefix(err.Error(), "parser error: ")
	s = strings.TrimPrefix(place.ReplaceAllString(s, ""), ": ")
	s = strings.Replace(s, "parse error at  ", "at ", 1)
	s = strings.Replace(s, `at "": `, "at the end of the file: ", 1)
	s = expected.ReplaceAllString(s, "$1`$2` is missing")
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
}
