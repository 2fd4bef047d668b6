// Package proof tests the workers against a model of a store and a queue, and judges their
// writes by History. Two kinds of tests run the real code against the model: a search of
// all interleavings, and a simulation from seeds. The real code is the guard
// of internal/delivery, the rules of lease/analysislock and the loop of lease.
// cmd/worker/chaos uses History too. No binary contains this package.
//
// # What is checked
//
// Each write, when the store applies it: see History.Add. The number of attempts, the
// status and the last attempt of the history are consistent with the write. An unlock or a cancel
// breaks one lock at most.
//
// Each next attempt: after a temporary failure it is due within RETRY_MIN and RETRY_MAX. Recovery
// marks only an analysis whose lock is not held and whose next attempt is late. No attempt begins
// more than 2 s early, except by the task that was booked for it.
//
// Each attempt that has no end: the next acquisition records that it crashed. A suspect, whose
// last two attempts crashed, runs while its worker runs nothing else, or is delayed by 15 to
// 45 s; after ten delays it runs beside others only if it has waited for RUN_TIMEOUT. It is FAILED
// after four crashes in a row, of which the last two were alone, and not before. A requeue gives
// it two more. A delivery that is stopped before it begins writes nothing, and is not acknowledged.
//
// Each checkpoint, which names its run and its number: only the lock's holder writes one,
// never an older one than its last. A release or a failure leaves the newest that the run
// has reported, READY and a fresh requeue leave none, and other writes change none. When a
// synchronous checkpoint has returned without an error, it has been committed. A run is
// handed the checkpoint that the record had when its lock was acquired. An attempt is taken back
// only for a stop, or for a run that has reached its deadline and has committed a checkpoint, and
// for such a run always.
//
// Each answer: its run has ended. After a settled one the analysis is finished or the queue
// has a task for it; after retry, waiting and suspect, the task of the next attempt, which the
// record names. It does not report locked, waiting, suspect, lock_lost, READY, FAILED or
// already finished if that is not true.
//
// Each run that is not cancelled holds the lock, unexpired, and is the only one. A run whose
// lock an operator has broken, also by a cancel, may continue until its worker reads the
// record or its trust ends.
//
// Each act of an analysis that charges: see judgeAct. The count of open acts equals the number of its open
// records, an operator's answer is for the state that was seen, only an answer removes an
// uncertain record, and Once returns no receipt that the provider did not give.
//
// The end: every analysis is READY or FAILED, no act is uncertain, and was finished once between two
// requeues.
//
// # The search
//
// TestSearch explores one analysis with several deliveries. Each execution
// is a sequence of steps in a testing/synctest bubble. The next step is chosen when
// every goroutine waits:
//
//   - A load, a swap or a booking succeeds, or fails, or its reply is lost. A swap that
//     failed, or whose caller gave up, may arrive later.
//   - A worker crashes, also between the commit of a release and its booking, or gets
//     SIGTERM. Recovery is called; its mark and its booking are calls too. An operator
//     unlocks, cancels, or requeues, to continue or anew.
//   - A run succeeds, fails with or without a retry, or ends after its cancellation. It
//     does a unit of work and reports a checkpoint, or waits for its commit.
//   - The queue dispatches a task, also one in flight or not yet due, to a busy or
//     an idle worker.
//   - Time passes until a heartbeat, a checkpoint's commit or a task is due, a run reaches
//     its deadline, a suspect has waited for the places of its worker, trust ends or the lock
//     expires. Calls without a reply still wait after it.
//
// A read is one step with the step that leads to it. There is a search of all sequences of
// EXPLORE_DEPTH steps. The others are of sequences of up to 30 steps with a few deviations. A
// deviation is any step other than the first possible one, which is the one without a fault. They
// begin at the beginning, with EXPLORE_DEVIATIONS deviations, or after the steps of a start, which
// do not count, with EXPLORE_ONWARD deviations or one or two fewer:
//
//   - booked: a duplicate has booked a follow-up of a live run. stopped: then the run got SIGTERM
//     and has booked its replacement. overtaken: as booked, then an operator has unlocked, and the
//     follow-up ran elsewhere and was stopped.
//   - reported: a run has committed a checkpoint and reported another. cancelled: then an operator
//     has cancelled. releasing: as reported, then the run was stopped, and its lock expired before
//     the release arrived. expired: a run has reached its deadline. flushing: then it has reported
//     twice and ended.
//   - failed: a run has failed for now and released its lock, its next attempt is not yet booked,
//     and a duplicate has read the record before. recovering: a run has failed for now, its lock
//     expired before the release arrived, and recovery has read the record. marked: a heartbeat has
//     not arrived before the lock expired, and recovery has marked the analysis but not yet booked
//     its delivery. delayed: recovery is about to ask for a task that still waits.
//   - suspected: two attempts have crashed. occupied: then its task went to a worker with other
//     work. delaying: it has waited there in vain, and is about to be delayed. emptying: it was
//     delayed ten times, and waits at a worker with other work. overdue: one attempt has crashed,
//     and the next still runs when its lock has expired. killing: four attempts have crashed, two
//     of them alone.
//
// The budgets in searches limit the steps of each kind. Each execution then continues to its
// end without faults and without recovery. A violation is printed with the steps that lead to
// it. Not covered: two crashes after a start, three faults or more deviations in one
// execution, a first read that fails, two analyses, and a worker that is paused together with
// its timers.
//
// # The simulation
//
// TestSimulation runs several workers and analyses in virtual time. The clocks of workers,
// store and queue differ by up to ten minutes. Calls to the store are lost, late, slow or
// refused, or their replies are; the connections of workers break; the queue dispatches
// twice, late, or not at all, with backoff and deadlines; workers crash, some of them just
// after a release, pause and are stopped; an operator unlocks, cancels
// and requeues; runs report checkpoints, some of which the store refuses, and end at
// RUN_TIMEOUT, STALL_TIMEOUT and MAX_RUN_TIME; half of the analyses charge at a provider, where
// workers crash and pause before and after the charge, and an operator answers uncertain acts;
// recovery is called each minute. In one seed of five, one crash is the only fault. The seed
// determines all of it but the order of two calls at the same nanosecond, so most seeds repeat
// exactly: SIMULATE_SEED=n prints one. A pause is milder than a real one, because timers inside
// the worker continue.
//
// # Keys
//
// TestSearch_Keys searches two or three analyses of one key, with each call of a delivery, and
// each call to the record of the key, as a separate step. It finds a worker that does not look for a slot after
// parking, or for parked analyses after its end. TestSimulation has seeds with keys: at no time are more runs of a key
// in effect than it has slots, and at the end all are finished. In both, a delivery takes a slot only if one is left
// for each analysis that it has seen parked in front of its own. An answer key_busy is
// acknowledged only if its delivery has parked the analysis; that somebody wakes it shows at the end.
//
// In TestSimulation/killers_fail_alone, one or two analyses kill every worker that runs them, and nothing
// else fails. Workers have one, two or ten places, one or four of them run, and the analyses
// arrive at once or apart. In some seeds the workers are always busy: innocents of 20 to 25
// minutes come all the time, for more than half of all places. Each killer ends FAILED as crashed after four
// attempts, and every other analysis READY. In seeds of busy workers a killer lives for 30 s at
// most, which is what is left of RUN_TIMEOUT after the longest wait for an empty worker.
package proof
