package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/threads"
)

// Agents stops agents and starts them, and shows what they would be woken with.
type Agents interface {
	Hold(ctx context.Context, by ops.Identity, scope string) (threads.Holding, error)
	Release(ctx context.Context, by ops.Identity, scope string) (threads.Holding, error)
	Preview(ctx context.Context, by ops.Identity, e threads.Errand) (threads.Preview, error)
}

// Scope is the body of POST /v1/stop and POST /v1/start.
type Scope struct {
	Thread string `json:"thread,omitempty" minLength:"1" maxLength:"64" doc:"What agents have ordered in this thread."`
	All    bool   `json:"all,omitempty" doc:"All agents, instead of thread."`
}

// HoldList is the answer of GET /v1/holds.
type HoldList struct {
	Holds []service.Hold `json:"holds"`
}

func (s Scope) name() (string, *ops.Fault) {
	if (s.Thread == "") != s.All {
		return "", ops.Faultf(ops.BadRequest, "want either thread or all")
	}
	if s.All {
		return threads.Everywhere, nil
	}
	if s.Thread == threads.Everywhere { // who means all says so
		return "", ops.Faultf(ops.NotFound, "there is no thread %q", s.Thread)
	}
	return s.Thread, nil
}

// holdRoutes stop what agents have ordered and start it again.
func (s *Server) holdRoutes() {
	type input struct{ Body Scope }
	type output struct{ Body threads.Holding }
	register := func(id, path, summary, description string, do func(context.Context, ops.Identity, string) (threads.Holding, error)) {
		huma.Register(s.api, huma.Operation{
			OperationID: id, Method: http.MethodPost, Path: path, Summary: summary, Description: description,
			Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
		}, func(ctx context.Context, in *input) (*output, error) {
			scope, fault := in.Body.name()
			if fault != nil {
				return nil, s.problem(ctx, fault)
			}
			h, err := do(ctx, caller(ctx), scope)
			if err != nil {
				return nil, s.problem(ctx, err)
			}
			return &output{h}, nil
		})
	}
	register("stop", "/v1/stop", "Stop what agents have ordered", "For operators. No call of an agent begins there and no agent is woken until it is started again; what runs goes on to its end.", s.agents.Hold)
	register("start", "/v1/start", "Start again what was stopped", "For operators. A thread that was stopped by itself is started by itself.", s.agents.Release)

	type list struct{ Body HoldList }
	huma.Register(s.api, huma.Operation{
		OperationID: "holds", Method: http.MethodGet, Path: "/v1/holds", Summary: "What is stopped", Description: "For operators.", Security: withToken,
	}, func(ctx context.Context, _ *none) (*list, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		holds, err := s.door.Holds(ctx)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &list{HoldList{append([]service.Hold{}, holds...)}}, nil
	})
}
