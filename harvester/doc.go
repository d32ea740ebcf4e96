// Package harvester finds the directives in a chat agent's reply.
//
// It is the first step of a call's way: text goes in, as it streams, and what
// in it is an order comes out. It decides nothing else. It does not know which
// ops exist or who may run them, it opens no connection and imports nothing of
// ours.
//
// # Words
//
// A reply is one message of one agent. A directive is an order in it: an op,
// its parameters as written, and perhaps a key, which ties it to the envelope
// it answers, and an id. It is written in one of five forms:
//
//	[TOOL tools.list {}]        a bracket directive; [EXEC op {…}] and [DM {…}] too
//	```tool #k7q2               a directive fence, labelled tool, exec or box,
//	disk.usage {"path":"/srv"}  with items: op {…}, call objects, arrays of them
//	```                         and bracket directives
//	curl https://host/exec -d … a curl command to an exec endpoint
//
// Whoever asks for it by Config.Result is also told of each [RESULT {…}], with which an
// agent ends its errand. It is read as [DM {…}] is, with a key or without, but it
// is no directive and no item of a directive fence: there it is skipped as an item
// that failed. Nobody asking, it is text.
//
// Everything else is text. So is what an agent quotes: quoted lines, inline
// code, other fences, comments, its own thinking, a bracket behind a quotation
// mark or a backslash. In doubt it is text: a missed call costs a retry, a
// false one acts.
//
// A directive's object must be valid I-JSON (RFC 7493): valid UTF-8, no lone
// surrogate, no name twice in an object, nesting at most 128. Nothing is
// repaired. One that is broken is skipped in silence and counted; what its
// strings hold never becomes an order.
//
// Comments here name the rules of the directive grammar by their numbers.
//
// # In doubt
//
// Where the grammar leaves room, this package chooses text. A quoted line and
// a quoting fence are not read for comments or think tags, nor is the info
// line of a fence; a comment or think tag that was opened in a directive fence
// hides beyond its end. A level nested in a quoting fence is closed by what
// its own opener asks for. Only the bare label makes a shell fence. The thinking that a reply
// begins with ends at any of the closing tags. A plain action whose argument
// holds a { is none.
//
// # Streams
//
// A [Scanner] takes a reply in pieces of any size. What it finds never depends
// on the cuts: each decision rests on the bytes before it, and a directive is
// reported at the byte that completes it. The work is linear in the bytes
// written, for any input and any cuts ([Scanner.Examined] counts it), and the
// memory is bounded by the largest directive, 1 MiB. Prose allocates nothing.
//
// [All] is for whole replies.
package harvester
