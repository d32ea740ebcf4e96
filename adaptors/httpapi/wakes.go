package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/threads"
	"inband/service/timers"
)

// Wakes reads wakes. The actions of box.exec are a closed list without them, so the API
// alone has these reads.
type Wakes interface {
	ListWakes(ctx context.Context, by ops.Identity, q service.Query) (timers.WakePage, error)
	ShowWake(ctx context.Context, by ops.Identity, id threads.WakeID) (timers.WakeShowing, error)
}

type wakesInput struct {
	Page
	Agent  string `query:"agent" maxLength:"64"`
	Thread string `query:"thread" maxLength:"64"`
	State  string `query:"state" maxLength:"32" enum:"held,open,ended,live" doc:"live is held or open."`
}

func (w wakesInput) query() service.Query {
	return service.Query{Limit: w.Limit, After: w.After, Filter: map[string]string{"agent": w.Agent, "thread": w.Thread, "state": w.State}}
}

// wakeRoutes are those of wakes.
func (s *Server) wakeRoutes() {
	type page struct{ Body timers.WakePage }
	huma.Register(s.api, huma.Operation{
		OperationID: "wakes", Method: http.MethodGet, Path: "/v1/wakes", Summary: "Wakes, newest first",
		Description: "An agent's own, and those of a bridge's agents; all of them for operators.", Security: withToken,
	}, func(ctx context.Context, in *wakesInput) (*page, error) {
		p, err := s.timers.ListWakes(ctx, caller(ctx), in.query())
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &page{p}, nil
	})
	type shown struct{ Body timers.WakeShowing }
	huma.Register(s.api, huma.Operation{
		OperationID: "wake", Method: http.MethodGet, Path: "/v1/wakes/{id}", Summary: "One wake, with its errand and what came of it", Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*shown, error) {
		w, err := s.timers.ShowWake(ctx, caller(ctx), threads.WakeID(in.ID))
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &shown{w}, nil
	})
}
