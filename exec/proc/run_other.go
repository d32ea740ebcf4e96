//go:build !linux

package proc

import (
	"context"
	"errors"
)

var errLinux = errors.New("processes are run on Linux only")

func run(context.Context, Spec) (Result, error) { return Result{}, errLinux }

type ahead struct{}

func discard() {}

func enclose(string) *Enclosure { return &Enclosure{Why: errLinux} }

func (e *Enclosure) leave() error { return nil }

// Identify returns an error.
func Identify(int) (Process, error) { return Process{}, errLinux }

// Lives returns false.
func (p Process) Lives() bool { return false }

// Namespaces returns an error.
func Namespaces(bool) ([]string, error) { return nil, errLinux }

// Init does nothing.
func Init(func([]byte) (Hooks, error)) {}
