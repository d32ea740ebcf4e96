package command

import (
	"os"

	"inband/ops"
)

// launch is what one call starts its program with.
type launch struct {
	argv []string
	// stdin is what the process reads, nil for nothing; in is the file that it reads
	// instead.
	stdin []byte
	in    *os.File
}

// close closes the gateway's copies of what the process got.
func (l *launch) close() {
	if l.in != nil {
		l.in.Close()
	}
}

// launch opens what the process gets of values. After a fault, which says that nothing
// ran, nothing stays open.
func (e *executor) launch(values ops.Values) (*launch, *ops.Fault) {
	l := &launch{argv: Argv(&e.op, values)}
	for i := range e.op.Params {
		p := &e.op.Params[i]
		value, given := values[p.Name].(string)
		if !given {
			continue
		}
		var fault *ops.Fault
		switch {
		case p.Type == ops.Path && p.Stdin():
			l.in, fault = open(p, value)
		case p.Type == ops.Path:
			_, fault = look(p, value)
		case p.Type == ops.Text:
			l.stdin = append([]byte{}, value...) // not nil, which is no input at all
		}
		if fault != nil {
			l.close()
			return nil, fault
		}
	}
	return l, nil
}
