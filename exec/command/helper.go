package command

import (
	"encoding/json"
	"fmt"
	"slices"

	"inband/exec/proc"
	"inband/exec/sandbox"
)

// namespaced says which namespaces the process of p gets, if it requires any.
func namespaced(p *sandbox.Policy) (err error) {
	if !slices.Contains(p.Require, sandbox.LayerNamespaces) {
		return nil
	}
	// Without a network the process has one of its own, with nobody in it. One that asks
	// the kernel about interfaces asks about those of the machine.
	if p.Namespaces, err = proc.Namespaces(p.Network != sandbox.Netlink && p.Network != sandbox.AnyNetwork); err != nil {
		return &sandbox.MissingError{Layers: []string{sandbox.LayerNamespaces}, Err: fmt.Errorf("%s: %w", sandbox.LayerNamespaces, err)}
	}
	return nil
}

// Confine has the process of spec kept to p: by the thread that starts it or, where p
// requires namespaces, by the init around it, for which main must call [Helper]. It
// returns what is applied. A layer that cannot be had is a *sandbox.MissingError.
func Confine(spec *proc.Spec, p sandbox.Policy) (sandbox.Layers, error) {
	box, err := newSandbox(p)
	if err != nil {
		return sandbox.Layers{}, err
	}
	if err := confine(spec, box, nil); err != nil {
		return sandbox.Layers{}, err
	}
	return box.Layers(), nil
}

// task is what the init around a process is told.
type task struct {
	Policy sandbox.Policy
	// Layers are what the gateway says that is applied.
	Layers sandbox.Layers
	// Program is what must have been loaded, empty for a canary.
	Program []taskFile
}

// confine has the process of spec, which is p unless that is nil, confined by box: by the
// gateway's own thread, or by the init of the namespaces that it has.
func confine(spec *proc.Spec, box confiner, p *program) error {
	in, ok := box.(interface{ Policy() sandbox.Policy })
	if !ok || len(in.Policy().Namespaces) == 0 {
		spec.Confine, spec.Aside, spec.Limit = box.Confine, box.Aside, limit(box, p)
		return nil
	}
	t := task{Policy: in.Policy(), Layers: box.Layers()}
	if p != nil {
		t.Program = p.told()
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return err
	}
	spec.Inside = &proc.Inside{Network: slices.Contains(t.Policy.Namespaces, "net"), Task: raw}
	return nil
}

// limit limits a process that stands before its first instruction, if it is p.
func limit(box confiner, p *program) func(pid int) error {
	return func(pid int) error {
		if p != nil {
			if err := p.started(pid); err != nil {
				return err
			}
		}
		return box.Limit(pid)
	}
}
