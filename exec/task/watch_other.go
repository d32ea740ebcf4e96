//go:build !linux

package task

import (
	"io/fs"
	"syscall"
)

const nonblock = 0

func signalName(sig syscall.Signal) string { return sig.String() }

func occupied(info fs.FileInfo) int64 { return info.Size() }
