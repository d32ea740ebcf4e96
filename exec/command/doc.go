// Package command runs the ops of op files: it turns an op and the parameters of
// a call into an argv and a sandbox, gives these to package proc, and says what came
// of it.
//
// Everything but that one call is decided without effects. A fixed word of the
// op stays what it is; a parameter is one whole word, or the words that a boolean
// selects; nothing is split, joined, expanded or given to a shell.
//
// # What it refuses
//
// A program that is missing, that is no executable file, or that somebody other
// than root and the gateway's user could have put there or could change. This is
// checked when the op is bound and again before each start, so that a program
// that is installed later works from then on, and one that is replaced by
// somebody else stops working. Until then each call of the op ends in the fault
// UNAVAILABLE; [Bind] reports such ops as problems, for readiness to name.
//
// An op whose sandbox cannot be had here, in all of its layers. [Prove] also has a
// canary try each kind of sandbox once, and disables the ops of one that does not hold.
// Nothing is ever run with less.
//
// # What it says
//
// Exit code 0 is a success, with an [Output] as its value. Any other end is a
// fault that carries the end of what the program wrote. Both carry the layers that the
// program was confined by. The environment of a
// program is LANG=C.UTF-8 and nothing else.
package command
