// Package lease lets one of many workers hold a record for a limited time. The
// holder can renew its lease, and each later holder has a larger fencing token.
//
// # Vocabulary
//
//   - A record is a document with a [Lease] in it, and fields of its own that
//     change in the same commit as the lease.
//   - A [Store] keeps records, changes them by compare-and-swap, and has its own clock. An
//     [Excluder] can also make other writers wait.
//   - An owner is the name of one acquisition, new each time. Owner and fencing
//     token together are a [Grant].
//   - The token grows by one with each acquisition, survives release, and is
//     never reset.
//   - A lease expires by time. Its owner releases it; the next owner steals it
//     once it has expired; an operator breaks it. It is lost when its holder
//     cannot prove that it holds it.
//   - TTL is how long a lease lives, heartbeat how often it is renewed, and
//     margin how long before its expiry the holder stops trusting it.
//   - A finished record is terminal. A skip is an acquisition that was refused
//     because the record is finished, exhausted or held.
//
// # States
//
// The rules judge expiry at the store's time of the reading that is swapped. In the
// table, "mine" means that owner and token match.
//
//	            | Take              | Extend    | Finish     | Drop      | Break | Reopen
//	free        | held, token+1     | ErrLost   | ErrLost    | free      | free  | free, attempts 0
//	held, mine  | *HeldError        | held      | finished   | free      | free  | *HeldError
//	held, other | *HeldError        | ErrLost   | ErrLost    | unchanged | free  | *HeldError
//	expired     | held, token+1     | held if   | finished   | free if   | free  | free, attempts 0
//	            |                   | mine      | if mine    | mine      |       |
//	finished    | ErrFinished       | ErrLost   | ErrLost    | unchanged | see   | free, attempts 0
//	            |                   |           |            |           | below |
//
// If Take would grant the lease but no attempt is left, it returns ErrExhausted,
// and the record is finished with token+1. Break of a finished record clears the
// owner and the times; the record stays finished. Adopt is Finish of a finished record that
// still has the owner and the token, which another program has finished.
//
// # Guarantees
//
//   - If several callers acquire at once, exactly one gets the lease, however many
//     replies are lost: a lost outcome is read from the record.
//   - A holder's writes through its [Hold] are conditional on the lease in the
//     same commit. A superseded holder changes nothing, whenever its writes
//     arrive.
//   - A run's context ends, with a [*LostError] as its cause, at least a margin
//     before the lease expires, even if no call to the store returns.
//   - Other programs' writes to the record are not lost, and do not count as the
//     loss of the lease.
//   - Only the store's clock decides whether a lease has expired. The clocks of
//     the machines may be wrong.
//   - A deleted record is not recreated.
//
// # Not guaranteed
//
//   - That two bodies never run at the same time. A body that ignores its
//     cancellation, or a machine that stops for a while, continues while another
//     holds the lease. KillAfter is how soon such a body should be killed.
//   - Side effects elsewhere. The other system must refuse a token lower than one
//     it has seen, or the effects must be idempotent.
//   - Trust through a suspension: the monotonic clock of Linux and macOS stops
//     while a machine or VM sleeps, and the watchdog with it. Writes are still
//     fenced; side effects are not.
//   - Trust across clocks of different speeds. The margin covers a difference of a tenth. A store
//     whose clock jumps ahead shortens a lease; its holder learns of that with
//     the next heartbeat.
//   - Recovery from a wrong store clock. The clock must not run backwards. If it was
//     far ahead for a while, a lease that was written then stays held until its wrong
//     expiry, or until an operator breaks it.
//   - That an acquisition that ended in ErrUnavailable has no effect: its last
//     write may arrive later, and then holds the record for one TTL and counts
//     one attempt.
//   - Fairness, order among waiting acquirers, or notice of a release.
//   - Protection from programs that write to the record without compare-and-swap.
package lease
