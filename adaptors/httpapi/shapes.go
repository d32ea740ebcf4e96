package httpapi

import (
	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/access"
	"inband/service/threads"
)

// The types of this file say in the OpenAPI document what the reads answer. The
// tests hold every answer against them.

// Status is the answer of /v1/status.
type Status struct {
	Version   string           `json:"version"`
	Boot      string           `json:"boot" doc:"This run of the gateway."`
	StartedAt string           `json:"started_at" format:"date-time"`
	Ops       int              `json:"ops" doc:"How many there are."`
	OpenCalls map[string]int64 `json:"open_calls" doc:"Calls that are not settled, by state."`
	Position  int64            `json:"position" doc:"The last event of the journal."`
	Health    Health           `json:"health"`
	// What ops have.
	Sandbox  []service.Layer      `json:"sandbox" doc:"The layers of the sandbox."`
	Disabled []service.DisabledOp `json:"disabled" doc:"Ops whose calls cannot run as things are."`
	Reloads  service.Reloads      `json:"reloads" doc:"Of the op files and the policy, since the start."`
	Holds    []service.Hold       `json:"holds" doc:"What operators have stopped."`
}

// Health is a part of Status.
type Health struct {
	Status  string   `json:"status"`
	Ready   bool     `json:"ready"`
	Missing []string `json:"missing" doc:"What keeps it from being ready."`
}

// Version is the answer of /v1/version.
type Version struct {
	Version string `json:"version"`
}

// Providers is the answer of /v1/providers.
type Providers struct {
	Providers []Provider `json:"providers"`
}

// Provider is an owner of ops.
type Provider struct {
	Name string `json:"name"`
	Ops  int    `json:"ops"`
}

// Adaptors is the answer of /v1/adaptors.
type Adaptors struct {
	Adaptors []service.AdaptorState `json:"adaptors"`
}

// ThreadPage is a page of threads.
type ThreadPage struct {
	Threads []ThreadListing `json:"threads"`
	Next    string          `json:"next,omitempty"`
}

// ThreadListing is a thread as it is listed.
type ThreadListing threads.Listing

// Thread is one thread with a page of its posts.
type Thread struct {
	ID       string `json:"id"`
	Room     string `json:"room"`
	OpenedAt string `json:"opened_at" format:"date-time"`
	Posts    []Post `json:"posts"`
	Next     int64  `json:"next,omitempty"`
}

// Post is what stands in a thread.
type Post struct {
	Seq     int64      `json:"seq"`
	ID      string     `json:"id"`
	Author  Author     `json:"author"`
	Name    string     `json:"name,omitempty" doc:"The platform's id of one who is no identity."`
	Kind    string     `json:"kind" enum:"reply,result,note,message,wake,heard"`
	Text    string     `json:"text"`
	At      string     `json:"at" format:"date-time"`
	Call    ops.CallID `json:"call,omitempty" doc:"The call whose result this is."`
	Message string     `json:"message,omitempty" doc:"The sender's id of a reply."`
	// What became of it, as it stands now.
	Wake  *threads.PostWake  `json:"wake,omitempty" doc:"The wake that it is the envelope of."`
	Calls []threads.PostCall `json:"calls,omitempty" doc:"The orders in a reply."`
}

// Author is who wrote a post, null for the gateway itself.
type Author struct{}

// Schema implements huma.SchemaProvider, whose tags know no nullable object.
func (Author) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{AnyOf: []*huma.Schema{schemaOf[ops.Identity](r), {Type: "null"}}, Description: "Who wrote it; null is the gateway."}
}

// CallPage is a page of calls.
type CallPage struct {
	Calls []service.CallListing `json:"calls"`
	Next  ops.CallID            `json:"next,omitempty"`
}

// IdentityList is every identity, or those of one role.
type IdentityList struct {
	Agents []IdentityListing `json:"agents"`
}

// IdentityListing is an identity as it is listed.
type IdentityListing access.Listing
