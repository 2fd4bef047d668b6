// Package projectlock is the lock on a project that is being edited: one program
// or browser writes, the others are read-only.
//
// It is a face of packages lease and documentlock: a [Locker] holds a room of a
// remote store, the strategy web-lock, or where that is unavailable the file
// project/.lock, the strategy file-lock. What may be done when is decided by the
// rules of package lease; who asks how often, who is told and when writes must
// stop is decided here.
//
// # Guarantees
//
//   - Of all who use the same strategy, a browser with the same room included,
//     one holds the lock. Its owner is a UUID that is new with each acquisition.
//   - The file is taken only where the remote lease is unavailable: unsupported,
//     or unreachable in each of three attempts and until 25 s after the first, by
//     when whoever held it in the same outage has lost its trust. So an acquisition
//     in an outage takes 25 s, or the TTL if that is longer. Where it is held, or
//     was seen held by one of them, or the store refuses, the acquisition fails (R6).
//   - Who gets the remote lease and finds the file held gives the lease back: so
//     who fell back in an outage keeps out those who come to its machine after it.
//   - Read-only is entered at least a tenth of the TTL before the lease expires,
//     also when no call to a store returns; WithProjectLock then ends its
//     function's context, before anybody else is told. It is entered once, and left
//     by Reset or a forced release alone: nothing re-acquires by itself (P9).
//   - The events of [Locker.Subscribe] are in the order of the states, one at a
//     time (P7).
//   - project/.lock is written as a whole or not at all. Half-written, empty or
//     another program's, it counts as held until 30 s after it was modified, and
//     may then be taken. Nothing else is written than project/.lock, the file
//     project/.lock.guard that programs flock, and with [Telemetry]
//     project/autosave/lock-DATE.jsonl (P10). No symbolic link is followed.
//   - A lease that was lost is removed only if it is still its holder's (R1). One
//     that time has ended stays until it expires, or until WithProjectLock's
//     function has returned, Reset or a forced release: what ignores the loss has
//     [Error.KillAfter] to end. Nor does a forced release take what another holds.
//   - A release ends the context of WithProjectLock's function, if that still runs,
//     before the lease.
//
// # What is not guaranteed
//
//   - That a holder of the file and one of the remote lease exclude each other
//     where one of them reaches the store and the other does not, on one machine or
//     on two: who falls back cannot see the remote lease, and who holds that looks
//     at the file but once. Nor where another's TTL is longer than 25 s and ours, or
//     for those without a remote store beside those with one: the latter are kept
//     out, the former not. They must not write what they share, or who is written
//     to must refuse a lower [Lease.Token].
//   - That what ignores the end of its context has stopped when another takes over.
//     [Error.KillAfter] says how long it may live where it can be killed.
//   - Trust through a suspension of the machine, as for package lease; a program
//     that was stopped learns of it when it goes on, and not what ran beside it.
//   - That an acquisition which timed out, and then fell back, has left nothing in
//     the remote store, or one that failed or was aborted while it does not answer:
//     it may hold the room for one TTL.
//   - Exclusion over a network file system, or of programs that write project/.lock
//     without flocking project/.lock.guard: of two that write at once the later
//     wins, and the earlier learns of it with its next heartbeat.
//   - That a lease is renewed by touching its file: mtime is what the file says.
package projectlock
