//go:build !linux

package sandbox

import "errors"

// Sandbox is a prepared policy.
type Sandbox struct{}

var errLinux = errors.New("no sandbox: processes are confined on Linux only")

// New returns an error.
func New(Policy) (*Sandbox, error) { return nil, errLinux }

// Policy returns nothing.
func (s *Sandbox) Policy() Policy { return Policy{} }

// Layers returns nothing.
func (s *Sandbox) Layers() Layers { return Layers{} }

// Confine returns an error.
func (s *Sandbox) Confine(string) error { return errLinux }

// Limit returns an error.
func (s *Sandbox) Limit(int) error { return errLinux }

// Aside returns an error.
func (s *Sandbox) Aside() error { return errLinux }

// Stamp returns nothing.
func (s *Sandbox) Stamp() string { return "" }
