package httpapi

import (
	"context"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
)

// readRoutes is the table of the reads: each answers what box.exec answers under the
// same name. The first type is what a request may narrow it by, the second what the
// document says of the answer.
func (s *Server) readRoutes() {
	read[none, Status](s, "status", "/v1/status", "How the gateway is")
	read[none, Version](s, "version", "/v1/version", "Which program this is")
	read[none, map[string]any](s, "config", "/v1/config", "What it runs with, without secrets; for operators")
	read[none, Providers](s, "providers", "/v1/providers", "Who owns ops")
	read[none, Adaptors](s, "adaptors", "/v1/adaptors", "Which chats it is in, and how each is")
	read[none, service.OpList](s, "ops", "/v1/ops", "Every op, by name, and whether you may run it")
	read[nameInput, service.OpListing](s, "op", "/v1/ops/{name}", "One op, by its name or an alias")
	read[pageInput, ThreadPage](s, "threads", "/v1/threads", "Threads, newest first")
	read[postsInput, Thread](s, "thread", "/v1/threads/{id}", "One thread and a page of its posts, oldest first")
	read[callsInput, CallPage](s, "calls", "/v1/calls", "Calls, newest first")
	read[oneInput, service.CallShowing](s, "call", "/v1/calls/{id}", "One call, whole")
	read[roleInput, IdentityList](s, "agents", "/v1/agents", "Identities, by id; for operators")
	read[oneInput, IdentityListing](s, "agent", "/v1/agents/{id}", "One identity")
}

// narrowing is an input that says which part of a read is wanted.
type narrowing interface{ query() service.Query }

func (none) query() service.Query { return service.Query{} }

// Page is the part of a list that is wanted.
type Page struct {
	Limit int    `query:"limit" minimum:"1" maximum:"200" doc:"Most entries."`
	After string `query:"after" maxLength:"256" doc:"The member next of the page before."`
}

type pageInput struct{ Page }

func (p pageInput) query() service.Query { return service.Query{Limit: p.Limit, After: p.After} }

type callsInput struct {
	Page
	State string `query:"state" maxLength:"32" enum:"received,parked,refused,running,accepted,succeeded,failed,cancelled,outcome_unknown"`
	Op    string `query:"op" maxLength:"128" doc:"The name of an op; aliases are not resolved."`
}

func (c callsInput) query() service.Query {
	return service.Query{Limit: c.Limit, After: c.After, Filter: map[string]string{"state": c.State, "op": c.Op}}
}

type roleInput struct {
	Role string `query:"role" maxLength:"32" enum:"agent,operator,bridge,worker,verifier"`
}

func (r roleInput) query() service.Query {
	return service.Query{Filter: map[string]string{"role": r.Role}}
}

type oneInput struct {
	ID string `path:"id" maxLength:"256"`
}

func (o oneInput) query() service.Query { return service.Query{Arg: o.ID} }

type nameInput struct {
	Name string `path:"name" maxLength:"384" doc:"Percent-encoded, the slashes too."`
}

func (n nameInput) query() service.Query { return service.Query{Arg: n.Name} }

type postsInput struct {
	ID    string `path:"id" maxLength:"256"`
	Limit int    `query:"limit" minimum:"1" maximum:"200" doc:"Most posts."`
	After int64  `query:"after" minimum:"0" doc:"The sequence number of the last post that you have."`
}

func (p postsInput) query() service.Query {
	q := service.Query{Arg: p.ID, Limit: p.Limit}
	if p.After > 0 {
		q.After = strconv.FormatInt(p.After, 10)
	}
	return q
}

// anyOutput is an answer whose form is the read's.
type anyOutput struct{ Body any }

// read registers one read: I narrows it, O documents its answer.
func read[I narrowing, O any](s *Server, name, path, summary string) {
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: name, Method: http.MethodGet, Path: path, Summary: summary, Security: withToken,
		Responses: map[string]*huma.Response{
			"200":     response[O](schemas, http.StatusText(http.StatusOK)),
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, in *I) (*anyOutput, error) {
		v, err := s.reads.Do(ctx, caller(ctx), name, (*in).query())
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &anyOutput{v}, nil
	})
}

func schemaOf[T any](schemas huma.Registry) *huma.Schema {
	t := reflect.TypeFor[T]()
	return schemas.Schema(t, true, t.Name())
}

func response[T any](schemas huma.Registry, what string) *huma.Response {
	return &huma.Response{Description: what, Content: map[string]*huma.MediaType{"application/json": {Schema: schemaOf[T](schemas)}}}
}

func faultResponse(schemas huma.Registry) *huma.Response {
	return &huma.Response{Description: "A fault", Content: map[string]*huma.MediaType{problemJSON: {Schema: schemaOf[Problem](schemas)}}}
}

// callRoutes are those that do something with a call.
func (s *Server) callRoutes() {
	type output struct {
		Body struct {
			Call  ops.CallID `json:"call"`
			State ops.State  `json:"state" doc:"The call's state now; it is open still when the call did not stop at once."`
		}
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "call.cancel", Method: http.MethodPost, Path: "/v1/calls/{id}/cancel", Summary: "Cancel a call",
		Description: "A call that is settled is a CONFLICT.", Security: withToken,
	}, func(ctx context.Context, in *oneInput) (*output, error) {
		state, err := s.door.Cancel(ctx, caller(ctx), ops.CallID(in.ID))
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		out := &output{}
		out.Body.Call, out.Body.State = ops.CallID(in.ID), state
		return out, nil
	})
}

// opRoutes are those that do something with the ops.
func (s *Server) opRoutes() {
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: "ops.reload", Method: http.MethodPost, Path: "/v1/ops/reload", Summary: "Read the op files and the policy again",
		Description: "For operators. When a file is wrong, the ops and the policy stay as they are, and `details.problems` lists why.",
		Security:    withToken,
		Responses: map[string]*huma.Response{
			"200":     response[map[string]any](schemas, "What is now in force"),
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, _ *none) (*anyOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		v, err := s.reload(ctx)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &anyOutput{v}, nil
	})
}
