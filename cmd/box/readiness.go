package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"inband/exec/command"
	"inband/exec/proc"
	"inband/exec/sandbox"
	"inband/ops"
	"inband/service"
	"inband/service/journal"
)

// opSet is the ops of one load.
type opSet struct {
	registry *ops.Registry
	disabled []command.Problem // the sandbox of which cannot be had, or does not hold
}

// missing names what keeps the gateway from being ready. Strangers read it: it names no
// ops. An op whose program is not installed keeps nobody from anything, but one that
// cannot be confined does: whoever relies on this gateway would be refused.
func (g *gateway) missing() []string {
	var missing []string
	if g.stopping.Load() {
		missing = append(missing, "the gateway is stopping")
	}
	err := g.store.Err()
	if errors.Is(err, journal.ErrFull) {
		// Somebody may have made room, and nobody may write while this says no.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err = g.store.Update(ctx, func(journal.Tx) error { return nil })
		cancel()
	}
	if err != nil {
		missing = append(missing, "the store takes no writes: "+err.Error())
	}
	if late := g.unsigned(); late != "" {
		missing = append(missing, late)
	}
	missing = append(missing, g.chats.missing()...)
	if set := g.ops.Load(); set != nil {
		missing = append(missing, unconfined(set.disabled)...)
	}
	return missing
}

// unconfined says which layers of the sandbox disabled ops miss, a line each, and how
// many ops are disabled for another reason.
func unconfined(disabled []command.Problem) []string {
	var layers []string
	count, others := make(map[string]int64), int64(0)
	for _, p := range disabled {
		names := layersOf(p)
		if len(names) == 0 {
			others++
		}
		for _, l := range names {
			if count[l]++; count[l] == 1 {
				layers = append(layers, l)
			}
		}
	}
	slices.Sort(layers)
	var lines []string
	for _, l := range layers {
		lines = append(lines, fmt.Sprintf("the sandbox has no layer %s, so %s disabled", l, counted(count[l])))
	}
	if others > 0 {
		lines = append(lines, fmt.Sprintf("the sandbox does not hold, or what an op asks for is not allowed, so %s disabled", counted(others)))
	}
	return lines
}

func counted(n int64) string {
	if n == 1 {
		return "1 op is"
	}
	return count(n, "op") + " are"
}

// layersOf are the layers that a disabled op misses, none if it is disabled for another
// reason.
func layersOf(p command.Problem) []string {
	var missing *sandbox.MissingError
	if errors.As(p.Err, &missing) {
		return missing.Layers
	}
	return nil
}

// condition is what the gateway says of its means, to those who have a token.
func (g *gateway) condition() service.Condition {
	c := service.Condition{Layers: g.layers, Disabled: []service.DisabledOp{}, Reloads: service.Reloads{Failed: g.reloadsFailed.Load()}}
	if at := g.reloadFailedAt.Load(); at != nil {
		c.Reloads.FailedAt = ops.Stamp(*at)
	}
	set := g.ops.Load()
	if set == nil {
		return c
	}
	for _, p := range set.disabled {
		c.Disabled = append(c.Disabled, service.DisabledOp{Op: p.Op, Why: oneLine(p.Err), Layers: layersOf(p)})
	}
	for _, e := range set.registry.All() {
		if slices.ContainsFunc(set.disabled, func(p command.Problem) bool { return p.Op == e.Name }) {
			continue
		}
		if err := command.Usable(e.Executor); err != nil {
			c.Disabled = append(c.Disabled, service.DisabledOp{Op: e.Name, Why: oneLine(err)})
		}
	}
	slices.SortFunc(c.Disabled, func(a, b service.DisabledOp) int { return strings.Compare(string(a.Op), string(b.Op)) })
	return c
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// machineLayers finds out which layers of the sandbox can be had here.
func machineLayers() []service.Layer {
	policy := sandbox.Policy{Program: "/"}
	root := os.Getuid() == 0
	if root {
		policy.User = &sandbox.User{Name: "nobody", UID: nobodyID, GID: nobodyID}
	}
	var layers []service.Layer
	for _, l := range []struct {
		name   string
		needed bool
	}{
		{sandbox.LayerLandlock, true}, {sandbox.LayerSeccomp, true}, {sandbox.LayerLimits, true}, {sandbox.LayerCapabilities, true},
		{sandbox.LayerRunAs, root}, {sandbox.LayerCgroup, false}, {sandbox.LayerNamespaces, false},
	} {
		policy.Require = []string{l.name}
		var none error
		if l.name == sandbox.LayerNamespaces {
			policy.Namespaces, none = proc.Namespaces(true)
		}
		box, err := sandbox.New(policy)
		layer := service.Layer{Name: l.name, Needed: l.needed, Applied: err == nil}
		var missing *sandbox.MissingError
		switch {
		case err == nil && l.name == sandbox.LayerLandlock:
			layer.Detail = fmt.Sprintf("ABI %d", box.Layers().Landlock)
		case err == nil && l.name == sandbox.LayerNamespaces:
			layer.Detail = strings.Join(policy.Namespaces, ", ")
		case errors.As(err, &missing):
			layer.Applied = !slices.Contains(missing.Layers, l.name)
			for why := range strings.SplitSeq(missing.Err.Error(), "\n") {
				if why, ok := strings.CutPrefix(why, l.name+": "); ok {
					layer.Detail = why
				}
			}
		case err != nil:
			layer.Detail = err.Error()
		}
		if none != nil {
			layer.Detail = oneLine(none)
		}
		layers = append(layers, layer)
	}
	return layers
}

// nobodyID stands for any user but root: the kernel's overflow id, which needs no entry.
const nobodyID = 65534

// logLayers says which layers cannot be had: ops that need one do not run, the others run
// without.
func (g *gateway) logLayers() {
	for _, l := range g.layers {
		switch {
		case !l.Applied && l.Needed:
			g.log.Error("a layer of the sandbox cannot be had", "layer", l.Name, "why", l.Detail)
		case !l.Applied:
			g.log.Warn("the sandbox does without a layer", "layer", l.Name, "why", l.Detail)
		}
	}
}
