// Package worker is the other end of the execution plane: a process that takes leases
// from a gateway, has the work done, and says what came of it in signed messages; and the
// verifier, which judges what others have returned.
//
// It knows neither processes nor sandboxes: a [Runner] runs the command. It knows the
// gateway by its documented routes only.
//
// # What it promises
//
//   - A command begins only under a lease that this boot holds, that the plane has signed,
//     and whose start the plane has acknowledged.
//   - A command is ended when its lease has lapsed by this machine's own clock, counted
//     from when the request was sent that got it, or when an answer is final.
//   - The messages of a run are one chain. Each is sent again, byte for byte, until it is
//     answered; none is begun while another is unanswered; none is sent again once the
//     answer was final.
//   - That nothing of a run is alive is said only when the Runner has ended the tree and
//     looked twice.
//   - A crash forgets nothing that matters: what ran is written down before it runs, and
//     the next boot ends what is left of it before it says that it has begun.
//
// # What it refuses
//
// A state folder that another process holds or that others may enter; a gateway whose
// plane has another key than at enrolment; a grant that is not for this boot and poll, or
// whose instruction is not what its digest says; links and special files where a command
// should have left a file.
//
// # Words
//
//   - boot: one life of this process; slot: room for one run
//   - chain: the messages of one run or verification, in order
//   - tombstone: the signed word that nothing of a run is alive
//   - drain: take nothing new, finish what runs; abandon: end it and say so
package worker
