package webhook

import (
	"sync/atomic"
	"time"

	"inband/ops"
	"inband/service"
)

// state is what operators see of an adaptor.
type state struct {
	in, out, limited atomic.Pointer[time.Time]
	lastError        atomic.Pointer[string] // of the last post, nil if it went well
	refused          atomic.Int64           // events whose signature was not right
	failed           atomic.Int64           // posts and edits, rate limits aside
	skipped          atomic.Int64           // messages of the history that could not be read
	alerts           atomic.Int64
	behind           atomic.Bool // the history could not be read the last time
}

// State says how the adaptor is.
func (a *Adaptor) State() service.AdaptorState {
	s := service.AdaptorState{Name: a.cfg.Name, Kind: "webhook", Running: a.taker() != nil, Refused: a.state.refused.Load(), Failed: a.state.failed.Load(),
		Skipped: a.state.skipped.Load(), Alerts: a.state.alerts.Load(), Behind: a.state.behind.Load()}
	for to, at := range map[*string]*time.Time{&s.LastIn: a.state.in.Load(), &s.LastOut: a.state.out.Load(), &s.RateLimited: a.state.limited.Load()} {
		if at != nil {
			*to = ops.Stamp(*at)
		}
	}
	if at := a.state.limited.Load(); at != nil && a.now().After(*at) {
		s.RateLimited = ""
	}
	if e := a.state.lastError.Load(); e != nil {
		s.LastError = *e
	}
	return s
}
