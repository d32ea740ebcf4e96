package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/plane"
)

// Delegations does something with work that was handed over. It is made by the op
// swarm.spawn, and read under the names of its reads.
type Delegations interface {
	CancelDelegation(ctx context.Context, by ops.Identity, id string, c plane.CancelRequest) (plane.DelegationShowing, error)
	Resolve(ctx context.Context, by ops.Identity, id string, r plane.ResolveRequest) (plane.DelegationShowing, error)
	Retry(ctx context.Context, by ops.Identity, id string) (plane.DelegationShowing, error)
}

type delegationsInput struct {
	Page
	State          string `query:"state" maxLength:"32" enum:"OPEN,VERIFYING,EVIDENCE_MISSING,VERIFIER_UNAVAILABLE,COMPLETED,VERIFICATION_FAILED,CANCELLED,EXHAUSTED"`
	By             string `query:"by" maxLength:"64" doc:"Who ordered them."`
	Thread         string `query:"thread" maxLength:"64" doc:"Where they were ordered."`
	Implementation string `query:"implementation" maxLength:"64"`
}

func (d delegationsInput) query() service.Query {
	return service.Query{Limit: d.Limit, After: d.After, Filter: map[string]string{"state": d.State, "by": d.By, "thread": d.Thread, "implementation": d.Implementation}}
}

// CancelBody is the body of POST /v1/delegations/{id}/cancel.
type CancelBody struct {
	Grace  string `json:"grace,omitempty" maxLength:"32" doc:"How long its worker has to stop and prove it, a duration such as 30s; absent, 30s."`
	Reason string `json:"reason,omitempty" maxLength:"500"`
}

// ResolveBody is the body of POST /v1/delegations/{id}/resolve.
type ResolveBody struct {
	Resolution plane.Resolution `json:"resolution,omitempty" enum:"resume,fail,adopt" doc:"What becomes of the run that waits for a person."`
	Answer     string           `json:"answer,omitempty" maxLength:"16384" doc:"For resume: what the worker is told."`
	Mutation   string           `json:"mutation,omitempty" maxLength:"256" doc:"Instead of resolution, or before it: the external key of a change outside that nobody has proved."`
	Done       *bool            `json:"done,omitempty" doc:"Of mutation: whether it has happened."`
	Proof      string           `json:"proof,omitempty" maxLength:"4096" doc:"Of mutation: how that is known."`
}

// delegationRoutes are those of work that was handed over.
func (s *Server) delegationRoutes() {
	read[delegationsInput, plane.DelegationPage](s, "delegations", "/v1/delegations", "Work that was handed over, newest first")
	read[oneInput, plane.DelegationShowing](s, "delegation", "/v1/delegations/{id}", "One delegation, with its runs, verifications and evidence")

	type shown struct{ Body plane.DelegationShowing }
	answer := func(ctx context.Context, d plane.DelegationShowing, err error) (*shown, error) {
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &shown{d}, nil
	}

	type cancelInput struct {
		ID   string `path:"id" maxLength:"256"`
		Body CancelBody
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "delegation.cancel", Method: http.MethodPost, Path: "/v1/delegations/{id}/cancel", Summary: "Cancel a delegation",
		Description: "Whose it is, and operators. It is closed as CANCELLED when it is proved that nothing of it runs; one that is being cancelled is shown. " +
			"One that is closed is a CONFLICT.",
		Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *cancelInput) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		c := plane.CancelRequest{Reason: in.Body.Reason}
		if in.Body.Grace != "" {
			d, fault := duration("/grace", in.Body.Grace)
			if fault != nil {
				return nil, s.problem(ctx, fault)
			}
			c.Grace = d
		}
		d, err := s.plane.CancelDelegation(ctx, caller(ctx), in.ID, c)
		return answer(ctx, d, err)
	})

	type resolveInput struct {
		ID   string `path:"id" maxLength:"256"`
		Body ResolveBody
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "delegation.resolve", Method: http.MethodPost, Path: "/v1/delegations/{id}/resolve", Summary: "Say how a delegation that waits for a person goes on",
		Description: "For operators. A resolution ends the wait of its run; a mutation with done and proof says what became of a change outside. " +
			"While one is not proved, nothing may run again (UNPROVEN).",
		Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *resolveInput) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		b := in.Body
		d, err := s.plane.Resolve(ctx, caller(ctx), in.ID, plane.ResolveRequest{
			Resolution: b.Resolution, Answer: b.Answer, Mutation: b.Mutation, Done: b.Done, Proof: b.Proof,
		})
		return answer(ctx, d, err)
	})

	huma.Register(s.api, huma.Operation{
		OperationID: "delegation.retry", Method: http.MethodPost, Path: "/v1/delegations/{id}/retry", Summary: "Have a delegation tried or verified again, beyond its budget",
		Description: "For operators. One that is closed, or whose run goes on, is a CONFLICT.", Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		d, err := s.plane.Retry(ctx, caller(ctx), in.ID)
		return answer(ctx, d, err)
	})
}
