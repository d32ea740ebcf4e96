// Command box runs an Inband gateway and speaks to one.
//
// It is the operator's hand: whatever it does to a gateway it does through the
// documented routes of the HTTPS API (routes.go names all that it uses), so that
// nothing can be done with it that a script of yours could not do. Three commands
// work without a gateway: harvest, ops check and version.
//
// # What is printed where
//
// Data goes to standard output, notices and faults to standard error. People get
// aligned tables without tabs, on a terminal or in a pipe; --json prints one
// document, --jsonl one object a line. In what people get, control and
// bidirectional characters of other people's text are escaped, so that it cannot
// repaint the terminal. Colour is used on a terminal only, and not at all when
// NO_COLOR is set.
//
// # Exit codes
//
//	0    done
//	1    the op ran and failed, or is not known to have succeeded
//	2    usage: wrong flags, arguments or parameters
//	3    not found: op, call, thread, identity, file
//	4    not allowed: no valid token, or not permitted
//	5    waiting for an approval
//	6    conflict: another gateway has the state folder, the call is settled, …
//	7    the gateway cannot be reached, is busy, or did not answer in time
//	130  interrupted
//
// # Words
//
//   - state folder: where a gateway keeps its journal, its certificate authority,
//     its op files and the operator's token (state.go)
//   - notice: a line for the person in front of the terminal, on standard error
//   - follow: to print what is there and then what comes, until interrupted
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"inband/exec/command"
)

func main() {
	command.Canary()
	command.Helper()
	os.Exit(Main())
}

// Main runs box with the arguments and streams of this process and returns its exit
// code.
func Main() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		// The first signal asks for a tidy end. Before anybody hears of it the
		// handler is gone, so that a second one ends the process at once.
		signal.Stop(signals)
		cancel()
	}()
	return newApp(os.Stdin, os.Stdout, os.Stderr, os.Getenv).run(ctx, os.Args[1:])
}
