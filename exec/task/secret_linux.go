package task

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// memoryOnly says why what is written to folder would be on a disk.
func memoryOnly(folder string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is not in memory, and secrets are written to no disk", folder)
	}
	return nil
}
