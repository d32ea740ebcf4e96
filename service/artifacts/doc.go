// Package artifacts keeps bytes under the name of their digest: the files that calls
// publish, and whatever else is too large for the journal.
//
// It has two halves. A [Store] is a folder of bytes: what is put into it is hashed
// while it is written, durable when Put returns, one file however often it is put, and
// checked against its name whenever it is read. The table artifact says who published
// which bytes under which name; a row is written in the transaction of whatever made
// the bytes, after they are durable, so a row never names bytes that are not there.
// The other way round, bytes without a row can be left by a crash, or by a call that
// put some of its files and then failed. They count towards the quota.
//
// # What it refuses
//
// A name that is not the form of a [Digest], so that none is ever a path. Bytes beyond
// the bound of a Put or the quota of the store; nothing of them remains. To serve bytes
// that are not what their name says: see [Store.Open].
//
// # The folder
//
//	sha256/ab/abcd…64 hex digits   the bytes, mode 0400
//	tmp/                           what is being written, emptied by Open
//
// One process at a time has a folder; whoever owns the journal beside it sees to that.
//
// Who may read what is decided above, in package service.
package artifacts
