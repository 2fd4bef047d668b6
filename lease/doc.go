// Package lease lets one of many workers hold a record for a limited time. The
// holder can renew its lease, and each later holder has a larger fencing token.
//
// # Glossary
//
// Each word means the same in every package, and every layer uses the same verb.
//
//   - record: a document with a [Lease] in it, and other fields, which change in the same
//     commit. (Documents and routes say lock for lease.)
//   - store: it keeps records, changes them by compare-and-swap, and has a clock.
//   - owner: the name of one acquisition, new each time. With the token it is a [Grant].
//   - token: the fencing token. It grows by one with each acquisition, survives a release, and
//     is never reset.
//   - acquire: take a free or expired lease. Taking an expired one is a steal.
//   - renew: move the expiry to one TTL from now. A heartbeat is a renewal that is made in time.
//   - finish: make the record terminal, and free the lease: complete or fail, in an analysis.
//   - adopt: finish a record that another program has made terminal during the run.
//   - release: free the lease as its owner. A refund takes back the attempt.
//   - unlock: free the lease of any owner, by an operator. Reopen lets a record run again.
//   - expire: end by time. Only the store's time of a reading decides that.
//   - trust: how long a holder may believe that it holds the lease, by its own clock. It ends a
//     margin before the expiry.
//   - lost: the holder cannot prove any more that it holds the lease.
//   - skip: an acquisition that finds the record finished, exhausted or held.
//
// # States
//
// The rules judge expiry at the store's time of the reading that is swapped. In the
// table, "mine" means that owner and token match.
//
//	            | Acquire           | Renew     | Finish     | Release   | Unlock | Reopen
//	free        | held, token+1     | ErrLost   | ErrLost    | ErrLost   | free   | free, attempts 0
//	held, mine  | *HeldError        | held      | finished   | free      | free   | *HeldError
//	held, other | *HeldError        | ErrLost   | ErrLost    | ErrLost   | free   | *HeldError
//	expired     | held, token+1     | held if   | finished   | free if   | free   | free, attempts 0
//	            |                   | mine      | if mine    | mine      |        |
//	finished    | ErrFinished       | ErrLost   | ErrLost    | ErrLost   | see    | free, attempts 0
//	            |                   |           |            |           | below  |
//
// If Acquire would grant the lease but no attempt is left, it returns ErrExhausted, and the
// record is finished with token+1. Unlock of a finished record clears the owner and the times;
// the record stays finished. Adopt is Finish of a finished record that still has the owner and
// the token.
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
//     expiry, or until an operator unlocks it.
//   - That an acquisition that ended in ErrUnavailable has no effect: its last
//     write may arrive later, and then holds the record for one TTL and counts
//     one attempt.
//   - Fairness, order among waiting acquirers, or notice of a release.
//   - Protection from programs that write to the record without compare-and-swap.
package lease
