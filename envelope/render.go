package envelope

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"inband/ops"
)

// MaxShown bounds what a post shows of one outcome, in bytes before rendering. Of
// more, the head and the tail are shown with the cut between them.
const MaxShown = 16 << 10

// Outcome renders what came of call for the thread it came from: a line that says
// which call and what state, the result or the fault in a fence, and a line for each file
// that was kept.
func Outcome(call ops.Call, o ops.Outcome) string { return OutcomeUpTo(call, o, MaxShown) }

// OutcomeUpTo is Outcome with another bound than MaxShown, in bytes.
func OutcomeUpTo(call ops.Call, o ops.Outcome, most int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s (%s)\n", mark(o.State), plain(string(call.Op)), words(o.State), plain(string(call.ID)))
	switch {
	case o.Fault != nil:
		b.WriteString(fence(cut(faultText(o.Fault), call.ID, most), "text"))
	case o.Result != nil:
		text, kind := resultText(o.Result)
		if strings.TrimSpace(text) == "" {
			b.WriteString("(no output)\n")
			break
		}
		b.WriteString(fence(cut(text, call.ID, most), kind))
	}
	for _, p := range o.Published {
		fmt.Fprintf(&b, "kept: %s, %d bytes, %s\n", plain(p.File), p.Bytes, plain(p.Digest))
	}
	return b.String()
}

// Whole is the text of an outcome alone, all of it and neutral, for a file beside a post
// that shows less.
func Whole(o ops.Outcome) string {
	switch {
	case o.Fault != nil:
		return Neutral(faultText(o.Fault))
	case o.Result != nil:
		text, _ := resultText(o.Result)
		return Neutral(text)
	}
	return ""
}

// Note renders a remark of the gateway itself for a thread, one line. Words that come from
// elsewhere must be passed as args: all that are no numbers or booleans are made fit to
// stand in a line.
func Note(format string, args ...any) string {
	fit := make([]any, len(args))
	for i, a := range args {
		switch v := reflect.ValueOf(a); {
		case v.IsValid() && (v.CanInt() || v.CanUint() || v.CanFloat() || v.Kind() == reflect.Bool):
			if _, ok := a.(fmt.Stringer); !ok {
				fit[i] = a
				continue
			}
		}
		fit[i] = plain(fmt.Sprint(a))
	}
	return "ℹ " + fmt.Sprintf(format, fit...) + "\n"
}

// Fenced is text of somebody in a fence that it cannot close, neutral and to be read, for a
// post of its own or below a Note. It ends in a line break.
func Fenced(text string) string { return fence(text, "text") }

func mark(s ops.State) string {
	switch s {
	case ops.Succeeded:
		return "✓"
	case ops.Unknown:
		return "?"
	}
	return "✗"
}

func words(s ops.State) string {
	if s == ops.Unknown {
		return "outcome unknown"
	}
	return string(s)
}

func faultText(f *ops.Fault) string {
	var b strings.Builder
	b.WriteString(f.Error())
	b.WriteByte('\n')
	if f.Retryable {
		b.WriteString("This may be tried again.\n")
	}
	for _, name := range []string{"stdout", "stderr"} {
		if s, ok := f.Details[name].(string); ok && s != "" {
			b.WriteString(name + ":\n" + s)
			if !strings.HasSuffix(s, "\n") {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// resultText is what a person wants to see of r, and the label of its fence.
func resultText(r *ops.Result) (text, kind string) {
	if s, ok := r.Shown(); ok {
		return s, "text"
	}
	if len(r.Value) > maxIndented || depth(r.Value) > maxDepth {
		return string(r.Value), "json"
	}
	var b bytes.Buffer
	if json.Indent(&b, r.Value, "", "  ") != nil {
		return string(r.Value), "text"
	}
	return b.String(), "json"
}

// Bounds of what is indented. Indentation grows with the depth times the number of
// lines: without them, 2 MiB of brackets would be written as gigabytes.
const (
	maxIndented = 64 << 10 // bytes
	maxDepth    = 32
)

// depth is how deep the brackets of a JSON value nest.
func depth(value []byte) (deepest int) {
	open, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			open++
			deepest = max(deepest, open)
		case c == ']' || c == '}':
			open--
		}
	}
	return deepest
}

// fence puts text between fences that it cannot close.
func fence(text, label string) string {
	b := block(text, label)
	return b.String()
}

// cut keeps the head and the tail of a text that is longer than most bytes.
func cut(text string, id ops.CallID, most int) string {
	if len(text) <= most {
		return text
	}
	head, tail := text[:runeStart(text, most*3/4)], text[len(text)-most/4:]
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n… %d bytes left out; box calls show %s has them …\n%s", head, len(text)-len(head)-len(tail), id, tail)
}
