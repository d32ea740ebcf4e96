package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
)

// Approvals decides about calls that wait.
type Approvals interface {
	Approval(ctx context.Context, by ops.Identity, id service.ApprovalID) (service.ApprovalShowing, error)
	Approve(ctx context.Context, by ops.Identity, id service.ApprovalID) (service.ApprovalShowing, error)
	Deny(ctx context.Context, by ops.Identity, id service.ApprovalID, reason string) (service.ApprovalShowing, error)
}

// ApprovalPage is a page of approvals.
type ApprovalPage struct {
	Approvals []service.ApprovalListing `json:"approvals"`
	Next      service.ApprovalID        `json:"next,omitempty"`
}

// Denial is the body of POST /v1/approvals/{id}/deny.
type Denial struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"For whoever ordered the call; it is told with the outcome."`
}

type approvalsInput struct {
	Page
	State string `query:"state" maxLength:"32" enum:"pending,approved,denied,expired,void"`
}

func (a approvalsInput) query() service.Query {
	return service.Query{Limit: a.Limit, After: a.After, Filter: map[string]string{"state": a.State}}
}

// approvalRoutes are those of calls that wait for somebody's approval.
func (s *Server) approvalRoutes() {
	read[approvalsInput, ApprovalPage](s, "approvals", "/v1/approvals", "Approvals, newest first")

	type shown struct{ Body service.ApprovalShowing }
	answer := func(ctx context.Context, a service.ApprovalShowing, err error) (*shown, error) {
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &shown{a}, nil
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "approval", Method: http.MethodGet, Path: "/v1/approvals/{id}", Summary: "One approval, with all that it is for",
		Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*shown, error) {
		a, err := s.door.Approval(ctx, caller(ctx), service.ApprovalID(in.ID))
		return answer(ctx, a, err)
	})
	huma.Register(s.api, huma.Operation{
		OperationID: "approval.approve", Method: http.MethodPost, Path: "/v1/approvals/{id}/approve", Summary: "Let a call that waits run, once",
		Description: "What the approval is for is looked at again first; when any of it has changed, nothing runs and the fault is APPROVAL_VOID, with `details.changed`. " +
			"One that is approved already is shown, and nothing runs again.",
		Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*shown, error) {
		a, err := s.door.Approve(ctx, caller(ctx), service.ApprovalID(in.ID))
		return answer(ctx, a, err)
	})
	type denyInput struct {
		ID   string `path:"id" maxLength:"256"`
		Body Denial
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "approval.deny", Method: http.MethodPost, Path: "/v1/approvals/{id}/deny", Summary: "End a call that waits without running it",
		Description: "One that is denied already is shown.", Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *denyInput) (*shown, error) {
		a, err := s.door.Deny(ctx, caller(ctx), service.ApprovalID(in.ID), in.Body.Reason)
		return answer(ctx, a, err)
	})
}
