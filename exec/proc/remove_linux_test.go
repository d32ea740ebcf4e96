package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveFolder(t *testing.T) {
	make := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for name, fill := range map[string]func(t *testing.T, dir, beside string){
		"empty": func(*testing.T, string, string) {},
		"many": func(t *testing.T, dir, _ string) {
			for i := range 3000 {
				make(os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o600))
			}
		},
		"closed": func(t *testing.T, dir, _ string) {
			make(os.MkdirAll(dir+"/a/b/c", 0o700), os.WriteFile(dir+"/a/b/file", nil, 0o000), os.Chmod(dir+"/a/b/c", 0), os.Chmod(dir+"/a/b", 0), os.Chmod(dir+"/a", 0), os.Chmod(dir, 0))
		},
		"links": func(t *testing.T, dir, beside string) {
			make(os.Symlink(beside, dir+"/link"), os.Symlink(beside+"/file", dir+"/other"), os.Symlink(".", dir+"/self"), os.Link(beside+"/file", dir+"/hard"))
		},
		"special": func(t *testing.T, dir, _ string) {
			make(unix.Mkfifo(dir+"/fifo", 0o600), unix.Mknod(dir+"/socket", unix.S_IFSOCK|0o600, 0), os.Mkdir(dir+"/.1", 0o700), os.Mkdir(dir+"/.2", 0o700))
		},
		"deep": func(t *testing.T, dir, _ string) {
			// Deeper than a path is long, with something on each level.
			make(os.Mkdir(dir+"/.3", 0o700))
			fd, err := unix.Open(dir, unix.O_PATH, 0)
			make(err)
			for i := range 5000 {
				make(unix.Mkdirat(fd, "d", 0o700))
				if i%100 == 0 {
					make(unix.Mkdirat(fd, "e", 0o700), unix.Fchmodat(fd, "e", 0, 0))
				}
				next, err := unix.Openat(fd, "d", unix.O_PATH, 0)
				make(err, unix.Close(fd))
				fd = next
			}
			make(unix.Close(fd))
		},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, beside := filepath.Join(top, "dir"), filepath.Join(top, "beside")
			make(os.Mkdir(dir, 0o700), os.Mkdir(beside, 0o755), os.WriteFile(beside+"/file", []byte("x"), 0o640))
			fill(t, dir, beside)
			make(removeFolder(dir))
			if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is still there: %v", err)
			}
			info, err := os.Stat(beside)
			file, err2 := os.Stat(beside + "/file")
			if err != nil || err2 != nil || info.Mode().Perm() != 0o755 || file.Mode().Perm() != 0o640 {
				t.Errorf("beside it: %v %v, %v %v", info, err, file, err2)
			}
			make(removeFolder(dir)) // which is not there
		})
	}
}

// A link in the place of the folder is not followed.
func TestRemoveFolderThatIsALink(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(os.MkdirAll(top+"/other/sub", 0o700), os.Symlink("other", top+"/link")); err != nil {
		t.Fatal(err)
	}
	if err := removeFolder(top + "/link"); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(top + "/other/sub"); err != nil {
		t.Error(err)
	}
}
