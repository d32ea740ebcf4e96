package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what this binary knows of its own making.
type build struct {
	Version  string `json:"version"`            // of the module, "(devel)" when built from a checkout
	Revision string `json:"revision,omitempty"` // of the version control system
	Time     string `json:"time,omitempty"`     // of that revision
	Modified bool   `json:"modified"`           // the checkout had changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String is the version for documents and logs: the module's, with the revision of a
// build from a checkout.
func (b build) String() string {
	if b.Version == "(devel)" && b.Revision != "" {
		return b.Version + " " + b.Revision[:min(len(b.Revision), 12)]
	}
	return b.Version
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Long: `Print the version of this binary: of its module and of the revision that it was built
from. The gateway's own is in: box exec box.exec action=version.`,
		Example: "  box version --json",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			b := readBuild()
			if a.json || a.jsonl {
				return a.document(b)
			}
			if err := a.printf("box %s, %s, %s\n", b.Version, b.Go, b.Platform); err != nil {
				return err
			}
			if b.Revision == "" {
				return nil
			}
			changed := ""
			if b.Modified {
				changed = ", with changes"
			}
			return a.printf("revision %s of %s%s\n", b.Revision, b.Time, changed)
		},
	}
	return a.prints(cmd)
}
