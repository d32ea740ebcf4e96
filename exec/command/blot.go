package command

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"inband/exec/proc"
	"inband/ops"
)

// blotter takes the values of secrets out of what a program wrote. It finds a value as
// it is and in the forms that programs commonly give it: base64 (also as a part of
// something longer that is encoded), URL encoding, hex, and the escapes of JSON. What a
// program does to a value on purpose it does not find.
type blotter struct {
	forms []form
	count int // places that were blotted
}

// form is one way to write a secret.
type form struct {
	text []byte
	mark string
}

func newBlotter(secrets []secret) *blotter {
	b := new(blotter)
	for _, s := range secrets {
		for _, text := range forms(s.value) {
			b.forms = append(b.forms, form{[]byte(text), s.String()})
		}
	}
	return b
}

// forms are the ways in which a program may write value.
func forms(value []byte) []string {
	v := string(value)
	all := []string{v, hex.EncodeToString(value), strings.ToUpper(hex.EncodeToString(value))}
	for _, escaped := range []string{url.QueryEscape(v), url.PathEscape(v)} {
		all = append(all, escaped, lowerEscapes(escaped))
	}
	if utf8.Valid(value) {
		for _, escapeHTML := range []bool{true, false} { // as Go writes it, and as others do
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(escapeHTML)
			if e.Encode(v) == nil {
				all = append(all, b.String()[1:b.Len()-2])
			}
		}
	}
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		raw := encoding.WithPadding(base64.NoPadding)
		all = append(all, encoding.EncodeToString(value), raw.EncodeToString(value))
		// Within something longer value begins at any of three places in a group of
		// base64. The characters at its ends hold bits of its neighbours.
		for before := range 3 {
			encoded := raw.EncodeToString(append(make([]byte, before), value...))
			all = append(all, encoded[(before*8+5)/6:(before+len(value))*8/6])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// lowerEscapes writes %2f for %2F.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:], bytes.ToLower(b[i:i+3]))
		}
	}
	return string(b)
}

// span is a part of a text and what stands in its place, "" if it is only a part of a
// secret.
type span struct {
	from, to int
	mark     string
}

// text returns s without secrets.
func (b *blotter) text(s []byte) []byte {
	out, _ := b.replace(s, b.find(s))
	return out
}

// replace returns s with the marks of spans, and how many bytes fell to those without
// one.
func (b *blotter) replace(s []byte, spans []span) (out []byte, dropped int) {
	if spans == nil {
		return s, 0
	}
	slices.SortStableFunc(spans, func(a, b span) int { return a.from - b.from })
	var at int
	for i := 0; i < len(spans); {
		one := spans[i]
		for i++; i < len(spans) && spans[i].from < one.to; i++ {
			one.to = max(one.to, spans[i].to)
			one.mark = cmp.Or(one.mark, spans[i].mark)
		}
		out = append(append(out, s[at:one.from]...), one.mark...)
		at = one.to
		if one.mark == "" {
			dropped += one.to - one.from
		}
		if one.mark != "" || one.to-one.from >= MinCredential { // less is mostly chance
			b.count++
		}
	}
	return append(out, s[at:]...), dropped
}

// find returns where secrets stand in s.
func (b *blotter) find(s []byte) []span {
	var all []span
	for _, f := range b.forms {
		for at := 0; ; at++ {
			i := bytes.Index(s[at:], f.text)
			if i < 0 {
				break
			}
			at += i
			if n := len(all); n > 0 && all[n-1].mark == f.mark && all[n-1].from <= at && at < all[n-1].to {
				all[n-1].to = max(all[n-1].to, at+len(f.text)) // one that repeats itself
				continue
			}
			all = append(all, span{at, at + len(f.text), f.mark})
		}
	}
	return all
}

// output returns o without secrets. Where bytes were dropped, what may be a part of a
// secret that was cut goes with them.
func (b *blotter) output(o proc.Output) proc.Output {
	if len(b.forms) == 0 {
		return o
	}
	head, tail := b.find(o.Head), b.find(o.Tail)
	if o.Dropped > 0 {
		if n := b.overlap(func(n int, f []byte) bool { return bytes.HasSuffix(o.Head, f[:n]) }); n > 0 {
			head = append(head, span{len(o.Head) - n, len(o.Head), ""})
		}
		if n := b.overlap(func(n int, f []byte) bool { return bytes.HasPrefix(o.Tail, f[len(f)-n:]) }); n > 0 {
			tail = append(tail, span{0, n, ""})
		}
	}
	var n, m int
	o.Head, n = b.replace(o.Head, head)
	o.Tail, m = b.replace(o.Tail, tail)
	o.Dropped += int64(n + m)
	return o
}

// overlap returns the largest n for which n bytes of a form, and not all of it, are at
// the cut.
func (b *blotter) overlap(at func(n int, form []byte) bool) int {
	most := 0
	for _, f := range b.forms {
		for n := len(f.text) - 1; n > most; n-- {
			if at(n, f.text) {
				most = n
			}
		}
	}
	return most
}

// Blotter takes the values of secrets out of a stream, in the forms that a receipt's
// output is blotted in: [secret REF] stands in their place. It holds back the end of what
// it gets while that may be the beginning of one, at most as long as the longest form.
type Blotter struct {
	b    *blotter
	most int    // the length of the longest form
	text []byte // the last of the stream
	told int    // how much of text has been told
}

// NewBlotter returns one for secrets.
func NewBlotter(secrets map[ops.CredentialRef][]byte) *Blotter {
	var all []secret
	for ref, value := range secrets {
		all = append(all, secret{ref, value})
	}
	s := &Blotter{b: newBlotter(all)}
	for _, f := range s.b.forms {
		s.most = max(s.most, len(f.text))
	}
	return s
}

// Add takes a piece of the stream and returns what can be told of it by now. The result is
// good until the next call and until piece changes.
func (s *Blotter) Add(piece []byte) []byte {
	if s.most == 0 {
		return piece
	}
	s.text = append(s.text, piece...)
	held := s.b.overlap(func(n int, f []byte) bool { return bytes.HasSuffix(s.text, f[:n]) })
	return s.tell(len(s.text) - held)
}

// End returns what was held back. The stream has ended.
func (s *Blotter) End() []byte { return s.tell(len(s.text)) }

// tell returns text up to to, and beyond if a secret stands across it.
func (s *Blotter) tell(to int) (out []byte) {
	spans := s.b.find(s.text)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.from-b.from, b.to-a.to) })
	at := s.told
	for _, one := range spans {
		if one.to <= at {
			continue
		}
		if one.from >= to {
			break
		}
		if one.from >= at { // else it goes on from one that has a mark
			out = append(append(out, s.text[at:one.from]...), one.mark...)
		}
		at = one.to
	}
	if at < to {
		out = append(out, s.text[at:to]...)
		at = to
	}
	// What has been told may be the first part of a secret that overlaps another.
	drop := max(0, at-s.most)
	s.text, s.told = append(s.text[:0], s.text[drop:]...), at-drop
	return out
}
