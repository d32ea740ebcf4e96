// Package task runs the command of a worker or a verifier: for hours, in a folder of its
// own, kept to that folder, and accounted for to the end.
//
// # What a command gets
//
// The folders of its run and no others to write to: its working folder, in which the
// source stands, and what its Spec names; a HOME and a TMPDIR of its own, which go with
// the run's folder. The programs and libraries of the system to execute and read
// (package doc of exec/sandbox, and System). Exactly the environment of its Spec with
// HOME, TMPDIR and, if it has secrets, CREDENTIALS_DIRECTORY: a folder in memory with a
// file for each. No descriptor but its input, which is empty, and its output; no network
// unless the Config says so; namespaces of its own where these can be had. It may execute
// what it makes in its folders, since most of what workers do is to build and to test.
//
// It runs at a lower priority than the worker, and is ended before it when the machine's
// memory is short: who reports on a command must not starve beside it.
//
// # What is bounded
//
// Its time, by the deadline. Its output: package proc keeps nothing of it here; a log
// file (LogFile) holds the beginning and the end, without secrets. Its files: one cannot
// be larger than Config.Disk, and when all of the run's folder together are, the command
// is ended (Full). The second is looked at every few seconds, so it may be exceeded by
// what is written in between.
//
// # The source
//
// A tar archive, gzipped or not, or a revision of a git repository on this machine. It is
// unpacked before anything runs, and its digest is compared with the one that is wanted.
// The digest is "h1:" and the base64 of a SHA-256, as package dirhash of golang.org/x/mod
// makes it over a folder with no prefix: it covers the names of all regular files, from
// the folder down with slashes, and their contents. A symbolic link is covered as a file
// whose content is its target and whose name is the link's with "\x00link" behind it.
// Modes, owners, times and empty folders are not covered.
//
// Refused with a [SourceError] are: hard links, devices, pipes and everything else that is
// no file, folder or symbolic link; links that leave the folder; names that are absolute,
// have ".." or an empty element, control characters or bytes that are no UTF-8, or come
// twice; and more entries, bytes or depth than [Bounds]. Of modes only the owner's right
// to execute is kept.
//
// # How it is known that nothing lives
//
// A run ends when package proc has ended the tree, whoever forked what. After that this
// package looks twice by itself. When the worker has died instead, [Runner.Gone] ends what
// it left and says on what its word rests:
//
//   - the machine has been started since;
//   - the run was over before the worker died;
//   - the run's namespaces are gone, and with them the kernel has ended all inside;
//   - everything in the worker's cgroup has been ended by proc.Enclose;
//   - two passes over all processes found none that could be of the run. What a run starts
//     cannot lose its user, its no_new_privs and its filter, so only a process with all
//     three, and as young, can be; and a pass counts only if nobody on the machine was
//     born during it.
//
// Where none of these holds it says that it does not know.
//
// # Words
//
//   - Run: one start of one command, from Spec to Outcome
//   - Run's folder: where all of the run is, the worker's own; mode 0700, or 0711 where the
//     command is another user's
//   - Record: what the run's folder says of the process (RecordFile), written before that
//     begins
package task
