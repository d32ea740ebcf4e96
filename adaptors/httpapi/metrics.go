package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
)

// metricsRoute is what a Prometheus server scrapes, with the token of an identity that
// may manage.
func (s *Server) metricsRoute() {
	type output struct{ Body func(huma.Context) }
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: "metrics", Method: http.MethodGet, Path: "/metrics", Summary: "Counts and gauges, for Prometheus",
		Description: "For operators. The format is what the Accept header asks for, text without one.", Security: withToken,
		Responses: map[string]*huma.Response{
			"200":     {Description: "The metrics", Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}}},
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, _ *none) (*output, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		page, err := s.metrics(ctx)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &output{func(hc huma.Context) {
			r, w := humachi.Unwrap(hc)
			page.ServeHTTP(w, r)
		}}, nil
	})
}
