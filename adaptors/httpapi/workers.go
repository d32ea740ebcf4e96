package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/plane"
)

// Workers invites workers and verifiers, and ends them.
type Workers interface {
	Invite(ctx context.Context, by ops.Identity, i plane.Invitation) (plane.Invited, error)
	Revoke(ctx context.Context, by ops.Identity, id string) (plane.WorkerShowing, error)
	DrainWorker(ctx context.Context, by ops.Identity, id string, on bool) (plane.WorkerShowing, error)
}

type workersInput struct {
	Page
	Role  string `query:"role" maxLength:"32" enum:"worker,verifier"`
	State string `query:"state" maxLength:"32" enum:"live,revoked"`
}

func (w workersInput) query() service.Query {
	return service.Query{Limit: w.Limit, After: w.After, Filter: map[string]string{"role": w.Role, "state": w.State}}
}

// InvitationBody is the body of POST /v1/workers/invitations.
type InvitationBody struct {
	Name            ops.IdentityID `json:"name" minLength:"1" maxLength:"64" doc:"Of the identity that comes of it: a-z, 0-9, then also . _ -"`
	Role            ops.Role       `json:"role,omitempty" enum:"worker,verifier" doc:"Absent, worker."`
	Implementations []string       `json:"implementations,omitempty" nullable:"false" maxItems:"64" doc:"Which work it may take; absent, default."`
	Capabilities    []string       `json:"capabilities,omitempty" nullable:"false" maxItems:"64" doc:"What it has that work may ask for."`
	TTL             string         `json:"ttl,omitempty" maxLength:"32" doc:"How long the token may be used, a duration; absent, 1h."`
}

// DrainBody is the body of POST /v1/workers/{id}/drain.
type DrainBody struct {
	Off bool `json:"off,omitempty" doc:"End the draining instead: it is offered work again."`
}

// workerRoutes are those of operators, about workers and verifiers.
func (s *Server) workerRoutes() {
	read[workersInput, plane.WorkerPage](s, "workers", "/v1/workers", "Workers and verifiers, by id; for operators")
	read[oneInput, plane.WorkerShowing](s, "worker", "/v1/workers/{id}", "One worker or verifier, with what it holds")

	type inviteInput struct{ Body InvitationBody }
	type invited struct{ Body plane.Invited }
	huma.Register(s.api, huma.Operation{
		OperationID: "worker.invite", Method: http.MethodPost, Path: "/v1/workers/invitations", Summary: "Invite a worker or a verifier: a token that enrols one key",
		Description: "For operators. The token is shown once.", DefaultStatus: http.StatusCreated,
		Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *inviteInput) (*invited, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		b := in.Body
		i := plane.Invitation{Name: b.Name, Role: b.Role, Implementations: b.Implementations, Capabilities: b.Capabilities, TTL: plane.StandardInvitation}
		if i.Role == "" {
			i.Role = ops.Worker
		}
		if len(i.Implementations) == 0 {
			i.Implementations = []string{"default"}
		}
		if b.TTL != "" {
			d, fault := duration("/ttl", b.TTL)
			if fault != nil {
				return nil, s.problem(ctx, fault)
			}
			i.TTL = d
		}
		got, err := s.plane.Invite(ctx, caller(ctx), i)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &invited{got}, nil
	})

	type shown struct{ Body plane.WorkerShowing }
	answer := func(ctx context.Context, w plane.WorkerShowing, err error) (*shown, error) {
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &shown{w}, nil
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "worker.revoke", Method: http.MethodPost, Path: "/v1/workers/{id}/revoke", Summary: "End a worker or verifier, its key and its tokens for good",
		Description: "For operators. What it says from now on decides nothing. One that is revoked is shown.", Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		w, err := s.plane.Revoke(ctx, caller(ctx), in.ID)
		return answer(ctx, w, err)
	})
	type drainInput struct {
		ID   string `path:"id" maxLength:"256"`
		Body DrainBody
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "worker.drain", Method: http.MethodPost, Path: "/v1/workers/{id}/drain", Summary: "Offer a worker no more work",
		Description: "For operators. What it has goes on. One that is revoked is a CONFLICT.",
		Security:    withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *drainInput) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		w, err := s.plane.DrainWorker(ctx, caller(ctx), in.ID, !in.Body.Off)
		return answer(ctx, w, err)
	})
}

// duration reads a duration at a place of the body.
func duration(pointer, text string) (time.Duration, *ops.Fault) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, ops.Faultf(ops.BadRequest, "the body at %s: want a duration above 0 such as 30s, 10m or 1h30m", pointer).With("pointer", pointer)
	}
	return d, nil
}
