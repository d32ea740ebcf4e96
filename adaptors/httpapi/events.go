package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// Event is the data of one server-sent event.
type Event struct {
	Position int64           `json:"position" doc:"Its place in the journal, and its id in the stream."`
	Stream   string          `json:"stream" doc:"What it happened to."`
	Version  int64           `json:"version" doc:"Its place in that stream."`
	Kind     string          `json:"kind" doc:"What happened; the event's type in the stream too."`
	At       string          `json:"at" format:"date-time"`
	Body     json.RawMessage `json:"body"`
}

type eventsInput struct {
	After  string `query:"after" maxLength:"19" pattern:"^[0-9]+$" doc:"The position after which to begin; absent, the events from now on."`
	Thread string `query:"thread" maxLength:"64" doc:"Only the events of this thread."`
	LastID string `header:"Last-Event-ID" maxLength:"19" pattern:"^[0-9]+$" doc:"As after, which it overrides; event sources send it when they connect again."`
}

type eventsOutput struct{ Body func(huma.Context) }

func (s *Server) eventRoute() {
	schemas := s.api.OpenAPI().Components.Schemas
	schemaOf[Event](schemas) // the form of data, which the stream's media type cannot say
	huma.Register(s.api, huma.Operation{
		OperationID: "events", Method: http.MethodGet, Path: "/v1/events", Summary: "What happens, as server-sent events",
		Description: "Operators see everything; others name a thread that they may see. Each event has its position as `id`, its kind as `event`, " +
			"and an Event (see the schemas) as `data`. A client that reads too slowly is disconnected and comes back with its Last-Event-ID.",
		Security: withToken,
		Responses: map[string]*huma.Response{
			"200":     {Description: "The stream", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}}},
			"default": faultResponse(schemas),
		},
	}, s.stream)
}

func (s *Server) stream(ctx context.Context, in *eventsInput) (*eventsOutput, error) {
	by := caller(ctx)
	if in.Thread != "" {
		if err := s.replies.MaySee(ctx, by, in.Thread); err != nil {
			return nil, s.problem(ctx, err)
		}
	} else if d := s.door.Policy().Decide(access.Request{By: by, Action: access.Manage}); !d.Allowed {
		return nil, s.problem(ctx, ops.Faultf(ops.NotPermitted, "%s may not see every event; name a thread: ?thread=ID", by))
	}
	after, err := s.position(ctx, in)
	if err != nil {
		return nil, s.problem(ctx, err)
	}
	leave, fault := s.enter(by.ID)
	if fault != nil {
		return nil, s.problem(ctx, fault)
	}
	return &eventsOutput{func(hc huma.Context) {
		defer leave()
		r, w := humachi.Unwrap(hc)
		// Again, now that the position is known: a revocation since then stands
		// behind it, and ends the stream when it is read.
		if _, err := s.authenticate(r); err != nil {
			writeFault(w, s.fault(ctx, err))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		if r.Method == http.MethodHead {
			return
		}
		st := &stream{w: w, rc: http.NewResponseController(w), within: s.limits.Write}
		err := s.follow(r, st, by, after, in.Thread)
		leave()
		s.log.LogAttrs(ctx, slog.LevelDebug, "stream ended", slog.String("request", requestID(ctx)), slog.Any("err", err))
		_ = st.rc.SetWriteDeadline(time.Now().Add(s.limits.Write)) // for the end of the body
	}}, nil
}

// position is the event after which the stream begins.
func (s *Server) position(ctx context.Context, in *eventsInput) (int64, error) {
	head, err := s.events.Head(ctx)
	if err != nil {
		return 0, err
	}
	asked := in.After
	if in.LastID != "" {
		asked = in.LastID
	}
	if asked == "" {
		return head, nil
	}
	after, err := strconv.ParseInt(asked, 10, 64)
	if err != nil || after > head {
		return 0, ops.Faultf(ops.BadRequest, "there is no event %s yet", asked)
	}
	return after, nil
}

// enter takes a place among the streams, bounded in all and for each identity.
func (s *Server) enter(id ops.IdentityID) (leave func(), f *ops.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.isStopping():
		return nil, ops.Faultf(ops.Unavailable, "the gateway is stopping")
	case s.open >= s.limits.Streams:
		return nil, ops.Faultf(ops.Busy, "%d streams are open; try again later", s.open)
	case s.streams[id] >= s.limits.OwnStreams:
		return nil, ops.Faultf(ops.Busy, "%s has %d streams open; close one", id, s.streams[id])
	}
	s.open++
	s.streams[id]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		if s.streams[id]--; s.streams[id] == 0 {
			delete(s.streams, id)
		}
	}), nil
}

var (
	errRevoked  = errors.New("the identity was revoked")
	errStopping = errors.New("the gateway is stopping")
)

// follow writes the events after a position until the client goes, its identity is
// revoked, or the server stops.
func (s *Server) follow(r *http.Request, st *stream, by ops.Identity, after int64, thread string) error {
	ctx, cancel := context.WithCancel(r.Context())
	events := make(chan journal.Event, 64)
	ended := make(chan error, 1)
	go func() {
		ended <- s.events.Tail(ctx, after, func(e journal.Event) error {
			if e.Kind == "agent.revoked" && e.Stream == "identity/"+string(by.ID) {
				return errRevoked
			}
			if e.Kind == "agent.rotated" && e.Stream == "identity/"+string(by.ID) {
				// It may be a rotation before the token of this stream was made.
				if _, err := s.authenticate(r); err != nil {
					return err
				}
			}
			if thread != "" && e.Stream != "thread/"+thread {
				return nil
			}
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		close(events)
	}()
	defer func() {
		cancel()
		for range events { // until Tail has returned
		}
	}()

	if err := st.comment("events after " + strconv.FormatInt(after, 10)); err != nil {
		return err
	}
	beat := time.NewTicker(s.limits.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return <-ended
			}
			if err := st.event(e, len(events) > 0); err != nil {
				return err
			}
		case <-beat.C:
			// One that is far behind has not read of its revocation yet.
			if _, err := s.authenticate(r); err != nil {
				return err
			}
			if err := st.comment("still here"); err != nil {
				return err
			}
		case <-s.stopping:
			return errors.Join(errStopping, st.comment("the gateway is stopping"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stream writes server-sent events (HTML standard, 9.2) to one client, which has a
// bounded time to take each piece.
type stream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	within time.Duration
	buf    bytes.Buffer
}

// event writes e; more says that another follows at once, so that this need not be
// sent yet.
func (st *stream) event(e journal.Event, more bool) error {
	data := Event{Position: e.Position, Stream: e.Stream, Version: e.Version, Kind: e.Kind, At: ops.Stamp(e.At), Body: e.Body}
	if !json.Valid(e.Body) { // some feature's own form; all of ours are JSON
		data.Body = json.RawMessage("null")
	}
	b, err := json.Marshal(data) // compact, so on one line
	if err != nil {
		return err
	}
	st.buf.WriteString("id: " + strconv.FormatInt(e.Position, 10) + "\nevent: " + e.Kind + "\ndata: ")
	st.buf.Write(b)
	st.buf.WriteString("\n\n")
	const enough = 64 << 10 // bytes
	if more && st.buf.Len() < enough {
		return nil
	}
	return st.send()
}

func (st *stream) comment(text string) error {
	st.buf.WriteString(": " + text + "\n\n")
	return st.send()
}

func (st *stream) send() error {
	defer st.buf.Reset()
	if err := st.rc.SetWriteDeadline(time.Now().Add(st.within)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := st.w.Write(st.buf.Bytes()); err != nil {
		return err
	}
	return st.rc.Flush()
}
