package harvester

import (
	"bytes"
	"io"
	"net/url"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// hosts are the exec hosts, in lower case.
type hosts struct {
	any   bool
	names map[string]bool
}

func newHosts(list []string) hosts {
	h := hosts{names: make(map[string]bool)}
	for _, name := range list {
		h.any = h.any || name == "*"
		h.names[strings.ToLower(name)] = true
	}
	return h
}

func (h hosts) has(name string) bool {
	return name != "" && (h.any || h.names[strings.ToLower(name)])
}

// proveCurl reports the command that is over, with its line break at end, if
// it is a call.
func (s *Scanner) proveCurl(end int64) {
	o := &s.object
	body, n, ok := s.curl.body(s.hosts)
	s.examined += int64(n)
	if !ok {
		s.unhide(end)
		return
	}
	s.unhidden()
	body = trimSpace(body)
	o.reset(1, false)
	ok = len(body) > 0 && body[0] == '{' && o.scan(body) == complete && o.pos == len(body)
	s.examined += int64(o.pos)
	if ok {
		s.pending, n, ok = o.calls.directives(s.pending[:0], body)
		s.examined += int64(n)
	}
	if !ok {
		s.breakAt(end, 21, "the body is no call object")
		return
	}
	d := s.pending[0]
	d.Form, d.Start, d.End = Curl, s.start, end
	s.report(d)
}

// An argument is a word of the command as the program would get it.
type argument struct {
	text    []byte
	expands bool // text ends where something would be expanded
}

// body returns the one body of the command, if it is a call to one of the
// hosts (rules 19 and 20), and how many bytes it read to know.
func (c *curl) body(h hosts) (body []byte, examined int, ok bool) {
	if c.refused {
		return nil, 0, false
	}
	text := counter{r: bytes.NewReader(c.text)}
	args := arguments{hosts: h}
	if c.parser == nil {
		c.parser = syntax.NewParser(syntax.Variant(syntax.LangBash))
	}
	next := 0
	for w, err := range c.parser.WordsSeq(&text) {
		if err != nil || !args.take(c.argument(w, &next)) {
			return nil, text.n, false
		}
	}
	if args.option != "" || args.urls != 1 || args.bodies != 1 {
		return nil, text.n, false
	}
	if args.stdin != (c.document >= 0) {
		return nil, text.n, false
	}
	if args.stdin {
		args.body = c.quotation(c.document)
	}
	return args.body, text.n, true
}

// A counter counts the bytes that are read from r.
type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// argument returns the word as the program would get it, up to what would be
// expanded. next is the quotation that is cited next.
func (c *curl) argument(w *syntax.Word, next *int) (a argument) {
	for _, part := range w.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok {
			a.expands = true
			continue
		}
		for i := range len(lit.Value) {
			switch {
			case lit.Value[i] == cited:
				text := c.quotation(*next)
				*next++
				switch {
				case a.expands:
				case a.text == nil:
					a.text = text[:len(text):len(text)]
				default:
					a.text = append(a.text, text...)
				}
			default:
				a.expands = true
			}
		}
	}
	return a
}

// arguments reads the arguments of a command as curl does.
type arguments struct {
	hosts  hosts
	begun  bool
	option string // the option whose value comes next
	urls   int
	bodies int
	body   []byte
	stdin  bool // it is the here-document
}

// take takes the next argument, and reports whether the command may still be
// a call.
func (g *arguments) take(a argument) bool {
	text := string(a.text[:min(len(a.text), maxOption)])
	switch {
	case !g.begun:
		g.begun = true
		return text == "curl" && !a.expands
	case g.option != "":
		option := g.option
		g.option = ""
		return g.value(option, a)
	case strings.HasPrefix(text, "--"):
		if a.expands || len(text) < len(a.text) {
			return false
		}
		if longFlags[text] {
			return true
		}
		g.option = text
		return longValues[text]
	case strings.HasPrefix(text, "-"):
		// Flags, and perhaps one option with its value, in one word.
		n := 1
		for n < len(text) && strings.IndexByte(shortFlags, text[n]) >= 0 {
			n++
		}
		if n == len(text) {
			return n > 1 && !a.expands && len(text) == len(a.text)
		}
		option := shortValues[text[n]]
		if a.text = a.text[n+1:]; len(a.text) > 0 {
			return option != "" && g.value(option, a)
		}
		g.option = option
		return option != "" && !a.expands
	}
	return g.value("--url", a)
}

// maxOption is longer than any option or run of flags that is worth a look.
const maxOption = 64

// value takes the value of an option; a URL is one of --url.
func (g *arguments) value(option string, a argument) bool {
	if a.expands {
		return option == "--header" || option == "--user"
	}
	switch option {
	case "--url":
		g.urls++
		return g.urls == 1 && len(a.text) <= maxURL && isExec(string(a.text), g.hosts)
	case "--request":
		return string(a.text) == "POST"
	case "--data", "--data-raw", "--data-binary", "--data-ascii", "--json":
		g.bodies++
		g.body = a.text
		if option != "--data-raw" && len(a.text) > 0 && a.text[0] == '@' {
			g.stdin = true
			return g.bodies == 1 && string(a.text) == "@-"
		}
		return g.bodies == 1
	}
	return true
}

const maxURL = 1 << 13

const shortFlags = "sSfLkivN#"

// shortValues are the long names of the short options that take a value.
var shortValues = map[byte]string{
	'd': "--data", 'X': "--request", 'H': "--header", 'u': "--user", 'o': "--output",
	'm': "--max-time", 'A': "--user-agent", 'w': "--write-out", 'b': "--cookie", 'c': "--cookie-jar",
}

var longValues = set("--data --data-raw --data-binary --data-ascii --json " +
	"--request --header --user --output --max-time --connect-timeout --retry --cacert --cert --key " +
	"--user-agent --write-out --cookie --cookie-jar --url")

var longFlags = set("--silent --show-error --fail --fail-with-body --location --insecure --include " +
	"--verbose --compressed --no-progress-meter --http1.1 --http2 --no-buffer")

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// isExec reports whether the URL names an exec endpoint on one of the hosts.
// curl's own globs make several URLs of one, and are none.
func isExec(raw string, h hosts) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" {
		return false
	}
	if strings.ContainsAny(raw, "{}") || strings.ContainsAny(strings.Replace(raw, u.Host, "", 1), "[]") {
		return false
	}
	return h.has(u.Hostname()) && strings.HasSuffix(u.EscapedPath(), "/exec")
}
