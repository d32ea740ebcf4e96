package harvester

import (
	"bytes"
	"net/url"
	"strings"

	"mvdan.cc/sh/v3/expand"
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
	c := &s.curl
	if c.refused {
		s.unhide(end)
		return
	}
	s.examined += int64(len(c.text))
	body, ok := c.bodyOf(s.hosts)
	if !ok {
		s.unhide(end)
		return
	}
	text := trimSpace([]byte(body))
	o := &s.object
	o.reset(1, false)
	read := o.names.examined
	if len(text) == 0 || text[0] != '{' || o.scan(text) != complete || o.pos != len(text) {
		s.examined += int64(o.pos) + o.names.examined - read
		s.breakAt(end, 21, "the body is no call object")
		s.hiding.rule = 0
		return
	}
	calls, n, ok := o.calls.directives(s.pending[:0], text)
	s.pending = calls
	s.examined += int64(o.pos+n) + o.names.examined - read
	s.hiding.rule = 0
	if !ok {
		s.breakAt(end, 21, "the body is no call object")
		return
	}
	d := calls[0]
	d.Form, d.Start, d.End = Curl, s.start, end
	s.report(d)
}

// An argument is a word of a command as the program would get it.
type argument struct {
	text    string
	expands bool // text ends where something would be expanded
}

// bodyOf returns the one body of the command, if it is a call to one of the
// hosts (rules 19 and 20).
func (c *curl) bodyOf(h hosts) (body string, ok bool) {
	args, stdin, ok := c.words()
	if !ok || len(args) == 0 || args[0] != (argument{text: "curl"}) {
		return "", false
	}
	var urls, bodies, documents int
	for k := 1; k < len(args); k++ {
		a := args[k]
		var option, value string
		var hasValue bool
		switch {
		case strings.HasPrefix(a.text, "--") && !a.expands:
			option = a.text
			if option == "--url" {
				option = ""
				break
			}
			if longFlags[option] {
				continue
			}
			if _, known := longValues[option]; !known {
				return "", false
			}
		case strings.HasPrefix(a.text, "-") && len(a.text) > 1:
			// Flags, and perhaps one option with its value, in one word.
			n := 1
			for n < len(a.text) && strings.IndexByte(shortFlags, a.text[n]) >= 0 {
				n++
			}
			if n == len(a.text) {
				if a.expands {
					return "", false
				}
				continue
			}
			if option = shortValues[a.text[n]]; option == "" {
				return "", false
			}
			value = a.text[n+1:]
			if hasValue = value != ""; !hasValue && a.expands {
				return "", false
			}
		case strings.HasPrefix(a.text, "-"):
			return "", false
		default:
			option, value, hasValue = "", a.text, true
		}
		if !hasValue {
			if k++; k == len(args) {
				return "", false
			}
			a = args[k]
			value = a.text
		}
		if a.expands && option != "--header" && option != "--user" {
			return "", false
		}
		switch option {
		case "":
			if urls++; urls > 1 || !isExec(value, h) {
				return "", false
			}
		case "--request":
			if value != "POST" {
				return "", false
			}
		case "--data", "--data-raw", "--data-binary", "--data-ascii", "--json":
			bodies++
			body = value
			if option != "--data-raw" && strings.HasPrefix(value, "@") {
				if value != "@-" || stdin == nil {
					return "", false
				}
				documents++
				body = *stdin
			}
		}
	}
	if urls != 1 || bodies != 1 || (stdin != nil) != (documents == 1) {
		return "", false
	}
	return body, true
}

const shortFlags = "sSfLkivN#"

// shortValues are the long names of the short options that take a value.
var shortValues = map[byte]string{
	'd': "--data", 'X': "--request", 'H': "--header", 'u': "--user", 'o': "--output",
	'm': "--max-time", 'A': "--user-agent", 'w': "--write-out", 'b': "--cookie", 'c': "--cookie-jar",
}

var longValues = set("--data --data-raw --data-binary --data-ascii --json " +
	"--request --header --user --output --max-time --connect-timeout --retry --cacert --cert --key " +
	"--user-agent --write-out --cookie --cookie-jar")

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

// words parses the command, which must be one simple command, into its words
// and what its here-document holds.
func (c *curl) words() (args []argument, stdin *string, ok bool) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(c.text), "")
	if err != nil || len(file.Stmts) != 1 {
		return nil, nil, false
	}
	stmt := file.Stmts[0]
	cmd, ok := stmt.Cmd.(*syntax.CallExpr)
	if !ok || len(cmd.Assigns) > 0 || stmt.Negated || stmt.Background || stmt.Coprocess || len(stmt.Redirs) > 1 {
		return nil, nil, false
	}
	for _, w := range cmd.Args {
		a, ok := c.argument(w)
		if !ok {
			return nil, nil, false
		}
		args = append(args, a)
	}
	for _, r := range stmt.Redirs {
		if r.Op != syntax.Hdoc || r.N != nil || r.Word == nil {
			return nil, nil, false
		}
		text, err := "", error(nil)
		switch {
		case c.heredocs[0].quoted:
			number := ""
			if r.Hdoc != nil {
				number = strings.TrimSuffix(r.Hdoc.Lit(), "\n")
			}
			if text, ok = c.literal(number); !ok {
				return nil, nil, false
			}
		case r.Hdoc != nil:
			if text, err = expand.Document(nil, r.Hdoc); err != nil {
				return nil, nil, false
			}
		}
		stdin = &text
	}
	return args, stdin, true
}

// argument returns the word as the program would get it, up to what would be
// expanded.
func (c *curl) argument(w *syntax.Word) (a argument, ok bool) {
	known := *w
	known.Parts = nil
	for k, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			a.expands = globs(part.Value, k == 0)
		case *syntax.SglQuoted:
			if !part.Dollar {
				if part.Value, ok = c.literal(part.Value); !ok {
					return a, false
				}
			}
		case *syntax.DblQuoted:
			for n, inner := range part.Parts {
				if _, literal := inner.(*syntax.Lit); !literal {
					a.expands = true
					part.Parts = part.Parts[:n]
					break
				}
			}
			known.Parts = append(known.Parts, part)
		default:
			a.expands = true
		}
		if a.expands {
			break
		}
		if _, quoted := part.(*syntax.DblQuoted); !quoted {
			known.Parts = append(known.Parts, part)
		}
	}
	fields, err := expand.Fields(nil, &known)
	if len(fields) > 0 {
		a.text = fields[0]
	}
	return a, err == nil && len(fields) <= 1
}

// globs reports whether a shell would expand something in an unquoted piece
// of a word, which may be the word's first.
func globs(lit string, first bool) bool {
	if first && strings.HasPrefix(lit, "~") {
		return true
	}
	for i := 0; i < len(lit); i++ {
		switch lit[i] {
		case '\\':
			i++
		case '*', '?', '[', '{':
			return true
		}
	}
	return false
}
