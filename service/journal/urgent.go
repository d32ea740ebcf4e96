package journal

import "context"

type urgent struct{}

// Urgent marks ctx for an [Store.Update] that loses its meaning by waiting, such as a
// heartbeat or a cancel: of the operations that wait, a store takes the urgent ones first.
// It changes nothing of what an Update promises, and an operation that has begun is not
// interrupted for it. Where everything is urgent, nothing is: whoever marks much delays
// all others, which are served beside it, but slowly.
func Urgent(ctx context.Context) context.Context { return context.WithValue(ctx, urgent{}, true) }

// IsUrgent reports whether ctx is marked, for engines.
func IsUrgent(ctx context.Context) bool { return ctx.Value(urgent{}) != nil }
