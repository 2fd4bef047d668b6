// Package document is the lock on a shared document's room: one session edits,
// the others see which one, and a session that stops sending heartbeats loses the
// lock after a TTL of 30 s.
//
// The rules are in package lease, and lease.Edit is the only loop. A record
// exists while a session holds the room, and after its lock has expired until a
// sweep deletes it. Since records are deleted, a token is at least the store's time
// in microseconds, so that tokens only grow (SEEDS D4).
//
// # Guarantees
//
//   - Of any number of sessions at once one gets the room. A session that was
//     superseded extends, confirms and releases nothing.
//   - Others see the holder under a random name, new with each acquisition, and
//     never see the credential that proves its session.
//   - A [Feed] reports changes after their commit, from every instance, in the order
//     of the store's clock. It reports an expiry when the lock expires, not when the
//     record is swept.
//
// # Not guaranteed
//
//   - That a holder still holds the room when its write arrives elsewhere. Confirm
//     returns how long the lock can be trusted; the other system must refuse a token
//     lower than one it has seen.
//   - Every intermediate change: a slow reader of a Feed receives the latest state.
package document
