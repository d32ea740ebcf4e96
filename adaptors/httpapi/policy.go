package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// PolicyShown is the answer of GET /v1/policy.
type PolicyShown struct {
	Policy string `json:"policy" doc:"The policy file, in Cedar, as it was read."`
	Digest string `json:"digest" doc:"sha256: and the digest of the file."`
	Rules  int    `json:"rules" doc:"How many policies it holds."`
}

func (s *Server) policyRoute() {
	type shown struct{ Body PolicyShown }
	huma.Register(s.api, huma.Operation{
		OperationID: "policy", Method: http.MethodGet, Path: "/v1/policy", Summary: "The policy in force",
		Description: "For operators.", Security: withToken,
	}, func(ctx context.Context, _ *none) (*shown, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		p := s.door.Policy()
		return &shown{PolicyShown{Policy: p.Text(), Digest: p.Digest(), Rules: p.Rules()}}, nil
	})
}
