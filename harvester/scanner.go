package harvester

import (
	"errors"
	"io"
)

// Form says in which of the grammar's forms a directive was written.
type Form string

// The forms. What stands in a directive fence as a bare item has the fence's
// label as its form; a bracket directive keeps its own.
const (
	Tool Form = "tool" // [TOOL op {…}], or an item of a tool fence
	Exec Form = "exec" // [EXEC op {…}], or an item of an exec fence
	DM   Form = "dm"   // [DM {…}]
	Box  Form = "box"  // an item of a box fence
	Curl Form = "curl" // a curl command to an exec endpoint

	Result Form = "result" // [RESULT {…}], which is told to Config.Result alone
)

// A Directive is an order found in a reply. It is a request only: whether the
// op exists, and who may run it, is for others to say.
type Directive struct {
	Form Form
	Op   string // as written; dm.send for DM, box.exec for a plain action
	// Params is the parameter object as written, valid I-JSON, {} when the
	// directive has none. See Config.Found for how long it may be used.
	Params []byte
	Key    string // the key of the envelope it answers, or empty
	ID     string // the caller's own id from a call object, or empty
	// Start and End are the directive's place in the reply: the offset of
	// its first byte and the one behind its last. Calls of one array share
	// theirs.
	Start, End int64
}

// DefaultExecHosts returns the hosts whose curl commands are read when nobody
// says otherwise: this machine's.
func DefaultExecHosts() []string { return []string{"localhost", "127.0.0.1", "::1"} }

// Config says how to read a reply. The zero Config reads every form but curl.
type Config struct {
	// ExecHosts are the hosts of exec endpoints, without port, in any case;
	// "*" is any host. With none, no curl command is a call (rule 19).
	ExecHosts []string

	// Thinking says that the reply begins inside a think tag (rule 13).
	Thinking bool

	// Found is called with each directive, in text order, at the byte that
	// completes it. Its Params are only lent: they may point into the
	// scanner's buffer or into the piece being written, and must be copied
	// to be kept beyond the call.
	Found func(Directive)

	// Result, when not nil, is called with each [RESULT {…}] of the prose, in
	// text order among the directives, under the rules of [DM {…}] and with
	// the same loan of Params. Its Op is empty: it is no order, but what the
	// agent says of its errand. When nil, [RESULT is text like any other.
	Result func(Directive)

	// Explain, when not nil, is called with whatever hid or broke a
	// directive, when that ends. It costs another pass over the reply.
	Explain func(Finding)
}

// Limits of the grammar.
const (
	maxDirective = 1 << 20 // bytes of a directive, an item or a curl command
	maxOp        = 128     // bytes of an op name
	maxGap       = 256     // spaces in a bracket directive's header
	minKey       = 3
	maxKey       = 32
	maxID        = 128 // bytes of key or id in a call object
)

// ErrClosed is what Write returns after Close.
var ErrClosed = errors.New("harvester: write after close")

// A mode is what the scanner is in the middle of.
type mode uint8

const (
	inProse     mode = iota
	inFenceLine      // a line that may open a fence
	inCode           // inline code
	inQuote          // a quoted line
	inEntity         // what may become &gt;
	inTag            // what may become a comment or a think tag
	inComment
	inThink
	inHiding   // nothing is read any more
	inHeader   // a bracket directive before its object
	inObject   // an object, or an array of call objects
	inTrail    // between a bracket directive's object and its ]
	inRecovery // behind the error in a broken object
	inQuoting  // a quoting fence
	inShell    // a shell fence as long as curl commands are read
	inItems    // a directive fence, at an item's place
	inItemOp   // an item that began with an op name
	inAction   // a plain action of a box fence
	inRest     // behind a failed item of a directive fence, to its line end
	inCurlWord // what may become the beginning of a curl command
	inCurl
	inLongCurl // a curl command that is incomplete
)

// A Scanner reads one reply, in pieces of any size, and reports its
// directives. It is not safe for concurrent use.
type Scanner struct {
	// immutable
	config Config
	hosts  hosts
	stops  *stopTable

	// scanning
	mode   mode
	base   int64 // offset in the reply of the piece at hand
	closed bool
	replay bool // the piece at hand was read before

	// prose
	head    bool   // only the prefix of the line was seen
	prefix  prefix // while head
	before  before // what stands directly before, as far as it matters to [
	code    int    // length of the run that opened inline code
	run     int    // length of the run being read
	matched int    // bytes of &gt;, of --> or of </think>
	tag     tag
	hidden  tag  // the think tag that hides
	back    mode // where a comment or a failed tag leads

	// fences
	line   fenceLine // the line, read for its fence alone
	fence  fence
	place  bool // in a box fence: the line holds only this item so far
	braced bool // the line holds what makes it no plain action
	// behindBox is where the word behind box begins in buf as long as it is
	// being read, else -1.
	behindBox int

	// the directive that stands open
	start    int64 // offset of its first byte
	kind     kind
	header   header
	object   object
	objectAt int64
	buffered bool        // its text is in buf, else in the piece at hand
	buf      []byte      // the object, or a plain action's line
	pending  []Directive // the calls of an item, before they are reported
	recovery recovery
	curl     curl

	// explaining
	explainer explainer

	// public through methods
	broken   int
	examined int64
}

// A kind is what an object that stands open is part of.
type kind uint8

const (
	bracket kind = iota
	opItem
	callItem
	arrayItem
)

var _ io.Writer = (*Scanner)(nil)

// New returns a Scanner at the beginning of a reply.
func New(c Config) *Scanner {
	s := &Scanner{config: c, hosts: newHosts(c.ExecHosts), stops: &stops}
	if c.Result != nil {
		s.stops = resultStops()
	}
	s.Reset()
	return s
}

// Reset makes the scanner ready for another reply under the same Config. Its
// buffers are kept.
func (s *Scanner) Reset() {
	*s = Scanner{
		config: s.config, hosts: s.hosts, stops: s.stops,
		object: s.object, buf: s.buf[:0], pending: s.pending[:0], curl: s.curl,
		fence:     fence{levels: s.fence.levels[:0]},
		head:      true,
		explainer: explainer{before: -1, masked: -1, openers: s.explainer.openers[:0]},
	}
	s.header.results = s.config.Result != nil
	s.explainer.opener.results = s.header.results
	s.object.names.examined = 0
	if s.config.Thinking {
		s.mode, s.hidden, s.back = inThink, tag{name: anyName}, inProse
		s.hide(13, 0)
	}
}

// Broken returns how many directives were begun, up to their object at least,
// and did not come to count: their JSON was broken, something stood between
// it and the closing bracket, or the end came first.
func (s *Scanner) Broken() int { return s.broken }

// Examined returns how many bytes were looked at, those of index scans and
// those looked at again included. It stays within two and a half times the
// bytes written; only a curl command with words in $'…' may cost up to four
// times its length. What Config.Explain costs is left out.
func (s *Scanner) Examined() int64 { return s.examined + s.object.names.examined }

// Write reads the next piece of the reply. The piece is not kept. The error is
// ErrClosed after Close, else nil.
func (s *Scanner) Write(p []byte) (int, error) {
	if s.closed {
		return 0, ErrClosed
	}
	if s.config.Explain != nil {
		s.look(p)
	}
	if s.fence.open {
		s.readLine(p)
	}
	s.read(p)
	s.keep(p)
	s.base += int64(len(p))
	return len(p), nil
}

// keep gathers the object that stands open, now that p ends.
func (s *Scanner) keep(p []byte) {
	if !s.buffered && (s.mode == inObject || s.mode == inTrail) {
		s.buf = append(s.buf[:0], p[s.objectAt-s.base:]...)
		s.buffered = true
	}
}

// Close ends the reply. A complete reply ends its last line, which may
// complete a plain action or a curl command; of a reply that was broken off,
// what is incomplete is dropped.
func (s *Scanner) Close(complete bool) {
	if s.closed {
		return
	}
	s.closed = true
	if complete {
		cut := s.fence.open && s.line.closes(s.fence.top())
		switch {
		case cut:
		case s.mode == inItemOp:
			s.endItemOp(s.base)
		case s.mode == inAction && s.object.more == 0:
			s.endAction(s.base)
		case s.mode == inCurl:
			s.endCurl()
		}
	}
	switch s.mode {
	case inObject, inTrail:
		s.breakAt(s.base, 8, "the reply ended before the directive did")
	}
	s.unhide(s.base)
}

// read reads p, which begins at s.base.
func (s *Scanner) read(p []byte) {
	for i := 0; i < len(p); {
		switch s.mode {
		case inProse:
			i = s.prose(p, i)
		case inFenceLine:
			i = s.opener(p, i)
		case inCode:
			i = s.inlineCode(p, i)
		case inQuote:
			i = s.quote(p, i)
		case inEntity:
			i = s.entity(p, i)
		case inTag:
			i = s.tagged(p, i)
		case inComment:
			i = s.comment(p, i)
		case inThink:
			i = s.think(p, i)
		case inHiding:
			i = len(p)
		case inHeader:
			i = s.readHeader(p, i)
		case inObject:
			i = s.readObject(p, i)
		case inTrail:
			i = s.trail(p, i)
		case inRecovery:
			i = s.readRecovery(p, i)
		case inQuoting:
			i = s.quoting(p, i)
		case inShell:
			i = s.shell(p, i)
		case inItems:
			i = s.items(p, i)
		case inItemOp:
			i = s.itemOp(p, i)
		case inAction:
			i = s.action(p, i)
		case inRest:
			i = s.rest(p, i)
		case inCurlWord:
			i = s.curlWord(p, i)
		case inCurl:
			i = s.readCurl(p, i)
		case inLongCurl:
			i = s.longCurl(p, i)
		}
		// Inside a fence whatever reads the line stops behind its end.
		if s.fence.open && i > 0 && p[i-1] == '\n' && s.base+int64(i) > s.line.start && !s.replay {
			s.endFenceLine(p, i)
		}
	}
}

// at returns the offset in the reply of p[i].
func (s *Scanner) at(i int) int64 { return s.base + int64(i) }

// toText goes on in the middle of a line of prose.
func (s *Scanner) toText() {
	s.mode, s.head, s.before = inProse, false, 0
}

// toLine goes on at the beginning of a line of prose.
func (s *Scanner) toLine() {
	s.mode, s.head, s.before, s.prefix = inProse, true, 0, prefix{}
}

// All reads a whole reply and returns its directives, with how many more were
// broken and how many bytes were examined. The parameters may point into
// reply.
func All(reply []byte, c Config) ([]Directive, Stats) {
	var all []Directive
	found := c.Found
	c.Found = func(d Directive) {
		all = append(all, d)
		if found != nil {
			found(d)
		}
	}
	s := New(c)
	s.Write(reply)
	s.Close(true)
	return all, Stats{Broken: s.broken, Examined: s.Examined()}
}

// Stats counts what reading a reply took; see the Scanner's methods.
type Stats struct {
	Broken   int
	Examined int64
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
