// Package chaos tests the worker as processes, against a Firestore whose calls
// fail as a network's do. It holds nothing but tests and is in no binary.
//
// A proxy stands between the workers and Firestore. It can lose the reply to a
// commit that was applied, drop a commit, apply one after the reading that was
// to clear up what became of it, send one twice, and hold one back; and it
// keeps the whole history of what was applied. The analyzer is a server of the
// test's, which sees every run begin and end.
//
//   - The scripted tests put one fault on one commit, or one other writer into
//     one run. They run on Google's emulator or, where it is not installed, on
//     the embedded one.
//   - [TestChaos] runs small in every test run, and in full with CHAOS=1 on
//     Google's emulator (make chaos): runs are unlocked, workers are killed,
//     stopped and paused, Firestore is paused, calls are lost, deliveries
//     duplicated and delayed.
//     CHAOS_DURATION, CHAOS_ANALYSES, CHAOS_DELIVERIES, CHAOS_WORKERS and
//     CHAOS_SEED change its size. The seed decides the choices, not the course:
//     processes and the network have a will of their own.
//
// What TestChaos calls an overlap: a run is live from when the analyzer hears
// of it until it is answered or its worker has hung up, which cancellation and
// death both do. Two live runs of an analysis overlap. The older may go on while
// its worker is paused by a signal, and for a tenth of the TTL and a second
// after: it cannot know, and must have no effect; and for a TTL after an
// operator has unlocked it. Any other overlap fails the test, except for as long
// as the test itself, by a ticker of its own, has felt the machine stand still.
// So that there is one to be seen, a run that is paused or unlocked goes on for
// eight TTLs unless its worker hangs up. Each worker calls the proxy at an
// address of its own: a heartbeat or a release is judged by whose lock it
// changes. The effective run is the one whose token finished the analysis:
// there is exactly one.
package chaos
