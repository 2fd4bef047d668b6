// Package worker guards the work of a service. Only one worker runs a document at a time, and its result is written
// once, even if Cloud Tasks delivers it twice or Cloud Run kills an instance. Firestore keeps the documents and
// their locks. docs/library.md is its reference.
//
// Start with three calls: [Open] connects a [Guard] with [Options], which [FromEnv] reads from the environment;
// [Guard.Register] adds a [Kind], which is a collection of documents and the function Run for one of them; and
// [Guard.Routes] returns a handler for all routes. Call [Guard.Shutdown] at the end.
//
// [Work.Submit] creates a document and enqueues it. [Work.Handler], [Work.Echo], [Work.PubSub] and [Work.Eventarc]
// handle deliveries: they acquire the document's lock, renew it during Run, write the result, enqueue the next delivery
// if one is needed, and answer. [Typed] makes a Run that decodes its input. [Guard.Recovery] enqueues orphaned
// documents again, and [Guard.Health] serves health checks. [Work.Operator] does what the commands of taskguard do.
//
// [Do] needs no documents and no routes: it runs a function once for an operation and a key, and returns the stored
// result to every later caller. [DoOutcome] has options, [Lookup] reads an outcome, and [Reset] lets the function run
// again. [Guard.Idempotent] runs an HTTP handler once for each Idempotency-Key. [Once], inside any of these, keeps a
// side effect from being repeated.
//
// # Guarantees
//
//   - The context of a run ends before another run may take the lock. A run that has lost its lock stores nothing,
//     and a finished document stays finished. This holds for Do too.
//   - A delivery is acknowledged only if its document is finished, if another delivery is enqueued, if it is parked
//     behind a run of its key that will enqueue it, or if it can never succeed.
//   - Only Firestore's clock decides whether a lock has expired.
//
// # Not guaranteed
//
//   - That a function runs only once. It runs again after a crash, a lost lock or an error, and a function that
//     ignores its context may still run when the next run begins. Mark side effects with [Once], or send
//     [Job].LockToken to the services that you call and refuse a lower token there, as taskguard/repo/fence does.
//   - That work runs again without a Queue, unless its sender delivers it again.
package worker
