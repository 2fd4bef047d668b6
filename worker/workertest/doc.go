// Package workertest tests a user's own handlers: whether what they do bears the repetitions that no
// guard can prevent. It is for tests only.
//
// [New] returns an embedded Firestore and an embedded Cloud Tasks for plain tests.
//
// [Run] runs the Run of a [worker.Kind] in virtual time, in many schedules. A schedule has steps: each
// delivery, each commit to the document, each booking, each act and each answer. In the first schedules
// one step has a fault, each step and fault in turn; in the others, up to four steps have faults that a
// seed draws. The faults are:
//
//   - crash before, crash after: the process dies before the step happens, or after it and before the
//     process learns of it. From then on nothing that it does is seen.
//   - reply lost: the step happens, and the process gets an error.
//   - late, during the next run; late, after the next run: the process stops until its lock has expired,
//     another process acquires it, and then the step arrives.
//   - SIGTERM: the process is stopped, and killed 10 s later.
//   - delivered twice: another process gets the same delivery at the same time, and again a minute later.
//
// The queue delivers again whatever was not acknowledged. At the end of each schedule Run checks what
// [worker] guarantees: every write was made by the owner of the lock, the work was finished once, and
// nothing was lost. Then it compares the acts, which [Acts] records, with those of a run without a
// fault: none was done again, or left out, or done by an attempt that had lost the lock after a newer
// one. An act that only an operator can answer, as [worker.Once] reports it, is no fault.
//
// Run reports the first schedule that shows a problem, with its steps, and the variable of the
// environment that repeats it. A schedule with several faults is reported without those that are not
// needed for a problem.
//
// # What it does not show
//
//   - What a handler does without [Acts], such as writes to a file: a process that has crashed goes on
//     until its next step. With -v, the test logs how many acts were recorded. A connection of the
//     network, such as that of http.DefaultClient, cannot be used in the bubble: the test binary ends.
//   - Whether the result is the same after a fault.
//   - Acts whose names differ in each run, by a time or a random id: give them stable names.
//   - Variables of the test's package: they survive a crash. Make what a process has in memory in the
//     function that starts it.
//   - Timers of a process that is paused: they go on.
package workertest
