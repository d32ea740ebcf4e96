//go:build !linux

package proc

import (
	"context"
	"errors"
)

func run(context.Context, Spec) (Result, error) {
	return Result{}, errors.New("processes are run on Linux only")
}
