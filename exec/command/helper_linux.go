package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"inband/exec/proc"
	"inband/exec/sandbox"
)

// Helper must be called by main before anything else but [Canary]. In the init of a
// process that has namespaces of its own it does not return (package proc): it confines
// the process as the gateway would, inside.
func Helper() { proc.Init(hooks) }

// hooks are what an init does by its task.
func hooks(raw []byte) (proc.Hooks, error) {
	var t task
	if err := json.Unmarshal(raw, &t); err != nil {
		return proc.Hooks{}, fmt.Errorf("it does not know what to do: %w", err)
	}
	box, err := sandbox.New(t.Policy)
	if err != nil {
		return proc.Hooks{}, err
	}
	// What results and receipts say is what the gateway knows.
	said, err := json.Marshal(t.Layers)
	applied, also := json.Marshal(box.Layers())
	if err := errors.Join(err, also); err != nil {
		return proc.Hooks{}, err
	}
	if string(said) != string(applied) {
		return proc.Hooks{}, fmt.Errorf("inside of its namespaces the layers are %s; want %s", applied, said)
	}
	var p *program
	if len(t.Program) > 0 {
		p = new(program)
		for _, f := range t.Program {
			p.files = append(p.files, programFile{f.Path, f.Real, identity{f.Dev, f.Ino, f.Size, f.Changed, f.Modified}})
		}
	}
	return proc.Hooks{Confine: box.Confine, Aside: box.Aside, Limit: limit(box, p)}, nil
}

// taskFile is a programFile that can be told.
type taskFile struct {
	Path, Real        string
	Dev, Ino          uint64
	Size              int64
	Changed, Modified syscall.Timespec
}

func (p *program) told() (all []taskFile) {
	for _, f := range p.files {
		all = append(all, taskFile{f.path, f.real, f.id.dev, f.id.ino, f.id.size, f.id.ctime, f.id.mtime})
	}
	return all
}
