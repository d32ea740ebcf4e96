package sandbox

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Network says which sockets a process may make.
type Network string

// The networks.
const (
	// NoNetwork is no socket at all, also no UNIX one.
	NoNetwork Network = "none"
	// Netlink is sockets that ask the kernel about itself (rtnetlink, sock_diag), as
	// ip and ss do. Without capabilities they change nothing.
	Netlink Network = "netlink"
	// UnixNetwork is UNIX sockets, by which the services of this machine are spoken to.
	// Landlock does not bound the paths of those that it connects to.
	UnixNetwork Network = "unix"
	// AnyNetwork is sockets of IPv4, IPv6 and netlink, and pairs of connected ones.
	AnyNetwork Network = "any"
)

// Policy says what a process may do. The zero value of each list is nothing.
type Policy struct {
	// Program is what is executed, an absolute path.
	Program string
	// Read, Write and Exec are absolute, clean paths; a folder stands for all below
	// it. Write includes reading. A path that does not exist gives nothing.
	Read, Write, Exec []string
	// Network is NoNetwork if empty.
	Network Network
	// Reads says that the process changes nothing: it has no Write, no Metadata, and
	// neither UnixNetwork nor AnyNetwork.
	Reads bool
	// Metadata lets the process change the modes, owners, times and attributes of files.
	// Landlock does not bound this: it reaches every file of the user, also outside of
	// Write. Without it only the times of a file that is open can be set, and those not
	// where Reads.
	Metadata bool
	Limits   Limits
	// User is who the process runs as, without supplementary groups. nil is the
	// gateway's own user; another needs a root gateway.
	User *User
	// Namespaces are those that package proc makes around the process, by their names:
	// pid, ipc, mount, net, user. Nothing here makes them; a policy that requires
	// LayerNamespaces names them, and what it applies is applied inside.
	Namespaces []string
	// Require names layers without which New returns a *MissingError, beyond those
	// that it always applies.
	Require []string
}

// User is a user of the system.
type User struct {
	Name     string // for the receipt
	UID, GID uint32
}

// The layers by the names of op files.
const (
	LayerLandlock     = "landlock"
	LayerSeccomp      = "seccomp"
	LayerLimits       = "limits"
	LayerCapabilities = "capabilities"
	LayerRunAs        = "run_as" // a user other than the gateway's
	LayerCgroup       = "cgroup"
	LayerNamespaces   = "namespaces" // of pids, IPC, mounts and, unless it needs that of the machine, the network
)

// layerNames are the layers that a policy may require.
var layerNames = []string{LayerLandlock, LayerSeccomp, LayerLimits, LayerCapabilities, LayerRunAs, LayerCgroup, LayerNamespaces}

// MissingError says that layers which a policy needs cannot be had here. Nothing may be
// run under that policy.
type MissingError struct {
	Layers []string // without repetition
	Err    error    // why, one line a layer
}

// Error names the layers and says why each is missing.
func (e *MissingError) Error() string {
	return fmt.Sprintf("no sandbox: %s missing: %v", strings.Join(e.Layers, ", "), e.Err)
}

// Unwrap returns the reasons.
func (e *MissingError) Unwrap() error { return e.Err }

// add notes that layer is missing.
func (e *MissingError) add(layer string, why error) {
	if !slices.Contains(e.Layers, layer) {
		e.Layers = append(e.Layers, layer)
	}
	e.Err = errors.Join(e.Err, fmt.Errorf("%s: %w", layer, why))
}

// Limits bound one process. They are inherited, and each descendant counts for itself.
type Limits struct {
	NoFile uint64 // descriptors, DefaultNoFile if 0
	// FSize is how large a file may be that it writes, in bytes; nil is unlimited. With 0
	// it cannot make anything in its private folder, not even what is empty.
	FSize  *uint64
	CPU    time.Duration // processor time, rounded up to seconds; 0 is unlimited
	Memory uint64        // bytes of address space; 0 is unlimited
	// Processes is how many processes and threads the user may have when the process
	// or a descendant makes another; 0 is unlimited. What else runs as that user
	// counts, and so does the gateway's thread of each of its runs. The kernel does
	// not bind root by it, so for root it is a missing layer.
	Processes uint64
}

// DefaultNoFile is the number of descriptors of a process whose policy does not say.
const DefaultNoFile = 1024

// Layers is what was applied to a process. All of it is in force before the first
// instruction of the process.
type Layers struct {
	NoNewPrivs   bool   `json:"no_new_privs"`
	Capabilities string `json:"capabilities"` // "none"
	Landlock     int    `json:"landlock"`     // the ABI of the kernel
	// Scopes are what does not leave the process's own tree.
	Scopes  []string `json:"scopes"`
	Seccomp string   `json:"seccomp"` // "sha256:" and the digest of the filter
	Network Network  `json:"network"`
	Reads   bool     `json:"reads_only"`
	// Metadata says that it could change the modes, owners, times and attributes of files.
	Metadata bool    `json:"metadata"`
	Limits   []Limit `json:"limits"`
	RunAs    RunAs   `json:"run_as"`
	// Cgroup says that the gateway is in a cgroup of its own with all that it starts
	// (package proc makes it), which the next gateway ends.
	Cgroup bool `json:"cgroup"`
	// Namespaces are those that the process has for itself: of Policy.Namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
}

// RunAs is the user of a process.
type RunAs struct {
	Name string `json:"name,omitempty"` // empty if the policy names nobody
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	// GroupsCleared says that it has no supplementary groups. Only a root gateway can
	// clear them.
	GroupsCleared bool `json:"groups_cleared"`
}

// Limit is one resource limit, soft and hard at once.
type Limit struct {
	Name  string `json:"name"` // as in op files: nofile, fsize, cpu, memory, processes; and core
	Value uint64 `json:"value"`
}

// check says why p is no policy.
func (p *Policy) check() error {
	for _, list := range [][]string{{p.Program}, p.Read, p.Write, p.Exec} {
		for _, path := range list {
			if !filepath.IsAbs(path) || filepath.Clean(path) != path {
				return fmt.Errorf("%q is not a clean absolute path", path)
			}
		}
	}
	switch p.Network {
	case NoNetwork, Netlink, UnixNetwork, AnyNetwork:
	default:
		return fmt.Errorf("unknown network %q", p.Network)
	}
	for _, layer := range p.Require {
		if !slices.Contains(layerNames, layer) {
			return fmt.Errorf("it requires the layer %q; want one of %s", layer, strings.Join(layerNames, ", "))
		}
	}
	if p.Reads && len(p.Write) > 0 {
		return errors.New("a read may write nowhere but to its private folder")
	}
	if p.Reads && (p.Network == UnixNetwork || p.Network == AnyNetwork) {
		return errors.New("a read has no network")
	}
	if p.Reads && p.Metadata {
		return errors.New("a read may not change modes, owners, times and attributes")
	}
	return nil
}
