package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service/threads"
)

// NewPreview is the body of POST /v1/envelope/preview.
type NewPreview struct {
	Agent  ops.IdentityID `json:"agent" minLength:"1" maxLength:"64" doc:"Whom it would wake."`
	Cause  threads.Cause  `json:"cause,omitempty" enum:"timer,message,delegation" doc:"What would wake it; absent, message."`
	Name   string         `json:"name,omitempty" maxLength:"128" doc:"Who or what that is; absent, the caller."`
	Errand string         `json:"errand,omitempty" doc:"The errand, in words that are trusted."`
	Shown  string         `json:"shown,omitempty" doc:"Words of anybody else that belong to it."`
	Ops    []ops.OpName   `json:"ops,omitempty" maxItems:"64" doc:"What it may run unasked."`
}

func (s *Server) envelopeRoute() {
	type input struct{ Body NewPreview }
	type output struct{ Body threads.Preview }
	huma.Register(s.api, huma.Operation{
		OperationID: "envelope.preview", Method: http.MethodPost, Path: "/v1/envelope/preview", Summary: "The message that an agent would be woken with",
		Description: "For operators. Nobody is woken, and the key in it is none.", Security: withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *input) (*output, error) {
		b, by := in.Body, caller(ctx)
		if b.Cause == "" {
			b.Cause = threads.ByMessage
		}
		if b.Name == "" {
			b.Name = string(by.ID)
		}
		p, err := s.agents.Preview(ctx, by, threads.Errand{
			Agent: b.Agent, Cause: b.Cause, Source: "preview", By: by, Name: b.Name, Text: b.Errand, Shown: b.Shown, Ops: b.Ops,
		})
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &output{p}, nil
	})
}
