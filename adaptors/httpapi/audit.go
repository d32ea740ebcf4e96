package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"inband/ops"
	"inband/service/journal/notary"
)

// Notary signs what the journal holds.
type Notary interface {
	Checkpoint(ctx context.Context) (notary.Checkpoint, error)
	Sealed() notary.Checkpoint
	Key() notary.Key
}

// checkpointWait bounds the wait for a checkpoint over what is committed now.
const checkpointWait = 10 * time.Second

// AuditState is the answer of /v1/audit.
type AuditState struct {
	Key      string `json:"key" doc:"The notary's public key; empty when it has none."`
	Position int64  `json:"position" doc:"The last event that a checkpoint covers."`
	Head     int64  `json:"head" doc:"The last event of the journal."`
	Lag      int64  `json:"lag" doc:"Events that no checkpoint covers yet."`
	State    string `json:"state" enum:"signing,late,failed"`
	Why      string `json:"why,omitempty" doc:"What is wrong, if something is."`
}

// AuditCheckpoint is the answer of /v1/audit/checkpoint.
type AuditCheckpoint struct {
	Position   int64  `json:"position" doc:"The last event that it covers."`
	Checkpoint string `json:"checkpoint" doc:"A signed note: the key's name, the number of events, the tree's hash."`
	Key        string `json:"key" doc:"The notary's public key."`
}

// AuditRequest is the body of POST /v1/audit/verify.
type AuditRequest struct {
	Checkpoint string `json:"checkpoint" maxLength:"4096" doc:"One that was kept elsewhere, to be compared too; empty for none."`
}

// AuditReport is the answer: what was found in order, or the first thing that is not.
type AuditReport struct {
	OK        bool          `json:"ok"`
	Position  int64         `json:"position" doc:"The last event that a checkpoint covers."`
	Head      int64         `json:"head" doc:"The last event that was read."`
	Uncovered int64         `json:"uncovered" doc:"Events that no checkpoint covers yet."`
	Found     *AuditFinding `json:"found,omitempty"`
}

// AuditFinding is where the journal is not what was signed.
type AuditFinding struct {
	Position int64  `json:"position"`
	What     string `json:"what"`
}

func (s *Server) auditRoutes() {
	read[none, AuditState](s, "audit", "/v1/audit", "How far the log of all events is signed; for operators")

	schemas := s.api.OpenAPI().Components.Schemas
	type checkpointOutput struct{ Body AuditCheckpoint }
	huma.Register(s.api, huma.Operation{
		OperationID: "audit.checkpoint", Method: http.MethodGet, Path: "/v1/audit/checkpoint", Summary: "A signed checkpoint over every event up to now",
		Description: "For operators. Keep it somewhere else: it shows later that nothing before it was changed.", Security: withToken,
	}, func(ctx context.Context, _ *none) (*checkpointOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		cp, err := s.checkpoint(ctx)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &checkpointOutput{AuditCheckpoint{Position: cp.Size, Checkpoint: cp.Note, Key: s.notary.Key().String()}}, nil
	})

	type verifyInput struct{ Body AuditRequest }
	type verifyOutput struct{ Body AuditReport }
	huma.Register(s.api, huma.Operation{
		OperationID: "audit.verify", Method: http.MethodPost, Path: "/v1/audit/verify", Summary: "Compute the log anew and compare it with what was signed",
		Description: "For operators, one at a time. It takes as long as reading every event does.",
		Security:    withToken, MaxBodyBytes: s.limits.Body + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *verifyInput) (*verifyOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		report, err := s.verify(ctx, in.Body.Checkpoint)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &verifyOutput{report}, nil
	})

	type exportInput struct {
		From int64 `query:"from" minimum:"1" doc:"The first event; absent, 1."`
	}
	huma.Register(s.api, huma.Operation{
		OperationID: "audit.export", Method: http.MethodGet, Path: "/v1/audit/export", Summary: "The events with what proves them, as lines of JSON",
		Description: "For operators. A header, one line an event, and a checkpoint over all of them, without which the export is not whole. " +
			"`box audit verify --export` checks it without the gateway.",
		Security: withToken,
		Responses: map[string]*huma.Response{
			"200":     {Description: "The export", Content: map[string]*huma.MediaType{"application/jsonl": {Schema: &huma.Schema{Type: huma.TypeString}}}},
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, in *exportInput) (*eventsOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		return s.export(ctx, max(in.From, 1))
	})
}

// checkpoint asks the notary, with a fault when it does not sign.
func (s *Server) checkpoint(ctx context.Context) (notary.Checkpoint, error) {
	wait, cancel := context.WithTimeout(ctx, checkpointWait)
	defer cancel()
	cp, err := s.notary.Checkpoint(wait)
	switch {
	case err == nil:
		return cp, nil
	case ctx.Err() != nil:
		return cp, ctx.Err()
	}
	s.log.LogAttrs(ctx, slog.LevelError, "no checkpoint", slog.String("request", requestID(ctx)), slog.Any("err", err))
	return cp, ops.Faultf(ops.Unavailable, "the notary does not sign; /v1/audit says why")
}

func (s *Server) verify(ctx context.Context, text string) (AuditReport, error) {
	key := s.notary.Key()
	if key.String() == "" {
		return AuditReport{}, ops.Faultf(ops.Unavailable, "the notary has no key; /v1/audit says why")
	}
	var kept []notary.Checkpoint
	if text != "" {
		cp, err := key.OpenCheckpoint(text)
		if err != nil {
			return AuditReport{}, ops.Faultf(ops.BadRequest, "the checkpoint is not one of this gateway's").With("pointer", "/checkpoint")
		}
		kept = append(kept, cp)
	}
	if !s.verifying.TryLock() {
		return AuditReport{}, ops.Faultf(ops.Busy, "the log is being verified already; try again later")
	}
	defer s.verifying.Unlock()
	// What the notary itself has signed last is kept in its memory, where whoever can
	// write the journal does not reach.
	if last := s.notary.Sealed(); last.Size > 0 {
		kept = append(kept, last)
	}
	r, err := notary.Verify(ctx, s.audited, key, kept...)
	var found *notary.Tampering
	if errors.As(err, &found) {
		s.log.LogAttrs(ctx, slog.LevelError, "the journal is not what was signed", slog.Int64("position", found.Position), slog.String("what", found.What))
		return AuditReport{Found: &AuditFinding{Position: found.Position, What: found.What}}, nil
	}
	if err != nil {
		return AuditReport{}, err
	}
	return AuditReport{OK: true, Position: r.Position, Head: r.Head, Uncovered: r.Uncovered}, nil
}

// export answers with a stream, which takes a place among those of events.
func (s *Server) export(ctx context.Context, from int64) (*eventsOutput, error) {
	cp, err := s.checkpoint(ctx)
	if err != nil {
		return nil, s.problem(ctx, err)
	}
	if from > cp.Size {
		return nil, s.problem(ctx, ops.Faultf(ops.BadRequest, "there is no event %d yet", from).With("parameter", "from"))
	}
	leave, fault := s.enter(caller(ctx).ID)
	if fault != nil {
		return nil, s.problem(ctx, fault)
	}
	return &eventsOutput{func(hc huma.Context) {
		defer leave()
		r, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", "application/jsonl")
		w.WriteHeader(http.StatusOK)
		if r.Method == http.MethodHead {
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		var watching sync.WaitGroup
		watching.Go(func() {
			select {
			case <-s.stopping:
				cancel()
			case <-ctx.Done():
			}
		})
		defer watching.Wait()
		defer cancel()
		out := &piece{w: w, rc: http.NewResponseController(w), within: s.limits.Write}
		if err := notary.Export(ctx, s.audited, s.notary.Key(), cp, from, out); err != nil {
			s.log.LogAttrs(ctx, slog.LevelError, "export not finished", slog.String("request", requestID(ctx)), slog.Any("err", err))
			panic(http.ErrAbortHandler) // half an export must not look whole
		}
	}}, nil
}

// piece gives the client a bounded time for each write.
type piece struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	within time.Duration
}

func (p *piece) Write(b []byte) (int, error) {
	if err := p.rc.SetWriteDeadline(time.Now().Add(p.within)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.w.Write(b)
}
