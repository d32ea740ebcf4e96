package httpapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/plane/wire"
)

// Uploads is what the API needs of the files of runs. Each call is bounded by who may ask:
// the worker that has, or had, the run; and for Fetch who has a lease.
type Uploads interface {
	Upload(ctx context.Context, by ops.Identity, envelope []byte) (wire.Uploading, error)
	Append(ctx context.Context, by ops.Identity, upload string, offset int64, r io.Reader) (wire.Uploading, error)
	Uploaded(ctx context.Context, by ops.Identity, upload string) (wire.Uploading, error)
	Fetch(ctx context.Context, by ops.Identity, digest string) (*service.ArtifactBytes, error)
}

// UploadState is how far an upload is.
type UploadState wire.Uploading

// bytesKey in the Metadata of an operation says that its body is bytes of any length,
// which are taken as they come.
const bytesKey = "bytes"

var (
	uploadRoute = map[string]any{laneKey: filesLane, bytesKey: true}
	fetchRoute  = map[string]any{laneKey: filesLane}
)

func takesBytes(op *huma.Operation) bool {
	is, _ := op.Metadata[bytesKey].(bool)
	return is
}

type uploadInput struct {
	ID string `path:"id" minLength:"1" maxLength:"64" doc:"The id of the upload."`
}

type appendInput struct {
	ID     string `path:"id" minLength:"1" maxLength:"64" doc:"The id of the upload."`
	Offset string `header:"Upload-Offset" required:"true" maxLength:"18" pattern:"^(0|[1-9][0-9]*)$" doc:"Where in the file the body begins: how many bytes are durable."`
}

type fetchInput struct {
	Digest string `path:"digest" maxLength:"256" doc:"sha256: and 64 lower-case hex digits."`
}

// uploadRoutes are those by which files of runs come and go.
func (s *Server) uploadRoutes() {
	schemas := s.api.OpenAPI().Components.Schemas
	type envelopeInput struct {
		Body    Envelope
		RawBody []byte
	}
	type output struct{ Body UploadState }
	answer := func(ctx context.Context, u wire.Uploading, err error) (*output, error) {
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &output{UploadState(u)}, nil
	}

	huma.Register(s.api, huma.Operation{
		OperationID: "plane.upload", Method: http.MethodPost, Path: "/v1/plane/uploads", Summary: "Announce a file of a run",
		Description: "For workers, with the token of their boot: a signed message of kind upload. The same announcement again is the same upload, however long ago. " +
			"It is done at once if a run of the delegation has left these bytes before.",
		Security: withToken, Metadata: workerEnvelope, MaxBodyBytes: maxEnvelope + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *envelopeInput) (*output, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		u, err := s.plane.Upload(ctx, caller(ctx), in.RawBody)
		return answer(ctx, u, err)
	})
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.uploaded", Method: http.MethodGet, Path: "/v1/plane/uploads/{id}", Summary: "How far an upload is",
		Security: withToken, Metadata: workerRoute,
	}, func(ctx context.Context, in *uploadInput) (*output, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		u, err := s.plane.Uploaded(ctx, caller(ctx), in.ID)
		return answer(ctx, u, err)
	})
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.append", Method: http.MethodPatch, Path: "/v1/plane/uploads/{id}", Summary: "Send a piece of a file",
		Description: "As many bytes as there are, from Upload-Offset on. What has come when the request ends, or breaks, is durable and need not be sent again. " +
			"At another offset than that of the upload nothing is taken; details.expected is the right one.",
		Security: withToken, Metadata: uploadRoute, MaxBodyBytes: -1, BodyReadTimeout: -1,
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}},
	}, func(ctx context.Context, in *appendInput) (*output, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		offset, err := strconv.ParseInt(in.Offset, 10, 64)
		if err != nil {
			return nil, s.problem(ctx, ops.Faultf(ops.BadRequest, "the header Upload-Offset is no number of bytes"))
		}
		body := arriving(ctx)
		u, err := s.plane.Append(ctx, caller(ctx), in.ID, offset, body)
		if broken := body.broken(); err != nil && broken != nil {
			err = broken
		}
		return answer(ctx, u, err)
	})
	huma.Register(s.api, huma.Operation{
		OperationID: "plane.artifact", Method: http.MethodGet, Path: "/v1/plane/artifacts/{digest}", Summary: "Bytes that a lease names",
		Description: "For workers and verifiers, with the token of their boot: the source of the work, what earlier attempts or the run to be verified have left, " +
			"and what a worker's own runs have left. An answer that is complete is right; one that is not breaks off before its last byte.",
		Security: withToken, Metadata: fetchRoute, Responses: bytesResponses(schemas),
	}, func(ctx context.Context, in *fetchInput) (*eventsOutput, error) {
		if s.plane == nil {
			return nil, s.problem(ctx, noPlane)
		}
		f, err := s.plane.Fetch(ctx, caller(ctx), in.Digest)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return s.sendBytes(ctx, f, in.Digest, "", func() {}), nil
	})
}

// checkBytes says what is wrong with the head of a request whose body is bytes.
func checkBytes(r *http.Request) *ops.Fault {
	if v := r.Header.Values("Content-Encoding"); len(v) > 0 {
		return ops.Faultf(ops.MediaType, "the body is encoded; send it as it is, without Content-Encoding")
	}
	v := r.Header.Values("Content-Type")
	if len(v) != 1 {
		return ops.Faultf(ops.MediaType, "the body must be declared as Content-Type: application/octet-stream, once")
	}
	if kind, params, err := mime.ParseMediaType(v[0]); err != nil || kind != "application/octet-stream" || len(params) > 0 {
		return ops.Faultf(ops.MediaType, "the body must be declared as Content-Type: application/octet-stream, once")
	}
	return nil
}

// pace is how many bytes a client must send in each Limits.Read.
const pace = 64 << 10

// arrival is a body that is read while it arrives. A client may wait for us as long as it
// takes; we wait for each 64 KiB of it no longer than within.
type arrival struct {
	r      io.Reader
	rc     *http.ResponseController
	within time.Duration

	waited time.Duration // for what has come since
	came   int
	ended  bool
	err    error // of the connection, not of the body's end
}

type arrivalKey struct{}

func arriving(ctx context.Context) *arrival {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	return a
}

// Read implements io.Reader.
func (a *arrival) Read(p []byte) (int, error) {
	begun := time.Now()
	if a.err = a.deadline(begun.Add(a.within - a.waited)); a.err != nil {
		return 0, a.err
	}
	n, err := a.r.Read(p)
	a.waited += time.Since(begun)
	if a.came += n; a.came >= pace {
		a.came, a.waited = 0, 0
	}
	switch err {
	case nil:
	case io.EOF:
		a.ended = true
	default:
		a.err = err
	}
	// What is done with it may take longer, and at its end the connection is watched for a
	// hang-up only.
	return n, cmp.Or(a.deadline(time.Time{}), err)
}

func (a *arrival) deadline(t time.Time) error {
	if err := a.rc.SetReadDeadline(t); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// leave bounds how long the server reads on after the answer, where the body has not ended.
func (a *arrival) leave() {
	if !a.ended {
		_ = a.deadline(time.Now().Add(a.within)) // or there is no connection any more
	}
}

// broken is the fault of a body that did not come whole.
func (a *arrival) broken() error {
	switch {
	case a.err == nil:
		return nil
	case errors.Is(a.err, os.ErrDeadlineExceeded):
		return ops.Faultf(ops.BadRequest, "less than %d bytes of the body came within %v; what had come is kept, so go on behind it", pace, a.within)
	}
	return ops.Faultf(ops.BadRequest, "the body ended before its declared length; what had come is kept, so go on behind it")
}
