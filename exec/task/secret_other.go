//go:build !linux

package task

import "errors"

func memoryOnly(string) error { return errors.ErrUnsupported }
