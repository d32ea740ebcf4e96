package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service/access"
)

// NewAgent is the body of POST /v1/agents.
type NewAgent struct {
	ID     ops.IdentityID   `json:"id" minLength:"1" maxLength:"64" doc:"a-z, 0-9, then also . _ -"`
	Role   ops.Role         `json:"role" enum:"agent,operator,bridge,worker,verifier"`
	Agents []ops.IdentityID `json:"agents,omitempty" nullable:"false" maxItems:"256" doc:"For a bridge: the agents that it hands in replies for."`
}

// AgentAdded is the answer. It and AgentRotated are the only places where a token is
// ever shown.
type AgentAdded struct {
	ID    ops.IdentityID `json:"id"`
	Role  ops.Role       `json:"role"`
	Token string         `json:"token" doc:"Shown once; the gateway keeps a hash."`
}

// AgentRotated is the answer of POST /v1/agents/{id}/rotate.
type AgentRotated struct {
	ID    ops.IdentityID `json:"id"`
	Token string         `json:"token" doc:"Shown once; the gateway keeps a hash."`
}

// AgentRevoked is the answer of POST /v1/agents/{id}/revoke.
type AgentRevoked struct {
	ID        ops.IdentityID `json:"id"`
	RevokedAt string         `json:"revoked_at" format:"date-time"`
}

// Enrolment is the body of POST /v1/agents/{id}/enrol and its answer.
type Enrolment struct {
	Agents []ops.IdentityID `json:"agents" nullable:"false" minItems:"1" maxItems:"256" doc:"Agents that the bridge hands in replies for, beside those before."`
}

func (s *Server) agentRoutes() {
	type addInput struct{ Body NewAgent }
	type added struct{ Body AgentAdded }
	huma.Register(s.api, huma.Operation{
		OperationID: "agents.add", Method: http.MethodPost, Path: "/v1/agents", Summary: "Make an identity and its token",
		Description: "For operators.", DefaultStatus: http.StatusCreated,
		Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *addInput) (*added, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		token, err := s.identities.Add(ctx, ops.Identity{ID: in.Body.ID, Role: in.Body.Role}, in.Body.Agents...)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &added{AgentAdded{ID: in.Body.ID, Role: in.Body.Role, Token: token}}, nil
	})

	type enrolInput struct {
		ID   string `path:"id" maxLength:"64"`
		Body Enrolment
	}
	type enrolled struct{ Body Enrolment }
	huma.Register(s.api, huma.Operation{
		OperationID: "agents.enrol", Method: http.MethodPost, Path: "/v1/agents/{id}/enrol", Summary: "Have a bridge hand in the replies of further agents",
		Description: "For operators.", Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *enrolInput) (*enrolled, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		if err := s.identities.Enrol(ctx, ops.IdentityID(in.ID), in.Body.Agents...); err != nil {
			return nil, s.problem(ctx, err)
		}
		return &enrolled{in.Body}, nil
	})

	type revoked struct{ Body AgentRevoked }
	huma.Register(s.api, huma.Operation{
		OperationID: "agents.revoke", Method: http.MethodPost, Path: "/v1/agents/{id}/revoke", Summary: "End an identity and its tokens for good",
		Description: "For operators. Its open streams end too.", Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*revoked, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		at, err := s.identities.Revoke(ctx, ops.IdentityID(in.ID))
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &revoked{AgentRevoked{ID: ops.IdentityID(in.ID), RevokedAt: ops.Stamp(at)}}, nil
	})
}

// rotateRoute gives an identity a new token.
func (s *Server) rotateRoute() {
	type rotated struct{ Body AgentRotated }
	huma.Register(s.api, huma.Operation{
		OperationID: "agents.rotate", Method: http.MethodPost, Path: "/v1/agents/{id}/rotate", Summary: "Give an identity a new token and end its others",
		Description: "For operators. Streams that were opened with the others end too.", Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*rotated, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		token, err := s.identities.Rotate(ctx, ops.IdentityID(in.ID))
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &rotated{AgentRotated{ID: ops.IdentityID(in.ID), Token: token}}, nil
	})
}

// manages refuses callers that may not manage the gateway.
func (s *Server) manages(ctx context.Context) error {
	by := caller(ctx)
	if d := s.door.Policy().Decide(access.Request{By: by, Action: access.Manage}); !d.Allowed {
		return s.problem(ctx, ops.Faultf(ops.NotPermitted, "%s may not do this: %s", by, d.Rule))
	}
	return nil
}
