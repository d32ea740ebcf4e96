package service

import "inband/ops"

// Condition is what the gateway says of the means that its ops have.
type Condition struct {
	Layers   []Layer      // of the sandbox, those that an op needs first
	Disabled []DisabledOp // by name
	Reloads  Reloads
}

// Layer is one layer of the sandbox, as this gateway can apply it.
type Layer struct {
	Name    string `json:"name"`             // as in op files
	Needed  bool   `json:"needed"`           // ops are disabled without it
	Applied bool   `json:"applied"`          // it can be had here
	Detail  string `json:"detail,omitempty"` // which one, or why it cannot be had
}

// DisabledOp is an op whose calls cannot run as things are.
type DisabledOp struct {
	Op     ops.OpName `json:"op"`
	Why    string     `json:"why"`
	Layers []string   `json:"layers,omitempty"` // of the sandbox, that it misses
}

// Reloads is what became of the readings of the op files and the policy since the start.
type Reloads struct {
	Failed   int64  `json:"failed"`              // changed nothing
	FailedAt string `json:"failed_at,omitempty"` // the last of them
}
