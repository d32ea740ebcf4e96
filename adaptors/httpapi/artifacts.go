package httpapi

import (
	"context"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"inband/ops"
	"inband/service"
)

// Artifacts is what the API needs of the published files beyond their reads.
type Artifacts interface {
	Open(ctx context.Context, by ops.Identity, digest string) (*service.ArtifactBytes, error)
	Verify(ctx context.Context) (service.ArtifactReport, error)
	Collect(ctx context.Context) (service.ArtifactCollection, error)
}

type digestInput struct {
	Digest string `path:"digest" maxLength:"256" doc:"sha256: and 64 lower-case hex digits."`
}

func (d digestInput) query() service.Query { return service.Query{Arg: d.Digest} }

type bytesInput struct {
	Digest      string `path:"digest" maxLength:"256" doc:"sha256: and 64 lower-case hex digits."`
	IfNoneMatch string `header:"If-None-Match" maxLength:"1024" doc:"Entity tags; the one of these bytes is answered with 304."`
}

func (s *Server) artifactRoutes() {
	read[pageInput, service.ArtifactPage](s, "artifacts", "/v1/artifacts", "Files that calls have published, newest first")
	read[digestInput, service.ArtifactShowing](s, "artifact", "/v1/artifacts/{digest}", "What is known of some bytes: each time that they were published")

	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: "artifact.bytes", Method: http.MethodGet, Path: "/v1/artifacts/{digest}/bytes", Summary: "The bytes themselves",
		Description: "As a file to save and never as anything to show, whatever kind was declared. They are checked against the digest while they are sent: " +
			"an answer that is complete is right, and one that is not breaks off before its last byte.",
		Security:  withToken,
		Responses: bytesResponses(schemas, "304", "The caller has them: If-None-Match names their entity tag"),
	}, s.sendArtifact)

	type verifyOutput struct{ Body service.ArtifactReport }
	huma.Register(s.api, huma.Operation{
		OperationID: "artifacts.verify", Method: http.MethodPost, Path: "/v1/artifacts/verify", Summary: "Read the bytes of every artifact and compare them with their digests",
		Description: "For operators, one at a time. It takes as long as reading every byte does.", Security: withToken,
	}, func(ctx context.Context, _ *none) (*verifyOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		report, err := s.artifacts.Verify(ctx)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &verifyOutput{report}, nil
	})

	type collectOutput struct{ Body service.ArtifactCollection }
	huma.Register(s.api, huma.Operation{
		OperationID: "artifacts.collect", Method: http.MethodPost, Path: "/v1/artifacts/collect", Summary: "Remove bytes that nothing names and uploads that are over",
		Description: "For operators, one at a time. The gateway does so every hour by itself. Bytes younger than a day are left alone.", Security: withToken,
	}, func(ctx context.Context, _ *none) (*collectOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		c, err := s.artifacts.Collect(ctx)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &collectOutput{c}, nil
	})
}

// sendArtifact answers with the bytes of an artifact, which take a place among the streams.
func (s *Server) sendArtifact(ctx context.Context, in *bytesInput) (*eventsOutput, error) {
	f, err := s.artifacts.Open(ctx, caller(ctx), in.Digest)
	if err != nil {
		return nil, s.problem(ctx, err)
	}
	leave, fault := s.enter(caller(ctx).ID)
	if fault != nil {
		f.Close()
		return nil, s.problem(ctx, fault)
	}
	return s.sendBytes(ctx, f, in.Digest, in.IfNoneMatch, leave), nil
}

// bytesResponses are the answers of a route that sends bytes, with others as pairs of
// status and description.
func bytesResponses(schemas huma.Registry, others ...string) map[string]*huma.Response {
	m := map[string]*huma.Response{
		"200": {Description: "The bytes", Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}},
		"default": faultResponse(schemas),
	}
	for i := 0; i+1 < len(others); i += 2 {
		m[others[i]] = &huma.Response{Description: others[i+1]}
	}
	return m
}

// sendBytes answers with f, then closes it and gives its place back with leave.
func (s *Server) sendBytes(ctx context.Context, f *service.ArtifactBytes, digest, ifNoneMatch string, leave func()) *eventsOutput {
	return &eventsOutput{func(hc huma.Context) {
		defer leave()
		defer f.Close()
		r, w := humachi.Unwrap(hc)
		h := w.Header()
		h.Set("ETag", strconv.Quote(digest))
		if matches(ifNoneMatch, digest) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Length", strconv.FormatInt(f.Size, 10))
		h.Set("Content-Disposition", attachment(f.Name))
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		h.Set("Accept-Ranges", "none") // a part cannot be checked
		w.WriteHeader(http.StatusOK)
		if r.Method == http.MethodHead {
			return
		}
		out := &piece{w: w, rc: http.NewResponseController(w), within: s.limits.Write}
		if _, err := io.CopyBuffer(out, struct{ io.Reader }{f}, make([]byte, 64<<10)); err != nil {
			s.log.LogAttrs(ctx, slog.LevelError, "bytes of an artifact not sent whole", slog.String("request", requestID(ctx)), slog.String("digest", digest), slog.Any("err", err))
			panic(http.ErrAbortHandler) // a part must not look whole
		}
	}}
}

// matches reports whether an If-None-Match header names the entity tag of digest
// (RFC 9110, 13.1.2: the weak comparison).
func matches(header, digest string) bool {
	for tag := range strings.SplitSeq(header, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" || strings.TrimPrefix(tag, "W/") == strconv.Quote(digest) {
			return true
		}
	}
	return false
}

// attachment is a Content-Disposition that has a browser save what comes (RFC 6266).
func attachment(name string) string {
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}); v != "" {
		return v
	}
	return "attachment"
}
