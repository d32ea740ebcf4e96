package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
)

// Problem is a fault as RFC 9457 problem details: the fault's own members beside
// the standard ones. Detail and message are the same text, for readers who know only
// one of the two forms.
type Problem struct {
	Type      string         `json:"type" enum:"about:blank"`
	Title     string         `json:"title" doc:"The text of the HTTP status."`
	Status    int            `json:"status" doc:"The HTTP status."`
	Detail    string         `json:"detail" doc:"What is wrong and what would be right; the same as message."`
	Code      ops.Code       `json:"code" doc:"The fault's name for programs."`
	Message   string         `json:"message" doc:"What is wrong and what would be right."`
	Retryable bool           `json:"retryable" doc:"Whether the same request may succeed later."`
	Details   map[string]any `json:"details,omitempty" doc:"What belongs to the code, for programs."`
}

func newProblem(f *ops.Fault) Problem {
	status := f.Code.Info().Status
	return Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: f.Message,
		Code: f.Code, Message: f.Message, Retryable: f.Retryable, Details: f.Details,
	}
}

// Error implements error, as huma asks of what a handler returns.
func (p *Problem) Error() string { return string(p.Code) + ": " + p.Message }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return problemJSON }

// GetHeaders implements huma.HeadersError: a caller without a valid token is told
// which kind is wanted (RFC 9110, 11.6.1), one that is to come back is told when (10.2.3).
func (p *Problem) GetHeaders() http.Header {
	h := make(http.Header)
	if p.Code == ops.Unauthenticated {
		h.Set("WWW-Authenticate", `Bearer realm="inband"`)
	}
	if s := p.retryAfter(); s > 0 && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable) {
		h.Set("Retry-After", strconv.FormatInt(s, 10))
	}
	return h
}

// retryAfter is after how many seconds a request may be made again: what the fault says
// itself, or a second for what passes soon. 0 means that waiting does not help, as it does
// not for a replay, or that nobody knows how long.
func (p *Problem) retryAfter() int64 {
	switch s := p.Details["retry_after"].(type) {
	case int64:
		return s
	case float64: // out of the journal
		return int64(s)
	}
	switch p.Code {
	case ops.Busy, ops.Unavailable, ops.NotStarted:
		if p.Retryable {
			return 1
		}
	}
	return 0
}

const problemJSON = "application/problem+json"

// huma makes its errors through these two variables of its own, for every API in the
// process. The first is also where it learns the shape for the OpenAPI document.
func init() {
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		p := newProblem(humaFault(status, message, errs))
		return &p
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, message string, errs ...error) huma.StatusError {
		return shaped(ctx.Operation(), humaFault(status, message, errs))
	}
}

// humaFault says in our words what huma has found wrong with a request that the
// guard let pass: a type, a length, a member that is missing. The value itself,
// which huma offers too, is left out.
func humaFault(status int, message string, errs []error) *ops.Fault {
	if status >= 500 {
		return service.AsFault(errors.New(message))
	}
	for _, err := range errs {
		var d *huma.ErrorDetail
		if !errors.As(err, &d) {
			continue
		}
		in, name, _ := strings.Cut(d.Location, ".")
		if in == "body" {
			pointer := ""
			if name != "" {
				pointer = "/" + strings.NewReplacer(".", "/", "[", "/", "]", "").Replace(name)
			}
			return ops.Faultf(ops.BadRequest, "the body%s: %s", at(pointer), d.Message).With("pointer", pointer)
		}
		return ops.Faultf(ops.BadRequest, "the %s parameter %s: %s", in, name, d.Message).With("parameter", name)
	}
	return ops.Faultf(ops.BadRequest, "%s", message)
}

func at(pointer string) string {
	if pointer == "" {
		return ""
	}
	return " at " + pointer
}

// shaped returns f in the form that op answers with.
func shaped(op *huma.Operation, f *ops.Fault) huma.StatusError {
	if op != nil && isEnvelope(op) && f.Code == ops.BadRequest && f.Details["final"] == nil && f.Details["pointer"] != nil {
		f = f.With("final", true) // what an envelope holds is the same the next time
	}
	if op != nil && op.OperationID == execOperation {
		return newExecProblem(f, service.Ticket{})
	}
	p := newProblem(f)
	return &p
}

// problem returns err as what an outsider may see of it, and keeps the rest for the
// log.
func (s *Server) problem(ctx context.Context, err error) error {
	p := newProblem(s.fault(ctx, err))
	return &p
}

// fault is service.AsFault with the particulars of an internal error logged.
func (s *Server) fault(ctx context.Context, err error) *ops.Fault {
	f := service.AsFault(err)
	var said *ops.Fault
	if !errors.As(err, &said) && (f.Code == ops.Internal || f.Code == ops.Unavailable) && ctx.Err() == nil {
		s.log.LogAttrs(ctx, slog.LevelError, "request not served", slog.String("request", requestID(ctx)), slog.Any("err", err))
	}
	return f
}

// writeFault answers a request that has no huma context yet, or no longer.
func writeFault(w http.ResponseWriter, f *ops.Fault) { writeProblem(w, ptr(newProblem(f))) }

func writeProblem(w http.ResponseWriter, p huma.StatusError) {
	if h, ok := p.(huma.HeadersError); ok {
		for name, values := range h.GetHeaders() {
			w.Header()[name] = values
		}
	}
	b, err := json.Marshal(p)
	if err != nil { // details that are no JSON: a mistake of ours
		b, _ = json.Marshal(newProblem(ops.Faultf(ops.Internal, "internal error; the gateway's log has the particulars")))
	}
	w.Header().Set("Content-Type", problemJSON)
	w.WriteHeader(p.GetStatus())
	w.Write(append(b, '\n'))
}

func ptr[T any](v T) *T { return &v }

// shown returns a name that a caller sent if it can be repeated: short, plain, and
// not a secret that has strayed.
func shown(name string) string {
	const most = 48
	if name == "" || len(name) > most || strings.Contains(strings.ToLower(name), access.TokenPrefix) {
		return "…"
	}
	for _, c := range []byte(name) {
		if !(c == '_' || c == '-' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return "…"
		}
	}
	return name
}
