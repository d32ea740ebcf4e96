package ops

import (
	"embed"
	"io/fs"
)

//go:embed files/*.yaml
var embedded embed.FS

// Files are the op files that come with Inband, at the root of the file system.
// `box init` writes them into the state folder, from where the gateway reads
// them.
var Files = func() fs.FS {
	sub, err := fs.Sub(embedded, "files")
	if err != nil {
		panic(err) // "files" is a valid path
	}
	return sub
}()
