package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service/threads"
)

// Hooks takes the events of chats that prove themselves by a signature over the bytes of
// the body.
type Hooks interface {
	// Deliver takes an event of the adaptor name. An adaptor that does not exist is
	// NotFound, a signature that is not right Unauthenticated.
	Deliver(ctx context.Context, name string, h http.Header, body []byte) (threads.Heard, error)
}

// hookOperation is the one operation whose body is somebody else's JSON.
const hookOperation = "adaptors.event"

// hookProblem is a Problem of a route that wants no token and does not ask for one.
type hookProblem struct{ *Problem }

// GetHeaders implements huma.HeadersError. What RFC 9110 (11.6.1) wants with a 401 is the
// name of a scheme; signatures have no registered one.
func (p hookProblem) GetHeaders() http.Header {
	h := p.Problem.GetHeaders()
	if p.Code == ops.Unauthenticated {
		h.Set("WWW-Authenticate", `Webhook-Signature realm="inband"`)
	}
	return h
}

func (s *Server) hookRoute() {
	type input struct {
		Name string `path:"name" minLength:"1" maxLength:"64" doc:"The adaptor."`
		// ID and the others are read from the request as it is.
		ID        string `header:"webhook-id" maxLength:"256" doc:"The sender's id of this event; it decides nothing."`
		Timestamp string `header:"webhook-timestamp" maxLength:"32" doc:"When it was signed, in seconds since 1970; at most five minutes from now."`
		Signature string `header:"webhook-signature" maxLength:"4096" doc:"v1, and base64 of HMAC-SHA256 over id.timestamp.body; several are separated by spaces."`
		RawBody   []byte `contentType:"application/json" required:"true" doc:"Any JSON object."`
	}
	type output struct{ Body threads.Heard }
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: hookOperation, Method: http.MethodPost, Path: "/v1/adaptors/{name}/events", Summary: "Hand in an event of a chat",
		Description: "No token: the signature says who sends. What the event says is durable when this answers; " +
			"5xx says that nothing was taken. docs/adaptors.md describes the signature and the payload.",
		Metadata:     map[string]any{laneKey: eventsLane},
		MaxBodyBytes: s.limits.Event + 1, BodyReadTimeout: -1, SkipValidateBody: true,
		Responses: map[string]*huma.Response{"default": faultResponse(schemas)},
	}, func(ctx context.Context, in *input) (*output, error) {
		header := http.Header{}
		for name, v := range map[string]string{"webhook-id": in.ID, "webhook-timestamp": in.Timestamp, "webhook-signature": in.Signature} {
			if v != "" {
				header.Set(name, v)
			}
		}
		var heard threads.Heard
		var err error = ops.Faultf(ops.NotFound, "there is no adaptor of this name that takes events")
		if s.hooks != nil {
			heard, err = s.hooks.Deliver(ctx, in.Name, header, in.RawBody)
		}
		if err != nil {
			p := newProblem(s.fault(ctx, err))
			return nil, hookProblem{&p}
		}
		return &output{heard}, nil
	})
}
