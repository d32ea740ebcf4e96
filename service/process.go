package service

import (
	"inband/ops"
)

// OpProcess is what the process of a command op may do: what its op file says, with
// what it does not say filled in. An empty list is none.
type OpProcess struct {
	Program    string      `json:"program"`
	Read       []string    `json:"read"`  // beyond the program, the system's libraries and its private folder
	Write      []string    `json:"write"` // beyond its private folder
	Exec       []string    `json:"exec"`  // beyond the program
	Network    ops.Network `json:"network"`
	RunAs      string      `json:"run_as,omitempty"` // empty: nobody below a root gateway, else the gateway's user
	Unconfined bool        `json:"unconfined,omitempty"`
	TimeoutMS  int64       `json:"timeout_ms"`
}

// process is what the process of e may do, nil if it has none.
func process(e *ops.Entry) *OpProcess {
	c := e.Command
	if c == nil {
		return nil
	}
	p := &OpProcess{Program: c.Argv[0].Word, Read: c.FS.Read, Write: c.FS.Write, Exec: c.FS.Exec, Network: c.Network,
		RunAs: c.RunAs, Unconfined: c.Unconfined, TimeoutMS: e.Timeout.Milliseconds()}
	for _, list := range []*[]string{&p.Read, &p.Write, &p.Exec} {
		if *list == nil {
			*list = []string{}
		}
	}
	if p.Network == "" {
		p.Network = ops.NetworkNone
	}
	return p
}
