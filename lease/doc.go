// Package lease lets one of many workers hold a record for a while: alone,
// renewably, and so that whoever comes after can prove that it came after.
//
// # Vocabulary
//
//   - A record is a document with a [Lease] in it, and fields of its own that
//     change in the same commit as the lease.
//   - A [Store] holds records and compares-and-swaps them by its own clock. An
//     [Excluder] can also keep other writers waiting.
//   - An owner is a name for one acquisition, new each time. Owner and fencing
//     token together are a [Grant].
//   - The token grows by one with each acquisition, survives release, and never
//     returns to what it was.
//   - A lease expires by time; is released by its owner; stolen, once expired,
//     by the next; broken by an operator. It is lost once its holder cannot
//     prove to hold it.
//   - TTL, heartbeat and margin are how long a lease lives, how often it is
//     renewed, and how long before its end its holder no longer trusts it.
//   - A finished record is terminal. A skip is an acquisition that was refused
//     because the record is finished, exhausted or held.
//
// # States
//
// now is the store's time of the reading that is swapped; mine means owner and
// token. What the table does not name changes nothing.
//
//	            | Take              | Extend    | Finish     | Drop      | Break | Reopen
//	free        | held, token+1     | ErrLost   | ErrLost    | free      | free  | free, attempts 0
//	held, mine  | *HeldError        | held      | finished   | free      | free  | *HeldError
//	held, other | *HeldError        | ErrLost   | ErrLost    | as it was | free  | *HeldError
//	expired     | held, token+1     | held if   | finished   | free if   | free  | free, attempts 0
//	            |                   | mine      | if mine    | mine      |       |
//	finished    | ErrFinished       | ErrLost   | ErrLost    | as it was | see   | free, attempts 0
//	            |                   |           |            |           | below |
//
// Where Take would grant but no attempt is left it answers ErrExhausted, and
// the record is finished with token+1. Break clears what is left of a lease in
// a finished record, which stays finished.
//
// # Guarantees
//
//   - Of any number of acquirers at once, one gets the lease, however many
//     replies are lost: what became of a write is read, not guessed.
//   - A holder's writes through its [Hold] are in one commit with the proof that
//     the lease is still its own. A superseded holder changes nothing, whenever
//     its writes arrive.
//   - A run's context ends, with a [*LostError] as its cause, at least a margin
//     before the lease expires, also when no call to the store returns.
//   - Other programs' writes to the record are neither lost nor mistaken for
//     the loss of the lease.
//   - Expiry is judged by the store's clock alone. How the machines' clocks are
//     set matters nowhere.
//   - A deleted record is not recreated.
//
// # What is not guaranteed
//
//   - That two bodies never run at the same time. A body that ignores its
//     cancellation, or a machine that stands still, goes on while another has
//     the lease. KillAfter says how long what can be killed may be left alive.
//   - Anything about side effects elsewhere. What they reach must refuse a
//     token lower than one it has seen; or the effects must be idempotent.
//   - Trust through a suspension: the monotonic clock of Linux and macOS stops
//     while a machine or VM sleeps, and the watchdog with it. Writes are still
//     fenced; side effects are not.
//   - Trust across clocks of unequal speed. The margin covers a tenth; a store
//     whose clock leaps ahead shortens a lease under its holder, who learns of
//     it with the next heartbeat.
//   - That a store's clock that is wrong heals by itself. Set far ahead and then
//     back, it must not run backwards: a lease written meanwhile stays held for
//     as long, unless it is broken.
//   - That an acquisition that ended in ErrUnavailable left nothing behind: its
//     last write may arrive later and keeps the record for one TTL and one
//     attempt.
//   - Fairness, order among those who wait, or notice of a release.
//   - Anything against programs that write to the record without comparing.
package lease
