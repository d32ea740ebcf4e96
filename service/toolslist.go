package service

import (
	"fmt"
	"strings"
	"time"

	"inband/ops"
)

// ToolList is the answer of tools.list: what the API's listing has, and beside it the same
// in text, which is what is shown in a thread.
type ToolList struct {
	OpList
	// Text is every op with its parameters, in a fraction of the bytes of their schemas: a
	// thread shows no more of a result than envelope.MaxShown.
	Text string `json:"text"`
}

// toolsTitle says how to read the text of tools.list.
const toolsTitle = `An op, its parameters in JSON, and their types; one with ? may be left out.
- runs at once  ! changes something: runs at once with the key of a wake that declares it, else a person is asked  x not for you
One op alone, with its JSON Schema: box.exec, action op, arg the name.
`

// Tools returns what tools.list answers to by.
func (d *Door) Tools(by ops.Identity) ToolList {
	all, policy := d.registry.Current().All(), d.Policy()
	l := ToolList{OpList: OpList{Ops: make([]OpListing, len(all)), Total: len(all)}}
	var b strings.Builder
	b.WriteString(toolsTitle)
	for i, e := range all {
		l.Ops[i] = listing(e, policy, by)
		mark := "-"
		switch {
		case l.Ops[i].Permitted:
		case e.SideEffecting:
			mark = "!"
		default:
			mark = "x"
		}
		fmt.Fprintf(&b, "\n%s %s", mark, e.Name)
		for _, alias := range e.Aliases {
			fmt.Fprintf(&b, " or %s", alias)
		}
		fmt.Fprintf(&b, ": %s\n", e.Summary)
		writeParams(&b, e.Params, "    ")
	}
	l.Text = b.String()
	return l
}

// writeParams writes a line for each parameter, and below an object its members.
func writeParams(b *strings.Builder, params ops.Params, indent string) {
	for _, p := range params {
		name := p.Name
		if p.Optional {
			name += "?"
		}
		fmt.Fprintf(b, "%s%s %s", indent, name, kindOf(p))
		if p.Doc != "" {
			b.WriteString(": " + p.Doc)
		}
		b.WriteByte('\n')
		writeParams(b, p.Fields, indent+"  ")
	}
}

// kindOf is the type of p as its value is written in JSON, with what a value must be.
func kindOf(p ops.Param) string {
	switch p.Type {
	case ops.Enum:
		return "one of " + strings.Join(p.Values, "|")
	case ops.Secret:
		return "a reference, one of " + strings.Join(p.Values, "|")
	case ops.Int:
		return fmt.Sprintf("number %d..%d", p.Min, p.Max)
	case ops.Bool:
		return "true|false"
	case ops.Path:
		return fmt.Sprintf("path of a %s below %s", p.Kind, p.Root)
	case ops.Duration:
		return fmt.Sprintf("duration %s..%s", time.Duration(p.Min), time.Duration(p.Max))
	case ops.Names:
		return fmt.Sprintf("array of names of ops, at most %d", p.Max)
	case ops.Strings:
		return fmt.Sprintf("array of strings, %d..%d", p.Min, p.Max)
	}
	if p.Type == ops.Pattern {
		return "string"
	}
	return string(p.Type) // text, host, object
}
