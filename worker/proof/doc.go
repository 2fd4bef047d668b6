// Package proof has one model of what is outside of the workers, a store of
// analyses and a queue, and one judge of what workers do to it. Two proofs in
// its tests run the real worker.Server and Guard, with the rules and the loop of
// package lease, against the model: a search of all interleavings and a
// simulation from seeds. cmd/worker/chaos shares the judge, History. No binary
// has this package.
//
// # What is checked
//
// Each write, when the store applies it: see History.Add. The number of attempts
// and the status fit the write. An unlock breaks one lock. Each answer: its run
// has ended; a 2xx leaves the analysis finished or a task in the queue; it does
// not report locked, lock_lost, READY or FAILED where that is not so. Each run
// that is not cancelled has the lock, unexpired, and is alone; only a run whose
// lock an operator has broken may go on until it reads the record or its trust
// ends. The end: every analysis is READY or FAILED, finished once between two
// requeues.
//
// # The search
//
// TestNoInterleaving… explores one analysis with several deliveries. Each
// execution is a sequence of steps in a testing/synctest bubble, chosen among
// those that are possible once nothing moves by itself:
//
//   - A load, a swap or a booking is done and answered; or it fails; or its reply
//     is lost. A swap that failed or was given up may arrive later.
//   - A worker crashes or gets SIGTERM, an operator unlocks, recovery is called.
//   - A run succeeds, fails for now or for good, or obeys its cancellation.
//   - The queue dispatches a task, also one in flight or not yet due, to a busy or
//     an idle worker.
//   - Time passes until a heartbeat or a task is due, trust ends or the lock
//     expires. Calls without a reply are kept waiting meanwhile.
//
// A reading goes with the step that leads to it. The searches, each execution of
// which is then brought to its end without faults and without recovery:
//
//  1. All sequences of EXPLORE_DEPTH steps.
//  2. All sequences of up to EXPLORE_REACH steps of which at most EXPLORE_STRAYS
//     are strays: not the first possible one, which is what goes well.
//  3. The same from four starts that cost nothing. booked: a duplicate has booked
//     a follow-up of a live run. broken: and an operator has unlocked. stopped: as
//     booked, and the run got SIGTERM and has booked its replacement. overtaken: as
//     broken, and the follow-up ran elsewhere and was stopped. At most
//     EXPLORE_ONWARD steps are strays, fewer from the last two, and one fewer where
//     a fault and a crash are possible too.
//
// EXPLORE_DELIVERIES and EXPLORE_FAULTS bound dispatches and faults; the budgets in
// searches bound the rest. EXPLORE_SEARCH=4 EXPLORE_REPLAY=1.0.2 repeats one
// execution and prints it.
//
// An execution ends where its state has been seen with as much left. That assumes
// that a worker depends on the replies it got, their times and the time alone,
// that idle workers are alike, and that 64-bit hashes do not collide. Not covered:
// two crashes, three faults or more strays in one execution, a first reading that
// fails, two analyses, and a worker that stands still with its timers.
//
// # The simulation
//
// TestManySeeds… runs several workers and analyses in virtual time. The clocks of
// workers, store and queue are up to ten minutes apart. Calls to the store are
// lost, late, slow, refused or applied twice; store and workers are cut off; the
// queue dispatches twice, late, or not at all, with backoff and deadlines; workers
// crash, stand still and are stopped; other programs write; an operator unlocks
// and requeues; recovery is called each minute. All of it is drawn from the seed by
// the identity of what it happens to, at nanoseconds of its own, so a seed repeats
// exactly: SIMULATE_SEED=n prints it. A pause is milder than a real one, because
// timers inside the worker go on.
package proof
