package plane

import (
	"errors"
	"fmt"

	"inband/ops"
)

// final is a fault that no repetition can change.
func final(code ops.Code, format string, args ...any) *ops.Fault {
	return ops.Faultf(code, format, args...).With("final", true)
}

// finally makes a fault final.
func finally(err error) error {
	if f := (*ops.Fault)(nil); errors.As(err, &f) {
		return f.With("final", true)
	}
	return err
}

// orFault is an error, or the fault as one.
func orFault(f *ops.Fault, err error) error {
	if err != nil {
		return err
	}
	if f != nil {
		return f
	}
	return nil
}

// stored makes an error of the store what an outsider is told: to try again. Faults stay
// as they are.
func stored(err error) error {
	if f := (*ops.Fault)(nil); err == nil || errors.As(err, &f) {
		return err
	}
	return fmt.Errorf("%w (%w)", ops.Faultf(ops.Unavailable, "the store takes no writes now; nothing was changed, so send the same again"), err)
}

// badParam says what is wrong with a parameter, and what would be right.
func badParam(pointer, why, want string) *ops.Fault {
	return ops.Faultf(ops.InvalidParams, "%s %s; want %s", pointer, why, want).With("pointer", pointer).With("want", want)
}

// shown quotes an id of the caller's, as long as it may be.
func shown(id string) string {
	if len(id) > 64 {
		id = id[:64]
	}
	return fmt.Sprintf("%q", id)
}
