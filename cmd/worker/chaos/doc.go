// Package chaos tests the worker as processes, against a Firestore whose calls
// fail as a network's do. It has nothing but tests and is in no binary.
//
// A proxy stands between the workers and Firestore. It loses the reply to a
// commit that was applied, drops a commit, applies one after the reading that was
// to resolve it, sends one twice, or delays one; it keeps the history of what was
// applied, and package proof judges that. Each worker, and the operator, calls the
// proxy at an address of its own. The analyzer is a server of the test's.
//
// TestChaos runs small in every test run, on the embedded Firestore, and in full
// with CHAOS=1 on Google's emulator (make chaos): runs are unlocked; workers are
// killed, stopped and paused; Firestore is paused; calls are lost; deliveries are
// duplicated and delayed. CHAOS_DURATION and CHAOS_SEED change it. The seed decides
// the choices, and not the course of processes and the network.
//
// A run is live from when the analyzer gets it until it is answered or its worker
// has hung up. Two live runs of an analysis overlap. The older may go on while its
// worker is paused and for a tenth of the TTL and a second after, and for a TTL
// after an operator has unlocked it: it must have no effect. Any other overlap
// fails the test, except for as long as this machine stood still. The effective run
// is the one whose token finished the analysis: there is exactly one.
package chaos
