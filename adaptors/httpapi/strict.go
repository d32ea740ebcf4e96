package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-json-experiment/json/jsontext"

	"inband/ops"
)

// guard is what every request passes between the router and huma: room, identity,
// query, headers, body, in this order; bytes of any length are read later, while they
// come. What it knows of a route it reads from the
// operation that the OpenAPI document shows, so the two cannot differ.
func (s *Server) guard(hc huma.Context, next func(huma.Context)) {
	r, w := humachi.Unwrap(hc)
	op := hc.Operation()
	ctx := r.Context()
	envelope := isEnvelope(op)
	fail := func(err error) {
		if r.ProtoMajor == 1 && r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // the rest of the body is not worth reading
		}
		writeProblem(w, shaped(op, s.fault(ctx, err)))
	}
	// never is fail for what stays wrong however often it is sent.
	never := func(f *ops.Fault) {
		if envelope {
			f = f.With("final", true)
		}
		fail(f)
	}

	name := laneOf(op)
	if name == strangersLane {
		if f := s.unknown.admit(r.RemoteAddr, time.Now()); f != nil {
			fail(f)
			return
		}
	}
	switch l := s.lanes[name]; {
	case l != nil:
		leave, f := l.enter()
		if f != nil {
			fail(f)
			return
		}
		defer leave()
	case len(op.Security) > 0:
		select {
		case s.requests <- struct{}{}:
			defer func() { <-s.requests }()
		default:
			fail(ops.Faultf(ops.Busy, "%d requests are being served; try again later", cap(s.requests)))
			return
		}
	}
	if len(op.Security) > 0 {
		by, err := s.authenticate(r)
		switch f := (*ops.Fault)(nil); {
		case err == nil:
		case forWorkers(op) && errors.As(err, &f) && f.Code == ops.Unauthenticated:
			s.refused.Add(1)
			never(f)
			return
		default:
			fail(err)
			return
		}
		if open := cap(s.requests) - cap(s.requests)/8; name == "" && by.Role != ops.Operator && len(s.requests) > open {
			// The last places are the operators', who could make room.
			fail(ops.Faultf(ops.Busy, "%d requests are being served; try again later", open))
			return
		}
		if forWorkers(op) && by.Role != ops.Worker && by.Role != ops.Verifier {
			never(ops.Faultf(ops.NotPermitted, "%s is no worker and no verifier; this route is for the token of a boot", by))
			return
		}
		hc = huma.WithValue(hc, identityKey{}, by)
		if a, ok := w.(*answer); ok {
			a.by = by
		}
	}
	hook := op.OperationID == hookOperation
	if f := checkQuery(op, r.URL.RawQuery); f != nil {
		never(f)
		return
	}
	if f := checkHeaders(op, r.Header); f != nil {
		never(f)
		return
	}
	if takesBytes(op) {
		if f := checkBytes(r); f != nil {
			never(f)
			return
		}
		body := &arrival{r: r.Body, rc: http.NewResponseController(w), within: s.limits.Read}
		defer body.leave()
		next(huma.WithValue(hc, arrivalKey{}, body))
		return
	}
	body, err := s.readBody(w, r, op)
	if f := (*ops.Fault)(nil); errors.As(err, &f) && (f.Code != ops.BadRequest || r.ContentLength == 0) {
		never(f)
		return
	}
	if err != nil { // it did not arrive whole, and may the next time
		fail(err)
		return
	}
	if !hook && (len(body) > 0 || op.RequestBody != nil) { // of an event the bytes count, and its sender is not proved yet
		if f := checkJSON(body, s.api.OpenAPI().Components.Schemas, bodySchema(op)); f != nil {
			never(f)
			return
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	// The request has arrived. From here the connection is watched for a hang-up only,
	// and a deadline for reading would look like one.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		fail(err)
		return
	}
	next(hc)
}

type identityKey struct{}

// caller is who the guard has found behind a request.
func caller(ctx context.Context) ops.Identity {
	by, _ := ctx.Value(identityKey{}).(ops.Identity)
	return by
}

// authenticate returns the identity that the request's one bearer token proves
// (RFC 6750, 2.1; tokens in bodies and queries are not looked for).
func (s *Server) authenticate(r *http.Request) (ops.Identity, error) {
	values := r.Header.Values("Authorization")
	token := ""
	if len(values) == 1 {
		if scheme, rest, ok := strings.Cut(values[0], " "); ok && strings.EqualFold(scheme, "Bearer") {
			token = strings.TrimLeft(rest, " ")
		}
	}
	return s.identities.Authenticate(r.Context(), token)
}

// checkQuery admits each query parameter that op declares, once and with a value.
func checkQuery(op *huma.Operation, raw string) *ops.Fault {
	if raw == "" {
		return nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return ops.Faultf(ops.BadRequest, "the query is not well formed")
	}
	var known []string
	for _, p := range op.Parameters {
		if p.In == "query" {
			known = append(known, p.Name)
		}
	}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			want := "this route takes none"
			if len(known) > 0 {
				want = "this route takes " + strings.Join(known, ", ")
			}
			return ops.Faultf(ops.BadRequest, "the query parameter %s is unknown; %s", shown(name), want).With("parameter", shown(name))
		case len(v) > 1:
			return ops.Faultf(ops.BadRequest, "the query parameter %s is given %d times", name, len(v)).With("parameter", name)
		case v[0] == "" || !plain(v[0]):
			return ops.Faultf(ops.BadRequest, "the query parameter %s has no value, or one with control characters", name).With("parameter", name)
		}
	}
	return nil
}

// checkHeaders admits each header that op declares once; of a list, all its lines
// are one value (RFC 9110, 5.3).
func checkHeaders(op *huma.Operation, h http.Header) *ops.Fault {
	for _, p := range op.Parameters {
		if p.In != "header" {
			continue
		}
		v := h.Values(p.Name)
		if p.Name == "Prefer" && len(v) > 1 {
			h.Set(p.Name, strings.Join(v, ", "))
			continue
		}
		switch {
		case len(v) > 1:
			return ops.Faultf(ops.BadRequest, "the header %s is given %d times", p.Name, len(v)).With("header", p.Name)
		case len(v) == 1 && (v[0] == "" || !plain(v[0])):
			return ops.Faultf(ops.BadRequest, "the header %s has no value, or one with control characters", p.Name).With("header", p.Name)
		}
	}
	return nil
}

// plain reports whether s is UTF-8 without control characters.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// readBody returns the whole body, of at most the bytes that op allows. A route
// without a declared body takes none, or {} when its method is one that carries
// bodies.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, op *huma.Operation) ([]byte, error) {
	if r.ContentLength == 0 {
		if op.RequestBody != nil {
			return nil, ops.Faultf(ops.BadRequest, "the body is missing; send a JSON object")
		}
		return nil, nil
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil, ops.Faultf(ops.BadRequest, "this route takes no body")
	}
	if f := checkMediaType(r.Header); f != nil {
		return nil, f
	}
	most := s.limits.Body
	if op.RequestBody != nil {
		most = op.MaxBodyBytes - 1 // huma refuses a body of just MaxBodyBytes
	}
	tooLarge := ops.Faultf(ops.TooLarge, "the body is longer than %d bytes", most).With("max", most)
	if r.ContentLength > most {
		return nil, tooLarge
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(r.Body, most+1))
	switch {
	case n > most:
		return nil, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, ops.Faultf(ops.BadRequest, "the body did not arrive within %v", s.limits.Read)
	case err != nil:
		return nil, ops.Faultf(ops.BadRequest, "the body ended before its declared length")
	case n == 0 && op.RequestBody != nil:
		return nil, ops.Faultf(ops.BadRequest, "the body is missing; send a JSON object")
	}
	return buf.Bytes(), nil
}

func checkMediaType(h http.Header) *ops.Fault {
	if v := h.Values("Content-Encoding"); len(v) > 1 || len(v) == 1 && !strings.EqualFold(v[0], "identity") {
		return ops.Faultf(ops.MediaType, "the body is encoded; send it as it is, without Content-Encoding")
	}
	want := ops.Faultf(ops.MediaType, "the body must be declared as Content-Type: application/json, once")
	v := h.Values("Content-Type")
	if len(v) != 1 {
		return want
	}
	kind, params, err := mime.ParseMediaType(v[0])
	if err != nil || kind != "application/json" {
		return want
	}
	for name, value := range params {
		if name != "charset" || !strings.EqualFold(value, "utf-8") {
			return want
		}
	}
	return nil
}

func bodySchema(op *huma.Operation) *huma.Schema {
	if op.RequestBody == nil {
		return &huma.Schema{Type: huma.TypeObject}
	}
	return op.RequestBody.Content["application/json"].Schema
}

// checkJSON reports what is wrong with data as one strict JSON object: RFC 8259
// syntax in UTF-8, no name twice at any depth, no name that schema does not know
// exactly where schema lists any, no null where it does not allow one, nothing
// behind the end. What types and lengths fit is huma's to say.
func checkJSON(data []byte, schemas huma.Registry, schema *huma.Schema) *ops.Fault {
	c := checker{d: jsontext.NewDecoder(bytes.NewBuffer(data)), data: data, schemas: schemas}
	for schema.Ref != "" {
		schema = schemas.SchemaFromRef(schema.Ref)
	}
	if k := c.d.PeekKind(); k != '{' && k != 0 {
		return c.fault("want one JSON object")
	}
	if f := c.value(schema); f != nil {
		return f
	}
	if _, err := c.d.ReadToken(); err != io.EOF {
		return c.fault("there is something behind its end")
	}
	return nil
}

type checker struct {
	d       *jsontext.Decoder
	data    []byte
	schemas huma.Registry
}

// value checks the next value against s. It goes no deeper than s lists members; the
// decoder checks what lies below.
func (c *checker) value(s *huma.Schema) *ops.Fault {
	for s != nil && s.Ref != "" {
		s = c.schemas.SchemaFromRef(s.Ref)
	}
	switch kind := c.d.PeekKind(); {
	case s == nil:
	case kind == 'n' && s.Type != "" && !s.Nullable:
		if err := c.d.SkipValue(); err != nil {
			return c.syntax(err)
		}
		return c.fault("null stands where a value belongs; leave the member out")
	case kind == '{' && s.Type == huma.TypeObject && s.AdditionalProperties != true:
		return c.object(s)
	case kind == '[' && s.Items != nil:
		return c.array(s)
	}
	if err := c.d.SkipValue(); err != nil {
		return c.syntax(err)
	}
	return nil
}

func (c *checker) object(s *huma.Schema) *ops.Fault {
	if _, err := c.d.ReadToken(); err != nil {
		return c.syntax(err)
	}
	for c.d.PeekKind() == '"' {
		token, err := c.d.ReadToken()
		if err != nil {
			return c.syntax(err)
		}
		name := token.String()
		member, ok := s.Properties[name]
		if !ok {
			return c.fault(unknownMember(name, s.Properties))
		}
		if f := c.value(member); f != nil {
			return f
		}
	}
	if _, err := c.d.ReadToken(); err != nil {
		return c.syntax(err)
	}
	return nil
}

func (c *checker) array(s *huma.Schema) *ops.Fault {
	if _, err := c.d.ReadToken(); err != nil {
		return c.syntax(err)
	}
	for k := c.d.PeekKind(); k != ']' && k != 0; k = c.d.PeekKind() {
		if f := c.value(s.Items); f != nil {
			return f
		}
	}
	if _, err := c.d.ReadToken(); err != nil {
		return c.syntax(err)
	}
	return nil
}

func unknownMember(name string, known map[string]*huma.Schema) string {
	names := make([]string, 0, len(known))
	for k := range known {
		if strings.EqualFold(k, name) {
			return fmt.Sprintf("the name is written %q", k)
		}
		names = append(names, k)
	}
	if len(names) == 0 {
		return "no member is known here"
	}
	slices.Sort(names)
	return "the name is unknown; known are " + strings.Join(names, ", ")
}

// syntax returns the decoder's error in words that repeat nothing of the input.
func (c *checker) syntax(err error) *ops.Fault {
	what := "this is not JSON"
	var s *jsontext.SyntacticError
	switch {
	case errors.As(err, &s) && errors.Is(s.Err, jsontext.ErrDuplicateName):
		what = "the name occurs twice"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		what = "it ends too early"
	case bytes.HasPrefix(c.data, []byte("\xEF\xBB\xBF")):
		what = "it begins with a byte order mark; JSON has none"
	case !utf8.Valid(c.data):
		what = "it is not valid UTF-8"
	}
	if s != nil {
		return strictFault(what, s.JSONPointer, s.ByteOffset)
	}
	return c.fault(what)
}

func (c *checker) fault(what string) *ops.Fault {
	return strictFault(what, c.d.StackPointer(), c.d.InputOffset())
}

func strictFault(what string, p jsontext.Pointer, offset int64) *ops.Fault {
	pointer := shownPointer(p)
	return ops.Faultf(ops.BadRequest, "the body%s (byte %d): %s", at(pointer), offset, what).
		With("pointer", pointer).With("byte", offset)
}

// shownPointer is p with the names left out that cannot be repeated.
func shownPointer(p jsontext.Pointer) string {
	const most = 8 // names
	var b strings.Builder
	n := 0
	for name := range p.Tokens() {
		if n++; n > most {
			b.WriteString("/…")
			break
		}
		b.WriteByte('/')
		b.WriteString(shown(name))
	}
	return b.String()
}
