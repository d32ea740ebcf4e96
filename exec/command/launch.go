package command

import (
	"os"
	"slices"
	"strings"

	"inband/ops"
)

// launch is what one call starts its program with.
type launch struct {
	argv, env []string
	// stdin is what the process reads, nil for nothing; in is the file that it reads
	// instead.
	stdin []byte
	in    *os.File
	// files are its descriptors from firstDescriptor on.
	files []*os.File
	// secrets are those that it gets, in whichever way.
	secrets []secret
}

// close closes the gateway's copies of what the process got.
func (l *launch) close() {
	if l.in != nil {
		l.in.Close()
	}
	for _, f := range l.files {
		f.Close()
	}
}

// launch opens and resolves what the process gets of values. A fault says that nothing
// ran, and then nothing stays open. The words of the launch are there in any case.
func (e *executor) launch(values ops.Values) (*launch, *ops.Fault) {
	l := &launch{argv: Argv(&e.op, values)}
	if fault := e.fill(l, values); fault != nil {
		l.close()
		return l, fault
	}
	return l, nil
}

func (e *executor) fill(l *launch, values ops.Values) (fault *ops.Fault) {
	known := map[ops.CredentialRef]secret{}
	for _, ref := range references(&e.op, values) {
		s, err := e.config.Credentials.resolve(ref)
		if err != nil {
			return notRun(ops.Unavailable, "op %s: %v; nothing ran", e.op.Name, err).With("credential", ref)
		}
		known[ref], l.secrets = s, append(l.secrets, s)
	}
	if fault := e.environment(l, known); fault != nil {
		return fault
	}
	for i := range e.op.Params {
		p := &e.op.Params[i]
		value, given := values[p.Name].(string)
		if !given {
			continue
		}
		switch {
		case p.Type == ops.Path && p.Stdin():
			l.in, fault = open(p, value, e.user, e.config.Closed)
		case p.Type == ops.Path:
			_, fault = look(p, value, e.user)
		case p.Type == ops.Text:
			l.stdin = append([]byte{}, value...) // not nil, which is no input at all
		case p.Type == ops.Secret && p.Stdin():
			l.stdin = known[ops.CredentialRef(value)].value
		}
		if fault != nil {
			return fault
		}
	}
	for _, p := range handedOver(&e.op, values) {
		f, err := sealed(known[ops.CredentialRef(values[p.Name].(string))].value)
		if err != nil {
			return notRun(ops.Unavailable, "op %s: a descriptor for the parameter %s: %v; nothing ran", e.op.Name, p.Name, err)
		}
		l.files = append(l.files, f)
	}
	return nil
}

// standardEnvironment is what every program sees.
var standardEnvironment = []string{"LANG=C.UTF-8"}

// environment makes the environment of a launch.
func (e *executor) environment(l *launch, known map[ops.CredentialRef]secret) *ops.Fault {
	variables := e.op.Command.Env
	if !slices.ContainsFunc(variables, func(v ops.EnvVar) bool { return v.Name == "LANG" }) {
		l.env = slices.Clone(standardEnvironment)
	}
	for _, v := range variables {
		value := v.Value
		if v.Credential != "" {
			if value = string(known[v.Credential].value); strings.Contains(value, "\x00") {
				return notRun(ops.Unavailable, "op %s: the credential %s holds a NUL and cannot be a variable; nothing ran", e.op.Name, v.Credential).
					With("credential", v.Credential)
			}
		}
		l.env = append(l.env, v.Name+"="+value)
	}
	return nil
}
