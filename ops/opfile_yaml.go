package ops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The YAML of op files is the part of YAML that reads the same to everybody:
// mappings, sequences and scalars in one document. Anchors, aliases, merges, tags
// and directives are refused, and so are scalars that YAML versions disagree on.

// Bounds on the YAML of op files. The parser recurses, and a stack overflow ends
// the process; and it takes quadratic time over long mappings and runs of empty
// lines. So they are checked in front of it.
const (
	maxDepth  = 16       // of flow collections; of block collections, by their columns
	maxColumn = 64       // at which a line's own content may begin
	maxLine   = 16 << 10 // bytes
	maxLines  = 10_000
	maxBlank  = 20 // empty lines in a row
)

type nodeKind int

const (
	brokenNode nodeKind = iota // has been complained about already
	mappingNode
	sequenceNode
	stringNode
	numberNode
	boolNode
	nullNode
)

// node is a value of an op file, with its line.
type node struct {
	kind    nodeKind
	line    int
	text    string // of a scalar
	entries []entry
	items   []*node
}

type entry struct {
	key   string
	line  int
	value *node
}

func (n *node) find(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

func (n *node) describe() string {
	switch n.kind {
	case mappingNode:
		return "a mapping"
	case sequenceNode:
		return "a list"
	case stringNode:
		return fmt.Sprintf("the string %q", clip(n.text))
	case numberNode:
		return "the number " + clip(n.text)
	case boolNode:
		return n.text
	}
	return "null"
}

// json returns the value as JSON. Mappings keep their order.
func (n *node) json() json.RawMessage {
	var b bytes.Buffer
	quote := func(s string) {
		q, err := json.Marshal(s)
		if err != nil {
			panic(err) // a string
		}
		b.Write(q)
	}
	switch n.kind {
	case mappingNode:
		b.WriteByte('{')
		for i, e := range n.entries {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(e.key)
			b.WriteByte(':')
			b.Write(e.value.json())
		}
		b.WriteByte('}')
	case sequenceNode:
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(item.json())
		}
		b.WriteByte(']')
	case stringNode:
		quote(n.text)
	case numberNode, boolNode:
		b.WriteString(n.text)
	default:
		b.WriteString("null")
	}
	return b.Bytes()
}

// complain reports what is wrong at a line.
type complain func(line int, format string, args ...any)

// readYAML returns the tree of one document, or nil after complaining.
func readYAML(data []byte, bad complain) (root *node) {
	if !checkBytes(data, bad) {
		return nil
	}
	line := 1
	defer func() {
		// The library has panicked on malformed input before. A reload must not
		// take the gateway down with it.
		if p := recover(); p != nil {
			bad(line, "cannot be parsed as YAML; simplify it")
			root = nil
		}
	}()
	tokens := lexer.Tokenize(string(data))
	depth := 0
	for _, t := range tokens {
		line = max(t.Position.Line, 1)
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			if depth++; depth > maxDepth {
				bad(line, "nested deeper than %d; flatten it", maxDepth)
				return nil
			}
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var y yaml.Error
		line, what := 1, "not YAML"
		if errors.As(err, &y) {
			if what = y.GetMessage(); y.GetToken() != nil {
				line = max(y.GetToken().Position.Line, 1)
			}
		}
		bad(line, "%s; correct the YAML", clip(strings.ReplaceAll(what, "\n", " ")))
		return nil
	}
	var body ast.Node
	for _, d := range file.Docs {
		switch {
		case d.Body == nil:
		case d.Body.Type() == ast.DirectiveType:
			bad(lineOf(d.Body), "a directive (%%); remove it")
			return nil
		case body != nil:
			bad(lineOf(d.Body), "a second document; put it into a file of its own")
			return nil
		default:
			body = d.Body
		}
	}
	if len(file.Docs) > 1 && body != nil && file.Docs[0].Body == nil || body == nil && len(file.Docs) > 1 {
		bad(1, "more than one document; keep one")
		return nil
	}
	if body == nil {
		bad(1, "the file is empty; it needs provider and ops")
		return nil
	}
	return convert(body, bad)
}

// checkBytes looks for what must not stand in an op file whatever it means.
func checkBytes(data []byte, bad complain) bool {
	if len(data) > MaxFile {
		bad(1, "longer than %d bytes; split it", MaxFile)
		return false
	}
	ok, blank := true, 0
	for i, l := range bytes.Split(data, []byte("\n")) {
		if i == maxLines {
			bad(maxLines, "more than %d lines; split the file", maxLines)
			return false
		}
		l = bytes.TrimSuffix(l, []byte("\r"))
		content := bytes.TrimLeft(l, " -?:")
		if blank++; len(bytes.TrimSpace(l)) > 0 {
			blank = 0
		}
		what := ""
		switch {
		case !utf8.Valid(l):
			what = "not valid UTF-8; save the file as UTF-8"
		case bytes.ContainsFunc(l, func(r rune) bool {
			return r < 0x20 && r != '\t' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff
		}):
			what = "a control character, a byte order mark or a foreign line break; remove it"
		case len(bytes.TrimLeft(l, " \t")) < len(bytes.TrimLeft(l, " ")):
			what = "a tab in the indentation; use spaces"
		case bytes.HasPrefix(bytes.TrimLeft(l, " "), []byte("? ")):
			what = "a key on a line of its own (?); write KEY: VALUE"
		case blank == maxBlank+1:
			what = fmt.Sprintf("more than %d empty lines; remove some", maxBlank)
		case len(l) > maxLine:
			what = fmt.Sprintf("a line longer than %d bytes; break it", maxLine)
		case len(l)-len(content) > maxColumn:
			what = fmt.Sprintf("nested too deep: the line begins beyond column %d; flatten it", maxColumn)
		}
		if what != "" {
			bad(i+1, "%s", what)
			ok = false
		}
	}
	return ok
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return max(t.Position.Line, 1)
	}
	return 1
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// ambiguous are plain words that an older YAML takes for a boolean or null and a
// newer one for text.
var ambiguous = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|~)$`)

// numeric is what somebody, or some YAML, may take for a number.
var numeric = regexp.MustCompile(`^[-+]?(0[0-9_]+|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*|[0-9]+(:[0-9]+)+|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|\+[0-9.]+|\.[0-9]+|[0-9]+\.|\.(?i:inf|nan))$`)

func convert(n ast.Node, bad complain) *node {
	line := lineOf(n)
	broken := func(format string, args ...any) *node {
		bad(line, format, args...)
		return &node{line: line}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		m := &node{kind: mappingNode, line: line}
		if len(n.Values) > 0 {
			m.line = lineOf(n.Values[0].Key)
		}
		for _, v := range n.Values {
			m.add(v, bad)
		}
		return m
	case *ast.MappingValueNode:
		m := &node{kind: mappingNode, line: lineOf(n.Key)}
		m.add(n, bad)
		return m
	case *ast.SequenceNode:
		s := &node{kind: sequenceNode, line: line}
		for _, v := range n.Values {
			s.items = append(s.items, convert(v, bad))
		}
		return s
	case *ast.StringNode:
		plain := n.Token.Type != token.SingleQuoteType && n.Token.Type != token.DoubleQuoteType
		switch {
		case plain && ambiguous.MatchString(n.Value):
			return broken("%s reads as text here and as something else elsewhere; quote it, or write true, false or null", n.Value)
		case plain && numeric.MatchString(n.Value):
			return broken("%s is a number in some YAML and not in others; quote it, or write it in decimal", clip(n.Value))
		}
		return &node{kind: stringNode, line: line, text: n.Value}
	case *ast.LiteralNode:
		return &node{kind: stringNode, line: line, text: n.Value.Value}
	case *ast.IntegerNode, *ast.FloatNode:
		text := n.GetToken().Value
		if !jsonNumber.MatchString(text) {
			return broken("%s is a number in some YAML and not in others; write it in decimal, or quote it", clip(text))
		}
		return &node{kind: numberNode, line: line, text: text}
	case *ast.BoolNode:
		text := n.Token.Value
		if text != "true" && text != "false" {
			return broken("%s reads as a boolean here and as something else elsewhere; write true or false, or quote it", clip(text))
		}
		return &node{kind: boolNode, line: line, text: text}
	case *ast.NullNode:
		return &node{kind: nullNode, line: line}
	case *ast.AnchorNode:
		return broken("an anchor (&); write the value out")
	case *ast.AliasNode:
		return broken("an alias (*); write the value out")
	case *ast.TagNode:
		return broken("a tag (!); remove it")
	case nil:
		return &node{kind: nullNode, line: line}
	}
	return broken("%s is not used in op files; write a mapping, a list, a string, a number or a boolean", n.Type())
}

// add enters one key of a mapping.
func (n *node) add(v *ast.MappingValueNode, bad complain) {
	line := lineOf(v.Key)
	var key string
	switch k := v.Key.(type) {
	case *ast.StringNode:
		key = k.Value
	case *ast.MergeKeyNode:
		bad(line, "a merge (<<); write the keys out")
		return
	default:
		bad(line, "a key that is not a plain string; quote it")
		return
	}
	value := v.Value
	if value == nil {
		n.entries = append(n.entries, entry{key, line, &node{kind: nullNode, line: line}})
		return
	}
	for _, e := range n.entries {
		if e.key == key {
			bad(line, "the key %q stands at line %d already; keep one", clip(key), e.line)
			return
		}
	}
	n.entries = append(n.entries, entry{key, line, convert(value, bad)})
}
