package command

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// sealed returns a file without a name that holds value and that nobody can change.
func sealed(value []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("inband-secret", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inband-secret")
	_, err = f.WriteAt(value, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("seal it: %w", err)
	}
	return f, nil
}
