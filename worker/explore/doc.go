// Package explore searches the interleavings of several deliveries of one
// analysis, on the real worker.Server, worker.Guard and analysislock.Locks. All of it
// is in its tests.
//
// # What is explored
//
// Each execution begins anew in a testing/synctest bubble and is a sequence of
// steps, each chosen among those that are enabled once nothing moves by itself:
//
//   - A call to the store, load or swap, is done and answered; or it fails; or
//     its reply is lost; or it fails now and arrives later. A swap that was given
//     up because its time had passed may arrive later too.
//   - A booking in the queue is done, or fails, or is done and its reply is lost.
//   - A worker crashes; it gets SIGTERM; an operator unlocks, by a Ledger of his
//     own; Recover is called.
//   - A run succeeds, fails for now, or for good; once cancelled it obeys, or
//     succeeds nevertheless.
//   - The queue dispatches a task, also one that is in flight or not yet due, to
//     a busy worker or to one that is idle.
//   - Time passes: until a heartbeat is due, until the holder's trust ends, until
//     the lock expires, until a task is due. Who has asked the store meanwhile
//     has been kept waiting, and is answered late.
//
// A reading goes with the step that leads to it: that of a delivery or an unlock
// with its start, that after a conflict with the conflict. The store's clock is an
// hour behind the workers'.
//
// Three kinds of search are made, and each execution of them is then brought to
// its end without faults:
//
//  1. All sequences of EXPLORE_DEPTH steps.
//  2. All sequences of up to EXPLORE_REACH steps of which at most EXPLORE_STRAYS
//     are strays: not the first one enabled, which is what goes well.
//  3. The like from each of four starts, which cost no steps and nothing of the
//     budgets. booked: a run is live, its duplicate has booked a follow-up and
//     was acknowledged, so the first task is gone. broken: the same, and an
//     operator has unlocked. stopped: as booked, and the run got SIGTERM, and has
//     booked what comes in its place. overtaken: as broken, and the follow-up
//     came early, ran elsewhere, was stopped, and has booked what comes in its
//     place, while the first run goes on. At most EXPLORE_ONWARD steps are strays
//     from the first two, one less from the others; and once more, with one less
//     again, a fault and a crash besides.
//
// In 1 and 2 EXPLORE_DELIVERIES and EXPLORE_FAULTS bound how often a task is
// dispatched and how many calls fail; a crash, a SIGTERM, an unlock, a failure of
// the run, a dispatch before its time and a recovery happen once at most, and
// three times time passes. From a start, three dispatches, one of them before
// its time, a SIGTERM, an unlock, and twice time passes; no failure of the run
// and no recovery.
//
// # What is checked
//
// After each step: a run that is not cancelled has the lock, unexpired, and is
// alone; but one whose lock an operator has broken may not know until it has
// next read the record, or until its trust ends. A heartbeat that is due is
// sent. With each swap applied: the token does not shrink and is given once; a
// taken lock was free or expired; any other write is made under its own owner
// and token; a lock is freed after its run has ended; a finished record does
// not change; one unlock breaks one lock. With each answer: its run has ended; a
// 2xx leaves the record finished or a task in the queue; it does not say locked
// of its own lock, nor lock_lost of a record that it has finished. At the end:
// the analysis is READY or FAILED, without the help of Recover.
//
// # What is left out, and what pruning assumes
//
// An execution ends where its state has been seen with as many steps and strays
// left. The state is the document, the queue, the swaps that may still arrive,
// the time, the budgets, and for each worker all that its goroutines were told,
// in order and with the time. That assumes that a worker is deterministic
// otherwise: random owners are numbered. States are compared by 64-bit hashes.
// It is assumed that idle workers are alike, that a booking commutes with what
// others do, that what a run returns after its lock was lost does not matter,
// and that a delivery's first reading does not fail. No delivery goes to a worker
// that is stopping, any 2xx deletes its task, also one to an earlier dispatch of
// it, and three attempts are allowed. A worker that stands still
// as a whole, its timers with it, is not explored, nor are two analyses.
//
// # Which conjunctions are not covered
//
// A sequence with more strays than its search has is not covered, unless it
// begins with one of the starts. A further delivery, crash, fault, SIGTERM, unlock
// or passing of time is mostly one stray, and another order of what follows is
// one more. So as make explore sets it, three of these meet at most, and from
// booked and broken four, if none is a fault or a crash. In particular:
//
//   - Never in one execution: two crashes, more than two faults, more than one
//     dispatch before its time, SIGTERM or unlock beyond those of its start; from
//     a start also two faults, a failure of the run, a recovery.
//   - Hardly anything is tried after what is itself two or three strays and no
//     start: a lock that was stolen, a run that has failed, a last attempt, a
//     finish whose reply was lost, the follow-up of a follow-up.
//
// package simulate may come upon these by chance, and proves nothing of them.
//
// EXPLORE_SEARCH=4 EXPLORE_REPLAY=1.0.2 makes that one execution, beyond the
// start of that search, and prints it. The searches are numbered in the order in
// which they are made, from 0, the two from a start one after the other.
package explore
