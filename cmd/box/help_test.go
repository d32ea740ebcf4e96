package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelp holds every command to what a stranger needs: what it is, in a line and at
// length, and an example that is a command line of box.
func TestHelp(t *testing.T) {
	root := testApp().root()
	root.InitDefaultHelpCmd()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "_"), func(t *testing.T) {
			if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
				t.Errorf("Short = %q, want a line without a period", cmd.Short)
			}
			if cmd.Long == "" {
				t.Error("no Long help")
			}
			if !strings.Contains(cmd.Example, "box") {
				t.Errorf("Example = %q, want a command line", cmd.Example)
			}
			for line := range strings.Lines(cmd.Long) {
				if len(line) > 90 {
					t.Errorf("a line of the help has %d bytes: %q", len(line), line)
				}
			}
			var out bytes.Buffer
			a := newApp(strings.NewReader(""), &out, &out, func(string) string { return "" })
			args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
			if code := a.run(t.Context(), args); code != 0 {
				t.Errorf("box %s exits with %d", strings.Join(args, " "), code)
			}
			if !strings.Contains(out.String(), "Examples:") {
				t.Errorf("box %s shows no example", strings.Join(args, " "))
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

func testApp() *app {
	return newApp(strings.NewReader(""), new(bytes.Buffer), new(bytes.Buffer), func(string) string { return "" })
}
