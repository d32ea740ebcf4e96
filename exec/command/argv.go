package command

import (
	"fmt"
	"strconv"

	"inband/ops"
)

// Argv returns the words that op is started with for the given values, which
// must be those of op.Params.Parse. An optional parameter that is absent adds no
// word.
func Argv(op *ops.Op, values ops.Values) []string {
	argv := make([]string, 0, len(op.Command.Argv))
	for _, a := range op.Command.Argv {
		if a.Param == "" {
			argv = append(argv, a.Word)
			continue
		}
		switch v := values[a.Param].(type) {
		case nil:
		case string:
			argv = append(argv, v)
		case int64:
			argv = append(argv, strconv.FormatInt(v, 10))
		case bool:
			argv = append(argv, selected(op, a.Param, v)...)
		default:
			panic(fmt.Sprintf("command: op %s: parameter %s is a %T", op.Name, a.Param, v)) // Parse makes no other
		}
	}
	return argv
}

// selected returns the words that a boolean parameter stands for.
func selected(op *ops.Op, param string, v bool) []string {
	for _, p := range op.Params {
		switch {
		case p.Name != param:
		case v:
			return p.Then
		default:
			return p.Else
		}
	}
	return nil
}
