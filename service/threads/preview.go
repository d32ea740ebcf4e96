package threads

import (
	"context"
	"fmt"
	"slices"
	"time"

	"inband/envelope"
	"inband/ops"
	"inband/service/access"
	"inband/service/journal"
)

// PreviewKey stands in a preview where a wake has its key. It can be none: keys have no
// zeros.
const PreviewKey = "0000-0000-0000"

// previewWake stands where it has its id: no wake was made in the year 1970.
const previewWake WakeID = "w-00000000000000000000000000"

// Preview is an envelope as it would be now. Nobody was woken by it.
type Preview struct {
	Agent ops.IdentityID `json:"agent"`
	Text  string         `json:"text"`
	Bytes int            `json:"bytes"`           // of Text
	Frame int            `json:"frame"`           // of them, those beside the errand and the words of strangers
	Shown *Range         `json:"shown,omitempty"` // where the words of strangers stand in Text, absent without any
}

// Range is a range of bytes, from Start up to End.
type Range struct {
	Start int `json:"start"`
	End   int `json:"end"`
}

// Preview writes the envelope that e would be given in now. Nothing is kept of it, and
// its key is PreviewKey.
//
// by must be allowed to manage, or it is NotPermitted; an agent that does not exist or
// was revoked is NotFound.
func (t *Threads) Preview(ctx context.Context, by ops.Identity, e Errand) (Preview, error) {
	if d := t.door.Policy().Decide(access.Request{By: by, Action: access.Manage}); !d.Allowed {
		return Preview{}, ops.Faultf(ops.NotPermitted, "%s may not see the envelopes of others: %s", by, d.Rule)
	}
	if e.Limit == 0 {
		e.Limit = StandardErrand
	}
	if fault := e.check(); fault != nil {
		return Preview{}, fault
	}
	e.Ops = slices.Clone(e.Ops)
	for i, name := range e.Ops {
		op, ok := t.resolve(string(name))
		if !ok {
			return Preview{}, t.registry.Current().UnknownOp(name)
		}
		e.Ops[i] = op
	}
	var now time.Time
	err := t.store.View(ctx, func(tx journal.Tx) error {
		now = tx.Now()
		who, live, err := access.Live(tx, e.Agent)
		if err == nil && (!live || who.Role != ops.Agent) {
			err = ops.Faultf(ops.NotFound, "there is no agent %q", e.Agent)
		}
		return err
	})
	if err != nil {
		return Preview{}, err
	}
	text, shown, err := envelope.Wrap(t.envelopeOf(e, previewWake, PreviewKey, now.Add(e.Limit)))
	if err != nil {
		return Preview{}, fmt.Errorf("envelope of a preview: %w", err)
	}
	p := Preview{Agent: e.Agent, Text: text, Bytes: len(text), Frame: len(text) - len(e.Text) - (shown.End - shown.Start)}
	if shown.End > shown.Start {
		p.Shown = &Range{shown.Start, shown.End}
	}
	return p, nil
}
