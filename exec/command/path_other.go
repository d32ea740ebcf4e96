//go:build !linux

package command

import (
	"errors"
	"io/fs"
	"os"
)

type everything struct{}

func (everything) Stat(string) (fs.FileInfo, error) { return nil, errors.ErrUnsupported }

func (everything) OpenFile(string, int, fs.FileMode) (*os.File, error) {
	return nil, errors.ErrUnsupported
}

func (everything) Close() error { return nil }

func withheld(*os.File, []string) string { return errors.ErrUnsupported.Error() }
