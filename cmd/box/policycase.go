package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"inband/ops"
)

// policyCase is one case of a file.
type policyCase struct {
	ID      string       `json:"id"`
	Class   string       `json:"class"` // for people
	Inbound []caseText   `json:"inbound"`
	Key     string       `json:"key"`
	JobOps  []ops.OpName `json:"job_ops"`
	Reply   string       `json:"reply"`
	Op      ops.OpName   `json:"op"`
	Must    string       `json:"must"`

	n int // which one of the file it is, from 1
}

// caseText is a text that the agent was shown.
type caseText struct {
	From string `json:"from"`
	Text string `json:"text"`
}

// The verdicts on a case, and what else it may want.
const (
	verdictRun    = "run"
	verdictPark   = "park"
	verdictRefuse = "refuse"
	verdictIgnore = "ignore"
	wantNotRun    = "not run"
)

// caseReader reads the cases of a file one after the other, so that a long file takes
// no more memory than a short one.
type caseReader struct {
	name  string
	known func(ops.OpName) (ops.OpName, bool)
	room  *io.LimitedReader
	from  *jsontext.Decoder
	n     int
	ids   map[string]bool
}

func newCaseReader(name string, r io.Reader, known func(ops.OpName) (ops.OpName, bool)) *caseReader {
	room := &io.LimitedReader{R: r}
	return &caseReader{name: name, known: known, room: room, from: jsontext.NewDecoder(room), ids: make(map[string]bool)}
}

// next returns the next case, io.EOF behind the last one.
func (r *caseReader) next() (policyCase, error) {
	r.room.N = maxCase
	if r.n == 0 {
		if kind := r.from.PeekKind(); kind != '[' {
			_, err := r.from.ReadToken()
			return policyCase{}, r.wrong(cmp.Or(err, errors.New("want an array of cases")))
		}
		if _, err := r.from.ReadToken(); err != nil {
			return policyCase{}, r.wrong(err)
		}
	}
	if r.from.PeekKind() == ']' {
		if _, err := r.from.ReadToken(); err != nil {
			return policyCase{}, r.wrong(err)
		}
		if _, err := r.from.ReadToken(); !errors.Is(err, io.EOF) {
			return policyCase{}, r.wrong(errors.New("something stands behind the array of cases"))
		}
		return policyCase{}, io.EOF
	}
	r.n++
	raw, err := r.from.ReadValue()
	if err != nil && r.room.N <= 0 {
		err = fmt.Errorf("longer than %d bytes", maxCase)
	}
	if err != nil {
		return policyCase{}, r.wrong(err)
	}
	c := policyCase{n: r.n}
	if err := json.Unmarshal(raw, &c, json.RejectUnknownMembers(true)); err != nil {
		return policyCase{}, r.wrong(plainJSON(err))
	}
	if err := r.check(&c); err != nil {
		return policyCase{}, r.wrong(err)
	}
	return c, nil
}

// check refuses a case that says nothing, or not clearly. It resolves the aliases in c.
func (r *caseReader) check(c *policyCase) error {
	switch {
	case c.ID == "" || len(c.ID) > maxCaseID:
		return fmt.Errorf("id: want 1 to %d bytes", maxCaseID)
	case r.ids[c.ID]:
		return fmt.Errorf("id: %q stands twice", c.ID)
	case len(c.Inbound) > maxInbound:
		return fmt.Errorf("inbound: %d texts; want at most %d", len(c.Inbound), maxInbound)
	case !slices.Contains([]string{"", verdictRun, verdictPark, verdictRefuse, verdictIgnore, wantNotRun}, c.Must):
		return fmt.Errorf("must: %q; want run, park, refuse, ignore or not run", shorten(c.Must, 40))
	}
	r.ids[c.ID] = true
	for i, in := range c.Inbound {
		switch in.From {
		case "untrusted", "operator", "envelope", "self":
		default:
			return fmt.Errorf("inbound[%d].from: %q; want untrusted, operator, envelope or self", i, shorten(in.From, 40))
		}
	}
	for i, name := range c.JobOps {
		op, ok := r.known(name)
		if !ok {
			return fmt.Errorf("job_ops[%d]: there is no op %q", i, shorten(string(name), 40))
		}
		c.JobOps[i] = op
	}
	if c.Op != "" {
		op, ok := r.known(c.Op)
		if !ok {
			return fmt.Errorf("op: there is no op %q", shorten(string(c.Op), 40))
		}
		c.Op = op
	}
	return nil
}

// wrong says where err is.
func (r *caseReader) wrong(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the file ends too early")
	}
	where := "the file"
	if r.n > 0 {
		where = fmt.Sprintf("case %d", r.n)
	}
	return &exitError{code: ops.ExitUsage, err: fmt.Errorf("%s: %s: %w", r.name, where, err), hint: "box policy test --help has the form of a case"}
}

// plainJSON is what is wrong with a document, without the names of this program's types.
func plainJSON(err error) error {
	var semantic *json.SemanticError
	if !errors.As(err, &semantic) {
		return err
	}
	where := strings.TrimPrefix(string(semantic.JSONPointer), "/")
	if errors.Is(err, json.ErrUnknownName) {
		return fmt.Errorf("there is no member %q in a case", shorten(where, 40))
	}
	if where == "" {
		return errors.New("want an object")
	}
	return fmt.Errorf("%s: a value of the wrong type", shorten(where, 80))
}
