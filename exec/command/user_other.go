//go:build !linux

package command

import (
	"errors"

	"inband/exec/sandbox"
)

func asUser(u *sandbox.User, f func()) error {
	if u != nil {
		return errors.ErrUnsupported
	}
	f()
	return nil
}

func unconfine(sandbox.Policy, bool) (confiner, error) { return nil, errors.ErrUnsupported }
