//go:build !failpoint

package failpoint

// Enabled reports whether this binary was built with the tag failpoint.
const Enabled = false

// Here marks a moment by name. In this build it does nothing.
func Here(string) {}
