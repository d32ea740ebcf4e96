package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
)

// execOperation is the OpenAPI id of POST /exec, whose faults have members of their
// own.
const execOperation = "exec"

// Object is a JSON object that is carried as it is written.
type Object struct{ json.RawMessage }

// Schema implements huma.SchemaProvider.
func (Object) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

// CallObject is the body of POST /exec, and the call object of the directive grammar.
type CallObject struct {
	Op     ops.OpName `json:"op" minLength:"1" maxLength:"128" doc:"The name of an op, or an alias."`
	Params Object     `json:"params,omitempty" doc:"The op's parameters; absent means {}."`
	Key    string     `json:"key,omitempty" minLength:"1" maxLength:"128" doc:"The key of the envelope that asked for this. It must be the key of a wake of the caller that is open, in whichever thread; the call then is one of that wake."`
	ID     string     `json:"id,omitempty" minLength:"1" maxLength:"128" doc:"The idempotency key, the same as the header Idempotency-Key."`
}

// maxIdempotencyKey is the longest idempotency key of the API, in bytes.
const maxIdempotencyKey = 128

// CallDone is the answer of POST /exec for a call that succeeded.
type CallDone struct {
	OK       bool            `json:"ok" enum:"true"`
	Call     ops.CallID      `json:"call"`
	Op       ops.OpName      `json:"op" doc:"The op, its alias resolved."`
	State    ops.State       `json:"state" enum:"succeeded"`
	Result   json.RawMessage `json:"result" doc:"What the op returned, any JSON value."`
	Replayed bool            `json:"replayed" doc:"Whether this is the stored outcome of an earlier call with the same key; then nothing ran."`
	Withheld bool            `json:"withheld,omitempty" doc:"Whether the policy keeps what the op said from the caller."`
}

// CallTaken is the answer of POST /exec for a call whose outcome is not waited for.
type CallTaken struct {
	OK    bool       `json:"ok" enum:"true"`
	Call  ops.CallID `json:"call"`
	Op    ops.OpName `json:"op"`
	State ops.State  `json:"state" doc:"Parked means that it waits for somebody's approval; nothing has run."`

	Approval service.ApprovalID `json:"approval,omitempty" doc:"What a parked call waits for."`
	Replayed bool               `json:"replayed,omitempty" doc:"Whether this is the parked call of an earlier request with the same key."`
}

// ExecProblem is a fault of POST /exec.
type ExecProblem struct {
	Problem
	OK       bool       `json:"ok" enum:"false"`
	Call     ops.CallID `json:"call,omitempty" doc:"The call, when there is one."`
	State    ops.State  `json:"state,omitempty"`
	Replayed bool       `json:"replayed"`
	Fault    *ops.Fault `json:"fault"`
}

func newExecProblem(f *ops.Fault, t service.Ticket) *ExecProblem {
	return &ExecProblem{Problem: newProblem(f), Call: t.Call, State: t.State, Replayed: t.Replayed, Fault: f}
}

type execInput struct {
	IdempotencyKey string `header:"Idempotency-Key" minLength:"1" maxLength:"128" doc:"The same key with the same op and parameters runs once."`
	Prefer         string `header:"Prefer" doc:"respond-async (RFC 7240): answer 202 with the call's address instead of waiting."`
	Body           CallObject
}

type execOutput struct {
	Status   int
	Location string `header:"Location"`
	Applied  string `header:"Preference-Applied"`
	Body     any
}

func (s *Server) execRoute() {
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: execOperation, Method: http.MethodPost, Path: "/exec", Summary: "Run one op",
		Description: "Waits for the outcome. A caller that hangs up cancels its call, unless it asked for `respond-async`. " +
			"One that has waited for the longest time is answered as if it had. " +
			"A call that needs an approval is answered with 202 at once and names it.",
		Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
		Responses: map[string]*huma.Response{
			"200": response[CallDone](schemas, "The call succeeded"),
			"202": response[CallTaken](schemas, "The call goes on"),
			"default": {Description: "The call failed, or there was none", Content: map[string]*huma.MediaType{
				problemJSON: {Schema: schemaOf[ExecProblem](schemas)},
			}},
		},
	}, s.exec)
}

func (s *Server) exec(ctx context.Context, in *execInput) (*execOutput, error) {
	by := caller(ctx)
	key, f := idempotencyKey(in.IdempotencyKey, in.Body.ID)
	if f != nil {
		return nil, newExecProblem(f, service.Ticket{})
	}
	params := in.Body.Params.RawMessage
	if params == nil {
		params = json.RawMessage("{}")
	}
	call, err := s.replies.Weigh(ctx, ops.Call{
		Op: in.Body.Op, By: by, Key: key, Params: params, From: ops.Origin{Source: "api/" + requestID(ctx)},
	}, in.Body.Key)
	if err == nil && in.Body.Key != "" && call.Evidence.Key != ops.KeyGood {
		err = ops.Faultf(ops.WrongKey, "the key is not, or no longer, the one of a wake of yours; nothing ran").With("pointer", "/key")
	}
	if err != nil {
		return nil, newExecProblem(s.fault(ctx, err), service.Ticket{})
	}
	t, err := s.door.Submit(ctx, call)
	if err != nil {
		return nil, newExecProblem(s.fault(ctx, err), t)
	}
	if t.Outcome != nil {
		return s.settled(by, t)
	}
	if async := prefersAsync(in.Prefer); async || t.State == ops.Parked {
		out := taken(t)
		if !async { // it may be hours until somebody decides
			return out, nil
		}
		out.Applied = "respond-async"
		return out, nil
	}
	wait, cancel := context.WithTimeout(ctx, s.limits.Wait)
	defer cancel()
	o, err := s.door.Await(wait, t.Call)
	switch {
	case err == nil:
		t.State, t.Outcome = o.State, &o
		return s.settled(by, t)
	case ctx.Err() != nil:
		s.hungUp(ctx, by, t.Call)
		return nil, newExecProblem(s.fault(ctx, err), t)
	case wait.Err() != nil:
		return taken(t), nil
	}
	return nil, newExecProblem(s.fault(ctx, err), t)
}

func idempotencyKey(header, id string) (string, *ops.Fault) {
	if header != "" && id != "" && header != id {
		return "", ops.Faultf(ops.BadRequest, "the header Idempotency-Key and the member id differ; send one of them").With("pointer", "/id")
	}
	if header != "" {
		id = header
	}
	if len(id) > maxIdempotencyKey || !plain(id) {
		return "", ops.Faultf(ops.BadRequest, "the idempotency key is longer than %d bytes or has control characters", maxIdempotencyKey)
	}
	if id == "" {
		return "", nil
	}
	// Directives have keys of their own, which name a place in a room; with the
	// prefix no caller's key can be one of them.
	return "api/" + id, nil
}

// settled is the answer to by for a ticket with its outcome.
func (s *Server) settled(by ops.Identity, t service.Ticket) (*execOutput, error) {
	o, withheld := service.Told(s.door.Policy(), by, *t.Outcome)
	switch {
	case o.Fault != nil:
		return nil, newExecProblem(o.Fault, t)
	case o.State == ops.Accepted:
		return taken(t), nil
	default:
		var value json.RawMessage
		if o.Result != nil {
			value = o.Result.Value
		}
		return &execOutput{Status: http.StatusOK, Body: CallDone{
			OK: true, Call: t.Call, Op: t.Op, State: o.State, Result: value, Replayed: t.Replayed, Withheld: withheld,
		}}, nil
	}
}

func taken(t service.Ticket) *execOutput {
	return &execOutput{
		Status: http.StatusAccepted, Location: "/v1/calls/" + string(t.Call),
		Body: CallTaken{OK: true, Call: t.Call, Op: t.Op, State: t.State, Approval: t.Approval, Replayed: t.Replayed},
	}
}

// hangUpWait bounds the cancelling of a call whose caller has gone.
const hangUpWait = 10 * time.Second

// hungUp cancels the call of a caller that has hung up. When it is we who cut the
// connection, because the gateway stops, the call is the door's to finish.
func (s *Server) hungUp(ctx context.Context, by ops.Identity, id ops.CallID) {
	if s.isStopping() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpWait)
	defer cancel()
	state, err := s.door.Cancel(ctx, by, id)
	level := slog.LevelDebug
	if err != nil && service.AsFault(err).Code != ops.Conflict { // Conflict: it was quicker
		level = slog.LevelWarn
	}
	s.log.LogAttrs(ctx, level, "the caller hung up", slog.String("call", string(id)), slog.String("state", string(state)), slog.Any("err", err))
}

// prefersAsync reports whether a Prefer header asks for respond-async (RFC 7240, 2
// and 4.1).
func prefersAsync(prefer string) bool {
	for p := range strings.SplitSeq(prefer, ",") {
		token, _, _ := strings.Cut(p, ";")
		if strings.EqualFold(strings.TrimSpace(token), "respond-async") {
			return true
		}
	}
	return false
}
