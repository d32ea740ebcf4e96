package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service/threads"
)

// Keys says what a call is worth that carries the key of a wake, or none.
type Keys interface {
	Weigh(ctx context.Context, call ops.Call, key string) (ops.Call, error)
}

// Replies takes replies into threads, and says who may see which thread.
type Replies interface {
	Keys
	Take(ctx context.Context, by ops.Identity, r threads.Reply) (threads.Ack, error)
	MaySee(ctx context.Context, by ops.Identity, thread string) error
}

// NewReply is the body of POST /v1/replies.
type NewReply struct {
	Agent   ops.IdentityID `json:"agent,omitempty" minLength:"1" maxLength:"64" doc:"Who wrote it; the caller, when that is an agent."`
	Room    string         `json:"room,omitempty" minLength:"1" maxLength:"64" doc:"Begins a new thread in this room."`
	Thread  string         `json:"thread,omitempty" minLength:"1" maxLength:"64" doc:"The thread that it goes into, instead of room."`
	Message string         `json:"message" minLength:"1" maxLength:"256" doc:"The caller's id of the message. The same id in the same room is taken once."`
	Text    string         `json:"text" doc:"What the agent wrote, whole."`
}

func (s *Server) replyRoute() {
	type input struct{ Body NewReply }
	type output struct {
		Status int
		Body   threads.Ack
	}
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: "replies.take", Method: http.MethodPost, Path: "/v1/replies", Summary: "Hand in an agent's reply",
		Description:   "The reply and the intents of its calls are durable when this answers; their results are posted into the thread.",
		DefaultStatus: http.StatusCreated, Security: withToken, MaxBodyBytes: s.limits.Reply + 1, BodyReadTimeout: -1,
		Responses: map[string]*huma.Response{
			"200":     response[threads.Ack](schemas, "This message was taken before; the first answer"),
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, in *input) (*output, error) {
		b, by := in.Body, caller(ctx)
		if b.Agent == "" && by.Role == ops.Agent {
			b.Agent = by.ID
		}
		ack, err := s.replies.Take(ctx, by, threads.Reply{
			Agent: b.Agent, Room: b.Room, Thread: b.Thread, Message: b.Message, Text: b.Text,
		})
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		status := http.StatusCreated
		if ack.Duplicate {
			status = http.StatusOK
		}
		return &output{status, ack}, nil
	})
}
