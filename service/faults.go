package service

import (
	"context"
	"errors"

	"inband/ops"
	"inband/service/journal"
)

// AsFault returns err as the fault that an outsider may see: err itself if it is
// one, else a general one that keeps the particulars for the log. It returns nil
// for nil.
func AsFault(err error) *ops.Fault {
	var f *ops.Fault
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ops.Faultf(ops.Unavailable, "the request ended before it was served")
	case errors.Is(err, journal.ErrFull):
		return ops.Faultf(ops.Unavailable, "the store is full; nothing was written")
	case errors.Is(err, journal.ErrScarce):
		return ops.Faultf(ops.Busy, "the machine has no descriptor left for the store; nothing was written, try again soon")
	case errors.Is(err, journal.ErrBusy):
		return ops.Faultf(ops.Busy, "another program holds the store; nothing was written, try again soon")
	case errors.Is(err, journal.ErrTooLong):
		return ops.Faultf(ops.Unavailable, "it took too long to read; ask for less at a time")
	case errors.Is(err, journal.ErrClosed):
		return ops.Faultf(ops.Unavailable, "the gateway is stopping")
	case errors.Is(err, journal.ErrUnknownCommit):
		return ops.Faultf(ops.Unavailable, "the store cannot tell whether this was written; ask again with the same key")
	}
	return ops.Faultf(ops.Internal, "internal error; the gateway's log has the particulars")
}
