// Package artifacts keeps bytes under the name of their digest: the files that calls
// publish and that runs leave, and whatever else is too large for the journal.
//
// It has three parts. A [Store] is a folder of bytes: what is put into it is hashed
// while it is written, durable when Put returns, one file however often it is put, and
// checked against its name whenever it is read. The table artifact says who published
// which bytes under which name; a row is written in the transaction of whatever made
// the bytes, after they are durable, so a row never names bytes that are not there.
// [Uploads] brings bytes from elsewhere in pieces, each durable before it is
// acknowledged, and goes on after whatever has interrupted it.
//
// A file of a run counts as evidence when its producer has signed what it is: a
// [Statement], kept in the table attestation in the envelope that it came in. Whose
// signature it is has been proved before, in package service/plane.
//
// Bytes without a row can be left by a crash, or by a call that put some of its files
// and then failed. They count towards the quota until [Uploads.Collect] removes them.
//
// # What it refuses
//
// A name that is not the form of a [Digest], so that none is ever a path, and a file's
// name that leaves its folder. Bytes beyond the bound of a Put, the announcement of an
// upload, the quota of the store or of an owner; of a Put nothing of them remains. Bytes
// that are not those of the digest they were announced under. Bytes that somebody only
// names: who announces what others have must send it all the same, unless a run of the
// same delegation has left it. To serve bytes that are not what their name says: see
// [Store.Open]. A statement that is not written in its one canonical form.
//
// # The folder
//
//	sha256/ab/abcd…64 hex digits   the bytes, mode 0400
//	tmp/                           what is being put, emptied by Open
//	uploads/u-…                    what is being uploaded; its row says how much counts
//
// One process at a time has a folder; whoever owns the journal beside it sees to that.
//
// Who may read what is decided above, in package service.
package artifacts
