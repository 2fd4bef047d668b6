// Package project locks a project that is being edited: one program or browser
// writes, the others are read-only.
//
// A [Locker] holds a room of package document in a remote store (the strategy
// web-lock) or, if that store is unavailable, the file project/.lock (file-lock).
// The engine's lease.Hold keeps the lease: its timers, its watchdog and its trust.
// This package adds the attempts, states and events of seeds 000 and 001.
//
// # Guarantees
//
//   - One holder among all users of the same strategy, browsers included. Each
//     acquisition has a new UUID and a higher fencing token.
//   - The file is taken only if the remote store is not configured, or gave no
//     answer in three attempts and again after 25 s: by then, any remote holder in
//     the same outage has lost its trust. If the lock is held, or the store
//     refuses, the acquisition fails.
//   - A program that gets the remote lease and finds the file held gives the lease
//     back: a program that took the file in an outage has priority.
//   - Read-only begins at least a tenth of the TTL before the expiry, also when no
//     call to a store returns, and ends the context of WithProjectLock's function. It
//     begins once, and ends only by Reset or a forced release.
//   - Events arrive in the order of the states, one at a time.
//   - project/.lock is written as a whole or not at all. An unreadable one counts as
//     held until 30 s after its modification. Nothing else is written but
//     project/.lock.guard, for flock, and with [Telemetry]
//     project/autosave/lock-DATE.jsonl. project/.lock and its guard are no links.
//   - The record of a lost lease is removed only if it is still the loser's, and
//     not while WithProjectLock's function runs: a function that ignores the loss has
//     [Error.KillAfter] to end. A forced release removes nothing that another holds.
//
// # Not guaranteed
//
//   - Exclusion between a holder of the file and one of the remote lease if only
//     one of them reaches the store, if another's TTL is longer than 25 s and ours,
//     or if only one of them has a remote store. What they write to must refuse a
//     lower [Lease.Token].
//   - That code which ignores the end of its context has stopped before another
//     program takes the lock.
//   - Trust through a suspension of the machine, as for package lease.
//   - That an acquisition which failed or fell back in an outage left no record in the
//     remote store: the room may stay locked for one TTL.
//   - Exclusion over a network file system, or of programs that write project/.lock
//     without flock on project/.lock.guard.
package project
