package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"inband/ops"
	"inband/service"
	"inband/service/timers"
)

// Timers looks after timers, and reads wakes. Timers are made and ended by the ops
// cron.create and cron.cancel, and read under the names of their reads.
type Timers interface {
	Pause(ctx context.Context, by ops.Identity, id string) (timers.TimerShowing, error)
	Resume(ctx context.Context, by ops.Identity, id string) (timers.TimerShowing, error)
	RunNow(ctx context.Context, by ops.Identity, id string) (timers.TimerShowing, error)
	Wakes
}

type timersInput struct {
	Page
	State string `query:"state" maxLength:"32" enum:"active,paused,ended"`
	Agent string `query:"agent" maxLength:"64" doc:"Whom they wake."`
}

func (t timersInput) query() service.Query {
	return service.Query{Limit: t.Limit, After: t.After, Filter: map[string]string{"state": t.State, "agent": t.Agent}}
}

// timerRoutes are those of timers.
func (s *Server) timerRoutes() {
	read[timersInput, timers.TimerPage](s, "timers", "/v1/timers", "Timers, newest first")
	read[oneInput, timers.TimerShowing](s, "timer", "/v1/timers/{id}", "One timer, with its latest occurrences")

	type shown struct{ Body timers.TimerShowing }
	change := func(name, summary, description string, do func(context.Context, ops.Identity, string) (timers.TimerShowing, error)) {
		huma.Register(s.api, huma.Operation{
			OperationID: "timer." + name, Method: http.MethodPost, Path: "/v1/timers/{id}/" + name, Summary: summary,
			Description: "For operators. A timer that has ended is a CONFLICT. " + description, Security: withToken,
		}, func(ctx context.Context, in *oneInput) (*shown, error) {
			t, err := do(ctx, caller(ctx), in.ID)
			if err != nil {
				return nil, s.problem(ctx, err)
			}
			return &shown{t}, nil
		})
	}
	change("pause", "Have a timer be due no more until it is resumed", "One that is paused already is shown.", s.timers.Pause)
	change("resume", "Have a timer be due again from now on", "One that is active already is shown. What was due meanwhile is not missed.", s.timers.Resume)
	change("run", "Have a timer wake its agent now, beside its schedule",
		"It counts as a run. While the wake of the last one is open, it is queued or run as the timer's overlap says; where that is skip, it is a CONFLICT.", s.timers.RunNow)
}
