// Package documentlock is the lock on a shared document's room: one session
// edits, the others see who does, and a session that falls silent loses it after
// a TTL of 30 s.
//
// It is a face of package lease: what may be done when is decided by its rules,
// and how often it is tried by lease.Edit. A record exists while somebody holds
// the room, or has held it and nobody has swept it since. Records are deleted, so
// a token is at least the store's time in microseconds, and tokens only grow (D4).
//
// # Guarantees
//
//   - Of any number of sessions at once one gets the room, and a session that was
//     superseded extends, confirms and releases nothing.
//   - Who holds a room is told to others by a random name, new with each
//     acquisition, never by what its owner proves itself with.
//   - A [Feed] tells of changes after they were committed, whichever instance made
//     them, in the order of the store's clock: never released after a newer
//     acquired. An expiry is told when it comes, not when it is swept.
//
// # What is not guaranteed
//
//   - That a holder still holds when its write arrives elsewhere. Confirm says for
//     how long it can be relied on; who is written to must refuse a token lower
//     than one it has seen.
//   - Every change in between: who reads a Feed slowly is told the latest state.
package documentlock
