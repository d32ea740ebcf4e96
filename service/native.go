package service

import (
	"context"
	"encoding/json"
	"fmt"

	"inband/ops"
)

// ToolsList returns the op tools.list, which lists the registry of d that is in force. A
// thread is shown its text.
func ToolsList(d *Door) ops.Bound {
	return ops.Bound{Op: ops.ToolsList(), Executor: ops.ExecutorFunc(func(_ context.Context, c ops.Call) (ops.Outcome, error) {
		return ops.Success(ops.NewResult(d.Tools(c.By), "/text")), nil
	})}
}

// BoxExec returns the op box.exec over reads, whose names are its actions.
func BoxExec(reads *Reads) ops.Bound {
	return ops.Bound{Op: ops.BoxExec(reads.Names()), Executor: ops.ExecutorFunc(func(ctx context.Context, c ops.Call) (ops.Outcome, error) {
		var p struct{ Action, Arg string }
		if err := json.Unmarshal(c.Params, &p); err != nil {
			return ops.Outcome{}, fmt.Errorf("parameters of box.exec: %w", err)
		}
		v, err := reads.Do(ctx, c.By, p.Action, Query{Arg: p.Arg})
		if err != nil {
			if f := AsFault(err); f.Code != ops.Internal && ctx.Err() == nil {
				return ops.Failure(f), nil
			}
			return ops.Outcome{}, err
		}
		return ops.Success(ops.NewResult(v, "")), nil
	})}
}
