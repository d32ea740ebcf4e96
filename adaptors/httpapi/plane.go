package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"inband/ops"
	"inband/service/plane"
	"inband/service/plane/wire"
)

// Plane is what the API needs of the execution plane: what its workers say, and what
// operators do with it. It decides itself who may do what.
type Plane interface {
	Protocol
	Uploads
	Delegations
	Workers
	Switch(ctx context.Context, by ops.Identity, to string) (plane.Showing, error)
	BumpTerm(ctx context.Context, by ops.Identity) (plane.Showing, error)
}

// Protocol is what workers and verifiers say, in envelopes that they sign. Its faults
// have details.final where the same envelope will never be taken.
type Protocol interface {
	Enrol(ctx context.Context, envelope []byte) (wire.Enrolled, error)
	Challenge(ctx context.Context, worker string) (string, error)
	Begin(ctx context.Context, envelope []byte) (wire.Session, error)
	// Poll returns a grant in an envelope that the plane has signed, or none when there
	// is nothing in time or ctx ends.
	Poll(ctx context.Context, by ops.Identity, q wire.Poll) (envelope []byte, err error)
	Callback(ctx context.Context, by ops.Identity, envelope []byte) (wire.Ack, error)
}

// Envelope is a DSSE envelope with one Ed25519 signature.
type Envelope struct {
	PayloadType string              `json:"payloadType" minLength:"1" maxLength:"128" doc:"application/vnd.inband.KIND+json; the kind is signed too."`
	Payload     string              `json:"payload" minLength:"1" doc:"The message, standard base64."`
	Signatures  []EnvelopeSignature `json:"signatures" nullable:"false" minItems:"1" maxItems:"1"`
}

// EnvelopeSignature is the one signature of an Envelope.
type EnvelopeSignature struct {
	KeyID string `json:"keyid" maxLength:"128" doc:"sha256: and the hex digest of the public key."`
	Sig   string `json:"sig" minLength:"1" maxLength:"128" doc:"64 bytes, standard base64."`
}

// maxEnvelope bounds the body that an envelope is sent in, in bytes: its payload in
// base64 and what stands around it.
const maxEnvelope = 2*wire.MaxPayload + 1024

// PollRequest is the body of POST /v1/plane/poll.
type PollRequest struct {
	Boot   string `json:"boot" minLength:"1" maxLength:"64" doc:"The boot that asks."`
	Nonce  string `json:"nonce" minLength:"1" maxLength:"64" doc:"The same nonce again gets the same answer."`
	WaitMS int64  `json:"wait_ms" minimum:"0" maximum:"60000" doc:"How long to wait for work, in milliseconds."`
}

// Challenge is the answer of GET /v1/plane/challenge.
type Challenge struct {
	Challenge string `json:"challenge" doc:"To be signed with the boot, within a minute."`
}

// PlaneState is the body of POST /v1/plane/state.
type PlaneState struct {
	State string `json:"state" enum:"on,off,drain" doc:"on grants work; drain grants no more of it and lets leases go on; off does neither."`
}

// PlaneShowing is how the plane is.
type PlaneShowing plane.Showing

// How the guard takes the requests of a route; huma.Operation.Metadata holds it.
var (
	strangerEnvelope = map[string]any{laneKey: strangersLane, envelopeKey: true}
	strangerRoute    = map[string]any{laneKey: strangersLane}
	workerRoute      = map[string]any{laneKey: workersLane}
	workerEnvelope   = map[string]any{laneKey: workersLane, envelopeKey: true}
	pollRoute        = map[string]any{laneKey: pollsLane}
)

// noPlane is what a gateway without a plane answers.
var noPlane = ops.Faultf(ops.NotFound, "this gateway has no execution plane")

// planeRoutes are those of the execution plane.
func (s *Server) planeRoutes() {
	s.protocolRoutes()
	s.uploadRoutes()
	s.delegationRoutes()
	s.workerRoutes()

	read[none, PlaneShowing](s, "plane", "/v1/plane", "How the execution plane is; for operators")
	type shown struct{ Body PlaneShowing }
	answer := func(ctx context.Context, p plane.Showing, err error) (*shown, error) {
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &shown{PlaneShowing(p)}, nil
	}
	type stateInput struct{ Body PlaneState }
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.state", Method: http.MethodPost, Path: "/v1/plane/state", Summary: "Turn dispatch on or off, or drain it",
		Description: "For operators. What is in the state already is shown. History and files remain, whatever the state.",
		Security:    withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *stateInput) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		p, err := s.plane.Switch(ctx, caller(ctx), in.Body.State)
		return answer(ctx, p, err)
	})
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.fence_term", Method: http.MethodPost, Path: "/v1/plane/fence-term", Summary: "Begin a new term of fences and doubt every lease",
		Description: "For operators, when the store may have lost what it had acknowledged. Every run under a lease becomes UNKNOWN.", Security: withToken,
	}, func(ctx context.Context, _ *none) (*shown, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		p, err := s.plane.BumpTerm(ctx, caller(ctx))
		return answer(ctx, p, err)
	})
}

// protocolRoutes are those of workers and verifiers.
func (s *Server) protocolRoutes() {
	schemas := s.api.OpenAPI().Components.Schemas

	type envelopeInput struct {
		Body    Envelope
		RawBody []byte
	}
	type enrolled struct{ Body wire.Enrolled }
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.enrol", Method: http.MethodPost, Path: "/v1/plane/enrol", Summary: "Present a public key with a one-time token of an invitation",
		Description: "No token of an identity: the envelope is signed with the key that it presents. The same key with the same token is answered again.",
		Metadata:    strangerEnvelope, MaxBodyBytes: maxEnvelope + 1, BodyReadTimeout: -1, DefaultStatus: http.StatusCreated,
		Responses: map[string]*huma.Response{"default": faultResponse(schemas)},
	}, func(ctx context.Context, in *envelopeInput) (*enrolled, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		e, err := s.plane.Enrol(ctx, in.RawBody)
		if err != nil {
			return nil, s.strangerProblem(ctx, err)
		}
		return &enrolled{e}, nil
	})

	type challengeInput struct {
		Worker string `query:"worker" required:"true" minLength:"1" maxLength:"64" doc:"Whose boot it is for."`
	}
	type challenge struct{ Body Challenge }
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.challenge", Method: http.MethodGet, Path: "/v1/plane/challenge", Summary: "What a worker must sign to begin a boot",
		Metadata:  strangerRoute,
		Responses: map[string]*huma.Response{"default": faultResponse(schemas)},
	}, func(ctx context.Context, in *challengeInput) (*challenge, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		c, err := s.plane.Challenge(ctx, in.Worker)
		if err != nil {
			return nil, s.strangerProblem(ctx, err)
		}
		return &challenge{Challenge{c}}, nil
	})

	type session struct{ Body wire.Session }
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.boot", Method: http.MethodPost, Path: "/v1/plane/boots", Summary: "Begin a boot: one life of a worker process",
		Description: "No token of an identity: the worker's key signs. It is answered with the token of this boot, which ends the one before.",
		Metadata:    strangerEnvelope, MaxBodyBytes: maxEnvelope + 1, BodyReadTimeout: -1, DefaultStatus: http.StatusCreated,
		Responses: map[string]*huma.Response{"default": faultResponse(schemas)},
	}, func(ctx context.Context, in *envelopeInput) (*session, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		b, err := s.plane.Begin(ctx, in.RawBody)
		if err != nil {
			return nil, s.strangerProblem(ctx, err)
		}
		return &session{b}, nil
	})

	type pollInput struct{ Body PollRequest }
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.poll", Method: http.MethodPost, Path: "/v1/plane/poll", Summary: "Wait for work",
		Description: "For workers and verifiers, with the token of their boot. A grant is signed by the plane.",
		Security:    withToken, Metadata: pollRoute, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
		Responses: map[string]*huma.Response{
			"200":     response[Envelope](schemas, "A grant"),
			"204":     {Description: "Nothing in time; ask again"},
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, in *pollInput) (*eventsOutput, error) { return s.poll(ctx, in.Body) })

	type ack struct{ Body wire.Ack }
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.callback", Method: http.MethodPost, Path: "/v1/plane/callbacks", Summary: "Say what became of a run or a verification",
		Description: "For workers and verifiers, with the token of their boot. Sent again, the same envelope gets the same acknowledgement. " +
			"A fault with details.final is no reason to send it again.",
		Security: withToken, Metadata: workerEnvelope, MaxBodyBytes: maxEnvelope + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *envelopeInput) (*ack, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		a, err := s.plane.Callback(ctx, caller(ctx), in.RawBody)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &ack{a}, nil
	})
}

// signatureProblem is a Problem of a route that wants no token but a signature.
type signatureProblem struct{ *Problem }

// GetHeaders implements huma.HeadersError: a token would not help, so none is asked for.
func (p signatureProblem) GetHeaders() http.Header {
	h := p.Problem.GetHeaders()
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `DSSE realm="inband"`)
	}
	return h
}

func (s *Server) strangerProblem(ctx context.Context, err error) error {
	p := newProblem(s.fault(ctx, err))
	return &signatureProblem{&p}
}

// poll waits for a grant until there is one, its time is up, the client goes or the
// server stops. It holds a place among the polls, and none of the requests'.
func (s *Server) poll(ctx context.Context, q PollRequest) (*eventsOutput, error) {
	if s.plane == nil {
		return nil, s.problem(ctx, noPlane)
	}
	by := caller(ctx)
	leave, fault := s.enterPoll(by.ID)
	if fault != nil {
		return nil, s.problem(ctx, fault)
	}
	defer leave()
	wait := time.Duration(q.WaitMS) * time.Millisecond
	// The plane keeps to the time that is asked for; beyond it something is wrong.
	waiting, cancel := context.WithTimeout(ctx, min(wait, plane.MaxWait)+s.limits.Write)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.stopping:
			cancel()
		case <-waiting.Done():
		}
	}()
	grant, err := s.plane.Poll(waiting, by, wire.Poll{Boot: q.Boot, Nonce: q.Nonce, WaitMS: q.WaitMS})
	cancel()
	<-ended
	switch {
	case len(grant) > 0:
	case s.isStopping():
		return nil, s.problem(ctx, ops.Faultf(ops.Unavailable, "the gateway is stopping; ask again when it is back"))
	case err != nil:
		return nil, s.problem(ctx, err)
	}
	return &eventsOutput{func(hc huma.Context) {
		_, w := humachi.Unwrap(hc)
		if len(grant) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(grant) // a worker that did not get it asks again with the same nonce
	}}, nil
}

// enterPoll bounds the polls of one identity; the guard bounds all of them.
func (s *Server) enterPoll(id ops.IdentityID) (leave func(), f *ops.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.polls[id] >= s.limits.OwnPolls {
		return nil, ops.Faultf(ops.Busy, "%s waits for work %d times already; end one", id, s.polls[id])
	}
	s.polls[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.polls[id]--; s.polls[id] == 0 {
			delete(s.polls, id)
		}
	}, nil
}
