package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"inband/harvester"
)

// harvestPiece is how much of a reply is read at a time.
const harvestPiece = 256 << 10 // bytes

func (a *app) harvestCommand() *cobra.Command {
	var explain bool
	var hosts []string
	cmd := &cobra.Command{
		Use:   "harvest [FILE|-]",
		Short: "Find the orders in a text",
		Long: `Find the orders in a text, as the gateway would in an agent's reply, and print them.
Nothing is run and no gateway is needed. A text of any size is read as a stream;
what is found is printed as it is found. The exit code is 0 whatever the text holds.

--jsonl prints one JSON object a line for each order: form (tool, exec, dm, box or
curl), op, params as written (line breaks between its tokens become spaces, to keep
the line one), key and id if it has them, and its place in the text in bytes, start
and end. A [RESULT {…}], which is no order, is printed too, with the form result and no
op.

--explain also prints what was not an order, and why: its place, the number of the
grammar's rule that hid or broke it, and what it was. With --jsonl these are objects
with the members rule, what, start and end.

curl commands are orders when they go to an exec endpoint of this machine
(localhost, 127.0.0.1, ::1); --exec-host adds other hosts, * any.`,
		Example: `  box harvest reply.txt
  box harvest --jsonl < reply.txt | jq -r .op
  box harvest --explain --exec-host box.example.org reply.txt`,
		Args: atMost(1),
	}
	f := cmd.Flags()
	f.BoolVar(&a.jsonl, "jsonl", false, "print one JSON object a line")
	f.BoolVar(&explain, "explain", false, "print also what was hidden or broken, and by which rule")
	f.StringArrayVar(&hosts, "exec-host", nil, "a host whose curl commands count, * for any (may be repeated)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file := "-"
		if len(args) > 0 {
			file = args[0]
		}
		for _, host := range hosts {
			if host == "" {
				return usagef("--exec-host is empty; want a host or *")
			}
		}
		r, done, err := a.open(cmd.Context(), file)
		if err != nil {
			return err
		}
		defer done()
		h := &harvest{out: bufio.NewWriterSize(a.out, 64<<10), jsonl: a.jsonl}
		c := harvester.Config{ExecHosts: append(harvester.DefaultExecHosts(), hosts...), Found: h.found, Result: h.result}
		if explain {
			c.Explain = h.explain
		}
		if err := h.read(cmd.Context(), r, c, inputName(file)); err != nil {
			return err
		}
		if !a.jsonl {
			a.notice("%s, %s", count(h.orders, "order"), count(int64(h.broken), "broken directive"))
		}
		return nil
	}
	return cmd
}

func count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.FormatInt(n, 10) + " " + what
}

// harvest prints the orders of one text as they are found.
type harvest struct {
	out    *bufio.Writer
	jsonl  bool
	line   []byte // reused
	orders int64
	broken int
}

// read reads r to its end in pieces. What a piece completes is written out before the
// next one is asked for, so that a text that grows slowly is followed.
func (h *harvest) read(ctx context.Context, r io.Reader, c harvester.Config, name string) error {
	s := harvester.New(c)
	b := make([]byte, harvestPiece)
	for {
		n, err := r.Read(b)
		if _, err := s.Write(b[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := h.flush(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	s.Close(true)
	h.broken = s.Broken()
	return h.flush()
}

// flush writes out what was found. An error of the output stays until here.
func (h *harvest) flush() error {
	if err := h.out.Flush(); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

func (h *harvest) found(d harvester.Directive) {
	h.orders++
	h.result(d)
}

// result prints a [RESULT {…}], or a directive.
func (h *harvest) result(d harvester.Directive) {
	if h.jsonl {
		h.line = appendDirective(h.line[:0], d)
	} else {
		h.line = fmt.Appendf(h.line[:0], "%-15s  %-8s ", span(d.Start, d.End), d.Form)
		if d.Op != "" {
			h.line = append(append(h.line, clean(d.Op)...), ' ')
		}
		h.line = append(h.line, clean(string(d.Params))...)
		if d.Key != "" {
			h.line = append(h.line, "  #"+d.Key...)
		}
		if d.ID != "" {
			h.line = append(h.line, "  id "+clean(d.ID)...)
		}
	}
	h.out.Write(append(h.line, '\n')) // an error is kept by out and returned by flush
}

func (h *harvest) explain(f harvester.Finding) {
	if h.jsonl {
		h.line = fmt.Appendf(h.line[:0], `{"rule":%d,"what":`, f.Rule)
		h.line = appendString(h.line, f.What)
		h.line = fmt.Appendf(h.line, `,"start":%d,"end":%d}`, f.Start, f.End)
	} else {
		h.line = fmt.Appendf(h.line[:0], "%-15s  rule %-3d %s", span(f.Start, f.End), f.Rule, clean(f.What))
	}
	h.out.Write(append(h.line, '\n'))
}

func span(start, end int64) string { return fmt.Sprintf("%d-%d", start, end) }

// appendDirective writes d as one line of JSON. Its members stand in this order, and
// the parameters byte for byte, line breaks aside: between tokens, the only place
// where valid JSON has them, they are space.
func appendDirective(b []byte, d harvester.Directive) []byte {
	b = append(b, `{"form":`...)
	b = appendString(b, string(d.Form))
	if d.Op != "" {
		b = append(b, `,"op":`...)
		b = appendString(b, d.Op)
	}
	b = append(b, `,"params":`...)
	from := len(b)
	b = append(b, d.Params...)
	for i := range b[from:] {
		if c := &b[from+i]; *c == '\n' || *c == '\r' {
			*c = ' '
		}
	}
	if d.Key != "" {
		b = append(b, `,"key":`...)
		b = appendString(b, d.Key)
	}
	if d.ID != "" {
		b = append(b, `,"id":`...)
		b = appendString(b, d.ID)
	}
	return fmt.Appendf(b, `,"start":%d,"end":%d}`, d.Start, d.End)
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	q, err := jsontext.AppendQuote(b, bytes.ToValidUTF8([]byte(s), []byte("\uFFFD")))
	if err != nil {
		panic(err) // only invalid UTF-8 is an error
	}
	return q
}
