// Package chaos tests the worker as processes, against a Firestore whose calls
// fail as a network's do. It has nothing but tests and is in no binary.
//
// A proxy stands between the workers and Firestore. It injects faults, in the words of leasetest.Fault: a reply or
// a request of a commit is lost, a commit is late, which is after the reading that was to resolve it, sent twice or
// slow, or Firestore is unavailable. It keeps the history of what was applied, and package proof judges that. Each worker, and the operator, calls the
// proxy at a different address. The analyzer is a program, which a worker starts
// for each run; a server in the test sets its pace. It does small units of work. It writes
// each to a journal, and then reports it as its checkpoint. Some runs fail temporarily.
//
// A second proxy stands between the workers and the embedded Cloud Tasks. It loses the
// creation of a task, or the reply to it, or kills the worker that waits for the reply.
//
// TestChaos runs small in every test run, on the embedded Firestore, and in full
// with CHAOS=1 on Google's emulator (make chaos): workers are killed,
// stopped and paused; Firestore does not answer; calls are lost; deliveries are
// duplicated. CHAOS_DURATION and CHAOS_SEED change it. The seed decides
// the choices, and not the course of processes and the network.
//
// A run is live from when its program asks for work until the program has ended. Two
// live runs of an analysis overlap. The older may go on while its worker is paused and
// for a tenth of the TTL and a second after: it must have no effect. Any other overlap fails the
// test, except for as long as this machine stood still. The effective run is the one whose token
// finished the analysis: there is exactly one.
//
// Each analysis charges at a provider in the test, before its units. The provider knows no keys. It
// loses replies, and may take longer than the TTL. The operator answers uncertain acts. There is
// one charge, and one more at most for each of his answers that there was none.
//
// An operator requeues what the test's own kills have made FAILED as crashed.
//
// Each run must get the newest checkpoint that was committed before its acquisition, and
// only the lock's holder may commit one. The next run repeats no unit of a run that
// released its lock: at SIGTERM, at RUN_TIMEOUT or after a failure. Each attempt counts, except one
// that was released at SIGTERM or RUN_TIMEOUT.
//
// TestChaosKeys is for slots of keys: workers are killed each second, and nothing else fails. make chaos-keys
// runs it for two minutes.
//
// What these tests do not judge again, because package proof does: when an attempt may begin and
// recovery may book, and what an answer says. The history of an analysis is not judged if the
// outcome of one of its commits is unknown to the proxy; there are few.
package chaos
