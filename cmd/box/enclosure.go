package main

import (
	"crypto/sha256"
	"encoding/hex"

	"inband/exec/proc"
)

// enclose ends what an earlier gateway on this state folder left behind when it was
// killed, and puts this process into a cgroup of its own. The store is open, so no other
// gateway of this folder lives.
func (g *gateway) enclose() error {
	if !g.cfg.Enclose {
		return nil
	}
	path, err := g.cfg.Folder.real()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(path))
	if g.enclosure, err = proc.Enclose(hex.EncodeToString(sum[:8])); err != nil {
		return err
	}
	if e := g.enclosure; len(e.Ended) > 0 || e.Survivors > 0 {
		g.log.Warn("ended what an earlier gateway had left running", "processes", e.Ended, "survivors", e.Survivors)
	}
	if why := g.enclosure.Why; why != nil {
		g.log.Warn("no cgroup: what a program leaves running is found by its working folder if this gateway is killed", "why", why)
	}
	return nil
}

// disclose leaves the cgroup.
func (g *gateway) disclose() {
	if g.enclosure == nil {
		return
	}
	if err := g.enclosure.Close(); err != nil {
		g.log.Warn("the cgroup stays", "err", err) // the next gateway removes it
	}
	g.enclosure = nil
}
