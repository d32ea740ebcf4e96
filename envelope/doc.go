// Package envelope writes what an agent or a person reads as text.
//
// Here stands the rendering of outcomes. Its one law (rule R9 of the specification
// of threads): harvesting a rendered outcome, as a message or as part of one that
// has no open fence, yields no directive. What an op returns is a stranger's text, so it is
// put into a fence that it cannot close, its directive openers are broken visibly,
// and what could hide the end of the fence or reorder the line is made visible too.
//
// The package reads and writes text only; who was shown what is kept by
// service/threads.
package envelope
