package proc

// Inside is the namespaces (namespaces(7)) that a process runs in, made for its run: of
// pids, of IPC objects and of mounts, with a /proc that shows that pid namespace alone.
// Where the gateway may not make these by itself there is a user namespace around them,
// in which its user, or if it may every user, has the id that it has outside.
//
// The first process of a pid namespace is its init, and signals do not end an init as
// they do others. So that one is this program again, in a call of [Init]: it starts the
// process, waits for it, says how it ended, and ends. With it the kernel ends all that
// is left inside, also when the gateway is killed.
type Inside struct {
	// Network is for a network namespace too. In it is a loopback interface that is
	// down.
	Network bool
	// Task is for the function that is given to Init. It reaches the init by a sealed
	// file in memory.
	Task []byte
}

// Hooks are what is done in an init between its start and the first instruction of its
// process: Confine, Aside and Limit of [Spec].
type Hooks struct {
	Confine func(folder string) error
	Aside   func() error
	Limit   func(pid int) error
}

// initName is the name that an init runs under.
const initName = "inband-init"
