package command

import (
	"fmt"
	"slices"
	"strconv"

	"inband/ops"
)

// firstDescriptor is the number of the first file that a process gets beyond the
// standard three.
const firstDescriptor = 3

// Argv returns the words that op is started with for the given values, which
// must be those of op.Params.Parse. An optional parameter that is absent adds no
// word. The word of a secret is where the process reads it, never what it is.
func Argv(op *ops.Op, values ops.Values) []string {
	argv := make([]string, 0, len(op.Command.Argv))
	descriptors := handedOver(op, values)
	for _, a := range op.Command.Argv {
		if a.Param == "" {
			argv = append(argv, a.Word)
			continue
		}
		p := find(op.Params, a.Param)
		switch v := values[a.Param].(type) {
		case nil:
		case string:
			switch p.Type {
			case ops.Path:
				v = p.Absolute(v)
			case ops.Secret:
				v = fmt.Sprintf("/dev/fd/%d", firstDescriptor+slices.Index(descriptors, p))
			}
			argv = append(argv, v)
		case int64:
			argv = append(argv, strconv.FormatInt(v, 10))
		case bool:
			if v {
				argv = append(argv, p.Then...)
			} else {
				argv = append(argv, p.Else...)
			}
		default:
			panic(fmt.Sprintf("command: op %s: parameter %s is a %T", op.Name, a.Param, v)) // Parse makes no other
		}
	}
	return argv
}

// find returns the parameter name, nil if there is none.
func find(params ops.Params, name string) *ops.Param {
	for i := range params {
		if params[i].Name == name {
			return &params[i]
		}
	}
	return nil
}

// handedOver are the secrets that the process gets as a descriptor each, in the order of
// the descriptors.
func handedOver(op *ops.Op, values ops.Values) []*ops.Param {
	var all []*ops.Param
	for i := range op.Params {
		p := &op.Params[i]
		if _, given := values[p.Name]; given && p.Type == ops.Secret && !p.Stdin() {
			all = append(all, p)
		}
	}
	return all
}

// checkParams says why the parameters of op do not fit its argv: each must reach the
// process in one way, and only one of them can be its standard input.
func checkParams(op *ops.Op) error {
	var stdin string
	for i := range op.Params {
		p := &op.Params[i]
		used := slices.ContainsFunc(op.Command.Argv, func(a ops.Arg) bool { return a.Param == p.Name })
		switch {
		case p.Stdin() && used:
			return fmt.Errorf("the parameter %s is its standard input and stands in its argv too", p.Name)
		case p.Stdin() && stdin != "":
			return fmt.Errorf("the parameters %s and %s both are its standard input", stdin, p.Name)
		case p.Stdin():
			stdin = p.Name
		}
	}
	for _, a := range op.Command.Argv {
		if a.Param != "" && find(op.Params, a.Param) == nil {
			return fmt.Errorf("its argv uses the parameter %q, which it does not have", a.Param)
		}
	}
	return nil
}
