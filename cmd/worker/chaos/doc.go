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
//     Google's emulator (make chaos): workers are killed, stopped and paused,
//     Firestore is paused, calls are lost, deliveries duplicated and delayed.
//     CHAOS_DURATION, CHAOS_ANALYSES, CHAOS_DELIVERIES, CHAOS_WORKERS and
//     CHAOS_SEED change its size. The seed decides the choices, not the course:
//     processes and the network have a will of their own.
//
// What TestChaos calls an overlap: a run is live from when the analyzer hears
// of it until it is answered or its worker has hung up, which cancellation and
// death both do. Two live runs of an analysis overlap. While its worker is
// paused by a signal a run may: it cannot know, and must have no effect. Any
// other overlap fails the test when it has lasted for a TTL, by which a slow
// machine is excused. The effective run is the one whose token finished the
// analysis: there is exactly one.
package chaos
