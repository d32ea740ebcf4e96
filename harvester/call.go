package harvester

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// A span is a part of the text of an object; the zero span is absent.
type span struct{ from, to int32 }

func (s span) of(b []byte) []byte { return b[s.from:s.to:s.to] }

// A call is the members of one call object.
type call struct{ op, params, key, id span }

// calls notes the members of call objects while their text is recognised, so
// that it is read once. depth is that of the members: 1 for a call object, 2
// for an array of them; 0 when the text is no call.
type calls struct {
	depth   int
	list    []call
	member  *span
	foreign bool // something stood there that is no part of a call object
}

func (c *calls) reset(depth int) {
	c.depth, c.list, c.member, c.foreign = depth, c.list[:0], nil, false
}

// open takes the bracket at i, which stands at the given depth.
func (c *calls) open(depth int, bracket byte, i int) {
	switch {
	case depth == c.depth:
		if c.depth > 0 {
			c.begin(i)
		}
	case depth == c.depth-1 && bracket == '{':
		c.list = append(c.list, call{})
		c.member = nil
	case depth == c.depth-1:
		c.foreign = true
	}
}

// close takes the end, before i, of what a bracket at the given depth opened.
func (c *calls) close(depth, i int) {
	if depth == c.depth {
		c.end(i)
	}
}

// name takes the name of a member, unescaped.
func (c *calls) name(text []byte) {
	c.member = nil
	if len(c.list) == 0 {
		c.foreign = true
		return
	}
	last := &c.list[len(c.list)-1]
	switch string(text) {
	case "op":
		c.member = &last.op
	case "params":
		c.member = &last.params
	case "key":
		c.member = &last.key
	case "id":
		c.member = &last.id
	default:
		c.foreign = true
	}
}

// begin takes the first byte of a member's value, at i.
func (c *calls) begin(i int) {
	if c.member != nil {
		c.member.from = int32(i)
	}
}

// end takes the end, before i, of a member's value.
func (c *calls) end(i int) {
	if c.member != nil {
		c.member.to = int32(i)
		c.member = nil
	}
}

// directives appends the calls of w, which was recognised whole, to list. It
// reports whether w is a call object or an array of them, and how many bytes
// it read again.
func (c *calls) directives(list []Directive, w []byte) (_ []Directive, examined int, ok bool) {
	if c.foreign {
		return list, 0, false
	}
	for k := range c.list {
		d, n, ok := c.list[k].directive(w)
		examined += n
		if !ok {
			return list, examined, false
		}
		list = append(list, d)
	}
	return list, examined, true
}

// directive returns the call with the members that c notes in w, if they are
// what a call object's may be.
func (c *call) directive(w []byte) (d Directive, examined int, ok bool) {
	op, n, ok := unquote(c.op.of(w), maxOp)
	if !ok || opByte[op[0]] != opStart {
		return d, n, false
	}
	for _, b := range []byte(op) {
		if opByte[b] == 0 {
			return d, n, false
		}
	}
	d = Directive{Op: op, Params: []byte("{}")}
	examined = n
	if c.params.to > 0 {
		if w[c.params.from] != '{' {
			return d, examined, false
		}
		d.Params = c.params.of(w)
	}
	if c.key.to > 0 {
		d.Key, n, ok = unquote(c.key.of(w), maxID)
		examined += n
	}
	if c.id.to > 0 && ok {
		d.ID, n, ok = unquote(c.id.of(w), maxID)
		examined += n
	}
	return d, examined, ok
}

// unquote returns the text of a JSON string that was recognised as valid. It
// is not ok if the text is empty or longer than limit bytes, or if quoted is
// another value. examined is how many bytes it read.
func unquote(quoted []byte, limit int) (text string, examined int, ok bool) {
	if len(quoted) < 3 || quoted[0] != '"' || len(quoted) > 6*limit+2 {
		return "", 0, false
	}
	examined = len(quoted)
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') >= 0 {
		var err error
		if inner, err = jsontext.AppendUnquote(nil, quoted); err != nil {
			return "", examined, false
		}
	}
	return string(inner), examined, len(inner) <= limit
}
