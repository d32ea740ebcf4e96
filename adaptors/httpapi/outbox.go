package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service/threads"
)

// Outbox has what was set aside tried again.
type Outbox interface {
	Retry(ctx context.Context, by ops.Identity, id string, again bool) (threads.OutboxEntry, error)
}

// OutboxRetry is the body of POST /v1/outbox/{id}/retry.
type OutboxRetry struct {
	Again bool `json:"again,omitempty" doc:"Send it even if nobody knows whether it stands there; it may then stand twice."`
}

// outboxRoutes are those of what is not delivered.
func (s *Server) outboxRoutes() {
	read[pageInput, threads.OutboxPage](s, "outbox", "/v1/outbox", "What is not delivered yet, oldest first; for operators")

	type input struct {
		ID   string `path:"id" maxLength:"256"`
		Body OutboxRetry
	}
	type shown struct{ Body threads.OutboxEntry }
	huma.Register(s.api, huma.Operation{
		OperationID: "outbox.retry", Method: http.MethodPost, Path: "/v1/outbox/{id}/retry", Summary: "Try again what was set aside; for operators",
		Description: "With the parts of its text that were set aside along with it. One whose `reason` is unknown_fate is a CONFLICT unless `again` is true.",
		Security:    withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *input) (*shown, error) {
		e, err := s.outbox.Retry(ctx, caller(ctx), in.ID, in.Body.Again)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &shown{e}, nil
	})
}
