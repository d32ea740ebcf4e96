// Package sandbox keeps a process to what its [Policy] names. It knows layers of the
// kernel and nothing of ops or calls: package command makes the policies, package proc
// starts the processes.
//
// # How it is applied
//
// [New] looks for every layer that the policy needs and prepares it. [Sandbox.Confine]
// then confines the calling thread, for good; what that thread starts inherits all of
// it, and the thread dies with the run. [Sandbox.Limit] sets the limits of a process
// that is stopped before its first instruction. Each of the two does all of its work
// or returns an error, and then nothing may be started: a policy is never applied in
// part. New names the layers that cannot be had in a [MissingError].
//
// # The layers
//
//   - Capabilities: all dropped, and neither root nor a file's capabilities regain any
//     by exec. A root gateway's child is an ordinary user with the id 0.
//
//   - User: who the policy names, if the gateway is root, and no supplementary groups
//     in any case then. Only the launching thread changes, and by its real and saved
//     ids it is the gateway's again once it has started the process, out of reach of the
//     user's other processes. Limits are set by a thread that takes on the user's real
//     ids meanwhile, so CAP_SYS_RESOURCE is not needed.
//
//   - Landlock: files are read, written and executed below the paths of the policy
//     only; TCP, abstract UNIX sockets and signals do not leave the process's own tree.
//
//   - Seccomp: system calls that act on other processes, on the machine, on System V
//     and POSIX objects, or that make sockets and namespaces, are refused with EPERM;
//     clone3 answers ENOSYS, so that libraries fall back to clone, whose flags can be
//     seen, and so does what is newer than this list. A system call of a foreign
//     architecture kills the process. What changes a file's mode, owner, times and
//     attributes, which Landlock does not see, is refused unless the policy grants it;
//     but for the times of a file that is open, which touch sets, where the process is
//     no read. Requests of ioctl are allowed by name, for the same reason.
//
//   - Limits: open files, file size, processor time, address space, and the number of
//     processes of the user (which the kernel does not count for root).
//
//   - Cgroup: only stated here. Package proc puts the gateway into one.
//
//   - Namespaces: only stated here, for a policy that requires them. Package proc makes
//     them, and this package is applied inside, by the init that is around the process.
//     Other processes cannot be seen then, and no network but an empty one. They are not
//     for every process since they take an init each, which makes a start several times
//     slower: without them sockets and what is shared by key are refused by the filter,
//     and signals by Landlock.
//
// # What every process may use
//
// Its program and that program's loader, the library folders of the system, /dev/null,
// and its private folder, to write to it unless the policy's largest file is 0.
// Everything else is named in the policy.
//
// # The launching thread
//
// To Landlock the thread that launches a process is inside the process's own domain, and
// it may be of the same user, yet it is a thread of the gateway. The filter of each
// launch knows its number and refuses signals to it; that the process cannot look into
// the gateway's memory through it is package proc's care (it is not dumpable).
//
// # What it does not do
//
// It does not hide: paths, sizes and owners can be looked up (stat is not an access to
// Landlock), and /proc shows other processes where the policy has /proc and no
// namespaces; /sys shows the machine also where it has some. It does not
// stop a process from waiting, from computing within its limits, or from writing to
// its own output.
//
// Linux 6.12 (Landlock ABI 6) on amd64 and arm64; elsewhere New returns an error.
package sandbox
