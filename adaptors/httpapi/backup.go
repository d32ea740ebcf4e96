package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"inband/ops"
)

// Backups makes backups of the gateway, one at a time: another is Busy.
type Backups interface {
	// Backup returns one that is ready to be written. The caller closes it.
	Backup(ctx context.Context, by ops.Identity) (Backup, error)
}

// Backup is a state of the gateway as of one moment.
type Backup interface {
	Write(ctx context.Context, w io.Writer) error // after an error w holds no whole backup
	Close() error
}

func (s *Server) backupRoute() {
	if s.backups == nil {
		return
	}
	schemas := s.api.OpenAPI().Components.Schemas
	huma.Register(s.api, huma.Operation{
		OperationID: "backup", Method: http.MethodPost, Path: "/v1/backup", Summary: "Everything that the gateway keeps, as one archive",
		Description: "For operators, one at a time. A tar archive whose last file, manifest.json, names all others with their digests; without it the backup is not whole. " +
			"It holds the gateway's keys and credentials. `box backup verify` checks it, `box restore` makes a state folder of it.",
		Security: withToken,
		Responses: map[string]*huma.Response{
			"200":     {Description: "The backup", Content: map[string]*huma.MediaType{"application/x-tar": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}},
			"default": faultResponse(schemas),
		},
	}, func(ctx context.Context, _ *none) (*eventsOutput, error) {
		if err := s.manages(ctx); err != nil {
			return nil, err
		}
		leave, fault := s.enter(caller(ctx).ID)
		if fault != nil {
			return nil, s.problem(ctx, fault)
		}
		b, err := s.backups.Backup(ctx, caller(ctx))
		if err != nil {
			leave()
			return nil, s.problem(ctx, err)
		}
		return &eventsOutput{func(hc huma.Context) {
			defer leave()
			r, w := humachi.Unwrap(hc)
			defer func() {
				if err := b.Close(); err != nil {
					s.log.LogAttrs(ctx, slog.LevelError, "what a backup has left is not removed", slog.String("request", requestID(ctx)), slog.Any("err", err))
				}
			}()
			w.Header().Set("Content-Type", "application/x-tar")
			w.WriteHeader(http.StatusOK)
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
			begun := time.Now()
			if err := b.Write(ctx, &piece{w: w, rc: http.NewResponseController(w), within: s.limits.Write}); err != nil {
				s.log.LogAttrs(ctx, slog.LevelError, "backup not finished", slog.String("request", requestID(ctx)), slog.Any("err", err))
				panic(http.ErrAbortHandler) // half a backup must not look whole
			}
			s.log.LogAttrs(ctx, slog.LevelInfo, "backed up", slog.String("request", requestID(ctx)), slog.Duration("took", time.Since(begun)))
		}}, nil
	})
}
