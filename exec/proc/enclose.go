package proc

import (
	"fmt"
	"regexp"
	"sync"
)

// Enclosure is what holds a gateway together with all that it starts.
type Enclosure struct {
	// Cgroup is the folder of the cgroup that the gateway is in, empty if there is
	// none; Why says why then.
	Cgroup string
	Why    error
	// Ended names the processes, at most 8, that an earlier gateway of the same name
	// had left and that were ended now.
	Ended []string
	// Survivors counts those that SIGKILL did not end in time.
	Survivors int

	parent string // the folder of the cgroup that the gateway came from
}

var enclosureName = regexp.MustCompile(`^[a-z0-9]{4,64}$`)

// enclosed is the one enclosure of this process.
var (
	enclosedMu sync.Mutex
	enclosed   *Enclosure
	mark       = folderMark // what the names of private folders begin with
)

const folderMark = "inband-run-"

// Enclose ends what an earlier gateway of this name left when it died, and puts the
// calling process, and so all that it starts, into a cgroup of that name. It must be
// called before the first run, while no other gateway of this name lives. Its error is
// about the name, or about an enclosure that the process has already; what else stands
// in the way is in the Enclosure, for runs do not need it.
//
// The processes of an earlier gateway are those in its cgroup. Where there are no
// cgroups they are those whose working folder is a private folder of a gateway of this
// name, or was before it was removed; one that went elsewhere is not found. Private
// folders that were left are removed in either case.
func Enclose(name string) (*Enclosure, error) {
	if !enclosureName.MatchString(name) {
		return nil, fmt.Errorf("%q is no name of an enclosure: want 4 to 64 of a-z and 0-9", name)
	}
	enclosedMu.Lock()
	defer enclosedMu.Unlock()
	if enclosed != nil {
		return nil, fmt.Errorf("this process is enclosed already")
	}
	mark = folderMark + name + "-"
	enclosed = enclose("inband-" + name)
	return enclosed, nil
}

// Close puts the calling process back where it came from and removes the cgroup. It
// must be called when no run is under way.
func (e *Enclosure) Close() error {
	enclosedMu.Lock()
	defer enclosedMu.Unlock()
	if enclosed == e {
		enclosed, mark = nil, folderMark
	}
	return e.leave()
}

// privateMark is what the names of private folders begin with now.
func privateMark() string {
	enclosedMu.Lock()
	defer enclosedMu.Unlock()
	return mark
}
