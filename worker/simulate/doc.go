// Package simulate holds a simulation of whole workers in virtual time: its
// tests are all there is of it, and this is what they simulate.
//
// # What is real
//
// Several worker.Servers, each with its Guard, over analysislock.Locks: the rules of
// package lease, its loop, heartbeats, watchdog and cancellation, and the table
// from outcome to status. Instances of a worker share nothing.
//
// # What is simulated
//
//   - Time: one testing/synctest bubble a seed. The workers' clock is the
//     bubble's; the store's and the queue's are each up to ten minutes off.
//   - The store: compare-and-swap on one record. A call is dropped before or
//     after it was applied, applied after the lock has expired, slow either way,
//     refused as a conflict (applied or not), or unavailable; the whole store, or
//     one worker's way to it, is dark for a while. Others write to the record.
//   - The queue: at least once, with duplicates, late dispatches, a dispatch
//     deadline that does not end the run, backoff, scheduled tasks, names that
//     stay taken for 24 hours; its calls are unavailable or lose their replies.
//   - The scheduler that calls for recovery each minute, over a query with a
//     judgement of its own.
//   - Workers that crash, stand still for longer than the lock lives, or are
//     told to stop; and an operator who unlocks and requeues.
//
// All that happens by chance is drawn from the seed by the identity of what it
// happens to, never by the order in which goroutines run, and with nanoseconds,
// so that no two events fall on one instant: a seed replays exactly.
//
// # What is checked
//
// Each write when the store applies it: tokens grow, nobody is granted what
// another holds, only the holder extends, finishes or releases, and not before
// its body has ended; what is finished stays. Each acknowledgement: the
// analysis is finished, or another delivery is in the queue. Each answer from
// memory: that process holds the lock and may trust it. Each body: no two are in
// effect at once, where a body counts until it ends or is cancelled, whichever
// comes first: what one does that does not heed its cancellation is not counted,
// nor is what one does while it stands still. The end: every analysis is READY or FAILED. And the
// history of the lock, as its callers saw it, against a model of one register,
// by porcupine.
//
// A pause is milder here than in life: calls, answers and bodies stand still,
// but timers inside the worker go on, so a watchdog fires in time.
package simulate
