// Package proc runs one bounded process and accounts for it to the end. It is
// the only place in the module that starts processes.
//
// # What a process gets
//
// A new session without a terminal, exactly the environment of its [Spec] and
// nothing of the gateway's, a fresh private working folder (mode 0700, removed
// afterwards), a umask of 077, the bytes of Spec.Stdin or /dev/null, and no other
// open descriptor: whatever the gateway itself was started with is marked
// close-on-exec before each start. no_new_privs is set, so that a set-uid program
// gains nothing. There is no shell, no search of PATH and no expansion.
//
// Spec.Confine and Spec.Limit let the caller confine a process further, before its
// first instruction. What they do is not known here; but nothing here needs what the
// run's thread may lose by it: /proc is read and the private folder removed elsewhere.
// Spec.Keep gets the private folder before it is removed.
//
// A run of hours has a working folder of its caller's instead (Spec.Folder), hands on its
// output while it runs (Spec.Output), and says which process it is before that has done
// anything (Spec.Begin).
//
// # What it refuses
//
// A relative program, an empty argv, a word or variable with a NUL, and a run
// without a time limit or without a bound on its output. Such a run fails with a
// [StartError], which says for certain that nothing ran. Once a process has been
// started, Run returns no error: it returns what is known, and [Result.Unknown]
// when that is not enough to say how the process ended.
//
// # Namespaces
//
// With Spec.Inside a process runs in namespaces of its own. Between it and the gateway is
// an init then: this program again, which [Init] recognizes. A process that was the init
// itself would ignore the signals that it does not handle, and nobody would reap its
// orphans. The init says on a socket that the process stands before its first instruction;
// until the gateway has answered, nothing runs, and a run that is given up till then is a
// StartError. Later it says how the process ended and what it left. What the process gets
// is what it gets without: the same descriptors, environment, session, folder and umask.
//
// Where the gateway may not make namespaces by itself, a user namespace is around them. An
// ordinary user's has one user and one group; whatever belongs to others seems to belong
// to the overflow id, 65534, in it.
//
// # What is made ahead
//
// A run needs a folder and a thread that is fenced and confined, which takes a good part
// of the time of a short one. While runs follow each other, an [Ahead] has them made for
// the next run during this one. Each is still for one run only, and is not used when
// what Confine would find has changed since, or after two seconds.
//
// # How the tree is ended
//
// Nothing that a process started outlives its run. On a deadline or a cancel the
// tree gets SIGTERM, a grace, then SIGKILL; when the process ends by itself, what
// it left behind is killed and named in the result, which stays a success.
//
// A process group does not do for this: a grandchild that calls setsid has left
// it. Two mechanisms tie a descendant to its run, whatever it does:
//
//   - The fence. Each run is launched from a thread of its own, which is put into
//     a fresh Landlock domain whose only rule is the signal scope (Linux 6.12,
//     Landlock ABI 6) and dies with the run. The child and all its descendants
//     inherit the domain and cannot leave it, and a signal that this thread sends
//     reaches that domain and nothing else. So kill(-1) from the thread is exactly
//     this run's tree, in one step that a fork cannot slip past, and kill of one
//     pid with signal 0 tells whether it belongs to it. A run cannot signal
//     anything outside its own tree either, but for one thing: the thread is inside
//     too. So the gateway's memory is closed (PR_SET_DUMPABLE), and Spec.Confine has
//     to keep signals from the calling thread, which it does not do by itself.
//   - The sweep, where the kernel has no signal scope. The gateway is a child
//     subreaper, so that an orphan becomes its child rather than init's. What is
//     in the run's session, below a member of it, or an orphan that still uses the
//     run's private folder or its output, is the run's. An orphan that has cut all
//     of these ties belongs to nobody and is killed by the next sweep, whichever
//     run makes it: who hides from the gateway is not protected by it. Two runs at
//     once keep their own descendants apart as long as these keep one tie.
//
// Which one was used is in [Result.Fenced].
//
// # When the gateway dies
//
// The kernel kills the process that the gateway started (the parent-death signal,
// which follows the launching thread; that is why the thread lives as long as the run).
// With Spec.Inside that is the init, and the kernel ends all that is inside with it.
// Else what that process had started lives on until a gateway of the same name starts
// and calls [Enclose]: it ends all that is in the cgroup of the one before, out of which
// nothing gets. Where there is no cgroup to write to it ends what is known by its mark:
// its working folder is a private folder, whose name has the gateway's in it. A process
// that went elsewhere is not found then.
//
// The cgroup is one for the gateway with all its runs, not one a run: the fence ends a
// run's tree as surely, and to make a cgroup, to move the process in at its exec and to
// remove it costs a sixth of a short run.
//
// # Words
//
//   - Run: one start of one program, from Spec to Result.
//   - Tree: the process started and everything descended from it.
//   - Private folder: the run's working folder.
//
// The package is for Linux 5.9 and later; elsewhere every run is a StartError.
package proc
