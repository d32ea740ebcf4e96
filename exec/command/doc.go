// Package command runs the ops of op files: it turns an op and the parameters of
// a call into an argv, an input and a sandbox, gives these to package proc, and says what
// came of it.
//
// # What a program gets
//
// A fixed word of the op stays what it is; a parameter is one whole word, or the words
// that a boolean selects; nothing is split, joined, expanded or given to a shell. A text
// is the standard input, byte for byte. A path is opened beneath its root, by the rights
// of the user that the program runs as, and the open file is the standard input; or its
// clean absolute path is a word, after the same look. The environment is LANG=C.UTF-8 and
// what the op file says.
//
// A secret is named by a [ops.CredentialRef] and resolved when the program is started. It
// reaches the program in its environment, on its standard input or as a file that has no
// name, and never as a word. Its value is taken out of what the program wrote, also where
// it was written in base64, hex, or the escapes of URLs and JSON, before anybody sees
// that. What a program does to a secret on purpose is not found: who may choose the
// program of an op that gets a secret may learn it.
//
// # What it refuses
//
// A program that is missing, that is no executable file, or that somebody other
// than root and the gateway's user could have put there or could change; one whose
// digest is not what the op file says. This is checked when the op is bound and again
// before each start, so that a program
// that is installed later works from then on, and one that is replaced by
// somebody else stops working. Until then each call of the op ends in the fault
// UNAVAILABLE; [Bind] reports such ops as problems, for the log to name. What the kernel
// has loaded is compared, before its first instruction, with what was looked at. Only the
// file of a script is opened again, by its interpreter.
//
// An op whose sandbox cannot be had here, in all of its layers, or whose user the
// [Config] does not allow. Such an op is disabled: its calls are SANDBOX_UNAVAILABLE, and
// [Disabled] names it for readiness. [Prove] has a canary try each kind of sandbox once,
// and disables the ops of one that does not hold. Nothing is ever run with less.
//
// A path that leads out of its root by a link, and what is no regular file or folder:
// a pipe is never waited for, a device never opened.
//
// # Namespaces
//
// An op that requires them runs in namespaces of its own, of pids, IPC, mounts and, unless
// it needs that of the machine, the network. They are made by package proc, and the
// sandbox is applied in them by [Helper], which sees that its layers are those of the
// receipt and that the program is the one that was looked at.
//
// # What it keeps
//
// The files of its private folder that an op publishes, given to a [Keeper] after the
// program has ended and passed its checks, and before the folder is removed: regular
// files of that name, reached through no link, with no other name, of at most
// MaxPublished bytes and without a secret. If one of them is missing or cannot be kept,
// the call has failed, whatever the program says, and none is published.
//
// # What it says
//
// A run whose checks hold, exit code 0 if the op has none, is a success with an [Output]
// as its value. Any other end is a
// fault that carries the end of what the program wrote. Each execution, also one that
// did not start, leaves a [Receipt] in its outcome.
package command
