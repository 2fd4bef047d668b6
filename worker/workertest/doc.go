// Package workertest tests your own handlers: does what they do survive the repetitions that no guard can
// prevent? Import it in tests only.
//
// [New] returns an embedded Firestore and an embedded Cloud Tasks for plain tests.
//
// [Run] runs the Run of a [worker.Kind] in virtual time, in many schedules. [RunHandler] does the same for
// an HTTP handler. A schedule has steps: each delivery, each commit to the document, each booking, each act
// and each answer. The first schedules try each fault at each step. The others have up to four faults,
// which a seed draws. The faults are, in the words of [leasetest.Fault]:
//
//   - crash before, crash after: the process dies before the step happens, or after it and before the
//     process learns of it. From then on it does nothing that the world outside sees.
//   - reply lost: the step happens, and the process gets an error.
//   - answered 504: the act happens, and a gateway answers in place of its receiver. [Acts.Do] returns an
//     error.
//   - late, during the next run; late, after the next run: the process stops until its lock has expired,
//     another process acquires it, and then the step arrives.
//   - SIGTERM: the process is stopped, and killed 10 s later.
//   - delivered twice: another process gets the same delivery at the same time, and again a minute later.
//
// The queue delivers again whatever was not acknowledged. Work that its concurrency key has parked is woken by
// recovery, which Run then calls each minute. The steps called key are commits to the document of the key.
//
// # What it finds
//
// Run checks the promises of [worker] first: only the owner of the lock writes, the work finishes once, and
// nothing is lost. Then it checks your handler, with the acts that [Acts] records:
//
//   - A schedule has the same acts as a run without a fault, by name and Idempotency-Key. None is
//     repeated, left out, or done only after a fault. An attempt that has lost the lock does none after a
//     newer attempt.
//   - The work ends READY, or FAILED with the code in [Options].Declines.
//   - An open act of [worker.Once] ends FAILED with the code effect_uncertain, so that an operator answers
//     it. Every other end with an open act fails the test. An example is a handler that returns
//     [worker.Permanent] for each error: a lost reply is no refusal.
//   - Different acts have different Idempotency-Keys. Run also does a second work, in a document with
//     another id, whose keys must differ. An amount as a key fails the test.
//   - The work does at least one act, or the number in [Options].Acts.
//
// Run reports the first schedule that shows a problem, with its steps, and the environment variable that
// repeats it. It leaves out the faults that the problem does not need.
//
// # What it does not show
//
//   - What a handler does without [Acts], such as writes to a file: a process that has crashed goes on
//     until its next step. With -v, the test logs how many acts were recorded. A network connection, such as
//     one of http.DefaultClient, cannot be used in the bubble: the test binary ends.
//   - Acts that a run without a fault leaves out: set Options.Acts to the number that you expect.
//   - Whether a key from the input is unique. Run gives both works the same input, and reports the key
//     that they share. If the input identifies the work, set Options.Other to the input of another one; Run
//     compares these two, and no others. RunHandler sends its second request with another Idempotency-Key
//     header; without that header it sends the same request.
//   - Keys and bodies of [Acts.Do]: it has only names.
//   - Refusals that your receiver does not make: write a receiver that refuses, and set Options.Declines.
//   - Whether the result is the same after a fault.
//   - Acts whose names or keys differ in each run, by a time or a random id: use stable names and job.Key.
//   - Variables of the test's package: they survive a crash. Make what a process has in memory in the
//     function that starts it.
//   - Timers of a paused process: they go on.
package workertest
