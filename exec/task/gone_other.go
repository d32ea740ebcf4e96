//go:build !linux

package task

import (
	"errors"

	"inband/exec/proc"
)

func (r *Runner) pass(string, *record, proc.Process) pass { return pass{err: errors.ErrUnsupported} }

func end(proc.Process) bool { return false }

func (r *Runner) yield(int) {}
